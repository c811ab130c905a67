/* The draft worker as a function: loads the draft model and serves until the orchestrator is gone. graft-draft's main,
 * and one half of the co-located pair. */
#ifndef GR_DRAFT_WORKER_WORKER_H
#define GR_DRAFT_WORKER_WORKER_H

#include "common/base/status.h"
#include "model/files/tuned.h"
#include "transport/transport.h"

#include <stdbool.h>

struct gr_draft_options {
    const char *model;            /* folder of the draft model, or of an EAGLE-3 head */
    const char *served_as;        /* its name in a fleet; NULL: the last part of `model' */
    const char *target;           /* a head: the target's folder, for what the head borrows; else not looked at */
    bool ship_raw;                /* of a head, as its target's */
    const char *capture_layers;   /* of a head, as its target's; NULL: the head's own choice */
    const char *join;             /* orchestrator HOST:PORT */
    int spin_ms;                  /* worker_options.h */
    uint64_t pass_limit_ns;       /* worker_io.h */
    int device;                   /* of cuda:N; GR_DEVICE_CPU */
    int dtype;                    /* enum gr_weights_as */
    const char *geometry;         /* of an EAGLE-3 head; NULL: as in the folder */
    const struct gr_tuned *tuned; /* borrowed until the model is there; NULL: nothing was measured */
    const char *isa;              /* CPU kernels or NULL */
    int n_thread;                 /* 0: all CPUs */
    int n_ctx_max;                /* 0: the model's */
    int draft_context;            /* positions that a head looks back; 0: all */
    int n_session_max;
    int kv_blocks;                             /* 0: from free memory */
    int forced_transport;                      /* enum gr_transport_kind or -1 */
    bool require_gpudirect, disable_gpudirect; /* of a head on a GPU (far_features.h) */
    struct gr_conn *loop_conn;                 /* taken; NULL: none */
    bool *started; /* out: the model was loaded and the worker began to serve; NULL: not asked */
    /* for tests */
    int test_flip_round; /* 0: off; see gr_drafter_config */
    int test_delay_us;   /* each job takes so much longer */
    int test_fail_job;   /* that job ends as if the device had failed; 0: none */
};

GR_NODISCARD enum gr_status gr_draft_worker_run(const struct gr_draft_options *options);

#endif
