/* graft: the command. */
#include "common/base/log.h"
#include "common/base/suggest.h"
#include "common/options/options.h"
#include "common/process/program.h"
#include "orchestrator/cli/commands.h"

#include <stdio.h>
#include <string.h>

static int page(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) {
        log_error("graft options takes no options");
        return 2;
    }
    gr_options_page(stdout);
    return 0;
}

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"run", "generate text; starts the workers, streams, cleans up", gr_command_run},
    {"serve", "the orchestrator as a process of its own, for workers and clients", gr_command_serve},
    {"session", "list, show, open, send, close, refresh, purge: the sessions of an orchestrator", gr_command_session},
    {"ping", "round trips from a running orchestrator to its workers", gr_command_ping},
    {"wait", "wait until the workers of a running orchestrator have joined", gr_command_wait},
    {"options", "the page of all options of all programs, as Markdown (docs/options.md)", page},
};

static void usage(FILE *out)
{
    fprintf(out, "usage: graft COMMAND [options]\n\ncommands:\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    }
    fprintf(out, "\ngraft COMMAND --help tells a command's options. graft --version tells the version.\n");
}

static int unknown(const char *command)
{
    struct gr_suggest near = {.word = command, .len = strlen(command)};
    char meant[96];
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        gr_suggest_offer(&near, commands[i].name);
    }
    gr_suggest_text(&near, "", meant, sizeof(meant));
    log_error("unknown command `%s'%s; see graft --help", command, meant);
    return 2;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("graft %s\n", GR_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    return unknown(argv[1]);
}

int main(int argc, char **argv)
{
    gr_log_init("graft");
    gr_program_begin();
    return gr_program_end(dispatch(argc, argv));
}
