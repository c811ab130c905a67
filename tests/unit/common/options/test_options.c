/* The table of options: each kind at both ends of its range, junk, nothing, twice; from the command line, the
 * environment and a file; who wins; what is said. */
#include "common/base/suggest.h"
#include "common/options/options.h"
#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct gr_options o;

static int parse(enum gr_command command, const char *name, const char *value)
{
    char *argv[] = {(char *)(uintptr_t) "x", (char *)(uintptr_t)name, (char *)(uintptr_t)value};
    gr_options_default(&o, command);
    return gr_options_parse(&o, value != NULL ? 3 : 2, argv);
}

static void taken(enum gr_command command, const char *name, const char *value)
{
    const int status = parse(command, name, value);
    if (status != -1) {
        fail_msg("%s %s is refused", name, value != NULL ? value : "");
    }
}

/* One line that names who said what. */
static void refused(enum gr_command command, const char *name, const char *value, const char *word)
{
    struct log_capture cap;
    log_capture_begin(&cap);
    const int status = parse(command, name, value);
    const char *log = log_capture_end(&cap);
    if (status != 2 || log_capture_n_line(log) != 1 || strstr(log, name) == NULL || strstr(log, word) == NULL) {
        fail_msg("%s %s: status %d, %s", name, value != NULL ? value : "", status, log);
    }
}

/* Both ends of the range, one beyond each, junk and nothing; for each way that a value comes. */
static void test_every_row_keeps_its_range(void **state)
{
    (void)state;
    for (const struct gr_option *r = gr_option_rows; r < gr_option_rows + GR_N_OPTION; r++) {
        const bool whole = r->kind == GR_KIND_INT || r->kind == GR_KIND_INT_OR_0 || r->kind == GR_KIND_AUTO;
        const double out[] = {r->min - 1, r->max + 1};
        const double in[] = {r->min, r->max};
        for (int i = 0; i < 2 && whole && r->max < 1e15; i++) {
            char text[64];
            gr_options_default(&o, GR_CMD_RUN);
            snprintf(text, sizeof(text), "%.0f", in[i]);
            for (enum gr_option_source from = GR_FROM_YAML; from <= GR_FROM_CLI; from++) {
                assert_int_equal(gr_option_set(&o.values, r, r->name, text, from), GR_OK);
                char back[GR_OPTION_TEXT_MAX];
                assert_string_equal(gr_option_text(&o.values, r, back), text);
            }
            struct log_capture cap;
            log_capture_begin(&cap);
            snprintf(text, sizeof(text), "%.0f", out[i]);
            const bool zero = r->kind == GR_KIND_INT_OR_0 && out[i] == 0.0;
            const enum gr_status st = gr_option_set(&o.values, r, r->name, text, GR_FROM_CLI);
            const char *log = log_capture_end(&cap);
            if (st != (zero ? GR_OK : GR_EINVAL) || (!zero && strstr(log, text) == NULL)) {
                fail_msg("%s: %s", r->name, text);
            }
        }
    }
}

static void test_no_kind_takes_junk(void **state)
{
    (void)state;
    static const char *const junk[] = {"", "x", "1x", " ", "nan", "99999999999999999999", "-", "1e999", "0x"};
    for (const struct gr_option *r = gr_option_rows; r < gr_option_rows + GR_N_OPTION; r++) {
        for (size_t i = 0; i < GR_ARRAY_LEN(junk) && r->kind != GR_KIND_TEXT && r->kind != GR_KIND_WORDS; i++) {
            struct log_capture cap;
            gr_options_default(&o, GR_CMD_RUN);
            log_capture_begin(&cap);
            const enum gr_status st = gr_option_set(&o.values, r, "GRAFT_X", junk[i], GR_FROM_ENV);
            const char *log = log_capture_end(&cap);
            if (st != GR_EINVAL || log_capture_n_line(log) != 1 || strstr(log, "GRAFT_X") == NULL) {
                fail_msg("%s takes `%s': %s", r->name, junk[i], log);
            }
        }
    }
}

