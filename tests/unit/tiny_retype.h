/* For tests: the values of a tiny folder (tiny_model.h) in other number formats. */
#ifndef GR_TESTS_TINY_RETYPE_H
#define GR_TESTS_TINY_RETYPE_H

#include "common/rules/bf16.h"
#include "model/files/format.h"
#include "tests/unit/tiny_model.h"

static inline uint16_t tiny_half_of(float x)
{
    for (unsigned h = 0; h < 65536; h++) {
        if ((h & 0x7c00u) != 0x7c00u && gr_f16_to_f32((uint16_t)h) == x) {
            return (uint16_t)h;
        }
    }
    GR_ASSERT(!"no half");
    return 0;
}

/* To F32 or F16, which must hold all values. */
static inline void tiny_retype(struct gr_tensor *t, enum gr_format to)
{
    const size_t n = t->bytes / gr_format_bytes(t->dtype);
    if (to == t->dtype) {
        return;
    }
    float *values = malloc(n * sizeof(*values));
    GR_ASSERT(values != NULL);
    gr_format_to_f32(t->dtype, t->data, n, values);
    if (to == GR_FORMAT_F16) {
        uint16_t *halves = malloc(n * sizeof(*halves));
        GR_ASSERT(halves != NULL);
        for (size_t i = 0; i < n; i++) {
            halves[i] = tiny_half_of(values[i]);
        }
        free(values);
        values = (float *)(void *)halves;
    }
    free((void *)(uintptr_t)t->data);
    t->data = values;
    t->dtype = to;
    t->bytes = n * gr_format_bytes(to);
}

/* Few bits in each weight, so that every format holds them. */
static inline void tiny_simplify(struct tiny_folder *f)
{
    for (size_t k = 0; k < f->n; k++) {
        uint16_t *w = (uint16_t *)(uintptr_t)f->tensor[k].data;
        for (size_t i = 0; f->tensor[k].dtype == GR_FORMAT_BF16 && i < f->tensor[k].bytes / 2; i++) {
            const double x = (double)gr_bf16_to_f32(w[i]);
            w[i] = gr_bf16_from_f32((float)((double)(int)(x * 64.0) / 64.0));
        }
    }
}

#endif
