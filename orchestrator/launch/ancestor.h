/* Which process has started this one and its like. */
#ifndef GR_ORCHESTRATOR_LAUNCH_ANCESTOR_H
#define GR_ORCHESTRATOR_LAUNCH_ANCESTOR_H

/* The nearest process above this one that was started without this variable in its environment: the daemon of the
 * launcher that has set it, also where a shell stands between. It is the same one for all ranks of the daemon, and
 * another one for each job. 1 where there is none. */
int gr_ancestor_without(const char *variable);

#endif
