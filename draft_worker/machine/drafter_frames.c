/* The drafter's side of the data path: VERDICT, DELTA, FEATURES and DESYNC in; DRAFT and RESYNC out. */
#include "common/rules/hash.h"
#include "common/base/log.h"
#include "draft_worker/machine/drafter_internal.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- out ---- */

void drafter_end_frame(struct gr_drafter *d, struct follow *f, size_t bytes)
{
    f->wire_bytes += f->wire_len0 > 0 ? bytes : 0;
    d->io.frame_end(d->io.ctx, f->peer, (uint32_t)bytes);
}

void drafter_send_resync(struct gr_drafter *d, struct follow *f)
{
    struct gr_resync r = {.my_len = (uint32_t)f->len, .feature_len = GR_FEATURES_NONE};
    uint32_t lengths[GR_RESYNC_HASH_MAX];
    r.n_hash = (uint32_t)gr_resync_lengths(r.my_len, lengths);
    for (uint32_t i = 0; i < r.n_hash; i++) {
        r.hash[i] = f->hash[lengths[i]];
    }
    const struct gr_frame_header h = {
        .session = f->id, .epoch = f->epoch, .base_len = r.my_len, .prefix_hash = f->hash[f->len]};
    const uint32_t bytes = GR_WIRE_HEADER_BYTES + GR_WIRE_RESYNC_BYTES(r.n_hash);
    f->state = DRAFT_SYNCING;
    f->due = f->ready = f->last.valid = false;
    if (f->kv_shift > 0) { /* what is held and not yet used comes again: then both count the window alike */
        r.feature_len = (uint32_t)f->feature_first;
        r.feature_context = (uint32_t)d->config.feature_context;
        f->feature_told = f->feature_first;
    }
    uint8_t *out = d->io.frame_begin(d->io.ctx, f->peer, GR_FRAME_SMALL, bytes);
    f->resync_due = out == NULL; /* no credit: the step tries again */
    if (out == NULL) {
        d->counters.n_no_credit++;
        return;
    }
    d->counters.n_resync++;
    size_t n = gr_wire_encode_resync(&h, &r, out, bytes);
    drafter_end_frame(d, f, n);
}

/* took_ns: since it was asked for; 0: not told. False: there is no credit. */
static bool send_draft(struct gr_drafter *d, struct follow *f, const struct sent_tree *p, uint64_t took_ns)
{
    const struct gr_token_tree *t = &p->drafted.tree;
    const uint64_t took_us = took_ns > 0 ? GR_MAX(took_ns / 1000, 1ull) : 0;
    const struct gr_frame_header h = {.session = f->id,
                                      .epoch = f->epoch,
                                      .round = p->round,
                                      .base_len = p->base_len,
                                      .prefix_hash = p->hash,
                                      .flags = (uint16_t)GR_MIN(took_us, (uint64_t)UINT16_MAX)};
    const uint32_t bytes = GR_WIRE_HEADER_BYTES + GR_WIRE_DRAFT_BYTES(t->n);
    uint8_t *out = d->io.frame_begin(d->io.ctx, f->peer, GR_FRAME_SMALL, bytes);
    if (out == NULL) {
        d->counters.n_no_credit++;
        return false;
    }
    size_t n = gr_wire_encode_draft(&h, t, out, bytes);
    drafter_end_frame(d, f, n);
    d->counters.n_draft_frame++;
    d->counters.n_draft_node += (uint64_t)t->n;
    f->last = (struct sent_id){true, p->round, p->base_len, p->hash};
    if (t->n > 0) { /* no verdict names a node of an empty one */
        f->sent[1] = f->sent[0];
        f->sent[0] = *p;
        f->sent[0].valid = true;
    }
    return true;
}

void drafter_send_tree(struct gr_drafter *d, struct follow *f, uint64_t now_ns)
{
    if (!send_draft(d, f, &f->pending, now_ns - GR_MIN(f->due_ns, now_ns))) {
        return;
    }
    f->ready = false;
    f->due = false;
    f->n_round++;
    f->draft_ns += f->job_ns;
    f->host_ns += now_ns - f->due_ns - GR_MIN(f->job_ns, now_ns - f->due_ns);
    f->job_ns = 0;
}

void drafter_send_late(struct gr_drafter *d, struct follow *f, const struct gr_drafted *drafted)
{
    f->pending.round = f->job_round;
    f->pending.base_len = (uint32_t)f->job_len;
    f->pending.hash = f->hash[f->job_len];
    f->pending.drafted = *drafted;
    d->counters.n_late_draft += send_draft(d, f, &f->pending, 0);
}

