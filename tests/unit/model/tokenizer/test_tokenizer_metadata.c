/* The tokenizer in a GGUF file's metadata: each kind in small, and every key with a wrong type, length or value, each
 * refused in one line that names file and key. Real vocabularies are the test `tokenizers'. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "model/tokenizer/tokenizer_parts.h"
#include "model/files/gguf.h"
#include "tests/unit/gguf_image.h"
#include "tests/unit/log_capture.h"

#define K "tokenizer.ggml."

enum { TYPE_U8 = 0, TYPE_U32 = 4, TYPE_I32 = 5, TYPE_F32 = 6, TYPE_BOOL = 7, TYPE_STRING = 8 };

static struct gguf_image image;

static void texts(const char *key, const char *const *text, uint64_t n)
{
    gguf_field_array(&image, key, TYPE_STRING, n);
    for (uint64_t i = 0; i < n; i++) {
        gguf_text(&image, text[i]);
    }
}

static void i32s(const char *key, const int32_t *x, uint64_t n)
{
    gguf_field_array(&image, key, TYPE_I32, n);
    gguf_bytes(&image, x, n * sizeof(*x));
}

static void f32s(const char *key, const float *x, uint64_t n)
{
    gguf_field_array(&image, key, TYPE_F32, n);
    gguf_bytes(&image, x, n * sizeof(*x));
}

static enum gr_status load(struct gr_tokenizer **out)
{
    uint8_t *copy = malloc(image.len); /* in a block of its own, so that a sanitizer sees its end */
    struct gr_gguf *g = NULL;
    assert_non_null(copy);
    memcpy(copy, image.bytes, image.len);
    enum gr_status st = gr_gguf_parse("m.gguf", copy, image.len, &g);
    if (st == GR_OK) {
        assert_true(gr_gguf_has_tokenizer(g));
        st = gr_tokenizer_from_metadata("m.gguf", g, out);
        gr_gguf_free(g);
    }
    free(copy);
    return st;
}

static void check(const struct gr_tokenizer *tok, const char *text, unsigned flags, const int32_t *want, size_t n_want)
{
    int32_t ids[64];
    size_t n = 0;
    assert_int_equal(gr_tokenizer_encode(tok, text, strlen(text), flags, ids, GR_ARRAY_LEN(ids), &n), GR_OK);
    if (n != n_want || memcmp(ids, want, n * sizeof(*ids)) != 0) {
        fail_msg("`%s': %zu ids, the first %d", text, n, n > 0 ? ids[0] : -1);
    }
}

