#include "tests/kernels/attention_rig.h"

#include "common/base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

CHECK_OP(attention)

void session_init(struct session *s, struct shape m, int n_base, int n_row, int n_branch, float score_scale)
{
    size_t n_kv = (size_t)(n_base + n_row) * m.n_kv_head * m.head_dim;
    size_t n_q = (size_t)n_row * m.n_head * m.head_dim;
    s->n_base = n_base;
    s->n_row = n_row;
    s->k = check_alloc(n_kv * sizeof(float));
    s->v = check_alloc(n_kv * sizeof(float));
    s->q = check_alloc(n_q * sizeof(float));
    fill_f32(s->k, n_kv, FILL_NORMAL);
    fill_f32(s->v, n_kv, FILL_NORMAL);
    fill_f32(s->q, n_q, FILL_NORMAL);
    for (size_t i = 0; i < n_q; i++) {
        s->q[i] *= score_scale;
    }
    for (int r = 0; n_branch > 0 && r < n_row; r++) { /* row 0: the tail */
        s->parent[r] = r == 0 ? -1 : n_branch == 1 ? r - 1 : GR_MAX(0, r - 1 - rng_below(n_branch));
    }
}

void session_free(struct session *s)
{
    free(s->k);
    free(s->v);
    free(s->q);
}

/* Ancestors of row r, itself last. Returns their number. */
int path_of(const struct session *s, int r, int *path)
{
    int n = 0;
    for (int i = r; i >= 0; i = s->parent[i]) {
        path[n++] = i;
    }
    for (int i = 0; i < n / 2; i++) {
        int t = path[i];
        path[i] = path[n - 1 - i];
        path[n - 1 - i] = t;
    }
    return n;
}

void pool_init(struct pool *p, struct shape m, int n_block)
{
    p->m = m;
    p->n_block = n_block;
    p->n_used = 0;
    p->n_value = (size_t)n_block * m.n_kv_head * m.head_dim * GR_KV_BLOCK_TOKENS;
    p->kv = (struct gr_kv_layer){.n_kv_head = m.n_kv_head, .head_dim = m.head_dim};
    p->kv.k = check_alloc(p->n_value * sizeof(float));
    p->kv.v = check_alloc(p->n_value * sizeof(float));
    p->order = check_alloc((size_t)n_block * sizeof(int32_t));
    for (size_t i = 0; i < p->n_value; i++) { /* stale cells: keys finite, values must not be read */
        p->kv.k[i] = i & 1 ? 3e18f : -3e18f;
        p->kv.v[i] = NAN;
    }
    for (int i = 0; i < n_block; i++) {
        int j = rng_below(i + 1);
        p->order[i] = p->order[j];
        p->order[j] = i;
    }
}

void pool_free(struct pool *p)
{
    free(p->kv.k);
    free(p->kv.v);
    free(p->order);
}

static void put_key(struct pool *p, int block, int lane, const struct session *s, int key)
{
    int hd = p->m.head_dim;
    for (int h = 0; h < p->m.n_kv_head; h++) {
        size_t at = ((size_t)block * p->m.n_kv_head + h) * hd * GR_KV_BLOCK_TOKENS;
        size_t from = ((size_t)key * p->m.n_kv_head + h) * hd;
        for (int d = 0; d < hd; d++) {
            p->kv.k[at + (size_t)d * GR_KV_BLOCK_TOKENS + lane] = s->k[from + d];
            p->kv.v[at + (size_t)lane * hd + d] = s->v[from + d];
        }
    }
}

static void placed_alloc(struct placed *t, int n_block, int n_row, int n_scratch)
{
    t->block = check_alloc((size_t)n_block * sizeof(int32_t));
    t->limit = check_alloc((size_t)n_row * sizeof(int32_t));
    t->n_anc = check_alloc((size_t)n_row * sizeof(int32_t));
    t->scratch_block = check_alloc((size_t)n_scratch * sizeof(int32_t));
    t->anc = check_alloc((size_t)n_row * GR_ATTN_ANC_MAX * sizeof(int16_t));
    memset(t->anc, 0x7f, (size_t)n_row * GR_ATTN_ANC_MAX * sizeof(int16_t));
    t->seq = (struct gr_attn_seq){.n_row = n_row,
                                  .block = t->block,
                                  .limit = t->limit,
                                  .scratch_block = t->scratch_block,
                                  .n_anc = t->n_anc,
                                  .anc = t->anc};
}

void placed_free(struct placed *t)
{
    free(t->block);
    free(t->limit);
    free(t->n_anc);
    free(t->scratch_block);
    free(t->anc);
}

static void place_base(struct pool *p, const struct session *s, int n, struct placed *t)
{
    for (int i = 0; i < n; i++) {
        if (i % GR_KV_BLOCK_TOKENS == 0) {
            t->block[i / GR_KV_BLOCK_TOKENS] = p->order[p->n_used++];
        }
        put_key(p, t->block[i / GR_KV_BLOCK_TOKENS], i % GR_KV_BLOCK_TOKENS, s, i);
    }
}

