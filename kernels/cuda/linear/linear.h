/* Linear layers on a GPU (sm_90a): y = x W^T, bf16 weights and inputs, f32 sums.
 *
 * Row independence: an output is summed over k in an order that the shape (n_out, n_in) and the matrix's cut alone
 * decide: it is the same for every number of rows, every row of a tile, every tile. Of a matrix with segments
 * (common/rules/segments.h) they alone decide: a segment is what the matrix units add to 0 from its first 16 inputs to
 * its last, segments are joined in f32; so its bits are the same in every cut, and those of ranks that share it. Each
 * weight is read once where n_row is at most 64, else once for every 128 rows.
 *
 * Nothing allocates; pointers are the device's and borrowed. Common subset of C and CUDA C++.
 * Decisions D-005, D-007, D-099. */
#ifndef GR_KERNELS_CUDA_LINEAR_LINEAR_H
#define GR_KERNELS_CUDA_LINEAR_LINEAR_H

#include "common/base/status.h"
#include "common/rules/segments.h"
#include "kernels/cuda/linear/cut.h"
#include "kernels/cuda/device/tiles.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* What becomes of the sums. */
enum gr_cuda_linear_out {
    GR_CUDA_OUT_BF16,  /* y: bf16 (n_row, y_stride) */
    GR_CUDA_OUT_F32,   /* y: f32 (n_row, y_stride) */
    GR_CUDA_OUT_PART,  /* as F32, of sums with segments: those of a rank of a group, which are joined before they are
                          added (kernels/cuda/group/join.h) */
    GR_CUDA_OUT_ADD,   /* y: f32 (n_row, y_stride), y += sum; what is subnormal may count as zero */
    GR_CUDA_OUT_SILU,  /* outputs 2 i and 2 i + 1 are gate and up: silu(gate) * up as bf16 tiles (tiles.h) of width
                          n_out / 2, both sums in f32 until there */
    GR_CUDA_OUT_HEADS, /* query, key and value heads to where gr_cuda_heads says; y is not used */
};

/* The cut that is taken where none is given, by a formula in linear_cut.cuh. width 0: the shape is not built. */
struct gr_cuda_cut gr_cuda_linear_cut(int n_out, int n_in);
/* The same with so many parts, on which bits depend: what a rank's rows of a matrix are cut in, whose whole has them.
 */
struct gr_cuda_cut gr_cuda_linear_cut_in(int n_out, int n_in, int parts);

/* A matrix in the kernel's own form: (n_out, n_in), n_in a multiple of 64, n_out of 16 (SILU: of 128). Bytes; allocate
 * it aligned to 256. 0: the shape, or the cut, is not built. */
size_t gr_cuda_linear_bytes(int n_out, int n_in, struct gr_cuda_cut cut);

/* Rows i of plain, bf16 (n_row, n_in) row-major, become rows row0 + (first + i) * step of the matrix; so q, k and v are
 * one matrix (step 1), gate and up are interleaved (step 2), and a large matrix is made piece by piece. What is never
 * packed must be zero: clear the memory first. */
struct gr_cuda_linear_pack_args {
    const uint16_t *plain;
    void *packed;
    int n_out, n_in; /* of the whole matrix */
    int row0, n_row, step;
    struct gr_cuda_cut cut; /* the same in all calls for a matrix */
    int first;              /* `plain` begins with row `first` of a tensor whose row i is meant above */
    int head_dim; /* 64 or 128: the tensor is heads of q or k, whose row d and row d + head_dim / 2 become neighbours,
                     as HEADS wants them; 0: they stay in order */
    int plain_stride; /* values between rows of plain, a multiple of 8; 0: n_in */
};
GR_NODISCARD enum gr_status gr_cuda_linear_pack(const struct gr_cuda_linear_pack_args *a, struct CUstream_st *stream);

/* An RMSNorm between two linear layers, y = x w / sqrt(mean(x^2) + eps), needs no kernel of its own. The layer before
 * it, which adds to the residual stream x, stores x w besides, as bf16 tiles, and adds up each row's squares; the layer
 * after it takes the tiles and multiplies its own sums by 1 / sqrt(mean(x^2) + eps), which is one number a row. So x w
 * is rounded instead of the norm's result, by as much relative to it. */

/* A row's sum of squares in fixed point, whole + part / 2^40: integers, since many blocks add to it in any order. What
 * a block adds counts as 2^52 at most. On a line of its own, aligned to it: rows are added to at the same time. */
