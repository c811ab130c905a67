#include "orchestrator/journal/journal.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/grow.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/journal/compact.h"
#include "orchestrator/journal/folder.h"
#include "orchestrator/journal/segment.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define TOLD_MAX 20           /* damaged sessions that have a line each */
#define FILE_BYTES_LEAST 4096 /* that a segment takes beside its records: a file has a block at least */

/* Records that wait for the disk. */
struct batch {
    uint8_t *p; /* owned */
    size_t n, cap;
    uint64_t last_seq;   /* of the last of them */
    uint64_t since_ns;   /* when the first of them was added */
    size_t n_before;     /* bytes that still belong to the segment that is open; the rest to the next one */
    uint64_t next_first; /* the first record of that one; 0: all belong to the one that is open */
};

struct gr_journal {
    struct gr_journal_folder folder;
    uint64_t salt;
    size_t segment_bytes;
    int event_fd;
    /* The thread's. */
    pthread_t thread;
    bool started;
    struct gr_segment segment;
    struct batch writing;       /* taken under the lock */
    struct gr_space space;      /* what segments from run_from on take, when that has begun */
    uint64_t run_from;          /* the first generation after all that is damaged; that segment may not have begun */
    struct gr_compact *compact; /* owned; NULL: nothing is being compacted */
    bool compacts;              /* false: what the folder holds is not known for certain, until it is read again */
    uint64_t n_failed_byte;     /* that compacting would have freed when it last failed; 0 after a success */
    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct batch waiting;
    uint64_t last_seq, last_session;
    size_t n_segment; /* bytes of the segment that records are added to */
    bool ending;
    bool done;      /* the thread ends */
    bool abandoned; /* nobody waits for that: the thread frees the journal */
    pthread_cond_t is_done;
    bool told_late; /* the opener's: a line has said that the disk has not done in time */
    _Atomic uint64_t synced;
    _Atomic bool failed;
};

/* ---- adding ---- */

static bool make_room(struct batch *b, size_t n)
{
    uint8_t *p = gr_grow(b->p, &b->cap, b->n + n, 1);
    b->p = p != NULL ? p : b->p;
    return p != NULL;
}

static void put(struct gr_journal *j, const struct gr_record *r)
{
    struct batch *b = &j->waiting;
    struct gr_record d = *r;
    d.seq = ++j->last_seq;
    d.before = j->last_session;
    b->since_ns = b->n > 0 ? b->since_ns : gr_clock_ns();
    gr_record_encode(&d, j->salt, b->p + b->n);
    b->n += gr_record_bytes(d.n_body);
    b->last_seq = d.seq;
    j->n_segment += gr_record_bytes(d.n_body);
    j->last_session = d.session;
}

/* What is added from now on belongs to the next segment. Once a batch: the next one comes when this one is taken. There
 * is room. */
static void turn_page(struct gr_journal *j)
{
    if (j->waiting.next_first != 0) {
        return;
    }
    put(j, &(struct gr_record){.kind = GR_RECORD_SEALED});
    j->waiting.n_before = j->waiting.n;
    j->waiting.next_first = j->last_seq + 1;
    j->n_segment = 0;
}

static enum gr_status add_locked(struct gr_journal *j, const struct gr_record *r, uint64_t *seq_out)
{
    const size_t n = gr_record_bytes(r->n_body);
    if (j->failed) {
        return GR_EIO;
    }
    if (j->waiting.n + n > GR_JOURNAL_WAITING_MAX || !make_room(&j->waiting, n + gr_record_bytes(0))) {
        return GR_AGAIN;
    }
    put(j, r);
    if (seq_out != NULL) {
        *seq_out = j->last_seq;
    }
    if (j->n_segment >= j->segment_bytes) {
        turn_page(j);
    }
    pthread_cond_signal(&j->more);
    return GR_OK;
}

