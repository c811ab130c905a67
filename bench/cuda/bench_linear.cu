/* Linear layers of a pass on a GPU: all of them in one graph, beside what the same run measures of memory.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -I. -o bench_linear bench/cuda/bench_linear.cu
 *        kernels/cuda/linear*.cu
 *   bench_linear [repetitions]
 *
 * Geometry of Llama-3.1-8B, 15.0 GB of random weights (32 layers of q + k + v, o, gate + up and down, then lm_head);
 * no attention and no norms, so what a layer reads is random too. Once each layer a kernel, and once o, gate + up, down
 * and the next q + k + v in one, as a pass has them. Ceiling: reading the same bytes in one go, 16 a thread. Before
 * them, what the copies that stream weights bring out of the L2 cache and out of memory, nothing else done. */
#include "bench/cuda/timing.cuh"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/device/read_all.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

static constexpr int ROW_MAX = 256; /* rows of the largest pass that is measured */
static cudaStream_t st;

static __global__ void fill(uint16_t *p, size_t n, uint32_t seed, float scale)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + seed;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        const float x = scale * ((float)(uint32_t)((z ^ z >> 27) >> 32) * 0x1p-31f - 1.0f);
        p[i] = (uint16_t)(__float_as_uint(x) >> 16);
    }
}

/* ---- copies alone ---- */

static constexpr int BOX = 8192, BOX_MAX = 20; /* a copy; on its way at most */

/* Each block copies its part of n_box boxes n_turn times over, `depth` of them on their way. */
static __global__ void __launch_bounds__(32, 1) stream(const uint8_t *from, int n_box, int n_turn, int depth)
{
    GR_DYNAMIC_SHARED(uint8_t, ring, 1024);
    __shared__ uint64_t full[BOX_MAX];
    if (threadIdx.x > 0) {
        return;
    }
    for (int i = 0; i < depth; i++) {
        gr::bar_init(&full[i], 1);
    }
    gr::bar_init_done();
    const int part = n_box / (int)gridDim.x, n = part * n_turn;
    const uint8_t *const mine = from + (size_t)part * blockIdx.x * BOX;
    for (int i = 0; i < n + depth; i++) {
        const int slot = i % depth;
        if (i >= depth && i - depth < n) {
            gr::bar_wait(&full[slot], (uint32_t)(i / depth - 1) & 1);
        }
        if (i < n) {
            gr::bar_expect(&full[slot], BOX);
            gr::copy_line(mine + (size_t)(i % part) * BOX, gr::smem_addr(ring + slot * BOX), &full[slot], BOX);
        }
    }
}

static void report_copies(const void *from, int n_block)
{
    CUDA_OK(cudaFuncSetAttribute(stream, cudaFuncAttributeMaxDynamicSharedMemorySize, BOX_MAX * BOX));
    printf("\n| copies alone: MiB, again and again | 48 KiB on their way, TB/s | 96 | 160 |\n|---|---|---|---|\n");
    for (int mb : {8, 24, 48, 64, 2048}) {
        const int n_box = mb * 128, n_turn = std::max(1, 2048 / mb);
        printf("| %d |", mb);
        for (int depth : {6, 12, BOX_MAX}) {
            const Times t = time_of(st, 9, [&] {
                stream<<<n_block, 32, BOX_MAX * BOX, st>>>((const uint8_t *)from, n_box, n_turn, depth);
            });
            printf(" %.3f |", (double)(n_box / n_block) * n_block * n_turn * BOX / (double)t.median * 1e-9);
        }
        printf("\n");
    }
}

/* ---- layers ---- */

struct Geometry {
    const char *name;
    int n_layer, hidden, qkv, ffn, vocab;
};

enum kind { QKV, O, GATE_UP, DOWN, LM_HEAD };
static const char *KIND_NAMES[] = {"q + k + v", "o", "gate + up", "down", "lm_head"};

struct Pass {
    Geometry g;
    uint8_t *w;                                       /* all matrices, one after the other */
    size_t bytes = 0, read = 0;                       /* of w; of the weights without padding */
    uint16_t *x_hidden, *x_attention, *x_ffn, *y_qkv; /* x: tiles */
    float *residual, *logits;
    int32_t *n_row_true;
    gr_cuda_chain *chain;

    int n_out(kind k) const
    {
        const int n[] = {g.qkv, g.hidden, 2 * g.ffn, g.hidden, g.vocab};
        return n[k];
    }
    int n_in(kind k) const
    {
        return k == DOWN ? g.ffn : g.hidden;
    }
    size_t size(kind k) const
    {
        return (gr_cuda_linear_bytes(n_out(k), n_in(k), {}) + 255) / 256 * 256;
    }
    size_t layer_size() const
    {
        return size(QKV) + size(O) + size(GATE_UP) + size(DOWN);
    }
    size_t plain_size(kind k) const
    {
        return (size_t)n_out(k) * (size_t)n_in(k) * 2;
    }

