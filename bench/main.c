/* graft-bench: what it measures and how is told by each benchmark's --help and in docs/PERFORMANCE.md. */
#include "bench/bench.h"
#include "bench/commit.h"
#include "common/base/log.h"

#include <signal.h>
#include <string.h>

#define WORD_MAX 256 /* of the command, in results */

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} benches[] = {
    {"e2e", "plain decoding, co-located pair and pair of processes, side by side, on workers that stay", gr_bench_e2e},
    {"sweep", "the automatic tree against fixed sizes and plain decoding, prompt by prompt", gr_bench_sweep},
    {"sessions", "many sessions at once on one pair, plain and with trees, and whether every text is right",
     gr_bench_sessions},
    {"stages", "a target pass at 1 to 64 rows and prefill, against max(bytes, operations)", gr_bench_stages},
    {"gates", "results against what must be reached, stored or measured now", gr_bench_gates},
    {"tune", "gemm | attention: which shapes of the kernels are fastest on this GPU, into a file for --tuned",
     gr_bench_tune},
    {"kernels", "each operation of each CPU implementation", gr_bench_kernels},
    {"transport", "latency, message rate and a round's exchange over loop, shm, tcp and verbs", gr_bench_transport},
};

int gr_bench_options(const char *what, int argc, char **argv, enum gr_table_format *format,
                     const struct gr_bench_option *options, int n_option)
{
    *format = GR_TABLE_MD;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            printf("usage: graft-bench %s [-o md|csv|json|jsonl] [options]\n\n", what);
            for (int k = 0; k < n_option; k++) {
                printf("  --%-16s %s\n", options[k].name, options[k].help);
            }
            return 0;
        }
        if (i + 1 >= argc) {
            log_error("%s: unknown option, or it needs a value; see graft-bench %s --help", argv[i], what);
            return 2;
        }
        if (strcmp(argv[i], "-o") == 0) {
            if (gr_table_format_by_name(argv[++i], format) != GR_OK) {
                log_error("-o: `%s' is not one of md, csv, json, jsonl", argv[i]);
                return 2;
            }
            continue;
        }
        const struct gr_bench_option *found = NULL;
        for (int k = 0; k < n_option; k++) {
            if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, options[k].name) == 0) {
                found = &options[k];
            }
        }
        if (found == NULL) {
            log_error("unknown option %s; see graft-bench %s --help", argv[i], what);
            return 2;
        }
        *found->value = argv[++i];
    }
    return -1;
}

bool gr_bench_flag(int *argc, char **argv, const char *name)
{
    int n = 0;
    for (int i = 0; i < *argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0 || strcmp(argv[i] + 2, name) != 0) {
            argv[n++] = argv[i];
        }
    }
    const bool found = n < *argc;
    *argc = n;
    return found;
}

static void usage(FILE *out)
{
    fprintf(out, "usage: graft-bench BENCHMARK [-o md|csv|json|jsonl] [options]\n\n");
    for (size_t i = 0; i < GR_ARRAY_LEN(benches); i++) {
        fprintf(out, "  %-10s %s\n", benches[i].name, benches[i].help);
    }
}

int main(int argc, char **argv)
{
    gr_log_init("graft-bench");
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of the call that meets it */
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("graft-bench %s (%s)\n", GR_VERSION, gr_commit);
        return 0;
    }
    char *words[WORD_MAX]; /* flags are taken out of argv */
    const int n_word = GR_MIN(argc, WORD_MAX);
    memcpy(words, argv, (size_t)n_word * sizeof(*words));
    gr_table_command(n_word, words);
    for (size_t i = 0; i < GR_ARRAY_LEN(benches); i++) {
        if (strcmp(argv[1], benches[i].name) == 0) {
            return benches[i].run(argc - 1, argv + 1);
        }
    }
    log_error("unknown benchmark `%s'; see graft-bench --help", argv[1]);
    return 2;
}
