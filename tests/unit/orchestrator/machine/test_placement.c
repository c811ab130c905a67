/* Where a session goes: the pure choice, and the table of session numbers. */
#include "orchestrator/machine/placement.h"
#include "orchestrator/machine/orch.h"
#include "orchestrator/machine/session_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct gr_place place(uint32_t n_active, uint32_t n_held, uint32_t n_free, double round_ns)
{
    return (struct gr_place){.fits = true,
                             .has_room = true,
                             .n_active = n_active,
                             .n_held = n_held,
                             .n_free_block = n_free,
                             .round_ns = round_ns};
}

static void test_nobody(void **state)
{
    (void)state;
    struct gr_place p[2] = {{0}, {0}};
    assert_int_equal(gr_place_choose(p, 2, -1), -1);
    assert_int_equal(gr_place_choose(p, 0, -1), -1);
    p[1].fits = true;
    assert_int_equal(gr_place_choose(p, 2, -1), 1); /* has no room, but nobody has */
}

/* One that fails too often is passed over, even for one that is full or slow; of several such the usual order holds. */
static void test_shunned(void **state)
{
    (void)state;
    struct gr_place p[3] = {place(0, 0, 10, 50), place(5, 5, 10, 900), place(1, 1, 10, 50)};
    p[0].shunned = p[2].shunned = true;
    assert_int_equal(gr_place_choose(p, 3, -1), 1);
    p[1].has_room = false;
    assert_int_equal(gr_place_choose(p, 3, -1), 1);
    p[1].fits = false;
    assert_int_equal(gr_place_choose(p, 3, 0), 0);
    p[0].has_room = false;
    assert_int_equal(gr_place_choose(p, 3, 0), 2);
}

static void test_order_of_reasons(void **state)
{
    (void)state;
    struct gr_place p[3] = {place(0, 0, 10, 0), place(0, 0, 10, 0), place(0, 0, 10, 0)};
    /* rotation */
    assert_int_equal(gr_place_choose(p, 3, -1), 0);
    assert_int_equal(gr_place_choose(p, 3, 0), 1);
    assert_int_equal(gr_place_choose(p, 3, 1), 2);
    assert_int_equal(gr_place_choose(p, 3, 2), 0);
    /* KV before rotation */
    p[1].n_free_block = 11;
    assert_int_equal(gr_place_choose(p, 3, 1), 1);
    /* sessions held before KV, sessions in a turn before those */
    p[1].n_held = 1;
    assert_int_equal(gr_place_choose(p, 3, 1), 2);
    p[0].n_active = p[2].n_active = 1;
    assert_int_equal(gr_place_choose(p, 3, 1), 1);
    /* the predicted round before all of them, where all are known */
    p[0].round_ns = 50;
    p[1].round_ns = 100;
    assert_int_equal(gr_place_choose(p, 3, 1), 1); /* the third's is not */
    p[2].round_ns = 80;
    assert_int_equal(gr_place_choose(p, 3, 1), 0);
    p[2].round_ns = 54; /* within a quarter: as fast */
    p[2].n_active = 0;
    assert_int_equal(gr_place_choose(p, 3, 1), 2);
    /* room before speed */
    p[0].has_room = p[2].has_room = false;
    assert_int_equal(gr_place_choose(p, 3, 1), 1);
    p[1].fits = false;
    assert_int_equal(gr_place_choose(p, 3, 1), 2);
}

/* What a worker holds of the prompt: after the predicted round, before who has less to do. */
static void test_prompt_that_is_held(void **state)
{
    (void)state;
    struct gr_place p[3] = {place(0, 0, 10, 100), place(3, 5, 2, 120), place(0, 0, 10, 200)};
    p[1].n_prompt = 32;
    p[2].n_prompt = 1024;
    assert_int_equal(gr_place_choose(p, 3, 0), 1); /* as fast as the first, and has some of it */
    p[0].n_prompt = 48;
    assert_int_equal(gr_place_choose(p, 3, 0), 0); /* more of it */
    p[1].n_prompt = 48;
    assert_int_equal(gr_place_choose(p, 3, 0), 0); /* as much, and less to do */
    p[2].round_ns = 120;
    assert_int_equal(gr_place_choose(p, 3, 0), 2); /* by now as fast as they are */
    p[2].has_room = false;
    assert_int_equal(gr_place_choose(p, 3, 0), 0);
    p[0].round_ns = 0; /* not known: none is compared */
    p[1].n_prompt = 1024;
    assert_int_equal(gr_place_choose(p, 3, 0), 0);
}

