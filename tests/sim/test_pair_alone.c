/* Each machine of the pair alone, frames made by hand: stale and wrong DRAFTs, deadlines, roll-backs, verdicts that
 * cannot be. */
#include "common/rules/hash.h"
#include "draft_worker/compute/grower.h"
#include "target_worker/compute/verifier.h"
#include "tests/sim/sim.h"
#include "tests/sim/toy_lm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N_VOCAB 24

/* ---- one machine alone, frames made by hand ---- */

struct alone {
    struct gr_lm *lm;
    struct gr_target *target;
    struct gr_verifier *verifier;
    struct gr_drafter *drafter;
    struct gr_grower *grower;
    struct gr_pass *pass; /* started, not done */
    struct gr_draft_job *job;
    uint8_t frame[GR_WIRE_SMALL_BYTES_MAX];
    size_t frame_len; /* the last one sent */
    uint32_t frame_peer;
    int n_frame, n_msg[GR_N_MSG];
    int32_t token[256]; /* what the target committed */
    uint64_t hash[257];
    int32_t len;
};

static uint8_t *alone_begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t n)
{
    struct alone *a = ctx;
    (void)class;
    assert_true(n <= sizeof(a->frame));
    a->frame_peer = peer;
    return a->frame;
}

static void alone_end(void *ctx, uint32_t peer, uint32_t n)
{
    struct alone *a = ctx;
    assert_int_equal(peer, a->frame_peer);
    a->frame_len = n;
    a->n_frame++;
}

static void alone_add(struct alone *a, int32_t token)
{
    a->hash[a->len + 1] = gr_hash_extend(a->hash[a->len], token);
    a->token[a->len++] = token;
}

static void alone_msg(void *ctx, const struct gr_msg *m)
{
    struct alone *a = ctx;
    a->n_msg[m->type]++;
    for (uint32_t i = 0; m->type == GR_MSG_COMMIT && m->session == 1 && i < m->commit.ids.n; i++) {
        alone_add(a, m->commit.ids.p[i]);
    }
}

static void alone_pass(void *ctx, struct gr_pass *pass)
{
    struct alone *a = ctx;
    gr_verifier_run(a->verifier, pass);
    a->pass = pass;
}

static void alone_job(void *ctx, struct gr_draft_job *job)
{
    struct alone *a = ctx;
    gr_grower_run(a->grower, job);
    a->job = job;
}

static enum gr_status alone_connect(void *ctx, const char *address, uint64_t incarnation, const char *transport,
                                    uint32_t *peer_out)
{
    (void)incarnation;
    (void)ctx;
    (void)address;
    (void)transport;
    *peer_out = 7;
    return GR_OK;
}

#define DEADLINE 1000000

static void alone_create(struct alone *a)
{
    memset(a, 0, sizeof(*a));
    a->lm = toy_lm_create(&(struct toy_config){.n_vocab = N_VOCAB,
                                               .n_ctx_max = 256,
                                               .n_row_max = 700,
                                               .n_out_max = 640,
                                               .n_pool_block = 64,
                                               .n_scratch_block = 64,
                                               .seed = 3,
                                               .sharpness = 6.0f});
    const struct gr_target_config tc = {.n_session_max = 4,
                                        .n_ctx_max = 256,
                                        .n_vocab = N_VOCAB,
                                        .n_row_max = 700,
                                        .n_out_max = 640,
                                        .prefill_chunk = 16,
                                        .n_pool_block = 64,
                                        .round_deadline_ns = DEADLINE};
    const struct gr_target_io tio = {
        .ctx = a, .frame_begin = alone_begin, .frame_end = alone_end, .send_msg = alone_msg, .start_pass = alone_pass};
    const struct gr_drafter_config dc = {.n_session_max = 4,
                                         .n_ctx_max = 256,
                                         .n_vocab = N_VOCAB,
                                         .n_row_max = 700,
                                         .prefill_chunk = 16,
                                         .n_pool_block = 64};
    const struct gr_drafter_io dio = {.ctx = a,
                                      .frame_begin = alone_begin,
                                      .frame_end = alone_end,
                                      .send_msg = alone_msg,
                                      .start_job = alone_job,
                                      .connect = alone_connect};
    assert_int_equal(gr_target_create(&tc, &tio, &a->target), GR_OK);
    assert_int_equal(gr_verifier_create(a->lm, 4, &a->verifier), GR_OK);
    assert_int_equal(gr_drafter_create(&dc, &dio, &a->drafter), GR_OK);
    assert_int_equal(gr_grower_create(a->lm, 4, &a->grower), GR_OK);
}