/* The base in the pool, the tree in scratch at slots in random order with gaps. */
void place_tree(struct pool *p, const struct session *s, struct placed *t)
{
    int n_slot = s->n_row + 9, slot[GR_ATTN_ANC_MAX], n_scratch = (n_slot + 15) / 16;
    int all[GR_ATTN_ANC_MAX + 9], path[GR_ATTN_ANC_MAX];
    placed_alloc(t, (s->n_base + 15) / 16, s->n_row, n_scratch);
    place_base(p, s, s->n_base, t);
    for (int i = 0; i < n_scratch; i++) {
        t->scratch_block[i] = p->order[p->n_used++];
    }
    for (int i = 0; i < n_slot; i++) {
        int j = rng_below(i + 1);
        all[i] = all[j];
        all[j] = i;
    }
    for (int r = 0; r < s->n_row; r++) {
        slot[r] = all[r];
        put_key(p, t->scratch_block[slot[r] / GR_KV_BLOCK_TOKENS], slot[r] % GR_KV_BLOCK_TOKENS, s, s->n_base + r);
        t->limit[r] = s->n_base;
        t->n_anc[r] = path_of(s, r, path);
        for (int i = 0; i < t->n_anc[r]; i++) {
            t->anc[(size_t)r * GR_ATTN_ANC_MAX + i] = (int16_t)slot[path[i]];
        }
    }
    t->seq.n_slot = n_slot;
}

/* Only row r, as a chain row: its path is in the pool after the base. */
void place_path(struct pool *p, const struct session *s, int r, struct placed *t)
{
    int path[GR_ATTN_ANC_MAX], n = path_of(s, r, path);
    placed_alloc(t, (s->n_base + n + 15) / 16, 1, 1);
    place_base(p, s, s->n_base, t);
    for (int i = 0; i < n; i++) {
        int pos = s->n_base + i;
        if (pos % GR_KV_BLOCK_TOKENS == 0) {
            t->block[pos / GR_KV_BLOCK_TOKENS] = p->order[p->n_used++];
        }
        put_key(p, t->block[pos / GR_KV_BLOCK_TOKENS], pos % GR_KV_BLOCK_TOKENS, s, s->n_base + path[i]);
    }
    t->limit[0] = s->n_base + n;
    t->n_anc[0] = 0;
}

/* All rows as chain rows: a prompt chunk. */
void place_chain(struct pool *p, const struct session *s, struct placed *t)
{
    placed_alloc(t, (s->n_base + s->n_row + 15) / 16, s->n_row, 1);
    place_base(p, s, s->n_base + s->n_row, t);
    for (int r = 0; r < s->n_row; r++) {
        t->limit[r] = s->n_base + r + 1;
        t->n_anc[r] = 0;
    }
}

/* ---- running ---- */

void attend(const struct gr_kernels *k, const struct pool *p, const struct attend_rows *r, int n_thread)
{
    struct shape m = p->m;
    size_t work_bytes = k->attention_work_bytes(m.n_head, m.n_kv_head, m.head_dim);
    void *work = check_alloc(work_bytes * n_thread);
    struct gr_attention_args a = {
        .kv = p->kv,
        .q = r->q,
        .out = r->out,
        .seq = r->seq,
        .n_seq = r->n_seq,
        .n_head = m.n_head,
        .q_stride = m.n_head * m.head_dim,
        .out_stride = r->out_stride,
        .scale = 1.0f / sqrtf((float)m.head_dim),
        .layer = 1,
        .window = m.window,
        .work = work,
    };
    memset(work, 0xff, work_bytes * n_thread); /* NaN */
    CHECK_CALL(n_thread, attention, k, &a);
    free(work);
}

double tolerance_of(struct shape m, const struct session *s)
{
    double v_max = 0.0, score_max = 0.0;
    size_t n_kv = (size_t)(s->n_base + s->n_row) * m.n_kv_head * m.head_dim;
    for (size_t i = 0; i < n_kv; i++) {
        v_max = fmax(v_max, fabs((double)s->v[i]));
    }
    /* |q| and |k| by their norms: a bound of the sum of |q k| */
    double q_norm = 0.0, k_norm = 0.0;
    for (size_t i = 0; i < (size_t)s->n_row * m.n_head; i++) {
        double sum = 0.0;
        for (int d = 0; d < m.head_dim; d++) {
            sum += (double)s->q[i * m.head_dim + d] * (double)s->q[i * m.head_dim + d];
        }
        q_norm = fmax(q_norm, sqrt(sum));
    }
    for (size_t i = 0; i < n_kv / m.head_dim; i++) {
        double sum = 0.0;
        for (int d = 0; d < m.head_dim; d++) {
            sum += (double)s->k[i * m.head_dim + d] * (double)s->k[i * m.head_dim + d];
        }
        k_norm = fmax(k_norm, sqrt(sum));
    }
    score_max = q_norm * k_norm / sqrt(m.head_dim);
    return CHECK_EPS * v_max * (32.0 + 4.0 * sqrt(m.head_dim) * score_max + 3.0 * sqrt(s->n_base + s->n_row));
}
