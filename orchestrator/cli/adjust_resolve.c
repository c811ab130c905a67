#include "orchestrator/cli/adjust_resolve.h"

#include "common/base/log.h"
#include "common/base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define WORD_BYTES_MAX 256 /* of a bad word */
#define ANCHOR "\n"        /* what a word stands right after in its third spelling: no token goes over a line's end */

struct resolving {
    const struct gr_options *o;
    const struct gr_tokenizer *tok;
    int32_t n_vocab;
    struct gr_adjust a;
    char what[4400]; /* what the values are from */
};

/* ---- biases ---- */

static bool is_listed(const struct gr_bias_ids *list, int32_t id)
{
    for (int32_t i = 0; i < list->n; i++) {
        if (list->id[i] == id) {
            return true;
        }
    }
    return false;
}

static enum gr_status ban(struct gr_adjust *a, int32_t id)
{
    if (is_listed(&a->banned, id)) {
        return GR_OK;
    }
    if (a->banned.n == GR_BIAS_MAX) {
        log_error("more than %d ids are banned by --logit-bias and --bad-words together", GR_BIAS_MAX);
        return GR_EINVAL;
    }
    a->banned.id[a->banned.n++] = id;
    return GR_OK;
}

static enum gr_status take_bias(struct resolving *r, int64_t key, double value)
{
    struct gr_adjust *a = &r->a;
    const int32_t id = (int32_t)key; /* an option's id is one of 32 bits */
    if (id >= r->n_vocab) {
        log_error("%s: %d is no token id; the vocabulary has ids 0 to %d", r->what, id, r->n_vocab - 1);
        return GR_EINVAL;
    }
    if (is_listed(&a->biased, id) || is_listed(&a->banned, id)) {
        log_error("%s: id %d is given twice", r->what, id);
        return GR_EINVAL;
    }
    if (isinf(value)) {
        return ban(a, id);
    }
    a->biased.id[a->biased.n++] = id;
    a->bias.value[a->bias.n++] = (float)value;
    return GR_OK;
}

/* ---- bad words ---- */

struct spelling {
    int32_t id[WORD_BYTES_MAX + 8];
    size_t n;
};

static enum gr_status spell(const struct resolving *r, const char *before, const char *word, struct spelling *out)
{
    char text[WORD_BYTES_MAX + 2];
    const int len = snprintf(text, sizeof(text), "%s%s", before, word);
    const enum gr_status st =
        gr_tokenizer_encode(r->tok, text, (size_t)len, GR_ENCODE_NO_SPECIAL, out->id, GR_ARRAY_LEN(out->id), &out->n);
    if (st == GR_ELIMIT) {
        log_error("%s: `%s' has more than %d tokens", r->what, word, GR_BAD_WORD_LEN_MAX);
        return GR_EINVAL;
    }
    return st;
}

static bool has_word(const struct gr_bad_words *b, const struct spelling *w)
{
    for (int32_t at = 0; at < b->n; at += 1 + b->entry[at]) {
        if ((size_t)b->entry[at] == w->n && memcmp(b->entry + at + 1, w->id, w->n * sizeof(*w->id)) == 0) {
            return true;
        }
    }
    return false;
}

/* A token that the model has not is the files' mistake. */
static enum gr_status check_ids(const struct resolving *r, const char *word, const struct spelling *w)
{
    for (size_t i = 0; i < w->n; i++) {
        if (w->id[i] >= r->n_vocab) {
            log_error("%s: the tokenizer spells `%s' with id %d, and the model has ids 0 to %d: they do not belong "
                      "together",
                      r->o->model, word, w->id[i], r->n_vocab - 1);
            return GR_EMISMATCH;
        }
    }
    return GR_OK;
}

