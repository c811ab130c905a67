/* `graft chat`: a conversation at a terminal, over a session that is kept from turn to turn: with workers of its own
 * (local.h) or at a running orchestrator (connect.h). */
#include "common/base/log.h"
#include "common/base/out_guard.h"
#include "common/process/program.h"
#include "model/tokenizer/tokenizer_of_model.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/connect.h"
#include "orchestrator/cli/lines.h"
#include "orchestrator/cli/local.h"
#include "orchestrator/cli/talk.h"
#include "orchestrator/cli/yaml_config.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

struct chat {
    struct gr_options o;
    struct gr_plan plan;
    struct gr_generation model; /* what the turns share; always over */
    struct gr_talk talk;
    struct gr_lines *lines;
    struct gr_local local;
    struct gr_connect *connect; /* NULL: workers of its own */
    bool at_terminal, ended;
    int status;
    struct gr_session_metrics last; /* of the last answer; its completion_tokens are 0 while there was none */
};

/* ---- the session ---- */

static enum gr_status begin_session(struct chat *c)
{
    return c->o.connect != NULL ? gr_connect_begin(&c->o, &c->model, &c->connect)
                                : gr_local_start(&c->local, &c->o, &c->plan, &c->model);
}

static void end_session(struct chat *c)
{
    if (c->connect != NULL) {
        gr_connect_end(c->connect);
    } else if (c->o.connect == NULL) {
        gr_local_stop(&c->local);
    }
}

static void forget_session(struct chat *c)
{
    gr_talk_lost_session(&c->talk);
    if (c->connect != NULL) {
        gr_connect_forget(c->connect);
    } else {
        gr_local_forget(&c->local);
    }
}

static bool is_gone(const struct chat *c)
{
    return c->model.failed || (c->connect != NULL ? gr_connect_is_gone(c->connect) : c->local.gone);
}

static void end(struct chat *c, int status)
{
    c->ended = true;
    c->status = status;
}

/* Workers and signals are heard while nothing is typed. */
static bool wait_for_input(void *ctx)
{
    struct chat *c = ctx;
    if (c->connect != NULL) {
        gr_connect_wait(c->connect, STDIN_FILENO);
    } else {
        gr_local_wait(&c->local, STDIN_FILENO);
    }
    return !c->model.failed && c->model.interrupted == 0;
}

/* ---- a turn ---- */

static int32_t context(const struct chat *c)
{
    const int64_t asked = c->o.max_model_len;
    return asked > 0 && asked < c->model.hf.max_pos ? (int32_t)asked : c->model.hf.max_pos;
}

/* What the session lacks of the conversation, and the answer; g is to be finished in any case. */
static void run_turn(struct chat *c, struct gr_generation *g)
{
    const struct gr_talk_turn t = gr_talk_next(&c->talk);
    if (t.n_keep == 0) {
        forget_session(c);
    }
    if (gr_generation_prepare_turn(g, &c->model, t.ids, (uint32_t)t.n_ids) != GR_OK) {
        g->failed = true;
        return;
    }
    g->talks = true;
    g->append = t.n_keep > 0;
    g->keep_len = (uint32_t)t.n_keep;
    g->keep_hash = t.hash;
    g->may_cut = c->at_terminal;
    if (c->connect != NULL) {
        gr_connect_turn(c->connect, g);
    } else {
        gr_local_turn(&c->local, g);
    }
}

/* A server closes sessions that were idle for long. */
static void run_turn_again(struct chat *c, struct gr_generation *g)
{
    gr_generation_finish(g);
    log_warn("the conversation goes on in a new session");
    gr_talk_lost_session(&c->talk);
    run_turn(c, g);
}

static void end_answer(const struct gr_generation *g)
{
    if (g->cut || g->turn.stream.len == 0 ||
        g->turn.stream.text[g->turn.stream.len - 1] != '\n') { /* the terminal has shown ^C */
        fputc('\n', stdout);
    }
    fflush(stdout);
    if (gr_generation_is_cut(g)) {
        log_warn("the answer was cut after --max-tokens %" PRId64, g->o->max_tokens);
    }
}

static void take_answer(struct chat *c, const struct gr_generation *g)
{
    const char *text = g->turn.stream.text != NULL ? g->turn.stream.text : "";
    c->last = g->metrics;
    end_answer(g);
    if (gr_talk_answer(&c->talk, text, g->turn.stream.len, g->turn.token, g->turn.n_token) != GR_OK) {
        end(c, 1);
    }
}

/* The question was not answered. The conversation stays as it was before, where there is one. */
static void give_up_turn(struct chat *c, const struct gr_generation *g)
{
    gr_talk_take_back(&c->talk);
    if (g->interrupted != 0) {
        end(c, GR_EXIT_SIGNAL + g->interrupted);
    } else if (g->pipe_closed) {
        end(c, GR_EXIT_SIGNAL + SIGPIPE);
    } else if (is_gone(c) || !c->at_terminal) {
        end(c, 1);
    } else {
        forget_session(c);
    }
}

static void take_turn(struct chat *c, const char *text, size_t len)
{
    struct gr_generation g;
    if (gr_talk_ask(&c->talk, text, len) != GR_OK) {
        c->status = 1;
        return;
    }
    if (c->talk.n_whole >= (size_t)context(c)) {
        log_error("the conversation would have %zu tokens, and the context has %d: /reset begins a new one",
                  c->talk.n_whole, context(c));
        gr_talk_take_back(&c->talk);
        return;
    }
    gr_lines_pause(c->lines);
    run_turn(c, &g);
    if (g.failed && g.append && g.turn.n_token == 0 && !is_gone(c)) {
        run_turn_again(c, &g);
    }
    gr_lines_resume(c->lines);
    if (g.failed || g.interrupted != 0) {
        give_up_turn(c, &g);
    } else {
        take_answer(c, &g);
    }
    gr_generation_finish(&g);
}

