/* An EAGLE-3 head's folder and what it borrows of its target's, opened and checked, before any weight is loaded: what
 * the CPU and the GPU runtime begin with. */
#ifndef GR_MODEL_EAGLE3_SOURCE_H
#define GR_MODEL_EAGLE3_SOURCE_H

#include "model/files/capture.h"
#include "model/eagle3.h"
#include "model/load/loader.h"
#include "model/files/safetensors.h"

struct gr_eagle3_source {
    const char *dir, *target_dir;            /* borrowed while it is opened */
    struct gr_hf_config hf, target_hf;       /* as they run */
    struct gr_expand expand;                 /* to NULL: not expanded */
    struct gr_tensors *files, *target_files; /* owned; target_files: NULL when nothing is borrowed */
    struct gr_capture capture;               /* what fc is given */
    enum gr_weights_as as;
    struct gr_load_sum sum; /* of what the runtimes load */
};

/* A tensor of the head, or one that it borrows. */
struct gr_eagle3_tensor {
    const struct gr_tensors *files;
    const char *name;
};

/* Errors name the file, tensor or limit, and both values where two do not fit. Closed by close, also after an error. */
GR_NODISCARD enum gr_status gr_eagle3_source_open(const struct gr_eagle3_config *c, struct gr_eagle3_source *out);
void gr_eagle3_source_close(struct gr_eagle3_source *s);

/* Sizes and limits of the head: draft vocabulary, context, rows, blocks, features. */
void gr_eagle3_source_describe(const struct gr_eagle3_source *s, const struct gr_eagle3_config *c, struct gr_lm *lm);

/* The spelling of its one layer that the files use: midlayer or layers.0. */
const char *gr_eagle3_layer_prefix(const struct gr_tensors *files);
/* Its own embedding (n_vocab, H), else the target's. */
GR_NODISCARD enum gr_status gr_eagle3_embedding(struct gr_eagle3_source *s, struct gr_eagle3_tensor *out);
/* Own lm_head; else, over the whole vocabulary, the head's own tied embedding or the target's lm_head. */
GR_NODISCARD enum gr_status gr_eagle3_lm_head(struct gr_eagle3_source *s, struct gr_eagle3_tensor *out);
/* to_target (draft_n_vocab); false in has_map_out: ids are the target's. */
GR_NODISCARD enum gr_status gr_eagle3_map(const struct gr_eagle3_source *s, int32_t *to_target, bool *has_map_out);
/* Every tensor of the folder was used; sets lm's fingerprint of fc, and that of the head (may be NULL). */
GR_NODISCARD enum gr_status gr_eagle3_source_finish(const struct gr_eagle3_source *s, struct gr_lm *lm,
                                                    uint64_t *fingerprint_out);

#endif
