#include "model/cuda/pass.h"

#include "kernels/cuda/rows/rows.h"

#include <string.h>

#define PAD(bytes) (((bytes) + 255) / 256 * 256)

static void *host_part(const struct gr_cuda_pass *p, enum gr_cuda_pass_part part)
{
    return p->host + p->at[part];
}

static void *dev_part(const struct gr_cuda_pass *p, enum gr_cuda_pass_part part)
{
    return p->dev + p->at[part];
}

static void lay_out(struct gr_cuda_pass *p)
{
    const size_t n_row = (size_t)p->limits.n_row_max;
    const size_t n_out = (size_t)p->limits.n_out_max;
    const size_t n_seq = (size_t)p->limits.n_seq_max;
    const size_t n_block = n_seq * (size_t)p->limits.n_table_block + (size_t)p->limits.n_scratch_block;
    const size_t bytes[GR_CUDA_N_PART] = {
        [GR_CUDA_PART_COUNTS] = 5 * sizeof(int32_t),
        [GR_CUDA_PART_TOKEN] = n_row * sizeof(int32_t),
        [GR_CUDA_PART_POS] = n_row * sizeof(int32_t),
        [GR_CUDA_PART_CELL] = n_row * sizeof(int32_t),
        [GR_CUDA_PART_OUT_ROW] = n_out * sizeof(int32_t),
        [GR_CUDA_PART_LIMIT] = n_row * sizeof(int32_t),
        [GR_CUDA_PART_N_ANC] = n_row * sizeof(int32_t),
        [GR_CUDA_PART_ANC] = n_row * GR_ATTN_ANC_MAX * sizeof(int16_t),
        [GR_CUDA_PART_SEQ] = n_seq * sizeof(struct gr_attn_seq),
        [GR_CUDA_PART_BLOCK] = n_block * sizeof(int32_t),
        [GR_CUDA_PART_PICK] = n_out * sizeof(struct gr_cuda_pick),
        [GR_CUDA_PART_N_TOP] = n_out * sizeof(int32_t),
        [GR_CUDA_PART_FROM_STATE] = p->limits.n_state > 0 ? n_row * sizeof(int32_t) : 0,
        [GR_CUDA_PART_TO_STATE] = p->limits.n_state > 0 ? n_row * sizeof(int32_t) : 0,
        [GR_CUDA_PART_FEATURE] = n_row * (size_t)p->limits.feature_width * sizeof(float),
        [GR_CUDA_PART_HALF] = p->limits.far_feature ? n_row * sizeof(const uint16_t *) : 0,
        [GR_CUDA_PART_REFRESH] = n_seq * sizeof(struct gr_cuda_refresh),
        [GR_CUDA_PART_ADJUST] = p->limits.n_entry > 0 ? n_out * sizeof(struct gr_cuda_adjust_row) : 0,
        [GR_CUDA_PART_ENTRY] = (size_t)p->limits.n_entry * sizeof(struct gr_adjust_entry),
    };
    p->bytes = PAD(sizeof(struct gr_cuda_input_head));
    for (int i = 0; i < GR_CUDA_N_PART; i++) {
        p->at[i] = p->bytes;
        p->bytes += PAD(bytes[i]);
    }
}

enum gr_status gr_cuda_pass_init(struct gr_cuda_pass *p, struct gr_cuda_device *d,
                                 const struct gr_cuda_pass_limits *limits)
{
    void *host = NULL;
    void *alias = NULL;
    void *dev = NULL;
    *p = (struct gr_cuda_pass){.limits = *limits};
    lay_out(p);
    GR_TRY(gr_cuda_take_host(d, p->bytes, &host, &alias));
    GR_TRY(gr_cuda_take(d, "inputs of a pass", p->bytes, &dev));
    p->host = host;
    p->host_alias = alias;
    p->dev = dev;
    const int32_t *counts = dev_part(p, GR_CUDA_PART_COUNTS);
    p->inputs = (struct gr_cuda_pass_inputs){.n_row = counts,
                                             .n_out = counts + 1,
                                             .n_seq = counts + 2,
                                             .ticket = (const uint32_t *)(counts + 3),
                                             .n_refresh = counts + 4,
                                             .token = dev_part(p, GR_CUDA_PART_TOKEN),
                                             .pos = dev_part(p, GR_CUDA_PART_POS),
                                             .cell = dev_part(p, GR_CUDA_PART_CELL),
                                             .out_row = dev_part(p, GR_CUDA_PART_OUT_ROW),
                                             .seq = dev_part(p, GR_CUDA_PART_SEQ),
                                             .pick = dev_part(p, GR_CUDA_PART_PICK),
                                             .n_top = dev_part(p, GR_CUDA_PART_N_TOP),
                                             .from_state = dev_part(p, GR_CUDA_PART_FROM_STATE),
                                             .to_state = dev_part(p, GR_CUDA_PART_TO_STATE),
                                             .feature = dev_part(p, GR_CUDA_PART_FEATURE),
                                             .half = limits->far_feature ? dev_part(p, GR_CUDA_PART_HALF) : NULL,
                                             .refresh = dev_part(p, GR_CUDA_PART_REFRESH),
                                             .adjust = dev_part(p, GR_CUDA_PART_ADJUST),
                                             .entry = dev_part(p, GR_CUDA_PART_ENTRY)};
    return GR_OK;
}

