/* What a request asks of logits before they are sampled: bans, biases and penalties. The definition.
 *
 * Order. A row's logits go through
 *   1. bans: bad words, ids that may not be, and ends of the text while it is too short (min_tokens): -infinity;
 *   2. logit bias: added;
 *   3. repetition penalty, of ids in prompt or generated text: l * r where l < 0, else l / r;
 *   4. frequency penalty: l - f * (times that the id was generated);
 *   5. presence penalty: l - p where it was generated at all;
 * and then through temperature, min-p, top-k and top-p (sampler.h). Greedy picks see steps 1 to 5 as well. That is
 * vLLM's order (v1/sample/sampler.py: bad words, min tokens, logit bias, penalties). transformers has bias
 * (SequenceBiasLogitsProcessor), repetition penalty, bad words, minimal length, which gives the same values, since
 * -infinity stays what it is in all steps. The repetition penalty is transformers' (RepetitionPenaltyLogitsProcessor;
 * Keskar et al., CTRL, arXiv 1909.05858), frequency and presence penalties are OpenAI's (API reference, "frequency and
 * presence penalties"), counted over generated tokens alone. llama.cpp counts the prompt in all three.
 *
 * A row of a token tree sees the committed text and the path to it: struct gr_row_text. All is plain f32, one rounding
 * an operation, in this order, so that a row gives the same bits wherever it stands. Header only; common subset of C
 * and CUDA C++. */
#ifndef GR_COMMON_RULES_ADJUST_H
#define GR_COMMON_RULES_ADJUST_H

#include "common/rules/accept.h"
#include "common/rules/token_counts.h"

#define GR_BIAS_MAX 300          /* ids with a bias, and ids that are banned */
#define GR_BIAS_VALUE_MAX 100.0f /* of a bias, either sign: OpenAI's limit */
#define GR_BAD_WORD_MAX 192      /* sequences */
#define GR_BAD_WORD_LEN_MAX 32   /* ids of one */
#define GR_BAD_WORD_IDS_MAX 1024 /* entries of all of them */
#define GR_REPETITION_MIN 0.01f
#define GR_REPETITION_MAX 10.0f
#define GR_PENALTY_MAX 2.0f /* of frequency and presence, either sign: OpenAI's limit */

struct gr_bias_ids {
    int32_t n;
    int32_t id[GR_BIAS_MAX];
};

struct gr_bias_values {
    int32_t n;
    float value[GR_BIAS_MAX];
};

/* Sequences, one after the other: how many ids it has, then these. The last id of one is banned where the others stand
 * right before it. */
struct gr_bad_words {
    int32_t n; /* entries: lengths and ids together */
    int32_t entry[GR_BAD_WORD_IDS_MAX];
};

/* All zero: nothing is asked for. Copied by the size in use: gr_adjust_copy(). */
struct gr_adjust {
    float repetition; /* 0 and 1: off */
    float frequency, presence;
    struct gr_bias_ids banned;
    struct gr_bias_ids biased;
    struct gr_bias_values bias; /* of the ids in `biased`, in their order */
    struct gr_bad_words bad;
};

/* The tokens before the one that is picked: n of the session, then a tree's path to the row. */
struct gr_row_text {
    const int32_t *token; /* (n), n >= 1 */
    const int32_t *path;  /* (n_path) */
    int32_t n, n_path;
};

GR_FN int gr_adjust_bans(const struct gr_adjust *a)
{
    return a->banned.n > 0 || a->bad.n > 0;
}

/* Do they look at what stands in the text? */
GR_FN int gr_adjust_penalises(const struct gr_adjust *a)
{
    const int repeats = a->repetition > 0.0f && (a->repetition < 1.0f || a->repetition > 1.0f);
    return repeats || a->frequency < 0.0f || a->frequency > 0.0f || a->presence < 0.0f || a->presence > 0.0f;
}

