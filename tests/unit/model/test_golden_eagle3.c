/* EAGLE-3 against the golden values: fused features of the target, the head's first logits from f32 and from bf16
 * features, its greedy chains; and equal bits in every instruction set. */
#include "model/eagle3.h"
#include "model/llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/golden.h"

#define HEAD GR_SOURCE_ROOT "/models/demo/eagle3"
#define TARGET GR_SOURCE_ROOT "/models/demo/target"
#define HIDDEN 384
#define CHAIN 6

static struct gr_lm *load_target(const char *isa)
{
    struct gr_lm *lm = NULL;
    const struct gr_llama_config c = {.dir = TARGET,
                                      .isa = isa,
                                      .n_ctx_max = 1024,
                                      .n_row_max = GOLDEN_ROW_MAX,
                                      .n_out_max = 16,
                                      .n_pool_block = GOLDEN_N_POOL,
                                      .n_scratch_block = 4,
                                      .head_dir = HEAD};
    assert_int_equal(gr_llama_create(&c, NULL, NULL, &lm), GR_OK);
    assert_int_equal(lm->fused_width, HIDDEN);
    assert_int_equal(lm->n_capture, 3);
    return lm;
}

static struct gr_lm *load_head(const char *isa)
{
    struct gr_lm *lm = NULL;
    const struct gr_eagle3_config c = {.dir = HEAD,
                                       .target_dir = TARGET,
                                       .isa = isa,
                                       .n_ctx_max = 1024,
                                       .n_row_max = GOLDEN_ROW_MAX,
                                       .n_out_max = 16,
                                       .n_pool_block = GOLDEN_N_POOL,
                                       .n_scratch_block = 4,
                                       .n_state = 4};
    assert_int_equal(gr_eagle3_create(&c, NULL, NULL, &lm), GR_OK);
    assert_int_equal(lm->feature_width, HIDDEN);
    assert_int_equal(lm->n_vocab, 3072);
    assert_int_equal(lm->n_vocab_target, 4096);
    assert_non_null(lm->to_target);
    return lm;
}

/* Fused features of all n rows of the last pass, out of order and in two calls: fuse picks rows. */
static void fuse_all(struct gr_lm *target, int n, float *out)
{
    const float *row[GOLDEN_ROW_MAX];
    for (int i = 0; i < n; i++) {
        row[i] = gr_lm_capture(target, i);
    }
    const int half = n / 2;
    gr_lm_fuse(target, n - half, row + half, out + (size_t)half * HIDDEN);
    gr_lm_fuse(target, half, row, out);
}

/* Prompt of case i through the target; ids holds the prompt and the first greedy id after it. */
static int features_of(struct gr_lm *target, int i, int32_t *ids, float *fused)
{
    int32_t greedy[256];
    const int n = golden_ids(&golden, i, "prompt_ids", ids);
    golden_ids(&golden, i, "greedy_ids", greedy);
    ids[n] = greedy[0];
    golden_run(target, ids, 0, n, 1, NULL);
    fuse_all(target, n, fused);
    return n;
}

static void round_to_bf16(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = gr_bf16_to_f32(gr_bf16_from_f32(x[i]));
    }
}

static void test_fused_and_first_logits(void **state)
{
    (void)state;
    struct gr_lm *target = load_target(NULL);
    struct gr_lm *head = load_head(NULL);
    static float fused[GOLDEN_ROW_MAX * HIDDEN];
    for (int i = 0; i < 4; i++) {
        int32_t ids[GOLDEN_ROW_MAX + 1];
        const int n = features_of(target, i, ids, fused);
        const struct gr_tensor *want = golden_tensor(&golden, "eagle3.fused", i);
        assert_int_equal(want->shape[0], n);
        const double fused_error = relative_norm(fused, want->data, (size_t)n * HIDDEN);
        /* Row t: the feature of t and the token of t + 1. */
        golden_run(head, ids + 1, 0, n, 1, fused);
        const float *logits = golden_tensor(&golden, "eagle3.first_logits", i)->data;
        const double f32_error = relative_norm(head->logits, logits, (size_t)head->n_vocab);
        round_to_bf16(fused, (size_t)n * HIDDEN);
        golden_run(head, ids + 1, 0, n, 1, fused);
        const double bf16_error = relative_norm(head->logits, logits, (size_t)head->n_vocab);
        print_message("# case %d: fused %.2e, first logits %.2e, from bf16 features %.2e\n", i, fused_error, f32_error,
                      bf16_error);
        assert_true(fused_error < 1e-4 && f32_error < 1e-4);
        assert_true(bf16_error > 1e-4 && bf16_error < 3e-3); /* the rounding did happen */
    }
    gr_lm_destroy(head);
    gr_lm_destroy(target);
}

