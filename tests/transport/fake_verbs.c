#include "tests/transport/fake_verbs.h"

#include "common/status.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define N_QUEUE 16384u /* completions, receives */
#define N_EVENT 64u
#define N_MR    64
#define N_ID    64

struct fake_comp {
    struct ibv_comp_channel pub;
    struct fake_cq *cq;
};

struct fake_cq {
    struct ibv_cq pub;
    struct fake_comp *comp;
    bool armed;
    uint32_t n_in, n_out, n_cqe;
    unsigned n_event, n_acked;
    struct ibv_wc wc[N_QUEUE];
};

struct fake_qp {
    struct ibv_qp pub;
    struct fake_id *id;
    struct fake_qp *peer;
    bool error;
    uint32_t n_recv_max, n_in, n_out;
    int n_unsignalled;
    struct ibv_recv_wr recv[N_QUEUE];
    struct ibv_sge sge[N_QUEUE];
};

struct fake_event {
    struct rdma_cm_event pub;
    uint8_t data[56];
};

struct fake_channel {
    struct rdma_event_channel pub;
    struct fake_event events[N_EVENT];
    uint32_t n_in, n_out;
};

struct fake_id {
    struct rdma_cm_id pub;
    struct fake_id *other; /* connecting or connected */
    uint16_t port;         /* listening */
    struct sockaddr_in to; /* resolved */
    bool disconnected;
};

static struct {
    pthread_mutex_t lock;
    struct ibv_device device[2];
    struct ibv_context context[2];
    struct ibv_async_event async[2];
    int n_async[2];
    struct ibv_mr *mr[N_MR];
    int access[N_MR];
    struct fake_id *id[N_ID];
    uint32_t next_key;
    uint16_t next_port;
    size_t locked;
    struct fake_counts counts;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_key = 100, .next_port = 1000};
struct fake_knobs fake_knobs;

static void lock(void)
{
    pthread_mutex_lock(&fake.lock);
}

static void unlock(void)
{
    pthread_mutex_unlock(&fake.lock);
}

static int fail(int err)
{
    errno = err;
    return -1;
}

/* A descriptor that is readable while its count is above 0. */
static int bell_make(void)
{
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
}

