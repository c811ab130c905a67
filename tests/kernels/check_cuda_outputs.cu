/* What becomes of a linear layer's sums on a GPU beyond being stored: the norm after it, heads with their rotary
 * embedding and their places in the KV. Sums themselves are check_cuda_linear.cu's. */
#include "tests/kernels/cuda_linear_rig.h"

#include "kernels/cuda/device/kv_layout.h"

/* ---- a norm between two layers ---- */

static constexpr float NORM_EPS = 1e-5f;

/* A call of `before`, which adds to y and leaves tiles, squares and a capture, and one of `after`, which reads them.
 * old, w: of 256 rows, and the norm's. */
struct normed {
    const layer &before, &after;
    const std::vector<float> &old, &w;
    std::vector<float> y, out; /* (bucket, ..) */
    std::vector<gr_cuda_square> square, cleared;
    std::vector<uint16_t> tiles, capture;
    bool ok = true, intact = true;

    int width() const
    {
        return before.n_out;
    }

    template <class T> void check_rest(const std::vector<T> &v, const std::vector<bool> &mine, T rest)
    {
        for (size_t i = 0; i < v.size(); i++) {
            intact = intact && (mine[i] || memcmp(&v[i], &rest, sizeof(T)) == 0);
        }
    }

    void run(const std::vector<int> &row, int bucket)
    {
        const int h = width();
        dev<uint16_t> x(tiles_of(before, row)), d_tiles(gr_cuda_tile_bytes(bucket, h) / 2),
            d_capture(gr_cuda_tile_bytes(bucket, 3 * h) / 2);
        dev<int32_t> n_true(std::vector<int32_t>{(int32_t)row.size()});
        dev<float> d_y((size_t)bucket * h), d_w(w), d_out((size_t)bucket * after.n_out);
        dev<gr_cuda_square> d_square(std::vector<gr_cuda_square>((size_t)bucket)), d_cleared((size_t)bucket);
        for (dev<uint16_t> *d : {&d_tiles, &d_capture}) {
            d->poison();
        }
        d_y.poison(), d_out.poison(), d_cleared.poison();
        for (size_t i = 0; i < row.size(); i++) {
            CUDA_OK(cudaMemcpy(d_y.p + i * h, &old[(size_t)row[i] * h], (size_t)h * 4, cudaMemcpyHostToDevice));
        }
        gr_cuda_linear_args a{before.packed.p, h, before.n_in, x.p,      nullptr,   d_y.p,
                              GR_CUDA_OUT_ADD, h, bucket,      n_true.p, before.cut};
        a.next = {d_w.p, d_tiles.p, d_square.p, d_capture.p, 3 * h, h};
        gr_cuda_linear_args b{after.packed.p,  after.n_out, h,      d_tiles.p, nullptr,  d_out.p,
                              GR_CUDA_OUT_F32, after.n_out, bucket, n_true.p,  after.cut};
        b.norm = {d_square.p, NORM_EPS}, b.clear = d_cleared.p;
        ok = gr_cuda_linear(&a, nullptr) == GR_OK && gr_cuda_linear(&b, nullptr) == GR_OK;
        y = d_y.get(), square = d_square.get(), cleared = d_cleared.get(), out = d_out.get(), tiles = d_tiles.get(),
        capture = d_capture.get();
        check_all_rest((int)row.size());
    }

    void check_all_rest(int n_row)
    {
        const int h = width();
        std::vector<bool> in_y(y.size()), in_out(out.size()), in_tiles(tiles.size()), in_capture(capture.size());
        float nan;
        memset(&nan, 0xff, sizeof(nan));
        for (int r = 0; r < n_row; r++) {
            std::fill_n(in_y.begin() + (size_t)r * h, h, true);
            std::fill_n(in_out.begin() + (size_t)r * after.n_out, after.n_out, true);
            for (int c = 0; c < h; c++) {
                in_tiles[gr_cuda_tile_at(r, c, h)] = in_capture[gr_cuda_tile_at(r, h + c, 3 * h)] = true;
            }
        }
        check_rest(y, in_y, nan);
        check_rest(out, in_out, nan);
        check_rest(tiles, in_tiles, (uint16_t)0xffff);
        check_rest(capture, in_capture, (uint16_t)0xffff);
        for (size_t r = 0; r < square.size(); r++) {
            const bool mine = r < (size_t)n_row;
            intact = intact && (mine || square[r].whole + square[r].part == 0) && square[r].pad[0] == 0;
            intact = intact && cleared[r].whole == (mine ? 0 : UINT64_MAX) && cleared[r].pad[0] == UINT64_MAX;
        }
    }
};

