/* Parts of the reader of models in GGUF files, each in its file: the files and their tensors (gguf_model.c), what their
 * metadata means (gguf_config.c). */
#ifndef GR_MODEL_FILES_GGUF_INTERNAL_H
#define GR_MODEL_FILES_GGUF_INTERNAL_H

#include "model/files/family.h"
#include "model/files/gguf_model.h"
#include "model/files/tensors_internal.h"

#define GR_GGUF_ROPE_FREQS "rope_freqs.weight" /* a tensor that the config tells */

/* What a tensor file's header points to: the parsed file, and room for the names. */
struct gr_gguf_header {
    struct gr_gguf *gguf;
    char *names;
};
static inline const struct gr_gguf *gr_gguf_of_file(const struct gr_tensor_file *f)
{
    return ((const struct gr_gguf_header *)f->header)->gguf;
}

struct gr_gguf_meaning {
    const struct gr_family *family;
    struct gr_hf_config hf;
};
/* Of files that are parsed. Errors name the file and the key or tensor. */
GR_NODISCARD enum gr_status gr_gguf_read_config(const struct gr_tensors *ts, struct gr_gguf_meaning *out);

#endif
