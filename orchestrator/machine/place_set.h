/* A set of places of the table of sessions, a bit each: members are found in their order without a look at the rest of
 * the table. Pure. */
#ifndef GR_ORCHESTRATOR_MACHINE_PLACE_SET_H
#define GR_ORCHESTRATOR_MACHINE_PLACE_SET_H

#include <stdbool.h>
#include <stdint.h>

struct gr_place_set {
    uint64_t *word; /* owned, (n_word) */
    uint32_t n_word;
    uint32_t n; /* members */
};

/* For places 0 .. n_max - 1; empty. False: out of memory; destroy it all the same. */
bool gr_place_set_create(struct gr_place_set *s, uint32_t n_max);
void gr_place_set_destroy(struct gr_place_set *s);
/* The place is a member from now on, or is none. */
void gr_place_set_put(struct gr_place_set *s, uint32_t place, bool member);
/* The lowest member that is not below `from'; -1: there is none. */
int gr_place_set_next(const struct gr_place_set *s, uint32_t from);

#endif
