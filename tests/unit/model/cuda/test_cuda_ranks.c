/* A model that several GPUs share out, each rank a thread with a GPU of its own: logits, features and greedy ids have
 * the bits of the model on one GPU. `test_cuda_ranks long N [GEOMETRY [N_SEQ [SEED]]]`: N greedy tokens of N_SEQ
 * sequences at a time (1), and what a pass takes; `tiny` for GEOMETRY: the smallest model with eight KV heads. SEED
 * draws the prompts. GRAFT_MODELS: the demo models' folder, where this is not the machine of the build. */
#include "tests/unit/model/cuda/rank_gpus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "common/base/clock.h"
#include "model/kv/kv_views.h"
#include "model/load/expand.h"
#include "tests/unit/golden.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/model/tree_pass.h"
#include "tests/unit/tiny_model.h"

enum { N_PROMPT = 70, N_GREEDY = 3, N_OUT = TREE_ROWS };

static int n_gpu;

static char target_dir[512], head_dir[512];

static void find_models(void)
{
    const char *models = getenv("GRAFT_MODELS");
    models = models != NULL ? models : GR_SOURCE_ROOT "/models/demo";
    snprintf(target_dir, sizeof(target_dir), "%s/target", models);
    snprintf(head_dir, sizeof(head_dir), "%s/eagle3", models);
}

static struct gr_llama_config config_of(const char *geometry)
{
    struct gr_llama_config c = {.dir = target_dir,
                                .head_dir = head_dir,
                                .n_thread = 1,
                                .n_ctx_max = 1024,
                                .n_row_max = GOLDEN_ROW_MAX,
                                .n_out_max = N_OUT,
                                .n_pool_block = GOLDEN_N_POOL,
                                .n_scratch_block = 4,
                                .n_seq_max = 1};
    assert_int_equal(gr_geometry_find(geometry, &c.geometry), GR_OK);
    return c;
}

static size_t part_max(const struct gr_llama_config *c)
{
    struct gr_hf_config hf;
    assert_int_equal(gr_hf_config_load(c->dir, &hf), GR_OK);
    assert_int_equal(gr_expand_config(c->geometry, c->dir, &hf), GR_OK);
    return gr_llama_part_max(&hf, c->n_row_max);
}

static uint64_t hash_words(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i + 2 <= bytes; i += 2) {
        uint16_t word = 0;
        memcpy(&word, (const char *)data + i, sizeof(word));
        h = gr_mix64(h ^ word);
    }
    return h;
}

static uint64_t hash_pass(uint64_t h, const struct gr_lm *lm, int n_row, int n_out)
{
    h = hash_words(h, lm->logits, (size_t)n_out * (size_t)lm->n_vocab_stride * sizeof(float));
    return lm->shipped != NULL ? hash_words(h, lm->shipped, (size_t)n_row * (size_t)lm->fused_width * 2) : h;
}

