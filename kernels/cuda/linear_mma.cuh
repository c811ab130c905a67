/* Linear layers on the matrix units: y = x W^T for few rows, at the speed at which weights can be read.
 *
 * Rows of x are the M of wgmma (64, padded), outputs its N. A block works through the tiles of its cluster
 * (linear_cut.cuh); of each it has `width` outputs and its part of k. One thread streams weights through a ring of
 * slots in shared memory, from the moment that the block starts: before the kernel before this one has ended. Another
 * streams x, after that. A warpgroup multiplies: one for up to 64 rows; two, each with its own 64 rows of the same
 * weights, where there may be more. Beside one there are two warps that help it to store.
 *
 * At the end of a tile of two parts each block sends its sums, by columns, to the block that adds these columns: into
 * the ring, which is empty then.
 *
 * Where x has fewer than 64 rows only groups of 8 that the bucket has are copied, one slot close behind the other; the
 * rest of the 64 is whatever lies behind. No output row sees another row's x, and rows that do not exist are not
 * written. */
#ifndef GR_KERNELS_CUDA_LINEAR_MMA_CUH
#define GR_KERNELS_CUDA_LINEAR_MMA_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_out.cuh"
#include "kernels/cuda/linear_ring.cuh"
#include "kernels/cuda/wgmma.cuh"

#include <type_traits>

