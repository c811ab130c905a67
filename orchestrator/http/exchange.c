/* A request and its response. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/http/event_id.h"
#include "orchestrator/http/pages.h"
#include "orchestrator/http/server_internal.h"
#include "orchestrator/http/tls.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BLOCK_BYTES (32u << 10) /* of a response that are copied at once */
#define READER_S 150            /* so long who is answered may take nothing, however soon idle connections are closed */

/* A request, from its first header to its response's last byte. The library's thread alone touches it, but for what the
 * watch calls. */
struct exchange {
    struct gr_http *h;
    struct MHD_Connection *connection;
    struct gr_guest *guest; /* its connection */
    struct gr_admission admission;
    int fd;
    struct gr_body body;
    size_t n_read;            /* of the body: all that has come */
    struct gr_stream *stream; /* a reference; NULL: not handed on yet */
    struct gr_request_names names;
    const char *path;           /* borrowed for the call */
    const struct gr_page *page; /* at its path; NULL: none is */
    int http_status;            /* that was sent; 0: none yet */
    bool answered, is_whole, is_http_10, is_last;
};

/* ---- responses ---- */

/* Its type is empty where there is no body. */
static void add_headers(const struct exchange *x, struct MHD_Response *r, int http_status,
                        const struct gr_stream_head *head)
{
    if (head->type[0] != '\0') {
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, head->type);
    }
    (void)MHD_add_response_header(r, "X-Request-Id", x->names.request_id);
    (void)MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    const struct gr_page_header *h = x->page != NULL ? x->page->header : NULL;
    for (; h != NULL && h->name != NULL; h++) {
        (void)MHD_add_response_header(r, h->name, h->value);
    }
    if (head->session != 0) {
        char name[GR_SESSION_ID_DIGITS + 1];
        gr_session_id_spell(head->session, name);
        (void)MHD_add_response_header(r, "X-Graft-Session", name);
    }
    if (head->is_final) { /* as OpenAI's own clients have it, which send again what was answered with 408, 429 or 5xx */
        (void)MHD_add_response_header(r, "X-Should-Retry", "false");
    }
    if (strcmp(head->type, GR_STREAM_EVENTS) == 0) {
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        (void)MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    if ((http_status == 429 || http_status == 503) && !head->is_final) {
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    }
    if (http_status == 405) {
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, x->page->post ? "POST" : "GET");
    }
    if (http_status == 401) {
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    }
    if (x->is_last) {
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    }
}

/* r is given away. */
static enum MHD_Result queue_response(struct exchange *x, int http_status, const struct gr_stream_head *head,
                                      struct MHD_Response *r)
{
    add_headers(x, r, http_status, head);
    x->answered = true;
    x->http_status = http_status;
    const enum MHD_Result queued = MHD_queue_response(x->connection, (unsigned)http_status, r);
    MHD_destroy_response(r);
    return queued;
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
    return queue_response(x, http_status, &(struct gr_stream_head){.type = type}, r);
}

static enum MHD_Result queue_error(struct exchange *x)
{
    const struct gr_api_error *e = &x->admission.error;
    return queue_text(x, e->http_status, "application/json", gr_api_error_json(e));
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

static enum MHD_Result queue_stream(struct exchange *x, int http_status, const struct gr_stream_head *head)
{
    struct MHD_Response *r =
        http_status == 204 ? MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT)
                           : MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, x, NULL);
    if (r == NULL) {
        return MHD_NO;
    }
    return queue_response(x, http_status, head, r);
}

/* ---- a request ---- */

static void wake_connection(void *ctx)
{
    MHD_resume_connection(((struct exchange *)ctx)->connection);
}

static enum MHD_Result refuse(struct exchange *x, int http_status, const char *text)
{
    const enum gr_status st = gr_api_refuse(&x->admission.error, http_status, NULL, "%s", text);
    (void)st;
    return MHD_YES;
}

/* Stands for a request whose path has a NUL, until its headers are there: the library hands on the path up to it. */
static struct exchange nul_in_path;

static void take_length(struct gr_visit *v, const char *value)
{
    v->lengths_differ = v->lengths_differ || (v->length != NULL && strcmp(v->length, value) != 0);
    v->length = value;
}

static void take_transfer(struct gr_visit *v, const char *value)
{
    v->is_chunked = true;
    if (strcasecmp(value, "chunked") != 0) {
        v->transfer = value;
    }
}

