/* What --help prints, and the page of all options. */
#include "common/options/options.h"

#include "common/base/log.h"
#include "common/base/suggest.h"

#include <string.h>

static const struct {
    const char *name, *title;
} groups[GR_N_GROUP] = {
    [GR_GROUP_GENERAL] = {"general", "What is read and shown"},
    [GR_GROUP_MODEL] = {"model", "Models, and what an EAGLE-3 head is sent"},
    [GR_GROUP_PROMPT] = {"prompt", "The prompt, and what ends a text"},
    [GR_GROUP_SAMPLING] = {"sampling", "Sampling"},
    [GR_GROUP_TREE] = {"tree", "Token trees"},
    [GR_GROUP_SPECPV] = {"specpv", "SpecPV: partial views of long contexts"},
    [GR_GROUP_TRANSPORT] = {"transport", "Connections"},
    [GR_GROUP_WORKERS] = {"workers", "Workers: devices, threads, memory, deadlines"},
    [GR_GROUP_SERVING] = {"serving", "The orchestrator and its clients"},
    [GR_GROUP_TESTS] = {"tests", "For tests of graft itself"},
};

static const struct {
    enum gr_command command;
    const char *name, *usage;
} commands[] = {
    {GR_CMD_RUN, "graft run",
     "graft run --model DIR [options]\n\nGenerates text: a target worker verifies token trees that a draft worker "
     "proposes."},
    {GR_CMD_SERVE, "graft serve",
     "graft serve [--config F.yaml] [--spawn] [options]\n\nThe orchestrator as a process of its own, for workers and "
     "clients, until a signal ends it."},
    {GR_CMD_LOOK, "graft session",
     "graft session list | show ID | refresh [ID] | purge  [options]\n\nAsks a running orchestrator: all sessions, one "
     "of them, a full SpecPV refresh, an end for those that are idle.\n`graft session open --help', `send --help' and "
     "`close --help' tell the options of the other verbs."},
    {GR_CMD_CLOSE, "graft session", "graft session close ID [options]\n\nEnds a session of a running orchestrator."},
    {GR_CMD_OPEN, "graft session",
     "graft session open [options]\n\nBegins a session at a running orchestrator and prints its id. Needs a prompt and "
     "--model (its tokenizer)."},
    {GR_CMD_SEND, "graft session",
     "graft session send ID [options]\n\nThe next turn of a session. Needs a prompt and --model (its tokenizer); what "
     "was fixed when the session was opened (sampling, tree, SpecPV) is not taken."},
    {GR_CMD_PING, "graft ping",
     "graft ping [options]\n\nRound trips from the orchestrator to each worker: median, least, most."},
    {GR_CMD_WAIT, "graft wait",
     "graft wait [--timeout S] [options]\n\nWaits until a target has joined (and a drafter, if --draft or the "
     "configuration names one)."},
    {GR_CMD_TARGET, "graft-target",
     "graft-target --model DIR --join HOST:PORT [options]\n\nThe target worker. The shared key comes from GRAFT_KEY "
     "(64 "
     "hex digits) or the file GRAFT_KEY_FILE names."},
    {GR_CMD_DRAFT, "graft-draft",
     "graft-draft --model DIR --join HOST:PORT [options]\n\nThe draft worker. The shared key comes from GRAFT_KEY (64 "
     "hex digits) or the file GRAFT_KEY_FILE names."},
};

void gr_options_called(const struct gr_options *o, char name[static 64])
{
    name[0] = '\0';
    for (size_t i = 0; i < GR_ARRAY_LEN(commands); i++) {
        if (commands[i].command == o->command) {
            snprintf(name, 64, "%s%s%s", commands[i].name, o->verb != NULL ? " " : "", o->verb != NULL ? o->verb : "");
        }
    }
}

/* The help of a row with its choices and its default. */
static void explain(const struct gr_option *r, char text[static 256])
{
    const size_t len = strlen(r->help);
    const bool told = r->initial != NULL && r->initial[0] != '\0';
    const bool joins = told && r->choices == NULL && r->help[len - 1] == ')'; /* one pair of parentheses is enough */
    const char *colon = r->choices != NULL ? ": " : "";
    const char *choices = r->choices != NULL ? r->choices : "";
    snprintf(text, 256, "%.*s%s%s%s%s%s", (int)(joins ? len - 1 : len), r->help, colon, choices,
             joins  ? "; default "
             : told ? " (default "
                    : "",
             told ? r->initial : "", told ? ")" : "");
}

static void help_row(const struct gr_option *r, FILE *out)
{
    char left[64], text[256];
    const char alias[] = {'-', r->alias, '\0'};
    snprintf(left, sizeof(left), "--%s%s%s %s", r->name, r->alias != 0 ? " " : "", r->alias != 0 ? alias : "",
             r->argument != NULL ? r->argument : "");
    explain(r, text);
    fprintf(out, "  %-34s %s\n", left, text);
}

static bool help_group(const struct gr_options *o, int group, FILE *out)
{
    bool any = false;
    for (const struct gr_option *r = gr_option_table; r < gr_option_table + GR_N_OPTION; r++) {
        if ((r->commands & o->command) == 0 || (int)r->group != group) {
            continue;
        }
        if (!any) {
            fprintf(out, "\n%s (--help %s):\n", groups[group].title, groups[group].name);
        }
        any = true;
        help_row(r, out);
    }
    return any;
}

