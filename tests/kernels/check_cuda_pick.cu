/* Picks and best ids against the CPU's rules on the same logits. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_rig.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/pick/noise_bounds.cuh"
#include "kernels/cuda/pick/pick.h"
#include "kernels/cuda/rows/rows.h"

#include <chrono>
#include <numeric>

using how_t = struct gr_cuda_pick;

/* ODD_*: one value of a normal row is no number, at its begin, its end or anywhere; the row is not finite. */
enum fill { NORMAL, TIES, HOLES, NONE, ONE, INF, TINY, HUGE_ONES, ODD_FIRST, ODD_LAST, ODD_ONE, N_FILL };
static const char *const FILL_NAME[] = {"normal", "ties", "NaN and -inf", "all -inf", "one id",       "+inf",
                                        "tiny",   "huge", "odd first",    "odd last", "odd somewhere"};

static void fill_row(float *l, int n, int kind, rng &g)
{
    const int one = g.below(n);
    for (int i = 0; i < n; i++) {
        const float x = 4.0f * (g.unit() + g.unit() + g.unit());
        l[i] = kind == TIES        ? floorf(x / 4.0f) * (g.below(2) ? 1.0f : 0.0f) * (g.below(2) ? 1.0f : -1.0f)
               : kind == HOLES     ? (g.below(3) == 0 ? x
                                      : g.below(2)    ? NAN
                                                      : -INFINITY)
               : kind == NONE      ? (g.below(2) ? NAN : -INFINITY)
               : kind == ONE       ? (i == one ? -7.0f : -3.4e38f)
               : kind == INF       ? (g.below(9) == 0 ? INFINITY : x)
               : kind == TINY      ? x * 1e-30f
               : kind == HUGE_ONES ? x * 2.5e37f
                                   : x;
    }
    if (kind >= ODD_FIRST) {
        static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
        l[kind == ODD_FIRST ? 0 : kind == ODD_LAST ? n - 1 : one] = odd[g.below(4)];
    }
}

/* Rows of logits with what the kernels are told about them. Values after the n-th and rows after n_true are NaN. */
struct problem {
    int n, n_row, n_true, stride;
    std::vector<float> l;
    std::vector<how_t> how;
    std::vector<int32_t> map, n_top;
    problem(int n_, int n_row_, int n_true_, uint64_t seed, float temperature = -1.0f, int kind = -1)
        : n(n_), n_row(n_row_), n_true(n_true_), stride((n_ + 3) / 4 * 4 + 4 * (int)(seed % 3)),
          l((size_t)n_row_ * stride, NAN)
    {
        static const float warmth[] = {0.0f, 1.0f, 0.6f, 2.0f, 0.1f, 1e-3f, 30.0f};
        rng g{seed * 0x9E3779B97F4A7C15ull + 11};
        for (int r = 0; r < n_row; r++) {
            fill_row(&l[(size_t)r * stride], n, kind >= 0 ? kind : r % 3 == 2 ? r / 3 % N_FILL : NORMAL, g);
            how_t h{};
            h.seed = (uint64_t)g.next() << 32 | g.next(), h.pos = (uint32_t)g.below(100000);
            h.choice = (uint32_t)g.below(4), h.temperature = temperature >= 0 ? temperature : warmth[g.below(7)];
            h.host = g.below(9) == 8;
            how.push_back(h);
            n_top.push_back(r == 1 ? 0 : r % 4 == 0 ? 63 : 1 + g.below(63));
        }
    }
    void add_map(rng g) /* about every fourth of the target's ids */
    {
        for (int i = 0, id = 0; i < n; i++) {
            map.push_back(id += 1 + g.below(7));
        }
    }
    const float *row(int r) const
    {
        return &l[(size_t)r * stride];
    }
};