static void alone_destroy(struct alone *a)
{
    assert_true(gr_target_check(a->target) && gr_drafter_check(a->drafter));
    gr_grower_destroy(a->grower);
    gr_drafter_destroy(a->drafter);
    gr_verifier_destroy(a->verifier);
    gr_target_destroy(a->target);
    gr_lm_destroy(a->lm);
}

/* Steps and runs passes until the target waits; returns when it wants to be called again. */
static uint64_t target_run(struct alone *a, uint64_t now_ns)
{
    for (;;) {
        const uint64_t wake_ns = gr_target_step(a->target, now_ns);
        if (a->pass == NULL) {
            return wake_ns;
        }
        struct gr_pass *pass = a->pass;
        a->pass = NULL;
        gr_target_on_pass_done(a->target, pass, now_ns);
    }
}

static void target_open(struct alone *a, uint64_t session, uint32_t epoch)
{
    int32_t segments[] = {0, 20};
    int32_t prompt[20];
    for (int i = 0; i < 20; i++) {
        prompt[i] = (int32_t)((session * 5 + (uint64_t)i) % N_VOCAB);
        if (session == 1) {
            alone_add(a, prompt[i]);
        }
    }
    const struct gr_msg m = {
        .type = GR_MSG_OPEN,
        .session = session,
        .open = {.epoch = epoch,
                 .ids = {prompt, 20},
                 .segments = {segments, 2},
                 .wishes = {.turn = {.max_tokens = 100}, .want_draft = 1, .n_node = 63, .sampling = {.top_p = 1.0}}}};
    gr_target_on_msg(a->target, &m, 0);
    assert_int_equal(a->n_msg[GR_MSG_ERROR], 0);
}

static void target_resync(struct alone *a, uint64_t session, uint32_t epoch, uint64_t now_ns)
{
    uint8_t f[64];
    const struct gr_frame_header h = {.session = session, .epoch = epoch};
    const size_t n = gr_wire_encode_resync(&h, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(a->target, 7, f, n, now_ns), GR_OK);
}

/* A one-node DRAFT for session 1. */
struct one_node {
    uint32_t peer, epoch, round, base_len;
    uint64_t hash;
    int32_t token;
};

static enum gr_status target_draft(struct alone *a, struct one_node d, uint64_t now_ns)
{
    uint8_t f[128];
    const struct gr_frame_header h = {
        .session = 1, .epoch = d.epoch, .round = d.round, .base_len = d.base_len, .prefix_hash = d.hash};
    const struct gr_token_tree t = {.n = 1, .token = {d.token}, .parent = {-1}};
    const size_t n = gr_wire_encode_draft(&h, &t, f, sizeof(f));
    return gr_target_on_frame(a->target, d.peer, f, n, now_ns);
}

static void assert_desync(struct alone *a, int n_frame, enum gr_desync_reason want)
{
    struct gr_frame_header h;
    uint32_t reason = 0;
    uint32_t my_len = 0;
    assert_int_equal(a->n_frame, n_frame + 1);
    assert_int_equal(gr_wire_decode_header(a->frame, a->frame_len, &h), GR_OK);
    assert_int_equal(h.type, GR_FRAME_DESYNC);
    assert_int_equal(gr_wire_decode_desync(a->frame, a->frame_len, &reason, &my_len), GR_OK);
    assert_int_equal(reason, want);
    assert_int_equal(my_len, a->len);
}

