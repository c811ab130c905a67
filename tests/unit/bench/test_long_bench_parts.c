/* What `graft-bench e2e --context` is made of: prices of passes, and prompts cut out of texts. */
#include "bench/long_text.h"
#include "bench/prices.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MODEL GR_SOURCE_ROOT "/models/demo/target"

static void test_price_between_points(void **state)
{
    const struct gr_price_list list = {.n_point = {1, 3}, .n_row = {{1}, {1, 2, 8}}, .ns = {{5e6}, {1e6, 1e6, 4e6}}};
    (void)state;
    assert_true(gr_price_ns(&list, GR_PRICE_FULL, 1) == 5e6 && gr_price_ns(&list, GR_PRICE_FULL, 9) == 5e6);
    const double want[] = {1e6, 1e6, 1.5e6, 2e6, 2.5e6, 3e6, 3.5e6, 4e6, 4.5e6};
    for (int32_t n = 1; n <= 9; n++) {
        assert_true(fabs(gr_price_ns(&list, GR_PRICE_PARTIAL, n) - want[n - 1]) < 1.0);
    }
}

static void expect_points(const struct gr_price_list *list, enum gr_price_kind kind, const int32_t *row, int n)
{
    assert_int_equal(list->n_point[kind], n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(list->n_row[kind][i], row[i]);
        assert_true(list->ns[kind][i] > 0.0);
    }
}

/* Every kind of pass runs, at contexts that end within blocks and chunks, the larger one last. */
static void test_calibrating_passes(void **state)
{
    static const int32_t tree[] = {1, 2, 4, 6}, refresh[] = {2, 4, 8, 16, 22};
    struct gr_prices *p = NULL;
    struct gr_price_list list = {0};
    (void)state;
    assert_int_equal(gr_prices_create(
                         &(struct gr_prices_config){
                             .model = MODEL, .n_ctx_max = 700, .n_retrieval_max = 8, .n_tree_row = 6, .n_buffer = 16},
                         &p),
                     GR_OK);
    for (int32_t context = 333; context <= 700; context += 367) {
        assert_int_equal(gr_prices_measure(p, context, 0, &list), GR_OK);
        expect_points(&list, GR_PRICE_FULL, tree, (int)GR_ARRAY_LEN(tree));
        assert_int_equal(gr_prices_measure(p, context, 8, &list), GR_OK);
        expect_points(&list, GR_PRICE_PARTIAL, tree, (int)GR_ARRAY_LEN(tree));
        expect_points(&list, GR_PRICE_REFRESH, refresh, (int)GR_ARRAY_LEN(refresh));
        expect_points(&list, GR_PRICE_FULL, tree, (int)GR_ARRAY_LEN(tree)); /* stays */
    }
    gr_prices_destroy(p);
}

static void test_windows(void **state)
{
    struct gr_long_text t = {0};
    int32_t first[64], middle[64], last[64];
    (void)state;
    assert_int_equal(gr_long_text_load(MODEL, NULL, NULL, GR_SOURCE_ROOT "/tests/golden/long-prompt.txt", &t), GR_OK);
    assert_true(t.n > 1000 && t.bos >= 0);
    assert_int_equal(gr_long_text_window(&t, 0, 3, 64, first), GR_OK);
    assert_int_equal(gr_long_text_window(&t, 1, 3, 64, middle), GR_OK);
    assert_int_equal(gr_long_text_window(&t, 2, 3, 64, last), GR_OK);
    assert_true(first[0] == t.bos && middle[0] == t.bos && last[0] == t.bos);
    assert_memory_equal(first + 1, t.id, 63 * sizeof(int32_t));
    assert_memory_equal(middle + 1, t.id + (t.n - 63) / 2, 63 * sizeof(int32_t));
    assert_memory_equal(last + 1, t.id + t.n - 63, 63 * sizeof(int32_t));
    int32_t *all = malloc(((size_t)t.n + 1) * sizeof(*all));
    assert_non_null(all);
    assert_int_equal(gr_long_text_window(&t, 0, 1, t.n + 1, all), GR_OK);
    assert_memory_equal(all + 1, t.id, (size_t)t.n * sizeof(int32_t));
    assert_int_equal(gr_long_text_window(&t, 0, 1, t.n + 2, all), GR_ELIMIT);
    free(all);
    gr_long_text_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_price_between_points),
                                       cmocka_unit_test(test_calibrating_passes), cmocka_unit_test(test_windows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
