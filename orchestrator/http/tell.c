#include "orchestrator/http/tell.h"

#include "orchestrator/http/event_id.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

static void fail_follower(struct gr_follower *f, const struct gr_api_error *e)
{
    if (!f->ended) {
        f->ended = true;
        gr_stream_fail(f->stream, e);
    }
}

static void refuse_follower(struct gr_follower *f, int http_status, const char *text)
{
    const struct gr_api_error e = gr_api_error_of(http_status, text);
    fail_follower(f, &e);
}

void gr_tell_failure(struct gr_job *j, const struct gr_api_error *e)
{
    if (j->failed) {
        return;
    }
    j->failed = true;
    j->error = *e;
    for (struct gr_follower *f = j->follower; f != NULL; f = f->next) {
        fail_follower(f, e);
    }
    if (j->stream != NULL) {
        gr_stream_fail(j->stream, e);
    }
}

void gr_tell_failed(struct gr_job *j, int http_status, const char *text)
{
    const struct gr_api_error e = gr_api_error_of(http_status, text);
    gr_tell_failure(j, &e);
}

/* 0: it is no bad end. A turn that no target took may be taken later, or by another server. */
static int bad_end_status(enum gr_finish finish)
{
    switch (finish) {
    case GR_FINISH_ERROR:
        return 500;
    case GR_FINISH_TIMEOUT:
        return 408;
    case GR_FINISH_UNSERVED:
        return 503;
    default:
        return 0;
    }
}

bool gr_tell_bad_end(struct gr_job *j, enum gr_finish finish, const char *text)
{
    const int http_status = bad_end_status(finish);
    if (http_status == 0) {
        return false;
    }
    struct gr_api_error e = gr_api_error_of(http_status, text[0] != '\0' ? text : "the answer could not be generated");
    e.is_final = finish == GR_FINISH_TIMEOUT; /* its client has waited for as long as he would */
    gr_tell_failure(j, &e);
    return true;
}

/* ---- one follower ---- */

/* What was written cannot be any more: nobody reads it, or too slowly. */
static void wrote(struct gr_follower *f, enum gr_status st, uint64_t now_ns)
{
    f->ended = f->ended || st != GR_OK;
    f->said_ns = now_ns;
}

static void write_event(struct gr_follower *f, const char *id, char *text, uint64_t now_ns)
{
    if (text == NULL) {
        refuse_follower(f, 500, "out of memory");
    } else if (!f->ended) {
        wrote(f, gr_stream_write_named_event(f->stream, id, text), now_ns);
    }
    free(text);
}

static struct gr_reply_answer reply_answer(const struct gr_job_answer *a, bool ends)
{
    return (struct gr_reply_answer){.index = a->index,
                                    .turn = &a->turn_text,
                                    .finish = ends ? gr_reply_finish(a->finish) : NULL,
                                    .with_logprobs = a->job->request.n_logprob >= 0};
}

/* NULL: his events have no names, and several answers' have none. */
static const char *name_event(const struct gr_job_answer *a, const struct gr_follower *f, uint32_t position,
                              char out[GR_EVENT_ID_MAX])
{
    const struct gr_event_id id = {.session = a->session, .epoch = a->epoch, .position = position};
    if (!f->ids || a->job->n_answer != 1) {
        return NULL;
    }
    gr_event_id_spell(&id, out);
    return out;
}

static void tell_text(const struct gr_job_answer *a, struct gr_follower *f, uint64_t now_ns)
{
    const struct gr_job *j = a->job;
    char id[GR_EVENT_ID_MAX];
    uint32_t *n_told = &f->n_told[a->index];
    struct gr_reply_piece p = {.first = *n_told};
    if (f->ended || *n_told == GR_TOLD_ALL) {
        return;
    }
    p.text = gr_turn_text_piece(&a->turn_text, p.first, &p.end, &p.len);
    *n_told = p.end;
    if (p.len > 0 || (j->request.n_logprob >= 0 && p.end > p.first)) {
        const struct gr_reply_answer r = reply_answer(a, false);
        write_event(f, name_event(a, f, p.end, id), gr_reply_chunk(&j->reply, &r, &p), now_ns);
    }
}

