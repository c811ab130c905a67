/* Frames out: DRAFT, RESYNC, TAKEN. Nothing here changes what the drafter knows of a session's prefix. */
#include "draft_worker/machine/drafter_internal.h"

#include "common/base/clock.h"

#define COUNT_NS (10 * GR_MS) /* sessions in rounds are counted again after that */

static void end_frame(struct gr_drafter *d, struct session *s, size_t bytes)
{
    drafter_count_wire(s, bytes);
    d->io.frame_end(d->io.ctx, s->peer, (uint32_t)bytes);
}

void drafter_send_resync(struct gr_drafter *d, struct session *s)
{
    struct gr_resync r = {.my_len = (uint32_t)s->prefix.len, .feature_len = GR_FEATURES_NONE};
    uint32_t lengths[GR_RESYNC_HASH_MAX];
    r.n_hash = (uint32_t)gr_resync_lengths(r.my_len, lengths);
    for (uint32_t i = 0; i < r.n_hash; i++) {
        r.hash[i] = s->prefix.hash[lengths[i]];
    }
    const struct gr_frame_header h = {
        .session = s->id, .epoch = s->epoch, .base_len = r.my_len, .prefix_hash = s->prefix.hash[s->prefix.len]};
    const uint32_t bytes = GR_WIRE_HEADER_BYTES + GR_WIRE_RESYNC_BYTES(r.n_hash);
    drafter_sync(s);
    drafter_owe_none(s);
    drafter_sent_forget_last(s);
    if (s->kv.shift > 0) { /* what is held and not yet used comes again: then both count the window alike */
        r.feature_len = (uint32_t)s->features.first;
        r.feature_context = (uint32_t)d->config.feature_context;
        drafter_features_told(s);
    }
    uint8_t *out = d->io.frame_begin(d->io.ctx, s->peer, GR_FRAME_SMALL, bytes);
    s->resync_due = out == NULL; /* no credit: the step tries again */
    if (out == NULL) {
        d->counters.n_no_credit++;
        return;
    }
    d->counters.n_resync++;
    size_t n = gr_wire_encode_resync(&h, &r, out, bytes);
    end_frame(d, s, n);
}

static uint16_t time_flags(uint64_t took_ns)
{
    const uint64_t units = took_ns > 0 ? GR_MAX(took_ns / GR_FRAME_DRAFT_UNIT_NS, 1ull) : 0;
    return (uint16_t)GR_MIN(units, (uint64_t)GR_FRAME_DRAFT_TIME);
}

/* flags: of the DRAFT. False: there is no credit. */
static bool send_draft(struct gr_drafter *d, struct session *s, const struct sent_tree *p, uint16_t flags)
{
    const struct gr_token_tree *t = &p->drafted.tree;
    const struct gr_frame_header h = {.session = s->id,
                                      .epoch = s->epoch,
                                      .round = p->round,
                                      .base_len = p->base_len,
                                      .prefix_hash = p->hash,
                                      .flags = flags};
    const uint32_t bytes = GR_WIRE_HEADER_BYTES + GR_WIRE_DRAFT_BYTES(t->n);
    uint8_t *out = d->io.frame_begin(d->io.ctx, s->peer, GR_FRAME_SMALL, bytes);
    if (out == NULL) {
        d->counters.n_no_credit++;
        return false;
    }
    size_t n = gr_wire_encode_draft(&h, t, out, bytes);
    end_frame(d, s, n);
    d->counters.n_draft_frame++;
    d->counters.n_draft_node += (uint64_t)t->n;
    drafter_sent_note(s, p);
    return true;
}

void drafter_send_tree(struct gr_drafter *d, struct session *s, uint64_t now_ns)
{
    const uint64_t took_ns = now_ns - GR_MIN(s->owed.asked_ns, now_ns);
    if (!send_draft(d, s, &s->owed.grown, (uint16_t)(time_flags(took_ns) | s->owed.ahead))) {
        return;
    }
    if (s->owed.grown.drafted.tree.n > 0) { /* an empty answer says nothing of trees */
        gr_tree_times_note(&d->tree_times, GR_MAX(drafter_n_in_rounds(d, now_ns, COUNT_NS), 1), took_ns);
    }
    s->n_round++;
    s->draft_ns += s->owed.compute_ns;
    s->host_ns += now_ns - s->owed.asked_ns - GR_MIN(s->owed.compute_ns, now_ns - s->owed.asked_ns);
    drafter_owed_sent(s);
}

void drafter_send_late(struct gr_drafter *d, struct session *s, const struct gr_drafted *drafted)
{
    drafter_owed_other(s, s->job.round, (uint32_t)s->job.len, s->prefix.hash[s->job.len], drafted);
    d->counters.n_late_draft += send_draft(d, s, &s->owed.grown, 0);
}

void drafter_answer_empty(struct gr_drafter *d, struct session *s, uint32_t round, uint32_t base_len, uint64_t hash,
                          uint64_t now_ns)
{
    drafter_owed_other(s, round, base_len, hash, NULL);
    drafter_owed_ready(s);
    drafter_send_tree(d, s, now_ns);
}

void drafter_send_taken(struct gr_drafter *d, struct session *s)
{
    if (s->kv.shift == 0) {
        return;
    }
    drafter_let_go(s);
    if (s->features.first - s->features.told < d->config.feature_window / 4 || s->state != DRAFT_FOLLOWING) {
        return;
    }
    const uint32_t at = (uint32_t)s->features.first;
    const struct gr_frame_header h = {
        .session = s->id, .epoch = s->epoch, .base_len = at, .prefix_hash = s->prefix.hash[at]};
    uint8_t *out = d->io.frame_begin(d->io.ctx, s->peer, GR_FRAME_SMALL, GR_WIRE_HEADER_BYTES);
    if (out == NULL) {
        d->counters.n_no_credit++; /* the step tries again */
        return;
    }
    const size_t n = gr_wire_encode_taken(&h, out, GR_WIRE_HEADER_BYTES);
    end_frame(d, s, n);
    drafter_features_told(s);
}
