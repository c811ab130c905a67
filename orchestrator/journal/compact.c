#include "orchestrator/journal/compact.h"

#include "common/base/grow.h"
#include "common/base/log.h"
#include "orchestrator/journal/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNNAMED "compacting"
#define REMOVED_AT_ONCE 8

enum phase { COPY, NAME, REMOVE };

struct bytes {
    uint8_t *p; /* owned */
    size_t n, cap;
};

struct gr_compact {
    struct gr_compact_config c;
    struct gr_segment_list run;
    enum phase phase;
    size_t i;          /* segment of the run that is read, or removed, next */
    int in_fd, out_fd; /* owned; -1: none is open */
    uint64_t in_salt, in_at;
    struct bytes in, out; /* in: from in_at on */
    bool at_end;          /* in has the rest of the segment */
    bool seals;           /* it gets a record that ends it: the number of one that is left out is free for that */
    bool created;         /* the file without a name is there */
    uint64_t first;       /* number of the run's first record */
    uint64_t expected;    /* of the one that comes next in it */
    uint64_t seq;         /* of the last record that was written */
    uint64_t before;      /* its session */
};

const struct gr_space *gr_compact_space(const struct gr_compact *k)
{
    return &k->c.space;
}

uint64_t gr_compact_last(const struct gr_compact *k)
{
    return k->c.to;
}

/* ---- files ---- */

static enum gr_status cannot(const char *name, const char *what)
{
    log_warn("journal: %s: %s: %s; the journal is not compacted, and goes on", name, what, strerror(errno));
    return GR_EIO;
}

