/* Control messages: every type round-trips; a missing, unknown, repeated, mistyped or excessive field, a lying length
 * or a depth bomb is refused with one line. The table below is the schema of docs/PROTOCOL.md, written down a second
 * time. */
#include "common/hash.h"
#include "common/msg.h"
#include "common/msgpack_guard.h"
#include "tests/unit/log_count.h"

#include <math.h>
#include <msgpack.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum kind { U32, U64, F64, STR, IDS };

/* name, kind, limit: largest value, capacity, or count */
#define FIELDS(X)                                                                                                      \
    X(session, U64, 0)                                                                                                 \
    X(incarnation, U64, 0) X(epoch, U32, UINT32_MAX) X(round, U32, UINT32_MAX) X(role, U32, 3) X(pid, U32, UINT32_MAX) \
        X(n_vocab, U32, 1 << 22) X(n_ctx_max, U32, 1 << 24) X(n_block, U32, 1 << 28) X(n_free_block, U32, 1 << 28)     \
            X(n_session, U32, 1 << 16) X(model_fingerprint, U64, 0) X(tokenizer_fingerprint, U64, 0)                   \
                X(address, STR, 256) X(numerics_id, STR, 96) X(ids, IDS, 1 << 20) X(segments, IDS, 4096)               \
                    X(stop_ids, IDS, 16) X(max_tokens, U32, 1 << 24) X(want_draft, U32, 1) X(want_trace, U32, 1) X(    \
                        single_token, U32, 1) X(auto_tree, U32, 1) X(draft_ahead, U32, 1) X(n_reroot, U32, UINT32_MAX) \
                        X(n_ahead, U64, 0) X(n_hit, U64, 0) X(temperature, F64, 0) X(min_p, F64, 0) X(top_p, F64, 0)   \
                            X(top_k, U32, 1 << 22) X(seed, U64, 0) X(transport, STR, 16) X(tree_shape, U32, 1)         \
                                X(draft_depth, U32, 63) X(draft_top_k, U32, 64) X(n_node, U32, 63)                     \
                                    X(keep_len, U32, UINT32_MAX) X(final_len, U32, UINT32_MAX) X(finish, U32, 3)       \
                                        X(verdict_kind, U32, 2) X(n_draft, U32, 63) X(n_accepted, U32, 63) X(          \
                                            cache_hit, U32, 1) X(usable_len, U32, UINT32_MAX) X(hash, U64, 0)          \
                                            X(wait_ns, U64, 0) X(verify_ns, U64, 0)                                    \
                                                X(host_ns, U64, 0) X(draft_ns, U64, 0) X(n_row, U32, UINT32_MAX) X(    \
                                                    n_late, U32, UINT32_MAX) X(n_desync, U32, UINT32_MAX)              \
                                                    X(n_fallback, U32, UINT32_MAX) X(tree_ids, IDS, 63)                \
                                                        X(tree_parents, IDS, 63) X(path, IDS, 63) X(n_round, U64, 0)   \
                                                            X(code, U32, UINT32_MAX) X(auto_ahead, U32, 1)             \
                                                                X(keep_open, U32, 1) X(state, U32, 7)                  \
                                                                    X(n_token, U32, UINT32_MAX) X(                     \
                                                                        worker, U32, 1 << 16) X(target, U32, 1 << 16)  \
                                                                        X(drafter, U32, 1 << 16)                       \
                                                                            X(n_worker, U32, 1 << 16) X(n_reopen, U32, \
                                                                                                        UINT32_MAX)    \
                                                                                X(idle_ns, U64, 0) X(n_tree, U64, 0)   \
                                                                                    X(n_drafted, U64, 0)               \
                                                                                        X(n_hit_token, U64, 0)         \
                                                                                            X(rtt_ns, U64, 0)          \
                                                                                                X(text, STR, 256)

static const struct field {
    const char *name;
    enum kind kind;
    uint64_t limit;
    size_t offset;
} field[] = {
#define X(name, kind, limit) {#name, kind, limit, offsetof(struct gr_msg, name)},
    FIELDS(X)
#undef X
};
#define N_FIELD ((int)GR_ARRAY_LEN(field))

