/* Several models at one orchestrator: which one a request means, that its session never goes to another, and that a
 * name stands for one. */
#include "tests/unit/orch_world.h"

/* Workers beside TARGET, which runs model 11 under the name "a". */
#define OTHER 2 /* runs model 12 */
#define MORE 3  /* a third target */
#define DRAFT_A 4
#define DRAFT_B 5

static struct gr_worker_info target_of(const char *name, uint64_t fingerprint, uint64_t tokenizer)
{
    struct gr_worker_info info = target_info();
    snprintf(info.model, sizeof(info.model), "%s", name);
    info.model_fingerprint = fingerprint;
    info.tokenizer_fingerprint = tokenizer;
    return info;
}

static enum gr_status join(struct world *w, uint32_t worker, const struct gr_worker_info *info)
{
    return gr_orch_join(w->orch, worker, info, w->now_ns);
}

static void join_as(struct world *w, uint32_t worker, const char *name, uint64_t fingerprint, uint64_t tokenizer)
{
    const struct gr_worker_info info = target_of(name, fingerprint, tokenizer);
    assert_int_equal(join(w, worker, &info), GR_OK);
}

/* Two models of one tokenizer. */
static struct world *make_two(void)
{
    struct world *w = make(NULL);
    join_as(w, TARGET, "a", 11, 7);
    join_as(w, OTHER, "b", 12, 7);
    return w;
}

static enum gr_status ask(struct world *w, const char *model, uint64_t tokenizer, bool keep_open, uint64_t *id)
{
    static const int32_t prompt[] = {1, 2};
    struct gr_session_request q = {.prompt = prompt,
                                   .n_prompt = 2,
                                   .model = model,
                                   .tokenizer_fingerprint = tokenizer,
                                   .wishes = {.turn = {.max_tokens = 4}, .keep_open = keep_open, .want_draft = true}};
    q.wishes.sampling.top_p = 1.0f;
    return gr_orch_submit(w->orch, &q, w->now_ns, id);
}

static int target_at(const struct world *w, uint64_t id)
{
    struct gr_session_info info = {.target = -2};
    assert_true(gr_orch_session_info(w->orch, id, w->now_ns, &info));
    return info.target;
}

static void open_at(struct world *w, const char *model, int target)
{
    uint64_t id = 0;
    assert_int_equal(ask(w, model, 7, false, &id), GR_OK);
    assert_int_equal(target_at(w, id), target);
    w->n_sent = 0;
}

static void refused(struct world *w, const char *model, enum gr_status status, const char *words)
{
    uint64_t id = 0;
    assert_int_equal(ask(w, model, 7, false, &id), status);
    if (strstr(gr_orch_why(w->orch), words) == NULL) {
        fail_msg("`%s' is wanted, not `%s'", words, gr_orch_why(w->orch));
    }
}

static void test_which_model(void **state)
{
    (void)state;
    struct world *w = make_two();
    for (int i = 0; i < 3; i++) {
        open_at(w, "a", TARGET);
        open_at(w, "b", OTHER);
    }
    refused(w, NULL, GR_EINVAL, "several models are here, say which by --served-model-name: `a', `b'");
    refused(w, "", GR_EINVAL, "`a', `b'");
    refused(w, "c", GR_ENOTFOUND, "there is no model `c' here, but: `a', `b'");
    join_as(w, MORE, "also a", 11, 7); /* another name of the first */
    open_at(w, "also a", MORE);        /* which has less to do */
    open_at(w, "a", MORE);
    destroy(w);
}

/* The ids' tokenizer says which model is meant where only one has it. */
static void test_tokenizer_tells(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_as(w, TARGET, "a", 11, 6);
    join_as(w, OTHER, "b", 12, 7);
    open_at(w, NULL, OTHER);
    uint64_t id = 0;
    assert_int_equal(ask(w, NULL, 6, false, &id), GR_OK);
    assert_int_equal(target_at(w, id), TARGET);
    assert_int_equal(ask(w, NULL, 5, false, &id), GR_EINVAL);
    destroy(w);
}

/* The only target of a model is lost: its sessions wait for it, and nobody is served by the other one instead. */
static void test_lost_target(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    gr_orch_configure(w->orch, &(struct gr_orch_config){.queue_timeout_ns = 10 * GR_S});
    join_as(w, TARGET, "a", 11, 7);
    join_as(w, OTHER, "b", 12, 7);
    uint64_t id = 0;
    assert_int_equal(ask(w, "a", 7, true, &id), GR_OK);
    take_open(w);
    opened(w);
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    assert_int_equal(target_at(w, id), -1);
    assert_int_equal(w->n_sent, 0);
    refused(w, NULL, GR_EINVAL, "`a' (away), `b'");
    join_as(w, MORE, "a", 11, 7);
    assert_int_equal(target_at(w, id), MORE);
    w->n_sent = 0;
    gr_orch_on_lost(w->orch, MORE, w->now_ns);
    (void)gr_orch_step(w->orch, w->now_ns + 10 * GR_S);
    assert_int_equal(w->n_done, 1);
    assert_non_null(strstr(w->text, "no target of model `a'"));
    destroy(w);
}

