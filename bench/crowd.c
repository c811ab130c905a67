#include "bench/crowd.h"

#include "bench/window.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rules/hash.h"

#include <stdlib.h>
#include <string.h>

#define UNANSWERED_MAX 32 /* requests on their way: the queue of a link is bounded */
#define LOOK_AGAIN_MS 100 /* who waits for workers */

/* ---- what is asked for ---- */

static enum gr_status ask_first(struct gr_crowd *c, struct gr_crowd_session *s)
{
    const struct gr_prompt *p = &c->prompts->prompt[s->prompt];
    int32_t segments[2] = {0, (int32_t)p->n};
    const struct gr_msg m = {
        .type = GR_MSG_OPEN,
        .open = {.ids = {.p = p->id, .n = p->n},
                 .segments = {.p = segments, .n = 2},
                 .wishes = {
                     .turn = {.max_tokens = 1},
                     .keep_open = true,
                     .sampling = {.temperature = (float)c->temperature, .top_p = 1.0f, .seed = 1 + (uint64_t)s->prompt},
                     .want_draft = c->tree->wanted,
                     .tree_shape = GR_SHAPE_DYNAMIC,
                     .n_node = c->tree->n_node,
                     .auto_tree = c->tree->automatic,
                     .draft_ahead = GR_AHEAD_AUTO}}};
    s->asked_ns = gr_clock_ns();
    return gr_remote_send(&c->remote, &m);
}

/* The prompt's last id anew, whose row brings the first token as it does in a new session. */
static enum gr_status ask_second(struct gr_crowd *c, struct gr_crowd_session *s)
{
    const struct gr_prompt *p = &c->prompts->prompt[s->prompt];
    uint64_t hash = 0;
    for (uint32_t i = 0; i + 1 < p->n; i++) {
        hash = gr_hash_extend(hash, p->id[i]);
    }
    const struct gr_msg m = {.type = GR_MSG_APPEND,
                             .session = s->id,
                             .append = {.ids = {.p = p->id + p->n - 1, .n = 1},
                                        .keep_len = p->n - 1,
                                        .hash = hash,
                                        .wishes = {.max_tokens = c->max_tokens}}};
    memset(&s->metrics, 0, sizeof(s->metrics));
    s->n_token = 0;
    s->drafter_ns = 0;
    s->metrics.open_ns = gr_clock_ns();
    return gr_remote_send(&c->remote, &m);
}

/* ---- what comes ---- */

static void fail(struct gr_crowd *c, const char *text)
{
    if (!c->failed) {
        log_error("%d sessions: %s", c->n, text[0] != '\0' ? text : "a session has failed");
    }
    c->failed = true;
}

static struct gr_crowd_session *session_of(struct gr_crowd *c, uint64_t id)
{
    const int place = gr_session_index_find(&c->by_id, id);
    return place >= 0 ? &c->session[place] : NULL;
}

/* Answers come in the order of the requests. */
static void on_opened(struct gr_crowd *c, const struct gr_msg *m)
{
    struct gr_crowd_session *s = &c->session[c->n_answered];
    if (c->n_answered == c->n_asked || (c->decodes && s->id != m->session)) {
        fail(c, "the orchestrator has answered what was not asked");
        return;
    }
    if (!c->decodes) {
        s->id = m->session;
        gr_session_index_add(&c->by_id, s->id, c->n_answered);
        c->n_open++;
    }
    c->n_answered++;
}

static void on_commit(struct gr_crowd *c, struct gr_crowd_session *s, const struct gr_msg *m)
{
    const uint64_t now_ns = gr_clock_ns();
    if (!c->decodes) {
        s->first_ns = s->first_ns == 0 ? now_ns : s->first_ns;
        return;
    }
    const struct gr_msg_commit *k = &m->commit;
    if (s->n_token + k->ids.n > c->max_tokens) {
        fail(c, "a session got more tokens than it had asked for");
        return;
    }
    gr_metrics_take(&s->metrics, m, now_ns);
    s->drafter_ns += k->draft_ns;
    for (uint32_t i = 0; i < k->ids.n; i++) {
        s->token[s->n_token] = k->ids.p[i];
        s->when_ns[s->n_token++] = now_ns;
    }
    c->n_token += k->ids.n;
}

static void on_finished(struct gr_crowd *c, struct gr_crowd_session *s, const struct gr_msg *m)
{
    c->n_running--;
    s->undrafted = m->finished.undrafted[0] != '\0';
    s->reopened = c->decodes && m->finished.n_reopen > 0;
    if (gr_finish_is_bad((enum gr_finish)m->finished.finish)) {
        fail(c, m->finished.text);
    } else if (c->decodes && s->n_token != c->max_tokens) {
        fail(c, "a session ended before it had all the tokens that it had asked for");
    }
}

