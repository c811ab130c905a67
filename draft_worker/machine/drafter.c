#include "draft_worker/machine/drafter.h"

#include "common/base/log.h"
#include "draft_worker/machine/drafter_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- life ---- */

static enum gr_status init_session(struct session *s, const struct gr_drafter_config *c)
{
    const bool ok = gr_prefix_alloc(&s->prefix, c->n_ctx_max);
    s->builder = calloc(1, sizeof(*s->builder));
    if (!ok || s->builder == NULL) {
        log_error("out of memory for %d sessions of %d tokens", c->n_session_max, c->n_ctx_max);
        return GR_ENOMEM;
    }
    return gr_kv_table_init(&s->kv.table, c->n_ctx_max / GR_KV_BLOCK_TOKENS + 1);
}

static enum gr_status init_drafter(struct gr_drafter *d)
{
    const struct gr_drafter_config *c = &d->config;
    GR_TRY(gr_kv_pool_init(&d->pool, c->n_pool_block));
    d->session = calloc((size_t)c->n_session_max, sizeof(*d->session));
    d->waiting = calloc((size_t)c->n_session_max, sizeof(*d->waiting));
    d->job.seq = calloc((size_t)c->n_session_max, sizeof(*d->job.seq));
    d->job.n_seq_max = c->n_session_max;
    d->job_token = calloc((size_t)c->n_session_max * (size_t)c->prefill_chunk, sizeof(*d->job_token));
    GR_TRY(drafter_rows_create(d));
    if (d->session == NULL || d->waiting == NULL || d->job.seq == NULL || d->job_token == NULL) {
        log_error("out of memory for %d sessions", c->n_session_max);
        return GR_ENOMEM;
    }
    for (int i = 0; i < c->n_session_max; i++) {
        GR_TRY(init_session(&d->session[i], c));
    }
    return GR_OK;
}

enum gr_status gr_drafter_create(const struct gr_drafter_config *config, const struct gr_drafter_io *io,
                                 struct gr_drafter **out)
{
    struct gr_drafter *d = calloc(1, sizeof(*d));
    if (d == NULL) {
        log_error("no memory for the drafter's sessions");
        return GR_ENOMEM;
    }
    d->config = *config;
    d->io = *io;
    enum gr_status st = init_drafter(d);
    if (st != GR_OK) {
        gr_drafter_destroy(d);
        return st;
    }
    *out = d;
    return GR_OK;
}

void gr_drafter_destroy(struct gr_drafter *d)
{
    if (d == NULL) {
        return;
    }
    for (int i = 0; d->session != NULL && i < d->config.n_session_max; i++) {
        gr_prefix_free(&d->session[i].prefix);
        free(d->session[i].builder);
        gr_kv_table_finish(&d->session[i].kv.table);
    }
    gr_kv_pool_finish(&d->pool);
    free(d->session);
    free(d->waiting);
    free(d->job.seq);
    free(d->job_token);
    drafter_rows_destroy(d);
    free(d);
}

/* ---- sessions ---- */

static struct gr_tree_config tree_config_of(const struct gr_wishes *w)
{
    const uint32_t top_k = w->tree_shape == GR_SHAPE_CHAIN ? 1 : w->draft_top_k;
    return (struct gr_tree_config){.n_node = (int32_t)w->n_node,
                                   .depth = (int32_t)GR_MAX(gr_wishes_depth(w), 1u),
                                   .top_k = (int32_t)GR_MAX(top_k, 1u)};
}

/* A level of every session's tree must fit into one pass, whoever else drafts then: what is wider is cut. */
static void narrow_tree(struct gr_drafter *d, struct session *s)
{
    const int32_t most = GR_MIN(d->config.n_row_max / d->config.n_session_max, GR_DRAFT_TOP_K_MAX);
    char text[160];
    if (s->tree_config.top_k <= most) {
        return;
    }
    snprintf(text, sizeof(text), "%d are asked for; a pass has %d rows for %d sessions (--sessions), so %d are taken",
             s->tree_config.top_k, (int)d->config.n_row_max, (int)d->config.n_session_max, most);
    s->tree_config.top_k = most;
    drafter_fall_back_all(d, s, GR_FALLBACK_DRAFT_ROWS, text);
}

