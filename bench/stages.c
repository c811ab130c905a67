/* graft-bench stages: forward passes by themselves, in this process: the target's with 1 to 512 rows of trees at a
 * context and its prefill, an EAGLE-3 head's and its fc; each against the larger of what its bytes and what its
 * operations need on this machine, measured in the same run (read bandwidth over a buffer of the pass's size; fused
 * multiply-adds from registers). Also the way to the head's inner values: --dump, --compare (stage_dump.h). */
#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/stage_dump.h"
#include "bench/paths.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "model/cuda/eagle3.h"
#include "model/cuda/llama.h"
#include "common/base/device.h"
#include "model/eagle3.h"
#include "model/llama.h"
#include "model/files/model_path.h"
#include "target_worker/rank_group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_ROW_MAX GR_STAGE_ROW_MAX
#define N_REP_MAX GR_STAGE_REP_MAX
#define N_TREE_MAX 64 /* rows of a tree, at most */
#define N_SEQ_MAX (N_ROW_MAX / N_TREE_MAX)
#define N_SCRATCH (N_TREE_MAX / GR_KV_BLOCK_TOKENS) /* blocks of a tree */
#define N_TOP 10                                    /* children of a row: EAGLE-3's default */
#define RANK_LIMIT_NS (60 * GR_S)
#define N_AGAIN 8 /* passes one after another, of which a mean counts as one */

static const struct gr_sampling greedy = {.top_p = 1.0f};

/* One model and what a pass of it costs at least. */
struct stage {
    struct gr_lm *lm;
    struct gr_group *group; /* owned; NULL: none */
    struct gr_hf_config hf;
    int n_context, n_rep;
    int n_row_max; /* of those that are measured beside each other; beyond N_TREE_MAX of several trees */
    size_t weight_bytes, kv_bytes_per_token;
    double flops_per_row;           /* linears; of them: */
    double head_flops;              /* lm_head */
    double peak_flops, bytes_per_s; /* of this machine, all threads */
    int32_t *token, *pos, *cell, *limit, *n_anc, *out_row, *block, scratch_block[N_SEQ_MAX * N_SCRATCH];
    int16_t *anc;
    const float **capture;               /* (N_ROW_MAX): rows 0, 1, 2, ... of the last pass */
    float *feature;                      /* (feature_width) one for all rows */
    const float **features;              /* (N_ROW_MAX) */
    const struct gr_sampling **sampling; /* (N_ROW_MAX) greedy: a GPU picks, or ranks, where the logits are */
    int32_t *n_top;                      /* (N_ROW_MAX) */
    int32_t *from_state, *to_state; /* (N_ROW_MAX) a head's tree rows: as a level's, they take and leave kept states */
    bool partial;                   /* rows see the view */
    bool has_views;                 /* partial passes are measured: the table has columns for them */
    const struct gr_kv_refresh *refresh; /* the pass chooses the view; NULL: it does not */
};

static void *zeroed(size_t n, size_t size)
{
    void *p = calloc(n, size);
    GR_ASSERT(p != NULL); /* a benchmark: a few hundred kilobytes */
    return p;
}

