/* Control messages, field by field: every type round-trips; a missing, unknown, repeated, mistyped or excessive field
 * is refused with one line. */
#include "tests/unit/msg_schema.h"

/* ---- round trip ---- */

/* A key with a value of its kind; extreme: the largest. */
static void put_drawn(const struct field *f, bool extreme)
{
    put_str(f->name);
    if (f->kind == U32) {
        msgpack_pack_uint64(&pk, extreme ? f->limit : draw(f->limit + 1));
    } else if (f->kind == U64) {
        msgpack_pack_uint64(&pk, extreme ? UINT64_MAX : draw(UINT64_MAX));
    } else if (f->kind == F64) {
        msgpack_pack_double(&pk, extreme ? 0x1p99 : (double)(1 + draw(1000)) / 8.0);
    } else if (f->kind == STR) {
        static char text[1 << 14];
        const size_t n = extreme ? f->limit - 1 : (size_t)draw(f->limit);
        memset(text, 'a' + (int)draw(26), n);
        msgpack_pack_str(&pk, n);
        msgpack_pack_str_body(&pk, text, n);
    } else {
        const uint64_t most = GR_MIN(f->limit, 64u);
        const uint64_t n = extreme ? most : draw(most + 1);
        msgpack_pack_array(&pk, (size_t)n);
        for (uint64_t i = 0; i < n && f->kind == FLOATS; i++) {
            msgpack_pack_float(&pk, (float)draw(1000) / 8.0f - 50.0f);
        }
        for (uint64_t i = 0; i < n && f->kind == IDS; i++) {
            msgpack_pack_int32(&pk, (int32_t)draw(1ull << 32));
        }
    }
}

static bool is_empty(const char *bytes, size_t len)
{
    const unsigned char c = (unsigned char)bytes[len - 1];
    return c == 0x00 || c == 0xa0 || c == 0x90; /* the value 0, "", [] : the last byte of a field that holds nothing */
}

/* The message of schema s in the bytes that it has on the wire: an optional field that holds nothing is not there. */
static void build_drawn(const struct schema *s, bool extreme)
{
    static char fields[1 << 16];
    size_t n_byte = 0;
    size_t n = 1;
    for (int i = 0; i < N_FIELD; i++) {
        const bool required = has(s->required, field[i].name);
        const bool is_other_ahead = strcmp(field[i].name, "draft_ahead") == 0 && s->type == GR_MSG_OPEN;
        if (!required && (!in_schema(s, &field[i]) || is_other_ahead || (!extreme && draw(4) == 0))) {
            continue; /* OPEN's two keys of draft-ahead are one wish: this one alone is looked at in test_wishes */
        }
        msgpack_sbuffer_clear(&sb);
        put_drawn(&field[i], extreme);
        const size_t n_name = 1 + strlen(field[i].name);
        if (required || sb.size > n_name + 1 || !is_empty(sb.data, sb.size)) {
            memcpy(fields + n_byte, sb.data, sb.size);
            n_byte += sb.size;
            n++;
        }
    }
    msgpack_sbuffer_clear(&sb);
    msgpack_pack_map(&pk, n);
    put_str("t");
    put_str(s->name);
    msgpack_sbuffer_write(&sb, fields, n_byte);
}

/* What comes goes out again, byte for byte: no field is lost, and none stands in another's place. */
static void test_round_trips(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 16];
    for (int round = 0; round < 400; round++) {
        for (int t = 0; t < N_TYPE; t++) {
            struct gr_msg m;
            size_t n = 0;
            build_drawn(&schema[t], round == 0);
            memset(&m, 0xee, sizeof(m));
            assert_int_equal(gr_msg_decode((const uint8_t *)sb.data, sb.size, &m), GR_OK);
            assert_int_equal(m.type, schema[t].type);
            assert_int_equal(gr_msg_encode(&m, bytes, sizeof(bytes), &n), GR_OK);
            assert_int_equal(n, sb.size);
            assert_memory_equal(bytes, sb.data, n);
            gr_msg_finish(&m);
        }
    }
}

