/* Heads from a linear layer's sums (heads.h): a block a row, a warp a head; a lane has both halves of its pairs. Bound
 * by latency as the norms of rows.cu are, and by as little memory. */
#include "kernels/cuda/linear/heads.h"

#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/linear_heads.cuh"

#include <cstdio>

namespace gr
{

constexpr int HEAD_WARPS = 8; /* heads of a row at a time */

/* What a lane has of a head: dimensions lane + 32 j and their partners, half a head further on. */
template <int HD> struct LaneHead {
    static constexpr int N = HD / 64;
    float a[N], b[N];
    int lane;

    __device__ __forceinline__ void load(const float *x)
    {
#pragma unroll
        for (int j = 0; j < N; j++) {
            a[j] = x[lane + 32 * j], b[j] = x[HD / 2 + lane + 32 * j];
        }
    }

    __device__ __forceinline__ void norm(const float *w, float eps)
    {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < N; j++) {
            sum = __fmaf_rn(b[j], b[j], __fmaf_rn(a[j], a[j], sum));
        }
#pragma unroll
        for (int d = 16; d > 0; d /= 2) {
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, d));
        }
        const float inv = 1.0f / sqrtf(sum / (float)HD + eps);
#pragma unroll
        for (int j = 0; j < N; j++) {
            a[j] = __fmul_rn(__fmul_rn(a[j], inv), w[lane + 32 * j]);
            b[j] = __fmul_rn(__fmul_rn(b[j], inv), w[HD / 2 + lane + 32 * j]);
        }
    }

    __device__ __forceinline__ void turn(const gr_cuda_heads &h, int pos)
    {
#pragma unroll
        for (int j = 0; j < N; j++) {
            const size_t at = (size_t)pos * (HD / 2) + (size_t)(lane + 32 * j);
            const float2 t = turn_pair(a[j], b[j], h.cos[at], h.sin[at]);
            a[j] = t.x, b[j] = t.y;
        }
    }
};

static __device__ __forceinline__ uint16_t bf16_of(float x)
{
    return (uint16_t)pack_bf16(x, 0.0f);
}

template <int HD>
static __device__ __forceinline__ void place_head(const gr_cuda_place_heads_args &a, int row, int head)
{
    const gr_cuda_heads &h = a.heads;
    const RowPlace p{h.pos[row], h.cell[row]};
    const bool is_q = head < h.n_head, turned = head < h.n_head + h.n_kv_head;
    const float *norm = is_q ? a.q_norm : turned ? a.k_norm : nullptr;
    LaneHead<HD> x;
    x.lane = (int)threadIdx.x % 32;
    x.load(a.x + (size_t)row * a.x_stride + head * HD);
    if (norm != nullptr) {
        x.norm(norm, a.eps);
    }
    if (turned) {
        x.turn(h, p.pos);
    }
#pragma unroll
    for (int j = 0; j < LaneHead<HD>::N; j++) {
        const int d = x.lane + 32 * j;
        *(turned ? turned_at(h, p, row, head, d) : value_at(h, p, head, d)) = bf16_of(x.a[j]);
        *(turned ? turned_at(h, p, row, head, HD / 2 + d) : value_at(h, p, head, HD / 2 + d)) = bf16_of(x.b[j]);
    }
}

template <int HD>
static __global__ void __launch_bounds__(32 * HEAD_WARPS) heads_kernel(const gr_cuda_place_heads_args a)
{
    wait_for_previous();
    let_next_start();
    const int row = (int)blockIdx.x, n_head = a.heads.n_head + 2 * a.heads.n_kv_head;
    if (row >= *a.n_row_true) {
        return;
    }
    for (int head = (int)threadIdx.x / 32; head < n_head; head += HEAD_WARPS) {
        place_head<HD>(a, row, head);
    }
}

} // namespace gr

enum gr_status gr_cuda_place_heads(const struct gr_cuda_place_heads_args *a, struct CUstream_st *stream)
{
    const struct gr_cuda_heads *h = &a->heads;
    if ((h->head_dim != 64 && h->head_dim != 128) || h->n_head < 1 || h->n_kv_head < 1 || a->n_row < 1 ||
        a->x_stride < (h->n_head + 2 * h->n_kv_head) * h->head_dim || h->q_stride < h->n_head * h->head_dim || !a->x ||
        !h->q || !h->kv || !h->pos || !h->cell || !h->cos || !h->sin || !a->n_row_true) {
        fprintf(stderr,
                "cuda: heads: %d rows, %d query heads and %d of keys and of values of %d (64 or 128), strides %d and "
                "%d, or a pointer is missing\n",
                a->n_row, h->n_head, h->n_kv_head, h->head_dim, a->x_stride, h->q_stride);
        return GR_EINVAL;
    }
    void (*const kernel)(gr_cuda_place_heads_args) = h->head_dim == 128 ? gr::heads_kernel<128> : gr::heads_kernel<64>;
    return cuda_status_of(gr::launch_early(kernel, dim3((unsigned)a->n_row), 32 * gr::HEAD_WARPS, 0, stream, *a),
                          "heads");
}
