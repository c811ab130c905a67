/* Checks of joins that take longer: all numbers of rows, many graphs, many joins (rank.h). */
#include "common/base/clock.h"
#include "common/rules/hash.h"
#include "kernels/cuda/group/add.h"
#include "model/group/agree.h"
#include "tests/ranks/rank.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank gives, and what all ranks' values are together: as many as the largest join has. */
struct known {
    size_t n;
    float *mine, *sum; /* owned */
};

static void known_make(struct known *w, const struct rank *k, int turn, size_t n)
{
    *w = (struct known){.n = n, .mine = malloc(n * sizeof(float)), .sum = malloc(n * sizeof(float))};
    GR_ASSERT(w->mine != NULL && w->sum != NULL);
    for (size_t i = 0; i < n; i++) {
        w->mine[i] = check_value(k->group->rank, turn, i);
        w->sum[i] = check_tree(k->of->n_rank, turn, i);
    }
}

static void known_free(struct known *w)
{
    free(w->mine);
    free(w->sum);
}

static bool is_close(float got, float want)
{
    return fabsf(got - want) <= 1e-2f * (1.0f + fabsf(want));
}

/* x against `want`, n values. what: for a line that says where it differs. */
static enum gr_status compare(struct rank *k, const float *want, size_t n, const char *what, int number)
{
    GR_TRY(rank_get(k, k->host, k->x, n * sizeof(float)));
    for (size_t i = 0; i < n; i++) {
        const bool same = memcmp(&k->host[i], &want[i], sizeof(float)) == 0;
        if (!same && (k->of->exact || !is_close(k->host[i], want[i])) && k->n_bad++ < 3) {
            fprintf(stderr, "# rank %d: %s %d: value %zu of %zu is %a, and should be %a\n", k->group->rank, what,
                    number, i, n, (double)k->host[i], (double)want[i]);
        }
    }
    return GR_OK;
}

static enum gr_status put_rows(struct rank *k, int n_row)
{
    const int32_t n_true = n_row;
    return rank_put(k, k->n_true, &n_true, sizeof(n_true));
}

/* ---- all numbers of rows ---- */

static enum gr_status check_rows(struct rank *k, const struct known w[2], float *want, int n_row)
{
    const size_t n = (size_t)n_row * (size_t)k->of->hidden;
    GR_TRY(rank_clear(k));
    for (int buffer = 0; buffer < 2; buffer++) {
        GR_TRY(rank_put(k, k->ranks->part[buffer], w[buffer].mine, n * sizeof(float)));
    }
    GR_TRY(put_rows(k, n_row));
    rank_begin_pass(k);
    k->n_join = 2;
    GR_TRY(rank_enqueue_joins(k, n_row));
    GR_TRY(rank_finish_pass(k));
    for (size_t i = 0; i < n; i++) {
        want[i] = w[0].sum[i] + w[1].sum[i];
    }
    return compare(k, want, n, "rows", n_row);
}

enum gr_status check_row_counts(struct rank *k)
{
    static const int more[] = {65, 96, 127, 128, 200, 255, 256, 333, 512, 777, 1000, 1024, 1365, 1500, 2047, 2048};
    const size_t n = (size_t)k->of->n_row_max * (size_t)k->of->hidden;
    struct known w[2];
    float *want = malloc(n * sizeof(*want));
    GR_ASSERT(want != NULL);
    known_make(&w[0], k, 0, n);
    known_make(&w[1], k, 1, n);
    enum gr_status st = GR_OK;
    for (int rows = 1; rows <= GR_MIN(64, k->of->n_row_max) && st == GR_OK; rows += k->of->soft ? 8 : 1) {
        st = check_rows(k, w, want, rows);
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(more) && more[i] <= k->of->n_row_max && st == GR_OK; i++) {
        st = check_rows(k, w, want, more[i]);
    }
    known_free(&w[0]);
    known_free(&w[1]);
    free(want);
    return st;
}

/* ---- many graphs ---- */

/* Another thread of a rank's process, which uses the device while graphs are captured. */
struct taker {
    pthread_t thread;
    int device;
    atomic_bool ends;
    atomic_int n_taken, n_failed;
};

static void *take_and_give(void *arg)
{
    struct taker *t = arg;
    (void)cudaSetDevice(t->device);
    while (!atomic_load(&t->ends)) {
        void *p = NULL;
        const bool ok = cudaMalloc(&p, 1 << 16) == cudaSuccess && cudaFree(p) == cudaSuccess;
        atomic_fetch_add(ok ? &t->n_taken : &t->n_failed, 1);
    }
    return NULL;
}

/* A captured join has nodes that a replay runs as they are: no conditions, no graph within it. */
static enum gr_status check_nodes(struct rank *k)
{
    enum { N_NODE = 256 };
    cudaGraph_t graph;
    cudaGraphNode_t node[N_NODE];
    size_t n = N_NODE;
    k->n_join = 2;
    GR_TRY(gr_cuda_check(cudaStreamBeginCapture(k->device.stream, cudaStreamCaptureModeThreadLocal), "capture"));
    GR_TRY(rank_enqueue_joins(k, 1));
    GR_TRY(gr_cuda_check(cudaStreamEndCapture(k->device.stream, &graph), "capture"));
    GR_TRY(gr_cuda_check(cudaGraphGetNodes(graph, node, &n), "nodes of a graph"));
    for (size_t i = 0; i < n && i < N_NODE; i++) {
        enum cudaGraphNodeType type;
        GR_TRY(gr_cuda_check(cudaGraphNodeGetType(node[i], &type), "a node of a graph"));
        k->n_bad += type == cudaGraphNodeTypeConditional || type == cudaGraphNodeTypeGraph;
    }
    k->n_bad += n < 2; /* a kernel for each join, at least */
    return gr_cuda_check(cudaGraphDestroy(graph), "graph");
}

