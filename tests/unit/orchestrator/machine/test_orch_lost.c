/* Turns whose target is lost or evicts them, whose drafter cannot attach, or that cannot go on at all. */
#include "tests/unit/orch_world.h"

/* ---- the target ---- */

static void test_lost_target_in_a_turn(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = submit(w, false, false);
    take_open(w);
    opened(w);
    commit(w, 40, 3, GR_FINISH_NONE);
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    assert_int_equal(state_of(w, id), GR_SESSION_WAITING);
    join_target(w);
    check_reopened(w, id, 2, 6, 2, 5);
    opened(w);
    commit(w, 43, 5, GR_FINISH_LENGTH);
    expect(w, TARGET, GR_MSG_CLOSE);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->n_token, 8);
    assert_int_equal(gr_orch_n_session(w->orch), 0);
    destroy(w);
}

/* Idle: the loss shows with the next turn, whose transcript has a segment of each kind. */
static void test_lost_target_while_idle(void **state)
{
    (void)state;
    static const int32_t more[] = {50, 51};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    const struct gr_turn_request t = turn_of(more, 2);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    assert_int_equal(w->n_sent, 0);
    join_target(w);
    check_reopened(w, id, 2, 8, 3, 8);
    opened(w);
    commit(w, 60, 1, GR_FINISH_STOP);
    assert_int_equal(w->n_done, 2);
    destroy(w);
}

static void test_eviction(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    const struct gr_turn_request t = turn_of(more, 1);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_EVICTED, .session = id});
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    check_reopened(w, id, 2, 7, 3, 8);
    opened(w);
    commit(w, 60, 1, GR_FINISH_STOP);
    /* EVICTED and APPEND cross: the target refuses what it has forgotten */
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 8, 1);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_EVICTED, .session = id});
    say(w, TARGET,
        &(struct gr_msg){.type = GR_MSG_ERROR, .session = id, .error = {.code = 1, .text = "unknown session"}});
    check_reopened(w, id, 3, 9, 5, 8);
    opened(w);
    commit(w, 61, 1, GR_FINISH_STOP);
    assert_int_equal(w->n_done, 3);
    assert_int_equal(gr_orch_metrics(w->orch, id)->reopens, 2);
    destroy(w);
}

/* A turn that cannot be served leaves the session as it was. */
static void test_failed_turn_goes_back(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    const struct gr_turn_request t = turn_of(more, 1);
    struct gr_session_info info;
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 6, 1);
    const struct gr_msg no = {.type = GR_MSG_ERROR, .session = id, .error = {.code = 1, .text = "no blocks"}};
    say(w, TARGET, &no); /* APPEND refused: opened again, when the target has let go of what it may hold */
    expect(w, TARGET, GR_MSG_CLOSE);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    take_open(w);
    say(w, TARGET, &no); /* that, too */
    assert_int_equal(w->n_done, 2);
    assert_int_equal(w->finish, GR_FINISH_ERROR);
    assert_string_equal(w->text, "no blocks");
    assert_true(gr_orch_session_info(w->orch, id, w->now_ns, &info));
    assert_int_equal(info.state, GR_SESSION_IDLE);
    assert_int_equal(info.n_token, 6);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    check_reopened(w, id, 3, 7, 3, 8);
    destroy(w);
}

/* A TRUNCATE takes effect at the end of a pass; an APPEND that comes before is refused. Then the turn is stopped, and
 * the next one begun, while the CLOSED is still on its way. */
static void test_append_meets_a_pass(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    const struct gr_turn_request t = turn_of(more, 1);
    const struct gr_msg no = {.type = GR_MSG_ERROR, .session = id, .error = {.code = 1, .text = "in a turn"}};
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 6, 1);
    say(w, TARGET, &no);
    expect(w, TARGET, GR_MSG_CLOSE);
    assert_int_equal(gr_orch_stop(w->orch, id, 0, 0, GR_FINISH_STOP), GR_OK);
    expect(w, TARGET, GR_MSG_TRUNCATE);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    assert_int_equal(w->n_sent, 0);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    check_reopened(w, id, 3, 8, 3, 8);
    opened(w);
    commit(w, 60, 1, GR_FINISH_STOP);
    assert_int_equal(w->n_done, 3);
    destroy(w);
}

