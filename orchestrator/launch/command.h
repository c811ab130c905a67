/* The command that rank 0 runs (`-- COMMAND ...'): with the terminal and the streams of graft launch, in its process
 * group. */
#ifndef GR_ORCHESTRATOR_LAUNCH_COMMAND_H
#define GR_ORCHESTRATOR_LAUNCH_COMMAND_H

#include "common/options/option.h"
#include "common/base/status.h"

#include <sys/types.h>

/* env: its environment, to which connect (GRAFT_CONNECT) and key_hex (GRAFT_KEY) are added. A word that is the name of
 * one of graft's programs is that of this build. */
GR_NODISCARD enum gr_status gr_command_start(const struct gr_option_rest *words, char *const *env, const char *connect,
                                             const char *key_hex, pid_t *pid_out);
/* -1: it runs; else its exit status as a shell has it. */
int gr_command_ended(pid_t pid);

#endif
