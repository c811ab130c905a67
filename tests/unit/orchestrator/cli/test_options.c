/* The options of graft's commands: every kind at both ends of its range, beyond them, empty, junk and repeated, from
 * the command line, the environment and YAML; and docs/options.md, which is made from the same table:
 *
 *   test_options --markdown > docs/options.md */
#include "common/base/suggest.h"
#include "orchestrator/cli/options.h"
#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct gr_run_options o;

static bool takes(const char *name, const char *value, enum gr_option_source source)
{
    struct log_capture c;
    log_capture_begin(&c);
    gr_run_options_default(&o, GR_CMD_RUN);
    const enum gr_status st = gr_run_options_set(&o, name, value, source);
    const char *said = log_capture_end(&c);
    assert_true(st == GR_OK || st == GR_EINVAL);
    assert_int_equal(log_capture_n_line(said), st == GR_OK ? 0 : 1);
    if (st != GR_OK && source == GR_FROM_CLI) {
        assert_non_null(strstr(said, name)); /* the line names the option, and what was wrong with the value */
        assert_non_null(strstr(said, value));
    }
    return st == GR_OK;
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
    {"temperature", {"0", "100", "1e-400", "0.7"}, {"-0.1", "100.1", "", "x", "nan", "inf", "0,7"}},
    {"top-p", {"1e-6", "1"}, {"0", "1.1", "", "x"}},
    {"prefill-share", {"off", "0", "0.999"}, {"1", "-0.1", "", "on", "0.5x"}},
    {"control",
     {"127.0.0.1:0", "127.0.0.1:65535", "[::1]:5055"},
     {"127.0.0.1:65536", "127.0.0.1:70591", "127.0.0.1", ":x", "127.0.0.1:-1", "127.0.0.1:1x", ""}},
    {"connect", {"127.0.0.1:1", "127.0.0.1:65535"}, {"127.0.0.1:0", "127.0.0.1:65536", "", "x"}},
    {"stop-token-ids", {"0", "4194303", "1,2,3"}, {"4194304", "-1", "", "1,,2", "1;2", "x", "1,"}},
    {"prompt", {"", "text", "--x"}, {NULL}},
};

static void test_kinds(void **state)
{
    (void)state;
    static const enum gr_option_source from[] = {GR_FROM_CLI, GR_FROM_ENV, GR_FROM_YAML};
    for (size_t k = 0; k < GR_ARRAY_LEN(kinds); k++) {
        for (size_t f = 0; f < GR_ARRAY_LEN(from); f++) {
            for (size_t i = 0; i < GR_ARRAY_LEN(kinds[k].good) && kinds[k].good[i] != NULL; i++) {
                assert_true(takes(kinds[k].name, kinds[k].good[i], from[f]));
            }
            for (size_t i = 0; i < GR_ARRAY_LEN(kinds[k].bad) && kinds[k].bad[i] != NULL; i++) {
                assert_false(takes(kinds[k].name, kinds[k].bad[i], from[f]));
            }
        }
    }
}

/* The line says where the value is: the option, its variable, its key. */
static void test_a_message_names_the_source(void **state)
{
    (void)state;
    static const struct {
        enum gr_option_source source;
        const char *name;
    } cases[] = {
        {GR_FROM_CLI, "--max-tokens: "}, {GR_FROM_ENV, "GRAFT_MAX_TOKENS: "}, {GR_FROM_YAML, "session.max_tokens: "}};
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        struct log_capture c;
        log_capture_begin(&c);
        gr_run_options_default(&o, GR_CMD_RUN);
        assert_int_equal(gr_run_options_set(&o, "max-tokens", "0", cases[i].source), GR_EINVAL);
        assert_non_null(strstr(log_capture_end(&c), cases[i].name));
    }
}

