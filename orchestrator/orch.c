#include "orchestrator/orch.h"

#include "common/hash.h"
#include "common/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTACH_RETRY_MAX 8

enum orch_state { ORCH_FREE, ORCH_WAITING, ORCH_OPENING, ORCH_RUNNING, ORCH_CLOSING };

struct entry {
    enum orch_state state;
    uint64_t id;
    uint32_t epoch;
    struct gr_session_request request; /* prompt points to token */
    int32_t *token;     /* owned: transcript, [prompt | generated] */
    uint32_t len, cap;  /* expected_prefix_len = len */
    uint64_t hash;      /* of the transcript */
    uint32_t last_round;
    int target, drafter; /* workers, -1: none */
    bool wait_closed, wait_stats;
    int n_attach_retry; /* of this epoch, after its data connection broke */
    enum gr_finish finish;
    char text[GR_MSG_TEXT_MAX];
    struct gr_session_metrics metrics;
};

struct worker {
    bool joined;
    enum gr_worker_role role;
    char address[GR_MSG_TEXT_MAX];
};

struct gr_orch {
    struct gr_orch_io io;
    struct worker worker[GR_ORCH_WORKER_MAX];
    struct entry entry[GR_ORCH_SESSION_MAX];
    uint64_t next_id;
};

enum gr_status gr_orch_create(const struct gr_orch_io *io, struct gr_orch **out)
{
    struct gr_orch *o = calloc(1, sizeof(*o));
    if (o == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    o->io = *io;
    o->next_id = 1;
    *out = o;
    return GR_OK;
}

void gr_orch_destroy(struct gr_orch *o)
{
    if (o == NULL) {
        return;
    }
    for (int i = 0; i < GR_ORCH_SESSION_MAX; i++) {
        free(o->entry[i].token);
    }
    free(o);
}

static struct entry *find(const struct gr_orch *o, uint64_t id)
{
    for (int i = 0; i < GR_ORCH_SESSION_MAX; i++) {
        if (o->entry[i].state != ORCH_FREE && o->entry[i].id == id) {
            return (struct entry *)(uintptr_t)&o->entry[i];
        }
    }
    return NULL;
}

static int find_worker(const struct gr_orch *o, enum gr_worker_role role)
{
    for (int i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        if (o->worker[i].joined && o->worker[i].role == role) {
            return i;
        }
    }
    return -1;
}

/* ---- requests to workers ---- */

static void copy_sampling(struct gr_msg *m, const struct gr_sampling *s)
{
    m->temperature = (double)s->temperature;
    m->min_p = (double)s->min_p;
    m->top_p = (double)s->top_p;
    m->top_k = (uint32_t)s->top_k;
    m->seed = s->seed;
}

static void open_on(struct gr_orch *o, struct entry *e, int target)
{
    const uint32_t n_prompt = e->request.n_prompt;
    int32_t segments[4] = {0, (int32_t)n_prompt, 1, (int32_t)(e->len - n_prompt)};
    struct gr_msg m = {.type = GR_MSG_OPEN, .session = e->id, .epoch = e->epoch,
                       .ids = {.p = e->token, .n = e->len},
                       .segments = {.p = segments, .n = e->len > n_prompt ? 4 : 2},
                       .stop_ids = {.p = e->request.stop_id, .n = e->request.n_stop_id},
                       .max_tokens = e->request.max_tokens - (e->len - n_prompt),
                       .want_draft = e->request.want_draft && find_worker(o, GR_WORKER_DRAFT) >= 0,
                       .want_trace = e->request.want_trace, .n_node = e->request.n_node};
    copy_sampling(&m, &e->request.sampling);
    e->state = ORCH_OPENING;
    e->target = target;
    e->last_round = 0;
    o->io.send(o->io.ctx, (uint32_t)target, &m);
}

static void attach_drafter(struct gr_orch *o, struct entry *e)
{
    const int drafter = find_worker(o, GR_WORKER_DRAFT);
    if (!e->request.want_draft || drafter < 0 || e->state != ORCH_RUNNING) {
        return;
    }
    struct gr_msg m = {.type = GR_MSG_ATTACH, .session = e->id, .epoch = e->epoch,
                       .tree_shape = e->request.tree_shape, .draft_depth = e->request.draft_depth,
                       .draft_top_k = e->request.draft_top_k, .n_node = e->request.n_node};
    copy_sampling(&m, &e->request.sampling);
    snprintf(m.address, sizeof(m.address), "%s", o->worker[e->target].address);
    snprintf(m.transport, sizeof(m.transport), "%s", e->request.transport);
    e->drafter = drafter;
    o->io.send(o->io.ctx, (uint32_t)drafter, &m);
}

static void finish_if_released(struct gr_orch *o, struct entry *e)
{
    if (e->state != ORCH_CLOSING || e->wait_closed || e->wait_stats) {
        return;
    }
    o->io.on_done(o->io.ctx, e->id, e->request.user, e->finish, e->text);
    free(e->token);
    memset(e, 0, sizeof(*e));
}

static void close_entry(struct gr_orch *o, struct entry *e, enum gr_finish finish, const char *text)
{
    if (e->state == ORCH_CLOSING) {
        return;
    }
    const bool has_target = e->target >= 0;
    const bool has_drafter = e->drafter >= 0;
    e->state = ORCH_CLOSING;
    e->finish = finish;
    snprintf(e->text, sizeof(e->text), "%s", text);
    e->wait_closed = has_target;
    e->wait_stats = has_drafter;
    if (has_drafter) {
        o->io.send(o->io.ctx, (uint32_t)e->drafter, &(struct gr_msg){.type = GR_MSG_DETACH, .session = e->id});
    }
    if (has_target) {
        o->io.send(o->io.ctx, (uint32_t)e->target, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = e->id});
    }
    finish_if_released(o, e);
}

