/* The acceptance rule: cuts by EOS, stop ids and the limit, counts, and random trees against plain decoding. */
#include "common/rules/accept.h"
#include "common/rules/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define EOS 2
#define NO_LIMIT 1000

/* 20 - 21 - 22 under the tail, and the side branch 30. */
static struct gr_token_tree chain(int32_t a, int32_t b, int32_t c)
{
    return (struct gr_token_tree){.n = 4, .token = {a, 30, b, c}, .parent = {-1, -1, 0, 2}};
}

/* Picks that accept all three; pick[r] follows row r. */
static void pick_all(const struct gr_token_tree *t, int32_t bonus, int32_t pick[GR_TREE_MAX])
{
    for (int i = 0; i < GR_TREE_MAX; i++) {
        pick[i] = 99;
    }
    pick[0] = t->token[0];
    pick[1] = t->token[2];
    pick[3] = t->token[3];
    pick[4] = bonus;
}

static struct gr_walk walk(const struct gr_token_tree *t, int32_t bonus, const struct gr_stop *stop)
{
    int32_t pick[GR_TREE_MAX];
    struct gr_walk w;
    memset(&w, 0xee, sizeof(w)); /* every field must be set */
    pick_all(t, bonus, pick);
    gr_accept_walk(t, pick, stop, &w);
    return w;
}

static void test_all_accepted(void **state)
{
    (void)state;
    const struct gr_token_tree t = chain(20, 21, 22);
    const struct gr_walk w = walk(&t, 40, &(struct gr_stop){.ids = {.n = 1, .id = {EOS}}, .n_new_max = NO_LIMIT});
    assert_int_equal(w.n_path, 3);
    assert_int_equal(w.node[0], 0);
    assert_int_equal(w.node[1], 2);
    assert_int_equal(w.node[2], 3);
    assert_int_equal(w.bonus, 40);
    assert_int_equal(w.n_accepted, 3);
    assert_int_equal(w.finish, GR_FINISH_NONE);
}

/* The second of three accepted tokens is EOS: two kept, the third dropped, finished. */
static void test_second_is_eos(void **state)
{
    (void)state;
    const struct gr_token_tree t = chain(20, EOS, 22);
    const struct gr_walk w = walk(&t, 40, &(struct gr_stop){.ids = {.n = 1, .id = {EOS}}, .n_new_max = NO_LIMIT});
    assert_int_equal(w.n_path, 1);
    assert_int_equal(w.node[0], 0);
    assert_int_equal(w.bonus, EOS);
    assert_int_equal(w.n_accepted, 2);
    assert_int_equal(w.finish, GR_FINISH_STOP);
}

/* The same for the token limit. */
static void test_second_is_limit(void **state)
{
    (void)state;
    const struct gr_token_tree t = chain(20, 21, 22);
    const struct gr_walk w = walk(&t, 40, &(struct gr_stop){.n_new_max = 2});
    assert_int_equal(w.n_path, 1);
    assert_int_equal(w.bonus, 21);
    assert_int_equal(w.n_accepted, 2);
    assert_int_equal(w.finish, GR_FINISH_LENGTH);
}

static void test_limits(void **state)
{
    (void)state;
    const struct gr_token_tree t = chain(20, 21, 22);
    struct gr_walk w = walk(&t, 40, &(struct gr_stop){.n_new_max = 1});
    assert_int_equal(w.n_path, 0);
    assert_int_equal(w.bonus, 20);
    assert_int_equal(w.n_accepted, 1);
    assert_int_equal(w.finish, GR_FINISH_LENGTH);
    w = walk(&t, 40, &(struct gr_stop){.n_new_max = 3});
    assert_int_equal(w.n_path, 2);
    assert_int_equal(w.bonus, 22);
    assert_int_equal(w.n_accepted, 3);
    assert_int_equal(w.finish, GR_FINISH_LENGTH);
    w = walk(&t, 40, &(struct gr_stop){.n_new_max = 4}); /* ends with the bonus itself */
    assert_int_equal(w.n_path, 3);
    assert_int_equal(w.bonus, 40);
    assert_int_equal(w.n_accepted, 3);
    assert_int_equal(w.finish, GR_FINISH_LENGTH);
    w = walk(&t, 40, &(struct gr_stop){.n_new_max = 5});
    assert_int_equal(w.finish, GR_FINISH_NONE);
    w = walk(&t, EOS, &(struct gr_stop){.ids = {.n = 1, .id = {EOS}}, .n_new_max = 4}); /* both: EOS is the reason */
    assert_int_equal(w.finish, GR_FINISH_STOP);
}

