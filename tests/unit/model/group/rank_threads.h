/* For tests: the ranks of a tensor-parallel group as threads of one process, over memory of its own or over TCP. */
#ifndef GR_TESTS_RANK_THREADS_H
#define GR_TESTS_RANK_THREADS_H

#include "model/group/group_memory.h"
#include "model/group/group_tcp.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum rank_threads_over { OVER_MEMORY, OVER_TCP };

struct rank_threads {
    int n_rank;
    void *memory; /* NULL: over TCP */
    struct gr_group *group[GR_GROUP_RANK_MAX];
    pthread_t thread[GR_GROUP_RANK_MAX];
};

static inline void rank_threads_open_memory(struct rank_threads *t, size_t n_part_max, uint64_t limit_ns)
{
    const size_t bytes = (gr_group_memory_bytes(t->n_rank, n_part_max) + 63) / 64 * 64;
    t->memory = aligned_alloc(64, bytes);
    GR_ASSERT(t->memory != NULL);
    memset(t->memory, 0, bytes);
    for (int r = 0; r < t->n_rank; r++) {
        const struct gr_group_memory_config c = {
            .memory = t->memory, .rank = r, .n_rank = t->n_rank, .n_part_max = n_part_max, .limit_ns = limit_ns};
        GR_ASSERT(gr_group_memory_create(&c, &t->group[r]) == GR_OK);
    }
}

/* Two ends of a connection over the loopback device. */
static inline void tcp_pair(int ends[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    GR_ASSERT(listener >= 0 && ends[0] >= 0 && bind(listener, (struct sockaddr *)&a, sizeof(a)) == 0 &&
              listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&a, &len) == 0 &&
              connect(ends[0], (struct sockaddr *)&a, sizeof(a)) == 0);
    ends[1] = accept(listener, NULL, NULL);
    GR_ASSERT(ends[1] >= 0);
    close(listener);
}

static inline void rank_threads_open_tcp(struct rank_threads *t, size_t n_part_max, uint64_t limit_ns)
{
    struct gr_group_tcp_config c[GR_GROUP_RANK_MAX] = {0};
    for (int r = 0; r < t->n_rank; r++) {
        for (int k = 0; k < r; k++) {
            int ends[2];
            tcp_pair(ends);
            c[r].fd[k] = ends[0];
            c[k].fd[r] = ends[1];
        }
    }
    for (int r = 0; r < t->n_rank; r++) {
        c[r].rank = r;
        c[r].n_rank = t->n_rank;
        c[r].n_part_max = n_part_max;
        c[r].limit_ns = limit_ns;
        GR_ASSERT(gr_group_tcp_create(&c[r], &t->group[r]) == GR_OK);
    }
}

static inline void rank_threads_open(struct rank_threads *t, enum rank_threads_over over, int n_rank, size_t n_part_max,
                                     uint64_t limit_ns)
{
    *t = (struct rank_threads){.n_rank = n_rank};
    if (over == OVER_TCP) {
        rank_threads_open_tcp(t, n_part_max, limit_ns);
    } else {
        rank_threads_open_memory(t, n_part_max, limit_ns);
    }
}

static inline void rank_threads_start(struct rank_threads *t, int rank, void *(*fn)(void *), void *arg)
{
    GR_ASSERT(pthread_create(&t->thread[rank], NULL, fn, arg) == 0);
}

static inline void rank_threads_close(struct rank_threads *t)
{
    for (int r = 0; r < t->n_rank; r++) {
        gr_group_destroy(t->group[r]);
    }
    free(t->memory);
}

#endif
