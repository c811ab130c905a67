/* The warpgroups of a linear layer's block that multiply what its rings bring (linear_ring.cuh), and what they do with
 * the sums.
 *
 * Rows of x are the M of wgmma (64, padded), outputs its N. A block works through the tiles of its cluster
 * (linear_cut.cuh); of each it has `width` outputs and its part of k. A warpgroup multiplies: one for up to 64 rows;
 * two, each with its own 64 rows of the same weights, where there may be more. Beside one there are two warps that help
 * it to store.
 *
 * At the end of a tile of two parts each block sends its sums, by columns, to the block that adds these columns: into
 * the weights' ring, which is empty then, or, in a chain, where the next layer's weights are on their way by then, into
 * that of x.
 *
 * Where x has fewer than 64 rows only groups of 8 that the bucket has are copied, one slot close after the other; the
 * rest of the 64 is whatever lies after. No output row sees another row's x, and rows that do not exist are not
 * written. */
#ifndef GR_KERNELS_CUDA_LINEAR_LINEAR_WORKER_CUH
#define GR_KERNELS_CUDA_LINEAR_LINEAR_WORKER_CUH

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/linear/linear_out.cuh"
#include "kernels/cuda/linear/linear_ring.cuh"
#include "kernels/cuda/device/wgmma.cuh"

#include <type_traits>

namespace gr
{

/* Threads of a kernel, in their order: those that multiply, those that load, those that help to store. R warpgroups
 * that multiply have rows of their own; C have the same rows, and of wide tiles each its columns. Narrow ones are the
 * first one's: it would not be quicker with fewer columns. */
template <int R, int C> struct LinearThreads {
    static constexpr int MULTIPLY = 128 * R * C, LOAD = 64 * R, HELP = R == 1 ? 64 : 0, ALL = MULTIPLY + LOAD + HELP;
    static constexpr int STORE = MULTIPLY + HELP;
};

/* ---- the warpgroups that multiply, and store ---- */

/* What goes on from one of a chain's layers to the next. turn: phase of the barriers of a tile's sum. */
template <bool CHAIN> struct LinearProgress {
    std::conditional_t<CHAIN, BytePlaces, SlotPlaces> w;
    LinearRing x;
    uint32_t turn = 0;
    bool begun = false; /* the kernel before has been waited for; only in a chain */
};

/* Sums of segments that wait for others, a thread's share of N columns; the oldest is the lowest. In registers where
 * there is room for them beside a sum that is being made: which is asked for is known at run time only, so each has its
 * own code. Else they lie in the thread's own memory. */
template <int N, bool IN_REGISTERS> struct Waiting {
    alignas(16) float v[GR_SEGMENT_PENDING][N / 2];
    int n = 0;

    template <class Use> __device__ __forceinline__ void at(int place, Use use)
    {
        if constexpr (IN_REGISTERS) {
#pragma unroll
            for (int p = 0; p < GR_SEGMENT_PENDING; p++) {
                if (p == place) {
                    use(v[p]);
                }
            }
        } else {
            use(v[place]);
        }
    }

    __device__ __forceinline__ void join(float (&d)[N / 2])
    {
        at(--n, [&](float(&older)[N / 2]) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                d[i] = older[i] + d[i];
            }
        });
    }

    /* d begins again. */
    __device__ __forceinline__ void put(float (&d)[N / 2])
    {
        at(n++, [&](float(&to)[N / 2]) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                to[i] = d[i];
            }
        });
        fill(d, 0.0f);
    }

    static __device__ __forceinline__ void fill(float (&d)[N / 2], float value)
    {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            d[i] = value;
        }
    }
};

