/* Named properties of the pair, on the simulation with table models: exact rewinds, block tables, cuts in the middle of a
 * path, limits, refusals, hostile and replayed frames, and the distribution of what speculation samples. */
#include "common/hash.h"
#include "draft_worker/grower.h"
#include "target_worker/verifier.h"
#include "tests/sim/sim.h"
#include "tests/sim/toy_lm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_VOCAB 24
#define LIMIT_NS (1000000ull * 1000000000ull)
#define PLAIN 0     /* no drafter */
#define PERFECT 1   /* the drafter has the target's table */
#define BLURRED 2   /* wrong in one context of three */
#define OPPOSITE 3  /* likes best what the target likes least */

static uint64_t draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

/* ---- a pair ---- */

struct pair_config {
    uint64_t seed;
    int n_ctx, n_session, n_pool_block; /* 0: defaults */
    int drafter, n_ctx_draft, n_pool_block_draft, memory;
    int n_vocab;
    float sharpness;
    bool delays;
};

struct pair {
    struct gr_lm *target_lm, *draft_lm;
    struct toy_config table; /* the target's */
    struct sim *sim;
};

static struct pair pair_create(const struct pair_config *c)
{
    struct pair p = {0};
    const int n_ctx = c->n_ctx > 0 ? c->n_ctx : 512;
    const int n_session = c->n_session > 0 ? c->n_session : 8;
    p.table = (struct toy_config){
        .n_vocab = c->n_vocab > 0 ? c->n_vocab : N_VOCAB, .n_ctx_max = n_ctx, .n_row_max = 700, .n_out_max = 640,
        .n_pool_block = c->n_pool_block > 0 ? c->n_pool_block : n_session * (n_ctx / 16 + 1),
        .n_scratch_block = n_session * 16, .seed = c->seed, .memory = c->memory,
        .sharpness = c->sharpness > 0.0f ? c->sharpness : 6.0f};
    p.target_lm = toy_lm_create(&p.table);
    if (c->drafter != PLAIN) {
        struct toy_config d = p.table;
        d.n_ctx_max = c->n_ctx_draft > 0 ? c->n_ctx_draft : n_ctx;
        d.n_pool_block = c->n_pool_block_draft > 0 ? c->n_pool_block_draft : n_session * (n_ctx / 16 + 1);
        d.sharpness *= c->drafter == OPPOSITE ? -1.0f : 1.0f;
        d.blur_seed = c->drafter == BLURRED ? c->seed + 99 : 0;
        d.blur = 3;
        p.draft_lm = toy_lm_create(&d);
    }
    p.sim = sim_create(&(struct sim_config){
        .seed = c->seed, .target_lm = p.target_lm, .draft_lm = p.draft_lm, .n_session_max = n_session,
        .prefill_chunk = 16, .round_deadline_ns = 1000000000, .msg_delay_ns = 1000,
        .frame_delay_ns = c->delays ? 300000 : 0, .pass_ns = c->delays ? 200000 : 1000,
        .job_ns = c->delays ? 400000 : 1000});
    return p;
}

static void pair_destroy(struct pair *p)
{
    assert_true(gr_target_check(sim_target(p->sim)));
    if (sim_drafter(p->sim) != NULL) {
        assert_true(gr_drafter_check(sim_drafter(p->sim)));
    }
    sim_destroy(p->sim);
    gr_lm_destroy(p->target_lm);
    gr_lm_destroy(p->draft_lm);
}

static int32_t prompt_token[1 << 14];

/* A request with a prompt that depends on `which`, a dynamic tree of 12 nodes, greedy. */
static struct gr_session_request request(int which, uint32_t n_prompt, uint32_t max_tokens)
{
    int32_t *prompt = prompt_token + which * 1024;
    uint64_t rng = (uint64_t)which + 1;
    for (uint32_t i = 0; i < n_prompt && i < 1024; i++) {
        prompt[i] = (int32_t)draw(&rng, N_VOCAB);
    }
    return (struct gr_session_request){.prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens,
                                       .sampling = {.top_p = 1.0f, .seed = (uint64_t)which + 5},
                                       .want_draft = true, .n_node = 12, .draft_depth = 5, .draft_top_k = 3};
}

static void chain(struct gr_session_request *r, uint32_t n_node)
{
    r->tree_shape = GR_SHAPE_CHAIN;
    r->n_node = n_node;
}

static void assert_same(const struct sim *a, const struct sim *b, int i)
{
    const struct sim_result *x = sim_result(a, i);
    const struct sim_result *y = sim_result(b, i);
    assert_true(x->done && y->done);
    assert_int_equal(x->finish, y->finish);
    assert_int_equal(x->n_token, y->n_token);
    assert_memory_equal(x->token, y->token, x->n_token * sizeof(int32_t));
}

/* Plain decoding of the same requests; the caller destroys it. */
static struct pair plain_run(const struct pair_config *c, const struct gr_session_request *r, int n)
{
    struct pair_config plain = *c;
    plain.drafter = PLAIN;
    plain.delays = false;
    plain.n_pool_block = 0;
    plain.n_session = c->n_session > n ? c->n_session : n;
    struct pair p = pair_create(&plain);
    for (int i = 0; i < n; i++) {
        (void)sim_submit(p.sim, &r[i]);
    }
    assert_true(sim_run(p.sim, LIMIT_NS));
    return p;
}

static void submit_all(struct pair *p, const struct gr_session_request *r, int n)
{
    for (int i = 0; i < n; i++) {
        (void)sim_submit(p->sim, &r[i]);
    }
}

/* ---- exact lengths ---- */

struct watch {
    const int32_t *plain; /* prompt and plain decoding's text */
    int32_t n_plain;
    int32_t block[2048];  /* plain decoding's block table */
    int32_t n_block;
    int n_round, n_accepted_round, n_rewound, last_len;
};

/* What the walk must say: how far plain decoding's own text lies in the tree. */
static int expected_path(const struct watch *w, const struct gr_pass_seq *q, int base_len)
{
    int node = -1;
    int n = 0;
    for (;;) {
        int child = -1;
        for (int i = 0; i < q->tree.n; i++) {
            child = q->tree.parent[i] == node && q->tree.token[i] == w->plain[base_len + n] ? i : child;
        }
        if (child < 0 || base_len + n + 1 >= w->n_plain) {
            return n;
        }
        node = child;
        n++;
    }
}