/* What its headers say, counted and kept as they come by. */
static enum MHD_Result take_header(void *cls, enum MHD_ValueKind kind, const char *name, size_t name_len,
                                   const char *value, size_t value_len)
{
    struct gr_visit *v = cls;
    (void)kind;
    v->head_bytes += name_len + value_len;
    v->odd_name = v->odd_name || gr_header_is_odd(name);
    if (strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0) {
        v->host = value == NULL ? "" : strlen(value) == value_len ? value : "?"; /* it has a NUL */
        v->n_host++;
    } else if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_TYPE) == 0) {
        v->type = value;
    } else if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_ENCODING) == 0) {
        v->coding = value;
    } else if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0) {
        take_length(v, value != NULL ? value : "");
    } else if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0) {
        take_transfer(v, value != NULL ? value : "");
    } else if (strcasecmp(name, MHD_HTTP_HEADER_AUTHORIZATION) == 0) {
        v->authorization = value;
        v->n_authorization++;
    } else if (strcasecmp(name, "X-Request-Id") == 0) {
        v->request_id = value;
        v->n_request_id++;
    } else if (strcasecmp(name, "traceparent") == 0) {
        v->trace_parent = value;
        v->n_trace_parent++;
    }
    return MHD_YES;
}

/* A header that comes twice is as good as none. Without a name of its client's a request gets one. */
static void name_request(struct exchange *x, const struct gr_visit *v)
{
    struct gr_request_names *n = &x->names;
    if (v->n_request_id == 1 && v->request_id != NULL && gr_request_id_is_good(v->request_id)) {
        snprintf(n->request_id, sizeof(n->request_id), "%s", v->request_id);
    } else {
        uint64_t id;
        randombytes_buf(&id, sizeof(id));
        snprintf(n->request_id, sizeof(n->request_id), "%016" PRIx64, id);
    }
    if (v->n_trace_parent == 1 && v->trace_parent != NULL) {
        (void)gr_trace_parent_read(v->trace_parent, n->trace_id);
    }
}

static void check(struct exchange *x, const char *path, const char *method, bool nul)
{
    struct gr_http *h = x->h;
    struct gr_visit v = {.page = gr_page_find(path),
                         .path = path,
                         .method = method,
                         .needs_host = !x->is_http_10,
                         .nul_in_path = nul,
                         .excess = gr_guests_excess(h->guests, x->guest)};
    (void)MHD_get_connection_values_n(x->connection, MHD_HEADER_KIND, take_header, &v);
    name_request(x, &v);
    pthread_mutex_lock(&h->lock);
    gr_door_ask(&h->door, &v, &x->admission);
    pthread_mutex_unlock(&h->lock);
    x->page = v.page;
    x->is_last = v.excess != GR_GUEST_FITS || x->admission.ends;
}

static bool enter(struct exchange *x, enum gr_guest_phase phase)
{
    return gr_guests_enter(x->h->guests, x->guest, phase, gr_clock_ns());
}

static struct gr_guest *guest_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

