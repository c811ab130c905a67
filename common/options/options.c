/* Defaults, environment and command line. The values themselves are read by values.c. */
#include "common/options/option.h"

#include "common/base/log.h"
#include "common/base/suggest.h"

#include <stdlib.h>
#include <string.h>

/* ---- defaults ---- */

static void set_default(struct gr_option_values *v, const struct gr_option *option)
{
    const char *initial = gr_option_initial(option, v->called->command);
    if (option->kind == GR_KIND_CHOICE) {
        *(int *)(void *)((char *)v + option->at) = GR_UNSET;
    }
    if (initial != NULL && gr_option_set(v, option, option->name, initial, GR_FROM_DEFAULT) != GR_OK) {
        abort(); /* a mistake in the table, which test_options finds */
    }
}

void gr_option_values_begin(struct gr_option_values *v, const struct gr_option_table *t,
                            const struct gr_option_command *called)
{
    GR_ASSERT(t->n_row <= GR_OPTION_ROW_MAX);
    v->table = t;
    v->called = called;
    for (int i = 0; i < t->n_row; i++) {
        set_default(v, &t->row[i]);
    }
}

/* ---- the environment ---- */

/* The text itself, in the variable without _FILE. */
static enum gr_status read_secret(struct gr_option_values *v, const struct gr_option *option, char name[static 64])
{
    name[strlen(name) - strlen("_FILE")] = '\0';
    const char *text = getenv(name);
    return text != NULL ? gr_option_set_secret(v, option, name, text, GR_FROM_ENV) : GR_OK;
}

static enum gr_status read_environment(struct gr_option_values *v)
{
    const struct gr_option_table *t = v->table;
    for (const struct gr_option *r = t->row; r < t->row + t->n_row && t->in_environment; r++) {
        char name[64];
        gr_option_environment(r, name);
        if (name[0] == '\0' || (r->commands & ~r->positional & v->called->command) == 0 || r->kind == GR_KIND_WORKERS) {
            continue;
        }
        const char *value = getenv(name);
        if (value != NULL) {
            GR_TRY(gr_option_set(v, r, name, value, GR_FROM_ENV));
        }
        if (r->kind == GR_KIND_SECRET) {
            GR_TRY(read_secret(v, r, name));
        }
    }
    return GR_OK;
}

/* ---- the command line ---- */

/* One word of it, as --name, --name=value or -x. */
struct word {
    const struct gr_option *option;
    const char *value; /* after the equals sign; NULL: there is none */
    const char *name;  /* without dashes */
    size_t len;        /* of the name */
};

/* Where the command line is read. */
struct line {
    int argc, i;
    char **argv;
};

static bool is_called(const struct gr_option *r, const char *word)
{
    return word[0] != '\0' &&
           ((word[1] == '\0' && r->alias == word[0]) || (r->brief != NULL && strcmp(r->brief, word) == 0));
}

/* word: what follows one dash. */
static const struct gr_option *find_alias(const struct gr_option_values *v, const char *word)
{
    const struct gr_option_table *t = v->table;
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        if (gr_option_is_for(r, v->called->command) && is_called(r, word)) {
            return r;
        }
    }
    return NULL;
}

/* The next word that the command takes without dashes. Only WORDS takes more than one. */
static const struct gr_option *find_positional(const struct gr_option_values *v)
{
    const struct gr_option_table *t = v->table;
    for (int i = 0; i < t->n_row; i++) {
        const bool filled = v->source[i] == GR_FROM_CLI && t->row[i].kind != GR_KIND_WORDS;
        if (gr_option_is_word(&t->row[i], v->called->command) && t->row[i].kind != GR_KIND_REST && !filled) {
            return &t->row[i];
        }
    }
    return NULL;
}

static bool has_dashes(const struct gr_option *r, unsigned command)
{
    return (r->commands & ~r->positional & command) != 0 && r->kind != GR_KIND_WORKERS;
}

/* "", or those of this command that are called so with a word before: --target-device for --device. */
static void name_longer(const struct gr_option_values *v, const struct word *w, char text[static 160])
{
    const struct gr_option_table *t = v->table;
    size_t n = 0;
    text[0] = '\0';
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        const size_t len = strlen(r->name);
        const bool longer = len > w->len + 1 && r->name[len - w->len - 1] == '-' &&
                            memcmp(r->name + len - w->len, w->name, w->len) == 0;
        if (longer && has_dashes(r, v->called->command) && n + len + 16 < 160) {
            n += (size_t)snprintf(text + n, 160 - n, "%s--%s", n == 0 ? ", which has " : " and ", r->name);
        }
    }
}

static enum gr_status complain(const struct gr_option_values *v, const struct word *w)
{
    const struct gr_option_table *t = v->table;
    char called[64], meant[96], longer[160];
    struct gr_suggest near = {.word = w->name, .len = w->len};
    gr_option_called(v->called, called);
    if (gr_option_find(t, ~0u, w->name, w->len) != NULL) {
        name_longer(v, w, longer);
        log_error("--%.*s is not for this command%s; see %s --help", (int)w->len, w->name, longer, called);
        return GR_EINVAL;
    }
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        if (has_dashes(r, v->called->command)) {
            gr_suggest_offer(&near, r->name);
        }
    }
    gr_suggest_text(&near, "--", meant, sizeof(meant));
    log_error("unknown option --%.*s%s; see %s --help", (int)w->len, w->name, meant, called);
    return GR_EINVAL;
}

