/* A model as the endpoint serves it: its name, and what text needs of its files (tokenizer, config, chat template);
 * weights are the workers'. Immutable after it was opened: any thread may use it. */
#ifndef GR_ORCHESTRATOR_HTTP_SERVED_H
#define GR_ORCHESTRATOR_HTTP_SERVED_H

#include "common/protocol/msg.h"
#include "model/chat/chat.h"
#include "model/files/chat_file.h"
#include "model/files/hf_config.h"
#include "model/tokenizer/tokenizer.h"

#define GR_SERVED_NAME_MAX GR_MODEL_NAME_MAX

struct gr_served {
    char name[GR_SERVED_NAME_MAX];
    bool named;        /* by who serves it: its targets have that name, too */
    int64_t created_s; /* Unix time of its opening */
    struct gr_hf_config hf;
    struct gr_tokenizer *tok; /* owned */
    uint64_t fingerprint;     /* of the tokenizer */
    int32_t n_vocab;          /* ids that both the model and its tokenizer have */
    struct gr_chat chat;      /* form NULL: it has no chat template that is known */
    struct gr_chat_file chat_file;
};

struct gr_served_config {
    const char *name; /* NULL: the path's last part */
    const char *path;
    const char *chat_template; /* its name; NULL: the one in the model's files, where it is known */
    bool has_others;           /* it is one of several, of which none can be given a template by name */
};

/* Logged. GR_ENOTFOUND: it has no tokenizer; GR_EINVAL: there is no such template. */
GR_NODISCARD enum gr_status gr_served_open(const struct gr_served_config *c, struct gr_served *out);
void gr_served_close(struct gr_served *s);

#endif
