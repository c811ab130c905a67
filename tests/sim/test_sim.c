/* The three state machines on a virtual clock with table models, under seeded faults: kills and restarts of either
 * worker at any moment, broken connections, copied frames, stalled orchestrators, missing credit, slow drafters, pools
 * that are too small. Whatever happens the text is plain decoding's, no block leaks and no session is stuck.
 *
 * GRAFT_SIM_SEED=N replays one seed; GRAFT_SIM_SEEDS=N runs so many, from GRAFT_SIM_FIRST on. */
#include "common/base/log.h"
#include "tests/sim/sim_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_TOKEN_MAX 400
#define N_SEED_DEFAULT 10000
#define DRAIN_SHARE 10 /* of the seeds so many are run once more, with drains in place of faults */
#define CUT UINT32_MAX /* in place of a length: the client ended the turn, and no stop id did */

/* ---- what the text must be: the definition ---- */

struct plain {
    int32_t token[N_TOKEN_MAX]; /* the transcript */
    uint32_t len;
    int32_t out[N_TOKEN_MAX]; /* what was generated, over all turns */
    uint32_t n_out;
    struct gr_logprob_row logprob[N_TOKEN_MAX]; /* of these */
    enum gr_finish finish;
};

/* The next token, by the whole text; generated: from where on it was generated in this turn. */
static int32_t plain_pick(const struct sim_plan *p, const struct gr_wishes *w, struct plain *t, uint32_t generated)
{
    uint32_t all[SIM_PLAN_VOCAB] = {0}, made[SIM_PLAN_VOCAB] = {0};
    float logits[SIM_PLAN_VOCAB], raw[SIM_PLAN_VOCAB], scratch[SIM_PLAN_VOCAB];
    int32_t work[SIM_PLAN_VOCAB];
    struct gr_token_counts counts = {.all = all, .generated = made, .id = work};
    const bool too_short = t->len - generated < w->turn.min_tokens;
    toy_lm_logits(&p->target_toy, t->token, (int)t->len, logits);
    if (!gr_sampler_is_finite(logits, SIM_PLAN_VOCAB)) {
        return GR_PICK_NOT_FINITE;
    }
    memcpy(raw, logits, sizeof(raw));
    for (uint32_t k = 0; k < t->len; k++) {
        gr_token_counts_push(&counts, t->token[k], k >= generated);
    }
    gr_adjust_row(&w->adjust, too_short ? &w->turn.stop_ids : NULL,
                  &(struct gr_row_text){.token = t->token, .n = (int32_t)t->len}, &counts, logits, SIM_PLAN_VOCAB);
    const int32_t id = gr_sampler_choose(&w->sampling, logits, SIM_PLAN_VOCAB, t->len, scratch, work);
    gr_logprob_row(raw, SIM_PLAN_VOCAB, id, (int32_t)GR_MAX(w->turn.n_logprob, 1u) - 1, &t->logprob[t->n_out]);
    return id;
}

static void plain_turn(const struct sim_plan *p, int i, struct plain *t, uint32_t max_tokens, uint32_t stop_after,
                       bool first)
{
    const struct gr_session_request *r = &p->request[i];
    struct gr_wishes w =
        r->wishes; /* of later turns, which have neither stop ids nor min_tokens, as far as it matters */
    const uint32_t generated = t->len;
    w.turn.min_tokens = first ? w.turn.min_tokens : 0;
    t->finish = GR_FINISH_NONE;
    for (uint32_t n = 1; t->finish == GR_FINISH_NONE; n++) {
        const int32_t id = plain_pick(p, &w, t, generated);
        if (id == GR_PICK_NOT_FINITE) {
            t->finish = GR_FINISH_ERROR;
            return;
        }
        t->token[t->len++] = id;
        t->out[t->n_out++] = id;
        if ((first && stop_after != CUT && r->wishes.turn.stop_ids.n > 0 && id == r->wishes.turn.stop_ids.id[0]) ||
            n == stop_after) {
            t->finish = GR_FINISH_STOP;
        } else if (n == max_tokens) {
            t->finish = GR_FINISH_LENGTH;
        }
    }
}

/* A turn that the client ended is as long as it was; its tokens must be the right ones all the same. */
static void plain_cut(const struct sim_plan *p, int i, struct plain *t, uint32_t n, bool first)
{
    if (n > 0) {
        plain_turn(p, i, t, n, CUT, first);
    }
    t->finish = GR_FINISH_STOP;
}

