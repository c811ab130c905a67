/* The choice of a view: against a plain model of the formulas in double, with planted blocks, and as a
 * partition of the prefix; summaries made bit by bit against those made at once. */
#include "model/kv/kv_views.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_LAYER = 2, N_HEAD = 6, N_KV = 2, HD = 32, N_CTX = 1600, N_POOL = N_CTX / 16, N_ROW_MAX = 24 };

struct rig {
    struct gr_kernels kernels;
    struct gr_kv_views partial;
    struct gr_team *team;
    struct gr_kv_layer kv[N_LAYER];
    int32_t table[N_POOL];
    float *q; /* (N_LAYER, N_ROW_MAX, N_HEAD * HD) */
    void *work;
    uint64_t random;
};

static double draw(struct rig *r) /* -1 .. 1 */
{
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(r->random >> 33) / (double)(1u << 30) - 1.0;
}

static void fill(struct rig *r, float *x, size_t n, double scale)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)(scale * draw(r));
    }
}

static void rig_init(struct rig *r, const char *isa, int n_thread, int n_view, struct gr_kv_budget most)
{
    memset(r, 0, sizeof(*r));
    r->random = 99;
    gr_kernels_init_ref(&r->kernels);
    if (strcmp(isa, "ref") != 0) {
        assert_int_equal(gr_kernels_init_cpu(&r->kernels, strcmp(isa, "best") == 0 ? NULL : isa), GR_OK);
    }
    assert_int_equal(gr_team_create(n_thread, &r->team), GR_OK);
    const struct gr_kv_views_config c = {
        .n_view = n_view, .n_layer = N_LAYER, .n_kv_head = N_KV, .head_dim = HD, .n_ctx_max = N_CTX, .most = most};
    assert_int_equal(gr_kv_views_init(&r->partial, &c), GR_OK);
    for (int i = 0; i < N_LAYER; i++) {
        const size_t n = (size_t)N_POOL * 16 * N_KV * HD;
        r->kv[i] = (struct gr_kv_layer){.k = malloc(n * sizeof(float)), .n_kv_head = N_KV, .head_dim = HD};
        fill(r, r->kv[i].k, n, 1.0);
    }
    for (int i = 0; i < N_POOL; i++) {
        r->table[i] = (i * 37 + 11) % N_POOL; /* 37 and 100 share no factor */
    }
    r->q = malloc((size_t)N_LAYER * N_ROW_MAX * N_HEAD * HD * sizeof(float));
    fill(r, r->q, (size_t)N_LAYER * N_ROW_MAX * N_HEAD * HD, 1.0);
    r->work = malloc((size_t)n_thread * r->kernels.attention_work_bytes(N_HEAD, N_KV, HD) + 64);
}

static void rig_finish(struct rig *r)
{
    gr_kv_views_finish(&r->partial);
    gr_team_destroy(r->team);
    for (int i = 0; i < N_LAYER; i++) {
        free(r->kv[i].k);
    }
    free(r->q);
    free(r->work);
}

static float *key_at(const struct rig *r, int layer, int h, int pos, int d)
{
    return r->kv[layer].k + ((size_t)(r->table[pos / 16] * N_KV + h) * HD + (size_t)d) * 16 + pos % 16;
}

struct refreshing {
    struct rig *r;
    const struct gr_kv_refresh *refresh;
};

static void run_layers(const struct gr_exec *x, void *arg)
{
    const struct refreshing *a = arg;
    const struct gr_attn_seq seq = {.block = a->r->table};
    for (int i = 0; i < N_LAYER; i++) {
        gr_kv_refresh_layer(x, &a->r->partial,
                            &(struct gr_kv_refresh_layer){.kernels = &a->r->kernels,
                                                          .layer = i,
                                                          .n_refresh = 1,
                                                          .refresh = a->refresh,
                                                          .seq = &seq,
                                                          .kv = a->r->kv[i],
                                                          .q = a->r->q + (size_t)i * N_ROW_MAX * N_HEAD * HD,
                                                          .n_head = N_HEAD,
                                                          .q_stride = N_HEAD * HD,
                                                          .work = a->r->work});
        gr_exec_barrier(x);
    }
}

static void refresh(struct rig *r, int view, int kv_len, int row0, int n_row, struct gr_kv_budget budget)
{
    const struct gr_kv_refresh f = {.view = view, .row0 = row0, .n_row = n_row, .kv_len = kv_len, .budget = budget};
    gr_kv_refresh_begin(&r->partial, 1, &f);
    gr_team_run(r->team, run_layers, &(struct refreshing){.r = r, .refresh = &f});
    gr_kv_refresh_end(&r->partial, 1, &f);
}

