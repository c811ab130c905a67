/* What passes of a target cost on this machine: calibrating passes of a model and verifier in this process, of one
 * session at a context, by rows and kind. A price is linear between the rows that were measured. Nothing of what a
 * worker does enters: the prices are what its rounds are predicted from. */
#ifndef GR_BENCH_PRICES_H
#define GR_BENCH_PRICES_H

#include "common/base/status.h"

#include <stdint.h>

#define GR_PRICE_POINT_MAX 12 /* sizes of a price list, at most */

enum gr_price_kind {
    GR_PRICE_FULL,
    GR_PRICE_PARTIAL, /* under a view */
    GR_PRICE_REFRESH, /* full, with missing tokens before the tree, and it chooses the view anew */
    GR_PRICE_N
};

struct gr_price_list {
    int n_point[GR_PRICE_N];
    int32_t n_row[GR_PRICE_N][GR_PRICE_POINT_MAX]; /* chain rows included */
    double ns[GR_PRICE_N][GR_PRICE_POINT_MAX];     /* of the forward pass, medians */
};

struct gr_prices_config {
    const char *model, *head; /* folders; head NULL: none */
    int32_t n_ctx_max;
    int32_t n_retrieval_max; /* blocks; 0: full passes only */
    int32_t n_tree_row;      /* of the largest tree that is priced, tail included */
    int32_t n_buffer;        /* of the longest chain of missing tokens */
};

struct gr_prices;

GR_NODISCARD enum gr_status gr_prices_create(const struct gr_prices_config *config, struct gr_prices **out);
void gr_prices_destroy(struct gr_prices *p);
/* Passes of every kind at this context; n_retrieval: blocks, 0: full passes only. What `out` holds of kinds that are
 * not measured stays. */
GR_NODISCARD enum gr_status gr_prices_measure(struct gr_prices *p, int32_t context, int32_t n_retrieval,
                                              struct gr_price_list *out);
/* Beyond the measured rows: the slope of the last two goes on. */
double gr_price_ns(const struct gr_price_list *list, enum gr_price_kind kind, int32_t n_row);

#endif
