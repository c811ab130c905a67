/* Several targets and drafters at one orchestrator: who gets a session, who is passed over, what moves when a worker
 * comes, and that the counts which placement goes by are those of the sessions that are there. The workers answer at
 * once. */
#include "tests/unit/orch_fleet.h"

/* 1,000 sessions at four targets and three drafters, which end in another order than they came: shares differ by at
 * most one at any time while none has ended. */
static void test_shares(void **state)
{
    (void)state;
    static uint64_t id[1000];
    struct fleet *f = make_fleet();
    for (uint32_t i = 0; i < 4; i++) {
        join(f, i, GR_WORKER_TARGET, 512);
    }
    for (uint32_t i = 4; i < 7; i++) {
        join(f, i, GR_WORKER_DRAFT, 512);
    }
    for (int i = 0; i < 1000; i++) {
        id[i] = open_session(f, i % 3 == 0);
        if (i % 10 == 9) { /* counted when it is chosen: the workers have not answered by then */
            answer(f);
            check_counts(f);
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(held_by(f, i), 250);
    }
    for (uint32_t i = 4; i < 7; i++) {
        assert_in_range(held_by(f, i), 333, 334);
    }
    for (int i = 0; i < 1000; i++) {
        end_turn(f, id[(i * 7) % 1000]);
        answer(f);
    }
    check_counts(f);
    assert_int_equal(gr_orch_n_session(f->orch), 334);
    assert_int_equal(gr_orch_purge(f->orch), 334);
    answer(f);
    check_counts(f);
    for (uint32_t i = 0; i < 7; i++) {
        assert_int_equal(held_by(f, i), 0);
    }
    assert_int_equal(f->n_failed, 0);
    destroy_fleet(f);
}

/* A target that says it has no room: another one is asked, and nobody is refused where a slot is free anywhere. */
static void test_full_target_is_passed_over(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    join(f, 0, GR_WORKER_TARGET, 0);
    join(f, 1, GR_WORKER_TARGET, 0);
    f->full[0] = true;
    for (int i = 0; i < 5; i++) {
        const uint64_t id = open_session(f, true);
        for (int k = 0; k < 3; k++) {
            answer(f);
        }
        assert_int_equal(info_of(f, id).target, 1);
        assert_int_equal(info_of(f, id).n_reopen, 0);
    }
    assert_int_equal(f->n_done, 0);
    f->full[1] = true;
    (void)open_session(f, false);
    for (int k = 0; k < 4; k++) {
        answer(f);
    }
    assert_int_equal(f->n_failed, 1); /* nowhere: the reason is the last one's */
    check_counts(f);
    destroy_fleet(f);
}

/* A turn that has run is not refused for want of a slot when its target is lost: it waits for one, here or at a target
 * that comes. A new request is refused at once. */
static void test_lost_turn_waits_for_a_slot(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        struct fleet *f = make_fleet();
        join(f, 0, GR_WORKER_TARGET, 1);
        join(f, 1, GR_WORKER_TARGET, 1);
        const uint64_t first = open_session(f, false), other = open_session(f, way == 1);
        settle(f);
        const uint32_t home = (uint32_t)info_of(f, other).target;
        f->full[home] = true;
        gr_orch_on_lost(f->orch, 1 - home, f->now_ns);
        settle(f);
        (void)open_session(f, false);
        settle(f);
        (void)gr_orch_step(f->orch, f->now_ns);
        assert_int_equal(f->n_failed, 1);
        assert_int_equal(info_of(f, first).state, GR_SESSION_WAITING);
        if (way == 2) {
            join(f, 5, GR_WORKER_TARGET, 1);
        } else {
            f->full[home] = false;
            end_turn(f, other);
        }
        settle(f);
        (void)gr_orch_step(f->orch, f->now_ns);
        settle(f);
        assert_int_equal(info_of(f, first).state, GR_SESSION_RUNNING);
        assert_int_equal(info_of(f, first).target, way == 2 ? 5 : (int)home);
        assert_int_equal(f->n_failed, 1);
        destroy_fleet(f);
    }
}

