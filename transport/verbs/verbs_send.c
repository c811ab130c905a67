/* Records out: queued frames become linked work requests, and one doorbell tells of them all. Decisions D-088, D-093.
 */
#include "transport/verbs/verbs_conn.h"

#include "common/base/bytes.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define N_BATCH 16u /* work requests that one doorbell rings for, at most */
/* Bulk bytes on the send queue beyond this make the next frame wait, so that a small frame never waits for more. */
#define BULK_WINDOW_BYTES (256u * 1024u)
/* Places on the send queue that bulk frames leave to small frames and credits. */
#define N_WR_RESERVED 64u

/* ---- credits ---- */

/* As tcp: in a record of their own once the peer may have used up half of its slots. */
static bool class_due(const struct gr_verbs_conn *v, int class)
{
    const uint32_t n_slot = gr_class_n_slot(&v->base.limits, class);
    const uint32_t n_held = class == GR_FRAME_SMALL ? v->n_small_held : v->bulk.n_slot - v->bulk.n_free;
    return v->n_owed[class] > 0 && 2 * (n_held + v->n_owed[class]) >= n_slot;
}

/* Records of credits take receives that the peer keeps for them, two a class. A peer that waits for a credit of this
 * class has used up those of the records before, and each frame said that it had taken them: so it never waits for a
 * record that this limit holds back. */
static int due_class(const struct gr_verbs_conn *v)
{
    for (int k = 0; k < GR_N_FRAME_CLASS; k++) {
        if (class_due(v, k) && v->n_credit_record_of[k] < GR_VERBS_N_CREDIT / GR_N_FRAME_CLASS) {
            return k;
        }
    }
    return -1;
}

bool gr_verbs_credits_due(const struct gr_verbs_conn *v)
{
    return due_class(v) >= 0 && v->out[GR_VERBS_OUT_CREDIT].n_free > 0;
}

/* ---- work requests ---- */

struct batch {
    struct ibv_send_wr wr[N_BATCH];
    struct ibv_sge sge[N_BATCH][GR_VERBS_N_SEND_SGE];
    struct gr_verbs_sent sent[N_BATCH];
    uint32_t n;
};

static uint32_t n_wr_room(const struct gr_verbs_conn *v, const struct batch *b)
{
    return v->link.n_send - (uint32_t)(v->n_posted - v->n_done) - b->n;
}

struct record {
    enum gr_verbs_out kind;
    uint32_t slot;
    uint8_t *header; /* two-sided: where it goes */
    uint8_t *payload;
    uint8_t *body; /* where the payload goes on after its first body_at bytes; NULL: it is in one piece */
    uint32_t bytes, body_at;
    bool more;
};

/* What can be said of a count that is owed: each of it stands for a receive, and n_repost are not posted yet. */
static uint32_t take_owed(const struct gr_verbs_conn *v, uint32_t *owed)
{
    const uint32_t n = *owed - GR_MIN(*owed, v->n_repost);
    *owed -= n;
    return n;
}

/* The credits that are owed go with it. */
static struct gr_verbs_header header_of(struct gr_verbs_conn *v, const struct record *r)
{
    const struct gr_verbs_header h = {.class = (uint32_t)r->kind, /* the classes are numbered alike */
                                      .more = r->more,
                                      .n_credit = {take_owed(v, &v->n_owed[0]), take_owed(v, &v->n_owed[1])},
                                      .n_credit_record = take_owed(v, &v->n_owed_record),
                                      .sequence = v->send_sequence++,
                                      .bytes = r->bytes};
    return h;
}

static struct ibv_sge sge_of(const struct gr_verbs_conn *v, const uint8_t *p, uint32_t bytes)
{
    return (struct ibv_sge){.addr = (uintptr_t)p, .length = bytes, .lkey = v->memory->local_mr->lkey};
}

static void add_piece(struct ibv_send_wr *wr, struct ibv_sge sge)
{
    if (sge.length > 0) {
        wr->sg_list[wr->num_sge++] = sge;
    }
}

/* A payload in its pieces. Only what is in the host's memory may be inlined: the processor copies it. */
static void add_payload(const struct gr_verbs_conn *v, const struct record *r, struct ibv_send_wr *wr)
{
    const uint32_t here = r->body != NULL ? GR_MIN(r->bytes, r->body_at) : r->bytes;
    add_piece(wr, sge_of(v, r->payload, here));
    if (here < r->bytes) {
        struct ibv_sge sge = sge_of(v, r->body, r->bytes - here);
        sge.lkey = v->memory->bodies.out_mr->lkey;
        add_piece(wr, sge);
    }
}

