/* A drafter whose target takes provisional tokens back, as exact SpecPV does, or sends features again that full KV has
 * corrected. Run once with a stand-alone draft model, once ("head") with a head, which aborts on a row that does not
 * take the true feature of its prefix. */
#include "tests/sim/drafter_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static const struct gr_drafter_counters *counters(const struct rig *r)
{
    return gr_drafter_counters(r->drafter);
}

/* The target judged n_back provisional tokens away and puts another in the place of the first. */
static void take_back(struct rig *r, int32_t n_back, int n_want)
{
    const uint32_t base_len = (uint32_t)r->len;
    const int32_t keep_len = r->len - n_back;
    const int32_t gone = r->token[keep_len];
    r->len = keep_len;
    rig_commit(r, (gone + 1) % RIG_N_VOCAB);
    r->feature_taken = GR_MIN(r->feature_taken, GR_MAX(keep_len - 2, 0));
    r->feature_sent = GR_MIN(r->feature_sent, r->feature_taken);
    const struct gr_verdict v = {.draft_round = GR_WIRE_ROOT_ONLY,
                                 .keep_len = (uint32_t)keep_len,
                                 .final_len = (uint32_t)r->len,
                                 .bonus = r->token[keep_len],
                                 .kind = GR_VERDICT_FULL,
                                 .n_want = (uint8_t)n_want};
    rig_send_verdict(r, &v, base_len);
}

/* The bonus was a candidate that had been grown ahead, and its subtree went out at once; then the refresh takes back
 * tokens from before the hit. n_job: jobs of drafting ahead that run before, so that one may be in flight. */
static int hits_taken_back(struct rig *r, const struct rig_config *c, uint64_t *rng)
{
    int n = 0;
    for (int round = 0; round < 60 && r->len < RIG_N_CTX - 80; round++) {
        const uint64_t n_hit = counters(r)->n_hit;
        const int32_t base_len = r->len;
        rig_run(r, (int)rig_draw(rng, 4));
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        const bool sent = rig_draw(rng, 2) == 0;
        if (sent) {
            rig_await_draft(r);
        } else {
            (void)gr_drafter_step(r->drafter, 0); /* its tree is being grown */
        }
        if (counters(r)->n_hit > n_hit && rig_draw(rng, 3) > 0) {
            const int32_t from = r->len - base_len; /* at least all that the hit rests on */
            take_back(r, GR_MIN(from + (int32_t)rig_draw(rng, 6), r->len - 20), 63);
            rig_await_draft(r);
            rig_assert_fresh(r, c, 63);
            n++;
        } else if (!sent) {
            rig_await_draft(r);
        }
    }
    return n;
}

static void test_roll_back_across_a_hit(void **state)
{
    (void)state;
    int n = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        const struct rig_config c = {.seed = seed, .blur = 3, .ahead = true, .n_node = 12, .depth = 4, .top_k = 4};
        uint64_t rng = seed;
        struct rig *r = rig_create(&c);
        rig_start(r, 40, 63);
        n += hits_taken_back(r, &c, &rng);
        assert_int_equal(counters(r)->n_desync + counters(r)->n_feature_gap, 0);
        rig_destroy(r);
    }
    print_message("# %d draft-ahead hits were taken back\n", n);
    assert_true(n > 40);
}

/* Any number of tokens, also into the prompt, and again and again. */
static void test_roll_backs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        const struct rig_config c = {
            .seed = seed, .blur = 3, .ahead = seed % 2 == 0, .n_node = 9, .depth = 4, .top_k = 3};
        uint64_t rng = 77 * seed;
        struct rig *r = rig_create(&c);
        rig_start(r, 50, 63);
        for (int round = 0; round < 30 && r->len > 8; round++) {
            (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
            rig_await_draft(r);
            if (rig_draw(&rng, 2) == 0) {
                take_back(r, 1 + (int32_t)rig_draw(&rng, (uint64_t)GR_MIN(r->len - 4, 40)), 63);
                rig_await_draft(r);
                rig_assert_fresh(r, &c, 63);
            }
        }
        assert_int_equal(counters(r)->n_desync, 0);
        rig_destroy(r);
    }
}

/* ---- features that come again ---- */

/* Features of positions first .. end - 1 as a view would have made them: not the true ones. */
static void send_others(struct rig *r, int32_t first, int32_t end)
{
    const int32_t token = r->token[first];
    r->token[first] = (token + 1) % RIG_N_VOCAB;
    rig_send_features_from(r, first, end, 0);
    r->token[first] = token;
}

/* Four tokens without a tree; their features are other ones, and come again before a tree is asked for. */
static void test_corrected_features_are_used(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 5, .blur = 3, .head = true, .n_node = 9, .depth = 4, .top_k = 3};
    struct rig *r = rig_create(&c);
    rig_start(r, 40, 63);
    for (int k = 0; k < 5; k++) {
        const int32_t first = r->len - 1;
        r->hold_features = true;
        for (int i = 0; i < 4; i++) {
            rig_root_only(r, 0);
        }
        send_others(r, first, r->len - 1);
        const uint64_t n_again = counters(r)->n_feature_again;
        rig_send_features_from(r, first + k % 2, r->len - 1, k % 2 == 0 ? GR_FEATURES_AGAIN : 0);
        assert_int_equal(counters(r)->n_feature_again, n_again + (k % 2 == 0));
        if (k % 2 != 0) { /* not said: they are known, and change nothing; now from the first on */
            rig_send_features_from(r, first, r->len - 1, GR_FEATURES_AGAIN);
        }
        r->hold_features = false;
        rig_root_only(r, 63);
        rig_await_draft(r);
        rig_assert_fresh(r, &c, 63);
    }
    assert_int_equal(counters(r)->n_feature_gap + counters(r)->n_desync, 0);
    rig_destroy(r);
}

