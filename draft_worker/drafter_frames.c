/* The drafter's side of the data path: VERDICT, DELTA and DESYNC in; DRAFT and RESYNC out. */
#include "common/log.h"
#include "draft_worker/drafter_internal.h"

#include <inttypes.h>

/* ---- out ---- */

void drafter_send_resync(struct gr_drafter *d, struct follow *f)
{
    struct gr_resync r = {.my_len = (uint32_t)f->len};
    uint32_t lengths[GR_RESYNC_HASH_MAX];
    r.n_hash = (uint32_t)gr_resync_lengths(r.my_len, lengths);
    for (uint32_t i = 0; i < r.n_hash; i++) {
        r.hash[i] = f->hash[lengths[i]];
    }
    const struct gr_frame_header h = {.session = f->id, .epoch = f->epoch, .base_len = r.my_len,
                                      .prefix_hash = f->hash[f->len]};
    const uint32_t bytes = GR_WIRE_HEADER_BYTES + 8 + 8 * r.n_hash;
    f->state = DRAFT_SYNCING;
    f->due = f->ready = false;
    uint8_t *out = d->io.frame_begin(d->io.ctx, f->peer, GR_FRAME_SMALL, bytes);
    f->resync_due = out == NULL; /* no credit: the step tries again */
    if (out == NULL) {
        d->counters.n_no_credit++;
        return;
    }
    d->counters.n_resync++;
    size_t n = gr_wire_encode_resync(&h, &r, out, bytes);
    d->io.frame_end(d->io.ctx, f->peer, (uint32_t)n);
}

void drafter_send_tree(struct gr_drafter *d, struct follow *f, uint64_t now_ns)
{
    const struct gr_token_tree *t = &f->sent.tree;
    const struct gr_frame_header h = {.session = f->id, .epoch = f->epoch, .round = f->sent.round,
                                      .base_len = f->sent.base_len, .prefix_hash = f->sent.hash};
    const uint32_t bytes = GR_WIRE_HEADER_BYTES + GR_WIRE_DRAFT_BYTES(t->n);
    uint8_t *out = d->io.frame_begin(d->io.ctx, f->peer, GR_FRAME_SMALL, bytes);
    if (out == NULL) {
        d->counters.n_no_credit++;
        return;
    }
    size_t n = gr_wire_encode_draft(&h, t, out, bytes);
    d->io.frame_end(d->io.ctx, f->peer, (uint32_t)n);
    d->counters.n_draft_frame++;
    f->ready = false;
    f->due = false;
    f->sent.valid = true;
    f->n_round++;
    f->draft_ns += f->job_ns;
    f->host_ns += now_ns - f->due_ns - GR_MIN(f->job_ns, now_ns - f->due_ns);
    f->job_ns = 0;
}

void drafter_answer_empty(struct gr_drafter *d, struct follow *f, uint32_t round, uint32_t base_len, uint64_t hash,
                          uint64_t now_ns)
{
    f->sent.tree.n = 0;
    f->sent.round = round;
    f->sent.base_len = base_len;
    f->sent.hash = hash;
    f->ready = true;
    drafter_send_tree(d, f, now_ns);
}

/* The session has outgrown this drafter's context: it keeps nothing of it. */
static void outgrown(struct gr_drafter *d, struct follow *f)
{
    log_warn("[spec][fallback] session %" PRIu64 ": longer than the drafter's context of %d; no more trees for it",
             f->id, d->config.n_ctx_max);
    drafter_truncate(d, f, 0);
    f->state = DRAFT_FULL;
}

static void ask_for_tree(struct follow *f, uint32_t round, uint64_t now_ns)
{
    f->due = true;
    f->ready = false;
    f->due_round = round;
    f->due_ns = now_ns;
    f->job_ns = 0;
}

