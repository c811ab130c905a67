#include "tests/sim/drafter_rig.h"

#include "common/rules/bf16.h"
#include "common/rules/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define RIG_OTHER "other:1" /* the twin's target, where it is another one */

/* ---- the drafter's edge ---- */

static uint32_t peer_of(const struct rig *r, uint64_t session)
{
    return session == 2 ? r->twin_peer : RIG_PEER;
}

static uint8_t *rig_begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t n)
{
    struct rig *r = ctx;
    (void)class;
    assert_true(peer == RIG_PEER || peer == r->twin_peer);
    assert_true(n <= sizeof(r->out.bytes));
    return r->out.bytes;
}

static void rig_end(void *ctx, uint32_t peer, uint32_t n)
{
    struct rig *r = ctx;
    struct gr_frame_header h;
    r->out.len = n;
    assert_int_equal(gr_wire_decode_header(r->out.bytes, n, &h), GR_OK);
    assert_int_equal(peer, peer_of(r, h.session));
    if (h.session == 2) {
        if (h.type == GR_FRAME_DRAFT && h.base_len == (uint32_t)r->len) {
            r->n_twin_draft++;
            assert_int_equal(gr_wire_decode_draft(r->out.bytes, n, RIG_N_VOCAB, &r->twin_tree), GR_OK);
        }
        return;
    }
    if (h.type == GR_FRAME_DRAFT && h.base_len < (uint32_t)r->len) {
        assert_true(h.prefix_hash == r->hash[h.base_len] && h.round < r->round);
        assert_int_equal(gr_wire_decode_draft(r->out.bytes, n, RIG_N_VOCAB, &r->late_tree), GR_OK);
        r->late_header = h;
        r->n_late++;
        return;
    }
    r->n_frame[h.type]++;
    if (h.type == GR_FRAME_DRAFT) {
        r->draft_header = h;
        assert_int_equal(gr_wire_decode_draft(r->out.bytes, n, RIG_N_VOCAB, &r->tree), GR_OK);
    } else if (h.type == GR_FRAME_TAKEN) {
        assert_int_equal(gr_wire_decode_taken(r->out.bytes, n), GR_OK);
        assert_true(r->head && h.base_len <= (uint32_t)r->feature_sent && h.prefix_hash == r->hash[h.base_len]);
        r->feature_taken = GR_MAX(r->feature_taken, (int32_t)h.base_len);
    } else {
        assert_int_equal(gr_wire_decode_resync(r->out.bytes, n, &r->resync), GR_OK);
    }
}

static void rig_msg(void *ctx, const struct gr_msg *m)
{
    struct rig *r = ctx;
    r->n_error += m->type == GR_MSG_ERROR;
    assert_true(r->n_error <= r->n_error_expected);
    r->error_code = m->type == GR_MSG_ERROR ? m->error.code : r->error_code;
    if (m->type == GR_MSG_DRAFT_STATS) {
        r->stats = *m;
    } else if (m->type == GR_MSG_PONG) {
        r->pong = *m;
    } else if (m->type == GR_MSG_DRAFT_TROUBLE) {
        r->trouble.draft_trouble.n_fallback += m->draft_trouble.n_fallback;
        r->trouble.draft_trouble.n_desync += m->draft_trouble.n_desync;
        r->trouble.draft_trouble.n_feature_gap += m->draft_trouble.n_feature_gap;
    } else if (m->type == GR_MSG_ATTACHED) {
        r->attached = m->session;
    }
}

static const uint8_t *rig_body(void *ctx)
{
    return ((struct rig *)ctx)->body;
}

static void rig_job(void *ctx, struct gr_draft_job *job)
{
    struct rig *r = ctx;
    assert_null(r->job);
    r->job = job;
}

static enum gr_status rig_connect(void *ctx, const char *address, uint64_t incarnation, const char *transport,
                                  uint32_t *peer_out)
{
    const struct rig *r = ctx;
    (void)incarnation;
    (void)transport;
    *peer_out = strcmp(address, RIG_OTHER) == 0 ? r->twin_peer : RIG_PEER;
    return GR_OK;
}

/* ---- life ---- */

bool rig_heads;
enum rig_far rig_far;

