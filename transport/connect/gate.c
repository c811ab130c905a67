#include "transport/connect/gate.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/connect/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Seats beside the strangers': for key-holders whose transport is being opened or who wait to be taken, and for threads
 * of those who were dropped. */
#define N_SEAT (GR_STRANGER_MAX + 32)
#define ACCEPT_BATCH 16 /* connections that are accepted before the loop's other work has its turn */
/* Lines about strangers in TOLD_NS; more are counted and told as a number. */
#define TOLD_MAX 8
#define TOLD_NS (10 * GR_S)

enum seat_state {
    SEAT_FREE,
    SEAT_STRANGER,
    SEAT_DROPPED, /* the socket is shut down, the thread is about to see it */
    SEAT_PROVEN,
    SEAT_ARRIVED, /* no thread any more */
};

/* An address that strangers come from: an IPv4 address, or an IPv6 network of 64 bits. */
struct source {
    uint8_t bytes[8];
};

struct seat {
    struct gr_gate *gate;
    enum seat_state state;
    uint64_t begin_ns;
    struct source from;
    char host[48];             /* as text */
    struct gr_arrival arrival; /* fd: from the beginning */
};

struct gr_gate {
    struct gr_gate_config config;
    struct gr_listener listener;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t ended;
    int n_thread, n_busy, n_arrived; /* n_busy: seats that are not free; mostly 0, and then nothing is looked through */
    uint32_t n_opened;               /* transports; a connection's generation */
    struct seat seat[N_SEAT];
    uint64_t told_until_ns;
    uint32_t n_told, n_untold, n_dropped;
};

static void wake(const struct gr_gate *g)
{
    const uint64_t one = 1;
    ssize_t n = write(g->config.wake_fd, &one, sizeof(one));
    (void)n;
}

/* ---- what is told of strangers; under the lock ---- */

static void tell_counts(struct gr_gate *g)
{
    if (g->n_untold > 0) {
        log_warn("%u more connections ended before they had proven the shared key", g->n_untold);
    }
    if (g->n_dropped > 0) {
        log_warn("%u connections that had not proven the shared key were dropped for newer ones; %d may be at it",
                 g->n_dropped, GR_STRANGER_MAX);
    }
    g->n_untold = g->n_dropped = 0;
}

/* line: what a hand-shake would have logged; empty: it was dropped, or has told itself. */
static void tell(struct gr_gate *g, enum gr_log_level level, const char *line, const char *host)
{
    const uint64_t now_ns = gr_clock_ns();
    if (now_ns >= g->told_until_ns) {
        tell_counts(g);
        g->n_told = 0;
        g->told_until_ns = now_ns + TOLD_NS;
    }
    if (line[0] == '\0') {
        return;
    }
    if (g->n_told < TOLD_MAX) {
        g->n_told++;
        gr_log_line(level, "%s (a connection from %s)", line, host);
    } else {
        g->n_untold++;
    }
}

/* ---- a hand-shake; its thread ---- */

static enum gr_status greet(struct seat *s, int fd, struct gr_hello *own, char line[256])
{
    const struct gr_gate_config *c = &s->gate->config;
    gr_log_hold(line, 256);
    const struct gr_bootstrap_options o = {
        .forced = c->opens ? c->forced : -1, .timeout_ms = c->timeout_ms, .key = c->key};
    const enum gr_status st = gr_bootstrap_greet(fd, c->self, &o, own, &s->arrival.peer);
    gr_log_hold(NULL, 0);
    return st;
}

/* False: it was dropped in its last moment. */
static bool prove(struct seat *s, uint32_t *generation_out)
{
    struct gr_gate *g = s->gate;
    pthread_mutex_lock(&g->lock);
    const bool in = s->state == SEAT_STRANGER;
    s->state = in ? SEAT_PROVEN : s->state;
    *generation_out = ++g->n_opened;
    pthread_mutex_unlock(&g->lock);
    return in;
}

static void leave(struct seat *s, bool passed, struct gr_conn *conn, enum gr_log_level level, const char *line)
{
    struct gr_gate *g = s->gate;
    pthread_mutex_lock(&g->lock);
    if (passed) {
        s->state = SEAT_ARRIVED;
        g->n_arrived++;
        s->arrival.conn = conn;
        s->arrival.fd = conn != NULL ? -1 : s->arrival.fd;
    } else {
        tell(g, level, s->state == SEAT_DROPPED ? "" : line, s->host);
        close(s->arrival.fd);
        s->state = SEAT_FREE;
        g->n_busy--;
    }
    g->n_thread--;
    wake(g);
    pthread_cond_broadcast(&g->ended);
    pthread_mutex_unlock(&g->lock);
}

