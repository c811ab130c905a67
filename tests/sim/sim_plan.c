#include "tests/sim/sim_plan.h"

#include "common/rules/bf16.h"
#include "common/rules/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static uint64_t next(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

static bool chance(uint64_t *rng, int one_in)
{
    return next(rng, (uint64_t)one_in) == 0;
}

static void draw_turn(uint64_t *rng, struct sim_turn *t)
{
    t->n_ids = 1 + (uint32_t)next(rng, 16);
    for (uint32_t k = 0; k < t->n_ids; k++) {
        t->ids[k] = (int32_t)next(rng, SIM_PLAN_VOCAB);
    }
    t->max_tokens = 1 + (uint32_t)next(rng, 30);
    t->stop_after = chance(rng, 4) ? 1 + (uint32_t)next(rng, 10) : 0;
    t->drop = chance(rng, 3) ? (uint32_t)next(rng, 30) : 0;
}

static void draw_request(uint64_t *rng, struct sim_plan *p, int i)
{
    struct gr_session_request *r = &p->request[i];
    r->n_prompt = 1 + (uint32_t)next(rng, 60);
    for (uint32_t k = 0; k < r->n_prompt; k++) {
        p->prompt[i][k] = (int32_t)next(rng, SIM_PLAN_VOCAB);
    }
    r->prompt = p->prompt[i];
    r->wishes.turn.max_tokens = 1 + (uint32_t)next(rng, 80);
    r->wishes.turn.stop_ids.n = (uint32_t)next(rng, 2);
    r->wishes.turn.stop_ids.id[0] = 3;
    r->wishes.sampling =
        (struct gr_sampling){.temperature = (float)next(rng, 3) * 0.7f, .top_p = 1.0f, .seed = next(rng, 1000)};
    if (chance(rng, 3)) {
        r->wishes.sampling.top_k = 1 + (int32_t)next(rng, 8);
        r->wishes.sampling.top_p = 0.8f;
    }
    r->wishes.want_draft = !chance(rng, 8);
    r->wishes.tree_shape = (uint32_t)next(rng, 2);
    r->wishes.n_node = (uint32_t)next(rng, 64);
    r->wishes.draft_depth = 1 + (uint32_t)next(rng, 9);
    r->wishes.draft_top_k = 1 + (uint32_t)next(rng, 10);
    p->stop_after[i] = chance(rng, 5) ? 1 + (uint32_t)next(rng, 10) : 0;
    r->wishes.auto_tree = chance(rng, 2);
    r->wishes.draft_ahead = chance(rng, 3) ? GR_AHEAD_ON : GR_AHEAD_OFF;
    r->wishes.single_token = chance(rng, 20);
    p->n_turn[i] = chance(rng, 3) ? 1 + (int)next(rng, SIM_PLAN_TURN_MAX) : 0;
    r->wishes.keep_open = p->n_turn[i] > 0;
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

static void draw_sim(uint64_t *rng, struct sim_plan *p)
{
    struct sim_config *c = &p->sim;
    c->seed = p->seed;
    c->n_session_max = SIM_PLAN_SESSION;
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
    const struct sim_plan *p = ctx;
    return toy_lm_create(target ? &p->target_toy : &p->draft_toy);
}

/* Blocks for the largest session alone, and a few more: the others queue, are evicted, are pre-empted. */
static int32_t small_pool(const struct sim_plan *p, uint64_t *rng)
{
    uint32_t longest = 0;
    for (int i = 0; i < p->n_request; i++) {
        uint32_t len = p->request[i].n_prompt + p->request[i].wishes.turn.max_tokens;
        for (int k = 0; k < p->n_turn[i]; k++) {
            len += p->turn[i][k].n_ids + p->turn[i][k].max_tokens;
        }
        longest = GR_MAX(longest, len);
    }
    return (int32_t)((longest + 15) / 16 + next(rng, 5));
}

/* What clients do in the middle of things, and workers that are as small as may be. */
static void draw_extremes(uint64_t *rng, struct sim_plan *p)
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

static uint64_t n_row_checked[2];

uint64_t sim_plan_rows_checked(bool raw)
{
    return n_row_checked[raw];
}

uint8_t *(*sim_plan_far_at)(const void *p);

static const uint16_t *row_of(const struct gr_draft_seq *q, int r, int width)
{
    const uint16_t *row = q->feature + (size_t)r * (size_t)width;
    return sim_plan_far_at == NULL ? row : (const uint16_t *)(const void *)sim_plan_far_at(row);
}

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
            const uint16_t *row = row_of(q, r, width);
            for (int k = 0; k < width; k++) {
                assert_true(gr_bf16_to_f32(row[k]) == want[k]);
            }
            n_row_checked[raw]++;
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
static void draw_features(uint64_t *rng, struct sim_plan *p)
{
    if (next(rng, 5) > 1) {
        return;
    }
    p->target_toy.features = p->draft_toy.features = p->draft_toy.head = true;
    p->draft_toy.n_vocab_head = chance(rng, 2) ? 8 + (int)next(rng, SIM_PLAN_VOCAB - 8) : 0;
    p->sim.feature_keep = p->sim.prefill_chunk + GR_TREE_MAX + (int32_t)next(rng, 200);
    p->sim.feature_window = GR_TREE_MAX + (int32_t)next(rng, 100);
    p->sim.feature_context = chance(rng, 2) ? 1 + (int32_t)next(rng, 1u << (1 + next(rng, 8))) : 0;
    p->target_toy.raw = p->draft_toy.raw = chance(rng, 3);
    p->target_toy.shipped = !p->target_toy.raw && chance(rng, 2);
    p->sim.on_job = p->target_toy.raw ? check_raw_features : check_features;
}

/* A share of the seeds has views, exact or lossy, session by session; contexts pass the threshold soon. */
static void draw_specpv(uint64_t *rng, struct sim_plan *p)
{
    static const uint32_t buffer[] = {128, 40, 16, 6};
    struct gr_specpv_params *v = &p->sim.specpv;
    if (chance(rng, 2)) {
        return;
    }
    *v = (struct gr_specpv_params){.n_sink = 1,
                                   .n_retrieval = 1 + (uint32_t)next(rng, 3),
                                   .n_window = 1 + (uint32_t)next(rng, 3),
                                   .n_buffer = buffer[next(rng, 4)],
                                   .threshold = 1 + (uint32_t)next(rng, 60),
                                   .interval = 1 + (uint32_t)next(rng, 12)};
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
        r->wishes.specpv = chance(rng, 3) ? GR_SPECPV_OFF : chance(rng, 4) ? GR_SPECPV_LOSSY : GR_SPECPV_EXACT;
        r->wishes.specpv = r->wishes.specpv == GR_SPECPV_EXACT && chance(rng, 6) ? GR_SPECPV_AUTO : r->wishes.specpv;
        r->wishes.n_node = GR_MIN(r->wishes.n_node, v->n_buffer / 2); /* most pass the pre-flight check then */
        r->wishes.specpv_params.interval = chance(rng, 4) ? 1 + (uint32_t)next(rng, 4) : 0;
        p->refresh_ns[i] = chance(rng, 4) ? 1 + next(rng, 10000000) : 0;
    }
}

