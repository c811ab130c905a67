#include "bench/costs_file.h"

#include "common/base/log.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define NS_US 1000.0
#define TOLD_MAX 80 /* of a key as messages show it */
#define SHARE_SLACK 0.02
#define US_MAX 1e9
#define X_MAX 1e7

/* The file that is being read, which messages name. */
struct reader {
    const char *path;
    json_t *root;
};

/* An object of the file, with its name. */
struct part {
    const struct reader *r;
    const char *name;
    const json_t *o;
};

static enum gr_status wrong(const struct reader *r, const char *part, const char *key, const char *what)
{
    log_error("%s: \"%s\"%s%s%s: %s", r->path, part, key[0] != '\0' ? ", \"" : "", key, key[0] != '\0' ? "\"" : "",
              what);
    return GR_EFORMAT;
}

static enum gr_status begin(const struct reader *r, const char *name, const char *const *keys, struct part *out)
{
    json_t *o = json_object_get(r->root, name);
    const char *key;
    json_t *value;
    if (!json_is_object(o)) {
        return wrong(r, name, "", "must be an object");
    }
    json_object_foreach(o, key, value)
    {
        int i = 0;
        while (keys[i] != NULL && strcmp(keys[i], key) != 0) {
            i++;
        }
        if (keys[i] == NULL) {
            return wrong(r, name, key, "there is no such key");
        }
    }
    *out = (struct part){.r = r, .name = name, .o = o};
    return GR_OK;
}

/* A number of 0 or more, times `unit`; 0 where it is not there. */
static enum gr_status take_number(const struct part *p, const char *key, double unit, double max, double *out)
{
    const json_t *v = json_object_get(p->o, key);
    const double x = json_number_value(v);
    char text[TOLD_MAX];
    if (v != NULL && (!json_is_number(v) || !(x >= 0.0) || x > max)) {
        snprintf(text, sizeof(text), "must be a number from 0 to %g", max);
        return wrong(p->r, p->name, key, text);
    }
    *out = unit * x;
    return GR_OK;
}

static bool take_point(const json_t *pair, double before, double *x, double *y)
{
    *x = json_number_value(json_array_get(pair, 0));
    *y = json_number_value(json_array_get(pair, 1));
    return json_array_size(pair) == 2 && *x > before && *x <= X_MAX && *y >= 0.0 && *y <= US_MAX;
}

static enum gr_status take_curve(const struct part *p, const char *key, struct gr_curve *out)
{
    const json_t *list = json_object_get(p->o, key);
    const size_t n = json_array_size(list);
    char text[TOLD_MAX];
    if (n < 1 || n > GR_CURVE_POINT_MAX) {
        snprintf(text, sizeof(text), "must be a list of 1 to %d points [rows, us]", GR_CURVE_POINT_MAX);
        return wrong(p->r, p->name, key, text);
    }
    for (size_t i = 0; i < n; i++) {
        double y = 0.0;
        if (!take_point(json_array_get(list, i), i > 0 ? out->x[i - 1] : 0.0, &out->x[i], &y)) {
            snprintf(text, sizeof(text), "point %zu must be [rows, us], rows rising from above 0", i + 1);
            return wrong(p->r, p->name, key, text);
        }
        out->y[i] = NS_US * y;
    }
    out->n = (int)n;
    return GR_OK;
}

static enum gr_status take_target(const struct reader *r, struct gr_target_costs *out)
{
    static const char *const keys[] = {"rows_us", "session_us", "context_us_per_1000", "host_us", "host_tree_us", NULL};
    struct part p;
    GR_TRY(begin(r, "target", keys, &p));
    GR_TRY(take_curve(&p, "rows_us", &out->rows));
    GR_TRY(take_number(&p, "session_us", NS_US, US_MAX, &out->session_ns));
    GR_TRY(take_number(&p, "context_us_per_1000", 1.0, US_MAX, &out->context_ns));
    GR_TRY(take_number(&p, "host_us", NS_US, US_MAX, &out->host_ns));
    return take_number(&p, "host_tree_us", NS_US, US_MAX, &out->host_tree_ns);
}

static enum gr_status take_draft(const struct reader *r, struct gr_draft_costs *out)
{
    static const char *const keys[] = {
        "rows_us", "kv_row_us",       "session_us", "context_us_per_1000", "host_level_us", "host_feature_us",
        "host_us", "host_session_us", NULL};
    struct part p;
    GR_TRY(begin(r, "draft", keys, &p));
    GR_TRY(take_curve(&p, "rows_us", &out->rows));
    GR_TRY(take_number(&p, "kv_row_us", NS_US, US_MAX, &out->kv_row_ns));
    GR_TRY(take_number(&p, "session_us", NS_US, US_MAX, &out->session_ns));
    GR_TRY(take_number(&p, "context_us_per_1000", 1.0, US_MAX, &out->context_ns));
    GR_TRY(take_number(&p, "host_level_us", NS_US, US_MAX, &out->host_level_ns));
    GR_TRY(take_number(&p, "host_feature_us", NS_US, US_MAX, &out->host_feature_ns));
    GR_TRY(take_number(&p, "host_us", NS_US, US_MAX, &out->host_ns));
    return take_number(&p, "host_session_us", NS_US, US_MAX, &out->host_session_ns);
}

