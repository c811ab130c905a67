#include "draft_worker/tree_builder.h"

#include "common/status.h"

#include <string.h>

void gr_tree_builder_begin(struct gr_tree_builder *b, const struct gr_tree_config *config)
{
    b->config = *config;
    b->n_cand = b->n_slot = b->level = b->level_begin = b->n_best = 0;
}

/* Puts candidate c into the sorted list of the n_node best. */
static void insert_best(struct gr_tree_builder *b, int c)
{
    const float score = b->cand[c].score;
    if (b->n_best == b->config.n_node) {
        if (b->n_best == 0 || !(score > b->cand[b->best[b->n_best - 1]].score)) {
            return;
        }
        b->n_best--;
    }
    int at = b->n_best;
    while (at > 0 && score > b->cand[b->best[at - 1]].score) {
        b->best[at] = b->best[at - 1];
        at--;
    }
    b->best[at] = (int16_t)c;
    b->n_best++;
}

void gr_tree_builder_add(struct gr_tree_builder *b, int parent, int n, const int32_t *token, const float *score)
{
    const float base = parent < 0 ? 0.0f : b->cand[parent].score;
    const int16_t depth = parent < 0 ? 1 : (int16_t)(b->cand[parent].depth + 1);
    for (int i = 0; i < n && b->n_cand < GR_BUILDER_CAND_MAX; i++) {
        /* Rounding can push a log-probability above 0; a child must not beat its parent. */
        const float edge = score[i] < 0.0f ? score[i] : 0.0f;
        b->cand[b->n_cand] = (struct gr_candidate){.token = token[i], .parent = (int16_t)parent, .slot = -1,
                                                   .depth = depth, .score = base + edge};
        insert_best(b, b->n_cand++);
    }
}

int gr_tree_builder_next_level(struct gr_tree_builder *b, int16_t *out)
{
    b->level++;
    if (b->level >= b->config.depth) {
        return 0;
    }
    int n = 0;
    for (int i = 0; i < b->n_best && n < b->config.top_k && b->n_slot < GR_DRAFT_SLOT_MAX; i++) {
        const int c = b->best[i];
        if (c >= b->level_begin) {
            b->cand[c].slot = (int16_t)b->n_slot++;
            out[n++] = (int16_t)c;
        }
    }
    b->level_begin = b->n_cand;
    return n;
}

void gr_tree_builder_finish(const struct gr_tree_builder *b, struct gr_token_tree *tree_out,
                            int16_t slot_out[GR_NODE_MAX])
{
    int16_t order[GR_NODE_MAX];
    memcpy(order, b->best, sizeof(order));
    for (int i = 1; i < b->n_best; i++) { /* by candidate number: parents first */
        const int16_t c = order[i];
        int at = i;
        while (at > 0 && order[at - 1] > c) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = c;
    }
    tree_out->n = b->n_best;
    for (int i = 0; i < b->n_best; i++) {
        const struct gr_candidate *c = &b->cand[order[i]];
        int parent = -1;
        for (int j = 0; c->parent >= 0 && j < i; j++) {
            parent = order[j] == c->parent ? j : parent;
        }
        GR_ASSERT((parent >= 0) == (c->parent >= 0));
        tree_out->token[i] = c->token;
        tree_out->parent[i] = (int16_t)parent;
        slot_out[i] = c->slot;
    }
}
