/* What a program writes for people (standard output, standard error, a FIFO that a user has named) may meet a pipe that
 * nobody reads. A program that reads its signals from a descriptor would then write for ever and hear no signal. Under
 * the guard a write waits for room or for a signal; after a signal, what finds no room soon is dropped.
 *
 * One guard a process. Nothing here takes a signal out of the process's queue: who waits for one still gets it. */
#ifndef GR_COMMON_BASE_OUT_GUARD_H
#define GR_COMMON_BASE_OUT_GUARD_H

#include "common/base/status.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>

/* From here on these signals, which the process has blocked, end a wait for room. stdout and stderr become streams
 * over gr_out_write(), buffered as before. SIGCHLD is none of them. Twice is as good as once. */
GR_NODISCARD enum gr_status gr_out_guard(const sigset_t *endings);
/* For who has taken such a signal out of the queue: what finds no room soon is dropped from now on. */
void gr_out_hurry(int signal_number);
/* That signal ends nothing: writes wait for room again. */
void gr_out_calm(void);
/* Writes all, in order. GR_ECANCELED: a signal came, or had come, and there was no room: the rest is dropped.
 * GR_ECLOSED: nobody reads it any more. GR_EIO: errno tells. Without a guard it is write() until all is written. */
enum gr_status gr_out_write(int fd, const void *data, size_t bytes);
/* The signal for whose sake something was dropped; 0: nothing was. */
int gr_out_cut_by(void);
/* A stream over gr_out_write(); closing it closes fd. NULL: errno tells. */
FILE *gr_out_stream(int fd);

#endif
