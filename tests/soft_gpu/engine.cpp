/* Threads, and where they meet. */
#include "tests/soft_gpu/block.h"

#include <boost/context/fixedsize_stack.hpp>
#include <cxxabi.h>
#include <dlfcn.h>
#include <sched.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

__thread soft_gpu_index threadIdx, blockIdx, blockDim, gridDim;

namespace soft_gpu
{

constexpr size_t STACK_BYTES = 128 * 1024, N_STACK_KEPT = 4096;

__thread Run *run_now;
__thread Cluster *cluster;
__thread Thread *current;

/* ---- stacks, kept between launches ---- */

struct StackPool {
    std::vector<boost::context::stack_context> unused;
    boost::context::fixedsize_stack make{STACK_BYTES};
    ~StackPool()
    {
        for (auto &s : unused) {
            make.deallocate(s);
        }
    }
};

static StackPool &stack_pool()
{
    static thread_local StackPool pool;
    return pool;
}

struct PooledStack {
    boost::context::stack_context allocate()
    {
        StackPool &pool = stack_pool();
        if (pool.unused.empty()) {
            return pool.make.allocate();
        }
        const boost::context::stack_context s = pool.unused.back();
        pool.unused.pop_back();
        return s;
    }
    void deallocate(boost::context::stack_context &s)
    {
        StackPool &pool = stack_pool();
        if (pool.unused.size() < N_STACK_KEPT) {
            pool.unused.push_back(s);
        } else {
            pool.make.deallocate(s);
        }
    }
};

/* ---- blocks' shared memory, kept between launches too ---- */

struct FreeMemory {
    void operator()(uint8_t *p) const
    {
        free(p);
    }
};

using SharedMemory = std::unique_ptr<uint8_t, FreeMemory>;

static std::vector<SharedMemory> &unused_shared(size_t bytes)
{
    static thread_local std::map<size_t, std::vector<SharedMemory>> unused;
    return unused[bytes];
}

/* Of exactly that size, so that what reads further is seen by AddressSanitizer. */
static SharedMemory make_shared_memory(size_t bytes)
{
    void *p = nullptr;
    if (posix_memalign(&p, 1024, bytes + 1) != 0) {
        abort();
    }
    return SharedMemory((uint8_t *)p);
}

static uint8_t *take_shared(size_t bytes)
{
    std::vector<SharedMemory> &unused = unused_shared(bytes);
    if (unused.empty()) {
        unused.push_back(make_shared_memory(bytes));
    }
    uint8_t *p = unused.back().release();
    unused.pop_back();
    memset(p, 0xff, bytes + 1);
    return p;
}

void end_block(Block &b)
{
    unused_shared(b.shared_bytes).push_back(SharedMemory(b.shared));
    b.shared = nullptr;
}

/* ---- reports ---- */

const char *name_of(const Launch &launch)
{
    static thread_local char text[200];
    Dl_info info;
    if (dladdr(launch.kernel, &info) == 0 || info.dli_sname == nullptr) {
        snprintf(text, sizeof(text), "kernel %p", launch.kernel);
        return text;
    }
    int status = 0;
    char *plain = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
    snprintf(text, sizeof(text), "%s", plain != nullptr ? plain : info.dli_sname);
    free(plain);
    return text;
}

static void report_list(const char *who, const char *format, va_list args)
{
    char text[300];
    vsnprintf(text, sizeof(text), format, args);
    fprintf(stderr, "soft GPU: %s%s\n", who, text);
    run_now->over = true;
}

/* A rule that nobody can be told of who runs just now. */
void report(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report_list("", format, args);
    va_end(args);
}

void fail(const char *format, ...)
{
    char who[300];
    va_list args;
    const Thread &t = me();
    snprintf(who, sizeof(who), "%s, block (%u, %u, %u), thread %u: ", name_of(*cluster->grid->launch), t.block->index.x,
             t.block->index.y, t.block->index.z, t.index.x);
    va_start(args, format);
    report_list(who, format, args);
    va_end(args);
    throw Abandoned();
}

/* ---- a thread's life ---- */

void make_ready(Thread &t)
{
    if (t.warp->ready.empty()) {
        t.block->cluster->runnable.push_back(t.warp);
    }
    t.warp->ready.push_back(&t);
}

void wake(std::vector<Thread *> &waiting)
{
    for (Thread *t : waiting) {
        make_ready(*t);
    }
    waiting.clear();
}

/* Until somebody makes it ready. */
void wait(const char *what)
{
    Thread &t = me();
    t.waits_for = what;
    if (!run_now->over) {
        t.back = std::move(t.back).resume();
    }
    if (run_now->over) {
        throw Abandoned();
    }
}

void resume(Thread &t)
{
    current = &t;
    threadIdx = t.index;
    blockIdx = t.block->index;
    t.fiber = std::move(t.fiber).resume();
    current = nullptr;
}

static void release_if_complete(Block &b, NamedBarrier &n);
static void release_cluster();

static void block_lets_next(Block &b)
{
    if (!b.lets_next) {
        b.lets_next = true;
        cluster->n_letting++;
        cluster->grid->n_letting++;
    }
}

static void end_thread(Thread &t)
{
    t.ended = true;
    t.warp->n_live--;
    cluster->n_live--;
    if (--t.block->n_live == 0) {
        block_lets_next(*t.block);
    }
    release_if_complete(*t.block, t.block->named[0]);
    release_cluster();
}

static boost::context::fiber life(Thread &t, boost::context::fiber &&back)
{
    t.back = std::move(back);
    try {
        if (!run_now->over) {
            cluster->grid->launch->body();
        }
        if (!run_now->over && t.warp->n_here > 0) {
            fail("it ends where others of its warp wait at %s", t.warp->what);
        }
    } catch (const Abandoned &) {
    }
    end_thread(t);
    return std::move(t.back);
}

void make_block(Block &b, Cluster &c, int rank, unsigned i_block)
{
    const Launch &l = *c.grid->launch;
    const int n = (int)l.n_thread;
    b.cluster = &c, b.rank = rank, b.n_live = n;
    b.index = {i_block % l.grid[0], i_block / l.grid[0] % l.grid[1], i_block / l.grid[0] / l.grid[1]};
    b.shared_bytes = l.shared_bytes;
    b.shared = take_shared(l.shared_bytes);
    b.warp.resize((size_t)(n + WARP - 1) / WARP);
    b.group.resize((size_t)(n + WARPGROUP - 1) / WARPGROUP);
    b.thread.resize((size_t)n);
    for (int i = 0; i < n; i++) {
        Thread &t = b.thread[(size_t)i];
        Warp &w = b.warp[(size_t)(i / WARP)];
        t.block = &b, t.warp = &w, t.group = &b.group[(size_t)(i / WARPGROUP)];
        t.index = {(unsigned)i, 0, 0}, t.lane = i % WARP;
        w.block = &b, w.first = i / WARP * WARP, w.n_live = i % WARP + 1;
        t.fiber = boost::context::fiber(std::allocator_arg, PooledStack(),
                                        [&t](boost::context::fiber &&back) { return life(t, std::move(back)); });
        make_ready(t);
    }
}

/* ---- meetings ---- */

static void complete_warp(Warp &w)
{
    Block &b = *w.block;
    w.n_met++;
    w.n_here = 0;
    for (int i = 0; i < WARP; i++) {
        Thread &t = b.thread[(size_t)(w.first + i)];
        if (&t != current) {
            make_ready(t);
        }
    }
}

void meet_warp(const char *what, uint64_t value, void (*complete)(const uint64_t *v))
{
    Thread &t = me();
    Warp &w = *t.warp;
    if (w.n_live < WARP) {
        fail("%s: %d lanes of its warp have ended, or never were", what, WARP - w.n_live);
    }
    if (w.n_here > 0 && w.what != what && strcmp(w.what, what) != 0) {
        fail("it is at %s, others of its warp at %s", what, w.what);
    }
    w.what = what;
    std::array<uint64_t, WARP> &all = w.value[w.n_met % 2];
    all[(size_t)t.lane] = value;
    if (++w.n_here < WARP) {
        wait(what);
        return;
    }
    if (complete != nullptr) {
        complete(all.data());
    }
    complete_warp(w);
}

const uint64_t *meet_warp(const char *what, uint64_t value)
{
    const Warp &w = *me().warp;
    const uint64_t *all = w.value[w.n_met % 2].data();
    meet_warp(what, value, nullptr);
    return all;
}

static void release_if_complete(Block &b, NamedBarrier &n)
{
    if (n.n_here > 0 && n.n_here >= (n.n == 0 ? b.n_live : n.n)) {
        n.n_here = 0;
        wake(n.waiting);
    }
}

static void arrive_named(int id, int n, bool waits)
{
    Thread &t = me();
    Block &b = *t.block;
    if (id < 0 || id >= N_NAMED_BARRIER || n % WARP != 0 || n > (int)b.thread.size()) {
        fail("barrier %d of %d threads: there are %d barriers, for whole warps of the block's %zu threads", id, n,
             N_NAMED_BARRIER, b.thread.size());
    }
    (void)meet_warp(waits ? "a barrier" : "arrival at a barrier", (uint64_t)id << 32 | (uint64_t)n);
    NamedBarrier &bar = b.named[(size_t)id];
    if (bar.n_here > 0 && bar.n != n) {
        fail("barrier %d: %d threads, where others wait for %d", id, n, bar.n);
    }
    bar.n = n;
    bar.n_here++;
    if (!waits) {
        release_if_complete(b, bar);
        return;
    }
    bar.waiting.push_back(&t);
    if (bar.n_here >= (n == 0 ? b.n_live : n)) {
        bar.waiting.pop_back();
        release_if_complete(b, bar);
        return;
    }
    wait("a barrier of the block");
}

void sync_threads(int id, int n)
{
    arrive_named(id, n, true);
}

void arrive_threads(int id, int n)
{
    arrive_named(id, n, false);
}

static void release_cluster()
{
    if (cluster->n_here > 0 && cluster->n_here >= cluster->n_live) {
        cluster->n_here = 0;
        cluster->n_met++;
        wake(cluster->waiting);
    }
}

void cluster_arrive()
{
    Thread &t = me();
    (void)meet_warp("arrival at the cluster's barrier", 0);
    if (t.n_cluster > cluster->n_met) {
        fail("it arrives at the cluster's barrier twice");
    }
    t.n_cluster = cluster->n_met + 1;
    cluster->n_here++;
    release_cluster();
}

void cluster_wait()
{
    Thread &t = me();
    (void)meet_warp("the cluster's barrier", 0);
    while (cluster->n_met < t.n_cluster) {
        cluster->waiting.push_back(&t);
        wait("the cluster's barrier");
    }
}

int cluster_rank()
{
    return me().block->rank;
}

/* ---- blocks that wait for each other ---- */

void arrive_count(uint32_t *n)
{
    ++*n;
    std::vector<Counting> &all = run_now->counting;
    for (size_t i = all.size(); i-- > 0;) {
        if (all[i].n == n && *n >= all[i].target) {
            make_ready(*all[i].thread);
            all.erase(all.begin() + (long)i);
        }
    }
}

void wait_count(const uint32_t *n, uint32_t target)
{
    if (*n < target) {
        run_now->counting.push_back({n, target, &me()});
        wait("a counter of the grid");
    }
}

/* ---- devices that wait for each other ---- */

void give_way()
{
    cluster->grid->meets = true;
    sched_yield();
    make_ready(me());
    wait("another device");
}

uint64_t now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- kernels one after another ---- */

void wait_for_previous()
{
    Grid &g = *cluster->grid;
    while (g.before != nullptr && !g.before->is_over()) {
        g.waiting.push_back(&me());
        wait("the kernel before");
    }
}

/* Where kernels overlap the next one gets its chance here. */
void let_next_start()
{
    block_lets_next(*me().block);
    make_ready(me());
    wait("its turn");
}

} // namespace soft_gpu