/* The head follows its own states; the feature of a row is lm->hidden of the row before, in place. */
static void run_golden_chain(struct gr_lm *head, int i, const int32_t *ids, int n, const float *fused)
{
    int32_t want[CHAIN];
    assert_int_equal(golden_ids(&golden, i, "eagle3_chain", want), CHAIN);
    golden_run(head, ids + 1, 0, n, 1, fused);
    const float *feature = head->hidden + (size_t)(n - 1) * HIDDEN;
    for (int k = 0; k < CHAIN; k++) {
        const int32_t token = head->to_target[head->kernels->argmax(head->logits, head->n_vocab, false)];
        assert_int_equal(token, want[k]);
        golden_run(head, &token, n + k, 1, 1, feature);
        feature = head->hidden;
    }
}

/* The same with a state that the head keeps from pass to pass: each reads it, then writes it. */
static void run_kept_chain(struct gr_lm *head, int i, const int32_t *ids, int n, const float *fused)
{
    int32_t want[CHAIN], none[GOLDEN_ROW_MAX], to[GOLDEN_ROW_MAX];
    assert_int_equal(golden_ids(&golden, i, "eagle3_chain", want), CHAIN);
    for (int r = 0; r < n; r++) {
        none[r] = to[r] = -1;
    }
    to[n - 1] = 3;
    golden_run_rows(head, &(struct golden_rows){
                              .token = ids + 1, .n_row = n, .n_out = 1, .feature = fused, .from = none, .to = to});
    for (int k = 0; k < CHAIN; k++) {
        const int32_t token = head->to_target[head->kernels->argmax(head->logits, head->n_vocab, false)];
        assert_int_equal(token, want[k]);
        memset(head->hidden, 0, HIDDEN * sizeof(float)); /* it is not taken from there */
        golden_run_rows(
            head, &(struct golden_rows){
                      .token = &token, .begin = n + k, .n_row = 1, .n_out = 1, .from = &to[n - 1], .to = &to[n - 1]});
        assert_memory_equal(head->state + 3 * HIDDEN, head->hidden, HIDDEN * sizeof(float));
    }
}

static void check_chains(bool bf16)
{
    struct gr_lm *target = load_target(NULL);
    struct gr_lm *head = load_head(NULL);
    static float fused[GOLDEN_ROW_MAX * HIDDEN];
    const int n_case = (int)json_array_size(golden.cases);
    for (int i = 0; i < n_case; i++) {
        int32_t ids[GOLDEN_ROW_MAX + 1];
        const int n = features_of(target, i, ids, fused);
        if (bf16) {
            round_to_bf16(fused, (size_t)n * HIDDEN);
        }
        run_golden_chain(head, i, ids, n, fused);
        run_kept_chain(head, i, ids, n, fused);
    }
    print_message("# %d chains of %d from %s features\n", n_case, CHAIN, bf16 ? "bf16" : "f32");
    gr_lm_destroy(head);
    gr_lm_destroy(target);
}

static void test_chains(void **state)
{
    (void)state;
    check_chains(false);
    check_chains(true);
}

/* Rows of case 2 in chunks of several sizes: logits and hidden states must be the same bits, whatever the chunking and
 * the instruction set. */
