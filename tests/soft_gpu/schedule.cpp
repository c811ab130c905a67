/* Who goes on: kernels of a stream, their clusters, warps. */
#include "tests/soft_gpu/block.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace soft_gpu
{

constexpr size_t N_GRID_AHEAD = 3;         /* kernels that may have begun before one has ended, that one included */
constexpr size_t N_THREAD_AHEAD = 24 * 1024; /* of kernels that begin early, so that memory suffices */
constexpr int N_STEP = 64;                 /* of a cluster before another's turn */

/* When a kernel starts that may do so early: as late as it can, as early as it may, or any time. */
enum class Overlap { NONE, MOST, SOME };

uint32_t Draw::below(uint32_t n)
{
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    return (uint32_t)((s >> 32) * n >> 32);
}

bool Draw::one_in(uint32_t n)
{
    return below(n) == 0;
}

static Draw draw_of(uint64_t seed)
{
    return Draw{(seed + 1) * 0x9E3779B97F4A7C15ull};
}

/* Each host thread draws its own; the same calls give the same schedule. */
static Draw &the_draw()
{
    const char *text = getenv("SOFT_GPU_SEED");
    static thread_local Draw draw = draw_of(text != nullptr ? strtoull(text, nullptr, 10) : 1);
    return draw;
}

void set_seed(uint64_t seed)
{
    the_draw() = draw_of(seed);
}

/* ---- a cluster ---- */

static void start_cluster(Grid &g)
{
    const Launch &l = *g.launch;
    const unsigned i = (g.first + g.n_started++) % g.n_cluster;
    g.alive.push_back(std::make_unique<Cluster>());
    Cluster &c = *g.alive.back();
    c.grid = &g, c.n_live = l.cluster * (int)l.n_thread, c.n_letting = 0, c.lazy = run_now->draw->below(3);
    c.block.resize((size_t)l.cluster);
    for (int rank = 0; rank < l.cluster; rank++) {
        make_block(c.block[(size_t)rank], c, rank, i * (unsigned)l.cluster + (unsigned)rank);
    }
}

static void end_cluster(Grid &g, size_t i, Grid *next)
{
    for (Block &b : g.alive[i]->block) {
        end_block(b);
    }
    g.alive.erase(g.alive.begin() + (long)i);
    if (++g.n_ended == g.n_cluster && next != nullptr) {
        wake(next->waiting);
    }
}

/* A warp, drawn, all of whose ready lanes go on in turn. */
static void run_one_warp()
{
    const size_t i = run_now->draw->below((uint32_t)cluster->runnable.size());
    Warp &w = *cluster->runnable[i];
    std::vector<Thread *> ready;
    cluster->runnable[i] = cluster->runnable.back();
    cluster->runnable.pop_back();
    ready.swap(w.ready);
    for (Thread *t : ready) {
        if (!run_now->over) {
            resume(*t);
        }
    }
}

static void check_ended_blocks()
{
    for (const Event &e : cluster->event) {
        const Block &b = cluster->block[(size_t)e.rank];
        if (b.n_live == 0 && !run_now->over) {
            report("%s, block (%u, %u, %u) has ended, and %s is on its way to it", name_of(*cluster->grid->launch),
                   b.index.x, b.index.y, b.index.z, e.arrives ? "an arrival" : "a copy");
        }
    }
}

static bool can_go_on(const Cluster &c)
{
    return !c.runnable.empty() || !c.event.empty();
}

/* holds: no further than to where the cluster lets the next kernel start. */
static void run_some_steps(Cluster &c, bool holds)
{
    const Launch &l = *c.grid->launch;
    cluster = &c;
    gridDim = {l.grid[0], l.grid[1], l.grid[2]};
    blockDim = {l.n_thread, 1, 1};
    const auto held = [&] { return holds && c.n_letting == (int)c.block.size(); };
    for (int i = 0; i < N_STEP && can_go_on(c) && !held() && !run_now->over; i++) {
        const bool comes = c.runnable.empty() || c.lazy == 0 || (c.lazy == 1 && run_now->draw->one_in(8));
        if (comes && !c.event.empty()) {
            deliver(run_now->draw->below((uint32_t)c.event.size()));
        } else {
            run_one_warp();
        }
        check_ended_blocks();
    }
    cluster = nullptr;
}

/* ---- kernels ---- */

static size_t n_thread_alive()
{
    size_t n = 0;
    for (const Grid &g : run_now->grid) {
        n += g.alive.size() * (size_t)g.launch->cluster * g.launch->n_thread;
    }
    return n;
}

static bool may_start(const Grid &g)
{
    if (g.before == nullptr || g.before->is_over()) {
        return true;
    }
    const Grid &before = *g.before;
    return g.launch->early && before.n_letting == before.n_cluster * (unsigned)before.launch->cluster &&
           n_thread_alive() < N_THREAD_AHEAD;
}

/* Of the alive ones one that can go on, drawn; `holds`: none that has let the next kernel start. */
static Cluster *choose_cluster(const Grid &g, bool holds)
{
    const size_t n = g.alive.size(), first = n > 0 ? run_now->draw->below((uint32_t)n) : 0;
    for (size_t i = 0; i < n; i++) {
        Cluster &c = *g.alive[(first + i) % n];
        if (can_go_on(c) && (!holds || c.n_letting < (int)c.block.size())) {
            return &c;
        }
    }
    return nullptr;
}

/* One by one where kernels do not overlap, since it takes least memory, and none of its blocks waits for others. */
static bool wants_to_start(const Grid &g, Overlap overlap)
{
    const bool one_by_one = overlap == Overlap::NONE && run_now->counting.empty() && !g.meets;
    const bool room = !run_now->counting.empty() ? (int)g.alive.size() * g.launch->cluster < N_BLOCK_AT_ONCE
                                                 : g.meets || g.alive.empty() || n_thread_alive() < N_THREAD_AHEAD;
    return g.n_started < g.n_cluster && may_start(g) && room && (!one_by_one || g.alive.empty());
}

/* Something of the kernel goes on. False: nothing can. */
static bool advance(Grid &g, Overlap overlap, bool holds)
{
    const bool starts = wants_to_start(g, overlap);
    const bool first = overlap == Overlap::MOST || g.meets; /* who looks for others can always go on */
    Cluster *c = starts && first ? nullptr : choose_cluster(g, holds);
    if (c != nullptr) {
        run_some_steps(*c, holds);
    } else if (starts) {
        start_cluster(g);
    }
    return c != nullptr || starts;
}

/* Of the kernels from `lowest` on. */
static bool advance_any(size_t lowest, Overlap overlap)
{
    std::deque<Grid> &grid = run_now->grid;
    const size_t n = std::min(grid.size() - lowest, overlap == Overlap::NONE ? (size_t)1 : N_GRID_AHEAD);
    if (overlap != Overlap::MOST) {
        const size_t first = run_now->draw->below((uint32_t)n);
        for (size_t i = 0; i < n; i++) {
            if (advance(grid[lowest + (first + i) % n], overlap, false)) {
                return true;
            }
        }
        return false;
    }
    for (const bool holds : {true, false}) {
        for (size_t i = n; i-- > 0;) {
            if (advance(grid[lowest + i], overlap, holds)) {
                return true;
            }
        }
    }
    return false;
}

static void say_who_waits(const Cluster &c)
{
    for (const Block &b : c.block) {
        for (size_t i = 0; i < b.thread.size(); i++) {
            const Thread &t = b.thread[i];
            const bool first = t.lane == 0 || strcmp(t.waits_for, b.thread[i - 1].waits_for) != 0;
            if (!t.ended && first) {
                fprintf(stderr, "soft GPU:   block (%u, %u, %u), from thread %zu on: %s\n", b.index.x, b.index.y,
                        b.index.z, i, t.waits_for);
            }
        }
    }
}

static void end_clusters(Grid &g, Grid *next)
{
    for (size_t i = g.alive.size(); i-- > 0;) {
        if (g.alive[i]->n_live == 0) {
            end_cluster(g, i, next);
        }
    }
}

static void run_to_end(Overlap overlap)
{
    std::deque<Grid> &grid = run_now->grid;
    for (size_t lowest = 0; lowest < grid.size() && !run_now->over;) {
        if (!advance_any(lowest, overlap)) {
            report("%s: all wait", name_of(*grid[lowest].launch));
            for (const auto &c : grid[lowest].alive) {
                say_who_waits(*c);
            }
            return;
        }
        for (size_t i = lowest; i < std::min(grid.size(), lowest + N_GRID_AHEAD); i++) {
            end_clusters(grid[i], i + 1 < grid.size() ? &grid[i + 1] : nullptr);
        }
        while (lowest < grid.size() && grid[lowest].is_over()) {
            lowest++;
        }
    }
}

/* Threads that have not ended are unwound. */
static void abandon()
{
    for (Grid &g : run_now->grid) {
        for (const auto &c : g.alive) {
            cluster = c.get();
            for (Block &b : c->block) {
                for (Thread &t : b.thread) {
                    while (!t.ended) {
                        resume(t);
                    }
                }
                end_block(b);
            }
        }
        g.alive.clear();
    }
    cluster = nullptr;
}

bool run(const std::vector<Launch> &launches)
{
    Run r;
    r.draw = &the_draw();
    for (const Launch &l : launches) {
        Grid g{};
        g.launch = &l;
        g.before = r.grid.empty() ? nullptr : &r.grid.back();
        g.n_cluster = l.grid[0] * l.grid[1] * l.grid[2] / (unsigned)l.cluster;
        g.first = r.draw->below(g.n_cluster);
        r.grid.push_back(std::move(g));
    }
    run_now = &r;
    run_to_end((Overlap)r.draw->below(3));
    abandon();
    run_now = nullptr;
    return !r.over;
}

} // namespace soft_gpu
