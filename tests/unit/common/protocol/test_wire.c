/* The frame codec: golden bytes, random round trips, and frames that are cut, changed or lie about their counts. */
#include "common/rules/hash.h"
#include "common/protocol/wire.h"
#include "tests/quiet_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_VOCAB 4096
#define FRAME_MAX 8192

static uint64_t rng_state = 2024;

static uint64_t draw(uint64_t n)
{
    rng_state = gr_mix64(rng_state + GR_HASH_GOLDEN);
    return rng_state % n;
}

/* ---- golden frames ---- */

#define GOLDEN_HEADER(type, flags, payload_len) \
    "4752465401" type flags "8877665544332211"  \
    "03000000"                                  \
    "09000000"                                  \
    "03000000" payload_len "b1f62da494a1fec6"

static const struct golden {
    uint8_t type;
    const char *hex;
} golden[] = {
    {GR_FRAME_DRAFT, GOLDEN_HEADER("01", "0000", "22000000") "05000000"
                                                             "0a000000"
                                                             "0b000000"
                                                             "0c000000"
                                                             "0d000000"
                                                             "f80f0000"
                                                             "ffff"
                                                             "0000"
                                                             "0000"
                                                             "0100"
                                                             "0200"},
    {GR_FRAME_VERDICT, GOLDEN_HEADER("02", "0000", "16000000") "09000000"
                                                               "03000000"
                                                               "06000000"
                                                               "f80f0000"
                                                               "00"
                                                               "01"
                                                               "02"
                                                               "00"
                                                               "0002"},
    {GR_FRAME_VERDICT, GOLDEN_HEADER("02", "0000", "14000000") "ffffffff"
                                                               "03000000"
                                                               "04000000"
                                                               "07000000"
                                                               "02"
                                                               "00"
                                                               "00"
                                                               "3f"},
    {GR_FRAME_DESYNC, GOLDEN_HEADER("03", "0000", "08000000") "02000000"
                                                              "03000000"},
    {GR_FRAME_RESYNC, GOLDEN_HEADER("04", "0000", "28000000") "03000000"
                                                              "02000000"
                                                              "00080000"
                                                              "03000000"
                                                              "b1f62da494a1fec6"
                                                              "c97ba0c74b061eaf"
                                                              "eaa27e740c9fcb53"},
    {GR_FRAME_DELTA, GOLDEN_HEADER("05", "0307", "14000000") "00000000"
                                                             "03000000"
                                                             "05000000"
                                                             "07000000"
                                                             "f80f0000"},
    {GR_FRAME_FEATURES, GOLDEN_HEADER("06", "0000", "18000000") "01000000"
                                                                "0200"
                                                                "02"
                                                                "01"
                                                                "03000000"
                                                                "a0a1a2a3a4a5a6a7a8a9aaab"},
    {GR_FRAME_COST, GOLDEN_HEADER("07", "0000", "18000000") "10270000"
                                                            "02000000"
                                                            "01000000"
                                                            "e0930400"
                                                            "40000000"
                                                            "40420f00"},
    {GR_FRAME_TAKEN, GOLDEN_HEADER("08", "0000", "00000000")},
};
#define N_GOLDEN ((int)GR_ARRAY_LEN(golden))