static void desync(struct gr_drafter *d, struct follow *f, const char *what)
{
    d->counters.n_desync++;
    f->n_desync++;
    log_warn("session %" PRIu64 ": desync at length %d: %s; asking the target", f->id, f->len, what);
    drafter_send_resync(d, f);
}

/* ---- in ---- */

/* Accepted nodes: their tokens are committed, and the KV of the expanded ones (a prefix of the path) is moved by the
 * next job. False: the path is none of the tree that was sent. */
static bool follow_path(struct gr_drafter *d, struct follow *f, const struct gr_verdict *v)
{
    int parent = -1;
    const int32_t base_len = f->len;
    int32_t n_copy = 0;
    if (v->n_path > 0 && !(f->sent.valid && f->sent.round == v->draft_round &&
                           f->sent.base_len == (uint32_t)base_len)) {
        return false;
    }
    for (int i = 0; i < v->n_path; i++) {
        const int node = v->node[i];
        if (node >= f->sent.tree.n || f->sent.tree.parent[node] != parent ||
            !drafter_append(d, f, f->sent.tree.token[node])) {
            return false;
        }
        if (f->sent.slot[node] >= 0 && n_copy == i && f->kv_len == base_len) {
            f->copy_slot[n_copy++] = f->sent.slot[node];
        }
        parent = node;
    }
    f->copy_pos0 = base_len;
    f->n_copy = n_copy;
    return drafter_append(d, f, v->bonus);
}

/* A full drafter still answers, so that the target need not wait for the deadline in every round. */
static void answer_when_full(struct gr_drafter *d, struct follow *f, const struct gr_frame_header *h,
                             const struct gr_verdict *v, uint64_t now_ns)
{
    f->ready = false;
    f->due_ns = now_ns;
    if (v->n_want > 0) {
        drafter_answer_empty(d, f, h->round + 1, v->keep_len + v->n_path + 1, h->prefix_hash, now_ns);
    }
}

static enum gr_status on_verdict(struct gr_drafter *d, struct follow *f, const struct gr_frame_header *h,
                                 const uint8_t *frame, size_t len, uint64_t now_ns)
{
    struct gr_verdict v;
    GR_TRY(gr_wire_decode_verdict(frame, len, d->config.n_vocab, &v));
    if (f->state == DRAFT_FULL) {
        answer_when_full(d, f, h, &v, now_ns);
        return GR_OK;
    }
    if (f->state != DRAFT_FOLLOWING) {
        return GR_OK; /* the DELTA that is on its way, or will be asked for, holds these tokens */
    }
    if (h->round < f->round_next) {
        d->counters.n_stale_frame++; /* a replay */
        return GR_OK;
    }
    d->counters.n_verdict++;
    d->counters.n_root_only_verdict += v.draft_round == GR_WIRE_ROOT_ONLY;
    if (h->base_len != (uint32_t)f->len || v.keep_len > h->base_len) {
        desync(d, f, "a VERDICT on another length");
        return GR_OK;
    }
    if (v.keep_len < h->base_len) { /* the target took tokens back */
        drafter_truncate(d, f, (int32_t)v.keep_len);
    }
    if ((uint64_t)f->len + v.n_path + 1 > (uint64_t)d->config.n_ctx_max) {
        outgrown(d, f);
        answer_when_full(d, f, h, &v, now_ns);
        return GR_OK;
    }
    const bool fits = follow_path(d, f, &v);
    f->sent.valid = false;
    if (!fits || f->hash[f->len] != h->prefix_hash) {
        desync(d, f, "the VERDICT's tokens do not give its hash");
        return GR_OK;
    }
    f->round_next = h->round + 1;
    f->due = f->ready = false;
    if (v.n_want > 0) {
        ask_for_tree(f, h->round + 1, now_ns);
    }
    return GR_OK;
}

