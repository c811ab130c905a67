/* Prefix hash and token tree: golden values, DESIGN.md's golden tree, and every way a tree can be wrong. */
#include "common/rules/hash.h"
#include "common/rules/token_tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N_VOCAB 4096

static uint64_t rng_state = 12345;

static uint64_t draw(uint64_t n)
{
    rng_state = gr_mix64(rng_state + GR_HASH_GOLDEN);
    return rng_state % n;
}

static void test_hash_golden(void **state)
{
    (void)state;
    static const int32_t token[] = {5, 7, 4088};
    static const uint64_t want[] = {0x53cb9f0c747ea2eaull, 0xaf1e064bc7a07bc9ull, 0xc6fea194a42df6b1ull};
    uint64_t h = 0;
    for (int i = 0; i < 3; i++) {
        h = gr_hash_extend(h, token[i]);
        assert_true(h == want[i]);
    }
    /* order, length and the id 0 count */
    assert_true(gr_hash_extend(gr_hash_extend(0, 7), 5) != gr_hash_extend(gr_hash_extend(0, 5), 7));
    assert_true(gr_hash_extend(0, 0) != 0);
    assert_true(gr_hash_extend(gr_hash_extend(0, 0), 0) != gr_hash_extend(0, 0));
}

static struct gr_token_tree golden_tree(void)
{
    return (struct gr_token_tree){.n = 5, .token = {10, 11, 12, 13, 14}, .parent = {-1, 0, 0, 1, 2}};
}

static void test_golden_tree(void **state)
{
    (void)state;
    const struct gr_token_tree t = golden_tree();
    static const int pos[] = {3, 4, 4, 5, 5};
    static const uint64_t set[] = {0x1, 0x3, 0x5, 0xb, 0x15}; /* {0} {0,1} {0,2} {0,1,3} {0,2,4} */
    int where = -1;
    assert_int_equal(gr_tree_check(&t, N_VOCAB, &where), GR_TREE_GOOD);
    for (int i = 0; i < t.n; i++) {
        assert_int_equal(gr_tree_pos(&t, 3, i), pos[i]);
        assert_int_equal(gr_tree_depth(&t, i), pos[i] - 2);
        assert_true(gr_tree_ancestors(&t, i) == set[i]);
    }
    assert_int_equal(gr_tree_child(&t, -1, 10), 0);
    assert_int_equal(gr_tree_child(&t, 0, 12), 2);
    assert_int_equal(gr_tree_child(&t, 1, 13), 3);
    assert_int_equal(gr_tree_child(&t, 1, 14), -1); /* a child, but of another node */
    assert_int_equal(gr_tree_child(&t, -1, 11), -1);
}

static void assert_fault(const struct gr_token_tree *t, enum gr_tree_fault want, int want_where)
{
    int where = -1;
    assert_int_equal(gr_tree_check(t, N_VOCAB, &where), want);
    assert_int_equal(where, want_where);
}

static void test_counts(void **state)
{
    (void)state;
    struct gr_token_tree t;
    memset(&t, 0, sizeof(t));
    int where = 0;
    assert_int_equal(gr_tree_check(&t, N_VOCAB, &where), GR_TREE_GOOD); /* no nodes: legal */
    t.n = -1;
    assert_fault(&t, GR_TREE_BAD_COUNT, -1);
    t.n = GR_NODE_MAX + 1;
    assert_fault(&t, GR_TREE_BAD_COUNT, GR_NODE_MAX + 1);
    t.n = INT32_MAX;
    assert_fault(&t, GR_TREE_BAD_COUNT, INT32_MAX);
    t.n = INT32_MIN;
    assert_fault(&t, GR_TREE_BAD_COUNT, INT32_MIN);
    t.n = GR_NODE_MAX; /* the largest chain */
    for (int i = 0; i < t.n; i++) {
        t.parent[i] = (int16_t)(i - 1);
    }
    assert_int_equal(gr_tree_check(&t, N_VOCAB, &where), GR_TREE_GOOD);
    assert_int_equal(gr_tree_depth(&t, 62), 63);
    assert_true(gr_tree_ancestors(&t, 62) == (1ull << 63) - 1);
}

static void test_parents(void **state)
{
    (void)state;
    static const int16_t bad[] = {2,  3,         4,  62,       63,
                                  64, INT16_MAX, -2, INT16_MIN}; /* of node 2: itself, later, nothing */
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct gr_token_tree t = golden_tree();
        t.parent[2] = bad[i];
        assert_fault(&t, GR_TREE_BAD_PARENT, 2);
    }
    struct gr_token_tree t = golden_tree();
    t.parent[0] = 0;
    assert_fault(&t, GR_TREE_BAD_PARENT, 0);
    t = golden_tree();
    t.parent[1] = 3; /* 1 -> 3 -> 1: a cycle */
    assert_fault(&t, GR_TREE_BAD_PARENT, 1);
}

