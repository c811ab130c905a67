/* Ranks of a group on GPUs as they are in a worker: processes of one host, each with a GPU of its own, which export and
 * map their memory (model/cuda/ranks_peer.h) or go over NCCL. Sums and logits have the tree's bits; a rank that does
 * not come, or an abort, ends the others' waits.
 *
 *   check_ranks N peer|nccl|allreduce [--time]     prints TAP; SKIP where there are fewer than N GPUs
 *
 * --time: what a join takes in a graph of 160, at the widths of Llama 3.1 8B and 3.3 70B. */
#include "common/base/clock.h"
#include "common/base/device.h"
#include "common/base/log.h"
#include "model/cuda/graphs.h"
#include "model/cuda/ranks.h"
#include "model/cuda/ranks_make.h"
#include "model/group/agree.h"
#include "model/group/group_memory.h"

#include <math.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_OUT 5
#define COLUMNS 48 /* of a rank */
#define N_JOIN 160 /* of a timed graph */
#define LIMIT_NS (2 * GR_S)

static bool with_times, exact = true, big;
static int n_rank;
static sem_t *given_up; /* by all ranks */
static const struct gr_cuda_ranks_maker *maker;

struct rank {
    struct gr_group *group;
    struct gr_cuda_device device;
    struct gr_cuda_ranks *ranks;
    int hidden, n_row_max, n_join;
    float *x, *logits;
    int32_t *n_true;
    float *host; /* n_row_max * hidden */
    int n_bad;
};

static int rows_max(void)
{
    return big ? 512 : 16;
}

/* ---- what is expected ---- */

/* Of widely different sizes, so that an order of sums is seen. */
static float value(int rank, int turn, size_t i)
{
    const uint64_t h = ((uint64_t)rank * 1000003u + (uint64_t)turn * 7919u + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return ((float)(int32_t)(h >> 32) * 0x1p-31f) * exp2f((float)((h >> 8) % 12));
}

static float tree(int turn, size_t i)
{
    float v[GR_GROUP_RANK_MAX];
    for (int r = 0; r < n_rank; r++) {
        v[r] = value(r, turn, i);
    }
    for (int apart = 1; apart < n_rank; apart *= 2) {
        for (int r = 0; r < n_rank; r += 2 * apart) {
            v[r] += v[r + apart];
        }
    }
    return v[0];
}

static bool is_right(float got, float want)
{
    return exact ? memcmp(&got, &want, sizeof(got)) == 0 : fabsf(got - want) <= 1e-2f * (1.0f + fabsf(want));
}

/* ---- one rank ---- */

static struct gr_cuda_join_args join_of(const struct rank *k, int buffer, int n_row)
{
    return (struct gr_cuda_join_args){
        .buffer = buffer, .x = k->x, .n = k->hidden, .n_row = n_row, .n_row_true = k->n_true};
}

static enum gr_status enqueue_joins(void *arg, int n)
{
    struct rank *k = arg;
    for (int i = 0; i < k->n_join; i++) {
        const struct gr_cuda_join_args a = join_of(k, i % 2, n);
        GR_TRY(k->ranks->ops->enqueue_join(k->ranks, &a));
    }
    return GR_OK;
}

static enum gr_status put(struct rank *k, void *to, const void *from, size_t bytes)
{
    return gr_cuda_upload(&k->device, to, from, bytes, "what is joined");
}

static enum gr_status get(struct rank *k, void *to, const void *from, size_t bytes)
{
    GR_TRY(gr_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, k->device.stream), "a sum"));
    return gr_cuda_wait(&k->device, "a sum");
}

static enum gr_status finish_pass(struct rank *k)
{
    GR_TRY(gr_cuda_wait(&k->device, "joins"));
    return k->ranks->ops->status(k->ranks);
}

static void begin_pass(struct rank *k)
{
    if (k->ranks->ops->begin != NULL) {
        k->ranks->ops->begin(k->ranks);
    }
}