static enum gr_status on_delta(struct gr_drafter *d, struct follow *f, const struct gr_frame_header *h,
                               const uint8_t *frame, size_t len, uint64_t now_ns)
{
    struct gr_delta delta;
    GR_TRY(gr_wire_decode_delta(frame, len, &delta));
    if (f->state == DRAFT_FOLLOWING && h->round < f->round_next) {
        d->counters.n_stale_frame++; /* a replay */
        return GR_OK;
    }
    if ((delta.common_len > (uint32_t)f->len && f->state != DRAFT_FULL) || f->state == DRAFT_CONNECTING) {
        desync(d, f, "a DELTA that starts past what is known");
        return GR_OK;
    }
    if ((uint64_t)delta.common_len + delta.n_id > (uint64_t)d->config.n_ctx_max || f->state == DRAFT_FULL) {
        if (f->state != DRAFT_FULL) {
            outgrown(d, f);
        }
        f->due_ns = now_ns;
        if ((h->flags & GR_DELTA_DRAFT) != 0) {
            drafter_answer_empty(d, f, h->round, h->base_len, h->prefix_hash, now_ns);
        }
        return GR_OK;
    }
    drafter_truncate(d, f, (int32_t)delta.common_len);
    for (uint32_t i = 0; i < delta.n_id; i++) {
        const int32_t id = gr_delta_id(&delta, i);
        if (id < 0 || id >= d->config.n_vocab || !drafter_append(d, f, id)) {
            log_error("peer sent a malformed DELTA: id %d outside the vocabulary", id);
            return GR_EFORMAT;
        }
    }
    if (f->hash[f->len] != h->prefix_hash || h->base_len != (uint32_t)f->len) {
        drafter_truncate(d, f, 0);
        desync(d, f, "the DELTA's tokens do not give its hash");
        return GR_OK;
    }
    f->state = (h->flags & GR_DELTA_LAST) != 0 ? DRAFT_FOLLOWING : DRAFT_SYNCING;
    f->round_next = h->round;
    if ((h->flags & GR_DELTA_LAST) != 0 && (h->flags & GR_DELTA_DRAFT) != 0) {
        ask_for_tree(f, h->round, now_ns);
    }
    return GR_OK;
}

static enum gr_status on_desync(struct gr_drafter *d, struct follow *f, const uint8_t *frame, size_t len)
{
    uint32_t reason = 0;
    uint32_t target_len = 0;
    GR_TRY(gr_wire_decode_desync(frame, len, &reason, &target_len));
    if (reason == GR_DESYNC_UNKNOWN_SESSION) {
        log_info("session %" PRIu64 ": the target does not know it any more", f->id);
        drafter_truncate(d, f, 0);
        f->state = DRAFT_SYNCING;
        return GR_OK;
    }
    if (f->state == DRAFT_FOLLOWING) {
        desync(d, f, "the target says so");
    }
    return GR_OK;
}

enum gr_status gr_drafter_on_frame(struct gr_drafter *d, uint32_t peer, const uint8_t *frame, size_t len,
                                   uint64_t now_ns)
{
    struct gr_frame_header h;
    GR_TRY(gr_wire_decode_header(frame, len, &h));
    struct follow *f = drafter_find(d, h.session);
    if (f == NULL || f->peer != peer || f->epoch != h.epoch || f->closing) {
        return GR_OK; /* detached while the frame was on its way */
    }
    switch (h.type) {
    case GR_FRAME_VERDICT:
        return on_verdict(d, f, &h, frame, len, now_ns);
    case GR_FRAME_DELTA:
        return on_delta(d, f, &h, frame, len, now_ns);
    case GR_FRAME_DESYNC:
        return on_desync(d, f, frame, len);
    case GR_FRAME_COST:
        return gr_wire_decode_cost(frame, len, &f->cost);
    case GR_FRAME_FEATURES:
        return GR_OK; /* a stand-alone draft model has no use for them */
    default:
        log_error("peer %u sent a frame of type %u to a drafter", peer, h.type);
        return GR_EPROTO;
    }
}
