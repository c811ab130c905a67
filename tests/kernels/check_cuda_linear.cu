/* The linear layers of the CUDA kernels: sums against double, and the promise that a row's bits depend on that row and
 * the shape only. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_linear_rig.h"

/* Sums of a row against double, ||y - ref|| / ||ref||. The matrix units add f32 and cut off what does not fit: up to
 * 2^-23 of the sum so far at each of n_in / 16 steps, one-sided, so n_in / 16 * 2^-24 in the mean: 5e-5 at 14336. */
static constexpr double TOLERANCE = 1e-4;
/* silu(gate) * up rounded to bf16: 2^-8 at most, and what the exponential adds. */
static constexpr double TOLERANCE_SILU = 4e-3;

/* Sums of rows, each with the bits that it had among 256? */
static size_t count_differing(const layer &l, const std::vector<int> &row, int bucket, bool &sound)
{
    linear_call<float> c{l, GR_CUDA_OUT_F32, l.n_out + 6, bucket};
    const std::vector<float> y = c.run(row);
    size_t n = 0;
    for (size_t i = 0; i < row.size(); i++) {
        for (int o = 0; o < l.n_out; o++) {
            n += memcmp(&y[i * c.stride + o], &l.sum[(size_t)row[i] * l.n_out + o], 4) != 0;
        }
    }
    sound = sound && c.ok && c.intact;
    return n;
}

static double sum_of(const layer &l, int row, int o)
{
    double s = 0;
    for (int k = 0; k < l.n_in; k++) {
        s += (double)bf16_value(l.x[(size_t)row * l.n_in + k]) * (double)bf16_value(l.w[(size_t)o * l.n_in + k]);
    }
    return s;
}

/* All 256 rows together: the judge is double, at every `step`-th output of some rows. */
static void check_sums(layer &l, int step)
{
    linear_call<float> c{l, GR_CUDA_OUT_F32, l.n_out, ROW_MAX};
    l.sum = c.run(rows(ROW_MAX));
    double worst = 0;
    for (int row : {0, 7, 8, 63, 64, 130, 255}) {
        double err = 0, ref = 0;
        for (int o = row % step; o < l.n_out; o += step) {
            const double want = sum_of(l, row, o), d = want - (double)l.sum[(size_t)row * l.n_out + o];
            err += d * d, ref += want * want;
        }
        worst = std::max(worst, err == err ? sqrt(err / ref) : 1e9);
    }
    char t[60], s[80];
    snprintf(t, sizeof(t), "sums %s", shape_of(l).c_str());
    snprintf(s, sizeof(s), "error %.2e, allowed %.0e%s", worst, TOLERANCE, c.intact ? "" : "; guard bands overwritten");
    report(t, worst <= TOLERANCE && c.ok && c.intact, s);
}

static void check_packing(layer &l)
{
    dev<uint8_t> pieces(l.packed.n);
    CUDA_OK(cudaMemset(l.packed.p, 0, l.packed.n));
    CUDA_OK(cudaMemset(pieces.p, 0, pieces.n));
    const int first = l.n_out / 3 + 1;
    bool ok = pack(l, l.packed.p, 0, l.n_out, 1, 0) && pack(l, pieces.p, first, l.n_out - first, 1, first) &&
              pack(l, pieces.p, 0, first, 1, 0);
    report_count("packed in pieces", l, 0, ok && pieces.get() == l.packed.get());
    /* Even rows from one matrix and odd ones from another are what a matrix of both in turn is. */
    std::vector<uint16_t> both(l.w.size());
    const size_t n = (size_t)l.n_in;
    for (int r = 0; r < l.n_out; r++) {
        std::copy_n(&l.w[n * (size_t)(r % 2 * (l.n_out / 2) + r / 2)], n, &both[n * (size_t)r]);
    }
    dev<uint16_t> d_both(both);
    dev<uint8_t> whole(l.packed.n);
    CUDA_OK(cudaMemset(whole.p, 0, whole.n));
    CUDA_OK(cudaMemset(pieces.p, 0, pieces.n));
    const gr_cuda_linear_pack_args a{d_both.p, whole.p, l.n_out, l.n_in, 0, l.n_out, 1, l.cut};
    ok = gr_cuda_linear_pack(&a, nullptr) == GR_OK && pack(l, pieces.p, 0, l.n_out / 2, 2, 0) &&
         pack(l, pieces.p, 1, l.n_out / 2, 2, l.n_out / 2);
    report_count("packed in turns", l, 0, ok && pieces.get() == whole.get());
}

