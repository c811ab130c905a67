/* Which kind of round a session may have next: one decision, from configuration, kill switches, faults and what rounds
 * have cost and brought so far. Pure; every refusal has a reason that is logged once and counted.
 * Decisions D-034, D-037, D-038, D-041. */
#ifndef GR_TARGET_WORKER_POLICY_SPEC_MODE_H
#define GR_TARGET_WORKER_POLICY_SPEC_MODE_H

#include "common/base/fallback.h"

#include <stdbool.h>
#include <stdint.h>

enum gr_spec_mode {
    GR_SPEC_PLAIN, /* no drafter is wanted: nothing of speculation runs */
    GR_SPEC_ROOT,  /* K = 0: a drafter follows, but a tree would cost more than it brings */
    GR_SPEC_PROBE, /* K = 0, and a tree is asked for that nobody waits for: has that changed? */
    GR_SPEC_TREE,  /* the pass waits for a tree */
};

/* What a session's rounds cost and bring. Tokens and ns are moving averages. A root round is one without a tree. */
struct gr_spec_econ {
    double tree_tokens, tree_ns; /* of rounds that asked for a tree and waited, whatever came of it */
    double root_ns;              /* of root rounds, at the machine's present speed; 0: not known yet */
    double root_pass_ns;         /* their passes'; while rounds have trees it follows those passes' speed */
    double latency_ns;           /* from asking for a tree that is waited for to its arrival; 0: not known yet */
    double probe_ns;             /* from asking for the last probe to its arrival */
    double tree_pass_ns;         /* the pass of a tree round */
    double overhead_ns;          /* what a round takes beside wait and pass */
    uint32_t n_tree, n_root;     /* rounds seen */
    uint32_t until_clean;        /* root rounds to come while the drafter rests, run to learn root_ns */
    uint32_t n_clean;            /* times that root_ns was learnt this way */
    double run_pass_ns;          /* the first pass of the run of such rounds */
    double gain;                 /* root rounds that trees have won since they were wanted last */
    uint32_t n_given_up;         /* times that trees were given up since they last won anything */
    double regret;               /* root rounds that trees have lost lately; never below 0 */
    uint32_t n_lost;             /* in all sessions' economy: turns in a row that ended with trees given up */
    bool foreseen;               /* the averages were other sessions' to begin with */
    bool is_root;                /* trees are not wanted at present */
    uint32_t until_probe, probe_interval; /* rounds to the next probe, and from one to the next */
    bool probing;                         /* a probe is on its way, or being judged */
};

/* A round that is over. */
struct gr_spec_round {
    bool waited; /* it asked for a tree and waited, whatever came of it */
    bool shared; /* other sessions were in its pass: the group decides about trees */
    bool clean;  /* the drafter had nothing to do meanwhile */
    int n_token;
    double round_ns, pass_ns, wait_ns;
    /* What a pass without the tree would have taken in its place: pass_ns times the ratio of the cost table's prices.
     * So it knows the machine's speed of just then. Above 0. */
    double root_pass_ns;
};

/* Several sessions decode together: rows that one adds to a pass hold all of them up, so what pays for one is not what
 * pays for all. One decision for all, from the time a token takes. Won and lost is counted in passes without trees of
 * the whole group. All 0: nothing is known yet. */
struct gr_spec_group {
    double price;        /* time of passes without trees, from end to end, as a multiple of the cost table's */
    double regret, gain; /* passes that trees have lost, and won, over settled passes with trees */
    double balance;      /* passes that trees have won lately, those that were not settled included */
    bool tries_trees;
    bool failed;                    /* trees were given up since they last won anything */
    uint32_t until_trial, interval; /* passes to the next trial, and from one that fails to the next */
    uint32_t until_settled;         /* passes until trees come together again: the drafter had prompts to read */
    uint32_t n_tried;               /* settled passes of this trial */
};

