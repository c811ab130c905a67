/* The end of a generation: exit status, summary, JSON. */
#include "common/base/log.h"
#include "common/base/out_guard.h"
#include "common/process/program.h"
#include "orchestrator/cli/generate_internal.h"
#include "orchestrator/cli/report.h"

#include <inttypes.h>
#include <signal.h>
#include <unistd.h>

static int report_lossless(struct gr_generation *g)
{
    g->compared = true;
    if (g->first_difference < 0 && g->n_plain != g->turn.n_token) {
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
    if (generation_has_open_line(g) && !g->silent && is_last) {
        fputc('\n', isatty(STDOUT_FILENO) ? stdout : stderr);
        fflush(stdout);
    }
    generation_show_held(g);
    if (g->n_answer > 1) {
        return; /* one line tells of all of them (answers.c) */
    }
    char end[GR_MSG_TEXT_MAX + 128] = "";
    if (gr_generation_is_cut(g) && !g->silent) {
        snprintf(end, sizeof(end), "cut after --max-tokens %" PRId64, g->o->max_tokens);
    }
    if (g->undrafted[0] != '\0') {
        const size_t n = strlen(end);
        snprintf(end + n, sizeof(end) - n, "%sthe drafter that is there was not used: %s", n > 0 ? "; " : "",
                 g->undrafted);
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
    g->turn.n_token = g->turn.n_final;
    g->metrics.completion_tokens = g->turn.n_token;
    if (g->turn.stream.text != NULL && g->phase == GR_PHASE_TEXT && gr_text_stream_end(&g->turn.stream) == GR_OK) {
        (void)generation_show_text(g);
    }
    if (g->trace_file != NULL && g->turn.n_token > 0) {
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
        generation_show_held(g);
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
    generation_clear_progress(g);
    const int status = conclude(g);
    if (!g->o->json) {
        return status;
    }
    const bool ended = g->finish != GR_FINISH_NONE && (!g->failed || g->finish == GR_FINISH_CLOSED);
    const bool shown = g->turn.stream.text != NULL && !gr_generation_lacks_rdma(g);
    const struct gr_turn_report r = {.tok = g->tok,
                                     .token = g->turn.token,
                                     .n_token = shown ? g->turn.n_final : 0,
                                     .text = shown ? g->turn.stream.text : "",
                                     .text_len = shown ? g->turn.stream.len : 0,
                                     .logprobs = &g->turn.logprobs,
                                     .finish = ended ? g->finish : GR_FINISH_ERROR,
                                     .at_context = generation_at_context(g),
                                     .session = g->session,
                                     .has_seed = !g->append,
                                     .seed = g->plan.wishes.sampling.seed,
                                     .has_choice = g->n_answer > 1 || g->o->choice > 0,
                                     .choice = g->plan.wishes.sampling.choice,
                                     .compared = g->compared,
                                     .first_difference = g->first_difference,
                                     .metrics = &g->metrics,
                                     .undrafted = g->undrafted,
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
