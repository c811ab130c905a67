#include "draft_worker/tree/tree_builder.h"

#include "common/base/status.h"

#include <string.h>

/* ---- slots ---- */

static int take_slot(struct gr_tree_builder *b)
{
    for (int w = 0; w < (int)GR_ARRAY_LEN(b->slot_used); w++) {
        if (b->slot_used[w] != UINT64_MAX) {
            const int bit = __builtin_ctzll(~b->slot_used[w]);
            b->slot_used[w] |= 1ull << bit;
            return w * 64 + bit;
        }
    }
    return -1;
}

static void free_slot(struct gr_tree_builder *b, int slot)
{
    b->slot_used[slot / 64] &= ~(1ull << (slot % 64));
}

static int n_slot_free(const struct gr_tree_builder *b)
{
    int n = GR_DRAFT_SLOT_MAX;
    for (int w = 0; w < (int)GR_ARRAY_LEN(b->slot_used); w++) {
        n -= __builtin_popcountll(b->slot_used[w]);
    }
    return n;
}

int gr_tree_builder_n_slot(const struct gr_tree_builder *b)
{
    for (int w = (int)GR_ARRAY_LEN(b->slot_used) - 1; w >= 0; w--) {
        if (b->slot_used[w] != 0) {
            return w * 64 + 64 - __builtin_clzll(b->slot_used[w]);
        }
    }
    return 0;
}

/* ---- the store ---- */

void gr_tree_builder_reset(struct gr_tree_builder *b)
{
    b->root_known = false;
    b->root_step = 0;
    b->root_first = b->root_n_child = 0;
    b->n_cand = b->level = b->n_order = b->n_expanded = b->n_best = b->n_front = 0;
    memset(b->slot_used, 0, sizeof(b->slot_used));
}

static int first_child(const struct gr_tree_builder *b, int parent, int *n_out)
{
    *n_out = parent < 0 ? b->root_n_child : b->cand[parent].n_child;
    return parent < 0 ? b->root_first : b->cand[parent].first_child;
}

int gr_tree_builder_child(const struct gr_tree_builder *b, int parent, int32_t token)
{
    int n = 0;
    const int first = first_child(b, parent, &n);
    for (int c = first; c < first + n; c++) {
        if (b->cand[c].token == token) {
            return c;
        }
    }
    return -1;
}

/* Moves candidate `from` down to the end of the n kept ones, below `parent` (new number). */
static void keep(struct gr_tree_builder *b, int from, int parent, int n)
{
    b->map[from] = (int16_t)n;
    b->cand[n] = b->cand[from];
    b->cand[n].parent = (int16_t)parent;
    b->cand[n].first_child = -1; /* set by the first child that is kept */
    if (parent >= 0 && b->cand[parent].first_child < 0) {
        b->cand[parent].first_child = (int16_t)n;
    }
}

void gr_tree_builder_reroot(struct gr_tree_builder *b, int root)
{
    int n = 0;
    GR_ASSERT(b->cand[root].slot >= 0);
    b->root_step = b->cand[root].n_step;
    const int16_t n_child = b->cand[root].n_child;
    for (int c = 0; c < b->n_cand; c++) {
        const int parent = b->cand[c].parent;
        if (parent == root) {
            keep(b, c, -1, n++);
        } else if (parent >= 0 && b->map[parent] >= 0) {
            keep(b, c, b->map[parent], n++);
        } else {
            b->map[c] = -1;
            if (b->cand[c].slot >= 0) {
                free_slot(b, b->cand[c].slot);
            }
        }
    }
    b->n_cand = n;
    b->root_known = true;
    b->root_first = 0;
    b->root_n_child = n_child;
    b->n_best = b->n_front = b->n_order = b->n_expanded = 0;
}

/* Keeps the candidates that entered the tree being built. One that was expanded, but not for this tree, is as if it
 * had never been. */
static void evict(struct gr_tree_builder *b)
{
    int n = 0;
    for (int i = 0; i < b->n_front; i++) { /* known children of the newest level are about to enter */
        int n_child = 0;
        const int first = first_child(b, b->front[i], &n_child);
        for (int c = first; c < first + GR_MIN(n_child, b->config.top_k); c++) {
            b->cand[c].order = INT16_MAX;
        }
    }
    for (int c = 0; c < b->n_cand; c++) {
        const struct gr_candidate *k = &b->cand[c];
        const int parent = k->parent < 0 ? -1 : b->map[k->parent];
        if (k->order >= 0) {
            keep(b, c, parent, n++);
            continue;
        }
        b->map[c] = -1;
        if (k->slot >= 0) {
            free_slot(b, k->slot);
        }
        if (k->parent < 0) {
            b->root_n_child = GR_MIN(b->root_n_child, (int16_t)(k->rank - 1));
        } else if (parent >= 0) {
            struct gr_candidate *p = &b->cand[parent];
            p->n_child = GR_MIN(p->n_child, (uint8_t)(k->rank - 1));
            if (p->n_child == 0 && p->slot >= 0) {
                free_slot(b, p->slot);
                p->slot = -1;
            }
        }
    }
    for (int i = 0; i < b->n_best; i++) {
        b->best[i] = b->map[b->best[i]];
    }
    for (int i = 0; i < b->n_front; i++) {
        b->front[i] = b->front[i] < 0 ? (int16_t)-1 : b->map[b->front[i]];
    }
    b->n_cand = n;
}

