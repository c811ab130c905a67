/* Biases, bans and bad words of a request as ids (common/rules/adjust.h). A bad word is banned in its spellings: at the
 * beginning of a text, after a blank, and right after other text. Nothing is logged: what is wrong is written to `why',
 * for who knows where the value is from. Pure. */
#ifndef GR_ORCHESTRATOR_ANSWER_BANS_H
#define GR_ORCHESTRATOR_ANSWER_BANS_H

#include "common/rules/adjust.h"
#include "model/tokenizer/tokenizer.h"

struct gr_bans {
    const struct gr_tokenizer *tok; /* borrowed; of words */
    int32_t n_vocab;                /* ids are below */
    struct gr_adjust a;
    char why[512];
};

/* value: minus infinity bans the id. GR_EINVAL: no such id, or it was given before, or too many. */
GR_NODISCARD enum gr_status gr_bans_add_bias(struct gr_bans *b, int32_t id, double value);
/* GR_EINVAL: it has no spelling, too long a one, or too many. GR_EMISMATCH: a spelling has an id above the model's. */
GR_NODISCARD enum gr_status gr_bans_add_word(struct gr_bans *b, const char *word);

#endif