namespace gr
{

/* Threads of a kernel with r warpgroups, in their order: those that multiply, those that load, those that help to
 * store. */
__host__ __device__ constexpr int n_multiplier(int r)
{
    return 128 * r;
}

__host__ __device__ constexpr int n_loader(int r)
{
    return 64 * r;
}

__host__ __device__ constexpr int n_helper(int r)
{
    return r == 1 ? 64 : 0;
}

__host__ __device__ constexpr int n_linear_thread(int r)
{
    return n_multiplier(r) + n_loader(r) + n_helper(r);
}

/* ---- the warpgroups that multiply, and store ---- */

template <int N, int R> struct LinearWorker {
    static constexpr int BOXES = stage_boxes(N), STAGE = stage_bytes(N);
    static constexpr bool HELPED = n_helper(R) > 0;
    using When = std::conditional_t<HELPED, Perhaps, Always>; /* helpers rehearse */
    static constexpr int N_STORER = 128 + n_helper(R);        /* threads that store a warpgroup's rows */
    const LinearArgs &a;
    const LinearShare share;
    uint8_t *w_slots, *x_slots;
    LinearBars *bars;
    const int n_row;
    const XSlots<R> x;
    const bool multiplies;
    const int wg, t; /* warpgroup of rows; t: thread of its warpgroup */
    const int s;     /* among the storers of these rows, helpers first */
    LinearRing w_ring, x_ring;
    uint32_t turn = 0; /* phase of the barriers of a tile's sum */

    __device__ LinearWorker(const LinearArgs &a_, uint8_t *w_, uint8_t *x_, LinearBars *bars_, int n_row_)
        : a(a_), share(a_), w_slots(w_), x_slots(x_), bars(bars_), n_row(n_row_), x(a_),
          multiplies((int)threadIdx.x < n_multiplier(R)), wg(HELPED ? 0 : (int)threadIdx.x / 128),
          t(((int)threadIdx.x - (multiplies ? 0 : n_multiplier(R) + n_loader(R))) % 128),
          s(multiplies ? n_helper(R) + t : t)
    {
    }

    __device__ __forceinline__ bool helps() const
    {
        return HELPED && !multiplies;
    }

    __device__ __forceinline__ void meet_storers() const
    {
        named_sync(3, R * N_STORER);
    }

    __device__ __forceinline__ void release(uint64_t *bar) const
    {
        if (t == 0) {
            bar_arrive(bar);
        }
    }

    /* A tile's part: sums over its boxes. A slot is released when the box after it is in the matrix units. */
    __device__ __forceinline__ void multiply(float (&d)[N / 2])
    {
        const uint32_t x0 = smem_addr(x_slots) + (uint32_t)(R > 1 ? wg * X_TILE : 0), w0 = smem_addr(w_slots);
        int x_before = -1, w_before = -1;
        for (int box = 0; box < share.n_box; box++) {
            const int in_stage = box % BOXES;
            if (in_stage == 0) {
                bar_wait(&bars->w_full[w_ring.slot], w_ring.phase);
            }
            bar_wait(&bars->x_full[x_ring.slot], x_ring.phase);
            const uint64_t from = wgmma_uniform(wgmma_desc(x0 + (uint32_t)(x_ring.slot * x.stride), 16, 1024));
            const uint64_t w =
                wgmma_uniform(wgmma_desc(w0 + (uint32_t)(w_ring.slot * STAGE + in_stage * (N * 128)), 16, 1024));
            wgmma_fence();
#pragma unroll
            for (int j = 0; j < 4; j++) {
                wgmma_ss<N>(d, wgmma_step(from, j * 32), wgmma_step(w, j * 32), j > 0 || box > 0);
            }
            wgmma_commit();
            wgmma_wait<1>();
            if (x_before >= 0) {
                release(&bars->x_empty[x_before]);
            }
            if (w_before >= 0) {
                release(&bars->w_empty[w_before]);
            }
            x_before = x_ring.slot, w_before = -1;
            x_ring.next(x.n);
            if (in_stage == BOXES - 1 || box == share.n_box - 1) {
                w_before = w_ring.slot;
                w_ring.next(a.n_slot);
            }
        }
        wgmma_wait<0>();
        wgmma_hold(d);
        release(&bars->x_empty[x_before]);
        release(&bars->w_empty[w_before]);
    }

    __device__ __forceinline__ int column(int tile, int eight) const
    {
        return tile * N + eight * 8 + t % 4 * 2;
    }

    __device__ __forceinline__ int row(int pass, int warp) const
    {
        return (pass * R + wg) * 64 + warp * 16 + t % 32 / 4;
    }

    /* Warps of the warpgroup that have rows, 16 each. */
    __device__ __forceinline__ int n_warp(int pass) const
    {
        return max(0, min(64, n_row - (pass * R + wg) * 64) + 15) / 16;
    }

    /* Sums pass through the ring, where it is empty: by warpgroup, sender, eight columns, the four sums of each thread.
     * So any thread can store eight columns of any row that exists, in a loop, which is less code to fetch than all
     * columns one after another. The threads' places are exchanged (in eights, by the columns), that neighbours which
     * read neighbouring columns find them in different banks. */
    __device__ __forceinline__ uint32_t ring_at(int parts, int sender) const
    {
        return smem_addr(w_slots) + (uint32_t)(((wg * parts + sender) * (N / 8 / parts)) * 2048);
    }

    __device__ __forceinline__ uint32_t place(int eight, int thread) const
    {
        return (uint32_t)(eight * 2048 + (thread ^ (eight % 8)) * 16);
    }

    /* What outputs need of each row of the pass; helpers do it once, while the first tile is multiplied. The storers'
     * meetings order it for the others. */
    template <gr_cuda_linear_out OUT> __device__ __forceinline__ void prepare(int pass)
    {
        if (a.norm.square == nullptr && OUT != GR_CUDA_OUT_HEADS) {
            return;
        }
        if (!HELPED) {
            meet_storers(); /* nobody reads those of the pass before any more */
        }
        load_rows<OUT>((pass * R + wg) * 64 + t);
        if (HELPED) {
            named_sync(4, n_helper(R));
        }
    }

    template <gr_cuda_linear_out OUT> __device__ __forceinline__ void load_rows(int row)
    {
        if (t >= 64 || row >= n_row) {
            return;
        }
        if (OUT == GR_CUDA_OUT_HEADS) {
            bars->place[wg * 64 + t] = {a.heads.pos[row], a.heads.cell[row]};
        }
        if (a.norm.square != nullptr) {
            bars->scale[wg * 64 + t] = scale_of(a.norm.square[row], a.n_box * 64, a.norm.eps);
        }
    }

    /* 1.0f changes no bit. */
    __device__ __forceinline__ float row_scale(int row_of_pass) const
    {
        return a.norm.square != nullptr ? bars->scale[row_of_pass] : 1.0f;
    }

    static __device__ __forceinline__ void scale_by(float (&v)[8], float scale)
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] *= scale;
        }
    }

    /* Half of the tile's columns is added by each of the two blocks. */
    __device__ __forceinline__ void send(const float (&d)[N / 2], int pass)
    {
        if (threadIdx.x == 0) {
            const int n = (max(0, min(64 * R, n_row - pass * R * 64)) + 15) / 16;
            bar_expect(&bars->received, (uint32_t)(n * N * 64));
        }
        meet_storers();
        if (threadIdx.x < 2) {
            bar_arrive_at(&bars->may_send, (int)threadIdx.x);
        }
        if (!multiplies) {
            return;
        }
        bar_wait(&bars->may_send, turn);
        if (t / 32 < n_warp(pass)) {
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const uint32_t to = smem_at(ring_at(2, share.rank), p), bar = smem_at(smem_addr(&bars->received), p);
#pragma unroll
                for (int j = 0; j < N / 16; j++) {
                    const float *v = d + (p * (N / 16) + j) * 4;
                    send_four(to + place(j, t), bar, v[0], v[1], v[2], v[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void receive()
    {
        bar_wait(&bars->received, turn);
        turn ^= 1;
    }

    __device__ __forceinline__ void keep(const float (&d)[N / 2], int pass)
    {
        uint8_t *to = w_slots + wg * (N / 8) * 2048;
        if (!multiplies) {
            return;
        }
        named_sync(1, n_multiplier(R));
        if (t / 32 < n_warp(pass)) {
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                *(float4 *)(to + place(j, t)) = make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
            }
        }
    }

    /* Sums of a row of the warpgroup. */
    __device__ __forceinline__ void fetch(float (&v)[8], const uint8_t *from, int eight, int r, When when) const
    {
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const int thread = r / 16 * 32 + r % 8 * 4 + q;
            const float2 x = load_shared_if(when, from + place(eight, thread) + r / 8 % 2 * 8);
            v[2 * q] = x.x, v[2 * q + 1] = x.y;
        }
    }

    /* A row's squares, each eight columns' in the place of the first of their sums. */
    template <int EIGHTS> __device__ __forceinline__ void store_squares(const uint8_t *from, int first_row, int n) const
    {
        meet_storers();
        if (s < n) {
            float sum = 0.0f;
            for (int j = 0; j < EIGHTS; j++) {
                sum += *(const float *)(from + square_place(j, s));
            }
            add_square(a.next.square + first_row + s, sum);
        }
    }

    __device__ __forceinline__ uint32_t square_place(int eight, int r) const
    {
        return place(eight, r / 16 * 32 + r % 8 * 4) + (uint32_t)(r / 8 % 2 * 8);
    }

    /* What eight sums meet; a thread's first are on their way while sums are exchanged, a helper's while they are made.
     */
    struct Ahead {
        ForNorm norm;
        Turn turn;
    };

    template <gr_cuda_linear_out OUT>
    __device__ __forceinline__ Ahead load_ahead(int row, int row_of_pass, int col) const
    {
        Ahead ahead{};
        if (has_norm_behind<OUT>(a) && col < a.n_out) {
            ahead.norm = load_for_norm(a, row, col);
        }
        if (OUT == GR_CUDA_OUT_HEADS && col < a.n_out) {
            ahead.turn = load_turn(a.heads, bars->place[row_of_pass], col);
        }
        return ahead;
    }

    template <int P, gr_cuda_linear_out OUT> __device__ __forceinline__ Ahead look_ahead(int tile, int pass) const
    {
        constexpr int EIGHTS = N / 8 / P;
        const int r = s / EIGHTS, row = (pass * R + wg) * 64 + r;
        return r < 64 && row < n_row ? load_ahead<OUT>(row, wg * 64 + r, first_column<P>(tile) + s % EIGHTS * 8)
                                     : Ahead{};
    }

    template <int P> __device__ __forceinline__ int first_column(int tile) const
    {
        return tile * N + (P == 2 ? share.rank * (N / 2) : 0);
    }

    /* From the ring to y; P senders. Not real: a rehearsal. */
    template <int P, gr_cuda_linear_out OUT>
    __device__ __forceinline__ void store(const Ahead &ahead, int tile, int pass, bool real)
    {
        constexpr int EIGHTS = N / 8 / P;
        uint8_t *from = w_slots + wg * (N / 8) * 2048;
        const int first_row = (pass * R + wg) * 64, n = min(64, n_row - first_row) * EIGHTS;
        const int end = real ? n : s + 1;
        const When when(real);
        constexpr int AT_ONCE = HELPED ? 1 : 2; /* more is more code, which nobody has fetched yet */
#pragma unroll AT_ONCE
        for (int i = s; i < end; i += N_STORER) {
            const int r = i / EIGHTS, j = i % EIGHTS;
            float v[8];
            fetch(v, from, j, r, when);
            if (P == 2) {
                float other[8];
                fetch(other, from + EIGHTS * 2048, j, r, when);
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    v[k] += other[k];
                }
            }
            scale_by(v, row_scale(wg * 64 + r));
            const int row = first_row + r, col = first_column<P>(tile) + j * 8;
            const Ahead here = i == s ? ahead : load_ahead<OUT>(row, wg * 64 + r, col);
            if (has_norm_behind<OUT>(a)) {
                const float square = col < a.n_out ? add_eight_for_norm(a, v, here.norm, row, col, when) : 0.0f;
                if (when) {
                    *(float *)(from + square_place(j, r)) = square;
                }
            } else if (OUT == GR_CUDA_OUT_HEADS && col < a.n_out) {
                put_eight_of_heads(a.heads, v, here.turn, bars->place[wg * 64 + r], row, col, when);
            } else {
                put_eight<OUT>(a, v, row, col, when);
            }
        }
        if (real && has_norm_behind<OUT>(a)) {
            store_squares<EIGHTS>(from, first_row, n / EIGHTS);
        }
    }

    /* From the registers: the ring has the next tile's weights. */
    template <gr_cuda_linear_out OUT>
    __device__ __forceinline__ void store_directly(const float (&d)[N / 2], int tile, int pass)
    {
        meet_storers(); /* what prepare() made is there */
        if (multiplies && t / 32 < n_warp(pass)) {
            const int r = row(pass, t / 32), in_pass = r - pass * R * 64;
            const float low = row_scale(in_pass), high = row_scale(in_pass + 8);
            const RowPlace place[2] = {bars->place[in_pass], bars->place[in_pass + 8]};
            float square[2] = {};
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float v[4] = {d[4 * j] * low, d[4 * j + 1] * low, d[4 * j + 2] * high, d[4 * j + 3] * high};
                put<OUT>(a, v, r, n_row, column(tile, j), place, square);
            }
            if (has_norm_behind<OUT>(a) && t % 4 < 2 && r + t % 4 * 8 < n_row) {
                add_square(a.next.square + r + t % 4 * 8, t % 4 == 0 ? square[0] : square[1]);
            }
        }
    }

    /* Helpers go through it twice: store()'s instructions have been fetched when the sums are there. */
    template <int P, gr_cuda_linear_out OUT>
    __device__ __forceinline__ void exchange(const float (&d)[N / 2], int tile, int pass)
    {
        Ahead ahead = helps() ? look_ahead<P, OUT>(tile, pass) : Ahead{};
        int real = helps() && tile == share.first_tile ? 0 : 1;
        if (HELPED) {
            asm volatile("" : "+r"(real)); /* known to nobody: there must be one store() for both */
        }
#pragma unroll 1
        for (; real < 2; real++) {
            if (real > 0) {
                if (P == 2) {
                    send(d, pass);
                } else {
                    keep(d, pass);
                }
                if (!helps()) {
                    ahead = look_ahead<P, OUT>(tile, pass);
                }
                if (P == 2) {
                    receive();
                } else {
                    meet_storers();
                }
            }
            store<P, OUT>(ahead, tile, pass, real > 0);
        }
    }

    template <gr_cuda_linear_out OUT>
    __device__ __forceinline__ void finish(const float (&d)[N / 2], int tile, int pass, bool last)
    {
        if (a.parts == 2) {
            exchange<2, OUT>(d, tile, pass);
            fence_async_shared(); /* copies will follow these reads */
            meet_storers();
            if (threadIdx.x == 0) {
                bar_arrive(&bars->added);
            }
        } else if (last) {
            exchange<1, OUT>(d, tile, pass);
        } else {
            store_directly<OUT>(d, tile, pass);
        }
    }

    /* Sums of squares that nobody will read any more. */
    __device__ __forceinline__ void clear() const
    {
        const int n_thread = HELPED ? n_helper(R) : n_multiplier(R);
        for (int row = (int)blockIdx.x * n_thread + wg * 128 + t; a.clear != nullptr && row < n_row;
             row += (int)gridDim.x * n_thread) {
            a.clear[row].whole = a.clear[row].part = 0;
        }
    }

    template <gr_cuda_linear_out OUT> __device__ __forceinline__ void run()
    {
        const int n_pass = n_pass_of<R>(n_row);
        if (helps() || !HELPED) {
            clear();
        }
        if (helps()) {
            prepare<OUT>(0);
        }
        for (int tile = share.first_tile; tile < a.n_tile; tile += share.tile_step) {
            for (int pass = 0; pass < n_pass; pass++) {
                float d[N / 2];
                if (!HELPED) {
                    prepare<OUT>(pass);
                }
                if (multiplies) {
                    multiply(d);
                }
                finish<OUT>(d, tile, pass, pass == n_pass - 1 && tile + share.tile_step >= a.n_tile);
            }
        }
    }
};

