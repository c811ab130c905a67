/* Which place of the table a session's number stands at: open addressing with linear probing, no memory of its own.
 * Pure. */
#ifndef GR_ORCHESTRATOR_MACHINE_SESSION_INDEX_H
#define GR_ORCHESTRATOR_MACHINE_SESSION_INDEX_H

#include "orchestrator/machine/orch.h"

#define GR_SESSION_INDEX_SIZE (2 * GR_ORCH_SESSION_MAX) /* a power of two: half of the cells are free at least */

/* Zeroed: empty. */
struct gr_session_index {
    uint64_t id[GR_SESSION_INDEX_SIZE]; /* 0: the cell is free; no session has this number */
    uint16_t place[GR_SESSION_INDEX_SIZE];
};

/* At most GR_ORCH_SESSION_MAX numbers, each once. */
void gr_session_index_add(struct gr_session_index *x, uint64_t id, int place);
void gr_session_index_remove(struct gr_session_index *x, uint64_t id);
/* -1: it is not there. */
int gr_session_index_find(const struct gr_session_index *x, uint64_t id);

#endif
