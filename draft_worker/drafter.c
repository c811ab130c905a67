#include "draft_worker/drafter.h"

#include "common/hash.h"
#include "common/log.h"
#include "draft_worker/drafter_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

static enum gr_status init_follow(struct follow *f, const struct gr_drafter_config *c)
{
    f->token = calloc((size_t)c->n_ctx_max, sizeof(*f->token));
    f->hash = calloc((size_t)c->n_ctx_max + 1, sizeof(*f->hash));
    if (f->token == NULL || f->hash == NULL) {
        log_error("out of memory for %d sessions of %d tokens", c->n_session_max, c->n_ctx_max);
        return GR_ENOMEM;
    }
    return gr_kv_table_init(&f->table, c->n_ctx_max / GR_KV_BLOCK_TOKENS + 1);
}

static enum gr_status init_drafter(struct gr_drafter *d)
{
    const struct gr_drafter_config *c = &d->config;
    GR_TRY(gr_kv_pool_init(&d->pool, c->n_pool_block));
    d->follow = calloc((size_t)c->n_session_max, sizeof(*d->follow));
    d->job.seq = calloc((size_t)c->n_session_max, sizeof(*d->job.seq));
    d->job.n_seq_max = c->n_session_max;
    d->job_token = calloc((size_t)c->n_session_max * (size_t)c->prefill_chunk, sizeof(*d->job_token));
    if (d->follow == NULL || d->job.seq == NULL || d->job_token == NULL) {
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
        free(d->follow[i].token);
        free(d->follow[i].hash);
        gr_kv_table_finish(&d->follow[i].table);
    }
    gr_kv_pool_finish(&d->pool);
    free(d->follow);
    free(d->job.seq);
    free(d->job_token);
    free(d);
}

/* ---- sessions ---- */

struct follow *drafter_find(struct gr_drafter *d, uint64_t id)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        if (d->follow[i].state != DRAFT_FREE && !d->follow[i].closing && d->follow[i].id == id) {
            return &d->follow[i];
        }
    }
    return NULL;
}

static void free_follow(struct gr_drafter *d, struct follow *f)
{
    if (f->in_job) {
        f->closing = true;
        return;
    }
    gr_kv_table_release(&d->pool, &f->table);
    const struct follow empty = {.token = f->token, .hash = f->hash, .table = f->table};
    *f = empty;
}

void drafter_truncate(struct gr_drafter *d, struct follow *f, int32_t len)
{
    f->job_stale = f->job_stale || (f->in_job && len < f->job_len);
    f->len = len;
    f->n_copy = 0;
    f->sent.valid = false;
    f->ready = false;
    f->due = false;
    if (f->kv_len > len) {
        f->kv_len = len;
    }
    if (!f->in_job) {
        gr_kv_table_truncate(&d->pool, &f->table, f->kv_len);
    }
}

bool drafter_append(struct gr_drafter *d, struct follow *f, int32_t token)
{
    if (f->len >= d->config.n_ctx_max) {
        return false;
    }
    f->token[f->len] = token;
    f->hash[f->len + 1] = gr_hash_extend(f->hash[f->len], token);
    f->len++;
    return true;
}

static void send_error(struct gr_drafter *d, uint64_t session, enum gr_status code, const char *text)
{
    struct gr_msg m = {.type = GR_MSG_ERROR, .session = session, .code = (uint32_t)-code};
    snprintf(m.text, sizeof(m.text), "%s", text);
    d->io.send_msg(d->io.ctx, &m);
}

static struct gr_tree_config tree_config_of(const struct gr_msg *m)
{
    struct gr_tree_config c = {.n_node = (int32_t)m->n_node, .depth = (int32_t)m->draft_depth,
                               .top_k = (int32_t)m->draft_top_k};
    if (m->tree_shape == GR_SHAPE_CHAIN) {
        c.top_k = 1;
        c.depth = c.n_node;
    }
    c.depth = GR_MAX(c.depth, 1);
    c.top_k = GR_MAX(c.top_k, 1);
    return c;
}