/* One row after `pos` tokens: it chooses a view, or sees what was chosen. */
static uint64_t view_row(struct gr_lm *lm, uint64_t h, int pos, bool chooses)
{
    static const struct gr_kv_budget budget = {.n_sink = 1, .n_retrieval = 2, .n_window = 2};
    static const int16_t anc[GR_ATTN_ANC_MAX];
    int32_t block[GOLDEN_N_POOL];
    for (int i = 0; i < GOLDEN_N_POOL; i++) {
        block[i] = (i * 37 + 5) % GOLDEN_N_POOL; /* as golden_run's */
    }
    const int32_t token = pos % lm->n_vocab, out_row = 0, limit = pos + 1, n_anc = 0;
    const int32_t cell = block[pos / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + pos % GR_KV_BLOCK_TOKENS;
    const struct gr_kv_refresh refresh = {.n_row = 1, .kv_len = pos, .budget = budget};
    struct gr_attn_seq seq = {.n_row = 1, .block = block, .limit = &limit, .n_anc = &n_anc, .anc = anc};
    struct gr_batch b = {.n_row = 1,
                         .n_seq = 1,
                         .n_out = 1,
                         .token = &token,
                         .pos = &pos,
                         .cell = &cell,
                         .seq = &seq,
                         .out_row = &out_row,
                         .n_refresh = chooses,
                         .refresh = &refresh};
    if (!chooses) {
        gr_kv_view_attend(&lm->view[0], &seq);
    }
    assert_int_equal(gr_lm_forward(lm, &b), GR_OK);
    return hash_words(h, lm->logits, (size_t)lm->n_vocab_stride * sizeof(float));
}

/* Views that each rank has of its own KV heads, taken and given back. */
static uint64_t run_views(struct gr_lm *lm, uint64_t h)
{
    enum { N_VIEWED = 100 };
    static const struct gr_kv_budget most = {.n_sink = 2, .n_retrieval = 4, .n_window = 4};
    int32_t ids[N_VIEWED];
    random_tokens(6, N_VIEWED, lm->n_vocab, ids);
    golden_run(lm, ids, 0, N_VIEWED, 1, NULL);
    assert_int_equal(gr_lm_view_create(lm, &most, 1), GR_OK);
    h = view_row(lm, h, N_VIEWED, true);
    for (int i = 1; i < 3; i++) {
        h = view_row(lm, h, N_VIEWED + i, false);
    }
    gr_lm_view_destroy(lm);
    return h;
}

struct result {
    uint64_t hash;
    int32_t greedy[N_GREEDY];
    char numerics[96];
};

/* A prompt in two pieces, with features and without, a tree, greedy steps. */
static void run(struct gr_lm *lm, struct result *out)
{
    int32_t ids[N_PROMPT];
    struct tree t;
    uint64_t h = 1;
    random_tokens(5, N_PROMPT, lm->n_vocab, ids);
    golden_run_rows(lm, &(struct golden_rows){.token = ids, .n_row = N_PROMPT, .n_out = 2, .want_capture = true});
    h = hash_pass(h, lm, N_PROMPT, 2);
    tree_init(&t, N_PROMPT, lm->n_vocab);
    tree_run(lm, &t);
    h = hash_words(h, lm->logits, (size_t)TREE_ROWS * (size_t)lm->n_vocab_stride * sizeof(float));
    golden_run(lm, ids, 0, 5, 0, NULL);
    golden_run(lm, ids + 5, 5, N_PROMPT - 5, 1, NULL);
    for (int k = 0; k < N_GREEDY; k++) {
        out->greedy[k] = lm->kernels->argmax(lm->logits, lm->n_vocab, false);
        golden_run_rows(
            lm,
            &(struct golden_rows){
                .token = &out->greedy[k], .begin = N_PROMPT + k, .n_row = 1, .n_out = 1, .want_capture = k % 2 == 0});
        h = hash_words(h, lm->logits, (size_t)lm->n_vocab_stride * sizeof(float));
    }
    out->hash = run_views(lm, h);
    snprintf(out->numerics, sizeof(out->numerics), "%s", lm->numerics_id);
}

static void check_equal(const char *what, const struct gr_llama_config *config, int n_most)
{
    struct result alone = {0};
    const struct gr_llama_config c = *config;
    struct gr_lm *lm = NULL;
    assert_int_equal(gr_cuda_llama_create(&c, 0, NULL, NULL, &lm), GR_OK);
    run(lm, &alone);
    gr_lm_destroy(lm);
    for (int n = 1; n <= GR_MIN(n_most, n_gpu); n *= 2) {
        struct rank_gpus r;
        struct result got = {0};
        lm = rank_gpus_open(&r, &c, n, part_max(&c));
        assert_non_null(lm);
        run(lm, &got);
        assert_int_equal(rank_gpus_close(&r, lm), GR_OK);
        print_message("# %s: %d ranks: %016llx, alone %016llx\n", what, n, (unsigned long long)got.hash,
                      (unsigned long long)alone.hash);
        assert_string_equal(got.numerics, alone.numerics);
        assert_memory_equal(got.greedy, alone.greedy, sizeof(got.greedy));
        assert_true(got.hash == alone.hash);
    }
}

/* Eight KV heads, nine units of the FFN, 13 panels of the vocabulary, the last of them short. */
static void write_tiny(struct tiny_folder *f)
{
    enum { HIDDEN = 128, N_Q = 16 * 64, N_KV = 8 * 64, FFN = 9 * 64, N_VOCAB = 200 };
    tiny_begin(f,
               "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":128,\"intermediate_size\":576,"
               "\"num_hidden_layers\":2,\"num_attention_heads\":16,\"num_key_value_heads\":8,\"head_dim\":64,"
               "\"vocab_size\":200,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":1024}",
               43);
    tiny_add(f, "model.embed_tokens.weight", N_VOCAB, HIDDEN);
    tiny_add(f, "model.norm.weight", HIDDEN, 0);
    tiny_add(f, "lm_head.weight", N_VOCAB, HIDDEN);
    for (int i = 0; i < 2; i++) {
        char prefix[64];
        snprintf(prefix, sizeof(prefix), "model.layers.%d", i);
        tiny_add_layer(f, prefix, HIDDEN, N_Q, N_KV, HIDDEN, FFN);
    }
    tiny_write(f);
}

static struct gr_llama_config config_of_tiny(const struct tiny_folder *f)
{
    struct gr_llama_config c = config_of(NULL);
    c.dir = f->dir;
    c.head_dir = NULL;
    return c;
}

