/* What becomes of a linear layer's sums: scaled by the norm of the row that they were made from, then stored, or added
 * to the residual stream and made ready for the norm after (linear.h: gr_cuda_linear_norm, gr_cuda_linear_next).
 *
 * Outputs come by two ways: eight columns of a row from shared memory, or the fragment of a thread, two columns of two
 * rows, from registers where the ring is in use. Both give the same bits: squares are summed in the same order. */
#ifndef GR_KERNELS_CUDA_LINEAR_LINEAR_OUT_CUH
#define GR_KERNELS_CUDA_LINEAR_LINEAR_OUT_CUH

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/eight.cuh"
#include "kernels/cuda/linear/linear_cut.cuh"
#include "kernels/cuda/linear/linear_heads.cuh"
#include "kernels/cuda/device/rehearsal.cuh"

namespace gr
{

/* What blocks sum, in order: part p of a tile has the segments from first[p] on, up to first[p + 1], so many boxes
 * each, and boxes [box[p], box[p + 1]) of the tile. n_join: sums that wait, joined to that of the segment. */
struct LinearOrder {
    int16_t n_box[GR_SEGMENT_MAX];
    int8_t n_join[GR_SEGMENT_MAX], first[GR_CUDA_CUT_PARTS_MAX + 1];
    int box[GR_CUDA_CUT_PARTS_MAX + 1];
};

struct LinearArgs {
    const uint8_t *w, *x;
    const float *bias;
    void *y;
    const int32_t *n_row_true;
    gr_cuda_linear_norm norm;
    gr_cuda_linear_next next;
    gr_cuda_square *clear;
    gr_cuda_heads heads;
    gr_cuda_linear_out out;
    LinearOrder order;
    int n_out, n_box, n_tile, parts, y_stride, n_row;
    bool wide_y;                  /* every eight columns of y are aligned to 16 bytes */
    int n_slot, x_bytes, w_bytes; /* of the rings; w_bytes: in a chain */
    /* In a chain: how many blocks are through with this layer, but for squares, and with those. NULL: nobody waits. */
    uint32_t *made, *squared;
};

static inline LinearOrder one_sum_a_part(const LinearCut &cut)
{
    LinearOrder o{};
    for (int p = 0; p < cut.parts; p++) {
        o.first[p + 1] = (int8_t)(p + 1), o.box[p + 1] = cut.n_box * (p + 1) / cut.parts;
        o.n_box[p] = (int16_t)(o.box[p + 1] - o.box[p]);
    }
    return o;
}

/* Two parts are the halves of the tree; the last join is theirs. */
static inline LinearOrder linear_order(const gr_segments &s, const LinearCut &cut)
{
    if (s.n == 0) {
        return one_sum_a_part(cut);
    }
    LinearOrder o{};
    const int left = cut.parts == 2 ? gr_segments_left(&s) : s.n;
    o.first[1] = (int8_t)left, o.first[2] = (int8_t)s.n;
    o.box[1] = s.end[left - 1] / 64, o.box[2] = cut.n_box;
    for (int i = 0; i < s.n; i++) {
        o.n_box[i] = (int16_t)((s.end[i] - (i > 0 ? s.end[i - 1] : 0)) / 64);
        o.n_join[i] = (int8_t)(s.n_join[i] - (left < s.n && i == s.n - 1));
    }
    return o;
}

/* But for the rings. */
static inline LinearArgs linear_args(const gr_cuda_linear_args &a, const LinearCut &cut)
{
    LinearArgs f{};
    f.w = (const uint8_t *)a.w, f.x = (const uint8_t *)a.x, f.bias = a.bias, f.y = a.y, f.n_row_true = a.n_row_true;
    f.out = a.out, f.n_out = a.n_out, f.n_box = cut.n_box, f.n_tile = cut.n_tile, f.parts = cut.parts;
    f.y_stride = a.y_stride, f.n_row = a.n_row;
    f.norm = a.norm, f.next = a.next, f.clear = a.clear, f.heads = a.heads;
    f.order = linear_order(a.segments, cut);
    f.wide_y = a.y_stride % 8 == 0 && (size_t)a.y % 16 == 0;
    return f;
}

static __device__ __forceinline__ float silu(float g)
{
    return __fdividef(g, 1.0f + __expf(-g));
}

static __device__ __forceinline__ float square_of_two(float x, float y)
{
    return __fmaf_rn(y, y, __fmul_rn(x, x));
}

/* ---- sums of squares: integers, so that the order in which blocks add theirs does not matter ---- */

/* A square is added as a whole number and as parts of 2^-40; one above 2^52 counts as that. */
constexpr double SQUARE_PARTS = 0x1p40, SQUARE_MAX = 0x1p52;

static __device__ __forceinline__ void add_square(gr_cuda_square *to, float square)
{
    const double x = fmin((double)square, SQUARE_MAX), whole = floor(x);
    atomicAdd((unsigned long long *)&to->whole, (unsigned long long)whole);
    atomicAdd((unsigned long long *)&to->part, (unsigned long long)((x - whole) * SQUARE_PARTS));
}

static __device__ __forceinline__ float scale_of(const gr_cuda_square &square, int n, float eps)
{
    const double sum = (double)square.whole + (double)square.part * (1.0 / SQUARE_PARTS);
    return 1.0f / sqrtf((float)sum / (float)n + eps);
}

/* ---- the residual stream, with a norm after ---- */

template <gr_cuda_linear_out OUT> static __device__ __forceinline__ bool has_norm_after(const LinearArgs &a)
{
    return OUT == GR_CUDA_OUT_ADD && a.next.tiles != nullptr;
}

static __device__ __forceinline__ void store_two(uint16_t *tiles, int row, int col, int n, float x, float y)
{
    *(uint32_t *)(tiles + gr_cuda_tile_at(row, col, n)) = pack_bf16(x, y);
}

/* Two columns: y += sum, its tile and capture. The sum of the new values' squares. */
static __device__ __forceinline__ float add_for_norm(const LinearArgs &a, float x, float y, int row, int col)
{
    float2 *to = (float2 *)((float *)a.y + (size_t)row * a.y_stride + col);
    const float2 w = *(const float2 *)(a.next.w + col), old = *to;
    x += old.x, y += old.y;
    *to = make_float2(x, y);
    store_two(a.next.tiles, row, col, a.n_out, x * w.x, y * w.y);
    if (a.next.capture != nullptr) {
        store_two(a.next.capture, row, a.next.capture_col + col, a.next.capture_n, x, y);
    }
    return square_of_two(x, y);
}

/* What eight columns' sums meet: old values and the norm's weights. */
struct ForNorm {
    float old[8], w[8];
};

static __device__ __forceinline__ ForNorm load_for_norm(const LinearArgs &a, int row, int col)
{
    const float *at = (const float *)a.y + (size_t)row * a.y_stride + col;
    ForNorm f;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const float4 x = *(const float4 *)(at + i), y = *(const float4 *)(a.next.w + col + i);
        f.old[i] = x.x, f.old[i + 1] = x.y, f.old[i + 2] = x.z, f.old[i + 3] = x.w;
        f.w[i] = y.x, f.w[i + 1] = y.y, f.w[i + 2] = y.z, f.w[i + 3] = y.w;
    }
    return f;
}

