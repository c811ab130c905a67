#include "tests/kernels/cuda_rig.h"

#include "common/rules/bf16.h"

#include <numeric>

float bf16_value(uint16_t h)
{
    return gr_bf16_to_f32(h);
}

uint16_t bf16_of(float x)
{
    return gr_bf16_from_f32(x);
}

session make_session(shape m, int n_base, int n_row, int n_branch, float q_scale, uint64_t seed)
{
    rng g{seed * 0x9E3779B97F4A7C15ull + 1};
    session s{m, n_base, n_row, {}, {}, {}, {}};
    s.k.resize((size_t)(n_base + n_row) * m.kv_size());
    s.v.resize(s.k.size());
    s.q.resize((size_t)n_row * m.q_size());
    for (size_t i = 0; i < s.k.size(); i++) {
        s.k[i] = bf16_of(g.unit());
        s.v[i] = bf16_of(g.unit() + 0.25f); /* so that sums do not vanish */
    }
    for (auto &x : s.q) {
        x = bf16_of(q_scale * g.unit());
    }
    for (int r = 0; r < n_row; r++) {
        s.parent.push_back(r == 0 ? -1 : r - 1 - g.below(std::min(r, n_branch)));
    }
    return s;
}

pool::pool(shape shape_, int n_block, uint64_t seed) : m(shape_)
{
    rng g{seed + 77};
    kv.assign((size_t)n_block * m.n_kv_head * 32 * m.head_dim, 0x7fc1);
    order.resize((size_t)n_block);
    std::iota(order.begin(), order.end(), 0);
    for (int i = n_block - 1; i > 0; i--) {
        std::swap(order[i], order[g.below(i + 1)]);
    }
}

void pool::put(int32_t cell, const uint16_t *k, const uint16_t *v)
{
    for (int h = 0; h < m.n_kv_head; h++) {
        uint16_t *b = &kv[gr_cuda_block_at(cell / GR_KV_BLOCK_TOKENS, h, m.n_kv_head, m.head_dim)];
        for (int d = 0; d < m.head_dim; d++) {
            b[gr_cuda_key_at(cell % GR_KV_BLOCK_TOKENS, d, m.head_dim)] = k[h * m.head_dim + d];
            b[gr_cuda_block_size(m.head_dim) + gr_cuda_value_at(cell % GR_KV_BLOCK_TOKENS, d)] = v[h * m.head_dim + d];
        }
    }
}

static void put_key(pool &p, const session &s, int32_t cell, int key)
{
    p.put(cell, &s.k[(size_t)key * s.m.kv_size()], &s.v[(size_t)key * s.m.kv_size()]);
}

static void put_base(pool &p, const session &s, placed &t)
{
    for (int i = 0; i < s.n_base; i++) {
        if (i % GR_KV_BLOCK_TOKENS == 0) {
            t.block.push_back(p.take());
        }
        put_key(p, s, t.block.back() * GR_KV_BLOCK_TOKENS + i % GR_KV_BLOCK_TOKENS, i);
    }
}

/* At the next position of the table. */
static void append(pool &p, const session &s, placed &t, int position, int key)
{
    if (position % GR_KV_BLOCK_TOKENS == 0) {
        t.block.push_back(p.take());
    }
    put_key(p, s, t.block.back() * GR_KV_BLOCK_TOKENS + position % GR_KV_BLOCK_TOKENS, key);
}

