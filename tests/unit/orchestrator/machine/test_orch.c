/* Turns of sessions in the orchestrator's machine: appended, cut, refused; and their transcripts. */
#include "common/protocol/wire.h"
#include "orchestrator/machine/transcript.h"
#include "tests/unit/orch_world.h"

/* ---- turns ---- */

static void test_two_turns(void **state)
{
    (void)state;
    static const int32_t more[] = {50, 51};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->finish, GR_FINISH_STOP);
    const struct gr_turn_request t = turn_of(more, 2);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 6, 2);
    opened(w);
    commit(w, 60, 3, GR_FINISH_LENGTH);
    assert_int_equal(w->n_done, 2);
    assert_int_equal(w->finish, GR_FINISH_LENGTH);
    assert_int_equal(w->n_token, 6);
    const struct gr_session_metrics *s = gr_orch_metrics(w->orch, id);
    assert_int_equal(s->completion_tokens, 6);
    assert_int_equal(s->prompt_tokens, 5);
    assert_int_equal(s->rounds, 2);
    assert_int_equal(s->num_accepted_tokens, 1 + 2);
    assert_int_equal(gr_orch_close(w->orch, id), GR_OK);
    expect(w, TARGET, GR_MSG_CLOSE);
    assert_int_equal(w->n_closed, 0);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(w->n_closed, 1);
    assert_int_equal(gr_orch_n_session(w->orch), 0);
    destroy(w);
}

/* A COMMIT that was on its way when the turn was cut belongs to nobody, also while the next turn is being opened. */
static void test_truncate_and_late_commits(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = submit(w, true, false);
    take_open(w);
    opened(w);
    commit(w, 40, 4, GR_FINISH_NONE);
    assert_int_equal(gr_orch_stop(w->orch, id, 0, 2, GR_FINISH_STOP), GR_OK);
    const struct gr_msg *m = only(w, TARGET, GR_MSG_TRUNCATE);
    assert_int_equal(m->truncate.keep_len, 5);
    assert_int_equal(w->n_done, 1);
    commit(w, 44, 2, GR_FINISH_NONE); /* late */
    const struct gr_turn_request t = turn_of(more, 1);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    commit(w, 46, 2, GR_FINISH_STOP); /* later still */
    assert_int_equal(w->n_token, 4);
    assert_int_equal(w->n_done, 1);
    take_append(w, 5, 1);
    opened(w);
    commit(w, 60, 1, GR_FINISH_STOP);
    assert_int_equal(w->n_done, 2);
    assert_int_equal(gr_orch_metrics(w->orch, id)->completion_tokens, 3);
    destroy(w);
}

enum crossing { NOTHING_ELSE, TARGET_LOST, EVICTED, DRAFTER_LOST, N_CROSSING };

static void cross(struct world *w, uint64_t id, enum crossing what)
{
    if (what == TARGET_LOST) {
        gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    } else if (what == EVICTED) {
        say(w, TARGET, &(struct gr_msg){.type = GR_MSG_EVICTED, .session = id});
    } else if (what == DRAFTER_LOST) {
        gr_orch_on_lost(w->orch, DRAFTER, w->now_ns);
    }
    w->n_sent = 0; /* DETACH, where there is a target no more */
}

/* The client's stop is heard when the turn has ended by itself, and whatever else has happened since: only what was
 * shown stays, here and at the target, and the next turn goes on from there. */