/* The cell of an index, of a position or a slot, through the blocks that hold it. */
static int32_t cell_at(const int32_t *block, int i)
{
    return block[i / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + i % GR_KV_BLOCK_TOKENS;
}

/* A chain: row r is at position pos0 + r. */
static void place_chain(struct stage *s, int pos0, int n_row)
{
    for (int r = 0; r < n_row; r++) {
        s->pos[r] = pos0 + r;
        s->cell[r] = cell_at(s->block, pos0 + r);
        s->limit[r] = pos0 + r + 1;
        s->n_anc[r] = 0;
    }
}

/* Trees after a context, each a tail with a chain of nodes; all of the same context, whose KV is there once. */
static void place_trees(struct stage *s, int pos0, int n_row)
{
    for (int r = 0; r < n_row; r++) {
        const int slot = r % N_TREE_MAX;
        s->pos[r] = GR_MIN(pos0 + slot, s->lm->n_ctx_max - 1); /* rows after a full context: they cost the same */
        s->cell[r] = cell_at(s->scratch_block + r / N_TREE_MAX * N_SCRATCH, slot);
        s->limit[r] = pos0;
        s->n_anc[r] = slot + 1;
        for (int a = 0; a <= slot; a++) {
            s->anc[r * GR_ATTN_ANC_MAX + a] = (int16_t)a;
        }
    }
}

static struct gr_attn_seq seq_at(struct stage *s, int row0, int n_row, bool tree)
{
    return (struct gr_attn_seq){.row0 = row0,
                                .n_row = n_row,
                                .block = s->block,
                                .limit = s->limit + row0,
                                .scratch_block = s->scratch_block + row0 / N_TREE_MAX * N_SCRATCH,
                                .n_anc = s->n_anc + row0,
                                .anc = s->anc + (size_t)row0 * GR_ATTN_ANC_MAX,
                                .n_slot = tree ? n_row : 0};
}

/* n_row chain rows from position pos0, or trees of together n_row rows after the context. */
static void run_rows(struct stage *s, int pos0, int n_row, bool tree, int n_out)
{
    struct gr_attn_seq seq[N_SEQ_MAX];
    int n_seq = 0;
    for (int r = 0; r < n_row; r++) {
        s->token[r] = (int32_t)((pos0 + r) * 7919 % s->lm->n_vocab);
    }
    (tree ? place_trees : place_chain)(s, pos0, n_row);
    for (int row0 = 0; row0 < n_row; row0 += tree ? N_TREE_MAX : n_row) {
        seq[n_seq++] = seq_at(s, row0, tree ? GR_MIN(n_row - row0, N_TREE_MAX) : n_row, tree);
    }
    for (int i = 0; i < n_out; i++) {
        s->out_row[i] = n_row - n_out + i;
    }
    const bool states = tree && s->lm->n_state > 0;
    if (s->partial) {
        gr_kv_view_attend(&s->lm->view[0], &seq[0]);
    }
    const struct gr_batch b = {.n_row = n_row,
                               .n_seq = n_seq,
                               .n_out = n_out,
                               .token = s->token,
                               .pos = s->pos,
                               .cell = s->cell,
                               .seq = seq,
                               .out_row = s->out_row,
                               .feature = s->features,
                               .from_state = states ? s->from_state : NULL,
                               .to_state = states ? s->to_state : NULL,
                               .sampling = s->sampling,
                               .n_top = s->n_top,
                               .want_capture = s->lm->fused_width > 0,
                               .n_refresh = s->refresh != NULL,
                               .refresh = s->refresh};
    enum gr_status st = gr_lm_forward(s->lm, &b);
    GR_ASSERT(st == GR_OK);
}

static double attention_flops(const struct stage *s, double n_key, double n_row)
{
    return 4.0 * n_key * n_row * s->hf.n_head * s->hf.head_dim * s->hf.n_layer;
}

/* A partial pass against the full one of as many rows; NULL: the row is of another stage. */
struct against_full {
    double of_full, full_ms, expected, quotient, refresh_ms;
};

static void print_against_full(struct gr_table *t, const struct against_full *f)
{
    const double value[] = {f != NULL ? f->of_full : NAN, f != NULL ? f->full_ms : NAN, f != NULL ? f->expected : NAN,
                            f != NULL ? f->quotient : NAN, f != NULL ? f->refresh_ms : NAN};
    for (size_t i = 0; i < GR_ARRAY_LEN(value); i++) {
        gr_table_number(t, value[i], 3);
    }
}

/* A line of the table. */
struct row {
    const char *what;
    int n_row;
    double *ms; /* (n), which the median sorts */
    int n;
    double device_ms; /* a pass without the host; 0: not measured */
    double bytes, flops;
    const struct against_full *full; /* NULL: of another stage */
};

static void print_row(struct gr_table *t, const struct stage *s, const struct row *r)
{
    const double bytes_ms = r->bytes / s->bytes_per_s * 1e3;
    const double flops_ms = r->flops / s->peak_flops * 1e3;
    const double median = gr_median(r->ms, r->n);
    gr_table_text(t, r->what);
    gr_table_number(t, r->n_row, 0);
    gr_table_number(t, median, 3);
    gr_table_number(t, r->device_ms > 0.0 ? r->device_ms : NAN, 3);
    gr_table_number(t, r->ms[0], 3);
    gr_table_number(t, bytes_ms, 3);
    gr_table_number(t, flops_ms, 3);
    gr_table_number(t, 100.0 * fmax(bytes_ms, flops_ms) / median, 0);
    gr_table_number(t, r->n_row / median * 1e3, 0);
    if (s->has_views) {
        print_against_full(t, r->full);
    }
}

static void time_rows(struct stage *s, int n_row, double *ms)
{
    for (int k = -2; k < s->n_rep; k++) {
        const uint64_t begin = gr_clock_ns();
        run_rows(s, s->n_context, n_row, true, n_row);
        if (k >= 0) {
            ms[k] = (double)(gr_clock_ns() - begin) / 1e6;
        }
    }
}

/* The last pass after itself, so that the host has no part in what it takes: a median of means, ms; 0: not on CPUs. */
static double time_device(const struct stage *s)
{
    double ms[N_REP_MAX];
    const int n = GR_MAX(s->n_rep / N_AGAIN, 1);
    if (s->lm->ops->again == NULL) {
        return 0.0;
    }
    for (int k = -1; k < n; k++) {
        const uint64_t begin = gr_clock_ns();
        const enum gr_status st = s->lm->ops->again(s->lm, N_AGAIN);
        GR_ASSERT(st == GR_OK);
        if (k >= 0) {
            ms[k] = (double)(gr_clock_ns() - begin) / 1e6 / N_AGAIN;
        }
    }
    return gr_median(ms, n);
}

static void bench_rows(struct stage *s, struct gr_table *t, const char *what, const struct gr_option_list *rows)
{
    for (int i = 0; i < rows->n; i++) {
        const int n_row = (int)rows->value[i];
        double ms[N_REP_MAX];
        time_rows(s, n_row, ms);
        const double kv_bytes = (double)s->kv_bytes_per_token * s->n_context;
        print_row(t, s,
                  &(struct row){.what = what,
                                .n_row = n_row,
                                .ms = ms,
                                .n = s->n_rep,
                                .device_ms = time_device(s),
                                .bytes = (double)s->weight_bytes + kv_bytes,
                                .flops = s->flops_per_row * n_row +
                                         attention_flops(s, s->n_context + 0.5 * GR_MIN(n_row, N_TREE_MAX), n_row)});
    }
}

/* What a tree pass of n_row rows that see n_key keys takes at least, ms. */
static double floor_ms(const struct stage *s, int n_row, double n_key)
{
    const double bytes = (double)s->weight_bytes + (double)s->kv_bytes_per_token * n_key;
    const double flops = s->flops_per_row * n_row + attention_flops(s, n_key + 0.5 * n_row, n_row);
    return 1e3 * fmax(bytes / s->bytes_per_s, flops / s->peak_flops);
}

/* Partial passes under a view with so many tokens of retrieval (sink 2 blocks, window 8), each against the full pass of
 * as many rows, timed just before; and passes that choose the view, which stay full. The floors follow what is read;
 * expected: the partial pass's floor over the full one's. */
static void bench_views(struct stage *s, struct gr_table *t, int retrieval)
{
    static const int rows[] = {1, 16, 64};
    struct gr_kv_refresh refresh = {
        .n_row = 1,
        .kv_len = s->n_context,
        .budget = {.n_sink = 2, .n_retrieval = retrieval / GR_KV_BLOCK_TOKENS, .n_window = 8}};
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        double ms[N_REP_MAX];
        char what[32];
        refresh.n_row = rows[i];
        s->refresh = &refresh;
        time_rows(s, rows[i], ms);
        s->refresh = NULL;
        const double refresh_ms = gr_median(ms, s->n_rep);
        time_rows(s, rows[i], ms);
        const double full_ms = gr_median(ms, s->n_rep);
        s->partial = true;
        time_rows(s, rows[i], ms);
        s->partial = false;
        const double n_key =
            s->lm->view[0].n_list * (double)GR_KV_BLOCK_TOKENS + s->n_context - s->lm->view[0].dense_from;
        const double ratio = gr_median(ms, s->n_rep) / full_ms;
        const double expected = floor_ms(s, rows[i], n_key) / floor_ms(s, rows[i], s->n_context);
        const struct against_full full = {ratio, full_ms, expected, ratio / expected, refresh_ms};
        snprintf(what, sizeof(what), "partial %d", retrieval);
        print_row(
            t, s,
            &(struct row){.what = what,
                          .n_row = rows[i],
                          .ms = ms,
                          .n = s->n_rep,
                          .bytes = (double)s->weight_bytes + (double)s->kv_bytes_per_token * n_key,
                          .flops = s->flops_per_row * rows[i] + attention_flops(s, n_key + 0.5 * rows[i], rows[i]),
                          .full = &full});
    }
}