void rig_attach(struct rig *r)
{
    gr_drafter_on_msg(r->drafter, &r->attach, 0);
    if (r->twin) {
        struct gr_msg m = r->attach;
        m.session = 2;
        if (r->twin_peer != RIG_PEER) {
            snprintf(m.attach.address, sizeof(m.attach.address), "%s", RIG_OTHER);
        }
        gr_drafter_on_msg(r->drafter, &m, 0);
    }
    gr_drafter_on_peer_ready(r->drafter, RIG_PEER, "rig", 0);
    if (r->twin_peer != RIG_PEER) {
        gr_drafter_on_peer_ready(r->drafter, r->twin_peer, "rig", 0);
    }
}

#define CHUNK 32

/* KV that just fits: of both sessions, or of the only one. */
static int n_pool_block(const struct rig_config *c)
{
    const int per_session = (gr_drafter_kv_len_max(c->context, CHUNK, RIG_N_CTX) + 15) / 16;
    return c->one_fits ? per_session : 2 * per_session;
}

static void take_far(struct rig *r)
{
    test_far_init(&r->far, "far:0", true);
    assert_int_equal(r->far.memory.take(&r->far, GR_FAR_PAGE_BYTES, &r->far_body), GR_OK);
}

struct rig *rig_create(const struct rig_config *c)
{
    struct rig *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    r->table = (struct toy_config){.n_vocab = RIG_N_VOCAB,
                                   .n_ctx_max = RIG_N_CTX,
                                   .n_row_max = 64,
                                   .n_out_max = 64,
                                   .n_pool_block = n_pool_block(c),
                                   .n_scratch_block = 2 * GR_DRAFT_SCRATCH_BLOCKS,
                                   .seed = 11,
                                   .sharpness = c->sharpness > 0.0f ? c->sharpness : 8.0f};
    struct toy_config draft = r->table;
    draft.blur_seed = c->blur > 0 ? c->seed + 99 : 0;
    draft.blur = c->blur;
    r->head = c->head || rig_heads;
    r->feature_window = c->window > 0 ? c->window : RIG_N_CTX;
    r->table.features = draft.features = draft.head = r->head;
    r->raw = draft.raw = c->raw;
    draft.n_vocab_head = c->n_vocab_head;
    draft.odd = c->odd;
    draft.far_at = rig_far != RIG_HOST ? test_far_at : NULL;
    r->lm = toy_lm_create(&draft);
    take_far(r);
    const struct gr_drafter_config dc = {.n_session_max = 2,
                                         .n_ctx_max = c->n_ctx > 0 ? c->n_ctx : RIG_N_CTX,
                                         .n_vocab = RIG_N_VOCAB,
                                         .n_row_max = 64,
                                         .prefill_chunk = CHUNK,
                                         .n_pool_block = r->table.n_pool_block,
                                         .feature_width = gr_lm_ship_width(r->lm),
                                         .feature_raw = c->raw,
                                         .feature_window = c->window > 0 ? c->window : RIG_N_CTX,
                                         .feature_context = c->context,
                                         .far = r->lm->far_features ? &r->far.memory : NULL,
                                         .test_flip_round = c->flip_round};
    const struct gr_drafter_io io = {.ctx = r,
                                     .frame_begin = rig_begin,
                                     .frame_end = rig_end,
                                     .frame_body = rig_body,
                                     .send_msg = rig_msg,
                                     .start_job = rig_job,
                                     .connect = rig_connect};
    assert_int_equal(gr_drafter_create(&dc, &io, &r->drafter), GR_OK);
    assert_int_equal(gr_grower_create(r->lm, 2, &r->grower), GR_OK);
    gr_grower_fix_level_ns(r->grower, 40000, 3000);
    r->attach =
        (struct gr_msg){.type = GR_MSG_ATTACH,
                        .session = 1,
                        .attach = {.epoch = RIG_EPOCH,
                                   .wishes = {.sampling = {.top_p = 1.0, .seed = 5, .temperature = c->temperature},
                                              .n_node = (uint32_t)c->n_node,
                                              .draft_depth = (uint32_t)c->depth,
                                              .draft_top_k = (uint32_t)c->top_k,
                                              .draft_ahead = c->ahead,
                                              .auto_tree = c->auto_tree}}};
    r->round = 1;
    r->twin = c->twin;
    r->twin_peer = c->two_peers ? RIG_PEER + 1 : RIG_PEER;
    return r;
}

