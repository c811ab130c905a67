/* Each step and option of a tokenizer that models use, in small: tests/golden/tokenizer-steps.json has the tokenizers
 * and what Hugging Face's library makes of random texts, and for tokens with scores what SentencePiece does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/tokenizer_parts.h"

#define N_ID_MAX 512
#define N_TOKEN_MAX 512

static json_t *golden;

static const json_t *at(const json_t *obj, const char *key)
{
    const json_t *value = json_object_get(obj, key);
    assert_non_null(value);
    return value;
}

/* As [1,2], for messages and to compare. */
static const char *list_of(const int32_t *ids, size_t n, char *text, size_t cap)
{
    size_t len = 0;
    text[0] = '\0';
    for (size_t i = 0; i < n && len + 16 < cap; i++) {
        len += (size_t)snprintf(text + len, cap - len, "%s%d", i > 0 ? "," : "", ids[i]);
    }
    return text;
}

static void check_encode(const struct gr_tokenizer *tok, const char *name, const json_t *c)
{
    const json_t *text = at(c, "text"), *want = at(c, "ids");
    int32_t ids[N_ID_MAX], expected[N_ID_MAX];
    char got[4096], wanted[4096];
    size_t n = 0;
    const size_t n_want = json_array_size(want);
    assert_true(n_want <= N_ID_MAX && gr_tokenizer_encode_bound(tok, json_string_length(text)) >= n_want);
    for (size_t i = 0; i < n_want; i++) {
        expected[i] = (int32_t)json_integer_value(json_array_get(want, i));
    }
    assert_int_equal(gr_tokenizer_encode(tok, json_string_value(text), json_string_length(text), 0, ids, N_ID_MAX, &n),
                     GR_OK);
    list_of(ids, n, got, sizeof(got));
    list_of(expected, n_want, wanted, sizeof(wanted));
    if (strcmp(got, wanted) != 0) {
        char *quoted = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        fail_msg("%s: %s: got %s, wanted %s", name, quoted, got, wanted);
    }
}

static void check_decode(const struct gr_tokenizer *tok, const char *name, const json_t *c)
{
    const json_t *ids_json = at(c, "ids"), *other = json_object_get(c, "decoded");
    if (json_is_null(other)) {
        return; /* the generator says why */
    }
    const char *want = json_string_value(other != NULL ? other : at(c, "text"));
    int32_t ids[N_ID_MAX];
    char *text = NULL;
    size_t len = 0;
    for (size_t i = 0; i < json_array_size(ids_json); i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(ids_json, i));
    }
    assert_int_equal(gr_tokenizer_decode(tok, ids, json_array_size(ids_json), false, &text, &len), GR_OK);
    if (strcmp(text, want) != 0) {
        fail_msg("%s: decoded to `%s', wanted `%s'", name, text, want);
    }
    free(text);
}

static struct gr_tokenizer *tokenizer_of(const json_t *step)
{
    struct gr_tokenizer *tok = NULL;
    json_t *root = json_deep_copy(at(step, "tokenizer"));
    json_t *model = json_object_get(root, "model");
    const size_t vocab = (size_t)json_integer_value(at(model, "vocab"));
    json_object_set(model, "vocab", json_array_get(at(golden, "vocabs"), vocab));
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    assert_int_equal(gr_tokenizer_parse("tokenizer.json", text, strlen(text), &tok), GR_OK);
    free(text);
    json_decref(root);
    return tok;
}

static void test_steps(void **state)
{
    (void)state;
    const json_t *steps = at(golden, "steps");
    assert_true(json_array_size(steps) >= 55);
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i), *cases = at(step, "cases");
        const char *name = json_string_value(at(step, "name"));
        struct gr_tokenizer *tok = tokenizer_of(step);
        assert_true(json_array_size(cases) >= 20);
        for (size_t k = 0; k < json_array_size(cases); k++) {
            check_encode(tok, name, json_array_get(cases, k));
            check_decode(tok, name, json_array_get(cases, k));
        }
        gr_tokenizer_destroy(tok);
    }
}

/* The order of merges by scores. */
static struct gr_tokenizer *tokenizer_with_scores(const json_t *table)
{
    const json_t *tokens = at(table, "tokens"), *scores = at(table, "scores"), *types = at(table, "types");
    const size_t n = json_array_size(tokens);
    static struct gr_tok_text text[N_TOKEN_MAX];
    static float score[N_TOKEN_MAX];
    static int32_t type[N_TOKEN_MAX];
    struct gr_tokenizer *tok = NULL;
    assert_true(n <= N_TOKEN_MAX && json_array_size(scores) == n && json_array_size(types) == n);
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_array_get(tokens, i);
        text[i] = (struct gr_tok_text){json_string_value(t), (uint32_t)json_string_length(t)};
        score[i] = (float)json_number_value(json_array_get(scores, i));
        type[i] = (int32_t)json_integer_value(json_array_get(types, i));
    }
    const struct gr_gguf_vocab v = {.name = "m.gguf",
                                    .kind = "llama",
                                    .tokens = text,
                                    .types = type,
                                    .scores = score,
                                    .n_token = (int32_t)n,
                                    .bos_id = 1,
                                    .unk_id = 0,
                                    .add_bos = -1,
                                    .add_space_prefix = true};
    assert_int_equal(gr_tokenizer_from_gguf(&v, &tok), GR_OK);
    return tok;
}

static void test_scores(void **state)
{
    (void)state;
    const json_t *tables = at(golden, "scores");
    assert_true(json_array_size(tables) >= 6);
    for (size_t i = 0; i < json_array_size(tables); i++) {
        const json_t *table = json_array_get(tables, i), *cases = at(table, "cases");
        struct gr_tokenizer *tok = tokenizer_with_scores(table);
        assert_true(json_array_size(cases) >= 40);
        for (size_t k = 0; k < json_array_size(cases); k++) {
            check_encode(tok, "scores", json_array_get(cases, k));
        }
        gr_tokenizer_destroy(tok);
    }
}

static int setup(void **state)
{
    (void)state;
    golden = json_load_file(GR_SOURCE_ROOT "/tests/golden/tokenizer-steps.json", 0, NULL);
    return golden != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_scores)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
