/* The drafter's machine against a target made by hand: every tree is the one that a fresh drafter would send for the
 * same prefix, whatever came before it: draft-ahead, overtaken trees, long silences, late verdicts, frames come twice.
 */
#include "tests/sim/drafter_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static void test_ahead_as_fresh(void **state)
{
    (void)state;
    uint64_t n_hit = 0;
    uint64_t n_ahead = 0, n_ahead_told = 0, n_hit_told = 0;
    uint64_t n_stale = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        uint64_t rng = seed;
        const struct rig_config c = {.seed = seed,
                                     .blur = seed % 3 == 0 ? 0 : 3,
                                     .ahead = true,
                                     .twin = seed % 2 == 0,
                                     .temperature = seed % 4 < 2 ? 0.0f : 0.8f,
                                     .n_node = 1 + (int)rig_draw(&rng, 30),
                                     .depth = 1 + (int)rig_draw(&rng, 7),
                                     .top_k = 1 + (int)rig_draw(&rng, 6)};
        struct rig *r = rig_create(&c);
        rig_start(r, 20 + (int)seed, 63);
        int n_want = 63;
        while (r->len < 200) {
            rig_assert_fresh(r, &c, n_want);
            const uint32_t draft_round = r->draft_header.round;
            rig_run(r, (int)rig_draw(&rng, 12));
            if (rig_draw(&rng, 2) == 0) { /* a level ahead is under way when the verdict comes */
                (void)gr_drafter_step(r->drafter, 0);
            }
            n_want = rig_draw(&rng, 3) == 0 ? 1 + (int)rig_draw(&rng, 20) : 63;
            (void)rig_verify(r, &r->tree, draft_round, -1, n_want);
            if (rig_draw(&rng, 4) == 0) { /* the target did not wait: the tree under way is overtaken */
                (void)gr_drafter_step(r->drafter, 0);
                rig_root_only(r, n_want);
            }
            rig_await_draft(r);
            const uint32_t flags = r->draft_header.flags;
            n_ahead_told += (flags & GR_FRAME_DRAFT_AHEAD) != 0;
            n_hit_told += (flags & GR_FRAME_DRAFT_HIT) != 0;
            assert_true((flags & GR_FRAME_DRAFT_HIT) == 0 || (flags & GR_FRAME_DRAFT_AHEAD) != 0);
        }
        const struct gr_drafter_counters *k = gr_drafter_counters(r->drafter);
        assert_int_equal(k->n_desync, 0);
        assert_int_equal(k->n_resync, c.twin ? 2 : 1); /* the first ones */
        gr_drafter_on_msg(r->drafter, &(struct gr_msg){.type = GR_MSG_DETACH, .session = 1}, 0);
        assert_in_range(r->stats.draft_stats.n_hit, 0, k->n_hit);
        assert_in_range(r->stats.draft_stats.n_ahead, 0, k->n_ahead);
        if (!c.twin) {
            assert_true(r->stats.draft_stats.n_hit == k->n_hit && r->stats.draft_stats.n_ahead == k->n_ahead);
        }
        assert_true(k->n_hit <= k->n_ahead);
        n_hit += k->n_hit;
        n_ahead += k->n_ahead;
        n_stale += k->n_stale_tree;
        rig_run(r, 10);
        rig_destroy(r);
    }
    print_message("# %d verdicts met draft-ahead work, %d of them useful hits; %d trees were overtaken\n", (int)n_ahead,
                  (int)n_hit, (int)n_stale);
    assert_true(n_hit > 100 && n_ahead > n_hit && n_stale > 50);
    assert_in_range(n_ahead_told, n_ahead / 4, n_ahead); /* a verdict that was overtaken has no tree that tells */
    assert_in_range(n_hit_told, n_hit / 4, n_hit);
    print_message("# trees told of %d and %d of them\n", (int)n_ahead_told, (int)n_hit_told);
}

/* One level a job; slots and candidates run out, then it rests; nothing is sent. */
static void test_ahead_ends(void **state)
{
    (void)state;
    struct rig *r = rig_create(
        &(struct rig_config){.seed = 1, .ahead = true, .n_node = 12, .depth = 4, .top_k = 5, .sharpness = 12.0f});
    rig_start(r, 30, 63);
    const struct gr_drafter_counters *k = gr_drafter_counters(r->drafter);
    int n_job = 0;
    const int n_draft = r->n_frame[GR_FRAME_DRAFT];
    for (uint64_t n = k->n_ahead_level; rig_job_once(r); n = k->n_ahead_level) {
        assert_in_range(k->n_ahead_level, n, n + 1);
        n_job++;
        assert_true(n_job < 300);
    }
    print_message("# rests after %d levels\n", n_job);
    assert_true(n_job > 10);
    assert_int_equal(r->n_frame[GR_FRAME_DRAFT], n_draft);
    assert_false(rig_job_once(r));
    rig_destroy(r);
}

