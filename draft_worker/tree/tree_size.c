#include "draft_worker/tree/tree_size.h"

#include "common/base/status.h"

#include <string.h>

#define LEVEL_WEIGHT 0.125f /* weight of a new measurement in the mean */
#define LEVEL_SPIKE 4.0f    /* times the mean that a measurement counts at most: beyond, the thread was preempted */
#define LEVEL_OLD 16u       /* measurements of other sizes after which a size follows them */
#define YIELD_WEIGHT 0.03125f
#define YIELD_PRIOR 8.0f /* counts that what roots yield, which every tree shows, is worth to another class */

/* Before anything is known: a draft that is right six times in ten. */
static const float yield_start[GR_RANK_CLASSES] = {0.6f, 0.12f, 0.05f, 0.03f};

/* ---- what a round costs ---- */

void gr_round_cost_init(struct gr_round_cost *r, const struct gr_cost *c, float rate)
{
    uint32_t k = 0;
    r->rate = rate;
    r->overhead_ns = (float)c->overhead_ns;
    r->pass_ns[0] = 0.0f;
    for (uint32_t n = 1; n <= GR_TREE_MAX; n++) {
        while (k + 2 < c->n_point && c->n_row[k + 1] < n) {
            k++;
        }
        float ns = c->n_point > 0 ? (float)c->pass_ns[k] : 0.0f;
        if (c->n_point > 1) {
            const float slope =
                ((float)c->pass_ns[k + 1] - (float)c->pass_ns[k]) / (float)(c->n_row[k + 1] - c->n_row[k]);
            ns += slope * ((float)n - (float)c->n_row[k]);
        }
        r->pass_ns[n] = GR_MAX(ns, r->pass_ns[n - 1]); /* a longer pass that measured shorter is noise */
    }
    if (rate > 0.0f) {
        r->rate = GR_MAX(rate, 1.0f / GR_MAX(r->overhead_ns + r->pass_ns[1], 1.0f));
    }
}

/* ---- what a level costs and brings ---- */

float gr_level_ns(const struct gr_level_model *m, int n_row)
{
    if (n_row > GR_LEVEL_ROW_MAX) {
        const float most = gr_level_ns(m, GR_LEVEL_ROW_MAX);
        const float each = (most - gr_level_ns(m, 1)) / (float)(GR_LEVEL_ROW_MAX - 1);
        return most + each * (float)(n_row - GR_LEVEL_ROW_MAX);
    }
    int below = n_row;
    int above = n_row;
    while (below > 0 && m->ns[below] == 0.0f) {
        below--;
    }
    while (above <= GR_LEVEL_ROW_MAX && m->ns[above] == 0.0f) {
        above++;
    }
    if (below > 0 && above <= GR_LEVEL_ROW_MAX) {
        const float part = above == below ? 0.0f : (float)(n_row - below) / (float)(above - below);
        return m->ns[below] + part * (m->ns[above] - m->ns[below]);
    }
    if (above <= GR_LEVEL_ROW_MAX) {
        return m->ns[above]; /* fewer rows than ever seen */
    }
    /* More rows than ever seen: half of the time is taken to grow with them. Nothing seen: free, so it is tried. */
    return below > 0 ? m->ns[below] * (0.5f + 0.5f * (float)n_row / (float)below) : 0.0f;
}

/* Fewer rows never take longer, and more take at most in proportion. So the common small passes put right a large one
 * that was measured while the thread was preempted, and is not run again as long as it looks dear. */
static void bound_by(struct gr_level_model *m, int n_row)
{
    const float ns = m->ns[n_row];
    for (int n = 1; n < n_row; n++) {
        m->ns[n] = GR_MIN(m->ns[n], ns);
    }
    for (int n = n_row + 1; n <= GR_LEVEL_ROW_MAX; n++) {
        m->ns[n] = GR_MIN(m->ns[n], ns * (float)n / (float)n_row);
    }
}