static void test_equal_bits(void **state)
{
    (void)state;
    static const char *const isas[] = {"c", "avx2", "avx512"};
    static const int chunks[] = {64, 7, 1};
    static float fused[GOLDEN_ROW_MAX * HIDDEN], first_fused[GOLDEN_ROW_MAX * HIDDEN];
    static float hidden[GOLDEN_ROW_MAX * HIDDEN], first_hidden[GOLDEN_ROW_MAX * HIDDEN], first_logits[3072];
    int n_compared = 0;
    for (size_t v = 0; v < GR_ARRAY_LEN(isas); v++) {
        struct gr_kernels k;
        gr_kernels_init_ref(&k);
        if (gr_kernels_init_cpu(&k, isas[v]) != GR_OK) {
            print_message("# %s: not on this machine\n", isas[v]);
            continue;
        }
        struct gr_lm *target = load_target(isas[v]);
        struct gr_lm *head = load_head(isas[v]);
        int32_t ids[GOLDEN_ROW_MAX + 1];
        const int n = features_of(target, 2, ids, fused);
        for (size_t c = 0; c < GR_ARRAY_LEN(chunks); c++) {
            for (int p = 0; p < n; p += chunks[c]) {
                const int n_row = GR_MIN(chunks[c], n - p);
                golden_run(head, ids + 1 + p, p, n_row, 1, fused + (size_t)p * HIDDEN);
                memcpy(hidden + (size_t)p * HIDDEN, head->hidden, (size_t)n_row * HIDDEN * sizeof(float));
            }
            if (n_compared++ == 0) {
                memcpy(first_fused, fused, sizeof(fused));
                memcpy(first_hidden, hidden, sizeof(hidden));
                memcpy(first_logits, head->logits, sizeof(first_logits));
            }
            assert_memory_equal(fused, first_fused, (size_t)n * HIDDEN * sizeof(float));
            assert_memory_equal(hidden, first_hidden, (size_t)n * HIDDEN * sizeof(float));
            assert_memory_equal(head->logits, first_logits, sizeof(first_logits));
        }
        gr_lm_destroy(head);
        gr_lm_destroy(target);
    }
    print_message("# %d runs, equal bits\n", n_compared);
    assert_true(n_compared >= 3);
}

/* Golden tree of the design: two branches after a prefix, rows in scratch. */
#define N_NODE 5
static const int parents[N_NODE] = {-1, 0, 0, 1, 2};
static const int32_t node_token[N_NODE] = {264, 68, 198, 1930, 2};

/* The tree as one pass; features of a node: made up, but its own. */
static void run_tree(struct gr_lm *head, int n, const float *feature)
{
    static int32_t block[GOLDEN_N_POOL];
    static int16_t anc[N_NODE * GR_ATTN_ANC_MAX];
    const int32_t scratch = GOLDEN_N_POOL;
    int32_t pos[N_NODE], cell[N_NODE], limit[N_NODE], n_anc[N_NODE], out_row[N_NODE];
    const float *features[N_NODE];
    for (int i = 0; i < GOLDEN_N_POOL; i++) {
        block[i] = (i * 37 + 5) % GOLDEN_N_POOL;
    }
    for (int i = 0; i < N_NODE; i++) {
        int depth = 0;
        for (int a = i; a >= 0; a = parents[a]) {
            depth++;
        }
        n_anc[i] = depth;
        for (int a = i; a >= 0; a = parents[a]) {
            anc[i * GR_ATTN_ANC_MAX + --depth] = (int16_t)a;
        }
        pos[i] = n + n_anc[i] - 1;
        cell[i] = scratch * 16 + i;
        limit[i] = n;
        out_row[i] = i;
        features[i] = feature + (size_t)i * HIDDEN;
    }
    const struct gr_attn_seq seq = {.n_row = N_NODE,
                                    .block = block,
                                    .limit = limit,
                                    .scratch_block = &scratch,
                                    .n_anc = n_anc,
                                    .anc = anc,
                                    .n_slot = N_NODE};
    assert_int_equal(gr_lm_forward(head, &(struct gr_batch){.n_row = N_NODE,
                                                            .n_seq = 1,
                                                            .n_out = N_NODE,
                                                            .token = node_token,
                                                            .pos = pos,
                                                            .cell = cell,
                                                            .seq = &seq,
                                                            .out_row = out_row,
                                                            .feature = features}),
                     GR_OK);
}

/* A path of a tree has the bits of the same tokens as a chain; and once its cells are copied after the prefix, so has
 * the row that follows. */