/* Of a pick and of a drafter's row, by the sampler's rules: -inf is no value. */
static std::vector<float> values(const problem &p, int r)
{
    std::vector<float> v(p.row(r), p.row(r) + p.n);
    const how_t &h = p.how[r];
    for (int i = 0; i < p.n && !gr_temperature_is_greedy(h.temperature); i++) {
        v[i] = v[i] / h.temperature;
        if (v[i] > -INFINITY) {
            v[i] += gr_gumbel(h.seed, h.pos, (uint32_t)(p.map.empty() ? i : p.map[i]), h.choice);
        }
    }
    for (float &x : v) {
        x = x > -INFINITY ? x : -INFINITY;
    }
    return v;
}

/* A raw logit is no number, or the best value overflows. */
static bool not_finite(const problem &p, int r, const std::vector<float> &v)
{
    return !std::all_of(p.row(r), p.row(r) + p.n, [](float x) { return std::isfinite(x); }) ||
           *std::max_element(v.begin(), v.end()) == INFINITY;
}

static gr_picked want_pick(const problem &p, int r)
{
    const how_t &h = p.how[r];
    if (h.host) {
        return {GR_PICK_TO_HOST, 0.0f};
    }
    std::vector<float> v = values(p, r), scratch((size_t)p.n);
    std::vector<int32_t> work((size_t)p.n);
    gr_sampling s{};
    s.temperature = h.temperature, s.top_p = 1.0f, s.seed = h.seed, s.choice = h.choice;
    const int32_t id = gr_sampler_pick(&s, p.row(r), p.n, h.pos, scratch.data(), work.data());
    if (id < 0) {
        return {id, 0.0f};
    }
    const float best = v[id];
    v[id] = -INFINITY;
    const float next = *std::max_element(v.begin(), v.end());
    return {id, next > -INFINITY && next < best ? best - next : 0.0f};
}

/* Device copies and results of a problem; row0: the first row that a call is told of. */
struct setup {
    const problem &p;
    dev<float> l;
    dev<how_t> how;
    dev<int32_t> map, n_top, n_true;
    dev<uint8_t> pick_work, top_work;
    dev<gr_picked> picked;
    dev<gr_top_row> top;
    explicit setup(const problem &p_)
        : p(p_), l(p_.l), how(p_.how), map(p_.map), n_top(p_.n_top), n_true(std::vector<int32_t>{p_.n_true}),
          pick_work(gr_cuda_pick_work_bytes(p_.n_row)), top_work(gr_cuda_top_work_bytes(p_.n_row)),
          picked((size_t)p_.n_row + 2), top((size_t)p_.n_row + 2)
    {
        CUDA_OK(cudaMemset(pick_work.p, 0, pick_work.n));
        CUDA_OK(cudaMemset(top_work.p, 0, top_work.n));
    }
    gr_cuda_pick_args pick_args(int row0 = 0, int n_row = 0) const
    {
        return {l.p + (size_t)row0 * p.stride, how.p + row0, picked.p + row0, pick_work.p, nullptr, nullptr,
                n_row ? n_row : p.n_row,       p.n,          p.stride,        n_true.p};
    }
    gr_cuda_top_args top_args(int row0 = 0, int n_row = 0) const
    {
        return {l.p + (size_t)row0 * p.stride,
                p.map.empty() ? nullptr : map.p,
                how.p + row0,
                n_top.p + row0,
                top.p + row0,
                top_work.p,
                nullptr,
                nullptr,
                n_row ? n_row : p.n_row,
                p.n,
                p.stride,
                n_true.p};
    }
};

static void need(enum gr_status st)
{
    if (st != GR_OK) {
        report("pick: launch", false, "refused");
        exit(1);
    }
}

template <class T> static bool equal_bits(const T &a, const T &b)
{
    return memcmp(&a, &b, sizeof(T)) == 0;
}

static bool poisoned(const void *p, size_t n)
{
    const uint8_t *b = (const uint8_t *)p;
    return std::all_of(b, b + n, [](uint8_t x) { return x == 0xff; });
}

