/* Seats of workers: who takes whose, which numbers processes have, and which workers get no sessions for a while. */
#include "tests/unit/orch_fleet.h"

static const struct gr_orch_config config = {
    .quarantine = {.n_failure = 3, .window_ns = 60 * GR_S, .pause_min_ns = GR_S, .pause_max_ns = 60 * GR_S},
    .first_number = 1000};

static struct fleet *make_judged(void)
{
    struct fleet *f = make_fleet();
    gr_orch_configure(f->orch, &config);
    return f;
}

static enum gr_status come(struct fleet *f, uint32_t worker, enum gr_worker_role role, const char *seat,
                           uint64_t process, uint64_t number)
{
    struct gr_worker_info info = {
        .role = role, .n_vocab = 100, .n_slot = 8, .numerics_id = "cpu", .incarnation = process, .number = number};
    f->is_target[worker] = role == GR_WORKER_TARGET;
    snprintf(info.address, sizeof(info.address), "w:%u", worker + 1);
    snprintf(info.seat, sizeof(info.seat), "%s", seat);
    return gr_orch_join(f->orch, worker, &info, f->now_ns);
}

/* A process of its own for each call. */
static void come_new(struct fleet *f, uint32_t worker, enum gr_worker_role role, const char *seat)
{
    static uint64_t process = 100;
    assert_int_equal(come(f, worker, role, seat, ++process, 0), GR_OK);
}

static void pass(struct fleet *f, uint64_t ns)
{
    f->now_ns += ns;
    (void)gr_orch_step(f->orch, f->now_ns);
    settle(f);
}

/* The worker dies, and another process takes its seat. */
static void die_and_come_back(struct fleet *f, uint32_t worker, enum gr_worker_role role, const char *seat)
{
    gr_orch_on_lost(f->orch, worker, f->now_ns);
    settle(f);
    f->now_ns += GR_S / 5;
    come_new(f, worker, role, seat);
    settle(f);
}

static enum gr_quarantine_state standing(const struct fleet *f, uint32_t worker)
{
    return status_of(f, worker).standing;
}

static uint64_t events(const struct fleet *f, enum gr_quarantine_event e)
{
    return gr_orch_totals(f->orch)->quarantine[e];
}

/* ---- numbers ---- */

static void test_numbers_rise(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    assert_int_equal(come(f, 0, GR_WORKER_TARGET, "a", 77, 0), GR_OK);
    assert_int_equal(come(f, 1, GR_WORKER_DRAFT, "a", 78, 0), GR_OK); /* another role, so another seat */
    assert_int_equal(come(f, 2, GR_WORKER_DRAFT, "", 79, 0), GR_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(status_of(f, i).number, 1000 + i);
    }
    gr_orch_on_lost(f->orch, 0, f->now_ns);
    assert_int_equal(come(f, 5, GR_WORKER_TARGET, "a", 77, 1000), GR_OK); /* its link broke: the same process */
    assert_int_equal(status_of(f, 5).number, 1000);
    gr_orch_on_lost(f->orch, 5, f->now_ns);
    assert_int_equal(come(f, 5, GR_WORKER_TARGET, "a", 80, 0), GR_OK);
    assert_int_equal(status_of(f, 5).number, 1003);
    assert_int_equal(come(f, 6, GR_WORKER_TARGET, "b", 81, 5000), GR_OK); /* of an orchestrator whose clock was ahead */
    assert_int_equal(come(f, 7, GR_WORKER_TARGET, "c", 82, 0), GR_OK);
    assert_int_equal(status_of(f, 6).number, 5000);
    assert_int_equal(status_of(f, 7).number, 5001);
    destroy_fleet(f);
}

/* What a worker says of its number does not bring numbers round to where they began: it is refused, and takes nobody's
 * seat. */