/* The same of eight columns. */
template <class When>
static __device__ __forceinline__ float add_eight_for_norm(const LinearArgs &a, float (&v)[8], const ForNorm &f,
                                                           int row, int col, When when)
{
    float *to = (float *)a.y + (size_t)row * a.y_stride + col;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] += f.old[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        store_if(when, to + i, make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]));
    }
    if (a.next.capture != nullptr) {
        store_if(when, a.next.capture + gr_cuda_tile_at(row, a.next.capture_col + col, a.next.capture_n),
                 pack_eight(v));
    }
    const float square = (square_of_two(v[0], v[1]) + square_of_two(v[2], v[3])) +
                         (square_of_two(v[4], v[5]) + square_of_two(v[6], v[7]));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] *= f.w[i];
    }
    store_if(when, a.next.tiles + gr_cuda_tile_at(row, col, a.n_out), pack_eight(v));
    return square;
}

/* ---- a thread's fragment ---- */

/* Sums of columns col and col + 1: v[0], v[1] of row `row`, v[2], v[3] of row + 8. All lanes of a warp. place: of the
 * two rows. square: what the eight columns of the lane and its three neighbours add to the rows' squares. */
template <gr_cuda_linear_out OUT>
static __device__ __forceinline__ void put(const LinearArgs &a, const float (&v)[4], int row, int n_row, int col,
                                           const RowPlace (&place)[2], float (&square)[2])
{
    if (OUT == GR_CUDA_OUT_SILU) { /* a lane and its neighbour make a word of each row; each stores one of the two */
        const bool odd = threadIdx.x % 2 != 0;
        const float low = silu(v[0]) * v[1], high = silu(v[2]) * v[3];
        const float other = __shfl_xor_sync(~0u, odd ? low : high, 1);
        const int r = odd ? row + 8 : row, at = (odd ? col - 2 : col) / 2;
        if (r < n_row && col < a.n_out) {
            *(uint32_t *)((uint16_t *)a.y + gr_cuda_tile_at(r, at, a.n_out / 2)) =
                odd ? pack_bf16(other, high) : pack_bf16(low, other);
        }
        return;
    }
    const bool inside = col < a.n_out;
    const float2 bias = a.bias && inside ? *(const float2 *)(a.bias + col) : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = row + 8 * h;
        const float x = a.bias ? v[2 * h] + bias.x : v[2 * h], y = a.bias ? v[2 * h + 1] + bias.y : v[2 * h + 1];
        const size_t at = (size_t)r * a.y_stride + col;
        const bool mine = r < n_row && inside;
        if (has_norm_after<OUT>(a)) {
            float s = mine ? add_for_norm(a, x, y, r, col) : 0.0f;
            s += __shfl_xor_sync(~0u, s, 1);
            square[h] += s + __shfl_xor_sync(~0u, s, 2);
        } else if (mine && OUT == GR_CUDA_OUT_HEADS) {
            put_two_of_heads(a.heads, x, y, place[h], r, col);
        } else if (mine && OUT == GR_CUDA_OUT_BF16) {
            *(uint32_t *)((uint16_t *)a.y + at) = pack_bf16(x, y);
        } else if (mine && (OUT == GR_CUDA_OUT_F32 || OUT == GR_CUDA_OUT_PART)) {
            *(float2 *)((float *)a.y + at) = make_float2(x, y);
        } else if (mine) {
            add_two((float *)a.y + at, x, y);
        }
    }
}

