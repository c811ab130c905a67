/* Every kind of option from the command line, the environment and a YAML file: both ends of its range, what lies beyond
 * them, junk, nothing, twice. The table is the test's own, so that kinds are here that no option needs yet; after it
 * every row of graft's table is given junk from everywhere. */
#include "common/base/device.h"
#include "common/options/options.h"
#include "orchestrator/cli/yaml_config.h"
#include "tests/unit/write_file.h"
#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define PATH "test_kinds.yaml"
#define SECRET_PATH "test_kinds.secret"

/* ---- a table of all kinds ---- */

struct values {
    struct gr_option_values v;
    bool flag, help, version;
    const char *text, *address, *address_or_off, *once;
    int choice, device;
    int64_t integer, int_or_0, automatic, kilo, duration, place;
    double number, share;
    struct gr_option_secret secret;
    struct gr_option_rest rest;
    struct gr_option_words words;
    struct gr_option_ids ids;
    struct gr_option_list choices, counts;
    struct gr_devices devices;
    struct gr_option_map map;
    struct gr_option_workers workers;
};

#define ROW(kind_, member, name_, ...)                                                                             \
    {                                                                                                              \
        .name = name_, .kind = GR_KIND_##kind_, .at = offsetof(struct values, member), .commands = 1, .help = "h", \
        __VA_ARGS__                                                                                                \
    }
#define VALUE .argument = "V"

static const struct gr_option rows[] = {
    ROW(FLAG, flag, "flag", .yaml = "a.flag", .alias = 'f'),
    ROW(TEXT, text, "text", VALUE, .yaml = "a.text"),
    ROW(CHOICE, choice, "choice", VALUE, .yaml = "a.choice", GR_CHOICES("one", "two")),
    ROW(INT, integer, "int", VALUE, .yaml = "a.int", .min = -3, .max = 9, .alias = 'i'),
    ROW(INT, kilo, "kilo", VALUE, .yaml = "a.kilo", .min = 1, .max = 8192, .kilo = true),
    ROW(INT_OR_0, int_or_0, "int-or-0", VALUE, .yaml = "a.int_or_0", .min = 5, .max = 9),
    ROW(AUTO, automatic, "auto", VALUE, .yaml = "a.auto", .min = 1, .max = 9, .initial = "auto"),
    ROW(NUMBER, number, "number", VALUE, .yaml = "a.number", .min = -1.5, .max = 2.5),
    ROW(SHARE, share, "share", VALUE, .yaml = "a.share"),
    ROW(DURATION, duration, "duration", VALUE, .yaml = "a.duration", .min = 1, .max = 3600, .unit = "s"),
    ROW(ADDRESS, address, "address", VALUE, .yaml = "a.address", .min = 1),
    ROW(ADDRESS_OR_OFF, address_or_off, "address-or-off", VALUE, .yaml = "a.address_or_off"),
    ROW(DEVICE, device, "device", VALUE, .yaml = "a.device"),
    ROW(SECRET, secret, "secret-file", VALUE, .yaml = "a.secret_file"),
    ROW(WORDS, words, "words", VALUE, .yaml = "a.words", .most = 3),
    ROW(IDS, ids, "ids", VALUE, .yaml = "a.ids", .max = 99, .most = 4),
    ROW(CHOICES, choices, "choices", VALUE, .yaml = "a.choices", GR_CHOICES("one", "two"), .most = 3),
    ROW(COUNTS, counts, "counts", VALUE, .yaml = "a.counts", .min = 2, .max = 4096, .kilo = true, .or_auto = true,
        .most = 3),
    ROW(DEVICES, devices, "devices", VALUE, .yaml = "a.devices", .most = 3),
    ROW(MAP, map, "map", VALUE, .yaml = "a.map", .min = -100, .max = 100, .most = 3),
    ROW(TEXT, once, "once", VALUE, .once = true),
    ROW(INT, place, "place", VALUE, .min = 1, .max = 9, .positional = 1, .needed = 0),
    ROW(REST, rest, "rest", .argument = "-- COMMAND", .positional = 1),
    ROW(WORKERS, workers, "workers", VALUE, .yaml = "workers"),
    ROW(FLAG, help, "help", .no_environment = true),
    ROW(FLAG, version, "version", .no_environment = true),
};
static const struct gr_option_command command = {1, "kinds", "", "[options]", "of a test", NULL};
static const struct gr_option_group group = {"all", "All"};
static const struct gr_option_table table = {.row = rows,
                                             .n_row = GR_ARRAY_LEN(rows),
                                             .command = &command,
                                             .n_command = 1,
                                             .group = &group,
                                             .n_group = 1,
                                             .in_environment = true};

