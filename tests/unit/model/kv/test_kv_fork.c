/* Blocks with several owners: forks that go on their own ways, their ends in any order, exhaustion, and random
 * operations on cells of contents against copies that share nothing. */
#include "common/rules/hash.h"
#include "model/kv/kv_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N_TABLE 6
#define N_BLOCK 24
#define N_BLOCK_MAX 10
#define BLOCK GR_KV_BLOCK_TOKENS

/* A pool with storage: a cell holds a number, as it would hold keys and values. */
struct world {
    struct gr_kv_pool pool;
    struct gr_kv_table table[N_TABLE];
    const struct gr_kv_table *all[N_TABLE];
    uint64_t cell[N_BLOCK * BLOCK];
    /* what each should hold, apart from the others */
    uint64_t want[N_TABLE][N_BLOCK_MAX * BLOCK];
    int32_t len[N_TABLE];
    uint64_t next;
};

static uint64_t draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

static void create(struct world *w)
{
    memset(w, 0, sizeof(*w));
    assert_int_equal(gr_kv_pool_init(&w->pool, N_BLOCK), GR_OK);
    for (int i = 0; i < N_TABLE; i++) {
        assert_int_equal(gr_kv_table_init(&w->table[i], N_BLOCK_MAX), GR_OK);
        w->all[i] = &w->table[i];
    }
}

static void destroy(struct world *w)
{
    for (int i = 0; i < N_TABLE; i++) {
        gr_kv_table_release(&w->pool, &w->table[i]);
        gr_kv_table_finish(&w->table[i]);
    }
    assert_int_equal(w->pool.n_free, N_BLOCK);
    assert_int_equal(w->pool.n_reserved, 0);
    gr_kv_pool_finish(&w->pool);
}

static void check(const struct world *w)
{
    assert_true(gr_kv_pool_check(&w->pool, w->all, N_TABLE));
    for (int i = 0; i < N_TABLE; i++) {
        assert_int_equal(w->table[i].n_block, (w->len[i] + BLOCK - 1) / BLOCK);
        for (int32_t p = 0; p < w->len[i]; p++) {
            assert_true(w->cell[gr_kv_table_cell(&w->table[i], p)] == w->want[i][p]);
        }
    }
}

/* False: the pool is empty, and nothing was done. */
static bool append(struct world *w, int i, int32_t n)
{
    struct gr_kv_table *t = &w->table[i];
    const int32_t end = w->len[i] + n;
    if (gr_kv_table_grow(&w->pool, t, end) != GR_OK) {
        gr_kv_table_truncate(&w->pool, t, w->len[i]);
        gr_kv_table_unreserve(&w->pool, t);
        return false;
    }
    assert_true(gr_kv_table_may_write(&w->pool, t, w->len[i], end));
    for (int32_t p = w->len[i]; p < end; p++) {
        w->cell[gr_kv_table_cell(t, p)] = w->want[i][p] = ++w->next;
    }
    w->len[i] = end;
    return true;
}

/* Keeps at most len tokens, fewer where the block that they end in is another's, too. */
static void cut(struct world *w, int i, int32_t len)
{
    w->len[i] = gr_kv_table_own_len(&w->pool, &w->table[i], len);
    gr_kv_table_truncate(&w->pool, &w->table[i], w->len[i]);
    gr_kv_table_unreserve(&w->pool, &w->table[i]);
}

/* Table i, which is empty, begins as `from` does. The part of a block is copied. False: no block is free for it. */
static bool fork_at(struct world *w, int i, int from, int32_t len)
{
    gr_kv_table_share(&w->pool, &w->table[i], &w->table[from], len / BLOCK);
    w->len[i] = len / BLOCK * BLOCK;
    memcpy(w->want[i], w->want[from], (size_t)w->len[i] * sizeof(w->want[i][0]));
    if (gr_kv_table_grow(&w->pool, &w->table[i], len) != GR_OK) {
        return false;
    }
    for (int32_t p = w->len[i]; p < len; p++) {
        w->cell[gr_kv_table_cell(&w->table[i], p)] = w->cell[gr_kv_table_cell(&w->table[from], p)];
        w->want[i][p] = w->want[from][p];
    }
    w->len[i] = len;
    return true;
}

static void test_two_ways(void **state)
{
    (void)state;
    struct world w;
    create(&w);
    assert_true(append(&w, 0, 37));
    assert_true(fork_at(&w, 1, 0, 37));
    assert_int_equal(w.pool.n_free, N_BLOCK - 4); /* three, and a copy of the third: two are one */
    assert_memory_equal(w.table[0].block, w.table[1].block, 2 * sizeof(int32_t));
    assert_int_not_equal(w.table[0].block[2], w.table[1].block[2]);
    check(&w);
    assert_true(append(&w, 0, 30) && append(&w, 1, 20));
    check(&w);
    /* a cut above what is shared keeps all of it */
    cut(&w, 0, 40);
    assert_int_equal(w.len[0], 40);
    cut(&w, 1, 33);
    assert_int_equal(w.len[1], 33);
    assert_true(append(&w, 0, 9) && append(&w, 1, 9));
    check(&w);
    /* one into it falls back to the block's beginning, and what follows is written elsewhere */
    cut(&w, 1, 20);
    assert_int_equal(w.len[1], 16);
    assert_true(append(&w, 1, 10));
    assert_int_not_equal(w.table[0].block[1], w.table[1].block[1]);
    check(&w);
    cut(&w, 0, 20); /* nobody else's any more */
    assert_int_equal(w.len[0], 20);
    check(&w);
    destroy(&w);
}