static struct exchange *begin(struct gr_http *h, struct MHD_Connection *c, const char *path, const char *method,
                              const char *version, bool nul)
{
    struct gr_guest *guest = guest_of(c);
    struct exchange *x = guest != NULL ? calloc(1, sizeof(*x)) : NULL;
    if (x == NULL) {
        return NULL;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    x->h = h;
    x->connection = c;
    x->guest = guest;
    x->fd = info != NULL ? info->connect_fd : -1;
    x->is_http_10 = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
    check(x, path, method, nul);
    return x;
}

/* Its length was not announced, so that it has come. What there is of it is let go at once: its sender may take his
 * time with the rest. */
static enum MHD_Result refuse_long_body(struct exchange *x)
{
    gr_body_drop(&x->h->bodies, &x->body);
    char text[96];
    snprintf(text, sizeof(text), "the body is larger than the limit of %u MiB", (unsigned)(GR_HTTP_BODY_MAX >> 20));
    return refuse(x, 413, text);
}

static enum MHD_Result take_body(struct exchange *x, const char *data, size_t n)
{
    gr_guests_took(x->h->guests, x->guest, n);
    x->n_read += n;
    if (x->admission.error.http_status != 0) { /* it is read, and not looked at */
        return x->n_read > 2 * GR_HTTP_BODY_MAX ? MHD_NO : MHD_YES;
    }
    if (x->n_read > GR_HTTP_BODY_MAX) {
        return refuse_long_body(x);
    }
    const enum gr_status st = gr_body_add(&x->h->bodies, &x->body, data, n);
    if (st == GR_ELIMIT) {
        return refuse(x, 503,
                      "the bodies of all requests that are coming in are as large as they may be: try again "
                      "later");
    }
    return st == GR_OK ? MHD_YES : refuse(x, 500, "out of memory");
}

/* The value in a header, or in the query. NULL: there is none. One with a NUL in it becomes "?", which nobody asks for.
 */
static const char *value_of(const struct exchange *x, enum MHD_ValueKind kind, const char *name)
{
    const char *value = NULL;
    size_t n = 0;
    if (MHD_lookup_connection_value_n(x->connection, kind, name, strlen(name), &value, &n) != MHD_YES) {
        return NULL;
    }
    return value == NULL ? "" : strlen(value) == n ? value : "?";
}

/* The header's value, and where it has none the query's. */
static const char *said(const struct exchange *x, const char *header, const char *query)
{
    const char *value = header != NULL ? value_of(x, MHD_HEADER_KIND, header) : NULL;
    return value != NULL ? value : value_of(x, MHD_GET_ARGUMENT_KIND, query);
}

static bool wants_event_ids(const struct exchange *x)
{
    const char *value = said(x, "X-Graft-Event-Ids", "event_ids");
    return value != NULL && strcmp(value, "1") == 0;
}

/* The response is another thread's, and the watch looks at its client from now on. */
static enum gr_status begin_stream(struct exchange *x)
{
    GR_TRY(gr_stream_create(wake_connection, x, &x->stream));
    gr_answering_begin(&x->h->answering);
    if (gr_watch_add(x->h->watch, x->fd, x) != GR_OK) {
        log_warn("connection %d of the endpoint cannot be watched: if its client goes away in mid-answer, that is "
                 "noticed when something is sent, and not before",
                 x->fd);
        x->fd = -1;
    }
    return GR_OK;
}

static enum gr_status take_once(struct exchange *x, struct gr_once *out)
{
    const char *key = value_of(x, MHD_HEADER_KIND, "Idempotency-Key");
    if (key != NULL && !gr_once_key_is_good(key)) {
        return gr_api_refuse(&x->admission.error, 400, NULL,
                             "Idempotency-Key has 1 to %d printable characters of ASCII, and this one has others, or "
                             "more of them",
                             GR_ONCE_KEY_MAX);
    }
    if (key != NULL) {
        gr_once_take_key(out, &x->admission.owner, key);
    }
    return GR_OK;
}

/* The whole request is there. */
static enum MHD_Result hand_on(struct exchange *x)
{
    struct gr_http *h = x->h;
    struct gr_once once = {0};
    if (gr_http_state_of(h).draining) {
        (void)refuse(x, 503, "the orchestrator is shutting down; it takes no more requests");
        return queue_error(x);
    }
    if (take_once(x, &once) != GR_OK) {
        return queue_error(x);
    }
    if (begin_stream(x) != GR_OK) {
        return MHD_NO;
    }
    const struct gr_asked asked = {.what = x->page->read,
                                   .body = x->body,
                                   .owner = x->admission.owner,
                                   .names = x->names,
                                   .once = once,
                                   .event_ids = wants_event_ids(x)};
    MHD_suspend_connection(x->connection);
    gr_readers_post(h->readers, &asked, x->stream);
    x->body = (struct gr_body){0};
    gr_stream_wait(x->stream, true);
    return MHD_YES;
}

/* Where a stream is to go on: who connects again by himself says in a header what his URL cannot. */
static enum gr_status read_position(struct exchange *x, struct gr_return *r)
{
    const char *last = said(x, "Last-Event-ID", "last_event_id"), *from = said(x, NULL, "from");
    struct gr_event_id id = {0};
    struct gr_api_error *e = &x->admission.error;
    if (last != NULL && last[0] != '\0') {
        if (!gr_event_id_read(last, &id) || id.session != r->session) {
            return gr_api_refuse(e, 404, NULL, "no event of this session has the id that is given as the last one");
        }
        r->from = id.position;
    } else if (from != NULL && !gr_position_read(from, &r->from)) {
        return gr_api_refuse(e, 400, "from", "from is a number of tokens, and of digits alone");
    }
    return GR_OK;
}

static enum gr_status read_return(struct exchange *x, struct gr_return *r)
{
    r->owner = x->admission.owner;
    r->stops = x->page->back == GR_RETURN_STOP;
    if (!gr_page_session(x->path, &r->session)) {
        return gr_api_refuse(&x->admission.error, 404, NULL, "there is no such session");
    }
    return r->stops ? GR_OK : read_position(x, r);
}

static enum MHD_Result come_back(struct exchange *x)
{
    struct gr_return r = {0};
    if (read_return(x, &r) != GR_OK) {
        return queue_error(x);
    }
    if (begin_stream(x) != GR_OK) {
        return MHD_NO;
    }
    r.stream = x->stream;
    MHD_suspend_connection(x->connection);
    gr_front_post_return(x->h->c.front, &r);
    gr_stream_wait(x->stream, true);
    return MHD_YES;
}

static enum MHD_Result answer_from_stream(struct exchange *x)
{
    struct gr_stream_head head;
    const int http_status = gr_stream_head(x->stream, &head);
    if (http_status == 0) { /* its client is gone */
        return MHD_NO;
    }
    return queue_stream(x, http_status, &head);
}

static enum MHD_Result answer_at_once(struct exchange *x)
{
    const struct gr_http_state s = gr_http_state_of(x->h);
    const struct gr_page_fleet fleet = {.state = &s,
                                        .http = &x->h->counts,
                                        .served = x->h->c.served,
                                        .n_served = x->h->c.n_served,
                                        .now_ns = gr_clock_ns(),
                                        .tls_end_s = x->h->c.tls ? gr_tls_end_s() : 0};
    const char *type = "application/json";
    int http_status = 200;
    char *text = x->page->make(&fleet, &http_status, &type);
    return queue_text(x, http_status, type, text);
}

/* How long nothing may pass on the connection, for the library. Idle ones have what --http-idle-timeout says. */
static void let_rest(const struct exchange *x, bool answered)
{
    const unsigned idle_s = (unsigned)(x->h->c.idle_ns / GR_S);
    if (idle_s < READER_S) {
        (void)MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                                        answered ? (unsigned)READER_S : idle_s);
    }
}

