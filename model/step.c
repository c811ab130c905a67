#include "model/step.h"

#include "common/base/log.h"
#include "common/rules/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAGIC 0x67725450u /* "grTP" */

struct record {
    uint32_t magic, kind;
    uint64_t number;
    int32_t n_row, n_seq, n_out, n_refresh; /* FORWARD; COPY: n_row cells; VIEWS: n_seq of them */
    uint64_t bytes, hash;                   /* of the payload */
};

/* Of a sequence; its arrays follow: limit, n_anc (n_row), block, scratch_block, slots of all rows' ancestors. */
struct seq_record {
    int32_t row0, n_row, n_slot, n_block, n_anc_all;
    int32_t view, n_sparse, dense_from; /* view -1: none */
};

/* ---- a payload, written and read ---- */

struct cursor {
    char *at;
    size_t left;
    bool fits;
};

static size_t padded(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

static void *room(struct cursor *c, size_t bytes)
{
    char *p = c->at;
    c->fits = c->fits && padded(bytes) <= c->left;
    if (!c->fits) {
        return NULL;
    }
    c->at += padded(bytes);
    c->left -= padded(bytes);
    return p;
}

static void put(struct cursor *c, const void *data, size_t bytes)
{
    void *p = room(c, bytes);
    if (p != NULL && bytes > 0) {
        memcpy(p, data, bytes);
    }
}

static void put_ids(struct cursor *c, const int32_t *id, int n)
{
    put(c, id, (size_t)n * sizeof(*id));
}

static const int32_t *take_ids(struct cursor *c, int n)
{
    return n >= 0 ? room(c, (size_t)n * sizeof(int32_t)) : NULL;
}

static uint64_t hash_of(const char *data, size_t bytes)
{
    uint64_t h = 0;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t v = 0;
        memcpy(&v, data + i, sizeof(v));
        h = gr_mix64(h ^ v);
    }
    return h;
}

/* ---- start ---- */