static void allow_inline(struct gr_verbs_conn *v, const struct record *r, struct ibv_send_wr *wr, uint32_t length)
{
    const bool far = r->body != NULL && r->bytes > r->body_at;
    if (length > 0 && length <= v->link.inline_bytes && !far) {
        wr->send_flags |= IBV_SEND_INLINE;
        v->stats.n_inline++;
    }
}

/* The header is the immediate data. A record without a payload has no element: some devices take a length of 0 for the
 * most there is. */
static uint32_t fill_beside(struct gr_verbs_conn *v, const struct record *r, struct ibv_send_wr *wr)
{
    const struct gr_verbs_header h = header_of(v, r);
    wr->imm_data = htonl(gr_verbs_imm_encode(&h));
    wr->opcode = IBV_WR_SEND_WITH_IMM;
    add_payload(v, r, wr);
    if (r->kind == GR_VERBS_OUT_BULK) {
        const struct gr_verbs_layout *l = &v->memory->layout;
        const uint32_t slot = v->n_bulk_sent % v->base.limits.n_bulk_slot;
        wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr->wr.rdma.remote_addr =
            l->mode.apart ? v->remote_body + slot * l->body_stride : v->remote_inbox + slot * l->bulk_stride;
        wr->wr.rdma.rkey = l->mode.apart ? v->remote_body_key : v->remote_key;
    }
    return r->bytes;
}

static uint32_t fill_in_front(struct gr_verbs_conn *v, const struct record *r, struct ibv_send_wr *wr)
{
    const struct gr_verbs_header h = header_of(v, r);
    const uint32_t length = GR_VERBS_HEADER_BYTES + r->bytes;
    const bool whole = r->header + GR_VERBS_HEADER_BYTES == r->payload && r->body == NULL;
    gr_verbs_header_encode(&h, r->header);
    wr->opcode = IBV_WR_SEND;
    add_piece(wr, sge_of(v, r->header, whole ? length : GR_VERBS_HEADER_BYTES));
    if (!whole) {
        add_payload(v, r, wr);
    }
    return length;
}

static void add_record(struct gr_verbs_conn *v, struct batch *b, const struct record *r)
{
    const uint32_t i = b->n++;
    struct ibv_send_wr *wr = &b->wr[i];
    *wr = (struct ibv_send_wr){.wr_id = GR_VERBS_SEND_WR_BIT | (v->n_posted + i), .sg_list = b->sge[i]};
    b->sent[i] = (struct gr_verbs_sent){
        .kind = (uint8_t)r->kind, .slot = (uint16_t)r->slot, .bytes = r->bytes, .last = !r->more};
    allow_inline(v, r, wr, v->mode.two_sided ? fill_in_front(v, r, wr) : fill_beside(v, r, wr));
    if (r->kind == GR_VERBS_OUT_BULK || ++v->n_since_signal >= v->memory->layout.signal_interval) {
        wr->send_flags |= IBV_SEND_SIGNALED;
        v->n_since_signal = 0;
    }
}

/* A frame: a header in front lies right before the payload. */
static void add_whole(struct gr_verbs_conn *v, struct batch *b, enum gr_verbs_out kind, uint32_t slot, uint32_t bytes)
{
    uint8_t *p = gr_verbs_out_slot(v->memory, kind, slot);
    add_record(v, b,
               &(struct record){
                   .kind = kind, .slot = slot, .header = p - GR_VERBS_HEADER_BYTES, .payload = p, .bytes = bytes});
}

static void add_small(struct gr_verbs_conn *v, struct batch *b)
{
    struct gr_verbs_slots *s = &v->out[GR_VERBS_OUT_SMALL];
    while (s->n_queued > 0 && b->n < N_BATCH && n_wr_room(v, b) > 1) {
        const uint32_t slot = gr_verbs_slot_pop(s);
        add_whole(v, b, GR_VERBS_OUT_SMALL, slot, s->bytes[slot]);
        v->n_unacked[GR_FRAME_SMALL]++;
    }
}

