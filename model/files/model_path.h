/* What a user named as a model: a Hugging Face folder or a GGUF file. Start only; one thread. */
#ifndef GR_MODEL_FILES_MODEL_PATH_H
#define GR_MODEL_FILES_MODEL_PATH_H

#include "model/files/gguf.h"
#include "model/files/hf_config.h"
#include "model/files/tensors.h"

enum gr_model_kind { GR_MODEL_FOLDER, GR_MODEL_GGUF };

/* A path that is neither, a model's name on a hub for one, is refused in one line. */
GR_NODISCARD enum gr_status gr_model_path_kind(const char *path, enum gr_model_kind *out);
/* The last part of the path, links followed, as a name for the model: "Llama-3.1-8B", "tiny.Q4_K.gguf". Cut where it is
 * too long. */
void gr_model_path_name(const char *path, char *name, size_t cap);
/* Its config: config.json, or what the metadata of the GGUF file says. */
GR_NODISCARD enum gr_status gr_model_path_config(const char *path, struct gr_hf_config *out);
/* What is read of a model before its weights: its config, and of a GGUF file, which is opened once for all who ask, its
 * metadata. */
struct gr_model_meta {
    struct gr_hf_config hf;
    struct gr_tensors *file; /* owned; NULL: a folder */
};
GR_NODISCARD enum gr_status gr_model_meta_open(const char *path, struct gr_model_meta *out);
void gr_model_meta_close(struct gr_model_meta *m);
/* Borrowed; NULL: a folder. */
const struct gr_gguf *gr_model_meta_gguf(const struct gr_model_meta *m);
/* Its tensors. */
GR_NODISCARD enum gr_status gr_model_path_open(const char *path, struct gr_tensors **out);

#endif
