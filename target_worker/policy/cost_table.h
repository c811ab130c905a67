/* What a target pass costs, learned from passes: f(rows of all sessions) at points, linear between them, plus
 * attention: for each session its context times g(its rows), at points, too (flat while the keys are read, rising when
 * arithmetic binds). f is calibrated at start when there is time; g is learnt from real passes, prompt chunks first;
 * every pass corrects the parts it rested on. A size of f that no pass has shown for a while is doubted: it was
 * measured when the machine did something else, perhaps. A price list then takes for it what the sizes that passes do
 * show make likely, so that a size which looks dear is tried again soon; where it turns out as dear as it looked, the
 * next trial is four times as far away. Rows under a view (SpecPV) have a g of their own: their keys lie in
 * lists of blocks, another one for each KV head; until such a pass has been seen it is as the other. Pure.
 * Decisions D-043, D-055. */
#ifndef GR_TARGET_WORKER_POLICY_COST_TABLE_H
#define GR_TARGET_WORKER_POLICY_COST_TABLE_H

#include "common/protocol/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* Of f: 1 2 3 4 6 8 12 16 24 32 48 64 72 96 128 136 192 256 512 1024 rows. A GPU's passes get dearer by steps after 64
 * and 128 rows. */
#define GR_COST_TABLE_POINT 20
#define GR_COST_TREE_POINT 12                          /* of g: those up to 64 */
#define GR_COST_CONTEXT_POINT (2 * GR_COST_TREE_POINT) /* under full attention, then under a view */

/* What one pass does. */
struct gr_pass_load {
    int32_t n_row;                         /* of all sessions */
    double context[GR_COST_CONTEXT_POINT]; /* tokens attended to, by the point of the session's rows */
};

struct gr_cost_table {
    double row_ns[GR_COST_TABLE_POINT];                                      /* f */
    double context_ns[GR_COST_CONTEXT_POINT];                                /* g: a token of context */
    double row_var[GR_COST_TABLE_POINT], context_var[GR_COST_CONTEXT_POINT]; /* how unsure they are: variances */
    double scale;                              /* of all of them: the machine's speed at present */
    uint64_t n_seen;                           /* passes */
    uint64_t shown_at[GR_COST_TABLE_POINT];    /* n_seen when a pass last had this size */
    uint32_t trust[GR_COST_TABLE_POINT];       /* passes without it after which it is doubted */
    uint32_t n_context[GR_COST_CONTEXT_POINT]; /* of them with much attention at this point */
};

void gr_cost_table_init(struct gr_cost_table *c);
/* Measured passes without context, n_row increasing, n >= 2: linear between them; beyond the last at
 * least in proportion. */
void gr_cost_table_calibrate(struct gr_cost_table *c, int n, const int32_t *n_row, const double *ns);
/* At least 1. */
double gr_cost_table_estimate(const struct gr_cost_table *c, const struct gr_pass_load *load);
void gr_cost_table_observe(struct gr_cost_table *c, const struct gr_pass_load *load, double ns);
/* What a session's rows attend to. */
struct gr_attended {
    int32_t n_token;
    bool view; /* a partial one */
};
/* One more session, of n_row rows. */
void gr_pass_load_add(struct gr_pass_load *load, int32_t n_row, struct gr_attended context);
/* The sessions of both in one pass. */
struct gr_pass_load gr_pass_load_sum(const struct gr_pass_load *a, const struct gr_pass_load *b);
static inline struct gr_attended gr_attends_all(int32_t n_token)
{
    return (struct gr_attended){.n_token = n_token};
}
/* The points of a price list, rising: 1 .. 64 rows of a session, those on both sides of a step among them, where
 * n_alike sessions have as many rows and others n_other_row together. Returns how many. */
int gr_cost_list_rows(int32_t n_other_row, int n_alike, int32_t out[GR_COST_POINT_MAX]);
/* A session's price list, COST's: load[i] is that of a pass in which it has n_row[i] rows. n <= GR_COST_POINT_MAX. A
 * doubted size is told as on the line through one row and the largest size of a tree that is not doubted, where that is
 * less than its estimate. Prices never fall with the rows. */
void gr_cost_table_list(const struct gr_cost_table *c, int n, const int32_t *n_row, const struct gr_pass_load *load,
                        double overhead_ns, struct gr_cost *out);

#endif
