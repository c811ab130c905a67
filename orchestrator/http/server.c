#include "orchestrator/http/server_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "orchestrator/http/tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READER_THREADS 2
#define LAST_BYTES_S 5 /* for what clients have not read when the endpoint ends */
#define EXCESS_MAX 64  /* connections beyond the limit, which are told so */

/* ---- what is known of the fleet ---- */

void gr_http_tell(struct gr_http *h, const struct gr_http_state *s)
{
    pthread_mutex_lock(&h->lock);
    h->state = *s;
    pthread_mutex_unlock(&h->lock);
}

static uint32_t longest_context(void *ctx, const struct gr_served *model)
{
    const struct gr_http *h = ctx;
    const struct gr_http_state s = gr_http_state_of(ctx);
    const uint32_t n_ctx = s.model[model - h->c.served].n_ctx;
    return n_ctx > 0 ? n_ctx : (uint32_t)model->hf.max_pos;
}

/* ---- who is too slow ---- */

/* The library sees that it has ended, and closes it. */
static bool cut_off(void *ctx, int fd, enum gr_guest_phase phase)
{
    const struct gr_http *h = ctx;
    const bool tells = !h->c.tls && (phase == GR_GUEST_HEAD || phase == GR_GUEST_BODY);
    const bool told = tells && send(fd, h->too_late, strlen(h->too_late), MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
    (void)shutdown(fd, SHUT_RDWR);
    return told;
}

static char *make_too_late(void)
{
    struct gr_api_error e;
    char *text = NULL;
    (void)gr_api_refuse(&e, 408, NULL, "the request was not whole in time (--http-request-timeout)");
    char *body = gr_api_error_json(&e);
    if (body != NULL &&
        asprintf(&text,
                 "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n%s",
                 strlen(body), body) < 0) {
        text = NULL;
    }
    free(body);
    return text;
}

static void run_guests(void *ctx)
{
    gr_guests_run(((struct gr_http *)ctx)->guests, gr_clock_ns());
}

/* ---- start and end ---- */

static enum gr_status start_daemon(struct gr_http *h, int n_connection)
{
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | (h->c.tls ? MHD_USE_TLS : 0u);
    const int listener_fd = h->listener.fd;
    h->listener.fd = -1; /* the daemon's, which closes it when it is stopped, and often where it cannot start */
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, gr_exchange_on_request, h, MHD_OPTION_LISTEN_SOCKET, listener_fd,
                                 MHD_OPTION_NOTIFY_COMPLETED, gr_exchange_on_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
                                 gr_exchange_on_connection, h, MHD_OPTION_URI_LOG_CALLBACK, gr_exchange_on_line, h,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(2 * GR_HTTP_HEAD_MAX),
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)(n_connection + EXCESS_MAX),
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(h->c.idle_ns / GR_S),
                                 MHD_OPTION_HTTPS_CERT_CALLBACK2, gr_tls_retrieve, MHD_OPTION_HTTPS_PRIORITIES,
                                 GR_TLS_PRIORITIES, MHD_OPTION_END); /* the last two: looked at under TLS alone */
    if (h->daemon == NULL) {
        log_error("the endpoint could not be started (libmicrohttpd)");
        return GR_EIO;
    }
    return GR_OK;
}

static enum gr_status start(struct gr_http *h)
{
    static const struct gr_watch_calls calls = {.probe = gr_exchange_probe, .gone = gr_exchange_gone};
    const struct gr_readers_config readers = {.front = h->c.front,
                                              .bodies = &h->bodies,
                                              .served = h->c.served,
                                              .n_served = h->c.n_served,
                                              .n_thread = READER_THREADS,
                                              .base = h->c.base,
                                              .unknown_pass = h->c.unknown_pass,
                                              .n_ctx = longest_context,
                                              .ctx = h};
    GR_TRY(gr_http_reload(h));
    GR_TRY(gr_http_listener_open(h->c.listen, h->keys != NULL || h->c.insecure, &h->listener));
    const int n_connection = gr_http_have_descriptors(h->c.n_connection);
    const struct gr_guests_config guests = {.n_max = n_connection,
                                            .n_max_of_address = h->c.n_of_address,
                                            .request_ns = h->c.request_ns,
                                            .idle_ns = h->c.idle_ns,
                                            .ctx = h,
                                            .cut = cut_off};
    h->door.on_loopback = h->listener.on_loopback;
    h->door.host = h->c.host;
    h->door.n_host = h->c.n_host;
    h->too_late = make_too_late();
    GR_TRY(h->too_late != NULL ? GR_OK : GR_ENOMEM);
    GR_TRY(gr_guests_create(&guests, &h->guests));
    const struct gr_watch_other other = {.fd = gr_guests_fd(h->guests), .ctx = h, .ready = run_guests};
    GR_TRY(gr_watch_create(&calls, &other, &h->watch));
    GR_TRY(gr_readers_create(&readers, &h->readers));
    return start_daemon(h, n_connection);
}

enum gr_status gr_http_create(const struct gr_http_config *c, struct gr_http **out)
{
    struct gr_http *h = calloc(1, sizeof(*h));
    if (h == NULL) {
        log_error("out of memory for the endpoint");
        return GR_ENOMEM;
    }
    h->c = *c;
    h->listener.fd = -1;
    pthread_mutex_init(&h->lock, NULL);
    gr_answering_init(&h->answering);
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
    return h->listener.address;
}

static void use_keys(struct gr_http *h, struct gr_api_keys *keys)
{
    pthread_mutex_lock(&h->lock);
    struct gr_api_keys *last = h->keys;
    h->keys = keys;
    h->door.keys = keys;
    pthread_mutex_unlock(&h->lock);
    gr_api_keys_destroy(last);
}

enum gr_status gr_http_reload(struct gr_http *h)
{
    struct gr_api_keys *keys = NULL;
    if (h->c.api_key_file != NULL) {
        GR_TRY(gr_api_keys_read(h->c.api_key_file, &keys));
    }
    const enum gr_status st = h->c.tls ? gr_tls_load(h->c.tls_cert, h->c.tls_key) : GR_OK;
    if (st != GR_OK) {
        gr_api_keys_destroy(keys);
    } else if (keys != NULL) {
        log_info("API keys that are taken: %d", gr_api_keys_count(keys));
        use_keys(h, keys);
    }
    return st;
}

static void refuse_more(struct gr_http *h)
{
    pthread_mutex_lock(&h->lock);
    h->state.draining = true;
    pthread_mutex_unlock(&h->lock);
    gr_readers_end(h->readers);
}

void gr_http_destroy(struct gr_http *h)
{
    if (h == NULL) {
        return;
    }
    refuse_more(h);
    if (h->daemon != NULL) {
        const int n_left = gr_answering_wait(&h->answering, LAST_BYTES_S);
        if (n_left > 0) {
            log_warn("%d answers are cut off: their clients have not read them within %d s", n_left, LAST_BYTES_S);
        }
        MHD_stop_daemon(h->daemon);
    }
    gr_readers_destroy(h->readers);
    if (h->listener.fd >= 0) {
        close(h->listener.fd);
    }
    gr_watch_destroy(h->watch);
    gr_guests_destroy(h->guests);
    gr_api_keys_destroy(h->keys);
    gr_tls_forget();
    free(h->too_late);
    gr_answering_finish(&h->answering);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
