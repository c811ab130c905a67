#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "model/tokenizer/tokenizer.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/mini_tokenizer.h"

#define N_RANDOM 10000
#define N_ID_MAX 4096

static struct gr_tokenizer *demo;
static uint64_t rng_state;

/* splitmix64 */
static uint64_t rng(void)
{
    uint64_t z = rng_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint32_t below(uint32_t n)
{
    return (uint32_t)(rng() % n);
}

static json_t *load_json(const char *path_in_tree)
{
    char path[512];
    json_error_t err;
    snprintf(path, sizeof(path), "%s/%s", GR_SOURCE_ROOT, path_in_tree);
    json_t *root = json_load_file(path, 0, &err);
    if (root == NULL) {
        fail_msg("%s:%d: %s", path, err.line, err.text);
    }
    return root;
}

static enum gr_status parse_json(const json_t *root, struct gr_tokenizer **out)
{
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    enum gr_status st = gr_tokenizer_parse("t/tokenizer.json", text, strlen(text), out);
    free(text);
    return st;
}

static int load_demo(void **state)
{
    (void)state;
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/models/demo/target", GR_SOURCE_ROOT);
    const char *seed = getenv("GR_TEST_SEED");
    rng_state = seed != NULL ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
    fprintf(stderr, "# seed: GR_TEST_SEED=%llu\n", (unsigned long long)rng_state);
    return gr_tokenizer_load(dir, &demo) == GR_OK ? 0 : -1;
}

static int free_demo(void **state)
{
    (void)state;
    gr_tokenizer_destroy(demo);
    return 0;
}

/* ---- golden ---- */

static void check_ids(const struct gr_tokenizer *tok, const char *what, const json_t *c, const char *key, bool add_bos)
{
    const json_t *text = json_object_get(c, "text"), *want = json_object_get(c, key);
    int32_t ids[N_ID_MAX];
    size_t n = 0;
    assert_non_null(want);
    assert_int_equal(
        gr_tokenizer_encode(tok, json_string_value(text), json_string_length(text), add_bos, ids, N_ID_MAX, &n), GR_OK);
    bool same = n == json_array_size(want);
    for (size_t i = 0; same && i < n; i++) {
        same = ids[i] == json_integer_value(json_array_get(want, i));
    }
    if (!same) {
        fail_msg("%s: %s of `%s': %zu ids differ from the golden %zu", what, key, json_string_value(text), n,
                 json_array_size(want));
    }
}

static void check_decoded(const json_t *c)
{
    const json_t *ids_json = json_object_get(c, "ids_plain");
    const json_t *want = json_object_get(c, "decoded");
    int32_t ids[N_ID_MAX];
    size_t n = json_array_size(ids_json), len;
    assert_true(n <= N_ID_MAX);
    for (size_t i = 0; i < n; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(ids_json, i));
    }
    char *text;
    assert_int_equal(gr_tokenizer_decode(demo, ids, n, false, &text, &len), GR_OK);
    assert_int_equal(len, json_string_length(want));
    assert_string_equal(text, json_string_value(want));
    free(text);
}

static void test_golden(void **state)
{
    (void)state;
    json_t *cases = load_json("tests/golden/tokenizer.json");
    assert_true(json_array_size(cases) >= 12);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        check_ids(demo, "golden", c, "ids", true);
        check_ids(demo, "golden", c, "ids_plain", false);
        check_decoded(c);
    }
    json_decref(cases);
}

/* The same steps as in make_tokenizer_variants.py. */
static void apply_patch(json_t *root, json_t *patch)
{
    json_t *model = json_object_get(root, "model");
    const char *key;
    json_t *value;
    json_object_foreach(patch, key, value)
    {
        if (strcmp(key, "ignore_merges") == 0) {
            assert_int_equal(json_object_set(model, key, value), 0);
        } else if (strcmp(key, "merges_text") == 0) {
            json_t *merges = json_object_get(model, "merges");
            for (size_t i = 0; i < json_array_size(merges); i++) {
                json_t *m = json_array_get(merges, i);
                json_t *text = json_sprintf("%s %s", json_string_value(json_array_get(m, 0)),
                                            json_string_value(json_array_get(m, 1)));
                assert_int_equal(json_array_set_new(merges, i, text), 0);
            }
        } else if (strcmp(key, "added") == 0) {
            assert_int_equal(json_array_extend(json_object_get(root, "added_tokens"), value), 0);
        } else {
            assert_int_equal(json_object_set(root, key, value), 0);
        }
    }
}

