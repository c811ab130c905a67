#include "orchestrator/cli/generate.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/out_guard.h"
#include "common/process/program.h"
#include "model/tokenizer/tokenizer_of_model.h"
#include "model/files/model_path.h"
#include "orchestrator/cli/adjust_resolve.h"
#include "orchestrator/cli/prompt.h"
#include "orchestrator/cli/report.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRAWN_SEED_MAX ((1ull << 53) - 1) /* the largest integer that a JSON number holds exactly */

/* ---- the progress line ---- */

void gr_generation_progress(struct gr_generation *g, const char *fmt, uint64_t a, uint64_t b)
{
    if (isatty(STDERR_FILENO) && !g->o->trace) {
        fputs("\r\033[K", stderr);
        fprintf(stderr, fmt, a, b);
        fflush(stderr);
        g->progress_shown = true;
    }
}

static void clear_progress(struct gr_generation *g)
{
    if (g->progress_shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        g->progress_shown = false;
    }
}

void gr_generation_fail(struct gr_generation *g, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        clear_progress(g);
        log_error("%s", text);
    }
    g->failed = true;
}

/* ---- preparation ---- */

/* A drawn one is told, so that the text can be had again: it is one that --seed takes, and that a JSON number holds. */
static void draw_seed(struct gr_generation *g)
{
    uint64_t *seed = &g->plan.wishes.sampling.seed;
    randombytes_buf(seed, sizeof(*seed));
    *seed &= DRAWN_SEED_MAX;
    if (g->o->seed >= 0) {
        *seed = (uint64_t)g->o->seed;
    }
}

/* Ids that both the model and its tokenizer have. */
static int32_t n_vocab_of(const struct gr_generation *g)
{
    return GR_MIN(g->hf.n_vocab, gr_tokenizer_n_vocab_or_all(g->tok));
}

void gr_generation_init(struct gr_generation *g, const struct gr_options *o)
{
    *g = (struct gr_generation){.o = o, .n_answer = 1, .first_difference = -1};
}

static enum gr_status read_model(struct gr_generation *g, const struct gr_options *o)
{
    struct gr_model_meta meta;
    GR_TRY(gr_model_meta_open(o->model, &meta));
    const struct gr_gguf *gguf = gr_model_meta_gguf(&meta);
    g->hf = meta.hf;
    enum gr_status st = gr_plan_check_target(o, &g->hf);
    if (st == GR_OK) {
        st = gr_tokenizer_of_files(o->model, gguf, &g->tok);
    }
    if (st == GR_OK && o->chat) {
        st = gr_chat_setup_open(o, gguf, g->tok, &g->chat);
    }
    gr_model_meta_close(&meta);
    return st;
}

enum gr_status gr_generation_prepare_model(struct gr_generation *g, const struct gr_options *o,
                                           const struct gr_plan *plan)
{
    g->o = o;
    g->plan = *plan;
    GR_TRY(read_model(g, o));
    GR_TRY(gr_plan_check_tokenizers(o, plan, g->tok));
    const int32_t n_vocab = n_vocab_of(g);
    GR_TRY(gr_adjust_resolve(o, g->tok, n_vocab, &g->plan.wishes.adjust));
    GR_TRY(gr_stops_resolve(o, &g->hf, g->tok, g->hf.n_vocab, &g->plan.wishes.turn.stop_ids));
    if (o->chat && g->tok != NULL && !o->ignore_eos) {
        GR_TRY(gr_stops_add_chat(&g->chat.chat, g->tok, &g->plan.wishes.turn.stop_ids));
    }
    g->plan.wishes.turn.n_logprob = (uint32_t)GR_MIN(1 + o->logprobs, 1 + (int64_t)n_vocab);
    draw_seed(g);
    return GR_OK;
}

