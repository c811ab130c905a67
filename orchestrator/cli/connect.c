#include "orchestrator/cli/connect.h"

#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/cli/answers.h"
#include "orchestrator/cli/generate.h"
#include "orchestrator/cli/remote.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define SILENCE_MS 3000 /* after so long without word the user is told that graft waits */
#define FORGET_MS 5000  /* for word that a session is closed */

/* What stands between a generation and its session. */
struct turn {
    struct gr_connect *c;
    struct gr_generation *g; /* borrowed; NULL: none is at hand */
    uint64_t session;        /* 0: not known yet */
    uint32_t number;         /* the turn's in the session; OPENED tells it */
    uint32_t len;            /* transcript length where this turn's generated tokens begin; from its first COMMIT */
    uint32_t n_fallback, n_reopen; /* fall-backs and re-openings that a FINISHED told which our TRUNCATE has crossed */
    bool answered;                 /* OPENED has come */
    bool stop_later;               /* the turn is to end as soon as it is known which one it is */
    bool has_len;
};

struct gr_connect {
    struct gr_remote remote;
    struct gr_generation *g; /* the turn at hand, of several the first, or one that is over; borrowed */
    struct turn turn[GR_ANSWERS_MAX];
    int n_turn; /* at hand */
    bool gone;  /* there is nobody left to ask */
    uint32_t n_target,
        n_drained;             /* target workers that the orchestrator has listed: those that take sessions; others */
    uint32_t place, n_waiting; /* in the queue for a slot, as said last; 0: it was not */
    bool told_waiting;         /* the user was told that nothing has come for SILENCE_MS, or need not be any more */
};

/* ---- what the generations ask for ---- */

static enum gr_status submit(void *ctx, const struct gr_session_request *q)
{
    struct turn *t = ctx;
    int32_t segments[2] = {0, (int32_t)q->n_prompt};
    struct gr_msg m = {.type = GR_MSG_OPEN,
                       .open = {.ids = {.p = (int32_t *)(uintptr_t)q->prompt, .n = q->n_prompt},
                                .segments = {.p = segments, .n = 2},
                                .tokenizer_fingerprint = q->tokenizer_fingerprint}};
    snprintf(m.open.model, sizeof(m.open.model), "%s", q->model != NULL ? q->model : "");
    gr_wishes_copy(&m.open.wishes, &q->wishes);
    m.open.wishes.queues = true;
    const bool forks = t != t->c->turn && t->g->phase == GR_PHASE_TEXT; /* what is compared with shares nothing */
    m.open.wishes.fork_of = forks ? t->c->turn[0].session : 0;
    t->session = 0;
    t->answered = t->has_len = false;
    return gr_remote_send(&t->c->remote, &m);
}

static enum gr_status append(void *ctx, const struct gr_turn_request *r)
{
    struct turn *t = ctx;
    struct gr_msg m = {.type = GR_MSG_APPEND,
                       .session = t->session,
                       .append = {.ids = {.p = (int32_t *)(uintptr_t)r->ids, .n = r->n_ids},
                                  .keep_len = r->keep_len != UINT32_MAX ? r->keep_len : 0,
                                  .hash = r->hash}};
    gr_turn_wishes_copy(&m.append.wishes, &r->wishes);
    t->answered = t->has_len = false;
    return gr_remote_send(&t->c->remote, &m);
}

static void stop(void *ctx, uint32_t n_keep)
{
    struct turn *t = ctx;
    if (!t->answered) {
        t->stop_later = true;
        return;
    }
    const struct gr_msg m = {
        .type = GR_MSG_TRUNCATE, .session = t->session, .truncate = {.turn = t->number, .keep_len = t->len + n_keep}};
    if (gr_remote_send(&t->c->remote, &m) != GR_OK) {
        gr_generation_fail(t->g, "");
    }
}

/* ---- what the orchestrator says ---- */

/* A client that loses the orchestrator needs the ids of its sessions, to ask for their answers later. */
static void note_turns(struct gr_connect *c)
{
    char *text = c->remote.turns;
    const size_t cap = sizeof(c->remote.turns);
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < c->n_turn && n + GR_SESSION_ID_DIGITS + 8 < cap; i++) {
        if (c->turn[i].answered && c->turn[i].g->phase != GR_PHASE_OVER) {
            n += (size_t)snprintf(text + n, cap - n, "%s%" GR_SESSION_ID_PRI, n > 0 ? ", " : "", c->turn[i].session);
        }
    }
}

