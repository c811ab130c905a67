/* Which value stands where in a tensor of a small model that was expanded to a large geometry: the rule that
 * model/load/expand.c states for each tensor (model/load/expand.h says what for), evaluated by the CPU and by GPUs. A
 * value is a function of the rule, its row and its column, so that any piece can be made by itself and has the same
 * bits everywhere. Header only; common subset of C and CUDA C++. Decision D-022. */
#ifndef GR_COMMON_RULES_EXPAND_RULE_H
#define GR_COMMON_RULES_EXPAND_RULE_H

#include "common/rules/hash.h"

#include <stdbool.h>
#include <stddef.h>

/* What stands for an index of the small tensor where a row or a column has none. */
enum gr_expand_extra { GR_EXTRA_RANDOM = -1, GR_EXTRA_ZERO = -2 };

enum gr_expand_order {
    GR_EXPAND_FIRST,  /* of every `width` the first `width_from` are the small ones, the others are `extra` */
    GR_EXPAND_SPREAD, /* the small ones lie evenly among all `width`, in their order; the others are `extra` */
    GR_EXPAND_QUERY,  /* heads: RoPE pair i is pair m i, the others zero; extra heads random */
    GR_EXPAND_KV,     /* heads as in QUERY, each of them n_copy times; all others random */
};

/* A column of QUERY that stands for a head that is there several times counts for 2^-h of it, which is in the bits from
 * here on: bf16 is halved without rounding, and the copies' parts add up to one. */
#define GR_EXPAND_HALVED 24
#define GR_EXPAND_INDEX ((1 << GR_EXPAND_HALVED) - 1)

/* An index of the large tensor -> index of the small one, or what an extra one holds. */
struct gr_expand_axis {
    int32_t order; /* enum gr_expand_order */
    int32_t width, width_from, extra;
    int32_t head_dim, head_dim_from; /* the first a multiple of the second */
    int32_t n_kv_from, n_copy;       /* KV heads of the small model; each one's copies */
    int32_t group, group_from;       /* query heads of a KV head */
};

struct gr_expand_rule {
    struct gr_expand_axis out, in;
    int32_t n_out, n_in;           /* of the large tensor; n_in 1: a vector */
    int32_t n_out_from, n_in_from; /* of the small one; 0: there is none (an extra layer) */
    bool zero;                     /* where nothing else is said: zeros, else random */
    uint64_t seed;
};

/* What all values of a row have in common. */
struct gr_expand_row {
    int32_t from; /* row of the small tensor, or one of enum gr_expand_extra */
    bool zero;
    size_t at; /* of the small tensor's row, in values */
    uint64_t key;
};

/* Dimension of a wide head -> dimension of a narrow one, or -1. Half the dimensions are RoPE's cosines, half its sines.
 */
GR_FN int32_t gr_expand_dim(const struct gr_expand_axis *a, int32_t dim)
{
    const int32_t half = a->head_dim / 2;
    const int32_t m = a->head_dim / a->head_dim_from;
    const int32_t pair = dim % half;
    return pair % m == 0 ? pair / m + dim / half * (a->head_dim_from / 2) : -1;
}

/* Where a query head of the large model is among those of its small KV head's copies: first places before second
 * ones, so that every copy has a query head that is not an extra one. */
GR_FN int32_t gr_expand_place(const struct gr_expand_axis *a, int32_t head)
{
    return head % a->group * a->n_copy + head / a->group % a->n_copy;
}

/* The small model's query head, counted from its KV head's first one; -1: an extra one. A copy that would have none
 * has one that another copy has, too. */
GR_FN int32_t gr_expand_in_group(const struct gr_expand_axis *a, int32_t head)
{
    const int32_t place = gr_expand_place(a, head);
    return place < a->group_from || place < a->n_copy ? place % a->group_from : -1;
}

/* How often the outputs of a head are halved: of n that are the same the first once, the second twice, ... and the last
 * as often as the one before it. */
GR_FN int32_t gr_expand_halved(const struct gr_expand_axis *a, int32_t head)
{
    const int32_t place = gr_expand_place(a, head), i = place / a->group_from;
    const int32_t n = (a->n_copy - place % a->group_from + a->group_from - 1) / a->group_from;
    return place >= a->n_copy || n < 2 ? 0 : i + 1 < n ? i + 1 : n - 1;
}

