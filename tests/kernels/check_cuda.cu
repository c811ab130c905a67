/* The CUDA kernels against their definitions, and the promise that a row's bits depend on its own keys only.
 *
 * Target check_cuda of kernels/cuda/meson.build.
 *
 * usage: check_cuda [--quick] [WORD]      prints TAP; WORD: only the cases whose names contain it
 *        check_cuda --time-ranks          what a join of the GPUs' sums takes, for 1, 2, 4 and 8 of them
 * Exit status 0: all passed; 77: no device of compute capability 9.0. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_rig.h"

#include "kernels/cuda/rows/kv.h"

/* Weights and outputs are rounded to bf16, 2^-9 each: 1.1e-3 in the mean for either, and the error of a sum over random
 * values is that of a term. 5e-3 is three times what they make together. */
static constexpr double TOLERANCE = 5e-3;

static const shape LLAMA8B{32, 8, 128}, DEMO{6, 2, 64}, ONE{4, 4, 128}, WIDE{16, 2, 64};
static int n_failed, n_case, n_split_max = GR_CUDA_SPLIT_MAX, window;
bool quick;

void report(const char *name, bool ok, const char *detail)
{
    n_case++;
    n_failed += !ok;
    printf("%s - %-34s %s\n", ok ? "ok    " : "not ok", name, detail);
    fflush(stdout);
}

static std::vector<placed> windowed(std::vector<placed> seq)
{
    for (placed &t : seq) {
        t.window = window;
    }
    return seq;
}

static void compare(const char *name, const std::vector<placed> &seq, const std::vector<uint16_t> &out, int step)
{
    double worst = 0;
    size_t row = 0;
    for (const placed &t : windowed(seq)) {
        worst = std::max(worst, worst_error(t, &out[row * t.s->m.q_size()], step));
        row += t.row.size();
    }
    char s[80];
    snprintf(s, sizeof(s), "error %.2e, allowed %.0e", worst, TOLERANCE);
    report(name, worst <= TOLERANCE, s);
}

/* Rows of `some`, from row `first` of `all` on, have equal bits. */
static void same_bits(const char *name, shape m, const std::vector<uint16_t> &all, size_t first,
                      const std::vector<uint16_t> &some)
{
    size_t n = 0;
    const size_t at = first * m.q_size();
    for (size_t i = 0; i < some.size(); i++) {
        n += at + i >= all.size() || some[i] != all[at + i];
    }
    char s[80];
    snprintf(s, sizeof(s), "%zu of %zu values differ", n, some.size());
    report(name, n == 0 && !some.empty(), s);
}

static std::vector<uint16_t> attend(shape m, const dev<uint16_t> &kv, const std::vector<placed> &seq, int n_repeat = 1)
{
    call c{m, windowed(seq)};
    c.n_split_max = n_split_max;
    return c.run(kv, n_repeat);
}

/* A tree against the definition; every row alone as a chain row, all of them in one pass of as many sessions; the first
 * rows of the tree alone. */
static void check_tree(const char *what, shape m, int n_base, int n_row, int n_branch, float q_scale, int step)
{
    char name[100];
    const session s = make_session(m, n_base, n_row, n_branch, q_scale, (uint64_t)(n_base * 64 + n_row));
    const int most = quick ? 4 : n_base > 8000 ? 2 : n_base > 1000 ? 8 : 24;
    const int per = n_base / 16 + 6, n_alone = std::min(n_row, most);
    pool p(m, per * (n_alone + 1) + 8, 3);
    const placed tree = place_tree(p, s, n_row, 1);
    std::vector<placed> alone, few;
    for (int i = 0; i < n_alone; i++) {
        alone.push_back(
            place_path(p, s, n_alone == n_row ? i : (int)((int64_t)i * (n_row - 1) / std::max(1, n_alone - 1))));
    }
    const dev<uint16_t> kv(p.kv);
    const std::vector<uint16_t> all = attend(m, kv, {tree}, quick ? 1 : 3);
    snprintf(name, sizeof(name), "%s: %d rows on %d", what, n_row, n_base);
    compare(name, {tree}, all, step);
    const std::vector<uint16_t> single = attend(m, kv, alone);
    std::vector<uint16_t> wanted;
    for (const placed &t : alone) {
        wanted.insert(wanted.end(), &all[t.row[0] * m.q_size()], &all[t.row[0] * m.q_size()] + m.q_size());
    }
    same_bits("  rows alone, in the pool", m, wanted, 0, single);
    same_bits("  the last of them in a pass of its own", m, wanted, alone.size() - 1, attend(m, kv, {alone.back()}));
    for (int n : {1, 3, 8, 16, 17, 32, 33}) {
        if (n < n_row && (!quick || n == 1 || n == 17 || n == 33)) {
            placed t = tree;
            t.row.resize(n), t.limit.resize(n), t.n_anc.resize(n), t.anc.resize(n * GR_ATTN_ANC_MAX);
            snprintf(name, sizeof(name), "  the first %d rows", n);
            same_bits(name, m, all, 0, attend(m, kv, {t}));
        }
    }
}

