#include "orchestrator/http/stream.h"

#include "common/base/grow.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gr_stream {
    pthread_mutex_t lock;
    int n_reference;
    void (*wake)(void *ctx);
    void *ctx;
    bool waits; /* its reader, for wake */
    bool waits_for_head;
    bool left; /* it has no reader any more */
    int http_status;
    struct gr_stream_head head;
    bool ended, cut;
    uint32_t retry_ms; /* that the next event tells; 0: none */
    char *bytes;       /* owned: [at, len) wait */
    size_t at, len, cap;
    size_t first; /* bytes of the piece that came when nothing waited: it alone may be larger than the limit */
};

enum gr_status gr_stream_create(void (*wake)(void *ctx), void *ctx, struct gr_stream **out)
{
    struct gr_stream *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        log_error("out of memory for a response");
        return GR_ENOMEM;
    }
    pthread_mutex_init(&s->lock, NULL);
    s->n_reference = 1;
    s->wake = wake;
    s->ctx = ctx;
    *out = s;
    return GR_OK;
}

void gr_stream_hold(struct gr_stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->n_reference++;
    pthread_mutex_unlock(&s->lock);
}

void gr_stream_drop(struct gr_stream *s)
{
    pthread_mutex_lock(&s->lock);
    const bool last = --s->n_reference == 0;
    pthread_mutex_unlock(&s->lock);
    if (last) {
        pthread_mutex_destroy(&s->lock);
        free(s->bytes);
        free(s);
    }
}

/* Called after every change. */
static void wake_reader(struct gr_stream *s)
{
    const bool has_come = s->waits_for_head ? s->http_status != 0 || s->ended : s->len > s->at || s->ended;
    if (s->waits && has_come && !s->left) {
        s->waits = false;
        s->wake(s->ctx);
    }
}

/* ---- who makes it ---- */

void gr_stream_name(struct gr_stream *s, uint64_t session)
{
    pthread_mutex_lock(&s->lock);
    s->head.session = session;
    pthread_mutex_unlock(&s->lock);
}

void gr_stream_retry(struct gr_stream *s, uint32_t ms)
{
    pthread_mutex_lock(&s->lock);
    s->retry_ms = ms;
    pthread_mutex_unlock(&s->lock);
}

void gr_stream_begin(struct gr_stream *s, int http_status, const char *type)
{
    pthread_mutex_lock(&s->lock);
    GR_ASSERT(s->http_status == 0);
    s->http_status = http_status;
    s->head.type = type;
    wake_reader(s);
    pthread_mutex_unlock(&s->lock);
}

bool gr_stream_has_begun(struct gr_stream *s)
{
    pthread_mutex_lock(&s->lock);
    const bool begun = s->http_status != 0;
    pthread_mutex_unlock(&s->lock);
    return begun;
}

static bool make_room(struct gr_stream *s, size_t n)
{
    if (s->at > 0 && s->len + n > s->cap) {
        memmove(s->bytes, s->bytes + s->at, s->len - s->at);
        s->len -= s->at;
        s->at = 0;
    }
    char *bytes = gr_grow(s->bytes, &s->cap, s->len + n, 1);
    s->bytes = bytes != NULL ? bytes : s->bytes;
    return bytes != NULL;
}

/* For n bytes more, which come together or not at all. */
static enum gr_status let_in(struct gr_stream *s, size_t n)
{
    if (s->left || s->ended) {
        return GR_ECLOSED;
    }
    /* A response of one piece may be larger; what waits before a piece may not. */
    if (s->len - s->at > GR_STREAM_BYTES_MAX + s->first || !make_room(s, n)) {
        s->ended = s->cut = true;
        return GR_ELIMIT;
    }
    s->first = s->len == s->at ? n : s->first;
    return GR_OK;
}

static void append(struct gr_stream *s, const char *bytes, size_t n)
{
    memcpy(s->bytes + s->len, bytes, n);
    s->len += n;
}

enum gr_status gr_stream_write(struct gr_stream *s, const char *bytes, size_t n)
{
    pthread_mutex_lock(&s->lock);
    const enum gr_status st = let_in(s, n);
    if (st == GR_OK) {
        append(s, bytes, n);
    }
    wake_reader(s);
    pthread_mutex_unlock(&s->lock);
    return st;
}

enum gr_status gr_stream_write_event(struct gr_stream *s, const char *text)
{
    return gr_stream_write_named_event(s, NULL, text);
}

