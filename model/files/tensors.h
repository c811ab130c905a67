/* The tensors of a model's files, whatever the files' format: named, mapped, never copied. safetensors.h and
 * gguf_model.h open them. Owned by the model that opened them; tensors and names are borrowed and live until close.
 * Marking tensors as used is not locked: one thread loads. Reading afterwards: any thread. */
#ifndef GR_MODEL_FILES_TENSORS_H
#define GR_MODEL_FILES_TENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "model/files/format.h"

#define GR_TENSOR_N_DIM_MAX 8
#define GR_TENSORS_N_FILE_MAX 1024
#define GR_TENSORS_MAX (1u << 20) /* all files together */
#define GR_TENSOR_NAME_LEN_MAX 512

struct gr_tensor {
    const char *name;
    enum gr_format dtype;
    int n_dim; /* 0: a scalar */
    int64_t shape[GR_TENSOR_N_DIM_MAX];
    const void *data; /* row-major, little-endian; of a plain format aligned to its elements */
    size_t bytes;
    /* > 0: rows of so many heads, of which each pair that turns together lies in neighbouring rows (GGUF's llama).
     * gr_tensor_row() gives them as everybody else has them, the two halves of a head apart. */
    int n_head_paired;
};

struct gr_tensors;

void gr_tensors_close(struct gr_tensors *ts); /* NULL is legal */

/* NULL when there is none (no error, nothing logged). Marks the tensor as used. */
const struct gr_tensor *gr_tensors_find(const struct gr_tensors *ts, const char *name);

/* The tensor must be there with just this dtype and shape, and if it has one dimension (norms, biases) all its floats
 * must be finite; else an error that names it and its file. */
GR_NODISCARD enum gr_status gr_tensors_take(const struct gr_tensors *ts, const char *name, enum gr_format dtype,
                                            int n_dim, const int64_t *shape, const void **data_out);
/* The same of weights, in any of their formats. */
GR_NODISCARD enum gr_status gr_tensors_take_weight(const struct gr_tensors *ts, const char *name, int n_dim,
                                                   const int64_t *shape, const struct gr_tensor **out);

/* Every tensor must have been found or taken. Buffers that are no weights (".rotary_emb.inv_freq" and the like) may
 * stay unused: one debug line tells of them. */
GR_NODISCARD enum gr_status gr_tensors_check_all_used(const struct gr_tensors *ts);

/* All tensors sorted by name, whatever the sharding. Does not mark. */
size_t gr_tensors_count(const struct gr_tensors *ts);
const struct gr_tensor *gr_tensors_at(const struct gr_tensors *ts, size_t i);

/* Name of the file that holds tensor i, or the tensor that gr_tensors_find() gave: borrowed. */
const char *gr_tensors_file(const struct gr_tensors *ts, size_t i);
const char *gr_tensors_file_of(const struct gr_tensors *ts, const struct gr_tensor *t);
/* A buffer that means nothing: gr_tensors_check_all_used(). */
bool gr_tensor_is_buffer(const char *name);

/* ---- values of weights ---- */

static inline int64_t gr_tensor_n_col(const struct gr_tensor *t)
{
    return t->n_dim > 0 ? t->shape[t->n_dim - 1] : 1;
}
/* Where row `row` of a matrix begins (a vector is one row), n_head_paired seen to. */
const void *gr_tensor_row(const struct gr_tensor *t, int64_t row);
/* Its values: out (n_col). */
void gr_tensor_row_f32(const struct gr_tensor *t, int64_t row, float *out);

#endif
