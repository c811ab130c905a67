/* Any bytes as a frame of the data path: refused, or in range; and what is accepted encodes to the same bytes. The
 * magic and the length field are made right in most inputs, so that the payload decoders are reached. */
#include "common/protocol/wire.h"

#include <stdlib.h>
#include <string.h>

#define N_VOCAB 1000
#define FRAME_MAX 16384

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t again[FRAME_MAX];

static size_t round_trip_small(const struct gr_frame_header *h, const uint8_t *f, size_t len)
{
    struct gr_verdict v;
    struct gr_resync r;
    uint32_t reason = 0;
    uint32_t my_len = 0;
    if (h->type == GR_FRAME_VERDICT && gr_wire_decode_verdict(f, len, N_VOCAB, &v) == GR_OK) {
        GR_ASSERT(v.bonus >= 0 && v.bonus < N_VOCAB && v.n_path <= GR_NODE_MAX);
        return gr_wire_encode_verdict(h, &v, again, sizeof(again));
    }
    if (h->type == GR_FRAME_DESYNC && gr_wire_decode_desync(f, len, &reason, &my_len) == GR_OK) {
        return gr_wire_encode_desync(h, reason, my_len, again, sizeof(again));
    }
    if (h->type == GR_FRAME_RESYNC && gr_wire_decode_resync(f, len, &r) == GR_OK) {
        GR_ASSERT(r.n_hash <= GR_RESYNC_HASH_MAX);
        GR_ASSERT(r.feature_len <= r.my_len || r.feature_len == GR_FEATURES_NONE);
        return gr_wire_encode_resync(h, &r, again, sizeof(again));
    }
    if (h->type == GR_FRAME_TAKEN && gr_wire_decode_taken(f, len) == GR_OK) {
        return gr_wire_encode_taken(h, again, sizeof(again));
    }
    struct gr_cost c;
    if (h->type == GR_FRAME_COST && gr_wire_decode_cost(f, len, &c) == GR_OK) {
        GR_ASSERT(c.n_point >= 1 && c.n_point <= GR_COST_POINT_MAX && c.n_row[0] == 1);
        return gr_wire_encode_cost(h, &c, again, sizeof(again));
    }
    return 0;
}

static size_t round_trip_draft(const struct gr_frame_header *h, const uint8_t *f, size_t len)
{
    struct gr_token_tree t;
    int where = 0;
    if (gr_wire_decode_draft(f, len, N_VOCAB, &t) != GR_OK) {
        return 0;
    }
    GR_ASSERT(gr_tree_check(&t, N_VOCAB, &where) == GR_TREE_GOOD);
    for (int i = 0; i < t.n; i++) {
        GR_ASSERT((gr_tree_ancestors(&t, i) >> i) == 1 && gr_tree_depth(&t, i) <= i + 1);
    }
    return gr_wire_encode_draft(h, &t, again, sizeof(again));
}

static size_t round_trip_delta(const struct gr_frame_header *h, const uint8_t *f, size_t len)
{
    struct gr_delta d;
    int32_t id[GR_DELTA_ID_MAX];
    if (gr_wire_decode_delta(f, len, &d) != GR_OK) {
        return 0;
    }
    GR_ASSERT(d.n_id <= GR_DELTA_ID_MAX);
    for (uint32_t i = 0; i < d.n_id; i++) {
        id[i] = gr_delta_id(&d, i);
    }
    return gr_wire_encode_delta(h, d.common_len, id, d.n_id, again, sizeof(again));
}

static size_t round_trip_features(const struct gr_frame_header *h, const uint8_t *f, size_t len)
{
    struct gr_features r;
    uint8_t *rows = NULL;
    if (gr_wire_decode_features(f, len, &r) != GR_OK) {
        return 0;
    }
    const size_t row_bytes = (size_t)r.width * gr_dtype_bytes(r.dtype);
    const size_t n = gr_wire_encode_features(h, &r, row_bytes, again, sizeof(again), &rows);
    GR_ASSERT(r.row_bytes >= f && r.row_bytes + r.n_row * row_bytes == f + len);
    GR_ASSERT(n > 0);
    memcpy(rows, r.row_bytes, r.n_row * row_bytes);
    return n;
}

/* First byte: bit 0 leaves the header as it is. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size - 1 > FRAME_MAX) {
        return 0;
    }
    const size_t len = size - 1;
    uint8_t *f = malloc(len > 0 ? len : 1);
    GR_ASSERT(f != NULL);
    memcpy(f, data + 1, len);
    if ((data[0] & 1) == 0 && len >= GR_WIRE_HEADER_BYTES) {
        const size_t n = len - GR_WIRE_HEADER_BYTES;
        memcpy(f, "GRFT\1", 5);
        for (int i = 0; i < 4; i++) {
            f[GR_WIRE_OFF_PAYLOAD_LEN + i] = (uint8_t)(n >> (8 * i));
        }
    }
    struct gr_frame_header h;
    if (gr_wire_decode_header(f, len, &h) == GR_OK) {
        const size_t n = h.type == GR_FRAME_DRAFT      ? round_trip_draft(&h, f, len)
                         : h.type == GR_FRAME_DELTA    ? round_trip_delta(&h, f, len)
                         : h.type == GR_FRAME_FEATURES ? round_trip_features(&h, f, len)
                                                       : round_trip_small(&h, f, len);
        GR_ASSERT(n == 0 || (n == len && memcmp(again, f, n) == 0));
    }
    free(f);
    return 0;
}
