/* Named properties of the pair, on the simulation with table models: exact rewinds, block tables, cuts in the middle of
 * a path, limits, and the distribution of what speculation samples. */
#include "tests/sim/pair_util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

/* ---- exact lengths ---- */

struct watch {
    const int32_t *plain; /* prompt and plain decoding's text */
    int32_t n_plain;
    int32_t block[2048]; /* plain decoding's block table */
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
    pc.drafter = PAIR_PLAIN;
    struct pair plain = pair_create(&pc);
    memset(w, 0, sizeof(*w));
    sim_on_pass(plain.sim, keep_table, w);
    pair_submit(&plain, &r, 1);
    assert_true(sim_run(plain.sim, PAIR_LIMIT_NS));
    const struct sim_result *result = sim_result(plain.sim, 0);
    memcpy(text, r.prompt, r.n_prompt * sizeof(int32_t));
    memcpy(text + r.n_prompt, result->token, result->n_token * sizeof(int32_t));
    w->plain = text;
    w->n_plain = (int32_t)(r.n_prompt + result->n_token);
    struct pair spec = pair_create(c);
    sim_on_pass(spec.sim, watch_pass, w);
    pair_submit(&spec, &r, 1);
    assert_true(sim_run(spec.sim, PAIR_LIMIT_NS));
    pair_assert_same(plain.sim, spec.sim, 0);
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
            struct gr_session_request r = pair_request(0, 1 + (uint32_t)seed * 7, 150);
            r.wishes.sampling.temperature = seed % 3 == 0 ? 0.8f : 0.0f;
            if (shape > 0) {
                pair_chain(&r, shape == 1 ? 1 : shape == 2 ? 5 : 63);
            }
            watched_run(&(struct pair_config){.seed = seed, .drafter = PAIR_BLURRED, .delays = seed % 2 == 0}, r, &w);
            assert_true(w.n_accepted_round > 5 && w.n_rewound > 5);
        }
    }
}

/* Block tables and lengths equal plain decoding's, over more than 2,000 rounds. */
static void test_2000_rounds(void **state)
{
    (void)state;
    static struct watch w;
    struct gr_session_request r = pair_request(0, 33, 6000);
    r.wishes.n_node = 6;
    r.wishes.draft_depth = 3;
    watched_run(&(struct pair_config){.seed = 4, .n_ctx = 6144, .n_session = 2, .drafter = PAIR_BLURRED}, r, &w);
    print_message("# %d rounds, %d with accepted nodes, %d with a rewind\n", w.n_round, w.n_accepted_round,
                  w.n_rewound);
    assert_true(w.n_round >= 2000 && w.n_accepted_round > 1000 && w.n_rewound > 1000);
}

/* ---- no drafter, perfect drafter, hopeless drafter ---- */

static void test_no_drafter_no_counter(void **state)
{
    (void)state;
    struct gr_session_request r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = pair_request(i, 20, 60); /* want_draft is set all the same */
    }
    struct pair p = pair_plain_run(&(struct pair_config){.seed = 3}, r, 4);
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
            struct gr_session_request r = pair_request(0, 21, 1 + n_round * (n_node[i] + 1));
            pair_chain(&r, n_node[i]);
            r.wishes.sampling.temperature = 0.7f * (float)t;
            r.wishes.sampling.top_k = t == 2 ? 7 : 0;
            const struct pair_config c = {.seed = 11, .drafter = PAIR_PERFECT};
            struct pair p = pair_create(&c);
            pair_submit(&p, &r, 1);
            assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
            struct pair plain = pair_plain_run(&c, &r, 1);
            pair_assert_same(plain.sim, p.sim, 0);
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
    struct gr_session_request r = pair_request(0, 21, 120);
    pair_chain(&r, 5);
    const struct pair_config c = {.seed = 12, .drafter = PAIR_OPPOSITE, .delays = true};
    struct pair p = pair_create(&c);
    pair_submit(&p, &r, 1);
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
    struct pair plain = pair_plain_run(&c, &r, 1);
    pair_assert_same(plain.sim, p.sim, 0);
    const struct gr_session_metrics *m = &sim_result(p.sim, 0)->metrics;
    assert_int_equal(m->num_accepted_tokens, 0);
    assert_int_equal(m->num_rewound_tokens, m->num_draft_tokens);
    assert_true(m->num_drafts > 100);
    assert_int_equal(m->rewind_steps, m->num_drafts);
    assert_int_equal(m->rounds, 119);
    pair_destroy(&plain);
    pair_destroy(&p);
}