/* ---- the kernel ---- */

template <int N> static __device__ __forceinline__ void make_bars(uint64_t (&bars)[N], int n)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        bar_init(&bars[i], n);
    }
}

/* One thread each of three warps, none of them by lanes: a barrier's address is uniform to a warp, so lanes would take
 * turns, 30 ns each (2.7 us until the first weights were asked for). Those of the weights first and by themselves. */
template <int R> static __device__ __forceinline__ void make_bars(const LinearArgs &a, LinearBars *bars, int warp)
{
    if (threadIdx.x % 32 == 0) {
        if (warp == 0) {
            make_bars(bars->w_full, 1);
            make_bars(bars->w_empty, R);
            bar_init(&bars->added, 1); /* the weights' thread waits for it, and for nobody who makes others */
        } else if (warp == 1) {
            make_bars(bars->x_full, 1);
            bar_init(&bars->may_send, a.parts);
            bar_init(&bars->received, 1);
        } else if (threadIdx.x == 0) {
            make_bars(bars->x_empty, R);
        }
        bar_init_done();
    }
    __syncwarp();
}

/* Barriers are made: for this block, and for those that will send to it. The weights' warp, which needs no other's,
 * does not wait. */
template <int R> static __device__ __forceinline__ void meet(const LinearArgs &a, bool weights)
{
    if (a.parts > 1) {
        cluster_arrive_early();
        if (!weights) {
            cluster_wait();
        }
    } else if (weights) {
        named_arrive(2, n_linear_thread(R));
    } else {
        named_sync(2, n_linear_thread(R));
    }
}

