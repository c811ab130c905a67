/* For tests: what a real model and its EAGLE-3 head compute, against values by another implementation.
 *
 *     model_states MODEL HEAD CASES.json STRIDE VALUES.safetensors...
 *
 * VALUES has of a case i (its "index" in CASES.json) target.logits.{i} of the prompt's last positions,
 * target.captured.{i}, eagle3.fused.{i} of all of them, and eagle3.first_logits.{i} for the prompt and the first greedy
 * id; each flattened, every STRIDE-th value of it. "eagle3_chain" are the ids of a greedy chain of the head. Prints the
 * relative norm of each difference; status 1 if one is above 1e-4, or a chain is another. */
#include "model/eagle3.h"
#include "model/llama.h"

#include "tests/unit/golden.h"

#define CHAIN_MAX 16
#define LAST_POSITIONS 4
#define LIMIT 1e-4
#define VALUES_MAX 2

struct states {
    struct gr_lm *target, *head;
    size_t stride;
    int32_t *ids;    /* the prompt, and the first greedy id */
    int n;           /* of the prompt */
    float *captured; /* (n, captured width) */
    float *fused;    /* (n, fused width) */
    int n_compared, n_wrong;
};

static void load(struct states *s, const char *model, const char *head)
{
    const struct gr_llama_config target = {.dir = model,
                                           .head_dir = head,
                                           .n_ctx_max = GOLDEN_N_POOL * GR_KV_BLOCK_TOKENS,
                                           .n_row_max = GOLDEN_ROW_MAX,
                                           .n_out_max = LAST_POSITIONS,
                                           .n_pool_block = GOLDEN_N_POOL,
                                           .n_scratch_block = 1};
    const struct gr_eagle3_config its = {.dir = head,
                                         .target_dir = model,
                                         .n_ctx_max = GOLDEN_N_POOL * GR_KV_BLOCK_TOKENS,
                                         .n_row_max = GOLDEN_ROW_MAX,
                                         .n_out_max = 1,
                                         .n_pool_block = GOLDEN_N_POOL,
                                         .n_scratch_block = 1};
    if (gr_llama_create(&target, NULL, NULL, &s->target) != GR_OK ||
        gr_eagle3_create(&its, NULL, NULL, &s->head) != GR_OK) {
        exit(1);
    }
}

static size_t captured_width(const struct gr_lm *lm)
{
    return (size_t)lm->n_capture * (size_t)lm->capture_width;
}

static void compare(struct states *s, const struct gr_tensors *values, const char *what, int i, const float *got,
                    size_t n)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.%d", what, i);
    const struct gr_tensor *t = gr_tensors_find(values, name);
    if (t == NULL) {
        return;
    }
    const size_t n_kept = (n + s->stride - 1) / s->stride;
    float *kept = malloc(n_kept * sizeof(*kept));
    GR_ASSERT(kept != NULL);
    for (size_t k = 0; k < n_kept; k++) {
        kept[k] = got[k * s->stride];
    }
    const bool fits = t->bytes == n_kept * sizeof(float);
    const double worst = fits ? relative_norm(kept, t->data, n_kept) : 1.0;
    printf("%s: %zu of %zu values, relative norm %.2e\n", name, n_kept, n, worst);
    s->n_compared++;
    s->n_wrong += !(worst < LIMIT);
    free(kept);
}

/* The prompt through the target, in chunks: its captured states and their fused features stay; logits of the last
 * chunk. */
static void run_target(struct states *s)
{
    const float *row[GOLDEN_ROW_MAX];
    const size_t width = captured_width(s->target);
    for (int p = 0; p < s->n; p += GOLDEN_ROW_MAX) {
        const int n_row = GR_MIN(GOLDEN_ROW_MAX, s->n - p);
        golden_run(s->target, s->ids + p, p, n_row, GR_MIN(LAST_POSITIONS, n_row), NULL);
        for (int r = 0; r < n_row; r++) {
            row[r] = gr_lm_capture(s->target, r);
            memcpy(s->captured + (size_t)(p + r) * width, row[r], width * sizeof(float));
        }
        gr_lm_fuse(s->target, n_row, row, s->fused + (size_t)p * (size_t)s->target->fused_width);
    }
}

/* The prompt through the head: row t has the feature of t and the token of t + 1. Returns the rows of the last chunk.
 */
