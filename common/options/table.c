/* The table of graft, graft-target and graft-draft: rows, commands and groups. */
#include "common/options/options.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

/* Sets of commands that many rows name. */
#define ASKED (GR_CMD_RUN | GR_CMD_OPEN | GR_CMD_SEND)
#define TURN (ASKED | GR_CMD_CHAT)
#define CHATS (GR_CMD_RUN | GR_CMD_CHAT)
#define NEW (GR_CMD_RUN | GR_CMD_OPEN | GR_CMD_CHAT) /* what is fixed when a session is opened */
#define SERVES (GR_CMD_SERVE | GR_CMD_LAUNCH)
#define ENGINE (GR_CMD_RUN | GR_CMD_CHAT | SERVES)
#define LOOKS (GR_CMD_LOOK | GR_CMD_CLOSE | GR_CMD_SHOW | GR_CMD_REFRESH | GR_CMD_DRAIN)
#define CLIENT (TURN | LOOKS | GR_CMD_TOP | GR_CMD_PING | GR_CMD_WAIT | GR_CMD_STOP)
#define ALL (CLIENT | SERVES)
#define TOOLS (GR_CMD_OPTIONS | GR_CMD_COMPLETION)
#define WORKERS (GR_CMD_TARGET | GR_CMD_DRAFT)
/* A column: graft refuses the option where it does not start the workers. */
#define OF_WORKERS .refused = GR_WITH_CONNECT | GR_WITHOUT_SPAWN

enum group {
    GR_GROUP_GENERAL,
    GR_GROUP_MODEL,
    GR_GROUP_PROMPT,
    GR_GROUP_SAMPLING,
    GR_GROUP_TREE,
    GR_GROUP_SPECPV,
    GR_GROUP_TRANSPORT,
    GR_GROUP_WORKERS,
    GR_GROUP_SERVING,
    GR_GROUP_LAUNCH,
    GR_GROUP_TESTS,
    GR_N_GROUP
};

static const struct gr_option_group groups[GR_N_GROUP] = {
    [GR_GROUP_GENERAL] = {"general", "What is read and shown"},
    [GR_GROUP_MODEL] = {"model", "Models, and what an EAGLE-3 head is sent"},
    [GR_GROUP_PROMPT] = {"prompt", "The prompt, and what ends a text"},
    [GR_GROUP_SAMPLING] = {"sampling", "Sampling"},
    [GR_GROUP_TREE] = {"tree", "Token trees"},
    [GR_GROUP_SPECPV] = {"specpv", "SpecPV: partial views of long contexts"},
    [GR_GROUP_TRANSPORT] = {"transport", "Connections"},
    [GR_GROUP_WORKERS] = {"workers", "Workers: devices, threads, memory, deadlines"},
    [GR_GROUP_SERVING] = {"serving", "The orchestrator and its clients"},
    [GR_GROUP_LAUNCH] = {"launch", "Jobs of several ranks"},
    [GR_GROUP_TESTS] = {"tests", "For tests of graft itself"},
};

#define KEY " The shared key comes from GRAFT_KEY (64 hex digits) or the file that GRAFT_KEY_FILE names."

