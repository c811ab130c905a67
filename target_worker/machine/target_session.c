/* The target's sessions: OPEN, APPEND, TRUNCATE, CLOSE; who gets KV blocks, who is evicted, who is pre-empted. */
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- checks of what the orchestrator asks ---- */

/* What is wrong with ids that come after the first keep_len tokens, in text; NULL: they can be served. */
static const char *check_ids(const struct gr_target *t, int32_t keep_len, const struct gr_msg_ids *ids,
                             const struct gr_turn_wishes *wishes, char *text, size_t cap)
{
    const struct gr_target_config *c = &t->config;
    const int64_t len = (int64_t)keep_len + ids->n;
    if (len < 1) {
        return "the prompt is empty: give at least one token";
    }
    if (len >= c->n_ctx_max) {
        snprintf(text, cap, "the %s has %" PRId64 " tokens, the context holds %d and one must be generated",
                 keep_len > 0 ? "session" : "prompt", len, c->n_ctx_max);
        return text;
    }
    for (uint32_t i = 0; i < ids->n; i++) {
        if (ids->p[i] < 0 || ids->p[i] >= c->n_vocab) {
            snprintf(text, cap, "prompt token %u has id %d, the vocabulary has ids 0 to %d", i, ids->p[i],
                     c->n_vocab - 1);
            return text;
        }
    }
    const char *wrong = gr_turn_wishes_wrong(wishes);
    if (wrong != NULL) {
        return wrong;
    }
    const int64_t n_want = GR_MIN(len + wishes->max_tokens, c->n_ctx_max);
    if (n_want > (int64_t)c->n_pool_block * GR_KV_BLOCK_TOKENS) {
        snprintf(text, cap,
                 "the session may grow to %" PRId64 " tokens, the KV pool holds %d: raise --kv-blocks "
                 "or lower --max-tokens",
                 n_want, c->n_pool_block * GR_KV_BLOCK_TOKENS);
        return text;
    }
    return NULL;
}

static const char *check_segments(const struct gr_msg_open *m)
{
    int64_t n = 0;
    if (m->segments.n % 2 != 0) {
        return "segments must be pairs of kind and length";
    }
    for (uint32_t i = 0; i < m->segments.n; i += 2) {
        if (m->segments.p[i] < TOKEN_PROMPT || m->segments.p[i] > TOKEN_APPENDED || m->segments.p[i + 1] < 0) {
            return "a segment's kind must be 0 to 2, its length not negative";
        }
        n += m->segments.p[i + 1];
    }
    return n == (int64_t)m->ids.n ? NULL : "the segments' lengths do not add up to the ids";
}

static const char *check_open(const struct gr_target *t, const struct gr_msg_open *m, char *text, size_t cap)
{
    const char *wrong = check_ids(t, 0, &m->ids, &m->wishes.turn, text, cap);
    if (wrong == NULL) {
        wrong = check_segments(m);
    }
    return wrong != NULL ? wrong : gr_wishes_wrong(&m->wishes, t->config.n_vocab);
}

/* ---- life of a session ---- */

static struct session *empty_slot(struct gr_target *t)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        for (int i = 0; i < t->config.n_session_max; i++) {
            if (t->session[i].state == SESSION_FREE) {
                return &t->session[i];
            }
        }
        if (!target_evict_idle(t, NULL)) {
            break;
        }
    }
    return NULL;
}

/* ---- turns ---- */

static void append_ids(struct session *s, const struct gr_msg_ids *ids)
{
    for (uint32_t i = 0; i < ids->n; i++) {
        target_append_token(s, ids->p[i], TOKEN_APPENDED);
    }
}

/* A turn begins: what has no KV gets it, and the first pick follows. Where the last token was generated it is the tail
 * of a decode round; else the pick comes with the last row of the prompt. */
static void begin_turn(struct gr_target *t, struct session *s)
{
    const struct gr_turn_wishes *w = &s->wishes.turn;
    target_kv_begin_turn(t, s);
    target_view_drop(&s->specpv); /* it was chosen for another context */
    target_turn_begin(s, (int32_t)GR_MIN((int64_t)s->prefix.len + w->max_tokens, t->config.n_ctx_max),
                      (int32_t)GR_MIN((int64_t)s->prefix.len + w->min_tokens, t->config.n_ctx_max));
    s->arrival = t->n_arrival++;
}

static void reply_opened(struct gr_target *t, const struct session *s)
{
    const struct gr_msg reply = {.type = GR_MSG_OPENED,
                                 .session = s->id,
                                 .opened = {.epoch = s->epoch,
                                            .cache_hit = s->kv.len > 0,
                                            .usable_len = (uint32_t)s->kv.len,
                                            .specpv = (uint32_t)target_specpv_shown(s)}};
    t->counters.n_cache_hit += s->kv.len > 0;
    t->io.send_msg(t->io.ctx, &reply);
}

