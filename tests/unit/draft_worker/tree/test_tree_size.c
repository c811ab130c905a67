/* The size of a tree: against brute force, and whole simulated drafts with known acceptance against the best that
 * hindsight could have chosen. */
#include "common/rules/hash.h"
#include "draft_worker/tree/tree_builder.h"
#include "draft_worker/tree/tree_size.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static double uniform(uint64_t *rng)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return (double)(*rng >> 11) * 0x1p-53;
}

/* A pass of n rows: flat for a model in memory, linear where arithmetic binds. */
static struct gr_cost cost_of(uint32_t overhead_us, uint32_t base_us, uint32_t row_us)
{
    struct gr_cost c = {.overhead_ns = overhead_us * 1000, .n_point = 3, .n_row = {1, 8, 64}};
    for (int i = 0; i < 3; i++) {
        c.pass_ns[i] = (base_us + row_us * c.n_row[i]) * 1000;
    }
    return c;
}

static void test_round_cost(void **state)
{
    (void)state;
    struct gr_round_cost r;
    gr_round_cost_init(
        &r, &(struct gr_cost){.overhead_ns = 7, .n_point = 3, .n_row = {1, 5, 9}, .pass_ns = {100, 140, 180}}, 0.0f);
    assert_true(r.overhead_ns == 7.0f);
    assert_float_equal(r.pass_ns[1], 100.0f, 1e-3f);
    assert_float_equal(r.pass_ns[3], 120.0f, 1e-3f);
    assert_float_equal(r.pass_ns[9], 180.0f, 1e-3f);
    assert_float_equal(r.pass_ns[64], 180.0f + 550.0f, 1e-2f); /* beyond the last point: its slope */
    gr_round_cost_init(&r, &(struct gr_cost){.n_point = 1, .n_row = {1}, .pass_ns = {100}}, 0.0f);
    assert_float_equal(r.pass_ns[64], 100.0f, 1e-3f);
    gr_round_cost_init(&r, &(struct gr_cost){.n_point = 2, .n_row = {1, 64}, .pass_ns = {100, 50}}, 0.0f);
    assert_float_equal(r.pass_ns[64], 100.0f, 1e-3f); /* never falls */
}

static int falling_probs(uint64_t *rng, float *p)
{
    const int n = (int)(uniform(rng) * 64.0);
    double x = 1.0;
    for (int i = 0; i < n; i++) {
        x *= 0.5 + 0.5 * uniform(rng);
        p[i] = (float)x;
    }
    return n;
}

static double rate_of(const struct gr_round_cost *r, double draft_ns, const float *p, int n)
{
    double sum = 1.0;
    for (int i = 0; i < n; i++) {
        sum += (double)p[i];
    }
    return sum / (draft_ns + (double)r->overhead_ns + (double)r->pass_ns[n + 1]);
}

static void test_size_is_the_best(void **state)
{
    (void)state;
    uint64_t rng = 5;
    for (int i = 0; i < 20000; i++) {
        float p[GR_NODE_MAX];
        const int n = falling_probs(&rng, p);
        struct gr_round_cost r;
        struct gr_cost c = {.overhead_ns = (uint32_t)(uniform(&rng) * 1e5), .n_point = 4, .n_row = {1, 3, 17, 40}};
        for (int k = 0; k < 4; k++) { /* any shape, steps included */
            c.pass_ns[k] = (k > 0 ? c.pass_ns[k - 1] : 50000) + (uint32_t)(uniform(&rng) * 4e5);
        }
        gr_round_cost_init(&r, &c, 0.0f);
        const double draft_ns = uniform(&rng) * 3e5;
        float rate = 0.0f;
        const int got = gr_tree_size(&r, (float)draft_ns, p, n, &rate);
        double best = 0.0;
        for (int k = 0; k <= n; k++) {
            best = fmax(best, rate_of(&r, draft_ns, p, k));
        }
        assert_in_range(got, 0, n);
        assert_true(rate_of(&r, draft_ns, p, got) >= best * (1.0 - 1e-5));
        assert_true(fabs((double)rate / best - 1.0) < 1e-4);
    }
}

