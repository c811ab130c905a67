/* The prefix cache against a slow model of it that keeps whole texts, and against what the cells hold: a cell's content
 * is made of everything that KV depends on, so a block that is taken for another text is seen, whatever its key. */
#include "common/rules/hash.h"
#include "model/kv/kv_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define BLOCK GR_KV_BLOCK_TOKENS
#define N_TABLE 5
#define N_BLOCK 24
#define N_BLOCK_MAX 8
#define N_CTX (N_BLOCK_MAX * BLOCK)
#define N_SALT 3
#define N_NODE 4096

static const char *const salts[N_SALT] = {"", "a", "b"};
static const struct gr_kv_identity identity = {.model_fingerprint = 7, .numerics_id = "ref"};

/* A text that was published: in the slow model each is kept whole. */
struct node {
    int salt, n_token;
    int32_t token[N_CTX];
    int n_holder;
    uint64_t maker;
    uint64_t let_go; /* when the last holder let go */
    bool used;
};

struct text {
    int salt;
    int32_t token[N_CTX];
    int32_t len;    /* with content */
    int32_t n_node; /* whole blocks that are published */
    uint64_t maker; /* a number of its own */
};

struct world {
    struct gr_kv_pool pool;
    struct gr_kv_cache cache;
    struct gr_kv_table table[N_TABLE];
    const struct gr_kv_table *all[N_TABLE];
    uint64_t cell[N_BLOCK * BLOCK];
    struct text text[N_TABLE];
    struct node node[N_NODE];
    uint64_t rng, clock, n_maker;
    int64_t n_hit, n_part, n_replaced, n_evicted, n_refused, n_forgotten, n_not_forgotten;
};

static uint64_t draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

static struct world *create(uint64_t hash_mask)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    assert_int_equal(gr_kv_pool_init(&w->pool, N_BLOCK), GR_OK);
    assert_int_equal(gr_kv_cache_init(&w->cache, &w->pool, &identity), GR_OK);
    w->cache.hash_mask = hash_mask;
    for (int i = 0; i < N_TABLE; i++) {
        assert_int_equal(gr_kv_table_init(&w->table[i], N_BLOCK_MAX), GR_OK);
        w->all[i] = &w->table[i];
    }
    return w;
}

static void destroy(struct world *w)
{
    for (int i = 0; i < N_TABLE; i++) {
        gr_kv_table_release(&w->pool, &w->table[i]);
        gr_kv_table_finish(&w->table[i]);
    }
    assert_int_equal(w->pool.n_free + w->pool.n_idle, N_BLOCK);
    assert_true(gr_kv_cache_make_free(&w->cache, N_BLOCK));
    assert_int_equal(w->pool.n_free, N_BLOCK);
    assert_int_equal(w->cache.n_entry, 0);
    gr_kv_cache_finish(&w->cache);
    gr_kv_pool_finish(&w->pool);
    free(w);
}

/* What a cell of position pos must hold. */
static uint64_t content(const struct text *t, int32_t pos)
{
    uint64_t h = gr_hash_extend(11, t->salt);
    for (int32_t i = 0; i <= pos; i++) {
        h = gr_hash_extend(h, t->token[i]);
    }
    return h;
}

static struct node *find_node(struct world *w, const struct text *t, int32_t n_token)
{
    for (int i = 0; i < N_NODE; i++) {
        struct node *n = &w->node[i];
        if (n->used && n->salt == t->salt && n->n_token == n_token &&
            memcmp(n->token, t->token, (size_t)n_token * sizeof(int32_t)) == 0) {
            return n;
        }
    }
    return NULL;
}

static void slow_hold(struct world *w, struct text *t, int32_t n_block)
{
    for (; t->n_node < n_block; t->n_node++) {
        struct node *n = find_node(w, t, (t->n_node + 1) * BLOCK);
        assert_non_null(n);
        n->n_holder++;
    }
}

static void slow_let_go(struct world *w, struct text *t, int32_t n_block)
{
    for (; t->n_node > n_block; t->n_node--) {
        struct node *n = find_node(w, t, t->n_node * BLOCK);
        assert_non_null(n);
        n->let_go = --n->n_holder == 0 ? ++w->clock : n->let_go;
    }
}

