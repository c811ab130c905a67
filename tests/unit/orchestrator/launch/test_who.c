/* Which rank a process is, for what launchers leave in the environment: alone, inside each other, contradicting, in
 * part. Names in brackets are the rows of reports that a case comes from. */
#include "orchestrator/launch/node_list.h"
#include "orchestrator/launch/who.h"
#include "common/base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define VAR_MAX 24

#define SLURM_STEP(procid, n, local) \
    "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=" procid, "SLURM_STEP_NUM_TASKS=" n, "SLURM_LOCALID=" local
#define OMPI(rank, n, local, n_local)                                                             \
    "OMPI_COMM_WORLD_RANK=" rank, "OMPI_COMM_WORLD_SIZE=" n, "OMPI_COMM_WORLD_LOCAL_RANK=" local, \
        "OMPI_COMM_WORLD_LOCAL_SIZE=" n_local, "PMIX_RANK=" rank, "PMIX_NAMESPACE=77", "OMPI_MCA_ess_base_jobid=77"
#define TORCH(rank, n, local, n_local) \
    "RANK=" rank, "WORLD_SIZE=" n, "LOCAL_RANK=" local, "LOCAL_WORLD_SIZE=" n_local, "MASTER_PORT=29500"

static const struct row {
    const char *name;
    enum gr_ranks wanted;
    char *env[VAR_MAX];
    enum gr_ranks source;
    int rank, size, local_rank, local_size;
    const char *host, *job;
} rows[] = {
    {"nothing", GR_RANKS_AUTO, {"HOME=/"}, GR_RANKS_NONE, 0, 1, 0, 1, "here", "none"},
    {"srun",
     GR_RANKS_AUTO,
     {SLURM_STEP("2", "3", "0"), "SLURM_STEP_TASKS_PER_NODE=2,1", "SLURM_NODEID=1", "SLURMD_NODENAME=n2",
      "SLURM_RESTART_COUNT=1"},
     GR_RANKS_SLURM,
     2,
     3,
     0,
     1,
     "n2",
     "slurm-7.0-r1"},
    {"mpirun", GR_RANKS_AUTO, {OMPI("1", "4", "1", "4")}, GR_RANKS_OMPI, 1, 4, 1, 4, "here", "ompi-77"},
    /* mpirun's daemons are a step of two tasks; its ranks inherit that step's variables. [A1] */
    {"mpirun in salloc",
     GR_RANKS_AUTO,
     {OMPI("3", "4", "0", "1"), SLURM_STEP("1", "2", "0"), "SLURMD_NODENAME=n2"},
     GR_RANKS_OMPI,
     3,
     4,
     0,
     1,
     "n2",
     "ompi-77"},
    {"mpirun in salloc, as many daemons as ranks",
     GR_RANKS_AUTO,
     {OMPI("1", "2", "1", "2"), SLURM_STEP("0", "2", "0")},
     GR_RANKS_OMPI,
     1,
     2,
     1,
     2,
     "here",
     "ompi-77"},
    {"mpirun of one rank in salloc",
     GR_RANKS_AUTO,
     {OMPI("0", "1", "0", "1"), SLURM_STEP("0", "2", "0")},
     GR_RANKS_OMPI,
     0,
     1,
     0,
     1,
     "here",
     "ompi-77"},
    /* [A2] */
    {"torchrun in srun",
     GR_RANKS_AUTO,
     {TORCH("3", "4", "3", "4"), SLURM_STEP("0", "1", "0")},
     GR_RANKS_TORCHRUN,
     3,
     4,
     3,
     4,
     "here",
     "torchrun--29500-r"},
    {"torchrun in mpirun",
     GR_RANKS_AUTO,
     {TORCH("1", "4", "1", "2"), OMPI("0", "2", "0", "1")},
     GR_RANKS_TORCHRUN,
     1,
     4,
     1,
     2,
     "here",
     "torchrun--29500-r"},
    /* RANK and WORLD_SIZE of a node, as Kubernetes operators set them, are not torchrun's. */
    {"half of torchrun",
     GR_RANKS_AUTO,
     {"RANK=1", "WORLD_SIZE=2", SLURM_STEP("0", "1", "0")},
     GR_RANKS_SLURM,
     0,
     1,
     0,
     0,
     "here",
     "slurm-7.0-r0"},
    /* [A3] */
    {"srun --mpi=none", GR_RANKS_AUTO, {SLURM_STEP("3", "4", "3")}, GR_RANKS_SLURM, 3, 4, 3, 0, "here", "slurm-7.0-r0"},
    {"srun --mpi=pmi2: the place on the host is the step's",
     GR_RANKS_AUTO,
     {"PMI_RANK=1", "PMI_SIZE=2", "PMI_JOBID=5.0", SLURM_STEP("1", "2", "1"), "SLURM_STEP_TASKS_PER_NODE=2",
      "SLURM_NODEID=0"},
     GR_RANKS_PMI,
     1,
     2,
     1,
     2,
     "here",
     "pmi-5.0"},
    {"srun --mpi=pmi2, and PMI is named",
     GR_RANKS_PMI,
     {"PMI_RANK=1", "PMI_SIZE=2", "PMI_JOBID=5.0", SLURM_STEP("1", "2", "1"), "SLURM_STEP_TASKS_PER_NODE=2",
      "SLURM_NODEID=0"},
     GR_RANKS_PMI,
     1,
     2,
     1,
     2,
     "here",
     "pmi-5.0"},
    {"PMI is named, and a step that differs is none of its business",
     GR_RANKS_PMI,
     {"PMI_RANK=1", "PMI_SIZE=2", "PMI_JOBID=5.0", SLURM_STEP("0", "2", "1")},
     GR_RANKS_PMI,
     1,
     2,
     -1,
     0,
     "here",
     "pmi-5.0"},
    {"srun --mpi=pmix: the size and the place on the host are the step's",
     GR_RANKS_AUTO,
     {"PMIX_RANK=1", "PMIX_NAMESPACE=slurm.pmix.5.0", SLURM_STEP("1", "2", "1")},
     GR_RANKS_PMIX,
     1,
     2,
     1,
     0,
     "here",
     "pmix-slurm.pmix.5.0"},
    {"PMIx alone: the size is the roles'",
     GR_RANKS_AUTO,
     {"PMIX_RANK=1", "PMIX_NAMESPACE=a@1"},
     GR_RANKS_PMIX,
     1,
     0,
     -1,
     0,
     "here",
     "pmix-a_1"},
    {"a world of its own for each rank, but Slurm is asked",
     GR_RANKS_SLURM,
     {"PMI_RANK=0", "PMI_SIZE=1", SLURM_STEP("3", "4", "3")},
     GR_RANKS_SLURM,
     3,
     4,
     3,
     0,
     "here",
     "slurm-7.0-r0"},
    {"mpiexec of MPICH in srun",
     GR_RANKS_AUTO,
     {"PMI_RANK=2", "PMI_SIZE=4", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2", SLURM_STEP("1", "2", "0")},
     GR_RANKS_PMI,
     2,
     4,
     0,
     2,
     "here",
     "pmi-"},
    /* [A6] srun -n4 -m arbitrary -w n1,n1,n1,n2 */
    {"unequal ranks by node",
     GR_RANKS_AUTO,
     {SLURM_STEP("1", "4", "1"), "SLURM_STEP_TASKS_PER_NODE=3,1", "SLURM_NODEID=0"},
     GR_RANKS_SLURM,
     1,
     4,
     1,
     3,
     "here",
     "slurm-7.0-r0"},
    {"unequal ranks by node, the last",
     GR_RANKS_AUTO,
     {SLURM_STEP("3", "4", "0"), "SLURM_STEP_TASKS_PER_NODE=3,1", "SLURM_NODEID=1"},
     GR_RANKS_SLURM,
     3,
     4,
     0,
     1,
     "here",
     "slurm-7.0-r0"},
    /* [A9] Each component of a heterogeneous job has sizes of its own. */
    {"heterogeneous",
     GR_RANKS_AUTO,
     {SLURM_STEP("2", "1", "0"), "SLURM_HET_SIZE=2"},
     GR_RANKS_SLURM,
     2,
     0,
     0,
     0,
     "here",
     "slurm-7.0-r0"},
    /* A batch script has the job's variables, but is no step. [A11] */
    {"batch script",
     GR_RANKS_AUTO,
     {"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_LOCALID=0"},
     GR_RANKS_NONE,
     0,
     1,
     0,
     1,
     "here",
     "none"},
    {"salloc's shell",
     GR_RANKS_AUTO,
     {"SLURM_JOB_ID=7", "SLURM_NTASKS=4", "SLURM_JOB_NAME=interactive"},
     GR_RANKS_NONE,
     0,
     1,
     0,
     1,
     "here",
     "none"},
    {"none beats all",
     GR_RANKS_NONE,
     {TORCH("3", "4", "3", "4"), OMPI("1", "4", "1", "4"), "SLURM_JOB_NAME=train", "SLURMD_NODENAME=n2",
      "SLURM_STEP_ID=0", "SLURM_PROCID=9", "SLURM_STEP_NUM_TASKS=2"},
     GR_RANKS_NONE,
     0,
     1,
     0,
     1,
     "here",
     "none"},
    {"ompi by name, inside torchrun's variables",
     GR_RANKS_OMPI,
     {TORCH("3", "4", "3", "4"), OMPI("1", "2", "1", "2")},
     GR_RANKS_OMPI,
     1,
     2,
     1,
     2,
     "here",
     "ompi-77"},
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        const struct row *r = &rows[i];
        struct gr_who w;
        print_message("# %s\n", r->name);
        assert_int_equal(gr_who_am_i(r->wanted, r->env, "here", &w), GR_OK);
        assert_int_equal(w.source, r->source);
        assert_int_equal(w.rank, r->rank);
        assert_int_equal(w.size, r->size);
        assert_int_equal(w.local_rank, r->local_rank);
        assert_int_equal(w.local_size, r->local_size);
        assert_string_equal(w.host, r->host);
        assert_string_equal(w.job, r->job);
    }
}

