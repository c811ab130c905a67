/* graft-bench clients: N sessions at once at a running orchestrator (`graft serve', `graft launch'), plainly and with
 * trees; what `graft-bench sweep' measures each of its points with. All prompts are computed before any session
 * decodes (crowd.h), a first run of each row is warm-up, and with fewer sessions than prompts there are several groups
 * of N, one after the other. Every text is compared with the first that its prompt gave, and the column `texts' is a
 * digest of them all: equal wherever the same prompts gave the same texts. */
#include "bench/bench.h"
#include "bench/crowd.h"
#include "bench/paths.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "common/rules/hash.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOGETHER_MIN 0.5 /* of all tokens: while all decode so many have to come, or speed is over all of the time */
#define CONNECT_MS 60000 /* the orchestrator may be about to start */

struct totals {
    double tokens, seconds;         /* while all decode */
    double all_tokens, all_seconds; /* from the first token of any to the last of any */
    double own_tokens;              /* without the first of each, which is no round's */
    double least;                   /* tokens/s of the slowest session */
    double rounds, drafts, accepted, bare_rounds, verify_ms, wait_ms, drafter_ms, host_ms, life_ms;
    double first_ms[GR_BENCH_PROMPT_MAX + GR_CROWD_MAX]; /* of all sessions, in any order */
    int n_first;
    int n_undrafted; /* sessions that a drafter which was there did not work for */
    int n_waited;    /* sessions that began when another one of their group had ended */
    int n_reopened;  /* sessions whose prompt was computed again while they were to decode */
    char transport[GR_TRANSPORT_NAME_MAX];
};

struct bench {
    struct gr_bench_options o;
    struct gr_prompt_set_options of_prompts;
    struct gr_prompt_set prompts;
    struct gr_crowd crowd;
    struct gr_group_tree tree;
    int n_rep;
    bool failed; /* a row could not be measured */
};

/* ---- measuring ---- */

static void add_session(struct totals *t, const struct gr_crowd_session *s)
{
    const struct gr_session_metrics *m = &s->metrics;
    t->rounds += (double)m->rounds;
    t->drafts += (double)m->num_drafts;
    t->accepted += (double)m->num_accepted_tokens;
    t->bare_rounds += (double)m->root_only_rounds;
    t->verify_ms += 1e-6 * (double)m->verify_ns;
    t->wait_ms += 1e-6 * (double)m->wait_ns;
    t->drafter_ms += 1e-6 * (double)s->drafter_ns;
    t->host_ms += 1e-6 * (double)m->host_ns;
    t->life_ms += 1e-6 * (double)(m->last_token_ns - m->first_token_ns);
    t->n_reopened += s->reopened;
    t->own_tokens += s->n_token - 1.0;
    t->first_ms[t->n_first++] = 1e-6 * (double)(s->first_ns - s->asked_ns);
    t->n_undrafted += s->undrafted;
    if (m->transport[0] != '\0') {
        memcpy(t->transport, m->transport, sizeof(t->transport));
    }
}

static enum gr_status run_group(struct bench *b, int i_group, int n, bool trees, struct totals *t)
{
    static const struct gr_group_tree plain = {0};
    struct gr_crowd *c = &b->crowd;
    GR_TRY(gr_crowd_run(c, &b->prompts, i_group * n, n, trees ? &b->tree : &plain));
    for (int i = 0; i < n; i++) {
        const struct gr_crowd_session *s = &c->session[i];
        char what[64];
        snprintf(what, sizeof(what), "session %d of %d, %s", i, n, trees ? "trees" : "plain");
        GR_TRY(gr_prompt_set_check(&b->prompts, s->prompt, s->token, s->n_token, what));
        add_session(t, s);
    }
    const struct gr_crowd_window w = gr_crowd_window(c->session, n);
    t->tokens += w.tokens;
    t->seconds += w.seconds;
    t->all_tokens += w.all_tokens;
    t->all_seconds += w.all_seconds;
    t->least = fmin(t->least, w.least);
    t->n_waited += w.n_waited;
    return GR_OK;
}

static enum gr_status run_all(struct bench *b, int n, bool trees, struct totals *t)
{
    const int n_group = GR_MAX(1, (b->prompts.n + n - 1) / n);
    *t = (struct totals){.least = INFINITY};
    for (int i = 0; i < n_group; i++) {
        GR_TRY(run_group(b, i, n, trees, t));
    }
    return GR_OK;
}

static uint64_t digest(const struct gr_prompt_set *s)
{
    uint64_t hash = 0;
    for (int i = 0; i < s->n; i++) {
        for (uint32_t k = 0; k < s->max_tokens; k++) {
            hash = gr_hash_extend(hash, s->prompt[i].reference[k]);
        }
    }
    return hash;
}

/* ---- the table ---- */

static const char *const columns[] = {"sessions",      "mode",      "rep",          "tok/s",        "tok/s a client",
                                      "least client",  "ttft ms",   "all decode %", "acceptance",   "tokens per round",
                                      "round ms",      "verify ms", "draft ms",     "transport ms", "host ms",
                                      "bare rounds %", "undrafted", "waited",       "reopened",     "transport",
                                      "shares",        "texts"};

/* The speed that counts: while all decode or, where most tokens came before or after that, over all of the time. */
static double speed_of(const struct totals *s)
{
    const bool together = s->tokens >= TOGETHER_MIN * s->all_tokens;
    return together ? gr_ratio(s->tokens, s->seconds) : gr_ratio(s->all_tokens, s->all_seconds);
}