static void plain_text(const struct sim_plan *p, int i, const struct sim_result *got, struct plain *t)
{
    const struct gr_session_request *r = &p->request[i];
    memset(t, 0, sizeof(*t));
    memcpy(t->token, r->prompt, r->n_prompt * sizeof(*t->token));
    t->len = r->n_prompt;
    if (got->cut[0]) {
        plain_cut(p, i, t, got->turn_n[0], true);
    } else {
        plain_turn(p, i, t, r->wishes.turn.max_tokens, p->stop_after[i], true);
    }
    for (int k = 0; k + 1 < got->n_turn; k++) {
        const struct sim_turn *turn = &p->turn[i][k];
        t->len -= GR_MIN(turn->drop, t->len - 1);
        memcpy(t->token + t->len, turn->ids, turn->n_ids * sizeof(*t->token));
        t->len += turn->n_ids;
        if (got->cut[k + 1]) {
            plain_cut(p, i, t, got->turn_n[k + 1], false);
        } else {
            plain_turn(p, i, t, turn->max_tokens, turn->stop_after, false);
        }
    }
}

/* Lossy SpecPV, and its view says other things. */
static bool may_differ(const struct sim_plan *p, int i)
{
    const struct toy_config *c = &p->target_toy;
    return p->sim.specpv.n_buffer > 0 && p->request[i].wishes.specpv == GR_SPECPV_LOSSY &&
           (c->partial_blur > 0 || p->sim.specpv_corrupt > 0 || (c->odd > 0 && c->odd_hidden));
}

static uint64_t n_odd_end;

/* Where plain decoding meets logits that are not finite, and nowhere else, the session ends with an error that says
 * where. */
static void check_error(const struct sim_plan *p, int i, const struct sim_result *r)
{
    static const char begin[] = "model (no name): the logits after position ";
    assert_true(p->target_toy.odd > 0);
    assert_memory_equal(r->text, begin, sizeof(begin) - 1);
    if (r->n_turn == 1 && p->sim.stop_ns == 0 && !may_differ(p, i)) { /* of later turns some is taken back */
        assert_int_equal(atoi(r->text + sizeof(begin) - 1), p->request[i].n_prompt + r->n_token - 1);
    }
    n_odd_end++;
}

static uint64_t n_logprob;

/* Of each token of the first turn, bit for bit those of plain decoding's row. */
static void check_logprobs(const struct sim_plan *p, int i, const struct sim_result *r, const struct plain *want)
{
    const uint32_t n = p->request[i].wishes.turn.n_logprob;
    const uint32_t n_first = r->n_turn > 0 ? GR_MIN(r->turn_n[0], want->n_out) : 0;
    assert_true(n == 0 ? r->n_logprob_token == 0 : r->n_logprob_token >= n_first);
    assert_int_equal(r->n_logprob, r->n_logprob_token * n);
    for (uint32_t k = 0; k < n_first && n > 0; k++) {
        const struct gr_logprob_row *row = &want->logprob[k];
        assert_memory_equal(r->logprob + k * n, &row->chosen, sizeof(float));
        assert_memory_equal(r->logprob + k * n + 1, row->value, (n - 1) * sizeof(float));
        assert_memory_equal(r->logprob_id + k * (n - 1), row->id, (n - 1) * sizeof(int32_t));
        n_logprob++;
    }
}

static void check_result(const struct sim_plan *p, const struct sim *s, int i)
{
    static struct plain want;
    const struct sim_result *r = sim_result(s, i);
    assert_true(r->done);
    if (r->finish == GR_FINISH_ERROR) {
        check_error(p, i, r);
    } else {
        assert_true(r->n_turn == p->n_turn[i] + 1 || p->close_ns[i] > 0 || p->sim.orch.session_ttl_ns > 0);
    }
    plain_text(p, i, r, &want);
    /* It failed after the client had what it wanted, before that was heard. */
    const bool heard_late = p->sim.stop_ns > 0 && r->finish == GR_FINISH_ERROR && want.finish == GR_FINISH_STOP;
    if (!may_differ(p, i)) {
        assert_int_equal(r->n_token, want.n_out);
        assert_memory_equal(r->token, want.out, want.n_out * sizeof(*want.out));
        check_logprobs(p, i, r, &want);
        if (r->n_turn == p->n_turn[i] + 1 || r->finish == GR_FINISH_ERROR) {
            assert_true(r->finish == want.finish || heard_late);
        }
    }
    uint64_t n_accepted = 0;
    for (int k = 0; k < GR_NODE_MAX; k++) {
        n_accepted += r->metrics.accepted_per_position[k];
    }
    assert_int_equal(r->metrics.num_accepted_tokens, n_accepted);
    assert_int_equal(r->metrics.num_draft_tokens, r->metrics.num_accepted_tokens + r->metrics.num_rewound_tokens);
}

