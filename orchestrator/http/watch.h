/* Notices clients that go away while nothing is sent to them: the library does not look at a connection that waits. A
 * thread of its own. A closed connection and one that its client has only shut down for writing look alike until
 * something is sent; so then `probe' is asked to send something harmless, and what comes of it tells. */
#ifndef GR_ORCHESTRATOR_HTTP_WATCH_H
#define GR_ORCHESTRATOR_HTTP_WATCH_H

#include "common/base/status.h"

struct gr_watch;

struct gr_watch_calls {
    void (*probe)(void *who); /* its client will say no more, or is gone */
    void (*gone)(void *who);
};

/* Something else that the thread waits for. */
struct gr_watch_other {
    int fd; /* borrowed */
    void *ctx;
    void (*ready)(void *ctx); /* it is readable, until this has read it */
};

GR_NODISCARD enum gr_status gr_watch_create(const struct gr_watch_calls *calls, const struct gr_watch_other *other,
                                            struct gr_watch **out);
void gr_watch_destroy(struct gr_watch *w);
/* Until gr_watch_remove() returned, calls may be made with who. GR_ELIMIT: it cannot be watched. */
GR_NODISCARD enum gr_status gr_watch_add(struct gr_watch *w, int fd, void *who);
void gr_watch_remove(struct gr_watch *w, int fd);

#endif
