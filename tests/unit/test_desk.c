/* The clients' desk over the orchestrator's machine, with a scripted target: who is answered, and who is not. */
#include "common/hash.h"
#include "common/log.h"
#include "orchestrator/desk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N_CLIENT 3

struct world {
    struct gr_orch *orch;
    struct gr_desk *desk;
    int n_msg[N_CLIENT][GR_N_MSG];
    uint64_t session; /* of the last OPENED to a client */
    uint32_t epoch, len;
    uint64_t hash;
    int n_truncate;
    char text[GR_MSG_TEXT_MAX]; /* of the last ERROR */
};

static void to_worker(void *ctx, uint32_t worker, const struct gr_msg *m)
{
    struct world *w = ctx;
    (void)worker;
    w->n_truncate += m->type == GR_MSG_TRUNCATE;
    if (m->type == GR_MSG_OPEN || m->type == GR_MSG_APPEND) {
        w->epoch = m->epoch;
        w->hash = m->type == GR_MSG_APPEND ? m->hash : 0;
        w->len = (m->type == GR_MSG_APPEND ? m->keep_len : 0) + m->ids.n;
        for (uint32_t i = 0; i < m->ids.n; i++) {
            w->hash = gr_hash_extend(w->hash, m->ids.p[i]);
        }
    }
}

static void to_client(void *ctx, uint32_t client, const struct gr_msg *m)
{
    struct world *w = ctx;
    assert_true(client < N_CLIENT);
    w->n_msg[client][m->type]++;
    if (m->type == GR_MSG_OPENED) {
        w->session = m->session;
    } else if (m->type == GR_MSG_ERROR) {
        memcpy(w->text, m->text, sizeof(w->text));
    }
}

static void on_report(void *ctx, uint64_t session, void *user, const struct gr_msg *m)
{
    gr_desk_on_report(((struct world *)ctx)->desk, session, user, m);
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    gr_desk_on_done(((struct world *)ctx)->desk, session, user, finish, text);
}

static void on_closed(void *ctx, uint64_t session, void *user, const char *why)
{
    gr_desk_on_closed(((struct world *)ctx)->desk, session, user, why);
}

static void create(struct world *w)
{
    memset(w, 0, sizeof(*w));
    const struct gr_orch_io io = {.ctx = w, .send = to_worker, .on_report = on_report, .on_done = on_done,
                                  .on_closed = on_closed};
    assert_int_equal(gr_orch_create(&io, &w->orch), GR_OK);
    assert_int_equal(gr_desk_create(w->orch, N_CLIENT, &(struct gr_desk_io){.ctx = w, .send = to_client}, &w->desk),
                     GR_OK);
    assert_int_equal(gr_orch_on_join(w->orch, 0, GR_WORKER_TARGET, "t:1", 0), GR_OK);
}

static void destroy(struct world *w)
{
    gr_desk_destroy(w->desk);
    gr_orch_destroy(w->orch);
}

static void ask(struct world *w, uint32_t client, const struct gr_msg *m)
{
    assert_int_equal(gr_desk_on_msg(w->desk, client, m, 0), GR_OK);
}

static void answer(struct world *w, enum gr_msg_type type)
{
    const struct gr_msg m = {.type = type, .session = w->session, .epoch = w->epoch};
    assert_int_equal(gr_orch_on_msg(w->orch, 0, &m, 0), GR_OK);
}

static void commit(struct world *w, int32_t id, enum gr_finish finish)
{
    const struct gr_msg m = {.type = GR_MSG_COMMIT, .session = w->session, .epoch = w->epoch, .keep_len = w->len,
                             .final_len = w->len + 1, .ids = {.p = &id, .n = 1}, .hash = gr_hash_extend(w->hash, id),
                             .finish = finish};
    assert_int_equal(gr_orch_on_msg(w->orch, 0, &m, 0), GR_OK);
    w->hash = m.hash;
    w->len++;
}

static void open_session(struct world *w, uint32_t client)
{
    int32_t prompt[] = {1, 2, 3};
    int32_t segments[] = {0, 3};
    ask(w, client, &(struct gr_msg){.type = GR_MSG_OPEN, .ids = {prompt, 3}, .segments = {segments, 2}, .max_tokens = 9,
                                    .top_p = 1.0, .keep_open = 1});
    assert_int_equal(w->n_msg[client][GR_MSG_OPENED], 1);
    answer(w, GR_MSG_OPENED);
}

