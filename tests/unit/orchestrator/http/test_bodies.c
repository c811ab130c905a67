/* Bodies of many requests, which share what they may hold. */
#include "orchestrator/http/bodies.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define PIECE (1u << 20)

static char piece[PIECE];

/* Pieces are added until it is so long. */
static enum gr_status fill(struct gr_bodies *all, struct gr_body *b, size_t len)
{
    while (b->len < len) {
        GR_TRY(gr_body_add(all, b, piece, GR_MIN(len - b->len, sizeof(piece))));
    }
    return GR_OK;
}

static void test_what_comes_is_kept(void **state)
{
    (void)state;
    struct gr_bodies all = {0};
    struct gr_body b = {0};
    for (size_t i = 0; i < 300000; i++) {
        const char c = (char)(i % 251);
        assert_int_equal(gr_body_add(&all, &b, &c, 1), GR_OK);
    }
    assert_true(b.len == 300000 && b.cap <= 2 * b.len && all.n == b.cap);
    for (size_t i = 0; i < b.len; i++) {
        assert_int_equal(b.p[i], (char)(i % 251));
    }
    assert_int_equal(fill(&all, &b, GR_HTTP_BODY_MAX), GR_OK);
    assert_true(b.cap == GR_HTTP_BODY_MAX && all.n == GR_HTTP_BODY_MAX);
    gr_body_drop(&all, &b);
    assert_true(all.n == 0 && b.p == NULL && b.len == 0 && b.cap == 0);
    gr_body_drop(&all, &b);
    assert_true(all.n == 0);
}

/* However many there are, and however they grow beside each other: never more than all may hold, and one that is let
 * go makes room. */
static void test_all_are_bounded(void **state)
{
    (void)state;
    enum { N = 40 };
    struct gr_bodies all = {0};
    struct gr_body b[N] = {{0}};
    bool refused[N] = {false};
    int n_refused = 0;
    for (size_t len = PIECE; len <= GR_HTTP_BODY_MAX; len += PIECE) {
        for (int i = 0; i < N; i++) {
            if (!refused[i]) {
                const enum gr_status st = fill(&all, &b[i], len);
                refused[i] = st == GR_ELIMIT;
                n_refused += refused[i];
                assert_true(refused[i] ? b[i].p == NULL && b[i].cap == 0 : st == GR_OK && b[i].len == len);
            }
            assert_true(all.n <= GR_HTTP_BODIES_MAX);
        }
    }
    const int n_whole = N - n_refused, n_most = (int)(GR_HTTP_BODIES_MAX / GR_HTTP_BODY_MAX);
    assert_true(n_whole > n_most / 2 && n_whole <= n_most && all.n == (size_t)n_whole * GR_HTTP_BODY_MAX);
    struct gr_body more = {0};
    for (int i = 0; i < N; i++) {
        gr_body_drop(&all, &b[i]);
    }
    assert_true(all.n == 0);
    assert_int_equal(fill(&all, &more, PIECE), GR_OK);
    gr_body_drop(&all, &more);
}

/* Small ones have their place also where large ones have taken all. */
static void test_small_ones_are_let_in(void **state)
{
    (void)state;
    struct gr_bodies all = {.n = GR_HTTP_BODIES_MAX};
    struct gr_body small = {0}, large = {0};
    assert_int_equal(fill(&all, &small, GR_HTTP_BODY_SMALL / 2), GR_OK);
    assert_int_equal(fill(&all, &large, GR_HTTP_BODY_SMALL + 1), GR_ELIMIT);
    assert_true(all.n == GR_HTTP_BODIES_MAX && large.p == NULL);
    gr_body_drop(&all, &small);
    assert_true(all.n == GR_HTTP_BODIES_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_comes_is_kept),
                                       cmocka_unit_test(test_all_are_bounded),
                                       cmocka_unit_test(test_small_ones_are_let_in)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
