/* graft-bench: what it measures and how is told by each benchmark's --help and in docs/performance.md. */
#include "bench/bench.h"
#include "bench/commit.h"
#include "bench/pair.h"
#include "common/base/log.h"
#include "common/base/suggest.h"
#include "common/process/program.h"

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

static void usage(FILE *out)
{
    fprintf(out, "usage: graft-bench BENCHMARK [-o md|csv|json|jsonl] [options]\n\n");
    for (size_t i = 0; i < GR_ARRAY_LEN(benches); i++) {
        fprintf(out, "  %-10s %s\n", benches[i].name, benches[i].help);
    }
}

static int dispatch(int argc, char **argv)
{
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
    struct gr_suggest near = {.word = argv[1], .len = strlen(argv[1])};
    char also[80];
    for (size_t i = 0; i < GR_ARRAY_LEN(benches); i++) {
        gr_suggest_offer(&near, benches[i].name);
    }
    log_error("unknown benchmark `%s'%s; see graft-bench --help", argv[1],
              gr_suggest_text(&near, "", also, sizeof(also)));
    return 2;
}

int main(int argc, char **argv)
{
    gr_log_init("graft-bench");
    gr_program_begin();
    const int status = gr_program_end(dispatch(argc, argv));
    return gr_pair_interrupted() != 0 ? 128 + gr_pair_interrupted() : status;
}
