#include "orchestrator/http/reply.h"

#include "common/base/utf8.h"
#include "orchestrator/answer/token_text.h"
#include "orchestrator/http/round_json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define VERY_UNLIKELY -9999.0 /* the API's number for a probability that is none */

const char *gr_reply_finish(enum gr_finish finish)
{
    switch (finish) {
    case GR_FINISH_STOP:
        return "stop";
    case GR_FINISH_LENGTH:
        return "length";
    case GR_FINISH_CLOSED:
    case GR_FINISH_TIMEOUT:
        return "closed";
    default:
        return "error";
    }
}

static char *dump(json_t *root)
{
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    return text;
}

/* ---- log-probabilities ---- */

static double value_of(float v)
{
    return isfinite(v) ? (double)v : VERY_UNLIKELY;
}

static json_t *token_string(const struct gr_tokenizer *tok, int32_t id, json_t **bytes_out)
{
    char text[GR_TOKEN_TEXT_MAX];
    size_t len = 0;
    const char *bytes = gr_tokenizer_token_bytes(tok, id, &len);
    if (bytes_out != NULL) {
        *bytes_out = json_array();
        for (size_t i = 0; i < len; i++) {
            json_array_append_new(*bytes_out, json_integer((uint8_t)bytes[i]));
        }
    }
    return json_stringn(text, bytes != NULL ? gr_token_text(bytes, len, text) : 0);
}

static json_t *chat_entry(const struct gr_tokenizer *tok, int32_t id, float value)
{
    json_t *bytes = NULL;
    json_t *token = token_string(tok, id, &bytes);
    return json_pack("{s:o, s:f, s:o}", "token", token, "logprob", value_of(value), "bytes", bytes);
}

/* Values of a token: its own, then the likeliest ids' with these. Tokens whose turn ended before their values came have
 * none. */
static json_t *chat_token(const struct gr_reply *r, const struct gr_turn_text *t, uint32_t i)
{
    const struct gr_logprobs *l = &t->logprobs;
    const bool known = gr_logprobs_has(l, i);
    const float *value = l->value + (size_t)i * l->n_each;
    json_t *top = json_array();
    for (uint32_t k = 0; known && k + 1 < l->n_each; k++) {
        json_array_append_new(top, chat_entry(r->tok, l->id[(size_t)i * (l->n_each - 1) + k], value[k + 1]));
    }
    json_t *one = chat_entry(r->tok, t->token[i], known ? value[0] : (float)VERY_UNLIKELY);
    json_object_set_new(one, "top_logprobs", top);
    return one;
}

static json_t *chat_logprobs(const struct gr_reply *r, const struct gr_turn_text *t, uint32_t first, uint32_t end)
{
    json_t *content = json_array();
    for (uint32_t i = first; i < end; i++) {
        json_array_append_new(content, chat_token(r, t, i));
    }
    return json_pack("{s:o, s:n}", "content", content, "refusal");
}

static void add_top(const struct gr_reply *r, json_t *top, int32_t id, float value)
{
    char text[GR_TOKEN_TEXT_MAX + 1];
    size_t len = 0;
    const char *bytes = gr_tokenizer_token_bytes(r->tok, id, &len);
    text[bytes != NULL ? gr_token_text(bytes, len, text) : 0] = '\0';
    json_object_set_new(top, text, json_real(value_of(value)));
}

/* The likeliest ids, and the one that was taken. */
static json_t *top_of(const struct gr_reply *r, const struct gr_turn_text *t, uint32_t i)
{
    const struct gr_logprobs *l = &t->logprobs;
    const float *value = l->value + (size_t)i * l->n_each;
    json_t *top = json_object();
    for (uint32_t k = 0; k + 1 < l->n_each; k++) {
        add_top(r, top, l->id[(size_t)i * (l->n_each - 1) + k], value[k + 1]);
    }
    add_top(r, top, t->token[i], value[0]);
    return top;
}

static size_t characters(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += ((uint8_t)text[i] & 0xc0) != 0x80;
    }
    return count;
}

/* text_offset: of the answer's text, in characters. */
static json_t *completion_logprobs(const struct gr_reply *r, const struct gr_turn_text *t, uint32_t first, uint32_t end)
{
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array();
    size_t at = first > 0 ? t->text_end[first - 1] : 0;
    size_t offset = characters(t->stream.text, GR_MIN(at, t->stream.len));
    for (uint32_t i = first; i < end; i++) {
        const bool known = gr_logprobs_has(&t->logprobs, i);
        json_array_append_new(tokens, token_string(r->tok, t->token[i], NULL));
        json_array_append_new(values, known ? json_real(value_of(t->logprobs.value[(size_t)i * t->logprobs.n_each]))
                                            : json_null());
        json_array_append_new(tops, known ? top_of(r, t, i) : json_null());
        json_array_append_new(offsets, json_integer((json_int_t)offset));
        const size_t next = GR_MIN(t->text_end[i], t->stream.len);
        offset += next > at ? characters(t->stream.text + at, next - at) : 0;
        at = GR_MAX(next, at);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops,
                     "text_offset", offsets);
}

static json_t *logprobs_of(const struct gr_reply *r, const struct gr_reply_answer *a, uint32_t first, uint32_t end)
{
    if (!a->with_logprobs) {
        return json_null();
    }
    return r->endpoint == GR_API_CHAT ? chat_logprobs(r, a->turn, first, end)
                                      : completion_logprobs(r, a->turn, first, end);
}

/* ---- answers ---- */

static json_t *text_or_null(const char *text)
{
    return text != NULL ? json_string(text) : json_null();
}