static float child_score(const struct gr_tree_builder *b, const struct gr_candidate *c)
{
    if (b->config.best_first) {
        return (c->parent < 0 ? 1.0f : b->cand[c->parent].score) * c->prob;
    }
    return (c->parent < 0 ? 0.0f : b->cand[c->parent].score) + c->edge;
}

/* ---- building ---- */

void gr_tree_builder_begin(struct gr_tree_builder *b, const struct gr_tree_config *config)
{
    b->config = *config;
    b->level = b->n_order = b->n_best = b->n_expanded = 0;
    b->n_front = 1;
    b->front[0] = -1;
    for (int i = 0; i < b->n_cand; i++) { /* parents come first */
        struct gr_candidate *c = &b->cand[i];
        c->order = -1;
        c->depth = c->parent < 0 ? 1 : (int16_t)(b->cand[c->parent].depth + 1);
        c->score = child_score(b, c);
    }
}

/* Puts candidate c into the sorted list of the n_node best. */
static bool insert_best(struct gr_tree_builder *b, int c)
{
    const float score = b->cand[c].score;
    if (b->n_best == b->config.n_node) {
        if (b->n_best == 0 || !(score > b->cand[b->best[b->n_best - 1]].score)) {
            return false;
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
    return true;
}

void gr_tree_builder_add(struct gr_tree_builder *b, int parent, int n, const int32_t *token, const float *edge,
                         const float *prob)
{
    struct gr_candidate *p = parent < 0 ? NULL : &b->cand[parent];
    const int first = b->n_cand;
    n = GR_MIN(n, GR_MIN(GR_NODE_MAX, GR_BUILDER_CAND_MAX - first));
    for (int i = 0; i < n; i++) {
        struct gr_candidate *c = &b->cand[b->n_cand++];
        *c = (struct gr_candidate){.token = token[i],
                                   .parent = (int16_t)parent,
                                   .slot = -1,
                                   .first_child = -1,
                                   .depth = p == NULL ? 1 : (int16_t)(p->depth + 1),
                                   .order = -1,
                                   .n_step = (uint16_t)((p == NULL ? b->root_step : p->n_step) + 1),
                                   .rank = (uint8_t)(i + 1)};
        /* Rounding can push a log-probability above 0; a child must not beat its parent. */
        c->edge = edge[i] < 0.0f ? edge[i] : 0.0f;
        c->prob = prob == NULL ? 0.0f : GR_MIN(prob[i], 1.0f);
        c->score = child_score(b, c);
    }
    if (p == NULL) {
        b->root_known = true;
        b->root_first = (int16_t)first;
        b->root_n_child = (int16_t)n;
    } else {
        p->first_child = n > 0 ? (int16_t)first : -1;
        p->n_child = (uint8_t)n;
    }
}

/* The top_k first children of a candidate enter the tree. queue: where those that are known further down go, and how
 * many there are. */
static int enter_children(struct gr_tree_builder *b, int parent, int16_t *queue, int n_queue)
{
    int n = 0;
    const int first = first_child(b, parent, &n);
    n = GR_MIN(n, b->config.top_k);
    for (int c = first; c < first + n; c++) {
        b->cand[c].order = (int16_t)b->n_order++;
        const bool inserted = insert_best(b, c);
        if (inserted && b->config.best_first && b->cand[c].slot >= 0 && b->cand[c].depth < b->config.depth) {
            queue[n_queue++] = (int16_t)c;
        }
    }
    return n_queue;
}

/* The children of the level that was run enter the tree, in the level's order; best first, what is known below, too. */
static void close_level(struct gr_tree_builder *b)
{
    int16_t queue[GR_DRAFT_TOP_K_MAX + GR_DRAFT_SLOT_MAX + 1];
    int n_queue = b->n_front;
    memcpy(queue, b->front, (size_t)n_queue * sizeof(queue[0]));
    for (int i = 0; i < n_queue; i++) {
        n_queue = enter_children(b, queue[i], queue, n_queue);
    }
    b->n_front = 0;
    b->level++;
}

int gr_tree_builder_next_level(struct gr_tree_builder *b, int16_t *out)
{
    for (;;) {
        int n = 0;
        close_level(b);
        if (b->level >= b->config.depth) {
            return 0;
        }
        for (int i = 0; i < b->n_best && b->n_front < b->config.top_k && b->n_expanded < GR_DRAFT_SLOT_MAX; i++) {
            const int16_t c = b->best[i];
            if (b->cand[c].depth != b->level) {
                continue;
            }
            b->n_expanded++;
            b->front[b->n_front++] = c;
            if (b->cand[c].slot < 0) {
                out[n++] = c;
            }
        }
        if (b->n_front == 0 || n > 0) {
            return n == 0 ? 0 : gr_tree_builder_expand(b, n, out, true);
        }
    }
}

int gr_tree_builder_open(struct gr_tree_builder *b, int16_t *out)
{
    int n = 0;
    close_level(b);
    for (int i = 0; i < b->n_best && n < b->config.top_k; i++) {
        const struct gr_candidate *c = &b->cand[b->best[i]];
        if (c->slot < 0 && c->depth < b->config.depth) {
            out[n++] = b->best[i];
        }
    }
    return n;
}

int gr_tree_builder_ahead(const struct gr_tree_builder *b, int n_max, float min_score, int depth_max, int16_t *out)
{
    int n = 0;
    for (int i = 0; i < b->n_cand; i++) {
        const struct gr_candidate *c = &b->cand[i];
        if (c->slot >= 0 || c->depth >= depth_max || !(c->score >= min_score) ||
            (n == n_max && !(c->score > b->cand[out[n - 1]].score))) {
            continue;
        }
        int at = n < n_max ? n++ : n - 1;
        while (at > 0 && c->score > b->cand[out[at - 1]].score) {
            out[at] = out[at - 1];
            at--;
        }
        out[at] = (int16_t)i;
    }
    return n;
}

int gr_tree_builder_expand(struct gr_tree_builder *b, int n, int16_t *cand, bool may_evict)
{
    const bool room = n <= n_slot_free(b) && b->n_cand + n * GR_NODE_MAX <= GR_BUILDER_CAND_MAX;
    if (!room && may_evict) {
        evict(b);
        for (int i = 0; i < n; i++) {
            cand[i] = b->map[cand[i]];
        }
    }
    n = GR_MIN(n, n_slot_free(b));
    n = GR_MIN(n, (GR_BUILDER_CAND_MAX - b->n_cand) / GR_NODE_MAX);
    for (int i = 0; i < n; i++) {
        b->cand[cand[i]].slot = (int16_t)take_slot(b);
    }
    if (b->config.best_first) {
        b->n_front = n;
        memcpy(b->front, cand, (size_t)n * sizeof(cand[0]));
    }
    return n;
}

void gr_tree_builder_finish(struct gr_tree_builder *b, int n, struct gr_drafted *out)
{
    if (b->n_front > 0) {
        close_level(b);
    }
    n = GR_MIN(n, b->n_best);
    memcpy(out->cand, b->best, (size_t)n * sizeof(out->cand[0]));
    for (int i = 1; i < n; i++) { /* as they entered: parents first */
        const int16_t c = out->cand[i];
        int at = i;
        while (at > 0 && b->cand[out->cand[at - 1]].order > b->cand[c].order) {
            out->cand[at] = out->cand[at - 1];
            at--;
        }
        out->cand[at] = c;
    }
    for (int i = 0; i < n; i++) {
        b->map[out->cand[i]] = (int16_t)i;
    }
    out->tree.n = n;
    for (int i = 0; i < n; i++) {
        const struct gr_candidate *c = &b->cand[out->cand[i]];
        const int parent = c->parent < 0 ? -1 : b->map[c->parent];
        GR_ASSERT(parent < i && (c->parent < 0 || (parent >= 0 && out->cand[parent] == c->parent)));
        out->tree.token[i] = c->token;
        out->tree.parent[i] = (int16_t)parent;
        out->edge[i] = c->edge;
        out->rank[i] = c->rank;
    }
}

bool gr_tree_builder_check(const struct gr_tree_builder *b)
{
    uint64_t seen[GR_DRAFT_SLOT_MAX / 64] = {0};
    for (int i = 0; i < b->n_cand; i++) {
        const struct gr_candidate *c = &b->cand[i];
        int n = 0;
        const int first = first_child(b, c->parent, &n);
        if (c->parent >= i || i != first + c->rank - 1 || c->rank > n ||
            (c->parent >= 0 && b->cand[c->parent].slot < 0)) {
            return false;
        }
        if (c->slot >= 0) {
            const uint64_t bit = 1ull << (c->slot % 64);
            if ((seen[c->slot / 64] & bit) != 0) {
                return false;
            }
            seen[c->slot / 64] |= bit;
        }
    }
    return memcmp(seen, b->slot_used, sizeof(seen)) == 0;
}