GR_FN int gr_adjust_is_off(const struct gr_adjust *a)
{
    return !gr_adjust_bans(a) && a->biased.n == 0 && !gr_adjust_penalises(a);
}

GR_FN void gr_bias_ids_copy(struct gr_bias_ids *to, const struct gr_bias_ids *from)
{
    to->n = from->n;
    for (int32_t i = 0; i < from->n; i++) {
        to->id[i] = from->id[i];
    }
}

/* Entries past n are not looked at. */
GR_FN void gr_adjust_copy(struct gr_adjust *to, const struct gr_adjust *from)
{
    to->repetition = from->repetition;
    to->frequency = from->frequency;
    to->presence = from->presence;
    gr_bias_ids_copy(&to->banned, &from->banned);
    gr_bias_ids_copy(&to->biased, &from->biased);
    to->bias.n = from->bias.n;
    for (int32_t i = 0; i < from->bias.n; i++) {
        to->bias.value[i] = from->bias.value[i];
    }
    to->bad.n = from->bad.n;
    for (int32_t i = 0; i < from->bad.n; i++) {
        to->bad.entry[i] = from->bad.entry[i];
    }
}

/* ---- checks ---- */

/* Of a range that both ends belong to; false of NaN. */
GR_FN int gr_adjust_within(float x, float most)
{
    return x >= -most && x <= most;
}

GR_FN int gr_adjust_ids_fit(const int32_t *id, int32_t n, int32_t n_vocab)
{
    for (int32_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= n_vocab) {
            return 0;
        }
    }
    return 1;
}

/* What is wrong with bad words, NULL: nothing. n_out: how many there are. */
GR_FN const char *gr_bad_words_wrong(const struct gr_bad_words *b, int32_t n_vocab, int32_t *n_out)
{
    int32_t at = 0;
    int32_t n = 0;
    while (at < b->n) {
        const int32_t len = b->entry[at++];
        if (len < 1 || len > GR_BAD_WORD_LEN_MAX || len > b->n - at) {
            return "bad_words: each is its length, 1 to 32, and so many ids";
        }
        if (!gr_adjust_ids_fit(b->entry + at, len, n_vocab)) {
            return "bad_words: an id that the vocabulary does not have";
        }
        at += len;
        n++;
    }
    *n_out = n;
    return n <= GR_BAD_WORD_MAX ? 0 : "bad_words: more than 192 sequences";
}

/* What is wrong with them, NULL: nothing. n_end: ids that end the text and are banned for a while. */
GR_FN const char *gr_adjust_wrong(const struct gr_adjust *a, int32_t n_end, int32_t n_vocab)
{
    int32_t n_word = 0;
    if (!(a->repetition >= GR_REPETITION_MIN && a->repetition <= GR_REPETITION_MAX) &&
        (a->repetition < 0.0f || a->repetition > 0.0f || a->repetition != a->repetition)) {
        return "repetition_penalty out of range: 0.01 to 10, or 0 for none";
    }
    if (!gr_adjust_within(a->frequency, GR_PENALTY_MAX) || !gr_adjust_within(a->presence, GR_PENALTY_MAX)) {
        return "frequency_penalty and presence_penalty are -2 to 2";
    }
    if (a->biased.n != a->bias.n) {
        return "logit_bias: ids and values are not as many";
    }
    for (int32_t i = 0; i < a->bias.n; i++) {
        if (!gr_adjust_within(a->bias.value[i], GR_BIAS_VALUE_MAX)) {
            return "logit_bias: a value is not -100 to 100";
        }
    }
    if (!gr_adjust_ids_fit(a->biased.id, a->biased.n, n_vocab) ||
        !gr_adjust_ids_fit(a->banned.id, a->banned.n, n_vocab)) {
        return "logit_bias: an id that the vocabulary does not have";
    }
    const char *wrong = gr_bad_words_wrong(&a->bad, n_vocab, &n_word);
    if (wrong != 0) {
        return wrong;
    }
    return a->banned.n + n_word + n_end < n_vocab ? 0 : "as many ids may be banned as the vocabulary has";
}