/* Dearer rows: never more nodes. Dearer everything else: never fewer. */
static void test_size_is_monotone(void **state)
{
    (void)state;
    uint64_t rng = 9;
    for (int i = 0; i < 2000; i++) {
        float p[GR_NODE_MAX];
        float rate = 0.0f;
        const int n = falling_probs(&rng, p);
        int last = GR_NODE_MAX;
        for (uint32_t row_us = 0; row_us < 400; row_us += 5) {
            struct gr_round_cost r;
            const struct gr_cost c = cost_of(20, 300, row_us);
            gr_round_cost_init(&r, &c, 0.0f);
            const int got = gr_tree_size(&r, 50e3f, p, n, &rate);
            assert_true(got <= last);
            last = got;
        }
        last = 0;
        for (uint32_t overhead_us = 0; overhead_us < 2000; overhead_us += 50) {
            struct gr_round_cost r;
            const struct gr_cost c = cost_of(overhead_us, 300, 30);
            gr_round_cost_init(&r, &c, 0.0f);
            const int got = gr_tree_size(&r, 50e3f, p, n, &rate);
            assert_true(got >= last);
            last = got;
        }
    }
}

static void test_level_times(void **state)
{
    (void)state;
    struct gr_level_model m = {0};
    assert_true(gr_level_ns(&m, 5) == 0.0f); /* unknown: free, so that it is tried */
    for (int i = 0; i < 200; i++) {
        gr_level_observe_ns(&m, 4, 50e3f);
        gr_level_observe_ns(&m, 8, i % 50 == 49 ? 9e6f : 70e3f); /* a preempted thread now and then */
    }
    assert_float_equal(gr_level_ns(&m, 1), 50e3f, 1.0f);
    assert_float_equal(gr_level_ns(&m, 4), 50e3f, 1.0f);
    assert_true(gr_level_ns(&m, 6) > 55e3f && gr_level_ns(&m, 6) < 80e3f);
    assert_true(gr_level_ns(&m, 16) > gr_level_ns(&m, 8));
    const float each = (gr_level_ns(&m, 64) - gr_level_ns(&m, 1)) / 63.0f; /* of a row, where none was ever seen */
    assert_float_equal(gr_level_ns(&m, 164), gr_level_ns(&m, 64) + 100.0f * each, 100.0f);
    /* the first measurement of a larger level is a spike: it is never dearer than its rows one by one */
    gr_level_observe_ns(&m, 12, 5e7f);
    gr_level_observe_ns(&m, 4, 50e3f);
    assert_true(gr_level_ns(&m, 12) <= 150e3f + 1.0f);
    gr_level_observe_ns(&m, 20, 40e3f); /* and fewer rows never take longer */
    assert_true(gr_level_ns(&m, 8) <= 40e3f + 1.0f);
    gr_level_observe_ns(&m, 0, 1.0f);
    gr_level_observe_ns(&m, 65, 1.0f);
}

/* Measured beside other processes, which have ended since; trees are small now, and large levels are not seen. */
static void test_level_times_beside_others(void **state)
{
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        struct gr_level_model m = {0};
        const float then = slow ? 0.5f : 2.0f;
        for (int i = 0; i < 20; i++) {
            for (int n = 1; n <= 10; n++) {
                gr_level_observe_ns(&m, n, then * (40e3f + 3e3f * (float)n));
            }
        }
        for (int i = 0; i < 60; i++) {
            gr_level_observe_ns(&m, 1 + i % 2, 40e3f + 3e3f * (float)(1 + i % 2));
        }
        assert_float_equal(gr_level_ns(&m, 2), 46e3f, 1e3f);
        assert_true(gr_level_ns(&m, 8) > 0.6f * 64e3f && gr_level_ns(&m, 8) < 1.6f * 64e3f);
    }
}

/* ---- whole drafts ---- */

/* A synthetic draft model whose probabilities are true: the child of rank r is accepted with the probability it is
 * given. sure: how often a context is certain (0.95) rather than doubtful (0.35). */
struct world {
    uint64_t seed;
    double sure, p_sure, p_doubt;
};

