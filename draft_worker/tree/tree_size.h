/* How many nodes of a tree, and how many rows of another level, pay: what brings the most expected tokens per second.
 *
 *     rate(n) = (1 + p_1 + ... + p_n) / (draft + overhead + pass(n + 1))
 *
 * p_i: probability that the target accepts node i, best first; 1: the bonus token. draft: time spent on the tree.
 *
 * Over many rounds the best policy maximises tokens - rate * time in each, at the rate that rounds bring on the whole
 * (a nanosecond spent here is not spent on them): where the draft is sure a round may be longer than its own best ratio
 * says, where it is not, shorter. As long as that rate is not known, the round's own best ratio stands for it. A level
 * pays when what its children are expected to bring is worth more than its time.
 *
 * Pure; plain memory, zeroed by the owner. Decisions D-034, D-045. */
#ifndef GR_DRAFT_WORKER_TREE_TREE_SIZE_H
#define GR_DRAFT_WORKER_TREE_TREE_SIZE_H

#include "common/rules/token_tree.h"
#include "common/protocol/wire.h"
#include "draft_worker/tree/acceptance.h"
#include "draft_worker/tree/tree_builder.h"

#define GR_LEVEL_ROW_MAX 64   /* rows of a level whose time is kept apart; each row more costs as those before */
#define GR_SURENESS_CLASSES 5 /* of a parent: how sure the model was of it; the last: a root, which is certain */
#define GR_SURENESS_ROOT (GR_SURENESS_CLASSES - 1)

/* A round but its draft. */
struct gr_round_cost {
    float overhead_ns;
    float rate;                     /* tokens a ns that rounds bring on the whole; 0: not known */
    float pass_ns[GR_TREE_MAX + 1]; /* by rows, 1 .. GR_TREE_MAX; never falls */
};

/* What a level of the draft takes and brings: measured, the same for all sessions of a drafter. */
struct gr_level_model {
    float ns[GR_LEVEL_ROW_MAX + 1];                    /* by rows; 0: not seen */
    uint8_t n_seen[GR_LEVEL_ROW_MAX + 1];              /* measurements of it, at most 255 */
    uint32_t seen_at[GR_LEVEL_ROW_MAX + 1];            /* n_level when it was measured last */
    uint32_t n_level;                                  /* measurements of all sizes */
    float yield[GR_SURENESS_CLASSES][GR_RANK_CLASSES]; /* mean probability of a child, by its parent's and its rank */
    uint32_t n_yield[GR_SURENESS_CLASSES];
};

/* A candidate that could be expanded. */
struct gr_open_candidate {
    float score; /* probability of being accepted */
    float prob;  /* the same, given that its parent is */
};

/* rate: as measured; plain decoding's is the least. */
void gr_round_cost_init(struct gr_round_cost *r, const struct gr_cost *cost, float rate);

float gr_level_ns(const struct gr_level_model *m, int n_row);
/* Sizes that have not been measured for a while follow the one that is: what slowed them down then has ended since,
 * or slows them down now, too. */
void gr_level_observe_ns(struct gr_level_model *m, int n_row, float ns);
/* The calibrated probabilities of one row's children, best first. parent_prob below 0: the root. */
void gr_level_observe_yield(struct gr_level_model *m, float parent_prob, int n, const float *prob);

/* The best number of nodes, 0 .. n. p: (n) falling, n <= GR_NODE_MAX. rate_out: at which time was weighed. */
int gr_tree_size(const struct gr_round_cost *r, float draft_ns, const float *p, int n, float *rate_out);
/* A tree of a job, and what the next level could expand of it. */
struct gr_front {
    const struct gr_round_cost *cost;                  /* borrowed */
    const float *p;                                    /* (n) as above; borrowed */
    int n, n_max;                                      /* nodes; at most so many */
    struct gr_open_candidate open[GR_DRAFT_TOP_K_MAX]; /* (n_open), falling by score */
    int n_open;                                        /* 0: the tree does not take part; it waits for the others' */
    int n_row;  /* out: how many of the open candidates are to be expanded; 0: growing does not pay */
    int n_node; /* out, of gr_tree_sizes(): the best so many are sent */
    /* of the choice */
    float rate, node_price, gain;
    int n_tried;
};
/* The next level of all trees of a job: the rows with the largest gain less the price of the level's time, which every
 * tree of the job waits for. n_row_more: rows that run in the same pass whatever is chosen. */
void gr_tree_size_next_level(const struct gr_level_model *m, float draft_ns, int n_row_more, struct gr_front *front,
                             int n_front);

/* How many nodes of each tree of a job are sent, up to f->n: the most tokens of all together. Their rows lie in one
 * pass, where a step of its price is met by the sum of them, not by one tree. Sessions of other jobs are taken to have
 * as many rows as these on the mean. With one tree it is gr_tree_size(). */
void gr_tree_sizes(float draft_ns, struct gr_front *front, int n_front);

#endif
