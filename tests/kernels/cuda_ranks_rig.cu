/* Ranks as threads (cuda_ranks_rig.h). */
#include "tests/kernels/cuda_ranks_rig.h"

#include <thread>

static bool sees_others(int device, int n)
{
    for (int peer = 0; peer < n; peer++) {
        int can = 0;
        if (peer != device && (cudaDeviceCanAccessPeer(&can, device, peer) != cudaSuccess || !can)) {
            return false;
        }
    }
    return true;
}

static void enable_others(int device, int n)
{
    CUDA_OK(cudaSetDevice(device));
    for (int peer = 0; peer < n; peer++) {
        const cudaError_t e = peer != device ? cudaDeviceEnablePeerAccess(peer, 0) : cudaSuccess;
        if (e != cudaErrorPeerAccessAlreadyEnabled) {
            CUDA_OK(e);
        }
        (void)cudaGetLastError();
    }
}

int count_peer_gpus()
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        return 0;
    }
    n = std::min(n, (int)GR_CUDA_PEER_MAX);
    for (int device = 0; device < n; device++) {
        cudaDeviceProp prop;
        if (cudaGetDeviceProperties(&prop, device) != cudaSuccess || prop.major != 9 || !sees_others(device, n)) {
            return std::max(device, 1);
        }
    }
    return n;
}

static void open_rank(rank_gpu &r, int n_rank, size_t n_part)
{
    void *word = nullptr;
    enable_others(r.rank, n_rank);
    CUDA_OK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
    r.part.reset(new dev<float>(2 * n_part));
    r.flag.reset(new dev<uint32_t>(std::vector<uint32_t>((size_t)n_rank * GR_CUDA_JOIN_BLOCKS)));
    r.count.reset(new dev<uint32_t>(std::vector<uint32_t>(GR_CUDA_JOIN_COUNTERS)));
    r.part->poison();
    CUDA_OK(cudaHostAlloc(&word, 2 * sizeof(uint32_t), cudaHostAllocMapped));
    r.word = (volatile uint32_t *)word;
    r.word[0] = r.word[1] = 0;
    CUDA_OK(cudaDeviceSynchronize());
}

rank_gpus::rank_gpus(int n_rank, size_t n_part, uint64_t limit_ns) : rank((size_t)n_rank)
{
    for (int i = 0; i < n_rank; i++) {
        rank[(size_t)i].rank = i;
        open_rank(rank[(size_t)i], n_rank, n_part);
    }
    for (rank_gpu &r : rank) {
        void *on_device = nullptr;
        CUDA_OK(cudaSetDevice(r.rank));
        CUDA_OK(cudaHostGetDevicePointer(&on_device, (void *)r.word, 0));
        r.peers = {};
        r.peers.rank = r.rank, r.peers.n_rank = n_rank, r.peers.n_part = n_part, r.peers.limit_ns = limit_ns;
        r.peers.two_shots_from = SIZE_MAX;
        r.peers.count = r.count->p;
        r.peers.abort = (const uint32_t *)on_device, r.peers.error = (uint32_t *)on_device + 1;
        for (int i = 0; i < n_rank; i++) {
            r.peers.part[i] = rank[(size_t)i].part->p, r.peers.flag[i] = rank[(size_t)i].flag->p;
        }
    }
    CUDA_OK(cudaSetDevice(0));
}

rank_gpus::~rank_gpus()
{
    for (rank_gpu &r : rank) {
        cudaSetDevice(r.rank);
        cudaStreamDestroy(r.stream);
        cudaFreeHost((void *)r.word);
    }
    cudaSetDevice(0);
}

void rank_gpus::run(const std::function<void(rank_gpu &)> &f)
{
    std::vector<std::thread> threads;
    for (rank_gpu &r : rank) {
        threads.emplace_back([&r, &f] {
            CUDA_OK(cudaSetDevice(r.rank));
            f(r);
        });
    }
    for (std::thread &t : threads) {
        t.join();
    }
}

uint32_t rank_gpus::error() const
{
    uint32_t e = GR_CUDA_JOIN_OK;
    for (const rank_gpu &r : rank) {
        e = e == GR_CUDA_JOIN_OK ? r.word[1] : e;
    }
    return e;
}
