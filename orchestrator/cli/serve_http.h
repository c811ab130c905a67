/* The endpoint of `graft serve': the models that it serves, its requests as clients of the desk, and its threads. */
#ifndef GR_ORCHESTRATOR_CLI_SERVE_HTTP_H
#define GR_ORCHESTRATOR_CLI_SERVE_HTTP_H

#include "common/options/options.h"
#include "orchestrator/cli/serve_models.h"
#include "orchestrator/http/homes.h"
#include "orchestrator/http/server.h"
#include "orchestrator/server/desk.h"
#include "orchestrator/server/hub.h"
#include "orchestrator/server/keeper.h"

/* Numbers of the desk's clients: the hub's, then the endpoint's answers. */
#define GR_DESK_CLIENTS (GR_CLIENT_MAX + GR_FRONT_ANSWER_MAX)

/* All zero: there is no endpoint. */
struct gr_serve_http {
    struct gr_desk *desk;           /* borrowed */
    struct gr_orch *orch;           /* borrowed */
    const struct gr_keeper *keeper; /* borrowed; NULL: there is no journal */
    struct gr_served served[GR_SERVED_MODEL_MAX];
    int n_served;
    struct gr_homes homes;
    struct gr_wishes base;
    struct gr_front *front;
    struct gr_http *http;
    uint32_t n_slot_most[GR_SERVED_MODEL_MAX]; /* of each model's targets together, so far */
    uint32_t n_queue_max;
    uint32_t n_target_wanted, n_draft_wanted; /* for it to be ready */
    uint64_t due_ns;                          /* gr_serve_http_run() is to be called then; UINT64_MAX */
};

/* Does it read files that may change while it serves? */
bool gr_serve_http_has_files(const struct gr_options *o);
/* Reads them again, and says so, or why not. */
void gr_serve_http_reload(struct gr_serve_http *h);
/* By --http: opened where a model is named, unless it is off. The desk has the journal's sessions already, and their
 * clients can come back to them. */
GR_NODISCARD enum gr_status gr_serve_http_open(struct gr_serve_http *h, const struct gr_options *o,
                                               const struct gr_serve_models *models, struct gr_orch *orch,
                                               struct gr_desk *desk, const struct gr_keeper *keeper);
/* Readable when a request has come; -1: there is no endpoint. */
int gr_serve_http_fd(const struct gr_serve_http *h);
/* With so many workers it is ready. */
void gr_serve_http_want(struct gr_serve_http *h, uint32_t n_target, uint32_t n_draft);
/* Is this number one of its answers'? */
bool gr_serve_http_has(const struct gr_serve_http *h, uint32_t client);
void gr_serve_http_on_msg(struct gr_serve_http *h, uint32_t client, const struct gr_msg *m, uint64_t now_ns);
/* After each pump of the hub. */
void gr_serve_http_run(struct gr_serve_http *h, bool draining, uint64_t now_ns);
/* Requests that are being answered. */
int gr_serve_http_n_job(const struct gr_serve_http *h);
void gr_serve_http_close(struct gr_serve_http *h);

#endif
