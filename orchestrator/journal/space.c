#include "orchestrator/journal/space.h"

/* What one takes. */
struct session {
    uint64_t session;
    uint64_t n_byte, n_record;
    bool begun, ended; /* its first record is in the run, its last one is */
};

void gr_space_finish(struct gr_space *s)
{
    gr_cells_finish(&s->sessions);
    *s = (struct gr_space){.n_byte_segment = s->n_byte_segment};
}

static bool is_dead(const struct session *c)
{
    return c->begun && c->ended;
}

bool gr_space_is_dead(const struct gr_space *s, uint64_t session)
{
    const struct session *c = gr_cells_find(&s->sessions, session);
    return session == 0 || (c != NULL && is_dead(c));
}

/* ---- counting ---- */

void gr_space_add_segment(struct gr_space *s)
{
    s->n_own_byte += s->n_byte_segment;
}

/* A session whose end has come: all of it is dead, if its begin is here. */
static void count_dead(struct gr_space *s, const struct session *c, bool was_dead, size_t n_byte)
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
    void *cell = NULL; /* all was zero before the first */
    s->sessions.cell_bytes = sizeof(struct session);
    GR_TRY(gr_cells_add(&s->sessions, r->session, &cell));
    struct session *c = cell;
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

bool gr_space_pays(const struct gr_space *s, size_t segment_bytes)
{
    const uint64_t waste = gr_space_waste(s), need = gr_space_need(s);
    return waste > need && need <= GR_SPACE_NEED_MAX && waste >= segment_bytes / GR_SPACE_WASTE_PART;
}

bool gr_space_ends_early(const struct gr_space *s, size_t segment_bytes, uint64_t n_failed_byte)
{
    return gr_space_pays(s, segment_bytes) && gr_space_waste(s) >= segment_bytes + n_failed_byte;
}

/* ---- another state of it ---- */

enum gr_status gr_space_copy(const struct gr_space *s, struct gr_space *out)
{
    struct gr_space c = *s;
    GR_TRY(gr_cells_copy(&s->sessions, &c.sessions));
    *out = c;
    return GR_OK;
}

/* Those that stay, in a table of their own: a cell that is set free would end the search for others. */
static enum gr_status drop_dead(struct gr_space *s, const struct gr_space *then)
{
    struct gr_cells left = {.cell_bytes = s->sessions.cell_bytes};
    for (size_t i = 0; i < s->sessions.n_cell; i++) {
        const struct session *c = gr_cells_at(&s->sessions, i);
        void *to = NULL;
        if (c == NULL || gr_space_is_dead(then, c->session)) {
            continue;
        }
        if (gr_cells_add(&left, c->session, &to) != GR_OK) {
            gr_cells_finish(&left);
            return GR_ENOMEM;
        }
        *(struct session *)to = *c;
    }
    gr_cells_finish(&s->sessions);
    s->sessions = left;
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
