/* For tests: the ranks of a tensor-parallel group as threads of one process, over memory of its own. */
#ifndef GR_TESTS_RANK_THREADS_H
#define GR_TESTS_RANK_THREADS_H

#include "model/group/group_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct rank_threads {
    int n_rank;
    void *memory;
    struct gr_group *group[GR_GROUP_RANK_MAX];
    pthread_t thread[GR_GROUP_RANK_MAX];
};

static inline void rank_threads_open(struct rank_threads *t, int n_rank, size_t n_part_max, uint64_t limit_ns)
{
    const size_t bytes = (gr_group_memory_bytes(n_rank, n_part_max) + 63) / 64 * 64;
    *t = (struct rank_threads){.n_rank = n_rank, .memory = aligned_alloc(64, bytes)};
    GR_ASSERT(t->memory != NULL);
    memset(t->memory, 0, bytes);
    for (int r = 0; r < n_rank; r++) {
        const struct gr_group_memory_config c = {
            .memory = t->memory, .rank = r, .n_rank = n_rank, .n_part_max = n_part_max, .limit_ns = limit_ns};
        GR_ASSERT(gr_group_memory_create(&c, &t->group[r]) == GR_OK);
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