static const struct schema {
    enum gr_msg_type type;
    const char *name, *required, *optional;
} schema[] = {
    {GR_MSG_JOIN, "JOIN", " role pid incarnation n_vocab n_ctx_max address numerics_id ",
     " n_block n_session model_fingerprint tokenizer_fingerprint "},
    {GR_MSG_OPEN, "OPEN", " session epoch ids segments max_tokens temperature min_p top_p top_k seed ",
     " stop_ids want_draft want_trace single_token auto_tree n_node keep_open transport tree_shape draft_depth "
     "draft_top_k draft_ahead auto_ahead tokenizer_fingerprint "},
    {GR_MSG_OPENED, "OPENED", " session epoch cache_hit usable_len ", " "},
    {GR_MSG_CLOSE, "CLOSE", " session ", " "},
    {GR_MSG_CLOSED, "CLOSED", " session ", " "},
    {GR_MSG_COMMIT, "COMMIT",
     " session epoch round keep_len final_len ids hash finish verdict_kind n_draft n_accepted ",
     " wait_ns verify_ns host_ns n_row n_late n_desync n_fallback n_reroot tree_ids tree_parents path "},
    {GR_MSG_PROGRESS, "PROGRESS", " session usable_len ", " "},
    {GR_MSG_APPEND, "APPEND", " session epoch keep_len hash ids max_tokens ", " stop_ids want_trace "},
    {GR_MSG_TRUNCATE, "TRUNCATE", " session epoch keep_len ", " "},
    {GR_MSG_EVICTED, "EVICTED", " session ", " "},
    {GR_MSG_ATTACH, "ATTACH",
     " session epoch address temperature min_p top_p top_k seed tree_shape draft_depth draft_top_k n_node ",
     " transport auto_tree draft_ahead "},
    {GR_MSG_ATTACHED, "ATTACHED", " session epoch transport ", " "},
    {GR_MSG_DETACH, "DETACH", " session ", " "},
    {GR_MSG_DRAFT_STATS, "DRAFT_STATS", " session n_round draft_ns host_ns ", " n_desync n_ahead n_hit "},
    {GR_MSG_PING, "PING", " ", " worker "},
    {GR_MSG_PONG, "PONG", " n_session n_vocab ", " n_block n_free_block pid worker rtt_ns "},
    {GR_MSG_ERROR, "ERROR", " session code text ", " "},
    {GR_MSG_DRAIN, "DRAIN", " ", " "},
    {GR_MSG_FINISHED, "FINISHED", " session epoch finish text n_token ", " n_fallback n_reopen "},
    {GR_MSG_REFRESH, "REFRESH", " session ", " "},
    {GR_MSG_PURGE, "PURGE", " ", " "},
    {GR_MSG_PURGED, "PURGED", " n_session ", " "},
    {GR_MSG_LIST, "LIST", " ", " "},
    {GR_MSG_SESSION, "SESSION",
     " session epoch state keep_open n_token n_round n_tree n_drafted n_hit_token idle_ns target drafter ", " "},
    {GR_MSG_WORKER, "WORKER", " worker role pid address n_session n_vocab n_ctx_max rtt_ns numerics_id ",
     " model_fingerprint tokenizer_fingerprint "},
    {GR_MSG_LISTED, "LISTED", " n_session n_worker ", " "},
};
#define N_TYPE ((int)GR_ARRAY_LEN(schema))

static bool has(const char *list, const char *name)
{
    char padded[64];
    snprintf(padded, sizeof(padded), " %s ", name);
    return strstr(list, padded) != NULL;
}

static bool in_schema(const struct schema *s, const struct field *f)
{
    return has(s->required, f->name) || has(s->optional, f->name);
}

static uint64_t rng_state = 77;

static uint64_t draw(uint64_t n)
{
    rng_state = gr_mix64(rng_state + GR_HASH_GOLDEN);
    return rng_state % n;
}

static void *at(const struct gr_msg *m, const struct field *f)
{
    return (char *)(uintptr_t)m + f->offset;
}

/* ---- round trip ---- */

static int32_t pool[64];

