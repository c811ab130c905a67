#include "bench/serve/client.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#define URL_MAX 2048
#define HEADER_MAX 1024
#define BATCH 64              /* sockets that are handled in a turn */
#define GET_TIMEOUT_MS 10000l /* of a single request */
#define GET_BYTES_MAX (16u << 20)

struct gr_client {
    struct gr_client_config config;
    struct curl_slist *headers;
    CURLM *multi; /* of all loads: connections of one are used again by the next */
};

/* A request that is on its way; kept for the next one. */
struct slot {
    struct load_run *run;
    CURL *easy;
    struct gr_answer *answer; /* NULL: it is free */
    struct gr_events events;
};

struct load_run {
    const struct gr_load *load;
    const struct gr_client *client;
    struct gr_gaps *gaps;
    CURLM *multi; /* the client's */
    int epoll_fd;
    uint64_t begin_ns, timer_ns; /* UINT64_MAX: libcurl waits for no time */
    struct slot *slot;           /* (load->at_once) */
    int *idle;                   /* numbers of free slots, (n_idle) */
    int n_idle, n_next;          /* the next request */
    bool failed;
};

/* ---- single requests ---- */

static bool add_header(struct gr_client *c, const char *text)
{
    struct curl_slist *more = curl_slist_append(c->headers, text);
    c->headers = more != NULL ? more : c->headers;
    return more != NULL;
}

enum gr_status gr_client_open(const struct gr_client_config *config, struct gr_client **out)
{
    struct gr_client *c = calloc(1, sizeof(*c));
    char bearer[HEADER_MAX];
    *out = NULL;
    if (c == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(c);
        return GR_ENOMEM;
    }
    c->config = *config;
    snprintf(bearer, sizeof(bearer), "Authorization: Bearer %s", config->key != NULL ? config->key : "");
    /* Without an Expect a long body is sent at once, and not after a second. */
    c->multi = curl_multi_init();
    const bool good = c->multi != NULL && add_header(c, "Content-Type: application/json") && add_header(c, "Expect:") &&
                      (config->key == NULL || add_header(c, bearer));
    if (!good) {
        gr_client_close(c);
        return GR_ENOMEM;
    }
    *out = c;
    return GR_OK;
}

void gr_client_close(struct gr_client *c)
{
    if (c != NULL) {
        curl_slist_free_all(c->headers);
        curl_multi_cleanup(c->multi);
        free(c);
        curl_global_cleanup();
    }
}

/* What all requests have. A proxy of the environment would be measured with the endpoint, so none is taken. */
static CURL *make_easy(const struct gr_client *c, const char *path)
{
    char url[URL_MAX];
    CURL *easy = curl_easy_init();
    if (easy == NULL) {
        return NULL;
    }
    snprintf(url, sizeof(url), "%s%s", c->config.base_url, path);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1l);
    if (c->config.authority != NULL) {
        curl_easy_setopt(easy, CURLOPT_CAINFO, c->config.authority);
    }
    return easy;
}

static size_t take_body(char *bytes, size_t size, size_t n, void *ctx)
{
    FILE *out = ctx;
    const bool fits = (size_t)ftell(out) + size * n <= GET_BYTES_MAX;
    return fits ? fwrite(bytes, 1, size * n, out) : 0;
}

static enum gr_status get_into(CURL *easy, const char *path, FILE *out, char why[static GR_ANSWER_SAID_MAX])
{
    long status = 0;
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, out);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, GET_TIMEOUT_MS);
    const CURLcode code = curl_easy_perform(easy);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK) {
        snprintf(why, GR_ANSWER_SAID_MAX, "GET %s: %s", path, curl_easy_strerror(code));
    } else if (status != 200) {
        snprintf(why, GR_ANSWER_SAID_MAX, "GET %s: status %ld", path, status);
    }
    return code == CURLE_OK && status == 200 ? GR_OK : GR_EIO;
}

enum gr_status gr_client_get(struct gr_client *c, const char *path, char **text_out,
                             char why[static GR_ANSWER_SAID_MAX])
{
    size_t size = 0;
    CURL *easy = make_easy(c, path);
    *text_out = NULL;
    FILE *out = open_memstream(text_out, &size);
    enum gr_status st = GR_ENOMEM;
    snprintf(why, GR_ANSWER_SAID_MAX, "out of memory");
    if (easy != NULL && out != NULL) {
        st = get_into(easy, path, out, why);
    }
    if (out != NULL) {
        fclose(out);
    }
    curl_easy_cleanup(easy);
    if (st != GR_OK) {
        free(*text_out);
        *text_out = NULL;
    }
    return st;
}

/* ---- one request of a load ---- */

