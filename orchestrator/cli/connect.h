/* A turn at a running orchestrator: `graft run --connect`, `graft session open` and `graft session send`. */
#ifndef GR_ORCHESTRATOR_CLI_CONNECT_H
#define GR_ORCHESTRATOR_CLI_CONNECT_H

#include "orchestrator/cli/generate.h"

/* By the options: --session ID goes on with that session, --keep leaves a new one open. Returns the exit status. */
int gr_connect_run(struct gr_options *o);
/* A new session that stays open; prints its id alone on standard output. */
int gr_connect_open(struct gr_options *o);

/* ---- conversations: several turns over one link (chat.c) ---- */

struct gr_connect;

/* g: a generation that is over. */
GR_NODISCARD enum gr_status gr_connect_begin(const struct gr_options *o, struct gr_generation *g,
                                             struct gr_connect **out);
/* Carries a turn through: until it is over, has failed or was interrupted. */
void gr_connect_turn(struct gr_connect *c, struct gr_generation *g);
/* Between turns: until fd has something to read, or a signal came (the last turn's `interrupted'). */
void gr_connect_wait(struct gr_connect *c, int fd);
/* Nobody is left to ask. */
bool gr_connect_is_gone(const struct gr_connect *c);
/* Closes the session; the next turn opens one. */
void gr_connect_forget(struct gr_connect *c);
void gr_connect_end(struct gr_connect *c);

#endif
