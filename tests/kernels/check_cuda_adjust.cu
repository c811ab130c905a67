/* Bans, biases and penalties as lists, and picks of rows that were adjusted, against the CPU's rules. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_rig.h"

#include "kernels/cuda/pick/adjust.h"
#include "kernels/cuda/pick/pick.h"

using how_t = struct gr_cuda_pick;

/* EMPTY: no list. LONG: as many entries as there may be. ALL: every id is banned. BEST: the best id is. ODD: a raw
 * logit is no number, in the list or not. OVER: a value becomes infinite. TIES: values that meet after a bias. */
enum wish { EMPTY, SOME, LONG, ALL, BEST, ODD_LISTED, ODD_OTHER, OVER, TIES, N_WISH };

struct rows {
    int n, n_row, stride;
    std::vector<float> l;
    std::vector<gr_adjust_entry> entry;
    std::vector<gr_cuda_adjust_row> row;
    std::vector<how_t> how;
};

static gr_adjust_entry random_entry(int id, rng &g)
{
    const uint32_t n = g.below(2) ? (uint32_t)g.below(5) : 0;
    return {id, (uint32_t)(1 + g.below(7)), g.unit() * 8, n};
}

/* Ids at even distances from a random first one, so that none comes twice. */
static void add_list(rows &w, int n_entry, rng &g)
{
    const int step = w.n / n_entry, first = g.below(step);
    for (int i = 0; i < n_entry; i++) {
        w.entry.push_back(random_entry(first + i * step, g));
    }
}

static void add_row(rows &w, int wish, rng &g)
{
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
    float *l = &w.l[(size_t)w.row.size() * w.stride];
    const int first = (int)w.entry.size(), last = w.n - 1;
    for (int i = 0; i < w.n; i++) {
        l[i] = wish == TIES ? 1.0f : 6 * (g.unit() + g.unit());
    }
    if (wish == ALL) {
        for (int i = 0; i < w.n; i++) {
            w.entry.push_back({i, GR_ADJUST_BAN, 0, 0});
        }
    } else if (wish == BEST) {
        l[last] = 50;
        w.entry.push_back({last, GR_ADJUST_BAN | GR_ADJUST_BIAS, 100, 0});
    } else if (wish == TIES) {
        w.entry.push_back({last, GR_ADJUST_BIAS, 1, 0});
        w.entry.push_back({last / 2, GR_ADJUST_BIAS, 1, 0});
    } else if (wish == OVER) {
        l[last] = 3e38f;
        w.entry.push_back({last, GR_ADJUST_PENALISE, 0, 1});
    } else if (wish != EMPTY) {
        add_list(w, std::min(w.n / 2, wish == LONG ? GR_ADJUST_LIST_MAX : 20), g);
    }
    if (wish == ODD_LISTED) {
        w.entry.back().what = (uint32_t)(1 + g.below(7));
        l[w.entry.back().id] = odd[g.below(4)];
    } else if (wish == ODD_OTHER) {
        const int id = w.entry.back().id;
        l[id > 0 ? id - 1 : id + 1] = odd[g.below(4)];
    }
    const gr_penalties p = {wish == OVER ? 0.5f : 0.3f + (float)g.below(100) * 0.02f, g.unit() * 2, g.unit() * 2};
    w.row.push_back({p, first, (int)w.entry.size() - first});
    how_t h{};
    h.seed = g.next(), h.pos = (uint32_t)g.below(1000), h.choice = (uint32_t)g.below(3);
    h.temperature = wish == TIES || g.below(2) ? 0.0f : 0.7f;
    w.how.push_back(h);
}

static rows make_rows(int n, uint64_t seed)
{
    rows w{n, N_WISH + 2, (n + 3) / 4 * 4, {}, {}, {}, {}};
    rng g{seed * 0x9E3779B97F4A7C15ull + 5};
    w.l.assign((size_t)w.n_row * w.stride, NAN);
    for (int r = 0; r < w.n_row; r++) {
        add_row(w, r % N_WISH, g);
    }
    return w;
}

/* The row by the definition, entry by entry. */
static std::vector<float> adjusted(const rows &w, int r)
{
    std::vector<float> v(&w.l[(size_t)r * w.stride], &w.l[(size_t)r * w.stride] + w.n);
    for (int i = 0; i < w.row[r].n; i++) {
        const gr_adjust_entry &e = w.entry[w.row[r].first + i];
        v[e.id] = gr_adjust_value(&e, w.row[r].penalties, v[e.id]);
    }
    return v;
}

