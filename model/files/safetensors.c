#include "model/files/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "model/files/json_util.h"
#include "model/files/str_table.h"
#include "model/files/tensors_internal.h"

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"

/* ---- one tensor of a header ---- */

static enum gr_status parse_dtype(const struct gr_tensor_file *s, const char *name, const json_t *value,
                                  enum gr_format *out)
{
    const char *text = json_string_value(value);
    for (size_t i = 0; text != NULL && i < GR_N_FORMAT; i++) {
        if (!gr_format_is_quantised((enum gr_format)i) && strcmp(text, gr_format_name((enum gr_format)i)) == 0) {
            *out = (enum gr_format)i;
            return GR_OK;
        }
    }
    log_error("%s: tensor %s: dtype %.20s is not known (BF16, F16, F32, F8_E4M3, U8, I64, BOOL ...)", s->path, name,
              text != NULL ? text : "(not a string)");
    return text != NULL ? GR_EUNSUPPORTED : GR_EFORMAT;
}

static enum gr_status parse_shape(const struct gr_tensor_file *s, const char *name, const json_t *value,
                                  struct gr_tensor *t)
{
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n > GR_TENSOR_N_DIM_MAX) {
        log_error("%s: tensor %s: shape must be a list of at most %d numbers", s->path, name, GR_TENSOR_N_DIM_MAX);
        return GR_EFORMAT;
    }
    t->n_dim = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(value, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            log_error("%s: tensor %s: shape[%zu] must be an integer, 0 or more", s->path, name, i);
            return GR_EFORMAT;
        }
        t->shape[i] = json_integer_value(dim);
    }
    return GR_OK;
}

static enum gr_status parse_offsets(const struct gr_tensor_file *s, const char *name, const json_t *value,
                                    struct gr_tensor_entry *e)
{
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
        log_error("%s: tensor %s: data_offsets must be two rising integers [begin, end]", s->path, name);
        return GR_EFORMAT;
    }
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    return GR_OK;
}

static enum gr_status parse_tensor(const struct gr_tensor_file *s, const char *name, const json_t *obj,
                                   struct gr_tensor_entry *e)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets", NULL};
    GR_TRY(gr_tensor_check_name(s, name, strlen(name)));
    if (!json_is_object(obj)) {
        log_error("%s: tensor %s: must be an object", s->path, name);
        return GR_EFORMAT;
    }
    char prefix[GR_TENSOR_NAME_LEN_MAX + 16];
    snprintf(prefix, sizeof(prefix), "tensor %s: ", name);
    struct gr_json_where w = {.name = s->path, .prefix = prefix, .obj = obj};
    GR_TRY(gr_json_only_keys(&w, keys));
    struct gr_tensor *t = &e->tensor;
    t->name = name;
    GR_TRY(parse_dtype(s, name, json_object_get(obj, "dtype"), &t->dtype));
    GR_TRY(parse_shape(s, name, json_object_get(obj, "shape"), t));
    GR_TRY(parse_offsets(s, name, json_object_get(obj, "data_offsets"), e));

    uint64_t need, have = e->end - e->begin;
    char shape[GR_SHAPE_TEXT_BYTES];
    gr_shape_text(t->n_dim, t->shape, shape);
    if (!gr_tensor_bytes(t, &need)) {
        log_error("%s: tensor %s: %s %s is more than 2^64 bytes", s->path, name, gr_format_name(t->dtype), shape);
        return GR_EFORMAT;
    }
    if (need != have) {
        log_error("%s: tensor %s: %s %s needs %" PRIu64 " bytes, data_offsets hold %" PRIu64, s->path, name,
                  gr_format_name(t->dtype), shape, need, have);
        return GR_EFORMAT;
    }
    return GR_OK;
}

/* ---- one file ---- */

