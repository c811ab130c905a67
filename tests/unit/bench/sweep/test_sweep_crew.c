/* The environment of a sweep's processes: nothing of a launcher around the sweep says to them which rank they are, or
 * to which CPUs an srun that is among them is to pin its ranks. */
#include "bench/sweep/crew.h"
#include "common/base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[] = "/tmp/graft-crew-XXXXXX";

static const char *const dropped[] = {"SLURM_CPU_BIND",
                                      "SLURM_CPU_BIND_LIST",
                                      "SLURM_CPU_BIND_TYPE",
                                      "SLURM_STEP_ID",
                                      "SLURM_STEP_NUM_TASKS",
                                      "SLURM_PROCID",
                                      "SLURM_LOCALID",
                                      "PMI_RANK",
                                      "PMIX_NAMESPACE",
                                      "OMPI_COMM_WORLD_RANK",
                                      "RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_RANK",
                                      "GRAFT_MODEL"};
static const char *const kept[] = {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "OMPI_MCA_btl", "GRAFT_LOG", "RANKS"};

/* What `env' prints as a member of a crew, with a newline before the first line. */
static void environment_of_member(char *text, size_t size)
{
    static struct gr_crew c;
    char why[GR_CREW_WHY_MAX], path[sizeof(dir) + 16];
    const char *const argv[] = {"env", NULL};
    int index;
    gr_crew_begin(&c, dir, "abcd");
    assert_int_equal(gr_crew_start(&c, "env", argv, NULL, true, &index), GR_OK);
    assert_int_equal(gr_crew_wait(&c, index, 20, why), GR_OK);
    gr_crew_end(&c);
    snprintf(path, sizeof(path), "%s/env.out", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[0] = '\n';
    text[1 + fread(text + 1, 1, size - 2, f)] = '\0';
    assert_true(feof(f));
    fclose(f);
}

static bool has(const char *text, const char *variable, const char *value)
{
    char line[80];
    snprintf(line, sizeof(line), "\n%s=%s\n", variable, value);
    return strstr(text, line) != NULL;
}

static void test_environment(void **state)
{
    static char text[1 << 20];
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(dropped); i++) {
        setenv(dropped[i], "7", 1);
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(kept); i++) {
        setenv(kept[i], "7", 1);
    }
    environment_of_member(text, sizeof(text));
    for (size_t i = 0; i < GR_ARRAY_LEN(dropped); i++) {
        assert_false(has(text, dropped[i], "7"));
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(kept); i++) {
        assert_true(has(text, kept[i], "7"));
    }
    assert_true(has(text, "GRAFT_KEY", "abcd"));
}

static int begin(void **state)
{
    (void)state;
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int end(void **state)
{
    static const char *const name[] = {"env.out", "env.log"};
    char path[sizeof(dir) + 16];
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(name); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, name[i]);
        (void)unlink(path);
    }
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_environment)};
    return cmocka_run_group_tests(tests, begin, end);
}
