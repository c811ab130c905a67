/* A drafter with a head, and features that come late, twice, in the middle, not at all, or not as they should. The head
 * aborts on a committed row that does not take the true feature of its prefix, and on a candidate that does not take
 * the state of its parent's row. */
#include "tests/sim/drafter_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static const struct rig_config plain = {.seed = 5, .blur = 3, .head = true, .n_node = 9, .depth = 4, .top_k = 3};

static const struct gr_drafter_counters *counters(const struct rig *r)
{
    return gr_drafter_counters(r->drafter);
}

static int n_draft(const struct rig *r)
{
    return r->n_frame[GR_FRAME_DRAFT];
}

/* A tree waits for its features, and comes with them. */
static void test_late_features(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        struct rig_config c = plain;
        c.ahead = ahead;
        struct rig *r = rig_create(&c);
        rig_start(r, 30, 63);
        for (int round = 0; round < 20; round++) {
            const int n = n_draft(r);
            rig_run(r, ahead ? 5 : 0);
            r->hold_features = true;
            (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
            rig_run(r, 50);
            assert_int_equal(n_draft(r), n); /* late, not wrong */
            r->hold_features = false;
            rig_send_features(r);
            rig_await_draft(r);
            rig_assert_fresh(r, &c, 63);
        }
        assert_int_equal(counters(r)->n_feature_gap + counters(r)->n_desync, 0);
        rig_destroy(r);
    }
}

/* Frames that come twice, that say what is known, or that are about tokens that are gone change nothing. */
static void test_stale_features(void **state)
{
    (void)state;
    struct rig *r = rig_create(&plain);
    rig_start(r, 70, 63);
    const int n_resync = r->n_frame[GR_FRAME_RESYNC];
    uint64_t n_row = counters(r)->n_feature_row;
    assert_int_equal(n_row, 69);
    for (int32_t first = 0; first < 69; first += 5) { /* in other pieces, from other places */
        rig_send_features_from(r, first, r->len - 1, first % 2 == 0 ? GR_FEATURES_START : 0);
    }
    assert_int_equal(counters(r)->n_feature_row, n_row);
    (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
    rig_await_draft(r);
    /* a roll-back; then what was on its way when it happened */
    n_row = counters(r)->n_feature_row;
    const struct rig_frame last = r->log[(r->n_log + RIG_N_LOG - 1) % RIG_N_LOG];
    r->len -= 6;
    rig_commit(r, 1);
    rig_commit(r, 2);
    r->round++;
    r->hold_features = true;
    rig_send_delta(r, r->len - 2, RIG_WANT(63));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, last.bytes, last.len, 0), GR_OK);
    }
    assert_int_equal(counters(r)->n_feature_row, n_row);
    assert_true(counters(r)->n_stale_features >= 3);
    /* the same length again, other tokens */
    const int32_t common = r->len;
    while (r->len < 90) {
        rig_commit(r, 1);
    }
    r->round++;
    rig_send_delta(r, common, RIG_WANT(63));
    assert_true(last.bytes[GR_WIRE_OFF_BASE_LEN] < r->len - 1);
    assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, last.bytes, last.len, 0), GR_OK);
    assert_int_equal(counters(r)->n_feature_row, n_row);
    rig_run(r, 20);
    r->hold_features = false;
    rig_send_features(r);
    rig_await_draft(r);
    rig_assert_fresh(r, &plain, 63);
    assert_int_equal(r->n_frame[GR_FRAME_RESYNC], n_resync);
    rig_destroy(r);
}

