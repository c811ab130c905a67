#include "target_worker/policy/cost_table.h"

#include "common/base/status.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define LEARN_SCALE 0.05 /* share of an observation, for the speed */
#define N_FIRST 4        /* passes that may move the whole of an uncalibrated table */
#define RATIO_FIRST_MAX 100.0
#define RATIO_MAX 1.5   /* a pass that was held up teaches no more than this */
#define NOISE 0.1       /* of a pass, relative */
#define DOUBT_START 0.5 /* of f before it is calibrated, relative */
#define DOUBT_CALIBRATED 0.1
#define DOUBT_LEAST 0.03    /* of a value, relative: it is never surer than that, since the machine changes */
#define TRUST_FIRST 12      /* passes without a size after which its price is doubted */
#define TRUST_LAST 3072     /* the same of a size that has turned out right again and again */
#define TRUST_GROWTH 4      /* times that the trust of a size grows each time that it turns out right */
#define TRUE_WITHIN 0.15    /* of its estimate: a trial that has found the price right */
#define HOPE_FEWER 0.5      /* of its estimate: what a doubted size below all known ones takes at least */
#define PROPORTION_MAX 1.5  /* a pass of twice the rows takes at most so many times twice as long */
#define MUCH_CONTEXT 1024.0 /* tokens: below, attention is lost in the noise of the rest */
#define FLAT_ROWS 8.0       /* reading the keys costs more than so many rows' arithmetic on them */
#define LEAST_NS 1.0        /* of a pass: its parts may be learnt down to nothing, and prices divide each other */
#define ATTENTION_START (1.0 / 4096.0) /* doubt of g: of a pass of one row, for a token of context */

static const int32_t point_rows[GR_COST_TABLE_POINT] = {1,  2,  3,  4,  6,   8,   12,  16,  24,  32,
                                                        48, 64, 72, 96, 128, 136, 192, 256, 512, 1024};

/* Before anything is measured: 1 ms, ten rows for the price of two. Only the shape matters; the first passes fix it. */
void gr_cost_table_init(struct gr_cost_table *c)
{
    memset(c, 0, sizeof(*c));
    c->scale = 1.0;
    for (int i = 0; i < GR_COST_TABLE_POINT; i++) {
        c->row_ns[i] = 1e6 * (0.9 + 0.1 * point_rows[i]);
        c->row_var[i] = pow(DOUBT_START * c->row_ns[i], 2.0);
        c->trust[i] = TRUST_FIRST;
    }
    for (int k = 0; k < GR_COST_CONTEXT_POINT; k++) {
        const int32_t n_row = point_rows[k % GR_COST_TREE_POINT];
        c->context_var[k] = pow(ATTENTION_START * c->row_ns[0] * fmax(n_row / FLAT_ROWS, 1.0), 2.0);
    }
}

/* The point below n_row, of the first n_point, and the share of the next one. */
static int locate(int32_t n_row, int n_point, double *share)
{
    int i = 0;
    while (i + 2 < n_point && point_rows[i + 1] <= n_row) {
        i++;
    }
    *share = (double)(n_row - point_rows[i]) / (double)(point_rows[i + 1] - point_rows[i]);
    return i;
}

static double rows_ns(const struct gr_cost_table *c, int32_t n_row)
{
    double share = 0.0;
    const int i = locate(n_row, GR_COST_TABLE_POINT, &share);
    return c->row_ns[i] + share * (c->row_ns[i + 1] - c->row_ns[i]);
}

/* Measured values at points: linear between them, beyond the last at least in proportion. */
static double interpolate(int n, const int32_t *n_row, const double *value, int32_t at)
{
    int k = 0;
    while (k + 2 < n && n_row[k + 1] < at) {
        k++;
    }
    const double slope = (value[k + 1] - value[k]) / (double)(n_row[k + 1] - n_row[k]);
    if (at <= n_row[n - 1]) {
        return value[k] + slope * (double)(at - n_row[k]);
    }
    /* Never measured: it must not be believed to be free. */
    return value[n - 1] + fmax(slope, value[n - 1] / (double)n_row[n - 1]) * (double)(at - n_row[n - 1]);
}

/* More rows never cost less; `at` is where something was learnt. */
static void keep_rising(double *value, int n, int at)
{
    for (int k = at + 1; k < n; k++) {
        value[k] = fmax(value[k], value[k - 1]);
    }
    for (int k = at; k > 0; k--) {
        value[k - 1] = fmin(value[k - 1], value[k]);
    }
}

/* A size during whose measurement the machine did something else: more rows never take less, nor much more than in
 * proportion. */