static struct values o;
static struct gr_yaml_config *yaml; /* what texts of o point into */

static void begin(void)
{
    gr_yaml_config_destroy(yaml);
    yaml = NULL;
    o = (struct values){.flag = false};
    gr_option_values_begin(&o.v, &table, &command);
}

/* ---- one value, from three places ---- */

static int from_command_line(const char *a, const char *b, const char *c)
{
    static char *argv[5]; /* values point into it */
    const char *const words[] = {"x", a, b, c, NULL};
    const int argc = c != NULL ? 4 : b != NULL ? 3 : a != NULL ? 2 : 1;
    memcpy((void *)argv, (const void *)words, sizeof(argv));
    return gr_option_values_parse(&o.v, argc, argv);
}

static int from_environment(const struct gr_option *r, const char *value)
{
    char name[64];
    gr_option_environment(r, name);
    setenv(name, value, 1);
    const int status = from_command_line(NULL, NULL, NULL);
    unsetenv(name);
    return status;
}

static int from_text(struct gr_option_values *v, const char *text)
{
    write_file(PATH, text);
    const enum gr_status st = gr_yaml_config_load(PATH, v, &yaml);
    unlink(PATH);
    return st == GR_OK ? -1 : st == GR_EINVAL || st == GR_EFORMAT ? 2 : 1;
}

/* Quoted: what stands there is the value, not YAML. */
static int from_yaml(struct gr_option_values *v, const struct gr_option *r, const char *value)
{
    char text[512];
    const char *dot = strchr(r->yaml, '.');
    snprintf(text, sizeof(text), "%.*s:\n  %s: '%s'\n", (int)(dot - r->yaml), r->yaml, dot + 1, value);
    return from_text(v, text);
}

enum place { COMMAND_LINE, ENVIRONMENT, YAML, N_PLACE };

static int put(enum place place, const struct gr_option *r, const char *value, char name[static 64])
{
    char option[80];
    begin();
    snprintf(option, sizeof(option), "--%s=%s", r->name, value);
    switch (place) {
    case COMMAND_LINE:
        snprintf(name, 64, "--%s", r->name);
        return r->kind == GR_KIND_FLAG ? from_command_line(option, NULL, NULL) : from_command_line(name, value, NULL);
    case ENVIRONMENT:
        gr_option_environment(r, name);
        return from_environment(r, value);
    default:
        snprintf(name, 64, PATH ":2:");
        return from_yaml(&o.v, r, value);
    }
}

static const struct gr_option *row(const char *name)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    fail_msg("no row %s", name);
    return NULL;
}

