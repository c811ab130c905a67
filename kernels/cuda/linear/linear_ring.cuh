/* The rings of a linear layer's block and the two threads that fill them: one streams its share of the weights, from
 * the moment that the block starts; the other x, once the kernel before has ended. linear_worker.cuh multiplies what
 * they bring. Decision D-011. */
#ifndef GR_KERNELS_CUDA_LINEAR_LINEAR_RING_CUH
#define GR_KERNELS_CUDA_LINEAR_LINEAR_RING_CUH

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/linear/linear_out.cuh"

namespace gr
{

constexpr int W_SLOT_MAX = 14, X_SLOT_MAX = 32; /* slots of the rings of weights and of x, at most */
constexpr int X_TILE = 8192;                    /* 64 rows of 64 k */

/* A tile's life, barrier by barrier. A stream fills a slot (full) and waits until the warpgroups have used it (empty).
 * With the last box multiplied, a tile of two parts needs the other block's sums: the two tell each other that their
 * rings are free (may_send), send, and add what came (received). The ring then belongs to the weights again (added). */
struct LinearBars {
    uint64_t w_full[W_SLOT_MAX];                      /* by slot: a copy of weights is there */
    uint64_t w_empty[W_SLOT_MAX];                     /* all warpgroups have multiplied it: another may come */
    uint64_t x_full[X_SLOT_MAX], x_empty[X_SLOT_MAX]; /* of x, in the same way */
    uint64_t may_send;      /* both blocks of the cluster have multiplied all of a tile, so their rings can take sums */
    uint64_t received;      /* the sums of the other block are there */
    uint64_t added;         /* the storers have read all sums: the ring may take copies again */
    uint64_t ready;         /* in a chain: all that the layer before made is there */
    float scale[2 * 64];    /* of a pass's rows, where there was a norm before */
    RowPlace place[2 * 64]; /* of the same, where heads are stored */
};

/* What a slot of the weights' ring holds and one copy brings: about 16 KiB, or a box that is larger. */
__host__ __device__ constexpr int stage_boxes(int width)
{
    return width < 128 ? 128 / width : 1;
}

__host__ __device__ constexpr int stage_bytes(int width)
{
    return stage_boxes(width) * width * 128;
}

/* How a layer uses the weights' ring. on_way: copies that may be on their way at once: as many bytes as the memory
 * needs to be busy, and no more. Whatever lies after those in its queues would wait for them: x, the keys near a tree,
 * instructions. */
struct RingUse {
    int boxes, box, on_way; /* boxes a copy; bytes of a box */
};

__host__ __device__ constexpr RingUse ring_use_of(int boxes, int width)
{
    return {boxes, width * 128, boxes * width * 128 > 24 * 1024 ? 2 : 48 * 1024 / (boxes * width * 128)};
}

__host__ __device__ constexpr RingUse ring_alone(int width)
{
    return ring_use_of(stage_boxes(width), width);
}

/* In a chain, whose layers have the ring one after the other: narrow tiles in copies of 16 to 24 KiB, so that there
 * are barriers enough. */
__host__ __device__ constexpr RingUse ring_in_chain(int width)
{
    return ring_use_of(width < 128 ? (width == 96 ? 2 : 128 / width) : 1, width);
}

struct LinearRing {
    int slot = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next(int n_slot)
    {
        if (++slot == n_slot) {
            slot = 0;
            phase ^= 1;
        }
    }
};

/* Where a copy of weights goes. A layer by itself has slots that are as large as its copies; in a chain copies of
 * several sizes lie one after the other, none beyond the ring's end. */
struct SlotPlaces : LinearRing {
    __device__ __forceinline__ int place(int, RingUse use, int)
    {
        return slot * use.boxes * use.box;
    }
};

struct BytePlaces : LinearRing {
    int end = 0;
    __device__ __forceinline__ int place(int bytes, RingUse, int ring_bytes)
    {
        const int at = end + bytes > ring_bytes ? 0 : end;
        end = at + bytes;
        return at;
    }
};

/* This block's share. */
struct LinearShare {
    int rank, first_tile, tile_step;
    int box, n_box;           /* of every tile */
    int segment, end_segment; /* of the layer's order */
    __device__ __forceinline__ explicit LinearShare(const LinearArgs &a)
    {
        static_assert(GR_CUDA_CUT_PARTS_MAX == 2, "shifts stand for divisions: weights wait for this");
        const int half = a.parts - 1;
        rank = half ? cluster_rank() : 0;
        first_tile = (int)blockIdx.x >> half;
        tile_step = (int)gridDim.x >> half;
        box = a.order.box[rank];
        n_box = a.order.box[rank + 1] - box;
        segment = a.order.first[rank];
        end_segment = a.order.first[rank + 1];
    }
};

/* The slots of x, a box each. With one tile of rows they are the rows of the bucket, slot close after slot, and the
 * matrix units read on into the next one; with more, whole tiles. */
template <int R> struct XSlots {
    int slot, box, n; /* bytes of a slot, of a box; slots */
    __device__ explicit XSlots(const LinearArgs &a)
    {
        slot = box = R == 1 ? (a.n_row + 7) / 8 * 1024 : R * X_TILE;
        n = min(X_SLOT_MAX, (a.x_bytes - R * X_TILE) / slot + 1);
    }
};

/* In a chain a slot has room for two boxes, which narrow tiles use together. */
constexpr int CHAIN_GROUP = 2;

__host__ __device__ constexpr int chain_group(int width)
{
    return width < 128 ? CHAIN_GROUP : 1;
}

struct ChainXSlots {
    int slot, box, n;
    __device__ explicit ChainXSlots(const LinearArgs &a)
    {
        box = (a.n_row + 7) / 8 * 1024, slot = CHAIN_GROUP * box;
        n = min(X_SLOT_MAX, (a.x_bytes - X_TILE - (CHAIN_GROUP - 1) * box) / slot + 1);
    }
};

/* Rounds of the rows: each takes 64 R of them through all of a tile's weights. */
template <int R> static __device__ __forceinline__ int n_pass_of(int n_row)
{
    return R == 1 ? 1 : max(1, (n_row + 64 * R - 1) / (64 * R));
}

static __device__ __forceinline__ int read_n_row(const LinearArgs &a)
{
    return min(a.n_row, __ldcg(a.n_row_true));
}

/* ---- the thread that streams weights ---- */

/* Copies that are on their way. */
struct OnWay {
    LinearRing first;
    int n = 0;

