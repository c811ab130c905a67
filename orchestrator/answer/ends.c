#include "orchestrator/answer/ends.h"

#include <string.h>

enum gr_status gr_ends_add(struct gr_stop_ids *s, int32_t id)
{
    if (gr_stop_hits(s, id)) {
        return GR_OK;
    }
    if (s->n == GR_STOP_ID_MAX) {
        return GR_ELIMIT;
    }
    s->id[s->n++] = id;
    return GR_OK;
}

enum gr_status gr_ends_add_eos(struct gr_stop_ids *s, const struct gr_hf_config *hf, const struct gr_tokenizer *tok,
                               int32_t n_vocab)
{
    const int32_t own = tok != NULL ? gr_tokenizer_eos_id(tok) : -1;
    for (int i = 0; i < hf->n_eos; i++) {
        GR_TRY(gr_ends_add(s, hf->eos_id[i]));
    }
    return own >= 0 && own < n_vocab ? gr_ends_add(s, own) : GR_OK;
}

enum gr_status gr_ends_add_chat(struct gr_stop_ids *s, const struct gr_chat *c, const struct gr_tokenizer *tok)
{
    const char *end[GR_CHAT_N_END_MAX];
    const int n = gr_chat_ends(c, end);
    for (int i = 0; i < n; i++) {
        const int32_t id = gr_tokenizer_added_id(tok, end[i]);
        GR_TRY(id >= 0 ? gr_ends_add(s, id) : GR_OK);
    }
    return GR_OK;
}

/* A special token that the string holds, -1: none. */
static int32_t special_in(const struct gr_tokenizer *tok, const char *text)
{
    for (int32_t id = 0; id < gr_tokenizer_n_vocab(tok); id++) {
        size_t len = 0;
        const char *bytes = gr_tokenizer_is_special(tok, id) ? gr_tokenizer_token_bytes(tok, id, &len) : NULL;
        if (bytes != NULL && len > 0 && memmem(text, strlen(text), bytes, len) != NULL) {
            return id;
        }
    }
    return -1;
}

enum gr_status gr_ends_add_string(struct gr_stop_ids *s, const struct gr_tokenizer *tok, const char *text,
                                  int32_t *part_out)
{
    const int32_t whole = gr_tokenizer_added_id(tok, text);
    if (whole >= 0 && gr_tokenizer_is_special(tok, whole)) {
        return gr_ends_add(s, whole);
    }
    *part_out = special_in(tok, text);
    return *part_out < 0 ? GR_OK : GR_EINVAL;
}