static void test_numbers_do_not_begin_anew(void **state)
{
    (void)state;
    static const uint64_t too_high[] = {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX / 2, (UINT64_C(1) << 62) + 1001};
    struct fleet *f = make_judged();
    come_new(f, 0, GR_WORKER_TARGET, "a");
    for (size_t i = 0; i < GR_ARRAY_LEN(too_high); i++) {
        assert_int_equal(come(f, 1, GR_WORKER_TARGET, "a", 500 + i, too_high[i]), GR_EINVAL);
        assert_non_null(strstr(gr_orch_why(f->orch), "start it again"));
    }
    assert_int_equal(gr_orch_n_refused(f->orch), GR_ARRAY_LEN(too_high));
    assert_non_null(gr_orch_worker(f->orch, 0, NULL));
    assert_int_equal(come(f, 1, GR_WORKER_TARGET, "b", 600, (UINT64_C(1) << 62) + 1000), GR_OK);
    come_new(f, 2, GR_WORKER_TARGET, "c");
    const uint64_t given = status_of(f, 2).number;
    assert_true(given == (UINT64_C(1) << 62) + 1001);
    gr_orch_on_lost(f->orch, 2, f->now_ns);
    assert_int_equal(come(f, 3, GR_WORKER_TARGET, "c", 601, given), GR_OK); /* it was given here */
    destroy_fleet(f);
}

/* A process that was frozen comes back after another one has taken its seat, also when it was never noticed missing. */
static void test_an_old_process_is_refused(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    assert_int_equal(come(f, 0, GR_WORKER_TARGET, "a", 77, 0), GR_OK);
    const uint64_t id = open_session(f, false);
    settle(f);
    assert_int_equal(come(f, 1, GR_WORKER_TARGET, "a", 78, 0), GR_OK);
    assert_null(gr_orch_worker(f->orch, 0, NULL)); /* it was ended at once, with what it held */
    settle(f);
    assert_int_equal(info_of(f, id).target, 1);
    assert_int_equal(info_of(f, id).epoch, 2);
    assert_int_equal(come(f, 2, GR_WORKER_TARGET, "a", 77, 1000), GR_ECANCELED);
    assert_non_null(strstr(gr_orch_why(f->orch), "belongs to a newer process"));
    assert_int_equal(gr_orch_totals(f->orch)->workers_replaced, 2);
    assert_int_equal(info_of(f, id).target, 1);
    assert_int_equal(gr_orch_n_worker(f->orch, GR_WORKER_TARGET), 1);
    destroy_fleet(f);
}

/* An orchestrator that was started anew knows nobody: the older process comes first, and has to leave all the same. */
static void test_numbers_outlive_the_orchestrator(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    assert_int_equal(come(f, 0, GR_WORKER_TARGET, "a", 77, 400), GR_OK);
    assert_int_equal(come(f, 1, GR_WORKER_TARGET, "a", 78, 401), GR_OK);
    assert_null(gr_orch_worker(f->orch, 0, NULL));
    assert_int_equal(come(f, 0, GR_WORKER_TARGET, "a", 77, 400), GR_ECANCELED);
    come_new(f, 2, GR_WORKER_TARGET, "b");
    assert_int_equal(status_of(f, 2).number, 1000);
    destroy_fleet(f);
}

/* Seats that are out of use are given to others; those in use stay known. */
static void test_many_seats(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    char name[16];
    come_new(f, 0, GR_WORKER_TARGET, "stays");
    const uint64_t number = status_of(f, 0).number;
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof(name), "s%d", i);
        f->now_ns += GR_S;
        come_new(f, 1, GR_WORKER_TARGET, name);
        gr_orch_on_lost(f->orch, 1, f->now_ns);
    }
    assert_int_equal(status_of(f, 0).number, number);
    assert_int_equal(come(f, 3, GR_WORKER_TARGET, "stays", 5, number - 1), GR_ECANCELED);
    destroy_fleet(f);
}

/* ---- quarantine ---- */

static void test_a_dying_target_is_passed_over(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    come_new(f, 0, GR_WORKER_TARGET, "a");
    come_new(f, 1, GR_WORKER_TARGET, "b");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(standing(f, 0), GR_QUARANTINE_GOOD);
        die_and_come_back(f, 0, GR_WORKER_TARGET, "a");
    }
    assert_int_equal(standing(f, 0), GR_QUARANTINE_OUT);
    uint64_t id[4];
    for (int i = 0; i < 4; i++) {
        id[i] = open_session(f, false);
        settle(f);
        assert_int_equal(info_of(f, id[i]).target, 1);
    }
    pass(f, GR_S);
    assert_int_equal(standing(f, 0), GR_QUARANTINE_TRIAL);
    const uint64_t trial = open_session(f, false);
    settle(f);
    assert_int_equal(info_of(f, trial).target, 0); /* it has less to do */
    const uint64_t next = open_session(f, false);
    settle(f);
    assert_int_equal(info_of(f, next).target, 1);
    /* it dies of the trial: the session goes on at the other one, and the pause is twice as long */
    die_and_come_back(f, 0, GR_WORKER_TARGET, "a");
    assert_int_equal(info_of(f, trial).target, 1);
    pass(f, GR_S + GR_S / 2);
    assert_int_equal(standing(f, 0), GR_QUARANTINE_OUT);
    pass(f, GR_S / 2);
    assert_int_equal(standing(f, 0), GR_QUARANTINE_TRIAL);
    const uint64_t again = open_session(f, false);
    settle(f);
    assert_int_equal(info_of(f, again).target, 0);
    end_turn(f, again);
    settle(f);
    assert_int_equal(standing(f, 0), GR_QUARANTINE_GOOD);
    assert_int_equal(events(f, GR_QUARANTINE_BEGUN), 2);
    assert_int_equal(events(f, GR_QUARANTINE_TRIED), 2);
    assert_int_equal(events(f, GR_QUARANTINE_ENDED), 1);
    assert_int_equal(events(f, GR_QUARANTINE_OVERRULED), 0);
    assert_int_equal(f->n_failed, 0);
    destroy_fleet(f);
}

