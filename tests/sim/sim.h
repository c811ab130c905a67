/* The three state machines in one process on a virtual clock: a queue of events instead of sockets and threads. Every
 * delay is drawn from a seed, so a run replays exactly. The models are borrowed: table models or real ones. */
#ifndef GR_TESTS_SIM_SIM_H
#define GR_TESTS_SIM_SIM_H

#include "draft_worker/machine/drafter.h"
#include "model/lm.h"
#include "orchestrator/machine/orch.h"
#include "target_worker/machine/target.h"

/* What goes wrong, drawn from the seed. All rates are "one in so many opportunities", 0: never. */
struct sim_faults {
    int kill_target, kill_draft; /* after an event of that worker; it is started again later */
    int break_conn;              /* the data connection, after a frame; each end notices at its own time */
    int copy_frame;              /* a frame is delivered once more, at any later time */
    int stall_orch;              /* the orchestrator reads nothing for a while */
    int drain; /* a worker is told to end: it finishes what it has, and is started again later; not among n_max */
    int mute;  /* a worker's control link goes dead while the worker lives on: half-open */
    int n_max; /* kills, breaks, stalls and mutes of a run */
    uint64_t restart_ns, notice_ns, stall_ns, copy_ns; /* largest delays */
    uint64_t draft_joins_ns;                           /* the drafter joins so late */
};

/* What passes and levels of the draft take, in place of drawn delays: a simulation of speed. */
struct sim_device {
    double (*pass_ns)(int n_seq, int n_row); /* n_row: of all n_seq sessions */
    uint32_t level_ns, level_row_ns;         /* a level of the draft: the first, and so much more for each row */
    bool shared;                             /* target and drafter run there by turns */
    const struct gr_cost_table *cost;        /* what the target has calibrated; borrowed */
};

/* A frame or a control message as a machine has sent it; a copied frame is sent twice. */
struct sim_sent {
    uint64_t now_ns;
    bool is_frame;        /* else a control message */
    char to;              /* 'T' target, 'D' drafter, 'O' orchestrator */
    const uint8_t *bytes; /* encoded; borrowed for the call */
    size_t len;
};

struct sim_config {
    const struct sim_device *device; /* borrowed; NULL: delays are drawn */
    uint64_t seed;
    struct gr_lm *target_lm, *draft_lm; /* draft_lm NULL: no drafter */
    int n_session_max, prefill_chunk;   /* n_session_max: of either worker */
    uint64_t round_deadline_ns;
    uint64_t frame_delay_ns, msg_delay_ns, pass_ns, job_ns; /* largest; drawn uniformly. 0: immediate */
    int no_credit_one_in;                                   /* 0: credit is always there */
    bool check_every_event;                                 /* KV accounting after each event */
    int32_t admit_tokens;
    double prefill_share;
    int32_t feature_keep, feature_window, feature_context; /* where the models have features */
    /* Where the target keeps them, and the drafter, if its head takes far_features; NULL: in the host's memory. */
    const struct gr_far_memory *far, *draft_far;
    /* Looks at a job before it runs. NULL: nobody does. */
    void (*on_job)(const struct gr_drafter *d, const struct gr_draft_job *job);
    struct gr_specpv_params specpv; /* of the target; n_buffer 0: no views */
    uint32_t specpv_corrupt;
    bool prefix_cache, prefix_features; /* of the target */
    int commit_room;                    /* messages to the orchestrator that may be on their way; 0: any number */
    struct gr_orch_config orch;
    bool seats;         /* workers have seats: each life of one takes that of the life before */
    uint64_t client_ns; /* largest pause of a client between two turns */
    uint64_t stop_ns;   /* longest time until a client's stop is heard, drawn; 0: at once */
    struct sim_faults faults;
    /* With faults: a worker that starts again has an empty KV; the sim owns what this makes. NULL: the models above. */
    struct gr_lm *(*make_lm)(void *ctx, bool target);
    void *make_ctx;
    /* Sees everything that is sent, in order; it only looks. NULL: nobody does. */
    void (*on_sent)(void *arg, const struct sim_sent *sent);
    void *sent_arg;
};

