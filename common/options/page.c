#include "common/options/page.h"

#include <string.h>

/* `session list' is told as list. */
static const char *short_name(const struct gr_option_command *c)
{
    static const char prefix[] = "session ";
    const size_t n = sizeof(prefix) - 1;
    return c->word[0] == '\0' ? c->program : strncmp(c->word, prefix, n) == 0 ? c->word + n : c->word;
}

/* They are told together, as worker. */
static bool is_worker_verb(const struct gr_option_command *c)
{
    return strncmp(c->word, "worker ", sizeof("worker ") - 1) == 0;
}

static unsigned all_commands(const struct gr_option_table *t)
{
    unsigned all = 0;
    for (const struct gr_option_command *c = t->command; c < t->command + t->n_command; c++) {
        all |= c->command;
    }
    return all;
}

/* Of "session list": the length of "session", 0 where there is no verb. */
static size_t noun_len(const struct gr_option_command *c)
{
    const char *space = strchr(c->word, ' ');
    return space != NULL ? (size_t)(space - c->word) : 0;
}

static bool same_noun(const struct gr_option_command *a, const struct gr_option_command *b)
{
    return noun_len(a) > 0 && noun_len(a) == noun_len(b) && strncmp(a->word, b->word, noun_len(a)) == 0;
}

/* The noun stands for its verbs: all of them have the option, or they are a worker's, which differ in little. */
static bool noun_stands(const struct gr_option_table *t, unsigned commands, const struct gr_option_command *of)
{
    bool all = true;
    for (const struct gr_option_command *c = t->command; c < t->command + t->n_command; c++) {
        all = all && (!same_noun(c, of) || (c->command & commands) != 0);
    }
    return noun_len(of) > 0 && (all || is_worker_verb(of));
}

/* Has an earlier verb of its noun been met that has the option? */
static bool is_told(const struct gr_option_table *t, unsigned commands, const struct gr_option_command *of)
{
    bool told = false;
    for (const struct gr_option_command *c = t->command; c < of; c++) {
        told = told || (same_noun(c, of) && c->help != NULL && (c->command & commands) != 0);
    }
    return told;
}

static void print_commands(const struct gr_option_table *t, unsigned commands, FILE *out)
{
    const char *gap = "";
    if (commands == all_commands(t)) {
        fprintf(out, "all");
        return;
    }
    for (const struct gr_option_command *c = t->command; c < t->command + t->n_command; c++) {
        const bool by_noun = noun_stands(t, commands, c);
        if (c->help == NULL || (c->command & commands) == 0 || (by_noun && is_told(t, commands, c))) {
            continue;
        }
        if (by_noun) {
            fprintf(out, "%s%.*s", gap, (int)noun_len(c), c->word);
        } else {
            fprintf(out, "%s%s", gap, short_name(c));
        }
        gap = ", ";
    }
}

/* A cell of a Markdown table. */
static void print_text(const char *text, FILE *out)
{
    for (; *text != '\0'; text++) {
        fprintf(out, *text == '|' ? "\\|" : "%c", *text);
    }
}

static void print_code(const char *text, FILE *out)
{
    if (text != NULL && text[0] != '\0') {
        fprintf(out, "`%s`", text);
    }
}

static void print_name(const struct gr_option *r, FILE *out)
{
    const bool word = (r->commands & ~r->positional) == 0;
    if (r->kind == GR_KIND_WORKERS) {
        fprintf(out, "|  | "); /* the key says it */
        return;
    }
    fprintf(out, "| `%s%s%s", word ? "" : "--", word ? "" : r->name, word || r->argument == NULL ? "" : " ");
    print_text(r->argument != NULL ? r->argument : "", out);
    fprintf(out, "`");
    if (r->alias != 0) {
        fprintf(out, ", `-%c`", r->alias);
    }
    if (r->brief != NULL) {
        fprintf(out, ", `-%s`", r->brief);
    }
    fprintf(out, " | ");
}

