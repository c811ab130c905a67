/* Records in: completions become frames in their queues, credits, and slots that are free again.
 *
 * A small frame is handed out in the receive that it came in: nobody but the device writes there, and it not before the
 * receive is posted again. A bulk frame is copied out: the inbox stays writable by the peer. Decision D-092. */
#include "transport/verbs/verbs_conn.h"

#include "common/base/bytes.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define N_POLL 16     /* completions that one call takes */
#define N_POLL_MAX 16 /* batches of one call; then the caller has its turn */

/* ---- headers ---- */

static bool take_credit_records(struct gr_verbs_conn *v, uint32_t n)
{
    if (n > v->n_credit_record) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        v->n_credit_record_of[v->credit_class[i]]--;
    }
    v->n_credit_record -= n;
    memmove(v->credit_class, v->credit_class + n, v->n_credit_record);
    return true;
}

static const char *frame_fault(const struct gr_verbs_conn *v, const struct gr_verbs_header *h)
{
    if (h->class == GR_VERBS_CREDIT) {
        const uint32_t payload = v->n_record == 1 ? gr_verbs_hello_bytes(&v->base.limits) : 0;
        return h->bytes > payload                      ? "credit record with a payload"
               : h->bytes < payload                    ? "first record without its payload"
               : v->n_owed_record == GR_VERBS_N_CREDIT ? "credit record before others were acknowledged"
                                                       : NULL;
    }
    const uint32_t before = h->class == GR_FRAME_BULK && v->in_bulk ? v->bulk_bytes : 0;
    if (h->bytes > gr_class_bytes_max(&v->base.limits, (int)h->class) - before) {
        return "oversize frame";
    }
    if (h->more && (!v->mode.two_sided || h->bytes != v->memory->layout.part_bytes)) {
        return "part of a frame of a wrong size";
    }
    /* A slot that was released is the peer's again only once its credit was returned. */
    const bool room = h->class == GR_FRAME_SMALL
                          ? v->n_small_held + v->n_owed[GR_FRAME_SMALL] < v->base.limits.n_small_slot
                          : v->in_bulk || v->bulk.n_free > v->n_owed[GR_FRAME_BULK];
    return room ? NULL : "frame without a credit";
}

/* NULL, or what is wrong. Takes the credits. */
static const char *take_header(struct gr_verbs_conn *v, const struct gr_verbs_header *h)
{
    const uint32_t mask = v->mode.two_sided ? UINT32_MAX : GR_VERBS_IMM_SEQUENCE_MASK;
    if (h->sequence != (v->recv_sequence & mask)) {
        return "wrong sequence number";
    }
    if (h->n_credit[0] > v->n_unacked[0] || h->n_credit[1] > v->n_unacked[1]) {
        return "more credits returned than were taken";
    }
    if (!take_credit_records(v, h->n_credit_record)) {
        return "more credit records acknowledged than were sent";
    }
    const char *fault = frame_fault(v, h);
    if (fault != NULL) {
        return fault;
    }
    v->recv_sequence++;
    for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
        v->n_unacked[k] -= h->n_credit[k];
        v->n_credit[k] += h->n_credit[k];
    }
    return NULL;
}

/* ---- frames ---- */

/* Adds bytes to the copy: its head is memory of the host, its body may be far, as may be `from`, which is one of both.
 */
static void add_bytes(struct gr_verbs_conn *v, const uint8_t *from, uint32_t bytes)
{
    const struct gr_far_memory *far = v->base.far;
    uint8_t *whole = gr_verbs_copy_of(v, v->bulk_slot), *body = gr_verbs_copy_body(v, v->bulk_slot);
    const uint32_t at = v->bulk_bytes;
    const uint32_t here = body == NULL ? bytes : GR_MIN(bytes, GR_BULK_HEAD_BYTES - GR_MIN(at, GR_BULK_HEAD_BYTES));
    memcpy(whole + at, from, here);
    if (here < bytes && far->copy(far->ctx, body + (at + here - GR_BULK_HEAD_BYTES), from + here, bytes - here) != 0) {
        gr_verbs_lose(v, true, "the memory that holds its frames failed");
    }
    v->bulk_bytes += bytes;
}