/* ---- eight columns of a row ---- */

/* Finished sums of columns col to col + 7. Only those of every layer are rehearsed. */
template <gr_cuda_linear_out OUT, class When>
static __device__ __forceinline__ void put_eight(const LinearArgs &a, float (&v)[8], int row, int col, When when)
{
    if (col >= a.n_out || OUT == GR_CUDA_OUT_HEADS) {
        return;
    }
    if (OUT == GR_CUDA_OUT_SILU) {
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            y[i] = silu(v[2 * i]) * v[2 * i + 1];
        }
        store_if(when, (uint16_t *)a.y + gr_cuda_tile_at(row, col / 2, a.n_out / 2),
                 make_uint2(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3])));
        return;
    }
    if (!when) {
        return;
    }
    if (a.bias) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 b = *(const float2 *)(a.bias + col + 2 * i);
            v[2 * i] += b.x, v[2 * i + 1] += b.y;
        }
    }
    const size_t at = (size_t)row * a.y_stride + col;
    if (OUT == GR_CUDA_OUT_BF16) {
        const uint4 w = pack_eight(v);
        uint16_t *to = (uint16_t *)a.y + at;
        if (a.wide_y) {
            *(uint4 *)to = w;
        } else {
            uint32_t *words = (uint32_t *)to;
            words[0] = w.x, words[1] = w.y, words[2] = w.z, words[3] = w.w;
        }
        return;
    }
    float *to = (float *)a.y + at;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        if (OUT == GR_CUDA_OUT_ADD) {
            add_two(to + i, v[i], v[i + 1]);
            add_two(to + i + 2, v[i + 2], v[i + 3]);
        } else if (a.wide_y) {
            *(float4 *)(to + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
        } else {
            *(float2 *)(to + i) = make_float2(v[i], v[i + 1]);
            *(float2 *)(to + i + 2) = make_float2(v[i + 2], v[i + 3]);
        }
    }
}

} // namespace gr

#endif
