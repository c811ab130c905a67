/* A GPU in software, for tests: it runs the kernels of kernels/cuda on a machine that has none, and tells which rules
 * of the hardware they break.
 *
 * A kernel is compiled as C++; its threads are fibers of the calling host thread. Which warp goes on, and when what is
 * asynchronous happens (copies into shared memory, arrivals and stores at another block, products of the matrix units,
 * the start of a kernel that need not wait for the one before it), is drawn from SOFT_GPU_SEED: as soon as it may, as
 * late as it can, or any time. So a wait that is missing shows as a wrong result, one that is never over as a line with
 * what every warp waits for.
 *
 * An error (a line on standard error) ends the launch, and every call after it fails, as on a GPU:
 *   lanes of a warp at different instructions that they must run together; shared memory out of bounds or not aligned;
 *   copies from memory that nobody took; a barrier that was not made, or has more arrivals than it waits for;
 *   something on its way into a block that has ended; threads that wait for ever.
 * What is not seen: the order of ordinary accesses between threads (they go one at a time), accesses of global memory
 * out of bounds (AddressSanitizer sees those), bank conflicts, registers, time. Decision D-085. */
#ifndef GR_SOFT_GPU_ENGINE_H
#define GR_SOFT_GPU_ENGINE_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

struct soft_gpu_index { /* dim3 without constructors: a thread's own variable */
    unsigned x, y, z;
};

extern __thread soft_gpu_index threadIdx, blockIdx, blockDim, gridDim;

namespace soft_gpu
{

struct Launch {
    unsigned grid[3], n_thread;
    int cluster; /* blocks of one */
    bool early;  /* it may start when all blocks of the one before let it, or have ended */
    size_t shared_bytes;
    const void *kernel;
    std::function<void()> body; /* one thread's */
};

/* Kernels one after another in a stream, to their end. False: a rule was broken, a line says which. */
bool run(const std::vector<Launch> &launches);
/* Of this host thread's schedules from now on, instead of SOFT_GPU_SEED (1). */
void set_seed(uint64_t seed);

/* ---- what a kernel's threads call (device.cuh, wgmma.cuh, cuda_runtime.h beside this) ---- */

/* The lanes of a warp meet at the same instruction. What each of them brought, until the next meeting but one. */
const uint64_t *meet_warp(const char *what, uint64_t value);
/* The same; the last to come calls complete(values) before any goes on. */
void meet_warp(const char *what, uint64_t value, void (*complete)(const uint64_t *values));

/* Barrier `id` of the block, n threads; 0: all that have not ended. */
void sync_threads(int id, int n);
void arrive_threads(int id, int n);

void cluster_arrive();
void cluster_wait();
int cluster_rank();

void wait_for_previous();
void let_next_start();

/* A counter in global memory by which blocks of a grid wait for each other: all that have not started get their chance
 * then, as far as there is room for them. */
constexpr int N_BLOCK_AT_ONCE = 132;
void arrive_count(uint32_t *n);
void wait_count(const uint32_t *n, uint32_t target);

/* Between two looks at what another device, on another host thread, is to write: others go on, here and there. All
 * blocks of the kernel are started then. */
void give_way();
uint64_t now_ns();

/* The block's variable of this name, and its memory whose size the launch says. */
void *shared_variable(const void *name, size_t bytes);
void *dynamic_shared();
/* Addresses: offset, and the block's rank in the cluster above bit 24. */
uint32_t shared_address(const void *p);
uint32_t shared_address_at(uint32_t address, int rank);

void bar_init(uint32_t bar, int n);
/* An arrival, and so many bytes are to come; at another block it takes its time. */
void bar_arrive(uint32_t bar, uint32_t bytes);
void bar_wait(uint32_t bar, uint32_t parity);
/* To the blocks of the mask, at equal addresses, counted off the barrier of each. */
void copy_bulk(const void *from, uint32_t to, uint32_t bar, uint32_t bytes, unsigned ranks);
/* 16 bytes. */
void send(uint32_t to, uint32_t bar, const float (&x)[4]);

/* d: this thread's n / 2 sums; a: its registers, NULL: a_desc. b_inmost_k: else columns are. */
struct Product {
    int n;
    float *d;
    const uint32_t *a;
    uint64_t a_desc, b_desc;
    bool b_inmost_k, add;
};
void multiply(const Product &p);
void multiply_commit();
void multiply_wait(int n_left);

[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whether [p, p + bytes) is within one piece of memory that somebody took (run time). */
bool is_taken(const void *p, size_t bytes);

} // namespace soft_gpu

#endif
