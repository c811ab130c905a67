/* The target's side of features: every frame holds the true rows of its positions, in order, behind the tokens that
 * need them and within the window; what passes, cuts, attachments and missing credit do to it. */
#include "common/bf16.h"
#include "common/hash.h"
#include "target_worker/target.h"
#include "target_worker/verifier.h"
#include "tests/sim/toy_lm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N_VOCAB 24
#define N_CTX 512
#define CHUNK 16
#define KEEP 96
#define WINDOW 64
#define PEER 7
#define EPOCH 3
#define N_SESSION 2

/* What the drafter of a session has been sent. */
struct told {
    int32_t token[N_CTX];
    uint64_t hash[N_CTX + 1];
    int32_t len;   /* committed, as the orchestrator knows it */
    int32_t known; /* tokens told by DELTA or VERDICT */
    int32_t end;   /* features before it are sent */
    int n_frame, n_start, n_again; /* the last: frames that went back */
    int32_t first; /* of the first frame since the last RESYNC */
    uint32_t asked_round; /* a tree is wanted for it; 0: none */
};

struct bench {
    struct gr_lm *lm;
    struct gr_target *target;
    struct gr_verifier *verifier;
    struct gr_pass *pass; /* started, not done */
    struct told told[N_SESSION + 1]; /* by session, from 1 */
    uint8_t frame[GR_WIRE_SMALL_BYTES_MAX];
    enum gr_frame_class class;
    int n_bulk_credit;
    bool no_small;
    bool raw;
    int n_fuse; /* passes that fused what was kept */
    char order[512]; /* what was sent: v, d, f and the session's digit */
    size_t n_order;
    uint64_t now_ns;
};

static uint8_t *begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t n)
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

static void check_features(struct bench *b, const struct gr_frame_header *h, size_t n)
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
        float want[TOY_N_CAPTURE * TOY_FEATURE_WIDTH];
        (b->raw ? toy_lm_capture : toy_lm_feature)(t->token, (int)(f.first_pos + r + 1), want);
        for (uint32_t k = 0; k < width; k++) {
            uint16_t half = 0;
            memcpy(&half, f.row_bytes + 2 * (r * width + k), sizeof(half));
            assert_true(gr_bf16_to_f32(half) == want[k]);
        }
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

static void end(void *ctx, uint32_t peer, uint32_t n)
{
    struct bench *b = ctx;
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
        t->known = (int32_t)h.base_len + 1;
        assert_int_equal(gr_wire_decode_verdict(b->frame, n, N_VOCAB, &verdict), GR_OK);
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
    for (uint32_t i = 0; m->type == GR_MSG_COMMIT && i < m->ids.n; i++) {
        t->hash[t->len + 1] = gr_hash_extend(t->hash[t->len], m->ids.p[i]);
        t->token[t->len++] = m->ids.p[i];
    }
}

static void on_pass(void *ctx, struct gr_pass *pass)
{
    struct bench *b = ctx;
    gr_verifier_run(b->verifier, pass);
    b->n_fuse += pass->seq[0].kind == GR_PASS_FUSE;
    b->pass = pass;
}

static bool all_raw; /* benches ship captured states */

static void bench_create(struct bench *b, bool features)
{
    memset(b, 0, sizeof(*b));
    b->raw = all_raw;
    b->n_bulk_credit = 1000000;
    b->lm = toy_lm_create(&(struct toy_config){.n_vocab = N_VOCAB, .n_ctx_max = N_CTX, .n_row_max = 200,
                                               .n_out_max = 160, .n_pool_block = 128, .n_scratch_block = 16,
                                               .seed = 3, .sharpness = 6.0f, .features = features, .raw = all_raw});
    const struct gr_target_config c = {.n_session_max = N_SESSION, .n_ctx_max = N_CTX, .n_vocab = N_VOCAB,
                                       .n_row_max = 200, .n_out_max = 160, .prefill_chunk = CHUNK,
                                       .n_pool_block = 128, .round_deadline_ns = 1000,
                                       .feature_width = gr_lm_ship_width(b->lm), .feature_raw = all_raw,
                                       .feature_keep = KEEP,
                                       .feature_window = WINDOW};
    const struct gr_target_io io = {.ctx = b, .frame_begin = begin, .frame_end = end, .send_msg = on_msg,
                                    .start_pass = on_pass};
    assert_int_equal(gr_target_create(&c, &io, &b->target), GR_OK);
    assert_int_equal(gr_verifier_create(b->lm, N_SESSION, &b->verifier), GR_OK);
}