/* Room for what comes. */
static enum gr_status prepare_answer(struct gr_generation *g)
{
    GR_TRY(gr_text_stream_init(&g->text, g->tok, g->o->stop.word, g->o->stop.n));
    g->text.min_tokens = (uint32_t)g->o->min_tokens;
    g->cap_token = (uint32_t)g->o->max_tokens + GR_TREE_MAX;
    g->token = malloc(g->cap_token * sizeof(*g->token));
    if (g->token == NULL) {
        log_error("out of memory for %" PRId64 " tokens", g->o->max_tokens);
        return GR_ENOMEM;
    }
    return gr_logprobs_init(&g->logprobs, g->plan.wishes.turn.n_logprob, g->cap_token);
}

enum gr_status gr_generation_prepare_turn(struct gr_generation *g, const struct gr_generation *model,
                                          const int32_t *prompt, uint32_t n)
{
    gr_generation_init(g, model->o);
    g->plan = model->plan;
    g->hf = model->hf;
    g->tok = model->tok;
    g->borrows = true;
    g->n_prompt = n;
    g->prompt = malloc(n * sizeof(*prompt));
    if (g->prompt == NULL) {
        log_error("out of memory for %u tokens", n);
        return GR_ENOMEM;
    }
    memcpy(g->prompt, prompt, n * sizeof(*prompt));
    return prepare_answer(g);
}

enum gr_status gr_generation_prepare(struct gr_generation *g, const struct gr_options *o, const struct gr_plan *plan)
{
    if (o->logprobs >= 0 && !o->json) {
        char what[4400];
        log_error("%s: log-probabilities are shown in JSON alone: give --json, too",
                  gr_option_shown(o, GR_OPTION_logprobs, what, sizeof(what)));
        return GR_EINVAL;
    }
    GR_TRY(gr_generation_prepare_model(g, o, plan));
    const struct gr_chat *chat = o->chat ? &g->chat.chat : NULL;
    GR_TRY(gr_prompt_read(o, g->tok, chat, n_vocab_of(g), &g->prompt, &g->n_prompt));
    GR_TRY(prepare_answer(g));
    return o->trace_file != NULL ? gr_trace_file_create(o->trace_file, &g->trace_file) : GR_OK;
}

void gr_generation_finish(struct gr_generation *g)
{
    gr_text_stream_finish(&g->text);
    if (!g->borrows) {
        gr_chat_setup_close(&g->chat);
        gr_tokenizer_destroy(g->tok);
    }
    gr_trace_file_destroy(g->trace_file);
    free(g->prompt);
    free(g->token);
    gr_logprobs_finish(&g->logprobs);
}

/* ---- text and trees ---- */

/* Text and trees on terminals would tear each other's lines: trees wait for a line of text to end. */
static FILE *trace_to(struct gr_generation *g)
{
    if (g->held.f == NULL && !g->o->json && !g->silent && isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) {
        g->held.f = open_memstream(&g->held.text, &g->held.len);
    }
    return g->held.f != NULL ? g->held.f : stderr;
}

/* The text's line is over. */
static void show_held(struct gr_generation *g)
{
    if (g->held.f == NULL) {
        return;
    }
    if (fclose(g->held.f) == 0) {
        fwrite(g->held.text, 1, g->held.len, stderr);
    }
    free(g->held.text);
    g->held.f = NULL;
    g->held.text = NULL;
    g->held.len = 0;
}

/* False: it cannot be written; where nobody reads it any more that is no error to tell, and what a signal has cut is
 * ended by who reads signals. */
static bool write_out(struct gr_generation *g, const char *text, size_t len)
{
    if (len == 0 || (fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0)) {
        return true;
    }
    if (gr_out_cut_by() != 0) {
        return false;
    }
    g->pipe_closed = errno == EPIPE;
    gr_generation_fail(g, g->pipe_closed ? "" : "cannot write to standard output");
    return false;
}

