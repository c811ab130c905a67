/* A client's stop (a stop string was seen) and the turn's own end (limit, end token) cross at every distance, with
 * trees of several sizes: the session that stays has the tokens that were shown and no others, so its next turn is
 * plain decoding's. */
#include "tests/sim/pair_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N_VOCAB 500 /* so many that tokens seldom come twice: most can be an end token */
#define N_PROMPT 20
#define N_SHOWN 18 /* the stop string ends with this token */
#define N_AFTER 10 /* the turn ends by itself so many tokens later at most */
#define N_NEXT 12  /* of the next turn */

static const struct sim_turn next_turn = {.ids = {3, 1, 4}, .n_ids = 3, .max_tokens = N_NEXT, .keep_all = true};

struct ending {
    uint32_t n_node; /* 0: plain decoding */
    uint32_t limit;
    int32_t end_token; /* -1: none */
    uint64_t stop_ns;
};

/* Both turns' tokens. Returns how many stops were heard when the turn had ended. */
static int run_ending(const struct ending *e, int32_t token[N_SHOWN + N_NEXT])
{
    struct pair p = pair_create(&(struct pair_config){
        .seed = 7, .n_vocab = N_VOCAB, .stop_ns = e->stop_ns, .drafter = e->n_node > 0 ? PAIR_PERFECT : PAIR_PLAIN});
    struct gr_session_request q = pair_request(0, N_PROMPT, e->limit);
    q.wishes.keep_open = true;
    q.wishes.n_node = e->n_node;
    q.wishes.draft_depth = 12;
    q.wishes.turn.stop_ids.n = e->end_token >= 0;
    q.wishes.turn.stop_ids.id[0] = e->end_token;
    sim_stop_after(p.sim, sim_submit(p.sim, &q), N_SHOWN);
    sim_add_turn(p.sim, 0, &next_turn);
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
    const struct sim_result *r = sim_result(p.sim, 0);
    assert_true(r->done && r->n_turn == 2);
    assert_int_equal(r->turn_n[0], N_SHOWN);
    assert_int_equal(r->n_token, N_SHOWN + N_NEXT);
    memcpy(token, r->token, r->n_token * sizeof(*token));
    const int n_crossed = sim_counts(p.sim)->n_crossed;
    pair_destroy(&p);
    return n_crossed;
}

/* With all delays and sizes of the tree. Returns how many have crossed. */
static int compare_endings(struct ending e, const int32_t *want)
{
    static const uint32_t node[] = {0, 16, 48};
    static const uint64_t delay[] = {1, 2500, 20000, 400000}; /* of one message, one round, many, all */
    int n_crossed = 0;
    for (size_t n = 0; n < GR_ARRAY_LEN(node); n++) {
        for (size_t d = 0; d < GR_ARRAY_LEN(delay); d++) {
            int32_t token[N_SHOWN + N_NEXT];
            e.n_node = node[n];
            e.stop_ns = delay[d];
            n_crossed += run_ending(&e, token);
            assert_memory_equal(token, want, sizeof(token));
        }
    }
    return n_crossed;
}

static void test_limits_around_a_stop(void **state)
{
    (void)state;
    int32_t want[N_SHOWN + N_NEXT];
    (void)run_ending(&(struct ending){.limit = 400, .end_token = -1}, want);
    for (uint32_t after = 0; after <= N_AFTER; after++) {
        assert_true(compare_endings((struct ending){.limit = N_SHOWN + after, .end_token = -1}, want) > 0);
    }
}

/* The text of plain decoding after what is shown. */
static void plain_text(int32_t token[N_SHOWN + N_AFTER + 1])
{
    const struct gr_session_request q = pair_request(0, N_PROMPT, N_SHOWN + N_AFTER + 1);
    struct pair p = pair_plain_run(&(struct pair_config){.seed = 7, .n_vocab = N_VOCAB}, &q, 1);
    assert_int_equal(sim_result(p.sim, 0)->n_token, N_SHOWN + N_AFTER + 1);
    memcpy(token, sim_result(p.sim, 0)->token, (N_SHOWN + N_AFTER + 1) * sizeof(*token));
    pair_destroy(&p);
}

static void test_end_tokens_after_a_stop(void **state)
{
    (void)state;
    int32_t want[N_SHOWN + N_NEXT], text[N_SHOWN + N_AFTER + 1];
    int n = 0;
    (void)run_ending(&(struct ending){.limit = 400, .end_token = -1}, want);
    plain_text(text);
    for (int at = N_SHOWN - 1; at < N_SHOWN + N_AFTER; at++) {
        bool is_first = true;
        for (int i = 0; i < at; i++) {
            is_first = is_first && text[i] != text[at];
        }
        if (is_first) {
            assert_true(compare_endings((struct ending){.limit = 400, .end_token = text[at]}, want) > 0);
            n++;
        }
    }
    assert_true(n > N_AFTER / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits_around_a_stop),
        cmocka_unit_test(test_end_tokens_after_a_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
