/* Which process of each seat a target has heard of last, so that an older one is refused: one that was frozen or cut
 * off, and whose place another has taken. Pure. */
#ifndef GR_TRANSPORT_WORKER_CALLERS_H
#define GR_TRANSPORT_WORKER_CALLERS_H

#include "common/protocol/msg.h"

#define GR_CALLERS_MAX 64

struct gr_callers {
    struct {
        char seat[GR_SEAT_MAX];
        uint64_t number;     /* the greatest that has called from there */
    } known[GR_CALLERS_MAX]; /* the latest ones */
    uint32_t n;              /* that were noted, and may have been noted over */
};

enum gr_caller {
    GR_CALLER_TAKEN,    /* the first of its seat, the same as before, or one of whom no seat or number is known */
    GR_CALLER_REPLACES, /* newer than the one before */
    GR_CALLER_OUTDATED
};

enum gr_caller gr_callers_take(struct gr_callers *c, const char *seat, uint64_t number);

#endif
