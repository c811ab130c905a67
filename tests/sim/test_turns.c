/* The target alone through turns: APPEND, TRUNCATE, eviction, pre-emption, opening again where KV stands, and verdicts
 * that are broken on purpose. Every text is compared with the table model's own. */
#include "common/hash.h"
#include "common/log.h"
#include "target_worker/target.h"
#include "target_worker/verifier.h"
#include "tests/sim/toy_lm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N_VOCAB 24
#define N_CTX 256
#define N_SLOT 4
#define DEADLINE 1000000

static const struct toy_config toy = {.n_vocab = N_VOCAB, .n_ctx_max = N_CTX, .n_row_max = 700, .n_out_max = 640,
                                      .n_pool_block = 24, .n_scratch_block = 4 * N_SLOT, .seed = 5, .sharpness = 6.0f};

struct text {
    int32_t token[N_CTX];
    uint64_t hash[N_CTX + 1];
    int32_t len;
};

struct world {
    struct gr_lm *lm;
    struct gr_target *target;
    struct gr_verifier *verifier;
    struct gr_pass *pass;
    struct text text[8]; /* by session: what was told by COMMIT */
    int n_msg[GR_N_MSG];
    struct gr_msg last[GR_N_MSG];
    uint32_t finish[8];
    int n_all, opened_at[8], error_at[16]; /* what was said when */
    int room;            /* COMMITs that the queue takes; -1: any number */
    void (*spoil)(struct gr_pass *pass);
    uint64_t n_row;
};

static void add(struct text *t, int32_t token)
{
    t->hash[t->len + 1] = gr_hash_extend(t->hash[t->len], token);
    t->token[t->len++] = token;
}

static void on_msg(void *ctx, const struct gr_msg *m)
{
    struct world *w = ctx;
    if (m->type == GR_MSG_OPENED) {
        w->opened_at[w->n_msg[m->type] % 8] = w->n_all;
    } else if (m->type == GR_MSG_ERROR) {
        w->error_at[w->n_msg[m->type] % 16] = w->n_all;
    }
    w->n_all++;
    w->n_msg[m->type]++;
    w->last[m->type] = *m;
    if (m->type == GR_MSG_COMMIT) {
        struct text *t = &w->text[m->session];
        assert_int_equal(m->keep_len, t->len);
        for (uint32_t i = 0; i < m->ids.n; i++) {
            add(t, m->ids.p[i]);
        }
        assert_true(m->hash == t->hash[t->len]);
        w->finish[m->session] = m->finish;
    }
}

static bool commit_room(void *ctx, int n)
{
    const struct world *w = ctx;
    return w->room < 0 || n <= w->room;
}

static void start_pass(void *ctx, struct gr_pass *pass)
{
    struct world *w = ctx;
    gr_verifier_run(w->verifier, pass);
    w->n_row += (uint64_t)pass->n_row;
    w->pass = pass;
}

static uint8_t frame[GR_WIRE_SMALL_BYTES_MAX];
static size_t frame_len;

static uint8_t *frame_begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t n)
{
    (void)ctx;
    (void)peer;
    (void)class;
    assert_true(n <= sizeof(frame));
    return frame;
}

static void frame_end(void *ctx, uint32_t peer, uint32_t n)
{
    (void)ctx;
    (void)peer;
    frame_len = n;
}

static void create_with(struct world *w, int32_t n_block, int32_t n_row_max, int32_t n_out_max)
{
    memset(w, 0, sizeof(*w));
    struct toy_config c = toy;
    c.n_pool_block = n_block;
    c.n_row_max = n_row_max;
    c.n_out_max = n_out_max;
    w->room = -1;
    w->lm = toy_lm_create(&c);
    const struct gr_target_config tc = {.n_session_max = N_SLOT, .n_ctx_max = N_CTX, .n_vocab = N_VOCAB,
                                        .n_row_max = n_row_max, .n_out_max = n_out_max, .prefill_chunk = 16,
                                        .n_pool_block = n_block, .round_deadline_ns = DEADLINE, .admit_tokens = 8};
    const struct gr_target_io io = {.ctx = w, .frame_begin = frame_begin, .frame_end = frame_end, .send_msg = on_msg,
                                    .commit_room = commit_room, .start_pass = start_pass};
    assert_int_equal(gr_target_create(&tc, &io, &w->target), GR_OK);
    assert_int_equal(gr_verifier_create(w->lm, N_SLOT, &w->verifier), GR_OK);
}

