/* Log-probabilities of a row: log-softmax of the model's raw logits, before bans, biases, penalties and temperature, as
 * vLLM's default (logprobs_mode raw_logprobs). The sum runs over the ids from 0 on in double, on one thread, so its
 * bits follow from the logits alone: plain decoding's and a tree's are equal. Header only; common subset of C and CUDA
 * C++. */
#ifndef GR_COMMON_RULES_LOGPROB_H
#define GR_COMMON_RULES_LOGPROB_H

#include "common/rules/gr_math.h"

#define GR_LOGPROB_MAX 20 /* of a token, besides its own: OpenAI's limit */
#define GR_LOGPROB_ROW 21 /* with its own */

struct gr_logprob_row {
    float chosen;
    int32_t n; /* the likeliest ids, ties in the order of their ids; the chosen one may be among them */
    int32_t id[GR_LOGPROB_MAX];
    float value[GR_LOGPROB_MAX];
};

/* The n_top largest of l, best first. Returns how many there are. */
GR_FN int32_t gr_logprob_top(const float *l, int32_t n, int32_t n_top, int32_t *id)
{
    int32_t n_found = 0;
    for (int32_t i = 0; i < n && n_top > 0; i++) {
        if (n_found == n_top && !(l[i] > l[id[n_found - 1]])) {
            continue;
        }
        int32_t at = n_found < n_top ? n_found++ : n_found - 1;
        for (; at > 0 && l[i] > l[id[at - 1]]; at--) {
            id[at] = id[at - 1];
        }
        id[at] = i;
    }
    return n_found;
}

/* logits (n) are finite; n_top at most GR_LOGPROB_MAX. */
GR_FN void gr_logprob_row(const float *logits, int32_t n, int32_t chosen, int32_t n_top, struct gr_logprob_row *out)
{
    float max = logits[0];
    double sum = 0.0;
    for (int32_t i = 1; i < n; i++) {
        max = logits[i] > max ? logits[i] : max;
    }
    for (int32_t i = 0; i < n; i++) {
        sum += (double)gr_expf(logits[i] - max);
    }
    const float log_sum = gr_logf((float)sum);
    out->chosen = logits[chosen] - max - log_sum;
    out->n = gr_logprob_top(logits, n, n_top, out->id);
    for (int32_t i = 0; i < out->n; i++) {
        out->value[i] = logits[out->id[i]] - max - log_sum;
    }
}

#endif
