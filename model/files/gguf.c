#include "model/files/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/files/str_table.h"
#include "model/files/tensors_internal.h"

#define MAGIC "GGUF"
#define FIELD_BYTES_MIN 13  /* of a key of no bytes: u64 length, u32 type, a byte */
#define TENSOR_BYTES_MIN 24 /* name's length, dimensions' count, type, offset */

struct gr_gguf {
    const char *name; /* borrowed while it is parsed, then a copy */
    char *name_copy;
    struct gr_gguf_field *fields; /* [n_field] */
    size_t n_field;
    struct gr_gguf_tensor *tensors; /* [n_tensor] */
    size_t n_tensor;
    char *text; /* keys and names, each NUL-terminated */
    struct gr_str_table by_key;
};

/* ---- types ---- */

static const struct {
    const char *name;
    size_t bytes; /* of an element; of strings and arrays the least */
} types[GR_GGUF_N_TYPE] = {
    [GR_GGUF_U8] = {"u8", 1},        [GR_GGUF_I8] = {"i8", 1},     [GR_GGUF_U16] = {"u16", 2},
    [GR_GGUF_I16] = {"i16", 2},      [GR_GGUF_U32] = {"u32", 4},   [GR_GGUF_I32] = {"i32", 4},
    [GR_GGUF_F32] = {"f32", 4},      [GR_GGUF_BOOL] = {"bool", 1}, [GR_GGUF_STRING] = {"string", 8},
    [GR_GGUF_ARRAY] = {"array", 12}, [GR_GGUF_U64] = {"u64", 8},   [GR_GGUF_I64] = {"i64", 8},
    [GR_GGUF_F64] = {"f64", 8},
};

/* Tensor types of ggml by their number. format GR_N_FORMAT: known by name, not read. */
static const struct {
    uint32_t id;
    enum gr_format format;
    const char *name;
} tensor_types[] = {
    {0, GR_FORMAT_F32, "F32"},    {1, GR_FORMAT_F16, "F16"},      {2, GR_FORMAT_Q4_0, "Q4_0"},
    {3, GR_FORMAT_Q4_1, "Q4_1"},  {6, GR_FORMAT_Q5_0, "Q5_0"},    {7, GR_FORMAT_Q5_1, "Q5_1"},
    {8, GR_FORMAT_Q8_0, "Q8_0"},  {9, GR_N_FORMAT, "Q8_1"},       {10, GR_FORMAT_Q2_K, "Q2_K"},
    {11, GR_FORMAT_Q3_K, "Q3_K"}, {12, GR_FORMAT_Q4_K, "Q4_K"},   {13, GR_FORMAT_Q5_K, "Q5_K"},
    {14, GR_FORMAT_Q6_K, "Q6_K"}, {15, GR_N_FORMAT, "Q8_K"},      {16, GR_N_FORMAT, "IQ2_XXS"},
    {17, GR_N_FORMAT, "IQ2_XS"},  {18, GR_N_FORMAT, "IQ3_XXS"},   {19, GR_N_FORMAT, "IQ1_S"},
    {20, GR_N_FORMAT, "IQ4_NL"},  {21, GR_N_FORMAT, "IQ3_S"},     {22, GR_N_FORMAT, "IQ2_S"},
    {23, GR_N_FORMAT, "IQ4_XS"},  {24, GR_FORMAT_I8, "I8"},       {25, GR_FORMAT_I16, "I16"},
    {26, GR_FORMAT_I32, "I32"},   {27, GR_FORMAT_I64, "I64"},     {28, GR_FORMAT_F64, "F64"},
    {29, GR_N_FORMAT, "IQ1_M"},   {30, GR_FORMAT_BF16, "BF16"},   {34, GR_N_FORMAT, "TQ1_0"},
    {35, GR_N_FORMAT, "TQ2_0"},   {39, GR_FORMAT_MXFP4, "MXFP4"},
};

/* ---- reading ---- */