/* An ATTACH for a session that is followed already: its tokens and KV stay, so that the RESYNC finds what still stands,
 * and so does what was learnt about its rounds; everything else begins anew. */
static void begin_anew(struct session *s)
{
    const struct session kept = {
        .state = s->state,
        .id = s->id,
        .epoch = s->epoch,
        .peer = s->peer,
        .prefix = s->prefix,
        .builder = s->builder,
        .kv = s->kv,
        .features = s->features,
        .job = {.in_flight = s->job.in_flight, .stale = s->job.in_flight, .len = s->job.len, .task = s->job.task},
        .fallbacks = s->fallbacks,
        .n_desync_all = s->n_desync_all,
        .tally = s->tally,
        .cost = s->cost,
        .acceptance = s->acceptance};
    *s = kept;
}

static struct session *free_slot(struct gr_drafter *d)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        if (d->session[i].state == DRAFT_FREE) {
            return &d->session[i];
        }
    }
    return NULL;
}

static struct session *find_slot(struct gr_drafter *d, uint64_t id)
{
    struct session *s = drafter_find(d, id);
    if (s != NULL) {
        begin_anew(s);
    }
    return s != NULL ? s : free_slot(d);
}

static void forget_waiting(struct gr_drafter *d, uint64_t id)
{
    int n = 0;
    for (int i = 0; i < d->n_waiting; i++) {
        if (d->waiting[i].session != id) {
            d->waiting[n++] = d->waiting[i];
        }
    }
    d->n_waiting = n;
}

/* False: no slot will be free without another DETACH. */
static bool wait_for_slot(struct gr_drafter *d, const struct gr_msg *m)
{
    int n_leaving = 0;
    for (int i = 0; i < d->config.n_session_max; i++) {
        n_leaving += d->session[i].closing;
    }
    if (d->n_waiting >= n_leaving) {
        return false;
    }
    d->waiting[d->n_waiting++] = *m;
    return true;
}

/* One that nobody has asked for since its orchestrator was lost. */
static void free_orphan(struct gr_drafter *d)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        struct session *s = &d->session[i];
        if (s->state != DRAFT_FREE && s->orphaned && !s->closing) {
            drafter_free(d, s);
            return;
        }
    }
}

static void send_elsewhere(struct gr_drafter *d, uint64_t id)
{
    d->counters.n_sent_elsewhere++;
    drafter_send_error(d, id, GR_EDRAINING, "the drafter is to end, and takes no session any more");
}

static void attach(struct gr_drafter *d, const struct gr_msg *m)
{
    uint32_t peer = 0;
    const struct gr_wishes *w = &m->attach.wishes;
    struct session *s = find_slot(d, m->session);
    gr_log_about(&(struct gr_log_subject){.session = m->session, .epoch = m->attach.epoch});
    forget_waiting(d, m->session); /* an earlier one of the same session */
    if (s == NULL) {
        free_orphan(d);
        s = free_slot(d);
    }
    if (s == NULL) {
        if (!wait_for_slot(d, m)) {
            drafter_send_error(d, m->session, GR_ELIMIT, "all session slots of the drafter are taken");
        }
        return;
    }
    const char *wrong = gr_wishes_wrong(w, INT32_MAX); /* ids that it does not have are passed over */
    if (wrong != NULL) {
        drafter_send_error(d, m->session, GR_EINVAL, wrong);
        drafter_free(d, s);
        return;
    }
    if (d->io.connect(d->io.ctx, m->attach.address, m->attach.incarnation, w->transport, &peer) != GR_OK) {
        drafter_send_error(d, m->session, GR_EIO, "the drafter cannot connect to the target; see the drafter's log");
        drafter_free(d, s);
        return;
    }
    drafter_connect(s);
    s->id = m->session;
    s->epoch = m->attach.epoch;
    s->peer = peer;
    gr_wishes_copy(&s->wishes, w);
    s->tree_config = tree_config_of(w);
    narrow_tree(d, s);
    if (d->config.feature_width > 0) {
        draft_kv_of_head(s);
    }
}

static void attach_waiting(struct gr_drafter *d)
{
    while (d->n_waiting > 0 && free_slot(d) != NULL) {
        const struct gr_msg m = d->waiting[0];
        attach(d, &m);
    }
}

/* Troubles are told at once, and not with DRAFT_STATS alone: a session that is kept has turns that end before its
 * drafter is detached. */
