/* A journal that is compacted: its size, a process that is killed at any step of it, what is damaged, and disks that
 * fail. */
#include "orchestrator/journal/compact.h"
#include "orchestrator/journal/journal.h"
#include "tests/quiet_log.h"
#include "tests/unit/journal_world.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define NEVER_COMPACTED (1u << 26) /* more is never written, and a sixteenth of it never wasted */
#define COMPACTED 2000

/* ---- what is read ---- */

/* A process that is killed leaves what it wrote, synced or not: that it was synced is seen from the calls. */
static int no_sync(void *ctx, int fd)
{
    (void)ctx;
    (void)fd;
    return 0;
}

static struct gr_journal_files quick_files(void)
{
    struct gr_journal_files f = gr_journal_system_files;
    f.sync_data = f.sync_dir = no_sync;
    return f;
}

static struct gr_journal *open_journal(struct journal_reading *x, uint32_t segment_bytes)
{
    static struct gr_journal_files quick;
    struct gr_journal *j = NULL;
    quick = quick_files();
    assert_int_equal(journal_open(x, &quick, segment_bytes, &j), GR_OK);
    assert_false(x->wrong);
    return j;
}

/* What there is, without its being compacted. */
static void look(struct journal_reading *x)
{
    gr_journal_close(open_journal(x, NEVER_COMPACTED));
}

/* ---- folders ---- */

static void make_folder(struct journal_reading *x)
{
    *x = (struct journal_reading){.n_record = 0};
    journal_make_folder("compact", x->path);
}

static void copy_folder(const struct journal_reading *from, struct journal_reading *to)
{
    char command[256];
    make_folder(to);
    snprintf(command, sizeof(command), "cp -p '%s'/* '%s'", from->path, to->path);
    assert_int_equal(system(command), 0);
}

static void remove_folder(const struct journal_reading *x)
{
    journal_remove_folder(x->path);
}

static bool is_there(const struct journal_reading *x, const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", x->path, name);
    return access(path, F_OK) == 0;
}

/* Bytes of all files; n_out: of segments. */
static uint64_t size_of(const struct journal_reading *x, int *n_out)
{
    DIR *dir = opendir(x->path);
    uint64_t n_byte = 0;
    struct stat s;
    *n_out = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (fstatat(dirfd(dir), e->d_name, &s, 0) == 0 && S_ISREG(s.st_mode)) { /* else it was removed meanwhile */
            n_byte += (uint64_t)s.st_size;
            *n_out += gr_segment_generation(e->d_name) != 0;
        }
    }
    closedir(dir);
    return n_byte;
}

/* ---- records ---- */

static uint64_t add(struct gr_journal *j, uint64_t session, uint64_t number, bool ends)
{
    uint64_t seq = 0;
    assert_int_equal(journal_add(j, session, number, ends, &seq), GR_OK);
    return seq;
}

/* Sessions 1 to 39 in five lives, which have a segment each: those that 5 divides stay, the others end in the life
 * after the one that they began in, or in the same one. Each has a record in each life. */
static bool stays(uint64_t session)
{
    return session % 5 == 0;
}

static uint64_t begins_in(uint64_t session)
{
    return session % 4;
}

static uint64_t ends_in(uint64_t session)
{
    return begins_in(session) + session % 2;
}

static uint64_t last_number(uint64_t session)
{
    return 2 * ((stays(session) ? 4 : ends_in(session)) - begins_in(session) + 1);
}

static void live(struct journal_reading *x)
{
    uint64_t number[JOURNAL_N_SESSION] = {0};
    for (uint64_t life = 0; life < 5; life++) {
        struct gr_journal *j = open_journal(x, NEVER_COMPACTED);
        for (int turn = 0; turn < 2; turn++) {
            for (uint64_t s = 1; s < JOURNAL_N_SESSION; s++) {
                const bool goes_on = life >= begins_in(s) && (stays(s) || life <= ends_in(s));
                const bool is_last = turn == 1 && !stays(s) && life == ends_in(s);
                if (goes_on) {
                    (void)add(j, s, ++number[s], is_last);
                }
            }
        }
        gr_journal_close(j);
    }
}