static void set_kinds(struct session *s, const struct gr_msg_ids *segments)
{
    int32_t at = 0;
    for (uint32_t i = 0; i < segments->n; i += 2) {
        memset(s->kind + at, segments->p[i], (size_t)segments->p[i + 1]);
        at += segments->p[i + 1];
    }
}

/* Tokens that the slot holds already, with KV that stands, of the transcript that is opened. */
static int32_t common_kv_len(const struct session *s, const struct gr_msg_open *m)
{
    const bool shares = strcmp(s->wishes.salt, m->wishes.salt) == 0;
    const int32_t n = shares ? GR_MIN(s->kv.len, (int32_t)m->ids.n) : 0;
    int32_t len = 0;
    while (len < n && s->prefix.token[len] == m->ids.p[len]) {
        len++;
    }
    return len;
}

static void start_session(struct gr_target *t, struct session *s, uint64_t id, const struct gr_msg_open *m)
{
    const int32_t kv_len = common_kv_len(s, m);
    const struct session fresh = {.id = id,
                                  .epoch = m->epoch,
                                  .with_draft = m->wishes.want_draft,
                                  .prefix = gr_prefix_empty(&s->prefix),
                                  .kind = s->kind,
                                  .kv = {.table = s->kv.table, .len = kv_len},
                                  .features = target_kept_features(s),
                                  .turn = {.cut_at = -1}};
    *s = fresh;
    gr_wishes_copy(&s->wishes, &m->wishes);
    if (s->wishes.auto_tree && s->wishes.n_node == 0) {
        s->wishes.n_node = GR_NODE_MAX;
    }
    target_cut_features(s, kv_len);
    append_ids(s, &m->ids);
    set_kinds(s, &m->segments);
    gr_spec_econ_init(&s->econ.alone, &t->econ.alone, target_alone_ns(t, 1, target_specpv_context(s)));
    gr_spec_econ_init(&s->econ.shared, &t->econ.shared, target_pass_ns(t, s, 1));
    target_reprice_from(s);
    target_specpv_open(t, s);
    begin_turn(t, s);
    reply_opened(t, s);
}

static const char *const in_turn_text = "the session is in a turn: end it with TRUNCATE first";

/* True: an APPEND is held, and what is asked after it is refused once the APPEND has been answered. */
static bool refuse_after_held(struct session *s)
{
    if (s != NULL && s->turn.held.valid) {
        s->turn.held.n_refused++;
        return true;
    }
    return false;
}

/* True: the worker is to end, and the orchestrator has been told to place the turn at another one. */
static bool send_elsewhere(struct gr_target *t, uint64_t id)
{
    if (t->draining) {
        t->counters.n_sent_elsewhere++;
        target_send_error(t, id, GR_EDRAINING, "the target is to end, and takes no turn any more");
    }
    return t->draining;
}

void target_open(struct gr_target *t, uint64_t id, const struct gr_msg_open *m)
{
    char text[GR_MSG_TEXT_MAX];
    const char *wrong = check_open(t, m, text, sizeof(text));
    struct session *s = target_find(t, id);
    enum gr_status code = GR_EINVAL;
    if (refuse_after_held(s) || send_elsewhere(t, id)) {
        return;
    }
    if (wrong == NULL && s != NULL && (s->state != SESSION_IDLE || s->flight.in_pass || m->epoch <= s->epoch)) {
        wrong = "a session of this id is open already";
    }
    if (wrong == NULL && s == NULL) {
        s = empty_slot(t);
        if (s == NULL) {
            snprintf(text, sizeof(text),
                     "all %d session slots of the target are in a turn: try again when one has ended, or start more "
                     "(--sessions)",
                     t->config.n_session_max);
            wrong = text;
            code = GR_ELIMIT;
        }
    }
    if (wrong != NULL) {
        target_send_error(t, id, code, wrong);
        return;
    }
    start_session(t, s, id, m);
}

/* In a pass, and a TRUNCATE has ended its turn: an APPEND may come already. */
static bool is_ending(const struct session *s)
{
    return s->flight.in_pass && s->turn.cut_at >= 0 && !s->closing;
}

static const char *check_append(const struct gr_target *t, const struct session *s, const struct gr_msg_append *m,
                                char *text, size_t cap)
{
    if (s == NULL) {
        return "unknown session";
    }
    if (m->epoch != s->epoch) {
        snprintf(text, cap, "the session is in epoch %u, not %u", s->epoch, m->epoch);
        return text;
    }
    if (!is_ending(s) && (s->state != SESSION_IDLE || s->flight.in_pass)) {
        return in_turn_text;
    }
    const int32_t len = is_ending(s) ? GR_MIN(s->turn.cut_at, s->kv.final_len) : s->prefix.len;
    if (m->keep_len > (uint32_t)len || m->hash != s->prefix.hash[m->keep_len]) {
        snprintf(text, cap, "the session's first %u tokens are others here, where %d are committed", m->keep_len, len);
        return text;
    }
    const char *wrong = check_ids(t, (int32_t)m->keep_len, &m->ids, &m->wishes, text, cap);
    const int32_t n_end = m->wishes.min_tokens > 0 ? m->wishes.stop_ids.n : 0;
    return wrong != NULL ? wrong : gr_adjust_wrong(&s->wishes.adjust, n_end, t->config.n_vocab);
}

