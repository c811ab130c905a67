/* What all programs of a build share. */
#ifndef GR_COMMON_PROCESS_PROGRAM_H
#define GR_COMMON_PROCESS_PROGRAM_H

/* Path of `name` ("graft-target") in the folder of the running program; static buffer, valid until the next call. */
const char *gr_program_sibling(const char *name);

/* A closed pipe (SIGPIPE) and the limit on file sizes (SIGXFSZ, `ulimit -f') become errors of the call that meets them,
 * told like any other, instead of signals that end the process. To be called first in main(). */
void gr_program_take_errors(void);

#endif
