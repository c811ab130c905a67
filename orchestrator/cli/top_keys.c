/* What keys do in `graft top`. */
#include "orchestrator/cli/top_keys.h"

#include "common/base/session_id.h"

#include <inttypes.h>
#include <string.h>

#define ENTER '\r'
#define ESCAPE 27
#define BACKSPACE 127
#define CTRL_C 3
#define PAGE 10 /* rows */

static const char *const sort_names[] = {"speed", "tokens", "acceptance", "idle", "target"};

const char *const gr_top_help[] = {
    "up, down, j, k    move to the row above or below; page up and page down move ten rows",
    "s                 sort sessions by the next key: speed, tokens, acceptance, idle, target",
    "/                 type a text: rows without it are hidden; Enter keeps it, Escape shows all",
    "p, space          pause, and go on",
    "d, u              drain the worker of the row; let it take sessions again (asks first)",
    "c                 close the session of the row (asks first)",
    "h, ?              this page, and back",
    "q, ctrl-C         end",
    NULL,
};

static bool is_row(const struct gr_top_line *line)
{
    return line->kind == GR_TOP_WORKER || line->kind == GR_TOP_SESSION;
}

int gr_top_chosen_line(const struct gr_top_ui *ui, const struct gr_top_view *v)
{
    for (int i = 0; i < v->n; i++) {
        if (is_row(&v->line[i]) && v->line[i].kind == ui->chosen_kind && v->line[i].subject == ui->chosen) {
            return i;
        }
    }
    return -1;
}

static void choose(struct gr_top_ui *ui, const struct gr_top_line *line)
{
    ui->chosen_kind = line->kind;
    ui->chosen = line->subject;
}

/* Over n rows; from no row at all the first step leads to the first one. */
static void move(struct gr_top_ui *ui, const struct gr_top_view *v, int step, int n)
{
    const int from = gr_top_chosen_line(ui, v);
    if (from < 0) {
        step = 1;
        n = 1;
    }
    for (int i = from + step; i >= 0 && i < v->n && n > 0; i += step) {
        if (is_row(&v->line[i])) {
            choose(ui, &v->line[i]);
            n--;
        }
    }
}

static void ask(struct gr_top_ui *ui, const struct gr_top_view *v, enum gr_top_act act)
{
    const enum gr_top_kind wanted = act == GR_TOP_CLOSE ? GR_TOP_SESSION : GR_TOP_WORKER;
    if (gr_top_chosen_line(ui, v) < 0 || ui->chosen_kind != wanted) {
        snprintf(ui->note, sizeof(ui->note), "move to a %s first (up, down)",
                 wanted == GR_TOP_SESSION ? "session" : "worker");
        return;
    }
    ui->asked = act;
    ui->asked_subject = ui->chosen;
}

static enum gr_top_act answer(struct gr_top_ui *ui, int key)
{
    const enum gr_top_act act = ui->asked;
    ui->asked = GR_TOP_NOTHING;
    return key == 'y' || key == 'Y' ? act : GR_TOP_NOTHING;
}

static void type(struct gr_top_ui *ui, int key)
{
    const size_t len = strlen(ui->pattern);
    if (key == ENTER || key == '\n') {
        ui->typing = false;
    } else if (key == ESCAPE) {
        ui->typing = false;
        ui->pattern[0] = '\0';
    } else if ((key == BACKSPACE || key == '\b') && len > 0) {
        ui->pattern[len - 1] = '\0';
    } else if (key >= 0x20 && key < 0x7f && len + 1 < sizeof(ui->pattern)) {
        ui->pattern[len] = (char)key;
        ui->pattern[len + 1] = '\0';
    }
}

static enum gr_top_act command(struct gr_top_ui *ui, const struct gr_top_view *v, int key)
{
    switch (key) {
    case 'q':
        return GR_TOP_QUIT;
    case GR_TOP_KEY_UP:
    case 'k':
        move(ui, v, -1, 1);
        break;
    case GR_TOP_KEY_DOWN:
    case 'j':
        move(ui, v, 1, 1);
        break;
    case GR_TOP_KEY_PAGE_UP:
        move(ui, v, -1, PAGE);
        break;
    case GR_TOP_KEY_PAGE_DOWN:
        move(ui, v, 1, PAGE);
        break;
    case 's':
        ui->sort = (enum gr_top_sort)(((int)ui->sort + 1) % (int)GR_ARRAY_LEN(sort_names));
        break;
    case '/':
        ui->typing = true;
        break;
    case ESCAPE:
        ui->pattern[0] = '\0';
        break;
    case 'p':
    case ' ':
        ui->paused = !ui->paused;
        break;
    case 'h':
    case '?':
        ui->help = !ui->help;
        break;
    case 'd':
        ask(ui, v, GR_TOP_DRAIN);
        break;
    case 'u':
        ask(ui, v, GR_TOP_UNDRAIN);
        break;
    case 'c':
        ask(ui, v, GR_TOP_CLOSE);
        break;
    default:
        break;
    }
    return GR_TOP_NOTHING;
}

enum gr_top_act gr_top_key(struct gr_top_ui *ui, const struct gr_top_view *v, int key)
{
    ui->note[0] = '\0';
    if (key == CTRL_C) {
        return GR_TOP_QUIT;
    }
    if (ui->asked != GR_TOP_NOTHING) {
        return answer(ui, key);
    }
    if (ui->typing) {
        type(ui, key);
        return GR_TOP_NOTHING;
    }
    return command(ui, v, key);
}

void gr_top_foot(const struct gr_top_ui *ui, char *out, size_t cap)
{
    if (ui->asked == GR_TOP_CLOSE) {
        snprintf(out, cap, "close session %" GR_SESSION_ID_PRI "? y: yes, other keys: no", ui->asked_subject);
    } else if (ui->asked != GR_TOP_NOTHING) {
        snprintf(out, cap, "%s worker %" PRIu64 "? y: yes, other keys: no",
                 ui->asked == GR_TOP_DRAIN ? "drain" : "undrain", ui->asked_subject);
    } else if (ui->typing) {
        snprintf(out, cap, "show rows with: %s_", ui->pattern);
    } else if (ui->note[0] != '\0') {
        snprintf(out, cap, "%s", ui->note);
    } else {
        snprintf(out, cap, "h: help, q: end; by %s%s%s%s", sort_names[ui->sort], ui->paused ? "; paused" : "",
                 ui->pattern[0] != '\0' ? "; rows with " : "", ui->pattern);
    }
}
