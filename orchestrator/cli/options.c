#include "orchestrator/cli/options.h"

#include "common/base/address.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/suggest.h"
#include "common/protocol/specpv.h"
#include "transport/verbs/verbs.h"
#include "transport/worker/worker_args.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ONCE: a text that is an error when it is given twice. */
enum kind {
    KIND_FLAG,
    KIND_TEXT,
    KIND_ONCE,
    KIND_INT,
    KIND_INT_OR_0,
    KIND_NUMBER,
    KIND_SHARE,
    KIND_ADDRESS,
    KIND_STOP,
    KIND_IDS
};

#define AT(member) offsetof(struct gr_run_options, member)
#define TURN (GR_CMD_RUN | GR_CMD_OPEN | GR_CMD_SEND)
#define NEW (GR_CMD_RUN | GR_CMD_OPEN) /* what is fixed when a session is opened */
#define ENGINE (GR_CMD_RUN | GR_CMD_SERVE)
#define CLIENT (TURN | GR_CMD_LOOK | GR_CMD_CLOSE | GR_CMD_PING | GR_CMD_WAIT)
#define ALL (CLIENT | GR_CMD_SERVE)

#define OF_WORKERS GR_OPTION_OF_WORKERS
#define OF_OPEN GR_OPTION_OF_OPEN

static const struct option_info {
    const char *name;
    enum kind kind;
    size_t offset;
    double min, max;
    const char *initial; /* default as text; NULL: 0, false or not given */
    const char *argument, *group;
    unsigned commands; /* set of enum gr_command */
    unsigned flags;
    const char *section, *key; /* of the YAML file; NULL: none */
    const char *help;
} infos[] = {
#define X(name, member, kind, min, max, initial, argument, group, commands, flags, section, key, help) \
    {name, KIND_##kind, AT(member), min, max, initial, argument, group, commands, flags, section, key, help},
#include "orchestrator/cli/options_table.inc"
};

_Static_assert(GR_ARRAY_LEN(infos) <= GR_ARRAY_LEN(((struct gr_run_options *)0)->set_by), "raise set_by");

static const struct command_info {
    enum gr_command command;
    const char *name, *usage;
} commands[] = {
    {GR_CMD_RUN, "run",
     "graft run --model DIR [options]\n\nGenerates text: a target worker verifies token trees that a draft worker "
     "proposes."},
    {GR_CMD_SERVE, "serve",
     "graft serve [--config F.yaml] [--spawn] [options]\n\nThe orchestrator as a process of its own, for workers and "
     "clients, until a signal ends it."},
    {GR_CMD_LOOK, "session",
     "graft session list | show ID | refresh [ID] | purge  [options]\n\nAsks a running orchestrator: all sessions, one "
     "of them, a full SpecPV refresh, an end for those that are idle.\n`graft session open --help', `send --help' and "
     "`close --help' tell the options of the other verbs."},
    {GR_CMD_CLOSE, "session", "graft session close ID [options]\n\nEnds a session of a running orchestrator."},
    {GR_CMD_OPEN, "session",
     "graft session open [options]\n\nBegins a session at a running orchestrator and prints its id. Needs a prompt and "
     "--model (its tokenizer)."},
    {GR_CMD_SEND, "session",
     "graft session send ID [options]\n\nThe next turn of a session. Needs a prompt and --model (its tokenizer); what "
     "was fixed when the session was opened (sampling, tree, SpecPV) is not taken."},
    {GR_CMD_PING, "ping",
     "graft ping [options]\n\nRound trips from the orchestrator to each worker: median, least, most."},
    {GR_CMD_WAIT, "wait",
     "graft wait [--timeout S] [options]\n\nWaits until a target has joined (and a drafter, if --draft or the "
     "configuration names one)."},
};

static const struct command_info *command_of(const struct gr_run_options *o)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(commands); i++) {
        if (commands[i].command == o->command) {
            return &commands[i];
        }
    }
    return &commands[0];
}

static bool takes(const struct gr_run_options *o, const struct option_info *info)
{
    return (info->commands & o->command) != 0;
}

static const struct option_info *find(const char *name, size_t len)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        if (strlen(infos[i].name) == len && memcmp(infos[i].name, name, len) == 0) {
            return &infos[i];
        }
    }
    return NULL;
}

/* GRAFT_MAX_TOKENS of max-tokens. */
static void environment_name(const struct option_info *info, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "GRAFT_");
    for (const char *p = info->name; *p != '\0' && n < cap - 1; p++) {
        out[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    }
    out[n] = '\0';
}

