#include "orchestrator/journal/cells.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

#define N_FIRST 1024

static void *cell(const struct gr_cells *t, size_t i)
{
    return (char *)t->cell + i * t->cell_bytes;
}

static uint64_t session_of(const void *c)
{
    return *(const uint64_t *)c;
}

/* Of the session, or the free one that it would have. */
static void *place_of(const struct gr_cells *t, uint64_t session)
{
    size_t i = (size_t)((session * 0x9e3779b97f4a7c15u) >> 20) & (t->n_cell - 1);
    while (session_of(cell(t, i)) != 0 && session_of(cell(t, i)) != session) {
        i = (i + 1) & (t->n_cell - 1);
    }
    return cell(t, i);
}

static void *make(size_t n, const struct gr_cells *t)
{
    void *p = calloc(n, t->cell_bytes);
    if (p == NULL) {
        log_error("out of memory for the %zu sessions of a journal", t->n_used);
    }
    return p;
}

/* So that half are free at least. */
static enum gr_status make_room(struct gr_cells *t)
{
    if (2 * (t->n_used + 1) <= t->n_cell) {
        return GR_OK;
    }
    struct gr_cells more = *t;
    more.n_cell = t->n_cell == 0 ? N_FIRST : 2 * t->n_cell;
    more.cell = make(more.n_cell, t);
    if (more.cell == NULL) {
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < t->n_cell; i++) {
        if (session_of(cell(t, i)) != 0) {
            memcpy(place_of(&more, session_of(cell(t, i))), cell(t, i), t->cell_bytes);
        }
    }
    free(t->cell);
    *t = more;
    return GR_OK;
}

void gr_cells_finish(struct gr_cells *t)
{
    free(t->cell);
    *t = (struct gr_cells){.cell_bytes = t->cell_bytes};
}

void *gr_cells_find(const struct gr_cells *t, uint64_t session)
{
    void *c = session != 0 && t->n_cell > 0 ? place_of(t, session) : NULL;
    return c != NULL && session_of(c) == session ? c : NULL;
}

enum gr_status gr_cells_add(struct gr_cells *t, uint64_t session, void **out)
{
    GR_ASSERT(session != 0);
    GR_TRY(make_room(t));
    void *c = place_of(t, session);
    t->n_used += session_of(c) == 0;
    *(uint64_t *)c = session;
    *out = c;
    return GR_OK;
}

void *gr_cells_at(const struct gr_cells *t, size_t i)
{
    void *c = cell(t, i);
    return session_of(c) != 0 ? c : NULL;
}

enum gr_status gr_cells_copy(const struct gr_cells *t, struct gr_cells *out)
{
    struct gr_cells c = *t;
    if (t->n_cell > 0) {
        c.cell = make(t->n_cell, t);
        if (c.cell == NULL) {
            return GR_ENOMEM;
        }
        memcpy(c.cell, t->cell, t->n_cell * t->cell_bytes);
    }
    *out = c;
    return GR_OK;
}
