/* Any bytes as the body of a request: it is taken, and then everything in it is in its limits, or it is refused by a
 * short error. The first byte says of which endpoint it is (bit 0) and whether unknown names are let pass (bit 1). */
#include "orchestrator/http/api_request.h"
#include "tests/fuzz/http_checks.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_prompts(const struct gr_api_request *r)
{
    GR_ASSERT(r->n_prompt >= 1 && r->n_prompt <= GR_API_PROMPT_MAX && r->n * r->n_prompt <= GR_API_CHOICE_MAX);
    for (int i = 0; i < r->n_prompt; i++) {
        const struct gr_api_prompt *p = &r->prompt[i];
        GR_ASSERT(p->text != NULL ? memchr(p->text, '\0', p->len) == NULL : p->n_ids > 0);
        for (size_t k = 0; k < p->n_ids; k++) {
            GR_ASSERT(p->ids[k] >= 0);
        }
    }
}

static void check_messages(const struct gr_api_request *r)
{
    GR_ASSERT(r->n_message >= 1 && r->n_message <= GR_API_MESSAGE_N_MAX);
    for (int i = 0; i < r->n_message; i++) {
        const struct gr_api_message *m = &r->message[i];
        GR_ASSERT(m->text != NULL && memchr(m->text, '\0', m->len) == NULL);
        GR_ASSERT(m->role == GR_API_SYSTEM || m->role == GR_API_USER || m->role == GR_API_ASSISTANT);
    }
}

static void check_ends(const struct gr_api_request *r)
{
    GR_ASSERT(r->max_tokens == GR_API_NOT_GIVEN || r->max_tokens >= 1);
    GR_ASSERT(r->min_tokens >= 0 && (r->max_tokens == GR_API_NOT_GIVEN || r->min_tokens <= r->max_tokens));
    GR_ASSERT(r->n_stop >= 0 && r->n_stop <= GR_STOP_STRING_MAX);
    for (int i = 0; i < r->n_stop; i++) {
        GR_ASSERT(r->stop[i][0] != '\0');
    }
    GR_ASSERT(r->n_bad_word >= 0 && r->n_bad_word <= GR_BAD_WORD_MAX);
    for (int i = 0; i < r->n_bad_word; i++) {
        GR_ASSERT(r->bad_word[i][0] != '\0');
    }
}

static void check_sampling(const struct gr_api_request *r)
{
    GR_ASSERT(r->temperature >= 0 && r->temperature <= 100 && r->top_p > 0 && r->top_p <= 1);
    GR_ASSERT(r->min_p >= 0 && r->min_p <= 1 && r->top_k >= 0 && r->n_logprob >= -1 && r->n_logprob <= 20);
    GR_ASSERT(isfinite(r->frequency_penalty) && isfinite(r->presence_penalty) && r->repetition_penalty >= 0);
    for (int i = 0; i < (int)r->biased.n; i++) {
        GR_ASSERT(r->biased.id[i] >= 0 && isfinite(r->bias.value[i]));
    }
}

static void check_taken(const struct gr_api_request *r)
{
    GR_ASSERT(r->n >= 1 && r->n <= GR_API_CHOICE_MAX && isfinite(r->timeout_s) && r->timeout_s >= 0);
    GR_ASSERT(r->num_speculative_tokens == GR_API_NOT_GIVEN || r->num_speculative_tokens >= 0);
    if (r->endpoint == GR_API_CHAT) {
        check_messages(r);
    } else {
        check_prompts(r);
    }
    check_ends(r);
    check_sampling(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gr_api_request r;
    struct gr_api_error e = {0};
    char unknown[GR_API_PARAM_MAX] = "";
    if (size < 1) {
        return 0;
    }
    const enum gr_api_endpoint endpoint = (data[0] & 1) != 0 ? GR_API_CHAT : GR_API_COMPLETIONS;
    memset(&r, 0, sizeof(r));
    const enum gr_status st =
        gr_api_request_parse(endpoint, (const char *)data + 1, size - 1, (data[0] & 2) != 0 ? unknown : NULL, &r, &e);
    GR_ASSERT(st == GR_OK || st == GR_EINVAL);
    if (st == GR_OK) {
        check_taken(&r);
    } else {
        check_refusal(&e);
    }
    gr_api_request_finish(&r);
    return 0;
}
