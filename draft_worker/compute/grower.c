#include "draft_worker/compute/grower.h"

#include "common/rules/bf16.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/no_alloc.h"
#include "common/base/zeroed.h"
#include "draft_worker/tree/tree_size.h"

#include <stdlib.h>
#include <string.h>

/* A candidate less likely than this is not worth a row ahead of need: the probability, and its logarithm. */
#define AHEAD_PROB_MIN 0.002f
#define AHEAD_LOG_PROB_MIN (-6.2f)
/* Committed rows without KV before a tree in most rounds: a leaf that was accepted, and the bonus token. */
#define TAIL_ROWS 3
#define HEAD_TAIL_ROWS 16 /* the same of a head, whose rows of the whole accepted path run again */

/* One row of the batch whose children are wanted. */
struct expansion {
    int32_t seq;  /* index in the job */
    int16_t cand; /* candidate, -1: the tail */
    int32_t n;    /* children found, or GR_PICK_NOT_FINITE */
    int32_t token[GR_DRAFT_TOP_K_MAX];
    float edge[GR_DRAFT_TOP_K_MAX]; /* log-probabilities */
    float prob[GR_DRAFT_TOP_K_MAX]; /* calibrated, where the sequence wants it */
};

/* A sequence of the job that is being run. */
struct growth {
    bool done;
    bool owes_rows; /* rows of committed tokens are still to run */
    bool begun;     /* the root's children are known */
    struct gr_round_cost cost;
    float p[GR_NODE_MAX];             /* probabilities of the best nodes, while a level is chosen */
    int16_t cand[GR_DRAFT_TOP_K_MAX]; /* that could be expanded */
};

struct gr_grower {
    struct gr_lm *lm; /* borrowed */
    int n_seq_max;
    struct growth *growth;                                 /* (n_seq_max) */
    struct gr_front *front;                                /* (n_seq_max) */
    struct gr_level_model level;                           /* learnt over all jobs */
    int32_t *token, *pos, *cell, *out_row, *limit, *n_anc; /* (n_row_max) */
    int32_t *n_top;                                        /* (n_row_max): children that are wanted of each out row */
    const struct gr_sampling **sampling;                   /* (n_row_max) */
    int16_t *anc;                                          /* (n_row_max, GR_ATTN_ANC_MAX) */
    struct gr_attn_seq *seq;                               /* (n_seq_max) */
    int32_t *n_kv_only;           /* (n_seq_max): first rows of which nobody reads more than their KV */
    struct expansion *expansion;  /* (n_out_max) */
    float *scratch;               /* (n_thread, n_vocab) of the target's ids */
    int32_t *work;                /* the same */
    int32_t *copy_src, *copy_dst; /* (n_seq_max * GR_NODE_MAX) */
    /* A head, else NULL. Which of the model's kept states is the one after the row of an expanded candidate, by session
     * and scratch slot, and after them the root's: what their children's rows take. */
    int32_t *state;                 /* (n_seq_max, GR_GROWER_STATES) */
    int32_t *from_state, *to_state; /* (n_row_max) */
    float *true_feature;            /* (n_row_max, feature_width): of the batch's committed rows */
    const float **feature;          /* (n_row_max) */
    const uint16_t **far_feature;   /* (n_row_max): in place of both where the model takes far features, else NULL */
    float *raw;                     /* raw features: (n_row_max, captured states) before fc, else NULL */
    const float **raw_row;          /* (n_row_max) */
    int n_true;                     /* rows of true_feature in the batch */
    int32_t n_vocab;                /* of the target's ids, which children carry */
    struct gr_draft_job *job;       /* the one being run */
    int n_row, n_out, n_batch_seq;
    int n_whole;                   /* of the rows: those that a head runs to the end */
    bool like_level;               /* the batch holds levels, or the few rows of a tail, which cost the same */
    bool fixed_level;              /* times are given, not measured */
    uint64_t (*now_ns)(void *ctx); /* NULL: the machine's clock */
    void *clock_ctx;
    float spent_ns; /* passes of this job */
};