/* ---- prices ---- */

struct prices {
    uint64_t session;     /* the one that stays */
    bool others_done;     /* the one that stays decodes alone */
    int n_verdict;        /* its verdicts since others_done, before it was told what rows cost now */
    uint32_t together_ns; /* a row more in a pass: the most told while others decoded */
    uint32_t told_ns;     /* a row more in a pass: what was told last */
    bool knew;            /* it has been told the prices of a session alone since the others ended */
};

static void watch_group(struct sim *s, void *arg)
{
    struct prices *w = arg;
    bool others = false;
    for (int i = 1; i < 4; i++) {
        others = others || !sim_result(s, i)->done;
    }
    w->session = sim_session(s, 0);
    w->others_done = !others;
}

/* The target may have told it before the orchestrator has heard of the others' end. */
static bool knows_alone(const struct prices *w)
{
    return w->told_ns < w->together_ns / 4 * 3;
}

static void watch_price(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len)
{
    struct prices *w = arg;
    struct gr_frame_header h;
    struct gr_cost cost;
    (void)s;
    if (to_target || gr_wire_decode_header(bytes, *len, &h) != GR_OK || h.session != w->session) {
        return;
    }
    if (h.type == GR_FRAME_COST) {
        assert_int_equal(gr_wire_decode_cost(bytes, *len, &cost), GR_OK);
        const uint32_t last = cost.n_point - 1;
        const uint32_t row_ns = (cost.pass_ns[last] - cost.pass_ns[0]) / (cost.n_row[last] - 1);
        w->told_ns = row_ns;
        w->together_ns = w->others_done ? w->together_ns : GR_MAX(w->together_ns, row_ns);
        w->knew =
            w->knew || (w->others_done && knows_alone(w)); /* later prices follow toy passes, which all take alike */
    }
    w->n_verdict += h.type == GR_FRAME_VERDICT && w->others_done && !w->knew && !knows_alone(w);
}

/* Rows are charged for everyone they hold up; when the others have gone the next trees are larger at once. */
static void test_prices_follow_the_group(void **state)
{
    (void)state;
    struct gr_session_request r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = pair_request(i, 21, i == 0 ? 400 : 60);
        r[i].wishes.auto_tree = true;
        r[i].wishes.n_node = 63;
    }
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct prices w = {0};
        struct pair p = pair_create(&(struct pair_config){.seed = seed, .drafter = PAIR_PERFECT, .delays = true});
        sim_on_pass(p.sim, watch_group, &w);
        sim_on_frame(p.sim, watch_price, &w);
        pair_submit(&p, r, 4);
        assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
        assert_true(w.told_ns > 0 && (w.knew || knows_alone(&w)));
        assert_true(w.n_verdict <= 1);
        pair_destroy(&p);
    }
}

/* ---- cuts in the middle of a path ---- */

/* A perfect chain of three: round 0 gives token 0, round 1 tokens 1, 2, 3 and the bonus 4. */
static void cut_run(struct gr_session_request r, uint64_t seed, enum gr_finish want, uint64_t want_accepted)
{
    struct pair p = pair_create(&(struct pair_config){.seed = seed, .drafter = PAIR_PERFECT});
    pair_submit(&p, &r, 1);
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
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
        struct gr_session_request r = pair_request(0, 20, 40);
        pair_chain(&r, 3);
        struct pair plain = pair_plain_run(&(struct pair_config){.seed = seed}, &r, 1);
        const int32_t *t = sim_result(plain.sim, 0)->token;
        const int32_t eos = t[2];
        const bool fresh = t[0] != eos && t[1] != eos;
        pair_destroy(&plain);
        if (!fresh) {
            continue;
        }
        struct gr_session_request stop = r;
        stop.wishes.turn.stop_ids.n = 2;
        stop.wishes.turn.stop_ids.id[0] = PAIR_N_VOCAB + 5; /* never comes */
        stop.wishes.turn.stop_ids.id[1] = eos;
        cut_run(stop, seed, GR_FINISH_STOP, 2);
        struct gr_session_request limit = r;
        limit.wishes.turn.max_tokens = 3; /* the node past the limit never enters the pass */
        cut_run(limit, seed, GR_FINISH_LENGTH, 1);
        n_done++;
    }
}

