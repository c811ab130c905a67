/* For tests: a random tree through a model, held against the sequences that its paths are. Where a test includes
 * cmocka.h. */
#ifndef GR_TESTS_TREE_PASS_H
#define GR_TESTS_TREE_PASS_H

#include "tests/unit/golden.h"

static inline void random_tokens(uint64_t seed, int n, int n_vocab, int32_t *token)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        token[i] = (int32_t)((seed >> 33) % (uint64_t)n_vocab);
    }
}

enum { TREE_ROWS = 24 };

struct tree {
    int32_t token[TREE_ROWS], pos[TREE_ROWS], cell[TREE_ROWS], limit[TREE_ROWS], n_anc[TREE_ROWS], out_row[TREE_ROWS];
    int parent[TREE_ROWS];
    int16_t anc[TREE_ROWS * GR_ATTN_ANC_MAX];
};

/* Nodes after n_base positions, each under the one before it or under one further up. */
static inline void tree_init(struct tree *t, int n_base, int n_vocab)
{
    int32_t draw[TREE_ROWS];
    random_tokens(77, TREE_ROWS, n_vocab, t->token);
    random_tokens(78, TREE_ROWS, 3, draw);
    for (int r = 0; r < TREE_ROWS; r++) {
        t->parent[r] = r - 1 - (r > 0 ? GR_MIN(draw[r], r) : 0);
        int16_t *anc = t->anc + (size_t)r * GR_ATTN_ANC_MAX;
        int n = 0;
        if (t->parent[r] >= 0) {
            n = t->n_anc[t->parent[r]];
            memcpy(anc, t->anc + (size_t)t->parent[r] * GR_ATTN_ANC_MAX, (size_t)n * sizeof(*anc));
        }
        anc[n++] = (int16_t)(2 * r + 1); /* slots with gaps */
        t->n_anc[r] = n;
        t->limit[r] = n_base;
        t->pos[r] = n_base + n - 1;
        t->cell[r] = GOLDEN_N_POOL * GR_KV_BLOCK_TOKENS + 2 * r + 1;
        t->out_row[r] = r;
    }
}

static inline void tree_run(struct gr_lm *lm, const struct tree *t)
{
    static int32_t block[GOLDEN_N_POOL];
    static const int32_t scratch[4] = {GOLDEN_N_POOL, GOLDEN_N_POOL + 1, GOLDEN_N_POOL + 2, GOLDEN_N_POOL + 3};
    for (int i = 0; i < GOLDEN_N_POOL; i++) {
        block[i] = (i * 37 + 5) % GOLDEN_N_POOL; /* as golden_run's */
    }
    const struct gr_attn_seq seq = {.n_row = TREE_ROWS,
                                    .block = block,
                                    .limit = t->limit,
                                    .scratch_block = scratch,
                                    .n_anc = t->n_anc,
                                    .anc = t->anc,
                                    .n_slot = 2 * TREE_ROWS + 2};
    const struct gr_batch b = {.n_row = TREE_ROWS,
                               .n_seq = 1,
                               .n_out = TREE_ROWS,
                               .token = t->token,
                               .pos = t->pos,
                               .cell = t->cell,
                               .seq = &seq,
                               .out_row = t->out_row};
    assert_int_equal(gr_lm_forward(lm, &b), GR_OK);
}

/* A random tree after the n_base tokens: each of its logits has the bits that its path gives as a sequence. */
static inline void check_tree(struct gr_lm *lm, const int32_t *base, int n_base)
{
    static struct tree t;
    static int32_t token[GOLDEN_ROW_MAX];
    const size_t bytes = (size_t)lm->n_vocab * sizeof(float), stride = (size_t)lm->n_vocab_stride;
    tree_init(&t, n_base, lm->n_vocab);
    golden_run(lm, base, 0, n_base, 1, NULL);
    tree_run(lm, &t);
    float *got = malloc(TREE_ROWS * stride * sizeof(float));
    memcpy(got, lm->logits, TREE_ROWS * stride * sizeof(float));
    memcpy(token, base, (size_t)n_base * sizeof(*token));
    for (int r = 0; r < TREE_ROWS; r++) {
        int n = n_base + t.n_anc[r];
        for (int i = r; i >= 0; i = t.parent[i]) {
            token[--n] = t.token[i];
        }
        golden_run(lm, token, 0, n_base + t.n_anc[r], 1, NULL);
        assert_memory_equal(got + (size_t)r * stride, lm->logits, bytes);
    }
    free(got);
}

#endif
