/* Threads that read requests: what takes long (a body of megabytes as JSON, a prompt as token ids) is done here, so
 * that neither the thread of the connections nor the orchestrator's waits for it. */
#ifndef GR_ORCHESTRATOR_HTTP_READERS_H
#define GR_ORCHESTRATOR_HTTP_READERS_H

#include "orchestrator/http/bodies.h"
#include "orchestrator/http/front.h"
#include "orchestrator/http/request_names.h"

struct gr_readers;

enum gr_read_what { GR_READ_COMPLETIONS, GR_READ_CHAT, GR_READ_TOKENIZE, GR_READ_DETOKENIZE };

struct gr_readers_config {
    struct gr_front *front;         /* borrowed */
    struct gr_bodies *bodies;       /* borrowed: where bodies count until they are read */
    const struct gr_served *served; /* borrowed, (n_served) */
    int n_served, n_thread;
    const struct gr_wishes *base;                                /* borrowed */
    bool unknown_pass;                                           /* names that nobody defines are logged and let pass */
    uint32_t (*n_ctx)(void *ctx, const struct gr_served *model); /* positions that the fleet has; any thread */
    void *ctx;
};

GR_NODISCARD enum gr_status gr_readers_create(const struct gr_readers_config *c, struct gr_readers **out);
/* Requests that wait are refused, and so are those that come from now on. Once; NULL is legal here and below. */
void gr_readers_end(struct gr_readers *r);
void gr_readers_destroy(struct gr_readers *r); /* nobody posts any more */
/* What is to be read. */
struct gr_asked {
    enum gr_read_what what;
    struct gr_body body;
    struct gr_api_owner owner;
    struct gr_request_names names;
    struct gr_once once; /* but for its body's digest */
    bool event_ids;      /* events of its stream are to have names */
};
/* Takes the body. Its response goes to stream, which is held until then. */
void gr_readers_post(struct gr_readers *r, const struct gr_asked *a, struct gr_stream *stream);

#endif
