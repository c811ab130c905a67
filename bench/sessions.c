/* graft-bench sessions: N sessions at once on one pair of workers, all asked for in the same moment; the orchestrator
 * runs in this process. A repetition takes every N and mode in turn, so that a slow minute of the machine hits all
 * alike; the first is warm-up and does not count. N sessions at once give each prompt its turn; with fewer sessions
 * than prompts there are several groups of N, one after the other. Speed: all tokens of a group but the first, over the
 * time from the first token of the first session to the last token of the last, so prompts that are computed meanwhile
 * count. Every text is compared with the same prompt's when it is run alone and plainly, which is the first row. */
#include "bench/bench.h"
#include "bench/graft_run.h"
#include "bench/pair.h"
#include "common/log.h"
#include "common/clock.h"
#include "common/parse.h"
#include "common/program.h"
#include "model/tokenizer.h"

#include <limits.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define N_AT_ONCE_MAX 64
#define N_ROW_MAX 16 /* of the table */
#define N_REP_MAX 50
#define MAX_TOKENS 16384

struct options {
    const char *model, *draft, *sessions, *modes, *nodes, *max_tokens, *reps, *temperature, *transport, *prompts;
};

struct prompt {
    int32_t *ids;       /* owned */
    uint32_t n;
    int32_t *reference; /* (max_tokens) owned: the text when run alone and plainly */
};

struct slot { /* a session of the group that runs */
    uint64_t id;
    int prompt, at; /* at: place in the group, for messages */
    int32_t *token; /* (max_tokens) owned */
    uint32_t n_token;
};

struct row {
    int n; /* sessions at once */
    bool trees;
    double speed[N_REP_MAX];
    double accepted, drafts, rounds, tokens;
};

struct totals {
    double tokens, seconds, accepted, drafts, rounds;
};

struct bench {
    struct options o;
    struct gr_pair pair;
    struct prompt prompt[GR_BENCH_PROMPT_MAX];
    struct slot slot[N_AT_ONCE_MAX];
    struct row row[N_ROW_MAX];
    int n_prompt, n_row, n_rep, n_at_once; /* n_at_once: the most of any row */
    uint32_t max_tokens, n_node;
    bool auto_tree;
    double temperature;
    /* of the group that runs */
    int n_running;
    bool failed;
    uint64_t first_ns, last_ns;
    struct totals totals;
};

/* ---- a group ---- */

static struct slot *slot_of(struct bench *b, uint64_t session)
{
    for (int i = 0; i < b->n_at_once; i++) {
        if (b->slot[i].id == session) {
            return &b->slot[i];
        }
    }
    return NULL;
}

static void on_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    struct bench *b = ctx;
    struct slot *s = slot_of(b, session);
    (void)user;
    GR_ASSERT(s != NULL && s->n_token + n <= b->max_tokens); /* the orchestrator checks the limit */
    memcpy(s->token + s->n_token, id, n * sizeof(*id));
    s->n_token += n;
    b->last_ns = gr_clock_ns();
    b->first_ns = b->first_ns == 0 ? b->last_ns : b->first_ns;
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct bench *b = ctx;
    const struct gr_session_metrics *m = gr_orch_metrics(gr_hub_orch(b->pair.hub), session);
    (void)user;
    b->n_running--;
    b->totals.accepted += (double)m->num_accepted_tokens;
    b->totals.drafts += (double)m->num_drafts;
    b->totals.rounds += (double)m->rounds;
    if (finish == GR_FINISH_ERROR) {
        log_error("session %d failed: %s", slot_of(b, session)->at, text);
        b->failed = true;
    }
}