static void test_stop_crosses_the_end(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    for (enum crossing what = NOTHING_ELSE; what < N_CROSSING; what++) {
        struct world *w = make(NULL);
        struct gr_session_info info;
        join_target(w);
        join_drafter(w);
        const uint64_t id = submit(w, true, true);
        take_open(w);
        opened(w);
        expect(w, DRAFTER, GR_MSG_ATTACH);
        commit(w, 40, 1, GR_FINISH_NONE);
        commit(w, 41, 5, what % 2 == 0 ? GR_FINISH_STOP : GR_FINISH_LENGTH);
        cross(w, id, what);
        assert_int_equal(gr_orch_stop(w->orch, id, 1, 3, GR_FINISH_STOP), GR_OK);
        const bool held = what == NOTHING_ELSE || what == DRAFTER_LOST;
        if (held) {
            assert_int_equal(only(w, TARGET, GR_MSG_TRUNCATE)->truncate.keep_len, 6);
        }
        assert_int_equal(w->n_sent, 0);
        assert_int_equal(w->n_done, 1);
        assert_true(gr_orch_session_info(w->orch, id, w->now_ns, &info));
        assert_int_equal(info.n_token, 6);
        assert_int_equal(gr_orch_metrics(w->orch, id)->completion_tokens, 3);
        assert_int_equal(gr_orch_stop(w->orch, id, 1, 3, GR_FINISH_STOP), GR_OK); /* says nothing new */
        assert_int_equal(w->n_sent, 0);
        if (what == TARGET_LOST) {
            join_target(w);
        }
        const struct gr_turn_request t = turn_of(more, 1);
        assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
        if (held) {
            take_append(w, 6, 1);
        } else {
            check_reopened(w, id, 2, 7, 3, 8);
        }
        assert_int_equal(gr_orch_stop(w->orch, id, 1, 1, GR_FINISH_STOP), GR_EINVAL); /* it is another turn's by now */
        assert_int_equal(w->n_sent, 0);
        destroy(w);
    }
}

/* A session that fails at its target, just when its turn has been stopped and the next one asked for: neither the ERROR
 * that says so nor the CLOSED after it answers anything that was sent since. */
static void test_failure_crosses_the_end(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = submit(w, true, false);
    take_open(w);
    opened(w);
    commit(w, 40, 2, GR_FINISH_NONE);
    assert_int_equal(gr_orch_stop(w->orch, id, 1, 2, GR_FINISH_STOP), GR_OK);
    expect(w, TARGET, GR_MSG_TRUNCATE);
    const struct gr_turn_request t = turn_of(more, 1);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 5, 1);
    say(w, TARGET,
        &(struct gr_msg){.type = GR_MSG_ERROR, .session = id, .error = {.code = 1, .ended = 1, .text = "no logits"}});
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(w->n_sent, 0);
    say(w, TARGET,
        &(struct gr_msg){.type = GR_MSG_ERROR, .session = id, .error = {.code = 1, .text = "unknown session"}});
    check_reopened(w, id, 2, 6, 3, 8);
    opened(w);
    assert_int_equal(state_of(w, id), GR_SESSION_RUNNING);
    assert_int_equal(w->n_done, 1);
    /* in its turn it is that turn's end */
    say(w, TARGET,
        &(struct gr_msg){.type = GR_MSG_ERROR, .session = id, .error = {.code = 1, .ended = 1, .text = "no logits"}});
    assert_int_equal(w->n_done, 2);
    assert_int_equal(w->finish, GR_FINISH_ERROR);
    assert_string_equal(w->text, "no logits");
    destroy(w);
}

/* A turn whose session another client closes has neither stopped nor come to its limit; a target cannot say so. */
static void test_closed_in_a_turn(void **state)
{
    (void)state;
    for (int said = 0; said < 2; said++) {
        struct world *w = make(NULL);
        join_target(w);
        const uint64_t id = submit(w, true, false);
        take_open(w);
        opened(w);
        commit(w, 40, 2, said != 0 ? GR_FINISH_CLOSED : GR_FINISH_NONE);
        if (said == 0) {
            assert_int_equal(gr_orch_close(w->orch, id), GR_OK);
        }
        expect(w, TARGET, GR_MSG_CLOSE);
        assert_int_equal(w->n_done, 0);
        say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
        assert_true(w->n_done == 1 && w->n_closed == 1);
        assert_int_equal(w->finish, said != 0 ? GR_FINISH_ERROR : GR_FINISH_CLOSED);
        destroy(w);
    }
}

