/* Connections for graft-bench transport, one transport after the other. The far end is a thread (loop), a process that
 * was forked here before there was any thread, or another graft-bench that listens, perhaps on another machine. */
#ifndef GR_BENCH_LINK_H
#define GR_BENCH_LINK_H

#include "bench/exchange.h"

#include <sys/types.h>

struct gr_links {
    uint8_t key[32];
    char address[64]; /* of the far process */
    pid_t far;        /* ours; 0: none, it is somebody else's */
    uint32_t generation;
};

/* To the one that listens at --peer, with the key of the environment; without --peer forks one, whose rows are on
 * --device as well. No device is open yet. */
GR_NODISCARD enum gr_status gr_links_start(struct gr_links *l, const struct gr_bench_options *o);
/* Ends and reaps the far process if it is ours. */
void gr_links_stop(struct gr_links *l);

struct gr_link {
    struct gr_conn *conn;    /* owned */
    struct gr_link_far *far; /* the thread's; NULL: a process */
};

GR_NODISCARD enum gr_status gr_link_open(struct gr_links *l, enum gr_transport_kind kind, struct gr_link *out);
void gr_link_close(struct gr_link *l);

/* The far end of another graft-bench: prints where it listens and serves one that measures, until its bye. */
GR_NODISCARD enum gr_status gr_far_listen(const struct gr_bench_options *o);

#endif
