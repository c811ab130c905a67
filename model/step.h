/* What the ranks of a tensor-parallel group do next: rank 0 says it before each pass, and nothing else steers the
 * others. A step is a record of fixed size (its number, kind, sizes) and, with sizes above 0, a payload: the batch as
 * numbers. Who follows checks number and sizes before anything is computed, so a rank that is elsewhere is an error and
 * not another sum. Views (SpecPV) travel by number: their lists are each rank's own, of its KV heads, and how they are
 * to be chosen and which of their blocks have summaries rank 0 says. Decision D-102. */
#ifndef GR_MODEL_STEP_H
#define GR_MODEL_STEP_H

#include "common/base/memory.h"
#include "model/group/group.h"
#include "model/lm.h"

enum gr_step_kind { GR_STEP_FORWARD = 1, GR_STEP_COPY, GR_STEP_VIEWS, GR_STEP_NO_VIEWS, GR_STEP_END };

struct gr_step {
    enum gr_step_kind kind;
    struct gr_batch batch;    /* FORWARD */
    int n_copy;               /* COPY */
    const int32_t *src, *dst; /* (n_copy) */
    struct gr_kv_budget most; /* VIEWS */
    int n_view;               /* VIEWS */
};

/* One rank's end; all memory is taken when it is created. */
struct gr_steps {
    struct gr_group *group; /* borrowed */
    struct gr_lm *lm;       /* borrowed: limits, and the views */
    int n_seq_max;
    uint64_t number; /* of the last step */
    char *payload;   /* what is sent, or was received */
    size_t payload_max;
    /* Of who follows: what the received batch points to. */
    struct gr_attn_seq *seq;
    struct gr_kv_refresh *refresh;
    int16_t *anc;
};

GR_NODISCARD enum gr_status gr_steps_init(struct gr_steps *s, struct gr_memory *memory, struct gr_group *group,
                                          struct gr_lm *lm, int n_seq_max);
/* Rank 0, before it does the same itself. Errors are logged. */
GR_NODISCARD enum gr_status gr_steps_forward(struct gr_steps *s, const struct gr_batch *b);
GR_NODISCARD enum gr_status gr_steps_copy(struct gr_steps *s, int n, const int32_t *src, const int32_t *dst);
GR_NODISCARD enum gr_status gr_steps_views(struct gr_steps *s, const struct gr_kv_budget *most, int n_view);
GR_NODISCARD enum gr_status gr_steps_say(struct gr_steps *s, enum gr_step_kind kind); /* one without a payload */
/* The others: waits for the next step without limit. What it points to stays until the next call. GR_EPROTO, logged:
 * it is not the next one, or cannot be. */
GR_NODISCARD enum gr_status gr_steps_next(struct gr_steps *s, struct gr_step *out);

#endif
