/* The metrics of a session (docs/run.md), computed from the workers' messages alone: by the orchestrator for
 * itself, and by a client for the turns that it asked for. Pure. */
#ifndef GR_ORCHESTRATOR_MACHINE_SESSION_METRICS_H
#define GR_ORCHESTRATOR_MACHINE_SESSION_METRICS_H

#include "common/protocol/msg.h"
#include "common/rules/token_tree.h"

/* A round that may still be taken back: its tokens are provisional, were so before the last COMMIT, or came with it. */
struct gr_metrics_round {
    uint32_t base_len, n_draft, n_accepted;
    bool rewound; /* counted in rewind_steps */
    bool judged;  /* it judged tokens of rounds before it */
    bool partial; /* verified under a view */
    uint64_t wait_ns, verify_ns, host_ns;
};

/* Durations are sums over rounds. */
struct gr_session_metrics {
    uint64_t prompt_tokens, completion_tokens;
    uint64_t cached_tokens; /* before a turn's answer, of earlier turns too, that were not computed for it */
    uint64_t num_drafts, num_draft_tokens, num_accepted_tokens, num_rewound_tokens, rewind_steps;
    uint64_t accepted_per_position[GR_NODE_MAX];
    uint64_t rounds, root_only_rounds, late_trees, late_trees_rerooted, desyncs, fallbacks, reopens;
    uint64_t draft_ahead_verdicts, draft_ahead_hits;   /* verdicts that met draft-ahead work; of them useful */
    uint64_t wait_ns, verify_ns, host_ns;              /* as the target measured them */
    uint64_t n_drafter_round, draft_ns, draft_host_ns; /* as the drafter measured them */
    uint64_t open_ns, first_token_ns, last_token_ns;   /* on the clock of whoever computes these metrics */
    uint64_t n_first, n_first_hit;                     /* first children of trees: tried, accepted */
    double first_expected;                             /* what the draft model expected of them, summed */
    uint64_t acceptance_alarms;
    uint64_t wire_bytes, wire_tokens; /* of the data path while decoding, both ways; the tokens they brought */
    /* SpecPV; seeding a view is no refresh */
    uint64_t partial_rounds, full_refreshes, drift_checked, drift_mismatches;
    uint64_t partial_since_refresh;
    uint64_t feature_gaps; /* features that did not join those that the drafter held */
    uint32_t final_len;    /* of the last COMMIT */
    uint32_t n_open;
    struct gr_metrics_round open[GR_SPECPV_BUFFER_MAX + 1];
    char transport[GR_TRANSPORT_NAME_MAX];
};

/* A turn of n_prompt new tokens begins: the rounds of the one before stand. */
void gr_metrics_begin_turn(struct gr_session_metrics *m, uint32_t n_prompt);
/* Tokens that were counted are taken back. */
void gr_metrics_drop(struct gr_session_metrics *m, uint32_t n_token);
void gr_metrics_fall_back(struct gr_session_metrics *m);
/* Takes COMMIT, DRAFT_STATS, DRAFT_TROUBLE and ATTACHED into account; other messages change nothing. open_ns and
 * prompt_tokens are the caller's to set. */
void gr_metrics_take(struct gr_session_metrics *m, const struct gr_msg *msg, uint64_t now_ns);

/* Tokens from keep_len on are taken back: accepted nodes among them become rewound ones. */
void gr_metrics_roll_back(struct gr_session_metrics *m, uint32_t keep_len);

/* The turn was cut to keep_len, within the tokens that the last COMMIT made final or after them, and nobody is shown
 * the rest: rounds that brought and judged none of the tokens before it count no more. */
void gr_metrics_cut(struct gr_session_metrics *m, uint32_t keep_len);

double gr_metrics_tokens_per_second(const struct gr_session_metrics *m);      /* decode only: without the first token */
double gr_metrics_mean_acceptance_length(const struct gr_session_metrics *m); /* 1 + accepted / drafts */

#endif
