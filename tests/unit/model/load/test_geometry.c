/* The demo pair expanded to other geometries (expand.h): logits, captures, fused features, greedy ids, the head's
 * logits and chains are the small pair's; padding is zero; rows stay independent and equal in every instruction set.
 * Arguments: geometries to run instead of the small ones made for this test. */
#include "model/eagle3.h"
#include "model/load/expand.h"
#include "model/llama.h"
#include "model/rope.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/golden.h"

#define HEAD GR_SOURCE_ROOT "/models/demo/eagle3"
#define TARGET GR_SOURCE_ROOT "/models/demo/target"
#define HIDDEN 384
#define N_CAPTURE 3
#define CHAIN 6
#define N_GREEDY (GR_SANITIZED ? 4 : 24) /* steps of a case: dear under a sanitizer */
#define TOLERANCE 1e-5                   /* 2e-6 is what rounding makes of it */
#define N_OUT_MAX 5                      /* the shortest prompt */
#define N_BITS 11 /* tokens run on each instruction set: one tile of 8 rows and a rest; plain C is slow */
#define N_NAME_MAX 4

static const char *names[N_NAME_MAX] = {"test-64", "test-128", "test-tp8"};
static int n_name = 3;

/* A target with its head, small (geometry NULL) or expanded. */
struct models {
    const struct gr_geometry *geometry;
    struct gr_lm *target, *head;
    float *fused; /* (GOLDEN_ROW_MAX, width) */
};

static void load(const char *name, const char *isa, struct models *m)
{
    assert_int_equal(gr_geometry_find(name, &m->geometry), GR_OK);
    assert_true((name == NULL) == (m->geometry == NULL));
    const struct gr_llama_config t = {.dir = TARGET,
                                      .isa = isa,
                                      .n_ctx_max = 1024,
                                      .n_row_max = GOLDEN_ROW_MAX,
                                      .n_out_max = N_OUT_MAX,
                                      .n_pool_block = GOLDEN_N_POOL,
                                      .n_scratch_block = 4,
                                      .head_dir = HEAD,
                                      .geometry = m->geometry};
    const struct gr_eagle3_config h = {.dir = HEAD,
                                       .target_dir = TARGET,
                                       .isa = isa,
                                       .n_ctx_max = 1024,
                                       .n_row_max = GOLDEN_ROW_MAX,
                                       .n_out_max = N_OUT_MAX,
                                       .n_pool_block = GOLDEN_N_POOL,
                                       .n_scratch_block = 4,
                                       .geometry = m->geometry};
    const int width = m->geometry != NULL ? m->geometry->hidden : HIDDEN;
    assert_int_equal(gr_llama_create(&t, NULL, NULL, &m->target), GR_OK);
    assert_int_equal(gr_eagle3_create(&h, NULL, NULL, &m->head), GR_OK);
    assert_int_equal(m->target->n_vocab, 4096);
    assert_int_equal(m->target->capture_width, width);
    assert_int_equal(m->target->n_capture, N_CAPTURE);
    assert_int_equal(m->target->fused_width, width);
    assert_int_equal(m->head->feature_width, width);
    assert_int_equal(m->head->n_vocab, 3072);
    assert_true(m->target->fc_fingerprint == m->head->fc_fingerprint);
    m->fused = calloc((size_t)GOLDEN_ROW_MAX * (size_t)width, sizeof(float));
    assert_non_null(m->fused);
}

static void unload(struct models *m)
{
    gr_lm_destroy(m->head);
    gr_lm_destroy(m->target);
    free(m->fused);
}

/* Ids through target and head; the head's rows: feature of t, token of t + 1, so one id more is read. */
static void run_ids(struct models *m, const int32_t *ids, int n, int n_out)
{
    const float *row[GOLDEN_ROW_MAX];
    golden_run(m->target, ids, 0, n, n_out, NULL);
    for (int r = 0; r < n; r++) {
        row[r] = gr_lm_capture(m->target, r);
    }
    gr_lm_fuse(m->target, n, row, m->fused);
    golden_run(m->head, ids + 1, 0, n, n_out, m->fused);
}