static void tell_troubles(struct gr_drafter *d, struct session *s)
{
    if (s->tally.n_desync == 0 && s->fallbacks.n_untold == 0 && s->tally.n_feature_gap == 0) {
        return; /* before there is a message, which is large: every step looks at every slot */
    }
    const struct gr_msg m = {.type = GR_MSG_DRAFT_TROUBLE,
                             .session = s->id,
                             .draft_trouble = {.n_desync = s->tally.n_desync,
                                               .n_fallback = s->fallbacks.n_untold,
                                               .n_feature_gap = s->tally.n_feature_gap}};
    drafter_tally_told(s);
    d->io.send_msg(d->io.ctx, &m);
}

static void detach(struct gr_drafter *d, uint64_t id)
{
    struct session *s = drafter_find(d, id);
    forget_waiting(d, id);
    struct gr_msg m = {.type = GR_MSG_DRAFT_STATS, .session = id};
    if (s != NULL) {
        tell_troubles(d, s);
        m.draft_stats.n_round = s->n_round;
        m.draft_stats.draft_ns = s->draft_ns;
        m.draft_stats.host_ns = s->host_ns;
        m.draft_stats.n_ahead = s->n_ahead;
        m.draft_stats.n_hit = s->n_hit;
        m.draft_stats.n_first = s->n_first;
        m.draft_stats.n_first_hit = s->n_first_hit;
        m.draft_stats.first_expected = s->first_expected;
        m.draft_stats.n_alarm = s->n_alarm;
        m.draft_stats.wire_bytes = s->wire.bytes;
        m.draft_stats.wire_tokens = s->wire.len0 > 0 ? (uint64_t)GR_MAX(s->prefix.len - s->wire.len0, 0) : 0;
        drafter_free(d, s);
    }
    d->io.send_msg(d->io.ctx, &m);
}

static void pong(struct gr_drafter *d, uint64_t now_ns)
{
    const int n = drafter_n_in_rounds(d, now_ns, 0);
    const struct gr_tree_outlook o = gr_tree_outlook_of(&d->tree_times, n);
    const struct gr_msg m = {.type = GR_MSG_PONG,
                             .pong = {.n_orphan = d->n_orphan,
                                      .n_session = (uint32_t)gr_drafter_n_session(d),
                                      .n_turn = (uint32_t)n,
                                      .round_ns = (uint64_t)o.round_ns,
                                      .more_ns = (uint64_t)o.more_ns,
                                      .first_ns = (uint64_t)o.first_ns,
                                      .n_vocab = (uint32_t)d->config.n_vocab,
                                      .n_block = (uint32_t)d->pool.n_block,
                                      .n_free_block = (uint32_t)d->pool.n_free}};
    d->n_orphan = 0;
    d->io.send_msg(d->io.ctx, &m);
}

static void take_msg(struct gr_drafter *d, const struct gr_msg *m, uint64_t now_ns)
{
    switch (m->type) {
    case GR_MSG_ATTACH:
        if (d->draining) {
            send_elsewhere(d, m->session);
            return;
        }
        attach_waiting(d); /* who came first gets a slot that is free by now */
        attach(d, m);
        return;
    case GR_MSG_DETACH:
        detach(d, m->session);
        return;
    case GR_MSG_PING:
        pong(d, now_ns);
        return;
    default:
        log_error("draft: control message %s is not for a drafter", gr_msg_name(m->type));
        drafter_send_error(d, m->session, GR_EPROTO, "this message is not for a drafter");
        return;
    }
}

void gr_drafter_on_msg(struct gr_drafter *d, const struct gr_msg *m, uint64_t now_ns)
{
    const struct session *s = drafter_find(d, m->session);
    gr_log_about(&(struct gr_log_subject){.session = m->session, .epoch = s != NULL ? s->epoch : 0});
    take_msg(d, m, now_ns);
    gr_log_about(NULL);
}

void gr_drafter_on_peer_ready(struct gr_drafter *d, uint32_t peer, const char *transport, uint64_t now_ns)
{
    (void)now_ns;
    for (int i = 0; i < d->config.n_session_max; i++) {
        struct session *s = &d->session[i];
        if (s->state != DRAFT_CONNECTING || s->peer != peer) {
            continue;
        }
        struct gr_msg m = {.type = GR_MSG_ATTACHED, .session = s->id, .attached = {.epoch = s->epoch}};
        m.attached.n_fallback = d->io.take_fallbacks != NULL ? d->io.take_fallbacks(d->io.ctx, peer) : 0;
        snprintf(m.attached.transport, sizeof(m.attached.transport), "%s", transport);
        d->io.send_msg(d->io.ctx, &m);
        drafter_send_resync(d, s);
    }
}