/* R warpgroups that multiply, then a warp for weights and one for x. Two more warps help a single warpgroup to store;
 * with two, they make a whole warpgroup of those that load, which can leave its registers to the others. */
template <int N, int R>
__global__ void __launch_bounds__(n_linear_thread(R), 1) linear_kernel(const __grid_constant__ LinearArgs a)
{
    GR_DYNAMIC_SHARED(uint8_t, linear_smem, 1024);
    uint8_t *w_slots = linear_smem, *x_slots = w_slots + a.n_slot * stage_bytes(N);
    LinearBars *bars = (LinearBars *)(x_slots + a.x_bytes);
    const int warp = (int)threadIdx.x / 32 - 4 * R; /* of those that load */
    make_bars<R>(a, bars, warp);
    meet<R>(a, warp == 0);
    if (warp >= 0 && warp < 2 * R) {
        if (R == 2) {
            regs_fewer<56>();
        }
        if (warp == 0) {
            if (threadIdx.x % 32 == 0) {
                WeightStream<N, R>(a, w_slots, bars).run();
            }
            __syncwarp();
            if (a.parts > 1) {
                cluster_wait();
            }
        } else {
            if (warp == 1 && threadIdx.x % 32 == 0) {
                stream_x<R>(a, x_slots, bars);
            }
        }
    } else {
        if (R == 2) {
            regs_more<224>();
        }
        wait_for_previous();
        LinearWorker<N, R> worker(a, w_slots, x_slots, bars, read_n_row(a));
        switch (a.out) {
        case GR_CUDA_OUT_BF16:
            return worker.template run<GR_CUDA_OUT_BF16>();
        case GR_CUDA_OUT_F32:
            return worker.template run<GR_CUDA_OUT_F32>();
        case GR_CUDA_OUT_ADD:
            return worker.template run<GR_CUDA_OUT_ADD>();
        case GR_CUDA_OUT_SILU:
            return worker.template run<GR_CUDA_OUT_SILU>();
        case GR_CUDA_OUT_HEADS:
            return worker.template run<GR_CUDA_OUT_HEADS>();
        }
    }
}

