/* Block accounting: exact sequences, reservations, random operations against a model that keeps sets. */
#include "common/rules/hash.h"
#include "model/kv/kv_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N_TABLE 6
#define N_BLOCK 40
#define N_BLOCK_MAX 16

static uint64_t draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

static void test_exact_blocks(void **state)
{
    (void)state;
    struct gr_kv_pool pool;
    struct gr_kv_table a, b;
    assert_int_equal(gr_kv_pool_init(&pool, 8), GR_OK);
    assert_int_equal(gr_kv_table_init(&a, 8), GR_OK);
    assert_int_equal(gr_kv_table_init(&b, 8), GR_OK);
    assert_int_equal(gr_kv_table_grow(&pool, &a, 0), GR_OK);
    assert_int_equal(a.n_block, 0);
    assert_int_equal(gr_kv_table_grow(&pool, &a, 1), GR_OK);
    assert_int_equal(gr_kv_table_grow(&pool, &a, 16), GR_OK); /* the same block */
    assert_int_equal(a.n_block, 1);
    assert_int_equal(gr_kv_table_grow(&pool, &a, 17), GR_OK);
    assert_int_equal(gr_kv_table_grow(&pool, &b, 33), GR_OK);
    assert_int_equal(gr_kv_table_grow(&pool, &a, 48), GR_OK);
    const int32_t want_a[] = {0, 1, 5};
    const int32_t want_b[] = {2, 3, 4};
    assert_int_equal(a.n_block, 3);
    assert_int_equal(b.n_block, 3);
    assert_memory_equal(a.block, want_a, sizeof(want_a));
    assert_memory_equal(b.block, want_b, sizeof(want_b));
    assert_int_equal(gr_kv_table_cell(&a, 0), 0);
    assert_int_equal(gr_kv_table_cell(&a, 31), 31);
    assert_int_equal(gr_kv_table_cell(&a, 32), 80);
    assert_int_equal(gr_kv_table_cell(&b, 47), 79);
    /* a smaller length shrinks nothing by growing; truncation keeps a block that is still in use */
    assert_int_equal(gr_kv_table_grow(&pool, &a, 5), GR_OK);
    assert_int_equal(a.n_block, 3);
    gr_kv_table_truncate(&pool, &a, 33);
    assert_int_equal(a.n_block, 3);
    gr_kv_table_truncate(&pool, &a, 32);
    assert_int_equal(a.n_block, 2);
    assert_int_equal(pool.n_free, 3);
    gr_kv_table_truncate(&pool, &a, 32); /* twice is once */
    assert_int_equal(pool.n_free, 3);
    /* the block that went back last comes out first: a rolled-back block is met again */
    assert_int_equal(gr_kv_table_grow(&pool, &a, 40), GR_OK);
    assert_int_equal(a.block[2], 5);
    gr_kv_table_release(&pool, &a);
    gr_kv_table_release(&pool, &b);
    assert_int_equal(pool.n_free, 8);
    assert_int_equal(pool.n_reserved, 0);
    gr_kv_table_finish(&a);
    gr_kv_table_finish(&b);
    gr_kv_pool_finish(&pool);
}

/* Any number of speculative rounds (grow for a tree, roll back) leaves the block sequence of plain decoding. */
static void test_rounds_equal_plain(void **state)
{
    (void)state;
    struct gr_kv_pool pool, plain_pool;
    struct gr_kv_table t, plain;
    uint64_t rng = 7;
    assert_int_equal(gr_kv_pool_init(&pool, 300), GR_OK);
    assert_int_equal(gr_kv_pool_init(&plain_pool, 300), GR_OK);
    assert_int_equal(gr_kv_table_init(&t, 300), GR_OK);
    assert_int_equal(gr_kv_table_init(&plain, 300), GR_OK);
    int32_t kv_len = 0;
    while (kv_len < 4500) {
        const int32_t n_tree = (int32_t)draw(&rng, 64);
        assert_int_equal(gr_kv_table_grow(&pool, &t, kv_len + 1 + n_tree), GR_OK);
        const int32_t n_path = (int32_t)draw(&rng, (uint64_t)n_tree + 1);
        kv_len += 1 + n_path;
        gr_kv_table_truncate(&pool, &t, kv_len);
        assert_int_equal(gr_kv_table_grow(&plain_pool, &plain, kv_len), GR_OK);
        assert_int_equal(t.n_block, plain.n_block);
        assert_memory_equal(t.block, plain.block, (size_t)t.n_block * sizeof(int32_t));
        assert_int_equal(pool.n_free, plain_pool.n_free);
    }
    gr_kv_table_finish(&t);
    gr_kv_table_finish(&plain);
    gr_kv_pool_finish(&pool);
    gr_kv_pool_finish(&plain_pool);
}