static void watch_pass(struct sim *s, void *arg)
{
    struct watch *w = arg;
    const int32_t *token;
    const struct gr_kv_table *table;
    int32_t len = 0;
    int32_t kv_len = 0;
    if (!gr_target_peek(sim_target(s), sim_session(s, 0), &token, &len, &kv_len, &table)) {
        return;
    }
    const struct gr_pass_seq *q = &sim_pass(s)->seq[0];
    if (q->kind != GR_PASS_PREFILL) {
        const int base_len = q->pos0 + 1;
        const int n_path = expected_path(w, q, base_len);
        assert_int_equal(base_len, w->last_len);
        assert_int_equal(q->walk.n_path, n_path);
        assert_int_equal(len, base_len + n_path + 1); /* the path, then the bonus */
        assert_int_equal(kv_len, base_len + n_path);
        w->n_round++;
        w->n_accepted_round += n_path > 0;
        w->n_rewound += q->tree.n > n_path;
    }
    if (q->kind != GR_PASS_PREFILL || q->want_pick) {
        assert_int_equal(kv_len, len - 1);
        w->last_len = len;
    }
    /* plain decoding's blocks, all of them and no more */
    assert_int_equal(table->n_block, (kv_len + 15) / 16);
    assert_true(table->n_block <= w->n_block);
    assert_memory_equal(table->block, w->block, (size_t)table->n_block * sizeof(int32_t));
    assert_memory_equal(token, w->plain, (size_t)len * sizeof(int32_t));
    assert_true(gr_target_check(sim_target(s)));
    assert_true(gr_drafter_check(sim_drafter(s)));
}

static void keep_table(struct sim *s, void *arg)
{
    struct watch *w = arg;
    const int32_t *token;
    const struct gr_kv_table *table;
    int32_t len = 0;
    int32_t kv_len = 0;
    if (gr_target_peek(sim_target(s), sim_session(s, 0), &token, &len, &kv_len, &table)) {
        w->n_block = table->n_block;
        memcpy(w->block, table->block, (size_t)table->n_block * sizeof(int32_t));
    }
}

/* Runs one session plain and speculative and compares after every round. */
static void watched_run(const struct pair_config *c, struct gr_session_request r, struct watch *w)
{
    static int32_t text[1 << 15];
    struct pair_config pc = *c;
    pc.drafter = PLAIN;
    struct pair plain = pair_create(&pc);
    memset(w, 0, sizeof(*w));
    sim_on_pass(plain.sim, keep_table, w);
    submit_all(&plain, &r, 1);
    assert_true(sim_run(plain.sim, LIMIT_NS));
    const struct sim_result *result = sim_result(plain.sim, 0);
    memcpy(text, r.prompt, r.n_prompt * sizeof(int32_t));
    memcpy(text + r.n_prompt, result->token, result->n_token * sizeof(int32_t));
    w->plain = text;
    w->n_plain = (int32_t)(r.n_prompt + result->n_token);
    struct pair spec = pair_create(c);
    sim_on_pass(spec.sim, watch_pass, w);
    submit_all(&spec, &r, 1);
    assert_true(sim_run(spec.sim, LIMIT_NS));
    assert_same(plain.sim, spec.sim, 0);
    assert_int_equal(w->last_len, w->n_plain);
    assert_int_equal(sim_result(spec.sim, 0)->metrics.rounds, w->n_round);
    assert_int_equal(gr_target_n_session(sim_target(spec.sim)), 0);
    pair_destroy(&plain);
    pair_destroy(&spec);
}

static void test_exact_rewinds(void **state)
{
    (void)state;
    static struct watch w;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        for (int shape = 0; shape < 4; shape++) {
            struct gr_session_request r = request(0, 1 + (uint32_t)seed * 7, 150);
            r.sampling.temperature = seed % 3 == 0 ? 0.8f : 0.0f;
            if (shape > 0) {
                chain(&r, shape == 1 ? 1 : shape == 2 ? 5 : 63);
            }
            watched_run(&(struct pair_config){.seed = seed, .drafter = BLURRED, .delays = seed % 2 == 0}, r, &w);
            assert_true(w.n_accepted_round > 5 && w.n_rewound > 5);
        }
    }
}

/* Block tables and lengths equal plain decoding's, over more than 2,000 rounds. */
static void test_2000_rounds(void **state)
{
    (void)state;
    static struct watch w;
    struct gr_session_request r = request(0, 33, 6000);
    r.n_node = 6;
    r.draft_depth = 3;
    watched_run(&(struct pair_config){.seed = 4, .n_ctx = 6144, .n_session = 2, .drafter = BLURRED}, r, &w);
    print_message("# %d rounds, %d with accepted nodes, %d with a rewind\n", w.n_round, w.n_accepted_round, w.n_rewound);
    assert_true(w.n_round >= 2000 && w.n_accepted_round > 1000 && w.n_rewound > 1000);
}

/* ---- no drafter, perfect drafter, hopeless drafter ---- */

static void test_no_drafter_no_counter(void **state)
{
    (void)state;
    struct gr_session_request r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = request(i, 20, 60); /* want_draft is set all the same */
    }
    struct pair p = plain_run(&(struct pair_config){.seed = 3}, r, 4);
    const struct gr_target_counters *c = sim_target_counters(p.sim);
    assert_int_equal(c->n_tree_round + c->n_draft_frame + c->n_draft_stale + c->n_draft_late, 0);
    assert_int_equal(c->n_desync + c->n_resync + c->n_fallback, 0);
    assert_int_equal(c->n_root_round, 4 * 59); /* the first token comes from the prefill */
    for (int i = 0; i < 4; i++) {
        const struct gr_session_metrics *m = &sim_result(p.sim, i)->metrics;
        assert_int_equal(m->num_drafts + m->num_draft_tokens + m->num_accepted_tokens + m->num_rewound_tokens, 0);
        assert_int_equal(m->rewind_steps + m->late_trees + m->desyncs + m->fallbacks, 0);
        assert_int_equal(m->n_drafter_round + m->draft_ns + m->draft_host_ns, 0);
        assert_int_equal(m->rounds, 59);
        assert_int_equal(m->root_only_rounds, 59);
        assert_int_equal(m->completion_tokens, 60);
        assert_string_equal(m->transport, "");
    }
    pair_destroy(&p);
}

