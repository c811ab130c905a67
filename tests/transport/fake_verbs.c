#include "tests/transport/fake_verbs_impl.h"

#include "tests/transport/test_far.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct fake_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_key = 100, .next_port = 1000};
struct fake_knobs fake_knobs;

int fake_fail(int err)
{
    errno = err;
    return -1;
}

int fake_bell_make(void)
{
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
}

void fake_bell_ring(int fd)
{
    const uint64_t one = 1;
    GR_ASSERT(write(fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
}

bool fake_bell_take(int fd)
{
    uint64_t one;
    return read(fd, &one, sizeof(one)) == (ssize_t)sizeof(one);
}

void fake_reset(void)
{
    fake_lock();
    fake_knobs =
        (struct fake_knobs){.inline_max = 512, .locked_max = SIZE_MAX, .dmabuf_errno = EOPNOTSUPP, .n_device = 2};
    if (fake_verbs.post_send == NULL) {
        fake_table_qp(&fake_verbs);
        fake_table_cm(&fake_verbs);
    }
    for (int i = 0; i < 2; i++) {
        strcpy(fake.device[i].name, i == 0 ? "fake0" : "fake1");
        if (fake.context[i].device == NULL) {
            fake.context[i].async_fd = fake_bell_make();
        }
        fake.context[i].device = &fake.device[i];
    }
    fake_set_iwarp(false);
    fake_unlock();
}

void fake_set_iwarp(bool iwarp)
{
    for (int i = 0; i < 2; i++) {
        fake.device[i].transport_type = iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
    }
}

struct fake_counts fake_counts(void)
{
    fake_lock();
    const struct fake_counts c = fake.counts;
    fake_unlock();
    return c;
}

/* ---- devices ---- */

static struct ibv_device **get_device_list(int *n)
{
    static struct ibv_device *list[3] = {&fake.device[0], &fake.device[1], NULL};
    *n = fake_knobs.n_device;
    return list;
}

static void free_device_list(struct ibv_device **list)
{
    (void)list;
}

static const char *get_device_name(struct ibv_device *device)
{
    return device->name;
}

static struct ibv_context *open_device(struct ibv_device *device)
{
    fake_lock();
    fake.counts.n_context++;
    fake_unlock();
    return &fake.context[device - fake.device];
}

static int close_device(struct ibv_context *context)
{
    (void)context;
    fake_lock();
    fake.counts.n_context--;
    fake_unlock();
    return 0;
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    *attr = (struct ibv_device_attr){.phys_port_cnt = 1, .max_qp_wr = FAKE_N_QUEUE - 1, .max_cqe = FAKE_N_QUEUE - 1};
    return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    (void)port;
    const bool down = fake_knobs.port_down && context == &fake.context[0];
    *attr = (struct ibv_port_attr){.state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE, .active_mtu = IBV_MTU_1024};
    return 0;
}

/* Of device 1 of the network; device 2's end with a 2. NULL: an entry without an address. */
static const struct {
    const char *address[5];
    bool is_v1[5];
    uint32_t n;
} gid_tables[] = {
    [FAKE_GIDS_USUAL] = {{"fe80::1", "::ffff:10.9.0.1", "::ffff:10.9.0.1"}, {false, true, false}, 3},
    [FAKE_GIDS_SHIFTED] = {{"fe80::1", NULL, "fe80::1", "::ffff:10.9.0.1", "::ffff:10.9.0.1"},
                           {true, false, false, true, false},
                           5},
    [FAKE_GIDS_V6] = {{"fe80::1", "fd09::1", "fd09::1"}, {false, true, false}, 3},
    [FAKE_GIDS_LINK_LOCAL] = {{"fe80::1", "fe80::1"}, {true, false}, 2},
};

static ssize_t query_gid_table(struct ibv_context *context, struct ibv_gid_entry *e, size_t n_max)
{
    const int i_device = context == &fake.context[0] ? 0 : 1;
    const enum fake_gids gids = fake_knobs.gids[i_device];
    const uint32_t n = gid_tables[gids].n;
    GR_ASSERT(n_max >= n);
    memset(e, 0, n * sizeof(*e));
    for (uint32_t i = 0; i < n; i++) {
        e[i].gid_index = i;
        e[i].port_num = 1;
        e[i].ndev_ifindex = fake_knobs.ifindex[i_device];
        e[i].gid_type = gid_tables[gids].is_v1[i] ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
        if (gid_tables[gids].address[i] != NULL) {
            GR_ASSERT(inet_pton(AF_INET6, gid_tables[gids].address[i], e[i].gid.raw) == 1);
            e[i].gid.raw[15] += (uint8_t)i_device;
        }
    }
    return n;
}

static bool has_peer_memory(void)
{
    return fake_knobs.peer_memory;
}

/* ---- memory ---- */

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof(*pd));
    pd->context = context;
    fake_lock();
    fake.counts.n_pd++;
    fake_unlock();
    return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
    fake_lock();
    for (int i = 0; i < FAKE_N_MR; i++) {
        GR_ASSERT(fake.mr[i] == NULL || fake.mr[i]->pd != pd);
    }
    fake.counts.n_pd--;
    fake_unlock();
    free(pd);
    return 0;
}