/* A word with one dash or none; the letter may be one that other programs have for an option of this command. */
static enum gr_status complain_of_dashes(const struct gr_option_values *v, const char *arg)
{
    const struct gr_option_table *t = v->table;
    const char letter = arg[0] == '-' && arg[1] != '\0' && arg[2] == '\0' ? arg[1] : '\0';
    char called[64], meant[96] = "";
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        if (arg[0] == '-' && r->brief != NULL && strcmp(arg + 1, r->brief) == 0) {
            snprintf(meant, sizeof(meant), " (--%s is not for this command)", r->name);
        }
        if (letter != '\0' && r->elsewhere == letter && has_dashes(r, v->called->command)) {
            snprintf(meant, sizeof(meant), " (did you mean --%s?)", r->name);
        }
    }
    gr_option_called(v->called, called);
    log_error("`%s': options start with --%s; see %s --help", arg, meant, called);
    return GR_EINVAL;
}

/* option NULL: it is a word without dashes that the command does not take. */
static enum gr_status read_word(const struct gr_option_values *v, const char *arg, struct word *out)
{
    struct word w = {0};
    if (strncmp(arg, "--", 2) == 0) {
        w.name = arg + 2;
        w.len = strcspn(w.name, "=");
        w.value = w.name[w.len] == '=' ? w.name + w.len + 1 : NULL;
        w.option = gr_option_find(v->table, v->called->command, w.name, w.len);
    } else if (arg[0] == '-') {
        w.option = find_alias(v, arg + 1);
    }
    if (w.name == NULL && w.option == NULL) {
        return complain_of_dashes(v, arg);
    }
    if (w.option == NULL) {
        return complain(v, &w);
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

static enum gr_status take_word(struct gr_option_values *v, const struct word *w, struct line *l)
{
    const struct gr_option *option = w->option;
    const char *value = w->value;
    char what[64];
    snprintf(what, sizeof(what), "--%s", option->name);
    if (option->kind == GR_KIND_FLAG) {
        GR_TRY(flag_value(w, &value));
    } else if (value == NULL && l->i + 1 >= l->argc) {
        log_error("%s needs a value (%s)", what, option->argument);
        return GR_EINVAL;
    } else if (value == NULL) {
        value = l->argv[++l->i];
    }
    if (option->once && v->source[option - v->table->row] == GR_FROM_CLI) {
        log_error("%s is given twice; a turn has one prompt", what);
        return GR_EINVAL;
    }
    return gr_option_set(v, option, what, value, GR_FROM_CLI);
}

/* All that follows `--', if the command takes it. */
static bool take_rest(struct gr_option_values *v, struct line *l)
{
    const struct gr_option_table *t = v->table;
    for (int i = 0; i < t->n_row && strcmp(l->argv[l->i], "--") == 0; i++) {
        if (t->row[i].kind == GR_KIND_REST && gr_option_is_for(&t->row[i], v->called->command)) {
            struct gr_option_rest *rest = (void *)((char *)v + t->row[i].at);
            *rest = (struct gr_option_rest){.word = l->argv + l->i + 1, .n = l->argc - l->i - 1};
            v->source[i] = GR_FROM_CLI;
            l->i = l->argc;
            return true;
        }
    }
    return false;
}

static enum gr_status take_next(struct gr_option_values *v, struct line *l)
{
    const char *arg = l->argv[l->i];
    const struct gr_option *positional = arg[0] != '-' || arg[1] == '\0' ? find_positional(v) : NULL;
    struct word w;
    char called[64], what[160];
    if (take_rest(v, l)) {
        return GR_OK;
    }
    if (positional != NULL) {
        gr_option_called(v->called, called);
        snprintf(what, sizeof(what), "%s %s", called, positional->argument);
        return gr_option_set(v, positional, what, arg, GR_FROM_CLI);
    }
    GR_TRY(read_word(v, arg, &w));
    return take_word(v, &w, l);
}

static enum gr_status check_needed(const struct gr_option_values *v)
{
    const struct gr_option_table *t = v->table;
    char called[64];
    for (int i = 0; i < t->n_row; i++) {
        const struct gr_option *r = &t->row[i];
        if (gr_option_is_word(r, v->called->command) && (r->needed & v->called->command) != 0 &&
            v->source[i] != GR_FROM_CLI) {
            gr_option_called(v->called, called);
            log_error("%s needs %s%s%s; see %s --help", called, r->argument, r->why != NULL ? ": " : "",
                      r->why != NULL ? r->why : "", called);
            return GR_EINVAL;
        }
    }
    return GR_OK;
}

/* Every table has the rows --help and --version. */
static bool is_on(const struct gr_option_values *v, const char *name)
{
    const struct gr_option *r = gr_option_find(v->table, v->called->command, name, strlen(name));
    return r != NULL && *(const bool *)((const char *)v + r->at);
}

static int answer(const struct gr_option_values *v, const char *group)
{
    if (is_on(v, "help")) {
        return gr_option_help(v, group, stdout) == GR_OK ? 0 : 2;
    }
    printf("%s %s\n", v->called->program, GR_VERSION);
    return 0;
}

static int refused(enum gr_status st)
{
    return st == GR_EIO ? 1 : 2;
}

int gr_option_values_parse(struct gr_option_values *v, int argc, char **argv)
{
    struct line l = {.argc = argc, .argv = argv};
    enum gr_status st = read_environment(v);
    for (l.i = 1; l.i < argc && st == GR_OK; l.i++) {
        st = take_next(v, &l);
        if (st == GR_OK && (is_on(v, "help") || is_on(v, "version"))) {
            const bool names_group = is_on(v, "help") && l.i + 1 < argc && argv[l.i + 1][0] != '-';
            return answer(v, names_group ? argv[l.i + 1] : NULL);
        }
    }
    st = st == GR_OK ? check_needed(v) : st;
    return st == GR_OK ? -1 : refused(st);
}
