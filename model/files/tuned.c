#include "model/files/tuned.h"

#include "common/base/log.h"
#include "kernels/cuda/attention/attention.h"
#include "model/files/json_util.h"

#include <stdio.h>
#include <stdlib.h>

#define N_OUT_MAX (1 << 24) /* as linear.cu */
#define N_IN_MAX (1 << 20)
#define US_MAX 1e12 /* microseconds in a file of measurements, at most */
#define N_US_MAX 16 /* contexts */

/* What graft-bench tune measured is kept for people; nothing reads it but this check. */
static enum gr_status check_list(const struct gr_json_where *w, const char *key)
{
    const json_t *list = NULL;
    const json_t *value;
    size_t i;
    GR_TRY(gr_json_array(w, key, false, &list));
    if (list == NULL) {
        return GR_OK;
    }
    bool good = json_array_size(list) <= N_US_MAX;
    json_array_foreach(list, i, value)
    {
        good = good && json_is_number(value);
    }
    if (!good) {
        log_error("%s: %s%s must be a list of at most %d numbers", w->name, w->prefix, key, N_US_MAX);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status read_linear(const struct gr_json_where *w, struct gr_tuned *t)
{
    static const char *const keys[] = {"n_out", "n_in", "width", "parts", "us_1_row", "us_64_rows", NULL};
    struct gr_tuned_linear l = {0};
    double us = 0.0;
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_int(w, "n_out", true, 16, N_OUT_MAX, &l.n_out));
    GR_TRY(gr_json_int(w, "n_in", true, 64, N_IN_MAX, &l.n_in));
    GR_TRY(gr_json_int(w, "width", true, 1, 1 << 20, &l.cut.width));
    GR_TRY(gr_json_int(w, "parts", true, 1, 1 << 20, &l.cut.parts));
    GR_TRY(gr_json_double(w, "us_1_row", false, 0.0, US_MAX, &us));
    GR_TRY(gr_json_double(w, "us_64_rows", false, 0.0, US_MAX, &us));
    if (!gr_cuda_cut_allowed(l.n_in, l.cut)) {
        log_error("%s: %swidth %d, %sparts %d: %d x %d cannot be cut so; widths are " GR_CUDA_CUT_WIDTHS_TEXT
                  "; parts 1, or 2 with a width that is a multiple of 16 and 128 inputs at least",
                  w->name, w->prefix, l.cut.width, w->prefix, l.cut.parts, l.n_out, l.n_in);
        return GR_EFORMAT;
    }
    if (gr_tuned_find_linear(t, l.n_out, l.n_in) != NULL) {
        log_error("%s: %sn_out: %d x %d is there twice", w->name, w->prefix, l.n_out, l.n_in);
        return GR_EFORMAT;
    }
    t->linear[t->n_linear++] = l;
    return GR_OK;
}

static enum gr_status read_attention(const struct gr_json_where *w, struct gr_tuned *t)
{
    static const char *const keys[] = {"n_head",   "n_kv_head", "head_dim",   "n_split_max",
                                       "contexts", "us_1_row",  "us_64_rows", NULL};
    struct gr_tuned_attention a = {0};
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_int(w, "n_head", true, 1, 1 << 16, &a.n_head));
    GR_TRY(gr_json_int(w, "n_kv_head", true, 1, 1 << 16, &a.n_kv_head));
    GR_TRY(gr_json_int(w, "head_dim", true, 1, 1 << 16, &a.head_dim));
    GR_TRY(gr_json_int(w, "n_split_max", true, 1, GR_CUDA_SPLIT_MAX, &a.n_split_max));
    GR_TRY(check_list(w, "contexts"));
    GR_TRY(check_list(w, "us_1_row"));
    GR_TRY(check_list(w, "us_64_rows"));
    if (gr_tuned_find_attention(t, a.n_head, a.n_kv_head, a.head_dim) != NULL) {
        log_error("%s: %sn_head: attention %d/%d x %d is there twice", w->name, w->prefix, a.n_head, a.n_kv_head,
                  a.head_dim);
        return GR_EFORMAT;
    }
    t->attention[t->n_attention++] = a;
    return GR_OK;
}