/* What the user wrote: the option, its variable, or its key. */
static const char *written_as(const struct option_info *info, enum gr_option_source source, char *out, size_t cap)
{
    if (source == GR_FROM_ENV) {
        environment_name(info, out, cap);
    } else if (source == GR_FROM_YAML && info->section != NULL) {
        snprintf(out, cap, "%s.%s", info->section, info->key);
    } else {
        snprintf(out, cap, "--%s", info->name);
    }
    return out;
}

static enum gr_status bad_value(const struct option_info *info, const char *what, const char *value)
{
    switch (info->kind) {
    case KIND_INT:
        log_error("%s: `%s' is not a whole number from %.0f to %.0f", what, value, info->min, info->max);
        break;
    case KIND_INT_OR_0:
        log_error("%s: `%s' is not 0 or a whole number from %.0f to %.0f", what, value, info->min, info->max);
        break;
    case KIND_NUMBER:
        log_error("%s: `%s' is not a number from %g to %g", what, value, info->min, info->max);
        break;
    case KIND_SHARE:
        log_error("%s: `%s' is not " GR_SHARE_RANGE, what, value);
        break;
    default:
        log_error("%s: `%s' is not true or false", what, value);
    }
    return GR_EINVAL;
}

static enum gr_status store_address(const struct option_info *info, const char *what, const char *value,
                                    const char **out)
{
    struct gr_address address;
    GR_TRY(gr_address_parse(what, value, (unsigned)info->min, &address));
    *out = value;
    return GR_OK;
}

/* Is it a list that grows with each value of one source? */
static bool is_list(const struct option_info *info)
{
    return info->kind == KIND_STOP || info->kind == KIND_IDS;
}

static enum gr_status add_stop(struct gr_run_options *o, const char *what, const char *value)
{
    if (o->n_stop == GR_STOP_STRING_MAX) {
        log_error("%s: at most %d stop strings", what, GR_STOP_STRING_MAX);
        return GR_EINVAL;
    }
    o->stop[o->n_stop++] = value;
    return GR_OK;
}

/* One id or several with commas between them. */
static enum gr_status add_ids(struct gr_run_options *o, const struct option_info *info, const char *what,
                              const char *value)
{
    for (const char *at = value; at != NULL;) {
        const size_t len = strcspn(at, ",");
        char number[24] = "";
        int64_t id = 0;
        if (len < sizeof(number)) {
            memcpy(number, at, len);
        }
        if (!isdigit((unsigned char)number[0]) || !gr_parse_int(number, 0, (int64_t)info->max, &id)) {
            log_error("%s: `%s' is not a list of token ids as 7,11", what, value);
            return GR_EINVAL;
        }
        if (o->n_stop_token_id == GR_STOP_ID_MAX) {
            log_error("%s: at most %d token ids", what, GR_STOP_ID_MAX);
            return GR_EINVAL;
        }
        o->stop_token_id[o->n_stop_token_id++] = (int32_t)id;
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    return GR_OK;
}

static bool is_switch(const char *value)
{
    return strcmp(value, "true") == 0 || strcmp(value, "false") == 0 || strcmp(value, "1") == 0 ||
           strcmp(value, "0") == 0;
}

/* what: how messages name the option. */
static enum gr_status store(struct gr_run_options *o, const struct option_info *info, const char *what,
                            const char *value)
{
    char *slot = (char *)o + info->offset;
    const int64_t min = (int64_t)info->min;
    const int64_t max = (int64_t)info->max;
    bool good = false;
    switch (info->kind) {
    case KIND_FLAG:
        good = is_switch(value);
        *(bool *)slot = good && (value[0] == 't' || value[0] == '1');
        break;
    case KIND_TEXT:
    case KIND_ONCE:
        *(const char **)slot = value;
        return GR_OK;
    case KIND_INT:
        good = gr_parse_int(value, min, max, (int64_t *)slot);
        break;
    case KIND_INT_OR_0:
        good = gr_parse_int_or_0(value, min, max, (int64_t *)slot);
        break;
    case KIND_NUMBER:
        good = gr_parse_number(value, info->min, info->max, (double *)slot);
        break;
    case KIND_SHARE:
        good = gr_parse_share(value, (double *)slot);
        break;
    case KIND_ADDRESS:
        return store_address(info, what, value, (const char **)slot);
    case KIND_STOP:
        return add_stop(o, what, value);
    case KIND_IDS:
        return add_ids(o, info, what, value);
    }
    return good ? GR_OK : bad_value(info, what, value);
}

void gr_run_options_default(struct gr_run_options *o, enum gr_command command)
{
    /* -1: as the target has it, which no user can say */
    *o = (struct gr_run_options){
        .command = command, .specpv_n_sink = -1, .specpv_n_retrieval = -1, .specpv_n_window = -1};
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        const char *initial = infos[i].initial;
        const enum gr_status st = initial != NULL ? store(o, &infos[i], infos[i].name, initial) : GR_OK;
        GR_ASSERT(st == GR_OK);
    }
}

