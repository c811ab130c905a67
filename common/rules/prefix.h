/* The tokens of a session that one side knows, and the hash of each of their lengths (hash.h): equal hashes of equal
 * lengths mean equal tokens. Both machines build on it; nobody else writes its members. Memory is the owner's. */
#ifndef GR_COMMON_RULES_PREFIX_H
#define GR_COMMON_RULES_PREFIX_H

#include "common/rules/hash.h"

#include <stdbool.h>
#include <stdlib.h>

struct gr_prefix {
    int32_t *token; /* owned, (n_max) */
    uint64_t *hash; /* owned, (n_max + 1): hash[n] of the first n tokens, hash[0] = 0 */
    int32_t len;
};

/* A prefix of no tokens in the memory that p has. */
static inline struct gr_prefix gr_prefix_empty(const struct gr_prefix *p)
{
    return (struct gr_prefix){.token = p->token, .hash = p->hash};
}

/* Memory for n_max tokens, zeroed; false: there is none. gr_prefix_free in either case. */
static inline bool gr_prefix_alloc(struct gr_prefix *p, int32_t n_max)
{
    p->token = calloc((size_t)n_max, sizeof(*p->token));
    p->hash = calloc((size_t)n_max + 1, sizeof(*p->hash));
    p->len = 0;
    return p->token != NULL && p->hash != NULL;
}

static inline void gr_prefix_free(struct gr_prefix *p)
{
    free(p->token);
    free(p->hash);
}

/* There is room. */
static inline void gr_prefix_append(struct gr_prefix *p, int32_t token)
{
    p->token[p->len] = token;
    p->hash[p->len + 1] = gr_hash_extend(p->hash[p->len], token);
    p->len++;
}

/* Keeps the first len tokens; len <= p->len. */
static inline void gr_prefix_cut(struct gr_prefix *p, int32_t len)
{
    p->len = len;
}

/* Another token at pos; the hashes after it follow. */
static inline void gr_prefix_replace(struct gr_prefix *p, int32_t pos, int32_t token)
{
    p->token[pos] = token;
    for (int32_t i = pos; i < p->len; i++) {
        p->hash[i + 1] = gr_hash_extend(p->hash[i], p->token[i]);
    }
}

/* Hash of all of it. */
static inline uint64_t gr_prefix_hash(const struct gr_prefix *p)
{
    return p->hash[p->len];
}

#endif