/* Trees go where a line of the text ends, if one does. */
static bool write_around_trees(struct gr_generation *g, const char *text, size_t len)
{
    const char *line_end = memrchr(text, '\n', len);
    const size_t n = line_end != NULL ? (size_t)(line_end - text) + 1 : 0;
    if (!write_out(g, text, n)) {
        return false;
    }
    if (n > 0) {
        show_held(g);
    }
    return write_out(g, text + n, len - n);
}

static void stop(struct gr_generation *g, uint32_t n_keep)
{
    if (!g->stop_sent) {
        g->stop_sent = true;
        g->engine.stop(g->engine.ctx, n_keep);
    }
}

void gr_generation_signal(struct gr_generation *g, int signal_number)
{
    if (g->may_cut && signal_number == SIGINT && g->phase == GR_PHASE_TEXT && !g->stop_sent) {
        g->cut = true;
        gr_out_calm(); /* the command goes on */
        stop(g, g->n_final);
    } else {
        g->interrupted = signal_number;
    }
}

bool gr_generation_lacks_rdma(const struct gr_generation *g)
{
    return g->plan.require_rdma && g->plan.wishes.want_draft && strcmp(g->metrics.transport, "verbs") != 0;
}

/* False: it cannot be written. */
static bool show_text(struct gr_generation *g)
{
    size_t len = 0;
    if (gr_generation_lacks_rdma(g) || g->waits) {
        return true;
    }
    const char *text = gr_text_stream_take(&g->text, &len);
    if (g->o->json || g->silent || len == 0) {
        return true;
    }
    if (isatty(STDOUT_FILENO)) {
        clear_progress(g);
    }
    return write_around_trees(g, text, len);
}

static bool has_open_line(const struct gr_generation *g)
{
    return g->text.len > 0 && g->text.text[g->text.len - 1] != '\n';
}

/* Several answers are told apart by a line above each. */
static void show_heading(struct gr_generation *g, const char *before)
{
    char line[64];
    const int n =
        snprintf(line, sizeof(line), "%s==> answer %u <==\n", before, (unsigned)g->plan.wishes.sampling.choice);
    if (g->n_answer > 1 && !g->o->json && !g->silent) {
        (void)write_out(g, line, (size_t)n);
    }
}

/* ---- beginning a turn ---- */

/* plain: once more, token by token, to compare with. */
static enum gr_status submit(struct gr_generation *g, bool plain)
{
    struct gr_session_request q = {
        .prompt = g->prompt, .n_prompt = g->n_prompt, .tokenizer_fingerprint = gr_tokenizer_fingerprint_or_0(g->tok)};
    gr_wishes_copy(&q.wishes, &g->plan.wishes);
    if (plain) {
        q.wishes.want_draft = q.wishes.keep_open = false;
        q.wishes.specpv = GR_SPECPV_OFF;
        q.wishes.turn.want_trace = true;
        q.wishes.turn.n_logprob = 0;
    }
    return g->engine.submit(g->engine.ctx, &q);
}

static enum gr_status append(struct gr_generation *g)
{
    struct gr_turn_request t = {.keep_len = g->keep_len > 0 ? g->keep_len : UINT32_MAX,
                                .hash = g->keep_hash,
                                .ids = g->prompt,
                                .n_ids = g->n_prompt};
    gr_turn_wishes_copy(&t.wishes, &g->plan.wishes.turn);
    return g->engine.append(g->engine.ctx, &t);
}

void gr_generation_begin(struct gr_generation *g)
{
    const bool plain = g->again;
    g->phase = plain ? GR_PHASE_PLAIN : GR_PHASE_TEXT;
    g->stop_sent = false;
    if (!plain) {
        g->metrics.open_ns = gr_clock_ns();
        g->metrics.prompt_tokens = g->n_prompt;
    }
    if (!plain && !g->waits) {
        show_heading(g, "");
    }
    if ((g->append ? append(g) : submit(g, plain)) != GR_OK) {
        g->failed = true;
    }
}

/* ---- what comes back ---- */