/* Bodies apart: the frame's length and head are written first. The peer looks at them when the body's record has come,
 * which a queue pair delivers after them. The slot comes free with that record. */
static void add_head(struct gr_verbs_conn *v, struct batch *b, uint32_t slot, uint32_t frame_bytes)
{
    const uint32_t i = b->n++, length = GR_VERBS_LENGTH_BYTES + GR_MIN(frame_bytes, GR_BULK_HEAD_BYTES);
    uint8_t *p = gr_verbs_out_slot(v->memory, GR_VERBS_OUT_BULK, slot) - GR_VERBS_LENGTH_BYTES;
    struct gr_writer w = {.p = p, .cap = GR_VERBS_LENGTH_BYTES};
    gr_write_u32(&w, frame_bytes);
    struct ibv_send_wr *wr = &b->wr[i];
    *wr = (struct ibv_send_wr){
        .wr_id = GR_VERBS_SEND_WR_BIT | (v->n_posted + i), .sg_list = b->sge[i], .opcode = IBV_WR_RDMA_WRITE};
    wr->wr.rdma.remote_addr =
        v->remote_inbox + v->n_bulk_sent % v->base.limits.n_bulk_slot * v->memory->layout.bulk_stride;
    wr->wr.rdma.rkey = v->remote_key;
    wr->send_flags = length <= v->link.inline_bytes ? IBV_SEND_INLINE : 0;
    add_piece(wr, sge_of(v, p, length));
    b->sent[i] = (struct gr_verbs_sent){.kind = GR_N_VERBS_OUT};
}

/* What of the first queued bulk frame goes next: bytes from v->bulk_at on. */
static struct record next_of_bulk(const struct gr_verbs_conn *v, uint32_t slot, uint32_t bytes)
{
    uint8_t *p = gr_verbs_out_slot(v->memory, GR_VERBS_OUT_BULK, slot), *body = gr_verbs_out_body(v, slot);
    const uint32_t i_part = v->mode.two_sided ? v->bulk_at / v->memory->layout.part_bytes : 0;
    const uint32_t here = GR_BULK_HEAD_BYTES - GR_MIN(v->bulk_at, GR_BULK_HEAD_BYTES); /* of the head */
    return (struct record){.kind = GR_VERBS_OUT_BULK,
                           .slot = slot,
                           .header = p - (i_part + 1) * GR_VERBS_HEADER_BYTES,
                           .payload = p + v->bulk_at,
                           .body = body != NULL ? body + (v->bulk_at + here - GR_BULK_HEAD_BYTES) : NULL,
                           .body_at = here,
                           .bytes = bytes};
}

/* One record: a frame or, with its head in another, its body; in two-sided mode a part of one, and a further part's
 * header lies apart from its payload. false: no more now. */
static bool add_bulk(struct gr_verbs_conn *v, struct batch *b)
{
    struct gr_verbs_slots *s = &v->out[GR_VERBS_OUT_BULK];
    if (s->n_queued == 0 || b->n + 2 > N_BATCH || n_wr_room(v, b) <= N_WR_RESERVED + 1) {
        return false;
    }
    const uint32_t slot = gr_verbs_slot_peek(s), frame_bytes = s->bytes[slot];
    if (v->mode.apart) {
        v->bulk_at = GR_MIN(frame_bytes, GR_BULK_HEAD_BYTES);
    }
    const uint32_t left = frame_bytes - v->bulk_at;
    const uint32_t bytes = v->mode.two_sided ? GR_MIN(left, v->memory->layout.part_bytes) : left;
    if (v->bulk_in_flight > 0 && v->bulk_in_flight + bytes > BULK_WINDOW_BYTES) {
        return false;
    }
    if (v->mode.apart) {
        add_head(v, b, slot, frame_bytes);
    }
    struct record r = next_of_bulk(v, slot, bytes);
    r.more = bytes < left;
    v->bulk_in_flight += GR_VERBS_HEADER_BYTES + bytes;
    add_record(v, b, &r);
    v->bulk_at += bytes;
    if (bytes == left) {
        (void)gr_verbs_slot_pop(s);
        v->bulk_at = 0;
        v->n_bulk_sent++;
        v->n_unacked[GR_FRAME_BULK]++;
    }
    return true;
}

/* bytes: of a payload, which only the first record has. It lies in a slot of small frames: none of them has been used
 * yet, and no frame is sent before the peer has had that record. */
