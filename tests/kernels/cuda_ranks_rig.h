/* Ranks of a group of GPUs as threads of one process, for the checks of the CUDA kernels: each has a device of its own,
 * which sees the others' memory. C++ host code. */
#ifndef GR_TESTS_KERNELS_CUDA_RANKS_RIG_H
#define GR_TESTS_KERNELS_CUDA_RANKS_RIG_H

#include "kernels/cuda/group/join.h"
#include "tests/kernels/cuda_rig.h"

#include <functional>
#include <memory>

/* GPUs of compute capability 9.0 of which each sees all others' memory: the first so many. */
int count_peer_gpus();

/* One rank: its device's memory, and words of the host. The device is the one with the rank's number. */
struct rank_gpu {
    int rank;
    cudaStream_t stream;
    std::unique_ptr<dev<float>> part;
    std::unique_ptr<dev<uint32_t>> flag, count;
    volatile uint32_t *word; /* of the host: abort, error */
    gr_cuda_peers peers;
};

/* The ranks of a group. */
struct rank_gpus {
    std::vector<rank_gpu> rank;
    rank_gpus(int n_rank, size_t n_part, uint64_t limit_ns);
    rank_gpus(const rank_gpus &) = delete;
    ~rank_gpus();
    /* f on a thread for each rank, whose device is chosen. */
    void run(const std::function<void(rank_gpu &)> &f);
    /* Errors that the kernels have left; OK if none has. */
    uint32_t error() const;
};

#endif
