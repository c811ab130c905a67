/* graft-bench stages: the target's forward pass by itself, in this process: 1 to 64 rows of one session at a context,
 * and prefill; each against the larger of what its bytes and what its operations need on this machine, measured in the
 * same run (read bandwidth over a buffer of the weights' size; fused multiply-adds from registers). */
#include "bench/bench.h"
#include "bench/machine.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/parse.h"
#include "model/llama.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_ROW_MAX 512
#define N_REP_MAX 101

struct stage {
    struct gr_lm *lm;
    struct gr_hf_config hf;
    int n_context, n_rep;
    double peak_flops, bytes_per_s; /* of this machine, all threads */
    int32_t *token, *pos, *cell, *limit, *n_anc, *out_row, *block, scratch_block[4];
    int16_t *anc;
};

static void *zeroed(size_t n, size_t size)
{
    void *p = calloc(n, size);
    GR_ASSERT(p != NULL); /* a benchmark: a few hundred kilobytes */
    return p;
}

/* n_row chain rows from position pos0, or a tree of n_row rows (a tail with a chain of nodes) behind the context. */
static void run_rows(struct stage *s, int pos0, int n_row, bool tree, int n_out)
{
    for (int r = 0; r < n_row; r++) {
        s->token[r] = (int32_t)((pos0 + r) * 7919 % s->lm->n_vocab);
        s->pos[r] = pos0 + r;
        s->cell[r] = tree ? s->scratch_block[r / 16] * 16 + r % 16 : s->block[(pos0 + r) / 16] * 16 + (pos0 + r) % 16;
        s->limit[r] = tree ? pos0 : pos0 + r + 1;
        s->n_anc[r] = tree ? r + 1 : 0;
        for (int a = 0; tree && a <= r; a++) {
            s->anc[r * GR_ATTN_ANC_MAX + a] = (int16_t)a;
        }
    }
    for (int i = 0; i < n_out; i++) {
        s->out_row[i] = n_row - n_out + i;
    }
    const struct gr_attn_seq seq = {.n_row = n_row, .block = s->block, .limit = s->limit,
                                    .scratch_block = s->scratch_block, .n_anc = s->n_anc, .anc = s->anc,
                                    .n_slot = tree ? n_row : 0};
    const struct gr_batch b = {.n_row = n_row, .n_seq = 1, .n_out = n_out, .token = s->token, .pos = s->pos,
                               .cell = s->cell, .seq = &seq, .out_row = s->out_row};
    enum gr_status st = gr_lm_forward(s->lm, &b);
    GR_ASSERT(st == GR_OK);
}

static double attention_flops(const struct stage *s, double n_key, double n_row)
{
    return 4.0 * n_key * n_row * s->hf.n_head * s->hf.head_dim * s->hf.n_layer;
}

static void print_row(struct gr_table *t, const struct stage *s, const char *what, int n_row, double *ms, int n,
                      double bytes, double flops)
{
    const double bytes_ms = bytes / s->bytes_per_s * 1e3;
    const double flops_ms = flops / s->peak_flops * 1e3;
    const double median = gr_median(ms, n);
    gr_table_text(t, what);
    gr_table_number(t, n_row, 0);
    gr_table_number(t, median, 3);
    gr_table_number(t, ms[0], 3);
    gr_table_number(t, bytes_ms, 3);
    gr_table_number(t, flops_ms, 3);
    gr_table_number(t, 100.0 * fmax(bytes_ms, flops_ms) / median, 0);
    gr_table_number(t, n_row / median * 1e3, 0);
}

static void bench_verify(struct stage *s, struct gr_table *t)
{
    static const int rows[] = {1, 2, 4, 8, 16, 32, 64};
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        double ms[N_REP_MAX];
        for (int k = -2; k < s->n_rep; k++) {
            const uint64_t begin = gr_clock_ns();
            run_rows(s, s->n_context, rows[i], true, rows[i]);
            if (k >= 0) {
                ms[k] = (double)(gr_clock_ns() - begin) / 1e6;
            }
        }
        const double kv_bytes = (double)gr_llama_kv_bytes_per_token(&s->hf) * s->n_context;
        print_row(t, s, "verify", rows[i], ms, s->n_rep, (double)gr_llama_weight_bytes(&s->hf) + kv_bytes,
                  gr_llama_flops_per_row(&s->hf) * rows[i] + attention_flops(s, s->n_context + 0.5 * rows[i], rows[i]));
    }
}

