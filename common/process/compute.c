#include "common/process/compute.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/yield.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define YIELD_NS 60000 /* a thread that has looked for so long gives its CPU away at every look */

enum mailbox { BOX_EMPTY, BOX_POSTED, BOX_DONE, BOX_QUIT };

struct gr_compute {
    pthread_t thread;
    sem_t posted;
    atomic_int box;
    void (*fn)(void *arg);
    void *arg;
    bool more; /* of the job in the box */
    uint64_t spin_ns;
    struct gr_yield yield;
    int done_fd;
};

static void ring(int fd)
{
    const uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof(one));
    (void)n; /* the counter cannot overflow: one job at a time */
}

#define LOOKS_PER_CLOCK 64 /* looks at the mailbox between two at the clock, which costs more */

static bool spin_for_job(struct gr_compute *c)
{
    const uint64_t end_ns = gr_clock_ns() + c->spin_ns;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (sem_trywait(&c->posted) == 0) {
                return true;
            }
        }
    } while (gr_clock_ns() < end_ns);
    return false;
}

/* To fall asleep and be woken takes as long as the I/O loop needs to post what follows: it is let run instead. */
static void await_job(struct gr_compute *c, bool soon)
{
    if (c->spin_ns > 0 && spin_for_job(c)) {
        return;
    }
    const uint64_t begin_ns = soon ? gr_clock_ns() : 0;
    uint64_t now_ns = begin_ns;
    while (soon && now_ns - begin_ns < YIELD_NS && gr_yield_pays(&c->yield, now_ns)) {
        if (sem_trywait(&c->posted) == 0) {
            return;
        }
        now_ns = gr_yield_once(&c->yield, now_ns);
    }
    while (sem_wait(&c->posted) != 0 && errno == EINTR) {
    }
}

static void *run(void *arg)
{
    struct gr_compute *c = arg;
    bool more = false;
    for (;;) {
        await_job(c, more);
        if (atomic_load_explicit(&c->box, memory_order_acquire) == BOX_QUIT) {
            return NULL;
        }
        more = c->more;
        c->fn(c->arg);
        atomic_store_explicit(&c->box, BOX_DONE, memory_order_release);
        ring(c->done_fd);
    }
}

enum gr_status gr_compute_create(const char *name, uint64_t spin_ns, struct gr_compute **out)
{
    struct gr_compute *c = calloc(1, sizeof(*c));
    if (c == NULL) {
        log_error("no memory for a compute thread");
        return GR_ENOMEM;
    }
    c->spin_ns = spin_ns;
    c->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sem_init(&c->posted, 0, 0);
    if (c->done_fd < 0 || pthread_create(&c->thread, NULL, run, c) != 0) {
        log_error("cannot start the compute thread %s", name);
        if (c->done_fd >= 0) {
            close(c->done_fd);
        }
        free(c);
        return GR_ENOMEM;
    }
    pthread_setname_np(c->thread, name);
    *out = c;
    return GR_OK;
}

void gr_compute_destroy(struct gr_compute *c)
{
    if (c == NULL) {
        return;
    }
    /* A job that runs now stores BOX_DONE over the request to quit, so wait for it first. */
    while (atomic_load_explicit(&c->box, memory_order_acquire) == BOX_POSTED) {
        struct pollfd p = {.fd = c->done_fd, .events = POLLIN};
        (void)poll(&p, 1, -1);
    }
    atomic_store_explicit(&c->box, BOX_QUIT, memory_order_release);
    sem_post(&c->posted);
    pthread_join(c->thread, NULL);
    sem_destroy(&c->posted);
    close(c->done_fd);
    free(c);
}

void gr_compute_post(struct gr_compute *c, void (*fn)(void *arg), void *arg, bool more)
{
    GR_ASSERT(atomic_load_explicit(&c->box, memory_order_acquire) == BOX_EMPTY);
    c->fn = fn;
    c->arg = arg;
    c->more = more;
    atomic_store_explicit(&c->box, BOX_POSTED, memory_order_release);
    sem_post(&c->posted);
}

bool gr_compute_done(struct gr_compute *c)
{
    if (atomic_load_explicit(&c->box, memory_order_acquire) != BOX_DONE) {
        return false;
    }
    uint64_t n = 0;
    ssize_t got = read(c->done_fd, &n, sizeof(n));
    (void)got;
    atomic_store_explicit(&c->box, BOX_EMPTY, memory_order_relaxed);
    return true;
}

int gr_compute_fd(const struct gr_compute *c)
{
    return c->done_fd;
}