static const struct {
    const char *name;
    const char *good[6]; /* both ends of its range, and what else it takes */
    const char *bad[10]; /* beyond them, nothing, junk */
} kinds[] = {
    {"flag", {"true", "false"}, {"", "yes", "2", "TRUE", "true "}},
    {"text", {"", "x", "--x"}, {NULL}},
    {"choice", {"one", "two"}, {"", "One", "one,two", "three", " one"}},
    {"int", {"-3", "9", "0"}, {"-4", "10", "", " ", "x", "1.5", "1x", "1k", "99999999999999999999"}},
    {"kilo", {"1", "8192", "8k"}, {"0", "8193", "9k", "k", "-1k", "1.5k", "1K", ""}},
    {"int-or-0", {"0", "5", "9"}, {"4", "10", "-0.0", "", "x"}},
    {"auto", {"auto", "1", "9"}, {"0", "10", "Auto", "", "x"}},
    {"number", {"-1.5", "2.5", "1e-400"}, {"-1.6", "2.6", "", "nan", "inf", "x", "0,5"}},
    {"share", {"off", "0", "0.999"}, {"1", "-0.1", "", "on", "0.5x"}},
    {"duration",
     {"1", "3600", "1000ms", "1h", "60m", "1500ms"},
     {"0", "3601", "999ms", "2h", "", "s", "1.5s", "-1s", "1 s", "1d"}},
    {"address",
     {"127.0.0.1:1", "[::1]:65535", "*:80"},
     {"127.0.0.1:0", "127.0.0.1:65536", "h:70591", "h", "", "h:x", "off"}},
    {"address-or-off", {"off", "127.0.0.1:0", "h:65535"}, {"127.0.0.1:65536", "Off", "", "h"}},
    {"device", {"cpu", "cuda:0", "cuda:255"}, {"", "cuda", "cuda:256", "cuda:-1", "gpu", "cuda:0x"}},
    {"words", {"", "x", "a,b"}, {NULL}},
    {"ids", {"0", "99", "1,2,3,4"}, {"100", "-1", "", "1,,2", "1;2", "x", "1,", "1,2,3,4,5", "+1"}},
    {"choices", {"one", "two,one", "one,one,one"}, {"", "three", "one,", "one,Two", "one,one,one,one"}},
    {"counts", {"2", "4096", "auto,4k"}, {"1", "4097", "5k", "", "2,,3", "2,3,4,5", "auto,", "x"}},
    {"devices", {"cpu", "cuda:0,cuda:1", "cuda:255"}, {"", "cuda:0,", "cuda:256", "cuda:0,gpu", "cpu,cpu,cpu,cpu"}},
    {"map",
     {"0=-100", "7=100,11=0.5", "1=1,2=2,3=3"},
     {"", "7", "7=", "=1", "7=101", "-1=1", "x=1", "7=1,", "1=1,2=1,3=1,4=1"}},
};

static void test_kinds(void **state)
{
    (void)state;
    for (size_t k = 0; k < GR_ARRAY_LEN(kinds); k++) {
        const struct gr_option *r = row(kinds[k].name);
        for (enum place p = COMMAND_LINE; p < N_PLACE; p++) {
            char name[64];
            for (size_t i = 0; i < GR_ARRAY_LEN(kinds[k].good) && kinds[k].good[i] != NULL; i++) {
                if (put(p, r, kinds[k].good[i], name) != -1) {
                    fail_msg("%s does not take `%s'", name, kinds[k].good[i]);
                }
            }
            for (size_t i = 0; i < GR_ARRAY_LEN(kinds[k].bad) && kinds[k].bad[i] != NULL; i++) {
                struct log_capture cap;
                log_capture_begin(&cap);
                const int status = put(p, r, kinds[k].bad[i], name);
                const char *log = log_capture_end(&cap);
                if (status != 2 || log_capture_n_line(log) != 1 || strstr(log, name) == NULL) {
                    fail_msg("%s `%s': status %d, %s", name, kinds[k].bad[i], status, log);
                }
                assert_true(p != YAML || strstr(log, r->yaml) != NULL);
            }
        }
    }
    begin();
}

/* A value and its text say the same, so a worker is handed what was asked for. */
static void test_texts(void **state)
{
    (void)state;
    for (size_t k = 0; k < GR_ARRAY_LEN(kinds); k++) {
        const struct gr_option *r = row(kinds[k].name);
        for (size_t i = 0; i < GR_ARRAY_LEN(kinds[k].good) && kinds[k].good[i] != NULL; i++) {
            char name[64], text[GR_OPTION_TEXT_MAX], again[GR_OPTION_TEXT_MAX];
            const bool told_as_list = gr_option_is_list(r) && r->kind != GR_KIND_DEVICES;
            assert_int_equal(put(COMMAND_LINE, r, kinds[k].good[i], name), -1);
            const char *told = gr_option_text(&o.v, r, text);
            assert_true((told == NULL) == (told_as_list || strcmp(kinds[k].good[i], "off") == 0) ||
                        r->kind == GR_KIND_SHARE);
            if (told == NULL) {
                continue;
            }
            const struct values before = o;
            assert_int_equal(put(COMMAND_LINE, r, told, name), -1);
            assert_string_equal(gr_option_text(&o.v, r, again), told);
            assert_true(r->kind != GR_KIND_DURATION || o.duration == before.duration);
        }
    }
}