static enum gr_status fill(struct rank *k, int turn, int n_row)
{
    const size_t n = (size_t)n_row * (size_t)k->hidden;
    for (size_t i = 0; i < n; i++) {
        k->host[i] = value(k->group->rank, turn, i);
    }
    GR_TRY(put(k, k->ranks->part[turn % 2], k->host, n * sizeof(float)));
    const int32_t n_true = n_row;
    return put(k, k->n_true, &n_true, sizeof(n_true));
}

static enum gr_status check_sum(struct rank *k, int first, int n_turn, int n_row)
{
    const size_t n = (size_t)n_row * (size_t)k->hidden;
    GR_TRY(get(k, k->host, k->x, n * sizeof(float)));
    for (size_t i = 0; i < n; i++) {
        float want = 0.0f;
        for (int t = 0; t < n_turn; t++) {
            want += tree(first + t, i);
        }
        if (!is_right(k->host[i], want) && k->n_bad++ < 3) {
            fprintf(stderr, "# rank %d: value %zu of %d rows is %a, and should be %a\n", k->group->rank, i, n_row,
                    (double)k->host[i], (double)want);
        }
    }
    return GR_OK;
}

/* And all ranks have read what lies in both buffers. */
static enum gr_status clear(struct rank *k)
{
    GR_TRY(gr_group_all_ok(k->group, GR_OK));
    const size_t bytes = (size_t)k->n_row_max * (size_t)k->hidden * sizeof(float);
    return gr_cuda_check(cudaMemsetAsync(k->x, 0, bytes, k->device.stream), "x");
}

/* Two joins, one after the other, in the two buffers. */
static enum gr_status check_joins(struct rank *k, int turn, int n_row)
{
    GR_TRY(clear(k));
    GR_TRY(fill(k, turn, n_row));
    GR_TRY(fill(k, turn + 1, n_row));
    begin_pass(k);
    k->n_join = 2;
    GR_TRY(enqueue_joins(k, n_row));
    GR_TRY(finish_pass(k));
    return check_sum(k, turn, 2, n_row);
}

/* A graph of two joins, launched three times. */
static enum gr_status check_graph(struct rank *k, int n_row)
{
    cudaGraphExec_t graph;
    k->n_join = 2;
    GR_TRY(gr_cuda_graph_capture(&k->device, enqueue_joins, k, n_row, &graph));
    GR_TRY(gr_group_all_ok(k->group, GR_OK));
    for (int i = 0; i < 3; i++) { /* parts are written anew: NCCL adds up in place */
        GR_TRY(clear(k));
        GR_TRY(fill(k, 2 * i, n_row));
        GR_TRY(fill(k, 2 * i + 1, n_row));
        begin_pass(k);
        GR_TRY(gr_cuda_check(cudaGraphLaunch(graph, k->device.stream), "graph"));
        GR_TRY(finish_pass(k));
        GR_TRY(check_sum(k, 2 * i, 2, n_row));
    }
    (void)cudaGraphExecDestroy(graph);
    return GR_OK;
}

static enum gr_status check_logits(struct rank *k)
{
    const int rank = k->group->rank, stride = n_rank * COLUMNS;
    for (int i = 0; i < N_OUT; i++) {
        for (int c = 0; c < COLUMNS; c++) {
            k->host[c] = value(rank, i, (size_t)c);
        }
        GR_TRY(
            put(k, k->ranks->logits + (size_t)i * (size_t)k->ranks->logits_stride, k->host, COLUMNS * sizeof(float)));
    }
    begin_pass(k);
    GR_TRY(k->ranks->ops->enqueue_logits(k->ranks, N_OUT));
    GR_TRY(finish_pass(k));
    if (rank > 0) {
        return GR_OK;
    }
    GR_TRY(get(k, k->host, k->logits, (size_t)N_OUT * (size_t)stride * sizeof(float)));
    for (int i = 0; i < N_OUT * stride; i++) {
        const int c = i % stride;
        const float want = value(c / COLUMNS, i / stride, (size_t)(c % COLUMNS));
        k->n_bad += memcmp(&k->host[i], &want, sizeof(want)) != 0;
    }
    return GR_OK;
}

/* ---- ends ---- */

