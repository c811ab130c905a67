/* Look-up, norms, captures, inputs and outputs against plain loops. Outputs begin as NaN or -1 and are longer than what
 * may be written, so that every write outside is seen. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_rig.h"

#include "kernels/cuda/rows/rows.h"

/* Host memory that the device sees. */
template <class T> struct mapped {
    T *p = nullptr, *d = nullptr;
    explicit mapped(size_t n)
    {
        CUDA_OK(cudaHostAlloc(&p, n * sizeof(T), cudaHostAllocMapped));
        CUDA_OK(cudaHostGetDevicePointer(&d, p, 0));
        memset(p, 0xff, n * sizeof(T));
    }
    mapped(const mapped &) = delete;
    ~mapped()
    {
        cudaFreeHost(p);
    }
};

static void differing(const char *name, size_t n_bad, size_t n)
{
    char s[80];
    snprintf(s, sizeof(s), "%zu of %zu differ", n_bad, n);
    report(name, n_bad == 0, s);
}

template <class T> static void same(const char *name, const std::vector<T> &got, const std::vector<T> &want)
{
    size_t n = 0;
    for (size_t i = 0; i < want.size(); i++) {
        n += memcmp(&got[i], &want[i], sizeof(T)) != 0;
    }
    differing(name, got.size() == want.size() ? n : want.size(), want.size());
}

static bool finish(enum gr_status st)
{
    CUDA_OK(cudaDeviceSynchronize());
    return st == GR_OK;
}

static void check_input(const std::vector<uint32_t> &pieces, const char *name)
{
    rng g{pieces.size() * 77 + 5};
    uint32_t bytes = sizeof(gr_cuda_input_head);
    gr_cuda_input_head head{};
    head.n_part = (uint32_t)pieces.size();
    for (size_t i = 0; i < pieces.size(); i++) {
        bytes += 16 * (uint32_t)g.below(5); /* gaps are not copied */
        head.part[i].offset = bytes, head.part[i].bytes = pieces[i] * 16;
        bytes += pieces[i] * 16;
    }
    const size_t n = bytes + 64;
    mapped<uint8_t> from(n);
    for (size_t i = 0; i < n; i++) {
        from.p[i] = (uint8_t)(g.next() >> 9 & 127);
    }
    memcpy(from.p, &head, sizeof(head));
    std::vector<uint8_t> want(n, 0xff);
    for (size_t i = 0; i < pieces.size(); i++) {
        std::copy_n(from.p + head.part[i].offset, head.part[i].bytes, &want[head.part[i].offset]);
    }
    dev<uint8_t> to(n);
    to.poison();
    const bool launched = finish(gr_cuda_input(from.d, to.p, nullptr));
    same(launched ? name : "input: not launched", to.get(), want);
}

static void check_inputs()
{
    check_input({}, "input: nothing");
    check_input({1}, "input: one piece");
    check_input({3, 0, 1000, 16384, 1, 255, 256, 257, 7, 64, 64, 64, 5, 2, 40000, 9}, "input: 16 parts, 929 KiB");
    check_input({4, 4, 4, 4, 64, 512, 1}, "input: 9 KiB");
}

static void check_output(int n, int n_row, int n_true)
{
    rng g{(uint64_t)n * 5 + (uint64_t)n_row};
    std::vector<float> x((size_t)n_row * n), want((size_t)(n_row + 1) * n);
    for (auto &v : x) {
        v = g.unit();
    }
    memset(want.data(), 0xff, want.size() * 4);
    std::copy_n(x.begin(), (size_t)n_true * n, want.begin());
    dev<float> from(x);
    dev<int32_t> d_true(std::vector<int32_t>{n_true});
    mapped<float> to(want.size());
    const gr_cuda_output_args a{from.p, to.d, n_row, n, d_true.p};
    char name[80];
    snprintf(name, sizeof(name), "output: %d of %d rows of %d", n_true, n_row, n);
    const bool launched = finish(gr_cuda_output(&a, nullptr));
    same(launched ? name : "output: not launched", std::vector<float>(to.p, to.p + want.size()), want);
}

