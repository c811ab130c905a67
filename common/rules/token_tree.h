/* The token tree: a flattened draft, parents before children. Node i is row i + 1 of the verify pass; row 0 is
 * the tail (the last committed token). parent[i] = -1: a child of the tail. Positions and ancestor sets are
 * derived from parent[] alone, never sent. Header only; common subset of C and CUDA C++. */
#ifndef GR_COMMON_RULES_TOKEN_TREE_H
#define GR_COMMON_RULES_TOKEN_TREE_H

#include "common/rules/gr_math.h"

#define GR_TREE_MAX 64 /* rows of a tree pass: the tail and at most 63 nodes; an ancestor set is one uint64_t */
#define GR_NODE_MAX (GR_TREE_MAX - 1)

struct gr_token_tree {
    int32_t n; /* nodes, 0 .. GR_NODE_MAX */
    int32_t token[GR_NODE_MAX];
    int16_t parent[GR_NODE_MAX];
};

enum gr_tree_fault {
    GR_TREE_GOOD = 0,
    GR_TREE_BAD_COUNT,  /* n outside 0 .. 63 */
    GR_TREE_BAD_PARENT, /* parent[i] not in -1 .. i - 1: a cycle or a child before its parent */
    GR_TREE_BAD_TOKEN,  /* id outside the vocabulary */
    GR_TREE_DUPLICATE   /* two children of one node with the same token */
};

/* Checks an untrusted tree. *where_out: the offending node (set on a fault only). */
GR_FN enum gr_tree_fault gr_tree_check(const struct gr_token_tree *t, int32_t n_vocab, int *where_out)
{
    if (t->n < 0 || t->n > GR_NODE_MAX) {
        *where_out = t->n;
        return GR_TREE_BAD_COUNT;
    }
    for (int i = 0; i < t->n; i++) {
        *where_out = i;
        if (t->parent[i] < -1 || t->parent[i] >= i) {
            return GR_TREE_BAD_PARENT;
        }
        if (t->token[i] < 0 || t->token[i] >= n_vocab) {
            return GR_TREE_BAD_TOKEN;
        }
        for (int j = 0; j < i; j++) {
            if (t->parent[j] == t->parent[i] && t->token[j] == t->token[i]) {
                return GR_TREE_DUPLICATE;
            }
        }
    }
    return GR_TREE_GOOD;
}

/* Depth of node i below the tail: 1 for a child of the tail. */
GR_FN int gr_tree_depth(const struct gr_token_tree *t, int i)
{
    int depth = 0;
    for (int k = i; k >= 0; k = t->parent[k]) {
        depth++;
    }
    return depth;
}

/* Position of node i in the sequence: base_len - 1 + depth. Siblings share it. */
GR_FN int gr_tree_pos(const struct gr_token_tree *t, int base_len, int i)
{
    return base_len - 1 + gr_tree_depth(t, i);
}

/* Node i and its ancestors, bit per node. */
GR_FN uint64_t gr_tree_ancestors(const struct gr_token_tree *t, int i)
{
    uint64_t set = 0;
    for (int k = i; k >= 0; k = t->parent[k]) {
        set |= 1ull << k;
    }
    return set;
}

/* The child of `parent` (-1: the tail) that carries `token`, or -1. */
GR_FN int gr_tree_child(const struct gr_token_tree *t, int parent, int32_t token)
{
    for (int i = parent + 1; i < t->n; i++) {
        if (t->parent[i] == parent && t->token[i] == token) {
            return i;
        }
    }
    return -1;
}

#endif