/* The last rank does not come: the others' streams end, and say so. It stays, as one that hangs. */
static enum gr_status check_silence(struct rank *k)
{
    const uint64_t begin = gr_clock_ns();
    enum gr_status st = GR_ETIMEDOUT;
    if (k->group->rank < n_rank - 1) {
        begin_pass(k);
        k->n_join = 2;
        GR_TRY(enqueue_joins(k, 1));
        GR_TRY(gr_cuda_wait(&k->device, "joins"));
        st = k->ranks->ops->status(k->ranks);
        const double s = (double)(gr_clock_ns() - begin) / 1e9;
        k->n_bad += s < 0.9 * LIMIT_NS / 1e9 || s > 4.0 * LIMIT_NS / 1e9;
    }
    for (int i = 0; k->group->rank == n_rank - 1 && i < n_rank - 1; i++) {
        (void)sem_wait(given_up);
    }
    (void)sem_post(given_up);
    k->n_bad += st != GR_ETIMEDOUT;
    return GR_OK;
}

/* ---- times ---- */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum gr_status time_joins(struct rank *k, int n_row)
{
    enum { REPS = 31 };
    double us[REPS];
    cudaGraphExec_t graph;
    GR_TRY(fill(k, 0, n_row));
    GR_TRY(fill(k, 1, n_row));
    k->n_join = N_JOIN;
    GR_TRY(gr_cuda_graph_capture(&k->device, enqueue_joins, k, n_row, &graph));
    for (int i = 0; i < REPS; i++) {
        GR_TRY(gr_group_all_ok(k->group, GR_OK));
        const uint64_t begin = gr_clock_ns();
        begin_pass(k);
        GR_TRY(gr_cuda_check(cudaGraphLaunch(graph, k->device.stream), "graph"));
        GR_TRY(finish_pass(k));
        us[i] = (double)(gr_clock_ns() - begin) / 1e3 / N_JOIN;
    }
    qsort(us, REPS, sizeof(us[0]), by_size);
    (void)cudaGraphExecDestroy(graph);
    if (k->group->rank == 0) {
        printf("# %d ranks, %s: a join of %4d rows of %5d: %7.2f us (least %.2f), %.0f KB of each rank\n", n_rank,
               k->ranks->ops->name, n_row, k->hidden, us[REPS / 2], us[0], (double)n_row * k->hidden * 4 / 1e3);
        fflush(stdout);
    }
    return GR_OK;
}

/* ---- a process ---- */

static enum gr_status open_rank(struct rank *k, void *memory, int rank)
{
    const size_t n = (size_t)k->n_row_max * (size_t)k->hidden;
    const struct gr_group_memory_config g = {
        .memory = memory, .rank = rank, .n_rank = n_rank, .n_part_max = 65536, .limit_ns = LIMIT_NS};
    void *p = NULL;
    GR_TRY(gr_group_memory_create(&g, &k->group));
    GR_TRY(gr_cuda_device_open(&k->device, rank));
    GR_TRY(gr_cuda_take(&k->device, "x", n * sizeof(float), &p));
    k->x = p;
    GR_TRY(gr_cuda_take(&k->device, "rows", sizeof(int32_t), &p));
    k->n_true = p;
    if (rank == 0) {
        GR_TRY(gr_cuda_take(&k->device, "logits", 1 << 20, &p));
        k->logits = p;
    }
    k->host = malloc(n * sizeof(float));
    struct gr_cuda_ranks_config c = {.group = k->group,
                                     .device = &k->device,
                                     .n_part = n,
                                     .hidden = k->hidden,
                                     .logits = k->logits,
                                     .n_out_max = N_OUT,
                                     .logits_stride = n_rank * COLUMNS};
    for (int r = 0; r <= n_rank; r++) {
        c.begin[r] = r * COLUMNS;
    }
    return maker->create(maker, &c, &k->ranks);
}

