/* What an orchestrator has seen since it began, summed over all of its sessions and workers: counters, which only ever
 * rise, and times in buckets. They come from the same messages as a session's metrics (session_metrics.h), but count
 * what was done: a round that exact SpecPV takes back later has still been computed. Pure. */
#ifndef GR_ORCHESTRATOR_MACHINE_TOTALS_H
#define GR_ORCHESTRATOR_MACHINE_TOTALS_H

#include "common/protocol/msg.h"
#include "common/rules/accept.h"
#include "common/rules/token_tree.h"

#define GR_HISTOGRAM_CEILINGS 21 /* 1, 2 and 5 of each power of ten, from 100 us to 500 s */
#define GR_TOTALS_TRANSPORTS 5   /* gr_totals_transport_name() */

/* n[i]: times of at most gr_histogram_ceiling_ns(i) and more than the one before; the last: longer ones. */
struct gr_histogram {
    uint64_t n[GR_HISTOGRAM_CEILINGS + 1];
    uint64_t sum_ns;
};

uint64_t gr_histogram_ceiling_ns(int i);
/* `times` times of ns. */
void gr_histogram_add(struct gr_histogram *h, uint64_t ns, uint64_t times);

/* Why a turn was not taken. */
enum gr_turn_refusal {
    GR_REFUSED_FULL,    /* the queue, or the table of sessions */
    GR_REFUSED_LIMIT,   /* longer than the context, or than a session may be */
    GR_REFUSED_INVALID, /* no such model or session, or it is in a turn */
    GR_N_REFUSED
};

enum gr_total_teller { GR_TOLD_BY_TARGET, GR_TOLD_BY_DRAFT, GR_TOLD_BY_ORCHESTRATOR, GR_N_TELLER };

enum gr_quarantine_event {
    GR_QUARANTINE_BEGUN,     /* again, too */
    GR_QUARANTINE_OVERRULED, /* a worker got a session all the same: no other one fits */
    GR_QUARANTINE_TRIED,     /* the pause was over */
    GR_QUARANTINE_ENDED,     /* a session has gone well */
    GR_N_QUARANTINE_EVENT
};

struct gr_totals {
    uint64_t turns_begun;
    uint64_t turns_ended[GR_FINISH_UNSERVED + 1]; /* by enum gr_finish; each turn that was taken ends once */
    uint64_t turns_refused[GR_N_REFUSED];
    uint64_t prompt_tokens; /* of turns that were taken; several answers to one prompt count it once */
    uint64_t cached_tokens; /* of them, and of the turns before, that were not computed for the turn */
    uint64_t orphans;       /* sessions that workers have let go while they had no orchestrator, by PONGs */
    uint64_t prefix_queries, prefix_hits, prefix_evictions; /* of prefix caches, by PONGs: tokens, tokens, KV blocks */
    uint64_t generation_tokens;                             /* that became final */
    uint64_t withdrawn_tokens;                              /* provisional ones that were taken back */
    uint64_t rounds, root_only_rounds, partial_rounds, full_refreshes;
    uint64_t num_drafts, num_draft_tokens, num_accepted_tokens;
    uint64_t accepted_per_position[GR_NODE_MAX]; /* trees of which more tokens than so many were accepted */
    uint64_t late_trees, late_trees_rerooted;
    uint64_t drift_checked, drift_mismatches;
    uint64_t wait_ns, verify_ns, host_ns; /* of rounds, as targets measured them */
    /* By drafters, when they let go of a session. */
    uint64_t draft_ns, draft_host_ns, draft_ahead_verdicts, draft_ahead_hits, acceptance_alarms;
    uint64_t wire_bytes[GR_TOTALS_TRANSPORTS];
    /* What went wrong. */
    uint64_t desyncs[GR_N_TELLER], fallbacks[GR_N_TELLER], feature_gaps;
    uint64_t workers_joined[2], workers_lost[2]; /* by enum gr_worker_role */
    uint64_t quarantine[GR_N_QUARANTINE_EVENT];
    uint64_t workers_replaced; /* processes whose seat another one has taken, when it came or when they came back */
    uint64_t turns_failed_at_target;
    uint64_t workers_refused, drafter_errors, reopens, evictions, transcript_mismatches;
    struct gr_histogram queue, first_token, inter_token, turn; /* of turns */
    struct gr_histogram prefill, decode;  /* of them: until the first token from when a target had it; from then on */
    struct gr_histogram hand_over;        /* of tokens: from reading their COMMIT until their clients have them */
    struct gr_histogram draft_round_trip; /* of rounds with a tree: from VERDICT until the tree is there */
};

/* "loop", ...; the last one: "other". */
const char *gr_totals_transport_name(int i);
/* Takes a worker's message into account. transport: of the session; empty: it has had none. */
void gr_totals_take(struct gr_totals *t, const struct gr_msg *m, const char *transport);
/* The orchestrator itself has fallen back to less than was asked for. */
void gr_totals_fall_back(struct gr_totals *t);
void gr_totals_refused(struct gr_totals *t, enum gr_status why);

#endif