static const int32_t *list_of(const struct rig *r, int view, int layer, int h)
{
    const struct gr_kv_view *v = &r->partial.view[view];
    return v->list + (size_t)(layer * N_KV + h) * (size_t)v->n_list_max;
}

/* ---- the formulas, in double ---- */

static double model_score(const struct rig *r, int layer, int h, int block, int row0, int n_row, bool use_max)
{
    double sum = 0.0;
    double best = -INFINITY;
    for (int row = row0; row < row0 + n_row; row++) {
        for (int head = h * N_HEAD / N_KV; head < (h + 1) * N_HEAD / N_KV; head++) {
            const float *q = r->q + ((size_t)layer * N_ROW_MAX + (size_t)row) * N_HEAD * HD + (size_t)head * HD;
            double with_max = 0.0;
            double with_min = 0.0;
            for (int d = 0; d < HD; d++) {
                double k_max = -INFINITY;
                double k_min = INFINITY;
                for (int i = 0; i < 16; i++) {
                    k_max = fmax(k_max, (double)*key_at(r, layer, h, block * 16 + i, d));
                    k_min = fmin(k_min, (double)*key_at(r, layer, h, block * 16 + i, d));
                }
                with_max += (double)q[d] * k_max;
                with_min += (double)q[d] * k_min;
            }
            sum += fmax(with_max, with_min);
            best = fmax(best, fmax(with_max, with_min));
        }
    }
    return use_max ? best : sum / (n_row * N_HEAD / N_KV);
}

/* Whether the model lists the block: sink, or among the best of those between sink and window. */
static bool model_lists(const double *score, int n_below, const struct gr_kv_budget *b, int block)
{
    int n_better = 0;
    for (int i = b->n_sink; i < n_below; i++) {
        n_better += score[i] > score[block] || (score[i] == score[block] && i < block);
    }
    return block < b->n_sink || n_better < b->n_retrieval;
}

static void compare_with_model(struct rig *r, int kv_len, int row0, int n_row, struct gr_kv_budget b)
{
    refresh(r, 0, kv_len, row0, n_row, b);
    const struct gr_kv_view *v = &r->partial.view[0];
    const int n_below = kv_len / 16 - b.n_window;
    assert_int_equal(v->dense_from, n_below * 16);
    assert_int_equal(v->n_list, b.n_sink + b.n_retrieval);
    for (int layer = 0; layer < N_LAYER; layer++) {
        for (int h = 0; h < N_KV; h++) {
            double score[N_POOL];
            for (int i = 0; i < n_below; i++) {
                score[i] = model_score(r, layer, h, i, row0, n_row, b.score_max);
            }
            const int32_t *list = list_of(r, 0, layer, h);
            int n = 0;
            for (int i = 0; i < n_below; i++) {
                if (model_lists(score, n_below, &b, i)) {
                    assert_int_equal(list[n], i);
                    n++;
                }
            }
            assert_int_equal(n, v->n_list);
        }
    }
}

static void test_model(void **state)
{
    (void)state;
    static const char *const isas[] = {"ref", "c", "best"};
    for (int i = 0; i < 3; i++) {
        struct rig r;
        rig_init(&r, isas[i], 1 + i, 1, (struct gr_kv_budget){.n_sink = 3, .n_retrieval = 30, .n_window = 8});
        compare_with_model(&r, 1500, 0, 24, (struct gr_kv_budget){.n_sink = 2, .n_retrieval = 20, .n_window = 8});
        compare_with_model(&r, 1555, 5, 1, (struct gr_kv_budget){.n_sink = 0, .n_retrieval = 30, .n_window = 1});
        compare_with_model(&r, 1590, 3, 9,
                           (struct gr_kv_budget){.n_sink = 3, .n_retrieval = 7, .n_window = 4, .score_max = true});
        rig_finish(&r);
    }
}

/* ---- planted blocks ---- */

enum { N_TAIL_ROW = 16 };

/* Small keys everywhere; every query is near one direction per layer and KV head, and the keys of one block are it. */
static void plant(struct rig *r, const int32_t needle[N_LAYER][N_KV])
{
    for (int layer = 0; layer < N_LAYER; layer++) {
        fill(r, r->kv[layer].k, (size_t)N_POOL * 16 * N_KV * HD, 0.05);
        for (int h = 0; h < N_KV; h++) {
            float direction[HD];
            fill(r, direction, HD, 1.0);
            for (int row = 0; row < N_TAIL_ROW; row++) {
                for (int i = 0; i < N_HEAD / N_KV * HD; i++) {
                    float *q = r->q + ((size_t)layer * N_ROW_MAX + (size_t)row) * N_HEAD * HD + h * N_HEAD / N_KV * HD;
                    q[i] = direction[i % HD] + (float)(0.02 * draw(r));
                }
            }
            for (int i = 0; i < 16; i++) {
                for (int d = 0; d < HD; d++) {
                    *key_at(r, layer, h, needle[layer][h] * 16 + i, d) = direction[d];
                }
            }
        }
    }
}

