/* What is asked of logits, as lists for a model that adjusts and picks by itself: random passes through two verifiers,
 * one over such a model and one over its twin that leaves all to the host. Each row's pick is the same. */
#include "target_worker/compute/verifier.h"

#include "common/rules/adjust_list.h"
#include "common/rules/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { N_VOCAB = 97, N_SEQ = 3, N_TEXT = 40, N_ROW = 160, N_PASS = 400, N_BLOCK = 8 };

/* ---- a model without KV: logits follow token and position ---- */

struct fake {
    struct gr_lm lm;
    float logits[N_ROW * N_VOCAB];
    struct gr_picked picked[N_ROW];
    int n_listed, n_picked; /* rows with a list, and all that it has picked */
};

static void adjust_and_pick(struct fake *m, const struct gr_batch *b, int i)
{
    float l[N_VOCAB];
    float scratch[N_VOCAB];
    int32_t work[N_VOCAB];
    memcpy(l, gr_lm_logits(&m->lm, i), sizeof(l));
    const int32_t n = b->list != NULL ? b->list[i].n : 0;
    for (int32_t k = 0; k < n; k++) {
        const struct gr_adjust_entry *e = &b->list[i].entry[k];
        l[e->id] = gr_adjust_value(e, b->list[i].penalties, l[e->id]);
    }
    m->n_listed += n > 0;
    m->n_picked++;
    m->picked[i].id = gr_sampler_choose(b->sampling[i], l, N_VOCAB, (uint32_t)b->pos[b->out_row[i]] + 1, scratch, work);
}

static enum gr_status forward(struct gr_lm *lm, const struct gr_batch *b)
{
    struct fake *m = GR_CONTAINER_OF(lm, struct fake, lm);
    int32_t n_entry = 0;
    for (int i = 0; i < b->n_out; i++) {
        const int row = b->out_row[i];
        for (int k = 0; k < N_VOCAB; k++) {
            const uint64_t x = gr_mix64((uint64_t)(b->token[row] * 1000 + b->pos[row]) << 8 ^ (uint64_t)k);
            m->logits[i * N_VOCAB + k] = (float)(x % 4096) / 512.0f - 4.0f;
        }
        n_entry += b->list != NULL ? b->list[i].n : 0;
        m->picked[i] = (struct gr_picked){.id = GR_PICK_TO_HOST};
        if (lm->picked != NULL && b->sampling[i] != NULL) {
            adjust_and_pick(m, b, i);
        }
    }
    assert_true(n_entry <= lm->n_list_max);
    return GR_OK;
}

static void copy_cells(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst)
{
    (void)lm, (void)n, (void)src, (void)dst;
}

static const struct gr_lm_ops ops = {.forward = forward, .copy_cells = copy_cells};

static void create(struct fake *m, int32_t n_list_max, struct gr_verifier **out)
{
    memset(m, 0, sizeof(*m));
    m->lm = (struct gr_lm){.ops = &ops,
                           .n_vocab = N_VOCAB,
                           .n_vocab_stride = N_VOCAB,
                           .n_ctx_max = N_TEXT + GR_TREE_MAX,
                           .n_row_max = N_ROW,
                           .n_out_max = N_ROW,
                           .logits = m->logits,
                           .picked = n_list_max > 0 ? m->picked : NULL,
                           .n_list_max = n_list_max};
    assert_int_equal(gr_verifier_create(&m->lm, N_SEQ, out), GR_OK);
}

/* ---- random passes ---- */

static uint64_t random_state;

static int draw(int n)
{
    random_state++;
    return (int)(gr_mix64(random_state) % (uint64_t)n);
}

static int32_t texts[N_SEQ][N_TEXT];
static struct gr_adjust adjusts[N_SEQ];

static void draw_ids(struct gr_bias_ids *to, int n_max)
{
    to->n = draw(n_max);
    for (int32_t i = 0; i < to->n; i++) {
        to->id[i] = i * (N_VOCAB / n_max) + draw(N_VOCAB / n_max);
    }
}

/* Bad words of two ids, of which the first stands in the text. */
static void draw_adjust(struct gr_adjust *a, const int32_t *text)
{
    memset(a, 0, sizeof(*a));
    a->repetition = draw(2) ? 0.0f : 0.5f + (float)draw(100) / 50.0f;
    a->frequency = draw(2) ? 0.0f : (float)draw(200) / 100.0f - 1.0f;
    a->presence = draw(2) ? 0.0f : (float)draw(200) / 100.0f - 1.0f;
    draw_ids(&a->banned, 8);
    draw_ids(&a->biased, 12);
    a->bias.n = a->biased.n;
    for (int32_t i = 0; i < a->bias.n; i++) {
        a->bias.value[i] = (float)draw(100) / 10.0f - 5.0f;
    }
    for (int i = draw(6); i > 0; i--) {
        a->bad.entry[a->bad.n++] = 2;
        a->bad.entry[a->bad.n++] = text[draw(N_TEXT)];
        a->bad.entry[a->bad.n++] = draw(N_VOCAB);
    }
}

