/* The table of a job's ranks: roles and what is refused of them, hellos that do not fit, GPUs, and the messages in a
 * folder that an earlier life of the job has used. Names in brackets are the rows of reports that a case comes from. */
#include "common/base/clock.h"
#include "common/base/device.h"
#include "common/base/log.h"
#include "orchestrator/launch/facts.h"
#include "orchestrator/launch/job.h"
#include "orchestrator/launch/job_dir.h"
#include "orchestrator/launch/table.h"
#include "orchestrator/launch/where.h"
#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct gr_options options;
static struct gr_roles roles;
static char line[600];

static enum gr_status read_roles(const char *text)
{
    gr_options_default(&options, GR_CMD_LAUNCH);
    options.roles = text;
    line[0] = '\0';
    gr_log_hold(line, sizeof(line));
    const enum gr_status st = gr_roles_read(&options, &roles);
    gr_log_hold(NULL, 0);
    return st;
}

static void test_roles(void **state)
{
    (void)state;
    char text[256];
    assert_int_equal(read_roles("serve:1,draft:2,target:4"), GR_OK);
    assert_int_equal(roles.n, 7);
    assert_int_equal(roles.rank[2].role, GR_LAUNCH_DRAFT);
    assert_int_equal(roles.rank[3].role, GR_LAUNCH_TARGET);
    gr_roles_text(&roles, text, sizeof(text));
    assert_string_equal(text, "serve:1,draft:2,target:4");
    assert_int_equal(read_roles("serve,target,draft"), GR_OK);
    assert_int_equal(roles.n, 3);
    static const struct {
        const char *text, *word;
    } bad[] = {{"serve:1,serve:1,target:1", "rank 1 is an orchestrator"},
               {"serve:2,target:1", "rank 1 is an orchestrator"},
               {"target:1,serve:1", "rank 0 is a target"},
               {"serve:1,draft:1", "there is no target"},
               {"serve:1,traget:1", "did you mean target?"},
               {"serve:1,target:0", "ROLE:N"},
               {"serve:1,target:1x", "ROLE:N"},
               {"serve:1,target:", "ROLE:N"},
               {"serve:1,,target:1", "`' is no role"},
               {"serve:1,target:1024", "more than 1024 ranks"},
               {"serve:1,draft:1,target:64", "64 targets and 1 draft workers: an orchestrator takes 64"},
               {"", "`' is no role"}};
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        assert_int_equal(read_roles(bad[i].text), GR_EINVAL);
        assert_non_null(strstr(line, bad[i].word));
    }
    assert_int_equal(read_roles(NULL), GR_EINVAL);
    assert_non_null(strstr(line, "who does what?"));
}

static void test_lists(void **state)
{
    (void)state;
    gr_options_default(&options, GR_CMD_LAUNCH);
    options.plan = "plan.yaml";
    options.targets = (struct gr_option_workers){.item = {{.count = 2, .host = "n1"}}, .n = 1};
    options.drafts = (struct gr_option_workers){.item = {{.count = 2, .devices = {.device = {3, 5}, .n = 2}}}, .n = 1};
    assert_int_equal(gr_roles_read(&options, &roles), GR_OK);
    assert_int_equal(roles.n, 5);
    assert_int_equal(roles.rank[1].role, GR_LAUNCH_TARGET);
    assert_string_equal(roles.rank[2].host, "n1");
    assert_int_equal(roles.rank[3].devices.device[0], 3);
    assert_int_equal(roles.rank[4].devices.device[0], 5);
    options.targets.item[0].tp = 2;
    assert_int_equal(gr_roles_read(&options, &roles), GR_OK);
    assert_true(roles.rank[1].tp == 2 && roles.rank[3].tp == 0);
    char text[512];
    gr_roles_text(&roles, text, sizeof(text));
    assert_string_equal(text, "serve:1,target:2/2@n1,draft:1=cuda:3,draft:1=cuda:5");
    options.drafts.item[0].tp = 2;
    gr_log_hold(line, sizeof(line));
    line[0] = '\0';
    assert_int_equal(gr_roles_read(&options, &roles), GR_EINVAL);
    gr_log_hold(NULL, 0);
    assert_non_null(strstr(line, "plan.yaml: tp 2"));
}

static void refuse_roles(const char *what)
{
    line[0] = '\0';
    gr_log_hold(line, sizeof(line));
    assert_int_equal(gr_roles_read(&options, &roles), GR_EINVAL);
    gr_log_hold(NULL, 0);
    assert_non_null(strstr(line, what));
}