static void test_variants(void **state)
{
    (void)state;
    json_t *variants = load_json("tests/golden/tokenizer-variants.json");
    assert_int_equal(json_array_size(variants), 9);
    for (size_t v = 0; v < json_array_size(variants); v++) {
        const json_t *variant = json_array_get(variants, v);
        const char *name = json_string_value(json_object_get(variant, "name"));
        json_t *root = load_json("models/demo/target/tokenizer.json");
        apply_patch(root, json_object_get(variant, "patch"));
        struct gr_tokenizer *tok;
        assert_int_equal(parse_json(root, &tok), GR_OK);
        json_decref(root);
        const json_t *cases = json_object_get(variant, "cases");
        assert_true(json_array_size(cases) >= 50);
        for (size_t i = 0; i < json_array_size(cases); i++) {
            check_ids(tok, name, json_array_get(cases, i), "ids", true);
            check_ids(tok, name, json_array_get(cases, i), "ids_plain", false);
        }
        gr_tokenizer_destroy(tok);
    }
    json_decref(variants);
}

/* ---- round trips ---- */

static size_t put_utf8(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (c & 0x3F));
        c >>= 6;
    }
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    out[0] = (char)(lead[n] | c);
    return n;
}

/* Any code point but surrogates; mostly from the low blocks, where the regex has work to do. */
static uint32_t random_char(void)
{
    static const uint32_t tops[] = {0x80, 0x80, 0x250, 0x3000, 0x10000, 0x110000};
    for (;;) {
        uint32_t c = below(tops[below(GR_ARRAY_LEN(tops))]);
        if (c < 0xD800 || c > 0xDFFF) {
            return c;
        }
    }
}

static size_t random_text(char *out, size_t cap)
{
    static const char *const words[] = {" the",  "\r\n\r\n", "    ",  "<|eot_id|>",
                                        "<|eot", "'ll",      "12345", "\xe2\x80\x89 "};
    size_t len = 0, n_char = below(80);
    for (size_t i = 0; i < n_char && len + 16 < cap; i++) {
        if (below(4) == 0) {
            const char *word = words[below(GR_ARRAY_LEN(words))];
            memcpy(out + len, word, strlen(word));
            len += strlen(word);
        } else {
            len += put_utf8(random_char(), out + len);
        }
    }
    return len;
}

/* Bytes with fragments of UTF-8 among them. */
static size_t random_bytes(char *out, size_t cap)
{
    size_t len = 0, n = below(80);
    for (size_t i = 0; i < n && len + 4 < cap; i++) {
        if (below(2) == 0) {
            out[len++] = (char)below(256);
        } else {
            size_t size = put_utf8(random_char(), out + len);
            len += 1 + below((uint32_t)size);
        }
    }
    return len;
}

