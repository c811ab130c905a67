#include "orchestrator/machine/session_index.h"

#include <stdlib.h>

bool gr_session_index_create(struct gr_session_index *x, uint32_t n_max)
{
    uint32_t n = 1;
    while (n < 2 * n_max) {
        n *= 2;
    }
    x->mask = n - 1;
    x->id = calloc(n, sizeof(*x->id));
    x->place = calloc(n, sizeof(*x->place));
    return x->id != NULL && x->place != NULL;
}

void gr_session_index_destroy(struct gr_session_index *x)
{
    free(x->id);
    free(x->place);
}

/* Fibonacci hashing: numbers that follow each other lie far apart, so that those which live long form no runs. */
static uint32_t home_of(const struct gr_session_index *x, uint64_t id)
{
    return (uint32_t)((id * 0x9e3779b97f4a7c15u) >> 40) & x->mask;
}

static uint32_t cell_of(const struct gr_session_index *x, uint64_t id)
{
    uint32_t i = home_of(x, id);
    while (x->id[i] != 0 && x->id[i] != id) {
        i = (i + 1) & x->mask;
    }
    return i;
}

void gr_session_index_add(struct gr_session_index *x, uint64_t id, int place)
{
    const uint32_t i = cell_of(x, id);
    x->id[i] = id;
    x->place[i] = (uint32_t)place;
}

/* Those that probing would no longer find past the free cell move into it. */
void gr_session_index_remove(struct gr_session_index *x, uint64_t id)
{
    uint32_t free_cell = cell_of(x, id);
    if (x->id[free_cell] == 0) {
        return;
    }
    for (uint32_t i = (free_cell + 1) & x->mask; x->id[i] != 0; i = (i + 1) & x->mask) {
        const uint32_t from_home = (i - home_of(x, x->id[i])) & x->mask;
        const uint32_t from_free = (i - free_cell) & x->mask;
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
    return id != 0 && x->id[i] == id ? (int)x->place[i] : -1;
}
