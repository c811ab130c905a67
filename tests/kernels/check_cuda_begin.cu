/* The begin of a pass against its parts: look-up by plain loops, norms and plan by their own kernels, all bits. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_rig.h"

#include "kernels/cuda/attention/begin.h"

struct begin_case {
    int n, n_row, n_true;
    bool kept, captured, feature, states; /* states: of every other feature */
    int window;                           /* of a second plan; 0: there is none */
    bool half;                            /* every third feature is bf16 elsewhere, unless it takes a state */
};

/* A session of n_row rows after 700 tokens, half of them a chain, the others a tree on it. */
struct planned_rows {
    dev<int32_t> block, limit, n_anc, scratch;
    dev<int16_t> anc;
    dev<gr_attn_seq> seq;
    dev<int32_t> n_seq;

    static std::vector<int32_t> rising(int n)
    {
        std::vector<int32_t> v;
        for (int i = 0; i < n; i++) {
            v.push_back(3 * i + 1);
        }
        return v;
    }
    static std::vector<int32_t> limits(int n_row)
    {
        std::vector<int32_t> v;
        for (int r = 0; r < n_row; r++) {
            v.push_back(701 + std::min(r, n_row / 2));
        }
        return v;
    }
    static std::vector<int32_t> depths(int n_row)
    {
        std::vector<int32_t> v;
        for (int r = 0; r < n_row; r++) {
            v.push_back(r <= n_row / 2 ? 0 : 1 + r % 2);
        }
        return v;
    }
    static std::vector<int16_t> ancestors(int n_row)
    {
        std::vector<int16_t> v((size_t)n_row * GR_ATTN_ANC_MAX, 0);
        for (int r = 0; r < n_row; r++) {
            v[(size_t)r * GR_ATTN_ANC_MAX + 1] = (int16_t)(r % 64);
        }
        return v;
    }
    static gr_attn_seq of(const planned_rows &s, int n_row)
    {
        gr_attn_seq q{};
        q.n_row = n_row, q.block = s.block.p, q.limit = s.limit.p, q.scratch_block = s.scratch.p;
        q.n_anc = s.n_anc.p, q.anc = s.anc.p, q.n_slot = 64;
        return q;
    }
    explicit planned_rows(int n_row)
        : block(rising((701 + n_row) / 16 + 1)), limit(limits(n_row)), n_anc(depths(n_row)), scratch(rising(4)),
          anc(ancestors(n_row)), seq(std::vector<gr_attn_seq>{of(*this, n_row)}), n_seq(std::vector<int32_t>{1})
    {
    }
};

static const char *launched(enum gr_status st)
{
    CUDA_OK(cudaDeviceSynchronize());
    return st == GR_OK ? nullptr : "not launched";
}