struct cursor {
    const char *name;
    const uint8_t *p;
    size_t len, at;
};

static size_t left(const struct cursor *c)
{
    return c->len - c->at;
}

static enum gr_status cut_short(const struct cursor *c, const char *what)
{
    log_error("%s: the file ends at byte %zu, within %s (cut short: fetch it again)", c->name, c->len, what);
    return GR_EFORMAT;
}

static uint64_t number_at(const uint8_t *p, size_t bytes)
{
    uint64_t x = 0;
    for (size_t i = bytes; i-- > 0;) {
        x = x << 8 | p[i];
    }
    return x;
}

static enum gr_status take(struct cursor *c, size_t bytes, const char *what, uint64_t *out)
{
    if (left(c) < bytes) {
        return cut_short(c, what);
    }
    *out = number_at(c->p + c->at, bytes);
    c->at += bytes;
    return GR_OK;
}

static enum gr_status take_string(struct cursor *c, const char *what, const char **text_out, size_t *len_out)
{
    uint64_t len = 0;
    GR_TRY(take(c, 8, what, &len));
    if (len > left(c)) {
        log_error("%s: %s is said to have %" PRIu64 " bytes, the file has %zu left", c->name, what, len, left(c));
        return GR_EFORMAT;
    }
    *text_out = (const char *)c->p + c->at;
    *len_out = (size_t)len;
    c->at += (size_t)len;
    return GR_OK;
}

static enum gr_status check_type(const struct cursor *c, const char *key, uint64_t type)
{
    if (type >= GR_GGUF_N_TYPE) {
        log_error("%s: field %s has type %" PRIu64 ", which is not known", c->name, key, type);
        return GR_EFORMAT;
    }
    return GR_OK;
}

/* The type of an array's elements and how many there are, which the bytes left must be able to hold. */
static enum gr_status take_array_head(struct cursor *c, const char *key, struct gr_gguf_field *f)
{
    uint64_t type = 0, n = 0;
    GR_TRY(take(c, 4, key, &type));
    GR_TRY(check_type(c, key, type));
    GR_TRY(take(c, 8, key, &n));
    if (type == GR_GGUF_ARRAY) {
        log_error("%s: field %s is an array of arrays, which is not read", c->name, key);
        return GR_EUNSUPPORTED;
    }
    if (n > left(c) / types[type].bytes) {
        log_error("%s: field %s is said to have %" PRIu64 " values, the file has %zu bytes left", c->name, key, n,
                  left(c));
        return GR_EFORMAT;
    }
    f->type = (enum gr_gguf_type)type;
    f->n = n;
    return GR_OK;
}

static enum gr_status take_value(struct cursor *c, struct gr_gguf_field *f)
{
    uint64_t type = 0;
    GR_TRY(take(c, 4, f->key, &type));
    GR_TRY(check_type(c, f->key, type));
    f->is_array = type == GR_GGUF_ARRAY;
    f->type = (enum gr_gguf_type)type;
    f->n = 1;
    if (f->is_array) {
        GR_TRY(take_array_head(c, f->key, f));
    }
    f->data = c->p + c->at;
    if (f->type != GR_GGUF_STRING) {
        const size_t bytes = (size_t)f->n * types[f->type].bytes;
        if (left(c) < bytes) {
            return cut_short(c, f->key);
        }
        c->at += bytes;
        return GR_OK;
    }
    for (uint64_t i = 0; i < f->n; i++) {
        const char *text = NULL;
        size_t len = 0;
        GR_TRY(take_string(c, f->key, &text, &len));
    }
    return GR_OK;
}

/* A NUL-terminated copy at *text, which has room. */
static const char *keep(char **text, const char *from, size_t len)
{
    char *to = *text;
    memcpy(to, from, len);
    to[len] = '\0';
    *text += len + 1;
    return to;
}

