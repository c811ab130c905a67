/* Salts: who shares with whom. */
#include "orchestrator/http/salt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static const struct gr_api_owner nobody, alice = {{1, 2, 3}}, bob = {{1, 2, 4}};

/* One key and one cache_salt give one salt, and anything else gives another. */
static void test_division(void **state)
{
    (void)state;
    const struct gr_api_owner *const owners[] = {&nobody, &alice, &bob};
    const char *const bodies[] = {NULL, "a", "b", "ab"};
    char salt[12][GR_KV_SALT_MAX], again[GR_KV_SALT_MAX];
    for (int i = 0; i < 12; i++) {
        gr_http_salt(owners[i / 4], bodies[i % 4], salt[i]);
        gr_http_salt(owners[i / 4], bodies[i % 4], again);
        assert_string_equal(salt[i], again);
        assert_int_equal(strlen(salt[i]), GR_KV_SALT_MAX - 1); /* never the control link's, which is empty */
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(salt[i], salt[k]);
        }
    }
}

/* Whoever writes another one's salt into a body has a salt of his own. */
static void test_no_body_leads_to_another(void **state)
{
    (void)state;
    char hers[GR_KV_SALT_MAX], his[GR_KV_SALT_MAX];
    gr_http_salt(&alice, "word", hers);
    gr_http_salt(&bob, "word", his);
    assert_string_not_equal(hers, his);
    gr_http_salt(&bob, hers, his);
    assert_string_not_equal(hers, his);
}

/* The same in every process and after every start: what a target keeps stays of use. */
static void test_known_value(void **state)
{
    (void)state;
    char salt[GR_KV_SALT_MAX];
    gr_http_salt(&alice, "word", salt);
    assert_string_equal(salt, "6c5f17ccb21d76b61999098e31f0628ac9c022d48c8ba8d74e416fa0b0867c91");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_division),
        cmocka_unit_test(test_no_body_leads_to_another),
        cmocka_unit_test(test_known_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
