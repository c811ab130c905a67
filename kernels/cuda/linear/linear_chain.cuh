/* Linear layers one after another in one kernel (linear.h: gr_cuda_linear_chain), for up to 64 rows.
 *
 * A block takes its tiles of one layer after another; its rings, and those that fill them, go on. The weights' thread
 * does not wait for a layer to end: when its block's sums of one are there it has asked for the first weights of the
 * next, as many as the ring holds. So between layers the memory is busy for as long as a full ring is of its time, 4
 * us, in which sums are exchanged and stored, blocks wait for each other (a counter), and the first x comes. Two
 * warpgroups multiply, each with half of a tile's columns, so that there are more threads for what becomes of the sums.
 * Decision D-008. */
#ifndef GR_KERNELS_CUDA_LINEAR_LINEAR_CHAIN_CUH
#define GR_KERNELS_CUDA_LINEAR_LINEAR_CHAIN_CUH

#include "kernels/cuda/linear/linear_worker.cuh"

namespace gr
{

constexpr int CHAIN_CLUSTER = GR_CUDA_CUT_PARTS_MAX, CHAIN_WIDTH_MAX = 224;
constexpr int CHAIN_SMEM = 227 * 1024; /* all that a block can have */

using ChainThreads = LinearThreads<1, 2>;

struct ChainArgs {
    LinearArgs layer[GR_CUDA_CHAIN_MAX];
    int width[GR_CUDA_CHAIN_MAX], n_block[GR_CUDA_CHAIN_MAX]; /* n_block: that have a tile of it */
    int n, w_bytes;
    gr_cuda_chain *chain;
};

struct ChainBars {
    LinearBars linear;
    int at[W_SLOT_MAX], end[W_SLOT_MAX]; /* of the copies in the ring */
};

static __device__ __forceinline__ bool has_tile(const LinearArgs &a)
{
    return LinearShare(a).first_tile < a.n_tile;
}

/* The thread that streams weights. Copies of several sizes are in the ring, oldest first; one that would lie where
 * others are waits until they have been used. It has some 400 cycles for a copy when it has to catch up, so what it
 * will look at next is loaded ahead. */
struct ChainWeights {
    uint8_t *slots;
    ChainBars *bars;
    int ring_bytes;
    BytePlaces ring;
    LinearRing oldest;
    int n = 0, oldest_at = 0, oldest_end = 0; /* in the ring */
    OnWay on_way;

    __device__ __forceinline__ bool in_the_way(int at, int end, int end_before) const
    {
        const bool passed_over = at < end_before && oldest_at >= end_before; /* the ring's last bytes are left out */
        return passed_over || (oldest_at < end && at < oldest_end);
    }

    __device__ __forceinline__ void forget_oldest()
    {
        bar_wait(&bars->linear.w_empty[oldest.slot], oldest.phase);
        oldest.next(W_SLOT_MAX);
        n--;
        oldest_at = bars->at[oldest.slot],
        oldest_end = bars->end[oldest.slot]; /* where none is left these are of a copy that is gone, and nobody looks */
    }