static void *run(void *arg)
{
    struct seat *s = arg;
    const struct gr_gate_config *c = &s->gate->config;
    const int fd = s->arrival.fd;
    struct gr_hello own;
    struct gr_conn *conn = NULL;
    char line[256] = "";
    uint32_t generation = 0;
    const enum gr_status st = greet(s, fd, &own, line);
    bool passed = st == GR_OK && prove(s, &generation);
    if (passed && c->opens) {
        const struct gr_bootstrap_options o = {
            .forced = c->forced, .generation = generation, .timeout_ms = c->timeout_ms};
        passed = gr_bootstrap_open(fd, &own, &s->arrival.peer, &o, &conn) == GR_OK;
        line[0] = '\0'; /* it has told what was wrong */
    }
    /* A browser or a probe at the wrong port is nobody's attack and no fault of graft. */
    leave(s, passed, conn, st == GR_EUNSUPPORTED ? GR_LOG_WARN : GR_LOG_ERROR, line);
    return NULL;
}

/* ---- who is let in, who is dropped ---- */

static void note_source(struct seat *s)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    snprintf(s->host, sizeof(s->host), "an unknown address");
    if (getpeername(s->arrival.fd, (struct sockaddr *)&sa, &len) != 0) {
        return; /* it is gone again */
    }
    if (sa.ss_family == AF_INET) {
        memcpy(s->from.bytes, &((struct sockaddr_in *)&sa)->sin_addr, 4);
    } else if (sa.ss_family == AF_INET6) {
        memcpy(s->from.bytes, &((struct sockaddr_in6 *)&sa)->sin6_addr, sizeof(s->from.bytes));
    }
    (void)getnameinfo((struct sockaddr *)&sa, len, s->host, sizeof(s->host), NULL, 0, NI_NUMERICHOST);
}

static bool is_old(const struct seat *s, uint64_t now_ns)
{
    return s->state == SEAT_STRANGER && now_ns - s->begin_ns >= GR_STRANGER_AGE_MS * GR_MS;
}

static int count_from(const struct gr_gate *g, const struct source *from)
{
    int n = 0;
    for (int i = 0; i < N_SEAT; i++) {
        const struct seat *s = &g->seat[i];
        n += s->state == SEAT_STRANGER && memcmp(&s->from, from, sizeof(*from)) == 0;
    }
    return n;
}

/* The oldest of the address that has the most; NULL: all are young. */
static struct seat *find_victim(struct gr_gate *g, uint64_t now_ns)
{
    struct seat *victim = NULL;
    int n_most = 0;
    for (int i = 0; i < N_SEAT; i++) {
        struct seat *s = &g->seat[i];
        if (!is_old(s, now_ns)) {
            continue;
        }
        const int n = count_from(g, &s->from);
        if (n > n_most || (n == n_most && s->begin_ns < victim->begin_ns)) {
            victim = s;
            n_most = n;
        }
    }
    return victim;
}

struct crowd {
    struct seat *free; /* NULL: none */
    int n_stranger;
    uint64_t oldest_ns; /* when the oldest stranger came; UINT64_MAX: there is none */
};

static struct crowd look_around(struct gr_gate *g)
{
    struct crowd c = {.oldest_ns = UINT64_MAX, .free = &g->seat[0]};
    if (g->n_busy == 0) {
        return c;
    }
    c.free = NULL;
    for (int i = 0; i < N_SEAT; i++) {
        struct seat *s = &g->seat[i];
        if (s->state == SEAT_FREE) {
            c.free = s;
        } else if (s->state == SEAT_STRANGER) {
            c.n_stranger++;
            c.oldest_ns = GR_MIN(c.oldest_ns, s->begin_ns);
        }
    }
    return c;
}

/* When one more may be accepted; UINT64_MAX: when a hand-shake has ended, which wakes the loop. */
static uint64_t open_at_ns(const struct crowd *c)
{
    return c->free == NULL                   ? UINT64_MAX
           : c->n_stranger < GR_STRANGER_MAX ? 0
                                             : c->oldest_ns + GR_STRANGER_AGE_MS * GR_MS;
}

static void drop_for_newcomer(struct gr_gate *g, uint64_t now_ns)
{
    struct seat *victim = find_victim(g, now_ns);
    if (victim != NULL) {
        victim->state = SEAT_DROPPED;
        shutdown(victim->arrival.fd, SHUT_RDWR);
        g->n_dropped++;
        tell(g, GR_LOG_ERROR, "", victim->host);
    }
}

