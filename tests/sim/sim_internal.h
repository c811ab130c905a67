/* Shared by the files of the simulation. */
#ifndef GR_TESTS_SIM_SIM_INTERNAL_H
#define GR_TESTS_SIM_SIM_INTERNAL_H

#include "draft_worker/compute/grower.h"
#include "bench/simulate/events.h"
#include "target_worker/compute/verifier.h"
#include "tests/sim/sim.h"

#define FRAME_MAX 32768 /* features of the demo head: 32 rows of 768 bytes */
#define N_SESSION_SIM 512
#define N_TURN_SIM (SIM_TURN_MAX - 1)

enum role { TARGET, DRAFT, ORCH, N_ROLE };
enum what {
    EVENT_FRAME,
    EVENT_MSG,
    EVENT_PASS_DONE,
    EVENT_JOB_DONE,
    EVENT_PEER_READY,
    EVENT_PEER_LOST,
    EVENT_LINK_LOST,
    EVENT_START,
    EVENT_CLIENT,
    EVENT_STOP,
    EVENT_CUT,
    EVENT_CLOSE,
    EVENT_REFRESH,
    EVENT_UNMUTE,
    EVENT_WAKE
};

struct event {
    uint64_t at_ns;
    enum what what;
    enum role at;    /* who it happens to */
    uint32_t life;   /* of the worker concerned: events of an ended life are void */
    uint32_t peer;   /* frames, PEER_*: the connection */
    uint32_t worker; /* at the orchestrator: its number of the worker */
    uint8_t *bytes;  /* owned */
    size_t len;
};

/* A worker process. Its number at the orchestrator changes with every life, as a new connection's would. */
struct sim_worker {
    bool alive;
    bool mute;    /* nothing passes on its control link */
    bool dropped; /* the orchestrator has given it up */
    bool leaving; /* it was told to end */
    uint32_t life, number;
    struct gr_lm *lm; /* owned when made */
    bool lm_owned;
    uint64_t to_orch_ns, from_orch_ns; /* due times of the last messages: the link keeps its order */
};

/* The data connection. Each end has its own idea of whether it is open. */
struct sim_conn {
    bool used, open_at[2];
    uint32_t id;
    uint64_t to_ns[2];   /* due time of the last small frame: they keep their order */
    uint64_t bulk_ns[2]; /* of the last bulk frame: none overtakes a small one */
};

struct sim {
    struct sim_config config;
    uint64_t now_ns, rng;
    struct gr_events *events;
    struct sim_worker worker[2];
    bool number_used[GR_ORCH_WORKER_MAX];
    struct sim_conn conn;
    uint32_t next_conn;
    struct gr_target *target;
    struct gr_drafter *drafter;
    struct gr_orch *orch;
    struct gr_verifier *verifier;
    struct gr_grower *grower;
    struct gr_pass *pass;
    struct gr_draft_job *job;
    uint8_t frame[FRAME_MAX];
    enum gr_frame_class frame_class;
    uint64_t busy_until_ns; /* a shared device */
    int n_to_orch;          /* messages of the target on their way */
    uint64_t stalled_until_ns;
    struct sim_result result[N_SESSION_SIM];
    uint64_t session[N_SESSION_SIM];
    uint32_t n_prompt[N_SESSION_SIM];
    uint32_t stop_after[N_SESSION_SIM];
    struct sim_script {
        struct sim_turn turn[N_TURN_SIM];
        int n_turn, at;
        bool closed;   /* the client has closed it, or it has expired */
        bool stopping; /* it has what it wants of the turn, and its word for that is on its way */
        uint32_t stop_turn, stop_limit;
        bool ended;          /* meanwhile the turn has ended by itself */
        uint32_t turn_begin; /* where the turn's tokens begin in the result */
        uint32_t len;        /* of the transcript */
        int32_t *transcript; /* owned */
    } script[N_SESSION_SIM];
    int n_request, n_done;
    void (*on_pass)(struct sim *s, void *arg);
    void *on_pass_arg;
    void (*on_frame)(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len);
    void *on_frame_arg;
    int n_error, n_lost, n_fault;
    bool kills_target;
    struct sim_counts counts;
};

/* sim.c */
uint64_t sim_draw(struct sim *s, uint64_t max);
void sim_push(struct sim *s, struct event e);

/* sim_world.c: processes, links, connections and what happens to them */
void sim_start_worker(struct sim *s, enum role role);
void sim_end_worker(struct sim *s, enum role role);
void sim_unmute(struct sim *s, const struct event *e);
/* The orchestrator lets a worker go that has asked for it. */
void sim_let_go(struct sim *s, enum role role);
/* The orchestrator gives a worker up. */
void sim_drop(void *ctx, uint32_t worker);
void sim_send_from_orch(void *ctx, uint32_t worker, const struct gr_msg *m);
/* Is the event still about something that exists? */
bool sim_is_void(const struct sim *s, const struct event *e);
void sim_conn_ready(struct sim *s, const struct event *e);
void sim_conn_lost(struct sim *s, const struct event *e);
void sim_link_lost(struct sim *s, const struct event *e);
/* Draws a fault, perhaps, after an event of this kind. */
void sim_maybe_fault(struct sim *s, const struct event *e);

#endif
