/* graft: the command. */
#include "bench/options/options.h"
#include "common/base/log.h"
#include "common/base/suggest.h"
#include "common/options/complete.h"
#include "common/options/options.h"
#include "common/options/page.h"
#include "common/process/program.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/launch/channel.h"
#include "orchestrator/launch/launch.h"

#include <stdio.h>
#include <string.h>

static const struct gr_option_table *const tables[] = {&gr_option_table, &gr_bench_option_table};

/* The options of a command that asks nobody. Exit status to leave with, or -1. */
static int read_options(enum gr_command command, int argc, char **argv, struct gr_options *o)
{
    gr_options_default(o, command);
    return gr_options_parse(o, argc, argv);
}

static int page(int argc, char **argv)
{
    struct gr_options o;
    const int status = read_options(GR_CMD_OPTIONS, argc, argv, &o);
    if (status < 0) {
        gr_option_page(tables, (int)GR_ARRAY_LEN(tables), stdout);
    }
    return GR_MAX(status, 0);
}

static int completion(int argc, char **argv)
{
    struct gr_options o;
    const int status = read_options(GR_CMD_COMPLETION, argc, argv, &o);
    if (status < 0 && o.shell == GR_SHELL_BASH) {
        gr_option_complete_bash(tables, (int)GR_ARRAY_LEN(tables), stdout);
    } else if (status < 0) {
        gr_option_complete_zsh(tables, (int)GR_ARRAY_LEN(tables), stdout);
    }
    return GR_MAX(status, 0);
}

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"run", gr_command_run},
    {"chat", gr_command_chat},
    {"serve", gr_command_serve},
    {"launch", gr_command_launch},
    {"session", gr_command_session},
    {"worker", gr_command_worker},
    {"top", gr_command_top},
    {"ping", gr_command_ping},
    {"wait", gr_command_wait},
    {"stop", gr_command_stop},
    {"options", page},
    {"completion", completion},
};

static void usage(FILE *out)
{
    const struct gr_option_table *t = &gr_option_table;
    fprintf(out, "usage: graft COMMAND [options]\n\ncommands:\n");
    for (const struct gr_option_command *c = t->command; c < t->command + t->n_command; c++) {
        if (c->help != NULL && c->word[0] != '\0') {
            fprintf(out, "  %-16s %s\n", c->word, c->help);
        }
    }
    fprintf(out, "\ngraft COMMAND --help tells a command's options. graft --version tells the version.\n"
                 "Exit status: " GR_OPTION_STATUSES "\n");
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
        printf("graft %s\nranks of a job meet over: %s\n", GR_VERSION, gr_channel_built());
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