/* The only one stays in use, which one line tells in each pause; so it does where the other one serves another model or
 * has refused the turn. */
static void test_the_last_one_stays_in_use(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    come_new(f, 0, GR_WORKER_TARGET, "a");
    come_new(f, 1, GR_WORKER_DRAFT, "b");
    for (int i = 0; i < 3; i++) {
        die_and_come_back(f, 0, GR_WORKER_TARGET, "a");
        die_and_come_back(f, 1, GR_WORKER_DRAFT, "b");
    }
    assert_int_equal(standing(f, 0), GR_QUARANTINE_OUT);
    assert_int_equal(standing(f, 1), GR_QUARANTINE_OUT);
    const uint64_t id = open_session(f, false), other = open_session(f, false);
    settle(f);
    assert_int_equal(info_of(f, id).target, 0);
    assert_int_equal(info_of(f, id).drafter, 1);
    assert_int_equal(info_of(f, other).target, 0);
    assert_int_equal(events(f, GR_QUARANTINE_OVERRULED), 2);
    end_turn(f, id);
    settle(f);
    assert_int_equal(standing(f, 0), GR_QUARANTINE_GOOD);
    assert_int_equal(standing(f, 1), GR_QUARANTINE_GOOD);
    destroy_fleet(f);
}

/* Nothing is told of a worker on trial while it has the one session that it gets and others wait, nor for a turn that
 * the worker cannot take. */
static void test_what_waits_uses_nobody(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    struct gr_session_request q = usual_request(false);
    const struct gr_worker_info one_slot = {.role = GR_WORKER_TARGET,
                                            .n_vocab = 100,
                                            .n_slot = 1,
                                            .numerics_id = "cpu",
                                            .incarnation = 99,
                                            .tokenizer_fingerprint = 7,
                                            .address = "w:1",
                                            .seat = "a"};
    uint64_t first = 0, second = 0, misfit = 0;
    q.wishes.queues = true;
    come_new(f, 0, GR_WORKER_TARGET, "a");
    for (int i = 0; i < 3; i++) {
        die_and_come_back(f, 0, GR_WORKER_TARGET, "a");
    }
    gr_orch_on_lost(f->orch, 0, f->now_ns);
    f->now_ns += GR_S / 5;
    assert_int_equal(gr_orch_join(f->orch, 0, &one_slot, f->now_ns), GR_OK);
    assert_int_equal(standing(f, 0), GR_QUARANTINE_OUT);
    q.tokenizer_fingerprint = 8;
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &misfit), GR_OK);
    assert_int_equal(f->n_failed, 1);
    assert_int_equal(events(f, GR_QUARANTINE_OVERRULED), 0);
    q.tokenizer_fingerprint = 7;
    pass(f, 4 * GR_S);
    assert_int_equal(standing(f, 0), GR_QUARANTINE_TRIAL);
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &first), GR_OK);
    settle(f);
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &second), GR_OK);
    settle(f);
    assert_int_equal(info_of(f, first).target, 0);
    assert_int_equal(info_of(f, second).state, GR_SESSION_WAITING);
    assert_int_equal(events(f, GR_QUARANTINE_OVERRULED), 0);
    destroy_fleet(f);
}

static void fail_session(struct fleet *f, uint64_t id)
{
    const struct gr_msg m = {.type = GR_MSG_ERROR,
                             .session = id,
                             .error = {.code = (uint32_t)-GR_EFORMAT, .text = "not finite", .ended = 1}};
    assert_int_equal(gr_orch_on_msg(f->orch, (uint32_t)info_of(f, id).target, &m, f->now_ns), GR_OK);
    settle(f);
}