static void test_bonus_is_eos(void **state)
{
    (void)state;
    const struct gr_token_tree t = chain(20, 21, 22);
    struct gr_walk w = walk(&t, EOS, &(struct gr_stop){.ids = {.n = 1, .id = {EOS}}, .n_new_max = NO_LIMIT});
    assert_int_equal(w.n_path, 3);
    assert_int_equal(w.bonus, EOS);
    assert_int_equal(w.n_accepted, 3);
    assert_int_equal(w.finish, GR_FINISH_STOP);
    /* root-only, and a tree none of whose nodes is picked */
    int32_t pick[GR_TREE_MAX] = {EOS};
    const struct gr_token_tree none = {.n = 0};
    gr_accept_walk(&none, pick, &(struct gr_stop){.ids = {.n = 1, .id = {EOS}}, .n_new_max = NO_LIMIT}, &w);
    assert_int_equal(w.n_path, 0);
    assert_int_equal(w.n_accepted, 0);
    assert_int_equal(w.bonus, EOS);
    assert_int_equal(w.finish, GR_FINISH_STOP);
    pick[0] = 77;
    gr_accept_walk(&t, pick, &(struct gr_stop){.ids = {.n = 1, .id = {EOS}}, .n_new_max = NO_LIMIT}, &w);
    assert_int_equal(w.n_path, 0);
    assert_int_equal(w.n_accepted, 0);
    assert_int_equal(w.bonus, 77);
    assert_int_equal(w.finish, GR_FINISH_NONE);
}

static void test_stop_ids(void **state)
{
    (void)state;
    const struct gr_token_tree t = chain(20, 21, 22);
    struct gr_stop stop = {.ids = {.n = GR_STOP_ID_MAX}, .n_new_max = NO_LIMIT};
    for (int i = 0; i < GR_STOP_ID_MAX; i++) {
        stop.ids.id[i] = 1000 + i;
    }
    stop.ids.id[GR_STOP_ID_MAX - 1] = 22; /* the last of the list counts too */
    struct gr_walk w = walk(&t, 40, &stop);
    assert_int_equal(w.n_path, 2);
    assert_int_equal(w.bonus, 22);
    assert_int_equal(w.n_accepted, 3);
    assert_int_equal(w.finish, GR_FINISH_STOP);
    stop.ids.n = GR_STOP_ID_MAX - 1; /* what lies after n_id does not */
    w = walk(&t, 40, &stop);
    assert_int_equal(w.n_path, 3);
    assert_int_equal(w.finish, GR_FINISH_NONE);
    /* A stop id in the tree that the target does not pick stops nothing. */
    stop = (struct gr_stop){.ids = {.n = 1, .id = {30}}, .n_new_max = NO_LIMIT};
    w = walk(&t, 40, &stop);
    assert_int_equal(w.n_path, 3);
    assert_int_equal(w.finish, GR_FINISH_NONE);
}

/* ---- random trees against plain decoding ---- */

static uint64_t draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

static uint64_t context_of(const struct gr_token_tree *t, uint64_t base, int node)
{
    return node < 0 ? base : gr_hash_extend(context_of(t, base, t->parent[node]), t->token[node]);
}

/* The token that plain decoding puts after a context. */
static int32_t plain_next(uint64_t context, int n_vocab)
{
    return (int32_t)(gr_mix64(context ^ 0x1234) % (uint64_t)n_vocab);
}

static void one_tree(uint64_t seed, int *n_deep)
{
    uint64_t rng = seed;
    const int n_vocab = 2 + (int)draw(&rng, 4);
    struct gr_token_tree t;
    memset(&t, 0, sizeof(t));
    const int n_want = (int)draw(&rng, GR_NODE_MAX + 1);
    for (int i = 0; i < n_want; i++) { /* distinct siblings by retry; the tree may stay smaller */
        t.token[t.n] = (int32_t)draw(&rng, (uint64_t)n_vocab);
        t.parent[t.n] = (int16_t)((int)draw(&rng, (uint64_t)t.n + 1) - 1);
        t.n++;
        int where = 0;
        if (gr_tree_check(&t, n_vocab, &where) != GR_TREE_GOOD) {
            t.n--;
        }
    }
    struct gr_stop stop = {.ids = {.n = (int32_t)draw(&rng, 2), .id = {1}}, .n_new_max = 1 + (int32_t)draw(&rng, 8)};
    int32_t pick[GR_TREE_MAX];
    for (int r = 0; r <= t.n; r++) {
        pick[r] = plain_next(context_of(&t, seed, r - 1), n_vocab);
    }
    struct gr_walk w;
    gr_accept_walk(&t, pick, &stop, &w);
    /* Plain decoding, one token at a time, as long as the text so far lies in the tree. */
    int32_t text[GR_TREE_MAX];
    int n_text = 0;
    int node = -1;
    int n_drafted = 0;
    int finish = GR_FINISH_NONE;
    uint64_t context = seed;
    bool inside = true;
    while (inside && finish == GR_FINISH_NONE) {
        const int32_t token = plain_next(context, n_vocab);
        text[n_text++] = token;
        context = gr_hash_extend(context, token);
        int child = -1;
        for (int i = 0; i < t.n; i++) {
            child = t.parent[i] == node && t.token[i] == token ? i : child;
        }
        inside = child >= 0;
        n_drafted += inside;
        node = child;
        if (stop.ids.n > 0 && token == 1) {
            finish = GR_FINISH_STOP;
        } else if (n_text == stop.n_new_max) {
            finish = GR_FINISH_LENGTH;
        }
    }
    assert_int_equal(w.finish, finish);
    assert_int_equal(w.n_path + 1, n_text);
    assert_int_equal(w.n_accepted, n_drafted);
    for (int i = 0; i < w.n_path; i++) {
        assert_int_equal(t.token[w.node[i]], text[i]);
        assert_int_equal(t.parent[w.node[i]], i == 0 ? -1 : w.node[i - 1]);
    }
    assert_int_equal(w.bonus, text[n_text - 1]);
    *n_deep += w.n_path >= 3;
}

