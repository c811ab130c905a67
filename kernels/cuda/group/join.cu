/* Joined sums of several GPUs (join.h). Bound by the links between GPUs where rows are many, by the way there and back
 * where they are few.
 *
 * A block has pieces of rows: as many columns as its threads take by eights, in whole groups of columns whose squares
 * are one sum in the unsplit layer. */
#include "kernels/cuda/group/join.h"

#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/linear_out.cuh"

#include <algorithm>
#include <cstdio>

namespace gr
{

constexpr int N_JOIN_THREAD = 128;
constexpr uint32_t LOOKS = 256; /* between two at the clock and at the host's memory, which are farther away */

/* ---- how ranks wait for each other ---- */

static __device__ __forceinline__ uint32_t *given_up(const gr_cuda_peers &p)
{
    return p.count + GR_CUDA_JOIN_BLOCKS;
}

static __device__ __forceinline__ void give_up(const gr_cuda_peers &p, gr_cuda_join_error why, int peer)
{
    publish(p.error, (uint32_t)why | (uint32_t)peer << 16);
    publish(given_up(p), 1);
}

static __device__ __forceinline__ bool must_stop(const gr_cuda_peers &p, int peer, uint64_t since)
{
    if (look(given_up(p)) != 0) {
        return true;
    }
    const bool aborted = look(p.abort) != 0, late = now_ns() - since > p.limit_ns;
    if (aborted || late) {
        give_up(p, aborted ? GR_CUDA_JOIN_ABORTED : GR_CUDA_JOIN_LATE, peer);
    }
    return aborted || late;
}

/* A peer may be one call ahead, never more. */
static __device__ __forceinline__ bool has_come(const uint32_t *flag, uint32_t call)
{
    return (int32_t)(look(flag) - call) >= 0;
}

static __device__ __forceinline__ void await(const gr_cuda_peers &p, int peer, uint32_t call)
{
    const uint32_t *flag = p.flag[p.rank] + peer * GR_CUDA_JOIN_BLOCKS + blockIdx.x;
    uint64_t since = 0;
    for (uint32_t turn = 0; !has_come(flag, call); turn++) {
        if (turn == 0) {
            since = now_ns();
        } else if (turn % LOOKS == 0 && must_stop(p, peer, since)) {
            return;
        }
        between_looks();
    }
}

/* All threads of the block, after wait_for_previous(): all that the ranks' streams wrote before is there. */
static __device__ __forceinline__ void meet_peers(const gr_cuda_peers &p)
{
    const int peer = (int)threadIdx.x;
    if (peer < p.n_rank && peer != p.rank) {
        const uint32_t call = p.count[blockIdx.x] + 1;
        publish(p.flag[peer] + p.rank * GR_CUDA_JOIN_BLOCKS + blockIdx.x, call);
        await(p, peer, call);
    }
    __syncthreads();
    if (peer == 0) {
        p.count[blockIdx.x]++; /* after all have read it */
    }
}

/* ---- sums ---- */

struct JoinArgs {
    gr_cuda_peers peers;
    LinearArgs out; /* y: x. What becomes of the sums */
    int buffer, n, n_row;
    int n_column, n_group; /* of a group; groups of a piece */
    int n_piece;           /* of a row */
    bool two_shots;
};

struct JoinShared {
    float square[N_JOIN_THREAD]; /* of a thread's eight columns */
};

static __device__ __forceinline__ void add_eight(float (&v)[8], const float (&w)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] += w[i];
    }
}