struct gr_cuda_square {
    uint64_t whole, part;
    uint64_t pad[14];
};

struct gr_cuda_linear_next {
    const float *w;                /* (n_out), the norm's; aligned to 16, as y and its rows are then */
    uint16_t *tiles;               /* of width n_out; NULL: no norm follows */
    struct gr_cuda_square *square; /* (n_row), added to: they must be zero before */
    uint16_t *capture; /* NULL: none; else x as it is, bf16 tiles of width capture_n from column capture_col on */
    int capture_n, capture_col;
};

struct gr_cuda_linear_norm {
    const struct gr_cuda_square *square; /* (n_row); NULL: x is what it should be */
    float eps;
};

/* HEADS: outputs are n_head heads of q, then n_kv_head of k and as many of v, of head_dim (64 or 128) each, q's and k's
 * packed with head_dim. Queries are turned by their row's position (rotary embedding, half-split form, as gr_rope_fn in
 * kernels.h, in f32 from the sums and rounded once) into q, keys so into cell[r], values as they are. */
struct gr_cuda_heads {
    uint16_t *q;            /* bf16 (n_row, q_stride) */
    void *kv;               /* the layer's blocks: kv_layout.h */
    const int32_t *pos;     /* (n_row) */
    const int32_t *cell;    /* (n_row), block * 16 + lane */
    const float *cos, *sin; /* (n_pos, head_dim / 2), aligned to 16 bytes */
    int q_stride;           /* a multiple of 8 */
    int n_head, n_kv_head, head_dim;
};

/* n_row is an upper bound (a graph's bucket); rows from *n_row_true on are not written, and what x holds there does not
 * matter (it may be read). The weights, which nobody writes during a pass, are read before the kernel before in the
 * stream is waited for (programmatic dependent launch); x and y are touched after. */
struct gr_cuda_linear_args {
    const void *w; /* packed */
    int n_out, n_in;
    const uint16_t *x; /* bf16 tiles of width n_in */
    const float *bias; /* (n_out), added to the finished sum; NULL: none. Not with SILU */
    void *y;
    enum gr_cuda_linear_out out;
    int y_stride; /* in values; not read with SILU and HEADS */
    int n_row;
    const int32_t *n_row_true; /* device memory; a chain reads it before the kernel before it has ended */
    struct gr_cuda_cut cut;    /* the cut that the matrix was packed in */
    struct gr_cuda_linear_norm norm;
    struct gr_cuda_linear_next next; /* ADD without a bias; n_out a multiple of 64 */
    struct gr_cuda_square *clear;    /* (n_row) squares that become zero, another layer's; NULL: none */
    struct gr_cuda_heads heads;      /* HEADS only */
    struct gr_segments segments;     /* ADD and PART: their ends are multiples of 64. Zeros: the order is the cut's */
};
GR_NODISCARD enum gr_status gr_cuda_linear(const struct gr_cuda_linear_args *a, struct CUstream_st *stream);

/* Layers one after another, each of which may take what those before it have made: the bits of n calls of
 * gr_cuda_linear(), but one kernel, whose blocks stay and ask for the next layer's weights while they are still busy
 * with the one before, so that the memory is never idle.
 *
 * Its blocks wait for each other, so all of them must run at the same time: one on each of up to 132 multiprocessors.
 * Beside kernels of other streams that is so as long as those end by themselves; two chains at a time on a device would
 * wait for each other for ever (after 10 s: an error). Memory that all chains of a stream share: zero before the first.
 */
enum {
    GR_CUDA_CHAIN_MAX = 4,
};
struct gr_cuda_chain {
    uint32_t made[GR_CUDA_CHAIN_MAX - 1];    /* blocks that are through with a layer, its squares aside */
    uint32_t squared[GR_CUDA_CHAIN_MAX - 1]; /* blocks that are through with its squares, too, where a norm follows */
    uint32_t left;                           /* blocks that will not look at these any more */
};
/* Whether the device has room for it and the layers are such: ADD without a bias, SILU or HEADS; the same rows, up to
 * 64; cuts of at most 224 outputs. */
bool gr_cuda_can_chain(const struct gr_cuda_linear_args *a, int n);
GR_NODISCARD enum gr_status gr_cuda_linear_chain(const struct gr_cuda_linear_args *a, int n,
                                                 struct gr_cuda_chain *chain, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