/* Every field of the struct is filled, so that a field that is not the type's would show. */
static void draw_msg(struct gr_msg *m, enum gr_msg_type type, bool extreme)
{
    memset(m, 0, sizeof(*m));
    m->type = type;
    for (int i = 0; i < 64; i++) {
        pool[i] = (int32_t)draw(1ull << 32);
    }
    for (int i = 0; i < N_FIELD; i++) {
        const struct field *f = &field[i];
        void *p = at(m, f);
        if (f->kind == U32) {
            *(uint32_t *)p = extreme ? (uint32_t)f->limit : (uint32_t)draw(f->limit + 1);
        } else if (f->kind == U64) {
            *(uint64_t *)p = extreme ? UINT64_MAX : draw(UINT64_MAX);
        } else if (f->kind == F64) {
            *(double *)p = extreme ? 1e30 : (double)draw(1000) / 7.0 - 50.0;
        } else if (f->kind == STR) {
            const size_t n = extreme ? f->limit - 1 : (size_t)draw(f->limit);
            memset(p, 'a' + (int)draw(26), n);
        } else {
            const uint32_t n = (uint32_t)draw((f->limit < 64 ? f->limit : 64) + 1);
            *(struct gr_msg_ids *)p =
                (struct gr_msg_ids){.p = pool, .n = extreme ? (uint32_t)GR_MIN(f->limit, 64u) : n};
        }
    }
}

static bool same_field(const struct gr_msg *a, const struct gr_msg *b, const struct field *f)
{
    const void *x = at(a, f);
    const void *y = at(b, f);
    switch (f->kind) {
    case U32:
        return *(const uint32_t *)x == *(const uint32_t *)y;
    case U64:
        return *(const uint64_t *)x == *(const uint64_t *)y;
    case F64:
        return memcmp(x, y, sizeof(double)) == 0;
    case STR:
        return strcmp(x, y) == 0;
    default: {
        const struct gr_msg_ids *i = x;
        const struct gr_msg_ids *k = y;
        return i->n == k->n && (i->n == 0 || memcmp(i->p, k->p, i->n * sizeof(int32_t)) == 0);
    }
    }
}

static void test_round_trips(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 16];
    static const struct gr_msg zero;
    for (int round = 0; round < 400; round++) {
        for (int t = 0; t < N_TYPE; t++) {
            struct gr_msg m, back;
            size_t n = 0;
            draw_msg(&m, schema[t].type, round == 0);
            assert_int_equal(gr_msg_encode(&m, bytes, sizeof(bytes), &n), GR_OK);
            memset(&back, 0xee, sizeof(back));
            assert_int_equal(gr_msg_decode(bytes, n, &back), GR_OK);
            assert_int_equal(back.type, schema[t].type);
            for (int i = 0; i < N_FIELD; i++) {
                if (!same_field(&back, in_schema(&schema[t], &field[i]) ? &m : &zero, &field[i])) {
                    fail_msg("%s: field %s does not come back", schema[t].name, field[i].name);
                }
            }
            gr_msg_finish(&back);
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_int_equal(N_TYPE, GR_N_MSG);
    for (int t = 0; t < N_TYPE; t++) {
        assert_string_equal(gr_msg_name(schema[t].type), schema[t].name);
    }
    assert_string_equal(gr_msg_name(GR_N_MSG), "?");
}

/* Fixed bytes of two messages, so that the two ends of different builds keep understanding each other. */
static void test_golden_bytes(void **state)
{
    (void)state;
    static const uint8_t close[] = "\x82\xa1t\xa5" "CLOSE" "\xa7session\xcd\x01\x02";
    static const uint8_t opened[] = "\x85\xa1t\xa6OPENED" "\xa7session\x07" "\xa5" "epoch\x01" "\xa9" "cache_hit\x00"
                                    "\xaausable_len\xce\x00\x01\x00\x00";
    uint8_t out[256];
    size_t n = 0;
    assert_int_equal(gr_msg_encode(&(struct gr_msg){.type = GR_MSG_CLOSE, .session = 258}, out, sizeof(out), &n),
                     GR_OK);
    assert_int_equal(n, sizeof(close) - 1);
    assert_memory_equal(out, close, n);
    const struct gr_msg m = {.type = GR_MSG_OPENED, .session = 7, .epoch = 1, .usable_len = 65536};
    assert_int_equal(gr_msg_encode(&m, out, sizeof(out), &n), GR_OK);
    assert_int_equal(n, sizeof(opened) - 1);
    assert_memory_equal(out, opened, n);
}

static void test_small_buffers(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPE; t++) {
        struct gr_msg m;
        uint8_t out[4096];
        size_t need = 0, n = 777;
        draw_msg(&m, schema[t].type, false);
        assert_int_equal(gr_msg_encode(&m, out, sizeof(out), &need), GR_OK);
        for (size_t cap = 0; cap < need; cap++) {
            memset(out, 0x5a, sizeof(out));
            assert_int_equal(gr_msg_encode(&m, out, cap, &n), GR_ELIMIT);
            assert_int_equal(n, 777); /* outputs only on success */
            for (size_t k = cap; k < need; k++) {
                assert_int_equal(out[k], 0x5a);
            }
        }
        assert_int_equal(gr_msg_encode(&m, out, need, &n), GR_OK);
    }
}