placed place_tree(pool &p, const session &s, int n_row, uint64_t seed, int n_slot)
{
    rng g{seed + 5};
    placed t;
    t.s = &s;
    put_base(p, s, t);
    t.n_slot = n_slot > 0 ? n_slot : std::min(64, s.n_row + 7);
    std::vector<int> slot((size_t)t.n_slot);
    std::iota(slot.begin(), slot.end(), 0);
    for (int i = t.n_slot - 1; i > 0; i--) {
        std::swap(slot[i], slot[g.below(i + 1)]);
    }
    for (int i = 0; i < t.n_slot; i += 16) {
        t.scratch_block.push_back(p.take());
    }
    for (int r = 0; r < s.n_row; r++) {
        put_key(p, s, t.scratch_block[slot[r] / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + slot[r] % GR_KV_BLOCK_TOKENS,
                s.n_base + r);
    }
    for (int r = 0; r < n_row; r++) {
        const std::vector<int> path = s.path(r);
        t.row.push_back(r);
        t.limit.push_back(s.n_base);
        t.n_anc.push_back((int)path.size());
        t.anc.resize((size_t)(r + 1) * GR_ATTN_ANC_MAX, -1);
        for (size_t i = 0; i < path.size(); i++) {
            t.anc[(size_t)r * GR_ATTN_ANC_MAX + i] = (int16_t)slot[path[i]];
        }
    }
    return t;
}

placed place_path(pool &p, const session &s, int r)
{
    placed t;
    t.s = &s;
    put_base(p, s, t);
    const std::vector<int> path = s.path(r);
    for (size_t i = 0; i < path.size(); i++) {
        append(p, s, t, s.n_base + (int)i, s.n_base + path[i]);
    }
    t.row = {r};
    t.limit = {s.n_base + (int)path.size()};
    t.n_anc = {0};
    t.anc.assign(GR_ATTN_ANC_MAX, -1);
    return t;
}

placed place_chain(pool &p, const session &s)
{
    placed t;
    t.s = &s;
    put_base(p, s, t);
    for (int r = 0; r < s.n_row; r++) {
        append(p, s, t, s.n_base + r, s.n_base + r);
        t.row.push_back(r);
        t.limit.push_back(s.n_base + r + 1);
        t.n_anc.push_back(0);
    }
    t.anc.assign((size_t)s.n_row * GR_ATTN_ANC_MAX, -1);
    return t;
}

void add_view(placed &t, int n_sparse, int dense_from, uint64_t seed)
{
    rng g{seed + 9};
    const int n_list = 2 * t.s->m.n_kv_head, n_block = dense_from / GR_KV_BLOCK_TOKENS;
    t.n_sparse = n_sparse, t.dense_from = dense_from, t.sparse_stride = n_sparse + 3;
    t.sparse.assign((size_t)n_list * t.sparse_stride, -1);
    for (int l = 0; l < n_list; l++) {
        for (int b = 0, n = 0; b < n_block; b++) { /* n_sparse of n_block, increasing */
            if (g.below(n_block - b) < n_sparse - n) {
                t.sparse[(size_t)l * t.sparse_stride + n++] = b;
            }
        }
    }
}

/* Device copies of a call's sequences, kept alive beside the array that points to them. */
struct uploaded {
    std::vector<dev<int32_t>> i32;
    std::vector<dev<int16_t>> i16;
    std::vector<gr_attn_seq> seq;
    const int32_t *put(const std::vector<int32_t> &v)
    {
        i32.emplace_back(v);
        return i32.back().p;
    }
};

static void upload(const std::vector<placed> &list, uploaded &u)
{
    int row0 = 0;
    for (const placed &t : list) {
        gr_attn_seq s{};
        s.row0 = row0, s.n_row = (int)t.row.size();
        s.block = u.put(t.block);
        s.limit = u.put(t.limit);
        s.scratch_block = u.put(t.scratch_block);
        s.n_anc = u.put(t.n_anc);
        u.i16.emplace_back(t.anc);
        s.anc = u.i16.back().p;
        s.n_slot = t.n_slot;
        s.sparse = t.sparse.empty() ? nullptr : u.put(t.sparse);
        s.n_sparse = t.n_sparse, s.sparse_stride = t.sparse_stride, s.dense_from = t.dense_from;
        u.seq.push_back(s);
        row0 += s.n_row;
    }
}

static void fail(const char *what)
{
    printf("FAIL: %s\n", what);
    exit(1);
}

std::vector<uint16_t> call::run(const dev<uint16_t> &kv, int n_repeat)
{
    uploaded u;
    upload(seq, u);
    const int n_row = u.seq.back().row0 + u.seq.back().n_row, n_seq = (int)seq.size(), n_tile = (n_row + 63) / 64 * 64;
    const size_t width = m.q_size(), stride = width + 16, guard = 4096;
    std::vector<uint16_t> q((size_t)n_row * stride, 0xffff), out;
    size_t at = 0;
    for (const placed &t : seq) {
        for (int r : t.row) {
            std::copy_n(&t.s->q[(size_t)r * width], width, &q[at]);
            at += stride;
        }
    }
    dev<gr_attn_seq> d_seq(u.seq);
    dev<int32_t> d_n(std::vector<int32_t>{n_seq});
    dev<uint16_t> d_q(q), d_out(2 * guard + gr_cuda_tile_bytes(n_row, (int)width) / 2);
    gr_cuda_attention_args a{};
    a.shape = {m.n_head, m.n_kv_head, m.head_dim, n_row + 3, n_seq + 1, 64, n_split_max};
    for (const placed &t : seq) {
        a.shape.n_slot_max = std::max(a.shape.n_slot_max, 16 * (int)t.scratch_block.size());
    }
    dev<uint8_t> plan(gr_cuda_attn_plan_bytes(&a.shape)), work(gr_cuda_attn_work_bytes(&a.shape));
    a.kv = kv.p, a.q = d_q.p, a.out = d_out.p + guard, a.seq = d_seq.p, a.plan = plan.p, a.work = work.p;
    a.n_row = n_row, a.n_seq = n_seq, a.q_stride = (int)stride, a.layer = 1;
    a.scale = 1.0f / sqrtf((float)m.head_dim), a.window = seq.front().window;
    std::vector<uint16_t> first;
    for (int i = 0; i < n_repeat; i++) {
        plan.poison(), work.poison(), d_out.poison();
        const gr_cuda_attn_plan_args p{a.shape, a.seq, d_n.p, plan.p, nullptr, a.window};
        if (gr_cuda_attn_plan(&p, nullptr) != GR_OK || gr_cuda_attention(&a, nullptr) != GR_OK) {
            fail("launch");
        }
        CUDA_OK(cudaDeviceSynchronize());
        out = d_out.get();
        if (i > 0 && out != first) {
            fail("the same call again gives other bits");
        }
        first = out;
    }
    int32_t error = 0;
    CUDA_OK(cudaMemcpy(&error, gr_cuda_attn_plan_error(plan.p), 4, cudaMemcpyDeviceToHost));
    refused = error != 0;
    std::vector<uint16_t> rows;
    for (int r = 0; r < n_tile; r++) {
        for (int c = 0; c < (int)width; c++) {
            uint16_t &x = out[guard + gr_cuda_tile_at(r, c, (int)width)];
            if (r < n_row && !refused) {
                rows.push_back(x);
                x = 0xffff;
            }
        }
    }
    if (std::any_of(out.begin(), out.end(), [](uint16_t x) { return x != 0xffff; })) {
        fail("written outside of the output");
    }
    return rows;
}

/* The keys of the session that row i of t sees through KV head h's list, in order. */
static std::vector<int> visible(const placed &t, size_t i, int h)
{
    const int r = t.row[i], n_far = t.sparse.empty() ? 0 : t.dense_from;
    std::vector<int> keys;
    if (!t.sparse.empty()) {
        const int32_t *list = &t.sparse[(size_t)(t.s->m.n_kv_head + h) * t.sparse_stride]; /* layer 1 */
        for (int n = 0; n < t.n_sparse; n++) {
            for (int l = 0; l < 16; l++) {
                keys.push_back(list[n] * GR_KV_BLOCK_TOKENS + l);
            }
        }
    }
    for (int p = n_far; p < t.s->n_base; p++) {
        keys.push_back(p);
    }
    for (int x : t.s->path(r)) {
        keys.push_back(t.s->n_base + x);
    }
    if (t.window > 0 && (int)keys.size() > t.window) { /* not together with a view, so these are all positions */
        keys.erase(keys.begin(), keys.end() - t.window);
    }
    return keys;
}

static double error_of(const placed &t, size_t i, int head, const uint16_t *out)
{
    const session &s = *t.s;
    const int hd = s.m.head_dim, h = head / (s.m.n_head / s.m.n_kv_head);
    const uint16_t *q = &s.q[(size_t)t.row[i] * s.m.q_size() + (size_t)head * hd];
    const std::vector<int> keys = visible(t, i, h);
    std::vector<double> score, ref((size_t)hd, 0.0);
    double top = -INFINITY, sum = 0, d2 = 0, r2 = 0;
    for (int key : keys) {
        double x = 0;
        for (int d = 0; d < hd; d++) {
            x += (double)bf16_value(q[d]) * (double)bf16_value(s.k[(size_t)key * s.m.kv_size() + h * hd + d]);
        }
        score.push_back(x / sqrt((double)hd));
        top = std::max(top, score.back());
    }
    for (size_t n = 0; n < keys.size(); n++) {
        const double w = exp(score[n] - top);
        sum += w;
        for (int d = 0; d < hd; d++) {
            ref[d] += w * (double)bf16_value(s.v[(size_t)keys[n] * s.m.kv_size() + h * hd + d]);
        }
    }
    for (int d = 0; d < hd; d++) {
        const double x = ref[d] / sum, e = (double)bf16_value(out[head * hd + d]) - x;
        d2 += e * e, r2 += x * x;
    }
    const double e = sqrt(d2 / r2);
    return std::isnan(e) ? INFINITY : e;
}

double worst_error(const placed &t, const uint16_t *out, int step)
{
    double worst = 0;
    for (size_t i = 0; i < t.row.size(); i += (size_t)step) {
        for (int head = 0; head < t.s->m.n_head; head++) {
            worst = std::max(worst, error_of(t, i, head, out + i * t.s->m.q_size()));
        }
    }
    return worst;
}
