/* What ends a turn besides its limit, by the options (orchestrator/answer/ends.h). Pure. */
#ifndef GR_ORCHESTRATOR_CLI_STOPS_H
#define GR_ORCHESTRATOR_CLI_STOPS_H

#include "common/rules/accept.h"
#include "model/chat/chat.h"
#include "model/files/hf_config.h"
#include "model/tokenizer/tokenizer.h"
#include "common/options/options.h"

/* The end-of-sequence ids of the model and of its tokenizer unless they are ignored, --stop-token-ids, and special
 * tokens among --stop. n_vocab: ids are below. GR_EINVAL (logged): an id that is none, a stop string that holds a
 * special token and other text, or more than GR_STOP_ID_MAX ids. */
GR_NODISCARD enum gr_status gr_stops_resolve(const struct gr_options *o, const struct gr_hf_config *hf,
                                             const struct gr_tokenizer *tok, int32_t n_vocab, struct gr_stop_ids *out);
/* What ends an answer in the template, where the tokenizer has it. GR_EINVAL (logged): too many ids. */
GR_NODISCARD enum gr_status gr_stops_add_chat(const struct gr_chat *c, const struct gr_tokenizer *tok,
                                              struct gr_stop_ids *s);

#endif
