#include "model/llama_source.h"

#include "common/base/log.h"
#include "model/files/capture.h"
#include "model/files/family.h"
#include "model/fc.h"
#include "model/files/fingerprint.h"
#include "model/files/model_path.h"
#include "model/files/head_fit.h"
#include "model/layer.h"
#include "model/load/shapes.h"

#include <string.h>

/* The head's layers and fc. Sets what is captured; the fc's weights are read by the runtimes. */
static enum gr_status open_head(struct gr_llama_source *s, const struct gr_llama_config *c)
{
    GR_TRY(gr_model_path_config(c->head_dir, &s->head));
    GR_TRY(gr_model_path_open(c->head_dir, &s->head_files));
    GR_TRY(gr_head_fit_check(c->head_dir, &s->head, s->head_files, c->dir, &s->hf));
    struct gr_capture capture;
    GR_TRY(gr_capture_choose(c->head_dir, &s->head, s->hf.n_layer, c->n_capture, c->capture_layer, &capture));
    GR_TRY(gr_head_fit_check_fc(c->head_dir, &s->head, s->head_files, capture.n, s->hf.hidden));
    gr_capture_log(c->head_dir, &capture);
    gr_capture_text(&capture, s->captures, sizeof(s->captures));
    s->n_capture = capture.n;
    memcpy(s->capture_layer, capture.layer, sizeof(s->capture_layer));
    return GR_OK;
}