enum gr_status gr_journal_add(struct gr_journal *j, const struct gr_record *r, uint64_t *seq_out)
{
    GR_ASSERT(r->session != 0 && r->number != 0 && r->kind != GR_RECORD_SEALED && r->n_body <= GR_RECORD_BODY_MAX);
    pthread_mutex_lock(&j->lock);
    const enum gr_status st = add_locked(j, r, seq_out);
    pthread_mutex_unlock(&j->lock);
    return st;
}

bool gr_journal_has_room(struct gr_journal *j)
{
    pthread_mutex_lock(&j->lock);
    const bool has_room = !j->failed && j->waiting.n < GR_JOURNAL_WAITING_MAX / 2;
    pthread_mutex_unlock(&j->lock);
    return has_room;
}

static uint64_t last_added(struct gr_journal *j)
{
    pthread_mutex_lock(&j->lock);
    const uint64_t seq = j->last_seq;
    pthread_mutex_unlock(&j->lock);
    return seq;
}

static enum gr_status give_up_waiting(struct gr_journal *j)
{
    if (!j->told_late) {
        log_error("journal: the disk has not synced records %" PRIu64 " to %" PRIu64
                  " in time, and is not waited for any more: no client was told of them, and whether the next server "
                  "finds them is not known",
                  gr_journal_synced(j) + 1, last_added(j));
    }
    j->told_late = true;
    return GR_ETIMEDOUT;
}

enum gr_status gr_journal_wait(struct gr_journal *j, uint64_t seq, uint64_t deadline_ns)
{
    while (gr_journal_synced(j) < seq && !gr_journal_has_failed(j)) {
        struct pollfd p = {.fd = j->event_fd, .events = POLLIN};
        uint64_t count = 0;
        const int wait_ms = gr_clock_ms_until(deadline_ns, gr_clock_ns());
        if (wait_ms == 0) {
            return give_up_waiting(j);
        }
        (void)poll(&p, 1, wait_ms);
        const ssize_t got = read(p.fd, &count, sizeof(count));
        (void)got; /* whether it was readable or not */
    }
    return gr_journal_synced(j) >= seq ? GR_OK : GR_EIO;
}

uint64_t gr_journal_synced(const struct gr_journal *j)
{
    return j->synced;
}

bool gr_journal_has_failed(const struct gr_journal *j)
{
    return j->failed;
}

uint64_t gr_journal_waits_since(struct gr_journal *j)
{
    pthread_mutex_lock(&j->lock);
    const struct batch *oldest = j->writing.n > 0 && j->synced < j->writing.last_seq ? &j->writing : &j->waiting;
    const uint64_t since_ns = oldest->n > 0 && !j->failed ? oldest->since_ns : 0;
    pthread_mutex_unlock(&j->lock);
    return since_ns;
}

int gr_journal_fd(const struct gr_journal *j)
{
    return j->event_fd;
}

/* ---- the thread ---- */

/* False: all is written, and the journal ends. It is empty where nothing waits, and something is being compacted. */
static bool take_batch(struct gr_journal *j)
{
    pthread_mutex_lock(&j->lock);
    while (j->waiting.n == 0 && !j->ending && j->compact == NULL) {
        pthread_cond_wait(&j->more, &j->lock);
    }
    const bool ends = j->waiting.n == 0 && j->ending;
    const struct batch empty = {.p = j->writing.p, .cap = j->writing.cap};
    j->writing = j->waiting;
    j->waiting = empty;
    pthread_mutex_unlock(&j->lock);
    return !ends;
}

/* ---- compacting ---- */