enum gr_status gr_run_options_set(struct gr_run_options *o, const char *name, const char *value,
                                  enum gr_option_source source)
{
    const struct option_info *info = find(name, strlen(name));
    if (info == NULL) {
        return GR_ENOTFOUND;
    }
    uint8_t *by = &o->set_by[info - infos];
    if (source < *by) {
        return GR_OK; /* something that ranks higher has set it */
    }
    if (is_list(info) && source > *by) { /* what a lower source has listed does not count */
        o->n_stop = info->kind == KIND_STOP ? 0 : o->n_stop;
        o->n_stop_token_id = info->kind == KIND_IDS ? 0 : o->n_stop_token_id;
    }
    *by = (uint8_t)source;
    char what[64];
    return store(o, info, written_as(info, source, what, sizeof(what)), value);
}

static enum gr_status read_environment(struct gr_run_options *o)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        char name[64];
        environment_name(&infos[i], name, sizeof(name));
        const char *value = getenv(name);
        if (value != NULL && infos[i].offset != AT(help) && takes(o, &infos[i])) {
            GR_TRY(gr_run_options_set(o, infos[i].name, value, GR_FROM_ENV));
        }
    }
    return GR_OK;
}

static const char *verb(const struct gr_run_options *o)
{
    return o->verb != NULL ? o->verb : "";
}

static const char *gap(const struct gr_run_options *o)
{
    return o->verb != NULL ? " " : "";
}

static enum gr_status refuse_name(const struct gr_run_options *o, const struct option_info *info, const char *name,
                                  size_t len)
{
    struct gr_suggest near = {.word = name, .len = len};
    char also[80];
    for (size_t k = 0; k < GR_ARRAY_LEN(infos); k++) {
        if (takes(o, &infos[k])) {
            gr_suggest_offer(&near, infos[k].name);
        }
    }
    log_error(info == NULL ? "unknown option --%.*s%s; see graft %s%s%s --help"
                           : "--%.*s is not for this command%s; see graft %s%s%s --help",
              (int)len, name, info == NULL ? gr_suggest_text(&near, "--", also, sizeof(also)) : "", command_of(o)->name,
              gap(o), verb(o));
    return GR_EINVAL;
}

/* --help GROUP. */
static enum gr_status take_help_group(struct gr_run_options *o, const char *group)
{
    struct gr_suggest near = {.word = group, .len = strlen(group)};
    char also[80];
    o->help = true;
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        gr_suggest_offer(&near, infos[i].group);
        if (strcmp(infos[i].group, group) == 0) {
            o->help_group = infos[i].group;
            return GR_OK;
        }
    }
    log_error("--help: there is no group of options `%s'%s; --help alone shows all", group,
              gr_suggest_text(&near, "", also, sizeof(also)));
    return GR_EINVAL;
}

static enum gr_status parse_one(struct gr_run_options *o, int argc, char **argv, int *i)
{
    const char *arg = argv[*i];
    if (strcmp(arg, "-h") == 0) {
        o->help = true;
        return GR_OK;
    }
    if (strncmp(arg, "--", 2) != 0) {
        log_error("`%s': options start with --; see graft %s%s%s --help", arg, command_of(o)->name, gap(o), verb(o));
        return GR_EINVAL;
    }
    const char *name = arg + 2;
    const size_t len = strcspn(name, "=");
    const struct option_info *info = find(name, len);
    if (info == NULL || !takes(o, info)) {
        return refuse_name(o, info, name, len);
    }
    if (info->offset == AT(help) && *i + 1 < argc && argv[*i + 1][0] != '-') {
        return take_help_group(o, argv[++*i]);
    }
    const char *value = name[len] == '=' ? name + len + 1 : NULL;
    if (info->kind == KIND_FLAG) {
        value = value != NULL ? value : "true";
    } else if (value == NULL) {
        if (*i + 1 >= argc) {
            log_error("--%s needs a value (%s)", info->name, info->argument);
            return GR_EINVAL;
        }
        value = argv[++*i];
    }
    if (info->kind == KIND_ONCE && o->set_by[info - infos] == GR_FROM_CLI) {
        log_error("--%s is given twice; a turn has one prompt", info->name);
        return GR_EINVAL;
    }
    return gr_run_options_set(o, info->name, value, GR_FROM_CLI);
}