static void on_worker(struct gr_crowd *c, const struct gr_msg_listed_worker *w)
{
    const bool is_target = w->role == GR_ROLE_TARGET;
    char *text = is_target ? c->targets : c->drafters;
    const size_t at = strlen(text);
    snprintf(text + at, sizeof(c->targets) - at, " %u", w->n_session);
    *(is_target ? &c->n_target : &c->n_drafter) += 1;
}

static void on_listed(struct gr_crowd *c)
{
    snprintf(c->shares, sizeof(c->shares), "targets%s%s%s", c->targets, c->n_drafter > 0 ? ", drafters" : "",
             c->drafters);
    c->listed = true;
}

/* A request that was refused. One to close a session comes too late where the session has failed. */
static void on_error(struct gr_crowd *c, const struct gr_msg *m)
{
    if (c->closes) {
        c->n_open--;
        return;
    }
    if (c->n_asked > c->n_answered) {
        c->n_answered++;
        c->n_running--;
    }
    fail(c, m->error.text);
}

static void on_msg(struct gr_crowd *c, const struct gr_msg *m)
{
    struct gr_crowd_session *s = m->session != 0 ? session_of(c, m->session) : NULL;
    if (m->type == GR_MSG_OPENED) {
        on_opened(c, m);
    } else if (m->type == GR_MSG_ERROR) {
        on_error(c, m);
    } else if (m->type == GR_MSG_WORKER) {
        on_worker(c, &m->listed_worker);
    } else if (m->type == GR_MSG_LISTED) {
        on_listed(c);
    } else if (m->type == GR_MSG_CLOSED) {
        c->n_open--;
    } else if (m->type == GR_MSG_COMMIT && s != NULL) {
        on_commit(c, s, m);
    } else if (m->type == GR_MSG_FINISHED && s != NULL) {
        on_finished(c, s, m);
    } else if (s != NULL && c->decodes) {
        gr_metrics_take(&s->metrics, m, gr_clock_ns());
    }
}

static enum gr_status hear(struct gr_crowd *c)
{
    struct gr_msg m;
    GR_TRY(gr_remote_recv(&c->remote, -1, &m));
    on_msg(c, &m);
    gr_msg_finish(&m);
    return GR_OK;
}

/* ---- a run ---- */

static enum gr_status list(struct gr_crowd *c)
{
    c->n_target = c->n_drafter = 0;
    c->targets[0] = c->drafters[0] = '\0';
    c->listed = false;
    return gr_remote_send(&c->remote, &(struct gr_msg){.type = GR_MSG_LIST});
}

/* Asks until all turns are on their way and over. Who has which session is asked for when half of the tokens are
 * there, as drafters come to a session after its turn has begun. */
static enum gr_status turn(struct gr_crowd *c, bool decodes)
{
    const uint64_t half = (uint64_t)c->n * c->max_tokens / 2;
    bool asked_list = false;
    c->decodes = decodes;
    c->n_asked = c->n_answered = c->n_running = 0;
    c->n_token = 0;
    while ((c->n_asked < c->n && !c->failed) || c->n_running > 0) {
        if (c->n_asked < c->n && c->n_asked - c->n_answered < UNANSWERED_MAX && !c->failed) {
            struct gr_crowd_session *s = &c->session[c->n_asked++];
            c->n_running++;
            GR_TRY(decodes ? ask_second(c, s) : ask_first(c, s));
            continue;
        }
        if (decodes && !asked_list && c->n_token >= half) {
            asked_list = true;
            GR_TRY(list(c));
        }
        GR_TRY(hear(c));
    }
    while (asked_list && !c->listed) {
        GR_TRY(hear(c));
    }
    return GR_OK;
}

static enum gr_status close_all(struct gr_crowd *c)
{
    c->closes = true;
    for (int i = 0; i < c->n; i++) {
        if (c->session[i].id != 0) {
            GR_TRY(gr_remote_send(&c->remote, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = c->session[i].id}));
        }
    }
    while (c->n_open > 0) {
        GR_TRY(hear(c));
    }
    return GR_OK;
}

/* Those of the run before. */
static void forget_sessions(struct gr_crowd *c)
{
    for (int i = 0; i < c->n; i++) {
        if (c->session[i].id != 0) {
            gr_session_index_remove(&c->by_id, c->session[i].id);
            c->session[i].id = 0;
        }
    }
}

enum gr_status gr_crowd_run(struct gr_crowd *c, const struct gr_prompt_set *prompts, int i_prompt, int n,
                            const struct gr_group_tree *tree)
{
    GR_ASSERT(n >= 1 && n <= c->n_max);
    forget_sessions(c);
    c->n = n;
    c->prompts = prompts;
    c->tree = tree;
    c->failed = c->closes = false;
    for (int i = 0; i < n; i++) {
        struct gr_crowd_session *s = &c->session[i];
        s->first_ns = 0;
        s->prompt = (i_prompt + i) % prompts->n;
    }
    GR_TRY(turn(c, false));
    if (!c->failed) {
        GR_TRY(turn(c, true));
    }
    GR_TRY(close_all(c));
    return c->failed ? GR_EINVAL : GR_OK;
}