/* The prompt of case i. Returns its length. */
static int run_case(struct models *m, int i, int n_out, int32_t *ids)
{
    int32_t greedy[256];
    const int n = golden_ids(&golden, i, "prompt_ids", ids);
    golden_ids(&golden, i, "greedy_ids", greedy);
    ids[n] = greedy[0];
    run_ids(m, ids, n, n_out);
    return n;
}

/* Relative norm of n_row rows of n_block streams: the first HIDDEN values of each of the large ones against the small
 * ones. The rest of a stream must be zero. */
static double streams_differ(const float *large, int width, const float *small, int n_row, int n_block)
{
    float *real = calloc((size_t)(n_row * n_block) * HIDDEN, sizeof(float));
    assert_non_null(real);
    for (int b = 0; b < n_row * n_block; b++) {
        for (int i = 0; i < width; i++) {
            const float value = large[(size_t)b * (size_t)width + (size_t)i];
            if (i < HIDDEN) {
                real[(size_t)b * HIDDEN + (size_t)i] = value;
            } else {
                assert_true(value == 0.0f);
            }
        }
    }
    const double differ = relative_norm(real, small, (size_t)(n_row * n_block) * HIDDEN);
    free(real);
    return differ;
}

/* Worst relative norm over n_out rows of logits of real ids. The rows of padding are there, finite and not zero. */
static double logits_differ(const struct gr_lm *large, const struct gr_lm *small, int n_out)
{
    double worst = 0.0;
    for (int i = 0; i < n_out; i++) {
        worst = fmax(worst, relative_norm(gr_lm_logits(large, i), gr_lm_logits(small, i), (size_t)small->n_vocab));
    }
    return worst;
}

static void check_padding(const struct gr_lm *lm, int n_row)
{
    for (int i = lm->n_vocab; i < n_row; i++) {
        assert_true(isfinite(gr_lm_logits(lm, 0)[i]) && gr_lm_logits(lm, 0)[i] != 0.0f);
    }
}

static void check_values(const char *name)
{
    struct models small, large;
    load(NULL, NULL, &small);
    load(name, NULL, &large);
    for (int i = 0; i < 4; i++) {
        int32_t ids[GOLDEN_ROW_MAX + 1];
        const int width = large.geometry->hidden;
        const int n = run_case(&small, i, N_OUT_MAX, ids);
        assert_int_equal(run_case(&large, i, N_OUT_MAX, ids), n);
        const double logits = logits_differ(large.target, small.target, N_OUT_MAX);
        const double captured = streams_differ(large.target->capture, width, small.target->capture, n, N_CAPTURE);
        const double fused = streams_differ(large.fused, width, small.fused, n, 1);
        const double head = logits_differ(large.head, small.head, N_OUT_MAX);
        const double hidden = streams_differ(large.head->hidden, width, small.head->hidden, n, 1);
        check_padding(large.target, large.geometry->n_vocab);
        check_padding(large.head, large.geometry->draft_n_vocab);
        print_message("# %s, case %d: logits %.1e, captured %.1e, fused %.1e, head's logits %.1e, hidden %.1e\n", name,
                      i, logits, captured, fused, head, hidden);
        assert_true(logits < TOLERANCE && captured < TOLERANCE && fused < TOLERANCE);
        assert_true(head < TOLERANCE && hidden < TOLERANCE);
    }
    unload(&large);
    unload(&small);
}

static void test_values(void **state)
{
    (void)state;
    for (int i = 0; i < n_name; i++) {
        check_values(names[i]);
    }
}

/* Greedy steps one token at a time; excused where the golden margin is below 1e-3, as of the small model. */
static int run_greedy(struct gr_lm *lm, int i, int32_t *token, int n)
{
    int32_t want[256];
    const int n_want = GR_MIN(golden_ids(&golden, i, "greedy_ids", want), N_GREEDY);
    const json_t *margin = json_object_get(json_array_get(golden.cases, (size_t)i), "margins");
    int n_excused = 0;
    for (int k = 0; k < n_want; k++) {
        if (lm->kernels->argmax(lm->logits, lm->n_vocab, false) != want[k]) {
            assert_true(json_real_value(json_array_get(margin, (size_t)k)) < 1e-3);
            n_excused++;
        }
        token[n] = want[k];
        golden_run(lm, token + n, n, 1, 1, NULL);
        n++;
    }
    return n_excused;
}

