#include "model/files/capture.h"

#include "common/base/log.h"
#include "common/base/parse.h"

#include <stdio.h>
#include <string.h>

bool gr_capture_ids_are_outputs(enum gr_capture_ids ids_are, int first_id)
{
    return ids_are == GR_CAPTURE_IDS_OUTPUTS || (ids_are == GR_CAPTURE_IDS_BY_FIRST && first_id == 1);
}

static enum gr_status from_config(const char *dir, const struct gr_hf_config *head, struct gr_capture *c)
{
    if (head->n_capture > GR_CAPTURE_MAX) {
        log_error("%s/config.json: the head is fed with %d layers of its target, this build keeps at most %d", dir,
                  head->n_capture, GR_CAPTURE_MAX);
        return GR_ELIMIT;
    }
    c->n = head->n_capture;
    memcpy(c->layer, head->capture_layer, (size_t)c->n * sizeof(c->layer[0]));
    return GR_OK;
}

static enum gr_status from_default(const char *dir, int n_layer, struct gr_capture *c)
{
    *c = (struct gr_capture){.n = 3, .layer = {2, n_layer / 2, n_layer - 3}};
    if (c->layer[0] >= c->layer[1] || c->layer[1] >= c->layer[2]) {
        log_error("%s/config.json: no eagle_aux_hidden_state_layer_ids, and a target of %d layers has no default "
                  "(2, L/2, L-3 would be %d, %d, %d): name the layers",
                  dir, n_layer, c->layer[0], c->layer[1], c->layer[2]);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status check_layers(const char *dir, const struct gr_capture *c, int n_layer)
{
    for (int i = 0; i < c->n; i++) {
        if (c->layer[i] < 0 || c->layer[i] > n_layer || (i > 0 && c->layer[i] <= c->layer[i - 1])) {
            log_error("%s: captured layer %d (input) does not fit: the target has %d layers, layers must rise", dir,
                      c->layer[i], n_layer);
            return GR_EMISMATCH;
        }
    }
    return GR_OK;
}

enum gr_status gr_capture_choose(const char *dir, const struct gr_hf_config *head, int n_layer, int n_override,
                                 const int *override, struct gr_capture *out)
{
    struct gr_capture c = {0};
    if (n_override > 0) {
        GR_ASSERT(n_override <= GR_CAPTURE_MAX);
        c.n = n_override;
        memcpy(c.layer, override, (size_t)n_override * sizeof(c.layer[0]));
        c.why = "given by an option";
    } else if (head->has_capture) {
        GR_TRY(from_config(dir, head, &c));
        c.why = !head->capture_ids_are_outputs                    ? "ids in its config are inputs"
                : head->capture_ids_are == GR_CAPTURE_IDS_OUTPUTS ? "ids in its config are outputs, as it says"
                                                                  : "ids in its config begin with 1: outputs";
    } else {
        GR_TRY(from_default(dir, n_layer, &c));
        c.why = "its config is silent: EAGLE-3's default";
    }
    GR_TRY(check_layers(dir, &c, n_layer));
    *out = c;
    return GR_OK;
}

void gr_capture_text(const struct gr_capture *c, char *out, size_t cap)
{
    size_t len = 0;
    out[0] = '\0';
    for (int i = 0; i < c->n && len < cap; i++) {
        len += (size_t)snprintf(out + len, cap - len, i > 0 ? ",%d" : "%d", c->layer[i]);
    }
}

enum gr_status gr_capture_parse(const char *text, int *n_out, int layer_out[GR_CAPTURE_MAX])
{
    char copy[64];
    char *rest = NULL;
    int64_t v = -1;
    int n = 0;
    bool ok = text[0] != '\0' && strlen(text) < sizeof(copy) && strstr(text, ",,") == NULL && text[0] != ',' &&
              text[strlen(text) - 1] != ',';
    snprintf(copy, sizeof(copy), "%s", text);
    for (char *p = strtok_r(copy, ",", &rest); ok && p != NULL; p = strtok_r(NULL, ",", &rest)) {
        const int64_t last = v;
        ok = n < GR_CAPTURE_MAX && gr_parse_int(p, 0, 9999, &v) && v > last;
        if (ok) {
            layer_out[n++] = (int)v;
        }
    }
    if (!ok || n == 0) {
        log_error("--capture-layers: `%s' is not 1 to %d whole numbers that rise, as 2,4,7", text, GR_CAPTURE_MAX);
        return GR_EINVAL;
    }
    *n_out = n;
    return GR_OK;
}

void gr_capture_log(const char *dir, const struct gr_capture *c)
{
    char text[GR_CAPTURE_MAX * 12];
    gr_capture_text(c, text, sizeof(text));
    log_info("%s: the head is fed with what enters layers %s of the target (%s)", dir, text, c->why);
}