/* A pass of a group that is over. */
struct gr_spec_group_pass {
    bool with_trees; /* some in it waited for a tree */
    bool disturbed;  /* it shared its device with the drafter, or went without some of the group after waiting for
                      * their trees: what it took says nothing about others */
    bool cold;       /* a drafter still prepares the prefix of some that decode */
    int n_session;   /* sessions that decode together, in this pass or, while their trees are being drafted, in the next
                      */
    int n_token;     /* tokens that the pass brought */
    double ns;       /* from the end of the pass before to its own */
    double price_ns; /* by the cost table: without trees, of this pass; with trees, of one row for each session */
};

struct gr_spec_input {
    bool want_draft;   /* the request asks for speculation and no kill switch forbids it */
    bool single_token; /* force_single_token */
    bool has_drafter;  /* attached, or expected and not given up on */
    int n_fault;       /* broken invariants of this session's tree rounds */
    int n_node_max;    /* nodes configured, and left by the session's limits */
    bool automatic;    /* the size is chosen by cost */
    bool may_rest;     /* its drafter costs something even while nobody asks it: features are computed for it */
    const struct gr_spec_group *group; /* of the sessions that decode together; NULL: it is alone */
    int n_group, n_cold;               /* sessions in it; of them those whose drafter prepares their prefix */
    bool warm, asked;                  /* the drafter has sent a tree since it attached; it has been asked for one */
    const struct gr_spec_econ *econ;
};

struct gr_spec_decision {
    enum gr_spec_mode mode;
    int n_want;              /* nodes wanted at most; 0 unless PROBE or TREE */
    enum gr_fallback reason; /* why no tree, for the fall-back line; NONE: nothing to report */
};

/* Constants. The unit "root round" is what a round without a tree takes at the same moment. All were tuned on
 * tests/sim/test_sessions_speed and on `graft-bench sweep` and `sessions`; docs/lab/2026-11-26-notebook.md has what
 * they brought.
 */

/* ---- one session alone ---- */
/* A probe must promise this many root rounds' tokens in a root round's time, and trees are tried again. */
#define GR_SPEC_ENTER 1.0
/* Rounds before the first probe; the pause doubles after each probe that fails, up to the last. */
#define GR_SPEC_PROBE_FIRST 8
#define GR_SPEC_PROBE_LAST 1024
/* After a probe that promises less than this the pause is four times as long: each probe costs the drafter a tree, on
 * cores that the target may share. */
#define GR_SPEC_HOPELESS 0.5
/* Root rounds that trees may lose before they are given up. After n failures it is this divided by n + 1. */
#define GR_SPEC_REGRET_MAX 5.0
/* One tree round adds at most this many root rounds to the loss, apart from its wait: its pass was perhaps held up. */
#define GR_SPEC_REGRET_ROUND 2.0
/* Its wait adds at most this many: being late is the drafter's doing. */
#define GR_SPEC_REGRET_WAIT 4.0
/* Root rounds that trees must have won before earlier failures are forgotten. */
#define GR_SPEC_GAIN_MIN 10.0
/* Root rounds that are run once the drafter is warm, with the drafter at rest, to learn what they take. */
#define GR_SPEC_CLEAN_FIRST 5
/* Root rounds of each later comparison. The first comes after SOON tree rounds, the next after twice as many more, and
 * so on up to EVERY. */
#define GR_SPEC_CLEAN_RUN 4
#define GR_SPEC_CLEAN_SOON 8
#define GR_SPEC_CLEAN_EVERY 64
/* Trees that bring this many times what root rounds bring need no such comparison. */
#define GR_SPEC_SURE 1.5
/* Tree rounds of other sessions after which their averages say something about a new session. */
#define GR_SPEC_MIN_ROUNDS 4

/* ---- sessions that decode together: the unit is a pass of the group without trees ---- */
/* Passes before the first trial of trees; after one that failed, before the next (doubled each time). */
#define GR_SPEC_TRIAL_FIRST 4
#define GR_SPEC_TRIAL_NEXT 128
/* Passes that a trial may lose; half of it after one that failed, which is 2 % of 256 passes. */
#define GR_SPEC_REGRET_GROUP 3.0
/* The same summed over the last BALANCE_PASSES, where sessions keep coming whose prompts the drafter reads meanwhile.
 */