/* Other kinds of output are made of the same sums, so their bits are known. */
static void check_kinds(const layer &l)
{
    const int n_row = 45, bucket = 60, stride = l.n_out + 10;
    rng g{5};
    std::vector<float> bias((size_t)l.n_out), old((size_t)bucket * stride);
    for (auto &v : bias) {
        v = g.unit();
    }
    for (auto &v : old) {
        v = g.unit();
    }
    const dev<float> d_bias(bias);
    for (int with_bias = 0; with_bias < 2; with_bias++) {
        linear_call<uint16_t> h{l, GR_CUDA_OUT_BF16, stride, bucket, with_bias ? d_bias.p : nullptr, {}};
        linear_call<float> f{l, GR_CUDA_OUT_F32, stride, bucket, with_bias ? d_bias.p : nullptr, {}};
        linear_call<float> a{l, GR_CUDA_OUT_ADD, stride, bucket, with_bias ? d_bias.p : nullptr, old};
        const std::vector<uint16_t> yh = h.run(rows(n_row));
        const std::vector<float> yf = f.run(rows(n_row)), ya = a.run(rows(n_row));
        size_t n = 0;
        for (int r = 0; r < n_row; r++) {
            for (int o = 0; o < l.n_out; o++) {
                const size_t at = (size_t)r * stride + o;
                const float s = l.sum[(size_t)r * l.n_out + o], want = with_bias ? s + bias[o] : s;
                n += (yh[at] != bf16_of(want)) + (yf[at] != want) + (ya[at] != old[at] + want);
            }
        }
        report_count(with_bias ? "kinds, with a bias" : "kinds of output", l, n,
                     h.ok && f.ok && a.ok && h.intact && f.intact && a.intact);
    }
}

static void check_silu(const layer &l)
{
    double worst = 0;
    bool sound = true;
    std::vector<uint16_t> all;
    size_t n_differ = 0;
    for (int n_row : {200, 64, 13, 1}) {
        linear_call<uint16_t> c{l, GR_CUDA_OUT_SILU, 0, n_row == 13 ? 32 : n_row, nullptr, {}};
        const std::vector<uint16_t> y = c.run(rows(n_row));
        all = n_row == 200 ? y : all;
        for (int r = 0; r < n_row; r++) {
            double err = 0, ref = 0;
            for (int i = 0; i < l.n_out / 2; i++) {
                const size_t at = gr_cuda_tile_at(r, i, l.n_out / 2);
                const double gate = l.sum[(size_t)r * l.n_out + 2 * i], up = l.sum[(size_t)r * l.n_out + 2 * i + 1];
                const double want = gate / (1.0 + exp(-gate)) * up, d = want - (double)bf16_value(y[at]);
                err += d * d, ref += want * want;
                n_differ += y[at] != all[at];
            }
            worst = std::max(worst, err == err ? sqrt(err / ref) : 1e9);
        }
        sound = sound && c.ok && c.intact;
    }
    char t[60], s[80];
    snprintf(t, sizeof(t), "silu %s", shape_of(l).c_str());
    snprintf(s, sizeof(s), "error %.2e, allowed %.0e", worst, TOLERANCE_SILU);
    report(t, worst <= TOLERANCE_SILU && sound, s);
    report_count("silu, 1 to 200 rows", l, n_differ, sound);
}

