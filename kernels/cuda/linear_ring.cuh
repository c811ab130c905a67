/* The rings of a linear layer's block and the two threads that fill them: one streams its share of the weights, from
 * the moment that the block starts; the other x, once the kernel before has ended. linear_mma.cuh multiplies what they
 * bring. */
#ifndef GR_KERNELS_CUDA_LINEAR_RING_CUH
#define GR_KERNELS_CUDA_LINEAR_RING_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/linear_out.cuh"

namespace gr
{

constexpr int W_SLOT_MAX = 12, X_SLOT_MAX = 32;
constexpr int X_TILE = 8192; /* 64 rows of 64 k */

struct LinearBars {
    uint64_t w_full[W_SLOT_MAX], w_empty[W_SLOT_MAX], x_full[X_SLOT_MAX], x_empty[X_SLOT_MAX];
    uint64_t may_send; /* all blocks of the cluster are through with their rings */
    uint64_t received, added;
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

/* Stages that may be on their way at once: as many bytes as the memory needs to be busy, and no more. Whatever lies
 * behind those in its queues would wait for them: x, the keys near a tree, instructions. */
__host__ __device__ constexpr int stages_on_way(int width)
{
    return stage_bytes(width) > 24 * 1024 ? 2 : 48 * 1024 / stage_bytes(width);
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

/* This block's share. */
struct LinearShare {
    int rank, first_tile, tile_step;
    int box, n_box; /* of every tile */
    __device__ __forceinline__ explicit LinearShare(const LinearArgs &a)
    {
        static_assert(GR_CUDA_CUT_PARTS_MAX == 2, "shifts stand for divisions: weights wait for this");
        const int half = a.parts - 1;
        rank = half ? cluster_rank() : 0;
        first_tile = (int)blockIdx.x >> half;
        tile_step = (int)gridDim.x >> half;
        box = a.n_box * rank >> half;
        n_box = (a.n_box * (rank + 1) >> half) - box;
    }
};

/* The slots of x, a box each. With one tile of rows they are the rows of the bucket, slot close behind slot, and the
 * matrix units read on into the next one; with more, whole tiles. */
template <int R> struct XSlots {
    int stride, n;
    __device__ explicit XSlots(const LinearArgs &a)
    {
        stride = R == 1 ? (a.n_row + 7) / 8 * 1024 : R * X_TILE;
        n = min(X_SLOT_MAX, (a.x_bytes - R * X_TILE) / stride + 1);
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

template <int N, int R> struct WeightStream {
    static constexpr int BOXES = stage_boxes(N), STAGE = stage_bytes(N), BOX = N * 128;
    const LinearArgs &a;
    const LinearShare share;
    uint8_t *slots;
    LinearBars *bars;
    LinearRing ring, late; /* late: stages_on_way() behind */
    int n_sent = 0;

    __device__ WeightStream(const LinearArgs &a_, uint8_t *slots_, LinearBars *bars_)
        : a(a_), share(a_), slots(slots_), bars(bars_)
    {
    }

    __device__ __forceinline__ const uint8_t *place(int tile, int stage) const
    {
        return a.w + ((size_t)tile * a.n_box + share.box + stage * BOXES) * BOX;
    }

    __device__ __forceinline__ uint32_t bytes(int stage) const
    {
        return (uint32_t)(min(BOXES, share.n_box - stage * BOXES) * BOX);
    }

    __device__ __forceinline__ void load(int tile, int stage)
    {
        uint64_t *full = &bars->w_full[ring.slot];
        const uint8_t *from = place(tile, stage);
        const uint32_t n = bytes(stage), to = smem_addr(slots + ring.slot * STAGE);
        bar_wait(&bars->w_empty[ring.slot], ring.phase ^ 1);
        bar_expect(full, n);
        asm volatile("" ::"l"(from), "r"(n), "r"(to), "r"(smem_addr(full))); /* all is ready when it may be asked for */
        if (++n_sent > stages_on_way(N)) {
            bar_wait(&bars->w_full[late.slot], late.phase);
        }
        copy_line_once(from, to, full, n);
        if (n_sent > stages_on_way(N)) {
            late.next(a.n_slot);
        }
        ring.next(a.n_slot);
    }

    /* The next kernel may start when the ring is full: it finds no room before this block ends. */
    __device__ __forceinline__ void run()
    {
        const int n_stage = (share.n_box + BOXES - 1) / BOXES, n_first = min(a.n_slot, n_stage);
        int n_pass = 1, n_done = 0; /* tiles, each pass by itself */
        for (int tile = share.first_tile; tile < a.n_tile; tile += share.tile_step) {
            for (int pass = 0; pass < n_pass; pass++, n_done++) {
                if (a.parts > 1 && n_done > 0) {
                    bar_wait(&bars->added, (n_done - 1) & 1);
                }
                for (int s = 0; s < n_stage; s++) {
                    load(tile, s);
                    if (n_done == 0 && s == n_first - 1) {
                        let_next_start();
                    }
                }
                if (n_done == 0 && a.n_row > 64 * R) {
                    wait_for_previous();
                    n_pass = n_pass_of<R>(read_n_row(a));
                }
            }
        }
    }
};

/* ---- the thread that streams x ---- */

template <int R> static __device__ __forceinline__ void stream_x(const LinearArgs &a, uint8_t *slots, LinearBars *bars)
{
    wait_for_previous();
    const int n_row = R == 1 ? a.n_row : read_n_row(a), n_pass = n_pass_of<R>(n_row);
    const LinearShare share(a);
    const XSlots<R> x(a);
    LinearRing ring;
    for (int tile = share.first_tile; tile < a.n_tile; tile += share.tile_step) {
        for (int pass = 0; pass < n_pass; pass++) {
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
                        copy_line(from + (size_t)r * a.n_box * X_TILE,
                                  smem_addr(slots + ring.slot * x.stride + r * X_TILE), &bars->x_full[ring.slot],
                                  bytes[r]);
                    }
                }
                ring.next(x.n);
            }
        }
    }
}

} // namespace gr

#endif