typedef enum gr_status read_entry_fn(const struct gr_json_where *w, struct gr_tuned *t);

static enum gr_status read_section(const struct gr_json_where *w, const char *key, size_t n_max, read_entry_fn *read,
                                   struct gr_tuned *t)
{
    const json_t *list = NULL;
    const json_t *value;
    size_t i;
    GR_TRY(gr_json_array(w, key, false, &list));
    if (json_array_size(list) > n_max) {
        log_error("%s: %s has %zu entries, at most %zu are read", w->name, key, json_array_size(list), n_max);
        return GR_ELIMIT;
    }
    json_array_foreach(list, i, value)
    {
        char prefix[48];
        const struct gr_json_where entry = {.name = w->name, .prefix = prefix, .obj = value};
        snprintf(prefix, sizeof(prefix), "%s[%zu].", key, i);
        if (!json_is_object(value)) {
            log_error("%s: %s[%zu] must be an object", w->name, key, i);
            return GR_EFORMAT;
        }
        GR_TRY(read(&entry, t));
    }
    return GR_OK;
}

static enum gr_status read_root(const struct gr_json_where *w, struct gr_tuned *t)
{
    static const char *const keys[] = {"format", "gpu", "linear", "attention", NULL};
    const char *gpu = NULL;
    int format = 0;
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_int(w, "format", true, GR_TUNED_FORMAT, GR_TUNED_FORMAT, &format));
    GR_TRY(gr_json_string(w, "gpu", true, &gpu));
    if (snprintf(t->gpu, sizeof(t->gpu), "%s", gpu) >= (int)sizeof(t->gpu)) {
        log_error("%s: gpu must be at most %zu bytes", w->name, sizeof(t->gpu) - 1);
        return GR_EFORMAT;
    }
    GR_TRY(read_section(w, "linear", GR_TUNED_LINEAR_MAX, read_linear, t));
    return read_section(w, "attention", GR_TUNED_ATTENTION_MAX, read_attention, t);
}

enum gr_status gr_tuned_load(const char *file, struct gr_tuned *out)
{
    char *data = NULL;
    size_t len = 0;
    json_t *root = NULL;
    *out = (struct gr_tuned){.file = file};
    GR_TRY(gr_file_read(file, GR_TUNED_BYTES_MAX, true, &data, &len));
    enum gr_status st = gr_json_parse_object(file, data, len, &root);
    free(data);
    GR_TRY(st);
    st = read_root(&(struct gr_json_where){.name = file, .prefix = "", .obj = root}, out);
    json_decref(root);
    return st;
}

enum gr_status gr_tuned_open(const char *file, bool required, bool on_gpu, struct gr_tuned *out)
{
    *out = (struct gr_tuned){0};
    if (file == NULL && !required) {
        return GR_OK;
    }
    if (file == NULL) {
        log_error("--require-tuned: --tuned FILE is needed, the shapes that graft-bench tune measured");
        return GR_EINVAL;
    }
    if (!on_gpu) {
        log_error("--tuned %s: there is no model on a GPU here, and CPUs have nothing to tune; leave it out", file);
        return GR_EINVAL;
    }
    const enum gr_status st = gr_tuned_load(file, out);
    GR_TRY(st == GR_EFORMAT ? GR_EINVAL : st); /* what it says is a bad value; that it cannot be read is none */
    out->required = required;
    return GR_OK;
}

const struct gr_tuned_linear *gr_tuned_find_linear(const struct gr_tuned *t, int n_out, int n_in)
{
    for (int i = 0; i < t->n_linear; i++) {
        if (t->linear[i].n_out == n_out && t->linear[i].n_in == n_in) {
            return &t->linear[i];
        }
    }
    return NULL;
}

const struct gr_tuned_attention *gr_tuned_find_attention(const struct gr_tuned *t, int n_head, int n_kv_head,
                                                         int head_dim)
{
    for (int i = 0; i < t->n_attention; i++) {
        const struct gr_tuned_attention *a = &t->attention[i];
        if (a->n_head == n_head && a->n_kv_head == n_kv_head && a->head_dim == head_dim) {
            return a;
        }
    }
    return NULL;
}
