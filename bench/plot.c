#include "bench/plot.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BELOW_MAX 8          /* lines whose names have room below the picture; more stand beside it */
#define LINE_PIXELS 20       /* the height of a name */
#define STATUS_NOT_THERE 127 /* a shell's exit status where there is no such program */

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text);
    return n > strlen(end) && strcmp(text + n - strlen(end), end) == 0;
}

/* gnuplot with these arguments, its standard input from `in` (-1: none), quiet or with its errors. */
static pid_t start(char *const *argv, int in, bool quiet)
{
    const pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    const int null = open("/dev/null", O_RDWR);
    dup2(in >= 0 ? in : null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    if (quiet) {
        dup2(null, STDERR_FILENO);
    }
    sigset_t none; /* whoever watches children has signals blocked */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(argv[0], argv);
    _exit(STATUS_NOT_THERE);
}

static int wait_for(pid_t pid)
{
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool gr_plot_is_there(void)
{
    char *const version[] = {(char[]){"gnuplot"}, (char[]){"--version"}, NULL};
    return wait_for(start(version, -1, true)) == 0;
}

enum gr_status gr_plot_check(const char *what, const char *path)
{
    if (!ends_with(path, ".png") && !ends_with(path, ".svg")) {
        log_error("%s %s: a name that ends in .png or .svg is wanted", what, path);
        return GR_EINVAL;
    }
    if (strpbrk(path, "'\n") != NULL) {
        log_error("%s: quotes and line ends in the file's name cannot be told to gnuplot", what);
        return GR_EINVAL;
    }
    if (!gr_plot_is_there()) {
        log_error("%s: the program gnuplot is not installed (Debian, Ubuntu: apt-get install gnuplot-nox)", what);
        return GR_ENOTFOUND;
    }
    return GR_OK;
}

/* The fifth colour of gnuplot's own is a yellow that a projector does not show. Room is left at the sides, as a point
 * on the frame is half a point. */
static void write_script(FILE *f, const struct gr_plot_config *c, const char *to)
{
    const bool beside = c->n_series > BELOW_MAX;
    fprintf(f, "set terminal %s size %d,%d background 'white'\nset output '%s'\n",
            ends_with(c->path, ".png") ? "png" : "svg", beside ? 1250 : 900,
            GR_MAX(600, beside ? 60 + LINE_PIXELS * c->n_series : 0), to);
    fprintf(f, "set title '%s' noenhanced\nset xlabel '%s' noenhanced\nset ylabel '%s' noenhanced\nset grid\n",
            c->title, c->x_label, c->y_label);
    fprintf(f, "set key %s height 1 noenhanced\nset linetype 5 linecolor rgb '#8c564b'\n",
            beside ? "outside right" : "below");
    fprintf(f, "set yrange [0:*]\nset offsets graph 0.03, graph 0.03, graph 0.03, 0\n%s",
            c->log_x ? "set logscale x 2\n" : "");
    for (int i = 0; i < c->n_series; i++) {
        fprintf(f, "%s'-' using 1:2 with linespoints linewidth 2 pointsize 1.3 title '%s'", i == 0 ? "plot " : ", ",
                c->series[i]);
    }
    fputc('\n', f);
}

enum gr_status gr_plot_begin(const struct gr_plot_config *c, struct gr_plot *out)
{
    char *const argv[] = {(char[]){"gnuplot"}, NULL};
    int fds[2];
    GR_TRY(gr_out_file_open("--plot", c->path, 0666, false, &out->file));
    if (pipe2(fds, O_CLOEXEC) != 0) {
        log_error("pipe: %s", strerror(errno));
        gr_out_file_drop(&out->file);
        return GR_EIO;
    }
    out->pid = start(argv, fds[0], false);
    close(fds[0]);
    out->to = out->pid > 0 ? fdopen(fds[1], "w") : NULL;
    if (out->to == NULL) {
        log_error("cannot start gnuplot: %s", strerror(errno));
        close(fds[1]);
        gr_out_file_drop(&out->file);
        return GR_EIO;
    }
    signal(SIGPIPE, SIG_IGN); /* it may end early; its exit status tells */
    write_script(out->to, c, gr_out_file_name(&out->file));
    return GR_OK;
}

enum gr_status gr_plot_end(struct gr_plot *p)
{
    fclose(p->to);
    const int status = wait_for(p->pid);
    if (status != 0) {
        log_error("gnuplot ended with status %d: there is no plot", status);
        gr_out_file_drop(&p->file);
        return GR_EIO;
    }
    struct stat st;
    if (stat(gr_out_file_name(&p->file), &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0) {
        log_error("gnuplot has written nothing: there is no plot");
        gr_out_file_drop(&p->file);
        return GR_EIO;
    }
    return gr_out_file_close(&p->file, true, NULL);
}
