#include "orchestrator/launch/command.h"

#include "common/base/log.h"
#include "common/process/program.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_NOT_FOUND 127 /* as a shell has it */

static const char *program_of(const char *word)
{
    const char *sibling = strncmp(word, "graft", 5) == 0 && strchr(word, '/') == NULL ? gr_program_sibling(word) : NULL;
    return sibling != NULL && access(sibling, X_OK) == 0 ? sibling : word;
}

static void set_environment(char *const *env, const char *connect, const char *key_hex)
{
    clearenv();
    for (; *env != NULL; env++) {
        (void)putenv(*env);
    }
    setenv("GRAFT_CONNECT", connect, 1);
    setenv("GRAFT_KEY", key_hex, 1);
    unsetenv("GRAFT_KEY_FILE"); /* it would go before */
}

static void become(const struct gr_option_rest *words, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1); /* the parent died before the line above */
    }
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL); /* this program ignores them, and what is ignored stays so */
    signal(SIGXFSZ, SIG_DFL);
    execvp(program_of(words->word[0]), words->word);
    log_error("cannot start %s: %s", words->word[0], strerror(errno));
    _exit(EXIT_NOT_FOUND);
}

enum gr_status gr_command_start(const struct gr_option_rest *words, char *const *env, const char *connect,
                                const char *key_hex, pid_t *pid_out)
{
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) {
        log_error("cannot start %s: fork: %s", words->word[0], strerror(errno));
        return GR_EIO;
    }
    if (pid == 0) {
        set_environment(env, connect, key_hex);
        become(words, parent);
    }
    *pid_out = pid;
    return GR_OK;
}

int gr_command_ended(pid_t pid)
{
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) != pid) {
        return -1;
    }
    return WIFSIGNALED(status) ? GR_EXIT_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}