enum gr_status gr_grower_create(struct gr_lm *lm, int n_seq_max, struct gr_grower **out)
{
    bool ok = true;
    struct gr_grower *g = gr_zeroed(1, sizeof(*g), &ok);
    if (!ok) {
        log_error("no memory for growing trees");
        return GR_ENOMEM;
    }
    const size_t n_row = (size_t)lm->n_row_max;
    const size_t n_thread = (size_t)gr_team_size(lm->team);
    const size_t width = (size_t)lm->feature_width;
    g->lm = lm;
    g->n_vocab = lm->to_target != NULL ? lm->n_vocab_target : lm->n_vocab;
    g->n_seq_max = n_seq_max;
    g->growth = gr_zeroed((size_t)n_seq_max, sizeof(*g->growth), &ok);
    g->front = gr_zeroed((size_t)n_seq_max, sizeof(*g->front), &ok);
    g->token = gr_zeroed(n_row, sizeof(int32_t), &ok);
    g->pos = gr_zeroed(n_row, sizeof(int32_t), &ok);
    g->cell = gr_zeroed(n_row, sizeof(int32_t), &ok);
    g->out_row = gr_zeroed(n_row, sizeof(int32_t), &ok);
    g->n_top = gr_zeroed(n_row, sizeof(int32_t), &ok);
    g->sampling = gr_zeroed(n_row, sizeof(*g->sampling), &ok);
    g->limit = gr_zeroed(n_row, sizeof(int32_t), &ok);
    g->n_anc = gr_zeroed(n_row, sizeof(int32_t), &ok);
    g->anc = gr_zeroed(n_row * GR_ATTN_ANC_MAX, sizeof(int16_t), &ok);
    g->seq = gr_zeroed((size_t)n_seq_max, sizeof(*g->seq), &ok);
    g->n_kv_only = gr_zeroed((size_t)n_seq_max, sizeof(*g->n_kv_only), &ok);
    g->expansion = gr_zeroed((size_t)lm->n_out_max, sizeof(*g->expansion), &ok);
    g->scratch = gr_zeroed(n_thread * (size_t)g->n_vocab, sizeof(float), &ok);
    g->work = gr_zeroed(n_thread * (size_t)g->n_vocab, sizeof(int32_t), &ok);
    if (width > 0) {
        GR_ASSERT(lm->n_state >= n_seq_max * GR_GROWER_STATES);
        g->state = gr_zeroed((size_t)n_seq_max * GR_GROWER_STATES, sizeof(*g->state), &ok);
        g->from_state = gr_zeroed(n_row, sizeof(int32_t), &ok);
        g->to_state = gr_zeroed(n_row, sizeof(int32_t), &ok);
        g->true_feature = gr_zeroed(n_row * width, sizeof(float), &ok);
        g->feature = gr_zeroed(n_row, sizeof(*g->feature), &ok);
    }
    if (lm->far_features) {
        g->far_feature = gr_zeroed(n_row, sizeof(*g->far_feature), &ok);
    }
    if (width > 0 && lm->raw_features) {
        g->raw = gr_zeroed(n_row * (size_t)gr_lm_ship_width(lm), sizeof(float), &ok);
        g->raw_row = gr_zeroed(n_row, sizeof(*g->raw_row), &ok);
    }
    g->copy_src = gr_zeroed((size_t)n_seq_max * GR_NODE_MAX, sizeof(int32_t), &ok);
    g->copy_dst = gr_zeroed((size_t)n_seq_max * GR_NODE_MAX, sizeof(int32_t), &ok);
    if (!ok) {
        log_error("out of memory for draft passes of %d rows", lm->n_row_max);
        gr_grower_destroy(g);
        return GR_ENOMEM;
    }
    for (int32_t i = 0; g->state != NULL && i < n_seq_max * GR_GROWER_STATES; i++) {
        g->state[i] = i;
    }
    *out = g;
    return GR_OK;
}

void gr_grower_destroy(struct gr_grower *g)
{
    if (g == NULL) {
        return;
    }
    void *all[] = {g->growth,   g->front, g->token,      g->pos,       g->cell,         g->out_row, g->limit,
                   g->n_anc,    g->anc,   g->seq,        g->expansion, g->scratch,      g->work,    g->copy_src,
                   g->copy_dst, g->state, g->from_state, g->to_state,  g->true_feature, g->feature, g->raw,
                   g->raw_row,  g->n_top, g->sampling,   g->n_kv_only, g->far_feature,  g};
    for (size_t i = 0; i < GR_ARRAY_LEN(all); i++) {
        free(all[i]);
    }
}