/* Bits of rows in passes of all sizes; `thorough`: at every index, and each alone. */
static void check_rows(const layer &l, bool thorough)
{
    bool sound = true;
    size_t n = 0;
    for (int n_row = 2; n_row <= 64; n_row += thorough || (n_row < 4 && !quick) || n_row == 63 ? 1 : quick ? 61 : 12) {
        n += count_differing(l, rows(n_row, n_row), n_row % 3 ? 64 : n_row, sound);
    }
    report_count("rows among 2 to 64", l, n, sound);
    n = 0;
    for (int n_row : {65, 71, 100, 127, 128, 129, 192, 193, 250, 255}) {
        n += thorough || (quick ? n_row == 193 : n_row % 2)
                 ? count_differing(l, rows(n_row, 3 * n_row), n_row % 3 ? 256 : n_row, sound)
                 : 0;
    }
    n += count_differing(l, rows(7, 5), 200, sound); /* a bucket of many, few rows */
    report_count("rows among 65 to 256", l, n, sound);
    n = 0;
    for (int r = 0; r < ROW_MAX; r += thorough ? 1 : quick ? 201 : 51) {
        n += count_differing(l, {r}, r % 2 ? 1 : 64, sound);
    }
    report_count("rows alone", l, n, sound);
    n = 0;
    for (int first = 0; first < 64; first += thorough ? 1 : 29) {
        n += count_differing(l, rows(64, first, 64), 64, sound);
    }
    for (int first = 0; thorough && first < 256; first += 5) {
        n += count_differing(l, rows(256, first), 256, sound);
    }
    report_count("rows at other indices", l, n, sound);
    n = count_differing(l, {}, 64, sound) + count_differing(l, {}, 256, sound);
    report_count("no rows at all", l, n, sound);
}

static void check_layer(int n_out, int n_in, bool silu, bool thorough, int step, gr_cuda_cut cut = {})
{
    layer l(n_out, n_in, cut);
    check_packing(l);
    check_sums(l, step);
    check_kinds(l);
    check_rows(l, thorough);
    if (silu) {
        check_silu(l);
    }
}

/* Every cut that a file of measured shapes may ask for: sums against double, a row's bits in passes of all sizes. The
 * last tile is not full in most of them, k is not halved evenly. */
static void check_cuts()
{
    const int n_out = quick ? 384 : 640, n_in = quick ? 192 : 2112;
    for (int width : gr_cuda_cut_width) {
        for (int parts : {1, 2}) {
            if (gr_cuda_cut_allowed(n_in, {width, parts})) {
                check_layer(n_out, n_in, true, false, 1, {width, parts});
            }
        }
    }
    if (quick) {
        return;
    }
    check_layer(6144, 4096, false, false, 19, {128, 1});
    check_layer(28672, 4096, true, false, 97, {96, 2});
}

/* The formula's cut, asked for by name, is what is taken without one. */
static void check_formula()
{
    const int n_out = 1040, n_in = 4160;
    layer without(n_out, n_in), named(n_out, n_in, gr_cuda_linear_cut(n_out, n_in));
    size_t n = 0;
    bool ok = true;
    for (layer *l : {&without, &named}) {
        CUDA_OK(cudaMemset(l->packed.p, 0, l->packed.n));
        ok = ok && pack(*l, l->packed.p, 0, n_out, 1, 0);
        linear_call<float> c{*l, GR_CUDA_OUT_F32, n_out, ROW_MAX};
        l->sum = c.run(rows(ROW_MAX));
        ok = ok && c.ok && c.intact;
    }
    for (size_t i = 0; i < without.sum.size(); i++) {
        n += memcmp(&without.sum[i], &named.sum[i], sizeof(float)) != 0;
    }
    report_count("the formula's cut, named,", named, n, ok && without.packed.get() == named.packed.get());
}

/* Pairs of layers that feed each other and add to y in one graph, where each may start before the one before has ended;
 * every pair has an x of its own, so that none can use what an older one left. */