/* Row i of c is row `id` of all: the same bits? */
static size_t count_other(const normed &c, int i, const normed &all, int id)
{
    const int h = c.width(), n_out = c.after.n_out;
    size_t n = memcmp(&c.y[(size_t)i * h], &all.y[(size_t)id * h], (size_t)h * 4) != 0;
    n += memcmp(&c.out[(size_t)i * n_out], &all.out[(size_t)id * n_out], (size_t)n_out * 4) != 0;
    n += memcmp(&c.square[(size_t)i], &all.square[(size_t)id], sizeof(gr_cuda_square)) != 0;
    for (int k = 0; k < h; k++) {
        n += c.tiles[gr_cuda_tile_at(i, k, h)] != all.tiles[gr_cuda_tile_at(id, k, h)];
        n += c.capture[gr_cuda_tile_at(i, h + k, 3 * h)] != all.capture[gr_cuda_tile_at(id, h + k, 3 * h)];
    }
    return n;
}

/* Against what layer `before`'s sums and a double make of them; the sums after the norm against those of its tiles
 * without one. */
static void check_normed_values(const normed &all)
{
    const int h = all.width();
    const layer &b = all.after;
    size_t n = 0;
    double worst = 0;
    std::vector<double> inv((size_t)ROW_MAX);
    for (int r = 0; r < ROW_MAX; r++) {
        double square = 0;
        for (int c = 0; c < h; c++) {
            const float x = all.old[(size_t)r * h + c] + all.before.sum[(size_t)r * h + c];
            n += memcmp(&x, &all.y[(size_t)r * h + c], 4) != 0;
            n += all.tiles[gr_cuda_tile_at(r, c, h)] != bf16_of(x * all.w[c]);
            n += all.capture[gr_cuda_tile_at(r, h + c, 3 * h)] != bf16_of(x);
            square += (double)x * (double)x;
        }
        const double summed = (double)all.square[r].whole + (double)all.square[r].part * 0x1p-40;
        inv[r] = 1.0 / sqrt(square / h + (double)NORM_EPS);
        worst = std::max(worst, fabs(summed / square - 1.0));
    }
    dev<uint16_t> tiles(all.tiles);
    dev<int32_t> n_true(std::vector<int32_t>{ROW_MAX});
    dev<float> plain((size_t)ROW_MAX * b.n_out);
    const gr_cuda_linear_args a{b.packed.p,      b.n_out, h,       tiles.p,  nullptr, plain.p,
                                GR_CUDA_OUT_F32, b.n_out, ROW_MAX, n_true.p, b.cut};
    const bool ok = gr_cuda_linear(&a, nullptr) == GR_OK;
    const std::vector<float> sum = plain.get();
    for (size_t i = 0; i < sum.size(); i++) {
        const double want = (double)sum[i] * inv[i / b.n_out];
        worst = std::max(worst, fabs((double)all.out[i] - want) / (fabs(want) + 1e-30));
    }
    char s[100];
    snprintf(s, sizeof(s), "%zu values differ; squares and scaled sums are off by %.1e, allowed 2e-6", n, worst);
    report(("norm after " + shape_of(all.before)).c_str(), ok && all.ok && all.intact && n == 0 && worst <= 2e-6, s);
}

static void check_normed(int h, int n_in, int n_after, gr_cuda_cut before_cut = {}, gr_cuda_cut after_cut = {})
{
    layer before(h, n_in, before_cut), after(n_after, h, after_cut);
    std::vector<float> old((size_t)ROW_MAX * h), w((size_t)h);
    rng g{77};
    for (layer *l : {&before, &after}) {
        CUDA_OK(cudaMemset(l->packed.p, 0, l->packed.n));
        if (!pack(*l, l->packed.p, 0, l->n_out, 1, 0)) {
            report("norm between layers", false, "packing");
        }
    }
    linear_call<float> c{before, GR_CUDA_OUT_F32, h, ROW_MAX};
    before.sum = c.run(rows(ROW_MAX));
    for (size_t i = 0; i < old.size(); i++) {
        old[i] = g.unit() * (i / (size_t)h % 5 == 0 ? 100.0f : 1.0f);
    }
    for (auto &v : w) {
        v = 1.0f + 0.5f * g.unit();
    }
    normed all{before, after, old, w};
    all.run(rows(ROW_MAX), ROW_MAX);
    check_normed_values(all);
    size_t n = 0;
    bool sound = true;
    for (int n_row : {0, 1, 2, 7, 8, 9, 33, 64, 65, 129, 200}) {
        if (quick && n_row % 32 > 1) {
            continue;
        }
        normed some{before, after, old, w};
        const std::vector<int> row = rows(n_row, 3 * n_row + 1);
        some.run(row, n_row % 2 ? std::max(n_row, 64) : std::max(n_row, 1));
        for (int i = 0; i < n_row; i++) {
            n += count_other(some, i, all, row[(size_t)i]);
        }
        sound = sound && some.ok && some.intact;
    }
    report_count("norm after, rows among 1 to 200", before, n, sound);
}

