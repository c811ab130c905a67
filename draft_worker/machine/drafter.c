#include "draft_worker/machine/drafter.h"

#include "common/base/log.h"
#include "common/base/zeroed.h"
#include "draft_worker/machine/drafter_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- life ---- */

static enum gr_status init_follow(struct follow *f, const struct gr_drafter_config *c)
{
    const bool ok = gr_prefix_alloc(&f->prefix, c->n_ctx_max);
    f->builder = calloc(1, sizeof(*f->builder));
    if (!ok || f->builder == NULL) {
        log_error("out of memory for %d sessions of %d tokens", c->n_session_max, c->n_ctx_max);
        return GR_ENOMEM;
    }
    return gr_kv_table_init(&f->kv.table, c->n_ctx_max / GR_KV_BLOCK_TOKENS + 1);
}

static enum gr_status init_drafter(struct gr_drafter *d)
{
    const struct gr_drafter_config *c = &d->config;
    GR_TRY(gr_kv_pool_init(&d->pool, c->n_pool_block));
    d->follow = calloc((size_t)c->n_session_max, sizeof(*d->follow));
    d->waiting = calloc((size_t)c->n_session_max, sizeof(*d->waiting));
    d->job.seq = calloc((size_t)c->n_session_max, sizeof(*d->job.seq));
    d->job.n_seq_max = c->n_session_max;
    d->job_token = calloc((size_t)c->n_session_max * (size_t)c->prefill_chunk, sizeof(*d->job_token));
    const size_t width = (size_t)c->feature_width;
    const size_t n_feature = (size_t)c->n_session_max * (size_t)c->feature_window * width;
    bool ok = true;
    if (width > 0) {
        d->feature = gr_zeroed(n_feature, sizeof(*d->feature), &ok);
        d->job_feature =
            gr_zeroed((size_t)c->n_session_max * (size_t)c->prefill_chunk * width, sizeof(*d->job_feature), &ok);
    }
    if (!ok) {
        log_error("out of memory for the features of %d positions of %d sessions, %zu MiB", c->feature_window,
                  c->n_session_max, n_feature * sizeof(*d->feature) >> 20);
        return GR_ENOMEM;
    }
    if (d->follow == NULL || d->waiting == NULL || d->job.seq == NULL || d->job_token == NULL) {
        log_error("out of memory for %d sessions", c->n_session_max);
        return GR_ENOMEM;
    }
    for (int i = 0; i < c->n_session_max; i++) {
        GR_TRY(init_follow(&d->follow[i], c));
    }
    return GR_OK;
}

enum gr_status gr_drafter_create(const struct gr_drafter_config *config, const struct gr_drafter_io *io,
                                 struct gr_drafter **out)
{
    struct gr_drafter *d = calloc(1, sizeof(*d));
    if (d == NULL) {
        log_error("out of memory");
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
    for (int i = 0; d->follow != NULL && i < d->config.n_session_max; i++) {
        gr_prefix_free(&d->follow[i].prefix);
        free(d->follow[i].builder);
        gr_kv_table_finish(&d->follow[i].kv.table);
    }
    gr_kv_pool_finish(&d->pool);
    free(d->follow);
    free(d->waiting);
    free(d->job.seq);
    free(d->job_token);
    free(d->feature);
    free(d->job_feature);
    free(d);
}

/* ---- sessions ---- */

static struct gr_tree_config tree_config_of(const struct gr_wishes *w)
{
    struct gr_tree_config c = {
        .n_node = (int32_t)w->n_node, .depth = (int32_t)w->draft_depth, .top_k = (int32_t)w->draft_top_k};
    if (w->tree_shape == GR_SHAPE_CHAIN) {
        c.top_k = 1;
        c.depth = c.n_node;
    }
    c.depth = GR_MAX(c.depth, 1);
    c.top_k = GR_MAX(c.top_k, 1);
    return c;
}

/* An ATTACH for a session that is followed already: its tokens and KV stay, so that the RESYNC finds what still stands,
 * and so does what was learnt about its rounds; everything else begins anew. */
static void begin_anew(struct follow *f)
{
    const struct follow kept = {
        .state = f->state,
        .id = f->id,
        .epoch = f->epoch,
        .peer = f->peer,
        .prefix = f->prefix,
        .builder = f->builder,
        .kv = f->kv,
        .features = f->features,
        .job = {.in_flight = f->job.in_flight, .stale = f->job.in_flight, .len = f->job.len, .task = f->job.task},
        .fallbacks = f->fallbacks,
        .n_desync_all = f->n_desync_all,
        .tally = f->tally,
        .cost = f->cost,
        .acceptance = f->acceptance};
    *f = kept;
}

static struct follow *free_slot(struct gr_drafter *d)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        if (d->follow[i].state == DRAFT_FREE) {
            return &d->follow[i];
        }
    }
    return NULL;
}

