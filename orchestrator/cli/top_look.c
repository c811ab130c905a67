/* One look of `graft top` at a running orchestrator. */
#include "orchestrator/cli/top_look.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <stdlib.h>

#define PONG_MS 2000 /* how long workers may take to tell of themselves; one that is late shows dashes */

/* Puts a worker's answer at its place; what belongs to nobody of the list is dropped. True: it was the first of one. */
static bool take_pong(struct gr_top_look *l, const struct gr_msg_pong *pong)
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
static enum gr_status ask_workers(struct gr_remote *r, struct gr_top_look *l)
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

enum gr_status gr_top_look_list(struct gr_remote *r, struct gr_top_look *l)
{
    free(l->pong);
    l->pong = NULL;
    l->at_ns = 0;
    GR_TRY(gr_listing_read(r, GR_LISTING_MS, &l->list));
    l->at_ns = gr_clock_ns();
    return GR_OK;
}

enum gr_status gr_top_look_take(struct gr_remote *r, struct gr_top_look *l)
{
    GR_TRY(gr_top_look_list(r, l));
    l->pong = calloc((size_t)GR_MAX(l->list.n_worker, 1), sizeof(*l->pong));
    if (l->pong == NULL) {
        log_error("out of memory for the answers of %d workers", l->list.n_worker);
        return GR_ENOMEM;
    }
    return ask_workers(r, l);
}

void gr_top_look_finish(struct gr_top_look *l)
{
    gr_listing_finish(&l->list);
    free(l->pong);
    *l = (struct gr_top_look){0};
}

struct gr_top_snapshot gr_top_look_compare(const struct gr_top_look *now, const struct gr_top_look *before)
{
    return (struct gr_top_snapshot){.now = &now->list,
                                    .before = before->at_ns > 0 ? &before->list : NULL,
                                    .pong = now->pong,
                                    .between_ns = now->at_ns - before->at_ns};
}
