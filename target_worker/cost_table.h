/* What a target pass costs, learned from passes: f(rows) at points, linear between them, plus attention, which grows with
 * the context: a * (sum of contexts) + b * (sum of rows * context). Calibrated at start when there is time, corrected by
 * every pass since: each observation scales what it rested on towards what was measured. Pure. */
#ifndef GR_TARGET_WORKER_COST_TABLE_H
#define GR_TARGET_WORKER_COST_TABLE_H

#include "common/wire.h"

#include <stdint.h>

#define GR_COST_TABLE_POINT 17

/* What one pass does. */
struct gr_pass_load {
    int32_t n_row;         /* of all sessions */
    double context;        /* sum over sessions of the tokens they attend to */
    double row_context;    /* sum over sessions of rows * context */
};

struct gr_cost_table {
    double row_ns[GR_COST_TABLE_POINT]; /* pass of so many rows (gr_cost_table_rows), no context */
    double context_ns, row_context_ns;  /* a, b */
    double scale;                       /* of all of them: the machine's speed at present */
    uint64_t n_seen;
};

void gr_cost_table_init(struct gr_cost_table *c);
/* Rows of point i: 1 2 3 4 6 8 12 16 24 32 48 64 96 128 256 512 1024. */
int32_t gr_cost_table_rows(int i);
/* Measured passes without context, n_row increasing, n >= 2: linear between them; beyond the last at
 * least in proportion. */
void gr_cost_table_calibrate(struct gr_cost_table *c, int n, const int32_t *n_row, const double *ns);
/* Two measured passes at some context, after gr_cost_table_calibrate(): what they cost above f(rows) gives a and b. */
void gr_cost_table_set_context(struct gr_cost_table *c, const struct gr_pass_load *few, double few_ns,
                               const struct gr_pass_load *many, double many_ns);
double gr_cost_table_estimate(const struct gr_cost_table *c, const struct gr_pass_load *load);
void gr_cost_table_observe(struct gr_cost_table *c, const struct gr_pass_load *load, double ns);
/* One more session of `context` tokens and n_row rows on top of what the others bring. */
struct gr_pass_load gr_pass_load_add(const struct gr_pass_load *others, int32_t n_row, int32_t context);
/* The price list of a session at `context` tokens: COST's points for 1 .. 64 rows. */
void gr_cost_table_list(const struct gr_cost_table *c, const struct gr_pass_load *others, int32_t context,
                        double overhead_ns, struct gr_cost *out);

#endif