static void find_needles(int n_sink, int kv_len)
{
    struct rig r;
    rig_init(&r, "best", 2, 1, (struct gr_kv_budget){.n_sink = 4, .n_retrieval = 8, .n_window = 8});
    const struct gr_kv_budget b = {.n_sink = n_sink, .n_retrieval = 1, .n_window = 8};
    const int n_below = kv_len / 16 - 8;
    for (int at = n_sink; at < n_below; at++) {
        int32_t needle[N_LAYER][N_KV]; /* another block for each layer and head */
        for (int i = 0; i < N_LAYER * N_KV; i++) {
            needle[i / N_KV][i % N_KV] = n_sink + (at - n_sink + 17 * i) % (n_below - n_sink);
        }
        plant(&r, (const int32_t(*)[N_KV])needle);
        r.partial.view[0].n_summed = 0;
        refresh(&r, 0, kv_len, 0, N_TAIL_ROW, b);
        assert_int_equal(r.partial.view[0].n_list, n_sink + 1);
        for (int i = 0; i < N_LAYER * N_KV; i++) {
            const int32_t *list = list_of(&r, 0, i / N_KV, i % N_KV);
            for (int s = 0; s < n_sink; s++) {
                assert_int_equal(list[s], s);
            }
            assert_int_equal(list[n_sink], needle[i / N_KV][i % N_KV]); /* itself: not the block n_sink before it */
        }
    }
    rig_finish(&r);
}

static void test_needle(void **state)
{
    (void)state;
    find_needles(2, 1287);
    find_needles(0, 500);
    find_needles(4, 640);
}

/* ---- segments ---- */

static void count_segments(struct rig *r, int kv_len, int committed_len, struct gr_kv_budget b)
{
    refresh(r, 0, kv_len, 0, 8, b);
    const struct gr_kv_view *v = &r->partial.view[0];
    for (int i = 0; i < N_LAYER * N_KV; i++) {
        int n_seen[N_CTX] = {0};
        const int32_t *list = list_of(r, 0, i / N_KV, i % N_KV);
        int sink = 0;
        int retrieval = 0;
        int out = 0;
        for (int k = 0; k < v->n_list; k++) {
            assert_true(list[k] >= 0 && list[k] * 16 < v->dense_from && (k == 0 || list[k] > list[k - 1]));
            sink += list[k] < b.n_sink ? 16 : 0;
            retrieval += list[k] < b.n_sink ? 0 : 16;
            for (int p = list[k] * 16; p < list[k] * 16 + 16; p++) {
                n_seen[p]++;
            }
        }
        for (int p = v->dense_from; p < committed_len; p++) {
            n_seen[p]++;
        }
        for (int p = 0; p < committed_len; p++) { /* at most once, and left out by whole blocks below the window only */
            assert_true(n_seen[p] == 1 || (n_seen[p] == 0 && p < v->dense_from && n_seen[p / 16 * 16] == 0));
            out += n_seen[p] == 0;
        }
        const int window = kv_len - v->dense_from;
        assert_true(v->dense_from == 0 || (window >= 16 * b.n_window && window < 16 * b.n_window + 16));
        assert_int_equal(sink, GR_MIN(16 * b.n_sink, v->dense_from));
        assert_int_equal(retrieval, GR_MIN(16 * b.n_retrieval, v->dense_from - sink));
        assert_int_equal(sink + retrieval + window + (committed_len - kv_len) + out, committed_len);
        if (i == 0) {
            print_message("# %4d tokens, %4d with full KV: sink %d, retrieval %d, window %d, buffer %d, left out %d\n",
                          committed_len, kv_len, sink, retrieval, window, committed_len - kv_len, out);
        }
    }
}

static void test_segments(void **state)
{
    (void)state;
    const struct gr_kv_budget b = {.n_sink = 2, .n_retrieval = 30, .n_window = 8};
    static const int lengths[] = {0, 5, 15, 16, 17, 128, 143, 144, 160, 161, 175, 176, 640, 655, 672, 673, 1000, 1455};
    for (int threads = 1; threads <= 3; threads++) {
        struct rig r;
        rig_init(&r, "best", threads, 1, b);
        for (size_t i = 0; i < GR_ARRAY_LEN(lengths); i++) {
            count_segments(&r, lengths[i], lengths[i] + (int)(i * 7) % 128, b);
        }
        count_segments(&r, 1455, 1455, (struct gr_kv_budget){.n_sink = 0, .n_retrieval = 1, .n_window = 1});
        rig_finish(&r);
    }
}

/* ---- summaries over time ---- */

