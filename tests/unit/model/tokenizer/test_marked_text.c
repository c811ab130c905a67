/* Texts of two hands: what stands between braces below is a user's, and its special tokens are text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "model/tokenizer/tokenizer.h"
#include "tests/unit/mini_tokenizer_open.h"

#define N_ID_MAX 64
#define N_SPAN_MAX 4

struct marked {
    char text[128];
    struct gr_text_span span[N_SPAN_MAX];
    struct gr_marked_text t;
};

static void mark(const char *braced, struct marked *m)
{
    m->t = (struct gr_marked_text){.text = m->text, .plain = m->span};
    for (; *braced != '\0'; braced++) {
        if (*braced == '{') {
            assert_true(m->t.n_plain < N_SPAN_MAX);
            m->span[m->t.n_plain].begin = m->t.len;
        } else if (*braced == '}') {
            m->span[m->t.n_plain++].end = m->t.len;
        } else {
            m->text[m->t.len++] = *braced;
        }
    }
}

static struct gr_tokenizer *make(const char *normalizer, bool normalized)
{
    json_t *root = mini_tokenizer();
    struct gr_tokenizer *tok = NULL;
    json_patch_at(root, "normalizer", normalizer);
    json_patch_at(root, "added_tokens.0.normalized", normalized ? "true" : "false");
    assert_int_equal(mini_tokenizer_open_json("t", root, &tok), GR_OK);
    return tok;
}

/* Ids that are tokens are spelled as such: B for <bos>, T for <tool>, the others as their bytes between commas. */
static void check(const struct gr_tokenizer *tok, const char *braced, const char *want)
{
    struct marked m;
    int32_t ids[N_ID_MAX];
    size_t n = 0;
    char got[256] = "";
    mark(braced, &m);
    assert_int_equal(gr_tokenizer_encode_marked(tok, &m.t, 0, ids, N_ID_MAX, &n), GR_OK);
    for (size_t i = 0, at = 0; i < n; i++) {
        size_t len;
        const char *bytes = gr_tokenizer_token_bytes(tok, ids[i], &len);
        const bool named = ids[i] == 300 || ids[i] == 301;
        at += (size_t)snprintf(got + at, sizeof(got) - at, "%s%.*s", i > 0 ? "," : "", named ? 1 : (int)len,
                               ids[i] == 300   ? "B"
                               : ids[i] == 301 ? "T"
                                               : bytes);
    }
    if (strcmp(got, want) != 0) {
        fail_msg("%s gives %s, not %s", braced, got, want);
    }
}

static void check_all(const struct gr_tokenizer *tok)
{
    check(tok, "<bos>a", "B,a");
    check(tok, "{<bos>}a", "<,b,o,s,>,a");
    check(tok, "<bos>{<bos>}<bos>", "B,<,b,o,s,>,B");
    check(tok, "<bos>{a<bos>c<bos>}<bos>{<bos>}", "B,a,<,b,o,s,>,c,<,b,o,s,>,B,<,b,o,s,>");
    check(tok, "{<tool>}<tool>", "T,T"); /* not special: it means the same to everybody */
    check(tok, "{<bo}s>", "<,b,o,s,>");  /* neither of them wrote it */
    check(tok, "<bo{s>}<bos>", "<,b,o,s,>,B");
    check(tok, "{<bos}><bos>", "<,b,o,s,>,B");
    check(tok, "{}<bos>{}{}", "B");
}

static void test_special_tokens_of_users_are_text(void **state)
{
    (void)state;
    struct gr_tokenizer *tok = make("null", false);
    check_all(tok);
    gr_tokenizer_destroy(tok);
}

/* The tokens are looked for in the normalized text, where all is at other places. */
static void test_through_a_normalizer(void **state)
{
    (void)state;
    struct gr_tokenizer *tok = make("{\"type\":\"NFC\"}", true);
    check_all(tok);
    gr_tokenizer_destroy(tok);
    tok = make("{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"yyyyyyy\"}", true);
    check_all(tok);
    check(tok, "x{x<bos>}<bos>x", "y,y,y,y,y,y,y,y,y,y,y,y,y,y,<,b,o,s,>,B,y,y,y,y,y,y,y");
    gr_tokenizer_destroy(tok);
    tok = make("{\"type\":\"Replace\",\"pattern\":{\"String\":\"xxxxxx\"},\"content\":\"y\"}", true);
    check(tok, "xxxxxx<bos>{xxxxxx<bos>xxxxxx}<bos>", "y,B,y,<,b,o,s,>,y,B");
    gr_tokenizer_destroy(tok);
}

static void test_merges_go_over_edges(void **state)
{
    (void)state;
    struct gr_tokenizer *tok = make("null", false);
    check(tok, "a{b}c", "abc");
    check(tok, "<bos>{a}bc{bc}", "B,abc,bc");
    gr_tokenizer_destroy(tok);
}

static void test_beside_bytes_that_are_no_text(void **state)
{
    (void)state;
    struct gr_tokenizer *tok = make("null", false);
    check(tok, "<bos>{<bos>\xff<bos>}<bos>\xff<bos>", "B,<,b,o,s,>,\xff,<,b,o,s,>,B,\xff,B");
    gr_tokenizer_destroy(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_special_tokens_of_users_are_text),
        cmocka_unit_test(test_through_a_normalizer),
        cmocka_unit_test(test_merges_go_over_edges),
        cmocka_unit_test(test_beside_bytes_that_are_no_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
