/* The target worker as a function: loads the model and serves until the orchestrator is gone. graft-target's main, and
 * one half of the co-located pair. */
#ifndef GR_TARGET_WORKER_WORKER_H
#define GR_TARGET_WORKER_WORKER_H

#include "common/base/device.h"
#include "common/base/status.h"
#include "model/files/tuned.h"
#include "transport/transport.h"

#include <stdint.h>

struct gr_ranks;

struct gr_target_options {
    const char *model;     /* folder */
    const char *served_as; /* its name in a fleet; NULL: the last part of `model' */
    const char *head;      /* folder of the EAGLE-3 head it serves, or NULL */
    bool head_optional;    /* go on without features where the head cannot be used: sessions wait for this target */
    bool ship_raw;         /* the head runs fc itself, on captured states */
    const char *capture_layers;   /* capture.h; NULL: the head's own choice */
    int feature_keep;             /* positions of a session */
    const char *join;             /* orchestrator HOST:PORT */
    const char *listen;           /* data endpoint HOST:PORT; NULL for a co-located pair */
    int spin_ms;                  /* worker_options.h */
    uint64_t pass_limit_ns;       /* worker_io.h */
    int device;                   /* of cuda:N; GR_DEVICE_CPU. In a group this rank's */
    struct gr_devices devices;    /* of all ranks */
    int dtype;                    /* enum gr_weights_as */
    const char *geometry;         /* NULL: as in the folder; else expanded in memory (model/load/expand.h) */
    const struct gr_tuned *tuned; /* borrowed until the model is there; NULL: nothing was measured */
    const char *isa;              /* CPU kernels or NULL */
    int n_thread;                 /* 0: all CPUs, which the ranks of a group share */
    int n_rank;                   /* of the tensor-parallel group that this target is; 1: none */
    int rank_transport;           /* enum gr_cuda_ranks_kind: how GPUs of a group exchange sums */
    bool rank_allreduce;          /* in NCCL's order, instead of the unsplit model's */
    uint64_t rank_limit_ns;       /* that a rank waits for another in a pass */
    const char *rank_group;       /* where the processes of a group meet that are started one by one; NULL: rank 0
                                     starts the others on its host. The device and ranks->rank are this one's then */
    const char *rank_listen;      /* of such a rank that follows: where higher ones connect; NULL: any port */
    struct gr_ranks *ranks;       /* borrowed: of this process where a rank 0 has started it, else not started yet */
    char *const *argv;            /* borrowed; of this process, for the other ranks */
    int n_ctx_max;                /* 0: the model's */
    int n_session_max;
    int kv_blocks;                             /* 0: from free memory */
    int forced_transport;                      /* enum gr_transport_kind or -1 */
    bool require_gpudirect, disable_gpudirect; /* far_features.h */
    uint64_t round_deadline_ns;
    double prefill_share;          /* target.h; 0: no limit */
    bool prefix_cache;             /* sessions take KV that others have computed */
    bool specpv, specpv_score_max; /* views; scores are maxima over queries, else means */
    int specpv_n_sink, specpv_n_retrieval, specpv_n_window, specpv_n_buffer; /* what views are made for, at most */
    int test_corrupt;                                                        /* target.h */
    int test_fail_pass;        /* 0: none; else this pass ends as if the device had failed */
    int test_hang_pass;        /* 0: none; else this pass never ends */
    struct gr_conn *loop_conn; /* taken; NULL: none */
    bool shares_device;        /* with that connection's drafter */
};

/* A rank other than 0 computes what rank 0 says, and returns when that ends the group. */
GR_NODISCARD enum gr_status gr_target_worker_run(const struct gr_target_options *options);

#endif
