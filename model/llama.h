/* The Llama runtime: loads a Hugging Face folder and runs ragged passes over a paged KV pool (lm.h).
 * State split: config (immutable) | weights (read-only: packed copies of the mmapped files) | state (KV, activations).
 * All memory is taken by create; forward allocates nothing. A pass is run by all threads of the model's team. */
#ifndef GR_MODEL_LLAMA_H
#define GR_MODEL_LLAMA_H

#include "model/load/expand.h"
#include "model/load/loader.h"
#include "model/files/hf_config.h"
#include "model/group/group.h"
#include "model/lm.h"
#include "model/files/tuned.h"

#include <stdbool.h>

struct gr_cuda_ranks_maker;

struct gr_llama_config {
    const char *dir; /* a folder or a .gguf file, borrowed for the call */
    enum gr_weights_as as;
    const char *isa;        /* CPU kernels: NULL = best, or avx512 | avx2 | c | ref */
    int n_thread;           /* 0: every CPU this process may use */
    int n_ctx_max;          /* positions; 0: the model's own max_position_embeddings */
    int n_row_max;          /* rows of a pass */
    int n_out_max;          /* rows of a pass whose logits may be asked for */
    int n_pool_block;       /* KV blocks of 16 tokens */
    int n_pool_block_least; /* fewer of them will do, where the memory asks for it; 0: all are needed. Of a CPU's
                               runtime */
    int n_scratch_block;    /* after them, for tree rows */
    int n_seq_max;          /* sequences of a pass; only a GPU's runtime asks */
    /* Room that a GPU leaves for views (lm.h: view_create) when it chooses the number of blocks. n_view 0: none. */
    struct gr_kv_budget view_most;
    int n_view;
    bool ranks;  /* only a GPU's runtime asks: it ranks children (lm->top) instead of picking */
    int n_token; /* ids that may be picked; 0: all of the vocabulary */
    /* Residual streams entering these layers are kept for every row. With a head: 0 leaves the choice to its config,
     * else this overrides it (capture.h). */
    int n_capture;
    int capture_layer[GR_CAPTURE_MAX];
    /* Folder of an EAGLE-3 head that this target is to serve, borrowed for the call; NULL: none. Its fc is loaded and
     * run by gr_lm_fuse(); the rest of the head is only checked as far as it has to fit. */
    const char *head_dir;
    const struct gr_geometry *geometry; /* NULL: as in the folder; else expanded (expand.h), the head too */
    bool geometry_positions;      /* with geometry: n_ctx_max may exceed the folder's positions (gr_expand_positions) */
    const struct gr_tuned *tuned; /* only a GPU's runtime asks; NULL: nothing was measured. Borrowed for the call */
    bool raw_features;            /* with a head: captured states are shipped as they are (lm.h) */
    /* Only a GPU's runtime asks: memory of its own GPU in which lm->shipped is to lie, borrowed for as long as the
     * model lives. NULL: in the host's. */
    const struct gr_far_memory *far;
    /* NULL: alone. Else this rank's end of a tensor-parallel group, borrowed for as long as the model lives; all ranks
     * create the model with the same values, but the head, which rank 0 alone has. */
    struct gr_group *group;
    bool no_chain; /* only a GPU's runtime asks: linear layers are kernels of their own */
    /* With a group of GPUs: how they exchange sums (cuda/ranks.h), borrowed for the call; NULL on CPUs. */
    const struct gr_cuda_ranks_maker *gpu_ranks;
};

/* Errors name the file, tensor or limit. fingerprint_out, hf_out may be NULL. */
GR_NODISCARD enum gr_status gr_llama_create(const struct gr_llama_config *config, struct gr_hf_config *hf_out,
                                            uint64_t *fingerprint_out, struct gr_lm **lm_out);

/* A rank other than 0: does what rank 0 says until that ends the group (GR_OK). Its logits are never whole: nothing but
 * rank 0 knows what was picked. */
GR_NODISCARD static inline enum gr_status gr_llama_follow(struct gr_lm *lm)
{
    return lm->ops->follow(lm);
}
/* n_part_max of the group's operations: hf as it runs. */
size_t gr_llama_part_max(const struct gr_hf_config *hf, int n_row_max);

/* Bytes of KV one token takes, both K and V, all layers, f32. */
size_t gr_llama_kv_bytes_per_token(const struct gr_hf_config *hf);
/* Bytes of weights a pass reads (matrices as bf16, norms as f32; of the embedding only lm_head's use). hf: as
 * gr_llama_create gives it. */
size_t gr_llama_weight_bytes(const struct gr_hf_config *hf);
/* Floating point operations of one row's linears (2 per weight). */
double gr_llama_flops_per_row(const struct gr_hf_config *hf);

#endif