static struct follow *find_slot(struct gr_drafter *d, uint64_t id)
{
    struct follow *f = drafter_find(d, id);
    if (f != NULL) {
        begin_anew(f);
    }
    return f != NULL ? f : free_slot(d);
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
        n_leaving += d->follow[i].closing;
    }
    if (d->n_waiting >= n_leaving) {
        return false;
    }
    d->waiting[d->n_waiting++] = *m;
    return true;
}

static void attach(struct gr_drafter *d, const struct gr_msg *m)
{
    uint32_t peer = 0;
    const struct gr_wishes *w = &m->attach.wishes;
    struct follow *f = find_slot(d, m->session);
    forget_waiting(d, m->session); /* an earlier one of the same session */
    if (f == NULL) {
        if (!wait_for_slot(d, m)) {
            drafter_send_error(d, m->session, GR_ELIMIT, "all session slots of the drafter are taken");
        }
        return;
    }
    const char *wrong = gr_wishes_wrong(w);
    if (wrong != NULL) {
        drafter_send_error(d, m->session, GR_EINVAL, wrong);
        drafter_free(d, f);
        return;
    }
    const uint32_t top_k_max = (uint32_t)(d->config.n_row_max / d->config.n_session_max);
    if (w->draft_top_k > top_k_max) {
        char text[160];
        snprintf(text, sizeof(text), "draft_top_k %u: a pass of this drafter has %d rows for %d sessions, %u for each",
                 w->draft_top_k, (int)d->config.n_row_max, (int)d->config.n_session_max, top_k_max);
        drafter_send_error(d, m->session, GR_ELIMIT, text);
        drafter_free(d, f);
        return;
    }
    if (d->io.connect(d->io.ctx, m->attach.address, w->transport, &peer) != GR_OK) {
        drafter_send_error(d, m->session, GR_EIO, "the drafter cannot connect to the target; see the drafter's log");
        drafter_free(d, f);
        return;
    }
    drafter_connect(f);
    f->id = m->session;
    f->epoch = m->attach.epoch;
    f->peer = peer;
    gr_wishes_copy(&f->wishes, w);
    f->tree_config = tree_config_of(w);
    if (d->config.feature_width > 0) {
        draft_kv_of_head(f);
    }
}

static void attach_waiting(struct gr_drafter *d)
{
    while (d->n_waiting > 0 && free_slot(d) != NULL) {
        const struct gr_msg m = d->waiting[0];
        attach(d, &m);
    }
}

/* At once, and not with DRAFT_STATS alone: a session that is kept has turns that end before its drafter is detached. */
static void tell_troubles(struct gr_drafter *d, struct follow *f)
{
    const struct gr_msg m = {.type = GR_MSG_DRAFT_TROUBLE,
                             .session = f->id,
                             .draft_trouble = {.n_desync = f->tally.n_desync,
                                               .n_fallback = f->fallbacks.n_untold,
                                               .n_feature_gap = f->tally.n_feature_gap}};
    if (m.draft_trouble.n_desync > 0 || m.draft_trouble.n_fallback > 0 || m.draft_trouble.n_feature_gap > 0) {
        drafter_tally_told(f);
        d->io.send_msg(d->io.ctx, &m);
    }
}

static void detach(struct gr_drafter *d, uint64_t id)
{
    struct follow *f = drafter_find(d, id);
    forget_waiting(d, id);
    struct gr_msg m = {.type = GR_MSG_DRAFT_STATS, .session = id};
    if (f != NULL) {
        tell_troubles(d, f);
        m.draft_stats.n_round = f->n_round;
        m.draft_stats.draft_ns = f->draft_ns;
        m.draft_stats.host_ns = f->host_ns;
        m.draft_stats.n_ahead = f->n_ahead;
        m.draft_stats.n_hit = f->n_hit;
        m.draft_stats.n_first = f->n_first;
        m.draft_stats.n_first_hit = f->n_first_hit;
        m.draft_stats.first_expected = f->first_expected;
        m.draft_stats.n_alarm = f->n_alarm;
        m.draft_stats.wire_bytes = f->wire.bytes;
        m.draft_stats.wire_tokens = f->wire.len0 > 0 ? (uint64_t)GR_MAX(f->prefix.len - f->wire.len0, 0) : 0;
        drafter_free(d, f);
    }
    d->io.send_msg(d->io.ctx, &m);
}