static void test_values(void **state)
{
    char name[64];
    (void)state;
    assert_int_equal(put(COMMAND_LINE, row("duration"), "1500ms", name), -1);
    assert_int_equal(o.duration, 1500000000);
    assert_int_equal(put(YAML, row("map"), "7=1.5,11=-1", name), -1);
    assert_true(o.map.n == 2 && o.map.key[1] == 11 && o.map.value[0] == 1.5 && o.map.value[1] == -1.0);
    assert_int_equal(put(ENVIRONMENT, row("devices"), "cuda:3,cpu", name), -1);
    assert_true(o.devices.n == 2 && o.devices.device[0] == 3 && o.devices.device[1] == -1);
    assert_int_equal(put(COMMAND_LINE, row("counts"), "auto,4k", name), -1);
    assert_true(o.counts.n == 2 && o.counts.value[0] == GR_AUTO && o.counts.value[1] == 4096);
    begin();
    assert_true(o.choice == GR_UNSET && o.automatic == GR_AUTO);
    assert_int_equal(from_command_line("-i", "7", "-f"), -1);
    assert_true(o.integer == 7 && o.flag);
}

/* Of a value the last one counts; texts and ids are added to each other; other lists begin anew. */
static void test_repeated(void **state)
{
    (void)state;
    begin();
    assert_int_equal(from_command_line("--int=3", "--int=4", "--words=a"), -1);
    assert_int_equal(o.integer, 4);
    begin();
    assert_int_equal(from_command_line("--words=a", "--words=b", "--ids=1,2"), -1);
    assert_int_equal(o.words.n, 2);
    begin();
    assert_int_equal(from_command_line("--ids=1,2", "--ids=3", "--counts=2,3"), -1);
    assert_int_equal(o.ids.n, 3);
    begin();
    assert_int_equal(from_command_line("--counts=2,3", "--counts=4", "--map=1=1"), -1);
    assert_true(o.counts.n == 1 && o.counts.value[0] == 4);
    struct log_capture cap;
    begin();
    log_capture_begin(&cap);
    assert_int_equal(from_command_line("--once=a", "--once=b", NULL), 2);
    assert_non_null(strstr(log_capture_end(&cap), "--once is given twice"));
    begin();
    log_capture_begin(&cap);
    assert_int_equal(from_text(&o.v, "a:\n  int: 3\n  int: 4\n"), 2);
    assert_non_null(strstr(log_capture_end(&cap), PATH ":3:3: given twice: `int'"));
    begin();
    assert_int_equal(from_text(&o.v, "a:\n  ids: [1, 2]\n  counts: [2, 3]\n  map: {7: 1.5, 11: -1}\n  words: [a, b]\n"),
                     -1);
    assert_true(o.ids.n == 2 && o.counts.n == 2 && o.words.n == 2 && o.map.n == 2 && o.map.value[1] == -1.0);
}

/* Command line before environment before YAML before default, whichever is read first. */
static void test_precedence(void **state)
{
    (void)state;
    begin();
    setenv("GRAFT_INT", "2", 1);
    setenv("GRAFT_IDS", "1,2,3", 1);
    assert_int_equal(from_command_line("--int", "1", NULL), -1);
    unsetenv("GRAFT_INT");
    unsetenv("GRAFT_IDS");
    assert_int_equal(from_text(&o.v, "a:\n  int: 3\n  ids: [9]\n  number: 2\n"), -1);
    assert_true(o.integer == 1 && o.ids.n == 3 && o.number == 2.0);
}

/* ---- words without dashes, and what follows -- ---- */

static void test_words_without_dashes(void **state)
{
    struct log_capture cap;
    (void)state;
    begin();
    assert_int_equal(from_command_line("--flag", "7", NULL), -1);
    assert_true(o.place == 7 && o.flag);
    begin();
    log_capture_begin(&cap);
    assert_int_equal(from_command_line("0", NULL, NULL), 2);
    assert_non_null(strstr(log_capture_end(&cap), "kinds V: `0' is not a whole number from 1 to 9"));
    begin();
    log_capture_begin(&cap);
    assert_int_equal(from_command_line("1", "2", NULL), 2);
    assert_non_null(strstr(log_capture_end(&cap), "`2': options start with --"));
    begin();
    assert_int_equal(from_command_line("--", "sh", "--flag"), -1);
    assert_true(o.rest.n == 2 && strcmp(o.rest.word[1], "--flag") == 0 && !o.flag);
}

