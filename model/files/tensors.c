#include "model/files/tensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "model/files/json_util.h"
#include "model/files/tensors_internal.h"

void gr_shape_text(int n_dim, const int64_t *shape, char text[GR_SHAPE_TEXT_BYTES])
{
    size_t n = 0;
    text[n++] = '[';
    for (int i = 0; i < n_dim; i++) {
        n += (size_t)snprintf(text + n, GR_SHAPE_TEXT_BYTES - n, i > 0 ? ",%" PRId64 : "%" PRId64, shape[i]);
    }
    text[n++] = ']';
    text[n] = '\0';
}

/* ---- for the readers ---- */

enum gr_status gr_tensors_create(const char *what, size_t n_file, struct gr_tensors **out)
{
    struct gr_tensors *ts = calloc(1, sizeof(*ts));
    struct gr_tensor_file *files = calloc(n_file, sizeof(*files));
    if (ts == NULL || files == NULL) {
        log_error("%s: no memory for %zu files", what, n_file);
        free(ts);
        free(files);
        return GR_ENOMEM;
    }
    *ts = (struct gr_tensors){.files = files, .n_file = n_file, .shapes_from = "config.json"};
    *out = ts;
    return GR_OK;
}

enum gr_status gr_tensor_list_reserve(struct gr_tensor_list *list, size_t n_more)
{
    if (n_more > GR_TENSORS_MAX - list->n) {
        log_error("more than %u tensors in one model", GR_TENSORS_MAX);
        return GR_ELIMIT;
    }
    size_t cap = list->n + n_more;
    if (cap <= list->cap) {
        return GR_OK;
    }
    cap = GR_MAX(cap, GR_MIN(2 * list->cap, (size_t)GR_TENSORS_MAX));
    struct gr_tensor_entry *items = realloc(list->items, cap * sizeof(*items));
    if (items == NULL) {
        log_error("no memory for %zu tensors", cap);
        return GR_ENOMEM;
    }
    list->items = items;
    list->cap = cap;
    return GR_OK;
}

enum gr_status gr_tensor_file_set_path(struct gr_tensor_file *f, const char *dir, const char *file)
{
    char path[PATH_MAX];
    if (dir != NULL) {
        GR_TRY(gr_path_join(path, sizeof(path), dir, file));
        f->path = strdup(path);
    } else {
        f->path = strdup(file);
    }
    if (f->path == NULL) {
        log_error("%s: no memory", file);
        return GR_ENOMEM;
    }
    f->file = f->path + strlen(f->path) - strlen(file);
    return GR_OK;
}

/* What a clone without git-lfs has in place of a large file. */
static bool is_lfs_pointer(const uint8_t *bytes, size_t len)
{
    static const char begin[] = "version https://git-lfs.github.com/spec/";
    return len < 1024 && len >= sizeof(begin) - 1 && memcmp(bytes, begin, sizeof(begin) - 1) == 0;
}

enum gr_status gr_tensor_file_map(struct gr_tensor_file *f)
{
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        log_error("%s: %s", f->path, strerror(errno));
        return errno == ENOENT ? GR_ENOTFOUND : GR_EIO;
    }
    enum gr_status st = GR_EFORMAT;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        log_error("%s: %s", f->path, strerror(errno));
        st = GR_EIO;
    } else if (!S_ISREG(info.st_mode) || info.st_size < 8) {
        log_error("%s: %jd bytes, must be a regular file of at least 8", f->path, (intmax_t)info.st_size);
    } else {
        size_t len = (size_t)info.st_size;
        void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            log_error("%s: mmap of %zu bytes: %s", f->path, len, strerror(errno));
            st = GR_EIO;
        } else {
            f->map = map;
            f->bytes = map;
            f->len = len;
            st = GR_OK;
        }
    }
    if (st == GR_OK && is_lfs_pointer(f->bytes, f->len)) {
        log_error("%s: a pointer of git-lfs in place of the file; `git lfs pull' fetches it", f->path);
        st = GR_EFORMAT;
    }
    close(fd);
    return st;
}