static void create(struct world *w, int32_t n_block)
{
    create_with(w, n_block, 700, 640);
}

static void destroy(struct world *w)
{
    assert_true(gr_target_check(w->target));
    gr_verifier_destroy(w->verifier);
    gr_target_destroy(w->target);
    gr_lm_destroy(w->lm);
}

/* Finishes the pass that is under way, and starts the next. False: none is. */
static bool one_pass(struct world *w, uint64_t now_ns)
{
    if (w->pass == NULL) {
        (void)gr_target_step(w->target, now_ns);
    }
    struct gr_pass *pass = w->pass;
    if (pass == NULL) {
        return false;
    }
    w->pass = NULL;
    if (w->spoil != NULL) {
        w->spoil(pass);
    }
    gr_target_on_pass_done(w->target, pass, now_ns);
    assert_true(gr_target_check(w->target));
    return true;
}

static void run(struct world *w)
{
    while (one_pass(w, 1000)) {
    }
}

static void open_with(struct world *w, uint64_t id, uint32_t epoch, const int32_t *segments, uint32_t n_segment,
                      uint32_t max_tokens)
{
    struct text *t = &w->text[id];
    const struct gr_msg m = {.type = GR_MSG_OPEN, .session = id, .epoch = epoch,
                             .ids = {t->token, (uint32_t)t->len},
                             .segments = {(int32_t *)(uintptr_t)segments, n_segment}, .max_tokens = max_tokens,
                             .top_p = 1.0};
    gr_target_on_msg(w->target, &m, 0);
}

static void open_prompt(struct world *w, uint64_t id, int32_t n, uint32_t max_tokens)
{
    struct text *t = &w->text[id];
    t->len = 0;
    for (int32_t i = 0; i < n; i++) {
        add(t, (int32_t)((7 * id + (uint64_t)(i * i)) % N_VOCAB));
    }
    open_with(w, id, 1, (int32_t[]){0, n}, 2, max_tokens);
    assert_int_equal(w->n_msg[GR_MSG_ERROR], 0);
}

static void append_to(struct world *w, uint64_t id, uint32_t epoch, int32_t keep_len, int32_t n, uint32_t max_tokens)
{
    struct text *t = &w->text[id];
    int32_t ids[N_CTX];
    const uint64_t hash = t->hash[keep_len];
    const int n_error = w->n_msg[GR_MSG_ERROR];
    for (int32_t i = 0; i < n; i++) {
        ids[i] = (3 * i + 1) % N_VOCAB;
    }
    const struct gr_msg m = {.type = GR_MSG_APPEND, .session = id, .epoch = epoch, .keep_len = (uint32_t)keep_len,
                             .hash = hash, .ids = {ids, (uint32_t)n}, .max_tokens = max_tokens};
    gr_target_on_msg(w->target, &m, 0);
    if (w->n_msg[GR_MSG_ERROR] == n_error) {
        t->len = keep_len;
        for (int32_t i = 0; i < n; i++) {
            add(t, ids[i]);
        }
    }
}

/* Tokens from `from` on are what the model says after those before them. */
static void assert_plain(const struct text *t, int32_t from)
{
    float logits[N_VOCAB], scratch[N_VOCAB];
    int32_t work[N_VOCAB];
    const struct gr_sampling greedy = {.top_p = 1.0f};
    for (int32_t i = from; i < t->len; i++) {
        toy_lm_logits(&toy, t->token, i, logits);
        assert_int_equal(t->token[i], gr_sampler_pick(&greedy, logits, N_VOCAB, (uint32_t)i, scratch, work));
    }
}

static void test_three_turns(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    open_prompt(&w, 1, 37, 20);
    run(&w);
    assert_int_equal(w.text[1].len, 57);
    assert_int_equal(w.finish[1], GR_FINISH_LENGTH);
    assert_plain(&w.text[1], 37);
    uint64_t n_row = w.n_row;
    append_to(&w, 1, 1, 57, 10, 15);
    assert_int_equal(w.n_msg[GR_MSG_OPENED], 2);
    assert_int_equal(w.last[GR_MSG_OPENED].usable_len, 56); /* the last token had no KV yet */
    assert_int_equal(w.last[GR_MSG_OPENED].cache_hit, 1);
    run(&w);
    assert_int_equal(w.text[1].len, 82);
    assert_plain(&w.text[1], 67);
    assert_int_equal(w.n_row - n_row, 11 + 14); /* no token twice */
    append_to(&w, 1, 1, 40, 3, 9); /* back into the first turn, and on from there */
    assert_int_equal(w.last[GR_MSG_OPENED].usable_len, 40);
    run(&w);
    assert_int_equal(w.text[1].len, 52);
    assert_plain(&w.text[1], 43);
    assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
    gr_target_on_msg(w.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = 1}, 0);
    assert_int_equal(w.n_msg[GR_MSG_CLOSED], 1);
    destroy(&w);
}