/* All slots of the target are taken: an error, unless one is being freed. */
static void test_slot_that_is_being_freed(void **state)
{
    (void)state;
    const struct gr_msg full = {
        .type = GR_MSG_ERROR, .session = 2, .error = {.code = (uint32_t)-GR_ELIMIT, .text = "no slot"}};
    for (int closing = 0; closing < 2; closing++) {
        struct world *w = make(NULL);
        join_target(w);
        const uint64_t id = submit(w, true, false);
        take_open(w);
        opened(w);
        if (closing != 0) {
            assert_int_equal(gr_orch_close(w->orch, id), GR_OK);
            expect(w, TARGET, GR_MSG_CLOSE);
        }
        const uint64_t next = submit(w, false, false);
        assert_int_equal(next, 2);
        take_open(w);
        say(w, TARGET, &full);
        if (closing == 0) {
            assert_true(w->n_done == 1 && w->finish == GR_FINISH_ERROR);
            assert_string_equal(w->text, "no slot");
        } else {
            assert_int_equal(state_of(w, next), GR_SESSION_WAITING);
            assert_int_equal(w->n_sent, 0);
            say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
            take_open(w);
            assert_int_equal(w->epoch, 1);
            opened(w);
            assert_int_equal(state_of(w, next), GR_SESSION_RUNNING);
        }
        destroy(w);
    }
}

/* The end of a session that does not stay, or that is closed, takes a while: a stop that comes meanwhile is why. */
static void test_stop_meets_a_close(void **state)
{
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        struct world *w = make(NULL);
        join_target(w);
        const uint64_t id = submit(w, keep != 0, false);
        take_open(w);
        opened(w);
        commit(w, 40, 4, keep != 0 ? GR_FINISH_NONE : GR_FINISH_LENGTH);
        if (keep != 0) {
            assert_int_equal(gr_orch_close(w->orch, id), GR_OK);
        }
        expect(w, TARGET, GR_MSG_CLOSE);
        assert_int_equal(gr_orch_stop(w->orch, id, 1, 2, GR_FINISH_STOP), GR_OK);
        assert_int_equal(w->n_sent, 0);
        assert_int_equal(gr_orch_metrics(w->orch, id)->completion_tokens, 2);
        say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
        assert_int_equal(w->n_done, 1);
        assert_int_equal(w->finish, GR_FINISH_STOP);
        assert_int_equal(gr_orch_stop(w->orch, id, 1, 2, GR_FINISH_STOP), GR_ENOTFOUND);
        destroy(w);
    }
}

/* A session that does not stay is cut before it is closed: what its target has computed since is nobody's to find. */
static void test_stop_of_one_that_ends(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = submit(w, false, false);
    take_open(w);
    opened(w);
    commit(w, 40, 4, GR_FINISH_NONE);
    assert_int_equal(gr_orch_stop(w->orch, id, 1, 2, GR_FINISH_STOP), GR_OK);
    assert_int_equal(w->n_sent, 2);
    assert_int_equal(w->sent[0].type, GR_MSG_TRUNCATE);
    assert_int_equal(w->sent[0].truncate.keep_len, 5);
    assert_int_equal(w->sent[1].type, GR_MSG_CLOSE);
    w->n_sent = 0;
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(w->finish, GR_FINISH_STOP);
    destroy(w);
}

/* Stopped before the target answered: its late OPENED is not taken for the next turn's. */
static void test_answers_are_counted(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    const struct gr_turn_request t = turn_of(more, 1);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 6, 1);
    assert_int_equal(gr_orch_stop(w->orch, id, 0, 0, GR_FINISH_STOP), GR_OK);
    expect(w, TARGET, GR_MSG_TRUNCATE);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 7, 1);
    opened(w); /* to the first */
    assert_int_equal(state_of(w, id), GR_SESSION_OPENING);
    opened(w); /* to the second */
    assert_int_equal(state_of(w, id), GR_SESSION_RUNNING);
    destroy(w);
}

/* What went wrong while the prompt was computed is told with the first token; that is no round, but it counts. */
static void test_troubles_of_the_prefill_count(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    int32_t id0 = 40;
    join_target(w);
    const uint64_t id = submit(w, true, false);
    take_open(w);
    opened(w);
    struct gr_msg m = commit_of(w, &id0, 1, GR_FINISH_STOP);
    m.commit.n_fallback = 2;
    m.commit.n_desync = 1;
    m.commit.n_late = 1;
    say(w, TARGET, &m);
    const struct gr_session_metrics *s = gr_orch_metrics(w->orch, id);
    assert_int_equal(s->rounds, 0);
    assert_int_equal(s->root_only_rounds, 0);
    assert_int_equal(s->fallbacks, 2);
    assert_int_equal(s->desyncs, 1);
    assert_int_equal(s->late_trees, 1);
    destroy(w);
}

