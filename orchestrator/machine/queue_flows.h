/* The turns of each owner and priority, in the order in which they came: a list of places for each flow that has any.
 * What comes last is found without a look at the others. Pure. */
#ifndef GR_ORCHESTRATOR_MACHINE_QUEUE_FLOWS_H
#define GR_ORCHESTRATOR_MACHINE_QUEUE_FLOWS_H

#include "orchestrator/machine/session_index.h"

struct gr_queue_flow_spot {
    uint64_t flow;        /* 0: the place is in no list */
    int32_t before, next; /* places of the same flow; -1: none */
};

struct gr_queue_flows {
    struct gr_session_index last;    /* of each flow: the place that came last */
    struct gr_queue_flow_spot *spot; /* owned, by place */
};

/* For places 0 .. n_max - 1. False: out of memory; destroy it all the same. */
bool gr_queue_flows_create(struct gr_queue_flows *f, uint32_t n_max);
void gr_queue_flows_destroy(struct gr_queue_flows *f);
/* The number of a flow: two of them differ, but for a chance of 2^-64. */
uint64_t gr_queue_flow_of(uint64_t owner, uint32_t priority);
/* The place of the flow that came last; -1: it has none. */
int gr_queue_flows_last(const struct gr_queue_flows *f, uint64_t flow);
/* A place that is in no list comes. */
void gr_queue_flows_join(struct gr_queue_flows *f, uint32_t place, uint64_t flow);
/* It leaves its list, if it is in one. */
void gr_queue_flows_leave(struct gr_queue_flows *f, uint32_t place);

#endif