static const struct {
    const char *name;    /* one option of each kind */
    const char *good[4]; /* both ends of its range, and what else it takes */
    const char *bad[8];  /* beyond them, empty, junk */
} kinds[] = {
    {"ignore-eos", {"true", "false", "1", "0"}, {"", "yes", "2", "TRUE", "true "}},
    {"max-tokens", {"1", "16777216"}, {"0", "16777217", "-1", "", " ", "x", "1.5", "1x"}},
    {"seed", {"-1", "0", "9200000000000000000"}, {"-2", "9300000000000000000", "", "x", "1e3"}},
    {"draft-context", {"0", "2", "16777216"}, {"1", "-1", "16777217", "", "x", "2.0"}},
    {"kv-blocks", {"auto", "1", "67108864"}, {"0", "67108865", "Auto", "", "x"}},
    {"temperature", {"0", "100", "1e-400", "0.7"}, {"-0.1", "100.1", "", "x", "nan", "inf", "0,7"}},
    {"top-p", {"1e-6", "1"}, {"0", "1.1", "", "x"}},
    {"prefill-share", {"off", "0", "0.999"}, {"1", "-0.1", "", "on", "0.5x"}},
    {"method", {"none", "draft_model", "eagle3"}, {"", "None", "eagle", "draft_model, eagle3", "none,"}},
    {"target-device",
     {"cpu", "cuda:0", "cuda:255", "cuda:0,cuda:1"},
     {"", "cuda", "cuda:256", "cuda:-1", "gpu", "cuda:0x"}},
    {"control",
     {"127.0.0.1:0", "127.0.0.1:65535", "[::1]:5055"},
     {"127.0.0.1:65536", "127.0.0.1:70591", "127.0.0.1", ":x", "127.0.0.1:-1", "127.0.0.1:1x", ""}},
    {"connect", {"127.0.0.1:1", "127.0.0.1:65535"}, {"127.0.0.1:0", "127.0.0.1:65536", "", "x"}},
    {"stop-token-ids", {"0", "4194303", "1,2,3"}, {"4194304", "-1", "", "1,,2", "1;2", "x", "1,"}},
    {"prompt", {"", "text", "--x"}, {NULL}},
};

static bool takes(const char *name, const char *what, const char *value, enum gr_option_source source)
{
    struct log_capture cap;
    gr_options_default(&o, GR_CMD_RUN);
    log_capture_begin(&cap);
    const enum gr_status st =
        gr_option_set(&o.values, gr_option_find(&gr_option_table, GR_CMD_RUN, name, strlen(name)), what, value, source);
    const char *log = log_capture_end(&cap);
    assert_int_equal(log_capture_n_line(log), st == GR_OK ? 0 : 1);
    assert_true(st == GR_OK || (strstr(log, what) != NULL && strstr(log, value) != NULL));
    return st == GR_OK;
}

/* One of each kind, from all sources, whose names the message tells. */
static void test_kinds(void **state)
{
    (void)state;
    static const struct {
        enum gr_option_source source;
        const char *what;
    } from[] = {
        {GR_FROM_CLI, "--some-option"}, {GR_FROM_ENV, "GRAFT_SOME_OPTION"}, {GR_FROM_YAML, "c.yaml:3:5: some.key"}};
    for (size_t k = 0; k < GR_ARRAY_LEN(kinds); k++) {
        for (size_t f = 0; f < GR_ARRAY_LEN(from); f++) {
            for (size_t i = 0; i < GR_ARRAY_LEN(kinds[k].good) && kinds[k].good[i] != NULL; i++) {
                assert_true(takes(kinds[k].name, from[f].what, kinds[k].good[i], from[f].source));
            }
            for (size_t i = 0; i < GR_ARRAY_LEN(kinds[k].bad) && kinds[k].bad[i] != NULL; i++) {
                assert_false(takes(kinds[k].name, from[f].what, kinds[k].bad[i], from[f].source));
            }
        }
    }
}

