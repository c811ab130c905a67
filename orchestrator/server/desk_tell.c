/* How clients are told anything. */
#include "orchestrator/server/desk_internal.h"

#include <stdarg.h>
#include <stdio.h>

void gr_desk_send(const struct gr_desk *d, uint32_t client, const struct gr_msg *m)
{
    if (client != GR_DESK_NOBODY) {
        d->io.send(d->io.ctx, client, m);
    }
}

void gr_desk_send_error(const struct gr_desk *d, uint32_t client, uint64_t session, enum gr_status st, const char *fmt,
                        ...)
{
    struct gr_msg m = {.type = GR_MSG_ERROR, .session = session, .error = {.code = (uint32_t)-st}};
    va_list args;
    va_start(args, fmt);
    vsnprintf(m.error.text, sizeof(m.error.text), fmt, args);
    va_end(args);
    gr_desk_send(d, client, &m);
}

void gr_desk_hold(const struct gr_desk *d, uint32_t client)
{
    if (client != GR_DESK_NOBODY) {
        d->io.keeper.hold(d->io.keeper.ctx, client);
    }
}

const char *gr_desk_why_refused(const struct gr_desk *d)
{
    return d->io.keeper.refuses != NULL ? d->io.keeper.refuses(d->io.keeper.ctx) : NULL;
}