/* fc over rows of the last pass, against a buffer of its own size: it stays in a nearer cache than the pass does. */
static void bench_fuse(const struct stage *target, struct gr_table *t, const struct gr_option_list *rows)
{
    struct stage copy = *target;
    struct stage *s = &copy;
    const double n_weight = (double)s->lm->fused_width * s->lm->n_capture * s->lm->capture_width;
    float *out = zeroed((size_t)N_ROW_MAX * (size_t)s->lm->fused_width, sizeof(float));
    s->bytes_per_s = gr_machine_read_bytes_per_s(gr_team_size(s->lm->team), (size_t)(2.0 * n_weight));
    run_rows(s, s->n_context, s->n_row_max, true, s->n_row_max);
    for (int i = 0; i < rows->n; i++) {
        const int n_row = (int)rows->value[i];
        double ms[N_REP_MAX];
        for (int k = -2; k < s->n_rep; k++) {
            const uint64_t begin = gr_clock_ns();
            gr_lm_fuse(s->lm, n_row, s->capture, out);
            if (k >= 0) {
                ms[k] = (double)(gr_clock_ns() - begin) / 1e6;
            }
        }
        print_row(t, s,
                  &(struct row){.what = "fc",
                                .n_row = n_row,
                                .ms = ms,
                                .n = s->n_rep,
                                .bytes = 2.0 * n_weight,
                                .flops = 2.0 * n_weight * n_row});
    }
    free(out);
}