/* Each DRAFT that does not fit: who says what, and that the session stands as it stood. */
static void test_judging_drafts(void **state)
{
    (void)state;
    struct alone a;
    alone_create(&a);
    target_open(&a, 1, 5);
    target_resync(&a, 1, 5, 0); /* the prompt; then the VERDICT of round 0 */
    assert_int_equal(target_run(&a, 10), 10 + DEADLINE);
    assert_int_equal(a.len, 21);
    const struct gr_target_counters *c = gr_target_counters(a.target);
    const uint32_t len = 21;
    int n = a.n_frame;
    assert_int_equal(target_draft(&a, (struct one_node){7, 4, 1, len, a.hash[len], 1}, 20),
                     GR_OK); /* an older epoch: silence */
    assert_int_equal(target_draft(&a, (struct one_node){8, 5, 1, len, a.hash[len], 1}, 20),
                     GR_OK); /* not this session's drafter */
    assert_int_equal(c->n_draft_stale, 2);
    assert_int_equal(a.n_frame, n);
    assert_int_equal(target_draft(&a, (struct one_node){7, 6, 1, len, a.hash[len], 1}, 20), GR_OK); /* ahead in epoch */
    assert_desync(&a, n++, GR_DESYNC_EPOCH);
    assert_int_equal(target_draft(&a, (struct one_node){7, 5, 1, len + 1, a.hash[len], 1}, 20),
                     GR_OK); /* ahead in length */
    assert_desync(&a, n++, GR_DESYNC_AHEAD);
    assert_int_equal(target_draft(&a, (struct one_node){7, 5, 1, UINT32_MAX, a.hash[len], 1}, 20), GR_OK);
    assert_desync(&a, n++, GR_DESYNC_AHEAD);
    assert_int_equal(target_draft(&a, (struct one_node){7, 5, 1, len, a.hash[len] ^ 1, 1}, 20),
                     GR_OK); /* equal length, other tokens */
    assert_desync(&a, n++, GR_DESYNC_HASH);
    assert_int_equal(target_draft(&a, (struct one_node){7, 5, 1, 10, a.hash[11], 1}, 20), GR_OK);
    assert_desync(&a, n++, GR_DESYNC_HASH);
    assert_int_equal(c->n_desync, 5);
    assert_int_equal(target_draft(&a, (struct one_node){7, 5, 0, 20, a.hash[20], 1}, 20), GR_OK); /* merely late */
    assert_int_equal(c->n_draft_late, 1);
    assert_int_equal(target_draft(&a, (struct one_node){7, 5, 1, len, a.hash[len], N_VOCAB}, 20), GR_EFORMAT);
    assert_int_equal(a.n_frame, n);
    assert_int_equal(target_run(&a, 30), 10 + DEADLINE); /* still waits for its tree */
    assert_int_equal(c->n_root_round + c->n_tree_round, 0);
    /* and the good one; its late predecessor, come again, does not push it out */
    assert_int_equal(target_draft(&a, (struct one_node){7, 5, 1, len, a.hash[len], 1}, 40), GR_OK);
    assert_int_equal(target_draft(&a, (struct one_node){7, 5, 0, 20, a.hash[20], 1}, 41), GR_OK);
    assert_int_equal(target_run(&a, 50), 50 + DEADLINE);
    assert_int_equal(c->n_tree_round, 1);
    assert_int_equal(c->n_root_round, 0);
    assert_true(a.len >= 22);
    /* the fence: after a RESYNC of the running round, an older round's tree is dropped without a word */
    target_resync(&a, 1, 5, 60);
    n = a.n_frame;
    const uint64_t n_stale = c->n_draft_stale;
    assert_int_equal(target_draft(&a, (struct one_node){7, 5, 1, (uint32_t)a.len, a.hash[a.len], 1}, 70), GR_OK);
    assert_int_equal(c->n_draft_stale, n_stale + 1);
    assert_int_equal(a.n_frame, n);
    /* the session ends: DRAFTs and RESYNCs about it */
    gr_target_on_msg(a.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = 1}, 80);
    assert_int_equal(target_draft(&a, (struct one_node){7, 5, 2, (uint32_t)a.len, a.hash[a.len], 1}, 90), GR_OK);
    assert_int_equal(c->n_draft_stale, n_stale + 2);
    a.len = 0;
    target_resync(&a, 1, 5, 95);
    assert_desync(&a, n, GR_DESYNC_UNKNOWN_SESSION);
    alone_destroy(&a);
}