static void take_old_along(struct gr_level_model *m, int n_row, float ratio)
{
    m->seen_at[n_row] = ++m->n_level;
    for (int n = 1; n <= GR_LEVEL_ROW_MAX; n++) {
        if (m->n_level - m->seen_at[n] > LEVEL_OLD) {
            m->ns[n] *= ratio;
        }
    }
}

void gr_level_observe_ns(struct gr_level_model *m, int n_row, float ns)
{
    if (n_row < 1 || n_row > GR_LEVEL_ROW_MAX) {
        return;
    }
    float *mean = &m->ns[n_row];
    const float before = *mean;
    if (*mean == 0.0f) {
        *mean = GR_MAX(ns, 1.0f);
    } else { /* the first ones count alike: caches were cold */
        const float alike = 1.0f / (float)(m->n_seen[n_row] + 1);
        *mean += GR_MAX(alike, LEVEL_WEIGHT) * (GR_MIN(ns, LEVEL_SPIKE * *mean) - *mean);
    }
    if (m->n_seen[n_row] < UINT8_MAX) {
        m->n_seen[n_row]++;
    }
    take_old_along(m, n_row, before > 0.0f ? *mean / before : 1.0f);
    bound_by(m, n_row);
}

static int sureness_of(float prob)
{
    return prob < 0.0f ? GR_SURENESS_ROOT : prob < 0.25f ? 0 : prob < 0.6f ? 1 : prob < 0.9f ? 2 : 3;
}

void gr_level_observe_yield(struct gr_level_model *m, float parent_prob, int n, const float *prob)
{
    const int s = sureness_of(parent_prob);
    /* The first rows count in full, so that the start is soon forgotten. */
    const float first = 1.0f / (float)(m->n_yield[s] + 1);
    const float weight = GR_MAX(first, YIELD_WEIGHT);
    m->n_yield[s] += m->n_yield[s] < UINT32_MAX;
    for (int r = 0; r < GR_RANK_CLASSES; r++) {
        m->yield[s][r] += weight * ((r < n ? prob[r] : 0.0f) - m->yield[s][r]);
    }
}

static void expected_yield(const struct gr_level_model *m, float parent_prob, float out[GR_RANK_CLASSES])
{
    const int s = sureness_of(parent_prob);
    const float *prior = m->n_yield[GR_SURENESS_ROOT] > 0 ? m->yield[GR_SURENESS_ROOT] : yield_start;
    const float n = (float)GR_MIN(m->n_yield[s], 1000u);
    for (int r = 0; r < GR_RANK_CLASSES; r++) {
        out[r] = (n * m->yield[s][r] + YIELD_PRIOR * prior[r]) / (n + YIELD_PRIOR);
    }
}

/* ---- decisions ---- */

/* At a given rate: the most tokens less the price of the pass. */
static int size_at_rate(const struct gr_round_cost *r, const float *p, int n)
{
    float value = 0.0f;
    float best_value = 0.0f;
    int best = 0;
    for (int i = 0; i < n; i++) {
        value += p[i] - r->rate * (r->pass_ns[i + 2] - r->pass_ns[i + 1]);
        if (value > best_value) {
            best_value = value;
            best = i + 1;
        }
    }
    return best;
}

int gr_tree_size(const struct gr_round_cost *r, float draft_ns, const float *p, int n, float *rate_out)
{
    if (r->rate > 0.0f) {
        *rate_out = r->rate;
        return size_at_rate(r, p, n);
    }
    const float fixed_ns = draft_ns + r->overhead_ns;
    float sum = 1.0f;
    float best_sum = 1.0f;
    float best_ns = GR_MAX(fixed_ns + r->pass_ns[1], 1.0f);
    int best = 0;
    for (int i = 0; i < n; i++) {
        sum += p[i];
        const float ns = fixed_ns + r->pass_ns[i + 2];
        if (sum * best_ns > best_sum * ns) {
            best = i + 1;
            best_sum = sum;
            best_ns = ns;
        }
    }
    *rate_out = best_sum / best_ns;
    return best;
}

