#include "model/cuda/ranks_nccl.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "kernels/cuda/group/add.h"
#include "model/cuda/nccl_api.h"
#include "model/group/agree.h"
#include "model/group/library.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS (50 * GR_MS) /* between two looks at how long a pass has taken */
#define ABORT_NS (3 * GR_S)  /* that NCCL may take to end what it waits for */
#define LEVELS 3             /* of eight ranks */
#define TRIED 64             /* values of the first sum */
#define FIRST_SUMS "first sums over NCCL"

/* What a rank has at a level of the halving, and what its partner has: values [begin, end). */
struct range {
    size_t begin, end;
};

struct nccl_ranks {
    struct gr_cuda_ranks r;
    struct gr_nccl_api api;
    gr_nccl_comm comm; /* owned */
    bool allreduce;
    struct gr_cuda_device *device; /* borrowed */
    struct gr_group *group;        /* borrowed */
    struct gr_cuda_peers alone;    /* this rank's parts, which are whole when they are joined */
    float *theirs;                 /* (n_part): what a partner has sent */
    float *columns;                /* rank 0: what the others send; another rank's own logits */
    float *logits;                 /* rank 0's */
    int logits_stride, n_out_max;
    int begin[GR_GROUP_RANK_MAX + 1];
    /* Who looks whether a pass ends. */
    pthread_t watcher;
    pthread_mutex_t mutex; /* of since, ends, helper and gone */
    pthread_cond_t change; /* of ends and gone */
    uint64_t since;        /* the pass that is in flight; 0: none */
    bool watches, ends;
    /* Who ends the communicator, since that may wait. */
    pthread_t helper;
    bool gone; /* it has ended, and the helper looks at nothing here any more when it is joined */
    atomic_bool late, aborted;
};

static struct nccl_ranks *of(struct gr_cuda_ranks *r)
{
    return GR_CONTAINER_OF(r, struct nccl_ranks, r);
}

static enum gr_status check(const struct nccl_ranks *p, int e, const char *what)
{
    if (e == GR_NCCL_OK) {
        return GR_OK;
    }
    log_error("NCCL: %s: %s", what, p->api.text(e));
    return GR_ECUDA;
}

/* ---- sums ---- */

static enum gr_status exchange(struct nccl_ranks *p, int partner, const float *from, size_t n_from, float *to,
                               size_t n_to)
{
    struct CUstream_st *stream = p->device->stream;
    GR_TRY(check(p, p->api.begin(), "a group of calls"));
    GR_TRY(check(p, p->api.send(from, n_from, GR_NCCL_FLOAT, partner, p->comm, stream), "to send"));
    GR_TRY(check(p, p->api.receive(to, n_to, GR_NCCL_FLOAT, partner, p->comm, stream), "to receive"));
    return check(p, p->api.end(), "an exchange");
}

/* The half of `all` that this rank keeps where partners are `apart`, and the one that its partner keeps. */
static void halve(const struct nccl_ranks *p, struct range all, int apart, struct range *own, struct range *other)
{
    const size_t middle = all.begin + (all.end - all.begin) / 2;
    const struct range lower = {all.begin, middle}, upper = {middle, all.end};
    const bool keeps_upper = (p->group->rank & apart) != 0;
    *own = keeps_upper ? upper : lower;
    *other = keeps_upper ? lower : upper;
}

/* After each level a rank has, of its range, the sum of twice as many ranks, as the tree adds them. */
static enum gr_status join_tree(struct nccl_ranks *p, float *x, size_t n)
{
    struct range own[LEVELS], other[LEVELS], all = {0, n};
    int level = 0;
    for (int apart = 1; apart < p->group->n_rank; apart *= 2, level++) {
        halve(p, all, apart, &own[level], &other[level]);
        all = own[level];
        const size_t n_own = all.end - all.begin, n_other = other[level].end - other[level].begin;
        GR_TRY(exchange(p, p->group->rank ^ apart, x + other[level].begin, n_other, p->theirs + all.begin, n_own));
        GR_TRY(gr_cuda_add(x + all.begin, p->theirs + all.begin, n_own, p->device->stream));
    }
    for (int apart = p->group->n_rank / 2; apart > 0; apart /= 2) {
        level--;
        GR_TRY(exchange(p, p->group->rank ^ apart, x + own[level].begin, own[level].end - own[level].begin,
                        x + other[level].begin, other[level].end - other[level].begin));
    }
    return GR_OK;
}