/* A pass starts at the deadline of the first session that waits, not of the last. */
static void test_deadline_of_the_first(void **state)
{
    (void)state;
    struct alone a;
    alone_create(&a);
    target_open(&a, 1, 1);
    target_resync(&a, 1, 1, 0);
    assert_int_equal(target_run(&a, 0), DEADLINE);
    target_open(&a, 2, 1);
    target_resync(&a, 2, 1, DEADLINE / 2);
    assert_int_equal(target_run(&a, DEADLINE / 2), DEADLINE); /* session 2 would wait until 1.5 deadlines */
    const struct gr_target_counters *c = gr_target_counters(a.target);
    assert_int_equal(c->n_root_round, 0);
    assert_int_equal(target_run(&a, DEADLINE), DEADLINE + DEADLINE / 2);
    assert_int_equal(c->n_root_round, 1); /* session 1 went on alone */
    alone_destroy(&a);
}

/* ---- the drafter follows a roll-back ---- */

static void drafter_run(struct alone *a, uint64_t now_ns)
{
    for (;;) {
        (void)gr_drafter_step(a->drafter, now_ns);
        if (a->job == NULL) {
            return;
        }
        struct gr_draft_job *job = a->job;
        a->job = NULL;
        gr_drafter_on_job_done(a->drafter, job, now_ns);
    }
}

/* Attaches session 1 to the prefix a->token[0 .. a->len) and lets it draft. */
static void drafter_attach(struct alone *a, uint32_t round)
{
    uint8_t f[1024];
    const struct gr_msg m = {
        .type = GR_MSG_ATTACH,
        .session = 1,
        .attach = {.epoch = 2,
                   .wishes = {.sampling = {.top_p = 1.0}, .draft_depth = 4, .draft_top_k = 3, .n_node = 9}}};
    gr_drafter_on_msg(a->drafter, &m, 0);
    gr_drafter_on_peer_ready(a->drafter, 7, "alone", 0);
    const struct gr_frame_header h = {.session = 1,
                                      .epoch = 2,
                                      .round = round,
                                      .base_len = (uint32_t)a->len,
                                      .flags = GR_DELTA_LAST | GR_DELTA_DRAFT | GR_DELTA_WANT(63),
                                      .prefix_hash = a->hash[a->len]};
    const size_t n = gr_wire_encode_delta(&h, 0, a->token, (uint32_t)a->len, f, sizeof(f));
    assert_int_equal(gr_drafter_on_frame(a->drafter, 7, f, n, 0), GR_OK);
    drafter_run(a, 0);
}

static struct gr_token_tree drafted(const struct alone *a, uint32_t round)
{
    struct gr_frame_header h;
    struct gr_token_tree t = {.n = 0};
    assert_int_equal(gr_wire_decode_header(a->frame, a->frame_len, &h), GR_OK);
    assert_int_equal(h.type, GR_FRAME_DRAFT);
    assert_int_equal(h.round, round);
    assert_int_equal(h.base_len, a->len);
    assert_true(h.prefix_hash == a->hash[a->len]);
    assert_int_equal(gr_wire_decode_draft(a->frame, a->frame_len, N_VOCAB, &t), GR_OK);
    return t;
}

static void drafter_verdict(struct alone *a, uint32_t round, const struct gr_verdict *v, uint32_t base_len)
{
    uint8_t f[256];
    const struct gr_frame_header h = {
        .session = 1, .epoch = 2, .round = round, .base_len = base_len, .prefix_hash = a->hash[a->len]};
    const size_t n = gr_wire_encode_verdict(&h, v, f, sizeof(f));
    assert_int_equal(gr_drafter_on_frame(a->drafter, 7, f, n, 0), GR_OK);
    drafter_run(a, 0);
}

