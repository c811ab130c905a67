/* What a drafter says of its load: sessions that have rounds, and what their trees take. */
#include "common/base/clock.h"
#include "tests/sim/drafter_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct gr_msg_pong *ping(struct rig *r)
{
    gr_drafter_on_msg(r->drafter, &(struct gr_msg){.type = GR_MSG_PING}, r->now_ns);
    return &r->pong.pong;
}

static void one_round(struct rig *r, int n_want)
{
    (void)rig_verify(r, &r->tree, r->draft_header.round, -1, n_want);
    if (n_want > 0) {
        rig_await_draft(r);
    }
    r->now_ns += GR_MS;
}

static void run_rounds(struct rig *r, int n)
{
    for (int i = 0; i < n; i++) {
        one_round(r, 63);
    }
}

/* Nobody tells it that a turn is over: a session without rounds counts no more after a second, however its link or its
 * attachment fared meanwhile. */
static void test_in_rounds(void **state)
{
    (void)state;
    const struct rig_config c = {.seed = 5, .blur = 3, .n_node = 9, .depth = 4, .top_k = 3};
    struct rig *r = rig_create(&c);
    r->now_ns = GR_S;
    assert_true(ping(r)->n_turn == 0 && r->pong.pong.round_ns == 0);
    rig_start(r, 30, 63);
    run_rounds(r, 5);
    assert_int_equal(ping(r)->n_turn, 1);
    for (int i = 0; i < 3; i++) { /* it counts once, however often it is attached */
        rig_attach(r);
        rig_commit(r, 5);
        r->round++;
        rig_send_delta(r, r->len - 1, RIG_WANT(63));
        rig_await_draft(r);
        run_rounds(r, 3);
        assert_int_equal(ping(r)->n_turn, 1);
    }
    r->now_ns += 2 * GR_S;
    assert_int_equal(ping(r)->n_turn, 0);
    assert_int_equal(r->pong.pong.n_session, 1);
    run_rounds(r, 2);
    assert_int_equal(ping(r)->n_turn, 1);
    gr_drafter_on_msg(r->drafter, &(struct gr_msg){.type = GR_MSG_DETACH, .session = 1}, r->now_ns);
    assert_int_equal(ping(r)->n_turn, 0);
    rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_in_rounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
