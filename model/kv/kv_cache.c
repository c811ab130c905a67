#include "model/kv/kv_cache.h"

#include "common/base/log.h"
#include "common/rules/hash.h"

#include <stdlib.h>
#include <string.h>

#define NONE GR_KV_NO_BLOCK

/* ---- life ---- */

static uint64_t hash_text(uint64_t h, const char *text)
{
    const size_t len = strlen(text);
    for (size_t i = 0; i < len; i++) {
        h = gr_hash_extend(h, (uint8_t)text[i]);
    }
    return gr_hash_extend(h, (int32_t)len);
}

static uint64_t hash_root(const struct gr_kv_identity *model)
{
    uint64_t h = gr_hash_extend(0, (int32_t)(model->model_fingerprint >> 32));
    h = gr_hash_extend(h, (int32_t)model->model_fingerprint);
    return hash_text(h, model->numerics_id);
}

static uint32_t buckets_for(int32_t n_block)
{
    uint32_t n = 1;
    while (n < (uint32_t)n_block) {
        n *= 2;
    }
    return n;
}

size_t gr_kv_cache_bytes(int32_t n_block)
{
    return (size_t)n_block * sizeof(struct gr_kv_entry) + buckets_for(n_block) * sizeof(int32_t);
}

static void empty_buckets(struct gr_kv_cache *c)
{
    for (uint32_t i = 0; i < c->n_bucket; i++) {
        c->bucket[i] = NONE;
    }
    c->n_entry = 0;
}

enum gr_status gr_kv_cache_init(struct gr_kv_cache *c, struct gr_kv_pool *pool, const struct gr_kv_identity *model)
{
    *c = (struct gr_kv_cache){
        .pool = pool, .root_hash = hash_root(model), .hash_mask = UINT64_MAX, .n_bucket = buckets_for(pool->n_block)};
    c->entry = calloc((size_t)pool->n_block, sizeof(*c->entry));
    c->bucket = calloc(c->n_bucket, sizeof(*c->bucket));
    if (c->entry == NULL || c->bucket == NULL) {
        gr_kv_cache_finish(c);
        log_error("out of memory for the prefix cache's entries of %d KV blocks, %zu MiB: lower --kv-blocks, or use "
                  "--prefix-cache off",
                  pool->n_block, gr_kv_cache_bytes(pool->n_block) >> 20);
        return GR_ENOMEM;
    }
    empty_buckets(c);
    return GR_OK;
}

void gr_kv_cache_finish(struct gr_kv_cache *c)
{
    free(c->entry);
    free(c->bucket);
    *c = (struct gr_kv_cache){0};
}

/* ---- one step of a chain ---- */

/* A block that could be an entry. */
struct key {
    const char *salt; /* of the text */
    int32_t parent;
    const int32_t *token; /* (GR_KV_BLOCK_TOKENS) */
};

static uint64_t hash_key(const struct gr_kv_cache *c, const struct key *k)
{
    uint64_t h = k->parent != NONE ? c->entry[k->parent].hash : hash_text(c->root_hash, k->salt);
    for (int i = 0; i < GR_KV_BLOCK_TOKENS; i++) {
        h = gr_hash_extend(h, k->token[i]);
    }
    return h & c->hash_mask;
}

static int32_t *bucket_of(const struct gr_kv_cache *c, uint64_t hash)
{
    return &c->bucket[hash & (c->n_bucket - 1)];
}

static bool is_same(const struct gr_kv_entry *e, const struct key *k)
{
    return e->parent == k->parent && memcmp(e->token, k->token, sizeof(e->token)) == 0 &&
           (k->parent != NONE || strcmp(e->salt, k->salt) == 0);
}

static int32_t find(const struct gr_kv_cache *c, const struct key *k)
{
    const uint64_t hash = hash_key(c, k);
    int32_t b = *bucket_of(c, hash);
    while (b != NONE && !(c->entry[b].hash == hash && is_same(&c->entry[b], k))) {
        b = c->entry[b].next;
    }
    return b;
}

static void add(struct gr_kv_cache *c, const struct key *k, uint64_t maker, int32_t block)
{
    struct gr_kv_entry *e = &c->entry[block];
    const uint64_t hash = hash_key(c, k);
    int32_t *first = bucket_of(c, hash);
    *e = (struct gr_kv_entry){.hash = hash, .parent = k->parent, .next = *first, .maker = maker};
    memcpy(e->token, k->token, sizeof(e->token));
    if (k->parent != NONE) {
        c->entry[k->parent].n_child++;
    } else {
        const size_t len = strlen(k->salt);
        GR_ASSERT(len < sizeof(e->salt));
        memcpy(e->salt, k->salt, len);
    }
    *first = block;
    c->n_entry++;
    gr_kv_pool_keep(c->pool, block);
}

/* The block is anybody's to write again once its entry is gone: in this order. */
static void remove_entry(struct gr_kv_cache *c, int32_t block)
{
    const struct gr_kv_entry *e = &c->entry[block];
    int32_t *at = bucket_of(c, e->hash);
    GR_ASSERT(e->n_child == 0);
    while (*at != block) {
        at = &c->entry[*at].next;
    }
    *at = e->next;
    if (e->parent != NONE) {
        c->entry[e->parent].n_child--;
    }
    c->n_entry--;
    gr_kv_pool_give_up(c->pool, block);
}

/* ---- chains ---- */