/* Compacting has ended, or could not begin. The journal goes on whatever it says. */
static void take_compacted(struct gr_journal *j, enum gr_status st, const struct gr_space *then, uint64_t to)
{
    if (st == GR_OK) {
        log_info("journal: segments up to %016" PRIx64 " are one: %" PRIu64 " bytes are gone", to,
                 gr_space_waste(then));
        st = gr_space_forget(&j->space, then);
        gr_space_add_segment(&j->space);
    }
    if (st == GR_EFORMAT) { /* they stay, and what follows is counted anew: from the next segment on, which is whole */
        j->run_from = j->segment.head.generation + 1;
    }
    j->compacts = st != GR_ENOMEM && st != GR_ECLOSED;
    j->n_failed_byte = st == GR_OK || st == GR_EFORMAT ? 0 : gr_space_waste(&j->space);
}

/* The segments before the one that is written to are all that is counted. */
static void consider_compacting(struct gr_journal *j)
{
    struct gr_compact_config c = {.files = j->segment.files,
                                  .dir = j->folder.fd,
                                  .from = j->run_from,
                                  .to = j->segment.head.generation - 1,
                                  .last_seq = j->segment.head.first_seq - 1};
    if (!j->compacts || j->compact != NULL || c.to < c.from || !gr_space_pays(&j->space, j->segment_bytes)) {
        return;
    }
    randombytes_buf(&c.salt, sizeof(c.salt));
    enum gr_status st = gr_space_copy(&j->space, &c.space);
    if (st == GR_OK && (st = gr_compact_begin(&c, &j->compact)) != GR_OK) {
        gr_space_finish(&c.space);
    }
    if (st != GR_OK) {
        take_compacted(j, st, NULL, c.to);
    }
}

/* Much has been closed, and the segment may not be full for long: what follows belongs to the next one. */
static void end_early(struct gr_journal *j)
{
    if (j->failed || !j->compacts || j->compact != NULL || j->run_from > j->segment.head.generation ||
        !gr_space_ends_early(&j->space, j->segment_bytes, j->n_failed_byte)) {
        return;
    }
    pthread_mutex_lock(&j->lock);
    if (!j->ending && make_room(&j->waiting, gr_record_bytes(0))) {
        turn_page(j);
    }
    pthread_mutex_unlock(&j->lock);
}

static void compact_piece(struct gr_journal *j)
{
    const enum gr_status st = j->compact != NULL ? gr_compact_step(j->compact) : GR_AGAIN;
    if (st != GR_AGAIN) {
        take_compacted(j, st, gr_compact_space(j->compact), gr_compact_last(j->compact));
        gr_compact_destroy(j->compact);
        j->compact = NULL;
    }
}

/* ---- writing ---- */

static enum gr_status write_part(struct gr_journal *j, const uint8_t *p, size_t n)
{
    if (n == 0) {
        return GR_OK;
    }
    GR_TRY(gr_segment_write(&j->segment, p, n));
    GR_TRY(gr_segment_sync(&j->segment));
    j->compacts = gr_space_add_all(&j->space, p, n, 0, j->salt) == GR_OK && j->compacts; /* else not all is counted */
    return GR_OK;
}

static enum gr_status begin_segment(struct gr_journal *j, uint64_t generation, uint64_t first_seq)
{
    gr_segment_close(&j->segment);
    const struct gr_segment_head head = {.generation = generation, .first_seq = first_seq, .salt = j->salt};
    return gr_segment_begin(&j->segment, &head);
}

static enum gr_status write_batch(struct gr_journal *j)
{
    const struct batch *b = &j->writing;
    const size_t n_before = b->next_first != 0 ? b->n_before : b->n;
    GR_TRY(write_part(j, b->p, n_before));
    if (b->next_first != 0) {
        GR_TRY(begin_segment(j, j->segment.head.generation + 1, b->next_first));
        if (j->segment.head.generation == j->run_from) {
            gr_space_finish(&j->space);
        }
        consider_compacting(j);
        gr_space_add_segment(&j->space);
    }
    return write_part(j, b->p + n_before, b->n - n_before);
}

static void tell(struct gr_journal *j)
{
    const uint64_t one = 1;
    const ssize_t n = write(j->event_fd, &one, sizeof(one));
    (void)n; /* full: whoever reads it is woken all the same */
}