/* ---- secrets ---- */

static void test_secrets(void **state)
{
    struct log_capture cap;
    char name[GR_OPTION_TEXT_MAX];
    (void)state;
    write_file(SECRET_PATH, "hush hush\n");
    for (enum place p = COMMAND_LINE; p < N_PLACE; p++) {
        assert_int_equal(put(p, row("secret-file"), SECRET_PATH, name), -1);
        assert_string_equal(o.secret.text, "hush hush");
        assert_null(gr_option_text(&o.v, row("secret-file"), name));
        log_capture_begin(&cap);
        assert_int_equal(put(p, row("secret-file"), "no/such", name), 1); /* a file that cannot be read is no usage */
        const char *log = log_capture_end(&cap);
        assert_true(strstr(log, name) != NULL && strstr(log, "no/such") != NULL);
    }
    begin();
    setenv("GRAFT_SECRET", "whisper", 1);
    assert_int_equal(from_command_line(NULL, NULL, NULL), -1);
    assert_string_equal(o.secret.text, "whisper");
    begin();
    assert_int_equal(from_command_line("--secret-file", SECRET_PATH, NULL), -1); /* which ranks higher */
    assert_string_equal(o.secret.text, "hush hush");
    char long_one[GR_OPTION_SECRET_MAX + 1];
    memset(long_one, 's', sizeof(long_one) - 1);
    long_one[sizeof(long_one) - 1] = '\0';
    setenv("GRAFT_SECRET", long_one, 1);
    begin();
    log_capture_begin(&cap);
    assert_int_equal(from_command_line(NULL, NULL, NULL), 2);
    const char *log = log_capture_end(&cap);
    assert_true(strstr(log, "GRAFT_SECRET") != NULL && strstr(log, "sss") == NULL);
    unsetenv("GRAFT_SECRET");
    write_file(SECRET_PATH, "\n");
    begin();
    log_capture_begin(&cap);
    assert_int_equal(from_command_line("--secret-file", SECRET_PATH, NULL), 2);
    (void)log_capture_end(&cap);
    unlink(SECRET_PATH);
}

/* ---- lists of workers ---- */

static void test_workers(void **state)
{
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"workers: 3\n", "1:10: a list of workers, with count, host and device, is wanted for `workers'"},
        {"workers: [cpu]\n", "count, host and device are wanted in each item"},
        {"workers:\n- {counts: 1}\n", "2:4: unknown key `counts' (did you mean count?)"},
        {"workers:\n- {count: 0}\n", "workers.count: `0' is not a whole number from 1 to 1024"},
        {"workers:\n- {device: gpu}\n", "workers.device: `gpu' is not cpu, cuda:N"},
        {"workers:\n- device: cuda:0,\n", "workers.device: `' is not cpu, cuda:N"},
        {"workers:\n- device: cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu\n", "more than 8 values"},
        {"workers:\n- {count: [1]}\n", "a single value is wanted for `count'"},
        {"workers:\n- {count: 1, count: 2}\n", "given twice: `count'"},
        {"worker:\n- {count: 1}\n", "unknown section `worker'"},
        {"workers: [{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]\n", "more than 16"},
    };
    struct log_capture cap;
    (void)state;
    begin();
    assert_int_equal(from_text(&o.v, "workers:\n- count: 2\n  host: a.example\n  device: cuda:1\n- {}\n"), -1);
    assert_true(o.workers.n == 2 && o.workers.item[0].count == 2);
    assert_true(o.workers.item[0].devices.n == 1 && o.workers.item[0].devices.device[0] == 1);
    assert_true(o.workers.item[1].count == 1 && o.workers.item[1].devices.n == 0 && o.workers.item[1].host == NULL);
    begin();
    assert_int_equal(from_text(&o.v, "workers:\n- device: cuda:1,cpu,cuda:0\n"), -1);
    assert_true(o.workers.item[0].devices.n == 3 && o.workers.item[0].devices.device[1] == GR_DEVICE_CPU);
    for (size_t i = 0; i < GR_ARRAY_LEN(wrong); i++) {
        begin();
        log_capture_begin(&cap);
        const int status = from_text(&o.v, wrong[i].text);
        const char *log = log_capture_end(&cap);
        if (status != 2 || log_capture_n_line(log) != 1 || strstr(log, wrong[i].words) == NULL) {
            fail_msg("%s: %s", wrong[i].text, log);
        }
    }
    begin();
    log_capture_begin(&cap);
    assert_int_equal(from_command_line("--workers", "1", NULL), 2);
    assert_non_null(strstr(log_capture_end(&cap), "--workers"));
}