static void print_default(const struct gr_option_table *t, const struct gr_option *r, FILE *out)
{
    const char *gap = r->initial != NULL ? "; " : "";
    fprintf(out, "%s", r->initial != NULL ? r->initial : "");
    for (size_t i = 0; i < GR_ARRAY_LEN(r->also) && r->also[i].commands != 0; i++) {
        fprintf(out, "%s", gap);
        print_commands(t, r->also[i].commands, out);
        fprintf(out, ": %s", r->also[i].initial);
        gap = "; ";
    }
    fprintf(out, " | ");
}

/* The key, and the one that switches between two values. */
static void print_keys(const struct gr_option *r, FILE *out)
{
    const char *on = r->switched_on, *off = r->switched_off;
    print_code(r->yaml, out);
    if (r->yaml_switch != NULL) {
        fprintf(out, "%s`%s` (%s%s%s%s%s)", r->yaml != NULL ? "; " : "", r->yaml_switch, on != NULL ? "true: " : "",
                on != NULL ? on : "", on != NULL && off != NULL ? ", " : "", off != NULL ? "false: " : "",
                off != NULL ? off : "");
    }
    fprintf(out, " | ");
}

static void print_row(const struct gr_option_table *t, const struct gr_option *r, bool has_http, FILE *out)
{
    char variable[64], range[160];
    print_name(r, out);
    if (t->in_environment) {
        gr_option_environment(r, variable);
        print_code(variable, out);
        fprintf(out, " | ");
    }
    gr_option_range(r, range);
    fprintf(out, "%s | ", range);
    print_default(t, r, out);
    if (t->in_environment) {
        print_keys(r, out);
    }
    if (has_http) {
        print_code(r->http, out);
        fprintf(out, " | ");
    }
    print_commands(t, r->commands, out);
    fprintf(out, " | ");
    print_text(r->help, out);
    fprintf(out, " |\n");
}

static void print_group(const struct gr_option_table *t, int group, const char *level, FILE *out)
{
    bool any = false, has_http = false;
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        any = any || r->group == group;
        has_http = has_http || (r->group == group && r->http != NULL);
    }
    if (!any) {
        return;
    }
    fprintf(out, "\n%s %s (`%s`)\n\n", level, t->group[group].title, t->group[group].name);
    fprintf(out, "| option | %srange | default | %s%scommands | meaning |\n", t->in_environment ? "variable | " : "",
            t->in_environment ? "key | " : "", has_http ? "request | " : "");
    fprintf(out, "|---|%s---|---|%s%s---|---|\n", t->in_environment ? "---|" : "", t->in_environment ? "---|" : "",
            has_http ? "---|" : "");
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        if (r->group == group) {
            print_row(t, r, has_http, out);
        }
    }
}

static void print_part(const struct gr_option_table *t, FILE *out)
{
    fprintf(out, "\n## %s\n\n", t->command[0].program);
    fprintf(out, "These options are for the command line alone: what was measured is told by its command.\n");
    for (int i = 0; i < t->n_group; i++) {
        print_group(t, i, "###", out);
    }
}

void gr_option_page(const struct gr_option_table *const *table, int n_table, FILE *out)
{
    fprintf(out, "# Options\n\n"
                 "`graft options` prints this page from the tables in common/options/table.inc and\n"
                 "bench/options/table.inc; a test compares them.\n\n"
                 "The command line goes first, then the variable in the environment, then the key of the YAML file\n"
                 "that `--config` names, then the default. A bad value is exit status 2 wherever it comes from.\n"
                 "`list`, `show`, `open`, `send`, `close`, `refresh` and `purge` are verbs of `graft session`;\n"
                 "`worker` is every verb of `graft worker`.\n"
                 "`--help GROUP` tells one group. `request` is the name that OpenAI's API and vLLM have for it.\n"
                 "A time may be written as 500ms, 2s, 5m or 1h; a plain number has the unit of its range.\n\n"
                 "The same tables make the man pages and the completion of shells, which `meson install` puts in\n"
                 "place; without it: `. <(graft completion bash)` or `. <(graft completion zsh)`.\n");
    for (int i = 0; i < table[0]->n_group; i++) {
        print_group(table[0], i, "##", out);
    }
    for (int i = 1; i < n_table; i++) {
        print_part(table[i], out);
    }
}
