/* Workers, room and time in the orchestrator's machine: drafters, misfits, pings, session_ttl, least recently used. */
#include "tests/unit/orch_world.h"

/* ---- drafters ---- */

static void test_drafter_stays_between_turns(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    join_drafter(w);
    const uint64_t id = submit(w, true, true);
    assert_int_equal(w->sent[0].open.wishes.want_draft, 1);
    take_open(w);
    opened(w);
    const struct gr_msg *m = only(w, DRAFTER, GR_MSG_ATTACH);
    assert_string_equal(m->attach.address, "t:1");
    assert_int_equal(m->attach.wishes.draft_ahead, 0); /* auto: both on one host's CPUs */
    say(w, DRAFTER,
        &(struct gr_msg){.type = GR_MSG_ATTACHED, .session = id, .attached = {.epoch = 1, .transport = "shm"}});
    commit(w, 40, 2, GR_FINISH_STOP);
    assert_int_equal(w->n_sent, 0);
    const struct gr_turn_request t = turn_of(more, 1);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 5, 1);
    opened(w);
    assert_int_equal(w->n_sent, 0); /* still attached */
    gr_orch_on_lost(w->orch, DRAFTER, w->now_ns);
    join_drafter(w);
    expect(w, DRAFTER, GR_MSG_ATTACH);
    commit(w, 60, 2, GR_FINISH_STOP);
    assert_int_equal(gr_orch_metrics(w->orch, id)->fallbacks, 1);
    assert_non_null(strstr(log_fallback_last, "its draft worker is lost")); /* GR_FALLBACK_DRAFTER_LOST */
    assert_int_equal(gr_orch_close(w->orch, id), GR_OK);
    assert_int_equal(w->n_sent, 2);
    assert_int_equal(w->sent[0].type, GR_MSG_DETACH);
    assert_int_equal(w->sent[1].type, GR_MSG_CLOSE);
    w->n_sent = 0;
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(w->n_closed, 0);
    say(w, DRAFTER,
        &(struct gr_msg){
            .type = GR_MSG_DRAFT_STATS, .session = id, .draft_stats = {.n_round = 3, .draft_ns = 30, .n_hit = 2}});
    assert_int_equal(w->n_closed, 1);
    destroy(w);
}

/* A session opened while no drafter was there is opened over itself for its next turn, and gets one. */
static void test_drafter_comes_between_turns(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    const struct gr_turn_request t = turn_of(more, 1);
    join_target(w);
    const uint64_t id = submit(w, true, true);
    assert_int_equal(w->sent[0].open.wishes.want_draft, 0);
    take_open(w);
    opened(w);
    commit(w, 40, 2, GR_FINISH_STOP);
    join_drafter(w);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    assert_int_equal(w->sent[0].open.wishes.want_draft, 1);
    check_reopened(w, id, 2, 6, 3, 8);
    opened(w);
    expect(w, DRAFTER, GR_MSG_ATTACH);
    commit(w, 60, 1, GR_FINISH_STOP);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 7, 1); /* it has one now */
    destroy(w);
    /* refused, as by a target that is still in a pass: closed, and opened again */
    w = make(NULL);
    join_target(w);
    const uint64_t other = submit(w, true, true);
    take_open(w);
    opened(w);
    commit(w, 40, 2, GR_FINISH_STOP);
    join_drafter(w);
    assert_int_equal(gr_orch_append(w->orch, other, &t, w->now_ns), GR_OK);
    expect(w, TARGET, GR_MSG_OPEN);
    say(w, TARGET,
        &(struct gr_msg){.type = GR_MSG_ERROR, .session = other, .error = {.code = 1, .text = "open already"}});
    expect(w, TARGET, GR_MSG_CLOSE);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = other});
    check_reopened(w, other, 3, 6, 3, 8);
    destroy(w);
}

/* The first turn is stopped before the target answers its OPEN; meanwhile a drafter comes. The late answer is one of an
 * earlier epoch, and must not be counted as owed for ever. */