static struct ibv_mr *add_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
    struct ibv_mr *mr = NULL;
    /* The length of a frame's rows and the frames themselves are read where a device wrote them, and one write tells of
     * another: none may pass it on the way to memory. */
    GR_ASSERT((access & IBV_ACCESS_RELAXED_ORDERING) == 0);
    fake_lock();
    if (fake.locked + bytes > fake_knobs.locked_max) {
        errno = ENOMEM;
    } else {
        int i = 0;
        while (fake.mr[i] != NULL) {
            GR_ASSERT(++i < FAKE_N_MR);
        }
        mr = calloc(1, sizeof(*mr));
        *mr = (struct ibv_mr){.pd = pd, .addr = addr, .length = bytes, .lkey = fake.next_key, .rkey = fake.next_key};
        fake.next_key++;
        fake.mr[i] = mr;
        fake.access[i] = access;
        fake.locked += bytes;
        fake.counts.n_mr++;
        fake.counts.n_register++;
    }
    fake_unlock();
    return mr;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
    if (test_far_is(addr) && !fake_knobs.peer_memory) {
        errno = EFAULT;
        return NULL;
    }
    return add_mr(pd, addr, bytes, access);
}

/* As a real one: the buffer has what is registered, and one page of it lies at one page of the device's addresses. */
static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access)
{
    const off_t end = lseek(fd, 0, SEEK_END);
    if (fake_knobs.dmabuf_errno != 0 || end < 0) {
        errno = fake_knobs.dmabuf_errno != 0 ? fake_knobs.dmabuf_errno : errno;
        return NULL;
    }
    GR_ASSERT(offset + bytes <= (uint64_t)end && offset % 4096 == iova % 4096);
    fake_lock();
    fake.counts.n_dmabuf++;
    fake_unlock();
    return add_mr(pd, (void *)(uintptr_t)iova, bytes, access);
}

static int dereg_mr(struct ibv_mr *mr)
{
    fake_lock();
    int i = 0;
    while (fake.mr[i] != mr) {
        GR_ASSERT(++i < FAKE_N_MR);
    }
    fake.mr[i] = NULL;
    fake.locked -= mr->length;
    fake.counts.n_mr--;
    fake_unlock();
    free(mr);
    return 0;
}

bool fake_in_mr(const struct ibv_pd *pd, uint64_t addr, size_t bytes, uint32_t key, int access)
{
    for (int i = 0; i < FAKE_N_MR; i++) {
        const struct ibv_mr *mr = fake.mr[i];
        if (mr != NULL && mr->pd == pd && mr->lkey == key && (fake.access[i] & access) == access &&
            addr >= (uintptr_t)mr->addr && addr + bytes <= (uintptr_t)mr->addr + mr->length) {
            return true;
        }
    }
    return false;
}

/* ---- events of a device ---- */

void fake_remove_device(int i_device)
{
    fake_lock();
    for (int i = 0; i < FAKE_N_ID; i++) {
        if (fake.id[i] != NULL && fake.id[i]->pub.verbs == &fake.context[i_device]) {
            fake_push_event(fake.id[i], RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
        }
    }
    fake_unlock();
}

void fake_port_event(int i_device, enum ibv_event_type type)
{
    fake_lock();
    fake.async[i_device] = (struct ibv_async_event){.event_type = type, .element.port_num = 1};
    fake_bell_ring(fake.context[i_device].async_fd);
    fake_unlock();
}

static int get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    if (!fake_bell_take(context->async_fd)) {
        return fake_fail(EAGAIN);
    }
    fake_lock();
    *event = fake.async[context - fake.context];
    fake_unlock();
    return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

struct gr_verbs_lib fake_verbs = {
    .get_device_list = get_device_list,
    .free_device_list = free_device_list,
    .get_device_name = get_device_name,
    .open_device = open_device,
    .close_device = close_device,
    .query_device = query_device,
    .query_port = query_port,
    .query_gid_table = query_gid_table,
    .has_peer_memory = has_peer_memory,
    .alloc_pd = alloc_pd,
    .dealloc_pd = dealloc_pd,
    .reg_mr = reg_mr,
    .reg_dmabuf_mr = reg_dmabuf_mr,
    .dereg_mr = dereg_mr,
    .get_async_event = get_async_event,
    .ack_async_event = ack_async_event,
};