static void test_kinds_from_the_command_line(void **state)
{
    (void)state;
    taken(GR_CMD_RUN, "--prefill-share", "off");
    assert_true(o.prefill_share == 0.0);
    taken(GR_CMD_RUN, "--prefill-share", "0.999");
    refused(GR_CMD_RUN, "--prefill-share", "1", "below 1");
    taken(GR_CMD_RUN, "--draft-context", "0");
    taken(GR_CMD_RUN, "--draft-context", "2");
    refused(GR_CMD_RUN, "--draft-context", "1", "0 or a whole number from 2");
    taken(GR_CMD_RUN, "--num-speculative-tokens", "auto");
    assert_int_equal(o.num_speculative_tokens, GR_AUTO);
    refused(GR_CMD_RUN, "--num-speculative-tokens", "64", "auto or a whole number from 0 to 63");
    taken(GR_CMD_RUN, "--top-p", "1e-6");
    refused(GR_CMD_RUN, "--top-p", "0", "from 1e-06 to 1");
    taken(GR_CMD_SERVE, "--control", "127.0.0.1:65535");
    refused(GR_CMD_SERVE, "--control", "127.0.0.1:65536", "65535");
    refused(GR_CMD_TARGET, "--join", "127.0.0.1:0", "from 1 to 65535");
    refused(GR_CMD_DRAFT, "--join", "127.0.0.1:70591", "65535");
    taken(GR_CMD_RUN, "--target-device", "cuda:0");
    refused(GR_CMD_RUN, "--target-device", "cuda", "cuda:N");
    taken(GR_CMD_RUN, "--tree-shape", "chain");
    refused(GR_CMD_RUN, "--tree-shape", "chai", "dynamic, chain");
    taken(GR_CMD_RUN, "--stop-token-ids", "0,4194303");
    assert_int_equal(o.stop_token_ids.n, 2);
    refused(GR_CMD_RUN, "--stop-token-ids", "4194304", "not a token id from 0 to 4194303");
    refused(GR_CMD_RUN, "--specpv-n-sink-blocks", "0", "1 is the least");
}

static void test_flags(void **state)
{
    (void)state;
    taken(GR_CMD_TARGET, "--require-tuned", NULL);
    assert_true(o.require_tuned);
    taken(GR_CMD_TARGET, "--require-tuned=false", NULL);
    assert_false(o.require_tuned);
    refused(GR_CMD_TARGET, "--require-tuned=1", NULL, "takes no value");
    refused(GR_CMD_RUN, "--prompt", NULL, "needs a value");
}

static void test_a_list_has_limits(void **state)
{
    (void)state;
    const struct gr_option *r = &gr_option_rows[GR_OPTION_stop];
    gr_options_default(&o, GR_CMD_RUN);
    for (int i = 0; i < GR_STOP_STRING_MAX; i++) {
        assert_int_equal(gr_option_set(&o.values, r, "--stop", "x", GR_FROM_YAML), GR_OK);
    }
    struct log_capture cap;
    log_capture_begin(&cap);
    assert_int_equal(gr_option_set(&o.values, r, "--stop", "x", GR_FROM_YAML), GR_EINVAL);
    assert_non_null(strstr(log_capture_end(&cap), "more than 8"));
    assert_int_equal(gr_option_set(&o.values, r, "--stop", "y", GR_FROM_CLI), GR_OK); /* a higher source begins anew */
    assert_int_equal(o.stop.n, 1);
}

static void test_repeated(void **state)
{
    (void)state;
    char *argv[] = {(char *)(uintptr_t) "x", (char *)(uintptr_t) "--max-tokens=3",
                    (char *)(uintptr_t) "--max-tokens=4"};
    gr_options_default(&o, GR_CMD_RUN);
    assert_int_equal(gr_options_parse(&o, 3, argv), -1);
    assert_int_equal(o.max_tokens, 4); /* the last one counts */
    argv[1] = argv[2] = (char *)(uintptr_t) "--prompt=a";
    struct log_capture cap;
    gr_options_default(&o, GR_CMD_RUN);
    log_capture_begin(&cap);
    assert_int_equal(gr_options_parse(&o, 3, argv), 2);
    assert_non_null(strstr(log_capture_end(&cap), "--prompt is given twice"));
}

static void test_environment(void **state)
{
    (void)state;
    setenv("GRAFT_MAX_TOKENS", "6", 1);
    taken(GR_CMD_RUN, "--json", NULL);
    assert_int_equal(o.max_tokens, 6);
    assert_int_equal(gr_option_set(&o.values, &gr_option_rows[GR_OPTION_max_tokens], "a.yaml:1:1", "5", GR_FROM_YAML),
                     GR_OK);
    assert_int_equal(o.max_tokens, 6);
    taken(GR_CMD_RUN, "--max-tokens", "7");
    assert_int_equal(o.max_tokens, 7);
    setenv("GRAFT_MAX_TOKENS", "0", 1);
    struct log_capture cap;
    log_capture_begin(&cap);
    assert_int_equal(parse(GR_CMD_RUN, "--json", NULL), 2);
    const char *log = log_capture_end(&cap);
    assert_non_null(strstr(log, "GRAFT_MAX_TOKENS: `0' is not a whole number"));
    assert_int_equal(log_capture_n_line(log), 1);
    taken(GR_CMD_PING, "--json", NULL); /* which does not take it */
    setenv("GRAFT_JOIN_TIMEOUT", "1", 1);
    taken(GR_CMD_TARGET, "--threads", "1");
    assert_int_equal(o.join_timeout, 1000000000);
}

