/* A table model for the simulation: the logits after a row are a function of the tokens of that row's whole visible
 * prefix, which it reads back through block tables, scratch slots and cells. A wrong commit, a stale cell or a wrong
 * ancestor therefore changes the text or trips a check. */
#ifndef GR_TESTS_SIM_TOY_LM_H
#define GR_TESTS_SIM_TOY_LM_H

#include "model/lm.h"

struct toy_config {
    int n_vocab, n_ctx_max, n_row_max, n_out_max, n_pool_block, n_scratch_block;
    uint64_t seed;      /* of the table */
    uint64_t blur_seed; /* != 0: a drafter, which sees a wrong table in one context of `blur` */
    int blur;
    float sharpness; /* spread of the logits; negative: likes best what a positive one likes least */
    /* One context in so many has logits that are not finite, some of them or all; 0: none does. odd_partial: the same
     * of rows under a view, in other contexts. odd_hidden: rows under a view show `odd` nowhere. */
    int odd, odd_partial;
    bool odd_hidden;
    int memory; /* tokens of the prefix that count; 0: all (and all of it is checked) */
    /* A target and its head. The logits follow a state of 32 bits that each token steps; the target's features are its
     * bytes. The head knows the prefix from nothing else: a committed row must take the bytes of the state before its
     * token, the row of a candidate what its parent's row left (the same bytes, marked as guessed). It checks that, and
     * that states, tokens and positions of all it sees follow from one another; it aborts where they do not. */
    bool features, head;
    /* A head whose rows' features lie in far memory, and where this test finds what is there; NULL: in the host's. */
    uint8_t *(*far_at)(const void *p);
    bool raw;     /* features are captured states, which the head fuses itself */
    bool shipped; /* a target that makes features within its pass, bf16, as one on a GPU */
    /* A target with views: one row in so many that is verified under a view answers from another table; 0: all
     * answer as under full attention. KV of such rows is marked, and no row that sees everything may ever see it. */
    int partial_blur;
    bool partial_features; /* captures of such rows are others: bytes changed by 0xa5; for tests without a head */
    int n_vocab_head;      /* the head's own vocabulary: so many of the ids, spread; 0: all */
};

#define TOY_FEATURE_WIDTH 4
#define TOY_N_CAPTURE 3 /* states beside each other in a target's capture of a row */

struct gr_lm *toy_lm_create(const struct toy_config *config);
/* The captured states of position n - 1. */
void toy_lm_capture(const int32_t *token, int n, float out[TOY_N_CAPTURE * TOY_FEATURE_WIDTH]);
/* The true feature of position n - 1: after n tokens. */
void toy_lm_feature(const int32_t *token, int n, float out[TOY_FEATURE_WIDTH]);
/* The logits after n tokens, from the table alone. */
void toy_lm_logits(const struct toy_config *config, const int32_t *token, int n, float *out);

#endif