/* APPEND without ids goes on where a limit stopped. */
static void test_go_on(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    open_prompt(&w, 1, 20, 7);
    run(&w);
    const uint64_t n_row = w.n_row;
    append_to(&w, 1, 1, 27, 0, 9);
    run(&w);
    assert_int_equal(w.text[1].len, 36);
    assert_int_equal(w.n_row - n_row, 9);
    assert_plain(&w.text[1], 20);
    destroy(&w);
}

static void expect_error(struct world *w, int *n, const char *what)
{
    assert_int_equal(w->n_msg[GR_MSG_ERROR], ++*n);
    assert_non_null(strstr(w->last[GR_MSG_ERROR].text, what));
}

static void test_bad_appends(void **state)
{
    (void)state;
    struct world w;
    int n = 0;
    create(&w, 24);
    open_prompt(&w, 1, 20, 10);
    append_to(&w, 1, 1, 20, 1, 5);
    expect_error(&w, &n, "in a turn");
    run(&w);
    append_to(&w, 2, 1, 0, 5, 5);
    expect_error(&w, &n, "unknown session");
    append_to(&w, 1, 2, 30, 5, 5);
    expect_error(&w, &n, "epoch 1, not 2");
    w.text[1].hash[25] ^= 1;
    append_to(&w, 1, 1, 25, 5, 5);
    expect_error(&w, &n, "are others here");
    append_to(&w, 1, 1, 31, 5, 5);
    expect_error(&w, &n, "are others here");
    append_to(&w, 1, 1, 30, N_CTX - 30, 5);
    expect_error(&w, &n, "the context holds 256");
    append_to(&w, 1, 1, 30, 2, 0);
    expect_error(&w, &n, "max_tokens");
    append_to(&w, 1, 1, 30, 2, 5); /* it stands as it stood */
    run(&w);
    assert_int_equal(w.text[1].len, 37);
    assert_plain(&w.text[1], 32);
    open_with(&w, 1, 1, (int32_t[]){0, 37}, 2, 5);
    expect_error(&w, &n, "open already"); /* not a later epoch */
    w.text[3].len = 0;
    add(&w.text[3], 1);
    open_with(&w, 3, 1, (int32_t[]){0, 2}, 2, 5);
    expect_error(&w, &n, "do not add up");
    open_with(&w, 3, 1, (int32_t[]){3, 1}, 2, 5);
    expect_error(&w, &n, "a segment's kind");
    destroy(&w);
}

/* TRUNCATE at any moment, also during a pass, prompt chunks included; the turn that follows is right. */
static void test_truncate_anywhere(void **state)
{
    (void)state;
    for (int after = 0; after < 14; after++) {
        for (int during = 0; during < 2; during++) {
            struct world w;
            create(&w, 24);
            open_prompt(&w, 1, 50, 30);
            for (int i = 0; i < after; i++) {
                one_pass(&w, 1000);
            }
            if (during != 0) {
                (void)gr_target_step(w.target, 1000);
            }
            const int32_t len = w.text[1].len;
            const int32_t keep = GR_MAX(len - 3, 1);
            gr_target_on_msg(w.target, &(struct gr_msg){.type = GR_MSG_TRUNCATE, .session = 1, .epoch = 9,
                                                        .keep_len = 1}, 0); /* of another epoch: nothing */
            gr_target_on_msg(w.target, &(struct gr_msg){.type = GR_MSG_TRUNCATE, .session = 1, .epoch = 1,
                                                        .keep_len = (uint32_t)keep}, 0);
            if (during != 0) {
                one_pass(&w, 1000);
            }
            assert_int_equal(w.text[1].len, len); /* the round that was under way does not count */
            assert_false(one_pass(&w, 1000));
            append_to(&w, 1, 1, keep, 4, 6);
            assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
            run(&w);
            assert_int_equal(w.text[1].len, keep + 10);
            assert_plain(&w.text[1], keep + 4);
            destroy(&w);
        }
    }
}