/* Children see the key, and nothing that they are not handed. */
static void test_environment_is_cleared(void **state)
{
    (void)state;
    static const char *const gone[] = {"GRAFT_MAX_TOKENS", "GRAFT_THREADS", "GRAFT_JOIN_TIMEOUT"};
    static const char *const kept[] = {"GRAFT_KEY", "GRAFT_KEY_FILE", "GRAFT_LOG", "GRAFT_DEBUG", "GRAFT_CPU"};
    for (size_t i = 0; i < GR_ARRAY_LEN(gone); i++) {
        setenv(gone[i], "1", 1);
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(kept); i++) {
        setenv(kept[i], "1", 1);
    }
    gr_options_clear_environment();
    for (size_t i = 0; i < GR_ARRAY_LEN(gone); i++) {
        assert_null(getenv(gone[i]));
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(kept); i++) {
        assert_non_null(getenv(kept[i]));
        unsetenv(kept[i]);
    }
}

static void test_unknown(void **state)
{
    (void)state;
    refused(GR_CMD_RUN, "--max-tokns", "1", "did you mean --max-tokens?");
    refused(GR_CMD_RUN, "--xyzzy", NULL, "see graft run --help");
    refused(GR_CMD_PING, "--max-tokens", "1", "is not for this command; see graft ping --help");
    refused(GR_CMD_DRAFT, "--test-fail-pass", "1", "is not for this command; see graft-draft --help");
    refused(GR_CMD_RUN, "--device", "cpu", "which has --target-device and --draft-device; see graft run --help");
    refused(GR_CMD_RUN, "-m", "x", "`-m': options start with -- (did you mean --model?); see graft run --help");
    refused(GR_CMD_RUN, "-p", "x", "(did you mean --prompt?)");
    refused(GR_CMD_RUN, "-n", "1", "(did you mean --max-tokens?)");
    refused(GR_CMD_DRAFT, "-tp", "2", "`-tp': options start with -- (--tensor-parallel-size is not for this command);");
    refused(GR_CMD_RUN, "-x", "1", "`-x': options start with --; see");
    refused(GR_CMD_LAUNCH, "--rendezvous", "pmx", "`pmx' is not HOST:PORT");
    refused(GR_CMD_RUN, "word", NULL, "options start with --");
    refused(GR_CMD_RUN, "-", NULL, "options start with --");
    refused(GR_CMD_RUN, "--help", "modell", "did you mean model?");
}

static void test_suggestions(void **state)
{
    (void)state;
    struct gr_suggest s = {.word = "sesions", .len = 7};
    gr_suggest_offer(&s, "session");
    gr_suggest_offer(&s, "sessions");
    gr_suggest_offer(&s, "serve");
    assert_string_equal(s.best, "sessions");
    struct gr_suggest none = {.word = "qqq", .len = 3};
    gr_suggest_offer(&none, "seed");
    gr_suggest_offer(&none, "");
    assert_null(none.best);
    struct gr_suggest empty = {.word = "", .len = 0};
    gr_suggest_offer(&empty, "seed");
    assert_null(empty.best);
}

