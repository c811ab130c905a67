#include "orchestrator/cli/stops.h"

#include "common/base/log.h"
#include "orchestrator/answer/ends.h"

static enum gr_status told(enum gr_status st)
{
    if (st == GR_ELIMIT) {
        log_error("more than %d token ids end a turn: end-of-sequence ids of the model (--ignore-eos leaves them out), "
                  "--stop-token-ids and special tokens of --stop together",
                  GR_STOP_ID_MAX);
        return GR_EINVAL;
    }
    return st;
}

static enum gr_status take_string(const struct gr_tokenizer *tok, const char *text, struct gr_stop_ids *s)
{
    int32_t part = -1;
    const enum gr_status st = gr_ends_add_string(s, tok, text, &part);
    if (st == GR_EINVAL) {
        size_t len = 0;
        const char *bytes = gr_tokenizer_token_bytes(tok, part, &len);
        log_error("--stop: `%s' holds the special token %.*s and more: a special token has no text that could be "
                  "compared; give it as a stop string of its own",
                  text, (int)len, bytes);
        return GR_EINVAL;
    }
    return told(st);
}

static enum gr_status take_ids(const struct gr_options *o, int32_t n_vocab, struct gr_stop_ids *s)
{
    for (int i = 0; i < o->stop_token_ids.n; i++) {
        if (o->stop_token_ids.id[i] >= n_vocab) {
            log_error("--stop-token-ids: %d is no token id; the vocabulary has ids 0 to %d", o->stop_token_ids.id[i],
                      n_vocab - 1);
            return GR_EINVAL;
        }
        GR_TRY(told(gr_ends_add(s, o->stop_token_ids.id[i])));
    }
    return GR_OK;
}

enum gr_status gr_stops_resolve(const struct gr_options *o, const struct gr_hf_config *hf,
                                const struct gr_tokenizer *tok, int32_t n_vocab, struct gr_stop_ids *out)
{
    struct gr_stop_ids s = {.n = 0};
    GR_TRY(o->ignore_eos ? GR_OK : told(gr_ends_add_eos(&s, hf, tok, n_vocab)));
    GR_TRY(take_ids(o, n_vocab, &s));
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
    return told(gr_ends_add_chat(s, c, tok));
}
