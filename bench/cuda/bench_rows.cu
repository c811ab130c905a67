/* What is done row by row on a GPU, each operation by itself: 50 of it in a graph, so with the gap between kernels.
 * Target bench_rows of kernels/cuda/meson.build; an argument: repetitions.
 *
 * Bytes: what must be read and written once. Floor: these over the bandwidth that reading 4 GiB gives in the same run,
 * or over that of copying 64 MiB from the host. Operands of one call are those of the next, so all but the last row
 * of picks come from the cache, as a pass's do. */
#include "bench/cuda/timing.cuh"
#include "kernels/cuda/attention/begin.h"
#include "kernels/cuda/pick/pick.h"
#include "kernels/cuda/device/read_all.cuh"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

static constexpr int N = 4096, N_IN_GRAPH = 50, N_ROW_MAX = 64, N_LOGIT = 128256;

static cudaStream_t st;
static int n_rep = 60;
static double device_rate, host_rate; /* bytes a second */

static __global__ void fill(float *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull;
        float x = 0.0f; /* a sum of four: a bell */
        for (int k = 0; k < 4; k++) {
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
            x += (float)(uint32_t)((z ^ z >> 27) >> 32) * 0x1p-31f - 1.0f;
        }
        p[i] = 3.0f * x;
    }
}

static void need(enum gr_status s)
{
    if (s != GR_OK) {
        exit(1);
    }
}

template <class F> static float median_ms(F f)
{
    return time_of(st, n_rep, f).median;
}

/* op(i): the i-th of the graph. */
static void time_op(const char *name, double bytes, double rate, const std::function<enum gr_status(int)> &op)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_OK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < N_IN_GRAPH; i++) {
        need(op(i));
    }
    CUDA_OK(cudaStreamEndCapture(st, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    const double us = 1e3 * (double)median_ms([&] { CUDA_OK(cudaGraphLaunch(exec, st)); }) / N_IN_GRAPH;
    printf("| %s | %.2f | %.1f | %.2f |\n", name, us, bytes / 1e3, bytes / rate * 1e6);
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));
}

template <class T> static T *device(size_t n)
{
    T *p;
    CUDA_OK(cudaMalloc(&p, n * sizeof(T)));
    CUDA_OK(cudaMemset(p, 0, n * sizeof(T)));
    return p;
}

