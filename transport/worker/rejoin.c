#include "transport/worker/rejoin.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/net.h"
#include "transport/pause.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAUSE_MS_MIN 50u /* between attempts */
#define PAUSE_MS_MAX 2000u

enum attempt { ATTEMPT_NONE, ATTEMPT_RUNS, ATTEMPT_DONE };

struct gr_rejoin {
    struct gr_rejoin_config config;
    uint64_t end_ns, next_ns;
    uint32_t n_pause;
    pthread_mutex_t lock; /* of what follows, which an attempt's thread writes */
    bool abandoned;       /* its owner is gone: the attempt's thread frees it */
    enum attempt attempt;
    enum gr_status status;
    int fd;
    struct gr_hello peer;
    char why[256]; /* of the last attempt that failed */
};

enum gr_status gr_rejoin_create(const struct gr_rejoin_config *config, struct gr_rejoin **out)
{
    struct gr_rejoin *r = calloc(1, sizeof(*r));
    if (r == NULL) {
        log_error("no memory for looking for the orchestrator again");
        return GR_ENOMEM;
    }
    r->config = *config;
    r->fd = -1;
    pthread_mutex_init(&r->lock, NULL);
    *out = r;
    return GR_OK;
}

static void finish(struct gr_rejoin *r)
{
    if (r->fd >= 0) {
        close(r->fd);
    }
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void gr_rejoin_destroy(struct gr_rejoin *r)
{
    if (r == NULL) {
        return;
    }
    pthread_mutex_lock(&r->lock);
    r->abandoned = r->attempt == ATTEMPT_RUNS;
    const bool runs = r->abandoned;
    pthread_mutex_unlock(&r->lock);
    if (!runs) {
        finish(r);
    }
}

static void tell_end(const struct gr_rejoin *r)
{
    const uint64_t one = 1;
    ssize_t n = write(r->config.wake_fd, &one, sizeof(one));
    (void)n;
}

static void *try_once(void *arg)
{
    struct gr_rejoin *r = arg;
    const struct gr_rejoin_config *c = &r->config;
    struct gr_hello peer = {0};
    char why[sizeof(r->why)] = "";
    int fd = -1;
    gr_log_hold(why, sizeof(why)); /* an outage is told once */
    enum gr_status st = gr_tcp_connect(c->address, c->timeout_ms, &fd);
    st = st == GR_OK ? gr_hello_call(fd, &c->hello, c->key, c->timeout_ms, &peer) : st;
    gr_log_hold(NULL, 0);
    if (st != GR_OK && fd >= 0) {
        close(fd);
    }
    pthread_mutex_lock(&r->lock);
    r->attempt = ATTEMPT_DONE;
    r->status = st;
    r->fd = st == GR_OK ? fd : -1;
    r->peer = peer;
    memcpy(r->why, why, sizeof(why));
    const bool abandoned = r->abandoned;
    if (!abandoned) {
        tell_end(r);
    }
    pthread_mutex_unlock(&r->lock);
    if (abandoned) {
        finish(r);
    }
    return NULL;
}

static uint64_t next_pause_ns(struct gr_rejoin *r)
{
    return gr_pause_ms(r->n_pause++, PAUSE_MS_MIN, PAUSE_MS_MAX) * GR_MS;
}

void gr_rejoin_begin(struct gr_rejoin *r, uint64_t now_ns)
{
    const uint64_t patience_ns = r->config.patience_ns;
    r->end_ns = patience_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + patience_ns;
    r->next_ns = now_ns + next_pause_ns(r);
}

void gr_rejoin_stands(struct gr_rejoin *r)
{
    r->n_pause = 0;
}

static void start_attempt(struct gr_rejoin *r, uint64_t now_ns)
{
    pthread_t thread;
    r->attempt = ATTEMPT_RUNS;
    if (pthread_create(&thread, NULL, try_once, r) != 0) { /* the system has no thread to give: later */
        r->attempt = ATTEMPT_NONE;
        r->next_ns = now_ns + next_pause_ns(r);
        return;
    }
    pthread_detach(thread);
}

/* Under the lock. */
static enum gr_status take_attempt(struct gr_rejoin *r, uint64_t now_ns, int *fd_out, struct gr_hello *peer_out)
{
    r->attempt = ATTEMPT_NONE;
    if (r->status != GR_OK) {
        r->next_ns = now_ns + next_pause_ns(r);
        return GR_AGAIN;
    }
    *fd_out = r->fd;
    *peer_out = r->peer;
    sodium_memzero(&r->peer.keys, sizeof(r->peer.keys));
    r->fd = -1;
    return GR_OK;
}

static enum gr_status step(struct gr_rejoin *r, uint64_t now_ns, int *fd_out, struct gr_hello *peer_out)
{
    if (r->attempt == ATTEMPT_DONE) {
        return take_attempt(r, now_ns, fd_out, peer_out);
    }
    if (r->attempt == ATTEMPT_RUNS) {
        return GR_AGAIN;
    }
    if (now_ns >= r->end_ns) {
        log_error("the orchestrator at %s has been away for %d s (--rejoin-timeout)%s%s", r->config.address,
                  (int)(r->config.patience_ns / GR_S), r->why[0] != '\0' ? "; the last try: " : "", r->why);
        return GR_ETIMEDOUT;
    }
    if (now_ns >= r->next_ns) {
        start_attempt(r, now_ns);
    }
    return GR_AGAIN;
}

enum gr_status gr_rejoin_step(struct gr_rejoin *r, uint64_t now_ns, int *fd_out, struct gr_hello *peer_out,
                              uint64_t *wake_ns)
{
    pthread_mutex_lock(&r->lock);
    const enum gr_status st = step(r, now_ns, fd_out, peer_out);
    *wake_ns = r->attempt == ATTEMPT_NONE ? GR_MIN(r->next_ns, r->end_ns) : UINT64_MAX;
    pthread_mutex_unlock(&r->lock);
    return st;
}
