#include "orchestrator/answer/bans.h"

#include "common/base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WORD_BYTES_MAX 256 /* of a bad word */
#define ANCHOR "\n"        /* what a word stands right after in its third spelling: no token goes over a line's end */

static enum gr_status refuse(struct gr_bans *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static enum gr_status refuse(struct gr_bans *b, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(b->why, sizeof(b->why), fmt, args);
    va_end(args);
    return GR_EINVAL;
}

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

static enum gr_status ban(struct gr_bans *b, int32_t id)
{
    struct gr_bias_ids *banned = &b->a.banned;
    if (is_listed(banned, id)) {
        return GR_OK;
    }
    if (banned->n == GR_BIAS_MAX) {
        return refuse(b, "more than %d ids are banned by biases and bad words together", GR_BIAS_MAX);
    }
    banned->id[banned->n++] = id;
    return GR_OK;
}

enum gr_status gr_bans_add_bias(struct gr_bans *b, int32_t id, double value)
{
    struct gr_adjust *a = &b->a;
    if (id < 0 || id >= b->n_vocab) {
        return refuse(b, "%d is no token id; the vocabulary has ids 0 to %d", id, b->n_vocab - 1);
    }
    if (is_listed(&a->biased, id) || is_listed(&a->banned, id)) {
        return refuse(b, "id %d is given twice", id);
    }
    if (isinf(value)) {
        return ban(b, id);
    }
    if (a->biased.n == GR_BIAS_MAX) {
        return refuse(b, "more than %d ids have a bias", GR_BIAS_MAX);
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

static enum gr_status spell(struct gr_bans *b, const char *before, const char *word, struct spelling *out)
{
    char text[WORD_BYTES_MAX + 2];
    const int len = snprintf(text, sizeof(text), "%s%s", before, word);
    const enum gr_status st =
        gr_tokenizer_encode(b->tok, text, (size_t)len, GR_ENCODE_NO_SPECIAL, out->id, GR_ARRAY_LEN(out->id), &out->n);
    return st == GR_ELIMIT ? refuse(b, "`%s' has more than %d tokens", word, GR_BAD_WORD_LEN_MAX) : st;
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
static enum gr_status check_ids(struct gr_bans *b, const char *word, const struct spelling *w)
{
    for (size_t i = 0; i < w->n; i++) {
        if (w->id[i] >= b->n_vocab) {
            (void)refuse(b,
                         "the tokenizer spells `%s' with id %d, and the model has ids 0 to %d: they do not belong "
                         "together",
                         word, w->id[i], b->n_vocab - 1);
            return GR_EMISMATCH;
        }
    }
    return GR_OK;
}

static enum gr_status add_spelling(struct gr_bans *b, const char *word, const struct spelling *w)
{
    struct gr_bad_words *bad = &b->a.bad;
    if (w->n < 1 || w->n > GR_BAD_WORD_LEN_MAX) {
        return refuse(b, "`%s' has %zu tokens; it must have 1 to %d", word, w->n, GR_BAD_WORD_LEN_MAX);
    }
    GR_TRY(check_ids(b, word, w));
    if (w->n == 1) {
        return ban(b, w->id[0]);
    }
    if (has_word(bad, w)) {
        return GR_OK;
    }
    if ((size_t)bad->n + 1 + w->n > GR_BAD_WORD_IDS_MAX) {
        return refuse(b, "the spellings of all words have more than %d ids, with one for the length of each",
                      GR_BAD_WORD_IDS_MAX);
    }
    bad->entry[bad->n++] = (int32_t)w->n;
    memcpy(bad->entry + bad->n, w->id, w->n * sizeof(*w->id));
    bad->n += (int32_t)w->n;
    return GR_OK;
}

/* Right after other text: what is left when that text's own tokens are taken away. Where its end and the word become
 * one token there is no such spelling. */
static enum gr_status add_joined(struct gr_bans *b, const char *word)
{
    struct spelling anchor, both, rest = {.n = 0};
    GR_TRY(spell(b, "", ANCHOR, &anchor));
    GR_TRY(spell(b, ANCHOR, word, &both));
    if (both.n <= anchor.n || memcmp(both.id, anchor.id, anchor.n * sizeof(*both.id)) != 0) {
        return GR_OK;
    }
    rest.n = both.n - anchor.n;
    memcpy(rest.id, both.id + anchor.n, rest.n * sizeof(*rest.id));
    return add_spelling(b, word, &rest);
}

enum gr_status gr_bans_add_word(struct gr_bans *b, const char *word)
{
    struct spelling w;
    const char *bare = word + strspn(word, " ");
    if (bare[0] == '\0' || strlen(bare) > WORD_BYTES_MAX) {
        return refuse(b, "`%s' has %zu bytes besides blanks; it must have 1 to %d", word, strlen(bare), WORD_BYTES_MAX);
    }
    if (!gr_utf8_valid(bare, strlen(bare))) { /* no token is spelled so */
        return refuse(b, "`%s' is not UTF-8", word);
    }
    GR_TRY(spell(b, "", bare, &w));
    GR_TRY(add_spelling(b, word, &w));
    GR_TRY(spell(b, " ", bare, &w));
    GR_TRY(add_spelling(b, word, &w));
    return add_joined(b, bare);
}