template <class T> static T *upload(const std::vector<T> &v)
{
    T *p = device<T>(v.size());
    CUDA_OK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

static void measure_rates()
{
    const size_t big = (size_t)4 << 30, some = (size_t)64 << 20;
    uint8_t *p = device<uint8_t>(big), *host;
    uint32_t *out = device<uint32_t>(1);
    CUDA_OK(cudaHostAlloc(&host, some, cudaHostAllocDefault));
    fill<<<2048, 256, 0, st>>>((float *)p, big / 4);
    const float read = median_ms([&] { read_all<<<1056, 512, 0, st>>>((const uint4 *)p, big / 16, out); });
    const float up = median_ms([&] { CUDA_OK(cudaMemcpyAsync(p, host, some, cudaMemcpyHostToDevice, st)); });
    device_rate = (double)big / (double)read * 1e3, host_rate = (double)some / (double)up * 1e3;
    CUDA_OK(cudaFree(p));
    CUDA_OK(cudaFreeHost(host));
}

/* With the plan of one session that decodes after 1000 tokens. */
static void bench_begin(const gr_cuda_norm_args &norm, const uint16_t *table, const int32_t *ids, float *x, int n_row)
{
    std::vector<int32_t> limit, block((1000 + (size_t)n_row) / 16 + 1, 0);
    for (int r = 0; r < n_row; r++) {
        limit.push_back(1001 + r);
    }
    gr_attn_seq seq{};
    seq.n_row = n_row, seq.block = upload(block), seq.limit = upload(limit);
    seq.n_anc = upload(std::vector<int32_t>((size_t)n_row, 0)), seq.scratch_block = seq.block;
    gr_cuda_begin_args a{};
    a.plan.shape = {32, 8, 128, N_ROW_MAX, 1, 64, GR_CUDA_SPLIT_MAX};
    a.plan.seq = upload(std::vector<gr_attn_seq>{seq}), a.plan.n_seq = upload(std::vector<int32_t>{1});
    a.plan.plan = device<uint8_t>(gr_cuda_attn_plan_bytes(&a.plan.shape));
    a.table = table, a.id = ids, a.x = x, a.token = norm;
    char name[80];
    snprintf(name, sizeof(name), "plan, %d rows", n_row);
    time_op(name, 0, device_rate, [&](int) { return gr_cuda_attn_plan(&a.plan, st); });
    snprintf(name, sizeof(name), "begin, %d x %d", n_row, N);
    time_op(name, 8.0 * N * n_row, device_rate, [&](int) { return gr_cuda_begin(&a, st); });
}

static void bench_rows(int n_row, uint8_t *host, uint8_t *host_device)
{
    const std::vector<int32_t> count{n_row};
    std::vector<int32_t> id;
    for (int r = 0; r < N_ROW_MAX; r++) {
        id.push_back((int32_t)((r * 7919 + 13) % 32000));
    }
    const int32_t *n_true = upload(count), *ids = upload(id), *rows = upload(std::vector<int32_t>(N_ROW_MAX, 0));
    uint16_t *table = device<uint16_t>((size_t)32000 * N), *tiles = device<uint16_t>(gr_cuda_tile_bytes(64, 3 * N));
    float *x = device<float>((size_t)N_ROW_MAX * N), *w = device<float>(N);
    uint8_t *to = device<uint8_t>(1 << 20);
    fill<<<64, 256, 0, st>>>(x, (size_t)N_ROW_MAX * N);
    fill<<<64, 256, 0, st>>>(w, N);
    char name[80];
    gr_cuda_input_head *head = (gr_cuda_input_head *)host;
    *head = gr_cuda_input_head{};
    uint32_t at = sizeof(*head), bytes = 0;
    for (uint32_t part : {4u, 4u, 4u, 4u, 128u, 64u}) { /* a row: ids, positions, cells, limits, ancestors, blocks */
        head->part[head->n_part].offset = at;
        head->part[head->n_part++].bytes = (part * (uint32_t)n_row + 15) / 16 * 16;
        at += (part * (uint32_t)n_row + 15) / 16 * 16;
    }
    bytes = at - (uint32_t)sizeof(*head);
    snprintf(name, sizeof(name), "input, %d rows' six parts", n_row);
    time_op(name, bytes, host_rate, [&](int) { return gr_cuda_input(host_device, to, st); });
    gr_cuda_norm_args a{};
    a.x = x, a.w = w, a.y = tiles, a.n_row = n_row, a.n = a.x_stride = a.y_n = N, a.eps = 1e-5f, a.n_row_true = n_true;
    snprintf(name, sizeof(name), "norm, %d x %d", n_row, N);
    time_op(name, 6.0 * N * n_row + 4.0 * N, device_rate, [&](int) { return gr_cuda_norm(&a, st); });
    bench_begin(a, table, ids, x, n_row);
    a.row = rows, a.capture = tiles + gr_cuda_tile_bytes(64, N) / 2, a.capture_n = 2 * N;
    snprintf(name, sizeof(name), "norm, gathered, and capture, %d x %d", n_row, N);
    time_op(name, 8.0 * N * n_row + 4.0 * N, device_rate, [&](int) { return gr_cuda_norm(&a, st); });
    const gr_cuda_output_args o{x, (float *)host_device, n_row, N, n_true};
    snprintf(name, sizeof(name), "output, %d x %d", n_row, N);
    time_op(name, 4.0 * N * n_row, host_rate, [&](int) { return gr_cuda_output(&o, st); });
}

/* n_set: operands that calls take in turn. */
static void bench_picks(int n_row, int n, float temperature, int n_set, const float *logits, uint8_t *host_device)
{
    std::vector<struct gr_cuda_pick> how(N_ROW_MAX);
    for (int r = 0; r < N_ROW_MAX; r++) {
        how[r] = {(uint64_t)r * 77 + 1, temperature, (uint32_t)(100 + r), 0, 0};
    }
    const struct gr_cuda_pick *d_how = upload(how);
    const int32_t *n_true = upload(std::vector<int32_t>{n_row});
    const uint32_t *ticket = upload(std::vector<uint32_t>{7});
    uint32_t *done = (uint32_t *)(host_device + (1 << 20) - 64);
    gr_cuda_pick_args a{logits,
                        d_how,
                        (gr_picked *)host_device,
                        device<uint8_t>(gr_cuda_pick_work_bytes(n_row)),
                        ticket,
                        done,
                        n_row,
                        n,
                        n,
                        n_true};
    char name[120];
    const double bytes = 4.0 * n * n_row;
    snprintf(name, sizeof(name), "pick, %d x %d, %s%s", n_row, n, temperature > 0 ? "noise" : "greedy",
             n_set > 1 ? ", not in the cache" : "");
    time_op(name, bytes, device_rate, [&](int i) {
        a.logits = logits + (size_t)(i % n_set) * n * n_row;
        return gr_cuda_pick(&a, st);
    });
    if (n_set > 1) {
        return;
    }
    std::vector<int32_t> map((size_t)n);
    for (int i = 0; i < n; i++) {
        map[i] = i * 4 + i % 3;
    }
    for (int k : {10, 63}) {
        for (int with_map = 0; with_map <= (temperature > 0 && n == 32000); with_map++) {
            const gr_cuda_top_args t{logits,
                                     with_map ? upload(map) : nullptr,
                                     d_how,
                                     upload(std::vector<int32_t>(N_ROW_MAX, k)),
                                     (gr_top_row *)host_device,
                                     device<uint8_t>(gr_cuda_top_work_bytes(n_row)),
                                     ticket,
                                     done,
                                     n_row,
                                     n,
                                     n,
                                     n_true};
            snprintf(name, sizeof(name), "top %d, %d x %d, %s%s", k, n_row, n, temperature > 0 ? "noise" : "greedy",
                     with_map ? ", mapped" : "");
            time_op(name, bytes, device_rate, [&](int) { return gr_cuda_top(&t, st); });
        }
    }
}

int main(int argc, char **argv)
{
    n_rep = argc > 1 ? atoi(argv[1]) : n_rep;
    cudaDeviceProp prop;
    uint8_t *host, *host_device;
    CUDA_OK(cudaGetDeviceProperties(&prop, 0));
    CUDA_OK(cudaStreamCreate(&st));
    CUDA_OK(cudaHostAlloc(&host, 2 << 20, cudaHostAllocMapped));
    CUDA_OK(cudaHostGetDevicePointer(&host_device, host, 0));
    measure_rates();
    printf("%s; reading 4 GiB: %.2f TB/s; from the host: %.1f GB/s\n", prop.name, device_rate / 1e12, host_rate / 1e9);
    printf("| operation | us, median of %d graphs of %d | kB | floor, us |\n|---|---:|---:|---:|\n", n_rep, N_IN_GRAPH);
    const int n_set = 8;
    float *logits = device<float>((size_t)n_set * N_ROW_MAX * N_LOGIT);
    fill<<<2048, 256, 0, st>>>(logits, (size_t)n_set * N_ROW_MAX * N_LOGIT);
    for (int n_row : {1, 64}) {
        bench_rows(n_row, host, host_device);
    }
    for (int n : {32000, N_LOGIT}) {
        for (int n_row : {1, 10, 64}) {
            for (float temperature : {0.0f, 1.0f}) {
                bench_picks(n_row, n, temperature, 1, logits, host_device);
            }
        }
    }
    for (float temperature : {0.0f, 1.0f}) {
        bench_picks(64, N_LOGIT, temperature, n_set, logits, host_device);
    }
    CUDA_OK(cudaDeviceSynchronize());
    return 0;
}
