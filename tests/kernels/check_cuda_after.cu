/* Linear layers one after another in one kernel: the bits of one call a layer, in everything that they write. */
#include "tests/kernels/cuda_linear_rig.h"

#include "kernels/cuda/device/kv_layout.h"

#include <numeric>

/* The layers between two attentions, and what they are made of: o, gate + up, down, the next layer's q + k + v. */
struct block_of_layers {
    shape m;
    int hidden, ffn;
    layer o, gate_up, down, qkv;
    dev<float> w_mlp, w_next, cos, sin;
    dev<int32_t> pos, cell;
    static constexpr int N_POS = 100, N_BLOCK = 8, N_ROW = 64;

    static std::vector<float> random(size_t n, float around, uint64_t seed)
    {
        std::vector<float> v(n);
        rng g{seed};
        for (auto &x : v) {
            x = around + 0.5f * g.unit();
        }
        return v;
    }

    static std::vector<int32_t> numbers(int n, int below, uint64_t seed) /* below 0: a permutation */
    {
        std::vector<int32_t> v((size_t)n);
        rng g{seed};
        std::iota(v.begin(), v.end(), 0);
        for (int i = 0; i < n; i++) {
            if (below > 0) {
                v[(size_t)i] = g.below(below);
            } else {
                std::swap(v[(size_t)i], v[(size_t)g.below(i + 1)]);
            }
        }
        return v;
    }

    block_of_layers(shape m_, int hidden_, int ffn_, gr_cuda_cut add, gr_cuda_cut silu, gr_cuda_cut heads)
        : m(m_), hidden(hidden_), ffn(ffn_), o(hidden_, (int)m_.q_size(), add), gate_up(2 * ffn_, hidden_, silu),
          down(hidden_, ffn_, add), qkv((m_.n_head + 2 * m_.n_kv_head) * m_.head_dim, hidden_, heads),
          w_mlp(random((size_t)hidden_, 1.0f, 5)), w_next(random((size_t)hidden_, 1.0f, 6)),
          cos(random((size_t)N_POS * m_.head_dim / 2, 0.0f, 7)), sin(random((size_t)N_POS * m_.head_dim / 2, 0.0f, 8)),
          pos(numbers(N_ROW, N_POS, 9)), cell(numbers(N_BLOCK * 16, 0, 10))
    {
        for (layer *l : {&o, &gate_up, &down, &qkv}) {
            CUDA_OK(cudaMemset(l->packed.p, 0, l->packed.n));
            if (!pack(*l, l->packed.p, 0, l->n_out, 1, 0)) {
                report("layers one after another", false, "packing");
            }
        }
    }
};

/* What they write, poisoned before. */
struct written_by_layers {
    dev<float> x;
    dev<uint16_t> xn, in, act, q, kv, capture;
    dev<gr_cuda_square> o_square, down_square;

    written_by_layers(const block_of_layers &b, int bucket)
        : x(block_of_layers::random((size_t)bucket * b.hidden, 0.0f, 11)), xn(gr_cuda_tile_bytes(bucket, b.hidden) / 2),
          in(xn.n), act(gr_cuda_tile_bytes(bucket, b.ffn) / 2), q((size_t)bucket * b.m.q_size()),
          kv((size_t)block_of_layers::N_BLOCK * b.m.n_kv_head * 32 * b.m.head_dim),
          capture(gr_cuda_tile_bytes(bucket, 2 * b.hidden) / 2), o_square(std::vector<gr_cuda_square>((size_t)bucket)),
          down_square((size_t)bucket)
    {
        for (dev<uint16_t> *d : {&xn, &in, &act, &q, &kv, &capture}) {
            d->poison();
        }
        down_square.poison(); /* o clears it */
    }
};

