/* For tests: golden values of the project (Hugging Face transformers, float32 on the stored bf16 weights), and running
 * one session through a model. */
#ifndef GR_TESTS_GOLDEN_H
#define GR_TESTS_GOLDEN_H

#include "model/lm.h"
#include "model/files/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN_N_POOL 64 /* KV blocks of the models: 1024 tokens */
#define GOLDEN_ROW_MAX 256

struct golden {
    json_t *root, *cases; /* demo-greedy.json */
    struct gr_tensors *tensors;
    void *data;
};

/* data: what the tensors point into; both are the caller's. */
static inline int golden_read(const char *path, void **data, struct gr_tensors **tensors)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return -1;
    }
    fseek(f, 0, SEEK_END);
    const size_t len = (size_t)ftell(f);
    rewind(f);
    *data = aligned_alloc(64, (len + 63) / 64 * 64);
    const bool whole = *data != NULL && fread(*data, 1, len, f) == len;
    fclose(f);
    return whole && gr_safetensors_parse(path, *data, len, tensors) == GR_OK ? 0 : -1;
}

static inline int golden_open(struct golden *g)
{
    json_error_t error;
    g->root = json_load_file(GR_SOURCE_ROOT "/tests/golden/demo-greedy.json", 0, &error);
    g->cases = json_object_get(g->root, "cases");
    if (g->cases == NULL) {
        return -1;
    }
    return golden_read(GR_SOURCE_ROOT "/tests/golden/demo-logits.safetensors", &g->data, &g->tensors);
}

static inline void golden_close(struct golden *g)
{
    gr_tensors_close(g->tensors);
    free(g->data);
    json_decref(g->root);
}

static struct golden golden; /* of the test program, from golden_setup to golden_teardown */

static inline int golden_setup(void **state)
{
    (void)state;
    return golden_open(&golden);
}

static inline int golden_teardown(void **state)
{
    (void)state;
    golden_close(&golden);
    return 0;
}

static inline const struct gr_tensor *golden_tensor(const struct golden *g, const char *what, int i)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.%d", what, i);
    const struct gr_tensor *t = gr_tensors_find(g->tensors, name);
    GR_ASSERT(t != NULL);
    return t;
}

/* Ids of a list of case i; returns how many. */
static inline int golden_ids(const struct golden *g, int i, const char *list, int32_t *id_out)
{
    json_t *ids = json_object_get(json_array_get(g->cases, (size_t)i), list);
    for (size_t k = 0; k < json_array_size(ids); k++) {
        id_out[k] = (int32_t)json_integer_value(json_array_get(ids, k));
    }
    return (int)json_array_size(ids);
}

static inline double relative_norm(const float *a, const float *b, size_t n)
{
    double diff = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(diff / norm);
}

/* One causal chunk. */
struct golden_rows {
    const int32_t *token;     /* (n_row) */
    int begin, n_row;         /* position of the first row */
    int n_out;                /* the last so many rows have logits */
    const float *feature;     /* (n_row, width) or NULL */
    const uint16_t *far;      /* in its place, bf16 in far memory; NULL: none */
    const int32_t *from, *to; /* (n_row) kept states, or NULL */
    bool want_capture;
};

static inline void golden_run_rows(struct gr_lm *lm, const struct golden_rows *r)
{
    static int32_t block[GOLDEN_N_POOL], pos[GOLDEN_ROW_MAX], cell[GOLDEN_ROW_MAX], limit[GOLDEN_ROW_MAX];
    static int32_t n_anc[GOLDEN_ROW_MAX], out_row[GOLDEN_ROW_MAX];
    static const float *features[GOLDEN_ROW_MAX];
    static const uint16_t *far[GOLDEN_ROW_MAX];
    static int16_t anc[GOLDEN_ROW_MAX * GR_ATTN_ANC_MAX];
    for (int i = 0; i < GOLDEN_N_POOL; i++) {
        block[i] = (i * 37 + 5) % GOLDEN_N_POOL; /* scattered on purpose */
    }
    for (int i = 0; i < r->n_row; i++) {
        pos[i] = r->begin + i;
        cell[i] = block[pos[i] / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + pos[i] % GR_KV_BLOCK_TOKENS;
        limit[i] = pos[i] + 1;
        features[i] = r->feature != NULL ? r->feature + (size_t)i * (size_t)lm->feature_width : NULL;
        far[i] = r->far != NULL ? r->far + (size_t)i * (size_t)lm->feature_width : NULL;
    }
    for (int i = 0; i < r->n_out; i++) {
        out_row[i] = r->n_row - r->n_out + i;
    }
    const struct gr_attn_seq seq = {.n_row = r->n_row, .block = block, .limit = limit, .n_anc = n_anc, .anc = anc};
    const struct gr_batch b = {.n_row = r->n_row,
                               .n_seq = 1,
                               .n_out = r->n_out,
                               .token = r->token,
                               .pos = pos,
                               .cell = cell,
                               .seq = &seq,
                               .out_row = out_row,
                               .want_capture = r->want_capture,
                               .from_state = r->from,
                               .to_state = r->to,
                               .feature = lm->feature_width > 0 ? features : NULL,
                               .far_feature = r->far != NULL ? far : NULL};
    const enum gr_status st = gr_lm_forward(lm, &b);
    GR_ASSERT(st == GR_OK);
}

static inline void golden_run(struct gr_lm *lm, const int32_t *token, int begin, int n_row, int n_out,
                              const float *feature)
{
    golden_run_rows(
        lm, &(struct golden_rows){.token = token, .begin = begin, .n_row = n_row, .n_out = n_out, .feature = feature});
}

#endif