/* Every third row is kept, nowhere near where it was; then its copy has its bits, and nothing else is written. */
static void check_keep(int n, int n_row, int n_true)
{
    rng g{(uint64_t)n * 11 + (uint64_t)n_row};
    const int n_state = 2 * n_row + 3;
    std::vector<float> x((size_t)n_row * n), want((size_t)n_state * n);
    std::vector<int32_t> number;
    for (auto &v : x) {
        v = g.unit();
    }
    memset(want.data(), 0xff, want.size() * 4);
    for (int r = 0; r < n_row; r++) {
        number.push_back(r % 3 == 0 ? n_state - 1 - 2 * r : -1);
        if (r < n_true && number[(size_t)r] >= 0) {
            std::copy_n(x.begin() + (long)r * n, n, want.begin() + (long)number[(size_t)r] * n);
        }
    }
    dev<float> from(x), to(want.size());
    dev<int32_t> d_number(number), d_true(std::vector<int32_t>{n_true});
    to.poison();
    const gr_cuda_keep_args a{from.p, to.p, d_number.p, n_row, n, d_true.p};
    char name[80];
    snprintf(name, sizeof(name), "keep: %d of %d rows of %d", n_true, n_row, n);
    const bool launched = finish(gr_cuda_keep(&a, nullptr));
    same(launched ? name : "keep: not launched", to.get(), want);
}

static void check_keeps()
{
    check_keep(4096, 10, 10);
    check_keep(4096, 64, 37);
    check_keep(64, 7, 0);
    check_keep(2052, 5, 4);
    dev<float> x(64);
    dev<int32_t> n(std::vector<int32_t>{0});
    gr_cuda_keep_args a{x.p, x.p, n.p, 1, 6, n.p};
    bool ok = gr_cuda_keep(&a, nullptr) == GR_EUNSUPPORTED;
    a.n = 8, a.from = x.p + 1;
    ok = ok && gr_cuda_keep(&a, nullptr) == GR_EUNSUPPORTED;
    report("keep: what is refused", ok, "a width of 6, an address");
}

struct norm_case {
    int n, n_row, n_true;
    bool norm, gather, capture;
    int y_n, y_col, capture_n, capture_col;
};

/* Half a unit of bf16's last place, and a little for f32. How many are not what double gives is counted too. */
static bool close_enough(uint16_t got, double want)
{
    return fabs((double)bf16_value(got) - want) <= fabs(want) * (0x1p-8 + 1e-5);
}

/* What a call wrote, as rows of its columns; every other value must be poison. */
static std::vector<uint16_t> columns(const std::vector<uint16_t> &tiles, int n_row, int n, int width, int col,
                                     size_t &n_bad)
{
    std::vector<bool> ours(tiles.size(), false);
    std::vector<uint16_t> out;
    for (int r = 0; r < n_row; r++) {
        for (int i = 0; i < n; i++) {
            const size_t at = gr_cuda_tile_at(r, col + i, width);
            ours[at] = true;
            out.push_back(tiles[at]);
        }
    }
    for (size_t i = 0; i < tiles.size(); i++) {
        n_bad += !ours[i] && tiles[i] != 0xffff;
    }
    return out;
}