/* A target whose passes go wrong: each turn goes on at the other one, as the next epoch, and after three it gets none.
 */
static void test_failed_turns_go_elsewhere(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    come_new(f, 0, GR_WORKER_TARGET, "a");
    come_new(f, 1, GR_WORKER_TARGET, "b");
    int n_failed_at_0 = 0;
    for (int i = 0; i < 12; i++) {
        const uint64_t id = open_session(f, false);
        settle(f);
        f->now_ns += GR_S / 5;
        if (info_of(f, id).target == 0) {
            fail_session(f, id);
            n_failed_at_0++;
            assert_int_equal(info_of(f, id).target, 1);
            assert_int_equal(info_of(f, id).epoch, 2);
        }
    }
    assert_int_equal(n_failed_at_0, 3);
    assert_int_equal(standing(f, 0), GR_QUARANTINE_OUT);
    assert_int_equal(gr_orch_totals(f->orch)->turns_failed_at_target, 3);
    assert_int_equal(f->n_failed, 0);
    destroy_fleet(f);
}

/* What fails everywhere is the text's own doing: the turn ends, and neither target is judged by one text. */
static void test_a_text_that_fails_everywhere(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    come_new(f, 0, GR_WORKER_TARGET, "a");
    come_new(f, 1, GR_WORKER_TARGET, "b");
    for (int i = 0; i < 20; i++) {
        const uint64_t bad = open_session(f, false), good = open_session(f, false), better = open_session(f, false);
        settle(f);
        fail_session(f, bad);
        f->now_ns += GR_S / 5;
        fail_session(f, bad);
        settle(f);
        assert_int_equal(f->n_failed, i + 1);
        end_turn(f, good);
        end_turn(f, better);
        settle(f);
        f->now_ns += GR_S / 5;
    }
    assert_int_equal(standing(f, 0), GR_QUARANTINE_GOOD);
    assert_int_equal(standing(f, 1), GR_QUARANTINE_GOOD);
    destroy_fleet(f);
}

/* Busy, full, what a request got wrong, and a worker that was told to end: none of it counts. */
static void test_what_is_no_failure(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    come_new(f, 0, GR_WORKER_TARGET, "a");
    for (int i = 0; i < 50; i++) {
        f->full[0] = i % 2 == 0;
        f->rejects[0] = i % 2 == 1;
        (void)open_session(f, false);
        settle(f);
        f->now_ns += GR_S / 5;
    }
    assert_int_equal(standing(f, 0), GR_QUARANTINE_GOOD);
    for (int i = 0; i < 10; i++) {
        const struct gr_msg drain = {.type = GR_MSG_DRAIN};
        assert_int_equal(gr_orch_on_msg(f->orch, 0, &drain, f->now_ns), GR_OK);
        pass(f, GR_S / 5);
        gr_orch_on_lost(f->orch, 0, f->now_ns);
        come_new(f, 0, GR_WORKER_TARGET, "a");
    }
    assert_int_equal(standing(f, 0), GR_QUARANTINE_GOOD);
    assert_int_equal(events(f, GR_QUARANTINE_BEGUN), 0);
    destroy_fleet(f);
}

/* Turns fail at worker 0 until it is out, while an idle session is held there. */
static uint64_t hold_where_turns_fail(struct fleet *f, bool queues)
{
    struct gr_session_request q = usual_request(true);
    uint64_t id = 0;
    q.wishes.queues = queues;
    come_new(f, 0, GR_WORKER_TARGET, "a");
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &id), GR_OK);
    settle(f);
    end_turn(f, id);
    settle(f);
    for (int i = 0; i < 3; i++) {
        const uint64_t bad = open_session(f, false);
        settle(f);
        fail_session(f, bad);
        f->now_ns += GR_S / 5;
    }
    assert_int_equal(standing(f, 0), GR_QUARANTINE_OUT);
    assert_int_equal(info_of(f, id).target, 0);
    return id;
}

/* The next turn of an idle session goes where a new one would: from a worker that is to get none to another one, with
 * its text. */
