/* Turns that wait: their order, how many may, their places, and the end of their time. */
#include "orchestrator/machine/queue_order.h"
#include "tests/unit/orch_fleet.h"

/* ---- the order ---- */

static void expect_order(struct gr_queue_entry *e, int n, const char *ids)
{
    char got[64] = "";
    gr_queue_sort(e, n);
    for (int i = 0; i < n; i++) {
        const size_t len = strlen(got);
        snprintf(got + len, sizeof(got) - len, "%s%d", i > 0 ? " " : "", (int)e[i].arrival);
    }
    assert_string_equal(got, ids);
}

static void test_order(void **state)
{
    (void)state;
    struct gr_queue_entry arrival[] = {{.arrival = 3}, {.arrival = 1}, {.arrival = 2}};
    expect_order(arrival, 3, "1 2 3");
    struct gr_queue_entry tags[] = {{.arrival = 1, .tag = 9}, {.arrival = 2, .tag = 8}, {.arrival = 3, .tag = 9}};
    expect_order(tags, 3, "2 1 3");
    struct gr_queue_entry priority[] = {{.arrival = 1, .priority = 5, .tag = 1},
                                        {.arrival = 2, .priority = 4, .tag = 9},
                                        {.arrival = 3, .priority = 5}};
    expect_order(priority, 3, "2 3 1");
    expect_order(NULL, 0, "");
}

static void test_tags(void **state)
{
    (void)state;
    assert_int_equal(gr_queue_tag(0, 0), 1);
    assert_int_equal(gr_queue_tag(4, 2), 5); /* who was away gains nothing by it */
    assert_int_equal(gr_queue_tag(4, 7), 8); /* who has turns here comes after them */
}

/* ---- the machine ---- */

static uint64_t queue_session(struct fleet *f, uint64_t owner, uint64_t timeout_ns)
{
    struct gr_session_request q = usual_request(false);
    uint64_t id = 0;
    q.wishes.queues = true;
    q.wishes.owner = owner;
    q.wishes.turn.timeout_ns = timeout_ns;
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &id), GR_OK);
    settle(f);
    return id;
}

static struct fleet *make_busy(uint32_t n_slot, const struct gr_orch_config *config)
{
    struct fleet *f = make_fleet();
    gr_orch_configure(f->orch, config);
    join(f, 0, GR_WORKER_TARGET, n_slot);
    return f;
}

static uint64_t step(struct fleet *f, uint64_t later_ns)
{
    f->now_ns += later_ns;
    const uint64_t at_ns = gr_orch_step(f->orch, f->now_ns);
    settle(f);
    return at_ns;
}

static bool runs(const struct fleet *f, uint64_t id)
{
    return info_of(f, id).state == GR_SESSION_RUNNING;
}

static void test_places(void **state)
{
    (void)state;
    struct fleet *f = make_busy(1, &(struct gr_orch_config){0});
    const uint64_t first = queue_session(f, 1, 0);
    uint64_t a[3], b = 0;
    for (int i = 0; i < 3; i++) {
        a[i] = queue_session(f, 1, 0);
    }
    b = queue_session(f, 2, 0);
    assert_true(runs(f, first));
    (void)step(f, 0);
    assert_int_equal(f->place[a[0]], 1);
    assert_int_equal(f->place[b], 2);
    assert_int_equal(f->place[a[2]], 4);
    end_turn(f, first);
    settle(f);
    assert_true(runs(f, a[0]) && !runs(f, b)); /* both were first of their owners */
    assert_true(step(f, GR_MS) <= f->now_ns + 500 * GR_MS);
    assert_int_equal(f->place[a[2]], 4); /* not said again at once */
    (void)step(f, 500 * GR_MS);
    assert_int_equal(f->place[a[2]], 3);
    destroy_fleet(f);
}

/* What waits comes before what comes now, though a slot is free at this moment. */
static void test_no_overtaking(void **state)
{
    (void)state;
    struct fleet *f = make_busy(1, &(struct gr_orch_config){0});
    struct gr_session_request q = usual_request(true);
    uint64_t kept = 0, late = 0;
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &kept), GR_OK);
    settle(f);
    const uint64_t waits = queue_session(f, 0, 0);
    end_turn(f, kept); /* it stays, and its slot is free */
    q = usual_request(false);
    q.wishes.queues = true;
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &late), GR_OK);
    (void)step(f, 0);
    assert_true(runs(f, waits) && !runs(f, late));
    destroy_fleet(f);
}