enum gr_status gr_orch_submit(struct gr_orch *o, const struct gr_session_request *request, uint64_t now_ns,
                              uint64_t *session_out)
{
    struct entry *e = NULL;
    for (int i = 0; e == NULL && i < GR_ORCH_SESSION_MAX; i++) {
        e = o->entry[i].state == ORCH_FREE ? &o->entry[i] : NULL;
    }
    if (e == NULL) {
        log_error("all %d sessions of the orchestrator are in use", GR_ORCH_SESSION_MAX);
        return GR_ELIMIT;
    }
    const size_t cap = (size_t)request->n_prompt + request->max_tokens + GR_TREE_MAX;
    int32_t *token = malloc(cap * sizeof(*token));
    if (token == NULL || cap > UINT32_MAX) {
        free(token);
        log_error("out of memory for a transcript of %zu tokens", cap);
        return GR_ENOMEM;
    }
    *e = (struct entry){.state = ORCH_WAITING, .id = o->next_id++, .epoch = 1, .request = *request, .token = token,
                        .cap = (uint32_t)cap, .target = -1, .drafter = -1};
    for (uint32_t i = 0; i < request->n_prompt; i++) {
        token[i] = request->prompt[i];
        e->hash = gr_hash_extend(e->hash, token[i]);
    }
    e->request.prompt = token;
    e->len = request->n_prompt;
    e->metrics.prompt_tokens = request->n_prompt;
    e->metrics.open_ns = now_ns;
    *session_out = e->id;
    const int target = find_worker(o, GR_WORKER_TARGET);
    if (target >= 0) {
        open_on(o, e, target);
    }
    return GR_OK;
}

void gr_orch_stop(struct gr_orch *o, uint64_t session, uint32_t n_keep, enum gr_finish finish)
{
    struct entry *e = find(o, session);
    if (e == NULL || e->state == ORCH_CLOSING) {
        return;
    }
    e->metrics.completion_tokens = GR_MIN(e->metrics.completion_tokens, (uint64_t)n_keep);
    close_entry(o, e, finish, "stopped by the client");
}

/* ---- workers come and go ---- */

