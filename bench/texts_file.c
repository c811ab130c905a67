#include "bench/texts_file.h"

#include "common/base/log.h"

#include <jansson.h>
#include <stdlib.h>

#define POS_MAX 4096

/* [rank, probability of the 1st child, ..., of the 4th] */
static bool take_row(const json_t *list, struct gr_surmise_row *out)
{
    const json_int_t rank = json_integer_value(json_array_get(list, 0));
    if (json_array_size(list) != 1 + GR_SURMISE_PROB_MAX || !json_is_integer(json_array_get(list, 0)) || rank < 0 ||
        rank > GR_SURMISE_RANK_MAX) {
        return false;
    }
    out->rank = (uint8_t)rank;
    for (size_t i = 0; i < GR_SURMISE_PROB_MAX; i++) {
        const json_t *p = json_array_get(list, 1 + i);
        const double prob = json_number_value(p);
        if (!json_is_number(p) || !(prob >= 0.0) || prob > 1.0) {
            return false;
        }
        out->prob[i] = (float)prob;
    }
    return true;
}

static bool take_position(const json_t *levels, int n_level, struct gr_surmise_row *out)
{
    bool ok = json_array_size(levels) == (size_t)n_level;
    for (int i = 0; i < n_level && ok; i++) {
        ok = take_row(json_array_get(levels, (size_t)i), &out[i]);
    }
    return ok;
}

static enum gr_status take_text(const char *path, const json_t *list, int i_text, struct gr_surmise_texts *out)
{
    if (json_array_size(list) != (size_t)out->n_pos) {
        log_error("%s: text %d has %zu positions, the first one has %d", path, i_text, json_array_size(list),
                  out->n_pos);
        return GR_EFORMAT;
    }
    struct gr_surmise_row *row = out->row + (size_t)i_text * (size_t)out->n_pos * (size_t)out->n_level;
    for (int i = 0; i < out->n_pos; i++) {
        if (!take_position(json_array_get(list, (size_t)i), out->n_level, row + (size_t)i * (size_t)out->n_level)) {
            log_error("%s: text %d, position %d: must be %d levels [rank from 0 to %d, four probabilities]", path,
                      i_text, i, out->n_level, GR_SURMISE_RANK_MAX);
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

static enum gr_status take_all(const char *path, const json_t *root, struct gr_surmise_texts *out)
{
    const json_t *texts = json_object_get(root, "texts");
    const json_t *first = json_array_get(texts, 0);
    const size_t n_text = json_array_size(texts), n_pos = json_array_size(first);
    const size_t n_level = json_array_size(json_array_get(first, 0));
    if (n_text < 1 || n_text > GR_SURMISE_TEXT_MAX || n_pos < 1 || n_pos > POS_MAX || n_level < 1 ||
        n_level > GR_SURMISE_LEVEL_MAX) {
        log_error("%s: \"texts\" must be a list of 1 to %d texts of 1 to %d positions with 1 to %d levels each", path,
                  GR_SURMISE_TEXT_MAX, POS_MAX, GR_SURMISE_LEVEL_MAX);
        return GR_EFORMAT;
    }
    out->row = calloc(n_text * n_pos * n_level, sizeof(*out->row));
    if (out->row == NULL) {
        log_error("out of memory for %zu texts", n_text);
        return GR_ENOMEM;
    }
    out->n_text = (int)n_text;
    out->n_pos = (int)n_pos;
    out->n_level = (int)n_level;
    for (int i = 0; i < out->n_text; i++) {
        GR_TRY(take_text(path, json_array_get(texts, (size_t)i), i, out));
    }
    return GR_OK;
}

enum gr_status gr_texts_file_load(const char *path, struct gr_surmise_texts *out)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    *out = (struct gr_surmise_texts){.n_text = 0};
    if (root == NULL) {
        log_error("%s: line %d: %s", path, error.line, error.text);
        return error.line < 0 ? GR_ENOTFOUND : GR_EFORMAT;
    }
    const enum gr_status st = take_all(path, root, out);
    json_decref(root);
    return st;
}