static enum gr_status sum(struct nccl_ranks *p, float *x, size_t n)
{
    return p->allreduce
               ? check(p, p->api.allreduce(x, x, n, GR_NCCL_FLOAT, GR_NCCL_SUM, p->comm, p->device->stream), "a sum")
               : join_tree(p, x, n);
}

static enum gr_status nccl_enqueue_join(struct gr_cuda_ranks *r, const struct gr_cuda_join_args *a)
{
    struct nccl_ranks *p = of(r);
    GR_TRY(sum(p, r->part[a->buffer], (size_t)a->n_row * (size_t)a->n));
    GR_TRY(gr_cuda_pause(p->device->stream)); /* the join starts early, which is for kernels of ours */
    return gr_cuda_join(&p->alone, a, p->device->stream);
}

/* ---- logits ---- */

static int width_of(const struct nccl_ranks *p, int rank)
{
    return p->begin[rank + 1] - p->begin[rank];
}

/* Rank 0's room for what rank `rank` sends. */
static float *room_of(const struct nccl_ranks *p, int rank)
{
    return p->columns + (size_t)(p->begin[rank] - p->begin[1]) * (size_t)p->n_out_max;
}

static enum gr_status nccl_enqueue_logits(struct gr_cuda_ranks *r, int n)
{
    struct nccl_ranks *p = of(r);
    struct CUstream_st *stream = p->device->stream;
    if (p->group->rank > 0) {
        const size_t values = (size_t)n * (size_t)width_of(p, p->group->rank);
        return check(p, p->api.send(p->columns, values, GR_NCCL_FLOAT, 0, p->comm, stream), "to send logits");
    }
    GR_TRY(check(p, p->api.begin(), "a group of calls"));
    for (int i = 1; i < p->group->n_rank; i++) {
        const size_t values = (size_t)n * (size_t)width_of(p, i);
        GR_TRY(check(p, p->api.receive(room_of(p, i), values, GR_NCCL_FLOAT, i, p->comm, stream), "to receive logits"));
    }
    GR_TRY(check(p, p->api.end(), "logits"));
    for (int i = 1; i < p->group->n_rank; i++) {
        GR_TRY(gr_cuda_place(p->logits + p->begin[i], (size_t)p->logits_stride, room_of(p, i), (size_t)width_of(p, i),
                             n, stream));
    }
    return GR_OK;
}

/* ---- ends ---- */