static void test_perfect_chain(void **state)
{
    (void)state;
    static const uint32_t n_node[] = {1, 4, 16, 63};
    for (size_t i = 0; i < GR_ARRAY_LEN(n_node); i++) {
        for (int t = 0; t < 3; t++) { /* sampled, too: the drafter knows the noise */
            const uint32_t n_round = 4;
            struct gr_session_request r = request(0, 21, 1 + n_round * (n_node[i] + 1));
            chain(&r, n_node[i]);
            r.sampling.temperature = 0.7f * (float)t;
            r.sampling.top_k = t == 2 ? 7 : 0;
            const struct pair_config c = {.seed = 11, .drafter = PERFECT};
            struct pair p = pair_create(&c);
            submit_all(&p, &r, 1);
            assert_true(sim_run(p.sim, LIMIT_NS));
            struct pair plain = plain_run(&c, &r, 1);
            assert_same(plain.sim, p.sim, 0);
            const struct gr_session_metrics *m = &sim_result(p.sim, 0)->metrics;
            assert_int_equal(m->rounds, n_round);
            assert_int_equal(m->num_drafts, n_round);
            assert_int_equal(m->num_accepted_tokens, n_round * n_node[i]);
            assert_int_equal(m->num_rewound_tokens, 0);
            assert_int_equal(m->rewind_steps, 0);
            for (uint32_t k = 0; k < GR_NODE_MAX; k++) {
                assert_int_equal(m->accepted_per_position[k], k < n_node[i] ? n_round : 0);
            }
            pair_destroy(&plain);
            pair_destroy(&p);
        }
    }
}

static void test_hopeless_drafter(void **state)
{
    (void)state;
    struct gr_session_request r = request(0, 21, 120);
    chain(&r, 5);
    const struct pair_config c = {.seed = 12, .drafter = OPPOSITE, .delays = true};
    struct pair p = pair_create(&c);
    submit_all(&p, &r, 1);
    assert_true(sim_run(p.sim, LIMIT_NS));
    struct pair plain = plain_run(&c, &r, 1);
    assert_same(plain.sim, p.sim, 0);
    const struct gr_session_metrics *m = &sim_result(p.sim, 0)->metrics;
    assert_int_equal(m->num_accepted_tokens, 0);
    assert_int_equal(m->num_rewound_tokens, m->num_draft_tokens);
    assert_true(m->num_drafts > 100);
    assert_int_equal(m->rewind_steps, m->num_drafts);
    assert_int_equal(m->rounds, 119);
    pair_destroy(&plain);
    pair_destroy(&p);
}

/* ---- cuts in the middle of a path ---- */

/* A perfect chain of three: round 0 gives token 0, round 1 tokens 1, 2, 3 and the bonus 4. */
static void cut_run(struct gr_session_request r, uint64_t seed, enum gr_finish want, uint64_t want_accepted)
{
    struct pair p = pair_create(&(struct pair_config){.seed = seed, .drafter = PERFECT});
    submit_all(&p, &r, 1);
    assert_true(sim_run(p.sim, LIMIT_NS));
    const struct sim_result *result = sim_result(p.sim, 0);
    assert_int_equal(result->finish, want);
    assert_int_equal(result->n_token, 3); /* token 0 and two of the three accepted */
    assert_int_equal(result->metrics.rounds, 1);
    assert_int_equal(result->metrics.num_accepted_tokens, want_accepted);
    assert_int_equal(result->metrics.completion_tokens, 3);
    const struct gr_target_counters *c = sim_target_counters(p.sim);
    assert_int_equal(c->n_pass, 2 + 1); /* two prompt chunks, one round: no further rows */
    assert_int_equal(c->n_tree_round, 1);
    assert_int_equal(c->n_root_round, 0);
    assert_int_equal(sim_drafter_counters(p.sim)->n_draft_frame, 1); /* no tree for a session that is over */
    pair_destroy(&p);
}

static void test_cut_mid_path(void **state)
{
    (void)state;
    int n_done = 0;
    for (uint64_t seed = 1; n_done < 5; seed++) {
        struct gr_session_request r = request(0, 20, 40);
        chain(&r, 3);
        struct pair plain = plain_run(&(struct pair_config){.seed = seed}, &r, 1);
        const int32_t *t = sim_result(plain.sim, 0)->token;
        const int32_t eos = t[2];
        const bool fresh = t[0] != eos && t[1] != eos;
        pair_destroy(&plain);
        if (!fresh) {
            continue;
        }
        struct gr_session_request stop = r;
        stop.n_stop_id = 2;
        stop.stop_id[0] = N_VOCAB + 5; /* never comes */
        stop.stop_id[1] = eos;
        cut_run(stop, seed, GR_FINISH_STOP, 2);
        struct gr_session_request limit = r;
        limit.max_tokens = 3; /* the node past the limit never enters the pass */
        cut_run(limit, seed, GR_FINISH_LENGTH, 1);
        n_done++;
    }
}

/* The context is full: reason length, every position used, with and without a drafter. */
static void test_context_limit(void **state)
{
    (void)state;
    for (int drafter = PLAIN; drafter <= BLURRED; drafter++) {
        for (uint32_t n_prompt = 40; n_prompt < 64; n_prompt += n_prompt < 60 ? 5 : 1) {
            struct gr_session_request r = request(0, n_prompt, 10000);
            const struct pair_config c = {.seed = 5 + n_prompt, .n_ctx = 64, .n_session = 2, .drafter = drafter};
            struct pair p = pair_create(&c);
            submit_all(&p, &r, 1);
            assert_true(sim_run(p.sim, LIMIT_NS));
            assert_int_equal(sim_result(p.sim, 0)->finish, GR_FINISH_LENGTH);
            assert_int_equal(sim_result(p.sim, 0)->n_token, 64 - n_prompt);
            struct pair plain = plain_run(&c, &r, 1);
            assert_same(plain.sim, p.sim, 0);
            pair_destroy(&plain);
            pair_destroy(&p);
        }
    }
}

/* ---- refusals ---- */

