#include "orchestrator/cli/lines.h"

#include "common/base/log.h"

#include <errno.h>
#include <histedit.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#define PROMPT "> "
#define N_REMEMBERED 1000 /* lines of the history */

struct gr_lines {
    gr_lines_wait_fn *wait;
    void *ctx;
    bool canceled;
    bool paused;
    cc_t end_key;   /* while paused: the terminal's own */
    EditLine *edit; /* NULL: standard input is no terminal */
    History *history;
    FILE *out;           /* owned: what libedit draws on */
    char path[PATH_MAX]; /* of the history; "": none is kept */
    char *line;          /* owned, [cap]: of what is no terminal */
    size_t len, cap;
};

/* ---- the terminal ---- */

static char *prompt(EditLine *edit)
{
    static char text[] = PROMPT;
    (void)edit;
    return text;
}

/* A character of several bytes comes at once or not at all. */
static int read_char(EditLine *edit, wchar_t *out)
{
    struct gr_lines *l = NULL;
    mbstate_t state = {0};
    el_get(edit, EL_CLIENTDATA, &l);
    for (;;) {
        char byte;
        if (!l->wait(l->ctx)) {
            l->canceled = true;
            errno = EINTR;
            return -1;
        }
        const ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n != 1) {
            return (int)n;
        }
        const size_t got = mbrtowc(out, &byte, 1, &state);
        if (got != (size_t)-2) {
            if (got == (size_t)-1) { /* no character: what is typed next is */
                *out = (unsigned char)byte;
            }
            return 1;
        }
    }
}

/* Else letters beyond ASCII could not be typed. */
static void use_utf8(void)
{
    if (setlocale(LC_CTYPE, "") == NULL || MB_CUR_MAX == 1) {
        (void)setlocale(LC_CTYPE, "C.UTF-8");
    }
}

static enum gr_status open_terminal(struct gr_lines *l)
{
    use_utf8();
    l->out = fdopen(dup(STDOUT_FILENO), "w");
    l->edit = l->out != NULL ? el_init("graft", stdin, l->out, stderr) : NULL;
    l->history = history_init();
    HistEvent event;
    if (l->edit == NULL || l->history == NULL) {
        log_error("the terminal cannot be set up for editing");
        return GR_EIO;
    }
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, prompt);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_SIGNAL, 0);
    el_set(l->edit, EL_GETCFN, read_char);
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    history(l->history, &event, H_SETSIZE, N_REMEMBERED);
    history(l->history, &event, H_SETUNIQUE, 1);
    el_set(l->edit, EL_HIST, history, l->history);
    return GR_OK;
}

static enum gr_status next_of_terminal(struct gr_lines *l, const char **line_out, size_t *len_out)
{
    int n = 0;
    HistEvent event;
    l->canceled = false;
    const char *line = el_gets(l->edit, &n);
    if (line == NULL || n <= 0) {
        el_reset(l->edit);
        return l->canceled ? GR_ECANCELED : GR_ECLOSED;
    }
    const size_t len = (size_t)n - (line[n - 1] == '\n');
    if (len > 0) {
        history(l->history, &event, H_ENTER, line);
    }
    *line_out = line;
    *len_out = len;
    return GR_OK;
}

/* The key that ends a file for the kernel: for us, or (none) a letter that waits as all others do. */
static void set_end_key(cc_t key)
{
    struct termios t;
    if (tcgetattr(STDIN_FILENO, &t) == 0) {
        t.c_cc[VEOF] = key;
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &t);
    }
}

void gr_lines_pause(struct gr_lines *l)
{
    struct termios t;
    l->paused = l->edit != NULL && tcgetattr(STDIN_FILENO, &t) == 0;
    if (l->paused) {
        l->end_key = t.c_cc[VEOF];
        set_end_key(_POSIX_VDISABLE);
    }
}

void gr_lines_resume(struct gr_lines *l)
{
    if (l->paused) {
        set_end_key(l->end_key);
        l->paused = false;
    }
}

/* ---- what is no terminal ---- */