/* K = 0: verdicts that want no tree start no job and send nothing; then one pass brings the KV up to date. */
static void test_silence_costs_nothing(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        const struct rig_config c = {.seed = 4, .blur = 3, .ahead = ahead, .n_node = 9, .depth = 4, .top_k = 3};
        struct rig *r = rig_create(&c);
        const struct gr_drafter_counters *k = gr_drafter_counters(r->drafter);
        rig_start(r, 60, 0);
        rig_run(r, 100);                               /* the prompt of an attached session is prefilled */
        const uint64_t n_prompt = rig_heads ? 59 : 60; /* a head has no row for the first token */
        assert_int_equal(k->n_row, n_prompt);
        assert_int_equal(k->n_draft_frame, 0);
        rig_root_only(r, 63);
        rig_await_draft(r);
        assert_int_equal(k->n_row, n_prompt + 1);
        rig_assert_fresh(r, &c, 63);
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 0);
        rig_run(r, ahead ? 100 : 0);
        const uint64_t n_job = k->n_job;
        const uint64_t n_draft = k->n_draft_frame;
        for (int i = 0; i < 20; i++) {
            rig_root_only(r, 0);
            rig_run(r, 100);
        }
        assert_int_equal(k->n_job, n_job);
        assert_int_equal(k->n_draft_frame, n_draft);
        /* the target commits in silence, then asks */
        const int32_t common = r->len;
        for (int i = 0; i < 5; i++) {
            rig_commit(r, rig_pick(r, r->token, r->len));
        }
        r->round += 5;
        rig_send_delta(r, common, RIG_WANT(7));
        rig_await_draft(r);
        assert_int_equal(k->n_job, n_job + 1);
        rig_assert_fresh(r, &c, 7);
        /* a roll-back into what the drafter holds */
        rig_run(r, 3);
        r->len -= 12;
        rig_commit(r, 1);
        r->round++;
        rig_send_delta(r, r->len - 1, RIG_WANT(63));
        rig_await_draft(r);
        rig_assert_fresh(r, &c, 63);
        assert_int_equal(k->n_desync, 0);
        rig_destroy(r);
    }
}

static void test_never_more_than_wanted(void **state)
{
    (void)state;
    for (int chain = 0; chain < 2; chain++) {
        const struct rig_config c = {
            .seed = 6, .blur = 4, .ahead = true, .n_node = 40, .depth = chain ? 40 : 6, .top_k = chain ? 1 : 8};
        struct rig *r = rig_create(&c);
        rig_start(r, 25, 63);
        for (int n_want = 63; n_want > 0 && r->len<400; n_want -= n_want> 8 ? 5 : 1) {
            const struct gr_token_tree t = r->tree;
            (void)rig_verify(r, &t, r->draft_header.round, -1, n_want);
            if (n_want % 2 == 0) { /* asked again for fewer while the tree grows */
                (void)gr_drafter_step(r->drafter, 0);
                rig_root_only(r, 1);
                rig_await_draft(r);
                assert_int_equal(r->tree.n, 1);
                (void)rig_verify(r, &r->tree, r->draft_header.round, -1, n_want);
            }
            rig_await_draft(r);
            assert_int_equal(r->tree.n, GR_MIN(n_want, 40));
            rig_assert_fresh(r, &c, n_want);
            rig_run(r, 2);
        }
        rig_destroy(r);
    }
}

