/* The calls of NCCL that are made, found in libnccl.so.2 when they are needed: neither a build nor a run without them
 * needs NCCL. Types and values are those of its binary interface, the same in all versions 2. */
#ifndef GR_MODEL_CUDA_NCCL_API_H
#define GR_MODEL_CUDA_NCCL_API_H

#include "common/base/status.h"

#include <stddef.h>

struct CUstream_st;

enum { GR_NCCL_OK = 0, GR_NCCL_FLOAT = 7, GR_NCCL_SUM = 0 }; /* ncclSuccess, ncclFloat32, ncclSum */

/* ncclUniqueId */
struct gr_nccl_id {
    char bytes[128];
};

typedef struct ncclComm *gr_nccl_comm; /* ncclComm_t */

struct gr_nccl_api {
    int (*version)(int *version);
    int (*unique_id)(struct gr_nccl_id *id);
    int (*init)(gr_nccl_comm *comm, int n_rank, struct gr_nccl_id id, int rank);
    int (*abort)(gr_nccl_comm comm);
    int (*async_error)(gr_nccl_comm comm, int *error);
    int (*begin)(void);
    int (*end)(void);
    int (*send)(const void *from, size_t n, int type, int peer, gr_nccl_comm comm, struct CUstream_st *stream);
    int (*receive)(void *to, size_t n, int type, int peer, gr_nccl_comm comm, struct CUstream_st *stream);
    int (*allreduce)(const void *from, void *to, size_t n, int type, int op, gr_nccl_comm comm,
                     struct CUstream_st *stream);
    const char *(*text)(int e);
};

/* Never closed. GR_EUNSUPPORTED (logged): it cannot be loaded, or lacks a call. */
GR_NODISCARD enum gr_status gr_nccl_load(struct gr_nccl_api *api);

#endif