static enum gr_status refuse_damaged(const struct gr_compact *k, const char *what)
{
    char name[GR_SEGMENT_NAME_BYTES];
    gr_segment_name(k->run.generation[k->i], name);
    log_warn("journal: %s: it is damaged (%s): it stays as it is, with those before it, and is not compacted", name,
             what);
    return GR_EFORMAT;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

static bool make_room(struct bytes *b, size_t n)
{
    uint8_t *p = gr_grow(b->p, &b->cap, n, 1);
    if (p == NULL) {
        log_error("out of memory for a piece of a journal (%zu bytes)", n);
        return false;
    }
    b->p = p;
    return true;
}

/* What has come together is written and synced. */
static enum gr_status put_out(struct gr_compact *k)
{
    const struct gr_journal_files *f = k->c.files;
    if (gr_journal_write_all(f, k->out_fd, k->out.p, k->out.n) != 0) {
        return cannot(UNNAMED, "cannot be written");
    }
    k->out.n = 0;
    return f->sync_data(f->ctx, k->out_fd) == 0 ? GR_OK : cannot(UNNAMED, "cannot be synced");
}

static enum gr_status put_record(struct gr_compact *k, const struct gr_record *d)
{
    struct gr_record r = *d;
    const size_t n = gr_record_bytes(d->n_body);
    if (!make_room(&k->out, k->out.n + n)) {
        return GR_ENOMEM;
    }
    r.seq = ++k->seq;
    r.before = k->before;
    gr_record_encode(&r, k->c.salt, k->out.p + k->out.n);
    k->out.n += n;
    k->before = r.session;
    return GR_OK;
}

/* ---- reading ---- */

/* The next segment of the run. Its head tells whether anything is missing before it. */
static enum gr_status open_next(struct gr_compact *k, struct gr_segment_head *head)
{
    char name[GR_SEGMENT_NAME_BYTES];
    uint8_t bytes[GR_COMPACTED_HEAD_BYTES];
    gr_segment_name(k->run.generation[k->i], name);
    k->in_fd = gr_segment_open(k->c.dir, name);
    if (k->in_fd < 0) {
        return cannot(name, "cannot be opened");
    }
    const ssize_t n = pread(k->in_fd, bytes, sizeof(bytes), 0);
    if (n < 0) {
        return cannot(name, "cannot be read");
    }
    if (gr_segment_head_decode(bytes, (size_t)n, head) != GR_OK || head->generation != k->run.generation[k->i]) {
        return refuse_damaged(k, "its head");
    }
    k->in_salt = head->salt;
    k->in_at = gr_segment_head_bytes(head);
    k->in.n = 0;
    k->at_end = false;
    return GR_OK;
}

static enum gr_status go_to_next(struct gr_compact *k)
{
    struct gr_segment_head head;
    close_fd(&k->in_fd);
    k->i++;
    if (k->i == k->run.n) {
        return GR_OK;
    }
    GR_TRY(open_next(k, &head));
    return head.first_seq == k->expected && head.from_generation == 0
               ? GR_OK
               : refuse_damaged(k, "records before it are missing");
}

/* Bytes of the segment from in_at on, `least' of them if it has so many. */
static enum gr_status fill(struct gr_compact *k, size_t least)
{
    if (!make_room(&k->in, GR_MAX(least, (size_t)GR_COMPACT_PIECE_BYTES))) {
        return GR_ENOMEM;
    }
    k->in.n = 0;
    k->at_end = false;
    while (k->in.n < k->in.cap && !k->at_end) {
        const ssize_t n = pread(k->in_fd, k->in.p + k->in.n, k->in.cap - k->in.n, (off_t)(k->in_at + k->in.n));
        if (n < 0 && errno != EINTR) {
            char name[GR_SEGMENT_NAME_BYTES];
            gr_segment_name(k->run.generation[k->i], name);
            return cannot(name, "cannot be read");
        }
        k->at_end = n == 0;
        k->in.n += n > 0 ? (size_t)n : 0;
    }
    return GR_OK;
}

static enum gr_status take(struct gr_compact *k, const struct gr_record *d)
{
    if (d->seq != k->expected) {
        return refuse_damaged(k, "its records do not follow each other");
    }
    if (d->seq == k->first) { /* whose the record before the run was is known to it alone */
        k->before = d->before;
    }
    k->expected++;
    return gr_space_is_dead(&k->c.space, d->session) ? GR_OK : put_record(k, d);
}

/* The records of a piece. A segment ends where no whole record stands any more: whether one is missing there, the next
 * one's head tells. */
static enum gr_status copy_piece(struct gr_compact *k)
{
    struct gr_record d = {.n_body = 0};
    size_t at = 0;
    enum gr_record_state state = GR_RECORD_WHOLE;
    GR_TRY(fill(k, 0));
    for (;;) {
        state = gr_record_decode(k->in.p + at, k->in.n - at, k->in_salt, &d);
        const bool is_cut =
            state == GR_RECORD_NO_HEAD ? k->in.n - at < GR_RECORD_HEAD_BYTES : k->in.n - at < gr_record_bytes(d.n_body);
        if (state != GR_RECORD_WHOLE && is_cut && !k->at_end && at == 0) {
            GR_TRY(fill(k, gr_record_bytes(d.n_body))); /* one that is longer than a piece */
            continue;
        }
        if (state != GR_RECORD_WHOLE) {
            k->in_at += at;
            const bool is_over = k->at_end || !is_cut;
            return is_over ? go_to_next(k) : GR_OK;
        }
        GR_TRY(take(k, &d));
        at += gr_record_bytes(d.n_body);
    }
}

/* ---- steps ---- */

static enum gr_status copy(struct gr_compact *k)
{
    GR_TRY(copy_piece(k));
    if (k->i < k->run.n) {
        return k->out.n > 0 ? put_out(k) : GR_OK;
    }
    k->i--; /* the last one: what is missing is missing after it */
    if (k->expected != k->c.last_seq + 1) {
        return refuse_damaged(k, "records at its end are missing");
    }
    GR_TRY(k->seals ? put_record(k, &(struct gr_record){.kind = GR_RECORD_SEALED}) : GR_OK);
    if (k->seq != k->c.last_seq) {
        return refuse_damaged(k, "it has other records than it had");
    }
    GR_TRY(put_out(k));
    close_fd(&k->out_fd);
    k->phase = NAME;
    return GR_OK;
}

static enum gr_status give_name(struct gr_compact *k)
{
    const struct gr_journal_files *f = k->c.files;
    char name[GR_SEGMENT_NAME_BYTES];
    gr_segment_name(k->c.to, name);
    if (f->rename(f->ctx, k->c.dir, UNNAMED, name) != 0) {
        return cannot(UNNAMED, "cannot be named");
    }
    k->created = false;
    k->phase = REMOVE;
    k->i = 0;
    if (f->sync_dir(f->ctx, k->c.dir) != 0) {
        (void)cannot("its folder", "cannot be synced");
        return GR_ECLOSED;
    }
    return GR_OK;
}

/* The last one of the run is the new one. GR_OK: all are gone. */
static enum gr_status remove_some(struct gr_compact *k)
{
    const struct gr_journal_files *f = k->c.files;
    char name[GR_SEGMENT_NAME_BYTES];
    for (int n = 0; k->i + 1 < k->run.n && n < REMOVED_AT_ONCE; n++) {
        gr_segment_name(k->run.generation[k->i++], name);
        if (f->remove(f->ctx, k->c.dir, name) != 0 && errno != ENOENT) {
            (void)cannot(name, "cannot be removed");
            return GR_ECLOSED;
        }
    }
    if (k->i + 1 < k->run.n) {
        return GR_AGAIN;
    }
    if (f->sync_dir(f->ctx, k->c.dir) != 0) {
        (void)cannot("its folder", "cannot be synced");
        return GR_ECLOSED;
    }
    return GR_OK;
}

enum gr_status gr_compact_step(struct gr_compact *k)
{
    enum gr_status st = GR_OK;
    switch (k->phase) {
    case COPY:
        st = copy(k);
        break;
    case NAME:
        st = give_name(k);
        break;
    case REMOVE:
        return remove_some(k);
    }
    return st == GR_OK ? GR_AGAIN : st;
}

/* ---- life ---- */

static enum gr_status put_head(struct gr_compact *k, uint64_t from_seq)
{
    const struct gr_segment_head h = {.generation = k->c.to,
                                      .first_seq = k->seq + 1,
                                      .salt = k->c.salt,
                                      .from_generation = k->c.from,
                                      .from_seq = from_seq};
    if (!make_room(&k->out, GR_COMPACTED_HEAD_BYTES)) {
        return GR_ENOMEM;
    }
    gr_segment_head_encode(&h, k->out.p);
    k->out.n = GR_COMPACTED_HEAD_BYTES;
    return GR_OK;
}

/* Without those that one of them stands for. */
static enum gr_status list_run(struct gr_compact *k)
{
    struct gr_segment_list *l = &k->run;
    size_t n = 0;
    GR_TRY(gr_journal_folder_list(k->c.dir, k->c.from, k->c.to, l));
    for (size_t i = 0; i < l->n; i++) {
        l->generation[n] = l->generation[i];
        n += !l->is_old[i];
    }
    l->n = n;
    if (n > 0 && l->generation[n - 1] == k->c.to) {
        return GR_OK;
    }
    log_warn("journal: a segment that was there is not: it is not compacted");
    return GR_EFORMAT;
}

static enum gr_status begin(struct gr_compact *k)
{
    const struct gr_journal_files *f = k->c.files;
    const struct gr_space *s = &k->c.space;
    const uint64_t n_stay = s->n_record - s->n_dead_record;
    struct gr_segment_head head;
    GR_TRY(list_run(k));
    GR_TRY(open_next(k, &head));
    const uint64_t n_there = k->c.last_seq + 1 - head.first_seq;
    if (n_stay > n_there) {
        return refuse_damaged(k, "it has fewer records than it had");
    }
    k->first = k->expected = head.first_seq;
    k->seals = n_stay < n_there;
    k->seq = k->c.last_seq - n_stay - k->seals;
    GR_TRY(put_head(k, head.from_generation != 0 ? head.from_seq : head.first_seq));
    k->out_fd = f->create(f->ctx, k->c.dir, UNNAMED);
    k->created = k->out_fd >= 0;
    return k->created ? GR_OK : cannot(UNNAMED, "cannot be created");
}

enum gr_status gr_compact_begin(const struct gr_compact_config *c, struct gr_compact **out)
{
    struct gr_compact *k = calloc(1, sizeof(*k));
    if (k == NULL) {
        log_error("no memory for compacting the journal");
        return GR_ENOMEM;
    }
    *k = (struct gr_compact){.c = *c, .in_fd = -1, .out_fd = -1};
    const enum gr_status st = begin(k);
    if (st != GR_OK) {
        k->c.space = (struct gr_space){0};
        gr_compact_destroy(k);
        return st;
    }
    *out = k;
    return GR_OK;
}

void gr_compact_destroy(struct gr_compact *k)
{
    if (k != NULL) {
        close_fd(&k->in_fd);
        close_fd(&k->out_fd);
        if (k->created && k->c.files->remove(k->c.files->ctx, k->c.dir, UNNAMED) != 0) {
            (void)cannot(UNNAMED, "cannot be removed");
        }
        gr_segment_list_finish(&k->run);
        gr_space_finish(&k->c.space);
        free(k->in.p);
        free(k->out.p);
        free(k);
    }
}

static void remove_old(const struct gr_journal_files *files, int dir, const struct gr_segment_list *l)
{
    char name[GR_SEGMENT_NAME_BYTES];
    bool some = false, all = true;
    for (size_t i = 0; i < l->n; i++) {
        if (l->is_old[i]) {
            gr_segment_name(l->generation[i], name);
            some = true;
            all = files->remove(files->ctx, dir, name) == 0 && all;
        }
    }
    all = (!some || files->sync_dir(files->ctx, dir) == 0) && all;
    if (!all) {
        log_warn("journal: segments that another one stands for cannot be removed: %s", strerror(errno));
    }
}

void gr_compact_clean(const struct gr_journal_files *files, int dir, uint64_t from)
{
    struct gr_segment_list l;
    if (faccessat(dir, UNNAMED, F_OK, AT_SYMLINK_NOFOLLOW) == 0 && files->remove(files->ctx, dir, UNNAMED) != 0) {
        log_warn("journal: %s: cannot be removed: %s", UNNAMED, strerror(errno));
    }
    if (gr_journal_folder_list(dir, from, UINT64_MAX, &l) == GR_OK) {
        remove_old(files, dir, &l);
        gr_segment_list_finish(&l);
    }
}
