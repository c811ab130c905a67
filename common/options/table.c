/* The table of options as an array, and what its rows say. */
#include "common/options/options.h"

#include <ctype.h>
#include <string.h>

/* Sets of commands that many rows name. */
#define TURN (GR_CMD_RUN | GR_CMD_OPEN | GR_CMD_SEND)
#define NEW (GR_CMD_RUN | GR_CMD_OPEN) /* what is fixed when a session is opened */
#define ENGINE (GR_CMD_RUN | GR_CMD_SERVE)
#define CLIENT (TURN | GR_CMD_LOOK | GR_CMD_CLOSE | GR_CMD_PING | GR_CMD_WAIT)
#define ALL (CLIENT | GR_CMD_SERVE)
#define WORKERS (GR_CMD_TARGET | GR_CMD_DRAFT)
/* A column: graft refuses the option where it does not start the workers. */
#define OF_WORKERS .refused = GR_WITH_CONNECT | GR_WITHOUT_SPAWN

const struct gr_option gr_option_table[GR_N_OPTION] = {
#define GR_OPTION(kind_, id, name_, ...) \
    [GR_OPTION_##id] = {.name = name_, .kind = GR_KIND_##kind_, .at = offsetof(struct gr_options, id), __VA_ARGS__},
#include "common/options/table.inc"
#undef GR_OPTION
};

const struct gr_option *gr_option_find(unsigned command, const char *name, size_t len)
{
    for (const struct gr_option *r = gr_option_table; r < gr_option_table + GR_N_OPTION; r++) {
        if ((r->commands & command) != 0 && strlen(r->name) == len && memcmp(r->name, name, len) == 0) {
            return r;
        }
    }
    return NULL;
}

bool gr_option_is_fixed(const struct gr_option *option)
{
    const bool opens = (option->commands & GR_CMD_OPEN) != 0;
    return option->fixed || (opens && (option->commands & GR_CMD_SEND) == 0);
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
