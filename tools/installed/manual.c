/* Prints the man page of a program, plain troff (man(7)), from the tables of options: `manual graft-target`. The build
 * runs it; it is not installed. */
#include "bench/options/options.h"
#include "common/options/options.h"

#include <stdio.h>
#include <string.h>

struct program {
    const char *name, *what, *see;
    const struct gr_option_table *table;
};

static const struct program programs[] = {
    {"graft", "disaggregated speculative decoding: generate text, serve, ask a running orchestrator",
     "graft-target(1), graft-draft(1), graft-bench(1)", &gr_option_table},
    {"graft-target", "the target worker of graft", "graft(1), graft-draft(1)", &gr_option_table},
    {"graft-draft", "the draft worker of graft", "graft(1), graft-target(1)", &gr_option_table},
    {"graft-bench", "measurements of graft", "graft(1)", &gr_bench_option_table},
};

/* Text of a line: a hyphen is a minus as it is typed, and nothing begins a request. */
static void text(const char *s)
{
    if (*s == '.' || *s == '\'') {
        printf("\\&");
    }
    for (; *s != '\0'; s++) {
        if (*s == '-') {
            printf("\\-");
        } else if (*s == '\\') {
            printf("\\e");
        } else {
            putchar(*s);
        }
    }
}

static bool is_of(const struct program *p, const struct gr_option_command *c)
{
    return strcmp(c->program, p->name) == 0;
}

/* All commands of the program. */
static unsigned commands_of(const struct program *p)
{
    unsigned set = 0;
    for (int i = 0; i < p->table->n_command; i++) {
        set |= is_of(p, &p->table->command[i]) ? p->table->command[i].command : 0;
    }
    return set;
}

static void synopsis(const struct program *p)
{
    printf(".SH SYNOPSIS\n");
    for (int i = 0; i < p->table->n_command; i++) {
        const struct gr_option_command *c = &p->table->command[i];
        char called[64];
        if (is_of(p, c) && c->help != NULL) {
            gr_option_called(c, called);
            printf(".br\n\\fB");
            text(called);
            printf("\\fR ");
            text(c->line);
            printf("\n");
        }
    }
}

static void description(const struct program *p)
{
    printf(".SH DESCRIPTION\n");
    for (int i = 0; i < p->table->n_command; i++) {
        const struct gr_option_command *c = &p->table->command[i];
        char called[64];
        if (!is_of(p, c) || c->help == NULL) {
            continue;
        }
        gr_option_called(c, called);
        printf(".TP\n\\fB");
        text(called);
        printf("\\fR\n");
        text(c->text != NULL ? c->text : c->help);
        printf("\n");
    }
}

/* Which of the program's commands take it, where not all do. */
static void option_commands(const struct program *p, const struct gr_option *r)
{
    const char *gap = "Of ";
    if ((commands_of(p) & ~r->commands) == 0) {
        return;
    }
    for (int i = 0; i < p->table->n_command; i++) {
        const struct gr_option_command *c = &p->table->command[i];
        if (is_of(p, c) && c->help != NULL && gr_option_is_for(r, c->command)) {
            printf("%s", gap);
            text(c->word);
            gap = ", ";
        }
    }
    printf(".\n");
}

static void option_twins(const struct program *p, const struct gr_option *r)
{
    char variable[64];
    gr_option_environment(r, variable);
    if (p->table->in_environment && variable[0] != '\0') {
        printf("Environment: %s.\n", variable);
    }
    if (r->yaml != NULL) {
        printf("Key: %s.\n", r->yaml);
    }
}

static void option_name(const struct program *p, const struct gr_option *r)
{
    const bool word = (r->commands & commands_of(p) & ~r->positional) == 0;
    printf(".TP\n\\fB%s", word ? "" : "\\-\\-");
    text(word ? r->argument : r->name);
    printf("\\fR");
    if (r->alias != 0) {
        printf(", \\fB\\-%c\\fR", r->alias);
    }
    if (!word && r->argument != NULL) {
        printf(" \\fI");
        text(r->argument);
        printf("\\fR");
    }
    printf("\n");
}

static void option(const struct program *p, const struct gr_option *r)
{
    char explained[320], range[160];
    option_name(p, r);
    gr_option_explain(r, r->commands & commands_of(p), explained);
    text(explained);
    printf(".\n");
    gr_option_range(r, range);
    if (range[0] != '\0' && r->choices == NULL) {
        printf("Range: ");
        text(range);
        printf(".\n");
    }
    option_twins(p, r);
    option_commands(p, r);
}

static void options(const struct program *p)
{
    printf(".SH OPTIONS\n");
    for (int g = 0; g < p->table->n_group; g++) {
        bool any = false;
        for (int i = 0; i < p->table->n_row; i++) {
            const struct gr_option *r = &p->table->row[i];
            if (r->group != g || !gr_option_is_for(r, commands_of(p)) || r->kind == GR_KIND_WORKERS) {
                continue;
            }
            if (!any) {
                printf(".SS \"%s\"\n", p->table->group[g].title);
            }
            any = true;
            option(p, r);
        }
    }
}

static void page(const struct program *p)
{
    printf(".TH \"%s\" \"1\" \"\" \"graft %s\" \"User Commands\"\n.SH NAME\n", p->name, GR_VERSION);
    text(p->name);
    printf(" \\- %s\n", p->what);
    synopsis(p);
    description(p);
    options(p);
    printf(".SH \"EXIT STATUS\"\n");
    text(GR_OPTION_STATUSES);
    printf("\n.SH \"SEE ALSO\"\n");
    text(p->see);
    printf("\n");
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(programs) && argc == 2; i++) {
        if (strcmp(programs[i].name, argv[1]) == 0) {
            page(&programs[i]);
            return fflush(stdout) == 0 ? 0 : 1;
        }
    }
    fprintf(stderr, "usage: manual graft | graft-target | graft-draft | graft-bench\n");
    return 2;
}
