/* A model in GGUF files as the rest of graft knows models: its metadata as a gr_hf_config, its tensors under the names
 * of Hugging Face. One file, or all of NAME-00001-of-0000N.gguf where any of them is named; siblings are looked for
 * beside the path as it was given (a link's, not its target's). Start only; one thread. */
#ifndef GR_MODEL_FILES_GGUF_MODEL_H
#define GR_MODEL_FILES_GGUF_MODEL_H

#include "model/files/gguf.h"
#include "model/files/hf_config.h"
#include "model/files/tensors.h"

/* hf_out or out may be NULL. Files are mapped, never copied. */
GR_NODISCARD enum gr_status gr_gguf_model_open(const char *path, struct gr_hf_config *hf_out, struct gr_tensors **out);
/* The metadata of what gr_gguf_model_open() gave: its first file's. Borrowed from ts. */
const struct gr_gguf *gr_gguf_model_metadata(const struct gr_tensors *ts);
/* One file from memory: borrowed until close. */
GR_NODISCARD enum gr_status gr_gguf_model_parse(const char *name, const void *data, size_t len,
                                                struct gr_hf_config *hf_out, struct gr_tensors **out);

#endif
