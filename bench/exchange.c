#include "bench/exchange.h"

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define WAIT_MS 10000   /* without a frame for so long the other end is taken for gone */
#define LOOK_EVERY 4096 /* rounds of a busy loop between two looks at the clock */
#define FLUSH_EVERY 16  /* frames that need no answer, as a worker sends what it has in one go */
#define STEP_MAGIC 0x50455453u
#define STEP_BYTES 24 /* bytes of a frame that says what is measured next */
#define FLAG_EACH 1u  /* of that frame: each frame is answered */
#define FLAG_BUSY 2u  /* both ends look without sleeping */
#define FLAG_BYE 4u   /* the last one */
#define FLAG_MORE 8u  /* another connection follows */

/* ---- one frame, with waiting ---- */

static enum gr_status gone(enum gr_status st)
{
    if (st == GR_ECLOSED) {
        log_error("the other end closed the connection before all was measured");
    }
    return st;
}

/* Between two tries: GR_OK, or GR_ETIMEDOUT. n: how many tries there were; *since_ns is its own. */
static enum gr_status pause_end(struct gr_end *e, uint32_t n, uint64_t *since_ns)
{
    if (e->busy) {
        if (e->stuck) {
            e->stuck = gr_conn_flush(e->conn) == GR_AGAIN;
        }
        if (n % LOOK_EVERY != 0) {
            return GR_OK;
        }
    } else {
        struct pollfd p = {0};
        p.fd = gr_conn_poll_fd(e->conn, &p.events);
        if (p.fd < 0 || poll(&p, 1, WAIT_MS) != 0) {
            return GR_OK; /* interrupted or broken: the next try tells */
        }
    }
    const uint64_t now = gr_clock_ns();
    *since_ns = *since_ns == 0 ? now : *since_ns;
    if (e->busy && now - *since_ns < WAIT_MS * GR_MS) {
        return GR_OK;
    }
    log_error("nothing from the other end for %d s", WAIT_MS / 1000);
    return GR_ETIMEDOUT;
}

/* GR_ECLOSED, not logged: the other end has closed. */
static enum gr_status next_frame(struct gr_end *e, struct gr_frame *out)
{
    uint64_t since = 0;
    for (uint32_t n = 1;; n++) {
        const enum gr_status st = gr_conn_recv(e->conn, out);
        if (st != GR_AGAIN) {
            return st;
        }
        if (e->busy && !e->stuck && n % LOOK_EVERY != 0) {
            continue;
        }
        GR_TRY(pause_end(e, n, &since));
    }
}

static enum gr_status receive(struct gr_end *e, struct gr_frame *out)
{
    return gone(next_frame(e, out));
}

static enum gr_status obtain(struct gr_end *e, enum gr_frame_class class, uint32_t bytes, struct gr_frame *out)
{
    uint64_t since = 0;
    for (uint32_t n = 1;; n++) {
        const enum gr_status st = gr_conn_acquire(e->conn, class, bytes, out);
        if (st != GR_AGAIN) {
            return gone(st);
        }
        if (n == 1) { /* what frees a slot may wait after what is queued */
            e->stuck = gr_conn_flush(e->conn) == GR_AGAIN;
        }
        GR_TRY(pause_end(e, n, &since));
    }
}

static enum gr_status push(struct gr_end *e)
{
    const enum gr_status st = gr_conn_flush(e->conn);
    e->stuck = st == GR_AGAIN;
    return e->stuck ? GR_OK : gone(st);
}

static enum gr_frame_class class_of(const struct gr_end *e, uint32_t bytes)
{
    return bytes > e->conn->limits.small_bytes_max ? GR_FRAME_BULK : GR_FRAME_SMALL;
}

/* A frame that carries its number. */
static enum gr_status send_number(struct gr_end *e, enum gr_frame_class class, uint32_t bytes, uint64_t number)
{
    struct gr_frame f;
    GR_TRY(obtain(e, class, bytes, &f));
    struct gr_writer w = {.p = f.data, .cap = f.bytes};
    gr_write_u64(&w, number);
    const enum gr_status st = gr_rows_put(&e->rows, &f, bytes);
    if (st != GR_OK) {
        gr_conn_abandon(e->conn, &f);
        return st;
    }
    return gone(gr_conn_send(e->conn, &f, bytes));
}

static enum gr_status expect_number(struct gr_end *e, uint32_t bytes, uint64_t number)
{
    struct gr_frame f;
    GR_TRY(receive(e, &f));
    struct gr_reader r = {.p = f.data, .len = f.bytes};
    const uint32_t got_bytes = f.bytes;
    const uint64_t got = gr_read_u64(&r);
    const enum gr_status st = gr_rows_get(&e->rows, &f);
    gr_conn_release(e->conn, &f);
    GR_TRY(st);
    if (got_bytes == bytes && got == number) {
        return GR_OK;
    }
    log_error("frame %" PRIu64 " of %u bytes was expected, %" PRIu64 " of %u bytes came", number, bytes, got,
              got_bytes);
    return GR_EPROTO;
}

/* Answers are numbered twice the question's, and one more for the bulk frame after; either may come first, since
 * classes do not wait for each other, but never the bulk frame before the small one that was sent earlier. */
static enum gr_status answer(struct gr_end *e, const struct gr_step *s, uint64_t i)
{
    if (s->down > 0) {
        GR_TRY(send_number(e, class_of(e, s->down), s->down, 2 * i));
    }
    if (s->bulk > 0) {
        GR_TRY(send_number(e, GR_FRAME_BULK, s->bulk, 2 * i + 1));
    }
    return push(e);
}

