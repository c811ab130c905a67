#include "orchestrator/journal/replay.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

/* A session that records have named. */
struct cell {
    uint64_t session; /* 0: the cell is free */
    uint64_t number;  /* of its last record */
    bool damaged;     /* a record of it is lost */
    bool uncertain;   /* records are lost, and it may have had one among them */
};

struct gr_replay {
    void *ctx;
    enum gr_status (*on_record)(void *ctx, const struct gr_record *r);
    struct cell *cell; /* owned: a hash table with linear probing */
    size_t n_cell, n_used;
    struct gr_segment_head head;
    bool begun; /* a record, or a segment's head, has told where the journal begins */
    struct gr_replay_report report;
};

/* ---- sessions ---- */

static size_t place_of(const struct gr_replay *r, uint64_t session)
{
    size_t i = (size_t)((session * 0x9e3779b97f4a7c15u) >> 20) & (r->n_cell - 1);
    while (r->cell[i].session != 0 && r->cell[i].session != session) {
        i = (i + 1) & (r->n_cell - 1);
    }
    return i;
}

static enum gr_status grow(struct gr_replay *r)
{
    struct cell *old = r->cell;
    const size_t n_old = r->n_cell;
    struct cell *more = calloc(2 * n_old, sizeof(*more));
    if (more == NULL) {
        log_error("out of memory for the %zu sessions of a journal", r->n_used);
        return GR_ENOMEM;
    }
    r->cell = more;
    r->n_cell = 2 * n_old;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].session != 0) {
            r->cell[place_of(r, old[i].session)] = old[i];
        }
    }
    free(old);
    return GR_OK;
}

static const struct cell *find(const struct gr_replay *r, uint64_t session)
{
    const struct cell *c = &r->cell[place_of(r, session)];
    return session != 0 && c->session == session ? c : NULL;
}

static enum gr_status find_or_add(struct gr_replay *r, uint64_t session, struct cell **out)
{
    struct cell *c = &r->cell[place_of(r, session)];
    if (c->session == 0) {
        if (r->n_used == GR_REPLAY_SESSIONS_MAX) {
            log_error("a journal names more than %u sessions", GR_REPLAY_SESSIONS_MAX);
            return GR_ELIMIT;
        }
        if (2 * (r->n_used + 1) > r->n_cell) {
            GR_TRY(grow(r));
            c = &r->cell[place_of(r, session)];
        }
        *c = (struct cell){.session = session};
        r->n_used++;
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
    for (size_t i = 0; i < r->n_cell; i++) {
        r->cell[i].uncertain = r->cell[i].session != 0;
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
    enum { N_FIRST = 1024 };
    struct gr_replay *r = calloc(1, sizeof(*r));
    struct cell *cell = calloc(N_FIRST, sizeof(*cell));
    if (r == NULL || cell == NULL) {
        log_error("out of memory");
        free(r);
        free(cell);
        return GR_ENOMEM;
    }
    *r = (struct gr_replay){.ctx = ctx, .on_record = on_record, .cell = cell, .n_cell = N_FIRST};
    *out = r;
    return GR_OK;
}

void gr_replay_destroy(struct gr_replay *r)
{
    if (r != NULL) {
        free(r->cell);
        free(r);
    }
}

void gr_replay_end(struct gr_replay *r, struct gr_replay_report *out)
{
    for (size_t i = 0; i < r->n_cell; i++) {
        r->cell[i].damaged = r->cell[i].damaged || r->cell[i].uncertain;
        r->cell[i].uncertain = false;
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

uint64_t gr_replay_damaged(const struct gr_replay *r, size_t i)
{
    for (size_t k = 0; k < r->n_cell; k++) {
        const bool is_one = r->cell[k].session != 0 && r->cell[k].damaged;
        if (is_one && i-- == 0) {
            return r->cell[k].session;
        }
    }
    return 0;
}
