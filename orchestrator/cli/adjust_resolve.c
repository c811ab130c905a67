#include "orchestrator/cli/adjust_resolve.h"

#include "common/base/log.h"
#include "orchestrator/answer/bans.h"

#include <inttypes.h>

struct resolving {
    const struct gr_options *o;
    struct gr_bans bans;
    char what[4400]; /* what the values are from */
};

/* That files do not belong together is theirs to be told of; else it is the option's value. */
static enum gr_status tell(const struct resolving *r, enum gr_status st)
{
    if (st != GR_OK && r->bans.why[0] != '\0') {
        log_error("%s: %s", st == GR_EMISMATCH ? r->o->model : r->what, r->bans.why);
    }
    return st;
}

static enum gr_status check(const struct gr_options *o)
{
    if (o->min_tokens > o->max_tokens) {
        log_error("--min-tokens %" PRId64 " is more than --max-tokens %" PRId64, o->min_tokens, o->max_tokens);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status take_biases(struct resolving *r)
{
    const struct gr_options *o = r->o;
    gr_option_shown(o, GR_OPTION_logit_bias, r->what, sizeof(r->what));
    for (int i = 0; i < o->logit_bias.n; i++) { /* an option's id is one of 32 bits */
        GR_TRY(tell(r, gr_bans_add_bias(&r->bans, (int32_t)o->logit_bias.key[i], o->logit_bias.value[i])));
    }
    return GR_OK;
}

static enum gr_status take_words(struct resolving *r)
{
    gr_option_shown(r->o, GR_OPTION_bad_words, r->what, sizeof(r->what));
    if (r->o->bad_words.n > 0 && r->bans.tok == NULL) {
        log_error("%s: %s has no tokenizer; --logit-bias ID=ban takes ids", r->what, r->o->model);
        return GR_EINVAL;
    }
    for (int i = 0; i < r->o->bad_words.n; i++) {
        GR_TRY(tell(r, gr_bans_add_word(&r->bans, r->o->bad_words.word[i])));
    }
    return GR_OK;
}

enum gr_status gr_adjust_resolve(const struct gr_options *o, const struct gr_tokenizer *tok, int32_t n_vocab,
                                 struct gr_adjust *out)
{
    struct resolving r = {
        .o = o,
        .bans = {.tok = tok,
                 .n_vocab = n_vocab,
                 .a = {.repetition = o->repetition_penalty == 1.0 ? 0.0f : (float)o->repetition_penalty,
                       .frequency = (float)o->frequency_penalty,
                       .presence = (float)o->presence_penalty}}};
    GR_TRY(check(o));
    GR_TRY(take_biases(&r));
    GR_TRY(take_words(&r));
    gr_adjust_copy(out, &r.bans.a);
    return GR_OK;
}