static void print_row(struct gr_table *t, const struct bench *b, int n, bool trees, int rep, struct totals *s)
{
    char hex[20];
    snprintf(hex, sizeof(hex), "%016" PRIx64, digest(&b->prompts));
    gr_table_number(t, n, 0);
    gr_table_text(t, trees ? "trees" : "plain");
    gr_table_number(t, rep, 0);
    gr_table_number(t, speed_of(s), 2);
    gr_table_number(t, speed_of(s) / n, 3);
    gr_table_number(t, s->least, 3);
    gr_table_number(t, gr_median(s->first_ms, s->n_first), 2);
    gr_table_number(t, gr_ratio(100.0 * s->tokens, s->all_tokens), 1);
    gr_table_number(t, trees ? 1.0 + gr_ratio(s->accepted, s->drafts) : NAN, 3);
    gr_table_number(t, gr_ratio(s->own_tokens, s->rounds), 3);
    gr_table_number(t, gr_ratio(s->life_ms, s->rounds), 4);
    gr_table_number(t, gr_ratio(s->verify_ms, s->rounds), 4);
    gr_table_number(t, trees ? gr_ratio(s->drafter_ms, s->rounds) : NAN, 4);
    gr_table_number(t, trees ? gr_ratio(s->wait_ms - s->drafter_ms, s->rounds) : NAN, 4);
    gr_table_number(t, gr_ratio(s->host_ms, s->rounds), 4);
    gr_table_number(t, trees ? gr_ratio(100.0 * s->bare_rounds, s->rounds) : NAN, 1);
    gr_table_number(t, trees ? (double)s->n_undrafted : NAN, 0);
    gr_table_number(t, s->n_waited, 0);
    gr_table_number(t, s->n_reopened, 0);
    if (s->transport[0] != '\0') {
        gr_table_text(t, s->transport);
    } else {
        gr_table_none(t);
    }
    gr_table_text(t, b->crowd.shares);
    gr_table_text(t, hex);
}

/* The first run is warm-up, at the number of sessions that is measured. What a server refuses keeps no other row from
 * being measured; a text that differs, or a server that is gone, ends all. */
static enum gr_status run_row(struct bench *b, struct gr_table *t, int n, bool trees)
{
    static struct totals s;
    for (int rep = -1; rep < b->n_rep; rep++) {
        const enum gr_status st = run_all(b, n, trees, &s);
        if (st == GR_EINVAL) {
            b->failed = true;
            return GR_OK;
        }
        GR_TRY(st);
        if (rep >= 0) {
            print_row(t, b, n, trees, rep, &s);
        }
    }
    return GR_OK;
}

static enum gr_status run_rows(struct bench *b, struct gr_table *t)
{
    for (int i = 0; i < b->o.crowds.n; i++) {
        for (int k = 0; k < b->o.decoding.n; k++) {
            GR_TRY(run_row(b, t, (int)b->o.crowds.value[i], b->o.decoding.value[k] == GR_BENCH_TREES));
        }
    }
    return GR_OK;
}

static enum gr_status run(struct bench *b)
{
    struct gr_table t;
    char note[400];
    GR_TRY(gr_crowd_await(&b->crowd, (int)b->o.await_targets, (int)b->o.await_drafters, (int)b->o.within));
    snprintf(
        note, sizeof(note),
        "%d prompts of at most %u tokens, computed before, %u new ones, T %g; tok/s while all sessions decode (where "
        "less than half of the tokens come then: from the first token to the last); "
        "transport ms: waits for trees less the drafter's own time",
        b->prompts.n, b->prompts.n_id_max, b->prompts.max_tokens, b->o.temperature);
    gr_table_begin(&t, gr_bench_format(&b->o), stdout, "clients", note, columns, (int)GR_ARRAY_LEN(columns));
    const enum gr_status st = run_rows(b, &t);
    gr_table_end(&t);
    return st;
}

/* ---- options ---- */

static enum gr_status prepare(struct bench *b)
{
    int n_max = 1;
    b->n_rep = (int)b->o.reps;
    b->tree = gr_group_tree_of(b->o.tree);
    b->of_prompts = gr_prompt_set_options_of(&b->o);
    b->of_prompts.max_tokens = (uint32_t)b->o.max_tokens;
    b->of_prompts.model = gr_bench_path_of(&b->o, GR_BENCH_OPTION_model);
    for (int i = 0; i < b->o.crowds.n; i++) {
        n_max = GR_MAX(n_max, (int)b->o.crowds.value[i]);
    }
    GR_TRY(gr_prompt_set_load(&b->of_prompts, &b->prompts));
    return gr_crowd_begin(&b->crowd, b->o.connect, CONNECT_MS, n_max, b->prompts.max_tokens, b->o.temperature);
}

int gr_bench_clients(int argc, char **argv)
{
    static struct bench b;
    const int status = gr_bench_options_read(&b.o, GR_BENCH_CLIENTS, argc, argv);
    if (status >= 0) {
        return status;
    }
    enum gr_status st = prepare(&b);
    st = st == GR_OK ? run(&b) : st;
    const int left = b.crowd.connected ? gr_remote_status(&b.crowd.remote, st) : gr_program_refused(st);
    gr_crowd_end(&b.crowd);
    gr_prompt_set_free(&b.prompts);
    return left == 0 && b.failed ? 1 : left;
}