static void test_tokens(void **state)
{
    (void)state;
    static const int32_t bad[] = {-1, INT32_MIN, N_VOCAB, INT32_MAX};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct gr_token_tree t = golden_tree();
        t.token[4] = bad[i];
        assert_fault(&t, GR_TREE_BAD_TOKEN, 4);
    }
    struct gr_token_tree t = golden_tree();
    t.token[0] = 0;
    t.token[4] = N_VOCAB - 1;
    int where = 0;
    assert_int_equal(gr_tree_check(&t, N_VOCAB, &where), GR_TREE_GOOD);
}

static void test_duplicates(void **state)
{
    (void)state;
    struct gr_token_tree t = golden_tree();
    t.token[2] = t.token[1]; /* siblings below node 0 */
    assert_fault(&t, GR_TREE_DUPLICATE, 2);
    t = golden_tree();
    t.parent[4] = -1; /* siblings below the tail, far apart */
    t.token[4] = t.token[0];
    assert_fault(&t, GR_TREE_DUPLICATE, 4);
    t = golden_tree();
    t.token[4] = t.token[3]; /* cousins: legal */
    int where = 0;
    assert_int_equal(gr_tree_check(&t, N_VOCAB, &where), GR_TREE_GOOD);
    t.token[1] = t.token[0]; /* a child like its parent: legal */
    assert_int_equal(gr_tree_check(&t, N_VOCAB, &where), GR_TREE_GOOD);
}

/* Random parents and tokens, most of them wrong, against a check written from the definition. */
static enum gr_tree_fault reference_check(const struct gr_token_tree *t, int n_vocab)
{
    bool bad_parent[GR_NODE_MAX] = {0};
    for (int i = 0; i < t->n; i++) {
        bad_parent[i] = t->parent[i] < -1 || t->parent[i] > i - 1;
    }
    for (int i = 0; i < t->n; i++) {
        if (bad_parent[i]) {
            return GR_TREE_BAD_PARENT;
        }
        if (t->token[i] < 0 || t->token[i] > n_vocab - 1) {
            return GR_TREE_BAD_TOKEN;
        }
        for (int j = i - 1; j >= 0; j--) {
            if (t->parent[i] == t->parent[j] && t->token[i] == t->token[j]) {
                return GR_TREE_DUPLICATE;
            }
        }
    }
    return GR_TREE_GOOD;
}

static void test_random(void **state)
{
    (void)state;
    int n_seen[5] = {0};
    for (int round = 0; round < 20000; round++) {
        struct gr_token_tree t;
        memset(&t, 0, sizeof(t));
        t.n = (int32_t)draw(GR_NODE_MAX + 1);
        const uint64_t n_vocab = 1 + draw(200);
        const bool wild = draw(2) == 0;
        for (int i = 0; i < t.n; i++) {
            t.parent[i] = (int16_t)((int)draw((uint64_t)i + 1) - 1);
            t.token[i] = (int32_t)draw(n_vocab);
        }
        if (wild && t.n > 0) {
            t.parent[draw((uint64_t)t.n)] = (int16_t)((int)draw(70) - 3);
            t.token[draw((uint64_t)t.n)] = (int32_t)draw(220) - 10;
        }
        int where = 0;
        const enum gr_tree_fault got = gr_tree_check(&t, (int32_t)n_vocab, &where);
        assert_int_equal(got, reference_check(&t, (int)n_vocab));
        n_seen[got]++;
        if (got != GR_TREE_GOOD) {
            continue;
        }
        for (int i = 0; i < t.n; i++) { /* derived values against a recursion over parents */
            const int p = t.parent[i];
            assert_int_equal(gr_tree_depth(&t, i), 1 + (p < 0 ? 0 : gr_tree_depth(&t, p)));
            assert_true(gr_tree_ancestors(&t, i) == ((1ull << i) | (p < 0 ? 0 : gr_tree_ancestors(&t, p))));
            assert_int_equal(gr_tree_child(&t, p, t.token[i]), i);
        }
    }
    assert_true(n_seen[GR_TREE_GOOD] > 100 && n_seen[GR_TREE_BAD_PARENT] > 100);
    assert_true(n_seen[GR_TREE_BAD_TOKEN] > 100 && n_seen[GR_TREE_DUPLICATE] > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash_golden), cmocka_unit_test(test_golden_tree), cmocka_unit_test(test_counts),
        cmocka_unit_test(test_parents),     cmocka_unit_test(test_tokens),      cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