/* ---- hand-made messages ---- */

static msgpack_sbuffer sb;
static msgpack_packer pk;

static void put_str(const char *s)
{
    msgpack_pack_str(&pk, strlen(s));
    msgpack_pack_str_body(&pk, s, strlen(s));
}

static void put_good(const struct field *f)
{
    put_str(f->name);
    switch (f->kind) {
    case U32:
    case U64:
        msgpack_pack_uint64(&pk, 1);
        break;
    case F64:
        msgpack_pack_double(&pk, 0.5);
        break;
    case STR:
        put_str("x");
        break;
    default:
        msgpack_pack_array(&pk, 1);
        msgpack_pack_int(&pk, -3);
        break;
    }
}

/* A value of another type; n_way of them for each kind. */
#define N_WRONG 9
static void put_wrong(const struct field *f, int way)
{
    put_str(f->name);
    switch (way) {
    case 0:
        msgpack_pack_nil(&pk);
        return;
    case 1:
        msgpack_pack_true(&pk);
        return;
    case 2:
        msgpack_pack_map(&pk, 0);
        return;
    case 3:
        msgpack_pack_bin(&pk, 1);
        msgpack_pack_bin_body(&pk, "x", 1);
        return;
    case 4: /* a list that holds a list, a string, a number with a point */
        msgpack_pack_array(&pk, 1);
        msgpack_pack_array(&pk, 0);
        return;
    case 5:
        msgpack_pack_array(&pk, 1);
        if (f->kind == IDS) {
            msgpack_pack_double(&pk, 1.0);
        } else {
            msgpack_pack_int(&pk, 1);
        }
        return;
    case 6:
        if (f->kind == U32 || f->kind == U64) {
            msgpack_pack_int(&pk, -1);
        } else {
            msgpack_pack_int(&pk, 1);
        }
        return;
    case 7:
        if (f->kind == STR) {
            msgpack_pack_double(&pk, 1.0);
        } else {
            put_str("1");
        }
        return;
    default:
        if (f->kind == F64) {
            msgpack_pack_double(&pk, NAN);
        } else if (f->kind == IDS) {
            msgpack_pack_array(&pk, 1);
            msgpack_pack_uint64(&pk, 1ull << 31); /* past a 32-bit integer */
        } else {
            msgpack_pack_double(&pk, 1.0);
        }
        return;
    }
}

enum change { GOOD, WITHOUT, TWICE, WRONG, FOREIGN, NO_TYPE, TYPE_TWICE, ONLY_REQUIRED };

/* The message of schema s with all its fields, changed at field `which`. */
static void build(const struct schema *s, enum change change, int which, int way)
{
    msgpack_sbuffer_clear(&sb);
    int n = change == NO_TYPE ? 0 : 1;
    for (int i = 0; i < N_FIELD; i++) {
        const bool mine = change == ONLY_REQUIRED ? has(s->required, field[i].name) : in_schema(s, &field[i]);
        n += (mine && !(change == WITHOUT && i == which)) || (change == FOREIGN && i == which);
    }
    n += change == TWICE || change == TYPE_TWICE;
    msgpack_pack_map(&pk, (size_t)n);
    for (int i = 0; i < (change == NO_TYPE ? 0 : change == TYPE_TWICE ? 2 : 1); i++) {
        put_str("t");
        put_str(s->name);
    }
    for (int i = 0; i < N_FIELD; i++) {
        const bool mine = change == ONLY_REQUIRED ? has(s->required, field[i].name) : in_schema(s, &field[i]);
        if (change == WRONG && i == which) {
            put_wrong(&field[i], way);
        } else if ((mine && !(change == WITHOUT && i == which)) || (change == FOREIGN && i == which)) {
            put_good(&field[i]);
        }
        if (change == TWICE && i == which) {
            put_good(&field[i]);
        }
    }
}