#define CHECK(tok, text, flags, ...) \
    check(tok, text, flags, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

/* ---- kind gpt2 ---- */

static const char *const gpt2_tokens[] = {"a",
                                          "b",
                                          "1",
                                          "2",
                                          "\xc4\xa0",
                                          "ab",
                                          "\xc4\xa0"
                                          "ab",
                                          "12",
                                          "<|end|>"};
static const int32_t gpt2_types[] = {1, 1, 1, 1, 1, 1, 1, 1, 3};
static const char *const gpt2_merges[] = {"a b", "\xc4\xa0 ab", "1 2"};

/* All but `left_out` and what `more` adds. */
static void gpt2(const char *left_out, uint64_t n_more)
{
    const bool all = left_out == NULL;
    gguf_begin(&image, 3, 0, 6 - !all + n_more);
    if (all || strcmp(left_out, "model") != 0) {
        gguf_field_text(&image, K "model", "gpt2");
    }
    if (all || strcmp(left_out, "pre") != 0) {
        gguf_field_text(&image, K "pre", "smollm");
    }
    if (all || strcmp(left_out, "tokens") != 0) {
        texts(K "tokens", gpt2_tokens, 9);
    }
    if (all || strcmp(left_out, "token_type") != 0) {
        i32s(K "token_type", gpt2_types, 9);
    }
    if (all || strcmp(left_out, "merges") != 0) {
        texts(K "merges", gpt2_merges, 3);
    }
    if (all || strcmp(left_out, "bos_token_id") != 0) {
        gguf_field_u32(&image, K "bos_token_id", 8);
    }
}

static void test_gpt2(void **state)
{
    (void)state;
    struct gr_tokenizer *tok = NULL;
    gpt2(NULL, 0);
    assert_int_equal(load(&tok), GR_OK);
    assert_int_equal(gr_tokenizer_n_vocab(tok), 9);
    CHECK(tok, "ab ab", GR_ENCODE_BOS, 5, 6); /* the pre-tokenizer smollm puts nothing in front */
    CHECK(tok, "12", 0, 2, 3);                /* each digit is a piece */
    CHECK(tok, "a<|end|>b", 0, 0, 8, 1);
    assert_true(gr_tokenizer_is_special(tok, 8));
    gr_tokenizer_destroy(tok);

    gpt2(NULL, 1);
    gguf_field_int(&image, K "add_bos_token", TYPE_BOOL, 1, 1);
    assert_int_equal(load(&tok), GR_OK);
    CHECK(tok, "ab", GR_ENCODE_BOS, 8, 5);
    CHECK(tok, "ab", 0, 5);
    gr_tokenizer_destroy(tok);
}

/* ---- kind llama ---- */

static const char *const llama_tokens[] = {"<unk>",
                                           "<s>",
                                           "</s>",
                                           "<0x21>",
                                           "\xe2\x96\x81",
                                           "a",
                                           "b",
                                           "\xe2\x96\x81"
                                           "a",
                                           "ab",
                                           "bb",
                                           "<tool>"};
static const int32_t llama_types[] = {2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 4};

static void llama(uint64_t n_more, const float *scores)
{
    gguf_begin(&image, 3, 0, 6 + n_more);
    gguf_field_text(&image, K "model", "llama");
    texts(K "tokens", llama_tokens, 11);
    i32s(K "token_type", llama_types, 11);
    f32s(K "scores", scores, 11);
    gguf_field_u32(&image, K "bos_token_id", 1);
    gguf_field_u32(&image, K "unknown_token_id", 0);
}

static void test_llama(void **state)
{
    (void)state;
    struct gr_tokenizer *tok = NULL;
    static const float ab_first[] = {0, 0, 0, 0, -1, -2, -3, -5, -4, -6, 0};
    static const float mark_first[] = {0, 0, 0, 0, -1, -2, -3, -4, -5, -6, 0};
    const float *const tables[] = {ab_first, mark_first};
    for (size_t i = 0; i < GR_ARRAY_LEN(tables); i++) {
        llama(0, tables[i]);
        assert_int_equal(load(&tok), GR_OK);
        if (i == 0) {
            CHECK(tok, "ab", GR_ENCODE_BOS, 1, 4, 8); /* a + b is the better token */
        } else {
            CHECK(tok, "ab", GR_ENCODE_BOS, 1, 7, 6); /* the mark + a is */
        }
        CHECK(tok, "!a", 0, 4, 3, 5);       /* a byte that has its token */
        CHECK(tok, "\xc3\xa9", 0, 4, 0, 0); /* bytes that have none: each is unknown */
        CHECK(tok, "a<tool>", 0, 7, 10);    /* user-defined: found in text, not special */
        assert_false(gr_tokenizer_is_special(tok, 10));
        gr_tokenizer_destroy(tok);
    }
    llama(2, ab_first);
    gguf_field_int(&image, K "add_space_prefix", TYPE_BOOL, 0, 1);
    gguf_field_int(&image, K "add_bos_token", TYPE_BOOL, 0, 1);
    assert_int_equal(load(&tok), GR_OK);
    CHECK(tok, "ab", GR_ENCODE_BOS, 8);
    gr_tokenizer_destroy(tok);
}

/* ---- what is refused ---- */

static void refused(enum gr_status want, const char *word)
{
    struct gr_tokenizer *tok = NULL;
    struct log_capture cap;
    log_capture_begin(&cap);
    const enum gr_status st = load(&tok);
    const char *log = log_capture_end(&cap);
    if (st != want || strstr(log, word) == NULL || strstr(log, "m.gguf: ") == NULL || log_capture_n_line(log) != 1) {
        fail_msg("wanted %s and `%s', got %s and: %s", gr_status_text(want), word, gr_status_text(st), log);
    }
    assert_null(tok);
}

static void test_bad_values(void **state)
{
    (void)state;
    static char word[80];
    memset(word, 'x', sizeof(word) - 1);
    gpt2("model", 1);
    gguf_field_text(&image, K "model", "bert");
    refused(GR_EUNSUPPORTED, K "model bert is not supported; known: gpt2, llama");
    gpt2("model", 1);
    gguf_field_u32(&image, K "model", 3);
    refused(GR_EFORMAT, K "model is u32, must be a string");
    gpt2("model", 1);
    gguf_field_text(&image, K "model", word);
    refused(GR_ELIMIT, K "model has 79 bytes");
    gpt2("pre", 1);
    gguf_field_text(&image, K "pre", "new-one");
    refused(GR_EUNSUPPORTED, K "pre new-one is not supported; known: llama3 llama-v3 llama-bpe");
    gpt2("bos_token_id", 1);
    gguf_field_u32(&image, K "bos_token_id", 9);
    refused(GR_ELIMIT, K "bos_token_id = 9 is no token: " K "tokens has 9");
    gpt2("bos_token_id", 1);
    gguf_field_int(&image, K "bos_token_id", TYPE_I32, (uint32_t)-1, 4);
    refused(GR_ELIMIT, K "bos_token_id = -1 is no token");
    gpt2(NULL, 1);
    gguf_field_text(&image, K "unknown_token_id", "0");
    refused(GR_EFORMAT, K "unknown_token_id is string, must be an integer");
    gpt2(NULL, 1);
    gguf_field_f32(&image, K "add_bos_token", 1.0f);
    refused(GR_EFORMAT, K "add_bos_token is f32, must be an integer");
}

static void test_bad_arrays(void **state)
{
    (void)state;
    static char word[GR_TOKEN_BYTES_MAX * 2 + 2];
    memset(word, 'x', sizeof(word) - 1);
    static const char *const texts_of_word[] = {word}, *const no_blank[] = {"ab"}, *const none[] = {"a z"},
                             *const twice[] = {"a b", "a b"};
    gpt2("tokens", 0);
    refused(GR_ENOTFOUND, K "tokens is missing");
    gpt2("tokens", 1);
    gguf_field_text(&image, K "tokens", "a");
    refused(GR_EFORMAT, K "tokens must be an array");
    gpt2("tokens", 1);
    i32s(K "tokens", gpt2_types, 9);
    refused(GR_EFORMAT, K "tokens must be an array of strings");
    gpt2("tokens", 1);
    texts(K "tokens", NULL, 0);
    refused(GR_EMISMATCH, K "token_type has 9 entries, " K "tokens has 0");
    gpt2("tokens", 1);
    texts(K "tokens", texts_of_word, 1);
    refused(GR_ELIMIT, K "tokens[0] has 2049 bytes, limit 2048");
    gpt2("token_type", 1);
    i32s(K "token_type", gpt2_types, 8);
    refused(GR_EMISMATCH, K "token_type has 8 entries, " K "tokens has 9");
    gpt2("token_type", 1);
    f32s(K "token_type", (const float[9]){1}, 9);
    refused(GR_EFORMAT, K "token_type must be an array of i32");
    gpt2(NULL, 1);
    f32s(K "scores", (const float[3]){1}, 3);
    refused(GR_EMISMATCH, K "scores has 3 entries");
    gpt2("merges", 1);
    texts(K "merges", no_blank, 1);
    refused(GR_EFORMAT, K "merges[0] must be \"left right\"");
    gpt2("merges", 1);
    texts(K "merges", none, 1);
    refused(GR_EFORMAT, K "merges[0]: a and z, or both together, are not in " K "tokens");
    gpt2("merges", 1);
    texts(K "merges", twice, 2);
    refused(GR_EFORMAT, K "merges[1]: a b is there a second time");
    llama(0, (const float[11]){0});
    const float nan = __builtin_nanf("");
    llama(0, (const float[11]){nan});
    refused(GR_EFORMAT, "the score of token 0 is not a finite number");
}

static void test_none(void **state)
{
    (void)state;
    static const char *const kinds[] = {NULL, "none", "no_vocab"};
    for (size_t i = 0; i < GR_ARRAY_LEN(kinds); i++) {
        struct gr_gguf *g = NULL;
        gguf_begin(&image, 3, 0, kinds[i] != NULL);
        if (kinds[i] != NULL) {
            gguf_field_text(&image, K "model", kinds[i]);
        }
        assert_int_equal(gr_gguf_parse("m.gguf", image.bytes, image.len, &g), GR_OK);
        assert_false(gr_gguf_has_tokenizer(g));
        gr_gguf_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),       cmocka_unit_test(test_llama), cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_bad_arrays), cmocka_unit_test(test_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
