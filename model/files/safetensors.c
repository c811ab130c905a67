#include "model/files/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "model/files/json_util.h"
#include "model/files/str_table.h"

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"

/* Every log line about a shard has to fit beside its path. */
#define SHAPE_TEXT_BYTES (GR_ST_N_DIM_MAX * 21 + 3)

struct shard {
    char *path; /* owned; for messages */
    char *file; /* points into path: name inside the folder */
    void *map;  /* NULL: borrowed memory */
    const uint8_t *bytes;
    size_t len;
    json_t *header; /* owned; the tensors' names live in it */
    size_t data_at; /* where the tensors' data starts */
};

struct gr_safetensors {
    struct shard *shards; /* [n_shard] */
    size_t n_shard;
    struct gr_tensor *tensors; /* [n_tensor], sorted by name */
    uint32_t *shard_of;        /* [n_tensor] */
    bool *used;                /* [n_tensor] */
    size_t n_tensor;
    struct gr_str_table by_name;
};

/* A tensor with its shard and place, before and during the sort. */
struct entry {
    struct gr_tensor tensor;
    uint64_t begin, end; /* in the shard's data */
    uint32_t shard;
};

struct entry_list {
    struct entry *items;
    size_t n, cap;
};

static const char *const dtype_names[] = {
#define X(name, bytes) #name,
    GR_ST_DTYPE_LIST(X)
#undef X
};

static const size_t dtype_bytes[] = {
#define X(name, bytes) bytes,
    GR_ST_DTYPE_LIST(X)
#undef X
};

const char *gr_st_dtype_name(enum gr_st_dtype dtype)
{
    return (size_t)dtype < GR_ST_N_DTYPE ? dtype_names[dtype] : "(unknown)";
}

size_t gr_st_dtype_bytes(enum gr_st_dtype dtype)
{
    return (size_t)dtype < GR_ST_N_DTYPE ? dtype_bytes[dtype] : 0;
}

static void shape_text(int n_dim, const int64_t *shape, char text[SHAPE_TEXT_BYTES])
{
    size_t n = 0;
    text[n++] = '[';
    for (int i = 0; i < n_dim; i++) {
        n += (size_t)snprintf(text + n, SHAPE_TEXT_BYTES - n, i > 0 ? ",%" PRId64 : "%" PRId64, shape[i]);
    }
    text[n++] = ']';
    text[n] = '\0';
}

/* ---- one tensor of a header ---- */