/* Slots that are taken are known from the counts: nobody is asked in vain. */
static void test_slots(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    join(f, 0, GR_WORKER_TARGET, 2);
    join(f, 1, GR_WORKER_TARGET, 6);
    for (int i = 0; i < 8; i++) {
        (void)open_session(f, false);
        answer(f);
    }
    assert_int_equal(held_by(f, 0), 2);
    assert_int_equal(held_by(f, 1), 6);
    assert_int_equal(f->n_open[0] + f->n_open[1], 8);
    destroy_fleet(f);
}

/* A drafter that cannot work with the target is passed over for another, in this turn; in the next it is tried anew. */
static void test_failing_drafter_is_passed_over(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    join(f, 0, GR_WORKER_TARGET, 0);
    join(f, 1, GR_WORKER_DRAFT, 0);
    join(f, 2, GR_WORKER_DRAFT, 0);
    f->deaf[1] = true;
    const uint64_t id = open_session(f, true);
    for (int k = 0; k < 4; k++) {
        answer(f);
    }
    assert_int_equal(info_of(f, id).drafter, 2);
    assert_int_equal(f->n_attach[1], 1);
    f->deaf[2] = true;
    gr_orch_on_lost(f->orch, 2, f->now_ns);
    for (int k = 0; k < 4; k++) {
        answer(f);
    }
    assert_int_equal(info_of(f, id).drafter, -1);
    assert_int_equal(f->n_attach[1], 1);
    f->deaf[1] = false;
    end_turn(f, id);
    answer(f);
    append(f, id);
    for (int k = 0; k < 4; k++) {
        answer(f);
    }
    assert_int_equal(info_of(f, id).drafter, 1);
    check_counts(f);
    destroy_fleet(f);
}

/* Another process under the number of one that had no room, or that failed, is not blamed for it. */
static void test_newcomer_is_not_blamed(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    join(f, 0, GR_WORKER_TARGET, 0);
    join(f, 1, GR_WORKER_DRAFT, 0);
    f->deaf[1] = true;
    const uint64_t id = open_session(f, true);
    for (int k = 0; k < 4; k++) {
        answer(f);
    }
    assert_int_equal(info_of(f, id).drafter, -1);
    gr_orch_on_lost(f->orch, 1, f->now_ns);
    f->deaf[1] = false;
    join(f, 1, GR_WORKER_DRAFT, 0);
    answer(f);
    assert_int_equal(info_of(f, id).drafter, 1);
    destroy_fleet(f);
}

/* Idle sessions move to a worker that comes, up to its share; their next turn is the same text, opened there. */
static void test_idle_sessions_move(void **state)
{
    (void)state;
    uint64_t id[6];
    struct fleet *f = make_fleet();
    join(f, 0, GR_WORKER_TARGET, 0);
    join(f, 1, GR_WORKER_DRAFT, 0);
    for (int i = 0; i < 6; i++) {
        id[i] = open_session(f, true);
        answer(f);
        answer(f);
    }
    for (int i = 0; i < 4; i++) { /* two stay in their turn: they are not touched */
        end_turn(f, id[i]);
        answer(f);
    }
    join(f, 2, GR_WORKER_TARGET, 0);
    answer(f);
    answer(f);
    check_counts(f);
    assert_int_equal(held_by(f, 0), 3);
    assert_int_equal(held_by(f, 2), 0); /* nothing is computed before it is needed */
    assert_int_equal(info_of(f, id[4]).target, 0);
    assert_int_equal(info_of(f, id[5]).target, 0);
    for (int i = 0; i < 4; i++) {
        append(f, id[i]);
        answer(f);
        answer(f);
    }
    assert_int_equal(held_by(f, 0), 3);
    assert_int_equal(held_by(f, 2), 3);
    join(f, 3, GR_WORKER_DRAFT, 0);
    answer(f);
    assert_int_equal(held_by(f, 3), 0); /* all are in a turn: they stay with their drafter */
    for (int i = 0; i < 6; i++) {
        end_turn(f, id[i]);
        answer(f);
    }
    join(f, 4, GR_WORKER_DRAFT, 0);
    answer(f);
    assert_int_equal(held_by(f, 1), 2);
    assert_int_equal(f->n_failed, 0);
    check_counts(f);
    destroy_fleet(f);
}