static void test_late_answer_of_another_epoch(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    const struct gr_turn_request t = turn_of(more, 1);
    join_target(w);
    const uint64_t id = submit(w, true, true);
    take_open(w);
    assert_int_equal(gr_orch_stop(w->orch, id, 0, 0, GR_FINISH_STOP), GR_OK);
    expect(w, TARGET, GR_MSG_TRUNCATE);
    join_drafter(w);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    opened(w); /* to the OPEN of the turn that was stopped */
    assert_int_equal(state_of(w, id), GR_SESSION_OPENING);
    check_reopened(w, id, 2, 4, 2, 8);
    opened(w);
    assert_int_equal(state_of(w, id), GR_SESSION_RUNNING);
    expect(w, DRAFTER, GR_MSG_ATTACH);
    destroy(w);
}

static void test_switches(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.force_single_token = true});
    join_target(w);
    join_drafter(w);
    submit(w, false, true);
    assert_int_equal(w->sent[0].open.wishes.single_token, 1);
    assert_int_equal(w->sent[0].open.wishes.want_draft, 1);
    destroy(w);
    w = make(&(struct gr_orch_config){.disable_multi_token = true});
    join_target(w);
    join_drafter(w);
    submit(w, false, true);
    assert_int_equal(w->sent[0].open.wishes.single_token, 0);
    assert_int_equal(w->sent[0].open.wishes.want_draft, 0);
    take_open(w);
    opened(w);
    assert_int_equal(w->n_sent, 0); /* no ATTACH */
    destroy(w);
}

static void test_draft_ahead_auto(void **state)
{
    (void)state;
    static const struct {
        const char *host, *numerics, *of_target;
        uint32_t pid, want;
    } rows[] = {
        {"a", "cpu/x", "cpu", 5, 0},           {"b", "cpu/x", "cpu", 5, 1},
        {"a", "cuda/sm90", "cpu", 5, 1},       {"a", "cpu/x", "cuda/sm90", 5, 1},
        {"a", "cuda/sm90", "cuda/sm90", 5, 1}, {"a", "cuda/sm90", "cuda/sm90", 4, 0} /* one process: one GPU */};
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        struct world *w = make(NULL);
        struct gr_worker_info info = draft_info();
        struct gr_worker_info target = target_info();
        target.pid = 4;
        snprintf(target.numerics_id, sizeof(target.numerics_id), "%s", rows[i].of_target);
        assert_int_equal(gr_orch_join(w->orch, TARGET, &target, w->now_ns), GR_OK);
        info.pid = rows[i].pid;
        snprintf(info.host_id, sizeof(info.host_id), "%s", rows[i].host);
        snprintf(info.numerics_id, sizeof(info.numerics_id), "%s", rows[i].numerics);
        assert_int_equal(gr_orch_join(w->orch, DRAFTER, &info, w->now_ns), GR_OK);
        submit(w, false, true);
        take_open(w);
        opened(w);
        assert_int_equal(only(w, DRAFTER, GR_MSG_ATTACH)->attach.wishes.draft_ahead, rows[i].want);
        destroy(w);
    }
}

/* A choice reaches both workers, whose session it forks the target alone, also when it is opened again. */
static void test_choice_and_fork(void **state)
{
    (void)state;
    static const int32_t prompt[] = {1, 2};
    struct world *w = make(NULL);
    uint64_t id = 0;
    join_target(w);
    join_drafter(w);
    const struct gr_session_request q = {.prompt = prompt,
                                         .n_prompt = 2,
                                         .wishes = {.turn = {.max_tokens = 9},
                                                    .want_draft = true,
                                                    .fork_of = 77, /* none that it knows: the target may */
                                                    .sampling = {.top_p = 1.0f, .seed = 3, .choice = 5}}};
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_OK);
    for (int again = 0; again < 2; again++) {
        const struct gr_wishes *open = &w->sent[0].open.wishes;
        assert_int_equal(w->sent[0].type, GR_MSG_OPEN);
        assert_int_equal(open->sampling.choice, 5);
        assert_int_equal(open->fork_of, 77);
        w->n_sent = 0;
        say(w, TARGET,
            &(struct gr_msg){.type = GR_MSG_OPENED, .session = id, .opened = {.epoch = 1 + (uint32_t)again}});
        assert_int_equal(only(w, DRAFTER, GR_MSG_ATTACH)->attach.wishes.sampling.choice, 5);
        gr_orch_on_lost(w->orch, TARGET, w->now_ns);
        w->n_sent = 0;
        join_target(w);
    }
    destroy(w);
}

