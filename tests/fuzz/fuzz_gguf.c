/* One GGUF file from memory: what is accepted must lie inside it, and every row of it can be read. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/gguf_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct gr_tensors *ts, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < gr_tensors_count(ts); i++) {
        const struct gr_tensor *t = gr_tensors_at(ts, i);
        const uint8_t *begin = t->data;
        GR_ASSERT(begin >= data && t->bytes <= size && begin <= data + size - t->bytes);
        GR_ASSERT(gr_tensors_find(ts, t->name) == t);
        if (!gr_format_is_weight(t->dtype) || t->n_dim != 2 || t->bytes == 0) {
            continue;
        }
        float *row = malloc((size_t)gr_tensor_n_col(t) * sizeof(*row));
        GR_ASSERT(row != NULL);
        for (int64_t r = 0; r < t->shape[0]; r++) {
            gr_tensor_row_f32(t, r, row);
        }
        free(row);
    }
    GR_ASSERT(gr_tensors_check_all_used(ts) == GR_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size + 1); /* of its own, so that the sanitizer sees its end */
    struct gr_tensors *ts = NULL;
    struct gr_hf_config config;
    GR_ASSERT(copy != NULL);
    memcpy(copy, data, size);
    if (gr_gguf_model_parse("fuzz", copy, size, &config, &ts) == GR_OK) {
        GR_ASSERT(config.hidden > 0 && config.n_head % config.n_kv_head == 0);
        check(ts, copy, size);
        gr_tensors_close(ts);
    }
    free(copy);
    return 0;
}