    __device__ __forceinline__ void load(const uint8_t *from, uint32_t bytes, const RingUse &use)
    {
        uint64_t *full = &bars->linear.w_full[ring.slot];
        const int end_before = ring.end, at = ring.place((int)bytes, use, ring_bytes), end = ring.end;
        const uint32_t to = smem_addr(slots + at);
#pragma unroll 1
        while (n > 0 && (n == W_SLOT_MAX || in_the_way(at, end, end_before))) {
            forget_oldest();
        }
        if (n == 0) {
            oldest_at = at, oldest_end = end;
        }
        bars->at[ring.slot] = at, bars->end[ring.slot] = end;
        n++;
        bar_expect(full, bytes);
        asm volatile("" ::"l"(from), "r"(bytes), "r"(to), "r"(smem_addr(full)));
        on_way.wait(&bars->linear, W_SLOT_MAX, use.on_way);
        copy_line_once(from, to, full, bytes);
        ring.next(W_SLOT_MAX);
    }
};

static __device__ __forceinline__ void chain_weights(const ChainArgs &a, uint8_t *slots, ChainBars *bars)
{
    ChainWeights stream{slots, bars, a.w_bytes, {}, {}, 0, {}};
#pragma unroll 1
    for (int i = 0; i < a.n; i++) {
        const LinearArgs &l = a.layer[i];
        const LinearShare share(l);
        const RingUse use = ring_in_chain(a.width[i]);
        int n_first = i == a.n - 1 ? first_copies(share, use, a.w_bytes / (use.boxes * use.box)) : 0;
        for (int tile = share.first_tile; tile < l.n_tile; tile += share.tile_step, n_first = 0) {
            stream_tile(stream, l, share, use, tile, n_first);
        }
    }
}

/* How far a block is in its share of a tile, in boxes. */
struct InTile {
    int segment, left, box = 0; /* left: of the segment */
    __device__ __forceinline__ InTile(const LinearArgs &a, const LinearShare &share)
        : segment(share.segment), left(a.order.n_box[share.segment])
    {
    }
    /* The next boxes of the segment, at most so many: how many. */
    __device__ __forceinline__ int pass(const LinearArgs &a, int most)
    {
        const int n = min(most, left);
        box += n, left -= n;
        if (left == 0) {
            segment = min(segment + 1, GR_SEGMENT_MAX - 1);
            left = a.order.n_box[segment];
        }
        return n;
    }
};

/* The thread that streams x. Unlike weights, x is what the layer before has made, all blocks of it: so this thread
 * waits for the count of blocks that are through (made). Where a norm lies between, the scales of the rows come later
 * than the rows (squared); products do not need them, so x is asked for first and the scales are waited for after. */
struct ChainX {
    const ChainArgs &a;
    uint8_t *slots;
    LinearBars *bars;
    LinearRing ring;
    int n_done = 0, n_free = 0; /* tiles; free: whose sums are known to be where x comes no more */

    /* Boxes of the block's share of a tile, up to n_slot slots, from where `at` is on; `group` in a slot, none of two
     * segments. */
    __device__ __forceinline__ void boxes(const LinearArgs &l, const LinearShare &share, const ChainXSlots &x,
                                          int group, InTile &at, int n_slot)
    {
        const uint8_t *from = l.x + (size_t)(share.box + at.box) * X_TILE;
        const bool whole = x.box == X_TILE; /* boxes of 64 rows lie one after the other */
        for (; at.box < share.n_box && n_slot > 0; n_slot--) {
            const int n = at.pass(l, group);
            const uint32_t to = smem_addr(slots + ring.slot * x.slot), bytes = (uint32_t)(n * x.box);
            uint64_t *full = &bars->x_full[ring.slot];
            bar_wait(&bars->x_empty[ring.slot], ring.phase ^ 1);
            bar_expect(full, bytes);
            copy_line(from, to, full, whole ? bytes : (uint32_t)x.box);
            if (n > 1 && !whole) {
                copy_line(from + X_TILE, to + (uint32_t)x.box, full, (uint32_t)x.box);
            }
            from += n * X_TILE;
            ring.next(x.n);
        }
    }

    __device__ __forceinline__ void wait_for_room()
    {
        if (n_done > n_free) {
            bar_wait(&bars->added, (n_done - 1) & 1);
            n_free = n_done;
        }
    }

    /* Waits for what the layer before made. Its squares are needed at the end of a tile only, so boxes are asked for
     * before they are there. */
    __device__ __forceinline__ void wait_for_layer(int i, const LinearShare &share, const ChainXSlots &x, int group,
                                                   InTile &at)
    {
        const LinearArgs &l = a.layer[i];
        const uint32_t n_block = (uint32_t)a.n_block[i - 1];
        wait_count(a.layer[i - 1].made, n_block);
        if (l.norm.square != nullptr) {
            wait_for_room();
            boxes(l, share, x, group, at, x.n);
            wait_count(a.layer[i - 1].squared, n_block);
        }
        bar_arrive(&bars->ready);
    }

    __device__ __forceinline__ void layer(int i)
    {
        const LinearArgs &l = a.layer[i];
        const LinearShare share(l);
        const ChainXSlots x(l);
        const int group = chain_group(a.width[i]);
        InTile at(l, share);
        if (i == 0) {
            wait_for_previous(); /* here, where all is ready for the first box */
        } else if (has_tile(l)) {
            wait_for_layer(i, share, x, group, at);
        }
        for (int tile = share.first_tile; tile < l.n_tile; tile += share.tile_step, n_done++) {
            if (at.box == 0) {
                wait_for_room();
            }
            boxes(l, share, x, group, at, share.n_box);
            at = InTile(l, share);
        }
    }

    /* Nobody of this block will look at the counters any more; the last block leaves them as they were. */
    __device__ __forceinline__ void leave() const
    {
        if (count_up(&a.chain->left) == gridDim.x - 1) {
            for (int i = 0; i < GR_CUDA_CHAIN_MAX - 1; i++) {
                a.chain->made[i] = a.chain->squared[i] = 0;
            }
            a.chain->left = 0;
        }
    }