static void truncate_to(struct world *w, uint64_t id, int32_t keep_len)
{
    gr_target_on_msg(w->target, &(struct gr_msg){.type = GR_MSG_TRUNCATE, .session = id, .epoch = 1,
                                                 .keep_len = (uint32_t)keep_len}, 0);
}

/* APPEND right behind a TRUNCATE, while the pass still runs: held, answered when it is done, and no KV is lost. */
static void test_append_meets_a_pass(void **state)
{
    (void)state;
    for (int after = 0; after < 14; after++) {
        for (int fails = 0; fails < 2; fails++) {
            struct world w;
            create(&w, 24);
            open_prompt(&w, 1, 50, 30);
            for (int i = 0; i < after; i++) {
                one_pass(&w, 1000);
            }
            (void)gr_target_step(w.target, 1000);
            const int32_t keep = GR_MAX(w.text[1].len - 3, 1);
            truncate_to(&w, 1, keep);
            append_to(&w, 1, 1, keep, 4, 6);
            assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
            assert_int_equal(w.n_msg[GR_MSG_OPENED], 1);
            w.pass->status = fails != 0 ? GR_EIO : GR_OK; /* of a round that does not count */
            one_pass(&w, 1000);
            assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
            assert_int_equal(w.n_msg[GR_MSG_OPENED], 2);
            const int32_t computed = after < 4 ? 16 * (after + 1 - fails) : w.text[1].len;
            assert_int_equal(w.last[GR_MSG_OPENED].usable_len, GR_MIN(computed, keep));
            run(&w);
            assert_int_equal(w.text[1].len, keep + 10);
            assert_plain(&w.text[1], keep + 4);
            destroy(&w);
        }
    }
}

/* And that turn is stopped, too, before it began; or the session is closed; or it does not fit. */
static void test_held_append_ends(void **state)
{
    (void)state;
    struct world w;
    int n = 0;
    create(&w, 24);
    open_prompt(&w, 1, 20, 30);
    one_pass(&w, 1000);
    one_pass(&w, 1000);
    one_pass(&w, 1000);
    (void)gr_target_step(w.target, 1000);
    truncate_to(&w, 1, 21);
    append_to(&w, 1, 1, 22, 4, 6);
    expect_error(&w, &n, "are others here, where 21 are committed");
    append_to(&w, 1, 1, 21, N_CTX - 21, 6);
    expect_error(&w, &n, "the context holds");
    append_to(&w, 1, 1, 21, 4, 6);
    truncate_to(&w, 1, 24);
    struct text before = w.text[1];
    append_to(&w, 1, 1, 24, 4, 6); /* one is held: this one is refused, but not before that is answered */
    open_with(&w, 1, 2, (int32_t[]){0, w.text[1].len}, 2, 5); /* and so is this */
    w.text[1] = before;
    assert_int_equal(w.n_msg[GR_MSG_ERROR], n);
    w.last[GR_MSG_ERROR].text[0] = '\0';
    one_pass(&w, 1000);
    assert_int_equal(w.n_msg[GR_MSG_OPENED], 2);
    assert_int_equal(w.opened_at[1], w.error_at[n] - 1);
    n++;
    expect_error(&w, &n, "in a turn");
    assert_false(one_pass(&w, 1000));
    append_to(&w, 1, 1, 24, 4, 6);
    (void)gr_target_step(w.target, 1000);
    truncate_to(&w, 1, 10);
    append_to(&w, 1, 1, 10, 4, 6);
    assert_int_equal(w.n_msg[GR_MSG_ERROR], n);
    gr_target_on_msg(w.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = 1}, 0);
    one_pass(&w, 1000);
    expect_error(&w, &n, "closed");
    assert_int_equal(w.n_msg[GR_MSG_CLOSED], 1);
    assert_int_equal(gr_target_n_session(w.target), 0);
    /* who asked for it is gone */
    open_with(&w, 1, 5, (int32_t[]){0, w.text[1].len}, 2, 9);
    (void)gr_target_step(w.target, 1000);
    gr_target_on_msg(w.target, &(struct gr_msg){.type = GR_MSG_TRUNCATE, .session = 1, .epoch = 5, .keep_len = 9}, 0);
    append_to(&w, 1, 5, 9, 4, 6);
    gr_target_on_orchestrator_lost(w.target, 1000);
    one_pass(&w, 1000);
    assert_false(one_pass(&w, 1000));
    assert_int_equal(w.n_msg[GR_MSG_OPENED], 4);
    destroy(&w);
}

