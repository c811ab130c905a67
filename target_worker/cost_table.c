#include "target_worker/cost_table.h"

#include "common/status.h"

#include <math.h>
#include <string.h>

#define LEARN 0.1           /* share of an observation, for the shape */
#define LEARN_SCALE 0.05    /* and for the speed */
#define N_FIRST 4           /* passes that may move the whole of an uncalibrated table */
#define RATIO_FIRST_MAX 100.0
#define RATIO_MAX 1.5       /* a pass that was held up teaches no more than this */
#define ATTENTION_FLOOR (1.0 / 4096.0) /* of a pass of one row, for a token of context: where learning may start */

static const int32_t point_rows[GR_COST_TABLE_POINT] = {1,  2,  3,  4,  6,   8,   12,  16,  24,
                                                        32, 48, 64, 96, 128, 256, 512, 1024};

int32_t gr_cost_table_rows(int i)
{
    return point_rows[i];
}

/* Before anything is measured: 1 ms, ten rows for the price of two. Only the shape matters; the first passes fix it. */
void gr_cost_table_init(struct gr_cost_table *c)
{
    memset(c, 0, sizeof(*c));
    c->scale = 1.0;
    for (int i = 0; i < GR_COST_TABLE_POINT; i++) {
        c->row_ns[i] = 1e6 * (0.9 + 0.1 * point_rows[i]);
    }
}

/* Point below n_row and the share of the next one. */
static int locate(int32_t n_row, double *share)
{
    int i = 0;
    while (i + 2 < GR_COST_TABLE_POINT && point_rows[i + 1] <= n_row) {
        i++;
    }
    *share = (double)(n_row - point_rows[i]) / (double)(point_rows[i + 1] - point_rows[i]);
    return i;
}

static double rows_ns(const struct gr_cost_table *c, int32_t n_row)
{
    double share = 0.0;
    const int i = locate(n_row, &share);
    return c->row_ns[i] + share * (c->row_ns[i + 1] - c->row_ns[i]);
}

void gr_cost_table_calibrate(struct gr_cost_table *c, int n, const int32_t *n_row, const double *ns)
{
    int k = 0;
    GR_ASSERT(n >= 2);
    for (int i = 0; i < GR_COST_TABLE_POINT; i++) {
        while (k + 2 < n && n_row[k + 1] < point_rows[i]) {
            k++;
        }
        double slope = (ns[k + 1] - ns[k]) / (double)(n_row[k + 1] - n_row[k]);
        c->row_ns[i] = ns[k] + slope * (double)(point_rows[i] - n_row[k]);
        if (point_rows[i] > n_row[n - 1]) { /* never measured: in proportion at least, so that it is not believed to be free */
            slope = fmax(slope, ns[n - 1] / (double)n_row[n - 1]);
            c->row_ns[i] = ns[n - 1] + slope * (double)(point_rows[i] - n_row[n - 1]);
        }
    }
    for (int i = 1; i < GR_COST_TABLE_POINT; i++) {
        c->row_ns[i] = fmax(c->row_ns[i], c->row_ns[i - 1]);
    }
    c->n_seen = N_FIRST; /* measured: single passes only correct it from here on */
}

void gr_cost_table_set_context(struct gr_cost_table *c, const struct gr_pass_load *few, double few_ns,
                               const struct gr_pass_load *many, double many_ns)
{
    /* Two equations: above = a * context + b * row_context. */
    const double above_few = fmax(few_ns - rows_ns(c, few->n_row), 0.0);
    const double above_many = fmax(many_ns - rows_ns(c, many->n_row), 0.0);
    const double det = few->context * many->row_context - many->context * few->row_context;
    if (fabs(det) < 1.0) {
        return;
    }
    c->context_ns = fmax((above_few * many->row_context - above_many * few->row_context) / det, 0.0);
    c->row_context_ns = fmax((few->context * above_many - many->context * above_few) / det, 0.0);
}