static void test_reservation(void **state)
{
    (void)state;
    struct gr_kv_pool pool;
    struct gr_kv_table a, b;
    assert_int_equal(gr_kv_pool_init(&pool, 8), GR_OK);
    assert_int_equal(gr_kv_table_init(&a, 8), GR_OK);
    assert_int_equal(gr_kv_table_init(&b, 8), GR_OK);
    assert_int_equal(gr_kv_table_reserve(&pool, &a, 5 * 16), GR_OK);
    assert_int_equal(gr_kv_table_reserve(&pool, &b, 4 * 16), GR_AGAIN); /* 5 + 4 > 8, and nothing was taken */
    assert_int_equal(b.n_reserved, 0);
    assert_int_equal(pool.n_reserved, 5);
    assert_int_equal(gr_kv_table_reserve(&pool, &b, 3 * 16), GR_OK);
    assert_int_equal(gr_kv_table_grow(&pool, &b, 4 * 16), GR_ELIMIT); /* past its reservation; the rest is a's */
    assert_int_equal(b.n_block, 3);
    assert_int_equal(gr_kv_table_grow(&pool, &a, 5 * 16), GR_OK); /* a's is still there */
    assert_int_equal(pool.n_free, 0);
    /* what a truncation gives back stays promised to its session */
    gr_kv_table_truncate(&pool, &a, 16);
    assert_int_equal(a.n_reserved, 4);
    assert_int_equal(gr_kv_table_grow(&pool, &b, 4 * 16), GR_ELIMIT);
    assert_int_equal(gr_kv_table_grow(&pool, &a, 5 * 16), GR_OK);
    /* reserving less than is held is nothing; reserving again counts what is held */
    assert_int_equal(gr_kv_table_reserve(&pool, &a, 1), GR_OK);
    assert_int_equal(gr_kv_table_reserve(&pool, &a, 6 * 16), GR_AGAIN);
    gr_kv_table_release(&pool, &b);
    assert_int_equal(gr_kv_table_reserve(&pool, &a, 6 * 16), GR_OK);
    assert_int_equal(a.n_reserved, 1);
    gr_kv_table_release(&pool, &a);
    assert_int_equal(pool.n_free, 8);
    assert_int_equal(pool.n_reserved, 0);
    gr_kv_table_finish(&a);
    gr_kv_table_finish(&b);
    gr_kv_pool_finish(&pool);
}

struct model {
    struct gr_kv_pool pool;
    struct gr_kv_table table[N_TABLE];
    const struct gr_kv_table *all[N_TABLE];
    int32_t reserved[N_TABLE], owned[N_TABLE]; /* what they should be */
};

static void check_model(const struct model *m)
{
    int owner[N_BLOCK];
    memset(owner, -1, sizeof(owner));
    int32_t n_owned = 0;
    int32_t n_reserved = 0;
    for (int i = 0; i < N_TABLE; i++) {
        const struct gr_kv_table *t = &m->table[i];
        assert_int_equal(t->n_block, m->owned[i]);
        assert_int_equal(t->n_reserved, m->reserved[i]);
        for (int b = 0; b < t->n_block; b++) {
            assert_in_range(t->block[b], 0, N_BLOCK - 1);
            assert_int_equal(owner[t->block[b]], -1);
            owner[t->block[b]] = i;
        }
        n_owned += t->n_block;
        n_reserved += t->n_reserved;
    }
    assert_int_equal(m->pool.n_free, N_BLOCK - n_owned);
    assert_int_equal(m->pool.n_reserved, n_reserved);
    assert_true(n_reserved <= m->pool.n_free); /* every promise can be kept */
    for (int i = 0; i < m->pool.n_free; i++) {
        assert_int_equal(owner[m->pool.free_stack[i]], -1);
        owner[m->pool.free_stack[i]] = N_TABLE;
    }
    assert_true(gr_kv_pool_check(&m->pool, m->all, N_TABLE));
}