static void test_random_trees(void **state)
{
    (void)state;
    int n_deep = 0;
    for (uint64_t seed = 1; seed <= 30000; seed++) {
        one_tree(seed, &n_deep);
    }
    assert_true(n_deep > 300); /* the walk does get somewhere */
}

/* Rows that have no pick, at each place of a chain of three and beside it: what comes before is committed, the row
 * itself is an error only as the tail. */
static void test_not_finite(void **state)
{
    (void)state;
    const struct gr_token_tree t = {.n = 4, .token = {20, 21, 22, 30}, .parent = {-1, 0, 1, -1}};
    const struct gr_stop far = {.n_new_max = NO_LIMIT};
    for (int odd = 0; odd <= 4; odd++) {
        int32_t pick[GR_TREE_MAX] = {20, 21, 22, 40, 50};
        struct gr_walk w;
        pick[odd] = GR_PICK_NOT_FINITE;
        gr_accept_walk(&t, pick, &far, &w);
        assert_int_equal(w.finish, odd == 0 ? GR_FINISH_ERROR : GR_FINISH_NONE);
        assert_int_equal(w.n_path, odd == 4 ? 3 : odd > 0 ? odd - 1 : 0); /* row 4 is off the walk */
        assert_int_equal(w.n_accepted, odd == 4 ? 3 : odd);
        assert_int_equal(w.bonus, odd == 4 ? 40 : odd == 0 ? GR_PICK_NOT_FINITE : t.token[odd - 1]);
    }
    /* An end before it is the end. */
    const int32_t pick[GR_TREE_MAX] = {20, EOS, GR_PICK_NOT_FINITE, GR_PICK_NOT_FINITE, 50};
    const struct gr_token_tree stops = chain(20, EOS, 22);
    struct gr_walk w;
    gr_accept_walk(&stops, pick, &(struct gr_stop){.ids = {.n = 1, .id = {EOS}}, .n_new_max = NO_LIMIT}, &w);
    assert_int_equal(w.finish, GR_FINISH_STOP);
    assert_int_equal(w.bonus, EOS);
    gr_accept_walk(&stops, pick, &(struct gr_stop){.n_new_max = 2}, &w);
    assert_int_equal(w.finish, GR_FINISH_LENGTH);
    assert_int_equal(w.n_path, 1);
}

/* 63 nodes deep, all accepted: the last row's pick is the bonus. */
static void test_longest_path(void **state)
{
    (void)state;
    struct gr_token_tree t = {.n = GR_NODE_MAX};
    int32_t pick[GR_TREE_MAX];
    for (int i = 0; i < GR_NODE_MAX; i++) {
        t.token[i] = i + 100;
        t.parent[i] = (int16_t)(i - 1);
        pick[i] = i + 100;
    }
    pick[GR_NODE_MAX] = 7;
    struct gr_walk w;
    gr_accept_walk(&t, pick, &(struct gr_stop){.n_new_max = NO_LIMIT}, &w);
    assert_int_equal(w.n_path, GR_NODE_MAX);
    assert_int_equal(w.n_accepted, GR_NODE_MAX);
    assert_int_equal(w.node[62], 62);
    assert_int_equal(w.bonus, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_accepted),    cmocka_unit_test(test_second_is_eos),
        cmocka_unit_test(test_second_is_limit), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_bonus_is_eos),    cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_random_trees),    cmocka_unit_test(test_longest_path),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
