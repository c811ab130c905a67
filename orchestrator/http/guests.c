#include "orchestrator/http/guests.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define NEVER UINT64_MAX

struct address {
    uint8_t byte[16];
};

struct gr_guest {
    int fd;
    struct address from;
    enum gr_guest_phase phase;
    enum gr_guest_excess excess;
    bool is_cut, told;
    uint64_t since_ns; /* of the phase */
    uint64_t n_body;   /* bytes of its body so far */
    struct gr_guest *before, *after;
};

struct gr_guests {
    struct gr_guests_config c;
    int timer;
    pthread_mutex_t lock; /* of the rest */
    struct gr_guest *first;
    int n;           /* that are not cut */
    uint64_t due_ns; /* the timer's; NEVER */
};

enum gr_status gr_guests_create(const struct gr_guests_config *c, struct gr_guests **out)
{
    struct gr_guests *g = calloc(1, sizeof(*g));
    const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (g == NULL || timer < 0) {
        log_error("out of memory, or of file descriptors, for the endpoint");
        free(g);
        return GR_ENOMEM;
    }
    *g = (struct gr_guests){.c = *c, .timer = timer, .due_ns = NEVER};
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return GR_OK;
}

void gr_guests_destroy(struct gr_guests *g)
{
    if (g == NULL) {
        return;
    }
    close(g->timer);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

int gr_guests_fd(const struct gr_guests *g)
{
    return g->timer;
}

/* ---- times ---- */

static uint64_t deadline_of(const struct gr_guests *g, const struct gr_guest *one)
{
    if (one->is_cut) {
        return NEVER;
    }
    switch (one->phase) {
    case GR_GUEST_ANSWERED:
        return NEVER;
    case GR_GUEST_BODY:
        return one->since_ns + g->c.request_ns + one->n_body * GR_S / GR_GUEST_BODY_RATE;
    case GR_GUEST_IDLE: /* and the line of the next request */
        return one->since_ns + g->c.idle_ns + g->c.request_ns;
    default:
        return one->since_ns + g->c.request_ns;
    }
}

static void arm(struct gr_guests *g, uint64_t at_ns)
{
    const uint64_t said_ns = at_ns == NEVER ? 0 : GR_MAX(at_ns, 1u); /* 0: never, for the timer */
    const struct itimerspec at = {.it_value = gr_clock_timespec(said_ns)};
    g->due_ns = at_ns;
    (void)timerfd_settime(g->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void cut(struct gr_guests *g, struct gr_guest *one)
{
    one->is_cut = true;
    g->n--;
    one->told = g->c.cut(g->c.ctx, one->fd, one->phase);
}

void gr_guests_run(struct gr_guests *g, uint64_t now_ns)
{
    uint64_t n_expired, due_ns = NEVER;
    const ssize_t n = read(g->timer, &n_expired, sizeof(n_expired));
    (void)n;
    pthread_mutex_lock(&g->lock);
    for (struct gr_guest *one = g->first; one != NULL; one = one->after) {
        if (deadline_of(g, one) <= now_ns) {
            cut(g, one);
        }
        due_ns = GR_MIN(due_ns, deadline_of(g, one));
    }
    arm(g, due_ns);
    pthread_mutex_unlock(&g->lock);
}

/* ---- numbers ---- */

static struct address address_of(const struct sockaddr *from)
{
    struct address a = {{0}};
    if (from != NULL && from->sa_family == AF_INET) {
        memcpy(a.byte, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    } else if (from != NULL && from->sa_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
        const bool mapped = IN6_IS_ADDR_V4MAPPED(v6);
        memcpy(a.byte, mapped ? v6->s6_addr + 12 : v6->s6_addr, mapped ? 4 : 8);
        a.byte[15] = !mapped;
    }
    return a;
}

static bool is_same(const struct address *a, const struct address *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static int count_of_address(const struct gr_guests *g, const struct address *a)
{
    int n = 0;
    for (const struct gr_guest *one = g->first; one != NULL; one = one->after) {
        n += !one->is_cut && is_same(&one->from, a);
    }
    return n;
}

/* The one that has asked nothing for longest, of the address or (NULL) of all; NULL: all are being answered, or are
 * sending what they ask. */
static struct gr_guest *longest_idle(const struct gr_guests *g, const struct address *a)
{
    struct gr_guest *found = NULL;
    for (struct gr_guest *one = g->first; one != NULL; one = one->after) {
        const bool busy = one->is_cut || one->phase == GR_GUEST_ANSWERED || one->phase == GR_GUEST_BODY;
        if (!busy && (a == NULL || is_same(&one->from, a)) && (found == NULL || one->since_ns < found->since_ns)) {
            found = one;
        }
    }
    return found;
}

/* Makes room for one more within n_max; false: there is none. */
static bool make_room(struct gr_guests *g, int n, int n_max, const struct address *a)
{
    struct gr_guest *idle = n < n_max ? NULL : longest_idle(g, a);
    if (idle != NULL) {
        cut(g, idle);
    }
    return n < n_max || idle != NULL;
}

static enum gr_guest_excess place(struct gr_guests *g, const struct address *a)
{
    if (!make_room(g, count_of_address(g, a), g->c.n_max_of_address, a)) {
        return GR_GUEST_OF_ADDRESS;
    }
    return make_room(g, g->n, g->c.n_max, NULL) ? GR_GUEST_FITS : GR_GUEST_OF_ALL;
}

static void settle(struct gr_guests *g, const struct gr_guest *one)
{
    if (deadline_of(g, one) < g->due_ns) {
        arm(g, deadline_of(g, one));
    }
}

struct gr_guest *gr_guests_add(struct gr_guests *g, int fd, const struct sockaddr *from, uint64_t now_ns)
{
    struct gr_guest *one = calloc(1, sizeof(*one));
    if (one == NULL) {
        return NULL;
    }
    *one = (struct gr_guest){.fd = fd, .from = address_of(from), .since_ns = now_ns};
    pthread_mutex_lock(&g->lock);
    one->excess = place(g, &one->from);
    one->after = g->first;
    if (g->first != NULL) {
        g->first->before = one;
    }
    g->first = one;
    g->n++;
    settle(g, one);
    pthread_mutex_unlock(&g->lock);
    return one;
}

void gr_guests_remove(struct gr_guests *g, struct gr_guest *one)
{
    if (one == NULL) {
        return;
    }
    pthread_mutex_lock(&g->lock);
    g->n -= !one->is_cut;
    if (one->before != NULL) {
        one->before->after = one->after;
    } else {
        g->first = one->after;
    }
    if (one->after != NULL) {
        one->after->before = one->before;
    }
    pthread_mutex_unlock(&g->lock);
    free(one);
}

bool gr_guests_enter(struct gr_guests *g, struct gr_guest *one, enum gr_guest_phase phase, uint64_t now_ns)
{
    pthread_mutex_lock(&g->lock);
    one->phase = phase;
    one->since_ns = now_ns;
    one->n_body = 0;
    settle(g, one);
    const bool goes_on = !one->is_cut;
    pthread_mutex_unlock(&g->lock);
    return goes_on;
}

void gr_guests_took(struct gr_guests *g, struct gr_guest *one, uint64_t n)
{
    pthread_mutex_lock(&g->lock);
    one->n_body += n;
    pthread_mutex_unlock(&g->lock);
}

bool gr_guests_take_told(struct gr_guests *g, struct gr_guest *one)
{
    pthread_mutex_lock(&g->lock);
    const bool told = one->told;
    one->told = false;
    pthread_mutex_unlock(&g->lock);
    return told;
}

enum gr_guest_excess gr_guests_excess(struct gr_guests *g, const struct gr_guest *one)
{
    pthread_mutex_lock(&g->lock);
    const enum gr_guest_excess excess = one->excess;
    pthread_mutex_unlock(&g->lock);
    return excess;
}
