#include "tests/sim/feature_rig.h"

bool all_raw;     /* benches ship captured states */
bool all_shipped; /* their features are made within the pass */
enum bench_far all_far;
int32_t bench_context; /* of the drafters' heads; 0: they look back at everything */
struct gr_specpv_params bench_specpv;
enum gr_specpv_mode bench_mode;
uint32_t bench_corrupt;
bool bench_prefix_cache, bench_prefix_features;

uint8_t *begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t n)
{
    struct bench *b = ctx;
    assert_int_equal(peer, PEER);
    assert_true(n <= sizeof(b->frame));
    if (class == GR_FRAME_BULK ? b->n_bulk_credit == 0 : b->no_small) {
        return NULL;
    }
    b->n_bulk_credit -= class == GR_FRAME_BULK;
    b->class = class;
    return b->frame;
}

/* The bytes of a row, as a row under a view has them. */
static float under_view(float x)
{
    const float byte = (float)((unsigned int)(x < 0.0f ? -x : x) ^ PARTIAL_MARK);
    return x < 0.0f || 1.0f / x < 0.0f ? -byte : byte;
}

/* The true row of the position; with SpecPV, or that of its row under a view. */
static void check_row(const struct bench *b, struct told *t, uint32_t pos, const uint8_t *bytes, uint32_t width)
{
    float want[TOY_N_CAPTURE * TOY_FEATURE_WIDTH];
    uint32_t n_true = 0;
    uint32_t n_partial = 0;
    (b->raw ? toy_lm_capture : toy_lm_feature)(t->token, (int)pos + 1, want);
    for (uint32_t k = 0; k < width; k++) {
        uint16_t half = 0;
        memcpy(&half, bytes + 2 * (size_t)k, sizeof(half));
        n_true += gr_bf16_to_f32(half) == want[k];
        n_partial += gr_bf16_to_f32(half) == under_view(want[k]);
    }
    assert_true(n_true == width || (bench_specpv.n_buffer > 0 && n_partial == width));
    t->partial[pos] = n_true != width;
    t->n_partial += t->partial[pos];
}

void check_features(struct bench *b, const struct gr_frame_header *h, size_t n)
{
    struct gr_features f;
    struct told *t = &b->told[h->session];
    assert_int_equal(b->class, GR_FRAME_BULK);
    assert_int_equal(gr_wire_decode_features(b->frame, n, &f), GR_OK);
    const uint32_t width = b->raw ? TOY_N_CAPTURE * TOY_FEATURE_WIDTH : TOY_FEATURE_WIDTH;
    assert_true(f.width == width && f.dtype == GR_FEATURES_BF16 && f.raw == b->raw);
    assert_true(h->epoch == EPOCH && h->base_len == f.first_pos + f.n_row && h->base_len < (uint32_t)t->known);
    assert_true(h->prefix_hash == t->hash[h->base_len]);
    const bool start = (h->flags & GR_FEATURES_START) != 0;
    assert_true(start ? f.first_pos > (uint32_t)t->end : f.first_pos <= (uint32_t)t->end); /* no gap unannounced */
    for (uint32_t r = 0; r < f.n_row; r++) {
        check_row(b, t, f.first_pos + r, f.row_bytes + 2 * (size_t)r * width, width);
    }
    t->n_start += start;
    t->n_again += f.first_pos < (uint32_t)t->end;
    t->first = t->n_frame == 0 ? (int32_t)f.first_pos : t->first;
    t->end = (int32_t)h->base_len;
    t->n_frame++;
}

static void note(struct bench *b, char what, uint64_t session)
{
    assert_true(b->n_order + 2 < sizeof(b->order));
    b->order[b->n_order++] = what;
    b->order[b->n_order++] = (char)('0' + session);
    b->order[b->n_order] = '\0';
}

static uint8_t *body(void *ctx, uint32_t peer)
{
    struct bench *b = ctx;
    assert_int_equal(peer, PEER);
    return all_far == BENCH_FAR_BODIES ? b->far_body : NULL;
}

