/* Which place of the table a session's number stands at: open addressing with linear probing. Pure. */
#ifndef GR_ORCHESTRATOR_MACHINE_SESSION_INDEX_H
#define GR_ORCHESTRATOR_MACHINE_SESSION_INDEX_H

#include <stdbool.h>
#include <stdint.h>

struct gr_session_index {
    uint32_t mask;   /* cells less one; a power of two of them, so that half are free at least */
    uint64_t *id;    /* owned; 0: the cell is free; no session has this number */
    uint32_t *place; /* owned */
};

/* For n_max numbers at a time. False: out of memory; destroy it all the same. */
bool gr_session_index_create(struct gr_session_index *x, uint32_t n_max);
void gr_session_index_destroy(struct gr_session_index *x);
/* A number that is there already stands at this place from now on. */
void gr_session_index_add(struct gr_session_index *x, uint64_t id, int place);
void gr_session_index_remove(struct gr_session_index *x, uint64_t id);
/* -1: it is not there. */
int gr_session_index_find(const struct gr_session_index *x, uint64_t id);

#endif