void gr_drafter_on_peer_lost(struct gr_drafter *d, uint32_t peer, enum gr_status why, const char *text)
{
    if (text == NULL || text[0] == '\0') {
        text = why == GR_ECLOSED ? "the drafter lost its connection to the target"
                                 : "the drafter cannot be connected to the target; its own line says why";
    }
    for (int i = 0; i < d->config.n_session_max; i++) {
        struct session *s = &d->session[i];
        if (s->state != DRAFT_FREE && !s->closing && s->peer == peer) {
            tell_troubles(d, s);
            drafter_send_error(d, s->id, why, text);
            drafter_free(d, s);
        }
    }
}

void gr_drafter_on_orchestrator_lost(struct gr_drafter *d)
{
    d->n_waiting = 0;
    for (int i = 0; i < d->config.n_session_max; i++) {
        if (d->session[i].state != DRAFT_FREE) {
            drafter_orphan(&d->session[i]);
        }
    }
}

void gr_drafter_drain(struct gr_drafter *d)
{
    d->draining = true;
    for (int i = 0; i < d->n_waiting; i++) {
        send_elsewhere(d, d->waiting[i].session);
    }
    d->n_waiting = 0;
}

void gr_drafter_forget_all(struct gr_drafter *d)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        struct session *s = &d->session[i];
        if (s->state != DRAFT_FREE && !s->closing) {
            drafter_free(d, s);
        }
    }
}

uint32_t gr_drafter_let_orphans_go(struct gr_drafter *d)
{
    const uint32_t n = (uint32_t)gr_drafter_n_session(d);
    gr_drafter_forget_all(d);
    d->n_orphan += n;
    return n;
}

uint64_t gr_drafter_step(struct gr_drafter *d, uint64_t now_ns)
{
    attach_waiting(d);
    for (int i = 0; i < d->config.n_session_max; i++) {
        struct session *s = &d->session[i];
        if (s->state == DRAFT_FREE) {
            continue;
        }
        drafter_log_about(s);
        if (s->resync_due) {
            drafter_send_resync(d, s);
        }
        if (s->owed.ready) {
            drafter_send_tree(d, s, now_ns);
        }
        drafter_slide(d, s);
        drafter_send_taken(d, s);
        tell_troubles(d, s);
    }
    gr_log_about(NULL);
    return d->job_in_flight ? UINT64_MAX : drafter_start_job(d, now_ns);
}

const struct gr_drafter_counters *gr_drafter_counters(const struct gr_drafter *d)
{
    return &d->counters;
}

const struct gr_acceptance_counts *gr_drafter_acceptance(const struct gr_drafter *d)
{
    return &d->counts;
}

int gr_drafter_n_session(const struct gr_drafter *d)
{
    int n = 0;
    for (int i = 0; i < d->config.n_session_max; i++) {
        n += d->session[i].state != DRAFT_FREE;
    }
    return n;
}

bool gr_drafter_check(const struct gr_drafter *d)
{
    const struct gr_kv_table *tables[256];
    GR_ASSERT(d->config.n_session_max <= (int)GR_ARRAY_LEN(tables));
    for (int i = 0; i < d->config.n_session_max; i++) {
        const struct session *s = &d->session[i];
        tables[i] = &s->kv.table;
        const bool based = s->kv.shift > 0 || s->candidates.len <= s->kv.len;
        if (s->features.first > s->features.end || s->features.end - s->features.first > d->config.feature_window ||
            s->features.end > s->prefix.len) {
            return false;
        }
        if (!s->job.in_flight && s->candidates.valid && !(based && gr_tree_builder_check(s->builder))) {
            return false;
        }
    }
    return gr_kv_pool_check(&d->pool, tables, d->config.n_session_max);
}

const int32_t *gr_drafter_peek(const struct gr_drafter *d, int slot, int32_t *len_out)
{
    *len_out = d->session[slot].prefix.len;
    return d->session[slot].prefix.token;
}