/* A choice is a number from its first reading on: the enum that a program compares it with has the same order. */
static void test_choices_are_their_enums(void **state)
{
    static const struct {
        enum gr_option_id id;
        int value;
        const char *text;
    } choices[] = {
        {GR_OPTION_method, GR_METHOD_NONE, "none"},
        {GR_OPTION_method, GR_METHOD_DRAFT_MODEL, "draft_model"},
        {GR_OPTION_method, GR_METHOD_EAGLE3, "eagle3"},
        {GR_OPTION_top_sort, GR_TOP_BY_SPEED, "speed"},
        {GR_OPTION_top_sort, GR_TOP_BY_TOKENS, "tokens"},
        {GR_OPTION_top_sort, GR_TOP_BY_ACCEPTANCE, "acceptance"},
        {GR_OPTION_top_sort, GR_TOP_BY_IDLE, "idle"},
        {GR_OPTION_top_sort, GR_TOP_BY_TARGET, "target"},
        {GR_OPTION_dtype, GR_CHOICE_DTYPE_AUTO, "auto"},
        {GR_OPTION_dtype, GR_CHOICE_DTYPE_BF16, "bf16"},
        {GR_OPTION_dtype, GR_CHOICE_DTYPE_F32, "f32"},
        {GR_OPTION_ship_features, GR_FEATURES_FUSED, "fused"},
        {GR_OPTION_ship_features, GR_FEATURES_RAW, "raw"},
        {GR_OPTION_tree_shape, GR_CHOICE_DYNAMIC, "dynamic"},
        {GR_OPTION_tree_shape, GR_CHOICE_CHAIN, "chain"},
        {GR_OPTION_draft_ahead, GR_CHOICE_AHEAD_OFF, "off"},
        {GR_OPTION_draft_ahead, GR_CHOICE_AHEAD_ON, "on"},
        {GR_OPTION_draft_ahead, GR_CHOICE_AHEAD_AUTO, "auto"},
        {GR_OPTION_tp_transport, GR_CHOICE_TP_AUTO, "auto"},
        {GR_OPTION_tp_transport, GR_CHOICE_TP_PEER, "peer"},
        {GR_OPTION_tp_transport, GR_CHOICE_TP_NCCL, "nccl"},
        {GR_OPTION_tp_allreduce, GR_CHOICE_TP_TREE, "tree"},
        {GR_OPTION_tp_allreduce, GR_CHOICE_TP_ALLREDUCE_NCCL, "nccl"},
        {GR_OPTION_specpv, GR_CHOICE_SPECPV_OFF, "off"},
        {GR_OPTION_specpv, GR_CHOICE_SPECPV_LOSSY, "lossy"},
        {GR_OPTION_specpv, GR_CHOICE_SPECPV_EXACT, "exact"},
        {GR_OPTION_specpv, GR_CHOICE_SPECPV_AUTO, "auto"},
        {GR_OPTION_specpv, GR_CHOICE_SPECPV_ON, "on"},
        {GR_OPTION_specpv_mode, GR_SPECPV_LOSSY - GR_SPECPV_LOSSY, "lossy"},
        {GR_OPTION_specpv_mode, GR_SPECPV_EXACT - GR_SPECPV_LOSSY, "exact"},
        {GR_OPTION_specpv_mode, GR_SPECPV_AUTO - GR_SPECPV_LOSSY, "auto"},
        {GR_OPTION_views, GR_VIEWS_OFF, "off"},
        {GR_OPTION_views, GR_VIEWS_ON, "on"},
        {GR_OPTION_prefix_cache, GR_PREFIX_CACHE_OFF, "off"},
        {GR_OPTION_prefix_cache, GR_PREFIX_CACHE_ON, "on"},
        {GR_OPTION_specpv_score_reduce, GR_REDUCE_MEAN, "mean"},
        {GR_OPTION_specpv_score_reduce, GR_REDUCE_MAX, "max"},
        {GR_OPTION_transport, GR_CHOICE_LOOP, "loop"},
        {GR_OPTION_transport, GR_CHOICE_SHM, "shm"},
        {GR_OPTION_transport, GR_CHOICE_TCP, "tcp"},
        {GR_OPTION_transport, GR_CHOICE_VERBS, "verbs"},
        {GR_OPTION_verbs_mode, GR_VERBS_ONE_SIDED, "one_sided"},
        {GR_OPTION_verbs_mode, GR_VERBS_TWO_SIDED, "two_sided"},
        {GR_OPTION_http_unknown, GR_CHOICE_HTTP_UNKNOWN_REFUSE, "refuse"},
        {GR_OPTION_http_unknown, GR_CHOICE_HTTP_UNKNOWN_LOG, "log"},
        {GR_OPTION_chat_thinking, GR_CHOICE_THINKING_ON, "on"},
        {GR_OPTION_chat_thinking, GR_CHOICE_THINKING_OFF, "off"},
        {GR_OPTION_ranks, GR_CHOICE_RANKS_AUTO, "auto"},
        {GR_OPTION_ranks, GR_CHOICE_RANKS_SLURM, "slurm"},
        {GR_OPTION_ranks, GR_CHOICE_RANKS_OMPI, "ompi"},
        {GR_OPTION_ranks, GR_CHOICE_RANKS_PMIX, "pmix"},
        {GR_OPTION_ranks, GR_CHOICE_RANKS_PMI, "pmi"},
        {GR_OPTION_ranks, GR_CHOICE_RANKS_TORCHRUN, "torchrun"},
        {GR_OPTION_ranks, GR_CHOICE_RANKS_NONE, "none"},
        {GR_OPTION_control_encryption, GR_CHOICE_SECRECY_OFF, "off"},
        {GR_OPTION_control_encryption, GR_CHOICE_SECRECY_ON, "on"},
        {GR_OPTION_control_encryption, GR_CHOICE_SECRECY_REQUIRED, "required"},
        {GR_OPTION_shell, GR_SHELL_BASH, "bash"},
        {GR_OPTION_shell, GR_SHELL_ZSH, "zsh"},
    };
    size_t n = 0;
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(choices); i++) {
        assert_string_equal(gr_option_rows[choices[i].id].choices[choices[i].value], choices[i].text);
    }
    for (const struct gr_option *r = gr_option_rows; r < gr_option_rows + GR_N_OPTION; r++) {
        const bool by_name = strcmp(r->name, "cpu-kernels") == 0 || strncmp(r->name, "log-", 4) == 0;
        for (int i = 0; r->kind == GR_KIND_CHOICE && !by_name && r->choices[i] != NULL; i++) {
            n++;
        }
    }
    assert_int_equal(n, GR_ARRAY_LEN(choices)); /* none is left out */
}

