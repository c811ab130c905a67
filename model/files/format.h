/* The number formats of weights in files, plain and in blocks (GGUF's, as ggml lays them out), and what their bytes
 * mean as f32. Pure; any thread may call. */
#ifndef GR_MODEL_FILES_FORMAT_H
#define GR_MODEL_FILES_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/*  name as in the file, bytes of a block, elements of a block (1: a plain format) */
#define GR_FORMAT_LIST(X) \
    X(BOOL, 1, 1)         \
    X(U8, 1, 1)           \
    X(I8, 1, 1)           \
    X(F8_E4M3, 1, 1)      \
    X(F8_E5M2, 1, 1)      \
    X(I16, 2, 1)          \
    X(U16, 2, 1)          \
    X(F16, 2, 1)          \
    X(BF16, 2, 1)         \
    X(I32, 4, 1)          \
    X(U32, 4, 1)          \
    X(F32, 4, 1)          \
    X(I64, 8, 1)          \
    X(U64, 8, 1)          \
    X(F64, 8, 1)          \
    X(Q4_0, 18, 32)       \
    X(Q4_1, 20, 32)       \
    X(Q5_0, 22, 32)       \
    X(Q5_1, 24, 32)       \
    X(Q8_0, 34, 32)       \
    X(MXFP4, 17, 32)      \
    X(Q2_K, 84, 256)      \
    X(Q3_K, 110, 256)     \
    X(Q4_K, 144, 256)     \
    X(Q5_K, 176, 256)     \
    X(Q6_K, 210, 256)

enum gr_format {
#define X(name, bytes, n) GR_FORMAT_##name,
    GR_FORMAT_LIST(X)
#undef X
        GR_N_FORMAT
};

const char *gr_format_name(enum gr_format dtype); /* static text */
/* Of a block; of an element where the format is plain. */
size_t gr_format_bytes(enum gr_format dtype);
size_t gr_format_block(enum gr_format dtype); /* elements of a block */

static inline bool gr_format_is_quantised(enum gr_format dtype)
{
    return dtype >= GR_FORMAT_Q4_0;
}
/* Formats that weights may have: gr_format_to_f32() takes them. */
static inline bool gr_format_is_weight(enum gr_format dtype)
{
    return dtype == GR_FORMAT_F32 || dtype == GR_FORMAT_F16 || dtype == GR_FORMAT_BF16 || gr_format_is_quantised(dtype);
}

float gr_f16_to_f32(uint16_t h);

/* The n elements at data as f32; n is whole blocks. Products and sums are single f32 operations in the order of the
 * format's description, never fused. */
void gr_format_to_f32(enum gr_format dtype, const void *data, size_t n, float *out);

#endif
