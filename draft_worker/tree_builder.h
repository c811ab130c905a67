/* Builds a dynamic token tree by cumulative log-probability, as EAGLE-2 and EAGLE-3 do (arXiv 2406.16858 sec. 4,
 * 2503.01840): level by level, the top_k best candidates of the newest level are expanded into their top_k children;
 * at the end the n_node best candidates of all levels are the tree. Since a child never scores above its parent, that set
 * is closed under parents; ties go to the earlier candidate, so a parent precedes its children.
 *
 * A candidate outside the current n_node best can never come back (scores only fall along a path and the set only gets
 * better), so it is not expanded: same tree, less work. A chain is top_k 1 with depth = n_node.
 *
 * Pure; plain memory; one builder a session. */
#ifndef GR_DRAFT_WORKER_TREE_BUILDER_H
#define GR_DRAFT_WORKER_TREE_BUILDER_H

#include "common/token_tree.h"

#include <stdbool.h>

#define GR_DRAFT_SLOT_MAX 256 /* expanded candidates of a tree: each has a scratch KV slot */
/* The tail and every slot have at most GR_NODE_MAX children that can enter the tree, so this is never short. */
#define GR_BUILDER_CAND_MAX ((GR_DRAFT_SLOT_MAX + 1) * GR_NODE_MAX)
#define GR_DRAFT_TOP_K_MAX 64

struct gr_tree_config {
    int32_t n_node; /* 0 .. 63 */
    int32_t depth;  /* levels, 1 .. 63 */
    int32_t top_k;  /* 1 .. GR_DRAFT_TOP_K_MAX */
};

struct gr_candidate {
    int32_t token;
    int16_t parent; /* candidate or -1: the tail */
    int16_t slot;   /* scratch slot once expanded, else -1 */
    int16_t depth;  /* 1: child of the tail */
    float score;    /* cumulative log-probability */
};

struct gr_tree_builder {
    struct gr_tree_config config;
    int32_t n_cand, n_slot;
    int32_t level;       /* levels built so far */
    int32_t level_begin; /* first candidate of the newest level */
    int32_t n_best;
    int16_t best[GR_NODE_MAX]; /* candidates by score, best first */
    struct gr_candidate cand[GR_BUILDER_CAND_MAX];
};

void gr_tree_builder_begin(struct gr_tree_builder *b, const struct gr_tree_config *config);
/* Children of one row of the newest level (parent -1: the tail): tokens with edge scores (log-probabilities, <= 0). */
void gr_tree_builder_add(struct gr_tree_builder *b, int parent, int n, const int32_t *token, const float *score);
/* Chooses the candidates to expand next and gives each a slot. 0: the tree is done. out: (top_k). */
int gr_tree_builder_next_level(struct gr_tree_builder *b, int16_t *out);
/* The tree, parents before children; slot_out[i]: node i's scratch slot, or -1 when it was not expanded. */
void gr_tree_builder_finish(const struct gr_tree_builder *b, struct gr_token_tree *tree_out,
                            int16_t slot_out[GR_NODE_MAX]);

#endif
