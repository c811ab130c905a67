/* A conversation as token ids. */
#include <stdlib.h>

#include "common/base/log.h"
#include "model/chat/chat.h"

static enum gr_status encode(const struct gr_tokenizer *tok, const struct gr_marked_text *t, int32_t **ids_out,
                             size_t *n_out)
{
    const size_t cap = gr_tokenizer_encode_bound(tok, t->len);
    int32_t *ids = malloc((cap > 0 ? cap : 1) * sizeof(*ids));
    if (ids == NULL) {
        log_error("out of memory for a conversation of %zu bytes", t->len);
        return GR_ENOMEM;
    }
    const enum gr_status st = gr_tokenizer_encode_marked(tok, t, 0, ids, cap, n_out);
    if (st != GR_OK) {
        free(ids);
        return st;
    }
    *ids_out = ids;
    return GR_OK;
}

enum gr_status gr_chat_ids(const struct gr_chat *c, const struct gr_tokenizer *tok,
                           const struct gr_chat_message *messages, size_t n, int32_t **ids_out, size_t *n_out)
{
    struct gr_chat_text text;
    GR_TRY(gr_chat_render(c, messages, n, &text));
    const struct gr_marked_text marked = gr_chat_text_marked(&text);
    const enum gr_status st = encode(tok, &marked, ids_out, n_out);
    gr_chat_text_free(&text);
    return st;
}
