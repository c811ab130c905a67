/* Sampling on the target: processors, then shared noise, then argmax. The order of the processors is bans, logit bias
 * and penalties where a request asks for them (adjust.h), then temperature, min-p, top-k, top-p; ties go to the lowest
 * id. Below GR_TEMPERATURE_GREEDY the pick is argmax(logits). Else it is argmax(processed + g) with Gumbel noise g
 * that is a function of (seed, position, id, choice) alone (gr_gumbel), so the picked token does not depend on who
 * drafted what, and a drafter that knows the seed can rank its children by the same noise. Filtered ids hold -INFINITY
 * and are skipped, noise and all. Header only; common subset of C and CUDA C++. */
#ifndef GR_COMMON_RULES_SAMPLER_H
#define GR_COMMON_RULES_SAMPLER_H

#include "common/rules/gr_math.h"

/* Below this temperature picks are greedy: everywhere, on the target and the drafter, on CPUs and GPUs. A quotient
 * logit / temperature then overflows for logits above 3.4e33 only, which no model has; at 1e-38 those of 4 did. */
#define GR_TEMPERATURE_GREEDY 1e-5f

struct gr_sampling {
    float temperature; /* 0 to 100; below GR_TEMPERATURE_GREEDY: greedy */
    float min_p;       /* 0: off; keep p >= min_p * max p */
    float top_p;       /* 1: off; smallest set of highest p whose sum reaches top_p, renormalised after top_k */
    int32_t top_k;     /* 0: off */
    uint32_t choice;   /* index of the completion, part of the noise's counter */
    uint64_t seed;
};

/* What stands in place of a picked id. A row is not finite when one of its raw logits (before bans, biases and all
 * processors) is NaN or infinite, or when its best processed value is: nothing of it can be trusted, whatever id the
 * value belongs to. */
enum {
    GR_PICK_TO_HOST = -1, /* of a model that picks: this row is left to the host */
    GR_PICK_NOT_FINITE = -2,
};

/* What a row was picked to be. gap: best value less the next best, noise included; 0 where there is none. */
struct gr_picked {
    int32_t id;
    float gap;
};

#define GR_TOP_MAX 63 /* children of a row: no tree has more nodes */

/* The best ids of a row for a drafter, best first. */
struct gr_top_row {
    int32_t n;              /* GR_PICK_TO_HOST: they are to be found in the logits; GR_PICK_NOT_FINITE: none are */
    float log_sum;          /* log(sum exp(value)) of all values */
    int32_t id[GR_TOP_MAX]; /* the target's */
    float edge[GR_TOP_MAX]; /* value - log_sum; a value has its noise */
};

GR_FN int gr_temperature_is_greedy(float temperature)
{
    return !(temperature >= GR_TEMPERATURE_GREEDY);
}

/* Do processors that look at the whole row come before the pick? */
GR_FN int gr_sampling_needs_row(const struct gr_sampling *s)
{
    const int asked = s->top_k > 0 || s->top_p < 1.0f || s->min_p > 0.0f;
    return asked && !gr_temperature_is_greedy(s->temperature);
}

/* Order of the heap: larger value first, lower id on ties. */
GR_FN int gr_sampler_before(const float *l, int32_t a, int32_t b)
{
    return l[a] > l[b] || (l[a] == l[b] && a < b);
}

GR_FN void gr_sampler_sift(const float *l, int32_t *heap, int n, int i)
{
    for (;;) {
        int best = i;
        int left = 2 * i + 1;
        if (left < n && gr_sampler_before(l, heap[left], heap[best])) {
            best = left;
        }
        if (left + 1 < n && gr_sampler_before(l, heap[left + 1], heap[best])) {
            best = left + 1;
        }
        if (best == i) {
            return;
        }
        int32_t swap = heap[i];
        heap[i] = heap[best];
        heap[best] = swap;
        i = best;
    }
}

/* Are all n logits numbers, neither NaN nor infinite? */
GR_FN int gr_sampler_is_finite(const float *logits, int32_t n)
{
    uint32_t odd = 0;
    for (int32_t i = 0; i < n; i++) {
        odd |= (gr_float_bits(logits[i]) & 0x7fffffffu) + 0x00800000u; /* bit 31: the exponent is that of inf and NaN */
    }
    return odd >> 31 == 0;
}

