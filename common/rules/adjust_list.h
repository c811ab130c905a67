/* What a request asks of one row's logits (adjust.h) as a list of the ids that it changes, an entry each, for a model
 * that adjusts where its logits are. gr_adjust_row() is the definition: an entry applied to a logit gives its bits.
 *
 * The entries' functions are for C and CUDA C++, the making of a list is the host's. Header only. */
#ifndef GR_COMMON_RULES_ADJUST_LIST_H
#define GR_COMMON_RULES_ADJUST_LIST_H

#include "common/rules/adjust.h"

#define GR_ADJUST_LIST_MAX 2048 /* entries of a row: 32 KB, where a row of logits is 0.5 MB */

enum {
    GR_ADJUST_BAN = 1,
    GR_ADJUST_BIAS = 2,
    GR_ADJUST_PENALISE = 4,
};

struct gr_adjust_entry {
    int32_t id;
    uint32_t what; /* GR_ADJUST_* */
    float bias;
    uint32_t n_generated;
};

/* Of a row; no id stands in it twice. n 0: nothing is changed. */
struct gr_adjust_list {
    struct gr_penalties penalties;
    int32_t n;
    const struct gr_adjust_entry *entry; /* (n) */
};

GR_FN float gr_adjust_value(const struct gr_adjust_entry *e, struct gr_penalties p, float l)
{
    float v = (e->what & GR_ADJUST_BAN) != 0 ? -INFINITY : l;
    v = (e->what & GR_ADJUST_BIAS) != 0 ? v + e->bias : v;
    return (e->what & GR_ADJUST_PENALISE) != 0 ? gr_penalise_value(v, p, e->n_generated) : v;
}

/* ---- making a list ---- */

/* What gr_adjust_row() takes beside the logits. */
struct gr_adjust_asked {
    const struct gr_adjust *adjust;
    const struct gr_stop_ids *ends; /* NULL: none */
    const struct gr_row_text *text;
    const struct gr_token_counts *counts; /* NULL: nothing is penalised */
    int32_t n_vocab;
};

/* A list while it is made. */
struct gr_adjust_lister {
    int32_t *place;                /* (n_vocab), zero between lists: an id's place in the list, from 1 on */
    struct gr_adjust_entry *entry; /* (n_max) */
    int32_t n, n_max, n_vocab;
    int fits;
};

/* The id's entry; NULL: the vocabulary does not have it, or there is no place left. */
static inline struct gr_adjust_entry *gr_adjust_list_at(struct gr_adjust_lister *l, int32_t id)
{
    if (id < 0 || id >= l->n_vocab) {
        return 0;
    }
    if (l->place[id] == 0) {
        if (l->n == l->n_max) {
            l->fits = 0;
            return 0;
        }
        l->entry[l->n] = (struct gr_adjust_entry){.id = id};
        l->place[id] = ++l->n;
    }
    return &l->entry[l->place[id] - 1];
}

static inline void gr_adjust_list_ban(struct gr_adjust_lister *l, const int32_t *id, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        struct gr_adjust_entry *e = gr_adjust_list_at(l, id[i]);
        if (e != 0) {
            e->what |= GR_ADJUST_BAN;
        }
    }
}

static inline void gr_adjust_list_bad_words(struct gr_adjust_lister *l, const struct gr_bad_words *b,
                                            const struct gr_row_text *t)
{
    for (int32_t at = 0; at < b->n; at += 1 + b->entry[at]) {
        const int32_t len = b->entry[at];
        if (gr_bad_word_hits(b->entry + at + 1, len, t)) {
            gr_adjust_list_ban(l, &b->entry[at + len], 1);
        }
    }
}

/* Two biases of one id are two additions, which an entry has no place for. */
static inline void gr_adjust_list_biases(struct gr_adjust_lister *l, const struct gr_adjust *a)
{
    for (int32_t i = 0; i < a->bias.n; i++) {
        struct gr_adjust_entry *e = gr_adjust_list_at(l, a->biased.id[i]);
        if (e != 0 && (e->what & GR_ADJUST_BIAS) != 0) {
            l->fits = 0;
        } else if (e != 0) {
            e->what |= GR_ADJUST_BIAS;
            e->bias = a->bias.value[i];
        }
    }
}

static inline void gr_adjust_list_penalties(struct gr_adjust_lister *l, const struct gr_token_counts *c)
{
    if (c->n_id > l->n_max) {
        l->fits = 0;
        return;
    }
    for (int32_t i = 0; i < c->n_id; i++) {
        struct gr_adjust_entry *e = gr_adjust_list_at(l, c->id[i]);
        if (e != 0) {
            e->what |= GR_ADJUST_PENALISE;
            e->n_generated = c->generated[c->id[i]];
        }
    }
}

/* Lists the changes that are asked of a row. place: (n_vocab) scratch, all zeros before the call and after it; entry:
 * (n_max). False: the list would have more entries than that, or an id has two biases: gr_adjust_row() changes the
 * row then. */
static inline int gr_adjust_list_make(const struct gr_adjust_asked *asked, int32_t *place,
                                      struct gr_adjust_entry *entry, int32_t n_max, struct gr_adjust_list *out)
{
    struct gr_adjust_lister l = {.place = place, .entry = entry, .n_max = n_max, .n_vocab = asked->n_vocab, .fits = 1};
    if (asked->ends != 0) {
        gr_adjust_list_ban(&l, asked->ends->id, asked->ends->n);
    }
    gr_adjust_list_bad_words(&l, &asked->adjust->bad, asked->text);
    gr_adjust_list_ban(&l, asked->adjust->banned.id, asked->adjust->banned.n);
    gr_adjust_list_biases(&l, asked->adjust);
    if (asked->counts != 0 && l.fits) {
        gr_adjust_list_penalties(&l, asked->counts);
    }
    for (int32_t i = 0; i < l.n; i++) {
        place[entry[i].id] = 0;
    }
    *out = (struct gr_adjust_list){.penalties = gr_penalties_of(asked->adjust), .n = l.n, .entry = entry};
    return l.fits;
}

#endif
