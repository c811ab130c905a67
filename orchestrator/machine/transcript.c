#include "orchestrator/machine/transcript.h"

#include "common/rules/hash.h"
#include "common/base/grow.h"
#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

static enum gr_status make_room(int32_t **array, size_t *cap, uint32_t need)
{
    int32_t *bigger = gr_grow(*array, cap, need, sizeof(**array));
    if (bigger == NULL) {
        log_error("out of memory for a transcript of %u tokens", need);
        return GR_ENOMEM;
    }
    *array = bigger;
    return GR_OK;
}

enum gr_status gr_transcript_add(struct gr_transcript *t, enum gr_segment_kind kind, const int32_t *id, uint32_t n)
{
    const bool joins = t->n_segment > 0 && t->segment[2 * t->n_segment - 2] == (int32_t)kind;
    if (n == 0) {
        return GR_OK;
    }
    if (n > GR_TRANSCRIPT_LEN_MAX - t->len || (!joins && t->n_segment == GR_TRANSCRIPT_SEGMENT_MAX)) {
        return GR_ELIMIT;
    }
    GR_TRY(make_room(&t->token, &t->cap, t->len + n));
    GR_TRY(make_room(&t->segment, &t->cap_segment, 2 * (t->n_segment + 1)));
    if (!joins) {
        t->segment[2 * t->n_segment] = (int32_t)kind;
        t->segment[2 * t->n_segment + 1] = 0;
        t->n_segment++;
    }
    t->segment[2 * t->n_segment - 1] += (int32_t)n;
    memcpy(t->token + t->len, id, n * sizeof(*id));
    for (uint32_t i = 0; i < n; i++) {
        t->hash = gr_hash_extend(t->hash, id[i]);
    }
    t->len += n;
    return GR_OK;
}

bool gr_transcript_fits(const struct gr_transcript *t, uint32_t keep_len, enum gr_segment_kind kind, uint32_t n)
{
    uint32_t before = 0, n_segment = 0;
    while (n_segment < t->n_segment && before < keep_len) {
        before += (uint32_t)t->segment[2 * n_segment + 1];
        n_segment++;
    }
    const bool joins = n_segment > 0 && t->segment[2 * n_segment - 2] == (int32_t)kind;
    const uint32_t n_answer = kind == GR_SEGMENT_GENERATED ? 0 : 1;
    return n <= GR_TRANSCRIPT_LEN_MAX - keep_len && n_segment + !joins + n_answer <= GR_TRANSCRIPT_SEGMENT_MAX;
}

uint64_t gr_transcript_hash_at(const struct gr_transcript *t, uint32_t len)
{
    GR_ASSERT(len <= t->len);
    uint64_t hash = 0;
    for (uint32_t i = 0; i < len; i++) {
        hash = gr_hash_extend(hash, t->token[i]);
    }
    return hash;
}

void gr_transcript_cut(struct gr_transcript *t, uint32_t len)
{
    GR_ASSERT(len <= t->len);
    if (len == t->len) {
        return;
    }
    t->hash = gr_transcript_hash_at(t, len);
    t->len = len;
    uint32_t before = 0, n = 0;
    for (; n < t->n_segment && before < len; n++) {
        const uint32_t whole = (uint32_t)t->segment[2 * n + 1];
        t->segment[2 * n + 1] = (int32_t)GR_MIN(whole, len - before);
        before += whole;
    }
    t->n_segment = n;
}

void gr_transcript_finish(struct gr_transcript *t)
{
    free(t->token);
    free(t->segment);
    memset(t, 0, sizeof(*t));
}