static void tell_finish(const struct gr_job_answer *a, struct gr_follower *f, uint64_t now_ns)
{
    const struct gr_reply_answer r = reply_answer(a, true);
    const uint32_t n = a->turn_text.n_final;
    if (!f->ended && f->n_told[a->index] != GR_TOLD_ALL) {
        const struct gr_reply_piece p = {.text = "", .first = n, .end = n};
        f->n_told[a->index] = GR_TOLD_ALL;
        write_event(f, NULL, gr_reply_chunk(&a->job->reply, &r, &p), now_ns);
    }
}

/* ---- the end ---- */

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
        for (int k = 0; k < GR_NODE_MAX; k++) {
            u.accepted_per_position[k] += a->metrics.accepted_per_position[k];
        }
    }
    u.num_spec_tokens = gr_ask_spec_tokens(&j->ask);
    return u;
}

static void tell_whole(const struct gr_job *j, struct gr_follower *f)
{
    const struct gr_usage u = usage_of(j);
    struct gr_reply_answer *all = calloc((size_t)j->n_answer, sizeof(*all));
    for (int i = 0; all != NULL && i < j->n_answer; i++) {
        all[i] = reply_answer(&j->answer[i], true);
    }
    char *text = all != NULL ? gr_reply_whole(&j->reply, all, j->n_answer, &u) : NULL;
    gr_stream_answer(f->stream, text);
    f->ended = true;
    free(all);
}

/* The last event has the position after the last token's: who has its name asks for nothing more. */
static void tell_done(const struct gr_job *j, struct gr_follower *f, uint64_t now_ns)
{
    char id[GR_EVENT_ID_MAX];
    if (j->request.include_usage) {
        const struct gr_usage u = usage_of(j);
        write_event(f, NULL, gr_reply_usage_chunk(&j->reply, &u), now_ns);
    }
    if (!f->ended) {
        const char *name = name_event(&j->answer[0], f, j->answer[0].turn_text.n_final + 1, id);
        wrote(f, gr_stream_write_named_event(f->stream, name, "[DONE]"), now_ns);
        gr_stream_end(f->stream);
        f->ended = true;
    }
}

/* ---- the beginning ---- */

static uint32_t n_shown(const struct gr_job_answer *a)
{
    uint32_t end = 0;
    size_t len = 0;
    (void)gr_turn_text_piece(&a->turn_text, 0, &end, &len);
    return end;
}

/* The status of his response; 0: his position is not reached yet. An earlier process may have told what this one has
 * yet to compute again. */
static int head_status(const struct gr_job *j, const struct gr_follower *f)
{
    const struct gr_job_answer *a = &j->answer[0];
    const uint32_t n = a->turn_text.n_final;
    if (f->from == 0 || (f->from <= n && f->from <= n_shown(a))) {
        return 200;
    }
    if (gr_job_is_over(j) || j->failed) {
        return f->from == n + 1 && !j->failed ? 204 : 400;
    }
    return j->restored && f->from <= j->ask.prompt[0].max_tokens ? 0 : 400;
}

static void refuse_position(const struct gr_job *j, struct gr_follower *f)
{
    struct gr_api_error e;
    const enum gr_status st = gr_api_refuse(&e, 400, NULL, "the answer has %u tokens by now, and not %u",
                                            j->answer[0].turn_text.n_final, f->from);
    (void)st;
    fail_follower(f, &e);
}

