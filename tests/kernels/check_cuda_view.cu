/* Partial views against plain loops: summaries bit for bit, scores against sums in double, lists against a stable sort
 * of the very scores that the device made. Outputs begin as NaN or -1, so that every write outside is seen. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_rig.h"

#include "kernels/cuda/attention/view.h"

/* An f32 sum of products of bf16, against the sum of their magnitudes: about a rounding a step. */
static constexpr double SCORE_TOLERANCE = 1e-5;

static constexpr int N_LAYER = 2;

/* A sequence that refreshes: n_old tokens when it did before (0: never), n_token now. */
struct refresh_case {
    int n_old, n_token, n_row;
    int n_sink, n_retrieval, n_window;
    bool use_max;
};

static std::vector<uint16_t> random_bf16(size_t n, uint64_t seed)
{
    rng g{seed * 0x9E3779B97F4A7C15ull + 11};
    std::vector<uint16_t> v(n);
    for (auto &x : v) {
        x = bf16_of(2.0f * g.unit());
    }
    return v;
}

/* Memory of a model with views, and with fill() what its passes are given. Views are dealt out backwards. */
struct rig {
    shape m;
    gr_cuda_view_shape s;
    std::vector<uint16_t> kv, q; /* (N_LAYER, blocks), (N_LAYER, rows, q_stride) */
    size_t layer_size = 0;
    int n_row = 0, q_stride;
    std::vector<std::vector<int32_t>> table;
    dev<uint16_t> summary;
    dev<float> score;
    dev<int32_t> list;

    rig(shape shape_, const std::vector<refresh_case> &cases, int n_list_max)
        : m(shape_), s(view_shape(shape_, cases, n_list_max)), q_stride((int)shape_.q_size() + 8),
          summary(lists() * s.n_view * s.n_block_max * 2 * m.head_dim),
          score(lists() * s.n_refresh_max * s.n_block_max), list(lists() * s.n_view * s.n_list_max)
    {
        summary.poison(), score.poison(), list.poison();
    }
    void fill(const std::vector<refresh_case> &cases)
    {
        int n_block = 3;
        for (const refresh_case &c : cases) {
            n_row += c.n_row, n_block += (c.n_token + 15) / 16;
        }
        deal(cases, n_block);
        layer_size = (size_t)n_block * m.n_kv_head * 32 * m.head_dim;
        kv = random_bf16(N_LAYER * layer_size, (uint64_t)n_block);
        q = random_bf16((size_t)N_LAYER * n_row * q_stride, (uint64_t)n_row + 1000);
    }
    static gr_cuda_view_shape view_shape(shape m, const std::vector<refresh_case> &cases, int n_list_max)
    {
        int n_block = 1;
        for (const refresh_case &c : cases) {
            n_block = std::max(n_block, (c.n_token + 15) / 16);
        }
        const int n = (int)cases.size();
        return {N_LAYER, m.n_head, m.n_kv_head, m.head_dim, n + 1, n + 2, (n_block + 15) / 16 * 16 + 16, n_list_max};
    }
    size_t lists() const
    {
        return (size_t)N_LAYER * m.n_kv_head;
    }
    void deal(const std::vector<refresh_case> &cases, int n_block)
    {
        pool order({1, 1, 64}, n_block, 5);
        for (const refresh_case &c : cases) {
            std::vector<int32_t> t((size_t)(c.n_token + 15) / 16);
            std::generate(t.begin(), t.end(), [&] { return order.take(); });
            table.push_back(t);
        }
    }
    int view(size_t i) const
    {
        return s.n_view - 1 - (int)i;
    }
    float key(int layer, size_t i, int head, int pos, int d) const
    {
        const size_t block = gr_cuda_block_at(table[i][pos / 16], head, m.n_kv_head, m.head_dim);
        return bf16_value(kv[layer * layer_size + block + gr_cuda_key_at(pos % 16, d, m.head_dim)]);
    }
};

