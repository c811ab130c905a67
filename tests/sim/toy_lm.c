#include "tests/sim/toy_lm.h"

#include "common/hash.h"

#include <stdlib.h>

struct toy {
    struct gr_lm lm;
    struct toy_config config;
    struct cell {
        int32_t token, pos;
    } *cell;
};

static struct toy *of(struct gr_lm *lm)
{
    return GR_CONTAINER_OF(lm, struct toy, lm);
}

static uint64_t read_prefix(const struct toy *m, const struct gr_attn_seq *s, int r)
{
    uint64_t hash = 0;
    const int begin = m->config.memory > 0 ? s->limit[r] + s->n_anc[r] - m->config.memory : 0;
    for (int p = GR_MAX(begin, 0); p < s->limit[r]; p++) {
        const struct cell *c = &m->cell[s->block[p / GR_KV_BLOCK] * GR_KV_BLOCK + p % GR_KV_BLOCK];
        GR_ASSERT(c->pos == p);
        hash = gr_hash_extend(hash, c->token);
    }
    for (int a = GR_MAX(begin - s->limit[r], 0); a < s->n_anc[r]; a++) {
        const int slot = s->anc[(size_t)r * GR_ATTN_ANC_MAX + (size_t)a];
        GR_ASSERT(slot < s->n_slot);
        const struct cell *c = &m->cell[s->scratch_block[slot / GR_KV_BLOCK] * GR_KV_BLOCK + slot % GR_KV_BLOCK];
        GR_ASSERT(c->pos == s->limit[r] + a);
        hash = gr_hash_extend(hash, c->token);
    }
    return hash;
}

static void write_logits(const struct toy_config *c, uint64_t context, float *out)
{
    uint64_t seed = c->seed;
    if (c->blur_seed != 0 && gr_mix64(context ^ c->blur_seed) % (uint64_t)c->blur == 0) {
        seed = c->blur_seed;
    }
    for (int i = 0; i < c->n_vocab; i++) {
        const uint64_t x = gr_mix64(context ^ gr_mix64(seed + (uint64_t)i));
        out[i] = c->sharpness * (float)(x >> 40) * (1.0f / 16777216.0f);
    }
}

void toy_lm_logits(const struct toy_config *config, const int32_t *token, int n, float *out)
{
    uint64_t hash = 0;
    for (int i = config->memory > 0 ? GR_MAX(n - config->memory, 0) : 0; i < n; i++) {
        hash = gr_hash_extend(hash, token[i]);
    }
    write_logits(config, hash, out);
}

static enum gr_status toy_forward(struct gr_lm *lm, const struct gr_batch *b)
{
    struct toy *m = of(lm);
    for (int r = 0; r < b->n_row; r++) {
        m->cell[b->cell[r]] = (struct cell){.token = b->token[r], .pos = b->pos[r]};
    }
    int i_seq = 0;
    for (int i = 0; i < b->n_out; i++) {
        const int row = b->out_row[i];
        while (row >= b->seq[i_seq].row0 + b->seq[i_seq].n_row) {
            i_seq++;
        }
        write_logits(&m->config, read_prefix(m, &b->seq[i_seq], row - b->seq[i_seq].row0),
                     lm->logits + (size_t)i * (size_t)lm->n_vocab_stride);
    }
    return GR_OK;
}

static void toy_copy(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst)
{
    for (int i = 0; i < n; i++) {
        of(lm)->cell[dst[i]] = of(lm)->cell[src[i]];
    }
}

static void toy_destroy(struct gr_lm *lm)
{
    struct toy *m = of(lm);
    free(m->cell);
    free(m->lm.logits);
    free(m);
}

static const struct gr_lm_ops toy_ops = {.forward = toy_forward, .copy_cells = toy_copy, .destroy = toy_destroy};

struct gr_lm *toy_lm_create(const struct toy_config *c)
{
    struct toy *m = calloc(1, sizeof(*m));
    GR_ASSERT(m != NULL);
    m->config = *c;
    m->lm = (struct gr_lm){.ops = &toy_ops, .n_vocab = c->n_vocab, .n_vocab_stride = c->n_vocab,
                           .n_ctx_max = c->n_ctx_max, .n_row_max = c->n_row_max, .n_out_max = c->n_out_max,
                           .n_pool_block = c->n_pool_block, .n_scratch_block = c->n_scratch_block};
    const size_t n_cell = (size_t)(c->n_pool_block + c->n_scratch_block) * GR_KV_BLOCK;
    m->cell = calloc(n_cell, sizeof(*m->cell));
    m->lm.logits = calloc((size_t)c->n_out_max * (size_t)c->n_vocab, sizeof(float));
    GR_ASSERT(m->cell != NULL && m->lm.logits != NULL);
    for (size_t i = 0; i < n_cell; i++) {
        m->cell[i].pos = -1;
    }
    return &m->lm;
}