/* A fast target is preferred until its rounds are as long as the other's. */
static void test_predicted_rounds(void **state)
{
    (void)state;
    const struct gr_msg slow = {.type = GR_MSG_PONG, .pong = {.round_ns = 3000, .more_ns = 1000}};
    const struct gr_msg fast = {.type = GR_MSG_PONG, .pong = {.round_ns = 1000, .more_ns = 1000}};
    struct fleet *f = share_out(&slow, &fast, 4);
    assert_int_equal(held_by(f, 0), 1);
    assert_int_equal(held_by(f, 1), 3);
    destroy_fleet(f);
}

/* Two alike, of which one told of its rounds while many sessions were there: when those have ended and many begin at
 * once, before it is asked again, shares are even. */
static void test_forecast_of_another_time(void **state)
{
    (void)state;
    const struct gr_msg then = {.type = GR_MSG_PONG,
                                .pong = {.n_turn = 100, .round_ns = 9000, .more_ns = 80, .first_ns = 5000}};
    const struct gr_msg idle = {.type = GR_MSG_PONG, .pong = {.round_ns = 5000, .more_ns = 40, .first_ns = 5000}};
    struct fleet *f = share_out(&then, &idle, 40);
    assert_in_range(held_by(f, 0), 19, 21);
    assert_int_equal(held_by(f, 0) + held_by(f, 1), 40);
    destroy_fleet(f);
}

/* A drafter whose trees take long sheds sessions to one that has less to do, one for each PONG, until it does not pay.
 */
static void test_busy_drafter_sheds(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    const struct gr_orch_config c = {.ping_interval_ns = GR_S, .ping_timeout_ns = 5 * GR_S};
    gr_orch_configure(f->orch, &c);
    join(f, 0, GR_WORKER_TARGET, 0);
    join(f, 1, GR_WORKER_DRAFT, 0);
    for (int i = 0; i < 6; i++) {
        (void)open_session(f, false);
        answer(f);
        answer(f);
    }
    assert_int_equal(held_by(f, 1), 6);
    join(f, 2, GR_WORKER_DRAFT, 0);
    answer(f);
    assert_int_equal(held_by(f, 2), 0); /* nobody moves by itself */
    for (int i = 0; i < 6; i++) {
        const uint32_t n = held_by(f, 1);
        f->now_ns += GR_S;
        (void)gr_orch_step(f->orch, f->now_ns);
        for (uint32_t worker = 0; worker < 3; worker++) {
            answer_later(f, worker,
                         (struct gr_msg){.type = GR_MSG_PONG,
                                         .pong = {.n_turn = worker == 1 ? n : 0,
                                                  .round_ns = worker == 1 ? 1000 * (n + 1) : 0,
                                                  .more_ns = worker == 1 ? 1000 : 0}});
        }
        answer(f);
        answer(f);
    }
    assert_int_equal(held_by(f, 1), 4); /* 4000 here, 2000 for two there: a third would have 3000 */
    assert_int_equal(held_by(f, 2), 2);
    check_counts(f);
    destroy_fleet(f);
}

static void drain(struct fleet *f, uint32_t worker, bool drained)
{
    assert_int_equal(gr_orch_drain(f->orch, worker, drained, f->now_ns), GR_OK);
}

/* A target that is drained: idle sessions leave it at once, running ones when their turn is over, none comes; drained
 * no longer it takes its share. Every text goes on: append() fails where one is lost. */