    __device__ __forceinline__ void run()
    {
#pragma unroll 1
        for (int i = 0; i < a.n; i++) {
            layer(i);
        }
        leave();
    }
};

struct ChainPlace {
    uint8_t *w_slots, *x_slots;
    LinearBars *bars;
    int n_row;
    LinearProgress<true> at;
};

template <int N> static __device__ __forceinline__ void chain_layer(const LinearArgs &a, ChainPlace &p, int ready)
{
    int thread = (int)threadIdx.x;
    thread = opaque(thread); /* what follows from it is not to be kept for all layers that there might be */
    LinearWorker<N, 1, 2, true> worker(a, p.w_slots, p.x_slots, p.bars, p.n_row, thread, p.at);
    switch (a.out) {
    case GR_CUDA_OUT_ADD:
        return worker.template run<GR_CUDA_OUT_ADD>(ready);
    case GR_CUDA_OUT_SILU:
        return worker.template run<GR_CUDA_OUT_SILU>(ready);
    default:
        return worker.template run<GR_CUDA_OUT_HEADS>(ready);
    }
}

static __device__ __forceinline__ void chain_work(const ChainArgs &a, ChainPlace &p)
{
    int n_ready = 0;
    p.n_row = read_n_row(a.layer[0]); /* an input of the pass: no kernel just before makes it */
    if ((int)threadIdx.x >= ChainThreads::MULTIPLY) {
        wait_for_previous(); /* those that multiply do when they have: x comes after one that has waited */
        p.at.begun = true;
    }
#pragma unroll 1
    for (int i = 0; i < a.n; i++) {
        const LinearArgs &l = a.layer[i];
        if (!has_tile(l)) {
            continue;
        }
        const int ready = i > 0 ? n_ready++ : -1;
        switch (a.width[i]) {
        case 16: /* the widths of cut.h, less 248, whose sums x's ring has no room for */
            chain_layer<16>(l, p, ready);
            break;
        case 32:
            chain_layer<32>(l, p, ready);
            break;
        case 64:
            chain_layer<64>(l, p, ready);
            break;
        case 96:
            chain_layer<96>(l, p, ready);
            break;
        case 128:
            chain_layer<128>(l, p, ready);
            break;
        case 192:
            chain_layer<192>(l, p, ready);
            break;
        default:
            chain_layer<224>(l, p, ready);
            break;
        }
    }
}

__global__ void __launch_bounds__(ChainThreads::ALL, 1) chain_kernel(const __grid_constant__ ChainArgs a)
{
    GR_DYNAMIC_SHARED(uint8_t, chain_smem, 1024);
    uint8_t *w_slots = chain_smem, *x_slots = w_slots + a.w_bytes;
    ChainBars *all_bars = (ChainBars *)(x_slots + a.layer[0].x_bytes);
    LinearBars *bars = &all_bars->linear;
    const int warp = ((int)threadIdx.x - ChainThreads::MULTIPLY) / 32,
              lane = (int)threadIdx.x % 32; /* warp: that loads */
    make_bars<1, 2>(bars, (int)threadIdx.x < ChainThreads::MULTIPLY ? -1 : warp, CHAIN_CLUSTER);
    meet<ChainThreads>(CHAIN_CLUSTER, (int)threadIdx.x >= ChainThreads::MULTIPLY && warp == 0);
    if ((int)threadIdx.x < ChainThreads::MULTIPLY || warp > 1) {
        ChainPlace p{w_slots, x_slots, bars, 0, {}};
        chain_work(a, p);
    } else if (warp == 0) {
        if (lane == 0) {
            chain_weights(a, w_slots, all_bars);
        }
        meet_last(CHAIN_CLUSTER);
    } else if (lane == 0) {
        ChainX{a, x_slots, bars, {}}.run();
    }
}

/* Shared memory for so many rows: x, or the sums of CHAIN_WIDTH_MAX outputs, whatever is more; the rest is weights'. */
struct ChainMemory {
    int x_bytes, w_bytes;
    explicit ChainMemory(int n_row)
    {
        x_bytes = (n_row <= 16 ? 24 : n_row <= 32 ? 36 : 56) * 1024;
        w_bytes = (CHAIN_SMEM - x_bytes - (int)sizeof(ChainBars)) / 1024 * 1024;
    }
};

} // namespace gr

#endif