struct chain {
    static constexpr int N_OUT = 640;
    const int N = quick ? 256 : 1024, N_STEP = quick ? 3 : 12;
    layer up{2 * N, N}, down{N_OUT, N};
    std::vector<dev<uint16_t>> x;
    dev<uint16_t> h0, h1;
    dev<float> y;
    dev<int32_t> n_true;
    int n_row;
    cudaStream_t st;
    bool ok;

    explicit chain(int n)
        : h0(gr_cuda_tile_bytes(n, N) / 2), h1(h0.n), y((size_t)n * N_OUT), n_true(std::vector<int32_t>{n}), n_row(n)
    {
        CUDA_OK(cudaStreamCreate(&st));
        CUDA_OK(cudaMemset(up.packed.p, 0, up.packed.n));
        CUDA_OK(cudaMemset(down.packed.p, 0, down.packed.n));
        ok = pack(up, up.packed.p, 0, 2 * N, 1, 0) && pack(down, down.packed.p, 0, N_OUT, 1, 0);
        for (int i = 0; i < N_STEP; i++) {
            std::vector<uint16_t> t = tiles_of(up, rows(n, 17 * i));
            for (auto &v : t) {
                v = bf16_of(4.0f * bf16_value(v)); /* SiLU makes small values smaller */
            }
            x.emplace_back(t);
        }
    }
    ~chain()
    {
        (void)cudaStreamDestroy(st);
    }

    void call(const layer &l, const uint16_t *from, void *to, gr_cuda_linear_out out, bool wait)
    {
        const gr_cuda_linear_args a{l.packed.p, l.n_out, l.n_in, from, nullptr, to, out, N_OUT, n_row, n_true.p};
        ok = ok && gr_cuda_linear(&a, st) == GR_OK;
        if (wait) {
            CUDA_OK(cudaStreamSynchronize(st));
        }
    }

    void run(bool wait)
    {
        CUDA_OK(cudaMemsetAsync(y.p, 0, y.n * 4, st));
        for (const dev<uint16_t> &from : x) {
            call(up, from.p, h0.p, GR_CUDA_OUT_SILU, wait);
            call(down, h0.p, y.p, GR_CUDA_OUT_ADD, wait);
            call(up, h0.p, h1.p, GR_CUDA_OUT_SILU, wait);
            call(down, h1.p, y.p, GR_CUDA_OUT_ADD, wait);
        }
    }
};

