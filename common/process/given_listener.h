/* A socket that listens, and that a process holds for its children, one after the other: its port can be told to others
 * before a child lives, and stays the same when that one is followed by another. Its number is in the environment
 * variable GRAFT_GROUP_LISTENER. Used by the thread that starts a program. */
#ifndef GR_COMMON_PROCESS_GIVEN_LISTENER_H
#define GR_COMMON_PROCESS_GIVEN_LISTENER_H

/* From here on children inherit it. fd stays the caller's. */
void gr_listener_give(int fd);
/* In the child: what it was given, the caller's; -1: nothing, or it has been taken already. */
int gr_listener_given(void);

#endif