static void check_norm(const norm_case &c)
{
    const int stride = c.n + 12, n_x = c.n_row + 5, guard_row = 64;
    rng g{(uint64_t)c.n * 7 + (uint64_t)c.n_row};
    std::vector<float> x((size_t)n_x * stride, NAN), w;
    std::vector<int32_t> row;
    for (int r = 0; r < n_x; r++) {
        const float scale = r % 3 == 0 ? 1e-3f : r % 3 == 1 ? 1.0f : 300.0f;
        for (int i = 0; i < c.n; i++) {
            x[(size_t)r * stride + i] = scale * g.unit();
        }
    }
    for (int i = 0; i < c.n; i++) {
        w.push_back(1.0f + 0.5f * g.unit());
    }
    for (int r = 0; r < c.n_row; r++) {
        row.push_back(c.gather ? g.below(n_x) : r);
    }
    dev<float> d_x(x), d_w(w);
    dev<int32_t> d_row(row), d_true(std::vector<int32_t>{c.n_true}), d_one(std::vector<int32_t>{1});
    dev<uint16_t> y(gr_cuda_tile_bytes(c.n_row + guard_row, c.y_n) / 2);
    dev<uint16_t> kept(gr_cuda_tile_bytes(c.n_row + guard_row, c.capture_n) / 2);
    gr_cuda_norm_args a{};
    a.x = d_x.p, a.w = c.norm ? d_w.p : nullptr, a.row = c.gather ? d_row.p : nullptr, a.y = y.p;
    a.capture = c.capture ? kept.p : nullptr, a.n_row = c.n_row, a.n = c.n, a.x_stride = stride;
    a.y_n = c.y_n, a.y_col = c.y_col, a.capture_n = c.capture_n, a.capture_col = c.capture_col;
    a.eps = 1e-5f, a.n_row_true = d_true.p;
    y.poison(), kept.poison();
    bool launched = finish(gr_cuda_norm(&a, nullptr));
    size_t n_bad = 0, n_off = 0;
    const std::vector<uint16_t> out = columns(y.get(), c.n_true, c.n, c.y_n, c.y_col, n_bad);
    const std::vector<uint16_t> capture =
        columns(kept.get(), c.capture ? c.n_true : 0, c.n, c.capture_n, c.capture_col, n_bad);
    for (int r = 0; r < c.n_true; r++) {
        const float *from = &x[(size_t)row[r] * stride];
        double sum = 0;
        for (int i = 0; i < c.n; i++) {
            sum += (double)from[i] * (double)from[i];
        }
        for (int i = 0; i < c.n; i++) {
            const double want = (double)from[i] * (double)w[i] / sqrt(sum / c.n + 1e-5);
            const uint16_t got = out[(size_t)r * c.n + i];
            n_bad += c.norm ? !close_enough(got, want) : got != bf16_of(from[i]);
            n_off += c.norm && got != bf16_of((float)want);
            n_bad += c.capture && capture[(size_t)r * c.n + i] != bf16_of(from[i]);
        }
    }
    /* The last row as the only one. */
    const dev<int32_t> last(std::vector<int32_t>{row[c.n_true - 1]});
    a.row = last.p, a.n_row = 1, a.n_row_true = d_one.p;
    y.poison(), kept.poison();
    launched = finish(gr_cuda_norm(&a, nullptr)) && launched;
    const std::vector<uint16_t> alone = columns(y.get(), 1, c.n, c.y_n, c.y_col, n_bad);
    const bool equal = std::equal(alone.begin(), alone.end(), out.end() - c.n);
    char name[100], s[100];
    snprintf(name, sizeof(name), "%s: %d of %d rows of %d%s%s", c.norm ? "norm" : "convert", c.n_true, c.n_row, c.n,
             c.gather ? ", gathered" : "", c.capture ? ", captured" : "");
    snprintf(s, sizeof(s), "%zu wrong, %zu of %zu not the double's bits; the last row alone: %s", n_bad, n_off,
             out.size(), equal ? "equal bits" : "OTHER BITS");
    report(name, launched && n_bad == 0 && equal && n_off * 100 <= out.size(), s);
}

static void check_refused_rows()
{
    dev<float> x(8192);
    dev<uint16_t> y(8192);
    dev<int32_t> n(std::vector<int32_t>{1});
    gr_cuda_norm_args a{};
    a.x = x.p, a.y = y.p, a.n_row = 1, a.n = 128, a.x_stride = 128, a.y_n = 192, a.n_row_true = n.p;
    bool ok = finish(gr_cuda_norm(&a, nullptr));
    const int bad_col[] = {4, 72, -8};
    for (int col : bad_col) {
        gr_cuda_norm_args b = a;
        b.y_col = col;
        ok = ok && gr_cuda_norm(&b, nullptr) == GR_EUNSUPPORTED;
    }
    gr_cuda_norm_args b = a;
    b.n = 100;
    ok = ok && gr_cuda_norm(&b, nullptr) == GR_EUNSUPPORTED;
    b = a, b.x = x.p + 1;
    ok = ok && gr_cuda_norm(&b, nullptr) == GR_EUNSUPPORTED;
    report("rows: shapes that are refused", ok, "five of five, and the shape that fits is not");
}

void check_rows(void)
{
    check_inputs();
    check_keeps();
    for (int n : {1, 3, 4, 130, 4096, 32001}) {
        check_output(n, 1, 1), check_output(n, 64, 33), check_output(n, 7, 0);
    }
    const norm_case cases[] = {
        {64, 3, 2, true, false, false, 64, 0, 64, 0},
        {192, 64, 64, true, true, true, 256, 8, 320, 64},
        {4096, 1, 1, true, false, false, 4096, 0, 64, 0},
        {4096, 64, 63, true, false, true, 4096, 0, 12288, 4096},
        {4096, 256, 200, true, true, true, 8192, 4096, 12288, 8192},
        {4096, 64, 64, false, true, false, 8192, 4096, 64, 0},
        {5120, 17, 16, true, true, true, 5120, 0, 15360, 5120},
        {12288, 40, 39, false, false, false, 12288, 0, 64, 0},
        {12288, 8, 8, true, false, false, 12288, 0, 64, 0},
        {16384, 9, 8, true, false, true, 16448, 64, 16384, 0},
    };
    for (const norm_case &c : cases) {
        check_norm(c);
    }
    check_refused_rows();
}
