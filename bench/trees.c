/* graft-bench trees: is the automatic tree as good as the best fixed one? For every prompt: plain decoding, each fixed
 * size and auto, in turn, repetition by repetition; the figure is the median over repetitions of the speed against
 * plain decoding of the same repetition, so that a slow minute of the machine hits both. The first repetition is
 * warm-up. */
#include "bench/bench.h"
#include "bench/graft_run.h"
#include "bench/paths.h"
#include "common/base/log.h"
#include "common/process/program.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_SIZE_MAX 16 /* those of --sizes, and auto */
#define N_REP_MAX GR_GROUP_REP_MAX
#define N_EXTRA_MAX 16 /* words that are handed on to graft, at most */

struct trees {
    struct gr_bench_options o;
    const char *model, *draft;
    char max_tokens[24], temperature[64]; /* as graft run takes them */
    char size[N_SIZE_MAX][8];             /* the last is "auto" */
    int n_size;
    char *extra[N_EXTRA_MAX]; /* words of --extra */
    int n_extra;
};

/* Decode tokens per second; size NULL: plain. Negative: it failed (logged). */
static double speed(const struct trees *s, const char *prompt, const char *size, double *acceptance)
{
    const char *transport = gr_bench_choice(&s->o, GR_BENCH_OPTION_transport);
    const char *argv[64];
    int n = 0;
    const char *const fixed[] = {gr_program_sibling("graft"),
                                 "run",
                                 "--json",
                                 "--ignore-eos",
                                 "--seed",
                                 "1",
                                 "--model",
                                 s->model,
                                 "--prompt",
                                 prompt,
                                 "--max-tokens",
                                 s->max_tokens,
                                 "--temperature",
                                 s->temperature};
    const char *const speculative[] = {"--draft", s->draft, "--num-speculative-tokens", size};
    for (size_t i = 0; i < GR_ARRAY_LEN(fixed); i++) {
        argv[n++] = fixed[i];
    }
    for (size_t i = 0; size != NULL && i < GR_ARRAY_LEN(speculative); i++) {
        argv[n++] = speculative[i];
    }
    if (size != NULL && transport != NULL) {
        argv[n++] = "--transport";
        argv[n++] = transport;
    }
    for (int i = 0; i < s->n_extra; i++) {
        argv[n++] = s->extra[i];
    }
    argv[n] = NULL;
    json_t *root = gr_bench_run_json(argv);
    if (root == NULL) {
        return -1.0;
    }
    const json_t *m = json_object_get(root, "metrics");
    const double value = gr_bench_metric(m, "decode_tokens_per_second");
    *acceptance = gr_bench_metric(m, "mean_acceptance_length");
    json_decref(root);
    if (!(value > 0.0)) {
        log_error("graft run has told no speed: decode_tokens_per_second is %g for prompt `%s', tree %s", value, prompt,
                  size != NULL ? size : "none");
        return -1.0;
    }
    return value;
}

/* Medians of speed against plain, by size; false: a run failed (logged). */
static bool measure(const struct trees *s, const char *prompt, double *plain, double ratio[N_SIZE_MAX],
                    double *acceptance)
{
    static double plains[N_REP_MAX], ratios[N_SIZE_MAX][N_REP_MAX];
    double ignored;
    for (int rep = -1; rep < (int)s->o.reps; rep++) {
        const double base = speed(s, prompt, NULL, &ignored);
        if (base < 0.0) {
            return false;
        }
        for (int i = 0; i < s->n_size; i++) {
            const double v = speed(s, prompt, s->size[i], acceptance);
            if (v < 0.0) {
                return false;
            }
            if (rep >= 0) {
                ratios[i][rep] = v / base;
            }
        }
        if (rep >= 0) {
            plains[rep] = base;
        }
    }
    *plain = gr_median(plains, (int)s->o.reps);
    for (int i = 0; i < s->n_size; i++) {
        ratio[i] = gr_median(ratios[i], (int)s->o.reps);
    }
    return true;
}

static double best_fixed(const struct trees *s, const double *ratio)
{
    double best = 1.0; /* plain decoding is a fixed size, too: none */
    for (int i = 0; i + 1 < s->n_size; i++) {
        best = fmax(best, ratio[i]);
    }
    return best;
}

