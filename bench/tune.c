/* graft-bench tune gemm | attention: times what a model's kernels on a GPU may be given to choose from, and writes what
 * was fastest into a file that `--tuned` reads (model/files/tuned.h).
 *   gemm: every width and number of parts for each matrix, at 1 and at 64 rows: what plain decoding has and what a tree
 *     has at most. Score: the sum of both.
 *   attention: 1 to 8 splits of the far keys, at 1 and 64 rows after 2k, 8k and 32k tokens. Score: the mean over these
 *     six of the time against that of 8 splits, so that short contexts count as much as long ones.
 * Lowest score wins; what is taken without a file stays where nothing is more than 1 % faster, so noise does not decide
 * about bits. Each time is the median of three rounds through all choices, each a median of --reps (tune_gpu.h). */
#include "bench/bench.h"
#include "bench/tune_file.h"
#include "bench/tune_gpu.h"
#include "bench/paths.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "kernels/cuda/attention/attention.h"
#include "common/base/device.h"
#include "model/eagle3_source.h"
#include "model/llama_source.h"
#include "model/files/model_path.h"

#include <stdlib.h>

#define N_ROUND 3       /* measurements of each choice, of which the median counts */
#define N_MODEL_MAX 2   /* a target and a head */
#define N_CONTEXT_MAX 3 /* contexts that attention is timed at, at most */
#define N_CUT_MAX (GR_CUDA_CUT_WIDTHS * GR_CUDA_CUT_PARTS_MAX) /* cuts that a linear layer may have */
#define WORTH_IT 0.99                                          /* of the score that is there without a file */

enum { ROWS_1, ROWS_64, N_ROWS };
static const int row_counts[N_ROWS] = {1, GR_TUNE_ROW_MAX};

struct tune {
    const char *model, *draft, *output;
    int what; /* enum gr_bench_tuned */
    const struct gr_geometry *geometry;
    int device, n_rep;
    enum gr_table_format format;
    struct gr_model_shapes shapes[N_MODEL_MAX];
    int n_ctx_max[N_MODEL_MAX];
    int n_model;
    struct gr_tune_gpu *gpu;
    json_t *file; /* owned */
    struct gr_table table;
};

/* ---- shapes ---- */

static enum gr_status add_llama(struct tune *t, const struct gr_llama_config *c)
{
    struct gr_llama_source s = {0};
    const enum gr_status st = gr_llama_source_open(c, &s);
    if (st == GR_OK) {
        gr_llama_shapes(&s.hf, c->head_dir != NULL ? s.head.hidden : 0, s.n_capture, &t->shapes[t->n_model]);
        t->n_ctx_max[t->n_model++] = s.hf.max_pos;
    }
    gr_llama_source_close(&s);
    return st;
}

static enum gr_status add_head(struct tune *t)
{
    struct gr_eagle3_source s = {0};
    const struct gr_eagle3_config c = {.dir = t->draft, .target_dir = t->model, .geometry = t->geometry};
    const enum gr_status st = gr_eagle3_source_open(&c, &s);
    if (st == GR_OK) {
        gr_eagle3_shapes(&s.hf, &t->shapes[t->n_model]);
        t->n_ctx_max[t->n_model++] = s.target_hf.max_pos;
    }
    gr_eagle3_source_close(&s);
    return st;
}

static enum gr_status find_shapes(struct tune *t)
{
    struct gr_hf_config draft = {0};
    bool is_head = false;
    if (t->draft != NULL) {
        GR_TRY(gr_model_path_config(t->draft, &draft));
        is_head = gr_hf_is_eagle3(&draft);
    }
    GR_TRY(add_llama(
        t, &(struct gr_llama_config){.dir = t->model, .head_dir = is_head ? t->draft : NULL, .geometry = t->geometry}));
    if (t->draft == NULL) {
        return GR_OK;
    }
    if (is_head) {
        return add_head(t);
    }
    if (t->geometry != NULL) {
        log_error("--geometry %s: %s is a stand-alone draft model, only an EAGLE-3 head has a form there",
                  t->geometry->name, t->draft);
        return GR_EINVAL;
    }
    return add_llama(t, &(struct gr_llama_config){.dir = t->draft});
}

/* ---- linear layers ---- */

