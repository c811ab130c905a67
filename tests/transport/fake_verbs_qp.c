#include "tests/transport/fake_verbs_impl.h"

#include "tests/transport/test_far.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- completions ---- */

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
    struct fake_comp *c = calloc(1, sizeof(*c));
    c->pub = (struct ibv_comp_channel){.context = context, .fd = fake_bell_make()};
    fake_lock();
    fake.counts.n_comp++;
    fake_unlock();
    return &c->pub;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
    struct fake_comp *c = GR_CONTAINER_OF(channel, struct fake_comp, pub);
    GR_ASSERT(c->cq == NULL);
    close(c->pub.fd);
    free(c);
    fake_lock();
    fake.counts.n_comp--;
    fake_unlock();
    return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int n_cqe, void *user, struct ibv_comp_channel *channel,
                                int vector)
{
    (void)vector;
    struct fake_cq *cq = calloc(1, sizeof(*cq));
    GR_ASSERT((uint32_t)n_cqe < FAKE_N_QUEUE);
    cq->pub = (struct ibv_cq){.context = context, .channel = channel, .cq_context = user, .cqe = n_cqe};
    cq->n_cqe = (uint32_t)n_cqe;
    cq->comp = GR_CONTAINER_OF(channel, struct fake_comp, pub);
    cq->comp->cq = cq;
    fake_lock();
    fake.counts.n_cq++;
    fake_unlock();
    return &cq->pub;
}

static int destroy_cq(struct ibv_cq *pub)
{
    struct fake_cq *cq = GR_CONTAINER_OF(pub, struct fake_cq, pub);
    GR_ASSERT(cq->n_acked == cq->n_event); /* the library waits for ever */
    cq->comp->cq = NULL;
    free(cq);
    fake_lock();
    fake.counts.n_cq--;
    fake_unlock();
    return 0;
}

/* Under the lock. */
static void complete(struct fake_cq *cq, const struct ibv_wc *wc)
{
    GR_ASSERT(cq->n_in - cq->n_out < cq->n_cqe); /* an overrun kills a real queue */
    cq->wc[cq->n_in++ % FAKE_N_QUEUE] = *wc;
    if (cq->armed) {
        cq->armed = false;
        fake_bell_ring(cq->comp->pub.fd);
    }
}

static int poll_cq(struct ibv_cq *pub, int n_max, struct ibv_wc *wc)
{
    struct fake_cq *cq = GR_CONTAINER_OF(pub, struct fake_cq, pub);
    int n = 0;
    fake_lock();
    while (n < n_max && cq->n_out != cq->n_in) {
        wc[n++] = cq->wc[cq->n_out++ % FAKE_N_QUEUE];
    }
    fake_unlock();
    return n;
}

