/* Eight sessions at once through the real programs, over each transport, with a draft model and with an EAGLE-3 head:
 * the text of each is that of plain decoding by the same target alone. Sessions differ in prompt, temperature and
 * processors, so rows of one pass differ in them, too.
 *
 * With SpecPV some of them are verified under views, with picks that are falsified on purpose, while others of
 * the same pass are verified in full: the texts are the same, but for the session that asked for lossy. */
#include "common/process/children.h"
#include "common/base/clock.h"
#include "common/protocol/wire.h"
#include "orchestrator/server/hub.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sodium.h>
#include <cmocka.h>

#define TARGET GR_SOURCE_ROOT "/models/demo/target"
#define N_SESSION 8
#define N_TOKEN (GR_SANITIZED ? 28 : 40)
#define DEADLINE_NS (120 * GR_S)

static int32_t prompt[N_SESSION][256];
static uint32_t n_prompt[N_SESSION];

struct run {
    struct gr_hub *hub;
    struct gr_children children;
    int n_joined, n_done, n_error;
    uint64_t id[N_SESSION];
    int32_t token[N_SESSION][N_TOKEN + 64];
    uint32_t n_token[N_SESSION];
    uint64_t n_accepted, n_draft;
    bool views;         /* of SpecPV */
    uint64_t verify_ns; /* of the pass that was reported last: which COMMITs belong together */
    unsigned int kinds; /* of its verdicts, a bit each */
    int n_mixed;        /* passes with sessions under a view and such that see everything */
    uint64_t n_partial[N_SESSION], n_mismatch[N_SESSION];
};

/* What they ask for, where the target has views. */
static const enum gr_specpv_mode modes[N_SESSION] = {GR_SPECPV_EXACT, GR_SPECPV_OFF,  GR_SPECPV_LOSSY,
                                                     GR_SPECPV_EXACT, GR_SPECPV_AUTO, GR_SPECPV_EXACT,
                                                     GR_SPECPV_OFF,   GR_SPECPV_EXACT};

static int index_of(const struct run *r, uint64_t session)
{
    for (int i = 0; i < N_SESSION; i++) {
        if (r->id[i] == session) {
            return i;
        }
    }
    fail_msg("an unknown session");
    return -1;
}

static void on_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    struct run *r = ctx;
    const int i = index_of(r, session);
    (void)user;
    for (uint32_t k = 0; k < n; k++) {
        assert_true(r->n_token[i] < N_TOKEN + 64);
        r->token[i][r->n_token[i]++] = id[k];
    }
}

/* Views of three blocks; in every fifth partial pass of a session a pick is another. */
static const char *const view_args[] = {"--specpv",
                                        "on",
                                        "--specpv-n-sink-blocks",
                                        "1",
                                        "--specpv-n-retrieval-blocks",
                                        "1",
                                        "--specpv-n-window-blocks",
                                        "1",
                                        "--test-specpv-corrupt",
                                        "5"};

/* COMMITs of one pass come one after another, and tell its time to the nanosecond. */
static void on_report(void *ctx, uint64_t session, void *user, const struct gr_msg *m)
{
    struct run *r = ctx;
    const unsigned int partial = 1u << GR_VERDICT_PARTIAL;
    (void)session;
    (void)user;
    if (m->type != GR_MSG_COMMIT) {
        return;
    }
    const bool was_mixed = (r->kinds & partial) != 0 && (r->kinds & ~partial) != 0;
    r->kinds = (m->commit.verify_ns == r->verify_ns ? r->kinds : 0) | 1u << m->commit.verdict_kind;
    const bool is_mixed = (r->kinds & partial) != 0 && (r->kinds & ~partial) != 0;
    r->n_mixed += is_mixed && !(was_mixed && m->commit.verify_ns == r->verify_ns);
    r->verify_ns = m->commit.verify_ns;
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct run *r = ctx;
    (void)user;
    (void)text;
    const struct gr_session_metrics *m = gr_orch_metrics(gr_hub_orch(r->hub), session);
    const int i = index_of(r, session);
    r->n_partial[i] = m->partial_rounds;
    r->n_mismatch[i] = m->drift_mismatches;
    r->n_accepted += m->num_accepted_tokens;
    r->n_draft += m->num_drafts;
    r->n_error += finish == GR_FINISH_ERROR;
    r->n_done++;
}