static void check_norms()
{
    if (quick) {
        check_normed(384, 1024, 256); /* the demo models */
        for (gr_cuda_cut cut : {gr_cuda_cut{16, 1}, gr_cuda_cut{64, 2}, gr_cuda_cut{248, 1}}) {
            check_normed(320, 192, 128, cut, cut);
        }
        check_normed(16 * 136 / 64 * 64, 128, 64, {16, 2});
        return;
    }
    check_normed(384, 1024, 2048);  /* the demo models */
    check_normed(4096, 4096, 1280); /* Llama-3.1-8B */
    check_normed(4096, 14336, 640);
    check_normed(8192, 512, 256);
    for (int width : gr_cuda_cut_width) {
        for (int parts : {1, 2}) {
            if (gr_cuda_cut_allowed(1088, {width, parts})) { /* one tile a block, and several */
                check_normed(1088, 1088, 640, {width, parts}, {width, parts});
                if (width <= 128) {
                    check_normed(width * 136 / 64 * 64, 1088, 64, {width, parts});
                }
            }
        }
    }
}

/* ---- heads ---- */

/* A model's queries, keys and values: the matrix packed in order, whose sums are known, and as HEADS wants it. */
struct heads_case {
    shape m;
    layer plain, packed;
    std::vector<float> cs, sn;      /* (N_POS, head_dim / 2) */
    std::vector<int32_t> pos, cell; /* of 256 rows */
    static constexpr int N_POS = 300, N_BLOCK = 20;

    heads_case(shape m_, int n_in, gr_cuda_cut cut)
        : m(m_), plain((m_.n_head + 2 * m_.n_kv_head) * m_.head_dim, n_in, cut), packed(plain.n_out, n_in, cut),
          cs((size_t)N_POS * m_.head_dim / 2), sn(cs.size())
    {
        const int half = m.head_dim / 2;
        rng g{99};
        std::vector<int32_t> order(N_BLOCK * 16);
        for (size_t i = 0; i < cs.size(); i++) {
            const double angle = (double)(i / half) * pow(10000.0, -(double)(i % half) / half);
            cs[i] = (float)cos(angle), sn[i] = (float)sin(angle);
        }
        for (int i = 0; i < N_BLOCK * 16; i++) {
            order[i] = i;
            std::swap(order[i], order[g.below(i + 1)]);
        }
        for (int r = 0; r < ROW_MAX; r++) {
            pos.push_back(g.below(N_POS));
            cell.push_back(order[r]);
        }
    }

    bool pack_rows(int row0, int n_row, int first, int head_dim)
    {
        const gr_cuda_linear_pack_args a{packed.d_w.p + (size_t)(row0 + first) * packed.n_in,
                                         packed.packed.p,
                                         packed.n_out,
                                         packed.n_in,
                                         row0,
                                         n_row,
                                         1,
                                         packed.cut,
                                         first,
                                         head_dim};
        return gr_cuda_linear_pack(&a, nullptr) == GR_OK;
    }

    /* Queries in two pieces that end within a head. */
    bool pack_all()
    {
        const int n_q = m.n_head * m.head_dim, n_kv = m.n_kv_head * m.head_dim, piece = n_q / 2 + 7;
        CUDA_OK(cudaMemset(plain.packed.p, 0, plain.packed.n));
        CUDA_OK(cudaMemset(packed.packed.p, 0, packed.packed.n));
        return pack(plain, plain.packed.p, 0, plain.n_out, 1, 0) && pack_rows(0, piece, 0, m.head_dim) &&
               pack_rows(0, n_q - piece, piece, m.head_dim) && pack_rows(n_q, n_kv, 0, m.head_dim) &&
               pack_rows(n_q + n_kv, n_kv, 0, 0);
    }

