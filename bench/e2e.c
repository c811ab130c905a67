/* graft-bench e2e: the same prompts plainly, with trees on a co-located pair (loop) and on a pair of processes. The
 * workers of each are started once and serve all requests; plain decoding is a request without trees to the first of
 * them. Every repetition runs all rows in turn, so that a slow minute of the machine hits all alike; the first is
 * warm-up and does not count. Every text is compared with plain decoding's. With --geometry target and EAGLE-3 head are
 * expanded in memory (model/load/expand.h): the cost is that of the geometry, the acceptance that of the small pair.
 * Speeds are decode tokens per second (without the first token) over all prompts; the round is split into draft:  the
 * drafter's own compute, verify: the target's forward pass, host:   sampling, walk and commit on the target, wire: what
 * is left of the wait from VERDICT to DRAFT: frames both ways, wake-ups, both I/O loops. bytes/token: frames of the
 * data path, both ways, while decoding; features of an EAGLE-3 head are most of it. With --context it is another
 * measurement: long.c. */
#include "bench/bench.h"
#include "bench/group.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "model/load/expand.h"

#include <math.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define N_ENGINE 2    /* plain decoding and speculation take turns */
#define N_TREE_MAX 12 /* of --num-speculative-tokens: its row has as many */
#define N_ROW_MAX (1 + N_ENGINE * N_TREE_MAX)

struct engine {
    const char *name;
    struct gr_pair_config pair;
    struct gr_group group;
    bool started;
};

struct totals {
    double tokens, seconds, accepted, drafts, rounds;
    double draft_ms, verify_ms, wait_ms, host_ms, wire_bytes, wire_tokens;
    char transport[16]; /* that the last session used */
};

struct row {
    struct engine *engine;
    char nodes[8]; /* as it was given; plain: "-" */
    struct gr_group_tree tree;
    struct totals sum;
    double speed[GR_GROUP_REP_MAX];
    double seconds[GR_BENCH_PROMPT_MAX]; /* all repetitions */
};

struct bench {
    struct gr_bench_options o;
    struct gr_prompt_set_options of_prompts;
    struct gr_pair_config pair; /* what both engines have alike */
    const struct gr_geometry *geometry;
    double temperature;
    int n_rep, n_engine, n_row;
    struct engine engine[N_ENGINE];
    struct row row[N_ROW_MAX]; /* the first is plain decoding */
    struct gr_prompt_set prompts;
};

/* ---- measuring ---- */

static void add_session(struct totals *t, const struct gr_group_session *s, uint32_t n_token)
{
    const struct gr_session_metrics *m = &s->metrics;
    t->tokens += n_token - 1.0; /* the first is no round's */
    memcpy(t->transport, m->transport, sizeof(t->transport));
    t->seconds += 1e-9 * (double)(m->last_token_ns - m->first_token_ns);
    t->accepted += (double)m->num_accepted_tokens;
    t->drafts += (double)m->num_drafts;
    t->rounds += (double)m->rounds;
    t->draft_ms +=
        m->n_drafter_round > 0 ? 1e-6 * (double)m->draft_ns / (double)m->n_drafter_round * (double)m->rounds : 0;
    t->verify_ms += 1e-6 * (double)m->verify_ns;
    t->wait_ms += 1e-6 * (double)m->wait_ns;
    t->host_ms += 1e-6 * (double)m->host_ns;
    t->wire_bytes += (double)m->wire_bytes;
    t->wire_tokens += (double)m->wire_tokens;
}

static enum gr_status run_prompt(struct bench *b, struct row *row, int i_prompt, struct totals *t)
{
    struct gr_group *g = &row->engine->group;
    char what[64];
    GR_TRY(gr_group_run(g, &b->prompts, i_prompt, 1, &row->tree));
    snprintf(what, sizeof(what), "%s, %s nodes", row->tree.wanted ? row->engine->name : "plain", row->nodes);
    GR_TRY(gr_prompt_set_check(&b->prompts, i_prompt, g->session[0].token, g->session[0].n_token, what));
    add_session(t, &g->session[0], g->max_tokens);
    return GR_OK;
}

