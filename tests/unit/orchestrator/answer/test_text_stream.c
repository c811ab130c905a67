/* Token ids in, text out, with the demo target's tokenizer and with a byte-level one: stop strings across tokens and
 * pushes, characters across tokens, what is held back and when it is released. */
#include "common/rules/hash.h"
#include "orchestrator/answer/text_stream.h"
#include "tests/quiet_log.h"
#include "tests/unit/mini_tokenizer_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct gr_tokenizer *demo, *bytes; /* `bytes`: id = byte */

struct run {
    struct gr_text_stream s;
    char text[8192]; /* everything handed out */
    size_t len;
    int stopped_at; /* index of the token that completed a stop string, -1 */
    int n_push;
};

static void begin(struct run *r, const struct gr_tokenizer *tok, const char *const *stop, int n_stop)
{
    memset(r, 0, sizeof(*r));
    r->stopped_at = -1;
    assert_int_equal(gr_text_stream_init(&r->s, tok, stop, n_stop), GR_OK);
}

static void take(struct run *r)
{
    size_t n = 0;
    const char *p = gr_text_stream_take(&r->s, &n);
    assert_true(r->len + n < sizeof(r->text));
    memcpy(r->text + r->len, p, n);
    r->len += n;
    r->text[r->len] = '\0';
}

static void push(struct run *r, int32_t id)
{
    bool stopped = false;
    assert_int_equal(gr_text_stream_push(&r->s, id, &stopped), GR_OK);
    r->stopped_at = stopped ? r->n_push : r->stopped_at;
    r->n_push++;
}

static void end(struct run *r)
{
    assert_int_equal(gr_text_stream_end(&r->s), GR_OK);
    take(r);
    gr_text_stream_finish(&r->s);
}

static size_t encode(const struct gr_tokenizer *tok, const char *text, int32_t *id)
{
    size_t n = 0;
    assert_int_equal(gr_tokenizer_encode(tok, text, strlen(text), false, id, 512, &n), GR_OK);
    return n;
}

/* Feeds text as tokens until a stop string; takes after every `every`-th push (a round). */
static void feed(struct run *r, const struct gr_tokenizer *tok, const char *text, int every)
{
    int32_t id[512];
    size_t n = strlen(text);
    for (size_t i = 0; i < n && tok == bytes; i++) {
        id[i] = (uint8_t)text[i]; /* byte by byte, without merges */
    }
    n = tok == bytes ? n : encode(tok, text, id);
    for (size_t i = 0; i < n && r->stopped_at < 0; i++) {
        push(r, id[i]);
        if ((i + 1) % (size_t)every == 0) {
            take(r);
        }
    }
}

#define CODE                                                                                           \
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - " \
    "2)\n\nprint(fibonacci(10))\n"

static void test_plain_text(void **state)
{
    (void)state;
    for (int every = 1; every < 9; every++) {
        struct run r;
        begin(&r, demo, NULL, 0);
        feed(&r, demo, CODE, every);
        end(&r);
        assert_string_equal(r.text, CODE);
        assert_int_equal(r.stopped_at, -1);
    }
}

/* Every substring of the text as a stop string, in rounds of every size: the text ends before its first occurrence. */
static void test_every_stop_string(void **state)
{
    (void)state;
    const size_t n = strlen(CODE);
    for (size_t from = 0; from < n; from += 3) {
        for (size_t len = 1; len <= 24 && from + len <= n; len += 1 + len / 4) {
            char stop[64];
            memcpy(stop, &CODE[from], len);
            stop[len] = '\0';
            const char *const list[] = {stop};
            const size_t want = (size_t)(strstr(CODE, stop) - CODE);
            for (int every = 1; every <= 6; every += 2) {
                struct run r;
                begin(&r, demo, list, 1);
                feed(&r, demo, CODE, every);
                assert_true(r.stopped_at >= 0);
                end(&r);
                assert_int_equal(r.len, want);
                assert_memory_equal(r.text, CODE, want);
            }
        }
    }
}

/* The stop string begins in one round and ends in another; nothing of it is ever shown. */
static void test_straddles_rounds(void **state)
{
    (void)state;
    const char *const stop[] = {"STOP!"};
    struct run r;
    begin(&r, bytes, stop, 1);
    static const char *const rounds[] = {"ab", "cS", "TO", "P", "!tail"};
    static const char *const shown[] = {"ab", "abc", "abc", "abc", "abc"};
    for (int i = 0; i < 5; i++) {
        for (const char *p = rounds[i]; *p != '\0' && r.stopped_at < 0; p++) {
            push(&r, (uint8_t)*p);
        }
        take(&r);
        assert_string_equal(r.text, shown[i]);
    }
    assert_int_equal(r.stopped_at, 7); /* the token that completed it */
    end(&r);
    assert_string_equal(r.text, "abc");
}

