/* What a generation needs before its first turn: model, tokenizer, wishes, prompt, room for the answer. */
#include "common/base/log.h"
#include "model/files/model_path.h"
#include "model/tokenizer/tokenizer_of_model.h"
#include "orchestrator/cli/adjust_resolve.h"
#include "orchestrator/cli/generate_internal.h"
#include "orchestrator/cli/prompt.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define DRAWN_SEED_MAX ((1ull << 53) - 1) /* the largest integer that a JSON number holds exactly */

/* A drawn one is told, so that the text can be had again: it is one that --seed takes, and that a JSON number holds. */
static void draw_seed(struct gr_generation *g)
{
    uint64_t *seed = &g->plan.wishes.sampling.seed;
    randombytes_buf(seed, sizeof(*seed));
    *seed &= DRAWN_SEED_MAX;
    if (g->o->seed >= 0) {
        *seed = (uint64_t)g->o->seed;
    }
}

/* Ids that both the model and its tokenizer have. */
static int32_t n_vocab_of(const struct gr_generation *g)
{
    return GR_MIN(g->hf.n_vocab, gr_tokenizer_n_vocab_or_all(g->tok));
}

void gr_generation_init(struct gr_generation *g, const struct gr_options *o)
{
    *g = (struct gr_generation){.o = o, .n_answer = 1, .first_difference = -1};
}

static enum gr_status read_model(struct gr_generation *g, const struct gr_options *o)
{
    struct gr_model_meta meta;
    GR_TRY(gr_model_meta_open(o->model, &meta));
    const struct gr_gguf *gguf = gr_model_meta_gguf(&meta);
    g->hf = meta.hf;
    enum gr_status st = gr_plan_check_target(o, &g->hf);
    if (st == GR_OK) {
        st = gr_tokenizer_of_files(o->model, gguf, &g->tok);
    }
    if (st == GR_OK && o->chat) {
        st = gr_chat_setup_open(o, gguf, g->tok, &g->chat);
    }
    gr_model_meta_close(&meta);
    return st;
}

enum gr_status gr_generation_prepare_model(struct gr_generation *g, const struct gr_options *o,
                                           const struct gr_plan *plan)
{
    g->o = o;
    g->plan = *plan;
    GR_TRY(read_model(g, o));
    GR_TRY(gr_plan_check_drafter(o, plan, &g->hf, g->tok));
    const int32_t n_vocab = n_vocab_of(g);
    GR_TRY(gr_adjust_resolve(o, g->tok, n_vocab, &g->plan.wishes.adjust));
    GR_TRY(gr_stops_resolve(o, &g->hf, g->tok, g->hf.n_vocab, &g->plan.wishes.turn.stop_ids));
    if (o->chat && g->tok != NULL && !o->ignore_eos) {
        GR_TRY(gr_stops_add_chat(&g->chat.chat, g->tok, &g->plan.wishes.turn.stop_ids));
    }
    g->plan.wishes.turn.n_logprob = (uint32_t)GR_MIN(1 + o->logprobs, 1 + (int64_t)n_vocab);
    draw_seed(g);
    return GR_OK;
}

/* Room for what comes. */
static enum gr_status prepare_answer(struct gr_generation *g)
{
    const struct gr_turn_text_config c = {.tok = g->tok,
                                          .stop = g->o->stop.word,
                                          .n_stop = g->o->stop.n,
                                          .max_tokens = (uint32_t)g->o->max_tokens,
                                          .min_tokens = (uint32_t)g->o->min_tokens,
                                          .n_logprob = g->plan.wishes.turn.n_logprob};
    return gr_turn_text_init(&g->turn, &c);
}

enum gr_status gr_generation_prepare_turn(struct gr_generation *g, const struct gr_generation *model,
                                          const int32_t *prompt, uint32_t n)
{
    gr_generation_init(g, model->o);
    g->plan = model->plan;
    g->hf = model->hf;
    g->tok = model->tok;
    g->borrows = true;
    g->n_prompt = n;
    g->prompt = malloc(n * sizeof(*prompt));
    if (g->prompt == NULL) {
        log_error("out of memory for %u tokens", n);
        return GR_ENOMEM;
    }
    memcpy(g->prompt, prompt, n * sizeof(*prompt));
    return prepare_answer(g);
}

enum gr_status gr_generation_prepare(struct gr_generation *g, const struct gr_options *o, const struct gr_plan *plan)
{
    if (o->logprobs >= 0 && !o->json) {
        char what[4400];
        log_error("%s: log-probabilities are shown in JSON alone: give --json, too",
                  gr_option_shown(o, GR_OPTION_logprobs, what, sizeof(what)));
        return GR_EINVAL;
    }
    GR_TRY(gr_generation_prepare_model(g, o, plan));
    const struct gr_chat *chat = o->chat ? &g->chat.chat : NULL;
    GR_TRY(gr_prompt_read(o, g->tok, chat, n_vocab_of(g), &g->prompt, &g->n_prompt));
    GR_TRY(prepare_answer(g));
    return o->trace_file != NULL ? gr_trace_file_create(o->trace_file, &g->trace_file) : GR_OK;
}

void gr_generation_finish(struct gr_generation *g)
{
    gr_turn_text_finish(&g->turn);
    if (!g->borrows) {
        gr_chat_setup_close(&g->chat);
        gr_tokenizer_destroy(g->tok);
    }
    gr_trace_file_destroy(g->trace_file);
    free(g->prompt);
}
