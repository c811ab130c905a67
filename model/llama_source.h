/* A Llama folder and the head that it is to serve, opened and checked, before any weight is loaded: what the CPU and
 * the GPU runtime begin with. */
#ifndef GR_MODEL_LLAMA_SOURCE_H
#define GR_MODEL_LLAMA_SOURCE_H

#include "model/load/expand.h"
#include "model/files/hf_config.h"
#include "model/llama.h"
#include "model/load/loader.h"
#include "model/files/safetensors.h"

struct gr_llama_source {
    const char *dir;                       /* borrowed while it is opened and loaded */
    struct gr_hf_config hf;                /* as it runs */
    struct gr_hf_config head;              /* of the head that is served, as it runs */
    struct gr_expand expand;               /* to NULL: not expanded */
    struct gr_tensors *files, *head_files; /* owned; head_files NULL: no head */
    enum gr_weights_as as;
    struct gr_load_sum sum; /* of what the runtimes load */
    int n_capture;
    int capture_layer[GR_CAPTURE_MAX];
    char captures[32]; /* as gr_lm.captures */
};

/* Errors name the file, tensor or limit. What was opened is closed by gr_llama_source_close, also after an error. */
GR_NODISCARD enum gr_status gr_llama_source_open(const struct gr_llama_config *c, struct gr_llama_source *out);
void gr_llama_source_close(struct gr_llama_source *s);

/* Sizes and limits of the model: vocabulary, context, rows, blocks, captures. */
void gr_llama_source_describe(const struct gr_llama_source *s, const struct gr_llama_config *c, struct gr_lm *lm);
/* Whether partial views (SpecPV) can be had; one line where they cannot: a view and a window would each leave out keys.
 */
GR_NODISCARD enum gr_status gr_llama_source_check_views(const struct gr_llama_source *s, const struct gr_lm *lm);
/* After the load: every tensor of the files was used; then its fingerprint (fingerprint_out may be NULL). */
GR_NODISCARD enum gr_status gr_llama_source_finish(const struct gr_llama_source *s, uint64_t *fingerprint_out);

#endif