static void slow_publish(struct world *w, struct text *t)
{
    for (int32_t i = t->n_node; i < t->len / BLOCK; i++) {
        int free_node = 0;
        while (find_node(w, t, (i + 1) * BLOCK) == NULL && w->node[free_node].used) {
            free_node++;
        }
        if (find_node(w, t, (i + 1) * BLOCK) == NULL) {
            struct node *n = &w->node[free_node];
            *n = (struct node){.salt = t->salt, .n_token = (i + 1) * BLOCK, .maker = t->maker, .used = true};
            memcpy(n->token, t->token, (size_t)n->n_token * sizeof(int32_t));
        } else {
            w->n_replaced++;
        }
    }
    slow_hold(w, t, t->len / BLOCK);
}

static int32_t slow_find(struct world *w, const struct text *t, int32_t n_token)
{
    int32_t n = 0;
    while ((n + 1) * BLOCK <= n_token && find_node(w, t, (n + 1) * BLOCK) != NULL) {
        n++;
    }
    return n;
}

static int slow_size(const struct world *w, bool idle)
{
    int n = 0;
    for (int i = 0; i < N_NODE; i++) {
        n += w->node[i].used && (!idle || w->node[i].n_holder == 0);
    }
    return n;
}

static void slow_evict(struct world *w)
{
    struct node *oldest = NULL;
    for (int i = 0; i < N_NODE; i++) {
        struct node *n = &w->node[i];
        oldest = n->used && n->n_holder == 0 && (oldest == NULL || n->let_go < oldest->let_go) ? n : oldest;
    }
    assert_non_null(oldest);
    oldest->used = false;
    w->n_evicted++;
}

static void check(struct world *w)
{
    assert_true(gr_kv_pool_check(&w->pool, w->all, N_TABLE));
    assert_true(gr_kv_cache_check(&w->cache, w->all, N_TABLE));
    assert_int_equal(w->cache.n_entry, slow_size(w, false));
    assert_int_equal(w->pool.n_idle, slow_size(w, true));
    for (int i = 0; i < N_TABLE; i++) {
        const struct text *t = &w->text[i];
        for (int32_t p = 0; p < t->len; p++) {
            assert_true(w->cell[gr_kv_table_cell(&w->table[i], p)] == content(t, p));
        }
    }
}

/* Few texts, so that they meet: a block is all of one of two tokens, and now and then one of its ids is another. */
static void draw_text(struct world *w, struct text *t, int32_t from)
{
    for (int32_t p = from; p < N_CTX; p++) {
        const bool begins = p % BLOCK == 0 || p == from;
        t->token[p] = begins ? (int32_t)draw(&w->rng, 2) : t->token[p - 1];
    }
    if (draw(&w->rng, 4) == 0) {
        t->token[from + (int32_t)draw(&w->rng, (uint64_t)(N_CTX - from))] = 9;
    }
}

static void open_text(struct world *w, int i)
{
    struct text *t = &w->text[i];
    const int32_t n_token = (int32_t)draw(&w->rng, N_CTX + 1);
    *t = (struct text){.salt = (int)draw(&w->rng, N_SALT), .maker = ++w->n_maker};
    draw_text(w, t, 0);
    const int32_t want = slow_find(w, t, n_token);
    assert_int_equal(gr_kv_cache_find(&w->cache, salts[t->salt], t->token, n_token), want);
    assert_int_equal(gr_kv_cache_take(&w->cache, salts[t->salt], t->token, n_token, &w->table[i]), want);
    t->len = want * BLOCK;
    slow_hold(w, t, want);
    w->n_hit += want > 0;
    w->n_part += want > 0 && want < n_token / BLOCK;
}

static void write_text(struct world *w, int i)
{
    struct text *t = &w->text[i];
    struct gr_kv_table *table = &w->table[i];
    const int32_t n = 1 + (int32_t)draw(&w->rng, 40);
    const int32_t end = GR_MIN(t->len + n, N_CTX);
    const int32_t n_more = (end + BLOCK - 1) / BLOCK - table->n_block - table->n_reserved;
    const int32_t n_evict = n_more - (w->pool.n_free - w->pool.n_reserved);
    const bool fits = n_evict <= slow_size(w, true);
    assert_int_equal(gr_kv_cache_make_free(&w->cache, GR_MAX(n_more, 0)), fits);
    w->n_refused += !fits;
    for (int k = 0; fits && k < n_evict; k++) {
        slow_evict(w);
    }
    if (!fits) {
        return;
    }
    assert_int_equal(gr_kv_table_grow(&w->pool, table, end), GR_OK);
    assert_true(gr_kv_table_may_write(&w->pool, table, t->len, end));
    for (; t->len < end; t->len++) {
        w->cell[gr_kv_table_cell(table, t->len)] = content(t, t->len);
    }
}

