/* The clients' desk over the orchestrator's machine, with a scripted target: who is answered, and who is not. */
#include "orchestrator/machine/transcript.h"
#include "tests/unit/orch_world.h"

#define N_CLIENT 3
#define N_TURN_CLIENT 2 /* the last one may only look */

/* What clients were told. */
static struct {
    int n_msg[N_CLIENT][GR_N_MSG];
    char text[GR_MSG_TEXT_MAX];         /* of the last ERROR */
    uint32_t code;                      /* the same */
    uint32_t turn;                      /* of the last OPENED */
    uint32_t cut, finish, n_token;      /* of the last FINISHED */
    struct gr_msg_drain_worker drained; /* the last one */
    struct gr_msg_listed_worker listed; /* the last one */
} told;

static void to_client(void *ctx, uint32_t client, const struct gr_msg *m)
{
    (void)ctx;
    assert_true(client < N_CLIENT);
    told.n_msg[client][m->type]++;
    if (m->type == GR_MSG_ERROR) {
        memcpy(told.text, m->error.text, sizeof(told.text));
        told.code = m->error.code;
    } else if (m->type == GR_MSG_DRAIN_WORKER) {
        told.drained = m->drain_worker;
    } else if (m->type == GR_MSG_WORKER) {
        told.listed = m->listed_worker;
    } else if (m->type == GR_MSG_OPENED) {
        told.turn = m->opened.turn;
    } else if (m->type == GR_MSG_FINISHED) {
        told.cut = m->finished.cut;
        told.finish = m->finished.finish;
        told.n_token = m->finished.n_token;
    }
}

static struct world *make_desk(void)
{
    struct world *w = make(NULL);
    memset(&told, 0, sizeof(told));
    assert_int_equal(gr_desk_create(w->orch, &(struct gr_desk_clients){N_CLIENT, N_TURN_CLIENT, N_CLIENT},
                                    &(struct gr_desk_io){.send = to_client}, &w->desk),
                     GR_OK);
    join_target(w);
    return w;
}

static void ask(struct world *w, uint32_t client, const struct gr_msg *m)
{
    assert_int_equal(gr_desk_on_msg(w->desk, client, m, w->now_ns), GR_OK);
}

static void open_session(struct world *w, uint32_t client)
{
    int32_t prompt[] = {1, 2, 3};
    int32_t segments[] = {0, 3};
    ask(w, client,
        &(struct gr_msg){.type = GR_MSG_OPEN,
                         .open = {.ids = {prompt, 3},
                                  .segments = {segments, 2},
                                  .wishes = {.turn = {.max_tokens = 9}, .sampling = {.top_p = 1.0}, .keep_open = 1}}});
    assert_int_equal(told.n_msg[client][GR_MSG_OPENED], 1);
    take_open(w);
    opened(w);
}

static void append_to(struct world *w, uint32_t client)
{
    int32_t ids[] = {4};
    ask(w, client,
        &(struct gr_msg){
            .type = GR_MSG_APPEND, .session = w->session, .append = {.ids = {ids, 1}, .wishes = {.max_tokens = 9}}});
    take_append(w, w->len, 1);
    opened(w);
}

static void closed(struct world *w)
{
    expect(w, TARGET, GR_MSG_CLOSE);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = w->session});
}

/* Every CLOSE is answered, also a second one while the first is under way. */
static void test_two_closers(void **state)
{
    (void)state;
    struct world *w = make_desk();
    open_session(w, 0);
    commit(w, 7, 1, GR_FINISH_STOP);
    const struct gr_msg close = {.type = GR_MSG_CLOSE, .session = w->session};
    ask(w, 0, &close);
    ask(w, 1, &close);
    assert_int_equal(told.n_msg[1][GR_MSG_ERROR], 1);
    assert_non_null(strstr(told.text, "being closed"));
    closed(w);
    assert_int_equal(told.n_msg[0][GR_MSG_CLOSED], 1);
    assert_int_equal(told.n_msg[1][GR_MSG_CLOSED], 0);
    ask(w, 1, &close);
    assert_int_equal(told.n_msg[1][GR_MSG_ERROR], 2);
    destroy(w);
}

