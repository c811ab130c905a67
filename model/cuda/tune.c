#include "model/cuda/tune.h"

#include "common/base/log.h"
#include "kernels/cuda/attention/attention.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static enum gr_status check_gpu(const struct gr_tuned *t, const struct gr_cuda_device *d)
{
    if (strcmp(t->gpu, d->name) == 0) {
        return GR_OK;
    }
    if (t->required) {
        log_error("--require-tuned: %s was measured on %s, cuda:%d is %s; measure here: graft-bench tune gemm, then "
                  "attention, --output ANOTHER-FILE",
                  t->file, t->gpu, d->index, d->name);
        return GR_EMISMATCH;
    }
    log_warn("%s was measured on %s, cuda:%d is %s: other shapes may be faster here", t->file, t->gpu, d->index,
             d->name);
    return GR_OK;
}

/* shape: "linear 4096 x 4096"; what: gemm or attention. */
static enum gr_status missing(const char *shape, const char *what, const struct gr_tuned *t,
                              const struct gr_cuda_device *d, const struct gr_cuda_tune_model *m)
{
    log_error("--require-tuned: %s has no %s; measure it: graft-bench tune %s --model %s%s%s%s%s --device cuda:%d "
              "--output %s",
              t->file, shape, what, m->model, m->draft != NULL ? " --draft " : "", m->draft != NULL ? m->draft : "",
              m->geometry != NULL ? " --geometry " : "", m->geometry != NULL ? m->geometry->name : "", d->index,
              t->file);
    return GR_ENOTFOUND;
}

static enum gr_status tune_linear(struct gr_model_shapes *s, int i, const struct gr_tuned *t,
                                  const struct gr_cuda_device *d, const struct gr_cuda_tune_model *m)
{
    struct gr_linear_shape *l = &s->linear[i];
    const struct gr_tuned_linear *found = t != NULL ? gr_tuned_find_linear(t, l->n_out, l->n_in) : NULL;
    char shape[64];
    snprintf(shape, sizeof(shape), "linear %d x %d", l->n_out, l->n_in);
    if (found == NULL && t != NULL && t->required) {
        return missing(shape, "gemm", t, d, m);
    }
    s->tuned = s->tuned || found != NULL;
    l->cut = found != NULL ? found->cut : gr_cuda_linear_cut(l->n_out, l->n_in);
    if (l->cut.width == 0) {
        log_error("%s: %s is not built: outputs must be a multiple of 16, inputs of 64; take cpu", m->model, shape);
        return GR_EUNSUPPORTED;
    }
    log_info("shape: %s: width %d, parts %d (%s)", shape, l->cut.width, l->cut.parts,
             found != NULL ? "tuned" : "formula");
    return GR_OK;
}

static enum gr_status tune_attention(struct gr_model_shapes *s, const struct gr_tuned *t,
                                     const struct gr_cuda_device *d, const struct gr_cuda_tune_model *m)
{
    const struct gr_tuned_attention *found =
        t != NULL ? gr_tuned_find_attention(t, s->n_head, s->n_kv_head, s->head_dim) : NULL;
    char shape[64];
    snprintf(shape, sizeof(shape), "attention %d/%d x %d", s->n_head, s->n_kv_head, s->head_dim);
    if (found == NULL && t != NULL && t->required) {
        return missing(shape, "attention", t, d, m);
    }
    s->tuned = s->tuned || found != NULL;
    s->n_split_max = found != NULL ? found->n_split_max : GR_CUDA_SPLIT_MAX;
    log_info("shape: %s: %d split%s (%s)", shape, s->n_split_max, s->n_split_max > 1 ? "s" : "",
             found != NULL ? "tuned" : "default");
    return GR_OK;
}

enum gr_status gr_cuda_tune(struct gr_model_shapes *s, const struct gr_tuned *tuned, const struct gr_cuda_device *d,
                            const struct gr_cuda_tune_model *model)
{
    if (tuned != NULL) {
        GR_TRY(check_gpu(tuned, d));
    }
    for (int i = 0; i < s->n_linear; i++) {
        GR_TRY(tune_linear(s, i, tuned, d, model));
    }
    return tune_attention(s, tuned, d, model);
}

/* sums2: norms and rotary embedding are made from a linear layer's f32 sums. */
void gr_cuda_numerics_id(const struct gr_model_shapes *s, char *text, size_t cap)
{
    char applied[24] = "";
    if (s->tuned) {
        snprintf(applied, sizeof(applied), "/tuned-%08" PRIx32, gr_shapes_hash(s));
    }
    snprintf(text, cap, "cuda/" GR_CUDA_ARCH "/sums2/seg8/stale8/tile64/near64/split%d/kv-bf16%s", s->n_split_max,
             applied);
}