static void bench_destroy(struct bench *b)
{
    assert_true(gr_target_check(b->target));
    gr_verifier_destroy(b->verifier);
    gr_target_destroy(b->target);
    gr_lm_destroy(b->lm);
}

static void open_session(struct bench *b, uint64_t id, int n_prompt, bool single_token, bool want_draft)
{
    int32_t segments[] = {0, n_prompt};
    struct told *t = &b->told[id];
    for (int i = 0; i < n_prompt; i++) {
        t->token[i] = (int32_t)((id * 5 + (uint64_t)i * 7) % N_VOCAB);
        t->hash[i + 1] = gr_hash_extend(t->hash[i], t->token[i]);
    }
    t->len = n_prompt;
    const struct gr_msg m = {.type = GR_MSG_OPEN, .session = id, .epoch = EPOCH,
                             .ids = {t->token, (uint32_t)n_prompt}, .segments = {segments, 2}, .max_tokens = 400,
                             .want_draft = want_draft, .n_node = 5, .top_p = 1.0, .single_token = single_token};
    gr_target_on_msg(b->target, &m, b->now_ns);
}

static void resync(struct bench *b, uint64_t id, int32_t my_len, uint32_t feature_len)
{
    uint8_t f[GR_WIRE_SMALL_BYTES_MAX];
    struct told *t = &b->told[id];
    struct gr_resync r = {.my_len = (uint32_t)my_len, .feature_len = feature_len};
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

static void say_taken(struct bench *b, uint64_t id, int32_t at, uint64_t wrong)
{
    uint8_t f[GR_WIRE_HEADER_BYTES];
    const struct gr_frame_header h = {.session = id, .epoch = EPOCH, .base_len = (uint32_t)at,
                                      .prefix_hash = b->told[id].hash[at] ^ wrong};
    const size_t n = gr_wire_encode_taken(&h, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(b->target, PEER, f, n, b->now_ns), GR_OK);
}

/* The drafter is alive, and has no tree to give. */
static void answer(struct bench *b, uint64_t id)
{
    uint8_t f[64];
    struct told *t = &b->told[id];
    static const struct gr_token_tree none = {.n = 0};
    const struct gr_frame_header h = {.session = id, .epoch = EPOCH, .round = t->asked_round,
                                      .base_len = (uint32_t)t->len, .prefix_hash = t->hash[t->len]};
    if (t->asked_round > 0) {
        const size_t n = gr_wire_encode_draft(&h, &none, f, sizeof(f));
        t->asked_round = 0;
        assert_int_equal(gr_target_on_frame(b->target, PEER, f, n, b->now_ns), GR_OK);
    }
}

/* A step, and the pass it started, if any. Time passes the deadline. */
static bool round_once(struct bench *b)
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

/* Sends what can be sent, without a pass that ends, but those that fuse what was kept. */
static void settle(struct bench *b)
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

/* Chunk by chunk, one chunk behind; after the prompt the drafter lacks nothing. */
static void test_prompt_by_the_chunk(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    open_session(&b, 1, 60, false, true);
    resync(&b, 1, 0, 0);
    assert_int_equal(b.told[1].known, 60);
    for (int chunk = 1; chunk <= 4; chunk++) {
        assert_int_equal(b.told[1].end, CHUNK * (GR_MAX(chunk - 2, 0)));
        assert_true(round_once(&b)); /* the step sends the chunk before, and starts this one */
    }
    assert_int_equal(b.told[1].len, 61);
    (void)gr_target_step(b.target, b.now_ns);
    assert_int_equal(b.told[1].end, 60);
    assert_true(strstr(b.order, "v1") < strstr(b.order + 2 + (strstr(b.order, "v1") - b.order), "f1"));
    bench_destroy(&b);
}

/* No more than the window without TAKEN; only a TAKEN that fits counts. */
static void test_window(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    open_session(&b, 1, 90, true, true);
    resync(&b, 1, 0, 0);
    while (b.told[1].len < 91) {
        assert_true(round_once(&b));
    }
    settle(&b);
    assert_int_equal(b.told[1].end, WINDOW);
    say_taken(&b, 1, 40, 1);  /* other tokens */
    say_taken(&b, 1, 80, 0);  /* more than was sent */
    settle(&b);
    assert_int_equal(b.told[1].end, WINDOW);
    say_taken(&b, 1, 10, 0);
    say_taken(&b, 1, 5, 0); /* an old one */
    settle(&b);
    assert_int_equal(b.told[1].end, WINDOW + 10);
    say_taken(&b, 1, 74, 0);
    settle(&b);
    assert_int_equal(b.told[1].end, b.told[1].known - 1);
    assert_int_equal(gr_target_counters(b.target)->n_feature_start, 0);
    bench_destroy(&b);
}

/* Without credit for bulk, verdicts and rounds go on; the features follow in order. */
static void test_no_credit(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    b.n_bulk_credit = 0;
    open_session(&b, 1, 20, false, true);
    resync(&b, 1, 0, 0);
    while (b.told[1].len < 30) {
        (void)round_once(&b);
    }
    assert_int_equal(b.told[1].n_frame, 0);
    assert_non_null(strstr(b.order, "v1"));
    b.n_bulk_credit = 1;
    settle(&b);
    assert_int_equal(b.told[1].n_frame, 1);
    b.n_bulk_credit = 100;
    settle(&b);
    assert_int_equal(b.told[1].end, b.told[1].known - 1);
    assert_int_equal(b.told[1].n_again, 0);
    bench_destroy(&b);
}

/* A session that wants no tree ships nothing while it decodes; an attached drafter gets the last positions. */
static void test_silence_then_attach(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    open_session(&b, 1, 30, true, true);
    resync(&b, 1, 0, 0);
    while (b.told[1].len < 40) {
        (void)round_once(&b);
    }
    settle(&b);
    const int n_frame = b.told[1].n_frame;
    const int32_t sent = b.told[1].end;
    while (b.told[1].len < 60) {
        (void)round_once(&b);
    }
    assert_int_equal(b.told[1].n_frame, n_frame);
    /* it asks where it stands: what was committed since comes from the ring, and two rows again */
    resync(&b, 1, 31, (uint32_t)sent);
    settle(&b);
    assert_int_equal(b.told[1].known, b.told[1].len);
    assert_int_equal(b.told[1].end, b.told[1].len - 1);
    assert_int_equal(b.told[1].n_start, 0);
    /* a new one, later than the ring reaches back */
    while (b.told[1].len < 300) {
        (void)round_once(&b);
    }
    resync(&b, 1, 0, 0);
    settle(&b);
    assert_int_equal(b.told[1].n_start, 1);
    assert_int_equal(b.told[1].end, b.told[1].first + WINDOW); /* the ring, and captured states behind it */
    assert_in_range(b.told[1].len - 1 - KEEP - b.told[1].first, 0, GR_CAPTURE_KEEP);
    say_taken(&b, 1, b.told[1].end - 3, 0);
    settle(&b);
    assert_int_equal(b.told[1].end, b.told[1].len - 1);
    /* one that says it has more than there is */
    resync(&b, 1, b.told[1].len, (uint32_t)b.told[1].len);
    b.told[1].end = b.told[1].len;
    settle(&b);
    assert_int_equal(b.told[1].first, b.told[1].len - 2);
    assert_int_equal(b.told[1].end, b.told[1].len - 1);
    bench_destroy(&b);
}

/* K = 0: captured states wait, and are fused when there are too many, or when a drafter is told the tokens. Rows that
 * are cut meanwhile, and those that run again, leave no gap and no false row. */
static void test_kept_captures(void **state)
{
    (void)state;
    for (int32_t n_round = 1; n_round < KEEP - 25; n_round++) {
        struct bench b;
        bench_create(&b, true);
        struct told *t = &b.told[1];
        open_session(&b, 1, 20, true, true);
        resync(&b, 1, 0, 0);
        while (t->len < 21 + n_round) {
            (void)round_once(&b);
        }
        assert_int_equal(b.n_fuse, 0);
        const int32_t sent = t->end;
        assert_int_equal(sent, 19); /* the prompt's: no round asked for more */
        const int32_t keep_len = n_round % 3 == 0 ? t->len - n_round / 2 : t->len;
        if (keep_len < t->len) {
            const struct gr_msg m = {.type = GR_MSG_TRUNCATE, .session = 1, .epoch = EPOCH,
                                     .keep_len = (uint32_t)keep_len};
            gr_target_on_msg(b.target, &m, b.now_ns);
            const int32_t ids[] = {3, 1};
            const struct gr_msg more = {.type = GR_MSG_APPEND, .session = 1, .epoch = EPOCH,
                                        .keep_len = (uint32_t)keep_len, .hash = t->hash[keep_len],
                                        .ids = {(int32_t *)(uintptr_t)ids, 2}, .max_tokens = 100};
            t->len = keep_len;
            for (int k = 0; k < 2; k++) {
                t->hash[t->len + 1] = gr_hash_extend(t->hash[t->len], ids[k]);
                t->token[t->len++] = ids[k];
            }
            t->known = GR_MIN(t->known, keep_len);
            t->end = GR_MIN(t->end, keep_len - 2);
            gr_target_on_msg(b.target, &more, b.now_ns);
            while (t->len < keep_len + 7) {
                (void)round_once(&b);
            }
        }
        resync(&b, 1, t->known, (uint32_t)GR_MIN(sent, t->known));
        settle(&b);
        say_taken(&b, 1, t->end - 2, 0); /* the window may have held the last ones back */
        settle(&b);
        assert_int_equal(t->end, t->len - 1); /* complete, and each row is true (check_features) */
        assert_int_equal(t->n_start, 0);
        assert_true(b.n_fuse <= (all_raw ? 0 : 1));
        bench_destroy(&b);
    }
}

/* The session is closed, or cut, while what was kept is fused. */
static void test_cut_while_fusing(void **state)
{
    (void)state;
    for (int close = 0; close <= 1; close++) {
        struct bench b;
        bench_create(&b, true);
        struct told *t = &b.told[1];
        open_session(&b, 1, 20, true, true);
        resync(&b, 1, 0, 0);
        while (t->len < 40) {
            (void)round_once(&b);
        }
        resync(&b, 1, 20, 20);
        (void)gr_target_step(b.target, b.now_ns);
        assert_int_equal(b.n_fuse, 1);
        struct gr_pass *pass = b.pass;
        b.pass = NULL;
        const struct gr_msg m = {.type = close ? GR_MSG_CLOSE : GR_MSG_TRUNCATE, .session = 1, .epoch = EPOCH,
                                 .keep_len = 30};
        gr_target_on_msg(b.target, &m, b.now_ns);
        assert_int_equal(gr_target_n_session(b.target), 1 - close);
        if (close) {
            open_session(&b, 2, 20, true, true); /* the same slot */
        }
        gr_target_on_pass_done(b.target, pass, b.now_ns);
        assert_true(gr_target_check(b.target));
        if (close) {
            resync(&b, 2, 0, 0);
            while (b.told[2].len < 30) {
                (void)round_once(&b);
            }
            resync(&b, 2, 0, 0);
            settle(&b);
            assert_int_equal(b.told[2].end, b.told[2].len - 1);
        }
        bench_destroy(&b);
    }
}

/* TRUNCATE and APPEND: from there on new features, and those under way again. */
static void test_cut(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    struct told *t = &b.told[1];
    open_session(&b, 1, 30, true, true);
    resync(&b, 1, 0, 0);
    while (t->len < 50) {
        (void)round_once(&b);
    }
    resync(&b, 1, t->len, 0);
    settle(&b);
    assert_int_equal(t->end, t->len - 1);
    say_taken(&b, 1, 40, 0);
    const int32_t cut[] = {45, 12};
    for (int i = 0; i < 2; i++) {
        const int32_t ids[] = {4, 9, (int32_t)i};
        struct gr_msg m = {.type = GR_MSG_TRUNCATE, .session = 1, .epoch = EPOCH, .keep_len = (uint32_t)cut[i]};
        gr_target_on_msg(b.target, &m, b.now_ns);
        m = (struct gr_msg){.type = GR_MSG_APPEND, .session = 1, .epoch = EPOCH, .keep_len = (uint32_t)cut[i],
                            .hash = t->hash[cut[i]], .ids = {(int32_t *)(uintptr_t)ids, 3}, .max_tokens = 20};
        t->len = cut[i];
        for (int k = 0; k < 3; k++) {
            t->hash[t->len + 1] = gr_hash_extend(t->hash[t->len], ids[k]);
            t->token[t->len++] = ids[k];
        }
        t->known = t->end = t->len;
        t->n_frame = 0;
        gr_target_on_msg(b.target, &m, b.now_ns);
        while (t->len < cut[i] + 4) {
            (void)round_once(&b);
        }
        settle(&b);
        assert_int_equal(t->end, cut[i] + 2); /* up to the tail's row of what the drafter was told */
        assert_true(t->n_frame > 0 && t->n_start == 0);
        assert_int_equal(t->first, i == 0 ? 40 : 10); /* from TAKEN; from two before the cut */
    }
    bench_destroy(&b);
}

/* Rounds go before prompts. */
static void test_rounds_before_prompts(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    open_session(&b, 2, 20, false, true);
    resync(&b, 2, 0, 0);
    while (b.told[2].len < 22) {
        (void)round_once(&b);
    }
    settle(&b);
    open_session(&b, 1, 90, false, true);
    resync(&b, 1, 0, 0);
    for (int i = 0; i < 2; i++) {
        (void)round_once(&b); /* a round of one and a chunk of the other, in one pass */
        b.n_order = 0;
        b.order[0] = '\0';
        (void)gr_target_step(b.target, b.now_ns);
        const char *round = strstr(b.order, "f2");
        const char *prompt = strstr(b.order, "f1");
        assert_true(prompt != NULL && round != NULL && round < prompt);
        struct gr_pass *pass = b.pass;
        b.pass = NULL;
        if (pass != NULL) {
            gr_target_on_pass_done(b.target, pass, b.now_ns);
        }
    }
    bench_destroy(&b);
}

/* Where nobody has a use for them, there are none. */
static void test_no_use(void **state)
{
    (void)state;
    struct bench b;
    bench_create(&b, true);
    open_session(&b, 1, 20, false, false);
    for (int i = 0; i < 6; i++) {
        b.now_ns += 2000;
        (void)gr_target_step(b.target, b.now_ns);
        assert_non_null(b.pass);
        assert_int_equal(b.pass->seq[0].n_feature, 0);
        struct gr_pass *pass = b.pass;
        b.pass = NULL;
        gr_target_on_pass_done(b.target, pass, b.now_ns);
    }
    /* one attaches all the same: from here on */
    resync(&b, 1, 0, 0);
    const int32_t len = b.told[1].len;
    assert_true(round_once(&b));
    assert_true(round_once(&b));
    settle(&b);
    assert_int_equal(b.told[1].n_start, 1);
    assert_int_equal(b.told[1].first, len - 1);
    /* a stand-alone draft model gets none */
    b.told[1].n_frame = 0;
    resync(&b, 1, 0, GR_FEATURES_NONE);
    assert_true(round_once(&b));
    settle(&b);
    assert_int_equal(b.told[1].n_frame, 0);
    bench_destroy(&b);
    /* and a head that asks a target without any is left alone */
    bench_create(&b, false);
    open_session(&b, 1, 20, false, true);
    resync(&b, 1, 0, 0);
    assert_int_equal(gr_target_counters(b.target)->n_fallback, 1);
    while (b.told[1].len < 25) {
        assert_true(round_once(&b));
    }
    assert_int_equal(b.n_order, 0);
    bench_destroy(&b);
}

static int ship_raw(void **state)
{
    (void)state;
    all_raw = true;
    return 0;
}

static int ship_fused(void **state)
{
    (void)state;
    all_raw = false;
    return 0;
}

#define RAW(test) {"raw: " #test, test, ship_raw, ship_fused, NULL}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_by_the_chunk), cmocka_unit_test(test_window),
        cmocka_unit_test(test_no_credit),           cmocka_unit_test(test_silence_then_attach),
        cmocka_unit_test(test_cut),                 cmocka_unit_test(test_rounds_before_prompts),
        cmocka_unit_test(test_no_use),              cmocka_unit_test(test_kept_captures),
        cmocka_unit_test(test_cut_while_fusing),    RAW(test_prompt_by_the_chunk),
        RAW(test_window),                           RAW(test_silence_then_attach),
        RAW(test_cut),                              RAW(test_kept_captures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
