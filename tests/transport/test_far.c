#include "tests/transport/test_far.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define N_REGION 32

static struct region {
    struct test_far *of;
    int fd;               /* of a memfd */
    uint8_t *far, *alias; /* one memory, mapped twice if guarded */
    size_t bytes;
} regions[N_REGION];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct region *find(const void *p)
{
    const uint8_t *at = p;
    for (int i = 0; i < N_REGION; i++) {
        if (regions[i].of != NULL && at >= regions[i].far && at < regions[i].far + regions[i].bytes) {
            return &regions[i];
        }
    }
    return NULL;
}

static uint8_t *alias_of(const void *p)
{
    const struct region *r = find(p);
    return r != NULL ? r->alias + ((const uint8_t *)p - r->far) : (uint8_t *)(uintptr_t)p;
}

uint8_t *test_far_at(const void *p)
{
    pthread_mutex_lock(&lock);
    uint8_t *at = alias_of(p);
    pthread_mutex_unlock(&lock);
    return at;
}

bool test_far_is(const void *p)
{
    pthread_mutex_lock(&lock);
    const struct region *r = find(p);
    pthread_mutex_unlock(&lock);
    return r != NULL && r->of->guarded;
}

/* ---- what is not done yet ---- */

static void add(struct test_far_op *list, int *n, struct test_far_op op, bool stash)
{
    GR_ASSERT(*n < TEST_FAR_N_OP);
    if (stash) {
        op.stash = malloc(op.bytes + 1);
        memcpy(op.stash, op.from, op.bytes);
        op.from = op.stash;
    }
    list[(*n)++] = op;
}

static void run(struct test_far_op *list, int *n)
{
    for (int i = 0; i < *n; i++) {
        memmove(list[i].to, list[i].from, list[i].bytes);
        free(list[i].stash);
    }
    *n = 0;
}

void (*test_far_move)(void *to, const void *from, size_t bytes);

void test_far_write(void *to, const void *from, size_t bytes)
{
    pthread_mutex_lock(&lock);
    const struct region *r = find(to);
    const struct test_far_op op = {.to = alias_of(to), .from = alias_of(from), .bytes = bytes};
    if (r != NULL && r->of->guarded) {
        add(r->of->written, &r->of->n_written, op, true);
    } else if (r == NULL && find(from) == NULL && test_far_move != NULL) {
        test_far_move(to, from, bytes);
    } else {
        memcpy(op.to, op.from, bytes);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- the table ---- */

static enum gr_status take(void *ctx, size_t bytes, uint8_t **out)
{
    struct test_far *f = ctx;
    GR_ASSERT(bytes % GR_FAR_PAGE_BYTES == 0);
    pthread_mutex_lock(&lock);
    int i = 0;
    while (regions[i].of != NULL) {
        GR_ASSERT(++i < N_REGION);
    }
    struct region *r = &regions[i];
    *r = (struct region){.of = f, .bytes = bytes, .fd = memfd_create("far", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    GR_ASSERT(r->fd >= 0 && ftruncate(r->fd, (off_t)bytes) == 0 && fcntl(r->fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    r->alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    r->far = f->guarded ? mmap(NULL, bytes, PROT_NONE, MAP_SHARED, r->fd, 0) : r->alias;
    GR_ASSERT(r->alias != MAP_FAILED && r->far != MAP_FAILED);
    f->n_taken++;
    *out = r->far;
    pthread_mutex_unlock(&lock);
    return GR_OK;
}

static void give(void *ctx, uint8_t *p)
{
    struct test_far *f = ctx;
    pthread_mutex_lock(&lock);
    struct region *r = find(p);
    GR_ASSERT(r != NULL && r->far == p && r->of == f);
    run(f->copy, &f->n_copy);
    run(f->written, &f->n_written);
    munmap(r->alias, r->bytes);
    if (r->far != r->alias) {
        munmap(r->far, r->bytes);
    }
    close(r->fd);
    r->of = NULL;
    f->n_taken--;
    pthread_mutex_unlock(&lock);
}

/* A dma-buf of the memory itself where the kernel makes them of memfds, which is all that a real device could be
 * asked with; a device in memory looks at the descriptor's validity alone. */
static int export_region(const struct test_far *f, const struct region *r, size_t bytes)
{
    if (f->export_errno != 0) {
        return -f->export_errno;
    }
    if (f->guarded) {
        return dup(r->fd);
    }
    const int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
    if (device < 0) {
        return -errno;
    }
    struct udmabuf_create c = {.memfd = (uint32_t)r->fd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = bytes};
    const int fd = ioctl(device, UDMABUF_CREATE, &c);
    const int err = errno;
    close(device);
    return fd >= 0 ? fd : -err;
}

static int export_fd(void *ctx, uint8_t *p, size_t bytes)
{
    pthread_mutex_lock(&lock);
    const struct region *r = find(p);
    GR_ASSERT(r != NULL && r->far == p && bytes <= r->bytes);
    const int fd = export_region(ctx, r, bytes);
    pthread_mutex_unlock(&lock);
    return fd;
}

static enum gr_status copy(void *ctx, void *to, const void *from, size_t bytes)
{
    struct test_far *f = ctx;
    if (f->fails) {
        return GR_EIO;
    }
    pthread_mutex_lock(&lock);
    GR_ASSERT(find(to) != NULL || find(from) != NULL); /* else memcpy does it */
    const struct test_far_op op = {.to = alias_of(to), .from = alias_of(from), .bytes = bytes};
    if (find(to) == NULL) {
        run(f->copy, &f->n_copy);
        memcpy(op.to, op.from, bytes);
    } else {
        add(f->copy, &f->n_copy, op, find(from) == NULL);
    }
    if (!f->guarded) {
        run(f->copy, &f->n_copy);
    }
    pthread_mutex_unlock(&lock);
    return GR_OK;
}

static enum gr_status wait_all(void *ctx)
{
    struct test_far *f = ctx;
    pthread_mutex_lock(&lock);
    f->n_wait++;
    run(f->copy, &f->n_copy);
    pthread_mutex_unlock(&lock);
    return GR_OK;
}

static enum gr_status arrived(void *ctx)
{
    struct test_far *f = ctx;
    pthread_mutex_lock(&lock);
    f->n_arrived++;
    run(f->written, &f->n_written);
    pthread_mutex_unlock(&lock);
    return GR_OK;
}

void test_far_init(struct test_far *f, const char *name, bool guarded)
{
    *f = (struct test_far){.guarded = guarded};
    f->memory = (struct gr_far_memory){.name = name,
                                       .ctx = f,
                                       .take = take,
                                       .give = give,
                                       .export_fd = export_fd,
                                       .copy = copy,
                                       .wait = wait_all,
                                       .arrived = arrived};
}