/* Targets that are several ranks of the job each. */
static void test_groups(void **state)
{
    (void)state;
    char text[512];
    options = (struct gr_options){.roles = "serve:1,target:1,draft:1,target:3", .tensor_parallel_size = 2};
    options.tp_over_hosts = true;
    assert_int_equal(gr_roles_read(&options, &roles), GR_OK);
    const int member[] = {0, 0, 0, 1, 0, 1}, leader[] = {0, 1, 2, 1, 4, 4};
    for (int i = 0; i < roles.n; i++) {
        assert_int_equal(roles.rank[i].member, member[i]);
        assert_int_equal(gr_roles_leader(&roles, i), leader[i]);
        assert_int_equal(roles.rank[i].group, roles.rank[i].role == GR_LAUNCH_TARGET ? 2 : 0);
    }
    options.tensor_parallel_size = 8;
    refuse_roles("4 target ranks cannot be groups of 8");
    options = (struct gr_options){.plan = "plan.yaml", .tensor_parallel_size = 1};
    options.targets.n = 1;
    options.targets.item[0] = (struct gr_option_worker){.count = 1, .hosts = "n1, n2", .tp = 4};
    assert_int_equal(gr_roles_read(&options, &roles), GR_OK);
    assert_int_equal(roles.n, 5);
    assert_string_equal(roles.rank[2].host, "n1");
    assert_string_equal(roles.rank[3].host, "n2");
    gr_roles_text(&roles, text, sizeof(text));
    assert_string_equal(text, "serve:1,target:2/4-over-hosts@n1,target:2/4-over-hosts@n2");
    options.targets.item[0].hosts = "n1,n2,n3";
    refuse_roles("cannot be shared out evenly");
    options.targets.item[0].hosts = "n1,,n2,n3";
    refuse_roles("cannot be shared out evenly");
}

static enum gr_status check(int rank, int size, const char *host, bool model, bool draft)
{
    struct gr_who w = {.source = GR_RANKS_SLURM, .rank = rank, .size = size};
    snprintf(w.host, sizeof(w.host), "%s", host);
    line[0] = '\0';
    gr_log_hold(line, sizeof(line));
    enum gr_status st = gr_roles_check_size(&roles, &w);
    st = st == GR_OK ? gr_roles_check_own(&roles, &w, model, draft) : st;
    gr_log_hold(NULL, 0);
    return st;
}

/* Each complaint names rank and host. */
static void test_started_job(void **state)
{
    (void)state;
    assert_int_equal(read_roles("serve:1,draft:1,target:1"), GR_OK);
    assert_int_equal(check(2, 3, "n2", true, true), GR_OK);
    assert_int_equal(check(2, 0, "n2", true, true), GR_OK); /* the launcher does not say how many */
    assert_int_equal(check(3, 4, "n2", true, true), GR_EINVAL);
    assert_non_null(strstr(line, "rank 3 on host n2: there are more ranks than roles"));
    assert_int_equal(check(5, 0, "n2", true, true), GR_EINVAL);
    assert_int_equal(check(1, 2, "n2", true, true), GR_EINVAL);
    assert_non_null(strstr(line, "rank 1 on host n2: there are more roles than ranks"));
    struct gr_who alone = {.source = GR_RANKS_NONE, .size = 1};
    line[0] = '\0';
    gr_log_hold(line, sizeof(line));
    assert_int_equal(gr_roles_check_size(&roles, &alone), GR_EINVAL);
    gr_log_hold(NULL, 0);
    assert_non_null(strstr(line, "no launcher has started this process"));
    assert_non_null(strstr(line, "mpirun -n 3 graft launch"));
    assert_int_equal(check(2, 3, "n2", false, true), GR_EINVAL);
    assert_non_null(strstr(line, "rank 2 on host n2: a target needs a model"));
    assert_int_equal(check(1, 3, "n2", true, false), GR_EINVAL);
    assert_non_null(strstr(line, "rank 1 on host n2: a drafter needs a model"));
    roles.rank[2].host = "n9";
    assert_int_equal(check(2, 3, "n2", true, true), GR_EINVAL);
    assert_non_null(strstr(line, "rank 2 on host n2: --roles puts this target on host n9"));
}

/* Several senders signal all processes of a job at once. */
static void test_second_signals(void **state)
{
    (void)state;
    uint64_t first_ns = 0;
    assert_false(gr_job_signal_again(&first_ns, 5 * GR_S));
    assert_false(gr_job_signal_again(&first_ns, 5 * GR_S + GR_S / 10));
    assert_false(gr_job_signal_again(&first_ns, 6 * GR_S));
    assert_true(gr_job_signal_again(&first_ns, 6 * GR_S + 1));
}

