#include "model/load/progress.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "model/load/needs.h"

#include <stdio.h>
#include <unistd.h>

#define DRAW_NS (200 * GR_MS) /* between two drawings of the bar */

void gr_load_progress_begin(struct gr_load_progress *p, const char *what, uint64_t all)
{
    *p = (struct gr_load_progress){
        .what = what, .all = all, .shown = all >= GR_LOAD_LARGE, .bar = isatty(STDERR_FILENO) == 1};
}

static void draw(struct gr_load_progress *p)
{
    const uint64_t now = gr_clock_ns();
    if (now - p->drawn_ns < DRAW_NS) {
        return;
    }
    p->drawn_ns = now;
    const int percent = (int)(GR_MIN(p->bytes, p->all) * 100 / p->all);
    fprintf(stderr, "\rloading weights [%-25.*s] %3d %%", percent / 4, "#########################", percent);
}

void gr_load_progress_add(struct gr_load_progress *p, uint64_t bytes)
{
    p->bytes += bytes;
    if (!p->shown || !gr_log_enabled(GR_LOG_WARN)) {
        return;
    }
    if (p->bar) {
        draw(p);
        return;
    }
    const int quarter = (int)(GR_MIN(p->bytes, p->all) * 4 / p->all);
    if (quarter > p->n_quarter && quarter < 4) { /* what follows tells the end */
        p->n_quarter = quarter;
        gr_log_notice("loading %s: %d %%", p->what, 25 * quarter);
    }
}

void gr_load_progress_end(struct gr_load_progress *p)
{
    if (p->drawn_ns != 0) {
        fputs("\r\033[K", stderr);
        p->drawn_ns = 0;
    }
}
