#include "orchestrator/http/front.h"

#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/http/salt.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct gr_front {
    struct gr_front_config c;
    int fd;
    pthread_mutex_t lock; /* of what is posted */
    struct gr_job *posted, **posted_end;
    bool ended;
    struct gr_job *job;                            /* owned: those that are being answered */
    struct gr_job_answer *at[GR_FRONT_ANSWER_MAX]; /* by client number, less first_client */
};

enum gr_status gr_front_create(const struct gr_front_config *c, struct gr_front **out)
{
    struct gr_front *f = calloc(1, sizeof(*f));
    const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (f == NULL || fd < 0) {
        log_error("out of memory, or of file descriptors, for the endpoint");
        free(f);
        if (fd >= 0) {
            close(fd);
        }
        return GR_ENOMEM;
    }
    *f = (struct gr_front){.c = *c, .fd = fd};
    f->posted_end = &f->posted;
    pthread_mutex_init(&f->lock, NULL);
    *out = f;
    return GR_OK;
}

static void destroy_list(struct gr_job *j)
{
    static const struct gr_api_error ending = {.http_status = 503, .message = "the orchestrator is shutting down"};
    while (j != NULL) {
        struct gr_job *next = j->next;
        gr_stream_fail(j->stream, &ending); /* no more than its end, where it has all of its answer */
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
}

void gr_front_destroy(struct gr_front *f)
{
    if (f == NULL) {
        return;
    }
    gr_front_end(f);
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

static void fail_job(struct gr_job *j, const struct gr_api_error *e)
{
    if (!j->failed) {
        j->failed = true;
        gr_stream_fail(j->stream, e);
    }
}

static void fail_with(struct gr_job *j, int http_status, const char *text)
{
    struct gr_api_error e;
    const enum gr_status st = gr_api_refuse(&e, http_status, NULL, "%.300s", text);
    (void)st;
    fail_job(j, &e);
}

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
        fail_with(j, 503, "the orchestrator is shutting down");
        gr_job_destroy(j);
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

/* What was written cannot be any more: nobody reads it, or too slowly. */
static void wrote(struct gr_job *j, enum gr_status st, uint64_t now_ns)
{
    j->failed = j->failed || st != GR_OK;
    j->said_ns = now_ns;
}

static void write_event(struct gr_job *j, char *text, uint64_t now_ns)
{
    if (text == NULL) {
        fail_with(j, 500, "out of memory");
    } else if (!j->failed) {
        wrote(j, gr_stream_write_event(j->stream, text), now_ns);
    }
    free(text);
}

/* ---- what is said ---- */

static struct gr_reply_answer reply_answer(const struct gr_job_answer *a, bool ends)
{
    return (struct gr_reply_answer){.index = a->index,
                                    .turn = &a->turn_text,
                                    .finish = ends ? gr_reply_finish(a->finish) : NULL,
                                    .with_logprobs = a->job->request.n_logprob >= 0};
}

static void say_piece(struct gr_job_answer *a, const struct gr_reply_piece *p, bool ends, uint64_t now_ns)
{
    const struct gr_reply_answer r = reply_answer(a, ends);
    write_event(a->job, gr_reply_chunk(&a->job->reply, &r, p), now_ns);
}

/* Tokens whose text was handed out. */
static uint32_t n_shown(const struct gr_job_answer *a)
{
    const struct gr_turn_text *t = &a->turn_text;
    uint32_t n = a->n_told;
    while (n < t->n_final && (t->stream.stopped || t->text_end[n] <= t->stream.n_emitted)) {
        n++;
    }
    return n;
}

static void say_text(struct gr_job_answer *a, uint64_t now_ns)
{
    struct gr_reply_piece p = {.first = a->n_told};
    p.text = gr_text_stream_take(&a->turn_text.stream, &p.len);
    p.end = n_shown(a);
    a->n_told = p.end;
    if (p.len > 0 || (a->job->request.n_logprob >= 0 && p.end > p.first)) {
        say_piece(a, &p, false, now_ns);
    }
}

/* Of a prompt, as its first answer had it: the others share what that one has computed. */
static uint64_t cached_of(const struct gr_job_answer *first, const struct gr_ask_prompt *p)
{
    return GR_MIN(first->metrics.cached_tokens, p->n_ids);
}

static struct gr_usage usage_of(const struct gr_job *j)
{
    struct gr_usage u = {0};
    for (int i = 0; i < j->ask.n_prompt; i++) {
        u.prompt_tokens += j->ask.prompt[i].n_ids;
        u.cached_tokens += cached_of(&j->answer[i * j->ask.n_each], &j->ask.prompt[i]);
    }
    for (int i = 0; i < j->n_answer; i++) {
        const struct gr_job_answer *a = &j->answer[i];
        u.completion_tokens += a->turn_text.n_final;
        u.num_drafts += a->metrics.num_drafts;
        u.num_draft_tokens += a->metrics.num_draft_tokens;
        u.num_accepted_tokens += a->metrics.num_accepted_tokens;
        u.draft_ahead_verdicts += a->metrics.draft_ahead_verdicts;
        u.draft_ahead_hits += a->metrics.draft_ahead_hits;
    }
    return u;
}

static void say_whole(struct gr_job *j)
{
    const struct gr_usage u = usage_of(j);
    struct gr_reply_answer *all = calloc((size_t)j->n_answer, sizeof(*all));
    for (int i = 0; all != NULL && i < j->n_answer; i++) {
        all[i] = reply_answer(&j->answer[i], true);
    }
    char *text = all != NULL ? gr_reply_whole(&j->reply, all, j->n_answer, &u) : NULL;
    if (text == NULL) {
        fail_with(j, 500, "out of memory");
    } else {
        gr_stream_begin(j->stream, 200, "application/json");
        wrote(j, gr_stream_write(j->stream, text, strlen(text)), 0);
        gr_stream_end(j->stream);
    }
    free(text);
    free(all);
}

static void say_end(struct gr_job *j, uint64_t now_ns)
{
    if (!j->request.stream) {
        say_whole(j);
        return;
    }
    if (j->request.include_usage) {
        const struct gr_usage u = usage_of(j);
        write_event(j, gr_reply_usage_chunk(&j->reply, &u), now_ns);
    }
    if (!j->failed) {
        wrote(j, gr_stream_write_event(j->stream, "[DONE]"), now_ns);
        gr_stream_end(j->stream);
    }
}

/* ---- what the desk tells ---- */

static void begin_stream(struct gr_job *j, uint64_t now_ns)
{
    if (!j->request.stream || j->failed || gr_stream_has_begun(j->stream)) {
        return;
    }
    gr_stream_begin(j->stream, 200, "text/event-stream");
    for (int i = 0; j->request.endpoint == GR_API_CHAT && i < j->n_answer; i++) {
        say_piece(&j->answer[i], &(struct gr_reply_piece){.text = "", .begins = true}, false, now_ns);
    }
}

/* The response begins when all its answers are open, and what is to be kept of them is. */
static void on_opened(struct gr_job_answer *a, const struct gr_msg *m, uint64_t now_ns)
{
    a->session = m->session;
    a->turn = m->opened.turn;
    struct gr_log_subject about = {.session = m->session, .epoch = m->opened.epoch};
    memcpy(about.trace_id, a->job->names.trace_id, sizeof(about.trace_id));
    gr_log_about(&about);
    log_info("session %" GR_SESSION_ID_PRI " answers request %s", m->session, a->job->reply.id);
    gr_log_about(NULL);
    if (++a->job->n_opened == a->job->n_answer) {
        begin_stream(a->job, now_ns);
    }
}

static void stop_answer(struct gr_front *f, struct gr_job_answer *a, uint64_t now_ns)
{
    if (!a->stop_sent) {
        a->stop_sent = true;
        const struct gr_msg m = {
            .type = GR_MSG_TRUNCATE,
            .session = a->session,
            .truncate = {.keep_len = a->turn_text.turn_len + a->turn_text.n_final, .turn = a->turn}};
        const enum gr_status st = f->c.say(f->c.ctx, a->client, &m, now_ns);
        (void)st;
    }
}

static void on_commit(struct gr_front *f, struct gr_job_answer *a, const struct gr_msg *m, uint64_t now_ns)
{
    bool stopped = false;
    if (a->stop_sent) {
        return; /* it was on its way when the answer was stopped */
    }
    gr_metrics_take(&a->metrics, m, now_ns);
    if (gr_turn_text_take(&a->turn_text, &m->commit, &a->job->ask.wishes.turn.stop_ids, &stopped) != GR_OK) {
        fail_with(a->job, 500, "the tokens that came do not continue the text");
        return;
    }
    if (a->job->request.stream && a->job->request.rounds) {
        write_event(a->job, gr_reply_round_chunk(&a->job->reply, a->index, &m->commit), now_ns);
    }
    if (a->job->request.stream) {
        say_text(a, now_ns);
    }
    if (stopped) {
        stop_answer(f, a, now_ns);
    }
}

static void on_finished(struct gr_front *f, struct gr_job_answer *a, const struct gr_msg *m, uint64_t now_ns)
{
    struct gr_job *j = a->job;
    a->finish = a->stop_sent ? GR_FINISH_STOP : (enum gr_finish)m->finished.finish;
    if (a->finish == GR_FINISH_TIMEOUT) {
        fail_with(j, 408, m->finished.text);
    } else if (a->finish == GR_FINISH_ERROR) {
        fail_with(j, 500, m->finished.text[0] != '\0' ? m->finished.text : "the answer could not be generated");
    }
    if (gr_turn_text_end(&a->turn_text) != GR_OK) {
        fail_with(j, 500, "out of memory");
    }
    if (j->request.stream && !j->failed) {
        say_text(a, now_ns);
        say_piece(a, &(struct gr_reply_piece){.text = "", .first = a->n_told, .end = a->turn_text.n_final}, true,
                  now_ns);
    }
    let_go(f, a);
    if (j->n_over == j->n_answer && !j->failed) {
        say_end(j, now_ns);
    }
}

static int refusal_status(uint32_t code)
{
    const bool is_ours = code == (uint32_t)-GR_EDRAINING || code == (uint32_t)-GR_EIO;
    return code == (uint32_t)-GR_AGAIN ? 429 : is_ours ? 503 : 400;
}

void gr_front_on_msg(struct gr_front *f, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    struct gr_job_answer *a = f->at[client - f->c.first_client];
    if (a == NULL || a->over) {
        return;
    }
    switch (m->type) {
    case GR_MSG_OPENED:
        on_opened(a, m, now_ns);
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
        fail_with(a->job, refusal_status(m->error.code), m->error.text);
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

static enum gr_status prepare_answer(struct gr_job *j, int i)
{
    const struct gr_ask_prompt *p = &j->ask.prompt[i / j->ask.n_each];
    const struct gr_turn_text_config c = {.tok = j->model->tok,
                                          .stop = j->request.stop,
                                          .n_stop = j->request.n_stop,
                                          .max_tokens = p->max_tokens,
                                          .min_tokens = j->ask.wishes.turn.min_tokens,
                                          .n_logprob = j->ask.wishes.turn.n_logprob};
    j->answer[i].job = j;
    j->answer[i].index = i;
    return gr_turn_text_init(&j->answer[i].turn_text, &c);
}

static enum gr_status prepare_answers(struct gr_job *j)
{
    const int n = j->ask.n_prompt * j->ask.n_each;
    j->answer = calloc((size_t)n, sizeof(*j->answer));
    if (j->answer == NULL) {
        return GR_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        j->n_answer++;
        GR_TRY(prepare_answer(j, i));
    }
    return GR_OK;
}

/* Owners share the queue by their keys' digests, the first bytes of which are as good as all of them. */
static uint64_t owner_number(const struct gr_api_owner *owner)
{
    uint64_t number;
    memcpy(&number, owner->digest, sizeof(number));
    return number;
}

/* Answers to one prompt share its KV, where the first is open. */
static void open_answer(struct gr_front *f, struct gr_job_answer *a, uint64_t now_ns)
{
    const struct gr_job *j = a->job;
    const struct gr_ask_prompt *p = &j->ask.prompt[a->index / j->ask.n_each];
    int32_t segments[2] = {0, (int32_t)p->n_ids};
    struct gr_msg m = {.type = GR_MSG_OPEN};
    memcpy(m.open.trace_id, j->names.trace_id, sizeof(m.open.trace_id));
    m.open.tokenizer_fingerprint = j->model->fingerprint;
    m.open.ids.p = p->ids;
    m.open.ids.n = p->n_ids;
    m.open.segments.p = segments;
    m.open.segments.n = 2;
    snprintf(m.open.model, sizeof(m.open.model), "%s", j->model->named ? j->model->name : "");
    gr_wishes_copy(&m.open.wishes, &j->ask.wishes);
    m.open.wishes.turn.max_tokens = p->max_tokens;
    m.open.wishes.owner = owner_number(&j->owner);
    gr_http_salt(&j->owner, j->request.cache_salt, m.open.wishes.salt);
    m.open.wishes.sampling.choice = (uint32_t)(a->index % j->ask.n_each);
    m.open.wishes.fork_of = a->index % j->ask.n_each > 0 ? j->answer[a->index - a->index % j->ask.n_each].session : 0;
    const enum gr_status st = f->c.say(f->c.ctx, a->client, &m, now_ns);
    (void)st; /* OPENED, or ERROR, has come */
}

static void begin_job(struct gr_front *f, struct gr_job *j, uint64_t now_ns)
{
    j->next = f->job;
    f->job = j;
    j->said_ns = now_ns;
    if (prepare_answers(j) != GR_OK) {
        fail_with(j, 500, "out of memory");
        return;
    }
    for (int i = 0; i < j->n_answer && !j->failed; i++) {
        if (!take_number(f, &j->answer[i])) {
            fail_with(j, 429, "as many answers are being generated as there is room for: try again later");
        } else {
            open_answer(f, &j->answer[i], now_ns);
        }
    }
}

/* ---- the loop ---- */

static void take_posted(struct gr_front *f, uint64_t now_ns)
{
    pthread_mutex_lock(&f->lock);
    struct gr_job *j = f->posted;
    f->posted = NULL;
    f->posted_end = &f->posted;
    pthread_mutex_unlock(&f->lock);
    while (j != NULL) {
        struct gr_job *next = j->next;
        begin_job(f, j, now_ns);
        j = next;
    }
}

static void look_for_gone(struct gr_front *f)
{
    for (struct gr_job *j = f->job; j != NULL; j = j->next) {
        j->failed = j->failed || gr_stream_is_left(j->stream);
    }
}

static void ping(struct gr_job *j, uint64_t now_ns)
{
    if (gr_stream_has_begun(j->stream) && j->request.stream && !j->failed && now_ns - j->said_ns >= GR_FRONT_PING_NS) {
        wrote(j, gr_stream_write(j->stream, ": ping\n", 7), now_ns);
    }
}

/* Jobs whose response has ended, one way or another. */
static void sweep(struct gr_front *f, uint64_t now_ns)
{
    for (struct gr_job **at = &f->job; *at != NULL;) {
        struct gr_job *j = *at;
        ping(j, now_ns);
        if (j->failed) {
            give_up(f, j);
        }
        if (j->failed || j->n_over == j->n_answer) {
            *at = j->next;
            gr_stream_end(j->stream);
            gr_job_destroy(j);
        } else {
            at = &j->next;
        }
    }
}

uint64_t gr_front_run(struct gr_front *f, uint64_t now_ns)
{
    uint64_t posted = 0;
    const ssize_t n = read(f->fd, &posted, sizeof(posted));
    if (n > 0) {
        take_posted(f, now_ns);
        look_for_gone(f);
    }
    sweep(f, now_ns);
    return f->job != NULL ? now_ns + GR_FRONT_PING_NS : UINT64_MAX;
}

bool gr_front_has_client(const struct gr_front *f, uint32_t client)
{
    return client >= f->c.first_client && client - f->c.first_client < GR_FRONT_ANSWER_MAX;
}
