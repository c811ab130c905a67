/* What layers of some families do beside the linear layers: heads with norms and biases, activations of gate and up
 * with biases, against plain loops in double. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_rig.h"

#include "kernels/cuda/linear/heads.h"
#include "kernels/cuda/linear/silu.h"

static std::vector<float> random_floats(rng &g, size_t n, float scale)
{
    std::vector<float> v(n);
    for (auto &x : v) {
        x = scale * g.unit();
    }
    return v;
}

/* bf16 of a value that is off by a few roundings of f32. */
static bool is_near(uint16_t got, double want)
{
    return std::abs((double)bf16_value(got) - want) <= 0x1p-8 * std::abs(want) + 1e-6;
}

static bool launched(enum gr_status st)
{
    CUDA_OK(cudaDeviceSynchronize());
    return st == GR_OK;
}

/* ---- heads ---- */

struct heads_case {
    shape m;
    int n_row, n_true;
    bool normed;
};

struct heads_data {
    heads_case c;
    int n_pos = 50, n_block, x_stride, q_stride;
    std::vector<float> x, q_norm, k_norm, cos, sin;
    std::vector<int32_t> pos, cell;
    float eps = 1e-3f;

    explicit heads_data(const heads_case &c_) : c(c_)
    {
        rng g{(uint64_t)c.m.head_dim * 7 + (uint64_t)c.n_row};
        const int n_head = c.m.n_head + 2 * c.m.n_kv_head, hd = c.m.head_dim;
        n_block = c.n_row / 8 + 2, x_stride = n_head * hd + 12, q_stride = c.m.n_head * hd + 8;
        x = random_floats(g, (size_t)c.n_row * x_stride, 3.0f);
        q_norm = random_floats(g, (size_t)hd, 2.0f), k_norm = random_floats(g, (size_t)hd, 2.0f);
        cos = random_floats(g, (size_t)n_pos * hd / 2, 1.0f), sin = random_floats(g, (size_t)n_pos * hd / 2, 1.0f);
        for (int r = 0; r < c.n_row; r++) {
            pos.push_back(g.below(n_pos)), cell.push_back(2 * (c.n_row - 1 - r) + 1); /* cells between them are free */
        }
    }

    /* Dimensions of a head of row r, before they are rounded. */
    std::vector<double> head(int r, int h) const
    {
        const int hd = c.m.head_dim, half = hd / 2;
        const bool is_q = h < c.m.n_head, is_v = h >= c.m.n_head + c.m.n_kv_head;
        std::vector<double> v, out;
        double sum = 0;
        for (int d = 0; d < hd; d++) {
            v.push_back((double)x[(size_t)r * x_stride + h * hd + d]);
            sum += v.back() * v.back();
        }
        const double inv = 1.0 / sqrt(sum / hd + (double)eps);
        for (int d = 0; c.normed && !is_v && d < hd; d++) {
            v[d] *= inv * (double)(is_q ? q_norm : k_norm)[d];
        }
        out = v;
        for (int d = 0; !is_v && d < half; d++) {
            const double co = (double)cos[(size_t)pos[r] * half + d], si = (double)sin[(size_t)pos[r] * half + d];
            out[d] = v[d] * co - v[d + half] * si, out[d + half] = v[d + half] * co + v[d] * si;
        }
        return out;
    }
};

struct placed_heads {
    std::vector<uint16_t> q, kv;
    bool ok;
};

static placed_heads place(const heads_data &d, int n_true)
{
    const shape m = d.c.m;
    dev<float> x(d.x), qn(d.q_norm), kn(d.k_norm), cos(d.cos), sin(d.sin);
    dev<int32_t> pos(d.pos), cell(d.cell), n(std::vector<int32_t>{n_true});
    dev<uint16_t> q((size_t)d.c.n_row * d.q_stride), kv((size_t)d.n_block * m.n_kv_head * 32 * m.head_dim);
    q.poison(), kv.poison();
    const gr_cuda_heads h{q.p, kv.p, pos.p, cell.p, cos.p, sin.p, d.q_stride, m.n_head, m.n_kv_head, m.head_dim};
    const gr_cuda_place_heads_args a{
        x.p, d.c.normed ? qn.p : nullptr, d.c.normed ? kn.p : nullptr, h, d.c.n_row, d.x_stride, d.eps, n.p};
    const bool ok = launched(gr_cuda_place_heads(&a, nullptr));
    return {q.get(), kv.get(), ok};
}

/* Takes what row r should have written out of `got`, so that what is left is poison. */
static int take_row(const heads_data &d, int r, placed_heads &got)
{
    const shape m = d.c.m;
    const int hd = m.head_dim, lane = d.cell[r] % GR_KV_BLOCK_TOKENS, block = d.cell[r] / GR_KV_BLOCK_TOKENS;
    int n_bad = 0;
    for (int h = 0; h < m.n_head + 2 * m.n_kv_head; h++) {
        const std::vector<double> want = d.head(r, h);
        const int kv_head = (h - m.n_head) % m.n_kv_head;
        const bool is_v = h >= m.n_head + m.n_kv_head;
        for (int i = 0; i < hd; i++) {
            const size_t in_block =
                is_v ? (size_t)gr_cuda_block_size(hd) + gr_cuda_value_at(lane, i) : (size_t)gr_cuda_key_at(lane, i, hd);
            uint16_t &x = h < m.n_head ? got.q[(size_t)r * d.q_stride + h * hd + i]
                                       : got.kv[gr_cuda_block_at(block, kv_head, m.n_kv_head, hd) + in_block];
            n_bad += !is_near(x, want[i]);
            x = 0xffff;
        }
    }
    return n_bad;
}

