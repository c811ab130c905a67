/* The cost table: calibration, prediction, learning; against a made-up machine whose true costs are known. */
#include "common/rules/hash.h"
#include "target_worker/policy/cost_table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static uint64_t rng_state;

static double draw01(void)
{
    rng_state = gr_mix64(rng_state + GR_HASH_GOLDEN);
    return (double)(rng_state >> 11) * 0x1p-53;
}

/* 300 us to read the weights, 80 us a row of arithmetic, and attention. */
static double truth(const struct gr_pass_load *l)
{
    static const int32_t rows[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
    double ns = fmax(80e3 * l->n_row, 300e3);
    for (int i = 0; i < GR_COST_TREE_POINT; i++) {
        ns += fmax(300.0, 40.0 * rows[i]) * l->context[i]; /* flat to eight rows, then in proportion */
    }
    return ns;
}

static struct gr_pass_load load(int32_t n_row, int32_t context)
{
    struct gr_pass_load l = {0};
    gr_pass_load_add(&l, n_row, gr_attends_all(context));
    return l;
}

static struct gr_pass_load load_of_view(int32_t n_row, int32_t n_seen)
{
    struct gr_pass_load l = {0};
    gr_pass_load_add(&l, n_row, (struct gr_attended){.n_token = n_seen, .view = true});
    return l;
}

static void calibrate(struct gr_cost_table *c)
{
    static const int32_t rows[] = {1, 2, 4, 8, 16, 32, 64};
    double ns[7];
    for (int i = 0; i < 7; i++) {
        const struct gr_pass_load l = load(rows[i], 0);
        ns[i] = truth(&l);
    }
    gr_cost_table_init(c);
    gr_cost_table_calibrate(c, 7, rows, ns);
}

/* The machine did something else while one size was measured, the last or one in the middle. */
static void test_calibration_outliers(void **state)
{
    (void)state;
    static const int32_t rows[] = {1, 2, 4, 8, 16, 32, 64};
    for (int bad = 0; bad < 7; bad++) {
        struct gr_cost_table c;
        double ns[7];
        for (int i = 0; i < 7; i++) {
            const struct gr_pass_load l = load(rows[i], 0);
            ns[i] = (i == bad ? 400.0 : 1.0) * truth(&l);
        }
        gr_cost_table_init(&c);
        gr_cost_table_calibrate(&c, 7, rows, ns);
        for (int i = 0; i < 7; i++) {
            const struct gr_pass_load l = load(rows[i], 0);
            const double ratio = gr_cost_table_estimate(&c, &l) / truth(&l);
            assert_true(ratio > 0.99 && ratio < 3.0);
        }
    }
}

static double worst_error(const struct gr_cost_table *c)
{
    double worst = 0.0;
    for (int32_t n_row = 1; n_row <= 64; n_row += n_row < 8 ? 1 : 8) {
        for (int32_t context = 64; context <= 32768; context *= 4) {
            const struct gr_pass_load l = load(n_row, context);
            const double error = gr_cost_table_estimate(c, &l) / truth(&l) - 1.0;
            worst = fmax(worst, fabs(error));
        }
    }
    return worst;
}

static void test_calibration(void **state)
{
    (void)state;
    struct gr_cost_table c;
    calibrate(&c);
    for (int i = 0; i < 40; i++) { /* a long prompt, chunk by chunk: attention of few rows follows from it */
        const struct gr_pass_load l = load(256, 256 * (i + 1));
        gr_cost_table_observe(&c, &l, truth(&l));
    }
    print_message("# after a prompt: worst error %.3f\n", worst_error(&c));
    assert_true(worst_error(&c) < 0.25);
    for (int i = 0; i < 3000; i++) {
        const struct gr_pass_load l =
            load(1 + (int32_t)(draw01() * 63.0), 64 + (int32_t)(draw01() * draw01() * 32000.0));
        gr_cost_table_observe(&c, &l, truth(&l));
    }
    print_message("# after three thousand passes: worst error %.3f\n", worst_error(&c));
    assert_true(worst_error(&c) < 0.1);
    const struct gr_pass_load big = load(512, 100);
    assert_true(fabs(gr_cost_table_estimate(&c, &big) / truth(&big) - 1.0) < 0.1);
}

/* An H200 with Llama-3.1-8B's geometry, as its passes were recorded: attention of few rows is flat, in prompt chunks
 * dearer than in proportion, and a chunk's first 1,500 tokens of context cost most. */
static const int32_t gpu_rows[] = {1, 2, 4, 8, 16, 32, 64, 72, 96, 128, 136, 192, 256};

static double gpu_ns(int32_t n_row, int32_t context)
{
    static const double ms[] = {3.72, 3.74, 3.78, 3.83, 3.9, 4.1, 4.4, 5.1, 5.3, 5.7, 9.0, 9.5, 10.3};
    int i = 0;
    while (gpu_rows[i + 1] < n_row) {
        i++;
    }
    const double share = (double)(n_row - gpu_rows[i]) / (gpu_rows[i + 1] - gpu_rows[i]);
    const double rows_ms = ms[i] + share * (ms[i + 1] - ms[i]);
    const double chunk_ms = 0.9 * (1.0 - exp(-context / 1500.0)) + 226e-6 * context;
    return 1e6 * (rows_ms + (n_row > 64 ? chunk_ms : (37.5e-6 + 0.15e-6 * n_row) * context));
}

static double gpu_error(const struct gr_cost_table *c, int32_t n_row, int32_t context)
{
    const struct gr_pass_load l = load(n_row, context);
    return fabs(gr_cost_table_estimate(c, &l) / gpu_ns(n_row, context) - 1.0);
}

/* Sessions with long prompts, one after the other, the first ones without trees. What a session is told of one row and
 * of its trees stays true: a size that nobody has seen moves none that are known, and the first pass of a size, which
 * is 12 % slow, moves none by more. */
static void test_long_prompts(void **state)
{
    (void)state;
    struct gr_cost_table c;
    double ns[GR_ARRAY_LEN(gpu_rows)], worst = 0.0, worst_tree = 0.0;
    for (size_t i = 0; i < GR_ARRAY_LEN(gpu_rows); i++) {
        ns[i] = gpu_ns(gpu_rows[i], 0);
    }
    gr_cost_table_init(&c);
    gr_cost_table_calibrate(&c, (int)GR_ARRAY_LEN(gpu_rows), gpu_rows, ns);
    for (int session = 0; session < 12; session++) {
        static const int32_t tree[] = {1, 1, 8, 13, 12, 1, 16, 2};
        const int32_t n_prompt = session % 2 == 0 ? 15616 : 13312;
        for (int32_t end = 256; end <= n_prompt; end += 256) {
            const struct gr_pass_load l = load(256, end);
            gr_cost_table_observe(&c, &l, gpu_ns(256, end));
        }
        const struct gr_pass_load rest = load(3 + 6 * session % 60, n_prompt + 20);
        gr_cost_table_observe(&c, &rest, 1.12 * gpu_ns(rest.n_row, n_prompt + 20));
        for (int i = 0; i < (session < 4 ? 256 : 50); i++) {
            const int32_t n_row = session < 4 ? 1 : tree[(i + session) % 8];
            const int32_t context = n_prompt + 20 + i;
            if (session > 0 || i > 1) { /* before, nothing is known of attention but what it costs a chunk */
                worst = fmax(worst, gpu_error(&c, 1, context));
                worst_tree = fmax(worst_tree, session < 4 ? 0.0 : gpu_error(&c, n_row, context));
            }
            const struct gr_pass_load l = load(n_row, context);
            gr_cost_table_observe(&c, &l, gpu_ns(n_row, context));
        }
    }
    print_message("# after long prompts: worst error %.3f of a row, %.3f of a tree\n", worst, worst_tree);
    assert_true(worst < 0.06 && worst_tree < 0.12);
}

/* Never calibrated: real passes teach it. And after the machine has become twice as slow, too. */
static void test_learning(void **state)
{
    (void)state;
    struct gr_cost_table c;
    gr_cost_table_init(&c);
    for (int phase = 0; phase < 2; phase++) {
        for (int i = 0; i < 4000; i++) {
            const struct gr_pass_load l =
                load(1 + (int32_t)(draw01() * draw01() * 63.0), 100 + (int32_t)(draw01() * 8000.0));
            const double noise =
                0.95 + 0.1 * draw01() + (draw01() < 0.01 ? 10.0 : 0.0); /* one in a hundred is held up */
            gr_cost_table_observe(&c, &l, truth(&l) * noise * (phase + 1));
        }
        double error = 0.0;
        for (int i = 0; i < 200; i++) {
            const struct gr_pass_load l = load(1 + (int32_t)(draw01() * 40.0), 100 + (int32_t)(draw01() * 8000.0));
            error += fabs(gr_cost_table_estimate(&c, &l) / (truth(&l) * (phase + 1)) - 1.0) / 200.0;
        }
        print_message("# phase %d: mean error %.3f\n", phase, error);
        assert_true(error < 0.2);
    }
}

/* Passes that took no time, on a clock that says so: what is divided by an estimate stays a number. */
static void test_no_time_at_all(void **state)
{
    (void)state;
    struct gr_cost_table c;
    calibrate(&c);
    for (int i = 0; i < 4000; i++) {
        const struct gr_pass_load l = load(1 + i % 8, i % 3 * 3000);
        gr_cost_table_observe(&c, &l, 0.0);
    }
    for (int32_t n_row = 1; n_row <= 64; n_row *= 2) {
        const struct gr_pass_load l = load(n_row, 0);
        const double ns = gr_cost_table_estimate(&c, &l);
        assert_true(ns >= 1.0 && isfinite(ns));
    }
}

static void test_price_list(void **state)
{
    (void)state;
    struct gr_cost_table c;
    struct gr_cost list;
    calibrate(&c);
    for (int i = 0; i < 2000; i++) {
        const struct gr_pass_load l = load(1 + (int32_t)(draw01() * 63.0), 500 + (int32_t)(draw01() * 5000.0));
        gr_cost_table_observe(&c, &l, truth(&l));
    }
    const struct gr_pass_load others = load(15, 3000);
    struct gr_pass_load with[GR_COST_POINT_MAX];
    int32_t n_row[GR_COST_POINT_MAX];
    const int n = gr_cost_list_rows(others.n_row, 1, n_row);
    for (int i = 0; i < n; i++) {
        const struct gr_pass_load own = load(n_row[i], 1000);
        with[i] = others;
        gr_pass_load_add(&with[i], n_row[i], gr_attends_all(1000));
        const struct gr_pass_load sum = gr_pass_load_sum(&own, &others);
        assert_int_equal(sum.n_row, with[i].n_row);
        for (int k = 0; k < GR_COST_CONTEXT_POINT; k++) {
            assert_true(fabs(sum.context[k] - with[i].context[k]) < 1e-6);
        }
    }
    gr_cost_table_list(&c, n, n_row, with, 42e3, &list);
    assert_int_equal(list.overhead_ns, 42000);
    assert_int_equal(list.n_row[0], 1);
    assert_int_equal(list.n_row[list.n_point - 1], 64);
    for (uint32_t i = 0; i < list.n_point; i++) {
        assert_int_equal(list.n_row[i], n_row[i]);
        assert_true(fabs(list.pass_ns[i] / truth(&with[i]) - 1.0) < 0.05);
        assert_true(i == 0 || list.pass_ns[i] >= list.pass_ns[i - 1]); /* more rows never cost less */
    }
}

/* A list's points rise from 1 to 64, and on both sides of each step there is one. */
static void test_list_rows(void **state)
{
    (void)state;
    static const int32_t step[] = {64, 128, 256};
    for (int32_t others = 0; others < 300; others += 7) {
        for (int n_alike = 1; n_alike <= 64; n_alike++) {
            int32_t row[GR_COST_POINT_MAX];
            const int n = gr_cost_list_rows(others, n_alike, row);
            assert_in_range(n, GR_COST_TREE_POINT, GR_COST_POINT_MAX);
            assert_true(row[0] == 1 && row[n - 1] == GR_TREE_MAX);
            for (int i = 1; i < n; i++) {
                assert_true(row[i] > row[i - 1]);
            }
            for (size_t k = 0; k < 2; k++) {
                const int32_t most = (step[k] - others) / n_alike;
                bool below = most < 1 || most > GR_TREE_MAX, above = most < 0 || most >= GR_TREE_MAX;
                for (int i = 0; i < n; i++) {
                    below = below || row[i] == most;
                    above = above || row[i] == most + 1;
                }
                assert_true(below && above);
            }
        }
    }
}

/* Rows under a view cost twice as much a token of what they see; neither kind moves the other once both are
 * known. */
static void test_views_apart(void **state)
{
    (void)state;
    struct gr_cost_table c;
    gr_cost_table_init(&c);
    calibrate(&c);
    for (int i = 0; i < 60; i++) {
        const struct gr_pass_load all = load(1 + i % 16, 16000 + 10 * i);
        gr_cost_table_observe(&c, &all, truth(&all));
    }
    const struct gr_pass_load unseen = load_of_view(8, 4000);
    const struct gr_pass_load alike = load(8, 4000);
    assert_true(fabs(gr_cost_table_estimate(&c, &unseen) / gr_cost_table_estimate(&c, &alike) - 1.0) < 0.01);
    for (int i = 0; i < 200; i++) {
        const int32_t n_row = 1 + i % 16;
        const int32_t n_seen = 4000 + 10 * (i % 10);
        const struct gr_pass_load view = load_of_view(n_row, n_seen);
        const struct gr_pass_load twice = load(n_row, 2 * n_seen);
        const struct gr_pass_load all = load(n_row, 16000 + 10 * i);
        gr_cost_table_observe(&c, &view, truth(&twice));
        gr_cost_table_observe(&c, &all, truth(&all));
    }
    const struct gr_pass_load twice = load(8, 8000);
    const struct gr_pass_load all = load(8, 16000);
    assert_true(fabs(gr_cost_table_estimate(&c, &unseen) / truth(&twice) - 1.0) < 0.1);
    assert_true(fabs(gr_cost_table_estimate(&c, &all) / truth(&all) - 1.0) < 0.1);
}

/* ---- a start beside other processes ---- */

#define N_NODE 24

/* A CPU with a 135M model: 9.5 ms for a row, a quarter of it for each row more. */
static double cpu_ns(int32_t n_row)
{
    return 9.5e6 * (0.75 + 0.25 * n_row);
}

/* What a tree of so many nodes brings, best nodes first: five pay on this machine. */
static double tokens_of(int n_node)
{
    double sum = 1.0, p = 0.62;
    for (int i = 0; i < n_node; i++) {
        sum += p;
        p *= 0.84;
    }
    return sum;
}

static double true_rate(int n_node)
{
    return tokens_of(n_node) / (cpu_ns(1 + n_node) + 1e6);
}

/* By a price list, linear between its points. */
static int best_size(const struct gr_cost *list)
{
    double best = 0.0;
    int best_n = 0;
    for (int n = 0; n <= N_NODE; n++) {
        uint32_t k = 0;
        while (k + 2 < list->n_point && list->n_row[k + 1] < (uint32_t)(n + 1)) {
            k++;
        }
        const double share = (n + 1.0 - list->n_row[k]) / (list->n_row[k + 1] - list->n_row[k]);
        const double ns = list->pass_ns[k] + share * ((double)list->pass_ns[k + 1] - list->pass_ns[k]);
        const double rate = tokens_of(n) / (ns + 1e6);
        best_n = rate > best ? n : best_n;
        best = fmax(best, rate);
    }
    return best_n;
}

static struct gr_cost prices(const struct gr_cost_table *c)
{
    struct gr_pass_load with[GR_COST_POINT_MAX];
    int32_t n_row[GR_COST_POINT_MAX];
    struct gr_cost list;
    const int n = gr_cost_list_rows(0, 1, n_row);
    for (int i = 0; i < n; i++) {
        with[i] = load(n_row[i], 100);
    }
    gr_cost_table_list(c, n, n_row, with, 1e6, &list);
    return list;
}

/* Decodes by the table's own choices on a machine that is quiet now; told every fourth round. Tokens a ns against those
 * of the best size. */
static double decode(struct gr_cost_table *c, int n_token)
{
    double tokens = 0.0, ns = 0.0, best = 0.0;
    struct gr_cost list = prices(c);
    for (int n = 0; n <= N_NODE; n++) {
        best = fmax(best, true_rate(n));
    }
    for (int round = 0; tokens < n_token; round++) {
        list = round % 4 == 0 ? prices(c) : list;
        const int n_node = best_size(&list);
        const struct gr_pass_load l = load(1 + n_node, 100);
        gr_cost_table_observe(c, &l, cpu_ns(1 + n_node) * (0.97 + 0.06 * draw01()));
        tokens += tokens_of(n_node);
        ns += cpu_ns(1 + n_node) + 1e6;
    }
    return tokens / ns / best;
}

/* What a size was measured to take beside other processes, against a quiet machine. */
static double slowed(int kind, int32_t n_row)
{
    switch (kind) {
    case 0:
        return 1.0;
    case 1:
        return 1.85; /* all alike */
    case 2:
        return n_row >= 4 ? 2.2 : 1.0; /* short passes were through before others had their turn */
    case 3:
        return 1.0 + 1.5 * draw01();
    default:
        return n_row == 8 || n_row == 16 ? 3.0 : 1.1;
    }
}

static double learnt_beside_others(int kind, int n_token)
{
    static const int32_t rows[] = {1, 2, 4, 8, 16, 32};
    struct gr_cost_table c;
    double ns[6];
    for (int i = 0; i < 6; i++) {
        ns[i] = cpu_ns(rows[i]) * slowed(kind, rows[i]);
    }
    gr_cost_table_init(&c);
    gr_cost_table_calibrate(&c, 6, rows, ns);
    (void)decode(&c, n_token);
    return decode(&c, 128);
}

/* After one turn of 128 tokens the sizes are those of a quiet start, however the prices came about; and a quiet start
 * loses nothing by trying what looks dear. */
static void test_start_beside_others(void **state)
{
    (void)state;
    for (int kind = 0; kind < 5; kind++) {
        double worst = 1.0, sum = 0.0;
        for (int i = 0; i < 50; i++) {
            const double share = learnt_beside_others(kind, 128);
            worst = fmin(worst, share);
            sum += share / 50.0;
        }
        print_message("# start %d: second turn at %.3f of the best speed, worst %.3f\n", kind, sum, worst);
        assert_true(sum > 0.97 && worst > 0.94);
    }
    const double later = learnt_beside_others(0, 5000);
    print_message("# quiet, after 5000 tokens: %.4f\n", later);
    assert_true(later > 0.99); /* what trying costs, for ever */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start_beside_others),
        cmocka_unit_test(test_views_apart),
        cmocka_unit_test(test_calibration_outliers),
        cmocka_unit_test(test_calibration),
        cmocka_unit_test(test_learning),
        cmocka_unit_test(test_long_prompts),
        cmocka_unit_test(test_no_time_at_all),
        cmocka_unit_test(test_price_list),
        cmocka_unit_test(test_list_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