/* Decodes a copy that ends where the bytes end; a refusal says one line and leaves the output alone. */
static enum gr_status decode(const void *bytes, size_t len)
{
    uint8_t *copy = malloc(len > 0 ? len : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, len);
    struct gr_msg m;
    memset(&m, 0xee, sizeof(m));
    const int before = log_count_n;
    const enum gr_status st = gr_msg_decode(copy, len, &m);
    assert_int_equal(log_count_n - before, st == GR_OK ? 0 : 1);
    if (st == GR_OK) {
        gr_msg_finish(&m);
    } else {
        assert_int_equal(st, GR_EFORMAT);
        assert_int_equal(*(unsigned char *)&m, 0xee);
    }
    free(copy);
    return st;
}

static enum gr_status decode_built(void)
{
    return decode(sb.data, sb.size);
}

static void test_missing_and_optional(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPE; t++) {
        build(&schema[t], GOOD, -1, 0);
        assert_int_equal(decode_built(), GR_OK);
        build(&schema[t], ONLY_REQUIRED, -1, 0);
        assert_int_equal(decode_built(), GR_OK);
        build(&schema[t], NO_TYPE, -1, 0);
        assert_int_equal(decode_built(), GR_EFORMAT);
        for (int i = 0; i < N_FIELD; i++) {
            if (in_schema(&schema[t], &field[i])) {
                build(&schema[t], WITHOUT, i, 0);
                const bool required = has(schema[t].required, field[i].name);
                assert_int_equal(decode_built(), required ? GR_EFORMAT : GR_OK);
                if (required) { /* the line names the type and the field */
                    assert_non_null(strstr(log_count_last, schema[t].name));
                    assert_non_null(strstr(log_count_last, field[i].name));
                }
            }
        }
    }
}

static void test_foreign_and_unknown(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPE; t++) {
        for (int i = 0; i < N_FIELD; i++) {
            if (!in_schema(&schema[t], &field[i])) {
                build(&schema[t], FOREIGN, i, 0);
                assert_int_equal(decode_built(), GR_EFORMAT);
            }
        }
    }
    static const char *const names[] = {"", "sessio", "session ", "sessions", "Session", "zzz", "type"};
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        msgpack_sbuffer_clear(&sb);
        msgpack_pack_map(&pk, 2);
        put_str("t");
        put_str("PING");
        put_str(names[i]);
        msgpack_pack_int(&pk, 1);
        assert_int_equal(decode_built(), GR_EFORMAT);
    }
    static const char *const types[] = {"", "PIN", "PINGG", "ping", "COMMIT\n"};
    for (size_t i = 0; i < GR_ARRAY_LEN(types); i++) {
        msgpack_sbuffer_clear(&sb);
        msgpack_pack_map(&pk, 1);
        put_str("t");
        put_str(types[i]);
        assert_int_equal(decode_built(), GR_EFORMAT);
    }
}

static void test_twice(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPE; t++) {
        for (int i = 0; i < N_FIELD; i++) {
            if (in_schema(&schema[t], &field[i])) {
                build(&schema[t], TWICE, i, 0);
                assert_int_equal(decode_built(), GR_EFORMAT);
            }
        }
        build(&schema[t], TYPE_TWICE, -1, 0);
        assert_int_equal(decode_built(), GR_EFORMAT);
    }
}

static void test_mistyped(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPE; t++) {
        for (int i = 0; i < N_FIELD; i++) {
            for (int way = 0; way < N_WRONG && in_schema(&schema[t], &field[i]); way++) {
                build(&schema[t], WRONG, i, way);
                if (field[i].kind == IDS && way == 5) {
                    assert_int_equal(decode_built(), GR_EFORMAT);
                } else if (decode_built() != GR_EFORMAT) {
                    fail_msg("%s accepts a wrong %s (way %d)", schema[t].name, field[i].name, way);
                }
            }
        }
    }
    static const uint8_t int_type[] = "\x81\xa1t\x05";      /* t is no string */
    static const uint8_t int_key[] = "\x82\xa1t\xa4PING\x05\x05"; /* a key is no string */
    static const uint8_t list[] = "\x91\xa4PING";            /* no map */
    static const uint8_t empty[] = "\x80";
    assert_int_equal(decode(int_type, sizeof(int_type) - 1), GR_EFORMAT);
    assert_int_equal(decode(int_key, sizeof(int_key) - 1), GR_EFORMAT);
    assert_int_equal(decode(list, sizeof(list) - 1), GR_EFORMAT);
    assert_int_equal(decode(empty, 1), GR_EFORMAT);
    assert_int_equal(decode("", 0), GR_EFORMAT);
}

