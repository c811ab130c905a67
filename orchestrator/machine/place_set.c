#include "orchestrator/machine/place_set.h"

#include <stdlib.h>

bool gr_place_set_create(struct gr_place_set *s, uint32_t n_max)
{
    s->n = 0;
    s->n_word = (n_max + 63) / 64;
    s->word = calloc(s->n_word, sizeof(*s->word));
    return s->word != NULL;
}

void gr_place_set_destroy(struct gr_place_set *s)
{
    free(s->word);
    s->word = NULL;
}

void gr_place_set_put(struct gr_place_set *s, uint32_t place, bool member)
{
    uint64_t *word = &s->word[place / 64];
    const uint64_t bit = (uint64_t)1 << place % 64;
    const bool was = (*word & bit) != 0;
    s->n += (uint32_t)member - (uint32_t)was;
    *word = member ? *word | bit : *word & ~bit;
}

int gr_place_set_next(const struct gr_place_set *s, uint32_t from)
{
    if (s->n == 0 || from / 64 >= s->n_word) {
        return -1;
    }
    uint32_t i = from / 64;
    uint64_t left = s->word[i] >> from % 64 << from % 64;
    while (left == 0 && ++i < s->n_word) {
        left = s->word[i];
    }
    return left != 0 ? (int)(64 * i) + __builtin_ctzll(left) : -1;
}