#define GR_SPEC_BALANCE_GROUP 6.0
#define GR_SPEC_BALANCE_PASSES 128.0
/* Trees must be worth this many times what they cost: sessions end at different times, and the last ones lose. */
#define GR_SPEC_GROUP_MARGIN 1.04
/* Passes after which trees must have won something: they may lose a little in each. */
#define GR_SPEC_TRIAL_LONG 32
/* Passes after the drafter has read its prompts until trees come together again. */
#define GR_SPEC_SETTLE 4
/* A group waits for no trees while more than one session in this many is cold. */
#define GR_SPEC_COLD_PART 4
/* A group's drafter rests from this pause between trials on: two trials in a row have failed. (One that fails while
 * prompts are read is bad luck.) */
#define GR_SPEC_REST_FROM (4 * GR_SPEC_TRIAL_NEXT)
/* It wakes this many passes before a trial: it needs features and a prefix. */
#define GR_SPEC_LEAD 32

struct gr_spec_decision gr_spec_mode_decide(const struct gr_spec_input *in);
/* Trees have been of no use to this group, and its next trial is not near: its drafter is asked for nothing and gets
 * neither tokens nor features. */
bool gr_spec_group_rests(const struct gr_spec_group *g);

/* root_guess_ns: a root-only round as far as known (cost table); seeds the averages of a new session. Where the turns
 * before all gave trees up, and others' averages say that the drafter is too slow for any text, the session begins
 * without trees and probes; but each fourth such session tries them all the same. */
void gr_spec_econ_init(struct gr_spec_econ *e, const struct gr_spec_econ *others, double root_guess_ns);
/* A turn of e has ended: all sessions' economy remembers whether it wanted trees at its end. */
void gr_spec_econ_turn_ended(struct gr_spec_econ *all, const struct gr_spec_econ *e);
/* Decoding begins on another context than the times were guessed or measured on: they change by this factor. */
void gr_spec_econ_rescale(struct gr_spec_econ *e, double factor);
/* Learns from a round, and gives trees up when they lose. */
void gr_spec_econ_round(struct gr_spec_econ *e, const struct gr_spec_round *r);
/* The drafter has come to speed: what a root-only round takes is measured first, where it could change anything. alone:
 * no other session is in a turn; who begins with trees while others' prompts are read falls out of step with them. */
void gr_spec_econ_warm(struct gr_spec_econ *e, bool alone);
/* A pass of a group is over. */
void gr_spec_group_pass(struct gr_spec_group *g, const struct gr_spec_group_pass *p);
/* A tree arrived, or (arrived false) has not arrived after so long. */
void gr_spec_econ_latency(struct gr_spec_econ *e, double ns, bool arrived);
/* A probe was sent. */
void gr_spec_econ_probe_sent(struct gr_spec_econ *e);
/* It is judged by nobody. */
void gr_spec_econ_forget_probe(struct gr_spec_econ *e);
/* A probe is judged: so many of its tokens agreed with what was committed; pass_ratio: what its pass would have taken,
 * in passes of one row. */
void gr_spec_econ_probed(struct gr_spec_econ *e, int n_accepted, double pass_ratio);
/* How long a round may wait for its tree; beyond it expected extra tokens do not pay. limit_ns: liveness bound. */
double gr_spec_econ_patience_ns(const struct gr_spec_econ *e, double limit_ns);
/* The same for a tree of a fixed size, which is waited for whatever it costs, but not for ever: up to limit_ns while
 * the drafter prepares its prefix (warm false), else for many times what trees took. silent: a round before has waited
 * in vain, and nothing has come from the drafter since: then the next ones ask and do not wait. */
double gr_spec_fixed_patience_ns(const struct gr_spec_econ *e, bool warm, bool silent, double limit_ns);

#endif
