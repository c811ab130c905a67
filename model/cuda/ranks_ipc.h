/* How ranks that are processes of one host come to see each other's GPU memory: each exports its own (cudaIpc), the
 * handles go over the host group, and each maps those of the others. */
#ifndef GR_MODEL_CUDA_RANKS_IPC_H
#define GR_MODEL_CUDA_RANKS_IPC_H

#include "model/cuda/ranks_peer.h"

/* show() is GR_EUNSUPPORTED on all ranks where one GPU cannot see another's memory. */
struct gr_cuda_peer_way gr_cuda_ipc_way(bool required);

#endif