enum gr_status gr_run_options_parse(struct gr_run_options *o, int argc, char **argv)
{
    GR_TRY(read_environment(o));
    for (int i = 1; i < argc; i++) {
        GR_TRY(parse_one(o, argc, argv, &i));
    }
    return GR_OK;
}

bool gr_run_options_from_cli(const struct gr_run_options *o, const char *name)
{
    const struct option_info *info = find(name, strlen(name));
    return info != NULL && o->set_by[info - infos] == GR_FROM_CLI;
}

const char *gr_run_options_given(const struct gr_run_options *o, enum gr_option_flag flag)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        if ((infos[i].flags & (unsigned)flag) != 0 && o->set_by[i] == GR_FROM_CLI) {
            return infos[i].name;
        }
    }
    return NULL;
}

const char *gr_option_of_key(const char *section, const char *key)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        if (infos[i].section != NULL && strcmp(infos[i].section, section) == 0 && strcmp(infos[i].key, key) == 0) {
            return infos[i].name;
        }
    }
    return NULL;
}

bool gr_option_is_list(const char *name)
{
    const struct option_info *info = find(name, strlen(name));
    return info != NULL && is_list(info);
}

bool gr_option_section(const char *section)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        if (infos[i].section != NULL && strcmp(infos[i].section, section) == 0) {
            return true;
        }
    }
    return false;
}

void gr_option_offer_keys(const char *section, struct gr_suggest *near)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        if (infos[i].section != NULL && (section == NULL || strcmp(infos[i].section, section) == 0)) {
            gr_suggest_offer(near, section == NULL ? infos[i].section : infos[i].key);
        }
    }
}

/* ---- help ---- */

/* The help, and the default where it does not say one itself. */
static const char *help_text(const struct option_info *info, char *out, size_t cap)
{
    const bool adds = info->initial != NULL && info->initial[0] != '\0' && strstr(info->help, "(default") == NULL;
    snprintf(out, cap, adds ? "%s (default %s)" : "%s", info->help, info->initial);
    return out;
}

void gr_run_options_help(const struct gr_run_options *o, FILE *out)
{
    const char *group = "";
    char left[64], text[256];
    fprintf(out, "usage: %s\n", command_of(o)->usage);
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        const struct option_info *info = &infos[i];
        if (!takes(o, info) || (o->help_group != NULL && strcmp(info->group, o->help_group) != 0)) {
            continue;
        }
        if (strcmp(group, info->group) != 0) {
            group = info->group;
            fprintf(out, "\n%s\n", group);
        }
        snprintf(left, sizeof(left), "--%s %s", info->name, info->argument != NULL ? info->argument : "");
        fprintf(out, "  %-34s %s\n", left, help_text(info, text, sizeof(text)));
    }
    fprintf(out,
            "\nEvery option can be set in the environment: --max-tokens is GRAFT_MAX_TOKENS. --help GROUP shows one "
            "group.\n"
            "Mean acceptance length = 1 + accepted/drafts. Exit status: 0 done, 1 failed, 2 usage.\n");
}

/* A bar would end the cell. */
static void put_cell(const char *text, FILE *out)
{
    for (; *text != '\0'; text++) {
        fprintf(out, *text == '|' ? "\\%c" : "%c", *text);
    }
}

static void markdown_row(const struct option_info *info, FILE *out)
{
    char variable[64], text[256];
    environment_name(info, variable, sizeof(variable));
    fprintf(out, "| `--%s%s", info->name, info->argument != NULL ? " " : "");
    put_cell(info->argument != NULL ? info->argument : "", out);
    fprintf(out, "` | ");
    put_cell(help_text(info, text, sizeof(text)), out);
    fprintf(out, " | `%s` | ", variable);
    if (info->section != NULL) {
        fprintf(out, "`%s.%s` |\n", info->section, info->key);
    } else {
        fprintf(out, "|\n");
    }
}

void gr_run_options_markdown(FILE *out)
{
    const char *group = "";
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        if (strcmp(group, infos[i].group) != 0) {
            group = infos[i].group;
            fprintf(out, "\n## %s\n\n| option | meaning | variable | key |\n|---|---|---|---|\n", group);
        }
        markdown_row(&infos[i], out);
    }
}
