#include "common/protocol/wire.h"

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "common/protocol/frame_class.h"

#include <assert.h>
#include <inttypes.h>

static_assert(GR_BULK_HEAD_BYTES == GR_WIRE_HEADER_BYTES + GR_WIRE_FEATURES_BYTES(0, 0), "what is before the rows");

static const char *type_name(uint8_t type)
{
    static const char *const names[] = {"?",     "DRAFT",    "VERDICT", "DESYNC", "RESYNC",
                                        "DELTA", "FEATURES", "COST",    "TAKEN"};
    return type < GR_ARRAY_LEN(names) ? names[type] : names[0];
}

static enum gr_status bad_frame(const uint8_t *frame, size_t len, const char *what)
{
    log_error("peer sent a malformed %s frame of %zu bytes: %s",
              type_name(len > GR_WIRE_OFF_TYPE ? frame[GR_WIRE_OFF_TYPE] : 0), len, what);
    return GR_EFORMAT;
}

int gr_resync_lengths(uint32_t my_len, uint32_t len_out[GR_RESYNC_HASH_MAX])
{
    if (my_len == 0) {
        return 0;
    }
    int n = 0;
    len_out[n++] = my_len;
    for (int k = 0; k < 32 && (1ull << k) < my_len; k++) {
        len_out[n++] = my_len - (1u << k);
    }
    return n;
}

size_t gr_dtype_bytes(uint8_t dtype)
{
    static const size_t bytes[] = {4, 2, 2}; /* enum gr_dtype: f32, f16, bf16 */
    return dtype < GR_ARRAY_LEN(bytes) ? bytes[dtype] : 0;
}

enum gr_status gr_wire_decode_header(const uint8_t *frame, size_t len, struct gr_frame_header *out)
{
    struct gr_reader r = {.p = frame, .len = len};
    uint32_t magic = gr_read_u32(&r);
    uint8_t version = gr_read_u8(&r);
    struct gr_frame_header h = {.type = gr_read_u8(&r)};
    h.flags = gr_read_u16(&r);
    h.session = gr_read_u64(&r);
    h.epoch = gr_read_u32(&r);
    h.round = gr_read_u32(&r);
    h.base_len = gr_read_u32(&r);
    h.payload_len = gr_read_u32(&r);
    h.prefix_hash = gr_read_u64(&r);
    if (r.failed) {
        return bad_frame(frame, len, "shorter than the header");
    }
    if (magic != GR_WIRE_MAGIC || version != GR_WIRE_VERSION) {
        return bad_frame(frame, len, "wrong magic or version");
    }
    if (h.type < GR_FRAME_DRAFT || h.type > GR_FRAME_TAKEN) {
        return bad_frame(frame, len, "unknown type");
    }
    if (h.payload_len != len - GR_WIRE_HEADER_BYTES) {
        return bad_frame(frame, len, "payload_len does not match the frame's length");
    }
    *out = h;
    return GR_OK;
}

static struct gr_reader payload_reader(const uint8_t *frame, size_t len)
{
    return (struct gr_reader){.p = frame, .len = len, .at = GR_WIRE_HEADER_BYTES};
}

static bool consumed(const struct gr_reader *r)
{
    return !r->failed && r->at == r->len;
}

enum gr_status gr_wire_decode_draft(const uint8_t *frame, size_t len, int32_t n_vocab, struct gr_token_tree *out)
{
    struct gr_reader r = payload_reader(frame, len);
    uint32_t n = gr_read_u32(&r);
    if (r.failed || n > GR_NODE_MAX) {
        return bad_frame(frame, len, "more than 63 nodes");
    }
    struct gr_token_tree t;
    memset(&t, 0, sizeof(t));
    t.n = (int32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        t.token[i] = (int32_t)gr_read_u32(&r);
    }
    for (uint32_t i = 0; i < n; i++) {
        t.parent[i] = (int16_t)gr_read_u16(&r);
    }
    if (!consumed(&r)) {
        return bad_frame(frame, len, "length does not match the node count");
    }
    static const char *const fault_text[] = {"", "bad node count", "a parent does not precede its child",
                                             "a token id outside the vocabulary", "duplicate siblings"};
    int where = 0;
    enum gr_tree_fault fault = gr_tree_check(&t, n_vocab, &where);
    if (fault != GR_TREE_GOOD) {
        log_error("peer sent a malformed DRAFT: node %d: %s", where, fault_text[fault]);
        return GR_EFORMAT;
    }
    *out = t;
    return GR_OK;
}

