#include "tests/transport/fake_verbs_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- connections ---- */

static struct rdma_event_channel *create_event_channel(void)
{
    struct fake_channel *c = calloc(1, sizeof(*c));
    c->pub.fd = fake_bell_make();
    fake_lock();
    fake.counts.n_channel++;
    fake_unlock();
    return &c->pub;
}

static void destroy_event_channel(struct rdma_event_channel *pub)
{
    fake_lock();
    for (int i = 0; i < FAKE_N_ID; i++) {
        GR_ASSERT(fake.id[i] == NULL || fake.id[i]->pub.channel != pub);
    }
    fake.counts.n_channel--;
    fake_unlock();
    close(pub->fd);
    free(GR_CONTAINER_OF(pub, struct fake_channel, pub));
}

struct rdma_cm_event *fake_push_event(struct fake_id *id, enum rdma_cm_event_type type, int status)
{
    struct fake_channel *c = GR_CONTAINER_OF(id->pub.channel, struct fake_channel, pub);
    GR_ASSERT(c->n_in - c->n_out < FAKE_N_EVENT);
    struct fake_event *e = &c->events[c->n_in++ % FAKE_N_EVENT];
    *e = (struct fake_event){.pub = {.id = &id->pub, .event = type, .status = status}};
    fake_bell_ring(c->pub.fd);
    return &e->pub;
}

static int get_cm_event(struct rdma_event_channel *pub, struct rdma_cm_event **out)
{
    struct fake_channel *c = GR_CONTAINER_OF(pub, struct fake_channel, pub);
    if (!fake_bell_take(pub->fd)) {
        return fake_fail(EAGAIN);
    }
    fake_lock();
    *out = &c->events[c->n_out++ % FAKE_N_EVENT].pub;
    fake_unlock();
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
        GR_ASSERT(++i < FAKE_N_ID);
    }
    fake.id[i] = id;
    fake.counts.n_id++;
    return id;
}

static int create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *user, enum rdma_port_space ps)
{
    (void)user;
    (void)ps;
    fake_lock();
    *out = &id_make(channel)->pub;
    fake_unlock();
    return 0;
}

static void part(struct fake_id *id)
{
    if (id->other != NULL && !id->disconnected) {
        id->disconnected = id->other->disconnected = true;
        if (id->other->pub.qp != NULL) {
            fake_push_event(id->other, RDMA_CM_EVENT_DISCONNECTED, 0);
        }
    }
}

static int destroy_id(struct rdma_cm_id *pub)
{
    struct fake_id *id = GR_CONTAINER_OF(pub, struct fake_id, pub);
    GR_ASSERT(pub->qp == NULL);
    fake_lock();
    part(id);
    if (id->other != NULL) {
        id->other->other = NULL;
    }
    int i = 0;
    while (fake.id[i] != id) {
        GR_ASSERT(++i < FAKE_N_ID);
    }
    fake.id[i] = NULL;
    fake.counts.n_id--;
    fake_unlock();
    free(id);
    return 0;
}

/* The device at 10.9.0.N or fd09::N, and the port; NULL: none. */
static struct ibv_context *at_address(const struct sockaddr *addr, uint16_t *port)
{
    union {
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a;
    struct in6_addr net;
    const bool is_v4 = addr->sa_family == AF_INET;
    GR_ASSERT(is_v4 || addr->sa_family == AF_INET6);
    memcpy(&a, addr, is_v4 ? sizeof(a.v4) : sizeof(a.v6));
    *port = ntohs(is_v4 ? a.v4.sin_port : a.v6.sin6_port);
    uint32_t host = is_v4 ? ntohl(a.v4.sin_addr.s_addr) - 0x0a090000 : a.v6.sin6_addr.s6_addr[15];
    if (!is_v4) {
        GR_ASSERT(inet_pton(AF_INET6, "fd09::", &net) == 1);
        host = memcmp(&net, &a.v6.sin6_addr, 15) == 0 ? host : 0;
    }
    return host == 1 || host == 2 ? &fake.context[host - 1] : NULL;
}

static int bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
    uint16_t port;
    struct ibv_context *context = at_address(addr, &port);
    if (context == NULL) {
        return fake_fail(EADDRNOTAVAIL);
    }
    id->verbs = context;
    return 0;
}