/* The target re-roots an older tree: root-only rounds, or tokens of a DELTA, that are a path in it. */
static void test_late_verdicts(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 2, .n_node = 20, .depth = 8, .top_k = 3, .ahead = true};
    for (int how = 0; how < 4; how++) {
        struct rig *r = rig_create(&c);
        const struct gr_drafter_counters *k = gr_drafter_counters(r->drafter);
        rig_start(r, 30, 63);
        const struct gr_token_tree old = r->tree;
        const uint32_t old_round = r->draft_header.round;
        int root = -1;
        const int n_step = how == 3 ? 1 : 2;
        for (int i = 0; i < n_step; i++) { /* the perfect drafter's tree holds what the target picks */
            const int32_t token = rig_pick(r, r->token, r->len);
            root = gr_tree_child(&old, root, token);
            assert_true(root >= 0);
            if (how == 1) {
                rig_commit(r, token);
                r->round++;
                rig_send_delta(r, r->len - 1, GR_DELTA_LAST);
            } else {
                rig_root_only(r, how == 0 ? 0 : 63);
            }
        }
        if (how >= 2) { /* its newer DRAFT crosses the pass of the old tree */
            rig_await_draft(r);
        }
        if (how == 3) { /* nodes that are not below the path: nonsense */
            struct gr_verdict v = {.draft_round = old_round, .keep_len = (uint32_t)r->len, .n_want = 63, .n_path = 1};
            while (old.parent[v.node[0]] != -1 || v.node[0] == root) {
                v.node[0]++;
            }
            const uint32_t base_len = (uint32_t)r->len;
            rig_commit(r, old.token[v.node[0]]);
            rig_commit(r, 3);
            v.bonus = 3;
            const int n = r->n_frame[GR_FRAME_RESYNC];
            rig_send_verdict(r, &v, base_len);
            assert_int_equal(r->n_frame[GR_FRAME_RESYNC], n + 1);
            assert_int_equal(r->resync.my_len, base_len); /* as it stood */
            rig_destroy(r);
            continue;
        }
        const int n_path = rig_verify(r, &old, old_round, root, 63);
        assert_true(n_path > 0);
        assert_int_equal(k->n_late_verdict, 1);
        rig_await_draft(r);
        rig_assert_fresh(r, &c, 63);
        /* and the next one is about the newest tree */
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        rig_await_draft(r);
        rig_assert_fresh(r, &c, 63);
        assert_int_equal(k->n_desync, 0);
        rig_destroy(r);
    }
}

/* A drafter that is always overtaken still answers, for the round that is over: the target re-roots its trees. */
static void test_slow_drafter(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 2, .n_node = 20, .depth = 8, .top_k = 3};
    struct rig *r = rig_create(&c);
    const struct gr_drafter_counters *k = gr_drafter_counters(r->drafter);
    rig_start(r, 30, 63);
    rig_root_only(r, 63);
    uint64_t n_path = 0;
    for (int round = 0; round < 25; round++) {
        (void)gr_drafter_step(r->drafter, 0); /* the draft begins; the target does not wait */
        const uint32_t asked = r->round;
        rig_root_only(r, 63);
        (void)rig_job_once(r);
        assert_int_equal(r->n_late, round + 1);
        assert_int_equal(r->late_header.round, asked);
        assert_int_equal(r->late_header.base_len, r->len - 1);
        const struct gr_token_tree late = r->late_tree;
        const int root = gr_tree_child(&late, -1, r->token[r->len - 1]);
        assert_true(root >= 0); /* the drafter knows the target's table */
        n_path += (uint64_t)rig_verify(r, &late, asked, root, 63);
    }
    assert_int_equal(k->n_late_draft, 25);
    assert_int_equal(k->n_late_verdict, 25);
    assert_true(n_path > 50);
    assert_int_equal(k->n_desync, 0);
    rig_await_draft(r);
    rig_assert_fresh(r, &c, 63);
    rig_destroy(r);
}