double gr_cost_table_estimate(const struct gr_cost_table *c, const struct gr_pass_load *load)
{
    return c->scale *
           (rows_ns(c, load->n_row) + c->context_ns * load->context + c->row_context_ns * load->row_context);
}

/* Moves the parts of an estimate towards what was measured, each by its share of it (a normalised least mean squares step
 * with steps in proportion to the parts' sizes; attention may grow from nothing). */
static void learn_shape(struct gr_cost_table *c, const struct gr_pass_load *load, double error_ns)
{
    double share = 0.0;
    const int i = locate(GR_MAX(load->n_row, 1), &share);
    const double floor_ns = c->row_ns[0] * ATTENTION_FLOOR;
    double *const part[4] = {&c->row_ns[i], &c->row_ns[i + 1], &c->context_ns, &c->row_context_ns};
    const double input[4] = {1.0 - share, share, load->context, load->row_context};
    const double size[4] = {c->row_ns[i], c->row_ns[i + 1], fmax(c->context_ns, floor_ns),
                            fmax(c->row_context_ns, 0.1 * floor_ns)};
    double norm = 0.0;
    for (int k = 0; k < 4; k++) {
        norm += input[k] * input[k] * size[k] * size[k];
    }
    for (int k = 0; k < 4; k++) {
        *part[k] = fmax(*part[k] + LEARN * error_ns * input[k] * size[k] * size[k] / norm, 0.0);
    }
    /* More rows never cost less: an observation pulls its neighbours along. */
    for (int k = i + 1; k + 1 < GR_COST_TABLE_POINT; k++) {
        c->row_ns[k + 1] = fmax(c->row_ns[k + 1], c->row_ns[k]);
    }
    for (int k = i + 1; k > 0; k--) {
        c->row_ns[k - 1] = fmin(c->row_ns[k - 1], c->row_ns[k]);
    }
}

void gr_cost_table_observe(struct gr_cost_table *c, const struct gr_pass_load *load, double ns)
{
    const double ratio = ns / gr_cost_table_estimate(c, load);
    /* The first passes of an uncalibrated table say more than its guess: they move all of it. */
    if (c->n_seen++ < N_FIRST && (ratio > 2.0 || ratio < 0.5)) {
        c->scale *= fmin(fmax(ratio, 1.0 / RATIO_FIRST_MAX), RATIO_FIRST_MAX);
        return;
    }
    c->scale *= 1.0 + LEARN_SCALE * (fmin(fmax(ratio, 1.0 / RATIO_MAX), RATIO_MAX) - 1.0);
    const double expected = gr_cost_table_estimate(c, load);
    const double error = fmin(fmax(ns / expected, 1.0 / RATIO_MAX), RATIO_MAX) - 1.0;
    learn_shape(c, load, error * expected / c->scale);
}

struct gr_pass_load gr_pass_load_add(const struct gr_pass_load *others, int32_t n_row, int32_t context)
{
    return (struct gr_pass_load){.n_row = others->n_row + n_row,
                                 .context = others->context + (double)context,
                                 .row_context = others->row_context + (double)n_row * (double)context};
}

static uint32_t whole_ns(double ns)
{
    return ns < 0.0 ? 0 : ns > 4e9 ? 4000000000u : (uint32_t)ns;
}

void gr_cost_table_list(const struct gr_cost_table *c, const struct gr_pass_load *others, int32_t context,
                        double overhead_ns, struct gr_cost *out)
{
    memset(out, 0, sizeof(*out));
    out->overhead_ns = whole_ns(overhead_ns);
    for (int i = 0; point_rows[i] <= GR_TREE_MAX; i++) {
        const struct gr_pass_load load = gr_pass_load_add(others, point_rows[i], context);
        out->n_row[out->n_point] = (uint32_t)point_rows[i];
        out->pass_ns[out->n_point++] = whole_ns(gr_cost_table_estimate(c, &load));
    }
}
