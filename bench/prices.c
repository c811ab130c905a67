#include "bench/prices.h"

#include "bench/table.h"
#include "common/base/log.h"
#include "common/protocol/specpv.h"
#include "model/llama.h"
#include "target_worker/compute/verifier.h"

#include <stdlib.h>
#include <string.h>

#define N_REP 3       /* passes of each size, of which the median counts */
#define CHUNK 256     /* rows that fill the context */
#define MIDDLE 32     /* tokens that a view has after it in the middle of its life */
#define TREE_BELOW 16 /* rows of the tree after the missing tokens of a refresh, at most */

struct gr_prices {
    struct gr_prices_config c;
    struct gr_lm *lm;
    struct gr_verifier *verifier;
    struct gr_kv_table table;
    int32_t *token;   /* owned, (n_ctx_max) */
    int32_t n_filled; /* tokens of context that have KV */
    int32_t n_pool_block;
    struct gr_pass_seq seq;
};

enum gr_status gr_prices_create(const struct gr_prices_config *config, struct gr_prices **out)
{
    const int32_t n_token = config->n_ctx_max + CHUNK + config->n_buffer + GR_TREE_MAX;
    const int32_t n_block = (n_token + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
    const struct gr_llama_config model = {.dir = config->model,
                                          .head_dir = config->head,
                                          .n_ctx_max = n_token,
                                          .n_pool_block = n_block,
                                          .n_row_max = GR_TREE_MAX + GR_MAX(config->n_buffer, CHUNK),
                                          .n_out_max = GR_TREE_MAX + config->n_buffer + 1,
                                          .n_scratch_block = GR_SCRATCH_BLOCKS};
    const struct gr_kv_budget most = {
        .n_sink = GR_SPECPV_N_SINK, .n_retrieval = config->n_retrieval_max, .n_window = GR_SPECPV_N_WINDOW};
    struct gr_prices *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    *out = p;
    p->c = *config;
    p->n_pool_block = n_block;
    p->token = calloc((size_t)n_token, sizeof(*p->token));
    if (p->token == NULL) {
        log_error("out of memory for %d tokens", n_token);
        return GR_ENOMEM;
    }
    GR_TRY(gr_llama_create(&model, NULL, NULL, &p->lm));
    if (config->n_retrieval_max > 0) {
        GR_TRY(gr_lm_view_create(p->lm, &most, 1));
    }
    for (int32_t i = 0; i < n_token; i++) {
        p->token[i] = (int32_t)((int64_t)i * 7919 % p->lm->n_vocab);
    }
    GR_TRY(gr_kv_table_init(&p->table, n_block));
    for (int32_t b = 0; b < n_block; b++) {
        p->table.block[p->table.n_block++] = b;
    }
    return gr_verifier_create(p->lm, 1, &p->verifier);
}

void gr_prices_destroy(struct gr_prices *p)
{
    if (p == NULL) {
        return;
    }
    gr_verifier_destroy(p->verifier);
    gr_kv_table_finish(&p->table);
    gr_lm_destroy(p->lm);
    free(p->token);
    free(p);
}

static struct gr_pass_seq *begin_seq(struct gr_prices *p, enum gr_pass_kind kind, int32_t pos0, int32_t n_row)
{
    struct gr_pass_seq *q = &p->seq;
    memset(q, 0, sizeof(*q));
    q->kind = kind;
    q->pos0 = pos0;
    q->n_row = n_row;
    q->token = p->token + pos0;
    q->tail = p->token[pos0];
    q->table = &p->table;
    q->stop.n_new_max = GR_TREE_MAX;
    q->correction = q->corrupt_at = -1;
    q->dense_from = GR_VIEW_NONE;
    for (int b = 0; b < GR_SCRATCH_BLOCKS; b++) {
        q->scratch_block[b] = p->n_pool_block + b;
    }
    return q;
}

static enum gr_status run_seq(struct gr_prices *p, double *ns)
{
    struct gr_pass pass = {.n_seq = 1, .n_seq_max = 1, .seq = &p->seq};
    gr_verifier_run(p->verifier, &pass);
    *ns = (double)pass.forward_ns;
    return pass.status;
}

/* KV of the context, chunk by chunk, each a text of its own: what is read later is there, and a long context costs no
 * attention now. */
static enum gr_status fill(struct gr_prices *p, int32_t context)
{
    for (; p->n_filled < context; p->n_filled += CHUNK) {
        const struct gr_kv_table chunk = {.block = p->table.block + p->n_filled / GR_KV_BLOCK_TOKENS,
                                          .n_block = p->table.n_block - p->n_filled / GR_KV_BLOCK_TOKENS};
        double ns;
        struct gr_pass_seq *q = begin_seq(p, GR_PASS_PREFILL, 0, CHUNK);
        q->table = &chunk;
        q->token = p->token + p->n_filled;
        GR_TRY(run_seq(p, &ns));
    }
    return GR_OK;
}

/* The tail and a chain of nodes after it; refresh: n_row are those and missing tokens before them. */
static enum gr_status run_rows(struct gr_prices *p, enum gr_price_kind kind, int32_t context, int32_t n_row,
                               const struct gr_kv_budget *budget, double *ns)
{
    const int32_t n_tree = kind == GR_PRICE_REFRESH ? GR_MIN(n_row - 1, GR_MIN(p->c.n_tree_row, TREE_BELOW)) : n_row;
    const int32_t n_chain = n_row - n_tree;
    struct gr_pass_seq *q = begin_seq(p, n_tree > 1 ? GR_PASS_TREE : GR_PASS_ROOT, context + n_chain, n_tree);
    q->tree.n = n_tree - 1;
    for (int32_t i = 0; i < q->tree.n; i++) {
        q->tree.token[i] = p->token[i];
        q->tree.parent[i] = (int16_t)(i - 1);
    }
    q->partial = kind == GR_PRICE_PARTIAL;
    q->refresh_view = kind == GR_PRICE_REFRESH;
    q->n_chain = n_chain;
    q->chain_token = p->token + context;
    q->view_budget = *budget;
    return run_seq(p, ns);
}

static enum gr_status measure_point(struct gr_prices *p, enum gr_price_kind kind, int32_t context, int32_t n_row,
                                    const struct gr_kv_budget *budget, struct gr_price_list *out)
{
    double ns[N_REP];
    const int i = out->n_point[kind]++;
    for (int k = -1; k < N_REP; k++) {
        double once = 0.0;
        GR_TRY(run_rows(p, kind, context, n_row, budget, &once));
        if (k >= 0) {
            ns[k] = once;
        }
    }
    out->n_row[kind][i] = n_row;
    out->ns[kind][i] = gr_median(ns, N_REP);
    return GR_OK;
}

/* Every doubling of rows up to the first that is enough, from `from` on. */
static enum gr_status measure_kind(struct gr_prices *p, enum gr_price_kind kind, int32_t context, int32_t from,
                                   int32_t most, const struct gr_kv_budget *budget, struct gr_price_list *out)
{
    out->n_point[kind] = 0;
    for (int32_t n_row = from;; n_row *= 2) {
        GR_TRY(measure_point(p, kind, context, GR_MIN(n_row, most), budget, out));
        if (n_row >= most) {
            return GR_OK;
        }
    }
}

enum gr_status gr_prices_measure(struct gr_prices *p, int32_t context, int32_t n_retrieval, struct gr_price_list *out)
{
    const struct gr_kv_budget budget = {
        .n_sink = GR_SPECPV_N_SINK, .n_retrieval = n_retrieval, .n_window = GR_SPECPV_N_WINDOW};
    GR_ASSERT(context <= p->c.n_ctx_max && n_retrieval <= p->c.n_retrieval_max);
    GR_TRY(fill(p, context));
    if (n_retrieval == 0) {
        return measure_kind(p, GR_PRICE_FULL, context, 1, p->c.n_tree_row, &budget, out);
    }
    GR_TRY(measure_kind(p, GR_PRICE_REFRESH, context, 2, p->c.n_tree_row + p->c.n_buffer, &budget, out));
    /* A refresh at the context itself chooses the view that the partial passes see. */
    double ns;
    GR_TRY(run_rows(p, GR_PRICE_REFRESH, context - 1, 2, &budget, &ns));
    return measure_kind(p, GR_PRICE_PARTIAL, context + MIDDLE, 1, p->c.n_tree_row, &budget, out);
}

double gr_price_ns(const struct gr_price_list *list, enum gr_price_kind kind, int32_t n_row)
{
    const int n = list->n_point[kind];
    const int32_t *at = list->n_row[kind];
    const double *ns = list->ns[kind];
    int i = 0;
    GR_ASSERT(n >= 1);
    if (n == 1) {
        return ns[0];
    }
    while (i + 2 < n && at[i + 1] < n_row) {
        i++;
    }
    return ns[i] + (ns[i + 1] - ns[i]) * (double)(n_row - at[i]) / (double)(at[i + 1] - at[i]);
}
