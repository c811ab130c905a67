/* A session whose target dies after each of its rounds in turn, and one whose target dies at every new token: noise
 * with a seed, an end token and log-probabilities are those of a session that stays where it is, bit for bit. */
#include "common/base/clock.h"
#include "tests/sim/pair_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_VOCAB 200 /* so many that the end token comes once */
#define N_TOKEN 40
#define N_LOGPROB 3

static const struct toy_config table = {.n_vocab = N_VOCAB,
                                        .n_ctx_max = 256,
                                        .n_row_max = 300,
                                        .n_out_max = 300,
                                        .n_pool_block = 40,
                                        .n_scratch_block = 32,
                                        .seed = 3,
                                        .sharpness = 4.0f};

/* When the target dies. */
struct deaths {
    int at_pass; /* after so many passes; 0: not so */
    struct gr_quarantine_rule quarantine;
    uint64_t restart_ns; /* the longest time until it is back; 0: 5 us */
    bool at_each_token;  /* after the pass that follows each that brought some */
    int n_pass;
    uint32_t n_seen;
};

struct text {
    int32_t token[N_TOKEN];
    float logprob[N_TOKEN * N_LOGPROB];
    int32_t id[N_TOKEN * (N_LOGPROB - 1)];
    uint32_t n;
    enum gr_finish finish;
    int n_pass, n_kill;
    struct gr_totals totals; /* of the orchestrator */
};

static struct gr_lm *make_lm(void *ctx, bool target)
{
    struct toy_config c = table;
    (void)ctx;
    c.blur_seed = target ? 0 : 99;
    c.blur = 3;
    return toy_lm_create(&c);
}

static void maybe_die(struct sim *s, void *arg)
{
    struct deaths *d = arg;
    const uint32_t n = sim_result(s, 0)->n_token;
    const bool is_new = d->at_each_token && n > d->n_seen;
    d->n_pass++;
    d->n_seen = n;
    if (d->n_pass == d->at_pass || is_new) {
        sim_kill_target(s);
    }
}

static struct gr_session_request request(bool drafts, int32_t end_token)
{
    struct gr_session_request r = pair_request(1, 40, N_TOKEN);
    r.wishes.want_draft = drafts;
    r.wishes.sampling.temperature = 0.8f;
    r.wishes.turn.n_logprob = N_LOGPROB;
    r.wishes.turn.stop_ids.n = end_token >= 0;
    r.wishes.turn.stop_ids.id[0] = end_token;
    return r;
}

static void run(bool drafts, int32_t end_token, struct deaths *d, struct text *out)
{
    struct gr_lm *target = make_lm(NULL, true), *draft = drafts ? make_lm(NULL, false) : NULL;
    const struct gr_session_request q = request(drafts, end_token);
    struct sim *s = sim_create(
        &(struct sim_config){.seed = 11,
                             .target_lm = target,
                             .draft_lm = draft,
                             .n_session_max = 2,
                             .prefill_chunk = 16,
                             .round_deadline_ns = 1000000000,
                             .msg_delay_ns = 1000,
                             .pass_ns = 1000,
                             .job_ns = 1000,
                             .make_lm = make_lm,
                             .seats = d->quarantine.n_failure > 0,
                             .orch = {.quarantine = d->quarantine},
                             .faults = {.restart_ns = d->restart_ns > 0 ? d->restart_ns : 5000, .notice_ns = 2000}});
    sim_on_pass(s, maybe_die, d);
    assert_int_equal(sim_submit(s, &q), 0);
    assert_true(sim_run(s, PAIR_LIMIT_NS));
    const struct sim_result *r = sim_result(s, 0);
    assert_true(r->done && r->n_token <= N_TOKEN && r->n_logprob_token >= r->n_token);
    *out = (struct text){.n = r->n_token, .finish = r->finish, .n_pass = d->n_pass};
    out->n_kill = sim_counts(s)->n_target_kill;
    out->totals = *sim_totals(s);
    memcpy(out->token, r->token, r->n_token * sizeof(int32_t));
    memcpy(out->logprob, r->logprob, (size_t)r->n_token * N_LOGPROB * sizeof(float));
    memcpy(out->id, r->logprob_id, (size_t)r->n_token * (N_LOGPROB - 1) * sizeof(int32_t));
    /* A death after its last round moves nothing. */
    assert_true((int)r->metrics.reopens == out->n_kill || (int)r->metrics.reopens == out->n_kill - 1);
    sim_destroy(s);
    gr_lm_destroy(target);
    gr_lm_destroy(draft);
}

