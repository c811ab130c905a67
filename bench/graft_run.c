#include "bench/graft_run.h"

#include "common/base/log.h"
#include "common/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
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

json_t *gr_bench_run_json(char **argv)
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

/* ---- prompts; what is loaded lives until the process ends ---- */

static int take_array(json_t *root, const char **prompt)
{
    int n = 0;
    size_t i;
    json_t *e;
    json_array_foreach(root, i, e)
    {
        if (json_is_string(e) && n < GR_BENCH_PROMPT_MAX) {
            prompt[n++] = json_string_value(e);
        }
    }
    return n;
}

/* False: the line has no text. */
static bool take_line(json_t *line, const char *kind, const char **prompt, int *n)
{
    const char *text = json_string_value(json_object_get(line, "text"));
    const char *of = json_string_value(json_object_get(line, "kind"));
    if (text != NULL && *n < GR_BENCH_PROMPT_MAX && (kind == NULL || (of != NULL && strcmp(of, kind) == 0))) {
        prompt[(*n)++] = text;
    }
    return text != NULL;
}

static bool at_end(FILE *f)
{
    int c = getc(f);
    while (c == ' ' || c == '\n' || c == '\r' || c == '\t') {
        c = getc(f);
    }
    return ungetc(c, f) == EOF;
}

/* Prompts point into it until the process ends. */
static bool keep(json_t *value)
{
    static json_t *kept;
    if (kept == NULL) {
        kept = json_array();
    }
    return kept != NULL && json_array_append_new(kept, value) == 0;
}

/* Values one after another: one array, or an object a line. -1: the file is not that (logged). */
static int read_prompts(FILE *f, const char *path, const char *kind, const char **prompt)
{
    int n = 0;
    for (int i = 0; !at_end(f); i++) {
        json_error_t error;
        json_t *root = json_loadf(f, JSON_DISABLE_EOF_CHECK, &error);
        if (root == NULL) {
            log_error("%s: value %d is no JSON: %s", path, i + 1, error.text);
            return -1;
        }
        if (!keep(root)) {
            log_error("%s: out of memory", path);
            return -1;
        }
        if (json_is_array(root) && i == 0 && kind == NULL) {
            n = take_array(root, prompt);
        } else if (!json_is_object(root) || !take_line(root, kind, prompt, &n)) {
            log_error("%s: value %d is neither an array of texts nor an object with \"text\"%s", path, i + 1,
                      kind != NULL ? " (only these have kinds)" : "");
            return -1;
        }
    }
    return n;
}

int gr_bench_load_prompts(const char *path, const char *kind, const char **prompt)
{
    if (path == NULL) {
        memcpy(prompt, default_prompts, sizeof(default_prompts));
        return (int)GR_ARRAY_LEN(default_prompts);
    }
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        log_error("%s: %s", path, strerror(errno));
        return 0;
    }
    const int n = read_prompts(f, path, kind, prompt);
    fclose(f);
    if (n == 0) {
        log_error("%s: no text%s%s in it; a JSON array of texts or JSON lines with \"text\" are wanted", path,
                  kind != NULL ? " of kind " : "", kind != NULL ? kind : "");
    }
    return GR_MAX(n, 0);
}
