/* check_kernels [--seed N] [--bench [--threads N] [--isa NAME] [--only NAME]]
 * Test mode prints TAP; exit status 1 if anything failed. */
#include "tests/kernels/check.h"

#include "common/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    check_fn *run;
} op_table[] = {
    {"linear", check_linear},
    {"silu_mul", check_silu_mul},
    {"rmsnorm", check_rmsnorm},
    {"rope", check_rope},
    {"embed", check_embed},
    {"kv_store", check_kv_store},
    {"kv_copy", check_kv_copy},
    {"attention", check_attention},
    {"partial view", check_view},
    {"kv_summary", check_kv_summary},
    {"block_scores", check_block_scores},
    {"add_gumbel", check_add_gumbel},
    {"argmax", check_argmax},
    {"logsumexp", check_logsumexp},
};

static const char *const isa_table[] = {"avx512", "avx2", "c"};
enum { N_ISA = GR_ARRAY_LEN(isa_table) };

struct totals {
    int n, n_fail, n_skip;
};

static void report(struct totals *t, bool ok, const char *name, const char *detail, const char *skip)
{
    t->n++;
    t->n_fail += !ok;
    t->n_skip += skip != NULL;
    printf("%s %d - %s %s%s%s\n", ok ? "ok" : "not ok", t->n, name, detail, skip ? " # SKIP " : "", skip ? skip : "");
    fflush(stdout);
}

/* All implementations that ran a case must agree on its bits. */
static bool same_bits(const struct check *checks, const bool *ran, const char *op)
{
    bool ok = true;
    for (int i = 0; i < N_ISA; i++) {
        for (int j = i + 1; j < N_ISA && ran[i]; j++) {
            for (int n = 0; ran[j] && n < checks[i].n_case; n++) {
                uint64_t a = checks[i].hash[n], b = checks[j].hash[n];
                if (a && b && a != b) {
                    printf("# %s: case %d: %s and %s differ\n", op, n, isa_table[i], isa_table[j]);
                    ok = false;
                    break;
                }
            }
        }
    }
    return ok;
}

static void test_op(size_t op, uint64_t seed, const struct gr_kernels *ref, struct totals *t)
{
    static struct check checks[N_ISA];
    bool ran[N_ISA] = {false};
    int n_ran = 0;
    memset(checks, 0, sizeof(checks));
    for (int i = 0; i < N_ISA; i++) {
        struct gr_kernels k;
        if (gr_kernels_init_cpu(&k, isa_table[i]) != GR_OK) {
            report(t, true, op_table[op].name, isa_table[i], "not supported here");
            continue;
        }
        checks[i].ref = ref;
        checks[i].k = &k;
        checks[i].slow = strcmp(isa_table[i], "c") == 0;
        rng_seed(seed + op);
        op_table[op].run(&checks[i]);
        report(t, checks[i].n_fail == 0, op_table[op].name, isa_table[i], NULL);
        ran[i] = true;
        n_ran++;
    }
    if (n_ran < 2) {
        report(t, true, op_table[op].name, "equal bits", "one implementation only");
    } else {
        report(t, same_bits(checks, ran, op_table[op].name), op_table[op].name, "equal bits", NULL);
    }
}

static void test_other(const char *name, check_fn *run, uint64_t seed, const struct gr_kernels *ref, struct totals *t)
{
    static struct check c;
    c = (struct check){.ref = ref, .k = ref};
    rng_seed(seed);
    run(&c);
    report(t, c.n_fail == 0, name, "", NULL);
}

static int run_tests(uint64_t seed)
{
    struct gr_kernels ref;
    struct totals t = {0};
    gr_kernels_init_ref(&ref);
    printf("TAP version 13\n1..%d\n# seed %llu\n", (int)GR_ARRAY_LEN(op_table) * (N_ISA + 1) + 3,
           (unsigned long long)seed);
    test_other("math", check_math, seed, &ref, &t);
    test_other("team", check_team, seed, &ref, &t);
    test_other("top blocks", check_top_blocks, seed, &ref, &t);
    for (size_t i = 0; i < GR_ARRAY_LEN(op_table); i++) {
        test_op(i, seed, &ref, &t);
    }
    printf("# %d checks: %d passed, %d failed, %d not supported (seed %llu)\n", t.n, t.n - t.n_fail - t.n_skip,
           t.n_fail, t.n_skip, (unsigned long long)seed);
    return t.n_fail ? 1 : 0;
}

static const struct {
    const char *name;
    bench_fn *run;
} bench_table[] = {
    {"linear", bench_linear}, {"attention", bench_attention}, {"view", bench_view},
    {"rows", bench_rows},     {"sample", bench_sample},
};

static bool is_bench(const char *name)
{
    for (size_t j = 0; j < GR_ARRAY_LEN(bench_table); j++) {
        if (strcmp(name, bench_table[j].name) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_isa(const char *name)
{
    for (int i = 0; i < N_ISA; i++) {
        if (strcmp(name, isa_table[i]) == 0) {
            return true;
        }
    }
    return false;
}

static int run_benches(int n_thread, const char *isa, const char *only, enum gr_table_format format)
{
    struct gr_table table;
    struct bench b = {.n_thread = n_thread, .table = &table};
    if (only != NULL && !is_bench(only)) {
        fprintf(stderr, "--only: `%s' is not one of linear, attention, view, rows, sample\n", only);
        return 2;
    }
    if (isa != NULL && !is_isa(isa)) {
        fprintf(stderr, "--isa: `%s' is not one of avx512, avx2, c\n", isa);
        return 2;
    }
    bench_begin(&b, format);
    for (int i = 0; i < N_ISA; i++) {
        struct gr_kernels k;
        if ((isa && strcmp(isa, isa_table[i]) != 0) || gr_kernels_init_cpu(&k, isa_table[i]) != GR_OK) {
            continue;
        }
        b.k = &k;
        for (size_t j = 0; j < GR_ARRAY_LEN(bench_table); j++) {
            if (!only || strcmp(only, bench_table[j].name) == 0) {
                bench_table[j].run(&b);
            }
        }
    }
    gr_table_end(&table);
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    bool bench = false;
    int n_thread = GR_MIN(gr_cpu_count(), CHECK_THREAD_MAX);
    const char *isa = NULL, *only = NULL;
    enum gr_table_format format = GR_TABLE_MD;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--bench") == 0) {
            bench = true;
        } else if (value && strcmp(argv[i], "--seed") == 0) {
            seed = strtoull(argv[++i], NULL, 0);
        } else if (value && strcmp(argv[i], "--threads") == 0) {
            n_thread = atoi(argv[++i]);
        } else if (value && strcmp(argv[i], "--isa") == 0) {
            isa = argv[++i];
        } else if (value && strcmp(argv[i], "--only") == 0) {
            only = argv[++i];
        } else if (value && strcmp(argv[i], "-o") == 0 && gr_table_format_by_name(value, &format) == GR_OK) {
            i++;
        } else {
            fprintf(stderr, "usage: check_kernels [--seed N] "
                            "[--bench [--threads N] [--isa NAME] [--only NAME] [-o md|csv|json|jsonl]]\n");
            return 2;
        }
    }
    gr_table_command(argc, argv);
    n_thread = GR_MAX(1, GR_MIN(n_thread, CHECK_THREAD_MAX));
    return bench ? run_benches(n_thread, isa, only, format) : run_tests(seed);
}