/* The value of a key of an encoded OPEN; NULL: it has none. */
static const msgpack_object *value_of(const struct gr_wishes *w, const char *key, msgpack_unpacked *box)
{
    static uint8_t bytes[1024];
    size_t n = 0;
    size_t at = 0;
    const struct gr_msg m = {.type = GR_MSG_OPEN, .session = 1, .open = {.wishes = *w}};
    assert_int_equal(gr_msg_encode(&m, bytes, sizeof(bytes), &n), GR_OK);
    assert_int_equal(msgpack_unpack_next(box, (const char *)bytes, n, &at), MSGPACK_UNPACK_SUCCESS);
    for (uint32_t i = 0; i < box->data.via.map.size; i++) {
        const msgpack_object_kv *kv = &box->data.via.map.ptr[i];
        if (kv->key.via.str.size == strlen(key) && memcmp(kv->key.via.str.ptr, key, strlen(key)) == 0) {
            return &kv->val;
        }
    }
    return NULL;
}

/* Keys of wishes and the members that they stand for: rows of the table name both. */
static void test_wishes(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        struct gr_wishes w;
    } cases[] = {
        {"temperature", {.sampling = {.temperature = 1.0f}}},
        {"min_p", {.sampling = {.min_p = 1.0f}}},
        {"top_p", {.sampling = {.top_p = 1.0f}}},
        {"top_k", {.sampling = {.top_k = 1}}},
        {"seed", {.sampling = {.seed = 1}}},
        {"want_draft", {.want_draft = true}},
        {"single_token", {.single_token = true}},
        {"keep_open", {.keep_open = true}},
        {"queues", {.queues = true}},
        {"priority", {.priority = 1}},
        {"auto_tree", {.auto_tree = true}},
        {"tree_shape", {.tree_shape = GR_SHAPE_CHAIN}},
        {"draft_depth", {.draft_depth = 1}},
        {"draft_top_k", {.draft_top_k = 1}},
        {"n_node", {.n_node = 1}},
        {"draft_ahead", {.draft_ahead = GR_AHEAD_ON}},
        {"auto_ahead", {.draft_ahead = GR_AHEAD_AUTO}},
        {"transport", {.transport = "1"}},
        {"specpv", {.specpv = GR_SPECPV_LOSSY}},
        {"pv_sink", {.specpv_params = {.n_sink = 1}}},
        {"pv_retrieval", {.specpv_params = {.n_retrieval = 1}}},
        {"pv_window", {.specpv_params = {.n_window = 1}}},
        {"pv_buffer", {.specpv_params = {.n_buffer = 1}}},
        {"pv_threshold", {.specpv_params = {.threshold = 1}}},
        {"pv_interval", {.specpv_params = {.interval = 1}}},
        {"pv_provisional", {.specpv_params = {.max_provisional = 1}}},
        {"pv_fraction", {.specpv_params = {.refresh_fraction = 1.0}}},
        {"max_tokens", {.turn = {.max_tokens = 1}}},
        {"want_trace", {.turn = {.want_trace = true}}},
        {"stop_ids", {.turn = {.stop_ids = {.n = 1, .id = {1}}}}},
        {"min_tokens", {.turn = {.min_tokens = 1}}},
        {"n_logprob", {.turn = {.n_logprob = 1}}},
        {"timeout_ns", {.turn = {.timeout_ns = 1}}},
        {"repetition_penalty", {.adjust = {.repetition = 1.0f}}},
        {"frequency_penalty", {.adjust = {.frequency = 1.0f}}},
        {"presence_penalty", {.adjust = {.presence = 1.0f}}},
        {"banned_ids", {.adjust = {.banned = {.n = 1, .id = {1}}}}},
        {"biased_ids", {.adjust = {.biased = {.n = 1, .id = {1}}}}},
        {"biases", {.adjust = {.bias = {.n = 1, .value = {1.0f}}}}},
        {"bad_words", {.adjust = {.bad = {.n = 1, .entry = {1}}}}},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        for (size_t k = 0; k < GR_ARRAY_LEN(cases); k++) {
            msgpack_unpacked box;
            msgpack_unpacked_init(&box);
            const msgpack_object *v = value_of(&cases[i].w, cases[k].key, &box);
            if (i != k) { /* another key: not there, or zero where it is always there */
                assert_true(v == NULL || (v->type == MSGPACK_OBJECT_POSITIVE_INTEGER && v->via.u64 == 0) ||
                            (v->type == MSGPACK_OBJECT_FLOAT64 && !(v->via.f64 < 0.0 || v->via.f64 > 0.0)));
            } else {
                assert_non_null(v);
                assert_true(v->type == MSGPACK_OBJECT_STR ? v->via.str.size == 1
                            : v->type == MSGPACK_OBJECT_ARRAY
                                ? v->via.array.ptr[0].via.u64 == 1 || v->via.array.ptr[0].via.f64 > 0.5
                            : v->type == MSGPACK_OBJECT_FLOAT64 ? v->via.f64 > 0.5
                                                                : v->via.u64 == 1);
            }
            msgpack_unpacked_destroy(&box);
        }
    }
}

