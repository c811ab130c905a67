#include "orchestrator/http/server.h"

#include "common/base/address.h"
#include "common/base/log.h"
#include "orchestrator/http/pages.h"
#include "orchestrator/http/readers.h"
#include "orchestrator/http/watch.h"
#include "transport/net.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READER_THREADS 2
#define HEADER_BYTES (64u << 10) /* of a request's line and headers */
#define IDLE_S 150u /* a connection that asks nothing for so long is closed: longer than clients' pools keep one */
#define CONNECTION_MAX 4000u
#define BLOCK_BYTES (32u << 10) /* of a response that are copied at once */

struct gr_http {
    struct gr_http_config c;
    int listen_fd;
    char address[64];
    bool on_loopback;
    struct MHD_Daemon *daemon;
    struct gr_readers *readers;
    struct gr_watch *watch;
    pthread_mutex_t lock; /* of state */
    struct gr_http_state state;
};

/* A request, from its first header to its response's last byte. The library's thread alone touches it, but for what the
 * watch calls. */
struct exchange {
    struct gr_http *h;
    struct MHD_Connection *connection;
    const struct gr_page *page; /* NULL: it is refused */
    int fd;
    char *body; /* owned */
    size_t len, cap;
    struct gr_stream *stream;  /* a reference; NULL: not handed on yet */
    struct gr_api_error error; /* of a refusal */
    bool answered, is_http_10;
};

/* ---- what is known of the fleet ---- */

void gr_http_tell(struct gr_http *h, const struct gr_http_state *s)
{
    pthread_mutex_lock(&h->lock);
    h->state = *s;
    pthread_mutex_unlock(&h->lock);
}

static struct gr_http_state state_of(struct gr_http *h)
{
    pthread_mutex_lock(&h->lock);
    const struct gr_http_state s = h->state;
    pthread_mutex_unlock(&h->lock);
    return s;
}

static uint32_t longest_context(void *ctx, const struct gr_served *model)
{
    const struct gr_http_state s = state_of(ctx);
    return s.n_ctx > 0 ? s.n_ctx : (uint32_t)model->hf.max_pos;
}

/* ---- responses ---- */

static void add_headers(const struct exchange *x, struct MHD_Response *r, int http_status, const char *type)
{
    (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (strcmp(type, "text/event-stream") == 0) {
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        (void)MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    if (http_status == 429 || http_status == 503) {
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    }
    if (http_status == 405 && x->page != NULL) {
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, x->page->post ? "POST" : "GET");
    }
}

/* text: malloc, given to the library. */
static enum MHD_Result queue_text(struct exchange *x, int http_status, const char *type, char *text)
{
    struct MHD_Response *r =
        text != NULL ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE) : NULL;
    if (r == NULL) {
        free(text);
        return MHD_NO;
    }
    add_headers(x, r, http_status, type);
    x->answered = true;
    const enum MHD_Result queued = MHD_queue_response(x->connection, (unsigned)http_status, r);
    MHD_destroy_response(r);
    return queued;
}

static enum MHD_Result queue_error(struct exchange *x)
{
    return queue_text(x, x->error.http_status, "application/json", gr_api_error_json(&x->error));
}

/* The next bytes of a response; where none are there the connection sleeps until some are. */
static ssize_t read_stream(void *cls, uint64_t position, char *to, size_t cap)
{
    struct exchange *x = cls;
    bool ended = false, cut = false;
    (void)position;
    const size_t n = gr_stream_read(x->stream, to, cap, &ended, &cut);
    if (n > 0) {
        return (ssize_t)n;
    }
    if (ended) {
        return cut ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    }
    MHD_suspend_connection(x->connection);
    gr_stream_wait(x->stream, false);
    return 0;
}

static enum MHD_Result queue_stream(struct exchange *x, int http_status, const char *type)
{
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, x, NULL);
    if (r == NULL) {
        return MHD_NO;
    }
    add_headers(x, r, http_status, type);
    x->answered = true;
    const enum MHD_Result queued = MHD_queue_response(x->connection, (unsigned)http_status, r);
    MHD_destroy_response(r);
    return queued;
}

/* ---- a request ---- */

static void wake_connection(void *ctx)
{
    MHD_resume_connection(((struct exchange *)ctx)->connection);
}

static enum MHD_Result refuse(struct exchange *x, int http_status, const char *param, const char *text)
{
    const enum gr_status st = gr_api_refuse(&x->error, http_status, param, "%s", text);
    (void)st;
    x->page = http_status == 405 ? x->page : NULL;
    return MHD_YES;
}