static void destroy(struct gr_journal *j);

/* Whoever comes last of the thread and gr_journal_close_by() frees it. */
static void end_thread(struct gr_journal *j)
{
    pthread_mutex_lock(&j->lock);
    j->done = true;
    const bool is_last = j->abandoned;
    pthread_cond_signal(&j->is_done);
    pthread_mutex_unlock(&j->lock);
    if (is_last) {
        destroy(j);
    }
}

static void put_batch(struct gr_journal *j)
{
    const enum gr_status st = write_batch(j);
    if (st == GR_OK) {
        j->synced = j->writing.last_seq;
    } else {
        j->failed = true;
    }
    tell(j);
}

static void *run(void *ctx)
{
    struct gr_journal *j = ctx;
    consider_compacting(j);
    gr_space_add_segment(&j->space);
    while (!j->failed && take_batch(j)) {
        if (j->writing.n > 0) {
            put_batch(j);
        }
        compact_piece(j);
        end_early(j);
    }
    end_thread(j);
    return NULL;
}

/* ---- life ---- */

static void tell_of_damaged(const struct gr_journal_config *c, const struct gr_replay *r)
{
    uint64_t session = 0, n = 0;
    for (size_t at = 0; (session = gr_replay_damaged(r, &at)) != 0; n++) {
        if (n < TOLD_MAX) {
            log_warn("journal %s: session %" GR_SESSION_ID_PRI " lacks records, or may lack some: it is not served",
                     c->path, session);
        }
        if (c->on_damaged != NULL) {
            c->on_damaged(c->ctx, session);
        }
    }
    if (n > TOLD_MAX) {
        log_warn("journal %s: %" PRIu64 " more sessions lack records, or may lack some", c->path, n - TOLD_MAX);
    }
}

static void tell_of_damage(const struct gr_journal_config *c, const struct gr_replay *r,
                           const struct gr_replay_report *report)
{
    if (report->n_cut_bytes > 0) {
        log_warn("journal %s: its last %" PRIu64 " bytes are no whole record and are left out%s", c->path,
                 report->n_cut_bytes, report->cut_session != 0 ? "; nobody was told of it" : "");
    }
    if (report->bad_generation != 0) {
        log_warn("journal %s: damage begins in %016" PRIx64 ".segment at byte %" PRIu64 ": %" PRIu64
                 " records are lost",
                 c->path, report->bad_generation, report->bad_at, report->n_lost);
    }
    tell_of_damaged(c, r);
}

static enum gr_status read_all(struct gr_journal *j, const struct gr_journal_config *c)
{
    struct gr_replay *r = NULL;
    struct gr_replay_report report;
    GR_TRY(gr_replay_create(c->ctx, c->on_record, &r));
    const enum gr_status st = gr_journal_folder_read(&j->folder, r, &j->space, &j->run_from);
    if (st == GR_OK) {
        gr_compact_clean(j->segment.files, j->folder.fd, j->run_from);
        gr_replay_end(r, &report);
        tell_of_damage(c, r, &report);
        j->last_seq = report.last_seq;
        j->last_session = report.last_session;
        j->synced = report.last_seq;
    }
    gr_replay_destroy(r);
    return st;
}

/* It hears no signals: they are the others'. */
static bool start_thread(struct gr_journal *j)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&j->thread, NULL, run, j) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static enum gr_status start(struct gr_journal *j, const struct gr_journal_config *c)
{
    GR_TRY(gr_journal_folder_open(c->path, &j->folder));
    GR_TRY(read_all(j, c));
    randombytes_buf(&j->salt, sizeof(j->salt));
    j->segment.dir = j->folder.fd;
    GR_TRY(begin_segment(j, j->folder.last_generation + 1, j->last_seq + 1));
    j->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    j->started = j->event_fd >= 0 && start_thread(j);
    if (!j->started) {
        log_error("journal %s: no thread or no descriptor is left for it", c->path);
        return GR_EIO;
    }
    return GR_OK;
}

