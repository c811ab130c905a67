/* The commands of `graft`. Each returns the process's exit status: 0 done, 1 failed, 2 usage. */
#ifndef GR_ORCHESTRATOR_COMMANDS_H
#define GR_ORCHESTRATOR_COMMANDS_H

int gr_command_run(int argc, char **argv);

/* Path of a program that lies beside this one ("graft-target"); static buffer, valid until the next call. */
const char *gr_sibling_program(const char *name);

#endif