static enum gr_status check_all(struct rank *k)
{
    const int rows[] = {1, 3, 8, 16, 64, 512};
    for (size_t i = 0; i < GR_ARRAY_LEN(rows) && rows[i] <= k->n_row_max; i++) {
        GR_TRY(check_joins(k, 2 * (int)i, rows[i]));
        GR_TRY(check_graph(k, rows[i]));
    }
    GR_TRY(check_logits(k));
    for (size_t i = 0; with_times && i < GR_ARRAY_LEN(rows) && rows[i] <= k->n_row_max; i++) {
        GR_TRY(time_joins(k, rows[i]));
    }
    return with_times ? GR_OK : check_silence(k);
}

/* Status 0: all is well. */
static int be_rank(void *memory, int rank, int hidden)
{
    static struct rank k;
    gr_log_init("check");
    k.hidden = hidden;
    k.n_row_max = rows_max();
    enum gr_status st = open_rank(&k, memory, rank);
    st = st == GR_OK ? check_all(&k) : st;
    if (st != GR_OK || k.n_bad > 0) {
        fprintf(stderr, "# rank %d: status %d, %d values are wrong\n", rank, (int)st, k.n_bad);
    }
    /* Who is waited for goes last. */
    gr_cuda_ranks_destroy(k.ranks);
    gr_cuda_device_close(&k.device);
    gr_group_destroy(k.group);
    free(k.host);
    return st == GR_OK && k.n_bad == 0 ? 0 : st == GR_EUNSUPPORTED ? 2 : 1;
}

static int run(int hidden)
{
    const size_t bytes = gr_group_memory_bytes(n_rank, 65536);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[GR_GROUP_RANK_MAX];
    int worst = 0;
    given_up = mmap(NULL, sizeof(*given_up), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sem_init(given_up, 1, 0);
    for (int r = 0; r < n_rank; r++) {
        fflush(stdout);
        pid[r] = fork();
        if (pid[r] == 0) {
            exit(be_rank(memory, r, hidden));
        }
    }
    for (int r = 0; r < n_rank; r++) {
        int status = 0;
        (void)waitpid(pid[r], &status, 0);
        const int end = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        worst = end > worst ? end : worst;
    }
    munmap(memory, bytes);
    return worst;
}

/* In a process of its own, since one that has used CUDA cannot fork ranks. */
static bool has_gpus(void)
{
    int status = 1;
    const pid_t pid = fork();
    if (pid == 0) {
        exit(gr_device_check(n_rank - 1) == GR_OK ? 0 : 1);
    }
    (void)waitpid(pid, &status, 0);
    return status == 0;
}

int main(int argc, char **argv)
{
    static const char *const ways[] = {"auto", "peer", "nccl", "allreduce"};
    int way = -1, n_failed = 0;
    for (int i = 0; argc >= 3 && i < (int)GR_ARRAY_LEN(ways); i++) {
        way = strcmp(argv[2], ways[i]) == 0 ? i : way;
    }
    n_rank = argc >= 3 ? atoi(argv[1]) : 0;
    with_times = argc >= 4 && strcmp(argv[3], "--time") == 0;
    if (way < 0 || (n_rank != 2 && n_rank != 4 && n_rank != 8)) {
        fprintf(stderr, "usage: check_ranks 2|4|8 auto|peer|nccl|allreduce [--time]\n");
        return 2;
    }
    gr_log_init("check");
    if (!has_gpus()) {
        printf("1..0 # SKIP fewer than %d GPUs that can be used\n", n_rank);
        return 0;
    }
    big = getenv("SOFT_GPU_DEVICES") == NULL;
    exact = way != 3;
    maker = gr_cuda_ranks_maker_of(way == 3 ? GR_CUDA_RANKS_NCCL : (enum gr_cuda_ranks_kind)way, way == 3);
    const int hidden[] = {512, 4096, 8192};
    const int n_hidden = big ? 3 : 1;
    printf("1..%d\n", n_hidden);
    for (int i = 0; i < n_hidden; i++) {
        const int end = run(hidden[i]);
        n_failed += end != 0;
        printf("%sok %d - %d ranks, %s, rows of %d\n", end == 0 ? "" : "not ", i + 1, n_rank, ways[way], hidden[i]);
    }
    return n_failed == 0 ? 0 : 1;
}