/* ---- who may join ---- */

/* A drafter for which no target is here joins, with a warning, and is not attached; a session says that it was there.
 */
static void test_drafter_of_no_target(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        struct world *w = make(NULL);
        struct gr_worker_info info = draft_info();
        struct gr_session_info seen;
        join_target(w);
        info.tokenizer_fingerprint += way == 0;
        info.n_vocab += way == 1;
        info.feature_width = way == 2 ? 96 : 0; /* a head, which this target does not serve */
        const int n_told = log_count_n;
        assert_int_equal(gr_orch_join(w->orch, 2, &info, w->now_ns), GR_OK);
        assert_int_equal(log_count_n, n_told + 1);
        const uint64_t id = submit(w, false, true);
        take_open(w);
        opened(w);
        assert_int_equal(w->n_sent, 0);
        assert_true(gr_orch_session_info(w->orch, id, w->now_ns, &seen));
        static const char *const why[] = {"its tokenizer has", "its vocabulary has", "it serves no head"};
        assert_non_null(strstr(seen.undrafted, "is for its model; draft worker 3 and target worker 1: "));
        assert_non_null(strstr(seen.undrafted, why[way]));
        join_drafter(w); /* of the target that is here */
        expect(w, DRAFTER, GR_MSG_ATTACH);
        destroy(w);
    }
}

/* A drafter that was there first is told of when a target has come that is none for it, once. */
static void test_target_of_no_drafter(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    struct gr_worker_info drafter = draft_info(), other = target_info();
    drafter.feature_width = 96;
    int n_told = log_count_n;
    assert_int_equal(gr_orch_join(w->orch, 2, &drafter, w->now_ns), GR_OK);
    assert_int_equal(log_count_n, n_told);
    join_target(w);
    assert_int_equal(log_count_n, n_told + 1);
    other.incarnation++;
    assert_int_equal(gr_orch_join(w->orch, 3, &other, w->now_ns), GR_OK);
    assert_int_equal(log_count_n, n_told + 1);
    destroy(w);
}

static void test_other_tokenizer_of_a_client(void **state)
{
    (void)state;
    static const int32_t prompt[] = {1};
    struct world *w = make(NULL);
    uint64_t id = 0;
    join_target(w);
    const struct gr_session_request q = {
        .prompt = prompt, .n_prompt = 1, .wishes = {.turn = {.max_tokens = 1}}, .tokenizer_fingerprint = 8};
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_OK);
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->finish, GR_FINISH_UNSERVED);
    assert_non_null(strstr(w->text, "0000000000000008"));
    assert_non_null(strstr(w->text, "0000000000000007"));
    assert_int_equal(w->n_sent, 0);
    destroy(w);
}

/* ---- room and time ---- */

/* A target that computes in another order: a session without generated text does not mind; with some it is said and
 * counted, or forbidden. */
static void test_other_numerics(void **state)
{
    (void)state;
    for (int strict = 0; strict < 2; strict++) {
        for (uint32_t n_token = 0; n_token < 4; n_token += 2) {
            struct world *w = make(&(struct gr_orch_config){.require_same_numerics = strict == 1});
            struct gr_worker_info other = target_info();
            snprintf(other.numerics_id, sizeof(other.numerics_id), "cuda/sm90");
            join_target(w);
            const uint64_t id = submit(w, false, true);
            const int n_told = log_fallback_n;
            take_open(w);
            opened(w);
            if (n_token > 0) {
                commit(w, 40, n_token, GR_FINISH_NONE);
            }
            gr_orch_on_lost(w->orch, TARGET, w->now_ns);
            assert_int_equal(gr_orch_join(w->orch, TARGET, &other, w->now_ns), GR_OK);
            if (strict == 1 && n_token > 0) {
                assert_int_equal(w->n_done, 1);
                assert_int_equal(w->finish, GR_FINISH_ERROR);
                assert_non_null(strstr(w->text, "computes as cpu, the one there is now as cuda/sm90"));
                assert_non_null(strstr(w->text, "--require-same-numerics"));
            } else {
                take_open(w);
                opened(w);
                assert_int_equal(gr_orch_metrics(w->orch, id)->fallbacks, n_token > 0);
                assert_int_equal(log_fallback_n - n_told, n_token > 0); /* GR_FALLBACK_NUMERICS */
                gr_orch_on_lost(w->orch, TARGET, w->now_ns);            /* again one of this kind: nothing new */
                assert_int_equal(gr_orch_join(w->orch, TARGET, &other, w->now_ns), GR_OK);
                take_open(w);
                assert_int_equal(gr_orch_metrics(w->orch, id)->fallbacks, n_token > 0);
            }
            destroy(w);
        }
    }
}

