/* The target's side of the data path: DRAFT and RESYNC in; VERDICT, DELTA and DESYNC out. */
#include "common/log.h"
#include "target_worker/target_internal.h"

#include <inttypes.h>

static void send_desync(struct gr_target *t, uint32_t peer, const struct gr_frame_header *about,
                        enum gr_desync_reason reason, uint32_t my_len)
{
    const struct gr_frame_header h = {.session = about->session, .epoch = about->epoch, .round = about->round,
                                      .base_len = about->base_len, .prefix_hash = about->prefix_hash};
    uint8_t *out = t->io.frame_begin(t->io.ctx, peer, GR_FRAME_SMALL, GR_WIRE_HEADER_BYTES + 8);
    if (out != NULL) {
        size_t n = gr_wire_encode_desync(&h, reason, my_len, out, GR_WIRE_HEADER_BYTES + 8);
        t->io.frame_end(t->io.ctx, peer, (uint32_t)n);
    }
}

static void count_desync(struct gr_target *t, struct session *s, uint32_t peer, const struct gr_frame_header *h,
                         enum gr_desync_reason reason)
{
    t->counters.n_desync++;
    s->n_desync++;
    log_warn("session %" PRIu64 " round %u: desync: a DRAFT on base_len %u where %d is committed (reason %d)", s->id,
             s->round, h->base_len, s->committed_len, reason);
    send_desync(t, peer, h, reason, (uint32_t)s->committed_len);
}

void target_judge_draft(struct gr_target *t, struct session *s)
{
    if (s->draft.base_len != (uint32_t)s->committed_len) {
        s->draft.valid = false; /* its hash was right when it came, so it is merely late */
        s->n_late++;
        t->counters.n_draft_late++;
    }
}

static enum gr_status on_draft(struct gr_target *t, uint32_t peer, const struct gr_frame_header *h,
                               const uint8_t *frame, size_t len, uint64_t now_ns)
{
    struct gr_token_tree tree;
    GR_TRY(gr_wire_decode_draft(frame, len, t->config.n_vocab, &tree));
    t->counters.n_draft_frame++;
    struct session *s = target_find(t, h->session);
    if (s == NULL || (s->state != SESSION_DECODE && s->state != SESSION_PREFILL)) {
        t->counters.n_draft_stale++; /* the session ended while the tree was on its way */
        return GR_OK;
    }
    if (!s->has_peer) {
        t->counters.n_draft_stale++;
        send_desync(t, peer, h, GR_DESYNC_DETACHED, (uint32_t)s->committed_len);
        return GR_OK;
    }
    if (s->peer != peer || h->epoch < s->epoch || h->round < s->fence_round) {
        t->counters.n_draft_stale++;
        return GR_OK;
    }
    s->n_silent = 0;
    if (h->epoch > s->epoch) {
        count_desync(t, s, peer, h, GR_DESYNC_EPOCH);
        return GR_OK;
    }
    if (h->base_len > (uint32_t)s->committed_len) {
        count_desync(t, s, peer, h, GR_DESYNC_AHEAD);
        return GR_OK;
    }
    if (h->prefix_hash != s->hash[h->base_len]) {
        count_desync(t, s, peer, h, GR_DESYNC_HASH);
        return GR_OK;
    }
    if ((s->draft.valid && h->base_len < s->draft.base_len) || (s->in_pass && h->round == s->pass_draft_round)) {
        t->counters.n_draft_stale++; /* a replay: the newest one stays, as does the one that is being verified */
        return GR_OK;
    }
    s->draft = (struct pending_draft){.valid = true, .round = h->round, .base_len = h->base_len,
                                      .arrived_ns = now_ns, .tree = tree};
    target_judge_draft(t, s);
    return GR_OK;
}