/* Sessions that begin alike go where their prompt is until its rounds are longer than another's by a quarter. */
static void test_one_prompt_does_not_fill_one_worker(void **state)
{
    (void)state;
    const struct gr_round_forecast f = {.round_ns = 1000, .more_ns = 100};
    uint32_t n[2] = {0, 0};
    int last = -1;
    for (int i = 0; i < 60; i++) {
        struct gr_place p[2];
        for (int k = 0; k < 2; k++) {
            p[k] = place(n[k], n[k], 0, gr_forecast_round_ns(&f, n[k]));
            p[k].n_prompt = k == 0 ? 512 : 0;
        }
        last = gr_place_choose(p, 2, last);
        n[last]++;
    }
    assert_in_range(n[0], 34, 38); /* 1000 + 100 n = 1.25 (1000 + 100 (60 - n)) at n = 34.4 */
    assert_int_equal(n[0] + n[1], 60);
}

static void test_forecast(void **state)
{
    (void)state;
    const struct gr_round_forecast f = {.n_active = 3, .round_ns = 1000, .more_ns = 100};
    assert_true(gr_forecast_round_ns(&f, 3) == 1000);
    assert_true(gr_forecast_round_ns(&f, 5) == 1200);
    assert_true(gr_forecast_round_ns(&f, 1) == 800);
    const struct gr_round_forecast steep = {.n_active = 30, .round_ns = 1000, .more_ns = 100};
    assert_true(gr_forecast_round_ns(&steep, 0) == 1); /* never less than that */
    const struct gr_round_forecast curve = {.n_active = 100, .round_ns = 1000, .more_ns = 50, .first_ns = 600};
    assert_true(gr_forecast_round_ns(&curve, 0) == 600 && gr_forecast_round_ns(&curve, 50) == 800);
    assert_true(gr_forecast_round_ns(&curve, 100) == 1000 && gr_forecast_round_ns(&curve, 102) == 1100);
    const struct gr_round_forecast none = {.n_active = 1, .more_ns = 100};
    assert_true(gr_forecast_round_ns(&none, 7) == 0);
}

/* Workers whose rounds differ: sessions are shared so that rounds are alike, but for the quarter that counts as alike.
 */
static void test_slow_worker_gets_fewer(void **state)
{
    (void)state;
    const struct gr_round_forecast f[2] = {{.round_ns = 1000, .more_ns = 100}, {.round_ns = 2000, .more_ns = 200}};
    uint32_t n[2] = {0, 0};
    int last = -1;
    for (int i = 0; i < 60; i++) {
        struct gr_place p[2];
        for (int k = 0; k < 2; k++) {
            p[k] = place(n[k], n[k], 0, gr_forecast_round_ns(&f[k], n[k]));
        }
        last = gr_place_choose(p, 2, last);
        n[last]++;
    }
    assert_in_range(n[0], 38, 46); /* 1000 + 100 n = 2000 + 200 (60 - n) at n = 43.3; a quarter less at 39.2 */
}

static void test_shedding(void **state)
{
    (void)state;
    const struct gr_round_forecast busy = {.n_active = 4, .round_ns = 5000, .more_ns = 1000}; /* 4000 at present */
    const struct gr_round_forecast unknown = {0};
    const struct gr_round_forecast half = {.n_active = 1, .round_ns = 2000, .more_ns = 1000};
    assert_true(gr_pays_to_shed(&busy, 4, &unknown, 0));  /* 1000 alone */
    assert_true(gr_pays_to_shed(&busy, 4, &unknown, 1));  /* one has been given to it since: 2000 */
    assert_false(gr_pays_to_shed(&busy, 4, &unknown, 2)); /* 3000 */
    assert_true(gr_pays_to_shed(&busy, 4, &half, 1));
    assert_false(gr_pays_to_shed(&busy, 3, &half, 1)); /* 3000 here by now */
    assert_false(gr_pays_to_shed(&busy, 1, &unknown, 0));
    assert_false(gr_pays_to_shed(&unknown, 9, &unknown, 0));
}

/* To none where a token takes half as long without trees, or less; back where it takes no longer with them. What lies
 * between moves nothing. */