/* Every frame comes twice, and old ones again later: nothing is sent, no job starts, no tree changes. */
static void test_replays(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 8, .blur = 3, .n_node = 12, .depth = 5, .top_k = 3};
    struct rig *r = rig_create(&c);
    const struct gr_drafter_counters *k = gr_drafter_counters(r->drafter);
    rig_start(r, 40, 63);
    for (int round = 0; round < 30; round++) {
        if (round % 7 == 3) { /* a DELTA of several tokens */
            const int32_t common = r->len;
            rig_commit(r, rig_pick(r, r->token, r->len));
            rig_commit(r, rig_pick(r, r->token, r->len));
            r->round += 2;
            rig_send_delta(r, common, RIG_WANT(63));
        } else if (round % 7 == 5) { /* a desync that the target sees: RESYNC, DELTA */
            const struct gr_frame_header h = r->draft_header;
            rig_deliver(r, gr_wire_encode_desync(&h, GR_DESYNC_HASH, (uint32_t)r->len, r->log[r->n_log].bytes,
                                                 sizeof(r->log[0].bytes)));
            rig_commit(r, rig_pick(r, r->token, r->len));
            r->round++;
            rig_send_delta(r, r->len - 4, RIG_WANT(63));
        } else {
            (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        }
        for (int at = 0; at < 2; at++) { /* while the tree is owed, and when it has been sent */
            const int n_resync = r->n_frame[GR_FRAME_RESYNC];
            const int n_draft = r->n_frame[GR_FRAME_DRAFT];
            for (int i = 0; i < RIG_N_LOG; i++) {
                if (r->log[i].len > 0) {
                    assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, r->log[i].bytes, r->log[i].len, 0),
                                     GR_OK);
                }
            }
            assert_int_equal(r->n_frame[GR_FRAME_RESYNC], n_resync);
            assert_int_equal(r->n_frame[GR_FRAME_DRAFT], n_draft);
            if (at == 0) {
                rig_await_draft(r);
                rig_assert_fresh(r, &c, 63);
            }
        }
        assert_false(rig_job_once(r));
    }
    assert_true(k->n_stale_frame > 1000);
    /* another epoch, another peer */
    struct gr_frame_header h = {
        .session = 1, .epoch = RIG_EPOCH - 1, .round = r->round, .base_len = (uint32_t)r->len, .prefix_hash = 1};
    uint8_t f[256];
    const size_t n =
        gr_wire_encode_verdict(&h, &(struct gr_verdict){.keep_len = (uint32_t)r->len, .n_want = 9}, f, sizeof(f));
    assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, f, n, 0), GR_OK);
    assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER + 1, f, n, 0), GR_OK);
    assert_false(rig_job_once(r));
    rig_destroy(r);
}

/* ---- everything at once ---- */

struct life {
    struct rig *r;
    const struct rig_config *c;
    uint64_t rng;
    int n_want, n_draft;       /* asked last; DRAFTs seen */
    struct gr_token_tree tree; /* the newest, and where it hangs */
    uint32_t tree_round;
    int32_t tree_len;
    int n_checked, n_late, n_resync;
};

/* What was sent since the last look is what a fresh drafter sends. */
static void look(struct life *l)
{
    struct rig *r = l->r;
    assert_int_equal(r->n_frame[GR_FRAME_RESYNC], l->n_resync); /* none but those that were provoked */
    assert_in_range(r->n_frame[GR_FRAME_DRAFT] - l->n_draft, 0, 1);
    if (r->n_frame[GR_FRAME_DRAFT] == l->n_draft) {
        return;
    }
    l->n_draft++;
    assert_true(l->n_want > 0);
    assert_int_equal(r->draft_header.base_len, r->len);
    assert_int_equal(r->draft_header.round, r->round);
    rig_assert_fresh(r, l->c, l->n_want);
    l->tree = r->tree;
    l->tree_round = r->draft_header.round;
    l->tree_len = r->len;
    l->n_checked++;
}

static int draw_want(struct life *l)
{
    l->n_want = rig_draw(&l->rng, 4) == 0 ? 0 : rig_draw(&l->rng, 3) == 0 ? 1 + (int)rig_draw(&l->rng, 62) : 63;
    return l->n_want;
}

/* A pass with the newest tree when the tokens since then are a path in it, else without. */
static void life_verdict(struct life *l)
{
    struct rig *r = l->r;
    int root = -1;
    for (int32_t p = l->tree_len; p < r->len && root > -2; p++) {
        root = gr_tree_child(&l->tree, root, r->token[p]);
        root = root < 0 ? -2 : root;
    }
    if (root == -2 || rig_draw(&l->rng, 4) == 0) {
        rig_root_only(r, draw_want(l));
        return;
    }
    l->n_late += root >= 0;
    (void)rig_verify(r, &l->tree, l->tree_round, root, draw_want(l));
    l->tree.n = 0;
}

static void life_delta(struct life *l)
{
    struct rig *r = l->r;
    const int32_t back = rig_draw(&l->rng, 3) == 0 ? (int32_t)rig_draw(&l->rng, 20) : 0;
    const int32_t common = GR_MAX(r->len - back, 1);
    r->len = common;
    l->tree.n = common < l->tree_len ? 0 : l->tree.n; /* the fence: a rolled-back base's tree is not verified */
    for (uint64_t n = 1 + rig_draw(&l->rng, 5); n > 0; n--) {
        rig_commit(r, rig_draw(&l->rng, 8) == 0 ? 1 : rig_pick(r, r->token, r->len));
    }
    r->round++;
    const int n_want = draw_want(l);
    rig_send_delta(r, common, n_want > 0 ? RIG_WANT(n_want) : GR_DELTA_LAST);
}