static void begin_bulk(struct gr_verbs_conn *v)
{
    if (!v->in_bulk) {
        v->bulk_slot = gr_verbs_slot_take(&v->bulk);
        v->bulk_bytes = 0;
        v->in_bulk = true;
    }
}

/* from: in the inbox or in a receive; as many bytes as the device said came. */
static void take_bulk(struct gr_verbs_conn *v, const struct gr_verbs_header *h, const uint8_t *from)
{
    begin_bulk(v);
    add_bytes(v, from, h->bytes);
    if (!h->more) {
        gr_verbs_slot_push(&v->bulk, v->bulk_slot, v->bulk_bytes);
        v->in_bulk = false;
        v->n_bulk_received++;
    }
}

/* The header, from where this mode has it. NULL, or what is wrong. */
static const char *read_header(const struct gr_verbs_conn *v, const struct ibv_wc *wc, const uint8_t *payload,
                               struct gr_verbs_header *out)
{
    const bool beside = (wc->wc_flags & IBV_WC_WITH_IMM) != 0;
    bool good = beside && !v->mode.two_sided && gr_verbs_imm_decode(ntohl(wc->imm_data), wc->byte_len, out);
    if (v->mode.two_sided && !beside && wc->byte_len >= GR_VERBS_HEADER_BYTES) {
        good = gr_verbs_header_decode(payload - GR_VERBS_HEADER_BYTES, out);
    }
    if (!good) {
        return "malformed header";
    }
    /* Its own words: a device can be at fault, too (soft RoCE: decision D-095). */
    return v->mode.two_sided && wc->byte_len != GR_VERBS_HEADER_BYTES + out->bytes ? "record of a wrong length" : NULL;
}

/* The frame whose body has been written into a slot of the inbox, as the header says: its length and head were before
 * it. The peer could still write them, so they are read once. */
static const char *take_apart(struct gr_verbs_conn *v, const struct gr_verbs_header *h, uint32_t slot)
{
    const struct gr_verbs_layout *l = &v->memory->layout;
    const struct gr_far_memory *far = v->base.far;
    uint8_t head[GR_VERBS_HEAD_BYTES];
    memcpy(head, v->memory->inbox + slot * l->bulk_stride, sizeof(head));
    struct gr_reader r = {.p = head, .len = sizeof(head)};
    const uint32_t bytes = gr_read_u32(&r);
    if (bytes > v->base.limits.bulk_bytes_max || gr_verbs_body_bytes(bytes) != h->bytes) {
        return "record of a wrong length";
    }
    if (far != NULL && far->arrived(far->ctx) != GR_OK) {
        gr_verbs_lose(v, true, "the memory that holds its frames failed");
    }
    begin_bulk(v);
    add_bytes(v, head + GR_VERBS_LENGTH_BYTES, bytes - h->bytes);
    take_bulk(v, h, gr_verbs_inbox_bodies(v->memory) + slot * l->body_stride);
    return NULL;
}

/* A WRITE_WITH_IMM: the receive only tells that it came. Where it went is taken for granted, not believed: what is not
 * in the slot whose turn it is was not sent. */
static const char *take_written(struct gr_verbs_conn *v, const struct ibv_wc *wc, struct gr_verbs_header *h)
{
    const uint32_t n_slot = v->base.limits.n_bulk_slot;
    if (v->mode.two_sided || n_slot == 0) {
        return "write where nothing was granted";
    }
    const char *fault = read_header(v, wc, NULL, h);
    if (fault == NULL && h->class != GR_FRAME_BULK) {
        fault = "malformed header";
    }
    if (fault == NULL) {
        fault = take_header(v, h);
    }
    if (fault != NULL) {
        return fault;
    }
    const uint32_t slot = v->n_bulk_received % n_slot;
    if (v->mode.apart) {
        return take_apart(v, h, slot);
    }
    take_bulk(v, h, v->memory->inbox + slot * v->memory->layout.bulk_stride);
    return NULL;
}