static void test_ends_in_any_order(void **state)
{
    (void)state;
    static const int order[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t k = 0; k < sizeof(order) / sizeof(order[0]); k++) {
        struct world w;
        create(&w);
        assert_true(append(&w, 0, 64) && fork_at(&w, 1, 0, 64) && fork_at(&w, 2, 1, 50));
        assert_int_equal(w.pool.n_free, N_BLOCK - 5); /* four, and a part of the fourth */
        for (int i = 0; i < 3; i++) {
            cut(&w, order[k][i], 0);
            check(&w);
        }
        assert_int_equal(w.pool.n_free, N_BLOCK);
        destroy(&w);
    }
}

/* A block that another still has is no promise: what is reserved can always be had. */
static void test_reservation(void **state)
{
    (void)state;
    struct world w;
    create(&w);
    assert_true(append(&w, 0, 4 * BLOCK) && fork_at(&w, 1, 0, 4 * BLOCK));
    gr_kv_table_truncate(&w.pool, &w.table[1], 0);
    w.len[1] = 0;
    assert_int_equal(w.table[1].n_reserved, 0);
    assert_int_equal(w.pool.n_free, N_BLOCK - 4);
    gr_kv_table_truncate(&w.pool, &w.table[0], 0);
    w.len[0] = 0;
    assert_int_equal(w.table[0].n_reserved, 4);
    check(&w);
    destroy(&w);
}

static void test_exhaustion(void **state)
{
    (void)state;
    struct world w;
    create(&w);
    assert_true(append(&w, 0, 8 * BLOCK) && append(&w, 1, 10 * BLOCK));
    assert_true(fork_at(&w, 2, 0, 8 * BLOCK)); /* takes none */
    assert_int_equal(w.pool.n_free, 6);
    assert_true(append(&w, 3, 6 * BLOCK));
    assert_true(fork_at(&w, 4, 0, 5 * BLOCK));
    assert_false(append(&w, 4, 1));
    assert_false(fork_at(&w, 5, 0, 5 * BLOCK + 3)); /* its whole blocks are there, the part is not */
    assert_int_equal(w.len[5], 5 * BLOCK);
    check(&w);
    cut(&w, 0, 0); /* all of them are others', too */
    assert_int_equal(w.pool.n_free, 0);
    cut(&w, 2, 0);
    assert_int_equal(w.pool.n_free, 3);
    assert_true(append(&w, 4, 1));
    check(&w);
    destroy(&w);
}

static void random_step(struct world *w, uint64_t *rng, int n[4])
{
    const int i = (int)draw(rng, N_TABLE);
    const int from = (int)draw(rng, N_TABLE);
    const int32_t room = N_BLOCK_MAX * BLOCK - w->len[i];
    switch (draw(rng, 4)) {
    case 0:
        if (w->len[i] == 0 && from != i && w->len[from] > 0) {
            n[0] += fork_at(w, i, from, 1 + (int32_t)draw(rng, (uint64_t)w->len[from]));
        }
        break;
    case 1:
        n[1] += !append(w, i, (int32_t)draw(rng, (uint64_t)GR_MIN(room, 40) + 1));
        break;
    case 2: {
        const int32_t len = (int32_t)draw(rng, (uint64_t)w->len[i] + 1);
        cut(w, i, len);
        n[2] += w->len[i] < len;
        break;
    }
    default:
        if (draw(rng, 8) == 0) {
            cut(w, i, 0);
            n[3]++;
        }
        break;
    }
}

static void test_random_operations(void **state)
{
    (void)state;
    struct world w;
    uint64_t rng = 41;
    int n[4] = {0}; /* forks, appends without room, cuts into what is shared, ends */
    create(&w);
    for (int step = 0; step < 60000; step++) {
        random_step(&w, &rng, n);
        check(&w);
    }
    assert_true(n[0] > 100);
    assert_true(n[1] > 100);
    assert_true(n[2] > 100);
    assert_true(n[3] > 100);
    for (int i = 0; i < N_TABLE; i++) {
        cut(&w, i, 0);
    }
    check(&w);
    destroy(&w);
}

/* gr_kv_pool_check() must see what it promises to see. */
static void test_check_sees_faults(void **state)
{
    (void)state;
    struct world w;
    create(&w);
    assert_true(append(&w, 0, 40) && fork_at(&w, 1, 0, 32));
    check(&w);
    w.pool.n_owner[w.table[0].block[0]] = 1; /* one too few */
    assert_false(gr_kv_pool_check(&w.pool, w.all, N_TABLE));
    w.pool.n_owner[w.table[0].block[0]] = 3; /* one too many */
    assert_false(gr_kv_pool_check(&w.pool, w.all, N_TABLE));
    w.pool.n_owner[w.table[0].block[0]] = 2;
    check(&w);
    assert_false(gr_kv_table_may_write(&w.pool, &w.table[0], 31, 40)); /* the second block is shared */
    assert_true(gr_kv_table_may_write(&w.pool, &w.table[0], 32, 40));
    assert_false(gr_kv_table_may_write(&w.pool, &w.table[0], 32, 49)); /* no room */
    destroy(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ways),          cmocka_unit_test(test_ends_in_any_order),
        cmocka_unit_test(test_reservation),       cmocka_unit_test(test_exhaustion),
        cmocka_unit_test(test_random_operations), cmocka_unit_test(test_check_sees_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
