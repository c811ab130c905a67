/* The pair on the simulation when something is wrong: refused requests, a drafter too small for its sessions, hostile
 * and replayed frames. */
#include "tests/sim/pair_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- refusals ---- */

static void test_bad_requests(void **state)
{
    (void)state;
    static int32_t long_prompt[1024], bad_id[3][4] = {{1, 2, -1, 3}, {1, 2, PAIR_N_VOCAB, 3}, {INT32_MAX, 0, 0, 0}};
    struct gr_session_request r[12];
    int n = 0;
    r[n++] = pair_request(0, 30, 80); /* a good one, which the others must not disturb */
    r[n] = pair_request(1, 0, 10);    /* empty */
    n++;
    r[n] = pair_request(1, 600, 10); /* longer than the context */
    r[n++].prompt = long_prompt;
    r[n] = pair_request(1, 512, 10); /* fills the context: no room for one token */
    r[n++].prompt = long_prompt;
    for (int i = 0; i < 3; i++) {
        r[n] = pair_request(1, 4, 10);
        r[n++].prompt = bad_id[i];
    }
    r[n] = pair_request(1, 4, 0); /* no tokens wanted */
    n++;
    r[n] = pair_request(1, 4, 10);
    r[n++].wishes.sampling.temperature = -0.5f;
    r[n] = pair_request(1, 4, 10);
    r[n++].wishes.sampling.top_p = 0.0f;
    r[n] = pair_request(1, 4, 10);
    r[n++].wishes.sampling.min_p = 1.5f;
    const struct pair_config c = {.seed = 8, .n_session = 12, .drafter = PAIR_BLURRED};
    struct pair p = pair_create(&c);
    pair_submit(&p, r, n);
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
    struct pair plain = pair_plain_run(&c, r, 1);
    pair_assert_same(plain.sim, p.sim, 0);
    assert_int_equal(sim_n_error(p.sim), n - 1); /* one line each */
    for (int i = 1; i < n; i++) {
        assert_int_equal(sim_result(p.sim, i)->finish, GR_FINISH_ERROR);
        assert_int_equal(sim_result(p.sim, i)->n_token, 0);
        assert_true(strlen(sim_result(p.sim, i)->text) > 10);
    }
    assert_non_null(strstr(sim_result(p.sim, 1)->text, "empty"));
    assert_non_null(strstr(sim_result(p.sim, 2)->text, "600"));
    assert_non_null(strstr(sim_result(p.sim, 5)->text, "24")); /* the id, and what is allowed */
    assert_int_equal(gr_target_n_session(sim_target(p.sim)), 0);
    /* the target lives: another session */
    struct gr_session_request after = pair_request(2, 10, 20);
    const int i = sim_submit(p.sim, &after);
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
    assert_int_equal(sim_result(p.sim, i)->finish, GR_FINISH_LENGTH);
    assert_int_equal(sim_result(p.sim, i)->n_token, 20);
    pair_destroy(&plain);
    pair_destroy(&p);
}

static void test_more_sessions_than_slots(void **state)
{
    (void)state;
    struct gr_session_request r[8];
    for (int i = 0; i < 8; i++) {
        r[i] = pair_request(i, 10 + (uint32_t)i, 60);
    }
    const struct pair_config c = {.seed = 9, .n_session = 3, .drafter = PAIR_BLURRED};
    struct pair p = pair_create(&c);
    pair_submit(&p, r, 8);
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
    struct pair plain = pair_plain_run(&c, r, 8);
    for (int i = 0; i < 8; i++) {
        if (i < 3) {
            pair_assert_same(plain.sim, p.sim, i);
        } else {
            assert_int_equal(sim_result(p.sim, i)->finish, GR_FINISH_ERROR);
            assert_non_null(strstr(sim_result(p.sim, i)->text, "slots"));
        }
    }
    assert_int_equal(sim_n_error(p.sim), 5);
    pair_destroy(&plain);
    pair_destroy(&p);
}

/* ---- a small drafter ---- */