/* Idle sessions make room: the least recently used goes first, and its KV is computed again when it comes back. */
static void test_eviction(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24); /* 384 tokens */
    for (uint64_t id = 1; id <= N_SLOT; id++) {
        open_prompt(&w, id, 40, 10);
        run(&w);
    }
    assert_int_equal(w.n_msg[GR_MSG_EVICTED], 0);
    open_prompt(&w, 5, 40, 10); /* no slot is free */
    assert_int_equal(w.n_msg[GR_MSG_EVICTED], 1);
    assert_int_equal(w.last[GR_MSG_EVICTED].session, 1);
    run(&w);
    open_prompt(&w, 6, 240, 10); /* no blocks are */
    run(&w);
    assert_int_equal(w.text[6].len, 250);
    assert_plain(&w.text[6], 240);
    assert_true(w.n_msg[GR_MSG_EVICTED] >= 3);
    int n = 0;
    append_to(&w, 2, 1, 50, 2, 5);
    expect_error(&w, &n, "unknown session");
    add(&w.text[2], 4); /* opened again with the transcript */
    open_with(&w, 2, 2, (int32_t[]){0, 40, 1, 10, 2, 1}, 6, 12);
    assert_int_equal(w.last[GR_MSG_OPENED].cache_hit, 0);
    run(&w);
    assert_int_equal(w.text[2].len, 63);
    assert_plain(&w.text[2], 51);
    destroy(&w);
}

/* Opened again as a later epoch where the KV stands: nothing that is common is computed twice. */
static void test_cache_hit(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    open_prompt(&w, 1, 60, 20);
    for (int i = 0; i < 9; i++) {
        one_pass(&w, 1000);
    }
    gr_target_on_orchestrator_lost(w.target, 1000);
    run(&w);
    struct text *t = &w.text[1];
    const int32_t n_generated = t->len - 60;
    assert_in_range(n_generated, 3, 19);
    const uint64_t n_row = w.n_row;
    open_with(&w, 1, 2, (int32_t[]){0, 60, 1, n_generated}, 4, (uint32_t)(20 - n_generated));
    assert_int_equal(w.last[GR_MSG_OPENED].cache_hit, 1);
    assert_int_equal(w.last[GR_MSG_OPENED].usable_len, t->len - 1);
    run(&w);
    assert_int_equal(t->len, 80);
    assert_int_equal(w.n_row - n_row, 20 - n_generated);
    assert_plain(t, 60);
    destroy(&w);
}

/* A re-opened session computes prompt and generated tokens in passes of their own. */
static const uint8_t *replay_kind;
static int n_replay_row;

static void watch_replay(struct gr_pass *pass)
{
    for (int i = 0; i < pass->n_seq; i++) {
        const struct gr_pass_seq *q = &pass->seq[i];
        for (int r = 0; q->kind == GR_PASS_PREFILL && r < q->n_row; r++) {
            assert_int_equal(q->replay, replay_kind[q->pos0 + r] == 1);
            n_replay_row += q->replay;
        }
    }
}

static void test_segments(void **state)
{
    (void)state;
    struct world w;
    static uint8_t kind[N_CTX];
    create(&w, 24);
    for (int i = 0; i < 90; i++) {
        kind[i] = i < 20 ? 0 : i < 55 ? 1 : i < 60 ? 2 : 1;
        add(&w.text[1], (i * 5 + 3) % N_VOCAB);
    }
    replay_kind = kind;
    n_replay_row = 0;
    w.spoil = watch_replay;
    open_with(&w, 1, 3, (int32_t[]){0, 20, 1, 35, 2, 5, 1, 30}, 8, 10);
    run(&w);
    assert_int_equal(n_replay_row, 35 + 29); /* the last one is the tail */
    assert_int_equal(w.text[1].len, 100);
    assert_plain(&w.text[1], 90);
    destroy(&w);
}