enum gr_status gr_wire_decode_verdict(const uint8_t *frame, size_t len, int32_t n_vocab, struct gr_verdict *out)
{
    struct gr_reader r = payload_reader(frame, len);
    struct gr_verdict v = {.draft_round = gr_read_u32(&r)};
    v.keep_len = gr_read_u32(&r);
    v.final_len = gr_read_u32(&r);
    v.bonus = (int32_t)gr_read_u32(&r);
    v.kind = gr_read_u8(&r);
    v.finish = gr_read_u8(&r);
    v.n_path = gr_read_u8(&r);
    v.n_want = gr_read_u8(&r);
    if (r.failed || v.n_path > GR_NODE_MAX) {
        return bad_frame(frame, len, "path longer than 63 nodes");
    }
    const uint8_t *node = gr_read_bytes(&r, v.n_path);
    if (!consumed(&r)) {
        return bad_frame(frame, len, "length does not match the path");
    }
    for (int i = 0; i < v.n_path; i++) {
        v.node[i] = node[i];
        if (node[i] >= GR_NODE_MAX || (i > 0 && node[i] <= node[i - 1])) {
            return bad_frame(frame, len, "path is not a descent");
        }
    }
    if (v.bonus < 0 || v.bonus >= n_vocab || v.kind > GR_VERDICT_FULL || v.finish > GR_FINISH_ERROR ||
        v.n_want > GR_NODE_MAX || (v.draft_round == GR_WIRE_ROOT_ONLY && v.n_path > 0)) {
        return bad_frame(frame, len, "a field is out of range");
    }
    *out = v;
    return GR_OK;
}

enum gr_status gr_wire_decode_desync(const uint8_t *frame, size_t len, uint32_t *reason_out, uint32_t *my_len_out)
{
    struct gr_reader r = payload_reader(frame, len);
    uint32_t reason = gr_read_u32(&r);
    uint32_t my_len = gr_read_u32(&r);
    if (!consumed(&r)) {
        return bad_frame(frame, len, "wrong length");
    }
    if (reason < GR_DESYNC_HASH || reason > GR_DESYNC_DETACHED) {
        return bad_frame(frame, len, "unknown reason");
    }
    *reason_out = reason;
    *my_len_out = my_len;
    return GR_OK;
}

enum gr_status gr_wire_decode_resync(const uint8_t *frame, size_t len, struct gr_resync *out)
{
    struct gr_reader r = payload_reader(frame, len);
    struct gr_resync v = {.my_len = gr_read_u32(&r)};
    v.feature_len = gr_read_u32(&r);
    v.feature_context = gr_read_u32(&r);
    v.n_hash = gr_read_u32(&r);
    uint32_t lengths[GR_RESYNC_HASH_MAX];
    if (r.failed || v.n_hash != (uint32_t)gr_resync_lengths(v.my_len, lengths)) {
        return bad_frame(frame, len, "number of hashes does not fit my_len");
    }
    if (v.feature_len > v.my_len && v.feature_len != GR_FEATURES_NONE) {
        return bad_frame(frame, len, "feature_len past my_len");
    }
    for (uint32_t i = 0; i < v.n_hash; i++) {
        v.hash[i] = gr_read_u64(&r);
    }
    if (!consumed(&r)) {
        return bad_frame(frame, len, "wrong length");
    }
    *out = v;
    return GR_OK;
}

enum gr_status gr_wire_decode_delta(const uint8_t *frame, size_t len, struct gr_delta *out)
{
    struct gr_reader r = payload_reader(frame, len);
    struct gr_delta d = {.common_len = gr_read_u32(&r)};
    d.n_id = gr_read_u32(&r);
    if (r.failed || d.n_id > GR_DELTA_ID_MAX) {
        return bad_frame(frame, len, "too many ids");
    }
    d.id_bytes = gr_read_bytes(&r, 4 * (size_t)d.n_id);
    if (!consumed(&r)) {
        return bad_frame(frame, len, "length does not match the ids");
    }
    *out = d;
    return GR_OK;
}