/* False: the COMMIT does not continue what came before. */
static bool keep_ids(struct gr_generation *g, const struct gr_msg_commit *m)
{
    if (g->n_commit++ == 0) {
        g->turn_len = m->keep_len;
    }
    const uint64_t n_keep = (uint64_t)m->keep_len - g->turn_len;
    if (m->keep_len < g->turn_len || n_keep < g->n_final || n_keep > g->n_token ||
        m->final_len < g->turn_len + g->n_final || m->final_len > (uint64_t)m->keep_len + m->ids.n ||
        m->ids.n > g->cap_token - n_keep) {
        return false;
    }
    memcpy(g->token + n_keep, m->ids.p, m->ids.n * sizeof(*g->token));
    g->n_token = (uint32_t)n_keep + m->ids.n;
    return true;
}

/* Text is made of final tokens alone, and stop strings are looked for there: nothing that is shown is taken back, and a
 * stop string in provisional tokens is found when they are judged. */
static void keep_tokens(struct gr_generation *g, const struct gr_msg_commit *m)
{
    bool stopped = false;
    if (!keep_ids(g, m) || !gr_logprobs_take(&g->logprobs, m, g->turn_len)) {
        gr_generation_fail(g, "the tokens that came do not continue the text");
    }
    while (!g->failed && !stopped && g->n_final < g->n_token && g->turn_len + g->n_final < m->final_len) {
        const int32_t id = g->token[g->n_final++];
        if (gr_stop_hits(&g->plan.wishes.turn.stop_ids, id)) {
            break; /* the text ends before it, and the target has ended the turn */
        }
        if (gr_text_stream_push(&g->text, id, &stopped) != GR_OK) {
            g->failed = true;
        }
    }
    const bool written = show_text(g);
    if (stopped || !written || g->failed) {
        stop(g, g->n_final);
    }
    if (!isatty(STDOUT_FILENO)) {
        gr_generation_progress(g, "generating: %" PRIu64 " of at most %" PRIu64 " tokens", g->n_final,
                               (uint64_t)g->o->max_tokens);
    }
}

static void compare_tokens(struct gr_generation *g, const struct gr_msg_commit *m)
{
    g->last_gap = m->gap;
    for (uint32_t i = 0; i < m->ids.n; i++) {
        const bool differs = g->n_plain >= g->n_token || g->token[g->n_plain] != m->ids.p[i];
        if (g->first_difference < 0 && differs) {
            g->first_difference = g->n_plain;
            g->gap = g->last_gap;
        }
        g->n_plain++;
    }
    if (g->n_plain >= g->n_token) {
        stop(g, g->n_plain);
    }
}

static void take_commit(struct gr_generation *g, const struct gr_msg *m, uint64_t now_ns)
{
    if (g->stop_sent) {
        return; /* it was on its way when the turn was stopped */
    }
    if (g->phase == GR_PHASE_PLAIN) {
        compare_tokens(g, &m->commit);
        return;
    }
    gr_metrics_take(&g->metrics, m, now_ns);
    if (g->o->trace && m->commit.round > 0) {
        gr_report_tree(trace_to(g), g->tok, &m->commit);
    }
    keep_tokens(g, &m->commit);
    if (g->trace_file != NULL) {
        gr_trace_file_round(g->trace_file, m, now_ns, gr_clock_ns());
    }
}

void gr_generation_take(struct gr_generation *g, const struct gr_msg *m)
{
    const uint64_t now_ns = gr_clock_ns();
    if (m->type == GR_MSG_COMMIT) {
        take_commit(g, m, now_ns);
    } else if (m->type == GR_MSG_PROGRESS) {
        gr_generation_progress(g, "prefill: %" PRIu64 " of %" PRIu64 " tokens", m->progress.usable_len,
                               (uint64_t)g->keep_len + g->n_prompt);
    } else if (g->phase == GR_PHASE_TEXT) {
        gr_metrics_take(&g->metrics, m, now_ns);
    }
}