void drafter_answer_empty(struct gr_drafter *d, struct follow *f, uint32_t round, uint32_t base_len, uint64_t hash,
                          uint64_t now_ns)
{
    f->pending.drafted.tree.n = 0;
    f->pending.round = round;
    f->pending.base_len = base_len;
    f->pending.hash = hash;
    f->ready = true;
    drafter_send_tree(d, f, now_ns);
}

/* The session has outgrown this drafter's context: it keeps nothing of it. */
static void outgrown(struct gr_drafter *d, struct follow *f)
{
    char limit[32];
    snprintf(limit, sizeof(limit), "%d tokens", d->config.n_ctx_max);
    drafter_fall_back(d, f, GR_FALLBACK_DRAFT_CONTEXT, limit);
    drafter_truncate(d, f, 0);
    f->state = DRAFT_FULL;
}

static void ask_for_tree(struct gr_drafter *d, struct follow *f, uint32_t round, int32_t n_want, uint64_t now_ns)
{
    f->due = true;
    f->ready = false;
    f->due_round = round;
    f->due_node = n_want;
    f->due_ns = now_ns;
    f->job_ns = 0;
    if (GR_MIN(f->tree_config.n_node, n_want) == 0 ||
        f->len <= f->kv_shift) { /* no node is allowed, or there is no tail to draft from */
        drafter_answer_empty(d, f, round, (uint32_t)f->len, f->hash[f->len], now_ns);
    }
}

static void desync(struct gr_drafter *d, struct follow *f, const char *what)
{
    d->counters.n_desync++;
    f->n_desync_all++;
    if (gr_is_told(f->n_desync_all)) {
        log_warn("session %" PRIu64 ": desync at length %d: %s; asking the target (%u by now)", f->id, f->len, what,
                 f->n_desync_all);
    }
    drafter_send_resync(d, f);
}

/* A desync that is found here. */
static void lose_place(struct gr_drafter *d, struct follow *f, const char *what)
{
    f->n_desync++;
    desync(d, f, what);
}

/* ---- in ---- */

#define NODE_NONE (-2)

/* The node of a sent tree that the committed tokens [base_len, len) lead to, -1: the tail it was drafted on. */
static int walk_sent(const struct follow *f, const struct sent_tree *t, int32_t len)
{
    int node = -1;
    if (!t->valid || t->base_len > (uint32_t)len) {
        return NODE_NONE;
    }
    for (int32_t p = (int32_t)t->base_len; p < len; p++) {
        node = gr_tree_child(&t->drafted.tree, node, f->token[p]);
        if (node < 0) {
            return NODE_NONE;
        }
    }
    return node;
}

/* Whether the verdict's nodes are a path below `root`. */
static bool is_path(const struct gr_token_tree *t, int root, const struct gr_verdict *v)
{
    int parent = root;
    for (int i = 0; i < v->n_path; i++) {
        if (v->node[i] >= t->n || t->parent[v->node[i]] != parent) {
            return false;
        }
        parent = v->node[i];
    }
    return true;
}

static uint64_t hash_after(const struct follow *f, const struct gr_token_tree *t, const struct gr_verdict *v)
{
    uint64_t hash = f->hash[v->keep_len];
    for (int i = 0; i < v->n_path; i++) {
        hash = gr_hash_extend(hash, t->token[v->node[i]]);
    }
    return gr_hash_extend(hash, v->bonus);
}

/* The sent tree the verdict is about. NULL: none that gives its hash. */
static const struct sent_tree *find_sent(const struct follow *f, const struct gr_verdict *v, uint64_t hash,
                                         int *root_out)
{
    for (int i = 0; i < N_SENT; i++) {
        const struct sent_tree *t = &f->sent[i];
        const int root = walk_sent(f, t, (int32_t)v->keep_len);
        if (root != NODE_NONE && t->round == v->draft_round && is_path(&t->drafted.tree, root, v) &&
            hash_after(f, &t->drafted.tree, v) == hash) {
            *root_out = root;
            return t;
        }
    }
    return NULL;
}

#define RATE_WEIGHT 0.08f             /* of the newest round */
#define ACCEPTANCE_SESSION_MAX 128.0f /* observations of a cell; older ones fade */
#define ACCEPTANCE_DRAFTER_MAX 2048.0f