static std::vector<gr_cuda_linear_args> args_of(const block_of_layers &b, const uint16_t *attended, int bucket,
                                                const int32_t *n_true, written_by_layers &w)
{
    const float eps = 1e-5f;
    gr_cuda_linear_args o{b.o.packed.p, b.hidden,        (int)b.m.q_size(), attended, nullptr,
                          w.x.p,        GR_CUDA_OUT_ADD, b.hidden,          bucket,   n_true};
    o.cut = b.o.cut;
    o.segments = gr_segments_of_o(o.n_in, b.m.n_kv_head);
    o.next = {b.w_mlp.p, w.xn.p, w.o_square.p};
    o.clear = w.down_square.p;
    gr_cuda_linear_args gate_up{b.gate_up.packed.p, 2 * b.ffn, b.hidden, w.xn.p, nullptr, w.act.p,
                                GR_CUDA_OUT_SILU,   0,         bucket,   n_true};
    gate_up.cut = b.gate_up.cut;
    gate_up.norm = {w.o_square.p, eps};
    gr_cuda_linear_args down{b.down.packed.p, b.hidden,        b.ffn,    w.act.p, nullptr,
                             w.x.p,           GR_CUDA_OUT_ADD, b.hidden, bucket,  n_true};
    down.cut = b.down.cut;
    down.segments = gr_segments_of_down(down.n_in);
    down.next = {b.w_next.p, w.in.p, w.down_square.p, w.capture.p, 2 * b.hidden, b.hidden};
    down.clear = w.o_square.p;
    gr_cuda_linear_args qkv{b.qkv.packed.p, b.qkv.n_out,       b.hidden, w.in.p, nullptr,
                            nullptr,        GR_CUDA_OUT_HEADS, 0,        bucket, n_true};
    qkv.cut = b.qkv.cut;
    qkv.norm = {w.down_square.p, eps};
    qkv.heads = {w.q.p,      w.kv.p,        b.pos.p,     b.cell.p, b.cos.p, b.sin.p, (int)b.m.q_size(),
                 b.m.n_head, b.m.n_kv_head, b.m.head_dim};
    return {o, gate_up, down, qkv};
}

template <class T> static size_t count_differing(const dev<T> &a, const dev<T> &b)
{
    const std::vector<T> x = a.get(), y = b.get();
    size_t n = 0;
    for (size_t i = 0; i < x.size(); i++) {
        n += memcmp(&x[i], &y[i], sizeof(T)) != 0;
    }
    return n;
}

/* n_row of bucket rows through the first n_layer layers from `first` on, one by one and as a chain that is run after
 * another one. */
static size_t count_wrong(const block_of_layers &b, int n_row, int bucket, int first, int n_layer, bool &ok)
{
    dev<uint16_t> attended(tiles_of(b.o, rows(n_row, n_row)));
    dev<int32_t> n_true(std::vector<int32_t>{n_row});
    dev<gr_cuda_chain> chain(std::vector<gr_cuda_chain>(1));
    written_by_layers single(b, bucket), together(b, bucket), before(b, bucket);
    const std::vector<gr_cuda_linear_args> one = args_of(b, attended.p, bucket, n_true.p, single),
                                           all = args_of(b, attended.p, bucket, n_true.p, together),
                                           other = args_of(b, attended.p, bucket, n_true.p, before);
    for (int i = 0; i < first; i++) { /* what the chain begins with */
        ok = ok && gr_cuda_linear(&one[(size_t)i], nullptr) == GR_OK &&
             gr_cuda_linear(&all[(size_t)i], nullptr) == GR_OK;
    }
    for (int i = first; i < first + n_layer; i++) {
        ok = ok && gr_cuda_linear(&one[(size_t)i], nullptr) == GR_OK;
    }
    ok = ok && gr_cuda_linear_chain(&other[0], 4, chain.p, nullptr) == GR_OK &&
         gr_cuda_linear_chain(&all[(size_t)first], n_layer, chain.p, nullptr) == GR_OK;
    size_t n = count_differing(single.x, together.x) + count_differing(single.xn, together.xn) +
               count_differing(single.in, together.in) + count_differing(single.act, together.act) +
               count_differing(single.q, together.q) + count_differing(single.kv, together.kv) +
               count_differing(single.capture, together.capture) + count_differing(single.o_square, together.o_square) +
               count_differing(single.down_square, together.down_square);
    const gr_cuda_chain left = chain.get()[0];
    for (int i = 0; i < GR_CUDA_CHAIN_MAX - 1; i++) {
        n += left.made[i] != 0 || left.squared[i] != 0;
    }
    return n + (left.left != 0);
}