static const char *header(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* A page of another origin may make a browser ask us: by a name of its own that leads here, or with a body that needs
 * no leave. */
static enum MHD_Result check_browser(struct exchange *x)
{
    const char *host = header(x, MHD_HTTP_HEADER_HOST);
    const char *type = header(x, MHD_HTTP_HEADER_CONTENT_TYPE);
    if (x->h->on_loopback && host != NULL && !gr_host_is_loopback(host)) {
        return refuse(x, 403, NULL, "this endpoint is on loopback, and is asked by another name");
    }
    if (x->page->post && (type == NULL || strncasecmp(type, "application/json", 16) != 0)) {
        return refuse(x, 415, NULL, "the body must be application/json");
    }
    return MHD_YES;
}

static enum MHD_Result check_size(struct exchange *x)
{
    const char *length = header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    char text[96];
    if (length == NULL || strtoull(length, NULL, 10) <= GR_HTTP_BODY_MAX) {
        return MHD_YES;
    }
    snprintf(text, sizeof(text), "the body has %.20s bytes; at most %u are taken", length, GR_HTTP_BODY_MAX);
    return refuse(x, 413, NULL, text);
}

static enum MHD_Result check(struct exchange *x, const char *path, const char *method)
{
    char text[200];
    x->page = gr_page_find(path);
    if (x->page == NULL) {
        snprintf(text, sizeof(text), "there is nothing at %.120s", path);
        return refuse(x, 404, NULL, text);
    }
    if (strcmp(method, x->page->post ? "POST" : "GET") != 0 && !(strcmp(method, "HEAD") == 0 && !x->page->post)) {
        snprintf(text, sizeof(text), "%.120s takes %s", path, x->page->post ? "POST" : "GET");
        return refuse(x, 405, NULL, text);
    }
    GR_ASSERT(x->error.http_status == 0);
    (void)check_browser(x);
    return x->error.http_status == 0 ? check_size(x) : MHD_YES;
}

static struct exchange *begin(struct gr_http *h, struct MHD_Connection *c, const char *path, const char *method,
                              const char *version)
{
    struct exchange *x = calloc(1, sizeof(*x));
    if (x == NULL) {
        return NULL;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    x->h = h;
    x->connection = c;
    x->fd = info != NULL ? info->connect_fd : -1;
    x->is_http_10 = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
    (void)check(x, path, method);
    return x;
}

static enum MHD_Result take_body(struct exchange *x, const char *data, size_t n)
{
    if (x->error.http_status != 0) {
        return MHD_YES; /* it is read, and not looked at */
    }
    if (x->len + n > GR_HTTP_BODY_MAX) {
        return refuse(x, 413, NULL, "the body is larger than the limit of 32 MiB");
    }
    if (x->len + n > x->cap) {
        const size_t cap = 2 * (x->len + n);
        char *body = realloc(x->body, cap);
        if (body == NULL) {
            return refuse(x, 500, NULL, "out of memory");
        }
        x->body = body;
        x->cap = cap;
    }
    memcpy(x->body + x->len, data, n);
    x->len += n;
    return MHD_YES;
}

/* The whole request is there, and to be answered by others: the connection sleeps until they have begun. */
static enum MHD_Result hand_on(struct exchange *x)
{
    struct gr_http *h = x->h;
    if (state_of(h).draining) {
        (void)refuse(x, 503, NULL, "the orchestrator is shutting down; it takes no more requests");
        return queue_error(x);
    }
    if (gr_stream_create(wake_connection, x, &x->stream) != GR_OK) {
        return MHD_NO;
    }
    if (gr_watch_add(h->watch, x->fd, x) != GR_OK) {
        x->fd = -1;
    }
    MHD_suspend_connection(x->connection);
    gr_readers_post(h->readers, x->page->read, x->body, x->len, x->stream);
    x->body = NULL;
    gr_stream_wait(x->stream, true);
    return MHD_YES;
}

static enum MHD_Result answer_from_stream(struct exchange *x)
{
    const char *type = NULL;
    const int http_status = gr_stream_head(x->stream, &type);
    if (http_status == 0) { /* its client is gone */
        return MHD_NO;
    }
    return queue_stream(x, http_status, type);
}

static enum MHD_Result answer_at_once(struct exchange *x)
{
    const struct gr_http_state s = state_of(x->h);
    const struct gr_page_fleet fleet = {.state = &s, .served = x->h->c.served, .n_served = x->h->c.n_served};
    const char *type = "application/json";
    int http_status = 200;
    char *text = x->page->make(&fleet, &http_status, &type);
    return queue_text(x, http_status, type, text);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *path, const char *method,
                                  const char *version, const char *data, size_t *n_data, void **kept)
{
    struct exchange *x = *kept;
    if (x == NULL) {
        x = begin(cls, c, path, method, version);
        *kept = x;
        return x == NULL ? MHD_NO : x->error.http_status == 413 ? queue_error(x) : MHD_YES;
    }
    if (*n_data > 0) {
        const enum MHD_Result taken = take_body(x, data, *n_data);
        *n_data = 0;
        return taken;
    }
    if (x->answered) {
        return MHD_YES;
    }
    if (x->error.http_status != 0) {
        return queue_error(x);
    }
    if (x->stream != NULL) {
        return answer_from_stream(x);
    }
    return x->page->post ? hand_on(x) : answer_at_once(x);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **kept, enum MHD_RequestTerminationCode code)
{
    struct exchange *x = *kept;
    (void)cls, (void)c, (void)code;
    if (x == NULL) {
        return;
    }
    if (x->stream != NULL) {
        gr_watch_remove(x->h->watch, x->fd);
        gr_stream_leave(x->stream);
        gr_front_post_gone(x->h->c.front);
        gr_stream_drop(x->stream);
    }
    free(x->body);
    free(x);
    *kept = NULL;
}

/* ---- clients that go away ---- */

/* Something that no client minds: a comment of a stream, or the word to go on sending, which says nothing else. */
static void probe(void *who)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct exchange *x = who;
    if (gr_stream_has_begun(x->stream)) {
        const enum gr_status st = gr_stream_write(x->stream, ": ping\n", 7);
        (void)st;
    } else if (!x->is_http_10) {
        const ssize_t n = send(x->fd, go_on, sizeof(go_on) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)n;
    }
}

static void gone(void *who)
{
    struct exchange *x = who;
    gr_stream_cut(x->stream);
    gr_front_post_gone(x->h->c.front);
}

/* ---- start and end ---- */

static enum gr_status listen_at(struct gr_http *h)
{
    struct gr_address a;
    GR_TRY(gr_address_parse("--http", h->c.listen, 0, &a));
    if (gr_tcp_listen(h->c.listen, &h->listen_fd, h->address) != GR_OK) {
        log_error("--http %s: the endpoint cannot listen there; give another address, or --http off", h->c.listen);
        return GR_EIO;
    }
    h->on_loopback = gr_host_is_loopback(h->address);
    return GR_OK;
}

static enum gr_status start_daemon(struct gr_http *h)
{
    h->daemon =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, h,
                         MHD_OPTION_LISTEN_SOCKET, h->listen_fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(2 * HEADER_BYTES), MHD_OPTION_CONNECTION_LIMIT,
                         CONNECTION_MAX, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_END);
    if (h->daemon == NULL) {
        log_error("the endpoint could not be started (libmicrohttpd)");
        return GR_EIO;
    }
    return GR_OK;
}