static int req_notify_cq(struct ibv_cq *pub, int solicited_only)
{
    (void)solicited_only;
    fake_lock();
    GR_CONTAINER_OF(pub, struct fake_cq, pub)->armed = true;
    fake_unlock();
    return 0;
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **user)
{
    struct fake_comp *c = GR_CONTAINER_OF(channel, struct fake_comp, pub);
    if (!fake_bell_take(c->pub.fd)) {
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

void fake_qp_to_error(struct fake_qp *qp)
{
    if (qp->error) {
        return;
    }
    qp->error = true;
    while (qp->n_out != qp->n_in) {
        complete(cq_of(qp),
                 &(struct ibv_wc){.wr_id = qp->recv[qp->n_out++ % FAKE_N_QUEUE].wr_id, .status = IBV_WC_WR_FLUSH_ERR});
    }
}

static int create_qp(struct rdma_cm_id *pub, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    if (attr->cap.max_inline_data > fake_knobs.inline_max) {
        return fake_fail(EINVAL);
    }
    GR_ASSERT(pd->context == pub->verbs && attr->cap.max_recv_wr < FAKE_N_QUEUE);
    struct fake_qp *qp = calloc(1, sizeof(*qp));
    qp->pub = (struct ibv_qp){
        .context = pub->verbs, .pd = pd, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq, .qp_type = attr->qp_type};
    qp->id = GR_CONTAINER_OF(pub, struct fake_id, pub);
    qp->n_recv_max = attr->cap.max_recv_wr;
    qp->n_sge_max = (int)attr->cap.max_send_sge;
    pub->qp = &qp->pub;
    fake_lock();
    fake.counts.n_qp++;
    fake_unlock();
    return 0;
}

static void destroy_qp(struct rdma_cm_id *pub)
{
    struct fake_qp *qp = GR_CONTAINER_OF(pub->qp, struct fake_qp, pub);
    fake_lock();
    if (qp->peer != NULL) {
        qp->peer->peer = NULL;
    }
    fake.counts.n_qp--;
    pub->qp = NULL;
    fake_unlock();
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
    fake_lock();
    for (; wr != NULL; wr = wr->next) {
        const struct ibv_sge *sge = wr->sg_list;
        GR_ASSERT(wr->num_sge == 1 && fake_in_mr(pub->pd, sge->addr, sge->length, sge->lkey, IBV_ACCESS_LOCAL_WRITE));
        if (qp->error) {
            complete(cq_of(qp), &(struct ibv_wc){.wr_id = wr->wr_id, .status = IBV_WC_WR_FLUSH_ERR});
            continue;
        }
        GR_ASSERT(qp->n_in - qp->n_out < qp->n_recv_max);
        qp->recv[qp->n_in % FAKE_N_QUEUE] = *wr;
        qp->sge[qp->n_in++ % FAKE_N_QUEUE] = *sge;
    }
    fake_unlock();
    return 0;
}

static uint32_t gather(const struct fake_qp *qp, const struct ibv_send_wr *wr, uint8_t *to, size_t room)
{
    uint32_t n = 0;
    GR_ASSERT(wr->num_sge <= qp->n_sge_max);
    for (int i = 0; i < wr->num_sge; i++) {
        const struct ibv_sge *s = &wr->sg_list[i];
        const bool inlined = (wr->send_flags & IBV_SEND_INLINE) != 0;
        GR_ASSERT(inlined || fake_in_mr(qp->pub.pd, s->addr, s->length, s->lkey, 0));
        GR_ASSERT(!inlined || !test_far_is((const void *)(uintptr_t)s->addr)); /* the processor copies it */
        if (n + s->length <= room) {
            test_far_write(to + n, (const void *)(uintptr_t)s->addr, s->length);
        }
        n += s->length;
    }
    GR_ASSERT((wr->send_flags & IBV_SEND_INLINE) == 0 || n <= fake_knobs.inline_max);
    return n;
}

/* Into the peer's memory. bytes_out: how many. */
static enum ibv_wc_status write_remote(const struct fake_qp *qp, const struct ibv_send_wr *wr, uint32_t *bytes_out)
{
    size_t bytes = 0;
    for (int i = 0; i < wr->num_sge; i++) {
        bytes += wr->sg_list[i].length;
    }
    if (!fake_in_mr(qp->peer->pub.pd, wr->wr.rdma.remote_addr, bytes, wr->wr.rdma.rkey, IBV_ACCESS_REMOTE_WRITE)) {
        return IBV_WC_REM_ACCESS_ERR;
    }
    *bytes_out = gather(qp, wr, (uint8_t *)(uintptr_t)wr->wr.rdma.remote_addr, bytes);
    return IBV_WC_SUCCESS;
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
    uint32_t written = 0;
    if (wr->opcode == IBV_WR_RDMA_WRITE) { /* takes no receive */
        const enum ibv_wc_status st = write_remote(qp, wr, &written);
        if (st == IBV_WC_SUCCESS) {
            *(uint8_t *)(uintptr_t)wr->wr.rdma.remote_addr ^= fake_knobs.spoil_head;
        }
        return st;
    }
    if (to->n_in == to->n_out) {
        fake.counts.n_rnr++;
        return IBV_WC_RNR_RETRY_EXC_ERR;
    }
    struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
    const uint32_t at = to->n_out % FAKE_N_QUEUE;
    wc.wr_id = to->recv[at].wr_id;
    if (wr->opcode != IBV_WR_SEND && !fake_knobs.lose_imm) {
        GR_ASSERT(qp->pub.context->device->transport_type != IBV_TRANSPORT_IWARP);
        wc.imm_data = wr->imm_data ^ htonl(fake_knobs.spoil_imm);
        wc.wc_flags = IBV_WC_WITH_IMM;
    }
    if (wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
        wc.opcode = IBV_WC_RECV;
        wc.byte_len = gather(qp, wr, (uint8_t *)(uintptr_t)to->sge[at].addr, to->sge[at].length);
        wc.byte_len += fake_knobs.stretch;
        if (wc.byte_len > to->sge[at].length) {
            return IBV_WC_REM_INV_REQ_ERR;
        }
    } else {
        const enum ibv_wc_status st = write_remote(qp, wr, &written);
        if (st != IBV_WC_SUCCESS) {
            return st;
        }
        wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        wc.byte_len = written;
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
    fake_lock();
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
            fake_qp_to_error(qp);
        }
        if (st == IBV_WC_REM_ACCESS_ERR || st == IBV_WC_REM_INV_REQ_ERR) {
            fake_qp_to_error(qp->peer);
        }
    }
    fake_unlock();
    return 0;
}

void fake_table_qp(struct gr_verbs_lib *lib)
{
    lib->create_comp_channel = create_comp_channel;
    lib->destroy_comp_channel = destroy_comp_channel;
    lib->create_cq = create_cq;
    lib->destroy_cq = destroy_cq;
    lib->modify_qp = modify_qp;
    lib->post_send = post_send;
    lib->post_recv = post_recv;
    lib->poll_cq = poll_cq;
    lib->req_notify_cq = req_notify_cq;
    lib->get_cq_event = get_cq_event;
    lib->ack_cq_events = ack_cq_events;
    lib->create_qp = create_qp;
    lib->destroy_qp = destroy_qp;
}