/* A name is one model's while a target or a session has it. */
static void test_a_name_is_taken(void **state)
{
    (void)state;
    struct world *w = make_two();
    const struct gr_worker_info third = target_of("a", 13, 7);
    uint64_t id = 0;
    assert_int_equal(join(w, MORE, &third), GR_EMISMATCH);
    const struct gr_msg *m = only(w, MORE, GR_MSG_ERROR);
    assert_non_null(strstr(m->error.text, "`a'"));
    assert_non_null(strstr(m->error.text, "000000000000000d, that of target worker 1 of this name 000000000000000b"));
    assert_int_equal(gr_orch_n_refused(w->orch), 1);
    assert_int_equal(ask(w, "a", 7, true, &id), GR_OK);
    take_open(w);
    opened(w);
    commit(w, 40, 2, GR_FINISH_STOP);
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    assert_int_equal(join(w, MORE, &third), GR_EMISMATCH);
    assert_non_null(strstr(gr_orch_why(w->orch), "of open sessions"));
    assert_int_equal(gr_orch_purge(w->orch), 1);
    assert_int_equal(join(w, MORE, &third), GR_OK);
    w->n_sent = 0;
    open_at(w, "a", MORE);
    destroy(w);
}

/* Whose targets have left in order is no more meant by who names none. */
static void test_left_in_order(void **state)
{
    (void)state;
    struct world *w = make_two();
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_DRAIN});
    (void)gr_orch_step(w->orch, w->now_ns);
    expect(w, TARGET, GR_MSG_DRAIN);
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    open_at(w, NULL, OTHER);
    join_as(w, TARGET, "a", 11, 7);
    refused(w, NULL, GR_EINVAL, "`a', `b'");
    destroy(w);
}

/* Requests that came before any target: a named one waits for its own, another takes the first that comes. */
static void test_asked_before(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    uint64_t named = 0, other = 0;
    assert_int_equal(ask(w, "b", 7, false, &named), GR_OK);
    assert_int_equal(ask(w, NULL, 7, false, &other), GR_OK);
    join_as(w, TARGET, "a", 11, 7);
    assert_int_equal(target_at(w, named), -1);
    assert_int_equal(target_at(w, other), TARGET);
    w->n_sent = 0;
    join_as(w, OTHER, "b", 12, 7);
    assert_int_equal(target_at(w, named), OTHER);
    destroy(w);
}

static void join_draft(struct world *w, uint32_t worker, uint64_t tokenizer)
{
    struct gr_worker_info info = draft_info();
    info.tokenizer_fingerprint = tokenizer;
    assert_int_equal(join(w, worker, &info), GR_OK);
}

static void answer_open(struct world *w, uint32_t target, uint64_t id)
{
    w->n_sent = 0;
    say(w, target, &(struct gr_msg){.type = GR_MSG_OPENED, .session = id, .opened = {.epoch = 1}});
}

/* Drafters of each, and idle sessions stay with the only target of their model when one of another comes. */
static void test_drafters_and_shares(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    uint64_t id[2] = {0};
    join_as(w, TARGET, "a", 11, 6);
    join_draft(w, DRAFT_A, 6);
    join_draft(w, DRAFT_B, 7);
    assert_int_equal(ask(w, NULL, 6, true, &id[0]), GR_OK);
    take_open(w);
    opened(w);
    expect(w, DRAFT_A, GR_MSG_ATTACH);
    commit(w, 40, 2, GR_FINISH_STOP);
    join_as(w, OTHER, "b", 12, 7);
    assert_int_equal(w->n_sent, 0);
    assert_int_equal(target_at(w, id[0]), TARGET);
    assert_int_equal(ask(w, NULL, 7, true, &id[1]), GR_OK);
    answer_open(w, OTHER, id[1]);
    expect(w, DRAFT_B, GR_MSG_ATTACH);
    gr_orch_on_lost(w->orch, DRAFT_B, w->now_ns); /* the other one is not for it */
    assert_int_equal(w->n_sent, 0);
    destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_which_model),         cmocka_unit_test(test_tokenizer_tells),
        cmocka_unit_test(test_lost_target),         cmocka_unit_test(test_a_name_is_taken),
        cmocka_unit_test(test_left_in_order),       cmocka_unit_test(test_asked_before),
        cmocka_unit_test(test_drafters_and_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