static void attach(struct gr_drafter *d, const struct gr_msg *m)
{
    struct follow *f = drafter_find(d, m->session);
    if (f != NULL) {
        free_follow(d, f); /* a new ATTACH replaces the old one */
        f = f->state == DRAFT_FREE ? f : NULL;
    }
    for (int i = 0; f == NULL && i < d->config.n_session_max; i++) {
        f = d->follow[i].state == DRAFT_FREE ? &d->follow[i] : NULL;
    }
    if (f == NULL || m->draft_top_k * (uint32_t)d->config.n_session_max > (uint32_t)d->config.n_row_max) {
        send_error(d, m->session, GR_ELIMIT, f == NULL ? "all session slots of the drafter are taken"
                                                       : "draft_top_k is larger than this drafter's passes hold");
        return;
    }
    uint32_t peer = 0;
    if (d->io.connect(d->io.ctx, m->address, m->transport, &peer) != GR_OK) {
        send_error(d, m->session, GR_EIO, "the drafter cannot connect to the target; see the drafter's log");
        return;
    }
    f->state = DRAFT_CONNECTING;
    f->id = m->session;
    f->epoch = m->epoch;
    f->peer = peer;
    f->sampling = (struct gr_sampling){.temperature = (float)m->temperature, .min_p = (float)m->min_p,
                                       .top_p = (float)m->top_p, .top_k = (int32_t)m->top_k, .seed = m->seed};
    f->tree_config = tree_config_of(m);
    f->hash[0] = 0;
}

static void detach(struct gr_drafter *d, uint64_t id)
{
    struct follow *f = drafter_find(d, id);
    struct gr_msg m = {.type = GR_MSG_DRAFT_STATS, .session = id};
    if (f != NULL) {
        m.n_round = f->n_round;
        m.draft_ns = f->draft_ns;
        m.host_ns = f->host_ns;
        m.n_desync = (uint32_t)f->n_desync;
        free_follow(d, f);
    }
    d->io.send_msg(d->io.ctx, &m);
}

void gr_drafter_on_msg(struct gr_drafter *d, const struct gr_msg *m, uint64_t now_ns)
{
    (void)now_ns;
    const struct gr_msg pong = {.type = GR_MSG_PONG, .n_session = (uint32_t)gr_drafter_n_session(d),
                                .n_vocab = (uint32_t)d->config.n_vocab, .n_block = (uint32_t)d->pool.n_block,
                                .n_free_block = (uint32_t)d->pool.n_free};
    switch (m->type) {
    case GR_MSG_ATTACH:
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
        send_error(d, m->session, GR_EPROTO, "this message is not for a drafter");
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
        struct gr_msg m = {.type = GR_MSG_ATTACHED, .session = f->id, .epoch = f->epoch};
        snprintf(m.transport, sizeof(m.transport), "%s", transport);
        d->io.send_msg(d->io.ctx, &m);
        drafter_send_resync(d, f);
    }
}

void gr_drafter_on_peer_lost(struct gr_drafter *d, uint32_t peer)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        struct follow *f = &d->follow[i];
        if (f->state != DRAFT_FREE && f->peer == peer) {
            send_error(d, f->id, GR_ECLOSED, "the drafter lost its connection to the target");
            free_follow(d, f);
        }
    }
}

/* ---- jobs ---- */

/* What this session needs next: draft KV of committed tokens, and a tree when one is due. */
static bool wants_job(const struct follow *f)
{
    if (f->state != DRAFT_FOLLOWING || f->in_job || f->closing) {
        return false;
    }
    return f->due ? !f->ready : f->kv_len < f->len && !f->starved;
}

