/* The command `graft launch`. Returns the process's exit status (common/process/program.h). */
#ifndef GR_ORCHESTRATOR_LAUNCH_LAUNCH_H
#define GR_ORCHESTRATOR_LAUNCH_LAUNCH_H

int gr_command_launch(int argc, char **argv);

#endif
