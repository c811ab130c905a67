/* `graft top` on a terminal of its own, by ncurses. */
#include "orchestrator/cli/top_screen.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "orchestrator/cli/top_keys.h"
#include "orchestrator/cli/top_look.h"

#include <curses.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 5000 /* of an act */

struct screen {
    struct gr_remote *r;
    uint64_t interval_ns;
    struct gr_top_look look[2]; /* the newest is look[i_now] */
    int i_now;
    struct gr_top_view view;
    struct gr_top_ui ui;
    uint64_t next_ns; /* when it looks again */
};

bool gr_top_screen_built(void)
{
    return true;
}

/* ---- showing ---- */

static enum gr_status make_view(struct screen *s)
{
    const struct gr_top_snapshot snapshot = gr_top_look_compare(&s->look[s->i_now], &s->look[1 - s->i_now]);
    const struct gr_top_settings settings = {.pattern = s->ui.pattern, .sort = s->ui.sort, .width = COLS};
    return gr_top_view_make(&snapshot, &settings, &s->view);
}

static void draw_line(int y, const char *text, attr_t how)
{
    attrset(how);
    mvaddnstr(y, 0, text, COLS);
    attrset(A_NORMAL);
}

static void draw_help(int n_row)
{
    for (int i = 0; i < n_row && gr_top_help[i] != NULL; i++) {
        draw_line(i, gr_top_help[i], A_NORMAL);
    }
}

/* The cursor's row is kept in sight. */
static void draw_view(const struct screen *s, int n_row)
{
    const int chosen = gr_top_chosen_line(&s->ui, &s->view);
    const int first = GR_MAX(0, chosen - n_row + 1);
    for (int y = 0; y < n_row && first + y < s->view.n; y++) {
        const struct gr_top_line *line = &s->view.line[first + y];
        const attr_t how = first + y == chosen ? A_REVERSE : line->kind == GR_TOP_HEADING ? A_BOLD : A_NORMAL;
        draw_line(y, line->text, how);
    }
}

static void draw(const struct screen *s)
{
    char foot[256];
    erase();
    if (s->ui.help) {
        draw_help(LINES - 1);
    } else {
        draw_view(s, LINES - 1);
    }
    gr_top_foot(&s->ui, foot, sizeof(foot));
    draw_line(LINES - 1, foot, A_BOLD);
    refresh();
}

/* ---- acting ---- */

static struct gr_msg act_msg(enum gr_top_act act, uint64_t subject)
{
    if (act == GR_TOP_CLOSE) {
        return (struct gr_msg){.type = GR_MSG_CLOSE, .session = subject};
    }
    return (struct gr_msg){.type = GR_MSG_DRAIN_WORKER,
                           .drain_worker = {.worker = (uint32_t)subject, .undo = act == GR_TOP_UNDRAIN}};
}

/* Late PONGs of the look before are passed over; a refusal becomes the note. */
static enum gr_status await_act(struct screen *s, enum gr_msg_type want)
{
    const uint64_t end_ns = gr_clock_ns() + ANSWER_MS * (uint64_t)GR_MS;
    for (uint64_t now_ns = gr_clock_ns(); now_ns < end_ns; now_ns = gr_clock_ns()) {
        struct gr_msg m;
        const enum gr_status st = gr_remote_recv(s->r, (int)((end_ns - now_ns) / GR_MS) + 1, &m);
        if (st == GR_AGAIN) {
            break;
        }
        GR_TRY(st);
        if (m.type == GR_MSG_ERROR) {
            (void)gr_utf8_show(m.error.text, strlen(m.error.text), s->ui.note, sizeof(s->ui.note));
        }
        const bool done = m.type == want || m.type == GR_MSG_ERROR;
        gr_msg_finish(&m);
        if (done) {
            return GR_OK;
        }
    }
    snprintf(s->ui.note, sizeof(s->ui.note), "no answer within %d s", ANSWER_MS / 1000);
    return GR_OK;
}

static enum gr_status do_act(struct screen *s, enum gr_top_act act)
{
    const struct gr_msg m = act_msg(act, s->ui.asked_subject);
    snprintf(s->ui.note, sizeof(s->ui.note), "done");
    s->next_ns = 0; /* what it did is seen at once */
    GR_TRY(gr_remote_send(s->r, &m));
    return await_act(s, act == GR_TOP_CLOSE ? GR_MSG_CLOSED : GR_MSG_DRAIN_WORKER);
}

