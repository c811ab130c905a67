/* Log-probabilities as COMMITs bring them: they join, and what does not join or is not as many as was asked for is
 * refused. */
#include "orchestrator/answer/logprobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define TURN_LEN 7

static float value[] = {-1, -2, -3, -4, -5, -6, -7, -8, -9};
static int32_t id[] = {1, 2, 3, 4, 5, 6};

static struct gr_msg_commit commit(uint32_t from, uint32_t n_value, uint32_t n_id)
{
    return (struct gr_msg_commit){
        .logprob_from = from, .logprobs = {.p = value, .n = n_value}, .logprob_ids = {.p = id, .n = n_id}};
}

static bool take(struct gr_logprobs *l, uint32_t from, uint32_t n_value, uint32_t n_id)
{
    const struct gr_msg_commit m = commit(from, n_value, n_id);
    return gr_logprobs_take(l, &m, TURN_LEN);
}

static void test_they_join(void **state)
{
    (void)state;
    struct gr_logprobs l;
    assert_int_equal(gr_logprobs_init(&l, 3, 4), GR_OK);
    assert_true(take(&l, TURN_LEN, 3, 2));
    assert_true(take(&l, 0, 0, 0)); /* a COMMIT of provisional tokens has none */
    assert_true(take(&l, TURN_LEN + 1, 9, 6));
    assert_int_equal(l.n_known, 4);
    assert_true(l.value[3] == -1.0f && l.value[11] == -9.0f && l.id[1] == 2 && l.id[7] == 6);
    assert_false(take(&l, TURN_LEN + 4, 3, 2)); /* no room */
    gr_logprobs_finish(&l);
}

static void test_what_does_not_join(void **state)
{
    (void)state;
    struct gr_logprobs l;
    assert_int_equal(gr_logprobs_init(&l, 3, 2), GR_OK);
    assert_false(take(&l, TURN_LEN + 1, 3, 2)); /* a gap */
    assert_false(take(&l, TURN_LEN - 1, 3, 2));
    assert_false(take(&l, TURN_LEN, 4, 2));
    assert_false(take(&l, TURN_LEN, 3, 1));
    assert_false(take(&l, TURN_LEN, 9, 6));
    assert_true(take(&l, TURN_LEN, 3, 2));
    assert_false(take(&l, TURN_LEN, 3, 2)); /* once more */
    gr_logprobs_finish(&l);
}

static void test_none_are_wanted(void **state)
{
    (void)state;
    struct gr_logprobs l;
    assert_int_equal(gr_logprobs_init(&l, 0, 1000), GR_OK);
    assert_true(take(&l, 0, 0, 0));
    assert_false(take(&l, TURN_LEN, 3, 2));
    gr_logprobs_finish(&l);
    assert_int_equal(gr_logprobs_init(&l, 1, 2), GR_OK); /* the tokens' own alone */
    assert_true(take(&l, TURN_LEN, 2, 0));
    assert_true(l.n_known == 2 && l.value[1] == -2.0f);
    gr_logprobs_finish(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_they_join),
        cmocka_unit_test(test_what_does_not_join),
        cmocka_unit_test(test_none_are_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