static void check_round_trip(const char *text, size_t len, bool is_utf8)
{
    int32_t ids[1024];
    size_t n, n_back;
    char *back;
    GR_ASSERT(gr_tokenizer_encode_bound(demo, len) <= GR_ARRAY_LEN(ids));
    assert_int_equal(gr_tokenizer_encode(demo, text, len, false, ids, GR_ARRAY_LEN(ids), &n), GR_OK);
    assert_true(n <= len);
    assert_int_equal(gr_tokenizer_decode_bytes(demo, ids, n, false, &back, &n_back), GR_OK);
    assert_int_equal(n_back, len);
    assert_memory_equal(back, text, len);
    free(back);
    if (is_utf8) {
        assert_int_equal(gr_tokenizer_decode(demo, ids, n, false, &back, &n_back), GR_OK);
        assert_int_equal(n_back, len);
        assert_memory_equal(back, text, len);
        free(back);
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    char text[1024];
    for (int i = 0; i < N_RANDOM; i++) {
        size_t len = random_text(text, sizeof(text));
        check_round_trip(text, len, true);
        len = random_bytes(text, sizeof(text));
        check_round_trip(text, len, false);
    }
}

static void test_invalid_bytes(void **state)
{
    (void)state;
    /* Each stray byte is its own token and parts the text: the words are encoded as if alone. */
    int32_t ids[16], alone[16];
    size_t n, n_alone;
    assert_int_equal(gr_tokenizer_encode(demo, "self\xff\xe2\x82 the", 11, false, ids, 16, &n), GR_OK);
    assert_int_equal(gr_tokenizer_encode(demo, "self", 4, false, alone, 16, &n_alone), GR_OK);
    assert_memory_equal(ids, alone, n_alone * sizeof(*ids));
    for (size_t i = 0; i < 3; i++) {
        size_t len;
        const char *bytes = gr_tokenizer_token_bytes(demo, ids[n_alone + i], &len);
        assert_int_equal(len, 1);
        assert_int_equal((uint8_t)bytes[0], ((const uint8_t[]){0xff, 0xe2, 0x82})[i]);
    }
    /* In text: one U+FFFD for 0xff, one for the maximal subpart e2 82. */
    char *text;
    size_t len;
    assert_int_equal(gr_tokenizer_decode(demo, ids, n, false, &text, &len), GR_OK);
    assert_string_equal(text, "self\xef\xbf\xbd\xef\xbf\xbd the");
    free(text);
}

/* ---- incremental ---- */

static bool is_utf8(const char *text, size_t len)
{
    json_t *s = json_stringn(text, len); /* jansson checks */
    json_decref(s);
    return s != NULL;
}

static void check_incremental(const int32_t *ids, size_t n)
{
    static char all[256 * GR_DETOK_OUT_MAX];
    struct gr_detok d;
    size_t len = 0, more, n_whole;
    char *whole;
    GR_ASSERT(n < 256);
    gr_detok_init(&d, demo);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(gr_detok_push(&d, ids[i], all + len, GR_DETOK_OUT_MAX, &more), GR_OK);
        assert_true(is_utf8(all + len, more));
        len += more;
    }
    assert_int_equal(gr_detok_flush(&d, all + len, GR_DETOK_OUT_MAX, &more), GR_OK);
    assert_true(is_utf8(all + len, more));
    len += more;
    assert_int_equal(gr_tokenizer_decode(demo, ids, n, true, &whole, &n_whole), GR_OK);
    assert_int_equal(len, n_whole);
    assert_memory_equal(all, whole, len);
    assert_true(is_utf8(whole, n_whole));
    free(whole);
    assert_int_equal(d.n_held, 0);
}

static void test_incremental(void **state)
{
    (void)state;
    int32_t ids[255];
    for (int i = 0; i < N_RANDOM; i++) {
        size_t n = below(40);
        for (size_t k = 0; k < n; k++) {
            switch (below(3)) {
            case 0: /* any, also unknown ids and special ones */
                ids[k] = (int32_t)below(4110) - 5;
                break;
            case 1: /* byte tokens */
                ids[k] = (int32_t)below(256);
                break;
            default:
                ids[k] = 4088 + (int32_t)below(8);
                break;
            }
        }
        check_incremental(ids, n);
    }
    char text[1024];
    for (int i = 0; i < 1000; i++) {
        size_t n;
        size_t len = random_text(text, 250);
        assert_int_equal(gr_tokenizer_encode(demo, text, len, true, ids, 255, &n), GR_OK);
        check_incremental(ids, n);
    }
}

