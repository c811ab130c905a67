#include "model/group/group_memory.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINE 64
#define LOOK_NS (50 * GR_MS) /* a sleeper looks at the group's state so often */

/* A counter that others wait for. */
struct counter {
    alignas(LINE) _Atomic uint32_t value;
    _Atomic uint32_t n_sleeper;
};

struct header {
    struct counter written, read; /* calls */
    alignas(LINE) struct gr_group_call call[2];
};

struct shared {
    alignas(LINE) _Atomic uint64_t size; /* n_rank and n_part_max of who came first; 0: nobody has */
    _Atomic uint32_t aborted;            /* rank + 1 */
    struct header rank[GR_GROUP_RANK_MAX];
};

struct memory_group {
    struct gr_group g;
    struct shared *shared;
    float *room; /* (n_rank, 2, n_part_max) of the common memory */
    uint32_t number;
    int n_spin;
};

static struct memory_group *of(struct gr_group *g)
{
    return (struct memory_group *)(void *)((char *)g - offsetof(struct memory_group, g));
}

static size_t room_floats(size_t n_part_max)
{
    const size_t per_line = LINE / sizeof(float);
    return (n_part_max + per_line - 1) / per_line * per_line;
}

size_t gr_group_memory_bytes(int n_rank, size_t n_part_max)
{
    return sizeof(struct shared) + (size_t)n_rank * 2 * room_floats(n_part_max) * sizeof(float);
}

static float *room_of(const struct memory_group *m, int rank, uint32_t number)
{
    return m->room + ((size_t)rank * 2 + number % 2) * room_floats(m->g.n_part_max);
}

/* ---- waiting ---- */

