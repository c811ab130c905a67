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
    if (f->job.in_flight) {
        f->closing = true;
        return;
    }
    gr_kv_table_release(&d->pool, &f->kv.table);
    const struct follow empty = {
        .prefix = gr_prefix_empty(&f->prefix), .builder = f->builder, .kv = {.table = f->kv.table}};
    *f = empty;
}

void drafter_connect(struct follow *f)
{
    f->state = DRAFT_CONNECTING;
}

void drafter_sync(struct follow *f)
{
    f->state = DRAFT_SYNCING;
}

void drafter_follow_on(struct follow *f)
{
    f->state = DRAFT_FOLLOWING;
}

void drafter_fill_up(struct follow *f)
{
    f->state = DRAFT_FULL;
}

void drafter_prefill_all(struct follow *f)
{
    f->prefill_len = f->prefix.len;
}

void drafter_note_desync(struct follow *f)
{
    f->tally.n_desync++;
}

void drafter_note_feature_gap(struct follow *f)
{
    f->tally.n_feature_gap++;
}

void drafter_tally_told(struct follow *f)
{
    f->tally = (struct draft_tally){0};
    f->fallbacks.n_untold = 0;
}

void drafter_count_wire(struct follow *f, size_t bytes)
{
    f->wire.bytes += f->wire.len0 > 0 ? bytes : 0;
}

void drafter_begin_wire(struct follow *f)
{
    f->wire.len0 = f->wire.len0 == 0 ? f->prefix.len : f->wire.len0;
}

/* Tokens from len on are no longer what they were. */
static void forget_from(struct gr_drafter *d, struct follow *f, int32_t len)
{
    drafter_flight_outdated_from(f, len);
    drafter_candidates_cut(f, len);
    drafter_sent_cut(f, len);
    f->prefill_len = GR_MIN(f->prefill_len, len);
    draft_kv_cut(d, f, len);
    drafter_cut_features(d, f, len);
}

void drafter_truncate(struct gr_drafter *d, struct follow *f, int32_t len)
{
    gr_prefix_cut(&f->prefix, len);
    drafter_owe_none(f);
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
    gr_prefix_replace(&f->prefix, pos, (f->prefix.token[pos] + 1) % d->config.n_vocab);
    if (f->kv.shift > 0) { /* what the KV rests on came from the target: it stays, or no tree would grow */
        drafter_candidates_drop(f);
        drafter_sent_forget(f);
    } else {
        forget_from(d, f, pos);
    }
}

void drafter_send_error(struct gr_drafter *d, uint64_t session, enum gr_status code, const char *text)
{
    struct gr_msg m = {.type = GR_MSG_ERROR, .session = session, .error = {.code = (uint32_t)-code}};
    snprintf(m.error.text, sizeof(m.error.text), "%s", text);
    d->io.send_msg(d->io.ctx, &m);
}

void drafter_fall_back(struct gr_drafter *d, struct follow *f, enum gr_fallback reason, const char *detail)
{
    d->counters.n_fallback++;
    gr_fall_back(&f->fallbacks, reason, f->id, 0, detail);
}