/* The first child of the tail, which every tree has. */
static void check_first(struct gr_drafter *d, struct follow *f, float prob, bool accepted)
{
    struct gr_acceptance_check *c = &d->check;
    const enum gr_check_event event = gr_acceptance_check_observe(c, prob, accepted);
    f->n_first++;
    f->n_first_hit += accepted;
    f->first_expected += prob;
    if (event == GR_CHECK_ALARM) {
        f->n_alarm++;
        log_warn(
            "[spec][alarm] acceptance has collapsed: of the last %d first drafted tokens %.0f %% were accepted, the "
            "draft model expected %.0f %%; does it belong to this target (an EAGLE-3 head: its capture layers)?",
            GR_CHECK_WINDOW, 100.0 * c->last_accepted, 100.0 * c->last_expected);
    } else if (event == GR_CHECK_REPORT) {
        log_info("acceptance of the first %d first drafted tokens: expected %.0f %%, measured %.0f %%", GR_CHECK_WINDOW,
                 100.0 * c->last_expected, 100.0 * c->last_accepted);
    } else if (event == GR_CHECK_END) {
        log_info("acceptance is back: %.0f %% of the last first drafted tokens", 100.0 * c->last_accepted);
    }
}

/* Every child of an accepted node was tried. */
static void learn(struct gr_drafter *d, struct follow *f, const struct sent_tree *t, int root,
                  const struct gr_verdict *v)
{
    const struct gr_drafted *g = &t->drafted;
    int parent = root;
    for (int depth = 1; depth <= v->n_path + 1; depth++) {
        const int next = depth <= v->n_path ? v->node[depth - 1] : NODE_NONE;
        for (int i = parent + 1; i < g->tree.n; i++) {
            if (g->tree.parent[i] != parent) {
                continue;
            }
            /* After a cut the last accepted node stands as the bonus. */
            const bool accepted = i == next || (next == NODE_NONE && g->tree.token[i] == v->bonus);
            const float prob = gr_expf(g->edge[i]);
            gr_acceptance_observe(&f->acceptance, g->rank[i], prob, accepted, ACCEPTANCE_SESSION_MAX);
            gr_acceptance_observe(&d->acceptance, g->rank[i], prob, accepted, ACCEPTANCE_DRAFTER_MAX);
            if (parent == -1 && g->rank[i] == 1) {
                check_first(d, f, prob, accepted);
            }
            d->counts.n_tried[depth][gr_rank_class(g->rank[i])]++;
            d->counts.n_accepted[depth][gr_rank_class(g->rank[i])] += accepted;
        }
        parent = next;
    }
}

/* Appends the accepted tokens and the bonus. False: the verdict does not fit what is known, and nothing has changed. */
static bool follow_path(struct gr_drafter *d, struct follow *f, const struct gr_frame_header *h,
                        const struct gr_verdict *v)
{
    static const struct gr_token_tree none = {.n = 0};
    int root = -1;
    const struct sent_tree *t = NULL;
    if (v->draft_round != GR_WIRE_ROOT_ONLY) {
        t = find_sent(f, v, h->prefix_hash, &root);
    }
    if (t == NULL && (v->n_path > 0 || hash_after(f, &none, v) != h->prefix_hash)) {
        return false;
    }
    if (v->keep_len < h->base_len) { /* the target took tokens back */
        drafter_truncate(d, f, (int32_t)v->keep_len);
    }
    for (int i = 0; i < v->n_path; i++) {
        drafter_append(d, f, t->drafted.tree.token[v->node[i]]);
    }
    drafter_append(d, f, v->bonus);
    if (t != NULL) {
        learn(d, f, t, root, v);
        d->counters.n_late_verdict += root >= 0;
    }
    return true;
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

/* What rounds bring on the whole: tokens and time from VERDICT to VERDICT, while trees are asked for without a break.
 */
static void learn_rate(struct follow *f, int n_token, uint64_t now_ns)
{
    if (f->verdict_ns != 0 && now_ns > f->verdict_ns) {
        const float alike = 1.0f / (float)(f->n_rate + 1);
        const float weight = GR_MAX(alike, RATE_WEIGHT);
        f->rate_tokens += weight * ((float)n_token - f->rate_tokens);
        f->rate_ns += weight * ((float)(now_ns - f->verdict_ns) - f->rate_ns);
        f->n_rate += f->n_rate < UINT32_MAX;
    }
    f->verdict_ns = now_ns;
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
        lose_place(d, f, "a VERDICT on another length");
        return GR_OK;
    }
    if ((uint64_t)v.keep_len + v.n_path + 1 > (uint64_t)d->config.n_ctx_max) {
        outgrown(d, f);
        answer_when_full(d, f, h, &v, now_ns);
        return GR_OK;
    }
    if (!follow_path(d, f, h, &v)) {
        lose_place(d, f, "the VERDICT's tokens do not give its hash");
        return GR_OK;
    }
    learn_rate(f, v.n_path + 1, now_ns);
    f->wire_len0 = f->wire_len0 == 0 ? f->len : f->wire_len0;
    f->round_next = h->round + 1;
    f->due = f->ready = false;
    if (v.n_want > 0) {
        ask_for_tree(d, f, h->round + 1, v.n_want, now_ns);
    }
    return GR_OK;
}

