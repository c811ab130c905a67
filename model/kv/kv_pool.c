#include "model/kv/kv_pool.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

enum gr_status gr_kv_pool_init(struct gr_kv_pool *pool, int32_t n_block)
{
    memset(pool, 0, sizeof(*pool));
    pool->free_stack = calloc((size_t)n_block, sizeof(int32_t));
    pool->is_free = calloc((size_t)n_block, 1);
    pool->seen = calloc((size_t)n_block, 1);
    if (pool->free_stack == NULL || pool->is_free == NULL || pool->seen == NULL) {
        gr_kv_pool_finish(pool);
        log_error("out of memory for the accounting of %d KV blocks", n_block);
        return GR_ENOMEM;
    }
    pool->n_block = n_block;
    pool->n_free = n_block;
    for (int32_t i = 0; i < n_block; i++) {
        pool->free_stack[i] = n_block - 1 - i;
        pool->is_free[i] = 1;
    }
    return GR_OK;
}

void gr_kv_pool_finish(struct gr_kv_pool *pool)
{
    free(pool->free_stack);
    free(pool->is_free);
    free(pool->seen);
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

static void push_free(struct gr_kv_pool *pool, int32_t block)
{
    GR_ASSERT(block >= 0 && block < pool->n_block && !pool->is_free[block]);
    pool->is_free[block] = 1;
    pool->free_stack[pool->n_free++] = block;
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
        pool->is_free[block] = 0;
        t->block[t->n_block++] = block;
    }
    return GR_OK;
}

void gr_kv_table_truncate(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t n_token)
{
    int32_t n_keep = blocks_for(n_token);
    while (t->n_block > n_keep) {
        push_free(pool, t->block[--t->n_block]);
        t->n_reserved++;
        pool->n_reserved++;
    }
}

void gr_kv_table_drop_front(struct gr_kv_pool *pool, struct gr_kv_table *t, int32_t n_drop)
{
    GR_ASSERT(n_drop >= 0 && n_drop <= t->n_block);
    for (int32_t i = 0; i < n_drop; i++) {
        push_free(pool, t->block[i]);
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

/* False: no block of this pool, or met before. */
static bool see_block(const struct gr_kv_pool *pool, int32_t b)
{
    if (b < 0 || b >= pool->n_block || pool->seen[b]) {
        return false;
    }
    pool->seen[b] = 1;
    return true;
}

bool gr_kv_pool_check(const struct gr_kv_pool *pool, const struct gr_kv_table *const *tables, int n_table)
{
    int32_t n_reserved = 0;
    memset(pool->seen, 0, (size_t)pool->n_block);
    bool good = pool->n_free >= 0 && pool->n_free <= pool->n_block;
    for (int32_t i = 0; good && i < pool->n_free; i++) {
        const int32_t b = pool->free_stack[i];
        good = see_block(pool, b) && pool->is_free[b];
    }
    for (int i = 0; i < n_table; i++) {
        n_reserved += tables[i]->n_reserved;
        for (int32_t k = 0; good && k < tables[i]->n_block; k++) {
            const int32_t b = tables[i]->block[k];
            good = see_block(pool, b) && !pool->is_free[b];
        }
    }
    for (int32_t b = 0; good && b < pool->n_block; b++) {
        good = pool->seen[b]; /* neither free nor owned: leaked */
    }
    return good && n_reserved == pool->n_reserved;
}
