/* Commands with a verb, `graft session list` and the like: the verb is found, its options are read, and a running
 * orchestrator is asked. */
#ifndef GR_ORCHESTRATOR_CLI_VERBS_H
#define GR_ORCHESTRATOR_CLI_VERBS_H

#include "orchestrator/cli/remote.h"

#include <stddef.h>

/* Both return the exit status; one of them is NULL. */
struct gr_verb {
    const char *name, *word; /* word: of its entry in the options' table, as "session list" */
    enum gr_command command;
    int (*ask)(struct gr_remote *r, const struct gr_options *o);
    int (*turn)(struct gr_options *o); /* makes its own link */
};

struct gr_verbs {
    const char *command;  /* "session" */
    enum gr_command help; /* whose options are read where no verb is named */
    const char *text;     /* "list, show ID or purge" */
    const struct gr_verb *verb;
    size_t n;
};

/* argv[1]: the verb. Returns the exit status. */
int gr_verbs_run(const struct gr_verbs *verbs, int argc, char **argv);

#endif