/* Everything of those that stay; of the others everything or nothing. */
static void check_whole(const struct journal_reading *x)
{
    assert_false(x->wrong);
    for (uint64_t s = 1; s < JOURNAL_N_SESSION; s++) {
        assert_false(x->damaged[s]);
        if (stays(s) || x->number[s] != 0) {
            assert_int_equal(x->number[s], last_number(s));
            assert_int_equal(x->ended[s], !stays(s));
        }
    }
}

static void check_compacted(const struct journal_reading *x)
{
    uint64_t n = 0;
    check_whole(x);
    for (uint64_t s = 1; s < JOURNAL_N_SESSION; s++) {
        n += stays(s) ? last_number(s) : 0;
    }
    assert_int_equal(x->n_record, n);
}

/* ---- a disk after whose n-th call nothing happens any more ---- */

struct disk {
    struct journal_disk disk;
    _Atomic int dies_at; /* 0: it lives on */
    _Atomic bool is_dead;
    _Atomic bool is_full; /* for what is compacted */
    _Atomic int unnamed_fd;
    _Atomic int n_folder_sync, n_failed;
    _Atomic int n_begun, n_named;     /* compactions */
    _Atomic bool is_held, is_waiting; /* the journal's thread stands before it writes */
    void (*on_begun)(struct disk *d); /* called where a compaction begins; NULL: nothing happens there */
    const struct journal_reading *x;  /* its argument */
};

/* Another thread is waited for: in vain after two minutes. */
static void wait_a_little(void)
{
    static _Atomic int n;
    (void)poll(NULL, 0, 1);
    assert_true(++n < 120000);
}

static bool lives(struct journal_disk *disk)
{
    struct disk *d = (struct disk *)disk;
    if (d->dies_at != 0 && disk->n_call >= d->dies_at) {
        d->is_dead = true;
    }
    return !d->is_dead;
}

static int disk_create(void *ctx, int dir, const char *name)
{
    struct disk *d = ctx;
    const int fd = journal_disk_call(&d->disk, 'c') ? gr_journal_system_files.create(NULL, dir, name) : -1;
    if (strcmp(name, "compacting") == 0) {
        d->unnamed_fd = fd;
        d->n_begun++;
        if (d->on_begun != NULL) {
            d->on_begun(d);
        }
    }
    return fd;
}

static ssize_t disk_write(void *ctx, int fd, const void *p, size_t n)
{
    struct disk *d = ctx;
    for (; d->is_held; d->is_waiting = true) {
        wait_a_little();
    }
    d->is_waiting = false;
    if (!journal_disk_call(&d->disk, 'w')) { /* half of it was written when the process died */
        (void)gr_journal_system_files.write(NULL, fd, p, n / 2);
        errno = EIO;
        return -1;
    }
    if (d->is_full && fd == d->unnamed_fd) {
        d->n_failed++;
        errno = ENOSPC;
        return -1;
    }
    return gr_journal_system_files.write(NULL, fd, p, n);
}

static int disk_sync(void *ctx, int fd)
{
    struct disk *d = ctx;
    return journal_disk_call(&d->disk, 's') ? no_sync(NULL, fd) : -1;
}

static int disk_rename(void *ctx, int dir, const char *from, const char *to)
{
    struct disk *d = ctx;
    const int status = journal_disk_call(&d->disk, 'r') ? gr_journal_system_files.rename(NULL, dir, from, to) : -1;
    d->n_named += status == 0 && strcmp(from, "compacting") == 0;
    return status;
}

static int disk_sync_dir(void *ctx, int dir)
{
    struct disk *d = ctx;
    const int status = journal_disk_call(&d->disk, 'd') ? no_sync(NULL, dir) : -1;
    d->n_folder_sync++;
    return status;
}

static struct gr_journal_files files_of(struct disk *d)
{
    d->disk.goes = lives;
    struct gr_journal_files f = journal_disk_files(&d->disk);
    f.create = disk_create;
    f.write = disk_write;
    f.sync_data = disk_sync;
    f.rename = disk_rename;
    f.sync_dir = disk_sync_dir;
    return f;
}

/* Opens it, and lets it be compacted: until the folder has been synced after its own segment was named, after the
 * compacted one was, and after the others were removed. Returns whether the disk has lived. */
