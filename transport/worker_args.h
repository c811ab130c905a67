/* Command line of the worker programs: a table of long options. */
#ifndef GR_TRANSPORT_WORKER_ARGS_H
#define GR_TRANSPORT_WORKER_ARGS_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

enum gr_arg_kind { GR_ARG_TEXT, GR_ARG_INT, GR_ARG_BLOCKS, GR_ARG_SHARE, GR_ARG_TRANSPORT, GR_ARG_JOIN_TIMEOUT };

struct gr_arg {
    const char *name; /* without dashes */
    enum gr_arg_kind kind;
    void *slot;       /* const char ** | int * | int * (0: auto) | double * (0: off) | int * (enum gr_transport_kind) |
                       * NULL */
    int64_t min, max; /* GR_ARG_INT */
    const char *help;
};

/* Exit status to leave with at once (0 after --help, 2 after a usage error), or -1: go on. */
int gr_args_parse(const char *program, const struct gr_arg *args, int n_arg, int argc, char **argv);

/* Of the time, what prompt chunks may take while other sessions decode (--prefill-share; docs/PERFORMANCE.md). */
#define GR_PREFILL_SHARE_DEFAULT 0.5

/* The row of --join-timeout, the same in every worker: it sets GRAFT_JOIN_TIMEOUT, which joining reads. */
#define GR_ARG_ROW_JOIN_TIMEOUT                                                                    \
    {"join-timeout", GR_ARG_JOIN_TIMEOUT, NULL, 0, 86400, "S        how long to try while no orchestrator is there "  \
                                                          "(default 60)"}

#endif
