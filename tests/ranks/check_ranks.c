/* Ranks of a group on GPUs as they are in a worker: processes of one host, each with a GPU of its own, which export and
 * map their memory (model/cuda/ranks_peer.h) or go over NCCL. Sums and logits have the tree's bits; a rank that does
 * not come, or an abort, ends the others' waits.
 *
 *   check_ranks N auto|peer|nccl|allreduce [WHAT]     prints TAP; SKIP where there are fewer than N GPUs
 *
 * WHAT:
 *   --time         what a join takes in a graph of 160, at the widths of Llama 3.1 8B and 3.3 70B
 *   --rows         bits of joins of 1 to 64 rows and of a spread up to 2,048
 *   --captures M   M graphs, while another thread of each process uses the device (200)
 *   --joins M      M joins of random sizes, ranks pausing at random (100000 to 1000000) */
#include "common/base/clock.h"
#include "common/base/device.h"
#include "common/base/log.h"
#include "model/cuda/ranks_make.h"
#include "model/group/agree.h"
#include "tests/ranks/rank.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_JOIN 160               /* of a timed graph */
#define LIMIT_NS (2 * GR_S)      /* in software for each rank: eight of them share the cores of a small machine */
#define NCCL_LIMIT_NS (8 * GR_S) /* its first sums of several ranks connect them, which has taken 2 s */
#define PATIENT_NS (60 * GR_S)

enum what { ALL, TIMES, ROWS, CAPTURES, JOINS, N_WHAT };
static const char *const what_names[N_WHAT] = {"", "--time", "--rows", "--captures", "--joins"};

static enum what what;
static int n_times;     /* M */
static sem_t *given_up; /* by each rank once, after its checks, whether or not they held */

static enum gr_status check_logits(struct rank *k)
{
    const int rank = k->group->rank, stride = k->of->n_rank * CHECK_COLUMNS;
    for (int i = 0; i < CHECK_N_OUT; i++) {
        for (int c = 0; c < CHECK_COLUMNS; c++) {
            k->host[c] = check_value(rank, i, (size_t)c);
        }
        GR_TRY(rank_put(k, k->ranks->logits + (size_t)i * (size_t)k->ranks->logits_stride, k->host,
                        CHECK_COLUMNS * sizeof(float)));
    }
    rank_begin_pass(k);
    GR_TRY(k->ranks->ops->enqueue_logits(k->ranks, CHECK_N_OUT));
    GR_TRY(rank_finish_pass(k));
    if (rank > 0) {
        return GR_OK;
    }
    GR_TRY(rank_get(k, k->host, k->logits, (size_t)CHECK_N_OUT * (size_t)stride * sizeof(float)));
    for (int i = 0; i < CHECK_N_OUT * stride; i++) {
        const int c = i % stride;
        const float want = check_value(c / CHECK_COLUMNS, i / stride, (size_t)(c % CHECK_COLUMNS));
        k->n_bad += memcmp(&k->host[i], &want, sizeof(want)) != 0;
    }
    return GR_OK;
}

/* ---- ends ---- */

/* The last rank does not come: the others' streams end, and say so. It stays, as one that hangs. */
static enum gr_status check_silence(struct rank *k)
{
    const int n_rank = k->of->n_rank;
    const uint64_t begin = gr_clock_ns();
    enum gr_status st = GR_ETIMEDOUT;
    if (k->group->rank < n_rank - 1) {
        rank_begin_pass(k);
        k->n_join = 2;
        GR_TRY(rank_enqueue_joins(k, 1));
        GR_TRY(gr_cuda_wait(&k->device, "joins"));
        st = k->ranks->ops->status(k->ranks);
        const double s = (double)(gr_clock_ns() - begin) / 1e9;
        const double limit_s = (double)k->of->limit_ns / 1e9;
        k->n_bad += s < 0.9 * limit_s || s > 2.0 * limit_s + 4.0;
    }
    for (int i = 0; k->group->rank == n_rank - 1 && i < n_rank - 1; i++) {
        (void)sem_wait(given_up);
    }
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
    GR_TRY(rank_fill(k, 0, n_row));
    GR_TRY(rank_fill(k, 1, n_row));
    k->n_join = N_JOIN;
    GR_TRY(gr_cuda_graph_capture(&k->device, rank_enqueue_joins, k, n_row, &graph));
    for (int i = 0; i < REPS; i++) {
        GR_TRY(gr_group_all_ok(k->group, GR_OK));
        const uint64_t begin = gr_clock_ns();
        rank_begin_pass(k);
        GR_TRY(gr_cuda_check(cudaGraphLaunch(graph, k->device.stream), "graph"));
        GR_TRY(rank_finish_pass(k));
        us[i] = (double)(gr_clock_ns() - begin) / 1e3 / N_JOIN;
    }
    qsort(us, REPS, sizeof(us[0]), by_size);
    (void)cudaGraphExecDestroy(graph);
    if (k->group->rank == 0) {
        printf("# %d ranks, %s: a join of %4d rows of %5d: %7.2f us (least %.2f), %.0f KB of each rank\n",
               k->of->n_rank, k->ranks->ops->name, n_row, k->of->hidden, us[REPS / 2], us[0],
               (double)n_row * k->of->hidden * 4 / 1e3);
        fflush(stdout);
    }
    return GR_OK;
}

/* ---- a process ---- */

static const int rows[] = {1, 3, 8, 16, 64, 512};