static enum gr_status start(struct gr_http *h)
{
    static const struct gr_watch_calls calls = {.probe = probe, .gone = gone};
    const struct gr_readers_config readers = {.front = h->c.front,
                                              .served = h->c.served,
                                              .n_served = h->c.n_served,
                                              .n_thread = READER_THREADS,
                                              .base = h->c.base,
                                              .unknown_pass = h->c.unknown_pass,
                                              .n_ctx = longest_context,
                                              .ctx = h};
    GR_TRY(listen_at(h));
    GR_TRY(gr_watch_create(&calls, &h->watch));
    GR_TRY(gr_readers_create(&readers, &h->readers));
    return start_daemon(h);
}

enum gr_status gr_http_create(const struct gr_http_config *c, struct gr_http **out)
{
    struct gr_http *h = calloc(1, sizeof(*h));
    if (h == NULL) {
        log_error("out of memory for the endpoint");
        return GR_ENOMEM;
    }
    h->c = *c;
    h->listen_fd = -1;
    pthread_mutex_init(&h->lock, NULL);
    const enum gr_status st = start(h);
    if (st != GR_OK) {
        gr_http_destroy(h);
        return st;
    }
    *out = h;
    return GR_OK;
}

const char *gr_http_address(const struct gr_http *h)
{
    return h->address;
}

void gr_http_quiesce(struct gr_http *h)
{
    if (h->listen_fd >= 0) {
        (void)MHD_quiesce_daemon(h->daemon);
        close(h->listen_fd);
        h->listen_fd = -1;
    }
}

void gr_http_destroy(struct gr_http *h)
{
    if (h == NULL) {
        return;
    }
    gr_readers_destroy(h->readers);
    if (h->daemon != NULL) {
        gr_http_quiesce(h);
        MHD_stop_daemon(h->daemon);
    }
    if (h->listen_fd >= 0) {
        close(h->listen_fd);
    }
    gr_watch_destroy(h->watch);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
