/* What a draft model knows of its target, as it was measured. Pure.
 *
 * Either as classes of contexts, drawn one by one: in a context of a class the model gives its first child a
 * probability, and the target picks that child with a frequency that was counted. The levels of a tree differ, since a
 * level is reached only where the levels before it were right, and a model that was right once is more likely to be
 * right again.
 *
 * Or as recorded texts: what the model gave its children at each position of a text, and which of them the target
 * picked there. Texts have easy and hard stretches, which contexts that are drawn one by one have not. */
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

/* A child after the first, as shares of what the first one leaves. */
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

#define GR_SURMISE_TEXT_MAX 16
#define GR_SURMISE_PROB_MAX 4
#define GR_SURMISE_RANK_MAX 15

/* A context of a recorded text. */
struct gr_surmise_row {
    uint8_t rank;                    /* of the target's pick, as below */
    float prob[GR_SURMISE_PROB_MAX]; /* that the model gives its first children; further ones fall off evenly */
};

struct gr_surmise_texts {
    int n_text; /* 0: there are none */
    int n_pos, n_level;
    struct gr_surmise_row *row; /* owned by who read them, (n_text, n_pos, n_level) */
};

/* One context. */
struct gr_surmised {
    const struct gr_surmise_level *level; /* of classes, else NULL */
    const struct gr_surmise_row *row;     /* of a text, else NULL */
    double sure;                          /* of the first child; of classes */
    int rank;                             /* of the target's pick among the children, from 1; 0: it is not among them */
};

/* level counts from 1: that of the children. noise: any 64 bits, the same ones for the same context. */
struct gr_surmised gr_surmise(const struct gr_surmise *s, int level, uint64_t noise);
/* pos: of the target's pick in the text, which begins anew after its end; the last level stands for deeper ones. */
struct gr_surmised gr_surmise_recall(const struct gr_surmise_texts *t, int text, int pos, int level);
/* How many children the model has at most. */
int gr_surmised_n(const struct gr_surmised *s);
/* Logarithm of what the model gives the child of this rank. */
float gr_surmised_edge(const struct gr_surmised *s, int rank);

#endif