/* ---- the loop ---- */

static enum gr_status look(struct screen *s)
{
    s->i_now = 1 - s->i_now;
    GR_TRY(gr_top_look_take(s->r, &s->look[s->i_now]));
    s->next_ns = gr_clock_ns() + s->interval_ns;
    return GR_OK;
}

static int plain_key(int key)
{
    switch (key) {
    case KEY_UP:
        return GR_TOP_KEY_UP;
    case KEY_DOWN:
        return GR_TOP_KEY_DOWN;
    case KEY_PPAGE:
        return GR_TOP_KEY_PAGE_UP;
    case KEY_NPAGE:
        return GR_TOP_KEY_PAGE_DOWN;
    case KEY_BACKSPACE:
        return '\b';
    case KEY_ENTER:
        return '\n';
    default:
        return key < 256 ? key : 0;
    }
}

/* Every key that has been pressed. */
static enum gr_status take_keys(struct screen *s, bool *quit_out)
{
    for (int key = getch(); key != ERR; key = getch()) {
        const enum gr_top_act act = gr_top_key(&s->ui, &s->view, plain_key(key));
        if (act == GR_TOP_QUIT) {
            *quit_out = true;
            return GR_OK;
        }
        if (act != GR_TOP_NOTHING) {
            GR_TRY(do_act(s, act));
        }
    }
    return GR_OK;
}

/* Until a key, a signal or the time of the next look. GR_ECLOSED: the terminal is gone. A signal is told by the next
 * receipt. */
static enum gr_status wait(const struct screen *s)
{
    const uint64_t now_ns = gr_clock_ns();
    const int left_ms = now_ns < s->next_ns ? (int)((s->next_ns - now_ns) / GR_MS) + 1 : 0;
    struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = s->r->signal_fd, .events = POLLIN}};
    (void)poll(fds, 2, s->ui.paused ? -1 : left_ms);
    if ((fds[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
        return GR_ECLOSED;
    }
    if ((fds[1].revents & POLLIN) != 0) {
        struct gr_msg m;
        const enum gr_status st = gr_remote_recv(s->r, 0, &m);
        if (st == GR_OK) {
            gr_msg_finish(&m);
        }
        return st == GR_AGAIN ? GR_OK : st;
    }
    return GR_OK;
}

static enum gr_status loop(struct screen *s)
{
    bool quit = false;
    while (!quit) {
        if (!s->ui.paused && gr_clock_ns() >= s->next_ns) {
            GR_TRY(look(s));
        }
        GR_TRY(make_view(s));
        draw(s);
        GR_TRY(wait(s));
        GR_TRY(take_keys(s, &quit));
    }
    return GR_OK;
}

/* ncurses writes to the stream's file descriptor, which the program's stdout does not have. */
static bool open_terminal(FILE *out)
{
    if (out == NULL || newterm(NULL, out, stdin) == NULL) {
        return false;
    }
    raw();
    noecho();
    nonl();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    set_escdelay(50);
    (void)curs_set(0);
    return true;
}

/* Lines of the log would tear the screen: the first is kept, and said when the terminal is as it was. */
enum gr_status gr_top_screen_run(struct gr_remote *r, const struct gr_options *o)
{
    struct screen s = {.r = r, .interval_ns = (uint64_t)o->interval, .ui = {.sort = (enum gr_top_sort)o->top_sort}};
    char held[512] = "";
    FILE *out = fdopen(dup(STDOUT_FILENO), "w");
    if (!open_terminal(out)) {
        if (out != NULL) {
            (void)fclose(out);
        }
        log_error("graft top: ncurses does not know the terminal that TERM names; --once prints one look");
        return GR_EINVAL;
    }
    snprintf(s.ui.pattern, sizeof(s.ui.pattern), "%s", o->filter != NULL ? o->filter : "");
    gr_log_hold(held, sizeof(held));
    const enum gr_status st = loop(&s);
    endwin();
    (void)fclose(out);
    gr_log_hold(NULL, 0);
    if (held[0] != '\0') {
        log_error("%s", held);
    }
    gr_top_look_finish(&s.look[0]);
    gr_top_look_finish(&s.look[1]);
    gr_top_view_finish(&s.view);
    return st;
}
