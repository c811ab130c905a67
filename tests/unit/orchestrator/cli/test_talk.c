/* A conversation over a kept session: what the session is given, turn by turn, makes it what the whole conversation
 * rendered anew is. */
#include "orchestrator/cli/talk.h"
#include "common/rules/hash.h"
#include "tests/unit/mini_tokenizer_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#define N_ID_MAX 4096

static struct gr_tokenizer *tok;
static struct {
    int32_t id[N_ID_MAX];
    size_t n;
} session; /* as a target would have it */

static int begin(void **state)
{
    (void)state;
    return mini_tokenizer_open(&tok) == GR_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    gr_tokenizer_destroy(tok);
    return 0;
}

static struct gr_chat chat(const char *name)
{
    return (struct gr_chat){.form = gr_chat_by_name(name), .bos = "<bos>", .eos = "<bos>"};
}

/* Asks, and has the session take what it is given. Returns how many tokens those were. */
static size_t ask(struct gr_talk *t, const char *text)
{
    uint64_t hash = 0;
    assert_int_equal(gr_talk_ask(t, text, strlen(text)), GR_OK);
    const struct gr_talk_turn turn = gr_talk_next(t);
    assert_true(turn.n_keep <= session.n && turn.n_ids > 0);
    for (size_t i = 0; i < turn.n_keep; i++) {
        hash = gr_hash_extend(hash, session.id[i]);
    }
    assert_true(turn.hash == hash);
    memcpy(session.id + turn.n_keep, turn.ids, turn.n_ids * sizeof(*turn.ids));
    session.n = turn.n_keep + turn.n_ids;
    return turn.n_ids;
}

/* The model says ids. */
static void answer(struct gr_talk *t, const int32_t *ids, size_t n)
{
    char *text = NULL;
    size_t len = 0;
    memcpy(session.id + session.n, ids, n * sizeof(*ids));
    session.n += n;
    assert_int_equal(gr_tokenizer_decode(tok, ids, n, true, &text, &len), GR_OK);
    assert_int_equal(gr_talk_answer(t, text, len, ids, n), GR_OK);
    free(text);
}

/* The session holds the conversation as it is rendered anew, up to where the answer begins. */
static void check_whole(const struct gr_talk *t)
{
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(gr_chat_ids(t->chat, tok, t->messages, t->n_message, &ids, &n), GR_OK);
    assert_int_equal(session.n, n);
    assert_memory_equal(session.id, ids, n * sizeof(*ids));
    free(ids);
}

static const int32_t hi[] = {'h', 'i', 300};       /* it ended its turn */
static const int32_t cut[] = {'h', 'i'};           /* it was stopped */
static const int32_t odd[] = {'a', 'b', 'c', 300}; /* the tokenizer makes one token of this text */

/* What is asked second, and "\n<|user|>\n" and the like around it. */
static void test_new_tokens_alone(void **state)
{
    (void)state;
    const struct gr_chat c = chat("zephyr");
    struct gr_talk t;
    session.n = 0;
    assert_int_equal(gr_talk_init(&t, &c, tok, "Be kind."), GR_OK);
    const size_t n_first = ask(&t, "one");
    assert_int_equal(n_first, session.n);
    check_whole(&t);
    answer(&t, hi, 3);
    const size_t n_second = ask(&t, "two");
    check_whole(&t);
    assert_int_equal(n_second, strlen("\n<|user|>\ntwo") + 1 + strlen("\n<|assistant|>\n"));
    answer(&t, cut, 2);
    assert_int_equal(ask(&t, "two"), n_second + 1); /* the end of turn that the model did not say */
    check_whole(&t);
    gr_talk_finish(&t);
}

static void test_every_template(void **state)
{
    (void)state;
    const char *name;
    for (int i = 0; (name = gr_chat_name_at(i)) != NULL; i++) {
        const bool takes_system = strcmp(name, "gemma") != 0 && strcmp(name, "mistral") != 0;
        const struct gr_chat c = chat(name);
        struct gr_talk t;
        session.n = 0;
        assert_int_equal(gr_talk_init(&t, &c, tok, takes_system ? "Be kind." : NULL), GR_OK);
        (void)ask(&t, "one");
        check_whole(&t);
        answer(&t, hi, 3);
        (void)ask(&t, " <bos> two\n");
        check_whole(&t);
        answer(&t, odd, 4);
        (void)ask(&t, "three");
        check_whole(&t);
        answer(&t, cut, 0);
        (void)ask(&t, "four");
        check_whole(&t);
        gr_talk_finish(&t);
    }
}

/* Thoughts are left out of what was said: the session is cut where they began. */
static void test_thoughts_are_cut(void **state)
{
    (void)state;
    static const char said[] = "<think>\nhm\n</think>\n\nyes";
    const struct gr_chat c = chat("qwen3");
    int32_t ids[sizeof(said)];
    struct gr_talk t;
    session.n = 0;
    for (size_t i = 0; said[i] != '\0'; i++) {
        ids[i] = (uint8_t)said[i];
    }
    assert_int_equal(gr_talk_init(&t, &c, tok, NULL), GR_OK);
    const size_t n_first = ask(&t, "one");
    answer(&t, ids, sizeof(said) - 1);
    (void)ask(&t, "two");
    assert_int_equal(gr_talk_next(&t).n_keep, n_first);
    check_whole(&t);
    gr_talk_finish(&t);
}

static void test_reset_and_taking_back(void **state)
{
    (void)state;
    const struct gr_chat c = chat("chatml");
    struct gr_talk t;
    session.n = 0;
    assert_int_equal(gr_talk_init(&t, &c, tok, "s"), GR_OK);
    const size_t n_first = ask(&t, "one");
    answer(&t, hi, 3);
    (void)ask(&t, "two");
    gr_talk_take_back(&t);
    assert_int_equal(t.n_message, 3);
    gr_talk_lost_session(&t);
    session.n = 0;
    assert_true(ask(&t, "two") > n_first);
    check_whole(&t);
    gr_talk_reset(&t);
    session.n = 0;
    assert_int_equal(t.n_message, 1);
    assert_int_equal(ask(&t, "one"), n_first);
    check_whole(&t);
    gr_talk_finish(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_new_tokens_alone, begin, end),
        cmocka_unit_test_setup_teardown(test_every_template, begin, end),
        cmocka_unit_test_setup_teardown(test_thoughts_are_cut, begin, end),
        cmocka_unit_test_setup_teardown(test_reset_and_taking_back, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