static void on_event(void *ctx, const char *data, size_t n)
{
    struct slot *s = ctx;
    gr_answer_take(s->answer, data, n, gr_clock_ns(), s->run->gaps);
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *ctx)
{
    struct slot *s = ctx;
    long status = 0;
    curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) {
        gr_answer_take_error(s->answer, bytes, size * n);
        return size * n;
    }
    if (gr_events_feed(&s->events, bytes, size * n, on_event, s) != GR_OK) {
        gr_answer_fail(s->answer, GR_ANSWER_FORM, "an event is too long for this machine's memory, or for %u bytes",
                       GR_EVENT_BYTES_MAX);
        return 0;
    }
    return size * n;
}

static bool make_slot(struct load_run *r, struct slot *s)
{
    s->run = r;
    s->easy = make_easy(r->client, r->load->path);
    if (s->easy == NULL) {
        return false;
    }
    curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
    curl_easy_setopt(s->easy, CURLOPT_TIMEOUT_MS, (long)r->load->timeout_ms);
    return true;
}

static bool send_next(struct load_run *r, struct gr_answer *answer, uint64_t now_ns)
{
    struct slot *s = &r->slot[r->idle[r->n_idle - 1]];
    const int i = r->n_next;
    const char *body = r->load->body[i % r->load->n_body];
    if (s->easy == NULL && !make_slot(r, s)) {
        return false;
    }
    s->answer = &answer[i];
    s->answer->due_ns = r->begin_ns + (uint64_t)(1e9 * r->load->at_s[i]);
    s->answer->sent_ns = now_ns;
    gr_events_rewind(&s->events);
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
    if (curl_multi_add_handle(r->multi, s->easy) != CURLM_OK) {
        return false;
    }
    r->n_idle--;
    r->n_next++;
    return true;
}

static void tell_failure(struct gr_answer *a, CURLcode code)
{
    const bool late = code == CURLE_OPERATION_TIMEDOUT;
    const enum gr_answer_end end = late ? GR_ANSWER_TIMEOUT : a->status == 0 ? GR_ANSWER_CONNECT : GR_ANSWER_CUT;
    gr_answer_fail(a, end, "%s", curl_easy_strerror(code));
}

static void end_request(struct load_run *r, CURL *easy, CURLcode code)
{
    char *private = NULL;
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    struct slot *s = (struct slot *)(void *)private;
    s->answer->status = (int)status;
    if (code != CURLE_OK) {
        tell_failure(s->answer, code);
    }
    gr_answer_finish(s->answer, gr_clock_ns());
    curl_multi_remove_handle(r->multi, easy);
    s->answer = NULL;
    r->idle[r->n_idle++] = (int)(s - r->slot);
}

static void end_requests(struct load_run *r)
{
    int n_left = 0;
    for (CURLMsg *m = curl_multi_info_read(r->multi, &n_left); m != NULL; m = curl_multi_info_read(r->multi, &n_left)) {
        if (m->msg == CURLMSG_DONE) {
            end_request(r, m->easy_handle, m->data.result);
        }
    }
}

/* ---- libcurl's sockets and times ---- */

/* known: whether epoll has it already. */
static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *known)
{
    (void)easy;
    struct load_run *r = ctx;
    struct epoll_event e = {.data.fd = fd,
                            .events = ((what & CURL_POLL_IN) != 0 ? EPOLLIN : 0u) |
                                      ((what & CURL_POLL_OUT) != 0 ? EPOLLOUT : 0u)};
    if (what == CURL_POLL_REMOVE) {
        (void)epoll_ctl(r->epoll_fd, EPOLL_CTL_DEL, fd, NULL); /* a socket that is closed has gone by itself */
        return 0;
    }
    r->failed |= epoll_ctl(r->epoll_fd, known == NULL ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &e) != 0;
    curl_multi_assign(r->multi, fd, r);
    return 0;
}

static int on_timer(CURLM *multi, long wait_ms, void *ctx)
{
    (void)multi;
    struct load_run *r = ctx;
    r->timer_ns = wait_ms < 0 ? UINT64_MAX : gr_clock_ns() + (uint64_t)wait_ms * GR_MS;
    return 0;
}

static void act(struct load_run *r, curl_socket_t fd, int bits)
{
    int n_running = 0;
    r->failed |= curl_multi_socket_action(r->multi, fd, bits, &n_running) != CURLM_OK;
}

static int bits_of(uint32_t events)
{
    return ((events & (EPOLLIN | EPOLLHUP)) != 0 ? CURL_CSELECT_IN : 0) |
           ((events & EPOLLOUT) != 0 ? CURL_CSELECT_OUT : 0) | ((events & EPOLLERR) != 0 ? CURL_CSELECT_ERR : 0);
}