static void test_least_recently_used_goes(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.n_session_max = 2});
    static const int32_t prompt[] = {1};
    const struct gr_session_request q = {.prompt = prompt, .n_prompt = 1, .wishes = {.turn = {.max_tokens = 1}}};
    uint64_t id = 0;
    join_target(w);
    const uint64_t first = idle_session(w);
    w->now_ns += GR_S;
    const uint64_t second = idle_session(w);
    w->now_ns += GR_S;
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_OK);
    assert_int_equal(state_of(w, first), GR_SESSION_FREE);
    assert_int_equal(state_of(w, second), GR_SESSION_IDLE);
    assert_int_equal(w->n_closed, 1);
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_OK);
    assert_int_equal(state_of(w, second), GR_SESSION_FREE);
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_AGAIN); /* both are in a turn */
    assert_non_null(strstr(gr_orch_why(w->orch), "all 2 sessions"));
    destroy(w);
}

static void test_session_ttl(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.session_ttl_ns = 10 * GR_S});
    join_target(w);
    const uint64_t id = idle_session(w);
    const uint64_t begin_ns = w->now_ns;
    assert_int_equal(gr_orch_step(w->orch, begin_ns), begin_ns + 10 * GR_S);
    assert_int_equal(gr_orch_step(w->orch, begin_ns + 10 * GR_S - 1), begin_ns + 10 * GR_S);
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    assert_true(gr_orch_step(w->orch, begin_ns + 10 * GR_S) == UINT64_MAX);
    expect(w, TARGET, GR_MSG_CLOSE);
    assert_int_equal(w->n_closed, 1);
    assert_non_null(strstr(w->why, "session_ttl"));
    destroy(w);
}

/* Also where its turn was given up: it is idle from then on. */
static void test_session_ttl_after_a_turn_that_no_target_took(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(&(struct gr_orch_config){.session_ttl_ns = 20 * GR_S, .queue_timeout_ns = 5 * GR_S});
    join_target(w);
    const uint64_t id = idle_session(w);
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    const int n_done = w->n_done;
    const struct gr_turn_request t = turn_of(more, 1);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    w->now_ns += 5 * GR_S;
    (void)gr_orch_step(w->orch, w->now_ns);
    assert_int_equal(w->n_done, n_done + 1);
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    assert_int_equal(gr_orch_step(w->orch, w->now_ns), w->now_ns + 20 * GR_S);
    (void)gr_orch_step(w->orch, w->now_ns + 20 * GR_S);
    assert_int_equal(gr_orch_n_session(w->orch), 0);
    destroy(w);
}

static void test_purge(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    idle_session(w);
    idle_session(w);
    const uint64_t busy = submit(w, true, false);
    w->n_sent = 0;
    assert_int_equal(gr_orch_purge(w->orch), 2);
    assert_int_equal(w->n_closed, 2);
    assert_int_equal(gr_orch_n_session(w->orch), 1);
    assert_int_equal(state_of(w, busy), GR_SESSION_OPENING);
    assert_int_equal(gr_orch_purge(w->orch), 0);
    destroy(w);
}