/* The tree that a drafter grows which never knew anything but this prefix. */
static void assert_tree_as_fresh(const struct alone *a, const struct gr_token_tree *got)
{
    struct alone fresh;
    alone_create(&fresh);
    for (int32_t i = 0; i < a->len; i++) {
        alone_add(&fresh, a->token[i]);
    }
    drafter_attach(&fresh, 1);
    const struct gr_token_tree want = drafted(&fresh, 1);
    assert_int_equal(got->n, want.n);
    assert_memory_equal(got->token, want.token, (size_t)want.n * sizeof(want.token[0]));
    assert_memory_equal(got->parent, want.parent, (size_t)want.n * sizeof(want.parent[0]));
    alone_destroy(&fresh);
}

static void test_drafter_follows_rollback(void **state)
{
    (void)state;
    struct alone a;
    alone_create(&a);
    for (int32_t i = 0; i < 40; i++) {
        alone_add(&a, (i * 7 + 3) % N_VOCAB);
    }
    drafter_attach(&a, 1);
    struct gr_token_tree t = drafted(&a, 1);
    assert_int_equal(t.n, 9);
    assert_tree_as_fresh(&a, &t);
    /* round 1: the first node and its first child are accepted */
    int child = 0;
    while (t.parent[child] != 0) {
        child++;
    }
    alone_add(&a, t.token[0]);
    alone_add(&a, t.token[child]);
    alone_add(&a, 11);
    drafter_verdict(&a, 1,
                    &(struct gr_verdict){.n_want = 63,
                                         .draft_round = 1,
                                         .keep_len = 40,
                                         .final_len = 43,
                                         .bonus = 11,
                                         .n_path = 2,
                                         .node = {0, (uint8_t)child}},
                    40);
    t = drafted(&a, 2);
    assert_tree_as_fresh(&a, &t);
    /* round 2: a refresh takes back all but `keep` tokens and corrects the next one; across blocks, into the prompt,
     * and to the very first token */
    static const int32_t keep[] = {42, 40, 33, 32, 31, 17, 16, 1, 0};
    uint32_t round = 2;
    for (size_t i = 0; i < GR_ARRAY_LEN(keep); i++) {
        const uint32_t base_len = (uint32_t)a.len;
        if (keep[i] >= a.len) {
            continue;
        }
        a.len = keep[i];
        alone_add(&a, (int32_t)(5 + i));
        const int n_frame = a.n_frame;
        drafter_verdict(&a, round,
                        &(struct gr_verdict){.n_want = 63,
                                             .draft_round = round,
                                             .keep_len = (uint32_t)keep[i],
                                             .final_len = (uint32_t)a.len,
                                             .bonus = (int32_t)(5 + i),
                                             .kind = GR_VERDICT_FULL},
                        base_len);
        assert_int_equal(a.n_frame, n_frame + 1); /* one DRAFT for one VERDICT, no RESYNC */
        round++;
        t = drafted(&a, round);
        assert_tree_as_fresh(&a, &t);
        /* a plain round in between, so that the next roll-back starts from somewhere longer */
        const uint32_t plain_base = (uint32_t)a.len;
        alone_add(&a, t.token[0]);
        alone_add(&a, 12);
        drafter_verdict(&a, round,
                        &(struct gr_verdict){.n_want = 63,
                                             .draft_round = round,
                                             .keep_len = plain_base,
                                             .final_len = (uint32_t)a.len,
                                             .bonus = 12,
                                             .n_path = 1,
                                             .node = {0}},
                        plain_base);
        round++;
        t = drafted(&a, round);
        assert_tree_as_fresh(&a, &t);
        assert_true(gr_drafter_check(a.drafter));
    }
    assert_int_equal(gr_drafter_counters(a.drafter)->n_desync, 0);
    alone_destroy(&a);
}

