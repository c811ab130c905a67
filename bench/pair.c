#include "bench/pair.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdio.h>
#include <string.h>

#define PUMP_MS 1000
#define STOP_MS 10000

static enum gr_status start_worker(struct gr_pair *p, const struct gr_pair_config *c, bool is_target)
{
    char numbers[3][16];
    const char *argv[GR_CHILD_ARG_MAX] = {is_target ? c->target_program : c->draft_program,
                            "--model", is_target ? c->target : c->draft,
                            "--join", gr_hub_address(p->hub), "--sessions", numbers[0], "--max-model-len", numbers[1]};
    int n = 9;
    snprintf(numbers[0], sizeof(numbers[0]), "%d", c->n_session);
    snprintf(numbers[1], sizeof(numbers[1]), "%d", c->n_ctx_max);
    snprintf(numbers[2], sizeof(numbers[2]), "%d", c->n_block);
    if (c->transport[0] != '\0') {
        argv[n++] = "--transport";
        argv[n++] = c->transport;
    }
    if (is_target && c->n_block > 0) {
        argv[n++] = "--kv-blocks";
        argv[n++] = numbers[2];
    }
    if (is_target && c->prefill_share != NULL) {
        argv[n++] = "--prefill-share";
        argv[n++] = c->prefill_share;
    }
    if (c->draft_is_head) {
        argv[n++] = is_target ? "--head" : "--target";
        argv[n++] = is_target ? c->draft : c->target;
    }
    for (int i = 0; is_target && c->target_options != NULL && c->target_options[i] != NULL; i++) {
        argv[n++] = c->target_options[i];
    }
    return gr_children_start(&p->children, is_target ? "target" : "draft", argv, is_target ? &p->target : &p->draft);
}

int gr_pair_worker(const struct gr_pair *p, enum gr_worker_role role)
{
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        uint64_t rtt_ns = 0;
        uint32_t n_session = 0;
        const struct gr_worker_info *info = gr_orch_worker(gr_hub_orch(p->hub), i, &rtt_ns, &n_session);
        if (info != NULL && info->role == role) {
            return (int)i;
        }
    }
    return -1;
}

enum gr_status gr_pair_start(struct gr_pair *p, const struct gr_pair_config *c)
{
    char key_hex[2 * GR_KEY_BYTES + 1];
    struct gr_hub_config hub = {.listen = "127.0.0.1:0", .io = c->io};
    *p = (struct gr_pair){.target = -1, .draft = -1};
    GR_TRY(gr_key_random(hub.key, key_hex));
    GR_TRY(gr_hub_create(&hub, &p->hub));
    GR_TRY(gr_children_init(&p->children, key_hex));
    GR_TRY(start_worker(p, c, true));
    if (c->draft != NULL) {
        GR_TRY(start_worker(p, c, false));
    }
    while (gr_pair_worker(p, GR_WORKER_TARGET) < 0 || (c->draft != NULL && gr_pair_worker(p, GR_WORKER_DRAFT) < 0)) {
        GR_TRY(gr_pair_pump(p));
    }
    return GR_OK;
}

enum gr_status gr_pair_pump(struct gr_pair *p)
{
    bool interrupted = false;
    int index = 0;
    gr_hub_pump(p->hub, PUMP_MS, p->children.signal_fd);
    const enum gr_child_event e = gr_children_poll(&p->children, &interrupted, &index);
    if (e == GR_CHILD_NONE && !interrupted) {
        return GR_OK;
    }
    log_error("%s", interrupted ? "interrupted" : "a worker ended before its sessions did");
    return GR_ECLOSED;
}

void gr_pair_stop(struct gr_pair *p)
{
    if (p->hub == NULL) {
        return;
    }
    gr_hub_drain(p->hub);
    if (p->children.n > 0) {
        gr_children_finish(&p->children, STOP_MS);
    }
    gr_hub_destroy(p->hub);
    p->hub = NULL;
}
