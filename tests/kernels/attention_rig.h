/* For the checks of attention: sessions of logical keys (a base of n_base positions and a tree on top) and their places
 * in a pool. Memory is check_alloc()'s; whoever inits frees. */
#ifndef GR_TESTS_KERNELS_ATTENTION_RIG_H
#define GR_TESTS_KERNELS_ATTENTION_RIG_H

#include "tests/kernels/check.h"

struct shape {
    int n_head, n_kv_head, head_dim;
    int window; /* 0: all keys */
};

struct session {
    int n_base, n_row;           /* rows are the tree's nodes, or, for a chain, its positions */
    int parent[GR_ATTN_ANC_MAX]; /* -1: the base is its context */
    float *k, *v;                /* (n_base + n_row, n_kv_head, head_dim): the tree's after the base */
    float *q;                    /* (n_row, n_head * head_dim) */
};

/* A pool with random places for the blocks of up to two sessions. */
struct pool {
    struct shape m;
    struct gr_kv_layer kv;
    size_t n_value;
    int n_block, n_used;
    int32_t *order;
};

/* A placed session: what gr_attn_seq points to. */
struct placed {
    struct gr_attn_seq seq;
    int32_t *block, *limit, *scratch_block, *n_anc;
    int16_t *anc;
};

/* n_branch 0: a chain; 1: a tree without branches; more: up to so many rows back. */
void session_init(struct session *s, struct shape m, int n_base, int n_row, int n_branch, float score_scale);
void session_free(struct session *s);
/* Ancestors of row r, itself last. Returns their number. */
int path_of(const struct session *s, int r, int *path);

void pool_init(struct pool *p, struct shape m, int n_block);
void pool_free(struct pool *p);
/* The base in the pool, the tree in scratch at slots in random order with gaps. */
void place_tree(struct pool *p, const struct session *s, struct placed *t);
/* Only row r, as a chain row: its path is in the pool after the base. */
void place_path(struct pool *p, const struct session *s, int r, struct placed *t);
/* All rows as chain rows: a prompt chunk. */
void place_chain(struct pool *p, const struct session *s, struct placed *t);
void placed_free(struct placed *t);

struct attend_rows {
    const struct gr_attn_seq *seq; /* (n_seq) */
    int n_seq;
    const float *q;
    float *out; /* rows are out_stride apart */
    int out_stride;
};
/* One attention call (layer 1, for lists) on n_thread threads. */
void attend(const struct gr_kernels *k, const struct pool *p, const struct attend_rows *r, int n_thread);
/* Against ref; the reason is in check_attention.c. */
double tolerance_of(struct shape m, const struct session *s);

#endif