/* A DELTA that replaces tokens whose draft KV stands: nothing of the old ones may be seen again. */
static void test_delta_replaces(void **state)
{
    (void)state;
    static const int32_t common[] = {39, 33, 32, 31, 16, 5, 0};
    for (size_t i = 0; i < GR_ARRAY_LEN(common); i++) {
        struct alone a;
        uint8_t f[1024];
        alone_create(&a);
        for (int32_t k = 0; k < 40; k++) {
            alone_add(&a, (k * 7 + 3) % N_VOCAB);
        }
        drafter_attach(&a, 1);
        a.len = common[i];
        while (a.len < 44) {
            alone_add(&a, (a.len * 5 + 1) % N_VOCAB);
        }
        const struct gr_frame_header h = {.session = 1,
                                          .epoch = 2,
                                          .round = 4,
                                          .base_len = (uint32_t)a.len,
                                          .flags = GR_DELTA_LAST | GR_DELTA_DRAFT | GR_DELTA_WANT(63),
                                          .prefix_hash = a.hash[a.len]};
        const size_t n = gr_wire_encode_delta(&h, (uint32_t)common[i], a.token + common[i],
                                              (uint32_t)(a.len - common[i]), f, sizeof(f));
        assert_int_equal(gr_drafter_on_frame(a.drafter, 7, f, n, 0), GR_OK);
        drafter_run(&a, 0);
        const struct gr_token_tree t = drafted(&a, 4);
        assert_tree_as_fresh(&a, &t);
        alone_destroy(&a);
    }
}

/* A verdict that cannot be: each leads to one RESYNC, never to a tree on a wrong prefix. */
static void test_drafter_doubts(void **state)
{
    (void)state;
    static const struct gr_verdict bad[] = {
        {.draft_round = 1, .keep_len = 40, .final_len = 41, .bonus = 9},                            /* wrong bonus */
        {.draft_round = 1, .keep_len = 41, .final_len = 41, .bonus = 8},                            /* keeps too much */
        {.draft_round = 1, .keep_len = 40, .final_len = 41, .bonus = 8, .n_path = 1, .node = {62}}, /* no such node */
        {.draft_round = 9, .keep_len = 40, .final_len = 41, .bonus = 8, .n_path = 1, .node = {0}},  /* another tree */
        {.draft_round = 1, .keep_len = 39, .final_len = 41, .bonus = 8, .n_path = 1, .node = {0}},  /* both at once */
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        struct alone a;
        alone_create(&a);
        for (int32_t k = 0; k < 40; k++) {
            alone_add(&a, (k * 7 + 3) % N_VOCAB);
        }
        drafter_attach(&a, 1);
        alone_add(&a, 8); /* what the hash says */
        const int n_frame = a.n_frame;
        drafter_verdict(&a, 1, &bad[i], 40);
        struct gr_frame_header h;
        assert_int_equal(a.n_frame, n_frame + 1);
        assert_int_equal(gr_wire_decode_header(a.frame, a.frame_len, &h), GR_OK);
        assert_int_equal(h.type, GR_FRAME_RESYNC);
        assert_int_equal(gr_drafter_counters(a.drafter)->n_desync, 1);
        /* the DELTA puts it right */
        struct gr_resync r;
        uint8_t f[1024];
        assert_int_equal(gr_wire_decode_resync(a.frame, a.frame_len, &r), GR_OK);
        const struct gr_frame_header back = {.session = 1,
                                             .epoch = 2,
                                             .round = 2,
                                             .base_len = (uint32_t)a.len,
                                             .flags = GR_DELTA_LAST | GR_DELTA_DRAFT | GR_DELTA_WANT(63),
                                             .prefix_hash = a.hash[a.len]};
        const uint32_t common = GR_MIN(r.my_len, 30u);
        const size_t n = gr_wire_encode_delta(&back, common, a.token + common, (uint32_t)a.len - common, f, sizeof(f));
        assert_int_equal(gr_drafter_on_frame(a.drafter, 7, f, n, 0), GR_OK);
        drafter_run(&a, 0);
        const struct gr_token_tree t = drafted(&a, 2);
        assert_tree_as_fresh(&a, &t);
        alone_destroy(&a);
    }
}

