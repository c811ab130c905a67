/* How many workers a command starts, and on which devices: by options, by lists, and what is refused. */
#include "common/base/device.h"
#include "orchestrator/cli/crew.h"
#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static struct gr_options o;
static struct gr_crew crew;

static void begin(void)
{
    memset(&o, 0, sizeof(o));
    gr_options_default(&o, GR_CMD_SERVE);
}

static void set(const char *name, const char *value)
{
    const struct gr_option *r = gr_option_find(&gr_option_table, GR_CMD_SERVE, name, strlen(name));
    assert_int_equal(gr_option_set(&o.values, r, name, value, GR_FROM_CLI), GR_OK);
}

/* An item of a list; text NULL: its devices are not said. */
static void add(enum gr_option_id list, const char *count, const char *devices, const char *host)
{
    struct gr_option_worker *w = NULL;
    assert_int_equal(gr_option_add_worker(&o.values, &gr_option_rows[list], "list", &w), GR_OK);
    assert_int_equal(gr_option_set_worker(w, "count", "count", count), GR_OK);
    if (devices != NULL) {
        assert_int_equal(gr_option_set_worker(w, "device", "device", devices), GR_OK);
    }
    w->host = host;
}

static void refused(bool several, const char *words)
{
    struct log_capture cap;
    log_capture_begin(&cap);
    const enum gr_status st = gr_crew_read(&o, several, &crew);
    const char *log = log_capture_end(&cap);
    if (st != GR_EINVAL || log_capture_n_line(log) != 1 || strstr(log, words) == NULL) {
        fail_msg("`%s' is wanted, not `%s'", words, log);
    }
}

static void test_counts(void **state)
{
    (void)state;
    begin();
    assert_int_equal(gr_crew_read(&o, false, &crew), GR_OK);
    assert_true(gr_crew_is_pair(&crew) && crew.draft.n == 1 && crew.target.devices[0].device[0] == GR_DEVICE_CPU);
    set("n-target", "3");
    set("n-draft", "2");
    set("target-device", "cuda:1");
    assert_int_equal(gr_crew_read(&o, true, &crew), GR_OK);
    assert_true(!gr_crew_is_pair(&crew) && crew.target.n == 3 && crew.draft.n == 2);
    assert_true(crew.target.devices[2].device[0] == 1 && crew.draft.devices[1].device[0] == GR_DEVICE_CPU);
    assert_int_equal(gr_crew_shared_gpu(&crew), 1);
}

static void test_lists(void **state)
{
    (void)state;
    begin();
    set("draft-device", "cuda:7");
    add(GR_OPTION_targets, "3", "cuda:0,cuda:2", NULL);
    add(GR_OPTION_targets, "1", NULL, "localhost");
    add(GR_OPTION_drafts, "2", NULL, NULL);
    assert_int_equal(gr_crew_read(&o, true, &crew), GR_OK);
    assert_true(crew.target.n == 4 && crew.draft.n == 2);
    static const int want[] = {0, 2, 0, GR_DEVICE_CPU};
    for (int i = 0; i < crew.target.n; i++) {
        assert_true(crew.target.devices[i].n == 1 && crew.target.devices[i].device[0] == want[i]);
    }
    assert_int_equal(crew.draft.devices[1].device[0], 7);
    assert_int_equal(gr_crew_shared_gpu(&crew), 0);
    begin();
    add(GR_OPTION_targets, "2", "cuda:0,cuda:1", NULL);
    assert_int_equal(gr_crew_read(&o, true, &crew), GR_OK);
    assert_int_equal(gr_crew_shared_gpu(&crew), -1); /* the drafter is on the CPU */
}

/* Each target of several ranks has its own devices; a list for one target is its as it is. */
static void test_groups(void **state)
{
    (void)state;
    begin();
    add(GR_OPTION_targets, "2", "cuda:0,cuda:1,cuda:2,cuda:3", NULL);
    o.targets.item[0].tp = 2;
    assert_int_equal(gr_crew_read(&o, true, &crew), GR_OK);
    assert_true(crew.target.n == 2 && crew.target.tp[1] == 2 && crew.target.devices[1].n == 2);
    assert_true(crew.target.devices[0].device[1] == 1 && crew.target.devices[1].device[0] == 2);
    assert_int_equal(gr_crew_shared_gpu(&crew), -1);
    begin();
    set("target-device", "cuda:0,cuda:1");
    set("tensor-parallel-size", "2");
    set("draft-device", "cuda:1");
    assert_int_equal(gr_crew_read(&o, true, &crew), GR_OK);
    assert_true(crew.target.n == 1 && crew.target.devices[0].n == 2 && crew.target.tp[0] == 0);
    assert_int_equal(gr_crew_shared_gpu(&crew), 1);
}