/* Its line and headers are there. Who waits for word before he sends a body is told at once; what others send is read
 * first, since an answer that crosses a body may be lost with its connection. */
static enum MHD_Result on_head(struct exchange *x)
{
    if (!enter(x, GR_GUEST_BODY)) {
        return MHD_NO;
    }
    const int refused = x->admission.error.http_status;
    const bool waits = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT) != NULL;
    return refused == 413 || x->admission.ends || (refused != 0 && waits) ? queue_error(x) : MHD_YES;
}

/* A connection must not be suspended while the library waits for bytes to read: it reads when the connection is
 * resumed, finds that who has shut down his side for writing has nothing to say, and cuts him off. Once it has been
 * told that the request is whole, it waits for nothing. */
static enum MHD_Result on_whole(struct exchange *x)
{
    if (!enter(x, GR_GUEST_ANSWERED)) {
        return MHD_NO;
    }
    let_rest(x, true);
    if (x->admission.error.http_status != 0) {
        return queue_error(x);
    }
    const bool back = x->page->back != GR_RETURN_NONE;
    if (!back && !x->page->post) {
        return answer_at_once(x);
    }
    if (!x->is_whole) { /* it calls again at once */
        x->is_whole = true;
        return MHD_YES;
    }
    return back ? come_back(x) : hand_on(x);
}

/* A proxy's form of a target names the origin, too (RFC 9112, 3.2.2). */
static const char *path_of(const char *target)
{
    const bool is_absolute = strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0;
    const char *path = is_absolute ? strchr(strstr(target, "://") + 3, '/') : target;
    return path != NULL ? path : "/";
}