void rig_destroy(struct rig *r)
{
    assert_true(gr_drafter_check(r->drafter));
    gr_grower_destroy(r->grower);
    gr_drafter_destroy(r->drafter);
    gr_lm_destroy(r->lm);
    r->far.memory.give(&r->far, r->far_body);
    assert_int_equal(r->far.n_taken, 0);
    free(r);
}

/* Steps; then finishes the job in flight, if there is one. */
bool rig_job_once(struct rig *r)
{
    rig_send_features(r); /* those that a TAKEN has made room for */
    const uint64_t wake_ns = gr_drafter_step(r->drafter, r->now_ns);
    if (wake_ns != UINT64_MAX) { /* it waited for others */
        assert_null(r->job);
        r->now_ns = GR_MAX(r->now_ns, wake_ns);
        (void)gr_drafter_step(r->drafter, r->now_ns);
    }
    struct gr_draft_job *job = r->job;
    r->job = NULL;
    if (job != NULL) {
        gr_grower_run(r->grower, job);
        r->draft_ns += job->seq[0].task == GR_DRAFT_AHEAD ? 0.0 : (double)job->compute_ns;
        gr_drafter_on_job_done(r->drafter, job, r->now_ns);
    }
    assert_true(gr_drafter_check(r->drafter));
    return job != NULL;
}

void rig_run(struct rig *r, int n_job_max)
{
    for (int i = 0; i < n_job_max && rig_job_once(r); i++) {
    }
}

/* Until a DRAFT has been sent. */
void rig_await_draft(struct rig *r)
{
    const int n = r->n_frame[GR_FRAME_DRAFT];
    for (int i = 0; i < 100 && (r->n_frame[GR_FRAME_DRAFT] == n || (r->twin && r->n_twin_draft == n)); i++) {
        (void)rig_job_once(r);
    }
    assert_int_equal(r->n_frame[GR_FRAME_DRAFT], n + 1);
    if (r->twin) {
        assert_int_equal(r->n_twin_draft, n + 1);
        assert_int_equal(r->twin_tree.n, r->tree.n);
        assert_memory_equal(r->twin_tree.token, r->tree.token, (size_t)r->tree.n * sizeof(r->tree.token[0]));
        assert_memory_equal(r->twin_tree.parent, r->tree.parent, (size_t)r->tree.n * sizeof(r->tree.parent[0]));
    }
    assert_int_equal(r->draft_header.round, r->round);
    assert_int_equal(r->draft_header.base_len, r->len);
    assert_true(r->draft_header.prefix_hash == r->hash[r->len]);
}

/* ---- the target ---- */

void rig_commit(struct rig *r, int32_t token)
{
    assert_true(r->len < RIG_N_CTX);
    r->hash[r->len + 1] = gr_hash_extend(r->hash[r->len], token);
    r->token[r->len++] = token;
}

int32_t rig_pick(const struct rig *r, const int32_t *token, int n)
{
    float l[RIG_N_VOCAB];
    toy_lm_logits(&r->table, token, n, l);
    const struct gr_sampling s = {.temperature = r->attach.attach.wishes.sampling.temperature,
                                  .top_p = 1.0f,
                                  .seed = r->attach.attach.wishes.sampling.seed};
    float scratch[RIG_N_VOCAB];
    int32_t work[RIG_N_VOCAB];
    return gr_sampler_pick(&s, l, RIG_N_VOCAB, (uint32_t)n, scratch, work);
}

/* Its rows are where a device has written them, and what follows the head is none of it. They may be written over when
 * it has been taken. */
static void deliver_apart(struct rig *r, uint64_t session, struct rig_frame f)
{
    const size_t n = f.len - GR_BULK_HEAD_BYTES;
    assert_true(n <= GR_FAR_PAGE_BYTES);
    test_far_write(r->far_body, f.bytes + GR_BULK_HEAD_BYTES, n);
    memset(f.bytes + GR_BULK_HEAD_BYTES, 0xff, n);
    assert_int_equal(r->far.memory.arrived(&r->far), GR_OK);
    r->body = r->far_body;
    assert_int_equal(gr_drafter_on_frame(r->drafter, peer_of(r, session), f.bytes, f.len, r->now_ns), GR_OK);
    r->body = NULL;
    assert_int_equal(r->far.memory.wait(&r->far), GR_OK);
    memset(test_far_at(r->far_body), 0xff, n);
}

