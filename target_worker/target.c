#include "target_worker/target.h"

#include "common/hash.h"
#include "common/log.h"
#include "target_worker/target_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

static enum gr_status init_session(struct session *s, const struct gr_target_config *c)
{
    s->token = calloc((size_t)c->n_ctx_max, sizeof(*s->token));
    s->hash = calloc((size_t)c->n_ctx_max + 1, sizeof(*s->hash));
    if (s->token == NULL || s->hash == NULL) {
        log_error("out of memory for %d sessions of %d tokens", c->n_session_max, c->n_ctx_max);
        return GR_ENOMEM;
    }
    return gr_kv_table_init(&s->table, c->n_ctx_max / GR_KV_BLOCK_TOKENS + 1);
}

static enum gr_status init_target(struct gr_target *t)
{
    const struct gr_target_config *c = &t->config;
    GR_TRY(gr_kv_pool_init(&t->pool, c->n_pool_block));
    t->session = calloc((size_t)c->n_session_max, sizeof(*t->session));
    t->pass.seq = calloc((size_t)c->n_session_max, sizeof(*t->pass.seq));
    t->pass.n_seq_max = c->n_session_max;
    if (t->session == NULL || t->pass.seq == NULL) {
        log_error("out of memory for %d sessions", c->n_session_max);
        return GR_ENOMEM;
    }
    for (int i = 0; i < c->n_session_max; i++) {
        GR_TRY(init_session(&t->session[i], c));
    }
    return GR_OK;
}

enum gr_status gr_target_create(const struct gr_target_config *config, const struct gr_target_io *io,
                                struct gr_target **out)
{
    GR_ASSERT(config->n_row_max >= config->prefill_chunk + GR_TREE_MAX && config->n_out_max >= GR_TREE_MAX);
    struct gr_target *t = calloc(1, sizeof(*t));
    if (t == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    t->config = *config;
    t->io = *io;
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
        free(t->session[i].token);
        free(t->session[i].hash);
        gr_kv_table_finish(&t->session[i].table);
    }
    gr_kv_pool_finish(&t->pool);
    free(t->session);
    free(t->pass.seq);
    free(t);
}

/* ---- sessions ---- */

struct session *target_find(struct gr_target *t, uint64_t id)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        if (t->session[i].state != SESSION_FREE && t->session[i].id == id) {
            return &t->session[i];
        }
    }
    return NULL;
}

void target_send_error(struct gr_target *t, uint64_t session, enum gr_status code, const char *text)
{
    struct gr_msg m = {.type = GR_MSG_ERROR, .session = session, .code = (uint32_t)-code};
    snprintf(m.text, sizeof(m.text), "%s", text);
    t->io.send_msg(t->io.ctx, &m);
}

/* Back to an empty slot; the arrays stay. */
void target_free_session(struct gr_target *t, struct session *s)
{
    gr_kv_table_release(&t->pool, &s->table);
    const struct session empty = {.token = s->token, .hash = s->hash, .table = s->table};
    const struct gr_msg m = {.type = GR_MSG_CLOSED, .session = s->id};
    *s = empty;
    t->io.send_msg(t->io.ctx, &m);
}

void target_drop_drafter(struct gr_target *t, struct session *s, const char *reason)
{
    if (!s->has_peer && s->ever_attached) {
        return;
    }
    s->has_peer = false;
    s->ever_attached = true;
    s->draft.valid = false;
    s->delta_pending = false;
    s->n_fallback++;
    t->counters.n_fallback++;
    log_warn("[spec][fallback] session %" PRIu64 " round %u: %s; going on root-only", s->id, s->round, reason);
}

static struct session *empty_slot(struct gr_target *t)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        if (t->session[i].state == SESSION_FREE) {
            return &t->session[i];
        }
    }
    return NULL;
}

/* NULL when the OPEN can be served; else what is wrong with it, in text. */
static const char *check_open(const struct gr_target *t, const struct gr_msg *m, char *text, size_t cap)
{
    const struct gr_target_config *c = &t->config;
    if (m->ids.n < 1) {
        return "the prompt is empty: give at least one token";
    }
    if (m->ids.n >= (uint32_t)c->n_ctx_max) {
        snprintf(text, cap, "the prompt has %u tokens, the context holds %d and one must be generated", m->ids.n,
                 c->n_ctx_max);
        return text;
    }
    for (uint32_t i = 0; i < m->ids.n; i++) {
        if (m->ids.p[i] < 0 || m->ids.p[i] >= c->n_vocab) {
            snprintf(text, cap, "prompt token %u has id %d, the vocabulary has ids 0 to %d", i, m->ids.p[i],
                     c->n_vocab - 1);
            return text;
        }
    }
    if (m->max_tokens < 1) {
        return "max_tokens must be at least 1";
    }
    if (!(m->temperature >= 0.0 && m->temperature <= 100.0) || !(m->top_p > 0.0 && m->top_p <= 1.0) ||
        !(m->min_p >= 0.0 && m->min_p <= 1.0)) {
        return "sampling out of range: temperature 0 to 100, top_p above 0 to 1, min_p 0 to 1";
    }
    int64_t n_want = GR_MIN((int64_t)m->ids.n + m->max_tokens, c->n_ctx_max);
    if (n_want > (int64_t)c->n_pool_block * GR_KV_BLOCK_TOKENS) {
        snprintf(text, cap, "the session may grow to %" PRId64 " tokens, the KV pool holds %d: raise --kv-blocks "
                 "or lower --max-tokens", n_want, c->n_pool_block * GR_KV_BLOCK_TOKENS);
        return text;
    }
    return NULL;
}