/* Longest prefix both sides share, of the lengths the RESYNC names; 0 is always shared. */
static uint32_t common_length(const struct session *s, const struct gr_resync *r)
{
    uint32_t lengths[GR_RESYNC_HASH_MAX];
    int n = gr_resync_lengths(r->my_len, lengths);
    for (int i = 0; i < n; i++) {
        if (lengths[i] <= (uint32_t)s->committed_len && r->hash[i] == s->hash[lengths[i]]) {
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
    if (s == NULL || s->epoch != h->epoch || s->state == SESSION_FINISHED) {
        send_desync(t, peer, h, GR_DESYNC_UNKNOWN_SESSION, 0);
        return GR_OK;
    }
    t->counters.n_resync++;
    s->want_draft = true;
    s->has_peer = true;
    s->ever_attached = true;
    s->peer = peer;
    s->n_silent = 0;
    s->draft.valid = false;
    s->fence_round = s->round + (s->in_pass ? 1 : 0);
    s->delta_pending = true;
    s->delta_at = common_length(s, &r);
    target_send_deltas(t, s, now_ns);
    return GR_OK;
}

/* Sends what the drafter is owed, as far as credit goes; the rest follows in a later step. */
void target_send_deltas(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    while (s->delta_pending && s->has_peer) {
        const uint32_t n_left = (uint32_t)s->committed_len - s->delta_at;
        const uint32_t n = GR_MIN(n_left, GR_DELTA_ID_MAX);
        const uint32_t end = s->delta_at + n;
        const bool last = end == (uint32_t)s->committed_len;
        const bool wants_tree = last && s->state == SESSION_DECODE && !s->in_pass;
        const struct gr_frame_header h = {
            .session = s->id, .epoch = s->epoch, .round = s->round, .base_len = end, .prefix_hash = s->hash[end],
            .flags = (uint16_t)((last ? GR_DELTA_LAST : 0u) | (wants_tree ? GR_DELTA_DRAFT | GR_DELTA_WANT(GR_NODE_MAX) : 0u))};
        const uint32_t bytes = GR_WIRE_HEADER_BYTES + 8 + 4 * n;
        uint8_t *out = t->io.frame_begin(t->io.ctx, s->peer, GR_FRAME_SMALL, bytes);
        if (out == NULL) {
            return;
        }
        size_t n_bytes = gr_wire_encode_delta(&h, s->delta_at, &s->token[s->delta_at], n, out, bytes);
        t->io.frame_end(t->io.ctx, s->peer, (uint32_t)n_bytes);
        s->delta_at = end;
        s->delta_pending = !last;
        if (wants_tree) {
            s->verdict_ns = now_ns;
            s->deadline_ns = now_ns + t->config.round_deadline_ns;
        }
    }
}

void target_send_verdict(struct gr_target *t, struct session *s, const struct gr_frame_header *h,
                         const struct gr_verdict *v)
{
    if (!s->has_peer || s->delta_pending) {
        return; /* nobody listens, or the tokens go with the DELTA that is under way */
    }
    const uint32_t bytes = GR_WIRE_HEADER_BYTES + GR_WIRE_VERDICT_BYTES(v->n_path);
    uint8_t *out = t->io.frame_begin(t->io.ctx, s->peer, GR_FRAME_SMALL, bytes);
    if (out == NULL) {
        /* The drafter does not keep up. The tokens will follow as a DELTA when it does. */
        s->delta_pending = true;
        s->delta_at = h->base_len;
        return;
    }
    size_t n = gr_wire_encode_verdict(h, v, out, bytes);
    t->io.frame_end(t->io.ctx, s->peer, (uint32_t)n);
}

enum gr_status gr_target_on_frame(struct gr_target *t, uint32_t peer, const uint8_t *frame, size_t len,
                                  uint64_t now_ns)
{
    struct gr_frame_header h;
    GR_TRY(gr_wire_decode_header(frame, len, &h));
    switch (h.type) {
    case GR_FRAME_DRAFT:
        return on_draft(t, peer, &h, frame, len, now_ns);
    case GR_FRAME_RESYNC:
        return on_resync(t, peer, &h, frame, len, now_ns);
    default:
        log_error("peer %u sent a frame of type %u to a target", peer, h.type);
        return GR_EPROTO;
    }
}
