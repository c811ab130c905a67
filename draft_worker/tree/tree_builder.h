/* Builds token trees from candidates: what the draft model says below a root, kept between rounds.
 *
 * Candidates are a store: the children of every row that was run, with their edge scores. A tree is built on top of it,
 * level by level, and asks for a row only where the store has none. So a tree that begins on the candidates of an older
 * round (gr_tree_builder_reroot) is the tree that would be built from nothing, with fewer rows run.
 *
 * Two ways to build:
 *   - by level, as EAGLE-2 and EAGLE-3 do (arXiv 2406.16858 sec. 4, 2503.01840): the top_k best candidates of the
 *     newest level are expanded into their top_k children; at the end the n_node best candidates of all levels are the
 *     tree. The score is the cumulative log-probability. A chain is top_k 1 with depth = n_node;
 *   - best first: whatever candidates are best are expanded, the caller says how many. The score is the cumulative
 *     probability of being accepted. How many rows and nodes pay: tree_size.h.
 * A child never scores above its parent, so the best n are closed under parents; ties go to the candidate that entered
 * earlier, so a parent precedes its children. A candidate outside the current n_node best can never come back (scores
 * only fall along a path and the set only gets better), so it is not expanded: same tree, less work.
 *
 * Pure; plain memory, zeroed by the owner; one builder a session. Decision D-033. */
#ifndef GR_DRAFT_WORKER_TREE_TREE_BUILDER_H
#define GR_DRAFT_WORKER_TREE_TREE_BUILDER_H

#include "common/rules/token_tree.h"

#include <stdbool.h>

#define GR_DRAFT_SLOT_MAX 256 /* expanded candidates: each has a scratch KV slot */
/* The root and every slot have at most GR_NODE_MAX children that can enter a tree, so this is never short. */
#define GR_BUILDER_CAND_MAX ((GR_DRAFT_SLOT_MAX + 1) * GR_NODE_MAX)
#define GR_DRAFT_TOP_K_MAX 64 /* children of a row that are looked at, at most */

struct gr_tree_config {
    int32_t n_node; /* 0 .. 63 */
    int32_t depth;  /* levels, 1 .. 63 */
    int32_t top_k;  /* 1 .. GR_DRAFT_TOP_K_MAX */
    bool best_first;
};

struct gr_candidate {
    int32_t token;
    int16_t parent;        /* candidate or -1: the root */
    int16_t slot;          /* scratch slot once expanded, else -1 */
    int16_t first_child;   /* its n_child children follow one another, by rank; -1: none */
    int16_t depth;         /* 1: child of the root */
    int16_t order;         /* when it entered the tree being built; -1: it has not */
    uint16_t n_step;       /* drafted tokens it rests on, itself included; counts on over re-rooting */
    uint8_t n_child, rank; /* rank among its siblings, from 1 */
    float edge;            /* log-probability given its parent */
    float prob;            /* calibrated probability of being accepted, given that its parent is */
    float score;           /* cumulative; see above */
};

struct gr_tree_builder {
    struct gr_tree_config config;
    bool root_known; /* the root's children are in the store */
    uint16_t root_step;
    int16_t root_first, root_n_child;
    int32_t n_cand;
    uint64_t slot_used[GR_DRAFT_SLOT_MAX / 64];
    /* the tree being built */
    int32_t level;   /* depth of the newest level */
    int32_t n_order; /* candidates that entered */
    int32_t n_expanded;
    int32_t n_best;
    int16_t best[GR_NODE_MAX]; /* candidates by score, best first */
    int32_t n_front;           /* the level whose children are still to enter */
    int16_t front[GR_DRAFT_TOP_K_MAX];
    struct gr_candidate cand[GR_BUILDER_CAND_MAX];
    int16_t map[GR_BUILDER_CAND_MAX]; /* scratch of compaction and finish */
};

/* A tree to send, and what is to be learnt from its verdict. */
struct gr_drafted {
    struct gr_token_tree tree;
    int16_t cand[GR_NODE_MAX]; /* valid until the next gr_tree_builder_reroot() or _expand() */
    float edge[GR_NODE_MAX];   /* log-probability given the parent, as the model says */
    uint8_t rank[GR_NODE_MAX];
};

/* Forgets every candidate: a new root. */
void gr_tree_builder_reset(struct gr_tree_builder *b);
/* The child of a candidate (-1: the root) that carries the token, or -1. */
int gr_tree_builder_child(const struct gr_tree_builder *b, int parent, int32_t token);
/* Makes an expanded candidate the root. The rest is forgotten and its slots are free; the root's own slot, too. */
void gr_tree_builder_reroot(struct gr_tree_builder *b, int cand);

/* Begins a tree on what the store holds. When the root's children are not known they are added next. */
void gr_tree_builder_begin(struct gr_tree_builder *b, const struct gr_tree_config *config);
/* Children of one row (parent -1: the root), best first: tokens, edge scores (log-probabilities, <= 0) and calibrated
 * probabilities (NULL: not wanted by level). */
void gr_tree_builder_add(struct gr_tree_builder *b, int parent, int n, const int32_t *token, const float *edge,
                         const float *prob);
/* By level: chooses the candidates to expand next and gives each a slot; out (GR_DRAFT_TOP_K_MAX): those that are not
 * in the store. 0: the tree is done. */
int gr_tree_builder_next_level(struct gr_tree_builder *b, int16_t *out);
/* Best first: at most top_k candidates of the best n_node that could be expanded, best first. */
int gr_tree_builder_open(struct gr_tree_builder *b, int16_t *out);
/* Ahead of need: at most n_max candidates of the store that could be expanded, best first, none below min_score. */
int gr_tree_builder_ahead(const struct gr_tree_builder *b, int n_max, float min_score, int depth_max, int16_t *out);
/* Gives each of n candidates a slot, in order; returns how many got one. When slots are short and with `evict`, those
 * of candidates outside the tree being built are taken back and candidates are renumbered, also in cand. */
int gr_tree_builder_expand(struct gr_tree_builder *b, int n, int16_t *cand, bool evict);
/* The best n candidates (at most n_best) as a tree, parents before children. */
void gr_tree_builder_finish(struct gr_tree_builder *b, int n, struct gr_drafted *out);

/* One past the highest slot in use. */
int gr_tree_builder_n_slot(const struct gr_tree_builder *b);
/* Every slot in use belongs to one candidate, children stand where their parents say. */
bool gr_tree_builder_check(const struct gr_tree_builder *b);

#endif
