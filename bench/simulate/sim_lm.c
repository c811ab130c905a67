#include "bench/simulate/sim_lm.h"

#include "common/base/zeroed.h"
#include "common/rules/bf16.h"
#include "common/rules/hash.h"

#include <stdlib.h>

#define STATE_FIRST 0x5eed1234u
#define TEXT_SHIFT 28 /* the bits of a state from here on say which text it is, for all of the sequence */
#define STATE_MASK ((1u << TEXT_SHIFT) - 1)
#define FEATURE_WIDTH 4 /* bytes of a state, each a number that bf16 holds exactly */

struct sim_lm {
    struct gr_lm lm;
    struct gr_sim_lm_config config;
    uint32_t *cell;      /* the state after the token whose KV lies there */
    uint32_t *row_state; /* (n_row_max): of the pass */
    int32_t *row_depth;  /* (n_row_max): candidates that the row sees, itself among them */
    struct gr_picked *picked;
    struct gr_top_row *top;
    double spent_ns;
};

static struct sim_lm *of(struct gr_lm *lm)
{
    return GR_CONTAINER_OF(lm, struct sim_lm, lm);
}

static uint32_t next_state(uint32_t state, int32_t token)
{
    const uint32_t text = state == STATE_FIRST ? (uint32_t)token % GR_SURMISE_TEXT_MAX : state >> TEXT_SHIFT;
    return text << TEXT_SHIFT |
           ((uint32_t)gr_mix64((uint64_t)state << 32 ^ (uint64_t)(uint32_t)token ^ 0x70e) & STATE_MASK);
}

/* ---- states, from KV or from features ---- */