static void check_block(const char *what, shape m, int hidden, int ffn, gr_cuda_cut add = {}, gr_cuda_cut silu = {},
                        gr_cuda_cut heads = {})
{
    const block_of_layers b(m, hidden, ffn, add, silu, heads);
    size_t n = 0;
    bool ok = true;
    for (int n_row : {1, 2, 8, 9, 33, 64}) {
        if (quick && n_row != 1 && n_row != 9 && n_row != 64) {
            continue;
        }
        n += count_wrong(b, n_row, n_row, 0, 4, ok);
        n += n_row == 64 ? 0 : count_wrong(b, n_row, 64, 0, 4, ok);
    }
    for (int first = 0; first < 4; first++) {
        for (int n_layer = 1; n_layer + first <= 4; n_layer++) {
            n += quick && first + n_layer == 4 ? 0 : count_wrong(b, 19, 32, first, n_layer, ok);
        }
    }
    char name[100];
    snprintf(name, sizeof(name), "layers one after another, %s", what);
    report_count(name, b.gate_up, n, ok);
}

static void check_refused()
{
    const block_of_layers b({4, 4, 64}, 256, 256, {}, {}, {});
    dev<uint16_t> attended(tiles_of(b.o, rows(8)));
    dev<int32_t> n_true(std::vector<int32_t>{8}), other_true(std::vector<int32_t>{8});
    written_by_layers w(b, 64);
    std::vector<gr_cuda_linear_args> a = args_of(b, attended.p, 64, n_true.p, w);
    const bool can = gr_cuda_can_chain(a.data(), 4);
    a[2].n_row_true = other_true.p;
    const bool others = gr_cuda_can_chain(a.data(), 4);
    a = args_of(b, attended.p, 65, n_true.p, w);
    const bool many = gr_cuda_can_chain(a.data(), 4);
    a = args_of(b, attended.p, 64, n_true.p, w);
    a[1].cut = {248, 1};
    const bool wide = gr_cuda_can_chain(a.data(), 4), none = gr_cuda_can_chain(a.data(), 0);
    report("chains that cannot be", can && !others && !many && !wide && !none,
           "other rows, more than 64, 248 outputs, no layer");
}

void check_layers_after()
{
    const shape demo{6, 2, 64}, llama8b{32, 8, 128};
    check_refused();
    check_block("demo", demo, 384, 1024);
    check_block("one part each", demo, 384, 512, {96, 1}, {192, 1}, {16, 1}); /* all that racecheck can follow */
    check_block("all cuts mixed", demo, 384, 512, {96, 2}, {192, 1}, {16, 2});
    check_block("several tiles a block", {2, 1, 64}, 16 * 136 / 64 * 64, 64 * 18, {16, 1}, {16, 1}, {32, 2});
    if (quick) {
        return;
    }
    check_block("Llama-3.1-8B", llama8b, 4096, 14336);
    for (gr_cuda_cut add :
         {gr_cuda_cut{16, 2}, gr_cuda_cut{32, 1}, gr_cuda_cut{64, 2}, gr_cuda_cut{128, 1}, gr_cuda_cut{224, 2}}) {
        for (gr_cuda_cut silu : {gr_cuda_cut{224, 1}, gr_cuda_cut{64, 2}, gr_cuda_cut{128, 2}, gr_cuda_cut{32, 1}}) {
            check_block("cuts", {3, 1, 128}, 640, 1088, add, silu, {add.width, silu.parts});
        }
    }
}