static void publish_text(struct world *w, int i)
{
    struct text *t = &w->text[i];
    gr_kv_cache_publish(&w->cache, salts[t->salt], t->token, t->len, t->maker, &w->table[i]);
    slow_publish(w, t);
}

/* Does any published text go on after the first n_token tokens of this one? */
static bool slow_goes_on(const struct world *w, const struct node *n)
{
    for (int i = 0; i < N_NODE; i++) {
        const struct node *m = &w->node[i];
        if (m->used && m->salt == n->salt && m->n_token > n->n_token &&
            memcmp(m->token, n->token, (size_t)n->n_token * sizeof(int32_t)) == 0) {
            return true;
        }
    }
    return false;
}

/* What comes after so many tokens was not to be published. */
static void forget_text(struct world *w, int i)
{
    struct text *t = &w->text[i];
    const int32_t n_block = (int32_t)draw(&w->rng, (uint64_t)t->len + 1) / BLOCK;
    gr_kv_cache_forget(&w->cache, &w->table[i], n_block, t->maker);
    while (t->n_node > n_block) {
        struct node *n = find_node(w, t, t->n_node * BLOCK);
        assert_non_null(n);
        if (n->maker != t->maker || n->n_holder > 1 || slow_goes_on(w, n)) {
            w->n_not_forgotten++;
            return;
        }
        n->used = false;
        t->n_node--;
        w->n_forgotten++;
    }
}

/* Its end is others from here on. */
static void cut_text(struct world *w, int i)
{
    struct text *t = &w->text[i];
    const int32_t len = (int32_t)draw(&w->rng, (uint64_t)t->len + 1);
    t->len = len < t->len ? gr_kv_table_own_len(&w->pool, &w->table[i], len) : len;
    gr_kv_table_truncate(&w->pool, &w->table[i], t->len);
    slow_let_go(w, t, t->len / BLOCK);
    draw_text(w, t, GR_MIN(t->len, N_CTX - 1));
}

static void close_text(struct world *w, int i)
{
    gr_kv_table_release(&w->pool, &w->table[i]);
    slow_let_go(w, &w->text[i], 0);
    w->text[i].len = 0;
}

static void random_step(struct world *w)
{
    const int i = (int)draw(&w->rng, N_TABLE);
    if (w->text[i].len == 0) {
        open_text(w, i);
    }
    switch (draw(&w->rng, 9)) {
    case 0:
        close_text(w, i);
        break;
    case 1:
        if (w->text[i].len < N_CTX) {
            cut_text(w, i);
        }
        break;
    case 2:
        forget_text(w, i);
        break;
    case 3:
    case 4:
        publish_text(w, i);
        break;
    default:
        write_text(w, i);
        break;
    }
}

/* hash_mask: which bits of hashes are left. */
static void run_random(uint64_t hash_mask, int n_step)
{
    struct world *w = create(hash_mask);
    w->rng = hash_mask ^ 5;
    for (int step = 0; step < n_step; step++) {
        random_step(w);
        check(w);
    }
    assert_true(w->n_hit > n_step / 100 && w->n_part > n_step / 200 && w->n_replaced > n_step / 500);
    assert_true(w->n_evicted > n_step / 100 && w->n_refused > 0);
    assert_true(w->n_forgotten > n_step / 100 && w->n_not_forgotten > n_step / 500);
    assert_int_equal((int64_t)w->cache.n_evicted, w->n_evicted);
    destroy(w);
}

static void test_random_operations(void **state)
{
    (void)state;
    run_random(UINT64_MAX, 6000);
}

/* All entries have one hash, or one of two: every answer rests on the comparison. */
static void test_forced_collisions(void **state)
{
    (void)state;
    run_random(0, 6000);
    run_random(1, 3000);
}

static void fill(struct world *w, int i, int salt, int32_t token, int32_t len)
{
    struct text *t = &w->text[i];
    *t = (struct text){.salt = salt, .maker = ++w->n_maker};
    for (int32_t p = 0; p < N_CTX; p++) {
        t->token[p] = token;
    }
    assert_int_equal(gr_kv_table_grow(&w->pool, &w->table[i], len), GR_OK);
    t->len = len;
    gr_kv_cache_publish(&w->cache, salts[salt], t->token, len, t->maker, &w->table[i]);
}

static int32_t found(const struct world *w, int salt, int32_t token, int32_t len)
{
    int32_t ids[N_CTX];
    for (int32_t p = 0; p < N_CTX; p++) {
        ids[p] = token;
    }
    return gr_kv_cache_find(&w->cache, salts[salt], ids, len);
}