static int world_children(const struct world *w, uint64_t context, float *edge, float *prob)
{
    uint64_t rng = context ^ w->seed;
    double left = 1.0;
    double share = uniform(&rng) < w->sure ? w->p_sure : w->p_doubt;
    for (int i = 0; i < 8; i++) {
        const double p = left * share;
        prob[i] = (float)p;
        edge[i] = (float)log(p);
        left -= p;
        share = GR_MIN(share, 0.5);
    }
    return 8;
}

static struct gr_tree_builder builder;
static uint64_t context_of[GR_BUILDER_CAND_MAX];

static void world_expand(const struct world *w, uint64_t context, int cand, struct gr_level_model *m)
{
    static const int32_t token[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    float edge[8];
    float prob[8];
    const int before = builder.n_cand;
    const int n = world_children(w, context, edge, prob);
    gr_tree_builder_add(&builder, cand, n, token, edge, prob);
    for (int i = before; i < builder.n_cand; i++) {
        context_of[i] = gr_hash_extend(context, builder.cand[i].token);
    }
    gr_level_observe_yield(m, cand < 0 ? -1.0f : builder.cand[cand].prob, n, prob);
}

struct outcome {
    double tokens, ns; /* expected tokens and time of the round */
    int n_level, n_node;
};

/* One draft. n_level_max < 0: grows as the rule says; else exactly so many levels of at most n_row rows. */
static struct outcome draft(const struct world *w, uint64_t context, const struct gr_round_cost *r,
                            struct gr_level_model *m, int n_level_max, int n_row)
{
    struct outcome o = {.tokens = 1.0};
    float p[GR_NODE_MAX];
    float rate = 0.0f;
    double draft_ns = 50e3;
    gr_tree_builder_reset(&builder);
    gr_tree_builder_begin(&builder,
                          &(struct gr_tree_config){.n_node = 63, .depth = 63, .top_k = 8, .best_first = true});
    world_expand(w, context, -1, m);
    for (;;) {
        int16_t front[GR_DRAFT_TOP_K_MAX];
        struct gr_front f = {.cost = r, .p = p, .n = builder.n_best, .n_max = 63};
        f.n_open = gr_tree_builder_open(&builder, front);
        for (int i = 0; i < f.n_open; i++) {
            f.open[i] = (struct gr_open_candidate){builder.cand[front[i]].score, builder.cand[front[i]].prob};
        }
        for (int i = 0; i < builder.n_best; i++) {
            p[i] = builder.cand[builder.best[i]].score;
        }
        gr_tree_size_next_level(m, (float)draft_ns, 0, &f, 1);
        int n = n_level_max < 0 ? f.n_row : o.n_level < n_level_max ? GR_MIN(n_row, f.n_open) : 0;
        n = gr_tree_builder_expand(&builder, n, front, true);
        if (n == 0) {
            break;
        }
        draft_ns += (double)gr_level_ns(m, n);
        o.n_level++;
        for (int i = 0; i < n; i++) {
            world_expand(w, context_of[front[i]], front[i], m);
        }
    }
    o.n_node = gr_tree_size(r, (float)draft_ns, p, builder.n_best, &rate);
    for (int i = 0; i < o.n_node; i++) {
        o.tokens += (double)p[i];
    }
    o.ns = draft_ns + (double)r->overhead_ns + (double)r->pass_ns[o.n_node + 1];
    return o;
}

static struct outcome many_drafts(const struct world *w, const struct gr_round_cost *r, struct gr_level_model *m,
                                  int n_level_max, int n_row)
{
    struct outcome all = {0};
    for (uint64_t i = 0; i < 200; i++) {
        const struct outcome o = draft(w, gr_mix64(i + 1), r, m, n_level_max, n_row);
        all.tokens += o.tokens;
        all.ns += o.ns;
        all.n_level += o.n_level;
        all.n_node += o.n_node;
    }
    return all;
}

/* The rate over many rounds against the best fixed number of levels and rows for this very world: not below 0.98 of it.
 */
static void test_growth_near_the_best(void **state)
{
    (void)state;
    static const struct world worlds[] = {
        {1, 0.0, 0.95, 0.3}, {2, 0.5, 0.95, 0.35}, {3, 0.9, 0.95, 0.35}, {4, 1.0, 0.97, 0.3}, {5, 0.2, 0.9, 0.15}};
    static const uint32_t costs[][3] = {{30, 300, 2}, {30, 300, 40}, {200, 3000, 20}, {10, 60, 60}};
    for (size_t i = 0; i < GR_ARRAY_LEN(worlds); i++) {
        for (size_t k = 0; k < GR_ARRAY_LEN(costs); k++) {
            struct gr_round_cost r;
            struct gr_level_model m = {0};
            const struct gr_cost c = cost_of(costs[k][0], costs[k][1], costs[k][2]);
            gr_round_cost_init(&r, &c, 0.0f);
            for (int n = 1; n <= GR_LEVEL_ROW_MAX; n++) {
                m.ns[n] = 45e3f + 3e3f * (float)n;
            }
            (void)many_drafts(&worlds[i], &r, &m, -1, 0); /* learns what levels bring */
            const struct outcome got = many_drafts(&worlds[i], &r, &m, -1, 0);
            double best = 0.0;
            for (int level = 0; level <= 24; level += level < 8 ? 1 : 4) {
                for (int n_row = 1; n_row <= 8; n_row *= 2) {
                    const struct outcome o = many_drafts(&worlds[i], &r, &m, level, n_row);
                    best = fmax(best, o.tokens / o.ns);
                }
            }
            struct outcome at_rate = got;
            for (int turn = 0; turn < 4; turn++) { /* the rate on the whole, learnt from its own rounds */
                gr_round_cost_init(&r, &c, (float)(at_rate.tokens / at_rate.ns));
                at_rate = many_drafts(&worlds[i], &r, &m, -1, 0);
            }
            const double whole = at_rate.tokens / at_rate.ns / best;
            print_message("# at the rate on the whole: %.3f; %.1f levels, %.1f nodes\n", whole, at_rate.n_level / 200.0,
                          at_rate.n_node / 200.0);
            const double part = got.tokens / got.ns / best;
            print_message("# world %zu cost %zu: %.3f of the best fixed shape; %.1f levels, %.1f nodes\n", i, k, part,
                          got.n_level / 200.0, got.n_node / 200.0);
            assert_true(part > 0.98 && whole > 0.995 * part);
        }
    }
}

/* Certain drafts make deep chains; hopeless ones end at once; dearer passes never grow more nodes on the mean. */
static void test_growth_follows(void **state)
{
    (void)state;
    struct gr_round_cost r;
    struct gr_level_model m = {0};
    for (int n = 1; n <= GR_LEVEL_ROW_MAX; n++) {
        m.ns[n] = 20e3f + 2e3f * (float)n;
    }
    struct gr_cost c = cost_of(30, 2000, 5);
    gr_round_cost_init(&r, &c, 0.0f);
    const struct world certain = {1, 1.0, 0.995, 0.5};
    (void)many_drafts(&certain, &r, &m, -1, 0);
    const struct outcome deep = draft(&certain, 77, &r, &m, -1, 0);
    assert_true(deep.n_level >= 30 && deep.n_node >= 30);
    const struct world hopeless = {1, 0.0, 0.5, 0.004};
    memset(m.yield, 0, sizeof(m.yield));
    memset(m.n_yield, 0, sizeof(m.n_yield));
    c = cost_of(30, 300, 40);
    gr_round_cost_init(&r, &c, 0.0f);
    const struct outcome none = draft(&hopeless, 77, &r, &m, -1, 0);
    assert_int_equal(none.n_level, 0);
    assert_int_equal(none.n_node, 0);
    double last = 1e9;
    const struct world mixed = {2, 0.5, 0.95, 0.35};
    for (uint32_t row_us = 0; row_us <= 200; row_us += 20) {
        c = cost_of(30, 300, row_us);
        gr_round_cost_init(&r, &c, 0.0f);
        (void)many_drafts(&mixed, &r, &m, -1, 0);
        const struct outcome o = many_drafts(&mixed, &r, &m, -1, 0);
        assert_true((double)o.n_node <= last);
        last = (double)o.n_node;
    }
}

/* ---- trees of one job ---- */

/* A tree of one node, which could be expanded. */
static struct gr_front front_of(const struct gr_round_cost *r, const float *p, float prob)
{
    struct gr_front f = {.cost = r, .p = p, .n = 1, .n_max = 63, .n_open = 1};
    f.open[0] = (struct gr_open_candidate){.score = p[0], .prob = prob};
    return f;
}

/* A level of 200 us, 1 us more a row; 3 tokens in 5 ms where a pass takes 4 ms and 10 us a row. */
static void test_levels_together(void **state)
{
    (void)state;
    static const float sure[1] = {0.9f};
    static const float doubtful[1] = {0.15f};
    struct gr_round_cost r;
    struct gr_level_model m = {0};
    struct gr_front f[16];
    const struct gr_cost c = cost_of(0, 4000, 10);
    gr_round_cost_init(&r, &c, 3.0f / 5e6f);
    for (int n = 1; n <= 64; n++) {
        gr_level_observe_ns(&m, n, 200e3f + 1e3f * (float)n);
    }
    /* alone: what it brings against the whole level */
    f[0] = front_of(&r, sure, 0.9f);
    gr_tree_size_next_level(&m, 500e3f, 0, f, 1);
    assert_int_equal(f[0].n_row, 1);
    f[0] = front_of(&r, doubtful, 0.15f);
    gr_tree_size_next_level(&m, 500e3f, 0, f, 1);
    assert_int_equal(f[0].n_row, 0);
    /* where rows run anyway, or for others, it pays only for its row */
    f[0] = front_of(&r, doubtful, 0.15f);
    gr_tree_size_next_level(&m, 500e3f, 8, f, 1);
    assert_int_equal(f[0].n_row, 1);
    for (int i = 0; i < 8; i++) {
        f[i] = i < 7 ? front_of(&r, sure, 0.9f) : front_of(&r, doubtful, 0.15f);
    }
    gr_tree_size_next_level(&m, 500e3f, 0, f, 8);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(f[i].n_row, 1);
    }
    /* one tree does not hold up fifteen others that are done */
    for (int i = 0; i < 16; i++) {
        f[i] = front_of(&r, sure, 0.9f);
        f[i].n_open = i == 0;
    }
    gr_tree_size_next_level(&m, 500e3f, 0, f, 16);
    assert_int_equal(f[0].n_row, 0);
    gr_tree_size_next_level(&m, 500e3f, 0, f, 2); /* but one it does */
    assert_int_equal(f[0].n_row, 1);
    assert_int_equal(f[1].n_row, 0);
}