/* The drafter's own pool or context is smaller than the target's: less speculation, same text. */
static void test_small_drafter(void **state)
{
    (void)state;
    struct gr_session_request r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = pair_request(i, i == 0 ? 90 : 20, i == 1 ? 90 : 30);
    }
    struct pair_config c = {.seed = 14, .n_session = 4, .drafter = PAIR_PERFECT, .n_pool_block_draft = 10};
    struct pair p = pair_create(&c);
    pair_submit(&p, r, 4);
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
    struct pair plain = pair_plain_run(&c, r, 4);
    for (int i = 0; i < 4; i++) {
        pair_assert_same(plain.sim, p.sim, i);
    }
    pair_destroy(&p);
    c.n_pool_block_draft = 0;
    c.n_ctx_draft = 64; /* session 0's prompt does not fit, session 1 outgrows it */
    p = pair_create(&c);
    pair_submit(&p, r, 4);
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS)); /* nor is the connection lost by it: the others keep their drafts */
    for (int i = 0; i < 4; i++) {
        pair_assert_same(plain.sim, p.sim, i);
    }
    assert_true(sim_result(p.sim, 2)->metrics.num_drafts >= 4);
    assert_true(sim_result(p.sim, 3)->metrics.num_drafts >= 4);
    pair_destroy(&p);
    pair_destroy(&plain);
}

/* ---- hostile frames ---- */

#define N_KEPT 400

struct hostile {
    uint64_t rng;
    struct kept_frame {
        bool to_target;
        size_t len;
        uint8_t bytes[GR_WIRE_SMALL_BYTES_MAX];
    } kept[N_KEPT];
    int n_kept, n_injected, one_in;
};

static void keep_frame(struct hostile *h, bool to_target, const uint8_t *bytes, size_t len)
{
    struct kept_frame *k = &h->kept[h->n_kept % N_KEPT];
    h->n_kept++;
    k->to_target = to_target;
    k->len = len;
    memcpy(k->bytes, bytes, len);
}

static enum gr_status give(struct sim *s, bool to_target, const uint8_t *bytes, size_t len)
{
    return to_target ? gr_target_on_frame(sim_target(s), 0, bytes, len, sim_now_ns(s))
                     : gr_drafter_on_frame(sim_drafter(s), 0, bytes, len, sim_now_ns(s));
}

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

/* Spoils a good frame in one of the ways that its type must refuse; returns the new length. */
static size_t spoil(uint8_t *f, size_t len, uint64_t *rng)
{
    uint8_t *payload = f + GR_WIRE_HEADER_BYTES;
    switch (pair_draw(rng, 5)) {
    case 0:
        f[pair_draw(rng, 5)] ^= (uint8_t)(1 + pair_draw(rng, 255)); /* magic, version */
        return len;
    case 1:
        return (size_t)pair_draw(rng, len); /* cut */
    case 2:
        put32(f + GR_WIRE_OFF_PAYLOAD_LEN, (uint32_t)(len - GR_WIRE_HEADER_BYTES + 1 + pair_draw(rng, 1000)));
        return len;
    case 3:
        f[GR_WIRE_OFF_TYPE] = (uint8_t)(9 + pair_draw(rng, 247));
        return len;
    default:
        break;
    }
    switch (f[GR_WIRE_OFF_TYPE]) {
    case GR_FRAME_DRAFT: {
        const uint32_t n = (uint32_t)((len - 44) / 6);
        if (n == 0) {
            payload[0] = 64;
        } else if (pair_draw(rng, 2) == 0) {
            put32(payload + 4 + 4 * pair_draw(rng, n), PAIR_N_VOCAB + (uint32_t)pair_draw(rng, 1 << 30)); /* no token */
        } else {
            payload[4 + 4 * n] = 0; /* node 0 is its own parent: a cycle */
            payload[5 + 4 * n] = 0;
        }
        return len;
    }
    case GR_FRAME_VERDICT:
        put32(payload + GR_WIRE_VERDICT_OFF_BONUS, PAIR_N_VOCAB + (uint32_t)pair_draw(rng, 1 << 30));
        return len;
    case GR_FRAME_RESYNC:
        put32(payload + 12, (uint32_t)(40 + pair_draw(rng, 1000))); /* n */
        return len;
    case GR_FRAME_DELTA:
        put32(payload + 4, (uint32_t)(5000 + pair_draw(rng, 1 << 30)));
        return len;
    default:
        return len - 1;
    }
}

