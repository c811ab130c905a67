/* `graft session ...`: looks at the sessions of a running orchestrator, goes on with them, and ends them. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/connect.h"
#include "orchestrator/cli/listing.h"
#include "orchestrator/cli/session_text.h"
#include "orchestrator/cli/verbs.h"

#include <inttypes.h>

static int list(struct gr_remote *r, const struct gr_options *o)
{
    struct gr_listing l = {0};
    int status = gr_remote_status(r, gr_listing_read(r, GR_LISTING_MS, &l));
    if (status == 0) {
        status = gr_listing_print(&l, o->json);
    }
    gr_listing_finish(&l);
    return status;
}

static int show_one(const struct gr_listing *l, uint64_t id, bool json)
{
    for (int i = 0; i < l->n_session; i++) {
        if (l->session[i].id == id) {
            return gr_listing_print_session(&l->session[i], json);
        }
    }
    log_error("no session %" GR_SESSION_ID_PRI
              " is open there; `graft session list' tells which are, and --text shows the last answer of one that has "
              "ended, where a journal has kept it",
              id);
    return 1;
}

static int show(struct gr_remote *r, const struct gr_options *o)
{
    struct gr_listing l = {0};
    if (o->text) {
        return gr_session_text(r, o);
    }
    int status = gr_remote_status(r, gr_listing_read(r, GR_LISTING_MS, &l));
    if (status == 0) {
        status = show_one(&l, o->session, o->json);
    }
    gr_listing_finish(&l);
    return status;
}

static int close_one(struct gr_remote *r, const struct gr_options *o)
{
    struct gr_msg reply;
    const struct gr_msg m = {.type = GR_MSG_CLOSE, .session = o->session};
    return gr_remote_status(r, gr_remote_ask(r, &m, GR_MSG_CLOSED, &reply));
}

static int refresh(struct gr_remote *r, const struct gr_options *o)
{
    struct gr_msg reply;
    const struct gr_msg m = {.type = GR_MSG_REFRESH, .session = o->session};
    const int status = gr_remote_status(r, gr_remote_ask(r, &m, GR_MSG_REFRESHED, &reply));
    if (status != 0) {
        return status;
    }
    if (o->json) {
        return gr_listing_dump(json_pack("{s:I}", "refreshed", (json_int_t)reply.refreshed.n_session));
    }
    printf("a refresh was asked for in %u running session%s\n", reply.refreshed.n_session,
           reply.refreshed.n_session == 1 ? "" : "s");
    return 0;
}

static int purge(struct gr_remote *r, const struct gr_options *o)
{
    struct gr_msg reply;
    const struct gr_msg m = {.type = GR_MSG_PURGE};
    const int status = gr_remote_status(r, gr_remote_ask(r, &m, GR_MSG_PURGED, &reply));
    if (status != 0) {
        return status;
    }
    if (o->json) {
        return gr_listing_dump(json_pack("{s:I}", "purged", (json_int_t)reply.purged.n_session));
    }
    printf("%u idle session%s closed\n", reply.purged.n_session, reply.purged.n_session == 1 ? "" : "s");
    return 0;
}

static const struct gr_verb verbs[] = {
    {"list", "session list", GR_CMD_LOOK, list, NULL},
    {"show", "session show", GR_CMD_SHOW, show, NULL},
    {"open", "session open", GR_CMD_OPEN, NULL, gr_connect_open},
    {"send", "session send", GR_CMD_SEND, NULL, gr_connect_run},
    {"close", "session close", GR_CMD_CLOSE, close_one, NULL},
    {"refresh", "session refresh", GR_CMD_REFRESH, refresh, NULL},
    {"purge", "session purge", GR_CMD_LOOK, purge, NULL},
};

int gr_command_session(int argc, char **argv)
{
    static const struct gr_verbs session = {.command = "session",
                                            .help = GR_CMD_LOOK,
                                            .text = "list, show ID, open, send ID, close ID, refresh [ID] or purge",
                                            .verb = verbs,
                                            .n = GR_ARRAY_LEN(verbs)};
    return gr_verbs_run(&session, argc, argv);
}