static bool compact(struct journal_reading *x, struct disk *d)
{
    const struct gr_journal_files files = files_of(d);
    struct gr_journal *j = NULL;
    if (journal_open(x, &files, COMPACTED, &j) != GR_OK) {
        assert_true(d->is_dead);
        return false;
    }
    while (!d->is_dead && d->n_folder_sync < 3) {
        wait_a_little();
    }
    gr_journal_close(j);
    return !d->is_dead;
}

/* Its own segment; the compacted one in pieces, each synced, and then named; the folder is synced before the five
 * others are removed, and after that. */
static bool is_in_order(const char *calls)
{
    static const char begin[] = "cwsrdc", end[] = "rduuuuud";
    bool good = strncmp(calls, begin, strlen(begin)) == 0;
    calls += strlen(begin);
    while (good && strncmp(calls, "ws", 2) == 0) {
        calls += 2;
    }
    return good && strncmp(calls, end, strlen(end)) == 0;
}

/* ---- tests ---- */

static void test_what_is_over_goes(void **state)
{
    (void)state;
    struct journal_reading x;
    struct disk d = {.dies_at = 0};
    int n = 0;
    make_folder(&x);
    live(&x);
    look(&x);
    const uint64_t before = size_of(&x, &n);
    check_whole(&x);
    assert_int_equal(n, 6);
    assert_true(compact(&x, &d));
    check_whole(&x);
    assert_true(size_of(&x, &n) < before / 2 + 1000);
    assert_int_equal(n, 2);
    assert_true(is_in_order(d.disk.calls));
    look(&x);
    check_compacted(&x);
    struct disk again = {.dies_at = 0};
    const struct gr_journal_files files = files_of(&again);
    struct gr_journal *j = NULL;
    assert_int_equal(journal_open(&x, &files, COMPACTED, &j), GR_OK); /* nothing is left to be gained */
    gr_journal_close(j);
    assert_string_equal(again.disk.calls, "cwsrdws");
    look(&x);
    check_compacted(&x);
    remove_folder(&x);
}

/* Either what was, or what stands for it; and what is left of a kill goes with the next start. */
static void test_killed_at_every_step(void **state)
{
    (void)state;
    struct journal_reading first, x;
    bool lived = false;
    int n = 0;
    make_folder(&first);
    live(&first);
    for (int at = 1; !lived; at++) {
        struct disk d = {.dies_at = at}, well = {.dies_at = 0};
        assert_true(at < 100);
        copy_folder(&first, &x);
        lived = compact(&x, &d);
        look(&x);
        check_whole(&x);
        look(&x); /* and stays so */
        check_whole(&x);
        assert_false(is_there(&x, "compacting"));
        if (!lived) {
            const struct gr_journal_files files = files_of(&well);
            struct gr_journal *j = NULL;
            assert_int_equal(journal_open(&x, &files, COMPACTED, &j), GR_OK);
            while (size_of(&x, &n) > 0 && n > 5) { /* those of the lives that looked on may be left */
                wait_a_little();
            }
            gr_journal_close(j);
            look(&x);
            check_compacted(&x);
        }
        remove_folder(&x);
    }
    remove_folder(&first);
}

/* A disk that is full for what is compacted: nothing is lost, the journal takes records, and the file is gone. */
static void test_a_full_disk(void **state)
{
    (void)state;
    struct journal_reading x;
    struct disk d = {.is_full = true};
    const struct gr_journal_files files = files_of(&d);
    struct gr_journal *j = NULL;
    make_folder(&x);
    live(&x);
    assert_int_equal(journal_open(&x, &files, COMPACTED, &j), GR_OK);
    while (d.n_failed == 0) {
        wait_a_little();
    }
    const uint64_t seq = add(j, 100, 1, false);
    assert_int_equal(gr_journal_wait(j, seq, UINT64_MAX), GR_OK);
    gr_journal_close(j);
    assert_false(is_there(&x, "compacting"));
    look(&x);
    check_whole(&x);
    assert_int_equal(x.number[2], last_number(2)); /* it is there still */
    remove_folder(&x);
}

static void flip(const struct journal_reading *x, uint64_t generation, long at)
{
    char name[GR_SEGMENT_NAME_BYTES], path[128];
    gr_segment_name(generation, name);
    snprintf(path, sizeof(path), "%s/%s", x->path, name);
    FILE *f = fopen(path, "r+e");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    const int byte = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_not_equal(fputc(byte ^ 1, f), EOF);
    assert_int_equal(fclose(f), 0);
}

