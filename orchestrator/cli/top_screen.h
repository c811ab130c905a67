/* `graft top` on a terminal of its own: looks at every interval, shows the view, takes keys. One thread. */
#ifndef GR_ORCHESTRATOR_CLI_TOP_SCREEN_H
#define GR_ORCHESTRATOR_CLI_TOP_SCREEN_H

#include "orchestrator/cli/remote.h"

/* False: the program was built without ncurses, and gr_top_screen_run() must not be called. */
bool gr_top_screen_built(void);
/* Until q is pressed, a signal comes (GR_ECANCELED) or the orchestrator is gone. The terminal is as it was before. */
GR_NODISCARD enum gr_status gr_top_screen_run(struct gr_remote *r, const struct gr_options *o);

#endif