/* The target keeps the last 40 positions only: the drafter's KV begins there, and trees grow at once. */
static void test_attached_in_the_middle(void **state)
{
    (void)state;
    for (int n_prompt = 42; n_prompt < 400; n_prompt += 71) {
        struct rig *r = rig_create(&plain);
        r->feature_keep = 40;
        rig_start(r, n_prompt, 63);
        assert_int_equal(counters(r)->n_feature_start, 1);
        assert_int_equal(counters(r)->n_row, 40);
        rig_assert_fresh(r, &plain, 63); /* the toy head needs no more than a state */
        for (int round = 0; round < 10; round++) {
            (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
            rig_await_draft(r);
            rig_assert_fresh(r, &plain, 63);
        }
        assert_int_equal(counters(r)->n_feature_start, 1);
        /* silence for longer than the target keeps: it begins anew */
        const int32_t common = r->len;
        for (int i = 0; i < 50; i++) {
            rig_commit(r, rig_pick(r, r->token, r->len));
        }
        r->round += 50;
        rig_send_delta(r, common, RIG_WANT(63));
        rig_await_draft(r);
        rig_assert_fresh(r, &plain, 63);
        assert_int_equal(counters(r)->n_feature_start, 2);
        /* cut back before that: nothing is left, and the target is asked */
        r->len = 20;
        rig_commit(r, 2);
        r->round++;
        r->feature_sent = 18;
        rig_send_delta(r, 20, RIG_WANT(63));
        assert_int_equal(counters(r)->n_feature_gap, 1);
        (void)rig_job_once(r);
        assert_int_equal(r->trouble.draft_trouble.n_feature_gap, 1); /* the orchestrator is told */
        assert_int_equal(r->resync.feature_len, 0);
        rig_send_delta(r, r->len, RIG_WANT(63));
        rig_await_draft(r);
        rig_assert_fresh(r, &plain, 63);
        assert_int_equal(counters(r)->n_desync, 0);
        rig_destroy(r);
    }
}

/* A head that looks back 64 positions lets go of its KV further back, a few blocks at a time; trees stay what they
 * were, and a cut to before that begins anew. */
static void test_context(void **state)
{
    (void)state;
    struct rig_config c = plain;
    c.context = 64;
    c.one_fits = true;
    struct rig *r = rig_create(&c);
    rig_start(r, 200, 63);
    assert_int_equal(r->resync.feature_context, 64);
    rig_assert_fresh(r, &plain, 63);
    (void)gr_drafter_step(r->drafter, 0);
    const uint64_t n_slide = counters(r)->n_slide;
    assert_true(n_slide > 0);
    while (r->len < 350) {
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        rig_await_draft(r);
        rig_assert_fresh(r, &plain, 63);
        assert_true(gr_drafter_check(r->drafter));
    }
    /* three blocks at once */
    assert_in_range(counters(r)->n_slide, n_slide + 1, n_slide + 1 + (uint64_t)(r->len - 200) / 48);
    assert_int_equal(counters(r)->n_feature_start, 0);
    r->len = 100;
    rig_commit(r, 2);
    r->round++;
    r->feature_sent = 98;
    rig_send_delta(r, 100, RIG_WANT(63));
    assert_int_equal(r->resync.feature_len, 0);
    rig_send_delta(r, r->len, RIG_WANT(63));
    rig_await_draft(r);
    rig_assert_fresh(r, &plain, 63);
    rig_destroy(r);
}

/* The target has moved on while rows of older tokens run: they do not count. */
static void test_begins_anew_during_a_job(void **state)
{
    (void)state;
    struct rig *r = rig_create(&plain);
    rig_start(r, 30, 63);
    while (r->len < 100) {
        rig_commit(r, rig_pick(r, r->token, r->len));
    }
    r->round++;
    r->hold_features = true;
    rig_send_delta(r, 30, RIG_WANT(63));
    rig_send_features_from(r, 29, 70, 0);
    (void)gr_drafter_step(r->drafter, 0);
    assert_non_null(r->job);
    rig_send_features_from(r, 90, 99, GR_FEATURES_START);
    assert_int_equal(counters(r)->n_feature_start, 1);
    rig_await_draft(r); /* finishes that job first */
    rig_assert_fresh(r, &plain, 63);
    r->hold_features = false;
    for (int round = 0; round < 5; round++) {
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        rig_await_draft(r);
        rig_assert_fresh(r, &plain, 63);
    }
    rig_destroy(r);
}

/* In silence nothing runs; one pass takes what was committed. */
static void test_silence_catches_up(void **state)
{
    (void)state;
    struct rig *r = rig_create(&plain);
    rig_start(r, 50, 63);
    const uint64_t n_job = counters(r)->n_job;
    const uint64_t n_row = counters(r)->n_row;
    const int32_t common = r->len;
    for (int i = 0; i < 25; i++) {
        rig_commit(r, rig_pick(r, r->token, r->len));
    }
    r->round += 25;
    rig_run(r, 10);
    assert_int_equal(counters(r)->n_job, n_job);
    rig_send_delta(r, common, RIG_WANT(63));
    rig_await_draft(r);
    assert_int_equal(counters(r)->n_job, n_job + 1);
    assert_int_equal(counters(r)->n_row, n_row + 25);
    rig_assert_fresh(r, &plain, 63);
    rig_destroy(r);
}

/* A gap is asked about, once for each frame that shows it; a target that sends more than the window loses nothing. */
static void test_gap_and_window(void **state)
{
    (void)state;
    struct rig_config c = plain;
    c.window = 64;
    struct rig *r = rig_create(&c);
    rig_start(r, 30, 63);
    const int n_resync = r->n_frame[GR_FRAME_RESYNC];
    r->hold_features = true;
    (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
    for (int i = 0; i < 3; i++) {
        rig_commit(r, rig_pick(r, r->token, r->len));
    }
    r->round += 3;
    rig_send_delta(r, r->len - 3, RIG_WANT(63));
    rig_send_features_from(r, r->len - 3, r->len - 1, 0);
    assert_int_equal(counters(r)->n_feature_gap, 1);
    assert_int_equal(r->n_frame[GR_FRAME_RESYNC], n_resync + 1);
    rig_send_features_from(r, r->len - 2, r->len - 1, 0); /* it has asked already */
    assert_int_equal(r->n_frame[GR_FRAME_RESYNC], n_resync + 1);
    r->hold_features = false;
    rig_send_delta(r, r->len, RIG_WANT(63));
    rig_await_draft(r);
    rig_assert_fresh(r, &plain, 63);
    /* a prompt of more than the window: it comes as rows are taken */
    while (r->len < 300) {
        rig_commit(r, rig_pick(r, r->token, r->len));
    }
    r->round++;
    rig_send_delta(r, r->feature_sent + 1, RIG_WANT(63));
    const int n_taken = r->n_frame[GR_FRAME_TAKEN];
    rig_await_draft(r);
    rig_assert_fresh(r, &plain, 63);
    assert_true(r->n_frame[GR_FRAME_TAKEN] >= n_taken + 3);
    assert_int_equal(r->n_frame[GR_FRAME_RESYNC], n_resync + 1);
    /* a target that sends more than the window: what fits is kept, the rest is asked for */
    const int32_t from = r->len - 1;
    while (r->len < 480) {
        rig_commit(r, rig_pick(r, r->token, r->len));
    }
    r->round++;
    r->hold_features = true;
    rig_send_delta(r, from + 1, RIG_WANT(63));
    rig_send_features_from(r, from, r->len - 1, 0);
    assert_int_equal(r->n_frame[GR_FRAME_RESYNC], n_resync + 2);
    assert_true(gr_drafter_check(r->drafter));
    r->hold_features = false;
    rig_send_delta(r, r->len, RIG_WANT(63));
    rig_await_draft(r);
    rig_assert_fresh(r, &plain, 63);
    rig_destroy(r);
}

/* The target's ring has moved on to a position within what is held and not yet used: it counts the window from there,
 * and to ask it again would bring the same. */
static void test_start_within_what_is_held(void **state)
{
    (void)state;
    struct rig_config c = plain;
    c.window = 64;
    struct rig *r = rig_create(&c);
    rig_start(r, 30, 63);
    const int n_resync = r->n_frame[GR_FRAME_RESYNC];
    const int32_t from = r->len - 1;
    while (r->len < from + 92) {
        rig_commit(r, rig_pick(r, r->token, r->len));
    }
    r->round++;
    r->hold_features = true;
    rig_send_delta(r, from + 1, RIG_WANT(63));
    rig_send_features_from(r, from, from + 50, 0);
    rig_send_features_from(r, from + 30, from + 91, GR_FEATURES_START);
    assert_int_equal(r->n_frame[GR_FRAME_RESYNC], n_resync);
    assert_int_equal(counters(r)->n_feature_start, 1);
    assert_true(gr_drafter_check(r->drafter));
    rig_await_draft(r);
    rig_assert_fresh(r, &c, 63);
    rig_destroy(r);
}

/* Captured states: the head fuses them itself, and drafts what it drafts on fused features. */
static void test_raw_features(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        struct rig_config c = plain;
        c.raw = true;
        c.ahead = ahead != 0;
        struct rig *r = rig_create(&c);
        rig_start(r, 100, 63);
        for (int i = 0; i < 20; i++) {
            (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
            rig_await_draft(r);
            rig_assert_fresh(r, &plain, 63); /* fused */
            rig_run(r, ahead * 4);
        }
        assert_int_equal(counters(r)->n_desync + counters(r)->n_feature_gap, 0);
        struct rig_frame f = r->log[(r->n_log + RIG_N_LOG - 1) % RIG_N_LOG];
        assert_int_equal(f.bytes[GR_WIRE_OFF_TYPE], GR_FRAME_FEATURES);
        f.bytes[GR_WIRE_HEADER_BYTES + 7] = 0; /* fused, says the peer */
        assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, f.bytes, f.len, 0), GR_EPROTO);
        rig_destroy(r);
    }
}

