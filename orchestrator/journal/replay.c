#include "orchestrator/journal/replay.h"

#include "common/base/log.h"
#include "orchestrator/journal/cells.h"

#include <stdlib.h>
#include <string.h>

/* A session that records have named. */
struct cell {
    uint64_t session;
    uint64_t number; /* of its last record */
    bool damaged;    /* a record of it is lost */
    bool uncertain;  /* records are lost, and it may have had one among them */
};

struct gr_replay {
    void *ctx;
    enum gr_status (*on_record)(void *ctx, const struct gr_record *r);
    struct gr_cells sessions; /* of struct cell */
    struct gr_segment_head head;
    bool begun; /* a record, or a segment's head, has told where the journal begins */
    struct gr_replay_report report;
};

/* ---- sessions ---- */

static const struct cell *find(const struct gr_replay *r, uint64_t session)
{
    return gr_cells_find(&r->sessions, session);
}

static enum gr_status find_or_add(struct gr_replay *r, uint64_t session, struct cell **out)
{
    void *c = gr_cells_find(&r->sessions, session);
    if (c == NULL) {
        if (r->sessions.n_used == GR_REPLAY_SESSIONS_MAX) {
            log_error("a journal names more than %u sessions", GR_REPLAY_SESSIONS_MAX);
            return GR_ELIMIT;
        }
        GR_TRY(gr_cells_add(&r->sessions, session, &c));
    }
    *out = c;
    return GR_OK;
}

static enum gr_status damage(struct gr_replay *r, uint64_t session)
{
    struct cell *c = NULL;
    if (session == 0) {
        return GR_OK;
    }
    GR_TRY(find_or_add(r, session, &c));
    c->damaged = true;
    return GR_OK;
}

/* Any session may have had a record among those that are lost, until its next one shows that it had none. */
static void doubt_all(struct gr_replay *r)
{
    for (size_t i = 0; i < r->sessions.n_cell; i++) {
        struct cell *c = gr_cells_at(&r->sessions, i);
        if (c != NULL) {
            c->uncertain = true;
        }
    }
}

/* ---- what is missing ---- */

static void note_bad(struct gr_replay *r, size_t at)
{
    if (r->report.bad_generation == 0) {
        r->report.bad_generation = r->head.generation;
        r->report.bad_at = at;
    }
}

/* Records from after the last one to below seq are not there. before: the session of record seq - 1. */
static enum gr_status miss(struct gr_replay *r, uint64_t seq, uint64_t before)
{
    const uint64_t n = seq - (r->report.last_seq + 1);
    r->report.n_lost += n;
    GR_TRY(damage(r, before));
    if (n > 1) {
        doubt_all(r);
    }
    return GR_OK;
}

/* Its own number tells whether it lacks a record. */
static enum gr_status take_session(struct gr_replay *r, const struct gr_record *d, bool *use)
{
    struct cell *c = NULL;
    GR_TRY(find_or_add(r, d->session, &c));
    c->damaged = c->damaged || d->number != c->number + 1;
    c->uncertain = false;
    c->number = d->number;
    *use = !c->damaged;
    return GR_OK;
}

static enum gr_status take(struct gr_replay *r, const struct gr_record *d, bool whole, size_t at)
{
    bool use = false;
    if (d->seq <= r->report.last_seq) {
        return GR_OK; /* a record that was there already changes nothing */
    }
    if (d->seq > r->report.last_seq + 1) {
        note_bad(r, at);
        GR_TRY(miss(r, d->seq, d->before));
    }
    r->report.last_seq = d->seq;
    r->report.last_session = d->session;
    if (!whole) {
        note_bad(r, at);
        r->report.n_lost++;
        return damage(r, d->session);
    }
    r->report.n_record++;
    if (d->session != 0) {
        GR_TRY(take_session(r, d, &use));
    }
    return use ? r->on_record(r->ctx, d) : GR_OK;
}

/* ---- segments ---- */

/* The next place from `at` on where a record's head stands that the journal has not had; n: there is none. */
static size_t next_head(const struct gr_replay *r, const uint8_t *p, size_t n, size_t at)
{
    struct gr_record d;
    while (at < n) {
        const enum gr_record_state state = gr_record_decode(p + at, n - at, r->head.salt, &d);
        if (state != GR_RECORD_NO_HEAD && d.seq > r->report.last_seq) {
            return at;
        }
        at++;
    }
    return n;
}

/* Is there a record behind this one, whose body is not whole? */
static bool is_last(const struct gr_replay *r, const uint8_t *p, size_t n, size_t at, const struct gr_record *d)
{
    const size_t end = at + gr_record_bytes(d->n_body);
    return end >= n || next_head(r, p, n, end) == n;
}

/* What comes after the last record was never whole: it counts for nothing here, and the next segment tells, if there
 * is one, whether its number was given to another record. */
static void cut(struct gr_replay *r, size_t n_bytes, uint64_t session)
{
    r->report.n_cut_bytes = n_bytes;
    r->report.cut_session = session;
}