static void check_pick(const char *what, const problem &p, int n_repeat)
{
    setup s(p);
    size_t n_bad = 0, n_gap = 0, n_again = 0;
    const gr_cuda_pick_args a = s.pick_args();
    std::vector<gr_picked> got;
    for (int i = 0; i < n_repeat; i++) {
        s.picked.poison();
        need(gr_cuda_pick(&a, nullptr));
        const std::vector<gr_picked> out = s.picked.get();
        n_again += i > 0 && memcmp(out.data(), got.data(), out.size() * sizeof(out[0])) != 0;
        got = out;
    }
    for (int r = 0; r < p.n_true; r++) {
        const gr_picked want = want_pick(p, r);
        n_bad += want.id != got[r].id;
        n_gap += !equal_bits(want.gap, got[r].gap);
    }
    n_bad += !poisoned(&got[p.n_true], (got.size() - p.n_true) * sizeof(got[0]));
    if (p.n_true > 0) { /* a row in the middle as the only one, with the same work */
        const int r = p.n_true / 2;
        dev<int32_t> one(std::vector<int32_t>{1});
        gr_cuda_pick_args b = s.pick_args(r, 1);
        b.n_row_true = one.p;
        s.picked.poison();
        need(gr_cuda_pick(&b, nullptr));
        n_again += !equal_bits(s.picked.get()[r], got[r]);
    }
    char name[100], text[100];
    snprintf(name, sizeof(name), "pick, %s: %d of %d x %d", what, p.n_true, p.n_row, p.n);
    snprintf(text, sizeof(text), "%zu ids, %zu gaps differ from the CPU's; %zu calls from each other", n_bad, n_gap,
             n_again);
    report(name, n_bad + n_gap + n_again == 0, text);
}

/* log(sum exp) in double. The CPU's, 16 chains of f32, is up to (8 + sqrt(n / 16)) units of 2^-24 from it. */
static double log_sum_exp(const std::vector<float> &v)
{
    const double max = (double)*std::max_element(v.begin(), v.end());
    double sum = 0;
    for (float x : v) {
        sum += x > -INFINITY ? exp((double)x - max) : 0.0;
    }
    return max > -INFINITY ? log(sum) + max : -INFINITY;
}

/* Compares a row; returns the error of its worst edge in units of what is allowed. */
static double top_error(const problem &p, int r, const gr_top_row &got, size_t &n_bad)
{
    if (p.how[r].host) {
        n_bad += got.n != GR_PICK_TO_HOST;
        return 0;
    }
    const std::vector<float> v = values(p, r);
    if (not_finite(p, r, v)) {
        n_bad += got.n != GR_PICK_NOT_FINITE;
        return 0;
    }
    std::vector<int32_t> order((size_t)p.n);
    std::iota(order.begin(), order.end(), 0);
    const size_t n_keep = std::min<size_t>((size_t)p.n_top[r], order.size());
    std::partial_sort(order.begin(), order.begin() + n_keep, order.end(),
                      [&](int a, int b) { return v[a] > v[b] || (v[a] == v[b] && a < b); });
    size_t n = 0;
    while (n < n_keep && v[order[n]] > -INFINITY) {
        n++;
    }
    if (got.n != (int)n) {
        n_bad++;
        return 0;
    }
    const double norm = log_sum_exp(v);
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double edge = (double)v[order[i]] - norm;
        const double allowed = 1e-5 + 0x1p-23 * (fabs((double)v[order[i]]) + fabs(edge));
        n_bad += got.id[i] != (p.map.empty() ? order[i] : p.map[order[i]]);
        worst = std::max(worst, std::isfinite(edge) ? fabs((double)got.edge[i] - edge) / allowed : 0.0);
        n_bad += std::isfinite(edge) && !std::isfinite(got.edge[i]);
    }
    n_bad += norm == -INFINITY && got.log_sum != -INFINITY;
    return worst;
}