static enum gr_status submit(struct bench *b, struct slot *s, bool trees)
{
    const struct prompt *p = &b->prompt[s->prompt];
    struct gr_session_request q = {
        .prompt = p->ids, .n_prompt = p->n, .max_tokens = b->max_tokens,
        .sampling = {.temperature = (float)b->temperature, .top_p = 1.0f, .seed = 1 + (uint64_t)s->prompt},
        .want_draft = trees, .tree_shape = GR_SHAPE_DYNAMIC, .draft_depth = 8, .draft_top_k = 10, .n_node = b->n_node,
        .auto_tree = b->auto_tree, .draft_ahead = GR_AHEAD_AUTO};
    s->n_token = 0;
    GR_TRY(gr_orch_submit(gr_hub_orch(b->pair.hub), &q, gr_clock_ns(), &s->id));
    b->n_running++;
    return GR_OK;
}

/* The first text of a prompt is its reference. */
static enum gr_status check_text(struct bench *b, const struct row *row, const struct slot *s)
{
    struct prompt *p = &b->prompt[s->prompt];
    if (p->reference == NULL) {
        p->reference = malloc(b->max_tokens * sizeof(int32_t));
        if (p->reference == NULL || s->n_token != b->max_tokens) {
            log_error("prompt %d run alone gave %u tokens, %u were asked for", s->prompt, s->n_token, b->max_tokens);
            return GR_EFORMAT;
        }
        memcpy(p->reference, s->token, b->max_tokens * sizeof(int32_t));
        return GR_OK;
    }
    for (uint32_t i = 0; i < b->max_tokens; i++) {
        if (i >= s->n_token || s->token[i] != p->reference[i]) {
            log_error("session %d of %d, %s: token %u differs from prompt %d run alone and plainly", s->at, row->n,
                      row->trees ? "trees" : "plain", i, s->prompt);
            return GR_EMISMATCH;
        }
    }
    return GR_OK;
}

static enum gr_status run_group(struct bench *b, const struct row *row, int group)
{
    b->first_ns = b->last_ns = 0;
    for (int i = 0; i < row->n; i++) {
        struct slot *s = &b->slot[i];
        s->at = i;
        s->prompt = (group * row->n + i) % b->n_prompt;
        GR_TRY(submit(b, s, row->trees));
    }
    while (b->n_running > 0) {
        GR_TRY(gr_pair_pump(&b->pair));
    }
    for (int i = 0; i < row->n; i++) {
        GR_TRY(check_text(b, row, &b->slot[i]));
        b->totals.tokens += b->slot[i].n_token;
    }
    b->totals.tokens -= 1.0;
    b->totals.seconds += 1e-9 * (double)(b->last_ns - b->first_ns);
    return b->failed ? GR_ECLOSED : GR_OK;
}

static enum gr_status run_row(struct bench *b, struct row *row, int rep)
{
    const int n_group = GR_MAX(1, (b->n_prompt + row->n - 1) / row->n);
    b->totals = (struct totals){0};
    for (int g = 0; g < n_group; g++) {
        GR_TRY(run_group(b, row, g));
    }
    if (rep >= 0) {
        const struct totals *t = &b->totals;
        row->speed[rep] = t->tokens / t->seconds;
        row->accepted += t->accepted;
        row->drafts += t->drafts;
        row->rounds += t->rounds;
        row->tokens += (double)n_group * row->n * (b->max_tokens - 1.0); /* a session's first token is no round's */
    }
    return GR_OK;
}

/* ---- the table ---- */

static void print_rows(struct bench *b, enum gr_table_format format)
{
    static const char *const columns[] = {"sessions", "mode", "tok/s", "x one plain", "mean acceptance length",
                                          "tokens per round"};
    struct gr_table t;
    const double base = gr_mean(b->row[0].speed, b->n_rep);
    gr_table_begin(&t, format, stdout, "sessions",
                   "decode tokens/s of all sessions together, mean +- stddev; every text "
                   "equals the same prompt's run alone and plainly",
                   columns, (int)GR_ARRAY_LEN(columns));
    for (int i = 0; i < b->n_row; i++) {
        const struct row *r = &b->row[i];
        char name[32];
        snprintf(name, sizeof(name), "%s nodes", b->o.nodes);
        gr_table_number(&t, r->n, 0);
        gr_table_text(&t, !r->trees ? "plain" : b->auto_tree ? "auto" : name);
        gr_table_mean(&t, r->speed, b->n_rep, 0);
        gr_table_number(&t, gr_mean(r->speed, b->n_rep) / base, 2);
        gr_table_number(&t, r->drafts > 0 ? 1 + r->accepted / r->drafts : 1, 2);
        gr_table_number(&t, r->rounds > 0 ? r->tokens / r->rounds : 1, 2);
    }
    gr_table_end(&t);
}

