/* The orchestrator where tokens are provisional: exact SpecPV, with a target made by hand. */
#include "common/protocol/wire.h"
#include "tests/unit/orch_world.h"

#define PROMPT 3u

static uint64_t submit_specpv(struct world *w, enum gr_specpv_mode mode, bool keep_open, uint32_t max_tokens)
{
    static const int32_t prompt[] = {5, 6, 7};
    const struct gr_session_request q = {.prompt = prompt,
                                         .n_prompt = PROMPT,
                                         .wishes = {.turn = {.max_tokens = max_tokens},
                                                    .keep_open = keep_open,
                                                    .sampling = {.top_p = 1.0f, .seed = 3},
                                                    .specpv = mode,
                                                    .specpv_params = {.threshold = 40, .interval = 5}}};
    uint64_t id = 0;
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_OK);
    return id;
}

/* Running, with one final token: 40. */
static uint64_t running(struct world *w, enum gr_specpv_mode mode, bool keep_open)
{
    const uint64_t id = submit_specpv(w, mode, keep_open, 20);
    take_open(w);
    opened(w);
    commit(w, 40, 1, GR_FINISH_NONE);
    return id;
}

/* A COMMIT of the ids first, first + 1, ...: keep_len tokens stand, n follow, final_len are final; n_accepted of 4. */
static struct gr_msg verdict(struct world *w, int32_t *id, uint32_t keep_len, int32_t first, uint32_t n,
                             uint32_t final_len, uint32_t n_accepted)
{
    struct gr_msg m = {.type = GR_MSG_COMMIT,
                       .session = w->session,
                       .commit = {.epoch = w->epoch,
                                  .round = ++w->round,
                                  .keep_len = keep_len,
                                  .final_len = final_len,
                                  .ids = {.p = id, .n = n},
                                  .verdict_kind = keep_len < w->len ? GR_VERDICT_FULL : GR_VERDICT_PARTIAL,
                                  .n_draft = n_accepted > 0 ? 4 : 0,
                                  .n_accepted = n_accepted}};
    static const int32_t prompt[] = {5, 6, 7};
    for (uint32_t i = 0; i < PROMPT; i++) {
        m.commit.hash = gr_hash_extend(m.commit.hash, prompt[i]);
    }
    for (uint32_t i = 0; i < keep_len - PROMPT; i++) {
        m.commit.hash = gr_hash_extend(m.commit.hash, 40 + (int32_t)i); /* as all tests number what stands */
    }
    for (uint32_t i = 0; i < n; i++) {
        id[i] = first + (int32_t)i;
        m.commit.hash = gr_hash_extend(m.commit.hash, id[i]);
    }
    w->len = keep_len + n;
    w->hash = m.commit.hash;
    return m;
}

static void tell(struct world *w, uint32_t keep_len, int32_t first, uint32_t n, uint32_t final_len, uint32_t n_accepted)
{
    int32_t id[16];
    const struct gr_msg m = verdict(w, id, keep_len, first, n, final_len, n_accepted);
    say(w, TARGET, &m);
}

static enum gr_specpv_mode shown_mode(const struct world *w, uint64_t id)
{
    struct gr_session_info info;
    assert_true(gr_orch_session_info(w->orch, id, w->now_ns, &info));
    return info.specpv;
}

static void assert_shown(const struct world *w, uint64_t id, const int32_t *want, uint32_t n)
{
    uint32_t n_kept = 0;
    const int32_t *kept = gr_orch_tokens(w->orch, id, &n_kept);
    assert_int_equal(w->n_token, n);
    assert_memory_equal(w->token, want, n * sizeof(*want));
    assert_int_equal(n_kept, n);
    assert_memory_equal(kept, want, n * sizeof(*want));
}

static void test_only_final_tokens_are_shown(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = running(w, GR_SPECPV_EXACT, false);
    tell(w, 4, 41, 3, 4, 2);
    tell(w, 7, 44, 2, 4, 1);
    assert_shown(w, id, (int32_t[]){40}, 1);
    const struct gr_session_metrics *m = gr_orch_metrics(w->orch, id);
    assert_int_equal(m->completion_tokens, 6);
    assert_int_equal(m->num_accepted_tokens, 3);
    /* the third of them was wrong: 43 becomes 90; of the accepted ones 43 was not one (a bonus), 44 was */
    tell(w, 6, 90, 1, 7, 0);
    assert_shown(w, id, (int32_t[]){40, 41, 42, 90}, 4);
    assert_int_equal(m->completion_tokens, 4);
    assert_int_equal(m->num_accepted_tokens, 2);
    assert_int_equal(m->num_draft_tokens, m->num_accepted_tokens + m->num_rewound_tokens);
    assert_int_equal(m->partial_rounds, 2);
    assert_int_equal(m->full_refreshes, 1);
    assert_int_equal(m->partial_since_refresh, 0);
    assert_int_equal(w->n_done, 0);
    destroy(w);
}

