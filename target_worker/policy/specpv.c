#include "target_worker/policy/specpv.h"

#include "common/base/status.h"

#include <math.h>
#include <stddef.h>

#define DRIFT_KEEP 0.9            /* share of the sums that a judgement keeps */
#define DRIFT_PRIOR 16.0          /* tokens that count as judged before any has been */
#define DRIFT_PRIOR_MISMATCH 0.25 /* mismatches among those tokens: the first refreshes come early */
#define PAYS 1.05                 /* times what full rounds bring: estimates are not better than that */
#define TRIAL_KEEP 0.9            /* share of what full rounds took that each new one keeps */
#define TRIAL_PLAIN 8             /* full rounds before a try, to compare it with */
#define TRIAL_REGRET 4.0          /* full rounds that a try may lose; half as many after one that failed */
#define TRIAL_FIRST 32            /* full rounds after a try that failed; each failure doubles them */
#define TRIAL_LAST 1024
#define DRIFT_MISSING_MAX 0.5 /* expected mismatches among the missing tokens that make a refresh due */

#define AUTO_SHARE 16      /* one token is retrieved in so many of prompt and new tokens */
#define AUTO_BLOCKS_MIN 32 /* the least blocks that are retrieved */
#define AUTO_THRESHOLD 2   /* shorter contexts than so many views are verified in full */

static uint32_t resolve(uint32_t wanted, uint32_t most)
{
    return wanted == 0 || wanted > most ? most : wanted;
}

struct gr_specpv_params gr_specpv_resolve(const struct gr_specpv_params *wanted, const struct gr_specpv_params *most)
{
    struct gr_specpv_params p = {.n_sink = resolve(wanted->n_sink, most->n_sink),
                                 .n_retrieval = resolve(wanted->n_retrieval, most->n_retrieval),
                                 .n_window = resolve(wanted->n_window, most->n_window),
                                 .n_buffer = resolve(wanted->n_buffer, most->n_buffer),
                                 .threshold = wanted->threshold > 0 ? wanted->threshold : most->threshold,
                                 .interval = wanted->interval > 0 ? wanted->interval : most->interval,
                                 .refresh_fraction = wanted->refresh_fraction > 0.0 ? wanted->refresh_fraction
                                                                                    : most->refresh_fraction};
    p.max_provisional = wanted->max_provisional > 0 ? wanted->max_provisional : most->max_provisional;
    p.max_provisional = resolve(p.max_provisional, p.n_buffer);
    return p;
}

struct gr_specpv_params gr_specpv_automatic(const struct gr_specpv_params *wanted, uint64_t n_token)
{
    struct gr_specpv_params p = *wanted;
    if (p.n_retrieval == 0) {
        const uint64_t n_block = n_token / (AUTO_SHARE * GR_KV_BLOCK_TOKENS);
        p.n_retrieval = (uint32_t)GR_MIN(GR_MAX(n_block, AUTO_BLOCKS_MIN), GR_SPECPV_BLOCKS_MAX);
    }
    if (p.threshold == 0) {
        p.threshold = AUTO_THRESHOLD * p.n_retrieval * GR_KV_BLOCK_TOKENS;
    }
    return p;
}

int32_t gr_specpv_view_tokens(const struct gr_specpv_params *p)
{
    return (int32_t)(p->n_sink + p->n_retrieval + p->n_window) * GR_KV_BLOCK_TOKENS;
}

const char *gr_specpv_preflight(const struct gr_specpv_params *p, int32_t n_row, int32_t n_level, int32_t n_ctx_max)
{
    if ((int64_t)p->n_buffer < (int64_t)n_row + n_level + 1) {
        return "its buffer is too small for the session's trees (rows, levels and one more)";
    }
    if ((int64_t)gr_specpv_view_tokens(p) + p->n_buffer > n_ctx_max) {
        return "its budget is larger than the context";
    }
    if ((int64_t)p->max_provisional < (int64_t)n_level + 1) {
        return "specpv_exact_max_provisional is less than the levels of the session's trees and one more";
    }
    return NULL;
}

const char *gr_specpv_why_text(enum gr_specpv_why why)
{
    static const char *const text[GR_SPECPV_N_WHY] = {"",
                                                      "the buffer is full",
                                                      "its interval is over",
                                                      "enough tokens have come since",
                                                      "drift",
                                                      "as many tokens are provisional as may be",
                                                      "asked for",
                                                      "there is no view",
                                                      "the text may end here"};
    return text[why];
}

/* What ends a run of partial rounds; NONE: another one fits. */
static enum gr_specpv_why trigger(const struct gr_specpv_input *in)
{
    const struct gr_specpv_params *p = in->params;
    const double view = (double)(p->n_retrieval + p->n_window) * GR_KV_BLOCK_TOKENS;
    if (!in->has_view) {
        return GR_SPECPV_WHY_VIEW;
    }
    if (in->n_missing + in->n_row > (int32_t)p->n_buffer) {
        return GR_SPECPV_WHY_BUFFER;
    }
    if (in->n_partial >= p->interval) {
        return GR_SPECPV_WHY_INTERVAL;
    }
    if (p->refresh_fraction > 0.0 && in->n_missing >= p->refresh_fraction * view) {
        return GR_SPECPV_WHY_FRACTION;
    }
    if (in->mode == GR_SPECPV_EXACT && in->n_missing + in->n_level + 1 > (int32_t)p->max_provisional) {
        return GR_SPECPV_WHY_PROVISIONAL;
    }
    if (in->n_missing * gr_specpv_drift_rate(in->drift) >= DRIFT_MISSING_MAX) {
        return GR_SPECPV_WHY_DRIFT;
    }
    return in->asked ? GR_SPECPV_WHY_ASKED : GR_SPECPV_WHY_NONE;
}