static void test_drain_target(void **state)
{
    (void)state;
    uint64_t id[6];
    struct fleet *f = make_fleet();
    join(f, 0, GR_WORKER_TARGET, 0);
    for (int i = 0; i < 6; i++) {
        id[i] = open_session(f, true);
        settle(f);
    }
    join(f, 1, GR_WORKER_TARGET, 0);
    end_turn(f, id[0]);
    end_turn(f, id[1]);
    settle(f);
    drain(f, 0, true);
    assert_true(status_of(f, 0).draining && !status_of(f, 0).leaving);
    assert_int_equal(status_of(f, 0).n_active, 4);
    settle(f);
    assert_int_equal(held_by(f, 0), 4);
    assert_int_equal(held_by(f, 1), 0);
    append(f, id[0]);
    settle(f);
    assert_int_equal(info_of(f, id[0]).target, 1);
    assert_int_equal(info_of(f, id[2]).target, 0); /* in its turn */
    for (int i = 2; i < 6; i++) {
        end_turn(f, id[i]);
    }
    settle(f);
    assert_int_equal(held_by(f, 0), 0);
    for (int i = 1; i < 6; i++) {
        append(f, id[i]);
        settle(f);
    }
    assert_int_equal(held_by(f, 1), 6);
    for (int i = 0; i < 4; i++) {
        end_turn(f, id[i]);
    }
    settle(f);
    drain(f, 0, false);
    settle(f);
    for (int i = 0; i < 4; i++) {
        append(f, id[i]);
        settle(f);
    }
    assert_int_equal(held_by(f, 0), 3);
    assert_int_equal(held_by(f, 1), 3);
    assert_int_equal(f->n_failed, 0);
    destroy_fleet(f);
}

/* The next turn is begun before the target has let go of the session: it is opened elsewhere all the same. */
static void test_turn_crosses_the_drain(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    join(f, 0, GR_WORKER_TARGET, 0);
    const uint64_t id = open_session(f, true);
    settle(f);
    join(f, 1, GR_WORKER_TARGET, 0);
    drain(f, 0, true);
    end_turn(f, id);
    append(f, id);
    settle(f);
    assert_int_equal(info_of(f, id).target, 1);
    assert_int_equal(info_of(f, id).state, GR_SESSION_RUNNING);
    destroy_fleet(f);
}

/* The only target is drained: a turn waits for it, or for another one, and is given up in the end. */
static void test_drain_the_only_target(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    gr_orch_configure(f->orch, &(struct gr_orch_config){.queue_timeout_ns = 10 * GR_S});
    join(f, 0, GR_WORKER_TARGET, 0);
    const uint64_t id = open_session(f, true);
    settle(f);
    drain(f, 0, true);
    drain(f, 0, true); /* said twice it is the same */
    end_turn(f, id);
    settle(f);
    append(f, id);
    settle(f);
    assert_int_equal(info_of(f, id).state, GR_SESSION_WAITING);
    drain(f, 0, false);
    settle(f);
    assert_int_equal(info_of(f, id).state, GR_SESSION_RUNNING);
    drain(f, 0, true);
    (void)open_session(f, false);
    settle(f);
    (void)gr_orch_step(f->orch, f->now_ns);
    assert_int_equal(f->n_failed, 0);
    f->now_ns += 10 * GR_S;
    (void)gr_orch_step(f->orch, f->now_ns);
    assert_int_equal(f->n_failed, 1);
    assert_non_null(strstr(f->text, "no target"));
    assert_non_null(strstr(f->text, "drained"));
    assert_int_equal(info_of(f, id).state, GR_SESSION_RUNNING);
    destroy_fleet(f);
}

/* A drafter that is drained: its sessions go on with another at once where one fits, else finish with it, and leave it
 * for one that comes. */
static void test_drain_drafter(void **state)
{
    (void)state;
    uint64_t id[4];
    struct fleet *f = make_fleet();
    join(f, 0, GR_WORKER_TARGET, 0);
    join(f, 1, GR_WORKER_DRAFT, 0);
    for (int i = 0; i < 4; i++) {
        id[i] = open_session(f, true);
        settle(f);
    }
    end_turn(f, id[0]);
    settle(f);
    drain(f, 1, true);
    settle(f);
    assert_int_equal(held_by(f, 1), 3); /* no other one fits */
    assert_int_equal(info_of(f, id[0]).drafter, -1);
    assert_int_equal(info_of(f, id[0]).target, 0);
    end_turn(f, id[1]);
    settle(f);
    assert_int_equal(held_by(f, 1), 2);
    append(f, id[0]);
    settle(f);
    assert_int_equal(info_of(f, id[0]).drafter, -1);
    join(f, 2, GR_WORKER_DRAFT, 0);
    settle(f);
    assert_int_equal(held_by(f, 1), 0);
    assert_int_equal(held_by(f, 2), 3);
    drain(f, 1, false);
    drain(f, 2, true);
    settle(f);
    assert_int_equal(held_by(f, 1), 3);
    assert_int_equal(held_by(f, 2), 0);
    assert_int_equal(f->n_failed, 0);
    destroy_fleet(f);
}

