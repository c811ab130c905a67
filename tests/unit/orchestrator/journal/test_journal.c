/* A journal on disk: what is durable when, what a disk that fails leads to, who may have it, and that the next life
 * reads what the last one wrote. */
#include "orchestrator/journal/journal.h"
#include "tests/quiet_log.h"
#include "tests/unit/journal_world.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

/* ---- folders ---- */

static void make_folder(struct journal_reading *x)
{
    *x = (struct journal_reading){.n_record = 0};
    journal_make_folder("journal", x->path);
}

static void remove_folder(const struct journal_reading *x)
{
    journal_remove_folder(x->path);
}

static enum gr_status open_with(struct journal_reading *x, const struct gr_journal_files *files,
                                struct gr_journal **out)
{
    return journal_open(x, files, 2000, out);
}

static struct gr_journal *open_journal(struct journal_reading *x)
{
    struct gr_journal *j = NULL;
    assert_int_equal(open_with(x, NULL, &j), GR_OK);
    return j;
}

static enum gr_status add(struct gr_journal *j, uint64_t session, uint64_t number, uint64_t *seq)
{
    return journal_add(j, session, number, false, seq);
}

static void add_many(struct gr_journal *j, uint64_t from, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(add(j, 1 + i % 5, from + i / 5, NULL), GR_OK);
    }
}

/* ---- a disk that fails when it is asked to ---- */

struct disk {
    struct journal_disk disk;
    _Atomic(struct gr_journal *) journal;
    _Atomic uint64_t waited;           /* the record that must not count as durable before it is */
    _Atomic bool early;                /* it did: a thread that is not the test's cannot fail it */
    _Atomic int fail_sync, fail_write; /* the next so many */
};

static bool look_for_early(struct journal_disk *disk)
{
    struct disk *d = (struct disk *)disk;
    if (d->journal != NULL && d->waited != 0 && gr_journal_synced(d->journal) >= d->waited) {
        d->early = true;
    }
    return true;
}

static ssize_t disk_write(void *ctx, int fd, const void *p, size_t n)
{
    struct disk *d = ctx;
    (void)journal_disk_call(&d->disk, 'w');
    if (d->fail_write == 0) {
        return gr_journal_system_files.write(NULL, fd, p, n);
    }
    d->fail_write--;
    if (d->fail_write == 0) {
        errno = ENOSPC;
        return -1;
    }
    return gr_journal_system_files.write(NULL, fd, p, n / 2); /* a disk that is filling up */
}

static int disk_sync(void *ctx, int fd)
{
    struct disk *d = ctx;
    (void)journal_disk_call(&d->disk, 's');
    if (d->fail_sync > 0) {
        d->fail_sync--;
        errno = EIO;
        return -1;
    }
    return gr_journal_system_files.sync_data(NULL, fd);
}

static struct gr_journal_files files_of(struct disk *d)
{
    d->disk.goes = look_for_early;
    struct gr_journal_files f = journal_disk_files(&d->disk);
    f.write = disk_write;
    f.sync_data = disk_sync;
    return f;
}

/* ---- tests ---- */

static void test_lives(void **state)
{
    (void)state;
    struct journal_reading x;
    make_folder(&x);
    for (uint64_t life = 0; life < 4; life++) {
        struct gr_journal *j = open_journal(&x);
        assert_int_equal(x.n_record, life * 200);
        assert_true(x.n_damaged == 0 && !x.wrong);
        assert_int_equal(x.number[1], life * 40);
        add_many(j, life * 40 + 1, 200); /* several segments */
        gr_journal_close(j);
    }
    remove_folder(&x);
}

/* Nothing counts as durable before it was written and synced, and no segment has a name before it has a head. */
static void test_order(void **state)
{
    (void)state;
    struct journal_reading x;
    struct disk d = {.fail_sync = 0};
    const struct gr_journal_files files = files_of(&d);
    struct gr_journal *j = NULL;
    uint64_t seq = 0;
    make_folder(&x);
    assert_int_equal(open_with(&x, &files, &j), GR_OK);
    assert_string_equal(d.disk.calls, "cwsrd");
    d.journal = j;
    d.waited = 1;
    assert_int_equal(add(j, 1, 1, &seq), GR_OK);
    assert_int_equal(seq, 1);
    journal_wait_for(j, seq);
    assert_string_equal(d.disk.calls, "cwsrdws");
    d.waited = 0;
    memset(d.disk.calls, 0, sizeof(d.disk.calls));
    d.disk.n_call = 0;
    static const uint8_t body[4000] = {1};
    const struct gr_record large = {.session = 2, .number = 1, .kind = 1, .n_body = sizeof(body), .body = body};
    assert_int_equal(gr_journal_add(j, &large, &seq), GR_OK);
    journal_wait_for(j, seq);
    gr_journal_close(j);
    assert_string_equal(d.disk.calls, "wscwsrdws"); /* with the end of the segment, the next one, and that one's end */
    assert_false(d.early);
    remove_folder(&x);
}