static void run_chain(struct models *m, int i, int n)
{
    int32_t want[CHAIN];
    assert_int_equal(golden_ids(&golden, i, "eagle3_chain", want), CHAIN);
    const float *feature = m->head->hidden + (size_t)(n - 1) * (size_t)m->head->feature_width;
    for (int k = 0; k < CHAIN; k++) {
        const int32_t token = m->head->to_target[m->head->kernels->argmax(m->head->logits, m->head->n_vocab, false)];
        assert_int_equal(token, want[k]);
        golden_run(m->head, &token, n + k, 1, 1, feature);
        feature = m->head->hidden;
    }
}

static void test_ids(void **state)
{
    (void)state;
    for (int v = 0; v < n_name; v++) {
        struct models m;
        int n_excused = 0;
        const int n_case = (int)json_array_size(golden.cases);
        load(names[v], NULL, &m);
        for (int i = 0; i < n_case; i++) {
            int32_t ids[GOLDEN_ROW_MAX + N_GREEDY];
            const int n = run_case(&m, i, 1, ids);
            run_chain(&m, i, n);
            n_excused += run_greedy(m.target, i, ids, n);
        }
        print_message("# %s: %d prompts, %d greedy steps and a chain of %d each; %d steps excused by their margin\n",
                      names[v], n_case, N_GREEDY, CHAIN, n_excused);
        assert_true(n_excused <= 1);
        unload(&m);
    }
}

/* ---- equal bits ---- */

static const char *const isas[] = {"c", "avx2", "avx512"};

static bool runs_here(const char *isa)
{
    struct gr_kernels k;
    gr_kernels_init_ref(&k);
    return gr_kernels_init_cpu(&k, isa) == GR_OK;
}

/* The beginning of case 1's prompt at once (chunk 0), which leaves the features for the others, or in chunks: logits of
 * the last row (padding too) and the states that the head feeds back. */
static void run_chunks(struct models *m, int chunk, float *out)
{
    int32_t ids[GOLDEN_ROW_MAX + 1];
    const int width = m->head->feature_width;
    assert_true(golden_ids(&golden, 1, "prompt_ids", ids) > N_BITS);
    if (chunk == 0) {
        chunk = N_BITS;
        run_ids(m, ids, N_BITS, 1);
    } else {
        for (int p = 0; p < N_BITS; p += chunk) {
            const int n = GR_MIN(chunk, N_BITS - p);
            golden_run(m->target, ids + p, p, n, 1, NULL);
            golden_run(m->head, ids + 1 + p, p, n, 1, m->fused + (size_t)p * (size_t)width);
        }
    }
    const int last = (N_BITS - 1) % chunk;
    memcpy(out, m->target->logits, (size_t)m->target->n_vocab_stride * sizeof(float));
    out += m->target->n_vocab_stride;
    memcpy(out, m->head->logits, (size_t)m->head->n_vocab_stride * sizeof(float));
    out += m->head->n_vocab_stride;
    memcpy(out, m->head->hidden + (size_t)last * (size_t)width, (size_t)width * sizeof(float));
}

static void check_bits(const char *name)
{
    static const int chunks[] = {0, 6, 1};
    float *first = NULL, *got = NULL;
    int n_compared = 0;
    for (size_t v = 0; v < GR_ARRAY_LEN(isas); v++) {
        if (!runs_here(isas[v])) {
            print_message("# %s: not on this machine\n", isas[v]);
            continue;
        }
        struct models m;
        load(name, isas[v], &m);
        const size_t n = (size_t)(m.target->n_vocab_stride + m.head->n_vocab_stride + m.head->feature_width);
        first = first != NULL ? first : calloc(n, sizeof(float));
        got = got != NULL ? got : calloc(n, sizeof(float));
        assert_true(first != NULL && got != NULL);
        for (size_t c = 0; c < GR_ARRAY_LEN(chunks); c++) {
            run_chunks(&m, chunks[c], n_compared == 0 ? first : got);
            assert_true(n_compared++ == 0 || memcmp(first, got, n * sizeof(float)) == 0);
        }
        unload(&m);
    }
    print_message("# %s: %d runs, equal bits\n", name, n_compared);
    assert_true(n_compared >= 3);
    free(first);
    free(got);
}