/* Command line before environment before YAML before the default, in whatever order they come. */
static void test_precedence(void **state)
{
    (void)state;
    gr_run_options_default(&o, GR_CMD_RUN);
    assert_int_equal(o.max_tokens, 256);
    assert_int_equal(gr_run_options_set(&o, "max-tokens", "2", GR_FROM_ENV), GR_OK);
    assert_int_equal(gr_run_options_set(&o, "max-tokens", "3", GR_FROM_YAML), GR_OK);
    assert_int_equal(o.max_tokens, 2);
    assert_int_equal(gr_run_options_set(&o, "max-tokens", "4", GR_FROM_CLI), GR_OK);
    assert_int_equal(gr_run_options_set(&o, "max-tokens", "5", GR_FROM_ENV), GR_OK);
    assert_int_equal(o.max_tokens, 4);
    assert_int_equal(gr_run_options_set(&o, "no-such-option", "1", GR_FROM_CLI), GR_ENOTFOUND);
}

static enum gr_status parse(int argc, const char **argv, const char **said)
{
    static struct log_capture c;
    log_capture_begin(&c);
    gr_run_options_default(&o, GR_CMD_RUN);
    const enum gr_status st = gr_run_options_parse(&o, argc, (char **)(uintptr_t)argv);
    *said = log_capture_end(&c);
    return st;
}

static void test_command_line(void **state)
{
    (void)state;
    static const struct {
        const char *argv[4];
        const char *words; /* NULL: it is fine */
    } cases[] = {
        {{"run", "--max-tokens", "7"}, NULL},
        {{"run", "--max-tokens=7"}, NULL},
        {{"run", "--ignore-eos"}, NULL},
        {{"run", "--ignore-eos=false"}, NULL},
        {{"run", "--max-tokens"}, "needs a value (N)"},
        {{"run", "--max-token", "7"}, "did you mean --max-tokens?"},
        {{"run", "--temprature", "1"}, "did you mean --temperature?"},
        {{"run", "--zzzzzzzz"}, "unknown option --zzzzzzzz; see"},
        {{"run", "--spawn"}, "not for this command"},
        {{"run", "max-tokens"}, "options start with --"},
        {{"run", "--prompt=a", "--prompt=b"}, "given twice"},
        {{"run", "--help"}, NULL},
        {{"run", "--help", "sampling"}, NULL},
        {{"run", "--help", "samplin"}, "did you mean sampling?"},
        {{"run", "--help", "zzzzz"}, "no group of options"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        const char *argv[4];
        const char *said = NULL;
        int argc = 0;
        while (argc < 4 && cases[i].argv[argc] != NULL) {
            argv[argc] = cases[i].argv[argc];
            argc++;
        }
        const enum gr_status st = parse(argc, argv, &said);
        assert_int_equal(st, cases[i].words == NULL ? GR_OK : GR_EINVAL);
        if (cases[i].words != NULL) {
            assert_non_null(strstr(said, cases[i].words));
        }
    }
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

static void markdown(FILE *out)
{
    fprintf(out, "# Options of graft\n\n"
                 "Made from `orchestrator/cli/options_table.inc`; `graft COMMAND --help` tells which of them a\n"
                 "command takes. The command line goes before the variable, the variable before the key of a file,\n"
                 "the key before the default.\n");
    gr_run_options_markdown(out);
}

static void test_page(void **state)
{
    (void)state;
    static char want[65536], got[65536];
    FILE *made = tmpfile();
    FILE *page = fopen(GR_SOURCE_ROOT "/docs/options.md", "r");
    assert_true(made != NULL && page != NULL);
    markdown(made);
    rewind(made);
    const size_t n_want = fread(want, 1, sizeof(want) - 1, made);
    const size_t n_got = fread(got, 1, sizeof(got) - 1, page);
    fclose(made);
    fclose(page);
    assert_true(n_want > 1000 && n_want < sizeof(want) - 1);
    if (n_want != n_got || memcmp(want, got, n_want) != 0) {
        fail_msg("docs/options.md is not what the table says: test_options --markdown > docs/options.md");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),       cmocka_unit_test(test_a_message_names_the_source),
        cmocka_unit_test(test_precedence),  cmocka_unit_test(test_command_line),
        cmocka_unit_test(test_suggestions), cmocka_unit_test(test_page),
    };
    if (argc == 2 && strcmp(argv[1], "--markdown") == 0) {
        markdown(stdout);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
