/* Accounting of the KV pool: which block of tokens belongs to whom. Pure integers; the storage is the model's
 * (lm.h). The pool's blocks are 0 .. n_block - 1; scratch blocks lie after them and are not accounted here.
 *
 * A block may have several owners, tables that begin with the same tokens (gr_kv_table_share). It is then read by all
 * and written by nobody: whoever is to write after a cut keeps only what gr_kv_table_own_len() says. It is free when
 * its last owner lets go of it.
 *
 * A block may be kept (gr_kv_pool_keep): what it holds is wanted for tables to come (kv_cache.h). It is written by
 * nobody, however many owners it has, and when the last of them lets go it is idle: not free, and in no table, until
 * one takes it again (gr_kv_table_hold) or it is given up (gr_kv_pool_give_up). Idle blocks are in the order in which
 * they became so.
 *
 * Invariant, checked by gr_kv_pool_check(): a block is free, owned or idle, and its count is that of the tables which
 * hold it. */
#ifndef GR_MODEL_KV_KV_POOL_H
#define GR_MODEL_KV_KV_POOL_H

#include "common/base/status.h"
#include "common/rules/kv_block.h"

#include <stdbool.h>
#include <stdint.h>

#define GR_KV_NO_BLOCK (-1)

struct gr_kv_pool {
    int32_t n_block, n_free;
    int32_t n_reserved;     /* free blocks that admitted sessions may still claim */
    int32_t *free_stack;    /* owned, (n_block) */
    uint16_t *n_owner;      /* owned, (n_block); 0: free or idle */
    uint16_t *seen;         /* owned, (n_block): scratch of gr_kv_pool_check() */
    bool *kept;             /* owned, (n_block) */
    int32_t *older, *newer; /* owned, (n_block): neighbours of an idle block; GR_KV_NO_BLOCK at the ends */
    int32_t oldest, newest; /* idle blocks; GR_KV_NO_BLOCK: none */
    int32_t n_idle;
};

/* One session's blocks, in order of position. */
struct gr_kv_table {
    int32_t *block; /* owned, (n_block_max) */
    int32_t n_block, n_block_max;
    int32_t n_reserved; /* blocks this session may still claim without asking */
};

GR_NODISCARD enum gr_status gr_kv_pool_init(struct gr_kv_pool *pool, int32_t n_block);
void gr_kv_pool_finish(struct gr_kv_pool *pool);
GR_NODISCARD enum gr_status gr_kv_table_init(struct gr_kv_table *t, int32_t n_block_max);
void gr_kv_table_finish(struct gr_kv_table *t);

/* Reserves what a session of n_token tokens needs at most. GR_AGAIN: not free now. */
GR_NODISCARD enum gr_status gr_kv_table_reserve(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t n_token);
/* Makes room for tokens [0, n_token). GR_ELIMIT: past the reservation and the pool is empty. */
GR_NODISCARD enum gr_status gr_kv_table_grow(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t n_token);
/* The first n_block blocks of `from` become those of t, too, which has none. Its reservation stays as it is. */
void gr_kv_table_share(struct gr_kv_pool *pool, struct gr_kv_table *t, const struct gr_kv_table *from, int32_t n_block);
/* How many of the first n_token tokens, which t holds, may stay where the one after them is to be written: all, or,
 * where that falls into a block of several owners or one that is kept, those before this block. */
int32_t gr_kv_table_own_len(const struct gr_kv_pool *pool, const struct gr_kv_table *t, int32_t n_token);
/* May tokens [begin, end), for which there is room, be written? */
bool gr_kv_table_may_write(const struct gr_kv_pool *pool, const struct gr_kv_table *t, int32_t begin, int32_t end);
/* Lets go of the blocks past n_token tokens: those that are nobody else's go to the session's reservation. */
void gr_kv_table_truncate(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t n_token);
/* Lets go of the first n_drop blocks: those after them become the first. */
void gr_kv_table_drop_front(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t n_drop);
/* Gives up what is reserved and not yet claimed; the blocks stay. */
void gr_kv_table_unreserve(struct gr_kv_pool *pool, struct gr_kv_table *t);
/* Lets go of every block and of the reservation. */
void gr_kv_table_release(struct gr_kv_pool *pool, struct gr_kv_table *t);

/* ---- blocks that are kept ---- */

/* An owned block's content stays wanted. */
void gr_kv_pool_keep(struct gr_kv_pool *pool, int32_t block);
/* It is wanted no more: an idle block is free then. */
void gr_kv_pool_give_up(struct gr_kv_pool *pool, int32_t block);
/* A kept block becomes the next one of t. */
void gr_kv_table_hold(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t block);
/* A kept block, which has the same content, takes the place of block i of t. */
void gr_kv_table_replace(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t i, int32_t block);

/* Storage cell of a position. */
static inline int32_t gr_kv_table_cell(const struct gr_kv_table *t, int32_t pos)
{
    return t->block[pos / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + pos % GR_KV_BLOCK_TOKENS;
}

/* Every block is free, idle or in as many tables as it has owners. tables: (n_table) borrowed pointers. */
bool gr_kv_pool_check(const struct gr_kv_pool *pool, const struct gr_kv_table *const *tables, int n_table);

#endif