static void test_silent_workers(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.ping_interval_ns = GR_S, .ping_timeout_ns = 5 * GR_S});
    const struct gr_msg pong = {.type = GR_MSG_PONG, .pong = {.n_session = 0, .n_vocab = 100}};
    struct gr_worker_status status;
    join_target(w);
    const uint64_t begin_ns = w->now_ns;
    assert_int_equal(gr_orch_step(w->orch, begin_ns), begin_ns + GR_S);
    for (int s = 1; s <= 20; s++) { /* answers each after 300 ms */
        w->now_ns = begin_ns + (uint64_t)s * GR_S;
        gr_orch_step(w->orch, w->now_ns);
        expect(w, TARGET, GR_MSG_PING);
        w->now_ns += 300 * GR_MS;
        say(w, TARGET, &pong);
        gr_orch_step(w->orch, w->now_ns);
    }
    assert_non_null(gr_orch_worker(w->orch, TARGET, &status));
    assert_int_equal(status.rtt_ns, 300 * GR_MS);
    for (int s = 21; s <= 25; s++) { /* and then no more */
        w->now_ns = begin_ns + (uint64_t)s * GR_S;
        gr_orch_step(w->orch, w->now_ns);
        expect(w, TARGET, GR_MSG_PING);
        assert_int_equal(w->n_dropped, 0);
    }
    gr_orch_step(w->orch, begin_ns + 26 * GR_S);
    assert_int_equal(w->n_dropped, 1);
    assert_int_equal(w->dropped, TARGET);
    assert_null(gr_orch_worker(w->orch, TARGET, &status));
    destroy(w);
}

/* The orchestrator itself was stopped for a minute: nobody is taken as lost for that. */
static void test_own_absence(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.ping_interval_ns = GR_S, .ping_timeout_ns = 5 * GR_S});
    join_target(w);
    gr_orch_step(w->orch, w->now_ns);
    gr_orch_step(w->orch, w->now_ns + GR_S);
    gr_orch_step(w->orch, w->now_ns + 60 * GR_S);
    assert_int_equal(w->n_dropped, 0);
    destroy(w);
}

static void test_pings_of_clients(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    const struct gr_msg pong = {.type = GR_MSG_PONG, .pong = {.n_session = 0, .n_vocab = 100}};
    join_target(w);
    assert_int_equal(gr_orch_ping(w->orch, 5, 1, w->now_ns), GR_ENOTFOUND);
    for (uint64_t i = 1; i <= 16; i++) {
        assert_int_equal(gr_orch_ping(w->orch, TARGET, i, w->now_ns + i), GR_OK);
    }
    assert_int_equal(gr_orch_ping(w->orch, TARGET, 17, w->now_ns), GR_AGAIN);
    w->now_ns += 100;
    for (uint64_t i = 1; i <= 16; i++) {
        say(w, TARGET, &pong);
        assert_int_equal(w->cookie, i);
        assert_int_equal(w->rtt_ns, 100 - i);
    }
    say(w, TARGET, &pong); /* unasked */
    assert_int_equal(w->n_pong, 16);
    destroy(w);
}

static void test_strange_messages(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    join_drafter(w);
    const uint64_t id = idle_session(w);
    for (int t = 0; t < GR_N_MSG; t++) { /* about a session that is unknown, idle, or another worker's */
        for (uint64_t s = 0; s < 3; s++) {
            const struct gr_msg m = {.type = (enum gr_msg_type)t, .session = s == 0 ? 99 : id};
            enum gr_status st = gr_orch_on_msg(w->orch, s == 2 ? DRAFTER : TARGET, &m, w->now_ns);
            assert_true(st == GR_OK || st == GR_EPROTO);
        }
    }
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    assert_int_equal(w->n_done, 1);
    destroy(w);
}

static const struct gr_msg drain = {.type = GR_MSG_DRAIN};

/* It finishes its turn, and is then told to end; the session's next turn begins elsewhere. */
static void test_a_worker_leaves(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    const struct gr_turn_request t = turn_of(more, 1);
    join_target(w);
    const uint64_t id = submit(w, true, false);
    take_open(w);
    opened(w);
    say(w, TARGET, &drain);
    (void)gr_orch_step(w->orch, w->now_ns);
    assert_int_equal(w->n_sent, 0);
    assert_int_equal(gr_orch_n_worker(w->orch, GR_WORKER_TARGET), 0);
    const uint64_t other = submit(w, true, false);
    assert_int_equal(state_of(w, other), GR_SESSION_WAITING);
    commit(w, 40, 2, GR_FINISH_STOP);
    (void)gr_orch_step(w->orch, w->now_ns);
    expect(w, TARGET, GR_MSG_DRAIN);
    (void)gr_orch_step(w->orch, w->now_ns);
    assert_int_equal(w->n_sent, 0); /* once */
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    expect(w, TARGET, GR_MSG_CLOSE);
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    assert_int_equal(state_of(w, id), GR_SESSION_WAITING);
    destroy(w);
}