enum gr_status gr_stream_write_named_event(struct gr_stream *s, const char *id, const char *text)
{
    const size_t n = strlen(text), n_id = id != NULL ? strlen(id) : 0;
    char retry[32] = "";
    pthread_mutex_lock(&s->lock);
    const size_t n_retry =
        s->retry_ms > 0 ? (size_t)snprintf(retry, sizeof(retry), "retry: %" PRIu32 "\n", s->retry_ms) : 0;
    const enum gr_status st = let_in(s, n_retry + 4 + n_id + 1 + 6 + n + 2);
    if (st == GR_OK) {
        append(s, retry, n_retry);
        s->retry_ms = 0;
    }
    if (st == GR_OK && id != NULL) {
        append(s, "id: ", 4);
        append(s, id, n_id);
        append(s, "\n", 1);
    }
    if (st == GR_OK) {
        append(s, "data: ", 6);
        append(s, text, n);
        append(s, "\n\n", 2);
    }
    wake_reader(s);
    pthread_mutex_unlock(&s->lock);
    return st;
}

enum gr_status gr_stream_ping(struct gr_stream *s)
{
    pthread_mutex_lock(&s->lock);
    const bool has_events = s->head.type != NULL && strcmp(s->head.type, GR_STREAM_EVENTS) == 0;
    pthread_mutex_unlock(&s->lock);
    return has_events ? gr_stream_write(s, ": ping\n", 7) : GR_OK; /* what it is does not change */
}

void gr_stream_end(struct gr_stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    wake_reader(s);
    pthread_mutex_unlock(&s->lock);
}

static void say_final(struct gr_stream *s, bool is_final)
{
    pthread_mutex_lock(&s->lock);
    s->head.is_final = is_final;
    pthread_mutex_unlock(&s->lock);
}

void gr_stream_fail(struct gr_stream *s, const struct gr_api_error *e)
{
    char *text = gr_api_error_json(e);
    const char *body = text != NULL ? text : "{\"error\":{\"message\":\"out of memory\"}}";
    enum gr_status st;
    if (gr_stream_has_begun(s)) {
        st = gr_stream_write_event(s, body);
    } else {
        say_final(s, e->is_final);
        gr_stream_begin(s, e->http_status, "application/json");
        st = gr_stream_write(s, body, strlen(body));
    }
    (void)st; /* who does not read it need not know */
    gr_stream_end(s);
    free(text);
}

void gr_stream_answer(struct gr_stream *s, char *json)
{
    if (json == NULL) {
        gr_stream_refuse(s, 500, "out of memory");
        return;
    }
    gr_stream_begin(s, 200, "application/json");
    const enum gr_status st = gr_stream_write(s, json, strlen(json));
    (void)st; /* who is gone need not know */
    gr_stream_end(s);
    free(json);
}

void gr_stream_refuse(struct gr_stream *s, int http_status, const char *text)
{
    const struct gr_api_error e = gr_api_error_of(http_status, text);
    gr_stream_fail(s, &e);
}

/* ---- who sends it ---- */

int gr_stream_head(struct gr_stream *s, struct gr_stream_head *out)
{
    pthread_mutex_lock(&s->lock);
    const int http_status = s->http_status;
    *out = s->head;
    pthread_mutex_unlock(&s->lock);
    return http_status;
}

size_t gr_stream_read(struct gr_stream *s, char *to, size_t cap, bool *ended_out, bool *cut_out)
{
    pthread_mutex_lock(&s->lock);
    const size_t n = GR_MIN(cap, s->len - s->at);
    if (n > 0) {
        memcpy(to, s->bytes + s->at, n);
    }
    s->at += n;
    *ended_out = n == 0 && s->ended;
    *cut_out = *ended_out && s->cut;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void gr_stream_wait(struct gr_stream *s, bool for_head)
{
    pthread_mutex_lock(&s->lock);
    s->waits = true;
    s->waits_for_head = for_head;
    wake_reader(s);
    pthread_mutex_unlock(&s->lock);
}

void gr_stream_cut(struct gr_stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->ended = s->cut = true;
    wake_reader(s);
    pthread_mutex_unlock(&s->lock);
}

void gr_stream_leave(struct gr_stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->left = true;
    s->waits = false;
    pthread_mutex_unlock(&s->lock);
}

bool gr_stream_is_left(struct gr_stream *s)
{
    pthread_mutex_lock(&s->lock);
    const bool left = s->left || s->cut;
    pthread_mutex_unlock(&s->lock);
    return left;
}
