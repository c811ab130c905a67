/* The economics of shedding on a virtual clock: a drafter that several targets share becomes slow and gives sessions to
 * another, or to none, takes sessions again when it is as fast as before, and nothing moves to and fro meanwhile. */
#include "tests/unit/orch_fleet.h"

#define N_TARGET 3
#define SHARED 3 /* drafters */
#define SPARE 4
#define N_SESSION 12

/* What a tree takes at each drafter: a fixed part, and as much for each session that it drafts for. */
struct cost {
    uint64_t base_ns, more_ns;
};

struct scene {
    struct fleet *f;
    struct cost cost[WORKER_MAX]; /* more_ns 0: it is not there */
    uint64_t pass_ns;             /* of each target, whatever it has; 0: it does not tell */
    uint64_t id[N_SESSION];
};

static void begin(struct scene *s)
{
    static const struct gr_orch_config config = {.ping_interval_ns = GR_S, .ping_timeout_ns = 5 * GR_S};
    *s = (struct scene){.f = make_fleet()};
    gr_orch_configure(s->f->orch, &config);
    for (uint32_t i = 0; i < N_TARGET; i++) {
        join(s->f, i, GR_WORKER_TARGET, 0);
    }
}

static void join_drafter(struct scene *s, uint32_t worker, struct cost cost)
{
    join(s->f, worker, GR_WORKER_DRAFT, 0);
    s->cost[worker] = cost;
    settle(s->f);
}

static void open_all(struct scene *s)
{
    for (int i = 0; i < N_SESSION; i++) {
        s->id[i] = open_session(s->f, true);
        settle(s->f);
    }
}

/* Each worker answers its ping by what it has to do. */
static void answer_pings(struct scene *s)
{
    for (uint32_t i = 0; i < N_TARGET; i++) {
        answer_later(s->f, i, (struct gr_msg){.type = GR_MSG_PONG, .pong = {.round_ns = s->pass_ns}});
    }
    for (uint32_t i = N_TARGET; i < WORKER_MAX; i++) {
        const struct cost *c = &s->cost[i];
        const uint32_t n = status_of(s->f, i).n_active;
        if (c->more_ns > 0) {
            answer_later(s->f, i,
                         (struct gr_msg){.type = GR_MSG_PONG,
                                         .pong = {.n_turn = n,
                                                  .round_ns = n > 0 ? c->base_ns + c->more_ns * (n + 1) : 0,
                                                  .more_ns = n > 0 ? c->more_ns : 0}});
        }
    }
}

static uint32_t n_attach(const struct scene *s)
{
    uint32_t n = 0;
    for (int i = 0; i < WORKER_MAX; i++) {
        n += s->f->n_attach[i];
    }
    return n;
}

/* Seconds pass. Returns the attachments that were made. */
static uint32_t pass(struct scene *s, int n_s)
{
    const uint32_t before = n_attach(s);
    for (int i = 0; i < n_s; i++) {
        const uint32_t second = n_attach(s);
        s->f->now_ns += GR_S;
        (void)gr_orch_step(s->f->orch, s->f->now_ns);
        answer_pings(s);
        settle(s->f);
        assert_in_range(n_attach(s) - second, 0, 2); /* one of each drafter at most */
    }
    return n_attach(s) - before;
}

static uint64_t tree_ns(const struct scene *s, uint32_t drafter)
{
    return s->cost[drafter].base_ns + s->cost[drafter].more_ns * held_by(s->f, drafter);
}

/* A spare drafter comes to one that has all; then the first becomes slow, as if its GPU had other work, and recovers.
 */
