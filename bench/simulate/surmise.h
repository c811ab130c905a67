/* What a draft model knows of its target, as it was measured: in a context it is sure of its first child to some degree
 * (a class), and is right so often. The levels of a tree differ, since a level is reached only where the levels before
 * were right, and a model that was right once is more likely to be right again. Pure. */
#ifndef GR_BENCH_SIMULATE_SURMISE_H
#define GR_BENCH_SIMULATE_SURMISE_H

#include <stdbool.h>
#include <stdint.h>

#define GR_SURMISE_LEVEL_MAX 8
#define GR_SURMISE_CLASS_MAX 16
#define GR_SURMISE_OTHER_MAX 15

struct gr_surmise_class {
    double share; /* of the contexts; those of a level come to 1 */
    double sure;  /* the probability that the model gives its first child */
    double hit;   /* how often the target picks that child */
};

/* Children after the first. Shares of what the first one leaves. */
struct gr_surmise_other {
    double sure, hit;
};

struct gr_surmise_level {
    int n_class, n_other;
    struct gr_surmise_class class[GR_SURMISE_CLASS_MAX];
    struct gr_surmise_other other[GR_SURMISE_OTHER_MAX];
};

struct gr_surmise {
    int n_level; /* the last one stands for all deeper ones */
    struct gr_surmise_level level[GR_SURMISE_LEVEL_MAX];
};

/* One context. */
struct gr_surmised {
    const struct gr_surmise_level *level;
    double sure; /* of the first child */
    int rank;    /* of the target's pick among the children, from 1; 0: it is not among them */
};

/* level counts from 1: that of the children. noise: any 64 bits, the same ones for the same context. */
struct gr_surmised gr_surmise(const struct gr_surmise *s, int level, uint64_t noise);
/* Logarithm of what the model gives the child of this rank. */
float gr_surmised_edge(const struct gr_surmised *s, int rank);

#endif
