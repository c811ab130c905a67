/* Which part of a model each rank has: the parts join without gaps, fall on cuts of the sum's tree, and what cannot be
 * is refused with the reason. */
#include "model/load/shard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/log_capture.h"

static struct gr_hf_config model_of(int n_head, int n_kv_head, int ffn, int n_vocab)
{
    return (struct gr_hf_config){
        .hidden = 512, .n_head = n_head, .n_kv_head = n_kv_head, .head_dim = 64, .ffn = ffn, .n_vocab = n_vocab};
}

/* Rows of heads, neurons and vocabulary: rank by rank, from 0 to the end. */
static void check_parts(const struct gr_hf_config *hf, int n_rank)
{
    int kv = 0, head = 0, ffn = 0, vocab = 0;
    for (int r = 0; r < n_rank; r++) {
        struct gr_shard s;
        assert_int_equal(gr_shard_plan("m", hf, n_rank, r, &s), GR_OK);
        assert_true(s.rank == r && s.n_rank == n_rank);
        assert_true(s.kv_head == kv && s.head == head && s.ffn == ffn && s.vocab == vocab);
        assert_true(s.n_kv_head > 0 && s.n_ffn > 0 && s.n_vocab > 0);
        assert_int_equal(s.n_head * hf->n_kv_head, s.n_kv_head * hf->n_head);
        assert_true(s.ffn % GR_SEGMENT_UNIT == 0 && s.vocab % 16 == 0);
        kv += s.n_kv_head;
        head += s.n_head;
        ffn += s.n_ffn;
        vocab += s.n_vocab;
    }
    assert_true(kv == hf->n_kv_head && head == hf->n_head && ffn == hf->ffn && vocab == hf->n_vocab);
}

static void test_parts(void **state)
{
    (void)state;
    static const int heads[][2] = {{16, 8}, {32, 8}, {64, 8}, {8, 8}, {6, 2}, {28, 4}, {40, 8}, {96, 16}, {71, 1}};
    static const int ffns[] = {1024, 14336, 28672, 1100, 5760, 520};
    for (size_t h = 0; h < GR_ARRAY_LEN(heads); h++) {
        for (int n = 1; n <= 8 && heads[h][1] % n == 0; n *= 2) {
            for (size_t f = 0; f < GR_ARRAY_LEN(ffns); f++) {
                const struct gr_hf_config hf = model_of(heads[h][0], heads[h][1], ffns[f], 4096 + 37 * (int)f);
                check_parts(&hf, n);
            }
        }
    }
}

/* 90 blocks of 64 inputs: 45 | 45, then 23, 22 | 23, 22: the left half takes the odd one. */
static void test_odd(void **state)
{
    (void)state;
    const struct gr_hf_config hf = model_of(8, 8, 90 * 64, 4096);
    static const int want[][8] = {{90}, {45, 45}, {23, 22, 23, 22}, {12, 11, 11, 11, 12, 11, 11, 11}};
    for (int i = 0; i < 4; i++) {
        for (int r = 0; r < 1 << i; r++) {
            struct gr_shard s;
            assert_int_equal(gr_shard_plan("m", &hf, 1 << i, r, &s), GR_OK);
            assert_int_equal(s.n_ffn, want[i][r] * 64);
        }
    }
}

/* A rank's tree is a subtree of the whole: its segments' ends, counted from its first input, are ends of the whole. */
static void check_tree(const struct gr_segments *whole, const struct gr_segments *mine, int begin, int *at)
{
    for (int i = 0; i < mine->n; i++, (*at)++) {
        assert_int_equal(begin + mine->end[i], whole->end[*at]);
        const bool last = i + 1 == mine->n; /* after its last segment the whole joins with other ranks' */
        assert_true(last ? mine->n_join[i] <= whole->n_join[*at] : mine->n_join[i] == whole->n_join[*at]);
    }
}

static void test_trees(void **state)
{
    (void)state;
    static const int ffns[] = {1024, 90 * 64, 9 * 64, 1100};
    for (size_t f = 0; f < GR_ARRAY_LEN(ffns); f++) {
        const struct gr_hf_config hf = model_of(16, 8, ffns[f], 4096);
        const struct gr_segments o = gr_segments_of_o(16 * 64, 8), down = gr_segments_of_down(ffns[f]);
        for (int n = 1; n <= 8; n *= 2) {
            int at_o = 0, at_down = 0;
            for (int r = 0; r < n; r++) {
                struct gr_shard s;
                assert_int_equal(gr_shard_plan("m", &hf, n, r, &s), GR_OK);
                const struct gr_segments mine_o = gr_shard_segments_of_o(&s, 64);
                const struct gr_segments mine_down = gr_shard_segments_of_down(&s);
                check_tree(&o, &mine_o, s.head * 64, &at_o);
                check_tree(&down, &mine_down, s.ffn, &at_down);
            }
            assert_true(at_o == o.n && at_down == down.n);
        }
    }
}

static void check_refused(int n_head, int n_kv_head, int ffn, int n_rank, const char *why)
{
    const struct gr_hf_config hf = model_of(n_head, n_kv_head, ffn, 4096);
    struct log_capture log;
    log_capture_begin(&log);
    assert_int_equal(gr_shard_check("some/model", &hf, n_rank), GR_EINVAL);
    log_capture_end(&log);
    assert_non_null(strstr(log.text, why));
}

static void test_refused(void **state)
{
    (void)state;
    check_refused(32, 8, 1024, 3, "must be 1, 2, 4 or 8");
    check_refused(32, 8, 1024, 16, "must be 1, 2, 4 or 8");
    check_refused(32, 8, 1024, 0, "must be 1, 2, 4 or 8");
    check_refused(28, 4, 1024, 8, "some/model has 4 KV heads");
    check_refused(12, 2, 1024, 8, "at most 2");
    check_refused(71, 1, 1024, 2, "at most 1");
    check_refused(6, 6, 1024, 4, "cannot be shared out evenly");
    check_refused(8, 8, 256, 8, "is too small: an FFN of 256");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_odd),
        cmocka_unit_test(test_trees),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