/* As a connection does before a network card fetches the body. */
static void fetch_body(struct bench *b, uint32_t n)
{
    if (all_far == BENCH_FAR_BODIES && b->class == GR_FRAME_BULK) {
        assert_int_equal(b->far.memory.wait(&b->far), GR_OK);
        memcpy(b->frame + GR_BULK_HEAD_BYTES, test_far_at(b->far_body), n - GR_BULK_HEAD_BYTES);
    }
}

void end(void *ctx, uint32_t peer, uint32_t n)
{
    struct bench *b = ctx;
    fetch_body(b, n);
    struct gr_frame_header h;
    struct gr_delta delta;
    struct gr_verdict verdict;
    (void)peer;
    assert_int_equal(gr_wire_decode_header(b->frame, n, &h), GR_OK);
    struct told *t = &b->told[h.session];
    switch (h.type) {
    case GR_FRAME_FEATURES:
        note(b, 'f', h.session);
        check_features(b, &h, n);
        break;
    case GR_FRAME_DELTA:
        note(b, 'd', h.session);
        assert_int_equal(gr_wire_decode_delta(b->frame, n, &delta), GR_OK);
        assert_true(delta.common_len <= (uint32_t)t->known);
        t->known = (int32_t)h.base_len;
        t->asked_round = (h.flags & GR_DELTA_DRAFT) != 0 ? h.round : 0;
        break;
    case GR_FRAME_VERDICT: /* before the COMMIT: the bench knows no more than one token of it */
        note(b, 'v', h.session);
        assert_int_equal(gr_wire_decode_verdict(b->frame, n, N_VOCAB, &verdict), GR_OK);
        t->known = (int32_t)GR_MIN(verdict.keep_len, h.base_len) + 1;
        t->end = GR_MIN(t->end, t->known - 1);
        t->asked_round = verdict.n_want > 0 ? h.round + 1 : 0;
        break;
    default:
        break;
    }
}

static void on_msg(void *ctx, const struct gr_msg *m)
{
    struct bench *b = ctx;
    assert_true(m->type != GR_MSG_ERROR);
    struct told *t = &b->told[m->session];
    if (m->type == GR_MSG_COMMIT) {
        assert_true(m->commit.keep_len == (uint32_t)t->len ||
                    (bench_specpv.n_buffer > 0 && m->commit.keep_len < (uint32_t)t->len));
        t->n_back += m->commit.keep_len < (uint32_t)t->len;
        t->len = (int32_t)m->commit.keep_len;
    }
    for (uint32_t i = 0; m->type == GR_MSG_COMMIT && i < m->commit.ids.n; i++) {
        t->hash[t->len + 1] = gr_hash_extend(t->hash[t->len], m->commit.ids.p[i]);
        t->token[t->len++] = m->commit.ids.p[i];
    }
}

/* A pass brings its rows to the same places as the one before it. */
static void move_far(struct bench *b, struct gr_pass *pass)
{
    const size_t row_bytes = (size_t)gr_lm_ship_width(b->lm) * sizeof(uint16_t);
    int n = 0;
    memset(test_far_at(b->far_shipped), 0xff, GR_FAR_PAGE_BYTES);
    for (int i = 0; i < pass->n_seq; i++) {
        const int first = n;
        for (int k = 0; k < pass->seq[i].n_feature; k++, n++) {
            const size_t at = (size_t)(n + n / 3) * row_bytes; /* rows of a path are not one after the other */
            uint8_t *to = b->far_shipped + at;
            assert_true(n < (int)GR_ARRAY_LEN(b->far_row) && at + row_bytes <= GR_FAR_PAGE_BYTES);
            memcpy(test_far_at(to), pass->seq[i].feature[k], row_bytes);
            b->far_row[n] = (const uint16_t *)(const void *)to;
        }
        pass->seq[i].feature = pass->seq[i].n_feature > 0 ? b->far_row + first : NULL;
    }
}

static void on_pass(void *ctx, struct gr_pass *pass)
{
    struct bench *b = ctx;
    gr_verifier_run(b->verifier, pass);
    if (all_far != BENCH_HOST) {
        move_far(b, pass);
    }
    b->n_fuse += pass->seq[0].kind == GR_PASS_FUSE;
    for (int i = 0; i < pass->n_seq; i++) {
        b->n_made += pass->seq[i].n_feature;
    }
    b->pass = pass;
}