static enum gr_status expect_answer(struct gr_end *e, const struct gr_step *s, uint64_t i)
{
    if (s->down > 0) {
        GR_TRY(expect_number(e, s->down, 2 * i));
    }
    return s->bulk > 0 ? expect_number(e, s->bulk, 2 * i + 1) : GR_OK;
}

/* ---- the step's own frame ---- */

static enum gr_status send_step(struct gr_end *e, const struct gr_step *s, uint32_t flags)
{
    struct gr_frame f;
    GR_TRY(obtain(e, GR_FRAME_SMALL, STEP_BYTES, &f));
    struct gr_writer w = {.p = f.data, .cap = f.bytes};
    gr_write_u32(&w, STEP_MAGIC);
    gr_write_u32(&w, flags);
    gr_write_u32(&w, s->n);
    gr_write_u32(&w, s->up);
    gr_write_u32(&w, s->down);
    gr_write_u32(&w, s->bulk);
    enum gr_status st = gr_conn_send(e->conn, &f, STEP_BYTES);
    st = st == GR_OK ? gr_conn_flush(e->conn) : st;
    e->stuck = st == GR_AGAIN;
    if ((flags & FLAG_BYE) != 0) {
        return GR_OK; /* the other end may have taken it and closed by now */
    }
    return e->stuck ? GR_OK : gone(st);
}

static bool fits(const struct gr_end *e, uint32_t bytes, bool may_be_none)
{
    const uint32_t max = GR_MAX(e->conn->limits.small_bytes_max, e->conn->limits.bulk_bytes_max);
    return (bytes >= GR_STEP_BYTES_MIN && bytes <= max) || (may_be_none && bytes == 0);
}

static enum gr_status read_step(struct gr_end *e, struct gr_step *out, uint32_t *flags_out)
{
    struct gr_frame f;
    GR_TRY(receive(e, &f));
    struct gr_reader r = {.p = f.data, .len = f.bytes};
    const uint32_t magic = gr_read_u32(&r);
    const uint32_t flags = gr_read_u32(&r);
    struct gr_step s = {.each = (flags & FLAG_EACH) != 0, .busy = (flags & FLAG_BUSY) != 0};
    s.n = gr_read_u32(&r);
    s.up = gr_read_u32(&r);
    s.down = gr_read_u32(&r);
    s.bulk = gr_read_u32(&r);
    const bool whole = !r.failed && r.at == r.len && magic == STEP_MAGIC;
    gr_conn_release(e->conn, &f);
    if (!whole || s.n > GR_STEP_ITERS_MAX ||
        (s.n > 0 && (!fits(e, s.up, false) || !fits(e, s.down, true) || !fits(e, s.bulk, true)))) {
        log_error("the other end asks for something that is no step; is it a graft-bench of this version?");
        return GR_EPROTO;
    }
    *out = s;
    *flags_out = flags;
    return GR_OK;
}

/* ---- near ---- */

static enum gr_status near_loop(struct gr_end *e, const struct gr_step *s, double *sample_out)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const uint64_t begin = gr_clock_ns();
        GR_TRY(send_number(e, class_of(e, s->up), s->up, i));
        if (s->each) {
            GR_TRY(push(e));
            GR_TRY(expect_answer(e, s, i));
            sample_out[i] = 1e-3 * (double)(gr_clock_ns() - begin);
        } else if (i % FLUSH_EVERY == FLUSH_EVERY - 1) {
            GR_TRY(push(e));
        }
    }
    GR_TRY(push(e));
    return s->each ? GR_OK : expect_answer(e, s, s->n - 1);
}

enum gr_status gr_near_run(struct gr_end *e, const struct gr_step *s, double *sample_out, double *seconds_out)
{
    GR_ASSERT(s->n > 0 && s->n <= GR_STEP_ITERS_MAX && s->down + s->bulk > 0);
    GR_TRY(send_step(e, s, (s->each ? FLAG_EACH : 0) | (s->busy ? FLAG_BUSY : 0)));
    GR_TRY(expect_number(e, GR_STEP_BYTES_MIN, s->n)); /* the far end is ready: its start is not measured */
    const uint64_t begin = gr_clock_ns();
    GR_TRY(near_loop(e, s, sample_out));
    *seconds_out = 1e-9 * (double)(gr_clock_ns() - begin);
    return GR_OK;
}

enum gr_status gr_near_bye(struct gr_end *e, bool more)
{
    const struct gr_step none = {0};
    struct gr_frame f;
    GR_TRY(send_step(e, &none, FLAG_BYE | (more ? FLAG_MORE : 0)));
    const enum gr_status st = next_frame(e, &f);
    if (st != GR_OK) {
        return st == GR_ECLOSED ? GR_OK : st;
    }
    log_error("a frame of %u bytes came after the last one", f.bytes);
    gr_conn_release(e->conn, &f);
    return GR_EPROTO;
}

/* ---- far ---- */

static enum gr_status far_loop(struct gr_end *e, const struct gr_step *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        GR_TRY(expect_number(e, s->up, i));
        if (s->each || i == s->n - 1) {
            GR_TRY(answer(e, s, i));
        }
    }
    return GR_OK;
}

enum gr_status gr_far_serve(struct gr_conn *c, const struct gr_rows *rows, bool *more_out)
{
    struct gr_end e = {.conn = c, .rows = *rows};
    for (;;) {
        struct gr_step s;
        uint32_t flags;
        e.busy = false;
        GR_TRY(read_step(&e, &s, &flags));
        if ((flags & FLAG_BYE) != 0) {
            *more_out = (flags & FLAG_MORE) != 0;
            return GR_OK;
        }
        GR_TRY(send_number(&e, GR_FRAME_SMALL, GR_STEP_BYTES_MIN, s.n));
        GR_TRY(push(&e));
        e.busy = s.busy;
        GR_TRY(far_loop(&e, &s));
    }
}