static void test_sheds_and_takes_again(void **state)
{
    (void)state;
    static const struct cost usual = {.base_ns = 200000, .more_ns = 100000};
    static const struct cost slow = {.base_ns = 2000000, .more_ns = 1000000};
    struct scene s;
    begin(&s);
    join_drafter(&s, SHARED, usual);
    open_all(&s);
    assert_int_equal(held_by(s.f, SHARED), N_SESSION);
    assert_int_equal(pass(&s, 10), 0); /* nobody to shed to */
    join_drafter(&s, SPARE, usual);
    const uint32_t n_first = pass(&s, 30);
    assert_in_range(n_first, 1, N_SESSION / 2); /* each move is for good */
    assert_int_equal(held_by(s.f, SPARE), n_first);
    assert_true(2 * tree_ns(&s, SPARE) + 2 * usual.more_ns >= tree_ns(&s, SHARED));
    assert_int_equal(pass(&s, 60), 0);

    s.cost[SHARED] = slow;
    const uint32_t had = held_by(s.f, SHARED), n_shed = pass(&s, 30);
    assert_in_range(n_shed, 1, had);
    assert_int_equal(held_by(s.f, SHARED), had - n_shed);
    assert_int_equal(pass(&s, 60), 0);

    s.cost[SHARED] = usual;
    const uint32_t n_back = pass(&s, 30);
    assert_in_range(n_back, 1, N_SESSION);
    assert_int_equal(held_by(s.f, SHARED), had - n_shed + n_back);
    assert_int_equal(pass(&s, 60), 0);
    assert_int_equal(held_by(s.f, SHARED) + held_by(s.f, SPARE), N_SESSION);
    destroy_fleet(s.f);
}

/* When the load falls at a drafter that had shed, new turns come to it again: to the one whose trees come first. */
static void test_new_turns_follow_the_load(void **state)
{
    (void)state;
    static const struct cost slow = {.base_ns = 2000000, .more_ns = 1000000},
                             fast = {.base_ns = 200000, .more_ns = 300000};
    struct scene s;
    begin(&s);
    join_drafter(&s, SHARED, slow);
    open_all(&s);
    join_drafter(&s, SPARE, fast);
    (void)pass(&s, 60);
    assert_true(held_by(s.f, SPARE) > held_by(s.f, SHARED));
    for (int i = 0; i < N_SESSION; i++) {
        end_turn(s.f, s.id[i]);
        settle(s.f);
    }
    s.cost[SHARED] = fast;
    assert_int_equal(pass(&s, 5), 0); /* idle sessions are not moved for speed */
    uint64_t fresh[4];
    const uint32_t before = s.f->n_attach[SHARED];
    for (int i = 0; i < 4; i++) {
        fresh[i] = open_session(s.f, false);
        settle(s.f);
        (void)pass(&s, 2);
    }
    assert_in_range(s.f->n_attach[SHARED] - before, 2, 4);
    for (int i = 0; i < 4; i++) {
        end_turn(s.f, fresh[i]);
    }
    settle(s.f);
    destroy_fleet(s.f);
}

/* What is measured is never the same twice: within a quarter to and fro nothing moves but what pays by half. */
static void test_noise_moves_nothing(void **state)
{
    (void)state;
    static const struct cost usual = {.base_ns = 200000, .more_ns = 100000};
    struct scene s;
    uint32_t draw = 1;
    begin(&s);
    join_drafter(&s, SHARED, usual);
    join_drafter(&s, SPARE, usual);
    open_all(&s);
    assert_in_range(held_by(s.f, SHARED), N_SESSION / 2 - 1, N_SESSION / 2 + 1);
    for (int i = 0; i < 600; i++) {
        for (uint32_t k = SHARED; k <= SPARE; k++) {
            draw = draw * 1103515245u + 12345u;
            const uint64_t percent = 75 + (draw >> 16) % 51;
            s.cost[k] =
                (struct cost){.base_ns = usual.base_ns * percent / 100, .more_ns = usual.more_ns * percent / 100};
        }
        assert_int_equal(pass(&s, 1), 0);
    }
    destroy_fleet(s.f);
}

static uint32_t n_told_none(const struct scene *s)
{
    uint32_t n = 0;
    for (int i = 0; i < N_TARGET; i++) {
        n += s->f->n_told_none[i];
    }
    return n;
}

/* Session i has had eight trees, which brought i % 4 tokens each. */
static void learn(struct scene *s)
{
    for (int i = 0; i < N_SESSION; i++) {
        for (int k = 0; k < 8; k++) {
            commit_tree(s->f, s->id[i], 4, (uint32_t)i % 4);
        }
    }
}

/* The only drafter becomes slow: one session a second goes on without it, those first whose trees bring least, until a
 * tree comes in time for the others; each target is told, and nothing counts as a fall-back. When it has recovered,
 * they come back, those first whose trees bring most. */