static void check_top(const char *what, const problem &p, int n_repeat)
{
    setup s(p);
    size_t n_bad = 0, n_again = 0;
    double worst = 0;
    const gr_cuda_top_args a = s.top_args();
    std::vector<gr_top_row> got;
    auto same = [&](const gr_top_row &x, const gr_top_row &y) {
        const size_t n = (size_t)std::max(0, x.n);
        return x.n == y.n && (x.n < 0 || equal_bits(x.log_sum, y.log_sum)) && !memcmp(x.id, y.id, n * 4) &&
               !memcmp(x.edge, y.edge, n * 4);
    };
    for (int i = 0; i < n_repeat; i++) {
        s.top.poison();
        need(gr_cuda_top(&a, nullptr));
        const std::vector<gr_top_row> out = s.top.get();
        for (int r = 0; r < p.n_true && i > 0; r++) {
            n_again += !same(out[r], got[r]);
        }
        got = out;
    }
    for (int r = 0; r < p.n_true; r++) {
        worst = std::max(worst, top_error(p, r, got[r], n_bad));
    }
    n_bad += !poisoned(&got[p.n_true], (got.size() - p.n_true) * sizeof(got[0]));
    if (p.n_true > 0) {
        const int r = p.n_true / 2;
        dev<int32_t> one(std::vector<int32_t>{1});
        gr_cuda_top_args b = s.top_args(r, 1);
        b.n_row_true = one.p;
        s.top.poison();
        need(gr_cuda_top(&b, nullptr));
        n_again += !same(s.top.get()[r], got[r]);
    }
    char name[100], text[120];
    snprintf(name, sizeof(name), "top, %s%s: %d of %d x %d", what, p.map.empty() ? "" : ", mapped", p.n_true, p.n_row,
             p.n);
    snprintf(text, sizeof(text), "%zu differ from the CPU's, worst edge %.2f of what is allowed; %zu from each other",
             n_bad, worst, n_again);
    report(name, n_bad + n_again == 0 && worst <= 1, text);
}

/* Every `every`-th word. */
static __global__ void compare_bounds(unsigned long long *n_bad, float *widest, uint64_t every)
{
    unsigned long long n = 0;
    float wide = 0.0f;
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x * every,
                   first = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    for (uint64_t w = first * every; w < (1ull << 32); w += step) {
        const gr::NoiseBounds b = gr::noise_bounds((uint32_t)w);
        const float g = gr_gumbel_of_word((uint32_t)w);
        n += !(b.low <= g && g <= b.high);
        wide = w < (1u << 24) ? fmaxf(wide, b.high - b.low) : wide;
    }
    atomicAdd(n_bad, n);
    atomicMax((int *)widest, __float_as_int(wide));
}

void check_noise(void)
{
    dev<unsigned long long> n(std::vector<unsigned long long>{0});
    dev<float> wide(std::vector<float>{0.0f});
    const uint64_t every = quick ? 4093 : 1;
    CUDA_OK(gr::launch_after(compare_bounds, dim3(quick ? 8 : 1056), 256, 0, nullptr, n.p, wide.p, every));
    CUDA_OK(cudaDeviceSynchronize());
    char s[100];
    const float w = wide.get()[0];
    snprintf(s, sizeof(s), "%llu of %llu words outside; where noise is above 5.5, %.4f apart", n.get()[0],
             (unsigned long long)((1ull << 32) / every), (double)w);
    report("pick: bounds of the noise", n.get()[0] == 0 && w < 0.02f, s);
}

/* Memory that host and device see, and the host's view of a flag in it. */
struct seen {
    uint8_t *p = nullptr, *d = nullptr;
    explicit seen(size_t n)
    {
        CUDA_OK(cudaHostAlloc(&p, n, cudaHostAllocMapped));
        CUDA_OK(cudaHostGetDevicePointer(&d, p, 0));
        memset(p, 0, n);
    }
    seen(const seen &) = delete;
    ~seen()
    {
        cudaFreeHost(p);
    }
};

