#include "orchestrator/cli/answers.h"

#include "common/base/log.h"
#include "orchestrator/cli/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- preparation ---- */

static enum gr_status check_options(const struct gr_options *o)
{
    const bool in_session = o->session != 0 || o->keep;
    if (o->n_answer == 1) {
        return GR_OK;
    }
    if (o->trace || o->trace_file != NULL) {
        log_error("--n %" PRId64 ": --trace and --trace-file tell of one answer; leave out --n, and name the answer "
                  "with --choice",
                  o->n_answer);
        return GR_EINVAL;
    }
    if (in_session) {
        log_error("--n %" PRId64 ": a session holds one answer: leave out --session and --keep, or --n", o->n_answer);
        return GR_EINVAL;
    }
    const int64_t last = o->choice + o->n_answer - 1, last_max = (int64_t)gr_option_rows[GR_OPTION_choice].max;
    if (last > last_max) {
        log_error("--choice %" PRId64 " with --n %" PRId64 ": the last answer would be %" PRId64
                  ", the limit is %" PRId64,
                  o->choice, o->n_answer, last, last_max);
        return GR_EINVAL;
    }
    if (gr_temperature_is_greedy((float)o->temperature)) {
        log_warn("--n %" PRId64 ": without --temperature all answers are equal", o->n_answer);
    }
    return GR_OK;
}

struct gr_answers *gr_answers_create(const struct gr_options *o)
{
    struct gr_answers *a = calloc(1, sizeof(*a));
    if (a == NULL) {
        log_error("no memory for %d answers", GR_ANSWERS_MAX);
        return NULL;
    }
    a->n = 1;
    gr_generation_init(&a->g[0], o);
    a->at[0] = &a->g[0];
    return a;
}

static enum gr_status add_answer(struct gr_answers *a)
{
    const int i = a->n++;
    const struct gr_generation *first = &a->g[0];
    struct gr_generation *g = &a->g[i];
    a->at[i] = g;
    const enum gr_status st = gr_generation_prepare_turn(g, first, first->prompt, first->n_prompt);
    g->plan.wishes.sampling.choice += (uint32_t)i;
    g->waits = true;
    a->g[i - 1].next = g;
    return st;
}

enum gr_status gr_answers_prepare(struct gr_answers *a, const struct gr_options *o, const struct gr_plan *plan)
{
    GR_TRY(check_options(o));
    GR_TRY(gr_generation_prepare(&a->g[0], o, plan));
    while (a->n < o->n_answer) {
        GR_TRY(add_answer(a));
    }
    for (int i = 0; i < a->n; i++) {
        a->g[i].n_answer = a->n;
    }
    return GR_OK;
}

void gr_answers_destroy(struct gr_answers *a)
{
    for (int i = a->n - 1; i >= 0; i--) { /* the first owns what the others borrow */
        gr_generation_finish(&a->g[i]);
    }
    free(a);
}

/* ---- the end ---- */

/* One that has not come to its end when another has failed, or was interrupted, is not one that has succeeded. */
static void share_fate(struct gr_answers *a)
{
    bool failed = false;
    int interrupted = 0;
    for (int i = 0; i < a->n; i++) {
        failed = failed || a->g[i].failed;
        interrupted = interrupted != 0 ? interrupted : a->g[i].interrupted;
    }
    for (int i = 0; i < a->n; i++) {
        struct gr_generation *g = &a->g[i];
        if (g->phase != GR_PHASE_OVER && !g->failed && failed) {
            gr_generation_fail(g, "");
        }
        g->interrupted = interrupted;
    }
}

/* Sums, from the first OPEN to the last token. The prompt is one. */
static void add_metrics(struct gr_session_metrics *sum, const struct gr_session_metrics *m)
{
    sum->completion_tokens += m->completion_tokens;
    sum->num_drafts += m->num_drafts;
    sum->num_accepted_tokens += m->num_accepted_tokens;
    sum->rounds += m->rounds;
    sum->root_only_rounds += m->root_only_rounds;
    sum->partial_rounds += m->partial_rounds;
    sum->full_refreshes += m->full_refreshes;
    sum->drift_mismatches += m->drift_mismatches;
    sum->drift_checked += m->drift_checked;
    if (m->first_token_ns > 0) {
        sum->first_token_ns =
            sum->first_token_ns > 0 ? GR_MIN(sum->first_token_ns, m->first_token_ns) : m->first_token_ns;
    }
    sum->last_token_ns = GR_MAX(sum->last_token_ns, m->last_token_ns);
}

/* "answers 0, 2 cut after --max-tokens 64", by their --choice; "": none is. */
static void name_cut(const struct gr_answers *a, char *text, size_t cap)
{
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < a->n; i++) {
        const struct gr_generation *g = &a->g[i];
        if (gr_generation_is_cut(g) && n < cap) {
            n += (size_t)snprintf(text + n, cap - n, "%s %u", n == 0 ? "answers" : ",",
                                  (unsigned)g->plan.wishes.sampling.choice);
        }
    }
    if (n > 0 && n < cap) {
        snprintf(text + n, cap - n, " cut after --max-tokens %" PRId64, a->g[0].o->max_tokens);
    }
}

static void print_summary(const struct gr_answers *a)
{
    struct gr_session_metrics sum = a->g[0].metrics;
    for (int i = 1; i < a->n; i++) {
        add_metrics(&sum, &a->g[i].metrics);
    }
    char end[64 + 8 * GR_ANSWERS_MAX]; /* a --choice has five digits at most */
    name_cut(a, end, sizeof(end));
    fprintf(stderr, "%d answers: ", a->n);
    gr_report_summary(stderr, &sum, end);
    gr_generation_tell_seed(&a->g[0]);
}

int gr_answers_report(struct gr_answers *a)
{
    int status = 0;
    share_fate(a);
    for (int i = 0; i < a->n; i++) {
        const int one = gr_generation_report(&a->g[i]);
        status = status != 0 ? status : one;
    }
    if (a->n > 1 && !a->g[0].o->json && !a->g[0].failed) {
        print_summary(a);
    }
    return status;
}

int gr_answers_refuse(struct gr_answers *a, enum gr_status st)
{
    const int status = gr_generation_refuse(&a->g[0], st);
    for (int i = 1; i < a->n; i++) {
        gr_generation_finish(&a->g[i]);
    }
    free(a);
    return status;
}