/* Views 0 (over time) and 1 (all at once) choose the same and hold the same bits below n_block. */
static void assert_same_views(const struct rig *r, int n_block)
{
    const struct gr_kv_view *a = &r->partial.view[0];
    const struct gr_kv_view *b = &r->partial.view[1];
    assert_int_equal(a->n_summed, n_block);
    assert_int_equal(a->dense_from, b->dense_from);
    assert_int_equal(a->n_list, b->n_list);
    for (int i = 0; i < N_LAYER * N_KV; i++) {
        assert_memory_equal(list_of(r, 0, i / N_KV, i % N_KV), list_of(r, 1, i / N_KV, i % N_KV),
                            (size_t)a->n_list * sizeof(int32_t));
        for (int k = 0; k < n_block; k++) {
            for (int d = 0; d < HD; d++) {
                const size_t panel = (size_t)(i * r->partial.n_block_max / 16 + k / 16);
                const size_t at = (panel * HD + (size_t)d) * 16 + (size_t)k % 16;
                assert_memory_equal(&a->k_max[at], &b->k_max[at], sizeof(float));
                assert_memory_equal(&a->k_min[at], &b->k_min[at], sizeof(float));
            }
        }
    }
}

static void test_over_time(void **state)
{
    (void)state;
    struct rig r;
    const struct gr_kv_budget b = {.n_sink = 2, .n_retrieval = 10, .n_window = 4};
    rig_init(&r, "best", 2, 2, b);
    /* After kv_len stands partial KV: no summary may see it. */
    const int len[] = {300, 301, 319, 320, 500, 777, 1200, 1201};
    for (size_t i = 0; i < GR_ARRAY_LEN(len); i++) {
        for (int layer = 0; layer < N_LAYER; layer++) {
            for (int p = len[i]; p < len[i] + 128; p++) {
                for (int k = 0; k < N_KV * HD; k++) {
                    *key_at(&r, layer, k / HD, p, k % HD) = (float)draw(&r) * 100.0f;
                }
            }
        }
        refresh(&r, 0, len[i], 0, 4, b);
        for (int layer = 0; layer < N_LAYER; layer++) { /* full KV, as the next refresh writes it */
            for (int p = len[i]; p < N_CTX; p++) {
                for (int k = 0; k < N_KV * HD; k++) {
                    *key_at(&r, layer, k / HD, p, k % HD) = (float)draw(&r);
                }
            }
        }
        r.partial.view[1].n_summed = 0;
        refresh(&r, 1, len[i], 0, 4, b);
        assert_same_views(&r, len[i] / 16);
    }
    /* A roll-back: what comes after it is another text. */
    gr_kv_view_truncate(&r.partial.view[0], 1150);
    assert_int_equal(r.partial.view[0].dense_from, 1136);
    gr_kv_view_truncate(&r.partial.view[0], 700);
    assert_int_equal(r.partial.view[0].dense_from, GR_VIEW_NONE);
    for (int layer = 0; layer < N_LAYER; layer++) {
        for (int p = 700; p < 900; p++) {
            *key_at(&r, layer, 1, p, 3) = (float)draw(&r) * 9.0f;
        }
    }
    refresh(&r, 0, 900, 0, 4, b);
    r.partial.view[1].n_summed = 0;
    refresh(&r, 1, 900, 0, 4, b);
    assert_same_views(&r, 900 / 16);
    rig_finish(&r);
}

static void test_refused(void **state)
{
    (void)state;
    struct gr_kv_views p;
    struct gr_kv_views_config c = {.n_view = 1, .n_layer = 1, .n_kv_head = 1, .head_dim = 16, .n_ctx_max = 100};
    c.most = (struct gr_kv_budget){.n_sink = 2, .n_retrieval = 4, .n_window = 0};
    assert_int_equal(gr_kv_views_init(&p, &c), GR_EINVAL);
    c.most = (struct gr_kv_budget){.n_sink = -1, .n_retrieval = 4, .n_window = 1};
    assert_int_equal(gr_kv_views_init(&p, &c), GR_EINVAL);
    c.most = (struct gr_kv_budget){.n_window = 1};
    assert_int_equal(gr_kv_views_init(&p, &c), GR_EINVAL);
    c.most = (struct gr_kv_budget){.n_sink = 2, .n_retrieval = 4, .n_window = 1};
    assert_int_equal(gr_kv_views_init(&p, &c), GR_OK);
    assert_int_equal(gr_kv_views_bytes(&c), (2 + 4) * 4 + 16 * 2 * 16 * 4); /* 7 blocks, 16 in a panel */
    gr_kv_views_finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),     cmocka_unit_test(test_needle),  cmocka_unit_test(test_segments),
        cmocka_unit_test(test_over_time), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
