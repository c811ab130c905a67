/* graft-bench e2e --context: long contexts with full and with partial verification (SpecPV), side by side. For every
 * context and prompt: full verification, then every mode under every budget, in turn, repetition by repetition, every
 * other one in the opposite order, so that a slow minute of the machine hits all alike; the first does not count. A
 * session keeps its KV and its experience from one repetition to the next, unless --fresh.
 *
 * Speed: tokens after the first over the time from the first to the last. Before each repetition passes are calibrated
 * in this process (prices.h). Predicted time of a turn: the passes that it had, by kind and rows, at these prices, plus
 * waiting for the drafter and host work as measured; predicted x off: the quotient of two such times. Texts of exact,
 * auto and off that differ are an error; lossy is told by how much it does. */
#include "bench/bench.h"
#include "bench/group.h"
#include "bench/long_text.h"
#include "bench/long_turn.h"
#include "bench/paths.h"
#include "bench/plot.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "target_worker/policy/specpv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_CONTEXT_MAX 8 /* of --context */
#define N_LIST_MAX 8    /* of --specpv-budgets */
#define N_REP_MAX GR_GROUP_REP_MAX

struct variant {
    enum gr_specpv_mode mode;
    int budget; /* place in bench.budget; of off: -1 */
};

/* Of one variant at one context; prompts together. */
struct cell {
    double total_s[N_REP_MAX], predicted_s[N_REP_MAX], n_token[N_REP_MAX];
    struct gr_long_turn sum;
    double n_compared, n_equal, prefix, n_turn;
};

struct bench {
    struct gr_bench_options o;
    const char *model, *text_files; /* as they are opened */
    char nodes[8];
    int64_t context[N_CONTEXT_MAX], budget[N_LIST_MAX]; /* budget: tokens of retrieval; 0: what auto wants */
    int n_context, n_budget, n_prompt, n_rep, n_variant;
    struct variant variant[GR_LONG_VARIANT_MAX]; /* the first is off */
    struct gr_long_config config;
    struct gr_long_text text;
    struct gr_long_pair pair;
    struct gr_prices *prices;
    struct gr_price_list list[N_LIST_MAX + 1]; /* of the repetition: full passes only, then by budget */
    int32_t *id;                               /* owned, (context_max) */
    int32_t reference[GR_LONG_TOKEN_MAX];
    struct cell cell[N_CONTEXT_MAX][GR_LONG_VARIANT_MAX];
};

/* ---- measuring ---- */

/* Tokens of retrieval; of off: 0. */
static int64_t budget_of(const struct bench *b, int budget, int64_t context)
{
    const struct gr_specpv_params nothing = {0};
    if (budget < 0) {
        return 0;
    }
    const struct gr_specpv_params p = gr_specpv_automatic(&nothing, (uint64_t)context + b->config.max_tokens);
    return b->budget[budget] > 0 ? b->budget[budget] : (int64_t)p.n_retrieval * GR_KV_BLOCK_TOKENS;
}

/* The same in blocks. */
static int32_t retrieval_of(const struct bench *b, int budget, int64_t context)
{
    return (int32_t)(budget_of(b, budget, context) / GR_KV_BLOCK_TOKENS);
}

