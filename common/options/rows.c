/* Rows and commands by name, and what they say. */
#include "common/options/option.h"

#include <ctype.h>
#include <string.h>

const struct gr_option *gr_option_find(const struct gr_option_table *t, unsigned command, const char *name, size_t len)
{
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        if ((r->commands & ~r->positional & command) != 0 && r->kind != GR_KIND_WORKERS && strlen(r->name) == len &&
            memcmp(r->name, name, len) == 0) {
            return r;
        }
    }
    return NULL;
}

const struct gr_option_command *gr_option_command_find(const struct gr_option_table *t, const char *program,
                                                       const char *word)
{
    for (const struct gr_option_command *c = t->command; c < t->command + t->n_command; c++) {
        if (strcmp(c->program, program) == 0 && strcmp(c->word, word) == 0) {
            return c;
        }
    }
    return NULL;
}

void gr_option_environment(const struct gr_option *option, char name[static 64])
{
    static const char prefix[] = "GRAFT_";
    size_t n = sizeof(prefix) - 1;
    memset(name, 0, 64);
    if (option->no_environment) {
        return;
    }
    memcpy(name, prefix, n);
    for (const char *p = option->name; *p != '\0' && n < 63; p++) {
        name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    }
}

void gr_option_called(const struct gr_option_command *called, char name[static 64])
{
    snprintf(name, 64, "%s%s%s", called->program, called->word[0] != '\0' ? " " : "", called->word);
}

const char *gr_option_initial(const struct gr_option *option, unsigned command)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(option->also); i++) {
        if ((option->also[i].commands & command) != 0) {
            return option->also[i].initial;
        }
    }
    return option->initial;
}
