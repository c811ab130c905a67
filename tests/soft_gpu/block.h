/* Inside of the GPU in software: kernels of a stream, clusters, blocks, warps and threads, what is on its way. */
#ifndef GR_SOFT_GPU_BLOCK_H
#define GR_SOFT_GPU_BLOCK_H

#include "tests/soft_gpu/engine.h"

#include <boost/context/fiber.hpp>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace soft_gpu
{

constexpr int N_NAMED_BARRIER = 16, WARP = 32, WARPGROUP = 128;
constexpr uint64_t N_GROUP_MAX = 16; /* of products that a thread may have committed and not waited for */

struct Block;
struct Cluster;
struct Grid;
struct Thread;

/* Thrown in a thread when the run is over before it is. */
struct Abandoned {
};

/* xorshift64: the schedule. */
struct Draw {
    uint64_t s;
    uint32_t below(uint32_t n);
    bool one_in(uint32_t n);
};

/* A barrier in shared memory (mbarrier). */
struct Bar {
    int n, n_left; /* arrivals of a phase, and those that are still to come */
    int64_t bytes; /* expected, less those that came */
    uint32_t phase;
    std::vector<Thread *> waiting;
};

struct NamedBarrier {
    int n = 0, n_here = 0; /* n 0: of all threads */
    std::vector<Thread *> waiting;
};

/* One instruction of a warpgroup, until it is executed. */
struct GroupProduct {
    Product what; /* of its first thread */
    int n_issued = 0;
    std::array<float *, WARPGROUP> d{};
    std::array<const uint32_t *, WARPGROUP> a{};
};

struct Warpgroup {
    std::deque<GroupProduct> pending;
    uint64_t n_executed = 0;
    std::vector<Thread *> waiting;
};

struct Warp {
    Block *block;
    int first, n_live; /* threads of the block */
    uint64_t n_met = 0;
    int n_here = 0;
    const char *what = nullptr;
    std::array<std::array<uint64_t, WARP>, 2> value{};
    std::vector<Thread *> ready; /* that can go on */
};

struct Thread {
    boost::context::fiber fiber, back; /* the thread while it does not run; who resumed it while it does */
    Block *block;
    Warp *warp;
    Warpgroup *group;
    soft_gpu_index index;
    int lane;
    bool ended = false;
    const char *waits_for = "its start";
    uint64_t n_cluster = 0;                        /* phases of the cluster's barrier that it arrived at */
    uint64_t n_product = 0;                        /* issued */
    std::array<uint64_t, N_GROUP_MAX> group_end{}; /* products up to the end of a group, by its number */
    uint64_t n_group = 0, n_waited = 0;            /* committed, and waited for */
};

struct Block {
    Cluster *cluster;
    int rank, n_live;
    bool lets_next = false;
    soft_gpu_index index;
    uint8_t *shared; /* owned */
    size_t shared_bytes;
    std::map<const void *, std::unique_ptr<uint64_t[]>> variable;
    std::unordered_map<uint32_t, Bar> bar; /* by offset */
    std::array<NamedBarrier, N_NAMED_BARRIER> named;
    std::vector<Warp> warp;
    std::vector<Warpgroup> group;
    std::vector<Thread> thread;
};

/* What is on its way into a block. */
struct Event {
    int rank;
    uint32_t bar;
    bool arrives;     /* else bytes come */
    const void *from; /* NULL: data */
    uint32_t to, bytes;
    float data[4];
};

struct Cluster {
    Grid *grid;
    int n_live, n_letting; /* threads; blocks that let the next kernel start */
    std::vector<Block> block;
    std::vector<Event> event;
    std::vector<Warp *> runnable; /* that have a ready thread */
    uint32_t lazy;                /* what is on its way comes at once (0), any time, or when nobody can go on (2) */
    int n_here = 0;               /* of its barrier */
    uint64_t n_met = 0;
    std::vector<Thread *> waiting;
};

/* A kernel. */
struct Grid {
    const Launch *launch;
    Grid *before;                                       /* NULL: it is the first */
    unsigned n_cluster, first;                          /* first: the cluster that starts first */
    unsigned n_started = 0, n_ended = 0, n_letting = 0; /* clusters; blocks */
    std::vector<std::unique_ptr<Cluster>> alive;
    std::vector<Thread *> waiting; /* for the one before */
    bool meets = false;            /* its blocks wait for other devices' */
    bool is_over() const
    {
        return n_ended == n_cluster;
    }
};

/* Who waits for a counter in global memory. */
struct Counting {
    const uint32_t *n;
    uint32_t target;
    Thread *thread;
};

/* Kernels of a stream. */
struct Run {
    std::deque<Grid> grid;
    std::vector<Counting> counting;
    Draw *draw;
    bool over = false; /* a rule was broken */
};

/* Of the host thread: what runs just now. */
extern __thread Run *run_now;
extern __thread Cluster *cluster;
extern __thread Thread *current;

static inline Thread &me()
{
    return *current;
}

/* engine.cpp */
void make_ready(Thread &t);
void wait(const char *what);
void wake(std::vector<Thread *> &waiting);
void make_block(Block &b, Cluster &c, int rank, unsigned i_block);
void end_block(Block &b);
void resume(Thread &t);
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* For reports. */
const char *name_of(const Launch &launch);
/* async.cpp */
void deliver(size_t i_event);
/* [offset, offset + bytes) of the block's shared memory, aligned. NULL: it is not all there. */
uint8_t *shared_at(const Block &b, uint32_t offset, size_t bytes, size_t align);

} // namespace soft_gpu

#endif
