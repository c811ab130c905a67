/* Where beginnings of texts have been computed: which worker is likely to have the KV of how much of a prompt. Pure.
 *
 * An entry says that a worker has had KV of the first n tokens of some text, n a multiple of GR_PREFIX_STEP. The text
 * is known by a hash alone, chained along the blocks of 16 tokens that a target's prefix cache shares (kv_cache.h),
 * from a root that is made of the model and the salt. The worker may have given the KV up since: an entry is a hint,
 * and a wrong one costs a prompt that is computed where another one would have been; no answer rests on it.
 *
 * Steps of several blocks keep the table small, and what all texts of a chat template begin with out of it. There is a
 * fixed number of entries; the longest unused goes first, the ends of a text before its beginning. Decision D-257. */
#ifndef GR_ORCHESTRATOR_MACHINE_PREFIX_PLACES_H
#define GR_ORCHESTRATOR_MACHINE_PREFIX_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#define GR_PREFIX_STEP 128     /* tokens: eight blocks */
#define GR_PREFIX_STEPS 256    /* of a text, from its beginning; what comes after them is not looked at */
#define GR_PREFIX_PLACES 32768 /* entries of an orchestrator: 4 million tokens, 1 MB */

struct gr_prefix_entry {
    uint64_t hash;
    uint32_t worker;
    uint32_t next;         /* in its bucket */
    uint32_t older, newer; /* in the order of use */
};

struct gr_prefix_places {
    struct gr_prefix_entry *entry; /* owned, (n_max) */
    uint32_t *bucket;              /* owned, (n_bucket): the first entry */
    uint32_t n_max, n_bucket;      /* n_bucket: a power of two */
    uint32_t n;                    /* entries in use */
    uint32_t vacant;               /* the first of those that are not, joined by `next` */
    uint32_t oldest, newest;
};

/* At most n_max entries. False: out of memory; destroy it all the same. */
bool gr_prefix_places_create(struct gr_prefix_places *p, uint32_t n_max);
void gr_prefix_places_destroy(struct gr_prefix_places *p);

/* Where the hashes of a text begin: texts of other models or salts have other ones. */
uint64_t gr_prefix_root(uint64_t model_fingerprint, const char *salt);

/* The worker has KV of token[0 .. n_token). */
void gr_prefix_places_put(struct gr_prefix_places *p, uint64_t root, const int32_t *token, uint32_t n_token,
                          uint32_t worker);
/* held[w], w below n_worker: how many of token[0 .. n_token) worker w is likely to have KV of; 0: not known. */
void gr_prefix_places_look(const struct gr_prefix_places *p, uint64_t root, const int32_t *token, uint32_t n_token,
                           uint32_t *held, uint32_t n_worker);
/* The worker is gone, or another one has its number. */
void gr_prefix_places_forget(struct gr_prefix_places *p, uint32_t worker);

/* Every entry is in the bucket of its hash and in the order of use, once. For tests. */
bool gr_prefix_places_check(const struct gr_prefix_places *p);

#endif
