/* What the models on a GPU have in common: device, inputs, graphs, picks, and the wait for a pass. */
#ifndef GR_MODEL_CUDA_MODEL_H
#define GR_MODEL_CUDA_MODEL_H

#include "model/cuda/graphs.h"
#include "model/cuda/layer.h"
#include "model/cuda/tune.h"
#include "common/base/memory.h"

struct gr_cuda_model {
    struct gr_cuda_device device;
    struct gr_kernels kernels; /* the CPU's: for rows that the host picks */
    struct gr_memory memory;   /* of the host */
    struct gr_model_shapes shapes;
    struct gr_cuda_pass pass;
    struct gr_cuda_cells cells;
    struct gr_cuda_layer_work work;
    float *logits; /* (n_out_max, n_vocab_stride) */
    /* (n_out_max) pinned, and as the device sees them: one of the two, picks of a target or children of a drafter */
    struct gr_picked *picked, *picked_alias;
    struct gr_top_row *top, *top_alias;
    const int32_t *to_target; /* (n_vocab) of the device, with top; NULL: ids are the target's */
    void *pick_work;
    volatile uint32_t *done; /* pinned: ticket of the last pass whose picks are there */
    uint32_t *done_alias;
    volatile int32_t *plan_error; /* pinned: two of enum gr_cuda_attn_error, of the last pass's plans */
    enum gr_status broken;        /* an error that only the next pass can report */
};

/* Opens the device, takes the CPU's kernels and the team. */
GR_NODISCARD enum gr_status gr_cuda_model_open(struct gr_cuda_model *m, struct gr_lm *lm, int device, int n_thread);
/* Chooses cuts and splits for m->shapes, which the caller has listed, and names lm's numerics. */
GR_NODISCARD enum gr_status gr_cuda_model_tune(struct gr_cuda_model *m, struct gr_lm *lm, const struct gr_tuned *tuned,
                                               const struct gr_cuda_tune_model *model);
/* KV blocks for the sessions' contexts, or what the memory allows beside `others` bytes. asked 0: that is to be
 * chosen. views: bytes that are left for views where they fit. dir: of the model, for the message. */
struct gr_cuda_blocks {
    const char *dir;
    uint64_t block_bytes, weights, others, views;
    int n_ctx, n_session, n_scratch, asked;
    bool quiet; /* another rank tells */
};
GR_NODISCARD enum gr_status gr_cuda_choose_blocks(const struct gr_cuda_model *m, const struct gr_cuda_blocks *b,
                                                  int *n_block_out);
/* Inputs and logits for lm's limits; sets lm->logits, and lm->picked or lm->top. */
GR_NODISCARD enum gr_status gr_cuda_model_take(struct gr_cuda_model *m, struct gr_lm *lm, int n_seq_max,
                                               int feature_width, bool ranks);
void gr_cuda_model_close(struct gr_cuda_model *m, struct gr_lm *lm);

/* Loads the model's weights from files (expanded where expand says into what): opens the way to the device, calls load,
 * and waits until all is there. from->progress has begun, and is ended. */
typedef enum gr_status gr_cuda_load_fn(void *model, struct gr_cuda_weights *weights, struct gr_loader *host);
GR_NODISCARD enum gr_status gr_cuda_model_load(struct gr_cuda_model *m, const struct gr_loader *from,
                                               gr_cuda_load_fn *load, void *model);

/* ---- a pass ---- */

/* Writes the inputs; what is enqueued after reads them. pos_ahead: pass.h. */
GR_NODISCARD enum gr_status gr_cuda_model_begin(struct gr_cuda_model *m, const struct gr_batch *b, int pos_ahead);
/* Enqueues what every pass of at most n rows begins with: the inputs, and s, whose plan_error is the model's. */
GR_NODISCARD enum gr_status gr_cuda_model_enqueue_begin(struct gr_cuda_model *m, const struct gr_cuda_begin_step *s,
                                                        int n);
/* Enqueues the picks, or the children, of n rows at most, and says when they are there: the last step of a pass that
 * has any. */
GR_NODISCARD enum gr_status gr_cuda_model_enqueue_picks(struct gr_cuda_model *m, const struct gr_lm *lm, int n);
/* The same of a batch with lists: rows are adjusted, then picked. Only where lm->n_list_max > 0. */
GR_NODISCARD enum gr_status gr_cuda_model_enqueue_adjusted_picks(struct gr_cuda_model *m, const struct gr_lm *lm,
                                                                 int n);
/* Waits for the picks of the pass (or for all of it, where it picks nothing), then brings the logits of the rows that
 * the host has to pick. */
GR_NODISCARD enum gr_status gr_cuda_model_wait(struct gr_cuda_model *m, struct gr_lm *lm, int n_out);
/* KV cells, after the pass before. */
void gr_cuda_model_copy_cells(struct gr_cuda_model *m, int n, const int32_t *src, const int32_t *dst);

#endif