static void bench_prefill(struct stage *s, struct gr_table *t, const char *what)
{
    double ms[N_REP_MAX];
    const int chunk = 256;
    const int n_rep = GR_MIN(s->n_rep, 21);
    for (int k = -1; k < n_rep; k++) {
        const uint64_t begin = gr_clock_ns();
        run_rows(s, 0, chunk, false, 1);
        if (k >= 0) {
            ms[k] = (double)(gr_clock_ns() - begin) / 1e6;
        }
    }
    print_row(t, s,
              &(struct row){.what = what,
                            .n_row = chunk,
                            .ms = ms,
                            .n = n_rep,
                            .bytes = (double)s->weight_bytes,
                            .flops = (s->flops_per_row - s->head_flops) * chunk + s->head_flops +
                                     attention_flops(s, 0.5 * chunk, chunk)});
}

/* States for the rows to take: those of rows of trees that have features. */
static void make_states(struct stage *s)
{
    for (int i = 0; i < s->n_row_max; i++) {
        s->from_state[i] = -1;
        s->to_state[i] = i;
    }
    run_rows(s, s->n_context, s->n_row_max, true, s->n_row_max);
    for (int i = 0; i < s->n_row_max; i++) {
        s->from_state[i] = i;
        s->to_state[i] = s->n_row_max + i;
    }
}

