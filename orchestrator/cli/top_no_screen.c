/* In the place of top_screen.c where ncurses is missing: the command refuses before it gets here. */
#include "orchestrator/cli/top_screen.h"

#include "common/base/status.h"

bool gr_top_screen_built(void)
{
    return false;
}

enum gr_status gr_top_screen_run(struct gr_remote *r, const struct gr_options *o)
{
    (void)r;
    (void)o;
    GR_ASSERT(!"there is a screen");
    return GR_EINVAL;
}
