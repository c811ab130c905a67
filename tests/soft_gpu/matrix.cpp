/* The matrix units: bf16 products, which are exact in f32, added one k after the other. */
#include "tests/soft_gpu/block.h"

#include "kernels/cuda/device/device.cuh"

#include <cstring>

namespace soft_gpu
{

constexpr int M = 64, K = 16, N_MAX = 256;

static float value_of(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

/* ---- a warpgroup's products ---- */

struct Operand {
    const Block &b;
    uint32_t start, lead, stride;
    Operand(const Block &block, uint64_t desc)
        : b(block), start((uint32_t)(desc & 0x3fff) << 4), lead((uint32_t)(desc >> 16 & 0x3fff) << 4),
          stride((uint32_t)(desc >> 32 & 0x3fff) << 4)
    {
    }
    /* Eight values beside each other, `offset` bytes after the start: the 128-byte swizzle moves 16 bytes as they are. */
    void read_eight(uint32_t offset, float *to, size_t step) const
    {
        const uint32_t plain = start + offset, swizzled = plain ^ ((plain >> 7 & 7) << 4);
        const uint8_t *p = shared_at(b, swizzled, 16, 16);
        if (p == nullptr) {
            fail("a product of what is at shared memory + %u of %zu", swizzled, b.shared_bytes);
        }
        uint16_t bits[8];
        memcpy(bits, p, sizeof(bits));
        for (size_t i = 0; i < 8; i++) {
            to[i * step] = value_of(bits[i]);
        }
    }
    /* 16 k of a row: k is inmost. */
    void read_row(int row, float *to, size_t step) const
    {
        const uint32_t at = (uint32_t)(row / 8) * stride + (uint32_t)(row % 8 * 128);
        read_eight(at, to, step);
        read_eight(at + 16, to + 8 * step, step);
    }
    /* Columns col to col + 7 of k: columns are inmost. */
    void read_columns(int k, int col, float *to) const
    {
        read_eight((uint32_t)(col / 64) * lead + (uint32_t)(k / 8) * stride + (uint32_t)(k % 8 * 128 + col % 64 * 2), to,
                   1);
    }
};

/* Of thread t's registers the one that has (row, column of k). */
static float from_registers(const GroupProduct &p, int row, int k)
{
    const int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2, reg = k / 8 * 2 + row % 16 / 8;
    const uint32_t word = p.a[(size_t)thread][reg];
    return value_of((uint16_t)(word >> 16 * (k % 2)));
}

/* W columns of a row; in registers over k. */
template <int W> static inline void add_to_columns(float *d, const float *a, const float *b, size_t b_step)
{
    float sum[W];
    memcpy(sum, d, sizeof(sum));
    for (int k = 0; k < K; k++) {
        for (int i = 0; i < W; i++) {
            sum[i] += a[k] * b[(size_t)k * b_step + (size_t)i];
        }
    }
    memcpy(d, sum, sizeof(sum));
}

/* n: columns, a multiple of 8. */
__attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default"))) static void
add_products(float *d, size_t d_step, const float *a, int n_row, const float *b, size_t b_step, int n)
{
    for (int row = 0; row < n_row; row++, a += K, d += d_step) {
        int col = 0;
        for (; col + 16 <= n; col += 16) {
            add_to_columns<16>(d + col, a, b + col, b_step);
        }
        if (col < n) {
            add_to_columns<8>(d + col, a, b + col, b_step);
        }
    }
}

/* A warpgroup's sums as a matrix, from when the first product is added to them until the last is: (64, N_MAX). */
struct Sums {
    float x[M * N_MAX];

    /* Where a sum of (row, col) is: register 4 (col / 8) + 2 (row % 16 / 8) + col % 2 of a thread. */
    template <class F> static void each(const GroupProduct &p, F f)
    {
        for (int t = 0; t < WARPGROUP; t++) {
            for (int i = 0; i < p.what.n / 2; i++) {
                const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, col = i / 4 * 8 + t % 4 * 2 + i % 2;
                f(p.d[(size_t)t][i], row * N_MAX + col);
            }
        }
    }
    void load(const GroupProduct &p)
    {
        each(p, [&](float &d, int at) { x[at] = d; });
    }
    void store(const GroupProduct &p)
    {
        each(p, [&](float &d, int at) { d = x[at]; });
    }
};

static void execute(const Block &block, const GroupProduct &p, Sums &sums)
{
    static thread_local float a[M * K], b[K * N_MAX];
    const Operand from(block, p.what.a_desc), with(block, p.what.b_desc);
    for (int row = 0; row < M; row++) {
        if (p.what.a == nullptr) {
            from.read_row(row, a + row * K, 1);
            continue;
        }
        for (int k = 0; k < K; k++) {
            a[row * K + k] = from_registers(p, row, k);
        }
    }
    for (int col = 0; col < p.what.n; col += p.what.b_inmost_k ? 1 : 8) {
        if (p.what.b_inmost_k) {
            with.read_row(col, b + col, N_MAX);
            continue;
        }
        for (int k = 0; k < K; k++) {
            with.read_columns(k, col, b + k * N_MAX + col);
        }
    }
    if (!p.what.add) {
        memset(sums.x, 0, sizeof(sums.x));
    }
    add_products(sums.x, N_MAX, a, M, b, N_MAX, p.what.n);
}

static bool is_complete(const Warpgroup &g, uint64_t end)
{
    return g.n_executed < end && !g.pending.empty() && g.pending.front().n_issued == WARPGROUP;
}

/* Products that are added to the same registers one after the other pass through them once. */
static void execute_until(Warpgroup &g, const Block &b, uint64_t end)
{
    static thread_local Sums sums;
    while (is_complete(g, end)) {
        const GroupProduct first = g.pending.front();
        sums.load(first);
        while (is_complete(g, end) && g.pending.front().d == first.d && g.pending.front().what.n == first.what.n) {
            execute(b, g.pending.front(), sums);
            g.pending.pop_front();
            g.n_executed++;
        }
        sums.store(first);
    }
}

void multiply(const Product &what)
{
    Thread &t = me();
    Warpgroup &g = *t.group;
    const size_t i = (size_t)(t.n_product++ - g.n_executed), lane = t.index.x % WARPGROUP;
    if (i >= g.pending.size()) {
        g.pending.emplace_back();
        g.pending.back().what = what;
    }
    GroupProduct &p = g.pending[i];
    if (p.what.n != what.n || p.what.a_desc != what.a_desc || p.what.b_desc != what.b_desc || p.what.add != what.add ||
        (p.what.a == nullptr) != (what.a == nullptr) || what.n > N_MAX) {
        fail("its product, of %d columns, is not that of the warpgroup's first thread, of %d", what.n, p.what.n);
    }
    p.d[lane] = what.d, p.a[lane] = what.a;
    if (++p.n_issued == WARPGROUP) {
        if (run_now->draw->one_in(2)) {
            execute_until(g, *t.block, g.n_executed + i + 1);
        }
        wake(g.waiting);
    }
}

void multiply_commit()
{
    Thread &t = me();
    if (t.n_group - t.n_waited >= N_GROUP_MAX) {
        fail("more than %d groups of products without a wait", (int)N_GROUP_MAX);
    }
    t.group_end[t.n_group++ % N_GROUP_MAX] = t.n_product;
}

void multiply_wait(int n_left)
{
    Thread &t = me();
    Warpgroup &g = *t.group;
    uint64_t end = 0;
    while (t.n_group - t.n_waited > (uint64_t)n_left) {
        end = t.group_end[t.n_waited++ % N_GROUP_MAX];
    }
    execute_until(g, *t.block, end);
    while (g.n_executed < end) {
        g.waiting.push_back(&t);
        wait("the matrix units");
        execute_until(g, *t.block, end);
    }
}

/* ---- a warp's ---- */

struct WarpProduct {
    float *c[4];
    uint32_t a[4], b[2];
};

static void unpack(uint32_t word, float &x, float &y)
{
    x = value_of((uint16_t)word), y = value_of((uint16_t)(word >> 16));
}

static void execute_warp(const uint64_t *lane)
{
    float a[16 * K], b[K * 8], c[16 * 8];
    for (int l = 0; l < WARP; l++) {
        const WarpProduct &p = *(const WarpProduct *)(uintptr_t)lane[l];
        const int row = l / 4, k = l % 4 * 2;
        for (int i = 0; i < 4; i++) {
            float *to = a + (row + i % 2 * 8) * K + k + i / 2 * 8;
            unpack(p.a[i], to[0], to[1]);
            c[(row + i / 2 * 8) * 8 + k + i % 2] = *p.c[i];
        }
        for (int i = 0; i < 2; i++) {
            unpack(p.b[i], b[(k + 8 * i) * 8 + row], b[(k + 8 * i + 1) * 8 + row]);
        }
    }
    add_products(c, 8, a, 16, b, 8, 8);
    for (int l = 0; l < WARP; l++) {
        const WarpProduct &p = *(const WarpProduct *)(uintptr_t)lane[l];
        for (int i = 0; i < 4; i++) {
            *p.c[i] = c[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2];
        }
    }
}

struct WarpLoad {
    uint32_t addr, *r;
    bool turned;
};

static void execute_load(const uint64_t *lane)
{
    const Block &b = *me().block;
    for (int l = 0; l < WARP; l++) {
        const WarpLoad &to = *(const WarpLoad *)(uintptr_t)lane[l];
        for (int m = 0; m < 4; m++) {
            uint16_t v[2];
            for (int i = 0; i < 2; i++) {
                const int row = to.turned ? l % 4 * 2 + i : l / 4, col = to.turned ? l / 4 : l % 4 * 2 + i;
                const uint32_t at = ((const WarpLoad *)(uintptr_t)lane[m * 8 + row])->addr & 0xffffff;
                const uint8_t *p = shared_at(b, at, 16, 16);
                if (p == nullptr) {
                    fail("a matrix's row at shared memory + %u of %zu", at, b.shared_bytes);
                }
                memcpy(&v[i], p + 2 * col, sizeof(v[i]));
            }
            to.r[m] = (uint32_t)v[1] << 16 | v[0];
        }
    }
}

static void load(uint32_t (&r)[4], uint32_t addr, bool turned)
{
    const WarpLoad mine{addr, r, turned};
    meet_warp(turned ? "ldmatrix.trans" : "ldmatrix", (uint64_t)(uintptr_t)&mine, execute_load);
}

} // namespace soft_gpu

namespace gr
{

void multiply_16x8(float &c0, float &c1, float &c2, float &c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                   uint32_t b0, uint32_t b1)
{
    const soft_gpu::WarpProduct mine{{&c0, &c1, &c2, &c3}, {a0, a1, a2, a3}, {b0, b1}};
    soft_gpu::meet_warp("mma", (uint64_t)(uintptr_t)&mine, soft_gpu::execute_warp);
}

void load_matrices(uint32_t (&r)[4], uint32_t addr)
{
    soft_gpu::load(r, addr, false);
}

void load_matrices_turned(uint32_t (&r)[4], uint32_t addr)
{
    soft_gpu::load(r, addr, true);
}

} // namespace gr
