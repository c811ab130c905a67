/* Events that are going to happen, ordered by time. All have one size. Events that are due at the same time come in the
 * order in which they were pushed, so that a run can be replayed. */
#ifndef GR_BENCH_SIMULATE_EVENTS_H
#define GR_BENCH_SIMULATE_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gr_events;

/* event_bytes: of one event. NULL: out of memory. */
struct gr_events *gr_events_create(size_t event_bytes);
void gr_events_destroy(struct gr_events *e);
/* Copies the event. Ends the process where memory is out: a simulation has nowhere to go on to. */
void gr_events_push(struct gr_events *e, uint64_t at_ns, const void *event);
/* The next one, and when it is due. False: there is none. */
bool gr_events_pop(struct gr_events *e, uint64_t *at_ns_out, void *event_out);
/* When the next one is due; UINT64_MAX: there is none. */
uint64_t gr_events_next_ns(const struct gr_events *e);
/* The next one, borrowed until the queue is changed; NULL: there is none. */
const void *gr_events_peek(const struct gr_events *e);
size_t gr_events_n(const struct gr_events *e);

#endif