static bool grow(struct gr_lines *l)
{
    const size_t cap = GR_MAX((size_t)256, 2 * l->cap);
    char *grown = cap <= GR_LINE_BYTES_MAX ? realloc(l->line, cap) : NULL;
    if (grown != NULL) {
        l->line = grown;
        l->cap = cap;
    }
    return grown != NULL;
}

static enum gr_status next_of_file(struct gr_lines *l, const char **line_out, size_t *len_out)
{
    l->len = 0;
    for (;;) {
        char byte;
        if (!l->wait(l->ctx)) {
            return GR_ECANCELED;
        }
        const ssize_t n = read(STDIN_FILENO, &byte, 1);
        if ((n != 1 && l->len == 0) || (n == 1 && byte != '\n' && l->len == l->cap && !grow(l))) {
            if (n == 1) {
                log_error("a line of standard input is longer than %u bytes", GR_LINE_BYTES_MAX);
            }
            return n == 1 ? GR_ELIMIT : GR_ECLOSED;
        }
        if (n != 1 || byte == '\n') {
            *line_out = l->line != NULL ? l->line : "";
            *len_out = l->len;
            return GR_OK;
        }
        l->line[l->len++] = byte;
    }
}

/* ---- the history ---- */

/* The folder is made; false: there is none to be had. */
static bool find_history(char path[PATH_MAX])
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char folder[PATH_MAX - 32];
    const int n = state != NULL && state[0] == '/' ? snprintf(folder, sizeof(folder), "%s/graft", state)
                  : home != NULL                   ? snprintf(folder, sizeof(folder), "%s/.local/state/graft", home)
                                                   : -1;
    if (n < 0 || n >= (int)sizeof(folder)) {
        return false;
    }
    for (char *p = strchr(folder + 1, '/'); p != NULL; p = strchr(p + 1, '/')) {
        *p = '\0';
        (void)mkdir(folder, 0700);
        *p = '/';
    }
    snprintf(path, PATH_MAX, "%s/chat_history", folder);
    return mkdir(folder, 0700) == 0 || errno == EEXIST;
}

static void load_history(struct gr_lines *l)
{
    HistEvent event;
    if (!find_history(l->path)) {
        log_warn("no folder for the history (XDG_STATE_HOME, HOME): lines are not remembered");
        l->path[0] = '\0';
    } else if (access(l->path, F_OK) == 0 && history(l->history, &event, H_LOAD, l->path) < 0) {
        log_warn("%s: the history cannot be read: %s", l->path, event.str);
    }
}

static void save_history(struct gr_lines *l)
{
    HistEvent event;
    const mode_t before = umask(0077);
    if (history(l->history, &event, H_SAVE, l->path) < 0) {
        log_warn("%s: the history cannot be written", l->path);
    }
    (void)umask(before);
}

/* ---- all ---- */

enum gr_status gr_lines_open(gr_lines_wait_fn *wait, void *ctx, bool remember, struct gr_lines **out)
{
    struct gr_lines *l = calloc(1, sizeof(*l));
    if (l == NULL) {
        log_error("no memory for reading lines");
        return GR_ENOMEM;
    }
    l->wait = wait;
    l->ctx = ctx;
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
        const enum gr_status st = open_terminal(l);
        if (st != GR_OK) {
            gr_lines_close(l);
            return st;
        }
        if (remember) {
            load_history(l);
        }
    }
    *out = l;
    return GR_OK;
}

void gr_lines_close(struct gr_lines *l)
{
    if (l->history != NULL && l->path[0] != '\0') {
        save_history(l);
    }
    if (l->edit != NULL) {
        el_end(l->edit);
    }
    if (l->history != NULL) {
        history_end(l->history);
    }
    if (l->out != NULL) {
        fclose(l->out);
    }
    free(l->line);
    free(l);
}

enum gr_status gr_lines_next(struct gr_lines *l, const char **line_out, size_t *len_out)
{
    return l->edit != NULL ? next_of_terminal(l, line_out, len_out) : next_of_file(l, line_out, len_out);
}
