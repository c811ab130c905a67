#include "model/kv/kv_pool.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

enum gr_status gr_kv_pool_init(struct gr_kv_pool *pool, int32_t n_block)
{
    memset(pool, 0, sizeof(*pool));
    pool->free_stack = calloc((size_t)n_block, sizeof(int32_t));
    pool->n_owner = calloc((size_t)n_block, sizeof(*pool->n_owner));
    pool->seen = calloc((size_t)n_block, sizeof(*pool->seen));
    pool->kept = calloc((size_t)n_block, sizeof(*pool->kept));
    pool->older = calloc((size_t)n_block, sizeof(int32_t));
    pool->newer = calloc((size_t)n_block, sizeof(int32_t));
    pool->oldest = pool->newest = GR_KV_NO_BLOCK;
    if (pool->free_stack == NULL || pool->n_owner == NULL || pool->seen == NULL || pool->kept == NULL ||
        pool->older == NULL || pool->newer == NULL) {
        gr_kv_pool_finish(pool);
        log_error("out of memory for the accounting of %d KV blocks", n_block);
        return GR_ENOMEM;
    }
    pool->n_block = n_block;
    pool->n_free = n_block;
    for (int32_t i = 0; i < n_block; i++) {
        pool->free_stack[i] = n_block - 1 - i;
    }
    return GR_OK;
}

void gr_kv_pool_finish(struct gr_kv_pool *pool)
{
    free(pool->free_stack);
    free(pool->n_owner);
    free(pool->seen);
    free(pool->kept);
    free(pool->older);
    free(pool->newer);
    memset(pool, 0, sizeof(*pool));
}

enum gr_status gr_kv_table_init(struct gr_kv_table *t, int32_t n_block_max)
{
    memset(t, 0, sizeof(*t));
    t->block = calloc((size_t)n_block_max, sizeof(int32_t));
    if (t->block == NULL) {
        log_error("out of memory for a block table of %d blocks", n_block_max);
        return GR_ENOMEM;
    }
    t->n_block_max = n_block_max;
    return GR_OK;
}

void gr_kv_table_finish(struct gr_kv_table *t)
{
    free(t->block);
    memset(t, 0, sizeof(*t));
}