enum gr_status gr_orch_on_join(struct gr_orch *o, uint32_t worker, enum gr_worker_role role, const char *data_address,
                               uint64_t now_ns)
{
    (void)now_ns;
    if (worker >= GR_ORCH_WORKER_MAX) {
        log_error("more than %d workers", GR_ORCH_WORKER_MAX);
        return GR_ELIMIT;
    }
    o->worker[worker] = (struct worker){.joined = true, .role = role};
    snprintf(o->worker[worker].address, sizeof(o->worker[worker].address), "%s", data_address);
    for (int i = 0; i < GR_ORCH_SESSION_MAX; i++) {
        struct entry *e = &o->entry[i];
        if (role == GR_WORKER_TARGET && e->state == ORCH_WAITING) {
            open_on(o, e, (int)worker);
        } else if (role == GR_WORKER_DRAFT && e->state == ORCH_RUNNING && e->drafter < 0) {
            attach_drafter(o, e);
        }
    }
    return GR_OK;
}

static void lose_target(struct gr_orch *o, struct entry *e)
{
    e->target = -1;
    if (e->state == ORCH_CLOSING) {
        e->wait_closed = false;
        finish_if_released(o, e);
        return;
    }
    if (e->len - e->request.n_prompt >= e->request.max_tokens) {
        close_entry(o, e, GR_FINISH_LENGTH, "");
        return;
    }
    log_warn("session %" PRIu64 ": its target is lost; re-opening it as epoch %u when there is one", e->id,
             e->epoch + 1);
    if (e->drafter >= 0) {
        o->io.send(o->io.ctx, (uint32_t)e->drafter, &(struct gr_msg){.type = GR_MSG_DETACH, .session = e->id});
        e->drafter = -1;
    }
    e->epoch++;
    e->n_attach_retry = 0;
    e->metrics.reopens++;
    e->state = ORCH_WAITING;
    const int target = find_worker(o, GR_WORKER_TARGET);
    if (target >= 0) {
        open_on(o, e, target);
    }
}

static void lose_drafter(struct gr_orch *o, struct entry *e)
{
    e->drafter = -1;
    if (e->state == ORCH_CLOSING) {
        e->wait_stats = false;
        finish_if_released(o, e);
        return;
    }
    e->metrics.fallbacks++;
    attach_drafter(o, e); /* to another one, if there is one */
}

void gr_orch_on_lost(struct gr_orch *o, uint32_t worker, uint64_t now_ns)
{
    (void)now_ns;
    GR_ASSERT(worker < GR_ORCH_WORKER_MAX);
    o->worker[worker].joined = false;
    for (int i = 0; i < GR_ORCH_SESSION_MAX; i++) {
        struct entry *e = &o->entry[i];
        if (e->state != ORCH_FREE && e->target == (int)worker) {
            lose_target(o, e);
        }
        if (e->state != ORCH_FREE && e->drafter == (int)worker) {
            lose_drafter(o, e);
        }
    }
}

/* ---- what workers say ---- */

static void count_commit(struct entry *e, const struct gr_msg *m)
{
    struct gr_session_metrics *s = &e->metrics;
    if (m->round == 0) {
        return; /* the prefill is not a round */
    }
    s->rounds++;
    s->late_trees += m->n_late;
    s->desyncs += m->n_desync;
    s->fallbacks += m->n_fallback;
    s->wait_ns += m->wait_ns;
    s->verify_ns += m->verify_ns;
    s->host_ns += m->host_ns;
    if (m->n_draft == 0) {
        s->root_only_rounds++;
        return;
    }
    s->num_drafts++;
    s->num_draft_tokens += m->n_draft;
    s->num_accepted_tokens += m->n_accepted;
    s->num_rewound_tokens += m->n_draft - m->n_accepted;
    s->rewind_steps += m->n_accepted < m->n_draft;
    for (uint32_t i = 0; i < m->n_accepted; i++) {
        s->accepted_per_position[i]++;
    }
}