static enum gr_status run_row(struct bench *b, struct row *row, int rep)
{
    struct totals now = {0};
    struct totals *t = rep < 0 ? &now : &row->sum;
    const struct totals before = *t;
    for (int i = 0; i < b->prompts.n; i++) {
        const double seconds = t->seconds;
        GR_TRY(run_prompt(b, row, i, t));
        row->seconds[i] += rep < 0 ? 0.0 : t->seconds - seconds;
    }
    if (rep >= 0) {
        row->speed[rep] = (t->tokens - before.tokens) / (t->seconds - before.seconds);
    }
    return GR_OK;
}

static enum gr_status start_engines(struct bench *b)
{
    for (int i = 0; i < b->n_engine; i++) {
        struct engine *e = &b->engine[i];
        e->started = true; /* also where it fails: what there is of it is to be stopped */
        GR_TRY(gr_group_start(&e->group,
                              &(struct gr_group_config){
                                  .pair = e->pair, .prompts = &b->prompts, .n_max = 1, .temperature = b->temperature}));
    }
    return GR_OK;
}

static enum gr_status run(struct bench *b)
{
    GR_TRY(gr_prompt_set_load(&b->of_prompts, &b->prompts));
    GR_TRY(start_engines(b));
    for (int rep = -1; rep < b->n_rep; rep++) {
        for (int i = 0; i < b->n_row; i++) {
            GR_TRY(run_row(b, &b->row[i], rep));
        }
    }
    return GR_OK;
}

/* ---- the table ---- */

/* Speed of a prompt against plain decoding of it: all texts are equally long. */
static void quotients(const struct bench *b, const struct row *r, double *low, double *high)
{
    *low = INFINITY;
    *high = 0.0;
    for (int i = 0; i < b->prompts.n; i++) {
        const double q = b->row[0].seconds[i] / r->seconds[i];
        *low = fmin(*low, q);
        *high = fmax(*high, q);
    }
}

static void print_row(struct gr_table *t, const struct bench *b, const struct row *r)
{
    const struct totals *s = &r->sum;
    const bool trees = r->tree.wanted;
    double low = 0.0, high = 0.0;
    quotients(b, r, &low, &high);
    gr_table_text(t, trees ? r->engine->name : "plain");
    if (trees) {
        gr_table_text(t, r->nodes);
        gr_table_text(t, s->transport);
    } else {
        gr_table_none(t);
        gr_table_none(t);
    }
    gr_table_mean(t, r->speed, b->n_rep, 1);
    gr_table_number(t, gr_mean(r->speed, b->n_rep) / gr_mean(b->row[0].speed, b->n_rep), 2);
    gr_table_number(t, low, 2);
    gr_table_number(t, high, 2);
    gr_table_number(t, 1.0 + gr_ratio(s->accepted, s->drafts), 2);
    gr_table_number(t, gr_ratio(s->seconds * 1e3, s->rounds), 3);
    gr_table_number(t, trees ? gr_ratio(s->draft_ms, s->rounds) : NAN, 3);
    gr_table_number(t, trees ? gr_ratio(fmax(s->wait_ms - s->draft_ms, 0.0), s->rounds) : NAN, 3);
    gr_table_number(t, gr_ratio(s->verify_ms, s->rounds), 3);
    gr_table_number(t, gr_ratio(s->host_ms, s->rounds), 3);
    gr_table_number(t, gr_ratio(s->wire_bytes, s->wire_tokens), 0);
}