struct cut_result {
    struct gr_cuda_cut cut;
    double round[N_ROWS][N_ROUND], us[N_ROWS];
};

static double cut_score(const struct cut_result *r)
{
    return r->us[ROWS_1] + r->us[ROWS_64];
}

static int list_cuts(int n_in, struct cut_result *r)
{
    int n = 0;
    for (int parts = 1; parts <= GR_CUDA_CUT_PARTS_MAX; parts++) {
        for (int i = 0; i < GR_CUDA_CUT_WIDTHS; i++) {
            const struct gr_cuda_cut cut = {gr_cuda_cut_width[i], parts};
            if (gr_cuda_cut_allowed(n_in, cut)) {
                r[n++] = (struct cut_result){.cut = cut};
            }
        }
    }
    return n;
}

static enum gr_status time_cuts(const struct tune *t, const struct gr_linear_shape *s, struct cut_result *r, int n)
{
    for (int round = 0; round < N_ROUND; round++) {
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < N_ROWS; k++) {
                const struct gr_tune_linear l = {.shape = s, .cut = r[i].cut, .n_row = row_counts[k]};
                GR_TRY(gr_tune_gpu_linear(t->gpu, &l, t->n_rep, &r[i].round[k][round]));
            }
        }
    }
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < N_ROWS; k++) {
            r[i].us[k] = gr_median(r[i].round[k], N_ROUND);
        }
    }
    return GR_OK;
}

/* Of the choices, that is: the one without a file, unless another is worth it. */
static int choose_cut(const struct cut_result *r, int n, int i_formula)
{
    int best = i_formula;
    for (int i = 0; i < n; i++) {
        best = cut_score(&r[i]) < cut_score(&r[best]) ? i : best;
    }
    return cut_score(&r[best]) < WORTH_IT * cut_score(&r[i_formula]) ? best : i_formula;
}

static void print_cuts(struct tune *t, const struct gr_linear_shape *s, const struct cut_result *r, int n,
                       int i_formula, int chosen)
{
    for (int i = 0; i < n; i++) {
        char shape[48];
        snprintf(shape, sizeof(shape), "%d x %d", s->n_out, s->n_in);
        gr_table_text(&t->table, shape);
        gr_table_number(&t->table, r[i].cut.width, 0);
        gr_table_number(&t->table, r[i].cut.parts, 0);
        gr_table_number(&t->table, r[i].us[ROWS_1], 2);
        gr_table_number(&t->table, r[i].us[ROWS_64], 2);
        gr_table_number(&t->table, cut_score(&r[i]), 2);
        gr_table_number(&t->table, cut_score(&r[i]) / cut_score(&r[i_formula]), 3);
        gr_table_text(&t->table, i == chosen && i == i_formula ? "formula, chosen"
                                 : i == chosen                 ? "chosen"
                                 : i == i_formula              ? "formula"
                                                               : "");
    }
}

static enum gr_status tune_linear(struct tune *t, const struct gr_linear_shape *s)
{
    struct cut_result r[N_CUT_MAX];
    const struct gr_cuda_cut formula = gr_tune_gpu_formula(s->n_out, s->n_in);
    const int n = list_cuts(s->n_in, r);
    int i_formula = 0;
    if (formula.width == 0) {
        log_error("%s: linear %d x %d is not built: outputs must be a multiple of 16, inputs of 64", t->model, s->n_out,
                  s->n_in);
        return GR_EUNSUPPORTED;
    }
    while (i_formula < n - 1 && (r[i_formula].cut.width != formula.width || r[i_formula].cut.parts != formula.parts)) {
        i_formula++;
    }
    GR_TRY(time_cuts(t, s, r, n));
    const int chosen = choose_cut(r, n, i_formula);
    print_cuts(t, s, r, n, i_formula, chosen);
    json_t *entry =
        json_pack("{s:i, s:i, s:i, s:i, s:f, s:f}", "n_out", s->n_out, "n_in", s->n_in, "width", r[chosen].cut.width,
                  "parts", r[chosen].cut.parts, "us_1_row", r[chosen].us[ROWS_1], "us_64_rows", r[chosen].us[ROWS_64]);
    GR_ASSERT(entry != NULL);
    gr_tune_file_put(t->file, "linear", entry, 2);
    return GR_OK;
}

