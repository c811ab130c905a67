/* The edge of a worker: sockets, data connections, the compute thread and time around a pure state machine. One I/O
 * loop (this) and one compute thread with its team; the loop never computes and never blocks on a peer: hand-shakes
 * run on short-lived threads of their own.
 *
 * A peer is a data connection, numbered; the number is not used again while the process lives. */
#ifndef GR_TRANSPORT_WORKER_WORKER_IO_H
#define GR_TRANSPORT_WORKER_WORKER_IO_H

#include "common/process/compute.h"
#include "common/protocol/msg.h"
#include "transport/connect/bootstrap.h"

#define GR_PEER_MAX 64 /* peers of a worker at a time */

struct gr_worker_config {
    struct gr_hello hello; /* of this worker; role, fingerprints, limits. Nonce and host id are filled here */
    uint8_t key[GR_KEY_BYTES];
    const char *join;       /* the orchestrator: a list, or @FILE (address.h) */
    const char *listen;     /* data endpoint HOST:PORT (target), NULL: this worker connects (drafter); empty: any port,
                             * of loopback where the orchestrator is reached by that, else of all addresses */
    struct gr_msg join_msg; /* JOIN; address and incarnation are filled here */
    int forced_transport;   /* enum gr_transport_kind or -1 */
    struct gr_conn *loop_conn; /* co-located pair: the other half lives in this process; taken. NULL: none */
    int handshake_timeout_ms;
    int join_patience_ms;        /* how long to try while no orchestrator listens at `join` */
    uint64_t rejoin_patience_ns; /* the same for one that has been lost; UINT64_MAX: for ever */
    uint64_t orphan_ttl_ns;      /* how long sessions outlast an orchestrator that is away; 0: without limit */
    uint64_t pass_limit_ns;      /* the least that a computation may take (pass_watch.h); 0: no limit */
    uint64_t pass_rows, pass_ns; /* a computation of pass_rows was measured to take this; 0: none was */
    uint64_t spin_ns;            /* the loop and the compute thread sleep only when so long nothing has happened */
};

/* The state machine that the edge serves. ctx is the worker's. */
struct gr_worker_machine {
    void *ctx;
    void (*on_msg)(void *ctx, const struct gr_msg *m, uint64_t now_ns);
    enum gr_status (*on_frame)(void *ctx, uint32_t peer, const uint8_t *frame, size_t len, uint64_t now_ns);
    void (*on_peer_ready)(void *ctx, uint32_t peer, const char *transport, uint64_t now_ns);
    /* why: GR_ECLOSED for a connection that stood; GR_AGAIN for one that did not and may later; else why none will come
     * about. text: why none came about, which has been logged; NULL for one that stood. */
    void (*on_peer_lost)(void *ctx, uint32_t peer, enum gr_status why, const char *text, uint64_t now_ns);
    void (*on_compute_done)(void *ctx, uint64_t now_ns);
    uint64_t (*step)(void *ctx, uint64_t now_ns);
    /* The link to the orchestrator is gone; sessions stay, for it may come back. May be NULL. */
    void (*on_orchestrator_lost)(void *ctx, uint64_t now_ns);
    /* Another one has taken its place, which knows none of the sessions. No job is in flight, and what is sent goes
     * nowhere. May be NULL. */
    void (*on_orchestrator_changed)(void *ctx, uint64_t now_ns);
    /* It has been away for so long that nobody is to come back for them: all sessions go, with their KV. No job is in
     * flight. How many there were. May be NULL. */
    uint32_t (*on_orphaned)(void *ctx);
    /* The worker is to end, and has just told the orchestrator so: what is on its way and begins something is refused.
     * May be NULL. */
    void (*on_leave)(void *ctx);
};