static void deliver(struct rig *r, uint64_t session, const struct rig_frame *f)
{
    if (rig_far == RIG_FAR_BODIES && r->lm->far_features && f->bytes[GR_WIRE_OFF_TYPE] == GR_FRAME_FEATURES) {
        deliver_apart(r, session, *f);
    } else {
        assert_int_equal(gr_drafter_on_frame(r->drafter, peer_of(r, session), f->bytes, f->len, r->now_ns), GR_OK);
    }
}

void rig_deliver(struct rig *r, size_t n)
{
    struct rig_frame *f = &r->log[r->n_log];
    f->len = n;
    r->n_log = (r->n_log + 1) % RIG_N_LOG;
    deliver(r, 1, f);
    if (r->twin) {
        struct rig_frame copy = *f;
        copy.bytes[8] = 2; /* the session's lowest byte */
        deliver(r, 2, &copy);
    }
    assert_true(gr_drafter_check(r->drafter));
}

void rig_send_verdict(struct rig *r, const struct gr_verdict *v, uint32_t base_len)
{
    const struct gr_frame_header h = {.flags = r->more ? GR_FRAME_MORE : 0,
                                      .session = 1,
                                      .epoch = RIG_EPOCH,
                                      .round = r->round,
                                      .base_len = base_len,
                                      .prefix_hash = r->hash[r->len]};
    r->round++;
    rig_deliver(r, gr_wire_encode_verdict(&h, v, r->log[r->n_log].bytes, sizeof(r->log[0].bytes)));
    rig_send_features(r);
}

/* Verifies a tree below `root` (-1: the tail it was drafted on); tells n_want. */
int rig_verify(struct rig *r, const struct gr_token_tree *t, uint32_t draft_round, int root, int n_want)
{
    struct gr_verdict v = {.draft_round = draft_round, .keep_len = (uint32_t)r->len, .n_want = (uint8_t)n_want};
    const uint32_t base_len = (uint32_t)r->len;
    int node = root;
    for (;;) {
        const int32_t token = rig_pick(r, r->token, r->len);
        const int child = gr_tree_child(t, node, token);
        rig_commit(r, token);
        if (child < 0) {
            v.bonus = token;
            break;
        }
        v.node[v.n_path++] = (uint8_t)child;
        node = child;
    }
    v.final_len = (uint32_t)r->len;
    rig_send_verdict(r, &v, base_len);
    return v.n_path;
}

void rig_root_only(struct rig *r, int n_want)
{
    static const struct gr_token_tree none = {.n = 0};
    (void)rig_verify(r, &none, GR_WIRE_ROOT_ONLY, -1, n_want);
}

void rig_send_delta(struct rig *r, int32_t common, uint16_t flags)
{
    const struct gr_frame_header h = {.session = 1,
                                      .epoch = RIG_EPOCH,
                                      .round = r->round,
                                      .base_len = (uint32_t)r->len,
                                      .flags = flags,
                                      .prefix_hash = r->hash[r->len]};
    rig_deliver(r, gr_wire_encode_delta(&h, (uint32_t)common, r->token + common, (uint32_t)(r->len - common),
                                        r->log[r->n_log].bytes, sizeof(r->log[0].bytes)));
    if (r->n_frame[GR_FRAME_RESYNC] > r->n_resync_seen) {
        r->n_resync_seen = r->n_frame[GR_FRAME_RESYNC];
        r->feature_sent = r->feature_taken = (int32_t)GR_MIN(r->resync.feature_len, (uint32_t)common);
    }
    r->feature_taken = GR_MIN(r->feature_taken, GR_MAX(common - 2, 0));
    r->feature_sent = GR_MIN(r->feature_sent, r->feature_taken);
    rig_send_features(r);
}

