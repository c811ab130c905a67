/* Bans, biases and penalties of a request (common/rules/adjust.h), by its options. A bad word becomes the sequences of
 * ids that spell it: at the beginning of a text, after a blank, and right after other text; a sequence of one id is a
 * ban. Pure. */
#ifndef GR_ORCHESTRATOR_CLI_ADJUST_RESOLVE_H
#define GR_ORCHESTRATOR_CLI_ADJUST_RESOLVE_H

#include "common/options/options.h"
#include "common/rules/adjust.h"
#include "model/tokenizer/tokenizer.h"

/* n_vocab: ids are below. tok: NULL where the model has none that is read. GR_EINVAL (logged): an id that is none, a
 * bias that is given twice, a bad word without tokens or with more than GR_BAD_WORD_LEN_MAX, too many of them, a
 * min_tokens above max_tokens. */
GR_NODISCARD enum gr_status gr_adjust_resolve(const struct gr_options *o, const struct gr_tokenizer *tok,
                                              int32_t n_vocab, struct gr_adjust *out);

#endif
