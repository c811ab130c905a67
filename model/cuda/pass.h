/* A batch (lm.h) on its way to a GPU: written into pinned memory by the host, copied by the first kernel of the pass to
 * the addresses that the pass's graphs were made with. */
#ifndef GR_MODEL_CUDA_PASS_H
#define GR_MODEL_CUDA_PASS_H

#include "kernels/cuda/pick/adjust.h"
#include "kernels/cuda/pick/pick.h"
#include "kernels/cuda/attention/view.h"
#include "model/cuda/device.h"
#include "model/lm.h"

enum gr_cuda_pass_part {
    GR_CUDA_PART_COUNTS, /* n_row, n_out, n_seq, ticket, n_refresh */
    GR_CUDA_PART_TOKEN,
    GR_CUDA_PART_POS,
    GR_CUDA_PART_CELL,
    GR_CUDA_PART_OUT_ROW,
    GR_CUDA_PART_LIMIT,
    GR_CUDA_PART_N_ANC,
    GR_CUDA_PART_ANC,
    GR_CUDA_PART_SEQ,
    GR_CUDA_PART_BLOCK, /* block tables and scratch blocks, one after the other */
    GR_CUDA_PART_PICK,
    GR_CUDA_PART_N_TOP,
    GR_CUDA_PART_FROM_STATE,
    GR_CUDA_PART_TO_STATE,
    GR_CUDA_PART_FEATURE,
    GR_CUDA_PART_HALF,
    GR_CUDA_PART_REFRESH,
    GR_CUDA_PART_ADJUST, /* rows' lists */
    GR_CUDA_PART_ENTRY,  /* their entries, one list after the other */
    GR_CUDA_N_PART,
};

struct gr_cuda_pass_limits {
    int n_row_max, n_out_max, n_seq_max;
    int n_table_block;   /* of a sequence's table */
    int n_scratch_block; /* of all sequences; a block of the pool may be in several tables, one of these in one */
    int feature_width;   /* f32 of a row; 0: none */
    int n_state;         /* kept states, of the same width */
    bool far_feature;    /* rows' features may be bf16 in the device's memory (gr_batch.far_feature) */
    int n_entry;         /* of lists of what is asked of logits, all rows' together; 0: none */
};

/* Where the pass's inputs lie on the device. */
struct gr_cuda_pass_inputs {
    const int32_t *n_row, *n_out, *n_seq, *n_refresh;
    const uint32_t *ticket;                  /* counts passes, from 1 */
    const int32_t *token, *pos, *cell;       /* (n_row_max) */
    const int32_t *out_row;                  /* (n_out_max) */
    const struct gr_attn_seq *seq;           /* (n_seq_max), with the device's pointers */
    const struct gr_cuda_pick *pick;         /* (n_out_max) */
    const int32_t *n_top;                    /* (n_out_max) */
    const int32_t *from_state, *to_state;    /* (n_row_max), with kept states (lm.h); -1: none */
    float *feature;                          /* (n_row_max, feature_width), rows that take a state are anything; the
                                              * model may write there once it has read */
    const uint16_t *const *half;             /* (n_row_max) rows of bf16 in place of feature's; NULL: none are */
    const struct gr_cuda_refresh *refresh;   /* (n_seq_max) */
    const struct gr_cuda_adjust_row *adjust; /* (n_out_max), of a batch with lists alone */
    const struct gr_adjust_entry *entry;     /* (n_entry) */
};

struct gr_cuda_pass {
    struct gr_cuda_pass_limits limits;
    uint8_t *host; /* pinned; the device sees it at */
    const void *host_alias;
    uint8_t *dev;
    size_t at[GR_CUDA_N_PART], bytes;
    uint32_t ticket;               /* of the batch that was written last */
    const struct gr_kv_view *view; /* borrowed: lm->view; NULL: no batch may refer to one */
    struct gr_cuda_pass_inputs inputs;
};

/* Takes its memory of the device's. */
GR_NODISCARD enum gr_status gr_cuda_pass_init(struct gr_cuda_pass *p, struct gr_cuda_device *d,
                                              const struct gr_cuda_pass_limits *limits);
/* Writes the batch, under the next ticket. pos_ahead: the position of the token that a row picks, less the row's own.
 * Nothing of an earlier batch may still be on its way. Views that the batch refreshes are planned already
 * (gr_kv_refresh_begin). */
void gr_cuda_pass_write(struct gr_cuda_pass *p, const struct gr_batch *b, int pos_ahead);

#endif