static size_t from_hex(const char *hex, uint8_t *out)
{
    const size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        const char byte[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        out[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    return n;
}

static const struct gr_frame_header golden_header = {
    .session = 0x1122334455667788ull, .epoch = 3, .round = 9, .base_len = 3, .prefix_hash = 0xc6fea194a42df6b1ull};

/* Encodes what the golden frame i says, from values. */
static size_t encode_golden(int i, uint8_t *out, size_t cap)
{
    struct gr_frame_header h = golden_header;
    const struct gr_token_tree tree = {.n = 5, .token = {10, 11, 12, 13, 4088}, .parent = {-1, 0, 0, 1, 2}};
    const struct gr_verdict path = {.draft_round = 9,
                                    .keep_len = 3,
                                    .final_len = 6,
                                    .bonus = 4088,
                                    .kind = GR_VERDICT_PLAIN,
                                    .finish = GR_FINISH_STOP,
                                    .n_path = 2,
                                    .node = {0, 2}};
    const struct gr_verdict root = {.draft_round = GR_WIRE_ROOT_ONLY,
                                    .keep_len = 3,
                                    .final_len = 4,
                                    .bonus = 7,
                                    .kind = GR_VERDICT_FULL,
                                    .n_want = 63};
    const struct gr_cost cost = {.overhead_ns = 10000, .n_point = 2, .n_row = {1, 64}, .pass_ns = {300000, 1000000}};
    const struct gr_resync resync = {.my_len = 3,
                                     .feature_len = 2,
                                     .feature_context = 2048,
                                     .n_hash = 3,
                                     .hash = {0xc6fea194a42df6b1ull, 0xaf1e064bc7a07bc9ull, 0x53cb9f0c747ea2eaull}};
    const int32_t id[] = {5, 7, 4088};
    const struct gr_features f = {.first_pos = 1, .n_row = 2, .width = 3, .dtype = 2, .raw = 1};
    uint8_t *rows = NULL;
    size_t n = 0;
    switch (i) {
    case 0:
        return gr_wire_encode_draft(&h, &tree, out, cap);
    case 1:
        return gr_wire_encode_verdict(&h, &path, out, cap);
    case 2:
        return gr_wire_encode_verdict(&h, &root, out, cap);
    case 3:
        return gr_wire_encode_desync(&h, GR_DESYNC_AHEAD, 3, out, cap);
    case 4:
        return gr_wire_encode_resync(&h, &resync, out, cap);
    case 5:
        h.flags = GR_DELTA_LAST | GR_DELTA_DRAFT | GR_DELTA_WANT(7);
        return gr_wire_encode_delta(&h, 0, id, 3, out, cap);
    case 7:
        return gr_wire_encode_cost(&h, &cost, out, cap);
    case 8:
        return gr_wire_encode_taken(&h, out, cap);
    default:
        n = gr_wire_encode_features(&h, &f, 6, out, cap, &rows);
        for (uint8_t k = 0; n > 0 && k < 12; k++) {
            rows[k] = (uint8_t)(0xa0 + k);
        }
        return n;
    }
}

static void test_golden_encode(void **state)
{
    (void)state;
    for (int i = 0; i < N_GOLDEN; i++) {
        uint8_t want[256], got[256];
        const size_t n = from_hex(golden[i].hex, want);
        assert_int_equal(encode_golden(i, got, sizeof(got)), n);
        assert_memory_equal(got, want, n);
    }
}

static void test_golden_decode(void **state)
{
    (void)state;
    uint8_t f[256];
    struct gr_frame_header h;
    for (int i = 0; i < N_GOLDEN; i++) {
        const size_t n = from_hex(golden[i].hex, f);
        assert_int_equal(gr_wire_decode_header(f, n, &h), GR_OK);
        assert_int_equal(h.type, golden[i].type);
        assert_true(h.session == 0x1122334455667788ull && h.prefix_hash == 0xc6fea194a42df6b1ull);
        assert_true(h.epoch == 3 && h.round == 9 && h.base_len == 3 && h.payload_len == n - 40);
        assert_int_equal(h.flags, i == 5 ? 0x703 : 0);
    }
    struct gr_token_tree t;
    size_t n = from_hex(golden[0].hex, f);
    assert_int_equal(gr_wire_decode_draft(f, n, N_VOCAB, &t), GR_OK);
    assert_int_equal(t.n, 5);
    assert_int_equal(t.token[4], 4088);
    assert_int_equal(t.parent[0], -1);
    assert_int_equal(t.parent[4], 2);
    struct gr_verdict v;
    n = from_hex(golden[1].hex, f);
    assert_int_equal(gr_wire_decode_verdict(f, n, N_VOCAB, &v), GR_OK);
    assert_true(v.draft_round == 9 && v.keep_len == 3 && v.final_len == 6 && v.bonus == 4088);
    assert_true(v.kind == GR_VERDICT_PLAIN && v.finish == GR_FINISH_STOP && v.n_path == 2);
    assert_true(v.node[0] == 0 && v.node[1] == 2);
    n = from_hex(golden[2].hex, f);
    assert_int_equal(gr_wire_decode_verdict(f, n, N_VOCAB, &v), GR_OK);
    assert_true(v.draft_round == GR_WIRE_ROOT_ONLY && v.n_path == 0 && v.kind == GR_VERDICT_FULL);
    uint32_t reason = 0, my_len = 0;
    n = from_hex(golden[3].hex, f);
    assert_int_equal(gr_wire_decode_desync(f, n, &reason, &my_len), GR_OK);
    assert_true(reason == GR_DESYNC_AHEAD && my_len == 3);
    struct gr_resync r;
    n = from_hex(golden[4].hex, f);
    assert_int_equal(gr_wire_decode_resync(f, n, &r), GR_OK);
    assert_true(r.my_len == 3 && r.feature_len == 2 && r.feature_context == 2048 && r.n_hash == 3);
    assert_true(r.hash[2] == 0x53cb9f0c747ea2eaull);
    struct gr_delta d;
    n = from_hex(golden[5].hex, f);
    assert_int_equal(gr_wire_decode_delta(f, n, &d), GR_OK);
    assert_true(d.common_len == 0 && d.n_id == 3);
    assert_int_equal(gr_delta_id(&d, 0), 5);
    assert_int_equal(gr_delta_id(&d, 2), 4088);
    struct gr_features feat;
    n = from_hex(golden[6].hex, f);
    assert_int_equal(gr_wire_decode_features(f, n, &feat), GR_OK);
    assert_true(feat.first_pos == 1 && feat.n_row == 2 && feat.dtype == 2 && feat.raw == 1 && feat.width == 3);
    assert_ptr_equal(feat.row_bytes, f + 52);
}

/* ---- decoding anything ---- */

static void check_draft(const uint8_t *f, size_t len)
{
    struct gr_token_tree t;
    int where = 0;
    if (gr_wire_decode_draft(f, len, N_VOCAB, &t) == GR_OK) {
        assert_int_equal(gr_tree_check(&t, N_VOCAB, &where), GR_TREE_GOOD);
        assert_int_equal(len, 40 + GR_WIRE_DRAFT_BYTES(t.n));
    }
}

static void check_verdict(const uint8_t *f, size_t len)
{
    struct gr_verdict v;
    if (gr_wire_decode_verdict(f, len, N_VOCAB, &v) == GR_OK) {
        assert_in_range(v.bonus, 0, N_VOCAB - 1);
        assert_true(v.kind <= GR_VERDICT_FULL && v.finish <= GR_FINISH_ERROR && v.n_path <= GR_NODE_MAX);
        for (int i = 0; i < v.n_path; i++) {
            assert_true(v.node[i] < GR_NODE_MAX && (i == 0 || v.node[i] > v.node[i - 1]));
        }
    }
}

static void check_desync(const uint8_t *f, size_t len)
{
    uint32_t reason = 0, my_len = 0;
    if (gr_wire_decode_desync(f, len, &reason, &my_len) == GR_OK) {
        assert_in_range(reason, GR_DESYNC_HASH, GR_DESYNC_DETACHED);
    }
}

static void check_resync(const uint8_t *f, size_t len)
{
    struct gr_resync r;
    uint32_t lengths[GR_RESYNC_HASH_MAX];
    if (gr_wire_decode_resync(f, len, &r) == GR_OK) {
        assert_int_equal(r.n_hash, gr_resync_lengths(r.my_len, lengths));
        assert_int_equal(len, 56 + 8 * r.n_hash);
        assert_true(r.feature_len <= r.my_len || r.feature_len == GR_FEATURES_NONE);
    }
}

static void check_delta(const uint8_t *f, size_t len)
{
    struct gr_delta d;
    if (gr_wire_decode_delta(f, len, &d) == GR_OK) {
        assert_true(d.n_id <= GR_DELTA_ID_MAX && d.id_bytes == f + 48 && len == 48 + 4 * (size_t)d.n_id);
        for (uint32_t i = 0; i < d.n_id; i++) {
            (void)gr_delta_id(&d, i);
        }
    }
}

static void check_features(const uint8_t *f, size_t len)
{
    struct gr_features r;
    if (gr_wire_decode_features(f, len, &r) == GR_OK) {
        assert_in_range(r.n_row, 1, GR_FEATURES_ROW_MAX);
        assert_true(r.row_bytes == f + 52 && r.raw <= 1 && r.width >= 1);
        assert_true(len == 52 + (size_t)r.n_row * r.width * gr_dtype_bytes(r.dtype));
    }
}

static void check_cost(const uint8_t *f, size_t len)
{
    struct gr_cost c;
    if (gr_wire_decode_cost(f, len, &c) == GR_OK) {
        assert_in_range(c.n_point, 1, GR_COST_POINT_MAX);
        assert_int_equal(len, 40 + GR_WIRE_COST_BYTES(c.n_point));
        assert_int_equal(c.n_row[0], 1);
        for (uint32_t i = 1; i < c.n_point; i++) {
            assert_true(c.n_row[i] > c.n_row[i - 1] && c.n_row[i] <= GR_TREE_MAX);
        }
    }
}

static void check_taken(const uint8_t *f, size_t len)
{
    assert_true(gr_wire_decode_taken(f, len) == (len == 40 ? GR_OK : GR_EFORMAT));
}

/* Any bytes: refused with exactly one line, or in range. On a copy of its own, so that a sanitizer sees its end. */
static enum gr_status decode_any(const uint8_t *bytes, size_t len)
{
    uint8_t *f = malloc(len > 0 ? len : 1);
    assert_non_null(f);
    memcpy(f, bytes, len);
    struct gr_frame_header h;
    const int before = log_count_n;
    const enum gr_status st = gr_wire_decode_header(f, len, &h);
    assert_int_equal(log_count_n - before, st == GR_OK ? 0 : 1);
    if (st == GR_OK) {
        static void (*const check[])(const uint8_t *, size_t) = {NULL,           check_draft,  check_verdict,
                                                                 check_desync,   check_resync, check_delta,
                                                                 check_features, check_cost,   check_taken};
        check[h.type](f, len);
    }
    const enum gr_status all = st != GR_OK || log_count_n != before ? GR_EFORMAT : GR_OK;
    assert_true(log_count_n - before <= 1);
    free(f);
    return all;
}

static void test_truncations(void **state)
{
    (void)state;
    for (int i = 0; i < N_GOLDEN; i++) {
        uint8_t f[256];
        const size_t n = from_hex(golden[i].hex, f);
        assert_int_equal(decode_any(f, n), GR_OK);
        for (size_t len = 0; len < n; len++) {
            assert_int_equal(decode_any(f, len), GR_EFORMAT);
            if (len >= 40) { /* with a header that owns up to it */
                uint8_t cut[256];
                memcpy(cut, f, len);
                cut[28] = (uint8_t)(len - 40);
                assert_int_equal(decode_any(cut, len), GR_EFORMAT);
            }
        }
        f[n] = 0; /* a byte more, unannounced and announced */
        assert_int_equal(decode_any(f, n + 1), GR_EFORMAT);
        f[28]++;
        assert_int_equal(decode_any(f, n + 1), GR_EFORMAT);
    }
}

static void test_every_byte_corrupted(void **state)
{
    (void)state;
    for (int i = 0; i < N_GOLDEN; i++) {
        uint8_t f[256];
        const size_t n = from_hex(golden[i].hex, f);
        int n_refused = 0;
        for (size_t at = 0; at < n; at++) {
            const uint8_t was = f[at];
            for (int x = 1; x < 256; x++) {
                f[at] = was ^ (uint8_t)x;
                const enum gr_status st = decode_any(f, n);
                n_refused += st != GR_OK;
                if (at < 5 || (at >= 28 && at < 32)) { /* magic, version, payload_len */
                    assert_int_equal(st, GR_EFORMAT);
                }
            }
            f[at] = was;
        }
        assert_true(n_refused >= 9 * 255);
    }
}

static void test_random_bytes(void **state)
{
    (void)state;
    for (int round = 0; round < 200000; round++) {
        uint8_t f[512];
        const size_t n = 40 + (size_t)draw(200);
        for (size_t i = 0; i < n; i++) {
            f[i] = (uint8_t)(draw(3) == 0 ? draw(256) : draw(4));
        }
        memcpy(f, "GRFT\1", 5);
        f[5] = (uint8_t)(1 + draw(8));
        f[28] = (uint8_t)(n - 40);
        f[29] = f[30] = f[31] = 0;
        (void)decode_any(f, n);
    }
}

/* ---- lies about counts ---- */

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

/* A frame of `type` whose payload is n bytes of zeros. */
static size_t blank(uint8_t *f, uint8_t type, size_t n)
{
    memset(f, 0, 40 + n);
    memcpy(f, "GRFT\1", 5);
    f[5] = type;
    put32(f + 28, (uint32_t)n);
    return 40 + n;
}

static void test_oversize_counts(void **state)
{
    (void)state;
    static uint8_t f[FRAME_MAX];
    static const uint32_t huge[] = {64, 65, 255, 1024, 0x7fffffff, 0x80000000u, 0xaaaaaaabu, 0xffffffffu};
    for (size_t i = 0; i < GR_ARRAY_LEN(huge); i++) {
        const size_t real = huge[i] <= 1024 ? GR_WIRE_DRAFT_BYTES(huge[i]) : 4; /* backed by bytes where that can be */
        size_t n = blank(f, GR_FRAME_DRAFT, real);
        put32(f + 40, huge[i]);
        assert_int_equal(decode_any(f, n), GR_EFORMAT);
        n = blank(f, GR_FRAME_RESYNC, 12 + 8 * 64);
        put32(f + 40, 5);
        put32(f + 48, huge[i]);
        assert_int_equal(decode_any(f, n), GR_EFORMAT);
    }
    for (unsigned n_path = 64; n_path < 256; n_path++) {
        const size_t n = blank(f, GR_FRAME_VERDICT, 20 + n_path);
        f[40 + GR_WIRE_VERDICT_OFF_N_PATH] = (uint8_t)n_path;
        for (unsigned k = 0; k < n_path; k++) {
            f[60 + k] = (uint8_t)k;
        }
        assert_int_equal(decode_any(f, n), GR_EFORMAT);
    }
    size_t n = blank(f, GR_FRAME_DELTA, 8 + 4 * 1024);
    put32(f + 44, 1024);
    assert_int_equal(decode_any(f, n), GR_OK); /* the largest that is legal */
    assert_int_equal(n, GR_WIRE_SMALL_BYTES_MAX);
    n = blank(f, GR_FRAME_DELTA, 8 + 4 * 1025);
    put32(f + 44, 1025);
    assert_int_equal(decode_any(f, n), GR_EFORMAT);
    n = blank(f, GR_FRAME_DELTA, 8);
    put32(f + 44, 0x40000000); /* 4 * n wraps in 32 bits */
    assert_int_equal(decode_any(f, n), GR_EFORMAT);
}

static void test_features_counts(void **state)
{
    (void)state;
    static uint8_t f[FRAME_MAX];
    static const struct {
        uint16_t n_row;
        uint8_t dtype, raw;
        uint32_t width;
        size_t bytes;
        enum gr_status want;
    } c[] = {
        {32, 0, 0, 4, 512, GR_OK},
        {1, 1, 1, 1, 2, GR_OK},
        {33, 0, 0, 4, 528, GR_EFORMAT},
        {0, 0, 0, 4, 0, GR_EFORMAT},
        {2, 3, 0, 4, 32, GR_EFORMAT},
        {2, 255, 0, 4, 32, GR_EFORMAT},
        {2, 0, 2, 4, 32, GR_EFORMAT},
        {2, 0, 0, 4, 31, GR_EFORMAT},
        {2, 0, 0, 4, 33, GR_EFORMAT},
        {32, 0, 0, 0x02000000, 0, GR_EFORMAT}, /* 2^32 bytes: wraps to 0 */
        {32, 0, 0, 0xffffffffu, 128, GR_EFORMAT},
        {2, 0, 0, 0, 0, GR_EFORMAT}, /* rows of nothing */
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(c); i++) {
        const size_t n = blank(f, GR_FRAME_FEATURES, 12 + c[i].bytes);
        f[44] = (uint8_t)c[i].n_row;
        f[45] = (uint8_t)(c[i].n_row >> 8);
        f[46] = c[i].dtype;
        f[47] = c[i].raw;
        put32(f + 48, c[i].width);
        assert_int_equal(decode_any(f, n), c[i].want);
    }
}

static void test_field_ranges(void **state)
{
    (void)state;
    uint8_t f[256];
    for (uint32_t reason = 0; reason < 10; reason++) {
        const size_t n = blank(f, GR_FRAME_DESYNC, 8);
        put32(f + 40, reason);
        assert_int_equal(decode_any(f, n), reason >= 1 && reason <= 5 ? GR_OK : GR_EFORMAT);
    }
    static const struct {
        size_t at;
        uint8_t value;
    } bad[] = {{56, 3}, {56, 255}, {57, 4}, {59, 64}, {60, 63}, {61, 0}, {61, 1}, {53, 0x10}, {55, 0x80}};
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        size_t n = blank(f, GR_FRAME_VERDICT, 22);
        f[58] = 2; /* path 1, 2 */
        f[60] = 1;
        f[61] = 2;
        assert_int_equal(decode_any(f, n), GR_OK);
        f[bad[i].at] = bad[i].value;
        assert_int_equal(decode_any(f, n), GR_EFORMAT);
    }
    static const struct {
        size_t at;
        uint32_t value;
    } bad_cost[] = {{44, 0}, {44, 1}, {44, 3}, {44, 17}, {48, 0}, {48, 2}, {56, 1}, {56, 0}, {56, 65}};
    for (size_t i = 0; i < GR_ARRAY_LEN(bad_cost); i++) {
        const size_t n = blank(f, GR_FRAME_COST, 24);
        put32(f + 44, 2);
        put32(f + 48, 1);
        put32(f + 56, 64);
        assert_int_equal(decode_any(f, n), GR_OK);
        put32(f + bad_cost[i].at, bad_cost[i].value);
        assert_int_equal(decode_any(f, n), GR_EFORMAT);
    }
    const size_t n = blank(f, GR_FRAME_VERDICT, 21); /* a root-only pass has no path */
    put32(f + 40, GR_WIRE_ROOT_ONLY);
    f[58] = 1;
    assert_int_equal(decode_any(f, n), GR_EFORMAT);
    for (int type = 0; type < 256; type++) {
        const size_t len = blank(f, (uint8_t)type, 0);
        struct gr_frame_header h;
        assert_int_equal(gr_wire_decode_header(f, len, &h), type >= 1 && type <= 8 ? GR_OK : GR_EFORMAT);
    }
}

/* Ids are checked against the receiver's own vocabulary. */
static void test_vocabulary(void **state)
{
    (void)state;
    uint8_t f[256];
    struct gr_token_tree t;
    struct gr_verdict v;
    size_t n = from_hex(golden[0].hex, f);
    assert_int_equal(gr_wire_decode_draft(f, n, 4089, &t), GR_OK);
    assert_int_equal(gr_wire_decode_draft(f, n, 4088, &t), GR_EFORMAT);
    n = from_hex(golden[1].hex, f);
    assert_int_equal(gr_wire_decode_verdict(f, n, 4089, &v), GR_OK);
    assert_int_equal(gr_wire_decode_verdict(f, n, 4088, &v), GR_EFORMAT);
}

/* ---- round trips ---- */

static struct gr_frame_header draw_header(void)
{
    return (struct gr_frame_header){.flags = (uint16_t)draw(65536),
                                    .session = draw(UINT64_MAX),
                                    .epoch = (uint32_t)draw(1ull << 32),
                                    .round = (uint32_t)draw(1ull << 32),
                                    .base_len = (uint32_t)draw(1ull << 32),
                                    .prefix_hash = draw(UINT64_MAX)};
}

static void assert_header(const uint8_t *f, size_t n, const struct gr_frame_header *want, uint8_t type)
{
    struct gr_frame_header h;
    assert_int_equal(gr_wire_decode_header(f, n, &h), GR_OK);
    assert_int_equal(h.type, type);
    assert_int_equal(h.payload_len, n - 40);
    assert_true(h.flags == want->flags && h.session == want->session && h.epoch == want->epoch &&
                h.round == want->round && h.base_len == want->base_len && h.prefix_hash == want->prefix_hash);
}

static void round_trip_draft(uint8_t *f)
{
    const struct gr_frame_header h = draw_header();
    struct gr_token_tree t, back;
    memset(&t, 0, sizeof(t));
    memset(&back, 0xee, sizeof(back));
    t.n = (int32_t)draw(64);
    for (int i = 0; i < t.n; i++) {
        t.token[i] = (int32_t)(draw(60) * 64) + i; /* distinct */
        t.parent[i] = (int16_t)((int)draw((uint64_t)i + 1) - 1);
    }
    const size_t n = gr_wire_encode_draft(&h, &t, f, FRAME_MAX);
    assert_int_equal(n, 40 + GR_WIRE_DRAFT_BYTES(t.n));
    assert_header(f, n, &h, GR_FRAME_DRAFT);
    assert_int_equal(gr_wire_decode_draft(f, n, N_VOCAB, &back), GR_OK);
    assert_memory_equal(&back, &t, sizeof(t));
}

static void round_trip_verdict(uint8_t *f)
{
    const struct gr_frame_header h = draw_header();
    struct gr_verdict v, back;
    memset(&v, 0, sizeof(v));
    v = (struct gr_verdict){.draft_round = (uint32_t)draw(1000),
                            .keep_len = (uint32_t)draw(1ull << 32),
                            .final_len = (uint32_t)draw(1ull << 32),
                            .bonus = (int32_t)draw(N_VOCAB),
                            .kind = (uint8_t)draw(3),
                            .finish = (uint8_t)draw(4),
                            .n_want = (uint8_t)draw(64)};
    for (uint8_t i = 0; i < GR_NODE_MAX; i++) {
        if (draw(3) == 0) {
            v.node[v.n_path++] = i;
        }
    }
    const size_t n = gr_wire_encode_verdict(&h, &v, f, FRAME_MAX);
    assert_int_equal(n, 40 + GR_WIRE_VERDICT_BYTES(v.n_path));
    assert_header(f, n, &h, GR_FRAME_VERDICT);
    assert_int_equal(gr_wire_decode_verdict(f, n, N_VOCAB, &back), GR_OK);
    assert_true(back.draft_round == v.draft_round && back.keep_len == v.keep_len && back.final_len == v.final_len);
    assert_true(back.bonus == v.bonus && back.kind == v.kind && back.finish == v.finish && back.n_path == v.n_path);
    assert_int_equal(back.n_want, v.n_want);
    assert_memory_equal(back.node, v.node, v.n_path);
}

static void round_trip_rest(uint8_t *f)
{
    const struct gr_frame_header h = draw_header();
    struct gr_resync r = {.my_len = (uint32_t)draw(1ull << draw(33))}, r2;
    uint32_t lengths[GR_RESYNC_HASH_MAX];
    r.n_hash = (uint32_t)gr_resync_lengths(r.my_len, lengths);
    r.feature_len = draw(4) == 0 ? GR_FEATURES_NONE : (uint32_t)draw((uint64_t)r.my_len + 1);
    r.feature_context = (uint32_t)draw(1ull << 32);
    for (uint32_t i = 0; i < r.n_hash; i++) {
        r.hash[i] = draw(UINT64_MAX);
    }
    size_t n = gr_wire_encode_resync(&h, &r, f, FRAME_MAX);
    assert_header(f, n, &h, GR_FRAME_RESYNC);
    assert_int_equal(gr_wire_decode_resync(f, n, &r2), GR_OK);
    assert_true(r2.my_len == r.my_len && r2.n_hash == r.n_hash && r2.feature_len == r.feature_len &&
                r2.feature_context == r.feature_context);
    assert_memory_equal(r2.hash, r.hash, r.n_hash * sizeof(r.hash[0]));

    int32_t id[GR_DELTA_ID_MAX];
    const uint32_t n_id = (uint32_t)draw(GR_DELTA_ID_MAX + 1);
    for (uint32_t i = 0; i < n_id; i++) {
        id[i] = (int32_t)draw(1ull << 32);
    }
    n = gr_wire_encode_delta(&h, 77, id, n_id, f, FRAME_MAX);
    assert_header(f, n, &h, GR_FRAME_DELTA);
    struct gr_delta d;
    assert_int_equal(gr_wire_decode_delta(f, n, &d), GR_OK);
    assert_true(d.common_len == 77 && d.n_id == n_id);
    for (uint32_t i = 0; i < n_id; i++) {
        assert_int_equal(gr_delta_id(&d, i), id[i]);
    }
    struct gr_cost cost = {.overhead_ns = (uint32_t)draw(1ull << 32), .n_point = 1 + (uint32_t)draw(GR_COST_POINT_MAX)},
                   cost2;
    for (uint32_t i = 0; i < cost.n_point; i++) {
        cost.n_row[i] = i == 0 ? 1 : cost.n_row[i - 1] + 1 + (uint32_t)draw(4);
        cost.pass_ns[i] = (uint32_t)draw(1ull << 32);
    }
    n = gr_wire_encode_cost(&h, &cost, f, FRAME_MAX);
    assert_header(f, n, &h, GR_FRAME_COST);
    assert_int_equal(gr_wire_decode_cost(f, n, &cost2), GR_OK);
    assert_true(cost2.overhead_ns == cost.overhead_ns && cost2.n_point == cost.n_point);
    assert_memory_equal(cost2.n_row, cost.n_row, cost.n_point * sizeof(cost.n_row[0]));
    assert_memory_equal(cost2.pass_ns, cost.pass_ns, cost.n_point * sizeof(cost.pass_ns[0]));

    n = gr_wire_encode_taken(&h, f, FRAME_MAX);
    assert_int_equal(n, 40);
    assert_header(f, n, &h, GR_FRAME_TAKEN);

    n = gr_wire_encode_desync(&h, 1 + (uint32_t)draw(5), 12345, f, FRAME_MAX);
    assert_header(f, n, &h, GR_FRAME_DESYNC);
    uint32_t reason = 0, my_len = 0;
    assert_int_equal(gr_wire_decode_desync(f, n, &reason, &my_len), GR_OK);
    assert_int_equal(my_len, 12345);
}

static void test_round_trips(void **state)
{
    (void)state;
    static uint8_t f[FRAME_MAX];
    for (int round = 0; round < 5000; round++) {
        round_trip_draft(f);
        round_trip_verdict(f);
        round_trip_rest(f);
    }
}

/* An encoder never writes past cap, and says 0 when it would have to. */
static void test_small_buffers(void **state)
{
    (void)state;
    for (int i = 0; i < N_GOLDEN; i++) {
        uint8_t want[256], out[256];
        const size_t n = from_hex(golden[i].hex, want);
        for (size_t cap = 0; cap < n; cap++) {
            memset(out, 0x5a, sizeof(out));
            assert_int_equal(encode_golden(i, out, cap), 0);
            for (size_t k = cap; k < sizeof(out); k++) {
                assert_int_equal(out[k], 0x5a);
            }
        }
        assert_int_equal(encode_golden(i, out, n), n);
    }
}

static void test_resync_lengths(void **state)
{
    (void)state;
    uint32_t len[GR_RESYNC_HASH_MAX];
    assert_int_equal(gr_resync_lengths(0, len), 0);
    assert_int_equal(gr_resync_lengths(1, len), 1);
    assert_int_equal(len[0], 1);
    static const uint32_t ten[] = {10, 9, 8, 6, 2};
    assert_int_equal(gr_resync_lengths(10, len), 5);
    assert_memory_equal(len, ten, sizeof(ten));
    assert_int_equal(gr_resync_lengths(8, len), 4); /* 8 7 6 4; 8 - 8 = 0 is always shared */
    assert_int_equal(gr_resync_lengths(UINT32_MAX, len), 33);
    assert_int_equal(len[32], 0x7fffffff);
    assert_int_equal(gr_resync_lengths(0x80000001u, len), 33);
    assert_int_equal(len[32], 1);
    for (int round = 0; round < 1000; round++) {
        const uint32_t my_len = 1 + (uint32_t)draw((1ull << (1 + draw(32))) - 1);
        const int n = gr_resync_lengths(my_len, len);
        assert_in_range(n, 1, GR_RESYNC_HASH_MAX);
        for (int i = 0; i < n; i++) {
            assert_true(len[i] > 0 && len[i] == my_len - (i == 0 ? 0 : 1u << (i - 1)));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_encode),   cmocka_unit_test(test_golden_decode),
        cmocka_unit_test(test_truncations),     cmocka_unit_test(test_every_byte_corrupted),
        cmocka_unit_test(test_random_bytes),    cmocka_unit_test(test_oversize_counts),
        cmocka_unit_test(test_features_counts), cmocka_unit_test(test_field_ranges),
        cmocka_unit_test(test_vocabulary),      cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_small_buffers),   cmocka_unit_test(test_resync_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