/* The end is judged by a pass that brings no token. */
static void test_judged_end(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = running(w, GR_SPECPV_EXACT, true);
    int32_t none[1];
    tell(w, 4, 41, 2, 4, 0);
    struct gr_msg m = verdict(w, none, 6, 0, 0, 6, 0);
    m.commit.finish = GR_FINISH_STOP;
    say(w, TARGET, &m);
    assert_shown(w, id, (int32_t[]){40, 41, 42}, 3);
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->finish, GR_FINISH_STOP);
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    destroy(w);
}

/* A judgement that ends at a row which is not finite: its COMMIT makes final what stands, and the ERROR tells why. */
static void test_judged_before_an_error(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = running(w, GR_SPECPV_EXACT, true);
    int32_t none[1];
    tell(w, 4, 41, 3, 4, 0); /* 41, 42, 43 are provisional */
    struct gr_msg m = verdict(w, none, 6, 0, 0, 6, 0);
    m.commit.finish = GR_FINISH_ERROR;
    say(w, TARGET, &m);
    assert_shown(w, id, (int32_t[]){40, 41, 42}, 3);
    assert_int_equal(w->n_done, 0);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_ERROR, .session = id, .error = {.code = 4, .text = "not finite"}});
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->finish, GR_FINISH_ERROR);
    assert_int_equal(w->n_token, 3);
    destroy(w);
}

/* What would break the user's text, or the transcript, closes the session. */
static void test_bad_commits(void **state)
{
    (void)state;
    for (int what = 0; what < 7; what++) {
        struct world *w = make(NULL);
        int32_t ids[16];
        join_target(w);
        const enum gr_specpv_mode mode = what < 5 ? GR_SPECPV_EXACT : what == 5 ? GR_SPECPV_LOSSY : GR_SPECPV_OFF;
        (void)running(w, mode, false);
        if (what < 5) {
            tell(w, 4, 41, 3, 4, 0);
        }
        struct gr_msg m = verdict(w, ids, what < 5 ? 7 : 4, 44, 1, what < 5 ? 8 : 4, 0);
        if (what == 0) {
            m = verdict(w, ids, 3, 44, 1, 4, 0); /* takes a final token back */
        } else if (what == 1) {
            m.commit.final_len = 9; /* more is final than there is */
        } else if (what == 2) {
            m.commit.final_len = 3;
        } else if (what == 3) {
            m.commit.finish = GR_FINISH_STOP; /* an end that nobody judged */
            m.commit.final_len = 4;
        } else if (what == 4) {
            m = verdict(w, ids, 7, 0, 0, 7, 0); /* nothing new, and no end */
        }                                       /* 5, 6: provisional tokens where there are none */
        say(w, TARGET, &m);
        assert_int_equal(w->n_done + (w->n_sent > 0 && w->sent[0].type == GR_MSG_CLOSE), 1);
        assert_int_equal(w->n_token, 1);
        destroy(w);
    }
}

/* Nothing but final text goes to the next target. */
static void test_reopened_with_final_tokens(void **state)
{
    (void)state;
    for (int evicted = 0; evicted < 2; evicted++) {
        struct world *w = make(NULL);
        join_target(w);
        const uint64_t id = running(w, GR_SPECPV_EXACT, true);
        tell(w, 4, 41, 3, 6, 2);
        tell(w, 7, 44, 2, 6, 1);
        if (evicted != 0) {
            say(w, TARGET, &(struct gr_msg){.type = GR_MSG_EVICTED, .session = id});
        } else {
            gr_orch_on_lost(w->orch, TARGET, w->now_ns);
            join_target(w);
        }
        check_reopened(w, id, 2, 6, 2, 17); /* prompt, 40, 41, 42; 3 of 20 tokens have been shown */
        assert_int_equal(w->sent[0].open.wishes.specpv, GR_SPECPV_EXACT);
        assert_int_equal(w->sent[0].open.wishes.specpv_params.threshold, 40);
        assert_int_equal(w->sent[0].open.wishes.specpv_params.interval, 5);
        const struct gr_session_metrics *m = gr_orch_metrics(w->orch, id);
        assert_int_equal(m->completion_tokens, 3);
        assert_int_equal(m->num_accepted_tokens, 2);
        opened(w);
        tell(w, 6, 43, 1, 7, 0);
        assert_shown(w, id, (int32_t[]){40, 41, 42, 43}, 4);
        destroy(w);
    }
}

