/* What a checked request asks of the fleet: prompts as ids and the wishes that all its answers share. Everything that
 * a model decides is checked here, before the first byte of an answer. Pure but for memory; any thread. */
#ifndef GR_ORCHESTRATOR_HTTP_ASK_H
#define GR_ORCHESTRATOR_HTTP_ASK_H

#include "common/protocol/wishes.h"
#include "orchestrator/http/api_request.h"
#include "orchestrator/http/served.h"

struct gr_ask_prompt {
    int32_t *ids; /* owned */
    uint32_t n_ids;
    uint32_t max_tokens; /* of each of its answers */
};

struct gr_ask {
    struct gr_wishes wishes;      /* but for the choice and max_tokens of each answer */
    struct gr_ask_prompt *prompt; /* owned */
    int n_prompt;
    int n_each; /* answers a prompt; answer i is of prompt i / n_each, and its choice is i % n_each */
};

struct gr_ask_limits {
    const struct gr_wishes *base; /* what is wished where a request says nothing */
    uint32_t n_ctx;               /* positions that the fleet has for a session */
};

/* GR_EINVAL: e says why. gr_ask_finish() in either case. */
GR_NODISCARD enum gr_status gr_ask_make(const struct gr_api_request *r, const struct gr_served *model,
                                        const struct gr_ask_limits *limits, struct gr_ask *out, struct gr_api_error *e);
void gr_ask_finish(struct gr_ask *a); /* zeroed is legal */
/* Most tokens of a tree; 0: none is asked for. */
static inline uint32_t gr_ask_spec_tokens(const struct gr_ask *a)
{
    return a->wishes.want_draft ? a->wishes.n_node : 0;
}
/* Text or a conversation as ids; *ids_out is the caller's. Also for /tokenize. */
GR_NODISCARD enum gr_status gr_ask_text_ids(const struct gr_served *model, const char *text, size_t len, bool special,
                                            int32_t **ids_out, uint32_t *n_out, struct gr_api_error *e);
GR_NODISCARD enum gr_status gr_ask_chat_ids(const struct gr_served *model, const struct gr_api_request *r,
                                            int32_t **ids_out, uint32_t *n_out, struct gr_api_error *e);

#endif