static void test_sheds_to_none(void **state)
{
    (void)state;
    static const struct cost usual = {.base_ns = 100000, .more_ns = 10000}, slow = {.base_ns = 0, .more_ns = 1000000};
    struct scene s;
    begin(&s);
    s.pass_ns = 1000000;
    join_drafter(&s, SHARED, usual);
    open_all(&s);
    (void)pass(&s, 2);
    learn(&s);
    assert_int_equal(pass(&s, 20), 0);
    assert_int_equal(held_by(s.f, SHARED), N_SESSION);

    s.cost[SHARED] = slow; /* twelve trees take 12 ms; a pass 1 ms */
    (void)pass(&s, 1);
    assert_int_equal(held_by(s.f, SHARED), N_SESSION - 1);
    (void)pass(&s, 2);
    for (int i = 0; i < N_SESSION; i++) {
        const struct gr_session_info info = info_of(s.f, s.id[i]);
        assert_int_equal(info.drafter, i % 4 == 0 ? -1 : SHARED);
        assert_true(i % 4 != 0 || strstr(info.undrafted, "draft worker 4 has too much to do") != NULL);
    }
    (void)pass(&s, 30);
    /* With a tree of three tokens it is (1 + n) / 4 ms a token with n trees, and 1 ms without: twice that at n = 7. */
    const uint32_t left = held_by(s.f, SHARED);
    assert_in_range(left, 2, 6);
    assert_int_equal(n_told_none(&s), N_SESSION - left);
    for (int i = 3; i < N_SESSION; i += 4) {
        assert_int_equal(info_of(s.f, s.id[i]).drafter, SHARED);
    }
    assert_int_equal(pass(&s, 60), 0);
    assert_int_equal(held_by(s.f, SHARED), left);

    s.cost[SHARED] = usual;
    (void)pass(&s, 1);
    assert_int_equal(held_by(s.f, SHARED), left + 1);
    (void)pass(&s, 30);
    assert_int_equal(held_by(s.f, SHARED), N_SESSION - N_SESSION / 4); /* a quarter has trees that bring nothing */
    assert_int_equal(pass(&s, 60), 0);
    for (int i = 0; i < N_SESSION; i++) {
        assert_int_equal(info_of(s.f, s.id[i]).n_fallback, 0);
        assert_false(info_of(s.f, s.id[i]).drafter_failed);
    }
    destroy_fleet(s.f);
}

/* One that was shed to none stays so over its turns while trees do not pay, and is given to a drafter that comes. */
static void test_none_until_another_comes(void **state)
{
    (void)state;
    static const struct cost slow = {.base_ns = 0, .more_ns = 4000000}, fast = {.base_ns = 100000, .more_ns = 10000};
    struct scene s;
    begin(&s);
    s.pass_ns = 1000000;
    join_drafter(&s, SHARED, slow);
    open_all(&s);
    (void)pass(&s, 1);
    assert_int_equal(held_by(s.f, SHARED), N_SESSION); /* what trees bring is not known yet */
    learn(&s);
    (void)pass(&s, 30);
    assert_int_equal(held_by(s.f, SHARED), 1);
    end_turn(s.f, s.id[0]);
    settle(s.f);
    append(s.f, s.id[0]);
    settle(s.f);
    assert_int_equal(info_of(s.f, s.id[0]).drafter, -1);
    const uint64_t fresh = open_session(s.f, false); /* what its trees would bring is not known */
    settle(s.f);
    assert_int_equal(info_of(s.f, fresh).drafter, SHARED);
    join_drafter(&s, SPARE, fast);
    settle(s.f);
    assert_int_equal(info_of(s.f, s.id[0]).drafter, SPARE);
    assert_true(held_by(s.f, SPARE) >= N_SESSION - 1);
    assert_int_equal(s.f->n_failed, 0);
    destroy_fleet(s.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sheds_and_takes_again),
                                       cmocka_unit_test(test_new_turns_follow_the_load),
                                       cmocka_unit_test(test_noise_moves_nothing), cmocka_unit_test(test_sheds_to_none),
                                       cmocka_unit_test(test_none_until_another_comes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
