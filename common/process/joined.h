/* How a child process tells its parent that it has joined its orchestrator: an event counter that the child inherits,
 * its number in the environment variable GRAFT_JOINED_FD. Nothing happens in a process that has no such parent. */
#ifndef GR_COMMON_PROCESS_JOINED_H
#define GR_COMMON_PROCESS_JOINED_H

#include <stdbool.h>

/* In a new child, before it becomes the worker program. silent: the program logs nothing until it has joined. worked:
 * an earlier life of it has joined. */
void gr_joined_hand_over(int fd, bool silent, bool worked);
/* In the worker program, when it starts: takes what was handed over out of the environment. */
void gr_joined_inherit(void);
/* In the worker program: it has such a parent. */
bool gr_joined_is_child(void);
/* In the worker program: an earlier life of it has joined, so its sessions wait for it. */
bool gr_joined_before(void);
/* In the worker program: it has joined. From here on it logs. Only the first call counts. */
void gr_joined_tell(void);

#endif