/* True when the flag is there, false after five seconds. */
static bool await(const uint8_t *flag, uint32_t ticket)
{
    const auto t0 = std::chrono::steady_clock::now();
    while (__atomic_load_n((const uint32_t *)flag, __ATOMIC_ACQUIRE) != ticket) {
        if (std::chrono::steady_clock::now() - t0 > std::chrono::seconds(5)) {
            return false;
        }
    }
    return true;
}

/* A graph of output, top and pick, launched 200 times; the host looks at the flag alone and finds the results of all
 * three. */
static void check_flag(bool pick_is_last)
{
    const int n = 32000, n_row = quick ? 3 : 10, n_run = quick ? 12 : 200;
    const problem p(n, n_row, n_row, 91 + pick_is_last);
    setup s(p);
    const size_t out_bytes = (size_t)n_row * 4096 * 4, top_at = out_bytes, pick_at = top_at + n_row * 512,
                 flag_at = pick_at + 1024, ticket_at = flag_at + 128, all = ticket_at + 128;
    seen host(all), want(all);
    const gr_cuda_output_args o{s.l.p, (float *)host.d, n_row, 4096, s.n_true.p};
    gr_cuda_top_args t = s.top_args();
    gr_cuda_pick_args k = s.pick_args();
    t.top = (gr_top_row *)(host.d + top_at), k.picked = (gr_picked *)(host.d + pick_at);
    const uint32_t *ticket = (const uint32_t *)(host.d + ticket_at);
    uint32_t *done = (uint32_t *)(host.d + flag_at);
    (pick_is_last ? k.ticket : t.ticket) = ticket;
    (pick_is_last ? k.done : t.done) = done;
    cudaStream_t st;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_OK(cudaStreamCreate(&st));
    CUDA_OK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    need(gr_cuda_output(&o, st));
    for (int i = 0; i < 2; i++) { /* both are in every graph, the one with the flag comes last */
        if ((i == 1) == pick_is_last) {
            need(gr_cuda_pick(&k, st));
        } else {
            need(gr_cuda_top(&t, st));
        }
    }
    CUDA_OK(cudaStreamEndCapture(st, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    int n_late = 0, n_bad = 0;
    for (uint32_t i = 1; i <= (uint32_t)n_run && n_late == 0; i++) {
        memset(host.p, 0x5a, flag_at);
        *(uint32_t *)(host.p + ticket_at) = i;
        CUDA_OK(cudaGraphLaunch(exec, st));
        n_late += !await(host.p + flag_at, i);
        if (i == 1) {
            memcpy(want.p, host.p, flag_at);
        }
        n_bad += memcmp(want.p, host.p, flag_at) != 0;
    }
    CUDA_OK(cudaStreamSynchronize(st));
    const gr_picked *picked = (const gr_picked *)(want.p + pick_at);
    const gr_top_row *top = (const gr_top_row *)(want.p + top_at);
    size_t n_wrong = memcmp(want.p, p.l.data(), 4096 * 4) != 0;
    for (int r = 0; r < n_row; r++) {
        const gr_picked w = want_pick(p, r);
        n_wrong += !equal_bits(w, picked[r]);
        n_wrong += top_error(p, r, top[r], n_wrong) > 1;
    }
    char text[120];
    snprintf(text, sizeof(text), "of %d graphs %d without a flag, %d with other results; %zu wrong", n_run, n_late,
             n_bad, n_wrong);
    report(pick_is_last ? "pick: flag after output, top, pick" : "top: flag after output, pick, top",
           n_late + n_bad == 0 && n_wrong == 0, text);
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));
    CUDA_OK(cudaStreamDestroy(st));
}

static void check_refused_picks()
{
    const problem p(64, 1, 1, 3, 1.0f, NORMAL);
    setup s(p);
    gr_cuda_pick_args a = s.pick_args();
    gr_cuda_top_args t = s.top_args();
    bool ok = true;
    a.n = GR_CUDA_PICK_N_MAX + 4, a.stride = a.n;
    t.n = GR_CUDA_PICK_N_MAX + 4, t.stride = t.n;
    ok = ok && gr_cuda_pick(&a, nullptr) == GR_EUNSUPPORTED && gr_cuda_top(&t, nullptr) == GR_EUNSUPPORTED;
    a = s.pick_args(), t = s.top_args(), a.stride = 66, t.logits++;
    ok = ok && gr_cuda_pick(&a, nullptr) == GR_EUNSUPPORTED && gr_cuda_top(&t, nullptr) == GR_EUNSUPPORTED;
    report("pick: shapes that are refused", ok, "four of four");
}

