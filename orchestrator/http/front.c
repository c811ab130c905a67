#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/http/front_internal.h"
#include "orchestrator/http/salt.h"
#include "orchestrator/http/tell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum gr_status gr_front_create(const struct gr_front_config *c, struct gr_front **out)
{
    struct gr_front *f = calloc(1, sizeof(*f));
    const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct gr_recall *recall = NULL;
    if (f == NULL || fd < 0 || gr_recall_create(&recall) != GR_OK) {
        log_error("out of memory, or of file descriptors, for the endpoint");
        free(f);
        if (fd >= 0) {
            close(fd);
        }
        return GR_ENOMEM;
    }
    *f = (struct gr_front){.c = *c, .fd = fd, .recall = recall};
    f->posted_end = &f->posted;
    f->returned_end = &f->returned;
    f->kept_end = &f->kept;
    pthread_mutex_init(&f->lock, NULL);
    *out = f;
    return GR_OK;
}

static void destroy_list(struct gr_job *j)
{
    while (j != NULL) {
        struct gr_job *next = j->next;
        gr_tell_failed(j, 503, GR_API_ENDS);
        gr_job_destroy(j);
        j = next;
    }
}

void gr_front_end(struct gr_front *f)
{
    if (f == NULL) {
        return;
    }
    pthread_mutex_lock(&f->lock);
    struct gr_job *posted = f->posted;
    f->ended = true;
    f->posted = NULL;
    f->posted_end = &f->posted;
    pthread_mutex_unlock(&f->lock);
    destroy_list(posted);
    destroy_list(f->job);
    f->job = NULL;
    gr_front_end_returns(f);
}

void gr_front_destroy(struct gr_front *f)
{
    if (f == NULL) {
        return;
    }
    gr_front_end(f);
    gr_recall_destroy(f->recall);
    pthread_mutex_destroy(&f->lock);
    close(f->fd);
    free(f);
}

int gr_front_fd(const struct gr_front *f)
{
    return f->fd;
}

int gr_front_n_job(const struct gr_front *f)
{
    int n = 0;
    for (const struct gr_job *j = f->job; j != NULL; j = j->next) {
        n++;
    }
    return n;
}

/* ---- any thread ---- */

static void wake(const struct gr_front *f)
{
    const uint64_t one = 1;
    const ssize_t n = write(f->fd, &one, sizeof(one));
    (void)n; /* full: it is readable */
}

void gr_front_post(struct gr_front *f, struct gr_job *j)
{
    pthread_mutex_lock(&f->lock);
    const bool ended = f->ended;
    j->next = NULL;
    if (!ended) {
        *f->posted_end = j;
        f->posted_end = &j->next;
    }
    pthread_mutex_unlock(&f->lock);
    if (ended) {
        gr_tell_failed(j, 503, GR_API_ENDS);
        gr_job_destroy(j);
    } else {
        wake(f);
    }
}

void gr_front_post_return(struct gr_front *f, const struct gr_return *r)
{
    struct gr_return *own = malloc(sizeof(*own));
    bool ended = false;
    if (own == NULL) {
        gr_stream_refuse(r->stream, 500, "out of memory");
        return;
    }
    *own = *r;
    own->next = NULL;
    gr_stream_hold(own->stream);
    pthread_mutex_lock(&f->lock);
    ended = f->ended;
    if (!ended) {
        *f->returned_end = own;
        f->returned_end = &own->next;
    }
    pthread_mutex_unlock(&f->lock);
    if (ended) {
        gr_stream_refuse(own->stream, 503, GR_API_ENDS);
        gr_stream_drop(own->stream);
        free(own);
    } else {
        wake(f);
    }
}

void gr_front_post_gone(struct gr_front *f)
{
    wake(f);
}

/* ---- ends ---- */

/* The answer's number is free for another. */
static void let_go(struct gr_front *f, struct gr_job_answer *a)
{
    if (!a->over) {
        a->over = true;
        a->job->n_over++;
        if (a->client != 0) {
            f->at[a->client - f->c.first_client] = NULL;
        }
    }
}

/* Answers that still run end: their client is gone. */
static void give_up(struct gr_front *f, struct gr_job *j)
{
    for (int i = 0; i < j->n_answer; i++) {
        struct gr_job_answer *a = &j->answer[i];
        if (!a->over) {
            let_go(f, a);
            if (a->client != 0) {
                f->c.leave(f->c.ctx, a->client);
            }
        }
    }
}

/* ---- sessions are opened ---- */

/* Owners share the queue by the first bytes of their keys' digests, which differ as the digests do. */
static uint64_t owner_number(const struct gr_api_owner *owner)
{
    uint64_t number;
    memcpy(&number, owner->digest, sizeof(number));
    return number;
}