static void test_held_character(void **state)
{
    (void)state;
    /* The four bytes of U+1F642 with a special token between: the character comes with the last. */
    int32_t ids[8];
    size_t n, more;
    assert_int_equal(gr_tokenizer_encode(demo, "\xf0\x9f\x99", 3, false, ids, 8, &n), GR_OK);
    assert_int_equal(n, 3);
    ids[3] = 4092;
    assert_int_equal(gr_tokenizer_encode(demo, "\x82", 1, false, ids + 4, 4, &n), GR_OK);
    struct gr_detok d;
    char out[GR_DETOK_OUT_MAX];
    gr_detok_init(&d, demo);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(gr_detok_push(&d, ids[i], out, sizeof(out), &more), GR_OK);
        assert_int_equal(more, 0);
    }
    struct log_capture cap;
    log_capture_begin(&cap);
    enum gr_status st = gr_detok_push(&d, ids[4], out, 3, &more);
    (void)log_capture_end(&cap);
    assert_int_equal(st, GR_ELIMIT); /* and the state is as before */
    assert_int_equal(gr_detok_push(&d, ids[4], out, sizeof(out), &more), GR_OK);
    assert_int_equal(more, 4);
    assert_memory_equal(out, "\xf0\x9f\x99\x82", 4);
}

/* ---- limits, speed, facts ---- */

static void test_limits(void **state)
{
    (void)state;
    int32_t ids[4];
    size_t n = 77;
    struct log_capture cap;
    log_capture_begin(&cap);
    enum gr_status st = gr_tokenizer_encode(demo, "1 2 3 4 5 6", 11, true, ids, 4, &n);
    const char *log = log_capture_end(&cap);
    assert_int_equal(st, GR_ELIMIT);
    assert_int_equal(n, 77);
    assert_non_null(strstr(log, "more than the 4 tokens"));
    assert_int_equal(gr_tokenizer_encode(demo, "", 0, false, NULL, 0, &n), GR_OK);
    assert_int_equal(n, 0);
    size_t len = (size_t)GR_TOKENIZER_TEXT_BYTES + 1;
    char *text = calloc(1, len);
    assert_non_null(text);
    log_capture_begin(&cap);
    st = gr_tokenizer_encode(demo, text, len, false, ids, 4, &n);
    log = log_capture_end(&cap);
    free(text);
    assert_int_equal(st, GR_ELIMIT);
    assert_non_null(strstr(log, "16777216"));
}