static void check_trees()
{
    if (quick) {
        for (int n_base : {1, 79, 300}) {
            check_tree("tree", LLAMA8B, n_base, n_base == 79 ? 19 : 64, 6, 1.0f, 3);
        }
        check_tree("tree", LLAMA8B, 1090, 64, 6, 1.0f, 9); /* rows of two split lengths */
        check_tree("demo tree, sharp", DEMO, 2047, 60, 6, 8.0f, 4);
        check_tree("groups of 8", WIDE, 1100, 61, 6, 1.0f, 3);
        check_tree("groups of 1", ONE, 600, 64, 6, 1.0f, 3);
        return;
    }
    for (int n_base : {1, 15, 16, 62, 63, 64, 78, 79, 80, 100, 127, 143, 144, 207, 300}) {
        check_tree("tree", LLAMA8B, n_base, n_base % 2 ? 64 : 19, 6, 1.0f, 3);
    }
    check_tree("tree", LLAMA8B, 1090, 64, 6, 1.0f, 3); /* rows of two split lengths */
    check_tree("chain in scratch", LLAMA8B, 1060, 64, 1, 1.0f, 3);
    check_tree("tree, sharp", LLAMA8B, 2047, 60, 6, 8.0f, 4);
    check_tree("tree", LLAMA8B, 5000, 64, 9, 2.0f, 8);
    check_tree("tree", LLAMA8B, 32768, 64, 6, 1.0f, 32);
    for (int n_base : {5, 200, 1100, 3000}) {
        check_tree("demo tree", DEMO, n_base, 64, 6, 1.0f, 3);
        check_tree("groups of 8", WIDE, n_base, 61, 6, 1.0f, 3);
        check_tree("groups of 1", ONE, n_base, 64, 6, 1.0f, 3);
    }
}

/* Rows of a tree whose keys and values are NaN change nothing in the rows that do not descend from them: a proposal
 * that breaks the model may not break the walk. */
static void check_broken_rows()
{
    const shape m = quick ? DEMO : LLAMA8B;
    for (int n_base : {3, 300}) {
        const int n_row = 33, r = n_row - 1;
        const session s = make_session(m, n_base, n_row, 5, 1.0f, (uint64_t)n_base + 3);
        session broken = s;
        const std::vector<int> path = s.path(r);
        for (int i = 0; i < n_row; i++) {
            const bool seen = std::find(path.begin(), path.end(), i) != path.end();
            for (size_t k = 0; !seen && k < m.kv_size(); k++) {
                broken.k[(size_t)(n_base + i) * m.kv_size() + k] = broken.v[(size_t)(n_base + i) * m.kv_size() + k] =
                    0x7fff;
            }
        }
        pool p(m, (n_base / 16 + 12) * 2, 4);
        const placed whole = place_tree(p, s, n_row, 3), other = place_tree(p, broken, n_row, 3);
        const dev<uint16_t> kv(p.kv);
        const std::vector<uint16_t> want = attend(m, kv, {whole}), got = attend(m, kv, {other});
        size_t n_other = 0;
        for (int i : path) {
            n_other += !std::equal(&want[i * m.q_size()], &want[(i + 1) * m.q_size()], &got[i * m.q_size()]);
        }
        report("rows that are NaN", n_other == 0 && want != got, "all bits of the rows beside them");
    }
}

/* A drafter's candidates are scattered over more slots than a verify pass has. */
static void check_slots()
{
    const shape m = quick ? DEMO : LLAMA8B;
    for (int n_base : {70, 1090}) {
        const session s = make_session(m, n_base, 64, 6, 1.0f, (uint64_t)n_base);
        pool p(m, (n_base / 16 + 30) * 2, 4);
        const placed few = place_tree(p, s, 64, 3), many = place_tree(p, s, 64, 4, GR_CUDA_SLOT_MAX);
        const dev<uint16_t> kv(p.kv);
        const std::vector<uint16_t> want = attend(m, kv, {few}), got = attend(m, kv, {many}, 2);
        report("256 slots", want == got, "all bits of 64 rows");
    }
}

