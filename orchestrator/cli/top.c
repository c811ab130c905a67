/* `graft top`: workers and sessions of a running orchestrator, looked at twice so that speeds are known. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/remote.h"
#include "orchestrator/cli/report.h"
#include "orchestrator/cli/top_view.h"
#include "orchestrator/cli/yaml_config.h"

#include <stdlib.h>

#define PONG_MS 2000 /* how long workers may take to tell of themselves; one that is late shows dashes */

struct look {
    struct gr_listing list;
    struct gr_msg_pong *pong; /* owned, [list.n_worker] */
    uint64_t at_ns;
};

static void finish_look(struct look *l)
{
    gr_listing_finish(&l->list);
    free(l->pong);
    l->pong = NULL;
}

/* Puts a worker's answer at its place; what belongs to nobody of the list is dropped. True: it was the first of one. */
static bool take_pong(struct look *l, const struct gr_msg_pong *pong)
{
    for (int i = 0; i < l->list.n_worker; i++) {
        if (l->list.worker[i].worker == pong->worker && l->pong[i].worker == 0) {
            l->pong[i] = *pong;
            return true;
        }
    }
    return false;
}

/* All are asked before the first is waited for, so that one slow worker costs the others nothing. A worker that has
 * left since is answered by ERROR, and counts as having answered. */
static enum gr_status ask_workers(struct gr_remote *r, struct look *l)
{
    for (int i = 0; i < l->list.n_worker; i++) {
        GR_TRY(gr_remote_send(r, &(struct gr_msg){.type = GR_MSG_PING, .ping = {.worker = l->list.worker[i].worker}}));
    }
    const uint64_t end_ns = gr_clock_ns() + PONG_MS * (uint64_t)GR_MS;
    for (int n_left = l->list.n_worker; n_left > 0;) {
        struct gr_msg m;
        const uint64_t now_ns = gr_clock_ns();
        const enum gr_status st = gr_remote_recv(r, now_ns < end_ns ? (int)((end_ns - now_ns) / GR_MS) : 0, &m);
        if (st == GR_AGAIN) {
            return GR_OK;
        }
        GR_TRY(st);
        n_left -= m.type == GR_MSG_ERROR || (m.type == GR_MSG_PONG && take_pong(l, &m.pong));
        gr_msg_finish(&m);
    }
    return GR_OK;
}

static enum gr_status look(struct gr_remote *r, struct look *l)
{
    GR_TRY(gr_listing_read(r, &l->list));
    l->at_ns = gr_clock_ns();
    free(l->pong);
    l->pong = calloc((size_t)GR_MAX(l->list.n_worker, 1), sizeof(*l->pong));
    if (l->pong == NULL) {
        log_error("out of memory for the answers of %d workers", l->list.n_worker);
        return GR_ENOMEM;
    }
    return ask_workers(r, l);
}

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

static enum gr_status look_twice(struct gr_remote *r, const struct gr_options *o, struct look *first,
                                 struct look *second)
{
    GR_TRY(gr_listing_read(r, &first->list));
    first->at_ns = gr_clock_ns();
    GR_TRY(wait_interval(r, first->at_ns + (uint64_t)o->interval));
    return look(r, second);
}

static int once(struct gr_remote *r, const struct gr_options *o)
{
    struct look first = {0};
    struct look second = {0};
    int status = gr_remote_status(r, look_twice(r, o, &first, &second));
    const struct gr_top_snapshot s = {
        .now = &second.list, .before = &first.list, .pong = second.pong, .between_ns = second.at_ns - first.at_ns};
    if (status == 0 && o->json) {
        status = gr_listing_dump(gr_top_json(&s));
    } else if (status == 0) {
        status = gr_remote_status(r, print_text(&s, o));
    }
    finish_look(&first);
    finish_look(&second);
    return status;
}

static int run(const struct gr_options *o)
{
    struct gr_remote r;
    if (!o->once) {
        log_error("graft top has no screen of its own in this version: --once prints one look (--json: as JSON)");
        return 2;
    }
    const enum gr_status st = gr_remote_open(o, 0, &r);
    if (st != GR_OK) {
        return gr_program_refused(st);
    }
    const int status = once(&r, o);
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