/* What a size is worth: tokens less the price of the pass, or, where the rate is not known, tokens a ns. */
static double worth(const struct gr_round_cost *r, double draft_ns, const float *p, int n)
{
    double sum = 0.0;
    if (!(r->rate > 0.0f)) {
        return rate_of(r, draft_ns, p, n) * 1e6;
    }
    for (int i = 0; i < n; i++) {
        sum += (double)p[i];
    }
    return sum - (double)r->rate * ((double)r->pass_ns[n + 1] - (double)r->pass_ns[1]);
}

/* One tree of a job is sized as one tree is. */
static void test_sizes_of_one(void **state)
{
    (void)state;
    uint64_t rng = 11;
    for (int i = 0; i < 5000; i++) {
        float p[GR_NODE_MAX];
        const int n = falling_probs(&rng, p);
        const uint32_t base_us = 300 + (uint32_t)(uniform(&rng) * 3000.0);
        const struct gr_cost c = cost_of(30, base_us, (uint32_t)(uniform(&rng) * 60.0));
        struct gr_round_cost r;
        float rate = 0.0f;
        gr_round_cost_init(&r, &c, i % 2 == 0 ? 0.0f : (float)(uniform(&rng) * 5e-6));
        struct gr_front f = {.cost = &r, .p = p, .n = n};
        gr_tree_sizes(200e3f, &f, 1);
        const int alone = gr_tree_size(&r, 200e3f, p, n, &rate);
        assert_true(fabs(worth(&r, 200e3, p, f.n_node) - worth(&r, 200e3, p, alone)) < 1e-4);
    }
}