/* What a command line may hold at most once: no command takes two rows of one name, letter, variable or YAML key. */
static void test_table_is_sound(void **state)
{
    (void)state;
    for (int i = 0; i < GR_N_OPTION; i++) {
        const struct gr_option *a = &gr_option_rows[i];
        assert_true(a->commands != 0 && a->help != NULL && strlen(a->help) <= 110);
        assert_true((a->argument != NULL) == (a->kind != GR_KIND_FLAG));
        assert_true((a->choices != NULL) == (a->kind == GR_KIND_CHOICE || i == GR_OPTION_rendezvous));
        for (int k = 0; k < i; k++) {
            const struct gr_option *b = &gr_option_rows[k];
            const bool shared = (a->commands & b->commands) != 0;
            assert_false(shared && strcmp(a->name, b->name) == 0);
            assert_false(shared && a->alias != 0 && a->alias == b->alias);
            assert_false(shared && a->brief != NULL && b->brief != NULL && strcmp(a->brief, b->brief) == 0);
            assert_false(shared && a->yaml != NULL && b->yaml != NULL && strcmp(a->yaml, b->yaml) == 0);
        }
    }
}

/* Whatever is handed on must be an option of the worker it is for, and take the same values. */
static void test_what_is_handed_on_is_taken(void **state)
{
    (void)state;
    for (const struct gr_option *r = gr_option_rows; r < gr_option_rows + GR_N_OPTION; r++) {
        const struct {
            const char *name;
            enum gr_command worker;
        } to[] = {{r->target_as, GR_CMD_TARGET}, {r->draft_as, GR_CMD_DRAFT}, {r->pair_as, GR_CMD_TARGET}};
        for (size_t i = 0; i < GR_ARRAY_LEN(to); i++) {
            if (to[i].name == NULL) {
                continue;
            }
            const struct gr_option *w = gr_option_find(&gr_option_table, to[i].worker, to[i].name, strlen(to[i].name));
            const bool one_of_several = w != NULL && r->kind == GR_KIND_DEVICE && w->kind == GR_KIND_DEVICES;
            if (w == NULL || (w->kind != r->kind && !one_of_several) || w->min != r->min || w->max != r->max) {
                fail_msg("%s is handed on as %s", r->name, to[i].name);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_sound),
        cmocka_unit_test(test_choices_are_their_enums),
        cmocka_unit_test(test_every_row_keeps_its_range),
        cmocka_unit_test(test_no_kind_takes_junk),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_kinds_from_the_command_line),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_a_list_has_limits),
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_environment_is_cleared),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_suggestions),
        cmocka_unit_test(test_what_is_handed_on_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
