#include "orchestrator/http/ask.h"

#include "orchestrator/answer/bans.h"
#include "orchestrator/answer/ends.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define COMPLETION_TOKENS 16 /* of /v1/completions where a request does not say: the API's default */

static enum gr_status no_memory(struct gr_api_error *e)
{
    return gr_api_refuse(e, 500, NULL, "out of memory");
}

/* ---- prompts ---- */

enum gr_status gr_ask_text_ids(const struct gr_served *model, const char *text, size_t len, bool special,
                               int32_t **ids_out, uint32_t *n_out, struct gr_api_error *e)
{
    const size_t cap = gr_tokenizer_encode_bound(model->tok, len);
    size_t n = 0;
    int32_t *ids = malloc(GR_MAX(cap, (size_t)1) * sizeof(*ids));
    if (ids == NULL) {
        return no_memory(e);
    }
    if (gr_tokenizer_encode(model->tok, text, len, special ? GR_ENCODE_BOS : 0u, ids, cap, &n) != GR_OK) {
        free(ids);
        return gr_api_refuse(e, 400, "prompt", "prompt: the text of %zu bytes cannot be encoded", len);
    }
    *ids_out = ids;
    *n_out = (uint32_t)n;
    return GR_OK;
}

static enum gr_status check_ids(const struct gr_served *model, const int32_t *id, size_t n, const char *param,
                                struct gr_api_error *e)
{
    for (size_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= model->n_vocab) {
            return gr_api_refuse(e, 400, param, "%s: %d is no token id; the vocabulary has ids 0 to %d", param, id[i],
                                 model->n_vocab - 1);
        }
    }
    return GR_OK;
}

static enum gr_status copy_ids(const struct gr_served *model, const struct gr_api_prompt *p, struct gr_ask_prompt *out,
                               struct gr_api_error *e)
{
    GR_TRY(check_ids(model, p->ids, p->n_ids, "prompt", e));
    out->ids = malloc(p->n_ids * sizeof(*out->ids));
    if (out->ids == NULL) {
        return no_memory(e);
    }
    memcpy(out->ids, p->ids, p->n_ids * sizeof(*out->ids));
    out->n_ids = (uint32_t)p->n_ids;
    return GR_OK;
}

static struct gr_chat_message chat_message(const struct gr_api_message *m)
{
    static const enum gr_chat_role roles[] = {
        [GR_API_SYSTEM] = GR_CHAT_SYSTEM, [GR_API_USER] = GR_CHAT_USER, [GR_API_ASSISTANT] = GR_CHAT_ASSISTANT};
    return (struct gr_chat_message){.role = roles[m->role], .text = m->text, .len = m->len};
}

static enum gr_status check_chat(const struct gr_served *model, const struct gr_api_request *r, struct gr_api_error *e)
{
    if (model->chat.form == NULL) {
        return gr_api_refuse(e, 400, "model",
                             "the model has no chat template that is known; /v1/completions takes its prompts");
    }
    if (r->no_thinking && !gr_chat_thinks(model->chat.form)) {
        return gr_api_refuse(e, 400, "chat_template_kwargs",
                             "enable_thinking: the chat template %s cannot tell the model not to think",
                             gr_chat_name(model->chat.form));
    }
    return GR_OK;
}

enum gr_status gr_ask_chat_ids(const struct gr_served *model, const struct gr_api_request *r, int32_t **ids_out,
                               uint32_t *n_out, struct gr_api_error *e)
{
    struct gr_chat chat = model->chat;
    size_t n = 0;
    GR_TRY(check_chat(model, r, e));
    chat.no_thinking = r->no_thinking;
    chat.goes_on = r->go_on;
    struct gr_chat_message *m = malloc((size_t)r->n_message * sizeof(*m));
    if (m == NULL) {
        return no_memory(e);
    }
    for (int i = 0; i < r->n_message; i++) {
        m[i] = chat_message(&r->message[i]);
    }
    const enum gr_status st = gr_chat_ids(&chat, model->tok, m, (size_t)r->n_message, ids_out, &n);
    free(m);
    if (st != GR_OK) {
        return gr_api_refuse(e, 400, "messages", "the chat template %s does not take these roles in this order",
                             gr_chat_name(model->chat.form));
    }
    *n_out = (uint32_t)n;
    return GR_OK;
}

