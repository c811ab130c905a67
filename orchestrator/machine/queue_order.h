/* In which order turns that wait get slots: lower priorities first, then by tag, then who came first. Tags are those of
 * start-time fair queueing (Goyal, Vin and Cheng 1996, with turns of equal size): owners who have turns waiting are
 * served in turn, so that whoever sends many requests at once delays itself and not others. Pure. */
#ifndef GR_ORCHESTRATOR_MACHINE_QUEUE_ORDER_H
#define GR_ORCHESTRATOR_MACHINE_QUEUE_ORDER_H

#include <stdint.h>

/* A turn that waits. */
struct gr_queue_entry {
    uint64_t tag;
    uint64_t arrival; /* counts turns as they come, from 1 */
    uint32_t priority;
    void *user; /* the caller's */
};

/* The tag of a turn that arrives. newest_started: the largest tag of a turn that was started so far. newest_owned: the
 * largest tag of the turns of its owner and priority that wait or run. 0: there is none. */
uint64_t gr_queue_tag(uint64_t newest_started, uint64_t newest_owned);

/* Sorts n entries into the order in which they are served. */
void gr_queue_sort(struct gr_queue_entry *entry, int n);

#endif
