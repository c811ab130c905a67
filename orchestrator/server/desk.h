/* Where clients ask: turns their control messages into calls of the session machine, and what the machine reports into
 * messages to the client whose turn it is. Pure: messages in, messages out.
 *
 * Every OPEN and APPEND is answered by OPENED or ERROR, in order; the turn ends with FINISHED. A client that goes away
 * during its turn cuts it: a kept session stays, idle. Decisions D-079, D-080. */
#ifndef GR_ORCHESTRATOR_SERVER_DESK_H
#define GR_ORCHESTRATOR_SERVER_DESK_H

#include "orchestrator/machine/orch.h"

struct gr_desk;

struct gr_desk_io {
    void *ctx;
    void (*send)(void *ctx, uint32_t client, const struct gr_msg *m);
    /* A client has asked the orchestrator to end. NULL: that is no client's to ask. */
    void (*on_stop)(void *ctx);
};

/* Numbers below n are clients; those from look_begin to below look_end may ask for everything but turns. */
struct gr_desk_clients {
    uint32_t n, look_begin, look_end;
};

/* orch: borrowed. */
GR_NODISCARD enum gr_status gr_desk_create(struct gr_orch *orch, const struct gr_desk_clients *clients,
                                           const struct gr_desk_io *io, struct gr_desk **out);
void gr_desk_destroy(struct gr_desk *d);
/* From now on no turn begins. */
void gr_desk_drain(struct gr_desk *d);

/* A session of an earlier process goes on, as gr_orch_restore() has it (and returns); its user is the desk's. Its turn
 * has no client: it runs to its end, and clients go on with the session after that, if it is kept. */
GR_NODISCARD enum gr_status gr_desk_restore(struct gr_desk *d, const struct gr_restored_session *r, uint64_t now_ns);

/* GR_EPROTO: not one a client sends (logged); the caller cuts the client off. */
GR_NODISCARD enum gr_status gr_desk_on_msg(struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns);
void gr_desk_on_client_lost(struct gr_desk *d, uint32_t client);

/* The machine's events; ctx is the desk. */
void gr_desk_on_report(void *desk, uint64_t session, void *user, const struct gr_msg *m);
void gr_desk_on_done(void *desk, uint64_t session, void *user, enum gr_finish finish, const char *text);
void gr_desk_on_closed(void *desk, uint64_t session, void *user, const char *why);
void gr_desk_on_pong(void *desk, uint32_t worker, uint64_t cookie, uint64_t rtt_ns, const struct gr_msg *pong);

/* The orchestrator ends because of an error: every client whose turn runs is told why. */
void gr_desk_fail_turns(struct gr_desk *d, const char *why);

#endif
