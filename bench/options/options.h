/* The options of graft-bench: rows of table.inc. They have no twins in the environment and no keys in YAML: what was
 * measured is told by its command line. common/options/option.h says what a row is and who reads it. */
#ifndef GR_BENCH_OPTIONS_OPTIONS_H
#define GR_BENCH_OPTIONS_OPTIONS_H

#include "common/options/option.h"
#include "common/protocol/wire.h"
#include "common/rules/token_tree.h"

/* The benchmarks, as a set. */
enum gr_bench_command {
    GR_BENCH_E2E = 1 << 0,
    GR_BENCH_LONG = 1 << 1, /* e2e --context */
    GR_BENCH_TREE_SIZES = 1 << 2,
    GR_BENCH_SESSIONS = 1 << 3,
    GR_BENCH_STAGES = 1 << 4,
    GR_BENCH_GATES = 1 << 5,
    GR_BENCH_TUNE = 1 << 6,
    GR_BENCH_KERNELS = 1 << 7,
    GR_BENCH_TRANSPORT = 1 << 8,
    GR_BENCH_SIMULATE = 1 << 9,
    GR_BENCH_SWEEP = 1 << 10,
    GR_BENCH_CLIENTS = 1 << 11,
    GR_BENCH_SERVER = 1 << 12,
    GR_BENCH_SERVE = 1 << 13,
};

/* Limits of options, which the benchmarks' arrays have. */
#define GR_BENCH_PROMPT_MAX 64
#define GR_BENCH_CONTEXT_MAX (1 << 20)
#define GR_GROUP_MAX 64   /* sessions at once */
#define GR_CROWD_MAX 4096 /* the same, of clients and sweep */
#define GR_GROUP_NEW_TOKENS_MAX 16384
#define GR_GROUP_REP_MAX 50
#define GR_LONG_TOKEN_MAX 4096
#define GR_STAGE_REP_MAX 101
#define GR_STAGE_ROW_MAX 512 /* rows of a pass */
#define GR_TUNE_REP_MAX 1001
#define GR_GATE_RUN_MAX 9 /* results of a command */
#define GR_SWEEP_REPEAT_MAX 20
#define GR_SWEEP_AXIS_MAX 8       /* values of one axis of a sweep */
#define GR_SERVE_AT_ONCE_MAX 4096 /* requests on their way */
#define GR_SERVE_REQUESTS_MAX 1000000
#define GR_STEP_ITERS_MAX 10000000
#define GR_STEP_BYTES_MIN 8 /* a frame's number */
#define GR_STEP_PATH 6      /* accepted nodes of transport's round, and rows of its features */

/* Values of the CHOICE and CHOICES rows, in the order of their choices. */
enum gr_bench_mode { GR_BENCH_COLOCATED, GR_BENCH_APART };
enum gr_bench_decoding { GR_BENCH_PLAIN, GR_BENCH_TREES };
enum gr_bench_test { GR_BENCH_PING, GR_BENCH_ROUND };
enum gr_bench_launcher { GR_BENCH_BY_AUTO, GR_BENCH_BY_NONE, GR_BENCH_BY_MPIRUN, GR_BENCH_BY_SRUN };
enum gr_bench_plots { GR_BENCH_PLOTS_SVG, GR_BENCH_PLOTS_PNG, GR_BENCH_PLOTS_NONE };
enum gr_bench_verbs_mode { GR_BENCH_ONE_SIDED, GR_BENCH_TWO_SIDED };
enum gr_bench_backend { GR_BENCH_OPENAI, GR_BENCH_OPENAI_CHAT };
enum gr_bench_tuned { GR_BENCH_GEMM, GR_BENCH_ATTENTION };

/* The rows' numbers: GR_BENCH_OPTION_model ... */
enum gr_bench_option_id {
#define GR_OPTION(kind, id, ...) GR_BENCH_OPTION_##id,
#include "bench/options/table.inc"
#undef GR_OPTION
    GR_BENCH_N_OPTION
};

/* A member for each row, by its id. */
struct gr_bench_options {
    struct gr_option_values values;
#define GR_OPTION(kind, id, ...) GR_SLOT_##kind id;
#include "bench/options/table.inc"
#undef GR_OPTION
};

extern const struct gr_option_table gr_bench_option_table;

/* Defaults and command line. Exit status to leave with at once, or -1: go on. */
int gr_bench_options_read(struct gr_bench_options *o, enum gr_bench_command command, int argc, char **argv);

static inline const struct gr_option *gr_bench_option(enum gr_bench_option_id id)
{
    return &gr_bench_option_table.row[id];
}
/* The text of a CHOICE, or NULL where none was given. */
static inline const char *gr_bench_choice(const struct gr_bench_options *o, enum gr_bench_option_id id)
{
    char unused[GR_OPTION_TEXT_MAX];
    return gr_option_text(&o->values, gr_bench_option(id), unused);
}
static inline bool gr_bench_is_given(const struct gr_bench_options *o, enum gr_bench_option_id id)
{
    return o->values.source[id] == GR_FROM_CLI;
}

#endif
