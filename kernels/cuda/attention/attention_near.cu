/* The near keys of tree attention, and the merge with the far ones.
 *
 * A block takes up to 4 rows of a session and one KV head. What they can see of the last positions, pool blocks and
 * scratch blocks, is loaded once; two or four warps then take a row, each its part of the value's columns: the row's
 * keys are gathered from shared memory into the order of their positions by ldmatrix, which takes an address a row. So
 * it does not matter where a key lies. All this runs before the far kernel is waited for. */
#include "kernels/cuda/attention/attention_plan.cuh"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/tiles.h"

#include <algorithm>
#include <cmath>

namespace gr
{

constexpr int N_NEAR_THREAD = 64 * NEAR_ROWS; /* two warps a row */

struct NearArgs {
    const uint8_t *kv;
    const __nv_bfloat16 *q;
    uint16_t *out;
    const int32_t *n_group;
    const Group *group_list;
    Partial part;
    int n_head, n_kv_head, group, q_stride, n_row_max;
    int n_block_max; /* that shared memory has room for */
    bool first;      /* the next kernel asks for nothing before this one has its loads */
    float scale_log2;
};

/* Of 16 rows, of which the lower 8 are 0, and 8 columns. The lower rows' sums are nobody's; they are kept since to
 * clear them before every product is more instructions than all the rest. */
struct Sums {
    float v[2] = {0.0f, 0.0f}, lower[2] = {0.0f, 0.0f};
    __device__ __forceinline__ void add(uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1)
    {
        multiply_16x8(v[0], v[1], lower[0], lower[1], a0, 0, a2, 0, b0, b1);
    }
};

/* A warp's row. */
template <int HD, int PARTS> struct Row {
    static constexpr int BLOCK = HD * 32, N_GROUP = NEAR_KEYS / 8;
    static constexpr int N_V = HD / 8 / PARTS; /* eights of its columns */
    static_assert(N_V % 2 == 0 && N_V <= 8, "pairs of eights, which one XOR tells apart");
    const NearArgs &a;
    const Group &group;
    uint32_t smem;
    int row, kv_head, part, lane; /* row: of the group */

    /* Where the keys lie that this thread addresses. In a row of 128 bytes the pieces of 16 are exchanged by their
     * key's number modulo 8, so what is 2^n pieces further on, in bits that the first piece has not, is at an address
     * that differs in one bit. value: of each 16 keys; with their first piece of this warp's columns. */
    struct Places {
        uint32_t key[N_GROUP], value[N_GROUP / 2];
    };

    __device__ __forceinline__ Places places() const
    {
        Places p;
        const uint4 *v = (const uint4 *)group.cell[row][lane % 8];
        const uint4 lo = v[0], hi = v[1];
        const uint32_t w[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
        const uint32_t piece = (uint32_t)(part * N_V + lane / 16);
#pragma unroll
        for (int g = 0; g < N_GROUP; g++) {
            const uint32_t cell = w[g / 2] >> 16 * (g % 2) & 0xffff, b = cell / GR_KV_BLOCK_TOKENS,
                           c = cell % GR_KV_BLOCK_TOKENS;
            p.key[g] = smem + b * (2 * BLOCK) + c / 8 * (HD / 64 * 1024) + c % 8 * 128 + ((lane / 8) ^ (c % 8)) * 16;
        }
#pragma unroll
        for (int g = 0; g < N_GROUP / 2; g++) {
            const uint32_t cell = lane / 8 % 2 ? w[g] >> 16 : w[g] & 0xffff, b = cell / GR_KV_BLOCK_TOKENS,
                           c = cell % GR_KV_BLOCK_TOKENS;
            p.value[g] = smem + b * (2 * BLOCK) + BLOCK + piece / 8 * 2048 + c * 128 + ((piece % 8) ^ (c % 8)) * 16;
        }
        return p;
    }

    /* 4 i pieces after. */
    static __device__ __forceinline__ uint32_t key_at(uint32_t place, int i)
    {
        return (place ^ (uint32_t)(i % 2 * 64)) + (uint32_t)(i / 2 * 1024);
    }

    /* i pieces after, i even. */
    static __device__ __forceinline__ uint32_t value_at(uint32_t place, int i)
    {
        return place ^ (uint32_t)(i * 16);
    }

    __device__ __forceinline__ void load_q(uint32_t (&q)[HD / 8]) const
    {
        const int head = lane / 4;
        const __nv_bfloat16 *from =
            a.q + (size_t)(group.row0 + row) * a.q_stride + (kv_head * a.group + head) * HD + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            q[i] = head < a.group ? *(const uint32_t *)(from + 8 * i) : 0;
        }
    }

    __device__ __forceinline__ void scores(float (&x)[2 * N_GROUP], const uint32_t (&q)[HD / 8], const Places &p) const
    {
        Sums s[N_GROUP];
#pragma unroll
        for (int i = 0; i < HD / 32; i++) {
#pragma unroll
            for (int g = 0; g < N_GROUP; g++) {
                uint32_t k[4];
                load_matrices(k, key_at(p.key[g], i));
                s[g].add(q[4 * i], q[4 * i + 1], k[0], k[1]);
                s[g].add(q[4 * i + 2], q[4 * i + 3], k[2], k[3]);
            }
        }
#pragma unroll
        for (int g = 0; g < N_GROUP; g++) {
            x[2 * g] = s[g].v[0], x[2 * g + 1] = s[g].v[1];
        }
    }

    /* Scores to weights; largest score and sum of weights. */
    __device__ __forceinline__ float2 weigh(float (&x)[2 * N_GROUP], int n_key) const
    {
        float top = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * N_GROUP; i++) {
            x[i] = i / 2 * 8 + lane % 4 * 2 + i % 2 < n_key ? x[i] : -INFINITY;
            top = fmaxf(top, x[i]);
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float base = top * a.scale_log2;
#pragma unroll
        for (int i = 0; i < 2 * N_GROUP; i++) {
            x[i] = exp2_fast(__fmaf_rn(x[i], a.scale_log2, -base));
            sum = __fadd_rn(sum, x[i]);
        }
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
        return make_float2(top, sum);
    }

    __device__ __forceinline__ void weighted_sum(float (&o)[2 * N_V], const float (&x)[2 * N_GROUP],
                                                 const Places &p) const
    {
        Sums s[N_V];
#pragma unroll
        for (int g = 0; g < N_GROUP; g += 2) {
            const uint32_t p0 = pack_bf16(x[2 * g], x[2 * g + 1]), p1 = pack_bf16(x[2 * g + 2], x[2 * g + 3]);
#pragma unroll
            for (int i = 0; i < N_V; i += 2) {
                uint32_t v[4];
                load_matrices_turned(v, value_at(p.value[g / 2], i));
                s[i].add(p0, p1, v[0], v[1]);
                s[i + 1].add(p0, p1, v[2], v[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < N_V; i++) {
            o[2 * i] = s[i].v[0], o[2 * i + 1] = s[i].v[1];
        }
    }

    /* The far splits in increasing order, the near keys last. */
    __device__ __forceinline__ void merge(float (&o)[2 * N_V], float2 near, int n_split) const
    {
        const size_t at = (size_t)(group.row0 + row) * a.n_head + kv_head * a.group + lane / 4;
        const size_t step = (size_t)a.n_row_max * a.n_head;
        float2 ml[GR_CUDA_SPLIT_MAX];
        float top = near.x, sum = 0.0f, far[2 * N_V];
#pragma unroll
        for (int i = 0; i < GR_CUDA_SPLIT_MAX; i++) {
            ml[i] = i < n_split ? a.part.ml[at + i * step] : make_float2(-INFINITY, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < GR_CUDA_SPLIT_MAX; i++) {
            top = fmaxf(top, ml[i].x);
        }
#pragma unroll
        for (int i = 0; i < 2 * N_V; i++) {
            far[i] = 0.0f;
        }
        float4 v[GR_CUDA_SPLIT_MAX][N_V / 2]; /* all loads are on their way together */
#pragma unroll
        for (int i = 0; i < GR_CUDA_SPLIT_MAX; i++) {
            const float *from = a.part.o + (at + i * step) * HD + partial_column(part * N_V, lane % 4);
#pragma unroll
            for (int j = 0; j < N_V / 2; j++) {
                v[i][j] = i < n_split ? *(const float4 *)(from + 16 * j) : make_float4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int i = 0; i < GR_CUDA_SPLIT_MAX; i++) {
            const float w = exp2_fast((ml[i].x - top) * a.scale_log2);
            sum = __fmaf_rn(ml[i].y, w, sum);
#pragma unroll
            for (int j = 0; j < N_V / 2; j++) {
                far[4 * j] = __fmaf_rn(v[i][j].x, w, far[4 * j]);
                far[4 * j + 1] = __fmaf_rn(v[i][j].y, w, far[4 * j + 1]);
                far[4 * j + 2] = __fmaf_rn(v[i][j].z, w, far[4 * j + 2]);
                far[4 * j + 3] = __fmaf_rn(v[i][j].w, w, far[4 * j + 3]);
            }
        }
        const float w = exp2_fast((near.x - top) * a.scale_log2);
        const float inv = __frcp_rn(__fmaf_rn(near.y, w, sum));
#pragma unroll
        for (int i = 0; i < 2 * N_V; i++) {
            o[i] = __fmul_rn(__fmaf_rn(o[i], w, far[i]), inv);
        }
    }

    __device__ __forceinline__ void store(const float (&o)[2 * N_V]) const
    {
        const int col = (kv_head * a.group + lane / 4) * HD + part * (HD / PARTS) + lane % 4 * 2;
        const size_t at = gr_cuda_tile_at(group.row0 + row, col, a.n_head * HD);
#pragma unroll
        for (int i = 0; i < N_V; i++) { /* pieces of a tile's row are exchanged as those of keys */
            *(uint32_t *)(a.out + (at ^ (size_t)(8 * i))) = pack_bf16(o[2 * i], o[2 * i + 1]);
        }
    }
};

/* A warp: all blocks that the rows can see, keys and values. */
template <int HD>
static __device__ __forceinline__ void load_cells(const NearArgs &a, const Group &g, int kv_head, uint32_t smem,
                                                  uint64_t *bar, int lane)
{
    constexpr uint32_t bytes = HD * 64;
    const int n = g.n_block, block = lane < NEAR_BLOCKS_MAX ? g.block[lane] : 0;
    if (lane == 0) {
        bar_init(bar, 1);
        bar_init_done();
        bar_expect(bar, (uint32_t)n * bytes);
    }
    __syncwarp();
    if (lane < n) {
        copy_line(a.kv + ((size_t)block * a.n_kv_head + kv_head) * bytes, smem + lane * bytes, bar, bytes);
    }
}

template <int HD, int PARTS> __global__ void __launch_bounds__(N_NEAR_THREAD, 1) near_kernel(const NearArgs a)
{
    GR_DYNAMIC_SHARED(uint8_t, cells, 1024);
    uint64_t *bar = (uint64_t *)(cells + (size_t)a.n_block_max * HD * 64);
    const uint32_t smem = smem_addr(cells);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    /* The plan is older than the far kernel, which has waited for everything before it. */
    const int n_group = *a.n_group;
    const Group &g = a.group_list[blockIdx.x];
    const bool idle = (int)blockIdx.x >= n_group;
    if (!a.first || idle) {
        let_next_start();
    }
    if (idle) {
        wait_for_previous();
        return;
    }
    if (warp == 0) {
        load_cells<HD>(a, g, (int)blockIdx.y, smem, bar, lane);
    }
    using Row = gr::Row<HD, PARTS>;
    float o[2 * Row::N_V];
    float2 near = make_float2(0.0f, 0.0f);
    Row r{a, g, smem, warp / PARTS, (int)blockIdx.y, warp % PARTS, lane};
    const bool active = r.row < g.n_row;
    uint32_t q[HD / 8];
    typename Row::Places places;
    int n_key = 0, n_split = 0;
    if (active) {
        n_key = g.n_key[r.row];
        n_split = g.n_split[r.row];
        r.load_q(q);
        places = r.places();
    }
    __syncthreads();
    if (active) {
        float x[2 * Row::N_GROUP];
        bar_wait(bar, 0);
        r.scores(x, q, places);
        near = r.weigh(x, n_key);
        r.weighted_sum(o, x, places);
    }
    let_next_start();
    wait_for_previous();
    if (active && lane / 4 < a.group) {
        r.merge(o, near, n_split);
        r.store(o);
    }
}

/* With 14 blocks of 8 KiB, a pass's with 64 slots, there is room for two on a multiprocessor. */
constexpr size_t near_smem(int n_block, int head_dim)
{
    return (size_t)n_block * head_dim * 64 + sizeof(uint64_t);
}

template <int HD, int PARTS> static cudaError_t launch(const NearArgs &n, int n_row, dim3 grid, cudaStream_t stream)
{
    const cudaError_t e = cudaFuncSetAttribute(near_kernel<HD, PARTS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)near_smem(NEAR_BLOCKS_MAX, HD));
    if (e != cudaSuccess) {
        return e;
    }
    const int n_thread = 32 * PARTS * std::min(n_row, NEAR_ROWS); /* no group has more rows than the pass */
    return launch_early(near_kernel<HD, PARTS>, grid, n_thread, near_smem(n.n_block_max, HD), stream, n);
}

/* More warps of a row make the same scores once more each, but have less to merge, which is all latency. */
template <int HD> static cudaError_t launch_head(const NearArgs &n, int n_row, dim3 grid, cudaStream_t stream)
{
    return n_row <= NEAR_ROWS / 2 ? launch<HD, 4>(n, n_row, grid, stream) : launch<HD, 2>(n, n_row, grid, stream);
}

cudaError_t launch_near(const gr_cuda_attention_args &a, cudaStream_t stream)
{
    const gr_cuda_attn_shape &s = a.shape;
    const PlanParts p = parts_of(s, a.plan);
    const NearArgs n{(const uint8_t *)a.kv,
                     (const __nv_bfloat16 *)a.q,
                     a.out,
                     &p.head->n_group,
                     p.group,
                     partial_of(s, a.work),
                     s.n_head,
                     s.n_kv_head,
                     s.n_head / s.n_kv_head,
                     a.q_stride,
                     s.n_row_max,
                     near_blocks(s),
                     a.n_row <= 16, /* few blocks: o's are on other multiprocessors then */
                     a.scale * 1.44269504088896341f};
    const dim3 grid((unsigned)((a.n_row + (NEAR_ROWS - 1) * a.n_seq) / NEAR_ROWS), (unsigned)s.n_kv_head);
    return s.head_dim == 128 ? launch_head<128>(n, a.n_row, grid, stream) : launch_head<64>(n, a.n_row, grid, stream);
}

} // namespace gr