/* What is expanded computes as before; the rules for that know Llama's tensors only. */
static enum gr_status check_expandable(const struct gr_llama_config *c, const struct gr_hf_config *hf)
{
    if (strcmp(hf->architecture, "LlamaForCausalLM") != 0 || hf->qkv_bias || hf->mlp_bias) {
        log_error("--geometry: %s is %s%s; only a LlamaForCausalLM without biases is expanded", c->dir,
                  hf->architecture, hf->qkv_bias || hf->mlp_bias ? " with biases" : "");
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

/* From here on everything is sized for the geometry; what is captured follows the layers. */
static enum gr_status expand(struct gr_llama_source *s, const struct gr_llama_config *c)
{
    GR_TRY(check_expandable(c, &s->hf));
    GR_TRY(gr_expand_init(&s->expand, c->geometry, c->dir, &s->hf));
    if (c->geometry_positions) {
        gr_expand_positions(c->geometry, &s->hf);
    }
    for (int i = 0; i < s->n_capture; i++) {
        s->capture_layer[i] = gr_expand_layer(&s->expand, s->capture_layer[i]);
    }
    if (c->group != NULL && c->group->rank > 0) {
        return GR_OK; /* rank 0 has told, and it alone serves a head */
    }
    log_warn("%s: expanded to the geometry of %s: what a pass costs is that of %s, what is predicted and accepted that "
             "of %s",
             c->dir, c->geometry->name, c->geometry->name, c->dir);
    return c->head_dir != NULL ? gr_expand_config(c->geometry, c->head_dir, &s->head) : GR_OK;
}

static enum gr_status check_config(const struct gr_llama_config *c, const struct gr_hf_config *hf)
{
    if (!gr_family_find(hf->architecture)->runs) {
        log_error("%s/config.json: architecture %s is not run as a model; known: " GR_FAMILIES_RUN, c->dir,
                  hf->architecture);
        return GR_EUNSUPPORTED;
    }
    GR_TRY(gr_head_dim_check(c->dir, hf->head_dim));
    for (int i = 0; i < c->n_capture; i++) {
        if (c->capture_layer[i] < 0 || c->capture_layer[i] > hf->n_layer) {
            log_error("capture layer %d: %s has %d layers", c->capture_layer[i], c->dir, hf->n_layer);
            return GR_EINVAL;
        }
    }
    return GR_OK;
}

/* A model that was trained in bf16 had its embedding scaled by a bf16 number; weights that are held as f32 mean
 * arithmetic in f32, where Hugging Face transformers and llama.cpp take the number as it is. */
static void round_embed_scale(const struct gr_llama_config *c, struct gr_hf_config *hf)
{
    if (c->as != GR_WEIGHTS_F32) {
        hf->embed_scale = gr_bf16_to_f32(gr_bf16_from_f32(hf->embed_scale));
    }
}

enum gr_status gr_llama_source_open(const struct gr_llama_config *c, struct gr_llama_source *out)
{
    struct gr_llama_source *s = out;
    *s = (struct gr_llama_source){.dir = c->dir, .n_capture = c->n_capture, .as = c->as};
    memcpy(s->capture_layer, c->capture_layer, sizeof(s->capture_layer));
    GR_TRY(gr_model_path_config(c->dir, &s->hf));
    GR_TRY(check_config(c, &s->hf));
    round_embed_scale(c, &s->hf);
    if (c->head_dir != NULL) {
        GR_TRY(open_head(s, c));
    }
    if (c->geometry != NULL) {
        GR_TRY(expand(s, c));
    }
    return gr_model_path_open(c->dir, &s->files);
}

void gr_llama_source_close(struct gr_llama_source *s)
{
    gr_tensors_close(s->head_files);
    gr_tensors_close(s->files);
    s->head_files = s->files = NULL;
}

void gr_llama_source_describe(const struct gr_llama_source *s, const struct gr_llama_config *c, struct gr_lm *lm)
{
    const struct gr_hf_config *hf = &s->hf;
    lm->n_vocab = c->n_token > 0 ? GR_MIN(hf->n_vocab, c->n_token) : hf->n_vocab;
    lm->n_vocab_stride = gr_vocab_stride(gr_hf_vocab_rows(hf));
    lm->n_ctx_max = c->n_ctx_max > 0 ? GR_MIN(c->n_ctx_max, hf->max_pos) : hf->max_pos;
    lm->n_row_max = c->n_row_max;
    lm->n_out_max = c->n_out_max;
    lm->n_pool_block = c->n_pool_block;
    lm->n_scratch_block = c->n_scratch_block;
    lm->n_capture = s->n_capture;
    lm->capture_width = hf->hidden;
    memcpy(lm->captures, s->captures, sizeof(lm->captures));
    if (s->head_files != NULL) {
        lm->raw_features = c->raw_features;
        lm->fused_width = s->head.hidden;
        lm->fc_fingerprint = gr_fc_fingerprint(s->head_files, s->as);
    }
}

enum gr_status gr_llama_source_check_views(const struct gr_llama_source *s, const struct gr_lm *lm)
{
    for (int i = 0; i < s->hf.n_layer; i++) {
        const int window = gr_hf_window_within(&s->hf, i, lm->n_ctx_max);
        if (window > 0) {
            log_warn("%s: layer %d has a window of %d tokens and contexts may have %d: SpecPV has no views for such a "
                     "model; take --specpv off, or a --max-model-len of at most %d",
                     s->dir, i, window, lm->n_ctx_max, window);
            return GR_EUNSUPPORTED;
        }
    }
    return GR_OK;
}

#define TIED_LOOK ((size_t)1 << 20) /* bytes that are compared: two matrices that differ do so at once */

/* A matrix that is not the embedding was stored for a purpose, so that it is left out is told louder. */
static void tell_of_tied_head(const struct gr_llama_source *s)
{
    const struct gr_tensor *head = s->hf.tie_embeddings ? gr_tensors_find(s->files, "lm_head.weight") : NULL;
    if (head == NULL) {
        return;
    }
    const struct gr_tensor *embed = gr_tensors_find(s->files, "model.embed_tokens.weight");
    const bool same = embed != NULL && embed->dtype == head->dtype && embed->bytes == head->bytes &&
                      memcmp(embed->data, head->data, GR_MIN(head->bytes, TIED_LOOK)) == 0;
    if (same) {
        log_info("%s: lm_head.weight is left out: tie_word_embeddings says that the embedding takes its place", s->dir);
    } else {
        log_warn("%s: lm_head.weight is left out although it is not the embedding: tie_word_embeddings says that the "
                 "embedding takes its place",
                 s->dir);
    }
}

enum gr_status gr_llama_source_finish(const struct gr_llama_source *s, uint64_t *fingerprint_out)
{
    tell_of_tied_head(s);
    GR_TRY(gr_tensors_check_all_used(s->files));
    gr_load_sum_log(&s->sum, s->dir);
    if (fingerprint_out != NULL) {
        *fingerprint_out = gr_model_fingerprint(&s->hf, s->files, s->as == GR_WEIGHTS_BF16, s->as != GR_WEIGHTS_F32);
    }
    return GR_OK;
}