void rig_send_features_from(struct rig *r, int32_t first, int32_t end, uint16_t flags)
{
    while (first < end) {
        const int32_t n = GR_MIN(end - first, GR_FEATURES_ROW_MAX);
        const int width = gr_lm_ship_width(r->lm);
        const size_t row_bytes = (size_t)width * sizeof(uint16_t);
        struct rig_frame *f = &r->log[r->n_log];
        const struct gr_frame_header h = {.session = 1,
                                          .epoch = RIG_EPOCH,
                                          .round = r->round,
                                          .base_len = (uint32_t)(first + n),
                                          .prefix_hash = r->hash[first + n],
                                          .flags = flags};
        const struct gr_features x = {.first_pos = (uint32_t)first,
                                      .n_row = (uint32_t)n,
                                      .width = (uint32_t)width,
                                      .dtype = GR_FEATURES_BF16,
                                      .raw = r->raw};
        uint8_t *rows = NULL;
        const size_t bytes = gr_wire_encode_features(&h, &x, row_bytes, f->bytes, sizeof(f->bytes), &rows);
        for (int32_t i = 0; i < n; i++) {
            float value[TOY_N_CAPTURE * TOY_FEATURE_WIDTH];
            (r->raw ? toy_lm_capture : toy_lm_feature)(r->token, first + i + 1, value);
            for (int k = 0; k < width; k++) {
                const uint16_t half = gr_bf16_from_f32(value[k]);
                memcpy(rows + (size_t)i * row_bytes + (size_t)k * sizeof(half), &half, sizeof(half));
            }
        }
        first += n;
        r->feature_sent = GR_MAX(r->feature_sent, first);
        rig_deliver(r, bytes);
        flags = 0;
    }
}

void rig_send_features(struct rig *r)
{
    if (!r->head || r->hold_features) {
        return;
    }
    const int32_t kept = r->feature_keep > 0 ? GR_MAX(r->len - 1 - r->feature_keep, 0) : 0;
    const bool start = r->feature_sent < kept;
    const int32_t first = start ? kept : r->feature_sent;
    r->feature_taken = start ? first : r->feature_taken;
    rig_send_features_from(r, first, GR_MIN(r->len - 1, r->feature_taken + r->feature_window),
                           start ? GR_FEATURES_START : 0);
}

void rig_send_cost(struct rig *r, uint32_t overhead_us, uint32_t base_us, uint32_t row_us)
{
    const struct gr_cost c = {.overhead_ns = overhead_us * 1000,
                              .n_point = 2,
                              .n_row = {1, 64},
                              .pass_ns = {(base_us + row_us) * 1000, (base_us + 64 * row_us) * 1000}};
    const struct gr_frame_header h = {.session = 1, .epoch = RIG_EPOCH, .round = r->round};
    rig_deliver(r, gr_wire_encode_cost(&h, &c, r->log[r->n_log].bytes, sizeof(r->log[0].bytes)));
}

void rig_start(struct rig *r, int n_prompt, int n_want)
{
    for (int i = 0; i < n_prompt; i++) {
        rig_commit(r, (i * 7 + 3) % RIG_N_VOCAB);
    }
    rig_attach(r);
    rig_send_delta(r, 0, n_want > 0 ? RIG_WANT(n_want) : GR_DELTA_LAST);
    if (n_want > 0) {
        rig_await_draft(r);
    }
}

/* The tree that was sent last is what a drafter sends that never knew anything but this prefix. */
void rig_assert_fresh(const struct rig *r, const struct rig_config *c, int n_want)
{
    struct rig_config plain = *c;
    plain.ahead = plain.twin = plain.two_peers = false;
    plain.flip_round = 0;
    struct rig *f = rig_create(&plain);
    memcpy(f->token, r->token, sizeof(f->token));
    memcpy(f->hash, r->hash, sizeof(f->hash));
    f->len = r->len;
    rig_attach(f);
    rig_send_delta(f, 0, RIG_WANT(n_want));
    rig_await_draft(f);
    assert_true(r->tree.n <= n_want);
    assert_int_equal(r->tree.n, f->tree.n);
    assert_memory_equal(r->tree.token, f->tree.token, (size_t)f->tree.n * sizeof(f->tree.token[0]));
    assert_memory_equal(r->tree.parent, f->tree.parent, (size_t)f->tree.n * sizeof(f->tree.parent[0]));
    rig_destroy(f);
}

uint64_t rig_draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}