static int resolve_addr(struct rdma_cm_id *pub, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
    struct fake_id *id = GR_CONTAINER_OF(pub, struct fake_id, pub);
    (void)timeout_ms;
    if (bind_addr(pub, src) != 0) {
        return -1;
    }
    if (src->sa_family != dst->sa_family) {
        return fake_fail(EINVAL);
    }
    fake_lock();
    (void)at_address(dst, &id->to_port);
    fake_push_event(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    fake_unlock();
    return 0;
}

static int resolve_route(struct rdma_cm_id *pub, int timeout_ms)
{
    (void)timeout_ms;
    fake_lock();
    fake_push_event(GR_CONTAINER_OF(pub, struct fake_id, pub), RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    fake_unlock();
    return 0;
}

static int set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t bytes)
{
    GR_ASSERT(id != NULL && level == RDMA_OPTION_ID && name == RDMA_OPTION_ID_ACK_TIMEOUT && value != NULL &&
              bytes == 1);
    fake_lock();
    fake.counts.ack_timeout = *(const uint8_t *)value;
    fake_unlock();
    return 0;
}

static int connect_id(struct rdma_cm_id *pub, struct rdma_conn_param *param)
{
    struct fake_id *id = GR_CONTAINER_OF(pub, struct fake_id, pub), *listener = NULL;
    if (param->private_data_len > 56) {
        return fake_fail(EINVAL);
    }
    fake_lock();
    for (int i = 0; i < FAKE_N_ID && listener == NULL; i++) {
        struct fake_id *l = fake.id[i];
        listener = l != NULL && l->port != 0 && l->port == id->to_port ? l : NULL;
    }
    if (fake_knobs.swallow) {
        listener = NULL; /* nothing ever comes of it */
    } else if (listener == NULL) {
        fake_push_event(id, RDMA_CM_EVENT_REJECTED, 8);
    } else {
        struct fake_id *new_id = id_make(listener->pub.channel);
        new_id->pub.verbs = listener->pub.verbs;
        new_id->other = id;
        id->other = new_id;
        struct rdma_cm_event *e = fake_push_event(new_id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        struct fake_event *fe = GR_CONTAINER_OF(e, struct fake_event, pub);
        memcpy(fe->data, param->private_data, param->private_data_len);
        fe->data[fake_knobs.spoil_private_at] ^= fake_knobs.spoil_private_at != 0;
        e->param.conn.private_data = fe->data;
        e->param.conn.private_data_len = 56; /* padded */
    }
    fake_unlock();
    return 0;
}

static int listen_id(struct rdma_cm_id *pub, int backlog)
{
    (void)backlog;
    fake_lock();
    GR_CONTAINER_OF(pub, struct fake_id, pub)->port = fake.next_port++;
    fake_unlock();
    return 0;
}

static int accept_id(struct rdma_cm_id *pub, struct rdma_conn_param *param)
{
    struct fake_id *id = GR_CONTAINER_OF(pub, struct fake_id, pub);
    (void)param;
    fake_lock();
    if (id->other != NULL && id->other->pub.qp != NULL) {
        struct fake_qp *a = GR_CONTAINER_OF(pub->qp, struct fake_qp, pub);
        struct fake_qp *b = GR_CONTAINER_OF(id->other->pub.qp, struct fake_qp, pub);
        a->peer = b;
        b->peer = a;
        fake_push_event(id, RDMA_CM_EVENT_ESTABLISHED, 0);
        fake_push_event(id->other, RDMA_CM_EVENT_ESTABLISHED, 0);
    }
    fake_unlock();
    return 0;
}

static int reject_id(struct rdma_cm_id *pub, const void *data, uint8_t bytes)
{
    struct fake_id *id = GR_CONTAINER_OF(pub, struct fake_id, pub);
    (void)data;
    (void)bytes;
    fake_lock();
    if (id->other != NULL) {
        fake_push_event(id->other, RDMA_CM_EVENT_REJECTED, 28);
        id->other->other = NULL;
        id->other = NULL;
    }
    fake_unlock();
    return 0;
}

static int disconnect_id(struct rdma_cm_id *pub)
{
    fake_lock();
    part(GR_CONTAINER_OF(pub, struct fake_id, pub));
    if (pub->qp != NULL) {
        fake_qp_to_error(GR_CONTAINER_OF(pub->qp, struct fake_qp, pub));
    }
    fake_unlock();
    return 0;
}

static __be16 get_src_port(struct rdma_cm_id *pub)
{
    return htons(GR_CONTAINER_OF(pub, struct fake_id, pub)->port);
}

static void forget_removed_devices(void)
{
}

void fake_table_cm(struct gr_verbs_lib *lib)
{
    lib->create_event_channel = create_event_channel;
    lib->destroy_event_channel = destroy_event_channel;
    lib->create_id = create_id;
    lib->destroy_id = destroy_id;
    lib->bind_addr = bind_addr;
    lib->resolve_addr = resolve_addr;
    lib->resolve_route = resolve_route;
    lib->set_option = set_option;
    lib->connect = connect_id;
    lib->listen = listen_id;
    lib->accept = accept_id;
    lib->reject = reject_id;
    lib->disconnect = disconnect_id;
    lib->get_cm_event = get_cm_event;
    lib->ack_cm_event = ack_cm_event;
    lib->get_src_port = get_src_port;
    lib->forget_removed_devices = forget_removed_devices;
}
