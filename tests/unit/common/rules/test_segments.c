#include "common/rules/segments.h"

#include "common/base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void expect(const struct gr_segments *s, int n, const int *end, const int *n_join)
{
    assert_int_equal(s->n, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(s->end[i], end[i]);
        assert_int_equal(s->n_join[i], n_join[i]);
    }
}

static void test_two_units_are_the_first_of_each_half(void **state)
{
    (void)state;
    static const int begin[] = {0, 1, 1, 1, 1, 2, 2, 2, 2};
    for (int i = 0; i <= 8; i++) {
        assert_int_equal(gr_segment_begin(2, 8, i), begin[i]);
    }
    const struct gr_segments s = gr_segments_of(1024, 512, 8);
    expect(&s, 2, (int[]){512, 1024}, (int[]){0, 1});
}

static void test_the_left_half_takes_the_odd_unit(void **state)
{
    (void)state;
    static const int begin[] = {0, 12, 23, 34, 45, 57, 68, 79, 90};
    for (int i = 0; i <= 8; i++) {
        assert_int_equal(gr_segment_begin(90, 8, i), begin[i]);
    }
    assert_int_equal(gr_segment_begin(90, 4, 1), 23);
    assert_int_equal(gr_segment_begin(90, 4, 2), 45);
    assert_int_equal(gr_segment_begin(90, 1, 0), 0);
    assert_int_equal(gr_segment_begin(90, 1, 1), 90);
}

static void test_all_eight(void **state)
{
    (void)state;
    const struct gr_segments s = gr_segments_of(14336, GR_SEGMENT_UNIT, 8);
    expect(&s, 8, (int[]){1792, 3584, 5376, 7168, 8960, 10752, 12544, 14336}, (int[]){0, 1, 0, 2, 0, 1, 0, 3});
}

static void test_of_layers(void **state)
{
    (void)state;
    const struct gr_segments o = gr_segments_of_o(4096, 8), demo = gr_segments_of_o(384, 2);
    const struct gr_segments down = gr_segments_of_down(1536);
    expect(&o, 8, (int[]){512, 1024, 1536, 2048, 2560, 3072, 3584, 4096}, (int[]){0, 1, 0, 2, 0, 1, 0, 3});
    expect(&demo, 2, (int[]){192, 384}, (int[]){0, 1});
    expect(&down, 8, (int[]){192, 384, 576, 768, 960, 1152, 1344, 1536}, (int[]){0, 1, 0, 2, 0, 1, 0, 3});
}

static void test_few_units_and_a_short_one(void **state)
{
    (void)state;
    const struct gr_segments one = gr_segments_of(40, 64, 8), three = gr_segments_of(150, 64, 8);
    const struct gr_segments five = gr_segments_of(5 * 96, 96, 8), none = gr_segments_of(0, 64, 8);
    expect(&one, 1, (int[]){40}, (int[]){0});
    expect(&three, 3, (int[]){64, 128, 150}, (int[]){0, 1, 1});                /* 2 | 1 */
    expect(&five, 5, (int[]){96, 192, 288, 384, 480}, (int[]){0, 1, 1, 0, 2}); /* (2 | 1) | (1 | 1) */
    expect(&none, 0, NULL, NULL);
}

/* The stack never holds more than it has room for while a segment is summed, and one sum is left. */
static void test_the_stack(void **state)
{
    (void)state;
    for (int n_unit = 1; n_unit < 300; n_unit++) {
        const struct gr_segments s = gr_segments_of(n_unit * 16, 16, 8);
        int height = 0;
        for (int i = 0; i < s.n; i++) {
            assert_in_range(height, 0, GR_SEGMENT_PENDING);
            assert_true(s.n_join[i] <= height);
            assert_true(s.end[i] > (i > 0 ? s.end[i - 1] : 0));
            height += 1 - s.n_join[i];
        }
        assert_int_equal(height, 1);
        assert_int_equal(s.end[s.n - 1], n_unit * 16);
    }
}

/* The segments of the left half end where its units do. */
static void test_the_left_half(void **state)
{
    (void)state;
    for (int n_unit = 1; n_unit < 120; n_unit++) {
        for (int n_part = 1; n_part <= 8; n_part *= 2) {
            const struct gr_segments s = gr_segments_of(n_unit * 64, 64, n_part);
            const int left = n_part == 1 ? n_unit : gr_segment_begin(n_unit, 2, 1);
            assert_int_equal(s.end[gr_segments_left(&s) - 1], left * 64);
        }
    }
}

/* Rank i of n by itself: its own tree is what the whole has between the rank's cuts, and the joins that are left over
 * are those of the ranks. */
static void check_ranks(int n_in, int unit, int n_rank)
{
    const struct gr_segments whole = gr_segments_of(n_in, unit, 8);
    const int n_unit = (n_in + unit - 1) / unit;
    int at = 0;
    for (int i = 0; i < n_rank; i++) {
        const int begin = gr_segment_begin(n_unit, n_rank, i) * unit;
        const int end = GR_MIN(gr_segment_begin(n_unit, n_rank, i + 1) * unit, n_in);
        const struct gr_segments part = gr_segments_of(GR_MAX(end - begin, 0), unit, 8 / n_rank);
        for (int k = 0; k < part.n; k++, at++) {
            const int of_ranks = k == part.n - 1 ? gr_segment_joins(n_unit, n_rank, i) : 0;
            assert_int_equal(begin + part.end[k], whole.end[at]);
            assert_int_equal(part.n_join[k] + of_ranks, whole.n_join[at]);
        }
    }
    assert_int_equal(at, whole.n);
}

static void test_ranks_have_the_halves_of_the_whole(void **state)
{
    (void)state;
    for (int n_unit = 1; n_unit < 120; n_unit++) {
        for (int n_rank = 1; n_rank <= 8; n_rank *= 2) {
            check_ranks(n_unit * 64, 64, n_rank);
            check_ranks(n_unit * 64 - 24, 64, n_rank);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_units_are_the_first_of_each_half),
        cmocka_unit_test(test_the_left_half_takes_the_odd_unit),
        cmocka_unit_test(test_all_eight),
        cmocka_unit_test(test_of_layers),
        cmocka_unit_test(test_few_units_and_a_short_one),
        cmocka_unit_test(test_the_stack),
        cmocka_unit_test(test_the_left_half),
        cmocka_unit_test(test_ranks_have_the_halves_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
