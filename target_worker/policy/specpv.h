/* When a session is verified under its view, and when full verification makes that good: one decision a round,
 * from lengths, budgets and what earlier judgements found. Pure.
 *
 * Words: missing tokens are those that a partial round accepted, and that have no full KV since: committed_len - 1 -
 * kv_len of them. A refresh is a full round that computes them again, judges them, and chooses the view anew.
 * Decisions D-070, D-071, D-072. */
#ifndef GR_TARGET_WORKER_POLICY_SPECPV_H
#define GR_TARGET_WORKER_POLICY_SPECPV_H

#include "common/protocol/specpv.h"

/* The drift meter: chain rows of refreshes whose pick is not the committed token. Sums that fade. */
struct gr_specpv_drift {
    double n_checked, n_mismatch;
};

enum gr_specpv_round {
    GR_SPECPV_ROUND_PLAIN, /* full, nothing is missing */
    GR_SPECPV_ROUND_SEED,  /* the same, and it chooses the session's first view */
    GR_SPECPV_ROUND_PARTIAL,
    GR_SPECPV_ROUND_REFRESH, /* full, missing tokens first */
    GR_SPECPV_ROUND_JUDGE,   /* missing tokens only: the last committed token may be the text's end */
};

enum gr_specpv_why {
    GR_SPECPV_WHY_NONE,
    GR_SPECPV_WHY_BUFFER,
    GR_SPECPV_WHY_INTERVAL,
    GR_SPECPV_WHY_FRACTION,
    GR_SPECPV_WHY_DRIFT,
    GR_SPECPV_WHY_PROVISIONAL,
    GR_SPECPV_WHY_ASKED,
    GR_SPECPV_WHY_VIEW, /* there is none any more */
    GR_SPECPV_WHY_END,  /* a provisional end of the text */
    GR_SPECPV_N_WHY
};

struct gr_specpv_input {
    enum gr_specpv_mode mode;              /* off: also for a session that SpecPV was taken from */
    const struct gr_specpv_params *params; /* resolved: none of them stands for another */
    int32_t context;                       /* committed tokens */
    int32_t n_missing;
    int32_t n_row, n_level; /* of the tree that would be verified, tail included: n_level nodes on its longest path */
    uint32_t n_partial;     /* partial rounds since the last refresh */
    bool has_view, asked, end_due;
    const struct gr_specpv_drift *drift;
};

struct gr_specpv_decision {
    enum gr_specpv_round round;
    enum gr_specpv_why why; /* of a refresh or judgement */
};

struct gr_specpv_decision gr_specpv_decide(const struct gr_specpv_input *in);
const char *gr_specpv_why_text(enum gr_specpv_why why);

/* What `auto` wants of a session of n_token tokens, prompt and the most new ones, where it was told nothing: retrieval
 * and threshold. Small views lose more tokens and gain more time (docs/lab/2026-11-26-notebook.md, SpecPV). */
struct gr_specpv_params gr_specpv_automatic(const struct gr_specpv_params *wanted, uint64_t n_token);
/* What is wanted, by what the target has: zeroes become its values, larger ones are cut to it. */
struct gr_specpv_params gr_specpv_resolve(const struct gr_specpv_params *wanted, const struct gr_specpv_params *most);
/* NULL: SpecPV may run in a session with trees of n_row rows on n_level levels at most and contexts of n_ctx_max
 * tokens; else why not. */
const char *gr_specpv_preflight(const struct gr_specpv_params *p, int32_t n_row, int32_t n_level, int32_t n_ctx_max);
/* Tokens of a view: what the budget comes to. */
int32_t gr_specpv_view_tokens(const struct gr_specpv_params *p);

/* Times and tokens of rounds, for `auto`. */
struct gr_specpv_price {
    double full_ns, partial_ns; /* a round's pass with the tree that is usual */
    double refresh_ns;          /* the same, full, with n_missing chain rows */
    double rest_ns;             /* of a round: waiting for the drafter, host work */
    double n_token;             /* that a round brings */
    int32_t n_missing;          /* when the refresh comes */
    double drift;               /* gr_specpv_drift_rate() */
};
/* Missing tokens that rounds of n_row rows and n_token tokens come to before a refresh. */
int32_t gr_specpv_usual_missing(const struct gr_specpv_params *p, const struct gr_specpv_drift *drift, int32_t n_row,
                                double n_token);
/* Exact SpecPV brings more tokens in its time than full verification. */
bool gr_specpv_pays(const struct gr_specpv_price *p);

/* What `auto` has seen. Cycles differ by how early a mismatch comes, so one that lost says little: what cycles lose
 * against rounds in full is added up, what they gain is taken off, and they are given up when it is more than some
 * rounds in full. Zeroes: nothing yet. */
struct gr_specpv_trial {
    double plain_ns, plain_tokens, plain_rounds; /* in full; sums that fade */
    double cycle_ns, cycle_tokens;               /* since the last round in full */
    double regret_ns;                            /* what cycles have lost since they were begun with; never below 0 */
    uint32_t n_plain, until, interval;           /* rounds in full: seen; to the next try; after a try that failed */
};
/* A round is over: it took ns and brought n_token tokens, less those that it took back. */
void gr_specpv_trial_round(struct gr_specpv_trial *t, enum gr_specpv_round round, int32_t n_token, double ns);
/* A cycle may be tried. */
bool gr_specpv_trial_due(const struct gr_specpv_trial *t);

/* A refresh has judged n_checked tokens, and found n_mismatch of them to be others. */
void gr_specpv_drift_observe(struct gr_specpv_drift *d, int32_t n_checked, int32_t n_mismatch);
double gr_specpv_drift_rate(const struct gr_specpv_drift *d);

#endif
