#include "orchestrator/cli/serve_models.h"

#include "common/base/log.h"
#include "common/base/utf8.h"
#include "model/files/model_path.h"

#include <stdio.h>
#include <string.h>

static enum gr_status check_name(const char *word, size_t len)
{
    if (len == 0) {
        log_error("--model %s: NAME is empty; it is [NAME=]PATH", word);
        return GR_EINVAL;
    }
    if (len >= GR_MODEL_NAME_MAX || !gr_utf8_valid(word, len)) {
        log_error("--model %s: NAME must have 1 to %d bytes of UTF-8", word, GR_MODEL_NAME_MAX - 1);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status read_one(const char *word, struct gr_serve_model *out)
{
    const char *equals = word[0] != '/' && word[0] != '.' ? strchr(word, '=') : NULL;
    *out = (struct gr_serve_model){.path = equals != NULL ? equals + 1 : word};
    if (equals != NULL) {
        GR_TRY(check_name(word, (size_t)(equals - word)));
        snprintf(out->name, sizeof(out->name), "%.*s", (int)(equals - word), word);
    }
    if (out->path[0] == '\0') {
        log_error("--model %s: PATH is empty; it is [NAME=]PATH", word);
        return GR_EINVAL;
    }
    return GR_OK;
}

/* What one model alone may have. */
static enum gr_status check_several(const struct gr_options *o, int n)
{
    if (o->served_model_name != NULL) {
        log_error("--served-model-name %s names one model, and there are %d: give each as --model NAME=PATH",
                  o->served_model_name, n);
        return GR_EINVAL;
    }
    if (o->chat_template != NULL) {
        log_error("--chat-template %s is for one model, and there are %d, each with the template of its files",
                  o->chat_template, n);
        return GR_EINVAL;
    }
    if (o->spawn) {
        log_error("--spawn starts the workers of one model, and there are %d: leave it out, and start a graft-target "
                  "--served-model-name NAME for each",
                  n);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status name_all(struct gr_serve_models *m)
{
    for (int i = 0; i < m->n; i++) {
        struct gr_serve_model *one = &m->model[i];
        if (one->name[0] == '\0') {
            gr_model_path_name(one->path, one->name, sizeof(one->name));
        }
        for (int k = 0; k < i; k++) {
            if (one->name[0] != '\0' && strcmp(m->model[k].name, one->name) == 0) {
                log_error("--model %s and --model %s are both called `%s': give each a name of its own, as "
                          "--model NAME=PATH",
                          m->model[k].path, one->path, one->name);
                return GR_EINVAL;
            }
        }
    }
    return GR_OK;
}

static enum gr_status set(struct gr_options *o, enum gr_option_id id, const char *value)
{
    const enum gr_option_source source = (enum gr_option_source)o->values.source[GR_OPTION_models];
    return gr_option_set(&o->values, &gr_option_rows[id], "--model", value, source);
}

static enum gr_status use_one(struct gr_options *o, struct gr_serve_model *m)
{
    if (m->name[0] != '\0' && o->served_model_name != NULL) {
        log_error("--model %s=%s has a name, and --served-model-name %s gives it another: leave one out", m->name,
                  m->path, o->served_model_name);
        return GR_EINVAL;
    }
    if (o->served_model_name != NULL) {
        GR_TRY(check_name(o->served_model_name, strlen(o->served_model_name)));
        snprintf(m->name, sizeof(m->name), "%s", o->served_model_name);
    } else if (m->name[0] != '\0') {
        GR_TRY(set(o, GR_OPTION_served_model_name, m->name));
    }
    return set(o, GR_OPTION_model, m->path);
}

enum gr_status gr_serve_models_read(struct gr_options *o, struct gr_serve_models *out)
{
    *out = (struct gr_serve_models){.n = 0};
    for (; out->n < o->models.n; out->n++) {
        GR_TRY(read_one(o->models.word[out->n], &out->model[out->n]));
    }
    if (out->n > 1) {
        GR_TRY(check_several(o, out->n));
        return name_all(out);
    }
    return out->n == 1 ? use_one(o, &out->model[0]) : GR_OK;
}