static gr_picked want_pick(const rows &w, int r)
{
    const float *raw = &w.l[(size_t)r * w.stride];
    const how_t &h = w.how[r];
    std::vector<float> v = adjusted(w, r), scratch((size_t)w.n);
    std::vector<int32_t> work((size_t)w.n);
    gr_sampling s{};
    s.temperature = h.temperature, s.top_p = 1, s.seed = h.seed, s.choice = h.choice;
    const int32_t id = gr_sampler_is_finite(raw, w.n)
                           ? gr_sampler_choose(&s, v.data(), w.n, h.pos, scratch.data(), work.data())
                           : GR_PICK_NOT_FINITE;
    if (id < 0) {
        return {id, 0.0f};
    }
    float second = -INFINITY, best = 0;
    for (int i = 0; i < w.n; i++) {
        const bool noisy = h.temperature > 0;
        const float x = noisy ? v[i] / h.temperature : v[i];
        const float y = noisy && x > -INFINITY ? x + gr_gumbel(h.seed, h.pos, (uint32_t)i, h.choice) : x;
        (i == id ? best : second) = i == id ? y : std::max(second, y);
    }
    return {id, second > -INFINITY ? best - second : 0.0f};
}

/* Rows from n_true on stay as they are. */
static size_t wrong_values(const rows &w, const std::vector<float> &got, int n_true)
{
    size_t n_bad = 0;
    for (int r = 0; r < w.n_row; r++) {
        const float *raw = &w.l[(size_t)r * w.stride];
        std::vector<float> want(raw, raw + w.n);
        std::vector<bool> listed((size_t)w.n, false);
        if (r < n_true) {
            want = adjusted(w, r);
            for (int i = 0; i < w.row[r].n; i++) {
                listed[w.entry[w.row[r].first + i].id] = true;
            }
        }
        for (int i = 0; i < w.n; i++) {
            const float x = got[(size_t)r * w.stride + i];
            uint32_t bits, want_bits;
            memcpy(&bits, &x, 4), memcpy(&want_bits, &want[i], 4);
            if (listed[i] && !std::isfinite(raw[i])) {
                n_bad += !std::isnan(x) || bits == GR_CUDA_TAKEN_OUT;
            } else {
                n_bad += bits != (listed[i] && want[i] == -INFINITY ? GR_CUDA_TAKEN_OUT : want_bits);
            }
        }
    }
    return n_bad;
}

static void check_lists(int n, uint64_t seed)
{
    const rows w = make_rows(n, seed);
    const int n_true = w.n_row - 1;
    dev<float> l(w.l);
    dev<gr_cuda_adjust_row> row(w.row);
    dev<gr_adjust_entry> entry(w.entry);
    dev<how_t> how(w.how);
    dev<int32_t> true_rows(std::vector<int32_t>{n_true});
    dev<gr_picked> picked((size_t)w.n_row);
    dev<uint8_t> work(gr_cuda_pick_work_bytes(w.n_row));
    CUDA_OK(cudaMemset(work.p, 0, work.n));
    picked.poison();
    const gr_cuda_adjust_args a{l.p, row.p, entry.p, w.n_row, w.stride, true_rows.p};
    const gr_cuda_pick_args p{l.p, how.p, picked.p, work.p, nullptr, nullptr, w.n_row, w.n, w.stride, true_rows.p};
    const bool ran = gr_cuda_adjust(&a, nullptr) == GR_OK && gr_cuda_pick_adjusted(&p, nullptr) == GR_OK;
    const std::vector<gr_picked> got = picked.get();
    const size_t n_value = wrong_values(w, l.get(), n_true);
    size_t n_id = 0, n_gap = 0, n_odd = 0;
    for (int r = 0; r < n_true; r++) {
        const gr_picked want = want_pick(w, r);
        n_id += want.id != got[r].id;
        n_gap += memcmp(&want.gap, &got[r].gap, sizeof(want.gap)) != 0;
        n_odd += want.id == GR_PICK_NOT_FINITE;
    }
    char name[60], text[120];
    snprintf(name, sizeof(name), "adjust: %d of %d x %d", n_true, w.n_row, n);
    snprintf(text, sizeof(text), "%zu values, %zu ids, %zu gaps differ from the CPU's; %zu rows are not finite",
             n_value, n_id, n_gap, n_odd);
    report(name, ran && n_value + n_id + n_gap == 0 && n_odd >= 4, text);
}

void check_adjusts(void)
{
    for (int n : {3, 100, 1025, 5003, 40001}) {
        for (uint64_t seed = 1; seed <= (quick ? 2u : 12u); seed++) {
            check_lists(n, seed + (uint64_t)n);
        }
    }
}