    /* Of row `id`, by the definition: head h's dimension d. */
    uint16_t want(int id, int h, int d) const
    {
        const int half = m.head_dim / 2;
        const float *x = &plain.sum[(size_t)id * plain.n_out + (size_t)h * m.head_dim];
        const float c = cs[(size_t)pos[id] * half + d % half], s = sn[(size_t)pos[id] * half + d % half];
        const float lo = x[d % half], hi = x[d % half + half];
        return bf16_of(h >= m.n_head + m.n_kv_head ? x[d] : d < half ? fmaf(lo, c, -(hi * s)) : fmaf(hi, c, lo * s));
    }

    /* Values of q and of the pool that are not as they should be, those that nobody should write among them. */
    size_t count_wrong(const std::vector<int> &row, int bucket, bool &ok)
    {
        const int hd = m.head_dim, q_stride = m.n_head * hd + 24;
        std::vector<int32_t> p((size_t)bucket), c((size_t)bucket);
        for (size_t i = 0; i < row.size(); i++) {
            p[i] = pos[row[i]], c[i] = cell[row[i]];
        }
        dev<uint16_t> x(tiles_of(packed, row)), q((size_t)bucket * q_stride),
            kv((size_t)N_BLOCK * m.n_kv_head * 32 * hd);
        dev<int32_t> d_pos(p), d_cell(c), n_true(std::vector<int32_t>{(int32_t)row.size()});
        dev<float> d_cos(cs), d_sin(sn);
        q.poison(), kv.poison();
        gr_cuda_linear_args a{packed.packed.p, packed.n_out, packed.n_in, x.p, nullptr, nullptr, GR_CUDA_OUT_HEADS, 0,
                              bucket,          n_true.p,     packed.cut};
        a.heads = {q.p, kv.p, d_pos.p, d_cell.p, d_cos.p, d_sin.p, q_stride, m.n_head, m.n_kv_head, hd};
        ok = ok && gr_cuda_linear(&a, nullptr) == GR_OK;
        std::vector<uint16_t> want_q(q.n, 0xffff), want_kv(kv.n, 0xffff);
        for (size_t i = 0; i < row.size(); i++) {
            for (int h = 0; h < m.n_head + 2 * m.n_kv_head; h++) {
                uint16_t *block = h < m.n_head
                                      ? nullptr
                                      : &want_kv[gr_cuda_block_at(c[i] / GR_KV_BLOCK_TOKENS,
                                                                  (h - m.n_head) % m.n_kv_head, m.n_kv_head, hd)];
                for (int d = 0; d < hd; d++) {
                    (h < m.n_head ? want_q[i * q_stride + h * hd + d]
                     : h < m.n_head + m.n_kv_head
                         ? block[gr_cuda_key_at(c[i] % GR_KV_BLOCK_TOKENS, d, hd)]
                         : block[gr_cuda_block_size(hd) + gr_cuda_value_at(c[i] % GR_KV_BLOCK_TOKENS, d)]) =
                        want(row[i], h, d);
                }
            }
        }
        const std::vector<uint16_t> got_q = q.get(), got_kv = kv.get();
        size_t n = 0;
        for (size_t i = 0; i < q.n; i++) {
            n += got_q[i] != want_q[i];
        }
        for (size_t i = 0; i < kv.n; i++) {
            n += got_kv[i] != want_kv[i];
        }
        return n;
    }
};

static void check_heads(shape m, int n_in, gr_cuda_cut cut = {})
{
    heads_case c(m, n_in, cut);
    bool ok = c.pack_all();
    linear_call<float> plain{c.plain, GR_CUDA_OUT_F32, c.plain.n_out, ROW_MAX};
    c.plain.sum = plain.run(rows(ROW_MAX));
    size_t n = 0;
    for (int n_row : {0, 1, 2, 8, 45, 64, 65, 129, 200, 256}) {
        n += c.count_wrong(rows(n_row, 5 * n_row), n_row % 2 ? std::max(n_row, 64) : std::max(n_row, 1), ok);
    }
    report_count("heads", c.packed, n, ok && plain.ok);
}

void check_linear_outputs()
{
    check_norms();
    check_heads({6, 2, 64}, 384); /* the demo models */
    if (quick) {
        check_heads({3, 1, 128}, 192, {32, 2});
        check_heads({24, 8, 64}, 64, {16, 1}); /* several tiles a block */
        return;
    }
    check_heads({32, 8, 128}, 4096); /* Llama-3.1-8B */
    check_heads({12, 4, 64}, 192);
    for (int width : gr_cuda_cut_width) {
        for (int parts : {1, 2}) {
            if (gr_cuda_cut_allowed(320, {width, parts})) { /* several tiles a block in the narrow ones */
                check_heads({3, 1, 128}, 320, {width, parts});
                check_heads({24, 8, 64}, 320, {width, parts});
            }
        }
    }
}
