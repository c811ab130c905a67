/* The host's state machine over the frames that the device has judged: the project's own decoder, tree check, walk
 * and encoder. Counts where device and host differ in a byte. */
#include "bench/cuda/exchange.h"
#include "common/rules/accept.h"
#include "common/base/log.h"
#include "common/protocol/wire.h"

/* In place of common/base/log.c: thousands of frames are refused on purpose, and the counts say so. */
void gr_log_line(enum gr_log_level level, const char *fmt, ...)
{
    (void)level;
    (void)fmt;
}

static enum gx_fault judge(const struct gx_place *p, const uint8_t *frame, struct gr_token_tree *tree_out)
{
    uint32_t payload_len;
    struct gr_frame_header h;
    memcpy(&payload_len, frame + GR_WIRE_OFF_PAYLOAD_LEN, sizeof(payload_len));
    if (payload_len > GX_FRAME_BYTES - GR_WIRE_HEADER_BYTES) {
        return GX_BAD_HEADER;
    }
    const size_t len = GR_WIRE_HEADER_BYTES + payload_len;
    if (gr_wire_decode_header(frame, len, &h) != GR_OK || h.type != GR_FRAME_DRAFT) {
        return GX_BAD_HEADER;
    }
    if (gr_wire_decode_draft(frame, len, GX_N_VOCAB, tree_out) != GR_OK) {
        return GX_BAD_TREE;
    }
    const int here = h.session == p->session && h.epoch == p->epoch && h.round == p->round &&
                     h.base_len == p->base_len && h.prefix_hash == p->hash;
    return here ? GX_GOOD : GX_BAD_PLACE;
}

static void walk(const struct gx_place *p, const struct gr_token_tree *t, struct gr_walk *out)
{
    const struct gr_stop stop = {.n_new_max = GR_TREE_MAX + 1};
    int32_t pick[GR_TREE_MAX];
    for (int row = 0; row <= t->n; row++) {
        int32_t child = -1;
        for (int i = t->n - 1; i >= row; i--) {
            child = t->parent[i] == row - 1 ? t->token[i] : child;
        }
        pick[row] = gx_pick(p, row, child);
    }
    gr_accept_walk(t, pick, &stop, out);
}

static void encode(const struct gx_place *p, enum gx_fault fault, const struct gr_walk *w, uint64_t hash,
                   int verdict_bytes, uint8_t out[GX_VERDICT_BYTES])
{
    memset(out, 0, GX_VERDICT_BYTES);
    if (verdict_bytes == GX_COMPACT_BYTES) {
        uint64_t set = fault != GX_GOOD ? GX_COMPACT_ROOT_ONLY : 0;
        for (int i = 0; i < w->n_path; i++) {
            set |= 1ull << w->node[i];
        }
        memcpy(out, &p->round, 4);
        memcpy(out + 4, &w->bonus, 4);
        memcpy(out + 8, &set, 8);
        return;
    }
    const struct gr_frame_header h = {
        .session = p->session, .epoch = p->epoch, .round = p->round, .base_len = p->base_len, .prefix_hash = hash};
    struct gr_verdict v = {.draft_round = fault != GX_GOOD ? GR_WIRE_ROOT_ONLY : p->round,
                           .keep_len = p->base_len,
                           .final_len = p->base_len + (uint32_t)w->n_path + 1,
                           .bonus = w->bonus,
                           .n_path = (uint8_t)w->n_path,
                           .n_want = GR_NODE_MAX};
    memcpy(v.node, w->node, (size_t)w->n_path);
    (void)gr_wire_encode_verdict(&h, &v, out, GX_VERDICT_BYTES);
}

void gx_replay_round(struct gx_replay *r, const struct gx_record *rec, int verdict_bytes)
{
    struct gr_token_tree tree = {0};
    struct gr_walk w;
    uint8_t verdict[GX_VERDICT_BYTES];
    const enum gx_fault fault = judge(&r->place, rec->frame, &tree);
    if (fault != GX_GOOD) {
        tree.n = 0;
    }
    walk(&r->place, &tree, &w);
    uint64_t hash = r->place.hash;
    for (int i = 0; i < w.n_path; i++) {
        hash = gr_hash_extend(hash, tree.token[w.node[i]]);
    }
    hash = gr_hash_extend(hash, w.bonus);
    encode(&r->place, fault, &w, hash, verdict_bytes, verdict);
    r->n_refused += fault != GX_GOOD;
    r->n_misjudged += (fault != GX_GOOD) != gx_is_corrupted(r->place.round);
    r->n_mismatch += (uint32_t)fault != rec->fault || memcmp(verdict, rec->verdict, (size_t)verdict_bytes) != 0;
    r->place.hash = hash;
    r->place.base_len += (uint32_t)w.n_path + 1;
    r->place.round++;
    r->n_round++;
}