/* Rows, block table and, for a head, features; then the context is filled. */
static enum gr_status prepare(struct stage *s, const char *dir, int n_block)
{
    if (s->n_context > s->lm->n_ctx_max) {
        log_error("--context %d: %s has %d positions", s->n_context, dir, s->lm->n_ctx_max);
        return GR_ELIMIT;
    }
    s->token = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->pos = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->cell = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->limit = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->n_anc = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->out_row = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->capture = zeroed(N_ROW_MAX, sizeof(*s->capture));
    s->anc = zeroed((size_t)N_ROW_MAX * GR_ATTN_ANC_MAX, sizeof(int16_t));
    s->block = zeroed((size_t)n_block, sizeof(int32_t));
    s->feature = zeroed((size_t)s->lm->feature_width + 1, sizeof(float));
    s->features = zeroed(N_ROW_MAX, sizeof(*s->features));
    s->sampling = zeroed(N_ROW_MAX, sizeof(*s->sampling));
    s->n_top = zeroed(N_ROW_MAX, sizeof(*s->n_top));
    s->from_state = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->to_state = zeroed(N_ROW_MAX, sizeof(int32_t));
    for (int i = 0; i < s->lm->feature_width; i++) {
        s->feature[i] = (float)(i % 7) - 3.0f;
    }
    for (int i = 0; i < N_ROW_MAX; i++) {
        s->capture[i] = s->lm->n_capture > 0 ? gr_lm_capture(s->lm, i) : NULL;
        s->features[i] = s->feature;
        s->sampling[i] = &greedy;
        s->n_top[i] = N_TOP;
    }
    for (int i = 0; i < n_block; i++) {
        s->block[i] = i;
    }
    for (int i = 0; i < N_SEQ_MAX * N_SCRATCH; i++) {
        s->scratch_block[i] = n_block + i;
    }
    for (int p = 0; p < s->n_context; p += 256) {
        run_rows(s, p, GR_MIN(256, s->n_context - p), false, 0);
    }
    if (s->lm->n_state > 0) {
        make_states(s);
    }
    return GR_OK;
}

/* A context that leaves the cache takes the weights along: the ceiling is for all that a pass reads. */
static size_t pass_bytes(const struct stage *s)
{
    return s->weight_bytes + s->kv_bytes_per_token * (size_t)s->n_context;
}

/* Of a GPU first, while its memory is free. */
static enum gr_status measure_ceilings(struct stage *s, const struct stage *other, int device)
{
    if (other != NULL && device != GR_DEVICE_CPU) {
        s->peak_flops = other->peak_flops;
        s->bytes_per_s = other->bytes_per_s;
        return GR_OK;
    }
    if (device != GR_DEVICE_CPU) {
        return gr_cuda_device_ceilings(device, &s->bytes_per_s, &s->peak_flops);
    }
    s->peak_flops = other != NULL ? other->peak_flops : gr_machine_peak_flops(gr_team_size(s->lm->team));
    s->bytes_per_s = gr_machine_read_bytes_per_s(gr_team_size(s->lm->team), pass_bytes(s));
    return GR_OK;
}

/* The model was created for fewer positions than asked for where it has no more. */
static enum gr_status check_context(const struct stage *s, const char *name)
{
    if (s->lm->n_ctx_max < s->n_context + N_ROW_MAX) {
        log_error("--context %d: %s has %d positions, %d of them for the rows that are timed; give at most %d",
                  s->n_context, name, s->lm->n_ctx_max, N_ROW_MAX, s->lm->n_ctx_max - N_ROW_MAX);
        return GR_EINVAL;
    }
    return GR_OK;
}

struct stage_options {
    const char *model, *head, *isa;
    const struct gr_geometry *geometry; /* NULL: as in the folders */
    const struct gr_tuned *tuned;       /* NULL: nothing was measured */
    int n_folder_pos;                   /* the folder's positions, where the geometry's own are needed; else 0 */
    int n_thread, device;
    int retrieval; /* tokens; 0: no views */
    const struct gr_option_list *rows;
    bool no_chain;
    struct gr_rank_group_config ranks; /* n_rank 1: no group. device is this rank's then */
};

/* A context after the folder's last position: the geometry's model may have that one, and the cost is its cost. */
static enum gr_status choose_positions(struct stage_options *o, int n_context)
{
    struct gr_hf_config hf;
    if (o->geometry == NULL) {
        return GR_OK;
    }
    GR_TRY(gr_model_path_config(o->model, &hf));
    o->n_folder_pos = n_context + N_ROW_MAX > hf.max_pos ? hf.max_pos : 0;
    return GR_OK;
}

static const char *name_of(const struct stage_options *o, const char *dir)
{
    return o->geometry != NULL ? o->geometry->name : dir;
}

static bool follows(const struct stage_options *o)
{
    return o->ranks.n_rank > 1 && o->ranks.ranks->rank > 0;
}