static void init_locks(struct gr_journal *j)
{
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->more, NULL);
    gr_condition_init(&j->is_done);
}

enum gr_status gr_journal_open(const struct gr_journal_config *config, struct gr_journal **out)
{
    struct gr_journal *j = calloc(1, sizeof(*j));
    if (j == NULL) {
        log_error("no memory for the journal");
        return GR_ENOMEM;
    }
    init_locks(j);
    j->folder.fd = j->event_fd = j->segment.fd = -1;
    j->segment.files = config->files != NULL ? config->files : &gr_journal_system_files;
    j->segment_bytes = config->segment_bytes > 0 ? config->segment_bytes : GR_JOURNAL_SEGMENT_BYTES;
    j->space.n_byte_segment = (uint32_t)GR_MIN((size_t)FILE_BYTES_LEAST, j->segment_bytes / GR_SPACE_WASTE_PART);
    j->run_from = 1;
    j->compacts = true;
    const enum gr_status st = start(j, config);
    if (st != GR_OK) {
        gr_journal_close(j);
        return st;
    }
    *out = j;
    return GR_OK;
}

/* The last record says that nothing is missing behind it. */
static void seal(struct gr_journal *j)
{
    pthread_mutex_lock(&j->lock);
    if (make_room(&j->waiting, gr_record_bytes(0))) {
        put(j, &(struct gr_record){.kind = GR_RECORD_SEALED});
    }
    j->ending = true;
    pthread_cond_signal(&j->more);
    pthread_mutex_unlock(&j->lock);
}

static void destroy(struct gr_journal *j)
{
    gr_compact_destroy(j->compact);
    gr_space_finish(&j->space);
    gr_segment_close(&j->segment);
    gr_journal_folder_close(&j->folder);
    if (j->event_fd >= 0) {
        close(j->event_fd);
    }
    pthread_cond_destroy(&j->more);
    pthread_cond_destroy(&j->is_done);
    pthread_mutex_destroy(&j->lock);
    free(j->waiting.p);
    free(j->writing.p);
    free(j);
}

/* False: the thread goes on with the journal, which is not the caller's any more. */
static bool await_thread(struct gr_journal *j, uint64_t deadline_ns)
{
    const struct timespec at = gr_clock_timespec(deadline_ns);
    int late = 0;
    pthread_mutex_lock(&j->lock);
    while (!j->done && late == 0) {
        late = deadline_ns == UINT64_MAX ? pthread_cond_wait(&j->is_done, &j->lock)
                                         : pthread_cond_timedwait(&j->is_done, &j->lock, &at);
    }
    const bool done = j->done;
    pthread_mutex_unlock(&j->lock);
    return done;
}

/* The thread is at a call that does not return. False: it has ended all the same. */
static bool abandon(struct gr_journal *j)
{
    const pthread_t thread = j->thread;
    pthread_mutex_lock(&j->lock);
    const bool done = j->done;
    j->abandoned = !done;
    pthread_mutex_unlock(&j->lock); /* from here on the journal is the thread's */
    if (!done) {
        pthread_detach(thread);
    }
    return !done;
}

enum gr_status gr_journal_close_by(struct gr_journal *j, uint64_t deadline_ns)
{
    if (j == NULL) {
        return GR_OK;
    }
    if (j->started) {
        seal(j);
        if (!await_thread(j, deadline_ns)) {
            const enum gr_status st = give_up_waiting(j);
            if (abandon(j)) {
                return st;
            }
        }
        pthread_join(j->thread, NULL);
    }
    destroy(j);
    return GR_OK;
}

void gr_journal_close(struct gr_journal *j)
{
    const enum gr_status st = gr_journal_close_by(j, UINT64_MAX);
    (void)st; /* it was waited for */
}
