/* graft-bench: what it measures and how is told by each benchmark's --help and in docs/performance.md. */
#include "bench/bench.h"
#include "bench/commit.h"
#include "bench/fabric.h"
#include "bench/pair.h"
#include "common/base/log.h"
#include "common/base/suggest.h"
#include "common/process/program.h"

#include <string.h>

#define WORD_MAX 256 /* of the command, in results */

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} benches[] = {
    {"e2e", gr_bench_e2e},           {"sweep", gr_bench_sweep},
    {"clients", gr_bench_clients},   {"trees", gr_bench_trees},
    {"sessions", gr_bench_sessions}, {"stages", gr_bench_stages},
    {"gates", gr_bench_gates},       {"tune", gr_bench_tune},
    {"kernels", gr_bench_kernels},   {"transport", gr_bench_transport},
    {"simulate", gr_bench_simulate}, {"serve", gr_bench_serve},
    {"server", gr_bench_server},
};

static void usage(FILE *out)
{
    const struct gr_option_table *t = &gr_bench_option_table;
    fprintf(out, "usage: graft-bench BENCHMARK [-o md|csv|json|jsonl] [options]\n\n");
    for (const struct gr_option_command *c = t->command; c < t->command + t->n_command; c++) {
        fprintf(out, "  %-14s %s\n", c->word, c->help);
    }
    fprintf(out, "\ngraft-bench BENCHMARK --help tells its options. graft-bench --version tells the version.\n"
                 "Exit status: " GR_OPTION_STATUSES "\n");
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

/* Whichever benchmark ran: its figures over RDMA are then those of a fabric that loses packets. */
static void warn_of_losses(const struct gr_fabric_counts *before)
{
    struct gr_fabric_counts now;
    char text[GR_FABRIC_TEXT];
    gr_fabric_read(GR_FABRIC_ROOT, &now);
    if (gr_fabric_lost(before, &now, text) > 0) {
        log_warn(
            "lossy: meanwhile the RDMA devices of this host have counted packets that were lost or sent again (%s); "
            "figures over verbs are those of such a fabric",
            text);
    }
}

int main(int argc, char **argv)
{
    struct gr_fabric_counts before;
    gr_log_init("graft-bench");
    gr_program_begin();
    gr_fabric_read(GR_FABRIC_ROOT, &before);
    const int status = gr_program_end(dispatch(argc, argv));
    warn_of_losses(&before);
    return gr_pair_interrupted() != 0 ? 128 + gr_pair_interrupted() : status;
}