    /* Until another may go. */
    __device__ __forceinline__ void wait(LinearBars *bars, int n_slot, int n_max)
    {
#pragma unroll 1
        while (n >= n_max) {
            bar_wait(&bars->w_full[first.slot], first.phase);
            first.next(n_slot);
            n--;
        }
        n++;
    }
};

struct WeightStream {
    uint8_t *slots;
    LinearBars *bars;
    int n_slot;
    SlotPlaces ring;
    OnWay on_way;

    __device__ __forceinline__ void load(const uint8_t *from, uint32_t bytes, const RingUse &use)
    {
        uint64_t *full = &bars->w_full[ring.slot];
        const uint32_t to = smem_addr(slots + ring.place((int)bytes, use, 0));
        bar_wait(&bars->w_empty[ring.slot], ring.phase ^ 1);
        bar_expect(full, bytes);
        asm volatile("" ::"l"(from), "r"(bytes), "r"(to),
                     "r"(smem_addr(full))); /* all is ready when it may be asked for */
        on_way.wait(bars, n_slot, use.on_way);
        copy_line_once(from, to, full, bytes);
        ring.next(n_slot);
    }
};

/* All of a block's share of a tile, no copy of two segments' boxes; after its first `n_first` copies the next kernel
 * may start. */
template <class Stream>
static __device__ __forceinline__ void stream_tile(Stream &stream, const LinearArgs &a, const LinearShare &share,
                                                   const RingUse &use, int tile, int n_first)
{
    const uint8_t *from = a.w + ((size_t)tile * a.n_box + share.box) * use.box;
    for (int i = share.segment; i < share.end_segment; i++) {
        for (int left = a.order.n_box[i]; left > 0; left -= use.boxes) {
            const uint32_t bytes = (uint32_t)(min((int)use.boxes, left) * use.box);
            stream.load(from, bytes, use);
            from += bytes;
            if (--n_first == 0) {
                let_next_start();
            }
        }
    }
}

/* Copies of a tile that the ring has room for. */
static __device__ __forceinline__ int first_copies(const LinearShare &share, const RingUse &use, int n_slot)
{
    return min(n_slot, (share.n_box + use.boxes - 1) / use.boxes);
}

/* The next kernel may start when the ring is full: it finds no room before this block ends. */
template <int N, int R>
static __device__ __forceinline__ void stream_weights(const LinearArgs &a, uint8_t *slots, LinearBars *bars)
{
    constexpr RingUse use = ring_alone(N);
    const LinearShare share(a);
    WeightStream stream{slots, bars, a.n_slot, {}, {}};
    int n_pass = 1, n_done = 0, n_first = first_copies(share, use, a.n_slot); /* done: tiles, each pass by itself */
    for (int tile = share.first_tile; tile < a.n_tile; tile += share.tile_step) {
        for (int pass = 0; pass < n_pass; pass++, n_done++, n_first = 0) {
            if (a.parts > 1 && n_done > 0) {
                bar_wait(&bars->added, (n_done - 1) & 1);
            }
            stream_tile(stream, a, share, use, tile, n_first);
            if (n_done == 0 && a.n_row > 64 * R) {
                wait_for_previous();
                n_pass = n_pass_of<R>(read_n_row(a));
            }
        }
    }
}

/* ---- the thread that streams x ---- */

template <int R> struct XStream {
    uint8_t *slots;
    LinearBars *bars;
    LinearRing ring;

    /* A block's share of 64 R rows' x. */
    __device__ __forceinline__ void rows(const LinearArgs &a, const LinearShare &share, const XSlots<R> &x, int n_row,
                                         int pass)
    {
        uint32_t bytes[R], sum = 0;
#pragma unroll
        for (int r = 0; r < R; r++) {
            bytes[r] = (uint32_t)((max(0, min(64, n_row - (pass * R + r) * 64)) + 7) / 8 * 1024);
            sum += bytes[r];
        }
        const uint8_t *from = a.x + ((size_t)pass * R * a.n_box + share.box) * X_TILE;
        for (int b = 0; b < share.n_box; b++, from += X_TILE) {
            bar_wait(&bars->x_empty[ring.slot], ring.phase ^ 1);
            bar_expect(&bars->x_full[ring.slot], sum);
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (bytes[r] > 0) {
                    copy_line(from + (size_t)r * a.n_box * X_TILE, smem_addr(slots + ring.slot * x.slot + r * X_TILE),
                              &bars->x_full[ring.slot], bytes[r]);
                }
            }
            ring.next(x.n);
        }
    }
};

template <int R> static __device__ __forceinline__ void stream_x(const LinearArgs &a, uint8_t *slots, LinearBars *bars)
{
    wait_for_previous();
    const int n_row = R == 1 ? a.n_row : read_n_row(a), n_pass = n_pass_of<R>(n_row);
    const LinearShare share(a);
    const XSlots<R> x(a);
    XStream<R> stream{slots, bars, {}};
    for (int tile = share.first_tile; tile < a.n_tile; tile += share.tile_step) {
        for (int pass = 0; pass < n_pass; pass++) {
            stream.rows(a, share, x, n_row, pass);
        }
    }
}

} // namespace gr

#endif