/* {"t": type, name: value}, with put() for the value; for messages that need one field only. */
static const struct schema *smallest_with(const struct field *f)
{
    for (int t = 0; t < N_TYPE; t++) {
        if (in_schema(&schema[t], f)) {
            return &schema[t];
        }
    }
    return NULL;
}

static void build_value(const struct field *f, uint64_t v)
{
    const struct schema *s = smallest_with(f);
    assert_non_null(s);
    build(s, has(s->required, f->name) ? ONLY_REQUIRED : ONLY_REQUIRED, -1, 0);
    /* again, with this field's value replaced */
    msgpack_sbuffer_clear(&sb);
    int n = 1;
    for (int i = 0; i < N_FIELD; i++) {
        n += has(s->required, field[i].name) || &field[i] == f;
    }
    msgpack_pack_map(&pk, (size_t)n);
    put_str("t");
    put_str(s->name);
    for (int i = 0; i < N_FIELD; i++) {
        if (&field[i] != f) {
            if (has(s->required, field[i].name)) {
                put_good(&field[i]);
            }
            continue;
        }
        put_str(f->name);
        if (f->kind == STR) {
            char *text = calloc(1, (size_t)v + 1);
            assert_non_null(text);
            memset(text, 'q', (size_t)v);
            msgpack_pack_str(&pk, (size_t)v);
            msgpack_pack_str_body(&pk, text, (size_t)v);
            free(text);
        } else if (f->kind == IDS) {
            msgpack_pack_array(&pk, (size_t)v);
            for (uint64_t k = 0; k < v; k++) {
                msgpack_pack_int32(&pk, (int32_t)(k % 100));
            }
        } else {
            msgpack_pack_uint64(&pk, v);
        }
    }
}

static void test_limits(void **state)
{
    (void)state;
    for (int i = 0; i < N_FIELD; i++) {
        const struct field *f = &field[i];
        if (f->kind == U32) {
            build_value(f, f->limit);
            assert_int_equal(decode_built(), GR_OK);
            build_value(f, f->limit + 1);
            assert_int_equal(decode_built(), GR_EFORMAT);
            build_value(f, UINT64_MAX);
            assert_int_equal(decode_built(), GR_EFORMAT);
            build_value(f, 1ull << 32); /* 0 when cut to 32 bits */
            assert_int_equal(decode_built(), GR_EFORMAT);
        } else if (f->kind == U64) {
            build_value(f, UINT64_MAX);
            assert_int_equal(decode_built(), GR_OK);
        } else if (f->kind == STR) {
            build_value(f, f->limit - 1);
            assert_int_equal(decode_built(), GR_OK);
            build_value(f, f->limit);
            assert_int_equal(decode_built(), GR_EFORMAT);
            build_value(f, 100000);
            assert_int_equal(decode_built(), GR_EFORMAT);
        } else if (f->kind == IDS) {
            build_value(f, f->limit);
            assert_int_equal(decode_built(), GR_OK);
            build_value(f, f->limit + 1);
            assert_int_equal(decode_built(), GR_EFORMAT);
            build_value(f, 0);
            assert_int_equal(decode_built(), GR_OK);
        }
    }
}

static void test_odd_values(void **state)
{
    (void)state;
    static const double bad[] = {NAN, INFINITY, -INFINITY, 1.1e30, -1e300};
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        uint8_t out[512];
        size_t n = 0;
        struct gr_msg m = {.type = GR_MSG_OPEN, .session = 1, .temperature = bad[i], .top_p = 1};
        assert_int_equal(gr_msg_encode(&m, out, sizeof(out), &n), GR_OK);
        assert_int_equal(decode(out, n), GR_EFORMAT);
    }
    static const uint8_t nul[] = "\x84\xa1t\xa5" "ERROR\xa7session\x01\xa4" "code\x01\xa4text\xa3" "a\0b";
    assert_int_equal(decode(nul, sizeof(nul) - 1), GR_EFORMAT); /* a C string would lose its end */
    static const uint8_t swapped[] = "\x82\xa7session\x01\xa1t\xa5" "CLOSE"; /* order does not matter */
    assert_int_equal(decode(swapped, sizeof(swapped) - 1), GR_OK);
    static const uint8_t wide[] = "\xdf\0\0\0\2\xd9\1t\xda\0\5" "CLOSE\xdb\0\0\0\7session\xcf\0\0\0\0\0\0\0\1";
    assert_int_equal(decode(wide, sizeof(wide) - 1), GR_OK); /* nor how wide the lengths are written */
}