static void wait_until(struct load_run *r, uint64_t wake_ns)
{
    struct epoll_event e[BATCH];
    const uint64_t now_ns = gr_clock_ns();
    const uint64_t at_ns = GR_MIN(wake_ns, r->timer_ns);
    const int wait_ms = at_ns <= now_ns ? 0 : (int)GR_MIN((at_ns - now_ns + GR_MS - 1) / GR_MS, (uint64_t)1000);
    const int n = epoll_wait(r->epoll_fd, e, BATCH, wait_ms);
    r->failed |= n < 0 && errno != EINTR;
    for (int i = 0; i < n; i++) {
        act(r, e[i].data.fd, bits_of(e[i].events));
    }
    if (r->timer_ns <= gr_clock_ns()) {
        r->timer_ns = UINT64_MAX;
        act(r, CURL_SOCKET_TIMEOUT, 0);
    }
    end_requests(r);
}

/* ---- a load ---- */

/* When the next request is to be sent; UINT64_MAX: none is, or too many are on their way. */
static uint64_t next_ns(const struct load_run *r)
{
    if (r->n_next == r->load->n || r->n_idle == 0) {
        return UINT64_MAX;
    }
    return r->begin_ns + (uint64_t)(1e9 * r->load->at_s[r->n_next]);
}

static bool may_send(const struct load_run *r, uint64_t now_ns)
{
    return r->n_next < r->load->n && now_ns - r->begin_ns < r->load->stop_ns;
}

static void send_due(struct load_run *r, struct gr_answer *answer)
{
    for (uint64_t now_ns = gr_clock_ns(); may_send(r, now_ns) && next_ns(r) <= now_ns && !r->failed;
         now_ns = gr_clock_ns()) {
        r->failed = !send_next(r, answer, now_ns);
    }
}

static void run_all(struct load_run *r, struct gr_answer *answer)
{
    r->begin_ns = gr_clock_ns();
    while (!r->failed && (may_send(r, gr_clock_ns()) || r->n_idle < r->load->at_once)) {
        send_due(r, answer);
        wait_until(r, may_send(r, gr_clock_ns()) ? next_ns(r) : UINT64_MAX);
    }
}

/* Each connection is a file. */
static bool allow_files(int n)
{
    struct rlimit l;
    const rlim_t wanted = (rlim_t)n + 64;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0 || l.rlim_cur >= wanted) {
        return true;
    }
    l.rlim_cur = GR_MIN(wanted, l.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &l) != 0 || l.rlim_cur < wanted) {
        log_error("%d requests at once need %llu open files, `ulimit -Hn' allows %llu; lower --max-concurrency", n,
                  (unsigned long long)wanted, (unsigned long long)l.rlim_max);
        return false;
    }
    return true;
}

static bool begin(struct load_run *r)
{
    const int n = r->load->at_once;
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    r->slot = calloc((size_t)n, sizeof(*r->slot));
    r->idle = calloc((size_t)n, sizeof(*r->idle));
    if (r->epoll_fd < 0 || r->slot == NULL || r->idle == NULL) {
        return false;
    }
    while (r->n_idle < n) {
        r->idle[r->n_idle] = n - 1 - r->n_idle;
        r->n_idle++;
    }
    curl_multi_setopt(r->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(r->multi, CURLMOPT_SOCKETDATA, r);
    curl_multi_setopt(r->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(r->multi, CURLMOPT_TIMERDATA, r);
    curl_multi_setopt(r->multi, CURLMOPT_MAXCONNECTS, (long)n);
    return true;
}

static void finish(struct load_run *r)
{
    for (int i = 0; r->slot != NULL && i < r->load->at_once; i++) {
        if (r->slot[i].answer != NULL) {
            curl_multi_remove_handle(r->multi, r->slot[i].easy);
        }
        curl_easy_cleanup(r->slot[i].easy);
        gr_events_finish(&r->slot[i].events);
    }
    curl_multi_setopt(r->multi, CURLMOPT_SOCKETFUNCTION, NULL);
    curl_multi_setopt(r->multi, CURLMOPT_TIMERFUNCTION, NULL);
    if (r->epoll_fd >= 0) {
        close(r->epoll_fd);
    }
    free(r->slot);
    free(r->idle);
}

enum gr_status gr_client_load(struct gr_client *c, const struct gr_load *load, struct gr_answer *answer,
                              struct gr_gaps *gaps, uint64_t *duration_ns_out)
{
    struct load_run r = {
        .load = load, .client = c, .multi = c->multi, .gaps = gaps, .epoll_fd = -1, .timer_ns = UINT64_MAX};
    *duration_ns_out = 0;
    if (!allow_files(load->at_once)) {
        return GR_ELIMIT;
    }
    enum gr_status st = begin(&r) ? GR_OK : GR_ENOMEM;
    if (st == GR_OK) {
        run_all(&r, answer);
        *duration_ns_out = gr_clock_ns() - r.begin_ns;
        st = r.failed ? GR_EIO : GR_OK;
    }
    finish(&r);
    if (st != GR_OK) {
        log_error("the load could not be driven: %s", gr_status_text(st));
    }
    return st;
}
