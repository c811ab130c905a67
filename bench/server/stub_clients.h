/* Clients of a server, all in this process: each has sessions, whose every token is checked. Beside them those that
 * only look: an operator's. */
#ifndef GR_BENCH_SERVER_STUB_CLIENTS_H
#define GR_BENCH_SERVER_STUB_CLIENTS_H

#include "bench/server/bus.h"
#include "orchestrator/machine/session_index.h"

#define GR_STUB_CLIENT_MAX 512
#define GR_STUB_PROMPT 64 /* tokens of each session's prompt */

struct gr_stub_clients {
    struct gr_bus *bus; /* borrowed */
    int n_client, n_session;
    int end[GR_STUB_CLIENT_MAX];
    struct gr_session_index place; /* of each session that is open, by its id */
    uint32_t *n_got;               /* owned, (n_session), by that place: tokens of a session */
    int n_opened, n_over;          /* sessions */
    uint64_t n_token;              /* of all of them */
};

/* n_client connections; the bus is pumped meanwhile. */
GR_NODISCARD enum gr_status gr_stub_clients_begin(struct gr_stub_clients *c, struct gr_bus *bus, int n_client,
                                                  int n_session);
/* All sessions are asked for. */
GR_NODISCARD enum gr_status gr_stub_clients_open(struct gr_stub_clients *c);
void gr_stub_clients_end(struct gr_stub_clients *c);

/* One that looks. */
struct gr_stub_looker {
    int end;
    uint64_t asked_ns;            /* 0: nothing is */
    uint64_t ping_ns, list_ns;    /* the longest that an answer took; 0: none came */
    uint32_t n_session, n_worker; /* of the last list */
    char error[GR_MSG_TEXT_MAX];  /* the last ERROR; empty: none */
};

GR_NODISCARD enum gr_status gr_stub_looker_begin(struct gr_stub_looker *l, struct gr_bus *bus, uint64_t incarnation);
/* Sends PING, LIST or what else. */
GR_NODISCARD enum gr_status gr_stub_looker_ask(struct gr_stub_looker *l, struct gr_bus *bus, const struct gr_msg *m);
/* An OPEN of a client. */
struct gr_msg gr_stub_open(int32_t prompt[GR_STUB_PROMPT], int32_t segments[2]);

#endif