static void test_tree_rows(void **state)
{
    (void)state;
    static const int path[] = {0, 2, 4};
    static float fused[GOLDEN_ROW_MAX * HIDDEN], hidden[4][HIDDEN], logits[4][3072];
    struct gr_lm *target = load_target(NULL);
    struct gr_lm *head = load_head(NULL);
    int32_t ids[GOLDEN_ROW_MAX + 1];
    const int n = features_of(target, 1, ids, fused); /* 17: the tree begins inside a block */
    const float *feature = fused;                     /* of nodes: borrowed from the first positions */
    golden_run(head, ids + 1, 0, n, 1, fused);
    for (int k = 0; k < 4; k++) {
        const int node = k < 3 ? path[k] : 1;
        golden_run(head, &node_token[node], n + k, 1, 1, feature + (size_t)node * HIDDEN);
        memcpy(hidden[k], head->hidden, sizeof(hidden[k]));
        memcpy(logits[k], head->logits, sizeof(logits[k]));
    }
    run_tree(head, n, feature);
    int32_t src[3], dst[3];
    for (int k = 0; k < 3; k++) {
        assert_memory_equal(head->hidden + (size_t)path[k] * HIDDEN, hidden[k], sizeof(hidden[k]));
        assert_memory_equal(gr_lm_logits(head, path[k]), logits[k], sizeof(logits[k]));
        src[k] = GOLDEN_N_POOL * 16 + path[k];
        dst[k] = ((n + k) / 16 * 37 + 5) % GOLDEN_N_POOL * 16 + (n + k) % 16;
    }
    /* What stands there now are the chain's own cells: spoil them first. */
    golden_run(head, ids, n, 3, 1, fused);
    gr_lm_copy_cells(head, 3, src, dst);
    golden_run(head, &node_token[1], n + 3, 1, 1, feature + HIDDEN);
    assert_memory_equal(head->hidden, hidden[3], sizeof(hidden[3]));
    assert_memory_equal(head->logits, logits[3], sizeof(logits[3]));
    gr_lm_destroy(head);
    gr_lm_destroy(target);
}

/* A head that is sent captured states fuses them to the bits that its target would have shipped. */
static void test_raw_head_fuses_alike(void **state)
{
    (void)state;
    static float ours[GOLDEN_ROW_MAX * HIDDEN], theirs[GOLDEN_ROW_MAX * HIDDEN];
    static int32_t ids[GOLDEN_ROW_MAX];
    const float *capture[GOLDEN_ROW_MAX];
    struct gr_lm *target = load_target(NULL);
    struct gr_lm *head = NULL;
    const struct gr_eagle3_config c = {.dir = HEAD,
                                       .target_dir = TARGET,
                                       .n_ctx_max = 1024,
                                       .n_out_max = 16,
                                       .n_row_max = GOLDEN_ROW_MAX,
                                       .n_pool_block = GOLDEN_N_POOL,
                                       .n_scratch_block = 4,
                                       .raw_features = true};
    assert_int_equal(gr_eagle3_create(&c, NULL, NULL, &head), GR_OK);
    assert_int_equal(gr_lm_ship_width(head), 3 * HIDDEN);
    assert_int_equal(gr_lm_ship_width(target), HIDDEN);
    assert_string_equal(head->captures, "2,4,7");
    assert_string_equal(target->captures, "2,4,7");
    const int n = features_of(target, 0, ids, theirs);
    for (int i = 0; i < n; i++) {
        capture[i] = gr_lm_capture(target, i);
    }
    gr_lm_fuse(head, n, capture, ours);
    assert_memory_equal(ours, theirs, (size_t)n * HIDDEN * sizeof(float));
    gr_lm_destroy(head);
    gr_lm_destroy(target);
}

/* Both sides compute the id of the fc they use by themselves. */
static void test_fc_fingerprint(void **state)
{
    (void)state;
    struct gr_lm *target = load_target(NULL);
    struct gr_lm *head = load_head(NULL);
    assert_true(target->fc_fingerprint != 0);
    assert_true(target->fc_fingerprint == head->fc_fingerprint);
    gr_lm_destroy(head);
    gr_lm_destroy(target);
}

/* Two sessions in one pass, each after a prefix whose rows all ran for their KV alone: the first n_kv_only rows again
 * leave no more than that. Logits of each session's last row. */