static void test_bad_requests(void **state)
{
    (void)state;
    static int32_t long_prompt[1024], bad_id[3][4] = {{1, 2, -1, 3}, {1, 2, N_VOCAB, 3}, {INT32_MAX, 0, 0, 0}};
    struct gr_session_request r[12];
    int n = 0;
    r[n++] = request(0, 30, 80); /* a good one, which the others must not disturb */
    r[n] = request(1, 0, 10);    /* empty */
    n++;
    r[n] = request(1, 600, 10); /* longer than the context */
    r[n++].prompt = long_prompt;
    r[n] = request(1, 512, 10); /* fills the context: no room for one token */
    r[n++].prompt = long_prompt;
    for (int i = 0; i < 3; i++) {
        r[n] = request(1, 4, 10);
        r[n++].prompt = bad_id[i];
    }
    r[n] = request(1, 4, 0); /* no tokens wanted */
    n++;
    r[n] = request(1, 4, 10);
    r[n++].sampling.temperature = -0.5f;
    r[n] = request(1, 4, 10);
    r[n++].sampling.top_p = 0.0f;
    r[n] = request(1, 4, 10);
    r[n++].sampling.min_p = 1.5f;
    const struct pair_config c = {.seed = 8, .n_session = 12, .drafter = BLURRED};
    struct pair p = pair_create(&c);
    submit_all(&p, r, n);
    assert_true(sim_run(p.sim, LIMIT_NS));
    struct pair plain = plain_run(&c, r, 1);
    assert_same(plain.sim, p.sim, 0);
    assert_int_equal(sim_n_error(p.sim), n - 1); /* one line each */
    for (int i = 1; i < n; i++) {
        assert_int_equal(sim_result(p.sim, i)->finish, GR_FINISH_ERROR);
        assert_int_equal(sim_result(p.sim, i)->n_token, 0);
        assert_true(strlen(sim_result(p.sim, i)->text) > 10);
    }
    assert_non_null(strstr(sim_result(p.sim, 1)->text, "empty"));
    assert_non_null(strstr(sim_result(p.sim, 2)->text, "600"));
    assert_non_null(strstr(sim_result(p.sim, 5)->text, "24")); /* the id, and what is allowed */
    assert_int_equal(gr_target_n_session(sim_target(p.sim)), 0);
    /* the target lives: another session */
    struct gr_session_request after = request(2, 10, 20);
    const int i = sim_submit(p.sim, &after);
    assert_true(sim_run(p.sim, LIMIT_NS));
    assert_int_equal(sim_result(p.sim, i)->finish, GR_FINISH_LENGTH);
    assert_int_equal(sim_result(p.sim, i)->n_token, 20);
    pair_destroy(&plain);
    pair_destroy(&p);
}

static void test_more_sessions_than_slots(void **state)
{
    (void)state;
    struct gr_session_request r[8];
    for (int i = 0; i < 8; i++) {
        r[i] = request(i, 10 + (uint32_t)i, 60);
    }
    const struct pair_config c = {.seed = 9, .n_session = 3, .drafter = BLURRED};
    struct pair p = pair_create(&c);
    submit_all(&p, r, 8);
    assert_true(sim_run(p.sim, LIMIT_NS));
    struct pair plain = plain_run(&c, r, 8);
    for (int i = 0; i < 8; i++) {
        if (i < 3) {
            assert_same(plain.sim, p.sim, i);
        } else {
            assert_int_equal(sim_result(p.sim, i)->finish, GR_FINISH_ERROR);
            assert_non_null(strstr(sim_result(p.sim, i)->text, "slots"));
        }
    }
    assert_int_equal(sim_n_error(p.sim), 5);
    pair_destroy(&plain);
    pair_destroy(&p);
}

/* Blocks for two or three sessions at a time: the others wait and give the same text. */
static void test_small_pool(void **state)
{
    (void)state;
    for (int n_block = 9; n_block <= 20; n_block += 4) {
        struct gr_session_request r[8];
        for (int i = 0; i < 8; i++) {
            r[i] = request(i, 20 + 5 * (uint32_t)i, 40 + 6 * (uint32_t)i);
        }
        const struct pair_config c = {.seed = 10, .n_session = 8, .n_pool_block = n_block, .drafter = BLURRED,
                                      .delays = true};
        struct pair p = pair_create(&c);
        submit_all(&p, r, 8);
        assert_true(sim_run(p.sim, LIMIT_NS));
        struct pair plain = plain_run(&c, r, 8);
        for (int i = 0; i < 8; i++) {
            assert_same(plain.sim, p.sim, i);
        }
        assert_int_equal(sim_n_error(p.sim), 0);
        pair_destroy(&plain);
        pair_destroy(&p);
    }
    struct gr_session_request huge = request(0, 20, 400); /* could never be admitted: said at once */
    struct pair p = pair_create(&(struct pair_config){.seed = 10, .n_pool_block = 20, .drafter = BLURRED});
    submit_all(&p, &huge, 1);
    assert_true(sim_run(p.sim, LIMIT_NS));
    assert_int_equal(sim_result(p.sim, 0)->finish, GR_FINISH_ERROR);
    assert_non_null(strstr(sim_result(p.sim, 0)->text, "420"));
    pair_destroy(&p);
}

/* The drafter's own pool or context is smaller than the target's: less speculation, same text. */
static void test_small_drafter(void **state)
{
    (void)state;
    struct gr_session_request r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = request(i, i == 0 ? 90 : 20, i == 1 ? 90 : 30);
    }
    struct pair_config c = {.seed = 14, .n_session = 4, .drafter = PERFECT, .n_pool_block_draft = 10};
    struct pair p = pair_create(&c);
    submit_all(&p, r, 4);
    assert_true(sim_run(p.sim, LIMIT_NS));
    struct pair plain = plain_run(&c, r, 4);
    for (int i = 0; i < 4; i++) {
        assert_same(plain.sim, p.sim, i);
    }
    pair_destroy(&p);
    c.n_pool_block_draft = 0;
    c.n_ctx_draft = 64; /* session 0's prompt does not fit, session 1 outgrows it */
    p = pair_create(&c);
    submit_all(&p, r, 4);
    assert_true(sim_run(p.sim, LIMIT_NS)); /* nor is the connection lost by it: the others go on with their drafts */
    for (int i = 0; i < 4; i++) {
        assert_same(plain.sim, p.sim, i);
    }
    assert_true(sim_result(p.sim, 2)->metrics.num_drafts >= 4);
    assert_true(sim_result(p.sim, 3)->metrics.num_drafts >= 4);
    pair_destroy(&p);
    pair_destroy(&plain);
}

/* ---- hostile frames ---- */

#define N_KEPT 400

struct hostile {
    uint64_t rng;
    struct kept_frame {
        bool to_target;
        size_t len;
        uint8_t bytes[GR_WIRE_SMALL_BYTES_MAX];
    } kept[N_KEPT];
    int n_kept, n_injected, one_in;
};

static void keep_frame(struct hostile *h, bool to_target, const uint8_t *bytes, size_t len)
{
    struct kept_frame *k = &h->kept[h->n_kept % N_KEPT];
    h->n_kept++;
    k->to_target = to_target;
    k->len = len;
    memcpy(k->bytes, bytes, len);
}