/* ---- --help ---- */

static void test_help(void **state)
{
    static const char *const lines[] = {
        "  --choice V                         h: one, two\n", "  --auto V                           h (default auto)\n",
        "  --int -i V                         h\n",           "  -- COMMAND                         h\n",
        "  --secret-file V                    h\n",           "  --map V                            h\n"};
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    (void)state;
    begin();
    assert_int_equal(gr_option_help(&o.v, NULL, f), GR_OK);
    fclose(f);
    for (size_t i = 0; i < GR_ARRAY_LEN(lines); i++) {
        if (strstr(text, lines[i]) == NULL) {
            fail_msg("no %s in %s", lines[i], text);
        }
    }
    assert_null(strstr(text, "--workers")); /* of the file alone */
    free(text);
}

/* ---- every option of graft ---- */

static bool takes_anything(const struct gr_option *r)
{
    return r->kind == GR_KIND_TEXT || r->kind == GR_KIND_WORDS || r->kind == GR_KIND_WORKERS;
}

static struct gr_options graft;

static int put_graft(enum place place, const struct gr_option *r, unsigned command_bit, const char *value,
                     char name[static 64])
{
    char option[80];
    gr_yaml_config_destroy(yaml);
    yaml = NULL;
    gr_options_default(&graft, (enum gr_command)command_bit);
    snprintf(option, sizeof(option), "--%s=%s", r->name, value);
    char *argv[] = {(char *)(uintptr_t) "x", option, NULL};
    switch (place) {
    case COMMAND_LINE:
        snprintf(name, 64, "--%s", r->name);
        return gr_options_parse(&graft, 2, argv);
    case ENVIRONMENT:
        gr_option_environment(r, name);
        setenv(name, value, 1);
        const int status = gr_options_parse(&graft, 1, argv);
        unsetenv(name);
        return status;
    default:
        snprintf(name, 64, "%s", r->yaml);
        return from_yaml(&graft.values, r, value);
    }
}

static bool has_place(const struct gr_option *r, enum place p)
{
    return p == COMMAND_LINE ? true : p == ENVIRONMENT ? !r->no_environment : r->yaml != NULL;
}

/* Junk, nothing, a port too large; from wherever it comes, to the first command that takes the option. */
static void test_every_option(void **state)
{
    static const char *const junk[] = {"", "?", "127.0.0.1:65536", "1e999", "99999999999999999999"};
    (void)state;
    for (const struct gr_option *r = gr_option_rows; r < gr_option_rows + GR_N_OPTION; r++) {
        const unsigned dashed = r->commands & ~r->positional;
        for (enum place p = COMMAND_LINE; p < N_PLACE && !takes_anything(r) && dashed != 0; p++) {
            for (size_t i = 0; i < GR_ARRAY_LEN(junk) && has_place(r, p); i++) {
                struct log_capture cap;
                char name[64];
                log_capture_begin(&cap);
                const int status = put_graft(p, r, dashed & -dashed, junk[i], name);
                const char *log = log_capture_end(&cap);
                if (status != 2 || log_capture_n_line(log) != 1 || strstr(log, name) == NULL) {
                    fail_msg("%s `%s': status %d, %s", name, junk[i], status, log);
                }
            }
        }
    }
    gr_yaml_config_destroy(yaml);
    yaml = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),      cmocka_unit_test(test_texts),
        cmocka_unit_test(test_values),     cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_precedence), cmocka_unit_test(test_words_without_dashes),
        cmocka_unit_test(test_secrets),    cmocka_unit_test(test_workers),
        cmocka_unit_test(test_help),       cmocka_unit_test(test_every_option),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gr_yaml_config_destroy(yaml);
    return failed;
}