static void take_far(struct bench *b)
{
    test_far_init(&b->far, "far:0", true);
    assert_int_equal(b->far.memory.take(&b->far, GR_FAR_PAGE_BYTES, &b->far_shipped), GR_OK);
    assert_int_equal(b->far.memory.take(&b->far, GR_FAR_PAGE_BYTES, &b->far_body), GR_OK);
}

void bench_create(struct bench *b, bool features)
{
    memset(b, 0, sizeof(*b));
    take_far(b);
    b->raw = all_raw;
    b->n_bulk_credit = 1000000;
    b->lm = toy_lm_create(&(struct toy_config){.n_vocab = N_VOCAB,
                                               .n_ctx_max = N_CTX,
                                               .n_row_max = 200,
                                               .n_out_max = 160,
                                               .n_pool_block = 128,
                                               .n_scratch_block = 16,
                                               .seed = 3,
                                               .sharpness = 6.0f,
                                               .features = features,
                                               .raw = all_raw,
                                               .shipped = all_shipped,
                                               .partial_features = true});
    const struct gr_target_config c = {.n_session_max = N_SESSION,
                                       .n_ctx_max = N_CTX,
                                       .n_vocab = N_VOCAB,
                                       .n_row_max = 200,
                                       .n_out_max = 160,
                                       .prefill_chunk = CHUNK,
                                       .n_pool_block = 128,
                                       .round_deadline_ns = 1000,
                                       .feature_width = gr_lm_ship_width(b->lm),
                                       .feature_raw = all_raw,
                                       .feature_later = gr_lm_fuses(b->lm),
                                       .feature_keep = KEEP,
                                       .feature_window = WINDOW,
                                       .far = all_far != BENCH_HOST ? &b->far.memory : NULL,
                                       .specpv = bench_specpv,
                                       .prefix_cache = bench_prefix_cache,
                                       .prefix_features = bench_prefix_features,
                                       .kv_identity = {.numerics_id = "toy"},
                                       .test_corrupt = bench_corrupt};
    const struct gr_target_io io = {.ctx = b,
                                    .frame_begin = begin,
                                    .frame_end = end,
                                    .frame_body = body,
                                    .send_msg = on_msg,
                                    .start_pass = on_pass};
    assert_int_equal(gr_target_create(&c, &io, &b->target), GR_OK);
    if (bench_specpv.n_buffer > 0) {
        const struct gr_kv_budget most = {.n_sink = (int32_t)bench_specpv.n_sink,
                                          .n_retrieval = (int32_t)bench_specpv.n_retrieval,
                                          .n_window = (int32_t)bench_specpv.n_window};
        assert_int_equal(gr_lm_view_create(b->lm, &most, N_SESSION), GR_OK);
    }
    assert_int_equal(gr_verifier_create(b->lm, N_SESSION, &b->verifier), GR_OK);
}

void bench_destroy(struct bench *b)
{
    assert_true(gr_target_check(b->target));
    gr_verifier_destroy(b->verifier);
    gr_target_destroy(b->target);
    b->far.memory.give(&b->far, b->far_shipped);
    b->far.memory.give(&b->far, b->far_body);
    assert_int_equal(b->far.n_taken, 0);
    gr_lm_destroy(b->lm);
}

static void send_open(struct bench *b, uint64_t id, bool single_token, bool want_draft, uint64_t fork_of)
{
    struct told *t = &b->told[id];
    int32_t segments[] = {0, t->len};
    const struct gr_msg m = {.type = GR_MSG_OPEN,
                             .session = id,
                             .open = {.epoch = EPOCH,
                                      .ids = {t->token, (uint32_t)t->len},
                                      .segments = {segments, 2},
                                      .wishes = {.turn = {.max_tokens = 400},
                                                 .want_draft = want_draft,
                                                 .n_node = 5,
                                                 .sampling = {.top_p = 1.0},
                                                 .single_token = single_token,
                                                 .fork_of = fork_of,
                                                 .specpv = bench_mode}}};
    gr_target_on_msg(b->target, &m, b->now_ns);
}

