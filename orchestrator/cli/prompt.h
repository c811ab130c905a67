/* The prompt of `graft run`: text, a file, or ids. */
#ifndef GR_ORCHESTRATOR_CLI_PROMPT_H
#define GR_ORCHESTRATOR_CLI_PROMPT_H

#include "model/chat/chat.h"
#include "common/options/options.h"

/* Exactly one of --prompt, --prompt-file, --prompt-ids must be given. chat: the text is a user's message, after
 * --system's where it is given; NULL: it is the prompt. Ids are checked against the vocabulary. *ids_out: owned by the
 * caller (free). Errors are logged. */
GR_NODISCARD enum gr_status gr_prompt_read(const struct gr_options *o, const struct gr_tokenizer *tok,
                                           const struct gr_chat *chat, int32_t n_vocab, int32_t **ids_out,
                                           uint32_t *n_out);

#endif