/* More sessions than blocks: the youngest yields, comes back, and all texts are right. */
static void test_preemption(void **state)
{
    (void)state;
    for (int32_t n_block = 8; n_block < 20; n_block++) {
        struct world w;
        create(&w, n_block);
        for (uint64_t id = 1; id <= N_SLOT; id++) {
            open_prompt(&w, id, 25 + (int32_t)id, 80);
        }
        run(&w);
        for (uint64_t id = 1; id <= N_SLOT; id++) {
            assert_int_equal(w.text[id].len, 105 + (int32_t)id);
            assert_plain(&w.text[id], 25 + (int32_t)id);
        }
        assert_true(n_block > 16 || gr_target_counters(w.target)->n_preempted > 0 ||
                    gr_target_counters(w.target)->n_evicted > 0);
        destroy(&w);
    }
}

/* A full COMMIT queue pauses sessions, not passes; nothing is lost. */
static void test_commit_queue(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    open_prompt(&w, 1, 20, 10);
    open_prompt(&w, 2, 20, 10);
    w.room = 1;
    for (int i = 0; i < 6; i++) {
        assert_true(one_pass(&w, 1000));
    }
    w.room = 0;
    (void)one_pass(&w, 1000);
    assert_false(one_pass(&w, 1000));
    assert_true(gr_target_counters(w.target)->n_paused > 0);
    w.room = -1;
    run(&w);
    for (uint64_t id = 1; id <= 2; id++) {
        assert_int_equal(w.text[id].len, 30);
        assert_plain(&w.text[id], 20);
    }
    destroy(&w);
}

/* ---- verdicts that are broken on purpose ---- */

static int spoil_kind;

static void spoil_walk(struct gr_pass *pass)
{
    for (int i = 0; i < pass->n_seq; i++) {
        struct gr_pass_seq *q = &pass->seq[i];
        if (q->kind != GR_PASS_TREE) {
            continue;
        }
        switch (spoil_kind) {
        case 0:
            q->walk.n_path = q->tree.n + 1;
            break;
        case 1:
            q->walk.n_path = 1;
            q->walk.node[0] = 1; /* no child of the tail */
            break;
        case 2:
            q->walk.bonus = (q->walk.bonus + 1) % N_VOCAB;
            break;
        case 3:
            q->walk.n_path = -1;
            break;
        case 4:
            q->tree.token[0] = (q->pick[0] + 1) % N_VOCAB; /* a node that was not picked, accepted */
            q->walk.n_path = 1;
            q->walk.node[0] = 0;
            break;
        default:
            pass->status = GR_EIO;
            break;
        }
    }
}

static void send_tree(struct world *w, uint32_t round, uint64_t now_ns)
{
    uint8_t f[256];
    const struct text *t = &w->text[1];
    const struct gr_frame_header h = {.session = 1, .epoch = 1, .round = round, .base_len = (uint32_t)t->len,
                                      .prefix_hash = t->hash[t->len]};
    const struct gr_token_tree tree = {.n = 3, .token = {1, 2, 3}, .parent = {-1, 0, -1}};
    const size_t n = gr_wire_encode_draft(&h, &tree, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w->target, 7, f, n, now_ns), GR_OK);
}

static void test_broken_verdicts(void **state)
{
    (void)state;
    gr_log_set_level(GR_LOG_ERROR);
    for (spoil_kind = 0; spoil_kind < 6; spoil_kind++) {
        struct world w;
        uint8_t f[64];
        create(&w, 24);
        struct text *t = &w.text[1];
        for (int i = 0; i < 20; i++) {
            add(t, i);
        }
        const struct gr_msg m = {.type = GR_MSG_OPEN, .session = 1, .epoch = 1, .ids = {t->token, 20},
                                 .segments = {(int32_t[]){0, 20}, 2}, .max_tokens = 30, .want_draft = 1, .n_node = 8,
                                 .top_p = 1.0};
        gr_target_on_msg(w.target, &m, 0);
        const struct gr_frame_header h = {.session = 1, .epoch = 1};
        const size_t n = gr_wire_encode_resync(&h, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
        assert_int_equal(gr_target_on_frame(w.target, 7, f, n, 0), GR_OK);
        run(&w); /* the prompt; then it waits */
        assert_int_equal(t->len, 21);
        w.spoil = spoil_walk;
        send_tree(&w, 1, 2000);
        run(&w); /* the tree, broken; then single tokens to the end, without waiting */
        const struct gr_target_counters *c = gr_target_counters(w.target);
        assert_int_equal(c->n_fault, 1);
        assert_int_equal(c->n_tree_round, 0);
        assert_int_equal(c->n_root_round, 29);
        assert_int_equal(t->len, 50);
        assert_int_equal(w.finish[1], GR_FINISH_LENGTH);
        assert_plain(t, 20);
        assert_int_equal(w.n_msg[GR_MSG_ERROR], 0);
        destroy(&w);
    }
    gr_log_set_level(GR_LOG_WARN);
}

/* A session whose drafter is attached: 20 tokens of prompt and the first of the answer. */
static void open_with_drafter(struct world *w)
{
    uint8_t f[64];
    struct text *t = &w->text[1];
    for (int i = 0; i < 20; i++) {
        add(t, i);
    }
    const struct gr_msg m = {.type = GR_MSG_OPEN, .session = 1, .epoch = 1, .ids = {t->token, 20},
                             .segments = {(int32_t[]){0, 20}, 2}, .max_tokens = 100, .want_draft = 1, .n_node = 63,
                             .top_p = 1.0};
    gr_target_on_msg(w->target, &m, 0);
    const struct gr_frame_header h = {.session = 1, .epoch = 1};
    const size_t n = gr_wire_encode_resync(&h, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w->target, 7, f, n, 0), GR_OK);
    run(w);
    assert_int_equal(t->len, 21);
}