static enum gr_status add_spelling(struct resolving *r, const char *word, const struct spelling *w)
{
    struct gr_bad_words *b = &r->a.bad;
    if (w->n < 1 || w->n > GR_BAD_WORD_LEN_MAX) {
        log_error("%s: `%s' has %zu tokens; it must have 1 to %d", r->what, word, w->n, GR_BAD_WORD_LEN_MAX);
        return GR_EINVAL;
    }
    GR_TRY(check_ids(r, word, w));
    if (w->n == 1) {
        return ban(&r->a, w->id[0]);
    }
    if (has_word(b, w)) {
        return GR_OK;
    }
    if ((size_t)b->n + 1 + w->n > GR_BAD_WORD_IDS_MAX) {
        log_error("%s: the spellings of all words have more than %d ids, with one for the length of each", r->what,
                  GR_BAD_WORD_IDS_MAX);
        return GR_EINVAL;
    }
    b->entry[b->n++] = (int32_t)w->n;
    memcpy(b->entry + b->n, w->id, w->n * sizeof(*w->id));
    b->n += (int32_t)w->n;
    return GR_OK;
}

/* Right after other text: what is left when that text's own tokens are taken away. Where its end and the word become
 * one token there is no such spelling. */
static enum gr_status add_joined(struct resolving *r, const char *word)
{
    struct spelling anchor, both, rest = {.n = 0};
    GR_TRY(spell(r, "", ANCHOR, &anchor));
    GR_TRY(spell(r, ANCHOR, word, &both));
    if (both.n <= anchor.n || memcmp(both.id, anchor.id, anchor.n * sizeof(*both.id)) != 0) {
        return GR_OK;
    }
    rest.n = both.n - anchor.n;
    memcpy(rest.id, both.id + anchor.n, rest.n * sizeof(*rest.id));
    return add_spelling(r, word, &rest);
}

static enum gr_status take_word(struct resolving *r, const char *word)
{
    struct spelling w;
    const char *bare = word + strspn(word, " ");
    if (bare[0] == '\0' || strlen(bare) > WORD_BYTES_MAX) {
        log_error("%s: `%s' has %zu bytes besides blanks; it must have 1 to %d", r->what, word, strlen(bare),
                  WORD_BYTES_MAX);
        return GR_EINVAL;
    }
    if (!gr_utf8_valid(bare, strlen(bare))) { /* no token is spelled so */
        log_error("%s: `%s' is not UTF-8", r->what, word);
        return GR_EINVAL;
    }
    GR_TRY(spell(r, "", bare, &w));
    GR_TRY(add_spelling(r, word, &w));
    GR_TRY(spell(r, " ", bare, &w));
    GR_TRY(add_spelling(r, word, &w));
    return add_joined(r, bare);
}

/* ---- all of it ---- */

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
    gr_option_shown(r->o, GR_OPTION_logit_bias, r->what, sizeof(r->what));
    for (int i = 0; i < r->o->logit_bias.n; i++) {
        GR_TRY(take_bias(r, r->o->logit_bias.key[i], r->o->logit_bias.value[i]));
    }
    return GR_OK;
}

static enum gr_status take_words(struct resolving *r)
{
    gr_option_shown(r->o, GR_OPTION_bad_words, r->what, sizeof(r->what));
    if (r->o->bad_words.n > 0 && r->tok == NULL) {
        log_error("%s: %s has no tokenizer; --logit-bias ID=ban takes ids", r->what, r->o->model);
        return GR_EINVAL;
    }
    for (int i = 0; i < r->o->bad_words.n; i++) {
        GR_TRY(take_word(r, r->o->bad_words.word[i]));
    }
    return GR_OK;
}

enum gr_status gr_adjust_resolve(const struct gr_options *o, const struct gr_tokenizer *tok, int32_t n_vocab,
                                 struct gr_adjust *out)
{
    struct resolving r = {.o = o,
                          .tok = tok,
                          .n_vocab = n_vocab,
                          .a = {.repetition = o->repetition_penalty == 1.0 ? 0.0f : (float)o->repetition_penalty,
                                .frequency = (float)o->frequency_penalty,
                                .presence = (float)o->presence_penalty}};
    GR_TRY(check(o));
    GR_TRY(take_biases(&r));
    GR_TRY(take_words(&r));
    gr_adjust_copy(out, &r.a);
    return GR_OK;
}