static enum gr_status seat_newcomer(struct gr_gate *g, struct seat *s, int fd, uint64_t now_ns)
{
    pthread_t thread;
    *s = (struct seat){.gate = g, .state = SEAT_STRANGER, .begin_ns = now_ns, .arrival.fd = fd};
    note_source(s);
    const int error = pthread_create(&thread, NULL, run, s);
    if (error != 0) {
        log_error("cannot start a thread for a hand-shake: %s", strerror(error));
        s->state = SEAT_FREE;
        return GR_ENOMEM;
    }
    pthread_detach(thread);
    g->n_thread++;
    g->n_busy++;
    return GR_OK;
}

static bool accept_one(struct gr_gate *g, uint64_t now_ns)
{
    int fd = -1;
    const struct crowd c = look_around(g);
    if (now_ns < open_at_ns(&c) || gr_listener_accept(&g->listener, now_ns, &fd) != GR_OK) {
        return false;
    }
    if (c.n_stranger >= GR_STRANGER_MAX) {
        drop_for_newcomer(g, now_ns);
    }
    if (seat_newcomer(g, c.free, fd, now_ns) != GR_OK) {
        close(fd);
        return false;
    }
    return true;
}

void gr_gate_accept(struct gr_gate *g, uint64_t now_ns)
{
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < ACCEPT_BATCH && accept_one(g, now_ns); i++) {
    }
    pthread_mutex_unlock(&g->lock);
}

bool gr_gate_take(struct gr_gate *g, struct gr_arrival *out)
{
    bool taken = false;
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < N_SEAT && g->n_arrived > 0 && !taken; i++) {
        struct seat *s = &g->seat[i];
        if (s->state == SEAT_ARRIVED) {
            *out = s->arrival;
            sodium_memzero(&s->arrival.peer.keys, sizeof(s->arrival.peer.keys));
            s->state = SEAT_FREE;
            g->n_arrived--;
            g->n_busy--;
            taken = true;
        }
    }
    pthread_mutex_unlock(&g->lock);
    return taken;
}

static uint64_t next_open_ns(struct gr_gate *g)
{
    pthread_mutex_lock(&g->lock);
    const struct crowd c = look_around(g);
    pthread_mutex_unlock(&g->lock);
    return open_at_ns(&c);
}

int gr_gate_poll_fd(struct gr_gate *g, uint64_t now_ns)
{
    return now_ns >= next_open_ns(g) ? gr_listener_poll_fd(&g->listener, now_ns) : -1;
}

uint64_t gr_gate_wake_ns(struct gr_gate *g, uint64_t now_ns)
{
    const uint64_t open_ns = next_open_ns(g), pause_ns = gr_listener_wake_ns(&g->listener, now_ns);
    return open_ns > now_ns ? GR_MIN(open_ns, pause_ns) : pause_ns;
}

/* ---- life ---- */

enum gr_status gr_gate_create(const struct gr_gate_config *config, struct gr_gate **out)
{
    struct gr_gate *g = calloc(1, sizeof(*g));
    enum gr_status st = g != NULL ? GR_OK : GR_ENOMEM;
    if (st != GR_OK) {
        log_error("out of memory for a gate");
    } else {
        g->config = *config;
        st = gr_listener_open(&g->listener, &g->config.at);
    }
    if (st != GR_OK) {
        struct gr_listening at = config->at;
        gr_listening_close(&at);
        free(g);
        return st;
    }
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->ended, NULL);
    *out = g;
    return GR_OK;
}

void gr_gate_destroy(struct gr_gate *g)
{
    if (g == NULL) {
        return;
    }
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < N_SEAT; i++) {
        struct seat *s = &g->seat[i];
        if (s->state == SEAT_STRANGER || s->state == SEAT_PROVEN) {
            shutdown(s->arrival.fd, SHUT_RDWR);
            s->state = s->state == SEAT_STRANGER ? SEAT_DROPPED : s->state;
        }
    }
    while (g->n_thread > 0) { /* each is about to see the end of its socket */
        pthread_cond_wait(&g->ended, &g->lock);
    }
    tell_counts(g);
    pthread_mutex_unlock(&g->lock);
    struct gr_arrival a;
    while (gr_gate_take(g, &a)) {
        gr_conn_close(a.conn);
        if (a.fd >= 0) {
            close(a.fd);
        }
    }
    gr_listener_close(&g->listener);
    pthread_cond_destroy(&g->ended);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
