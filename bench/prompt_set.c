#include "bench/prompt_set.h"

#include "bench/long_text.h"
#include "bench/paths.h"
#include "common/base/log.h"
#include "model/tokenizer/tokenizer_of_model.h"

#include <stdlib.h>
#include <string.h>

#define N_CUT_DEFAULT 4 /* prompts that are cut out of texts */

static enum gr_status count(const struct gr_prompt_set_options *o, int n_there, int *n_out)
{
    if (o->n_prompt > n_there) {
        log_error("--num-prompts: `%d' is not a whole number from 1 to %d, which there are", o->n_prompt, n_there);
        return GR_EINVAL;
    }
    *n_out = o->n_prompt > 0 ? o->n_prompt : n_there;
    return GR_OK;
}

static enum gr_status encode(const struct gr_tokenizer *tok, const char *text, struct gr_prompt *p)
{
    const size_t len = strlen(text);
    const size_t cap = gr_tokenizer_encode_bound(tok, len);
    size_t n = 0;
    p->id = malloc((cap > 0 ? cap : 1) * sizeof(*p->id));
    if (p->id == NULL) {
        log_error("out of memory for a prompt of %zu bytes", len);
        return GR_ENOMEM;
    }
    GR_TRY(gr_tokenizer_encode(tok, text, len, true, p->id, cap, &n));
    p->n = (uint32_t)n;
    return GR_OK;
}

static enum gr_status load_whole(const struct gr_prompt_set_options *o, struct gr_prompt_set *s)
{
    const char *text[GR_BENCH_PROMPT_MAX];
    struct gr_tokenizer *tok = NULL;
    const int n_there = gr_bench_load_prompts(o->prompts, o->kind, text);
    if (n_there == 0) {
        return GR_EFORMAT;
    }
    GR_TRY(count(o, n_there, &s->n));
    enum gr_status st = gr_tokenizer_of_model_required(o->model, &tok);
    for (int i = 0; i < s->n && st == GR_OK; i++) {
        st = encode(tok, text[i], &s->prompt[i]);
    }
    gr_tokenizer_destroy(tok);
    return st;
}

static enum gr_status cut(const struct gr_long_text *t, int i, int n_window, int32_t n_id, struct gr_prompt *p)
{
    p->id = malloc((size_t)n_id * sizeof(*p->id));
    if (p->id == NULL) {
        log_error("out of memory for a prompt of %d tokens", n_id);
        return GR_ENOMEM;
    }
    p->n = (uint32_t)n_id;
    return gr_long_text_window(t, i, n_window, n_id, p->id);
}

static enum gr_status load_cut(const struct gr_prompt_set_options *o, struct gr_prompt_set *s)
{
    struct gr_long_text t = {0};
    const int32_t n_id = o->prompt_tokens;
    GR_TRY(count(o, o->n_prompt > 0 ? GR_BENCH_PROMPT_MAX : N_CUT_DEFAULT, &s->n));
    GR_TRY(gr_long_text_load(o->model, o->prompts, o->kind, o->text, &t));
    enum gr_status st = GR_OK;
    for (int i = 0; i < s->n && st == GR_OK; i++) {
        st = cut(&t, i, s->n, n_id, &s->prompt[i]);
    }
    gr_long_text_free(&t);
    return st;
}

struct gr_prompt_set_options gr_prompt_set_options_of(const struct gr_bench_options *o)
{
    return (struct gr_prompt_set_options){.prompts = o->prompts,
                                          .kind = o->prompt_kind,
                                          .n_prompt = (int)o->num_prompts,
                                          .prompt_tokens = (int32_t)o->prompt_tokens,
                                          .text = gr_bench_path_of(o, GR_BENCH_OPTION_text)};
}

enum gr_status gr_prompt_set_load(const struct gr_prompt_set_options *o, struct gr_prompt_set *out)
{
    *out = (struct gr_prompt_set){.max_tokens = o->max_tokens};
    if (o->kind != NULL && o->prompts == NULL) {
        log_error("--prompt-kind %s: kinds are those of a file of --prompts", o->kind);
        return GR_EINVAL;
    }
    GR_TRY(o->prompt_tokens > 0 ? load_cut(o, out) : load_whole(o, out));
    for (int i = 0; i < out->n; i++) {
        out->n_id_max = GR_MAX(out->n_id_max, out->prompt[i].n);
    }
    return GR_OK;
}

void gr_prompt_set_free(struct gr_prompt_set *s)
{
    for (int i = 0; i < GR_BENCH_PROMPT_MAX; i++) {
        free(s->prompt[i].id);
        free(s->prompt[i].reference);
    }
    *s = (struct gr_prompt_set){0};
}

static enum gr_status keep_reference(struct gr_prompt_set *s, int i, const int32_t *token, uint32_t n_token)
{
    if (n_token != s->max_tokens) {
        log_error("prompt %d run alone gave %u tokens, %u were asked for", i, n_token, s->max_tokens);
        return GR_EFORMAT;
    }
    s->prompt[i].reference = malloc(n_token * sizeof(*token));
    if (s->prompt[i].reference == NULL) {
        log_error("out of memory for %u tokens", n_token);
        return GR_ENOMEM;
    }
    memcpy(s->prompt[i].reference, token, n_token * sizeof(*token));
    return GR_OK;
}

enum gr_status gr_prompt_set_check(struct gr_prompt_set *s, int i, const int32_t *token, uint32_t n_token,
                                   const char *what)
{
    const struct gr_prompt *p = &s->prompt[i];
    if (p->reference == NULL) {
        return keep_reference(s, i, token, n_token);
    }
    for (uint32_t k = 0; k < s->max_tokens; k++) {
        if (k >= n_token || token[k] != p->reference[k]) {
            log_error("%s: token %u differs from prompt %d run alone and plainly", what, k, i);
            return GR_EMISMATCH;
        }
    }
    return GR_OK;
}