static void life_repair(struct life *l, bool attach)
{
    struct rig *r = l->r;
    const int n_resync = r->n_frame[GR_FRAME_RESYNC];
    if (attach) {
        rig_attach(r);
    } else {
        const struct gr_frame_header h = r->draft_header;
        rig_deliver(r, gr_wire_encode_desync(&h, GR_DESYNC_HASH, (uint32_t)r->len, r->log[r->n_log].bytes,
                                             sizeof(r->log[0].bytes)));
    }
    if (r->n_frame[GR_FRAME_RESYNC] == n_resync) {
        return; /* about a DRAFT that is not the last one any more */
    }
    l->n_resync++;
    assert_int_equal(r->resync.my_len, r->len);
    assert_true(r->resync.hash[0] == r->hash[r->len]);
    l->tree.n = 0;
    r->round++;
    l->n_want = 63;
    rig_send_delta(r, r->len, RIG_WANT(63));
}

static void life_step(struct life *l)
{
    struct rig *r = l->r;
    switch (rig_draw(&l->rng, 12)) {
    case 0:
    case 1:
        (void)gr_drafter_step(r->drafter, 0); /* a job is under way */
        break;
    case 2:
        life_delta(l);
        break;
    case 3:
        if (rig_draw(&l->rng, 4) == 0) {
            life_repair(l, rig_draw(&l->rng, 2) == 0);
        }
        break;
    case 4: {
        const struct rig_frame *f = &r->log[rig_draw(&l->rng, RIG_N_LOG)];
        if (f->len > 0) {
            assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, f->bytes, f->len, 0), GR_OK);
        }
        break;
    }
    case 5:
    case 6:
    case 7:
        life_verdict(l);
        break;
    default:
        (void)rig_job_once(r);
        break;
    }
    look(l);
}

static void test_any_order(void **state)
{
    (void)state;
    int n_checked = 0;
    int n_late = 0;
    for (uint64_t seed = 1; seed <= 36; seed++) {
        uint64_t rng = seed;
        const struct rig_config c = {.seed = seed,
                                     .blur = (int)rig_draw(&rng, 5),
                                     .ahead = seed % 4 != 0,
                                     .n_node = 1 + (int)rig_draw(&rng, 40),
                                     .depth = 1 + (int)rig_draw(&rng, 8),
                                     .top_k = 1 + (int)rig_draw(&rng, 8),
                                     .sharpness = seed % 2 == 0 ? 8.0f : 30.0f,
                                     .temperature = seed % 5 == 0 ? 0.7f : 0.0f};
        struct life l = {.r = rig_create(&c), .c = &c, .rng = seed, .n_want = 63, .n_resync = 1};
        rig_start(l.r, 10 + (int)seed, 63);
        look(&l);
        while (l.r->len < 480) {
            life_step(&l);
        }
        n_checked += l.n_checked;
        n_late += l.n_late;
        rig_run(l.r, 300);
        rig_destroy(l.r);
    }
    print_message("# %d trees as fresh; %d late verdicts\n", n_checked, n_late);
    assert_true(n_checked > 1500 && n_late > 100);
}

/* ---- repair ---- */

static void test_flip_is_repaired(void **state)
{
    (void)state;
    const struct rig_config c = {
        .seed = 5, .blur = 3, .ahead = true, .n_node = 9, .depth = 4, .top_k = 3, .flip_round = 4};
    struct rig *r = rig_create(&c);
    rig_start(r, 30, 63);
    while (r->round < 4) {
        rig_run(r, 2);
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        if (r->round < 4) {
            rig_await_draft(r);
        }
    }
    (void)rig_job_once(r);
    assert_int_equal(r->draft_header.round, 4);
    assert_int_equal(r->draft_header.base_len, r->len);
    assert_true(r->draft_header.prefix_hash != r->hash[r->len]); /* an equal length, other tokens */
    const struct gr_frame_header h = r->draft_header;
    rig_deliver(r, gr_wire_encode_desync(&h, GR_DESYNC_HASH, (uint32_t)r->len, r->log[r->n_log].bytes,
                                         sizeof(r->log[0].bytes)));
    assert_int_equal(r->n_frame[GR_FRAME_RESYNC], 2);
    int32_t common = 0;
    uint32_t lengths[GR_RESYNC_HASH_MAX];
    const int n = gr_resync_lengths(r->resync.my_len, lengths);
    assert_int_equal(n, r->resync.n_hash);
    for (int i = n - 1; i >= 0; i--) {
        common = r->resync.hash[i] == r->hash[lengths[i]] ? (int32_t)lengths[i] : common;
    }
    assert_true(common > 0 && common <= r->len / 2);
    rig_send_delta(r, common, RIG_WANT(63));
    rig_await_draft(r); /* the same round again: no second flip */
    rig_assert_fresh(r, &c, 63);
    assert_int_equal(gr_drafter_counters(r->drafter)->n_desync, 1);
    assert_int_equal(r->trouble.draft_trouble.n_desync, 0); /* the target has counted it */
    struct gr_verdict v = {.draft_round = GR_WIRE_ROOT_ONLY, .keep_len = (uint32_t)r->len + 3};
    rig_send_verdict(r, &v, (uint32_t)r->len + 3); /* and this one it cannot know of */
    (void)rig_job_once(r);
    assert_int_equal(gr_drafter_counters(r->drafter)->n_desync, 2);
    assert_int_equal(r->trouble.draft_trouble.n_desync, 1);
    rig_destroy(r);
}

