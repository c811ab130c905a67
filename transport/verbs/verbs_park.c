#include "transport/verbs/verbs_park.h"

#include "common/base/clock.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LINGER_LOOK_MS 100 /* between two looks whether one that lingers may go */

struct kept {
    struct gr_verbs_memory *memory; /* without pd: of a device, not of a peer */
    uint64_t until_ns;              /* of a device: never */
    struct gr_verbs_link link;      /* id not NULL: lingers until its port is up */
};

static struct {
    pthread_mutex_t lock;
    struct kept kept[GR_VERBS_N_KEPT_MAX]; /* the oldest first */
    int n;
    bool running, joinable, stop;
    pthread_t thread;
    int wake_fd; /* -1: not made yet */
} park = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake_fd = -1};

static struct kept take(int i)
{
    const struct kept k = park.kept[i];
    park.n--;
    memmove(&park.kept[i], &park.kept[i + 1], (size_t)(park.n - i) * sizeof(park.kept[0]));
    return k;
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
        heard = park.kept[i].memory->pd == NULL && same_device(park.kept[i].memory, m->lib, &m->device);
    }
    if (heard) {
        gr_verbs_memory_destroy(m);
        return;
    }
    gr_verbs_memory_shrink(m);
    park.kept[park.n++] = (struct kept){.memory = m, .until_ns = UINT64_MAX};
}

static void let_go(struct kept k)
{
    gr_verbs_link_finish(&k.link);
    keep_device(k.memory);
}

/* Its queue pair is given up now, in a moment when the peer can hear of it; its memory may be taken up again. */
static void end_linger(struct kept *k, uint64_t now_ns)
{
    gr_verbs_link_finish(&k->link);
    k->until_ns = now_ns + GR_VERBS_PARK_MS * GR_MS;
}

/* Frees what is due; the descriptors to wait on and how long, ms. Under the lock. */
static int sweep(struct pollfd *fds, nfds_t *n_out)
{
    const uint64_t now_ns = gr_clock_ns();
    uint64_t until_ns = UINT64_MAX;
    bool lingers = false;
    for (int i = park.n - 1; i >= 0; i--) {
        struct kept *k = &park.kept[i];
        if (device_removed(k->memory) || park.stop || now_ns >= k->until_ns) {
            let_go(take(i));
        } else if (k->link.id != NULL && gr_verbs_memory_port_is_up(k->memory)) {
            end_linger(k, now_ns);
        }
    }
    fds[0] = (struct pollfd){.fd = park.wake_fd, .events = POLLIN};
    for (int i = 0; i < park.n; i++) {
        fds[1 + i] = (struct pollfd){.fd = park.kept[i].memory->channel->fd, .events = POLLIN};
        until_ns = GR_MIN(until_ns, park.kept[i].until_ns);
        lingers = lingers || park.kept[i].link.id != NULL;
    }
    *n_out = (nfds_t)park.n + 1;
    const int wait_ms = until_ns == UINT64_MAX ? -1 : (int)((until_ns - GR_MIN(now_ns, until_ns)) / GR_MS) + 1;
    return lingers ? GR_MIN(wait_ms, LINGER_LOOK_MS) : wait_ms;
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
        if (park.kept[i].memory->pd != NULL) {
            n_peer++;
            oldest = i;
        }
    }
    if (n_peer == GR_VERBS_N_PARK_MAX || (park.n == GR_VERBS_N_KEPT_MAX && n_peer > 0)) {
        let_go(take(oldest));
    }
}

void gr_verbs_park(struct gr_verbs_memory *m, bool for_peer, struct gr_verbs_link *linger)
{
    struct kept k = {.memory = m, .until_ns = gr_clock_ns() + GR_VERBS_PARK_MS * GR_MS};
    gr_verbs_memory_forget_inbox(m);
    pthread_mutex_lock(&park.lock);
    const bool heard = keep_watch(); /* else nobody would hear of the device */
    if (linger != NULL && heard && !m->device_gone) {
        k.link = *linger;
    } else if (linger != NULL) {
        gr_verbs_link_finish(linger);
    }
    if (!heard) {
        gr_verbs_memory_destroy(m);
        pthread_mutex_unlock(&park.lock);
        return;
    }
    make_room();
    if ((for_peer || k.link.id != NULL) && !m->device_gone && park.n < GR_VERBS_N_KEPT_MAX) {
        park.kept[park.n++] = k;
    } else {
        let_go(k);
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
        const struct gr_verbs_memory *m = park.kept[i].memory;
        if (m->pd != NULL && park.kept[i].link.id == NULL && m->peer_id == peer_id && same_device(m, lib, device)) {
            found = take(i).memory;
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