static enum gr_status take_field(struct cursor *c, struct gr_gguf *g, char **text)
{
    const char *key = NULL;
    size_t len = 0;
    uint32_t other = 0;
    struct gr_gguf_field *f = &g->fields[g->n_field];
    GR_TRY(take_string(c, "a key of the metadata", &key, &len));
    if (len == 0 || len > GR_GGUF_KEY_LEN_MAX || memchr(key, '\0', len) != NULL) {
        log_error("%s: a key of the metadata has %zu bytes, must be 1..%d and none of them zero", c->name, len,
                  GR_GGUF_KEY_LEN_MAX);
        return GR_EFORMAT;
    }
    f->key = keep(text, key, len);
    GR_TRY(take_value(c, f));
    if (!gr_str_table_add(&g->by_key, f->key, len, (uint32_t)g->n_field, &other)) {
        log_error("%s: field %s is there twice", c->name, f->key);
        return GR_EFORMAT;
    }
    g->n_field++;
    return GR_OK;
}

/* ---- tensors ---- */

static enum gr_status check_tensor_type(const struct cursor *c, const char *name, uint64_t id, enum gr_format *out)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(tensor_types); i++) {
        if (tensor_types[i].id != id) {
            continue;
        }
        if (tensor_types[i].format == GR_N_FORMAT) {
            log_error("%s: tensor %s is %s, which is not read; known: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, "
                      "Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, MXFP4",
                      c->name, name, tensor_types[i].name);
            return GR_EUNSUPPORTED;
        }
        *out = tensor_types[i].format;
        return GR_OK;
    }
    log_error("%s: tensor %s has type %" PRIu64 ", which is not known", c->name, name, id);
    return GR_EUNSUPPORTED;
}

/* The file has the fastest dimension first. */
static enum gr_status take_shape(struct cursor *c, struct gr_gguf_tensor *t)
{
    uint64_t n = 0;
    GR_TRY(take(c, 4, t->name, &n));
    if (n < 1 || n > GR_GGUF_N_DIM_MAX) {
        log_error("%s: tensor %s has %" PRIu64 " dimensions, must be 1..%d", c->name, t->name, n, GR_GGUF_N_DIM_MAX);
        return GR_EFORMAT;
    }
    t->n_dim = (int)n;
    for (int i = t->n_dim - 1; i >= 0; i--) {
        uint64_t dim = 0;
        GR_TRY(take(c, 8, t->name, &dim));
        if (dim > INT64_MAX) {
            log_error("%s: tensor %s: a dimension of %" PRIu64, c->name, t->name, dim);
            return GR_EFORMAT;
        }
        t->shape[i] = (int64_t)dim;
    }
    return GR_OK;
}