/* A share of the seeds has models some of whose logits are not finite: of the drafter's alone nothing is seen. */
static void draw_odd(uint64_t *rng, struct sim_plan *p)
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

/* In half of the seeds sessions share KV; in half of these their prompts begin alike, so that they share each other's,
 * and not only what they have computed themselves before they were lost or opened anew. */
static void draw_prefix(uint64_t *rng, struct sim_plan *p)
{
    p->sim.prefix_cache = chance(rng, 2);
    p->sim.prefix_features = chance(rng, 2);
    if (!p->sim.prefix_cache || chance(rng, 2)) {
        return;
    }
    for (int i = 1; i < p->n_request; i++) {
        const uint32_t most = GR_MIN(p->request[0].n_prompt, p->request[i].n_prompt);
        memcpy(p->prompt[i], p->prompt[0], next(rng, most + 1) * sizeof(p->prompt[0][0]));
    }
}

void sim_draw_plan(uint64_t seed, struct sim_plan *p)
{
    uint64_t rng = seed;
    memset(p, 0, sizeof(*p));
    p->seed = seed;
    p->n_request = 1 + (int)next(&rng, SIM_PLAN_SESSION);
    for (int i = 0; i < p->n_request; i++) {
        draw_request(&rng, p, i);
    }
    draw_sim(&rng, p);
    p->sim.make_lm = make_lm;
    p->sim.make_ctx = p;
    p->target_toy = (struct toy_config){.n_vocab = SIM_PLAN_VOCAB,
                                        .n_ctx_max = SIM_PLAN_CTX,
                                        .n_row_max = 700,
                                        .n_out_max = 640,
                                        .n_pool_block = SIM_PLAN_SESSION * 16,
                                        .n_scratch_block = SIM_PLAN_SESSION * 16,
                                        .seed = seed,
                                        .sharpness = 6.0f};
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
    uint64_t prefix_rng = gr_mix64(seed + 99887766);
    draw_prefix(&prefix_rng, p);
}

