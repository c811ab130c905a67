/* What a model will take of memory, known before any weight is read: told in one line, and refused in one line where it
 * cannot fit. The same words for the host and for a GPU. What is read in place from mapped files (a folder's bf16
 * embedding) is page cache and no part of it. */
#ifndef GR_MODEL_LOAD_NEEDS_H
#define GR_MODEL_LOAD_NEEDS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

/* Weights from here on take seconds to load: what they need is told at the default log level, and progress is shown. */
#define GR_LOAD_LARGE ((uint64_t)1 << 30)

/* Bytes of memory that is the model's own. */
struct gr_needs {
    uint64_t bf16_bytes, f32_bytes; /* weights, by what they are held as */
    uint64_t wider_bytes;           /* more, if tensors of F32 or F16 have values that are wider than bf16 */
    uint64_t other_bytes;           /* activations, tables, logits */
    uint64_t spare_bytes;           /* taken where they fit: KV that is wanted goes before, one context's does not */
    uint64_t block_bytes;           /* of a KV block */
    bool leaves_room;               /* of what is free beside one context, a quarter stays for another's */
    int n_scratch_block;            /* beside the pool's */
    int n_block;                    /* of the pool: wanted */
    int n_block_least;              /* a worker cannot do with fewer */
    int n_session, n_ctx;           /* that n_block was chosen for */
    int n_rank;                     /* of a group that share the host's memory, each with such needs; 0: no group */
    bool quiet;                     /* another rank tells */
};

/* Whose needs, and what is there. */
struct gr_needs_of {
    const char *what;  /* the model's path */
    const char *where; /* "", or "cuda:0: " */
    uint64_t free_bytes;
    const char *free_by; /* what said so */
};

static inline uint64_t gr_needs_weights(const struct gr_needs *n)
{
    return n->bf16_bytes + n->f32_bytes;
}
/* With so many blocks; wider_bytes and spare_bytes are not in it. */
uint64_t gr_needs_bytes(const struct gr_needs *n, int n_block);

/* Blocks of the pool that fit: n_block or fewer. GR_ENOMEM (logged): not even n_block_least. */
GR_NODISCARD enum gr_status gr_needs_fit(const struct gr_needs *n, const struct gr_needs_of *of, int *n_block_out);
/* The line. */
void gr_needs_tell(const struct gr_needs *n, const struct gr_needs_of *of, int n_block);
/* Both, for the memory of the host. */
GR_NODISCARD enum gr_status gr_needs_fit_host(const struct gr_needs *n, const char *what, int *n_block_out);

#endif