/* ---- commands ---- */

static void tell_stats(struct chat *c)
{
    const struct gr_session_metrics *m = &c->last;
    printf("context: %zu of %d tokens, %zu messages\n", c->talk.n_has, context(c), c->talk.n_message);
    if (m->completion_tokens == 0) {
        return;
    }
    printf("last answer: %" PRIu64 " new + %" PRIu64 " generated tokens, %.1f tokens/s", m->prompt_tokens,
           m->completion_tokens, gr_metrics_tokens_per_second(m));
    if (m->rounds > 0) {
        printf(", %.2f tokens a round", (double)m->completion_tokens / (double)m->rounds);
    }
    if (m->num_drafts > 0) {
        printf(", mean acceptance length %.2f", gr_metrics_mean_acceptance_length(m));
    }
    printf("\n");
}

static void reset(struct chat *c)
{
    forget_session(c);
    gr_talk_reset(&c->talk);
    c->last = (struct gr_session_metrics){0};
}

static void quit(struct chat *c)
{
    end(c, 0);
}

static void help(struct chat *c);

static const struct {
    const char *name, *what;
    void (*run)(struct chat *c);
} commands[] = {
    {"/help", "these commands", help},
    {"/reset", "a new conversation (--system's message stays)", reset},
    {"/stats", "speed and acceptance of the last answer, how full the context is", tell_stats},
    {"/quit", "end (ctrl-D, too)", quit},
    {"/exit", "the same", quit},
};

static void help(struct chat *c)
{
    (void)c;
    for (size_t i = 0; i < GR_ARRAY_LEN(commands); i++) {
        printf("%-8s %s\n", commands[i].name, commands[i].what);
    }
    printf("ctrl-C   stop the answer\n");
}

static void run_command(struct chat *c, const char *line, size_t len)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(commands); i++) {
        if (strlen(commands[i].name) == len && memcmp(commands[i].name, line, len) == 0) {
            commands[i].run(c);
            fflush(stdout);
            return;
        }
    }
    log_error("%.*s is no command; /help tells them (a message that begins with / needs a blank before it)",
              (int)GR_MIN(len, (size_t)40), line);
}

/* ---- all ---- */

/* What the wait was ended for. ctrl-C at a terminal discards the line. */
static void end_wait(struct chat *c)
{
    const int signal_number = c->model.interrupted;
    if (signal_number == SIGINT && c->at_terminal) {
        c->model.interrupted = 0;
        gr_out_calm();
        printf("\n");
        fflush(stdout);
        return;
    }
    end(c, signal_number != 0 ? GR_EXIT_SIGNAL + signal_number : 1);
}

static void take_line(struct chat *c)
{
    const char *line;
    size_t len;
    const enum gr_status st = gr_lines_next(c->lines, &line, &len);
    if (st == GR_ECANCELED) {
        end_wait(c);
    } else if (st != GR_OK) {
        if (c->at_terminal) {
            printf("\n");
        }
        end(c, st == GR_ECLOSED ? c->status : 1);
    } else if (len > 0 && line[0] == '/') {
        run_command(c, line, len);
    } else if (len > 0) {
        take_turn(c, line, len);
    }
}

static enum gr_status prepare(struct chat *c)
{
    c->o.chat = c->o.keep = true;
    GR_TRY(c->o.connect != NULL ? gr_plan_remote(&c->o, &c->plan) : gr_plan_local(&c->o, &c->plan));
    GR_TRY(gr_generation_prepare_model(&c->model, &c->o, &c->plan));
    c->model.phase = GR_PHASE_OVER;
    if (c->model.tok == NULL) {
        log_error("%s: has no " GR_TOKENIZER_PLACES ", which a chat needs", c->o.model);
        return GR_ENOTFOUND;
    }
    return gr_talk_init(&c->talk, &c->model.chat.chat, c->model.tok, c->o.system);
}

static void converse(struct chat *c)
{
    enum gr_status st = begin_session(c);
    if (st == GR_OK) {
        st = gr_lines_open(wait_for_input, c, !c->o.no_history, &c->lines);
    }
    if (st != GR_OK) {
        end(c, gr_program_refused(st));
    } else if (c->at_terminal) {
        printf("%s, chat template %s. /help tells the commands.\n", c->o.model, gr_chat_name(c->model.chat.chat.form));
        fflush(stdout);
    }
    while (!c->ended) {
        take_line(c);
    }
    if (c->lines != NULL) {
        gr_lines_close(c->lines);
    }
    end_session(c);
}

int gr_command_chat(int argc, char **argv)
{
    struct chat c = {.at_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    struct gr_yaml_config *yaml = NULL;
    gr_options_default(&c.o, GR_CMD_CHAT);
    int status = gr_options_load(&c.o, argc, argv, &yaml);
    if (status < 0) {
        gr_generation_init(&c.model, &c.o);
        const enum gr_status st = prepare(&c);
        if (st == GR_OK) {
            converse(&c);
        }
        status = st == GR_OK ? c.status : gr_program_refused(st);
        gr_talk_finish(&c.talk);
        gr_generation_finish(&c.model);
    }
    gr_yaml_config_destroy(yaml);
    return status;
}