/* ---- a row ---- */

/* The token that stands `back` before the picked one, from 1 on. -1: the text does not reach so far. */
GR_FN int32_t gr_row_text_back(const struct gr_row_text *t, int32_t back)
{
    if (back <= t->n_path) {
        return t->path[t->n_path - back];
    }
    return back - t->n_path <= t->n ? t->token[t->n - (back - t->n_path)] : -1;
}

/* ids outside the vocabulary are passed over: ends of a text may be. */
GR_FN void gr_ban_ids(const int32_t *id, int32_t n, float *l, int32_t n_vocab)
{
    for (int32_t i = 0; i < n; i++) {
        if (id[i] >= 0 && id[i] < n_vocab) {
            l[id[i]] = -INFINITY;
        }
    }
}

/* Does the text end with the word's ids but the last? */
GR_FN int gr_bad_word_hits(const int32_t *word, int32_t len, const struct gr_row_text *t)
{
    int32_t k = 1; /* ids before the last that stand where they should */
    while (k < len && gr_row_text_back(t, k) == word[len - 1 - k]) {
        k++;
    }
    return k == len;
}

GR_FN void gr_ban_bad_words(const struct gr_bad_words *b, const struct gr_row_text *t, float *l)
{
    for (int32_t at = 0; at < b->n; at += 1 + b->entry[at]) {
        const int32_t len = b->entry[at];
        if (gr_bad_word_hits(b->entry + at + 1, len, t)) {
            l[b->entry[at + len]] = -INFINITY;
        }
    }
}

/* The same: a drafter may have fewer ids than the target. */
GR_FN void gr_add_bias(const struct gr_adjust *a, float *l, int32_t n_vocab)
{
    for (int32_t i = 0; i < a->bias.n; i++) {
        const int32_t id = a->biased.id[i];
        if (id >= 0 && id < n_vocab) {
            l[id] = l[id] + a->bias.value[i];
        }
    }
}

/* What penalties there are; repetition is not 0 here. */
struct gr_penalties {
    float repetition, frequency, presence;
};

GR_FN struct gr_penalties gr_penalties_of(const struct gr_adjust *a)
{
    const struct gr_penalties p = {a->repetition > 0.0f ? a->repetition : 1.0f, a->frequency, a->presence};
    return p;
}

/* Steps 3 to 5 on the value of an id that stands in the text, n_generated times in its generated part. */
GR_FN float gr_penalise_value(float v, struct gr_penalties p, uint32_t n_generated)
{
    v = v < 0.0f ? v * p.repetition : v / p.repetition;
    v = v - p.frequency * (float)n_generated;
    return v - (n_generated > 0 ? p.presence : 0.0f);
}

/* c: of all of the row's text, its path included. */
GR_FN void gr_penalise(const struct gr_adjust *a, const struct gr_token_counts *c, float *l)
{
    const struct gr_penalties p = gr_penalties_of(a);
    for (int32_t i = 0; i < c->n_id; i++) {
        const int32_t id = c->id[i];
        l[id] = gr_penalise_value(l[id], p, c->generated[id]);
    }
}

/* Steps 1 to 5 on one row, in place. ends: ids that may not be yet, NULL: none; c: NULL where nothing is penalised. */
GR_FN void gr_adjust_row(const struct gr_adjust *a, const struct gr_stop_ids *ends, const struct gr_row_text *t,
                         const struct gr_token_counts *c, float *l, int32_t n_vocab)
{
    if (ends != 0) {
        gr_ban_ids(ends->id, ends->n, l, n_vocab);
    }
    gr_ban_bad_words(&a->bad, t, l);
    gr_ban_ids(a->banned.id, a->banned.n, l, n_vocab);
    gr_add_bias(a, l, n_vocab);
    if (c != 0) {
        gr_penalise(a, c, l);
    }
}

#endif
