/* A verbs connection's memory and what its other files stand on: slots, receives that are free again, the end. */
#include "transport/verbs/verbs_conn.h"
#include "common/base/log.h"

#include <stdlib.h>
#include <sys/socket.h>

#define N_REPOST 16u /* receives that are posted by one call */

void gr_verbs_lose(struct gr_verbs_conn *v, bool is_error, const char *why)
{
    if (v->gone) {
        return;
    }
    v->gone = true;
    v->broke = true;
    gr_log_line(is_error ? GR_LOG_ERROR : GR_LOG_INFO, "verbs: connection %u over %s is gone: %s",
                v->base.conn_generation, v->memory->device.name, why);
}

void gr_verbs_throw_out(struct gr_verbs_conn *v, const char *fault, const struct gr_verbs_header *h,
                        uint32_t record_bytes)
{
    v->failed = true;
    v->gone = true;
    log_error("verbs: %s from the peer (generation %u, class %u, sequence %u, %u bytes in a record of %u, limits %u "
              "small, %u bulk); closing",
              fault, v->base.conn_generation, h->class, h->sequence, h->bytes, record_bytes,
              v->base.limits.small_bytes_max, v->base.limits.bulk_bytes_max);
    (void)v->lib->disconnect(v->link.id);
    shutdown(v->fd, SHUT_RDWR);
}

static size_t slots_bytes(uint32_t n)
{
    return gr_round_up(n * (2 * sizeof(uint16_t) + sizeof(uint32_t) + sizeof(uint8_t)), 16);
}

/* p: slots_bytes(n) of zeroed memory, aligned to 4. */
static uint8_t *slots_init(struct gr_verbs_slots *s, uint32_t n, uint8_t *p)
{
    s->n_slot = n;
    s->bytes = (uint32_t *)(void *)p;
    s->free = (uint16_t *)(void *)(p + n * sizeof(uint32_t));
    s->queue = s->free + n;
    s->state = (uint8_t *)(s->queue + n);
    for (uint32_t i = 0; i < n; i++) {
        s->free[s->n_free++] = (uint16_t)(n - 1 - i);
    }
    return p + slots_bytes(n);
}

static size_t copy_stride(const struct gr_verbs_layout *l)
{
    const uint32_t here = l->mode.far ? GR_MIN(l->limits.bulk_bytes_max, GR_BULK_HEAD_BYTES) : l->limits.bulk_bytes_max;
    return gr_round_up(GR_MAX(here, 1u), GR_SLOT_ALIGN);
}

enum gr_status gr_verbs_conn_init(struct gr_verbs_conn *v)
{
    const struct gr_verbs_layout *l = &v->memory->layout;
    const uint32_t n_bulk = l->limits.n_bulk_slot;
    size_t bytes = slots_bytes(l->n_recv) + slots_bytes(n_bulk) + l->n_recv * sizeof(uint16_t);
    for (int k = 0; k < GR_N_VERBS_OUT; k++) {
        bytes += slots_bytes(l->n_out[k]);
    }
    const size_t copy_bytes = copy_stride(l) * GR_MAX(n_bulk, 1u);
    v->arena = calloc(1, bytes);
    v->copies = aligned_alloc(GR_SLOT_ALIGN, copy_bytes);
    if (v->arena == NULL || v->copies == NULL) {
        log_error("verbs: no memory for a connection's slots");
        return GR_ENOMEM;
    }
    uint8_t *p = v->arena;
    for (int k = 0; k < GR_N_VERBS_OUT; k++) {
        p = slots_init(&v->out[k], l->n_out[k], p);
    }
    p = slots_init(&v->bulk, n_bulk, p);
    p = slots_init(&v->in, l->n_recv, p);
    v->repost = (uint16_t *)(void *)p;
    for (uint32_t i = 0; i < l->n_recv; i++) {
        v->repost[v->n_repost++] = (uint16_t)i;
    }
    v->n_credit[GR_FRAME_SMALL] = l->limits.n_small_slot;
    v->n_credit[GR_FRAME_BULK] = n_bulk;
    v->base.limits = l->limits;
    v->base.far = l->mode.far ? v->memory->bodies.far : NULL;
    v->mode = l->mode;
    v->stats.two_sided = l->mode.two_sided;
    v->stats.far_path = v->memory->bodies.path;
    return GR_OK;
}

enum gr_status gr_verbs_repost(struct gr_verbs_conn *v)
{
    while (v->n_repost > 0 && !v->gone) {
        struct ibv_recv_wr wr[N_REPOST], *bad = NULL;
        struct ibv_sge sge[N_REPOST];
        const uint32_t n = GR_MIN(v->n_repost, N_REPOST);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t slot = v->repost[v->n_repost - 1 - i], head = v->mode.two_sided ? GR_VERBS_HEADER_BYTES : 0;
            sge[i] =
                (struct ibv_sge){.addr = (uintptr_t)gr_verbs_recv_slot(v->memory, slot) - head,
                                 .length = (uint32_t)(v->memory->layout.recv_stride - v->memory->layout.head) + head,
                                 .lkey = v->memory->local_mr->lkey};
            wr[i] = (struct ibv_recv_wr){
                .wr_id = slot, .sg_list = &sge[i], .num_sge = 1, .next = i + 1 < n ? &wr[i + 1] : NULL};
        }
        if (v->lib->post_recv(v->link.id->qp, wr, &bad) != 0) {
            gr_verbs_lose(v, true, "the device refused a receive");
            return GR_ECLOSED;
        }
        for (uint32_t i = 0; i < n; i++) {
            v->in.state[v->repost[--v->n_repost]] = GR_VERBS_POSTED;
        }
        v->n_recv_posted += n;
    }
    return v->gone ? GR_ECLOSED : GR_OK;
}

void gr_verbs_recv_done(struct gr_verbs_conn *v, uint32_t slot)
{
    v->in.state[slot] = GR_VERBS_FREE;
    v->repost[v->n_repost++] = (uint16_t)slot;
}

uint8_t *gr_verbs_copy_of(const struct gr_verbs_conn *v, uint32_t slot)
{
    return v->copies + slot * copy_stride(&v->memory->layout);
}

uint8_t *gr_verbs_out_body(const struct gr_verbs_conn *v, uint32_t slot)
{
    const struct gr_verbs_bodies *b = &v->memory->bodies;
    return v->mode.far ? b->out + slot * b->stride : NULL;
}

uint8_t *gr_verbs_copy_body(const struct gr_verbs_conn *v, uint32_t slot)
{
    const struct gr_verbs_bodies *b = &v->memory->bodies;
    return v->mode.far ? b->copies + slot * b->stride : NULL;
}
