/* How often each id stands in a text, in all of it and in its generated part: what penalties look at. A text grows and
 * shrinks at its end only, as a walk over the branches of a tree does.
 *
 * Counts are a function of the tokens, made anew for each pass from those that are committed: nothing has to be rolled
 * back with a session. One a thread that picks, sized by the vocabulary when it starts: 12 bytes an id, 0.6 MB for
 * SmolLM2, 1.8 MB for Qwen2.5. A table a session would be smaller only below a third of that in tokens, and would have
 * to follow every cut. Header only. */
#ifndef GR_COMMON_RULES_TOKEN_COUNTS_H
#define GR_COMMON_RULES_TOKEN_COUNTS_H

#include <stdint.h>

struct gr_token_counts {
    uint32_t *all;       /* (n_vocab), zero where an id is not in the text; memory is the owner's */
    uint32_t *generated; /* (n_vocab), the same of its generated part */
    int32_t *id;         /* (n_vocab): the ids of the text, in the order in which each came first */
    int32_t n_id;
};

/* The token is an id of the vocabulary, here as below. */
static inline void gr_token_counts_push(struct gr_token_counts *c, int32_t token, int generated)
{
    if (c->all[token]++ == 0) {
        c->id[c->n_id++] = token;
    }
    c->generated[token] += generated != 0;
}

/* Takes back the text's last token, which was pushed as such. An id that leaves the text is the one that came into it
 * last. */
static inline void gr_token_counts_pop(struct gr_token_counts *c, int32_t token, int generated)
{
    c->generated[token] -= generated != 0;
    c->n_id -= --c->all[token] == 0;
}

static inline void gr_token_counts_clear(struct gr_token_counts *c)
{
    for (int32_t i = 0; i < c->n_id; i++) {
        c->all[c->id[i]] = 0;
        c->generated[c->id[i]] = 0;
    }
    c->n_id = 0;
}

#endif
