/* A session that the drafter follows: found, cut, extended, freed. Everything above stands on this. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rules/hash.h"
#include "draft_worker/machine/drafter_internal.h"

#include <stdio.h>

struct session *drafter_find(struct gr_drafter *d, uint64_t id)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        if (d->session[i].state != DRAFT_FREE && !d->session[i].closing && d->session[i].id == id) {
            return &d->session[i];
        }
    }
    return NULL;
}

void drafter_note_asked(struct session *s, uint64_t now_ns)
{
    s->asked_ns = now_ns;
}

/* Nobody tells a drafter that a turn is over, or that its trees rest for a while: who has not asked for a tree for a
 * second, and for some rounds where rounds are long, has none. */
static bool is_in_rounds(const struct session *s, uint64_t now_ns)
{
    const uint64_t limit_ns = GR_MAX((uint64_t)GR_S, (uint64_t)(4.0F * s->rate_ns));
    const bool follows = s->state == DRAFT_FOLLOWING || s->state == DRAFT_SYNCING;
    return follows && !s->closing && s->asked_ns != 0 && now_ns - GR_MIN(s->asked_ns, now_ns) <= limit_ns;
}

int drafter_n_in_rounds(struct gr_drafter *d, uint64_t now_ns, uint64_t max_age_ns)
{
    if (d->counted_ns == 0 || now_ns - GR_MIN(d->counted_ns, now_ns) >= max_age_ns) {
        d->n_in_rounds = 0;
        for (int i = 0; i < d->config.n_session_max; i++) {
            d->n_in_rounds += is_in_rounds(&d->session[i], now_ns);
        }
        d->counted_ns = now_ns;
    }
    return d->n_in_rounds;
}

void drafter_free(struct gr_drafter *d, struct session *s)
{
    if (s->job.in_flight) {
        s->closing = true;
        return;
    }
    gr_kv_table_release(&d->pool, &s->kv.table);
    const struct session empty = {
        .prefix = gr_prefix_empty(&s->prefix), .builder = s->builder, .kv = {.table = s->kv.table}};
    *s = empty;
}

void drafter_orphan(struct session *s)
{
    s->orphaned = true;
}

void drafter_connect(struct session *s)
{
    s->orphaned = false;
    s->state = DRAFT_CONNECTING;
}

void drafter_sync(struct session *s)
{
    s->state = DRAFT_SYNCING;
}

void drafter_follow_on(struct session *s)
{
    s->state = DRAFT_FOLLOWING;
}

void drafter_fill_up(struct session *s)
{
    s->state = DRAFT_FULL;
}

void drafter_prefill_all(struct session *s)
{
    s->prefill_len = s->prefix.len;
}

void drafter_note_desync(struct session *s)
{
    s->tally.n_desync++;
}

void drafter_note_feature_gap(struct session *s)
{
    s->tally.n_feature_gap++;
}

void drafter_tally_told(struct session *s)
{
    s->tally = (struct draft_tally){0};
    s->fallbacks.n_untold = 0;
}

void drafter_count_wire(struct session *s, size_t bytes)
{
    s->wire.bytes += s->wire.len0 > 0 ? bytes : 0;
}

void drafter_begin_wire(struct session *s)
{
    s->wire.len0 = s->wire.len0 == 0 ? s->prefix.len : s->wire.len0;
}

/* Tokens from len on are no longer what they were. */
static void forget_from(struct gr_drafter *d, struct session *s, int32_t len)
{
    drafter_flight_outdated_from(s, len);
    drafter_candidates_cut(s, len);
    drafter_sent_cut(s, len);
    s->prefill_len = GR_MIN(s->prefill_len, len);
    draft_kv_cut(d, s, len);
    drafter_cut_features(d, s, len);
}

void drafter_truncate(struct gr_drafter *d, struct session *s, int32_t len)
{
    gr_prefix_cut(&s->prefix, len);
    drafter_owe_none(s);
    forget_from(d, s, len);
}

void drafter_append(struct gr_drafter *d, struct session *s, int32_t token)
{
    GR_ASSERT(s->prefix.len < d->config.n_ctx_max);
    gr_prefix_append(&s->prefix, token);
}

void drafter_test_flip(struct gr_drafter *d, struct session *s)
{
    const int32_t pos = s->prefix.len / 2;
    s->flipped = true;
    gr_prefix_replace(&s->prefix, pos, (s->prefix.token[pos] + 1) % d->config.n_vocab);
    if (s->kv.shift > 0) { /* what the KV rests on came from the target: it stays, or no tree would grow */
        drafter_candidates_drop(s);
        drafter_sent_forget(s);
    } else {
        forget_from(d, s, pos);
    }
}

void drafter_send_error(struct gr_drafter *d, uint64_t session, enum gr_status code, const char *text)
{
    struct gr_msg m = {.type = GR_MSG_ERROR, .session = session, .error = {.code = (uint32_t)-code}};
    snprintf(m.error.text, sizeof(m.error.text), "%s", text);
    d->io.send_msg(d->io.ctx, &m);
}

void drafter_log_about(const struct session *s)
{
    gr_log_about(&(struct gr_log_subject){.session = s->id, .epoch = s->epoch, .round = s->owed.round});
}

static void tell_fallback(struct gr_fallbacks *where, const struct session *s, enum gr_fallback reason,
                          const char *detail)
{
    const struct gr_log_subject before = gr_log_subject_now();
    drafter_log_about(s);
    gr_fall_back(where, reason, s->id, 0, detail);
    gr_log_about(&before);
}

void drafter_fall_back(struct gr_drafter *d, struct session *s, enum gr_fallback reason, const char *detail)
{
    d->counters.n_fallback++;
    tell_fallback(&s->fallbacks, s, reason, detail);
}

void drafter_fall_back_all(struct gr_drafter *d, struct session *s, enum gr_fallback reason, const char *detail)
{
    d->counters.n_fallback++;
    s->fallbacks.n_untold++;
    tell_fallback(&d->fallbacks, s, reason, detail);
}
