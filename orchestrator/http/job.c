#include "orchestrator/http/job.h"

#include "common/base/log.h"

#include <stdlib.h>

struct gr_job *gr_job_create(struct gr_stream *stream)
{
    struct gr_job *j = calloc(1, sizeof(*j));
    if (j == NULL) {
        log_error("out of memory for a request");
        return NULL;
    }
    j->place = -1;
    if (stream != NULL) {
        gr_stream_hold(stream);
        j->stream = stream;
    }
    return j;
}

static void destroy_follower(struct gr_follower *f)
{
    gr_stream_end(f->stream);
    gr_stream_drop(f->stream);
    free(f->n_told);
    free(f);
}

void gr_job_destroy(struct gr_job *j)
{
    if (j == NULL) {
        return;
    }
    while (j->follower != NULL) {
        struct gr_follower *f = j->follower;
        j->follower = f->next;
        destroy_follower(f);
    }
    for (int i = 0; i < j->n_answer; i++) {
        gr_turn_text_finish(&j->answer[i].turn_text);
    }
    free(j->answer);
    gr_ask_finish(&j->ask);
    gr_api_request_finish(&j->request);
    if (j->stream != NULL) {
        gr_stream_drop(j->stream);
    }
    free(j);
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

enum gr_status gr_job_prepare(struct gr_job *j)
{
    const int n = j->ask.n_prompt * j->ask.n_each;
    j->answer = calloc((size_t)n, sizeof(*j->answer));
    if (j->answer == NULL) {
        log_error("out of memory for %d answers", n);
        return GR_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        j->n_answer++;
        GR_TRY(prepare_answer(j, i));
    }
    return GR_OK;
}

struct gr_follower *gr_job_add_follower(struct gr_job *j, struct gr_stream *stream, bool ids, uint32_t from)
{
    struct gr_follower *f = calloc(1, sizeof(*f));
    uint32_t *n_told = calloc((size_t)GR_MAX(j->n_answer, 1), sizeof(*n_told));
    if (f == NULL || n_told == NULL) {
        log_error("out of memory for who follows an answer");
        free(f);
        free(n_told);
        return NULL;
    }
    gr_stream_hold(stream);
    *f = (struct gr_follower){.stream = stream, .next = j->follower, .n_told = n_told, .from = from, .ids = ids};
    j->follower = f;
    j->n_follower++;
    return f;
}

int gr_job_drop_followers(struct gr_job *j)
{
    int n = 0;
    for (struct gr_follower **at = &j->follower; *at != NULL;) {
        struct gr_follower *f = *at;
        if (f->ended || gr_stream_is_left(f->stream)) {
            *at = f->next;
            destroy_follower(f);
            n++;
        } else {
            at = &f->next;
        }
    }
    j->n_follower -= n;
    return n;
}

void gr_job_trim(struct gr_job *j)
{
    j->n_byte = sizeof(*j) + (size_t)j->n_answer * sizeof(*j->answer);
    for (int i = 0; i < j->n_answer; i++) {
        gr_turn_text_trim(&j->answer[i].turn_text);
        j->n_byte += gr_turn_text_bytes(&j->answer[i].turn_text);
    }
    for (int i = 0; i < j->ask.n_prompt; i++) {
        free(j->ask.prompt[i].ids);
        j->ask.prompt[i].ids = NULL;
    }
    const int n_logprob = (int)j->request.n_logprob;
    const struct gr_api_request kept = {.endpoint = j->request.endpoint,
                                        .n_logprob = n_logprob,
                                        .stream = j->request.stream,
                                        .include_usage = j->request.include_usage};
    gr_api_request_finish(&j->request); /* stop strings, too: what is over holds nothing back */
    j->request = kept;
}
