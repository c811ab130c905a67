/* The table of graft-bench: rows, benchmarks and groups. */
#include "bench/options/options.h"

/* Sets of benchmarks that many rows name. */
#define PAIRS (GR_BENCH_E2E | GR_BENCH_SESSIONS)
#define SWEEPS (GR_BENCH_SWEEP | GR_BENCH_CLIENTS)
#define EVERY                                                                                         \
    (PAIRS | GR_BENCH_LONG | GR_BENCH_TREE_SIZES | GR_BENCH_STAGES | GR_BENCH_GATES | GR_BENCH_TUNE | \
     GR_BENCH_KERNELS | GR_BENCH_TRANSPORT | GR_BENCH_SIMULATE | GR_BENCH_SERVER | GR_BENCH_SERVE | SWEEPS)

enum group {
    GROUP_GENERAL,
    GROUP_MODEL,
    GROUP_MACHINE,
    GROUP_PROMPT,
    GROUP_MEASURE,
    GROUP_FLEET,
    GROUP_ENDPOINT,
    GROUP_GATES,
    N_GROUP
};

static const struct gr_option_group groups[N_GROUP] = {
    [GROUP_GENERAL] = {"general", "What is written"},
    [GROUP_MODEL] = {"model", "Models"},
    [GROUP_MACHINE] = {"machine", "Where it runs"},
    [GROUP_PROMPT] = {"prompt", "Prompts and contexts"},
    [GROUP_MEASURE] = {"measure", "What is measured, how"},
    [GROUP_FLEET] = {"fleet", "Fleets and their clients"},
    [GROUP_ENDPOINT] = {"endpoint", "Requests to an endpoint"},
    [GROUP_GATES] = {"gates", "Gates"},
};

static const struct gr_option_command commands[] = {
    {GR_BENCH_E2E, "graft-bench", "e2e", "[options]",
     "plain decoding, co-located pair and pair of processes, side by side, on workers that stay", NULL},
    {GR_BENCH_LONG, "graft-bench", "e2e --context", "N,N,... [options]",
     "long contexts with full and with partial verification (SpecPV), side by side", NULL},
    {GR_BENCH_SWEEP, "graft-bench", "sweep", "--n-target N,N,... --devices D,D,... [options]",
     "many clients on fleets of workers, over counts of hosts, targets, drafters, ranks and sessions", NULL},
    {GR_BENCH_CLIENTS, "graft-bench", "clients", "--connect HOST:PORT [options]",
     "what a running server gives to many sessions at once", NULL},
    {GR_BENCH_SERVE, "graft-bench", "serve", "--base-url http://HOST:PORT [options]",
     "what an OpenAI-like endpoint gives to requests at a rate or a concurrency, as vllm bench serve", NULL},
    {GR_BENCH_TREE_SIZES, "graft-bench", "trees", "[options]",
     "the automatic tree against fixed sizes and plain decoding, prompt by prompt", NULL},
    {GR_BENCH_SESSIONS, "graft-bench", "sessions", "[options]",
     "many sessions at once on one pair, plain and with trees, and whether every text is right", NULL},
    {GR_BENCH_STAGES, "graft-bench", "stages", "[options]",
     "a target pass at 1 to 64 rows and prefill, against max(bytes, operations)", NULL},
    {GR_BENCH_GATES, "graft-bench", "gates", "--results FILE | --micro [options]",
     "results against what must be reached, stored or measured now", NULL},
    {GR_BENCH_TUNE, "graft-bench", "tune", "gemm|attention --output FILE [options]",
     "which shapes of the kernels are fastest on this GPU, into a file for --tuned", NULL},
    {GR_BENCH_KERNELS, "graft-bench", "kernels", "[options]", "each operation of each CPU implementation", NULL},
    {GR_BENCH_TRANSPORT, "graft-bench", "transport", "[options]",
     "latency, message rate and a round's exchange over loop, shm, tcp and verbs", NULL},
    {GR_BENCH_SIMULATE, "graft-bench", "simulate", "[options]",
     "a fleet of workers on a virtual clock, with measured costs: what it would do, and what limits it", NULL},
    {GR_BENCH_SERVER, "graft-bench", "server", "[options]",
     "what `graft serve' takes for rounds of many workers, clients and sessions, none of which has a model", NULL},
};

static const struct gr_option rows[GR_BENCH_N_OPTION] = {
#define GR_OPTION(kind_, id, name_, ...) \
    [GR_BENCH_OPTION_##                  \
        id] = {.name = name_, .kind = GR_KIND_##kind_, .at = offsetof(struct gr_bench_options, id), __VA_ARGS__},
#include "bench/options/table.inc"
#undef GR_OPTION
};

const struct gr_option_table gr_bench_option_table = {.row = rows,
                                                      .n_row = GR_BENCH_N_OPTION,
                                                      .command = commands,
                                                      .n_command = GR_ARRAY_LEN(commands),
                                                      .group = groups,
                                                      .n_group = N_GROUP};

int gr_bench_options_read(struct gr_bench_options *o, enum gr_bench_command command, int argc, char **argv)
{
    const struct gr_option_command *called = commands;
    while (called->command != command) {
        called++;
    }
    *o = (struct gr_bench_options){.help = false};
    gr_option_values_begin(&o->values, &gr_bench_option_table, called);
    return gr_option_values_parse(&o->values, argc, argv);
}