static enum gr_status tune_gemm(struct tune *t)
{
    static const char *const columns[] = {"matrix", "width", "parts", "us 1 row", "us 64 rows", "sum", "x formula", ""};
    gr_table_begin(&t->table, t->format, stdout, "tune gemm", gr_tune_gpu_name(t->gpu), columns,
                   (int)GR_ARRAY_LEN(columns));
    for (int m = 0; m < t->n_model; m++) {
        for (int i = 0; i < t->shapes[m].n_linear; i++) {
            const struct gr_linear_shape *s = &t->shapes[m].linear[i];
            if (m == 0 || gr_shapes_find(&t->shapes[0], s->n_out, s->n_in) == NULL) {
                GR_TRY(tune_linear(t, s));
            }
        }
    }
    gr_table_end(&t->table);
    return GR_OK;
}

/* ---- attention ---- */

struct split_result {
    double round[N_CONTEXT_MAX][N_ROWS][N_ROUND], us[N_CONTEXT_MAX][N_ROWS];
    double score;
};

/* Those that the model has; else the largest that it has. */
static int choose_contexts(int n_ctx_max, int *context)
{
    static const int contexts[N_CONTEXT_MAX] = {2048, 8192, 32768};
    int n = 0;
    while (n < N_CONTEXT_MAX && contexts[n] <= n_ctx_max) {
        context[n] = contexts[n];
        n++;
    }
    if (n == 0) {
        context[n++] = GR_MAX(n_ctx_max / 16 * 16, 16);
    }
    return n;
}

static enum gr_status time_splits(const struct tune *t, const struct gr_model_shapes *s, const int *context,
                                  int n_context, struct split_result *r)
{
    for (int round = 0; round < N_ROUND; round++) {
        for (int i = 0; i < n_context * N_ROWS * GR_CUDA_SPLIT_MAX; i++) {
            const int k = i % GR_CUDA_SPLIT_MAX;
            const int c = i / GR_CUDA_SPLIT_MAX / N_ROWS;
            const int rows = i / GR_CUDA_SPLIT_MAX % N_ROWS;
            const struct gr_tune_attention a = {.n_head = s->n_head,
                                                .n_kv_head = s->n_kv_head,
                                                .head_dim = s->head_dim,
                                                .n_split_max = k + 1,
                                                .n_context = context[c],
                                                .n_row = row_counts[rows]};
            GR_TRY(gr_tune_gpu_attention(t->gpu, &a, t->n_rep, &r[k].round[c][rows][round]));
        }
    }
    return GR_OK;
}

/* Scores, and the number of splits less one. */
static int choose_splits(struct split_result *r, int n_context)
{
    int best = GR_CUDA_SPLIT_MAX - 1;
    for (int k = GR_CUDA_SPLIT_MAX - 1; k >= 0; k--) {
        r[k].score = 0.0;
        for (int c = 0; c < n_context; c++) {
            for (int i = 0; i < N_ROWS; i++) {
                r[k].us[c][i] = gr_median(r[k].round[c][i], N_ROUND);
                r[k].score += r[k].us[c][i] / r[GR_CUDA_SPLIT_MAX - 1].us[c][i] / (n_context * N_ROWS);
            }
        }
        best = r[k].score < r[best].score ? k : best;
    }
    return r[best].score < WORTH_IT ? best : GR_CUDA_SPLIT_MAX - 1;
}

static void print_splits(struct tune *t, const struct gr_model_shapes *s, const int *context, int n_context,
                         const struct split_result *r, int chosen)
{
    for (int i = 0; i < GR_CUDA_SPLIT_MAX * n_context; i++) {
        const int k = i / n_context;
        const int c = i % n_context;
        char shape[48];
        snprintf(shape, sizeof(shape), "%d/%d x %d", s->n_head, s->n_kv_head, s->head_dim);
        gr_table_text(&t->table, shape);
        gr_table_number(&t->table, k + 1, 0);
        gr_table_number(&t->table, context[c], 0);
        gr_table_number(&t->table, r[k].us[c][ROWS_1], 2);
        gr_table_number(&t->table, r[k].us[c][ROWS_64], 2);
        gr_table_number(&t->table, r[k].score, 3);
        gr_table_text(&t->table, k == chosen ? "chosen" : "");
    }
}