_Static_assert((int)GR_CUDA_N_PART <= (int)GR_CUDA_INPUT_PARTS, "the head has a place for each part");

/* Says that so many bytes of the part are there, from `first` on, a multiple of 16. */
static void give_from(struct gr_cuda_pass *p, enum gr_cuda_pass_part part, size_t first, size_t bytes)
{
    struct gr_cuda_input_head *head = (struct gr_cuda_input_head *)(void *)p->host;
    if (bytes > 0) {
        head->part[head->n_part].offset = (uint32_t)(p->at[part] + first);
        head->part[head->n_part++].bytes = (uint32_t)((bytes + 15) / 16 * 16);
    }
}

static void give(struct gr_cuda_pass *p, enum gr_cuda_pass_part part, size_t bytes)
{
    give_from(p, part, 0, bytes);
}

static void put(struct gr_cuda_pass *p, enum gr_cuda_pass_part part, const void *from, size_t bytes)
{
    if (bytes > 0) {
        memcpy(host_part(p, part), from, bytes);
    }
    give(p, part, bytes);
}

/* What the sequences point to, and the sequences with the device's pointers to it; lists of views are the
 * device's already. */
static void put_seqs(struct gr_cuda_pass *p, const struct gr_batch *b)
{
    struct gr_attn_seq *seq = host_part(p, GR_CUDA_PART_SEQ);
    int32_t *limit = host_part(p, GR_CUDA_PART_LIMIT);
    int32_t *n_anc = host_part(p, GR_CUDA_PART_N_ANC);
    int16_t *anc = host_part(p, GR_CUDA_PART_ANC);
    int32_t *block = host_part(p, GR_CUDA_PART_BLOCK);
    const int32_t *dev_block = dev_part(p, GR_CUDA_PART_BLOCK);
    int n_block = 0;
    int n_with_anc = 0; /* rows up to the last that has ancestors */
    for (int i = 0; i < b->n_seq; i++) {
        const struct gr_attn_seq *s = &b->seq[i];
        const size_t n_row = (size_t)s->n_row;
        int limit_max = 0;
        GR_ASSERT(s->sparse == NULL || p->view != NULL);
        for (int r = 0; r < s->n_row; r++) {
            limit_max = GR_MAX(limit_max, s->limit[r]);
        }
        memcpy(limit + s->row0, s->limit, n_row * sizeof(*limit));
        memcpy(n_anc + s->row0, s->n_anc, n_row * sizeof(*n_anc));
        const int n_table = (limit_max + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
        const int n_scratch = (s->n_slot + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
        GR_ASSERT(n_table <= p->limits.n_table_block && n_scratch <= p->limits.n_scratch_block);
        memcpy(block + n_block, s->block, (size_t)n_table * sizeof(*block));
        memcpy(block + n_block + n_table, s->scratch_block, (size_t)n_scratch * sizeof(*block));
        if (s->n_slot > 0) {
            memcpy(anc + (size_t)s->row0 * GR_ATTN_ANC_MAX, s->anc, n_row * GR_ATTN_ANC_MAX * sizeof(*anc));
            n_with_anc = s->row0 + s->n_row;
        }
        seq[i] = (struct gr_attn_seq){.row0 = s->row0,
                                      .n_row = s->n_row,
                                      .n_slot = s->n_slot,
                                      .block = dev_block + n_block,
                                      .scratch_block = dev_block + n_block + n_table,
                                      .limit = (const int32_t *)dev_part(p, GR_CUDA_PART_LIMIT) + s->row0,
                                      .n_anc = (const int32_t *)dev_part(p, GR_CUDA_PART_N_ANC) + s->row0,
                                      .anc = (const int16_t *)dev_part(p, GR_CUDA_PART_ANC) +
                                             (size_t)s->row0 * GR_ATTN_ANC_MAX,
                                      .sparse = s->sparse,
                                      .n_sparse = s->n_sparse,
                                      .sparse_stride = s->sparse_stride,
                                      .dense_from = s->dense_from};
        n_block += n_table + n_scratch;
    }
    give(p, GR_CUDA_PART_SEQ, (size_t)b->n_seq * sizeof(*seq));
    give(p, GR_CUDA_PART_LIMIT, (size_t)b->n_row * sizeof(*limit));
    give(p, GR_CUDA_PART_N_ANC, (size_t)b->n_row * sizeof(*n_anc));
    give(p, GR_CUDA_PART_ANC, (size_t)n_with_anc * GR_ATTN_ANC_MAX * sizeof(*anc));
    give(p, GR_CUDA_PART_BLOCK, (size_t)n_block * sizeof(*block));
}

/* Views that the pass chooses; after put_seqs(), whose block tables they use. Where all candidates fit in a list, all
 * are fixed. */
static void put_refreshes(struct gr_cuda_pass *p, const struct gr_batch *b)
{
    const struct gr_attn_seq *seq = host_part(p, GR_CUDA_PART_SEQ);
    struct gr_cuda_refresh *to = host_part(p, GR_CUDA_PART_REFRESH);
    GR_ASSERT(b->n_refresh == 0 || (p->view != NULL && b->n_refresh <= p->limits.n_seq_max));
    for (int i = 0; i < b->n_refresh; i++) {
        const struct gr_kv_refresh *r = &b->refresh[i];
        const struct gr_kv_view *v = &p->view[r->view];
        const int n_whole = r->kv_len / GR_KV_BLOCK_TOKENS;
        const int n_below = v->dense_from / GR_KV_BLOCK_TOKENS;
        to[i] = (struct gr_cuda_refresh){.block = seq[r->i_seq].block,
                                         .view = r->view,
                                         .row0 = r->row0,
                                         .n_row = r->n_row,
                                         .n_summed = GR_MIN(v->n_summed, n_whole),
                                         .n_whole = n_whole,
                                         .n_fixed = v->n_list < n_below ? GR_MIN(n_below, r->budget.n_sink) : n_below,
                                         .n_below = n_below,
                                         .n_list = v->n_list,
                                         .use_max = r->budget.score_max};
    }
    give(p, GR_CUDA_PART_REFRESH, (size_t)b->n_refresh * sizeof(*to));
}

static struct gr_cuda_pick pick_of(const struct gr_sampling *s, uint32_t pos)
{
    const bool greedy = gr_temperature_is_greedy(s->temperature);
    return (struct gr_cuda_pick){.seed = s->seed,
                                 .temperature = greedy ? 0.0f : s->temperature,
                                 .pos = pos,
                                 .choice = s->choice,
                                 .host = (uint32_t)gr_sampling_needs_row(s)};
}

static void put_picks(struct gr_cuda_pass *p, const struct gr_batch *b, int pos_ahead)
{
    struct gr_cuda_pick *pick = host_part(p, GR_CUDA_PART_PICK);
    for (int i = 0; i < b->n_out; i++) {
        const bool picked = b->sampling != NULL && b->sampling[i] != NULL;
        pick[i] = picked ? pick_of(b->sampling[i], (uint32_t)(b->pos[b->out_row[i]] + pos_ahead))
                         : (struct gr_cuda_pick){.host = 1};
    }
    give(p, GR_CUDA_PART_PICK, (size_t)b->n_out * sizeof(*pick));
}

/* Lists of a batch that has any, one after the other. */
static void put_lists(struct gr_cuda_pass *p, const struct gr_batch *b)
{
    struct gr_cuda_adjust_row *row = host_part(p, GR_CUDA_PART_ADJUST);
    struct gr_adjust_entry *entry = host_part(p, GR_CUDA_PART_ENTRY);
    int32_t n = 0;
    for (int i = 0; i < b->n_out; i++) {
        const struct gr_adjust_list *list = &b->list[i];
        GR_ASSERT(list->n <= p->limits.n_entry - n);
        row[i] = (struct gr_cuda_adjust_row){.penalties = list->penalties, .first = n, .n = list->n};
        if (list->n > 0) {
            memcpy(entry + n, list->entry, (size_t)list->n * sizeof(*entry));
        }
        n += list->n;
    }
    give(p, GR_CUDA_PART_ADJUST, (size_t)b->n_out * sizeof(*row));
    give(p, GR_CUDA_PART_ENTRY, (size_t)n * sizeof(*entry));
}

static void put_states(struct gr_cuda_pass *p, const struct gr_batch *b)
{
    int32_t *from = host_part(p, GR_CUDA_PART_FROM_STATE);
    int32_t *to = host_part(p, GR_CUDA_PART_TO_STATE);
    for (int r = 0; r < b->n_row; r++) {
        from[r] = b->from_state != NULL ? b->from_state[r] : -1;
        to[r] = b->to_state != NULL ? b->to_state[r] : -1;
        GR_ASSERT(from[r] < p->limits.n_state && to[r] < p->limits.n_state);
    }
    give(p, GR_CUDA_PART_FROM_STATE, (size_t)b->n_row * sizeof(*from));
    give(p, GR_CUDA_PART_TO_STATE, (size_t)b->n_row * sizeof(*to));
}

/* From the first row to the last whose feature is the host's: rows of a level, between them or not, take states. */
static void put_features(struct gr_cuda_pass *p, const struct gr_batch *b)
{
    const size_t width = (size_t)p->limits.feature_width;
    float *feature = host_part(p, GR_CUDA_PART_FEATURE);
    size_t begin = 0;
    size_t end = 0;
    for (int r = 0; width > 0 && r < b->n_row; r++) {
        if (b->from_state == NULL || b->from_state[r] < 0) {
            memcpy(feature + (size_t)r * width, b->feature[r], width * sizeof(float));
            begin = end == 0 ? (size_t)r : begin;
            end = (size_t)r + 1;
        }
    }
    give_from(p, GR_CUDA_PART_FEATURE, begin * width * sizeof(float), (end - begin) * width * sizeof(float));
}

/* Where rows' features lie on the device: of none, where the batch has them on the host. */
static void put_halves(struct gr_cuda_pass *p, const struct gr_batch *b)
{
    const uint16_t **half = host_part(p, GR_CUDA_PART_HALF);
    for (int r = 0; r < b->n_row; r++) {
        const bool takes = b->far_feature != NULL && (b->from_state == NULL || b->from_state[r] < 0);
        half[r] = takes ? b->far_feature[r] : NULL;
    }
    give(p, GR_CUDA_PART_HALF, (size_t)b->n_row * sizeof(const uint16_t *));
}

void gr_cuda_pass_write(struct gr_cuda_pass *p, const struct gr_batch *b, int pos_ahead)
{
    GR_ASSERT(b->n_row >= 1 && b->n_row <= p->limits.n_row_max && b->n_out <= p->limits.n_out_max &&
              b->n_seq <= p->limits.n_seq_max);
    const int32_t counts[] = {b->n_row, b->n_out, b->n_seq, (int32_t)++p->ticket, b->n_refresh};
    const size_t row_bytes = (size_t)b->n_row * sizeof(int32_t);
    ((struct gr_cuda_input_head *)(void *)p->host)->n_part = 0;
    put(p, GR_CUDA_PART_COUNTS, counts, sizeof(counts));
    put(p, GR_CUDA_PART_TOKEN, b->token, row_bytes);
    put(p, GR_CUDA_PART_POS, b->pos, row_bytes);
    put(p, GR_CUDA_PART_CELL, b->cell, row_bytes);
    put(p, GR_CUDA_PART_OUT_ROW, b->out_row, (size_t)b->n_out * sizeof(int32_t));
    put_seqs(p, b);
    put_refreshes(p, b);
    put_picks(p, b, pos_ahead);
    if (b->list != NULL) {
        put_lists(p, b);
    }
    if (b->n_top != NULL) {
        put(p, GR_CUDA_PART_N_TOP, b->n_top, (size_t)b->n_out * sizeof(int32_t));
    }
    GR_ASSERT(p->limits.n_state > 0 || (b->from_state == NULL && b->to_state == NULL));
    if (p->limits.n_state > 0) {
        put_states(p, b);
    }
    GR_ASSERT(p->limits.far_feature || b->far_feature == NULL);
    if (p->limits.far_feature) {
        put_halves(p, b);
    }
    if (b->far_feature == NULL) {
        put_features(p, b);
    }
}
