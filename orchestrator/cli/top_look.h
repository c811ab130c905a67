/* One look of `graft top` at a running orchestrator: LIST, and a PING of each worker, which knows its KV and its rounds
 * best. */
#ifndef GR_ORCHESTRATOR_CLI_TOP_LOOK_H
#define GR_ORCHESTRATOR_CLI_TOP_LOOK_H

#include "orchestrator/cli/listing.h"
#include "orchestrator/cli/top_view.h"

/* All zeroes: nothing was looked at yet. */
struct gr_top_look {
    struct gr_listing list;
    struct gr_msg_pong *pong; /* owned, [list.n_worker]; NULL: nobody was asked */
    uint64_t at_ns;           /* 0: this is no look */
};

/* What was in it is gone. A worker that does not answer within two seconds is not known. As gr_listing_read(). */
GR_NODISCARD enum gr_status gr_top_look_take(struct gr_remote *r, struct gr_top_look *l);
/* Sessions and workers alone: enough for what is only compared with. */
GR_NODISCARD enum gr_status gr_top_look_list(struct gr_remote *r, struct gr_top_look *l);
void gr_top_look_finish(struct gr_top_look *l);
/* Borrows both. */
struct gr_top_snapshot gr_top_look_compare(const struct gr_top_look *now, const struct gr_top_look *before);

#endif