#define SPLIT_ROWS 5
static void run_kv_only(struct gr_lm *head, const int32_t *token, int n, const float *fused, const int32_t n_kv_only[2])
{
    static int32_t block[2][GOLDEN_N_POOL], n_anc[2 * GOLDEN_ROW_MAX];
    static int16_t anc[2 * GOLDEN_ROW_MAX * GR_ATTN_ANC_MAX];
    static const float *feature[2 * GOLDEN_ROW_MAX];
    int32_t id[2 * GOLDEN_ROW_MAX], pos[2 * GOLDEN_ROW_MAX], cell[2 * GOLDEN_ROW_MAX], limit[2 * GOLDEN_ROW_MAX];
    int32_t out_row[2], n_out = 0;
    struct gr_attn_seq seq[2];
    for (int part = 0; part < 2; part++) { /* the prefix, then the rows after it */
        const int begin = part == 0 ? 0 : n - SPLIT_ROWS;
        const int n_row = part == 0 ? n - SPLIT_ROWS : SPLIT_ROWS;
        for (int i = 0; i < 2 * n_row; i++) {
            const int s = i / n_row;
            pos[i] = begin + i % n_row;
            block[s][pos[i] / 16] = 2 * (pos[i] / 16) + s;
            cell[i] = block[s][pos[i] / 16] * 16 + pos[i] % 16;
            limit[i] = pos[i] + 1;
            id[i] = token[pos[i]];
            feature[i] = fused + (size_t)pos[i] * HIDDEN;
        }
        for (int s = 0; s < 2; s++) {
            seq[s] = (struct gr_attn_seq){.row0 = s * n_row,
                                          .n_row = n_row,
                                          .block = block[s],
                                          .limit = limit + s * n_row,
                                          .n_anc = n_anc,
                                          .anc = anc};
            if (part == 1 && n_kv_only[s] < n_row) {
                out_row[n_out++] = (s + 1) * n_row - 1;
            }
        }
        assert_int_equal(gr_lm_forward(head, &(struct gr_batch){.n_row = 2 * n_row,
                                                                .n_seq = 2,
                                                                .n_out = n_out,
                                                                .token = id,
                                                                .pos = pos,
                                                                .cell = cell,
                                                                .seq = seq,
                                                                .out_row = out_row,
                                                                .feature = feature,
                                                                .n_kv_only = part == 0 ? (const int32_t[]){n_row, n_row}
                                                                                       : n_kv_only}),
                         GR_OK);
    }
}

/* Rows that only leave their KV leave the KV of rows that run whole: what comes after has the same bits. */
static void test_kv_only(void **state)
{
    (void)state;
    static const int32_t splits[][2] = {{0, 0}, {4, 4}, {2, 4}, {5, 3}, {1, 5}};
    static float fused[GOLDEN_ROW_MAX * HIDDEN];
    float hidden[HIDDEN], logits[3072];
    struct gr_lm *target = load_target(NULL);
    struct gr_lm *head = load_head(NULL);
    int32_t ids[GOLDEN_ROW_MAX + 1];
    const int n = features_of(target, 1, ids, fused);
    golden_run(head, ids + 1, 0, n, 1, fused);
    memcpy(hidden, head->hidden + (size_t)(n - 1) * HIDDEN, sizeof(hidden));
    memcpy(logits, head->logits, sizeof(logits));
    for (size_t k = 0; k < GR_ARRAY_LEN(splits); k++) {
        int n_out = 0;
        memset(head->hidden, 0, (size_t)2 * SPLIT_ROWS * HIDDEN * sizeof(float));
        run_kv_only(head, ids + 1, n, fused, splits[k]);
        for (int s = 0; s < 2; s++) {
            if (splits[k][s] < SPLIT_ROWS) {
                assert_memory_equal(head->hidden + (size_t)((s + 1) * SPLIT_ROWS - 1) * HIDDEN, hidden, sizeof(hidden));
                assert_memory_equal(gr_lm_logits(head, n_out++), logits, sizeof(logits));
            }
        }
        assert_true(n_out > 0);
    }
    gr_lm_destroy(head);
    gr_lm_destroy(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused_and_first_logits),
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_equal_bits),
        cmocka_unit_test(test_tree_rows),
        cmocka_unit_test(test_kv_only),
        cmocka_unit_test(test_raw_head_fuses_alike),
        cmocka_unit_test(test_fc_fingerprint),
    };
    return cmocka_run_group_tests(tests, golden_setup, golden_teardown);
}