void open_session(struct bench *b, uint64_t id, int n_prompt, bool single_token, bool want_draft)
{
    struct told *t = &b->told[id];
    for (int i = 0; i < n_prompt; i++) {
        t->token[i] = (int32_t)((id * 5 + (uint64_t)i * 7) % N_VOCAB);
        t->hash[i + 1] = gr_hash_extend(t->hash[i], t->token[i]);
    }
    t->len = n_prompt;
    send_open(b, id, single_token, want_draft, 0);
}

void open_fork(struct bench *b, uint64_t id, uint64_t of, int n_prompt)
{
    struct told *t = &b->told[id];
    memcpy(t->token, b->told[of].token, (size_t)n_prompt * sizeof(t->token[0]));
    memcpy(t->hash, b->told[of].hash, ((size_t)n_prompt + 1) * sizeof(t->hash[0]));
    t->len = n_prompt;
    send_open(b, id, false, true, of);
}

void resync(struct bench *b, uint64_t id, int32_t my_len, uint32_t feature_len)
{
    uint8_t f[GR_WIRE_SMALL_BYTES_MAX];
    struct told *t = &b->told[id];
    struct gr_resync r = {
        .my_len = (uint32_t)my_len, .feature_len = feature_len, .feature_context = (uint32_t)bench_context};
    uint32_t lengths[GR_RESYNC_HASH_MAX];
    r.n_hash = (uint32_t)gr_resync_lengths(r.my_len, lengths);
    for (uint32_t i = 0; i < r.n_hash; i++) {
        r.hash[i] = t->hash[lengths[i]];
    }
    t->known = my_len;
    t->n_frame = 0;
    t->end = feature_len == GR_FEATURES_NONE ? 0 : (int32_t)feature_len;
    const struct gr_frame_header h = {.session = id, .epoch = EPOCH, .base_len = r.my_len};
    const size_t n = gr_wire_encode_resync(&h, &r, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(b->target, PEER, f, n, b->now_ns), GR_OK);
}

void say_taken(struct bench *b, uint64_t id, int32_t at, uint64_t wrong)
{
    uint8_t f[GR_WIRE_HEADER_BYTES];
    const struct gr_frame_header h = {
        .session = id, .epoch = EPOCH, .base_len = (uint32_t)at, .prefix_hash = b->told[id].hash[at] ^ wrong};
    const size_t n = gr_wire_encode_taken(&h, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(b->target, PEER, f, n, b->now_ns), GR_OK);
}

void answer(struct bench *b, uint64_t id)
{
    uint8_t f[64];
    struct told *t = &b->told[id];
    static const struct gr_token_tree none = {.n = 0};
    const struct gr_frame_header h = {.session = id,
                                      .epoch = EPOCH,
                                      .round = t->asked_round,
                                      .base_len = (uint32_t)t->len,
                                      .prefix_hash = t->hash[t->len]};
    if (t->asked_round > 0) {
        const size_t n = gr_wire_encode_draft(&h, &none, f, sizeof(f));
        t->asked_round = 0;
        assert_int_equal(gr_target_on_frame(b->target, PEER, f, n, b->now_ns), GR_OK);
    }
}

bool round_once(struct bench *b)
{
    b->now_ns += 2000;
    for (uint64_t id = 1; id <= N_SESSION; id++) {
        answer(b, id);
    }
    (void)gr_target_step(b->target, b->now_ns);
    struct gr_pass *pass = b->pass;
    b->pass = NULL;
    if (pass != NULL) {
        gr_target_on_pass_done(b->target, pass, b->now_ns);
    }
    assert_true(gr_target_check(b->target));
    return pass != NULL;
}

void settle(struct bench *b)
{
    for (int i = 0; i < 20; i++) {
        (void)gr_target_step(b->target, b->now_ns);
        if (b->pass != NULL && b->pass->seq[0].kind == GR_PASS_FUSE) {
            struct gr_pass *pass = b->pass;
            b->pass = NULL;
            gr_target_on_pass_done(b->target, pass, b->now_ns);
        }
    }
}
