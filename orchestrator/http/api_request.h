/* The body of a request to /v1/completions or /v1/chat/completions, checked. What a field means is OpenAI's API
 * reference and vLLM's protocol classes; a field that is null is not given. Fields come in four kinds (api_fields.inc):
 *   - those that graft does;
 *   - those that cannot change the text (user, store, metadata, ...): taken, and not looked at;
 *   - those that OpenAI or vLLM define and graft does not do: refused by their names, unless they say what is done
 *     anyway (their default);
 *   - names that neither defines: refused, or told to who asks.
 * Nothing here knows a model: ids and templates are checked by who has one. Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_API_REQUEST_H
#define GR_ORCHESTRATOR_HTTP_API_REQUEST_H

#include "common/options/options.h"
#include "common/rules/adjust.h"
#include "orchestrator/http/api_error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_API_PROMPT_MAX 128     /* prompts of one request */
#define GR_API_CHOICE_MAX 128     /* answers of one request: prompts times n */
#define GR_API_MESSAGE_N_MAX 4096 /* messages of a conversation */
#define GR_API_NOT_GIVEN INT64_MIN

/* EITHER: a chat where the body has messages, else completions; of a request that was read it is one of these. */
enum gr_api_endpoint { GR_API_COMPLETIONS = 1, GR_API_CHAT = 2, GR_API_EITHER = GR_API_COMPLETIONS | GR_API_CHAT };
enum gr_api_role { GR_API_SYSTEM, GR_API_USER, GR_API_ASSISTANT };

/* Text, or ids. */
struct gr_api_prompt {
    const char *text; /* borrowed of the body; NULL: ids */
    size_t len;
    int32_t *ids; /* owned */
    size_t n_ids;
};

struct gr_api_message {
    enum gr_api_role role;
    const char *text; /* borrowed of the body, or of joined */
    size_t len;
    char *joined; /* owned: of several parts; else NULL */
};

struct gr_api_request {
    enum gr_api_endpoint endpoint;
    struct json_t *body;          /* owned: what is borrowed lies here */
    const char *model;            /* NULL: not given */
    struct gr_api_prompt *prompt; /* owned, (n_prompt); of completions */
    int n_prompt;
    struct gr_api_message *message; /* owned, (n_message); of a chat */
    int n_message;
    bool go_on; /* the last message, the assistant's, is gone on with */

    int64_t n;          /* answers a prompt */
    int64_t max_tokens; /* GR_API_NOT_GIVEN: the endpoint's own default */
    int64_t min_tokens;
    double temperature, top_p, min_p;
    int64_t top_k; /* 0: off */
    int64_t seed;  /* GR_API_NOT_GIVEN: one is drawn */
    double frequency_penalty, presence_penalty, repetition_penalty;
    struct gr_bias_ids biased;
    struct gr_bias_values bias;
    const char *stop[GR_STOP_STRING_MAX]; /* borrowed */
    int n_stop;
    struct gr_stop_ids stop_ids;
    const char *bad_word[GR_BAD_WORD_MAX]; /* borrowed */
    int n_bad_word;
    int64_t n_logprob; /* the likeliest ids of each token; -1: no log-probabilities are wanted */
    bool ignore_eos, no_thinking, add_special, stream, include_usage;
    bool rounds;                    /* the stream tells each round, with its tree */
    int64_t num_speculative_tokens; /* GR_API_NOT_GIVEN: as the fleet is set up; 0: none */
    const char *specpv;             /* NULL: as the fleet is set up; else off, lossy, exact or auto */
    const char *cache_salt;         /* NULL: none */
    int64_t priority;               /* lower ones first */
    double timeout_s;               /* 0: no limit of its own */
};

/* text: the body. unknown: where a name that is not known is let pass it is written here, as a line for people (empty:
 * all are known); NULL: it is refused. GR_EINVAL: e says why. Zeroed or filled, gr_api_request_finish() is legal. */
GR_NODISCARD enum gr_status gr_api_request_parse(enum gr_api_endpoint endpoint, const char *text, size_t len,
                                                 char unknown[GR_API_PARAM_MAX], struct gr_api_request *out,
                                                 struct gr_api_error *e);
/* What was to be asked of the fleet has been made of it: of its texts stop strings and the salt stay, the others are
 * let go, however many megabytes they have. */
void gr_api_request_trim(struct gr_api_request *r);
void gr_api_request_finish(struct gr_api_request *r);

#endif