/* As model/kv/kv_views.c plans a view. */
static gr_cuda_refresh plan(const refresh_case &c, int n_token, int n_summed)
{
    const int n_below = std::max(0, n_token / 16 - c.n_window), n_list = std::min(n_below, c.n_sink + c.n_retrieval);
    gr_cuda_refresh r{};
    r.n_row = c.n_row, r.n_summed = n_summed, r.n_whole = n_token / 16, r.n_below = n_below, r.n_list = n_list;
    r.n_fixed = n_list < n_below ? std::min(n_below, c.n_sink) : n_below;
    r.use_max = c.use_max;
    return r;
}

/* A pass of the refreshes given, whose queries begin at row0 of the rig's. */
static bool run_pass(rig &w, const std::vector<gr_cuda_refresh> &refresh, const dev<uint16_t> &kv,
                     const dev<uint16_t> &q)
{
    const dev<gr_cuda_refresh> d_refresh(refresh);
    const dev<int32_t> n(std::vector<int32_t>{(int32_t)refresh.size()});
    const gr_cuda_views v{w.s, w.summary.p, w.score.p, w.list.p, d_refresh.p, n.p};
    bool ok = true;
    for (int i = 0; i < N_LAYER; i++) {
        const gr_cuda_view_layer l{kv.p + i * w.layer_size, q.p + (size_t)i * w.n_row * w.q_stride, w.q_stride, i};
        ok = gr_cuda_view_scores(&v, &l, nullptr) == GR_OK && ok;
    }
    ok = gr_cuda_view_lists(&v, nullptr) == GR_OK && ok;
    CUDA_OK(cudaDeviceSynchronize());
    return ok;
}

static void counted(const char *what, const char *name, size_t n_bad, size_t n)
{
    char line[120], s[80];
    snprintf(line, sizeof(line), "specpv: %s: %s", what, name);
    snprintf(s, sizeof(s), "%zu of %zu are wrong", n_bad, n);
    report(line, n_bad == 0 && n > 0, s);
}

template <class T> static size_t differing(const std::vector<T> &a, const std::vector<T> &b)
{
    size_t n = a.size() != b.size();
    for (size_t i = 0; i < std::min(a.size(), b.size()); i++) {
        n += memcmp(&a[i], &b[i], sizeof(T)) != 0;
    }
    return n;
}

static void check_summaries(const char *what, const rig &w, const std::vector<refresh_case> &cases)
{
    const int hd = w.m.head_dim;
    std::vector<uint16_t> want(w.summary.n, 0xffff);
    for (size_t i = 0; i < cases.size(); i++) {
        for (size_t l = 0; l < w.lists(); l++) {
            const int layer = (int)l / w.m.n_kv_head, head = (int)l % w.m.n_kv_head;
            for (int b = 0; b < cases[i].n_token / 16; b++) {
                uint16_t *to = &want[((w.view(i) * w.lists() + l) * w.s.n_block_max + b) * 2 * hd];
                for (int d = 0; d < hd; d++) {
                    float hi = -INFINITY, lo = INFINITY;
                    for (int t = 0; t < 16; t++) {
                        const float k = w.key(layer, i, head, b * 16 + t, d);
                        hi = std::max(hi, k), lo = std::min(lo, k);
                    }
                    to[d] = bf16_of(hi), to[hd + d] = bf16_of(lo);
                }
            }
        }
    }
    counted(what, "summaries", differing(w.summary.get(), want), want.size());
}

/* A score by the definition; size: the same sum of magnitudes. */
static double score_of(const rig &w, const refresh_case &c, int row0, const uint16_t *summary, int layer, int head,
                       double &size)
{
    const int hd = w.m.head_dim, group = w.m.n_head / w.m.n_kv_head;
    double score = c.use_max ? -INFINITY : 0.0;
    size = 0.0;
    for (int r = 0; r < c.n_row; r++) {
        for (int g = 0; g < group; g++) {
            const uint16_t *q = &w.q[((size_t)layer * w.n_row + row0 + r) * w.q_stride + (head * group + g) * hd];
            double up = 0.0, down = 0.0, abs_up = 0.0, abs_down = 0.0;
            for (int d = 0; d < hd; d++) {
                const double x = bf16_value(q[d]), hi = bf16_value(summary[d]), lo = bf16_value(summary[hd + d]);
                up += x * hi, down += x * lo, abs_up += fabs(x * hi), abs_down += fabs(x * lo);
            }
            const double best = std::max(up, down);
            score = c.use_max ? std::max(score, best) : score + best;
            size = c.use_max ? std::max({size, abs_up, abs_down}) : size + std::max(abs_up, abs_down);
        }
    }
    const double n = c.use_max ? 1.0 : c.n_row * group;
    size /= n;
    return score / n;
}

