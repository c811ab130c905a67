/* The desk's insides: desk.c has the turns of sessions, desk_look.c answers who looks around or asks something of a
 * worker, desk_tell.c sends what both say. */
#ifndef GR_ORCHESTRATOR_SERVER_DESK_INTERNAL_H
#define GR_ORCHESTRATOR_SERVER_DESK_INTERNAL_H

#include "orchestrator/machine/place_set.h"
#include "orchestrator/machine/session_index.h"
#include "orchestrator/server/desk.h"

#define GR_DESK_NOBODY UINT32_MAX
/* One more than the machine has: the one that is being opened. */
#define GR_DESK_SESSION_MAX (GR_ORCH_SESSION_MAX + 1)

/* A session that a client opened. The machine's user pointer. */
struct gr_desk_session {
    bool used, opened, in_turn, keep_open;
    bool cut;    /* its client has ended the turn: FINISHED says so */
    bool unkept; /* the journal did not take the beginning of its turn: it ends */
    uint64_t session;
    uint32_t client; /* whose turn it is; GR_DESK_NOBODY */
    uint32_t closer; /* who waits for CLOSED; GR_DESK_NOBODY */
};

struct gr_desk {
    struct gr_orch *orch;
    struct gr_desk_io io;
    bool draining;
    struct gr_desk_clients clients;
    uint32_t asking;            /* the client whose message is being worked on; GR_DESK_NOBODY */
    const struct gr_msg *begun; /* OPEN or APPEND of the turn that is beginning, as it is journalled; NULL */
    uint32_t *generation;       /* of each client number: replies to one that is gone reach no other */
    struct gr_desk_session session[GR_DESK_SESSION_MAX];
    struct gr_place_set vacant;    /* of these those that are not used */
    struct gr_session_index index; /* the others by their numbers, which those that are being opened have not yet */
};

/* ---- desk_tell.c ---- */

/* To GR_DESK_NOBODY: nothing is sent. */
void gr_desk_send(const struct gr_desk *d, uint32_t client, const struct gr_msg *m);
void gr_desk_send_error(const struct gr_desk *d, uint32_t client, uint64_t session, enum gr_status st, const char *fmt,
                        ...) __attribute__((format(printf, 5, 6)));
/* All that the client is told from now on leaves when what was noted is durable; the desk has a keeper. */
void gr_desk_hold(const struct gr_desk *d, uint32_t client);
/* Why the keeper lets no turn begin; NULL: it lets them, or there is none. */
const char *gr_desk_why_refused(const struct gr_desk *d);

/* ---- desk_look.c: each takes the message of its name and answers it ---- */

void gr_desk_on_list(const struct gr_desk *d, uint32_t client, uint64_t now_ns);
void gr_desk_on_read(const struct gr_desk *d, uint32_t client, const struct gr_msg *m);
void gr_desk_on_refresh(const struct gr_desk *d, uint32_t client, const struct gr_msg *m);
void gr_desk_on_purge(const struct gr_desk *d, uint32_t client);
void gr_desk_on_drain_worker(const struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns);
void gr_desk_on_ping(const struct gr_desk *d, uint32_t client, const struct gr_msg *m, uint64_t now_ns);

#endif