static enum gr_status find_group(const char *name, int *group_out)
{
    struct gr_suggest near = {.word = name, .len = strlen(name)};
    char meant[96];
    for (int i = 0; i < GR_N_GROUP; i++) {
        if (strcmp(groups[i].name, name) == 0) {
            *group_out = i;
            return GR_OK;
        }
        gr_suggest_offer(&near, groups[i].name);
    }
    gr_suggest_text(&near, "", meant, sizeof(meant));
    log_error("--help %s: there is no such group of options%s", name, meant);
    return GR_ENOTFOUND;
}

enum gr_status gr_options_help(const struct gr_options *o, const char *group, FILE *out)
{
    int only = -1;
    if (group != NULL) {
        GR_TRY(find_group(group, &only));
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(commands); i++) {
        if (commands[i].command == o->command) {
            fprintf(out, "usage: %s\n", commands[i].usage);
        }
    }
    for (int i = 0; i < GR_N_GROUP; i++) {
        if (only < 0 || only == i) {
            help_group(o, i, out);
        }
    }
    fprintf(out, "\nEvery option can be set in the environment: --max-tokens is GRAFT_MAX_TOKENS.\n");
    if ((o->command & (GR_CMD_TARGET | GR_CMD_DRAFT)) == 0) {
        fprintf(out, "Mean acceptance length = 1 + accepted/drafts. ");
    }
    fprintf(out, "Exit status: 0 done, 1 failed, 2 usage.\n");
    return GR_OK;
}

/* ---- docs/options.md ---- */

static void page_range(const struct gr_option *r, FILE *out)
{
    switch (r->kind) {
    case GR_KIND_CHOICE:
        fprintf(out, "%s", r->choices);
        break;
    case GR_KIND_INT:
        fprintf(out, "%.0f .. %.0f", r->min, r->max);
        break;
    case GR_KIND_INT_OR_0:
        fprintf(out, "0, %.0f .. %.0f", r->min, r->max);
        break;
    case GR_KIND_AUTO:
        fprintf(out, "auto, %.0f .. %.0f", r->min, r->max);
        break;
    case GR_KIND_NUMBER:
        fprintf(out, "%g .. %g", r->min, r->max);
        break;
    case GR_KIND_SHARE:
        fprintf(out, "off, above 0 and below 1");
        break;
    case GR_KIND_ADDRESS:
        fprintf(out, "port %.0f .. 65535", r->min);
        break;
    case GR_KIND_DEVICE:
        fprintf(out, "cpu, cuda:N");
        break;
    case GR_KIND_IDS:
        fprintf(out, "ids 0 .. %.0f", r->max);
        break;
    default:
        break;
    }
}

/* Of `graft session' the verbs are told, since they differ. */
static void page_commands(const struct gr_option *r, FILE *out)
{
    static const struct {
        enum gr_command command;
        const char *name;
    } words[] = {{GR_CMD_RUN, "run"},          {GR_CMD_SERVE, "serve"}, {GR_CMD_OPEN, "open"},
                 {GR_CMD_SEND, "send"},        {GR_CMD_LOOK, "list"},   {GR_CMD_CLOSE, "close"},
                 {GR_CMD_PING, "ping"},        {GR_CMD_WAIT, "wait"},   {GR_CMD_TARGET, "graft-target"},
                 {GR_CMD_DRAFT, "graft-draft"}};
    const char *gap = "";
    for (size_t i = 0; i < GR_ARRAY_LEN(words); i++) {
        if ((r->commands & words[i].command) != 0) {
            fprintf(out, "%s%s", gap, words[i].name);
            gap = ", ";
        }
    }
}

/* A cell of a Markdown table. */
static void page_text(const char *text, FILE *out)
{
    for (; *text != '\0'; text++) {
        fprintf(out, *text == '|' ? "\\|" : "%c", *text);
    }
}

static void page_row(const struct gr_option *r, FILE *out)
{
    char variable[64];
    fprintf(out, "| `--%s", r->name);
    if (r->argument != NULL) {
        fprintf(out, " ");
        page_text(r->argument, out);
    }
    gr_option_environment(r, variable);
    fprintf(out, "` | %s%s%s | ", variable[0] != '\0' ? "`" : "", variable, variable[0] != '\0' ? "`" : "");
    page_range(r, out);
    fprintf(out, " | %s | %s%s%s | ", r->initial != NULL ? r->initial : "", r->yaml != NULL ? "`" : "",
            r->yaml != NULL ? r->yaml : "", r->yaml != NULL ? "`" : "");
    page_commands(r, out);
    fprintf(out, " | ");
    page_text(r->help, out);
    fprintf(out, " |\n");
}

void gr_options_page(FILE *out)
{
    fprintf(out,
            "# Options\n\n"
            "`graft options` prints this page from the table in common/options/table.inc; a test compares them.\n\n"
            "The command line goes first, then the variable in the environment, then the key of the YAML file\n"
            "that `--config` names, then the default. A bad value is exit status 2 wherever it comes from.\n"
            "`open`, `send`, `list` and `close` are verbs of `graft session`; the options of `list` are those of\n"
            "`show`, `refresh` and `purge`, too. `--help GROUP` tells one group.\n");
    for (int i = 0; i < GR_N_GROUP; i++) {
        fprintf(out,
                "\n## %s (`%s`)\n\n| option | variable | range | default | key | commands | meaning "
                "|\n|---|---|---|---|---|---|---|\n",
                groups[i].title, groups[i].name);
        for (const struct gr_option *r = gr_option_table; r < gr_option_table + GR_N_OPTION; r++) {
            if ((int)r->group == i) {
                page_row(r, out);
            }
        }
    }
}