static void drop_outliers(int n, const int32_t *n_row, const double *measured, double *ns)
{
    memcpy(ns, measured, (size_t)n * sizeof(*ns));
    for (int i = n - 2; i >= 0; i--) {
        ns[i] = fmin(ns[i], ns[i + 1]);
    }
    for (int i = 1; i < n; i++) {
        ns[i] = fmin(ns[i], PROPORTION_MAX * ns[i - 1] * n_row[i] / n_row[i - 1]);
    }
}

void gr_cost_table_calibrate(struct gr_cost_table *c, int n, const int32_t *n_row, const double *measured)
{
    double ns[GR_COST_TABLE_POINT];
    GR_ASSERT(n >= 2 && n <= GR_COST_TABLE_POINT);
    drop_outliers(n, n_row, measured, ns);
    for (int i = 0; i < GR_COST_TABLE_POINT; i++) {
        c->row_ns[i] = interpolate(n, n_row, ns, point_rows[i]);
    }
    keep_rising(c->row_ns, GR_COST_TABLE_POINT, 0);
    for (int i = 0; i < GR_COST_TABLE_POINT; i++) {
        c->row_var[i] = pow((point_rows[i] <= n_row[n - 1] ? DOUBT_CALIBRATED : DOUBT_START) * c->row_ns[i], 2.0);
    }
    c->n_seen = N_FIRST; /* measured: single passes only correct it from here on */
}

double gr_cost_table_estimate(const struct gr_cost_table *c, const struct gr_pass_load *load)
{
    double ns = rows_ns(c, load->n_row);
    for (int i = 0; i < GR_COST_CONTEXT_POINT; i++) {
        ns += c->context_ns[i] * load->context[i];
    }
    return fmax(c->scale * ns, LEAST_NS);
}

static bool has_seen_views(const struct gr_cost_table *c)
{
    uint32_t n = 0;
    for (int k = GR_COST_TREE_POINT; k < GR_COST_CONTEXT_POINT; k++) {
        n |= c->n_context[k];
    }
    return n > 0;
}

/* The points of g nearest to k that passes have shown, of its kind; -1 and GR_COST_CONTEXT_POINT: none. */
struct neighbours {
    int below, above;
};

static struct neighbours seen_around(const struct gr_cost_table *c, int k)
{
    const int base = k / GR_COST_TREE_POINT * GR_COST_TREE_POINT;
    struct neighbours n = {k - 1, k + 1};
    while (n.below >= base && c->n_context[n.below] == 0) {
        n.below--;
    }
    while (n.above < base + GR_COST_TREE_POINT && c->n_context[n.above] == 0) {
        n.above++;
    }
    n.below = n.below < base ? -1 : n.below;
    n.above = n.above == base + GR_COST_TREE_POINT ? GR_COST_CONTEXT_POINT : n.above;
    return n;
}

static bool is_between(struct neighbours n)
{
    return n.below >= 0 && n.above < GR_COST_CONTEXT_POINT;
}

/* Points of g that no pass has shown yet follow the one that a pass has: flat to FLAT_ROWS, then in proportion, but not
 * past what is known on both sides: a guess moves no knowledge. */
static void guess_unseen(struct gr_cost_table *c, int from)
{
    const int base = from / GR_COST_TREE_POINT * GR_COST_TREE_POINT;
    const double unit = c->context_ns[from] / fmax(point_rows[from - base], FLAT_ROWS);
    for (int k = base; k < base + GR_COST_TREE_POINT; k++) {
        const struct neighbours n = seen_around(c, k);
        const double least = n.below >= 0 ? c->context_ns[n.below] : 0.0;
        const double most = n.above < GR_COST_CONTEXT_POINT ? c->context_ns[n.above] : HUGE_VAL;
        if (c->n_context[k] == 0) {
            c->context_ns[k] = fmin(fmax(unit * fmax(point_rows[k - base], FLAT_ROWS), least), most);
            c->context_var[k] =
                is_between(n) ? pow(0.5 * (most - least) + DOUBT_CALIBRATED * most, 2.0) : c->context_var[k];
        }
    }
    if (!has_seen_views(c)) {
        memcpy(c->context_ns + GR_COST_TREE_POINT, c->context_ns, GR_COST_TREE_POINT * sizeof(c->context_ns[0]));
    }
}

/* A part of an estimate: its value, how unsure it is (variance), and what the pass multiplies it with. */
struct part {
    double *value, *variance;
    double input;
};

/* i, share: where f lies, by locate(). */
static int parts_of(struct gr_cost_table *c, const struct gr_pass_load *load, int i, double share, struct part *part)
{
    int n = 0;
    part[n++] = (struct part){&c->row_ns[i], &c->row_var[i], 1.0 - share};
    part[n++] = (struct part){&c->row_ns[i + 1], &c->row_var[i + 1], share};
    for (int k = 0; k < GR_COST_CONTEXT_POINT; k++) {
        if (load->context[k] > 0.0) {
            part[n++] = (struct part){&c->context_ns[k], &c->context_var[k], load->context[k]};
        }
    }
    return n;
}