/* A target that is to end has refused an OPEN and an APPEND that were on their way: both turns go on at the other one
 * at once, nothing is counted as a failure, and no third one comes to it. */
static void test_a_target_sends_elsewhere(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    join(f, 0, GR_WORKER_TARGET, 0);
    const uint64_t kept = open_session(f, true);
    settle(f);
    end_turn(f, kept);
    settle(f);
    f->ending[0] = true;
    append(f, kept);
    const uint64_t fresh = open_session(f, false);
    join(f, 1, GR_WORKER_TARGET, 0);
    assert_int_equal(info_of(f, kept).target, 0);
    assert_int_equal(info_of(f, fresh).target, 0);
    settle(f);
    assert_int_equal(info_of(f, kept).target, 1);
    assert_int_equal(info_of(f, fresh).target, 1);
    assert_int_equal(info_of(f, kept).state, GR_SESSION_RUNNING);
    assert_int_equal(info_of(f, kept).n_fallback + info_of(f, fresh).n_fallback, 0);
    assert_int_equal(info_of(f, fresh).n_reopen, 0);
    assert_true(status_of(f, 0).leaving);
    const uint32_t n_open = f->n_open[0];
    (void)open_session(f, false);
    settle(f);
    assert_int_equal(f->n_open[0], n_open);
    assert_int_equal(f->n_failed, 0);
    destroy_fleet(f);
}

/* The only target is to end: the turn waits for another one, and a line says why when it is given up. */
static void test_nobody_else_is_there(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    const struct gr_orch_config c = {.queue_timeout_ns = 5 * GR_S};
    gr_orch_configure(f->orch, &c);
    join(f, 0, GR_WORKER_TARGET, 0);
    f->ending[0] = true;
    const uint64_t first = open_session(f, false), second = open_session(f, true);
    settle(f);
    assert_int_equal(info_of(f, first).state, GR_SESSION_WAITING);
    join(f, 1, GR_WORKER_TARGET, 1);
    settle(f);
    assert_int_equal(info_of(f, first).state, GR_SESSION_RUNNING);
    end_turn(f, first);
    settle(f);
    assert_int_equal(f->n_failed, 0);
    f->ending[1] = true;
    const uint64_t third = open_session(f, false);
    settle(f);
    (void)gr_orch_step(f->orch, f->now_ns);
    gr_orch_on_lost(f->orch, 0, f->now_ns);
    f->now_ns += 6 * GR_S;
    (void)gr_orch_step(f->orch, f->now_ns);
    settle(f);
    assert_int_equal(f->n_failed, 1);
    assert_non_null(strstr(f->text,
                           "no target takes turns: the one that was here is to end; the turn has waited for 5 s "
                           "(--queue-timeout)"));
    (void)second;
    (void)third;
    destroy_fleet(f);
}

/* An idle session is to move, and its target evicts it before the CLOSE comes, and is lost before it answers that: no
 * later turn waits for the answer. */
static void test_eviction_crosses_a_move(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    join(f, 0, GR_WORKER_TARGET, 512);
    const uint64_t id[] = {open_session(f, true), open_session(f, true)};
    settle(f);
    end_turn(f, id[0]);
    end_turn(f, id[1]);
    settle(f);
    join(f, 1, GR_WORKER_TARGET, 512);
    assert_int_equal(f->n_queue, 1);
    const uint64_t moved = f->queue[0].m.session;
    assert_int_equal(f->queue[0].m.type, GR_MSG_CLOSED);
    f->n_queue = 0;
    assert_int_equal(gr_orch_on_msg(f->orch, 0, &(struct gr_msg){.type = GR_MSG_EVICTED, .session = moved}, f->now_ns),
                     GR_OK);
    gr_orch_on_lost(f->orch, 0, f->now_ns);
    for (int turn = 0; turn < 2; turn++) {
        append(f, moved);
        settle(f);
        assert_int_equal(info_of(f, moved).state, GR_SESSION_RUNNING);
        assert_int_equal(info_of(f, moved).target, 1);
        end_turn(f, moved);
        settle(f);
    }
    check_counts(f);
    destroy_fleet(f);
}