/* Applies temperature, min-p, top-k and top-p to one row. logits (n), out (n; may be logits), work: n ids.
 * The temperature is not greedy. Filtered ids become -INFINITY. */
GR_FN void gr_sampler_process(const struct gr_sampling *s, const float *logits, float *out, int32_t n, int32_t *work)
{
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        out[i] = logits[i] / s->temperature;
        max = out[i] > max ? out[i] : max;
    }
    int by_rank = (s->top_k > 0 && s->top_k < n) || s->top_p < 1.0f;
    if (s->min_p <= 0.0f && !by_rank) {
        return;
    }
    if (s->min_p > 0.0f) {
        for (int32_t i = 0; i < n; i++) {
            if (gr_expf(out[i] - max) < s->min_p) {
                out[i] = -INFINITY;
            }
        }
    }
    if (!by_rank) {
        return;
    }
    /* A heap of the ids that are left; popping gives them by rank, so only the kept ones cost log n. */
    int n_heap = 0;
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        if (out[i] > -INFINITY) {
            work[n_heap++] = i;
            sum += (double)gr_expf(out[i] - max);
        }
    }
    int n_left = n_heap;
    for (int i = n_left / 2 - 1; i >= 0; i--) {
        gr_sampler_sift(out, work, n_left, i);
    }
    int n_keep_max = s->top_k > 0 && s->top_k < n_heap ? s->top_k : n_heap;
    if (n_keep_max < n_heap && s->top_p < 1.0f) {
        /* top-p looks at probabilities renormalised over the top-k ids: pop them once for their sum. */
        sum = 0.0;
        for (int k = 0; k < n_keep_max; k++) {
            int32_t id = work[0];
            sum += (double)gr_expf(out[id] - max);
            work[0] = work[--n_left];
            work[n_left] = id;
            gr_sampler_sift(out, work, n_left, 0);
        }
        double cumulated = 0.0;
        int n_keep = 0;
        while (n_keep < n_keep_max && (n_keep == 0 || cumulated < (double)s->top_p * sum)) {
            cumulated += (double)gr_expf(out[work[n_heap - 1 - n_keep]] - max);
            n_keep++;
        }
        /* Popped ids stand at the end, best last: drop those past n_keep, then all that was never popped. */
        for (int k = n_keep; k < n_keep_max; k++) {
            out[work[n_heap - 1 - k]] = -INFINITY;
        }
        for (int k = 0; k < n_left; k++) {
            out[work[k]] = -INFINITY;
        }
        return;
    }
    double cumulated = 0.0;
    for (int k = 0; k < n_keep_max && (k == 0 || s->top_p >= 1.0f || cumulated < (double)s->top_p * sum); k++) {
        int32_t id = work[0];
        cumulated += (double)gr_expf(out[id] - max);
        work[0] = work[--n_left];
        gr_sampler_sift(out, work, n_left, 0);
    }
    for (int k = 0; k < n_left; k++) {
        out[work[k]] = -INFINITY;
    }
}

/* From logits that are finite, or -INFINITY where an id is banned. scratch (n) f32 and work (n) are overwritten;
 * scratch may be logits. */
GR_FN int32_t gr_sampler_choose(const struct gr_sampling *s, const float *logits, int32_t n, uint32_t pos,
                                float *scratch, int32_t *work)
{
    const float *l = logits;
    const int greedy = gr_temperature_is_greedy(s->temperature);
    if (!greedy) {
        gr_sampler_process(s, logits, scratch, n, work);
        l = scratch;
    }
    int32_t best = 0;
    float best_value = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        float v = l[i];
        if (!greedy && v > -INFINITY) {
            v = v + gr_gumbel(s->seed, pos, (uint32_t)i, s->choice);
        }
        if (v > best_value) {
            best_value = v;
            best = i;
        }
    }
    return best_value > -INFINITY && best_value < INFINITY ? best : GR_PICK_NOT_FINITE;
}

/* The definition of a pick, one row, plain loops: an id or GR_PICK_NOT_FINITE. scratch and work as above. */
GR_FN int32_t gr_sampler_pick(const struct gr_sampling *s, const float *logits, int32_t n, uint32_t pos, float *scratch,
                              int32_t *work)
{
    return gr_sampler_is_finite(logits, n) ? gr_sampler_choose(s, logits, n, pos, scratch, work) : GR_PICK_NOT_FINITE;
}

#endif