static enum gr_status check_metadata(const struct gr_tensor_file *s, const json_t *meta)
{
    json_t *obj = (json_t *)(uintptr_t)meta;
    if (!json_is_object(obj)) {
        log_error("%s: __metadata__ must be an object", s->path);
        return GR_EFORMAT;
    }
    for (void *it = json_object_iter(obj); it != NULL; it = json_object_iter_next(obj, it)) {
        if (!json_is_string(json_object_iter_value(it))) {
            log_error("%s: __metadata__ %.64s must be a string", s->path, json_object_iter_key(it));
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

static enum gr_status parse_header(struct gr_tensor_file *s, uint32_t shard_idx, struct gr_tensor_list *list)
{
    json_t *header = s->header;
    GR_TRY(gr_tensor_list_reserve(list, json_object_size(header)));
    for (void *it = json_object_iter(header); it != NULL; it = json_object_iter_next(header, it)) {
        const char *name = json_object_iter_key(it);
        const json_t *value = json_object_iter_value(it);
        if (strcmp(name, "__metadata__") == 0) {
            GR_TRY(check_metadata(s, value));
            continue;
        }
        struct gr_tensor_entry e = {.file = shard_idx};
        GR_TRY(parse_tensor(s, name, value, &e));
        list->items[list->n++] = e;
    }
    return GR_OK;
}

/* Tensors must fill the data without overlap or hole; then each gets its pointer. */
static enum gr_status place_tensors(const struct gr_tensor_file *s, struct gr_tensor_entry *items, size_t n)
{
    size_t data_len = s->len - s->data_at;
    if (n > 0) {
        qsort(items, n, sizeof(*items), gr_tensor_by_place); /* items may be NULL for none */
    }
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        struct gr_tensor_entry *e = &items[i];
        if (e->begin != at) {
            log_error("%s: tensor %s: data_offsets begin at %" PRIu64 ", the data before it ends "
                      "at %" PRIu64 " (%s)",
                      s->path, e->tensor.name, e->begin, at, e->begin < at ? "overlap" : "hole");
            return GR_EFORMAT;
        }
        at = e->end;
    }
    /* Said for the whole file: with a cut-off download this is the useful line. */
    if (at != data_len) {
        log_error("%s: the header describes %" PRIu64 " bytes, the file has %zu (%s)", s->path, at + s->data_at, s->len,
                  at > data_len ? "truncated: fetch it again" : "bytes after the last tensor");
        return GR_EFORMAT;
    }
    for (size_t i = 0; i < n; i++) {
        struct gr_tensor *t = &items[i].tensor;
        t->data = s->bytes + s->data_at + items[i].begin;
        t->bytes = (size_t)(items[i].end - items[i].begin);
        if ((uintptr_t)t->data % gr_format_bytes(t->dtype) != 0) {
            log_error("%s: tensor %s: data at byte %" PRIu64 " is not aligned to its %s elements; "
                      "save the file again with a current safetensors",
                      s->path, t->name, items[i].begin + s->data_at, gr_format_name(t->dtype));
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

static void header_free(void *header)
{
    json_decref(header);
}

/* s->bytes and s->len are set. Appends the tensors of the file. */
static enum gr_status read_shard(struct gr_tensor_file *s, uint32_t shard_idx, struct gr_tensor_list *list)
{
    if (s->len < 8) {
        log_error("%s: %zu bytes, a safetensors file has at least 8", s->path, s->len);
        return GR_EFORMAT;
    }
    uint64_t header_len = 0;
    for (int i = 7; i >= 0; i--) {
        header_len = header_len << 8 | s->bytes[i];
    }
    if (header_len > GR_ST_HEADER_BYTES) {
        log_error("%s: header of %" PRIu64 " bytes, limit %u (is this a safetensors file?)", s->path, header_len,
                  GR_ST_HEADER_BYTES);
        return GR_ELIMIT;
    }
    if (header_len > s->len - 8) {
        log_error("%s: header of %" PRIu64 " bytes, the file has only %zu (truncated: fetch it "
                  "again)",
                  s->path, header_len, s->len);
        return GR_EFORMAT;
    }
    s->data_at = (size_t)header_len + 8;
    const char *json = (const char *)s->bytes + 8;
    json_t *header = NULL;
    GR_TRY(gr_json_parse_object(s->path, json, (size_t)header_len, &header));
    s->header = header;
    s->header_free = header_free;
    size_t first = list->n;
    GR_TRY(parse_header(s, shard_idx, list));
    size_t n = list->n - first;
    return place_tensors(s, n > 0 ? list->items + first : NULL, n);
}

/* ---- all files ---- */

static enum gr_status check_file_name(const char *index, const char *tensor, const char *file)
{
    static const char suffix[] = ".safetensors";
    size_t len = file != NULL ? strlen(file) : 0;
    /* A plain name: an index must not reach out of its folder. */
    if (len <= sizeof(suffix) - 1 || len > NAME_MAX || strchr(file, '/') != NULL ||
        strcmp(file + len - (sizeof(suffix) - 1), suffix) != 0) {
        log_error("%s: weight_map: %.128s: %.128s is not the plain name of a .safetensors file", index, tensor,
                  file != NULL ? file : "(not a string)");
        return GR_EFORMAT;
    }
    return GR_OK;
}

/* Sets the shards from the files that the index names, each once. */
static enum gr_status files_of_index(struct gr_tensors *st, const char *index, const char *dir,
                                     const json_t *weight_map)
{
    json_t *map = (json_t *)(uintptr_t)weight_map;
    struct gr_str_table files;
    GR_TRY(gr_str_table_init(&files, GR_TENSORS_N_FILE_MAX));
    enum gr_status status = GR_OK;
    for (void *it = json_object_iter(map); it != NULL; it = json_object_iter_next(map, it)) {
        const char *file = json_string_value(json_object_iter_value(it));
        status = check_file_name(index, json_object_iter_key(it), file);
        uint32_t known;
        if (status != GR_OK) {
            break;
        }
        if (gr_str_table_get(&files, file, strlen(file), &known)) {
            continue;
        }
        if (st->n_file == GR_TENSORS_N_FILE_MAX) {
            log_error("%s: weight_map names more than %d files", index, GR_TENSORS_N_FILE_MAX);
            status = GR_ELIMIT;
            break;
        }
        status = gr_tensor_file_set_path(&st->files[st->n_file], dir, file);
        if (status != GR_OK) {
            break;
        }
        (void)gr_str_table_add(&files, file, strlen(file), (uint32_t)st->n_file, &known);
        st->n_file++;
    }
    gr_str_table_finish(&files);
    if (status == GR_OK && st->n_file == 0) {
        log_error("%s: weight_map is empty", index);
        return GR_EFORMAT;
    }
    return status;
}

/* Index and shards must tell of the same tensors in the same files. */
static enum gr_status check_index(const struct gr_tensors *st, const char *index, const json_t *weight_map)
{
    json_t *map = (json_t *)(uintptr_t)weight_map;
    for (void *it = json_object_iter(map); it != NULL; it = json_object_iter_next(map, it)) {
        const char *name = json_object_iter_key(it);
        const char *file = json_string_value(json_object_iter_value(it));
        uint32_t i;
        if (!gr_str_table_get(&st->by_name, name, strlen(name), &i)) {
            log_error("%s: tensor %.200s is missing in %s", index, name, file);
            return GR_EFORMAT;
        }
        const char *found = st->files[st->file_of[i]].file;
        if (strcmp(found, file) != 0) {
            log_error("%s: tensor %s should be in %s, is in %s", index, name, file, found);
            return GR_EFORMAT;
        }
    }
    for (size_t i = 0; i < st->n_tensor; i++) {
        if (json_object_get(map, st->tensors[i].name) == NULL) {
            log_error("%s: tensor %s of %s is not in weight_map", index, st->tensors[i].name,
                      st->files[st->file_of[i]].file);
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

static enum gr_status read_shards(struct gr_tensors *st)
{
    struct gr_tensor_list list = {0};
    enum gr_status status = GR_OK;
    for (size_t i = 0; i < st->n_file && status == GR_OK; i++) {
        if (st->files[i].bytes == NULL) {
            status = gr_tensor_file_map(&st->files[i]);
        }
        if (status == GR_OK) {
            status = read_shard(&st->files[i], (uint32_t)i, &list);
        }
    }
    if (status == GR_OK) {
        status = gr_tensors_finish(st, &list);
    }
    free(list.items);
    return status;
}

static enum gr_status open_index(struct gr_tensors *st, const char *dir, const char *index, const char *json,
                                 size_t len)
{
    json_t *root;
    GR_TRY(gr_json_parse_object(index, json, len, &root));
    struct gr_json_where w = {.name = index, .prefix = "", .obj = root};
    const json_t *weight_map = NULL;
    enum gr_status status = gr_json_object(&w, "weight_map", true, &weight_map);
    if (status == GR_OK) {
        status = files_of_index(st, index, dir, weight_map);
    }
    if (status == GR_OK) {
        status = read_shards(st);
    }
    if (status == GR_OK) {
        status = check_index(st, index, weight_map);
    }
    json_decref(root);
    return status;
}

/* PyTorch's own files are pickles, whose reading runs what they say: they are never read here. */
static enum gr_status no_safetensors(const char *dir)
{
    static const char *const pickles[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < GR_ARRAY_LEN(pickles); i++) {
        char path[PATH_MAX];
        GR_TRY(gr_path_join(path, sizeof(path), dir, pickles[i]));
        if (access(path, F_OK) == 0) {
            log_error(
                "%s: PyTorch's pickle format is not read; convert it once: python3 tools/bin_to_safetensors.py %s",
                path, dir);
            return GR_EUNSUPPORTED;
        }
    }
    log_error("%s: neither " SINGLE_FILE " nor " INDEX_FILE " is there", dir);
    return GR_ENOTFOUND;
}

static enum gr_status open_folder(struct gr_tensors *st, const char *dir)
{
    char path[PATH_MAX];
    GR_TRY(gr_path_join(path, sizeof(path), dir, SINGLE_FILE));
    if (access(path, F_OK) == 0) {
        st->n_file = 1;
        GR_TRY(gr_tensor_file_set_path(&st->files[0], dir, SINGLE_FILE));
        return read_shards(st);
    }
    GR_TRY(gr_path_join(path, sizeof(path), dir, INDEX_FILE));
    char *json;
    size_t len;
    enum gr_status status = gr_file_read(path, GR_ST_INDEX_BYTES, false, &json, &len);
    if (status == GR_ENOTFOUND) {
        return no_safetensors(dir);
    }
    GR_TRY(status);
    status = open_index(st, dir, path, json, len);
    free(json);
    return status;
}

/* Room for as many files as an index may name; those that are set count. */
static enum gr_status create(const char *what, struct gr_tensors **out)
{
    GR_TRY(gr_tensors_create(what, GR_TENSORS_N_FILE_MAX, out));
    (*out)->n_file = 0;
    return GR_OK;
}

enum gr_status gr_safetensors_open(const char *dir, struct gr_tensors **out)
{
    struct gr_tensors *st = NULL;
    GR_TRY(create(dir, &st));
    enum gr_status status = open_folder(st, dir);
    if (status != GR_OK) {
        gr_tensors_close(st);
        return status;
    }
    *out = st;
    return GR_OK;
}

static enum gr_status open_memory(struct gr_tensors *st, const char *name, const void *data, size_t len)
{
    st->n_file = 1;
    GR_TRY(gr_tensor_file_set_path(&st->files[0], NULL, name));
    st->files[0].bytes = data;
    st->files[0].len = len;
    return read_shards(st);
}

enum gr_status gr_safetensors_parse(const char *name, const void *data, size_t len, struct gr_tensors **out)
{
    GR_ASSERT(data != NULL);
    struct gr_tensors *st = NULL;
    GR_TRY(create(name, &st));
    enum gr_status status = open_memory(st, name, data, len);
    if (status != GR_OK) {
        gr_tensors_close(st);
        return status;
    }
    *out = st;
    return GR_OK;
}