static void test_the_next_turn_leaves_a_bad_home(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    const uint64_t id = hold_where_turns_fail(f, false);
    come_new(f, 1, GR_WORKER_TARGET, "b");
    append(f, id);
    settle(f);
    assert_int_equal(info_of(f, id).target, 1);
    assert_int_equal(info_of(f, id).state, GR_SESSION_RUNNING);
    assert_int_equal(info_of(f, id).epoch, 2);
    assert_int_equal(f->len[id], 5); /* three of the prompt, one that was generated, one appended */
    assert_int_equal(held_by(f, 0), 0);
    assert_int_equal(events(f, GR_QUARANTINE_OVERRULED), 0);
    end_turn(f, id);
    settle(f);
    append(f, id); /* and stays there */
    settle(f);
    assert_int_equal(info_of(f, id).target, 1);
    assert_int_equal(info_of(f, id).epoch, 2);
    destroy_fleet(f);
}

/* Where no other one fits it stays, as a new one would come, which a line tells; its text is not computed again. */
static void test_the_next_turn_stays_where_nobody_else_is(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    const uint64_t id = hold_where_turns_fail(f, false);
    const uint32_t n_open = f->n_open[0];
    const uint64_t before = events(f, GR_QUARANTINE_OVERRULED);
    append(f, id);
    settle(f);
    assert_int_equal(info_of(f, id).target, 0);
    assert_int_equal(info_of(f, id).state, GR_SESSION_RUNNING);
    assert_int_equal(info_of(f, id).epoch, 1);
    assert_int_equal(f->n_open[0], n_open);
    assert_int_equal(events(f, GR_QUARANTINE_OVERRULED), before + 1);
    end_turn(f, id);
    settle(f);
    assert_int_equal(standing(f, 0), GR_QUARANTINE_GOOD);
    destroy_fleet(f);
}

/* It waits in the queue for a slot of the other one, as a new one does. */
static void test_the_next_turn_waits_for_a_slot_elsewhere(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    uint64_t busy[8];
    const uint64_t id = hold_where_turns_fail(f, true);
    come_new(f, 1, GR_WORKER_TARGET, "b"); /* eight slots */
    for (int i = 0; i < 8; i++) {
        busy[i] = open_session(f, false);
        settle(f);
        assert_int_equal(info_of(f, busy[i]).target, 1);
    }
    append(f, id);
    settle(f);
    (void)gr_orch_step(f->orch, f->now_ns);
    assert_int_equal(info_of(f, id).state, GR_SESSION_WAITING);
    assert_int_equal(f->place[id], 1);
    end_turn(f, busy[0]);
    settle(f);
    (void)gr_orch_step(f->orch, f->now_ns);
    settle(f);
    assert_int_equal(info_of(f, id).target, 1);
    assert_int_equal(info_of(f, id).state, GR_SESSION_RUNNING);
    destroy_fleet(f);
}

/* Idle sessions do not move to a worker that is to get none. */
static void test_idle_sessions_stay(void **state)
{
    (void)state;
    struct fleet *f = make_judged();
    come_new(f, 0, GR_WORKER_TARGET, "a");
    come_new(f, 1, GR_WORKER_TARGET, "b");
    for (int i = 0; i < 3; i++) {
        die_and_come_back(f, 1, GR_WORKER_TARGET, "b");
    }
    for (int i = 0; i < 6; i++) {
        const uint64_t id = open_session(f, true);
        settle(f);
        end_turn(f, id);
        settle(f);
    }
    assert_int_equal(held_by(f, 0), 6);
    die_and_come_back(f, 1, GR_WORKER_TARGET, "b");
    assert_int_equal(held_by(f, 0), 6);
    destroy_fleet(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_rise),
        cmocka_unit_test(test_numbers_do_not_begin_anew),
        cmocka_unit_test(test_an_old_process_is_refused),
        cmocka_unit_test(test_numbers_outlive_the_orchestrator),
        cmocka_unit_test(test_many_seats),
        cmocka_unit_test(test_a_dying_target_is_passed_over),
        cmocka_unit_test(test_the_last_one_stays_in_use),
        cmocka_unit_test(test_failed_turns_go_elsewhere),
        cmocka_unit_test(test_a_text_that_fails_everywhere),
        cmocka_unit_test(test_what_is_no_failure),
        cmocka_unit_test(test_idle_sessions_stay),
        cmocka_unit_test(test_what_waits_uses_nobody),
        cmocka_unit_test(test_the_next_turn_leaves_a_bad_home),
        cmocka_unit_test(test_the_next_turn_stays_where_nobody_else_is),
        cmocka_unit_test(test_the_next_turn_waits_for_a_slot_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