static void draw_tree(struct gr_token_tree *t)
{
    t->n = draw(30);
    for (int i = 0; i < t->n; i++) {
        t->token[i] = draw(N_VOCAB);
        t->parent[i] = (int16_t)(draw(i + 1) - 1);
    }
}

static void draw_seq(struct gr_pass_seq *q, int i, const struct gr_kv_table *table)
{
    int32_t *text = texts[i];
    for (int k = 0; k < N_TEXT; k++) {
        text[k] = draw(N_VOCAB / 3);
    }
    draw_adjust(&adjusts[i], text);
    const int pos0 = draw(N_TEXT / 2) + N_TEXT / 4;
    *q = (struct gr_pass_seq){.session = i,
                              .kind = (enum gr_pass_kind)draw(3),
                              .pos0 = pos0,
                              .n_row = 1,
                              .token = &text[pos0],
                              .tail = text[pos0],
                              .want_pick = true,
                              .table = table,
                              .text = text,
                              .generated_from = draw(N_TEXT),
                              .len_min = draw(3) ? 0 : N_TEXT,
                              .adjust = draw(4) ? &adjusts[i] : NULL,
                              .sampling = {.temperature = draw(2) ? 0.0f : 0.8f,
                                           .top_p = draw(4) ? 1.0f : 0.9f,
                                           .seed = (uint64_t)draw(1000)},
                              .stop = {.n_new_max = N_TEXT, .ids = {.n = 2, .id = {draw(N_VOCAB), N_VOCAB + 3}}},
                              .n_logprob = 0,
                              .corrupt_at = -1};
    if (q->kind == GR_PASS_TREE) {
        draw_tree(&q->tree);
        q->n_row = q->tree.n + 1;
    }
}

static void run(struct gr_verifier *v, struct gr_pass_seq *q)
{
    struct gr_pass pass = {.n_seq = N_SEQ, .n_seq_max = N_SEQ, .seq = q};
    gr_verifier_run(v, &pass);
    assert_int_equal(pass.status, GR_OK);
}

/* Returns how many sequences had a row that was left to the host, as its list was too long. */
static int compare(int32_t n_list_max, struct fake *model)
{
    static struct fake host_model;
    struct gr_verifier *host;
    struct gr_verifier *lists;
    struct gr_pass_seq want[N_SEQ];
    struct gr_pass_seq got[N_SEQ];
    int32_t block[N_BLOCK] = {0};
    const struct gr_kv_table table = {.block = block, .n_block = N_BLOCK, .n_block_max = N_BLOCK};
    int n_long = 0;
    create(&host_model, 0, &host);
    create(model, n_list_max, &lists);
    random_state = 5;
    for (int p = 0; p < N_PASS; p++) {
        for (int i = 0; i < N_SEQ; i++) {
            draw_seq(&want[i], i, &table);
        }
        memcpy(got, want, sizeof(got));
        run(host, want);
        run(lists, got);
        for (int i = 0; i < N_SEQ; i++) {
            assert_memory_equal(got[i].pick, want[i].pick, (size_t)got[i].n_row * sizeof(*got[i].pick));
            assert_int_equal(got[i].walk.bonus, want[i].walk.bonus);
            assert_int_equal(want[i].list_limit, 0);
            n_long += got[i].list_limit > 0;
        }
    }
    gr_verifier_destroy(host);
    gr_verifier_destroy(lists);
    return n_long;
}

static struct fake model;

static void test_lists_are_the_hosts(void **state)
{
    (void)state;
    assert_int_equal(compare(N_ROW * N_VOCAB, &model), 0);
    assert_true(model.n_listed > N_PASS && model.n_picked > model.n_listed);
}

/* The pass's lists share a memory that is too small for most of them. */
static void test_long_lists_are_the_hosts(void **state)
{
    (void)state;
    assert_true(compare(40, &model) > N_PASS / 2);
    assert_true(model.n_listed > N_PASS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists_are_the_hosts),
                                       cmocka_unit_test(test_long_lists_are_the_hosts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