/* All that a worker may be told at once finds room in its command line. */
static void test_longest_line(void **state)
{
    (void)state;
    int n_target = 0, n_draft = 0, n_pair = 0;
    for (int i = 0; i < GR_N_OPTION; i++) {
        const struct gr_option *r = &gr_option_rows[i];
        const int n_word = r->kind == GR_KIND_FLAG ? 1 : 2;
        n_target += r->target_as != NULL ? n_word : 0;
        n_draft += r->draft_as != NULL ? n_word : 0;
        n_pair += r->pair_as != NULL ? n_word : 0;
    }
    const int n_own =
        16; /* the program, --join, --sessions, --specpv, --head or --target, --colocate-draft, --supervise, and
               --tp-rank with --tp-group */
    const int n_listen = 2;
    assert_in_range(n_own + n_listen + n_target + n_pair, 1, GR_CHILD_ARG_MAX);
    assert_in_range(n_own + n_draft, 1, GR_CHILD_ARG_MAX);
}

/* ---- hellos ---- */

static struct gr_launch_table table;

static json_t *hello(int rank, const char *job, uint64_t incarnation, json_t *facts)
{
    struct gr_who w = {.rank = rank, .size = roles.n};
    struct gr_launch_entry self = {.incarnation = incarnation << 1};
    snprintf(w.job, sizeof(w.job), "%s", job);
    snprintf(w.host, sizeof(w.host), "n%d", rank / 2);
    snprintf(self.node, sizeof(self.node), "node%d", rank / 2);
    return gr_launch_hello(&w, &self, facts);
}

static enum gr_status greet(int rank, const char *job, uint64_t incarnation, json_t *facts, char why[512])
{
    int found = -1;
    json_t *j = hello(rank, job, incarnation, facts);
    line[0] = '\0';
    gr_log_hold(line, sizeof(line));
    const enum gr_status st = gr_launch_table_hello(&table, j, &found, why);
    gr_log_hold(NULL, 0);
    json_decref(j);
    return st;
}

static void begin(const char *text)
{
    assert_int_equal(read_roles(text), GR_OK);
    assert_int_equal(gr_launch_table_create(&roles, "slurm-7.0-r0", 0, &table), GR_OK);
}

/* A rank of another host is never sent to its own loopback. */
static void test_where_groups_meet(void **state)
{
    (void)state;
    char where[256], why[512];
    begin("serve:1,target:3,draft:1");
    for (int i = 1; i <= 3; i++) {
        roles.rank[i].group = 4;
        roles.rank[i].member = i - 1;
        roles.rank[i].leader = 1;
    }
    for (int r = 0; r < 5; r++) {
        json_t *j = hello(r, "slurm-7.0-r0", (uint64_t)r + 1, json_object());
        int found = -1;
        if (r == 1) {
            json_object_set_new(j, "group", json_string("127.0.0.1:70,10.0.0.7:70,[::1]:70,[fd00::7]:70"));
        }
        assert_int_equal(gr_launch_table_hello(&table, j, &found, why), GR_OK);
        json_decref(j);
    }
    assert_true(gr_launch_table_group(&table, 2, where)); /* node1; the leader is on node0 */
    assert_string_equal(where, "10.0.0.7:70,[fd00::7]:70");
    snprintf(table.rank[2].node, sizeof(table.rank[2].node), "node0");
    assert_true(gr_launch_table_group(&table, 2, where));
    assert_string_equal(where, "127.0.0.1:70,10.0.0.7:70,[::1]:70,[fd00::7]:70");
    assert_false(gr_launch_table_group(&table, 1, where));
    assert_false(gr_launch_table_group(&table, 4, where));
    gr_launch_table_destroy(&table);
}

