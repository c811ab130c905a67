/* Where a session goes: which of the workers of a role takes it. Pure.
 *
 * Workers whose predicted round is within a quarter of the shortest one count as equally fast, since predictions are
 * no better than that; among them the one that holds most of the session's prompt already is taken, then the one with
 * the fewest sessions in a turn, then the one with the fewest sessions at all, then the one with the most free KV
 * blocks, then the next one in rotation. Where a candidate's round is not known none is compared, and what they hold of
 * the prompt is not either: nothing would keep all sessions that begin alike from going to one worker then. A worker
 * without room is taken only where none has any: it then says so itself. Decision D-205. One that is shunned is taken
 * only where all that fit are. What a worker holds is guessed (prefix_places.h). */
#ifndef GR_ORCHESTRATOR_MACHINE_PLACEMENT_H
#define GR_ORCHESTRATOR_MACHINE_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

/* One worker, seen by one session. */
struct gr_place {
    bool fits;             /* it may take the session */
    bool shunned;          /* it fails too often: only where nobody else fits */
    bool has_room;         /* a slot is free, or held by a session that is idle */
    uint32_t n_active;     /* sessions in a turn, those that are being opened or closed included */
    uint32_t n_held;       /* the same, and idle ones */
    uint32_t n_free_block; /* of its KV pool; 0 also where that is not known */
    uint32_t n_prompt; /* tokens from the prompt's begin whose KV it holds in blocks that are kept for whoever begins
                          alike, whole blocks alone; 0: none, or not known */
    double round_ns;   /* predicted time of a round with this session; 0: not known */
};

/* What a worker has said of its rounds, with the sessions that it had then. */
struct gr_round_forecast {
    uint32_t n_active; /* in a turn at that time */
    double round_ns;   /* of a round with one session more than these; 0: not known */
    double more_ns;    /* what each session after that one adds, as a mean over many */
    double first_ns;   /* of a round with one session alone; 0: not known */
};

/* round_ns of a worker that has n_active sessions in a turn by now, so of a round with one more; 0: not known. Many may
 * have begun or ended since it said so: beyond its n_active each adds more_ns, and below it goes straight to first_ns.
 */
double gr_forecast_round_ns(const struct gr_round_forecast *f, uint32_t n_active);

/* A round with those n_active sessions themselves; 0: there are none, or it is not known. */
double gr_forecast_present_ns(const struct gr_round_forecast *f, uint32_t n_active);

/* The place of p[0 .. n - 1] to take, -1: none fits. last: the place that was taken last, where rotation goes on;
 * -1: none was. */
int gr_place_choose(const struct gr_place *p, int n, int last);

/* A worker whose session moves to another one sheds it. Does it pay? Only where the session's rounds there would be
 * shorter by half, since moving costs its prefix once more. from_active: sessions in a turn at the one that sheds, this
 * one among them; to_active: at the other. */
bool gr_pays_to_shed(const struct gr_round_forecast *from, uint32_t from_active, const struct gr_round_forecast *to,
                     uint32_t to_active);

/* What a session has of trees: a round with one brings n_accepted tokens beside the one that every round brings. */
struct gr_tree_worth {
    double pass_ns;    /* of its target at present; 0: not known */
    double n_accepted; /* of a tree, on average */
};

/* Where there is no better drafter a session may be shed to none, and decodes without trees. Does it pay? A round takes
 * a pass, and with a drafter the wait for its tree, so that each token takes (pass + wait) / (1 + n_accepted) with
 * trees, and a pass without. Only where it takes half as long without; and a drafter keeps its last session, whose
 * trees nobody else delays: whether those pay is its target's to decide. */
bool gr_pays_to_shed_to_none(const struct gr_round_forecast *from, uint32_t from_active, const struct gr_tree_worth *w);

/* Does a session that was shed to none do better with this drafter, which would draft for it beside to_active others? A
 * drafter that works for nobody at present has said nothing, and is tried. */
bool gr_pays_to_draft(const struct gr_round_forecast *to, uint32_t to_active, const struct gr_tree_worth *w);

#endif