static enum gr_status compare(const struct bench *b, const struct variant *v, struct cell *c)
{
    const uint32_t n = b->config.max_tokens;
    uint32_t n_equal = 0, prefix = 0;
    for (uint32_t i = 0; i < n; i++) {
        const bool equal = b->pair.token[i] == b->reference[i];
        prefix += equal && prefix == i;
        n_equal += equal;
    }
    c->n_equal += n_equal;
    c->prefix += prefix;
    c->n_compared += n;
    c->n_turn++;
    if (v->mode != GR_SPECPV_LOSSY && n_equal < n) {
        log_error("--specpv %s: token %u is another than full verification's", gr_specpv_mode_name(v->mode), prefix);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

static void add_turn(struct cell *c, int rep, const struct gr_long_turn *t)
{
    struct gr_long_turn *s = &c->sum;
    c->total_s[rep] += t->total_s;
    c->predicted_s[rep] += t->priced_s + t->wait_s + t->host_s;
    c->n_token[rep] += t->n_token;
    s->n_token += t->n_token;
    s->total_s += t->total_s;
    s->verify_s += t->verify_s;
    s->wait_s += t->wait_s;
    s->host_s += t->host_s;
    s->priced_s += t->priced_s;
    s->rounds += t->rounds;
    s->partial_rounds += t->partial_rounds;
    s->refreshes += t->refreshes;
    s->roll_backs += t->roll_backs;
    s->drafts += t->drafts;
    s->accepted += t->accepted;
    s->n_judged += t->n_judged;
    s->n_mismatch += t->n_mismatch;
}

static enum gr_status measure_prices(struct bench *b, int32_t context)
{
    const int32_t n = context + (int32_t)b->config.max_tokens / 2;
    GR_TRY(gr_prices_measure(b->prices, n, 0, &b->list[0]));
    for (int i = 0; i < b->n_budget && b->n_variant > 1; i++) {
        b->list[i + 1] = b->list[0];
        GR_TRY(gr_prices_measure(b->prices, n, retrieval_of(b, i, context), &b->list[i + 1]));
    }
    return GR_OK;
}

static enum gr_status run_turn(struct bench *b, int i_context, int i_variant, int rep, struct gr_long_session *s)
{
    const struct variant *v = &b->variant[i_variant];
    struct cell *c = &b->cell[i_context][i_variant];
    struct gr_long_turn t;
    GR_TRY(
        gr_long_turn_run(&b->pair, s, b->id, (int32_t)b->context[i_context], b->o.fresh, &b->list[v->budget + 1], &t));
    if (rep < 0 && i_variant == 0) {
        memcpy(b->reference, b->pair.token, b->config.max_tokens * sizeof(int32_t));
    }
    if (rep < 0) {
        return GR_OK;
    }
    add_turn(c, rep, &t);
    return compare(b, v, c);
}

static enum gr_status run_prompt(struct bench *b, int i_context, int i_prompt)
{
    struct gr_long_session session[GR_LONG_VARIANT_MAX] = {0};
    const int32_t context = (int32_t)b->context[i_context];
    GR_TRY(gr_long_text_window(&b->text, i_prompt, b->n_prompt, context, b->id));
    for (int i = 0; i < b->n_variant; i++) {
        const struct variant *v = &b->variant[i];
        session[i].mode = v->mode;
        session[i].n_retrieval = (uint32_t)retrieval_of(b, v->budget, context);
    }
    for (int rep = -1; rep < b->n_rep; rep++) {
        GR_TRY(measure_prices(b, context));
        for (int i = 0; i < b->n_variant; i++) {
            const int k = rep % 2 == 0 ? b->n_variant - 1 - i : i;
            GR_TRY(run_turn(b, i_context, k, rep, &session[k]));
        }
    }
    return gr_long_close(&b->pair);
}

/* ---- results ---- */

static double median_quotient(const double *a, const double *b, int n)
{
    double q[N_REP_MAX];
    for (int i = 0; i < n; i++) {
        q[i] = a[i] / b[i];
    }
    return gr_median(q, n);
}

/* Medians over repetitions of the speed against full verification. */
struct ratio {
    double measured, low, high, predicted;
};

static struct ratio ratio_of(const struct bench *b, const struct cell *off, const struct cell *c)
{
    struct ratio r = {.low = INFINITY,
                      .measured = median_quotient(off->total_s, c->total_s, b->n_rep),
                      .predicted = median_quotient(off->predicted_s, c->predicted_s, b->n_rep)};
    for (int i = 0; i < b->n_rep; i++) {
        r.low = fmin(r.low, off->total_s[i] / c->total_s[i]);
        r.high = fmax(r.high, off->total_s[i] / c->total_s[i]);
    }
    return r;
}

static void print_row(struct gr_table *t, const struct bench *b, int i_context, int i_variant)
{
    const struct variant *v = &b->variant[i_variant];
    const struct cell *c = &b->cell[i_context][i_variant];
    const struct gr_long_turn *s = &c->sum;
    const struct ratio r = ratio_of(b, &b->cell[i_context][0], c);
    gr_table_number(t, (double)b->context[i_context], 0);
    gr_table_text(t, gr_specpv_mode_name(v->mode));
    gr_table_number(t, (double)budget_of(b, v->budget, b->context[i_context]), 0);
    gr_table_number(t, median_quotient(c->n_token, c->total_s, b->n_rep), 1);
    gr_table_number(t, r.measured, 2);
    gr_table_number(t, r.low, 2);
    gr_table_number(t, r.high, 2);
    gr_table_number(t, r.predicted, 2);
    gr_table_number(t, 100.0 * (r.measured / r.predicted - 1.0), 0);
    gr_table_number(t, 1.0 + gr_ratio(s->accepted, s->drafts), 2);
    gr_table_number(t, gr_ratio(s->n_token, s->rounds), 2);
    gr_table_number(t, 1e3 * gr_ratio(s->verify_s, s->rounds), 3);
    gr_table_number(t, 1e3 * gr_ratio(s->priced_s, s->rounds), 3);
    gr_table_number(t, 1e3 * gr_ratio(s->wait_s + s->host_s, s->rounds), 3);
    gr_table_number(t, gr_ratio(s->partial_rounds, c->n_turn), 1);
    gr_table_number(t, gr_ratio(s->refreshes, c->n_turn), 1);
    gr_table_number(t, gr_ratio(s->roll_backs, c->n_turn), 1);
    gr_table_number(t, 100.0 * gr_ratio(s->n_mismatch, s->n_judged), 1);
    gr_table_number(t, gr_ratio(c->prefix, c->n_turn), 1);
    gr_table_number(t, 100.0 * gr_ratio(c->n_equal, c->n_compared), 1);
}

static void begin_table(struct gr_table *t, const struct bench *b, enum gr_table_format format)
{
    static const char *const columns[] = {"context",
                                          "specpv",
                                          "budget",
                                          "tok/s",
                                          "x off",
                                          "low",
                                          "high",
                                          "predicted",
                                          "error %",
                                          "mean acceptance length",
                                          "tokens per round",
                                          "verify ms",
                                          "priced ms",
                                          "rest ms",
                                          "partial rounds",
                                          "refreshes",
                                          "roll-backs",
                                          "mismatch %",
                                          "common prefix",
                                          "equal %"};
    char note[512];
    snprintf(note, sizeof(note),
             "%s, draft %s, %s nodes, %u new tokens, %d prompts; x off: speed against full verification, median of %d "
             "turns, lowest, highest; predicted: from calibrated passes; ms per round; rounds, refreshes, roll-backs, "
             "common prefix (tokens) per turn",
             b->model, b->config.draft != NULL ? b->config.draft : "none", b->nodes, b->config.max_tokens, b->n_prompt,
             b->n_rep);
    gr_table_begin(t, format, stdout, "e2e --context", note, columns, (int)GR_ARRAY_LEN(columns));
}

/* Speed against full verification over contexts, a line for each mode and budget; at one context only over budgets. */
static enum gr_status plot(const struct bench *b)
{
    char name[GR_LONG_VARIANT_MAX][32], title[256];
    const char *series[GR_LONG_VARIANT_MAX];
    const bool by_budget = b->n_context == 1;
    const int step = by_budget ? b->n_budget : 1; /* variants are listed mode by mode */
    int n = 0;
    for (int i = 1; i < b->n_variant; i += step) {
        const char *mode = gr_specpv_mode_name(b->variant[i].mode);
        if (by_budget) {
            snprintf(name[n], sizeof(name[n]), "%s", mode);
        } else {
            const long long budget = b->budget[b->variant[i].budget];
            (void)(budget > 0 ? snprintf(name[n], sizeof(name[n]), "%s %lld", mode, budget)
                              : snprintf(name[n], sizeof(name[n]), "%s, budget by context", mode));
        }
        series[n] = name[n];
        n++;
    }
    if (n == 0) {
        log_error("--plot: there is nothing beside full verification to plot");
        return GR_EINVAL;
    }
    snprintf(title, sizeof(title), "speed against full verification, %s nodes%s", b->nodes,
             by_budget ? " (one context)" : "");
    struct gr_plot p;
    GR_TRY(gr_plot_begin(&(struct gr_plot_config){.path = b->o.plot,
                                                  .title = title,
                                                  .series = series,
                                                  .n_series = n,
                                                  .x_label = by_budget ? "tokens of retrieval" : "tokens of context",
                                                  .y_label = "x full verification",
                                                  .log_x = true},
                         &p));
    for (int i = 1; i < b->n_variant; i += step) {
        for (int k = 0; k < (by_budget ? step : b->n_context); k++) {
            const int i_context = by_budget ? 0 : k;
            const int i_variant = by_budget ? i + k : i;
            const struct ratio r = ratio_of(b, &b->cell[i_context][0], &b->cell[i_context][i_variant]);
            fprintf(p.to, "%lld %.4f\n",
                    (long long)(by_budget ? budget_of(b, b->variant[i_variant].budget, b->context[0]) : b->context[k]),
                    r.measured);
        }
        fputs("e\n", p.to);
    }
    return gr_plot_end(&p);
}

static enum gr_status run(struct bench *b, enum gr_table_format format)
{
    struct gr_table t;
    const struct gr_prices_config prices = {.model = b->model,
                                            .head = b->config.draft_is_head ? b->config.draft : NULL,
                                            .n_ctx_max = b->config.context_max + (int32_t)b->config.max_tokens,
                                            .n_retrieval_max = b->config.n_retrieval_max,
                                            .n_tree_row = b->config.draft == NULL ? 1 : (int32_t)b->config.n_node + 1,
                                            .n_buffer = GR_SPECPV_N_BUFFER};
    b->id = malloc((size_t)b->config.context_max * sizeof(*b->id));
    if (b->id == NULL) {
        log_error("out of memory for %d tokens", b->config.context_max);
        return GR_ENOMEM;
    }
    GR_TRY(gr_long_text_load(b->model, b->o.prompts, NULL, b->text_files, &b->text));
    GR_TRY(gr_long_text_window(&b->text, 0, 1, b->config.context_max, b->id)); /* long enough? */
    GR_TRY(gr_long_start(&b->pair, &b->config)); /* before there are threads: they would take its children's signals */
    GR_TRY(gr_prices_create(&prices, &b->prices));
    begin_table(&t, b, format);
    for (int c = 0; c < b->n_context; c++) {
        for (int p = 0; p < b->n_prompt; p++) {
            GR_TRY(run_prompt(b, c, p));
        }
        for (int i = 0; i < b->n_variant; i++) {
            print_row(&t, b, c, i);
        }
    }
    gr_table_end(&t);
    return b->o.plot != NULL ? plot(b) : GR_OK;
}

/* ---- options ---- */

static bool add_mode(struct bench *b, enum gr_specpv_mode mode)
{
    for (int i = 0; i < b->n_budget && mode != GR_SPECPV_OFF; i++) {
        if (b->n_variant == GR_LONG_VARIANT_MAX) {
            log_error("--specpv, --specpv-budgets: more than %d modes and budgets", GR_LONG_VARIANT_MAX - 1);
            return false;
        }
        b->variant[b->n_variant++] = (struct variant){.mode = mode, .budget = i};
    }
    return true;
}

/* Full verification goes first, whatever was asked for: all else is compared with it. */
static bool choose_variants(struct bench *b)
{
    bool ok = true;
    b->variant[b->n_variant++] = (struct variant){.mode = GR_SPECPV_OFF, .budget = -1};
    for (int i = 0; i < b->o.specpv.n && ok; i++) {
        ok = add_mode(b, (enum gr_specpv_mode)b->o.specpv.value[i]);
    }
    for (int i = 0; i < b->n_budget && ok; i++) {
        ok = b->budget[i] % GR_KV_BLOCK_TOKENS == 0;
        if (!ok) {
            log_error("--specpv-budgets: %lld is not a multiple of %d, the size of a block", (long long)b->budget[i],
                      GR_KV_BLOCK_TOKENS);
        }
        for (int c = 0; c < b->n_context; c++) {
            b->config.n_retrieval_max = GR_MAX(b->config.n_retrieval_max, retrieval_of(b, i, b->context[c]));
        }
    }
    b->config.n_retrieval_max = b->n_variant > 1 ? b->config.n_retrieval_max : 0;
    return ok;
}

static enum gr_status choose_draft(struct bench *b)
{
    const char *draft = b->o.draft != NULL ? b->o.draft : gr_bench_path("models/demo/draft");
    if (strcmp(draft, "none") == 0) {
        return GR_OK;
    }
    b->config.draft = draft;
    return gr_pair_draft_is_head(draft, &b->config.draft_is_head);
}

static void take_lists(struct bench *b)
{
    b->n_context = b->o.contexts.n;
    b->n_budget = b->o.budgets.n;
    for (int i = 0; i < b->n_context; i++) {
        b->context[i] = b->o.contexts.value[i];
        b->config.context_max = GR_MAX(b->config.context_max, (int32_t)b->context[i]);
    }
    for (int i = 0; i < b->n_budget; i++) {
        b->budget[i] = b->o.budgets.value[i] == GR_AUTO ? 0 : b->o.budgets.value[i];
    }
}

static enum gr_status prepare(struct bench *b)
{
    const struct gr_bench_options *o = &b->o;
    const struct gr_group_tree tree = gr_group_tree_of(o->nodes);
    const char *transport = gr_bench_choice(o, GR_BENCH_OPTION_transport);
    b->model = gr_bench_path_of(o, GR_BENCH_OPTION_model);
    b->text_files = gr_bench_path_of(o, GR_BENCH_OPTION_text);
    b->n_rep = (int)o->reps;
    b->n_prompt = (int)o->n_prompt;
    snprintf(b->nodes, sizeof(b->nodes), tree.automatic ? "auto" : "%u", tree.n_node);
    b->config = (struct gr_long_config){.target = b->model,
                                        .transport = transport != NULL ? transport : "",
                                        .auto_tree = tree.automatic,
                                        .n_node = tree.n_node,
                                        .max_tokens = (uint32_t)o->long_max_tokens,
                                        .temperature = o->temperature,
                                        .threshold = (uint32_t)o->threshold};
    take_lists(b);
    if (!choose_variants(b)) {
        return GR_EINVAL;
    }
    GR_TRY(choose_draft(b));
    b->config.n_session = b->n_variant;
    return o->plot == NULL ? GR_OK : gr_plot_check("--plot", o->plot);
}

int gr_bench_long(int argc, char **argv)
{
    static struct bench b;
    const int status = gr_bench_options_read(&b.o, GR_BENCH_LONG, argc, argv);
    if (status >= 0) {
        return status;
    }
    enum gr_status st = prepare(&b);
    if (st != GR_OK) {
        return gr_program_refused(st);
    }
    st = run(&b, gr_bench_format(&b.o));
    gr_long_stop(&b.pair);
    gr_prices_destroy(b.prices);
    gr_long_text_free(&b.text);
    free(b.id);
    return st == GR_OK ? 0 : gr_program_refused(st);
}