/* A prompt chunk of chain rows, longer than a tile, and its rows alone. */
static void check_chain(int n_base)
{
    char name[100];
    const shape m = quick ? DEMO : LLAMA8B;
    const session s = make_session(m, n_base, 150, 1, 1.0f, (uint64_t)n_base + 8);
    pool p(m, (n_base / 16 + 12) * 6, 4);
    const placed chain = place_chain(p, s), a = place_path(p, s, 149), b = place_path(p, s, 70),
                 c = place_path(p, s, 1);
    const dev<uint16_t> kv(p.kv);
    const std::vector<uint16_t> all = attend(m, kv, {chain}, 2);
    snprintf(name, sizeof(name), "chain of 150 on %d", n_base);
    compare(name, {chain}, all, 7);
    same_bits("  row 149 alone", m, all, 149, attend(m, kv, {a}));
    same_bits("  row 70 alone", m, all, 70, attend(m, kv, {b}));
    same_bits("  row 1 alone", m, all, 1, attend(m, kv, {c}));
}

static void check_chains()
{
    for (int n_base : {0, 40, 950, 3000}) {
        if (!quick || n_base == 0 || n_base == 950) {
            check_chain(n_base);
        }
    }
}

/* Sessions of all sizes in one pass. */
static void check_ragged(shape m, const char *what)
{
    struct {
        int n_base, n_row, n_branch;
    } shapes[] = {{700, 64, 5},  {3, 1, 1},    {2100, 33, 5}, {64, 7, 3},
                  {5000, 16, 5}, {4100, 1, 1}, {1, 64, 8},    {900, 60, 9}};
    std::vector<session> s;
    std::vector<placed> seq;
    pool p(m, 1200, 6);
    for (auto x : shapes) {
        s.push_back(make_session(m, x.n_base, x.n_row, x.n_branch, 1.0f, (uint64_t)x.n_base + 31));
    }
    for (const session &x : s) {
        seq.push_back(place_tree(p, x, x.n_row, 3));
    }
    const dev<uint16_t> kv(p.kv);
    const std::vector<uint16_t> all = attend(m, kv, seq, quick ? 1 : 5);
    compare(what, seq, all, 3);
    size_t row = 0;
    for (const placed &t : seq) {
        char name[100];
        snprintf(name, sizeof(name), "  %zu rows on %d by themselves", t.row.size(), t.s->n_base);
        same_bits(name, m, all, row, attend(m, kv, {t}));
        row += t.row.size();
    }
}

static void check_views()
{
    struct {
        int n_base, n_row, n_sparse, dense_from;
    } shapes[] = {{6000, 64, 130, 5760}, {6000, 1, 130, 5760}, {6000, 17, 5, 5920},
                  {3000, 64, 0, 2800},   {3000, 64, 7, 2992},  {8000, 40, 256, 7856}};
    const shape m = quick ? DEMO : LLAMA8B;
    for (auto x : shapes) {
        char name[100];
        const session s = make_session(m, x.n_base, x.n_row, 6, 1.0f, (uint64_t)x.n_base + 2);
        pool p(m, x.n_base / 16 + 12, 7);
        placed t = place_tree(p, s, x.n_row, 3);
        const dev<uint16_t> kv(p.kv);
        const std::vector<uint16_t> whole = attend(m, kv, {t});
        add_view(t, x.n_sparse, x.dense_from, 5);
        const std::vector<uint16_t> part = attend(m, kv, {t}, quick ? 1 : 2);
        snprintf(name, sizeof(name), "view: %d rows, %d + %d of %d", x.n_row, x.n_sparse * 16, x.n_base - x.dense_from,
                 x.n_base);
        compare(name, {t}, part, 5);
        placed one = t;
        one.row.resize(1), one.limit.resize(1), one.n_anc.resize(1), one.anc.resize(GR_ATTN_ANC_MAX);
        same_bits("  row 0 by itself", m, part, 0, attend(m, kv, {one}));
        if (x.dense_from <= x.n_base - 80) {
            add_view(t, x.dense_from / 16, x.dense_from, 5);
            same_bits("  a list of all blocks", m, whole, 0, attend(m, kv, {t}));
        }
    }
}

/* Fewer splits than there may be. Of one split a class of equal length is 128 positions, so that most tiles of rows see
 * two. */
