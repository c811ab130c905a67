#include "orchestrator/machine/queue_flows.h"

#include "common/base/status.h"
#include "common/rules/hash.h"

#include <stdlib.h>

bool gr_queue_flows_create(struct gr_queue_flows *f, uint32_t n_max)
{
    f->spot = calloc(n_max, sizeof(*f->spot));
    return gr_session_index_create(&f->last, n_max) && f->spot != NULL;
}

void gr_queue_flows_destroy(struct gr_queue_flows *f)
{
    gr_session_index_destroy(&f->last);
    free(f->spot);
    f->spot = NULL;
}

/* 0 means none. */
uint64_t gr_queue_flow_of(uint64_t owner, uint32_t priority)
{
    const uint64_t flow = gr_mix64(gr_mix64(owner + 1) + priority);
    return flow != 0 ? flow : 1;
}

int gr_queue_flows_last(const struct gr_queue_flows *f, uint64_t flow)
{
    return gr_session_index_find(&f->last, flow);
}

void gr_queue_flows_join(struct gr_queue_flows *f, uint32_t place, uint64_t flow)
{
    const int last = gr_queue_flows_last(f, flow);
    GR_ASSERT(f->spot[place].flow == 0);
    f->spot[place] = (struct gr_queue_flow_spot){.flow = flow, .before = last, .next = -1};
    if (last >= 0) {
        f->spot[last].next = (int32_t)place;
    }
    gr_session_index_add(&f->last, flow, (int)place);
}

void gr_queue_flows_leave(struct gr_queue_flows *f, uint32_t place)
{
    const struct gr_queue_flow_spot s = f->spot[place];
    f->spot[place] = (struct gr_queue_flow_spot){0};
    if (s.flow == 0) {
        return;
    }
    if (s.before >= 0) {
        f->spot[s.before].next = s.next;
    }
    if (s.next >= 0) {
        f->spot[s.next].before = s.before;
    } else if (s.before >= 0) {
        gr_session_index_add(&f->last, s.flow, s.before);
    } else {
        gr_session_index_remove(&f->last, s.flow);
    }
}
