/* The calls of NCCL that are made, found in libnccl.so.2 when they are needed: a build runs where there is none. */
#ifndef GR_MODEL_CUDA_NCCL_API_H
#define GR_MODEL_CUDA_NCCL_API_H

#include "common/base/status.h"

#include <nccl.h>

struct gr_nccl_api {
    ncclResult_t (*version)(int *version);
    ncclResult_t (*unique_id)(ncclUniqueId *id);
    ncclResult_t (*init)(ncclComm_t *comm, int n_rank, ncclUniqueId id, int rank);
    ncclResult_t (*abort)(ncclComm_t comm);
    ncclResult_t (*async_error)(ncclComm_t comm, ncclResult_t *error);
    ncclResult_t (*begin)(void);
    ncclResult_t (*end)(void);
    ncclResult_t (*send)(const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                         struct CUstream_st *stream);
    ncclResult_t (*receive)(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                            struct CUstream_st *stream);
    ncclResult_t (*allreduce)(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op,
                              ncclComm_t comm, struct CUstream_st *stream);
    const char *(*text)(ncclResult_t e);
};

/* Never closed. GR_EUNSUPPORTED (logged): it cannot be loaded, or lacks a call. */
GR_NODISCARD enum gr_status gr_nccl_load(struct gr_nccl_api *api);

#endif