/* What a candidate's children are expected to add at a rate, each paying for its own row of the pass. */
static float expected_gain(const struct gr_level_model *m, const struct gr_open_candidate *c, float node_price)
{
    float yield[GR_RANK_CLASSES];
    float gain = 0.0f;
    expected_yield(m, c->prob, yield);
    for (int r = 0; r < GR_RANK_CLASSES; r++) {
        gain += GR_MAX(c->score * yield[r] - node_price, 0.0f);
    }
    return gain;
}

static int insert_falling(float *p, int n, int n_max, float value)
{
    if (n == n_max) {
        if (n == 0 || !(value > p[n - 1])) {
            return n;
        }
        n--;
    }
    int at = n;
    while (at > 0 && value > p[at - 1]) {
        p[at] = p[at - 1];
        at--;
    }
    p[at] = value;
    return n + 1;
}

/* ---- the next level of a job's trees ---- */

static float gain_of_next(const struct gr_level_model *m, const struct gr_front *f)
{
    return f->n_tried < f->n_open ? expected_gain(m, &f->open[f->n_tried], f->node_price) : 0.0f;
}

static void rewind_front(const struct gr_level_model *m, struct gr_front *f)
{
    f->n_tried = 0;
    f->gain = gain_of_next(m, f);
}

static void begin_front(const struct gr_level_model *m, float draft_ns, struct gr_front *f)
{
    const struct gr_round_cost *r = f->cost;
    const int size = gr_tree_size(r, draft_ns, f->p, f->n, &f->rate);
    const int row = GR_MIN(size + 1, GR_TREE_MAX - 1);
    /* It would push out the last one. */
    const float slot_price = size < f->n_max ? 0.0f : size > 0 ? f->p[size - 1] : 1.0f;
    f->node_price = GR_MAX(slot_price, f->rate * (r->pass_ns[row + 1] - r->pass_ns[row]));
    f->n_row = 0;
    rewind_front(m, f);
}

/* The tree whose next row brings most; NULL: no row of any brings something. */
static struct gr_front *best_front(struct gr_front *front, int n_front)
{
    struct gr_front *best = &front[0];
    for (int i = 1; i < n_front; i++) {
        best = front[i].gain > best->gain ? &front[i] : best;
    }
    return best->gain > 0.0f ? best : NULL;
}

static void try_next_row(const struct gr_level_model *m, struct gr_front *f)
{
    f->n_tried++;
    f->gain = gain_of_next(m, f);
}

/* How many rows of all trees, best first: the most gain less the price of their time. */
static int choose_rows(const struct gr_level_model *m, float rate, int n_row_more, struct gr_front *front, int n_front)
{
    const float paid_ns = n_row_more > 0 ? gr_level_ns(m, n_row_more) : 0.0f;
    float gain = 0.0f;
    float best = 0.0f;
    int n_best = 0;
    struct gr_front *f;
    for (int n = 1; (f = best_front(front, n_front)) != NULL; n++) {
        gain += f->gain;
        const float value = gain - rate * (gr_level_ns(m, n_row_more + n) - paid_ns);
        n_best = value > best ? n : n_best;
        best = GR_MAX(value, best);
        try_next_row(m, f);
    }
    return n_best;
}

/* Where the rate is not known it is the tree's own: is that with the level better than without? */
static bool pays_alone(const struct gr_level_model *m, float draft_ns, const struct gr_front *f)
{
    float with[GR_NODE_MAX];
    float rate_with = 0.0f;
    int n_with = f->n;
    memcpy(with, f->p, (size_t)f->n * sizeof(with[0]));
    for (int i = 0; i < f->n_row; i++) {
        float yield[GR_RANK_CLASSES];
        expected_yield(m, f->open[i].prob, yield);
        for (int k = 0; k < GR_RANK_CLASSES && f->open[i].score * yield[k] > f->node_price; k++) {
            n_with = insert_falling(with, n_with, f->n_max, f->open[i].score * yield[k]);
        }
    }
    (void)gr_tree_size(f->cost, draft_ns + gr_level_ns(m, f->n_row), with, n_with, &rate_with);
    return rate_with > f->rate;
}

