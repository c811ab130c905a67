#include "orchestrator/http/readers.h"

#include "common/base/log.h"
#include "common/base/utf8.h"
#include "orchestrator/http/api_body.h"
#include "orchestrator/http/ids_json.h"
#include "orchestrator/http/json_text.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define THREAD_MAX 16

struct work {
    struct gr_asked asked;    /* its body is owned */
    struct gr_stream *stream; /* a reference */
    struct work *next;
};

struct gr_readers {
    struct gr_readers_config c;
    pthread_t thread[THREAD_MAX];
    int n_thread;
    pthread_mutex_t lock; /* of the rest */
    pthread_cond_t some;
    struct work *first, **end;
    int n_waiting;
    bool ends;
};

/* ---- a request to generate ---- */

static const struct gr_served *find_model(const struct gr_readers *r, const char *name)
{
    for (int i = 0; i < r->c.n_served; i++) {
        if (name == NULL ? r->c.n_served == 1 : strcmp(name, r->c.served[i].name) == 0) {
            return &r->c.served[i];
        }
    }
    return NULL;
}

/* Those that find room, with commas between them. */
static void list_models(const struct gr_readers *r, char *text, size_t cap)
{
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < r->c.n_served && n < cap; i++) {
        n += (size_t)snprintf(text + n, cap - n, "%s%s", i > 0 ? ", " : "", r->c.served[i].name);
    }
}

static enum gr_status choose_model(const struct gr_readers *r, const char *name, const struct gr_served **out,
                                   struct gr_api_error *e)
{
    char served[128];
    *out = find_model(r, name);
    if (*out != NULL) {
        return GR_OK;
    }
    list_models(r, served, sizeof(served));
    if (name == NULL) {
        return gr_api_refuse(e, 400, "model", "model is missing, and there are %d (/v1/models): %s", r->c.n_served,
                             served);
    }
    (void)gr_api_refuse(e, 404, "model", "The model `%.100s` does not exist; what is served (/v1/models): %s", name,
                        served);
    e->code = "model_not_found";
    return GR_EINVAL;
}

static void fill_reply(struct gr_job *j)
{
    const bool chat = j->request.endpoint == GR_API_CHAT;
    j->reply = (struct gr_reply){.endpoint = j->request.endpoint,
                                 .created_s = (int64_t)time(NULL),
                                 .model = j->model->name, /* which is what the request called it, if it did */
                                 .tok = j->model->tok,
                                 .include_usage = j->request.include_usage};
    snprintf(j->reply.id, sizeof(j->reply.id), "%s-%s", chat ? "chatcmpl" : "cmpl", j->names.request_id);
}

static void let_pass(const char *unknown)
{
    log_warn("a request has the field `%s', which neither OpenAI nor vLLM define; it is not looked at", unknown);
}

static enum gr_status parse(const struct gr_readers *r, enum gr_api_endpoint endpoint, const struct work *w,
                            struct gr_api_request *out, struct gr_api_error *e)
{
    char unknown[GR_API_PARAM_MAX];
    GR_TRY(
        gr_api_request_parse(endpoint, w->asked.body.p, w->asked.body.len, r->c.unknown_pass ? unknown : NULL, out, e));
    if (r->c.unknown_pass && unknown[0] != '\0') {
        let_pass(unknown);
    }
    return GR_OK;
}

static enum gr_status read_job(const struct gr_readers *r, const struct work *w, struct gr_job *j,
                               struct gr_api_error *e)
{
    const enum gr_api_endpoint endpoint = w->asked.what == GR_READ_CHAT ? GR_API_CHAT : GR_API_COMPLETIONS;
    GR_TRY(parse(r, endpoint, w, &j->request, e));
    GR_TRY(choose_model(r, j->request.model, &j->model, e));
    j->owner = w->asked.owner;
    j->names = w->asked.names;
    j->event_ids = w->asked.event_ids;
    j->once = w->asked.once;
    if (j->once.asked) {
        gr_once_take_body(&j->once, (int)w->asked.what, w->asked.body.p, w->asked.body.len);
    }
    const struct gr_ask_limits limits = {.base = r->c.base, .n_ctx = r->c.n_ctx(r->c.ctx, j->model)};
    GR_TRY(gr_ask_make(&j->request, j->model, &limits, &j->ask, e));
    fill_reply(j);
    gr_api_request_trim(&j->request);
    return GR_OK;
}