static double encode_ms(const char *text, size_t len, size_t *n_out)
{
    size_t cap = gr_tokenizer_encode_bound(demo, len);
    int32_t *ids = malloc(cap * sizeof(*ids));
    assert_non_null(ids);
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    assert_int_equal(gr_tokenizer_encode(demo, text, len, true, ids, cap, n_out), GR_OK);
    clock_gettime(CLOCK_MONOTONIC, &b);
    free(ids);
    return (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6;
}

/* The bounds are wide (sanitizers, a loaded machine); quadratic time would miss them by far. */
static void test_speed(void **state)
{
    (void)state;
    static const char line[] = "    def forward(self, hidden_states, position_ids=None):  # x\n";
    size_t n, n_line = 2000, len = n_line * (sizeof(line) - 1);
    char *text = malloc(len);
    assert_non_null(text);
    for (size_t i = 0; i < n_line; i++) {
        memcpy(text + i * (sizeof(line) - 1), line, sizeof(line) - 1);
    }
    double code_ms = encode_ms(text, len, &n);
    fprintf(stderr, "# %zu bytes of code, %zu tokens: %.1f ms\n", len, n, code_ms);
    assert_true(n > 20000);
    assert_true(code_ms < 1000);
    static const char fill[] = {'a', ' ', '\n', '<', '\xff'};
    for (size_t i = 0; i < sizeof(fill); i++) {
        memset(text, fill[i], len);
        double ms = encode_ms(text, len, &n);
        fprintf(stderr, "# %zu times 0x%02x, %zu tokens: %.1f ms\n", len, (uint8_t)fill[i], n, ms);
        assert_true(ms < 3000);
    }
    free(text);
}

static void test_facts(void **state)
{
    (void)state;
    size_t len;
    assert_int_equal(gr_tokenizer_n_vocab(demo), 4096);
    assert_int_equal(gr_tokenizer_bos_id(demo), 4088);
    assert_int_equal(gr_tokenizer_added_id(demo, "<|eot_id|>"), 4092);
    assert_int_equal(gr_tokenizer_added_id(demo, "<|eot"), -1);
    assert_true(gr_tokenizer_is_special(demo, 4089));
    assert_false(gr_tokenizer_is_special(demo, 39) || gr_tokenizer_is_special(demo, -1) ||
                 gr_tokenizer_is_special(demo, 4096));
    assert_memory_equal(gr_tokenizer_token_bytes(demo, 4092, &len), "<|eot_id|>", 10);
    assert_int_equal(len, 10);
    assert_null(gr_tokenizer_token_bytes(demo, 4096, &len));
    assert_int_equal(len, 0);
    assert_null(gr_tokenizer_token_bytes(demo, -1, &len));
}

static void test_fingerprint(void **state)
{
    (void)state;
    char dir[512];
    struct gr_tokenizer *other;
    snprintf(dir, sizeof(dir), "%s/models/demo/draft", GR_SOURCE_ROOT);
    assert_int_equal(gr_tokenizer_load(dir, &other), GR_OK);
    assert_true(gr_tokenizer_fingerprint(demo) == gr_tokenizer_fingerprint(other));
    gr_tokenizer_destroy(other);

    static const struct {
        const char *path, *literal;
        bool same;
    } cases[] = {
        {"version", "\"1.1\"", true},
        {"model.merges.0", "[\"b\",\"c\"]", true}, /* another spelling */
        {"normalizer", "{\"type\":\"NFC\"}", true},
        {"post_processor", "null", true},
        {"model.vocab.zz", "299", false},
        {"model.vocab.abc", "298", false},
        {"model.merges", "[\"a b\",\"b c\",\"a bc\",\"a a\"]", false},
        {"added_tokens.1.content", "\"<other>\"", false},
        {"added_tokens.1.special", "true", false},
    };
    json_t *root = mini_tokenizer();
    struct gr_tokenizer *mini;
    assert_int_equal(parse_json(root, &mini), GR_OK);
    uint64_t base = gr_tokenizer_fingerprint(mini);
    gr_tokenizer_destroy(mini);
    json_decref(root);
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        root = mini_tokenizer();
        json_patch_at(root, cases[i].path, cases[i].literal);
        assert_int_equal(parse_json(root, &other), GR_OK);
        if ((gr_tokenizer_fingerprint(other) == base) != cases[i].same) {
            fail_msg("%s = %s", cases[i].path, cases[i].literal);
        }
        gr_tokenizer_destroy(other);
        json_decref(root);
    }
}

/* Order of merges, by hand: bc first, then ab, then a + bc. */
static void test_mini_merges(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        int32_t ids[4];
    } cases[] = {
        {"abc", 1, {257}},        {"abb", 2, {256, 'b'}},     {"aaa", 2, {259, 'a'}},          {"aabc", 2, {'a', 257}},
        {"abcbc", 2, {257, 258}}, {"<tool>a", 2, {301, 'a'}}, {"a<bos>b", 3, {'a', 300, 'b'}},
    };
    json_t *root = mini_tokenizer();
    struct gr_tokenizer *tok;
    assert_int_equal(parse_json(root, &tok), GR_OK);
    json_decref(root);
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        int32_t ids[8];
        size_t n;
        assert_int_equal(gr_tokenizer_encode(tok, cases[i].text, strlen(cases[i].text), false, ids, 8, &n), GR_OK);
        assert_int_equal(n, cases[i].n);
        assert_memory_equal(ids, cases[i].ids, n * sizeof(*ids));
    }
    gr_tokenizer_destroy(tok);
}

