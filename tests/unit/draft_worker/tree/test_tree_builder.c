/* The dynamic tree against a brute-force reference: the n_node best nodes by cumulative score of everything that
 * level-by-level expansion reaches. */
#include "common/rules/hash.h"
#include "common/base/status.h"
#include "draft_worker/tree/tree_builder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define REF_MAX 200000

static struct gr_tree_builder builder;

static uint64_t draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

/* ---- a score table: top children of a context, best first, as log-probabilities ---- */

struct table {
    uint64_t seed;
    int n_vocab, style;
};

/* style 0: log_softmax of uniform logits; 1: peaked; 2: coarse steps with many ties (no distribution). */
static int children(const struct table *t, uint64_t context, int n_max, int32_t *token, float *score)
{
    float l[256];
    double sum = 0.0;
    for (int i = 0; i < t->n_vocab; i++) {
        const uint64_t x = gr_mix64(context ^ gr_mix64(t->seed + (uint64_t)i));
        const double u = (double)(x >> 11) * 0x1p-53;
        l[i] = t->style == 0   ? (float)(4.0 * u)
               : t->style == 1 ? (float)(-log(-log1p(-u * 0.999999)) * 3.0)
                               : -(float)(x % 4) * 0.5f;
        sum += exp((double)l[i]);
    }
    int n = 0;
    for (int i = 0; i < t->n_vocab; i++) { /* insertion: by value, then by id */
        int at = n;
        while (at > 0 && l[i] > l[token[at - 1]]) {
            at--;
        }
        if (at >= n_max) {
            continue;
        }
        n += n < n_max;
        memmove(token + at + 1, token + at, (size_t)(n - 1 - at) * sizeof(*token));
        token[at] = i;
    }
    for (int k = 0; k < n; k++) {
        score[k] = t->style == 2 ? l[token[k]] : l[token[k]] - (float)log(sum);
    }
    return n;
}

/* ---- reference: keeps everything, prunes nothing before the end ---- */

struct ref_node {
    int32_t token;
    int parent, depth;
    float score;
    uint64_t context;
};

static struct ref_node ref[REF_MAX];
static uint64_t ref_root = 1; /* context */
static int n_ref;

static void ref_expand(const struct table *t, const struct gr_tree_config *c, int parent)
{
    int32_t token[GR_DRAFT_TOP_K_MAX];
    float score[GR_DRAFT_TOP_K_MAX];
    const uint64_t context = parent < 0 ? ref_root : ref[parent].context;
    const int n = children(t, context, c->top_k, token, score);
    for (int i = 0; i < n; i++) {
        assert_true(n_ref < REF_MAX);
        ref[n_ref++] = (struct ref_node){.token = token[i],
                                         .parent = parent,
                                         .depth = parent < 0 ? 1 : ref[parent].depth + 1,
                                         .score = (parent < 0 ? 0.0f : ref[parent].score) + score[i],
                                         .context = gr_hash_extend(context, token[i])};
    }
}

static int ref_better(const void *a, const void *b)
{
    const int i = *(const int *)a;
    const int k = *(const int *)b;
    if (ref[i].score != ref[k].score) {
        return ref[i].score > ref[k].score ? -1 : 1;
    }
    return i - k;
}

