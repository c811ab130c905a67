#include "bench/graft_run.h"

#include "common/log.h"
#include "common/status.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const default_prompts[] = {
    "def fibonacci(n):\n",
    "import os\nimport sys\n\n\ndef main(argv):\n    \"\"\"Entry point of the tool.\"\"\"\n",
    "class Stack:\n    \"\"\"A last-in, first-out container.\"\"\"\n\n    def __init__(self):\n",
    "def read_config(path):\n    with open(path) as f:\n        for line in f:\n",
};

double gr_bench_metric(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

json_t *gr_bench_run_graft(char **argv)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        log_error("pipe: %s", strerror(errno));
        return NULL;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        execv(argv[0], argv);
        log_error("cannot start %s: %s", argv[0], strerror(errno));
        _exit(127);
    }
    close(fds[1]);
    FILE *f = fdopen(fds[0], "r");
    json_error_t error;
    json_t *root = pid > 0 && f != NULL ? json_loadf(f, JSON_DISABLE_EOF_CHECK, &error) : NULL;
    int status = 1;
    if (f != NULL) {
        fclose(f);
    }
    if (pid > 0) {
        waitpid(pid, &status, 0);
    }
    if (status != 0) {
        json_decref(root);
        return NULL;
    }
    return root;
}

int gr_bench_load_prompts(const char *path, const char **prompt)
{
    if (path == NULL) {
        memcpy(prompt, default_prompts, sizeof(default_prompts));
        return (int)GR_ARRAY_LEN(default_prompts);
    }
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    int n = 0;
    size_t i;
    json_t *e;
    json_array_foreach(root, i, e)
    {
        if (json_is_string(e) && n < GR_BENCH_PROMPT_MAX) {
            prompt[n++] = json_string_value(e); /* root lives until the process ends */
        }
    }
    if (n == 0) {
        log_error("%s: a JSON array of prompt texts is wanted%s%s", path, root == NULL ? ": " : "",
                  root == NULL ? error.text : "");
    }
    return n;
}