/* ---- cut, prolonged, lying ---- */

static void test_truncated_and_trailing(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPE; t++) {
        build(&schema[t], GOOD, -1, 0);
        for (size_t len = 0; len < sb.size; len++) {
            assert_int_equal(decode(sb.data, len), GR_EFORMAT);
        }
        msgpack_pack_nil(&pk);
        assert_int_equal(decode_built(), GR_EFORMAT);
        build(&schema[t], GOOD, -1, 0);
        const size_t once = sb.size; /* two messages in one record */
        msgpack_sbuffer_write(&sb, sb.data, once);
        assert_int_equal(decode_built(), GR_EFORMAT);
    }
}

static void test_corrupted(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPE; t++) {
        build(&schema[t], GOOD, -1, 0);
        for (size_t i = 0; i < sb.size; i++) {
            const char was = sb.data[i];
            for (int x = 1; x < 256; x += t == 0 || t == 5 ? 1 : 7) {
                sb.data[i] = (char)(was ^ x);
                (void)decode_built(); /* refused or fine; never a crash, a leak or a second line */
            }
            sb.data[i] = was;
        }
    }
}

static void assert_unsound(const char *bytes, size_t len)
{
    assert_false(gr_msgpack_sound((const uint8_t *)bytes, len, 3)); /* before anything is allocated */
    assert_int_equal(decode(bytes, len), GR_EFORMAT);
}
#define UNSOUND(text) assert_unsound(text, sizeof(text) - 1)

static void test_lying_lengths(void **state)
{
    (void)state;
    UNSOUND("\xdd\xff\xff\xff\xff");                     /* an array of 4 G in 5 bytes */
    UNSOUND("\xdf\xff\xff\xff\xff");
    UNSOUND("\xdf\x80\x00\x00\x00");                     /* 2 * n wraps in 32 bits */
    UNSOUND("\xdc\xff\xff\xc0\xc0");
    UNSOUND("\xdb\xff\xff\xff\xff" "abc");
    UNSOUND("\xc6\xff\xff\xff\xff" "abc");
    UNSOUND("\xc9\xff\xff\xff\xff\x01" "abc");           /* ext: the type byte counts, too */
    UNSOUND("\xd9\x04" "abc");
    UNSOUND("\xc1");                                     /* never used */
    UNSOUND("\x81\xa1t");
    UNSOUND("\x82\xa1t\xa4PING\xa3ids\xdd\x00\x10\x00\x00\x01"); /* a million ids, one there */
    UNSOUND("\x82\xa1t\xa4PING\xa3ids\xdd\xff\xff\xff\xff");
    UNSOUND("\xcf\x01\x02\x03");
    UNSOUND("\xd8");
    UNSOUND("\x80\x80");
}

static void test_depth(void **state)
{
    (void)state;
    assert_true(gr_msgpack_sound((const uint8_t *)"\x91\x91\xc0", 3, 3));
    assert_false(gr_msgpack_sound((const uint8_t *)"\x91\x91\xc0", 3, 2));
    assert_true(gr_msgpack_sound((const uint8_t *)"\x91\x91\x90", 3, 3)); /* an empty list needs no level */
    assert_false(gr_msgpack_sound((const uint8_t *)"\x91\x91\x91\xc0", 4, 3));
    assert_false(gr_msgpack_sound((const uint8_t *)"\x91\x91\x91\x91\x91\x91\x91\x91\x91\xc0", 10, 100)); /* own cap */
    const size_t n = 1 << 20;
    char *bomb = malloc(n + 1);
    assert_non_null(bomb);
    static const char level[] = {(char)0x91, (char)0x81, (char)0xdd};
    for (size_t i = 0; i < GR_ARRAY_LEN(level); i++) {
        memset(bomb, level[i], n);
        bomb[n] = (char)0xc0;
        assert_unsound(bomb, n + 1);
        memcpy(bomb, "\x82\xa1t\xa4PING\xa3ids", 12); /* inside a field */
        assert_unsound(bomb, n + 1);
    }
    free(bomb);
}

