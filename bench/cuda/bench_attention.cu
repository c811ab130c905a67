/* Attention of a pass on a GPU: all layers in one graph, against what the same run measures of memory and matrix units.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I. -o bench_attention bench/cuda/bench_attention.cu
 *        kernels/cuda/attention*.cu
 *   bench_attention [repetitions] [rows context: only such cases]
 *
 * Geometry of Llama-3.1-8B: 32 layers, 32 query heads, 8 KV heads of 128. Random values; blocks of a session are
 * scattered over the pool. Bytes: KV of what is visible, once. Operations: 4 x head_dim a query head and visible key.
 * Floor: the larger of the two against the ceilings. */
#include "bench/cuda/timing.cuh"
#include "kernels/cuda/attention/attention_plan.cuh"
#include "kernels/cuda/device/ceiling.h"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/tiles.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

/* The shape of Llama 3.1 8B, and KV blocks for 67,200 tokens. */
static constexpr int N_LAYER = 32, N_HEAD = 32, N_KV_HEAD = 8, HEAD_DIM = 128, N_POOL_BLOCK = 4200;
static constexpr size_t LAYER = (size_t)N_POOL_BLOCK * N_KV_HEAD * 32 * HEAD_DIM; /* values */

struct Case {
    int n_seq, n_row, context, n_view; /* n_view: blocks of a view, 0: all */
    double asked_ms;                   /* 0: nothing */
    int window;                        /* 0: none */
};
static const Case CASES[] = {
    {1, 1, 2048, 0, 0.2},      {1, 1, 32768, 0, 1.2},  {1, 1, 61440, 0, 2.2},     {1, 64, 2048, 0, 0.3},
    {1, 64, 32768, 0, 1.75},   {1, 64, 61440, 0, 3.3}, {1, 64, 32768, 258, 0.4},  {1, 16, 32768, 0, 0},
    {1, 32, 32768, 0, 0},      {1, 8, 4096, 0, 0},     {8, 8, 4096, 0, 0},        {16, 1, 2048, 0, 0},
    {64, 1, 512, 0, 0},        {4, 60, 8192, 0, 0},    {1, 1, 4096, 0, 0},        {1, 1, 4096, 0, 0, 4095},
    {1, 1, 32768, 0, 0, 4096}, {1, 64, 4096, 0, 0},    {1, 64, 4096, 0, 0, 4095}, {1, 64, 32768, 0, 0, 4096},
};

static __global__ void fill(uint16_t *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + seed;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        const float x = (float)(uint32_t)((z ^ z >> 27) >> 32) * 0x1p-31f - 1.0f;
        p[i] = (uint16_t)(__float_as_uint(x) >> 16);
    }
}

static cudaStream_t st;

