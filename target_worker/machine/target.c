#include "target_worker/machine/target.h"

#include "common/base/log.h"
#include "target_worker/machine/target_internal.h"

#include <stdlib.h>

/* ---- life ---- */

static enum gr_status init_target(struct gr_target *t)
{
    const struct gr_target_config *c = &t->config;
    GR_TRY(gr_kv_pool_init(&t->pool, c->n_pool_block));
    GR_TRY(target_prefix_create(t));
    t->session = calloc((size_t)c->n_session_max, sizeof(*t->session));
    t->pass.seq = calloc((size_t)c->n_session_max, sizeof(*t->pass.seq));
    t->pass.n_seq_max = c->n_session_max;
    GR_TRY(target_rows_create(t));
    t->held_ids = calloc((size_t)c->n_session_max * (size_t)c->n_ctx_max, sizeof(*t->held_ids));
    if (t->session == NULL || t->pass.seq == NULL || t->held_ids == NULL) {
        log_error("out of memory for %d sessions", c->n_session_max);
        return GR_ENOMEM;
    }
    for (int i = 0; i < c->n_session_max; i++) {
        GR_TRY(target_init_session(&t->session[i], c));
    }
    return GR_OK;
}

enum gr_status gr_target_create(const struct gr_target_config *config, const struct gr_target_io *io,
                                struct gr_target **out)
{
    GR_ASSERT(config->n_row_max >= config->prefill_chunk + GR_TREE_MAX && config->n_out_max > GR_TREE_MAX);
    GR_ASSERT((size_t)config->feature_width * sizeof(uint16_t) <= GR_FEATURES_ROW_BYTES_MAX);
    GR_ASSERT(config->feature_width == 0 ||
              (config->feature_keep >= config->prefill_chunk + GR_TREE_MAX && config->feature_window >= GR_TREE_MAX));
    const int32_t n_refresh_row = (int32_t)config->specpv.n_buffer + GR_TREE_MAX; /* of a session */
    GR_ASSERT(config->specpv.n_buffer == 0 ||
              (config->n_row_max >= config->prefill_chunk + n_refresh_row && config->n_out_max > n_refresh_row));
    struct gr_target *t = calloc(1, sizeof(*t));
    if (t == NULL) {
        log_error("no memory for the target's sessions");
        return GR_ENOMEM;
    }
    t->config = *config;
    t->io = *io;
    gr_cost_table_init(&t->cost);
    if (config->cost != NULL) {
        t->cost = *config->cost;
    }
    enum gr_status st = init_target(t);
    if (st != GR_OK) {
        gr_target_destroy(t);
        return st;
    }
    *out = t;
    return GR_OK;
}

void gr_target_destroy(struct gr_target *t)
{
    if (t == NULL) {
        return;
    }
    for (int i = 0; t->session != NULL && i < t->config.n_session_max; i++) {
        target_finish_session(&t->session[i]);
    }
    target_prefix_destroy(t);
    gr_kv_pool_finish(&t->pool);
    free(t->session);
    free(t->held_ids);
    target_rows_destroy(t);
    free(t->pass.seq);
    free(t);
}

/* ---- messages ---- */

static void pong(struct gr_target *t)
{
    const struct gr_outlook outlook = target_outlook(t);
    struct gr_msg m = {.type = GR_MSG_PONG,
                       .pong = {.n_session = (uint32_t)gr_target_n_session(t),
                                .n_turn = (uint32_t)target_decoding(t).n,
                                .round_ns = (uint64_t)outlook.round_ns,
                                .more_ns = (uint64_t)outlook.more_ns,
                                .first_ns = (uint64_t)outlook.first_ns,
                                .n_vocab = (uint32_t)t->config.n_vocab,
                                .n_block = (uint32_t)t->pool.n_block,
                                .n_free_block = (uint32_t)(t->pool.n_free + t->pool.n_idle),
                                .n_orphan = t->n_orphan}};
    t->n_orphan = 0;
    target_prefix_tell(t, &m.pong);
    t->io.send_msg(t->io.ctx, &m);
}

/* Its drafter works for it no more, and none has come in its place: rounds are plain until one comes. */
static void detach(struct gr_target *t, uint64_t id)
{
    struct session *s = target_find(t, id);
    if (s != NULL && s->link.attached) {
        target_drop_drafter(t, s, GR_FALLBACK_NONE);
    }
}

static void take_msg(struct gr_target *t, const struct gr_msg *m, uint64_t now_ns)
{
    switch (m->type) {
    case GR_MSG_OPEN:
        target_open(t, m->session, &m->open);
        return;
    case GR_MSG_APPEND:
        target_append(t, m->session, &m->append, now_ns);
        return;
    case GR_MSG_TRUNCATE:
        target_truncate(t, m->session, &m->truncate, now_ns);
        return;
    case GR_MSG_REFRESH:
        target_refresh(t, m->session);
        return;
    case GR_MSG_CLOSE:
        target_close(t, m->session);
        return;
    case GR_MSG_DETACH:
        detach(t, m->session);
        return;
    case GR_MSG_PING:
        pong(t);
        return;
    default:
        log_error("target: control message %s is not for a target", gr_msg_name(m->type));
        target_send_error(t, m->session, GR_EPROTO, "this message is not for a target");
        return;
    }
}

