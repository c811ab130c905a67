/* What the files of a verifier share. */
#ifndef GR_TARGET_WORKER_COMPUTE_VERIFIER_INTERNAL_H
#define GR_TARGET_WORKER_COMPUTE_VERIFIER_INTERNAL_H

#include "target_worker/compute/verifier.h"

#define SLOT_CHAIN (-1) /* in place of a tree's slot: the pick is a chain row's */
#define VIEW_QUERIES 16 /* rows whose queries choose a view where there is no tree: the last ones */

struct gr_verifier {
    struct gr_lm *lm; /* borrowed */
    int n_seq_max;
    /* the batch of one pass */
    int32_t *token, *pos, *cell; /* (n_row_max) */
    int32_t *out_row;            /* (n_out_max) */
    int32_t *limit, *n_anc;      /* (n_row_max) */
    int16_t *anc;                /* (n_row_max, GR_ATTN_ANC_MAX) */
    struct gr_attn_seq *seq;     /* (n_seq_max) */
    struct row_pick {
        struct gr_pass_seq *seq;
        int32_t slot;                    /* in seq->pick; SLOT_CHAIN: in chain_pick */
    } * out;                             /* (n_out_max) */
    const struct gr_sampling **sampling; /* (n_out_max): of the rows that are picked */
    /* with a model that adjusts: what is asked of rows' logits, as lists */
    struct gr_adjust_list *list;   /* (n_out_max) */
    struct gr_adjust_entry *entry; /* (lm->n_list_max): of this pass's lists, n_entry of them */
    int32_t *place;                /* (n_vocab), zero between lists */
    int32_t n_entry;
    uint64_t n_listed, n_unlisted; /* rows so far of which something was asked: as lists, and on the host */
    int32_t *copy_src, *copy_dst;  /* (n_seq_max * GR_TREE_MAX) */
    int n_thread;
    float *scratch; /* (n_thread, n_vocab) */
    int32_t *work;  /* (n_thread, n_vocab) */
    /* (n_thread): counts of the text that the thread's last row had, of the session in `counted` */
    struct row_counts {
        struct gr_token_counts of;
        const struct gr_pass_seq *counted; /* NULL: nothing is counted */
        int32_t len;                       /* tokens of it, without a path */
    } * counts;
    int n_row, n_out;
    /* log-probabilities of the pass */
    int32_t *tree_out;   /* (n_seq_max): where the picks of a sequence's rows begin, but chain rows' */
    float *logprob;      /* (n_out_max, GR_LOGPROB_ROW) */
    int32_t *logprob_id; /* (n_out_max, GR_LOGPROB_MAX) */
    int n_logprob;       /* tokens whose log-probabilities are there */
    /* with SpecPV */
    struct gr_kv_refresh *refresh; /* (n_seq_max) */
    int n_refresh;
    int32_t *chain_out;  /* (n_seq_max): where the picks of a sequence's chain rows begin */
    int32_t *chain_pick; /* (n_out_max) */
    /* for a draft head */
    int32_t *row0;                /* (n_seq_max): of the pass's sequences in the batch, chain rows included */
    float *kept;                  /* (n_seq_max, GR_CAPTURE_KEEP, capture): by the machine's slot */
    int n_feature_max;            /* n_row_max and all that is kept */
    int n_feature;                /* of this pass */
    const float **capture;        /* (n_feature_max): captured states whose features are wanted */
    float *fused;                 /* (n_feature_max, fused_width), where the model does not fuse in its pass */
    int feature_width;            /* fused, or captured states where they are shipped as they are */
    uint16_t *feature;            /* (n_feature_max, feature_width) bf16; not where the model makes such rows */
    const uint16_t **feature_row; /* (n_feature_max): what sequences point into */
};

/* ---- verifier_batch.c ---- */
int32_t verifier_scratch_cell(const struct gr_pass_seq *s, int slot);
/* Is something asked of the logits of the session's row at pos before they are sampled? */
bool verifier_is_adjusted(const struct gr_pass_seq *s, int32_t pos);
/* The pick after row r goes to pick[slot]: the row itself in a tree, 0 for the last row of a prompt. */
void verifier_want_pick(struct gr_verifier *v, struct gr_pass_seq *s, int r, int slot);
void verifier_add_seq(struct gr_verifier *v, struct gr_pass_seq *s, int i);

/* ---- verifier_pick.c ---- */
/* Before the pass. Returns the lists; NULL: there are none, or all of them are empty. */
const struct gr_adjust_list *verifier_list_rows(struct gr_verifier *v);
void verifier_pick_rows(const struct gr_exec *x, void *arg);

/* ---- verifier_judge.c ---- */
/* The committed token that chain row r's pick is compared with. */
int32_t verifier_judged_token(const struct gr_pass_seq *s, int r);
void verifier_judge_chain(const struct gr_verifier *v, struct gr_pass_seq *s, int i);
/* Chain rows whose KV stands: up to the first mismatch, whose own row is right. */
int verifier_chain_rows(const struct gr_pass_seq *s);
void verifier_corrupt(const struct gr_verifier *v, struct gr_pass_seq *s);

/* ---- verifier_logprobs.c ---- */
/* After the walk, of the tokens alone that it has made final. */
void verifier_add_logprobs(struct gr_verifier *v, struct gr_pass_seq *s, int i);

/* ---- verifier_features.c ---- */
void verifier_fuse(struct gr_verifier *v, struct gr_pass *pass);
bool verifier_wants_capture(const struct gr_pass *pass);
/* No rows: what was kept is wanted now. */
void verifier_run_fuse_pass(struct gr_verifier *v, struct gr_pass *pass);

#endif