/* Tokens of all less the price of the pass, for two trees of a and b nodes. */
static double value_of_two(const struct gr_round_cost *r, const struct gr_front *f, int a, int b)
{
    const int n_row = 2 + a + b;
    const double ns = 0.5 * ((double)r->pass_ns[n_row / 2] + (double)r->pass_ns[(n_row + 1) / 2]);
    double value = -2.0 * (double)r->rate * (ns - (double)r->pass_ns[1]);
    for (int i = 0; i < a; i++) {
        value += (double)f[0].p[i];
    }
    for (int i = 0; i < b; i++) {
        value += (double)f[1].p[i];
    }
    return value;
}

/* Two trees: as good as the best of all pairs of sizes. */
static void test_sizes_of_two(void **state)
{
    (void)state;
    uint64_t rng = 12;
    for (int i = 0; i < 500; i++) {
        float p[2][GR_NODE_MAX];
        struct gr_front f[2];
        struct gr_round_cost r;
        struct gr_cost c = {.n_point = 5, .n_row = {1, 8, 9, 32, 64}};
        for (int k = 0; k < 5; k++) { /* with steps anywhere */
            c.pass_ns[k] = (k > 0 ? c.pass_ns[k - 1] : 1000000) + (uint32_t)(uniform(&rng) * 1e6);
        }
        gr_round_cost_init(&r, &c, (float)(1e-6 + uniform(&rng) * 2e-6));
        for (int k = 0; k < 2; k++) {
            f[k] = (struct gr_front){.cost = &r, .p = p[k], .n = falling_probs(&rng, p[k])};
        }
        gr_tree_sizes(100e3f, f, 2);
        const double got = value_of_two(&r, f, f[0].n_node, f[1].n_node);
        for (int a = 0; a <= f[0].n; a++) {
            for (int b = 0; b <= f[1].n; b++) {
                assert_true(got > value_of_two(&r, f, a, b) - 1e-4);
            }
        }
    }
}

