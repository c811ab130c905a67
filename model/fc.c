#include "model/fc.h"

#include "common/base/log.h"
#include "model/files/fingerprint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const stream_norms[GR_CAPTURE_MAX] = {"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight",
                                                         "fc_norm.3.weight"};

static enum gr_status load_norms(const struct gr_loader *l, const struct gr_hf_config *head, struct gr_fc *f)
{
    if (head->norm_before_fc) {
        GR_TRY(gr_load_vector(l, "input_norm.weight", f->n_capture * f->capture_width, &f->input_norm));
    }
    for (int i = 0; head->fc_norm && i < f->n_capture; i++) {
        GR_TRY(gr_load_vector(l, stream_norms[i], f->capture_width, &f->stream_norm[i]));
    }
    return GR_OK;
}

enum gr_status gr_fc_load(const struct gr_loader *l, const struct gr_hf_config *head, int n_capture, int target_hidden,
                          int n_row_max, struct gr_fc *out)
{
    struct gr_fc f = {.kernels = l->kernels,
                      .n_capture = n_capture,
                      .capture_width = target_hidden,
                      .fused_width = head->hidden,
                      .rms_eps = head->rms_eps};
    const int n_in = n_capture * target_hidden;
    GR_TRY(gr_load_matrix(l, "fc.weight", head->hidden, n_in, &f.fc.w));
    if (gr_tensors_find(l->files, "fc.bias") != NULL) { /* no flag of the config speaks of it */
        float *bias = NULL;
        GR_TRY(gr_load_vector(l, "fc.bias", head->hidden, &bias));
        f.fc.bias = bias;
    }
    GR_TRY(load_norms(l, head, &f));
    if (l->needs != NULL) {
        l->needs->other_bytes += (size_t)n_row_max * (size_t)n_in * sizeof(float);
        return GR_OK;
    }
    f.in = gr_memory_take_f32(l->memory, (size_t)n_row_max * (size_t)n_in);
    if (f.in == NULL) {
        return GR_ENOMEM;
    }
    *out = f;
    return GR_OK;
}

uint64_t gr_fc_fingerprint(const struct gr_tensors *files, enum gr_weights_as as)
{
    const char *names[3 + GR_CAPTURE_MAX] = {"fc.weight", "fc.bias", "input_norm.weight"};
    memcpy(names + 3, stream_norms, sizeof(stream_norms));
    return gr_tensors_fingerprint(files, names, GR_ARRAY_LEN(names), as == GR_WEIGHTS_BF16, as != GR_WEIGHTS_F32);
}

static void norm_rows(const struct gr_exec *x, const struct gr_fc *f, float *rows, const float *weight, int n_row,
                      int width)
{
    const int stride = f->n_capture * f->capture_width;
    f->kernels->rmsnorm(x, &(struct gr_rmsnorm_args){.x = rows,
                                                     .w = weight,
                                                     .y = rows,
                                                     .n_row = n_row,
                                                     .n = width,
                                                     .x_stride = stride,
                                                     .y_stride = stride,
                                                     .eps = f->rms_eps});
}

void gr_fc_fuse(const struct gr_exec *x, const struct gr_fc *f, int n, const float *const *capture, float *out)
{
    const size_t width = (size_t)(f->n_capture * f->capture_width);
    int begin, end;
    gr_unit_range(n, x->ith, x->nth, &begin, &end);
    for (int i = begin; i < end; i++) {
        memcpy(f->in + (size_t)i * width, capture[i], width * sizeof(float));
    }
    /* The norms split the rows as the copy does. */
    if (f->input_norm != NULL) {
        norm_rows(x, f, f->in, f->input_norm, n, (int)width);
    }
    for (int c = 0; c < f->n_capture && f->stream_norm[c] != NULL; c++) {
        norm_rows(x, f, f->in + (size_t)c * (size_t)f->capture_width, f->stream_norm[c], n, f->capture_width);
    }
    gr_exec_barrier(x);
    f->kernels->linear(x, &(struct gr_linear_args){.w = &f->fc.w,
                                                   .x = f->in,
                                                   .bias = f->fc.bias,
                                                   .y = out,
                                                   .n_row = n,
                                                   .x_stride = (int)width,
                                                   .y_stride = f->fused_width});
}