static json_t *numbers(const struct split_result *r, int n_context, int rows)
{
    json_t *list = json_array();
    for (int c = 0; c < n_context; c++) {
        GR_ASSERT(json_array_append_new(list, json_real(r->us[c][rows])) == 0);
    }
    return list;
}

static enum gr_status tune_splits(struct tune *t, const struct gr_model_shapes *s, int n_ctx_max)
{
    struct split_result r[GR_CUDA_SPLIT_MAX] = {0};
    int context[N_CONTEXT_MAX];
    const int n_context = choose_contexts(n_ctx_max, context);
    GR_TRY(time_splits(t, s, context, n_context, r));
    const int chosen = choose_splits(r, n_context);
    print_splits(t, s, context, n_context, r, chosen);
    json_t *contexts = json_array();
    for (int c = 0; c < n_context; c++) {
        GR_ASSERT(json_array_append_new(contexts, json_integer(context[c])) == 0);
    }
    json_t *entry =
        json_pack("{s:i, s:i, s:i, s:i, s:o, s:o, s:o}", "n_head", s->n_head, "n_kv_head", s->n_kv_head, "head_dim",
                  s->head_dim, "n_split_max", chosen + 1, "contexts", contexts, "us_1_row",
                  numbers(&r[chosen], n_context, ROWS_1), "us_64_rows", numbers(&r[chosen], n_context, ROWS_64));
    GR_ASSERT(entry != NULL);
    gr_tune_file_put(t->file, "attention", entry, 3);
    return GR_OK;
}

static enum gr_status tune_attention(struct tune *t)
{
    static const char *const columns[] = {"attention", "splits", "context", "us 1 row", "us 64 rows", "x 8 splits", ""};
    gr_table_begin(&t->table, t->format, stdout, "tune attention", gr_tune_gpu_name(t->gpu), columns,
                   (int)GR_ARRAY_LEN(columns));
    for (int m = 0; m < t->n_model; m++) {
        const struct gr_model_shapes *s = &t->shapes[m];
        const struct gr_model_shapes *first = &t->shapes[0];
        if (m == 0 || s->n_head != first->n_head || s->n_kv_head != first->n_kv_head ||
            s->head_dim != first->head_dim) {
            GR_TRY(tune_splits(t, s, t->n_ctx_max[m]));
        }
    }
    gr_table_end(&t->table);
    return GR_OK;
}

/* ---- the command ---- */

static enum gr_status run(struct tune *t)
{
    GR_TRY(gr_device_check(t->device));
    GR_TRY(find_shapes(t));
    GR_TRY(gr_tune_gpu_open(t->device, &t->gpu));
    GR_TRY(gr_tune_file_open(t->output, gr_tune_gpu_name(t->gpu), &t->file));
    GR_TRY(t->what == GR_BENCH_GEMM ? tune_gemm(t) : tune_attention(t));
    return gr_tune_file_write(t->output, t->file);
}

static bool prepare(const struct gr_bench_options *o, struct tune *t)
{
    *t = (struct tune){.model = gr_bench_path_of(o, GR_BENCH_OPTION_model),
                       .draft = o->tune_draft != NULL ? o->tune_draft : o->head,
                       .output = o->output,
                       .what = o->what,
                       .device = o->device.device[0],
                       .n_rep = (int)o->tune_reps,
                       .format = gr_bench_format(o)};
    if (t->output == NULL) {
        log_error("--output FILE is needed: where the result goes, and what --tuned is given later");
        return false;
    }
    if (t->device == GR_DEVICE_CPU) {
        log_error("--device cpu: CPUs have nothing to tune; take cuda:N");
        return false;
    }
    return gr_geometry_find(o->geometry, &t->geometry) == GR_OK;
}

int gr_bench_tune(int argc, char **argv)
{
    static struct gr_bench_options o;
    struct tune t;
    const int status = gr_bench_options_read(&o, GR_BENCH_TUNE, argc, argv);
    if (status >= 0 || !prepare(&o, &t)) {
        return status >= 0 ? status : 2;
    }
    const enum gr_status st = run(&t);
    gr_tune_gpu_close(t.gpu);
    json_decref(t.file);
    return st == GR_OK ? 0 : gr_program_refused(st);
}