enum gr_status gr_tensor_check_name(const struct gr_tensor_file *f, const char *name, size_t len)
{
    if (len == 0 || len > GR_TENSOR_NAME_LEN_MAX) {
        log_error("%s: a tensor name has %zu bytes, must be 1..%d", f->path, len, GR_TENSOR_NAME_LEN_MAX);
        return GR_ELIMIT;
    }
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f) {
            log_error("%s: a tensor name holds the control character 0x%02x", f->path, (unsigned)name[i] & 0xffu);
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

bool gr_tensor_bytes(const struct gr_tensor *t, uint64_t *out)
{
    const uint64_t block = gr_format_block(t->dtype);
    uint64_t n = gr_format_bytes(t->dtype);
    /* A zero anywhere makes the tensor empty, whatever the rest would overflow to. */
    for (int i = 0; i < t->n_dim; i++) {
        if (t->shape[i] == 0) {
            *out = 0;
            return true;
        }
    }
    if (block > 1 && (uint64_t)gr_tensor_n_col(t) % block != 0) {
        return false;
    }
    for (int i = 0; i < t->n_dim; i++) {
        const uint64_t dim = (uint64_t)t->shape[i] / (i == t->n_dim - 1 ? block : 1);
        if (__builtin_mul_overflow(n, dim, &n)) {
            return false;
        }
    }
    *out = n;
    return true;
}

int gr_tensor_by_place(const void *a, const void *b)
{
    const struct gr_tensor_entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    const struct gr_tensor_entry *x = a, *y = b;
    return strcmp(x->tensor.name, y->tensor.name);
}

enum gr_status gr_tensors_finish(struct gr_tensors *ts, struct gr_tensor_list *list)
{
    size_t n = list->n;
    if (n == 0) {
        log_error("%s: holds no tensor", ts->files[0].path);
        return GR_EFORMAT;
    }
    qsort(list->items, n, sizeof(*list->items), by_name);
    ts->tensors = calloc(n, sizeof(*ts->tensors));
    ts->file_of = calloc(n, sizeof(*ts->file_of));
    ts->used = calloc(n, sizeof(*ts->used));
    if (ts->tensors == NULL || ts->file_of == NULL || ts->used == NULL) {
        log_error("no memory for %zu tensors", n);
        return GR_ENOMEM;
    }
    ts->n_tensor = n;
    GR_TRY(gr_str_table_init(&ts->by_name, n));
    for (size_t i = 0; i < n; i++) {
        ts->tensors[i] = list->items[i].tensor;
        ts->file_of[i] = list->items[i].file;
        const char *name = ts->tensors[i].name;
        char shown[GR_SHOWN_NAME_BYTES];
        uint32_t other;
        if (!gr_str_table_add(&ts->by_name, name, strlen(name), (uint32_t)i, &other)) {
            log_error("tensor %s is in %s and again in %s", gr_tensors_shown(ts, name, shown),
                      ts->files[ts->file_of[other]].path, ts->files[ts->file_of[i]].path);
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

void gr_tensors_close(struct gr_tensors *ts)
{
    if (ts == NULL) {
        return;
    }
    for (size_t i = 0; i < ts->n_file; i++) {
        struct gr_tensor_file *f = &ts->files[i];
        if (f->header != NULL) {
            f->header_free(f->header);
        }
        if (f->map != NULL) {
            munmap(f->map, f->len);
        }
        free(f->path);
    }
    gr_str_table_finish(&ts->by_name);
    free(ts->files);
    free(ts->tensors);
    free(ts->file_of);
    free(ts->used);
    free(ts);
}

/* ---- use ---- */

const char *gr_tensors_shown(const struct gr_tensors *ts, const char *name, char shown[GR_SHOWN_NAME_BYTES])
{
    if (ts->name_in_file == NULL) {
        return name;
    }
    ts->name_in_file(name, shown, GR_SHOWN_NAME_BYTES);
    return shown;
}

const struct gr_tensor *gr_tensors_find(const struct gr_tensors *ts, const char *name)
{
    uint32_t i;
    if (!gr_str_table_get(&ts->by_name, name, strlen(name), &i)) {
        return NULL;
    }
    ts->used[i] = true;
    return &ts->tensors[i];
}

/* Index of the first value that is NaN or infinite; the number of values when there is none. */
static size_t first_not_finite(const struct gr_tensor *t, size_t n)
{
    size_t i = 0;
    if (t->dtype == GR_FORMAT_BF16) {
        const uint16_t *x = t->data;
        while (i < n && (x[i] & 0x7f80u) != 0x7f80u) {
            i++;
        }
    } else if (t->dtype == GR_FORMAT_F16) {
        const uint16_t *x = t->data;
        while (i < n && (x[i] & 0x7c00u) != 0x7c00u) {
            i++;
        }
    } else if (t->dtype == GR_FORMAT_F32) {
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
static enum gr_status check_vector(const struct gr_tensors *ts, const struct gr_tensor *t)
{
    const size_t n = t->bytes / gr_format_bytes(t->dtype);
    const size_t i = first_not_finite(t, n);
    char shown[GR_SHOWN_NAME_BYTES];
    if (i < n) {
        log_error("%s: tensor %s: value %zu of %zu is NaN or infinite: the file is damaged, or was written by a "
                  "training that had diverged",
                  gr_tensors_file_of(ts, t), gr_tensors_shown(ts, t->name, shown), i, n);
        return GR_EFORMAT;
    }
    return GR_OK;
}

#define ANY_WEIGHT GR_N_FORMAT /* in place of a format */

static enum gr_status find_shaped(const struct gr_tensors *ts, const char *name, enum gr_format dtype, int n_dim,
                                  const int64_t *shape, const struct gr_tensor **out)
{
    char want[GR_SHAPE_TEXT_BYTES], have[GR_SHAPE_TEXT_BYTES], shown[GR_SHOWN_NAME_BYTES];
    GR_ASSERT(n_dim >= 0 && n_dim <= GR_TENSOR_N_DIM_MAX);
    gr_shape_text(n_dim, shape, want);
    const char *kind = dtype != ANY_WEIGHT ? gr_format_name(dtype) : "";
    const char *blank = dtype != ANY_WEIGHT ? " " : "";
    const struct gr_tensor *t = gr_tensors_find(ts, name);
    if (t == NULL) {
        log_error("%s%s: tensor %s is missing (%s%s%s by %s)", ts->files[0].path,
                  ts->n_file > 1 ? " and the other shards" : "", gr_tensors_shown(ts, name, shown), kind, blank, want,
                  ts->shapes_from);
        return GR_ENOTFOUND;
    }
    if ((dtype != ANY_WEIGHT && t->dtype != dtype) || t->n_dim != n_dim ||
        (n_dim > 0 && memcmp(t->shape, shape, (size_t)n_dim * sizeof(*shape)) != 0)) {
        gr_shape_text(t->n_dim, t->shape, have);
        log_error("%s: tensor %s: expected %s%s%s by %s, found %s %s", gr_tensors_file_of(ts, t),
                  gr_tensors_shown(ts, name, shown), kind, blank, want, ts->shapes_from, gr_format_name(t->dtype),
                  have);
        return GR_EMISMATCH;
    }
    if (dtype == ANY_WEIGHT && !gr_format_is_weight(t->dtype)) {
        log_error("%s: tensor %s: weights in %s are not read; known: F32, F16, BF16, and those of GGUF in blocks",
                  gr_tensors_file_of(ts, t), gr_tensors_shown(ts, name, shown), gr_format_name(t->dtype));
        return GR_EUNSUPPORTED;
    }
    *out = t;
    return n_dim == 1 ? check_vector(ts, t) : GR_OK;
}

enum gr_status gr_tensors_take(const struct gr_tensors *ts, const char *name, enum gr_format dtype, int n_dim,
                               const int64_t *shape, const void **data_out)
{
    const struct gr_tensor *t = NULL;
    GR_TRY(find_shaped(ts, name, dtype, n_dim, shape, &t));
    *data_out = t->data;
    return GR_OK;
}

enum gr_status gr_tensors_take_weight(const struct gr_tensors *ts, const char *name, int n_dim, const int64_t *shape,
                                      const struct gr_tensor **out)
{
    return find_shaped(ts, name, ANY_WEIGHT, n_dim, shape, out);
}

/* Buffers that older exporters wrote beside the weights; every reader computes them afresh. */
bool gr_tensor_is_buffer(const char *name)
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

enum gr_status gr_tensors_check_all_used(const struct gr_tensors *ts)
{
    char names[512];
    size_t n = 0, len = 0, first = 0, n_buffer = 0, first_buffer = 0;
    names[0] = '\0';
    for (size_t i = 0; i < ts->n_tensor; i++) {
        const char *name = ts->tensors[i].name;
        if (ts->used[i]) {
            continue;
        }
        if (gr_tensor_is_buffer(name)) {
            first_buffer = n_buffer == 0 ? i : first_buffer;
            n_buffer++;
            continue;
        }
        first = n == 0 ? i : first;
        if (n < 4 && len < sizeof(names)) {
            len += (size_t)snprintf(names + len, sizeof(names) - len, n > 0 ? ", %s" : "%s", name);
        }
        n++;
    }
    if (n_buffer > 0) {
        log_debug("%s: %zu tensors that mean nothing are left out (%s ...)", gr_tensors_file(ts, first_buffer),
                  n_buffer, ts->tensors[first_buffer].name);
    }
    if (n == 0) {
        return GR_OK;
    }
    log_error("%s: %zu tensors that the architecture in %s does not have: %s%s", gr_tensors_file(ts, first), n,
              ts->shapes_from, names, n > 4 ? ", ..." : "");
    return GR_EMISMATCH;
}

size_t gr_tensors_count(const struct gr_tensors *ts)
{
    return ts->n_tensor;
}

const struct gr_tensor *gr_tensors_at(const struct gr_tensors *ts, size_t i)
{
    GR_ASSERT(i < ts->n_tensor);
    return &ts->tensors[i];
}

const char *gr_tensors_file(const struct gr_tensors *ts, size_t i)
{
    GR_ASSERT(i < ts->n_tensor);
    return ts->files[ts->file_of[i]].path;
}

const char *gr_tensors_file_of(const struct gr_tensors *ts, const struct gr_tensor *t)
{
    return gr_tensors_file(ts, (size_t)(t - ts->tensors));
}

/* ---- values ---- */

const void *gr_tensor_row(const struct gr_tensor *t, int64_t row)
{
    const size_t n_col = (size_t)gr_tensor_n_col(t);
    const size_t row_bytes = n_col / gr_format_block(t->dtype) * gr_format_bytes(t->dtype);
    if (t->n_head_paired > 0) {
        const int64_t head_dim = t->shape[0] / t->n_head_paired, half = head_dim / 2;
        const int64_t head = row / head_dim, i = row % head_dim;
        row = head * head_dim + i % half * 2 + i / half;
    }
    return (const uint8_t *)t->data + (size_t)row * row_bytes;
}

void gr_tensor_row_f32(const struct gr_tensor *t, int64_t row, float *out)
{
    gr_format_to_f32(t->dtype, gr_tensor_row(t, row), (size_t)gr_tensor_n_col(t), out);
}