/* What is refused, and two things that the line names. */
static const struct {
    enum gr_ranks wanted;
    char *env[VAR_MAX];
    const char *words[2];
} refusals[] = {
    {GR_RANKS_AUTO, {OMPI("4", "4", "0", "4")}, {"OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_SIZE=4"}},
    {GR_RANKS_AUTO, {OMPI("1", "4", "2", "2")}, {"OMPI_COMM_WORLD_LOCAL_RANK=2", "OMPI_COMM_WORLD_LOCAL_SIZE=2"}},
    {GR_RANKS_AUTO, {OMPI("1", "2", "1", "4")}, {"OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_COMM_WORLD_SIZE=2"}},
    {GR_RANKS_AUTO, {"PMI_RANK=0", "PMI_SIZE=0"}, {"PMI_SIZE=0", "no number of ranks"}},
    {GR_RANKS_AUTO, {OMPI("0", "2", "0", "0")}, {"OMPI_COMM_WORLD_LOCAL_SIZE=0", "no number of ranks"}},
    {GR_RANKS_AUTO, {"RANK=1", "WORLD_SIZE=3", "LOCAL_RANK=7"}, {"LOCAL_RANK=7", "WORLD_SIZE=3"}},
    {GR_RANKS_AUTO, {SLURM_STEP("1", "3", "3")}, {"SLURM_LOCALID=3", "SLURM_STEP_NUM_TASKS=3"}},
    {GR_RANKS_AUTO, {TORCH("x", "4", "0", "4")}, {"RANK=x", "--ranks"}},
    {GR_RANKS_AUTO, {SLURM_STEP("-1", "4", "0")}, {"SLURM_PROCID=-1", "--ranks"}},
    {GR_RANKS_AUTO, {SLURM_STEP("5", "4", "0")}, {"SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=4"}},
    {GR_RANKS_AUTO,
     {SLURM_STEP("1", "4", "3"), "SLURM_STEP_TASKS_PER_NODE=2(x2)", "SLURM_NODEID=1"},
     {"SLURM_LOCALID=3", "SLURM_STEP_TASKS_PER_NODE=2"}},
    /* One launcher's two sets that disagree. [A2] */
    {GR_RANKS_AUTO, {"PMIX_RANK=0", "PMIX_NAMESPACE=a", SLURM_STEP("1", "2", "0")}, {"PMIX_RANK=0", "SLURM_PROCID=1"}},
    {GR_RANKS_AUTO, {"PMI_RANK=1", "PMI_SIZE=2", SLURM_STEP("1", "4", "0")}, {"PMI_SIZE=2", "SLURM_STEP_NUM_TASKS=4"}},
    {GR_RANKS_AUTO,
     {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1", "PMIX_RANK=0",
      "PMIX_NAMESPACE=a"},
     {"OMPI_COMM_WORLD_RANK=1", "PMIX_RANK=0"}},
    /* [A3] */
    {GR_RANKS_AUTO, {"PMI_RANK=0", "PMI_SIZE=1", SLURM_STEP("0", "4", "0")}, {"PMI_SIZE=1", "SLURM_STEP_NUM_TASKS=4"}},
    /* What was asked for is not there. */
    {GR_RANKS_SLURM,
     {"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1"},
     {"--ranks slurm", "SLURM_STEP_ID"}},
    {GR_RANKS_TORCHRUN, {"RANK=1", "WORLD_SIZE=2"}, {"--ranks torchrun", "LOCAL_RANK"}},
    {GR_RANKS_PMIX, {"HOME=/"}, {"--ranks pmix", "PMIX_RANK"}},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(refusals); i++) {
        struct gr_who w;
        char line[512] = "";
        gr_log_hold(line, sizeof(line));
        const enum gr_status st = gr_who_am_i(refusals[i].wanted, refusals[i].env, "here", &w);
        gr_log_hold(NULL, 0);
        print_message("# %s\n", line);
        assert_int_equal(st, GR_EINVAL);
        assert_non_null(strstr(line, refusals[i].words[0]));
        assert_non_null(strstr(line, refusals[i].words[1]));
    }
}