/* Picks the n best of nodes [begin, end), best first; returns how many. */
static int ref_best(int begin, int end, int n, int *out)
{
    static int order[REF_MAX];
    for (int i = begin; i < end; i++) {
        order[i - begin] = i;
    }
    qsort(order, (size_t)(end - begin), sizeof(order[0]), ref_better);
    n = n < end - begin ? n : end - begin;
    memcpy(out, order, (size_t)n * sizeof(out[0]));
    return n;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* EAGLE-2: each level's top_k best are expanded; at the end the n_node best of all. */
static int ref_tree(const struct table *t, const struct gr_tree_config *c, int *out)
{
    n_ref = 0;
    if (c->n_node == 0) {
        return 0;
    }
    ref_expand(t, c, -1);
    int begin = 0;
    for (int level = 1; level < c->depth; level++) {
        int front[GR_DRAFT_TOP_K_MAX];
        const int end = n_ref;
        const int n = ref_best(begin, end, c->top_k, front);
        begin = end;
        for (int i = 0; i < n; i++) {
            ref_expand(t, c, front[i]);
        }
    }
    const int n = ref_best(0, n_ref, c->n_node, out);
    qsort(out, (size_t)n, sizeof(out[0]), by_number);
    return n;
}

/* ---- the builder, driven as the grower drives it ---- */

struct built {
    struct gr_token_tree tree;
    int16_t slot[GR_NODE_MAX];
    uint64_t context[GR_BUILDER_CAND_MAX];
    int n_expanded, n_level;
};

static struct gr_drafted drafted;

static void finish(struct gr_token_tree *tree, int16_t *slot)
{
    gr_tree_builder_finish(&builder, GR_NODE_MAX, &drafted);
    *tree = drafted.tree;
    for (int i = 0; i < tree->n; i++) {
        slot[i] = builder.cand[drafted.cand[i]].slot;
    }
    assert_true(gr_tree_builder_check(&builder));
}

static void begin(const struct gr_tree_config *c)
{
    gr_tree_builder_reset(&builder);
    gr_tree_builder_begin(&builder, c);
}

static void expand(const struct table *t, const struct gr_tree_config *c, struct built *b, int cand)
{
    int32_t token[GR_DRAFT_TOP_K_MAX];
    float score[GR_DRAFT_TOP_K_MAX];
    const uint64_t context = cand < 0 ? 1 : b->context[cand];
    const int n_max = c->top_k < c->n_node ? c->top_k : c->n_node;
    const int before = builder.n_cand;
    gr_tree_builder_add(&builder, cand, children(t, context, n_max, token, score), token, score, NULL);
    for (int i = before; i < builder.n_cand; i++) {
        b->context[i] = gr_hash_extend(context, builder.cand[i].token);
    }
}

static void build(const struct table *t, const struct gr_tree_config *c, struct built *b)
{
    int16_t front[GR_DRAFT_TOP_K_MAX];
    memset(b, 0, sizeof(*b));
    begin(c);
    expand(t, c, b, -1);
    for (;;) {
        const int n = gr_tree_builder_next_level(&builder, front);
        assert_true(n <= c->top_k);
        if (n == 0) {
            break;
        }
        b->n_level++;
        for (int i = 0; i < n; i++) {
            assert_int_equal(builder.cand[front[i]].slot, b->n_expanded + i); /* slots in order, each once */
            assert_int_equal(builder.cand[front[i]].depth, b->n_level);
        }
        b->n_expanded += n;
        assert_true(b->n_expanded <= GR_DRAFT_SLOT_MAX);
        for (int i = 0; i < n; i++) {
            expand(t, c, b, front[i]);
        }
    }
    finish(&b->tree, b->slot);
}

static void check_slots(const struct built *b)
{
    for (int i = 0; i < b->tree.n; i++) {
        assert_in_range(b->slot[i] + 1, 0, b->n_expanded);
        if (b->tree.parent[i] >= 0) { /* a parent was expanded, else it would have no child */
            assert_true(b->slot[b->tree.parent[i]] >= 0);
        }
        for (int k = 0; k < i && b->slot[i] >= 0; k++) {
            assert_true(b->slot[k] != b->slot[i]);
        }
    }
}

static void assert_reference(const struct table *t, const struct gr_tree_config *c, const struct gr_token_tree *tree)
{
    int want[GR_NODE_MAX];
    const int n = ref_tree(t, c, want);
    int where = 0;
    assert_int_equal(gr_tree_check(tree, t->n_vocab, &where), GR_TREE_GOOD); /* parents before children, too */
    assert_int_equal(tree->n, n);
    for (int i = 0; i < n; i++) {
        int parent = -1;
        for (int k = 0; k < i; k++) {
            parent = want[k] == ref[want[i]].parent ? k : parent;
        }
        if (tree->token[i] != ref[want[i]].token || tree->parent[i] != parent) {
            fail_msg("seed %llu style %d n_node %d depth %d top_k %d n_vocab %d: node %d is (%d, %d), not (%d, %d)",
                     (unsigned long long)t->seed, t->style, c->n_node, c->depth, c->top_k, t->n_vocab, i,
                     tree->token[i], tree->parent[i], ref[want[i]].token, parent);
        }
        assert_true(gr_tree_depth(tree, i) <= c->depth);
    }
}

static void compare(const struct table *t, const struct gr_tree_config *c)
{
    static struct built b;
    build(t, c, &b);
    assert_reference(t, c, &b.tree);
    check_slots(&b);
}

static void test_random_tables(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        uint64_t rng = seed;
        const struct table t = {.seed = seed, .n_vocab = 2 + (int)draw(&rng, 30), .style = (int)draw(&rng, 3)};
        const struct gr_tree_config c = {.n_node = (int32_t)draw(&rng, 64),
                                         .depth = 1 + (int32_t)draw(&rng, 8),
                                         .top_k = 1 + (int32_t)draw(&rng, 12)};
        compare(&t, &c);
    }
}