/* A target that does not know the session will not serve it: the orchestrator is told, who knows what is so. */
static void test_unknown_to_the_target(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 7, .n_node = 9, .depth = 4, .top_k = 3};
    struct rig *r = rig_create(&c);
    rig_start(r, 30, 63);
    (void)rig_job_once(r);
    struct gr_frame_header h = r->draft_header;
    r->n_error_expected = 1;
    rig_deliver(
        r, gr_wire_encode_desync(&h, GR_DESYNC_UNKNOWN_SESSION, 0, r->log[r->n_log].bytes, sizeof(r->log[0].bytes)));
    assert_int_equal(r->n_error, 1);
    assert_int_equal(gr_drafter_n_session(r->drafter), 0);
    rig_destroy(r);
}

/* Attached anew while it is followed: tokens and KV that stand are kept, also when a job is under way. */
static void test_attached_anew(void **state)
{
    (void)state;
    for (int busy = 0; busy < 2; busy++) {
        const struct rig_config c = {.seed = 5, .blur = 3, .ahead = true, .n_node = 9, .depth = 4, .top_k = 3};
        struct rig *r = rig_create(&c);
        const struct gr_drafter_counters *k = gr_drafter_counters(r->drafter);
        rig_start(r, 100, 63);
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
        if (busy) {
            (void)gr_drafter_step(r->drafter, 0);
        } else {
            rig_await_draft(r);
        }
        rig_attach(r);
        assert_int_equal(r->resync.my_len, r->len);
        assert_true(r->resync.hash[0] == r->hash[r->len]);
        const uint64_t n_row = k->n_row;
        rig_commit(r, 5);
        r->round++;
        rig_send_delta(r, r->len - 1, RIG_WANT(63));
        rig_await_draft(r);
        assert_in_range(k->n_row - n_row, 1, busy ? 12 : 2);
        rig_assert_fresh(r, &c, 63);
        assert_int_equal(gr_drafter_n_session(r->drafter), 1);
        rig_destroy(r);
    }
}

static void tell(struct rig *r, enum gr_msg_type type, uint64_t session)
{
    struct gr_msg m = r->attach;
    m.type = type, m.session = session;
    gr_drafter_on_msg(r->drafter, &m, 0);
}

/* A session that is gone keeps its slot as long as a job works on it: who comes instead waits for that job, and only
 * for that. */