void gr_target_on_msg(struct gr_target *t, const struct gr_msg *m, uint64_t now_ns)
{
    const struct session *s = target_find(t, m->session);
    gr_log_about(&(struct gr_log_subject){.session = m->session,
                                          .epoch = m->type == GR_MSG_OPEN ? m->open.epoch
                                                   : s != NULL            ? s->epoch
                                                                          : 0,
                                          .round = s != NULL ? s->next.round : 0});
    take_msg(t, m, now_ns);
    gr_log_about(NULL);
}

void gr_target_on_peer_lost(struct gr_target *t, uint32_t peer)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        struct session *s = &t->session[i];
        if (s->state != SESSION_FREE && s->link.attached && s->link.peer == peer) {
            target_log_about(s);
            target_drop_drafter(t, s, GR_FALLBACK_NONE); /* the orchestrator hears of the loss, and counts it */
        }
    }
    gr_log_about(NULL);
}

void gr_target_on_orchestrator_lost(struct gr_target *t, uint64_t now_ns)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        struct session *s = &t->session[i];
        if (s->state == SESSION_FREE || s->state == SESSION_IDLE) {
            continue;
        }
        target_turn_forget_held(s); /* who asked for it is gone */
        if (s->flight.in_pass) {
            target_turn_cut_later(s, s->kv.final_len);
        } else {
            target_drop_provisional(t, s);
            target_go_idle(t, s, now_ns);
        }
    }
}

void gr_target_forget_all(struct gr_target *t)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        struct session *s = &t->session[i];
        if (s->state != SESSION_FREE && s->flight.in_pass) {
            s->closing = true;
        } else if (s->state != SESSION_FREE) {
            target_free_session(t, s);
        }
    }
}

uint32_t gr_target_let_orphans_go(struct gr_target *t)
{
    const uint32_t n = (uint32_t)gr_target_n_session(t);
    GR_ASSERT(!t->pass_in_flight);
    gr_target_forget_all(t);
    target_prefix_give_up(t);
    t->n_orphan += n;
    return n;
}

void gr_target_drain(struct gr_target *t)
{
    t->draining = true;
}

uint64_t gr_target_step(struct gr_target *t, uint64_t now_ns)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        struct session *s = &t->session[i];
        if (s->state == SESSION_FREE) {
            continue;
        }
        target_log_about(s);
        if (s->link.owes_delta) {
            target_send_deltas(t, s, false, now_ns);
        }
        target_note_silence(t, s, now_ns);
    }
    gr_log_about(NULL);
    target_admit_queued(t, now_ns);
    const uint64_t wake_ns = t->pass_in_flight ? UINT64_MAX : target_start_pass(t, now_ns);
    return target_send_features(t) ? wake_ns : now_ns;
}

/* ---- looking in ---- */

const struct gr_target_counters *gr_target_counters(const struct gr_target *t)
{
    return &t->counters;
}

int gr_target_n_session(const struct gr_target *t)
{
    int n = 0;
    for (int i = 0; i < t->config.n_session_max; i++) {
        n += t->session[i].state != SESSION_FREE;
    }
    return n;
}

/* Of a session that decodes. */
static bool lengths_fit(const struct session *s)
{
    const int32_t n_missing = target_n_missing(s);
    const bool provisional = s->specpv.mode == GR_SPECPV_EXACT && n_missing > 0;
    return n_missing >= 0 && n_missing <= (int32_t)s->specpv.params.n_buffer &&
           s->kv.final_len == (provisional ? s->kv.len + 1 : s->prefix.len);
}

bool gr_target_check(const struct gr_target *t)
{
    const struct gr_kv_table *tables[256];
    const int n = t->config.n_session_max;
    GR_ASSERT(n <= (int)GR_ARRAY_LEN(tables));
    for (int i = 0; i < n; i++) {
        const struct session *s = &t->session[i];
        tables[i] = &s->kv.table;
        const int32_t n_block = (target_held_len(s) + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
        if (!s->flight.in_pass && s->kv.table.n_block != n_block) {
            return false;
        }
        if (s->features.first > s->features.end || s->features.end + s->features.n_kept > s->prefix.len ||
            s->features.n_kept < 0 || s->features.n_kept > GR_CAPTURE_KEEP ||
            s->features.end - s->features.first > t->config.feature_keep) {
            return false;
        }
        if (s->state == SESSION_DECODE && !lengths_fit(s)) {
            return false;
        }
        if (s->kv.final_len > s->prefix.len || (s->state != SESSION_DECODE && s->kv.final_len != s->prefix.len)) {
            return false; /* only sessions that decode have provisional tokens */
        }
    }
    return gr_kv_pool_check(&t->pool, tables, n) &&
           (!t->config.prefix_cache || gr_kv_cache_check(&t->prefix_cache, tables, n));
}

struct gr_target_prefix gr_target_prefix(const struct gr_target *t)
{
    return (struct gr_target_prefix){.n_block = t->prefix_cache.n_entry, .n_evicted = t->prefix_cache.n_evicted};
}

bool gr_target_peek(const struct gr_target *t, uint64_t session, const int32_t **token_out, int32_t *len_out,
                    int32_t *kv_len_out, const struct gr_kv_table **table_out)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        const struct session *s = &t->session[i];
        if (s->state != SESSION_FREE && s->id == session) {
            *token_out = s->prefix.token;
            *len_out = s->prefix.len;
            *kv_len_out = s->kv.len;
            *table_out = &s->kv.table;
            return true;
        }
    }
    return false;
}
