/* What the files of the fleet share. Each calls only those that stand before it here: fleet_link.c (frames and messages
 * on their way), fleet_worker.c (targets and drafters), fleet_orch.c (the orchestrator and its clients), fleet.c
 * (time). */
#ifndef GR_BENCH_SIMULATE_FLEET_INTERNAL_H
#define GR_BENCH_SIMULATE_FLEET_INTERNAL_H

#include "draft_worker/compute/grower.h"
#include "draft_worker/machine/drafter.h"
#include "orchestrator/machine/orch.h"
#include "bench/simulate/events.h"
#include "bench/simulate/fleet.h"
#include "bench/simulate/sim_lm.h"
#include "target_worker/compute/verifier.h"
#include "target_worker/machine/target.h"

#define FLEET_FRAME_BYTES 32768
#define FLEET_NOBODY UINT32_MAX

enum fleet_what {
    FLEET_FRAME,
    FLEET_MSG,     /* from the orchestrator, at a worker */
    FLEET_TO_ORCH, /* a message of a worker has reached it */
    FLEET_ORCH,    /* it has done what it had to do, or time has come */
    FLEET_PASS_DONE,
    FLEET_JOB_DONE,
    FLEET_CONN_READY,
    FLEET_CONN_LOST,
    FLEET_LINK_LOST, /* the orchestrator notices that a worker is gone */
    FLEET_WAKE,
    FLEET_ASK,  /* a client wants a session */
    FLEET_LOSE, /* a worker dies */
    FLEET_START
};

struct fleet_event {
    enum fleet_what what;
    uint32_t worker, life; /* it happens to this worker; a message to the orchestrator comes from it */
    uint32_t conn;         /* of frames and connections; an ASK has its client's number here */
    uint32_t len;
    uint8_t *bytes; /* owned */
};

/* A GPU, or the CPUs of a worker: passes run on it one after another. */
struct fleet_device {
    uint64_t busy_until_ns;
    double busy_ns;
};

struct fleet_worker {
    struct gr_fleet *fleet; /* borrowed */
    bool alive, is_target;
    bool touched; /* something has happened to it at this time */
    uint32_t index, life, device;
    struct gr_lm *lm;
    struct gr_target *target; /* one of the two */
    struct gr_verifier *verifier;
    struct gr_pass *pass;
    struct gr_drafter *drafter;
    struct gr_grower *grower;
    struct gr_draft_job *job;
    double job_host_ns; /* of the passes of the job that is being run */
    double host_ns;     /* on the host, of all its jobs and passes */
    uint64_t wake_ns;   /* when a wake is due; UINT64_MAX: none is */
    /* Sending: its end of the data network is busy with frames of a class until lane_ns, that of the control link with
     * messages until control_ns. */
    uint64_t lane_ns[GR_N_FRAME_CLASS], control_ns;
    double sent_ns; /* the time in which it was busy with frames */
    enum gr_frame_class frame_class;
    uint8_t *frame;         /* owned: the frame that it is writing */
    uint32_t first_conn;    /* a drafter's newest connection, from which the others follow; FLEET_NOBODY: none */
    uint64_t to_orch_bytes; /* that the orchestrator has not taken up */
    bool held_up;           /* it waits for less of them */
};

/* A data connection. It belongs to one life of the drafter and one of the target. */
struct fleet_conn {
    uint32_t draft, draft_life, target, target_life;
    bool open_at_draft, open_at_target;
    uint32_t next; /* of the same drafter; FLEET_NOBODY: none */
};

struct fleet_client {
    uint32_t n_token; /* of the session that it has */
    uint32_t n_session, n_new;
};