static void test_slot_in_a_job(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 5, .blur = 3, .ahead = true, .n_node = 9, .depth = 4, .top_k = 3};
    struct rig *r = rig_create(&c);
    rig_start(r, 100, 63);
    tell(r, GR_MSG_ATTACH, 2); /* both slots are taken */
    gr_drafter_on_peer_ready(r->drafter, RIG_PEER, "rig", 0);
    (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
    (void)gr_drafter_step(r->drafter, 0);
    assert_non_null(r->job);
    tell(r, GR_MSG_DETACH, 1);
    assert_int_equal(r->stats.session, 1);
    tell(r, GR_MSG_ATTACH, 3);
    r->n_error_expected = 1;
    tell(r, GR_MSG_ATTACH, 4); /* for which there will be none */
    assert_int_equal(r->n_error, 1);
    tell(r, GR_MSG_DETACH, 3); /* gone before it came */
    assert_int_equal(r->stats.session, 3);
    tell(r, GR_MSG_ATTACH, 5);
    tell(r, GR_MSG_ATTACH, 5); /* again: it waits once */
    (void)rig_job_once(r);
    r->n_error_expected = 2;
    tell(r, GR_MSG_ATTACH, 6); /* before the drafter's next step: it does not go before the one that waits */
    assert_int_equal(r->n_error, 2);
    (void)gr_drafter_step(r->drafter, 0);
    assert_int_equal(gr_drafter_n_session(r->drafter), 2);
    gr_drafter_on_peer_ready(r->drafter, RIG_PEER, "rig", 0);
    assert_int_equal(r->attached, 5);
    tell(r, GR_MSG_DETACH, 2);
    tell(r, GR_MSG_DETACH, 5);
    assert_int_equal(r->stats.session, 5);
    assert_int_equal(gr_drafter_n_session(r->drafter), 0);
    rig_destroy(r);
}

/* A drafter that is to end sends elsewhere who waits for a slot and who comes; who is attached stays. */
static void test_one_that_drains_sends_elsewhere(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 5, .blur = 3, .ahead = true, .n_node = 9, .depth = 4, .top_k = 3};
    struct rig *r = rig_create(&c);
    rig_start(r, 100, 63);
    tell(r, GR_MSG_ATTACH, 2);
    gr_drafter_on_peer_ready(r->drafter, RIG_PEER, "rig", 0);
    (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
    (void)gr_drafter_step(r->drafter, 0);
    assert_non_null(r->job);
    tell(r, GR_MSG_DETACH, 1);
    tell(r, GR_MSG_ATTACH, 3); /* it waits for the job */
    r->n_error_expected = 2;
    gr_drafter_drain(r->drafter);
    assert_int_equal(r->n_error, 1);
    assert_int_equal(r->error_code, (uint32_t)-GR_EDRAINING);
    tell(r, GR_MSG_ATTACH, 4);
    assert_int_equal(r->n_error, 2);
    assert_int_equal(r->error_code, (uint32_t)-GR_EDRAINING);
    (void)rig_job_once(r);
    (void)gr_drafter_step(r->drafter, 0);
    assert_int_equal(gr_drafter_n_session(r->drafter), 1);
    assert_int_equal(gr_drafter_counters(r->drafter)->n_sent_elsewhere, 2);
    tell(r, GR_MSG_DETACH, 4);
    assert_int_equal(r->stats.session, 4); /* what was sent elsewhere is answered as well */
    tell(r, GR_MSG_DETACH, 2);
    assert_int_equal(gr_drafter_n_session(r->drafter), 0);
    rig_destroy(r);
}

/* ---- sessions of one pass ---- */

/* What session 1 was sent, for session 2. */
static void tell_twin(struct rig *r, int i_log)
{
    struct rig_frame copy = r->log[i_log];
    copy.bytes[6] &= (uint8_t)~GR_FRAME_MORE;
    copy.bytes[8] = 2;
    assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, copy.bytes, copy.len, r->now_ns), GR_OK);
}

/* They are told one after the other: no job begins with the first alone, and none waits long for one that does not
 * come. */
static void test_sessions_of_a_pass(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 5, .blur = 3, .twin = true, .n_node = 6, .depth = 3, .top_k = 3};
    struct rig *r = rig_create(&c);
    rig_start(r, 40, 6);
    for (int i = 0; i < 11; i++) {
        const int first = r->n_log;
        r->now_ns += 5000000; /* a pass */
        r->more = true;
        r->twin = false;
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 6);
        r->more = false;
        r->twin = true;
        const uint64_t wake_ns = gr_drafter_step(r->drafter, r->now_ns);
        assert_null(r->job);
        assert_true(wake_ns > r->now_ns && wake_ns <= r->now_ns + 200000);
        const bool comes = i < 9;
        const int end = r->n_log;
        r->now_ns = comes ? r->now_ns + 20000 : wake_ns;
        for (int k = first; comes && k != end; k = (k + 1) % RIG_N_LOG) {
            for (int pause = 0; pause < (k != first ? 3 : 0); pause++) { /* a head: its features, and others' before */
                const struct rig_frame *again = &r->log[k];
                r->now_ns += 70000;
                assert_int_equal(gr_drafter_on_frame(r->drafter, RIG_PEER, again->bytes, again->len, r->now_ns), GR_OK);
                (void)gr_drafter_step(r->drafter, r->now_ns);
                assert_null(r->job);
            }
            tell_twin(r, k);
            (void)gr_drafter_step(r->drafter, r->now_ns);
        }
        (void)gr_drafter_step(r->drafter, r->now_ns);
        assert_non_null(r->job);
        assert_int_equal(r->job->n_seq, comes ? 2 : 1);
        const int n = r->n_frame[GR_FRAME_DRAFT];
        const int n_twin = r->n_twin_draft;
        (void)rig_job_once(r);
        assert_int_equal(r->n_frame[GR_FRAME_DRAFT], n + 1);
        assert_int_equal(r->n_twin_draft, n_twin + comes);
    }
    rig_destroy(r);
}