/* N: columns of a tile. */
template <int N, int R, int C, bool CHAIN> struct LinearWorker {
    using Threads = LinearThreads<R, C>;
    static constexpr bool HELPED = Threads::HELP > 0;
    using When = std::conditional_t<HELPED, Perhaps, Always>; /* helpers rehearse */
    static constexpr int N_STORER = 128 * C + Threads::HELP;  /* threads that store a warpgroup's rows */
    static constexpr int PARTS = N >= 128 ? C : 1;            /* warpgroups that a tile's columns are shared out to */
    static constexpr int N_OWN = N / PARTS;                   /* columns of a warpgroup */
    static constexpr int GROUP = CHAIN ? chain_group(N) : 1;  /* boxes that lie in a slot of x and are used together */
    using Slots = std::conditional_t<CHAIN, ChainXSlots, XSlots<R>>;
    static_assert(R == 1 || C == 1, "rows or columns are shared out");
    const LinearArgs &a;
    const LinearShare share;
    uint8_t *w_slots, *x_slots;
    LinearBars *bars;
    const int n_row, thread; /* thread: of the block */
    const Slots x;
    const bool multiplies, helps; /* else: of a second warpgroup, of a tile whose columns are the first one's */
    const int wg, part, t;        /* warpgroup of rows, of columns; t: thread of its warpgroup */
    const int s;                  /* among the storers of these rows, helpers first */
    uint8_t *const sums;          /* where they are exchanged: a ring that is empty then */
    LinearProgress<CHAIN> &at;

    __device__ LinearWorker(const LinearArgs &a_, uint8_t *w_, uint8_t *x_, LinearBars *bars_, int n_row_, int thread_,
                            LinearProgress<CHAIN> &at_)
        : a(a_), share(a_), w_slots(w_), x_slots(x_), bars(bars_), n_row(n_row_), thread(thread_), x(a_),
          multiplies(thread < 128 * R * PARTS), helps(HELPED && thread >= Threads::MULTIPLY),
          wg(R > 1 ? thread / 128 : 0), part(PARTS > 1 ? thread / 128 : 0),
          t((thread - (helps ? Threads::MULTIPLY + Threads::LOAD : 0)) % 128),
          s(helps ? t : Threads::HELP + thread % (128 * C)), sums(CHAIN ? x_ : w_), at(at_)
    {
    }

    __device__ __forceinline__ void meet_storers() const
    {
        named_sync(3, Threads::STORE);
    }

    /* By one warpgroup, for all that the barrier waits for. */
    __device__ __forceinline__ void release(uint64_t *bar) const
    {
        if (t == 0) {
            bar_arrive_as(bar, C / PARTS);
        }
    }

    static __host__ __device__ constexpr RingUse ring_use()
    {
        return CHAIN ? ring_in_chain(N) : ring_alone(N);
    }

    /* Where the products of a tile are: what is awaited next, and what is released when those after it have begun. */
    struct Cursor {
        decltype(LinearProgress<CHAIN>::w) w;
        LinearRing x;
        int in_copy = 0, copy = 0, x_before = -1, w_before = -1; /* copy: its place */
    };

    /* K boxes: 4 K products, which stay in the matrix units when this returns. Waiting for them here would leave the
     * units idle while the next barrier is looked at; so a slot is released one call late, when the products that read
     * it are known to have ended (wgmma_wait<1>: at most the newest group is under way). Descriptors are made before
     * the fence, in uniform registers, where a step to the next k is one instruction. */
    template <int K> __device__ __forceinline__ void multiply_boxes(float (&d)[N_OWN / 2], Cursor &c, int n_left)
    {
        constexpr RingUse use = ring_use();
        const uint32_t x0 = smem_addr(x_slots) + (uint32_t)(R > 1 ? wg * X_TILE : 0);
        const uint32_t w0 = smem_addr(w_slots) + (uint32_t)(part * N_OWN * 128);
        if (c.in_copy == 0) {
            c.copy = c.w.place(min((int)use.boxes, n_left) * use.box, use, a.w_bytes);
            bar_wait(&bars->w_full[c.w.slot], c.w.phase);
        }
        bar_wait(&bars->x_full[c.x.slot], c.x.phase);
        uint64_t from[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            from[k] = wgmma_uniform(wgmma_desc(x0 + (uint32_t)(c.x.slot * x.slot + k * x.box), 16, 1024));
        }
        const uint64_t w = wgmma_uniform(wgmma_desc(w0 + (uint32_t)(c.copy + c.in_copy * use.box), 16, 1024));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < K; k++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                wgmma_ss<N_OWN>(d, wgmma_step(from[k], (uint32_t)(j * 32)),
                                wgmma_step(w, (uint32_t)(k * use.box + j * 32)), 1);
            }
        }
        wgmma_commit();
        wgmma_wait<1>();
        release_before(c);
        c.x_before = c.x.slot, c.w_before = -1;
        c.x.next(x.n);
        c.in_copy += K;
        if (c.in_copy == use.boxes || n_left == K) {
            c.in_copy = 0, c.w_before = c.w.slot;
            c.w.next(a.n_slot);
        }
    }

    __device__ __forceinline__ void release_before(const Cursor &c) const
    {
        if (c.x_before >= 0) {
            release(&bars->x_empty[c.x_before]);
        }
        if (c.w_before >= 0) {
            release(&bars->w_empty[c.w_before]);
        }
    }

    /* Adds sums over n_left boxes. A slot is released when the boxes after it are in the matrix units. */
    __device__ __forceinline__ void multiply_segment(float (&d)[N_OWN / 2], Cursor &c, int n_left)
    {
        for (; n_left >= GROUP; n_left -= GROUP) {
            multiply_boxes<GROUP>(d, c, n_left);
        }
        if (GROUP > 1 && n_left > 0) {
            multiply_boxes<1>(d, c, n_left);
        }
        wgmma_wait<0>();
        wgmma_hold(d);
        release_before(c);
        c.x_before = c.w_before = -1;
    }

    /* The sums of a tile's part. Only layers whose sums are cut for a group have segments. */
    template <gr_cuda_linear_out OUT> __device__ __forceinline__ void multiply(float (&d)[N_OWN / 2], int pass)
    {
        Cursor c{at.w, at.x};
        if constexpr (OUT == GR_CUDA_OUT_ADD || OUT == GR_CUDA_OUT_PART) {
            multiply_segments(d, c, t / 32 < n_warp(pass));
        } else {
            multiply_segment(d, c, share.n_box);
        }
        at.w = c.w, at.x = c.x;
    }

    /* A block without segments has the sum that changes no other. real: the warp has rows. */
    __device__ __forceinline__ void multiply_segments(float (&d)[N_OWN / 2], Cursor &c, bool real)
    {
        Waiting<N_OWN, !CHAIN && N_OWN <= 64> waiting;
        if (share.n_box == 0) {
            waiting.fill(d, -0.0f);
        }
#pragma unroll 1
        for (int i = share.segment; i < share.end_segment; i++) {
            multiply_segment(d, c, a.order.n_box[i]);
            if (!real) {
                continue;
            }
#pragma unroll 1
            for (int n = a.order.n_join[i]; n > 0; n--) {
                waiting.join(d);
            }
            if (i + 1 < share.end_segment) {
                waiting.put(d);
            }
        }
    }

    /* The rings go on without a warpgroup that has no columns of this tile. */
    __device__ __forceinline__ void pass_over()
    {
        constexpr RingUse use = ring_use();
        for (int k = share.segment; k < share.end_segment; k++) {
            for (int n_left = a.order.n_box[k]; n_left > 0; n_left -= use.boxes) {
                const int n = min((int)use.boxes, n_left);
                (void)at.w.place(n * use.box, use, a.w_bytes);
                at.w.next(a.n_slot);
                for (int i = 0; i < n; i += GROUP) {
                    at.x.next(x.n);
                }
            }
        }
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

    /* Sums pass through the ring, where it is empty: by warpgroup, sender, eight columns, the four sums of each thread
     * (in a chain, where x's ring may be small, of those warps that the bucket has rows for). So any thread can store
     * eight columns of any row that exists, in a loop, which is less code to fetch than all columns one after another.
     * The threads' places are exchanged (in eights, by the columns), that neighbours which read neighbouring columns
     * find them in different banks. */
    __device__ __forceinline__ uint32_t ring_at(int parts, int sender) const
    {
        return smem_addr(sums) + (uint32_t)(((wg * parts + sender) * (N / 8 / parts)) * eight_bytes());
    }

    __device__ __forceinline__ int eight_bytes() const
    {
        return CHAIN ? (a.n_row + 15) / 16 * 512 : 2048;
    }

    __device__ __forceinline__ uint32_t place(int eight, int thread) const
    {
        return (uint32_t)(eight * eight_bytes() + (thread ^ (eight % 8)) * 16);
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
            named_sync(4, Threads::HELP);
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

    /* Each of the two blocks adds half of the tile's columns, so both store, and neither waits idle for the other. The
     * bytes to come are announced (bar_expect) before the other block learns that it may send. */
    __device__ __forceinline__ void send(const float (&d)[N_OWN / 2], int pass)
    {
        if (thread == 0) {
            const int n = (max(0, min(64 * R, n_row - pass * R * 64)) + 15) / 16;
            bar_expect(&bars->received, (uint32_t)(n * N * 64));
        }
        meet_storers();
        if (thread < 2) {
            bar_arrive_at(&bars->may_send, thread);
        }
        if (!multiplies) {
            return;
        }
        bar_wait(&bars->may_send, at.turn);
        if (t / 32 < n_warp(pass)) {
#pragma unroll
            for (int i = 0; i < 2 / PARTS; i++) { /* with two warpgroups of columns each has those of one block */
                const int p = PARTS > 1 ? part : i;
                const uint32_t to = smem_at(ring_at(2, share.rank), p), bar = smem_at(smem_addr(&bars->received), p);
#pragma unroll
                for (int j = 0; j < N / 16; j++) {
                    const float *v = d + (i * (N / 16) + j) * 4;
                    send_four(to + place(j, t), bar, v[0], v[1], v[2], v[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void receive()
    {
        bar_wait(&bars->received, at.turn);
        at.turn ^= 1;
    }

    __device__ __forceinline__ void keep(const float (&d)[N_OWN / 2], int pass)
    {
        uint8_t *to = sums + wg * (N / 8) * eight_bytes();
        meet_storers(); /* nobody multiplies from the ring any more */
        if (multiplies && t / 32 < n_warp(pass)) {
#pragma unroll
            for (int j = 0; j < N_OWN / 8; j++) {
                *(float4 *)(to + place(part * (N_OWN / 8) + j, t)) =
                    make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
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
    template <int EIGHTS>
    __device__ __forceinline__ void store_squares(const uint8_t *from, int first_row, int n, bool last) const
    {
        meet_storers();
        if (CHAIN && last && thread == 0 && a.made != nullptr) { /* x is there; what its norm is comes later */
            arrive_count(a.made);
        }
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
        if (has_norm_after<OUT>(a) && col < a.n_out) {
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
    __device__ __forceinline__ void store(const Ahead &ahead, int tile, int pass, bool last, bool real)
    {
        constexpr int EIGHTS = N / 8 / P;
        uint8_t *from = sums + wg * (N / 8) * eight_bytes();
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
                fetch(other, from + EIGHTS * eight_bytes(), j, r, when);
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    v[k] += other[k];
                }
            }
            scale_by(v, row_scale(wg * 64 + r));
            const int row = first_row + r, col = first_column<P>(tile) + j * 8;
            const Ahead here = i == s ? ahead : load_ahead<OUT>(row, wg * 64 + r, col);
            if (has_norm_after<OUT>(a)) {
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
        if (real && has_norm_after<OUT>(a)) {
            store_squares<EIGHTS>(from, first_row, n / EIGHTS, last);
        }
    }

    /* From the registers, without the ring: of a tile in the middle of a block's work, whose ring has the next tile's
     * weights already. That is more code than store(), and two columns at a time instead of eight, but the copies go
     * on. */
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
            if (has_norm_after<OUT>(a) && t % 4 < 2 && r + t % 4 * 8 < n_row) {
                add_square(a.next.square + r + t % 4 * 8, t % 4 == 0 ? square[0] : square[1]);
            }
        }
    }

    /* Sums to y by way of the ring. Where nothing follows in the ring (the last tile), or another block's sums are
     * needed, this is the shorter way: any thread takes eight columns of any row, so rows that do not exist cost
     * nothing. Helpers go through it twice, once as a rehearsal: then store()'s instructions have been fetched when the
     * sums are there. */
    template <int P, gr_cuda_linear_out OUT>
    __device__ __forceinline__ void exchange(const float (&d)[N_OWN / 2], int tile, int pass, bool last)
    {
        Ahead ahead = helps ? look_ahead<P, OUT>(tile, pass) : Ahead{};
        int real = helps && tile == share.first_tile ? 0 : 1;
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
                const bool places =
                    P == 1 && OUT == GR_CUDA_OUT_HEADS; /* which helpers make: look_ahead() needs them */
                if (places) {
                    meet_storers();
                }
                if (!helps) {
                    ahead = look_ahead<P, OUT>(tile, pass);
                }
                if (P == 2) {
                    receive();
                } else if (!places) {
                    meet_storers();
                }
            }
            store<P, OUT>(ahead, tile, pass, last, real > 0);
        }
    }

    template <gr_cuda_linear_out OUT>
    __device__ __forceinline__ void finish(const float (&d)[N_OWN / 2], int tile, int pass, bool last)
    {
        if (a.parts == 2) {
            exchange<2, OUT>(d, tile, pass, last);
        } else if (CHAIN || last) {
            exchange<1, OUT>(d, tile, pass, last);
        } else if constexpr (!CHAIN) {
            store_directly<OUT>(d, tile, pass);
        }
        if (CHAIN || a.parts == 2) {
            fence_async_shared(); /* copies will follow these reads */
            meet_storers();
            if (CHAIN && last && thread == 0 &&
                a.made != nullptr) { /* other blocks wait for this to begin the next layer */
                arrive_count(has_norm_after<OUT>(a) ? a.squared : a.made);
            }
            bar_arrive(&bars->added); /* each for itself: racecheck knows no arrival for others, whom one has met */
        }
    }

    /* Sums of squares that nobody will read any more. */
    __device__ __forceinline__ void clear() const
    {
        const int n_thread = HELPED ? Threads::HELP : Threads::MULTIPLY;
        for (int row = (int)blockIdx.x * n_thread + wg * 128 + t; a.clear != nullptr && row < n_row;
             row += (int)gridDim.x * n_thread) {
            a.clear[row].whole = a.clear[row].part = 0;
        }
    }

    /* ready: phase of the barrier by which helpers, in a chain, wait for all of the layer before. */
    template <gr_cuda_linear_out OUT> __device__ __forceinline__ void run(int ready = -1)
    {
        const int n_pass = n_pass_of<R>(n_row);
        if (helps && ready >= 0) {
            bar_wait(&bars->ready, (uint32_t)ready & 1);
        }
        if (helps || !HELPED) {
            clear();
        }
        if (helps) {
            prepare<OUT>(0);
        }
        for (int tile = share.first_tile; tile < a.n_tile; tile += share.tile_step) {
            for (int pass = 0; pass < n_pass; pass++) {
                float d[N_OWN / 2];
#pragma unroll
                for (int i = 0; i < N_OWN / 2; i++) {
                    d[i] = 0.0f; /* for helpers too: else they would have to be kept through a chain */
                }
                if (!HELPED) {
                    prepare<OUT>(pass);
                }
                if (multiplies) {
                    multiply<OUT>(d, pass);
                } else if (CHAIN && !helps) {
                    pass_over();
                }
                if (CHAIN && !at.begun) {
                    wait_for_previous();
                    at.begun = true;
                }
                finish<OUT>(d, tile, pass, pass == n_pass - 1 && tile + share.tile_step >= a.n_tile);
            }
        }
    }
};

/* ---- what a kernel begins with ---- */

template <int N> static __device__ __forceinline__ void make_bars(uint64_t (&bars)[N], int n)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        bar_init(&bars[i], n);
    }
}

/* One thread each of three warps, none of them by lanes: a barrier's address is uniform to a warp, so lanes would take
 * turns, 30 ns each (2.7 us until the first weights were asked for). Those of the weights first and by themselves. */
template <int R, int C> static __device__ __forceinline__ void make_bars(LinearBars *bars, int warp, int cluster)
{
    if (threadIdx.x % 32 == 0) {
        if (warp == 0) {
            make_bars(bars->w_full, 1);
            make_bars(bars->w_empty, R * C);
            bar_init(&bars->added, LinearThreads<R, C>::STORE); /* awaited by the weights' thread, which makes it */
        } else if (warp == 1) {
            make_bars(bars->x_full, 1);
            bar_init(&bars->may_send, cluster);
            bar_init(&bars->received, 1);
            bar_init(&bars->ready, 1);
        } else if (threadIdx.x == 0) {
            make_bars(bars->x_empty, R * C);
        }
        bar_init_done();
    }
    __syncwarp();
}

/* compute-sanitizer's racecheck lets nobody pass a cluster's barrier before all wait at it, where arriving is enough;
 * so a weights' warp that waits last would never see the others begin. For it alone (-Dnvcc_args=-DGR_FOR_RACECHECK)
 * that warp waits as they do. */
#ifdef GR_FOR_RACECHECK
constexpr bool WEIGHTS_WAIT = true;
#else
constexpr bool WEIGHTS_WAIT = false;
#endif

/* Barriers are made: for this block, and for those that will send to it. The weights' warp, which needs no other's,
 * does not wait. */
template <class Threads> static __device__ __forceinline__ void meet(int cluster, bool weights)
{
    if (cluster > 1) {
        cluster_arrive_early();
        if (WEIGHTS_WAIT || !weights) {
            cluster_wait();
        }
    } else if (weights) {
        named_arrive(2, Threads::ALL);
    } else {
        named_sync(2, Threads::ALL);
    }
}

/* The weights' warp, all lanes, at its end. */
static __device__ __forceinline__ void meet_last(int cluster)
{
    __syncwarp();
    if (cluster > 1 && !WEIGHTS_WAIT) {
        cluster_wait();
    }
}

} // namespace gr

#endif