/* The key of the whole block i of a text, whose block before it is parent. */
static struct key key_of(const char *salt, const int32_t *token, int32_t i, int32_t parent)
{
    return (struct key){.salt = salt, .parent = parent, .token = token + (size_t)i * GR_KV_BLOCK_TOKENS};
}

static int32_t block_before(const struct gr_kv_table *t, int32_t i)
{
    return i > 0 ? t->block[i - 1] : NONE;
}

int32_t gr_kv_cache_take(struct gr_kv_cache *c, const char *salt, const int32_t *token, int32_t n_token,
                         struct gr_kv_table *t)
{
    const int32_t first = t->n_block;
    for (int32_t i = first; i < n_token / GR_KV_BLOCK_TOKENS; i++) {
        const struct key k = key_of(salt, token, i, block_before(t, i));
        if (k.parent != NONE && !c->pool->kept[k.parent]) {
            break;
        }
        const int32_t block = find(c, &k);
        if (block == NONE) {
            break;
        }
        gr_kv_table_hold(c->pool, t, block);
    }
    return t->n_block - first;
}

/* How many of the first n blocks are entries: those that are come first. */
static int32_t n_kept(const struct gr_kv_cache *c, const struct gr_kv_table *t, int32_t n)
{
    while (n > 0 && !c->pool->kept[t->block[n - 1]]) {
        n--;
    }
    return n;
}

void gr_kv_cache_publish(struct gr_kv_cache *c, const char *salt, const int32_t *token, int32_t n_token, uint64_t maker,
                         struct gr_kv_table *t)
{
    const int32_t n_whole = n_token / GR_KV_BLOCK_TOKENS;
    GR_ASSERT(n_whole <= t->n_block);
    for (int32_t i = n_kept(c, t, n_whole); i < n_whole; i++) {
        const struct key k = key_of(salt, token, i, block_before(t, i));
        const int32_t equal = find(c, &k);
        if (equal != NONE) {
            gr_kv_table_replace(c->pool, t, i, equal);
        } else {
            add(c, &k, maker, t->block[i]);
        }
    }
}

static bool is_of_maker_alone(const struct gr_kv_cache *c, int32_t block, uint64_t maker)
{
    const struct gr_kv_entry *e = &c->entry[block];
    return e->maker == maker && e->n_child == 0 && c->pool->n_owner[block] == 1;
}

void gr_kv_cache_forget(struct gr_kv_cache *c, const struct gr_kv_table *t, int32_t n_block, uint64_t maker)
{
    int32_t n = n_kept(c, t, t->n_block);
    while (n > n_block && is_of_maker_alone(c, t->block[n - 1], maker)) {
        remove_entry(c, t->block[--n]);
    }
}

bool gr_kv_cache_make_free(struct gr_kv_cache *c, int32_t n_free)
{
    const struct gr_kv_pool *pool = c->pool;
    if (pool->n_free + pool->n_idle - pool->n_reserved < n_free) {
        return false;
    }
    while (pool->n_free - pool->n_reserved < n_free) {
        remove_entry(c, pool->oldest);
        c->n_evicted++;
    }
    return true;
}

/* ---- looking in ---- */

/* How many entries come after each, in the pool's scratch. */
static void count_children(const struct gr_kv_cache *c)
{
    memset(c->pool->seen, 0, (size_t)c->pool->n_block * sizeof(*c->pool->seen));
    for (int32_t b = 0; b < c->pool->n_block; b++) {
        if (c->pool->kept[b] && c->entry[b].parent != NONE) {
            c->pool->seen[c->entry[b].parent]++;
        }
    }
}

static bool check_entry(const struct gr_kv_cache *c, int32_t block)
{
    const struct gr_kv_entry *e = &c->entry[block];
    const struct key k = {.salt = e->salt, .parent = e->parent, .token = e->token};
    return (uint16_t)e->n_child == c->pool->seen[block] && (e->parent == NONE || c->pool->kept[e->parent]) &&
           find(c, &k) == block;
}

static bool check_table(const struct gr_kv_cache *c, const struct gr_kv_table *t)
{
    const int32_t n = n_kept(c, t, t->n_block);
    bool good = true;
    for (int32_t i = 0; good && i < n; i++) {
        good = c->pool->kept[t->block[i]] && c->entry[t->block[i]].parent == block_before(t, i);
    }
    return good;
}

bool gr_kv_cache_check(const struct gr_kv_cache *c, const struct gr_kv_table *const *tables, int n_table)
{
    const int32_t oldest = c->pool->oldest;
    int32_t n = 0;
    bool good = oldest == NONE || c->entry[oldest].n_child == 0;
    count_children(c);
    for (int32_t b = 0; good && b < c->pool->n_block; b++) {
        n += c->pool->kept[b];
        good = !c->pool->kept[b] || check_entry(c, b);
    }
    for (int i = 0; good && i < n_table; i++) {
        good = check_table(c, tables[i]);
    }
    return good && n == c->n_entry;
}

int32_t gr_kv_cache_find(const struct gr_kv_cache *c, const char *salt, const int32_t *token, int32_t n_token)
{
    int32_t parent = NONE;
    for (int32_t i = 0; i < n_token / GR_KV_BLOCK_TOKENS; i++) {
        const struct key k = key_of(salt, token, i, parent);
        parent = find(c, &k);
        if (parent == NONE) {
            return i;
        }
    }
    return n_token / GR_KV_BLOCK_TOKENS;
}
