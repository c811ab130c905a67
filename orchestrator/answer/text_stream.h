/* Token ids in, text out: whole UTF-8 characters only, stop strings matched across tokens and rounds. Text that may be
 * the beginning of a stop string is held back until it is decided. Pure. */
#ifndef GR_ORCHESTRATOR_ANSWER_TEXT_STREAM_H
#define GR_ORCHESTRATOR_ANSWER_TEXT_STREAM_H

#include "common/options/options.h"
#include "model/tokenizer/tokenizer.h"

#define GR_STOP_STRING_BYTES_MAX 256 /* bytes of a stop string, at most */

struct gr_text_stream {
    struct gr_detok detok;
    const char *stop[GR_STOP_STRING_MAX]; /* borrowed */
    size_t stop_len[GR_STOP_STRING_MAX];
    int n_stop;
    char *text; /* owned: everything decoded so far */
    size_t len, cap;
    size_t n_emitted; /* bytes already handed out */
    uint32_t n_token;
    uint32_t min_tokens; /* set after init: no stop string ends in the text of the first so many tokens */
    bool stopped;
};

/* tok NULL: the model has none, and the text is the ids. stop strings: 1 .. GR_STOP_STRING_BYTES_MAX bytes of UTF-8
 * each; GR_EINVAL (logged) otherwise. */
GR_NODISCARD enum gr_status gr_text_stream_init(struct gr_text_stream *s, const struct gr_tokenizer *tok,
                                                const char *const *stop, int n_stop);
void gr_text_stream_finish(struct gr_text_stream *s);
/* Adds a token. *stopped_out: it completed a stop string; the text ends before it and further tokens are refused. */
GR_NODISCARD enum gr_status gr_text_stream_push(struct gr_text_stream *s, int32_t id, bool *stopped_out);
/* No more tokens will come: what was held back is released. */
GR_NODISCARD enum gr_status gr_text_stream_end(struct gr_text_stream *s);
/* Text that may be shown now and was not handed out before; borrowed until the next push. */
const char *gr_text_stream_take(struct gr_text_stream *s, size_t *len_out);
/* Bytes of text that may be shown by now, whoever was handed which of them. */
size_t gr_text_stream_shown(const struct gr_text_stream *s);

#endif