static void print_table(const struct bench *b, enum gr_table_format format)
{
    static const char *const columns[] = {"mode",     "nodes",       "transport",   "tok/s",
                                          "x plain",  "x plain min", "x plain max", "mean acceptance length",
                                          "round ms", "draft ms",    "wire ms",     "verify ms",
                                          "host ms",  "bytes/token"};
    const bool expanded = b->geometry != NULL;
    struct gr_table t;
    char note[512];
    snprintf(
        note, sizeof(note),
        "%s, draft %s, on %s and %s, %d prompts of at most %u tokens, %u new ones, T %g; decode tokens/s without the "
        "first token, mean +- stddev; min, max: over prompts; mean acceptance length = 1 + accepted/drafts%s%s%s",
        b->pair.target, b->pair.draft, b->pair.target_device, b->pair.draft_device, b->prompts.n, b->prompts.n_id_max,
        b->prompts.max_tokens, b->temperature, expanded ? "; cost that of " : "", expanded ? b->geometry->name : "",
        expanded ? ", acceptance that of the folders' pair" : "");
    gr_table_begin(&t, format, stdout, "e2e", note, columns, (int)GR_ARRAY_LEN(columns));
    for (int i = 0; i < b->n_row; i++) {
        print_row(&t, b, &b->row[i]);
    }
    gr_table_end(&t);
}

/* ---- options ---- */

static bool asks_for_contexts(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--context") == 0 || strncmp(argv[i], "--context=", 10) == 0) {
            return true;
        }
    }
    return false;
}

static void add_engine(struct bench *b, const char *name, bool colocated)
{
    struct engine *e = &b->engine[b->n_engine++];
    e->name = name;
    e->pair = b->pair;
    e->pair.colocated = colocated;
}

static bool has(const struct gr_option_list *list, int64_t value)
{
    for (int i = 0; i < list->n; i++) {
        if (list->value[i] == value) {
            return true;
        }
    }
    return false;
}

static bool choose_engines(struct bench *b)
{
    const bool one_gpu = gr_pair_on_one_gpu(&b->pair);
    const bool colocated = has(&b->o.modes, GR_BENCH_COLOCATED);
    const bool pair = has(&b->o.modes, GR_BENCH_APART);
    if (pair && !colocated && one_gpu) {
        log_error("--modes pair: both workers are to be on %s, where two processes would take turns; take co-located",
                  b->pair.target_device);
        return false;
    }
    if (colocated) {
        add_engine(b, "co-located", true);
    }
    if (pair && !one_gpu) {
        add_engine(b, "pair", false);
    }
    return true;
}

static void choose_rows(struct bench *b)
{
    b->row[b->n_row++] = (struct row){.engine = &b->engine[0], .nodes = "-"};
    for (int i = 0; i < b->o.trees.n; i++) {
        const struct gr_group_tree tree = gr_group_tree_of(b->o.trees.value[i]);
        for (int k = 0; k < b->n_engine; k++) {
            struct row *r = &b->row[b->n_row++];
            *r = (struct row){.engine = &b->engine[k], .tree = tree};
            snprintf(r->nodes, sizeof(r->nodes), tree.automatic ? "auto" : "%u", tree.n_node);
        }
    }
}

static enum gr_status prepare(struct bench *b)
{
    b->n_rep = (int)b->o.reps;
    b->temperature = b->o.temperature;
    b->of_prompts = gr_prompt_set_options_of(&b->o);
    b->of_prompts.max_tokens = (uint32_t)b->o.max_tokens;
    GR_TRY(gr_pair_config_of(&b->o, &b->pair, &b->geometry));
    if (!choose_engines(b)) {
        return GR_EINVAL;
    }
    b->of_prompts.model = b->pair.target;
    choose_rows(b);
    return GR_OK;
}

int gr_bench_e2e(int argc, char **argv)
{
    static struct bench b;
    if (asks_for_contexts(argc, argv)) {
        return gr_bench_long(argc, argv);
    }
    const int status = gr_bench_options_read(&b.o, GR_BENCH_E2E, argc, argv);
    if (status >= 0) {
        return status;
    }
    enum gr_status st = prepare(&b);
    if (st != GR_OK) {
        return gr_program_refused(st);
    }
    signal(SIGPIPE, SIG_IGN);
    st = sodium_init() < 0 ? GR_EIO : run(&b);
    for (int i = 0; i < b.n_engine && b.engine[i].started; i++) {
        gr_group_stop(&b.engine[i].group);
    }
    if (st == GR_OK) {
        print_table(&b, gr_bench_format(&b.o));
    }
    gr_prompt_set_free(&b.prompts);
    return st == GR_OK ? 0 : gr_program_refused(st);
}