static int run_head(struct states *s)
{
    int n_row = 0;
    for (int p = 0; p < s->n; p += n_row) {
        n_row = GR_MIN(GOLDEN_ROW_MAX, s->n - p);
        golden_run(s->head, s->ids + 1 + p, p, n_row, 1, s->fused + (size_t)p * (size_t)s->head->feature_width);
    }
    return n_row;
}

/* After run_head(): the head follows its own states. */
static void compare_chain(struct states *s, int i, json_t *chain, int n_row)
{
    const float *feature = s->head->hidden + (size_t)(n_row - 1) * (size_t)s->head->feature_width;
    const int n = (int)json_array_size(chain);
    int n_equal = 0;
    for (int k = 0; k < n && n_equal == k; k++) {
        const int32_t token = s->head->to_target[s->head->kernels->argmax(s->head->logits, s->head->n_vocab, false)];
        n_equal += token == json_integer_value(json_array_get(chain, (size_t)k));
        golden_run(s->head, &token, s->n + k, 1, 1, feature);
        feature = s->head->hidden;
    }
    printf("eagle3_chain.%d: %d of %d ids\n", i, n_equal, n);
    s->n_compared++;
    s->n_wrong += n_equal != n || n == 0;
}

static void read_ids(struct states *s, json_t *c)
{
    json_t *prompt = json_object_get(c, "prompt_ids");
    s->n = (int)json_array_size(prompt);
    for (int k = 0; k < s->n; k++) {
        s->ids[k] = (int32_t)json_integer_value(json_array_get(prompt, (size_t)k));
    }
    s->ids[s->n] = (int32_t)json_integer_value(json_array_get(json_object_get(c, "greedy_ids"), 0));
}

static void run_case(struct states *s, json_t *c, struct gr_tensors *const *values, int n_values)
{
    const int i = (int)json_integer_value(json_object_get(c, "index"));
    read_ids(s, c);
    const size_t n_last = (size_t)GR_MIN(LAST_POSITIONS, s->n) * (size_t)s->target->n_vocab;
    run_target(s);
    const int n_row = run_head(s);
    for (int v = 0; v < n_values; v++) {
        compare(s, values[v], "target.logits", i, s->target->logits, n_last);
        compare(s, values[v], "target.captured", i, s->captured, (size_t)s->n * captured_width(s->target));
        compare(s, values[v], "eagle3.fused", i, s->fused, (size_t)s->n * (size_t)s->target->fused_width);
        compare(s, values[v], "eagle3.first_logits", i, s->head->logits, (size_t)s->head->n_vocab);
    }
    compare_chain(s, i, json_object_get(c, "eagle3_chain"), n_row);
}

static void take_room(struct states *s)
{
    const size_t n = GOLDEN_N_POOL * GR_KV_BLOCK_TOKENS - CHAIN_MAX;
    s->ids = calloc(n + 1, sizeof(*s->ids));
    s->captured = calloc(n * captured_width(s->target), sizeof(float));
    s->fused = calloc(n * (size_t)s->target->fused_width, sizeof(float));
    GR_ASSERT(s->ids != NULL && s->captured != NULL && s->fused != NULL);
}

static void release(struct states *s)
{
    free(s->ids);
    free(s->captured);
    free(s->fused);
    gr_lm_destroy(s->head);
    gr_lm_destroy(s->target);
}

int main(int argc, char **argv)
{
    struct gr_tensors *values[VALUES_MAX] = {NULL};
    void *data[VALUES_MAX] = {NULL};
    struct states s = {0};
    const int n_values = argc - 5;
    if (n_values < 1 || n_values > VALUES_MAX || atoi(argv[4]) < 1) {
        fprintf(stderr, "usage: model_states MODEL HEAD CASES.json STRIDE VALUES.safetensors...\n");
        return 2;
    }
    s.stride = (size_t)atoi(argv[4]);
    load(&s, argv[1], argv[2]);
    take_room(&s);
    json_t *root = json_load_file(argv[3], 0, NULL), *c = NULL;
    GR_ASSERT(root != NULL);
    for (int v = 0; v < n_values; v++) {
        const int got = golden_read(argv[5 + v], &data[v], &values[v]);
        GR_ASSERT(got == 0);
    }
    size_t at = 0;
    json_array_foreach(json_object_get(root, "cases"), at, c)
    {
        run_case(&s, c, values, n_values);
    }
    printf("%d compared, %d wrong\n", s.n_compared, s.n_wrong);
    for (int v = 0; v < n_values; v++) {
        gr_tensors_close(values[v]);
        free(data[v]);
    }
    json_decref(root);
    release(&s);
    return s.n_wrong == 0 ? 0 : 1;
}
