/* The prefix cache: which blocks of the pool hold the KV of which beginnings of texts, so that a session to come need
 * not compute it again.
 *
 * Its unit is a whole block, 16 tokens. An entry is a kept block of the pool (kv_pool.h) with its 16 ids and the block
 * that comes before it; the first of a text has a salt in that one's place. So entries are trees: a block stands for
 * all tokens from the beginning of the text to its own end, under its salt, and is found by going along the chain from
 * there. A lookup finds candidates by a hash that is chained along the blocks, and takes one only when the block before
 * it, its ids and, at the beginning, its salt are what is asked for: no answer rests on a hash.
 *
 * A cache belongs to one loaded model and ends with it. What else decides the bits of KV, the values' fingerprint
 * (which has the settings of the rotary embedding in it) and the numerics, is the same for all its entries: it roots
 * every chain's hash, and is never to be compared.
 *
 * Who publishes promises that the KV is what a cold run would compute: of final tokens, made under full attention.
 *
 * A table's entries are always its first blocks, and they are a chain of the cache, for gr_kv_cache_publish() puts the
 * cache's own block in the place of an equal one. Tables let go of their last blocks first. So of the idle blocks the
 * oldest has no entry after it, and eviction goes from the ends of chains. Decision D-217. */
#ifndef GR_MODEL_KV_KV_CACHE_H
#define GR_MODEL_KV_KV_CACHE_H

#include "model/kv/kv_pool.h"

#include <stddef.h>

/* What decides a model's KV, besides the tokens. */
struct gr_kv_identity {
    uint64_t model_fingerprint; /* model/files/fingerprint.h */
    const char *numerics_id;    /* borrowed during the call */
};

struct gr_kv_entry {
    uint64_t hash;  /* of the chain that ends with it */
    int32_t parent; /* the block before it; GR_KV_NO_BLOCK: it begins a text */
    int32_t next;   /* in its bucket; GR_KV_NO_BLOCK: it is the last one */
    int32_t n_child;
    bool marked;    /* the owner's: something belongs to it besides KV. False when it becomes an entry */
    uint64_t maker; /* whose block became it */
    int32_t token[GR_KV_BLOCK_TOKENS];
    char salt[GR_KV_SALT_MAX]; /* where it begins a text; elsewhere empty */
};

struct gr_kv_cache {
    struct gr_kv_pool *pool; /* borrowed; only its owner touches kept blocks otherwise */
    uint64_t root_hash;
    uint64_t hash_mask;        /* all ones; tests force collisions by fewer */
    struct gr_kv_entry *entry; /* owned, (pool->n_block): of kept blocks */
    int32_t *bucket;           /* owned, (n_bucket): the first entry; GR_KV_NO_BLOCK: none */
    uint32_t n_bucket;         /* a power of two */
    int32_t n_entry;
    uint64_t n_evicted; /* entries, so far */
};

/* GR_ENOMEM is logged. */
GR_NODISCARD enum gr_status gr_kv_cache_init(struct gr_kv_cache *c, struct gr_kv_pool *pool,
                                             const struct gr_kv_identity *model);
/* Also of one that was never initialised, all zeroes. */
void gr_kv_cache_finish(struct gr_kv_cache *c);
/* Bytes for a pool of n_block blocks. */
size_t gr_kv_cache_bytes(int32_t n_block);

/* Goes on with t's blocks, all of which are entries (or there are none), as far as the next whole blocks of
 * token[0 .. n_token) are in the cache. Returns how many blocks t has taken. */
int32_t gr_kv_cache_take(struct gr_kv_cache *c, const char *salt, const int32_t *token, int32_t n_token,
                         struct gr_kv_table *t);
/* The whole blocks of t, which holds token[0 .. n_token), become entries. Where there is an equal one already it takes
 * the place of t's block, which is let go; no pass may be using t. maker: a number that nobody else ever has. */
void gr_kv_cache_publish(struct gr_kv_cache *c, const char *salt, const int32_t *token, int32_t n_token, uint64_t maker,
                         struct gr_kv_table *t);
/* Of t's blocks after the first n_block those are entries no more, from the last one back, that the maker's blocks
 * became, that no other table has, and after which there is none. What others have taken, gone on after or published
 * themselves is part of their own texts. t keeps its blocks; a pass may be using it. */
void gr_kv_cache_forget(struct gr_kv_cache *c, const struct gr_kv_table *t, int32_t n_block, uint64_t maker);
/* Gives up idle entries, the longest unused first, until n_free blocks that are not reserved are free. False: there are
 * not so many, even without any entry, and none was given up. */
bool gr_kv_cache_make_free(struct gr_kv_cache *c, int32_t n_free);

/* Every kept block is an entry, found by its hash, whose chain is whole; every table's entries are its first blocks and
 * a chain; the oldest idle block has none after it. For tests and debug builds. */
bool gr_kv_cache_check(const struct gr_kv_cache *c, const struct gr_kv_table *const *tables, int n_table);
/* How many whole blocks of token[0 .. n_token) are in the cache; nothing is taken. For tests. */
int32_t gr_kv_cache_find(const struct gr_kv_cache *c, const char *salt, const int32_t *token, int32_t n_token);

#endif