enum gr_status check_captures(struct rank *k, int n)
{
    struct taker t = {.device = k->device.index};
    enum gr_status st = check_nodes(k);
    GR_ASSERT(pthread_create(&t.thread, NULL, take_and_give, &t) == 0);
    for (int i = 0; i < n && st == GR_OK; i++) {
        st = rank_check_graph(k, 1 + i % 3, 1);
    }
    atomic_store(&t.ends, true);
    pthread_join(t.thread, NULL);
    if (atomic_load(&t.n_taken) == 0 || atomic_load(&t.n_failed) > 0) {
        fprintf(stderr, "# rank %d: memory taken %d times beside the graphs, %d times not to be had\n", k->group->rank,
                atomic_load(&t.n_taken), atomic_load(&t.n_failed));
        k->n_bad++;
    }
    return st;
}

/* ---- many joins ---- */

enum { JOINS_OF_PASS = 32, OFFSETS = 64, PAUSE_NS = 20000, LONG_PAUSE_NS = 2000000 };

/* Join `number` of all: so many rows, of values from `offset` on. All ranks draw the same. */
struct drawn {
    int n_row;
    size_t offset;
};

static struct drawn draw(const struct rank *k, int number)
{
    const uint64_t h = gr_mix64((uint64_t)number + 1);
    const int most = GR_MIN(1 << (h % 7), k->of->n_row_max);
    return (struct drawn){.n_row = 1 + (int)((h >> 8) % (uint64_t)most), .offset = (h >> 40) % OFFSETS * 64};
}

/* A rank's own: mostly short, now and then long. */
static void pause_at_random(const struct rank *k, int number)
{
    const uint64_t h = gr_mix64(((uint64_t)k->group->rank << 32) + (uint64_t)number + 7);
    const uint64_t most = h % 256 == 0 ? LONG_PAUSE_NS : PAUSE_NS;
    const uint64_t until = gr_clock_ns() + (h >> 16) % most;
    while (gr_clock_ns() < until) {
        continue;
    }
}

/* Joins [first, first + n): into x from values that lie on the device. */
static enum gr_status enqueue_drawn(struct rank *k, const float *values, int first, int n)
{
    const size_t hidden = (size_t)k->of->hidden;
    for (int i = first; i < first + n; i++) {
        const struct drawn d = draw(k, i);
        const int buffer = i % 2;
        pause_at_random(k, i);
        GR_TRY(gr_cuda_place(k->ranks->part[buffer], hidden, values + d.offset, hidden, d.n_row, k->device.stream));
        const struct gr_cuda_join_args a = {
            .buffer = buffer, .x = k->x, .n = k->of->hidden, .n_row = d.n_row, .n_row_true = k->n_true};
        GR_TRY(k->ranks->ops->enqueue_join(k->ranks, &a));
    }
    return GR_OK;
}

static void expect(const struct rank *k, const struct known *w, int first, int n, float *want)
{
    memset(want, 0, (size_t)k->of->n_row_max * (size_t)k->of->hidden * sizeof(*want));
    for (int i = first; i < first + n; i++) {
        const struct drawn d = draw(k, i);
        for (size_t j = 0; j < (size_t)d.n_row * (size_t)k->of->hidden; j++) {
            want[j] += w->sum[d.offset + j];
        }
    }
}

static enum gr_status check_pass(struct rank *k, const struct known *w, const float *values, float *want, int first,
                                 int n)
{
    GR_TRY(rank_clear(k));
    rank_begin_pass(k);
    GR_TRY(enqueue_drawn(k, values, first, n));
    GR_TRY(rank_finish_pass(k));
    expect(k, w, first, n, want);
    return compare(k, want, (size_t)k->of->n_row_max * (size_t)k->of->hidden, "a pass from join", first);
}

enum gr_status check_many(struct rank *k, int n)
{
    const size_t n_x = (size_t)k->of->n_row_max * (size_t)k->of->hidden;
    struct known w;
    void *values = NULL;
    float *want = malloc(n_x * sizeof(*want));
    GR_ASSERT(want != NULL);
    known_make(&w, k, 0, n_x + OFFSETS * 64);
    enum gr_status st = gr_cuda_take(&k->device, "values", w.n * sizeof(float), &values);
    st = st == GR_OK ? rank_put(k, values, w.mine, w.n * sizeof(float)) : st;
    st = st == GR_OK ? put_rows(k, k->of->n_row_max) : st;
    for (int first = 0; first < n && st == GR_OK; first += JOINS_OF_PASS) {
        st = check_pass(k, &w, values, want, first, GR_MIN(JOINS_OF_PASS, n - first));
    }
    known_free(&w);
    free(want);
    return st;
}
