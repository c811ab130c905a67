/* A session decodes while another one's long prompt is computed, through the real programs: how many tokens it gets
 * meanwhile, and how long the prompt takes, by --prefill-share.
 *
 * GRAFT_TEST_PROMPT=N: tokens of the prompt (default 2048). What it measured is printed as comments. */
#include "bench/pair.h"
#include "common/base/clock.h"
#include "common/base/parse.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sodium.h>
#include <cmocka.h>

#define N_BEFORE 256      /* tokens the session has decoded when the prompt comes */
#define N_TOKEN_MAX 15000 /* never reached: the session is stopped before */
#define N_PROMPT_MAX 16384
#define DEADLINE_NS (120 * GR_S)

static int32_t text[N_PROMPT_MAX];
static uint32_t n_text, n_prompt = 2048;

static struct share_run {
    struct gr_pair pair;
    uint64_t decoding, prompt; /* session ids; 0: not yet */
    int32_t token[N_TOKEN_MAX];
    uint64_t token_ns[N_TOKEN_MAX];          /* when each came */
    uint32_t n_token, n_at_submit, n_during; /* of the decoding session */
    uint64_t begin_ns, submit_ns, first_ns;
    int n_done;
} r;

static void on_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    const uint64_t now_ns = gr_clock_ns();
    (void)ctx;
    (void)user;
    if (session == r.prompt) {
        r.first_ns = now_ns;
        r.n_during = r.n_token - r.n_at_submit;
        return;
    }
    for (uint32_t i = 0; i < n && r.n_token < N_TOKEN_MAX; i++) {
        r.token_ns[r.n_token] = now_ns;
        r.token[r.n_token++] = id[i];
    }
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *why)
{
    (void)ctx;
    (void)user;
    if (finish == GR_FINISH_ERROR) {
        fail_msg("session %d: %s", (int)session, why);
    }
    r.n_done++;
}

static uint64_t submit(const int32_t *prompt, uint32_t n, uint32_t max_tokens, bool with_draft)
{
    uint64_t id = 0;
    const struct gr_session_request q = {.prompt = prompt,
                                         .n_prompt = n,
                                         .wishes = {.turn = {.max_tokens = max_tokens},
                                                    .sampling = {.top_p = 1.0f},
                                                    .want_draft = with_draft,
                                                    .n_node = 4,
                                                    .draft_depth = 8,
                                                    .draft_top_k = 10}};
    assert_int_equal(gr_orch_submit(gr_hub_orch(r.pair.hub), &q, gr_clock_ns(), &id), GR_OK);
    return id;
}

static void pump(void)
{
    assert_int_equal(gr_pair_pump(&r.pair), GR_OK);
    assert_true(gr_clock_ns() - r.begin_ns < DEADLINE_NS);
}

/* Starts the workers and the session that decodes; returns when it has n tokens. */
static void start(const char *share, bool with_draft, uint32_t n)
{
    r = (struct share_run){.begin_ns = gr_clock_ns()};
    const struct gr_pair_config c = {.target = GR_SOURCE_ROOT "/models/demo/target",
                                     .draft = GR_SOURCE_ROOT "/models/demo/draft",
                                     .target_program = GR_BUILD_ROOT "/graft-target",
                                     .draft_program = GR_BUILD_ROOT "/graft-draft",
                                     .transport = "",
                                     .n_session = 2,
                                     .n_ctx_max = N_PROMPT_MAX,
                                     .prefill_share = share,
                                     .io = {.ctx = &r, .on_tokens = on_tokens, .on_done = on_done}};
    assert_int_equal(gr_pair_start(&r.pair, &c), GR_OK);
    r.decoding = submit(text + 100, 32, N_TOKEN_MAX, with_draft);
    while (r.n_token < n) {
        pump();
    }
}

static void stop(int n_session)
{
    assert_int_equal(gr_orch_stop(gr_hub_orch(r.pair.hub), r.decoding, 0, UINT32_MAX, GR_FINISH_STOP), GR_OK);
    while (r.n_done < n_session) {
        pump();
    }
    gr_pair_stop(&r.pair);
}

