/* Command line of the worker programs: a table of long options. */
#ifndef GR_TRANSPORT_WORKER_WORKER_ARGS_H
#define GR_TRANSPORT_WORKER_WORKER_ARGS_H

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/protocol/wire.h"
#include "transport/verbs/verbs.h"

#include <stdbool.h>
#include <stdint.h>

enum gr_arg_kind {
    GR_ARG_TEXT,
    GR_ARG_FLAG,
    GR_ARG_INT,
    GR_ARG_INT_OR_0,
    GR_ARG_BLOCKS,
    GR_ARG_SHARE,
    GR_ARG_ADDRESS,
    GR_ARG_TRANSPORT,
    GR_ARG_JOIN_TIMEOUT,
    GR_ARG_IB_HCA,
    GR_ARG_GID_INDEX,
    GR_ARG_VERBS_MODE,
    GR_ARG_VERBS_SPIN
};

struct gr_arg {
    const char *name; /* without dashes */
    enum gr_arg_kind kind;
    void *slot; /* const char ** (text, address) | bool * (no value) | int * | int * (0: auto) | double * (0: off) |
                 * int * (enum gr_transport_kind) | NULL */
    int64_t min, max; /* GR_ARG_INT, and _OR_0 but for that 0; GR_ARG_ADDRESS: min is the least port */
    const char *help;
};

/* Exit status to leave with at once (0 after --help, 2 after a usage error), or -1: go on. */
int gr_args_parse(const char *program, const struct gr_arg *args, int n_arg, int argc, char **argv);

/* Of the time, what prompt chunks may take while other sessions decode (--prefill-share; docs/PERFORMANCE.md). */
#define GR_PREFILL_SHARE_DEFAULT 0.5

/* Positions of a session whose features a target keeps (--feature-keep). The least: a prompt chunk and a tree. */
#define GR_FEATURE_KEEP_DEFAULT 2048
#define GR_DRAFT_CONTEXT_DEFAULT 2048
#define GR_DRAFT_CONTEXT_MAX (1 << 24)
#define GR_DRAFT_CONTEXT_MIN GR_FEATURE_CONTEXT_MIN /* but for 0: all */
#define GR_FEATURE_KEEP_MIN 320
#define GR_FEATURE_KEEP_MAX 1048576

/* The rows of what both workers must be told alike about features. */
#define GR_ARG_ROWS_FEATURES(ship, layers)                                                                           \
    {"ship-features",                                                                                                \
     GR_ARG_TEXT,                                                                                                    \
     (ship),                                                                                                         \
     0,                                                                                                              \
     0,                                                                                                              \
     "F        a head's features: fused | raw (default fused); the same for both workers"},                          \
    {                                                                                                                \
        "capture-layers", GR_ARG_TEXT, (layers), 0, 0,                                                               \
            "L,L,L    inputs of the target's layers that feed the head (default: as its config says); the same for " \
            "both"                                                                                                   \
    }

/* The rows of what was measured for a GPU's kernels (model/files/tuned.h). */
#define GR_ARG_ROWS_TUNED(file, required)                                                                        \
    {"tuned", GR_ARG_TEXT, (file), 0, 0, "FILE     shapes that graft-bench tune measured, for models on a GPU"}, \
    {                                                                                                            \
        "require-tuned", GR_ARG_FLAG, (required), 0, 0,                                                          \
            "         an error if a shape is not in it, or the GPU is another"                                   \
    }

/* How long a worker looks for work before it sleeps. */
#define GR_SPIN_AUTO (-1)
#define GR_SPIN_MS_MAX 10000
#define GR_ARG_ROW_SPIN(ms)                                                                                          \
    {                                                                                                                \
        "spin-ms", GR_ARG_INT, (ms), GR_SPIN_AUTO, GR_SPIN_MS_MAX,                                                   \
            "MS       look for work so long before sleeping (default -1: 50 on a GPU beside 8 CPUs or more, else 0)" \
    }

/* asked_ms: of --spin-ms. To be woken costs 50 to 100 us on an idle machine, up to six times a round. By itself a
 * worker spins only where its model leaves the CPUs alone and four threads of a pair are few among them. */
static inline uint64_t gr_worker_spin_ns(int asked_ms, bool on_gpu, int n_cpu)
{
    const int ms = asked_ms != GR_SPIN_AUTO ? asked_ms : on_gpu && n_cpu >= 8 ? 50 : 0;
    return (uint64_t)ms * GR_MS;
}

/* The row of --join-timeout, the same in every worker: it sets GRAFT_JOIN_TIMEOUT, which joining reads. */
#define GR_ARG_ROW_JOIN_TIMEOUT                                        \
    {                                                                  \
        "join-timeout", GR_ARG_JOIN_TIMEOUT, NULL, 0, 86400,           \
            "S        how long to try while no orchestrator is there " \
            "(default 60)"                                             \
    }

/* The rows about RDMA, the same in every worker: they say what gr_bootstrap() opens verbs connections with. */
#define GR_ARG_ROWS_RDMA                                                                                              \
    {"ib-hca", GR_ARG_IB_HCA, NULL, 0, 0, "DEV      RDMA device, NAME or NAME:PORT (default: the first that is up)"}, \
        {"gid-index", GR_ARG_GID_INDEX,       NULL,                                                                   \
         -1,          GR_VERBS_GID_INDEX_MAX, "N        index of its address (default -1: RoCE v2 on IPv4)"},         \
        {"verbs-mode", GR_ARG_VERBS_MODE, NULL, 0, 0, "M        one_sided | two_sided (default one_sided)"},          \
    {                                                                                                                 \
        "verbs-spin-us", GR_ARG_VERBS_SPIN, NULL, 0, GR_VERBS_SPIN_US_MAX,                                            \
            "US       how long to poll the device before sleeping (default 20)"                                       \
    }

#endif