static void test_bound(void **state)
{
    (void)state;
    struct fleet *f = make_busy(1, &(struct gr_orch_config){.n_queue_max = 2});
    struct gr_session_request q = usual_request(false);
    uint64_t id = 0;
    q.wishes.queues = true;
    const uint64_t first = queue_session(f, 0, 0);
    const uint64_t second = queue_session(f, 0, 0);
    (void)queue_session(f, 0, 0);
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &id), GR_AGAIN);
    assert_non_null(strstr(gr_orch_why(f->orch), "--queue-max"));
    q.wishes.queues = false; /* it does not wait: the bound is not for it */
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &id), GR_OK);
    settle(f);
    end_turn(f, id);
    end_turn(f, first);
    settle(f);
    assert_true(runs(f, second));
    q.wishes.queues = true;
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &id), GR_OK);
    destroy_fleet(f);
}

/* With one slot, who has sent five before another one sends two waits for these in turn; and who comes back later has
 * saved nothing up. */
static void test_owners_take_turns(void **state)
{
    (void)state;
    static const uint64_t owner_served[] = {7, 7, 9, 7, 9, 7, 7};
    struct fleet *f = make_busy(1, &(struct gr_orch_config){0});
    f->ids_fall = true;
    uint64_t id[7], owner[7];
    for (int i = 0; i < 7; i++) {
        owner[i] = i < 5 ? 7 : 9;
        id[i] = queue_session(f, owner[i], 0);
    }
    for (int n = 0; n < 7; n++) {
        int at = -1;
        struct gr_session_info info;
        for (int i = 0; i < 7; i++) {
            at = gr_orch_session_info(f->orch, id[i], f->now_ns, &info) && runs(f, id[i]) ? i : at;
        }
        assert_true(at >= 0);
        assert_int_equal(owner[at], owner_served[n]);
        end_turn(f, id[at]);
        settle(f);
    }
    destroy_fleet(f);
}

/* The target's slot is free before the drafter has told its statistics, upon which the session is gone. */
static void test_statistics_come_last(void **state)
{
    (void)state;
    struct fleet *f = make_busy(1, &(struct gr_orch_config){0});
    join(f, 1, GR_WORKER_DRAFT, 0);
    settle(f);
    const uint64_t first = queue_session(f, 0, 0);
    const uint64_t waits = queue_session(f, 0, 0);
    end_turn(f, first);
    assert_int_equal(f->n_queue, 2);
    const struct said stats = f->queue[0];
    assert_int_equal(stats.m.type, GR_MSG_DRAFT_STATS);
    f->queue[0] = f->queue[1];
    f->queue[1] = stats;
    settle(f);
    (void)step(f, 0);
    assert_true(runs(f, waits));
    destroy_fleet(f);
}

/* A turn's time ends while it waits, and while it runs; the slot is free for the next one. */
static void test_time_is_over(void **state)
{
    (void)state;
    struct fleet *f = make_busy(1, &(struct gr_orch_config){0});
    const uint64_t runner = queue_session(f, 0, 3 * GR_S);
    const uint64_t waits = queue_session(f, 0, GR_S);
    const uint64_t patient = queue_session(f, 0, 0);
    assert_true(step(f, 0) <= f->now_ns + GR_S);
    (void)step(f, GR_S - 1);
    assert_int_equal(f->n_done, 0);
    (void)step(f, 1);
    struct gr_session_info gone;
    assert_false(gr_orch_session_info(f->orch, waits, f->now_ns, &gone));
    assert_int_equal(f->n_done, 1);
    assert_int_equal(f->finish, GR_FINISH_TIMEOUT);
    assert_non_null(strstr(f->text, "the 1 s that it was given"));
    assert_non_null(strstr(f->text, "waiting"));
    assert_true(runs(f, runner) && !runs(f, patient));
    (void)step(f, 2 * GR_S);
    assert_int_equal(f->n_done, 2);
    assert_int_equal(f->finish, GR_FINISH_TIMEOUT);
    assert_null(strstr(f->text, "waiting"));
    assert_true(runs(f, patient));
    destroy_fleet(f);
}

/* A kept session outlives the turn whose time was over. */
static void test_kept_session_stays(void **state)
{
    (void)state;
    struct fleet *f = make_busy(1, &(struct gr_orch_config){0});
    struct gr_session_request q = usual_request(true);
    uint64_t id = 0;
    q.wishes.turn.timeout_ns = GR_S;
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &id), GR_OK);
    settle(f);
    (void)step(f, GR_S);
    assert_int_equal(f->finish, GR_FINISH_TIMEOUT);
    assert_int_equal(info_of(f, id).state, GR_SESSION_IDLE);
    append(f, id); /* the next turn says anew what it wishes */
    settle(f);
    (void)step(f, 10 * GR_S);
    assert_true(runs(f, id));
    destroy_fleet(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_no_overtaking),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_owners_take_turns),
        cmocka_unit_test(test_statistics_come_last),
        cmocka_unit_test(test_time_is_over),
        cmocka_unit_test(test_kept_session_stays),
    };
    return cmocka_run_group_tests_name("queue", tests, NULL, NULL);
}
