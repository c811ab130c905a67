/* Frames in: VERDICT, DELTA, FEATURES, DESYNC, COST. */
#include "common/rules/hash.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "draft_worker/machine/drafter_internal.h"

#include <inttypes.h>
#include <stdio.h>

/* The session has outgrown this drafter's context: it keeps nothing of it. */
static void outgrown(struct gr_drafter *d, struct session *s)
{
    char limit[32];
    snprintf(limit, sizeof(limit), "%d tokens", d->config.n_ctx_max);
    drafter_fall_back(d, s, GR_FALLBACK_DRAFT_CONTEXT, limit);
    drafter_truncate(d, s, 0);
    drafter_fill_up(s);
}

static void ask_for_tree(struct gr_drafter *d, struct session *s, uint32_t round, int32_t n_want, uint64_t now_ns)
{
    drafter_owe(s, round, n_want, now_ns);
    drafter_note_asked(s, now_ns);
    if (GR_MIN(s->tree_config.n_node, n_want) == 0 ||
        s->prefix.len <= s->kv.shift) { /* no node is allowed, or there is no tail to draft from */
        drafter_answer_empty(d, s, round, (uint32_t)s->prefix.len, s->prefix.hash[s->prefix.len], now_ns);
    }
}

static void desync(struct gr_drafter *d, struct session *s, const char *what)
{
    d->counters.n_desync++;
    s->n_desync_all++;
    if (gr_is_told(s->n_desync_all)) {
        log_warn("session %" GR_SESSION_ID_PRI ": desync at length %d: %s; asking the target (%u by now)", s->id,
                 s->prefix.len, what, s->n_desync_all);
    }
    drafter_send_resync(d, s);
}

/* Notes a desync that the drafter has found itself. */
static void lose_place(struct gr_drafter *d, struct session *s, const char *what)
{
    drafter_note_desync(s);
    desync(d, s, what);
}

/* ---- in ---- */

#define NODE_NONE (-2) /* beside -1, the root: the tokens lead out of the tree */