/* Every `step`-th; all that is no candidate's must be poison. */
static void check_scores(const char *what, const rig &w, const std::vector<refresh_case> &cases, int step)
{
    const std::vector<float> got = w.score.get();
    const std::vector<uint16_t> summary = w.summary.get();
    size_t n_written = 0, n_wanted = 0;
    double worst = 0.0;
    for (const float &x : got) {
        uint32_t bits;
        memcpy(&bits, &x, 4);
        n_written += bits != ~0u;
    }
    int row0 = 0;
    for (size_t i = 0; i < cases.size(); i++) {
        const gr_cuda_refresh r = plan(cases[i], cases[i].n_token, 0);
        for (size_t l = 0; l < w.lists() && r.n_list > r.n_fixed; l++) {
            n_wanted += (size_t)(r.n_below - r.n_fixed);
            for (int b = r.n_fixed + (int)l; b < r.n_below; b += step) {
                const uint16_t *from = &summary[((w.view(i) * w.lists() + l) * w.s.n_block_max + b) * 2 * w.m.head_dim];
                double size;
                const double want =
                    score_of(w, cases[i], row0, from, (int)l / w.m.n_kv_head, (int)l % w.m.n_kv_head, size);
                const double off = fabs(got[(i * w.lists() + l) * w.s.n_block_max + b] - want) / size;
                worst = std::isnan(off) ? INFINITY : std::max(worst, off);
            }
        }
        row0 += cases[i].n_row;
    }
    char name[120], s[120];
    snprintf(name, sizeof(name), "specpv: %s: scores", what);
    snprintf(s, sizeof(s), "error %.1e, allowed %.0e; %zu written, %zu candidates", worst, SCORE_TOLERANCE, n_written,
             n_wanted);
    report(name, worst <= SCORE_TOLERANCE && n_written == n_wanted, s);
}

/* The list of one KV head, from its scores. */
static std::vector<int32_t> list_of(const gr_cuda_refresh &r, const float *score)
{
    const auto value = [&](int b) { return std::isnan(score[b]) ? -INFINITY : score[b]; };
    std::vector<int32_t> fixed(r.n_fixed), rest;
    std::generate(fixed.begin(), fixed.end(), [n = 0]() mutable { return n++; });
    for (int b = r.n_fixed; b < r.n_below; b++) {
        rest.push_back(b);
    }
    std::stable_sort(rest.begin(), rest.end(), [&](int a, int b) { return value(a) > value(b); });
    rest.resize((size_t)(r.n_list - r.n_fixed));
    std::sort(rest.begin(), rest.end());
    fixed.insert(fixed.end(), rest.begin(), rest.end());
    return fixed;
}

/* Lists of refreshes from the scores in w; a view that none has keeps its poison. */
static void check_lists(const char *what, const rig &w, const std::vector<gr_cuda_refresh> &refresh)
{
    const std::vector<float> score = w.score.get();
    std::vector<int32_t> want(w.list.n, -1);
    for (size_t i = 0; i < refresh.size(); i++) {
        for (size_t l = 0; l < w.lists(); l++) {
            const std::vector<int32_t> one = list_of(refresh[i], &score[(i * w.lists() + l) * w.s.n_block_max]);
            std::copy(one.begin(), one.end(), &want[((size_t)refresh[i].view * w.lists() + l) * w.s.n_list_max]);
        }
    }
    counted(what, "lists", differing(w.list.get(), want), want.size());
}