static enum gr_status size_tensor(const struct cursor *c, struct gr_gguf_tensor *t)
{
    struct gr_tensor as = {.dtype = t->dtype, .n_dim = t->n_dim};
    char shape[GR_SHAPE_TEXT_BYTES];
    memcpy(as.shape, t->shape, sizeof(t->shape));
    if (!gr_tensor_bytes(&as, &t->bytes)) {
        gr_shape_text(t->n_dim, t->shape, shape);
        const size_t block = gr_format_block(t->dtype);
        const bool whole = t->n_dim > 0 && t->shape[t->n_dim - 1] % (int64_t)block == 0;
        log_error(whole ? "%s: tensor %s: %s %s is more than 2^64 bytes (blocks of %zu)"
                        : "%s: tensor %s: %s %s has rows that are no whole blocks of %zu",
                  c->name, t->name, gr_format_name(t->dtype), shape, block);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status take_tensor(struct cursor *c, struct gr_gguf *g, char **text)
{
    const struct gr_tensor_file file = {.path = (char *)(uintptr_t)c->name};
    struct gr_gguf_tensor *t = &g->tensors[g->n_tensor];
    const char *name = NULL;
    size_t len = 0;
    uint64_t type = 0;
    GR_TRY(take_string(c, "a tensor's name", &name, &len));
    GR_TRY(gr_tensor_check_name(&file, name, len));
    t->name = keep(text, name, len);
    GR_TRY(take_shape(c, t));
    GR_TRY(take(c, 4, t->name, &type));
    GR_TRY(check_tensor_type(c, t->name, type, &t->dtype));
    GR_TRY(take(c, 8, t->name, &t->begin));
    GR_TRY(size_tensor(c, t));
    g->n_tensor++;
    return GR_OK;
}

/* ---- where they lie ---- */

static enum gr_status alignment_of(const struct gr_gguf *g, uint64_t *out)
{
    int64_t alignment = 32;
    GR_TRY(gr_gguf_int(g, "general.alignment", false, &alignment));
    if (alignment < 8 || alignment > GR_GGUF_ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0) {
        log_error("%s: general.alignment = %" PRId64 ", must be a power of two from 8 to %u", g->name, alignment,
                  GR_GGUF_ALIGNMENT_MAX);
        return GR_EFORMAT;
    }
    *out = (uint64_t)alignment;
    return GR_OK;
}

/* begin counts from data_at until here. */
static enum gr_status place_tensor(const struct cursor *c, uint64_t data_at, uint64_t alignment,
                                   struct gr_gguf_tensor *t)
{
    uint64_t end = 0;
    if (t->begin % alignment != 0) {
        log_error("%s: tensor %s lies at offset %" PRIu64 ", no multiple of the alignment %" PRIu64, c->name, t->name,
                  t->begin, alignment);
        return GR_EFORMAT;
    }
    if (__builtin_add_overflow(t->begin, data_at, &t->begin) || __builtin_add_overflow(t->begin, t->bytes, &end)) {
        log_error("%s: tensor %s ends after 2^64 bytes", c->name, t->name);
        return GR_EFORMAT;
    }
    if (end > c->len) {
        log_error("%s: tensor %s ends at byte %" PRIu64 ", the file has %zu: %" PRIu64
                  " are missing (cut short: fetch it again)",
                  c->name, t->name, end, c->len, end - c->len);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static int by_begin(const void *a, const void *b)
{
    const struct gr_gguf_tensor *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static enum gr_status place_tensors(const struct cursor *c, struct gr_gguf *g)
{
    uint64_t alignment = 0;
    GR_TRY(alignment_of(g, &alignment));
    const uint64_t data_at = ((uint64_t)c->at + alignment - 1) / alignment * alignment;
    for (size_t i = 0; i < g->n_tensor; i++) {
        GR_TRY(place_tensor(c, data_at, alignment, &g->tensors[i]));
    }
    if (g->n_tensor > 0) {
        qsort(g->tensors, g->n_tensor, sizeof(*g->tensors), by_begin);
    }
    for (size_t i = 1; i < g->n_tensor; i++) {
        const struct gr_gguf_tensor *before = &g->tensors[i - 1];
        if (g->tensors[i].begin < before->begin + before->bytes) {
            log_error("%s: tensors %s and %s overlap", c->name, before->name, g->tensors[i].name);
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

/* ---- the file ---- */

bool gr_gguf_is(const void *data, size_t len)
{
    return len >= 4 && memcmp(data, MAGIC, 4) == 0;
}

static enum gr_status take_version(struct cursor *c)
{
    uint64_t version = 0;
    if (!gr_gguf_is(c->p, c->len)) {
        log_error("%s: does not begin with GGUF: no GGUF file", c->name);
        return GR_EFORMAT;
    }
    c->at = 4;
    GR_TRY(take(c, 4, "the version", &version));
    if (version == 2 || version == 3) {
        return GR_OK;
    }
    if (version != 0 && (version & 0xffff) == 0) {
        log_error("%s: a big-endian GGUF file, which is not read", c->name);
    } else {
        log_error("%s: GGUF version %" PRIu64 " is not read%s; known: 2, 3", c->name, version,
                  version == 1 ? " (its lengths have 32 bits: convert the model again)" : "");
    }
    return GR_EUNSUPPORTED;
}

static enum gr_status take_count(struct cursor *c, const char *what, uint64_t max, uint64_t least_bytes, size_t *out)
{
    uint64_t n = 0;
    GR_TRY(take(c, 8, what, &n));
    if (n > max || n > left(c) / least_bytes) {
        log_error("%s: %" PRIu64 " %s: more than %s", c->name, n, what,
                  n > max ? "is read" : "the file has room for (cut short?)");
        return n > max ? GR_ELIMIT : GR_EFORMAT;
    }
    *out = (size_t)n;
    return GR_OK;
}

static enum gr_status parse(struct cursor *c, struct gr_gguf *g)
{
    size_t n_tensor = 0, n_field = 0;
    GR_TRY(take_version(c));
    GR_TRY(take_count(c, "tensors", GR_TENSORS_MAX, TENSOR_BYTES_MIN, &n_tensor));
    GR_TRY(take_count(c, "metadata fields", GR_GGUF_N_FIELD_MAX, FIELD_BYTES_MIN, &n_field));
    g->fields = calloc(n_field + 1, sizeof(*g->fields));
    g->tensors = calloc(n_tensor + 1, sizeof(*g->tensors));
    /* Keys and names are in the file, with 8 bytes each where a zero takes one here; all lie before its end. */
    g->text = malloc(GR_MIN(c->len, n_field * (GR_GGUF_KEY_LEN_MAX + 1) + n_tensor * (GR_TENSOR_NAME_LEN_MAX + 1) + 1));
    if (g->fields == NULL || g->tensors == NULL || g->text == NULL) {
        log_error("%s: no memory for %zu fields and %zu tensors", c->name, n_field, n_tensor);
        return GR_ENOMEM;
    }
    GR_TRY(gr_str_table_init(&g->by_key, n_field));
    char *text = g->text;
    for (size_t i = 0; i < n_field; i++) {
        GR_TRY(take_field(c, g, &text));
    }
    for (size_t i = 0; i < n_tensor; i++) {
        GR_TRY(take_tensor(c, g, &text));
    }
    return place_tensors(c, g);
}

enum gr_status gr_gguf_parse(const char *name, const void *data, size_t len, struct gr_gguf **out)
{
    struct cursor c = {.name = name, .p = data, .len = len};
    struct gr_gguf *g = calloc(1, sizeof(*g));
    char *copy = strdup(name);
    if (g == NULL || copy == NULL) {
        log_error("%s: no memory", name);
        free(g);
        free(copy);
        return GR_ENOMEM;
    }
    g->name = g->name_copy = copy;
    const enum gr_status st = parse(&c, g);
    if (st != GR_OK) {
        gr_gguf_free(g);
        return st;
    }
    *out = g;
    return GR_OK;
}

void gr_gguf_free(struct gr_gguf *g)
{
    if (g == NULL) {
        return;
    }
    gr_str_table_finish(&g->by_key);
    free(g->name_copy);
    free(g->fields);
    free(g->tensors);
    free(g->text);
    free(g);
}

/* ---- looking ---- */

size_t gr_gguf_n_tensor(const struct gr_gguf *g)
{
    return g->n_tensor;
}

const struct gr_gguf_tensor *gr_gguf_tensor(const struct gr_gguf *g, size_t i)
{
    GR_ASSERT(i < g->n_tensor);
    return &g->tensors[i];
}

const struct gr_gguf_field *gr_gguf_find(const struct gr_gguf *g, const char *key)
{
    uint32_t i = 0;
    return gr_str_table_get(&g->by_key, key, strlen(key), &i) ? &g->fields[i] : NULL;
}

static enum gr_status find(const struct gr_gguf *g, const char *key, bool required, const struct gr_gguf_field **out)
{
    *out = gr_gguf_find(g, key);
    if (*out == NULL && required) {
        log_error("%s: field %s is missing", g->name, key);
        return GR_ENOTFOUND;
    }
    return GR_OK;
}

/* A value for each layer is read where it is the same for all. */
static enum gr_status check_one_value(const struct gr_gguf *g, const struct gr_gguf_field *f)
{
    const size_t bytes = types[f->type].bytes;
    bool same = true;
    if (f->n == 0) {
        log_error("%s: field %s is an empty array", g->name, f->key);
        return GR_EFORMAT;
    }
    for (uint64_t i = 1; i < f->n; i++) {
        same = same && memcmp(f->data, f->data + (size_t)i * bytes, bytes) == 0;
    }
    if (!same) {
        log_error("%s: field %s has %" PRIu64 " values that differ (one for each layer?), which is not read", g->name,
                  f->key, f->n);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

static enum gr_status wrong_type(const struct gr_gguf *g, const struct gr_gguf_field *f, const char *wanted)
{
    log_error("%s: field %s is %s%s, must be %s", g->name, f->key, f->is_array ? "an array of " : "",
              types[f->type].name, wanted);
    return GR_EFORMAT;
}

enum gr_status gr_gguf_int(const struct gr_gguf *g, const char *key, bool required, int64_t *out)
{
    const struct gr_gguf_field *f = NULL;
    GR_TRY(find(g, key, required, &f));
    if (f == NULL) {
        return GR_OK;
    }
    if (f->type == GR_GGUF_STRING || f->type == GR_GGUF_F32 || f->type == GR_GGUF_F64) {
        return wrong_type(g, f, "an integer");
    }
    GR_TRY(check_one_value(g, f));
    const size_t bytes = types[f->type].bytes;
    const uint64_t u = number_at(f->data, bytes);
    const bool is_signed = f->type == GR_GGUF_I8 || f->type == GR_GGUF_I16 || f->type == GR_GGUF_I32;
    if (f->type == GR_GGUF_U64 && u > INT64_MAX) {
        log_error("%s: field %s = %" PRIu64 " is out of range", g->name, key, u);
        return GR_ELIMIT;
    }
    const uint64_t sign = UINT64_C(1) << (8 * bytes - 1);
    *out = is_signed ? (int64_t)((u ^ sign) - sign) : (int64_t)u;
    return GR_OK;
}

enum gr_status gr_gguf_float(const struct gr_gguf *g, const char *key, bool required, double *out)
{
    const struct gr_gguf_field *f = NULL;
    GR_TRY(find(g, key, required, &f));
    if (f == NULL) {
        return GR_OK;
    }
    if (f->type == GR_GGUF_BOOL) {
        return wrong_type(g, f, "a number");
    }
    if (f->type != GR_GGUF_F32 && f->type != GR_GGUF_F64) {
        int64_t whole = 0;
        GR_TRY(gr_gguf_int(g, key, true, &whole));
        *out = (double)whole;
        return GR_OK;
    }
    GR_TRY(check_one_value(g, f));
    if (f->type == GR_GGUF_F32) {
        float x = 0.0f;
        memcpy(&x, f->data, sizeof(x));
        *out = (double)x;
    } else {
        memcpy(out, f->data, sizeof(*out));
    }
    return GR_OK;
}

const char *gr_gguf_next_string(const uint8_t **at, size_t *len_out)
{
    const uint8_t *p = *at;
    *len_out = (size_t)number_at(p, 8);
    *at = p + 8 + *len_out;
    return (const char *)p + 8;
}

enum gr_status gr_gguf_string(const struct gr_gguf *g, const char *key, bool required, const char **out,
                              size_t *len_out)
{
    const struct gr_gguf_field *f = NULL;
    *out = NULL;
    *len_out = 0;
    GR_TRY(find(g, key, required, &f));
    if (f == NULL) {
        return GR_OK;
    }
    if (f->type != GR_GGUF_STRING || f->is_array) {
        return wrong_type(g, f, "a string");
    }
    const uint8_t *at = f->data;
    *out = gr_gguf_next_string(&at, len_out);
    return GR_OK;
}
