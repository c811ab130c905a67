/* What control groups leave a process: made trees of both versions, and a real nested group where root may make one. */
#include "common/base/cgroup.h"
#include "common/base/log.h"
#include "common/base/free_memory.h"
#include "common/base/status.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)
#define V1_NONE "9223372036854771712\n" /* what the kernel says of a group without a limit */

static char root[64];

static int new_root(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/graft-cgroup-XXXXXX");
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int drop(const char *path, const struct stat *sb, int type, struct FTW *at)
{
    (void)sb;
    (void)type;
    (void)at;
    return remove(path);
}

static int drop_root(void **state)
{
    (void)state;
    return nftw(root, drop, 16, FTW_DEPTH | FTW_PHYS);
}

/* A file below the root, with its folders. */
static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *p = strchr(full + strlen(root) + 1, '/'); p != NULL; p = strchr(p + 1, '/')) {
        *p = '\0';
        assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static struct gr_cgroup_limits read_tree(void)
{
    struct gr_cgroup_limits l;
    memset(&l, 0xee, sizeof(l));
    gr_cgroup_read(root, &l);
    return l;
}

#define V2_MOUNT "30 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V2 "/sys/fs/cgroup"

static void test_v2_nested(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/user.slice/run-7.scope\n");
    put("/proc/self/mountinfo", "29 1 8:1 / / rw - ext4 /dev/root rw\n" V2_MOUNT);
    put(V2 "/memory.stat", "anon 5\n"); /* the real root has no memory.max */
    put(V2 "/user.slice/memory.max", "1073741824\n");
    put(V2 "/user.slice/memory.current", "734003200\n");
    put(V2 "/user.slice/memory.stat", "anon 1\nfile 2\ninactive_file 104857600\nactive_file 3\n");
    put(V2 "/user.slice/cpu.max", "150000 100000\n");
    put(V2 "/user.slice/run-7.scope/memory.max", "max\n");
    put(V2 "/user.slice/run-7.scope/memory.current", "1\n");
    put(V2 "/user.slice/run-7.scope/cpu.max", "max 100000\n");
    struct gr_cgroup_limits l = read_tree();
    assert_int_equal(l.memory_left, (1024 - 700 + 100) * MIB);
    assert_string_equal(l.memory_from, V2 "/user.slice/memory.max");
    assert_int_equal(l.n_cpu, 2);
    assert_string_equal(l.cpu_from, V2 "/user.slice/cpu.max");
    put(V2 "/user.slice/run-7.scope/memory.max", "209715200\n"); /* the inner one is tighter now */
    put(V2 "/user.slice/run-7.scope/cpu.max", "50000 100000\n");
    l = read_tree();
    assert_int_equal(l.memory_left, 200 * MIB - 1);
    assert_string_equal(l.memory_from, V2 "/user.slice/run-7.scope/memory.max");
    assert_int_equal(l.n_cpu, 1);
    put(V2 "/user.slice/memory.high", "314572800\n"); /* beyond it the group is slowed until it gives back: no room */
    l = read_tree();
    assert_int_equal(l.memory_left, 0);
    assert_string_equal(l.memory_from, V2 "/user.slice/memory.high");
}

#define V1_MOUNTS                                                                 \
    "41 40 0:30 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n"  \
    "42 40 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" \
    "43 40 0:32 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
#define V1_MEM "/sys/fs/cgroup/memory"
#define V1_CPU "/sys/fs/cgroup/cpu,cpuacct"

static void put_v1(void)
{
    put("/proc/self/cgroup", "9:memory:/slurm/job_1/step_0\n7:cpuset:/elsewhere\n4:cpu,cpuacct:/slurm/job_1\n"
                             "1:name=systemd:/user.slice\n");
    put("/proc/self/mountinfo", V1_MOUNTS);
    put(V1_MEM "/memory.limit_in_bytes", V1_NONE);
    put(V1_MEM "/memory.usage_in_bytes", "8589934592\n");
    put(V1_MEM "/slurm/memory.limit_in_bytes", V1_NONE);
    put(V1_MEM "/slurm/job_1/memory.limit_in_bytes", "1073741824\n");
    put(V1_MEM "/slurm/job_1/memory.usage_in_bytes", "734003200\n");
    put(V1_MEM "/slurm/job_1/memory.stat", "cache 9\ninactive_file 7\ntotal_inactive_file 104857600\n");
    put(V1_MEM "/slurm/job_1/step_0/memory.limit_in_bytes", "2147483648\n");
    put(V1_MEM "/slurm/job_1/step_0/memory.usage_in_bytes", "734003200\n");
    put(V1_CPU "/cpu.cfs_quota_us", "-1\n");
    put(V1_CPU "/cpu.cfs_period_us", "100000\n");
    put(V1_CPU "/slurm/cpu.cfs_quota_us", "100000\n");
    put(V1_CPU "/slurm/cpu.cfs_period_us", "100000\n");
    put(V1_CPU "/slurm/job_1/cpu.cfs_quota_us", "350000\n");
    put(V1_CPU "/slurm/job_1/cpu.cfs_period_us", "100000\n");
}

static void test_v1_nested(void **state)
{
    (void)state;
    put_v1();
    const struct gr_cgroup_limits l = read_tree();
    assert_int_equal(l.memory_left, (1024 - 700 + 100) * MIB);
    assert_string_equal(l.memory_from, V1_MEM "/slurm/job_1/memory.limit_in_bytes");
    assert_int_equal(l.n_cpu, 1); /* the outer quota */
    assert_string_equal(l.cpu_from, V1_CPU "/slurm/cpu.cfs_quota_us");
}

/* Controllers of version 1 beside an empty (or not) hierarchy of version 2. */
static void test_hybrid(void **state)
{
    (void)state;
    put_v1();
    put("/proc/self/cgroup", "9:memory:/slurm/job_1\n4:cpu,cpuacct:/\n0::/init.scope\n");
    put("/proc/self/mountinfo", V1_MOUNTS "50 40 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/unified/init.scope/cpu.max", "300000 100000\n");
    const struct gr_cgroup_limits l = read_tree();
    assert_int_equal(l.memory_left, 424 * MIB);
    assert_int_equal(l.n_cpu, 3);
}

/* In containers the mount shows a part of the hierarchy, under the names that are seen there. */
static void test_containers(void **state)
{
    (void)state;
    static const struct {
        const char *cgroup, *mount, *at;
    } cases[] = {
        {"0::/\n", V2_MOUNT, V2}, /* a namespace of its own */
        {"0::/docker/ab\n", "30 2 0:2 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n", V2}, /* without one */
        {"0::/docker/ab/in\n", "30 2 0:2 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n", V2 "/in"},
        {"0::/docker/ab\n", "30 2 0:2 /docker/abc /other ro - cgroup2 cgroup rw\n" V2_MOUNT, V2 "/docker/ab"},
        {"0::/../x\n", V2_MOUNT, V2}, /* it stands outside: what is seen counts */
        {"0::/../x/y\n", "30 2 0:2 /../x /sys/fs/cgroup ro - cgroup2 cgroup rw\n", V2 "/y"},
        {"0::/gone\n", "30 2 0:2 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n", V2},
        {"0::/a b\n", "30 2 0:2 / /sys/fs/cg\\040oup ro - cgroup2 cgroup rw\n", "/sys/fs/cg oup/a b"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        char path[256];
        put("/proc/self/cgroup", cases[i].cgroup);
        put("/proc/self/mountinfo", cases[i].mount);
        snprintf(path, sizeof(path), "%s/memory.max", cases[i].at);
        put(path, "1000\n");
        const struct gr_cgroup_limits l = read_tree();
        assert_int_equal(l.memory_left, 1000);
        assert_string_equal(l.memory_from, path);
        put(path, "max\n");
    }
}

/* What is not there, or not of its form, limits nothing, and what is good beside it still counts. */
static void test_malformed(void **state)
{
    (void)state;
    assert_true(read_tree().memory_left == UINT64_MAX && read_tree().n_cpu == INT_MAX);
    put("/proc/self/cgroup", "nonsense\n0:\n0::relative\n:::\n0::/a/b\n");
    assert_true(read_tree().memory_left == UINT64_MAX);
    put("/proc/self/mountinfo", "\n30 23\n - cgroup2\n30 23 0:1 / /x rw -\n" V2_MOUNT);
    assert_true(read_tree().memory_left == UINT64_MAX);
    static const char *const bad[] = {"",     "\n",    "-1\n", "12x\n", "max1\n", "99999999999999999999999\n",
                                      " 5\n", "0x10\n"};
    static const char *const bad_cpu[] = {"", "1\n", "-5 100000\n", "100000 0\n", "x 100000\n", "max\n"};
    put(V2 "/a/memory.max", "4096\n");
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        put(V2 "/a/b/memory.max", bad[i]);
        put(V2 "/a/memory.current", bad[i]); /* then nothing is known to be used */
        put(V2 "/a/memory.stat", "inactive_file\ninactive_file x\n");
        assert_int_equal(read_tree().memory_left, 4096);
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(bad_cpu); i++) {
        put(V2 "/a/b/cpu.max", bad_cpu[i]);
        assert_int_equal(read_tree().n_cpu, INT_MAX);
    }
    put(V2 "/a/memory.current", "100\n");
    put(V2 "/a/memory.stat", "inactive_file 4000\n"); /* the files are read one after the other */
    assert_int_equal(read_tree().memory_left, 4096);
    put(V2 "/a/b/cpu.max", "1 100000\n");
    assert_int_equal(read_tree().n_cpu, 1);
}

/* ---- a real group ---- */

static bool put_real(const char *dir, const char *file, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    FILE *f = fopen(path, "w");
    const bool put_in = f != NULL && fputs(text, f) >= 0;
    return f != NULL && fclose(f) == 0 && put_in;
}

/* In a child of the group: 0 if the limit is seen. */
static int look(const char *dir)
{
    char pid[32];
    struct gr_free_memory m;
    snprintf(pid, sizeof(pid), "%d\n", getpid());
    if (!put_real(dir, "cgroup.procs", pid)) {
        return 2;
    }
    gr_memory_available(&m);
    return m.bytes > 0 && m.bytes <= 64 * MIB && strstr(m.from, "/graft-test-outer/memory.") != NULL ? 0 : 1;
}

static int look_from_child(const char *dir)
{
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        _exit(look(dir));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

/* The inner group has no limit of its own: systemd's MemoryMax on a slice, a Slurm job with its steps. */
static void test_real_group(void **state)
{
    (void)state;
    const bool v2 = access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0;
    const char *top = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    char outer[128], inner[160];
    snprintf(outer, sizeof(outer), "%s/graft-test-outer", top);
    snprintf(inner, sizeof(inner), "%s/inner", outer);
    const bool made = mkdir(outer, 0700) == 0 && mkdir(inner, 0700) == 0;
    const bool limited = made && put_real(outer, v2 ? "memory.max" : "memory.limit_in_bytes", "67108864\n");
    const int why = errno;
    const int seen = limited ? look_from_child(inner) : -1;
    rmdir(inner);
    rmdir(outer);
    if (!limited) {
        print_message("# skipped: no memory group can be made below %s: %s\n", top, strerror(why));
        skip();
    }
    assert_int_equal(seen, 0);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, new_root, drop_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_v2_nested),  CASE(test_v1_nested), CASE(test_hybrid),
        CASE(test_containers), CASE(test_malformed), cmocka_unit_test(test_real_group),
    };
    gr_log_set_level(GR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