static void add_credit(struct gr_verbs_conn *v, struct batch *b, int class, uint32_t bytes)
{
    const uint32_t slot = gr_verbs_slot_take(&v->out[GR_VERBS_OUT_CREDIT]);
    uint8_t *own = gr_verbs_out_slot(v->memory, GR_VERBS_OUT_CREDIT, slot);
    add_record(v, b,
               &(struct record){.kind = GR_VERBS_OUT_CREDIT,
                                .slot = slot,
                                .header = own - GR_VERBS_HEADER_BYTES,
                                .payload = bytes > 0 ? gr_verbs_out_slot(v->memory, GR_VERBS_OUT_SMALL, 0) : own,
                                .bytes = bytes});
    v->credit_class[v->n_credit_record++] = (uint8_t) class;
    v->n_credit_record_of[class]++;
    v->stats.n_credit_sent++;
}

/* What the device took itself, or has no bytes, has left its slot already. */
static void book(struct gr_verbs_conn *v, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        struct gr_verbs_sent sent = b->sent[i];
        const bool left = (b->wr[i].send_flags & IBV_SEND_INLINE) != 0 || b->wr[i].num_sge == 0;
        if (left && sent.kind < GR_N_VERBS_OUT && sent.kind != GR_VERBS_OUT_BULK) {
            gr_verbs_slot_free(&v->out[sent.kind], sent.slot);
            sent.kind = GR_N_VERBS_OUT;
        }
        v->sent[v->n_posted++ % GR_VERBS_SENT_MAX] = sent;
    }
}

static enum gr_status post(struct gr_verbs_conn *v, struct batch *b)
{
    struct ibv_send_wr *bad = NULL;
    for (uint32_t i = 0; i + 1 < b->n; i++) {
        b->wr[i].next = &b->wr[i + 1];
    }
    const int err = v->lib->post_send(v->link.id->qp, b->wr, &bad);
    v->stats.n_post++;
    if (err != 0) {
        char why[96];
        snprintf(why, sizeof(why), "the device refused a send: %s", strerror(err < 0 ? -err : err));
        gr_verbs_lose(v, true, why);
        return GR_ECLOSED;
    }
    book(v, b);
    return GR_OK;
}

enum gr_status gr_verbs_push(struct gr_verbs_conn *v)
{
    while (!v->gone) {
        struct batch b;
        b.n = 0;
        add_small(v, &b);
        while (v->out[GR_VERBS_OUT_SMALL].n_queued == 0 && add_bulk(v, &b)) {
            continue;
        }
        if (b.n == 0) {
            GR_TRY(gr_verbs_repost(v)); /* after the frames, which somebody waits for; before credits alone */
            if (gr_verbs_credits_due(v) && n_wr_room(v, &b) > 0) {
                add_credit(v, &b, due_class(v), 0);
            }
        }
        if (b.n == 0) {
            v->stuck = v->out[GR_VERBS_OUT_SMALL].n_queued + v->out[GR_VERBS_OUT_BULK].n_queued > 0;
            return v->stuck ? GR_AGAIN : GR_OK;
        }
        GR_TRY(post(v, &b));
    }
    return GR_ECLOSED;
}

enum gr_status gr_verbs_push_credit(struct gr_verbs_conn *v, uint32_t bytes)
{
    struct batch b;
    b.n = 0;
    v->n_since_signal = v->memory->layout.signal_interval; /* its slot comes back at once */
    memset(gr_verbs_out_slot(v->memory, GR_VERBS_OUT_SMALL, 0), 0, bytes);
    add_credit(v, &b, GR_FRAME_SMALL, bytes);
    return post(v, &b);
}

void gr_verbs_sent_done(struct gr_verbs_conn *v, uint64_t wr_id)
{
    const uint64_t count = wr_id & ~GR_VERBS_SEND_WR_BIT;
    while (v->n_done <= count && v->n_done < v->n_posted) {
        const struct gr_verbs_sent *s = &v->sent[v->n_done++ % GR_VERBS_SENT_MAX];
        if (s->kind == GR_VERBS_OUT_BULK) {
            v->bulk_in_flight -= GR_VERBS_HEADER_BYTES + s->bytes;
        }
        if (s->kind < GR_N_VERBS_OUT && s->last) {
            gr_verbs_slot_free(&v->out[s->kind], s->slot);
        }
    }
}