/* EAGLE-3's default, and the corners of what ATTACH may ask for: 63 nodes, 64 children a row, 63 levels. */
static void test_large_settings(void **state)
{
    (void)state;
    static const struct gr_tree_config c[] = {{59, 8, 10, false},  {63, 8, 32, false}, {63, 8, 64, false},
                                              {63, 20, 64, false}, {63, 63, 4, false}, {63, 3, 64, false}};
    for (uint64_t seed = 1; seed <= 8; seed++) {
        for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
            for (int style = 0; style < 2; style++) {
                compare(&(struct table){.seed = seed, .n_vocab = 100, .style = style}, &c[i]);
            }
        }
    }
}

/* A row's ids can all be unlikely while deeper ones are nearly certain: long expansions with wide rows. */
static void test_wide_and_certain(void **state)
{
    (void)state;
    const struct gr_tree_config c = {.n_node = 63, .depth = 63, .top_k = 64};
    int32_t token[GR_DRAFT_TOP_K_MAX];
    float score[GR_DRAFT_TOP_K_MAX];
    struct gr_token_tree tree;
    int16_t slot[GR_NODE_MAX];
    int16_t front[GR_DRAFT_TOP_K_MAX];
    for (int i = 0; i < 63; i++) {
        token[i] = i;
    }
    begin(&c);
    for (int i = 0; i < 63; i++) {
        score[i] = i == 0 ? -0.01f : -7.0f - 0.001f * (float)i; /* each row: one certain child, 62 unlikely ones */
    }
    gr_tree_builder_add(&builder, -1, 63, token, score, NULL);
    int n;
    while ((n = gr_tree_builder_next_level(&builder, front)) > 0) {
        for (int i = 0; i < n; i++) {
            gr_tree_builder_add(&builder, front[i], 63, token, score, NULL);
        }
    }
    finish(&tree, slot);
    assert_int_equal(tree.n, 63);
    int n_certain = 0; /* the 63 certain ones in a chain beat every unlikely one: 63 * 0.01 < 7 */
    for (int i = 0; i < 63; i++) {
        n_certain += tree.token[i] == 0 && gr_tree_depth(&tree, i) == i + 1;
    }
    assert_int_equal(n_certain, 63);
}

/* ---- candidates that outlive their tree ---- */

static uint64_t root_context;

static uint64_t context_of(int cand)
{
    return cand < 0 ? root_context : gr_hash_extend(context_of(builder.cand[cand].parent), builder.cand[cand].token);
}

static void expand_kept(const struct table *t, int cand, int n_child)
{
    int32_t token[GR_DRAFT_TOP_K_MAX];
    float score[GR_DRAFT_TOP_K_MAX];
    const int n = children(t, context_of(cand), GR_MIN(n_child, GR_NODE_MAX), token, score);
    gr_tree_builder_add(&builder, cand, n, token, score, NULL);
}

/* Grows a tree on what the store holds; returns the rows that had to be run. */
static int grow_kept(const struct table *t, const struct gr_tree_config *c, int n_child, struct gr_token_tree *tree)
{
    int16_t front[GR_DRAFT_TOP_K_MAX];
    int16_t slot[GR_NODE_MAX];
    int n_row = 0;
    int n = 0;
    gr_tree_builder_begin(&builder, c);
    if (!builder.root_known) {
        expand_kept(t, -1, n_child);
    }
    while ((n = gr_tree_builder_next_level(&builder, front)) > 0) {
        assert_true(n <= c->top_k);
        for (int i = 0; i < n; i++) {
            assert_true(builder.cand[front[i]].slot >= 0 && builder.cand[front[i]].n_child == 0);
            expand_kept(t, front[i], n_child);
        }
        n_row += n;
    }
    finish(tree, slot);
    return n_row;
}