static void test_hellos(void **state)
{
    (void)state;
    char why[512];
    begin("serve:1,draft:1,target:2");
    for (int r = 0; r < 3; r++) {
        assert_int_equal(greet(r, "slurm-7.0-r0", (uint64_t)r + 1, json_pack("{s:s}", "version", "1"), why), GR_OK);
    }
    assert_int_equal(gr_launch_table_missing(&table, GR_LAUNCH_HERE), 1);
    gr_launch_table_who(&table, GR_LAUNCH_HERE, why);
    assert_string_equal(why, "rank 3 (target) has not said hello");
    table.rank[0].state = table.rank[1].state = GR_LAUNCH_UP;
    gr_launch_table_who(&table, GR_LAUNCH_UP, why);
    assert_string_equal(why, "the target of rank 2 on host n1 has not joined, rank 3 (target) has not said hello");
    table.rank[2].state = GR_LAUNCH_ABSENT;
    gr_launch_table_who(&table, GR_LAUNCH_UP, why);
    assert_string_equal(why,
                        "rank 2 (target) on host n1 has said hello and is gone, rank 3 (target) has not said hello");
    /* N processes that all take themselves for rank 0. */
    assert_int_equal(greet(0, "slurm-7.0-r0", 77, json_pack("{s:s}", "version", "1"), why), GR_EMISMATCH);
    assert_non_null(strstr(why, "rank 0 comes twice: from host n0 and from host n0"));
    /* The same process over another connection. */
    assert_int_equal(greet(1, "slurm-7.0-r0", 2, json_pack("{s:s}", "version", "1"), why), GR_OK);
    assert_int_equal(table.rank[1].state, GR_LAUNCH_UP);
    /* Another job, another restart of this one: neither is a mistake of this job. */
    assert_int_equal(greet(3, "slurm-7.0-r1", 4, json_pack("{s:s}", "version", "1"), why), GR_ENOTFOUND);
    assert_int_equal(greet(4, "slurm-7.0-r0", 5, json_pack("{s:s}", "version", "1"), why), GR_EMISMATCH);
    assert_non_null(strstr(why, "rank 4 of 4 on host n2"));
    gr_launch_table_destroy(&table);
}

