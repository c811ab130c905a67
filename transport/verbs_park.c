#include "transport/verbs_park.h"

#include "common/clock.h"
#include "common/log.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    struct gr_verbs_memory *memory[GR_VERBS_N_KEPT_MAX]; /* the oldest first; without pd: of a device, not of a peer */
    uint64_t until_ns[GR_VERBS_N_KEPT_MAX];              /* of a device: never */
    int n;
    bool running, joinable, stop;
    pthread_t thread;
    int wake_fd; /* -1: not made yet */
} park = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake_fd = -1};

static struct gr_verbs_memory *take(int i)
{
    struct gr_verbs_memory *m = park.memory[i];
    park.n--;
    memmove(&park.memory[i], &park.memory[i + 1], (size_t)(park.n - i) * sizeof(park.memory[0]));
    memmove(&park.until_ns[i], &park.until_ns[i + 1], (size_t)(park.n - i) * sizeof(park.until_ns[0]));
    return m;
}

static bool device_removed(struct gr_verbs_memory *m)
{
    struct rdma_cm_event *e;
    while (m->lib->get_cm_event(m->channel, &e) == 0) {
        m->device_gone = m->device_gone || e->event == RDMA_CM_EVENT_DEVICE_REMOVAL;
        m->lib->ack_cm_event(e);
    }
    return m->device_gone;
}

static bool same_device(const struct gr_verbs_memory *m, const struct gr_verbs_lib *lib,
                        const struct gr_verbs_device *device)
{
    return m->lib == lib && strcmp(m->device.name, device->name) == 0 && m->device.port == device->port &&
           memcmp(&m->device.addr, &device->addr, sizeof(device->addr)) == 0;
}

/* Under the lock. Keeps what listens to the device, unless something does. */
static void keep_device(struct gr_verbs_memory *m)
{
    bool heard = m->device_gone || park.stop || park.n == GR_VERBS_N_KEPT_MAX;
    for (int i = 0; i < park.n && !heard; i++) {
        heard = park.memory[i]->pd == NULL && same_device(park.memory[i], m->lib, &m->device);
    }
    if (heard) {
        gr_verbs_memory_destroy(m);
        return;
    }
    gr_verbs_memory_shrink(m);
    park.memory[park.n] = m;
    park.until_ns[park.n++] = UINT64_MAX;
}

/* Frees what is due; the descriptors to wait on and how long, ms. Under the lock. */
static int sweep(struct pollfd *fds, nfds_t *n_out)
{
    const uint64_t now_ns = gr_clock_ns();
    uint64_t until_ns = UINT64_MAX;
    for (int i = park.n - 1; i >= 0; i--) {
        if (park.stop || device_removed(park.memory[i])) {
            gr_verbs_memory_destroy(take(i));
        } else if (now_ns >= park.until_ns[i]) {
            keep_device(take(i));
        }
    }
    fds[0] = (struct pollfd){.fd = park.wake_fd, .events = POLLIN};
    for (int i = 0; i < park.n; i++) {
        fds[1 + i] = (struct pollfd){.fd = park.memory[i]->channel->fd, .events = POLLIN};
        until_ns = GR_MIN(until_ns, park.until_ns[i]);
    }
    *n_out = (nfds_t)park.n + 1;
    return until_ns == UINT64_MAX ? -1 : (int)((until_ns - GR_MIN(now_ns, until_ns)) / GR_MS) + 1;
}

static void *watch(void *arg)
{
    (void)arg;
    for (;;) {
        struct pollfd fds[GR_VERBS_N_KEPT_MAX + 1];
        nfds_t n;
        pthread_mutex_lock(&park.lock);
        const int wait_ms = sweep(fds, &n);
        if (park.n == 0) {
            park.running = false;
            pthread_mutex_unlock(&park.lock);
            return NULL;
        }
        pthread_mutex_unlock(&park.lock);
        uint64_t count;
        if (poll(fds, n, wait_ms) > 0 && (fds[0].revents & POLLIN) != 0) {
            const ssize_t got = read(park.wake_fd, &count, sizeof(count));
            (void)got;
        }
    }
}

static void wake(void)
{
    const uint64_t one = 1;
    const ssize_t n = write(park.wake_fd, &one, sizeof(one));
    (void)n;
}

/* Under the lock. A thread that has ended is joined first: it holds no lock any more. */
static bool keep_watch(void)
{
    if (park.wake_fd < 0) {
        park.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    if (park.wake_fd < 0 || park.running) {
        return park.wake_fd >= 0;
    }
    if (park.joinable) {
        pthread_join(park.thread, NULL);
    }
    park.joinable = park.running = pthread_create(&park.thread, NULL, watch, NULL) == 0;
    return park.running;
}

static void make_room(void)
{
    int n_peer = 0, oldest = -1;
    for (int i = park.n - 1; i >= 0; i--) {
        if (park.memory[i]->pd != NULL) {
            n_peer++;
            oldest = i;
        }
    }
    if (n_peer == GR_VERBS_N_PARK_MAX || (park.n == GR_VERBS_N_KEPT_MAX && n_peer > 0)) {
        keep_device(take(oldest));
    }
}

void gr_verbs_park(struct gr_verbs_memory *m, bool for_peer)
{
    gr_verbs_memory_forget_inbox(m);
    pthread_mutex_lock(&park.lock);
    if (!keep_watch()) { /* nobody would hear of the device */
        gr_verbs_memory_destroy(m);
        pthread_mutex_unlock(&park.lock);
        return;
    }
    make_room();
    if (for_peer && !m->device_gone && park.n < GR_VERBS_N_KEPT_MAX) {
        park.memory[park.n] = m;
        park.until_ns[park.n++] = gr_clock_ns() + GR_VERBS_PARK_MS * GR_MS;
    } else {
        keep_device(m);
    }
    wake();
    pthread_mutex_unlock(&park.lock);
}

struct gr_verbs_memory *gr_verbs_unpark(const struct gr_verbs_lib *lib, const struct gr_verbs_device *device,
                                        uint64_t peer_id)
{
    struct gr_verbs_memory *found = NULL;
    pthread_mutex_lock(&park.lock);
    for (int i = 0; i < park.n && found == NULL; i++) {
        const struct gr_verbs_memory *m = park.memory[i];
        if (m->pd != NULL && m->peer_id == peer_id && same_device(m, lib, device)) {
            found = take(i);
        }
    }
    if (found != NULL && device_removed(found)) {
        gr_verbs_memory_destroy(found);
        found = NULL;
    }
    if (found != NULL) {
        wake(); /* the thread no longer looks at its channel */
    }
    pthread_mutex_unlock(&park.lock);
    return found;
}

void gr_verbs_park_clear(void)
{
    pthread_mutex_lock(&park.lock);
    park.stop = true;
    const bool join = park.joinable;
    if (park.running) {
        wake();
    }
    pthread_mutex_unlock(&park.lock);
    if (join) {
        pthread_join(park.thread, NULL);
    }
    pthread_mutex_lock(&park.lock);
    park.stop = park.joinable = false;
    if (park.wake_fd >= 0) {
        close(park.wake_fd);
        park.wake_fd = -1;
    }
    pthread_mutex_unlock(&park.lock);
}
