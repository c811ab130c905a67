/* Which of many control links may have something to read, and which have something to send: who looks goes to those
 * alone, whatever the number of the others. Links are known by numbers. One thread. */
#ifndef GR_ORCHESTRATOR_SERVER_LINK_WATCH_H
#define GR_ORCHESTRATOR_SERVER_LINK_WATCH_H

#include "common/base/status.h"
#include "orchestrator/machine/place_set.h"
#include "transport/connect/control.h"

struct gr_link_watch {
    int epoll_fd; /* readable when a link is */
    struct gr_place_set to_read, to_send;
    bool *waits; /* owned, by number: the kernel tells when the link's socket takes more */
};

/* For numbers 0 .. n - 1. Logged; destroy it all the same. */
GR_NODISCARD enum gr_status gr_link_watch_create(struct gr_link_watch *w, uint32_t n);
void gr_link_watch_destroy(struct gr_link_watch *w);
/* A link that has come; it may have something to read. GR_EIO: the kernel refuses (logged). */
GR_NODISCARD enum gr_status gr_link_watch_add(struct gr_link_watch *w, uint32_t number, const struct gr_control *c);
/* Before the link is destroyed. */
void gr_link_watch_remove(struct gr_link_watch *w, uint32_t number, const struct gr_control *c);
/* Is it to be read again? */
void gr_link_watch_read(struct gr_link_watch *w, uint32_t number, bool again);
/* A message was queued. */
void gr_link_watch_queued(struct gr_link_watch *w, uint32_t number);
/* It was flushed; where some is left the kernel tells when the socket takes more. */
void gr_link_watch_flushed(struct gr_link_watch *w, uint32_t number, const struct gr_control *c);
/* Notes what the kernel has to tell; waits for nothing. */
void gr_link_watch_look(struct gr_link_watch *w);

#endif