template <class T> static T *upload(const std::vector<T> &v)
{
    T *p;
    CUDA_OK(cudaMalloc(&p, v.size() * sizeof(T) + 16));
    CUDA_OK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

/* Scattered blocks; a tree of n_row rows, each one's parent up to six rows before it. */
static gr_attn_seq make_seq(const Case &c, int i_seq, int &n_used, const std::vector<int32_t> &order)
{
    std::vector<int32_t> block, limit, scratch, n_anc, list;
    std::vector<int16_t> anc((size_t)c.n_row * GR_ATTN_ANC_MAX, 0);
    const int base = c.context - 12;
    for (int i = 0; i < (c.context + 15) / 16 + 4; i++) {
        (i < (c.context + 15) / 16 ? block : scratch).push_back(order[(size_t)(n_used++ % N_POOL_BLOCK)]);
    }
    for (int r = 0; r < c.n_row; r++) {
        const int parent = r == 0 ? -1 : std::max(0, r - 1 - r * 7 % 6);
        const int n = parent < 0 ? 0 : n_anc[parent];
        std::copy_n(&anc[(size_t)std::max(parent, 0) * GR_ATTN_ANC_MAX], n, &anc[(size_t)r * GR_ATTN_ANC_MAX]);
        anc[(size_t)r * GR_ATTN_ANC_MAX + n] = (int16_t)r;
        n_anc.push_back(n + 1);
        limit.push_back(base);
    }
    gr_attn_seq s{};
    if (c.n_view > 0) {
        s.dense_from = base / 16 * 16 - 256;
        for (int h = 0; h < N_LAYER * N_KV_HEAD; h++) {
            for (int i = 0; i < c.n_view; i++) {
                list.push_back((int32_t)((int64_t)i * (s.dense_from / 16) / c.n_view));
            }
        }
        s.sparse = upload(list), s.n_sparse = s.sparse_stride = c.n_view;
    }
    s.row0 = i_seq * c.n_row, s.n_row = c.n_row, s.block = upload(block), s.limit = upload(limit);
    s.scratch_block = upload(scratch), s.n_anc = upload(n_anc), s.anc = upload(anc), s.n_slot = c.n_row;
    return s;
}

static cudaGraphExec_t capture(const gr_cuda_attention_args &a0, const uint16_t *kv, const int32_t *n_seq, int parts)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    gr_cuda_attention_args a = a0;
    CUDA_OK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    if (parts & 4) {
        const gr_cuda_attn_plan_args plan{a.shape, a.seq, n_seq, const_cast<void *>(a.plan), nullptr, a.window};
        if (gr_cuda_attn_plan(&plan, st) != GR_OK) {
            exit(1);
        }
    }
    for (int l = 0; l < N_LAYER; l++) {
        a.kv = kv + l * LAYER, a.layer = l;
        if (parts & 1) {
            CUDA_OK(gr::launch_far(a, st));
        }
        if (parts & 2) {
            CUDA_OK(gr::launch_near(a, st));
        }
    }
    CUDA_OK(cudaStreamEndCapture(st, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_OK(cudaGraphDestroy(graph));
    return exec;
}

static void run_case(const Case &c, const uint16_t *kv, const std::vector<int32_t> &order, int n_rep, double bw,
                     double rate)
{
    std::vector<gr_attn_seq> seq;
    int n_used = 0;
    for (int i = 0; i < c.n_seq; i++) {
        seq.push_back(make_seq(c, i, n_used, order));
    }
    gr_cuda_attention_args a{};
    uint16_t *q, *out;
    void *plan, *work;
    const int n_row = c.n_seq * c.n_row;
    a.shape = {N_HEAD, N_KV_HEAD, HEAD_DIM, std::max(64, n_row), std::max(1, c.n_seq), 64, GR_CUDA_SPLIT_MAX};
    CUDA_OK(cudaMalloc(&q, (size_t)n_row * N_HEAD * HEAD_DIM * 2));
    CUDA_OK(cudaMalloc(&out, gr_cuda_tile_bytes(n_row, N_HEAD * HEAD_DIM)));
    CUDA_OK(cudaMalloc(&plan, gr_cuda_attn_plan_bytes(&a.shape)));
    CUDA_OK(cudaMalloc(&work, gr_cuda_attn_work_bytes(&a.shape)));
    fill<<<256, 256, 0, st>>>(q, (size_t)n_row * N_HEAD * HEAD_DIM, 9);
    const int32_t *n_seq = upload(std::vector<int32_t>{c.n_seq});
    a.q = q, a.out = out, a.seq = upload(seq), a.plan = plan, a.work = work;
    a.n_row = n_row, a.n_seq = c.n_seq, a.q_stride = N_HEAD * HEAD_DIM;
    a.scale = 0.0884f, a.window = c.window;
    float ms[4];
    Times all{};
    const int parts[] = {7, 1, 2, 4};
    for (int i = 0; i < 4; i++) {
        const cudaGraphExec_t exec = capture(a, kv, n_seq, parts[i]);
        const Times t = time_of(st, i == 0 ? n_rep : n_rep / 3, [&] { CUDA_OK(cudaGraphLaunch(exec, st)); });
        ms[i] = t.median;
        all = i == 0 ? t : all;
        CUDA_OK(cudaGraphExecDestroy(exec));
    }
    const double keys = c.n_view > 0   ? c.n_view * 16.0 + 256 + 12
                        : c.window > 0 ? std::min(c.window, c.context)
                                       : c.context;
    const double bytes = (double)c.n_seq * keys * N_KV_HEAD * HEAD_DIM * 4 * N_LAYER;
    const double ops = (double)n_row * keys * N_HEAD * HEAD_DIM * 4 * N_LAYER;
    const double floor = std::max(bytes / bw, ops / rate) * 1e3;
    printf("| %2d x %2d | %5d%s | %.3f (%.3f, %.3f) | %.3f | %.0f%% | %.0f | %.0f | %.3f + %.3f + %.3f | %s |\n",
           c.n_seq, c.n_row, c.context,
           c.n_view   ? " view"
           : c.window ? " window"
                      : "",
           (double)all.median, (double)all.low, (double)all.high, floor, floor / all.median * 100,
           bytes / all.median / 1e6, ops / all.median / 1e9, (double)ms[1], (double)ms[2], (double)ms[3],
           c.asked_ms == 0            ? ""
           : all.median <= c.asked_ms ? "met"
                                      : "MISSED");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const int n_rep = argc > 1 ? atoi(argv[1]) : 50;
    cudaDeviceProp prop;
    CUDA_OK(cudaGetDeviceProperties(&prop, 0));
    CUDA_OK(cudaStreamCreate(&st));
    uint16_t *kv;
    CUDA_OK(cudaMalloc(&kv, LAYER * N_LAYER * 2));
    fill<<<2048, 256, 0, st>>>(kv, LAYER * N_LAYER, 3);
    std::vector<int32_t> order(N_POOL_BLOCK);
    std::iota(order.begin(), order.end(), 0);
    uint64_t z = 88172645463325252ull;
    for (size_t i = order.size() - 1; i > 0; i--) {
        z ^= z << 13, z ^= z >> 7, z ^= z << 17;
        std::swap(order[i], order[z % (i + 1)]);
    }
    struct gr_cuda_ceilings c;
    if (gr_cuda_measure_ceilings(&c) != GR_OK) {
        return 1;
    }
    const double bw = c.read_bytes_per_s, rate = c.matrix_flops;
    printf("%s, %d multiprocessors; reading 4 GiB: %.2f TB/s; attention's products on operands at hand: %.0f TFLOP/s\n",
           prop.name, prop.multiProcessorCount, bw / 1e12, rate / 1e12);
    printf("| sessions x rows | context | ms, median (10 %%, 90 %%) of %d | floor | %% of it | GB/s | TFLOP/s | far + "
           "near + plan alone | |\n|---|---|---|---|---|---|---|---|---|\n",
           n_rep);
    for (const Case &c : CASES) {
        if (argc <= 3 || (atoi(argv[2]) == c.n_row && atoi(argv[3]) == c.context)) {
            run_case(c, kv, order, n_rep, bw, rate);
        }
    }
    CUDA_OK(cudaDeviceSynchronize());
    return 0;
}