static void read_generation(struct gr_readers *r, const struct work *w)
{
    struct gr_api_error e = {.http_status = 500, .message = "out of memory"};
    struct gr_job *j = gr_job_create(w->stream);
    if (j != NULL && read_job(r, w, j, &e) == GR_OK) {
        gr_front_post(r->c.front, j);
        return;
    }
    gr_stream_fail(w->stream, &e);
    gr_job_destroy(j);
}

/* ---- /tokenize and /detokenize, as vLLM has them ---- */

static enum gr_status tokenize(const struct gr_readers *r, const struct work *w, struct gr_api_request *q,
                               struct gr_api_error *e)
{
    const struct gr_served *model = NULL;
    int32_t *ids = NULL;
    uint32_t n = 0;
    GR_TRY(parse(r, GR_API_EITHER, w, q, e));
    const bool chat = q->endpoint == GR_API_CHAT;
    GR_TRY(choose_model(r, q->model, &model, e));
    if (!chat && (q->n_prompt != 1 || q->prompt[0].text == NULL)) {
        return gr_api_refuse(e, 400, "prompt", "prompt must be one text");
    }
    GR_TRY(chat ? gr_ask_chat_ids(model, q, &ids, &n, e)
                : gr_ask_text_ids(model, q->prompt[0].text, q->prompt[0].len, q->add_special, &ids, &n, e));
    gr_stream_answer(w->stream,
                     gr_json_text(json_pack("{s:i, s:i, s:o}", "count", (int)n, "max_model_len",
                                            (int)r->c.n_ctx(r->c.ctx, model), "tokens", gr_ids_json(ids, n))));
    free(ids);
    return GR_OK;
}

static enum gr_status take_tokens(const json_t *list, const struct gr_served *model, int32_t *ids,
                                  struct gr_api_error *e)
{
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        if (!json_is_integer(one) || json_integer_value(one) < 0 || json_integer_value(one) >= model->n_vocab) {
            return gr_api_refuse(e, 400, "tokens", "tokens: element %zu is no token id from 0 to %d", i,
                                 model->n_vocab - 1);
        }
        ids[i] = (int32_t)json_integer_value(one);
    }
    return GR_OK;
}

static enum gr_status decode(const json_t *list, const struct gr_served *model, struct gr_stream *s,
                             struct gr_api_error *e)
{
    char *text = NULL;
    size_t len = 0;
    const size_t n = json_array_size(list);
    int32_t *ids = malloc(GR_MAX(n, (size_t)1) * sizeof(*ids));
    enum gr_status st = ids != NULL ? take_tokens(list, model, ids, e) : gr_api_refuse(e, 500, NULL, "out of memory");
    if (st == GR_OK && gr_tokenizer_decode(model->tok, ids, n, false, &text, &len) != GR_OK) {
        st = gr_api_refuse(e, 500, NULL, "out of memory");
    }
    if (st == GR_OK) {
        gr_stream_answer(s, gr_json_text(json_pack("{s:o}", "prompt", json_stringn(text, len))));
    }
    free(text);
    free(ids);
    return st;
}

/* vLLM has no other fields there. */
static enum gr_status check_names(const struct gr_readers *r, json_t *root, struct gr_api_error *e)
{
    const char *name;
    json_t *v;
    json_object_foreach(root, name, v)
    {
        char shown[GR_API_PARAM_MAX];
        if (strcmp(name, "model") == 0 || strcmp(name, "tokens") == 0) {
            continue;
        }
        gr_utf8_show(name, strlen(name), shown, sizeof(shown));
        if (!r->c.unknown_pass) {
            return gr_api_refuse(e, 400, shown, "Unrecognized request argument supplied: %.60s", shown);
        }
        let_pass(shown);
        break; /* one line a request, whatever it has */
    }
    return GR_OK;
}

static enum gr_status detokenize(const struct gr_readers *r, const struct work *w, struct gr_api_error *e)
{
    const struct gr_served *model = NULL;
    json_t *root = NULL;
    GR_TRY(gr_api_body_load(w->asked.body.p, w->asked.body.len, &root, e));
    const json_t *list = json_object_get(root, "tokens");
    enum gr_status st = check_names(r, root, e);
    st = st == GR_OK ? choose_model(r, json_string_value(json_object_get(root, "model")), &model, e) : st;
    if (st == GR_OK && !json_is_array(list)) {
        st = gr_api_refuse(e, 400, "tokens", "tokens must be an array of token ids");
    }
    st = st == GR_OK ? decode(list, model, w->stream, e) : st;
    json_decref(root);
    return st;
}