/* ---- the drafter ---- */

static struct gr_msg drafter_error(uint64_t id, enum gr_status code)
{
    return (struct gr_msg){.type = GR_MSG_ERROR, .session = id, .error = {.code = (uint32_t)-code, .text = "no way"}};
}

static void detached(struct world *w, uint64_t id)
{
    expect(w, DRAFTER, GR_MSG_DETACH);
    say(w, DRAFTER, &(struct gr_msg){.type = GR_MSG_DRAFT_STATS, .session = id});
}

/* Time goes by until the next attachment, which comes no earlier than from_ns and no later than to_ns. */
static void expect_attach_after(struct world *w, uint64_t from_ns, uint64_t to_ns)
{
    const uint64_t begin_ns = w->now_ns, due_ns = gr_orch_step(w->orch, w->now_ns);
    assert_in_range(due_ns - begin_ns, from_ns, to_ns);
    w->now_ns = due_ns - 1;
    (void)gr_orch_step(w->orch, w->now_ns);
    assert_int_equal(w->n_sent, 0);
    w->now_ns = due_ns;
    (void)gr_orch_step(w->orch, w->now_ns);
    expect(w, DRAFTER, GR_MSG_ATTACH);
}

/* A data path that is not there: tried again after pauses that grow, for as long as the turn goes on; one that comes up
 * is used. It is one fall-back, and the client can be told why. */
static void test_attach_is_tried_later(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    struct gr_session_info info;
    join_target(w);
    join_drafter(w);
    const uint64_t id = submit(w, false, true);
    const struct gr_msg no = drafter_error(id, GR_AGAIN);
    const int n_told = log_fallback_n;
    uint64_t most_ns = 50 * GR_MS;
    take_open(w);
    opened(w);
    expect(w, DRAFTER, GR_MSG_ATTACH);
    for (int i = 0; i < 30; i++) {
        say(w, DRAFTER, &no);
        detached(w, id);
        expect_attach_after(w, most_ns / 2, most_ns);
        most_ns = GR_MIN(2 * most_ns, 2 * GR_S);
    }
    assert_int_equal(gr_orch_metrics(w->orch, id)->fallbacks, 1);
    assert_int_equal(log_fallback_n - n_told, 1); /* GR_FALLBACK_DRAFTER_ERROR */
    assert_true(gr_orch_session_info(w->orch, id, w->now_ns, &info));
    assert_string_equal(info.undrafted, "no way");
    say(w, DRAFTER,
        &(struct gr_msg){.type = GR_MSG_ATTACHED, .session = id, .attached = {.epoch = 1, .transport = "tcp"}});
    assert_true(gr_orch_session_info(w->orch, id, w->now_ns, &info));
    assert_string_equal(info.undrafted, "");
    assert_int_equal(info.drafter, DRAFTER);
    destroy(w);
}

/* A data connection that stood and breaks is tried at once, then with pauses; one that stood for long begins anew. What
 * will not do later either is not tried again. */
static void test_attach_is_tried_again(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    join_drafter(w);
    const uint64_t id = submit(w, false, true);
    const struct gr_msg broken = drafter_error(id, GR_ECLOSED), never = drafter_error(id, GR_EMISMATCH);
    const struct gr_msg stands = {.type = GR_MSG_ATTACHED, .session = id, .attached = {.epoch = 1, .transport = "tcp"}};
    take_open(w);
    opened(w);
    expect(w, DRAFTER, GR_MSG_ATTACH);
    for (int i = 0; i < 3; i++) {
        say(w, DRAFTER, &stands);
        w->now_ns += 3 * GR_S;
        say(w, DRAFTER, &broken);
        assert_int_equal(w->n_sent, 2);
        assert_int_equal(w->sent[0].type, GR_MSG_DETACH);
        assert_int_equal(w->sent[1].type, GR_MSG_ATTACH);
        w->n_sent = 0;
        say(w, DRAFTER, &(struct gr_msg){.type = GR_MSG_DRAFT_STATS, .session = id});
    }
    say(w, DRAFTER, &stands);
    say(w, DRAFTER, &broken); /* as soon as it stood */
    detached(w, id);
    expect_attach_after(w, 50 * GR_MS, 100 * GR_MS);
    say(w, DRAFTER, &never);
    detached(w, id);
    assert_int_equal(gr_orch_step(w->orch, w->now_ns), UINT64_MAX);
    destroy(w);
}

