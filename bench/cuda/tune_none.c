/* In builds without CUDA. */
#include "bench/tune_gpu.h"

#include "common/base/device.h"

enum gr_status gr_tune_gpu_open(int device, struct gr_tune_gpu **out)
{
    (void)out;
    return gr_device_check(device); /* says that models on GPUs are not built */
}

void gr_tune_gpu_close(struct gr_tune_gpu *g)
{
    (void)g;
}

const char *gr_tune_gpu_name(const struct gr_tune_gpu *g)
{
    (void)g;
    return "";
}

struct gr_cuda_cut gr_tune_gpu_formula(int n_out, int n_in)
{
    (void)n_out;
    (void)n_in;
    return (struct gr_cuda_cut){0};
}

enum gr_status gr_tune_gpu_linear(struct gr_tune_gpu *g, const struct gr_tune_linear *l, int n_rep, double *us_out)
{
    (void)g;
    (void)l;
    (void)n_rep;
    (void)us_out;
    return GR_EUNSUPPORTED;
}

enum gr_status gr_tune_gpu_attention(struct gr_tune_gpu *g, const struct gr_tune_attention *a, int n_rep,
                                     double *us_out)
{
    (void)g;
    (void)a;
    (void)n_rep;
    (void)us_out;
    return GR_EUNSUPPORTED;
}