/* The refreshes again, one a pass, without older summaries: all bits as before. */
static void check_alone(const char *what, rig &w, const std::vector<gr_cuda_refresh> &refresh, const dev<uint16_t> &kv,
                        const dev<uint16_t> &q)
{
    const std::vector<float> score = w.score.get();
    const std::vector<uint16_t> summary = w.summary.get();
    const std::vector<int32_t> list = w.list.get();
    const size_t n = w.lists() * w.s.n_block_max;
    size_t n_bad = 0;
    w.summary.poison(), w.list.poison();
    for (size_t i = 0; i < refresh.size(); i++) {
        gr_cuda_refresh r = refresh[i];
        r.n_summed = 0;
        w.score.poison();
        n_bad += !run_pass(w, {r}, kv, q);
        const std::vector<float> one = w.score.get();
        n_bad += memcmp(&one[0], &score[i * n], n * sizeof(float)) != 0;
    }
    n_bad += differing(w.summary.get(), summary) + differing(w.list.get(), list);
    counted(what, "each in a pass of its own", n_bad, summary.size() + list.size() + score.size());
}

/* First what they did before, then all of them in one pass. */
static void check_refreshes(const char *what, shape m, const std::vector<refresh_case> &cases, int step)
{
    int n_list_max = 1, row0 = 0;
    for (const refresh_case &c : cases) {
        n_list_max = std::max(n_list_max, c.n_sink + c.n_retrieval);
    }
    rig w(m, cases, n_list_max + 1);
    w.fill(cases);
    const dev<uint16_t> kv(w.kv), q(w.q);
    std::vector<dev<int32_t>> table;
    std::vector<gr_cuda_refresh> before, now;
    for (size_t i = 0; i < cases.size(); i++) {
        table.emplace_back(w.table[i]);
        gr_cuda_refresh r[2] = {plan(cases[i], cases[i].n_old, 0),
                                plan(cases[i], cases[i].n_token, cases[i].n_old / 16)};
        for (gr_cuda_refresh &x : r) {
            x.block = table.back().p, x.view = w.view(i), x.row0 = row0;
        }
        before.push_back(r[0]), now.push_back(r[1]);
        row0 += cases[i].n_row;
    }
    bool ok = run_pass(w, before, kv, q);
    w.score.poison(), w.list.poison();
    ok = run_pass(w, now, kv, q) && ok;
    if (!ok) {
        report(what, false, "not launched");
        return;
    }
    check_summaries(what, w, cases);
    check_scores(what, w, cases, step);
    check_lists(what, w, now);
    check_alone(what, w, now, kv, q);
}

/* ---- lists of scores that are made up ---- */

static float made_up(rng &g, int kind)
{
    static const float special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1.0f, -1.0f, 1e-42f, -1e-42f};
    return kind == 0   ? g.unit() * 100.0f
           : kind == 1 ? (float)g.below(3) - 1.0f
           : kind == 2 ? special[g.below(10)]
           : kind == 3 ? 7.25f
                       : 1.0f + 0x1p-23f * (float)g.below(300); /* they differ in the last digit */
}

static void check_choice(int n, int n_top, int n_fixed, int kind)
{
    const refresh_case c{0, (n + n_fixed) * 16, 1, n_fixed, n_top, 0, false};
    rig w({2, 2, 64}, {c}, n_fixed + n_top + 1);
    rng g{(uint64_t)n * 13 + (uint64_t)n_top * 5 + (uint64_t)kind + 1};
    std::vector<float> score(w.score.n);
    for (auto &x : score) {
        x = made_up(g, kind);
    }
    w.score.put(score);
    gr_cuda_refresh r = plan(c, c.n_token, 0);
    r.view = w.view(0);
    const dev<gr_cuda_refresh> d_refresh(std::vector<gr_cuda_refresh>{r});
    const dev<int32_t> one(std::vector<int32_t>{1});
    const gr_cuda_views v{w.s, w.summary.p, w.score.p, w.list.p, d_refresh.p, one.p};
    const bool ok = gr_cuda_view_lists(&v, nullptr) == GR_OK;
    CUDA_OK(cudaDeviceSynchronize());
    char what[80];
    snprintf(what, sizeof(what), "%d of %d, kind %d%s", n_top, n, kind, ok ? "" : ", NOT LAUNCHED");
    check_lists(what, w, {r});
}