/* A DELTA that is longer than this drafter's context, or comes when that has happened already. */
static void on_delta_when_full(struct gr_drafter *d, struct follow *f, const struct gr_frame_header *h, uint64_t now_ns)
{
    if (f->state != DRAFT_FULL) {
        outgrown(d, f);
    } else if (h->base_len <= (uint32_t)d->config.n_ctx_max) { /* it was cut back */
        drafter_send_resync(d, f);
        return;
    }
    f->round_next = h->round;
    f->due_ns = now_ns;
    if ((h->flags & GR_DELTA_DRAFT) != 0) {
        drafter_answer_empty(d, f, h->round, h->base_len, h->prefix_hash, now_ns);
    }
}

/* GR_EFORMAT: an id outside the vocabulary. fits_out: common_len + the ids have the frame's length and hash. same_out:
 * tokens of the result that are known already. */
static enum gr_status compare_delta(const struct gr_drafter *d, const struct follow *f, const struct gr_frame_header *h,
                                    const struct gr_delta *delta, bool *fits_out, int32_t *same_out)
{
    uint64_t hash = f->hash[delta->common_len];
    int32_t same = (int32_t)delta->common_len;
    for (uint32_t i = 0; i < delta->n_id; i++) {
        const int32_t id = gr_delta_id(delta, i);
        if (id < 0 || id >= d->config.n_vocab) {
            log_error("peer sent a malformed DELTA: id %d outside the vocabulary", id);
            return GR_EFORMAT;
        }
        hash = gr_hash_extend(hash, id);
        same += same == (int32_t)(delta->common_len + i) && same < f->len && f->token[same] == id;
    }
    *fits_out = hash == h->prefix_hash && h->base_len == delta->common_len + delta->n_id;
    *same_out = same;
    return GR_OK;
}

static bool is_last(const struct follow *f, uint32_t round, uint32_t base_len, uint64_t hash)
{
    return f->last.valid && f->last.round == round && f->last.base_len == base_len && f->last.hash == hash;
}

/* A tree of this round on this very prefix has been sent, or is being grown. */
static bool is_answered(const struct follow *f, uint32_t round)
{
    return f->due ? f->due_round == round : is_last(f, round, (uint32_t)f->len, f->hash[f->len]);
}

/* Makes the tokens what the DELTA says; `same` of them are already. */
static void apply_delta(struct gr_drafter *d, struct follow *f, const struct gr_delta *delta, int32_t same)
{
    const int32_t len = (int32_t)(delta->common_len + delta->n_id);
    if (same < f->len) {
        drafter_truncate(d, f, same);
    }
    if (f->len < len) {
        f->due = f->ready = false;
    }
    while (f->len < len) {
        drafter_append(d, f, gr_delta_id(delta, (uint32_t)f->len - delta->common_len));
    }
}

static enum gr_status on_delta(struct gr_drafter *d, struct follow *f, const struct gr_frame_header *h,
                               const uint8_t *frame, size_t len, uint64_t now_ns)
{
    struct gr_delta delta;
    GR_TRY(gr_wire_decode_delta(frame, len, &delta));
    if ((f->state == DRAFT_FOLLOWING || f->state == DRAFT_FULL) && h->round < f->round_next) {
        d->counters.n_stale_frame++; /* a replay */
        return GR_OK;
    }
    if (f->state == DRAFT_CONNECTING) {
        return GR_OK; /* of the attachment before; the RESYNC is still to come */
    }
    if (delta.common_len > (uint32_t)f->len && f->state != DRAFT_FULL) {
        lose_place(d, f, "a DELTA that starts past what is known");
        return GR_OK;
    }
    if ((uint64_t)delta.common_len + delta.n_id > (uint64_t)d->config.n_ctx_max || f->state == DRAFT_FULL) {
        on_delta_when_full(d, f, h, now_ns);
        return GR_OK;
    }
    bool fits = false;
    int32_t same = 0;
    GR_TRY(compare_delta(d, f, h, &delta, &fits, &same));
    if (!fits) {
        drafter_truncate(d, f, 0);
        lose_place(d, f, "the DELTA's tokens do not give its hash");
        return GR_OK;
    }
    const bool last = (h->flags & GR_DELTA_LAST) != 0;
    const bool wanted = last && (h->flags & GR_DELTA_DRAFT) != 0;
    if (f->state == DRAFT_FOLLOWING && same == (int32_t)h->base_len &&
        (!last || (same == f->len && wanted && is_answered(f, h->round)))) {
        d->counters.n_stale_frame++; /* come twice: all that it says is known */
        return GR_OK;
    }
    apply_delta(d, f, &delta, same);
    if (f->due && h->round > f->due_round) { /* its round is over */
        f->due = f->ready = false;
    }
    if (last && !wanted && f->state == DRAFT_SYNCING) {
        f->prefill_len = f->len;
    }
    f->state = last ? DRAFT_FOLLOWING : DRAFT_SYNCING;
    f->round_next = h->round;
    f->verdict_ns = 0;
    if (wanted) {
        ask_for_tree(d, f, h->round, GR_DELTA_N_WANT(h->flags), now_ns);
    }
    return GR_OK;
}