static void test_one_host(void **state)
{
    (void)state;
    static char *const one[] = {SLURM_STEP("1", "2", "1"), "SLURM_STEP_NUM_NODES=1", NULL};
    static char *const two[] = {SLURM_STEP("1", "2", "0"), "SLURM_STEP_NUM_NODES=2", "SLURM_STEP_NODELIST=gpu[08-09]",
                                NULL};
    static char *const spread[] = {OMPI("1", "4", "1", "2"), NULL};
    static char *const pmi2[] = {"PMI_RANK=1", "PMI_SIZE=2", SLURM_STEP("1", "2", "1"), "SLURM_STEP_NUM_NODES=1", NULL};
    static char *const pmi2_two[] = {"PMI_RANK=1",
                                     "PMI_SIZE=2",
                                     SLURM_STEP("1", "2", "0"),
                                     "SLURM_STEP_NUM_NODES=2",
                                     "SLURM_STEP_NODELIST=gpu[08-09]",
                                     NULL};
    struct gr_who w;
    assert_int_equal(gr_who_am_i(GR_RANKS_AUTO, one, "here", &w), GR_OK);
    assert_true(w.one_host);
    assert_int_equal(gr_who_am_i(GR_RANKS_AUTO, two, "here", &w), GR_OK);
    assert_false(w.one_host);
    assert_string_equal(w.first, "gpu08");
    assert_int_equal(gr_who_am_i(GR_RANKS_AUTO, spread, "here", &w), GR_OK);
    assert_false(w.one_host);
    assert_int_equal(gr_who_am_i(GR_RANKS_AUTO, pmi2, "here", &w), GR_OK);
    assert_true(w.one_host);
    assert_int_equal(gr_who_am_i(GR_RANKS_AUTO, pmi2_two, "here", &w), GR_OK);
    assert_false(w.one_host);
    assert_string_equal(w.first, "gpu08");
}

