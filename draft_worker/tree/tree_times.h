/* How long a drafter's trees take by how many sessions have rounds, and what they would take with more: a drafter tells
 * so in PONG, and sessions are placed by it. Pure. Decision D-269. */
#ifndef GR_DRAFT_WORKER_TREE_TREE_TIMES_H
#define GR_DRAFT_WORKER_TREE_TREE_TIMES_H

#include <stdint.h>

enum { GR_TREE_TIMES_CLASS_MAX = 16 }; /* of 1, 2 to 3, 4 to 7, ... sessions */

struct gr_tree_times {
    struct gr_tree_time {
        uint32_t n_seen;   /* trees; 0: the averages are not known */
        double n_mean, ns; /* moving averages of the sessions in rounds and of a tree's time */
    } of[GR_TREE_TIMES_CLASS_MAX];
};

/* All 0: nothing is known. */
struct gr_tree_outlook {
    double round_ns; /* a tree's time with one session more */
    double more_ns;  /* what each session after that one adds */
    double first_ns; /* a tree's time for one session alone */
};

/* A tree took ns, from the VERDICT that asked for it until it was sent, while n > 0 sessions had rounds. */
void gr_tree_times_note(struct gr_tree_times *t, int n, uint64_t ns);

/* n: the sessions that have rounds now. */
struct gr_tree_outlook gr_tree_outlook_of(const struct gr_tree_times *t, int n);

#endif