static long size_of_segment(const struct journal_reading *x, uint64_t generation)
{
    char name[GR_SEGMENT_NAME_BYTES], path[128];
    struct stat s;
    gr_segment_name(generation, name);
    snprintf(path, sizeof(path), "%s/%s", x->path, name);
    return stat(path, &s) == 0 ? (long)s.st_size : -1;
}

static void truncate_segment(const struct journal_reading *x, uint64_t generation, long n)
{
    char name[GR_SEGMENT_NAME_BYTES], path[128];
    gr_segment_name(generation, name);
    snprintf(path, sizeof(path), "%s/%s", x->path, name);
    assert_int_equal(truncate(path, n), 0);
}

/* x has damage in its second segment. Returns whether those after it were compacted. What is known of sessions that
 * stay is the same before and after, nobody is damaged who was not, and the segment with those before it stays. */
static bool check_damage_stays(struct journal_reading *x)
{
    struct disk d = {.dies_at = 0};
    const struct gr_journal_files files = files_of(&d);
    struct gr_journal *j = NULL;
    look(x);
    const struct journal_reading before = *x;
    const long n = size_of_segment(x, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(journal_open(x, &files, COMPACTED, &j), GR_OK);
        gr_journal_close(j); /* which compacts, or not, as far as it comes */
    }
    assert_int_equal(journal_open(x, &files, COMPACTED, &j), GR_OK);
    for (int i = 0; size_of_segment(x, 4) >= 0 && i < 30000; i++) {
        wait_a_little();
    }
    gr_journal_close(j);
    const bool compacted = size_of_segment(x, 4) < 0;
    assert_true(size_of_segment(x, 1) > 0 && size_of_segment(x, 2) == n);
    look(x);
    assert_false(x->wrong);
    for (uint64_t s = 1; s < JOURNAL_N_SESSION; s++) {
        assert_true(!x->damaged[s] || before.damaged[s]);
        if (stays(s)) {
            assert_int_equal(x->damaged[s], before.damaged[s]);
            assert_int_equal(x->number[s], before.number[s]);
        }
    }
    return compacted;
}

static void test_damage_stays(void **state)
{
    (void)state;
    struct journal_reading first, x;
    make_folder(&first);
    live(&first);
    const long n = size_of_segment(&first, 2);
    int n_compacted = 0, n_case = 0;
    for (long at = 0; at + GR_SEGMENT_HEAD_BYTES < n; at += 509) {
        copy_folder(&first, &x);
        flip(&x, 2, at + GR_SEGMENT_HEAD_BYTES); /* of the head there are two */
        n_compacted += check_damage_stays(&x);
        n_case++;
        remove_folder(&x);
        copy_folder(&first, &x);
        truncate_segment(&x, 2, at); /* its last records are lost, which the next segment tells */
        n_compacted += check_damage_stays(&x);
        n_case++;
        remove_folder(&x);
    }
    printf("# in %d of %d cases what follows the damage was compacted\n", n_compacted, n_case);
    assert_int_equal(n_compacted, n_case);
    remove_folder(&first);
}

/* What is damaged after it was counted: nothing is done with the run. */
static void test_damage_that_comes_late(void **state)
{
    (void)state;
    struct journal_reading first, x;
    make_folder(&first);
    live(&first);
    look(&first);
    for (uint64_t generation = 1; generation <= 5; generation++) {
        struct gr_journal_folder folder;
        struct gr_replay *r = NULL;
        struct gr_replay_report report;
        struct gr_compact *k = NULL;
        uint64_t run = 0;
        int n_before = 0, n = 0;
        enum gr_status st = GR_AGAIN;
        copy_folder(&first, &x);
        assert_int_equal(gr_journal_folder_open(x.path, &folder), GR_OK);
        struct gr_compact_config c = {.files = &gr_journal_system_files, .dir = folder.fd, .from = 1, .salt = 5};
        assert_int_equal(gr_replay_create(&x, journal_take, &r), GR_OK);
        assert_int_equal(gr_journal_folder_read(&folder, r, &c.space, &run), GR_OK);
        gr_replay_end(r, &report);
        gr_replay_destroy(r);
        assert_int_equal(run, 1);
        c.to = folder.last_generation;
        c.last_seq = report.last_seq;
        flip(&x, generation, 2000);
        const uint64_t before = size_of(&x, &n_before);
        assert_int_equal(gr_compact_begin(&c, &k), GR_OK);
        while (st == GR_AGAIN) {
            st = gr_compact_step(k);
        }
        assert_int_equal(st, GR_EFORMAT);
        gr_compact_destroy(k);
        assert_int_equal(size_of(&x, &n), before);
        assert_int_equal(n, n_before);
        gr_journal_folder_close(&folder);
        remove_folder(&x);
    }
    remove_folder(&first);
}