static void tell_head(const struct gr_job *j, struct gr_follower *f, uint64_t now_ns)
{
    gr_stream_name(f->stream, j->answer[0].session);
    gr_stream_begin(f->stream, 200, GR_STREAM_EVENTS);
    if (f->ids && j->n_answer == 1) { /* those whom a server that ends has lost come back one by one */
        gr_stream_retry(f->stream, GR_TELL_RETRY_MS + randombytes_uniform(GR_TELL_RETRY_MS / 2 + 1));
    }
    f->begun = true;
    f->n_told[0] = f->from;
    for (int i = 0; j->request.endpoint == GR_API_CHAT && f->from == 0 && i < j->n_answer; i++) {
        const struct gr_reply_answer r = reply_answer(&j->answer[i], false);
        const struct gr_reply_piece p = {.text = "", .begins = true};
        write_event(f, NULL, gr_reply_chunk(&j->reply, &r, &p), now_ns);
    }
}

/* The response begins when all answers are open, and what is to be kept of them is. */
static void begin(const struct gr_job *j, struct gr_follower *f, uint64_t now_ns)
{
    if (j->n_opened < j->n_answer) {
        return;
    }
    const int status = head_status(j, f);
    if (status == 200) {
        tell_head(j, f, now_ns);
    } else if (status == 204) {
        gr_stream_begin(f->stream, 204, "");
        gr_stream_end(f->stream);
        f->ended = true;
    } else if (status != 0) {
        refuse_position(j, f);
    }
}

/* ---- followers ---- */

/* What went wrong comes after the text that is there; where he has heard nothing, it is all of the response. */
static void tell_stream(struct gr_job *j, struct gr_follower *f, uint64_t now_ns)
{
    const bool nothing = j->failed && (j->n_opened < j->n_answer || j->answer[0].turn_text.n_final == 0);
    if (!f->begun && !f->ended && !nothing) {
        begin(j, f, now_ns);
    }
    for (int i = 0; f->begun && i < j->n_answer; i++) {
        const struct gr_job_answer *a = &j->answer[i];
        tell_text(a, f, now_ns);
        if (a->over && !j->failed) {
            tell_finish(a, f, now_ns);
        }
    }
    if (f->begun && gr_job_is_over(j) && !j->failed) {
        tell_done(j, f, now_ns);
    }
}

void gr_tell_follower(struct gr_job *j, struct gr_follower *f, uint64_t now_ns)
{
    if (j->request.stream) {
        tell_stream(j, f, now_ns);
    } else if (gr_job_is_over(j) && !j->failed && !f->ended) {
        tell_whole(j, f);
    }
    if (j->failed) {
        fail_follower(f, &j->error);
    }
}

void gr_tell_all(struct gr_job *j, uint64_t now_ns)
{
    for (struct gr_follower *f = j->follower; f != NULL; f = f->next) {
        gr_tell_follower(j, f, now_ns);
    }
}

void gr_tell_text(struct gr_job_answer *a, uint64_t now_ns)
{
    struct gr_job *j = a->job;
    for (struct gr_follower *f = j->request.stream ? j->follower : NULL; f != NULL; f = f->next) {
        if (f->begun) {
            tell_text(a, f, now_ns);
        } else {
            gr_tell_follower(j, f, now_ns);
        }
    }
}

void gr_tell_round(struct gr_job_answer *a, const struct gr_msg_commit *m, uint64_t now_ns)
{
    const struct gr_job *j = a->job;
    for (struct gr_follower *f = j->request.rounds ? j->follower : NULL; f != NULL; f = f->next) {
        if (f->begun && !f->ended) {
            write_event(f, NULL, gr_reply_round_chunk(&j->reply, a->index, m), now_ns);
        }
    }
}

void gr_tell_ping(struct gr_job *j, uint64_t now_ns)
{
    for (struct gr_follower *f = j->follower; f != NULL; f = f->next) {
        /* What the desk told within this step bears a later time than the step's. */
        if (f->begun && !f->ended && now_ns >= f->said_ns && now_ns - f->said_ns >= GR_TELL_PING_NS) {
            wrote(f, gr_stream_ping(f->stream), now_ns);
        }
    }
}