static int32_t draw_id(uint64_t *rng)
{
    return (int32_t)next(rng, SIM_PLAN_VOCAB);
}

/* Bans leave most of the vocabulary. */
static void draw_bans(uint64_t *rng, struct gr_adjust *a)
{
    for (int n = (int)next(rng, 3); n > 0; n--) {
        a->banned.id[a->banned.n++] = draw_id(rng);
    }
    for (int n = (int)next(rng, 4); n > 0; n--) {
        const int32_t len = 1 + (int32_t)next(rng, 3);
        a->bad.entry[a->bad.n++] = len;
        for (int32_t k = 0; k < len; k++) {
            a->bad.entry[a->bad.n++] = draw_id(rng);
        }
    }
}

static void draw_penalties(uint64_t *rng, struct gr_adjust *a)
{
    a->repetition = chance(rng, 2) ? 0.7f + 0.1f * (float)next(rng, 12) : 0.0f;
    a->frequency = chance(rng, 2) ? 0.25f * (float)next(rng, 9) - 0.5f : 0.0f;
    a->presence = chance(rng, 2) ? 0.5f * (float)next(rng, 5) - 1.0f : 0.0f;
}

void sim_draw_adjust(struct sim_plan *p)
{
    uint64_t rng = gr_mix64(p->seed + 55667788);
    p->sim.commit_room += p->sim.commit_room > 0 ? 12 : 0; /* the longest COMMIT counts as so many */
    for (int i = 0; i < p->n_request; i++) {
        struct gr_wishes *w = &p->request[i].wishes;
        struct gr_adjust *a = &w->adjust;
        if (!chance(&rng, 3)) {
            continue;
        }
        draw_bans(&rng, a);
        draw_penalties(&rng, a);
        for (a->bias.n = 0; chance(&rng, 2);) {
            a->biased.id[a->biased.n++] = draw_id(&rng);
            a->bias.value[a->bias.n++] = 0.5f * (float)next(&rng, 13) - 3.0f;
        }
        w->turn.n_logprob = chance(&rng, 2) ? 1 + (uint32_t)next(&rng, GR_LOGPROB_ROW) : 0;
        w->turn.min_tokens = chance(&rng, 2) ? 1 + (uint32_t)next(&rng, w->turn.max_tokens) : 0;
    }
}

void sim_draw_drains(struct sim_plan *p)
{
    uint64_t rng = gr_mix64(p->seed + 33445566);
    p->sim.faults = (struct sim_faults){.drain = 2 + (int)next(&rng, 30), .restart_ns = 1 + next(&rng, 5000000)};
    p->sim.msg_delay_ns += 1 + next(&rng, 2) * 500000;
}

struct sim *sim_from_plan(struct sim_plan *p)
{
    struct sim *s = sim_create(&p->sim);
    for (int i = 0; i < p->n_request; i++) {
        sim_stop_after(s, sim_submit(s, &p->request[i]), p->stop_after[i]);
        sim_cut_and_close(s, i, p->cut_ns[i], p->close_ns[i]);
        if (p->refresh_ns[i] > 0) {
            sim_refresh(s, i, p->refresh_ns[i]);
        }
        for (int k = 0; k < p->n_turn[i]; k++) {
            sim_add_turn(s, i, &p->turn[i][k]);
        }
    }
    return s;
}