/* ---- before the first session ---- */

/* A prompt's pass and one of a single row, as the rows of a sequence that begins at the pool's first cell. */
static enum gr_status run_made_up(struct gr_grower *g, int32_t n_row, const int32_t *block)
{
    const size_t width = (size_t)g->lm->feature_width;
    const struct gr_attn_seq seq = {
        .n_row = n_row, .block = block, .limit = g->limit, .n_anc = g->n_anc, .anc = g->anc};
    const int32_t n_kv_only = n_row - 1;
    for (int32_t i = 0; i < n_row; i++) {
        g->token[i] = 0;
        g->pos[i] = g->cell[i] = i;
        g->limit[i] = i + 1;
        g->n_anc[i] = 0;
        if (width > 0) {
            g->feature[i] = memset(g->true_feature + (size_t)i * width, 0, width * sizeof(float));
        }
    }
    g->out_row[0] = n_row - 1;
    return gr_lm_forward(g->lm, &(struct gr_batch){.n_row = n_row,
                                                   .n_seq = 1,
                                                   .n_out = 1,
                                                   .token = g->token,
                                                   .pos = g->pos,
                                                   .cell = g->cell,
                                                   .seq = &seq,
                                                   .out_row = g->out_row,
                                                   .feature = width > 0 ? g->feature : NULL,
                                                   .n_kv_only = &n_kv_only});
}

