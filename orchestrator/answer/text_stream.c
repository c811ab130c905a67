#include "orchestrator/answer/text_stream.h"

#include "common/base/grow.h"
#include "common/base/log.h"
#include "common/base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum gr_status gr_text_stream_init(struct gr_text_stream *s, const struct gr_tokenizer *tok, const char *const *stop,
                                   int n_stop)
{
    memset(s, 0, sizeof(*s));
    gr_detok_init(&s->detok, tok);
    s->detok.goes_on = true; /* after the prompt: a blank in front is the text's own */
    if (n_stop > GR_STOP_STRING_MAX) {
        log_error("%d stop strings, the limit is %d", n_stop, GR_STOP_STRING_MAX);
        return GR_EINVAL;
    }
    for (int i = 0; i < n_stop; i++) {
        s->stop[i] = stop[i];
        s->stop_len[i] = strlen(stop[i]);
        if (s->stop_len[i] < 1 || s->stop_len[i] > GR_STOP_STRING_BYTES_MAX) {
            log_error("stop string %d has %zu bytes; it must have 1 to %d", i + 1, s->stop_len[i],
                      GR_STOP_STRING_BYTES_MAX);
            return GR_EINVAL;
        }
        if (!gr_utf8_valid(stop[i], s->stop_len[i])) { /* it would end the text in the middle of a character */
            log_error("stop string %d, `%s', is not UTF-8", i + 1, stop[i]);
            return GR_EINVAL;
        }
    }
    s->n_stop = n_stop;
    return GR_OK;
}

void gr_text_stream_finish(struct gr_text_stream *s)
{
    free(s->text);
    memset(s, 0, sizeof(*s));
}

static enum gr_status make_room(struct gr_text_stream *s, size_t n)
{
    char *text = gr_grow(s->text, &s->cap, s->len + n, 1);
    if (text == NULL) {
        log_error("out of memory for %zu bytes of text", s->len + n);
        return GR_ENOMEM;
    }
    s->text = text;
    return GR_OK;
}

/* Earliest stop string that ends in the new text; the text is cut before it. */
static bool cut_at_stop(struct gr_text_stream *s, size_t n_before)
{
    size_t best = SIZE_MAX;
    for (int i = 0; i < s->n_stop; i++) {
        const size_t n = s->stop_len[i];
        const size_t from = n_before >= n - 1 ? n_before - (n - 1) : 0;
        const char *hit = s->len - from >= n ? memmem(s->text + from, s->len - from, s->stop[i], n) : NULL;
        if (hit != NULL && (size_t)(hit - s->text) < best) {
            best = (size_t)(hit - s->text);
        }
    }
    if (best == SIZE_MAX) {
        return false;
    }
    s->len = best;
    s->stopped = true;
    return true;
}

enum gr_status gr_text_stream_push(struct gr_text_stream *s, int32_t id, bool *stopped_out)
{
    size_t n = 0;
    if (s->stopped) {
        log_error("a token %d after the end of the text", id);
        return GR_EINVAL;
    }
    GR_TRY(make_room(s, GR_DETOK_OUT_MAX));
    if (s->detok.tok != NULL) {
        GR_TRY(gr_detok_push(&s->detok, id, s->text + s->len, s->cap - s->len, &n));
    } else {
        n = (size_t)snprintf(s->text + s->len, s->cap - s->len, s->len > 0 ? " %d" : "%d", id);
    }
    const size_t n_before = s->len;
    s->len += n;
    s->n_token++;
    *stopped_out = n > 0 && s->n_token > s->min_tokens && cut_at_stop(s, n_before);
    return GR_OK;
}

enum gr_status gr_text_stream_end(struct gr_text_stream *s)
{
    if (!s->stopped) {
        size_t n = 0;
        GR_TRY(make_room(s, GR_DETOK_OUT_MAX));
        if (s->detok.tok != NULL) {
            GR_TRY(gr_detok_flush(&s->detok, s->text + s->len, s->cap - s->len, &n));
        }
        s->len += n;
    }
    s->stopped = true; /* nothing is held back any more */
    return GR_OK;
}

/* Bytes at the end of the text that may be the beginning of a stop string. */
static size_t held_back(const struct gr_text_stream *s)
{
    size_t held = 0;
    for (int i = 0; i < s->n_stop; i++) {
        for (size_t n = GR_MIN(s->stop_len[i] - 1, s->len); n > held; n--) {
            if (memcmp(s->text + s->len - n, s->stop[i], n) == 0) {
                held = n;
                break;
            }
        }
    }
    return held;
}

size_t gr_text_stream_shown(const struct gr_text_stream *s)
{
    return s->stopped ? s->len : s->len - held_back(s);
}

const char *gr_text_stream_take(struct gr_text_stream *s, size_t *len_out)
{
    const size_t end = gr_text_stream_shown(s);
    const size_t begin = GR_MIN(s->n_emitted, end);
    s->n_emitted = GR_MAX(s->n_emitted, end);
    *len_out = end - begin;
    return *len_out > 0 ? s->text + begin : "";
}