/* plain and acceptance 0: a row that sums others up has none. */
static void print_row(struct gr_table *t, const struct trees *s, const char *name, double plain, const double *ratio,
                      double acceptance, double best)
{
    gr_table_text(t, name);
    if (plain > 0.0) {
        gr_table_number(t, plain, 0);
    } else {
        gr_table_none(t);
    }
    for (int i = 0; i < s->n_size; i++) {
        gr_table_number(t, ratio[i], 2);
    }
    if (acceptance > 0.0) {
        gr_table_number(t, acceptance, 2);
    } else {
        gr_table_none(t);
    }
    gr_table_number(t, ratio[s->n_size - 1] / best, 2);
}

static int run(struct trees *s, enum gr_table_format format, const char *const *prompt, int n_prompt)
{
    const char *columns[N_SIZE_MAX + 4] = {"prompt", "plain tok/s"};
    double log_sum[N_SIZE_MAX] = {0};
    double worst[N_SIZE_MAX], low[1] = {INFINITY};
    double log_plain = 0.0;
    struct gr_table t;
    int n_column = 2;
    for (int i = 0; i < s->n_size; i++) {
        columns[n_column++] = s->size[i];
        worst[i] = INFINITY;
    }
    columns[n_column++] = "auto acceptance";
    columns[n_column++] = "auto / best fixed";
    gr_table_begin(&t, format, stdout, "trees",
                   "speed against plain decoding by nodes of the tree, medians; best fixed: "
                   "plain included",
                   columns, n_column);
    for (int p = 0; p < n_prompt; p++) {
        double plain = 0.0, ratio[N_SIZE_MAX], acceptance = 0.0;
        char name[16];
        if (!measure(s, prompt[p], &plain, ratio, &acceptance)) {
            return 1;
        }
        snprintf(name, sizeof(name), "%d", p);
        const double best = best_fixed(s, ratio);
        print_row(&t, s, name, plain, ratio, acceptance, best);
        fflush(stdout);
        for (int i = 0; i < s->n_size; i++) {
            log_sum[i] += log(ratio[i]);
            worst[i] = fmin(worst[i], ratio[i]);
        }
        log_plain += log(plain);
        low[0] = fmin(low[0], ratio[s->n_size - 1] / best);
    }
    double mean[N_SIZE_MAX];
    for (int i = 0; i < s->n_size; i++) {
        mean[i] = exp(log_sum[i] / n_prompt);
    }
    print_row(&t, s, "geometric mean", exp(log_plain / n_prompt), mean, 0.0, best_fixed(s, mean));
    print_row(&t, s, "worst", 0.0, worst, 0.0, worst[s->n_size - 1] / low[0]);
    gr_table_end(&t);
    return 0;
}

/* ---- options ---- */

/* False: there are too many words (logged). */
static bool split_extra(struct trees *s, char *text)
{
    char *save = NULL;
    for (char *p = strtok_r(text, " ", &save); p != NULL; p = strtok_r(NULL, " ", &save)) {
        if (s->n_extra == N_EXTRA_MAX) {
            log_error("--extra: more than %d words", N_EXTRA_MAX);
            return false;
        }
        s->extra[s->n_extra++] = p;
    }
    return true;
}

static void prepare(struct trees *s)
{
    const struct gr_bench_options *o = &s->o;
    s->model = gr_bench_path_of(o, GR_BENCH_OPTION_model);
    s->draft = o->draft != NULL ? o->draft : gr_bench_path("models/demo/draft");
    snprintf(s->max_tokens, sizeof(s->max_tokens), "%" PRId64, o->trees_max_tokens);
    snprintf(s->temperature, sizeof(s->temperature), "%.17g", o->temperature);
    for (int i = 0; i < o->sizes.n; i++) {
        snprintf(s->size[s->n_size++], sizeof(s->size[0]), "%d", (int)o->sizes.value[i]);
    }
    snprintf(s->size[s->n_size++], sizeof(s->size[0]), "auto");
}

int gr_bench_trees(int argc, char **argv)
{
    static struct trees s;
    const int status = gr_bench_options_read(&s.o, GR_BENCH_TREE_SIZES, argc, argv);
    if (status >= 0) {
        return status;
    }
    const char *prompt[GR_BENCH_PROMPT_MAX];
    char *extra = strdup(s.o.extra != NULL ? s.o.extra : "");
    int result = 2;
    if (extra != NULL && split_extra(&s, extra)) {
        prepare(&s);
        const int n_prompt = gr_bench_load_prompts(s.o.prompts, NULL, prompt);
        result = n_prompt > 0 ? run(&s, gr_bench_format(&s.o), prompt, n_prompt) : 1;
    }
    free(extra);
    return result;
}