/* The node of a sent tree that the committed tokens [base_len, len) lead to, -1: the tail it was drafted on. */
static int walk_sent(const struct session *s, const struct sent_tree *t, int32_t len)
{
    int node = -1;
    if (!t->valid || t->base_len > (uint32_t)len) {
        return NODE_NONE;
    }
    for (int32_t p = (int32_t)t->base_len; p < len; p++) {
        node = gr_tree_child(&t->drafted.tree, node, s->prefix.token[p]);
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

static uint64_t hash_after(const struct session *s, const struct gr_token_tree *t, const struct gr_verdict *v)
{
    uint64_t hash = s->prefix.hash[v->keep_len];
    for (int i = 0; i < v->n_path; i++) {
        hash = gr_hash_extend(hash, t->token[v->node[i]]);
    }
    return gr_hash_extend(hash, v->bonus);
}

/* The sent tree the verdict is about. NULL: none that gives its hash. */
static const struct sent_tree *find_sent(const struct session *s, const struct gr_verdict *v, uint64_t hash,
                                         int *root_out)
{
    for (int i = 0; i < N_SENT; i++) {
        const struct sent_tree *t = &s->trees.sent[i];
        const int root = walk_sent(s, t, (int32_t)v->keep_len);
        if (root != NODE_NONE && t->round == v->draft_round && is_path(&t->drafted.tree, root, v) &&
            hash_after(s, &t->drafted.tree, v) == hash) {
            *root_out = root;
            return t;
        }
    }
    return NULL;
}

#define RATE_WEIGHT 0.08f             /* weight of the newest round in the average rate */
#define ACCEPTANCE_SESSION_MAX 128.0f /* observations that a cell holds; older ones fade */
#define ACCEPTANCE_DRAFTER_MAX 2048.0f

/* The first child of the tail, which every tree has. */
static void check_first(struct gr_drafter *d, struct session *s, float prob, bool accepted)
{
    struct gr_acceptance_check *c = &d->check;
    const enum gr_check_event event = gr_acceptance_check_observe(c, prob, accepted);
    s->n_first++;
    s->n_first_hit += accepted;
    s->first_expected += prob;
    if (event == GR_CHECK_ALARM) {
        s->n_alarm++;
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
static void learn(struct gr_drafter *d, struct session *s, const struct sent_tree *t, int root,
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
            gr_acceptance_observe(&s->acceptance, g->rank[i], prob, accepted, ACCEPTANCE_SESSION_MAX);
            gr_acceptance_observe(&d->acceptance, g->rank[i], prob, accepted, ACCEPTANCE_DRAFTER_MAX);
            if (parent == -1 && g->rank[i] == 1) {
                check_first(d, s, prob, accepted);
            }
            d->counts.n_tried[depth][gr_rank_class(g->rank[i])]++;
            d->counts.n_accepted[depth][gr_rank_class(g->rank[i])] += accepted;
        }
        parent = next;
    }
}

/* Appends the accepted tokens and the bonus. False: the verdict does not fit what is known, and nothing has changed. */
static bool follow_path(struct gr_drafter *d, struct session *s, const struct gr_frame_header *h,
                        const struct gr_verdict *v)
{
    static const struct gr_token_tree none = {.n = 0};
    int root = -1;
    const struct sent_tree *t = NULL;
    if (v->draft_round != GR_WIRE_ROOT_ONLY) {
        t = find_sent(s, v, h->prefix_hash, &root);
    }
    if (t == NULL && (v->n_path > 0 || hash_after(s, &none, v) != h->prefix_hash)) {
        return false;
    }
    if (v->keep_len < h->base_len) { /* the target took tokens back */
        drafter_truncate(d, s, (int32_t)v->keep_len);
    }
    for (int i = 0; i < v->n_path; i++) {
        drafter_append(d, s, t->drafted.tree.token[v->node[i]]);
    }
    drafter_append(d, s, v->bonus);
    if (t != NULL) {
        learn(d, s, t, root, v);
        d->counters.n_late_verdict += root >= 0;
    }
    return true;
}

/* A full drafter still answers, so that the target need not wait for the deadline in every round. */
static void answer_when_full(struct gr_drafter *d, struct session *s, const struct gr_frame_header *h,
                             const struct gr_verdict *v, uint64_t now_ns)
{
    drafter_owe_answer(s, now_ns);
    if (v->n_want > 0) {
        drafter_answer_empty(d, s, h->round + 1, v->keep_len + v->n_path + 1, h->prefix_hash, now_ns);
    }
}

/* What rounds bring on the whole: tokens and time from VERDICT to VERDICT, while trees are asked for without a break.
 */
static void learn_rate(struct session *s, int n_token, uint64_t now_ns)
{
    if (s->verdict_ns != 0 && now_ns > s->verdict_ns) {
        const float alike = 1.0f / (float)(s->n_rate + 1);
        const float weight = GR_MAX(alike, RATE_WEIGHT);
        s->rate_tokens += weight * ((float)n_token - s->rate_tokens);
        s->rate_ns += weight * ((float)(now_ns - s->verdict_ns) - s->rate_ns);
        s->n_rate += s->n_rate < UINT32_MAX;
    }
    s->verdict_ns = now_ns;
}

static enum gr_status on_verdict(struct gr_drafter *d, struct session *s, const struct gr_frame_header *h,
                                 const uint8_t *frame, size_t len, uint64_t now_ns)
{
    struct gr_verdict v;
    GR_TRY(gr_wire_decode_verdict(frame, len, d->config.n_vocab, &v));
    if (s->state == DRAFT_FULL) {
        answer_when_full(d, s, h, &v, now_ns);
        return GR_OK;
    }
    if (s->state != DRAFT_FOLLOWING) {
        return GR_OK; /* the DELTA that is on its way, or will be asked for, holds these tokens */
    }
    if (h->round < s->round_next) {
        d->counters.n_stale_frame++; /* a replay */
        return GR_OK;
    }
    d->counters.n_verdict++;
    d->counters.n_root_only_verdict += v.draft_round == GR_WIRE_ROOT_ONLY;
    if (h->base_len != (uint32_t)s->prefix.len || v.keep_len > h->base_len) {
        lose_place(d, s, "a VERDICT on another length");
        return GR_OK;
    }
    if ((uint64_t)v.keep_len + v.n_path + 1 > (uint64_t)d->config.n_ctx_max) {
        outgrown(d, s);
        answer_when_full(d, s, h, &v, now_ns);
        return GR_OK;
    }
    if (!follow_path(d, s, h, &v)) {
        lose_place(d, s, "the VERDICT's tokens do not give its hash");
        return GR_OK;
    }
    learn_rate(s, v.n_path + 1, now_ns);
    drafter_begin_wire(s);
    s->round_next = h->round + 1;
    drafter_owe_none(s);
    if (v.n_want > 0) {
        ask_for_tree(d, s, h->round + 1, v.n_want, now_ns);
    }
    return GR_OK;
}

/* A DELTA that is longer than this drafter's context, or comes when that has happened already. */
static void on_delta_when_full(struct gr_drafter *d, struct session *s, const struct gr_frame_header *h,
                               uint64_t now_ns)
{
    if (s->state != DRAFT_FULL) {
        outgrown(d, s);
    } else if (h->base_len <= (uint32_t)d->config.n_ctx_max) { /* it was cut back */
        drafter_send_resync(d, s);
        return;
    }
    s->round_next = h->round;
    drafter_owe_answer(s, now_ns);
    if ((h->flags & GR_DELTA_DRAFT) != 0) {
        drafter_answer_empty(d, s, h->round, h->base_len, h->prefix_hash, now_ns);
    }
}

/* GR_EFORMAT: an id outside the vocabulary. fits_out: common_len + the ids have the frame's length and hash. same_out:
 * tokens of the result that are known already. */
static enum gr_status compare_delta(const struct gr_drafter *d, const struct session *s,
                                    const struct gr_frame_header *h, const struct gr_delta *delta, bool *fits_out,
                                    int32_t *same_out)
{
    uint64_t hash = s->prefix.hash[delta->common_len];
    int32_t same = (int32_t)delta->common_len;
    for (uint32_t i = 0; i < delta->n_id; i++) {
        const int32_t id = gr_delta_id(delta, i);
        if (id < 0 || id >= d->config.n_vocab) {
            log_error("peer sent a malformed DELTA: id %d outside the vocabulary", id);
            return GR_EFORMAT;
        }
        hash = gr_hash_extend(hash, id);
        same += same == (int32_t)(delta->common_len + i) && same < s->prefix.len && s->prefix.token[same] == id;
    }
    *fits_out = hash == h->prefix_hash && h->base_len == delta->common_len + delta->n_id;
    *same_out = same;
    return GR_OK;
}

static bool is_last(const struct session *s, uint32_t round, uint32_t base_len, uint64_t hash)
{
    return s->trees.last.valid && s->trees.last.round == round && s->trees.last.base_len == base_len &&
           s->trees.last.hash == hash;
}

/* A tree of this round on this very prefix has been sent, or is being grown. */
static bool is_answered(const struct session *s, uint32_t round)
{
    return s->owed.due ? s->owed.round == round
                       : is_last(s, round, (uint32_t)s->prefix.len, s->prefix.hash[s->prefix.len]);
}

/* Makes the tokens what the DELTA says; `same` of them are already. */
static void apply_delta(struct gr_drafter *d, struct session *s, const struct gr_delta *delta, int32_t same)
{
    const int32_t len = (int32_t)(delta->common_len + delta->n_id);
    if (same < s->prefix.len) {
        drafter_truncate(d, s, same);
    }
    if (s->prefix.len < len) {
        drafter_owe_none(s);
    }
    while (s->prefix.len < len) {
        drafter_append(d, s, gr_delta_id(delta, (uint32_t)s->prefix.len - delta->common_len));
    }
}

static enum gr_status on_delta(struct gr_drafter *d, struct session *s, const struct gr_frame_header *h,
                               const uint8_t *frame, size_t len, uint64_t now_ns)
{
    struct gr_delta delta;
    GR_TRY(gr_wire_decode_delta(frame, len, &delta));
    if ((s->state == DRAFT_FOLLOWING || s->state == DRAFT_FULL) && h->round < s->round_next) {
        d->counters.n_stale_frame++; /* a replay */
        return GR_OK;
    }
    if (s->state == DRAFT_CONNECTING) {
        return GR_OK; /* of the attachment before; the RESYNC is still to come */
    }
    if (delta.common_len > (uint32_t)s->prefix.len && s->state != DRAFT_FULL) {
        lose_place(d, s, "a DELTA that starts past what is known");
        return GR_OK;
    }
    if ((uint64_t)delta.common_len + delta.n_id > (uint64_t)d->config.n_ctx_max || s->state == DRAFT_FULL) {
        on_delta_when_full(d, s, h, now_ns);
        return GR_OK;
    }
    bool fits = false;
    int32_t same = 0;
    GR_TRY(compare_delta(d, s, h, &delta, &fits, &same));
    if (!fits) {
        drafter_truncate(d, s, 0);
        lose_place(d, s, "the DELTA's tokens do not give its hash");
        return GR_OK;
    }
    const bool last = (h->flags & GR_DELTA_LAST) != 0;
    const bool wanted = last && (h->flags & GR_DELTA_DRAFT) != 0;
    if (s->state == DRAFT_FOLLOWING && same == (int32_t)h->base_len &&
        (!last || (same == s->prefix.len && wanted && is_answered(s, h->round)))) {
        d->counters.n_stale_frame++; /* come twice: all that it says is known */
        return GR_OK;
    }
    apply_delta(d, s, &delta, same);
    if (s->owed.due && h->round > s->owed.round) { /* its round is over */
        drafter_owe_none(s);
    }
    if (last && !wanted && s->state == DRAFT_SYNCING) {
        drafter_prefill_all(s);
    }
    if (last) {
        drafter_follow_on(s);
    } else {
        drafter_sync(s);
    }
    s->round_next = h->round;
    s->verdict_ns = 0;
    if (wanted) {
        ask_for_tree(d, s, h->round, GR_DELTA_N_WANT(h->flags), now_ns);
    }
    return GR_OK;
}

/* A DESYNC answers a DRAFT, whose header it repeats, or a RESYNC. About an older DRAFT than the last one it says
 * nothing new: either that was repaired, or the last one is answered alike. */
static enum gr_status on_desync(struct gr_drafter *d, struct session *s, const struct gr_frame_header *h,
                                const uint8_t *frame, size_t len)
{
    uint32_t reason = 0;
    uint32_t target_len = 0;
    GR_TRY(gr_wire_decode_desync(frame, len, &reason, &target_len));
    if (s->state == DRAFT_FOLLOWING && !is_last(s, h->round, h->base_len, h->prefix_hash)) {
        d->counters.n_stale_frame++;
        return GR_OK;
    }
    if (reason == GR_DESYNC_UNKNOWN_SESSION) { /* it is over, and DETACH is on its way; or the two never meet here */
        drafter_send_error(d, s->id, GR_AGAIN, "the target does not know the session that its drafter works for");
        drafter_free(d, s);
        return GR_OK;
    }
    if (s->state == DRAFT_FOLLOWING && reason == GR_DESYNC_DETACHED) { /* it was silent; no token is another */
        d->counters.n_detached++;
        drafter_send_resync(d, s);
    } else if (s->state == DRAFT_FOLLOWING) { /* the target has counted it for the session */
        desync(d, s, "the target says so");
    }
    return GR_OK;
}

static enum gr_status on_cost(struct gr_drafter *d, struct session *s, const struct gr_frame_header *h,
                              const uint8_t *frame, size_t len)
{
    struct gr_cost cost;
    GR_TRY(gr_wire_decode_cost(frame, len, &cost));
    if (h->round < s->cost_round) {
        d->counters.n_stale_frame++;
        return GR_OK;
    }
    s->cost = cost;
    s->cost_round = h->round;
    return GR_OK;
}

static void note_gathering(struct gr_drafter *d, const struct gr_frame_header *h, uint64_t now_ns)
{
    const bool tells = h->type == GR_FRAME_VERDICT || h->type == GR_FRAME_DELTA;
    d->more = tells ? (h->flags & GR_FRAME_MORE) != 0 : d->more;
    d->heard_ns = tells || h->type == GR_FRAME_FEATURES ? now_ns : d->heard_ns;
}

/* What came cannot be put after what is there: the target is asked where to go on. */
static void ask_again(struct gr_drafter *d, struct session *s, const struct gr_features *r)
{
    d->counters.n_feature_gap++;
    drafter_note_feature_gap(s);
    if (s->state == DRAFT_FOLLOWING) { /* else it has been asked */
        log_warn("session %" GR_SESSION_ID_PRI
                 ": features of positions from %u where %d to %d are held; asking the target",
                 s->id, r->first_pos, s->features.first, s->features.end);
        drafter_send_resync(d, s);
    }
}

static enum gr_status check_form(const struct gr_drafter *d, const struct gr_frame_header *h,
                                 const struct gr_features *r)
{
    if (r->width != (uint32_t)d->config.feature_width || r->dtype != GR_FEATURES_BF16 ||
        r->raw != d->config.feature_raw) {
        log_error("peer sent FEATURES of width %u, dtype %u, raw %u; this head takes width %d, dtype %d, raw %d",
                  r->width, r->dtype, r->raw, d->config.feature_width, GR_FEATURES_BF16, d->config.feature_raw);
        return GR_EPROTO;
    }
    if ((uint64_t)r->first_pos + r->n_row != h->base_len) {
        log_error("peer sent malformed FEATURES: base_len %u is not %u + %u", h->base_len, r->first_pos, r->n_row);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status on_features(struct gr_drafter *d, struct session *s, const struct gr_frame_header *h,
                                  const uint8_t *frame, size_t len)
{
    struct gr_features r;
    const size_t row_bytes = (size_t)d->config.feature_width * sizeof(uint16_t);
    GR_TRY(gr_wire_decode_features(frame, len, &r));
    if (d->config.feature_width == 0) {
        return GR_OK; /* a stand-alone draft model has no use for them */
    }
    GR_TRY(check_form(d, h, &r));
    const bool open = s->state == DRAFT_FOLLOWING || s->state == DRAFT_SYNCING;
    if (!open || h->base_len >= (uint32_t)s->prefix.len || h->prefix_hash != s->prefix.hash[h->base_len]) {
        d->counters.n_stale_features++;
        return GR_OK;
    }
    drafter_let_go(s);
    const int32_t end = (int32_t)h->base_len;
    const int32_t first = (int32_t)r.first_pos;
    const bool again = (h->flags & GR_FEATURES_AGAIN) != 0 && end > s->kv.shift - 1;
    if (again && GR_MAX(first, s->kv.shift - 1) < s->features.end) {
        drafter_take_features_again(d, s, first);
    }
    /* The target counts the window from here on: what is held before has no room beside it. */
    const bool start = (h->flags & GR_FEATURES_START) != 0 && first > s->features.first;
    if (!start && end <= s->features.end) {
        d->counters.n_stale_features++;
        return GR_OK;
    }
    if ((first > s->features.end && !start) || end - (start ? first : s->features.first) > d->config.feature_window) {
        ask_again(d, s, &r);
        return GR_OK;
    }
    if (start) {
        drafter_begin_features(d, s, first);
    }
    const uint8_t *const body = d->io.frame_body != NULL ? d->io.frame_body(d->io.ctx) : NULL;
    const uint8_t *const rows = body != NULL ? body : r.row_bytes;
    d->counters.n_feature_row += (uint64_t)(end - s->features.end);
    drafter_keep_features(d, s, end, rows + (size_t)(s->features.end - first) * row_bytes);
    return GR_OK;
}

static enum gr_status take_frame(struct gr_drafter *d, struct session *s, const struct gr_frame_header *h,
                                 const uint8_t *frame, size_t len, uint64_t now_ns)
{
    switch (h->type) {
    case GR_FRAME_VERDICT:
        return on_verdict(d, s, h, frame, len, now_ns);
    case GR_FRAME_DELTA:
        return on_delta(d, s, h, frame, len, now_ns);
    case GR_FRAME_DESYNC:
        return on_desync(d, s, h, frame, len);
    case GR_FRAME_COST:
        return on_cost(d, s, h, frame, len);
    case GR_FRAME_FEATURES:
        return on_features(d, s, h, frame, len);
    default:
        log_error("peer %u sent a frame of type %u to a drafter", s->peer, h->type);
        return GR_EPROTO;
    }
}

enum gr_status gr_drafter_on_frame(struct gr_drafter *d, uint32_t peer, const uint8_t *frame, size_t len,
                                   uint64_t now_ns)
{
    struct gr_frame_header h;
    GR_TRY(gr_wire_decode_header(frame, len, &h));
    note_gathering(d, &h, now_ns);
    struct session *s = drafter_find(d, h.session);
    if (s == NULL || s->peer != peer || s->epoch != h.epoch || s->closing) {
        return GR_OK; /* detached while the frame was on its way */
    }
    /* The features of a prompt may come after the first VERDICT: they are no price of decoding. */
    const bool of_prompt = h.type == GR_FRAME_FEATURES && h.base_len < (uint32_t)s->wire.len0;
    drafter_count_wire(s, of_prompt ? 0 : len);
    gr_log_about(&(struct gr_log_subject){.session = h.session, .epoch = h.epoch, .round = h.round});
    const enum gr_status st = take_frame(d, s, &h, frame, len, now_ns);
    gr_log_about(NULL);
    return st;
}