/* NULL, or what is wrong. *keep_out: the receive is a small frame now. */
static const char *take_sent(struct gr_verbs_conn *v, const struct ibv_wc *wc, uint32_t slot, struct gr_verbs_header *h,
                             bool *keep_out)
{
    const uint8_t *p = gr_verbs_recv_slot(v->memory, slot);
    const char *fault = read_header(v, wc, p, h);
    if (fault == NULL && h->class == GR_FRAME_BULK && !v->mode.two_sided) {
        fault = "malformed header";
    }
    if (fault == NULL) {
        fault = take_header(v, h);
    }
    if (fault != NULL) {
        return fault;
    }
    if (h->class == GR_VERBS_CREDIT) {
        v->n_owed_record++;
    } else if (h->class == GR_FRAME_BULK) {
        take_bulk(v, h, p);
    } else {
        gr_verbs_slot_push(&v->in, slot, h->bytes);
        v->n_small_held++;
        *keep_out = true;
    }
    return NULL;
}

static void take_receive(struct gr_verbs_conn *v, const struct ibv_wc *wc)
{
    const uint32_t slot = (uint32_t)wc->wr_id;
    struct gr_verbs_header h = {0};
    bool keep = false;
    GR_ASSERT(slot < v->in.n_slot && v->in.state[slot] == GR_VERBS_POSTED);
    v->n_recv_posted--;
    v->n_record++;
    const char *fault =
        wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM ? take_written(v, wc, &h) : take_sent(v, wc, slot, &h, &keep);
    if (fault != NULL) {
        gr_verbs_throw_out(v, fault, &h, wc->byte_len);
    }
    if (!keep) {
        gr_verbs_recv_done(v, slot);
    }
}

/* ---- completions ---- */

static const char *failure_text(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
        return "the peer's device does not answer (link down, or the machine is gone)";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "the peer had no receive posted (a bug in its credits)";
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
        return "the peer's device refused a record (a bug: wrong key, address or length)";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
        return "our own device refused a record (a bug: wrong key, address or length)";
    case IBV_WC_WR_FLUSH_ERR:
        return "the queue pair was closed";
    default:
        return "the device failed";
    }
}

static void take_failure(struct gr_verbs_conn *v, const struct ibv_wc *wc)
{
    char why[160];
    v->stats.n_rnr += wc->status == IBV_WC_RNR_RETRY_EXC_ERR;
    if (v->gone) {
        return; /* the rest of the queue comes back */
    }
    snprintf(why, sizeof(why), "%s (%s, vendor code 0x%x)", failure_text(wc->status), ibv_wc_status_str(wc->status),
             wc->vendor_err);
    /* What is flushed first tells that the other side closed; its event is on the way. */
    gr_verbs_lose(v, wc->status != IBV_WC_WR_FLUSH_ERR, why);
}

static void take_completion(struct gr_verbs_conn *v, const struct ibv_wc *wc)
{
    if (wc->status != IBV_WC_SUCCESS) {
        take_failure(v, wc);
    } else if ((wc->wr_id & GR_VERBS_SEND_WR_BIT) != 0) {
        gr_verbs_sent_done(v, wc->wr_id);
    } else if (!v->failed) {
        take_receive(v, wc);
    }
}

/* A receiver that polls comes here over and over with nothing to find: that path makes one call, poll_cq's. */
void gr_verbs_pump(struct gr_verbs_conn *v)
{
    struct ibv_wc wc[N_POLL];
    int n = N_POLL;
    for (int i = 0; i < N_POLL_MAX && n == N_POLL; i++) {
        n = v->lib->poll_cq(v->link.cq, N_POLL, wc);
        if (n < 0) {
            gr_verbs_lose(v, true, "the completion queue cannot be read");
            return;
        }
        for (int w = 0; w < n; w++) {
            take_completion(v, &wc[w]);
        }
        if (v->n_repost > 0) {
            (void)gr_verbs_repost(v);
        }
    }
}