/* A Kalman step with independent parts: the error goes where the doubt is. */
static void learn_shape(struct gr_cost_table *c, const struct gr_pass_load *load, double expected, double error)
{
    struct part part[2 + GR_COST_CONTEXT_POINT];
    double share = 0.0;
    const int i_row = locate(GR_MAX(load->n_row, 1), GR_COST_TABLE_POINT, &share);
    const int n = parts_of(c, load, i_row, share, part);
    double variance = pow(NOISE * expected, 2.0);
    for (int i = 0; i < n; i++) {
        variance += part[i].input * part[i].input * *part[i].variance;
    }
    for (int i = 0; i < n; i++) {
        const double gain = *part[i].variance * part[i].input / variance;
        *part[i].value = fmax(*part[i].value + gain * error, 0.0);
        *part[i].variance *= fmax(1.0 - gain * part[i].input, 0.0);
        *part[i].variance = fmax(*part[i].variance, pow(DOUBT_LEAST * *part[i].value, 2.0)); /* the machine changes */
    }
    keep_rising(c->row_ns, GR_COST_TABLE_POINT, i_row + 1);
    for (int k = 0; k < GR_COST_CONTEXT_POINT; k++) {
        const int base = k / GR_COST_TREE_POINT * GR_COST_TREE_POINT;
        if (load->context[k] > 0.0) {
            keep_rising(c->context_ns + base, GR_COST_TREE_POINT, k - base);
        }
    }
}

/* The point at which this pass attends most; -1: hardly any. */
static int main_context(const struct gr_pass_load *load)
{
    int most = 0;
    for (int k = 1; k < GR_COST_CONTEXT_POINT; k++) {
        most = load->context[k] > load->context[most] ? k : most;
    }
    return load->context[most] >= MUCH_CONTEXT ? most : -1;
}

static double bounded(double ratio, double most)
{
    return fmin(fmax(ratio, 1.0 / most), most);
}

/* ---- what is doubted ---- */

static bool is_doubted(const struct gr_cost_table *c, int i)
{
    return c->n_seen - c->shown_at[i] >= c->trust[i];
}

/* A pass had this size, and took so much more or less than was estimated, relative. */
static void show_point(struct gr_cost_table *c, int i, double error)
{
    if (fabs(error) > TRUE_WITHIN) {
        c->trust[i] = TRUST_FIRST;
    } else if (is_doubted(c, i)) {
        c->trust[i] = GR_MIN(TRUST_GROWTH * c->trust[i], (uint32_t)TRUST_LAST);
    }
    c->shown_at[i] = c->n_seen;
}

static void show_size(struct gr_cost_table *c, int32_t n_row, double error)
{
    double share = 0.0;
    const int i = locate(GR_MAX(n_row, 1), GR_COST_TABLE_POINT, &share);
    if (share < 1.0) {
        show_point(c, i, error);
    }
    if (share > 0.0) {
        show_point(c, i + 1, error);
    }
}

/* The nearest sizes of a tree around point i that are not doubted; below -1, above GR_COST_TREE_POINT: none. */
static struct neighbours known_around(const struct gr_cost_table *c, int i)
{
    struct neighbours n = {i - 1, i + 1};
    while (n.below >= 0 && is_doubted(c, n.below)) {
        n.below--;
    }
    while (n.above < GR_COST_TREE_POINT && is_doubted(c, n.above)) {
        n.above++;
    }
    return n;
}

/* A line through two sizes, at n_row. */
static double line_ns(const struct gr_cost_table *c, int from, int to, int32_t n_row)
{
    const double slope = (c->row_ns[to] - c->row_ns[from]) / (double)(point_rows[to] - point_rows[from]);
    return c->row_ns[from] + slope * (double)(n_row - point_rows[from]);
}

/* What n_row rows may take by the sizes that are known, where point i, which they lie at or below, is doubted. */
static double hoped_ns(const struct gr_cost_table *c, int i, int32_t n_row)
{
    const struct neighbours n = known_around(c, i);
    const double estimate_ns = rows_ns(c, n_row);
    if (n.above < GR_COST_TREE_POINT && n.below >= 0) {
        return line_ns(c, n.below, n.above, n_row);
    }
    if (n.above < GR_COST_TREE_POINT) { /* fewer than known: at least in proportion, and by half at most */
        return fmax(HOPE_FEWER * estimate_ns, c->row_ns[n.above] * n_row / point_rows[n.above]);
    }
    if (n.below > 0) {
        return line_ns(c, 0, n.below, n_row);
    }
    return i == 1 ? c->row_ns[0] : estimate_ns; /* only one row is known: a second one may be free */
}

/* How much less the rows of a pass may take than the table says, in ns: 0 where nothing is doubted. Only sizes that one
 * session's tree can have: passes of many sessions are all shown soon, and a trial would cost all of them. */