/* What a worker says of itself, in HELLO and in JOIN. */
struct gr_worker_identity {
    enum gr_role role;
    int32_t n_vocab, n_ctx_max, n_block, n_session_max;
    uint64_t model_fingerprint, tokenizer_fingerprint;
    const char *numerics_id; /* borrowed for the call, as model */
    const char *model;       /* its name in a fleet, cut where it is too long */
    /* A draft head, and a target that serves one: width of FEATURES rows (bf16), and what they are made of. */
    uint32_t feature_width;
    bool feature_raw;
    uint64_t fc_fingerprint;
    const char *captures; /* borrowed for the call */
};
/* Fills hello, join_msg, the key, the patience of joining (seconds, GRAFT_JOIN_TIMEOUT, default 60) and of joining
 * again (GRAFT_REJOIN_TIMEOUT; default the former, or no limit under a supervisor), and GRAFT_ORPHAN_TTL. Key and
 * patience come from the environment: GR_ENOTFOUND, GR_EFORMAT, GR_EINVAL are logged. */
GR_NODISCARD enum gr_status gr_worker_config_describe(struct gr_worker_config *config,
                                                      const struct gr_worker_identity *identity);

struct gr_worker_io;

/* Connects to the orchestrator, passes HELLO, sends JOIN. Errors are logged. */
GR_NODISCARD enum gr_status gr_worker_io_create(const struct gr_worker_config *config,
                                                const struct gr_worker_machine *machine, struct gr_worker_io **out);
void gr_worker_io_destroy(struct gr_worker_io *w);
/* Runs until the orchestrator drains it (GR_OK) or has been away for too long (GR_ECLOSED, logged), or until
 * gr_worker_io_fail() (its status). GR_EMISMATCH: the orchestrator refused this worker; its reason is logged. After
 * gr_worker_io_leave(): GR_OK, or GR_ETIMEDOUT (logged) where turns were left unfinished. */
GR_NODISCARD enum gr_status gr_worker_io_run(struct gr_worker_io *w);
/* The loop is to end as soon as the orchestrator lets it, at the latest limit_ns after it has heard of this
 * (UINT64_MAX: no limit; of several calls the least counts). For any thread, and for a signal handler. */
void gr_worker_io_leave(struct gr_worker_io *w, uint64_t limit_ns);

/* ---- what the machine's callbacks use; I/O loop only ---- */
/* The worker cannot go on: the loop ends, and says why with this status. */
void gr_worker_io_fail(struct gr_worker_io *w, enum gr_status status);
uint8_t *gr_worker_io_frame_begin(struct gr_worker_io *w, uint32_t peer, enum gr_frame_class class, uint32_t bytes);
/* Where the rest of the bulk frame lies that has been begun, behind its head; NULL: in one piece with it. */
uint8_t *gr_worker_io_frame_body(struct gr_worker_io *w, uint32_t peer);
/* The same of the frame that on_frame is given; only within that call. */
const uint8_t *gr_worker_io_came_body(const struct gr_worker_io *w);
void gr_worker_io_frame_end(struct gr_worker_io *w, uint32_t peer, uint32_t bytes);
void gr_worker_io_send_msg(struct gr_worker_io *w, const struct gr_msg *m);
/* Bytes that messages to the orchestrator may still take (control.h). */
size_t gr_worker_io_msg_room(const struct gr_worker_io *w);
/* n_row: how much it computes, for the watch over it (pass_watch.h). */
void gr_worker_io_compute(struct gr_worker_io *w, void (*fn)(void *arg), void *arg, int n_row, bool more);
/* Drafter: a connection to a target's data endpoint, the existing one if there is one. address: a list; each address
 * has its share of the hand-shake's time, and one that leads to another process than the target of this incarnation (0:
 * any) is passed over. on_peer_ready or on_peer_lost follows for it, never from within this call. */
GR_NODISCARD enum gr_status gr_worker_io_connect(struct gr_worker_io *w, const char *address, uint64_t incarnation,
                                                 const char *transport, uint32_t *peer_out);
/* Transports that did not open before this connection's did, since the last call: each was one warning. */
uint32_t gr_worker_io_take_fallbacks(struct gr_worker_io *w, uint32_t peer);

#endif
