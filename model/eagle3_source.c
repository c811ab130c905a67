#include "model/eagle3_source.h"

#include "common/base/log.h"
#include "model/fc.h"
#include "model/files/fingerprint.h"
#include "model/files/head_fit.h"
#include "model/files/model_path.h"
#include "model/layer.h"
#include "model/load/shapes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *gr_eagle3_layer_prefix(const struct gr_tensors *files)
{
    return gr_tensors_find(files, "layers.0.self_attn.q_proj.weight") != NULL ? "layers.0" : "midlayer";
}

/* q_proj says what an EAGLE-3 head is (inputs of twice the hidden size) and, where the config is silent, the width of
 * its heads. The other shapes are checked as they are loaded. */
static enum gr_status fit_geometry(const char *dir, const struct gr_tensors *files, struct gr_hf_config *hf)
{
    char name[96];
    snprintf(name, sizeof(name), "%s.self_attn.q_proj.weight", gr_eagle3_layer_prefix(files));
    const struct gr_tensor *q = gr_tensors_find(files, name);
    if (q == NULL || q->n_dim != 2) {
        return GR_OK; /* the load names what is wrong */
    }
    if (q->shape[1] != 2 * (int64_t)hf->hidden) {
        log_error("%s: %s takes %" PRId64 " values, an EAGLE-3 head of hidden size %d takes 2 x %d = %d", dir, name,
                  q->shape[1], hf->hidden, hf->hidden, 2 * hf->hidden);
        return GR_EMISMATCH;
    }
    if (!hf->head_dim_given && q->shape[0] % hf->n_head == 0 && q->shape[0] / hf->n_head <= GR_HEAD_DIM_MAX) {
        hf->head_dim = (int)(q->shape[0] / hf->n_head);
    }
    return GR_OK;
}

/* A head that is silent about its rotary embedding was trained on top of its target's. */
static void fit_rope(const char *dir, struct gr_hf_config *hf, const struct gr_hf_config *target)
{
    if (hf->rope_theta != 0.0) {
        return;
    }
    hf->rope_theta = target->rope_theta;
    if (hf->rope_kind == GR_ROPE_PLAIN) {
        hf->rope_kind = target->rope_kind;
        hf->rope = target->rope;
    }
    log_info("%s/config.json: no rope_theta: the head rotates as its target (theta %g)", dir, hf->rope_theta);
}

static enum gr_status open_folders(struct gr_eagle3_source *s, const struct gr_eagle3_config *c)
{
    GR_TRY(gr_model_path_config(c->dir, &s->hf));
    GR_TRY(gr_model_path_config(c->target_dir, &s->target_hf));
    GR_TRY(gr_model_path_open(c->dir, &s->files));
    GR_TRY(gr_head_fit_check(c->dir, &s->hf, s->files, c->target_dir, &s->target_hf));
    GR_TRY(gr_capture_choose(c->dir, &s->hf, s->target_hf.n_layer, c->n_capture, c->capture_layer, &s->capture));
    GR_TRY(fit_geometry(c->dir, s->files, &s->hf));
    fit_rope(c->dir, &s->hf, &s->target_hf);
    return gr_head_dim_check(c->dir, s->hf.head_dim);
}

/* fc and its norms must be there, and in their shapes, also where the target runs them. */
static enum gr_status check_fc(const struct gr_eagle3_source *s)
{
    const struct gr_tensor *t = NULL;
    const int target_hidden = s->target_hf.hidden;
    const int n_capture = s->capture.n;
    GR_TRY(gr_head_fit_check_fc(s->dir, &s->hf, s->files, n_capture, target_hidden));
    if (s->hf.norm_before_fc) {
        GR_TRY(gr_tensors_take_weight(s->files, "input_norm.weight", 1, (int64_t[]){(int64_t)n_capture * target_hidden},
                                      &t));
    }
    for (int i = 0; s->hf.fc_norm && i < n_capture; i++) {
        char name[32];
        snprintf(name, sizeof(name), "fc_norm.%d.weight", i);
        GR_TRY(gr_tensors_take_weight(s->files, name, 1, (int64_t[]){target_hidden}, &t));
    }
    if (gr_tensors_find(s->files, "fc.bias") != NULL) {
        GR_TRY(gr_tensors_take_weight(s->files, "fc.bias", 1, (int64_t[]){s->hf.hidden}, &t));
    }
    return GR_OK;
}

enum gr_status gr_eagle3_source_open(const struct gr_eagle3_config *c, struct gr_eagle3_source *out)
{
    *out = (struct gr_eagle3_source){.dir = c->dir, .target_dir = c->target_dir, .as = c->as};
    GR_TRY(open_folders(out, c));
    GR_TRY(check_fc(out));
    if (c->geometry == NULL) {
        return GR_OK;
    }
    GR_TRY(gr_expand_init(&out->expand, c->geometry, c->dir, &out->hf));
    if (c->geometry_positions) {
        gr_expand_positions(c->geometry, &out->target_hf);
    }
    return gr_expand_config(c->geometry, c->target_dir, &out->target_hf);
}