/* ---- preparation ---- */

static enum gr_status encode_prompts(struct bench *b)
{
    const char *text[GR_BENCH_PROMPT_MAX];
    struct gr_tokenizer *tok = NULL;
    b->n_prompt = gr_bench_load_prompts(b->o.prompts, text);
    if (b->n_prompt == 0) {
        return GR_EFORMAT;
    }
    enum gr_status st = gr_tokenizer_load(b->o.model, &tok);
    for (int i = 0; i < b->n_prompt && st == GR_OK; i++) {
        struct prompt *p = &b->prompt[i];
        const size_t len = strlen(text[i]);
        const size_t cap = gr_tokenizer_encode_bound(tok, len);
        size_t n = 0;
        p->ids = malloc((cap > 0 ? cap : 1) * sizeof(*p->ids));
        st = p->ids == NULL ? GR_ENOMEM : gr_tokenizer_encode(tok, text[i], len, true, p->ids, cap, &n);
        p->n = (uint32_t)n;
    }
    gr_tokenizer_destroy(tok);
    return st;
}

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

static bool parse_modes(const char *modes, bool *plain, bool *trees)
{
    *plain = strcmp(modes, "plain") == 0 || strcmp(modes, "plain,trees") == 0;
    *trees = strcmp(modes, "trees") == 0 || strcmp(modes, "plain,trees") == 0;
    if (!*plain && !*trees) {
        log_error("--modes: `%s' is not one of plain, trees and plain,trees", modes);
    }
    return *plain || *trees;
}

/* One session plain goes first, whatever was asked for: all else is compared with it. */
static bool parse_rows(struct bench *b)
{
    bool plain = false, trees = false;
    if (!parse_modes(b->o.modes, &plain, &trees)) {
        return false;
    }
    bool fits = add_row(b, 1, false);
    char *list = strdup(b->o.sessions);
    char *save = NULL;
    for (char *p = list != NULL ? strtok_r(list, ",", &save) : NULL; p != NULL && fits;
         p = strtok_r(NULL, ",", &save)) {
        int64_t n = 0;
        fits = gr_parse_int(p, 1, N_AT_ONCE_MAX, &n);
        if (!fits) {
            log_error("--sessions: `%s' is not a whole number from 1 to %d", p, N_AT_ONCE_MAX);
            break;
        }
        fits = (!plain || n == 1 || add_row(b, (int)n, false)) && (!trees || add_row(b, (int)n, true));
    }
    free(list);
    return fits;
}

static bool parse(struct bench *b)
{
    int64_t n_rep = 0, n_token = 0, n_node = GR_NODE_MAX;
    b->auto_tree = strcmp(b->o.nodes, "auto") == 0;
    if (!gr_parse_int(b->o.reps, 1, N_REP_MAX, &n_rep)) {
        log_error("--reps: `%s' is not a whole number from 1 to %d", b->o.reps, N_REP_MAX);
    } else if (!gr_parse_int(b->o.max_tokens, 2, MAX_TOKENS, &n_token)) {
        log_error("--max-tokens: `%s' is not a whole number from 2 to %d", b->o.max_tokens, MAX_TOKENS);
    } else if (!b->auto_tree && !gr_parse_int(b->o.nodes, 1, GR_NODE_MAX, &n_node)) {
        log_error("--nodes: `%s' is not auto or a whole number from 1 to %d", b->o.nodes, GR_NODE_MAX);
    } else if (!gr_parse_number(b->o.temperature, 0.0, 100.0, &b->temperature)) {
        log_error("--temperature: `%s' is not a number from 0 to 100", b->o.temperature);
    } else {
        b->n_rep = (int)n_rep;
        b->max_tokens = (uint32_t)n_token;
        b->n_node = (uint32_t)n_node;
        return parse_rows(b);
    }
    return false;
}