/* A refused frame changes nothing, whatever its type and whenever it comes. */
static void inject_malformed(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len)
{
    struct hostile *h = arg;
    keep_frame(h, to_target, bytes, *len);
    for (int i = 0; i < 4; i++) {
        struct kept_frame f = h->kept[pair_draw(&h->rng, (uint64_t)GR_MIN(h->n_kept, N_KEPT))];
        f.len = spoil(f.bytes, f.len, &h->rng);
        uint8_t *copy = malloc(f.len > 0 ? f.len : 1); /* its end is seen by a sanitizer */
        assert_non_null(copy);
        memcpy(copy, f.bytes, f.len);
        const enum gr_status st = give(s, f.to_target, copy, f.len);
        free(copy);
        /* a drafter does not look into frames of a session that it has left */
        if (f.to_target || gr_drafter_n_session(sim_drafter(s)) == 4) {
            assert_int_equal(st, GR_EFORMAT);
        }
        h->n_injected += st == GR_EFORMAT;
    }
    /* a good frame of a type that this side does not take */
    uint8_t wrong[256];
    const struct gr_frame_header head = {.session = sim_session(s, 0), .epoch = 1};
    const size_t n = to_target ? gr_wire_encode_desync(&head, GR_DESYNC_HASH, 1, wrong, sizeof(wrong))
                               : gr_wire_encode_resync(&head, &(struct gr_resync){.feature_len = GR_FEATURES_NONE},
                                                       wrong, sizeof(wrong));
    if (to_target || gr_drafter_n_session(sim_drafter(s)) == 4) {
        assert_int_equal(give(s, to_target, wrong, n), GR_EPROTO);
    }
}

static void assert_same_metrics(const struct sim *a, const struct sim *b, int i)
{
    struct gr_session_metrics x = sim_result(a, i)->metrics;
    struct gr_session_metrics y = sim_result(b, i)->metrics;
    assert_int_equal(x.rounds, y.rounds);
    assert_int_equal(x.num_drafts, y.num_drafts);
    assert_int_equal(x.num_draft_tokens, y.num_draft_tokens);
    assert_int_equal(x.num_accepted_tokens, y.num_accepted_tokens);
    assert_int_equal(x.root_only_rounds, y.root_only_rounds);
    assert_int_equal(x.desyncs, y.desyncs);
    assert_int_equal(x.fallbacks, y.fallbacks);
}

typedef void frame_hook(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len);

/* Four sessions with and without the hook: same text always; same rounds and drafts when `same_rounds`. */
static void hostile_run(uint64_t seed, frame_hook *hook, struct hostile *h, bool same_rounds)
{
    struct gr_session_request r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = pair_request(i, 12 + 9 * (uint32_t)i, 60);
        r[i].wishes.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    }
    const struct pair_config c = {.seed = seed, .n_session = 4, .drafter = PAIR_BLURRED, .delays = true};
    struct pair clean = pair_create(&c);
    pair_submit(&clean, r, 4);
    assert_true(sim_run(clean.sim, PAIR_LIMIT_NS));
    struct pair p = pair_create(&c);
    h->n_kept = 0;
    h->rng = seed;
    sim_on_frame(p.sim, hook, h);
    pair_submit(&p, r, 4);
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
    struct pair plain = pair_plain_run(&c, r, 4);
    for (int i = 0; i < 4; i++) {
        pair_assert_same(plain.sim, clean.sim, i);
        pair_assert_same(plain.sim, p.sim, i);
        if (same_rounds) {
            assert_same_metrics(clean.sim, p.sim, i);
        }
    }
    if (same_rounds) {
        assert_int_equal(sim_n_lost(p.sim), 0);
    }
    assert_int_equal(gr_target_n_session(sim_target(p.sim)), 0);
    assert_int_equal(gr_drafter_n_session(sim_drafter(p.sim)), 0);
    pair_destroy(&plain);
    pair_destroy(&clean);
    pair_destroy(&p);
}

