/* The network edge of the orchestrator: accepts workers on the control address (HELLO on short-lived threads), carries
 * control messages, and feeds the state machine (orch.h). One thread. */
#ifndef GR_ORCHESTRATOR_HUB_H
#define GR_ORCHESTRATOR_HUB_H

#include "orchestrator/orch.h"
#include "transport/bootstrap.h"

struct gr_hub;

struct gr_hub_config {
    const char *listen; /* HOST:PORT, port 0 = any */
    uint8_t key[GR_KEY_BYTES];
    struct gr_orch_io io; /* send is filled by the hub */
    /* A worker has joined (its JOIN is valid until the call returns) or is gone. May be NULL. */
    void (*on_join)(void *ctx, const struct gr_msg *join);
    void (*on_lost)(void *ctx, enum gr_worker_role role);
};

GR_NODISCARD enum gr_status gr_hub_create(const struct gr_hub_config *config, struct gr_hub **out);
void gr_hub_destroy(struct gr_hub *h);
const char *gr_hub_address(const struct gr_hub *h); /* HOST:PORT that workers join */
struct gr_orch *gr_hub_orch(struct gr_hub *h);
/* Handles what is there, then waits for more, at most timeout_ms (-1: no limit) or until extra_fd is readable
 * (-1: none). */
void gr_hub_pump(struct gr_hub *h, int timeout_ms, int extra_fd);
/* Asks every worker to finish and exit. */
void gr_hub_drain(struct gr_hub *h);

#endif
