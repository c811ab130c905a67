/* `graft session show ID --text': the last answer of a session, as the orchestrator knows it. */
#ifndef GR_ORCHESTRATOR_CLI_SESSION_TEXT_H
#define GR_ORCHESTRATOR_CLI_SESSION_TEXT_H

#include "orchestrator/cli/remote.h"

/* Of o: session, json, and model, whose tokenizer reads the tokens; without one --json has their ids alone. Returns the
 * exit status. */
int gr_session_text(struct gr_remote *r, const struct gr_options *o);

#endif
