#include "bench/graft_run.h"

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/process/shell_words.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
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

/* One line: what has happened to the program, and how it was called. */
static void tell_failure(const char *const *argv, const char *what, const char *why)
{
    char *words = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&words, &len);
    if (f != NULL) {
        gr_shell_words_print(argv, f);
        fclose(f);
    }
    log_error("%s %s%s%s; the command was: %s", argv[0], what, why[0] != '\0' ? ": " : "", why,
              words != NULL ? words : argv[0]);
    free(words);
}

/* NULL: there is none, why says so. What follows it is read, too, so that its writer gets it out. */
static json_t *read_json(FILE *f, char *why, size_t cap)
{
    json_error_t error;
    json_t *root = json_loadf(f, JSON_DISABLE_EOF_CHECK, &error);
    if (root == NULL) {
        snprintf(why, cap, "what it printed is no JSON: line %d: %s", error.line, error.text);
    }
    while (getc(f) != EOF) {
    }
    return root;
}

static void say_end(int status, char *out, size_t cap)
{
    if (WIFSIGNALED(status)) {
        snprintf(out, cap, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        snprintf(out, cap, "ended with status %d", WEXITSTATUS(status));
    }
}

/* It runs, and writes into f, whose other end is this process's alone. */
static json_t *take_json(const char *const *argv, pid_t pid, FILE *f)
{
    char why[JSON_ERROR_TEXT_LENGTH + 64] = "", end[96];
    json_t *root = read_json(f, why, sizeof(why));
    int status = 0;
    fclose(f);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0 || root == NULL) {
        say_end(status, end, sizeof(end));
        tell_failure(argv, end, why);
        json_decref(root);
        return NULL;
    }
    return root;
}

json_t *gr_bench_run_json(const char *const *argv)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        tell_failure(argv, "cannot be started: pipe", strerror(errno));
        return NULL;
    }
    FILE *f = fdopen(fds[0], "r");
    const pid_t pid = f != NULL ? fork() : -1;
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        execv(argv[0], (char **)(uintptr_t)argv);
        log_error("cannot start %s: %s", argv[0], strerror(errno));
        _exit(127);
    }
    const int error = errno;
    close(fds[1]);
    if (pid > 0) {
        return take_json(argv, pid, f);
    }
    tell_failure(argv, "cannot be started", strerror(error));
    if (f != NULL) {
        fclose(f);
    } else {
        close(fds[0]);
    }
    return NULL;
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