#define SIM_TURN_MAX 5 /* of a session */

struct sim_result {
    bool done;
    int n_turn;                    /* that are over */
    uint32_t turn_n[SIM_TURN_MAX]; /* tokens of each */
    bool cut[SIM_TURN_MAX];        /* the client ended it whenever it liked */
    enum gr_finish finish;
    char text[GR_MSG_TEXT_MAX];
    int32_t *token; /* owned by the sim */
    uint32_t n_token;
    /* Of the tokens that became final, in order, those before a stop that the client asked for and maybe some after it.
     * Owned by the sim. */
    uint32_t n_logprob_token, n_logprob, n_logprob_id; /* tokens, floats, ids */
    float *logprob;
    int32_t *logprob_id;
    struct gr_session_metrics metrics;
};

struct sim;

struct sim *sim_create(const struct sim_config *config);
void sim_destroy(struct sim *s);
/* Submits a request; its result lies at index i, in order of submission. */
int sim_submit(struct sim *s, const struct gr_session_request *request);
/* Ends the first turn of session i after n tokens, as a client would. */
void sim_stop_after(struct sim *s, int i, uint32_t n);
/* A further turn of session i, whose request was kept open. The tokens of all turns end up in one result. */
struct sim_turn {
    int32_t ids[16];
    uint32_t n_ids, max_tokens, stop_after; /* stop_after 0: never */
    uint32_t drop;                          /* tokens taken back from the end of the transcript first */
    bool keep_all;                          /* goes on with whatever the orchestrator's transcript is; without drop */
    uint64_t cut_ns;                        /* the client ends it so long after asking, whatever has come; 0: never */
};
void sim_add_turn(struct sim *s, int i, const struct sim_turn *turn);
/* So long from now the client ends the first turn of session i, or closes the session, in a turn or not. 0: never. */
void sim_cut_and_close(struct sim *s, int i, uint64_t cut_ns, uint64_t close_ns);
/* So long from now the client asks for a refresh of session i. */
void sim_refresh(struct sim *s, int i, uint64_t after_ns);
/* Runs until every session is done; false: nothing is left to happen, or the virtual clock passed limit_ns. */
bool sim_run(struct sim *s, uint64_t limit_ns);
/* Says where everything stands: for a run that does not end. */
void sim_dump(const struct sim *s);
const struct sim_result *sim_result(const struct sim *s, int i);
const struct gr_target_counters *sim_target_counters(const struct sim *s);
const struct gr_drafter_counters *sim_drafter_counters(const struct sim *s);
struct gr_target *sim_target(struct sim *s);
struct gr_drafter *sim_drafter(struct sim *s);
/* False: its control link has gone dead, and nobody has noticed yet. */
bool sim_is_linked(const struct sim *s, bool target);
/* Called after every finished pass; for tests that look inside. */
void sim_on_pass(struct sim *s, void (*fn)(struct sim *s, void *arg), void *arg);
/* In such a call: kill -9 of the target when the event is over. */
void sim_kill_target(struct sim *s);
/* Called with each frame before it is delivered; may change it or make it shorter. With this hook a refused frame is no
 * failure of the test: the connection is lost for both ends, as a worker would do it. */
void sim_on_frame(struct sim *s, void (*fn)(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len),
                  void *arg);
struct sim_counts {
    int n_target_kill, n_draft_kill, n_break, n_copy, n_stall, n_mute, n_turn, n_cut, n_close, n_expired;
    int n_drain;     /* workers that were told to end */
    int n_elsewhere; /* OPENs, APPENDs and ATTACHes that they refused */
    int n_crossed;   /* stops that were heard when their turn had ended by itself */
};
const struct sim_counts *sim_counts(const struct sim *s);
/* Of the orchestrator. */
const struct gr_totals *sim_totals(const struct sim *s);
const struct gr_pass *sim_pass(const struct sim *s); /* the last one that finished */
uint64_t sim_session(const struct sim *s, int i);    /* session id of request i */
uint64_t sim_now_ns(const struct sim *s);
int sim_n_error(const struct sim *s); /* ERROR messages of the target */
int sim_n_lost(const struct sim *s);  /* connections lost to refused frames */

#endif