/* A journal with one record that is durable, and one that the disk does not take. */
static void fail_second(struct journal_reading *x, struct disk *d, int fail_sync, int fail_write)
{
    const struct gr_journal_files files = files_of(d);
    struct gr_journal *j = NULL;
    uint64_t first = 0;
    uint64_t second = 0;
    assert_int_equal(open_with(x, &files, &j), GR_OK);
    assert_int_equal(add(j, 1, 1, &first), GR_OK);
    journal_wait_for(j, first);
    d->fail_sync = fail_sync;
    d->fail_write = fail_write;
    assert_int_equal(add(j, 1, 2, &second), GR_OK);
    journal_wait_for(j, second);
    assert_true(gr_journal_has_failed(j) && gr_journal_synced(j) == first);
    assert_int_equal(add(j, 1, 3, NULL), GR_EIO);
    gr_journal_close(j);
}

/* After a sync that failed nobody knows what the disk has: nothing is added, and nothing counts as durable. */
static void test_failed_sync(void **state)
{
    (void)state;
    struct journal_reading x;
    struct disk d = {.fail_sync = 0};
    make_folder(&x);
    fail_second(&x, &d, 1, 0);
    assert_non_null(strstr(log_count_last, "cannot be synced"));
    gr_journal_close(open_journal(&x));
    assert_true(x.n_record >= 1 && x.n_record <= 2 && x.n_damaged == 0);
    remove_folder(&x);
}

/* Half a record, and then no space: what was durable before is read, and the half is cut. */
static void test_full_disk(void **state)
{
    (void)state;
    struct journal_reading x;
    struct disk d = {.fail_sync = 0};
    make_folder(&x);
    fail_second(&x, &d, 0, 2);
    log_count_last[0] = '\0';
    struct gr_journal *j = open_journal(&x);
    assert_true(x.n_record == 1 && x.n_damaged == 0);
    assert_non_null(strstr(log_count_last, "no whole record"));
    assert_int_equal(add(j, 1, 2, NULL), GR_OK);
    gr_journal_close(j);
    gr_journal_close(open_journal(&x));
    assert_true(x.n_record == 2 && x.n_damaged == 0);
    remove_folder(&x);
}

static void test_one_process(void **state)
{
    (void)state;
    struct journal_reading x;
    struct gr_journal *second = NULL;
    make_folder(&x);
    struct gr_journal *j = open_journal(&x);
    assert_int_equal(open_with(&x, NULL, &second), GR_EMISMATCH);
    assert_non_null(strstr(log_count_last, "another process"));
    gr_journal_close(j);
    gr_journal_close(open_journal(&x));
    assert_int_equal(chmod(x.path, 0750), 0);
    assert_int_equal(open_with(&x, NULL, &second), GR_EMISMATCH);
    assert_int_equal(chmod(x.path, 0700), 0);
    remove_folder(&x);
}

static void spoil(const struct journal_reading *x, const char *name)
{
    char path[128];
    static const char bytes[GR_SEGMENT_HEAD_BYTES] = "not a segment";
    snprintf(path, sizeof(path), "%s/%s", x->path, name);
    FILE *f = fopen(path, "r+e");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, sizeof(bytes), f), sizeof(bytes));
    assert_int_equal(fclose(f), 0);
}

/* A segment that cannot be read: sessions are named, and the journal is used. */
static void test_damaged_segment(void **state)
{
    (void)state;
    struct journal_reading x;
    make_folder(&x);
    struct gr_journal *j = open_journal(&x);
    add_many(j, 1, 200);
    gr_journal_close(j);
    spoil(&x, "0000000000000002.segment");
    j = open_journal(&x);
    assert_int_equal(x.n_damaged, 5);
    assert_int_equal(add(j, 7, 1, NULL), GR_OK);
    gr_journal_close(j);
    j = open_journal(&x);
    assert_true(x.n_damaged == 5 && x.number[7] == 1);
    gr_journal_close(j);
    remove_folder(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lives),     cmocka_unit_test(test_order),       cmocka_unit_test(test_failed_sync),
        cmocka_unit_test(test_full_disk), cmocka_unit_test(test_one_process), cmocka_unit_test(test_damaged_segment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
