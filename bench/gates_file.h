/* Performance gates: cells of the tables that benchmarks print, each with what it must reach. A file of them (JSON):
 *
 *   {"machine": "what they are meant for",
 *    "commands": {"NAME": {"run": ["stages", "--context", "2048"], "micro": true}, ...},
 *    "gates": [{"name": "64 rows at 2K", "command": "NAME", "row": {"stage": "verify", "rows": 64},
 *               "column": "median ms", "at_most": 4.1}, ...]}
 *
 * run: arguments of graft-bench, without -o. micro: it takes seconds, and goes before the long ones. row: the cells
 * that choose the row, texts (with * at their end: those that begin so) or numbers; exactly one must match. at_most or
 * at_least. */
#ifndef GR_BENCH_GATES_FILE_H
#define GR_BENCH_GATES_FILE_H

#include "common/base/status.h"

#include <jansson.h>
#include <stdbool.h>

#define GR_GATE_MAX 64         /* gates of a file, at most */
#define GR_GATE_COMMAND_MAX 32 /* commands of a file, at most */
#define GR_GATE_ARG_MAX 48     /* words of a command, at most */

struct gr_gate_command {
    const char *name;
    const char *arg[GR_GATE_ARG_MAX];
    int n_arg;
    bool micro;
};

struct gr_gate {
    const char *name, *column;
    json_t *row;
    int command; /* place in the list */
    bool at_most;
    double limit;
};

/* Texts and rows are borrowed from root, which the file owns. */
struct gr_gates_file {
    json_t *root;
    const char *machine; /* "" where it is not told */
    struct gr_gate_command command[GR_GATE_COMMAND_MAX];
    struct gr_gate gate[GR_GATE_MAX];
    int n_command, n_gate;
};

/* GR_EFORMAT, GR_ELIMIT: one line logged, with the file and the place in it. */
GR_NODISCARD enum gr_status gr_gates_load(const char *path, struct gr_gates_file *out);
void gr_gates_free(struct gr_gates_file *f);
/* The cell of a gate in what its command printed with -o json. GR_ENOTFOUND: there is no such cell, GR_EFORMAT: it is
 * no number; logged with `where`, the name of the results. */
GR_NODISCARD enum gr_status gr_gate_cell(const struct gr_gate *gate, const json_t *rows, const char *where,
                                         double *value_out);
bool gr_gate_is_met(const struct gr_gate *gate, double value);

#endif