void gr_tree_size_next_level(const struct gr_level_model *m, float draft_ns, int n_row_more, struct gr_front *front,
                             int n_front)
{
    float rate = 0.0f; /* tokens that a ns costs */
    for (int i = 0; i < n_front; i++) {
        begin_front(m, draft_ns, &front[i]);
        rate += front[i].rate;
    }
    const int n_row = choose_rows(m, rate, n_row_more, front, n_front);
    for (int i = 0; i < n_front; i++) {
        rewind_front(m, &front[i]);
    }
    for (int n = 0; n < n_row; n++) {
        struct gr_front *f = best_front(front, n_front);
        f->n_row++;
        try_next_row(m, f);
    }
    if (n_front == 1 && !(front->cost->rate > 0.0f) && front->n_row > 0 && !pays_alone(m, draft_ns, front)) {
        front->n_row = 0;
    }
}

/* ---- the sizes of a job's trees ---- */

/* A pass in which n_tree trees have n_row rows together. */
static float pass_of_all(const struct gr_round_cost *r, int n_row, int n_tree)
{
    const int each = n_row / n_tree;
    const float part = (float)(n_row % n_tree) / (float)n_tree;
    return part > 0.0f ? r->pass_ns[each] + part * (r->pass_ns[each + 1] - r->pass_ns[each]) : r->pass_ns[each];
}

/* Tokens a ns of all trees together; 0: that of one is not known. */
static float rate_of_all(const struct gr_front *front, int n_front)
{
    float rate = 0.0f;
    for (int i = 0; i < n_front; i++) {
        if (!(front[i].cost->rate > 0.0f)) {
            return 0.0f;
        }
        rate += front[i].cost->rate;
    }
    return rate;
}

static void take_node(struct gr_front *f)
{
    f->n_tried++;
    f->gain = f->n_tried < f->n ? f->p[f->n_tried] : 0.0f;
}

static void begin_nodes(struct gr_front *front, int n_front)
{
    for (int i = 0; i < n_front; i++) {
        front[i].n_tried = -1;
        take_node(&front[i]);
    }
}

/* Nodes of all trees, best first. */
static int choose_nodes(float draft_ns, struct gr_front *front, int n_front)
{
    const struct gr_round_cost *r = front->cost;
    const float rate = rate_of_all(front, n_front);
    const float root_ns = r->pass_ns[1];
    const float fixed_ns = draft_ns + r->overhead_ns;
    float gain = 0.0f;
    float best = rate > 0.0f ? 0.0f : (float)n_front / GR_MAX(fixed_ns + root_ns, 1.0f);
    int n_best = 0;
    const struct gr_front *f;
    for (int n = 1; (f = best_front(front, n_front)) != NULL; n++) {
        gain += f->gain;
        const float ns = pass_of_all(r, n_front + n, n_front);
        const float value =
            rate > 0.0f ? gain - rate * (ns - root_ns) : ((float)n_front + gain) / GR_MAX(fixed_ns + ns, 1.0f);
        n_best = value > best ? n : n_best;
        best = GR_MAX(value, best);
        take_node(&front[f - front]);
    }
    return n_best;
}

void gr_tree_sizes(float draft_ns, struct gr_front *front, int n_front)
{
    begin_nodes(front, n_front);
    const int n_node = choose_nodes(draft_ns, front, n_front);
    begin_nodes(front, n_front);
    for (int n = 0; n < n_node; n++) {
        take_node(best_front(front, n_front));
    }
    for (int i = 0; i < n_front; i++) {
        front[i].n_node = front[i].n_tried;
    }
}