/* Sessions of two targets: one job has both, each target gets its own session's tree, which is the one that it would
 * get from a drafter of its own; a target that goes takes nothing along. */
static void test_two_targets_in_one_job(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        const struct rig_config c = {.seed = seed,
                                     .blur = 3,
                                     .twin = true,
                                     .two_peers = true,
                                     .temperature = seed % 2 == 0 ? 0.0f : 0.8f,
                                     .n_node = 14,
                                     .depth = 4,
                                     .top_k = 4};
        struct rig *r = rig_create(&c);
        rig_start(r, 40, 63);
        for (int i = 0; i < 20; i++) {
            rig_assert_fresh(r, &c, 63); /* and the twin's is the same: rig_await_draft() */
            (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
            (void)gr_drafter_step(r->drafter, r->now_ns);
            assert_non_null(r->job);
            assert_int_equal(r->job->n_seq, 2);
            rig_await_draft(r);
        }
        r->n_error_expected = 1;
        gr_drafter_on_peer_lost(r->drafter, r->twin_peer, GR_ECLOSED, "killed");
        r->twin = false;
        for (int i = 0; i < 5; i++) {
            (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 63);
            rig_await_draft(r);
            rig_assert_fresh(r, &c, 63);
        }
        assert_int_equal(gr_drafter_counters(r->drafter)->n_desync, 0);
        rig_destroy(r);
    }
}

/* Trees at temperatures that are greedy are those at 0; others are refused before they do anything. */
static void test_temperatures(void **state)
{
    (void)state;
    static const float greedy[] = {1e-45f, 1e-38f, 7e-38f, 1e-6f, 9.9e-6f};
    const struct rig_config cold = {.seed = 5, .n_node = 12, .depth = 4, .top_k = 4};
    struct rig *want = rig_create(&cold);
    rig_start(want, 40, 63);
    for (size_t i = 0; i < GR_ARRAY_LEN(greedy); i++) {
        struct rig_config c = cold;
        c.temperature = greedy[i];
        struct rig *r = rig_create(&c);
        rig_start(r, 40, 63);
        assert_int_equal(r->tree.n, want->tree.n);
        assert_memory_equal(r->tree.token, want->tree.token, (size_t)want->tree.n * sizeof(want->tree.token[0]));
        rig_destroy(r);
    }
    rig_destroy(want);
    static const float bad[] = {NAN, INFINITY, -INFINITY, -1e-6f, -1.0f, 100.5f};
    struct rig *r = rig_create(&cold);
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        r->n_error_expected = (int)i + 1;
        r->attach.attach.wishes.sampling.temperature = bad[i];
        gr_drafter_on_msg(r->drafter, &r->attach, 0);
        assert_int_equal(r->n_error, i + 1);
        assert_int_equal(gr_drafter_n_session(r->drafter), 0);
    }
    rig_destroy(r);
}

/* With the argument `head` the draft model is a head, which checks every feature that it is given. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_to_the_target),
        cmocka_unit_test(test_ahead_as_fresh),
        cmocka_unit_test(test_ahead_ends),
        cmocka_unit_test(test_silence_costs_nothing),
        cmocka_unit_test(test_never_more_than_wanted),
        cmocka_unit_test(test_late_verdicts),
        cmocka_unit_test(test_slow_drafter),
        cmocka_unit_test(test_replays),
        cmocka_unit_test(test_sessions_of_a_pass),
        cmocka_unit_test(test_two_targets_in_one_job),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_flip_is_repaired),
        cmocka_unit_test(test_attached_anew),
        cmocka_unit_test(test_slot_in_a_job),
        cmocka_unit_test(test_one_that_drains_sends_elsewhere),
        cmocka_unit_test(test_temperatures),
    };
    rig_heads = argc > 1 && strcmp(argv[1], "head") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
