/* One rank of a group of GPUs as the checks of this folder have it: a process with a device, joins whose sums are
 * known, and the passes and graphs that they are part of. */
#ifndef GR_TESTS_RANKS_RANK_H
#define GR_TESTS_RANKS_RANK_H

#include "model/cuda/graphs.h"
#include "model/cuda/ranks.h"

#define CHECK_N_OUT 5
#define CHECK_COLUMNS 48 /* of a rank's logits */

/* What all ranks of a run have alike. */
struct checked_group {
    const struct gr_cuda_ranks_maker *maker;
    int n_rank;
    bool exact; /* sums are the tree's, bit for bit */
    bool soft;  /* on GPUs in software: small and few */
    int hidden, n_row_max;
    uint64_t limit_ns;
};

struct rank {
    const struct checked_group *of;
    struct gr_group *group;
    struct gr_cuda_device device;
    struct gr_cuda_ranks *ranks;
    int n_join; /* of enqueue_joins() */
    float *x, *logits;
    int32_t *n_true;
    float *host; /* n_row_max * hidden */
    int n_bad;   /* values that are not what they should be */
};

/* What rank `rank` adds in turn `turn` as its value i; of widely different sizes, so that an order of sums is seen. */
float check_value(int rank, int turn, size_t i);
/* What all ranks' values are together. */
float check_tree(int n_rank, int turn, size_t i);

/* The rank's group in `memory` (check_group_bytes()), its device, its exchange. */
enum gr_status rank_open(struct rank *k, const struct checked_group *of, void *memory, int rank);
void rank_close(struct rank *k);
size_t check_group_bytes(int n_rank);

/* ---- what passes are made of ---- */

void rank_begin_pass(struct rank *k);
enum gr_status rank_finish_pass(struct rank *k);
enum gr_status rank_put(struct rank *k, void *to, const void *from, size_t bytes);
enum gr_status rank_get(struct rank *k, void *to, const void *from, size_t bytes);
/* x is zero, and all ranks have read what lies in both buffers. */
enum gr_status rank_clear(struct rank *k);
/* The values of a turn into its buffer (turn % 2). */
enum gr_status rank_fill(struct rank *k, int turn, int n_row);
/* k->n_join joins of n rows, alternately of both buffers; a gr_cuda_enqueue_fn. */
enum gr_status rank_enqueue_joins(void *rank, int n);
/* x is the sum of what turns [first, first + n_turn) make; else counted in n_bad. */
enum gr_status rank_check_sum(struct rank *k, int first, int n_turn, int n_row);
/* Two joins, one after the other, in the two buffers, of turns turn and turn + 1. */
enum gr_status rank_check_joins(struct rank *k, int turn, int n_row);
/* A graph of two joins, launched n_launch times. */
enum gr_status rank_check_graph(struct rank *k, int n_row, int n_launch);

/* ---- long_checks.c ---- */

/* Joins of each number of rows up to 64, and of a spread up to 2,048. */
enum gr_status check_row_counts(struct rank *k);
/* n graphs are captured, launched and looked at, while another thread of the process takes and gives memory of the
 * device, beside those that watch the group. */
enum gr_status check_captures(struct rank *k, int n);
/* n joins of random sizes; each rank pauses at random between two. */
enum gr_status check_many(struct rank *k, int n);

#endif
