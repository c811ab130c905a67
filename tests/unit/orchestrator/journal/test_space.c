/* What a run of segments takes: when it is to be rewritten, and when a segment is ended for that. */
#include "orchestrator/journal/space.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define SEGMENT 16000
#define BODY 944 /* of a record of 1,000 bytes */

static void add(struct gr_space *s, uint64_t session, uint64_t number, bool ends)
{
    const struct gr_record r = {
        .session = session, .number = number, .kind = 1 | (ends ? GR_RECORD_ENDS : 0), .n_body = BODY};
    assert_int_equal(gr_record_bytes(BODY), 1000);
    assert_int_equal(gr_space_add(s, &r), GR_OK);
}

/* Sessions from `first' on, closed, of a record each. */
static void add_closed(struct gr_space *s, uint64_t first, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        add(s, first + i, 1, true);
    }
}

static void test_more_goes_than_stays(void **state)
{
    (void)state;
    struct gr_space s = {.n_byte_segment = 0};
    assert_false(gr_space_pays(&s, SEGMENT));
    add(&s, 1, 1, false);
    assert_false(gr_space_pays(&s, SEGMENT));
    add_closed(&s, 10, 1);
    assert_false(gr_space_pays(&s, SEGMENT)); /* as much goes as stays */
    add_closed(&s, 11, 1);
    assert_true(gr_space_pays(&s, SEGMENT));
    assert_false(gr_space_pays(&s, GR_SPACE_WASTE_PART * 2000 + GR_SPACE_WASTE_PART));
    assert_true(gr_space_pays(&s, GR_SPACE_WASTE_PART * 2000));
    add(&s, 1, 2, true);
    assert_true(gr_space_need(&s) == 0 && gr_space_waste(&s) == 4000);
    gr_space_finish(&s);
}

static void test_too_much_stays(void **state)
{
    (void)state;
    struct gr_space s = {.n_byte_segment = 0};
    add_closed(&s, 10, 1);
    s.n_dead_byte = (uint64_t)2 * GR_SPACE_NEED_MAX;
    s.n_byte = s.n_dead_byte + GR_SPACE_NEED_MAX;
    assert_true(gr_space_pays(&s, SEGMENT));
    s.n_byte++;
    assert_false(gr_space_pays(&s, SEGMENT));
    gr_space_finish(&s);
}

static void test_a_segment_ends_early(void **state)
{
    (void)state;
    struct gr_space s = {.n_byte_segment = 0};
    add_closed(&s, 10, 15);
    assert_false(gr_space_ends_early(&s, SEGMENT, 0));
    add_closed(&s, 100, 1);
    assert_true(gr_space_ends_early(&s, SEGMENT, 0)); /* nothing stays, and a segment's worth goes */
    assert_false(gr_space_ends_early(&s, SEGMENT, 16000));
    add_closed(&s, 200, 16);
    assert_true(gr_space_ends_early(&s, SEGMENT, 16000)); /* as much again has come since it failed */
    for (uint64_t i = 0; i < 32; i++) {
        add(&s, 1000 + i, 1, false);
    }
    assert_false(gr_space_ends_early(&s, SEGMENT, 0)); /* more stays */
    gr_space_finish(&s);
}

/* What was dead is gone; what has died since counts. */
static void test_after_a_compaction(void **state)
{
    (void)state;
    struct gr_space s = {.n_byte_segment = 0}, then;
    add_closed(&s, 10, 20);
    add(&s, 1, 1, false);
    assert_int_equal(gr_space_copy(&s, &then), GR_OK);
    add_closed(&s, 100, 16);
    assert_int_equal(gr_space_forget(&s, &then), GR_OK);
    assert_true(gr_space_waste(&s) == 16000 && gr_space_need(&s) == 1000);
    assert_true(gr_space_ends_early(&s, SEGMENT, 0));
    gr_space_finish(&then);
    gr_space_finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more_goes_than_stays),
        cmocka_unit_test(test_too_much_stays),
        cmocka_unit_test(test_a_segment_ends_early),
        cmocka_unit_test(test_after_a_compaction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