static enum gr_status open_group(struct stage *s, const struct stage_options *o, struct gr_llama_config *c)
{
    struct gr_hf_config hf;
    GR_TRY(gr_model_path_config(o->model, &hf));
    GR_TRY(gr_expand_config(o->geometry, o->model, &hf));
    if (follows(o)) {
        c->head_dir = NULL;
    }
    return gr_rank_group_open(&o->ranks, &hf, c, &s->group);
}

/* Kernels are chosen by the room that there is for trees: no more than the rows that are measured. */
static int n_seq_of(const struct stage *s)
{
    return (s->n_row_max + N_TREE_MAX - 1) / N_TREE_MAX;
}

/* Fields that the configuration of a target and that of a head have in common. */
#define CONFIG_OF_BOTH(s, o, n_block)                                                                            \
    .isa = (o)->isa, .n_thread = (o)->n_thread, .n_ctx_max = (s)->n_context + N_ROW_MAX, .n_row_max = N_ROW_MAX, \
    .n_out_max = (s)->n_row_max, .n_pool_block = (n_block), .n_scratch_block = n_seq_of(s) * N_SCRATCH,          \
    .geometry = (o)->geometry, .geometry_positions = (o)->n_folder_pos > 0, .tuned = (o)->tuned,                 \
    .n_seq_max = n_seq_of(s)

static enum gr_status create_target(struct stage *s, const struct stage_options *o)
{
    const int n_block = (s->n_context + N_ROW_MAX) / GR_KV_BLOCK_TOKENS + 1;
    const size_t n_rank = (size_t)o->ranks.n_rank;
    struct gr_llama_config c = {
        .dir = o->model, .head_dir = o->head, .no_chain = o->no_chain, CONFIG_OF_BOTH(s, o, n_block)};
    if (n_rank > 1) {
        GR_TRY(open_group(s, o, &c));
    }
    GR_TRY(gr_llama_create_on(o->device, &c, &s->hf, NULL, &s->lm));
    if (follows(o)) {
        return GR_OK;
    }
    GR_TRY(check_context(s, name_of(o, o->model)));
    /* What a rank of a group has. */
    s->weight_bytes = gr_llama_weight_bytes(&s->hf) / n_rank;
    s->kv_bytes_per_token = gr_llama_kv_bytes_per_token(&s->hf) / (o->device == GR_DEVICE_CPU ? 1 : 2) / n_rank;
    s->flops_per_row = gr_llama_flops_per_row(&s->hf) / (double)n_rank;
    s->head_flops = 2.0 * gr_hf_vocab_rows(&s->hf) * s->hf.hidden / (double)n_rank;
    GR_TRY(prepare(s, o->model, n_block));
    const struct gr_kv_budget most = {.n_sink = 2, .n_retrieval = o->retrieval / GR_KV_BLOCK_TOKENS, .n_window = 8};
    return o->retrieval > 0 ? gr_lm_view_create(s->lm, &most, 1) : GR_OK;
}

static enum gr_status create_head(struct stage *s, const struct stage_options *o)
{
    const int n_block = (s->n_context + N_ROW_MAX) / GR_KV_BLOCK_TOKENS + 1;
    const struct gr_eagle3_config c = {
        .dir = o->head, .target_dir = o->model, .n_state = 2 * s->n_row_max, CONFIG_OF_BOTH(s, o, n_block)};
    GR_TRY(gr_eagle3_create_on(o->device, &c, &s->hf, NULL, &s->lm));
    GR_TRY(check_context(s, name_of(o, o->head)));
    s->weight_bytes = gr_eagle3_weight_bytes(&s->hf);
    s->kv_bytes_per_token = gr_eagle3_kv_bytes_per_token(&s->hf) / (o->device == GR_DEVICE_CPU ? 1 : 2);
    s->flops_per_row = gr_eagle3_flops_per_row(&s->hf);
    s->head_flops = 2.0 * gr_hf_draft_vocab_rows(&s->hf) * s->hf.hidden;
    return prepare(s, o->head, n_block);
}