/* Where TRUNCATE has crossed the turn's end, its answer is still to come: until then the next turn could begin on what
 * nobody was shown. */
static void on_finished(struct turn *t, const struct gr_msg *m)
{
    const uint32_t n_fallback = GR_MAX(t->n_fallback, m->finished.n_fallback);
    const uint32_t n_reopen = GR_MAX(t->n_reopen, m->finished.n_reopen);
    if (t->g->stop_sent && m->finished.cut == 0) {
        t->n_fallback = n_fallback;
        t->n_reopen = n_reopen;
        return;
    }
    t->n_fallback = t->n_reopen = 0;
    memcpy(t->g->undrafted, m->finished.undrafted, sizeof(t->g->undrafted));
    gr_generation_end(t->g, (enum gr_finish)m->finished.finish, m->finished.text, n_fallback, n_reopen);
    note_turns(t->c);
}

/* What a turn of which nothing is heard waits for. */
static void tell_waiting(const struct gr_connect *c)
{
    if (c->n_target == 0 && c->n_drained > 0) {
        log_warn(
            "no target: no target worker of the orchestrator at %s takes sessions (`graft worker list' tells why); "
            "the turn waits for one",
            c->remote.address);
    } else if (c->n_target == 0) {
        log_warn("no target: no target worker has joined the orchestrator at %s yet; the turn waits for one",
                 c->remote.address);
    } else if (c->place > 0) {
        log_warn("all slots of the targets at %s are in a turn; this one waits, place %u of %u", c->remote.address,
                 c->place, c->n_waiting);
    } else {
        log_warn(
            "nothing has come from the orchestrator at %s for %d s; `graft session list' shows what its workers do",
            c->remote.address, SILENCE_MS / 1000);
    }
}

/* OPENs and APPENDs are sent one at a time, so one turn at most waits for its answer; NULL: none does. */
static struct turn *unanswered(struct gr_connect *c)
{
    for (int i = 0; i < c->n_turn; i++) {
        struct turn *t = &c->turn[i];
        if ((t->g->phase == GR_PHASE_TEXT || t->g->phase == GR_PHASE_PLAIN) && !t->answered) {
            return t;
        }
    }
    return NULL;
}

/* NULL: it is of a turn before. */
static struct turn *turn_of(struct gr_connect *c, uint64_t session)
{
    for (int i = 0; i < c->n_turn; i++) {
        if (c->turn[i].answered && c->turn[i].session == session) {
            return &c->turn[i];
        }
    }
    return NULL;
}

static void on_opened(struct gr_connect *c, const struct gr_msg *m)
{
    struct turn *t = unanswered(c);
    if (t == NULL) {
        return;
    }
    t->answered = true;
    t->session = m->session;
    t->number = m->opened.turn;
    note_turns(c);
    if (t->stop_later) {
        t->stop_later = false;
        stop(t, 0);
    }
}

static void on_turn(struct gr_connect *c, struct turn *t, const struct gr_msg *m)
{
    if (m->type == GR_MSG_FINISHED) {
        on_finished(t, m);
        return;
    }
    if (m->type == GR_MSG_COMMIT && !t->has_len) {
        t->has_len = true;
        t->len = m->commit.keep_len;
    }
    if (m->type == GR_MSG_QUEUED) {
        c->place = m->queued.place;
        c->n_waiting = m->queued.n_waiting;
    } else {
        c->told_waiting = true; /* it goes on: long passes are silent, too */
    }
    gr_generation_take(t->g, m);
}

/* Several answers are opened one by one: the line says which one was refused. */
static void on_error(struct gr_connect *c, struct turn *t, const char *text)
{
    char line[GR_MSG_TEXT_MAX + 64];
    const struct turn *refused = unanswered(c);
    if (t == NULL && refused != NULL && c->n_turn > 1) {
        snprintf(line, sizeof(line), "answer %d of %d is refused: %s", (int)(refused - c->turn) + 1, c->n_turn, text);
        text = line;
    }
    gr_generation_fail(t != NULL ? t->g : c->g, text);
}

