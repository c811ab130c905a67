/* A file of shapes that were measured on a GPU (graft-bench tune): how each matrix is cut (kernels/cuda/linear/cut.h)
 * and into how many splits attention works through its far keys. Read once, before models are created, and not changed
 * after: a matrix is used in the cut in which it was packed, and bits depend on both, so a model keeps what it began
 * with. What is not in the file is as without one. Plain memory of the caller's, needed until the models are created.
 * Decision D-028. */
#ifndef GR_MODEL_FILES_TUNED_H
#define GR_MODEL_FILES_TUNED_H

#include "common/base/status.h"
#include "kernels/cuda/linear/cut.h"

#include <stdbool.h>

#define GR_TUNED_FORMAT 1                    /* of the file; another number is refused */
#define GR_TUNED_BYTES_MAX ((size_t)1 << 20) /* bytes of the file, at most */
#define GR_TUNED_LINEAR_MAX 256              /* linear layers that it tells of, at most */
#define GR_TUNED_ATTENTION_MAX 64            /* attentions that it tells of, at most */

struct gr_tuned_linear {
    int n_out, n_in;
    struct gr_cuda_cut cut;
};

struct gr_tuned_attention {
    int n_head, n_kv_head, head_dim;
    int n_split_max;
};

struct gr_tuned {
    const char *file; /* borrowed, for messages; NULL: no file, nothing is measured */
    bool required;    /* a shape that is not in the file is an error, as is another GPU */
    char gpu[64];     /* where it was measured */
    struct gr_tuned_linear linear[GR_TUNED_LINEAR_MAX];
    int n_linear;
    struct gr_tuned_attention attention[GR_TUNED_ATTENTION_MAX];
    int n_attention;
};

/* Errors are one line that names the file and the place. */
GR_NODISCARD enum gr_status gr_tuned_load(const char *file, struct gr_tuned *out);

/* What --tuned FILE and --require-tuned come to; file NULL: not given. on_gpu: there is a model that a file is for;
 * else GR_EINVAL, as for --require-tuned without a file. */
GR_NODISCARD enum gr_status gr_tuned_open(const char *file, bool required, bool on_gpu, struct gr_tuned *out);

/* NULL: not there. */
const struct gr_tuned_linear *gr_tuned_find_linear(const struct gr_tuned *t, int n_out, int n_in);
const struct gr_tuned_attention *gr_tuned_find_attention(const struct gr_tuned *t, int n_head, int n_kv_head,
                                                         int head_dim);

#endif