static enum gr_status take_memory(struct bench *b)
{
    for (int i = 0; i < b->n_at_once; i++) {
        b->slot[i].token = malloc(b->max_tokens * sizeof(int32_t));
        if (b->slot[i].token == NULL) {
            log_error("out of memory for %u tokens", b->max_tokens);
            return GR_ENOMEM;
        }
    }
    return GR_OK;
}

static enum gr_status start(struct bench *b)
{
    uint32_t n_prompt_max = 0;
    char target[PATH_MAX], draft[PATH_MAX];
    for (int i = 0; i < b->n_prompt; i++) {
        n_prompt_max = GR_MAX(n_prompt_max, b->prompt[i].n);
    }
    snprintf(target, sizeof(target), "%s", gr_program_sibling("graft-target"));
    snprintf(draft, sizeof(draft), "%s", gr_program_sibling("graft-draft"));
    return gr_pair_start(&b->pair, &(struct gr_pair_config){
        .target = b->o.model, .draft = b->o.draft, .target_program = target, .draft_program = draft,
        .transport = b->o.transport, .n_session = b->n_at_once,
        .n_ctx_max = (int)(n_prompt_max + b->max_tokens + GR_TREE_MAX),
        .io = {.ctx = b, .on_tokens = on_tokens, .on_done = on_done}});
}

static enum gr_status run(struct bench *b)
{
    GR_TRY(encode_prompts(b));
    GR_TRY(take_memory(b));
    GR_TRY(start(b));
    for (int rep = -1; rep < b->n_rep; rep++) {
        for (int i = 0; i < b->n_row; i++) {
            GR_TRY(run_row(b, &b->row[i], rep));
        }
    }
    return GR_OK;
}

static void finish(struct bench *b)
{
    gr_pair_stop(&b->pair);
    for (int i = 0; i < b->n_prompt; i++) {
        free(b->prompt[i].ids);
        free(b->prompt[i].reference);
    }
    for (int i = 0; i < b->n_at_once; i++) {
        free(b->slot[i].token);
    }
}

int gr_bench_sessions(int argc, char **argv)
{
    static struct bench b = {.o = {.model = "models/demo/target", .draft = "models/demo/draft", .sessions = "1,16",
                                   .modes = "plain,trees", .nodes = "auto", .max_tokens = "128", .reps = "3",
                                   .temperature = "0", .transport = ""}};
    struct options *o = &b.o;
    const struct gr_bench_option options[] = {
        {"model", &o->model, "target folder (default models/demo/target)"},
        {"draft", &o->draft, "draft folder (default models/demo/draft)"},
        {"sessions", &o->sessions, "how many at once, comma between (default 1,16)"},
        {"modes", &o->modes, "plain | trees | plain,trees (default both)"},
        {"nodes", &o->nodes, "of the trees: auto | N (default auto)"},
        {"max-tokens", &o->max_tokens, "tokens a session (default 128)"},
        {"reps", &o->reps, "repetitions after the warm-up (default 3)"},
        {"temperature", &o->temperature, "default 0"},
        {"transport", &o->transport, "shm | tcp (default: the first that works)"},
        {"prompts", &o->prompts, "JSON array of prompt texts, used in turn (default: four short ones)"},
    };
    enum gr_table_format format;
    const int status = gr_bench_options("sessions", argc, argv, &format, options, (int)GR_ARRAY_LEN(options));
    if (status >= 0) {
        return status;
    }
    if (!parse(&b)) {
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    const enum gr_status st = sodium_init() < 0 ? GR_EIO : run(&b);
    finish(&b);
    if (st == GR_OK) {
        print_rows(&b, format);
    }
    return st == GR_OK ? 0 : 1;
}