static int scratch_blocks(int n_slot)
{
    return (n_slot + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
}

static int context_blocks(const struct gr_lm *lm)
{
    return (lm->n_ctx_max + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
}

/* The largest batch, and the longest list of copies. */
static size_t payload_max(const struct gr_lm *lm, int n_seq_max)
{
    const size_t per_row = 8 * sizeof(int32_t) + GR_ATTN_ANC_MAX * sizeof(int16_t);
    const size_t per_seq = sizeof(struct seq_record) + sizeof(struct gr_kv_refresh) + sizeof(uint64_t) * 16 +
                           (size_t)(context_blocks(lm) + lm->n_scratch_block) * sizeof(int32_t);
    return padded((size_t)(lm->n_row_max + lm->n_out_max) * per_row + (size_t)n_seq_max * per_seq);
}

enum gr_status gr_steps_init(struct gr_steps *s, struct gr_memory *memory, struct gr_group *group, struct gr_lm *lm,
                             int n_seq_max)
{
    *s = (struct gr_steps){.group = group, .lm = lm, .n_seq_max = n_seq_max};
    s->payload_max = payload_max(lm, n_seq_max);
    s->payload = gr_memory_take(memory, s->payload_max);
    s->seq = gr_memory_take(memory, (size_t)n_seq_max * sizeof(*s->seq));
    s->refresh = gr_memory_take(memory, (size_t)n_seq_max * sizeof(*s->refresh));
    s->anc = gr_memory_take(memory, (size_t)lm->n_row_max * GR_ATTN_ANC_MAX * sizeof(*s->anc));
    return s->payload != NULL && s->seq != NULL && s->refresh != NULL && s->anc != NULL ? GR_OK : GR_ENOMEM;
}

/* ---- rank 0 ---- */

static enum gr_status send(struct gr_steps *s, struct record *r, const struct cursor *c)
{
    if (!c->fits) {
        log_error("a step of %d rows in %d sequences is larger than a tensor-parallel group was made for", r->n_row,
                  r->n_seq);
        return GR_ELIMIT;
    }
    r->magic = MAGIC;
    r->number = ++s->number;
    r->bytes = s->payload_max - c->left;
    r->hash = hash_of(s->payload, r->bytes);
    GR_TRY(gr_group_broadcast(s->group, r, sizeof(*r)));
    s->group->step = s->number;
    return r->bytes > 0 ? gr_group_broadcast(s->group, s->payload, r->bytes) : GR_OK;
}

static struct cursor begin(const struct gr_steps *s)
{
    return (struct cursor){.at = s->payload, .left = s->payload_max, .fits = true};
}

static int view_of(const struct gr_lm *lm, const struct gr_attn_seq *q)
{
    for (int i = 0; q->sparse != NULL && i < lm->n_view; i++) {
        if (lm->view[i].list == q->sparse) {
            return i;
        }
    }
    GR_ASSERT(q->sparse == NULL);
    return -1;
}

/* Blocks that a sequence's rows may look into. */
static int blocks_of(const struct gr_batch *b, int i_seq)
{
    const struct gr_attn_seq *q = &b->seq[i_seq];
    int end = 0;
    for (int r = 0; r < q->n_row; r++) {
        end = GR_MAX(end, q->limit[r]);
    }
    for (int i = 0; i < b->n_refresh; i++) {
        end = b->refresh[i].i_seq == i_seq ? GR_MAX(end, b->refresh[i].kv_len) : end;
    }
    return (end + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
}

static int all_ancestors(const struct gr_attn_seq *q)
{
    int n = 0;
    for (int r = 0; r < q->n_row; r++) {
        n += q->n_anc[r];
    }
    return n;
}

static void put_seq(struct cursor *c, const struct gr_lm *lm, const struct gr_batch *b, int i)
{
    const struct gr_attn_seq *q = &b->seq[i];
    const struct seq_record r = {.row0 = q->row0,
                                 .n_row = q->n_row,
                                 .n_slot = q->n_slot,
                                 .n_block = blocks_of(b, i),
                                 .n_anc_all = all_ancestors(q),
                                 .view = view_of(lm, q),
                                 .n_sparse = q->n_sparse,
                                 .dense_from = q->dense_from};
    put(c, &r, sizeof(r));
    put_ids(c, q->limit, q->n_row);
    put_ids(c, q->n_anc, q->n_row);
    put_ids(c, q->block, r.n_block);
    put_ids(c, q->scratch_block, scratch_blocks(q->n_slot));
    int16_t *anc = room(c, (size_t)r.n_anc_all * sizeof(*anc));
    for (int k = 0; anc != NULL && k < q->n_row; k++) {
        if (q->n_anc[k] > 0) {
            memcpy(anc, q->anc + (size_t)k * GR_ATTN_ANC_MAX, (size_t)q->n_anc[k] * sizeof(*anc));
            anc += q->n_anc[k];
        }
    }
}

enum gr_status gr_steps_forward(struct gr_steps *s, const struct gr_batch *b)
{
    struct cursor c = begin(s);
    struct record r = {
        .kind = GR_STEP_FORWARD, .n_row = b->n_row, .n_seq = b->n_seq, .n_out = b->n_out, .n_refresh = b->n_refresh};
    GR_ASSERT(b->n_seq <= s->n_seq_max && b->n_refresh <= s->n_seq_max);
    put_ids(&c, b->token, b->n_row);
    put_ids(&c, b->pos, b->n_row);
    put_ids(&c, b->cell, b->n_row);
    put_ids(&c, b->out_row, b->n_out);
    for (int i = 0; i < b->n_seq; i++) {
        put_seq(&c, s->lm, b, i);
    }
    for (int i = 0; i < b->n_refresh; i++) {
        put(&c, &b->refresh[i], sizeof(b->refresh[i]));
        put_ids(&c, &s->lm->view[b->refresh[i].view].n_summed, 1);
    }
    return send(s, &r, &c);
}

enum gr_status gr_steps_copy(struct gr_steps *s, int n, const int32_t *src, const int32_t *dst)
{
    struct cursor c = begin(s);
    struct record r = {.kind = GR_STEP_COPY, .n_row = n};
    put_ids(&c, src, n);
    put_ids(&c, dst, n);
    return send(s, &r, &c);
}

enum gr_status gr_steps_views(struct gr_steps *s, const struct gr_kv_budget *most, int n_view)
{
    struct cursor c = begin(s);
    struct record r = {.kind = GR_STEP_VIEWS, .n_seq = n_view};
    put(&c, most, sizeof(*most));
    return send(s, &r, &c);
}

enum gr_status gr_steps_say(struct gr_steps *s, enum gr_step_kind kind)
{
    struct cursor c = begin(s);
    struct record r = {.kind = kind};
    return send(s, &r, &c);
}

/* ---- the others ---- */

static enum gr_status wrong(struct gr_steps *s, const char *what)
{
    log_error("tensor-parallel rank %d: after step %" PRIu64 " rank 0 sent %s: the group ends", s->group->rank,
              s->number, what);
    s->group->status = GR_EPROTO;
    s->group->ops->abort(s->group);
    return GR_EPROTO;
}

static bool all_within(const int32_t *v, int n, int32_t end)
{
    bool ok = v != NULL;
    for (int i = 0; ok && i < n; i++) {
        ok = v[i] >= 0 && v[i] < end;
    }
    return ok;
}

static int32_t n_cell(const struct gr_lm *lm)
{
    return (lm->n_pool_block + lm->n_scratch_block) * GR_KV_BLOCK_TOKENS;
}

static bool take_ancestors(struct cursor *c, const struct seq_record *r, const int32_t *n_anc, int16_t *out)
{
    const int16_t *anc = r->n_anc_all >= 0 ? room(c, (size_t)r->n_anc_all * sizeof(*anc)) : NULL;
    int left = r->n_anc_all;
    for (int k = 0; anc != NULL && k < r->n_row; k++) {
        left -= n_anc[k];
        if (left < 0) {
            return false;
        }
        for (int i = 0; i < n_anc[k]; i++) {
            const int16_t slot = *anc++;
            if (slot < 0 || slot >= r->n_slot) {
                return false;
            }
            out[(size_t)k * GR_ATTN_ANC_MAX + (size_t)i] = slot;
        }
    }
    return anc != NULL && left == 0;
}

static bool attend(const struct gr_lm *lm, const struct seq_record *r, struct gr_attn_seq *q)
{
    if (r->view < 0) {
        return true;
    }
    if (r->view >= lm->n_view || r->n_sparse < 0 || r->n_sparse > lm->view[r->view].n_list_max) {
        return false;
    }
    q->sparse = lm->view[r->view].list;
    q->sparse_stride = lm->view[r->view].n_list_max;
    q->n_sparse = r->n_sparse;
    q->dense_from = r->dense_from;
    return true;
}

static bool take_seq(struct gr_steps *s, struct cursor *c, const struct record *all, struct gr_attn_seq *q)
{
    const struct gr_lm *lm = s->lm;
    const struct seq_record *r = room(c, sizeof(*r));
    if (r == NULL || r->row0 < 0 || r->n_row < 0 || r->row0 > all->n_row - r->n_row || r->n_slot < 0 ||
        r->n_block > context_blocks(lm)) {
        return false;
    }
    int16_t *anc = s->anc + (size_t)r->row0 * GR_ATTN_ANC_MAX;
    *q = (struct gr_attn_seq){.row0 = r->row0, .n_row = r->n_row, .n_slot = r->n_slot, .anc = anc};
    q->limit = take_ids(c, r->n_row);
    q->n_anc = take_ids(c, r->n_row);
    q->block = take_ids(c, r->n_block);
    q->scratch_block = take_ids(c, scratch_blocks(r->n_slot));
    return all_within(q->limit, r->n_row, r->n_block * GR_KV_BLOCK_TOKENS + 1) &&
           all_within(q->n_anc, r->n_row, GR_ATTN_ANC_MAX + 1) && all_within(q->block, r->n_block, lm->n_pool_block) &&
           all_within(q->scratch_block, scratch_blocks(r->n_slot), lm->n_pool_block + lm->n_scratch_block) &&
           take_ancestors(c, r, q->n_anc, anc) && attend(lm, r, q);
}

static bool take_refresh(struct gr_steps *s, struct cursor *c, const struct record *all, int i)
{
    const struct gr_kv_refresh *r = room(c, sizeof(*r));
    const int32_t *n_summed = take_ids(c, 1);
    if (n_summed == NULL || r->view < 0 || r->view >= s->lm->n_view || r->i_seq < 0 || r->i_seq >= all->n_seq ||
        r->row0 < 0 || r->n_row < 1 || r->row0 > all->n_row - r->n_row) {
        return false;
    }
    s->refresh[i] = *r;
    s->lm->view[r->view].n_summed = *n_summed;
    return true;
}

static bool take_batch(struct gr_steps *s, struct cursor *c, const struct record *r, struct gr_batch *b)
{
    const struct gr_lm *lm = s->lm;
    if (r->n_row < 1 || r->n_row > lm->n_row_max || r->n_out < 0 || r->n_out > lm->n_out_max || r->n_seq < 0 ||
        r->n_seq > s->n_seq_max || r->n_refresh < 0 || r->n_refresh > s->n_seq_max) {
        return false;
    }
    *b = (struct gr_batch){.n_row = r->n_row,
                           .n_seq = r->n_seq,
                           .n_out = r->n_out,
                           .seq = s->seq,
                           .n_refresh = r->n_refresh,
                           .refresh = s->refresh};
    b->token = take_ids(c, r->n_row);
    b->pos = take_ids(c, r->n_row);
    b->cell = take_ids(c, r->n_row);
    b->out_row = take_ids(c, r->n_out);
    bool ok = all_within(b->token, r->n_row, lm->n_vocab) && all_within(b->pos, r->n_row, lm->n_ctx_max) &&
              all_within(b->cell, r->n_row, n_cell(lm)) && all_within(b->out_row, r->n_out, r->n_row);
    for (int i = 0; ok && i < r->n_seq; i++) {
        ok = take_seq(s, c, r, &s->seq[i]);
    }
    for (int i = 0; ok && i < r->n_refresh; i++) {
        ok = take_refresh(s, c, r, i);
    }
    return ok;
}

static bool take_copy(struct gr_steps *s, struct cursor *c, const struct record *r, struct gr_step *out)
{
    out->n_copy = r->n_row;
    out->src = take_ids(c, r->n_row);
    out->dst = take_ids(c, r->n_row);
    return all_within(out->src, r->n_row, n_cell(s->lm)) && all_within(out->dst, r->n_row, n_cell(s->lm));
}

static bool take_views(struct cursor *c, const struct record *r, struct gr_step *out)
{
    const struct gr_kv_budget *most = room(c, sizeof(*most));
    out->n_view = r->n_seq;
    if (most != NULL) {
        out->most = *most;
    }
    return most != NULL && r->n_seq >= 1;
}

static bool take_step(struct gr_steps *s, const struct record *r, struct gr_step *out)
{
    struct cursor c = {.at = s->payload, .left = r->bytes, .fits = true};
    *out = (struct gr_step){.kind = (enum gr_step_kind)r->kind};
    switch (out->kind) {
    case GR_STEP_FORWARD:
        return take_batch(s, &c, r, &out->batch);
    case GR_STEP_COPY:
        return take_copy(s, &c, r, out);
    case GR_STEP_VIEWS:
        return take_views(&c, r, out);
    case GR_STEP_NO_VIEWS:
    case GR_STEP_END:
        return true;
    }
    return false;
}

static enum gr_status next_record(struct gr_steps *s, struct record *r)
{
    const uint64_t limit_ns = s->group->limit_ns;
    s->group->limit_ns = 0;
    const enum gr_status st = gr_group_broadcast(s->group, r, sizeof(*r));
    s->group->limit_ns = limit_ns;
    return st;
}

enum gr_status gr_steps_next(struct gr_steps *s, struct gr_step *out)
{
    struct record r;
    char what[96];
    GR_TRY(next_record(s, &r));
    if (r.magic != MAGIC || r.number != s->number + 1 || r.bytes > s->payload_max) {
        snprintf(what, sizeof(what), "step %" PRIu64 " of %" PRIu64 " bytes", r.number, r.bytes);
        return wrong(s, what);
    }
    s->number = s->group->step = r.number;
    if (r.bytes > 0) {
        GR_TRY(gr_group_broadcast(s->group, s->payload, r.bytes));
    }
    if (r.hash != hash_of(s->payload, r.bytes) || !take_step(s, &r, out)) {
        snprintf(what, sizeof(what), "a step of kind %" PRIu32 " with %d rows that cannot be", r.kind, r.n_row);
        return wrong(s, what);
    }
    return GR_OK;
}
