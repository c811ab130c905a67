/* The three state machines on a virtual clock with table models, under seeded faults: kills and restarts of either
 * worker at any moment, broken connections, copied frames, stalled orchestrators, missing credit, slow drafters, pools
 * that are too small. Whatever happens the text is plain decoding's, no block leaks and no session is stuck.
 *
 * GRAFT_SIM_SEED=N replays one seed; GRAFT_SIM_SEEDS=N runs so many, from GRAFT_SIM_FIRST on. */
#include "common/bf16.h"
#include "common/hash.h"
#include "common/log.h"
#include "tests/sim/sim.h"
#include "tests/sim/toy_lm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_VOCAB 24
#define N_CTX 512
#define N_SESSION 8
#define N_TOKEN_MAX 400
#define N_TURN_MAX 3
#define N_SEED_DEFAULT 10000
#define LIMIT_NS (100ull * 1000000000ull)

static uint64_t next(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

static bool chance(uint64_t *rng, int one_in)
{
    return next(rng, (uint64_t)one_in) == 0;
}

struct plan {
    uint64_t seed;
    struct toy_config target_toy, draft_toy;
    struct sim_config sim;
    int n_request;
    struct gr_session_request request[N_SESSION];
    int32_t prompt[N_SESSION][64];
    uint32_t stop_after[N_SESSION];
    uint64_t cut_ns[N_SESSION], close_ns[N_SESSION], refresh_ns[N_SESSION];
    int n_turn[N_SESSION];
    struct sim_turn turn[N_SESSION][N_TURN_MAX];
};

static void draw_turn(uint64_t *rng, struct sim_turn *t)
{
    t->n_ids = 1 + (uint32_t)next(rng, 16);
    for (uint32_t k = 0; k < t->n_ids; k++) {
        t->ids[k] = (int32_t)next(rng, N_VOCAB);
    }
    t->max_tokens = 1 + (uint32_t)next(rng, 30);
    t->stop_after = chance(rng, 4) ? 1 + (uint32_t)next(rng, 10) : 0;
    t->drop = chance(rng, 3) ? (uint32_t)next(rng, 30) : 0;
}

static void draw_request(uint64_t *rng, struct plan *p, int i)
{
    struct gr_session_request *r = &p->request[i];
    r->n_prompt = 1 + (uint32_t)next(rng, 60);
    for (uint32_t k = 0; k < r->n_prompt; k++) {
        p->prompt[i][k] = (int32_t)next(rng, N_VOCAB);
    }
    r->prompt = p->prompt[i];
    r->max_tokens = 1 + (uint32_t)next(rng, 80);
    r->n_stop_id = (uint32_t)next(rng, 2);
    r->stop_id[0] = 3;
    r->sampling = (struct gr_sampling){.temperature = (float)next(rng, 3) * 0.7f, .top_p = 1.0f,
                                       .seed = next(rng, 1000)};
    if (chance(rng, 3)) {
        r->sampling.top_k = 1 + (int32_t)next(rng, 8);
        r->sampling.top_p = 0.8f;
    }
    r->want_draft = !chance(rng, 8);
    r->tree_shape = (uint32_t)next(rng, 2);
    r->n_node = (uint32_t)next(rng, 64);
    r->draft_depth = 1 + (uint32_t)next(rng, 9);
    r->draft_top_k = 1 + (uint32_t)next(rng, 10);
    p->stop_after[i] = chance(rng, 5) ? 1 + (uint32_t)next(rng, 10) : 0;
    r->auto_tree = chance(rng, 2);
    r->draft_ahead = chance(rng, 3) ? GR_AHEAD_ON : GR_AHEAD_OFF;
    r->force_single_token = chance(rng, 20);
    p->n_turn[i] = chance(rng, 3) ? 1 + (int)next(rng, N_TURN_MAX) : 0;
    r->keep_open = p->n_turn[i] > 0;
    for (int k = 0; k < p->n_turn[i]; k++) {
        draw_turn(rng, &p->turn[i][k]);
    }
}

static void draw_faults(uint64_t *rng, struct sim_faults *f)
{
    f->n_max = (int)next(rng, 8);
    f->kill_target = chance(rng, 2) ? 10 + (int)next(rng, 100) : 0;
    f->kill_draft = chance(rng, 2) ? 10 + (int)next(rng, 100) : 0;
    f->break_conn = chance(rng, 3) ? 10 + (int)next(rng, 100) : 0;
    f->stall_orch = chance(rng, 4) ? 10 + (int)next(rng, 100) : 0;
    f->mute = chance(rng, 5) ? 5 + (int)next(rng, 20) : 0;
    f->copy_frame = chance(rng, 3) ? 2 + (int)next(rng, 20) : 0;
    f->restart_ns = 1 + next(rng, 20000000);
    f->notice_ns = next(rng, 2) * 5000000;
    f->stall_ns = 1 + next(rng, 30000000);
    f->copy_ns = 1 + next(rng, 10000000);
    f->draft_joins_ns = chance(rng, 4) ? 1 + next(rng, 20000000) : 0;
}

static void draw_sim(uint64_t *rng, struct plan *p)
{
    struct sim_config *c = &p->sim;
    c->seed = p->seed;
    c->n_session_max = N_SESSION;
    c->prefill_chunk = 16;
    c->round_deadline_ns = 1000000;
    c->frame_delay_ns = next(rng, 2) * 300000;
    c->msg_delay_ns = 1 + next(rng, 2) * 200000;
    c->pass_ns = 200000;
    c->job_ns = 1 + next(rng, 1500000); /* some drafters are slower than the deadline */
    if (chance(rng, 10)) {
        c->job_ns = 20000000; /* and some always are */
    }
    c->no_credit_one_in = next(rng, 2) != 0 ? 5 : 0;
    c->admit_tokens = chance(rng, 2) ? 1 + (int32_t)next(rng, 40) : 0;
    c->prefill_share = chance(rng, 2) ? 0.3 : 0.0;
    c->commit_room = chance(rng, 4) ? 1 + (int)next(rng, 6) : 0;
    c->check_every_event = p->seed % 16 == 0;
    c->client_ns = 20000000;
    c->orch = (struct gr_orch_config){.ping_interval_ns = 20000000, .ping_timeout_ns = 100000000};
    draw_faults(rng, &c->faults);
}

static struct gr_lm *make_lm(void *ctx, bool target)
{
    const struct plan *p = ctx;
    return toy_lm_create(target ? &p->target_toy : &p->draft_toy);
}

/* Blocks for the largest session alone, and a few more: the others queue, are evicted, are pre-empted. */
static int32_t small_pool(const struct plan *p, uint64_t *rng)
{
    uint32_t longest = 0;
    for (int i = 0; i < p->n_request; i++) {
        uint32_t len = p->request[i].n_prompt + p->request[i].max_tokens;
        for (int k = 0; k < p->n_turn[i]; k++) {
            len += p->turn[i][k].n_ids + p->turn[i][k].max_tokens;
        }
        longest = GR_MAX(longest, len);
    }
    return (int32_t)((longest + 15) / 16 + next(rng, 5));
}

/* What clients do in the middle of things, and workers that are as small as may be. */
static void draw_extremes(uint64_t *rng, struct plan *p)
{
    struct sim_config *c = &p->sim;
    const bool whims = chance(rng, 3);
    for (int i = 0; whims && i < p->n_request; i++) {
        p->cut_ns[i] = chance(rng, 3) ? 1 + next(rng, 8000000) : 0;
        p->close_ns[i] = chance(rng, 6) ? 1 + next(rng, 40000000) : 0;
        for (int k = 0; k < p->n_turn[i]; k++) {
            p->turn[i][k].cut_ns = chance(rng, 2) ? 1 + next(rng, 3000000) : 0;
        }
    }
    if (chance(rng, 4)) {
        c->client_ns = next(rng, 300000); /* the next turn comes while the last one is being cut */
    }
    if (chance(rng, 8)) {
        c->orch.session_ttl_ns = 1000000 + next(rng, 20000000);
    }
    if (chance(rng, 4)) {
        c->n_session_max = p->n_request; /* idle sessions are in the way */
    }
    if (chance(rng, 6)) {
        p->draft_toy.n_ctx_max = 16 + (int32_t)next(rng, 100);
    }
    if (chance(rng, 6)) {
        p->target_toy.n_row_max = c->prefill_chunk + GR_TREE_MAX + (int32_t)next(rng, 40);
        p->target_toy.n_out_max = GR_TREE_MAX + 1 + (int32_t)next(rng, 40);
    }
    if (chance(rng, 2)) {
        c->stop_ns = 1 + next(rng, 3000000);
    }
    for (int i = 0; i < p->n_request; i++) {
        for (int k = 0; k < p->n_turn[i]; k++) {
            struct sim_turn *t = &p->turn[i][k];
            t->keep_all = t->drop == 0 && chance(rng, 2);
        }
    }
    c->orch.force_single_token = chance(rng, 40);
    c->orch.disable_multi_token = chance(rng, 40);
}

static uint64_t n_checked_row, n_raw_row;

/* Every committed row takes the true feature of the position before its token, as its prefix gives it. */
static void check_rows(const struct gr_drafter *d, const struct gr_draft_job *job, bool raw)
{
    const int width = raw ? TOY_N_CAPTURE * TOY_FEATURE_WIDTH : TOY_FEATURE_WIDTH;
    for (int i = 0; i < job->n_seq; i++) {
        const struct gr_draft_seq *q = &job->seq[i];
        int32_t len = 0;
        const int32_t *token = gr_drafter_peek(d, q->session, &len);
        assert_true(q->n_row == 0 || (q->feature != NULL && q->pos0 >= 1 && q->pos0 + q->n_row <= len));
        assert_int_equal(q->n_copy, 0);
        for (int r = 0; r < q->n_row; r++) {
            float want[TOY_N_CAPTURE * TOY_FEATURE_WIDTH];
            (raw ? toy_lm_capture : toy_lm_feature)(token, q->pos0 + r, want);
            assert_int_equal(q->token[r], token[q->pos0 + r]);
            for (int k = 0; k < width; k++) {
                assert_true(gr_bf16_to_f32(q->feature[r * width + k]) == want[k]);
            }
            n_checked_row++;
            n_raw_row += raw;
        }
    }
}

static void check_features(const struct gr_drafter *d, const struct gr_draft_job *job)
{
    check_rows(d, job, false);
}

static void check_raw_features(const struct gr_drafter *d, const struct gr_draft_job *job)
{
    check_rows(d, job, true);
}

/* A share of the seeds runs a head, fed by the target. */
static void draw_features(uint64_t *rng, struct plan *p)
{
    if (next(rng, 5) > 1) {
        return;
    }
    p->target_toy.features = p->draft_toy.features = p->draft_toy.head = true;
    p->draft_toy.n_vocab_head = chance(rng, 2) ? 8 + (int)next(rng, N_VOCAB - 8) : 0;
    p->sim.feature_keep = p->sim.prefill_chunk + GR_TREE_MAX + (int32_t)next(rng, 200);
    p->sim.feature_window = GR_TREE_MAX + (int32_t)next(rng, 100);
    p->sim.feature_context = chance(rng, 2) ? 1 + (int32_t)next(rng, 1u << (1 + next(rng, 8))) : 0;
    p->target_toy.raw = p->draft_toy.raw = chance(rng, 3);
    p->target_toy.shipped = !p->target_toy.raw && chance(rng, 2);
    p->sim.on_job = p->target_toy.raw ? check_raw_features : check_features;
}

/* A share of the seeds has partial views, exact or lossy, session by session; contexts pass the threshold soon. */
static void draw_specpv(uint64_t *rng, struct plan *p)
{
    static const uint32_t buffer[] = {128, 40, 16, 6};
    struct gr_specpv_params *v = &p->sim.specpv;
    if (chance(rng, 2)) {
        return;
    }
    *v = (struct gr_specpv_params){.n_sink = 1, .n_retrieval = 1 + (uint32_t)next(rng, 3),
                                   .n_window = 1 + (uint32_t)next(rng, 3), .n_buffer = buffer[next(rng, 4)],
                                   .threshold = 1 + (uint32_t)next(rng, 60), .interval = 1 + (uint32_t)next(rng, 12)};
    v->max_provisional = chance(rng, 4) ? 1 + (uint32_t)next(rng, v->n_buffer) : 0;
    v->refresh_fraction = chance(rng, 6) ? 0.3 : 0.0;
    p->target_toy.partial_blur = chance(rng, 4) ? 0 : 2 + (int)next(rng, 20);
    p->sim.specpv_corrupt = chance(rng, 3) ? 1 + (uint32_t)next(rng, 8) : 0;
    p->target_toy.n_row_max = GR_MAX(p->target_toy.n_row_max, p->sim.prefill_chunk + GR_TREE_MAX + (int)v->n_buffer);
    p->target_toy.n_out_max = GR_MAX(p->target_toy.n_out_max, GR_TREE_MAX + (int)v->n_buffer + 1);
    p->sim.feature_keep += p->sim.feature_keep > 0 ? (int32_t)v->n_buffer : 0;
    p->sim.orch.disable_specpv = chance(rng, 30);
    for (int i = 0; i < p->n_request; i++) {
        struct gr_session_request *r = &p->request[i];
        r->specpv = chance(rng, 3) ? GR_SPECPV_OFF : chance(rng, 4) ? GR_SPECPV_LOSSY : GR_SPECPV_EXACT;
        r->specpv = r->specpv == GR_SPECPV_EXACT && chance(rng, 6) ? GR_SPECPV_AUTO : r->specpv;
        r->n_node = GR_MIN(r->n_node, v->n_buffer / 2); /* most pass the pre-flight check then */
        r->specpv_params.interval = chance(rng, 4) ? 1 + (uint32_t)next(rng, 4) : 0;
        p->refresh_ns[i] = chance(rng, 4) ? 1 + next(rng, 10000000) : 0;
    }
}

/* A share of the seeds has models some of whose logits are not finite: of the drafter's alone nothing is seen. */
static void draw_odd(uint64_t *rng, struct plan *p)
{
    if (chance(rng, 6)) {
        p->target_toy.odd = 20 + (int)next(rng, 300);
        p->target_toy.odd_hidden = chance(rng, 2);
    }
    if (chance(rng, 4)) {
        p->draft_toy.odd = 1 + (int)next(rng, 1u << next(rng, 8));
    }
    if (p->sim.specpv.n_buffer > 0 && chance(rng, 3)) {
        p->target_toy.odd_partial = 1 + (int)next(rng, 30);
    }
}

static void draw_plan(uint64_t seed, struct plan *p)
{
    uint64_t rng = seed;
    memset(p, 0, sizeof(*p));
    p->seed = seed;
    p->n_request = 1 + (int)next(&rng, N_SESSION);
    for (int i = 0; i < p->n_request; i++) {
        draw_request(&rng, p, i);
    }
    draw_sim(&rng, p);
    p->sim.make_lm = make_lm;
    p->sim.make_ctx = p;
    p->target_toy = (struct toy_config){.n_vocab = N_VOCAB, .n_ctx_max = N_CTX, .n_row_max = 700, .n_out_max = 640,
                                        .n_pool_block = N_SESSION * 16, .n_scratch_block = N_SESSION * 16,
                                        .seed = seed, .sharpness = 6.0f};
    p->draft_toy = p->target_toy;
    p->draft_toy.blur_seed = seed + 99;
    p->draft_toy.blur = 2 + (int)next(&rng, 6);
    if (chance(&rng, 3)) {
        p->target_toy.n_pool_block = small_pool(p, &rng);
    }
    if (chance(&rng, 6)) {
        p->draft_toy.n_pool_block = 4 + (int32_t)next(&rng, 12);
    }
    uint64_t other_rng = gr_mix64(seed + 1234567);
    draw_extremes(&other_rng, p);
    uint64_t feature_rng = gr_mix64(seed + 7654321);
    draw_features(&feature_rng, p);
    uint64_t specpv_rng = gr_mix64(seed + 24681357);
    draw_specpv(&specpv_rng, p);
    uint64_t odd_rng = gr_mix64(seed + 11223344);
    draw_odd(&odd_rng, p);
}

/* ---- what the text must be: the definition ---- */

struct plain {
    int32_t token[N_TOKEN_MAX]; /* the transcript */
    uint32_t len;
    int32_t out[N_TOKEN_MAX];   /* what was generated, over all turns */
    uint32_t n_out;
    enum gr_finish finish;
};

static void plain_turn(const struct plan *p, int i, struct plain *t, uint32_t max_tokens, uint32_t stop_after,
                       bool with_stop_id)
{
    const struct gr_session_request *r = &p->request[i];
    float logits[N_VOCAB], scratch[N_VOCAB];
    int32_t work[N_VOCAB];
    t->finish = GR_FINISH_NONE;
    for (uint32_t n = 1; t->finish == GR_FINISH_NONE; n++) {
        toy_lm_logits(&p->target_toy, t->token, (int)t->len, logits);
        const int32_t id = gr_sampler_pick(&r->sampling, logits, N_VOCAB, t->len, scratch, work);
        if (id == GR_PICK_NOT_FINITE) {
            t->finish = GR_FINISH_ERROR;
            return;
        }
        t->token[t->len++] = id;
        t->out[t->n_out++] = id;
        if ((with_stop_id && r->n_stop_id > 0 && id == r->stop_id[0]) || n == stop_after) {
            t->finish = GR_FINISH_STOP;
        } else if (n == max_tokens) {
            t->finish = GR_FINISH_LENGTH;
        }
    }
}

/* A turn that the client ended is as long as it was; its tokens must be the right ones all the same. */
static void plain_cut(const struct plan *p, int i, struct plain *t, uint32_t n)
{
    if (n > 0) {
        plain_turn(p, i, t, n, 0, false);
    }
    t->finish = GR_FINISH_STOP;
}

static void plain_text(const struct plan *p, int i, const struct sim_result *got, struct plain *t)
{
    const struct gr_session_request *r = &p->request[i];
    memset(t, 0, sizeof(*t));
    memcpy(t->token, r->prompt, r->n_prompt * sizeof(*t->token));
    t->len = r->n_prompt;
    if (got->cut[0]) {
        plain_cut(p, i, t, got->turn_n[0]);
    } else {
        plain_turn(p, i, t, r->max_tokens, p->stop_after[i], true);
    }
    for (int k = 0; k + 1 < got->n_turn; k++) {
        const struct sim_turn *turn = &p->turn[i][k];
        t->len -= GR_MIN(turn->drop, t->len - 1);
        memcpy(t->token + t->len, turn->ids, turn->n_ids * sizeof(*t->token));
        t->len += turn->n_ids;
        if (got->cut[k + 1]) {
            plain_cut(p, i, t, got->turn_n[k + 1]);
        } else {
            plain_turn(p, i, t, turn->max_tokens, turn->stop_after, false);
        }
    }
}

/* Lossy SpecPV, and its view says other things. */
static bool may_differ(const struct plan *p, int i)
{
    const struct toy_config *c = &p->target_toy;
    return p->sim.specpv.n_buffer > 0 && p->request[i].specpv == GR_SPECPV_LOSSY &&
           (c->partial_blur > 0 || p->sim.specpv_corrupt > 0 || (c->odd > 0 && c->odd_hidden));
}

static uint64_t n_odd_end;

/* Where plain decoding meets logits that are not finite, and nowhere else, the session ends with an error that says
 * where. */
static void check_error(const struct plan *p, int i, const struct sim_result *r)
{
    static const char begin[] = "model (no name): the logits after position ";
    assert_true(p->target_toy.odd > 0);
    assert_memory_equal(r->text, begin, sizeof(begin) - 1);
    if (r->n_turn == 1 && p->sim.stop_ns == 0 && !may_differ(p, i)) { /* of later turns some is taken back */
        assert_int_equal(atoi(r->text + sizeof(begin) - 1), p->request[i].n_prompt + r->n_token - 1);
    }
    n_odd_end++;
}

static void check_result(const struct plan *p, const struct sim *s, int i)
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

static void one_seed(uint64_t seed)
{
    static struct plan p;
    draw_plan(seed, &p);
    struct sim *s = sim_create(&p.sim);
    for (int i = 0; i < p.n_request; i++) {
        sim_stop_after(s, sim_submit(s, &p.request[i]), p.stop_after[i]);
        sim_cut_and_close(s, i, p.cut_ns[i], p.close_ns[i]);
        if (p.refresh_ns[i] > 0) {
            sim_refresh(s, i, p.refresh_ns[i]);
        }
        for (int k = 0; k < p.n_turn[i]; k++) {
            sim_add_turn(s, i, &p.turn[i][k]);
        }
    }
    const bool ended = sim_run(s, LIMIT_NS);
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
    print_message("# features: %llu runs, %llu with trees; %llu rows taken, %llu checked, %llu raw; frames twice or "
                  "too late %llu, "
                  "gaps %llu, begun in the middle %llu, KV let go %llu times\n",
                  (unsigned long long)n_head_run, (unsigned long long)n_head_tree, (unsigned long long)n_feature_row,
                  (unsigned long long)n_checked_row, (unsigned long long)n_raw_row,
                  (unsigned long long)n_stale_features, (unsigned long long)n_feature_gap,
                  (unsigned long long)n_feature_start, (unsigned long long)n_slide);
    print_message(
        "# SpecPV: %llu partial rounds, %llu refreshes, %llu judgements of an end; %llu of %llu judged tokens "
        "were others, %llu roll-backs, %llu provisional tokens dropped; features sent again %llu times\n",
        (unsigned long long)n_partial, (unsigned long long)n_refresh, (unsigned long long)n_judge,
        (unsigned long long)n_drift, (unsigned long long)n_checked_drift, (unsigned long long)n_roll_back,
        (unsigned long long)n_dropped, (unsigned long long)n_again);
    print_message("# logits that are not finite: %llu sessions ended, %llu rows ended one, %llu views refreshed, %llu "
                  "jobs of drafters\n", (unsigned long long)n_odd_end, (unsigned long long)n_odd_row,
                  (unsigned long long)n_odd_view, (unsigned long long)n_odd_draft);
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
        one_seed(seed);
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
    assert_true(total.n_cut > 0 && total.n_close > 0 && total.n_expired > 0 && total.n_crossed > 0);
    assert_true(n_partial > 0 && n_refresh > 0 && n_judge > 0 && n_roll_back > 0 && n_dropped > 0 && n_again > 0);
    assert_true(n_feature_start > 0 && n_slide > 0);
    assert_true(n_odd_end > 0 && n_odd_row > 0 && n_odd_view > 0 && n_odd_draft > 0);
    assert_true(total.n_mute > 0 && total.n_turn > 0 && total.n_copy > 0 && n_reopen > 0 && n_preempted > 0 &&
                n_evicted > 0 && n_spec * 5 > n_done); /* many are cut early */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_seeds),
        cmocka_unit_test(test_faults_happened),
    };
    gr_log_set_level(getenv("GRAFT_SIM_SEED") != NULL ? GR_LOG_DEBUG : GR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, tell);
}