int32_t gr_delta_id(const struct gr_delta *d, uint32_t i)
{
    struct gr_reader r = {.p = d->id_bytes, .len = 4 * (size_t)d->n_id, .at = 4 * (size_t)i};
    return (int32_t)gr_read_u32(&r);
}

enum gr_status gr_wire_decode_features(const uint8_t *frame, size_t len, struct gr_features *out)
{
    struct gr_reader r = payload_reader(frame, len);
    struct gr_features f = {.first_pos = gr_read_u32(&r)};
    f.n_row = gr_read_u16(&r);
    f.dtype = gr_read_u8(&r);
    f.raw = gr_read_u8(&r);
    f.width = gr_read_u32(&r);
    if (r.failed || f.n_row < 1 || f.n_row > GR_FEATURES_ROW_MAX || gr_dtype_bytes(f.dtype) == 0 || f.raw > 1 ||
        f.width < 1) {
        return bad_frame(frame, len, "row count, width or dtype out of range");
    }
    f.row_bytes = gr_read_bytes(&r, (size_t)f.n_row * f.width * gr_dtype_bytes(f.dtype));
    if (!consumed(&r)) {
        return bad_frame(frame, len, "length does not match the rows");
    }
    *out = f;
    return GR_OK;
}

enum gr_status gr_wire_decode_cost(const uint8_t *frame, size_t len, struct gr_cost *out)
{
    struct gr_reader r = payload_reader(frame, len);
    struct gr_cost c = {.overhead_ns = gr_read_u32(&r)};
    c.n_point = gr_read_u32(&r);
    if (r.failed || c.n_point < 1 || c.n_point > GR_COST_POINT_MAX) {
        return bad_frame(frame, len, "number of points out of range");
    }
    for (uint32_t i = 0; i < c.n_point; i++) {
        c.n_row[i] = gr_read_u32(&r);
        c.pass_ns[i] = gr_read_u32(&r);
        if (c.n_row[i] > GR_TREE_MAX || (i == 0 ? c.n_row[0] != 1 : c.n_row[i] <= c.n_row[i - 1])) {
            return bad_frame(frame, len, "points must begin with 1 row and increase, at most 64");
        }
    }
    if (!consumed(&r)) {
        return bad_frame(frame, len, "length does not match the points");
    }
    *out = c;
    return GR_OK;
}

enum gr_status gr_wire_decode_taken(const uint8_t *frame, size_t len)
{
    return len == GR_WIRE_HEADER_BYTES ? GR_OK : bad_frame(frame, len, "wrong length");
}

static void write_header(struct gr_writer *w, const struct gr_frame_header *h, enum gr_frame_type type,
                         size_t payload_len)
{
    gr_write_u32(w, GR_WIRE_MAGIC);
    gr_write_u8(w, GR_WIRE_VERSION);
    gr_write_u8(w, type);
    gr_write_u16(w, h->flags);
    gr_write_u64(w, h->session);
    gr_write_u32(w, h->epoch);
    gr_write_u32(w, h->round);
    gr_write_u32(w, h->base_len);
    gr_write_u32(w, payload_len);
    gr_write_u64(w, h->prefix_hash);
}

static size_t written(const struct gr_writer *w)
{
    return w->failed ? 0 : w->at;
}

size_t gr_wire_encode_draft(const struct gr_frame_header *h, const struct gr_token_tree *t, uint8_t *out, size_t cap)
{
    struct gr_writer w = {.p = out, .cap = cap};
    write_header(&w, h, GR_FRAME_DRAFT, GR_WIRE_DRAFT_BYTES(t->n));
    gr_write_u32(&w, t->n);
    for (int i = 0; i < t->n; i++) {
        gr_write_u32(&w, t->token[i]);
    }
    for (int i = 0; i < t->n; i++) {
        gr_write_u16(&w, (uint16_t)t->parent[i]);
    }
    return written(&w);
}

