#include "orchestrator/journal/space.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

#define CELLS_FIRST 1024

void gr_space_finish(struct gr_space *s)
{
    free(s->cell);
    *s = (struct gr_space){.n_byte_segment = s->n_byte_segment};
}

/* ---- the table ---- */

static size_t place_of(const struct gr_space_session *cell, size_t n_cell, uint64_t session)
{
    size_t i = (size_t)((session * 0x9e3779b97f4a7c15u) >> 20) & (n_cell - 1);
    while (cell[i].session != 0 && cell[i].session != session) {
        i = (i + 1) & (n_cell - 1);
    }
    return i;
}

static enum gr_status make_room(struct gr_space *s)
{
    if (2 * (s->n_used + 1) <= s->n_cell) {
        return GR_OK;
    }
    const size_t n = s->n_cell == 0 ? CELLS_FIRST : 2 * s->n_cell;
    struct gr_space_session *more = calloc(n, sizeof(*more));
    if (more == NULL) {
        log_error("out of memory for the %zu sessions of a journal", s->n_used);
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < s->n_cell; i++) {
        if (s->cell[i].session != 0) {
            more[place_of(more, n, s->cell[i].session)] = s->cell[i];
        }
    }
    free(s->cell);
    s->cell = more;
    s->n_cell = n;
    return GR_OK;
}

static const struct gr_space_session *find(const struct gr_space *s, uint64_t session)
{
    const struct gr_space_session *c = s->n_cell > 0 ? &s->cell[place_of(s->cell, s->n_cell, session)] : NULL;
    return c != NULL && c->session == session ? c : NULL;
}

static bool is_dead(const struct gr_space_session *c)
{
    return c->begun && c->ended;
}

bool gr_space_is_dead(const struct gr_space *s, uint64_t session)
{
    const struct gr_space_session *c = find(s, session);
    return session == 0 || (c != NULL && is_dead(c));
}

/* ---- counting ---- */

void gr_space_add_segment(struct gr_space *s)
{
    s->n_own_byte += s->n_byte_segment;
}

/* A session whose end has come: all of it is dead, if its begin is here. */
static void count_dead(struct gr_space *s, const struct gr_space_session *c, bool was_dead, size_t n_byte)
{
    if (is_dead(c)) {
        s->n_dead_byte += was_dead ? n_byte : c->n_byte;
        s->n_dead_record += was_dead ? 1 : c->n_record;
    }
}

enum gr_status gr_space_add(struct gr_space *s, const struct gr_record *r)
{
    const size_t n = gr_record_bytes(r->n_body);
    if (r->session == 0) {
        s->n_own_byte += n;
        return GR_OK;
    }
    GR_TRY(make_room(s));
    struct gr_space_session *c = &s->cell[place_of(s->cell, s->n_cell, r->session)];
    s->n_used += c->session == 0;
    c->session = r->session;
    const bool was_dead = is_dead(c);
    c->n_byte += n;
    c->n_record++;
    c->begun = c->begun || r->number == 1;
    c->ended = c->ended || (r->kind & GR_RECORD_ENDS) != 0;
    s->n_byte += n;
    s->n_record++;
    count_dead(s, c, was_dead, n);
    return GR_OK;
}

enum gr_status gr_space_add_all(struct gr_space *s, const uint8_t *p, size_t n, size_t from, uint64_t salt)
{
    struct gr_record d;
    for (size_t at = from; at < n && gr_record_decode(p + at, n - at, salt, &d) == GR_RECORD_WHOLE;) {
        GR_TRY(gr_space_add(s, &d));
        at += gr_record_bytes(d.n_body);
    }
    return GR_OK;
}

uint64_t gr_space_waste(const struct gr_space *s)
{
    return s->n_dead_byte + s->n_own_byte;
}

uint64_t gr_space_need(const struct gr_space *s)
{
    return s->n_byte - s->n_dead_byte;
}

/* ---- another state of it ---- */

enum gr_status gr_space_copy(const struct gr_space *s, struct gr_space *out)
{
    struct gr_space c = *s;
    c.cell = calloc(s->n_cell > 0 ? s->n_cell : 1, sizeof(*c.cell));
    if (c.cell == NULL) {
        log_error("out of memory for the %zu sessions of a journal", s->n_used);
        return GR_ENOMEM;
    }
    if (s->n_cell > 0) {
        memcpy(c.cell, s->cell, s->n_cell * sizeof(*c.cell));
    }
    *out = c;
    return GR_OK;
}

/* Those that stay, in a table of their own: a cell that is set free would end the search for others. */
static enum gr_status drop_dead(struct gr_space *s, const struct gr_space *then)
{
    struct gr_space_session *left = s->n_cell > 0 ? calloc(s->n_cell, sizeof(*left)) : NULL;
    size_t n = 0;
    if (left == NULL && s->n_cell > 0) {
        log_error("out of memory for the %zu sessions of a journal", s->n_used);
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < s->n_cell; i++) {
        const struct gr_space_session *c = &s->cell[i];
        if (c->session != 0 && !gr_space_is_dead(then, c->session)) {
            left[place_of(left, s->n_cell, c->session)] = *c;
            n++;
        }
    }
    free(s->cell);
    s->cell = left;
    s->n_used = n;
    return GR_OK;
}

enum gr_status gr_space_forget(struct gr_space *s, const struct gr_space *then)
{
    GR_TRY(drop_dead(s, then));
    s->n_byte -= then->n_dead_byte;
    s->n_record -= then->n_dead_record;
    s->n_dead_byte -= then->n_dead_byte;
    s->n_dead_record -= then->n_dead_record;
    s->n_own_byte -= then->n_own_byte;
    return GR_OK;
}
