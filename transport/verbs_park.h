/* Memory of connections that broke, kept for a while for the same peer to come back over the same device: protection
 * domain, slab and its registration; never the inbox's key. While anything is kept, a thread waits for its time to be
 * over or its device to be removed, and frees it. Any thread may call. */
#ifndef GR_TRANSPORT_VERBS_PARK_H
#define GR_TRANSPORT_VERBS_PARK_H

#include "transport/verbs_memory.h"

#define GR_VERBS_N_PARK_MAX 4
#define GR_VERBS_PARK_MS    30000

/* Takes m; when there is no room the oldest one goes. */
void gr_verbs_park(struct gr_verbs_memory *m);
/* NULL: none of this peer over this device. Else the caller's. */
struct gr_verbs_memory *gr_verbs_unpark(const struct gr_verbs_lib *lib, const struct gr_verbs_device *device,
                                        uint64_t peer_id);
/* Frees all and ends the thread. For tests, which use other tables. */
void gr_verbs_park_clear(void);

#endif