static void test_shedding_to_none(void **state)
{
    (void)state;
    const struct gr_round_forecast busy = {.n_active = 4, .round_ns = 5000, .more_ns = 1000}; /* 4000 at present */
    const struct gr_round_forecast unknown = {0};
    const struct gr_tree_worth two = {.pass_ns = 800, .n_accepted = 2.0}; /* (800 + 4000) / 3 = 1600 */
    struct gr_tree_worth w = two;
    assert_true(gr_pays_to_shed_to_none(&busy, 4, &w));
    assert_false(gr_pays_to_shed_to_none(&busy, 3, &w)); /* (800 + 3000) / 3 */
    assert_false(gr_pays_to_draft(&busy, 3, &w));
    assert_false(gr_pays_to_draft(&busy, 1, &w)); /* (800 + 2000) / 3 = 933 */
    assert_true(gr_pays_to_draft(&busy, 0, &w));  /* (800 + 1000) / 3 = 600 */
    w.n_accepted = 2.1;
    assert_false(gr_pays_to_shed_to_none(&busy, 4, &w));
    w = two;
    w.pass_ns = 801;
    assert_false(gr_pays_to_shed_to_none(&busy, 4, &w));
    w.pass_ns = 0; /* not known */
    assert_false(gr_pays_to_shed_to_none(&busy, 4, &w));
    const struct gr_round_forecast slow = {.n_active = 1, .round_ns = 2e9, .more_ns = 1e9};
    assert_false(gr_pays_to_shed_to_none(&slow, 1, &two)); /* the last one stays */
    assert_true(gr_pays_to_shed_to_none(&slow, 2, &two));
    assert_false(gr_pays_to_shed_to_none(&unknown, 9, &two));
    assert_true(gr_pays_to_draft(&unknown, 0, &two)); /* it is tried */
    const struct gr_tree_worth useless = {.pass_ns = 800};
    assert_true(gr_pays_to_shed_to_none(&busy, 2, &useless));
    assert_false(gr_pays_to_draft(&busy, 0, &useless));
}

/* The index against a plain list, numbers growing as the machine's do, with some that live long. */
static void test_index(void **state)
{
    (void)state;
    struct gr_session_index index;
    struct gr_session_index *x = &index;
    uint64_t *id = calloc(GR_ORCH_SESSION_MAX, sizeof(*id));
    assert_true(gr_session_index_create(x, GR_ORCH_SESSION_MAX));
    assert_non_null(id);
    uint64_t next = 1;
    srand(1);
    for (int round = 0; round < 200000; round++) {
        const int at = rand() % GR_ORCH_SESSION_MAX;
        if (id[at] != 0) {
            assert_int_equal(gr_session_index_find(x, id[at]), at);
        }
        if (id[at] == 0) {
            id[at] = next++;
            gr_session_index_add(x, id[at], at);
        } else if (at % 16 != 0 || rand() % 1000 == 0) {
            gr_session_index_remove(x, id[at]);
            assert_int_equal(gr_session_index_find(x, id[at]), -1);
            id[at] = 0;
        }
    }
    for (int i = 0; i < GR_ORCH_SESSION_MAX; i++) { /* then full */
        if (id[i] == 0) {
            id[i] = next++;
            gr_session_index_add(x, id[i], i);
        }
    }
    for (int i = 0; i < GR_ORCH_SESSION_MAX; i++) {
        assert_int_equal(gr_session_index_find(x, id[i]), i);
    }
    assert_int_equal(gr_session_index_find(x, 0), -1);
    assert_int_equal(gr_session_index_find(x, next), -1);
    gr_session_index_remove(x, next); /* not there: nothing happens */
    for (int i = 0; i < GR_ORCH_SESSION_MAX; i++) {
        gr_session_index_remove(x, id[i]);
    }
    for (uint32_t i = 0; i <= x->mask; i++) {
        assert_true(x->id[i] == 0);
    }
    gr_session_index_destroy(x);
    free(id);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody),
        cmocka_unit_test(test_shunned),
        cmocka_unit_test(test_order_of_reasons),
        cmocka_unit_test(test_prompt_that_is_held),
        cmocka_unit_test(test_one_prompt_does_not_fill_one_worker),
        cmocka_unit_test(test_forecast),
        cmocka_unit_test(test_slow_worker_gets_fewer),
        cmocka_unit_test(test_shedding),
        cmocka_unit_test(test_shedding_to_none),
        cmocka_unit_test(test_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