static enum gr_status make_prompt(const struct gr_api_request *r, const struct gr_served *model, int i,
                                  struct gr_ask_prompt *out, struct gr_api_error *e)
{
    if (r->endpoint == GR_API_CHAT) {
        GR_TRY(gr_ask_chat_ids(model, r, &out->ids, &out->n_ids, e));
    } else if (r->prompt[i].text != NULL) {
        GR_TRY(gr_ask_text_ids(model, r->prompt[i].text, r->prompt[i].len, r->add_special, &out->ids, &out->n_ids, e));
    } else {
        GR_TRY(copy_ids(model, &r->prompt[i], out, e));
    }
    return out->n_ids > 0 ? GR_OK : gr_api_refuse(e, 400, "prompt", "the prompt is empty: give at least one token");
}

/* A limit that is given must fit; one that is not is what there is room for. */
static enum gr_status set_limit(const struct gr_api_request *r, uint32_t n_ctx, struct gr_ask_prompt *p,
                                struct gr_api_error *e)
{
    const bool chat = r->endpoint == GR_API_CHAT;
    if (p->n_ids >= n_ctx) {
        (void)gr_api_refuse(e, 400, chat ? "messages" : "prompt",
                            "the prompt has %u tokens, and the model's context %u, an answer included", p->n_ids,
                            n_ctx);
        e->code = "context_length_exceeded";
        return GR_EINVAL;
    }
    const int64_t room = n_ctx - p->n_ids;
    if (r->max_tokens == GR_API_NOT_GIVEN) {
        p->max_tokens = (uint32_t)(chat ? room : GR_MIN(room, (int64_t)COMPLETION_TOKENS));
        p->max_tokens = (uint32_t)GR_MAX((int64_t)p->max_tokens, GR_MIN(r->min_tokens, room));
        return GR_OK;
    }
    if (r->max_tokens > room) {
        (void)gr_api_refuse(e, 400, chat ? "max_completion_tokens" : "max_tokens",
                            "%lld tokens after a prompt of %u are more than the model's context, %u",
                            (long long)r->max_tokens, p->n_ids, n_ctx);
        e->code = "context_length_exceeded";
        return GR_EINVAL;
    }
    p->max_tokens = (uint32_t)r->max_tokens;
    return GR_OK;
}

static enum gr_status make_prompts(const struct gr_api_request *r, const struct gr_served *model, uint32_t n_ctx,
                                   struct gr_ask *out, struct gr_api_error *e)
{
    const int n = r->endpoint == GR_API_CHAT ? 1 : r->n_prompt;
    out->prompt = calloc((size_t)n, sizeof(*out->prompt));
    if (out->prompt == NULL) {
        return no_memory(e);
    }
    out->n_each = (int)r->n;
    for (int i = 0; i < n; i++) {
        out->n_prompt++;
        GR_TRY(make_prompt(r, model, i, &out->prompt[i], e));
        GR_TRY(set_limit(r, n_ctx, &out->prompt[i], e));
    }
    return GR_OK;
}

/* ---- wishes ---- */

static void take_sampling(const struct gr_api_request *r, struct gr_sampling *s)
{
    s->temperature = (float)r->temperature;
    s->top_p = (float)r->top_p;
    s->min_p = (float)r->min_p;
    s->top_k = (int32_t)r->top_k;
    s->seed = (uint64_t)r->seed;
    if (r->seed == GR_API_NOT_GIVEN) {
        randombytes_buf(&s->seed, sizeof(s->seed));
    }
}

static void take_speculation(const struct gr_api_request *r, struct gr_wishes *w)
{
    static const struct {
        const char *word;
        enum gr_specpv_mode mode;
    } modes[] = {
        {"off", GR_SPECPV_OFF}, {"lossy", GR_SPECPV_LOSSY}, {"exact", GR_SPECPV_EXACT}, {"auto", GR_SPECPV_AUTO}};
    for (size_t i = 0; r->specpv != NULL && i < GR_ARRAY_LEN(modes); i++) {
        w->specpv = strcmp(r->specpv, modes[i].word) == 0 ? modes[i].mode : w->specpv;
    }
    if (r->num_speculative_tokens != GR_API_NOT_GIVEN) {
        w->want_draft = w->want_draft && r->num_speculative_tokens > 0;
        w->auto_tree = false;
        w->n_node = (uint32_t)GR_MAX(r->num_speculative_tokens, (int64_t)1);
    }
}