size_t gr_wire_encode_verdict(const struct gr_frame_header *h, const struct gr_verdict *v, uint8_t *out, size_t cap)
{
    struct gr_writer w = {.p = out, .cap = cap};
    write_header(&w, h, GR_FRAME_VERDICT, GR_WIRE_VERDICT_BYTES(v->n_path));
    gr_write_u32(&w, v->draft_round);
    gr_write_u32(&w, v->keep_len);
    gr_write_u32(&w, v->final_len);
    gr_write_u32(&w, v->bonus);
    gr_write_u8(&w, v->kind);
    gr_write_u8(&w, v->finish);
    gr_write_u8(&w, v->n_path);
    gr_write_u8(&w, v->n_want);
    for (int i = 0; i < v->n_path; i++) {
        gr_write_u8(&w, v->node[i]);
    }
    return written(&w);
}

size_t gr_wire_encode_desync(const struct gr_frame_header *h, uint32_t reason, uint32_t my_len, uint8_t *out,
                             size_t cap)
{
    struct gr_writer w = {.p = out, .cap = cap};
    write_header(&w, h, GR_FRAME_DESYNC, 8);
    gr_write_u32(&w, reason);
    gr_write_u32(&w, my_len);
    return written(&w);
}

size_t gr_wire_encode_resync(const struct gr_frame_header *h, const struct gr_resync *r, uint8_t *out, size_t cap)
{
    struct gr_writer w = {.p = out, .cap = cap};
    write_header(&w, h, GR_FRAME_RESYNC, GR_WIRE_RESYNC_BYTES(r->n_hash));
    gr_write_u32(&w, r->my_len);
    gr_write_u32(&w, r->feature_len);
    gr_write_u32(&w, r->feature_context);
    gr_write_u32(&w, r->n_hash);
    for (uint32_t i = 0; i < r->n_hash; i++) {
        gr_write_u64(&w, r->hash[i]);
    }
    return written(&w);
}

size_t gr_wire_encode_delta(const struct gr_frame_header *h, uint32_t common_len, const int32_t *id, uint32_t n_id,
                            uint8_t *out, size_t cap)
{
    struct gr_writer w = {.p = out, .cap = cap};
    write_header(&w, h, GR_FRAME_DELTA, 8 + 4 * (size_t)n_id);
    gr_write_u32(&w, common_len);
    gr_write_u32(&w, n_id);
    for (uint32_t i = 0; i < n_id; i++) {
        gr_write_u32(&w, id[i]);
    }
    return written(&w);
}

size_t gr_wire_encode_features(const struct gr_frame_header *h, const struct gr_features *f, size_t row_bytes,
                               uint8_t *out, size_t cap, uint8_t **rows_out)
{
    struct gr_writer w = {.p = out, .cap = cap};
    write_header(&w, h, GR_FRAME_FEATURES, GR_WIRE_FEATURES_BYTES(f->n_row, row_bytes));
    gr_write_u32(&w, f->first_pos);
    gr_write_u16(&w, f->n_row);
    gr_write_u8(&w, f->dtype);
    gr_write_u8(&w, f->raw);
    gr_write_u32(&w, f->width);
    *rows_out = gr_write_bytes(&w, f->n_row * row_bytes);
    return written(&w);
}

size_t gr_wire_encode_cost(const struct gr_frame_header *h, const struct gr_cost *c, uint8_t *out, size_t cap)
{
    struct gr_writer w = {.p = out, .cap = cap};
    write_header(&w, h, GR_FRAME_COST, GR_WIRE_COST_BYTES(c->n_point));
    gr_write_u32(&w, c->overhead_ns);
    gr_write_u32(&w, c->n_point);
    for (uint32_t i = 0; i < c->n_point; i++) {
        gr_write_u32(&w, c->n_row[i]);
        gr_write_u32(&w, c->pass_ns[i]);
    }
    return written(&w);
}

size_t gr_wire_encode_taken(const struct gr_frame_header *h, uint8_t *out, size_t cap)
{
    struct gr_writer w = {.p = out, .cap = cap};
    write_header(&w, h, GR_FRAME_TAKEN, 0);
    return written(&w);
}