/* Ids of a text by the mini tokenizer with two fields set. */
static void check_patched(const char *path, const char *literal, const char *path2, const char *literal2,
                          const char *text, size_t n_want, const int32_t *want)
{
    json_t *root = mini_tokenizer();
    struct gr_tokenizer *tok;
    int32_t ids[8];
    size_t n;
    json_patch_at(root, path, literal);
    json_patch_at(root, path2, literal2);
    assert_int_equal(parse_json(root, &tok), GR_OK);
    json_decref(root);
    assert_int_equal(gr_tokenizer_encode(tok, text, strlen(text), false, ids, 8, &n), GR_OK);
    assert_int_equal(n, n_want);
    assert_memory_equal(ids, want, n * sizeof(*ids));
    gr_tokenizer_destroy(tok);
}

static void test_mini_options(void **state)
{
    (void)state;
    /* No merge leads to zz: only ignore_merges finds it, and only as a whole pre-token. */
    check_patched("model.vocab.zz", "299", "model.ignore_merges", "false", "zz", 2, (int32_t[]){'z', 'z'});
    check_patched("model.vocab.zz", "299", "model.ignore_merges", "true", "zz", 1, (int32_t[]){299});
    check_patched("model.vocab.zz", "299", "model.ignore_merges", "true", "zzz", 3, (int32_t[]){'z', 'z', 'z'});
    /* Removed with invert: what is between the matches is left out. */
    static const char split[] = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-z]+\"},"
                                "\"behavior\":\"Removed\",\"invert\":true}";
    check_patched("pre_tokenizer.pretokenizers.0", split, "version", "\"1.0\"", "1ab2c 3", 2, (int32_t[]){256, 'c'});
}

/* A byte without a token is the unk token, or nothing. */
static void test_missing_bytes(void **state)
{
    (void)state;
    check_patched("model.vocab.z", NULL, "version", "\"1\"", "azb", 1, (int32_t[]){256});
    check_patched("model.vocab.z", NULL, "model.unk_token", "\"<bos>\"", "azb", 3, (int32_t[]){'a', 300, 'b'});
    check_patched("model.vocab.z", NULL, "model.unk_token", "\"<bos>\"", "zz", 2, (int32_t[]){300, 300});
}

static void test_behaviors(void **state)
{
    (void)state;
    static const char form[] = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"b\"},\"behavior\":\"%s\"}";
    static const struct {
        const char *name;
        size_t n;
        int32_t ids[4];
    } cases[] = {{"Isolated", 3, {'a', 'b', 'c'}},
                 {"Removed", 2, {'a', 'c'}},
                 {"MergedWithPrevious", 2, {256, 'c'}},
                 {"MergedWithNext", 2, {'a', 258}},
                 {"Contiguous", 3, {'a', 'b', 'c'}}};
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        char split[160];
        snprintf(split, sizeof(split), form, cases[i].name);
        check_patched("pre_tokenizer.pretokenizers.0", split, "version", "\"1\"", "abc", cases[i].n, cases[i].ids);
    }
}

static void test_no_special(void **state)
{
    (void)state;
    json_t *root = mini_tokenizer();
    struct gr_tokenizer *tok;
    int32_t ids[16];
    size_t n;
    assert_int_equal(parse_json(root, &tok), GR_OK);
    json_decref(root);
    assert_int_equal(gr_tokenizer_encode(tok, "<bos><tool>", 11, GR_ENCODE_NO_SPECIAL, ids, 16, &n), GR_OK);
    assert_int_equal(n, 6); /* five characters, and the added token that is not special */
    assert_int_equal(ids[0], '<');
    assert_int_equal(ids[5], 301);
    gr_tokenizer_destroy(tok);
}

/* ---- what is not understood ---- */

