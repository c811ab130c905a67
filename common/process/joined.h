/* How a child process tells its parent that it has joined its orchestrator, and that it was told to end: an event
 * counter that the child inherits, its number in the environment variable GRAFT_JOINED_FD. The lower half counts the
 * first, the upper one the second. Nothing happens in a process that has no such parent. */
#ifndef GR_COMMON_PROCESS_JOINED_H
#define GR_COMMON_PROCESS_JOINED_H

#include <stdbool.h>
#include <stdint.h>

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
/* In the program: somebody has told it to end, by another way than its parent; its end is no reason to start it again,
 * whatever its status. Only the first call counts. */
void gr_joined_tell_end(void);
/* In the parent: what a count says that was read. */
bool gr_joined_says_joined(uint64_t count);
bool gr_joined_says_end(uint64_t count);

#endif