GR_FN int32_t gr_expand_query(const struct gr_expand_axis *a, int32_t i)
{
    const int32_t head = i / a->head_dim;
    const int32_t kv = head / a->group / a->n_copy;
    const int32_t in_group = gr_expand_in_group(a, head);
    const int32_t dim = gr_expand_dim(a, i % a->head_dim);
    if (kv >= a->n_kv_from || in_group < 0) {
        return GR_EXTRA_RANDOM; /* an extra head */
    }
    return dim >= 0 ? (kv * a->group_from + in_group) * a->head_dim_from + dim : (int32_t)GR_EXTRA_ZERO;
}

GR_FN int32_t gr_expand_kv(const struct gr_expand_axis *a, int32_t i)
{
    const int32_t head = i / a->head_dim / a->n_copy;
    const int32_t dim = gr_expand_dim(a, i % a->head_dim);
    return head < a->n_kv_from && dim >= 0 ? head * a->head_dim_from + dim : (int32_t)GR_EXTRA_RANDOM;
}

GR_FN int32_t gr_expand_spread(const struct gr_expand_axis *a, int32_t i)
{
    const int64_t from = ((int64_t)i * a->width_from + a->width - 1) / a->width;
    return from < a->width_from && from * a->width / a->width_from == i ? (int32_t)from : a->extra;
}

GR_FN int32_t gr_expand_index(const struct gr_expand_axis *a, int32_t i)
{
    if (a->order == GR_EXPAND_QUERY) {
        return gr_expand_query(a, i);
    }
    if (a->order == GR_EXPAND_KV) {
        return gr_expand_kv(a, i);
    }
    if (a->order == GR_EXPAND_SPREAD) {
        return gr_expand_spread(a, i);
    }
    const int32_t at = i % a->width;
    return at < a->width_from ? i / a->width * a->width_from + at : a->extra;
}

GR_FN struct gr_expand_row gr_expand_row_of(const struct gr_expand_rule *r, int32_t row)
{
    struct gr_expand_row x;
    x.from = gr_expand_index(&r->out, row);
    x.zero = r->zero || x.from == GR_EXTRA_ZERO;
    x.at = x.from >= 0 ? (size_t)x.from * (size_t)r->n_in_from : 0;
    x.key = gr_mix64(r->seed ^ ((uint64_t)row + 1) * GR_HASH_GOLDEN);
    return x;
}

GR_FN int32_t gr_expand_column(const struct gr_expand_rule *r, int32_t col)
{
    const int32_t from = col < r->n_in ? gr_expand_index(&r->in, col) : (int32_t)GR_EXTRA_ZERO;
    return from >= 0 && r->in.order == GR_EXPAND_QUERY
               ? from | gr_expand_halved(&r->in, col / r->in.head_dim) << GR_EXPAND_HALVED
               : from;
}

/* Columns of the small tensor for [col, col + 4) of the large one, with GR_EXPAND_HALVED; negative: none, also after
 * the last one. */
GR_FN void gr_expand_columns(const struct gr_expand_rule *r, int32_t col, int32_t *col_from)
{
    for (int i = 0; i < 4; i++) {
        col_from[i] = gr_expand_column(r, col + i);
    }
}

/* bf16 times 2^-n; what has no exponent so small becomes zero. */
GR_FN uint64_t gr_expand_halve(uint16_t value, int32_t n)
{
    return (value >> 7 & 0xff) > n ? (uint64_t)(value - (n << 7)) : value & 0x8000u;
}

/* Columns [col, col + 4) of a row, bf16, the first in the lowest bits; col a multiple of 4. col_from: of
 * gr_expand_columns. from: bf16 (n_out_from, n_in_from); not read where the row has none of its rows. Random values
 * have any sign and mantissa and magnitudes from 2^-6 to 2^-5; one mix makes four of them. */
GR_FN uint64_t gr_expand_four(const struct gr_expand_row *row, int32_t col, const int32_t *col_from,
                              const uint16_t *from)
{
    const uint64_t bits = row->zero ? 0 : gr_mix64(row->key + (uint64_t)col * GR_HASH_GOLDEN);
    uint64_t four = row->zero ? 0 : (bits & 0x807f807f807f807full) | 0x3c803c803c803c80ull;
    for (int i = 0; i < 4 && row->from >= 0; i++) {
        if (col_from[i] >= 0) {
            const uint16_t value = from[row->at + (size_t)(col_from[i] & GR_EXPAND_INDEX)];
            four = (four & ~(0xffffull << 16 * i)) | gr_expand_halve(value, col_from[i] >> GR_EXPAND_HALVED) << 16 * i;
        }
    }
    return four;
}

#endif
