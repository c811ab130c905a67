/* The processes of a tensor-parallel group that stand on several hosts meet: rank 0 listens, the others come to it, and
 * each says what it runs. When all are there rank 0 tells everybody who they are, and each connects to the lower ranks
 * that it is not connected to yet. All connections begin with HELLO and the proof of the shared key; those between
 * other ranks are to the very process that rank 0 has told of, so what is left of an earlier group never gets in.
 * Blocks without a limit, as processes of several hosts may be started at any time; who is missing is told every 30 s.
 * Decision D-182. */
#ifndef GR_TRANSPORT_WORKER_MEET_H
#define GR_TRANSPORT_WORKER_MEET_H

#include "common/base/status.h"

#include <stdint.h>

#define GR_MEET_MAX 8       /* ranks */
#define GR_MEET_HOST_MAX 64 /* bytes of a host's name, its NUL included */

struct gr_meet_config {
    int rank, n_rank;
    const char *address; /* where rank 0 is found, a list (address.h); rank 0 listens there, unless it has listen_fd */
    int listen_fd;       /* of rank 0: taken, also after an error; -1: none */
    const char *listen;  /* of another rank: where higher ones connect; NULL: any port of all addresses */
    const uint8_t *key;
    const char *runs; /* what all ranks must have alike, in words, at most 255 bytes */
    const char
        *gpu; /* PCI address of its GPU, at most 31 bytes, which no other rank of its host may have; NULL: none */
};

struct gr_meeting {
    int fd[GR_MEET_MAX]; /* the caller's: a stream to each other rank; -1: of the own one */
    char host[GR_MEET_MAX][GR_MEET_HOST_MAX];
    int n_here; /* ranks on this host, this one among them */
};

/* One of another version, another group or with another model is refused in one line that names its rank and host, and
 * gets GR_EMISMATCH with that line; rank 0 goes on waiting. GR_EAUTH, GR_EINVAL, GR_EIO (logged). */
GR_NODISCARD enum gr_status gr_meet(const struct gr_meet_config *c, struct gr_meeting *out);

#endif
