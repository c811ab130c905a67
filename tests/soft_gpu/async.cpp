/* Shared memory, its barriers, and what comes into it from elsewhere. */
#include "tests/soft_gpu/block.h"

#include <cstring>

namespace soft_gpu
{

constexpr uint32_t RANK_SHIFT = 24, OFFSET_MASK = (1u << RANK_SHIFT) - 1;

uint8_t *shared_at(const Block &b, uint32_t offset, size_t bytes, size_t align)
{
    return offset % align == 0 && offset + bytes <= b.shared_bytes ? b.shared + offset : nullptr;
}

void *shared_variable(const void *name, size_t bytes)
{
    std::unique_ptr<uint64_t[]> &v = me().block->variable[name];
    if (v == nullptr) {
        v.reset(new uint64_t[(bytes + 7) / 8]);
        memset(v.get(), 0xff, (bytes + 7) / 8 * 8);
    }
    return v.get();
}

void *dynamic_shared()
{
    return me().block->shared;
}

uint32_t shared_address(const void *p)
{
    const Block &b = *me().block;
    const uint8_t *at = (const uint8_t *)p;
    if (at < b.shared || at > b.shared + b.shared_bytes) {
        fail("%p is not in the block's shared memory", p);
    }
    return (uint32_t)b.rank << RANK_SHIFT | (uint32_t)(at - b.shared);
}

uint32_t shared_address_at(uint32_t address, int rank)
{
    if (rank < 0 || rank >= (int)cluster->block.size()) {
        fail("block %d of a cluster of %zu", rank, cluster->block.size());
    }
    return (uint32_t)rank << RANK_SHIFT | (address & OFFSET_MASK);
}

static Block &block_of(uint32_t address)
{
    return cluster->block[address >> RANK_SHIFT];
}

/* ---- barriers ---- */

static Bar *find_bar(uint32_t address)
{
    Block &b = block_of(address);
    const auto at = b.bar.find(address & OFFSET_MASK);
    return at != b.bar.end() ? &at->second : nullptr;
}

static Bar &bar_of(uint32_t address)
{
    Bar *bar = find_bar(address);
    if (bar == nullptr) {
        fail("there is no barrier at shared memory + %u of block %u", address & OFFSET_MASK, address >> RANK_SHIFT);
    }
    return *bar;
}

void bar_init(uint32_t address, int n)
{
    Block &b = block_of(address);
    if (shared_at(b, address & OFFSET_MASK, sizeof(uint64_t), 8) == nullptr || n < 1) {
        fail("a barrier for %d arrivals at shared memory + %u of %zu", n, address & OFFSET_MASK, b.shared_bytes);
    }
    Bar &bar = b.bar[address & OFFSET_MASK];
    if (!bar.waiting.empty()) {
        fail("the barrier at shared memory + %u is made anew while somebody waits", address & OFFSET_MASK);
    }
    bar = Bar{n, n, 0, 0, {}};
}

static void end_phase_if_complete(Bar &bar)
{
    if (bar.n_left == 0 && bar.bytes == 0) {
        bar.n_left = bar.n;
        bar.phase ^= 1;
        wake(bar.waiting);
    }
}

static void count_arrival(Bar &bar, uint32_t address, uint32_t bytes)
{
    bar.bytes += bytes;
    if (--bar.n_left < 0) {
        report("%s: more than %d arrivals in a phase of the barrier at shared memory + %u of block %u",
               name_of(*cluster->grid->launch), bar.n, address & OFFSET_MASK, address >> RANK_SHIFT);
        return;
    }
    end_phase_if_complete(bar);
}

void bar_arrive(uint32_t address, uint32_t bytes)
{
    const int rank = (int)(address >> RANK_SHIFT);
    Bar &bar = bar_of(address);
    if (rank == me().block->rank) {
        count_arrival(bar, address, bytes);
        return;
    }
    Event e{};
    e.rank = rank, e.bar = address, e.arrives = true;
    cluster->event.push_back(e);
}

/* A phase of this parity is over. */
void bar_wait(uint32_t address, uint32_t parity)
{
    Bar &bar = bar_of(address);
    while (bar.phase == (parity & 1)) {
        bar.waiting.push_back(&me());
        wait("a barrier in shared memory");
    }
}

/* ---- copies ---- */

void copy_bulk(const void *from, uint32_t to, uint32_t bar, uint32_t bytes, unsigned ranks)
{
    if (bytes == 0 || bytes % 16 != 0 || (uintptr_t)from % 16 != 0) {
        fail("a copy of %u bytes from %p: both must be multiples of 16", bytes, from);
    }
    if (!is_taken(from, bytes)) {
        fail("a copy of %u bytes from %p, which is nobody's memory", bytes, from);
    }
    for (unsigned rank = 0; ranks >> rank != 0; rank++) {
        if ((ranks >> rank & 1) == 0) {
            continue;
        }
        Event e{};
        e.rank = (int)rank, e.from = from, e.bytes = bytes;
        e.to = shared_address_at(to, (int)rank), e.bar = shared_address_at(bar, (int)rank);
        if (shared_at(block_of(e.to), e.to & OFFSET_MASK, bytes, 16) == nullptr) {
            fail("a copy of %u bytes to shared memory + %u of %zu", bytes, e.to & OFFSET_MASK,
                 me().block->shared_bytes);
        }
        (void)bar_of(e.bar);
        cluster->event.push_back(e);
    }
}

void send(uint32_t to, uint32_t bar, const float (&x)[4])
{
    Event e{};
    e.rank = (int)(to >> RANK_SHIFT), e.to = to, e.bar = bar, e.bytes = sizeof(x);
    memcpy(e.data, x, sizeof(x));
    if ((bar ^ to) >> RANK_SHIFT != 0 ||
        shared_at(block_of(to), to & OFFSET_MASK, sizeof(x), 16) == nullptr) {
        fail("four values to shared memory + %u of %zu of block %d, counted off block %u's barrier", to & OFFSET_MASK,
             me().block->shared_bytes, e.rank, bar >> RANK_SHIFT);
    }
    (void)bar_of(bar);
    cluster->event.push_back(e);
}

void deliver(size_t i_event)
{
    const Event e = cluster->event[i_event];
    Block &b = cluster->block[(size_t)e.rank];
    Bar &bar = *find_bar(e.bar);
    cluster->event[i_event] = cluster->event.back();
    cluster->event.pop_back();
    if (e.arrives) {
        count_arrival(bar, e.bar, 0);
        return;
    }
    memcpy(b.shared + (e.to & OFFSET_MASK), e.from != nullptr ? e.from : e.data, e.bytes);
    bar.bytes -= e.bytes;
    end_phase_if_complete(bar);
}

} // namespace soft_gpu
