/* The commands of `graft`. Each returns the process's exit status (common/process/program.h). */
#ifndef GR_ORCHESTRATOR_CLI_COMMANDS_H
#define GR_ORCHESTRATOR_CLI_COMMANDS_H

int gr_command_run(int argc, char **argv);
int gr_command_chat(int argc, char **argv);
int gr_command_serve(int argc, char **argv);
int gr_command_session(int argc, char **argv);
int gr_command_worker(int argc, char **argv);
int gr_command_top(int argc, char **argv);
int gr_command_ping(int argc, char **argv);
int gr_command_wait(int argc, char **argv);
int gr_command_stop(int argc, char **argv);

#endif