/* Its drafter is gone when it is to be tried again: nobody is waited for, and who joins is attached. */
static void test_attach_is_due_to_nobody(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    join_drafter(w);
    const uint64_t id = submit(w, false, true);
    const struct gr_msg later = drafter_error(id, GR_AGAIN);
    take_open(w);
    opened(w);
    expect(w, DRAFTER, GR_MSG_ATTACH);
    say(w, DRAFTER, &later);
    expect(w, DRAFTER, GR_MSG_DETACH);
    gr_orch_on_lost(w->orch, DRAFTER, w->now_ns);
    w->now_ns += 5 * GR_S;
    (void)gr_orch_step(w->orch, w->now_ns);
    assert_int_equal(gr_orch_step(w->orch, w->now_ns), UINT64_MAX);
    assert_int_equal(w->n_sent, 0);
    join_drafter(w);
    expect(w, DRAFTER, GR_MSG_ATTACH);
    destroy(w);
}

/* ---- the turn ---- */

static void test_first_turn_fails(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = submit(w, true, false);
    take_open(w);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_ERROR, .session = id, .error = {.code = 1, .text = "too long"}});
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->n_closed, 1);
    assert_int_equal(gr_orch_n_session(w->orch), 0);
    destroy(w);
}

static void test_wrong_commits(void **state)
{
    (void)state;
    for (int way = 0; way < 6; way++) {
        struct world *w = make(NULL);
        int32_t id[] = {40, 41};
        join_target(w);
        const uint64_t session = submit(w, way % 2 == 0, false);
        take_open(w);
        opened(w);
        struct gr_msg m = commit_of(w, id, 2, GR_FINISH_NONE);
        m.commit.keep_len += way == 0;
        m.commit.hash ^= way == 1;
        m.commit.final_len += way == 2;
        m.commit.ids.n = way == 3 ? 0 : 2;
        m.commit.n_accepted = way == 4 ? 5 : 0;
        m.commit.epoch += way == 5; /* of another life of the session: ignored */
        say(w, TARGET, &m);
        assert_int_equal(w->n_token, 0);
        if (way == 5) {
            assert_int_equal(state_of(w, session), GR_SESSION_RUNNING);
        } else {
            expect(w, TARGET, GR_MSG_CLOSE);
            say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = session});
            assert_int_equal(w->finish, GR_FINISH_ERROR);
            assert_int_equal(gr_orch_n_session(w->orch), 0);
        }
        destroy(w);
    }
}

static void test_context_limit(void **state)
{
    (void)state;
    static const int32_t more[56] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    const struct gr_turn_request t = turn_of(more, 56);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 6, 56);
    opened(w);
    commit(w, 60, 2, GR_FINISH_NONE); /* 64 tokens: the context is full */
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    join_target(w);
    assert_int_equal(w->n_sent, 0);
    assert_int_equal(w->n_done, 2);
    assert_int_equal(w->finish, GR_FINISH_LENGTH);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_ELIMIT);
    destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_target_in_a_turn),
        cmocka_unit_test(test_lost_target_while_idle),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_failed_turn_goes_back),
        cmocka_unit_test(test_append_meets_a_pass),
        cmocka_unit_test(test_attach_is_tried_later),
        cmocka_unit_test(test_attach_is_tried_again),
        cmocka_unit_test(test_attach_is_due_to_nobody),
        cmocka_unit_test(test_first_turn_fails),
        cmocka_unit_test(test_wrong_commits),
        cmocka_unit_test(test_context_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