static void on_join(void *ctx, const struct gr_msg *m)
{
    (void)m;
    ((struct run *)ctx)->n_joined++;
}

/* draft: a folder of models/demo; NULL: plain decoding */
static void start(struct run *r, const char *transport, const char *draft)
{
    char key_hex[2 * GR_KEY_BYTES + 1];
    int index = 0;
    struct gr_hub_config c = {.listen = "127.0.0.1:0",
                              .io = {.ctx = r, .on_tokens = on_tokens, .on_done = on_done, .on_report = on_report},
                              .on_join = on_join};
    assert_int_equal(gr_key_random(c.key, key_hex), GR_OK);
    assert_int_equal(gr_hub_create(&c, &r->hub), GR_OK);
    assert_int_equal(gr_children_init(&r->children, key_hex), GR_OK);
    static const struct gr_child_rule rule; /* an end is a failure: see pump_until() */
    const bool loop = draft != NULL && strcmp(transport, "loop") == 0;
    const bool head = draft != NULL && strcmp(draft, "eagle3") == 0;
    char draft_dir[512];
    snprintf(draft_dir, sizeof(draft_dir), "%s/models/demo/%s", GR_SOURCE_ROOT, draft != NULL ? draft : "");
    const char *target_argv[32] = {GR_BUILD_ROOT "/graft-target",
                                   "--model",
                                   TARGET,
                                   "--join",
                                   gr_hub_address(r->hub),
                                   "--max-model-len",
                                   "1024",
                                   "--sessions",
                                   "8"};
    const char *draft_argv[16] = {GR_BUILD_ROOT "/graft-draft",
                                  "--model",
                                  draft_dir,
                                  "--join",
                                  gr_hub_address(r->hub),
                                  "--max-model-len",
                                  "1024",
                                  "--sessions",
                                  "8",
                                  "--transport",
                                  transport};
    int n = 9;
    if (loop) {
        target_argv[n++] = "--colocate-draft";
        target_argv[n++] = draft_dir;
    }
    if (head) {
        target_argv[n++] = "--head";
        target_argv[n++] = draft_dir;
        draft_argv[11] = "--target";
        draft_argv[12] = TARGET;
    }
    for (size_t i = 0; r->views && i < GR_ARRAY_LEN(view_args); i++) {
        target_argv[n++] = view_args[i];
    }
    assert_int_equal(gr_children_start(&r->children, "target worker", target_argv, &rule, &index), GR_OK);
    if (draft != NULL && !loop) {
        assert_int_equal(gr_children_start(&r->children, "draft worker", draft_argv, &rule, &index), GR_OK);
    }
}

static void pump_until(struct run *r, const int *counter, int n)
{
    const uint64_t end_ns = gr_clock_ns() + DEADLINE_NS;
    while (*counter < n) {
        int signal_number = 0;
        int index = 0;
        gr_hub_pump(r->hub, 1000, r->children.signal_fd);
        assert_int_equal(gr_children_poll(&r->children, &signal_number, &index), GR_CHILD_NONE);
        assert_true(gr_clock_ns() < end_ns);
    }
}

static void submit(struct run *r, bool with_draft)
{
    static const float temperatures[] = {0.0f, 0.7f, 1.3f};
    static const uint32_t nodes[] = {1, 4, 16, 63};
    for (int i = 0; i < N_SESSION; i++) {
        struct gr_session_request q = {.prompt = prompt[i],
                                       .n_prompt = n_prompt[i],
                                       .wishes = {.turn = {.max_tokens = N_TOKEN},
                                                  .sampling = {.temperature = temperatures[i % 3],
                                                               .top_p = i % 4 == 1 ? 0.9f : 1.0f,
                                                               .top_k = i % 4 == 2 ? 50 : 0,
                                                               .seed = 77 + (uint64_t)i},
                                                  .want_draft = with_draft,
                                                  .n_node = nodes[i % 4],
                                                  .draft_depth = 8,
                                                  .draft_top_k = 10,
                                                  .tree_shape = i == 7 ? GR_SHAPE_CHAIN : GR_SHAPE_DYNAMIC,
                                                  .specpv = r->views ? modes[i] : GR_SPECPV_OFF,
                                                  .specpv_params = {.threshold = 16}}};
        assert_int_equal(gr_orch_submit(gr_hub_orch(r->hub), &q, gr_clock_ns(), &r->id[i]), GR_OK);
    }
}