/* A drafter that is to end: another one is asked at once; where there is none the turn goes on without, and has one
 * when it comes. No fall-back is counted. */
static void test_a_drafter_sends_elsewhere(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    join(f, 0, GR_WORKER_TARGET, 0);
    join(f, 1, GR_WORKER_DRAFT, 0);
    f->ending[1] = true;
    const uint64_t id = open_session(f, false);
    settle(f);
    assert_int_equal(info_of(f, id).drafter, -1);
    assert_non_null(strstr(info_of(f, id).undrafted, "it is to end"));
    join(f, 2, GR_WORKER_DRAFT, 0);
    settle(f);
    assert_int_equal(info_of(f, id).drafter, 2);
    assert_string_equal(info_of(f, id).undrafted, "");
    f->ending[2] = true;
    join(f, 3, GR_WORKER_DRAFT, 0);
    const uint64_t other = open_session(f, false), third = open_session(f, false);
    settle(f);
    assert_int_equal(info_of(f, other).drafter, 3);
    assert_int_equal(info_of(f, third).drafter, 3);
    assert_int_equal(f->n_attach[2], 2);
    assert_int_equal(info_of(f, id).drafter, 2); /* its turn ends with it */
    assert_int_equal(info_of(f, id).n_fallback + info_of(f, other).n_fallback, 0);
    assert_false(info_of(f, other).drafter_failed);
    assert_int_equal(f->n_failed, 0);
    destroy_fleet(f);
}

static void join_as(struct fleet *f, uint32_t worker, uint64_t incarnation)
{
    const struct gr_worker_info info = {.role = GR_WORKER_TARGET, .incarnation = incarnation, .numerics_id = "cpu"};
    assert_int_equal(gr_orch_join(f->orch, worker, &info, f->now_ns), GR_OK);
}

/* A drained worker whose link broke comes back drained, under any number; a new process does not. */
static void test_drain_outlives_a_link(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    assert_int_equal(gr_orch_drain(f->orch, 0, true, f->now_ns), GR_ENOTFOUND);
    assert_int_equal(gr_orch_drain(f->orch, GR_ORCH_WORKER_MAX, true, f->now_ns), GR_ENOTFOUND);
    join_as(f, 0, 77);
    drain(f, 0, true);
    gr_orch_on_lost(f->orch, 0, f->now_ns);
    assert_int_equal(gr_orch_drain(f->orch, 0, false, f->now_ns), GR_ENOTFOUND);
    join_as(f, 3, 77);
    assert_true(status_of(f, 3).draining);
    drain(f, 3, false);
    gr_orch_on_lost(f->orch, 3, f->now_ns);
    join_as(f, 0, 77); /* the number under which it was drained */
    assert_false(status_of(f, 0).draining);
    drain(f, 0, true);
    gr_orch_on_lost(f->orch, 0, f->now_ns);
    join_as(f, 0, 78);
    assert_false(status_of(f, 0).draining);
    destroy_fleet(f);
}

/* Requests that targets refuse, for want of room or because of what they ask, say nothing against the targets: none is
 * given up, none is passed over afterwards. */
static void test_refusals_are_no_deaths(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    for (uint32_t i = 0; i < 3; i++) {
        join(f, i, GR_WORKER_TARGET, 4);
    }
    join(f, 3, GR_WORKER_DRAFT, 12);
    for (int i = 0; i < 200; i++) {
        for (uint32_t w = 0; w < 3; w++) {
            f->full[w] = i % 2 == 0;
            f->rejects[w] = i % 2 == 1;
        }
        (void)open_session(f, i % 3 == 0);
        settle(f);
        assert_int_equal(f->n_failed, i + 1);
        f->now_ns += GR_S / 10;
        (void)gr_orch_step(f->orch, f->now_ns);
    }
    assert_int_equal(gr_orch_n_worker(f->orch, GR_WORKER_TARGET), 3);
    assert_int_equal(gr_orch_n_worker(f->orch, GR_WORKER_DRAFT), 1);
    memset(f->full, 0, sizeof(f->full));
    memset(f->rejects, 0, sizeof(f->rejects));
    for (int i = 0; i < 12; i++) {
        (void)open_session(f, false);
        settle(f);
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_false(status_of(f, i).draining || status_of(f, i).leaving);
        assert_int_equal(held_by(f, i), 4);
    }
    assert_int_equal(f->n_failed, 200);
    destroy_fleet(f);
}

