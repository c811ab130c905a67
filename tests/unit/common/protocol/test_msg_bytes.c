/* Control messages as bytes: cut, prolonged, corrupted ones, lying lengths, depth bombs and sizes past the limit are
 * refused with one line, before anything is allocated. */
#include "common/protocol/msgpack_guard.h"
#include "tests/unit/msg_schema.h"

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
    UNSOUND("\xdd\xff\xff\xff\xff"); /* an array of 4 G in 5 bytes */
    UNSOUND("\xdf\xff\xff\xff\xff");
    UNSOUND("\xdf\x80\x00\x00\x00"); /* 2 * n wraps in 32 bits */
    UNSOUND("\xdc\xff\xff\xc0\xc0");
    UNSOUND("\xdb\xff\xff\xff\xff"
            "abc");
    UNSOUND("\xc6\xff\xff\xff\xff"
            "abc");
    UNSOUND("\xc9\xff\xff\xff\xff\x01"
            "abc"); /* ext: the type byte counts, too */
    UNSOUND("\xd9\x04"
            "abc");
    UNSOUND("\xc1"); /* never used */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncated_and_trailing),  cmocka_unit_test(test_corrupted),
        cmocka_unit_test(test_lying_lengths),           cmocka_unit_test(test_depth),
        cmocka_unit_test(test_guard_on_random_objects), cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