/* A copy takes the entries of lists that are there, and no others. */
static void test_copies_of_wishes(void **state)
{
    (void)state;
    for (int n = 0; n <= GR_STOP_ID_MAX; n++) {
        static struct gr_wishes from, to, want;
        memset(&from, 0x11, sizeof(from));
        memset(&to, 0x22, sizeof(to));
        from.turn.stop_ids.n = from.adjust.banned.n = from.adjust.biased.n = from.adjust.bias.n = from.adjust.bad.n = n;
        want = to;
        memcpy(&want, &from, offsetof(struct gr_wishes, adjust));
        memcpy(&want.adjust, &from.adjust, offsetof(struct gr_adjust, banned.id) + (size_t)n * sizeof(int32_t));
        memcpy(&want.adjust.biased, &from.adjust.biased, (size_t)(1 + n) * sizeof(int32_t));
        memcpy(&want.adjust.bias, &from.adjust.bias, (size_t)(1 + n) * sizeof(int32_t));
        memcpy(&want.adjust.bad, &from.adjust.bad, (size_t)(1 + n) * sizeof(int32_t));
        memcpy(&want.turn, &from.turn, offsetof(struct gr_turn_wishes, stop_ids.id) + (size_t)n * sizeof(int32_t));
        gr_wishes_copy(&to, &from);
        assert_memory_equal(&to, &want, sizeof(to));
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
    static const uint8_t close[] = "\x82\xa1t\xa5"
                                   "CLOSE"
                                   "\xa7session\xcd\x01\x02";
    static const uint8_t opened[] = "\x85\xa1t\xa6OPENED"
                                    "\xa7session\x07"
                                    "\xa5"
                                    "epoch\x01"
                                    "\xa9"
                                    "cache_hit\x00"
                                    "\xaausable_len\xce\x00\x01\x00\x00";
    uint8_t out[256];
    size_t n = 0;
    assert_int_equal(gr_msg_encode(&(struct gr_msg){.type = GR_MSG_CLOSE, .session = 258}, out, sizeof(out), &n),
                     GR_OK);
    assert_int_equal(n, sizeof(close) - 1);
    assert_memory_equal(out, close, n);
    const struct gr_msg m = {.type = GR_MSG_OPENED, .session = 7, .opened = {.epoch = 1, .usable_len = 65536}};
    assert_int_equal(gr_msg_encode(&m, out, sizeof(out), &n), GR_OK);
    assert_int_equal(n, sizeof(opened) - 1);
    assert_memory_equal(out, opened, n);
}

/* A text may come from a user, and be cut to its field: what is sent is UTF-8, and what is not is refused. */
static void test_texts_are_utf8(void **state)
{
    (void)state;
    uint8_t out[512];
    size_t n = 0;
    struct gr_msg m = {.type = GR_MSG_ERROR, .error = {.text = "no \xff, \xe2\x82\xac, \xe2\x82"}}, back;
    assert_int_equal(gr_msg_encode(&m, out, sizeof(out), &n), GR_OK);
    assert_int_equal(gr_msg_decode(out, n, &back), GR_OK);
    assert_string_equal(back.error.text, "no ?, \xe2\x82\xac, ??");
    gr_msg_finish(&back);
    out[n - 1] = 0xe2; /* of the text, which is the last field */
    assert_int_equal(gr_msg_decode(out, n, &back), GR_EFORMAT);
    memset(m.error.text, 'x', sizeof(m.error.text)); /* without an end */
    memcpy(m.error.text + sizeof(m.error.text) - 3, "\xe2\x82\xac", 3);
    assert_int_equal(gr_msg_encode(&m, out, sizeof(out), &n), GR_OK);
    assert_int_equal(gr_msg_decode(out, n, &back), GR_OK);
    assert_int_equal(strlen(back.error.text), sizeof(m.error.text) - 1);
    assert_string_equal(back.error.text + sizeof(m.error.text) - 4, "x??");
    gr_msg_finish(&back);
}

static void test_small_buffers(void **state)
{
    (void)state;
    for (int t = 0; t < N_TYPE; t++) {
        struct gr_msg m;
        uint8_t out[4096];
        size_t need = 0, n = 777;
        build_drawn(&schema[t], false);
        assert_int_equal(gr_msg_decode((const uint8_t *)sb.data, sb.size, &m), GR_OK);
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
        gr_msg_finish(&m);
    }
}

/* ---- hand-made messages ---- */

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
    static const uint8_t int_type[] = "\x81\xa1t\x05";            /* t is no string */
    static const uint8_t int_key[] = "\x82\xa1t\xa4PING\x05\x05"; /* a key is no string */
    static const uint8_t list[] = "\x91\xa4PING";                 /* no map */
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
        } else if (f->kind == IDS || f->kind == FLOATS) {
            msgpack_pack_array(&pk, (size_t)v);
            for (uint64_t k = 0; k < v; k++) {
                const int bad =
                    f->kind == IDS ? msgpack_pack_int32(&pk, (int32_t)(k % 100)) : msgpack_pack_float(&pk, (float)k);
                assert_int_equal(bad, 0);
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
        } else if (f->kind == IDS || f->kind == FLOATS) {
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
    static const char *const keys[] = {"temperature", "pv_fraction"}; /* a float and a double */
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        for (size_t k = 0; k < GR_ARRAY_LEN(keys); k++) {
            const struct schema *s = &schema[GR_MSG_OPEN];
            msgpack_sbuffer_clear(&sb);
            int n = 1;
            for (int f = 0; f < N_FIELD; f++) {
                n += in_schema(s, &field[f]);
            }
            msgpack_pack_map(&pk, (size_t)n);
            put_str("t");
            put_str(s->name);
            for (int f = 0; f < N_FIELD; f++) {
                if (in_schema(s, &field[f]) && strcmp(field[f].name, keys[k]) == 0) {
                    put_str(keys[k]);
                    msgpack_pack_double(&pk, bad[i]);
                } else if (in_schema(s, &field[f])) {
                    put_good(&field[f]);
                }
            }
            assert_int_equal(decode_built(), GR_EFORMAT);
        }
    }
    static const uint8_t nul[] = "\x84\xa1t\xa5"
                                 "ERROR\xa7session\x01\xa4"
                                 "code\x01\xa4text\xa3"
                                 "a\0b";
    assert_int_equal(decode(nul, sizeof(nul) - 1), GR_EFORMAT); /* a C string would lose its end */
    static const uint8_t swapped[] = "\x82\xa7session\x01\xa1t\xa5"
                                     "CLOSE"; /* order does not matter */
    assert_int_equal(decode(swapped, sizeof(swapped) - 1), GR_OK);
    static const uint8_t wide[] = "\xdf\0\0\0\2\xd9\1t\xda\0\5"
                                  "CLOSE\xdb\0\0\0\7session\xcf\0\0\0\0\0\0\0\1";
    assert_int_equal(decode(wide, sizeof(wide) - 1), GR_OK); /* nor how wide the lengths are written */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_wishes),
        cmocka_unit_test(test_copies_of_wishes),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_golden_bytes),
        cmocka_unit_test(test_small_buffers),
        cmocka_unit_test(test_texts_are_utf8),
        cmocka_unit_test(test_missing_and_optional),
        cmocka_unit_test(test_foreign_and_unknown),
        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_mistyped),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_odd_values),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