static const struct {
    const char *path, *literal;
    enum gr_status status;
    const char *names[2];
} bad[] = {
    {"surprise", "1", GR_EUNSUPPORTED, {"surprise", "understood"}},
    {"model", NULL, GR_EFORMAT, {"model", "missing"}},
    {"model.type", "\"WordPiece\"", GR_EUNSUPPORTED, {"model.type", "WordPiece"}},
    {"model.new_option", "true", GR_EUNSUPPORTED, {"model.new_option", "understood"}},
    {"model.dropout", "0.1", GR_EUNSUPPORTED, {"model.dropout", "0"}},
    {"model.end_of_word_suffix", "\"</w>\"", GR_EUNSUPPORTED, {"end_of_word_suffix", "</w>"}},
    {"model.ignore_merges", "1", GR_EFORMAT, {"model.ignore_merges", "true or false"}},
    {"model.vocab", "[]", GR_EFORMAT, {"model.vocab", "object"}},
    {"model.vocab", "{}", GR_EFORMAT, {"model.vocab", "empty"}},
    {"model.vocab.a", NULL, GR_EFORMAT, {"model.merges[1]", "not in model.vocab"}},
    {"model.vocab.a", "-1", GR_ELIMIT, {"token a", "4194303"}},
    {"model.vocab.a", "98", GR_EFORMAT, {"id 98", "twice"}},
    {"model.vocab.zz", "4194304", GR_ELIMIT, {"token zz", "4194303"}},
    {"model.vocab.zz", "2.5", GR_ELIMIT, {"token zz", "integer"}},
    {"model.merges", "{}", GR_EFORMAT, {"model.merges", "array"}},
    {"model.merges.0", "\"b\"", GR_EFORMAT, {"model.merges[0]", "left right"}},
    {"model.merges.0", "\"b c d\"", GR_EFORMAT, {"model.merges[0]", "left right"}},
    {"model.merges.0", "[\"b\"]", GR_EFORMAT, {"model.merges[0]", "left right"}},
    {"model.merges.0", "[\"b\",7]", GR_EFORMAT, {"model.merges[0]", "left right"}},
    {"model.merges.0", "\"b x\"", GR_EFORMAT, {"model.merges[0]", "not in model.vocab"}},
    {"model.merges.0", "\"b \"", GR_EFORMAT, {"model.merges[0]", "not in model.vocab"}},
    {"model.merges.3", "\"b c\"", GR_EFORMAT, {"model.merges[3]", "second time"}},
    {"added_tokens.0", "7", GR_EFORMAT, {"added_tokens[0]", "content"}},
    {"added_tokens.0.content", "\"\"", GR_ELIMIT, {"300", "0 bytes"}},
    {"added_tokens.0.id", "97", GR_EFORMAT, {"<bos>", "97"}},
    {"added_tokens.1.id", "300", GR_EFORMAT, {"<tool>", "300"}},
    {"added_tokens.1.content", "\"<bos>\"", GR_EFORMAT, {"301", "300"}},
    {"added_tokens.1.content", "\"abc\"", GR_EFORMAT, {"abc", "257"}},
    {"added_tokens.1.special", "0", GR_EFORMAT, {"special", "true or false"}},
    {"added_tokens.1.color", "0", GR_EUNSUPPORTED, {"color", "understood"}},
    {"normalizer", "{\"type\":\"Precompiled\"}", GR_EUNSUPPORTED, {"normalizer", "Precompiled"}},
    {"normalizer",
     "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}",
     GR_EUNSUPPORTED,
     {"normalizer", "Lowercase"}},
    {"pre_tokenizer", "{\"type\":\"Metaspace\"}", GR_EFORMAT, {"pre_tokenizer", "replacement"}},
    {"pre_tokenizer", "{\"type\":\"BertPreTokenizer\"}", GR_EUNSUPPORTED, {"pre_tokenizer", "BertPreTokenizer"}},
    {"pre_tokenizer.pretokenizers.0",
     "{\"type\":\"ByteLevel\"}",
     GR_EUNSUPPORTED,
     {"pre_tokenizer", "after ByteLevel"}},
    {"pre_tokenizer.pretokenizers.0.behavior", "\"Sideways\"", GR_EUNSUPPORTED, {"behavior", "Sideways"}},
    {"pre_tokenizer.pretokenizers.0.pattern", "{\"Glob\":\"*\"}", GR_EFORMAT, {"pattern", "Regex"}},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a(\"", GR_EFORMAT, {"regex", "a("}},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\K+\"", GR_EUNSUPPORTED, {"escape", "\\K"}},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\p{Nope}\"", GR_EFORMAT, {"regex", "\\p{Nope}"}},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[a[b]]\"", GR_EUNSUPPORTED, {"class inside", "[a[b]]"}},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[a&&b]\"", GR_EUNSUPPORTED, {"intersection", "&&"}},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a{1,2}+\"", GR_EUNSUPPORTED, {"{", "a{1,2}+"}},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(?m:a)\"", GR_EUNSUPPORTED, {"group", "(?m:"}},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(*UTF)a\"", GR_EUNSUPPORTED, {"group", "(*UTF)a"}},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a\\\\\"", GR_EUNSUPPORTED, {"escape", "a\\"}},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[a\"", GR_EFORMAT, {"regex", "[a"}},
    {"post_processor", "{\"type\":\"BertProcessing\"}", GR_EUNSUPPORTED, {"post_processor", "BertProcessing"}},
    {"post_processor.single", "[]", GR_EFORMAT, {"post_processor.single", "Sequence"}},
    {"post_processor.single.2",
     "{\"SpecialToken\":{\"id\":\"<bos>\"}}",
     GR_EUNSUPPORTED,
     {"post_processor.single[2]", "supported"}},
    {"post_processor.special_tokens", "{}", GR_EFORMAT, {"special_tokens", "<bos>"}},
    {"post_processor.special_tokens.<bos>.ids", "[299]", GR_EFORMAT, {"post_processor", "299"}},
    {"post_processor.special_tokens.<bos>.ids",
     "[300,300,300,300,300,300,300,300,300]",
     GR_ELIMIT,
     {"post_processor", "8"}},
    {"decoder", "null", GR_EFORMAT, {"decoder", "missing"}},
    {"decoder", "{\"type\":\"WordPiece\"}", GR_EUNSUPPORTED, {"decoder", "WordPiece"}},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        json_t *root = mini_tokenizer();
        json_patch_at(root, bad[i].path, bad[i].literal);
        struct gr_tokenizer *tok = NULL;
        struct log_capture cap;
        log_capture_begin(&cap);
        enum gr_status st = parse_json(root, &tok);
        const char *log = log_capture_end(&cap);
        if (st != bad[i].status || strstr(log, bad[i].names[0]) == NULL || strstr(log, bad[i].names[1]) == NULL ||
            strstr(log, "t/tokenizer.json") == NULL || log_capture_n_line(log) != 1 || tok != NULL) {
            fail_msg("%s = %s: status %d, log: %s", bad[i].path, bad[i].literal != NULL ? bad[i].literal : "(deleted)",
                     (int)st, log);
        }
        json_decref(root);
    }
}

static void test_missing_file(void **state)
{
    (void)state;
    struct gr_tokenizer *tok = NULL;
    struct log_capture cap;
    log_capture_begin(&cap);
    enum gr_status st = gr_tokenizer_load("/nonexistent", &tok);
    const char *log = log_capture_end(&cap);
    assert_int_equal(st, GR_ENOTFOUND);
    assert_non_null(strstr(log, "/nonexistent/tokenizer.json"));
    gr_tokenizer_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_invalid_bytes),
        cmocka_unit_test(test_incremental),   cmocka_unit_test(test_held_character),
        cmocka_unit_test(test_limits),        cmocka_unit_test(test_speed),
        cmocka_unit_test(test_facts),         cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_mini_merges),   cmocka_unit_test(test_bad),
        cmocka_unit_test(test_missing_file),  cmocka_unit_test(test_mini_options),
        cmocka_unit_test(test_missing_bytes), cmocka_unit_test(test_behaviors),
        cmocka_unit_test(test_no_special),
    };
    return cmocka_run_group_tests(tests, load_demo, free_demo);
}
