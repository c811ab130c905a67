#include "orchestrator/cli/stops.h"

#include "common/base/log.h"

#include <string.h>

static enum gr_status add(struct gr_stop_ids *s, int32_t id)
{
    if (gr_stop_hits(s, id)) {
        return GR_OK;
    }
    if (s->n == GR_STOP_ID_MAX) {
        log_error("more than %d token ids end a turn: end-of-sequence ids of the model (--ignore-eos leaves them out), "
                  "--stop-token-ids and special tokens of --stop together",
                  GR_STOP_ID_MAX);
        return GR_EINVAL;
    }
    s->id[s->n++] = id;
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

/* Ordinary text stays with the text stream, and so does the special token's spelling, should the model write it so. */
static enum gr_status take_string(const struct gr_tokenizer *tok, const char *text, struct gr_stop_ids *s)
{
    const int32_t whole = gr_tokenizer_added_id(tok, text);
    if (whole >= 0 && gr_tokenizer_is_special(tok, whole)) {
        return add(s, whole);
    }
    const int32_t part = special_in(tok, text);
    if (part >= 0) {
        size_t len = 0;
        const char *bytes = gr_tokenizer_token_bytes(tok, part, &len);
        log_error("--stop: `%s' holds the special token %.*s and more: a special token has no text that could be "
                  "compared; give it as a stop string of its own",
                  text, (int)len, bytes);
        return GR_EINVAL;
    }
    return GR_OK;
}

enum gr_status gr_stops_resolve(const struct gr_options *o, const struct gr_hf_config *hf,
                                const struct gr_tokenizer *tok, int32_t n_vocab, struct gr_stop_ids *out)
{
    struct gr_stop_ids s = {.n = 0};
    for (int i = 0; i < hf->n_eos && !o->ignore_eos; i++) {
        GR_TRY(add(&s, hf->eos_id[i]));
    }
    const int32_t own = tok != NULL && !o->ignore_eos ? gr_tokenizer_eos_id(tok) : -1;
    if (own >= 0 && own < n_vocab) {
        GR_TRY(add(&s, own));
    }
    for (int i = 0; i < o->stop_token_ids.n; i++) {
        if (o->stop_token_ids.id[i] >= n_vocab) {
            log_error("--stop-token-ids: %d is no token id; the vocabulary has ids 0 to %d", o->stop_token_ids.id[i],
                      n_vocab - 1);
            return GR_EINVAL;
        }
        GR_TRY(add(&s, o->stop_token_ids.id[i]));
    }
    if (o->stop.n > 0 && tok == NULL) {
        log_error("--stop: %s has no tokenizer; --stop-token-ids takes ids", o->model);
        return GR_EINVAL;
    }
    for (int i = 0; i < o->stop.n; i++) {
        GR_TRY(take_string(tok, o->stop.word[i], &s));
    }
    *out = s;
    return GR_OK;
}

enum gr_status gr_stops_add_chat(const struct gr_chat *c, const struct gr_tokenizer *tok, struct gr_stop_ids *s)
{
    const char *end[GR_CHAT_N_END_MAX];
    const int n = gr_chat_ends(c, end);
    for (int i = 0; i < n; i++) {
        const int32_t id = gr_tokenizer_added_id(tok, end[i]);
        GR_TRY(id >= 0 ? add(s, id) : GR_OK);
    }
    return GR_OK;
}
