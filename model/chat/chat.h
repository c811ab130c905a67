/* Chat templates: a conversation as the text that a model was trained on. Each is a row of a table (templates.c),
 * chosen by its name or by the fingerprint of the Jinja template that the model's files carry; there is no interpreter
 * of Jinja. The text says which parts the template wrote and which a person or a model wrote: special tokens are read
 * in the first alone (gr_tokenizer_encode_marked()). Pure: no file, no clock; any thread. */
#ifndef GR_MODEL_CHAT_CHAT_H
#define GR_MODEL_CHAT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "model/tokenizer/tokenizer.h"

#define GR_CHAT_N_END_MAX 2

struct gr_chat_template;

enum gr_chat_role { GR_CHAT_SYSTEM, GR_CHAT_USER, GR_CHAT_ASSISTANT, GR_CHAT_N_ROLE };

struct gr_chat_message {
    enum gr_chat_role role;
    const char *text; /* borrowed, UTF-8 */
    size_t len;
};

/* What a template needs beside the messages. All borrowed. */
struct gr_chat {
    const struct gr_chat_template *form;
    const char *bos, *eos; /* the model's own spelling; NULL: the one that the template is used with */
    const char *date;      /* goes where the template tells a date; NULL: the one that it has for this */
    bool no_thinking;      /* only where gr_chat_thinks() */
    bool goes_on;          /* the last message, the assistant's, is left open: the answer goes on with it */
};

/* NULL: there is none. */
const struct gr_chat_template *gr_chat_by_name(const char *name);
/* By the Jinja text. NULL: no template that is known. */
const struct gr_chat_template *gr_chat_by_text(const char *jinja, size_t len);
/* XXH3 of the Jinja text without a newline at its end, which renders as nothing. */
uint64_t gr_chat_fingerprint(const char *jinja, size_t len);
/* The name of template i, from 0 on; NULL after the last. */
const char *gr_chat_name_at(int i);
const char *gr_chat_name(const struct gr_chat_template *form);
/* Can it be told not to think? */
bool gr_chat_thinks(const struct gr_chat_template *form);
/* Does it tell a date? */
bool gr_chat_has_date(const struct gr_chat_template *form);
/* The texts that end an answer, at most GR_CHAT_N_END_MAX; returns how many. */
int gr_chat_ends(const struct gr_chat *c, const char *end_out[GR_CHAT_N_END_MAX]);

/* A rendered conversation. */
struct gr_chat_text {
    char *text; /* owned, NUL-terminated */
    size_t len, cap;
    struct gr_text_span *plain; /* owned: what the template did not write */
    size_t n_plain, cap_plain;
};
void gr_chat_text_free(struct gr_chat_text *t); /* zeroed is legal */
struct gr_marked_text gr_chat_text_marked(const struct gr_chat_text *t);

/* The whole conversation up to where the assistant's next turn begins, or its last one goes on. n: at least 1.
 * GR_EINVAL: the template does not take these roles in this order (logged). */
GR_NODISCARD enum gr_status gr_chat_render(const struct gr_chat *c, const struct gr_chat_message *messages, size_t n,
                                           struct gr_chat_text *out);
/* The same as token ids, without any that the template does not write. *ids_out: owned by the caller. */
GR_NODISCARD enum gr_status gr_chat_ids(const struct gr_chat *c, const struct gr_tokenizer *tok,
                                        const struct gr_chat_message *messages, size_t n, int32_t **ids_out,
                                        size_t *n_out);

#endif