/* One odd value in each block that shares a row, at its begin and its end, one after the other. */
static void check_odd_splits()
{
    const int n = 20011;
    size_t n_bad = 0;
    std::vector<int> at{0, n - 1};
    for (int i = 1; i < n / 1000; i++) {
        at.push_back(1000 * i - 1), at.push_back(1000 * i + 23);
    }
    problem p(n, (int)at.size(), (int)at.size(), 23, -1.0f, NORMAL);
    for (int r = 0; r < p.n_row; r++) {
        static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
        p.l[(size_t)r * p.stride + (size_t)at[(size_t)r]] = odd[r % 4];
        p.how[r].host = 0;
    }
    setup s(p);
    const gr_cuda_pick_args a = s.pick_args();
    const gr_cuda_top_args t = s.top_args();
    need(gr_cuda_pick(&a, nullptr));
    need(gr_cuda_top(&t, nullptr));
    const std::vector<gr_picked> picked = s.picked.get();
    const std::vector<gr_top_row> top = s.top.get();
    for (int r = 0; r < p.n_row; r++) {
        n_bad += picked[r].id != GR_PICK_NOT_FINITE || picked[r].gap != 0.0f || top[r].n != GR_PICK_NOT_FINITE;
    }
    char text[100];
    snprintf(text, sizeof(text), "%zu of %d rows with one value that is no number were not told", n_bad, p.n_row);
    report("pick, top: one odd value anywhere", n_bad == 0, text);
}

static void check_both(const char *what, const problem &p, int n_repeat)
{
    check_pick(what, p, n_repeat);
    check_top(what, p, n_repeat);
}

void check_picks(void)
{
    for (int n : {1, 2, 3, 5, 63, 100, 1000, 1023, 1024, 1025, 4099, 32000, 40001}) {
        if (!quick || n < 4 || n == 1025 || n == 40001) {
            check_both("mixed", problem(n, quick ? 5 : 33, quick ? 4 : 30, (uint64_t)n), 2);
        }
    }
    for (int kind = 0; kind < N_FILL; kind++) {
        for (float temperature : {0.0f, 1.0f, 0.05f, 1e-36f, 9.9e-6f, GR_TEMPERATURE_GREEDY, 1e30f}) {
            if (quick && temperature != 1.0f && temperature != 1e-36f && temperature != GR_TEMPERATURE_GREEDY) {
                continue;
            }
            char what[60];
            snprintf(what, sizeof(what), "%s at %g", FILL_NAME[kind], (double)temperature);
            check_both(what, problem(5003, 4, 4, 17u + (uint64_t)kind, temperature, kind), 1);
        }
    }
    for (int n : {7, 1025, 32000}) {
        if (quick && n > 2000) {
            continue;
        }
        problem p(n, 10, 9, (uint64_t)n + 1);
        p.add_map(rng{(uint64_t)n + 99});
        check_top("mixed", p, 2);
    }
    check_odd_splits();
    check_flag(true);
    check_flag(false);
    check_refused_picks();
}

void check_large_picks(void)
{
    check_both("mixed", problem(GR_CUDA_PICK_N_MAX, quick ? 2 : 5, quick ? 1 : 4, 5), 1);
    if (quick) {
        return;
    }
    check_both("mixed", problem(151936, 5, 5, 6), 1);
    check_both("mixed, 200 calls", problem(32000, 10, 10, 7), 200);
    check_both("mixed", problem(128256, 64, 64, 8), 3);
    check_both("none", problem(128256, 3, 0, 9), 2);
}
