/* What a model's files say of chats: the Jinja text of its template, and how it spells the tokens that begin and end a
 * text. Start only; one thread. */
#ifndef GR_MODEL_FILES_CHAT_FILE_H
#define GR_MODEL_FILES_CHAT_FILE_H

#include <stddef.h>

#include "common/base/status.h"

struct gr_chat_file {
    char *jinja; /* owned, NUL-terminated; NULL: the files have none */
    size_t len;
    char *bos, *eos;   /* owned; NULL: not said */
    const char *where; /* the file or field that has the template, for messages */
};

/* path: a model folder (chat_template.jinja, else chat_template of tokenizer_config.json: a text, or of several that
 * have names the one called default) or a GGUF file (tokenizer.chat_template). */
GR_NODISCARD enum gr_status gr_chat_file_read(const char *path, struct gr_chat_file *out);
void gr_chat_file_free(struct gr_chat_file *f);

#endif