/* A DESYNC answers a DRAFT, whose header it repeats, or a RESYNC. About an older DRAFT than the last one it says
 * nothing new: either that was repaired, or the last one is answered alike. */
static enum gr_status on_desync(struct gr_drafter *d, struct follow *f, const struct gr_frame_header *h,
                                const uint8_t *frame, size_t len)
{
    uint32_t reason = 0;
    uint32_t target_len = 0;
    GR_TRY(gr_wire_decode_desync(frame, len, &reason, &target_len));
    if (f->state == DRAFT_FOLLOWING && !is_last(f, h->round, h->base_len, h->prefix_hash)) {
        d->counters.n_stale_frame++;
        return GR_OK;
    }
    if (reason == GR_DESYNC_UNKNOWN_SESSION) {
        log_info("session %" PRIu64 ": the target does not know it any more", f->id);
        drafter_truncate(d, f, 0);
        f->state = DRAFT_SYNCING;
        return GR_OK;
    }
    if (f->state == DRAFT_FOLLOWING) { /* who has counted it for the session */
        desync(d, f, "the target says so");
    }
    return GR_OK;
}

static enum gr_status on_cost(struct gr_drafter *d, struct follow *f, const struct gr_frame_header *h,
                              const uint8_t *frame, size_t len)
{
    struct gr_cost cost;
    GR_TRY(gr_wire_decode_cost(frame, len, &cost));
    if (h->round < f->cost_round) {
        d->counters.n_stale_frame++;
        return GR_OK;
    }
    f->cost = cost;
    f->cost_round = h->round;
    return GR_OK;
}

static void note_gathering(struct gr_drafter *d, const struct gr_frame_header *h, uint64_t now_ns)
{
    const bool tells = h->type == GR_FRAME_VERDICT || h->type == GR_FRAME_DELTA;
    d->more = tells ? (h->flags & GR_FRAME_MORE) != 0 : d->more;
    d->heard_ns = tells || h->type == GR_FRAME_FEATURES ? now_ns : d->heard_ns;
}

enum gr_status gr_drafter_on_frame(struct gr_drafter *d, uint32_t peer, const uint8_t *frame, size_t len,
                                   uint64_t now_ns)
{
    struct gr_frame_header h;
    GR_TRY(gr_wire_decode_header(frame, len, &h));
    note_gathering(d, &h, now_ns);
    struct follow *f = drafter_find(d, h.session);
    if (f == NULL || f->peer != peer || f->epoch != h.epoch || f->closing) {
        return GR_OK; /* detached while the frame was on its way */
    }
    /* The features of a prompt may come behind the first VERDICT: they are no price of decoding. */
    const bool of_prompt = h.type == GR_FRAME_FEATURES && h.base_len < (uint32_t)f->wire_len0;
    f->wire_bytes += f->wire_len0 > 0 && !of_prompt ? len : 0;
    switch (h.type) {
    case GR_FRAME_VERDICT:
        return on_verdict(d, f, &h, frame, len, now_ns);
    case GR_FRAME_DELTA:
        return on_delta(d, f, &h, frame, len, now_ns);
    case GR_FRAME_DESYNC:
        return on_desync(d, f, &h, frame, len);
    case GR_FRAME_COST:
        return on_cost(d, f, &h, frame, len);
    case GR_FRAME_FEATURES:
        return drafter_on_features(d, f, &h, frame, len);
    default:
        log_error("peer %u sent a frame of type %u to a drafter", peer, h.type);
        return GR_EPROTO;
    }
}