/* ---- Slurm's lists; tests/cluster holds the reader against `scontrol show hostnames' ---- */

static void test_node_lists(void **state)
{
    (void)state;
    static const struct {
        const char *list, *names; /* with commas */
    } good[] = {
        {"n", "n"},
        {"a,b[1,3],c", "a,b1,b3,c"},
        {"jean-zay-ia810", "jean-zay-ia810"},
        {"linux[1,2]", "linux1,linux2"},
        {"n[08-11]", "n08,n09,n10,n11"},
        {"n[8-11]x", "n8x,n9x,n10x,n11x"},
        {"r[1-2]n[01-02]", "r1n01,r1n02,r2n01,r2n02"},
        {"w.1.foo,w.2.foo", "w.1.foo,w.2.foo"},
    };
    static const char *const bad[] = {"",     ",",     "a,",    "a[1", "a]",         "a[]",          "a[2-1]",
                                      "a[x]", "a[1-]", "a[1,]", "a b", "a[1-99999]", "a[9999999999]"};
    char name[64];
    for (size_t i = 0; i < GR_ARRAY_LEN(good); i++) {
        char all[256] = "";
        int n = 0;
        while (gr_node_list_at(good[i].list, n, name, sizeof(name)) == GR_OK) {
            strcat(strcat(all, n > 0 ? "," : ""), name);
            n++;
        }
        assert_string_equal(all, good[i].names);
        assert_int_equal(gr_node_list_at(good[i].list, n, name, sizeof(name)), GR_ENOTFOUND);
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        assert_int_equal(gr_node_list_at(bad[i], 5, name, sizeof(name)), GR_EFORMAT);
    }
    assert_int_equal(gr_node_list_at("long[1-2]", 0, name, 4), GR_ELIMIT);
}

static void test_tasks(void **state)
{
    (void)state;
    assert_int_equal(gr_tasks_per_node_at("2(x3),1", 0), 2);
    assert_int_equal(gr_tasks_per_node_at("2(x3),1", 2), 2);
    assert_int_equal(gr_tasks_per_node_at("2(x3),1", 3), 1);
    assert_int_equal(gr_tasks_per_node_at("2(x3),1", 4), -1);
    assert_int_equal(gr_tasks_per_node_at("4", 0), 4);
    assert_int_equal(gr_tasks_per_node_at("2(x", 1), -1);
    assert_int_equal(gr_tasks_per_node_at("two", 0), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_one_host), cmocka_unit_test(test_node_lists),
                                       cmocka_unit_test(test_tasks)};
    gr_log_init("test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