static void test_tiny(void **state)
{
    (void)state;
    struct tiny_folder f;
    write_tiny(&f);
    const struct gr_llama_config c = config_of_tiny(&f);
    check_equal("eight KV heads", &c, 8);
    tiny_finish(&f);
}

/* Rows that each rank makes on its GPU. Of a GPU in software it takes minutes and gigabytes. */
static void test_expanded(void **state)
{
    (void)state;
    const struct gr_llama_config c = config_of("test-tp8");
    if (strcmp(GR_CUDA_ARCH, "soft") == 0 && getenv("GRAFT_TEST_SLOW") == NULL) {
        skip();
    }
    check_equal("test-tp8", &c, 8);
}

/* The demo pair as it is in its files: two KV heads. */
static void test_files(void **state)
{
    (void)state;
    const struct gr_llama_config c = config_of(NULL);
    check_equal("demo", &c, 2);
}

static void test_refused(void **state)
{
    (void)state;
    struct log_capture log;
    struct rank_gpus r;
    struct gr_llama_config c = config_of(NULL);
    log_capture_begin(&log);
    struct gr_lm *lm = rank_gpus_open(&r, &c, 4, part_max(&c));
    const bool opened = lm != NULL;
    const enum gr_status st = rank_gpus_close(&r, lm);
    const char *text = log_capture_end(&log);
    assert_true(!opened && st != GR_OK);
    assert_non_null(strstr(text, "has 2 KV heads"));
}

/* A driver gives a way, and what goes over it does not arrive: a line that names both, and no model. */
static void test_memory_of_another(void **state)
{
    (void)state;
    struct log_capture log;
    struct rank_gpus r;
    struct gr_llama_config c = config_of(NULL);
    if (n_gpu < 2) {
        skip();
    }
    log_capture_begin(&log);
    struct gr_lm *lm = rank_gpus_open_as(&r, &c, 2, part_max(&c), true);
    const bool opened = lm != NULL;
    const enum gr_status st = rank_gpus_close(&r, lm);
    const char *text = log_capture_end(&log);
    assert_true(!opened && st == GR_EUNSUPPORTED);
    assert_non_null(strstr(text, "cuda:0 (rank 0) and cuda:1 (rank 1): the first does not read"));
    assert_non_null(strstr(text, "cuda:1 (rank 1) and cuda:0 (rank 0): what the second wrote does not come"));
    assert_non_null(strstr(text, "take --tp-transport nccl"));
}

/* ---- many tokens, and time ---- */

enum { LONG_SEQ_MAX = 16 };

static int n_long, n_seq = 1; /* tokens, a multiple of n_seq; sequences at a time */
static uint64_t seed_long = 9;

/* Times mean nothing there, and cost many passes. */
static bool is_soft(void)
{
    return strcmp(GR_CUDA_ARCH, "soft") == 0;
}

static const char *long_geometry = "test-tp8";

/* A pass of so many rows, in microseconds: the shortest of some. */
static double time_pass(struct gr_lm *lm, int n_row)
{
    int32_t token[GOLDEN_ROW_MAX];
    double best = 1e30;
    random_tokens(3, n_row, lm->n_vocab, token);
    for (int i = 0; i < 30; i++) {
        const uint64_t begin = gr_clock_ns();
        golden_run(lm, token, 0, n_row, 0, NULL);
        best = GR_MIN(best, (double)(gr_clock_ns() - begin) * 1e-3);
    }
    return best;
}

