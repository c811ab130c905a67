/* What a pass costs, with whom: the sessions that decode together, and the prices that they are told. */
#include "target_worker/machine/target_internal.h"

struct gr_attended target_specpv_context(const struct session *s)
{
    const struct gr_specpv_params *p = &s->specpv.params;
    if (s->specpv.next.round != GR_SPECPV_ROUND_PARTIAL || s->specpv.dense_from == GR_VIEW_NONE) {
        return gr_attends_all(s->prefix.len);
    }
    const int32_t n_list = GR_MIN(s->specpv.dense_from, (int32_t)(p->n_sink + p->n_retrieval) * GR_KV_BLOCK_TOKENS);
    return (struct gr_attended){.n_token = n_list + s->prefix.len - s->specpv.dense_from, .view = true};
}

/* Of the session's next pass. */
static int32_t rows_of(const struct session *s)
{
    return s->next.mode == GR_SPEC_TREE ? 1 + (s->draft.valid ? s->draft.tree.n : 0) : 1;
}

/* Rows and contexts that other decoding sessions bring into a pass. */
static struct gr_pass_load others_load(const struct gr_target *t, const struct session *s)
{
    struct gr_pass_load load = {0};
    for (int i = 0; i < t->config.n_session_max; i++) {
        const struct session *o = &t->session[i];
        if (o != s && o->state == SESSION_DECODE) {
            gr_pass_load_add(&load, rows_of(o), target_specpv_context(o));
        }
    }
    return load;
}

static double estimate_with(const struct gr_target *t, struct gr_pass_load load, const struct session *s, int32_t n_row)
{
    gr_pass_load_add(&load, n_row, target_specpv_context(s));
    return gr_cost_table_estimate(&t->cost, &load);
}

double target_pass_ns(const struct gr_target *t, const struct session *s, int32_t n_row)
{
    return estimate_with(t, others_load(t, s), s, n_row);
}

double target_pass_ratio(const struct gr_target *t, const struct session *s, int32_t n_row)
{
    if (n_row == 1) { /* many sessions have one row, and each of them would look at all others */
        return 1.0;
    }
    const struct gr_pass_load others = others_load(t, s);
    return estimate_with(t, others, s, n_row) / estimate_with(t, others, s, 1);
}

double target_alone_ns(const struct gr_target *t, int32_t n_row, struct gr_attended context)
{
    struct gr_pass_load load = {0};
    gr_pass_load_add(&load, n_row, context);
    return gr_cost_table_estimate(&t->cost, &load);
}

/* Its drafter still prepares the prefix. */
static bool is_cold(const struct session *s)
{
    return s->wishes.auto_tree && s->link.attached && !s->link.warm && !s->wishes.single_token && s->n_fault == 0;
}

static void add_decoding(struct decoding *d, const struct session *s)
{
    d->n += s->state == SESSION_DECODE;
    d->n_cold += s->state == SESSION_DECODE && is_cold(s);
}

static struct decoding count_decoding(const struct gr_target *t)
{
    struct decoding d = {0};
    for (int i = 0; i < t->config.n_session_max; i++) {
        add_decoding(&d, &t->session[i]);
    }
    return d;
}

struct decoding target_decoding(const struct gr_target *t)
{
    if (!t->settling.is_on) {
        return count_decoding(t);
    }
    struct decoding d = t->settling.others;
    if (t->settling.s != NULL) {
        add_decoding(&d, t->settling.s);
    }
    return d;
}

void target_settle_begin(struct gr_target *t)
{
    t->settling.others = count_decoding(t);
    t->settling.s = NULL;
    t->settling.is_on = true;
}

void target_settle_next(struct gr_target *t, const struct session *s)
{
    const struct decoding all = target_decoding(t);
    struct decoding own = {0};
    add_decoding(&own, s);
    t->settling.others = (struct decoding){.n = all.n - own.n, .n_cold = all.n_cold - own.n_cold};
    t->settling.s = s;
}

void target_settle_end(struct gr_target *t)
{
    const struct decoding kept = target_decoding(t), counted = count_decoding(t);
    GR_ASSERT(kept.n == counted.n && kept.n_cold == counted.n_cold);
    t->settling.is_on = false;
}

int target_in_turn(const struct gr_target *t)
{
    int n = 0;
    for (int i = 0; i < t->config.n_session_max; i++) {
        n += t->session[i].state != SESSION_FREE && t->session[i].state != SESSION_IDLE;
    }
    return n;
}

struct gr_outlook target_outlook(const struct gr_target *t)
{
    if (t->config.cost == NULL && t->cost.n_seen == 0) {
        return (struct gr_outlook){0};
    }
    struct gr_crowd_load crowd = {.n_room = t->config.n_session_max - target_in_turn(t)};
    int64_t n_context = 0;
    int n = 0;
    for (int i = 0; i < t->config.n_session_max; i++) {
        const struct session *s = &t->session[i];
        if (s->state == SESSION_DECODE) {
            gr_pass_load_add(&crowd.load, 1, target_specpv_context(s));
            n_context += s->prefix.len;
            n++;
        }
    }
    if (n > 0) {
        crowd.n_context = (int32_t)(n_context / n);
    }
    return gr_outlook_of(&t->cost, &crowd);
}

struct gr_spec_group *target_group(struct gr_target *t, int n)
{
    int class = 0;
    if (n < 2) {
        return NULL;
    }
    while (class + 1 < GR_GROUP_CLASSES && (2 << class) < n) {
        class ++;
    }
    return &t->group[class];
}

bool target_drafters_rest(struct gr_target *t)
{
    const struct gr_spec_group *g = target_group(t, target_in_turn(t));
    return t->config.feature_width > 0 && g != NULL && gr_spec_group_rests(g);
}

/* A tree that was asked for has not come: the drafter works. (What it does ahead of need is not seen here.) */
bool target_is_drafting(const struct gr_target *t)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        if (t->session[i].state == SESSION_DECODE && t->session[i].link.asked) {
            return true;
        }
    }
    return false;
}