static bool is_poison(const std::vector<uint16_t> &v)
{
    return std::all_of(v.begin(), v.end(), [](uint16_t x) { return x == 0xffff; });
}

static void check_heads_of(const heads_case &c)
{
    const heads_data d(c);
    placed_heads got = place(d, c.n_true);
    const placed_heads first = place(d, 1);
    const bool same = std::equal(first.q.begin(), first.q.begin() + c.m.n_head * c.m.head_dim, got.q.begin());
    int n_bad = 0;
    for (int r = 0; r < c.n_true; r++) {
        n_bad += take_row(d, r, got);
    }
    char name[100], s[100];
    snprintf(name, sizeof(name), "heads: %d of %d rows, %d/%d of %d%s", c.n_true, c.n_row, c.m.n_head, c.m.n_kv_head,
             c.m.head_dim, c.normed ? ", norms" : "");
    const bool clean = is_poison(got.q) && is_poison(got.kv);
    snprintf(s, sizeof(s), "%d values are wrong; row 0 alone: %s%s", n_bad, same ? "equal bits" : "OTHER BITS",
             clean ? "" : "; WRITTEN ELSEWHERE");
    report(name, got.ok && first.ok && n_bad == 0 && same && clean, s);
}

static void check_refused_heads()
{
    dev<float> f(4096);
    dev<uint16_t> y(4096);
    dev<int32_t> n(std::vector<int32_t>{0, 0});
    const gr_cuda_heads h{y.p, y.p, n.p, n.p, f.p, f.p, 128, 2, 1, 64};
    const gr_cuda_place_heads_args good{f.p, nullptr, nullptr, h, 1, 256, 1e-5f, n.p};
    bool ok = launched(gr_cuda_place_heads(&good, nullptr));
    gr_cuda_place_heads_args a = good;
    a.heads.head_dim = 96;
    ok = ok && gr_cuda_place_heads(&a, nullptr) == GR_EINVAL;
    a = good, a.x_stride = 255;
    ok = ok && gr_cuda_place_heads(&a, nullptr) == GR_EINVAL;
    a = good, a.heads.q_stride = 127;
    ok = ok && gr_cuda_place_heads(&a, nullptr) == GR_EINVAL;
    report("heads: what is refused", ok, "a head of 96, two strides, and the shape that fits is not");
}

/* ---- activations ---- */

static void check_silu_of(int n, int n_row, int n_true)
{
    rng g{(uint64_t)n + (uint64_t)n_row};
    const std::vector<float> x = random_floats(g, (size_t)n_row * 2 * n, 6.0f);
    const std::vector<float> gate = random_floats(g, (size_t)n, 2.0f), up = random_floats(g, (size_t)n, 2.0f);
    dev<float> d_x(x), d_gate(gate), d_up(up);
    dev<int32_t> d_true(std::vector<int32_t>{n_true});
    dev<uint16_t> y(gr_cuda_tile_bytes(n_row, n) / 2 + 64);
    y.poison();
    const gr_cuda_silu_args a{d_x.p, d_gate.p, d_up.p, y.p, n_row, n, d_true.p};
    const bool ok = launched(gr_cuda_silu(&a, nullptr));
    std::vector<uint16_t> got = y.get();
    int n_bad = 0;
    for (int r = 0; r < n_true; r++) {
        for (int i = 0; i < n; i++) {
            const double t = (double)x[((size_t)r * n + i) * 2] + (double)gate[i];
            const double u = (double)x[((size_t)r * n + i) * 2 + 1] + (double)up[i];
            uint16_t &v = got[gr_cuda_tile_at(r, i, n)];
            n_bad += !is_near(v, t / (1.0 + exp(-t)) * u);
            v = 0xffff;
        }
    }
    char name[80], s[80];
    snprintf(name, sizeof(name), "silu with biases: %d of %d rows of %d", n_true, n_row, n);
    snprintf(s, sizeof(s), "%d values are wrong%s", n_bad, is_poison(got) ? "" : "; WRITTEN ELSEWHERE");
    report(name, ok && n_bad == 0 && is_poison(got), s);
}

static void check_refused_silus()
{
    dev<float> f(256);
    dev<uint16_t> y(4096);
    dev<int32_t> n(std::vector<int32_t>{0});
    gr_cuda_silu_args a{f.p, f.p, f.p, y.p, 1, 64, n.p};
    bool ok = launched(gr_cuda_silu(&a, nullptr));
    a.n = 96;
    ok = ok && gr_cuda_silu(&a, nullptr) == GR_EINVAL;
    a.n = 64, a.up_bias = f.p + 1;
    ok = ok && gr_cuda_silu(&a, nullptr) == GR_EINVAL;
    report("silu: what is refused", ok, "a width of 96, an address, and what fits is not");
}

void check_heads(void)
{
    for (bool normed : {false, true}) {
        check_heads_of({{4, 2, 64}, 1, 1, normed});
        check_heads_of({{6, 2, 64}, 19, 17, normed});
        check_heads_of({{14, 2, 64}, 5, 5, normed});
        check_heads_of({{32, 8, 128}, 9, 8, normed});
        if (!quick) {
            check_heads_of({{32, 8, 128}, 64, 61, normed});
            check_heads_of({{28, 4, 128}, 256, 200, normed});
        }
    }
    check_refused_heads();
    check_silu_of(64, 3, 2), check_silu_of(1088, 5, 5);
    if (!quick) {
        check_silu_of(14336, 64, 63), check_silu_of(14336, 256, 200);
    }
    check_refused_silus();
}
