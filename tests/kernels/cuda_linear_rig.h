/* A linear layer of the CUDA kernels and calls of it, for the checks of its sums and of what becomes of them. C++ host
 * code. */
#ifndef GR_TESTS_KERNELS_CUDA_LINEAR_RIG_H
#define GR_TESTS_KERNELS_CUDA_LINEAR_RIG_H

#include "kernels/cuda/linear/linear.h"
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_rig.h"

#include <string>

static constexpr int ROW_MAX = 256, GUARD = 64; /* guard: values before and after outputs */

/* A matrix, its 256 rows of x, and the sums of the first 256 rows as the kernel made them together. */
struct layer {
    int n_out, n_in;
    gr_cuda_cut cut;            /* width 0: the formula's */
    gr_segments segments{};     /* of a call that adds, or leaves parts */
    std::vector<uint16_t> w, x; /* row-major */
    dev<uint16_t> d_w;
    dev<uint8_t> packed;
    std::vector<float> sum; /* (256, n_out) */
    layer(int n_out_, int n_in_, gr_cuda_cut cut_ = {})
        : n_out(n_out_), n_in(n_in_), cut(cut_), w((size_t)n_out_ * n_in_), x((size_t)ROW_MAX * n_in_), d_w(w.size()),
          packed(gr_cuda_linear_bytes(n_out_, n_in_, cut_))
    {
        rng g{(uint64_t)n_out * 7919 + (uint64_t)n_in};
        const float scale = sqrtf(3.0f / (float)n_in);
        for (auto &v : w) {
            v = bf16_of(scale * g.unit());
        }
        for (auto &v : x) {
            v = bf16_of(g.unit());
        }
        CUDA_OK(cudaMemcpy(d_w.p, w.data(), w.size() * 2, cudaMemcpyHostToDevice));
    }
};

static inline bool pack(const layer &l, uint8_t *to, int row0, int n_row, int step, int from)
{
    const gr_cuda_linear_pack_args a{l.d_w.p + (size_t)from * l.n_in, to, l.n_out, l.n_in, row0, n_row, step, l.cut};
    return gr_cuda_linear_pack(&a, nullptr) == GR_OK;
}

static inline layer packed_layer(int n_out, int n_in, gr_cuda_cut cut)
{
    layer l(n_out, n_in, cut);
    CUDA_OK(cudaMemset(l.packed.p, 0, l.packed.n));
    if (!pack(l, l.packed.p, 0, n_out, 1, 0)) {
        report("a layer", false, "packing");
    }
    return l;
}

/* Inputs [begin, end) of a layer as a layer. */
static inline layer part_of(const layer &whole, int begin, int end, gr_cuda_cut cut)
{
    layer l(whole.n_out, end - begin, cut);
    for (int r = 0; r < whole.n_out; r++) {
        std::copy_n(&whole.w[(size_t)r * whole.n_in + begin], end - begin, &l.w[(size_t)r * l.n_in]);
    }
    for (int r = 0; r < ROW_MAX; r++) {
        std::copy_n(&whole.x[(size_t)r * whole.n_in + begin], end - begin, &l.x[(size_t)r * l.n_in]);
    }
    CUDA_OK(cudaMemcpy(l.d_w.p, l.w.data(), l.w.size() * 2, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemset(l.packed.p, 0, l.packed.n));
    if (!pack(l, l.packed.p, 0, l.n_out, 1, 0)) {
        report("a layer", false, "packing");
    }
    return l;
}

/* Rows `row` of x as tiles; rows after them, up to whole tiles, are NaN. */
static inline std::vector<uint16_t> tiles_of(const layer &l, const std::vector<int> &row)
{
    std::vector<uint16_t> t(gr_cuda_tile_bytes(std::max((int)row.size(), 1), l.n_in) / 2, 0x7fc1);
    for (size_t i = 0; i < row.size(); i++) {
        for (int c = 0; c < l.n_in; c++) {
            t[gr_cuda_tile_at((int)i, c, l.n_in)] = l.x[(size_t)row[i] * l.n_in + c];
        }
    }
    return t;
}

static inline std::vector<int> rows(int n, int first = 0, int modulo = ROW_MAX)
{
    std::vector<int> r;
    for (int i = 0; i < n; i++) {
        r.push_back((first + i) % modulo);
    }
    return r;
}

/* One call over rows of x, as T; `before` is what y holds at first, empty: all bits set. Rows past the true number and
 * the guard bands must stay; else `intact` becomes false. */
template <class T> struct linear_call {
    const layer &l;
    gr_cuda_linear_out out;
    int stride, bucket;
    const float *bias = nullptr;
    std::vector<T> before;
    bool ok = true, intact = true;

    std::vector<T> run(const std::vector<int> &row)
    {
        const size_t n =
            out == GR_CUDA_OUT_SILU ? gr_cuda_tile_bytes(bucket, l.n_out / 2) / 2 : (size_t)bucket * (size_t)stride;
        dev<uint16_t> x(tiles_of(l, row));
        dev<int32_t> n_true(std::vector<int32_t>{(int32_t)row.size()});
        dev<T> y(n + 2 * GUARD);
        y.poison();
        if (!before.empty()) {
            CUDA_OK(cudaMemcpy(y.p + GUARD, before.data(), n * sizeof(T), cudaMemcpyHostToDevice));
        }
        const std::vector<T> old = y.get();
        gr_cuda_linear_args a{l.packed.p, l.n_out, l.n_in, x.p,      bias, y.p + GUARD,
                              out,        stride,  bucket, n_true.p, l.cut};
        a.segments = out == GR_CUDA_OUT_ADD || out == GR_CUDA_OUT_PART ? l.segments : gr_segments{};
        ok = ok && gr_cuda_linear(&a, nullptr) == GR_OK;
        const std::vector<T> all = y.get();
        const std::vector<bool> mine = written((int)row.size(), n);
        for (size_t i = 0; i < all.size(); i++) {
            const bool inside = i >= GUARD && i < GUARD + n && mine[i - GUARD];
            intact = intact && (inside || memcmp(&all[i], &old[i], sizeof(T)) == 0);
        }
        return std::vector<T>(all.begin() + GUARD, all.end() - GUARD);
    }

    std::vector<bool> written(int n_row, size_t n) const
    {
        std::vector<bool> mine(n, false);
        for (int r = 0; r < n_row; r++) {
            for (int c = 0; c < (out == GR_CUDA_OUT_SILU ? l.n_out / 2 : l.n_out); c++) {
                mine[out == GR_CUDA_OUT_SILU ? gr_cuda_tile_at(r, c, l.n_out / 2) : (size_t)r * stride + c] = true;
            }
        }
        return mine;
    }
};

static inline std::string shape_of(const layer &l)
{
    const std::string shape = std::to_string(l.n_out) + " x " + std::to_string(l.n_in);
    return l.cut.width == 0 ? shape : shape + " in " + std::to_string(l.cut.width) + "/" + std::to_string(l.cut.parts);
}

static inline void report_count(const char *name, const layer &l, size_t n_differ, bool sound)
{
    char s[100], t[160];
    snprintf(t, sizeof(t), "%s %s", name, shape_of(l).c_str());
    snprintf(s, sizeof(s), "%zu values differ%s", n_differ, sound ? "" : "; a row or guard band was overwritten");
    report(t, n_differ == 0 && sound, s);
}

#endif