/* What the i-th token that row r sees has left. */
static uint32_t seen_state(const struct sim_lm *m, const struct gr_attn_seq *s, int r, int i)
{
    if (i < s->limit[r]) {
        return m->cell[s->block[i / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + i % GR_KV_BLOCK_TOKENS];
    }
    const int slot = s->anc[(size_t)r * GR_ATTN_ANC_MAX + (size_t)(i - s->limit[r])];
    return m->cell[s->scratch_block[slot / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + slot % GR_KV_BLOCK_TOKENS];
}

static uint32_t state_before(const struct sim_lm *m, const struct gr_attn_seq *s, int r)
{
    const int n_seen = s->limit[r] + s->n_anc[r];
    return n_seen > 1 ? seen_state(m, s, r, n_seen - 2) : STATE_FIRST;
}

static uint32_t read_feature(const float *x)
{
    uint32_t state = 0;
    for (int i = 0; i < FEATURE_WIDTH; i++) {
        state |= (uint32_t)x[i] << 8 * i;
    }
    return state;
}

static float feature_of(uint32_t state, int i)
{
    return (float)(state >> 8 * i & 0xffu);
}

static void leave_feature(struct sim_lm *m, int row, uint32_t state)
{
    for (int i = 0; i < FEATURE_WIDTH; i++) {
        if (m->lm.hidden != NULL) {
            m->lm.hidden[row * FEATURE_WIDTH + i] = feature_of(state, i);
        } else {
            m->lm.shipped[row * FEATURE_WIDTH + i] = gr_bf16_from_f32(feature_of(state, i));
        }
    }
}

static void run_row(struct sim_lm *m, const struct gr_batch *b, const struct gr_attn_seq *s, int r)
{
    const int row = s->row0 + r;
    const bool head = m->lm.feature_width > 0;
    const uint32_t before = head ? read_feature(gr_lm_feature(&m->lm, b, row)) : state_before(m, s, r);
    const uint32_t state = next_state(before, b->token[row]);
    m->cell[b->cell[row]] = m->row_state[row] = state;
    m->row_depth[row] = s->n_anc[r];
    if (m->config.features) {
        leave_feature(m, row, state);
    }
}

/* ---- picks and children ---- */

static int32_t pick_after(const struct sim_lm *m, uint32_t state)
{
    return (int32_t)(gr_mix64(state ^ 0x91c4) % (uint64_t)m->config.n_vocab);
}

/* What the model knows of the children of a row. pos: the row's, which of a head's is one less than its token's. */
static struct gr_surmised surmise_row(const struct sim_lm *m, uint32_t state, int32_t pos, int level)
{
    const struct gr_surmise_texts *t = m->config.texts;
    const int32_t of_pick = pos + 1 + (m->lm.feature_width > 0 ? 1 : 0);
    return t != NULL && t->n_text > 0
               ? gr_surmise_recall(t, (int)(state >> TEXT_SHIFT), GR_MAX(of_pick - m->config.n_prompt, 0), level)
               : gr_surmise(m->config.surmise, level, gr_mix64(state ^ 0xd4af7));
}

/* The pick at its rank, and ids that are not it at the others. */
static void rank_children(const struct sim_lm *m, int row, int32_t pos, int n_max, struct gr_top_row *out)
{
    const uint32_t state = m->row_state[row];
    const struct gr_surmised s = surmise_row(m, state, pos, m->row_depth[row] + 1);
    const int32_t pick = pick_after(m, state);
    out->n = GR_MIN(n_max, gr_surmised_n(&s));
    out->log_sum = 0.0f;
    for (int i = 0; i < out->n; i++) {
        out->id[i] = i + 1 == s.rank ? pick : (pick + 1 + i) % m->config.n_vocab;
        out->edge[i] = gr_surmised_edge(&s, i + 1);
    }
}

static enum gr_status forward(struct gr_lm *lm, const struct gr_batch *b)
{
    struct sim_lm *m = of(lm);
    for (int i = 0; i < b->n_seq; i++) {
        for (int r = 0; r < b->seq[i].n_row; r++) {
            run_row(m, b, &b->seq[i], r);
        }
    }
    if (lm->hidden != NULL) {
        gr_lm_keep_states(lm, b);
    }
    for (int i = 0; i < b->n_out; i++) {
        const int row = b->out_row[i];
        if (m->top != NULL) {
            rank_children(m, row, b->pos[row], b->n_top[i], &m->top[i]);
        } else {
            m->picked[i] = (struct gr_picked){.id = pick_after(m, m->row_state[row])};
        }
    }
    m->spent_ns += m->config.pass_ns != NULL ? m->config.pass_ns(m->config.pass_ctx, b) : 0.0;
    return GR_OK;
}

static void copy_cells(struct gr_lm *lm, int n, const int32_t *src, const int32_t *dst)
{
    for (int i = 0; i < n; i++) {
        of(lm)->cell[dst[i]] = of(lm)->cell[src[i]];
    }
}

/* ---- life ---- */

static void destroy(struct gr_lm *lm)
{
    struct sim_lm *m = of(lm);
    free(m->cell);
    free(m->row_state);
    free(m->row_depth);
    free(m->picked);
    free(m->top);
    free(lm->logits);
    free(lm->hidden);
    free(lm->state);
    free(lm->shipped);
    free(m);
}

static const struct gr_lm_ops ops = {.forward = forward, .copy_cells = copy_cells, .destroy = destroy};

static bool give_features(struct sim_lm *m)
{
    const struct gr_sim_lm_config *c = &m->config;
    const size_t n_row = (size_t)c->n_row_max * FEATURE_WIDTH;
    bool ok = true;
    if (c->surmise == NULL) {
        m->lm.fused_width = m->lm.capture_width = FEATURE_WIDTH;
        m->lm.n_capture = 1;
        m->lm.shipped = gr_zeroed(n_row, sizeof(*m->lm.shipped), &ok);
        return ok;
    }
    m->lm.feature_width = FEATURE_WIDTH;
    m->lm.n_state = c->n_state;
    m->lm.hidden = gr_zeroed(n_row, sizeof(*m->lm.hidden), &ok);
    m->lm.state = gr_zeroed((size_t)c->n_state * FEATURE_WIDTH, sizeof(*m->lm.state), &ok);
    return ok;
}

struct gr_lm *gr_sim_lm_create(const struct gr_sim_lm_config *c)
{
    bool ok = true;
    struct sim_lm *m = gr_zeroed(1, sizeof(*m), &ok);
    if (!ok) {
        return NULL;
    }
    const size_t n_out = (size_t)c->n_out_max;
    m->config = *c;
    m->lm = (struct gr_lm){.ops = &ops,
                           .n_vocab = c->n_vocab,
                           .n_vocab_stride = 0, /* no row's logits are there: each is picked or ranked */
                           .n_ctx_max = c->n_ctx_max,
                           .n_row_max = c->n_row_max,
                           .n_out_max = c->n_out_max,
                           .n_pool_block = c->n_pool_block,
                           .n_scratch_block = c->n_scratch_block};
    m->cell = gr_zeroed((size_t)(c->n_pool_block + c->n_scratch_block) * GR_KV_BLOCK_TOKENS, sizeof(*m->cell), &ok);
    m->row_state = gr_zeroed((size_t)c->n_row_max, sizeof(*m->row_state), &ok);
    m->row_depth = gr_zeroed((size_t)c->n_row_max, sizeof(*m->row_depth), &ok);
    m->lm.logits = gr_zeroed(1, sizeof(*m->lm.logits), &ok);
    if (c->surmise == NULL) {
        m->lm.picked = m->picked = gr_zeroed(n_out, sizeof(*m->picked), &ok);
    } else {
        m->lm.top = m->top = gr_zeroed(n_out, sizeof(*m->top), &ok);
    }
    ok = (!c->features || give_features(m)) && ok;
    if (!ok) {
        destroy(&m->lm);
        return NULL;
    }
    return &m->lm;
}

uint64_t gr_sim_lm_spent_ns(void *lm)
{
    return (uint64_t)of(lm)->spent_ns;
}