/* What does not fit this head costs the connection; what cannot be, too. */
static void test_bad_features(void **state)
{
    (void)state;
    struct rig *r = rig_create(&plain);
    rig_start(r, 30, 63);
    const struct rig_frame good = r->log[(r->n_log + RIG_N_LOG - 1) % RIG_N_LOG];
    static const struct {
        int at;
        uint8_t value;
        enum gr_status want;
    } bad[] = {
        {GR_WIRE_HEADER_BYTES + 6, 1, GR_EPROTO}, /* f16: as wide, but not what was agreed */
        {GR_WIRE_HEADER_BYTES + 7, 1, GR_EPROTO}, /* raw */
        {GR_WIRE_HEADER_BYTES, 99, GR_EFORMAT},   /* first_pos + n is not base_len */
        {GR_WIRE_HEADER_BYTES + 3, 0xff, GR_EFORMAT},
        {GR_WIRE_OFF_BASE_LEN, 7, GR_EFORMAT},
        {GR_WIRE_OFF_BASE_LEN + 3, 0xff, GR_EFORMAT},
        {GR_WIRE_OFF_HASH, 0x55, GR_OK}, /* other tokens: too late */
        {GR_WIRE_OFF_EPOCH, 77, GR_OK},
    };
    assert_int_equal(good.bytes[GR_WIRE_OFF_TYPE], GR_FRAME_FEATURES);
    const uint64_t n_row = counters(r)->n_feature_row;
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        struct rig_frame f = good;
        assert_true(f.bytes[bad[i].at] != bad[i].value);
        f.bytes[bad[i].at] = bad[i].value;
        assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, f.bytes, f.len, 0), bad[i].want);
    }
    struct rig_frame f = good; /* half the width, twice the rows: as long as a good one */
    f.bytes[GR_WIRE_HEADER_BYTES + 8] = TOY_FEATURE_WIDTH / 2;
    f.bytes[GR_WIRE_HEADER_BYTES + 4] = (uint8_t)(2 * good.bytes[GR_WIRE_HEADER_BYTES + 4]);
    if (f.bytes[GR_WIRE_HEADER_BYTES + 4] <= GR_FEATURES_ROW_MAX) {
        assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, f.bytes, f.len, 0), GR_EPROTO);
    }
    assert_int_equal(counters(r)->n_feature_row, n_row);
    (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
    rig_await_draft(r);
    rig_assert_fresh(r, &plain, 63);
    rig_destroy(r);
}

