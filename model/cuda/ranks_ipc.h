/* How ranks that are processes of one host come to see each other's GPU memory: each exports its own (cudaIpc), the
 * handles go over the host group, and each maps those of the others. */
#ifndef GR_MODEL_CUDA_RANKS_IPC_H
#define GR_MODEL_CUDA_RANKS_IPC_H

#include "model/cuda/ranks_peer.h"

/* A way, and what it says where that cannot be. */
struct gr_cuda_ipc_way {
    struct gr_cuda_peer_way way; /* first */
    bool required;               /* why it cannot be is an error; else one line of information */
};

/* show() is GR_EUNSUPPORTED on all ranks where one GPU cannot see another's memory. */
struct gr_cuda_ipc_way gr_cuda_ipc_way(bool required);

#endif