static int ranks_of_only_target(const char *devices, const char *tp)
{
    begin();
    set("target-device", devices);
    if (tp != NULL) {
        set("tensor-parallel-size", tp);
    }
    assert_int_equal(gr_crew_read(&o, false, &crew), GR_OK);
    assert_int_equal(crew.target.n, 1);
    return crew.target.tp[0];
}

/* Several GPUs for one target are a rank each, unless somebody says how many ranks it has. 0: the option's number. */
static void test_groups_by_their_gpus(void **state)
{
    (void)state;
    assert_int_equal(ranks_of_only_target("cuda:3,cuda:1", NULL), 2);
    assert_int_equal(ranks_of_only_target("cuda:0,cuda:1,cuda:2,cuda:3", NULL), 4);
    assert_int_equal(ranks_of_only_target("cuda:0,cuda:1,cuda:2", NULL), 1); /* which is refused by plan.c */
    assert_int_equal(ranks_of_only_target("cuda:0", NULL), 0);
    assert_int_equal(ranks_of_only_target("cpu", NULL), 0);
    assert_int_equal(ranks_of_only_target("cuda:0,cuda:1", "1"), 0);
    assert_int_equal(ranks_of_only_target("cuda:0,cuda:1", "4"), 0);
    begin();
    add(GR_OPTION_targets, "1", "cuda:0,cuda:1", NULL);
    assert_int_equal(gr_crew_read(&o, false, &crew), GR_OK);
    assert_int_equal(crew.target.tp[0], 2);
    begin();
    add(GR_OPTION_targets, "2", "cuda:0,cuda:1", NULL); /* one each */
    assert_int_equal(gr_crew_read(&o, true, &crew), GR_OK);
    assert_true(crew.target.tp[0] == 0 && crew.target.devices[0].n == 1);
}

/* An option's list: one for each worker, one for each rank of all, or one for all. */
static void test_option_lists(void **state)
{
    (void)state;
    begin();
    set("n-target", "2");
    set("n-draft", "3");
    set("target-device", "cuda:4,cuda:1");
    set("draft-device", "cuda:0,cpu,cuda:7");
    assert_int_equal(gr_crew_read(&o, true, &crew), GR_OK);
    assert_true(crew.target.n == 2 && crew.draft.n == 3);
    static const int target[] = {4, 1}, draft[] = {0, GR_DEVICE_CPU, 7};
    for (int i = 0; i < 3; i++) {
        assert_true(crew.draft.devices[i].n == 1 && crew.draft.devices[i].device[0] == draft[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_true(crew.target.devices[i].n == 1 && crew.target.devices[i].device[0] == target[i]);
    }
    begin();
    set("n-target", "2");
    set("tensor-parallel-size", "2");
    set("target-device", "cuda:0,cuda:1,cuda:2,cuda:3");
    assert_int_equal(gr_crew_read(&o, true, &crew), GR_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(crew.target.devices[i / 2].n, 2);
        assert_int_equal(crew.target.devices[i / 2].device[i % 2], i);
    }
    begin();
    set("n-target", "2");
    set("tensor-parallel-size", "2");
    set("target-device", "cpu,cpu"); /* each for the ranks of one */
    assert_int_equal(gr_crew_read(&o, true, &crew), GR_OK);
    assert_true(crew.target.devices[1].n == 1 && crew.target.devices[1].device[0] == GR_DEVICE_CPU);
    begin();
    set("n-target", "2");
    set("target-device", "cuda:0,cuda:1,cuda:2");
    refused(true,
            "--target-device cuda:0,cuda:1,cuda:2: 3 devices for 2 workers (--n-target); name one for all, or one "
            "for each");
    set("tensor-parallel-size", "2");
    refused(true, "one for each, or one for each rank (4, with -tp 2)");
    begin();
    set("draft-device", "cuda:0,cuda:1");
    refused(true, "--draft-device cuda:0,cuda:1: 2 devices for one drafter, and a drafter is not split");
}

static void test_refused(void **state)
{
    (void)state;
    begin();
    add(GR_OPTION_targets, "2", NULL, NULL);
    refused(false, "targets: 2 workers are asked for, and graft serve starts one");
    set("n-target", "2");
    refused(true, "--n-target and the list targets of the YAML file both say how many");
    begin();
    add(GR_OPTION_drafts, "1", NULL, "elsewhere.example");
    refused(true, "drafts: host elsewhere.example is not this one");
    begin();
    add(GR_OPTION_targets, "65", NULL, NULL);
    refused(true, "more than 64 workers");
    begin();
    set("n-target", "40");
    set("n-draft", "30");
    refused(true, "40 targets and 30 draft workers: an orchestrator takes 64");
    begin();
    add(GR_OPTION_drafts, "1", NULL, NULL);
    o.drafts.item[0].tp = 2;
    refused(true, "drafts: tp 2: a drafter is not split");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts),       cmocka_unit_test(test_lists),
                                       cmocka_unit_test(test_groups),       cmocka_unit_test(test_groups_by_their_gpus),
                                       cmocka_unit_test(test_option_lists), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
