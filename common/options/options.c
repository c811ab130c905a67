/* Defaults, environment and command line, by the table. The values themselves are read by values.c. */
#include "common/options/options.h"

#include "common/base/log.h"
#include "common/base/suggest.h"

#include <stdlib.h>
#include <string.h>

/* The default of a CHOICE may be an empty text, which is none of its choices. */
static void set_default(struct gr_options *o, const struct gr_option *option)
{
    if (option->initial != NULL && option->initial[0] == '\0') {
        *(const char **)(void *)((char *)o + option->at) = option->initial;
    } else if (option->initial != NULL &&
               gr_option_set(o, option, option->name, option->initial, GR_FROM_DEFAULT) != GR_OK) {
        abort(); /* a mistake in the table, which test_options finds */
    }
}

void gr_options_default(struct gr_options *o, enum gr_command command)
{
    *o = (struct gr_options){.command = command};
    for (int i = 0; i < GR_N_OPTION; i++) {
        set_default(o, &gr_option_table[i]);
    }
}

/* ---- the environment ---- */

static enum gr_status read_environment(struct gr_options *o)
{
    for (const struct gr_option *r = gr_option_table; r < gr_option_table + GR_N_OPTION; r++) {
        char name[64];
        gr_option_environment(r, name);
        const char *value = name[0] != '\0' && (r->commands & o->command) != 0 ? getenv(name) : NULL;
        if (value != NULL) {
            GR_TRY(gr_option_set(o, r, name, value, GR_FROM_ENV));
        }
    }
    return GR_OK;
}

void gr_options_clear_environment(void)
{
    for (const struct gr_option *r = gr_option_table; r < gr_option_table + GR_N_OPTION; r++) {
        char name[64];
        gr_option_environment(r, name);
        if (name[0] != '\0' && !r->inherited) {
            unsetenv(name);
        }
    }
}

/* ---- the command line ---- */

/* One word of it, as --name, --name=value or -x. */
struct word {
    const struct gr_option *option;
    const char *value; /* after the equals sign; NULL: there is none */
    const char *name;  /* without dashes */
    size_t len;        /* of the name */
};

static const struct gr_option *find_alias(const struct gr_options *o, char letter)
{
    for (const struct gr_option *r = gr_option_table; r < gr_option_table + GR_N_OPTION; r++) {
        if ((r->commands & o->command) != 0 && r->alias == letter && letter != '\0') {
            return r;
        }
    }
    return NULL;
}

static enum gr_status complain(const struct gr_options *o, const struct word *w)
{
    char called[64], meant[96];
    struct gr_suggest near = {.word = w->name, .len = w->len};
    gr_options_called(o, called);
    if (gr_option_find(~0u, w->name, w->len) != NULL) {
        log_error("--%.*s is not for this command; see %s --help", (int)w->len, w->name, called);
        return GR_EINVAL;
    }
    for (const struct gr_option *r = gr_option_table; r < gr_option_table + GR_N_OPTION; r++) {
        if ((r->commands & o->command) != 0) {
            gr_suggest_offer(&near, r->name);
        }
    }
    gr_suggest_text(&near, "--", meant, sizeof(meant));
    log_error("unknown option --%.*s%s; see %s --help", (int)w->len, w->name, meant, called);
    return GR_EINVAL;
}

static enum gr_status read_word(const struct gr_options *o, const char *arg, struct word *out)
{
    struct word w = {0};
    char called[64];
    if (strncmp(arg, "--", 2) == 0) {
        w.name = arg + 2;
        w.len = strcspn(w.name, "=");
        w.value = w.name[w.len] == '=' ? w.name + w.len + 1 : NULL;
        w.option = gr_option_find(o->command, w.name, w.len);
    } else if (arg[0] == '-' && arg[1] != '\0' && arg[2] == '\0') {
        w.option = find_alias(o, arg[1]);
    }
    if (w.name == NULL && w.option == NULL) {
        gr_options_called(o, called);
        log_error("`%s': options start with --; see %s --help", arg, called);
        return GR_EINVAL;
    }
    if (w.option == NULL) {
        return complain(o, &w);
    }
    *out = w;
    return GR_OK;
}

/* A flag may be told =true or =false, which overrules the environment and the file. */
static enum gr_status flag_value(const struct word *w, const char **value_out)
{
    if (w->value != NULL && strcmp(w->value, "true") != 0 && strcmp(w->value, "false") != 0) {
        log_error("--%s=%s: this option takes no value (but =true, =false)", w->option->name, w->value);
        return GR_EINVAL;
    }
    *value_out = w->value != NULL ? w->value : "true";
    return GR_OK;
}

static enum gr_status take_word(struct gr_options *o, const struct word *w, int argc, char **argv, int *i)
{
    const struct gr_option *option = w->option;
    const char *value = w->value;
    char what[64];
    snprintf(what, sizeof(what), "--%s", option->name);
    if (option->kind == GR_KIND_FLAG) {
        GR_TRY(flag_value(w, &value));
    } else if (value == NULL && *i + 1 >= argc) {
        log_error("%s needs a value (%s)", what, option->argument);
        return GR_EINVAL;
    } else if (value == NULL) {
        value = argv[++*i];
    }
    if (option->once && o->source[option - gr_option_table] == GR_FROM_CLI) {
        log_error("%s is given twice; a turn has one prompt", what);
        return GR_EINVAL;
    }
    return gr_option_set(o, option, what, value, GR_FROM_CLI);
}

static int answer(const struct gr_options *o, const char *group)
{
    char called[64];
    if (o->version) {
        gr_options_called(o, called);
        printf("%s %s\n", called, GR_VERSION);
        return 0;
    }
    return gr_options_help(o, group, stdout) == GR_OK ? 0 : 2;
}

int gr_options_parse(struct gr_options *o, int argc, char **argv)
{
    if (read_environment(o) != GR_OK) {
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        struct word w;
        if (read_word(o, argv[i], &w) != GR_OK || take_word(o, &w, argc, argv, &i) != GR_OK) {
            return 2;
        }
        if (o->help || o->version) {
            const bool names_group = w.option == &gr_option_table[GR_OPTION_help] && i + 1 < argc;
            return answer(o, names_group && argv[i + 1][0] != '-' ? argv[i + 1] : NULL);
        }
    }
    if (o->log_level != NULL) {
        (void)gr_log_set_level_by_name(o->log_level); /* one of the row's choices */
    }
    return -1;
}
