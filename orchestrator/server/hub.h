/* The network edge of the orchestrator: accepts workers and clients on the control address (HELLO on short-lived
 * threads), carries control messages, tells the time, and feeds the state machine (orch.h). One thread. */
#ifndef GR_ORCHESTRATOR_SERVER_HUB_H
#define GR_ORCHESTRATOR_SERVER_HUB_H

#include "common/process/children.h"
#include "orchestrator/machine/orch.h"
#include "transport/connect/bootstrap.h"

#define GR_PING_INTERVAL_NS 1000000000ull /* between two pings to a worker */
#define GR_PING_TIMEOUT_NS 5000000000ull  /* a worker that is silent for longer is lost: a broken link shows at once */
#define GR_CLIENT_TURN_MAX 512            /* clients at a time that may have turns */
/* Clients at a time: those that come when all of the former are there may look and close (ping, list, wait), not ask
 * for turns, so that an operator always gets in. */
#define GR_CLIENT_MAX (GR_CLIENT_TURN_MAX + 16)
/* What may wait for a client that does not read; the longest answer to LIST fits, whoever is busy. */
#define GR_CLIENT_QUEUE_BYTES (2u << 20)

struct gr_hub;

struct gr_hub_config {
    const char *listen;  /* HOST:PORT, port 0 = any */
    const char *cluster; /* of HELLO; NULL: none */
    uint32_t secrecy;    /* of HELLO: enum gr_secrecy (secrecy.h) */
    bool tells;          /* workers that come and go are told at the level of warnings: it serves other hosts */
    uint8_t key[GR_KEY_BYTES];
    int hello_timeout_ms; /* how long a hand-shake may take; 0: GR_ACCEPT_TIMEOUT_MS (gate.h) */
    struct gr_orch_io io; /* send and drop are filled by the hub; the others get io.ctx */
    /* A worker has joined (its JOIN is valid until the call returns), is gone, or does not fit and was turned away.
     * May be NULL. */
    void (*on_join)(void *ctx, const struct gr_msg *join);
    void (*on_lost)(void *ctx, enum gr_worker_role role);
    void (*on_refused)(void *ctx, const char *text);
    /* What clients say; client: a number below GR_CLIENT_MAX, used again after on_client_lost. Anything but GR_OK: it
     * broke the protocol (logged), and is cut off. NULL: clients are turned away. */
    enum gr_status (*on_client_msg)(void *ctx, uint32_t client, const struct gr_msg *m, uint64_t now_ns);
    void (*on_client_lost)(void *ctx, uint32_t client, uint64_t now_ns);
};

GR_NODISCARD enum gr_status gr_hub_create(const struct gr_hub_config *config, struct gr_hub **out);
void gr_hub_destroy(struct gr_hub *h);
const char *gr_hub_address(const struct gr_hub *h); /* HOST:PORT that it listens on; workers of this host join it */
/* Where others reach it: a list (address.h). */
const char *gr_hub_reach(const struct gr_hub *h);
struct gr_orch *gr_hub_orch(struct gr_hub *h);
/* Handles what is there and what time has brought. Where that is nothing it waits for more, at most timeout_ms (-1: no
 * limit) or until extra_fd is readable (-1: none): who tells others of the machine can do so after each change. */
void gr_hub_pump(struct gr_hub *h, int timeout_ms, int extra_fd);
/* Queues a message to a client. A client whose queue is full does not read: it is cut off, a little later. */
void gr_hub_send_client(struct gr_hub *h, uint32_t client, const struct gr_msg *m);
int gr_hub_n_client(const struct gr_hub *h);
/* Asks every worker to finish and exit. */
void gr_hub_drain(struct gr_hub *h);
/* Ends the hub and the workers that are children: DRAIN, and SIGTERM where some have not joined, since who still loads
 * does not hear of it; SIGKILL for who is there after grace_ms. h NULL, or children that were never initialised: there
 * is nothing of it. */
void gr_hub_end(struct gr_hub *h, struct gr_children *children, bool all_joined, int grace_ms);

#endif
