/* Sessions whose prompts begin alike: they go where that beginning was computed, unless another target has less to do.
 */
#include "tests/unit/orch_fleet.h"

#define PROMPT_LEN 600

/* Two equal targets that have told of their rounds, and whether they share what sessions compute. */
static struct fleet *make_sharing(uint64_t more_ns, bool shares)
{
    const struct gr_msg m = {.type = GR_MSG_PONG,
                             .pong = {.round_ns = 1000, .more_ns = more_ns, .shares_prefixes = shares}};
    return share_out(&m, &m, 0);
}

/* A session of one of two prompts and a token of its own, when its prompt is computed. Returns its target. */
static int open_long(struct fleet *f, int which, const char *salt, uint64_t *id)
{
    static int32_t prompt[PROMPT_LEN];
    for (int32_t i = 0; i < PROMPT_LEN; i++) {
        prompt[i] = (i * (which + 3)) % 97;
    }
    prompt[PROMPT_LEN - 1] = (int32_t)(f->n_id % 97);
    struct gr_session_request q = usual_request(false);
    q.prompt = prompt;
    q.n_prompt = PROMPT_LEN;
    snprintf(q.wishes.salt, sizeof(q.wishes.salt), "%s", salt);
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, id), GR_OK);
    answer(f);
    first_token(f, *id);
    return info_of(f, *id).target;
}

/* One session after another: each prompt's are where it was computed first, in whatever order they come. Returns how
 * many were. */
static int count_gathered(struct fleet *f, bool salts_differ)
{
    int home[2] = {-1, -1}, n_home = 0;
    uint32_t x = 3;
    for (int i = 0; i < 20; i++) {
        x = x * 1664525u + 1013904223u;
        const int which = (int)(x >> 31);
        uint64_t id = 0;
        const int target = open_long(f, which, salts_differ && i % 2 == 1 ? "other" : "", &id);
        end_turn(f, id);
        settle(f);
        home[which] = home[which] < 0 ? target : home[which];
        n_home += target == home[which];
    }
    return n_home;
}

static void test_prompts_gather(void **state)
{
    (void)state;
    struct fleet *f = make_sharing(100, true);
    assert_int_equal(count_gathered(f, false), 20);
    destroy_fleet(f);
    f = make_sharing(100, false); /* nothing is shared there: by turns */
    assert_in_range(count_gathered(f, false), 5, 15);
    destroy_fleet(f);
}

/* Under load a prompt is computed once at the other target as well, and then both are the same to it. */
static void test_prompts_spread_under_load(void **state)
{
    (void)state;
    struct fleet *f = make_sharing(100, true);
    uint64_t id = 0;
    int target[20];
    for (int i = 0; i < 20; i++) {
        target[i] = open_long(f, 0, "", &id);
    }
    for (int i = 1; i < 3; i++) {
        assert_int_equal(target[i], target[0]); /* 1200 are as fast as 1000 */
    }
    assert_int_equal(held_by(f, 0), 10);
    assert_int_equal(held_by(f, 1), 10);
    destroy_fleet(f);
}

/* What one salt has computed is nothing to another; a target that has left and come back has nothing. */
static void test_prompts_that_are_not_there(void **state)
{
    (void)state;
    uint64_t id = 0;
    struct fleet *f = make_sharing(1, true);
    const int home = open_long(f, 0, "", &id);
    assert_int_equal(open_long(f, 0, "", &id), home);
    assert_int_equal(open_long(f, 0, "other", &id), 1 - home); /* it has less to do */
    assert_int_equal(open_long(f, 1, "", &id), 1 - home);
    assert_int_equal(open_long(f, 0, "", &id), home);
    gr_orch_on_lost(f->orch, (uint32_t)home, f->now_ns);
    settle(f);
    join(f, (uint32_t)home, GR_WORKER_TARGET, 0);
    f->now_ns += GR_S;
    (void)gr_orch_step(f->orch, f->now_ns);
    const struct gr_msg m = {.type = GR_MSG_PONG, .pong = {.round_ns = 1000, .more_ns = 1, .shares_prefixes = true}};
    answer_later(f, 0, m);
    answer_later(f, 1, m);
    settle(f);
    assert_int_equal(gr_orch_drain(f->orch, (uint32_t)(1 - home), true, f->now_ns), GR_OK);
    while (held_by(f, (uint32_t)home) <= held_by(f, (uint32_t)(1 - home))) {
        (void)open_session(f, false);
        settle(f);
    }
    assert_int_equal(gr_orch_drain(f->orch, (uint32_t)(1 - home), false, f->now_ns), GR_OK);
    assert_int_equal(open_long(f, 0, "", &id), 1 - home); /* it has less to do, and the other holds nothing */
    destroy_fleet(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts_gather),
        cmocka_unit_test(test_prompts_spread_under_load),
        cmocka_unit_test(test_prompts_that_are_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
