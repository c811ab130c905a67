/* What the files of a worker's edge share: worker_peers.c, worker_link.c, worker_io.c. */
#ifndef GR_TRANSPORT_WORKER_WORKER_IO_INTERNAL_H
#define GR_TRANSPORT_WORKER_WORKER_IO_INTERNAL_H

#include "transport/connect/control.h"
#include "transport/connect/gate.h"
#include "transport/worker/call.h"
#include "transport/worker/callers.h"
#include "transport/worker/pass_watch.h"
#include "transport/worker/rejoin.h"
#include "transport/worker/worker_io.h"

#include <pthread.h>

#define NEVER UINT64_MAX
#define NO_LIMIT (UINT64_MAX - 1)
#define LOOKS_PER_POLL 64u /* looks at the connections between two system calls, while it spins */
/* A connection that stood before is tried again: at once, then after 50 ms, 100 ms ... 2 s, each drawn from its upper
 * half, so that drafters that lost one target do not come back in step. */
#define RETRY_MS_MIN 50u
#define RETRY_MS_MAX 2000u
#define RETRY_PATIENCE (60 * GR_S) /* then the peer is given up */
/* An orchestrator that pings and then is silent for so long is lost: twice what it waits for a worker itself, so that
 * of a link that is down it is the first to say so. */
#define ORCHESTRATOR_SILENCE (10 * GR_S)

enum peer_state { PEER_FREE, PEER_HANDSHAKE, PEER_WAITING, PEER_READY }; /* the I/O loop's alone */
enum outcome { OUTCOME_NONE, OUTCOME_OPEN, OUTCOME_FAILED };

/* A data connection. */
struct peer {
    enum peer_state state;
    uint32_t id;
    struct gr_conn *conn;
    enum outcome outcome; /* written by the hand-shake thread, with new_conn and failure, under the lock */
    struct gr_conn *new_conn;
    enum gr_status failure;
    char why[GR_CALL_WHY_BYTES];   /* with failure: why nobody was reached; empty: that has been logged */
    char address[GR_MSG_TEXT_MAX]; /* a list; empty: it came to us */
    uint64_t incarnation;          /* of whom it leads to; 0: any */
    char seat[GR_SEAT_MAX];        /* of who came, by its HELLO */
    uint64_t number;               /* the same */
    int forced;
    uint32_t n_retry;
    uint64_t retry_ns, give_up_ns; /* PEER_WAITING */
    bool announce;                 /* on_peer_ready is owed */
    struct gr_frame out;
    bool out_open;
};

struct gr_worker_io {
    struct gr_worker_config config;
    struct gr_worker_machine machine;
    struct gr_control *control; /* NULL: the orchestrator is away, and searched for */
    struct gr_rejoin *rejoin;
    const uint8_t *came_body; /* of the frame that on_frame is given */
    uint64_t orchestrator;    /* its incarnation */
    uint64_t heard_ns;        /* when it said something last */
    bool heard, pinged;       /* on this link */
    bool told_away;           /* since it said something last */
    bool orphaned;            /* the same: its sessions have been let go */
    uint64_t orphan_ns;       /* when they are to be; NEVER: they stay */
    uint64_t search_ns;       /* when to look again for one that is away */
    uint64_t leave_limit_ns;  /* a signal handler's; NEVER: none asked */
    uint64_t leave_end_ns;    /* from when the loop heard of it; NEVER: it may stay */
    bool leave_sent;
    struct gr_compute *compute;
    struct gr_pass_watch pass; /* while compute_busy */
    uint64_t progress_ns;      /* when something happened last; with config.spin_ns */
    unsigned n_spin;
    struct gr_gate *gate; /* NULL: nobody comes to us */
    int wake_fd;
    struct peer peer[GR_PEER_MAX];
    uint32_t next_peer_id;
    struct gr_callers callers;
    char known[GR_PEER_MAX][GR_MSG_TEXT_MAX]; /* addresses that a connection has stood to, the latest ones */
    uint32_t n_known;
    char told[GR_PEER_MAX][GR_MSG_TEXT_MAX]; /* addresses whose failure has been told; empty: free */
    uint32_t n_told;
    bool drained, control_lost, refused, compute_busy, done;
    enum gr_status failure;
    pthread_mutex_t lock; /* of what the hand-shake threads hand over */
    int n_handshake;      /* threads alive, under the lock */
    pthread_cond_t handshake_done;
};

/* ---- worker_peers.c ---- */
/* Those who have passed the gate; strangers take no data connection. */
bool worker_take_arrivals(struct gr_worker_io *w, uint64_t now_ns);
/* Takes over what the hand-shake threads have finished. */
bool worker_settle_handshakes(struct gr_worker_io *w, uint64_t now_ns);
bool worker_receive_frames(struct gr_worker_io *w, struct peer *p, uint64_t now_ns);

/* ---- worker_link.c ---- */
void worker_wake(struct gr_worker_io *w);
bool worker_has_link(const struct gr_worker_io *w);
bool worker_receive_msgs(struct gr_worker_io *w, uint64_t now_ns);
enum gr_status worker_begin_link(struct gr_worker_io *w, int fd, struct gr_hello *peer, uint64_t now_ns);
bool worker_watch_orchestrator(struct gr_worker_io *w, uint64_t now_ns);
void worker_leave(struct gr_worker_io *w, uint64_t now_ns);

#endif