void gr_eagle3_source_close(struct gr_eagle3_source *s)
{
    gr_tensors_close(s->files);
    gr_tensors_close(s->target_files);
    s->files = s->target_files = NULL;
}

void gr_eagle3_source_describe(const struct gr_eagle3_source *s, const struct gr_eagle3_config *c, struct gr_lm *lm)
{
    lm->n_vocab = s->hf.draft_n_vocab;
    lm->n_vocab_stride = gr_vocab_stride(gr_hf_draft_vocab_rows(&s->hf));
    lm->n_vocab_target = s->hf.n_vocab;
    lm->n_ctx_max = c->n_ctx_max > 0 ? GR_MIN(c->n_ctx_max, s->target_hf.max_pos) : s->target_hf.max_pos;
    lm->n_row_max = c->n_row_max;
    lm->n_out_max = c->n_out_max;
    lm->n_pool_block = c->n_pool_block;
    lm->n_scratch_block = c->n_scratch_block;
    lm->feature_width = s->hf.hidden;
    lm->n_state = c->n_state;
    gr_capture_text(&s->capture, lm->captures, sizeof(lm->captures));
    if (c->raw_features) {
        lm->raw_features = true;
        lm->n_capture = s->capture.n;
        lm->capture_width = s->target_hf.hidden;
        lm->fused_width = s->hf.hidden;
    }
    if (lm->n_ctx_max > s->hf.max_pos) {
        log_info("%s: made for %d positions, may be asked for %d: the text stays right, acceptance may fall there",
                 c->dir, s->hf.max_pos, lm->n_ctx_max);
    }
}

/* The target's files, opened when the first tensor is borrowed. What is borrowed must be as wide as the head. */
static enum gr_status borrow(struct gr_eagle3_source *s, const char *what)
{
    if (s->hf.hidden != s->target_hf.hidden) {
        log_error("%s: no %s of its own, and that of the target %s is %d wide, the head %d", s->dir, what,
                  s->target_dir, s->target_hf.hidden, s->hf.hidden);
        return GR_EMISMATCH;
    }
    return s->target_files != NULL ? GR_OK : gr_model_path_open(s->target_dir, &s->target_files);
}

enum gr_status gr_eagle3_embedding(struct gr_eagle3_source *s, struct gr_eagle3_tensor *out)
{
    if (gr_tensors_find(s->files, "embed_tokens.weight") != NULL) {
        *out = (struct gr_eagle3_tensor){.files = s->files, .name = "embed_tokens.weight"};
        return GR_OK;
    }
    GR_TRY(borrow(s, "embed_tokens.weight"));
    *out = (struct gr_eagle3_tensor){.files = s->target_files, .name = "model.embed_tokens.weight"};
    return GR_OK;
}

enum gr_status gr_eagle3_lm_head(struct gr_eagle3_source *s, struct gr_eagle3_tensor *out)
{
    const char *name = "lm_head.weight";
    *out = (struct gr_eagle3_tensor){.files = s->files, .name = name};
    if (gr_tensors_find(s->files, name) != NULL || s->hf.draft_n_vocab != s->hf.n_vocab) {
        return GR_OK;
    }
    if (s->hf.tie_embeddings && gr_tensors_find(s->files, "embed_tokens.weight") != NULL) {
        out->name = "embed_tokens.weight";
        return GR_OK;
    }
    GR_TRY(borrow(s, name));
    *out = (struct gr_eagle3_tensor){.files = s->target_files,
                                     .name = s->target_hf.tie_embeddings ? "model.embed_tokens.weight" : name};
    return GR_OK;
}

enum gr_status gr_eagle3_map(const struct gr_eagle3_source *s, int32_t *to_target, bool *has_map_out)
{
    return gr_draft_map_read(s->dir, &s->hf, s->files, to_target, has_map_out);
}

enum gr_status gr_eagle3_source_finish(const struct gr_eagle3_source *s, struct gr_lm *lm, uint64_t *fingerprint_out)
{
    GR_TRY(gr_tensors_check_all_used(s->files));
    gr_load_sum_log(&s->sum, s->dir);
    lm->fc_fingerprint = gr_fc_fingerprint(s->files, s->as);
    if (fingerprint_out != NULL) {
        *fingerprint_out = gr_model_fingerprint(&s->hf, s->files, s->as == GR_WEIGHTS_BF16, s->as != GR_WEIGHTS_F32);
    }
    return GR_OK;
}