/* What a drafter found: told at once, as a kept session's turn ends before its drafter is detached. */
static void test_troubles_of_the_drafter_count(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    join_drafter(w);
    const uint64_t id = submit(w, true, true);
    take_open(w);
    opened(w);
    expect(w, DRAFTER, GR_MSG_ATTACH);
    const int n_report = w->n_report;
    say(w, DRAFTER,
        &(struct gr_msg){.type = GR_MSG_DRAFT_TROUBLE,
                         .session = id,
                         .draft_trouble = {.n_fallback = 3, .n_desync = 2, .n_feature_gap = 1}});
    const struct gr_session_metrics *s = gr_orch_metrics(w->orch, id);
    assert_int_equal(s->fallbacks, 3);
    assert_int_equal(s->desyncs, 2);
    assert_int_equal(s->feature_gaps, 1);
    assert_int_equal(w->n_report, n_report + 1); /* and the client hears of it */
    destroy(w);
}

static struct gr_msg round_of(uint32_t keep_len, uint32_t n_id, uint32_t n_draft, uint32_t n_accepted,
                              uint32_t final_len)
{
    static int32_t ids[64];
    return (struct gr_msg){.type = GR_MSG_COMMIT,
                           .commit = {.round = 1,
                                      .keep_len = keep_len,
                                      .ids = {ids, n_id},
                                      .n_draft = n_draft,
                                      .n_accepted = n_accepted,
                                      .final_len = final_len,
                                      .wait_ns = 5,
                                      .verify_ns = 100}};
}

/* A stop string ends the text within a round, or within the first of several rounds that become final together: metrics
 * are those of the shown tokens. */
static void test_metrics_of_what_is_shown(void **state)
{
    (void)state;
    struct gr_session_metrics s = {0};
    struct gr_msg m = round_of(10, 3, 6, 2, 13);
    gr_metrics_take(&s, &m, 1);
    m = round_of(13, 5, 7, 4, 18);
    gr_metrics_take(&s, &m, 2);
    gr_metrics_cut(&s, 15); /* two of the four are shown */
    assert_int_equal(s.rounds, 2);
    assert_int_equal(s.num_accepted_tokens, 4);
    assert_int_equal(s.num_draft_tokens, s.num_accepted_tokens + s.num_rewound_tokens);
    assert_int_equal(s.accepted_per_position[1], 2);
    assert_int_equal(s.accepted_per_position[2], 0);
    s = (struct gr_session_metrics){0};
    m = round_of(10, 3, 6, 2, 10); /* provisional, like the next two */
    m.commit.verdict_kind = GR_VERDICT_PARTIAL;
    gr_metrics_take(&s, &m, 1);
    m = round_of(13, 4, 6, 3, 10);
    m.commit.verdict_kind = GR_VERDICT_PARTIAL;
    gr_metrics_take(&s, &m, 2);
    m = round_of(17, 1, 0, 0, 10);
    m.commit.verdict_kind = GR_VERDICT_PARTIAL;
    gr_metrics_take(&s, &m, 3);
    m = round_of(18, 2, 6, 1, 20); /* judges them all */
    m.commit.verdict_kind = GR_VERDICT_FULL;
    m.commit.n_judged = 8;
    gr_metrics_take(&s, &m, 4);
    assert_int_equal(s.rounds, 4);
    gr_metrics_cut(&s, 12);
    assert_int_equal(s.rounds, 2); /* the first one, and the one that judged it */
    assert_int_equal(s.partial_rounds, 1);
    assert_int_equal(s.root_only_rounds, 0);
    assert_int_equal(s.num_drafts, 2);
    assert_int_equal(s.num_accepted_tokens, 2);
    assert_int_equal(s.num_draft_tokens, 12);
    assert_int_equal(s.num_rewound_tokens, 10);
    assert_int_equal(s.rewind_steps, 2);
    assert_int_equal(s.verify_ns, 200);
    /* and where nothing is cut, nothing changes */
    s = (struct gr_session_metrics){0};
    m = round_of(10, 3, 2, 2, 13);
    gr_metrics_take(&s, &m, 1);
    gr_metrics_cut(&s, 13);
    assert_true(s.rounds == 1 && s.num_accepted_tokens == 2 && s.rewind_steps == 0);
}

