/* The first step of an EAGLE-3 head, run on the target: fc over the captured residual streams of a row gives the fused
 * feature that the head works on (and a third of the bytes to ship).
 *   g = fc(concat(h_1 .. h_n)) (+ bias)
 *   norm_before_fc: one RMSNorm over the concatenation first (input_norm.weight)
 *   fc_norm: one RMSNorm per captured stream first (fc_norm.{i}.weight) */
#ifndef GR_MODEL_FC_H
#define GR_MODEL_FC_H

#include "model/files/capture.h"
#include "model/layer.h"

struct gr_fc {
    const struct gr_kernels *kernels;
    int n_capture, capture_width, fused_width;
    struct gr_linear fc;                /* (fused_width, n_capture * capture_width) */
    float *input_norm;                  /* (n_capture * capture_width) or NULL */
    float *stream_norm[GR_CAPTURE_MAX]; /* (capture_width) each, or NULL */
    float rms_eps;
    float *in; /* (n_row_max, n_capture * capture_width) */
};

/* l->files: the head's. */
GR_NODISCARD enum gr_status gr_fc_load(const struct gr_loader *l, const struct gr_hf_config *head, int n_capture,
                                       int target_hidden, int n_row_max, struct gr_fc *out);
/* Of the tensors that fusing uses: equal on both workers. */
uint64_t gr_fc_fingerprint(const struct gr_tensors *files, enum gr_weights_as as);

/* Part of a team's run. capture[i]: n_capture * capture_width floats; out: (n, fused_width), n at most n_row_max. */
void gr_fc_fuse(const struct gr_exec *x, const struct gr_fc *fc, int n, const float *const *capture, float *out);

#endif
