/* Queries, keys and values straight from the sums of their linear layer (linear.h: gr_cuda_heads): queries and keys are
 * turned (rotary embedding, half-split form), keys and values go into their cells. A thread has both halves of a pair
 * because the matrix was packed so. */
#ifndef GR_KERNELS_CUDA_LINEAR_LINEAR_HEADS_CUH
#define GR_KERNELS_CUDA_LINEAR_LINEAR_HEADS_CUH

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/eight.cuh"
#include "kernels/cuda/device/kv_layout.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/device/rehearsal.cuh"

namespace gr
{

/* Where a row is. */
struct RowPlace {
    int pos, cell;
};

/* Four pairs' cosines and sines. */
struct Turn {
    float4 cos, sin;
};

struct HeadColumn {
    int head, d; /* d: dimension of a value, or twice that of the pair's lower half */
    __device__ HeadColumn(const gr_cuda_heads &h, int col)
    {
        const int shift = h.head_dim == 128 ? 7 : 6;
        head = col >> shift, d = col & (h.head_dim - 1);
    }
    __device__ bool turned(const gr_cuda_heads &h) const
    {
        return head < h.n_head + h.n_kv_head;
    }
};

static __device__ __forceinline__ size_t angle_at(const gr_cuda_heads &h, int pos, int d)
{
    return (size_t)pos * (size_t)(h.head_dim / 2) + (size_t)(d / 2);
}

static __device__ __forceinline__ Turn load_turn(const gr_cuda_heads &h, const RowPlace &p, int col)
{
    const HeadColumn c(h, col);
    if (!c.turned(h)) {
        return Turn{};
    }
    const size_t at = angle_at(h, p.pos, c.d);
    return {*(const float4 *)(h.cos + at), *(const float4 *)(h.sin + at)};
}

/* Of a row's query head, or of a KV head's keys in its cell: where dimension d is. */
static __device__ __forceinline__ uint16_t *turned_at(const gr_cuda_heads &h, const RowPlace &p, int row, int head,
                                                      int d)
{
    if (head < h.n_head) {
        return h.q + (size_t)row * h.q_stride + head * h.head_dim + d;
    }
    return (uint16_t *)h.kv + gr_cuda_block_at(p.cell / GR_KV_BLOCK_TOKENS, head - h.n_head, h.n_kv_head, h.head_dim) +
           gr_cuda_key_at(p.cell % GR_KV_BLOCK_TOKENS, d, h.head_dim);
}

static __device__ __forceinline__ uint16_t *value_at(const gr_cuda_heads &h, const RowPlace &p, int head, int d)
{
    return (uint16_t *)h.kv +
           gr_cuda_block_at(p.cell / GR_KV_BLOCK_TOKENS, head - h.n_head - h.n_kv_head, h.n_kv_head, h.head_dim) +
           gr_cuda_block_size(h.head_dim) + gr_cuda_value_at(p.cell % GR_KV_BLOCK_TOKENS, d);
}

static __device__ __forceinline__ float2 turn_pair(float x, float y, float cos, float sin)
{
    return make_float2(__fmaf_rn(x, cos, -__fmul_rn(y, sin)), __fmaf_rn(y, cos, __fmul_rn(x, sin)));
}

/* Columns col to col + 7 of a row. */
template <class When>
static __device__ __forceinline__ void put_eight_of_heads(const gr_cuda_heads &h, const float (&v)[8], const Turn &t,
                                                          const RowPlace &p, int row, int col, When when)
{
    const HeadColumn c(h, col);
    if (!c.turned(h)) {
        store_if(when, value_at(h, p, c.head, c.d), pack_eight(v));
        return;
    }
    const float2 a = turn_pair(v[0], v[1], t.cos.x, t.sin.x), b = turn_pair(v[2], v[3], t.cos.y, t.sin.y);
    const float2 e = turn_pair(v[4], v[5], t.cos.z, t.sin.z), f = turn_pair(v[6], v[7], t.cos.w, t.sin.w);
    const int d = c.d / 2;
    store_if(when, turned_at(h, p, row, c.head, d), make_uint2(pack_bf16(a.x, b.x), pack_bf16(e.x, f.x)));
    store_if(when, turned_at(h, p, row, c.head, h.head_dim / 2 + d),
             make_uint2(pack_bf16(a.y, b.y), pack_bf16(e.y, f.y)));
}

/* Columns col and col + 1. */
static __device__ __forceinline__ void put_two_of_heads(const gr_cuda_heads &h, float x, float y, const RowPlace &p,
                                                        int row, int col)
{
    const HeadColumn c(h, col);
    if (!c.turned(h)) {
        *(uint32_t *)value_at(h, p, c.head, c.d) = pack_bf16(x, y);
        return;
    }
    const size_t at = angle_at(h, p.pos, c.d);
    const float2 t = turn_pair(x, y, h.cos[at], h.sin[at]);
    const uint32_t w = pack_bf16(t.x, t.y);
    *turned_at(h, p, row, c.head, c.d / 2) = (uint16_t)w;
    *turned_at(h, p, row, c.head, h.head_dim / 2 + c.d / 2) = (uint16_t)(w >> 16);
}

} // namespace gr

#endif