static void test_equal_bits(void **state)
{
    (void)state;
    for (int i = 0; i < (GR_SANITIZED ? 1 : n_name); i++) { /* dear under a sanitizer */
        check_bits(names[i]);
    }
}

/* ---- what expanding makes, without running it ---- */

static void expand_demo(const char *name, struct gr_expand *e, struct gr_hf_config *hf)
{
    const struct gr_geometry *g = NULL;
    assert_int_equal(gr_geometry_find(name, &g), GR_OK);
    assert_int_equal(gr_hf_config_load(TARGET, hf), GR_OK);
    assert_int_equal(gr_expand_init(e, g, TARGET, hf), GR_OK);
}

/* Pair m i of the wide heads turns as pair i of the narrow ones. */
static void test_rope(void **state)
{
    (void)state;
    static float small[2][8 * 32], large[2][8 * 64];
    struct gr_expand e;
    struct gr_hf_config hf;
    expand_demo("llama-3.1-8b", &e, &hf);
    gr_rope_tables(&e.from, 8, small[0], small[1]);
    gr_rope_tables(&hf, 8, large[0], large[1]);
    for (int i = 0; i < 8 * 32; i++) {
        assert_true(small[0][i] == large[0][2 * i] && small[1][i] == large[1][2 * i]);
    }
    assert_int_equal(hf.scale_dim, 64);
}

struct counted {
    int64_t n_from, n_zero, n_random;
};

/* Rows of a large matrix against a small one of values that no random weight has: n_from of the large one's must be
 * of them (an extra layer: none), the others zero or of the stated magnitude. */
static struct counted count_rows(const struct gr_expand *e, const char *name, int n_out, int n_in, int64_t n_from_want)
{
    struct gr_expand_tensor t;
    struct counted n = {0};
    assert_int_equal(gr_expand_tensor_init(e, name, n_out, n_in, &t), GR_OK);
    const size_t n_from = (size_t)t.rule.n_out_from * (size_t)t.rule.n_in_from;
    uint16_t *from = malloc((n_from + 1) * sizeof(*from)), *row = malloc((size_t)n_in * sizeof(*row));
    assert_true(from != NULL && row != NULL);
    for (size_t i = 0; i < n_from; i++) {
        from[i] = (uint16_t)(0x4000 + i % 61); /* 2 and more */
    }
    for (int r = 0; r < n_out; r++) {
        gr_expand_rows(&t, t.name[0] != '\0' ? from : NULL, r, 1, row);
        for (int i = 0; i < n_in; i++) {
            const float v = fabsf(gr_bf16_to_f32(row[i]));
            n.n_from += v >= 1.0f; /* some are halved */
            n.n_zero += v == 0.0f;
            n.n_random += v >= 0x1p-6f && v < 0x1p-5f;
        }
    }
    assert_int_equal(n.n_from + n.n_zero + n.n_random, (int64_t)n_out * n_in);
    assert_int_equal(n.n_from, t.name[0] != '\0' ? n_from_want : 0);
    free(from);
    free(row);
    gr_expand_tensor_finish(&t);
    return n;
}