static void read_tokens(struct gr_readers *r, const struct work *w)
{
    struct gr_api_error e = {0};
    struct gr_api_request q = {0};
    const enum gr_status st = w->asked.what == GR_READ_TOKENIZE ? tokenize(r, w, &q, &e) : detokenize(r, w, &e);
    if (st != GR_OK) {
        gr_stream_fail(w->stream, &e);
    }
    gr_api_request_finish(&q);
}

/* ---- threads ---- */

static void finish_work(const struct gr_readers *r, struct work *w)
{
    gr_stream_drop(w->stream);
    gr_body_drop(r->c.bodies, &w->asked.body);
    free(w);
}

static struct work *next_work(struct gr_readers *r)
{
    pthread_mutex_lock(&r->lock);
    while (r->first == NULL && !r->ends) {
        pthread_cond_wait(&r->some, &r->lock);
    }
    struct work *w = r->ends ? NULL : r->first;
    if (w != NULL) {
        r->first = w->next;
        r->end = r->first == NULL ? &r->first : r->end;
        r->n_waiting--;
    }
    pthread_mutex_unlock(&r->lock);
    return w;
}

static void *run(void *arg)
{
    struct gr_readers *r = arg;
    struct work *w;
    while ((w = next_work(r)) != NULL) {
        if (!gr_stream_is_left(w->stream)) {
            if (w->asked.what == GR_READ_COMPLETIONS || w->asked.what == GR_READ_CHAT) {
                read_generation(r, w);
            } else {
                read_tokens(r, w);
            }
        }
        finish_work(r, w);
    }
    return NULL;
}

enum gr_status gr_readers_create(const struct gr_readers_config *c, struct gr_readers **out)
{
    struct gr_readers *r = calloc(1, sizeof(*r));
    GR_ASSERT(c->n_thread >= 1 && c->n_thread <= THREAD_MAX);
    if (r == NULL) {
        log_error("out of memory for the endpoint");
        return GR_ENOMEM;
    }
    r->c = *c;
    r->end = &r->first;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->some, NULL);
    for (; r->n_thread < c->n_thread; r->n_thread++) {
        if (pthread_create(&r->thread[r->n_thread], NULL, run, r) != 0) {
            log_error("no thread could be started for the endpoint");
            gr_readers_destroy(r);
            return GR_ENOMEM;
        }
    }
    *out = r;
    return GR_OK;
}

void gr_readers_end(struct gr_readers *r)
{
    if (r == NULL) {
        return;
    }
    pthread_mutex_lock(&r->lock);
    r->ends = true;
    struct work *left = r->first;
    r->first = NULL;
    r->end = &r->first;
    r->n_waiting = 0;
    pthread_cond_broadcast(&r->some);
    pthread_mutex_unlock(&r->lock);
    for (; r->n_thread > 0; r->n_thread--) {
        pthread_join(r->thread[r->n_thread - 1], NULL);
    }
    while (left != NULL) {
        struct work *w = left;
        left = w->next;
        gr_stream_refuse(w->stream, 503, GR_API_ENDS);
        finish_work(r, w);
    }
}

void gr_readers_destroy(struct gr_readers *r)
{
    if (r == NULL) {
        return;
    }
    gr_readers_end(r);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->some);
    free(r);
}

void gr_readers_post(struct gr_readers *r, const struct gr_asked *a, struct gr_stream *stream)
{
    struct work *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        struct gr_body body = a->body;
        gr_stream_refuse(stream, 500, "out of memory");
        gr_body_drop(r->c.bodies, &body);
        return;
    }
    *w = (struct work){.asked = *a, .stream = stream};
    gr_stream_hold(stream);
    pthread_mutex_lock(&r->lock);
    const bool ends = r->ends;
    if (!ends) {
        *r->end = w;
        r->end = &w->next;
        r->n_waiting++;
        pthread_cond_signal(&r->some);
    }
    pthread_mutex_unlock(&r->lock);
    if (ends) {
        gr_stream_refuse(stream, 503, GR_API_ENDS);
        finish_work(r, w);
    }
}
