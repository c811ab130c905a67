/* Target workers without a model, all in this process: they join a server, take its sessions, and send COMMITs of
 * tokens that anybody can compute. What they say is what real ones say. */
#ifndef GR_BENCH_SERVER_STUB_TARGETS_H
#define GR_BENCH_SERVER_STUB_TARGETS_H

#include "bench/server/bus.h"

#define GR_STUB_TARGET_MAX 64
#define GR_STUB_VOCAB 1000

struct gr_stub_session {
    uint64_t id, hash;
    uint32_t epoch, len, round;
    bool is_over; /* its last COMMIT was sent */
};

struct gr_stub_targets;

struct gr_stub_target {
    struct gr_stub_targets *all; /* borrowed */
    int end, n;
    struct gr_stub_session *session; /* owned, (n_slot): the first n */
};

struct gr_stub_targets {
    struct gr_bus *bus; /* borrowed */
    int n_target, n_slot;
    struct gr_stub_target target[GR_STUB_TARGET_MAX];
    int n_open;      /* sessions of all of them */
    uint64_t n_sent; /* COMMITs */
};

/* The token at a place of a session's text. */
static inline int32_t gr_stub_token(uint64_t session, uint32_t at)
{
    return (int32_t)((session * 7 + at * 31) % GR_STUB_VOCAB);
}

/* n_target workers with room for n_slot sessions each join. The bus is pumped meanwhile. */
GR_NODISCARD enum gr_status gr_stub_targets_begin(struct gr_stub_targets *t, struct gr_bus *bus, int n_target,
                                                  int n_slot);
/* A round of one of them: a token for each of its sessions. last: their texts end with it. */
GR_NODISCARD enum gr_status gr_stub_targets_round(struct gr_stub_targets *t, int target, bool last);
void gr_stub_targets_end(struct gr_stub_targets *t);

#endif
