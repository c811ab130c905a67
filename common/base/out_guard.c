#include "common/base/out_guard.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Bytes that a pipe with any room takes without waiting (pipe(7): PIPE_BUF). */
#define PIECE_BYTES 4096u
/* After a signal, all writes of the process together wait for readers that are slow no longer than this. */
#define GRACE_NS (500 * GR_MS)
#define TERMINAL_MS 5 /* between two tries where a terminal has room, and not enough */

static struct {
    int signal_fd;                /* readable while such a signal is in the queue; never read. 0: no guard */
    int quick[STDERR_FILENO + 1]; /* terminals once more, opened without waiting; 0: none */
    atomic_ullong hurry_until_ns; /* 0: no signal has come */
    atomic_int signal_number, cut_by;
} guard;

void gr_out_hurry(int signal_number)
{
    unsigned long long none = 0;
    if (atomic_compare_exchange_strong(&guard.hurry_until_ns, &none, gr_clock_ns() + GRACE_NS)) {
        atomic_store(&guard.signal_number, signal_number);
    }
}

void gr_out_calm(void)
{
    atomic_store(&guard.signal_number, 0);
    atomic_store(&guard.cut_by, 0);
    atomic_store(&guard.hurry_until_ns, 0);
}

int gr_out_cut_by(void)
{
    return atomic_load(&guard.cut_by);
}

static int queued_signal(void)
{
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    return sigismember(&pending, SIGTERM) == 1 ? SIGTERM : sigismember(&pending, SIGHUP) == 1 ? SIGHUP : SIGINT;
}

static int left_ms(void)
{
    const uint64_t until_ns = atomic_load(&guard.hurry_until_ns), now_ns = gr_clock_ns();
    if (until_ns == 0) {
        return -1;
    }
    return now_ns >= until_ns ? 0 : (int)((until_ns - now_ns) / GR_MS) + 1;
}

/* A terminal may say that it has room, and have too little for the next character: then only its reader or a signal
 * helps, and poll() would not wait for either. False: a signal. */
static bool wait_for_reader(void)
{
    struct pollfd p = {.fd = guard.signal_fd, .events = POLLIN};
    if (atomic_load(&guard.hurry_until_ns) == 0 && poll(&p, 1, TERMINAL_MS) > 0) {
        gr_out_hurry(queued_signal());
    }
    return left_ms() != 0;
}

/* False: a signal, and no room. */
static bool wait_for_room(int fd)
{
    for (;;) {
        const bool hurry = atomic_load(&guard.hurry_until_ns) != 0;
        const int signal_fd = hurry || guard.signal_fd == 0 ? -1 : guard.signal_fd;
        struct pollfd p[2] = {{.fd = fd, .events = POLLOUT}, {.fd = signal_fd, .events = POLLIN}};
        const int n = poll(p, 2, left_ms());
        if (n < 0 && errno != EINTR) {
            return true; /* write() will tell */
        }
        if (n > 0 && p[0].revents != 0) {
            return true;
        }
        if (n == 0) {
            return false;
        }
        if ((p[1].revents & POLLIN) != 0) {
            gr_out_hurry(queued_signal());
        }
    }
}

static enum gr_status cut(void)
{
    atomic_store(&guard.cut_by, atomic_load(&guard.signal_number));
    return GR_ECANCELED;
}

/* The descriptor of the same file that never waits, where there is one. */
static int quick_of(int fd)
{
    const bool has = fd >= 0 && fd < (int)GR_ARRAY_LEN(guard.quick) && guard.quick[fd] > 0;
    return has ? guard.quick[fd] : fd;
}

enum gr_status gr_out_write(int fd, const void *data, size_t bytes)
{
    const bool guarded = guard.signal_fd > 0;
    const int to = quick_of(fd);
    const char *p = data;
    while (bytes > 0) {
        if (guarded && !wait_for_room(fd)) {
            return cut();
        }
        const ssize_t n = write(to, p, guarded ? GR_MIN(bytes, PIECE_BYTES) : bytes);
        const int error = n < 0 ? errno : 0;
        if (error == EAGAIN && !(to != fd ? wait_for_reader() : wait_for_room(fd))) {
            return cut();
        }
        if (error != 0 && error != EAGAIN && error != EINTR) {
            errno = error;
            return error == EPIPE ? GR_ECLOSED : GR_EIO;
        }
        p += GR_MAX(n, 0);
        bytes -= (size_t)GR_MAX(n, 0);
    }
    return GR_OK;
}

/* ---- streams ---- */

static ssize_t stream_write(void *cookie, const char *data, size_t bytes)
{
    const enum gr_status st = gr_out_write((int)(intptr_t)cookie, data, bytes);
    if (st == GR_ECANCELED) {
        errno = EINTR;
    }
    return st == GR_OK ? (ssize_t)bytes : 0;
}

static int stream_close(void *cookie)
{
    return close((int)(intptr_t)cookie);
}

FILE *gr_out_stream(int fd)
{
    const cookie_io_functions_t io = {.write = stream_write, .close = stream_close};
    return fopencookie((void *)(intptr_t)fd, "w", io);
}

/* What shares the terminal with this process keeps its own way to write: flags are of the open file, so it is opened
 * anew. Where that is not allowed it is written as it is. */
static void open_quick(int fd)
{
    char path[32];
    if (isatty(fd)) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        guard.quick[fd] = GR_MAX(open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), 0);
    }
}

enum gr_status gr_out_guard(const sigset_t *endings)
{
    if (guard.signal_fd > 0) {
        return GR_OK;
    }
    const int fd = signalfd(-1, endings, SFD_CLOEXEC | SFD_NONBLOCK);
    FILE *out = gr_out_stream(STDOUT_FILENO), *err = gr_out_stream(STDERR_FILENO);
    if (fd < 0 || out == NULL || err == NULL || fflush(stdout) != 0) {
        log_error("standard output cannot be guarded: %s", strerror(errno));
        return GR_EIO;
    }
    setvbuf(out, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
    setvbuf(err, NULL, _IONBF, 0);
    guard.signal_fd = fd;
    open_quick(STDOUT_FILENO);
    open_quick(STDERR_FILENO);
    stdout = out; /* glibc's are variables; see "Standard Streams" in its manual */
    stderr = err;
    return GR_OK;
}