static void check_begin_of(const begin_case &c)
{
    const int n_vocab = 301, guard = 2;
    rng g{(uint64_t)c.n * 3 + (uint64_t)c.n_row};
    std::vector<uint16_t> table((size_t)n_vocab * c.n);
    const int n_state = 2 * c.n_row + 1;
    std::vector<float> w, w2, f((size_t)c.n_row * c.n), state((size_t)n_state * c.n);
    std::vector<float> embedded((size_t)(c.n_row + guard) * c.n);
    std::vector<int32_t> id, from_state;
    for (auto &x : table) {
        x = bf16_of(g.unit());
    }
    for (auto &x : f) {
        x = 20.0f * g.unit();
    }
    for (auto &x : state) {
        x = 20.0f * g.unit();
    }
    std::vector<float> want_f = f; /* rows that take a state, but those that are not there, become it */
    for (int r = 0; r < c.n_row; r++) {
        from_state.push_back(r % 2 == 0 ? n_state - 1 - r : -1);
        if (c.states && r % 2 == 0 && r < c.n_true) {
            std::copy_n(state.begin() + (long)from_state[(size_t)r] * c.n, c.n, want_f.begin() + (long)r * c.n);
        }
    }
    std::vector<uint16_t> half(f.size());
    std::vector<int32_t> half_row;
    for (int r = 0; r < c.n_row; r++) {
        const bool is_half = c.half && r % 3 == 1;
        half_row.push_back(is_half ? c.n_row - 1 - r : -1);
        for (int i = 0; i < c.n && is_half; i++) {
            const size_t at = (size_t)r * c.n + i;
            uint16_t &h = half[(size_t)half_row[(size_t)r] * c.n + i];
            h = bf16_of(20.0f * g.unit());
            if (r < c.n_true && (!c.states || r % 2 == 1)) {
                const uint32_t bits = (uint32_t)h << 16;
                memcpy(&want_f[at], &bits, 4);
            }
        }
    }
    for (int i = 0; i < c.n; i++) {
        w.push_back(1.0f + 0.5f * g.unit()), w2.push_back(g.unit());
    }
    memset(embedded.data(), 0xff, embedded.size() * 4);
    for (int r = 0; r < c.n_row; r++) {
        id.push_back(r == 0 ? n_vocab - 1 : g.below(n_vocab));
        for (int i = 0; i < c.n && r < c.n_true; i++) {
            const uint32_t bits = (uint32_t)table[(size_t)id[r] * c.n + i] << 16;
            memcpy(&embedded[(size_t)r * c.n + i], &bits, 4);
        }
    }
    const planned_rows s(c.n_row);
    dev<uint16_t> d_table(table);
    dev<int32_t> d_id(id), d_from(from_state), d_true(std::vector<int32_t>{c.n_true}), error(2);
    dev<float> d_w(w), d_w2(w2), d_f(f), d_state(state), d_embedded(embedded), x(embedded.size());
    dev<uint16_t> y(gr_cuda_tile_bytes(c.n_row + 64, 2 * c.n) / 2), kept(gr_cuda_tile_bytes(c.n_row + 64, c.n) / 2);
    gr_cuda_begin_args a{};
    a.plan.shape = {32, 8, 128, c.n_row + 3, 2, 64, GR_CUDA_SPLIT_MAX};
    dev<uint8_t> plan(gr_cuda_attn_plan_bytes(&a.plan.shape));
    a.plan.seq = s.seq.p, a.plan.n_seq = s.n_seq.p, a.plan.plan = plan.p, a.plan.error = error.p;
    dev<uint8_t> window_plan(gr_cuda_attn_plan_bytes(&a.plan.shape));
    a.window_plan = a.plan, a.window_plan.plan = window_plan.p, a.window_plan.window = c.window;
    a.window_plan.error = error.p + 1;
    a.table = d_table.p, a.id = d_id.p, a.x = c.kept ? x.p : nullptr;
    a.token.w = d_w.p, a.token.y = y.p, a.token.n_row = c.n_row, a.token.n = a.token.x_stride = c.n;
    a.token.y_n = 2 * c.n, a.token.eps = 1e-5f, a.token.n_row_true = d_true.p;
    a.token.capture = c.captured ? kept.p : nullptr, a.token.capture_n = c.n;
    if (c.feature) {
        a.feature = a.token;
        a.feature.x = d_f.p, a.feature.w = d_w2.p, a.feature.y_col = c.n, a.feature.capture = nullptr;
    }
    if (c.states) {
        a.states = d_state.p, a.from_state = d_from.p, a.feature_x = d_f.p;
    }
    dev<uint16_t> d_half(half);
    std::vector<const uint16_t *> halves;
    for (int32_t r : half_row) {
        halves.push_back(r >= 0 ? d_half.p + (size_t)r * c.n : nullptr);
    }
    dev<const uint16_t *> d_halves(halves);
    if (c.half) {
        a.half = d_halves.p, a.feature_x = d_f.p;
    }
    plan.poison(), window_plan.poison(), error.poison(), x.poison(), y.poison(), kept.poison();
    const char *wrong = launched(gr_cuda_begin(&a, nullptr));
    const std::vector<uint8_t> got_plan = plan.get();
    const std::vector<uint16_t> got_y = y.get(), got_kept = kept.get();
    const std::vector<float> got_x = x.get();
    const std::vector<float> got_f = d_f.get();
    const std::vector<int32_t> errors = error.get();
    const bool refused = errors[0] != 0 || errors[1] != (c.window > 0 ? 0 : -1);
    const std::vector<uint8_t> got_window_plan = window_plan.get();
    d_f.put(want_f);
    plan.poison(), window_plan.poison(), y.poison(), kept.poison(), x.poison();
    gr_cuda_norm_args token = a.token;
    token.x = d_embedded.p;
    wrong = !wrong ? launched(gr_cuda_attn_plan(&a.plan, nullptr)) : wrong;
    if (!wrong && c.window > 0) {
        wrong = launched(gr_cuda_attn_plan(&a.window_plan, nullptr));
    }
    wrong = !wrong ? launched(gr_cuda_norm(&token, nullptr)) : wrong;
    if (!wrong && c.feature) {
        wrong = launched(gr_cuda_norm(&a.feature, nullptr));
    }
    const std::vector<float> want_x = c.kept ? embedded : x.get();
    if (!wrong) {
        const std::vector<uint8_t> want = plan.get();
        const size_t n_plan = c.n_row <= 64 ? want.size() : 16; /* tiles of one length come in any order */
        wrong = !std::equal(want.begin(), want.begin() + (long)n_plan, got_plan.begin()) ? "OTHER PLAN"
                : got_window_plan != window_plan.get()                                   ? "OTHER PLAN OF WINDOWS"
                : refused                                                                ? "A PLAN IS REFUSED"
                : memcmp(got_x.data(), want_x.data(), want_x.size() * 4) != 0            ? "OTHER TOKENS"
                : memcmp(got_f.data(), want_f.data(), want_f.size() * 4) != 0            ? "OTHER FEATURES"
                : got_y != y.get()                                                       ? "OTHER NORMS"
                : got_kept != kept.get()                                                 ? "OTHER CAPTURE"
                                                                                         : nullptr;
    }
    char name[100];
    snprintf(name, sizeof(name), "begin: %d of %d rows of %d%s%s%s%s%s%s", c.n_true, c.n_row, c.n,
             c.kept ? ", kept" : "", c.captured ? ", captured" : "", c.feature ? ", features" : "",
             c.states ? ", states" : "", c.half ? ", halves" : "", c.window ? ", a window" : "");
    report(name, wrong == nullptr, wrong ? wrong : "plan, tokens and norms: all bits");
}