    explicit Pass(const Geometry &geometry) : g(geometry)
    {
        bytes = (size_t)g.n_layer * layer_size() + size(LM_HEAD);
        for (int k = QKV; k <= LM_HEAD; k++) {
            read += plain_size((kind)k) * (size_t)(k == LM_HEAD ? 1 : g.n_layer);
        }
        CUDA_OK(cudaMalloc(&w, bytes));
        fill<<<2048, 256, 0, st>>>((uint16_t *)w, bytes / 2, 3, 0.02f);
        for (uint16_t **p : {&x_hidden, &x_attention, &y_qkv, &x_ffn}) {
            const size_t n = (size_t)ROW_MAX * (size_t)std::max({g.hidden, g.ffn, g.qkv});
            CUDA_OK(cudaMalloc(p, n * 2));
            fill<<<256, 256, 0, st>>>(*p, n, 9, 1.0f);
        }
        CUDA_OK(cudaMalloc(&residual, (size_t)ROW_MAX * (size_t)g.hidden * 4));
        CUDA_OK(cudaMemset(residual, 0, (size_t)ROW_MAX * (size_t)g.hidden * 4));
        CUDA_OK(cudaMalloc(&logits, (size_t)ROW_MAX * (size_t)g.vocab * 4));
        CUDA_OK(cudaMalloc(&n_row_true, 4));
        CUDA_OK(cudaMalloc(&chain, sizeof(*chain)));
        CUDA_OK(cudaMemset(chain, 0, sizeof(*chain)));
    }
    ~Pass()
    {
        for (void *p : {(void *)w, (void *)x_hidden, (void *)x_attention, (void *)y_qkv, (void *)x_ffn,
                        (void *)residual, (void *)logits, (void *)n_row_true, (void *)chain}) {
            (void)cudaFree(p);
        }
    }

    gr_cuda_linear_args args(kind k, const uint8_t *at, int n_row) const
    {
        gr_cuda_linear_args a{at,       n_out(k),        n_in(k),  x_hidden, nullptr,
                              residual, GR_CUDA_OUT_ADD, g.hidden, n_row,    n_row_true};
        if (k == QKV) {
            a.y = y_qkv, a.out = GR_CUDA_OUT_BF16, a.y_stride = g.qkv;
        } else if (k == GATE_UP) {
            a.y = x_ffn, a.out = GR_CUDA_OUT_SILU;
        } else if (k == LM_HEAD) {
            a.y = logits, a.out = GR_CUDA_OUT_F32, a.y_stride = g.vocab;
        } else {
            a.x = k == O ? x_attention : x_ffn;
            a.segments = gr_segments_of_down(a.n_in);
        }
        return a;
    }

    void run(const gr_cuda_linear_args &a) const
    {
        if (gr_cuda_linear(&a, st) != GR_OK) {
            exit(1);
        }
    }

    void run_chain(const std::vector<gr_cuda_linear_args> &a) const
    {
        if (gr_cuda_linear_chain(a.data(), (int)a.size(), chain, st) != GR_OK) {
            exit(1);
        }
    }

    /* Matrices of the kinds in `kinds` (bits), of all layers. */
    void enqueue(unsigned kinds, int n_row) const
    {
        const uint8_t *at = w;
        for (int i = 0; i <= g.n_layer; i++) {
            for (int k = i < g.n_layer ? QKV : LM_HEAD; k <= (i < g.n_layer ? DOWN : LM_HEAD); k++) {
                if (kinds >> k & 1) {
                    run(args((kind)k, at, n_row));
                }
                at += size((kind)k);
            }
        }
    }

    /* All of them, in chains; q + k + v as if they were added to something, which costs no less than what becomes of
     * heads. */
    void enqueue_chains(int n_row) const
    {
        const uint8_t *at = w;
        std::vector<gr_cuda_linear_args> a;
        run(args(QKV, at, n_row));
        for (int i = 0; i < g.n_layer; i++) {
            a.clear();
            at += size(QKV);
            for (kind k : {O, GATE_UP, DOWN}) {
                a.push_back(args(k, at, n_row));
                at += size(k);
            }
            if (i + 1 < g.n_layer) {
                a.push_back(args(QKV, at, n_row));
                a.back().out = GR_CUDA_OUT_ADD, a.back().y = logits;
            }
            run_chain(a);
        }
        run(args(LM_HEAD, at, n_row));
    }

    template <class F> cudaGraphExec_t capture(F enqueued) const
    {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CUDA_OK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
        enqueued();
        CUDA_OK(cudaStreamEndCapture(st, &graph));
        CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
        CUDA_OK(cudaGraphDestroy(graph));
        return exec;
    }