static enum gr_status give(struct sim *s, bool to_target, const uint8_t *bytes, size_t len)
{
    return to_target ? gr_target_on_frame(sim_target(s), 0, bytes, len, sim_now_ns(s))
                     : gr_drafter_on_frame(sim_drafter(s), 0, bytes, len, sim_now_ns(s));
}

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

/* Spoils a good frame in one of the ways that its type must refuse; returns the new length. */
static size_t spoil(uint8_t *f, size_t len, uint64_t *rng)
{
    uint8_t *payload = f + GR_WIRE_HEADER_BYTES;
    switch (draw(rng, 5)) {
    case 0:
        f[draw(rng, 5)] ^= (uint8_t)(1 + draw(rng, 255)); /* magic, version */
        return len;
    case 1:
        return (size_t)draw(rng, len); /* cut */
    case 2:
        put32(f + GR_WIRE_OFF_PAYLOAD_LEN, (uint32_t)(len - GR_WIRE_HEADER_BYTES + 1 + draw(rng, 1000)));
        return len;
    case 3:
        f[GR_WIRE_OFF_TYPE] = (uint8_t)(7 + draw(rng, 249));
        return len;
    default:
        break;
    }
    switch (f[GR_WIRE_OFF_TYPE]) {
    case GR_FRAME_DRAFT: {
        const uint32_t n = (uint32_t)((len - 44) / 6);
        if (n == 0) {
            payload[0] = 64;
        } else if (draw(rng, 2) == 0) {
            put32(payload + 4 + 4 * draw(rng, n), N_VOCAB + (uint32_t)draw(rng, 1 << 30)); /* no token */
        } else {
            payload[4 + 4 * n] = 0; /* node 0 is its own parent: a cycle */
            payload[5 + 4 * n] = 0;
        }
        return len;
    }
    case GR_FRAME_VERDICT:
        put32(payload + GR_WIRE_VERDICT_OFF_BONUS, N_VOCAB + (uint32_t)draw(rng, 1 << 30));
        return len;
    case GR_FRAME_RESYNC:
        put32(payload + 4, (uint32_t)(40 + draw(rng, 1000)));
        return len;
    case GR_FRAME_DELTA:
        put32(payload + 4, (uint32_t)(5000 + draw(rng, 1 << 30)));
        return len;
    default:
        return len - 1;
    }
}

/* A refused frame changes nothing, whatever its type and whenever it comes. */
static void inject_malformed(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len)
{
    struct hostile *h = arg;
    keep_frame(h, to_target, bytes, *len);
    for (int i = 0; i < 4; i++) {
        struct kept_frame f = h->kept[draw(&h->rng, (uint64_t)GR_MIN(h->n_kept, N_KEPT))];
        f.len = spoil(f.bytes, f.len, &h->rng);
        uint8_t *copy = malloc(f.len > 0 ? f.len : 1); /* its end is seen by a sanitizer */
        assert_non_null(copy);
        memcpy(copy, f.bytes, f.len);
        const enum gr_status st = give(s, f.to_target, copy, f.len);
        free(copy);
        /* a drafter does not look into frames of a session that it has left */
        if (f.to_target || gr_drafter_n_session(sim_drafter(s)) == 4) {
            assert_int_equal(st, GR_EFORMAT);
        }
        h->n_injected += st == GR_EFORMAT;
    }
    /* a good frame of a type that this side does not take */
    uint8_t wrong[256];
    const struct gr_frame_header head = {.session = sim_session(s, 0), .epoch = 1};
    const size_t n = to_target ? gr_wire_encode_desync(&head, GR_DESYNC_HASH, 1, wrong, sizeof(wrong))
                               : gr_wire_encode_resync(&head, &(struct gr_resync){0}, wrong, sizeof(wrong));
    if (to_target || gr_drafter_n_session(sim_drafter(s)) == 4) {
        assert_int_equal(give(s, to_target, wrong, n), GR_EPROTO);
    }
}

static void assert_same_metrics(const struct sim *a, const struct sim *b, int i)
{
    struct gr_session_metrics x = sim_result(a, i)->metrics;
    struct gr_session_metrics y = sim_result(b, i)->metrics;
    assert_int_equal(x.rounds, y.rounds);
    assert_int_equal(x.num_drafts, y.num_drafts);
    assert_int_equal(x.num_draft_tokens, y.num_draft_tokens);
    assert_int_equal(x.num_accepted_tokens, y.num_accepted_tokens);
    assert_int_equal(x.root_only_rounds, y.root_only_rounds);
    assert_int_equal(x.desyncs, y.desyncs);
    assert_int_equal(x.fallbacks, y.fallbacks);
}

typedef void frame_hook(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len);

/* Four sessions with and without the hook: same text always; same rounds and drafts when `same_rounds`. */
static void hostile_run(uint64_t seed, frame_hook *hook, struct hostile *h, bool same_rounds)
{
    struct gr_session_request r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = request(i, 12 + 9 * (uint32_t)i, 60);
        r[i].sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    }
    const struct pair_config c = {.seed = seed, .n_session = 4, .drafter = BLURRED, .delays = true};
    struct pair clean = pair_create(&c);
    submit_all(&clean, r, 4);
    assert_true(sim_run(clean.sim, LIMIT_NS));
    struct pair p = pair_create(&c);
    h->n_kept = 0;
    h->rng = seed;
    sim_on_frame(p.sim, hook, h);
    submit_all(&p, r, 4);
    assert_true(sim_run(p.sim, LIMIT_NS));
    struct pair plain = plain_run(&c, r, 4);
    for (int i = 0; i < 4; i++) {
        assert_same(plain.sim, clean.sim, i);
        assert_same(plain.sim, p.sim, i);
        if (same_rounds) {
            assert_same_metrics(clean.sim, p.sim, i);
        }
    }
    if (same_rounds) {
        assert_int_equal(sim_n_lost(p.sim), 0);
    }
    assert_int_equal(gr_target_n_session(sim_target(p.sim)), 0);
    assert_int_equal(gr_drafter_n_session(sim_drafter(p.sim)), 0);
    pair_destroy(&plain);
    pair_destroy(&clean);
    pair_destroy(&p);
}

static void test_malformed_frames(void **state)
{
    (void)state;
    static struct hostile h;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        hostile_run(seed, inject_malformed, &h, true);
    }
    assert_true(h.n_injected > 1000);
}