static bool add_seq(struct gr_drafter *d, struct follow *f, int n_row_left, uint64_t now_ns)
{
    const int slot = (int)(f - d->follow);
    struct gr_draft_seq *q = &d->job.seq[d->job.n_seq];
    q->n_copy = f->n_copy;
    q->copy_pos0 = f->copy_pos0;
    memcpy(q->copy_slot, f->copy_slot, (size_t)f->n_copy * sizeof(*q->copy_slot));
    q->pos0 = f->kv_len + f->n_copy;
    /* A tree starts below the tail, so its row runs again when its KV stands already (after a re-draft). */
    if (f->due && q->pos0 >= f->len) {
        q->pos0 = f->len - 1;
        q->n_copy = GR_MIN(q->n_copy, q->pos0 - q->copy_pos0);
    }
    q->n_row = GR_MIN(f->len - q->pos0, GR_MIN(d->config.prefill_chunk, n_row_left));
    if (q->n_row < 1) {
        return false;
    }
    if (gr_kv_table_grow(&d->pool, &f->table, q->pos0 + q->n_row) != GR_OK) {
        if (!f->starved) {
            log_warn("[spec][fallback] session %" PRIu64 ": the drafter's KV pool is full; no tree for it", f->id);
        }
        f->starved = true; /* tried again when the next tree is due */
        if (f->due) {
            drafter_answer_empty(d, f, f->due_round, (uint32_t)f->len, f->hash[f->len], now_ns);
        }
        return false;
    }
    f->starved = false;
    q->session = slot;
    /* A copy: a DELTA may replace the session's tokens while the job runs. */
    int32_t *token = d->job_token + (size_t)d->job.n_seq * (size_t)d->config.prefill_chunk;
    memcpy(token, &f->token[q->pos0], (size_t)q->n_row * sizeof(*token));
    q->token = token;
    q->table = &f->table;
    q->grow = f->due && q->pos0 + q->n_row == f->len;
    q->tree_config = f->tree_config;
    q->sampling = f->sampling;
    for (int b = 0; b < GR_DRAFT_SCRATCH_BLOCKS; b++) {
        q->scratch_block[b] = d->config.n_pool_block + slot * GR_DRAFT_SCRATCH_BLOCKS + b;
    }
    f->n_copy = 0;
    f->in_job = true;
    f->job_stale = false;
    f->job_grow = q->grow;
    f->job_len = q->pos0 + q->n_row;
    f->sent.valid = f->sent.valid && !q->grow; /* its scratch is about to be overwritten */
    d->job.n_seq++;
    return true;
}

static void start_job(struct gr_drafter *d, uint64_t now_ns)
{
    d->job.n_seq = 0;
    int n_row_left = d->config.n_row_max;
    for (int i = 0; i < d->config.n_session_max; i++) {
        if (wants_job(&d->follow[i]) && add_seq(d, &d->follow[i], n_row_left, now_ns)) {
            n_row_left -= d->job.seq[d->job.n_seq - 1].n_row;
        }
    }
    if (d->job.n_seq > 0) {
        d->job_in_flight = true;
        d->io.start_job(d->io.ctx, &d->job);
    }
}

static void finish_seq(struct gr_drafter *d, const struct gr_draft_seq *q, uint64_t compute_ns, uint64_t now_ns)
{
    struct follow *f = &d->follow[q->session];
    f->in_job = false;
    if (f->closing) {
        free_follow(d, f);
        return;
    }
    if (f->job_stale) { /* the job worked on tokens that are gone: keep what still stands */
        gr_kv_table_truncate(&d->pool, &f->table, f->kv_len);
        return;
    }
    f->kv_len = f->job_len;
    f->job_ns += compute_ns;
    if (!f->job_grow) {
        return;
    }
    if (f->job_len != f->len || !f->due) {
        d->counters.n_stale_tree++; /* a root-only verdict overtook the tree */
        return;
    }
    f->sent.round = f->due_round;
    f->sent.base_len = (uint32_t)f->len;
    f->sent.hash = f->hash[f->len];
    f->sent.tree = q->tree;
    memcpy(f->sent.slot, q->slot, sizeof(f->sent.slot));
    f->ready = true;
    drafter_send_tree(d, f, now_ns);
}

void gr_drafter_on_job_done(struct gr_drafter *d, struct gr_draft_job *job, uint64_t now_ns)
{
    GR_ASSERT(job == &d->job && d->job_in_flight);
    d->job_in_flight = false;
    d->counters.n_job++;
    for (int i = 0; i < job->n_seq; i++) {
        if (job->status != GR_OK) {
            struct follow *f = &d->follow[job->seq[i].session];
            send_error(d, f->id, job->status, "the draft pass failed; see the drafter's log");
            f->in_job = false;
            free_follow(d, f);
            continue;
        }
        finish_seq(d, &job->seq[i], job->compute_ns, now_ns);
    }
}

uint64_t gr_drafter_step(struct gr_drafter *d, uint64_t now_ns)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        struct follow *f = &d->follow[i];
        if (f->state != DRAFT_FREE && f->resync_due) {
            drafter_send_resync(d, f);
        }
        if (f->ready) {
            drafter_send_tree(d, f, now_ns);
        }
    }
    if (!d->job_in_flight) {
        start_job(d, now_ns);
    }
    return UINT64_MAX;
}

const struct gr_drafter_counters *gr_drafter_counters(const struct gr_drafter *d)
{
    return &d->counters;
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
        tables[i] = &d->follow[i].table;
    }
    return gr_kv_pool_check(&d->pool, tables, d->config.n_session_max);
}
