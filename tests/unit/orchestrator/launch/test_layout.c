/* Where Slurm has put each rank of a step: environments as srun 22.05.8 has set them, what is not certain, and what is
 * no such variable. */
#include "orchestrator/launch/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define STEP(nodes, tasks, id, own) \
    "SLURM_STEP_NODELIST=" nodes, "SLURM_STEP_TASKS_PER_NODE=" tasks, "SLURM_NODEID=" id, "SLURM_GTIDS=" own

static const struct row {
    char *env[8];
    const char *nodes; /* of ranks 0, 1, ...; `-': not certain */
} rows[] = {
    {{STEP("n[1-3]", "1(x3)", "0", "0")}, "n1 n2 n3 -"},
    {{STEP("n[1-3]", "1(x3)", "2", "2")}, "n1 n2 n3 -"},
    {{STEP("gpu[08-09]", "3,1", "0", "0,1,2")}, "gpu08 gpu08 gpu08 gpu09"},
    {{STEP("n[1-3]", "3,1(x2)", "0", "0,1,2")}, "n1 n1 n1 n2 n3 -"},
    /* srun -m cyclic, block, block:cyclic, block,NoPack */
    {{STEP("n[1-2]", "4,1", "0", "0,2,3,4"), "SLURM_DISTRIBUTION=cyclic"}, "n1 n2 n1 n1 n1 -"},
    {{STEP("n[1-2]", "4,1", "0", "0,1,2,3"), "SLURM_DISTRIBUTION=block"}, "n1 n1 n1 n1 n2 -"},
    {{STEP("n[1-2]", "2,1", "0", "0,1"), "SLURM_DISTRIBUTION=block:cyclic"}, "n1 n1 n2 -"},
    {{STEP("n[1-2]", "4,1", "0", "0,1,2,3"), "SLURM_DISTRIBUTION=block,nopack"}, "n1 n1 n1 n1 n2"},
    /* Our own node tells which of both it is, or they agree on some ranks, whoever of them we are. */
    {{STEP("n[1-2]", "4,1", "0", "0,2,3,4")}, "n1 n2 n1 n1 n1"},
    {{STEP("n[1-3]", "1,2,2", "0", "0")}, "n1 n2 - - n3 -"},
    /* srun -m plane=2, arbitrary; more ranks here than in both ways, and others */
    {{STEP("n[1-2]", "4,1", "0", "0,1,3,4"), "SLURM_DISTRIBUTION=plane"}, "- -"},
    {{STEP("n[1-3]", "1(x3)", "0", "0"), "SLURM_DISTRIBUTION=arbitrary"}, "- - -"},
    {{STEP("n[1-3]", "1,2,1", "1", "0,1")}, "- - - -"},
    {{STEP("n[1-3]", "1(x3)", "0", "0"), "SLURM_DISTRIBUTION=blocked"}, "- - -"},
    {{STEP("n[1-3]", "1(x3)", "0", "0"), "SLURM_HET_SIZE=2"}, "- - -"},
    /* no such lists */
    {{STEP("n[1-3]", "1(x3", "0", "0")}, "- - -"},
    {{STEP("n[1-3]", "1(x3)", "0", "0,")}, "- - -"},
    {{STEP("n[1-3]", "1(x3)", "0", "x")}, "- - -"},
    {{STEP("n[1-3]", "1(x3)", "-1", "0")}, "- - -"},
    {{STEP("n[1-3", "1(x3)", "0", "0")}, "- - -"},
    {{STEP("n[1-3]", "1(x3000)", "0", "0")}, "- - -"},
    {{STEP("n[1-2]", "1(x3)", "0", "0")}, "n1 n2 -"},
    {{"SLURM_STEP_NODELIST=n[1-3]", "SLURM_STEP_TASKS_PER_NODE=1(x3)", "SLURM_NODEID=0"}, "- - -"},
    {{"SLURM_GTIDS=0", "SLURM_STEP_TASKS_PER_NODE=1(x3)", "SLURM_NODEID=0"}, "- - -"},
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct gr_layout l;
        char nodes[256];
        print_message("# %s %s %s %s\n", rows[i].env[0], rows[i].env[1], rows[i].env[2],
                      rows[i].env[3] != NULL ? rows[i].env[3] : "");
        snprintf(nodes, sizeof(nodes), "%s", rows[i].nodes);
        gr_layout_read(rows[i].env, &l);
        int rank = 0;
        char *rest = nodes;
        for (const char *want = strtok_r(nodes, " ", &rest); want != NULL; want = strtok_r(NULL, " ", &rest), rank++) {
            char node[80] = "-";
            assert_true(gr_layout_node(&l, rank, node, sizeof(node)) == (want[0] != '-'));
            assert_string_equal(node, want);
        }
    }
}

/* A name that does not fit is none. */
static void test_long_name(void **state)
{
    (void)state;
    static char *const env[] = {STEP("a-node-whose-name-is-long", "1", "0", "0"), NULL};
    struct gr_layout l;
    char node[80] = "";
    gr_layout_read(env, &l);
    assert_true(gr_layout_node(&l, 0, node, sizeof(node)));
    assert_false(gr_layout_node(&l, 0, node, 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_long_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