/* A host is said where it is known, by the launcher or by the plan, and a line comes every 30 s. */
static void test_waiting(void **state)
{
    (void)state;
    const uint64_t begin_ns = 7 * GR_S, within_ns = 100 * GR_S;
    char why[512], text[GR_LAUNCH_WAIT_BYTES];
    assert_int_equal(read_roles("serve:1,draft:1,target:2"), GR_OK);
    assert_int_equal(gr_launch_table_create(&roles, "slurm-7.0-r0", begin_ns, &table), GR_OK);
    gr_launch_table_expect(&table, 2, "n2");
    roles.rank[2].host = roles.rank[3].host = "gpu03";
    assert_int_equal(greet(0, "slurm-7.0-r0", 1, json_object(), why), GR_OK);
    static const struct {
        double after_s;
        enum gr_launch_wait wait;
        const char *text;
    } steps[] = {
        {0, GR_LAUNCH_QUIET, ""},
        {29.9, GR_LAUNCH_QUIET, ""},
        {30, GR_LAUNCH_TELL,
         "rank 1 (draft) has not said hello, rank 2 (target) on host n2 has not said hello, rank 3 (target), by the "
         "plan on host gpu03, has not said hello for 30 s"},
        {31, GR_LAUNCH_QUIET, ""},
        {60.5, GR_LAUNCH_TELL, "rank 2 (target) on host n2 has not said hello for 60 s"},
        {99.9, GR_LAUNCH_TELL, "rank 2 (target) on host n2 has not said hello for 99 s"},
        {100, GR_LAUNCH_TOO_LATE, "rank 2 (target) on host n2 has not said hello for 100 s"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(steps); i++) {
        text[0] = '\0';
        const uint64_t now_ns = begin_ns + (uint64_t)(steps[i].after_s * 1e9);
        assert_int_equal(gr_launch_table_wait(&table, GR_LAUNCH_HERE, now_ns, within_ns, text), steps[i].wait);
        assert_string_equal(text, steps[i].text);
        if (steps[i].after_s == 31) {
            assert_int_equal(greet(1, "slurm-7.0-r0", 2, json_object(), why), GR_OK);
            assert_int_equal(greet(3, "slurm-7.0-r0", 4, json_object(), why), GR_OK);
        }
    }
    /* The host of its hello is the one that counts from then on. */
    assert_int_equal(greet(2, "slurm-7.0-r0", 3, json_object(), why), GR_OK);
    assert_string_equal(table.rank[2].host, "n1");
    gr_launch_table_destroy(&table);
}

/* The line stays whole with the longest of names. */
static void test_longest_wait(void **state)
{
    (void)state;
    char text[GR_LAUNCH_WAIT_BYTES], host[80];
    memset(host, 'h', sizeof(host) - 1);
    host[sizeof(host) - 1] = '\0';
    begin("serve:1,draft:1,target:63");
    for (int r = 0; r < roles.n; r++) {
        table.rank[r].state = r < 59 ? GR_LAUNCH_UP : GR_LAUNCH_ABSENT;
        roles.rank[r].host = host;
    }
    assert_int_equal(gr_launch_table_wait(&table, GR_LAUNCH_HERE, 2000000 * GR_S, 1, text), GR_LAUNCH_TOO_LATE);
    assert_non_null(strstr(text, "rank 62 (target), by the plan on host hhh"));
    assert_non_null(strstr(text, ", and 2 more for 2000000 s"));
    gr_launch_table_destroy(&table);
}

/* [B9] One rank was told something else. */
static void test_differences(void **state)
{
    (void)state;
    char why[512];
    begin("serve:1,target:1");
    assert_int_equal(
        greet(0, "slurm-7.0-r0", 1,
              json_pack("{s:s, s:s, s:s}", "version", "1", "--max-model-len", "512", "files of --draft", "ab"), why),
        GR_OK);
    assert_int_equal(greet(1, "slurm-7.0-r0", 2,
                           json_pack("{s:s, s:s, s:s}", "version", "1", "--max-model-len", "512", "GRAFT_X", "1"), why),
                     GR_EMISMATCH);
    assert_string_equal(why, "rank 1 on host n0: GRAFT_X is 1, and on rank 0 (host n0) it is not set");
    assert_int_equal(
        greet(1, "slurm-7.0-r0", 2, json_pack("{s:s, s:s}", "version", "2", "files of --draft", "cd"), why),
        GR_EMISMATCH);
    assert_non_null(strstr(why, "version is 2, and on rank 0 (host n0) it is 1"));
    /* A rank that does not see a model's files says nothing of them. */
    assert_int_equal(
        greet(1, "slurm-7.0-r0", 2, json_pack("{s:s, s:s}", "version", "1", "--max-model-len", "512"), why), GR_OK);
    gr_launch_table_destroy(&table);
}

/* A variable that is an option's is compared as the option is: a path may differ by host. */
static void test_facts(void **state)
{
    (void)state;
    char *env[] = {"GRAFT_MODEL=/a", "GRAFT_MODELS=x", "GRAFT_X=1", "GRAFT_MAX_MODEL_LEN=512", "NCCL_DEBUG=INFO", NULL};
    assert_int_equal(read_roles("serve:1,target:1"), GR_OK);
    json_t *facts = gr_launch_facts(&options, &roles, env);
    assert_non_null(facts);
    assert_null(json_object_get(facts, "GRAFT_MODEL"));
    assert_null(json_object_get(facts, "GRAFT_MAX_MODEL_LEN"));
    assert_string_equal(json_string_value(json_object_get(facts, "GRAFT_MODELS")), "x");
    assert_string_equal(json_string_value(json_object_get(facts, "GRAFT_X")), "1");
    assert_string_equal(json_string_value(json_object_get(facts, "NCCL_DEBUG")), "INFO");
    json_decref(facts);
}

static void test_no_hello(void **state)
{
    (void)state;
    static const char *const texts[] = {"{}", "{\"rank\": -1}", "{\"type\": \"hello\", \"rank\": \"0\"}"};
    char why[512];
    int rank;
    begin("serve:1,target:1");
    for (size_t i = 0; i < GR_ARRAY_LEN(texts); i++) {
        json_t *j = json_loads(texts[i], 0, NULL);
        assert_int_equal(gr_launch_table_hello(&table, j, &rank, why), GR_EPROTO);
        json_decref(j);
    }
    gr_launch_table_destroy(&table);
}

/* ---- GPUs: ranks 1 .. n of a host, which see as many [D1], [D6] ---- */

static int n_wanted = 1; /* by each of them */

static enum gr_status place(int n_rank, int n_gpu, bool share, bool same_gpu)
{
    char text[40];
    snprintf(text, sizeof(text), "serve:1,target:%d", n_rank);
    begin(text);
    for (int r = 1; r <= n_rank; r++) {
        table.rank[r] = (struct gr_launch_entry){.wants_gpu = n_wanted, .n_gpu = n_gpu, .host = "n1", .node = "n1"};
        for (int g = 0; g < n_gpu; g++) {
            snprintf(table.rank[r].gpu[g], 16, "0000:%02x:00.0", n_gpu == 1 && !same_gpu ? r : g);
        }
    }
    line[0] = '\0';
    gr_log_hold(line, sizeof(line));
    const enum gr_status st = gr_launch_table_place(&table, share);
    gr_log_hold(NULL, 0);
    return st;
}

static void test_gpus(void **state)
{
    (void)state;
    assert_int_equal(place(4, 1, false, false), GR_OK); /* each sees its own: all are cuda:0 */
    assert_int_equal(table.rank[4].device, 0);
    gr_launch_table_destroy(&table);
    assert_int_equal(place(4, 8, false, false), GR_OK); /* all see all */
    assert_int_equal(table.rank[1].device, 0);
    assert_int_equal(table.rank[4].device, 3);
    gr_launch_table_destroy(&table);
    assert_int_equal(place(4, 2, false, false), GR_EINVAL);
    assert_non_null(strstr(line, "rank 3 on host n1 sees 2 GPUs, and 4 ranks of that host want one"));
    gr_launch_table_destroy(&table);
    assert_int_equal(place(4, 2, true, false), GR_OK);
    assert_int_equal(table.rank[4].device, 1);
    gr_launch_table_destroy(&table);
    assert_int_equal(place(2, 1, false, true), GR_EINVAL); /* each sees one, and it is the same */
    assert_non_null(strstr(line, "rank 1 and rank 2 on host n1 both have the GPU at PCI 0000:00:00.0"));
    gr_launch_table_destroy(&table);
    n_wanted = 2; /* groups of two ranks */
    assert_int_equal(place(2, 4, false, false), GR_OK);
    assert_true(table.rank[1].device == 0 && table.rank[2].device == 2);
    gr_launch_table_destroy(&table);
    assert_int_equal(place(2, 3, true, false), GR_EINVAL); /* a group is not shared */
    assert_non_null(
        strstr(line, "rank 2 on host n1 sees 3 GPUs, and 2 ranks of that host want 4 (cuda:local), this one 2"));
    gr_launch_table_destroy(&table);
    assert_int_equal(place(2, 2, false, false), GR_EINVAL); /* each sees as many as it wants, but the same */
    assert_non_null(strstr(line, "both have the GPU at PCI 0000:00:00.0"));
    gr_launch_table_destroy(&table);
    n_wanted = 1;
    assert_int_equal(place(1, 0, true, false), GR_EINVAL);
    gr_launch_table_destroy(&table);
}

/* Of a target of four ranks two on each of two hosts, or three and one. [G8] */
static void test_uneven_groups(void **state)
{
    (void)state;
    for (int n_first = 2; n_first <= 3; n_first++) {
        begin("serve:1,target:4");
        for (int r = 1; r <= 4; r++) {
            const char *host = r <= n_first ? "n1" : "n2";
            roles.rank[r].group = 4;
            roles.rank[r].member = r - 1;
            roles.rank[r].leader = 1;
            table.rank[r] = (struct gr_launch_entry){.wants_gpu = 1, .n_gpu = 1};
            snprintf(table.rank[r].host, sizeof(table.rank[r].host), "%s", host);
            snprintf(table.rank[r].node, sizeof(table.rank[r].node), "%s", host);
            snprintf(table.rank[r].gpu[0], sizeof(table.rank[r].gpu[0]), "0000:%02x:00.0", r);
        }
        line[0] = '\0';
        gr_log_hold(line, sizeof(line));
        assert_int_equal(gr_launch_table_place(&table, false), n_first == 2 ? GR_OK : GR_EINVAL);
        gr_log_hold(NULL, 0);
        assert_true(n_first == 2 || strstr(line, "host n1 has 3 of its ranks, and host n2 1;") != NULL);
        gr_launch_table_destroy(&table);
    }
}

/* ---- the folder ---- */

static void test_folder(void **state)
{
    (void)state;
    char dir[] = "/tmp/graft-test-XXXXXX", path[256];
    static struct gr_job_note first, second, found[GR_JOB_NOTE_MAX];
    assert_non_null(mkdtemp(dir));
    assert_int_equal(gr_job_dir_open(dir), GR_OK);
    first = (struct gr_job_note){.address = {"10.0.0.1:7"}, .n_address = 1, .has_key = true, .key = {1, 2, 3}};
    second = (struct gr_job_note){.address = {"10.0.0.1:8", "[fd00::1]:8"}, .n_address = 2};
    assert_int_equal(gr_job_dir_read(dir, "slurm-7.0-r0", found), 0);
    assert_int_equal(gr_job_dir_write(dir, "slurm-7.0-r0", &first), GR_OK);
    assert_int_equal(gr_job_dir_read(dir, "slurm-7.0-r0", found), 1);
    assert_memory_equal(found[0].key, first.key, sizeof(first.key));
    struct stat sb;
    assert_int_equal(stat(first.name, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    /* A requeued job meets its own old message: it is replaced, and another job's stays. [C10] */
    assert_int_equal(gr_job_dir_write(dir, "slurm-7.0", &second), GR_OK);
    assert_int_equal(gr_job_dir_write(dir, "slurm-7.0-r0", &second), GR_OK);
    assert_int_equal(gr_job_dir_read(dir, "slurm-7.0-r0", found), 1);
    assert_int_equal(found[0].n_address, 2);
    assert_false(found[0].has_key);
    assert_int_equal(gr_job_dir_read(dir, "slurm-7.0", found), 1);
    /* What a job that was killed has left stays for a month, in case it still runs. */
    const struct timespec days_29[2] = {{.tv_sec = time(NULL) - 29 * 24 * 3600},
                                        {.tv_sec = time(NULL) - 29 * 24 * 3600}};
    const struct timespec days_31[2] = {{.tv_sec = time(NULL) - 31 * 24 * 3600},
                                        {.tv_sec = time(NULL) - 31 * 24 * 3600}};
    assert_int_equal(gr_job_dir_write(dir, "ompi-1", &first), GR_OK);
    assert_int_equal(utimensat(AT_FDCWD, first.name, days_29, 0), 0);
    assert_int_equal(gr_job_dir_write(dir, "slurm-7.0-r0", &second), GR_OK);
    assert_int_equal(gr_job_dir_read(dir, "ompi-1", found), 1);
    assert_int_equal(utimensat(AT_FDCWD, first.name, days_31, 0), 0);
    assert_int_equal(gr_job_dir_write(dir, "slurm-7.0-r0", &second), GR_OK);
    assert_int_equal(access(first.name, F_OK), -1);
    /* Torn and foreign files are passed over. */
    snprintf(path, sizeof(path), "%s/rendezvous-slurm-7.0-r0-ffff", dir);
    FILE *f = fopen(path, "w");
    fputs("{\"version\": 1, \"job\": \"slurm-7.0-r0\", \"addr", f);
    fclose(f);
    assert_int_equal(gr_job_dir_read(dir, "slurm-7.0-r0", found), 1);
    /* Rank 0 sees another's message there, and that its own is gone. [F2] */
    assert_int_equal(gr_job_dir_look(dir, "slurm-7.0-r0", &second), GR_JOB_DIR_ANOTHER);
    (void)unlink(path);
    assert_int_equal(gr_job_dir_look(dir, "slurm-7.0-r0", &second), GR_JOB_DIR_OURS);
    assert_int_equal(truncate(second.name, 0), 0); /* nobody could read it */
    assert_int_equal(gr_job_dir_look(dir, "slurm-7.0-r0", &second), GR_JOB_DIR_GONE);
    gr_job_dir_remove(&second);
    assert_int_equal(gr_job_dir_look("/dev/null", "slurm-7.0-r0", &second), GR_JOB_DIR_GONE);
    assert_int_equal(gr_job_dir_look(dir, "slurm-7.0-r0", &second), GR_JOB_DIR_GONE);
    assert_int_equal(gr_job_dir_read(dir, "slurm-7.0-r0", found), 0);
    gr_log_hold(line, sizeof(line));
    line[0] = '\0';
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(gr_job_dir_open(dir), GR_EINVAL);
    gr_log_hold(NULL, 0);
    assert_non_null(strstr(line, "chmod 700"));
    snprintf(path, sizeof(path), "rm -r %s", dir);
    assert_int_equal(system(path), 0);
}

/* ---- the launcher's channel ---- */

static void test_note(void **state)
{
    (void)state;
    static struct gr_job_note note, got;
    note =
        (struct gr_job_note){.address = {"10.0.0.1:7", "[fd00::1]:8"}, .n_address = 2, .has_key = true, .key = {9, 8}};
    char *text = gr_job_note_text("pmix-7", &note);
    assert_non_null(text);
    assert_true(gr_job_note_parse(text, strlen(text), "pmix-7", &got));
    assert_int_equal(got.n_address, 2);
    assert_string_equal(got.address[1], "[fd00::1]:8");
    assert_true(got.has_key);
    assert_memory_equal(got.key, note.key, sizeof(note.key));
    assert_false(gr_job_note_parse(text, strlen(text), "pmix-8", &got));
    assert_false(gr_job_note_parse(text, strlen(text) - 1, "pmix-7", &got));
    free(text);
}

/* Without a launcher, and in a build that has no such channel, a rank is refused by one line before it does anything.
 */
static void test_channel(void **state)
{
    (void)state;
    static char *none[] = {NULL}, *job_dir[] = {"OMPI_COMM_WORLD_SIZE=3", NULL};
    static const char *const words[] = {"pmix", "mpi"};
    struct gr_who w = {.source = GR_RANKS_TORCHRUN, .rank = 1, .size = 3, .host = "n7"};
    gr_options_default(&options, GR_CMD_LAUNCH);
    for (size_t i = 0; i < GR_ARRAY_LEN(words); i++) {
        const bool built = strstr(gr_channel_built(), words[i]) != NULL;
        struct gr_where where = {.n_address = 0};
        struct log_capture cap;
        options.rendezvous = words[i];
        log_capture_begin(&cap);
        assert_int_equal(gr_where_choose(&options, &w, false, none, &where), GR_EUNSUPPORTED);
        const char *said = log_capture_end(&cap);
        assert_non_null(strstr(said, words[i]));
        assert_non_null(strstr(said, built ? "rank 1 on host n7" : "is not part of this build; configure it with"));
        assert_non_null(strstr(said, built ? "PMIX_NAMESPACE is not set" : "Debian: lib"));
        log_capture_begin(&cap);
        assert_int_equal(gr_where_choose(&options, &w, false, job_dir, &where), GR_EUNSUPPORTED);
        said = log_capture_end(&cap); /* no program lies beside a test's */
        assert_true(!built || strstr(said, i == 0 ? "is not set" : "it belongs beside graft") != NULL);
    }
    assert_int_equal(gr_channel_named("10.0.0.1:7"), GR_CHANNEL_NOT);
    assert_int_equal(gr_channel_named(NULL), GR_CHANNEL_NOT);
}

/* Ports that follow from a job's name are in the range, one after the other, and all of it where it is narrow. */
static void test_ports(void **state)
{
    (void)state;
    static char *none[] = {NULL};
    static const struct {
        const char *ports;
        int n, low, high;
    } good[] = {{NULL, 8, 15000, 24999}, {"5000-5015", 8, 5000, 5015}, {"5000-5002", 3, 5000, 5002}, {"7", 1, 7, 7}};
    static const char *const bad[] = {"", "0", "9-7", "7:9", "1-70000", "h:7", "5000-5015-5020"};
    gr_options_default(&options, GR_CMD_LAUNCH);
    for (size_t i = 0; i < GR_ARRAY_LEN(good); i++) {
        struct gr_who w = {.source = GR_RANKS_SLURM, .size = 2};
        struct gr_where where = {.n_address = 0};
        snprintf(w.first, sizeof(w.first), "n1");
        snprintf(w.job, sizeof(w.job), "slurm-7.%zu", i);
        assert_int_equal(gr_where_ports(good[i].ports, &where), GR_OK);
        assert_string_equal(where.ports, good[i].ports != NULL ? good[i].ports : "0");
        assert_int_equal(gr_where_choose(&options, &w, true, none, &where), GR_OK);
        assert_int_equal(where.n_address, good[i].n);
        int before = 0;
        for (int k = 0; k < where.n_address; k++) {
            const int port = atoi(strrchr(where.address[k], ':') + 1);
            assert_in_range(port, good[i].low, good[i].high);
            assert_true(k == 0 || port == before + 1);
            before = port;
        }
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        struct gr_where where = {.n_address = 0};
        struct log_capture cap;
        log_capture_begin(&cap);
        assert_int_equal(gr_where_ports(bad[i], &where), GR_EINVAL);
        assert_non_null(strstr(log_capture_end(&cap), "is not LOW-HIGH"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_roles),         cmocka_unit_test(test_lists),
                                       cmocka_unit_test(test_groups),        cmocka_unit_test(test_where_groups_meet),
                                       cmocka_unit_test(test_started_job),   cmocka_unit_test(test_second_signals),
                                       cmocka_unit_test(test_longest_line),  cmocka_unit_test(test_hellos),
                                       cmocka_unit_test(test_waiting),       cmocka_unit_test(test_longest_wait),
                                       cmocka_unit_test(test_differences),   cmocka_unit_test(test_facts),
                                       cmocka_unit_test(test_no_hello),      cmocka_unit_test(test_gpus),
                                       cmocka_unit_test(test_uneven_groups), cmocka_unit_test(test_folder),
                                       cmocka_unit_test(test_ports),         cmocka_unit_test(test_note),
                                       cmocka_unit_test(test_channel)};
    gr_log_init("test");
    return sodium_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
