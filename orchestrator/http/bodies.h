/* Bodies of requests while they come, and until they are read: how many bytes all of them may hold together. A body
 * that is small has its place always, since connections are bounded; larger ones share what there is, and one that
 * finds no more is given up, so that its sender is told to come again. What is counted is what is taken of memory, not
 * what was announced: who announces much and sends nothing keeps nobody out. */
#ifndef GR_ORCHESTRATOR_HTTP_BODIES_H
#define GR_ORCHESTRATOR_HTTP_BODIES_H

#include "common/base/status.h"

#include <stdatomic.h>
#include <stddef.h>

#define GR_HTTP_BODY_MAX (32u << 20)    /* bytes of one */
#define GR_HTTP_BODIES_MAX (256u << 20) /* bytes of all that are not small */
#define GR_HTTP_BODY_SMALL (64u << 10)

/* All that are held. Any thread. */
struct gr_bodies {
    _Atomic size_t n; /* bytes of those that are not small */
};

struct gr_body {
    char *p; /* owned */
    size_t len, cap;
};

/* Appends data, within GR_HTTP_BODY_MAX. GR_ELIMIT: all bodies hold as much as they may; GR_ENOMEM. The body is dropped
 * in both cases. */
GR_NODISCARD enum gr_status gr_body_add(struct gr_bodies *all, struct gr_body *body, const char *data, size_t n);
/* Frees it, and takes it off the count. */
void gr_body_drop(struct gr_bodies *all, struct gr_body *body);

#endif