/* Answers to one prompt share its KV, where the first is open. */
static void open_answer(struct gr_front *f, struct gr_job_answer *a, uint64_t now_ns)
{
    struct gr_job *j = a->job;
    const char *name = f->c.fleet_name(f->c.ctx, j->model);
    if (name == NULL) {
        gr_tell_failed(j, 503, "no target that is here has the model's tokenizer: try again later");
        let_go(f, a);
        return;
    }
    const struct gr_ask_prompt *p = &j->ask.prompt[a->index / j->ask.n_each];
    int32_t segments[2] = {0, (int32_t)p->n_ids};
    struct gr_msg m = {.type = GR_MSG_OPEN};
    memcpy(m.open.trace_id, j->names.trace_id, sizeof(m.open.trace_id));
    m.open.tokenizer_fingerprint = j->model->fingerprint;
    m.open.ids.p = p->ids;
    m.open.ids.n = p->n_ids;
    m.open.segments.p = segments;
    m.open.segments.n = 2;
    snprintf(m.open.model, sizeof(m.open.model), "%s", name);
    gr_wishes_copy(&m.open.wishes, &j->ask.wishes);
    m.open.wishes.turn.max_tokens = p->max_tokens;
    m.open.wishes.owner = owner_number(&j->owner);
    gr_http_salt(&j->owner, j->request.cache_salt, m.open.wishes.salt);
    m.open.wishes.sampling.choice = (uint32_t)(a->index % j->ask.n_each);
    char *note = gr_past_note(j);
    if (note != NULL) {
        m.open.answer = (struct gr_msg_long){.p = note, .n = (uint32_t)strlen(note)};
    }
    m.open.wishes.fork_of = a->index % j->ask.n_each > 0 ? j->answer[a->index - a->index % j->ask.n_each].session : 0;
    const enum gr_status st = f->c.say(f->c.ctx, a->client, &m, now_ns);
    (void)st; /* OPENED, or ERROR, has come */
    free(note);
}

static bool is_first_of_prompt(const struct gr_job_answer *a)
{
    return a->index % a->job->ask.n_each == 0;
}

/* The others wait for the first one's session, whose KV they share. */
static void open_others(struct gr_front *f, struct gr_job_answer *first, uint64_t now_ns)
{
    const struct gr_job *j = first->job;
    for (int i = 1; i < j->ask.n_each && !j->failed; i++) {
        open_answer(f, first + i, now_ns);
    }
}

/* ---- what the desk tells ---- */

/* The response begins when all its answers are open, and what is to be kept of them is. */
static void on_opened(struct gr_front *f, struct gr_job_answer *a, const struct gr_msg *m, uint64_t now_ns)
{
    a->session = m->session;
    a->turn = m->opened.turn;
    a->epoch = m->opened.epoch;
    if (a->job->n_answer == 1) {
        gr_recall_name(f->recall, a->job->place, a->session);
    }
    struct gr_log_subject about = {.session = m->session, .epoch = m->opened.epoch};
    memcpy(about.trace_id, a->job->names.trace_id, sizeof(about.trace_id));
    gr_log_about(&about);
    log_info("session %" GR_SESSION_ID_PRI " answers request %s", m->session, a->job->reply.id);
    gr_log_about(NULL);
    if (++a->job->n_opened == a->job->n_answer) {
        gr_tell_all(a->job, now_ns);
    }
    if (is_first_of_prompt(a)) {
        open_others(f, a, now_ns);
    }
}

static void on_commit(struct gr_front *f, struct gr_job_answer *a, const struct gr_msg *m, uint64_t now_ns)
{
    bool stopped = false;
    if (a->stop_sent) {
        return; /* it was on its way when the answer was stopped */
    }
    gr_metrics_take(&a->metrics, m, now_ns);
    a->epoch = m->commit.epoch;
    if (gr_turn_text_take(&a->turn_text, &m->commit, &a->job->ask.wishes.turn.stop_ids, &stopped) != GR_OK) {
        gr_tell_failed(a->job, 500, "the tokens that came do not continue the text");
        return;
    }
    gr_tell_round(a, &m->commit, now_ns);
    gr_tell_text(a, now_ns);
    if (stopped) {
        gr_front_stop_answer(f, a, now_ns);
    }
}

static void on_finished(struct gr_front *f, struct gr_job_answer *a, const struct gr_msg *m, uint64_t now_ns)
{
    struct gr_job *j = a->job;
    if (a->stop_sent && !m->finished.cut) {
        return; /* it crossed the stop, whose own answer follows: only that is durable with the stop */
    }
    a->finish = (enum gr_finish)m->finished.finish;
    const enum gr_status st = gr_turn_text_end(&a->turn_text);
    gr_tell_text(a, now_ns);
    let_go(f, a);
    if (gr_tell_bad_end(j, a->finish, m->finished.text)) {
        return;
    }
    if (st != GR_OK) {
        gr_tell_failed(j, 500, "out of memory");
    } else {
        gr_tell_all(j, now_ns);
    }
}