static void check_refused_begins()
{
    dev<float> x(8192);
    dev<uint16_t> y(4096 + gr_cuda_tile_bytes(64, 128) / 2);
    const planned_rows s(1);
    gr_cuda_begin_args a{};
    a.plan.shape = {32, 8, 128, 1, 1, 64, 1};
    dev<uint8_t> plan(gr_cuda_attn_plan_bytes(&a.plan.shape));
    a.plan.seq = s.seq.p, a.plan.n_seq = s.n_seq.p, a.plan.plan = plan.p;
    a.table = y.p, a.id = s.n_seq.p, a.token.w = x.p, a.token.y = y.p + 4096, a.token.n_row = 1;
    a.token.n = a.token.x_stride = a.token.y_n = 128, a.token.n_row_true = s.n_seq.p;
    bool ok = launched(gr_cuda_begin(&a, nullptr)) == nullptr;
    gr_cuda_begin_args b = a;
    b.token.n = 100;
    ok = ok && gr_cuda_begin(&b, nullptr) == GR_EUNSUPPORTED;
    b = a, b.table = y.p + 1;
    ok = ok && gr_cuda_begin(&b, nullptr) == GR_EUNSUPPORTED;
    b = a, b.feature = a.token, b.feature.x = x.p, b.feature.n = b.feature.x_stride = 64;
    ok = ok && gr_cuda_begin(&b, nullptr) == GR_EUNSUPPORTED;
    b = a, b.feature = a.token, b.feature.x = x.p, b.states = x.p, b.from_state = s.n_seq.p, b.feature_x = x.p + 4;
    ok = ok && gr_cuda_begin(&b, nullptr) == GR_EUNSUPPORTED;
    const uint16_t *const no_half = nullptr;
    b = a, b.feature = a.token, b.feature.x = x.p, b.half = &no_half, b.feature_x = x.p + 4;
    ok = ok && gr_cuda_begin(&b, nullptr) == GR_EUNSUPPORTED;
    b = a, b.plan.shape.head_dim = 96;
    ok = ok && gr_cuda_begin(&b, nullptr) == GR_EUNSUPPORTED;
    report("begin: shapes that are refused", ok, "six of six, and the shape that fits is not");
}

void check_begin(void)
{
    for (int n : {64, 192, 4096, 4160, 8192, 12288, 16384}) {
        if (quick && n > 192) {
            continue;
        }
        check_begin_of({n, 1, 1, true, false, false, false});
        check_begin_of({n, 64, 37, true, true, true, false});
        check_begin_of({n, 10, 7, false, false, true, true});
        check_begin_of({n, 64, 61, true, false, false, false, 300});
        check_begin_of({n, 10, 10, false, false, true, true, 50});
        check_begin_of({n, 10, 9, false, false, true, true, 0, true});
        check_begin_of({n, 64, 37, true, true, true, false, 0, true});
    }
    const begin_case cases[] = {
        {4096, 1, 1, false, false, true, true},      {4096, 10, 10, false, false, true, false},
        {4096, 64, 64, false, false, true, true},    {4096, 256, 256, true, true, true, false},
        {4096, 256, 200, true, false, false, false}, {4096, 5, 0, true, false, true, true},
    };
    for (const begin_case &c : cases) {
        if (!quick || c.n_row <= 10 || c.n_true == 200) {
            check_begin_of(c);
        }
    }
    check_refused_begins();
}
