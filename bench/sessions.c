/* graft-bench sessions: N sessions at once on one pair of workers, all asked for in the same moment; the orchestrator
 * runs in this process. A repetition takes every N and mode in turn, so that a slow minute of the machine hits all
 * alike; the first is warm-up and does not count. N sessions at once give each prompt its turn; with fewer sessions
 * than prompts there are several groups of N, one after the other. Speed: all tokens of a group but the first, over the
 * time from the first token of the first session to the last token of the last, so prompts that are computed meanwhile
 * count; decode: the tokens while all of the group decode, over that time. Every text is compared with the same
 * prompt's when it is run alone and plainly, which is the first row. */
#include "bench/bench.h"
#include "bench/group.h"
#include "common/base/log.h"
#include "common/process/program.h"

#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define N_ROW_MAX 32 /* of the table */

struct row {
    int n; /* sessions at once */
    bool trees;
    double speed[GR_GROUP_REP_MAX];
    double accepted, drafts, rounds, tokens;
    double decode_tokens, decode_seconds; /* while all sessions of a group decoded */
};

struct totals {
    double tokens, seconds, accepted, drafts, rounds, decode_tokens, decode_seconds;
};

struct bench {
    struct gr_bench_options o;
    struct gr_prompt_set_options of_prompts;
    struct gr_pair_config pair;
    const struct gr_geometry *geometry;
    struct gr_prompt_set prompts;
    struct gr_group group;
    struct gr_group_tree tree;
    struct row row[N_ROW_MAX];
    int n_row, n_rep, n_at_once; /* n_at_once: the most of any row */
    bool prompts_first;
    double temperature;
};

/* ---- measuring ---- */

static enum gr_status run_group(struct bench *b, const struct row *row, int i_group, struct totals *t)
{
    static const struct gr_group_tree plain = {0};
    struct gr_group *g = &b->group;
    GR_TRY(gr_group_run(g, &b->prompts, i_group * row->n, row->n, row->trees ? &b->tree : &plain));
    for (int i = 0; i < row->n; i++) {
        const struct gr_group_session *s = &g->session[i];
        char what[64];
        snprintf(what, sizeof(what), "session %d of %d, %s", i, row->n, row->trees ? "trees" : "plain");
        GR_TRY(gr_prompt_set_check(&b->prompts, s->prompt, s->token, s->n_token, what));
        t->tokens += s->n_token;
        t->accepted += (double)s->metrics.num_accepted_tokens;
        t->drafts += (double)s->metrics.num_drafts;
        t->rounds += (double)s->metrics.rounds;
    }
    double tokens = 0.0, seconds = 0.0;
    gr_group_decoding(g, &tokens, &seconds); /* every session has its tokens: they were checked */
    t->decode_tokens += tokens;
    t->decode_seconds += seconds;
    t->tokens -= 1.0;
    t->seconds += 1e-9 * (double)(g->last_ns - g->first_ns);
    return GR_OK;
}

static enum gr_status run_row(struct bench *b, struct row *row, int rep)
{
    const int n_group = GR_MAX(1, (b->prompts.n + row->n - 1) / row->n);
    struct totals t = {0};
    for (int i = 0; i < n_group; i++) {
        GR_TRY(run_group(b, row, i, &t));
    }
    if (rep >= 0) {
        row->speed[rep] = t.tokens / t.seconds;
        row->accepted += t.accepted;
        row->drafts += t.drafts;
        row->rounds += t.rounds;
        row->decode_tokens += t.decode_tokens;
        row->decode_seconds += t.decode_seconds;
        row->tokens +=
            (double)n_group * row->n * (b->group.max_tokens - 1.0); /* a session's first token is no round's */
    }
    return GR_OK;
}

static enum gr_status run(struct bench *b)
{
    GR_TRY(gr_prompt_set_load(&b->of_prompts, &b->prompts));
    GR_TRY(gr_group_start(&b->group, &(struct gr_group_config){.pair = b->pair,
                                                               .prompts = &b->prompts,
                                                               .n_max = b->n_at_once,
                                                               .temperature = b->temperature,
                                                               .prompts_first = b->prompts_first}));
    for (int rep = -1; rep < b->n_rep; rep++) {
        for (int i = 0; i < b->n_row; i++) {
            GR_TRY(run_row(b, &b->row[i], rep));
        }
    }
    return GR_OK;
}

/* ---- the table ---- */

/* Plain decoding with as many sessions at once; NULL: not measured. */
static const struct row *plain_of(const struct bench *b, const struct row *r)
{
    for (int i = 0; i < b->n_row; i++) {
        if (!b->row[i].trees && b->row[i].n == r->n) {
            return &b->row[i];
        }
    }
    return NULL;
}

/* NaN: no time in which all of a group decoded. */
static double decode_speed(const struct row *r)
{
    return gr_ratio(r->decode_tokens, r->decode_seconds);
}