static void append_to(struct world *w, uint32_t client)
{
    int32_t ids[] = {4};
    ask(w, client, &(struct gr_msg){.type = GR_MSG_APPEND, .session = w->session, .ids = {ids, 1}, .max_tokens = 9});
    answer(w, GR_MSG_OPENED);
}

/* Every CLOSE is answered, also a second one while the first is under way. */
static void test_two_closers(void **state)
{
    (void)state;
    struct world w;
    create(&w);
    open_session(&w, 0);
    commit(&w, 7, GR_FINISH_STOP);
    const struct gr_msg close = {.type = GR_MSG_CLOSE, .session = w.session};
    ask(&w, 0, &close);
    ask(&w, 1, &close);
    assert_int_equal(w.n_msg[1][GR_MSG_ERROR], 1);
    assert_non_null(strstr(w.text, "being closed"));
    answer(&w, GR_MSG_CLOSED);
    assert_int_equal(w.n_msg[0][GR_MSG_CLOSED], 1);
    assert_int_equal(w.n_msg[1][GR_MSG_CLOSED], 0);
    ask(&w, 1, &close);
    assert_int_equal(w.n_msg[1][GR_MSG_ERROR], 2);
    destroy(&w);
}

/* Who closed it is gone: the next who asks is answered. */
static void test_closer_goes(void **state)
{
    (void)state;
    struct world w;
    create(&w);
    open_session(&w, 0);
    commit(&w, 7, GR_FINISH_STOP);
    const struct gr_msg close = {.type = GR_MSG_CLOSE, .session = w.session};
    ask(&w, 0, &close);
    gr_desk_on_client_lost(w.desk, 0);
    ask(&w, 1, &close);
    answer(&w, GR_MSG_CLOSED);
    assert_int_equal(w.n_msg[0][GR_MSG_CLOSED], 0);
    assert_int_equal(w.n_msg[1][GR_MSG_CLOSED], 1);
    destroy(&w);
}

/* A TRUNCATE that crosses FINISHED changes nothing, also when another client's turn has begun meanwhile. */
static void test_truncate_of_another(void **state)
{
    (void)state;
    struct world w;
    create(&w);
    open_session(&w, 0);
    commit(&w, 7, GR_FINISH_STOP);
    assert_int_equal(w.n_msg[0][GR_MSG_FINISHED], 1);
    append_to(&w, 1);
    commit(&w, 8, GR_FINISH_NONE);
    const struct gr_msg truncate = {.type = GR_MSG_TRUNCATE, .session = w.session, .keep_len = 3};
    ask(&w, 0, &truncate);
    assert_int_equal(w.n_truncate, 0);
    assert_int_equal(w.n_msg[1][GR_MSG_FINISHED], 0);
    commit(&w, 9, GR_FINISH_NONE);
    ask(&w, 1, &truncate);
    assert_int_equal(w.n_truncate, 1);
    assert_int_equal(w.n_msg[1][GR_MSG_FINISHED], 1);
    destroy(&w);
}

/* A client goes away in its turn: the turn is cut, the session stays, nobody else hears of it. */
static void test_client_goes(void **state)
{
    (void)state;
    struct world w;
    create(&w);
    open_session(&w, 0);
    commit(&w, 7, GR_FINISH_NONE);
    gr_desk_on_client_lost(w.desk, 0);
    assert_int_equal(w.n_truncate, 1);
    assert_int_equal(gr_orch_n_turn(w.orch), 0);
    assert_int_equal(gr_orch_n_session(w.orch), 1);
    append_to(&w, 1);
    commit(&w, 8, GR_FINISH_STOP);
    assert_int_equal(w.n_msg[1][GR_MSG_FINISHED], 1);
    assert_int_equal(w.n_msg[0][GR_MSG_FINISHED], 0);
    destroy(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_closers),
        cmocka_unit_test(test_closer_goes),
        cmocka_unit_test(test_truncate_of_another),
        cmocka_unit_test(test_client_goes),
    };
    gr_log_set_level(GR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
