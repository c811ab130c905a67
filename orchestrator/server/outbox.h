/* Messages to clients that must not leave before a journal's record is durable (docs/journal.md). A client's messages
 * keep their order: what comes after one that is held is held, too. Pure; used by one thread. */
#ifndef GR_ORCHESTRATOR_SERVER_OUTBOX_H
#define GR_ORCHESTRATOR_SERVER_OUTBOX_H

#include "common/protocol/msg.h"

#define GR_OUTBOX_BYTES_MAX (64u << 20) /* that may be held: as many as may wait for the disk */

struct gr_outbox;

struct gr_outbox_io {
    void *ctx;
    void (*send)(void *ctx, uint32_t client, const struct gr_msg *m); /* may put, and does not forget */
};

/* Clients have numbers below n_client. GR_ENOMEM: logged. */
GR_NODISCARD enum gr_status gr_outbox_create(uint32_t n_client, const struct gr_outbox_io *io, struct gr_outbox **out);
void gr_outbox_destroy(struct gr_outbox *o);

/* Sends it once the record seq is durable, 0: of none, and all that the client was to get before it has left. Logged:
 * GR_ELIMIT: too much is held; GR_ENOMEM. Then the client has lost a message, and is to be cut off. */
GR_NODISCARD enum gr_status gr_outbox_put(struct gr_outbox *o, uint32_t client, const struct gr_msg *m, uint64_t seq);
/* The same of all that the client is told from now on, until the record is durable. */
void gr_outbox_wait(struct gr_outbox *o, uint32_t client, uint64_t seq);
/* Records up to this one are durable: what waited for them leaves. */
void gr_outbox_synced(struct gr_outbox *o, uint64_t seq);
/* The client is gone, or is told nothing of what is held any more; the number is free for another one. */
void gr_outbox_forget(struct gr_outbox *o, uint32_t client);
/* The same; what was held is handed to told() before it is gone, in its order. told() puts nothing; NULL: nobody is
 * handed it. */
void gr_outbox_drop(struct gr_outbox *o, uint32_t client,
                    void (*told)(void *ctx, uint32_t client, const struct gr_msg *m), void *ctx);
/* Is anything held for this client? Those are told an error when the journal has failed. */
bool gr_outbox_holds(const struct gr_outbox *o, uint32_t client);

#endif