/* The trace of a round is drawn by recursion over parents: it must be a tree, whatever the target sent. */
static bool trace_fits(const struct gr_msg *m)
{
    if (m->tree_ids.n != m->tree_parents.n || m->path.n > m->tree_ids.n) {
        return false;
    }
    for (uint32_t i = 0; i < m->tree_parents.n; i++) {
        if (m->tree_parents.p[i] < -1 || m->tree_parents.p[i] >= (int32_t)i) {
            return false;
        }
    }
    for (uint32_t i = 0; i < m->path.n; i++) {
        if (m->path.p[i] < 0 || m->path.p[i] >= (int32_t)m->tree_ids.n) {
            return false;
        }
    }
    return true;
}

static void trace(struct gr_orch *o, const struct entry *e, const struct gr_msg *m)
{
    if (o->io.on_trace == NULL || !e->request.want_trace || m->round == 0 || m->ids.n == 0) {
        return;
    }
    const struct gr_trace_round r = {.round = m->round, .n_node = m->tree_ids.n, .n_path = m->path.n,
                                     .token = m->tree_ids.p, .parent = m->tree_parents.p, .path = m->path.p,
                                     .bonus = m->ids.p[m->ids.n - 1], .gap = m->gap};
    if (trace_fits(m)) {
        o->io.on_trace(o->io.ctx, e->id, e->request.user, &r);
    }
}

/* The expected prefix length and hash are checked on every COMMIT: a target that went astray is caught here. */
static bool commit_fits(const struct entry *e, const struct gr_msg *m)
{
    uint64_t hash = e->hash;
    for (uint32_t i = 0; i < m->ids.n; i++) {
        hash = gr_hash_extend(hash, m->ids.p[i]);
    }
    return m->keep_len == e->len && m->ids.n >= 1 && e->len + m->ids.n <= e->cap &&
           m->final_len == e->len + m->ids.n && hash == m->hash && m->n_accepted <= m->n_draft;
}

static void on_commit(struct gr_orch *o, struct entry *e, const struct gr_msg *m, uint64_t now_ns)
{
    if (e->state != ORCH_RUNNING || m->epoch != e->epoch) {
        return; /* stopped, or re-opened elsewhere, while it was on its way */
    }
    if (!commit_fits(e, m)) {
        log_error("session %" PRIu64 " round %u: COMMIT does not extend the transcript (expected_prefix_len %u, "
                  "keep_len %u, %u tokens)", e->id, m->round, e->len, m->keep_len, m->ids.n);
        close_entry(o, e, GR_FINISH_ERROR, "the target's tokens do not extend the transcript");
        return;
    }
    memcpy(e->token + e->len, m->ids.p, m->ids.n * sizeof(int32_t));
    e->len += m->ids.n;
    e->hash = m->hash;
    e->last_round = m->round;
    e->metrics.completion_tokens += m->ids.n;
    e->metrics.first_token_ns = e->metrics.first_token_ns == 0 ? now_ns : e->metrics.first_token_ns;
    e->metrics.last_token_ns = now_ns;
    count_commit(e, m);
    trace(o, e, m);
    const uint64_t id = e->id;
    o->io.on_tokens(o->io.ctx, id, e->request.user, m->ids.p, m->ids.n);
    e = find(o, id); /* the client may have stopped it */
    if (e != NULL && e->state == ORCH_RUNNING && m->finish != GR_FINISH_NONE) {
        close_entry(o, e, (enum gr_finish)m->finish, "");
    }
}

static void on_opened(struct gr_orch *o, struct entry *e, const struct gr_msg *m)
{
    if (e->state == ORCH_OPENING && m->epoch == e->epoch) {
        e->state = ORCH_RUNNING;
        attach_drafter(o, e);
    }
}

static void on_stats(struct gr_orch *o, struct entry *e, const struct gr_msg *m)
{
    e->metrics.n_drafter_round += m->n_round;
    e->metrics.draft_ns += m->draft_ns;
    e->metrics.draft_host_ns += m->host_ns;
    if (e->state == ORCH_CLOSING) {
        e->wait_stats = false;
        finish_if_released(o, e);
    }
}