/* A minute of requests at three times what there are slots for, each answer taking eight looks at the clock. */
enum { TICKS = 120, TICKS_A_TURN = 8, SLOTS = 16, OFFERED = 3 * SLOTS / TICKS_A_TURN };

static void take_turns(struct fleet *f, uint64_t *id, int *until, int now)
{
    for (int k = 0; k < SLOTS; k++) {
        if (id[k] != 0 && until[k] == now) {
            end_turn(f, id[k]);
            id[k] = 0;
        }
    }
    settle(f);
}

static void keep(uint64_t *id, int *until, uint64_t taken, int end)
{
    int k = 0;
    while (k < SLOTS && id[k] != 0) {
        k++;
    }
    assert_true(k < SLOTS); /* no more run than there are slots */
    id[k] = taken;
    until[k] = end;
}

/* Who is too many is told so before the clock goes on, and slots are never idle for it. */
static void test_overload(void **state)
{
    (void)state;
    uint64_t id[SLOTS] = {0};
    int until[SLOTS] = {0}, n_asked = 0, n_taken = 0;
    struct fleet *f = make_fleet();
    for (uint32_t i = 0; i < 2; i++) {
        join(f, i, GR_WORKER_TARGET, SLOTS / 2);
    }
    for (int now = 0; now < TICKS; now++) {
        take_turns(f, id, until, now);
        for (int i = 0; i < OFFERED; i++, n_asked++) {
            struct gr_session_info info;
            const int n_failed = f->n_failed;
            f->full[0] = held_by(f, 0) >= SLOTS / 2;
            f->full[1] = held_by(f, 1) >= SLOTS / 2;
            const uint64_t asked = open_session(f, false);
            settle(f);
            const bool taken = gr_orch_session_info(f->orch, asked, f->now_ns, &info);
            assert_int_equal(f->n_failed, n_failed + !taken);
            if (taken) {
                assert_int_equal(info.state, GR_SESSION_RUNNING);
                keep(id, until, asked, now + TICKS_A_TURN);
                n_taken++;
            }
        }
        assert_in_range(gr_orch_n_session(f->orch), 0, SLOTS);
        f->now_ns += GR_S / 2;
        (void)gr_orch_step(f->orch, f->now_ns);
    }
    print_message("# %d of %d requests were taken; %d would fill all slots\n", n_taken, n_asked,
                  SLOTS * TICKS / TICKS_A_TURN);
    assert_true(10 * n_taken >= 9 * SLOTS * TICKS / TICKS_A_TURN);
    assert_int_equal(f->n_failed, n_asked - n_taken);
    assert_int_equal(gr_orch_n_worker(f->orch, GR_WORKER_TARGET), 2);
    destroy_fleet(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_full_target_is_passed_over),
        cmocka_unit_test(test_lost_turn_waits_for_a_slot),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_failing_drafter_is_passed_over),
        cmocka_unit_test(test_newcomer_is_not_blamed),
        cmocka_unit_test(test_idle_sessions_move),
        cmocka_unit_test(test_predicted_rounds),
        cmocka_unit_test(test_forecast_of_another_time),
        cmocka_unit_test(test_busy_drafter_sheds),
        cmocka_unit_test(test_drain_target),
        cmocka_unit_test(test_turn_crosses_the_drain),
        cmocka_unit_test(test_drain_the_only_target),
        cmocka_unit_test(test_drain_drafter),
        cmocka_unit_test(test_drain_outlives_a_link),
        cmocka_unit_test(test_a_target_sends_elsewhere),
        cmocka_unit_test(test_nobody_else_is_there),
        cmocka_unit_test(test_eviction_crosses_a_move),
        cmocka_unit_test(test_a_drafter_sends_elsewhere),
        cmocka_unit_test(test_refusals_are_no_deaths),
        cmocka_unit_test(test_overload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