static const struct gr_option_command commands[] = {
    {GR_CMD_RUN, "graft", "run", "[--config F.yaml] --model DIR --prompt TEXT [options]",
     "generate text; starts the workers, streams, cleans up",
     "Generates text: a target worker verifies token trees that a draft worker proposes. The model and what else is "
     "needed may come from the environment or the YAML file, too."},
    {GR_CMD_CHAT, "graft", "chat", "[--config F.yaml] --model DIR [options]",
     "talk with a model at the terminal, over a session that is kept",
     "A conversation at the terminal, by the model's own chat template; with workers of its own, or at a running "
     "orchestrator by --connect. ctrl-C stops an answer, /help tells the commands, ctrl-D ends."},
    {GR_CMD_SERVE, "graft", "serve", "[--config F.yaml] [--spawn] [options]",
     "the orchestrator as a process of its own, for workers and clients",
     "The orchestrator as a process of its own, for workers and clients, until a signal ends it. With --spawn it "
     "starts "
     "its workers, and then the model is needed: from --model, GRAFT_MODEL or target.model of the YAML file."},
    {GR_CMD_LAUNCH, "graft", "launch", "--roles serve:1,draft:N,target:N --model DIR [options] [-- COMMAND ...]",
     "one rank of a job that srun, mpirun or torchrun has started: the orchestrator or a worker",
     "One program for all ranks of a job: rank 0 becomes the orchestrator, the others its workers, by --roles or "
     "--plan. "
     "With COMMAND rank 0 runs it when all roles are up, with GRAFT_CONNECT and GRAFT_KEY in its environment, and its "
     "status ends the job; without one the job serves until a signal ends it."},
    {GR_CMD_LOOK, "graft", "session", "list | show ID | open | send ID | close ID | refresh [ID] | purge  [options]",
     NULL,
     "Asks a running orchestrator: all sessions, one of them, a new one, its next turn, its end, a full SpecPV "
     "refresh, "
     "an end for those that are idle. `graft session open --help' and so on tell the options of each verb."},
    {GR_CMD_LOOK, "graft", "session list", "[options]", "the sessions and workers of a running orchestrator", NULL},
    {GR_CMD_SHOW, "graft", "session show", "ID [--text --model DIR] [options]", "what is known of one session",
     "What is known of one session; with --text its last answer, also one that is over, where the orchestrator has a "
     "journal."},
    {GR_CMD_OPEN, "graft", "session open", "--model DIR --prompt TEXT [options]",
     "begin a session at a running orchestrator and print its id",
     "Begins a session at a running orchestrator and prints its id. Needs a prompt and the model (its tokenizer)."},
    {GR_CMD_SEND, "graft", "session send", "ID --model DIR --prompt TEXT [options]", "the next turn of a session",
     "The next turn of a session. Needs a prompt and the model (its tokenizer); what was fixed when the session was "
     "opened (sampling, tree, SpecPV) is not taken."},
    {GR_CMD_CLOSE, "graft", "session close", "ID [options]", "end a session", NULL},
    {GR_CMD_REFRESH, "graft", "session refresh", "[ID] [options]", "ask for a full SpecPV refresh of one or all", NULL},
    {GR_CMD_LOOK, "graft", "session purge", "[options]", "end the sessions that are idle", NULL},
    {GR_CMD_LOOK, "graft", "worker", "list | drain N | undrain N  [options]", NULL,
     "Asks a running orchestrator: all workers, a worker that is to take no sessions any more, and one that is to take "
     "them again. `graft worker drain --help' and so on tell the options of each verb."},
    {GR_CMD_LOOK, "graft", "worker list", "[options]", "what the workers of a running orchestrator have to do", NULL},
    {GR_CMD_DRAIN, "graft", "worker drain", "N [options]", "let a worker finish its turns and take no sessions", NULL},
    {GR_CMD_DRAIN, "graft", "worker undrain", "N [options]", "let a worker take sessions again", NULL},
    {GR_CMD_TOP, "graft", "top", "[--once [--json]] [options]",
     "watch the workers and sessions of a running orchestrator",
     "Shows a running orchestrator's workers and sessions, with load, KV, round times, speeds and acceptance; h tells "
     "the keys. --once looks twice, an interval apart, prints what it saw and ends."},
    {GR_CMD_PING, "graft", "ping", "[options]", "round trips from a running orchestrator to its workers",
     "Round trips from the orchestrator to each worker: median, least, most."},
    {GR_CMD_WAIT, "graft", "wait", "[--timeout S] [options]",
     "wait until the workers of a running orchestrator have joined",
     "Waits until a target has joined (and a drafter, if --draft or the configuration names one)."},
    {GR_CMD_STOP, "graft", "stop", "[--now] [--timeout S] [options]",
     "ask a running orchestrator to finish its turns and end",
     "Asks the orchestrator to take no more requests, finish its turns, let its workers go and end; waits until it has "
     "ended. It does what SIGTERM does there, from any host."},
    {GR_CMD_OPTIONS, "graft", "options", "", "the page of all options of all programs, as Markdown (docs/options.md)",
     NULL},
    {GR_CMD_COMPLETION, "graft", "completion", "bash | zsh", "completion of all programs for a shell, as a script",
     "Prints a script that completes graft, graft-target, graft-draft and graft-bench. For this shell: "
     "`. <(graft completion bash)' or `. <(graft completion zsh)'."},
    {GR_CMD_TARGET, "graft-target", "", "--model DIR --join HOST:PORT [options]", "the target worker",
     "The target worker." KEY},
    {GR_CMD_DRAFT, "graft-draft", "", "--model DIR --join HOST:PORT [options]", "the draft worker",
     "The draft worker." KEY},
};

const struct gr_option gr_option_rows[GR_N_OPTION] = {
#define GR_OPTION(kind_, id, name_, ...) \
    [GR_OPTION_##id] = {.name = name_, .kind = GR_KIND_##kind_, .at = offsetof(struct gr_options, id), __VA_ARGS__},
#include "common/options/table.inc"
#undef GR_OPTION
};

const struct gr_option_table gr_option_table = {.row = gr_option_rows,
                                                .n_row = GR_N_OPTION,
                                                .command = commands,
                                                .n_command = GR_ARRAY_LEN(commands),
                                                .group = groups,
                                                .n_group = GR_N_GROUP,
                                                .in_environment = true};

void gr_options_default(struct gr_options *o, enum gr_command command)
{
    const struct gr_option_command *called = commands;
    while (called->command != command) {
        called++;
    }
    *o = (struct gr_options){.help = false};
    gr_option_values_begin(&o->values, &gr_option_table, called);
}

bool gr_option_is_fixed(const struct gr_option *option)
{
    const bool opens = (option->commands & GR_CMD_OPEN) != 0;
    return option->fixed || (opens && (option->commands & GR_CMD_SEND) == 0);
}

void gr_options_clear_environment(void)
{
    for (const struct gr_option *r = gr_option_rows; r < gr_option_rows + GR_N_OPTION; r++) {
        char name[64];
        gr_option_environment(r, name);
        if (name[0] != '\0' && !r->inherited) {
            unsetenv(name);
        }
    }
}

const char *gr_option_shown(const struct gr_options *o, enum gr_option_id id, char *out, size_t cap)
{
    const struct gr_option *r = &gr_option_rows[id];
    char variable[64];
    gr_option_environment(r, variable);
    if (o->values.source[id] == GR_FROM_YAML) {
        snprintf(out, cap, "%s:%u: %s", o->config, o->values.line[id], r->yaml);
    } else if (o->values.source[id] == GR_FROM_ENV) {
        snprintf(out, cap, "%s", variable);
    } else {
        snprintf(out, cap, "--%s", r->name);
    }
    return out;
}

int gr_options_parse(struct gr_options *o, int argc, char **argv)
{
    const int status = gr_option_values_parse(&o->values, argc, argv);
    if (status < 0 && o->log_level != GR_UNSET) {
        (void)gr_log_set_level_by_name(gr_option_choice(o, GR_OPTION_log_level)); /* one of the row's choices */
    }
    if (status < 0 && o->log_format != GR_UNSET) {
        (void)gr_log_set_format_by_name(gr_option_choice(o, GR_OPTION_log_format));
    }
    return status;
}