/* One setting: what was decoded until the prompt's first token. */
struct outcome {
    const char *share;
    int32_t token[N_TOKEN_MAX];
    uint32_t n_at_submit, n_during;
    uint64_t wait_ns; /* for the prompt's first token */
};

static void play(struct outcome *o, const char *share, bool with_draft)
{
    start(share, with_draft, N_BEFORE);
    r.submit_ns = gr_clock_ns();
    r.n_at_submit = r.n_token;
    r.prompt = submit(text, n_prompt, 1, false);
    while (r.first_ns == 0) {
        pump();
    }
    stop(2);
    *o = (struct outcome){.share = share != NULL ? share : "(default)",
                          .n_at_submit = r.n_at_submit,
                          .n_during = r.n_during,
                          .wait_ns = r.first_ns - r.submit_ns};
    memcpy(o->token, r.token, (o->n_at_submit + o->n_during) * sizeof(*o->token));
}

static double per_second(uint32_t n, uint64_t ns)
{
    return n / ((double)ns / 1e9);
}

/* Beside the same tokens of the session on its own, which is what r holds. */
static void compare(const struct outcome *o, bool with_draft)
{
    const uint32_t end = o->n_at_submit + o->n_during;
    const uint64_t alone_ns = r.token_ns[end - 1] - r.token_ns[o->n_at_submit - 1];
    const double during = per_second(o->n_during, o->wait_ns), alone = per_second(o->n_during, alone_ns);
    assert_memory_equal(o->token, r.token, end * sizeof(*o->token));
    print_message("# %s, prompt of %u, share %s: %.0f tok/s while it is computed (%u tokens), %.0f alone; %.0f ms to "
                  "its first token\n",
                  with_draft ? "trees of 4" : "plain", n_prompt, o->share, during, o->n_during, alone,
                  (double)o->wait_ns / 1e6);
}

/* Without a limit there is one round a chunk; a part of the time is worth many of them. */
static void check(bool with_draft)
{
    static const struct {
        const char *share;
        uint32_t n_least; /* tokens, for each one without a limit */
    } setting[] = {{"off", 0}, {"0.8", 2}, {NULL, 3}, {"0.3", 4}};
    static struct outcome o[GR_ARRAY_LEN(setting)];
    uint32_t n = 0;
    for (size_t i = 0; i < GR_ARRAY_LEN(setting); i++) {
        play(&o[i], setting[i].share, with_draft);
        n = GR_MAX(n, o[i].n_at_submit + o[i].n_during);
    }
    start(NULL, with_draft, n);
    stop(1);
    for (size_t i = 0; i < GR_ARRAY_LEN(setting); i++) {
        compare(&o[i], with_draft);
        assert_true(o[i].n_during > setting[i].n_least * o[0].n_during || i == 0);
    }
}

static void test_plain(void **state)
{
    (void)state;
    check(false);
}

static void test_with_trees(void **state)
{
    (void)state;
    check(true);
}

static int setup(void **state)
{
    (void)state;
    json_error_t error;
    json_t *root = json_load_file(GR_SOURCE_ROOT "/tests/golden/demo-greedy.json", 0, &error);
    const json_t *cases = json_object_get(root, "cases");
    int64_t n = n_prompt;
    const char *wanted = getenv("GRAFT_TEST_PROMPT");
    if (cases == NULL || sodium_init() < 0 || (wanted != NULL && !gr_parse_int(wanted, 1024, N_PROMPT_MAX - 1, &n))) {
        return -1;
    }
    n_prompt = (uint32_t)n;
    while (n_text < N_PROMPT_MAX) { /* the stored prompts, one after the other, again and again */
        for (size_t i = 0; i < json_array_size(cases); i++) {
            const json_t *ids = json_object_get(json_array_get(cases, i), "prompt_ids");
            for (size_t k = 0; k < json_array_size(ids) && n_text < N_PROMPT_MAX; k++) {
                text[n_text++] = (int32_t)json_integer_value(json_array_get(ids, k));
            }
        }
    }
    json_decref(root);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain), cmocka_unit_test(test_with_trees)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
