#include "model/files/head_layout.h"

#include "common/base/log.h"
#include "model/files/hf_config.h"
#include "model/files/json_util.h"

#include <stdint.h>
#include <string.h>

static enum gr_status no_memory(const char *name)
{
    log_error("%s: out of memory", name);
    return GR_ENOMEM;
}

static enum gr_status set(const char *name, json_t *root, const char *key, json_t *value)
{
    return json_object_set_new(root, key, value) == 0 ? GR_OK : no_memory(name);
}

static enum gr_status set_head_architecture(const char *name, json_t *root)
{
    return set(name, root, "architectures", json_pack("[s]", GR_EAGLE3_ARCHITECTURE));
}

/* ---- speculators ---- */

static enum gr_status check_kind(const struct gr_json_where *w)
{
    static const char key[] = "speculators_model_type";
    const char *kind = "";
    GR_TRY(gr_json_string(w, key, true, &kind));
    if (strcmp(kind, "eagle3") != 0) {
        log_error("%s: %s %.40s is not supported; known: eagle3", w->name, key, kind);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

/* The keys of the layer's config come up; one that stands at the top already stays as it is there. */
static enum gr_status lift_layer_config(const struct gr_json_where *w, json_t *root)
{
    const json_t *layer = NULL;
    GR_TRY(gr_json_object(w, "transformer_layer_config", true, &layer));
    return json_object_update_missing(root, (json_t *)(uintptr_t)layer) == 0 ? GR_OK : no_memory(w->name);
}

static enum gr_status flatten_speculators(const struct gr_json_where *w, json_t *root)
{
    static const char ids_are[] = "aux_hidden_state_layer_ids_are";
    GR_TRY(check_kind(w));
    GR_TRY(lift_layer_config(w, root));
    if (json_object_get(root, ids_are) == NULL) {
        GR_TRY(set(w->name, root, ids_are, json_string("inputs")));
    }
    return set_head_architecture(w->name, root);
}

/* ---- nebius ---- */

static enum gr_status flatten_nebius(const struct gr_json_where *w, json_t *root, json_t *n_draft)
{
    const json_t *given = json_object_get(root, "draft_vocab_size");
    if (given != NULL && !json_is_null(given) && !json_equal(given, n_draft)) {
        log_error("%s: draft_vocab_size and truncated_vocab_size differ; keep one of them", w->name);
        return GR_EFORMAT;
    }
    if (json_object_set(root, "draft_vocab_size", n_draft) != 0) {
        return no_memory(w->name);
    }
    return set_head_architecture(w->name, root);
}

enum gr_status gr_head_layout_flatten(const char *name, json_t *root)
{
    const struct gr_json_where w = {.name = name, .prefix = "", .obj = root};
    if (json_object_get(root, "speculators_model_type") != NULL) {
        return flatten_speculators(&w, root);
    }
    json_t *n_draft = json_object_get(root, "truncated_vocab_size");
    return n_draft != NULL && !json_is_null(n_draft) ? flatten_nebius(&w, root, n_draft) : GR_OK;
}