/* n_row rows of each of n_seq sequences from position `begin` on; each one's last row has logits. */
static void run_crowd(struct gr_lm *lm, const int32_t *token, int begin, int n_row)
{
    static int32_t block[GOLDEN_N_POOL], pos[GOLDEN_ROW_MAX], cell[GOLDEN_ROW_MAX], limit[GOLDEN_ROW_MAX];
    static int32_t n_anc[GOLDEN_ROW_MAX], out_row[LONG_SEQ_MAX];
    static int16_t anc[GOLDEN_ROW_MAX * GR_ATTN_ANC_MAX];
    struct gr_attn_seq seq[LONG_SEQ_MAX];
    const int n_block = GOLDEN_N_POOL / n_seq;
    for (int i = 0; i < GOLDEN_N_POOL; i++) {
        block[i] = (i * 37 + 5) % GOLDEN_N_POOL; /* as golden_run's */
    }
    for (int i = 0; i < n_seq * n_row; i++) {
        const int32_t *own = block + i / n_row * n_block;
        pos[i] = begin + i % n_row;
        cell[i] = own[pos[i] / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + pos[i] % GR_KV_BLOCK_TOKENS;
        limit[i] = pos[i] + 1;
    }
    for (int s = 0; s < n_seq; s++) {
        const int row = s * n_row;
        out_row[s] = row + n_row - 1;
        seq[s] = (struct gr_attn_seq){.row0 = row,
                                      .n_row = n_row,
                                      .block = block + s * n_block,
                                      .limit = limit + row,
                                      .n_anc = n_anc + row,
                                      .anc = anc + row * GR_ATTN_ANC_MAX};
    }
    const struct gr_batch b = {.n_row = n_seq * n_row,
                               .n_seq = n_seq,
                               .n_out = n_seq,
                               .token = token,
                               .pos = pos,
                               .cell = cell,
                               .seq = seq,
                               .out_row = out_row};
    assert_int_equal(gr_lm_forward(lm, &b), GR_OK);
}

/* Greedy ids of n_long tokens after prompts; a hash of all their logits. */
static uint64_t run_long(struct gr_lm *lm, int n_rank, int32_t *ids)
{
    enum { N_LONG_PROMPT = 16 };
    const int n_ctx = GR_MIN(1000, GOLDEN_N_POOL / n_seq * GR_KV_BLOCK_TOKENS);
    uint64_t h = 1;
    double best = 1e30;
    for (int done = 0; done < n_long;) {
        int32_t prompt[LONG_SEQ_MAX * N_LONG_PROMPT];
        random_tokens(seed_long + (uint64_t)done, n_seq * N_LONG_PROMPT, lm->n_vocab, prompt);
        run_crowd(lm, prompt, 0, N_LONG_PROMPT);
        for (int pos = N_LONG_PROMPT; pos < n_ctx && done < n_long; pos++, done += n_seq) {
            const uint64_t begin = gr_clock_ns();
            for (int s = 0; s < n_seq; s++) {
                const float *logits = lm->logits + (size_t)s * (size_t)lm->n_vocab_stride;
                ids[done + s] = lm->kernels->argmax(logits, lm->n_vocab, false);
                h = hash_words(h, logits, (size_t)lm->n_vocab * sizeof(float));
            }
            run_crowd(lm, &ids[done], pos, 1);
            best = GR_MIN(best, (double)(gr_clock_ns() - begin) * 1e-3);
        }
    }
    print_message("# %s on %d ranks: %d tokens, logits %016llx, one pass of %d sequences %.1f us", long_geometry,
                  n_rank, n_long, (unsigned long long)h, n_seq, best);
    for (int n_row = 1; !is_soft() && n_row <= GOLDEN_ROW_MAX; n_row *= n_row < 16 ? 4 : 2) {
        print_message(", %d rows %.1f", n_row, time_pass(lm, n_row));
    }
    print_message("\n");
    return h;
}

static void test_long(void **state)
{
    (void)state;
    const bool tiny = strcmp(long_geometry, "tiny") == 0;
    struct tiny_folder f;
    if (tiny) {
        write_tiny(&f);
    }
    struct gr_llama_config c = tiny ? config_of_tiny(&f) : config_of(long_geometry);
    c.n_seq_max = n_seq;
    struct gr_lm *lm = NULL;
    int32_t *want = calloc((size_t)n_long, sizeof(*want)), *got = calloc((size_t)n_long, sizeof(*got));
    assert_true(want != NULL && got != NULL);
    assert_int_equal(gr_cuda_llama_create(&c, 0, NULL, NULL, &lm), GR_OK);
    const uint64_t logits = run_long(lm, 0, want);
    gr_lm_destroy(lm);
    for (int n = 2; n <= n_gpu; n *= 2) {
        struct rank_gpus r;
        lm = rank_gpus_open(&r, &c, n, part_max(&c));
        assert_non_null(lm);
        assert_true(run_long(lm, n, got) == logits);
        assert_int_equal(rank_gpus_close(&r, lm), GR_OK);
        assert_memory_equal(got, want, (size_t)n_long * sizeof(*got));
    }
    free(want);
    free(got);
    if (tiny) {
        tiny_finish(&f);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),    cmocka_unit_test(test_expanded),          cmocka_unit_test(test_files),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_memory_of_another),
    };
    const struct CMUnitTest long_tests[] = {cmocka_unit_test(test_long)};
    find_models();
    if (cudaGetDeviceCount(&n_gpu) != cudaSuccess || n_gpu == 0) {
        puts("1..0 # SKIP no GPU");
        return 0;
    }
    if (argc >= 3 && strcmp(argv[1], "long") == 0) {
        n_long = atoi(argv[2]);
        long_geometry = argc > 3 ? argv[3] : long_geometry;
        n_seq = argc > 4 ? atoi(argv[4]) : 1;
        seed_long = argc > 5 ? strtoull(argv[5], NULL, 10) : seed_long;
        assert_in_range(n_seq, 1, LONG_SEQ_MAX);
        n_long -= n_long % n_seq;
        return cmocka_run_group_tests(long_tests, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
