/* What --help prints. */
#include "common/options/option.h"

#include "common/base/log.h"
#include "common/base/suggest.h"

#include <string.h>

void gr_option_explain(const struct gr_option *r, unsigned command, char text[static 320])
{
    const char *initial = gr_option_initial(r, command);
    const size_t len = strlen(r->help);
    const bool told = initial != NULL;
    const bool joins = told && r->choices == NULL && r->help[len - 1] == ')'; /* one pair of parentheses is enough */
    char choices[160] = "";
    if (r->choices != NULL) {
        gr_option_range(r, choices);
    }
    snprintf(text, 320, "%.*s%s%s%s%s%s", (int)(joins ? len - 1 : len), r->help, r->choices != NULL ? ": " : "",
             choices,
             joins  ? "; default "
             : told ? " (default "
                    : "",
             told ? initial : "", told ? ")" : "");
}

static void help_row(const struct gr_option *r, unsigned command, FILE *out)
{
    char left[64], text[320];
    const char letter[] = {r->alias, '\0'};
    const char *brief = r->brief != NULL ? r->brief : letter;
    if (gr_option_is_word(r, command)) {
        snprintf(left, sizeof(left), "%s", r->argument);
    } else {
        snprintf(left, sizeof(left), "--%s%s%s %s", r->name, brief[0] != '\0' ? " -" : "", brief,
                 r->argument != NULL ? r->argument : "");
    }
    gr_option_explain(r, command, text);
    fprintf(out, "  %-34s %s\n", left, text);
}

static void help_group(const struct gr_option_values *v, int group, FILE *out)
{
    const struct gr_option_table *t = v->table;
    bool any = false;
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        if (!gr_option_is_for(r, v->called->command) || r->group != group || r->kind == GR_KIND_WORKERS) {
            continue;
        }
        if (!any) {
            fprintf(out, "\n%s (--help %s):\n", t->group[group].title, t->group[group].name);
        }
        any = true;
        help_row(r, v->called->command, out);
    }
}

static enum gr_status find_group(const struct gr_option_table *t, const char *name, int *group_out)
{
    struct gr_suggest near = {.word = name, .len = strlen(name)};
    char meant[96];
    for (int i = 0; i < t->n_group; i++) {
        if (strcmp(t->group[i].name, name) == 0) {
            *group_out = i;
            return GR_OK;
        }
        gr_suggest_offer(&near, t->group[i].name);
    }
    gr_suggest_text(&near, "", meant, sizeof(meant));
    log_error("--help %s: there is no such group of options%s", name, meant);
    return GR_ENOTFOUND;
}

enum gr_status gr_option_help(const struct gr_option_values *v, const char *group, FILE *out)
{
    const struct gr_option_command *c = v->called;
    char called[64];
    int only = -1;
    if (group != NULL) {
        GR_TRY(find_group(v->table, group, &only));
    }
    gr_option_called(c, called);
    fprintf(out, "usage: %s %s\n\n%s\n", called, c->line, c->text != NULL ? c->text : c->help);
    for (int i = 0; i < v->table->n_group; i++) {
        if (only < 0 || only == i) {
            help_group(v, i, out);
        }
    }
    fprintf(out, "\n");
    if (v->table->in_environment) {
        fprintf(out, "Every option can be set in the environment: --max-tokens is GRAFT_MAX_TOKENS.\n");
    }
    fprintf(out, "Exit status: " GR_OPTION_STATUSES "\n");
    return GR_OK;
}