static uint8_t type_of(const struct kept_frame *f)
{
    return f->bytes[GR_WIRE_OFF_TYPE];
}

/* Old DRAFTs to the target, old VERDICTs and DELTAs to the drafter, again and again, at any time. */
static void replay(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len)
{
    struct hostile *h = arg;
    for (int i = 0; i < 3 && h->n_kept > 0; i++) {
        const struct kept_frame *f = &h->kept[draw(&h->rng, (uint64_t)GR_MIN(h->n_kept, N_KEPT))];
        if (type_of(f) != GR_FRAME_RESYNC) {
            assert_int_equal(give(s, f->to_target, f->bytes, f->len), GR_OK);
            h->n_injected++;
        }
    }
    if (bytes[GR_WIRE_OFF_TYPE] == GR_FRAME_DRAFT || bytes[GR_WIRE_OFF_TYPE] == GR_FRAME_VERDICT ||
        bytes[GR_WIRE_OFF_TYPE] == GR_FRAME_DELTA) {
        keep_frame(h, to_target, bytes, *len); /* what is on its way now can come again later */
    }
}

static void test_replayed_frames(void **state)
{
    (void)state;
    static struct hostile h;
    h.n_injected = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        hostile_run(seed, replay, &h, true);
    }
    assert_true(h.n_injected > 1000);
}

/* Old RESYNCs, too: they cost rounds, never text. */
static void replay_all(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len)
{
    struct hostile *h = arg;
    if (h->n_kept > 0 && draw(&h->rng, 4) == 0) {
        const struct kept_frame *f = &h->kept[draw(&h->rng, (uint64_t)GR_MIN(h->n_kept, N_KEPT))];
        assert_int_equal(give(s, f->to_target, f->bytes, f->len), GR_OK);
    }
    keep_frame(h, to_target, bytes, *len);
}

static void test_replayed_resyncs(void **state)
{
    (void)state;
    static struct hostile h;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        hostile_run(seed, replay_all, &h, false);
    }
}

/* Bits that flip on the way: refused with the connection lost, or a legal frame that says something else. */
static void corrupt(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len)
{
    struct hostile *h = arg;
    (void)s;
    (void)to_target;
    if (draw(&h->rng, (uint64_t)h->one_in) != 0) {
        return;
    }
    h->n_injected++;
    const size_t at = draw(&h->rng, 2) == 0 ? (size_t)draw(&h->rng, *len) : 6 + (size_t)draw(&h->rng, 22);
    bytes[at] ^= (uint8_t)(1u << draw(&h->rng, 8));
}

static void test_corrupted_frames(void **state)
{
    (void)state;
    static struct hostile h;
    h.n_injected = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        h.one_in = seed % 2 == 0 ? 5 : 40;
        hostile_run(seed, corrupt, &h, false);
    }
    print_message("# %d frames corrupted\n", h.n_injected);
    assert_true(h.n_injected > 500);
}

/* ---- the distribution of speculative sampling ---- */

#define CHI_VOCAB 7
#define N_SAMPLE 200000
#define RUN_TOKENS 4000

/* Probabilities after the processors, in double, from the definition. */
static void exact_probabilities(const struct gr_sampling *s, const float *logits, double p[CHI_VOCAB])
{
    bool used[CHI_VOCAB] = {false};
    int order[CHI_VOCAB];
    double sum = 0.0;
    for (int k = 0; k < CHI_VOCAB; k++) {
        int best = -1;
        for (int i = 0; i < CHI_VOCAB; i++) {
            best = !used[i] && (best < 0 || logits[i] > logits[best]) ? i : best;
        }
        used[best] = true;
        order[k] = best;
    }
    const double max = (double)logits[order[0]];
    int n = 0;
    for (; n < CHI_VOCAB && !(s->top_k > 0 && n >= s->top_k); n++) {
        p[order[n]] = exp(((double)logits[order[n]] - max) / (double)s->temperature);
        if (p[order[n]] < (double)s->min_p) {
            break;
        }
        sum += p[order[n]];
    }
    double cumulated = 0.0;
    int n_keep = 0;
    while (n_keep < n && (n_keep == 0 || cumulated < (double)s->top_p * sum)) {
        cumulated += p[order[n_keep++]];
    }
    for (int k = 0; k < CHI_VOCAB; k++) {
        p[order[k]] = k < n_keep ? p[order[k]] / cumulated : 0.0;
    }
}

struct transitions {
    int count[CHI_VOCAB][CHI_VOCAB];
    uint64_t n_accepted, n_drafted, n_sample;
};

/* One session of a model that remembers one token: each token is a sample of a known distribution. */
static void sample_run(const struct gr_sampling *s, int drafter, uint64_t seed, struct transitions *t,
                       struct toy_config *table_out)
{
    struct gr_session_request r = request(0, 3, RUN_TOKENS);
    static const int32_t prompt[] = {1, 2, 3};
    r.prompt = prompt;
    r.sampling = *s;
    r.sampling.seed = seed;
    r.n_node = 10;
    r.draft_depth = 5;
    struct pair p = pair_create(&(struct pair_config){.seed = 21, .n_vocab = CHI_VOCAB, .n_ctx = 4096, .n_session = 1,
                                                      .memory = 1, .sharpness = 2.5f, .drafter = drafter});
    *table_out = p.table;
    submit_all(&p, &r, 1);
    assert_true(sim_run(p.sim, LIMIT_NS));
    const struct sim_result *result = sim_result(p.sim, 0);
    assert_int_equal(result->n_token, RUN_TOKENS);
    int32_t last = prompt[2];
    for (uint32_t i = 0; i < result->n_token; i++) {
        t->count[last][result->token[i]]++;
        last = result->token[i];
        t->n_sample++;
    }
    t->n_accepted += result->metrics.num_accepted_tokens;
    t->n_drafted += result->metrics.num_drafts;
    pair_destroy(&p);
}

static double transitions_z(const struct transitions *t, const struct toy_config *table, const struct gr_sampling *s)
{
    double chi2 = 0.0;
    int df = 0;
    for (int32_t a = 0; a < CHI_VOCAB; a++) {
        float logits[CHI_VOCAB];
        double p[CHI_VOCAB];
        int n = 0;
        int n_cell = 0;
        toy_lm_logits(table, &a, 1, logits);
        exact_probabilities(s, logits, p);
        for (int b = 0; b < CHI_VOCAB; b++) {
            n += t->count[a][b];
        }
        for (int b = 0; b < CHI_VOCAB; b++) {
            if (p[b] == 0.0) {
                assert_int_equal(t->count[a][b], 0);
            } else if (n > 0) {
                assert_true(p[b] * n > 5.0);
                chi2 += (t->count[a][b] - p[b] * n) * (t->count[a][b] - p[b] * n) / (p[b] * n);
                n_cell++;
            }
        }
        df += n_cell > 0 ? n_cell - 1 : 0;
    }
    const double c = 2.0 / (9.0 * df);
    return (cbrt(chi2 / df) - (1.0 - c)) / sqrt(c);
}

