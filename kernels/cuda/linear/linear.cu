/* Linear layers: the doors of linear.h, and the packing of matrices. */
#include "kernels/cuda/linear/linear.h"

#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/linear_cut.cuh"

#include <cstdio>

namespace gr
{

constexpr int N_PACK_THREAD = 256; /* threads of a block that packs weights */

/* Which of its rows in the matrix row i of a tensor is. */
static __host__ __device__ int pack_place(const gr_cuda_linear_pack_args &a, int i)
{
    const int d = a.head_dim > 0 ? i % a.head_dim : 0, half = a.head_dim / 2;
    return a.head_dim > 0 ? i - d + (d < half ? 2 * d : 2 * (d - half) + 1) : i;
}

/* A thread: 16 bytes at a time. */
__global__ void __launch_bounds__(N_PACK_THREAD) linear_pack_kernel(const gr_cuda_linear_pack_args a, int width)
{
    const int n_box = a.n_in / 64;
    const size_t pieces = (size_t)n_box * 8, total = pieces * (size_t)a.n_row;
    const size_t stride = (size_t)(a.plain_stride > 0 ? a.plain_stride : a.n_in) / 8;
    const size_t step = (size_t)gridDim.x * N_PACK_THREAD;
    for (size_t i = (size_t)blockIdx.x * N_PACK_THREAD + threadIdx.x; i < total; i += step) {
        const size_t from = i / pieces, piece = i % pieces;
        const size_t row = (size_t)a.row0 + (size_t)pack_place(a, a.first + (int)from) * (size_t)a.step;
        const size_t tile = row / (size_t)width, in_tile = row % (size_t)width;
        const size_t to = ((tile * n_box + piece / 8) * width + in_tile) * 8 + ((piece % 8) ^ (in_tile % 8));
        ((uint4 *)a.packed)[to] = ((const uint4 *)a.plain)[from * stride + piece];
    }
}

/* A linear layer reads weights before it waits for the kernel before it, so that one must not be the packing. */
__global__ void packed_kernel()
{
}

static bool can_cut(int n_out, int n_in)
{
    return n_out >= 16 && n_out % 16 == 0 && n_in >= 64 && n_in % 64 == 0 && n_out <= 1 << 24 && n_in <= 1 << 20;
}

/* The cut that was asked for, or the formula's. n_tile 0: it is not built. */
static LinearCut cut_of(int n_out, int n_in, gr_cuda_cut cut)
{
    if (!can_cut(n_out, n_in) || (cut.width != 0 && !gr_cuda_cut_allowed(n_in, cut))) {
        return LinearCut{};
    }
    return cut.width == 0 ? linear_cut(n_out, n_in) : linear_cut_of(n_out, n_in, cut);
}

static enum gr_status check_shape(int n_out, int n_in, gr_cuda_cut cut)
{
    if (!can_cut(n_out, n_in)) {
        fprintf(
            stderr,
            "cuda: a linear layer of %d outputs and %d inputs is not built: outputs must be a multiple of 16, inputs"
            " of 64\n",
            n_out, n_in);
        return GR_EUNSUPPORTED;
    }
    if (cut_of(n_out, n_in, cut).n_tile == 0) {
        fprintf(stderr,
                "cuda: a linear layer of %d outputs and %d inputs cannot be cut into tiles of %d outputs and %d parts:"
                " widths are " GR_CUDA_CUT_WIDTHS_TEXT "\n",
                n_out, n_in, cut.width, cut.parts);
        return GR_EINVAL;
    }
    return GR_OK;
}

static bool aligned(const void *p, size_t n)
{
    return (size_t)p % n == 0;
}

static enum gr_status check_heads(const gr_cuda_linear_args &a)
{
    const gr_cuda_heads &h = a.heads;
    if ((h.head_dim != 64 && h.head_dim != 128) || h.n_head < 1 || h.n_kv_head < 1 || a.bias != nullptr ||
        (int64_t)a.n_out != ((int64_t)h.n_head + 2 * (int64_t)h.n_kv_head) * h.head_dim || h.q_stride % 8 != 0 ||
        h.q_stride < h.n_head * h.head_dim || !h.q || !h.kv || !h.pos || !h.cell || !aligned(h.q, 16) ||
        !aligned(h.kv, 16) || !aligned(h.cos, 16) || !aligned(h.sin, 16) || !h.cos || !h.sin) {
        fprintf(stderr,
                "cuda: linear layer of %d outputs: %d query heads and %d of keys and of values of %d (64 or 128), "
                "stride %d (of 8), without a bias; q %p, kv %p, cos %p, sin %p (aligned to 16), pos %p, cell %p\n",
                a.n_out, h.n_head, h.n_kv_head, h.head_dim, h.q_stride, (void *)h.q, h.kv, (const void *)h.cos,
                (const void *)h.sin, (const void *)h.pos, (const void *)h.cell);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status check_output(const gr_cuda_linear_args &a)
{
    const bool silu = a.out == GR_CUDA_OUT_SILU;
    if (a.out == GR_CUDA_OUT_HEADS) {
        return check_heads(a);
    }
    if (silu && (a.n_out % 128 != 0 || a.bias != nullptr)) {
        fprintf(stderr, "cuda: linear layer with SiLU: %d outputs%s; they must be a multiple of 128, without a bias\n",
                a.n_out, a.bias ? " and a bias" : "");
        return GR_EUNSUPPORTED;
    }
    if (!silu && (a.y_stride < a.n_out || a.y_stride % 2 != 0)) {
        fprintf(stderr, "cuda: linear layer: y_stride %d must be even and at least n_out, %d\n", a.y_stride, a.n_out);
        return GR_EINVAL;
    }
    return GR_OK;
}

static bool pack_fits(const gr_cuda_linear_pack_args &a)
{
    if ((a.plain_stride != 0 && (a.plain_stride < a.n_in || a.plain_stride % 8 != 0)) || a.row0 < 0 || a.first < 0 ||
        a.n_row < 1 || a.step < 1 || a.row0 >= a.n_out || (a.head_dim != 0 && a.head_dim != 64 && a.head_dim != 128)) {
        return false;
    }
    const int64_t end = (int64_t)a.first + a.n_row, per = a.head_dim > 0 ? a.head_dim : 1;
    return ((end + per - 1) / per * per - 1) * a.step + a.row0 < a.n_out;
}

static bool segments_fit(const gr_cuda_linear_args &a)
{
    const gr_segments &s = a.segments;
    int at = 0, waiting = 0;
    bool ok = s.n >= 0 && s.n <= GR_SEGMENT_MAX && (s.n == 0 || a.out == GR_CUDA_OUT_ADD || a.out == GR_CUDA_OUT_PART);
    for (int i = 0; ok && i < s.n; i++) {
        ok = s.end[i] > at && s.end[i] % 64 == 0 && waiting <= GR_SEGMENT_PENDING && s.n_join[i] >= 0 &&
             s.n_join[i] <= waiting;
        at = s.end[i], waiting += 1 - s.n_join[i];
    }
    return ok && (s.n == 0 || (at == a.n_in && waiting == 1));
}

static enum gr_status check_segments(const gr_cuda_linear_args &a)
{
    if (!segments_fit(a)) {
        fprintf(stderr,
                "cuda: linear layer of %d inputs: %d segments that do not fit: they end at multiples of 64, the last at"
                " the inputs' end, are joined to one sum, and only layers that add to y or leave parts have them\n",
                a.n_in, a.segments.n);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status check_norms(const gr_cuda_linear_args &a)
{
    const gr_cuda_linear_next &n = a.next;
    const bool norm = aligned(a.norm.square, 128) && aligned(n.square, 128) && aligned(a.clear, 128);
    const bool capture = n.capture == nullptr || (n.capture_n % 64 == 0 && n.capture_col % 8 == 0 &&
                                                  n.capture_col >= 0 && n.capture_col + a.n_out <= n.capture_n);
    const bool next = n.tiles == nullptr || (a.out == GR_CUDA_OUT_ADD && !a.bias && a.n_out % 64 == 0 && n.w &&
                                             n.square && capture && a.y_stride % 4 == 0 && aligned(a.y, 16) &&
                                             aligned(n.w, 16) && aligned(n.tiles, 16) && aligned(n.capture, 16));
    if (!norm || !next) {
        fprintf(
            stderr,
            "cuda: linear layer of %d outputs: squares before it at %p, after it at %p, cleared at %p (aligned to "
            "128), y %p, w %p, tiles %p, capture %p (to 16) in columns from %d of %d: a norm after it needs outputs "
            "that are a multiple of 64 and added without a bias, and a stride of y that is one of 4\n",
            a.n_out, (const void *)a.norm.square, (void *)n.square, (void *)a.clear, a.y, (const void *)n.w,
            (void *)n.tiles, (void *)n.capture, n.capture_col, n.capture_n);
        return GR_EINVAL;
    }
    return GR_OK;
}

} // namespace gr

struct gr_cuda_cut gr_cuda_linear_cut(int n_out, int n_in)
{
    const gr::LinearCut c = gr::cut_of(n_out, n_in, {0, 0});
    return {c.width, c.parts};
}

struct gr_cuda_cut gr_cuda_linear_cut_in(int n_out, int n_in, int parts)
{
    const gr::LinearCut c = gr::can_cut(n_out, n_in) ? gr::linear_cut_in(n_out, n_in, parts) : gr::LinearCut{};
    return {c.width, c.parts};
}

size_t gr_cuda_linear_bytes(int n_out, int n_in, struct gr_cuda_cut cut)
{
    return gr::cut_of(n_out, n_in, cut).bytes();
}

enum gr_status gr_cuda_linear_pack(const struct gr_cuda_linear_pack_args *a, struct CUstream_st *stream)
{
    GR_TRY(gr::check_shape(a->n_out, a->n_in, a->cut));
    if (!a->plain || !a->packed || !gr::pack_fits(*a) || !gr::aligned(a->plain, 16) || !gr::aligned(a->packed, 256)) {
        fprintf(
            stderr,
            "cuda: packing: rows %d + i * %d, %d from %d on, in heads of %d, of a matrix of %d; plain at %p (aligned"
            " to 16), packed at %p (to 256)\n",
            a->row0, a->step, a->n_row, a->first, a->head_dim, a->n_out, (const void *)a->plain, a->packed);
        return GR_EINVAL;
    }
    const size_t total = (size_t)a->n_row * (size_t)(a->n_in / 8);
    const size_t n_block = std::min<size_t>((total + gr::N_PACK_THREAD - 1) / gr::N_PACK_THREAD, 4096);
    GR_TRY(cuda_status_of(gr::launch_after(gr::linear_pack_kernel, dim3((unsigned)n_block), gr::N_PACK_THREAD, 0,
                                           stream, *a, gr::cut_of(a->n_out, a->n_in, a->cut).width),
                          "packing of a matrix"));
    return cuda_status_of(gr::launch_after(gr::packed_kernel, dim3(1), 1, 0, stream), "packing of a matrix");
}

namespace gr
{

static enum gr_status check_args(const gr_cuda_linear_args *a)
{
    GR_TRY(check_shape(a->n_out, a->n_in, a->cut));
    GR_TRY(check_output(*a));
    GR_TRY(check_norms(*a));
    GR_TRY(check_segments(*a));
    if (!a->w || !a->x || (!a->y && a->out != GR_CUDA_OUT_HEADS) || !a->n_row_true || a->n_row < 1 ||
        !aligned(a->w, 256) || !aligned(a->x, 16) || !aligned(a->y, 8) || !aligned(a->bias, 8)) {
        fprintf(stderr,
                "cuda: linear layer of %d rows: w at %p (aligned to 256), x at %p (to 16), y at %p, bias at %p (to 8),"
                " n_row_true at %p\n",
                a->n_row, a->w, (const void *)a->x, a->y, (const void *)a->bias, (const void *)a->n_row_true);
        return GR_EINVAL;
    }
    return GR_OK;
}

static void cuts_of(const gr_cuda_linear_args *a, int n, LinearCut (&cut)[GR_CUDA_CHAIN_MAX])
{
    for (int i = 0; i < n && i < GR_CUDA_CHAIN_MAX; i++) {
        cut[i] = cut_of(a[i].n_out, a[i].n_in, a[i].cut);
    }
}

} // namespace gr

enum gr_status gr_cuda_linear(const struct gr_cuda_linear_args *a, struct CUstream_st *stream)
{
    GR_TRY(gr::check_args(a));
    return cuda_status_of(gr::launch_linear(*a, gr::cut_of(a->n_out, a->n_in, a->cut), stream), "linear layer");
}

bool gr_cuda_can_chain(const struct gr_cuda_linear_args *a, int n)
{
    gr::LinearCut cut[GR_CUDA_CHAIN_MAX]{};
    gr::cuts_of(a, n, cut);
    return n <= GR_CUDA_CHAIN_MAX && gr::can_chain(a, cut, n);
}

enum gr_status gr_cuda_linear_chain(const struct gr_cuda_linear_args *a, int n, struct gr_cuda_chain *chain,
                                    struct CUstream_st *stream)
{
    for (int i = 0; i < n; i++) {
        GR_TRY(gr::check_args(&a[i]));
    }
    if (!gr_cuda_can_chain(a, n) || !gr::aligned(chain, 16) || chain == nullptr) {
        fprintf(stderr,
                "cuda: a chain of %d linear layers of %d rows (at most %d of 64), counters at %p (aligned to 16)\n", n,
                a->n_row, (int)GR_CUDA_CHAIN_MAX, (void *)chain);
        return GR_EUNSUPPORTED;
    }
    gr::LinearCut cut[GR_CUDA_CHAIN_MAX]{};
    gr::cuts_of(a, n, cut);
    return cuda_status_of(gr::launch_chain(a, cut, n, chain, stream), "chain of linear layers");
}