/* Every kind of matrix of the 8B geometry, piece by piece. Layer 0 is an original, layer 1 an extra one. */
static void test_pieces(void **state)
{
    (void)state;
    struct gr_expand e;
    struct gr_hf_config hf;
    expand_demo("llama-3.1-8b", &e, &hf);
    const struct {
        const char *name;
        int n_out, n_in, n_from_out, n_from_in;
        bool random; /* what is not from the small model */
    } pieces[] = {
        /* Each of two KV heads is there four times, for three query heads: one of those is there twice. */
        {"self_attn.q_proj.weight", 4096, 4096, 512, 384, true},
        {"self_attn.k_proj.weight", 1024, 4096, 512, 384, true},
        {"self_attn.v_proj.weight", 1024, 4096, 512, 384, true},
        {"self_attn.o_proj.weight", 4096, 4096, 384, 512, false},
        {"mlp.gate_proj.weight", 14336, 4096, 1024, 384, true},
        {"mlp.down_proj.weight", 4096, 14336, 384, 1024, false},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(pieces); i++) {
        char name[96];
        const int64_t all = (int64_t)pieces[i].n_out * pieces[i].n_in;
        const int64_t from = (int64_t)pieces[i].n_from_out * pieces[i].n_from_in;
        /* q holds zeros in the pairs that the small heads lack: half the rows of eight heads of 128. */
        const int64_t zero = !pieces[i].random ? all - from : i == 0 ? 8 * 64 * 4096 : 0;
        snprintf(name, sizeof(name), "model.layers.0.%s", pieces[i].name);
        assert_int_equal(count_rows(&e, name, pieces[i].n_out, pieces[i].n_in, from).n_zero, zero);
        snprintf(name, sizeof(name), "model.layers.1.%s", pieces[i].name);
        assert_int_equal(count_rows(&e, name, pieces[i].n_out, pieces[i].n_in, from).n_zero,
                         pieces[i].random ? 0 : all);
    }
    assert_int_equal(count_rows(&e, "lm_head.weight", 128256, 4096, 4096 * 384).n_zero, 0);
    /* KV heads that serve two instead of three query heads are there twice. */
    expand_demo("test-64", &e, &hf);
    assert_int_equal(count_rows(&e, "model.layers.0.self_attn.k_proj.weight", 256, 512, 256 * 384).n_zero, 0);
    assert_int_equal(count_rows(&e, "model.layers.0.self_attn.q_proj.weight", 512, 512, 384 * 384).n_zero, 0);
}

/* Sums of o and down, of all inputs 1, a segment each, must be non-zero for every row of the stream. */
static void check_segments(const struct gr_expand *e, const char *name, int n_in, const struct gr_segments *s)
{
    struct gr_expand_tensor t;
    uint16_t row[1280];
    const int n_out_from = e->from.hidden;
    assert_int_equal(gr_expand_tensor_init(e, name, e->to->hidden, n_in, &t), GR_OK);
    uint16_t *from = malloc((size_t)t.rule.n_out_from * (size_t)t.rule.n_in_from * sizeof(*from));
    assert_non_null(from);
    for (size_t i = 0; i < (size_t)t.rule.n_out_from * (size_t)t.rule.n_in_from; i++) {
        from[i] = (uint16_t)(0x4000 + i % 61);
    }
    for (int r = 0; r < n_out_from; r++) {
        gr_expand_rows(&t, from, r, 1, row);
        for (int i = 0, k = 0; i < s->n; i++) {
            float sum = 0.0f;
            for (; k < s->end[i]; k++) {
                sum += gr_bf16_to_f32(row[k]);
            }
            assert_true(sum > 0.0f);
        }
    }
    free(from);
    gr_expand_tensor_finish(&t);
}

static void test_segments(void **state)
{
    (void)state;
    const char *const spread[] = {"test-tp8", "test-64"};
    for (size_t i = 0; i < GR_ARRAY_LEN(spread); i++) {
        struct gr_expand e;
        struct gr_hf_config hf;
        expand_demo(spread[i], &e, &hf);
        const struct gr_segments o = gr_segments_of_o(hf.n_head * hf.head_dim, hf.n_kv_head);
        const struct gr_segments down = gr_segments_of_down(hf.ffn);
        assert_int_equal(o.n, hf.n_kv_head);
        assert_int_equal(down.n, 8);
        check_segments(&e, "model.layers.0.self_attn.o_proj.weight", hf.n_head * hf.head_dim, &o);
        check_segments(&e, "model.layers.0.mlp.down_proj.weight", hf.ffn, &down);
    }
}

static void test_layers(void **state)
{
    (void)state;
    struct gr_expand e;
    struct gr_hf_config hf;
    expand_demo("llama-3.2-1b", &e, &hf);
    assert_int_equal(hf.n_layer, 16);
    assert_int_equal(gr_expand_layer(&e, 2), 4);
    assert_int_equal(gr_expand_layer(&e, 7), 14);
    assert_int_equal(gr_expand_layer(&e, 8), 16); /* what the final norm gets */
    expand_demo("test-64", &e, &hf);
    for (int i = 0; i < 8; i++) {
        assert_true(gr_expand_layer(&e, i) < gr_expand_layer(&e, i + 1));
    }
    /* The published model's size: 2.47 GB of bf16 are read by a pass. */
    expand_demo("llama-3.2-1b", &e, &hf);
    assert_true(gr_llama_weight_bytes(&hf) / 1000000 == 2471);
    expand_demo("llama-3.1-8b", &e, &hf);
    assert_true(gr_llama_weight_bytes(&hf) / 1000000 == 15010);
    expand_demo("llama-3.3-70b", &e, &hf);
    assert_true(gr_llama_weight_bytes(&hf) / 1000000 == 139008);
}

