/* A DRAFT's tree, followed along the tokens that were committed since its base. Decision D-054. */
#include "target_worker/machine/target_internal.h"

void target_walk_forget(struct walked_tree *w)
{
    w->valid = false;
}

bool target_walk_tree(const struct session *s, struct walked_tree *w)
{
    while (w->valid && w->at_len < s->prefix.len) {
        const int child = gr_tree_child(&w->tree, w->root, s->prefix.token[w->at_len]);
        w->valid = child >= 0;
        if (w->valid) {
            w->root = (int16_t)child;
            w->at_len++;
        }
    }
    return w->valid;
}

void target_subtree(const struct walked_tree *w, int32_t depth_max, int32_t n_max, struct gr_token_tree *to,
                    uint8_t node_of[GR_NODE_MAX])
{
    const struct gr_token_tree *from = &w->tree;
    int16_t new_index[GR_NODE_MAX];
    int16_t depth[GR_NODE_MAX];
    to->n = 0;
    for (int i = 0; i < from->n; i++) {
        const int parent = from->parent[i];
        const bool child_of_root = parent == w->root;
        new_index[i] = -1;
        if (to->n >= n_max || (!child_of_root && (parent < 0 || new_index[parent] < 0))) {
            continue;
        }
        depth[i] = child_of_root ? 1 : (int16_t)(depth[parent] + 1);
        if (depth[i] > depth_max) {
            continue;
        }
        new_index[i] = (int16_t)to->n;
        to->token[to->n] = from->token[i];
        to->parent[to->n] = child_of_root ? (int16_t)-1 : new_index[parent];
        node_of[to->n++] = (uint8_t)i;
    }
}

bool target_has_children(const struct walked_tree *w)
{
    for (int i = w->root + 1; i < w->tree.n; i++) {
        if (w->tree.parent[i] == w->root) {
            return true;
        }
    }
    return false;
}
