/* Frames in: DRAFT, RESYNC, TAKEN. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>

static void count_desync(struct gr_target *t, struct session *s, uint32_t peer, const struct gr_frame_header *h,
                         enum gr_desync_reason reason)
{
    target_note_desync(t, s);
    if (gr_is_told(s->tally.n_desync_all)) {
        log_warn("session %" GR_SESSION_ID_PRI
                 " round %u: desync: a DRAFT on base_len %u where %d is committed (reason %d), %u by "
                 "now",
                 s->id, s->next.round, h->base_len, s->prefix.len, reason, s->tally.n_desync_all);
    }
    target_send_desync(t, peer, h, reason, (uint32_t)s->prefix.len);
}

/* Stale: an older epoch, a round before the fence, a replay. Dropped without a word. */
static bool is_stale(const struct session *s, uint32_t peer, const struct gr_frame_header *h)
{
    return s->link.peer != peer || h->epoch < s->epoch || h->round < s->link.fence_round ||
           (s->link.used_round > 0 && h->round <= s->link.used_round) ||
           (s->draft.valid && (h->base_len < s->draft.base_len || h->round < s->draft.round)) ||
           (s->probe.valid && h->round <= s->probe.round);
}

/* 0: it fits the committed prefix. */
static enum gr_desync_reason desync_reason(const struct session *s, const struct gr_frame_header *h)
{
    if (h->epoch > s->epoch) {
        return GR_DESYNC_EPOCH;
    }
    if (h->base_len > (uint32_t)s->prefix.len) {
        return GR_DESYNC_AHEAD;
    }
    return h->base_len < 1 || h->prefix_hash != s->prefix.hash[h->base_len] ? GR_DESYNC_HASH : 0;
}

static uint64_t draft_ns_of(const struct gr_frame_header *h)
{
    return (uint64_t)(h->flags & GR_FRAME_DRAFT_TIME) * GR_FRAME_DRAFT_UNIT_NS;
}

/* As COMMIT tells it. */
static uint32_t ahead_of(const struct gr_frame_header *h)
{
    return (h->flags & GR_FRAME_DRAFT_AHEAD) == 0 ? 0 : (h->flags & GR_FRAME_DRAFT_HIT) == 0 ? 1 : 2;
}

/* A tree that fits the prefix: for the next pass, or a probe's; after its base it may still hold below a node. */
static void take_tree(struct gr_target *t, struct session *s, const struct gr_frame_header *h,
                      const struct gr_token_tree *tree, uint64_t now_ns)
{
    struct walked_tree w = {.valid = true,
                            .round = h->round,
                            .base_len = h->base_len,
                            .arrived_ns = now_ns,
                            .draft_ns = draft_ns_of(h),
                            .ahead = ahead_of(h),
                            .at_len = (int32_t)h->base_len,
                            .root = -1,
                            .tree = *tree};
    const bool waited = s->link.warm || !s->wishes.auto_tree;
    if (!s->link.warm) {
        target_link_warm(&s->link);
        gr_spec_econ_warm(target_econ(s), target_in_turn(t) == 1);
        if (s->wishes.auto_tree) {
            target_link_answered(&s->link);
        }
        target_forget_probe_sent(s);
    }
    if (s->link.asked && h->round == s->link.asked_round) {
        const double latency_ns = (double)(now_ns - GR_MIN(s->link.asked_ns, now_ns));
        const double drafting_ns = GR_MIN((double)w.draft_ns, latency_ns);
        gr_spec_econ_latency(target_econ(s), latency_ns, true);
        if (w.draft_ns > 0) { /* what is left of the latency is the wire's and the loops' */
            s->wire_ns += (s->wire_ns > 0.0 ? 0.1 : 1.0) * (latency_ns - drafting_ns - s->wire_ns);
        }
        target_link_answered(&s->link);
    }
    if (s->wishes.auto_tree && !waited) {
        return; /* it came with the drafter's prefix: how late it is says nothing */
    }
    if (s->wishes.auto_tree && target_econ(s)->is_root) {
        s->probe = w;
        target_judge_probe(t, s);
        return;
    }
    const bool late = h->base_len < (uint32_t)s->prefix.len;
    if (late && waited) {
        target_note_late(t, s);
    }
    if (target_walk_tree(s, &w) && (!late || target_has_children(&w))) {
        s->draft = w;
    }
}

