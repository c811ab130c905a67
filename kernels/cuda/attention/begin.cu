/* A block makes the plan, another one that of layers with a window, each of the others a row: what a token is looked up
 * as, or a feature. */
#include "kernels/cuda/attention/begin.h"

#include "kernels/cuda/attention/attention_make_plan.cuh"
#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/rows/norm_row.cuh"

#include <cstdio>

namespace gr
{

struct BeginArgs {
    PlanArgs plan;
    gr_cuda_begin_args rows;
    PlanArgs window_plan;
};

template <int N> static __device__ __forceinline__ void keep_row(float *x, const NormRow<N> &r, int n)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        if (r.col(j) < n) {
            store_eight(x + r.col(j), r.x[j]);
        }
    }
}

template <int N> static __device__ __forceinline__ void make_feature(const gr_cuda_begin_args &b, int row, float *sums)
{
    const gr_cuda_norm_args &a = b.feature;
    NormRow<N> r;
    r.load_weights(a);
    wait_for_previous();
    let_next_start();
    const int n_row = *a.n_row_true, from = a.row != nullptr ? a.row[row] : row;
    const int state = b.states != nullptr ? b.from_state[row] : -1;
    const uint16_t *const half = b.half != nullptr ? b.half[row] : nullptr;
    if (row >= n_row) {
        return;
    }
    if (state < 0 && half != nullptr) {
        r.load(a, half);
    } else {
        r.load(a, state >= 0 ? b.states + (size_t)state * a.n : a.x + (size_t)from * a.x_stride);
    }
    if (state >= 0 || half != nullptr) {
        keep_row<N>(b.feature_x + (size_t)row * a.n, r, a.n);
    }
    r.store(a, row, sums);
}

template <int N> static __device__ __forceinline__ void make_token(const gr_cuda_begin_args &a, int row, float *sums)
{
    NormRow<N> r;
    r.load_weights(a.token);
    wait_for_previous();
    let_next_start();
    const int n_row = *a.token.n_row_true, id = a.id[row];
    if (row >= n_row) {
        return;
    }
    r.load(a.token, a.table + (size_t)id * a.token.n);
    if (a.x != nullptr) {
        keep_row<N>(a.x + (size_t)row * a.token.n, r, a.token.n);
    }
    r.store(a.token, row, sums);
}

/* The kernel after this one may start when the plan is made: the rows' blocks let it, the plan's ends. */
template <int N, bool WINDOW> static __global__ void __launch_bounds__(N_PLAN_THREAD) begin_kernel(const BeginArgs a)
{
    GR_SHARED(PlanShared, sh);
    GR_SHARED(RowSums, sums);
    const int row = (int)blockIdx.x - (WINDOW ? 2 : 1), n_token = a.rows.token.n_row;
    if (WINDOW && row == -2) {
        wait_for_previous();
        make_plan<true>(a.window_plan, sh);
    } else if (row < 0) {
        wait_for_previous();
        make_plan<false>(a.plan, sh);
    } else if (threadIdx.x < ROW_THREADS && row < n_token) {
        make_token<N>(a.rows, row, sums);
    } else if (threadIdx.x < ROW_THREADS) {
        make_feature<N>(a.rows, row - n_token, sums);
    }
}

template <bool WINDOW> static cudaError_t launch_begin(const gr_cuda_begin_args &a, cudaStream_t stream)
{
    void (*const kernels[])(BeginArgs) = {begin_kernel<1, WINDOW>, begin_kernel<2, WINDOW>, begin_kernel<3, WINDOW>,
                                          begin_kernel<4, WINDOW>};
    const int n_held = (a.token.n + ROW_THREADS * 8 - 1) / (ROW_THREADS * 8);
    const dim3 grid((unsigned)((WINDOW ? 2 : 1) + a.token.n_row + a.feature.n_row));
    return launch_early(kernels[n_held - 1], grid, N_PLAN_THREAD, 0, stream,
                        BeginArgs{plan_args(a.plan), a, WINDOW ? plan_args(a.window_plan) : PlanArgs{}});
}

static bool rows_are_supported(const gr_cuda_begin_args &a)
{
    gr_cuda_norm_args token = a.token;
    token.x = a.x, token.x_stride = token.n;
    return norm_is_supported(token) && aligned(a.table) &&
           (a.feature.n_row == 0 || (a.feature.n == a.token.n && norm_is_supported(a.feature))) &&
           (a.states == nullptr || aligned(a.states)) &&
           ((a.states == nullptr && a.half == nullptr) ||
            (a.feature_x == a.feature.x && a.feature.row == nullptr && a.feature.x_stride == a.feature.n));
}

} // namespace gr

enum gr_status gr_cuda_begin(const struct gr_cuda_begin_args *a, struct CUstream_st *stream)
{
    GR_TRY(gr::check_shape(&a->plan.shape));
    if (!gr::rows_are_supported(*a)) {
        fprintf(stderr,
                "cuda: begin of a pass: %d rows of %d (a multiple of 64, at most %d) and %d of %d features, to columns "
                "%d of %d and %d of %d (multiples of 8 and 64), or an address is not aligned to 16 bytes\n",
                a->token.n_row, a->token.n, gr::NORM_N_MAX, a->feature.n_row, a->feature.n, a->token.y_col,
                a->token.y_n, a->feature.y_col, a->feature.y_n);
        return GR_EUNSUPPORTED;
    }
    const bool window = a->window_plan.window > 0;
    return cuda_status_of(window ? gr::launch_begin<true>(*a, stream) : gr::launch_begin<false>(*a, stream),
                          "begin of a pass");
}