/* Who closed it is gone: the next who asks is answered. */
static void test_closer_goes(void **state)
{
    (void)state;
    struct world *w = make_desk();
    open_session(w, 0);
    commit(w, 7, 1, GR_FINISH_STOP);
    const struct gr_msg close = {.type = GR_MSG_CLOSE, .session = w->session};
    ask(w, 0, &close);
    gr_desk_on_client_lost(w->desk, 0);
    ask(w, 1, &close);
    closed(w);
    assert_int_equal(told.n_msg[0][GR_MSG_CLOSED], 0);
    assert_int_equal(told.n_msg[1][GR_MSG_CLOSED], 1);
    destroy(w);
}

/* Who came when all that may have turns were there: may look and close, not ask for turns. */
static void test_one_too_many(void **state)
{
    (void)state;
    struct world *w = make_desk();
    open_session(w, 0);
    commit(w, 7, 1, GR_FINISH_STOP);
    int32_t ids[] = {1, 2, 3};
    int32_t segments[] = {0, 3};
    const struct gr_msg open = {.type = GR_MSG_OPEN,
                                .open = {.ids = {ids, 3},
                                         .segments = {segments, 2},
                                         .wishes = {.turn = {.max_tokens = 9}, .sampling = {.top_p = 1.0}}}};
    const struct gr_msg append = {
        .type = GR_MSG_APPEND, .session = w->session, .append = {.ids = {ids, 1}, .wishes = {.max_tokens = 9}}};
    ask(w, 2, &open);
    assert_int_equal(told.n_msg[2][GR_MSG_ERROR], 1);
    assert_non_null(strstr(told.text, "2 clients"));
    ask(w, 2, &append);
    assert_int_equal(told.n_msg[2][GR_MSG_ERROR], 2);
    assert_int_equal(w->n_sent, 0);
    ask(w, 2, &(struct gr_msg){.type = GR_MSG_LIST});
    assert_int_equal(told.n_msg[2][GR_MSG_LISTED], 1);
    ask(w, 2, &(struct gr_msg){.type = GR_MSG_CLOSE, .session = w->session});
    closed(w);
    assert_int_equal(told.n_msg[2][GR_MSG_CLOSED], 1);
    destroy(w);
}

static struct gr_msg truncate_of(const struct world *w, uint32_t turn, uint32_t keep_len)
{
    return (struct gr_msg){
        .type = GR_MSG_TRUNCATE, .session = w->session, .truncate = {.turn = turn, .keep_len = keep_len}};
}

/* A TRUNCATE that crosses FINISHED cuts the session all the same, and is answered by a second one. */
static void test_truncate_crosses_the_end(void **state)
{
    (void)state;
    struct world *w = make_desk();
    open_session(w, 0);
    commit(w, 7, 4, GR_FINISH_LENGTH);
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED], 1);
    assert_true(told.turn == 1 && told.cut == 0 && told.finish == GR_FINISH_LENGTH && told.n_token == 7);
    const struct gr_msg truncate = truncate_of(w, 1, 5);
    ask(w, 0, &truncate);
    assert_int_equal(only(w, TARGET, GR_MSG_TRUNCATE)->truncate.keep_len, 5);
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED], 2);
    assert_true(told.cut == 1 && told.finish == GR_FINISH_STOP && told.n_token == 5);
    /* and where nothing is left to be cut */
    const struct gr_msg close = {.type = GR_MSG_CLOSE, .session = w->session};
    ask(w, 1, &close);
    closed(w);
    ask(w, 0, &truncate);
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED], 3);
    assert_true(told.cut == 1 && told.finish == GR_FINISH_STOP && told.n_token == 0);
    destroy(w);
}

/* What another client's turn has begun on by then is not cut: the turn's number tells. */
static void test_truncate_of_another(void **state)
{
    (void)state;
    struct world *w = make_desk();
    open_session(w, 0);
    commit(w, 7, 1, GR_FINISH_STOP);
    append_to(w, 1);
    assert_int_equal(told.turn, 2);
    commit(w, 8, 1, GR_FINISH_NONE);
    for (uint32_t turn = 0; turn < 3; turn++) { /* none, the one that is over, and the one that is not its own */
        const struct gr_msg truncate = truncate_of(w, turn, 3);
        ask(w, 0, &truncate);
        assert_int_equal(told.n_msg[0][GR_MSG_ERROR], turn + 1);
        assert_non_null(strstr(told.text, "it is in turn 2 by now"));
    }
    assert_int_equal(w->n_sent, 0);
    assert_int_equal(told.n_msg[1][GR_MSG_FINISHED], 0);
    commit(w, 9, 1, GR_FINISH_NONE);
    const struct gr_msg own = truncate_of(w, 2, 3);
    ask(w, 1, &own);
    expect(w, TARGET, GR_MSG_TRUNCATE);
    assert_int_equal(told.n_msg[1][GR_MSG_FINISHED], 1);
    assert_int_equal(told.cut, 1);
    destroy(w);
}