static void check_order(int n_row)
{
    chain c(n_row);
    c.run(true);
    const std::vector<float> want = c.y.get();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_OK(cudaStreamBeginCapture(c.st, cudaStreamCaptureModeThreadLocal));
    c.run(false);
    CUDA_OK(cudaStreamEndCapture(c.st, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    int n_wrong = 0;
    const int n_run = quick ? 12 : 40;
    for (int i = 0; i < n_run; i++) {
        c.y.poison();
        CUDA_OK(cudaGraphLaunch(exec, c.st));
        CUDA_OK(cudaStreamSynchronize(c.st));
        n_wrong += memcmp(c.y.get().data(), want.data(), want.size() * 4) != 0;
    }
    double norm = 0;
    for (float v : want) {
        norm += (double)v * (double)v;
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));
    char t[60], s[80];
    snprintf(t, sizeof(t), "%d layers in a graph, %d rows", 4 * c.N_STEP, n_row);
    snprintf(s, sizeof(s), "%d of %d launches differ from one at a time", n_wrong, n_run);
    report(t, c.ok && n_wrong == 0 && norm > 0 && std::isfinite(norm), s);
}

static void check_bad_arguments()
{
    dev<uint16_t> x(64 * 64), w(256 * 64);
    dev<float> y(64 * 64);
    dev<int32_t> n(std::vector<int32_t>{1});
    const gr_cuda_linear_args good{w.p, 64, 64, x.p, nullptr, y.p, GR_CUDA_OUT_F32, 64, 1, n.p};
    gr_cuda_linear_args bad[12] = {good, good, good, good, good, good, good, good, good, good, good, good};
    bad[0].n_in = 72, bad[1].n_out = 24, bad[2].y_stride = 63, bad[3].n_row = 0;
    bad[4].out = GR_CUDA_OUT_SILU, bad[5].x = x.p + 1;
    bad[6].cut = {17, 1}, bad[7].cut = {248, 2}, bad[8].cut = {16, 2}; /* one box cannot be halved */
    bad[9].norm = {(gr_cuda_square *)(y.p + 1), 0.0f};
    bad[10].next = {y.p, w.p, (gr_cuda_square *)y.p, nullptr, 0, 0}; /* not added */
    bad[11].out = GR_CUDA_OUT_ADD, bad[11].next = {y.p, w.p, (gr_cuda_square *)y.p, w.p, 64, 8};
    const gr_status want[12] = {GR_EUNSUPPORTED, GR_EUNSUPPORTED, GR_EINVAL, GR_EINVAL, GR_EUNSUPPORTED, GR_EINVAL,
                                GR_EINVAL,       GR_EINVAL,       GR_EINVAL, GR_EINVAL, GR_EINVAL,       GR_EINVAL};
    int n_wrong = gr_cuda_linear(&good, nullptr) != GR_OK;
    for (int i = 0; i < 12; i++) {
        n_wrong += gr_cuda_linear(&bad[i], nullptr) != want[i];
    }
    const gr_cuda_linear_pack_args pack_bad[] = {
        {x.p, w.p, 64, 64, 60, 5, 1}, {x.p, w.p, 64, 64, 0, 33, 2}, {x.p, w.p, 64, 64, -1, 2, 1}};
    for (const auto &p : pack_bad) {
        n_wrong += gr_cuda_linear_pack(&p, nullptr) != GR_EINVAL;
    }
    CUDA_OK(cudaDeviceSynchronize());
    report("linear: bad arguments", n_wrong == 0, n_wrong == 0 ? "refused" : "one passed, or with another status");
}

void check_linear_layers()
{
    check_bad_arguments();
    if (quick) {
        check_layer(16, 64, false, false, 1);
        check_layer(384, 384, true, false, 1);
        check_layer(256, 2112, true, false, 1);           /* parts of k in two blocks, of unequal length */
        check_layer(1120, 128, false, false, 1, {16, 2}); /* several tiles a block, in parts */
        check_layer(2560, 64, true, false, 1, {16, 1});   /* several tiles a block */
        check_cuts();
        check_order(20), check_order(200);
        return;
    }
    check_layer(16, 64, false, true, 1);
    check_layer(384, 384, true, true, 1); /* the demo models */
    check_layer(320, 192, false, true, 1);
    check_layer(640, 768, true, false, 1);
    check_layer(384, 1152, true, false, 1);
    check_layer(256, 2112, true, true, 1); /* parts of k in two blocks, of unequal length */
    check_layer(384, 1024, false, false, 1);
    check_layer(4096, 384, true, false, 3);
    check_layer(1040, 4160, false, false, 3); /* a last tile that is not full */
    check_layer(7744, 4096, false, false, 37);
    check_layer(13264, 2048, false, false, 37); /* several tiles a block, in parts */
    check_layer(16000, 4096, false, false, 37); /* where the cheapest cut would halve the k of 248 outputs */
    check_layer(48000, 64, true, false, 5);     /* several tiles a block */
    check_layer(6144, 4096, false, false, 19);  /* Llama-3.1-8B */
    check_layer(4096, 4096, false, false, 19);
    check_layer(28672, 4096, true, false, 97);
    check_layer(4096, 14336, false, false, 37);
    check_formula();
    check_cuts();
    for (int n_row : {1, 20, 64, 200}) {
        check_order(n_row);
    }
}