static int32_t blocks_for(int32_t n_token)
{
    return (n_token + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
}

enum gr_status gr_kv_table_reserve(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t n_token)
{
    int32_t n_more = blocks_for(n_token) - t->n_block - t->n_reserved;
    if (n_more <= 0) {
        return GR_OK;
    }
    if (pool->n_free - pool->n_reserved < n_more) {
        return GR_AGAIN;
    }
    pool->n_reserved += n_more;
    t->n_reserved += n_more;
    return GR_OK;
}

/* The newest of those that are idle. */
static void add_idle(struct gr_kv_pool *pool, int32_t block)
{
    pool->older[block] = pool->newest;
    pool->newer[block] = GR_KV_NO_BLOCK;
    *(pool->newest != GR_KV_NO_BLOCK ? &pool->newer[pool->newest] : &pool->oldest) = block;
    pool->newest = block;
    pool->n_idle++;
}

static void remove_idle(struct gr_kv_pool *pool, int32_t block)
{
    const int32_t older = pool->older[block];
    const int32_t newer = pool->newer[block];
    *(older != GR_KV_NO_BLOCK ? &pool->newer[older] : &pool->oldest) = newer;
    *(newer != GR_KV_NO_BLOCK ? &pool->older[newer] : &pool->newest) = older;
    pool->n_idle--;
}

/* An owner less. True: it was the last one, and the block is free. */
static bool let_go(struct gr_kv_pool *pool, int32_t block)
{
    GR_ASSERT(block >= 0 && block < pool->n_block && pool->n_owner[block] > 0);
    if (--pool->n_owner[block] > 0) {
        return false;
    }
    if (pool->kept[block]) {
        add_idle(pool, block);
        return false;
    }
    pool->free_stack[pool->n_free++] = block;
    return true;
}

enum gr_status gr_kv_table_grow(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t n_token)
{
    int32_t n_want = blocks_for(n_token);
    GR_ASSERT(n_want <= t->n_block_max);
    while (t->n_block < n_want) {
        if (t->n_reserved > 0) {
            t->n_reserved--;
            pool->n_reserved--;
        } else if (pool->n_free - pool->n_reserved < 1) {
            return GR_ELIMIT;
        }
        int32_t block = pool->free_stack[--pool->n_free];
        pool->n_owner[block] = 1;
        t->block[t->n_block++] = block;
    }
    return GR_OK;
}

void gr_kv_table_share(struct gr_kv_pool *pool, struct gr_kv_table *t, const struct gr_kv_table *from, int32_t n_block)
{
    GR_ASSERT(t->n_block == 0 && n_block <= from->n_block && n_block <= t->n_block_max);
    for (int32_t i = 0; i < n_block; i++) {
        const int32_t block = from->block[i];
        GR_ASSERT(pool->n_owner[block] > 0 && pool->n_owner[block] < UINT16_MAX);
        pool->n_owner[block]++;
        t->block[i] = block;
    }
    t->n_block = n_block;
}

/* One owner has it, and nobody is to have it later as it is. */
static bool is_own(const struct gr_kv_pool *pool, int32_t block)
{
    return pool->n_owner[block] == 1 && !pool->kept[block];
}

int32_t gr_kv_table_own_len(const struct gr_kv_pool *pool, const struct gr_kv_table *t, int32_t n_token)
{
    const int32_t whole = n_token / GR_KV_BLOCK_TOKENS;
    const bool is_others = n_token % GR_KV_BLOCK_TOKENS > 0 && !is_own(pool, t->block[whole]);
    return is_others ? whole * GR_KV_BLOCK_TOKENS : n_token;
}

bool gr_kv_table_may_write(const struct gr_kv_pool *pool, const struct gr_kv_table *t, int32_t begin, int32_t end)
{
    bool own = blocks_for(end) <= t->n_block;
    for (int32_t i = begin / GR_KV_BLOCK_TOKENS; own && i < blocks_for(end); i++) {
        own = is_own(pool, t->block[i]);
    }
    return own;
}

void gr_kv_table_truncate(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t n_token)
{
    int32_t n_keep = blocks_for(n_token);
    while (t->n_block > n_keep) {
        const int32_t n_more = let_go(pool, t->block[--t->n_block]); /* what is others' still cannot be promised */
        t->n_reserved += n_more;
        pool->n_reserved += n_more;
    }
}

void gr_kv_table_drop_front(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t n_drop)
{
    GR_ASSERT(n_drop >= 0 && n_drop <= t->n_block);
    for (int32_t i = 0; i < n_drop; i++) {
        (void)let_go(pool, t->block[i]);
    }
    t->n_block -= n_drop;
    memmove(t->block, t->block + n_drop, (size_t)t->n_block * sizeof(*t->block));
}

void gr_kv_table_unreserve(struct gr_kv_pool *pool, struct gr_kv_table *t)
{
    pool->n_reserved -= t->n_reserved;
    t->n_reserved = 0;
}

void gr_kv_table_release(struct gr_kv_pool *pool, struct gr_kv_table *t)
{
    gr_kv_table_truncate(pool, t, 0);
    gr_kv_table_unreserve(pool, t);
}

void gr_kv_pool_keep(struct gr_kv_pool *pool, int32_t block)
{
    GR_ASSERT(pool->n_owner[block] > 0);
    pool->kept[block] = true;
}

void gr_kv_pool_give_up(struct gr_kv_pool *pool, int32_t block)
{
    GR_ASSERT(pool->kept[block]);
    pool->kept[block] = false;
    if (pool->n_owner[block] == 0) {
        remove_idle(pool, block);
        pool->free_stack[pool->n_free++] = block;
    }
}

static void add_owner(struct gr_kv_pool *pool, int32_t block)
{
    GR_ASSERT(pool->kept[block] && pool->n_owner[block] < UINT16_MAX);
    if (pool->n_owner[block]++ == 0) {
        remove_idle(pool, block);
    }
}

void gr_kv_table_hold(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t block)
{
    GR_ASSERT(t->n_block < t->n_block_max);
    add_owner(pool, block);
    t->block[t->n_block++] = block;
}

void gr_kv_table_replace(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t i, int32_t block)
{
    GR_ASSERT(i < t->n_block && t->block[i] != block);
    add_owner(pool, block);
    (void)let_go(pool, t->block[i]);
    t->block[i] = block;
}

#define SEEN_FREE UINT16_MAX /* in place of how often a block was met in tables */

/* Each once, and nobody's. */
static bool see_free(const struct gr_kv_pool *pool)
{
    bool good = pool->n_free >= 0 && pool->n_free <= pool->n_block;
    for (int32_t i = 0; good && i < pool->n_free; i++) {
        const int32_t b = pool->free_stack[i];
        good = b >= 0 && b < pool->n_block && pool->seen[b] == 0 && pool->n_owner[b] == 0 && !pool->kept[b];
        if (good) {
            pool->seen[b] = SEEN_FREE;
        }
    }
    return good;
}

/* Each once, kept, and nobody's: seen as free ones are, since no table may have them. */
static bool see_idle(const struct gr_kv_pool *pool)
{
    int32_t n = 0;
    bool good = true;
    for (int32_t b = pool->oldest; good && b != GR_KV_NO_BLOCK; b = pool->newer[b]) {
        good = b >= 0 && b < pool->n_block && pool->seen[b] == 0 && pool->n_owner[b] == 0 && pool->kept[b];
        if (good) {
            pool->seen[b] = SEEN_FREE;
            n++;
        }
    }
    return good && n == pool->n_idle;
}

static bool see_table(const struct gr_kv_pool *pool, const struct gr_kv_table *t)
{
    bool good = true;
    for (int32_t k = 0; good && k < t->n_block; k++) {
        const int32_t b = t->block[k];
        good = b >= 0 && b < pool->n_block && pool->seen[b] < pool->n_owner[b];
        if (good) {
            pool->seen[b]++;
        }
    }
    return good;
}

bool gr_kv_pool_check(const struct gr_kv_pool *pool, const struct gr_kv_table *const *tables, int n_table)
{
    int32_t n_reserved = 0;
    memset(pool->seen, 0, (size_t)pool->n_block * sizeof(*pool->seen));
    bool good = see_free(pool) && see_idle(pool);
    for (int i = 0; i < n_table; i++) {
        n_reserved += tables[i]->n_reserved;
        good = good && see_table(pool, tables[i]);
    }
    for (int32_t b = 0; good && b < pool->n_block; b++) {
        good = pool->seen[b] == SEEN_FREE || (pool->seen[b] > 0 && pool->seen[b] == pool->n_owner[b]); /* else leaked */
    }
    return good && n_reserved == pool->n_reserved && pool->n_reserved <= pool->n_free;
}