static void test_held_back_and_released(void **state)
{
    (void)state;
    const char *const stop[] = {"aab"};
    struct run r;
    begin(&r, bytes, stop, 1);
    static const struct {
        char c;
        const char *shown;
    } step[] = {{'x', "x"}, {'a', "x"}, {'a', "x"}, {'a', "xa"}, {'c', "xaaac"}, {'a', "xaaac"}};
    for (size_t i = 0; i < GR_ARRAY_LEN(step); i++) {
        push(&r, step[i].c);
        take(&r);
        assert_string_equal(r.text, step[i].shown);
    }
    end(&r); /* the last a was held: no stop string came of it */
    assert_string_equal(r.text, "xaaaca");
    /* the overlap that a naive matcher misses: aaab holds aab */
    begin(&r, bytes, stop, 1);
    feed(&r, bytes, "xaaab!", 1);
    end(&r);
    assert_string_equal(r.text, "xa");
}

static void test_two_stops_overlap(void **state)
{
    (void)state;
    const char *const nested[] = {"bcd", "abcde"};
    struct run r;
    begin(&r, bytes, nested, 2); /* bcd is complete first */
    for (const char *p = "xabcdefg"; *p != '\0' && r.stopped_at < 0; p++) {
        push(&r, *p);
        take(&r);
        assert_string_equal(r.text, r.stopped_at >= 0 ? "xa" : "x");
    }
    assert_int_equal(r.stopped_at, 4);
    end(&r);
    assert_string_equal(r.text, "xa");
    const char *const ends_together[] = {"cd", "bcd"};
    begin(&r, bytes, ends_together, 2); /* both end with d: the earlier start wins, whatever the list's order */
    feed(&r, bytes, "abcd", 1);
    end(&r);
    assert_string_equal(r.text, "a");
    const char *const crossing[] = {"abX", "bc"};
    begin(&r, bytes, crossing, 2); /* ab was held for abX; bc comes instead */
    feed(&r, bytes, "zabcX", 1);
    end(&r);
    assert_string_equal(r.text, "za");
    const char *const prefix[] = {"ab", "abc"};
    begin(&r, bytes, prefix, 2);
    feed(&r, bytes, "1ab", 1);
    assert_int_equal(r.stopped_at, 2);
    end(&r);
    assert_string_equal(r.text, "1");
}

/* One token that holds a whole stop string and text on both sides: cut before the earliest start. */
static void test_stop_inside_token(void **state)
{
    (void)state;
    const char *const stop[] = {"b"};
    struct run r;
    begin(&r, bytes, stop, 1);
    push(&r, 'x');
    push(&r, 257); /* "abc" */
    assert_int_equal(r.stopped_at, 1);
    end(&r);
    assert_string_equal(r.text, "xa");
    const char *const two[] = {"c", "ab"};
    begin(&r, bytes, two, 2);
    push(&r, 257);
    end(&r);
    assert_string_equal(r.text, "");
}

static void test_split_character(void **state)
{
    (void)state;
    static const char *const text[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}; /* e acute, euro, smile */
    for (size_t i = 0; i < GR_ARRAY_LEN(text); i++) {
        struct run r;
        begin(&r, bytes, NULL, 0);
        push(&r, 'a');
        for (const char *p = text[i]; *p != '\0'; p++) {
            push(&r, (uint8_t)*p);
            take(&r);
            char want[16];
            snprintf(want, sizeof(want), "a%s", p[1] == '\0' ? text[i] : "");
            assert_string_equal(r.text, want); /* all of it or nothing */
        }
        end(&r);
        /* cut off in the middle: one U+FFFD at the end, not before */
        begin(&r, bytes, NULL, 0);
        push(&r, (uint8_t)text[i][0]);
        take(&r);
        assert_int_equal(r.len, 0);
        end(&r);
        assert_string_equal(r.text, "\xef\xbf\xbd");
        /* a stop string of many-byte characters, byte by byte */
        const char *const stop[] = {text[i]};
        begin(&r, bytes, stop, 1);
        push(&r, 'q');
        for (const char *p = text[i]; *p != '\0'; p++) {
            push(&r, (uint8_t)*p);
            take(&r);
        }
        assert_int_equal(r.stopped_at, (int)strlen(text[i]));
        end(&r);
        assert_string_equal(r.text, "q");
    }
    /* the demo tokenizer, too: whatever tokens it makes of them */
    struct run r;
    begin(&r, demo, NULL, 0);
    feed(&r, demo, "caf\xc3\xa9 \xe2\x82\xac\xf0\x9f\x98\x80 \xe6\xbc\xa2", 1);
    end(&r);
    assert_string_equal(r.text, "caf\xc3\xa9 \xe2\x82\xac\xf0\x9f\x98\x80 \xe6\xbc\xa2");
}

static void test_empty(void **state)
{
    (void)state;
    const char *const stop[] = {"x"};
    struct run r;
    begin(&r, demo, stop, 1);
    take(&r);
    end(&r);
    assert_string_equal(r.text, "");
    begin(&r, bytes, stop, 1);
    push(&r, 'x'); /* nothing but the stop string */
    assert_int_equal(r.stopped_at, 0);
    take(&r);
    end(&r);
    assert_string_equal(r.text, "");
    begin(&r, bytes, stop, 1);
    push(&r, 300);    /* special tokens give no text and do not match */
    push(&r, 100000); /* nor do ids that no token has */
    push(&r, 'a');
    end(&r);
    assert_string_equal(r.text, "a");
}