/* A client goes away in its turn: the turn is cut, the session stays, nobody else hears of it. */
static void test_client_goes(void **state)
{
    (void)state;
    struct world *w = make_desk();
    open_session(w, 0);
    commit(w, 7, 1, GR_FINISH_NONE);
    gr_desk_on_client_lost(w->desk, 0);
    expect(w, TARGET, GR_MSG_TRUNCATE);
    assert_int_equal(gr_orch_n_turn(w->orch), 0);
    assert_int_equal(gr_orch_n_session(w->orch), 1);
    append_to(w, 1);
    commit(w, 8, 1, GR_FINISH_STOP);
    assert_int_equal(told.n_msg[1][GR_MSG_FINISHED], 1);
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED], 0);
    destroy(w);
}

/* Any client may drain a worker, and is told what is still in a turn with it. */
static void test_drain_worker(void **state)
{
    (void)state;
    struct world *w = make_desk();
    open_session(w, 0);
    struct gr_msg m = {.type = GR_MSG_DRAIN_WORKER, .drain_worker = {.worker = TARGET + 1}};
    ask(w, 2, &m);
    assert_int_equal(told.n_msg[2][GR_MSG_DRAIN_WORKER], 1);
    assert_int_equal(told.drained.n_session, 1);
    assert_int_equal(told.drained.worker, TARGET + 1);
    ask(w, 2, &(struct gr_msg){.type = GR_MSG_LIST});
    assert_int_equal(told.listed.draining, 1);
    assert_int_equal(told.listed.n_active, 1);
    commit(w, 7, 1, GR_FINISH_STOP);
    assert_int_equal(told.n_msg[0][GR_MSG_FINISHED], 1);
    closed(w);
    m.drain_worker.undo = 1;
    ask(w, 2, &m);
    assert_int_equal(told.drained.undo, 1);
    assert_int_equal(told.drained.n_session, 0);
    ask(w, 2, &(struct gr_msg){.type = GR_MSG_LIST});
    assert_int_equal(told.listed.draining, 0);
    for (uint32_t worker = 0; worker < 4; worker += 3) { /* none, and one that has not joined */
        m.drain_worker.worker = worker;
        told.text[0] = '\0';
        ask(w, 2, &m);
        assert_non_null(strstr(told.text, "graft worker list"));
    }
    destroy(w);
}

/* An orchestrator that is to end sends clients elsewhere, whatever is wrong with what they ask; it says so to each. */
static void test_drain_of_all(void **state)
{
    (void)state;
    struct world *w = make_desk();
    int32_t ids[] = {5};
    open_session(w, 0);
    commit(w, 7, 1, GR_FINISH_STOP);
    gr_desk_drain(w->desk);
    ask(w, 1, &(struct gr_msg){.type = GR_MSG_OPEN});
    assert_int_equal(told.code, (uint32_t)-GR_EDRAINING);
    told.code = 0;
    ask(w, 1,
        &(struct gr_msg){
            .type = GR_MSG_APPEND, .session = w->session, .append = {.ids = {ids, 1}, .wishes = {.max_tokens = 9}}});
    assert_int_equal(told.code, (uint32_t)-GR_EDRAINING);
    assert_int_equal(told.n_msg[1][GR_MSG_ERROR], 2);
    assert_non_null(strstr(told.text, "shutting down"));
    destroy(w);
}

/* ---- sessions of an earlier process ---- */

#define OLD 0x77u