/* Sessions that are closed at once, of one record each: all but the first of them come together. */
static void add_together(struct gr_journal *j, struct disk *d, uint64_t from, int n)
{
    uint64_t seq = 0;
    d->is_held = true;
    for (int i = 0; i < n; i++) {
        seq = add(j, from + (uint64_t)i, 1, true);
        while (i == 0 && !d->is_waiting) {
            wait_a_little();
        }
    }
    d->is_held = false;
    assert_int_equal(gr_journal_wait(j, seq, UINT64_MAX), GR_OK);
}

static void harm_first(struct disk *d)
{
    if (d->n_begun == 1) {
        flip(d->x, 1, 2000);
    }
}

/* Damage is found in the midst of a compaction, while records come: the damaged segment stays, and those that begin
 * after that are compacted as ever. */
static void test_goes_on_after_damage(void **state)
{
    (void)state;
    enum { SEGMENT = 1 << 14, N = 160, N_TIME = 10 };
    struct journal_reading x;
    struct disk d = {.on_begun = harm_first, .x = &x};
    const struct gr_journal_files files = files_of(&d);
    struct gr_journal *j = NULL;
    make_folder(&x);
    assert_int_equal(journal_open(&x, &files, SEGMENT, &j), GR_OK);
    for (uint64_t i = 0; i < N_TIME; i++) { /* each is more than a segment, the rest of which stands in the next one */
        add_together(j, &d, 1000 + i * N, N);
    }
    while (d.n_named == 0) {
        wait_a_little();
    }
    gr_journal_close(j);
    assert_true(d.n_begun > 1);
    assert_true(size_of_segment(&x, 1) >= SEGMENT && size_of_segment(&x, 2) > 0);
    look(&x);
    assert_true(size_of_segment(&x, 1) >= SEGMENT && !x.wrong);
    remove_folder(&x);
}

static void add_large(struct gr_journal *j, uint64_t session, uint32_t n, bool ends)
{
    uint8_t *body = malloc(n);
    uint64_t seq = 0;
    assert_non_null(body);
    memset(body, (int)session, n);
    const struct gr_record r = {
        .session = session, .number = 1, .kind = 1 | (ends ? GR_RECORD_ENDS : 0), .n_body = n, .body = body};
    assert_int_equal(gr_journal_add(j, &r, &seq), GR_OK);
    assert_int_equal(gr_journal_wait(j, seq, UINT64_MAX), GR_OK);
    free(body);
}

/* Records that are longer than a piece, at its begin, at its end and in the midst. */
static void test_long_records(void **state)
{
    (void)state;
    struct journal_reading x;
    struct disk d = {.dies_at = 0};
    int n = 0;
    make_folder(&x);
    live(&x);
    struct gr_journal *j = open_journal(&x, NEVER_COMPACTED);
    add_large(j, 200, GR_RECORD_BODY_MAX, true);
    add_large(j, 201, 3u << 20, false);
    add_large(j, 202, GR_COMPACT_PIECE_BYTES, false);
    add_large(j, 203, GR_RECORD_BODY_MAX, true);
    gr_journal_close(j);
    assert_true(compact(&x, &d));
    look(&x);
    check_whole(&x);
    assert_true(size_of(&x, &n) < 5u << 20);
    remove_folder(&x);
}

/* Ten thousand short sessions, and a few that stay: the journal is never larger than three times what those have, and a
 * few segments. */