static struct run *run_all(const char *transport, const char *draft, bool views)
{
    struct run *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    r->views = views;
    start(r, transport, draft);
    pump_until(r, &r->n_joined, draft != NULL ? 2 : 1);
    submit(r, draft != NULL);
    pump_until(r, &r->n_done, N_SESSION);
    assert_int_equal(r->n_error, 0);
    gr_hub_end(r->hub, &r->children, true, 10000);
    return r;
}

static struct run *plain;

static void check(const char *transport, const char *draft)
{
    struct run *r = run_all(transport, draft, false);
    for (int i = 0; i < N_SESSION; i++) {
        assert_int_equal(r->n_token[i], plain->n_token[i]);
        assert_memory_equal(r->token[i], plain->token[i], plain->n_token[i] * sizeof(int32_t));
    }
    assert_true(r->n_accepted > 0);
    print_message("# %s, %s: %llu tokens accepted in %llu drafts\n", draft, transport,
                  (unsigned long long)r->n_accepted, (unsigned long long)r->n_draft);
    free(r);
}

/* Sessions under views and sessions without in the same passes. */
static void check_views(const char *transport, const char *draft)
{
    struct run *r = run_all(transport, draft, true);
    uint64_t n_partial = 0;
    uint64_t n_mismatch = 0;
    for (int i = 0; i < N_SESSION; i++) {
        assert_true(modes[i] != GR_SPECPV_OFF || r->n_partial[i] == 0);
        assert_true(modes[i] != GR_SPECPV_LOSSY || r->n_partial[i] > 0);
        assert_int_equal(r->n_token[i], plain->n_token[i]);
        if (modes[i] != GR_SPECPV_LOSSY) {
            assert_memory_equal(r->token[i], plain->token[i], plain->n_token[i] * sizeof(int32_t));
            n_partial += r->n_partial[i];
            n_mismatch += r->n_mismatch[i];
        }
    }
    print_message("# %s, %s: %llu exact partial rounds, %llu roll-backs, %d passes with partial and full sessions\n",
                  draft, transport, (unsigned long long)n_partial, (unsigned long long)n_mismatch, r->n_mixed);
    assert_true(n_partial > 20 && n_mismatch > 5 && r->n_mixed > 10);
    free(r);
}

#if GR_SANITIZED == 0
static void test_views_shm(void **state)
{
    check_views("shm", *state);
}
#endif

static void test_views_tcp(void **state)
{
    check_views("tcp", *state);
}

static void test_shm(void **state)
{
    check("shm", *state);
}

static void test_tcp(void **state)
{
    check("tcp", *state);
}

static void test_loop(void **state)
{
    check("loop", *state);
}

static int setup(void **state)
{
    (void)state;
    json_error_t error;
    json_t *root = json_load_file(GR_SOURCE_ROOT "/tests/golden/demo-greedy.json", 0, &error);
    json_t *cases = json_object_get(root, "cases");
    if (cases == NULL || sodium_init() < 0) {
        return -1;
    }
    for (int i = 0; i < N_SESSION; i++) {
        json_t *ids = json_object_get(json_array_get(cases, (size_t)i), "prompt_ids");
        n_prompt[i] = (uint32_t)json_array_size(ids);
        for (size_t k = 0; k < n_prompt[i]; k++) {
            prompt[i][k] = (int32_t)json_integer_value(json_array_get(ids, k));
        }
    }
    json_decref(root);
    plain = run_all("", NULL, false);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(plain);
    return 0;
}

int main(void)
{
    static char model[] = "draft", head[] = "eagle3";
    const struct CMUnitTest tests[] = {
        {"shm, draft model", test_shm, NULL, NULL, model},
        {"tcp, head", test_tcp, NULL, NULL, head},
        {"loop, head", test_loop, NULL, NULL, head},
        {"views, tcp, head", test_views_tcp, NULL, NULL, head},
#if GR_SANITIZED == 0 /* each way and each kind of drafter once is dear enough under a sanitizer */
        {"shm, head", test_shm, NULL, NULL, head},
        {"tcp, draft model", test_tcp, NULL, NULL, model},
        {"loop, draft model", test_loop, NULL, NULL, model},
        {"views, shm, draft model", test_views_shm, NULL, NULL, model},
#endif
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
