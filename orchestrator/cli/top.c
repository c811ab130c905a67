/* `graft top`: workers and sessions of a running orchestrator, looked at twice so that speeds are known. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/remote.h"
#include "orchestrator/cli/report.h"
#include "orchestrator/cli/top_look.h"
#include "orchestrator/cli/top_screen.h"
#include "orchestrator/cli/yaml_config.h"

#include <unistd.h>

/* A PONG that comes now was asked for by the look before, and is late. */
static enum gr_status wait_interval(struct gr_remote *r, uint64_t end_ns)
{
    for (uint64_t now_ns = gr_clock_ns(); now_ns < end_ns; now_ns = gr_clock_ns()) {
        struct gr_msg m;
        const enum gr_status st = gr_remote_recv(r, (int)((end_ns - now_ns + GR_MS - 1) / GR_MS), &m);
        if (st == GR_OK) {
            gr_msg_finish(&m);
        } else if (st != GR_AGAIN) {
            return st;
        }
    }
    return GR_OK;
}

static enum gr_status print_text(const struct gr_top_snapshot *s, const struct gr_options *o)
{
    const struct gr_top_settings settings = {.pattern = o->filter, .sort = (enum gr_top_sort)o->top_sort};
    struct gr_top_view v = {0};
    const enum gr_status st = gr_top_view_make(s, &settings, &v);
    for (int i = 0; st == GR_OK && i < v.n; i++) {
        printf("%s%s\n", i > 0 && v.line[i].kind == GR_TOP_HEADING ? "\n" : "", v.line[i].text);
    }
    gr_top_view_finish(&v);
    return st;
}

static enum gr_status look_twice(struct gr_remote *r, const struct gr_options *o, struct gr_top_look *first,
                                 struct gr_top_look *second)
{
    GR_TRY(gr_top_look_list(r, first));
    GR_TRY(wait_interval(r, first->at_ns + (uint64_t)o->interval));
    return gr_top_look_take(r, second);
}

static int once(struct gr_remote *r, const struct gr_options *o)
{
    struct gr_top_look first = {0};
    struct gr_top_look second = {0};
    int status = gr_remote_status(r, look_twice(r, o, &first, &second));
    const struct gr_top_snapshot s = gr_top_look_compare(&second, &first);
    if (status == 0 && o->json) {
        status = gr_listing_dump(gr_top_json(&s));
    } else if (status == 0) {
        status = gr_remote_status(r, print_text(&s, o));
    }
    gr_top_look_finish(&first);
    gr_top_look_finish(&second);
    return status;
}

/* What --once would do without a terminal must be asked for: nobody gets another thing than he thinks. */
static int refuse(const struct gr_options *o)
{
    if (!o->once && o->json) {
        log_error("graft top: --json is for --once");
    } else if (!o->once && !gr_top_screen_built()) {
        log_error("graft top: this program was built without ncurses (libncurses-dev), so only --once works");
    } else if (!o->once && (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))) {
        log_error("graft top needs a terminal; without one --once prints one look (--json: as JSON)");
    } else {
        return 0;
    }
    return 2;
}

static int run(const struct gr_options *o)
{
    struct gr_remote r;
    const int refused = refuse(o);
    if (refused != 0) {
        return refused;
    }
    const enum gr_status st = gr_remote_open(o, (struct gr_remote_patience){0}, &r);
    if (st != GR_OK) {
        return gr_program_refused(st);
    }
    const int status = o->once ? once(&r, o) : gr_remote_status(&r, gr_top_screen_run(&r, o));
    gr_remote_close(&r);
    return status;
}

int gr_command_top(int argc, char **argv)
{
    struct gr_options o;
    struct gr_yaml_config *yaml = NULL;
    gr_options_default(&o, GR_CMD_TOP);
    int status = gr_options_load(&o, argc, argv, &yaml);
    if (status < 0) {
        status = run(&o);
        (void)gr_report_failure(&o, status);
    }
    gr_yaml_config_destroy(yaml);
    return status;
}