    template <class F> Times time_graph(int n_row, int n_rep, F enqueued) const
    {
        const int32_t n = n_row;
        CUDA_OK(cudaMemcpy(n_row_true, &n, 4, cudaMemcpyHostToDevice));
        const cudaGraphExec_t exec = capture(enqueued);
        const Times t = time_of(st, n_rep, [&] { CUDA_OK(cudaGraphLaunch(exec, st)); });
        CUDA_OK(cudaGraphExecDestroy(exec));
        return t;
    }

    Times time(unsigned kinds, int n_row, int n_rep) const
    {
        return time_graph(n_row, n_rep, [&] { enqueue(kinds, n_row); });
    }

    Times time_chains(int n_row, int n_rep) const
    {
        return time_graph(n_row, n_rep, [&] { enqueue_chains(n_row); });
    }
};

static void print_row(const Pass &p, const Times &t, int n_row, double asked_ms, double ceiling)
{
    const double rate = (double)p.read / t.median * 1e3;
    printf("| %3d | %.3f (%.3f, %.3f) | %.0f | %.0f | ", n_row, (double)t.median, (double)t.low, (double)t.high,
           rate * 1e-9, rate / ceiling * 100);
    if (asked_ms > 0 && p.g.hidden == 4096) {
        printf("%.1f %s", asked_ms, (double)t.median <= asked_ms ? "met" : "MISSED");
    }
    printf(" |\n");
    fflush(stdout);
}

static void print_head(const char *what, int n_rep)
{
    printf("| rows%s | ms, median (10 %%, 90 %%) of %d | GB/s | %% of the ceiling | asked |\n|---|---|---|---|---|\n",
           what, n_rep);
}

static void report_pass(const Pass &p, int n_rep, double ceiling)
{
    const struct {
        int n_row;
        double asked_ms; /* 0: nothing */
    } cases[] = {{1, 3.7}, {8, 0}, {16, 0}, {32, 0}, {64, 3.8}, {128, 0}, {256, 0}};
    printf("%s: %.3f GB of weights, %.3f ms at the ceiling\n", p.g.name, (double)p.read * 1e-9,
           (double)p.read / ceiling * 1e3);
    print_head("", n_rep);
    for (const auto &c : cases) {
        print_row(p, p.time(31, c.n_row, n_rep), c.n_row, c.asked_ms, ceiling);
    }
    print_head(", in chains", n_rep);
    for (const auto &c : cases) {
        if (c.n_row <= 64) {
            print_row(p, p.time_chains(c.n_row, n_rep), c.n_row, c.asked_ms, ceiling);
        }
    }
}

static void report_kinds(const Pass &p, int n_rep, double ceiling)
{
    printf("| matrix, all layers' | outputs x inputs | 1 row, us each | 64 rows | 256 rows | at the ceiling |\n"
           "|---|---|---|---|---|---|\n");
    for (int k = QKV; k <= LM_HEAD; k++) {
        const int n = k == LM_HEAD ? 1 : p.g.n_layer;
        printf("| %s | %d x %d |", KIND_NAMES[k], p.n_out((kind)k), p.n_in((kind)k));
        for (int n_row : {1, 64, 256}) {
            printf(" %.2f |", (double)p.time(1u << k, n_row, n_rep).median / n * 1e3);
        }
        printf(" %.2f |\n", (double)p.plain_size((kind)k) / ceiling * 1e6);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    const int n_rep = argc > 1 ? atoi(argv[1]) : 60;
    cudaDeviceProp prop;
    CUDA_OK(cudaGetDeviceProperties(&prop, 0));
    CUDA_OK(cudaStreamCreate(&st));
    const Pass large({"Llama-3.1-8B", 32, 4096, 6144, 14336, 128256}), small({"demo target", 8, 384, 640, 1024, 4096});
    CUDA_OK(cudaDeviceSynchronize());
    const Times r = time_of(st, 20, [&] {
        read_all<<<1056, 512, 0, st>>>((const uint4 *)large.w, large.bytes / 16, (uint32_t *)large.residual);
    });
    const double ceiling = (double)large.bytes / r.median * 1e3;
    printf("%s, %d multiprocessors; reading %.2f GB in one go: %.3f ms (%.3f, %.3f), %.0f GB/s\n", prop.name,
           prop.multiProcessorCount, (double)large.bytes * 1e-9, (double)r.median, (double)r.low, (double)r.high,
           ceiling * 1e-9);
    report_copies(large.w, prop.multiProcessorCount);
    report_pass(large, n_rep, ceiling);
    report_kinds(large, n_rep / 3, ceiling);
    report_pass(small, n_rep, ceiling);
    CUDA_OK(cudaDeviceSynchronize());
    return 0;
}
