/* What is known of each of many sessions: a hash table by the session's number, with linear probing, which grows. A
 * cell is a struct whose first member is that number, a uint64_t; 0: the cell is free. Pure. */
#ifndef GR_ORCHESTRATOR_JOURNAL_CELLS_H
#define GR_ORCHESTRATOR_JOURNAL_CELLS_H

#include "common/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* All zero, but cell_bytes: there is none. */
struct gr_cells {
    size_t cell_bytes;
    size_t n_cell, n_used;
    void *cell; /* owned, (n_cell) */
};

/* There is none any more. */
void gr_cells_finish(struct gr_cells *t);
/* NULL: it is not there. */
void *gr_cells_find(const struct gr_cells *t, uint64_t session);
/* The session's cell; a new one is zero but for its number. It stays where it is until another is added. GR_ENOMEM:
 * logged, and nothing has changed. */
GR_NODISCARD enum gr_status gr_cells_add(struct gr_cells *t, uint64_t session, void **out);
/* Cell i of n_cell; NULL: it is free. */
void *gr_cells_at(const struct gr_cells *t, size_t i);
/* GR_ENOMEM: logged. */
GR_NODISCARD enum gr_status gr_cells_copy(const struct gr_cells *t, struct gr_cells *out);

#endif