static void grow_ahead(const struct table *t, int n_level, int width, int n_child)
{
    int16_t front[GR_DRAFT_TOP_K_MAX];
    for (int level = 0; level < n_level; level++) {
        int n = gr_tree_builder_ahead(&builder, width, -1000.0f, GR_NODE_MAX, front);
        for (int i = 1; i < n; i++) {
            assert_true(builder.cand[front[i - 1]].score >= builder.cand[front[i]].score);
        }
        n = gr_tree_builder_expand(&builder, n, front, false);
        for (int i = 0; i < n; i++) {
            expand_kept(t, front[i], n_child);
        }
    }
    assert_true(gr_tree_builder_check(&builder));
}

/* An expanded candidate, one time in two a shallow one, with most of the store below it. */
static int draw_root(uint64_t *rng)
{
    int found = -1;
    const int depth_max = draw(rng, 2) == 0 ? 1 : GR_NODE_MAX;
    for (int i = 0; i < builder.n_cand; i++) {
        const struct gr_candidate *k = &builder.cand[i];
        if (k->slot >= 0 && k->depth <= depth_max && (found < 0 || (depth_max > 1 && draw(rng, 4) == 0))) {
            found = i;
        }
    }
    return found;
}

/* Rounds of one session with draft-ahead between them, and with limits that change: every tree is the one that would
 * have been grown from nothing, and fewer rows are run. */
static void test_rerooted_as_fresh(void **state)
{
    (void)state;
    int n_kept = 0;
    int n_fresh = 0;
    int n_reroot = 0;
    int n_evict = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t rng = seed;
        const struct table t = {.seed = seed, .n_vocab = 8 + (int)draw(&rng, 60), .style = (int)draw(&rng, 2)};
        struct gr_tree_config c = {.n_node = 1 + (int32_t)draw(&rng, 63),
                                   .depth = 2 + (int32_t)draw(&rng, 10),
                                   .top_k = 1 + (int32_t)draw(&rng, seed % 4 == 0 ? 64 : 10)};
        const int n_child = GR_MAX(c.top_k, 4);
        struct gr_token_tree tree;
        gr_tree_builder_reset(&builder);
        root_context = ref_root = seed;
        for (int round = 0; round < 12; round++) {
            c.n_node = draw(&rng, 3) == 0 ? 1 + (int32_t)draw(&rng, 63) : c.n_node;
            const int n_before = builder.n_cand;
            const int n_row = grow_kept(&t, &c, n_child, &tree);
            n_evict += builder.n_cand < n_before;
            assert_reference(&t, &c, &tree);
            if (round > 0) {
                n_kept += n_row;
                n_fresh += builder.n_expanded;
            }
            grow_ahead(&t, (int)draw(&rng, seed % 3 == 0 ? 100 : 6), GR_MAX(c.top_k, 4), n_child);
            const int root = draw_root(&rng);
            if (root < 0) {
                break;
            }
            const uint64_t context = context_of(root);
            const uint16_t n_step = builder.cand[root].n_step;
            gr_tree_builder_reroot(&builder, root);
            assert_true(gr_tree_builder_check(&builder));
            root_context = ref_root = context;
            n_reroot++;
            for (int i = 0; i < builder.root_n_child; i++) { /* what a candidate rests on is not forgotten */
                assert_int_equal(builder.cand[i].n_step, n_step + 1);
            }
        }
    }
    ref_root = 1;
    print_message("# %d re-rooted trees: %d rows run instead of %d; %d ran out of slots\n", n_reroot, n_kept, n_fresh,
                  n_evict);
    assert_true(n_reroot > 2000 && n_kept < n_fresh && n_evict > 0);
}

static void test_lookup(void **state)
{
    (void)state;
    const struct table t = {.seed = 3, .n_vocab = 30, .style = 0};
    const struct gr_tree_config c = {.n_node = 20, .depth = 5, .top_k = 4};
    struct gr_token_tree tree;
    root_context = 1;
    gr_tree_builder_reset(&builder);
    assert_int_equal(gr_tree_builder_child(&builder, -1, 0), -1);
    assert_int_equal(gr_tree_builder_n_slot(&builder), 0);
    (void)grow_kept(&t, &c, 4, &tree);
    for (int i = 0; i < builder.n_cand; i++) {
        assert_int_equal(gr_tree_builder_child(&builder, builder.cand[i].parent, builder.cand[i].token), i);
    }
    assert_int_equal(gr_tree_builder_child(&builder, -1, 999), -1);
    assert_int_equal(gr_tree_builder_n_slot(&builder), builder.n_expanded);
    gr_tree_builder_reset(&builder);
    assert_int_equal(gr_tree_builder_n_slot(&builder), 0);
    assert_true(gr_tree_builder_check(&builder));
}