static void *abort_comm(void *arg)
{
    struct nccl_ranks *p = arg;
    (void)p->api.abort(p->comm);
    pthread_mutex_lock(&p->mutex);
    p->gone = true;
    pthread_cond_broadcast(&p->change);
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

/* The first call counts. Where no thread can be had the communicator never goes, and the process ends without it. */
static void start_abort(struct nccl_ranks *p)
{
    pthread_mutex_lock(&p->mutex);
    if (!atomic_exchange(&p->aborted, true) && pthread_create(&p->helper, NULL, abort_comm, p) != 0) {
        log_error("cannot start the thread that ends NCCL");
    }
    pthread_mutex_unlock(&p->mutex);
}

static void nccl_abort(struct gr_cuda_ranks *r)
{
    start_abort(of(r));
}

static void abort_device(void *device)
{
    nccl_abort(device);
}

/* Of the clock that gr_clock_ns() and the condition go by. */
static struct timespec in(uint64_t ns)
{
    return gr_clock_timespec(gr_clock_ns() + ns);
}

/* Whether the communicator has ended, in the time that it may take. */
static bool await_gone(struct nccl_ranks *p)
{
    const struct timespec until = in(ABORT_NS);
    pthread_mutex_lock(&p->mutex);
    while (!p->gone && pthread_cond_timedwait(&p->change, &p->mutex, &until) == 0) {
        continue;
    }
    const bool gone = p->gone;
    pthread_mutex_unlock(&p->mutex);
    return gone;
}

/* No rank says who is late: NCCL's kernels wait, and tell nobody for whom. Where they do not end, the process does. */
static void end_late(struct nccl_ranks *p)
{
    log_error("tensor-parallel rank %d: sums over NCCL of step %" PRIu64 " have not come within %.1f s: the group ends",
              p->group->rank, p->group->step, (double)p->group->limit_ns / 1e9);
    atomic_store(&p->late, true);
    start_abort(p);
    if (!await_gone(p)) {
        log_error("tensor-parallel rank %d: NCCL does not end; this process does", p->group->rank);
        (void)kill(getpid(), SIGKILL);
    }
}

static void *watch(void *arg)
{
    struct nccl_ranks *p = arg;
    bool late = false;
    pthread_mutex_lock(&p->mutex);
    while (!p->ends && !late) {
        const struct timespec until = in(LOOK_NS);
        (void)pthread_cond_timedwait(&p->change, &p->mutex, &until);
        late = p->since != 0 && p->alone.limit_ns > 0 && gr_clock_ns() - p->since > p->alone.limit_ns;
    }
    pthread_mutex_unlock(&p->mutex);
    if (late) {
        end_late(p);
    }
    return NULL;
}

static void set_since(struct nccl_ranks *p, uint64_t since)
{
    pthread_mutex_lock(&p->mutex);
    p->since = since;
    pthread_mutex_unlock(&p->mutex);
}

static void nccl_begin(struct gr_cuda_ranks *r)
{
    set_since(of(r), gr_clock_ns());
}

static enum gr_status nccl_status(struct gr_cuda_ranks *r)
{
    struct nccl_ranks *p = of(r);
    int error = GR_NCCL_OK;
    set_since(p, 0);
    if (p->group->status != GR_OK) {
        return p->group->status;
    }
    if (atomic_load(&p->late)) {
        p->group->status = GR_ETIMEDOUT;
    } else if (atomic_load(&p->aborted)) {
        p->group->status = GR_ECLOSED;
    } else if (p->api.async_error(p->comm, &error) != GR_NCCL_OK || error != GR_NCCL_OK) {
        log_error("tensor-parallel rank %d: NCCL in step %" PRIu64 ": %s: the group ends", p->group->rank,
                  p->group->step, p->api.text(error));
        p->group->status = GR_ECLOSED;
    }
    return p->group->status;
}

/* Nobody looks at it any more but the helper, which has only to return. */
static void finish(struct nccl_ranks *p)
{
    if (p->comm != NULL) {
        pthread_join(p->helper, NULL);
    }
    pthread_cond_destroy(&p->change);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

static void nccl_destroy(struct gr_cuda_ranks *r)
{
    struct nccl_ranks *p = of(r);
    atomic_store(&p->group->device, NULL);
    if (p->watches) {
        pthread_mutex_lock(&p->mutex);
        p->ends = true;
        pthread_cond_broadcast(&p->change);
        pthread_mutex_unlock(&p->mutex);
        pthread_join(p->watcher, NULL);
    }
    bool gone = p->comm == NULL;
    if (p->comm != NULL) {
        start_abort(p);
        gone = await_gone(p);
    }
    gr_cuda_give_back(p->device, p->r.part[0]);
    gr_cuda_give_back(p->device, p->columns);
    if (gone) { /* else a thread still looks at it, in a process that ends */
        finish(p);
    }
}

static const struct gr_cuda_ranks_ops nccl_ops = {
    .name = "nccl",
    .enqueue_join = nccl_enqueue_join,
    .enqueue_logits = nccl_enqueue_logits,
    .begin = nccl_begin,
    .status = nccl_status,
    .abort = nccl_abort,
    .destroy = nccl_destroy,
};

/* ---- creation ---- */

static enum gr_status take_memory(struct nccl_ranks *p, const struct gr_cuda_ranks_config *c)
{
    const int rank = c->group->rank, n_rank = c->group->n_rank;
    const int width = rank > 0 ? width_of(p, rank) : c->begin[n_rank] - c->begin[1];
    void *out = NULL;
    GR_TRY(gr_cuda_take(p->device, "sums of ranks", 3 * c->n_part * sizeof(float), &out));
    p->r.part[0] = out;
    p->r.part[1] = p->r.part[0] + c->n_part;
    p->theirs = p->r.part[1] + c->n_part;
    GR_TRY(gr_cuda_take(p->device, "sums of ranks", (size_t)c->n_out_max * (size_t)width * sizeof(float), &out));
    p->columns = out;
    p->r.logits = rank > 0 ? p->columns : c->logits;
    p->r.logits_stride = rank > 0 ? width : c->logits_stride;
    p->alone = (struct gr_cuda_peers){
        .n_rank = 1, .part = {p->r.part[0]}, .n_part = c->n_part, .limit_ns = c->group->limit_ns};
    return GR_OK;
}

/* Before the ranks are connected, where a difference would be a message of another length, or a wait. */
static enum gr_status compare_libraries(struct nccl_ranks *p)
{
    struct gr_group_library own;
    char text[24];
    int version = 0;
    const enum gr_status st = check(p, p->api.version(&version), "its version");
    GR_TRY(gr_group_all_ok(p->group, st));
    snprintf(text, sizeof(text), "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    gr_group_library_fill("/sys/class/infiniband", text, &own);
    return gr_group_library_same(p->group, &own);
}

static enum gr_status connect_all(struct nccl_ranks *p)
{
    struct gr_nccl_id id;
    enum gr_status st = p->group->rank == 0 ? check(p, p->api.unique_id(&id), "a name for the group") : GR_OK;
    GR_TRY(gr_group_all_ok(p->group, st));
    GR_TRY(gr_group_broadcast_patiently(p->group, &id, sizeof(id)));
    st = gr_cuda_check(cudaSetDevice(p->device->index), "choice of the device");
    if (st == GR_OK) {
        st = check(p, p->api.init(&p->comm, p->group->n_rank, id, p->group->rank), "to connect the ranks");
    }
    return gr_group_all_ok(p->group, st);
}

/* Of small whole numbers, which are exact in any order. NCCL, too, goes through peer memory where the driver says that
 * there is a way, and that can be wrong (ranks_proof.h). */
static enum gr_status try_sum(struct nccl_ranks *p)
{
    float v[TRIED];
    const int n_rank = p->group->n_rank;
    for (int i = 0; i < TRIED; i++) {
        v[i] = (float)((p->group->rank + 1) * (i + 1));
    }
    GR_TRY(gr_cuda_upload(p->device, p->r.part[0], v, sizeof(v), FIRST_SUMS));
    GR_TRY(sum(p, p->r.part[0], TRIED));
    GR_TRY(gr_cuda_check(cudaMemcpyAsync(v, p->r.part[0], sizeof(v), cudaMemcpyDeviceToHost, p->device->stream),
                         FIRST_SUMS));
    GR_TRY(gr_cuda_wait(p->device, FIRST_SUMS));
    for (int i = 0; i < TRIED; i++) {
        if (v[i] != (float)(n_rank * (n_rank + 1) / 2 * (i + 1))) {
            log_error("tensor-parallel rank %d, cuda:%d: the first sum over NCCL is wrong: set NCCL_P2P_DISABLE=1, "
                      "which keeps NCCL from the GPUs' peer memory",
                      p->group->rank, p->device->index);
            return GR_ECUDA;
        }
    }
    return GR_OK;
}

/* Connections are made by the first exchange, which is to be none of a graph. */
static enum gr_status try_all(struct nccl_ranks *p)
{
    GR_TRY(try_sum(p));
    GR_TRY(nccl_enqueue_logits(&p->r, 1));
    return gr_cuda_wait(p->device, FIRST_SUMS);
}

static enum gr_status start_watcher(struct nccl_ranks *p)
{
    if (pthread_create(&p->watcher, NULL, watch, p) != 0) {
        log_error("cannot start the thread that watches NCCL");
        return GR_ENOMEM;
    }
    p->watches = true;
    return GR_OK;
}

static enum gr_status build(struct nccl_ranks *p, const struct gr_cuda_ranks_config *c)
{
    GR_TRY(gr_group_all_ok(c->group, gr_nccl_load(&p->api)));
    GR_TRY(compare_libraries(p));
    GR_TRY(gr_group_all_ok(c->group, take_memory(p, c)));
    GR_TRY(connect_all(p));
    GR_TRY(gr_group_all_ok(c->group, try_all(p)));
    return start_watcher(p);
}

enum gr_status gr_cuda_ranks_nccl_create(const struct gr_cuda_ranks_config *c, bool allreduce,
                                         struct gr_cuda_ranks **out)
{
    struct nccl_ranks *p = calloc(1, sizeof(*p));
    *out = NULL;
    if (p == NULL) {
        log_error("out of memory for a tensor-parallel group");
        return GR_ENOMEM;
    }
    p->r.ops = &nccl_ops;
    p->allreduce = allreduce;
    p->device = c->device;
    p->group = c->group;
    p->logits = c->logits;
    p->logits_stride = c->logits_stride;
    p->n_out_max = c->n_out_max;
    memcpy(p->begin, c->begin, sizeof(p->begin));
    pthread_mutex_init(&p->mutex, NULL);
    gr_condition_init(&p->change);
    const enum gr_status st = build(p, c);
    if (st != GR_OK) {
        nccl_destroy(&p->r);
        return st;
    }
    p->group->abort_device = abort_device;
    atomic_store(&p->group->device, &p->r);
    *out = &p->r;
    return GR_OK;
}
