/* Names of events, requests that come twice, and answers that are found again by whose they are. */
#include "orchestrator/http/event_id.h"
#include "orchestrator/http/recall.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static const struct gr_api_owner alice = {{1}}, bob = {{2}};

static void test_event_ids(void **state)
{
    (void)state;
    char text[GR_EVENT_ID_MAX];
    struct gr_event_id id = {.session = 0xfedcba9876543210, .epoch = UINT32_MAX, .position = UINT32_MAX}, got = {0};
    gr_event_id_spell(&id, text);
    assert_string_equal(text, "fedcba9876543210-4294967295-4294967295");
    assert_true(gr_event_id_read(text, &got));
    assert_true(got.session == id.session && got.epoch == id.epoch && got.position == id.position);
    assert_true(gr_event_id_read("00000000000000a1-1-0", &got));
    assert_true(got.session == 0xa1 && got.epoch == 1 && got.position == 0);
    static const char *const none[] = {"",
                                       "7",
                                       "00000000000000a1",
                                       "00000000000000a1-",
                                       "00000000000000a1-1",
                                       "00000000000000a1-1-",
                                       "00000000000000a1--1",
                                       "00000000000000a1-1-1-1",
                                       "00000000000000a1-1-1 ",
                                       "00000000000000a1-1-+1",
                                       "00000000000000a1-1-4294967296",
                                       "00000000000000a1-1-99999999999999999999",
                                       "0000000000000000-1-1",
                                       "0000000000000g00-1-1",
                                       "00000000000000a1-1-00000000000000000000000000000000000000"};
    for (size_t i = 0; i < GR_ARRAY_LEN(none); i++) {
        assert_false(gr_event_id_read(none[i], &got));
    }
    assert_int_equal(got.session, 0xa1);
}

static void test_positions(void **state)
{
    (void)state;
    uint32_t n = 7;
    assert_true(gr_position_read("0", &n) && n == 0);
    assert_true(gr_position_read("4294967295", &n) && n == UINT32_MAX);
    assert_false(gr_position_read("", &n) || gr_position_read("-1", &n) || gr_position_read("1 ", &n) ||
                 gr_position_read("4294967296", &n) || gr_position_read("0x1", &n));
    assert_int_equal(n, UINT32_MAX);
}

static struct gr_once once_of(const struct gr_api_owner *owner, const char *key, int path, const char *body)
{
    struct gr_once o = {0};
    gr_once_take_key(&o, owner, key);
    gr_once_take_body(&o, path, body, strlen(body));
    return o;
}

static void test_once(void **state)
{
    (void)state;
    char key[GR_ONCE_KEY_MAX + 2];
    memset(key, 'k', sizeof(key));
    key[GR_ONCE_KEY_MAX + 1] = '\0';
    assert_false(gr_once_key_is_good(key) || gr_once_key_is_good("") || gr_once_key_is_good("a\n") ||
                 gr_once_key_is_good("\xc3\xa9"));
    assert_true(gr_once_key_is_good(key + 1) && gr_once_key_is_good("a b~"));
    const struct gr_once one = once_of(&alice, "k", 0, "body"), same = once_of(&alice, "k", 0, "body");
    assert_true(gr_once_is_same(&one, &same));
    const struct gr_once others[] = {once_of(&bob, "k", 0, "body"), once_of(&alice, "l", 0, "body"),
                                     once_of(&alice, "k", 1, "body"), once_of(&alice, "k", 0, "bodz")};
    for (size_t i = 0; i < GR_ARRAY_LEN(others); i++) {
        assert_false(gr_once_is_same(&one, &others[i]));
    }
}

static void test_found_by_whose_it_is(void **state)
{
    (void)state;
    struct gr_recall *r = NULL;
    struct gr_job job = {0};
    const struct gr_once once = once_of(&alice, "k", 0, "body"), none = {0};
    assert_int_equal(gr_recall_create(&r), GR_OK);
    const int place = gr_recall_add(r, &alice, &once, &job);
    assert_null(gr_recall_session(r, 5, &alice)); /* it has no name yet */
    gr_recall_name(r, place, 5);
    assert_ptr_equal(gr_recall_session(r, 5, &alice)->job, &job);
    assert_null(gr_recall_session(r, 5, &bob));
    assert_null(gr_recall_session(r, 6, &alice));
    assert_int_equal(gr_recall_place(r, gr_recall_once(r, &once)), place);
    assert_null(gr_recall_once(r, &none));
    const struct gr_once hers = once_of(&bob, "k", 0, "body");
    assert_null(gr_recall_once(r, &hers));
    gr_recall_forget_once(r, place);
    assert_null(gr_recall_once(r, &once));
    gr_recall_unload(r, place);
    assert_null(gr_recall_session(r, 5, &alice)->job);
    gr_recall_forget(r, place);
    assert_null(gr_recall_session(r, 5, &alice));
    gr_recall_destroy(r);
}

/* Places run out: those in memory stay, of the others the newest do. */
static void test_places_run_out(void **state)
{
    (void)state;
    struct gr_recall *r = NULL;
    struct gr_job job = {0};
    const struct gr_once none = {0};
    assert_int_equal(gr_recall_create(&r), GR_OK);
    gr_recall_name(r, gr_recall_add(r, &alice, &none, &job), 1);
    for (uint64_t i = 2; i < 3 * GR_RECALL_PLACES; i++) {
        const struct gr_once once = {.asked = true, .key = {(uint8_t)i, (uint8_t)(i >> 8), (uint8_t)(i >> 16), 1}};
        gr_recall_name(r, gr_recall_add(r, &alice, &once, NULL), i);
        assert_non_null(gr_recall_once(r, &once));
    }
    assert_ptr_equal(gr_recall_session(r, 1, &alice)->job, &job);
    assert_null(gr_recall_session(r, 2, &alice));
    for (uint64_t i = 3 * GR_RECALL_PLACES - 1; i > 2 * GR_RECALL_PLACES + 1; i--) {
        assert_non_null(gr_recall_session(r, i, &alice));
    }
    gr_recall_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_event_ids),      cmocka_unit_test(test_positions),
        cmocka_unit_test(test_once),           cmocka_unit_test(test_found_by_whose_it_is),
        cmocka_unit_test(test_places_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