static void fill_session(struct session *s, const struct gr_msg *m, const struct gr_target_config *c)
{
    s->state = SESSION_QUEUED;
    s->id = m->session;
    s->epoch = m->epoch;
    s->n_prompt = (int32_t)m->ids.n;
    s->committed_len = s->n_prompt;
    s->len_max = (int32_t)GR_MIN((int64_t)m->ids.n + m->max_tokens, c->n_ctx_max);
    s->want_draft = m->want_draft != 0;
    s->want_trace = m->want_trace != 0;
    s->sampling = (struct gr_sampling){.temperature = (float)m->temperature, .min_p = (float)m->min_p,
                                       .top_p = (float)m->top_p, .top_k = (int32_t)m->top_k, .seed = m->seed};
    s->stop.n_id = (int32_t)m->stop_ids.n;
    for (uint32_t i = 0; i < m->stop_ids.n; i++) {
        s->stop.id[i] = m->stop_ids.p[i];
    }
    s->hash[0] = 0;
    for (int i = 0; i < s->n_prompt; i++) {
        s->token[i] = m->ids.p[i];
        s->hash[i + 1] = gr_hash_extend(s->hash[i], s->token[i]);
    }
}

static void open_session(struct gr_target *t, const struct gr_msg *m)
{
    char text[GR_MSG_TEXT_MAX];
    const char *wrong = check_open(t, m, text, sizeof(text));
    if (wrong == NULL && target_find(t, m->session) != NULL) {
        wrong = "a session of this id is open already";
    }
    struct session *s = wrong == NULL ? empty_slot(t) : NULL;
    if (wrong == NULL && s == NULL) {
        snprintf(text, sizeof(text), "all %d session slots are taken: close one or raise target.n_session_max",
                 t->config.n_session_max);
        wrong = text;
    }
    if (wrong != NULL) {
        target_send_error(t, m->session, GR_EINVAL, wrong);
        return;
    }
    fill_session(s, m, &t->config);
    const struct gr_msg reply = {.type = GR_MSG_OPENED, .session = s->id, .epoch = s->epoch};
    t->io.send_msg(t->io.ctx, &reply);
}

static void close_session(struct gr_target *t, uint64_t id)
{
    struct session *s = target_find(t, id);
    if (s == NULL) {
        const struct gr_msg m = {.type = GR_MSG_CLOSED, .session = id};
        t->io.send_msg(t->io.ctx, &m);
    } else if (s->in_pass) {
        s->closing = true;
    } else {
        target_free_session(t, s);
    }
}

static void pong(struct gr_target *t)
{
    const struct gr_msg m = {.type = GR_MSG_PONG, .n_session = (uint32_t)gr_target_n_session(t),
                             .n_vocab = (uint32_t)t->config.n_vocab, .n_block = (uint32_t)t->pool.n_block,
                             .n_free_block = (uint32_t)t->pool.n_free};
    t->io.send_msg(t->io.ctx, &m);
}

void gr_target_on_msg(struct gr_target *t, const struct gr_msg *m, uint64_t now_ns)
{
    (void)now_ns;
    switch (m->type) {
    case GR_MSG_OPEN:
        open_session(t, m);
        return;
    case GR_MSG_CLOSE:
        close_session(t, m->session);
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

void gr_target_on_peer_lost(struct gr_target *t, uint32_t peer)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        struct session *s = &t->session[i];
        if (s->state != SESSION_FREE && s->has_peer && s->peer == peer) {
            target_drop_drafter(t, s, "the drafter is gone");
        }
    }
}

void gr_target_on_orchestrator_lost(struct gr_target *t)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        if (t->session[i].state != SESSION_FREE) {
            close_session(t, t->session[i].id);
        }
    }
}

/* Sessions get their KV reservation in the order of their slots' arrival ids. */
static void admit_queued(struct gr_target *t)
{
    for (;;) {
        struct session *oldest = NULL;
        for (int i = 0; i < t->config.n_session_max; i++) {
            struct session *s = &t->session[i];
            if (s->state == SESSION_QUEUED && (oldest == NULL || s->id < oldest->id)) {
                oldest = s;
            }
        }
        if (oldest == NULL || gr_kv_table_reserve(&t->pool, &oldest->table, oldest->len_max) != GR_OK) {
            return;
        }
        oldest->state = SESSION_PREFILL;
    }
}

uint64_t gr_target_step(struct gr_target *t, uint64_t now_ns)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        if (t->session[i].delta_pending) {
            target_send_deltas(t, &t->session[i], now_ns);
        }
    }
    admit_queued(t);
    return t->pass_in_flight ? UINT64_MAX : target_start_pass(t, now_ns);
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

bool gr_target_check(const struct gr_target *t)
{
    const struct gr_kv_table *tables[256];
    const int n = t->config.n_session_max;
    GR_ASSERT(n <= (int)GR_ARRAY_LEN(tables));
    for (int i = 0; i < n; i++) {
        const struct session *s = &t->session[i];
        tables[i] = &s->table;
        const int32_t n_block = (s->kv_len + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
        if (!s->in_pass && s->table.n_block != n_block) {
            return false;
        }
        if (s->state == SESSION_DECODE && s->kv_len != s->committed_len - 1) {
            return false;
        }
    }
    return gr_kv_pool_check(&t->pool, tables, n);
}

bool gr_target_peek(const struct gr_target *t, uint64_t session, const int32_t **token_out, int32_t *len_out,
                    int32_t *kv_len_out, const struct gr_kv_table **table_out)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        const struct session *s = &t->session[i];
        if (s->state != SESSION_FREE && s->id == session) {
            *token_out = s->token;
            *len_out = s->committed_len;
            *kv_len_out = s->kv_len;
            *table_out = &s->table;
            return true;
        }
    }
    return false;
}