/* One that nobody needs is let go at once, also by itself before its link is looked at again. */
static void test_an_idle_worker_leaves(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    join_drafter(w);
    const uint64_t id = idle_session(w);
    w->n_sent = 0;
    say(w, DRAFTER, &drain);
    say(w, DRAFTER, &drain);
    (void)gr_orch_step(w->orch, w->now_ns);
    expect(w, DRAFTER, GR_MSG_DRAIN);
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    destroy(w);
}

static void test_queue_timeout(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.queue_timeout_ns = 5 * GR_S});
    const uint64_t id = submit(w, false, false);
    const uint64_t end_ns = w->now_ns + 5 * GR_S;
    assert_int_equal(gr_orch_step(w->orch, w->now_ns), end_ns);
    assert_int_equal(state_of(w, id), GR_SESSION_WAITING);
    assert_int_equal(gr_orch_step(w->orch, end_ns - 1), end_ns);
    assert_int_equal(w->n_done, 0);
    (void)gr_orch_step(w->orch, end_ns);
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->finish, GR_FINISH_UNSERVED);
    assert_non_null(strstr(w->text, "no target has joined yet; the turn has waited for 5 s"));
    destroy(w);
}

/* The time that it ran does not count: only since its target was lost. */
static void test_queue_timeout_after_a_loss(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.queue_timeout_ns = 5 * GR_S});
    join_target(w);
    (void)submit(w, false, false);
    take_open(w);
    opened(w);
    w->now_ns += 60 * GR_S;
    commit(w, 40, 2, GR_FINISH_NONE);
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    assert_int_equal(gr_orch_step(w->orch, w->now_ns + GR_S), w->now_ns + 5 * GR_S);
    assert_int_equal(w->n_done, 0);
    (void)gr_orch_step(w->orch, w->now_ns + 5 * GR_S);
    assert_int_equal(w->n_done, 1);
    destroy(w);
}

/* A session's end waits for its drafter's statistics for a second. */
static void test_statistics_that_do_not_come(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    join_drafter(w);
    const uint64_t id = submit(w, false, true);
    take_open(w);
    opened(w);
    w->n_sent = 0;
    commit(w, 40, 2, GR_FINISH_STOP);
    w->n_sent = 0;
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(gr_orch_step(w->orch, w->now_ns), w->now_ns + GR_S);
    assert_int_equal(w->n_done, 0);
    (void)gr_orch_step(w->orch, w->now_ns + GR_S);
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->finish, GR_FINISH_STOP);
    destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drafter_stays_between_turns),
        cmocka_unit_test(test_drafter_comes_between_turns),
        cmocka_unit_test(test_late_answer_of_another_epoch),
        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_draft_ahead_auto),
        cmocka_unit_test(test_choice_and_fork),
        cmocka_unit_test(test_drafter_of_no_target),
        cmocka_unit_test(test_target_of_no_drafter),
        cmocka_unit_test(test_other_numerics),
        cmocka_unit_test(test_other_tokenizer_of_a_client),
        cmocka_unit_test(test_least_recently_used_goes),
        cmocka_unit_test(test_session_ttl),
        cmocka_unit_test(test_session_ttl_after_a_turn_that_no_target_took),
        cmocka_unit_test(test_purge),
        cmocka_unit_test(test_silent_workers),
        cmocka_unit_test(test_own_absence),
        cmocka_unit_test(test_pings_of_clients),
        cmocka_unit_test(test_strange_messages),
        cmocka_unit_test(test_a_worker_leaves),
        cmocka_unit_test(test_an_idle_worker_leaves),
        cmocka_unit_test(test_queue_timeout),
        cmocka_unit_test(test_queue_timeout_after_a_loss),
        cmocka_unit_test(test_statistics_that_do_not_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