/* "further tokens are refused": nothing can follow a stop string. */
static void test_nothing_after_stop(void **state)
{
    (void)state;
    const char *const stop[] = {"b"};
    struct run r;
    begin(&r, bytes, stop, 1);
    push(&r, 'a');
    push(&r, 'b');
    bool stopped = false;
    assert_int_equal(gr_text_stream_push(&r.s, 'c', &stopped), GR_EINVAL);
    take(&r);
    assert_string_equal(r.text, "a");
    end(&r);
    assert_string_equal(r.text, "a");
}

static void test_bad_stops(void **state)
{
    (void)state;
    static char longest[GR_STOP_STRING_BYTES_MAX + 2];
    struct gr_text_stream s;
    const char *const empty[] = {"ok", ""};
    assert_int_equal(gr_text_stream_init(&s, bytes, empty, 2), GR_EINVAL);
    memset(longest, 'z', GR_STOP_STRING_BYTES_MAX + 1);
    const char *const too_long[] = {longest};
    assert_int_equal(gr_text_stream_init(&s, bytes, too_long, 1), GR_EINVAL);
    const char *const nine[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    assert_int_equal(gr_text_stream_init(&s, bytes, nine, 9), GR_EINVAL);
    struct run r;
    longest[GR_STOP_STRING_BYTES_MAX] = '\0';
    begin(&r, bytes, too_long, 1); /* the longest that is legal, and one byte short of it */
    for (int i = 0; i < GR_STOP_STRING_BYTES_MAX - 1; i++) {
        push(&r, 'z');
        take(&r);
        assert_int_equal(r.len, 0);
    }
    push(&r, 'y');
    take(&r);
    assert_int_equal(r.len, GR_STOP_STRING_BYTES_MAX);
    for (int i = 0; i < GR_STOP_STRING_BYTES_MAX; i++) {
        push(&r, 'z');
    }
    assert_true(r.stopped_at > 0);
    end(&r);
    assert_int_equal(r.len, GR_STOP_STRING_BYTES_MAX);
}

/* Random texts over a small alphabet and random stop strings: equal to a search in the whole text, and nothing shown
 * is ever taken back. Byte tokens, so "completed first" is well defined. */
static void test_random(void **state)
{
    (void)state;
    uint64_t rng = 5;
    int n_stopped = 0;
    for (int round = 0; round < 4000; round++) {
        char text[80] = {0}, stop_text[3][8];
        const char *stop[3];
        rng = gr_mix64(rng + GR_HASH_GOLDEN);
        uint64_t x = rng;
        const int n_stop = (int)(x % 4);
        const int n = (int)(x / 4 % 60);
        for (int i = 0; i < n; i++) {
            x = gr_mix64(x + 1);
            text[i] = (char)('a' + x % 3);
        }
        for (int i = 0; i < n_stop; i++) {
            x = gr_mix64(x + 1);
            const int len = 1 + (int)(x % 6);
            for (int k = 0; k < len; k++) {
                x = gr_mix64(x + 1);
                stop_text[i][k] = (char)('a' + x % 3);
            }
            stop_text[i][len] = '\0';
            stop[i] = stop_text[i];
        }
        int cut = -1; /* where the first completed stop string starts */
        for (int last = 0; last < n && cut < 0; last++) {
            for (int i = 0; i < n_stop; i++) {
                const int len = (int)strlen(stop[i]);
                if (last + 1 >= len && memcmp(text + last + 1 - len, stop[i], (size_t)len) == 0) {
                    cut = cut < 0 ? last + 1 - len : GR_MIN(cut, last + 1 - len);
                }
            }
        }
        struct run r;
        begin(&r, bytes, stop, n_stop);
        for (int i = 0; i < n && r.stopped_at < 0; i++) {
            push(&r, text[i]);
            if (x >> (i & 31) & 1) {
                take(&r);
                assert_memory_equal(r.text, text, r.len);
                assert_true(cut < 0 || (int)r.len <= cut);
            }
        }
        end(&r);
        assert_int_equal(r.stopped_at >= 0, cut >= 0);
        assert_int_equal(r.len, cut >= 0 ? cut : n);
        assert_memory_equal(r.text, text, r.len);
        n_stopped += cut >= 0;
    }
    assert_in_range(n_stopped, 500, 3900);
}

static int setup(void **state)
{
    (void)state;
    const bool opened =
        mini_tokenizer_open(&bytes) == GR_OK && gr_tokenizer_load(GR_SOURCE_ROOT "/models/demo/target", &demo) == GR_OK;
    return opened ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    gr_tokenizer_destroy(demo);
    gr_tokenizer_destroy(bytes);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_text),
        cmocka_unit_test(test_every_stop_string),
        cmocka_unit_test(test_straddles_rounds),
        cmocka_unit_test(test_held_back_and_released),
        cmocka_unit_test(test_two_stops_overlap),
        cmocka_unit_test(test_stop_inside_token),
        cmocka_unit_test(test_split_character),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_nothing_after_stop),
        cmocka_unit_test(test_bad_stops),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
