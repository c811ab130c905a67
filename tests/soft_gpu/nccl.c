/* NCCL for GPUs in software: what libnccl.so.2 would do of the calls in nccl_api.h, between processes of one host.
 * Messages are files of a folder in /dev/shm; who receives looks for them until they are there. The order of an
 * all-reduce is that of the ranks, one after the other, and so another one than the tree's. */
#include "model/cuda/nccl_api.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_RANK_MAX 8

struct ncclComm {
    char folder[64];
    int rank, n_rank;
    unsigned n_sent[N_RANK_MAX], n_received[N_RANK_MAX];
    atomic_bool aborted;
};

enum kind { SEND, RECEIVE, ALLREDUCE };

struct call {
    enum kind kind;
    struct ncclComm *comm;
    const float *from;
    float *to;
    size_t n;
    int peer;
};

static void name(const struct ncclComm *c, int from, int to, unsigned number, const char *more, char path[128])
{
    snprintf(path, 128, "%s/%d-%d-%u%s", c->folder, from, to, number, more);
}

static void put(struct ncclComm *c, int peer, const float *from, size_t n)
{
    char begun[128], whole[128];
    const unsigned number = c->n_sent[peer]++;
    name(c, c->rank, peer, number, ".begun", begun);
    name(c, c->rank, peer, number, "", whole);
    FILE *f = fopen(begun, "we");
    GR_ASSERT(f != NULL && fwrite(from, sizeof(*from), n, f) == n && fclose(f) == 0 && rename(begun, whole) == 0);
}

static void take(struct ncclComm *c, int peer, float *to, size_t n)
{
    char path[128];
    FILE *f = NULL;
    name(c, peer, c->rank, c->n_received[peer]++, "", path);
    while ((f = fopen(path, "re")) == NULL) {
        if (atomic_load(&c->aborted)) {
            return;
        }
        sched_yield();
    }
    GR_ASSERT(fread(to, sizeof(*to), n, f) == n && fgetc(f) == EOF && fclose(f) == 0 && unlink(path) == 0);
}

static void add_all(const struct call *k)
{
    struct ncclComm *c = k->comm;
    float *one = malloc(k->n * sizeof(*one)), *sum = calloc(k->n, sizeof(*sum));
    GR_ASSERT(one != NULL && sum != NULL);
    for (int r = 0; r < c->n_rank; r++) {
        if (r != c->rank) {
            put(c, r, k->from, k->n);
        }
    }
    for (int r = 0; r < c->n_rank; r++) {
        if (r != c->rank) {
            take(c, r, one, k->n);
        }
        for (size_t i = 0; i < k->n; i++) {
            sum[i] += r != c->rank ? one[i] : k->from[i];
        }
    }
    memcpy(k->to, sum, k->n * sizeof(*sum));
    free(one);
    free(sum);
}

static void run(void *arg)
{
    const struct call *k = arg;
    if (atomic_load(&k->comm->aborted)) {
        return;
    }
    switch (k->kind) {
    case SEND:
        put(k->comm, k->peer, k->from, k->n);
        break;
    case RECEIVE:
        take(k->comm, k->peer, k->to, k->n);
        break;
    case ALLREDUCE:
        add_all(k);
    }
}

/* A graph may hold it, so it stays as long as the process. */
static int enqueue(struct call k, struct CUstream_st *stream)
{
    struct call *kept = malloc(sizeof(*kept));
    GR_ASSERT(kept != NULL);
    *kept = k;
    return cudaLaunchHostFunc(stream, run, kept) == cudaSuccess ? GR_NCCL_OK : 1;
}

static int soft_send(const void *from, size_t n, int type, int peer, gr_nccl_comm comm, struct CUstream_st *stream)
{
    GR_ASSERT(type == GR_NCCL_FLOAT && peer != comm->rank);
    return enqueue((struct call){.kind = SEND, .comm = comm, .from = from, .n = n, .peer = peer}, stream);
}

static int soft_receive(void *to, size_t n, int type, int peer, gr_nccl_comm comm, struct CUstream_st *stream)
{
    GR_ASSERT(type == GR_NCCL_FLOAT && peer != comm->rank);
    return enqueue((struct call){.kind = RECEIVE, .comm = comm, .to = to, .n = n, .peer = peer}, stream);
}

static int soft_allreduce(const void *from, void *to, size_t n, int type, int op, gr_nccl_comm comm,
                          struct CUstream_st *stream)
{
    GR_ASSERT(type == GR_NCCL_FLOAT && op == GR_NCCL_SUM);
    return enqueue((struct call){.kind = ALLREDUCE, .comm = comm, .from = from, .to = to, .n = n}, stream);
}

static int soft_unique_id(struct gr_nccl_id *id)
{
    *id = (struct gr_nccl_id){"/dev/shm/soft-nccl-XXXXXX"};
    return mkdtemp(id->bytes) != NULL ? GR_NCCL_OK : 1;
}

static int soft_init(gr_nccl_comm *comm, int n_rank, struct gr_nccl_id id, int rank)
{
    struct ncclComm *c = calloc(1, sizeof(*c));
    GR_ASSERT(c != NULL && n_rank <= N_RANK_MAX);
    snprintf(c->folder, sizeof(c->folder), "%.60s", id.bytes);
    c->rank = rank;
    c->n_rank = n_rank;
    *comm = c;
    return GR_NCCL_OK;
}

/* It is not freed: a stream may still hold calls. */
static int soft_abort(gr_nccl_comm comm)
{
    atomic_store(&comm->aborted, true);
    (void)rmdir(comm->folder); /* the last rank's, where nothing is left */
    return GR_NCCL_OK;
}

static int soft_async_error(gr_nccl_comm comm, int *error)
{
    (void)comm;
    *error = GR_NCCL_OK;
    return GR_NCCL_OK;
}

static int nothing(void)
{
    return GR_NCCL_OK;
}

/* SOFT_NCCL_VERSION: of a host that has another one. */
static int soft_version(int *version)
{
    const char *text = getenv("SOFT_NCCL_VERSION");
    *version = text != NULL ? atoi(text) : 22105;
    return GR_NCCL_OK;
}

static const char *soft_text(int e)
{
    return e == GR_NCCL_OK ? "no error" : "the GPU in software has refused it";
}

enum gr_status gr_nccl_load(struct gr_nccl_api *api)
{
    *api = (struct gr_nccl_api){.version = soft_version,
                                .unique_id = soft_unique_id,
                                .init = soft_init,
                                .abort = soft_abort,
                                .async_error = soft_async_error,
                                .begin = nothing,
                                .end = nothing,
                                .send = soft_send,
                                .receive = soft_receive,
                                .allreduce = soft_allreduce,
                                .text = soft_text};
    return GR_OK;
}