static void print_row(struct gr_table *t, const struct bench *b, const struct row *r)
{
    const struct row *plain = plain_of(b, r);
    const double speed = gr_mean(r->speed, b->n_rep);
    char name[32];
    snprintf(name, sizeof(name), "%u nodes", b->tree.n_node);
    gr_table_number(t, r->n, 0);
    gr_table_text(t, !r->trees ? "plain" : b->tree.automatic ? "auto" : name);
    gr_table_mean(t, r->speed, b->n_rep, 0);
    gr_table_number(t, plain != NULL ? gr_ratio(speed, gr_mean(plain->speed, b->n_rep)) : NAN, 2);
    gr_table_number(t, speed / gr_mean(b->row[0].speed, b->n_rep), 2);
    gr_table_number(t, decode_speed(r), 2);
    gr_table_number(t, plain != NULL ? gr_ratio(decode_speed(r), decode_speed(plain)) : NAN, 2);
    gr_table_number(t, 1.0 + gr_ratio(r->accepted, r->drafts), 2);
    gr_table_number(t, gr_ratio(r->tokens, r->rounds), 2);
}

static void print_table(const struct bench *b, enum gr_table_format format)
{
    static const char *const columns[] = {"sessions",        "mode",         "tok/s",          "x plain",
                                          "x one plain",     "decode tok/s", "decode x plain", "mean acceptance length",
                                          "tokens per round"};
    struct gr_table t;
    char note[512];
    snprintf(
        note, sizeof(note),
        "%s, draft %s, on %s and %s, %d prompts of at most %u tokens, %s%u new ones, T %g%s%s; tokens/s of all "
        "sessions together, mean +- stddev; decode: while all of them decode; x plain: with as many sessions; every "
        "text equals the same prompt's run alone and plainly",
        b->pair.target, b->pair.draft, b->pair.target_device, b->pair.draft_device, b->prompts.n, b->prompts.n_id_max,
        b->prompts_first ? "computed before, " : "", b->prompts.max_tokens, b->temperature,
        b->geometry != NULL ? "; cost that of " : "", b->geometry != NULL ? b->geometry->name : "");
    gr_table_begin(&t, format, stdout, "sessions", note, columns, (int)GR_ARRAY_LEN(columns));
    for (int i = 0; i < b->n_row; i++) {
        print_row(&t, b, &b->row[i]);
    }
    gr_table_end(&t);
}

/* ---- options ---- */

static bool add_row(struct bench *b, int n, bool trees)
{
    if (b->n_row == N_ROW_MAX) {
        log_error("--sessions, --modes: more than %d rows", N_ROW_MAX);
        return false;
    }
    b->row[b->n_row++] = (struct row){.n = n, .trees = trees};
    b->n_at_once = GR_MAX(b->n_at_once, n);
    return true;
}

/* One session plain goes first, whatever was asked for: all else is compared with it. */
static bool choose_rows(struct bench *b)
{
    bool plain = false, trees = false;
    for (int i = 0; i < b->o.decoding.n; i++) {
        plain = plain || b->o.decoding.value[i] == GR_BENCH_PLAIN;
        trees = trees || b->o.decoding.value[i] == GR_BENCH_TREES;
    }
    bool fits = add_row(b, 1, false);
    for (int i = 0; i < b->o.sessions.n && fits; i++) {
        const int n = (int)b->o.sessions.value[i];
        fits = (!plain || n == 1 || add_row(b, n, false)) && (!trees || add_row(b, n, true));
    }
    return fits;
}

static enum gr_status prepare(struct bench *b)
{
    b->n_rep = (int)b->o.reps;
    b->temperature = b->o.temperature;
    b->prompts_first = b->o.prompts_first;
    b->tree = gr_group_tree_of(b->o.tree);
    b->of_prompts = gr_prompt_set_options_of(&b->o);
    b->of_prompts.max_tokens = (uint32_t)b->o.max_tokens;
    GR_TRY(gr_pair_config_of(&b->o, &b->pair, &b->geometry));
    b->of_prompts.model = b->pair.target;
    b->pair.colocated = gr_pair_on_one_gpu(&b->pair);
    return choose_rows(b) ? GR_OK : GR_EINVAL;
}

int gr_bench_sessions(int argc, char **argv)
{
    static struct bench b;
    const int status = gr_bench_options_read(&b.o, GR_BENCH_SESSIONS, argc, argv);
    if (status >= 0) {
        return status;
    }
    enum gr_status st = prepare(&b);
    if (st != GR_OK) {
        return gr_program_refused(st);
    }
    signal(SIGPIPE, SIG_IGN);
    st = sodium_init() < 0 ? GR_EIO : run(&b);
    gr_group_stop(&b.group);
    if (st == GR_OK) {
        print_table(&b, gr_bench_format(&b.o));
    }
    gr_prompt_set_free(&b.prompts);
    return st == GR_OK ? 0 : gr_program_refused(st);
}