static enum gr_status take_link(const struct reader *r, const char *name, struct gr_link_costs *out)
{
    static const char *const keys[] = {"latency_us", "gbytes_per_s", NULL};
    struct part p;
    double gbytes = 0.0;
    GR_TRY(begin(r, name, keys, &p));
    GR_TRY(take_number(&p, "latency_us", NS_US, US_MAX, &out->latency_ns));
    GR_TRY(take_number(&p, "gbytes_per_s", 1.0, 1e6, &gbytes));
    out->byte_ns = gbytes > 0.0 ? 1.0 / gbytes : 0.0;
    return GR_OK;
}

static enum gr_status take_orch(const struct reader *r, struct gr_orch_costs *out)
{
    static const char *const keys[] = {"message_us", "step_us", "step_session_us", NULL};
    struct part p;
    GR_TRY(begin(r, "orchestrator", keys, &p));
    GR_TRY(take_number(&p, "message_us", NS_US, US_MAX, &out->message_ns));
    GR_TRY(take_number(&p, "step_us", NS_US, US_MAX, &out->step_ns));
    return take_number(&p, "step_session_us", NS_US, US_MAX, &out->step_session_ns);
}

/* ---- what the draft model surmises ---- */

static bool take_shares(const json_t *list, int n, double *out)
{
    for (int i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        out[i] = json_number_value(v);
        if (!json_is_number(v) || !(out[i] >= 0.0) || out[i] > 1.0) {
            return false;
        }
    }
    return json_array_size(list) == (size_t)n;
}

static enum gr_status take_classes(const struct reader *r, const json_t *list, struct gr_surmise_level *out)
{
    const size_t n = json_array_size(list);
    double sum = 0.0;
    if (n < 1 || n > GR_SURMISE_CLASS_MAX) {
        return wrong(r, "surmise", "classes", "must be a list of 1 to 16 classes");
    }
    for (size_t i = 0; i < n; i++) {
        double v[3];
        if (!take_shares(json_array_get(list, i), 3, v) || v[1] == 0.0) {
            return wrong(r, "surmise", "classes", "a class must be [share, sure, hit], each from 0 to 1");
        }
        out->class[i] = (struct gr_surmise_class){.share = v[0], .sure = v[1], .hit = v[2]};
        sum += v[0];
    }
    out->n_class = (int)n;
    return fabs(sum - 1.0) <= SHARE_SLACK ? GR_OK
                                          : wrong(r, "surmise", "classes", "the shares of a level must come to 1");
}

static enum gr_status take_others(const struct reader *r, const json_t *list, struct gr_surmise_level *out)
{
    const size_t n = json_array_size(list);
    double sum = 0.0;
    if (n > GR_SURMISE_OTHER_MAX) {
        return wrong(r, "surmise", "others", "must be a list of at most 15 children");
    }
    for (size_t i = 0; i < n; i++) {
        double v[2];
        if (!take_shares(json_array_get(list, i), 2, v)) {
            return wrong(r, "surmise", "others", "a child must be [sure, hit], each from 0 to 1");
        }
        out->other[i] = (struct gr_surmise_other){.sure = v[0], .hit = v[1]};
        sum += v[1];
    }
    out->n_other = (int)n;
    return sum <= 1.0 + SHARE_SLACK ? GR_OK : wrong(r, "surmise", "others", "the hits of a level come to more than 1");
}

static enum gr_status take_surmise(const struct reader *r, struct gr_surmise *out)
{
    const json_t *list = json_object_get(r->root, "surmise");
    const size_t n = json_array_size(list);
    if (n < 1 || n > GR_SURMISE_LEVEL_MAX) {
        return wrong(r, "surmise", "", "must be a list of 1 to 8 levels");
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *level = json_array_get(list, i);
        GR_TRY(take_classes(r, json_object_get(level, "classes"), &out->level[i]));
        GR_TRY(take_others(r, json_object_get(level, "others"), &out->level[i]));
    }
    out->n_level = (int)n;
    return GR_OK;
}

/* ---- all of it ---- */

static enum gr_status take_all(const struct reader *r, struct gr_costs_file *out)
{
    struct gr_sim_costs *c = &out->costs;
    const json_t *about = json_object_get(r->root, "about");
    const json_t *bytes = json_object_get(r->root, "feature_bytes");
    if (!json_is_string(about)) {
        return wrong(r, "about", "", "must be a text that says of what these are the costs");
    }
    snprintf(out->about, sizeof(out->about), "%s", json_string_value(about));
    if (bytes != NULL &&
        (!json_is_integer(bytes) || json_integer_value(bytes) < 0 || json_integer_value(bytes) > 1e6)) {
        return wrong(r, "feature_bytes", "", "must be a whole number from 0 to 1000000");
    }
    c->feature_bytes = (int)json_integer_value(bytes);
    GR_TRY(take_target(r, &c->target));
    GR_TRY(take_draft(r, &c->draft));
    GR_TRY(take_link(r, "data_link", &c->data));
    GR_TRY(take_link(r, "control_link", &c->control));
    GR_TRY(take_orch(r, &c->orch));
    return take_surmise(r, &c->surmise);
}

enum gr_status gr_costs_file_load(const char *path, struct gr_costs_file *out)
{
    json_error_t error;
    struct reader r = {.path = path, .root = json_load_file(path, JSON_REJECT_DUPLICATES, &error)};
    memset(out, 0, sizeof(*out));
    if (r.root == NULL) {
        log_error("%s: line %d: %s", path, error.line, error.text);
        return error.line < 0 ? GR_ENOTFOUND : GR_EFORMAT;
    }
    const enum gr_status st = take_all(&r, out);
    json_decref(r.root);
    return st;
}