/* With SpecPV off, or before its threshold, what is missing is still made good. */
struct gr_specpv_decision gr_specpv_decide(const struct gr_specpv_input *in)
{
    const bool on = in->mode != GR_SPECPV_OFF && in->context > (int64_t)in->params->threshold;
    if (in->end_due) {
        return (struct gr_specpv_decision){GR_SPECPV_ROUND_JUDGE, GR_SPECPV_WHY_END};
    }
    if (!on) {
        return in->n_missing > 0 ? (struct gr_specpv_decision){GR_SPECPV_ROUND_REFRESH, GR_SPECPV_WHY_ASKED}
                                 : (struct gr_specpv_decision){GR_SPECPV_ROUND_PLAIN, GR_SPECPV_WHY_NONE};
    }
    const enum gr_specpv_why why = trigger(in);
    if (why == GR_SPECPV_WHY_NONE) {
        return (struct gr_specpv_decision){GR_SPECPV_ROUND_PARTIAL, why};
    }
    return (struct gr_specpv_decision){in->n_missing > 0 ? GR_SPECPV_ROUND_REFRESH : GR_SPECPV_ROUND_SEED, why};
}

int32_t gr_specpv_usual_missing(const struct gr_specpv_params *p, const struct gr_specpv_drift *drift, int32_t n_row,
                                double n_token)
{
    const double rate = gr_specpv_drift_rate(drift);
    double n = fmin((double)p->n_buffer - n_row, p->interval * n_token);
    n = fmin(n, (double)p->max_provisional);
    n = rate > 0.0 ? fmin(n, DRIFT_MISSING_MAX / rate) : n;
    return (int32_t)fmax(n, n_token);
}

/* A cycle is partial rounds until n_missing tokens are there, then a refresh. Each of them stands with 1 - drift, and
 * none after the first that does not; then the refresh's own tree is void, and it brings the correction. */
bool gr_specpv_pays(const struct gr_specpv_price *p)
{
    const double stand = pow(1.0 - p->drift, p->n_missing);
    const double n_kept = p->drift > 0.0 ? (1.0 - p->drift) * (1.0 - stand) / p->drift : p->n_missing;
    const double n_token = n_kept + stand * p->n_token + (1.0 - stand);
    const double n_partial = ceil(p->n_missing / p->n_token);
    const double cycle_ns = n_partial * (p->partial_ns + p->rest_ns) + p->refresh_ns + p->rest_ns;
    return n_token * (p->full_ns + p->rest_ns) > PAYS * p->n_token * cycle_ns;
}

/* The cycle is over when nothing is missing any more. */
static void end_cycle(struct gr_specpv_trial *t)
{
    const double round_ns = t->plain_rounds > 0.0 ? t->plain_ns / t->plain_rounds : 0.0;
    const double token_ns = t->plain_tokens > 0.0 ? t->plain_ns / t->plain_tokens : 0.0;
    const double most_ns = TRIAL_REGRET * round_ns * (t->interval > 0 ? 0.5 : 1.0);
    t->regret_ns = fmax(t->regret_ns + t->cycle_ns - t->cycle_tokens * token_ns, 0.0);
    t->cycle_ns = t->cycle_tokens = 0.0;
    if (t->regret_ns > most_ns) {
        t->interval = t->interval == 0 ? TRIAL_FIRST : t->interval < TRIAL_LAST ? 2 * t->interval : TRIAL_LAST;
        t->until = t->interval;
        t->regret_ns = 0.0;
    } else if (t->regret_ns <= 0.0) {
        t->interval = 0;
    }
}

void gr_specpv_trial_round(struct gr_specpv_trial *t, enum gr_specpv_round round, int32_t n_token, double ns)
{
    if (round == GR_SPECPV_ROUND_PLAIN) {
        t->plain_ns = TRIAL_KEEP * t->plain_ns + ns;
        t->plain_tokens = TRIAL_KEEP * t->plain_tokens + n_token;
        t->plain_rounds = TRIAL_KEEP * t->plain_rounds + 1.0;
        t->n_plain += t->n_plain < UINT32_MAX;
        t->until -= t->until > 0;
        return;
    }
    if (round == GR_SPECPV_ROUND_SEED) {
        return; /* making summaries of all that is there: once */
    }
    t->cycle_ns += ns;
    t->cycle_tokens += n_token;
    if (round != GR_SPECPV_ROUND_PARTIAL) {
        end_cycle(t);
    }
}

bool gr_specpv_trial_due(const struct gr_specpv_trial *t)
{
    return t->n_plain >= TRIAL_PLAIN && t->until == 0;
}

void gr_specpv_drift_observe(struct gr_specpv_drift *d, int32_t n_checked, int32_t n_mismatch)
{
    d->n_checked = DRIFT_KEEP * d->n_checked + n_checked;
    d->n_mismatch = DRIFT_KEEP * d->n_mismatch + n_mismatch;
}

double gr_specpv_drift_rate(const struct gr_specpv_drift *d)
{
    return (d->n_mismatch + DRIFT_PRIOR_MISMATCH) / (d->n_checked + DRIFT_PRIOR);
}