static enum gr_status on_draft(struct gr_target *t, uint32_t peer, const struct gr_frame_header *h,
                               const uint8_t *frame, size_t len, uint64_t now_ns)
{
    struct gr_token_tree tree;
    GR_TRY(gr_wire_decode_draft(frame, len, t->config.n_vocab, &tree));
    t->counters.n_draft_frame++;
    struct session *s = target_find(t, h->session);
    if (s == NULL || s->state == SESSION_IDLE) {
        t->counters.n_draft_stale++; /* the turn ended while the tree was on its way */
        return GR_OK;
    }
    if (!s->link.attached) {
        t->counters.n_draft_stale++;
        target_send_desync(t, peer, h, GR_DESYNC_DETACHED, (uint32_t)s->prefix.len);
        return GR_OK;
    }
    if (is_stale(s, peer, h)) {
        t->counters.n_draft_stale++;
        return GR_OK;
    }
    target_link_heard(&s->link);
    const enum gr_desync_reason reason = desync_reason(s, h);
    if (reason != 0) {
        count_desync(t, s, peer, h, reason);
        return GR_OK;
    }
    take_tree(t, s, h, &tree, now_ns);
    return GR_OK;
}

/* Longest prefix both sides share, of the lengths the RESYNC names; 0 is always shared. */
static uint32_t common_length(const struct session *s, const struct gr_resync *r)
{
    uint32_t lengths[GR_RESYNC_HASH_MAX];
    int n = gr_resync_lengths(r->my_len, lengths);
    for (int i = 0; i < n; i++) {
        if (lengths[i] <= (uint32_t)s->prefix.len && r->hash[i] == s->prefix.hash[lengths[i]]) {
            return lengths[i];
        }
    }
    return 0;
}

static enum gr_status on_resync(struct gr_target *t, uint32_t peer, const struct gr_frame_header *h,
                                const uint8_t *frame, size_t len, uint64_t now_ns)
{
    struct gr_resync r;
    GR_TRY(gr_wire_decode_resync(frame, len, &r));
    struct session *s = target_find(t, h->session);
    if (s == NULL || s->epoch != h->epoch) {
        target_send_desync(t, peer, h, GR_DESYNC_UNKNOWN_SESSION, 0);
        return GR_OK;
    }
    t->counters.n_resync++;
    if (r.feature_len != GR_FEATURES_NONE && t->config.feature_width == 0) {
        target_drop_drafter(t, s, GR_FALLBACK_HEAD_UNFED);
        return GR_OK;
    }
    s->with_draft = true;
    target_forget_trees(s);
    target_link_attach(&s->link, peer, (int32_t)common_length(s, &r), s->next.round + (s->flight.in_pass ? 1 : 0));
    target_flight_resync(&s->flight);
    target_forget_cost(s);
    target_restart_features(s, r.feature_len, r.feature_context);
    target_link_owe(&s->link, !s->wishes.auto_tree ||
                                  !target_drafters_rest(t)); /* else it is told when it is asked for the first tree */
    target_send_cost(t, s);                                  /* before it is asked for a tree */
    if (s->state == SESSION_DECODE && !s->flight.in_pass) {
        target_begin_round(t, s, now_ns);
    }
    target_send_deltas(t, s, false, now_ns);
    return GR_OK;
}

static enum gr_status on_taken(struct gr_target *t, uint32_t peer, const struct gr_frame_header *h,
                               const uint8_t *frame, size_t len)
{
    GR_TRY(gr_wire_decode_taken(frame, len));
    struct session *s = target_find(t, h->session);
    if (s != NULL && s->link.attached && s->link.peer == peer && s->epoch == h->epoch && s->features.taken_by_drafter) {
        target_features_taken(s, h);
    }
    return GR_OK;
}

/* ---- what the drafter is told ---- */

static enum gr_status take_frame(struct gr_target *t, uint32_t peer, const struct gr_frame_header *h,
                                 const uint8_t *frame, size_t len, uint64_t now_ns)
{
    switch (h->type) {
    case GR_FRAME_DRAFT:
        return on_draft(t, peer, h, frame, len, now_ns);
    case GR_FRAME_TAKEN:
        return on_taken(t, peer, h, frame, len);
    case GR_FRAME_RESYNC:
        return on_resync(t, peer, h, frame, len, now_ns);
    default:
        log_error("peer %u sent a frame of type %u to a target", peer, h->type);
        return GR_EPROTO;
    }
}

enum gr_status gr_target_on_frame(struct gr_target *t, uint32_t peer, const uint8_t *frame, size_t len, uint64_t now_ns)
{
    struct gr_frame_header h;
    GR_TRY(gr_wire_decode_header(frame, len, &h));
    gr_log_about(&(struct gr_log_subject){.session = h.session, .epoch = h.epoch, .round = h.round});
    const enum gr_status st = take_frame(t, peer, &h, frame, len, now_ns);
    gr_log_about(NULL);
    return st;
}
