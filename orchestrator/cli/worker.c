/* `graft worker ...`: looks at the workers of a running orchestrator, empties one, and fills it again. */
#include "common/base/log.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/listing.h"
#include "orchestrator/cli/verbs.h"

static int list(struct gr_remote *r, const struct gr_options *o)
{
    struct gr_listing l = {0};
    int status = gr_remote_status(r, gr_listing_read(r, GR_LISTING_MS, &l));
    if (status == 0) {
        status = gr_listing_print_workers(&l, o->json);
    }
    gr_listing_finish(&l);
    return status;
}

static void tell(const struct gr_msg_drain_worker *m)
{
    if (m->undo != 0) {
        printf("worker %u takes sessions again\n", m->worker);
    } else if (m->n_session == 0) {
        printf("worker %u takes no sessions any more, and no turn runs with it\n", m->worker);
    } else {
        printf("worker %u takes no sessions any more; %u turn%s with it, and end%s there\n", m->worker, m->n_session,
               m->n_session == 1 ? " still runs" : "s still run", m->n_session == 1 ? "s" : "");
    }
}

static int ask_drain(struct gr_remote *r, const struct gr_options *o, bool undo)
{
    struct gr_msg reply;
    const struct gr_msg m = {.type = GR_MSG_DRAIN_WORKER,
                             .drain_worker = {.worker = (uint32_t)o->worker_number, .undo = undo}};
    const int status = gr_remote_status(r, gr_remote_ask(r, &m, GR_MSG_DRAIN_WORKER, &reply));
    if (status != 0) {
        return status;
    }
    if (o->json) {
        return gr_listing_dump(json_pack("{s:I, s:b, s:I}", "worker", (json_int_t)reply.drain_worker.worker, "draining",
                                         reply.drain_worker.undo == 0, "in_turn",
                                         (json_int_t)reply.drain_worker.n_session));
    }
    tell(&reply.drain_worker);
    return 0;
}

static int drain(struct gr_remote *r, const struct gr_options *o)
{
    return ask_drain(r, o, false);
}

static int undrain(struct gr_remote *r, const struct gr_options *o)
{
    return ask_drain(r, o, true);
}

static const struct gr_verb verbs[] = {
    {"list", "worker list", GR_CMD_LOOK, list, NULL},
    {"drain", "worker drain", GR_CMD_DRAIN, drain, NULL},
    {"undrain", "worker undrain", GR_CMD_DRAIN, undrain, NULL},
};

int gr_command_worker(int argc, char **argv)
{
    static const struct gr_verbs worker = {.command = "worker",
                                           .help = GR_CMD_LOOK,
                                           .text = "list, drain N or undrain N",
                                           .verb = verbs,
                                           .n = GR_ARRAY_LEN(verbs)};
    return gr_verbs_run(&worker, argc, argv);
}