static bool at_context(const struct gr_generation *g)
{
    return g->finish == GR_FINISH_LENGTH && g->n_token < (uint32_t)g->o->max_tokens;
}

bool gr_generation_is_cut(const struct gr_generation *g)
{
    return g->finish == GR_FINISH_LENGTH && !at_context(g);
}

/* The answer is over, and those that wait for it are shown as far as they are there. */
static void show_next(struct gr_generation *g)
{
    while (g->next != NULL && g->phase == GR_PHASE_OVER && !g->waits && g->next->waits) {
        const char *before = g->text.len == 0 ? "" : has_open_line(g) ? "\n\n" : "\n";
        g = g->next;
        g->waits = false;
        show_heading(g, before);
        (void)show_text(g);
    }
}

static void tell_of_end(struct gr_generation *g)
{
    if (at_context(g) && g->talks) {
        log_warn("the context is full: /reset begins a new conversation");
    } else if (at_context(g)) {
        clear_progress(g);
        log_warn("the context is full after %u of the %" PRId64 " tokens that --max-tokens asks for", g->n_token,
                 g->o->max_tokens);
    } else if (g->finish == GR_FINISH_CLOSED) {
        gr_generation_fail(g, "another client has closed the session during this turn");
    }
}

void gr_generation_end(struct gr_generation *g, enum gr_finish finish, const char *text, uint32_t n_fallback,
                       uint32_t n_reopen)
{
    if (finish == GR_FINISH_ERROR && g->stop_sent && g->interrupted == 0) {
        finish = GR_FINISH_STOP; /* what went wrong came after the stop string, while word of it was on its way */
    } else if (finish == GR_FINISH_ERROR && g->interrupted == 0) {
        gr_generation_fail(g, text);
    }
    const bool first = g->phase == GR_PHASE_TEXT;
    if (first) {
        gr_metrics_cut(&g->metrics, g->turn_len + g->n_final);
        g->n_token = g->n_final; /* what was not judged in time is no text */
        g->finish = finish;
        tell_of_end(g);
        g->metrics.completion_tokens = g->n_token;
        g->metrics.fallbacks += n_fallback;
        g->metrics.reopens += n_reopen;
        if (gr_text_stream_end(&g->text) != GR_OK) {
            g->failed = true;
        }
        (void)show_text(g);
    }
    g->again = first && g->o->verify_lossless && !g->failed && g->interrupted == 0;
    g->phase = g->again ? GR_PHASE_START : GR_PHASE_OVER;
    show_next(g);
}

/* ---- the end ---- */

static int report_lossless(struct gr_generation *g)
{
    g->compared = true;
    if (g->first_difference < 0 && g->n_plain != g->n_token) {
        g->first_difference = g->n_plain;
    }
    if (g->first_difference >= 0) {
        log_error("--verify-lossless: plain decoding differs at generated token %" PRId64 ", where its pick was %.3g "
                  "ahead of the next best",
                  g->first_difference, g->gap);
        return 1;
    }
    fprintf(stderr, "verify-lossless: %u tokens equal plain decoding's\n", g->n_plain);
    return 0;
}

static void print_summary(struct gr_generation *g)
{
    const bool is_last = !g->waits && (g->next == NULL || g->next->waits); /* that is shown */
    if (has_open_line(g) && !g->silent && is_last) {
        fputc('\n', isatty(STDOUT_FILENO) ? stdout : stderr);
        fflush(stdout);
    }
    show_held(g);
    if (g->n_answer > 1) {
        return; /* one line tells of all of them (answers.c) */
    }
    char end[64] = "";
    if (gr_generation_is_cut(g) && !g->silent) {
        snprintf(end, sizeof(end), "cut after --max-tokens %" PRId64, g->o->max_tokens);
    }
    gr_report_summary(stderr, &g->metrics, end);
    gr_generation_tell_seed(g);
}