static void on_msg(struct gr_connect *c, const struct gr_msg *m)
{
    struct turn *t = turn_of(c, m->session);
    if (m->type == GR_MSG_WORKER) {
        const bool is_target = m->listed_worker.role == GR_ROLE_TARGET;
        const bool takes = m->listed_worker.draining == 0 && m->listed_worker.leaving == 0;
        c->n_target += is_target && takes;
        c->n_drained += is_target && !takes;
    } else if (m->type == GR_MSG_LISTED) {
        tell_waiting(c);
    } else if (m->type == GR_MSG_SESSION) {
        return; /* listed, too */
    } else if (m->type == GR_MSG_ERROR) {
        on_error(c, t, m->error.text);
    } else if (m->type == GR_MSG_OPENED) {
        on_opened(c, m);
    } else if (t != NULL) {
        on_turn(c, t, m);
    }
}

/* The next that is due, unless one is being opened: the first one's session is known when the others begin. */
static bool begin_next(struct gr_connect *c)
{
    for (int i = 0; i < c->n_turn && unanswered(c) == NULL; i++) {
        if (c->turn[i].g->phase == GR_PHASE_START) {
            gr_generation_begin(c->turn[i].g);
            return true;
        }
    }
    return false;
}

static bool goes_on(const struct gr_connect *c)
{
    bool some = false;
    for (int i = 0; i < c->n_turn; i++) {
        const struct gr_generation *g = c->turn[i].g;
        if (g->failed || g->interrupted != 0) {
            return false;
        }
        some = some || g->phase != GR_PHASE_OVER;
    }
    return some;
}

/* Of a command that ends, the link's end cuts the turns. */
static void on_signal(struct gr_connect *c)
{
    for (int i = 0; i < c->n_turn; i++) {
        gr_generation_signal(c->turn[i].g, c->remote.signal_number);
    }
}

static void hear(struct gr_connect *c)
{
    struct gr_msg m;
    const enum gr_status st = gr_remote_recv(&c->remote, c->told_waiting ? -1 : SILENCE_MS, &m);
    if (st == GR_AGAIN) {
        c->told_waiting = true;
        c->g->failed = gr_remote_send(&c->remote, &(struct gr_msg){.type = GR_MSG_LIST}) != GR_OK;
    } else if (st == GR_ECANCELED) {
        on_signal(c);
    } else if (st != GR_OK) {
        c->g->failed = c->gone = true;
    } else {
        on_msg(c, &m);
        gr_msg_finish(&m);
    }
}

static void take_turns(struct gr_connect *c, struct gr_generation *const *g, int n)
{
    GR_ASSERT(n >= 1 && n <= GR_ANSWERS_MAX);
    for (int i = 0; i < n; i++) {
        struct turn *t = &c->turn[i];
        t->c = c;
        t->g = g[i];
        t->stop_later = false;
        t->len = 0;
        g[i]->engine = (struct gr_engine){.ctx = t, .submit = submit, .append = append, .stop = stop};
    }
    c->n_turn = n;
}

/* While one of several answers may still be refused, none is shown. */
static void show_if_taken(struct gr_connect *c)
{
    bool all = true;
    for (int i = 0; i < c->n_turn; i++) {
        all = all && c->turn[i].g->phase != GR_PHASE_START && !c->turn[i].g->failed;
    }
    if (all && c->g->waits && unanswered(c) == NULL) {
        gr_generation_show(c->g);
    }
}

static void turns(struct gr_connect *c, struct gr_generation *const *g, int n)
{
    struct gr_generation *before = c->g;
    take_turns(c, g, n);
    c->g = g[0];
    c->told_waiting = false;
    g[0]->waits = n > 1;
    while (goes_on(c)) {
        if (!begin_next(c)) {
            hear(c);
        }
        show_if_taken(c);
    }
    c->n_turn = 0;
    c->g = before;
}

void gr_connect_turn(struct gr_connect *c, struct gr_generation *g)
{
    turns(c, &g, 1);
}

/* ---- the commands ---- */

static enum gr_status check_session(struct gr_options *o, uint64_t *session_out)
{
    if (o->session == 0) {
        return GR_OK;
    }
    for (int i = 0; i < GR_N_OPTION; i++) {
        if (gr_option_from_cli(o, (enum gr_option_id)i) && gr_option_is_fixed(&gr_option_rows[i])) {
            log_error("--%s is fixed when a session is opened, and --session goes on with one", gr_option_rows[i].name);
            return GR_EINVAL;
        }
    }
    *session_out = o->session;
    return GR_OK;
}

