/* When each place of the table of sessions is to be looked at: a binary heap in which a place is found again, so that
 * its time can be changed. Pure. */
#ifndef GR_ORCHESTRATOR_MACHINE_DUE_TIMES_H
#define GR_ORCHESTRATOR_MACHINE_DUE_TIMES_H

#include <stdbool.h>
#include <stdint.h>

struct gr_due_times {
    uint64_t *at_ns; /* owned, by place; UINT64_MAX: never */
    uint32_t *heap;  /* owned: places, none of which is due before the one at (i - 1) / 2 */
    uint32_t *spot;  /* owned, by place: where it stands in the heap, and 1; 0: it does not */
    uint32_t n;
};

/* For places 0 .. n_max - 1, which are never due. False: out of memory; destroy it all the same. */
bool gr_due_times_create(struct gr_due_times *d, uint32_t n_max);
void gr_due_times_destroy(struct gr_due_times *d);
/* UINT64_MAX: never. */
void gr_due_times_set(struct gr_due_times *d, uint32_t place, uint64_t at_ns);
/* The time of the place that is due first; UINT64_MAX: none is. */
uint64_t gr_due_times_first_ns(const struct gr_due_times *d);
/* A place that is due at now_ns, which is never due from now on; -1: none is. */
int gr_due_times_take(struct gr_due_times *d, uint64_t now_ns);

#endif
