/* Sessions that an earlier process had: they stand as they stood, go on at the first target, and nothing is told of
 * them twice. */
#include "orchestrator/machine/transcript.h"
#include "tests/unit/orch_world.h"

#define ID 0xabcdu

/* 3 prompt tokens and 2 generated ones of 8; its fourth epoch. */
struct past {
    struct gr_transcript text;
    struct gr_wishes wishes;
    struct gr_restored_session r;
};

static void fill(struct past *p, bool in_turn)
{
    static const int32_t prompt[] = {5, 6, 7}, answer[] = {40, 41};
    *p =
        (struct past){.wishes = {.keep_open = true, .sampling = {.top_p = 1.0f, .seed = 3}, .turn = {.max_tokens = 8}}};
    assert_int_equal(gr_transcript_add(&p->text, GR_SEGMENT_PROMPT, prompt, 3), GR_OK);
    assert_int_equal(gr_transcript_add(&p->text, GR_SEGMENT_GENERATED, answer, 2), GR_OK);
    p->r = (struct gr_restored_session){.id = ID,
                                        .epoch = 4,
                                        .in_turn = in_turn,
                                        .turn = 1,
                                        .turn_len = 3,
                                        .text = &p->text,
                                        .tokenizer_fingerprint = 7,
                                        .model_fingerprint = 11,
                                        .model = "",
                                        .numerics_id = "cpu",
                                        .trace_id = "",
                                        .wishes = &p->wishes};
}

static void restore(struct world *w, const struct past *p)
{
    assert_int_equal(gr_orch_restore(w->orch, &p->r, w->now_ns), GR_OK);
}

static void check_info(const struct world *w, enum gr_session_state state, uint32_t epoch, uint32_t n_token)
{
    struct gr_session_info info;
    assert_true(gr_orch_session_info(w->orch, ID, w->now_ns, &info));
    assert_true(info.state == state && info.epoch == epoch && info.n_token == n_token);
}

static void end(struct world *w, struct past *p)
{
    gr_transcript_finish(&p->text);
    destroy(w);
}

static void test_idle(void **state)
{
    (void)state;
    static const int32_t ids[] = {60, 61};
    struct world *w = make(NULL);
    struct past p;
    fill(&p, false);
    restore(w, &p);
    check_info(w, GR_SESSION_IDLE, 4, 5);
    join_target(w);
    (void)gr_orch_step(w->orch, w->now_ns);
    assert_int_equal(w->n_sent, 0); /* it waits for its client */
    const struct gr_turn_request t = turn_of(ids, 2);
    assert_int_equal(gr_orch_append(w->orch, ID, &t, w->now_ns), GR_OK);
    check_reopened(w, ID, 5, 7, 3, 8);
    opened(w);
    commit(w, 50, 8, GR_FINISH_LENGTH);
    assert_true(w->n_done == 1 && w->n_token == 8 && w->token[0] == 50);
    end(w, &p);
}

static void go_on(struct world *w)
{
    check_reopened(w, ID, 5, 5, 2, 6);
    opened(w);
    commit(w, 50, 6, GR_FINISH_LENGTH);
    assert_true(w->n_done == 1 && w->finish == GR_FINISH_LENGTH);
    assert_true(w->n_token == 6 && w->token[0] == 50); /* the first two were told by the earlier process */
    check_info(w, GR_SESSION_IDLE, 5, 11);
    uint32_t n = 0;
    const int32_t *tokens = gr_orch_tokens(w->orch, ID, &n);
    assert_true(n == 8 && tokens[0] == 40 && tokens[2] == 50);
}

static void test_turn(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    struct past p;
    fill(&p, true);
    restore(w, &p);
    check_info(w, GR_SESSION_WAITING, 5, 5);
    join_target(w);
    go_on(w);
    end(w, &p);
}

static void test_turn_where_a_target_is(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    struct past p;
    fill(&p, true);
    join_target(w);
    restore(w, &p);
    (void)gr_orch_step(w->orch, w->now_ns);
    go_on(w);
    end(w, &p);
}

/* The records of its tokens were durable, that of its end was not. */
static void test_turn_that_is_over(void **state)
{
    (void)state;
    for (int stops = 0; stops < 2; stops++) {
        struct world *w = make(NULL);
        struct past p;
        fill(&p, true);
        p.wishes.turn.max_tokens = stops ? 8 : 2;
        p.wishes.turn.stop_ids = (struct gr_stop_ids){.n = stops, .id = {41}};
        restore(w, &p);
        assert_true(w->n_done == 1 && w->finish == (stops ? GR_FINISH_STOP : GR_FINISH_LENGTH));
        check_info(w, GR_SESSION_IDLE, 5, 5);
        join_target(w);
        assert_int_equal(w->n_sent, 0);
        end(w, &p);
    }
}

static void test_other_numerics(void **state)
{
    (void)state;
    const struct gr_orch_config config = {.queue_timeout_ns = GR_S};
    struct world *w = make(&config);
    struct past p;
    fill(&p, true);
    p.r.numerics_id = "cuda";
    restore(w, &p);
    join_target(w);
    (void)gr_orch_step(w->orch, w->now_ns);
    assert_true(w->n_done == 0 && w->n_sent == 0); /* its own may come back */
    w->now_ns += 2 * GR_S;
    (void)gr_orch_step(w->orch, w->now_ns);
    assert_true(w->n_done == 1 && w->finish == GR_FINISH_UNSERVED && w->n_sent == 0);
    assert_non_null(strstr(w->text, "computes it in the same order"));
    end(w, &p);
}

/* Nothing was told of a turn that no target has had. */
static void test_no_numerics(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    struct past p;
    fill(&p, true);
    gr_transcript_cut(&p.text, 3);
    p.r.numerics_id = "";
    restore(w, &p);
    join_target(w);
    (void)gr_orch_step(w->orch, w->now_ns);
    expect(w, TARGET, GR_MSG_OPEN);
    end(w, &p);
}

static void test_refused(void **state)
{
    (void)state;
    const struct gr_orch_config config = {.n_session_max = 2};
    struct world *w = make(&config);
    struct past p;
    fill(&p, false);
    p.r.turn_len = 6;
    assert_int_equal(gr_orch_restore(w->orch, &p.r, w->now_ns), GR_EINVAL);
    p.r.turn_len = 3;
    restore(w, &p);
    assert_int_equal(gr_orch_restore(w->orch, &p.r, w->now_ns), GR_EINVAL);
    p.r.id = ID + 1;
    restore(w, &p);
    p.r.id = ID + 2; /* idle ones do not make room for each other */
    assert_int_equal(gr_orch_restore(w->orch, &p.r, w->now_ns), GR_AGAIN);
    assert_int_equal(gr_orch_n_session(w->orch), 2);
    assert_int_equal(state_of(w, ID), GR_SESSION_IDLE);
    end(w, &p);
}

static void test_new_ids(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    struct past p;
    fill(&p, false);
    restore(w, &p);
    assert_int_equal(submit(w, true, false), ID + 1);
    end(w, &p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_turn),
        cmocka_unit_test(test_turn_where_a_target_is),
        cmocka_unit_test(test_turn_that_is_over),
        cmocka_unit_test(test_other_numerics),
        cmocka_unit_test(test_no_numerics),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_new_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