/* A drafter that comes while a tree of another is verified never saw that tree: it is told the tokens, not the nodes.
 */
static void test_resync_during_a_pass(void **state)
{
    (void)state;
    struct world w;
    struct gr_frame_header h;
    uint8_t f[128];
    create(&w, 24);
    open_with_drafter(&w);
    const struct text *t = &w.text[1];
    float logits[N_VOCAB];
    toy_lm_logits(&toy, t->token, t->len, logits);
    struct gr_token_tree tree = {.n = 1, .parent = {-1}};
    for (int i = 1; i < N_VOCAB; i++) { /* a node that is accepted */
        tree.token[0] = logits[i] > logits[tree.token[0]] ? i : tree.token[0];
    }
    const struct gr_frame_header d = {.session = 1, .epoch = 1, .round = 1, .base_len = (uint32_t)t->len,
                                      .prefix_hash = t->hash[t->len]};
    size_t n = gr_wire_encode_draft(&d, &tree, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w.target, 7, f, n, 2000), GR_OK);
    (void)gr_target_step(w.target, 2000);
    assert_non_null(w.pass);
    const struct gr_frame_header r = {.session = 1, .epoch = 1};
    n = gr_wire_encode_resync(&r, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w.target, 8, f, n, 3000), GR_OK);
    const int32_t told = t->len;
    one_pass(&w, 4000);
    assert_int_equal(t->len, told + 2);
    assert_int_equal(gr_wire_decode_header(frame, frame_len, &h), GR_OK);
    assert_int_equal(h.type, GR_FRAME_DELTA);
    assert_int_equal(h.base_len, t->len);
    assert_true((h.flags & GR_DELTA_DRAFT) != 0);
    destroy(&w);
}

/* A drafter that begins anew again and again, before each deadline, holds a round up for a while, not for ever. */
static void test_endless_resyncs(void **state)
{
    (void)state;
    gr_log_set_level(GR_LOG_ERROR);
    for (int desyncs = 0; desyncs < 2; desyncs++) {
        struct world w;
        uint8_t f[128];
        uint64_t now_ns = 1000;
        create(&w, 24);
        open_with_drafter(&w);
        const struct text *t = &w.text[1];
        for (int i = 0; i < 100; i++) {
            now_ns += DEADLINE / 2;
            if (desyncs != 0) { /* a tree on another prefix each time */
                const struct gr_frame_header d = {.session = 1, .epoch = 1, .round = 100, .base_len = (uint32_t)t->len,
                                                  .prefix_hash = 1};
                const size_t n = gr_wire_encode_draft(&d, &(struct gr_token_tree){.n = 0}, f, sizeof(f));
                assert_int_equal(gr_target_on_frame(w.target, 7, f, n, now_ns), GR_OK);
            }
            const struct gr_frame_header r = {.session = 1, .epoch = 1};
            const size_t n =
                gr_wire_encode_resync(&r, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
            assert_int_equal(gr_target_on_frame(w.target, 7, f, n, now_ns), GR_OK);
            (void)one_pass(&w, now_ns);
        }
        assert_true(t->len >= 21 + 100 / (2 * 3) - 1); /* three deadlines a round at most */
        destroy(&w);
    }
    gr_log_set_level(GR_LOG_WARN);
}

/* The largest tree enters a pass of a worker that is as small as may be. */
static void test_largest_tree_smallest_pass(void **state)
{
    (void)state;
    struct world w;
    uint8_t f[1024];
    struct gr_token_tree tree = {.n = GR_NODE_MAX};
    create_with(&w, 24, 16 + GR_TREE_MAX, GR_TREE_MAX + 1);
    open_with_drafter(&w);
    for (int i = 0; i < tree.n; i++) {
        tree.token[i] = i % N_VOCAB;
        tree.parent[i] = (int16_t)(i - 1);
    }
    const struct text *t = &w.text[1];
    const struct gr_frame_header h = {.session = 1, .epoch = 1, .round = 1, .base_len = (uint32_t)t->len,
                                      .prefix_hash = t->hash[t->len]};
    const size_t n = gr_wire_encode_draft(&h, &tree, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w.target, 7, f, n, 2000), GR_OK);
    assert_true(one_pass(&w, 2000));
    assert_int_equal(gr_target_counters(w.target)->n_tree_round, 1);
    assert_plain(t, 20);
    destroy(&w);
}

