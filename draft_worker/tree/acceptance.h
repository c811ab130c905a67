/* What verdicts teach about acceptance: how the draft model's probability of an edge translates into the probability
 * that the target accepts the child once its parent is accepted. Calibrated by rank among siblings and bucket of the
 * model's probability; the model's own word is the prior. One table for the whole drafter and a smaller one a session,
 * which leans on it. Old rounds fade.
 *
 * Pure; plain memory, zeroed by the owner. */
#ifndef GR_DRAFT_WORKER_TREE_ACCEPTANCE_H
#define GR_DRAFT_WORKER_TREE_ACCEPTANCE_H

#include "common/rules/token_tree.h"

#include <stdbool.h>

#define GR_RANK_CLASSES 4 /* ranks 1, 2, 3, and 4 or more */
#define GR_PROB_BUCKETS 12

struct gr_acceptance_cell {
    float n, n_accepted, prob; /* observations, accepted ones, sum of the model's probabilities; all fade alike */
};

struct gr_acceptance {
    struct gr_acceptance_cell cell[GR_RANK_CLASSES][GR_PROB_BUCKETS];
};

/* Plain counts, for reports. Depth 1 is a child of the tail. */
struct gr_acceptance_counts {
    uint64_t n_tried[GR_NODE_MAX + 1][GR_RANK_CLASSES], n_accepted[GR_NODE_MAX + 1][GR_RANK_CLASSES];
};

/* What is added to the model's probability. */
struct gr_acceptance_curve {
    float shift[GR_RANK_CLASSES][GR_PROB_BUCKETS];
};

int gr_rank_class(int rank); /* rank counts from 1 */
/* One child of an accepted node, of which the model said prob. A cell that holds n_max observations is halved. */
void gr_acceptance_observe(struct gr_acceptance *a, int rank, float prob, bool accepted, float n_max);
void gr_acceptance_curve(const struct gr_acceptance *drafter, const struct gr_acceptance *session,
                         struct gr_acceptance_curve *out);
/* Calibrated probability, within [0.0001, 0.999]. */
float gr_acceptance_prob(const struct gr_acceptance_curve *curve, int rank, float prob);

#endif