/* 3 prompt tokens and 2 generated ones. */
static enum gr_status restore(struct world *w, uint64_t id, bool in_turn, bool keep_open, uint32_t max_tokens)
{
    static int32_t token[] = {5, 6, 7, 40, 41}, segment[] = {GR_SEGMENT_PROMPT, 3, GR_SEGMENT_GENERATED, 2};
    const struct gr_transcript text = {.token = token, .len = 5, .segment = segment, .n_segment = 2};
    const struct gr_wishes wishes = {
        .keep_open = keep_open, .sampling = {.top_p = 1.0f}, .turn = {.max_tokens = max_tokens}};
    return gr_desk_restore(w->desk,
                           &(struct gr_restored_session){.id = id,
                                                         .epoch = 1,
                                                         .in_turn = in_turn,
                                                         .turn = 1,
                                                         .turn_len = 3,
                                                         .text = &text,
                                                         .model = "",
                                                         .numerics_id = "cpu",
                                                         .trace_id = "",
                                                         .wishes = &wishes},
                           w->now_ns);
}

static void append_old(struct world *w, uint32_t client, uint64_t session)
{
    int32_t id = 60;
    ask(w, client,
        &(struct gr_msg){
            .type = GR_MSG_APPEND, .session = session, .append = {.ids = {&id, 1}, .wishes = {.max_tokens = 3}}});
}

static void test_restored_idle(void **state)
{
    (void)state;
    struct world *w = make_desk();
    assert_int_equal(restore(w, OLD, false, true, 8), GR_OK);
    assert_int_equal(restore(w, OLD, false, true, 8), GR_EINVAL);
    append_old(w, 0, OLD);
    assert_int_equal(told.n_msg[0][GR_MSG_OPENED], 1);
    check_reopened(w, OLD, 2, 6, 3, 3);
    opened(w);
    commit(w, 50, 3, GR_FINISH_LENGTH);
    assert_true(told.n_msg[0][GR_MSG_FINISHED] == 1 && told.n_token == 9);
    destroy(w);
}

static void test_restored_turn(void **state)
{
    (void)state;
    struct world *w = make_desk();
    assert_int_equal(restore(w, OLD, true, true, 8), GR_OK);
    append_old(w, 1, OLD);
    assert_int_equal(told.n_msg[1][GR_MSG_ERROR], 1); /* it is in its turn */
    (void)gr_orch_step(w->orch, w->now_ns);
    check_reopened(w, OLD, 2, 5, 2, 6);
    opened(w);
    commit(w, 50, 6, GR_FINISH_LENGTH); /* nobody is told */
    assert_int_equal(w->n_done, 1);
    append_old(w, 1, OLD);
    assert_int_equal(told.n_msg[1][GR_MSG_OPENED], 1);
    destroy(w);
}

/* Who takes a restored turn over is told of it, and alone: it ends when that one goes. */
static void test_restored_turn_is_taken_over(void **state)
{
    (void)state;
    struct world *w = make_desk();
    assert_false(gr_desk_adopt(w->desk, 0, OLD));
    assert_int_equal(restore(w, OLD, true, true, 8), GR_OK);
    assert_true(gr_desk_adopt(w->desk, 0, OLD));
    assert_false(gr_desk_adopt(w->desk, 1, OLD));
    (void)gr_orch_step(w->orch, w->now_ns);
    check_reopened(w, OLD, 2, 5, 2, 6);
    opened(w);
    commit(w, 50, 6, GR_FINISH_LENGTH);
    assert_true(told.n_msg[0][GR_MSG_COMMIT] == 1 && told.n_msg[0][GR_MSG_FINISHED] == 1 && told.n_token == 11);
    assert_false(gr_desk_adopt(w->desk, 0, OLD));
    destroy(w);
}

static void test_restored_over(void **state)
{
    (void)state;
    struct world *w = make_desk();
    assert_int_equal(restore(w, OLD, true, false, 2), GR_OK);
    assert_true(w->n_done == 1 && w->finish == GR_FINISH_LENGTH && w->n_sent == 0);
    append_old(w, 0, OLD);
    assert_true(told.n_msg[0][GR_MSG_ERROR] == 1 && told.code == (uint32_t)-GR_ENOTFOUND);
    destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_closers),         cmocka_unit_test(test_closer_goes),
        cmocka_unit_test(test_one_too_many),        cmocka_unit_test(test_truncate_crosses_the_end),
        cmocka_unit_test(test_truncate_of_another), cmocka_unit_test(test_client_goes),
        cmocka_unit_test(test_drain_worker),        cmocka_unit_test(test_restored_idle),
        cmocka_unit_test(test_restored_turn),       cmocka_unit_test(test_restored_over),
        cmocka_unit_test(test_drain_of_all),        cmocka_unit_test(test_restored_turn_is_taken_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