enum MHD_Result gr_exchange_on_request(void *cls, struct MHD_Connection *c, const char *target, const char *method,
                                       const char *version, const char *data, size_t *n_data, void **kept)
{
    const char *path = path_of(target);
    struct exchange *x = *kept;
    if (x == NULL || x == &nul_in_path) {
        x = begin(cls, c, path, method, version, x != NULL);
        *kept = x;
        return x != NULL ? on_head(x) : MHD_NO;
    }
    x->path = path;
    if (*n_data > 0) {
        const enum MHD_Result taken = take_body(x, data, *n_data);
        *n_data = 0;
        return taken;
    }
    if (x->answered) {
        return MHD_YES;
    }
    return x->stream != NULL ? answer_from_stream(x) : on_whole(x);
}

/* Its client has shut down his side for writing. Where that came together with the request, the library has not been
 * told of it, and would keep the connection until it has been idle for too long. Another event wakes it. */
static void tell_of_end(const struct exchange *x)
{
    char byte;
    if (!x->h->c.tls && recv(x->fd, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) == 0) {
        (void)shutdown(x->fd, SHUT_RD);
    }
}

void gr_exchange_on_completed(void *cls, struct MHD_Connection *c, void **kept, enum MHD_RequestTerminationCode code)
{
    struct exchange *x = *kept;
    if (x == NULL || x == &nul_in_path) { /* it has left, or was cut off, before its headers were whole; or there was no
                                             memory for it */
        struct gr_http *h = cls;
        struct gr_guest *guest = guest_of(c);
        const bool told = guest != NULL && gr_guests_take_told(h->guests, guest);
        gr_http_count(&h->counts, gr_page_number(NULL), told ? 408 : 0);
        return;
    }
    if (x->stream != NULL) {
        gr_watch_remove(x->h->watch, x->fd);
        gr_stream_leave(x->stream);
        gr_front_post_gone(x->h->c.front);
        gr_stream_drop(x->stream);
        gr_answering_end(&x->h->answering);
    }
    if (code == MHD_REQUEST_TERMINATED_COMPLETED_OK) {
        let_rest(x, false);
        tell_of_end(x);
    }
    const bool too_late = gr_guests_take_told(x->h->guests, x->guest); /* which the library knows nothing of */
    const int http_status = x->http_status == 0 && too_late ? 408 : x->http_status;
    gr_http_count(&x->h->counts, gr_page_number(x->page), http_status);
    (void)!enter(x, GR_GUEST_IDLE);
    gr_body_drop(&x->h->bodies, &x->body);
    free(x);
    *kept = NULL;
}

/* ---- clients that go away ---- */

void gr_exchange_gone(void *who)
{
    struct exchange *x = who;
    gr_stream_cut(x->stream);
    gr_front_post_gone(x->h->c.front);
}

/* Something that no client minds: a comment of a stream, or the word to go on sending, which says nothing else. Under
 * TLS nothing can be sent beside the library, and HTTP/1.0 has no such word: who shuts down his side there is gone, as
 * a proxy is whose own client has left. */
void gr_exchange_probe(void *who)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct exchange *x = who;
    const bool has_begun = gr_stream_has_begun(x->stream);
    if (x->h->c.tls || (x->is_http_10 && !has_begun)) {
        gr_exchange_gone(x);
    } else if (has_begun) {
        const enum gr_status st = gr_stream_ping(x->stream);
        (void)st; /* who is gone need not know */
    } else {
        const ssize_t n = send(x->fd, go_on, sizeof(go_on) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)n;
    }
}

/* ---- connections ---- */

void gr_exchange_on_connection(void *cls, struct MHD_Connection *c, void **kept,
                               enum MHD_ConnectionNotificationCode code)
{
    struct gr_http *h = cls;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*kept != NULL && gr_guests_take_told(h->guests, *kept)) { /* before its first line was whole */
            gr_http_count(&h->counts, gr_page_number(NULL), 408);
        }
        gr_guests_remove(h->guests, *kept);
        *kept = NULL;
        return;
    }
    const int fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    const struct sockaddr *from = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
    *kept = gr_guests_add(h->guests, fd, from, gr_clock_ns());
}

/* A request's line is there. */
void *gr_exchange_on_line(void *cls, const char *uri, struct MHD_Connection *c)
{
    struct gr_http *h = cls;
    struct gr_guest *guest = guest_of(c);
    const char *nul = strstr(uri, "%00");
    if (guest != NULL) {
        (void)!gr_guests_enter(h->guests, guest, GR_GUEST_HEAD, gr_clock_ns());
    }
    return nul != NULL && nul < uri + strcspn(uri, "?") ? &nul_in_path : NULL;
}