/* Whole blocks only, under their own salt only. */
static void test_borders_and_salts(void **state)
{
    (void)state;
    struct world *w = create(UINT64_MAX);
    fill(w, 0, 1, 3, 47);
    const int32_t want[] = {0, 0, 1, 1, 2, 2, 2};
    const int32_t len[] = {0, 15, 16, 31, 32, 47, 48};
    for (size_t i = 0; i < sizeof(len) / sizeof(len[0]); i++) {
        assert_int_equal(found(w, 1, 3, len[i]), want[i]);
        assert_int_equal(found(w, 0, 3, len[i]), 0);
        assert_int_equal(found(w, 2, 3, len[i]), 0);
        assert_int_equal(found(w, 1, 4, len[i]), 0);
    }
    gr_kv_table_release(&w->pool, &w->table[0]);
    assert_int_equal(w->pool.n_idle, 2);
    assert_int_equal(w->pool.n_free, N_BLOCK - 2); /* the block that was only begun is free at once */
    assert_int_equal(found(w, 1, 3, 48), 2);
    destroy(w);
}

/* A published block is written by nobody, not even by its only owner. */
static void test_kept_is_read_only(void **state)
{
    (void)state;
    struct world *w = create(UINT64_MAX);
    fill(w, 0, 0, 3, 40);
    assert_false(gr_kv_table_may_write(&w->pool, &w->table[0], 20, 40));
    assert_true(gr_kv_table_may_write(&w->pool, &w->table[0], 32, 40)); /* its begun block */
    assert_int_equal(gr_kv_table_own_len(&w->pool, &w->table[0], 20), 16);
    assert_int_equal(gr_kv_table_own_len(&w->pool, &w->table[0], 32), 32);
    assert_int_equal(gr_kv_table_own_len(&w->pool, &w->table[0], 40), 40);
    destroy(w);
}

/* The longest unused chain goes, from its end; what a table holds never does. */
static void test_eviction_order(void **state)
{
    (void)state;
    struct world *w = create(UINT64_MAX);
    fill(w, 0, 0, 1, 4 * BLOCK);
    fill(w, 1, 0, 2, 4 * BLOCK);
    fill(w, 2, 0, 3, 4 * BLOCK);
    gr_kv_table_release(&w->pool, &w->table[1]);
    gr_kv_table_release(&w->pool, &w->table[0]);
    assert_true(gr_kv_cache_make_free(&w->cache, N_BLOCK - 12 + 1));
    assert_int_equal(found(w, 0, 2, 64), 3);
    assert_int_equal(found(w, 0, 1, 64), 4);
    int32_t ids[N_CTX] = {0};
    for (int32_t p = 0; p < N_CTX; p++) {
        ids[p] = 2;
    }
    assert_int_equal(gr_kv_cache_take(&w->cache, "", ids, 33, &w->table[1]), 2); /* used: newer than the other */
    gr_kv_table_release(&w->pool, &w->table[1]);
    assert_true(gr_kv_cache_make_free(&w->cache, N_BLOCK - 12 + 6));
    assert_int_equal(found(w, 0, 1, 64), 0);
    assert_int_equal(found(w, 0, 2, 64), 2);
    assert_false(gr_kv_cache_make_free(&w->cache, N_BLOCK)); /* and none is given up in vain */
    assert_int_equal(found(w, 0, 2, 64), 2);
    assert_true(gr_kv_cache_make_free(&w->cache, N_BLOCK - 4));
    assert_int_equal(found(w, 0, 2, 64), 0);
    assert_int_equal(found(w, 0, 3, 64), 4); /* in a table */
    destroy(w);
}