struct gr_fleet {
    struct gr_fleet_config config;
    uint64_t now_ns, rng;
    struct gr_events *events;
    struct fleet_device *device;
    struct fleet_worker *worker;
    uint32_t n_worker;
    uint32_t *touched; /* (n_worker): of them, n_touched */
    uint32_t n_touched;
    struct fleet_conn *conn;
    uint32_t n_conn, cap_conn;
    struct gr_cost_table cost; /* as a target calibrates */
    /* the orchestrator */
    struct gr_orch *orch;
    struct fleet_event *inbox;           /* events that it has not taken up, in order */
    uint64_t *inbox_ns;                  /* when each of them came */
    size_t inbox_at, n_inbox, cap_inbox; /* from inbox_at on */
    bool orch_busy;
    uint64_t orch_wake_ns;      /* when it looks again by itself */
    struct fleet_event *outbox; /* messages of the batch at hand, which leave together at its end */
    size_t n_outbox, cap_outbox;
    uint64_t heard_ns;      /* when it takes up the message at hand: the batch began at now_ns */
    uint64_t orch_until_ns; /* when it is done with the batch that it took up last */
    double orch_busy_ns, wait_sum_ns;
    uint64_t n_wait;
    double clock_ns; /* a look at the CPU's clock takes so long */
    double place_ns; /* CPU time of new sessions in this batch */
    /* clients */
    struct fleet_client *client;
    int32_t *prompt;
    /* The group of sessions that began at once. All of them decode from all_ns, when the last one's first token came,
     * to over_ns, when the first one ended; over_ns 0: none has ended. */
    int i_group;
    uint32_t n_first, n_over;   /* sessions whose first token has come; sessions that are over */
    uint64_t first_ns, last_ns; /* when the group's first token came, and its last so far */
    uint64_t all_ns, over_ns;
    uint64_t n_token, all_token, over_token; /* tokens of the group so far, until all_ns, until over_ns */
    uint64_t progress_ns;                    /* when a token of any client came last */
    struct gr_fleet_result result;
};

uint64_t fleet_draw(uint64_t *rng, uint64_t n);

/* ---- fleet_link.c ---- */
void fleet_push(struct gr_fleet *f, uint64_t at_ns, struct fleet_event e);
/* Is it still about something that exists? */
bool fleet_is_void(const struct gr_fleet *f, const struct fleet_event *e);
uint8_t *fleet_frame_begin(struct gr_fleet *f, struct fleet_worker *w, uint32_t conn, enum gr_frame_class class,
                           uint32_t bytes);
void fleet_frame_end(struct gr_fleet *f, struct fleet_worker *w, uint32_t conn, uint32_t bytes);
/* Is there room for n COMMITs more on the way to the orchestrator? It is woken when there is. */
bool fleet_commit_room(struct fleet_worker *w, int n);
/* The orchestrator has taken up the message `e'. */
void fleet_taken_up(struct gr_fleet *f, const struct fleet_event *e);
void fleet_msg_to_orch(struct gr_fleet *f, struct fleet_worker *w, const struct gr_msg *m);
void fleet_msg_from_orch(struct gr_fleet *f, uint32_t worker, const struct gr_msg *m);
/* The messages of the orchestrator's batch leave; the batch kept it busy for busy_ns. */
void fleet_flush_orch(struct gr_fleet *f, double busy_ns);
/* The drafter's connection to the target of that address. */
uint32_t fleet_connect(struct gr_fleet *f, struct fleet_worker *w, const char *address);
void fleet_address(const struct fleet_worker *w, char *out, size_t cap);
/* The worker is gone: those it is connected to will notice. */
void fleet_break_all(struct gr_fleet *f, const struct fleet_worker *w);

/* ---- fleet_worker.c ---- */
GR_NODISCARD enum gr_status fleet_worker_create(struct gr_fleet *f, struct fleet_worker *w);
void fleet_worker_destroy(struct fleet_worker *w);
/* An event of a worker. */
void fleet_worker_take(struct gr_fleet *f, struct fleet_worker *w, const struct fleet_event *e);
/* It looks for something to do. */
void fleet_worker_step(struct gr_fleet *f, struct fleet_worker *w);
/* What a pass of n_row rows takes; n_seq sessions are in it, whose contexts come to `context' tokens. */
double fleet_pass_ns(const struct gr_target_costs *c, int n_row, int n_seq, double context);

/* ---- fleet_orch.c ---- */
GR_NODISCARD enum gr_status fleet_orch_create(struct gr_fleet *f);
void fleet_orch_destroy(struct gr_fleet *f);
void fleet_orch_join(struct gr_fleet *f, const struct fleet_worker *w);
void fleet_orch_take(struct gr_fleet *f, const struct fleet_event *e);
/* It is done with a batch, or time has come. */
void fleet_orch_run(struct gr_fleet *f);

#endif