static void test_chain(void **state)
{
    (void)state;
    for (int n = 1; n <= 63; n++) {
        static struct built b;
        const struct table t = {.seed = (uint64_t)n, .n_vocab = 20, .style = 0};
        build(&t, &(struct gr_tree_config){.n_node = n, .depth = n, .top_k = 1}, &b);
        assert_int_equal(b.tree.n, n);
        assert_int_equal(b.n_expanded, n - 1); /* the last one needs no pass of its own */
        uint64_t context = 1;
        for (int i = 0; i < n; i++) {
            int32_t best = -1;
            float score = 0.0f;
            assert_int_equal(children(&t, context, 1, &best, &score), 1);
            assert_int_equal(b.tree.parent[i], i - 1);
            assert_int_equal(b.tree.token[i], best);
            assert_int_equal(b.slot[i], i < n - 1 ? i : -1);
            context = gr_hash_extend(context, best);
        }
    }
}

static void test_no_nodes(void **state)
{
    (void)state;
    static struct built b;
    build(&(struct table){.seed = 1, .n_vocab = 20}, &(struct gr_tree_config){.n_node = 0, .depth = 5, .top_k = 4}, &b);
    assert_int_equal(b.tree.n, 0);
    assert_int_equal(b.n_expanded, 0); /* K = 0 costs nothing */
    /* even when somebody adds children all the same */
    const int32_t token[] = {1, 2};
    const float score[] = {-0.1f, -0.2f};
    int16_t front[GR_DRAFT_TOP_K_MAX];
    begin(&(struct gr_tree_config){.n_node = 0, .depth = 5, .top_k = 4});
    gr_tree_builder_add(&builder, -1, 2, token, score, NULL);
    assert_int_equal(gr_tree_builder_next_level(&builder, front), 0);
    finish(&b.tree, b.slot);
    assert_int_equal(b.tree.n, 0);
}

/* Rounding above 0, equal scores, -infinity, no children at all. */
static void test_odd_scores(void **state)
{
    (void)state;
    const struct gr_tree_config c = {.n_node = 4, .depth = 3, .top_k = 2};
    const int32_t token[] = {7, 8, 9};
    const float above[] = {1e-6f, 0.0f, 0.0f};
    int16_t front[GR_DRAFT_TOP_K_MAX];
    struct gr_token_tree t;
    int16_t slot[GR_NODE_MAX];
    begin(&c);
    gr_tree_builder_add(&builder, -1, 3, token, above, NULL);
    assert_int_equal(gr_tree_builder_next_level(&builder, front), 2);
    gr_tree_builder_add(&builder, front[0], 3, token, above, NULL); /* ties with its parent: the parent stays first */
    gr_tree_builder_add(&builder, front[1], 3, token, (const float[]){-INFINITY, -INFINITY, -INFINITY}, NULL);
    (void)gr_tree_builder_next_level(&builder, front);
    finish(&t, slot);
    int where = 0;
    assert_int_equal(gr_tree_check(&t, 10, &where), GR_TREE_GOOD);
    const int32_t want_token[] = {7, 8, 7, 8}; /* of three children, the top_k first */
    const int16_t want_parent[] = {-1, -1, 0, 0};
    assert_int_equal(t.n, 4);
    assert_memory_equal(t.token, want_token, sizeof(want_token));
    assert_memory_equal(t.parent, want_parent, sizeof(want_parent));
    begin(&c);
    gr_tree_builder_add(&builder, -1, 0, token, above, NULL);
    assert_int_equal(gr_tree_builder_next_level(&builder, front), 0);
    finish(&t, slot);
    assert_int_equal(t.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_tables),     cmocka_unit_test(test_large_settings),
        cmocka_unit_test(test_wide_and_certain),  cmocka_unit_test(test_chain),
        cmocka_unit_test(test_no_nodes),          cmocka_unit_test(test_odd_scores),
        cmocka_unit_test(test_rerooted_as_fresh), cmocka_unit_test(test_lookup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
