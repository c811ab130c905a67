#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/out_guard.h"
#include "model/tokenizer/tokenizer_of_model.h"
#include "orchestrator/cli/generate_internal.h"
#include "orchestrator/cli/report.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* ---- beginning a turn ---- */

/* plain: once more, token by token, to compare with. */
static enum gr_status submit(struct gr_generation *g, bool plain)
{
    struct gr_session_request q = {.prompt = g->prompt,
                                   .n_prompt = g->n_prompt,
                                   .model = g->o->served_model_name,
                                   .tokenizer_fingerprint = gr_tokenizer_fingerprint_or_0(g->tok)};
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
        generation_show_heading(g, "");
    }
    if ((g->append ? append(g) : submit(g, plain)) != GR_OK) {
        g->failed = true;
    }
}

/* ---- ending one early ---- */

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
        stop(g, g->turn.n_final);
    } else {
        g->interrupted = signal_number;
    }
}

/* ---- what comes back ---- */

static void keep_tokens(struct gr_generation *g, const struct gr_msg_commit *m)
{
    bool stopped = false;
    const enum gr_status st = gr_turn_text_take(&g->turn, m, &g->plan.wishes.turn.stop_ids, &stopped);
    if (st == GR_EPROTO) {
        gr_generation_fail(g, "the tokens that came do not continue the text");
    } else if (st != GR_OK) {
        g->failed = true;
    }
    const bool written = generation_show_text(g);
    if (stopped || !written || g->failed) {
        stop(g, g->turn.n_final);
    }
    if (!isatty(STDOUT_FILENO)) {
        gr_generation_progress(g, "generating: %" PRIu64 " of at most %" PRIu64 " tokens", g->turn.n_final,
                               (uint64_t)g->o->max_tokens);
    }
}

static void compare_tokens(struct gr_generation *g, const struct gr_msg_commit *m)
{
    g->last_gap = m->gap;
    for (uint32_t i = 0; i < m->ids.n; i++) {
        const bool differs = g->n_plain >= g->turn.n_token || g->turn.token[g->n_plain] != m->ids.p[i];
        if (g->first_difference < 0 && differs) {
            g->first_difference = g->n_plain;
            g->gap = g->last_gap;
        }
        g->n_plain++;
    }
    if (g->n_plain >= g->turn.n_token) {
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
        gr_report_tree(generation_trace_to(g), g->tok, &m->commit);
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
    } else if (m->type == GR_MSG_QUEUED) {
        gr_generation_progress(g, "waiting for a slot: place %" PRIu64 " of %" PRIu64, m->queued.place,
                               (uint64_t)m->queued.n_waiting);
    } else if (g->phase == GR_PHASE_TEXT) {
        gr_metrics_take(&g->metrics, m, now_ns);
    }
}

bool generation_at_context(const struct gr_generation *g)
{
    return g->finish == GR_FINISH_LENGTH && g->turn.n_token < (uint32_t)g->o->max_tokens;
}

bool gr_generation_is_cut(const struct gr_generation *g)
{
    return g->finish == GR_FINISH_LENGTH && !generation_at_context(g);
}

/* The answer is over, and those that wait for it are shown as far as they are there. */
static void show_next(struct gr_generation *g)
{
    while (g->next != NULL && g->phase == GR_PHASE_OVER && !g->waits && g->next->waits) {
        const char *before = g->turn.stream.len == 0 ? "" : generation_has_open_line(g) ? "\n\n" : "\n";
        g = g->next;
        g->waits = false;
        generation_show_heading(g, before);
        (void)generation_show_text(g);
    }
}

void gr_generation_show(struct gr_generation *g)
{
    g->waits = false;
    generation_show_heading(g, "");
    (void)generation_show_text(g);
    show_next(g);
}

static void tell_of_end(struct gr_generation *g)
{
    if (generation_at_context(g) && g->talks) {
        log_warn("the context is full: /reset begins a new conversation");
    } else if (generation_at_context(g)) {
        generation_clear_progress(g);
        log_warn("the context is full after %u of the %" PRId64 " tokens that --max-tokens asks for", g->turn.n_token,
                 g->o->max_tokens);
    } else if (g->finish == GR_FINISH_CLOSED) {
        gr_generation_fail(g, "another client has closed the session during this turn");
    }
}

void gr_generation_end(struct gr_generation *g, enum gr_finish finish, const char *text, uint32_t n_fallback,
                       uint32_t n_reopen)
{
    finish = gr_finish_is_bad(finish) ? GR_FINISH_ERROR : finish; /* the text says which limit it was */
    if (finish == GR_FINISH_ERROR && g->stop_sent && g->interrupted == 0) {
        finish = GR_FINISH_STOP; /* what went wrong came after the stop string, while word of it was on its way */
    } else if (finish == GR_FINISH_ERROR && g->interrupted == 0) {
        gr_generation_fail(g, text);
    }
    const bool first = g->phase == GR_PHASE_TEXT;
    if (first) {
        gr_metrics_cut(&g->metrics, g->turn.turn_len + g->turn.n_final);
        if (gr_turn_text_end(&g->turn) != GR_OK) {
            g->failed = true;
        }
        g->finish = finish;
        tell_of_end(g);
        g->metrics.completion_tokens = g->turn.n_token;
        g->metrics.fallbacks += n_fallback;
        g->metrics.reopens += n_reopen;
        (void)generation_show_text(g);
    }
    g->again = first && g->o->verify_lossless && !g->failed && g->interrupted == 0;
    g->phase = g->again ? GR_PHASE_START : GR_PHASE_OVER;
    show_next(g);
}