/* The endpoint serves the model that is named (readers.c): that no target has it yet is no error of who asks. */
static int refusal_status(uint32_t code)
{
    const bool is_ours = code == (uint32_t)-GR_EDRAINING || code == (uint32_t)-GR_EIO || code == (uint32_t)-GR_ENOMEM ||
                         code == (uint32_t)-GR_ENOTFOUND;
    return code == (uint32_t)-GR_AGAIN ? 429 : is_ours ? 503 : 400;
}

static void refuse_answer(const struct gr_job_answer *a, const struct gr_msg *m)
{
    char absent[GR_MSG_TEXT_MAX];
    const bool is_absent = m->error.code == (uint32_t)-GR_ENOTFOUND; /* the desk knows names of targets alone */
    snprintf(absent, sizeof(absent), "no target of model `%s' has joined yet: try again later", a->job->model->name);
    gr_tell_failed(a->job, refusal_status(m->error.code), is_absent ? absent : m->error.text);
}

void gr_front_on_msg(struct gr_front *f, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    struct gr_job_answer *a = f->at[client - f->c.first_client];
    if (a == NULL || a->over) {
        return;
    }
    switch (m->type) {
    case GR_MSG_OPENED:
        on_opened(f, a, m, now_ns);
        break;
    case GR_MSG_COMMIT:
        on_commit(f, a, m, now_ns);
        break;
    case GR_MSG_DRAFT_STATS:
    case GR_MSG_DRAFT_TROUBLE:
    case GR_MSG_ATTACHED:
        gr_metrics_take(&a->metrics, m, now_ns);
        break;
    case GR_MSG_FINISHED:
        on_finished(f, a, m, now_ns);
        break;
    case GR_MSG_ERROR:
        refuse_answer(a, m);
        let_go(f, a);
        break;
    default:
        break;
    }
}

/* ---- a job begins ---- */

static bool take_number(struct gr_front *f, struct gr_job_answer *a)
{
    for (uint32_t i = 0; i < GR_FRONT_ANSWER_MAX; i++) {
        if (f->at[i] == NULL) {
            f->at[i] = a;
            a->client = f->c.first_client + i;
            return true;
        }
    }
    return false;
}

/* All have their numbers before any is opened: OPENED may come at once. */
static void open_all(struct gr_front *f, struct gr_job *j, uint64_t now_ns)
{
    for (int i = 0; i < j->n_answer && !j->failed; i++) {
        if (!take_number(f, &j->answer[i])) {
            gr_tell_failed(j, 429, "as many answers are being generated as there is room for: try again later");
        }
    }
    for (int i = 0; i < j->n_answer && !j->failed; i += j->ask.n_each) {
        open_answer(f, &j->answer[i], now_ns);
    }
}

/* A request for more answers than can run and wait at a time would be refused whenever it came, so it is not told to
 * try again. False: it was refused. */
static bool may_ever_fit(const struct gr_front *f, struct gr_job *j)
{
    const uint32_t room = f->c.room != NULL ? f->c.room(f->c.ctx, j->model) : 0;
    struct gr_api_error e;
    if (room == 0 || (uint32_t)j->n_answer <= room) {
        return true;
    }
    (void)gr_api_refuse(&e, 400, j->ask.n_each > 1 ? "n" : "prompt",
                        "%d answers are asked for (prompts times n), and at most %u run (slots of the model's targets) "
                        "and wait (--queue-max) at a time",
                        j->n_answer, room);
    gr_tell_failure(j, &e);
    return false;
}

static void begin_job(struct gr_front *f, struct gr_job *j, uint64_t now_ns)
{
    if (gr_front_came_before(f, j, now_ns)) {
        return;
    }
    j->next = f->job;
    f->job = j;
    j->resumes = j->event_ids || j->once.asked;
    if (gr_job_prepare(j) != GR_OK) {
        gr_tell_failed(j, 500, "out of memory");
        return;
    }
    if (!may_ever_fit(f, j)) {
        return;
    }
    j->place = gr_recall_add(f->recall, &j->owner, &j->once, j);
    if (j->place < 0) {
        gr_tell_failed(j, 429, "as many answers are being generated, or kept, as there is room for: try again later");
        return;
    }
    const bool follows = gr_front_follow(f, j, j->stream, j->event_ids, 0, now_ns);
    gr_stream_drop(j->stream);
    j->stream = NULL;
    if (follows) {
        open_all(f, j, now_ns);
    } else {
        gr_job_abandon(j);
    }
}

/* ---- an answer of an earlier process ---- */

