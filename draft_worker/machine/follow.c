/* A session that the drafter follows: found, cut, extended, freed. Everything above stands on this. */
#include "common/rules/hash.h"
#include "draft_worker/machine/drafter_internal.h"

#include <stdio.h>

struct follow *drafter_find(struct gr_drafter *d, uint64_t id)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        if (d->follow[i].state != DRAFT_FREE && !d->follow[i].closing && d->follow[i].id == id) {
            return &d->follow[i];
        }
    }
    return NULL;
}

void drafter_free(struct gr_drafter *d, struct follow *f)
{
    if (f->in_job) {
        f->closing = true;
        return;
    }
    gr_kv_table_release(&d->pool, &f->table);
    const struct follow empty = {.prefix = gr_prefix_empty(&f->prefix), .builder = f->builder, .table = f->table};
    *f = empty;
}

/* Tokens from len on are no longer what they were. */
static void forget_from(struct gr_drafter *d, struct follow *f, int32_t len)
{
    f->job_stale = f->job_stale || (f->in_job && len < f->job_len);
    f->root_valid = f->root_valid && f->root_len <= len;
    for (int i = 0; i < N_SENT; i++) {
        f->sent[i].valid = f->sent[i].valid && f->sent[i].base_len <= (uint32_t)len;
    }
    f->kv_len = GR_MIN(f->kv_len, len);
    f->prefill_len = GR_MIN(f->prefill_len, len);
    drafter_cut_features(f, len);
    if (!f->in_job) {
        gr_kv_table_truncate(&d->pool, &f->table, drafter_n_cell(f, f->kv_len));
    }
}

void drafter_truncate(struct gr_drafter *d, struct follow *f, int32_t len)
{
    gr_prefix_cut(&f->prefix, len);
    f->ready = f->due = false;
    forget_from(d, f, len);
}

void drafter_append(struct gr_drafter *d, struct follow *f, int32_t token)
{
    GR_ASSERT(f->prefix.len < d->config.n_ctx_max);
    gr_prefix_append(&f->prefix, token);
}

void drafter_test_flip(struct gr_drafter *d, struct follow *f)
{
    const int32_t pos = f->prefix.len / 2;
    f->flipped = true;
    f->prefix.token[pos] = (f->prefix.token[pos] + 1) % d->config.n_vocab;
    for (int32_t i = pos; i < f->prefix.len; i++) {
        f->prefix.hash[i + 1] = gr_hash_extend(f->prefix.hash[i], f->prefix.token[i]);
    }
    if (f->kv_shift > 0) { /* what the KV rests on came from the target: it stays, or no tree would grow */
        f->root_valid = f->sent[0].valid = f->sent[1].valid = false;
    } else {
        forget_from(d, f, pos);
    }
}

void drafter_send_error(struct gr_drafter *d, uint64_t session, enum gr_status code, const char *text)
{
    struct gr_msg m = {.type = GR_MSG_ERROR, .session = session, .code = (uint32_t)-code};
    snprintf(m.text, sizeof(m.text), "%s", text);
    d->io.send_msg(d->io.ctx, &m);
}

void drafter_fall_back(struct gr_drafter *d, struct follow *f, enum gr_fallback reason, const char *detail)
{
    d->counters.n_fallback++;
    gr_fall_back(&f->fallbacks, reason, f->id, 0, detail);
}