static void check_splits()
{
    for (int n : {4, 1, 3}) {
        n_split_max = n;
        printf("# %d splits at most:\n", n);
        if (quick) {
            check_tree("demo tree", DEMO, 600, 64, 6, 1.0f, 5);
            check_chain(950);
            continue;
        }
        for (int n_base : {127, 207, 300, 600, 1090, 5000}) {
            check_tree("tree", LLAMA8B, n_base, 64, 6, 1.0f, 5);
        }
        check_tree("demo tree", DEMO, 1100, 64, 6, 1.0f, 5);
        check_tree("groups of 8", WIDE, 1100, 61, 6, 1.0f, 5);
        check_chain(950);
        check_chain(3000);
    }
    check_ragged(quick ? DEMO : LLAMA8B, "eight sessions, 3 splits");
    n_split_max = GR_CUDA_SPLIT_MAX;
    int n_wrong = 0;
    for (int n : {-1, 0, GR_CUDA_SPLIT_MAX + 1}) {
        const gr_cuda_attn_plan_args bad{{32, 8, 128, 64, 1, 64, n}, nullptr, nullptr, nullptr, nullptr};
        n_wrong += gr_cuda_attn_plan(&bad, nullptr) != GR_EUNSUPPORTED;
    }
    report("-1, 0 and 9 splits", n_wrong == 0, n_wrong == 0 ? "refused" : "one passed, or with another status");
}

/* Keys that no row of a chunk at n_base sees, but for those in one tile with some that are seen, become NaN: a NaN
 * times a weight of 0 would be one, so they are not read. */