static void test_next_turn_from_on_done(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = submit(w, true, false);
    take_open(w);
    opened(w);
    w->append_from_done = true;
    commit(w, 40, 2, GR_FINISH_STOP);
    take_append(w, 5, 1);
    assert_int_equal(state_of(w, id), GR_SESSION_OPENING);
    destroy(w);
}

static void test_append_is_refused(void **state)
{
    (void)state;
    static const int32_t more[64] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    struct gr_turn_request t = turn_of(more, 1);
    assert_int_equal(gr_orch_append(w->orch, id + 1, &t, w->now_ns), GR_ENOTFOUND);
    assert_non_null(strstr(gr_orch_why(w->orch), "no session"));
    t.keep_len = 7;
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_EINVAL);
    t.keep_len = 4;
    t.hash = 123;
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_EINVAL);
    assert_non_null(strstr(gr_orch_why(w->orch), "hashes differ"));
    t = turn_of(more, 0);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_EINVAL);
    t = turn_of(more, 58); /* 6 + 58 = the context */
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_ELIMIT);
    assert_non_null(strstr(gr_orch_why(w->orch), "64"));
    assert_int_equal(w->n_sent, 0);
    t = turn_of(more, 57);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_EINVAL); /* in a turn */
    destroy(w);
}

/* A turn that does not fit the transcript's segments is refused, and what it would have cut still stands. */
static void test_refused_append_cuts_nothing(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    struct gr_session_info info;
    uint32_t n = 0;
    struct gr_worker_info target = target_info();
    target.n_ctx_max = 0; /* not known */
    assert_int_equal(gr_orch_join(w->orch, TARGET, &target, w->now_ns), GR_OK);
    const uint64_t id = idle_session(w);
    struct gr_turn_request t = turn_of(more, 1);
    for (int i = 1; i < GR_TRANSCRIPT_SEGMENT_MAX / 2; i++) {
        w->n_token = 0;
        assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
        take_append(w, w->len, 1);
        opened(w);
        t.hash = gr_hash_extend(w->hash, 60); /* of all but the last token; looked at below */
        commit(w, 60, 2, GR_FINISH_STOP);
    }
    const uint32_t len = w->len;
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_ELIMIT);
    assert_true(gr_orch_session_info(w->orch, id, w->now_ns, &info));
    assert_int_equal(info.n_token, len);
    t.keep_len = len - 1;
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_ELIMIT);
    assert_true(gr_orch_session_info(w->orch, id, w->now_ns, &info));
    assert_int_equal(info.n_token, len);
    assert_non_null(gr_orch_tokens(w->orch, id, &n));
    assert_int_equal(n, 2);
    assert_int_equal(w->n_sent, 0);
    destroy(w);
}

/* The client keeps a part and goes on from there. */
static void test_append_cuts(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    static const int32_t kept[] = {5, 6, 7, 40};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    struct gr_turn_request t = turn_of(more, 1);
    t.keep_len = 4;
    for (int i = 0; i < 4; i++) {
        t.hash = gr_hash_extend(t.hash, kept[i]);
    }
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 4, 1);
    opened(w);
    commit(w, 60, 1, GR_FINISH_STOP);
    assert_int_equal(w->n_done, 2);
    destroy(w);
}

/* ---- transcripts ---- */

static void test_transcript(void **state)
{
    (void)state;
    struct gr_transcript t = {0};
    static const int32_t ids[] = {5, 7, 4088, 9, 10, 11};
    assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_PROMPT, ids, 3), GR_OK);
    assert_true(t.hash == 0xc6fea194a42df6b1u); /* docs/frames.md's example */
    assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_GENERATED, ids + 3, 1), GR_OK);
    assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_GENERATED, ids + 4, 1), GR_OK);
    assert_int_equal(t.n_segment, 2);
    assert_int_equal(t.segment[3], 2);
    const uint64_t whole = t.hash;
    assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_APPENDED, ids + 5, 1), GR_OK);
    assert_int_equal(t.n_segment, 3);
    assert_true(gr_transcript_hash_at(&t, 5) == whole);
    gr_transcript_cut(&t, 4);
    assert_int_equal(t.n_segment, 2);
    assert_int_equal(t.segment[3], 1);
    gr_transcript_cut(&t, 3);
    assert_int_equal(t.n_segment, 1);
    assert_true(t.hash == 0xc6fea194a42df6b1u);
    gr_transcript_cut(&t, 0);
    assert_int_equal(t.n_segment, 0);
    assert_true(t.hash == 0);
    int n = 0; /* segments are bounded: each turn takes two */
    while (gr_transcript_add(&t, n % 2 == 0 ? GR_SEGMENT_APPENDED : GR_SEGMENT_GENERATED, ids, 1) == GR_OK) {
        n++;
    }
    assert_int_equal(n, GR_TRANSCRIPT_SEGMENT_MAX);
    int32_t *many = calloc(GR_TRANSCRIPT_LEN_MAX, sizeof(*many));
    assert_non_null(many);
    assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_GENERATED, many, GR_TRANSCRIPT_LEN_MAX), GR_ELIMIT);
    assert_int_equal(t.len, (uint32_t)n);
    free(many);
    gr_transcript_finish(&t);
}