static void check_refused_views()
{
    const gr_cuda_view_shape good{2, 8, 2, 64, 1, 1, 64, 8};
    gr_cuda_view_shape bad[] = {good, good, good, good, good};
    bad[0].head_dim = 96, bad[1].n_head = 18, bad[2].n_head = 7, bad[3].n_block_max = 65;
    bad[4].n_block_max = GR_CUDA_VIEW_BLOCKS_MAX + 16;
    bool ok = gr_cuda_view_check(&good) == GR_OK;
    for (const gr_cuda_view_shape &s : bad) {
        ok = ok && gr_cuda_view_check(&s) == GR_EUNSUPPORTED;
    }
    report("specpv: shapes that are refused", ok, "five of five, and the shape that fits is not");
}

void check_specpv(void)
{
    const shape llama{32, 8, 128}, demo{6, 2, 64}, one{4, 4, 128}, wide{16, 2, 64};
    const auto check_demo = [&] {
        check_refreshes("six demo sequences", demo,
                        {{0, 2000, 64, 2, 16, 8, false},
                         {0, 31, 1, 2, 16, 8, true},
                         {1600, 1601, 16, 1, 9, 1, true},
                         {0, 160, 5, 2, 1, 4, false},
                         {32, 5000, 17, 2, 128, 8, false},
                         {0, 16, 2, 2, 4, 8, false}},
                        3);
    };
    if (quick) {
        check_demo();
        check_refreshes("groups of 8", wide, {{0, 500, 61, 2, 9, 8, false}}, 1);
        check_refreshes("best query", one, {{100, 600, 33, 2, 9, 8, true}}, 1);
        for (int kind = 0; kind < 5; kind++) {
            check_choice(1025, 513, 2, kind);
        }
        check_refused_views();
        return;
    }
    check_refreshes("one sequence", llama, {{0, 4000, 64, 2, 40, 8, false}}, 5);
    check_refreshes("a sequence that goes on", llama, {{3990, 4100, 64, 2, 40, 8, false}}, 5);
    check_refreshes("best query", llama, {{100, 3000, 33, 2, 40, 8, true}}, 5);
    check_refreshes("all candidates fit", llama, {{0, 900, 7, 2, 64, 8, false}}, 1);
    check_refreshes("all but one", demo, {{640, 16 * 51 + 3, 16, 2, 40, 8, false}}, 1);
    check_refreshes("the sink alone", demo, {{0, 1000, 16, 3, 0, 1, false}}, 1);
    check_refreshes("no sink, one block", one, {{17, 1000, 1, 0, 1, 1, true}}, 1);
    check_refreshes("no block yet", one, {{0, 15, 1, 2, 4, 1, false}, {0, 500, 3, 2, 4, 1, false}}, 1);
    check_refreshes("groups of 8", wide, {{0, 2047, 61, 2, 32, 8, false}}, 1);
    check_refreshes("six sequences", llama,
                    {{0, 2000, 64, 2, 16, 8, false},
                     {0, 31, 1, 2, 16, 8, true},
                     {1600, 1601, 16, 1, 9, 1, true},
                     {0, 160, 5, 2, 1, 4, false},
                     {32, 5000, 17, 2, 128, 8, false},
                     {0, 16, 2, 2, 4, 8, false}},
                    7);
    check_demo();
    check_refreshes("128K tokens", demo, {{130000, 131071, 12, 2, 1024, 8, false}}, 97);
    for (int kind = 0; kind < 5; kind++) {
        for (int n : {1, 31, 257, 1023, 1024, 1025, 8190}) {
            check_choice(n, 1, 2, kind), check_choice(n, (n + 1) / 2, 0, kind);
            check_choice(n, std::max(1, n - 1), 3, kind);
        }
        check_choice(GR_CUDA_VIEW_BLOCKS_MAX - 40, 1024, 2, kind);
    }
    check_refused_views();
}