static void test_sampled_distribution(void **state)
{
    (void)state;
    static const struct gr_sampling settings[] = {
        {.temperature = 1.0f, .top_p = 1.0f},
        {.temperature = 0.7f, .top_p = 0.9f},
        {.temperature = 1.3f, .top_p = 1.0f, .top_k = 4, .min_p = 0.1f},
    };
    for (size_t k = 0; k < GR_ARRAY_LEN(settings); k++) {
        static struct transitions t;
        struct toy_config table;
        memset(&t, 0, sizeof(t));
        for (uint64_t seed = 0; t.n_sample < N_SAMPLE; seed++) {
            sample_run(&settings[k], BLURRED, 1000 * k + seed, &t, &table);
        }
        const double z = transitions_z(&t, &table, &settings[k]);
        print_message("# speculative chi-square, setting %zu: deviate %.2f, %.2f accepted of a draft\n", k, z,
                      (double)t.n_accepted / (double)t.n_drafted);
        assert_true(z > -4.0 && z < 4.0);
        assert_true(t.n_accepted > t.n_drafted / 4); /* speculation did take part */
        struct gr_sampling off = settings[k]; /* and the yardstick would see a temperature 10 % off */
        off.temperature *= 1.1f;
        const double z_off = transitions_z(&t, &table, &off);
        assert_true(z_off > 6.0);
    }
}

/* ---- one machine alone, frames made by hand ---- */

