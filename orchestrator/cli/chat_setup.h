/* Which chat template a command uses, and with what: by --chat-template, --chat-date and --chat-thinking, else by what
 * the model's files say. */
#ifndef GR_ORCHESTRATOR_CLI_CHAT_SETUP_H
#define GR_ORCHESTRATOR_CLI_CHAT_SETUP_H

#include "common/options/options.h"
#include "model/chat/chat.h"
#include "model/files/chat_file.h"

struct gr_chat_setup {
    struct gr_chat chat;
    struct gr_chat_file file; /* what chat borrows from */
};

/* Of o->model. A model without a template that is known, and options that the template has no place for, are refused
 * (logged). tok: whose tokens the template should write. Zeroed is legal for close. */
GR_NODISCARD enum gr_status gr_chat_setup_open(const struct gr_options *o, const struct gr_gguf *gguf,
                                               const struct gr_tokenizer *tok, struct gr_chat_setup *out);
void gr_chat_setup_close(struct gr_chat_setup *s);

#endif
