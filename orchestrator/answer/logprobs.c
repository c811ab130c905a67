#include "orchestrator/answer/logprobs.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

enum gr_status gr_logprobs_init(struct gr_logprobs *l, uint32_t n_each, uint32_t n_token)
{
    *l = (struct gr_logprobs){.n_each = n_each, .n_token = n_token};
    if (n_each == 0) {
        return GR_OK;
    }
    l->value = calloc((size_t)n_token * n_each, sizeof(*l->value));
    l->id = calloc((size_t)n_token * n_each, sizeof(*l->id));
    if (l->value == NULL || l->id == NULL) {
        log_error("out of memory for the log-probabilities of %u tokens: lower --max-tokens or --logprobs", n_token);
        return GR_ENOMEM;
    }
    return GR_OK;
}

void gr_logprobs_finish(struct gr_logprobs *l)
{
    free(l->value);
    free(l->id);
    *l = (struct gr_logprobs){0};
}

bool gr_logprobs_take(struct gr_logprobs *l, const struct gr_msg_commit *m, uint32_t turn_len)
{
    const uint32_t n = l->n_each > 0 ? m->logprobs.n / l->n_each : 0;
    if (m->logprobs.n == 0 || l->n_each == 0) {
        return m->logprobs.n == 0 && m->logprob_ids.n == 0;
    }
    if (m->logprobs.n != n * l->n_each || m->logprob_ids.n != n * (l->n_each - 1) || n > l->n_token - l->n_known ||
        m->logprob_from != (uint64_t)turn_len + l->n_known) {
        return false;
    }
    memcpy(l->value + (size_t)l->n_known * l->n_each, m->logprobs.p, m->logprobs.n * sizeof(*l->value));
    if (m->logprob_ids.n > 0) {
        memcpy(l->id + (size_t)l->n_known * (l->n_each - 1), m->logprob_ids.p, m->logprob_ids.n * sizeof(*l->id));
    }
    l->n_known += n;
    return true;
}

void gr_logprobs_lose(struct gr_logprobs *l, uint32_t n)
{
    l->n_lost = l->n_known = GR_MIN(n, l->n_token);
}

bool gr_logprobs_has(const struct gr_logprobs *l, uint32_t token)
{
    return token >= l->n_lost && token < l->n_known;
}

void gr_logprobs_trim(struct gr_logprobs *l)
{
    const size_t n = (size_t)l->n_known * l->n_each;
    float *value = n > 0 ? realloc(l->value, n * sizeof(*value)) : NULL;
    l->value = value != NULL ? value : l->value;
    int32_t *id = n > 0 ? realloc(l->id, n * sizeof(*id)) : NULL;
    l->id = id != NULL ? id : l->id;
    l->n_token = l->n_known;
}