static void attach_again(struct alone *a, uint64_t session, uint32_t epoch, float frequency_penalty)
{
    const struct gr_msg m = {.type = GR_MSG_ATTACH,
                             .session = session,
                             .attach = {.epoch = epoch,
                                        .wishes = {.n_node = 9,
                                                   .draft_depth = 4,
                                                   .draft_top_k = 3,
                                                   .adjust = {.frequency = frequency_penalty},
                                                   .sampling = {.top_p = 1.0}},
                                        .address = "t"}};
    gr_drafter_on_msg(a->drafter, &m, 0);
}

static void finish_job(struct alone *a)
{
    struct gr_draft_job *job = a->job;
    assert_non_null(job);
    a->job = NULL;
    gr_drafter_on_job_done(a->drafter, job, 0);
    assert_true(gr_drafter_check(a->drafter));
}

/* Tells the drafter of one more token, and starts the job that it asks for. */
static void begin_job(struct alone *a, uint32_t round)
{
    uint8_t f[256];
    alone_add(a, 8);
    const struct gr_frame_header h = {.session = 1,
                                      .epoch = 2,
                                      .round = round,
                                      .base_len = (uint32_t)a->len,
                                      .flags = GR_DELTA_LAST | GR_DELTA_DRAFT | GR_DELTA_WANT(9),
                                      .prefix_hash = a->hash[a->len]};
    const size_t n = gr_wire_encode_delta(&h, (uint32_t)a->len - 1, a->token + a->len - 1, 1, f, sizeof(f));
    assert_int_equal(gr_drafter_on_frame(a->drafter, 7, f, n, 0), GR_OK);
    (void)gr_drafter_step(a->drafter, 0);
    assert_non_null(a->job);
}

static void drafter_of_40(struct alone *a)
{
    alone_create(a);
    for (int32_t k = 0; k < 40; k++) {
        alone_add(a, (k * 7 + 3) % N_VOCAB);
    }
    drafter_attach(a, 1);
    begin_job(a, 2);
}

/* An ATTACH that is refused while a job of the session runs: its slot is not another's before the job is done. */
static void test_refused_attach_during_a_job(void **state)
{
    (void)state;
    struct alone a;
    drafter_of_40(&a);
    attach_again(&a, 1, 3, 9.0f); /* the penalty is out of range */
    assert_int_equal(a.n_msg[GR_MSG_ERROR], 1);
    attach_again(&a, 2, 1, 0.0f);
    gr_drafter_on_peer_ready(a.drafter, 7, "t", 0);
    const int n_attached = a.n_msg[GR_MSG_ATTACHED];
    finish_job(&a);
    assert_int_equal(gr_drafter_n_session(a.drafter), 1);
    assert_int_equal(n_attached, 2);
    gr_drafter_on_msg(a.drafter, &(struct gr_msg){.type = GR_MSG_DETACH, .session = 2}, 0);
    assert_int_equal(gr_drafter_n_session(a.drafter), 0);
    alone_destroy(&a);
}

/* Detached during a job, and attached anew in another slot: what becomes of the old slot is no news. */
static void test_detached_says_nothing(void **state)
{
    (void)state;
    for (int what = 0; what < 2; what++) {
        struct alone a;
        drafter_of_40(&a);
        gr_drafter_on_msg(a.drafter, &(struct gr_msg){.type = GR_MSG_DETACH, .session = 1}, 0);
        assert_int_equal(a.n_msg[GR_MSG_DRAFT_STATS], 1);
        if (what == 0) {
            gr_drafter_on_peer_lost(a.drafter, 7, GR_ECLOSED, NULL);
        } else {
            a.job->status = GR_EIO;
        }
        attach_again(&a, 1, 3, 0.0f);
        finish_job(&a);
        assert_int_equal(a.n_msg[GR_MSG_ERROR], 0);
        assert_int_equal(gr_drafter_n_session(a.drafter), 1);
        alone_destroy(&a);
    }
}