/* Rows that have run on the first ones run again, no more of them than must, also while a job runs. */
static void test_rows_run_again(void **state)
{
    (void)state;
    for (int in_job = 0; in_job < 2; in_job++) {
        const struct rig_config c = {
            .seed = 6, .blur = 3, .head = true, .ahead = in_job != 0, .n_node = 9, .depth = 4, .top_k = 3};
        struct rig *r = rig_create(&c);
        rig_start(r, 60, 63);
        for (int round = 0; round < 6; round++) {
            (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
            rig_await_draft(r);
        }
        const uint64_t n_row = counters(r)->n_row;
        if (in_job != 0) {
            (void)gr_drafter_step(r->drafter, 0); /* a level ahead begins */
            assert_non_null(r->job);
        }
        const int32_t first = r->len - 12;
        rig_send_features_from(r, first, r->len - 1, GR_FEATURES_AGAIN);
        assert_int_equal(counters(r)->n_feature_again, 1);
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        rig_await_draft(r);
        rig_assert_fresh(r, &c, 63);
        assert_in_range(counters(r)->n_row - n_row, (uint64_t)(r->len - 1 - first),
                        (uint64_t)(r->len - 1 - first) + (in_job != 0 ? 16 : 0));
        assert_int_equal(counters(r)->n_feature_gap + counters(r)->n_desync, 0);
        rig_destroy(r);
    }
}

/* The job that grows the next tree runs on the first ones: its tree is not sent. */
static void test_again_during_a_job(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 9, .blur = 3, .head = true, .n_node = 9, .depth = 4, .top_k = 3};
    struct rig *r = rig_create(&c);
    rig_start(r, 60, 63);
    for (int round = 0; round < 5; round++) {
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        (void)gr_drafter_step(r->drafter, 0);
        assert_non_null(r->job);
        const uint64_t n_row = counters(r)->n_row;
        const int32_t first = r->len - 12;
        rig_send_features_from(r, first, r->len - 1, GR_FEATURES_AGAIN);
        rig_await_draft(r);
        rig_assert_fresh(r, &c, 63);
        assert_int_equal(counters(r)->n_row - n_row, r->len - 1 - first);
    }
    assert_int_equal(counters(r)->n_feature_gap + counters(r)->n_desync, 0);
    rig_destroy(r);
}

/* They come a frame at a time: nothing is drafted on the rest before that is there. */
static void test_again_in_pieces(void **state)
{
    (void)state;
    const struct rig_config c = {
        .seed = 8, .blur = 3, .head = true, .ahead = true, .n_node = 9, .depth = 4, .top_k = 3};
    struct rig *r = rig_create(&c);
    rig_start(r, 60, 63);
    for (int round = 0; round < 5; round++) {
        for (int32_t first = r->len - 12; first < r->len - 1; first += 3) {
            rig_send_features_from(r, first, GR_MIN(first + 3, r->len - 1),
                                   first == r->len - 12 ? GR_FEATURES_AGAIN : 0);
            rig_run(r, 4);
        }
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        rig_await_draft(r);
        rig_assert_fresh(r, &c, 63);
    }
    assert_int_equal(counters(r)->n_feature_gap + counters(r)->n_desync, 0);
    rig_destroy(r);
}

/* A copy of such a frame that comes much later is true as well: what it takes away is asked for again. */
static void test_again_twice(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 7, .blur = 3, .head = true, .n_node = 9, .depth = 4, .top_k = 3};
    struct rig *r = rig_create(&c);
    rig_start(r, 60, 63);
    (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
    rig_await_draft(r);
    rig_send_features_from(r, r->len - 10, r->len - 5, GR_FEATURES_AGAIN);
    const struct rig_frame copy = r->log[(r->n_log + RIG_N_LOG - 1) % RIG_N_LOG];
    rig_send_features_from(r, r->len - 5, r->len - 1, 0);
    for (int round = 0; round < 4; round++) {
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        rig_await_draft(r);
    }
    assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, copy.bytes, copy.len, 0), GR_OK);
    assert_true(gr_drafter_check(r->drafter));
    (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
    rig_run(r, 5);
    assert_true(r->n_frame[GR_FRAME_RESYNC] > 1); /* the next ones leave a gap */
    rig_send_delta(r, r->len, RIG_WANT(63));
    rig_await_draft(r);
    rig_assert_fresh(r, &c, 63);
    rig_destroy(r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roll_back_across_a_hit),
        cmocka_unit_test(test_roll_backs),
    };
    const struct CMUnitTest head_tests[] = {
        cmocka_unit_test(test_roll_back_across_a_hit),
        cmocka_unit_test(test_roll_backs),
        cmocka_unit_test(test_corrected_features_are_used),
        cmocka_unit_test(test_rows_run_again),
        cmocka_unit_test(test_again_during_a_job),
        cmocka_unit_test(test_again_in_pieces),
        cmocka_unit_test(test_again_twice),
    };
    rig_heads = argc > 1 && strcmp(argv[1], "head") == 0;
    return rig_heads ? cmocka_run_group_tests(head_tests, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