/* Every object that msgpack-c can write is sound, every prefix of it is not. */
static void put_random(int depth)
{
    switch (draw(depth > 0 ? 10 : 8)) {
    case 0:
        msgpack_pack_nil(&pk);
        break;
    case 1:
        msgpack_pack_uint64(&pk, draw(1ull << (1 + draw(63))));
        break;
    case 2:
        msgpack_pack_int64(&pk, -(int64_t)draw(1ull << (1 + draw(62))));
        break;
    case 3:
        msgpack_pack_double(&pk, 1.5);
        break;
    case 4:
        msgpack_pack_float(&pk, 1.5f);
        break;
    case 5: {
        const size_t n = (size_t)draw(300);
        static const char text[300];
        msgpack_pack_str(&pk, n);
        msgpack_pack_str_body(&pk, text, n);
        break;
    }
    case 6: {
        const size_t n = (size_t)draw(300);
        static const char text[300];
        msgpack_pack_bin(&pk, n);
        msgpack_pack_bin_body(&pk, text, n);
        break;
    }
    case 7: {
        static const size_t sizes[] = {0, 1, 2, 4, 8, 16, 3, 200, 300};
        const size_t n = sizes[draw(9)];
        static const char text[300];
        msgpack_pack_ext(&pk, n, 5);
        msgpack_pack_ext_body(&pk, text, n);
        break;
    }
    case 8: {
        const size_t n = (size_t)draw(20);
        msgpack_pack_array(&pk, n);
        for (size_t i = 0; i < n; i++) {
            put_random(depth - 1);
        }
        break;
    }
    default: {
        const size_t n = (size_t)draw(20);
        msgpack_pack_map(&pk, n);
        for (size_t i = 0; i < 2 * n; i++) {
            put_random(depth - 1);
        }
        break;
    }
    }
}

static void test_guard_on_random_objects(void **state)
{
    (void)state;
    for (int round = 0; round < 3000; round++) {
        msgpack_sbuffer_clear(&sb);
        put_random(2);
        assert_true(gr_msgpack_sound((const uint8_t *)sb.data, sb.size, 4));
        for (size_t cut = 0; cut < sb.size; cut += 1 + sb.size / 20) {
            assert_false(gr_msgpack_sound((const uint8_t *)sb.data, cut, 4));
        }
        (void)decode_built();
    }
}

static void test_too_large(void **state)
{
    (void)state;
    const size_t n = (size_t)GR_MSG_BYTES_MAX + 1;
    char *bytes = calloc(1, n);
    assert_non_null(bytes);
    bytes[0] = (char)0xc6; /* one bin of exactly the rest */
    bytes[1] = 0;
    bytes[2] = (char)((n - 5) >> 16);
    bytes[3] = (char)((n - 5) >> 8);
    bytes[4] = (char)(n - 5);
    assert_true(gr_msgpack_sound((const uint8_t *)bytes, n, 3));
    assert_int_equal(decode(bytes, n), GR_EFORMAT);
    free(bytes);
}

static int setup(void **state)
{
    (void)state;
    msgpack_sbuffer_init(&sb);
    msgpack_packer_init(&pk, &sb, msgpack_sbuffer_write);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    msgpack_sbuffer_destroy(&sb);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),        cmocka_unit_test(test_names),
        cmocka_unit_test(test_golden_bytes),       cmocka_unit_test(test_small_buffers),
        cmocka_unit_test(test_missing_and_optional), cmocka_unit_test(test_foreign_and_unknown),
        cmocka_unit_test(test_twice),              cmocka_unit_test(test_mistyped),
        cmocka_unit_test(test_limits),             cmocka_unit_test(test_odd_values),
        cmocka_unit_test(test_truncated_and_trailing), cmocka_unit_test(test_corrupted),
        cmocka_unit_test(test_lying_lengths),      cmocka_unit_test(test_depth),
        cmocka_unit_test(test_guard_on_random_objects), cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