static struct sim_counts total;
static uint64_t n_feature_row, n_feature_start, n_feature_gap, n_stale_features, n_slide, n_head_run, n_head_tree;
static uint64_t n_done, n_spec, n_reopen, n_preempted, n_evicted, n_rerooted;

static uint64_t n_adjusted;
static uint64_t n_odd_row, n_odd_view, n_odd_draft;
static uint64_t n_partial, n_refresh, n_judge, n_roll_back, n_dropped, n_checked_drift, n_drift, n_again;

static void count_specpv(const struct gr_target_counters *c)
{
    n_odd_row += c->n_not_finite;
    n_odd_view += c->n_view_not_finite;
    n_partial += c->n_partial_round;
    n_refresh += c->n_refresh;
    n_judge += c->n_judge;
    n_roll_back += c->n_roll_back;
    n_dropped += c->n_dropped;
    n_checked_drift += c->n_drift_checked;
    n_drift += c->n_drift_mismatch;
}

static void count_run(const struct sim *s, int n_request)
{
    const struct sim_counts *c = sim_counts(s);
    total.n_target_kill += c->n_target_kill;
    total.n_draft_kill += c->n_draft_kill;
    total.n_break += c->n_break;
    total.n_copy += c->n_copy;
    total.n_stall += c->n_stall;
    total.n_mute += c->n_mute;
    total.n_turn += c->n_turn;
    total.n_cut += c->n_cut;
    total.n_close += c->n_close;
    total.n_expired += c->n_expired;
    total.n_crossed += c->n_crossed;
    total.n_drain += c->n_drain;
    total.n_elsewhere += c->n_elsewhere;
    for (int i = 0; i < n_request; i++) {
        n_done++;
        n_spec += sim_result(s, i)->metrics.num_drafts > 0;
        n_reopen += sim_result(s, i)->metrics.reopens;
    }
    if (sim_target((struct sim *)(uintptr_t)s) != NULL) {
        n_preempted += sim_target_counters(s)->n_preempted;
        n_evicted += sim_target_counters(s)->n_evicted;
        n_rerooted += sim_target_counters(s)->n_reroot;
        count_specpv(sim_target_counters(s));
    }
    if (sim_drafter((struct sim *)(uintptr_t)s) != NULL) {
        const struct gr_drafter_counters *d = sim_drafter_counters(s);
        n_feature_row += d->n_feature_row;
        n_feature_start += d->n_feature_start;
        n_feature_gap += d->n_feature_gap;
        n_stale_features += d->n_stale_features;
        n_slide += d->n_slide;
        n_odd_draft += d->n_not_finite;
        n_again += d->n_feature_again;
        n_head_run += d->n_feature_row > 0;
        n_head_tree += d->n_feature_row > 0 && d->n_draft_node > 0;
    }
}

static void one_seed(uint64_t seed, bool drains)
{
    static struct sim_plan p;
    sim_draw_plan(seed, &p);
    sim_draw_adjust(&p);
    if (drains) {
        sim_draw_drains(&p);
    }
    for (int i = 0; i < p.n_request; i++) {
        n_adjusted += !gr_adjust_is_off(&p.request[i].wishes.adjust);
    }
    struct sim *s = sim_from_plan(&p);
    const bool ended = sim_run(s, SIM_PLAN_LIMIT_NS);
    if (!ended) {
        sim_dump(s);
    }
    assert_true(ended);
    for (int i = 0; i < p.n_request; i++) {
        check_result(&p, s, i);
    }
    if (sim_target(s) != NULL && sim_is_linked(s, true)) {
        if (gr_target_n_session(sim_target(s)) != 0) {
            sim_dump(s);
        }
        assert_int_equal(gr_target_n_session(sim_target(s)), 0);
    }
    if (sim_drafter(s) != NULL && sim_is_linked(s, false)) {
        assert_int_equal(gr_drafter_n_session(sim_drafter(s)), 0);
    }
    count_run(s, p.n_request);
    sim_destroy(s);
}

static uint64_t last_seed; /* of the run, for a failure's message */

