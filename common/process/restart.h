/* What follows from the end of a child process: is it started again, when, and does that deserve a line? Pure: time is
 * given, nothing is logged or started here. children.h asks it. Decision D-087. */
#ifndef GR_COMMON_PROCESS_RESTART_H
#define GR_COMMON_PROCESS_RESTART_H

#include <stdbool.h>
#include <stdint.h>

/* How a child ended. */
enum gr_end_kind {
    GR_END_SIGNAL, /* a signal killed it */
    GR_END_DEVICE, /* its device failed: another process may do better */
    GR_END_LINK,   /* it lost its orchestrator */
    GR_END_FAILED, /* it gave up by itself, with an error of its own */
};

struct gr_restart_rule {
    uint64_t pause_max_ns; /* the longest pause before a start */
    int fruitless_max;     /* it is given up after as many ends in a row without progress; 0: never */
};

/* One child's history. Zeroed by its owner at the first start. */
struct gr_restart {
    int n_short;     /* ends in a row, each after a short life */
    int n_fruitless; /* ends in a row without progress in between */
    int n_end;       /* ends since the first start */
    bool worked;     /* it has joined an orchestrator at least once, in whatever life */
    bool joined;     /* it has joined in this life */
    bool told;       /* that it cannot come back has been told since it last joined */
    bool silent;     /* why it cannot come back has been told, too */
};

enum gr_restart_verdict {
    GR_RESTART_AGAIN,
    GR_RESTART_NEVER_WORKED, /* given up: it gave up by itself in its first life, before it had joined */
    GR_RESTART_FRUITLESS,    /* given up: too many ends in a row without progress */
};

struct gr_restart_answer {
    enum gr_restart_verdict verdict;
    uint64_t pause_ns; /* before the next start */
    bool tell;         /* this end deserves a line */
    bool silent;       /* the next life says nothing until it has joined: the reason has been told */
};

/* It has joined: what it says is of interest again. True: it had failed before, and that it is back deserves a line. */
bool gr_restart_joined(struct gr_restart *r);
/* Its owner has got something of it (a committed token). */
void gr_restart_progress(struct gr_restart *r);
/* It ended after a life of life_ns. The first start after a long life (over 10 s) is at once; then the pauses are 100
 * ms, 200 ms, ... up to the rule's longest. */
struct gr_restart_answer gr_restart_end(struct gr_restart *r, const struct gr_restart_rule *rule, enum gr_end_kind kind,
                                        uint64_t life_ns);

#endif
