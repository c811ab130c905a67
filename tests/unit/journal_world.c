#include "tests/unit/journal_world.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define KIND 1

/* ---- folders ---- */

void journal_make_folder(const char *word, char path_out[64])
{
    assert_in_range(snprintf(path_out, 64, "/tmp/graft-%s-XXXXXX", word), 1, 63);
    assert_non_null(mkdtemp(path_out));
}

void journal_remove_folder(const char *path)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -r '%s'", path);
    assert_int_equal(system(command), 0);
}

/* ---- records ---- */

static void fill_body(uint64_t session, uint64_t number, uint8_t out[JOURNAL_BODY])
{
    for (size_t i = 0; i < JOURNAL_BODY; i++) {
        out[i] = (uint8_t)(session * 31 + number * 7 + i);
    }
}

enum gr_status journal_add(struct gr_journal *j, uint64_t session, uint64_t number, bool ends, uint64_t *seq_out)
{
    uint8_t body[JOURNAL_BODY];
    fill_body(session, number, body);
    const struct gr_record r = {.session = session,
                                .number = number,
                                .kind = KIND | (ends ? GR_RECORD_ENDS : 0),
                                .n_body = JOURNAL_BODY,
                                .body = body};
    return gr_journal_add(j, &r, seq_out);
}

void journal_wait_for(const struct gr_journal *j, uint64_t seq)
{
    while (gr_journal_synced(j) < seq && !gr_journal_has_failed(j)) {
        struct pollfd p = {.fd = gr_journal_fd(j), .events = POLLIN};
        uint64_t count = 0;
        assert_true(poll(&p, 1, -1) == 1 && read(p.fd, &count, sizeof(count)) == sizeof(count));
    }
}

enum gr_status journal_take(void *ctx, const struct gr_record *r)
{
    struct journal_reading *x = ctx;
    uint8_t want[JOURNAL_BODY];
    x->n_record++;
    if (r->session < JOURNAL_N_SESSION) {
        fill_body(r->session, r->number, want);
        x->wrong = x->wrong || r->n_body != JOURNAL_BODY || memcmp(r->body, want, JOURNAL_BODY) != 0;
        x->wrong = x->wrong || r->number != x->number[r->session] + 1;
        x->number[r->session] = r->number;
        x->ended[r->session] = (r->kind & GR_RECORD_ENDS) != 0;
    }
    return GR_OK;
}

static void take_damaged(void *ctx, uint64_t session)
{
    struct journal_reading *x = ctx;
    x->n_damaged++;
    if (session < JOURNAL_N_SESSION) {
        x->damaged[session] = true;
    }
}

enum gr_status journal_open(struct journal_reading *x, const struct gr_journal_files *files, uint32_t segment_bytes,
                            struct gr_journal **out)
{
    char path[sizeof(x->path)];
    memcpy(path, x->path, sizeof(path));
    *x = (struct journal_reading){.n_record = 0};
    memcpy(x->path, path, sizeof(path));
    const struct gr_journal_config c = {.path = x->path,
                                        .files = files,
                                        .segment_bytes = segment_bytes,
                                        .ctx = x,
                                        .on_record = journal_take,
                                        .on_damaged = take_damaged};
    return gr_journal_open(&c, out);
}

/* ---- a disk ---- */

bool journal_disk_call(struct journal_disk *d, char what)
{
    const int n = d->n_call++;
    if ((size_t)n + 1 < sizeof(d->calls)) {
        d->calls[n] = what;
    }
    if (d->goes != NULL && !d->goes(d)) {
        errno = EIO;
        return false;
    }
    return true;
}

static int disk_create(void *ctx, int dir, const char *name)
{
    return journal_disk_call(ctx, 'c') ? gr_journal_system_files.create(NULL, dir, name) : -1;
}

static ssize_t disk_write(void *ctx, int fd, const void *p, size_t n)
{
    return journal_disk_call(ctx, 'w') ? gr_journal_system_files.write(NULL, fd, p, n) : -1;
}

static int disk_sync(void *ctx, int fd)
{
    return journal_disk_call(ctx, 's') ? gr_journal_system_files.sync_data(NULL, fd) : -1;
}

static int disk_rename(void *ctx, int dir, const char *from, const char *to)
{
    return journal_disk_call(ctx, 'r') ? gr_journal_system_files.rename(NULL, dir, from, to) : -1;
}

static int disk_sync_dir(void *ctx, int dir)
{
    return journal_disk_call(ctx, 'd') ? gr_journal_system_files.sync_dir(NULL, dir) : -1;
}

static int disk_remove(void *ctx, int dir, const char *name)
{
    return journal_disk_call(ctx, 'u') ? gr_journal_system_files.remove(NULL, dir, name) : -1;
}

struct gr_journal_files journal_disk_files(struct journal_disk *d)
{
    return (struct gr_journal_files){.ctx = d,
                                     .create = disk_create,
                                     .write = disk_write,
                                     .sync_data = disk_sync,
                                     .rename = disk_rename,
                                     .sync_dir = disk_sync_dir,
                                     .remove = disk_remove};
}