static void assert_same(const struct text *a, const struct text *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->finish, b->finish);
    assert_memory_equal(a->token, b->token, sizeof(a->token));
    assert_memory_equal(a->logprob, b->logprob, sizeof(a->logprob));
    assert_memory_equal(a->id, b->id, sizeof(a->id));
}

static void check_moves(bool drafts, int32_t end_token, const struct text *want)
{
    struct text stays, got;
    run(drafts, end_token, &(struct deaths){0}, &stays);
    assert_same(&stays, want);
    assert_int_equal(stays.n_kill, 0);
    for (int at = 1; at < stays.n_pass; at++) {
        run(drafts, end_token, &(struct deaths){.at_pass = at}, &got);
        assert_int_equal(got.n_kill, 1);
        assert_same(&got, want);
    }
    run(drafts, end_token, &(struct deaths){.at_each_token = true}, &got);
    assert_same(&got, want);
    print_message("# %s: %d rounds, %u tokens; with a move at each: %d moves\n", drafts ? "trees" : "plain",
                  stays.n_pass, stays.n, got.n_kill);
    assert_true(got.n_kill > (int)want->n / (drafts ? 6 : 2));
}

static void test_a_move_at_every_token(void **state)
{
    (void)state;
    struct text whole, cut;
    run(false, -1, &(struct deaths){0}, &whole);
    assert_int_equal(whole.n, N_TOKEN);
    const int32_t end = whole.token[30];
    run(false, end, &(struct deaths){0}, &cut);
    assert_true(cut.finish == GR_FINISH_STOP && cut.n > 10 && cut.n <= 31);
    for (int drafts = 0; drafts < 2; drafts++) {
        check_moves(drafts, -1, &whole);
        check_moves(drafts, end, &cut);
    }
}

/* A death is up to 2 s after the last one, so that some pauses are over by then, and others not. */
static const struct gr_quarantine_rule strict = {
    .n_failure = 3, .window_ns = 60 * GR_S, .pause_min_ns = GR_S / 10, .pause_max_ns = GR_S};

/* A target that dies at every token is judged, and used all the same, for there is no other one: the text is the same,
 * no turn waits for a pause, and what was judged is counted. */
static void test_the_only_target_is_never_shut_out(void **state)
{
    (void)state;
    struct text whole, got;
    run(false, -1, &(struct deaths){0}, &whole);
    run(false, -1, &(struct deaths){.at_each_token = true, .restart_ns = 2 * GR_S, .quarantine = strict}, &got);
    assert_same(&got, &whole);
    const uint64_t *n = got.totals.quarantine;
    assert_true(got.n_kill >= 20);
    assert_in_range(n[GR_QUARANTINE_BEGUN], 1, got.n_kill - 2);
    assert_in_range(n[GR_QUARANTINE_OVERRULED], 1, n[GR_QUARANTINE_BEGUN]);
    run(false, -1, &(struct deaths){.at_pass = 5, .quarantine = strict}, &got);
    assert_same(&got, &whole);
    assert_int_equal(got.n_kill, 1);
    assert_int_equal(got.totals.quarantine[GR_QUARANTINE_BEGUN], 0); /* once is not too often */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_move_at_every_token),
                                       cmocka_unit_test(test_the_only_target_is_never_shut_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
