/* What config.json says of single layers: which of them look back over a window only (layer_types, sliding_window),
 * and which have no rotary embedding (no_rope_layers). */
#include <string.h>

#include "common/base/log.h"
#include "model/files/hf_config_internal.h"

/* Defaults of the classes of Hugging Face transformers. */
#define WINDOW_DEFAULT 4096
#define MAX_WINDOW_LAYERS_DEFAULT 28
#define WINDOW_PATTERN_DEFAULT 6
#define NO_ROPE_INTERVAL_DEFAULT 4

/* ---- layers without rotary embedding ---- */

/* In spite of its name an entry of 1 means that the layer has rotary embedding. */
static enum gr_status parse_no_rope_list(const struct gr_json_where *w, const json_t *list, struct gr_hf_config *c)
{
    if (json_array_size(list) != (size_t)c->n_layer) {
        log_error("%s: no_rope_layers has %zu entries, num_hidden_layers = %d", w->name, json_array_size(list),
                  c->n_layer);
        return GR_EFORMAT;
    }
    for (int l = 0; l < c->n_layer; l++) {
        const json_t *value = json_array_get(list, (size_t)l);
        const long long on = json_is_integer(value) ? json_integer_value(value) : -1;
        if (on != 0 && on != 1) {
            log_error("%s: no_rope_layers[%d] must be 1 (rotary embedding) or 0 (none)", w->name, l);
            return GR_EFORMAT;
        }
        c->layer_no_rope[l] = on == 0;
    }
    return GR_OK;
}

static enum gr_status parse_no_rope(const struct gr_json_where *w, struct gr_hf_config *c)
{
    const json_t *list = NULL;
    int interval = NO_ROPE_INTERVAL_DEFAULT;
    GR_TRY(gr_json_array(w, "no_rope_layers", false, &list));
    GR_TRY(gr_json_int(w, "no_rope_layer_interval", false, 1, HF_MAX_POS_MAX, &interval));
    if (list != NULL) {
        return parse_no_rope_list(w, list, c);
    }
    for (int l = 0; l < c->n_layer; l++) {
        c->layer_no_rope[l] = (l + 1) % interval == 0;
    }
    return GR_OK;
}

/* ---- windows ---- */

/* sliding_out: [n_layer], or NULL: the model has no window, and a list that says otherwise is refused. */
static enum gr_status parse_layer_types(const struct gr_json_where *w, const json_t *list, bool *sliding_out)
{
    for (size_t l = 0; l < json_array_size(list); l++) {
        const char *text = json_string_value(json_array_get(list, l));
        const bool sliding = text != NULL && sliding_out != NULL && strcmp(text, "sliding_attention") == 0;
        if (!sliding && (text == NULL || strcmp(text, "full_attention") != 0)) {
            log_error("%s: layer_types[%zu] %.40s is not supported; known: %sfull_attention", w->name, l,
                      text != NULL ? text : "(not a string)", sliding_out != NULL ? "sliding_attention, " : "");
            return GR_EUNSUPPORTED;
        }
        if (sliding_out != NULL) {
            sliding_out[l] = sliding;
        }
    }
    return GR_OK;
}

static enum gr_status check_n_layer_types(const struct gr_json_where *w, const json_t *list, int n_layer)
{
    if (json_array_size(list) != (size_t)n_layer) {
        log_error("%s: layer_types has %zu entries, num_hidden_layers = %d", w->name, json_array_size(list), n_layer);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status refuse_sliding_layers(const struct gr_json_where *w, int n_layer)
{
    const json_t *list = NULL;
    GR_TRY(gr_json_array(w, "layer_types", false, &list));
    GR_TRY(parse_layer_types(w, list, NULL));
    return list != NULL ? check_n_layer_types(w, list, n_layer) : GR_OK;
}

/* n: max_window_layers, or the pattern. */
static bool slides(enum gr_family_window kind, const struct gr_hf_config *c, int l, int n)
{
    switch (kind) {
    case GR_WINDOW_NONE:
        return false;
    case GR_WINDOW_ALL:
        return true;
    case GR_WINDOW_AFTER:
        return l >= n;
    case GR_WINDOW_NO_ROPE:
        return c->layer_no_rope[l];
    case GR_WINDOW_PATTERN:
        return (l + 1) % n != 0;
    case GR_WINDOW_EVEN:
        return l % 2 == 0;
    }
    return false;
}

static enum gr_status parse_sliding_layers(const struct gr_json_where *w, enum gr_family_window kind,
                                           struct gr_hf_config *c)
{
    const json_t *list = NULL;
    int n = kind == GR_WINDOW_PATTERN ? WINDOW_PATTERN_DEFAULT : MAX_WINDOW_LAYERS_DEFAULT;
    GR_TRY(gr_json_array(w, "layer_types", false, &list));
    if (list != NULL) {
        GR_TRY(check_n_layer_types(w, list, c->n_layer));
        return parse_layer_types(w, list, c->layer_sliding);
    }
    if (kind == GR_WINDOW_AFTER) {
        GR_TRY(gr_json_int(w, "max_window_layers", false, 0, HF_MAX_POS_MAX, &n));
    }
    if (kind == GR_WINDOW_PATTERN) {
        GR_TRY(gr_json_int(w, "_sliding_window_pattern", false, 1, HF_MAX_POS_MAX, &n));
        GR_TRY(gr_json_int(w, "sliding_window_pattern", false, 1, HF_MAX_POS_MAX, &n));
    }
    for (int l = 0; l < c->n_layer; l++) {
        c->layer_sliding[l] = slides(kind, c, l, n);
    }
    return GR_OK;
}

/* 0: none. A key that is missing has its default, null says that there is no window. */
static enum gr_status parse_window(const struct gr_json_where *w, enum gr_family_window kind, int *window_out)
{
    const json_t *value = json_object_get(w->obj, "sliding_window");
    const bool by_flag = kind == GR_WINDOW_AFTER || kind == GR_WINDOW_NO_ROPE;
    bool on = !by_flag;
    GR_TRY(by_flag ? gr_json_bool(w, "use_sliding_window", false, &on) : GR_OK);
    *window_out = WINDOW_DEFAULT;
    GR_TRY(gr_json_int(w, "sliding_window", kind == GR_WINDOW_EVEN, 1, HF_MAX_POS_MAX, window_out));
    if (!on || json_is_null(value)) {
        *window_out = 0;
    }
    return GR_OK;
}

enum gr_status gr_hf_parse_layers(const struct gr_json_where *w, const struct gr_family *f, struct gr_hf_config *c)
{
    if (f->no_rope) {
        GR_TRY(parse_no_rope(w, c));
    }
    if (f->window == GR_WINDOW_NONE) {
        return refuse_sliding_layers(w, c->n_layer);
    }
    GR_TRY(parse_window(w, f->window, &c->sliding_window));
    if (c->sliding_window == 0) {
        return refuse_sliding_layers(w, c->n_layer);
    }
    return parse_sliding_layers(w, f->window, c);
}