/* The context is full: reason length, every position used, with and without a drafter. */
static void test_context_limit(void **state)
{
    (void)state;
    for (int drafter = PAIR_PLAIN; drafter <= PAIR_BLURRED; drafter++) {
        for (uint32_t n_prompt = 40; n_prompt < 64; n_prompt += n_prompt < 60 ? 5 : 1) {
            struct gr_session_request r = pair_request(0, n_prompt, 10000);
            const struct pair_config c = {.seed = 5 + n_prompt, .n_ctx = 64, .n_session = 2, .drafter = drafter};
            struct pair p = pair_create(&c);
            pair_submit(&p, &r, 1);
            assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
            assert_int_equal(sim_result(p.sim, 0)->finish, GR_FINISH_LENGTH);
            assert_int_equal(sim_result(p.sim, 0)->n_token, 64 - n_prompt);
            struct pair plain = pair_plain_run(&c, &r, 1);
            pair_assert_same(plain.sim, p.sim, 0);
            pair_destroy(&plain);
            pair_destroy(&p);
        }
    }
}

/* ---- blocks ---- */

/* Blocks for two or three sessions at a time: the others wait and give the same text. */
static void test_small_pool(void **state)
{
    (void)state;
    for (int n_block = 9; n_block <= 20; n_block += 4) {
        struct gr_session_request r[8];
        for (int i = 0; i < 8; i++) {
            r[i] = pair_request(i, 20 + 5 * (uint32_t)i, 40 + 6 * (uint32_t)i);
        }
        const struct pair_config c = {
            .seed = 10, .n_session = 8, .n_pool_block = n_block, .drafter = PAIR_BLURRED, .delays = true};
        struct pair p = pair_create(&c);
        pair_submit(&p, r, 8);
        assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
        struct pair plain = pair_plain_run(&c, r, 8);
        for (int i = 0; i < 8; i++) {
            pair_assert_same(plain.sim, p.sim, i);
        }
        assert_int_equal(sim_n_error(p.sim), 0);
        pair_destroy(&plain);
        pair_destroy(&p);
    }
    struct gr_session_request huge = pair_request(0, 20, 400); /* could never be admitted: said at once */
    struct pair p = pair_create(&(struct pair_config){.seed = 10, .n_pool_block = 20, .drafter = PAIR_BLURRED});
    pair_submit(&p, &huge, 1);
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
    assert_int_equal(sim_result(p.sim, 0)->finish, GR_FINISH_ERROR);
    assert_non_null(strstr(sim_result(p.sim, 0)->text, "420"));
    pair_destroy(&p);
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
    struct gr_session_request r = pair_request(0, 3, RUN_TOKENS);
    static const int32_t prompt[] = {1, 2, 3};
    r.prompt = prompt;
    r.wishes.sampling = *s;
    r.wishes.sampling.seed = seed;
    r.wishes.n_node = 10;
    r.wishes.draft_depth = 5;
    struct pair p = pair_create(&(struct pair_config){.seed = 21,
                                                      .n_vocab = CHI_VOCAB,
                                                      .n_ctx = 4096,
                                                      .n_session = 1,
                                                      .memory = 1,
                                                      .sharpness = 2.5f,
                                                      .drafter = drafter});
    *table_out = p.table;
    pair_submit(&p, &r, 1);
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
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
            sample_run(&settings[k], PAIR_BLURRED, 1000 * k + seed, &t, &table);
        }
        const double z = transitions_z(&t, &table, &settings[k]);
        print_message("# speculative chi-square, setting %zu: deviate %.2f, %.2f accepted of a draft\n", k, z,
                      (double)t.n_accepted / (double)t.n_drafted);
        assert_true(z > -4.0 && z < 4.0);
        assert_true(t.n_accepted > t.n_drafted / 4); /* speculation did take part */
        struct gr_sampling off = settings[k];        /* and the yardstick would see a temperature 10 % off */
        off.temperature *= 1.1f;
        const double z_off = transitions_z(&t, &table, &off);
        assert_true(z_off > 6.0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_rewinds),
        cmocka_unit_test(test_2000_rounds),
        cmocka_unit_test(test_no_drafter_no_counter),
        cmocka_unit_test(test_perfect_chain),
        cmocka_unit_test(test_hopeless_drafter),
        cmocka_unit_test(test_prices_follow_the_group),
        cmocka_unit_test(test_cut_mid_path),
        cmocka_unit_test(test_context_limit),
        cmocka_unit_test(test_small_pool),
        cmocka_unit_test(test_sampled_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