/* Takes what stands at `at`, and moves it on. */
static enum gr_status take_next(struct gr_replay *r, const uint8_t *p, size_t n, size_t *at)
{
    struct gr_record d;
    const enum gr_record_state state = gr_record_decode(p + *at, n - *at, r->head.salt, &d);
    if (state == GR_RECORD_NO_HEAD) {
        const size_t next = next_head(r, p, n, *at + 1);
        if (next == n) {
            cut(r, n - *at, 0);
        } else {
            note_bad(r, *at);
        }
        *at = next;
        return GR_OK;
    }
    if (state == GR_RECORD_NO_BODY && is_last(r, p, n, *at, &d)) {
        cut(r, n - *at, d.session);
        *at = n;
        return GR_OK;
    }
    const size_t from = *at;
    const size_t behind = from + gr_record_bytes(d.n_body);
    *at = state == GR_RECORD_WHOLE || behind < n ? behind : n;
    return take(r, &d, state == GR_RECORD_WHOLE, from);
}

/* Below the first number of a compacted segment are those of records that were left out, which are not missing. Those
 * before them are, if they have not come: they are taken for the ones right below its first. */
static void join_compacted(struct gr_replay *r)
{
    const uint64_t first = r->head.first_seq, from = r->head.from_seq;
    if (r->report.last_seq >= from) { /* a segment before it has records that it stands for */
        note_bad(r, 0);
        r->report.n_lost++;
        doubt_all(r);
        r->report.last_seq = first - 1;
        return;
    }
    r->report.last_seq = first - (from - r->report.last_seq);
}

static void join_segment(struct gr_replay *r)
{
    if (!r->begun) { /* what came before was compacted, and is no part of it */
        r->begun = true;
        r->report.last_seq = r->head.first_seq - 1;
    } else if (r->head.from_generation != 0) {
        join_compacted(r);
    }
    cut(r, 0, 0);
}

/* A segment without a whole record tells by its head alone that records are missing before it, and not whose. */
static void close_gap(struct gr_replay *r)
{
    const uint64_t first = r->head.first_seq;
    if (first > r->report.last_seq + 1) {
        note_bad(r, gr_segment_head_bytes(&r->head));
        r->report.n_lost += first - 1 - r->report.last_seq;
        doubt_all(r);
        r->report.last_seq = first - 1;
        r->report.last_session = 0;
    }
}

enum gr_status gr_replay_segment(struct gr_replay *r, uint64_t generation, const uint8_t *p, size_t n)
{
    struct gr_segment_head head;
    const enum gr_status st = gr_segment_head_decode(p, n, &head);
    if (st == GR_EUNSUPPORTED) {
        return st;
    }
    if (st != GR_OK || head.generation != generation || head.first_seq == 0) {
        doubt_all(r);
        return GR_EFORMAT;
    }
    r->head = head;
    join_segment(r);
    for (size_t at = gr_segment_head_bytes(&head); at < n;) {
        GR_TRY(take_next(r, p, n, &at));
    }
    close_gap(r);
    return GR_OK;
}

/* ---- life ---- */

enum gr_status gr_replay_create(void *ctx, enum gr_status (*on_record)(void *ctx, const struct gr_record *r),
                                struct gr_replay **out)
{
    struct gr_replay *r = calloc(1, sizeof(*r));
    if (r == NULL) {
        log_error("no memory for reading the journal");
        return GR_ENOMEM;
    }
    *r = (struct gr_replay){.ctx = ctx, .on_record = on_record, .sessions = {.cell_bytes = sizeof(struct cell)}};
    *out = r;
    return GR_OK;
}

void gr_replay_destroy(struct gr_replay *r)
{
    if (r != NULL) {
        gr_cells_finish(&r->sessions);
        free(r);
    }
}

void gr_replay_end(struct gr_replay *r, struct gr_replay_report *out)
{
    for (size_t i = 0; i < r->sessions.n_cell; i++) {
        struct cell *c = gr_cells_at(&r->sessions, i);
        if (c != NULL) {
            c->damaged = c->damaged || c->uncertain;
            c->uncertain = false;
        }
    }
    *out = r->report;
}

uint64_t gr_replay_n_lost(const struct gr_replay *r)
{
    return r->report.n_lost;
}

bool gr_replay_is_damaged(const struct gr_replay *r, uint64_t session)
{
    const struct cell *c = find(r, session);
    return c != NULL && (c->damaged || c->uncertain);
}

uint64_t gr_replay_number(const struct gr_replay *r, uint64_t session)
{
    const struct cell *c = find(r, session);
    return c != NULL ? c->number : 0;
}

uint64_t gr_replay_damaged(const struct gr_replay *r, size_t *at)
{
    while (*at < r->sessions.n_cell) {
        const struct cell *c = gr_cells_at(&r->sessions, (*at)++);
        if (c != NULL && c->damaged) {
            return c->session;
        }
    }
    return 0;
}
