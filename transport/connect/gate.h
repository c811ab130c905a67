/* The gate of a listener: who connects is a stranger until it has proven that it holds the shared key. Each hand-shake
 * has a thread of its own and a short time; strangers have a quota, and where it is full the oldest one of the address
 * that holds most of it is dropped for a newcomer. So strangers, however many and however slow, keep no key-holder
 * away, and those who have proven the key no longer count. What strangers get wrong is told a few times, then counted.
 * One thread, its hand-shakes aside. */
#ifndef GR_TRANSPORT_CONNECT_GATE_H
#define GR_TRANSPORT_CONNECT_GATE_H

#include "transport/connect/bootstrap.h"
#include "transport/net.h"

#define GR_STRANGER_MAX 64 /* hand-shakes at a time */
/* A stranger younger than this is not dropped: as many key-holders may come at once as there are hand-shakes. */
#define GR_STRANGER_AGE_MS 250
/* How long one who was accepted may take for HELLO and its proof: two small records. Then data connections have as long
 * again to open a transport. Those who connect wait longer. */
#define GR_ACCEPT_TIMEOUT_MS 3000

struct gr_gate;

struct gr_gate_config {
    struct gr_listening at;      /* where it listens; taken, also after an error */
    int wake_fd;                 /* an eventfd of the caller's that is written when somebody has passed */
    const struct gr_hello *self; /* borrowed, as the key */
    const uint8_t *key;
    int timeout_ms;
    bool opens; /* a transport is opened after the proof */
    int forced; /* the transport that may be opened, enum gr_transport_kind; -1: any */
};

/* One who has passed; the taker's. */
struct gr_arrival {
    int fd;               /* -1: conn has it */
    struct gr_conn *conn; /* with opens */
    struct gr_hello peer;
};

GR_NODISCARD enum gr_status gr_gate_create(const struct gr_gate_config *config, struct gr_gate **out);
/* Ends it, and hangs up on everybody who has not been taken. */
void gr_gate_destroy(struct gr_gate *g);
/* Accepts who is there, some at a time. */
void gr_gate_accept(struct gr_gate *g, uint64_t now_ns);
/* False: nobody else has passed. */
bool gr_gate_take(struct gr_gate *g, struct gr_arrival *out);
/* What to poll for input; -1, which poll ignores, while nobody can be accepted. */
int gr_gate_poll_fd(struct gr_gate *g, uint64_t now_ns);
/* When to look again, should nothing happen; UINT64_MAX: then never. */
uint64_t gr_gate_wake_ns(struct gr_gate *g, uint64_t now_ns);

#endif
