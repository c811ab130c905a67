/* Tree attention: the plan of a pass, and the doors of attention.h. */
#include "kernels/cuda/attention/attention_make_plan.cuh"
#include "kernels/cuda/device/cuda_status.cuh"
#include "kernels/cuda/device/device.cuh"

#include <cstdio>

namespace gr
{

template <bool WINDOW> static __global__ void __launch_bounds__(N_PLAN_THREAD) plan_kernel(const PlanArgs a)
{
    GR_SHARED(PlanShared, sh);
    wait_for_previous();
    make_plan<WINDOW>(a, sh);
}

enum gr_status check_shape(const gr_cuda_attn_shape *s)
{
    if ((s->head_dim != 64 && s->head_dim != 128) || s->n_kv_head < 1 || s->n_kv_head > 256 ||
        s->n_head % s->n_kv_head != 0 || s->n_head / s->n_kv_head < 1 || s->n_head / s->n_kv_head > GR_CUDA_GROUP_MAX ||
        s->n_slot_max < 0 || s->n_slot_max > GR_CUDA_SLOT_MAX || s->n_row_max < 1 || s->n_row_max > 1 << 15 ||
        s->n_seq_max < 1 || s->n_seq_max > gr::N_PLAN_THREAD || s->n_split_max < 1 ||
        s->n_split_max > GR_CUDA_SPLIT_MAX) {
        fprintf(stderr,
                "cuda: attention of %d query heads, %d KV heads of %d (%d rows, %d sequences, %d slots, %d splits) is"
                " not built: head_dim 64 or 128, at most %d query heads a KV head, %d slots, 1 to %d splits\n",
                s->n_head, s->n_kv_head, s->head_dim, s->n_row_max, s->n_seq_max, s->n_slot_max, s->n_split_max,
                (int)GR_CUDA_GROUP_MAX, (int)GR_CUDA_SLOT_MAX, (int)GR_CUDA_SPLIT_MAX);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

} // namespace gr

size_t gr_cuda_attn_plan_bytes(const struct gr_cuda_attn_shape *s)
{
    return (size_t)(gr::parts_of(*s, nullptr).end - (uint8_t *)nullptr);
}

size_t gr_cuda_attn_work_bytes(const struct gr_cuda_attn_shape *s)
{
    return (size_t)GR_CUDA_SPLIT_MAX * s->n_row_max * s->n_head * (s->head_dim + 2) * sizeof(float);
}

enum gr_status gr_cuda_attn_plan(const struct gr_cuda_attn_plan_args *a, struct CUstream_st *stream)
{
    GR_TRY(gr::check_shape(&a->shape));
    const auto kernel = a->window > 0 ? gr::plan_kernel<true> : gr::plan_kernel<false>;
    return cuda_status_of(gr::launch_early(kernel, dim3(1), gr::N_PLAN_THREAD, 0, stream, gr::plan_args(*a)),
                          "plan of attention");
}

enum gr_status gr_cuda_attention(const struct gr_cuda_attention_args *a, struct CUstream_st *stream)
{
    GR_TRY(gr::check_shape(&a->shape));
    if (a->n_row < 1 || a->n_row > a->shape.n_row_max || a->n_seq < 1 || a->n_seq > a->shape.n_seq_max ||
        a->q_stride % 8 != 0 || (int64_t)a->shape.n_row_max * a->q_stride > INT32_MAX) {
        fprintf(stderr, "cuda: attention: %d rows of %d sequences, room for %d and %d; stride %d\n", a->n_row, a->n_seq,
                a->shape.n_row_max, a->shape.n_seq_max, a->q_stride);
        return GR_EINVAL;
    }
    GR_TRY(cuda_status_of(gr::launch_far(*a, stream), "attention, far keys"));
    return cuda_status_of(gr::launch_near(*a, stream), "attention, near keys");
}