/* What is appended leaves a segment for its answer, or the turn would end as if the context were full. (Its client died
 * before the first answer began: an odd number of segments.) */
static void test_an_answer_has_room(void **state)
{
    (void)state;
    struct gr_transcript t = {0};
    static const int32_t ids[] = {5};
    assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_PROMPT, ids, 1), GR_OK);
    while (gr_transcript_fits(&t, t.len, GR_SEGMENT_APPENDED, 1)) {
        assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_APPENDED, ids, 1), GR_OK);
        assert_true(gr_transcript_fits(&t, t.len, GR_SEGMENT_GENERATED, 1));
        assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_GENERATED, ids, 1), GR_OK);
    }
    assert_int_equal(t.n_segment, GR_TRANSCRIPT_SEGMENT_MAX - 1);
    gr_transcript_finish(&t);
}

static void send_nothing(void *ctx, uint32_t worker, const struct gr_msg *m)
{
    (void)ctx, (void)worker, (void)m;
}

static uint64_t next_drawn(void *ctx)
{
    static const uint64_t drawn[] = {0, 0xf000000000000005, 0xf000000000000005, 9};
    size_t *n = ctx;
    assert_true(*n < GR_ARRAY_LEN(drawn));
    return drawn[(*n)++];
}

/* 0 and an id that is in use are drawn again. */
static void test_drawn_ids(void **state)
{
    (void)state;
    static const int32_t prompt[] = {1};
    const struct gr_session_request q = {.prompt = prompt, .n_prompt = 1, .wishes = {.turn = {.max_tokens = 1}}};
    struct gr_orch *o = NULL;
    size_t n = 0;
    uint64_t first = 0;
    uint64_t second = 0;
    const struct gr_orch_io io = {.ctx = &n, .send = send_nothing, .new_id = next_drawn};
    assert_int_equal(gr_orch_create(&io, &o), GR_OK);
    assert_int_equal(gr_orch_submit(o, &q, 1, &first), GR_OK);
    assert_int_equal(gr_orch_submit(o, &q, 1, &second), GR_OK);
    assert_true(first == 0xf000000000000005 && second == 9);
    assert_int_equal(n, 4);
    gr_orch_destroy(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_turns),
        cmocka_unit_test(test_truncate_and_late_commits),
        cmocka_unit_test(test_stop_crosses_the_end),
        cmocka_unit_test(test_failure_crosses_the_end),
        cmocka_unit_test(test_closed_in_a_turn),
        cmocka_unit_test(test_slot_that_is_being_freed),
        cmocka_unit_test(test_stop_meets_a_close),
        cmocka_unit_test(test_stop_of_one_that_ends),
        cmocka_unit_test(test_answers_are_counted),
        cmocka_unit_test(test_troubles_of_the_prefill_count),
        cmocka_unit_test(test_troubles_of_the_drafter_count),
        cmocka_unit_test(test_metrics_of_what_is_shown),
        cmocka_unit_test(test_next_turn_from_on_done),
        cmocka_unit_test(test_append_is_refused),
        cmocka_unit_test(test_refused_append_cuts_nothing),
        cmocka_unit_test(test_append_cuts),
        cmocka_unit_test(test_transcript),
        cmocka_unit_test(test_an_answer_has_room),
        cmocka_unit_test(test_drawn_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
