/* What a model's files say of chats: the Jinja text of its template, and how it spells the tokens that begin and end a
 * text. Start only; one thread. */
#ifndef GR_MODEL_FILES_CHAT_FILE_H
#define GR_MODEL_FILES_CHAT_FILE_H

#include <stddef.h>

#include "common/base/status.h"

#define GR_TOKENIZER_CONFIG "tokenizer_config.json"
#define GR_TOKENIZER_CONFIG_BYTES (16u << 20) /* at most; some carry a whole vocabulary of added tokens */

struct gr_gguf;

struct gr_chat_file {
    char *jinja; /* owned, NUL-terminated; NULL: the files have none */
    size_t len;
    char *bos, *eos;   /* owned; NULL: not said */
    const char *where; /* the file or field that has the template, for messages */
};

/* path: of the model. gguf: the metadata of its file (tokenizer.chat_template); NULL: a folder (chat_template.jinja,
 * else chat_template of tokenizer_config.json: a text, or of several that have names the one called default). */
GR_NODISCARD enum gr_status gr_chat_file_read(const char *path, const struct gr_gguf *gguf, struct gr_chat_file *out);
void gr_chat_file_free(struct gr_chat_file *f);

#endif
