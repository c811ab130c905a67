/* What is done row by row on a GPU between the linear layers: norms, captures, the pass's inputs and outputs. All
 * pointers are the device's and borrowed unless it says otherwise; nothing allocates; a row's bits depend on that row
 * alone. n_row is an upper bound (a graph's bucket), rows from *n_row_true on are left alone. Common subset of C and
 * CUDA C++. */
#ifndef GR_KERNELS_CUDA_ROWS_ROWS_H
#define GR_KERNELS_CUDA_ROWS_ROWS_H

#include "common/base/status.h"
#include "kernels/cuda/device/tiles.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

enum {
    GR_CUDA_INPUT_PARTS = 20, /* even: the head is read in pieces of 16 bytes */
};

/* The start of what the host prepares for a pass: parts that are to be copied to the device. */
struct gr_cuda_input_head {
    uint32_t n_part, pad[3];
    struct {
        uint32_t offset, bytes; /* of the staging memory, and of its copy; multiples of 16 */
    } part[GR_CUDA_INPUT_PARTS];
};

/* Copies the parts from `from` (pinned host memory, mapped: its address on the device), which begins with the head, to
 * `to`; the head itself is a part, or is not copied. Both aligned to 16 bytes. The first kernel of a pass; its launch
 * is the same whatever is copied, so a graph may hold it. More parts than GR_CUDA_INPUT_PARTS: a caller's error, the
 * kernel traps. */
GR_NODISCARD enum gr_status gr_cuda_input(const void *from, void *to, struct CUstream_st *stream);

/* Row r of y = x[row[r]] * w / sqrt(mean(x^2) + eps), from f32 (.., x_stride) to bf16 tiles (tiles.h) of width y_n,
 * from column y_col on (a multiple of 8). w: f32 (n); NULL: no norm, only the conversion. row NULL: row r. Sums are
 * made in f32 in an order that n decides. capture: f32 rows that are kept as they are, bf16 tiles of width capture_n
 * from column capture_col on; NULL: none. n a multiple of 64, at most 16384; x_stride of 4; x and w aligned to 16
 * bytes. */
struct gr_cuda_norm_args {
    const float *x;
    const float *w;
    const int32_t *row;
    uint16_t *y;
    uint16_t *capture;
    int n_row, n, x_stride;
    int y_n, y_col, capture_n, capture_col;
    float eps;
    const int32_t *n_row_true;
};
GR_NODISCARD enum gr_status gr_cuda_norm(const struct gr_cuda_norm_args *a, struct CUstream_st *stream);

/* Rows of f32 (n_row, n) to the host: to (mapped, pinned; f32 (n_row, n)). Both aligned to 16 bytes. */
struct gr_cuda_output_args {
    const float *from;
    float *to;
    int n_row, n;
    const int32_t *n_row_true;
};
GR_NODISCARD enum gr_status gr_cuda_output(const struct gr_cuda_output_args *a, struct CUstream_st *stream);

/* Rows of f32 (n_row, n) that are kept: to[number[r]] = from[r] where number[r] >= 0, and nothing elsewhere. from and
 * to aligned to 16 bytes, n a multiple of 4. */
struct gr_cuda_keep_args {
    const float *from;
    float *to;
    const int32_t *number; /* (n_row) */
    int n_row, n;
    const int32_t *n_row_true;
};
GR_NODISCARD enum gr_status gr_cuda_keep(const struct gr_cuda_keep_args *a, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