struct alone {
    struct gr_lm *lm;
    struct gr_target *target;
    struct gr_verifier *verifier;
    struct gr_drafter *drafter;
    struct gr_grower *grower;
    struct gr_pass *pass;     /* started, not done */
    struct gr_draft_job *job;
    uint8_t frame[GR_WIRE_SMALL_BYTES_MAX];
    size_t frame_len;         /* the last one sent */
    uint32_t frame_peer;
    int n_frame, n_msg[GR_N_MSG];
    int32_t token[256];       /* what the target committed */
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
    for (uint32_t i = 0; m->type == GR_MSG_COMMIT && m->session == 1 && i < m->ids.n; i++) {
        alone_add(a, m->ids.p[i]);
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

static enum gr_status alone_connect(void *ctx, const char *address, const char *transport, uint32_t *peer_out)
{
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
    a->lm = toy_lm_create(&(struct toy_config){.n_vocab = N_VOCAB, .n_ctx_max = 256, .n_row_max = 700, .n_out_max = 640,
                                               .n_pool_block = 64, .n_scratch_block = 64, .seed = 3,
                                               .sharpness = 6.0f});
    const struct gr_target_config tc = {.n_session_max = 4, .n_ctx_max = 256, .n_vocab = N_VOCAB, .n_row_max = 700,
                                        .n_out_max = 640, .prefill_chunk = 16, .n_pool_block = 64,
                                        .round_deadline_ns = DEADLINE};
    const struct gr_target_io tio = {.ctx = a, .frame_begin = alone_begin, .frame_end = alone_end,
                                     .send_msg = alone_msg, .start_pass = alone_pass};
    const struct gr_drafter_config dc = {.n_session_max = 4, .n_ctx_max = 256, .n_vocab = N_VOCAB, .n_row_max = 700,
                                         .prefill_chunk = 16, .n_pool_block = 64};
    const struct gr_drafter_io dio = {.ctx = a, .frame_begin = alone_begin, .frame_end = alone_end,
                                      .send_msg = alone_msg, .start_job = alone_job, .connect = alone_connect};
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
    const struct gr_msg m = {.type = GR_MSG_OPEN, .session = session, .epoch = epoch, .ids = {prompt, 20},
                             .segments = {segments, 2}, .max_tokens = 100, .want_draft = 1, .top_p = 1.0};
    gr_target_on_msg(a->target, &m, 0);
    assert_int_equal(a->n_msg[GR_MSG_ERROR], 0);
}

static void target_resync(struct alone *a, uint64_t session, uint32_t epoch, uint64_t now_ns)
{
    uint8_t f[64];
    const struct gr_frame_header h = {.session = session, .epoch = epoch};
    const size_t n = gr_wire_encode_resync(&h, &(struct gr_resync){0}, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(a->target, 7, f, n, now_ns), GR_OK);
}

/* A one-node DRAFT for session 1. */
static enum gr_status target_draft(struct alone *a, uint32_t peer, uint32_t epoch, uint32_t round, uint32_t base_len,
                                   uint64_t hash, int32_t token, uint64_t now_ns)
{
    uint8_t f[128];
    const struct gr_frame_header h = {.session = 1, .epoch = epoch, .round = round, .base_len = base_len,
                                      .prefix_hash = hash};
    const struct gr_token_tree t = {.n = 1, .token = {token}, .parent = {-1}};
    const size_t n = gr_wire_encode_draft(&h, &t, f, sizeof(f));
    return gr_target_on_frame(a->target, peer, f, n, now_ns);
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
    assert_int_equal(target_draft(&a, 7, 4, 1, len, a.hash[len], 1, 20), GR_OK); /* an older epoch: silence */
    assert_int_equal(target_draft(&a, 8, 5, 1, len, a.hash[len], 1, 20), GR_OK); /* not this session's drafter */
    assert_int_equal(c->n_draft_stale, 2);
    assert_int_equal(a.n_frame, n);
    assert_int_equal(target_draft(&a, 7, 6, 1, len, a.hash[len], 1, 20), GR_OK); /* ahead in epoch */
    assert_desync(&a, n++, GR_DESYNC_EPOCH);
    assert_int_equal(target_draft(&a, 7, 5, 1, len + 1, a.hash[len], 1, 20), GR_OK); /* ahead in length */
    assert_desync(&a, n++, GR_DESYNC_AHEAD);
    assert_int_equal(target_draft(&a, 7, 5, 1, UINT32_MAX, a.hash[len], 1, 20), GR_OK);
    assert_desync(&a, n++, GR_DESYNC_AHEAD);
    assert_int_equal(target_draft(&a, 7, 5, 1, len, a.hash[len] ^ 1, 1, 20), GR_OK); /* equal length, other tokens */
    assert_desync(&a, n++, GR_DESYNC_HASH);
    assert_int_equal(target_draft(&a, 7, 5, 1, 10, a.hash[11], 1, 20), GR_OK);
    assert_desync(&a, n++, GR_DESYNC_HASH);
    assert_int_equal(c->n_desync, 5);
    assert_int_equal(target_draft(&a, 7, 5, 0, 20, a.hash[20], 1, 20), GR_OK); /* merely late */
    assert_int_equal(c->n_draft_late, 1);
    assert_int_equal(target_draft(&a, 7, 5, 1, len, a.hash[len], N_VOCAB, 20), GR_EFORMAT);
    assert_int_equal(a.n_frame, n);
    assert_int_equal(target_run(&a, 30), 10 + DEADLINE); /* still waits for its tree */
    assert_int_equal(c->n_root_round + c->n_tree_round, 0);
    /* and the good one; its late predecessor, come again, does not push it out */
    assert_int_equal(target_draft(&a, 7, 5, 1, len, a.hash[len], 1, 40), GR_OK);
    assert_int_equal(target_draft(&a, 7, 5, 0, 20, a.hash[20], 1, 41), GR_OK);
    assert_int_equal(target_run(&a, 50), 50 + DEADLINE);
    assert_int_equal(c->n_tree_round, 1);
    assert_int_equal(c->n_root_round, 0);
    assert_true(a.len >= 22);
    /* the fence: after a RESYNC of the running round, an older round's tree is dropped without a word */
    target_resync(&a, 1, 5, 60);
    n = a.n_frame;
    const uint64_t n_stale = c->n_draft_stale;
    assert_int_equal(target_draft(&a, 7, 5, 1, (uint32_t)a.len, a.hash[a.len], 1, 70), GR_OK);
    assert_int_equal(c->n_draft_stale, n_stale + 1);
    assert_int_equal(a.n_frame, n);
    /* the session ends: DRAFTs and RESYNCs about it */
    gr_target_on_msg(a.target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = 1}, 80);
    assert_int_equal(target_draft(&a, 7, 5, 2, (uint32_t)a.len, a.hash[a.len], 1, 90), GR_OK);
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
    const struct gr_msg m = {.type = GR_MSG_ATTACH, .session = 1, .epoch = 2, .top_p = 1.0, .draft_depth = 4,
                             .draft_top_k = 3, .n_node = 9};
    gr_drafter_on_msg(a->drafter, &m, 0);
    gr_drafter_on_peer_ready(a->drafter, 7, "alone", 0);
    const struct gr_frame_header h = {.session = 1, .epoch = 2, .round = round, .base_len = (uint32_t)a->len,
                                      .flags = GR_DELTA_LAST | GR_DELTA_DRAFT, .prefix_hash = a->hash[a->len]};
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
    const struct gr_frame_header h = {.session = 1, .epoch = 2, .round = round, .base_len = base_len,
                                      .prefix_hash = a->hash[a->len]};
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
    drafter_verdict(&a, 1, &(struct gr_verdict){.draft_round = 1, .keep_len = 40, .final_len = 43, .bonus = 11,
                                                .n_path = 2, .node = {0, (uint8_t)child}}, 40);
    t = drafted(&a, 2);
    assert_tree_as_fresh(&a, &t);
    /* round 2: a refresh takes back all but `keep` tokens and corrects the next one; across blocks, into the prompt, and to
     * the very first token */
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
        drafter_verdict(&a, round, &(struct gr_verdict){.draft_round = round, .keep_len = (uint32_t)keep[i],
                                                        .final_len = (uint32_t)a.len, .bonus = (int32_t)(5 + i),
                                                        .kind = GR_VERDICT_FULL}, base_len);
        assert_int_equal(a.n_frame, n_frame + 1); /* one DRAFT for one VERDICT, no RESYNC */
        round++;
        t = drafted(&a, round);
        assert_tree_as_fresh(&a, &t);
        /* a plain round in between, so that the next roll-back starts from somewhere longer */
        const uint32_t plain_base = (uint32_t)a.len;
        alone_add(&a, t.token[0]);
        alone_add(&a, 12);
        drafter_verdict(&a, round, &(struct gr_verdict){.draft_round = round, .keep_len = plain_base,
                                                        .final_len = (uint32_t)a.len, .bonus = 12, .n_path = 1,
                                                        .node = {0}}, plain_base);
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
        const struct gr_frame_header h = {.session = 1, .epoch = 2, .round = 4, .base_len = (uint32_t)a.len,
                                          .flags = GR_DELTA_LAST | GR_DELTA_DRAFT, .prefix_hash = a.hash[a.len]};
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
        const struct gr_frame_header back = {.session = 1, .epoch = 2, .round = 2, .base_len = (uint32_t)a.len,
                                             .flags = GR_DELTA_LAST | GR_DELTA_DRAFT, .prefix_hash = a.hash[a.len]};
        const uint32_t common = GR_MIN(r.my_len, 30u);
        const size_t n = gr_wire_encode_delta(&back, common, a.token + common, (uint32_t)a.len - common, f, sizeof(f));
        assert_int_equal(gr_drafter_on_frame(a.drafter, 7, f, n, 0), GR_OK);
        drafter_run(&a, 0);
        const struct gr_token_tree t = drafted(&a, 2);
        assert_tree_as_fresh(&a, &t);
        alone_destroy(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_rewinds),     cmocka_unit_test(test_2000_rounds),
        cmocka_unit_test(test_no_drafter_no_counter), cmocka_unit_test(test_perfect_chain),
        cmocka_unit_test(test_hopeless_drafter),  cmocka_unit_test(test_cut_mid_path),
        cmocka_unit_test(test_context_limit),     cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_more_sessions_than_slots), cmocka_unit_test(test_small_pool),
        cmocka_unit_test(test_small_drafter),     cmocka_unit_test(test_malformed_frames),
        cmocka_unit_test(test_replayed_frames),   cmocka_unit_test(test_replayed_resyncs),
        cmocka_unit_test(test_corrupted_frames),  cmocka_unit_test(test_sampled_distribution),
        cmocka_unit_test(test_judging_drafts),    cmocka_unit_test(test_deadline_of_the_first),
        cmocka_unit_test(test_drafter_follows_rollback), cmocka_unit_test(test_delta_replaces),
        cmocka_unit_test(test_drafter_doubts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