static int32_t *held_ids_of(const struct gr_target *t, const struct session *s)
{
    return t->held_ids + (size_t)(s - t->session) * (size_t)t->config.n_ctx_max;
}

/* Keeps an APPEND until the pass is done. It was checked against what the session will be by then. */
static void hold_append(struct gr_target *t, struct session *s, const struct gr_msg_append *m)
{
    struct held_append held = {.valid = true, .append = *m, .cut_at = -1};
    held.append.ids.p = held_ids_of(t, s);
    if (m->ids.n > 0) {
        memcpy(held.append.ids.p, m->ids.p, m->ids.n * sizeof(*m->ids.p));
    }
    target_turn_hold(s, &held);
}

static void begin_append(struct gr_target *t, struct session *s, const struct gr_msg_append *m, bool more_follow,
                         uint64_t now_ns)
{
    target_cut(t, s, (int32_t)m->keep_len);
    append_ids(s, &m->ids);
    gr_turn_wishes_copy(&s->wishes.turn, &m->wishes);
    target_next_number(&s->next);
    target_link_fence(&s->link, s->next.round); /* a tree of the last round, on the same prefix, is not this turn's */
    begin_turn(t, s);
    reply_opened(t, s);
    target_link_owe(&s->link, true); /* the drafter prepares the prefix while the target does */
    target_send_deltas(t, s, more_follow, now_ns);
}

void target_append(struct gr_target *t, uint64_t id, const struct gr_msg_append *m, uint64_t now_ns)
{
    char text[GR_MSG_TEXT_MAX];
    struct session *s = target_find(t, id);
    if (refuse_after_held(s) || send_elsewhere(t, id)) {
        return;
    }
    const char *wrong = check_append(t, s, m, text, sizeof(text));
    if (wrong != NULL) {
        target_send_error(t, id, s == NULL ? GR_ENOTFOUND : GR_EINVAL, wrong);
        return;
    }
    if (is_ending(s)) {
        hold_append(t, s, m);
    } else {
        begin_append(t, s, m, false, now_ns);
    }
}

/* Ends the turn, if there is one. What is provisional has not been told as text. */
static void cut_turn(struct gr_target *t, struct session *s, int32_t len, uint64_t now_ns)
{
    target_drop_provisional(t, s);
    target_cut(t, s, GR_MIN(len, s->prefix.len));
    target_go_idle(t, s, now_ns);
}

void target_end_cut_turn(struct gr_target *t, struct session *s, bool more_follow, uint64_t now_ns)
{
    const struct held_append held = s->turn.held;
    const int32_t len = s->turn.cut_at;
    target_turn_cut_done(s);
    gr_kv_table_truncate(&t->pool, &s->kv.table, target_held_len(s));
    cut_turn(t, s, len, now_ns);
    if (held.valid) {
        begin_append(t, s, &held.append, more_follow, now_ns);
        if (held.cut_at >= 0) {
            cut_turn(t, s, held.cut_at, now_ns);
        }
        for (uint32_t i = 0; i < held.n_refused; i++) {
            target_send_error(t, s->id, GR_EINVAL, in_turn_text);
        }
    }
}

void target_truncate(struct gr_target *t, uint64_t id, const struct gr_msg_truncate *m, uint64_t now_ns)
{
    struct session *s = target_find(t, id);
    if (s == NULL || s->epoch != m->epoch) {
        return; /* the session was closed, evicted or re-opened meanwhile: nothing of that turn is left */
    }
    const int32_t len = (int32_t)GR_MIN(m->keep_len, (uint32_t)INT32_MAX);
    target_prefix_forget(t, s, len);
    if (s->flight.in_pass) { /* it also cuts the turn that begins when the pass is done, where one does */
        target_turn_cut_later(s, len);
        return;
    }
    cut_turn(t, s, len, now_ns);
}

void target_close(struct gr_target *t, uint64_t id)
{
    struct session *s = target_find(t, id);
    if (s == NULL) {
        const struct gr_msg m = {.type = GR_MSG_CLOSED, .session = id};
        t->io.send_msg(t->io.ctx, &m);
    } else if (s->flight.in_pass) {
        s->closing = true;
    } else {
        target_free_session(t, s);
    }
}