enum gr_status gr_grower_touch_memory(struct gr_grower *g, int32_t n_row)
{
    const int32_t n_cell = g->lm->n_pool_block * GR_KV_BLOCK_TOKENS;
    n_row = GR_MIN(n_row, GR_MIN(g->lm->n_row_max, GR_MIN(g->lm->n_ctx_max, n_cell)));
    const size_t n_block = (size_t)(n_row + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
    bool ok = true;
    int32_t *block = gr_zeroed(n_block, sizeof(*block), &ok);
    if (!ok) {
        log_error("no memory for trees of one pass");
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < n_block; i++) {
        block[i] = (int32_t)i;
    }
    enum gr_status st = run_made_up(g, n_row, block);
    if (st == GR_OK) {
        st = run_made_up(g, 1, block);
    }
    free(block);
    return st;
}

/* ---- KV of accepted nodes ---- */

static int32_t slot_cell(const struct gr_draft_seq *s, int slot)
{
    return s->scratch_block[slot / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + slot % GR_KV_BLOCK_TOKENS;
}

static void copy_accepted(struct gr_grower *g)
{
    int n = 0;
    for (int i = 0; i < g->job->n_seq; i++) {
        const struct gr_draft_seq *s = &g->job->seq[i];
        for (int c = 0; c < s->n_copy; c++) {
            g->copy_src[n] = slot_cell(s, s->copy_slot[c]);
            g->copy_dst[n++] = gr_kv_table_cell(s->table, s->copy_pos0 + c - s->kv_shift);
        }
    }
    gr_lm_copy_cells(g->lm, n, g->copy_src, g->copy_dst);
}

/* ---- batches ---- */

static void begin_batch(struct gr_grower *g)
{
    g->n_row = g->n_out = g->n_batch_seq = g->n_true = g->n_whole = 0;
    g->like_level = true;
}

static void begin_batch_seq(struct gr_grower *g, const struct gr_draft_seq *s, int n_row, int n_slot)
{
    GR_ASSERT(g->n_row + n_row <= g->lm->n_row_max);
    g->n_kv_only[g->n_batch_seq] = 0;
    g->n_whole += n_row;
    g->seq[g->n_batch_seq++] = (struct gr_attn_seq){
        .row0 = g->n_row,
        .n_row = n_row,
        .block = s->table->block,
        .limit = g->limit + g->n_row,
        .scratch_block = s->scratch_block,
        .n_anc = g->n_anc + g->n_row,
        .anc = g->anc + (size_t)g->n_row * GR_ATTN_ANC_MAX,
        .n_slot = n_slot,
    };
}

static void expand_row(struct gr_grower *g, int i_seq, int cand)
{
    const struct gr_draft_seq *s = &g->job->seq[i_seq];
    g->out_row[g->n_out] = g->n_row;
    g->n_top[g->n_out] = GR_MIN(s->n_child, GR_NODE_MAX);
    g->sampling[g->n_out] = s->adjust == NULL ? &s->sampling : NULL; /* NULL: it is ranked from its logits */
    g->expansion[g->n_out].seq = i_seq;
    g->expansion[g->n_out].cand = (int16_t)cand;
    g->n_out++;
}

/* The rotary position of a head's row is one less than its token's. */
static int32_t pos_of(const struct gr_grower *g, int32_t token_pos)
{
    return token_pos - (g->lm->feature_width > 0 ? 1 : 0);
}

/* The state of a candidate in this slot; GR_DRAFT_SLOT_MAX: of the root. */
static int32_t *state_of(const struct gr_grower *g, const struct gr_draft_seq *s, int slot)
{
    return g->state + (size_t)s->session * GR_GROWER_STATES + slot;
}

/* bf16 that the host can read becomes f32. */
static void unpack_feature(struct gr_grower *g, const struct gr_draft_seq *s, int r)
{
    const size_t width = (size_t)gr_lm_ship_width(g->lm);
    const size_t at = (size_t)g->n_true;
    float *feature = g->true_feature + at * (size_t)g->lm->feature_width;
    float *to = g->raw != NULL ? g->raw + at * width : feature;
    for (size_t i = 0; i < width; i++) {
        to[i] = gr_bf16_to_f32(s->feature[(size_t)r * width + i]);
    }
    if (g->raw != NULL) {
        g->raw_row[at] = to; /* fused with the others of the batch */
    }
    g->feature[g->n_row] = feature;
    g->n_true++;
}

/* The batch's next row takes the true feature of row r of the sequence, and no kept state; it leaves none. */
static void take_true_feature(struct gr_grower *g, const struct gr_draft_seq *s, int r)
{
    g->from_state[g->n_row] = g->to_state[g->n_row] = -1;
    if (g->far_feature != NULL) {
        g->far_feature[g->n_row] = s->feature + (size_t)r * (size_t)gr_lm_ship_width(g->lm);
    } else {
        unpack_feature(g, s, r);
    }
}

static void add_chain_rows(struct gr_grower *g, int i_seq)
{
    struct gr_draft_seq *s = &g->job->seq[i_seq];
    struct growth *w = &g->growth[i_seq];
    const int n_kv_only = s->task != GR_DRAFT_CATCH_UP ? GR_MAX(s->n_row - 1, 0) : s->n_row;
    g->n_kv_only[g->n_batch_seq - 1] = n_kv_only;
    g->n_whole -= n_kv_only;
    for (int r = 0; r < s->n_row; r++) {
        const int32_t p = s->pos0 + r;
        g->token[g->n_row] = s->token[r];
        g->pos[g->n_row] = pos_of(g, p);
        g->cell[g->n_row] = gr_kv_table_cell(s->table, p - s->kv_shift);
        g->limit[g->n_row] = p - s->kv_shift + 1;
        g->n_anc[g->n_row] = 0;
        if (g->lm->feature_width > 0) {
            take_true_feature(g, s, r);
        }
        if (r == s->n_row - 1 && s->task != GR_DRAFT_CATCH_UP) {
            if (g->lm->feature_width > 0) {
                g->to_state[g->n_row] = *state_of(g, s, GR_DRAFT_SLOT_MAX);
            }
            if (!s->known) {
                expand_row(g, i_seq, -1);
            }
        }
        g->n_row++;
    }
    const int n_like = g->lm->feature_width > 0 ? HEAD_TAIL_ROWS : TAIL_ROWS;
    g->like_level = g->like_level && s->n_row <= n_like && s->task != GR_DRAFT_CATCH_UP;
    s->ran_rows = s->n_row > 0;
    w->owes_rows = false;
}

static void add_chain(struct gr_grower *g, int i_seq)
{
    const struct gr_draft_seq *s = &g->job->seq[i_seq];
    begin_batch_seq(g, s, s->n_row, 0);
    add_chain_rows(g, i_seq);
}

/* A row for an expanded candidate: sees the committed tokens, then its ancestors and itself. */
static void add_node_row(struct gr_grower *g, int i_seq, int cand)
{
    const struct gr_draft_seq *s = &g->job->seq[i_seq];
    const struct gr_tree_builder *b = s->builder;
    const struct gr_candidate *c = &b->cand[cand];
    int16_t *anc = g->anc + (size_t)g->n_row * GR_ATTN_ANC_MAX;
    int k = cand;
    for (int d = c->depth - 1; d >= 0; d--) {
        anc[d] = b->cand[k].slot;
        k = b->cand[k].parent;
    }
    g->token[g->n_row] = c->token;
    g->pos[g->n_row] = pos_of(g, s->base_len - 1 + c->depth);
    g->cell[g->n_row] = slot_cell(s, c->slot);
    g->limit[g->n_row] = s->base_len - s->kv_shift;
    g->n_anc[g->n_row] = c->depth;
    if (g->lm->feature_width > 0) {
        g->from_state[g->n_row] = *state_of(g, s, c->parent < 0 ? GR_DRAFT_SLOT_MAX : b->cand[c->parent].slot);
        g->to_state[g->n_row] = *state_of(g, s, c->slot);
    }
    expand_row(g, i_seq, cand);
    g->n_row++;
}

/* A level. Rows of committed tokens that the session still owes go before it. */
static void add_node_rows(struct gr_grower *g, int i_seq, int n, const int16_t *cand)
{
    struct gr_draft_seq *s = &g->job->seq[i_seq];
    const bool owes = g->growth[i_seq].owes_rows;
    if (n == 0) {
        g->growth[i_seq].done = true;
        return;
    }
    s->n_level++;
    begin_batch_seq(g, s, n + (owes ? s->n_row : 0), gr_tree_builder_n_slot(s->builder));
    if (owes) {
        add_chain_rows(g, i_seq);
    }
    for (int i = 0; i < n; i++) {
        add_node_row(g, i_seq, cand[i]);
    }
}

/* ---- how far a tree grows ---- */

static int best_probs(const struct gr_tree_builder *b, float *p)
{
    for (int i = 0; i < b->n_best; i++) {
        p[i] = b->cand[b->best[i]].score;
    }
    return b->n_best;
}

/* Rows of the batch as the level model counts them. */
static int n_level_row(const struct gr_grower *g)
{
    return g->lm->feature_width > 0 ? g->n_whole : g->n_row;
}

static bool is_sized_by_cost(const struct gr_draft_seq *s)
{
    return s->task == GR_DRAFT_GROW && s->tree_config.best_first;
}

static bool can_grow(const struct gr_grower *g, int i_seq)
{
    return g->job->seq[i_seq].task == GR_DRAFT_GROW && g->growth[i_seq].begun && !g->growth[i_seq].done;
}

static void fill_front(struct gr_grower *g, int i_seq, struct gr_front *f)
{
    const struct gr_draft_seq *s = &g->job->seq[i_seq];
    struct growth *w = &g->growth[i_seq];
    *f = (struct gr_front){.cost = &w->cost, .p = w->p, .n_max = s->tree_config.n_node};
    f->n_open = can_grow(g, i_seq) ? gr_tree_builder_open(s->builder, w->cand) : 0; /* it ranks the nodes, too */
    f->n = w->begun ? best_probs(s->builder, w->p) : 0;
    for (int i = 0; i < f->n_open; i++) {
        const struct gr_candidate *c = &s->builder->cand[w->cand[i]];
        f->open[i] = (struct gr_open_candidate){.score = c->score, .prob = c->prob};
    }
}

/* A level of every tree that grows further, in one pass. Where the size follows the cost they choose together: each
 * waits for all, so what a level takes is paid by all. */
static void add_levels(struct gr_grower *g)
{
    int n_front = 0;
    for (int i = 0; i < g->job->n_seq; i++) {
        if (is_sized_by_cost(&g->job->seq[i])) {
            fill_front(g, i, &g->front[n_front++]);
        } else if (can_grow(g, i)) {
            struct growth *w = &g->growth[i];
            add_node_rows(g, i, gr_tree_builder_next_level(g->job->seq[i].builder, w->cand), w->cand);
        }
    }
    if (n_front == 0) {
        return;
    }
    gr_tree_size_next_level(&g->level, g->spent_ns, n_level_row(g), g->front, n_front);
    const struct gr_front *f = g->front;
    for (int i = 0; i < g->job->n_seq; i++) {
        struct growth *w = &g->growth[i];
        if (!is_sized_by_cost(&g->job->seq[i])) {
            continue;
        }
        if (can_grow(g, i)) {
            add_node_rows(g, i, gr_tree_builder_expand(g->job->seq[i].builder, f->n_row, w->cand, true), w->cand);
        }
        f++;
    }
}

static void add_ahead(struct gr_grower *g, int i_seq)
{
    int16_t front[GR_DRAFT_TOP_K_MAX];
    struct gr_draft_seq *s = &g->job->seq[i_seq];
    const float min = s->builder->config.best_first ? AHEAD_PROB_MIN : AHEAD_LOG_PROB_MIN;
    int n = gr_tree_builder_ahead(s->builder, s->n_ahead, min, s->depth_max, front);
    n = gr_tree_builder_expand(s->builder, n, front, false);
    s->exhausted = n == 0;
    add_node_rows(g, i_seq, n, front);
}

static void finish_trees(struct gr_grower *g)
{
    int n_front = 0;
    for (int i = 0; i < g->job->n_seq; i++) {
        const struct gr_draft_seq *s = &g->job->seq[i];
        struct growth *w = &g->growth[i];
        if (is_sized_by_cost(s)) {
            g->front[n_front++] = (struct gr_front){.cost = &w->cost, .p = w->p, .n = best_probs(s->builder, w->p)};
        }
    }
    if (n_front > 0) {
        gr_tree_sizes(g->spent_ns, g->front, n_front);
    }
    const struct gr_front *f = g->front;
    for (int i = 0; i < g->job->n_seq; i++) {
        struct gr_draft_seq *s = &g->job->seq[i];
        if (s->task == GR_DRAFT_GROW) {
            const int n_node = is_sized_by_cost(s) ? (f++)->n_node : s->tree_config.n_node;
            gr_tree_builder_finish(s->builder, s->not_finite ? 0 : n_node, &s->drafted);
        }
    }
}

/* ---- children ---- */

/* The n largest of l, by value then lowest index. */
static int take_top(const float *l, int n_vocab, int n_max, int32_t *token, float *value)
{
    int n = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        if (!(l[id] > -INFINITY) || (n == n_max && (n == 0 || !(l[id] > value[n - 1])))) {
            continue;
        }
        int at = n < n_max ? n++ : n - 1;
        while (at > 0 && l[id] > value[at - 1]) {
            value[at] = value[at - 1];
            token[at] = token[at - 1];
            at--;
        }
        value[at] = l[id];
        token[at] = id;
    }
    return n;
}

static float log_sum_exp(const struct gr_kernels *k, const float *l, int n)
{
    if (k != NULL) {
        return k->logsumexp(l, n);
    }
    float max = -INFINITY;
    for (int i = 0; i < n; i++) {
        max = l[i] > max ? l[i] : max;
    }
    float sum = 0.0f;
    for (int i = 0; i < n; i++) {
        sum += gr_expf(l[i] - max);
    }
    return gr_logf(sum) + max;
}

static void add_noise(const struct gr_kernels *k, float *l, int n, const struct gr_sampling *s, uint32_t pos)
{
    if (k != NULL) {
        k->add_gumbel(l, l, n, s->seed, pos, s->choice);
        return;
    }
    for (int i = 0; i < n; i++) {
        if (l[i] > -INFINITY) {
            l[i] += gr_gumbel(s->seed, pos, (uint32_t)i, s->choice);
        }
    }
}

/* A row over the target's ids: -inf where the head has none. */
static void scatter(const float *l, const int32_t *map, int n, float *out, int n_out)
{
    for (int i = 0; i < n_out; i++) {
        out[i] = -INFINITY;
    }
    for (int i = 0; i < n; i++) {
        out[map[i]] = l[i];
    }
}

/* From the logits, where the model did not rank them itself. */
static void find_children(struct gr_grower *g, int ith, int i_out)
{
    struct expansion *e = &g->expansion[i_out];
    const struct gr_draft_seq *s = &g->job->seq[e->seq];
    const int32_t *map = g->lm->to_target;
    int n = g->lm->n_vocab;
    const float *l = gr_lm_logits(g->lm, i_out);
    if (!gr_lm_row_is_finite(g->lm, i_out)) {
        e->n = GR_PICK_NOT_FINITE;
        return;
    }
    const bool greedy = gr_temperature_is_greedy(s->sampling.temperature);
    float *scratch = g->scratch + (size_t)ith * (size_t)g->n_vocab;
    if (map != NULL && (s->adjust != NULL || !greedy)) { /* processors and noise are those of the target's ids */
        scatter(l, map, n, scratch, g->n_vocab);
        l = scratch;
        n = g->n_vocab;
        map = NULL;
    }
    if (s->adjust != NULL) {
        if (l != scratch) {
            memcpy(scratch, l, (size_t)n * sizeof(*scratch));
        }
        gr_ban_ids(s->adjust->banned.id, s->adjust->banned.n, scratch, n);
        gr_add_bias(s->adjust, scratch, n);
        l = scratch;
    }
    if (!greedy) {
        const uint32_t pos = (uint32_t)(g->pos[g->out_row[i_out]] - pos_of(g, 0)) + 1; /* of the picked token */
        gr_sampler_process(&s->sampling, l, scratch, n, g->work + (size_t)ith * (size_t)g->n_vocab);
        add_noise(g->lm->kernels, scratch, n, &s->sampling, pos);
        l = scratch;
    }
    const int n_max = GR_MIN(s->n_child, GR_NODE_MAX);
    e->n = take_top(l, n, n_max, e->token, e->edge);
    for (int i = 0; i < e->n && map != NULL; i++) {
        e->token[i] = map[e->token[i]];
    }
    const float norm = log_sum_exp(g->lm->kernels, l, n);
    for (int i = 0; i < e->n; i++) {
        e->edge[i] -= norm;
    }
}

static void rank_children(struct gr_grower *g, int ith, int i_out)
{
    struct expansion *e = &g->expansion[i_out];
    const struct gr_draft_seq *s = &g->job->seq[e->seq];
    if (gr_lm_has_picked(g->lm, i_out)) {
        const struct gr_top_row *top = &g->lm->top[i_out];
        e->n = top->n;
        memcpy(e->token, top->id, (size_t)GR_MAX(top->n, 0) * sizeof(*e->token));
        memcpy(e->edge, top->edge, (size_t)GR_MAX(top->n, 0) * sizeof(*e->edge));
    } else {
        find_children(g, ith, i_out);
    }
    for (int i = 0; i < e->n && s->calibrate; i++) {
        e->prob[i] = gr_acceptance_prob(&s->curve, i + 1, gr_expf(GR_MIN(e->edge[i], 0.0f)));
    }
}

static void rank_all(const struct gr_exec *x, void *arg)
{
    struct gr_grower *g = arg;
    for (int i = x->ith; i < g->n_out; i += x->nth) {
        rank_children(g, x->ith, i);
    }
}

static uint64_t now_ns(const struct gr_grower *g)
{
    return g->now_ns != NULL ? g->now_ns(g->clock_ctx) : gr_clock_ns();
}

/* Runs the batch and hands the children to the builders. */
static enum gr_status run_batch(struct gr_grower *g)
{
    const struct gr_batch batch = {.n_row = g->n_row,
                                   .n_seq = g->n_batch_seq,
                                   .n_out = g->n_out,
                                   .token = g->token,
                                   .pos = g->pos,
                                   .cell = g->cell,
                                   .seq = g->seq,
                                   .out_row = g->out_row,
                                   .feature = g->feature,
                                   .far_feature = g->far_feature,
                                   .from_state = g->from_state,
                                   .to_state = g->to_state,
                                   .sampling = g->sampling,
                                   .n_top = g->n_top,
                                   .n_kv_only = g->n_kv_only};
    const uint64_t t0 = now_ns(g);
    if (g->raw != NULL && g->n_true > 0) {
        gr_lm_fuse(g->lm, g->n_true, g->raw_row, g->true_feature);
    }
    GR_TRY(gr_lm_forward(g->lm, &batch));
    gr_team_run(gr_lm_pick_team(g->lm, g->n_out), rank_all, g);
    for (int i = 0; i < g->n_out; i++) {
        struct expansion *e = &g->expansion[i];
        struct gr_draft_seq *s = &g->job->seq[e->seq];
        s->not_finite = s->not_finite || e->n < 0;
        e->n = GR_MAX(e->n, 0);
        gr_tree_builder_add(s->builder, e->cand, e->n, e->token, e->edge, s->calibrate ? e->prob : NULL);
        if (s->calibrate) {
            const float parent = e->cand < 0 ? -1.0f : s->builder->cand[e->cand].prob;
            gr_level_observe_yield(&g->level, parent, e->n, e->prob);
        }
    }
    const int n_row = n_level_row(g);
    const float ns = g->fixed_level ? gr_level_ns(&g->level, n_row) : (float)(now_ns(g) - t0);
    if (g->like_level && !g->fixed_level) {
        gr_level_observe_ns(&g->level, n_row, ns);
    }
    g->spent_ns += ns;
    return GR_OK;
}

/* The first pass: committed tokens without KV; a session whose root's children are known begins with a level. */
static void add_first(struct gr_grower *g, int i_seq)
{
    const struct gr_draft_seq *s = &g->job->seq[i_seq];
    if (s->task == GR_DRAFT_AHEAD) {
        add_ahead(g, i_seq);
    } else if (!g->growth[i_seq].begun) {
        add_chain(g, i_seq);
    }
}

static enum gr_status grow_all(struct gr_grower *g)
{
    begin_batch(g);
    for (int i = 0; i < g->job->n_seq; i++) {
        add_first(g, i);
    }
    add_levels(g);
    while (g->n_row > 0) {
        GR_TRY(run_batch(g));
        begin_batch(g);
        for (int i = 0; i < g->job->n_seq; i++) {
            g->growth[i].begun = true;
        }
        add_levels(g);
    }
    return GR_OK;
}

static void begin_seq(struct gr_grower *g, int i_seq)
{
    struct gr_draft_seq *s = &g->job->seq[i_seq];
    g->growth[i_seq].done = false;
    g->growth[i_seq].owes_rows = s->n_row > 0;
    g->growth[i_seq].begun = s->n_row == 0 || s->known;
    s->n_level = 0;
    s->exhausted = s->ran_rows = s->not_finite = false;
    if (g->lm->feature_width > 0 && s->root_slot >= 0) { /* the slot is nobody's any more */
        int32_t *const root = state_of(g, s, GR_DRAFT_SLOT_MAX);
        int32_t *const slot = state_of(g, s, s->root_slot);
        const int32_t before = *root;
        *root = *slot;
        *slot = before;
    }
    if (s->task == GR_DRAFT_GROW) {
        gr_tree_builder_begin(s->builder, &s->tree_config);
        if (s->tree_config.best_first) {
            gr_round_cost_init(&g->growth[i_seq].cost, &s->cost, s->rate);
        }
    }
}

void gr_grower_run(struct gr_grower *g, struct gr_draft_job *job)
{
    const uint64_t t0 = now_ns(g);
    GR_ASSERT(job->n_seq <= g->n_seq_max);
    gr_no_alloc_begin();
    g->job = job;
    g->spent_ns = 0.0f;
    for (int i = 0; i < job->n_seq; i++) {
        begin_seq(g, i);
    }
    copy_accepted(g);
    job->status = grow_all(g);
    if (job->status == GR_OK) {
        finish_trees(g);
    }
    gr_no_alloc_end();
    job->compute_ns = g->fixed_level ? (uint64_t)g->spent_ns : now_ns(g) - t0;
}

void gr_grower_fix_level_ns(struct gr_grower *g, uint32_t level_ns, uint32_t row_ns)
{
    g->fixed_level = true;
    for (int n = 1; n <= GR_LEVEL_ROW_MAX; n++) {
        g->level.ns[n] = (float)level_ns + (float)n * (float)row_ns;
    }
}

void gr_grower_use_clock(struct gr_grower *g, uint64_t (*clock_ns)(void *ctx), void *ctx)
{
    g->now_ns = clock_ns;
    g->clock_ctx = ctx;
}