static enum gr_status check_name(const struct shard *s, const char *name)
{
    size_t len = strlen(name);
    if (len == 0 || len > GR_ST_NAME_LEN_MAX) {
        log_error("%s: a tensor name has %zu bytes, must be 1..%d", s->path, len, GR_ST_NAME_LEN_MAX);
        return GR_ELIMIT;
    }
    for (const char *p = name; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) {
            log_error("%s: a tensor name holds the control character 0x%02x", s->path, (unsigned)*p);
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

static enum gr_status parse_dtype(const struct shard *s, const char *name, const json_t *value, enum gr_st_dtype *out)
{
    const char *text = json_string_value(value);
    for (size_t i = 0; text != NULL && i < GR_ST_N_DTYPE; i++) {
        if (strcmp(text, dtype_names[i]) == 0) {
            *out = (enum gr_st_dtype)i;
            return GR_OK;
        }
    }
    log_error("%s: tensor %s: dtype %.20s is not known (BF16, F16, F32, F8_E4M3, U8, I64, BOOL ...)", s->path, name,
              text != NULL ? text : "(not a string)");
    return text != NULL ? GR_EUNSUPPORTED : GR_EFORMAT;
}

static enum gr_status parse_shape(const struct shard *s, const char *name, const json_t *value, struct gr_tensor *t)
{
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n > GR_ST_N_DIM_MAX) {
        log_error("%s: tensor %s: shape must be a list of at most %d numbers", s->path, name, GR_ST_N_DIM_MAX);
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

static enum gr_status parse_offsets(const struct shard *s, const char *name, const json_t *value, struct entry *e)
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

/* Bytes that dtype and shape ask for; false on overflow. */
static bool tensor_bytes(const struct gr_tensor *t, uint64_t *out)
{
    uint64_t n = dtype_bytes[t->dtype];
    /* A zero anywhere makes the tensor empty, whatever the rest would overflow to. */
    for (int i = 0; i < t->n_dim; i++) {
        if (t->shape[i] == 0) {
            *out = 0;
            return true;
        }
    }
    for (int i = 0; i < t->n_dim; i++) {
        if (__builtin_mul_overflow(n, (uint64_t)t->shape[i], &n)) {
            return false;
        }
    }
    *out = n;
    return true;
}

static enum gr_status parse_tensor(const struct shard *s, const char *name, const json_t *obj, struct entry *e)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets", NULL};
    GR_TRY(check_name(s, name));
    if (!json_is_object(obj)) {
        log_error("%s: tensor %s: must be an object", s->path, name);
        return GR_EFORMAT;
    }
    char prefix[GR_ST_NAME_LEN_MAX + 16];
    snprintf(prefix, sizeof(prefix), "tensor %s: ", name);
    struct gr_json_where w = {s->path, prefix, obj};
    GR_TRY(gr_json_only_keys(&w, keys));
    struct gr_tensor *t = &e->tensor;
    t->name = name;
    GR_TRY(parse_dtype(s, name, json_object_get(obj, "dtype"), &t->dtype));
    GR_TRY(parse_shape(s, name, json_object_get(obj, "shape"), t));
    GR_TRY(parse_offsets(s, name, json_object_get(obj, "data_offsets"), e));

    uint64_t need, have = e->end - e->begin;
    char shape[SHAPE_TEXT_BYTES];
    shape_text(t->n_dim, t->shape, shape);
    if (!tensor_bytes(t, &need)) {
        log_error("%s: tensor %s: %s %s is more than 2^64 bytes", s->path, name, dtype_names[t->dtype], shape);
        return GR_EFORMAT;
    }
    if (need != have) {
        log_error("%s: tensor %s: %s %s needs %" PRIu64 " bytes, data_offsets hold %" PRIu64, s->path, name,
                  dtype_names[t->dtype], shape, need, have);
        return GR_EFORMAT;
    }
    return GR_OK;
}

/* ---- one file ---- */

static enum gr_status list_reserve(struct entry_list *list, size_t n_more)
{
    if (n_more > GR_ST_N_TENSOR_MAX - list->n) {
        log_error("more than %u tensors in one model", GR_ST_N_TENSOR_MAX);
        return GR_ELIMIT;
    }
    size_t cap = list->n + n_more;
    if (cap <= list->cap) {
        return GR_OK;
    }
    cap = GR_MAX(cap, GR_MIN(2 * list->cap, (size_t)GR_ST_N_TENSOR_MAX));
    struct entry *items = realloc(list->items, cap * sizeof(*items));
    if (items == NULL) {
        log_error("no memory for %zu tensors", cap);
        return GR_ENOMEM;
    }
    list->items = items;
    list->cap = cap;
    return GR_OK;
}

static enum gr_status check_metadata(const struct shard *s, const json_t *meta)
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

static enum gr_status parse_header(struct shard *s, uint32_t shard_idx, struct entry_list *list)
{
    GR_TRY(list_reserve(list, json_object_size(s->header)));
    for (void *it = json_object_iter(s->header); it != NULL; it = json_object_iter_next(s->header, it)) {
        const char *name = json_object_iter_key(it);
        const json_t *value = json_object_iter_value(it);
        if (strcmp(name, "__metadata__") == 0) {
            GR_TRY(check_metadata(s, value));
            continue;
        }
        struct entry e = {.shard = shard_idx};
        GR_TRY(parse_tensor(s, name, value, &e));
        list->items[list->n++] = e;
    }
    return GR_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

/* Tensors must fill the data without overlap or hole; then each gets its pointer. */
static enum gr_status place_tensors(const struct shard *s, struct entry *items, size_t n)
{
    size_t data_len = s->len - s->data_at;
    if (n > 0) {
        qsort(items, n, sizeof(*items), by_place); /* items may be NULL for none */
    }
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        struct entry *e = &items[i];
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
        if ((uintptr_t)t->data % dtype_bytes[t->dtype] != 0) {
            log_error("%s: tensor %s: data at byte %" PRIu64 " is not aligned to its %s elements; "
                      "save the file again with a current safetensors",
                      s->path, t->name, items[i].begin + s->data_at, dtype_names[t->dtype]);
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

/* s->bytes and s->len are set. Appends the tensors of the file. */
static enum gr_status read_shard(struct shard *s, uint32_t shard_idx, struct entry_list *list)
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
    GR_TRY(gr_json_parse_object(s->path, json, (size_t)header_len, &s->header));
    size_t first = list->n;
    GR_TRY(parse_header(s, shard_idx, list));
    size_t n = list->n - first;
    return place_tensors(s, n > 0 ? list->items + first : NULL, n);
}

static enum gr_status map_shard(struct shard *s)
{
    int fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        log_error("%s: %s", s->path, strerror(errno));
        return errno == ENOENT ? GR_ENOTFOUND : GR_EIO;
    }
    enum gr_status st = GR_EFORMAT;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        log_error("%s: %s", s->path, strerror(errno));
        st = GR_EIO;
    } else if (!S_ISREG(info.st_mode) || info.st_size < 8) {
        log_error("%s: %jd bytes, must be a regular file of at least 8", s->path, (intmax_t)info.st_size);
    } else {
        size_t len = (size_t)info.st_size;
        void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            log_error("%s: mmap of %zu bytes: %s", s->path, len, strerror(errno));
            st = GR_EIO;
        } else {
            s->map = map;
            s->bytes = map;
            s->len = len;
            st = GR_OK;
        }
    }
    close(fd);
    return st;
}

static enum gr_status set_path(struct shard *s, const char *dir, const char *file)
{
    char path[PATH_MAX];
    if (dir != NULL) {
        GR_TRY(gr_path_join(path, sizeof(path), dir, file));
        s->path = strdup(path);
    } else {
        s->path = strdup(file);
    }
    if (s->path == NULL) {
        log_error("%s: no memory", file);
        return GR_ENOMEM;
    }
    s->file = s->path + strlen(s->path) - strlen(file);
    return GR_OK;
}

/* ---- all files ---- */

static enum gr_status alloc_shards(struct gr_safetensors *st, size_t n)
{
    st->shards = calloc(n, sizeof(*st->shards));
    if (st->shards == NULL) {
        log_error("no memory for %zu shards", n);
        return GR_ENOMEM;
    }
    st->n_shard = n;
    return GR_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return strcmp(x->tensor.name, y->tensor.name);
}

/* From the collected entries to the sorted arrays and the name table. */
static enum gr_status finish_tensors(struct gr_safetensors *st, struct entry_list *list)
{
    size_t n = list->n;
    if (n == 0) {
        log_error("%s: holds no tensor", st->shards[0].path);
        return GR_EFORMAT;
    }
    qsort(list->items, n, sizeof(*list->items), by_name);
    st->tensors = calloc(n, sizeof(*st->tensors));
    st->shard_of = calloc(n, sizeof(*st->shard_of));
    st->used = calloc(n, sizeof(*st->used));
    if (st->tensors == NULL || st->shard_of == NULL || st->used == NULL) {
        log_error("no memory for %zu tensors", n);
        return GR_ENOMEM;
    }
    st->n_tensor = n;
    GR_TRY(gr_str_table_init(&st->by_name, n));
    for (size_t i = 0; i < n; i++) {
        st->tensors[i] = list->items[i].tensor;
        st->shard_of[i] = list->items[i].shard;
        const char *name = st->tensors[i].name;
        uint32_t other;
        if (!gr_str_table_add(&st->by_name, name, strlen(name), (uint32_t)i, &other)) {
            log_error("tensor %s is in %s and again in %s", name, st->shards[st->shard_of[other]].path,
                      st->shards[st->shard_of[i]].path);
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

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
static enum gr_status shards_of_index(struct gr_safetensors *st, const char *index, const char *dir,
                                      const json_t *weight_map)
{
    json_t *map = (json_t *)(uintptr_t)weight_map;
    GR_TRY(alloc_shards(st, GR_ST_N_SHARD_MAX));
    st->n_shard = 0;
    struct gr_str_table files;
    GR_TRY(gr_str_table_init(&files, GR_ST_N_SHARD_MAX));
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
        if (st->n_shard == GR_ST_N_SHARD_MAX) {
            log_error("%s: weight_map names more than %d files", index, GR_ST_N_SHARD_MAX);
            status = GR_ELIMIT;
            break;
        }
        status = set_path(&st->shards[st->n_shard], dir, file);
        if (status != GR_OK) {
            break;
        }
        (void)gr_str_table_add(&files, file, strlen(file), (uint32_t)st->n_shard, &known);
        st->n_shard++;
    }
    gr_str_table_finish(&files);
    if (status == GR_OK && st->n_shard == 0) {
        log_error("%s: weight_map is empty", index);
        return GR_EFORMAT;
    }
    return status;
}

/* Index and shards must tell of the same tensors in the same files. */
static enum gr_status check_index(const struct gr_safetensors *st, const char *index, const json_t *weight_map)
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
        const char *found = st->shards[st->shard_of[i]].file;
        if (strcmp(found, file) != 0) {
            log_error("%s: tensor %s should be in %s, is in %s", index, name, file, found);
            return GR_EFORMAT;
        }
    }
    for (size_t i = 0; i < st->n_tensor; i++) {
        if (json_object_get(map, st->tensors[i].name) == NULL) {
            log_error("%s: tensor %s of %s is not in weight_map", index, st->tensors[i].name,
                      st->shards[st->shard_of[i]].file);
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

static enum gr_status read_shards(struct gr_safetensors *st)
{
    struct entry_list list = {0};
    enum gr_status status = GR_OK;
    for (size_t i = 0; i < st->n_shard && status == GR_OK; i++) {
        if (st->shards[i].bytes == NULL) {
            status = map_shard(&st->shards[i]);
        }
        if (status == GR_OK) {
            status = read_shard(&st->shards[i], (uint32_t)i, &list);
        }
    }
    if (status == GR_OK) {
        status = finish_tensors(st, &list);
    }
    free(list.items);
    return status;
}

static enum gr_status open_index(struct gr_safetensors *st, const char *dir, const char *index, const char *json,
                                 size_t len)
{
    json_t *root;
    GR_TRY(gr_json_parse_object(index, json, len, &root));
    struct gr_json_where w = {index, "", root};
    const json_t *weight_map = NULL;
    enum gr_status status = gr_json_object(&w, "weight_map", true, &weight_map);
    if (status == GR_OK) {
        status = shards_of_index(st, index, dir, weight_map);
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

static enum gr_status open_folder(struct gr_safetensors *st, const char *dir)
{
    char path[PATH_MAX];
    GR_TRY(gr_path_join(path, sizeof(path), dir, SINGLE_FILE));
    if (access(path, F_OK) == 0) {
        GR_TRY(alloc_shards(st, 1));
        GR_TRY(set_path(&st->shards[0], dir, SINGLE_FILE));
        return read_shards(st);
    }
    GR_TRY(gr_path_join(path, sizeof(path), dir, INDEX_FILE));
    char *json;
    size_t len;
    enum gr_status status = gr_file_read(path, GR_ST_INDEX_BYTES, false, &json, &len);
    if (status == GR_ENOTFOUND) {
        log_error("%s: neither " SINGLE_FILE " nor " INDEX_FILE " is there", dir);
    }
    GR_TRY(status);
    status = open_index(st, dir, path, json, len);
    free(json);
    return status;
}

enum gr_status gr_safetensors_open(const char *dir, struct gr_safetensors **out)
{
    struct gr_safetensors *st = calloc(1, sizeof(*st));
    if (st == NULL) {
        log_error("%s: no memory", dir);
        return GR_ENOMEM;
    }
    enum gr_status status = open_folder(st, dir);
    if (status != GR_OK) {
        gr_safetensors_close(st);
        return status;
    }
    *out = st;
    return GR_OK;
}

static enum gr_status open_memory(struct gr_safetensors *st, const char *name, const void *data, size_t len)
{
    GR_TRY(alloc_shards(st, 1));
    GR_TRY(set_path(&st->shards[0], NULL, name));
    st->shards[0].bytes = data;
    st->shards[0].len = len;
    return read_shards(st);
}

enum gr_status gr_safetensors_parse(const char *name, const void *data, size_t len, struct gr_safetensors **out)
{
    GR_ASSERT(data != NULL);
    struct gr_safetensors *st = calloc(1, sizeof(*st));
    if (st == NULL) {
        log_error("%s: no memory", name);
        return GR_ENOMEM;
    }
    enum gr_status status = open_memory(st, name, data, len);
    if (status != GR_OK) {
        gr_safetensors_close(st);
        return status;
    }
    *out = st;
    return GR_OK;
}

void gr_safetensors_close(struct gr_safetensors *st)
{
    if (st == NULL) {
        return;
    }
    for (size_t i = 0; i < st->n_shard; i++) {
        json_decref(st->shards[i].header);
        if (st->shards[i].map != NULL) {
            munmap(st->shards[i].map, st->shards[i].len);
        }
        free(st->shards[i].path);
    }
    gr_str_table_finish(&st->by_name);
    free(st->shards);
    free(st->tensors);
    free(st->shard_of);
    free(st->used);
    free(st);
}

/* ---- use ---- */

const struct gr_tensor *gr_safetensors_find(const struct gr_safetensors *st, const char *name)
{
    uint32_t i;
    if (!gr_str_table_get(&st->by_name, name, strlen(name), &i)) {
        return NULL;
    }
    st->used[i] = true;
    return &st->tensors[i];
}

/* Index of the first value that is NaN or infinite; the number of values when there is none. */
static size_t first_not_finite(const struct gr_tensor *t, size_t n)
{
    size_t i = 0;
    if (t->dtype == GR_ST_BF16) {
        const uint16_t *x = t->data;
        while (i < n && (x[i] & 0x7f80u) != 0x7f80u) {
            i++;
        }
    } else if (t->dtype == GR_ST_F16) {
        const uint16_t *x = t->data;
        while (i < n && (x[i] & 0x7c00u) != 0x7c00u) {
            i++;
        }
    } else if (t->dtype == GR_ST_F32) {
        const uint32_t *x = t->data;
        while (i < n && (x[i] & 0x7f800000u) != 0x7f800000u) {
            i++;
        }
    } else {
        return n;
    }
    return i;
}

/* A norm or a bias spoils every row that there will be, and is small enough to be looked at. */
static enum gr_status check_vector(const struct gr_safetensors *st, const struct gr_tensor *t)
{
    const size_t n = t->bytes / gr_st_dtype_bytes(t->dtype);
    const size_t i = first_not_finite(t, n);
    if (i < n) {
        log_error("%s: tensor %s: value %zu of %zu is NaN or infinite: the file is damaged, or was written by a "
                  "training that had diverged",
                  gr_safetensors_file(st, (size_t)(t - st->tensors)), t->name, i, n);
        return GR_EFORMAT;
    }
    return GR_OK;
}

enum gr_status gr_safetensors_take(const struct gr_safetensors *st, const char *name, enum gr_st_dtype dtype, int n_dim,
                                   const int64_t *shape, const void **data_out)
{
    char want[SHAPE_TEXT_BYTES], have[SHAPE_TEXT_BYTES];
    GR_ASSERT(n_dim >= 0 && n_dim <= GR_ST_N_DIM_MAX);
    shape_text(n_dim, shape, want);
    const struct gr_tensor *t = gr_safetensors_find(st, name);
    if (t == NULL) {
        log_error("%s%s: tensor %s is missing (%s %s by config.json)", st->shards[0].path,
                  st->n_shard > 1 ? " and the other shards" : "", name, gr_st_dtype_name(dtype), want);
        return GR_ENOTFOUND;
    }
    if (t->dtype != dtype || t->n_dim != n_dim ||
        (n_dim > 0 && memcmp(t->shape, shape, (size_t)n_dim * sizeof(*shape)) != 0)) {
        shape_text(t->n_dim, t->shape, have);
        log_error("%s: tensor %s: expected %s %s by config.json, found %s %s",
                  gr_safetensors_file(st, (size_t)(t - st->tensors)), name, gr_st_dtype_name(dtype), want,
                  gr_st_dtype_name(t->dtype), have);
        return GR_EMISMATCH;
    }
    if (n_dim == 1) {
        GR_TRY(check_vector(st, t));
    }
    *data_out = t->data;
    return GR_OK;
}

/* Buffers that older exporters wrote beside the weights; every reader computes them afresh. */
static bool is_buffer(const char *name)
{
    static const char *const suffixes[] = {".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"};
    size_t len = strlen(name);
    for (size_t i = 0; i < GR_ARRAY_LEN(suffixes); i++) {
        size_t n = strlen(suffixes[i]);
        if (len >= n && strcmp(name + len - n, suffixes[i]) == 0) {
            return true;
        }
    }
    return false;
}

enum gr_status gr_safetensors_check_all_used(const struct gr_safetensors *st)
{
    char names[512];
    size_t n = 0, len = 0, first = 0;
    names[0] = '\0';
    for (size_t i = 0; i < st->n_tensor; i++) {
        const char *name = st->tensors[i].name;
        if (st->used[i] || is_buffer(name)) {
            continue;
        }
        first = n == 0 ? i : first;
        if (n < 4 && len < sizeof(names)) {
            len += (size_t)snprintf(names + len, sizeof(names) - len, n > 0 ? ", %s" : "%s", name);
        }
        n++;
    }
    if (n == 0) {
        return GR_OK;
    }
    log_error("%s: %zu tensors that the architecture in config.json does not have: %s%s",
              gr_safetensors_file(st, first), n, names, n > 4 ? ", ..." : "");
    return GR_EMISMATCH;
}

size_t gr_safetensors_count(const struct gr_safetensors *st)
{
    return st->n_tensor;
}

const struct gr_tensor *gr_safetensors_at(const struct gr_safetensors *st, size_t i)
{
    GR_ASSERT(i < st->n_tensor);
    return &st->tensors[i];
}

const char *gr_safetensors_file(const struct gr_safetensors *st, size_t i)
{
    GR_ASSERT(i < st->n_tensor);
    return st->shards[st->shard_of[i]].path;
}