/* A client that stops in the middle keeps what it has seen, and the next turn begins there. */
static void test_stop_keeps_what_was_shown(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = running(w, GR_SPECPV_EXACT, true);
    tell(w, 4, 41, 3, 6, 0);
    assert_int_equal(gr_orch_stop(w->orch, id, 0, UINT32_MAX, GR_FINISH_STOP), GR_OK);
    assert_int_equal(only(w, TARGET, GR_MSG_TRUNCATE)->truncate.keep_len, 6);
    assert_shown(w, id, (int32_t[]){40, 41, 42}, 3);
    const struct gr_turn_request t = turn_of(more, 1);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    assert_int_equal(only(w, TARGET, GR_MSG_APPEND)->append.keep_len, 6);
    destroy(w);
}

static void test_refresh(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    uint32_t n = 0;
    join_target(w);
    const uint64_t plain = running(w, GR_SPECPV_OFF, true);
    commit(w, 41, 1, GR_FINISH_STOP);
    const uint64_t id = running(w, GR_SPECPV_LOSSY, true);
    assert_int_equal(gr_orch_refresh(w->orch, plain, &n), GR_EUNSUPPORTED);
    assert_non_null(strstr(gr_orch_why(w->orch), "SpecPV is off"));
    assert_int_equal(gr_orch_refresh(w->orch, 99, &n), GR_ENOTFOUND);
    assert_int_equal(gr_orch_refresh(w->orch, id, &n), GR_OK);
    assert_int_equal(n, 1);
    assert_int_equal(only(w, TARGET, GR_MSG_REFRESH)->session, id);
    assert_int_equal(gr_orch_refresh(w->orch, 0, &n), GR_OK); /* all */
    assert_int_equal(n, 1);
    expect(w, TARGET, GR_MSG_REFRESH);
    destroy(w);
}

/* The kill switch: what a request asks for is not passed on. */
static void test_disabled(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.disable_specpv = true});
    join_target(w);
    const uint64_t id = submit_specpv(w, GR_SPECPV_EXACT, false, 8);
    assert_int_equal(only(w, TARGET, GR_MSG_OPEN)->open.wishes.specpv, GR_SPECPV_OFF);
    assert_int_equal(shown_mode(w, id), GR_SPECPV_OFF);
    destroy(w);
}

/* What a session is listed with is what it has: a target without views says so, and is not taken for one that has
 * provisional tokens; one that grants what was not asked for is not believed. */
static void test_effective_mode(void **state)
{
    (void)state;
    static const struct {
        enum gr_specpv_mode asked, granted, shown;
    } cases[] = {{GR_SPECPV_EXACT, GR_SPECPV_EXACT, GR_SPECPV_EXACT},
                 {GR_SPECPV_AUTO, GR_SPECPV_AUTO, GR_SPECPV_AUTO},
                 {GR_SPECPV_EXACT, GR_SPECPV_OFF, GR_SPECPV_OFF},
                 {GR_SPECPV_LOSSY, GR_SPECPV_EXACT, GR_SPECPV_OFF},
                 {GR_SPECPV_OFF, GR_SPECPV_EXACT, GR_SPECPV_OFF}};
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        struct world *w = make(NULL);
        uint32_t n = 0;
        join_target(w);
        const uint64_t id = submit_specpv(w, cases[i].asked, false, 20);
        assert_int_equal(shown_mode(w, id), cases[i].asked); /* nothing is known yet */
        take_open(w);
        w->specpv = cases[i].granted;
        opened(w);
        assert_int_equal(shown_mode(w, id), cases[i].shown);
        assert_int_equal(gr_orch_refresh(w->orch, id, &n), cases[i].shown == GR_SPECPV_OFF ? GR_EUNSUPPORTED : GR_OK);
        destroy(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_final_tokens_are_shown),
        cmocka_unit_test(test_judged_end),
        cmocka_unit_test(test_bad_commits),
        cmocka_unit_test(test_reopened_with_final_tokens),
        cmocka_unit_test(test_stop_keeps_what_was_shown),
        cmocka_unit_test(test_refresh),
        cmocka_unit_test(test_judged_before_an_error),
        cmocka_unit_test(test_disabled),
        cmocka_unit_test(test_effective_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