/* A turn is cut while its tree is verified and goes on without a new token: the tree of the new turn is no replay of
 * the one that was cut, for neither side. */
static void test_same_prefix_next_turn(void **state)
{
    (void)state;
    for (int during = 0; during < 2; during++) {
        struct world w;
        struct gr_frame_header h;
        create(&w, 24);
        open_with_drafter(&w);
        if (during != 0) {
            send_tree(&w, 1, 2000);
            (void)gr_target_step(w.target, 2000);
            assert_non_null(w.pass);
        }
        truncate_to(&w, 1, 21);
        if (during != 0) {
            one_pass(&w, 3000);
        }
        append_to(&w, 1, 1, 21, 0, 6);
        assert_false(one_pass(&w, 4000)); /* it waits for a tree */
        assert_int_equal(gr_wire_decode_header(frame, frame_len, &h), GR_OK);
        assert_int_equal(h.type, GR_FRAME_DELTA);
        assert_true((h.flags & GR_DELTA_DRAFT) != 0);
        assert_true(h.round > 1); /* the drafter has answered round 1 */
        send_tree(&w, h.round, 5000);
        assert_true(one_pass(&w, 6000));
        assert_int_equal(gr_target_counters(w.target)->n_tree_round, 1);
        assert_int_equal(gr_target_counters(w.target)->n_draft_stale, 0);
        destroy(&w);
    }
}

static bool saw_gap;

static void watch_gap(struct gr_pass *pass)
{
    saw_gap = pass->seq[0].want_gap;
}

/* Each turn says whether it wants to be traced. */
static void test_trace_of_a_turn(void **state)
{
    (void)state;
    struct world w;
    create(&w, 24);
    open_prompt(&w, 1, 20, 10);
    w.spoil = watch_gap;
    run(&w);
    assert_false(saw_gap);
    for (int traced = 1; traced >= 0; traced--) {
        struct text *t = &w.text[1];
        const struct gr_msg m = {.type = GR_MSG_APPEND, .session = 1, .epoch = 1, .keep_len = (uint32_t)t->len,
                                 .hash = t->hash[t->len], .max_tokens = 4, .want_trace = (uint32_t)traced};
        gr_target_on_msg(w.target, &m, 0);
        run(&w);
        assert_int_equal(saw_gap, traced);
    }
    destroy(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_three_turns),  cmocka_unit_test(test_go_on),
        cmocka_unit_test(test_bad_appends),  cmocka_unit_test(test_truncate_anywhere),
        cmocka_unit_test(test_append_meets_a_pass), cmocka_unit_test(test_held_append_ends),
        cmocka_unit_test(test_eviction),     cmocka_unit_test(test_cache_hit),
        cmocka_unit_test(test_segments),     cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_commit_queue), cmocka_unit_test(test_broken_verdicts),
        cmocka_unit_test(test_endless_resyncs),
        cmocka_unit_test(test_resync_during_a_pass), cmocka_unit_test(test_largest_tree_smallest_pass),
        cmocka_unit_test(test_same_prefix_next_turn), cmocka_unit_test(test_trace_of_a_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