static void take_over(struct gr_front *f, struct gr_job *j, bool stopped, uint64_t now_ns)
{
    struct gr_job_answer *a = &j->answer[0];
    if (!take_number(f, a) || !f->c.adopt(f->c.ctx, a->client, a->session)) {
        log_error("session %" GR_SESSION_ID_PRI ": its turn goes on, and nobody can come back to it", a->session);
        gr_tell_failed(j, 500, "the turn could not be taken over after a restart");
    }
    j->next = f->job;
    f->job = j;
    if (stopped && !j->failed) {
        gr_front_stop_answer(f, a, now_ns);
    }
}

/* What has failed, or was ended since nobody came back, may be asked anew. */
static bool is_answered_once(const struct gr_kept_answer *a)
{
    return a->in_turn || a->finish == GR_FINISH_STOP || a->finish == GR_FINISH_LENGTH;
}

void gr_front_restore(struct gr_front *f, const struct gr_kept_answer *a, uint64_t now_ns)
{
    struct gr_api_owner owner;
    struct gr_once once;
    bool stopped = false;
    if (!gr_past_whose(a, &owner, &once)) {
        log_warn("session %" GR_SESSION_ID_PRI " of the journal cannot be come back to: what is noted of it is not of "
                 "this version",
                 a->session);
        return;
    }
    once = is_answered_once(a) ? once : (struct gr_once){0};
    const int place = gr_recall_add(f->recall, &owner, &once, NULL);
    if (place < 0) {
        log_warn("session %" GR_SESSION_ID_PRI " of the journal cannot be come back to: there is no room for more",
                 a->session);
        return;
    }
    gr_recall_name(f->recall, place, a->session);
    struct gr_job *j = a->in_turn ? gr_past_job(a, f->c.served, f->c.n_served, &stopped) : NULL;
    if (j != NULL) {
        gr_recall_load(f->recall, place, j);
        take_over(f, j, stopped, now_ns);
    }
}

/* ---- the loop ---- */

static void take_posted(struct gr_front *f, uint64_t now_ns)
{
    pthread_mutex_lock(&f->lock);
    struct gr_job *j = f->posted;
    struct gr_return *back = f->returned;
    f->posted = NULL;
    f->posted_end = &f->posted;
    f->returned = NULL;
    f->returned_end = &f->returned;
    pthread_mutex_unlock(&f->lock);
    while (j != NULL) {
        struct gr_job *next = j->next;
        begin_job(f, j, now_ns);
        j = next;
    }
    while (back != NULL) {
        struct gr_return *next = back->next;
        gr_front_come_back(f, back, now_ns);
        gr_stream_drop(back->stream);
        free(back);
        back = next;
    }
}

/* A job that nobody follows any more goes on for a while, if who asked it would come back; else it is left. Returns
 * when it is to be looked at again; UINT64_MAX. */
static uint64_t look_for_left(const struct gr_front *f, struct gr_job *j, uint64_t now_ns)
{
    if (j->follower != NULL || j->untended || j->failed || gr_job_is_over(j)) {
        j->left_ns = 0;
        return UINT64_MAX;
    }
    j->left_ns = j->left_ns == 0 ? GR_MAX(now_ns, 1u) : j->left_ns;
    const uint64_t end_ns = j->left_ns + (j->resumes ? f->c.grace_ns : 0);
    if (now_ns >= end_ns) {
        gr_job_abandon(j);
        return UINT64_MAX;
    }
    return end_ns;
}

/* Jobs whose response has ended, one way or another. Returns when to look again. */
static uint64_t sweep(struct gr_front *f, uint64_t now_ns)
{
    uint64_t due_ns = f->job != NULL ? now_ns + GR_TELL_PING_NS : UINT64_MAX;
    for (struct gr_job **at = &f->job; *at != NULL;) {
        struct gr_job *j = *at;
        gr_tell_ping(j, now_ns);
        f->n_follower -= gr_job_drop_followers(j);
        const uint64_t left_ns = look_for_left(f, j, now_ns);
        due_ns = GR_MIN(due_ns, left_ns);
        if (j->failed) {
            give_up(f, j);
        }
        if (j->failed || gr_job_is_over(j)) {
            *at = j->next;
            gr_front_retire(f, j, now_ns);
        } else {
            at = &j->next;
        }
    }
    return due_ns;
}

uint64_t gr_front_run(struct gr_front *f, uint64_t now_ns)
{
    uint64_t posted = 0;
    const ssize_t n = read(f->fd, &posted, sizeof(posted));
    if (n > 0) {
        take_posted(f, now_ns);
    }
    const uint64_t sweep_ns = sweep(f, now_ns), expire_ns = gr_front_expire(f, now_ns);
    return GR_MIN(sweep_ns, expire_ns);
}

bool gr_front_has_client(const struct gr_front *f, uint32_t client)
{
    return client >= f->c.first_client && client - f->c.first_client < GR_FRONT_ANSWER_MAX;
}
