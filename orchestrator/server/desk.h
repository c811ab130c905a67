/* Where clients ask: turns their control messages into calls of the session machine, and what the machine reports into
 * messages to the client whose turn it is. Pure: messages in, messages out.
 *
 * Every OPEN and APPEND is answered by OPENED or ERROR, in order; the turn ends with FINISHED. A client that goes away
 * during its turn cuts it: a kept session stays, idle. Decisions D-079, D-080. */
#ifndef GR_ORCHESTRATOR_SERVER_DESK_H
#define GR_ORCHESTRATOR_SERVER_DESK_H

#include "orchestrator/machine/orch.h"

struct gr_desk;

/* Where sessions are journalled (keeper.h). All zero: nowhere. */
struct gr_desk_keeper {
    void *ctx;
    /* Why no turn may begin; NULL: one may. */
    const char *(*refuses)(void *ctx);
    /* What is to be told of a session: OPEN and APPEND when its turn has begun, KEPT when a target is to open it,
     * FINISHED, CLOSED. False: it was not written, or the session is not known. */
    bool (*note)(void *ctx, const struct gr_msg *m);
    /* All that the client is told from now on leaves when what was noted is durable. */
    void (*hold)(void *ctx, uint32_t client);
    void (*forget)(void *ctx, uint32_t client); /* it is gone */
    /* Fills TEXT, borrowing what it points at. Returns what is wrong; NULL: nothing. */
    const char *(*read)(void *ctx, uint64_t session, struct gr_msg *out);
};

struct gr_desk_io {
    void *ctx;
    void (*send)(void *ctx, uint32_t client, const struct gr_msg *m);
    /* A client has asked the orchestrator to end. NULL: that is no client's to ask. */
    void (*on_stop)(void *ctx);
    struct gr_desk_keeper keeper;
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

/* The turn that a restored session is in is this client's from now on, as if it had begun it. False: it is in none, or
 * has a client. */
bool gr_desk_adopt(struct gr_desk *d, uint32_t client, uint64_t session);

/* GR_EPROTO: not one a client sends (logged); the caller cuts the client off. */
GR_NODISCARD enum gr_status gr_desk_on_msg(struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns);
void gr_desk_on_client_lost(struct gr_desk *d, uint32_t client);

/* What this client was to be told is lost: its turns end with an error, and it is told why. */
void gr_desk_fail_client(struct gr_desk *d, uint32_t client, const char *why);

/* The machine's events; ctx is the desk. */
void gr_desk_on_report(void *desk, uint64_t session, void *user, const struct gr_msg *m);
void gr_desk_on_done(void *desk, uint64_t session, void *user, enum gr_finish finish, const char *text);
void gr_desk_on_closed(void *desk, uint64_t session, void *user, const char *why);
void gr_desk_on_placed(void *desk, uint64_t session, void *user);
void gr_desk_on_pong(void *desk, uint32_t worker, uint64_t cookie, uint64_t rtt_ns, const struct gr_msg *pong);

/* The orchestrator ends because of an error: every client whose turn runs is told why. */
void gr_desk_fail_turns(struct gr_desk *d, const char *why);

#endif