static void wake(struct counter *c)
{
    if (atomic_load(&c->n_sleeper) > 0) {
        (void)syscall(SYS_futex, &c->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

static void sleep_on(struct counter *c, uint32_t seen)
{
    const struct timespec t = {.tv_nsec = (long)LOOK_NS};
    atomic_fetch_add(&c->n_sleeper, 1);
    (void)syscall(SYS_futex, &c->value, FUTEX_WAIT, seen, &t, NULL, 0);
    atomic_fetch_sub(&c->n_sleeper, 1);
}

static void set(struct counter *c, uint32_t value)
{
    atomic_store(&c->value, value);
    wake(c);
}

static bool has_come(struct counter *c, uint32_t number, uint32_t *seen)
{
    *seen = atomic_load_explicit(&c->value, memory_order_acquire);
    return (int32_t)(*seen - number) >= 0;
}

static void memory_abort(struct gr_group *g)
{
    struct memory_group *m = of(g);
    uint32_t nobody = 0;
    (void)atomic_compare_exchange_strong(&m->shared->aborted, &nobody, (uint32_t)g->rank + 1);
    gr_group_abort_device(g);
    for (int r = 0; r < g->n_rank; r++) {
        wake(&m->shared->rank[r].written);
        wake(&m->shared->rank[r].read);
    }
}

static enum gr_status is_aborted(struct gr_group *g)
{
    const uint32_t by = atomic_load(&of(g)->shared->aborted);
    return by == 0 ? GR_OK : gr_group_lost(g, (int)by - 1);
}

static enum gr_status wait_for(struct memory_group *m, struct counter *c, int peer, uint32_t number)
{
    uint32_t seen = 0;
    for (int i = 0; i < m->n_spin; i++) {
        if (has_come(c, number, &seen)) {
            return GR_OK;
        }
        __builtin_ia32_pause();
    }
    const uint64_t begin = gr_clock_ns();
    while (!has_come(c, number, &seen)) {
        GR_TRY(is_aborted(&m->g));
        if (m->g.limit_ns > 0 && gr_clock_ns() - begin > m->g.limit_ns) {
            const enum gr_status st = gr_group_late(&m->g, peer);
            memory_abort(&m->g);
            return st;
        }
        sleep_on(c, seen);
    }
    return GR_OK;
}

/* ---- a call ---- */

/* What this rank has put into its room is there for the others. */
static struct gr_group_call write_call(struct memory_group *m, enum gr_group_kind kind, uint64_t n)
{
    struct header *mine = &m->shared->rank[m->g.rank];
    const struct gr_group_call call = {.kind = kind, .number = ++m->number, .n = n, .step = m->g.step};
    mine->call[call.number % 2] = call;
    set(&mine->written, call.number);
    return call;
}

/* Until a peer has written, and it has written what is expected. */
static enum gr_status await(struct memory_group *m, const struct gr_group_call *call, int peer)
{
    struct header *its = &m->shared->rank[peer];
    GR_TRY(wait_for(m, &its->written, peer, call->number));
    const enum gr_status st = gr_group_check_call(&m->g, peer, call, &its->call[call->number % 2]);
    if (st != GR_OK) {
        memory_abort(&m->g);
    }
    return st;
}

/* The others' rooms of this call have been read. The room of the next call is free when everybody has read what lay in
 * it, the call before this one. */
static enum gr_status end_call(struct memory_group *m)
{
    set(&m->shared->rank[m->g.rank].read, m->number);
    for (int r = 0; r < m->g.n_rank; r++) {
        GR_TRY(wait_for(m, &m->shared->rank[r].read, r, m->number - 1));
    }
    m->g.part = room_of(m, m->g.rank, m->number + 1);
    return GR_OK;
}

static enum gr_status memory_join(struct gr_group *g, float *out, size_t n)
{
    struct memory_group *m = of(g);
    const float *part[GR_GROUP_RANK_MAX];
    const struct gr_group_call call = write_call(m, GR_GROUP_JOIN, n);
    for (int r = 0; r < g->n_rank; r++) {
        GR_TRY(await(m, &call, r));
        part[r] = room_of(m, r, call.number);
    }
    gr_group_sum(part, g->n_rank, n, out);
    return end_call(m);
}

static int columns(const struct gr_group_rows *rows, int rank)
{
    return rows->begin[rank + 1] - rows->begin[rank];
}

static enum gr_status take_columns(struct memory_group *m, const struct gr_group_call *call,
                                   const struct gr_group_rows *rows, int row0, int n_row)
{
    for (int r = 0; r < m->g.n_rank; r++) {
        const size_t width = (size_t)columns(rows, r);
        GR_TRY(await(m, call, r));
        for (int i = 0; i < n_row; i++) {
            memcpy(rows->all + (size_t)(row0 + i) * (size_t)rows->stride + rows->begin[r],
                   room_of(m, r, call->number) + (size_t)i * width, width * sizeof(float));
        }
    }
    return GR_OK;
}

static enum gr_status memory_gather(struct gr_group *g, const struct gr_group_rows *rows)
{
    struct memory_group *m = of(g);
    int widest = 1;
    for (int r = 0; r < g->n_rank; r++) {
        widest = columns(rows, r) > widest ? columns(rows, r) : widest;
    }
    GR_ASSERT((size_t)widest <= g->n_part_max);
    const int most = (int)(g->n_part_max / (size_t)widest);
    for (int row0 = 0; row0 < rows->n_row; row0 += most) {
        const int n_row = GR_MIN(most, rows->n_row - row0);
        const size_t width = (size_t)columns(rows, g->rank);
        memcpy(g->part, rows->mine + (size_t)row0 * width, (size_t)n_row * width * sizeof(float));
        const struct gr_group_call call = write_call(m, GR_GROUP_GATHER, (uint64_t)n_row);
        if (g->rank == 0) {
            GR_TRY(take_columns(m, &call, rows, row0, n_row));
        }
        GR_TRY(end_call(m));
    }
    return GR_OK;
}

static enum gr_status memory_broadcast(struct gr_group *g, void *data, size_t bytes)
{
    struct memory_group *m = of(g);
    const size_t most = g->n_part_max * sizeof(float);
    for (size_t at = 0; at < bytes; at += most) {
        const size_t n = GR_MIN(most, bytes - at);
        if (g->rank == 0) {
            memcpy(g->part, (const char *)data + at, n);
        }
        const struct gr_group_call call = write_call(m, GR_GROUP_BROADCAST, n);
        if (g->rank != 0) {
            GR_TRY(await(m, &call, 0));
            memcpy((char *)data + at, room_of(m, 0, call.number), n);
        }
        GR_TRY(end_call(m));
    }
    return GR_OK;
}

static void memory_destroy(struct gr_group *g)
{
    free(of(g));
}

static const struct gr_group_ops memory_ops = {
    .name = "memory",
    .join = memory_join,
    .gather = memory_gather,
    .broadcast = memory_broadcast,
    .abort = memory_abort,
    .destroy = memory_destroy,
};

static enum gr_status agree_on_size(struct shared *s, const struct gr_group_memory_config *c)
{
    const uint64_t mine = (uint64_t)c->n_part_max << 8 | (uint64_t)c->n_rank;
    uint64_t theirs = 0;
    if (!atomic_compare_exchange_strong(&s->size, &theirs, mine) && theirs != mine) {
        log_error("tensor-parallel rank %d of %d wants %zu floats of a sum, another rank %" PRIu64 " of %" PRIu64
                  " ranks: their models or options differ",
                  c->rank, c->n_rank, c->n_part_max, theirs >> 8, theirs & 0xff);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

enum gr_status gr_group_memory_create(const struct gr_group_memory_config *c, struct gr_group **out)
{
    GR_ASSERT(c->n_rank >= 1 && c->n_rank <= GR_GROUP_RANK_MAX && c->rank >= 0 && c->rank < c->n_rank);
    GR_TRY(agree_on_size(c->memory, c));
    struct memory_group *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        log_error("out of memory for a tensor-parallel group");
        return GR_ENOMEM;
    }
    m->g = (struct gr_group){
        .ops = &memory_ops, .rank = c->rank, .n_rank = c->n_rank, .n_part_max = c->n_part_max, .limit_ns = c->limit_ns};
    m->shared = c->memory;
    m->room = (float *)(void *)((char *)c->memory + sizeof(struct shared));
    m->n_spin = c->n_spin;
    m->g.part = room_of(m, c->rank, 1);
    *out = &m->g;
    return GR_OK;
}