/* The head's ids are mapped to the target's, and the noise is that of the target's ids: what it ranks first is what the
 * target picks, wherever it knows it. */
static void test_vocabulary_map(void **state)
{
    (void)state;
    for (int hot = 0; hot < 2; hot++) {
        const struct rig_config c = {.seed = 3,
                                     .head = true,
                                     .n_node = 1,
                                     .depth = 1,
                                     .top_k = 1,
                                     .n_vocab_head = 17,
                                     .temperature = hot ? 0.9f : 0.0f};
        struct rig *r = rig_create(&c);
        int n_known = 0;
        int n = 0;
        rig_start(r, 10, 63);
        for (; r->len < 400; n++) {
            const int32_t pick = rig_pick(r, r->token, r->len);
            bool known = false;
            for (int i = 0; i < r->lm->n_vocab; i++) {
                known = known || r->lm->to_target[i] == pick;
            }
            n_known += known;
            assert_int_equal(r->tree.n, 1);
            assert_true((r->tree.token[0] == pick) == known);
            (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
            rig_await_draft(r);
        }
        print_message("# %d of %d picks are in the head's vocabulary of %d\n", n_known, n, r->lm->n_vocab);
        assert_true(n_known > n / 3 && n_known < n);
        rig_destroy(r);
    }
}

/* A head that knows the target's table drafts what the target picks, at every depth: each level has the noise of its
 * own position. */
static void test_noise_at_every_depth(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 3, .head = true, .n_node = 6, .depth = 6, .top_k = 1, .temperature = 0.9f};
    struct rig *r = rig_create(&c);
    rig_start(r, 10, 63);
    while (r->len < 400) {
        assert_int_equal(r->tree.n, 6);
        assert_int_equal(rig_verify(r, &r->tree, r->draft_header.round, -1, 63), 6);
        rig_await_draft(r);
    }
    rig_destroy(r);
}

