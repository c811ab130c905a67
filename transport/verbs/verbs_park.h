/* What is left of connections that are over.
 *
 * Memory of those that broke is kept for a while for the same peer to come back over the same device: its domain,
 * slab and its registration; never the inbox's key. And one identifier a device is kept as long as the process lives:
 * librdmacm holds a device open that was used once, so somebody must hear when it is removed, or the removal waits
 * for ever. A thread listens to these, and frees what its time is over for. Any thread may call.
 * Decisions D-096, D-097. */
#ifndef GR_TRANSPORT_VERBS_VERBS_PARK_H
#define GR_TRANSPORT_VERBS_VERBS_PARK_H

#include "transport/verbs/verbs_cm.h"

#define GR_VERBS_N_PARK_MAX 4                         /* queue pairs that wait for their peer to come back, at most */
#define GR_VERBS_N_KEPT_MAX (GR_VERBS_N_PARK_MAX + 8) /* with the devices */
#define GR_VERBS_PARK_MS 30000

/* Takes m. for_peer: it may come back. When there is no room the oldest goes. linger, or NULL: its queue pair, taken
 * too, and m is kept as for a peer. The port is down: to give it up now would send to nobody, and the management queue
 * pair of soft RoCE (Linux 6.1) does not send again after that. It is given up when the port is up, or its time over.
 */
void gr_verbs_park(struct gr_verbs_memory *m, bool for_peer, struct gr_verbs_link *linger);
/* NULL: none of this peer over this device. Else the caller's. */
struct gr_verbs_memory *gr_verbs_unpark(const struct gr_verbs_lib *lib, const struct gr_verbs_device *device,
                                        uint64_t peer_id);
/* Frees all and ends the thread. For tests, which use other tables. */
void gr_verbs_park_clear(void);

#endif