static void test_forget(void **state)
{
    (void)state;
    struct world *w = create(UINT64_MAX);
    fill(w, 0, 0, 1, 4 * BLOCK + 3);
    const uint64_t maker = w->text[0].maker;
    int32_t ids[N_CTX];
    for (int32_t p = 0; p < N_CTX; p++) {
        ids[p] = 1;
    }
    gr_kv_cache_forget(&w->cache, &w->table[0], 4, maker);
    gr_kv_cache_forget(&w->cache, &w->table[0], 0, maker + 1); /* somebody else's turn */
    assert_int_equal(found(w, 0, 1, 64), 4);
    gr_kv_cache_forget(&w->cache, &w->table[0], 3, maker);
    assert_int_equal(found(w, 0, 1, 64), 3);
    assert_int_equal(w->table[0].n_block, 5); /* which are read on, and the last three written */
    assert_true(gr_kv_table_may_write(&w->pool, &w->table[0], 3 * BLOCK, 5 * BLOCK));
    assert_int_equal(w->cache.n_evicted, 0);
    assert_int_equal(gr_kv_cache_take(&w->cache, "", ids, 33, &w->table[1]), 2);
    gr_kv_cache_forget(&w->cache, &w->table[0], 0, maker); /* what another has taken is in its text */
    assert_int_equal(found(w, 0, 1, 64), 2);
    fill(w, 2, 0, 1, 3 * BLOCK); /* equal, and published: a third has them instead of its own */
    gr_kv_table_release(&w->pool, &w->table[2]);
    gr_kv_table_release(&w->pool, &w->table[1]);
    gr_kv_cache_forget(&w->cache, &w->table[0], 0, maker); /* its second block has one after it */
    assert_int_equal(found(w, 0, 1, 64), 3);
    assert_true(gr_kv_pool_check(&w->pool, w->all, N_TABLE) && gr_kv_cache_check(&w->cache, w->all, N_TABLE));
    destroy(w);
}

/* Keys depend on content alone: two caches of one model agree, those of other values or numerics do not. */
static void test_root(void **state)
{
    (void)state;
    const struct gr_kv_identity models[] = {identity, identity, {8, "ref"}, {7, "cpu"}};
    uint64_t root[4];
    for (int i = 0; i < 4; i++) {
        struct gr_kv_pool pool;
        struct gr_kv_cache cache;
        assert_int_equal(gr_kv_pool_init(&pool, 4), GR_OK);
        assert_int_equal(gr_kv_cache_init(&cache, &pool, &models[i]), GR_OK);
        root[i] = cache.root_hash;
        gr_kv_cache_finish(&cache);
        gr_kv_pool_finish(&pool);
    }
    assert_true(root[0] == root[1] && root[0] != root[2] && root[0] != root[3]);
}

/* No address, no number drawn at a start and no order of entries is in a key: it is the same in every process. */
static void test_known_keys(void **state)
{
    (void)state;
    struct world *w = create(UINT64_MAX);
    fill(w, 0, 1, 5, BLOCK);
    fill(w, 1, 2, 6, 3 * BLOCK);
    assert_int_equal(w->cache.entry[w->table[0].block[0]].hash, UINT64_C(0xe6ef36060e7c3d7f));
    assert_int_equal(w->cache.entry[w->table[1].block[0]].hash, UINT64_C(0x906d32800c9560b3));
    assert_int_equal(w->cache.entry[w->table[1].block[2]].hash, UINT64_C(0x308a3e06040ab0bf));
    destroy(w);
}

/* Checks see what they promise to see. */
static void test_check_sees_faults(void **state)
{
    (void)state;
    struct world *w = create(UINT64_MAX);
    fill(w, 0, 0, 1, 3 * BLOCK);
    assert_true(gr_kv_cache_check(&w->cache, w->all, N_TABLE));
    const int32_t last = w->table[0].block[2];
    w->cache.entry[last].parent = w->table[0].block[0]; /* another chain */
    assert_false(gr_kv_cache_check(&w->cache, w->all, N_TABLE));
    w->cache.entry[last].parent = w->table[0].block[1];
    w->cache.entry[last].token[5] ^= 1; /* it is not where its hash says */
    assert_false(gr_kv_cache_check(&w->cache, w->all, N_TABLE));
    w->cache.entry[last].token[5] ^= 1;
    w->pool.kept[w->table[0].block[0]] = false; /* a chain without its beginning */
    assert_false(gr_kv_cache_check(&w->cache, w->all, N_TABLE));
    w->pool.kept[w->table[0].block[0]] = true;
    gr_kv_table_release(&w->pool, &w->table[0]);
    assert_true(gr_kv_pool_check(&w->pool, w->all, N_TABLE));
    w->pool.n_idle++;
    assert_false(gr_kv_pool_check(&w->pool, w->all, N_TABLE));
    w->pool.n_idle--;
    destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_forced_collisions),
        cmocka_unit_test(test_borders_and_salts),
        cmocka_unit_test(test_kept_is_read_only),
        cmocka_unit_test(test_eviction_order),
        cmocka_unit_test(test_forget),
        cmocka_unit_test(test_root),
        cmocka_unit_test(test_known_keys),
        cmocka_unit_test(test_check_sees_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