static __device__ __forceinline__ void load_eight(float (&v)[8], const float *from)
{
    const float4 a = load_of_peer(from), b = load_of_peer(from + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/* Those of ranks [first, first + N) by their tree; v: all of them, of which the first becomes the sum. */
template <int N> static __device__ __forceinline__ void sum_ranks(float (&v)[N][8])
{
#pragma unroll
    for (int apart = 1; apart < N; apart *= 2) {
#pragma unroll
        for (int r = 0; r < N; r += 2 * apart) {
            add_eight(v[r], v[r + apart]);
        }
    }
}

template <int N>
static __device__ __forceinline__ void load_ranks(float (&v)[N][8], const JoinArgs &a, int row, int col)
{
    const size_t at = (size_t)a.buffer * a.peers.n_part + (size_t)row * a.n + col;
#pragma unroll
    for (int r = 0; r < N; r++) {
        load_eight(v[r], a.peers.part[N == 1 ? a.peers.rank : r] + at);
    }
}

/* The first of two shots: of this block's pieces those that are this rank's, as many as other ranks have. The sums take
 * the place of the parts that they were made of, which nobody else reads, on all ranks. */
template <int N> static __device__ __forceinline__ void share_piece(const JoinArgs &a, int piece)
{
    const int row = piece / a.n_piece, first = piece % a.n_piece * a.n_group * a.n_column;
    const int n_eight = min(a.n_group * a.n_column, a.n - first) / 8, col = first + (int)threadIdx.x * 8;
    if ((int)threadIdx.x < n_eight) {
        const size_t at = (size_t)a.buffer * a.peers.n_part + (size_t)row * a.n + col;
        float v[N][8];
        load_ranks(v, a, row, col);
        sum_ranks(v);
#pragma unroll
        for (int r = 0; r < N; r++) {
            float4 *to = (float4 *)(a.peers.part[r] + at);
            to[0] = make_float4(v[0][0], v[0][1], v[0][2], v[0][3]);
            to[1] = make_float4(v[0][4], v[0][5], v[0][6], v[0][7]);
        }
    }
}

template <int N> static __device__ __forceinline__ void share_pieces(const JoinArgs &a, int n_row)
{
    int turn = (int)blockIdx.x;
    for (int piece = (int)blockIdx.x; piece < n_row * a.n_piece; piece += (int)gridDim.x, turn++) {
        if (turn % N == a.peers.rank) {
            share_piece<N>(a, piece);
        }
    }
    __syncthreads(); /* meet_peers() tells of what all threads wrote */
    meet_peers(a.peers);
}

/* The squares of each group, in the order of its columns. */
static __device__ __forceinline__ void add_squares(const JoinArgs &a, const float *square, int row, int n_eight)
{
    const int per = a.n_column / 8, first = (int)threadIdx.x * per;
    if ((int)threadIdx.x < a.n_group && first < n_eight) {
        float sum = 0.0f;
        for (int j = first; j < min(first + per, n_eight); j++) {
            sum += square[j];
        }
        add_square(a.out.next.square + row, sum);
    }
}

/* Piece `piece` of all rows' pieces. N 1: the own part is the sum. */
template <int N> static __device__ __forceinline__ void join_piece(const JoinArgs &a, int piece, float *square)
{
    const int row = piece / a.n_piece, first = piece % a.n_piece * a.n_group * a.n_column;
    const int n_eight = min(a.n_group * a.n_column, a.n - first) / 8, col = first + (int)threadIdx.x * 8;
    const bool norm = a.out.next.tiles != nullptr;
    if ((int)threadIdx.x < n_eight) {
        float v[N][8];
        load_ranks(v, a, row, col);
        if (norm) {
            const ForNorm before = load_for_norm(a.out, row, col);
            sum_ranks(v);
            square[threadIdx.x] = add_eight_for_norm(a.out, v[0], before, row, col, Always(true));
        } else {
            sum_ranks(v);
            put_eight<GR_CUDA_OUT_ADD>(a.out, v[0], row, col, Always(true));
        }
    }
    if (norm) {
        __syncthreads();
        add_squares(a, square, row, n_eight);
        __syncthreads();
    }
}

template <int N> static __device__ __forceinline__ void join_pieces(const JoinArgs &a, int n_row, float *square)
{
    for (int piece = (int)blockIdx.x; piece < n_row * a.n_piece; piece += (int)gridDim.x) {
        join_piece<N>(a, piece, square);
    }
}

static __device__ __forceinline__ void clear_squares(const JoinArgs &a, int n_row)
{
    for (int row = (int)(blockIdx.x * N_JOIN_THREAD + threadIdx.x); a.out.clear != nullptr && row < n_row;
         row += (int)gridDim.x * N_JOIN_THREAD) {
        a.out.clear[row].whole = a.out.clear[row].part = 0;
    }
}

template <int N> __global__ void __launch_bounds__(N_JOIN_THREAD) join_kernel(const __grid_constant__ JoinArgs a)
{
    GR_SHARED(JoinShared, shared);
    let_next_start();
    wait_for_previous();
    const int n_row = min(*a.out.n_row_true, a.n_row);
    clear_squares(a, n_row);
    if (N > 1) {
        meet_peers(a.peers);
    }
    if (N > 2 && a.two_shots) {
        share_pieces<N>(a, n_row);
        return join_pieces<1>(a, n_row, shared.square);
    }
    join_pieces<N>(a, n_row, shared.square);
}

__global__ void __launch_bounds__(32) meet_kernel(const gr_cuda_peers p)
{
    let_next_start();
    wait_for_previous();
    meet_peers(p);
}

/* ---- the host's side ---- */

static bool aligned(const void *p, size_t n)
{
    return (size_t)p % n == 0;
}

static enum gr_status check_peers(const gr_cuda_peers &p)
{
    bool ok = (p.n_rank == 1 || p.n_rank == 2 || p.n_rank == 4 || p.n_rank == 8) && p.rank >= 0 && p.rank < p.n_rank &&
              (p.n_rank == 1 || (p.count && p.abort && p.error));
    for (int r = 0; r < p.n_rank && ok; r++) {
        ok = p.n_rank == 1 || p.flag[r] != nullptr;
    }
    if (!ok) {
        fprintf(stderr, "cuda: rank %d of %d (1, 2, 4 or 8): flags, counters or words of the host are missing\n",
                p.rank, p.n_rank);
        return GR_EINVAL;
    }
    return GR_OK;
}

static bool norm_fits(const gr_cuda_join_args &a)
{
    const gr_cuda_linear_next &n = a.next;
    const bool capture =
        n.capture == nullptr || (n.capture_n % 64 == 0 && n.capture_col % 8 == 0 && n.capture_col >= 0 &&
                                 n.capture_col + a.n <= n.capture_n && aligned(n.capture, 16));
    return n.tiles == nullptr || (!a.bias && n.w && n.square && capture && aligned(n.w, 16) && aligned(n.tiles, 16) &&
                                  aligned(n.square, 128) && a.square_columns >= 8 && a.square_columns % 8 == 0 &&
                                  a.square_columns <= N_JOIN_THREAD * 8);
}

static enum gr_status check_join(const gr_cuda_peers &p, const gr_cuda_join_args &a)
{
    bool parts = p.n_part % 4 == 0 && (size_t)a.n_row * (size_t)a.n <= p.n_part;
    for (int r = 0; r < p.n_rank; r++) {
        parts = parts && p.part[r] != nullptr && aligned(p.part[r], 16);
    }
    if (!parts || (a.buffer != 0 && a.buffer != 1) || a.n < 64 || a.n % 64 != 0 || a.n_row < 1 || !a.n_row_true ||
        !a.x || !aligned(a.x, 16) || !aligned(a.bias, 8) || !aligned(a.clear, 128) || !norm_fits(a)) {
        fprintf(stderr,
                "cuda: join of %d rows of %d (a multiple of 64) in buffer %d of %zu values, x at %p (aligned to 16), "
                "bias at %p (to 8; not with a norm), cleared at %p (to 128), n_row_true at %p; norm: w %p, tiles %p, "
                "capture %p (to 16) in columns from %d of %d, squares %p (to 128) of %d columns each\n",
                a.n_row, a.n, a.buffer, p.n_part, (void *)a.x, (const void *)a.bias, (void *)a.clear,
                (const void *)a.n_row_true, (const void *)a.next.w, (void *)a.next.tiles, (void *)a.next.capture,
                a.next.capture_col, a.next.capture_n, (void *)a.next.square, a.square_columns);
        return GR_EINVAL;
    }
    return GR_OK;
}

static JoinArgs join_args(const gr_cuda_peers &p, const gr_cuda_join_args &a)
{
    JoinArgs f{};
    f.peers = p, f.buffer = a.buffer, f.n = a.n, f.n_row = a.n_row;
    f.out.y = a.x, f.out.y_stride = a.n, f.out.n_out = a.n, f.out.bias = a.bias, f.out.next = a.next;
    f.out.clear = a.clear, f.out.n_row_true = a.n_row_true, f.out.wide_y = true;
    f.two_shots = p.n_rank > 2 && (size_t)a.n_row * (size_t)a.n * sizeof(float) >= p.two_shots_from;
    f.n_column = a.next.tiles != nullptr ? a.square_columns : 64;
    f.n_group = std::min(N_JOIN_THREAD * 8 / f.n_column, (a.n + f.n_column - 1) / f.n_column);
    f.n_piece = (a.n + f.n_group * f.n_column - 1) / (f.n_group * f.n_column);
    return f;
}

template <int N> static cudaError_t launch_join(const JoinArgs &a, cudaStream_t stream)
{
    const int n_block = std::min(a.n_row * a.n_piece, (int)GR_CUDA_JOIN_BLOCKS);
    return launch_early(join_kernel<N>, dim3((unsigned)n_block), N_JOIN_THREAD, 0, stream, a);
}

static cudaError_t launch_join_of(const JoinArgs &a, cudaStream_t stream)
{
    switch (a.peers.n_rank) {
    case 1:
        return launch_join<1>(a, stream);
    case 2:
        return launch_join<2>(a, stream);
    case 4:
        return launch_join<4>(a, stream);
    default:
        return launch_join<8>(a, stream);
    }
}

} // namespace gr

enum gr_status gr_cuda_join(const struct gr_cuda_peers *peers, const struct gr_cuda_join_args *a,
                            struct CUstream_st *stream)
{
    GR_TRY(gr::check_peers(*peers));
    GR_TRY(gr::check_join(*peers, *a));
    return cuda_status_of(gr::launch_join_of(gr::join_args(*peers, *a), stream), "join of ranks");
}

enum gr_status gr_cuda_meet(const struct gr_cuda_peers *peers, struct CUstream_st *stream)
{
    GR_TRY(gr::check_peers(*peers));
    return cuda_status_of(gr::launch_early(gr::meet_kernel, dim3(1), 32, 0, stream, *peers), "meeting of ranks");
}