static void test_malformed_frames(void **state)
{
    (void)state;
    static struct hostile h;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        hostile_run(seed, inject_malformed, &h, true);
    }
    assert_true(h.n_injected > 1000);
}

static uint8_t type_of(const struct kept_frame *f)
{
    return f->bytes[GR_WIRE_OFF_TYPE];
}

/* Old DRAFTs to the target, old VERDICTs and DELTAs to the drafter, again and again, at any time. */
static void replay(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len)
{
    struct hostile *h = arg;
    for (int i = 0; i < 3 && h->n_kept > 0; i++) {
        const struct kept_frame *f = &h->kept[pair_draw(&h->rng, (uint64_t)GR_MIN(h->n_kept, N_KEPT))];
        if (type_of(f) != GR_FRAME_RESYNC) {
            assert_int_equal(give(s, f->to_target, f->bytes, f->len), GR_OK);
            h->n_injected++;
        }
    }
    if (bytes[GR_WIRE_OFF_TYPE] == GR_FRAME_DRAFT || bytes[GR_WIRE_OFF_TYPE] == GR_FRAME_VERDICT ||
        bytes[GR_WIRE_OFF_TYPE] == GR_FRAME_DELTA) {
        keep_frame(h, to_target, bytes, *len); /* what is on its way now can come again later */
    }
}

static void test_replayed_frames(void **state)
{
    (void)state;
    static struct hostile h;
    h.n_injected = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        hostile_run(seed, replay, &h, true);
    }
    assert_true(h.n_injected > 1000);
}

/* Old RESYNCs, too: they cost rounds, never text. */
static void replay_all(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len)
{
    struct hostile *h = arg;
    if (h->n_kept > 0 && pair_draw(&h->rng, 4) == 0) {
        const struct kept_frame *f = &h->kept[pair_draw(&h->rng, (uint64_t)GR_MIN(h->n_kept, N_KEPT))];
        assert_int_equal(give(s, f->to_target, f->bytes, f->len), GR_OK);
    }
    keep_frame(h, to_target, bytes, *len);
}

static void test_replayed_resyncs(void **state)
{
    (void)state;
    static struct hostile h;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        hostile_run(seed, replay_all, &h, false);
    }
}

/* Bits that flip on the way: refused with the connection lost, or a legal frame that says something else. */
static void corrupt(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len)
{
    struct hostile *h = arg;
    (void)s;
    (void)to_target;
    if (pair_draw(&h->rng, (uint64_t)h->one_in) != 0) {
        return;
    }
    h->n_injected++;
    const size_t at =
        pair_draw(&h->rng, 2) == 0 ? (size_t)pair_draw(&h->rng, *len) : 6 + (size_t)pair_draw(&h->rng, 22);
    bytes[at] ^= (uint8_t)(1u << pair_draw(&h->rng, 8));
}

static void test_corrupted_frames(void **state)
{
    (void)state;
    static struct hostile h;
    h.n_injected = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        h.one_in = seed % 2 == 0 ? 5 : 40;
        hostile_run(seed, corrupt, &h, false);
    }
    print_message("# %d frames corrupted\n", h.n_injected);
    assert_true(h.n_injected > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_requests),     cmocka_unit_test(test_more_sessions_than_slots),
        cmocka_unit_test(test_small_drafter),    cmocka_unit_test(test_malformed_frames),
        cmocka_unit_test(test_replayed_frames),  cmocka_unit_test(test_replayed_resyncs),
        cmocka_unit_test(test_corrupted_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