static void random_step(struct model *m, uint64_t *rng, int n_outcome[3])
{
    const int i = (int)draw(rng, N_TABLE);
    struct gr_kv_table *t = &m->table[i];
    const int32_t n_token = (int32_t)draw(rng, N_BLOCK_MAX * 16 + 1);
    const int32_t want = n_token / 16 + (n_token % 16 != 0);
    const int32_t unpromised = m->pool.n_free - m->pool.n_reserved;
    enum gr_status st;
    switch (draw(rng, 5)) {
    case 0:
        st = gr_kv_table_reserve(&m->pool, t, n_token);
        if (want - m->owned[i] - m->reserved[i] > unpromised) {
            assert_int_equal(st, GR_AGAIN);
            n_outcome[0]++;
        } else {
            assert_int_equal(st, GR_OK);
            m->reserved[i] += want > m->owned[i] + m->reserved[i] ? want - m->owned[i] - m->reserved[i] : 0;
        }
        break;
    case 1:
    case 2: {
        const int32_t more = want > m->owned[i] ? want - m->owned[i] : 0;
        const int32_t from_reserve = more < m->reserved[i] ? more : m->reserved[i];
        const int32_t extra = more - from_reserve;
        st = gr_kv_table_grow(&m->pool, t, n_token);
        const int32_t got = extra <= unpromised ? extra : unpromised; /* it takes what there is */
        assert_int_equal(st, got == extra ? GR_OK : GR_ELIMIT);
        n_outcome[1] += got != extra;
        m->reserved[i] -= from_reserve;
        m->owned[i] += from_reserve + got;
        break;
    }
    case 3:
        gr_kv_table_truncate(&m->pool, t, n_token);
        if (m->owned[i] > want) {
            m->reserved[i] += m->owned[i] - want;
            m->owned[i] = want;
        }
        break;
    default:
        if (draw(rng, 4) == 0) {
            gr_kv_table_release(&m->pool, t);
            m->owned[i] = m->reserved[i] = 0;
            n_outcome[2]++;
        }
        break;
    }
}

static void test_random_operations(void **state)
{
    (void)state;
    struct model m;
    memset(&m, 0, sizeof(m));
    uint64_t rng = 99;
    int n_outcome[3] = {0};
    assert_int_equal(gr_kv_pool_init(&m.pool, N_BLOCK), GR_OK);
    for (int i = 0; i < N_TABLE; i++) {
        assert_int_equal(gr_kv_table_init(&m.table[i], N_BLOCK_MAX), GR_OK);
        m.all[i] = &m.table[i];
    }
    for (int step = 0; step < 100000; step++) {
        random_step(&m, &rng, n_outcome);
        check_model(&m);
    }
    assert_true(n_outcome[0] > 1000 && n_outcome[1] > 1000 && n_outcome[2] > 1000);
    for (int i = 0; i < N_TABLE; i++) {
        gr_kv_table_release(&m.pool, &m.table[i]);
        gr_kv_table_finish(&m.table[i]);
    }
    assert_int_equal(m.pool.n_free, N_BLOCK);
    gr_kv_pool_finish(&m.pool);
}

/* gr_kv_pool_check() must see what it promises to see. */
static void test_check_sees_faults(void **state)
{
    (void)state;
    struct gr_kv_pool pool;
    struct gr_kv_table a, b;
    const struct gr_kv_table *const both[] = {&a, &b};
    assert_int_equal(gr_kv_pool_init(&pool, 8), GR_OK);
    assert_int_equal(gr_kv_table_init(&a, 8), GR_OK);
    assert_int_equal(gr_kv_table_init(&b, 8), GR_OK);
    assert_int_equal(gr_kv_table_reserve(&pool, &a, 48), GR_OK);
    assert_int_equal(gr_kv_table_grow(&pool, &a, 32), GR_OK);
    assert_int_equal(gr_kv_table_grow(&pool, &b, 32), GR_OK);
    assert_true(gr_kv_pool_check(&pool, both, 2));
    assert_false(gr_kv_pool_check(&pool, both, 1)); /* leaked: nobody owns b's blocks */
    a.n_reserved--;                                 /* a reservation that nobody holds */
    assert_false(gr_kv_pool_check(&pool, both, 2));
    a.n_reserved++;
    const int32_t a1 = a.block[1];
    a.block[1] = a.block[0]; /* twice in one table */
    assert_false(gr_kv_pool_check(&pool, both, 2));
    a.block[1] = b.block[1]; /* in two tables, and a1 in none */
    assert_false(gr_kv_pool_check(&pool, both, 2));
    a.block[1] = 7; /* owned and free */
    assert_false(gr_kv_pool_check(&pool, both, 2));
    a.block[1] = 8; /* no block of this pool */
    assert_false(gr_kv_pool_check(&pool, both, 2));
    a.block[1] = -1;
    assert_false(gr_kv_pool_check(&pool, both, 2));
    a.block[1] = a1;
    pool.free_stack[0] = pool.free_stack[1]; /* free twice */
    assert_false(gr_kv_pool_check(&pool, both, 2));
    gr_kv_table_finish(&a);
    gr_kv_table_finish(&b);
    gr_kv_pool_finish(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_blocks),      cmocka_unit_test(test_rounds_equal_plain),
        cmocka_unit_test(test_reservation),       cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_check_sees_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
