#include "tests/sim/toy_lm.h"

#include "common/rules/bf16.h"
#include "common/rules/hash.h"

#include <stdlib.h>

struct toy {
    struct gr_lm lm;
    struct toy_config config;
    struct cell {
        int32_t token, pos;
        uint32_t state; /* of a head: after the token */
        bool partial;   /* its row saw a view */
    } * cell;
    int32_t *list;       /* (n_view, n_list_max) */
    uint32_t *row_state; /* (n_row_max): of the last pass, where there are features */
    int32_t *to_target;  /* or NULL */
};

static struct toy *of(struct gr_lm *lm)
{
    return GR_CONTAINER_OF(lm, struct toy, lm);
}

/* What a row that sees everything sees has full KV. */
static void check_cell(const struct gr_attn_seq *s, const struct cell *c, int pos)
{
    GR_ASSERT(c->pos == pos && (s->sparse != NULL || !c->partial));
}

static uint64_t read_prefix(const struct toy *m, const struct gr_attn_seq *s, int r)
{
    uint64_t hash = 0;
    const int begin = m->config.memory > 0 ? s->limit[r] + s->n_anc[r] - m->config.memory : 0;
    GR_ASSERT(s->sparse == NULL || (s->dense_from % GR_KV_BLOCK_TOKENS == 0 && s->limit[r] >= s->dense_from));
    for (int p = GR_MAX(begin, 0); p < s->limit[r]; p++) {
        const struct cell *c = &m->cell[s->block[p / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + p % GR_KV_BLOCK_TOKENS];
        check_cell(s, c, p);
        hash = gr_hash_extend(hash, c->token);
    }
    for (int a = GR_MAX(begin - s->limit[r], 0); a < s->n_anc[r]; a++) {
        const int slot = s->anc[(size_t)r * GR_ATTN_ANC_MAX + (size_t)a];
        GR_ASSERT(slot < s->n_slot);
        const struct cell *c =
            &m->cell[s->scratch_block[slot / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + slot % GR_KV_BLOCK_TOKENS];
        check_cell(s, c, s->limit[r] + a);
        hash = gr_hash_extend(hash, c->token);
    }
    return hash;
}

/* ---- states and features ---- */

#define STATE_FIRST 0x5eed1234u
#define GUESSED 256.0f /* added to each byte of a state that no target has computed */

static uint32_t next_state(uint32_t state, int32_t token)
{
    return (uint32_t)gr_mix64((uint64_t)state << 32 ^ (uint64_t)(uint32_t)token ^ 0x70e);
}

static void write_feature(uint32_t state, float mark, float *out)
{
    for (int i = 0; i < TOY_FEATURE_WIDTH; i++) {
        out[i] = (float)(state >> 8 * i & 0xffu) + mark;
    }
}

/* A row's captures: the bytes of its state, their negatives, and the bytes again. */
static void write_capture(uint32_t state, float *out)
{
    for (int c = 0; c < TOY_N_CAPTURE; c++) {
        float *to = out + (size_t)c * TOY_FEATURE_WIDTH;
        write_feature(state, 0.0f, to);
        for (int i = 0; c == 1 && i < TOY_FEATURE_WIDTH; i++) {
            to[i] = -to[i];
        }
    }
}

/* The feature of a row, as a target ships it. */
static void write_shipped(uint32_t state, uint16_t *out)
{
    float x[TOY_FEATURE_WIDTH];
    write_feature(state, 0.0f, x);
    for (int i = 0; i < TOY_FEATURE_WIDTH; i++) {
        out[i] = gr_bf16_from_f32(x[i]);
    }
}

static uint32_t read_feature(const float *x, float mark)
{
    uint32_t state = 0;
    for (int i = 0; i < TOY_FEATURE_WIDTH; i++) {
        const float byte = x[i] - mark;
        GR_ASSERT(byte >= 0.0f && byte < 256.0f && byte == (float)(uint32_t)byte);
        state |= (uint32_t)byte << 8 * i;
    }
    return state;
}

void toy_lm_feature(const int32_t *token, int n, float out[TOY_FEATURE_WIDTH])
{
    uint32_t state = STATE_FIRST;
    for (int i = 0; i < n; i++) {
        state = next_state(state, token[i]);
    }
    write_feature(state, 0.0f, out);
}

void toy_lm_capture(const int32_t *token, int n, float out[TOY_N_CAPTURE * TOY_FEATURE_WIDTH])
{
    uint32_t state = STATE_FIRST;
    for (int i = 0; i < n; i++) {
        state = next_state(state, token[i]);
    }
    write_capture(state, out);
}

static struct cell *seen_cell(const struct toy *m, const struct gr_attn_seq *s, int r, int i)
{
    if (i < s->limit[r]) {
        return &m->cell[s->block[i / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + i % GR_KV_BLOCK_TOKENS];
    }
    const int slot = s->anc[(size_t)r * GR_ATTN_ANC_MAX + (size_t)(i - s->limit[r])];
    GR_ASSERT(slot < s->n_slot);
    return &m->cell[s->scratch_block[slot / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + slot % GR_KV_BLOCK_TOKENS];
}

static bool is_odd(const struct toy_config *c, uint64_t context, bool partial)
{
    const uint64_t x = gr_mix64(context ^ c->seed ^ 0x0dd0);
    return (c->odd > 0 && !(partial && c->odd_hidden) && x % (uint64_t)c->odd == 0) ||
           (partial && c->odd_partial > 0 && gr_mix64(x) % (uint64_t)c->odd_partial == 0);
}

/* One value, or every value. */
static void spoil_logits(const struct toy_config *c, uint64_t context, float *out)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    const uint64_t x = gr_mix64(context ^ 0x0dd1);
    for (int i = 0; i < c->n_vocab; i++) {
        out[i] = x % 4 == 3 || i == (int)(x / 4 % (uint64_t)c->n_vocab) ? odd[x % 4 % 3] : out[i];
    }
}

static void write_logits(const struct toy_config *c, uint64_t context, bool partial, float *out)
{
    uint64_t seed = c->seed;
    if (partial && c->partial_blur > 0 && gr_mix64(context ^ 0x9a27) % (uint64_t)c->partial_blur == 0) {
        seed = ~c->seed;
    }
    if (c->blur_seed != 0 && gr_mix64(context ^ c->blur_seed) % (uint64_t)c->blur == 0) {
        seed = c->blur_seed;
    }
    for (int i = 0; i < c->n_vocab; i++) {
        const uint64_t x = gr_mix64(context ^ gr_mix64(seed + (uint64_t)i));
        out[i] = c->sharpness * (float)(x >> 40) * (1.0f / 16777216.0f);
    }
    if (is_odd(c, context, partial)) {
        spoil_logits(c, context, out);
    }
}

void toy_lm_logits(const struct toy_config *config, const int32_t *token, int n, float *out)
{
    uint64_t hash = 0;
    if (config->features) {
        uint32_t state = STATE_FIRST;
        for (int i = 0; i < n; i++) {
            state = next_state(state, token[i]);
        }
        write_logits(config, gr_mix64(state), false, out);
        return;
    }
    for (int i = config->memory > 0 ? GR_MAX(n - config->memory, 0) : 0; i < n; i++) {
        hash = gr_hash_extend(hash, token[i]);
    }
    write_logits(config, hash, false, out);
}

/* The state after row r of a target, from the tokens it sees. */
static uint32_t target_state(const struct toy *m, const struct gr_attn_seq *s, int r)
{
    uint32_t state = STATE_FIRST;
    for (int i = 0; i < s->limit[r] + s->n_anc[r]; i++) {
        const struct cell *c = seen_cell(m, s, r, i);
        check_cell(s, c, i);
        state = next_state(state, c->token);
    }
    return state;
}

/* The feature that a row takes, in `far` if it lies in far memory. */
static const float *feature_of(const struct toy *m, const struct gr_batch *b, int row, float far[TOY_FEATURE_WIDTH])
{
    if (b->far_feature == NULL || b->from_state[row] >= 0) {
        return gr_lm_feature(&m->lm, b, row);
    }
    const uint16_t *half = (const uint16_t *)(const void *)m->config.far_at(b->far_feature[row]);
    for (int i = 0; i < TOY_FEATURE_WIDTH; i++) {
        far[i] = gr_bf16_to_f32(half[i]);
    }
    return far;
}

/* The state after row r of a head, from what it takes. Rows come after those they see. */
static uint32_t head_state(const struct toy *m, const struct gr_batch *b, const struct gr_attn_seq *s, int r)
{
    const int row = s->row0 + r;
    const int n_seen = s->limit[r] + s->n_anc[r];
    float far[TOY_FEATURE_WIDTH];
    const uint32_t before = read_feature(feature_of(m, b, row, far), s->n_anc[r] > 0 ? GUESSED : 0.0f);
    const uint32_t state = next_state(before, b->token[row]);
    struct cell *own = &m->cell[b->cell[row]];
    GR_ASSERT(own == seen_cell(m, s, r, n_seen - 1));
    *own = (struct cell){.token = b->token[row], .pos = b->pos[row], .state = state};
    for (int i = n_seen - 1; i > 0; i--) {
        const struct cell *c = seen_cell(m, s, r, i);
        const struct cell *p = seen_cell(m, s, r, i - 1);
        GR_ASSERT(p->pos == c->pos - 1 && next_state(p->state, c->token) == c->state);
        GR_ASSERT(i < n_seen - 1 || p->state == before);
    }
    return state;
}

static void write_cells(struct toy *m, const struct gr_batch *b)
{
    for (int i = 0; i < b->n_seq; i++) {
        const struct gr_attn_seq *s = &b->seq[i];
        for (int r = s->row0; r < s->row0 + s->n_row; r++) {
            m->cell[b->cell[r]] = (struct cell){.token = b->token[r], .pos = b->pos[r], .partial = s->sparse != NULL};
        }
    }
}

static const struct gr_attn_seq *seq_of(const struct gr_batch *b, int row)
{
    for (int i = 0; i < b->n_seq; i++) {
        if (row < b->seq[i].row0 + b->seq[i].n_row) {
            return &b->seq[i];
        }
    }
    GR_ASSERT(false);
    return NULL;
}

/* The first blocks: which ones a model would choose is its own matter. */
static void choose_views(struct toy *m, const struct gr_batch *b)
{
    for (int i = 0; i < b->n_refresh; i++) {
        const struct gr_kv_refresh *r = &b->refresh[i];
        struct gr_kv_view *v = &m->lm.view[r->view];
        GR_ASSERT(b->seq[r->i_seq].sparse == NULL);
        gr_kv_view_plan(v, &r->budget, r->kv_len);
        for (int k = 0; k < v->n_list; k++) {
            v->list[k] = k;
        }
    }
}

static void leave_capture(struct toy *m, int row, uint32_t state)
{
    if (m->lm.shipped != NULL) {
        write_shipped(state, m->lm.shipped + (size_t)row * TOY_FEATURE_WIDTH);
    } else {
        write_capture(state, m->lm.capture + (size_t)row * TOY_N_CAPTURE * TOY_FEATURE_WIDTH);
    }
}

static enum gr_status forward_with_features(struct toy *m, const struct gr_batch *b)
{
    const struct toy_config *c = &m->config;
    if (!c->head) {
        write_cells(m, b);
    }
    for (int i = 0; i < b->n_seq; i++) {
        const struct gr_attn_seq *s = &b->seq[i];
        for (int r = 0; r < s->n_row; r++) {
            const uint32_t state = c->head ? head_state(m, b, s, r) : target_state(m, s, r);
            m->row_state[s->row0 + r] = state;
            if (c->head) { /* where only KV is wanted, a state that no row goes on from */
                const bool kv_only = b->n_kv_only != NULL && r < b->n_kv_only[i];
                write_feature(kv_only ? ~state : state, GUESSED,
                              m->lm.hidden + (size_t)(s->row0 + r) * TOY_FEATURE_WIDTH);
            } else {
                const uint32_t mark = c->partial_features && s->sparse != NULL ? 0xa5a5a5a5u : 0;
                leave_capture(m, s->row0 + r, state ^ mark);
            }
        }
    }
    for (int i = 0; i < b->n_out; i++) {
        float all[256];
        float *out = m->lm.logits + (size_t)i * (size_t)m->lm.n_vocab_stride;
        write_logits(c, gr_mix64(m->row_state[b->out_row[i]]), seq_of(b, b->out_row[i])->sparse != NULL, all);
        for (int k = 0; k < m->lm.n_vocab; k++) {
            out[k] = all[m->to_target != NULL ? m->to_target[k] : k];
        }
    }
    return GR_OK;
}

static void toy_fuse(struct gr_lm *lm, int n, const float *const *capture, float *out)
{
    GR_ASSERT(n <= lm->n_row_max);
    for (int i = 0; i < n; i++) {
        float want[TOY_N_CAPTURE * TOY_FEATURE_WIDTH];
        const uint32_t state = read_feature(capture[i], 0.0f);
        write_capture(state, want);
        for (int k = 0; k < TOY_N_CAPTURE * TOY_FEATURE_WIDTH; k++) {
            GR_ASSERT(capture[i][k] == want[k]);
        }
        write_feature(state, 0.0f, out + (size_t)i * TOY_FEATURE_WIDTH);
    }
}

static enum gr_status toy_forward(struct gr_lm *lm, const struct gr_batch *b)
{
    struct toy *m = of(lm);
    choose_views(m, b);
    if (m->config.features) {
        const enum gr_status st = forward_with_features(m, b);
        gr_lm_keep_states(lm, b);
        return st;
    }
    write_cells(m, b);
    for (int i = 0; i < b->n_out; i++) {
        const int row = b->out_row[i];
        const struct gr_attn_seq *s = seq_of(b, row);
        write_logits(&m->config, read_prefix(m, s, row - s->row0), s->sparse != NULL,
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

static enum gr_status toy_view_create(struct gr_lm *lm, const struct gr_kv_budget *most, int n_view)
{
    struct toy *m = of(lm);
    const int32_t n_list_max = most->n_sink + most->n_retrieval;
    m->list = calloc((size_t)n_view * (size_t)n_list_max, sizeof(*m->list));
    lm->view = calloc((size_t)n_view, sizeof(*lm->view));
    GR_ASSERT(m->list != NULL && lm->view != NULL);
    for (int i = 0; i < n_view; i++) {
        lm->view[i] = (struct gr_kv_view){
            .dense_from = GR_VIEW_NONE, .n_list_max = n_list_max, .list = m->list + (size_t)i * (size_t)n_list_max};
    }
    lm->n_view = n_view;
    return GR_OK;
}

static void toy_view_destroy(struct gr_lm *lm)
{
    free(of(lm)->list);
    free(lm->view);
    lm->view = NULL;
}

static void toy_destroy(struct gr_lm *lm)
{
    struct toy *m = of(lm);
    gr_lm_view_destroy(lm);
    free(m->cell);
    free(m->lm.logits);
    free(m->lm.hidden);
    free(m->lm.state);
    free(m->lm.capture);
    free(m->lm.shipped);
    free(m->row_state);
    free(m->to_target);
    free(m);
}

static const struct gr_lm_ops toy_ops = {.forward = toy_forward,
                                         .copy_cells = toy_copy,
                                         .fuse = toy_fuse,
                                         .view_create = toy_view_create,
                                         .view_destroy = toy_view_destroy,
                                         .destroy = toy_destroy};

static void give_features(struct toy *m)
{
    const struct toy_config *c = &m->config;
    const int n = c->n_vocab_head;
    m->row_state = calloc((size_t)c->n_row_max, sizeof(*m->row_state));
    GR_ASSERT(m->row_state != NULL && c->n_vocab <= 256);
    m->lm.raw_features = c->raw;
    if (!c->head || c->raw) {
        m->lm.fused_width = m->lm.capture_width = TOY_FEATURE_WIDTH;
        m->lm.n_capture = TOY_N_CAPTURE;
    }
    if (!c->head && c->shipped) {
        m->lm.n_capture = 1;
        m->lm.shipped = calloc((size_t)c->n_row_max * TOY_FEATURE_WIDTH, sizeof(*m->lm.shipped));
        GR_ASSERT(m->lm.shipped != NULL);
        return;
    }
    if (!c->head) {
        m->lm.capture = calloc((size_t)c->n_row_max * TOY_N_CAPTURE * TOY_FEATURE_WIDTH, sizeof(float));
        GR_ASSERT(m->lm.capture != NULL);
        return;
    }
    m->lm.feature_width = TOY_FEATURE_WIDTH;
    m->lm.far_features = c->far_at != NULL && !c->raw;
    m->lm.hidden = calloc((size_t)c->n_row_max * TOY_FEATURE_WIDTH, sizeof(float));
    m->lm.n_state = c->n_scratch_block * (GR_KV_BLOCK_TOKENS + 1); /* a state a cell, and some for roots */
    m->lm.state = calloc((size_t)m->lm.n_state * TOY_FEATURE_WIDTH, sizeof(float));
    m->to_target = n > 0 ? calloc((size_t)n, sizeof(*m->to_target)) : NULL;
    GR_ASSERT(m->lm.hidden != NULL && m->lm.state != NULL && (n == 0 || m->to_target != NULL));
    for (int i = 0; i < n; i++) {
        m->to_target[i] = i * c->n_vocab / n;
    }
    m->lm.to_target = m->to_target;
    m->lm.n_vocab = n > 0 ? n : c->n_vocab;
    m->lm.n_vocab_target = c->n_vocab;
}

struct gr_lm *toy_lm_create(const struct toy_config *c)
{
    struct toy *m = calloc(1, sizeof(*m));
    GR_ASSERT(m != NULL);
    m->config = *c;
    m->lm = (struct gr_lm){.ops = &toy_ops,
                           .n_vocab = c->n_vocab,
                           .n_vocab_stride = c->n_vocab,
                           .n_ctx_max = c->n_ctx_max,
                           .n_row_max = c->n_row_max,
                           .n_out_max = c->n_out_max,
                           .n_pool_block = c->n_pool_block,
                           .n_scratch_block = c->n_scratch_block};
    const size_t n_cell = (size_t)(c->n_pool_block + c->n_scratch_block) * GR_KV_BLOCK_TOKENS;
    m->cell = calloc(n_cell, sizeof(*m->cell));
    m->lm.logits = calloc((size_t)c->n_out_max * (size_t)c->n_vocab, sizeof(float));
    GR_ASSERT(m->cell != NULL && m->lm.logits != NULL);
    for (size_t i = 0; i < n_cell; i++) {
        m->cell[i].pos = -1;
    }
    if (c->features) {
        give_features(m);
    }
    return &m->lm;
}