static enum gr_status prepare(struct gr_connect *c, struct gr_answers *a, struct gr_options *o)
{
    struct gr_plan plan;
    GR_TRY(check_session(o, &c->turn[0].session));
    GR_TRY(gr_plan_remote(o, &plan));
    GR_TRY(gr_answers_prepare(a, o, &plan));
    c->g->append = c->turn[0].session != 0;
    return GR_OK;
}

static int run(struct gr_options *o, bool print_id)
{
    struct gr_answers *a = gr_answers_create(o);
    if (a == NULL) {
        return 1;
    }
    struct gr_generation *g = &a->g[0];
    struct gr_connect c = {.remote = {.signal_fd = -1}, .g = g};
    enum gr_status st = prepare(&c, a, o);
    if (st == GR_OK) {
        st = gr_remote_open(o, (struct gr_remote_patience){0}, &c.remote);
    }
    if (st != GR_OK) {
        return gr_answers_refuse(a, st);
    }
    g->silent = print_id;
    turns(&c, a->at, a->n);
    const bool stays = o->session != 0 || (o->keep && !g->failed) || c.remote.gone;
    for (int i = 0; i < (stays ? a->n : 0); i++) {
        a->g[i].session = c.turn[i].answered ? c.turn[i].session : 0;
    }
    gr_remote_close(&c.remote);
    const int status = gr_answers_report(a);
    if (status == 0 && print_id && !o->json) {
        printf("%" GR_SESSION_ID_PRI "\n", c.turn[0].session);
    } else if (status == 0 && o->keep && !print_id) {
        fprintf(stderr, "session %" GR_SESSION_ID_PRI " stays open\n", c.turn[0].session);
    }
    gr_answers_destroy(a);
    return status;
}

int gr_connect_run(struct gr_options *o)
{
    return run(o, false);
}

int gr_connect_open(struct gr_options *o)
{
    o->keep = true;
    if (!gr_option_from_cli(o, GR_OPTION_max_tokens)) { /* a file or a variable says it for turns that answer */
        o->max_tokens = 1;
    }
    return run(o, true);
}

/* ---- conversations ---- */

enum gr_status gr_connect_begin(const struct gr_options *o, struct gr_generation *g, struct gr_connect **out)
{
    struct gr_connect *c = calloc(1, sizeof(*c));
    if (c == NULL) {
        log_error("no memory for a conversation");
        return GR_ENOMEM;
    }
    c->g = g;
    const enum gr_status st = gr_remote_open(o, (struct gr_remote_patience){0}, &c->remote);
    if (st != GR_OK) {
        free(c);
        return st;
    }
    *out = c;
    return GR_OK;
}

void gr_connect_wait(struct gr_connect *c, int fd)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = c->remote.signal_fd, .events = POLLIN}};
    struct signalfd_siginfo info;
    (void)poll(fds, 2, -1);
    if ((fds[1].revents & POLLIN) != 0 && read(c->remote.signal_fd, &info, sizeof(info)) > 0) {
        c->g->interrupted = (int)info.ssi_signo;
    }
}

bool gr_connect_is_gone(const struct gr_connect *c)
{
    return c->gone;
}

/* What the old session still says is read up to its end, or to word that there is none. */
void gr_connect_forget(struct gr_connect *c)
{
    const struct gr_msg close = {.type = GR_MSG_CLOSE, .session = c->turn[0].session};
    enum gr_status st = c->turn[0].session != 0 && !c->gone ? gr_remote_send(&c->remote, &close) : GR_ENOTFOUND;
    for (bool closed = false; st == GR_OK && !closed;) {
        struct gr_msg m;
        st = gr_remote_recv(&c->remote, FORGET_MS, &m);
        if (st == GR_OK) {
            closed = m.type == GR_MSG_CLOSED || m.type == GR_MSG_ERROR;
            gr_msg_finish(&m);
        }
    }
    if (st == GR_ECANCELED) { /* a signal, which nobody else is told of */
        c->g->interrupted = c->remote.signal_number;
    }
    c->gone = c->gone || st == GR_ECLOSED;
    c->turn[0].session = 0;
}

void gr_connect_end(struct gr_connect *c)
{
    gr_connect_forget(c);
    gr_remote_close(&c->remote);
    free(c);
}