static void destroy(struct stage *s)
{
    gr_lm_destroy(s->lm);
    gr_group_destroy(s->group);
    void *all[] = {s->token,   s->pos,
                   s->cell,    s->limit,
                   s->n_anc,   s->out_row,
                   s->anc,     (void *)s->capture,
                   s->feature, (void *)s->features,
                   s->block,   (void *)s->sampling,
                   s->n_top,   s->from_state,
                   s->to_state};
    for (size_t i = 0; i < GR_ARRAY_LEN(all); i++) {
        free(all[i]);
    }
}

static void begin_table(struct gr_table *t, enum gr_table_format format, const struct stage *target,
                        const struct stage *head, const struct stage_options *o)
{
    static const char *const columns[] = {
        "stage",      "rows",  "median ms", "device ms", "min ms",           "bytes ms",    "ops ms",
        "% of floor", "tok/s", "of full",   "full ms",   "expected of full", "of expected", "refresh ms"};
    const int n_column = (int)GR_ARRAY_LEN(columns) - (target->has_views ? 0 : 5);
    char note[1000], ranks_note[96] = "", head_note[128] = "", geometry_note[160] = "", position_note[160] = "";
    if (o->geometry != NULL) {
        snprintf(geometry_note, sizeof(geometry_note),
                 " expanded to %s (its cost; what is predicted stays the folder's)", o->geometry->name);
    }
    if (o->n_folder_pos > 0) {
        snprintf(position_note, sizeof(position_note),
                 " (the folder has %d positions: those after them are for cost only, nothing is predicted there)",
                 o->n_folder_pos);
    }
    if (o->ranks.n_rank > 1) {
        snprintf(ranks_note, sizeof(ranks_note), ", %d ranks (bytes and operations: of one)", o->ranks.n_rank);
    }
    if (head->lm != NULL) {
        snprintf(head_note, sizeof(head_note), ", %.1f GB/s reading %.0f MB (head %s)", head->bytes_per_s / 1e9,
                 (double)pass_bytes(head) / 1e6, o->head);
    }
    snprintf(note, sizeof(note),
             "%s%s, %s%s%s, %s kernels, %d threads, context %d%s; this machine: %.0f GFLOP/s %s, %.1f GB/s "
             "reading %.0f MB%s",
             o->model, geometry_note, target->lm->numerics_id, o->no_chain ? ", no chain" : "", ranks_note,
             target->lm->kernels->name, gr_team_size(target->lm->team), target->n_context, position_note,
             target->peak_flops / 1e9, o->device == GR_DEVICE_CPU ? "f32 FMA" : "bf16 on the GPU",
             target->bytes_per_s / 1e9, (double)pass_bytes(target) / 1e6, head_note);
    gr_table_begin(t, format, stdout, "stages", note, columns, n_column);
}

static int most_rows(const struct stage_options *o)
{
    int most = N_TREE_MAX;
    for (int i = 0; i < o->rows->n; i++) {
        most = GR_MAX(most, (int)o->rows->value[i]);
    }
    return most;
}

static int measure(struct stage *target, struct stage *head, enum gr_table_format format, const struct stage_options *o)
{
    static const struct gr_option_list usual = {.n = 7, .value = {1, 2, 4, 8, 16, 32, 64}};
    static const struct gr_option_list usual_of_head = {.n = 5, .value = {1, 4, 8, 10, 64}};
    const struct gr_option_list *verify_rows = o->rows->n > 0 ? o->rows : &usual;
    const struct gr_option_list *head_rows = o->rows->n > 0 ? o->rows : &usual_of_head;
    struct gr_table t;
    const bool leads = !follows(o);
    if (leads && o->device != GR_DEVICE_CPU && measure_ceilings(target, NULL, o->device) != GR_OK) {
        return 1;
    }
    if (follows(o)) {
        return create_target(target, o) == GR_OK && gr_llama_follow(target->lm) == GR_OK ? 0 : 1;
    }
    if (create_target(target, o) != GR_OK || (o->head != NULL && create_head(head, o) != GR_OK)) {
        return 1;
    }
    if (o->device == GR_DEVICE_CPU && measure_ceilings(target, NULL, o->device) != GR_OK) {
        return 1;
    }
    if (o->head != NULL && measure_ceilings(head, target, o->device) != GR_OK) {
        return 1;
    }
    target->has_views = head->has_views = o->retrieval >= 512 && target->lm->view != NULL;
    begin_table(&t, format, target, head, o);
    bench_rows(target, &t, "verify", verify_rows);
    bench_prefill(target, &t, "prefill");
    for (int n = o->retrieval; n >= 512 && target->lm->view != NULL; n /= 2) {
        bench_views(target, &t, n);
    }
    if (o->head != NULL) {
        if (target->lm->shipped == NULL) { /* else it is part of the pass */
            bench_fuse(target, &t, head_rows);
        }
        bench_rows(head, &t, "head", head_rows);
        bench_prefill(head, &t, "head prefill");
    }
    gr_table_end(&t);
    return 0;
}

