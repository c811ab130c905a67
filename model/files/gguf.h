/* One GGUF file (version 2 or 3, little-endian) from memory: its metadata and where its tensors lie. Pure: nothing is
 * read but the bytes given, every count is held against the bytes that are left before anything is taken for it, and
 * every tensor lies inside the file. Immutable after parse: any thread may read. The format is described by the page
 * "gguf" of ggml. */
#ifndef GR_MODEL_FILES_GGUF_H
#define GR_MODEL_FILES_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "model/files/tensors.h"

#define GR_GGUF_N_FIELD_MAX (1u << 16)
#define GR_GGUF_KEY_LEN_MAX 1024
#define GR_GGUF_N_DIM_MAX 4
#define GR_GGUF_ALIGNMENT_MAX (1u << 20)

/* Numbers of the format. */
enum gr_gguf_type {
    GR_GGUF_U8,
    GR_GGUF_I8,
    GR_GGUF_U16,
    GR_GGUF_I16,
    GR_GGUF_U32,
    GR_GGUF_I32,
    GR_GGUF_F32,
    GR_GGUF_BOOL,
    GR_GGUF_STRING,
    GR_GGUF_ARRAY,
    GR_GGUF_U64,
    GR_GGUF_I64,
    GR_GGUF_F64,
    GR_GGUF_N_TYPE
};

/* A field of the metadata, borrowed. A scalar is an array of one. */
struct gr_gguf_field {
    const char *key;        /* NUL-terminated */
    enum gr_gguf_type type; /* of an element; never ARRAY */
    bool is_array;
    uint64_t n;
    const uint8_t *data; /* the first element; strings: u64 length and bytes, one after the other */
};

/* A tensor as the file tells of it: begin counts from the file's first byte; rows first in shape, as everywhere else
 * here (the file has them last). */
struct gr_gguf_tensor {
    const char *name; /* NUL-terminated, borrowed */
    enum gr_format dtype;
    int n_dim;
    int64_t shape[GR_GGUF_N_DIM_MAX];
    uint64_t begin, bytes;
};

struct gr_gguf;

/* Does it begin as a GGUF file does? */
bool gr_gguf_is(const void *data, size_t len);
/* data is borrowed until free; name stands for the file in messages. */
GR_NODISCARD enum gr_status gr_gguf_parse(const char *name, const void *data, size_t len, struct gr_gguf **out);
void gr_gguf_free(struct gr_gguf *g); /* NULL is legal */

size_t gr_gguf_n_tensor(const struct gr_gguf *g);
const struct gr_gguf_tensor *gr_gguf_tensor(const struct gr_gguf *g, size_t i);
const struct gr_gguf_field *gr_gguf_find(const struct gr_gguf *g, const char *key); /* NULL: none */

/* Getters. A key that is missing leaves *out alone when `required` is false. Integers of every width are taken; an
 * array where a number is expected must hold one value over and over (a value for each layer). */
GR_NODISCARD enum gr_status gr_gguf_int(const struct gr_gguf *g, const char *key, bool required, int64_t *out);
GR_NODISCARD enum gr_status gr_gguf_float(const struct gr_gguf *g, const char *key, bool required, double *out);
/* Not NUL-terminated, borrowed; *len_out 0 and NULL when missing. */
GR_NODISCARD enum gr_status gr_gguf_string(const struct gr_gguf *g, const char *key, bool required, const char **out,
                                           size_t *len_out);
/* The next string of an array of strings: *at begins at field->data. */
const char *gr_gguf_next_string(const uint8_t **at, size_t *len_out);

#endif