static void test_many_short_sessions(void **state)
{
    (void)state;
    enum { SEGMENT = 1 << 16, N_SHORT = 10000, N_RECORD = 4 };
    struct journal_reading x;
    uint64_t seq = 0, largest = 0, n_written = 0;
    int n = 0;
    make_folder(&x);
    struct gr_journal *j = open_journal(&x, SEGMENT);
    for (uint64_t s = 1; s < JOURNAL_N_SESSION; s++) {
        (void)add(j, s, 1, false);
    }
    const uint64_t need = (JOURNAL_N_SESSION - 1) * gr_record_bytes(JOURNAL_BODY) * (1 + N_SHORT / 1000);
    for (uint64_t i = 0; i < N_SHORT; i++) {
        for (uint64_t number = 1; number <= N_RECORD; number++) {
            seq = add(j, 1000 + i, number, number == N_RECORD);
            n_written += gr_record_bytes(JOURNAL_BODY);
        }
        for (uint64_t s = 1; i % 1000 == 999 && s < JOURNAL_N_SESSION; s++) {
            seq = add(j, s, 2 + i / 1000, false);
        }
        if (i % 50 == 49) { /* no more comes than the disk takes */
            assert_int_equal(gr_journal_wait(j, seq, UINT64_MAX), GR_OK);
            const uint64_t size = size_of(&x, &n);
            largest = GR_MAX(largest, size);
        }
    }
    gr_journal_close(j);
    printf("# %llu bytes were written, %llu are needed, the journal had %llu at most\n", (unsigned long long)n_written,
           (unsigned long long)need, (unsigned long long)largest);
    assert_true(n_written > 6000000);
    assert_true(largest <= 3 * need + 12 * SEGMENT);
    look(&x);
    for (uint64_t s = 1; s < JOURNAL_N_SESSION; s++) {
        assert_true(!x.damaged[s] && x.number[s] == 1 + N_SHORT / 1000);
    }
    remove_folder(&x);
}

enum { AT_ONCE_SEGMENT = 1 << 16, AT_ONCE_N = 100, AT_ONCE_RECORD = 20 };

static void wait_for_the_rest(struct disk *d)
{
    d->is_held = d->n_begun == 1;
}

/* Many sessions are closed at once, and nothing else comes: what they had goes all the same. n_late: those that are
 * closed while the others are being let go. */
static void close_at_once(int n_late)
{
    struct journal_reading x;
    struct disk d = {.on_begun = n_late > 0 ? wait_for_the_rest : NULL};
    const struct gr_journal_files files = files_of(&d);
    struct gr_journal *j = NULL;
    uint64_t seq = 0;
    int n = 0;
    make_folder(&x);
    assert_int_equal(journal_open(&x, &files, AT_ONCE_SEGMENT, &j), GR_OK);
    for (uint64_t number = 1; number <= AT_ONCE_RECORD; number++) {
        for (uint64_t s = 0; s < AT_ONCE_N; s++) {
            seq = add(j, 1000 + s, number, false);
        }
        assert_int_equal(gr_journal_wait(j, seq, UINT64_MAX), GR_OK); /* it has a segment's end in it at most */
    }
    assert_true(d.n_begun == 0 && size_of(&x, &n) > 4 * AT_ONCE_SEGMENT);
    for (uint64_t s = 0; s < AT_ONCE_N; s++) {
        while (n_late > 0 && s == AT_ONCE_N - (uint64_t)n_late && !d.is_waiting) {
            wait_a_little();
        }
        seq = add(j, 1000 + s, AT_ONCE_RECORD + 1, true);
    }
    d.is_held = false;
    assert_int_equal(gr_journal_wait(j, seq, UINT64_MAX), GR_OK);
    while (size_of(&x, &n) > AT_ONCE_SEGMENT) {
        wait_a_little();
    }
    gr_journal_close(j);
    assert_true(n_late == 0 || d.n_named > 1);
    look(&x);
    assert_false(x.wrong);
    remove_folder(&x);
}

static void test_closed_at_once(void **state)
{
    (void)state;
    close_at_once(0);
}

static void test_closed_during_a_compaction(void **state)
{
    (void)state;
    close_at_once(AT_ONCE_N / 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_over_goes),
        cmocka_unit_test(test_killed_at_every_step),
        cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_damage_stays),
        cmocka_unit_test(test_damage_that_comes_late),
        cmocka_unit_test(test_goes_on_after_damage),
        cmocka_unit_test(test_long_records),
        cmocka_unit_test(test_many_short_sessions),
        cmocka_unit_test(test_closed_at_once),
        cmocka_unit_test(test_closed_during_a_compaction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