/* ---- options ---- */

/* tuned: what it points to. Logged. */
static enum gr_status read_options(const struct gr_bench_options *o, struct gr_tuned *tuned, struct gr_ranks *ranks,
                                   struct stage_options *out)
{
    GR_TRY(gr_devices_check("--device", &o->device, o->tensor_parallel_size));
    *out = (struct stage_options){.model = gr_bench_path_of(o, GR_BENCH_OPTION_model),
                                  .head = o->head,
                                  .isa = gr_bench_choice(o, GR_BENCH_OPTION_stages_isa),
                                  .n_thread = (int)o->threads,
                                  .device = gr_devices_of(&o->device, ranks->rank),
                                  .retrieval = (int)o->retrieval,
                                  .rows = &o->rows,
                                  .no_chain = o->no_chain};
    out->ranks = (struct gr_rank_group_config){.model = out->model,
                                               .devices = o->device,
                                               .n_rank = (int)o->tensor_parallel_size,
                                               .n_thread = (int)o->threads,
                                               .transport = o->tp_transport,
                                               .allreduce = o->tp_allreduce != 0,
                                               .limit_ns = RANK_LIMIT_NS,
                                               .ranks = ranks};
    GR_TRY(gr_geometry_find(o->geometry, &out->geometry));
    GR_TRY(gr_tuned_open(o->tuned, o->require_tuned, out->device != GR_DEVICE_CPU, tuned));
    out->tuned = tuned->file != NULL ? tuned : NULL;
    return GR_OK;
}

static int dump(const struct gr_bench_options *o, const struct stage_options *s)
{
    return gr_bench_dump(&(struct gr_bench_dump){.file = o->dump,
                                                 .ids = o->ids,
                                                 .model = s->model,
                                                 .head = s->head,
                                                 .isa = s->isa,
                                                 .n_thread = s->n_thread,
                                                 .geometry = s->geometry});
}

int gr_bench_stages(int argc, char **argv)
{
    static struct gr_bench_options o;
    struct stage_options s;
    struct gr_tuned tuned;
    struct gr_ranks ranks;
    if (gr_ranks_inherit(&ranks)) {
        gr_log_init(gr_ranks_role(&ranks, "graft-bench"));
    }
    const int status = gr_bench_options_read(&o, GR_BENCH_STAGES, argc, argv);
    if (status >= 0) {
        return status;
    }
    const enum gr_status st = read_options(&o, &tuned, &ranks, &s);
    s.ranks.argv = argv - 1; /* with the word that comes before */
    if (st != GR_OK) {
        return gr_program_refused(st);
    }
    if (o.compare != NULL || o.with != NULL) {
        return gr_bench_compare(o.compare, o.with, gr_bench_format(&o));
    }
    if (o.dump != NULL) {
        return dump(&o, &s);
    }
    if (choose_positions(&s, (int)o.context) != GR_OK) {
        return 1;
    }
    struct stage target = {.n_context = (int)o.context, .n_rep = (int)o.stage_reps, .n_row_max = most_rows(&s)};
    struct stage head = target;
    const int result = measure(&target, &head, gr_bench_format(&o), &s);
    const bool leads = target.group != NULL && ranks.rank == 0;
    if (leads) {
        gr_rank_group_let_go(&ranks);
    }
    if (head.lm != NULL) {
        destroy(&head);
    }
    destroy(&target);
    if (leads) {
        gr_ranks_finish(&ranks);
    }
    return result;
}