static double doubted_ns(const struct gr_cost_table *c, int32_t n_row)
{
    double share = 0.0;
    const int i = locate(GR_MAX(n_row, 1), GR_COST_TABLE_POINT, &share);
    const int at = share > 0.0 ? i + 1 : i;
    return at < GR_COST_TREE_POINT && is_doubted(c, at)
               ? c->scale * fmax(rows_ns(c, n_row) - hoped_ns(c, at, n_row), 0.0)
               : 0.0;
}

void gr_cost_table_observe(struct gr_cost_table *c, const struct gr_pass_load *load, double ns)
{
    const double ratio = ns / gr_cost_table_estimate(c, load);
    const int k = main_context(load);
    /* The first passes of an uncalibrated table say more than its guess: they move all of it. */
    if (c->n_seen++ < N_FIRST && (ratio > 2.0 || ratio < 0.5)) {
        c->scale *= bounded(ratio, RATIO_FIRST_MAX);
        return;
    }
    /* Nothing is known of attention yet, not even on both sides. */
    const bool first = k >= 0 && c->n_context[k] < N_FIRST && !is_between(seen_around(c, k));
    if (!first) {
        c->scale *= 1.0 + LEARN_SCALE * (bounded(ratio, RATIO_MAX) - 1.0);
    }
    const double expected = gr_cost_table_estimate(c, load);
    const double error = bounded(ns / expected, first ? RATIO_FIRST_MAX : RATIO_MAX) - 1.0;
    show_size(c, load->n_row, error);
    learn_shape(c, load, expected / c->scale, error * expected / c->scale);
    if (k >= 0) {
        c->n_context[k] += c->n_context[k] < UINT32_MAX;
        guess_unseen(c, k);
    }
}

void gr_pass_load_add(struct gr_pass_load *load, int32_t n_row, struct gr_attended context)
{
    double *to = load->context + (context.view ? GR_COST_TREE_POINT : 0);
    load->n_row += n_row;
    if (n_row > GR_TREE_MAX) { /* prompt chunks: in proportion */
        to[GR_COST_TREE_POINT - 1] += (double)context.n_token * n_row / GR_TREE_MAX;
        return;
    }
    double share = 0.0;
    const int i = locate(GR_MAX(n_row, 1), GR_COST_TREE_POINT, &share);
    to[i] += (1.0 - share) * context.n_token;
    to[i + 1] += share * context.n_token;
}

struct gr_pass_load gr_pass_load_sum(const struct gr_pass_load *a, const struct gr_pass_load *b)
{
    struct gr_pass_load load = *a;
    load.n_row += b->n_row;
    for (int k = 0; k < GR_COST_CONTEXT_POINT; k++) {
        load.context[k] += b->context[k];
    }
    return load;
}

static uint32_t whole_ns(double ns)
{
    return !(ns > 0.0) ? 0 : ns > 4e9 ? 4000000000u : (uint32_t)ns;
}

/* Keeps out rising and without doubles. */
static int insert_rows(int32_t *out, int n, int32_t n_row)
{
    int at = n;
    while (at > 0 && out[at - 1] > n_row) {
        at--;
    }
    if (n == GR_COST_POINT_MAX || n_row < 1 || n_row > GR_TREE_MAX || (at > 0 && out[at - 1] == n_row)) {
        return n;
    }
    memmove(&out[at + 1], &out[at], (size_t)(n - at) * sizeof(*out));
    out[at] = n_row;
    return n + 1;
}

int gr_cost_list_rows(int32_t n_other_row, int n_alike, int32_t out[GR_COST_POINT_MAX])
{
    static const int32_t step[] = {64, 128, 256};
    memcpy(out, point_rows, GR_COST_TREE_POINT * sizeof(*out));
    int n = GR_COST_TREE_POINT;
    for (size_t i = 0; i < GR_ARRAY_LEN(step); i++) {
        const int32_t most = (step[i] - n_other_row) / GR_MAX(n_alike, 1); /* of one, before the step */
        n = insert_rows(out, n, most + 1);
        n = insert_rows(out, n, most);
    }
    return n;
}

void gr_cost_table_list(const struct gr_cost_table *c, int n, const int32_t *n_row, const struct gr_pass_load *load,
                        double overhead_ns, struct gr_cost *out)
{
    double least_ns = LEAST_NS;
    memset(out, 0, sizeof(*out));
    out->overhead_ns = whole_ns(overhead_ns);
    out->n_point = (uint32_t)n;
    for (int i = 0; i < n; i++) {
        least_ns = fmax(least_ns, gr_cost_table_estimate(c, &load[i]) - doubted_ns(c, load[i].n_row));
        out->n_row[i] = (uint32_t)n_row[i];
        out->pass_ns[i] = whole_ns(least_ns);
    }
}
