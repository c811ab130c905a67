/* Totals: what messages add, and that each turn begins and ends once, whichever way it goes. */
#include "tests/unit/orch_fleet.h"

static uint64_t n_ended(const struct fleet *f, enum gr_finish finish)
{
    return gr_orch_totals(f->orch)->turns_ended[finish];
}

static void take(struct gr_totals *t, struct gr_msg m, const char *transport)
{
    gr_totals_take(t, &m, transport);
}

static void test_rounds(void **state)
{
    (void)state;
    struct gr_totals t = {0};
    take(&t, (struct gr_msg){.type = GR_MSG_COMMIT, .commit = {.round = 0, .wait_ns = 7, .n_fallback = 1}}, "");
    assert_int_equal(t.rounds + t.wait_ns, 0); /* the prefill is not a round */
    take(&t,
         (struct gr_msg){.type = GR_MSG_COMMIT, .commit = {.round = 1, .wait_ns = 300000, .verify_ns = 5, .n_late = 1}},
         "shm");
    take(&t,
         (struct gr_msg){.type = GR_MSG_COMMIT,
                         .commit = {.round = 2, .n_draft = 8, .n_accepted = 3, .wait_ns = 300000, .n_desync = 2}},
         "shm");
    assert_int_equal(t.rounds, 2);
    assert_int_equal(t.root_only_rounds, 1);
    assert_int_equal(t.num_drafts, 1);
    assert_int_equal(t.num_draft_tokens, 8);
    assert_int_equal(t.num_accepted_tokens, 3);
    assert_true(t.accepted_per_position[0] == 1 && t.accepted_per_position[2] == 1 && t.accepted_per_position[3] == 0);
    assert_int_equal(t.wait_ns, 600000);
    assert_int_equal(t.draft_round_trip.sum_ns, 300000); /* of rounds with a tree */
    assert_int_equal(t.late_trees, 1);
    assert_int_equal(t.desyncs[GR_TOLD_BY_TARGET], 2);
    assert_int_equal(t.fallbacks[GR_TOLD_BY_TARGET], 1);
}

static void test_drafters(void **state)
{
    (void)state;
    struct gr_totals t = {0};
    const struct gr_msg stats = {.type = GR_MSG_DRAFT_STATS,
                                 .draft_stats = {.n_ahead = 4, .n_hit = 3, .wire_bytes = 100}};
    take(&t, stats, "tcp");
    take(&t, stats, "tcp");
    take(&t, stats, "carrier pigeon");
    take(&t, (struct gr_msg){.type = GR_MSG_DRAFT_TROUBLE, .draft_trouble = {.n_desync = 1, .n_feature_gap = 2}},
         "tcp");
    assert_int_equal(t.draft_ahead_hits, 9);
    assert_int_equal(t.desyncs[GR_TOLD_BY_DRAFT], 1);
    assert_int_equal(t.feature_gaps, 2);
    for (int i = 0; i < GR_TOTALS_TRANSPORTS; i++) {
        const char *name = gr_totals_transport_name(i);
        const uint64_t want = strcmp(name, "tcp") == 0 ? 200 : strcmp(name, "other") == 0 ? 100 : 0;
        assert_int_equal(t.wire_bytes[i], want);
    }
}

static void test_turns_end_once(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    const struct gr_totals *t = gr_orch_totals(f->orch);
    join(f, 0, GR_WORKER_TARGET, 8);
    const uint64_t ends = open_session(f, false), kept = open_session(f, true), gone = open_session(f, false);
    settle(f);
    f->now_ns += 3 * GR_MS;
    commit_tree(f, kept, 4, 2);
    f->now_ns += GR_MS;
    end_turn(f, ends);
    end_turn(f, kept);
    assert_int_equal(gr_orch_close(f->orch, gone), GR_OK);
    settle(f);
    assert_int_equal(t->turns_begun, 3);
    assert_int_equal(n_ended(f, GR_FINISH_CLOSED), 1);
    assert_int_equal(n_ended(f, GR_FINISH_LENGTH) + n_ended(f, GR_FINISH_STOP), 2);
    append(f, kept);
    settle(f);
    assert_int_equal(gr_orch_stop(f->orch, kept, 0, UINT32_MAX, GR_FINISH_TIMEOUT), GR_OK);
    assert_int_equal(gr_orch_close(f->orch, kept), GR_OK); /* no turn of it goes on */
    settle(f);
    assert_int_equal(t->turns_begun, 4);
    assert_int_equal(n_ended(f, GR_FINISH_TIMEOUT), 1);
    assert_int_equal(n_ended(f, GR_FINISH_CLOSED), 1);
    uint64_t n = 0;
    for (int i = 0; i <= GR_HISTOGRAM_CEILINGS; i++) {
        n += t->turn.n[i];
    }
    assert_int_equal(n, 4);
    assert_true(t->generation_tokens >= 5 && t->prompt_tokens >= 9);
    assert_true(t->first_token.sum_ns >= 6 * GR_MS); /* two turns had tokens, after 3 and 4 ms */
    assert_true(t->prefill.sum_ns >= 6 * GR_MS && t->prefill.sum_ns <= t->first_token.sum_ns);
    assert_int_equal(t->decode.sum_ns, GR_MS); /* one of them had tokens twice */
    destroy_fleet(f);
}