static void bell_ring(int fd)
{
    const uint64_t one = 1;
    GR_ASSERT(write(fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
}

static bool bell_take(int fd)
{
    uint64_t one;
    return read(fd, &one, sizeof(one)) == (ssize_t)sizeof(one);
}

void fake_reset(void)
{
    lock();
    fake_knobs = (struct fake_knobs){
        .inline_max = 512, .locked_max = SIZE_MAX, .dmabuf_errno = EOPNOTSUPP, .n_device = 2};
    for (int i = 0; i < 2; i++) {
        strcpy(fake.device[i].name, i == 0 ? "fake0" : "fake1");
        if (fake.context[i].device == NULL) {
            fake.context[i].async_fd = bell_make();
        }
        fake.context[i].device = &fake.device[i];
    }
    fake_set_iwarp(false);
    unlock();
}

void fake_set_iwarp(bool iwarp)
{
    for (int i = 0; i < 2; i++) {
        fake.device[i].transport_type = iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
    }
}

struct fake_counts fake_counts(void)
{
    lock();
    const struct fake_counts c = fake.counts;
    unlock();
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
    lock();
    fake.counts.n_context++;
    unlock();
    return &fake.context[device - fake.device];
}

static int close_device(struct ibv_context *context)
{
    (void)context;
    lock();
    fake.counts.n_context--;
    unlock();
    return 0;
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    *attr = (struct ibv_device_attr){.phys_port_cnt = 1, .max_qp_wr = N_QUEUE - 1, .max_cqe = N_QUEUE - 1};
    return 0;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    (void)port;
    const bool down = fake_knobs.port_down && context == &fake.context[0];
    *attr = (struct ibv_port_attr){.state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE, .active_mtu = IBV_MTU_1024};
    return 0;
}

static ssize_t query_gid_table(struct ibv_context *context, struct ibv_gid_entry *e, size_t n_max)
{
    const uint8_t host = context == &fake.context[0] ? 1 : 2;
    GR_ASSERT(n_max >= 3);
    memset(e, 0, 3 * sizeof(*e));
    for (uint32_t i = 0; i < 3; i++) {
        e[i].gid_index = i;
        e[i].port_num = 1;
        e[i].gid_type = i == 1 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
    }
    inet_pton(AF_INET6, host == 1 ? "fe80::1" : "fe80::2", e[0].gid.raw);
    inet_pton(AF_INET6, host == 1 ? "::ffff:10.9.0.1" : "::ffff:10.9.0.2", e[1].gid.raw);
    memcpy(e[2].gid.raw, e[1].gid.raw, 16);
    return 3;
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
    lock();
    fake.counts.n_pd++;
    unlock();
    return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
    lock();
    for (int i = 0; i < N_MR; i++) {
        GR_ASSERT(fake.mr[i] == NULL || fake.mr[i]->pd != pd);
    }
    fake.counts.n_pd--;
    unlock();
    free(pd);
    return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
    struct ibv_mr *mr = NULL;
    lock();
    if (fake.locked + bytes > fake_knobs.locked_max) {
        errno = ENOMEM;
    } else {
        int i = 0;
        while (fake.mr[i] != NULL) {
            GR_ASSERT(++i < N_MR);
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
    unlock();
    return mr;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access)
{
    (void)pd;
    (void)offset;
    (void)bytes;
    (void)iova;
    (void)fd;
    (void)access;
    errno = fake_knobs.dmabuf_errno;
    return NULL;
}

static int dereg_mr(struct ibv_mr *mr)
{
    lock();
    int i = 0;
    while (fake.mr[i] != mr) {
        GR_ASSERT(++i < N_MR);
    }
    fake.mr[i] = NULL;
    fake.locked -= mr->length;
    fake.counts.n_mr--;
    unlock();
    free(mr);
    return 0;
}

static bool in_mr(const struct ibv_pd *pd, uint64_t addr, size_t bytes, uint32_t key, int access)
{
    for (int i = 0; i < N_MR; i++) {
        const struct ibv_mr *mr = fake.mr[i];
        if (mr != NULL && mr->pd == pd && mr->lkey == key && (fake.access[i] & access) == access &&
            addr >= (uintptr_t)mr->addr && addr + bytes <= (uintptr_t)mr->addr + mr->length) {
            return true;
        }
    }
    return false;
}

/* ---- completions ---- */

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
    struct fake_comp *c = calloc(1, sizeof(*c));
    c->pub = (struct ibv_comp_channel){.context = context, .fd = bell_make()};
    lock();
    fake.counts.n_comp++;
    unlock();
    return &c->pub;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
    struct fake_comp *c = GR_CONTAINER_OF(channel, struct fake_comp, pub);
    GR_ASSERT(c->cq == NULL);
    close(c->pub.fd);
    free(c);
    lock();
    fake.counts.n_comp--;
    unlock();
    return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int n_cqe, void *user, struct ibv_comp_channel *channel,
                                int vector)
{
    (void)vector;
    struct fake_cq *cq = calloc(1, sizeof(*cq));
    GR_ASSERT((uint32_t)n_cqe < N_QUEUE);
    cq->pub = (struct ibv_cq){.context = context, .channel = channel, .cq_context = user, .cqe = n_cqe};
    cq->n_cqe = (uint32_t)n_cqe;
    cq->comp = GR_CONTAINER_OF(channel, struct fake_comp, pub);
    cq->comp->cq = cq;
    lock();
    fake.counts.n_cq++;
    unlock();
    return &cq->pub;
}

static int destroy_cq(struct ibv_cq *pub)
{
    struct fake_cq *cq = GR_CONTAINER_OF(pub, struct fake_cq, pub);
    GR_ASSERT(cq->n_acked == cq->n_event); /* the library waits for ever */
    cq->comp->cq = NULL;
    free(cq);
    lock();
    fake.counts.n_cq--;
    unlock();
    return 0;
}

/* Under the lock. */
static void complete(struct fake_cq *cq, const struct ibv_wc *wc)
{
    GR_ASSERT(cq->n_in - cq->n_out < cq->n_cqe); /* an overrun kills a real queue */
    cq->wc[cq->n_in++ % N_QUEUE] = *wc;
    if (cq->armed) {
        cq->armed = false;
        bell_ring(cq->comp->pub.fd);
    }
}

static int poll_cq(struct ibv_cq *pub, int n_max, struct ibv_wc *wc)
{
    struct fake_cq *cq = GR_CONTAINER_OF(pub, struct fake_cq, pub);
    int n = 0;
    lock();
    while (n < n_max && cq->n_out != cq->n_in) {
        wc[n++] = cq->wc[cq->n_out++ % N_QUEUE];
    }
    unlock();
    return n;
}

static int req_notify_cq(struct ibv_cq *pub, int solicited_only)
{
    (void)solicited_only;
    lock();
    GR_CONTAINER_OF(pub, struct fake_cq, pub)->armed = true;
    unlock();
    return 0;
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **user)
{
    struct fake_comp *c = GR_CONTAINER_OF(channel, struct fake_comp, pub);
    if (!bell_take(c->pub.fd)) {
        return -1;
    }
    c->cq->n_event++;
    *cq = &c->cq->pub;
    *user = c->cq->pub.cq_context;
    return 0;
}

static void ack_cq_events(struct ibv_cq *pub, unsigned n)
{
    GR_CONTAINER_OF(pub, struct fake_cq, pub)->n_acked += n;
}

/* ---- queue pairs ---- */

static struct fake_cq *cq_of(const struct fake_qp *qp)
{
    return GR_CONTAINER_OF(qp->pub.send_cq, struct fake_cq, pub);
}

static void go_to_error(struct fake_qp *qp)
{
    if (qp->error) {
        return;
    }
    qp->error = true;
    while (qp->n_out != qp->n_in) {
        complete(cq_of(qp), &(struct ibv_wc){.wr_id = qp->recv[qp->n_out++ % N_QUEUE].wr_id,
                                             .status = IBV_WC_WR_FLUSH_ERR});
    }
}

static int create_qp(struct rdma_cm_id *pub, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    if (attr->cap.max_inline_data > fake_knobs.inline_max) {
        return fail(EINVAL);
    }
    GR_ASSERT(pd->context == pub->verbs && attr->cap.max_recv_wr < N_QUEUE);
    struct fake_qp *qp = calloc(1, sizeof(*qp));
    qp->pub = (struct ibv_qp){
        .context = pub->verbs, .pd = pd, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq, .qp_type = attr->qp_type};
    qp->id = GR_CONTAINER_OF(pub, struct fake_id, pub);
    qp->n_recv_max = attr->cap.max_recv_wr;
    pub->qp = &qp->pub;
    lock();
    fake.counts.n_qp++;
    unlock();
    return 0;
}

static void destroy_qp(struct rdma_cm_id *pub)
{
    struct fake_qp *qp = GR_CONTAINER_OF(pub->qp, struct fake_qp, pub);
    lock();
    if (qp->peer != NULL) {
        qp->peer->peer = NULL;
    }
    fake.counts.n_qp--;
    pub->qp = NULL;
    unlock();
    free(qp);
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    GR_ASSERT(mask == IBV_QP_MIN_RNR_TIMER && attr->min_rnr_timer > 0 && qp != NULL);
    return 0;
}

static int post_recv(struct ibv_qp *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct fake_qp *qp = GR_CONTAINER_OF(pub, struct fake_qp, pub);
    (void)bad;
    lock();
    for (; wr != NULL; wr = wr->next) {
        const struct ibv_sge *sge = wr->sg_list;
        GR_ASSERT(wr->num_sge == 1 && in_mr(pub->pd, sge->addr, sge->length, sge->lkey, IBV_ACCESS_LOCAL_WRITE));
        if (qp->error) {
            complete(cq_of(qp), &(struct ibv_wc){.wr_id = wr->wr_id, .status = IBV_WC_WR_FLUSH_ERR});
            continue;
        }
        GR_ASSERT(qp->n_in - qp->n_out < qp->n_recv_max);
        qp->recv[qp->n_in % N_QUEUE] = *wr;
        qp->sge[qp->n_in++ % N_QUEUE] = *sge;
    }
    unlock();
    return 0;
}

static uint32_t gather(const struct fake_qp *qp, const struct ibv_send_wr *wr, uint8_t *to, size_t room)
{
    uint32_t n = 0;
    for (int i = 0; i < wr->num_sge; i++) {
        const struct ibv_sge *s = &wr->sg_list[i];
        const bool inlined = (wr->send_flags & IBV_SEND_INLINE) != 0;
        GR_ASSERT(inlined || in_mr(qp->pub.pd, s->addr, s->length, s->lkey, 0));
        if (n + s->length <= room) {
            memcpy(to + n, (const void *)(uintptr_t)s->addr, s->length);
        }
        n += s->length;
    }
    GR_ASSERT((wr->send_flags & IBV_SEND_INLINE) == 0 || n <= fake_knobs.inline_max);
    return n;
}

/* What the peer's device does with one work request; the status of its end. */
static enum ibv_wc_status deliver(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
    struct fake_qp *to = qp->peer;
    if (qp->error) {
        return IBV_WC_WR_FLUSH_ERR;
    }
    if (to == NULL || to->error || fake_knobs.swallow) {
        return IBV_WC_RETRY_EXC_ERR;
    }
    if (to->n_in == to->n_out) {
        fake.counts.n_rnr++;
        return IBV_WC_RNR_RETRY_EXC_ERR;
    }
    struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
    const uint32_t at = to->n_out % N_QUEUE;
    wc.wr_id = to->recv[at].wr_id;
    if (wr->opcode == IBV_WR_SEND) {
        wc.opcode = IBV_WC_RECV;
        wc.byte_len = gather(qp, wr, (uint8_t *)(uintptr_t)to->sge[at].addr, to->sge[at].length);
        if (wc.byte_len > to->sge[at].length) {
            return IBV_WC_REM_INV_REQ_ERR;
        }
    } else {
        size_t bytes = 0;
        for (int i = 0; i < wr->num_sge; i++) {
            bytes += wr->sg_list[i].length;
        }
        if (!in_mr(to->pub.pd, wr->wr.rdma.remote_addr, bytes, wr->wr.rdma.rkey, IBV_ACCESS_REMOTE_WRITE)) {
            return IBV_WC_REM_ACCESS_ERR;
        }
        wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        wc.byte_len = gather(qp, wr, (uint8_t *)(uintptr_t)wr->wr.rdma.remote_addr, bytes);
        wc.imm_data = wr->imm_data;
        wc.wc_flags = IBV_WC_WITH_IMM;
    }
    to->n_out++;
    complete(cq_of(to), &wc);
    return IBV_WC_SUCCESS;
}

static int post_send(struct ibv_qp *pub, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct fake_qp *qp = GR_CONTAINER_OF(pub, struct fake_qp, pub);
    if (fake_knobs.refuse_send_errno != 0) {
        *bad = wr;
        return fake_knobs.refuse_send_errno;
    }
    lock();
    fake.counts.n_doorbell++;
    for (; wr != NULL; wr = wr->next) {
        const enum ibv_wc_status st = deliver(qp, wr);
        const bool signalled = (wr->send_flags & IBV_SEND_SIGNALED) != 0;
        qp->n_unsignalled = signalled ? 0 : qp->n_unsignalled + 1;
        fake.counts.n_unsignalled_max = GR_MAX(fake.counts.n_unsignalled_max, qp->n_unsignalled);
        if (signalled || st != IBV_WC_SUCCESS) {
            complete(cq_of(qp), &(struct ibv_wc){.wr_id = wr->wr_id, .status = st, .vendor_err = 7});
        }
        if (st != IBV_WC_SUCCESS) {
            go_to_error(qp);
        }
        if (st == IBV_WC_REM_ACCESS_ERR || st == IBV_WC_REM_INV_REQ_ERR) {
            go_to_error(qp->peer);
        }
    }
    unlock();
    return 0;
}

/* ---- connections ---- */

static struct rdma_event_channel *create_event_channel(void)
{
    struct fake_channel *c = calloc(1, sizeof(*c));
    c->pub.fd = bell_make();
    lock();
    fake.counts.n_channel++;
    unlock();
    return &c->pub;
}

static void destroy_event_channel(struct rdma_event_channel *pub)
{
    lock();
    for (int i = 0; i < N_ID; i++) {
        GR_ASSERT(fake.id[i] == NULL || fake.id[i]->pub.channel != pub);
    }
    fake.counts.n_channel--;
    unlock();
    close(pub->fd);
    free(GR_CONTAINER_OF(pub, struct fake_channel, pub));
}

/* Under the lock. */
static struct rdma_cm_event *push_event(struct fake_id *id, enum rdma_cm_event_type type, int status)
{
    struct fake_channel *c = GR_CONTAINER_OF(id->pub.channel, struct fake_channel, pub);
    GR_ASSERT(c->n_in - c->n_out < N_EVENT);
    struct fake_event *e = &c->events[c->n_in++ % N_EVENT];
    *e = (struct fake_event){.pub = {.id = &id->pub, .event = type, .status = status}};
    bell_ring(c->pub.fd);
    return &e->pub;
}

static int get_cm_event(struct rdma_event_channel *pub, struct rdma_cm_event **out)
{
    struct fake_channel *c = GR_CONTAINER_OF(pub, struct fake_channel, pub);
    if (!bell_take(pub->fd)) {
        return fail(EAGAIN);
    }
    lock();
    *out = &c->events[c->n_out++ % N_EVENT].pub;
    unlock();
    return 0;
}

static int ack_cm_event(struct rdma_cm_event *event)
{
    (void)event;
    return 0;
}

static struct fake_id *id_make(struct rdma_event_channel *channel)
{
    struct fake_id *id = calloc(1, sizeof(*id));
    int i = 0;
    id->pub.channel = channel;
    while (fake.id[i] != NULL) {
        GR_ASSERT(++i < N_ID);
    }
    fake.id[i] = id;
    fake.counts.n_id++;
    return id;
}

static int create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *user, enum rdma_port_space ps)
{
    (void)user;
    (void)ps;
    lock();
    *out = &id_make(channel)->pub;
    unlock();
    return 0;
}

static void part(struct fake_id *id)
{
    if (id->other != NULL && !id->disconnected) {
        id->disconnected = id->other->disconnected = true;
        if (id->other->pub.qp != NULL) {
            push_event(id->other, RDMA_CM_EVENT_DISCONNECTED, 0);
        }
    }
}

static int destroy_id(struct rdma_cm_id *pub)
{
    struct fake_id *id = GR_CONTAINER_OF(pub, struct fake_id, pub);
    GR_ASSERT(pub->qp == NULL);
    lock();
    part(id);
    if (id->other != NULL) {
        id->other->other = NULL;
    }
    int i = 0;
    while (fake.id[i] != id) {
        GR_ASSERT(++i < N_ID);
    }
    fake.id[i] = NULL;
    fake.counts.n_id--;
    unlock();
    free(id);
    return 0;
}

static int bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
    const uint32_t host = ntohl(((struct sockaddr_in *)(void *)addr)->sin_addr.s_addr);
    if (addr->sa_family != AF_INET || host < 0x0a090001 || host > 0x0a090002) {
        return fail(EADDRNOTAVAIL);
    }
    id->verbs = &fake.context[host - 0x0a090001];
    return 0;
}

static int resolve_addr(struct rdma_cm_id *pub, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
    struct fake_id *id = GR_CONTAINER_OF(pub, struct fake_id, pub);
    (void)timeout_ms;
    if (bind_addr(pub, src) != 0) {
        return -1;
    }
    lock();
    id->to = *(struct sockaddr_in *)(void *)dst;
    push_event(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    unlock();
    return 0;
}

static int resolve_route(struct rdma_cm_id *pub, int timeout_ms)
{
    (void)timeout_ms;
    lock();
    push_event(GR_CONTAINER_OF(pub, struct fake_id, pub), RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    unlock();
    return 0;
}

static int set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t bytes)
{
    GR_ASSERT(id != NULL && level == RDMA_OPTION_ID && name == RDMA_OPTION_ID_ACK_TIMEOUT && value != NULL &&
              bytes == 1);
    return 0;
}

static int connect_id(struct rdma_cm_id *pub, struct rdma_conn_param *param)
{
    struct fake_id *id = GR_CONTAINER_OF(pub, struct fake_id, pub), *listener = NULL;
    if (param->private_data_len > 56) {
        return fail(EINVAL);
    }
    lock();
    for (int i = 0; i < N_ID && listener == NULL; i++) {
        struct fake_id *l = fake.id[i];
        listener = l != NULL && l->port != 0 && l->port == ntohs(id->to.sin_port) ? l : NULL;
    }
    if (fake_knobs.swallow) {
        listener = NULL; /* nothing ever comes of it */
    } else if (listener == NULL) {
        push_event(id, RDMA_CM_EVENT_REJECTED, 8);
    } else {
        struct fake_id *new_id = id_make(listener->pub.channel);
        new_id->pub.verbs = listener->pub.verbs;
        new_id->other = id;
        id->other = new_id;
        struct rdma_cm_event *e = push_event(new_id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        struct fake_event *fe = GR_CONTAINER_OF(e, struct fake_event, pub);
        memcpy(fe->data, param->private_data, param->private_data_len);
        fe->data[20] ^= fake_knobs.spoil_private_data;
        e->param.conn.private_data = fe->data;
        e->param.conn.private_data_len = 56; /* padded */
    }
    unlock();
    return 0;
}

static int listen_id(struct rdma_cm_id *pub, int backlog)
{
    (void)backlog;
    lock();
    GR_CONTAINER_OF(pub, struct fake_id, pub)->port = fake.next_port++;
    unlock();
    return 0;
}

static int accept_id(struct rdma_cm_id *pub, struct rdma_conn_param *param)
{
    struct fake_id *id = GR_CONTAINER_OF(pub, struct fake_id, pub);
    (void)param;
    lock();
    if (id->other != NULL && id->other->pub.qp != NULL) {
        struct fake_qp *a = GR_CONTAINER_OF(pub->qp, struct fake_qp, pub);
        struct fake_qp *b = GR_CONTAINER_OF(id->other->pub.qp, struct fake_qp, pub);
        a->peer = b;
        b->peer = a;
        push_event(id, RDMA_CM_EVENT_ESTABLISHED, 0);
        push_event(id->other, RDMA_CM_EVENT_ESTABLISHED, 0);
    }
    unlock();
    return 0;
}

static int reject_id(struct rdma_cm_id *pub, const void *data, uint8_t bytes)
{
    struct fake_id *id = GR_CONTAINER_OF(pub, struct fake_id, pub);
    (void)data;
    (void)bytes;
    lock();
    if (id->other != NULL) {
        push_event(id->other, RDMA_CM_EVENT_REJECTED, 28);
        id->other->other = NULL;
        id->other = NULL;
    }
    unlock();
    return 0;
}

static int disconnect_id(struct rdma_cm_id *pub)
{
    lock();
    part(GR_CONTAINER_OF(pub, struct fake_id, pub));
    if (pub->qp != NULL) {
        go_to_error(GR_CONTAINER_OF(pub->qp, struct fake_qp, pub));
    }
    unlock();
    return 0;
}

static __be16 get_src_port(struct rdma_cm_id *pub)
{
    return htons(GR_CONTAINER_OF(pub, struct fake_id, pub)->port);
}

static void forget_removed_devices(void)
{
}

/* ---- events of a device ---- */

void fake_remove_device(int i_device)
{
    lock();
    for (int i = 0; i < N_ID; i++) {
        if (fake.id[i] != NULL && fake.id[i]->pub.verbs == &fake.context[i_device]) {
            push_event(fake.id[i], RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
        }
    }
    unlock();
}

void fake_port_event(int i_device, enum ibv_event_type type)
{
    lock();
    fake.async[i_device] = (struct ibv_async_event){.event_type = type, .element.port_num = 1};
    bell_ring(fake.context[i_device].async_fd);
    unlock();
}

static int get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    if (!bell_take(context->async_fd)) {
        return fail(EAGAIN);
    }
    lock();
    *event = fake.async[context - fake.context];
    unlock();
    return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

const struct gr_verbs_lib fake_verbs = {
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
    .create_comp_channel = create_comp_channel,
    .destroy_comp_channel = destroy_comp_channel,
    .create_cq = create_cq,
    .destroy_cq = destroy_cq,
    .modify_qp = modify_qp,
    .get_async_event = get_async_event,
    .ack_async_event = ack_async_event,
    .post_send = post_send,
    .post_recv = post_recv,
    .poll_cq = poll_cq,
    .req_notify_cq = req_notify_cq,
    .get_cq_event = get_cq_event,
    .ack_cq_events = ack_cq_events,
    .create_event_channel = create_event_channel,
    .destroy_event_channel = destroy_event_channel,
    .create_id = create_id,
    .destroy_id = destroy_id,
    .bind_addr = bind_addr,
    .resolve_addr = resolve_addr,
    .resolve_route = resolve_route,
    .set_option = set_option,
    .create_qp = create_qp,
    .destroy_qp = destroy_qp,
    .connect = connect_id,
    .listen = listen_id,
    .accept = accept_id,
    .reject = reject_id,
    .disconnect = disconnect_id,
    .get_cm_event = get_cm_event,
    .ack_cm_event = ack_cm_event,
    .get_src_port = get_src_port,
    .forget_removed_devices = forget_removed_devices,
};