static void bench_prefill(struct stage *s, struct gr_table *t)
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
    const double head = 2.0 * s->hf.n_vocab * s->hf.hidden;
    print_row(t, s, "prefill", chunk, ms, n_rep, (double)gr_llama_weight_bytes(&s->hf),
              (gr_llama_flops_per_row(&s->hf) - head) * chunk + head + attention_flops(s, 0.5 * chunk, chunk));
}

static enum gr_status create(struct stage *s, const char *model, const char *isa, int n_thread)
{
    const int n_block = (s->n_context + N_ROW_MAX) / 16 + 1;
    const struct gr_llama_config c = {.dir = model, .isa = isa, .n_thread = n_thread,
                                      .n_ctx_max = s->n_context + N_ROW_MAX, .n_row_max = N_ROW_MAX, .n_out_max = 64,
                                      .n_pool_block = n_block, .n_scratch_block = 4};
    GR_TRY(gr_llama_create(&c, &s->hf, NULL, &s->lm));
    s->token = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->pos = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->cell = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->limit = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->n_anc = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->out_row = zeroed(N_ROW_MAX, sizeof(int32_t));
    s->anc = zeroed((size_t)N_ROW_MAX * GR_ATTN_ANC_MAX, sizeof(int16_t));
    s->block = zeroed((size_t)n_block, sizeof(int32_t));
    for (int i = 0; i < n_block; i++) {
        s->block[i] = i;
    }
    for (int i = 0; i < 4; i++) {
        s->scratch_block[i] = n_block + i;
    }
    for (int p = 0; p < s->n_context; p += 256) { /* fill the context */
        run_rows(s, p, GR_MIN(256, s->n_context - p), false, 0);
    }
    return GR_OK;
}

static void destroy(struct stage *s)
{
    gr_lm_destroy(s->lm);
    void *all[] = {s->token, s->pos, s->cell, s->limit, s->n_anc, s->out_row, s->anc, s->block};
    for (size_t i = 0; i < GR_ARRAY_LEN(all); i++) {
        free(all[i]);
    }
}

int gr_bench_stages(int argc, char **argv)
{
    const char *model = "models/demo/target";
    const char *context = "256";
    const char *reps = "31";
    const char *isa = NULL;
    const char *threads = "0";
    const struct gr_bench_option options[] = {
        {"model", &model, "target folder (default models/demo/target)"},
        {"context", &context, "tokens before the rows (default 256)"},
        {"reps", &reps, "repetitions; the median counts (default 31)"},
        {"cpu-kernels", &isa, "avx512 | avx2 | c"},
        {"threads", &threads, "default 0: all"},
    };
    enum gr_table_format format;
    int64_t n_context = 0, n_rep = 0, n_thread = 0;
    const int status = gr_bench_options("stages", argc, argv, &format, options, (int)GR_ARRAY_LEN(options));
    if (status >= 0) {
        return status;
    }
    if (!gr_parse_int(context, 0, 1 << 20, &n_context) || !gr_parse_int(reps, 1, N_REP_MAX, &n_rep) ||
        !gr_parse_int(threads, 0, 1024, &n_thread)) {
        log_error("--context, --reps (1 to %d) and --threads want whole numbers", N_REP_MAX);
        return 2;
    }
    struct stage s = {.n_context = (int)n_context, .n_rep = (int)n_rep};
    if (create(&s, model, isa, (int)n_thread) != GR_OK) {
        destroy(&s);
        return 1;
    }
    const int n_used = gr_team_size(s.lm->team);
    s.peak_flops = gr_machine_peak_flops(n_used);
    /* A context that leaves the cache takes the weights along: the ceiling is for all that a pass reads. */
    const size_t n_byte = gr_llama_weight_bytes(&s.hf) + gr_llama_kv_bytes_per_token(&s.hf) * (size_t)s.n_context;
    s.bytes_per_s = gr_machine_read_bytes_per_s(n_used, n_byte);
    char note[256];
    snprintf(note, sizeof(note),
             "%s, %s kernels, %d threads, context %d; this machine: %.0f GFLOP/s f32 FMA, %.1f GB/s "
             "reading %.0f MB",
             model, s.lm->kernels->name, n_used, s.n_context, s.peak_flops / 1e9, s.bytes_per_s / 1e9,
             (double)n_byte / 1e6);
    static const char *const columns[] = {"stage", "rows", "median ms", "min ms", "bytes ms", "ops ms", "% of floor",
                                          "tok/s"};
    struct gr_table t;
    gr_table_begin(&t, format, stdout, "stages", note, columns, (int)GR_ARRAY_LEN(columns));
    bench_verify(&s, &t);
    bench_prefill(&s, &t);
    gr_table_end(&t);
    destroy(&s);
    return 0;
}