/* Shared memory of a block: so much that there is one a multiprocessor. With two, so that the next kernel's ring fills
 * while this kernel drains, it happens that two of one kernel are in one place and none in another. The weights' ring
 * must have room for a tile's sums, 256 R bytes an output: at 248 outputs it just has. */
struct LinearMemory {
    int n_slot, x_bytes;
    int bytes(int width) const
    {
        return n_slot * stage_bytes(width) + x_bytes + (int)sizeof(LinearBars);
    }
};

static LinearMemory linear_memory(int width, int n_row)
{
    const int x_bytes = (n_row <= 16 ? 40 : 64) * 1024, bytes = 216 * 1024;
    return {std::min(W_SLOT_MAX, (bytes - x_bytes) / stage_bytes(width)), x_bytes};
}

template <int N, int R> static cudaError_t launch(LinearArgs &f, const LinearCut &cut, cudaStream_t stream)
{
    const LinearMemory m = linear_memory(N, f.n_row);
    const cudaError_t e =
        cudaFuncSetAttribute(linear_kernel<N, R>, cudaFuncAttributeMaxDynamicSharedMemorySize, m.bytes(N));
    if (e != cudaSuccess) {
        return e;
    }
    f.n_slot = m.n_slot, f.x_bytes = m.x_bytes;
    return launch_as({cut.parts, false, true}, linear_kernel<N, R>, dim3((unsigned)(cut.n_cluster() * cut.parts)),
                     n_linear_thread(R), (size_t)m.bytes(N), stream, f);
}

template <int R> cudaError_t launch_widths(LinearArgs &f, const LinearCut &cut, cudaStream_t stream)
{
    switch (cut.width) {
    case 16:
        return launch<16, R>(f, cut, stream);
    case 32:
        return launch<32, R>(f, cut, stream);
    case 64:
        return launch<64, R>(f, cut, stream);
    case 96:
        return launch<96, R>(f, cut, stream);
    case 128:
        return launch<128, R>(f, cut, stream);
    case 192:
        return launch<192, R>(f, cut, stream);
    case 224:
        return launch<224, R>(f, cut, stream);
    default:
        return launch<248, R>(f, cut, stream);
    }
}

} // namespace gr

#endif