static void check_unread(shape m, int n_base)
{
    char name[100];
    const session s = make_session(m, n_base, 40, 1, 1.0f, (uint64_t)n_base + 5);
    pool p(m, n_base / 16 + 12, 4);
    const placed chain = place_chain(p, s);
    const int n_hidden = (n_base + 1 - window) / GR_CUDA_KEY_TILE * GR_CUDA_KEY_TILE;
    const std::vector<uint16_t> nan(m.kv_size(), 0x7fff);
    const std::vector<uint16_t> want = attend(m, dev<uint16_t>(p.kv), {chain});
    for (int i = 0; i < n_hidden; i++) {
        p.put(chain.block[(size_t)i / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + i % GR_KV_BLOCK_TOKENS, nan.data(),
              nan.data());
    }
    snprintf(name, sizeof(name), "  %d keys before the window are NaN", n_hidden);
    report(name, n_hidden > 0 && attend(m, dev<uint16_t>(p.kv), {chain}) == want, "all bits of 40 rows");
}

/* Windows that end in a tree, among the near keys, beside them, in the first of several splits; contexts on both sides
 * of a window's length. */
static void check_windows()
{
    const shape m = quick ? DEMO : LLAMA8B;
    for (int w : {5, 64, 73, 81, 200, 900, 4096}) {
        if (quick && w == 4096) {
            continue;
        }
        window = w;
        printf("# a window of %d:\n", w);
        for (int n_base : {1, w - 30, w + 40, w + 1100}) {
            if (n_base > 0) {
                check_tree("tree", m, n_base, n_base % 2 ? 64 : 40, 6, 1.0f, 3);
            }
        }
        check_tree("chain in scratch", m, w + 100, 64, 1, 1.0f, 3);
        check_chain(std::max(0, w - 70));
        check_chain(w + 90);
        check_unread(m, w + 700);
    }
    for (int n : {1, 3}) {
        n_split_max = n;
        printf("# a window of 900, %d splits at most:\n", n);
        window = 900;
        check_tree("demo tree", DEMO, 1300, 64, 6, 1.0f, 5);
        check_chain(1300);
    }
    n_split_max = GR_CUDA_SPLIT_MAX;
    window = 300;
    check_tree("groups of 8", WIDE, 1100, 61, 6, 1.0f, 3);
    check_tree("groups of 1", ONE, 600, 64, 6, 1.0f, 3);
    check_ragged(m, "eight sessions, a window of 300");
    window = 0;
}

static void check_refusals()
{
    const session s = make_session(LLAMA8B, 400, 20, 4, 1.0f, 1);
    pool p(LLAMA8B, 80, 2);
    const placed good = place_tree(p, s, 20, 1);
    const dev<uint16_t> kv(p.kv);
    const char *names[] = {"a slot out of range", "more slots than there may be", "n_anc above the limit",
                           "rows too far apart"};
    for (int i = 0; i < 4; i++) {
        call c{LLAMA8B, {good}};
        placed &t = c.seq[0];
        i == 0   ? (void)(t.anc[0] = 64)
        : i == 1 ? (void)(t.n_slot = 65)
        : i == 2 ? (void)(t.n_anc[3] = 65)
                 : (void)(t.limit[5] = 90);
        (void)c.run(kv);
        report(names[i], c.refused, c.refused ? "refused, nothing written" : "not refused");
    }
    call c{LLAMA8B, {good}};
    add_view(c.seq[0], 5, 320, 5);
    c.seq[0].window = 100;
    (void)c.run(kv);
    report("a view and a window", c.refused, c.refused ? "refused, nothing written" : "not refused");
}

/* The copy of cells, in a pool of random values. */
static void check_kv(shape m)
{
    const int n_row = 37, n_row_max = 40, n_block = 20, hd = m.head_dim;
    rng g{99};
    std::vector<int32_t> order(n_block * 16);
    for (int i = 0; i < n_block * 16; i++) {
        order[i] = i;
        std::swap(order[i], order[g.below(i + 1)]);
    }
    const size_t layer = (size_t)n_block * m.n_kv_head * 32 * hd;
    std::vector<uint16_t> want(3 * layer);
    for (auto &x : want) {
        x = (uint16_t)g.next();
    }
    dev<uint16_t> kv(want);
    dev<int32_t> d_n(std::vector<int32_t>{n_row}), d_error(std::vector<int32_t>{0});
    std::vector<int32_t> src(&order[0], &order[n_row]), dst;
    for (int i = 0; i < n_row; i++) { /* some dst are earlier sources */
        dst.push_back(i > 0 && i % 3 == 0 ? src[i - 1] : order[n_row_max + i]);
    }
    std::vector<uint16_t> after = want;
    for (int i = 0; i < 3 * n_row; i++) {
        for (int h = 0; h < m.n_kv_head; h++) {
            const size_t at = (size_t)(i / n_row) * layer;
            const int from_cell = src[i % n_row], to_cell = dst[i % n_row];
            const uint16_t *from = &want[at + gr_cuda_block_at(from_cell / 16, h, m.n_kv_head, hd)];
            uint16_t *to = &after[at + gr_cuda_block_at(to_cell / 16, h, m.n_kv_head, hd)];
            for (int d = 0; d < hd; d++) {
                to[gr_cuda_key_at(to_cell % 16, d, hd)] = from[gr_cuda_key_at(from_cell % 16, d, hd)];
                to[gr_cuda_block_size(hd) + gr_cuda_value_at(to_cell % 16, d)] =
                    from[gr_cuda_block_size(hd) + gr_cuda_value_at(from_cell % 16, d)];
            }
        }
    }
    dev<int32_t> d_src(src), d_dst(dst);
    const gr_cuda_kv_copy_args c{kv.p, layer * 2, d_src.p, d_dst.p, d_n.p, d_error.p, 3, m.n_kv_head, hd};
    const bool launched = gr_cuda_kv_copy(&c, nullptr) == GR_OK;
    report("copy of cells", launched && kv.get() == after && d_error.get()[0] == 0, "all bits of three layers");
}

int main(int argc, char **argv)
{
    cudaDeviceProp prop;
    quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    const char *only = argc > 1 + quick ? argv[1 + quick] : "";
    if (cudaGetDeviceProperties(&prop, 0) != cudaSuccess || prop.major != 9) {
        printf("1..0 # SKIP no device of compute capability 9.0\n");
        return 77;
    }
    if (strcmp(only, "--time-ranks") == 0) {
        time_ranks();
        return 0;
    }
    struct {
        const char *name;
        void (*run)();
    } cases[] = {
        {"kv", [] { check_kv(LLAMA8B), check_kv(DEMO); }},
        {"tree", check_trees},
        {"slots", check_slots},
        {"broken rows", check_broken_rows},
        {"chain", check_chains},
        {"ragged",
         [] {
             if (!quick) {
                 check_ragged(LLAMA8B, "eight sessions");
             }
             check_ragged(DEMO, "eight demo sessions");
         }},
        {"splits", check_splits},
        {"view", check_views},
        {"refuse", check_refusals},
        {"window", check_windows},
        {"linear", check_linear_layers},
        {"segments", check_linear_segments},
        {"linear outputs", check_linear_outputs},
        {"ranks", check_ranks},
        {"joins", check_joins},
        {"after", check_layers_after},
        {"rows", check_rows},
        {"heads", check_heads},
        {"begin", check_begin},
        {"noise", check_noise},
        {"pick", check_picks},
        {"adjust", check_adjusts},
        {"specpv", check_specpv},
        {"expand", check_expand},
        {"vocabulary", check_large_picks},
    };
    for (auto &c : cases) {
        if (strstr(c.name, only)) {
            c.run();
        }
    }
    printf("1..%d\n# %d checks, %d failed\n", n_case, n_case, n_failed);
    return n_failed > 0;
}
