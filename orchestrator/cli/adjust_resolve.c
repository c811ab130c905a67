#include "orchestrator/cli/adjust_resolve.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define WORD_BYTES_MAX 256 /* of a bad word */
#define ANCHOR "\n"        /* what a word stands right after in its third spelling: no token goes over a line's end */

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

static enum gr_status take_bias(struct gr_adjust *a, int64_t key, double value, int32_t n_vocab)
{
    const int32_t id = (int32_t)key; /* an option's id is one of 32 bits */
    if (id >= n_vocab) {
        log_error("--logit-bias: %d is no token id; the vocabulary has ids 0 to %d", id, n_vocab - 1);
        return GR_EINVAL;
    }
    if (is_listed(&a->biased, id) || is_listed(&a->banned, id)) {
        log_error("--logit-bias: id %d is given twice", id);
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

static enum gr_status spell(const struct gr_tokenizer *tok, const char *before, const char *word, struct spelling *out)
{
    char text[WORD_BYTES_MAX + 2];
    const int len = snprintf(text, sizeof(text), "%s%s", before, word);
    const enum gr_status st =
        gr_tokenizer_encode(tok, text, (size_t)len, GR_ENCODE_NO_SPECIAL, out->id, GR_ARRAY_LEN(out->id), &out->n);
    if (st == GR_ELIMIT) {
        log_error("--bad-words: `%s' has more than %d tokens", word, GR_BAD_WORD_LEN_MAX);
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

static enum gr_status add_spelling(struct gr_adjust *a, const char *word, const struct spelling *w)
{
    struct gr_bad_words *b = &a->bad;
    if (w->n < 1 || w->n > GR_BAD_WORD_LEN_MAX) {
        log_error("--bad-words: `%s' has %zu tokens; it must have 1 to %d", word, w->n, GR_BAD_WORD_LEN_MAX);
        return GR_EINVAL;
    }
    if (w->n == 1) {
        return ban(a, w->id[0]);
    }
    if (has_word(b, w)) {
        return GR_OK;
    }
    if ((size_t)b->n + 1 + w->n > GR_BAD_WORD_IDS_MAX) {
        log_error("--bad-words: all of them have more than %d tokens", GR_BAD_WORD_IDS_MAX);
        return GR_EINVAL;
    }
    b->entry[b->n++] = (int32_t)w->n;
    memcpy(b->entry + b->n, w->id, w->n * sizeof(*w->id));
    b->n += (int32_t)w->n;
    return GR_OK;
}

/* Right after other text: what is left when that text's own tokens are taken away. Where its end and the word become
 * one token there is no such spelling. */
static enum gr_status add_joined(struct gr_adjust *a, const struct gr_tokenizer *tok, const char *word)
{
    struct spelling anchor, both, rest = {.n = 0};
    GR_TRY(spell(tok, "", ANCHOR, &anchor));
    GR_TRY(spell(tok, ANCHOR, word, &both));
    if (both.n <= anchor.n || memcmp(both.id, anchor.id, anchor.n * sizeof(*both.id)) != 0) {
        return GR_OK;
    }
    rest.n = both.n - anchor.n;
    memcpy(rest.id, both.id + anchor.n, rest.n * sizeof(*rest.id));
    return add_spelling(a, word, &rest);
}

static enum gr_status take_word(struct gr_adjust *a, const struct gr_tokenizer *tok, const char *word)
{
    struct spelling w;
    const char *bare = word + strspn(word, " ");
    if (bare[0] == '\0' || strlen(bare) > WORD_BYTES_MAX) {
        log_error("--bad-words: `%s' has %zu bytes besides blanks; it must have 1 to %d", word, strlen(bare),
                  WORD_BYTES_MAX);
        return GR_EINVAL;
    }
    GR_TRY(spell(tok, "", bare, &w));
    GR_TRY(add_spelling(a, word, &w));
    GR_TRY(spell(tok, " ", bare, &w));
    GR_TRY(add_spelling(a, word, &w));
    return add_joined(a, tok, bare);
}

/* ---- all of it ---- */

static enum gr_status check(const struct gr_options *o, const struct gr_tokenizer *tok)
{
    if (o->min_tokens > o->max_tokens) {
        log_error("--min-tokens %" PRId64 " is more than --max-tokens %" PRId64, o->min_tokens, o->max_tokens);
        return GR_EINVAL;
    }
    if (o->bad_words.n > 0 && tok == NULL) {
        log_error("--bad-words: %s has no tokenizer; --logit-bias ID=ban takes ids", o->model);
        return GR_EINVAL;
    }
    return GR_OK;
}

enum gr_status gr_adjust_resolve(const struct gr_options *o, const struct gr_tokenizer *tok, int32_t n_vocab,
                                 struct gr_adjust *out)
{
    struct gr_adjust a = {.repetition = o->repetition_penalty == 1.0 ? 0.0f : (float)o->repetition_penalty,
                          .frequency = (float)o->frequency_penalty,
                          .presence = (float)o->presence_penalty};
    GR_TRY(check(o, tok));
    for (int i = 0; i < o->logit_bias.n; i++) {
        GR_TRY(take_bias(&a, o->logit_bias.key[i], o->logit_bias.value[i], n_vocab));
    }
    for (int i = 0; i < o->bad_words.n; i++) {
        GR_TRY(take_word(&a, tok, o->bad_words.word[i]));
    }
    gr_adjust_copy(out, &a);
    return GR_OK;
}