static enum gr_status check_all(struct rank *k)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(rows) && rows[i] <= k->of->n_row_max; i++) {
        GR_TRY(rank_check_joins(k, 2 * (int)i, rows[i]));
        GR_TRY(rank_check_graph(k, rows[i], 3));
    }
    GR_TRY(check_logits(k));
    return check_silence(k);
}

static enum gr_status time_all(struct rank *k)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(rows) && rows[i] <= k->of->n_row_max; i++) {
        GR_TRY(time_joins(k, rows[i]));
    }
    return GR_OK;
}

static enum gr_status check_what(struct rank *k)
{
    switch (what) {
    case TIMES:
        return time_all(k);
    case ROWS:
        return check_row_counts(k);
    case CAPTURES:
        return check_captures(k, n_times);
    case JOINS:
        return check_many(k, n_times);
    default:
        return check_all(k);
    }
}

/* Status 0: all is well. */
static int be_rank(const struct checked_group *of, void *memory, int rank)
{
    static struct rank k;
    gr_log_init("check");
    enum gr_status st = rank_open(&k, of, memory, rank);
    st = st == GR_OK ? check_what(&k) : st;
    if (st != GR_OK || k.n_bad > 0) {
        fprintf(stderr, "# rank %d: status %d, %d values are wrong\n", rank, (int)st, k.n_bad);
    }
    (void)sem_post(given_up);
    rank_close(&k);
    return st == GR_OK && k.n_bad == 0 ? 0 : st == GR_EUNSUPPORTED ? 2 : 1;
}

static int run(const struct checked_group *of)
{
    const size_t bytes = check_group_bytes(of->n_rank);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[GR_GROUP_RANK_MAX];
    int worst = 0;
    given_up = mmap(NULL, sizeof(*given_up), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sem_init(given_up, 1, 0);
    for (int r = 0; r < of->n_rank; r++) {
        fflush(stdout);
        pid[r] = fork();
        if (pid[r] == 0) {
            exit(be_rank(of, memory, r));
        }
    }
    for (int r = 0; r < of->n_rank; r++) {
        int status = 0;
        (void)waitpid(pid[r], &status, 0);
        const int end = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        worst = end > worst ? end : worst;
    }
    munmap(memory, bytes);
    return worst;
}

/* In a process of its own, since one that has used CUDA cannot fork ranks. */
static bool has_gpus(int n_rank)
{
    int status = 1;
    const pid_t pid = fork();
    if (pid == 0) {
        exit(gr_device_check(n_rank - 1) == GR_OK ? 0 : 1);
    }
    (void)waitpid(pid, &status, 0);
    return status == 0;
}

static int index_of(const char *word, const char *const *words, int n)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(word, words[i]) == 0) {
            return i;
        }
    }
    return -1;
}

/* The largest join's rows. */
static int rows_max(bool soft)
{
    if (what == ROWS) {
        return soft ? 33 : 2048;
    }
    return soft ? 16 : what == CAPTURES || what == JOINS ? 64 : 512;
}

static int run_widths(struct checked_group *of, const char *way)
{
    static const int hidden[] = {512, 4096, 8192};
    const int n_hidden = of->soft || what == CAPTURES || what == JOINS ? 1 : 3;
    int n_failed = 0;
    printf("1..%d\n", n_hidden);
    for (int i = 0; i < n_hidden; i++) {
        of->hidden = hidden[i];
        const int end = run(of);
        n_failed += end != 0;
        printf("%sok %d - %d ranks, %s, rows of %d%s%s\n", end == 0 ? "" : "not ", i + 1, of->n_rank, way, hidden[i],
               what != ALL ? ", " : "", what != ALL ? what_names[what] + 2 : "");
    }
    return n_failed == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const char *const ways[] = {"auto", "peer", "nccl", "allreduce"};
    const int way = argc >= 3 ? index_of(argv[2], ways, (int)GR_ARRAY_LEN(ways)) : -1;
    const int n_rank = argc >= 3 ? atoi(argv[1]) : 0, which = argc >= 4 ? index_of(argv[3], what_names, N_WHAT) : ALL;
    n_times = argc >= 5 ? atoi(argv[4]) : 0;
    if (way < 0 || which < 0 || (n_rank != 2 && n_rank != 4 && n_rank != 8) || (which >= CAPTURES && n_times < 1)) {
        fprintf(stderr, "usage: check_ranks 2|4|8 auto|peer|nccl|allreduce [--time|--rows|--captures M|--joins M]\n");
        return 2;
    }
    what = (enum what)which;
    gr_log_init("check");
    if (!has_gpus(n_rank)) {
        printf("1..0 # SKIP fewer than %d GPUs that can be used\n", n_rank);
        return 0;
    }
    const bool soft = getenv("SOFT_GPU_DEVICES") != NULL;
    struct checked_group of = {
        .maker = gr_cuda_ranks_maker_of(way == 3 ? GR_CUDA_RANKS_NCCL : (enum gr_cuda_ranks_kind)way, way == 3),
        .n_rank = n_rank,
        .exact = way != 3,
        .soft = soft,
        .n_row_max = rows_max(soft),
        .limit_ns = what != ALL ? PATIENT_NS
                    : way >= 2  ? NCCL_LIMIT_NS
                    : soft      ? (uint64_t)n_rank * LIMIT_NS
                                : LIMIT_NS};
    return run_widths(&of, ways[way]);
}
