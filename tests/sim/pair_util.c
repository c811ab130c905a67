#include "tests/sim/pair_util.h"

#include "common/rules/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

uint64_t pair_draw(uint64_t *rng, uint64_t n)
{
    *rng = gr_mix64(*rng + GR_HASH_GOLDEN);
    return *rng % n;
}

struct pair pair_create(const struct pair_config *c)
{
    struct pair p = {0};
    const int n_ctx = c->n_ctx > 0 ? c->n_ctx : 512;
    const int n_session = c->n_session > 0 ? c->n_session : 8;
    p.table = (struct toy_config){.n_vocab = c->n_vocab > 0 ? c->n_vocab : PAIR_N_VOCAB,
                                  .n_ctx_max = n_ctx,
                                  .n_row_max = 700,
                                  .n_out_max = 640,
                                  .n_pool_block = c->n_pool_block > 0 ? c->n_pool_block : n_session * (n_ctx / 16 + 1),
                                  .n_scratch_block = n_session * 16,
                                  .seed = c->seed,
                                  .memory = c->memory,
                                  .sharpness = c->sharpness > 0.0f ? c->sharpness : 6.0f};
    p.target_lm = toy_lm_create(&p.table);
    if (c->drafter != PAIR_PLAIN) {
        struct toy_config d = p.table;
        d.n_ctx_max = c->n_ctx_draft > 0 ? c->n_ctx_draft : n_ctx;
        d.n_pool_block = c->n_pool_block_draft > 0 ? c->n_pool_block_draft : n_session * (n_ctx / 16 + 1);
        d.sharpness *= c->drafter == PAIR_OPPOSITE ? -1.0f : 1.0f;
        d.blur_seed = c->drafter == PAIR_BLURRED ? c->seed + 99 : 0;
        d.blur = 3;
        p.draft_lm = toy_lm_create(&d);
    }
    p.sim = sim_create(&(struct sim_config){.seed = c->seed,
                                            .target_lm = p.target_lm,
                                            .draft_lm = p.draft_lm,
                                            .n_session_max = n_session,
                                            .prefill_chunk = 16,
                                            .round_deadline_ns = 1000000000,
                                            .msg_delay_ns = 1000,
                                            .frame_delay_ns = c->delays ? 300000 : 0,
                                            .pass_ns = c->delays ? 200000 : 1000,
                                            .job_ns = c->delays ? 400000 : 1000,
                                            .stop_ns = c->stop_ns});
    return p;
}

void pair_destroy(struct pair *p)
{
    assert_true(gr_target_check(sim_target(p->sim)));
    if (sim_drafter(p->sim) != NULL) {
        assert_true(gr_drafter_check(sim_drafter(p->sim)));
    }
    sim_destroy(p->sim);
    gr_lm_destroy(p->target_lm);
    gr_lm_destroy(p->draft_lm);
}

static int32_t prompt_token[1 << 14];

struct gr_session_request pair_request(int which, uint32_t n_prompt, uint32_t max_tokens)
{
    int32_t *prompt = prompt_token + which * 1024;
    uint64_t rng = (uint64_t)which + 1;
    for (uint32_t i = 0; i < n_prompt && i < 1024; i++) {
        prompt[i] = (int32_t)pair_draw(&rng, PAIR_N_VOCAB);
    }
    return (struct gr_session_request){.prompt = prompt,
                                       .n_prompt = n_prompt,
                                       .wishes = {.turn = {.max_tokens = max_tokens},
                                                  .sampling = {.top_p = 1.0f, .seed = (uint64_t)which + 5},
                                                  .want_draft = true,
                                                  .n_node = 12,
                                                  .draft_depth = 5,
                                                  .draft_top_k = 3}};
}

void pair_chain(struct gr_session_request *r, uint32_t n_node)
{
    r->wishes.tree_shape = GR_SHAPE_CHAIN;
    r->wishes.n_node = n_node;
}

void pair_assert_same(const struct sim *a, const struct sim *b, int i)
{
    const struct sim_result *x = sim_result(a, i);
    const struct sim_result *y = sim_result(b, i);
    assert_true(x->done && y->done);
    assert_int_equal(x->finish, y->finish);
    assert_int_equal(x->n_token, y->n_token);
    assert_memory_equal(x->token, y->token, x->n_token * sizeof(int32_t));
}

struct pair pair_plain_run(const struct pair_config *c, const struct gr_session_request *r, int n)
{
    struct pair_config plain = *c;
    plain.drafter = PAIR_PLAIN;
    plain.delays = false;
    plain.n_pool_block = 0;
    plain.n_session = c->n_session > n ? c->n_session : n;
    struct pair p = pair_create(&plain);
    for (int i = 0; i < n; i++) {
        (void)sim_submit(p.sim, &r[i]);
    }
    assert_true(sim_run(p.sim, PAIR_LIMIT_NS));
    return p;
}

void pair_submit(struct pair *p, const struct gr_session_request *r, int n)
{
    for (int i = 0; i < n; i++) {
        (void)sim_submit(p->sim, &r[i]);
    }
}
