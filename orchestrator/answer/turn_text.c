#include "orchestrator/answer/turn_text.h"

#include "common/base/log.h"
#include "common/rules/token_tree.h"

#include <stdlib.h>
#include <string.h>

enum gr_status gr_turn_text_init(struct gr_turn_text *t, const struct gr_turn_text_config *c)
{
    *t = (struct gr_turn_text){.cap = c->max_tokens + GR_TREE_MAX};
    GR_TRY(gr_text_stream_init(&t->stream, c->tok, c->stop, c->n_stop));
    t->stream.min_tokens = c->min_tokens;
    t->token = malloc(t->cap * sizeof(*t->token));
    t->text_end = malloc(t->cap * sizeof(*t->text_end));
    if (t->token == NULL || t->text_end == NULL) {
        log_error("out of memory for %u tokens", c->max_tokens);
        return GR_ENOMEM;
    }
    return gr_logprobs_init(&t->logprobs, c->n_logprob, t->cap);
}

void gr_turn_text_finish(struct gr_turn_text *t)
{
    gr_text_stream_finish(&t->stream);
    gr_logprobs_finish(&t->logprobs);
    free(t->token);
    free(t->text_end);
    *t = (struct gr_turn_text){0};
}

/* False: the COMMIT does not continue what came before. */
static bool keep_ids(struct gr_turn_text *t, const struct gr_msg_commit *m)
{
    if (t->n_commit++ == 0) {
        t->turn_len = m->keep_len;
    }
    const uint64_t n_keep = (uint64_t)m->keep_len - t->turn_len;
    if (m->keep_len < t->turn_len || n_keep < t->n_final || n_keep > t->n_token ||
        m->final_len < t->turn_len + t->n_final || m->final_len > (uint64_t)m->keep_len + m->ids.n ||
        m->ids.n > t->cap - n_keep) {
        return false;
    }
    memcpy(t->token + n_keep, m->ids.p, m->ids.n * sizeof(*t->token));
    t->n_token = (uint32_t)n_keep + m->ids.n;
    return true;
}

enum gr_status gr_turn_text_take(struct gr_turn_text *t, const struct gr_msg_commit *m, const struct gr_stop_ids *stops,
                                 bool *stopped_out)
{
    *stopped_out = false;
    if (!keep_ids(t, m) || !gr_logprobs_take(&t->logprobs, m, t->turn_len)) {
        return GR_EPROTO;
    }
    while (!*stopped_out && t->n_final < t->n_token && t->turn_len + t->n_final < m->final_len) {
        const int32_t id = t->token[t->n_final++];
        const bool ends = gr_stop_hits(stops, id);
        GR_TRY(ends ? GR_OK : gr_text_stream_push(&t->stream, id, stopped_out));
        t->text_end[t->n_final - 1] = (uint32_t)t->stream.len;
        t->n_whole = t->stream.detok.n_held == 0 ? t->n_final : t->n_whole;
        if (ends) {
            break; /* the text ends before it, and the target has ended the turn */
        }
    }
    return GR_OK;
}

enum gr_status gr_turn_text_end(struct gr_turn_text *t)
{
    t->n_token = t->n_final;
    GR_TRY(gr_text_stream_end(&t->stream));
    if (t->n_final > 0) { /* what was released is the last token's */
        t->text_end[t->n_final - 1] = (uint32_t)t->stream.len;
    }
    return GR_OK;
}

const char *gr_turn_text_piece(const struct gr_turn_text *t, uint32_t first, uint32_t *end_out, size_t *len_out)
{
    const struct gr_text_stream *s = &t->stream;
    const size_t shown = gr_text_stream_shown(s);
    const size_t begin = first > 0 ? GR_MIN((size_t)t->text_end[first - 1], s->len) : 0;
    uint32_t end = s->stopped ? t->n_final : first;
    while (end < t->n_whole && t->text_end[end] <= shown) {
        end++;
    }
    const size_t stop = s->stopped ? s->len : end > first ? t->text_end[end - 1] : begin;
    *end_out = end;
    *len_out = stop - begin;
    return stop > begin ? s->text + begin : "";
}

static void *shrink(void *p, size_t n)
{
    void *smaller = realloc(p, GR_MAX(n, (size_t)1));
    return smaller != NULL ? smaller : p;
}

void gr_turn_text_trim(struct gr_turn_text *t)
{
    t->cap = t->n_final;
    t->token = shrink(t->token, t->cap * sizeof(*t->token));
    t->text_end = shrink(t->text_end, t->cap * sizeof(*t->text_end));
    gr_logprobs_trim(&t->logprobs);
    t->stream.n_stop = 0; /* the stop strings are the request's, which is gone */
    t->stream.text = shrink(t->stream.text, t->stream.len);
    t->stream.cap = t->stream.len;
}

size_t gr_turn_text_bytes(const struct gr_turn_text *t)
{
    const struct gr_logprobs *l = &t->logprobs;
    return t->cap * (sizeof(*t->token) + sizeof(*t->text_end)) + t->stream.cap +
           (size_t)l->n_token * l->n_each * (sizeof(*l->value) + sizeof(*l->id));
}