static uint64_t from_env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static int tell(void **state)
{
    (void)state;
    print_message("# last seed: GRAFT_SIM_SEED=%llu\n", (unsigned long long)last_seed);
    print_message("# %llu sessions, %llu with trees; kills: target %d, draft %d; breaks %d, stalls %d, mutes %d, "
                  "copies %d; further turns %d, cut %d, closed %d, expired %d, stops that crossed an end %d; "
                  "re-opened %llu, pre-empted %llu, evicted %llu, re-rooted %llu\n",
                  (unsigned long long)n_done, (unsigned long long)n_spec, total.n_target_kill, total.n_draft_kill,
                  total.n_break, total.n_stall, total.n_mute, total.n_copy, total.n_turn, total.n_cut, total.n_close,
                  total.n_expired, total.n_crossed, (unsigned long long)n_reopen, (unsigned long long)n_preempted,
                  (unsigned long long)n_evicted, (unsigned long long)n_rerooted);
    print_message("# told to end: %d, which sent %d elsewhere\n", total.n_drain, total.n_elsewhere);
    print_message("# features: %llu runs, %llu with trees; %llu rows taken, %llu checked, %llu raw; frames twice or "
                  "too late %llu, "
                  "gaps %llu, begun in the middle %llu, KV let go %llu times\n",
                  (unsigned long long)n_head_run, (unsigned long long)n_head_tree, (unsigned long long)n_feature_row,
                  (unsigned long long)(sim_plan_rows_checked(false) + sim_plan_rows_checked(true)),
                  (unsigned long long)sim_plan_rows_checked(true), (unsigned long long)n_stale_features,
                  (unsigned long long)n_feature_gap, (unsigned long long)n_feature_start, (unsigned long long)n_slide);
    print_message(
        "# SpecPV: %llu partial rounds, %llu refreshes, %llu judgements of an end; %llu of %llu judged tokens "
        "were others, %llu roll-backs, %llu provisional tokens dropped; features sent again %llu times\n",
        (unsigned long long)n_partial, (unsigned long long)n_refresh, (unsigned long long)n_judge,
        (unsigned long long)n_drift, (unsigned long long)n_checked_drift, (unsigned long long)n_roll_back,
        (unsigned long long)n_dropped, (unsigned long long)n_again);
    print_message("# logits that are not finite: %llu sessions ended, %llu rows ended one, %llu views refreshed, %llu "
                  "jobs of drafters\n",
                  (unsigned long long)n_odd_end, (unsigned long long)n_odd_row, (unsigned long long)n_odd_view,
                  (unsigned long long)n_odd_draft);
    return 0;
}

static void test_many_seeds(void **state)
{
    (void)state;
    const uint64_t only = from_env("GRAFT_SIM_SEED", 0);
    const uint64_t first = only != 0 ? only : from_env("GRAFT_SIM_FIRST", 1);
    const uint64_t n = only != 0 ? 1 : from_env("GRAFT_SIM_SEEDS", N_SEED_DEFAULT);
    for (uint64_t seed = first; seed < first + n; seed++) {
        last_seed = seed;
        one_seed(seed, false);
    }
}

/* Workers are told to end while sessions are opened and attached, one of each role at a time: what meets one that is to
 * end is sent elsewhere, which is here the one that comes after it. No session fails, and every text is plain
 * decoding's. */
static void test_drains(void **state)
{
    (void)state;
    const uint64_t only = from_env("GRAFT_SIM_SEED", 0);
    const uint64_t first = only != 0 ? only : from_env("GRAFT_SIM_FIRST", 1);
    const uint64_t n = only != 0 ? 1 : from_env("GRAFT_SIM_SEEDS", N_SEED_DEFAULT) / DRAIN_SHARE;
    for (uint64_t seed = first; seed < first + n; seed++) {
        last_seed = seed;
        one_seed(seed, true);
    }
}

/* A run of many seeds must have met what it is for. */
static void test_faults_happened(void **state)
{
    (void)state;
    if (n_done < 10000) {
        return; /* a short run or a replay */
    }
    assert_true(total.n_target_kill > 0 && total.n_draft_kill > 0 && total.n_break > 0 && total.n_stall > 0);
    assert_true(total.n_drain > 0 && total.n_elsewhere > 0);
    assert_true(total.n_cut > 0 && total.n_close > 0 && total.n_expired > 0 && total.n_crossed > 0);
    assert_true(n_partial > 0 && n_refresh > 0 && n_judge > 0 && n_roll_back > 0 && n_dropped > 0 && n_again > 0);
    assert_true(n_feature_start > 0 && n_slide > 0 && n_adjusted > 0 && n_logprob > 0);
    assert_true(n_odd_end > 0 && n_odd_row > 0 && n_odd_view > 0 && n_odd_draft > 0);
    assert_true(total.n_mute > 0 && total.n_turn > 0 && total.n_copy > 0 && n_reopen > 0 && n_preempted > 0 &&
                n_evicted > 0 && n_spec * 5 > n_done); /* many are cut early */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_seeds),
        cmocka_unit_test(test_drains),
        cmocka_unit_test(test_faults_happened),
    };
    gr_log_set_level(getenv("GRAFT_SIM_SEED") != NULL ? GR_LOG_DEBUG : GR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, tell);
}