static json_t *usage_json(const struct gr_usage *u)
{
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)u->prompt_tokens, "completion_tokens",
                     (json_int_t)u->completion_tokens, "total_tokens",
                     (json_int_t)(u->prompt_tokens + u->completion_tokens), "prompt_tokens_details", "cached_tokens",
                     (json_int_t)u->cached_tokens);
}

static double ratio(uint64_t a, uint64_t b)
{
    return b > 0 ? (double)a / (double)b : 0.0;
}

/* Element i: trees of which i tokens were accepted; to the last one that has any. */
static json_t *acceptance_histogram(const struct gr_usage *u)
{
    json_t *list = json_array();
    uint64_t at_least = u->num_drafts;
    for (int i = 0; at_least > 0; i++) {
        const uint64_t more = i < GR_NODE_MAX ? u->accepted_per_position[i] : 0;
        json_array_append_new(list, json_integer((json_int_t)(at_least - more)));
        at_least = more;
    }
    return list;
}

/* vLLM's names of an answer's metrics, and after them graft's own. */
static json_t *metrics_json(const struct gr_usage *u)
{
    const double mean = 1.0 + ratio(u->num_accepted_tokens, u->num_drafts);
    json_t *spec = json_pack(
        "{s:f, s:f, s:o, s:I, s:I, s:I, s:I}", "mean_acceptance_length", mean, "draft_acceptance_rate",
        ratio(u->num_accepted_tokens, u->num_draft_tokens), "acceptance_histogram", acceptance_histogram(u),
        "num_spec_steps", (json_int_t)u->num_drafts, "num_accepted_draft_tokens", (json_int_t)u->num_accepted_tokens,
        "num_draft_tokens", (json_int_t)u->num_draft_tokens, "num_spec_tokens", (json_int_t)u->num_spec_tokens);
    json_t *own = json_pack("{s:I, s:I, s:I, s:I}", "num_drafts", (json_int_t)u->num_drafts, "num_accepted_tokens",
                            (json_int_t)u->num_accepted_tokens, "draft_ahead_verdicts",
                            (json_int_t)u->draft_ahead_verdicts, "draft_ahead_hits", (json_int_t)u->draft_ahead_hits);
    if (spec == NULL || json_object_update(spec, own) != 0) {
        json_decref(spec);
        spec = NULL;
    }
    json_decref(own);
    return json_pack("{s:o}", "speculative_decoding", spec);
}

static json_t *choice_json(const struct gr_reply *r, const struct gr_reply_answer *a)
{
    const struct gr_text_stream *s = &a->turn->stream;
    json_t *text = json_stringn(s->text != NULL ? s->text : "", s->len);
    json_t *logprobs = logprobs_of(r, a, 0, a->turn->n_final);
    if (r->endpoint == GR_API_COMPLETIONS) {
        return json_pack("{s:i, s:o, s:o, s:o}", "index", a->index, "text", text, "logprobs", logprobs, "finish_reason",
                         text_or_null(a->finish));
    }
    return json_pack("{s:i, s:{s:s, s:o, s:n}, s:o, s:o}", "index", a->index, "message", "role", "assistant", "content",
                     text, "refusal", "logprobs", logprobs, "finish_reason", text_or_null(a->finish));
}

static json_t *envelope(const struct gr_reply *r, bool chunk, json_t *choices)
{
    const char *object = r->endpoint == GR_API_COMPLETIONS ? "text_completion"
                         : chunk                           ? "chat.completion.chunk"
                                                           : "chat.completion";
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", r->id, "object", object, "created", (json_int_t)r->created_s,
                     "model", r->model, "choices", choices);
}

char *gr_reply_whole(const struct gr_reply *r, const struct gr_reply_answer *answers, int n, const struct gr_usage *u)
{
    json_t *choices = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(choices, choice_json(r, &answers[i]));
    }
    json_t *root = envelope(r, false, choices);
    if (root != NULL) {
        json_object_set_new(root, "usage", usage_json(u));
        json_object_set_new(root, "metrics", metrics_json(u));
    }
    return dump(root);
}

static json_t *delta_json(const struct gr_reply_piece *p)
{
    json_t *delta = json_object();
    if (p->begins) {
        json_object_set_new(delta, "role", json_string("assistant"));
    }
    if (p->begins || p->len > 0) {
        json_object_set_new(delta, "content", json_stringn(p->text, p->len));
    }
    return delta;
}

char *gr_reply_chunk(const struct gr_reply *r, const struct gr_reply_answer *a, const struct gr_reply_piece *p)
{
    const bool chat = r->endpoint == GR_API_CHAT;
    json_t *choice = json_pack("{s:i, s:o, s:o, s:o}", "index", a->index, chat ? "delta" : "text",
                               chat ? delta_json(p) : json_stringn(p->text, p->len), "logprobs",
                               p->end > p->first ? logprobs_of(r, a, p->first, p->end) : json_null(), "finish_reason",
                               text_or_null(a->finish));
    json_t *root = envelope(r, true, json_pack("[o]", choice));
    if (root != NULL && r->include_usage) {
        json_object_set_new(root, "usage", json_null());
    }
    return dump(root);
}

char *gr_reply_round_chunk(const struct gr_reply *r, int index, const struct gr_msg_commit *m)
{
    json_t *root = envelope(r, true, json_array());
    json_t *round = gr_round_json(r->tok, m);
    if (root != NULL && round != NULL) {
        json_object_set_new(root, "graft", json_pack("{s:i, s:o}", "index", index, "round", round));
    } else {
        json_decref(round);
    }
    return dump(root);
}

char *gr_reply_usage_chunk(const struct gr_reply *r, const struct gr_usage *u)
{
    json_t *root = envelope(r, true, json_array());
    if (root != NULL) {
        json_object_set_new(root, "usage", usage_json(u));
        json_object_set_new(root, "metrics", metrics_json(u));
    }
    return dump(root);
}