void gr_generation_tell_seed(const struct gr_generation *g)
{
    if (!g->append && g->o->seed < 0 && !gr_temperature_is_greedy((float)g->o->temperature)) {
        fprintf(stderr, "seed %" PRIu64 " was drawn; --seed takes it\n", g->plan.wishes.sampling.seed);
    }
}

/* What there is so far: text, statistics and trace. */
static int conclude_interrupted(struct gr_generation *g)
{
    g->n_token = g->n_final;
    g->metrics.completion_tokens = g->n_token;
    if (g->text.text != NULL && g->phase == GR_PHASE_TEXT && gr_text_stream_end(&g->text) == GR_OK) {
        (void)show_text(g);
    }
    if (g->trace_file != NULL && g->n_token > 0) {
        enum gr_status st = gr_trace_file_write(g->trace_file);
        (void)st; /* logged */
    }
    if (!g->o->json) {
        print_summary(g);
    }
    if (!g->borrows) { /* of several answers the first tells it for all */
        log_error("interrupted");
    }
    return GR_EXIT_SIGNAL + g->interrupted;
}

/* The exit status; what is wrong has been logged. */
static int conclude(struct gr_generation *g)
{
    if (g->interrupted != 0) {
        return conclude_interrupted(g);
    }
    if (g->failed) {
        show_held(g);
        return g->pipe_closed ? GR_EXIT_SIGNAL + SIGPIPE : g->bad_value ? GR_EXIT_USAGE : 1;
    }
    if (gr_generation_lacks_rdma(g)) {
        log_error("--require-rdma: the turn was over before target and drafter were connected by RDMA");
        return 1;
    }
    if (g->trace_file != NULL && gr_trace_file_write(g->trace_file) != GR_OK) {
        return gr_out_cut_by() != 0 ? GR_EXIT_SIGNAL + gr_out_cut_by() : 1;
    }
    if (!g->o->json) {
        print_summary(g);
    }
    return g->o->verify_lossless ? report_lossless(g) : 0;
}

int gr_generation_report(struct gr_generation *g)
{
    clear_progress(g);
    const int status = conclude(g);
    if (!g->o->json) {
        return status;
    }
    const bool ended = g->finish != GR_FINISH_NONE && (!g->failed || g->finish == GR_FINISH_CLOSED);
    const bool shown = g->text.text != NULL && !gr_generation_lacks_rdma(g);
    const struct gr_turn_report r = {.tok = g->tok,
                                     .token = g->token,
                                     .n_token = shown ? g->n_final : 0,
                                     .text = shown ? g->text.text : "",
                                     .text_len = shown ? g->text.len : 0,
                                     .logprobs = &g->logprobs,
                                     .finish = ended ? g->finish : GR_FINISH_ERROR,
                                     .at_context = at_context(g),
                                     .session = g->session,
                                     .has_seed = !g->append,
                                     .seed = g->plan.wishes.sampling.seed,
                                     .has_choice = g->n_answer > 1 || g->o->choice > 0,
                                     .choice = g->plan.wishes.sampling.choice,
                                     .compared = g->compared,
                                     .first_difference = g->first_difference,
                                     .metrics = &g->metrics,
                                     .error = status == 0         ? NULL
                                              : g->why[0] != '\0' ? g->why
                                                                  : gr_report_error()};
    const enum gr_status st = gr_report_json(stdout, &r);
    return st == GR_OK          ? status
           : st == GR_ECANCELED ? GR_EXIT_SIGNAL + gr_out_cut_by()
           : st == GR_ECLOSED   ? GR_EXIT_SIGNAL + SIGPIPE
                                : 1;
}

int gr_generation_refuse(struct gr_generation *g, enum gr_status st)
{
    g->failed = true;
    (void)gr_generation_report(g);
    gr_generation_finish(g);
    return gr_program_refused(st);
}
