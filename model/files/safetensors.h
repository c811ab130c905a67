/* Read-only view of the weights of a Hugging Face model folder: model.safetensors, or the shards
 * that model.safetensors.index.json names. Files are mapped, never copied; every header field is
 * checked before use. Owned by the model that opened it; tensors and names are borrowed and live
 * until close. Marking tensors as used is not locked: one thread loads. Reading afterwards: any
 * thread. */
#ifndef GR_MODEL_FILES_SAFETENSORS_H
#define GR_MODEL_FILES_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define GR_ST_N_DIM_MAX 8                         /* dimensions of a tensor, at most */
#define GR_ST_HEADER_BYTES (100u * 1000u * 1000u) /* the format's own limit */
#define GR_ST_INDEX_BYTES (64u << 20)
#define GR_ST_N_SHARD_MAX 1024        /* files of a model, at most */
#define GR_ST_N_TENSOR_MAX (1u << 20) /* all shards together */
#define GR_ST_NAME_LEN_MAX 512

/*  name as in the file, bytes per element */
#define GR_ST_DTYPE_LIST(X) \
    X(BOOL, 1)              \
    X(U8, 1)                \
    X(I8, 1)                \
    X(F8_E4M3, 1)           \
    X(F8_E5M2, 1)           \
    X(I16, 2)               \
    X(U16, 2)               \
    X(F16, 2)               \
    X(BF16, 2)              \
    X(I32, 4)               \
    X(U32, 4)               \
    X(F32, 4)               \
    X(I64, 8)               \
    X(U64, 8)               \
    X(F64, 8)

enum gr_st_dtype {
#define X(name, bytes) GR_ST_##name,
    GR_ST_DTYPE_LIST(X)
#undef X
        GR_ST_N_DTYPE
};

const char *gr_st_dtype_name(enum gr_st_dtype dtype); /* static text */
size_t gr_st_dtype_bytes(enum gr_st_dtype dtype);

struct gr_tensor {
    const char *name;
    enum gr_st_dtype dtype;
    int n_dim; /* 0: a scalar */
    int64_t shape[GR_ST_N_DIM_MAX];
    const void *data; /* aligned to the element size, row-major, little-endian */
    size_t bytes;
};

struct gr_safetensors;

/* dir: model folder. A single model.safetensors wins over an index. */
GR_NODISCARD enum gr_status gr_safetensors_open(const char *dir, struct gr_safetensors **out);

/* One file from memory; data is borrowed until close, name stands for the file in messages. */
GR_NODISCARD enum gr_status gr_safetensors_parse(const char *name, const void *data, size_t len,
                                                 struct gr_safetensors **out);

void gr_safetensors_close(struct gr_safetensors *st); /* NULL is legal */

/* NULL when there is none (no error, nothing logged). Marks the tensor as used. */
const struct gr_tensor *gr_safetensors_find(const struct gr_safetensors *st, const char *name);

/* The tensor must be there with just this dtype and shape, and if it has one dimension (norms,
 * biases) all its floats must be finite; else an error that names it and its file. */
GR_NODISCARD enum gr_status gr_safetensors_take(const struct gr_safetensors *st, const char *name,
                                                enum gr_st_dtype dtype, int n_dim, const int64_t *shape,
                                                const void **data_out);

/* Every tensor must have been found or taken. Buffers that are no weights (".rotary_emb.inv_freq"
 * and the like) may stay unused. */
GR_NODISCARD enum gr_status gr_safetensors_check_all_used(const struct gr_safetensors *st);

/* All tensors sorted by name, whatever the sharding. Does not mark. */
size_t gr_safetensors_count(const struct gr_safetensors *st);
const struct gr_tensor *gr_safetensors_at(const struct gr_safetensors *st, size_t i);

/* Name of the file that holds tensor i: borrowed. */
const char *gr_safetensors_file(const struct gr_safetensors *st, size_t i);

#endif
