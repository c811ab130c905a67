#include "model/files/head_fit.h"

#include "common/base/log.h"

#include <inttypes.h>

/* ---- the vocabulary map ---- */

static enum gr_status check_map(const char *dir, const int64_t *d2t, int n_draft, int n_vocab, int32_t *to_target_out)
{
    int64_t last = -1;
    for (int i = 0; i < n_draft; i++) {
        /* Compared before the sum, which could overflow. */
        const bool inside = d2t[i] >= -(int64_t)i && d2t[i] < (int64_t)n_vocab - i;
        if (!inside) {
            log_error("%s: d2t[%d] = %" PRId64 " (an offset) leaves the target's vocabulary of %d ids", dir, i, d2t[i],
                      n_vocab);
            return GR_EMISMATCH;
        }
        const int64_t id = i + d2t[i];
        if (id <= last) {
            log_error("%s: d2t[%d] = %" PRId64 " maps to id %" PRId64 ", the entry before it to %" PRId64
                      ": ids must rise",
                      dir, i, d2t[i], id, last);
            return GR_EMISMATCH;
        }
        last = id;
        if (to_target_out != NULL) {
            to_target_out[i] = (int32_t)id;
        }
    }
    return GR_OK;
}

/* t2d marks just the ids that d2t maps to. */
static enum gr_status check_t2d(const char *dir, const int64_t *d2t, const uint8_t *t2d, int n_draft, int n_vocab)
{
    int i = 0;
    for (int id = 0; id < n_vocab; id++) {
        const bool mapped = i < n_draft && i + d2t[i] == id;
        if (mapped != (t2d[id] != 0)) {
            log_error("%s: t2d[%d] is %s, but d2t maps %s to id %d", dir, id, t2d[id] != 0 ? "true" : "false",
                      mapped ? "a draft id" : "none", id);
            return GR_EMISMATCH;
        }
        i += mapped;
    }
    return GR_OK;
}

enum gr_status gr_draft_map_read(const char *head_dir, const struct gr_hf_config *head, const struct gr_tensors *files,
                                 int32_t *to_target_out, bool *has_map_out)
{
    const int n_draft = head->draft_n_vocab;
    const void *d2t = NULL;
    const void *t2d = NULL;
    if (gr_tensors_find(files, "d2t") == NULL && n_draft == head->n_vocab) {
        *has_map_out = false;
        return GR_OK;
    }
    GR_TRY(gr_tensors_take(files, "d2t", GR_FORMAT_I64, 1, (int64_t[]){n_draft}, &d2t));
    GR_TRY(check_map(head_dir, d2t, n_draft, head->n_vocab, to_target_out));
    if (gr_tensors_find(files, "t2d") != NULL) {
        GR_TRY(gr_tensors_take(files, "t2d", GR_FORMAT_BOOL, 1, (int64_t[]){head->n_vocab}, &t2d));
        GR_TRY(check_t2d(head_dir, d2t, t2d, n_draft, head->n_vocab));
    }
    *has_map_out = true;
    return GR_OK;
}

enum gr_status gr_head_fit_check_fc(const char *head_dir, const struct gr_hf_config *head,
                                    const struct gr_tensors *files, int n_capture, int target_hidden)
{
    const struct gr_tensor *t = gr_tensors_find(files, "fc.weight");
    if (t != NULL && t->n_dim == 2 && t->shape[1] != (int64_t)n_capture * target_hidden) {
        log_error("%s: fc.weight takes %" PRId64 " values, %d captured layers of a target of hidden size %d are %d",
                  head_dir, t->shape[1], n_capture, target_hidden, n_capture * target_hidden);
        return GR_EMISMATCH;
    }
    return gr_tensors_take_weight(files, "fc.weight", 2, (int64_t[]){head->hidden, (int64_t)n_capture * target_hidden},
                                  &t);
}

/* ---- head and target ---- */

static enum gr_status check_architecture(const char *dir, const struct gr_hf_config *head)
{
    if (!gr_hf_is_eagle3(head)) {
        log_error("%s/config.json: architecture %s is no EAGLE-3 head; known: %s", dir, head->architecture,
                  GR_EAGLE3_ARCHITECTURE);
        return GR_EUNSUPPORTED;
    }
    if (head->n_layer != 1) {
        log_error("%s/config.json: num_hidden_layers = %d, an EAGLE-3 head has 1", dir, head->n_layer);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

enum gr_status gr_head_fit_check_config(const char *head_dir, const struct gr_hf_config *head, const char *target_dir,
                                        const struct gr_hf_config *target)
{
    GR_TRY(check_architecture(head_dir, head));
    if (head->n_vocab != target->n_vocab) {
        log_error("%s: vocab_size = %d, but the target %s has %d", head_dir, head->n_vocab, target_dir,
                  target->n_vocab);
        return GR_EMISMATCH;
    }
    if (target->embed_scale != 0.0f) {
        log_error("%s: the target %s is a %s, which scales its embedding: such a target is served by no head", head_dir,
                  target_dir, target->architecture);
        return GR_EUNSUPPORTED;
    }
    const int wanted = head->target_hidden > 0 ? head->target_hidden : head->hidden;
    if (wanted != target->hidden) {
        log_error("%s: made for a target of hidden size %d, %s has %d", head_dir, wanted, target_dir, target->hidden);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

enum gr_status gr_head_fit_check(const char *head_dir, const struct gr_hf_config *head, const struct gr_tensors *files,
                                 const char *target_dir, const struct gr_hf_config *target)
{
    GR_TRY(gr_head_fit_check_config(head_dir, head, target_dir, target));
    bool has_map = false;
    return gr_draft_map_read(head_dir, head, files, NULL, &has_map);
}