void gr_drafter_on_msg(struct gr_drafter *d, const struct gr_msg *m, uint64_t now_ns)
{
    (void)now_ns;
    const struct gr_msg pong = {.type = GR_MSG_PONG,
                                .pong = {.n_session = (uint32_t)gr_drafter_n_session(d),
                                         .n_vocab = (uint32_t)d->config.n_vocab,
                                         .n_block = (uint32_t)d->pool.n_block,
                                         .n_free_block = (uint32_t)d->pool.n_free}};
    switch (m->type) {
    case GR_MSG_ATTACH:
        attach_waiting(d); /* who came first gets a slot that is free by now */
        attach(d, m);
        return;
    case GR_MSG_DETACH:
        detach(d, m->session);
        return;
    case GR_MSG_PING:
        d->io.send_msg(d->io.ctx, &pong);
        return;
    default:
        log_error("draft: control message %s is not for a drafter", gr_msg_name(m->type));
        drafter_send_error(d, m->session, GR_EPROTO, "this message is not for a drafter");
        return;
    }
}

void gr_drafter_on_peer_ready(struct gr_drafter *d, uint32_t peer, const char *transport, uint64_t now_ns)
{
    (void)now_ns;
    for (int i = 0; i < d->config.n_session_max; i++) {
        struct follow *f = &d->follow[i];
        if (f->state != DRAFT_CONNECTING || f->peer != peer) {
            continue;
        }
        struct gr_msg m = {.type = GR_MSG_ATTACHED, .session = f->id, .attached = {.epoch = f->epoch}};
        m.attached.n_fallback = d->io.take_fallbacks != NULL ? d->io.take_fallbacks(d->io.ctx, peer) : 0;
        snprintf(m.attached.transport, sizeof(m.attached.transport), "%s", transport);
        d->io.send_msg(d->io.ctx, &m);
        drafter_send_resync(d, f);
    }
}

void gr_drafter_on_peer_lost(struct gr_drafter *d, uint32_t peer, enum gr_status why)
{
    const char *text = why == GR_ECLOSED ? "the drafter lost its connection to the target"
                                         : "the drafter cannot be connected to the target; its own line says why";
    for (int i = 0; i < d->config.n_session_max; i++) {
        struct follow *f = &d->follow[i];
        if (f->state != DRAFT_FREE && !f->closing && f->peer == peer) {
            tell_troubles(d, f);
            drafter_send_error(d, f->id, why, text);
            drafter_free(d, f);
        }
    }
}

uint64_t gr_drafter_step(struct gr_drafter *d, uint64_t now_ns)
{
    attach_waiting(d);
    for (int i = 0; i < d->config.n_session_max; i++) {
        struct follow *f = &d->follow[i];
        if (f->state != DRAFT_FREE && f->resync_due) {
            drafter_send_resync(d, f);
        }
        if (f->owed.ready) {
            drafter_send_tree(d, f, now_ns);
        }
        drafter_slide(d, f);
        drafter_send_taken(d, f);
        tell_troubles(d, f);
    }
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
        n += d->follow[i].state != DRAFT_FREE;
    }
    return n;
}

bool gr_drafter_check(const struct gr_drafter *d)
{
    const struct gr_kv_table *tables[256];
    GR_ASSERT(d->config.n_session_max <= (int)GR_ARRAY_LEN(tables));
    for (int i = 0; i < d->config.n_session_max; i++) {
        const struct follow *f = &d->follow[i];
        tables[i] = &f->kv.table;
        const bool based = f->kv.shift > 0 || f->candidates.len <= f->kv.len;
        if (f->features.first > f->features.end || f->features.end - f->features.first > d->config.feature_window ||
            f->features.end > f->prefix.len) {
            return false;
        }
        if (!f->job.in_flight && f->candidates.valid && !(based && gr_tree_builder_check(f->builder))) {
            return false;
        }
    }
    return gr_kv_pool_check(&d->pool, tables, d->config.n_session_max);
}

const int32_t *gr_drafter_peek(const struct gr_drafter *d, int slot, int32_t *len_out)
{
    *len_out = d->follow[slot].prefix.len;
    return d->follow[slot].prefix.token;
}
