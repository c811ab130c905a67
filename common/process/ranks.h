/* The processes of a tensor-parallel group. On one host rank 0 starts the others as itself (the same program with the
 * same arguments), with a piece of memory that all of them see. They live in process groups of their own, do not heed
 * the signals that ask rank 0 to end, and are killed by the kernel when it dies.
 *
 * A thread of rank 0 watches them. The group ends as a whole: where one is gone that was not told to end, the thread
 * says so and ends the process at once, whatever its other threads wait for; who started rank 0 starts all of them
 * anew. Decision D-102.
 *
 * Where they stand on several hosts each has been started by somebody else, and rank 0 watches sockets to them in the
 * same way. Decision D-182. */
#ifndef GR_COMMON_PROCESS_RANKS_H
#define GR_COMMON_PROCESS_RANKS_H

#include "common/base/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define GR_RANKS_MAX 8
#define GR_RANKS_FAR (-1) /* for a pid: somebody else has started that process, perhaps on another host */

struct gr_ranks {
    int rank, n_rank; /* n_rank 0: no group */
    int memory_fd;    /* owned; -1: none */
    void *memory;     /* owned */
    size_t memory_bytes;
    pid_t pid[GR_RANKS_MAX]; /* of the others, on rank 0; 0: it has been seen to end; GR_RANKS_FAR */
    int alive_fd[GR_RANKS_MAX];
    char host[GR_RANKS_MAX][64]; /* of a far one */
    pthread_t watcher;
    bool watches;
    pthread_mutex_t abort_mutex;
    void (*abort)(void *ctx); /* NULL: none */
    void *abort_ctx;
    atomic_bool ending; /* their end is no loss any more */
};

/* In main(), of every program that can be a rank. True: a rank 0 has started this process. */
bool gr_ranks_inherit(struct gr_ranks *r);
/* What such a process calls itself in log lines: "target rank 1". Static. */
const char *gr_ranks_role(const struct gr_ranks *r, const char *program);
/* Rank 0: starts n_rank - 1 others. argv: of this process. */
GR_NODISCARD enum gr_status gr_ranks_start(struct gr_ranks *r, int n_rank, char *const *argv);
/* Rank 0 of processes that have met by themselves: watches them. fd: to each other rank, borrowed (it is duplicated);
 * host: their names. */
GR_NODISCARD enum gr_status gr_ranks_watch(struct gr_ranks *r, const int *fd, char (*host)[64]);
/* The memory that all ranks see, zeros at first. The same size on all of them. */
GR_NODISCARD enum gr_status gr_ranks_map(struct gr_ranks *r, size_t bytes);
/* What the thread that watches calls before it ends the process, so that what waits for the rank that is gone goes on.
 * It must not wait itself. NULL: nothing, from the return on. */
void gr_ranks_abort_with(struct gr_ranks *r, void (*abort)(void *ctx), void *ctx);
/* From here on an end of the others is none that ends this process. */
void gr_ranks_let_go(struct gr_ranks *r);
/* Waits until they have ended, for a short while, then kills them. */
void gr_ranks_finish(struct gr_ranks *r);

#endif
