/* What ends a turn besides its limit: token ids, at which the target stops by itself, and strings, which are looked for
 * in the text (text_stream.h). A stop string that is a special token becomes an id: such a token has no text to be
 * found in. Nothing is logged. Pure. */
#ifndef GR_ORCHESTRATOR_ANSWER_ENDS_H
#define GR_ORCHESTRATOR_ANSWER_ENDS_H

#include "common/rules/accept.h"
#include "model/chat/chat.h"
#include "model/files/hf_config.h"
#include "model/tokenizer/tokenizer.h"

/* GR_ELIMIT: GR_STOP_ID_MAX are there. */
GR_NODISCARD enum gr_status gr_ends_add(struct gr_stop_ids *s, int32_t id);
/* The end-of-sequence ids of the model and of its tokenizer (NULL: there is none). n_vocab: ids are below. */
GR_NODISCARD enum gr_status gr_ends_add_eos(struct gr_stop_ids *s, const struct gr_hf_config *hf,
                                            const struct gr_tokenizer *tok, int32_t n_vocab);
/* What ends an answer in the template, where the tokenizer has it. */
GR_NODISCARD enum gr_status gr_ends_add_chat(struct gr_stop_ids *s, const struct gr_chat *c,
                                             const struct gr_tokenizer *tok);
/* A stop string, where it is a special token; other text is left to the text stream, and so is the special token's
 * spelling, should the model write it so. GR_EINVAL: it holds special token *part_out and more. */
GR_NODISCARD enum gr_status gr_ends_add_string(struct gr_stop_ids *s, const struct gr_tokenizer *tok, const char *text,
                                               int32_t *part_out);

#endif