/* Of a session by itself. */
static double own_speed(const struct gr_crowd_session *s)
{
    const double seconds = gr_window_seconds(gr_window_with(gr_window_all(), s->when_ns, s->n_token));
    return seconds > 0.0 ? (s->n_token - 1.0) / seconds : 0.0;
}

/* end_ns: when the first of all sessions ended. */
static bool has_waited(const struct gr_crowd_session *s, uint64_t end_ns)
{
    const uint64_t from_ns = s->when_ns[0], to_ns = s->when_ns[s->n_token - 1];
    return from_ns > end_ns && 2 * (from_ns - s->metrics.open_ns) > to_ns - from_ns;
}

struct gr_crowd_window gr_crowd_window(const struct gr_crowd_session *s, int n)
{
    struct gr_window together = gr_window_all(), any = {.begin_ns = UINT64_MAX, .end_ns = 0};
    struct gr_crowd_window w = {.all_tokens = -1.0};
    for (int i = 0; i < n; i++) {
        together = gr_window_with(together, s[i].when_ns, s[i].n_token);
        any.begin_ns = GR_MIN(any.begin_ns, s[i].when_ns[0]);
        any.end_ns = GR_MAX(any.end_ns, s[i].when_ns[s[i].n_token - 1]);
        w.all_tokens += s[i].n_token;
        w.least = i == 0 ? own_speed(&s[i]) : GR_MIN(w.least, own_speed(&s[i]));
    }
    for (int i = 0; i < n; i++) {
        w.tokens += gr_window_tokens(together, s[i].when_ns, s[i].n_token);
        w.n_waited += has_waited(&s[i], together.end_ns);
    }
    w.seconds = gr_window_seconds(together);
    w.all_seconds = gr_window_seconds(any);
    return w;
}

/* ---- the link ---- */

static enum gr_status make_room(struct gr_crowd *c)
{
    const size_t n = (size_t)c->n_max;
    c->session = calloc(n, sizeof(*c->session));
    c->token = malloc(n * c->max_tokens * sizeof(*c->token));
    c->when_ns = malloc(n * c->max_tokens * sizeof(*c->when_ns));
    const bool indexed = gr_session_index_create(&c->by_id, (uint32_t)n);
    if (c->session == NULL || c->token == NULL || c->when_ns == NULL || !indexed) {
        log_error("out of memory for %d sessions of %u tokens", c->n_max, c->max_tokens);
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        c->session[i].token = c->token + i * c->max_tokens;
        c->session[i].when_ns = c->when_ns + i * c->max_tokens;
    }
    return GR_OK;
}

enum gr_status gr_crowd_begin(struct gr_crowd *c, const char *address, int patience_ms, int n_max, uint32_t max_tokens,
                              double temperature)
{
    static struct gr_options o; /* as of a client of graft; the link borrows its texts */
    *c = (struct gr_crowd){.max_tokens = max_tokens, .temperature = temperature, .n_max = n_max};
    c->remote.signal_fd = -1;
    GR_ASSERT(n_max >= 1 && n_max <= GR_CROWD_MAX);
    GR_TRY(make_room(c));
    gr_options_default(&o, GR_CMD_PING);
    o.connect = address != NULL ? address : getenv("GRAFT_CONNECT");
    GR_TRY(gr_remote_open(&o, (struct gr_remote_patience){.listen_ms = patience_ms}, &c->remote));
    c->connected = true;
    return GR_OK;
}

enum gr_status gr_crowd_await(struct gr_crowd *c, int n_target, int n_drafter, int within_s)
{
    const uint64_t end_ns = gr_clock_ns() + (uint64_t)within_s * GR_S;
    for (;;) {
        struct gr_msg m;
        GR_TRY(list(c));
        while (!c->listed) {
            GR_TRY(hear(c));
        }
        if (c->n_target >= n_target && c->n_drafter >= n_drafter) {
            return GR_OK;
        }
        if (gr_clock_ns() >= end_ns) {
            log_error("%d of %d targets and %d of %d drafters have joined within %d s", c->n_target, n_target,
                      c->n_drafter, n_drafter, within_s);
            return GR_ETIMEDOUT;
        }
        const enum gr_status st = gr_remote_recv(&c->remote, LOOK_AGAIN_MS, &m);
        if (st == GR_OK) {
            gr_msg_finish(&m);
        } else if (st != GR_AGAIN) {
            return st;
        }
    }
}

void gr_crowd_end(struct gr_crowd *c)
{
    if (c->connected) {
        gr_remote_close(&c->remote);
    }
    gr_session_index_destroy(&c->by_id);
    free(c->session);
    free(c->token);
    free(c->when_ns);
    *c = (struct gr_crowd){.n = 0};
}
