/* Which models fit together, by their files: looked at before workers start, so that one line tells it, and not one of
 * each worker. */
#include "orchestrator/cli/plan.h"

#include "common/base/log.h"
#include "model/files/capture.h"
#include "model/files/head_fit.h"
#include "model/files/model_path.h"
#include "model/tokenizer/tokenizer_of_model.h"

#include <string.h>

enum gr_status gr_plan_check_target(const struct gr_options *o, const struct gr_hf_config *target)
{
    if (gr_hf_is_eagle3(target)) {
        log_error("%s is an EAGLE-3 head; it goes with --draft, and --model is its target", o->model);
        return GR_EFORMAT;
    }
    return GR_OK;
}

/* ---- a head ---- */

/* n: layers of --capture-layers; 0: not given. */
static enum gr_status check_head_files(const struct gr_options *o, const struct gr_hf_config *head,
                                       const struct gr_hf_config *target, int n, const int *layer)
{
    struct gr_tensors *files = NULL;
    struct gr_capture capture = {.n = 0};
    GR_TRY(gr_model_path_open(o->draft, &files));
    enum gr_status st = gr_head_fit_check(o->draft, head, files, o->model, target);
    if (st == GR_OK) {
        st = gr_capture_choose(o->draft, head, target->n_layer, n, layer, &capture);
    }
    if (st == GR_OK) {
        st = gr_head_fit_check_fc(o->draft, head, files, capture.n, target->hidden);
    }
    gr_tensors_close(files);
    return st;
}

static enum gr_status check_head(const struct gr_options *o, const struct gr_hf_config *target)
{
    struct gr_hf_config head;
    int n = 0, layer[GR_CAPTURE_MAX];
    GR_TRY(gr_model_path_config(o->draft, &head));
    GR_TRY(o->capture_layers != NULL ? gr_capture_parse(o->capture_layers, &n, layer) : GR_OK);
    if (n > 0 && layer[n - 1] > target->n_layer) { /* they rise */
        log_error("--capture-layers: there is no input of layer %d, %s has %d layers", layer[n - 1], o->model,
                  target->n_layer);
        return GR_EINVAL;
    }
    return check_head_files(o, &head, target, n, layer);
}

/* ---- a draft model ---- */

/* Ids that are sampled: rows of the vocabulary that no token has are padding. */
static int32_t n_id(const struct gr_hf_config *hf, const struct gr_tokenizer *tok)
{
    return GR_MIN(hf->n_vocab, gr_tokenizer_n_vocab_or_all(tok));
}

static enum gr_status compare(const struct gr_options *o, const struct gr_hf_config *target,
                              const struct gr_tokenizer *target_tok, const struct gr_hf_config *draft,
                              const struct gr_tokenizer *draft_tok)
{
    if (target_tok != NULL && draft_tok != NULL &&
        gr_tokenizer_fingerprint(draft_tok) != gr_tokenizer_fingerprint(target_tok)) {
        log_error("the tokenizer of --draft %s differs from that of --model %s: all need one tokenizer", o->draft,
                  o->model);
        return GR_EMISMATCH;
    }
    if (n_id(draft, draft_tok) != n_id(target, target_tok)) {
        log_error("--draft %s has a vocabulary of %d ids, --model %s one of %d: all need one vocabulary", o->draft,
                  n_id(draft, draft_tok), o->model, n_id(target, target_tok));
        return GR_EMISMATCH;
    }
    return GR_OK;
}

static enum gr_status check_draft_model(const struct gr_options *o, const struct gr_hf_config *target,
                                        const struct gr_tokenizer *target_tok)
{
    struct gr_model_meta meta;
    struct gr_tokenizer *tok = NULL;
    GR_TRY(gr_model_meta_open(o->draft, &meta));
    enum gr_status st = gr_tokenizer_of_files(o->draft, gr_model_meta_gguf(&meta), &tok);
    if (st == GR_OK) {
        st = compare(o, target, target_tok, &meta.hf, tok);
    }
    gr_tokenizer_destroy(tok);
    gr_model_meta_close(&meta);
    return st;
}

/* ---- all of them ---- */

enum gr_status gr_plan_check_drafter(const struct gr_options *o, const struct gr_plan *plan,
                                     const struct gr_hf_config *target, const struct gr_tokenizer *target_tok)
{
    if (plan->remote || !plan->wishes.want_draft) {
        return GR_OK;
    }
    return plan->with_head ? check_head(o, target) : check_draft_model(o, target, target_tok);
}

enum gr_status gr_plan_check_models(const struct gr_options *o, const struct gr_plan *plan)
{
    struct gr_model_meta meta;
    struct gr_tokenizer *tok = NULL;
    GR_TRY(gr_model_meta_open(o->model, &meta));
    enum gr_status st = gr_plan_check_target(o, &meta.hf);
    if (st == GR_OK) {
        st = gr_tokenizer_of_files(o->model, gr_model_meta_gguf(&meta), &tok);
    }
    if (st == GR_OK) {
        st = gr_plan_check_drafter(o, plan, &meta.hf, tok);
    }
    gr_tokenizer_destroy(tok);
    gr_model_meta_close(&meta);
    return st;
}
