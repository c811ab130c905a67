#include "transport/worker/callers.h"

#include "common/base/status.h"

#include <stdio.h>
#include <string.h>

enum gr_caller gr_callers_take(struct gr_callers *c, const char *seat, uint64_t number)
{
    if (seat[0] == '\0' || number == 0) {
        return GR_CALLER_TAKEN;
    }
    for (uint32_t i = 0; i < GR_MIN(c->n, (uint32_t)GR_CALLERS_MAX); i++) {
        const uint64_t before = c->known[i].number;
        if (strcmp(c->known[i].seat, seat) == 0) {
            c->known[i].number = GR_MAX(before, number);
            return number < before ? GR_CALLER_OUTDATED : number > before ? GR_CALLER_REPLACES : GR_CALLER_TAKEN;
        }
    }
    const uint32_t at = c->n++ % GR_CALLERS_MAX;
    snprintf(c->known[at].seat, sizeof(c->known[at].seat), "%s", seat);
    c->known[at].number = number;
    return GR_CALLER_TAKEN;
}
