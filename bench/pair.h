/* An orchestrator in this process with a target and a draft worker as its children: what load is put on by benchmarks
 * and tests that want many sessions at once. One thread. */
#ifndef GR_BENCH_PAIR_H
#define GR_BENCH_PAIR_H

#include "bench/options/options.h"
#include "common/base/device.h"
#include "common/process/children.h"
#include "model/load/expand.h"
#include "model/files/tuned.h"
#include "orchestrator/server/hub.h"

struct gr_pair_config {
    const char *target, *draft;                 /* model folders; draft NULL: no draft worker */
    bool draft_is_head;                         /* an EAGLE-3 head */
    const char *target_program, *draft_program; /* paths; NULL: those beside this program */
    bool colocated;                             /* the drafter runs in the target's process, over loop */
    char target_device[GR_DEVICES_TEXT];        /* "": cpu; in a group one for each rank */
    char draft_device[16];                      /* "": cpu */
    int n_rank;                                 /* of the target's group; 0, 1: none */
    const char *tp_transport, *tp_allreduce;    /* of a group; NULL: the defaults */
    const char *geometry; /* both are expanded to it (model/load/expand.h); NULL: as in the folders */
    const char *tuned;    /* measured shapes, for those on a GPU (model/files/tuned.h); NULL: none */
    bool require_tuned;
    const char *transport; /* "": what the workers choose */
    int n_session, n_ctx_max;
    int n_block;                       /* of the target's KV; 0: auto */
    char draft_context[24];            /* positions that a head looks back; "": the default */
    const char *prefill_share;         /* of the target; NULL: its default */
    const char *const *target_options; /* more of its options, NULL after the last; NULL: none */
    struct gr_orch_io io;              /* as gr_hub_config's */
};

struct gr_pair {
    struct gr_hub *hub;
    struct gr_children children;
    int target, draft; /* children */
};

/* Whether a draft folder holds an EAGLE-3 head. Anything but GR_OK: logged. */
GR_NODISCARD enum gr_status gr_pair_draft_is_head(const char *draft, bool *is_head_out);
/* The pair that the options ask for, and what follows from them: the demo draft where none was given, whether it is a
 * head. geometry_out: NULL without one. Anything but GR_OK: logged. */
GR_NODISCARD enum gr_status gr_pair_config_of(const struct gr_bench_options *o, struct gr_pair_config *c_out,
                                              const struct gr_geometry **geometry_out);
/* Two processes would take turns on one GPU: such a pair is to be co-located. */
bool gr_pair_on_one_gpu(const struct gr_pair_config *c);
/* Returns when both workers have joined. Logged; gr_pair_stop() is legal afterwards. */
GR_NODISCARD enum gr_status gr_pair_start(struct gr_pair *p, const struct gr_pair_config *c);
/* Handles what is there, or waits for something. GR_ECLOSED: a worker ended (logged), or a signal asks to stop. */
GR_NODISCARD enum gr_status gr_pair_pump(struct gr_pair *p);
/* The next turn of an idle session: its prompt's last id anew, whose row brings the first token as it does in a new
 * session. id: (n_id) the prompt; what was generated after it is dropped. */
GR_NODISCARD enum gr_status gr_pair_ask_again(struct gr_pair *p, uint64_t session, const int32_t *id, uint32_t n_id,
                                              uint32_t max_tokens);
/* Number of the worker at the orchestrator; -1: not there. */
int gr_pair_worker(const struct gr_pair *p, enum gr_worker_role role);
void gr_pair_stop(struct gr_pair *p);

/* The signal that cut this process's benchmark short; 0: none did. */
int gr_pair_interrupted(void);

#endif