static void on_error(struct gr_orch *o, struct entry *e, uint32_t worker, const struct gr_msg *m)
{
    if ((int)worker == e->drafter) {
        log_warn("[spec][fallback] session %" PRIu64 ": drafter: %s; going on root-only", e->id, m->text);
        e->metrics.fallbacks++;
        e->drafter = -1;
        if (e->state == ORCH_CLOSING) {
            e->wait_stats = false;
            finish_if_released(o, e);
            return;
        }
        /* It may be about an attachment that another has replaced: let go of that one, too, and start over. */
        o->io.send(o->io.ctx, worker, &(struct gr_msg){.type = GR_MSG_DETACH, .session = e->id});
        if (m->code == (uint32_t)-GR_ECLOSED && e->n_attach_retry < ATTACH_RETRY_MAX) {
            e->n_attach_retry++;
            attach_drafter(o, e);
        }
        return;
    }
    e->target = -1; /* it holds nothing of this session any more */
    if (e->state == ORCH_CLOSING) {
        e->wait_closed = false;
        finish_if_released(o, e);
    } else {
        close_entry(o, e, GR_FINISH_ERROR, m->text);
    }
}

enum gr_status gr_orch_on_msg(struct gr_orch *o, uint32_t worker, const struct gr_msg *m, uint64_t now_ns)
{
    struct entry *e = find(o, m->session);
    switch (m->type) {
    case GR_MSG_OPENED:
    case GR_MSG_CLOSED:
    case GR_MSG_COMMIT:
    case GR_MSG_PROGRESS:
    case GR_MSG_ATTACHED:
    case GR_MSG_DRAFT_STATS:
    case GR_MSG_ERROR:
        break;
    case GR_MSG_EVICTED: /* only a session that is over is idle */
    case GR_MSG_PONG:
        return GR_OK;
    default:
        log_error("worker %u sent %s, which is not a worker's message", worker, gr_msg_name(m->type));
        return GR_EPROTO;
    }
    if (e == NULL || ((int)worker != e->target && (int)worker != e->drafter)) {
        return GR_OK; /* about a session that is over, or one that moved */
    }
    if (m->type == GR_MSG_OPENED) {
        on_opened(o, e, m);
    } else if (m->type == GR_MSG_COMMIT) {
        on_commit(o, e, m, now_ns);
    } else if (m->type == GR_MSG_ERROR) {
        on_error(o, e, worker, m);
    } else if (m->type == GR_MSG_DRAFT_STATS) {
        on_stats(o, e, m);
    } else if (m->type == GR_MSG_ATTACHED) {
        memcpy(e->metrics.transport, m->transport, sizeof(e->metrics.transport));
    } else if (m->type == GR_MSG_PROGRESS && o->io.on_progress != NULL) {
        o->io.on_progress(o->io.ctx, e->id, e->request.user, m->usable_len);
    } else if (m->type == GR_MSG_CLOSED && e->state == ORCH_CLOSING && (int)worker == e->target) {
        e->wait_closed = false;
        finish_if_released(o, e);
    }
    return GR_OK;
}

const struct gr_session_metrics *gr_orch_metrics(const struct gr_orch *o, uint64_t session)
{
    const struct entry *e = find(o, session);
    return e != NULL ? &e->metrics : NULL;
}

const int32_t *gr_orch_tokens(const struct gr_orch *o, uint64_t session, uint32_t *n_out)
{
    const struct entry *e = find(o, session);
    if (e == NULL) {
        return NULL;
    }
    *n_out = e->len - e->request.n_prompt;
    return e->token + e->request.n_prompt;
}

int gr_orch_n_session(const struct gr_orch *o)
{
    int n = 0;
    for (int i = 0; i < GR_ORCH_SESSION_MAX; i++) {
        n += o->entry[i].state != ORCH_FREE;
    }
    return n;
}