static enum gr_status take_bans(const struct gr_api_request *r, const struct gr_served *model, struct gr_wishes *w,
                                struct gr_api_error *e)
{
    struct gr_bans b = {.tok = model->tok,
                        .n_vocab = model->n_vocab,
                        .a = {.repetition = (float)r->repetition_penalty,
                              .frequency = (float)r->frequency_penalty,
                              .presence = (float)r->presence_penalty}};
    for (int32_t i = 0; i < r->biased.n; i++) {
        if (gr_bans_add_bias(&b, r->biased.id[i], (double)r->bias.value[i]) != GR_OK) {
            return gr_api_refuse(e, 400, "logit_bias", "logit_bias: %.200s", b.why);
        }
    }
    for (int i = 0; i < r->n_bad_word; i++) {
        if (gr_bans_add_word(&b, r->bad_word[i]) != GR_OK) {
            return gr_api_refuse(e, 400, "bad_words", "bad_words: %.200s", b.why);
        }
    }
    gr_adjust_copy(&w->adjust, &b.a);
    return GR_OK;
}

static enum gr_status too_many_ends(enum gr_status st, struct gr_api_error *e)
{
    return st != GR_ELIMIT ? st
                           : gr_api_refuse(e, 400, "stop_token_ids",
                                           "more than %d token ids end an answer, the model's own "
                                           "included",
                                           GR_STOP_ID_MAX);
}

static enum gr_status add_string(struct gr_stop_ids *s, const struct gr_served *model, const char *text,
                                 struct gr_api_error *e)
{
    int32_t part = -1;
    const enum gr_status st = gr_ends_add_string(s, model->tok, text, &part);
    return st == GR_EINVAL ? gr_api_refuse(e, 400, "stop",
                                           "stop: a string holds special token %d and more; give it as a string of its "
                                           "own, or in stop_token_ids",
                                           part)
                           : too_many_ends(st, e);
}

static enum gr_status take_ends(const struct gr_api_request *r, const struct gr_served *model, struct gr_stop_ids *s,
                                struct gr_api_error *e)
{
    s->n = 0;
    if (!r->ignore_eos) {
        GR_TRY(too_many_ends(gr_ends_add_eos(s, &model->hf, model->tok, model->hf.n_vocab), e));
        GR_TRY(r->endpoint == GR_API_CHAT ? too_many_ends(gr_ends_add_chat(s, &model->chat, model->tok), e) : GR_OK);
    }
    GR_TRY(check_ids(model, r->stop_ids.id, (size_t)r->stop_ids.n, "stop_token_ids", e));
    for (int32_t i = 0; i < r->stop_ids.n; i++) {
        GR_TRY(too_many_ends(gr_ends_add(s, r->stop_ids.id[i]), e));
    }
    for (int i = 0; i < r->n_stop; i++) {
        GR_TRY(add_string(s, model, r->stop[i], e));
    }
    return GR_OK;
}

static enum gr_status take_wishes(const struct gr_api_request *r, const struct gr_served *model, struct gr_wishes *w,
                                  struct gr_api_error *e)
{
    take_sampling(r, &w->sampling);
    take_speculation(r, w);
    w->keep_open = false;
    w->queues = true;
    w->priority = (uint32_t)(r->priority + (int64_t)GR_PRIORITY_USUAL);
    GR_TRY(take_bans(r, model, w, e));
    GR_TRY(take_ends(r, model, &w->turn.stop_ids, e));
    w->turn.want_trace = r->rounds;
    w->turn.min_tokens = (uint32_t)r->min_tokens;
    w->turn.timeout_ns = GR_MAX((uint64_t)(r->timeout_s * 1e9), r->timeout_s > 0.0 ? (uint64_t)1 : 0);
    w->turn.n_logprob = (uint32_t)GR_MIN(r->n_logprob + 1, (int64_t)model->n_vocab + 1);
    const char *wrong = gr_wishes_wrong(w, model->n_vocab);
    return wrong == NULL ? GR_OK : gr_api_refuse(e, 400, NULL, "%s", wrong);
}

enum gr_status gr_ask_make(const struct gr_api_request *r, const struct gr_served *model,
                           const struct gr_ask_limits *limits, struct gr_ask *out, struct gr_api_error *e)
{
    *out = (struct gr_ask){0};
    gr_wishes_copy(&out->wishes, limits->base);
    GR_TRY(r->endpoint == GR_API_CHAT ? check_chat(model, r, e) : GR_OK);
    GR_TRY(take_wishes(r, model, &out->wishes, e));
    return make_prompts(r, model, limits->n_ctx, out, e);
}

void gr_ask_finish(struct gr_ask *a)
{
    for (int i = 0; i < a->n_prompt; i++) {
        free(a->prompt[i].ids);
    }
    free(a->prompt);
    a->prompt = NULL;
    a->n_prompt = 0;
}
