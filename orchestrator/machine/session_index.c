#include "orchestrator/machine/session_index.h"

#define MASK (GR_SESSION_INDEX_SIZE - 1)

_Static_assert((GR_SESSION_INDEX_SIZE & MASK) == 0, "cells are counted by a mask");
_Static_assert(GR_ORCH_SESSION_MAX <= UINT16_MAX + 1, "a place fits uint16_t");

/* Fibonacci hashing: numbers that follow each other lie far apart, so that those which live long form no runs. */
static uint32_t home_of(uint64_t id)
{
    return (uint32_t)((id * 0x9e3779b97f4a7c15u) >> 40) & MASK;
}

static uint32_t cell_of(const struct gr_session_index *x, uint64_t id)
{
    uint32_t i = home_of(id);
    while (x->id[i] != 0 && x->id[i] != id) {
        i = (i + 1) & MASK;
    }
    return i;
}

void gr_session_index_add(struct gr_session_index *x, uint64_t id, int place)
{
    const uint32_t i = cell_of(x, id);
    x->id[i] = id;
    x->place[i] = (uint16_t)place;
}

/* Those that probing would no longer find past the free cell move into it. */
void gr_session_index_remove(struct gr_session_index *x, uint64_t id)
{
    uint32_t free_cell = cell_of(x, id);
    if (x->id[free_cell] == 0) {
        return;
    }
    for (uint32_t i = (free_cell + 1) & MASK; x->id[i] != 0; i = (i + 1) & MASK) {
        const uint32_t from_home = (i - home_of(x->id[i])) & MASK;
        const uint32_t from_free = (i - free_cell) & MASK;
        if (from_home >= from_free) {
            x->id[free_cell] = x->id[i];
            x->place[free_cell] = x->place[i];
            free_cell = i;
        }
    }
    x->id[free_cell] = 0;
}

int gr_session_index_find(const struct gr_session_index *x, uint64_t id)
{
    const uint32_t i = cell_of(x, id);
    return id != 0 && x->id[i] == id ? x->place[i] : -1;
}