/* Eight trees below a step after 64 rows of all: one that is sure of itself takes rows that others do not use, and
 * none goes over the step for a little. */
static void test_sizes_and_a_step(void **state)
{
    (void)state;
    static const float sure[] = {0.99f, 0.98f, 0.97f, 0.96f, 0.95f, 0.94f, 0.93f, 0.92f, 0.91f, 0.9f, 0.89f, 0.88f};
    static const float doubtful[] = {0.5f, 0.4f, 0.35f, 0.3f, 0.27f, 0.25f, 0.22f, 0.2f};
    const struct gr_cost c = {.overhead_ns = 100000,
                              .n_point = 5,
                              .n_row = {1, 8, 9, 16, 64},
                              .pass_ns = {3900000, 4500000, 5700000, 6200000, 20000000}};
    struct gr_round_cost r;
    struct gr_front f[8];
    gr_round_cost_init(&r, &c, 0.6e-6f);
    for (int n_sure = 0; n_sure <= 4; n_sure++) {
        int n_row = 0;
        for (int i = 0; i < 8; i++) {
            f[i] = i < n_sure ? (struct gr_front){.cost = &r, .p = sure, .n = GR_ARRAY_LEN(sure)}
                              : (struct gr_front){.cost = &r, .p = doubtful, .n = GR_ARRAY_LEN(doubtful)};
        }
        gr_tree_sizes(1e6f, f, 8);
        for (int i = 0; i < 8; i++) {
            n_row += 1 + f[i].n_node;
            assert_true(i >= n_sure || f[i].n_node == (int)GR_ARRAY_LEN(sure));
        }
        assert_in_range(n_row, 56, 64);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_of_one),         cmocka_unit_test(test_sizes_of_two),
        cmocka_unit_test(test_sizes_and_a_step),     cmocka_unit_test(test_round_cost),
        cmocka_unit_test(test_size_is_the_best),     cmocka_unit_test(test_size_is_monotone),
        cmocka_unit_test(test_level_times),          cmocka_unit_test(test_level_times_beside_others),
        cmocka_unit_test(test_growth_near_the_best), cmocka_unit_test(test_growth_follows),
        cmocka_unit_test(test_levels_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