/* The positions of the published model are there where they are asked for, for target and head alike. */
static void test_positions(void **state)
{
    (void)state;
    const struct gr_geometry *g = NULL;
    assert_int_equal(gr_geometry_find("test-64", &g), GR_OK);
    for (int own = 0; own < 2; own++) {
        struct gr_lm *target = NULL, *head = NULL;
        const struct gr_llama_config t = {.dir = TARGET,
                                          .n_ctx_max = 39000,
                                          .n_row_max = 16,
                                          .n_out_max = 1,
                                          .n_pool_block = 4,
                                          .n_scratch_block = 4,
                                          .geometry = g,
                                          .geometry_positions = own == 1};
        const struct gr_eagle3_config h = {.dir = HEAD,
                                           .target_dir = TARGET,
                                           .n_ctx_max = 39000,
                                           .n_row_max = 16,
                                           .n_out_max = 1,
                                           .n_pool_block = 4,
                                           .n_scratch_block = 4,
                                           .geometry = g,
                                           .geometry_positions = own == 1};
        assert_int_equal(gr_llama_create(&t, NULL, NULL, &target), GR_OK);
        assert_int_equal(gr_eagle3_create(&h, NULL, NULL, &head), GR_OK);
        assert_int_equal(target->n_ctx_max, own == 1 ? 39000 : 32768);
        assert_int_equal(head->n_ctx_max, own == 1 ? 39000 : 32768);
        gr_lm_destroy(target);
        gr_lm_destroy(head);
    }
}

static void test_refused(void **state)
{
    (void)state;
    const struct gr_geometry *g = NULL, *wide = NULL;
    struct gr_hf_config demo, hf;
    struct gr_expand e;
    assert_int_equal(gr_geometry_find("llama-9", &g), GR_EINVAL);
    assert_int_equal(gr_geometry_find("test-64", &g), GR_OK);
    assert_int_equal(gr_geometry_find("test-128", &wide), GR_OK);
    assert_int_equal(gr_hf_config_load(TARGET, &demo), GR_OK);
    struct gr_geometry bad[6] = {*g, *g, *g, *g, *g, *g};
    bad[0].hidden = 256;
    bad[1].n_layer = 7;
    bad[2].head_dim = 96;
    bad[3].n_head = bad[3].n_kv_head = 4; /* one query head each: three copies of two */
    bad[4].ffn = 1023;
    bad[5].n_vocab = 4095;
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        hf = demo;
        assert_int_equal(gr_expand_init(&e, &bad[i], TARGET, &hf), GR_EUNSUPPORTED);
    }
    hf = demo;
    hf.rope_kind = GR_ROPE_YARN;
    assert_int_equal(gr_expand_init(&e, wide, TARGET, &hf), GR_EUNSUPPORTED);
    hf = demo;
    assert_int_equal(gr_expand_init(&e, g, TARGET, &hf), GR_OK);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),   cmocka_unit_test(test_ids),       cmocka_unit_test(test_equal_bits),
        cmocka_unit_test(test_rope),     cmocka_unit_test(test_pieces),    cmocka_unit_test(test_layers),
        cmocka_unit_test(test_segments), cmocka_unit_test(test_positions), cmocka_unit_test(test_refused),
    };
    const struct CMUnitTest long_tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_ids)};
    if (argc == 1) {
        return cmocka_run_group_tests(tests, golden_setup, golden_teardown);
    }
    n_name = GR_MIN(argc - 1, N_NAME_MAX);
    memcpy(names, argv + 1, (size_t)n_name * sizeof(names[0]));
    return cmocka_run_group_tests(long_tests, golden_setup, golden_teardown);
}