static void test_refusals_and_losses(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    const struct gr_totals *t = gr_orch_totals(f->orch);
    gr_orch_configure(f->orch, &(struct gr_orch_config){.n_session_max = 1});
    join(f, 0, GR_WORKER_TARGET, 8);
    join(f, 1, GR_WORKER_DRAFT, 8);
    (void)open_session(f, false);
    settle(f);
    struct gr_session_request q = usual_request(false);
    uint64_t id = 0;
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &id), GR_AGAIN);
    q.model = "another";
    assert_int_not_equal(gr_orch_submit(f->orch, &q, f->now_ns, &id), GR_OK);
    assert_int_equal(t->turns_refused[GR_REFUSED_FULL], 1);
    assert_int_equal(t->turns_refused[GR_REFUSED_INVALID], 1);
    assert_int_equal(t->turns_begun, 1);
    gr_orch_on_lost(f->orch, 1, f->now_ns);
    gr_orch_on_lost(f->orch, 0, f->now_ns);
    assert_int_equal(t->workers_lost[GR_WORKER_DRAFT], 1);
    assert_int_equal(t->workers_lost[GR_WORKER_TARGET], 1);
    assert_int_equal(t->fallbacks[GR_TOLD_BY_ORCHESTRATOR], 1);
    assert_int_equal(t->reopens, 1);
    destroy_fleet(f);
}

/* One line with these words of docs/metrics.md since log_forget(), and a count that is one. */
static void one_of_each(uint64_t count, const char *words)
{
    assert_int_equal(count, 1);
    assert_int_equal(log_n_with(words), 1);
    log_forget();
}

/* What a target says of its session. */
static void say(struct fleet *f, uint32_t target, struct gr_msg m)
{
    assert_int_equal(gr_orch_on_msg(f->orch, target, &m, f->now_ns), GR_OK);
    settle(f);
}

static void test_events_are_told_and_counted(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    const struct gr_totals *t = gr_orch_totals(f->orch);
    const struct gr_worker_info drafter = {
        .role = GR_WORKER_DRAFT, .n_vocab = 100, .n_slot = 8, .numerics_id = "cpu", .address = "w:2", .host = "h2"};
    join(f, 0, GR_WORKER_TARGET, 8);
    f->deaf[1] = true;
    assert_int_equal(gr_orch_join(f->orch, 1, &drafter, f->now_ns), GR_OK);
    log_forget();
    const uint64_t fails = open_session(f, false);
    settle(f);
    one_of_each(t->drafter_errors, "[fallback] session 0000000000000001: drafter: worker 2 (host h2, ");
    say(f, 0,
        (struct gr_msg){.type = GR_MSG_ERROR,
                        .session = fails,
                        .error = {.code = (uint32_t)-GR_EFORMAT, .text = "not finite", .ended = 1}});
    one_of_each(t->turns_failed_at_target, "has failed at target worker 1");
    const uint64_t differs = open_session(f, false);
    settle(f);
    log_forget();
    say(f, 0, (struct gr_msg){.type = GR_MSG_COMMIT, .session = differs, .commit = {.epoch = 1, .keep_len = 1000}});
    one_of_each(t->transcript_mismatches, "COMMIT does not extend the transcript");
    assert_int_equal(n_ended(f, GR_FINISH_ERROR), 2);
    destroy_fleet(f);
}

static struct gr_worker_info named(const char *name, uint64_t values)
{
    struct gr_worker_info info = {.role = GR_WORKER_TARGET,
                                  .n_vocab = 100,
                                  .n_slot = 8,
                                  .numerics_id = "cpu",
                                  .tokenizer_fingerprint = 7,
                                  .model_fingerprint = values};
    snprintf(info.model, sizeof(info.model), "%s", name);
    return info;
}

static void test_who_is_refused(void **state)
{
    (void)state;
    struct fleet *f = make_fleet();
    const struct gr_worker_info first = named("m", 1), other = named("m", 2);
    f->is_target[0] = f->is_target[1] = true;
    assert_int_equal(gr_orch_join(f->orch, 0, &first, f->now_ns), GR_OK);
    log_forget();
    assert_int_not_equal(gr_orch_join(f->orch, 1, &other, f->now_ns), GR_OK);
    one_of_each(gr_orch_totals(f->orch)->workers_refused, "a worker was refused");
    destroy_fleet(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_drafters),
        cmocka_unit_test(test_turns_end_once),
        cmocka_unit_test(test_refusals_and_losses),
        cmocka_unit_test(test_events_are_told_and_counted),
        cmocka_unit_test(test_who_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