/* Draft-ahead with certain drafts: a tree that stands in the store goes out without a pass; the committed rows run with
 * true features in the next one. */
static void test_hits_owe_rows(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 3,
                                 .head = true,
                                 .ahead = true,
                                 .auto_tree = true,
                                 .n_node = 4,
                                 .depth = 4,
                                 .top_k = 4,
                                 .sharpness = 400.0f};
    struct rig *r = rig_create(&c);
    rig_start(r, 30, 1);
    rig_send_cost(r, 200, 3000, 5);
    int n_at_once = 0;
    while (r->len < 300) {
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 4);
        const uint64_t n_level = counters(r)->n_level;
        const uint64_t n_row = counters(r)->n_row;
        rig_await_draft(r);
        n_at_once += counters(r)->n_level == n_level && r->tree.n > 0;
        assert_true(counters(r)->n_row >= n_row);
        rig_run(r, 12); /* a level ahead a job: the first takes the rows that are owed along */
    }
    print_message("# %d trees at once, %d hits\n", n_at_once, (int)counters(r)->n_hit);
    assert_true(n_at_once > 10 && counters(r)->n_hit > 10);
    rig_destroy(r);
}

/* A job waits once for what was copied for it, and reads nothing of the host's. */
static void test_job_waits(void **state)
{
    (void)state;
    struct rig *r = rig_create(&plain);
    rig_start(r, 30, 63);
    for (int round = 0; round < 10; round++) {
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        (void)gr_drafter_step(r->drafter, 0);
        if (r->job != NULL) {
            assert_int_equal(r->far.n_copy, 0);
            assert_int_equal(test_far_is(r->job->seq[0].feature), rig_far != RIG_HOST);
        }
        rig_await_draft(r);
        rig_assert_fresh(r, &plain, 63);
    }
    assert_int_equal(r->far.n_wait > 0, rig_far != RIG_HOST);
    rig_destroy(r);
}

static int in_host(void **state)
{
    (void)state;
    rig_far = RIG_HOST;
    return 0;
}

static int in_far(void **state)
{
    (void)state;
    rig_far = RIG_FAR;
    return 0;
}

static int in_far_bodies(void **state)
{
    (void)state;
    rig_far = RIG_FAR_BODIES;
    return 0;
}

int main(void)
{
#define ROW(test)                                                                        \
    cmocka_unit_test_setup(test, in_host), {"far: " #test, test, in_far, in_host, NULL}, \
    {                                                                                    \
        "far bodies: " #test, test, in_far_bodies, in_host, NULL                         \
    }
    const struct CMUnitTest tests[] = {
        ROW(test_late_features),
        ROW(test_stale_features),
        ROW(test_attached_in_the_middle),
        ROW(test_silence_catches_up),
        ROW(test_begins_anew_during_a_job),
        ROW(test_context),
        ROW(test_gap_and_window),
        ROW(test_start_within_what_is_held),
        ROW(test_bad_features),
        ROW(test_raw_features),
        ROW(test_vocabulary_map),
        ROW(test_hits_owe_rows),
        ROW(test_noise_at_every_depth),
        ROW(test_job_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
