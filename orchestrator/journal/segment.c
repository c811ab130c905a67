#include "orchestrator/journal/segment.h"

#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUFFIX ".segment"
#define DIGITS 16
#define UNFINISHED "begun" /* a segment that has no name yet: left by a crash it is written anew */

void gr_segment_name(uint64_t generation, char out[static GR_SEGMENT_NAME_BYTES])
{
    snprintf(out, GR_SEGMENT_NAME_BYTES, "%0*" PRIx64 SUFFIX, DIGITS, generation);
}

uint64_t gr_segment_generation(const char *name)
{
    const bool is_one = strspn(name, "0123456789abcdef") == DIGITS && strcmp(name + DIGITS, SUFFIX) == 0;
    return is_one ? strtoull(name, NULL, DIGITS) : 0;
}

static enum gr_status failed(const struct gr_segment *s, const char *what)
{
    char name[GR_SEGMENT_NAME_BYTES];
    gr_segment_name(s->head.generation, name);
    log_error("journal: %s: %s: %s; nothing more is written to the journal%s", name, what, strerror(errno),
              errno == ENOSPC || errno == EDQUOT ? ": free space on its disk, and start the server again" : "");
    return GR_EIO;
}

enum gr_status gr_segment_write(struct gr_segment *s, const uint8_t *p, size_t n)
{
    return gr_journal_write_all(s->files, s->fd, p, n) == 0 ? GR_OK : failed(s, "cannot be written");
}

enum gr_status gr_segment_sync(struct gr_segment *s)
{
    return s->files->sync_data(s->files->ctx, s->fd) == 0 ? GR_OK : failed(s, "cannot be synced");
}

/* The name comes after what it names is durable, and is made durable itself: a segment that has a name has a head. */
static enum gr_status give_name(struct gr_segment *s)
{
    char name[GR_SEGMENT_NAME_BYTES];
    gr_segment_name(s->head.generation, name);
    if (s->files->rename(s->files->ctx, s->dir, UNFINISHED, name) != 0 ||
        s->files->sync_dir(s->files->ctx, s->dir) != 0) {
        return failed(s, "cannot be named");
    }
    return GR_OK;
}

static enum gr_status fill(struct gr_segment *s)
{
    uint8_t bytes[GR_SEGMENT_HEAD_BYTES]; /* it is not compacted */
    gr_segment_head_encode(&s->head, bytes);
    GR_TRY(gr_segment_write(s, bytes, sizeof(bytes)));
    GR_TRY(gr_segment_sync(s));
    return give_name(s);
}

enum gr_status gr_segment_begin(struct gr_segment *s, const struct gr_segment_head *head)
{
    s->head = *head;
    s->fd = s->files->create(s->files->ctx, s->dir, UNFINISHED);
    if (s->fd < 0) {
        return failed(s, "cannot be created");
    }
    const enum gr_status st = fill(s);
    if (st != GR_OK) {
        gr_segment_close(s);
    }
    return st;
}

void gr_segment_close(struct gr_segment *s)
{
    if (s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
}