/* Attached anew over the connection that there is: what was on its way to the old attachment is not taken for the new.
 */
static void test_frames_before_the_connection(void **state)
{
    (void)state;
    struct alone a;
    drafter_of_40(&a);
    finish_job(&a);
    attach_again(&a, 1, 2, 0.0f);
    const int n_frame = a.n_frame;
    uint8_t f[256];
    alone_add(&a, 8);
    alone_add(&a, 9);
    const struct gr_frame_header h = {.session = 1,
                                      .epoch = 2,
                                      .round = 4,
                                      .base_len = (uint32_t)a.len,
                                      .flags = GR_DELTA_LAST,
                                      .prefix_hash = a.hash[a.len]};
    const size_t n = gr_wire_encode_delta(&h, (uint32_t)a.len - 1, a.token + a.len - 1, 1, f, sizeof(f));
    assert_int_equal(gr_drafter_on_frame(a.drafter, 7, f, n, 0), GR_OK);
    assert_int_equal(a.n_frame, n_frame);
    gr_drafter_on_peer_ready(a.drafter, 7, "t", 0);
    assert_int_equal(a.n_msg[GR_MSG_ATTACHED], 2);
    assert_int_equal(a.n_frame, n_frame + 1);
    assert_int_equal(gr_drafter_counters(a.drafter)->n_desync, 0);
    alone_destroy(&a);
}

static void send_delta(struct alone *a, uint32_t round, const int32_t *id, uint32_t common, uint32_t n, uint64_t hash)
{
    static uint8_t f[4096];
    const struct gr_frame_header h = {
        .session = 1, .epoch = 2, .round = round, .base_len = common + n, .flags = GR_DELTA_LAST, .prefix_hash = hash};
    const size_t bytes = gr_wire_encode_delta(&h, common, id, n, f, sizeof(f));
    assert_int_equal(gr_drafter_on_frame(a->drafter, 7, f, bytes, 0), GR_OK);
}

/* A session outgrows the drafter's context, and is cut back: the drafter asks for what is left of it. */
static void test_full_and_cut_back(void **state)
{
    (void)state;
    static const int32_t many[300];
    struct alone a;
    struct gr_frame_header h;
    drafter_of_40(&a);
    finish_job(&a);
    drafter_run(&a, 0);
    send_delta(&a, 5, many, 41, 300, 0);
    const int n_frame = a.n_frame;
    send_delta(&a, 4, NULL, 30, 0, a.hash[30]); /* of before */
    send_delta(&a, 6, many, 41, 299, 0);        /* still too long */
    assert_int_equal(a.n_frame, n_frame);
    a.len = 30;
    send_delta(&a, 7, NULL, 30, 0, a.hash[30]);
    assert_int_equal(a.n_frame, n_frame + 1);
    assert_int_equal(gr_wire_decode_header(a.frame, a.frame_len, &h), GR_OK);
    assert_int_equal(h.type, GR_FRAME_RESYNC);
    assert_int_equal(h.base_len, 0);
    send_delta(&a, 7, a.token, 0, 30, a.hash[30]);
    begin_job(&a, 8);
    finish_job(&a);
    drafter_run(&a, 0);
    const struct gr_token_tree t = drafted(&a, 8);
    assert_tree_as_fresh(&a, &t);
    alone_destroy(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_judging_drafts),           cmocka_unit_test(test_deadline_of_the_first),
        cmocka_unit_test(test_drafter_follows_rollback), cmocka_unit_test(test_delta_replaces),
        cmocka_unit_test(test_drafter_doubts),           cmocka_unit_test(test_refused_attach_during_a_job),
        cmocka_unit_test(test_detached_says_nothing),    cmocka_unit_test(test_frames_before_the_connection),
        cmocka_unit_test(test_full_and_cut_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
