/* A compute thread with a mailbox of one job: the I/O loop posts, the thread runs, the loop hears of it through a
 * file descriptor. Between jobs the thread sleeps. Allocates nothing after create. */
#ifndef GR_COMMON_PROCESS_COMPUTE_H
#define GR_COMMON_PROCESS_COMPUTE_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct gr_compute;

/* spin_ns: so long after a job the thread looks for the next one before it sleeps, and gives nothing away; 0 where CPUs
 * are to be shared. */
GR_NODISCARD enum gr_status gr_compute_create(const char *name, uint64_t spin_ns, struct gr_compute **out);
void gr_compute_destroy(struct gr_compute *c); /* waits for a running job */
/* Runs fn(arg) on the thread. One job at a time: the last one must have been taken by gr_compute_done().
 * more: another one is likely to follow within tens of us; the thread then gives its CPU away for a while before it
 * falls asleep, which saves a wake-up and costs those who share the CPU little. */
void gr_compute_post(struct gr_compute *c, void (*fn)(void *arg), void *arg, bool more);
/* True once for each finished job. */
bool gr_compute_done(struct gr_compute *c);
/* Readable when a job is done. */
int gr_compute_fd(const struct gr_compute *c);

#endif
