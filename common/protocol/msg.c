#include "common/protocol/msg.h"

#include "common/base/log.h"
#include "common/protocol/msgpack_guard.h"
#include "common/base/utf8.h"

#include <inttypes.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

/* ---- the schema ---- */

enum kind {
    KIND_BOOL,
    KIND_U32,
    KIND_U64,
    KIND_F32, /* a float; on the wire as a double */
    KIND_F64,
    KIND_CASE,
    KIND_STR,
    KIND_TEXT, /* a string that is no array of the message */
    KIND_IDS,
    KIND_FLOATS, /* on the wire as floats of 32 bits */
    KIND_LIST,   /* ids that are no array of their own: a member as gr_stop_ids */
    KIND_VALUES, /* the same of floats */
};
enum need { REQUIRED, OPTIONAL };
enum about { GR_OF_NONE, GR_OF_SESSION };

struct field {
    const char *name;
    enum kind kind;
    enum need need;
    uint64_t limit;
    size_t offset; /* in struct gr_msg */
};

struct fields {
    const struct field *p;
    int n;
};

/* gr_stop_ids and its like are a count and then so many. They are reached by pointers to these, never by another struct
 * type, which a compiler may take for other memory. */
static int32_t *count_of(void *slot)
{
    return slot;
}

static int32_t *list_of(void *slot)
{
    return (int32_t *)slot + 1;
}

static float *values_of(void *slot)
{
    return (float *)(void *)((int32_t *)slot + 1);
}

#define OF_A_LIST(type, member) _Static_assert(offsetof(struct type, member) == sizeof(int32_t), "a list")
OF_A_LIST(gr_stop_ids, id);
OF_A_LIST(gr_bias_ids, id);
OF_A_LIST(gr_bias_values, value);
OF_A_LIST(gr_bad_words, entry);

_Static_assert(GR_MSG_LOGPROB_MAX == (GR_SPECPV_BUFFER_MAX + GR_TREE_MAX) * GR_LOGPROB_ROW, "a COMMIT's most");
_Static_assert(GR_LOGPROB_ROW == 1 + GR_LOGPROB_MAX, "a row");

#define BODY offsetof(struct gr_msg, join) /* where the union begins */

static const struct field session_field = {"session", KIND_U64, REQUIRED, 0, offsetof(struct gr_msg, session)};

/* A function for each block of the table: within one, a row can name the struct that it is a member of. */
/* clang-format off */
#define GR_MSG_BARE(NAME, about)                   \
    static struct fields NAME##_fields(void)       \
    {                                              \
        return (struct fields){.p = NULL, .n = 0}; \
    }
#define GR_MSG_BEGIN(NAME, member, about)          \
    static struct fields NAME##_fields(void)       \
    {                                              \
        typedef struct gr_msg_##member self;       \
        static const struct field field[] = {
#define GR_FIELD(kind, name, need, limit)          \
            {#name, KIND_##kind, need, limit, BODY + offsetof(self, name)},
#define GR_KEY(kind, key, path, need, limit)       \
            {#key, KIND_##kind, need, limit, BODY + offsetof(self, path)},
#define GR_MSG_END(NAME, member)                   \
        };                                         \
        return (struct fields){.p = field, .n = (int)GR_ARRAY_LEN(field)}; \
    }
/* clang-format on */
#include "common/protocol/messages.inc"

static const struct type_info {
    const char *name;
    enum about about;
    struct fields (*fields)(void);
} types[GR_N_MSG] = {
#define GR_MSG_BARE(NAME, about) {#NAME, about, NAME##_fields},
#define GR_MSG_BEGIN(NAME, member, about) {#NAME, about, NAME##_fields},
#include "common/protocol/messages.inc"
};

/* A U32 also codes enums and counts that are never negative. */
_Static_assert(sizeof(enum gr_ahead) == sizeof(uint32_t) && sizeof(enum gr_specpv_mode) == sizeof(uint32_t), "a U32");

#define FIELD_MAX 64 /* of one message, `session' included: OPEN has 51 */

const char *gr_msg_name(enum gr_msg_type type)
{
    return (unsigned)type < GR_N_MSG ? types[type].name : "?";
}

/* All fields of a type, in the order that they go out. Returns how many. */
static int fields_of(enum gr_msg_type type, const struct field *out[FIELD_MAX])
{
    const struct fields own = types[type].fields();
    int n = 0;
    if (types[type].about == GR_OF_SESSION) {
        out[n++] = &session_field;
    }
    GR_ASSERT(n + own.n <= FIELD_MAX);
    for (int i = 0; i < own.n; i++) {
        out[n++] = &own.p[i];
    }
    return n;
}

static const void *value_of(const struct gr_msg *m, const struct field *f)
{
    return (const char *)m + f->offset;
}

static void *slot_of(struct gr_msg *m, const struct field *f)
{
    return (char *)m + f->offset;
}

/* ---- encoding ---- */

struct sink {
    uint8_t *p;
    size_t cap, at;
};

static int sink_write(void *data, const char *buf, size_t len)
{
    struct sink *s = data;
    if (len > s->cap - s->at) {
        return -1;
    }
    memcpy(s->p + s->at, buf, len);
    s->at += len;
    return 0;
}

static int pack_text(msgpack_packer *pk, const char *text)
{
    const size_t n = strlen(text);
    return msgpack_pack_str(pk, n) | msgpack_pack_str_body(pk, text, n);
}

/* What a user has given may be in it, cut to the field's length. */
static int pack_str(msgpack_packer *pk, const char *text)
{
    char mended[GR_MSG_TEXT_MAX];
    const size_t n = strnlen(text, sizeof(mended) - 1);
    memcpy(mended, text, n);
    mended[n] = '\0';
    gr_utf8_mend(mended, n);
    return pack_text(pk, mended);
}

static int pack_long(msgpack_packer *pk, const struct gr_msg_long *text)
{
    return msgpack_pack_str(pk, text->n) | msgpack_pack_str_body(pk, text->p, text->n);
}

static int pack_ids(msgpack_packer *pk, const int32_t *id, uint32_t n)
{
    int bad = msgpack_pack_array(pk, n);
    for (uint32_t i = 0; i < n; i++) {
        bad |= msgpack_pack_int32(pk, id[i]);
    }
    return bad;
}

static int pack_floats(msgpack_packer *pk, const float *value, uint32_t n)
{
    int bad = msgpack_pack_array(pk, n);
    for (uint32_t i = 0; i < n; i++) {
        bad |= msgpack_pack_float(pk, value[i]);
    }
    return bad;
}

static int pack_field(msgpack_packer *pk, const struct gr_msg *m, const struct field *f)
{
    int bad = pack_text(pk, f->name);
    const void *p = value_of(m, f);
    const struct gr_msg_ids *ids = p;
    const struct gr_msg_floats *floats = p;
    const int32_t *count = p; /* of a list */
    switch (f->kind) {
    case KIND_BOOL:
        return bad | msgpack_pack_uint32(pk, *(const bool *)p);
    case KIND_U32:
        return bad | msgpack_pack_uint32(pk, *(const uint32_t *)p);
    case KIND_U64:
        return bad | msgpack_pack_uint64(pk, *(const uint64_t *)p);
    case KIND_F32:
        return bad | msgpack_pack_double(pk, (double)*(const float *)p);
    case KIND_F64:
        return bad | msgpack_pack_double(pk, *(const double *)p);
    case KIND_CASE:
        return bad | msgpack_pack_uint32(pk, *(const uint32_t *)p == f->limit);
    case KIND_STR:
        return bad | pack_str(pk, p);
    case KIND_TEXT:
        return bad | pack_long(pk, p);
    case KIND_IDS:
        return bad | pack_ids(pk, ids->p, ids->n);
    case KIND_FLOATS:
        return bad | pack_floats(pk, floats->p, floats->n);
    case KIND_LIST:
        return bad | pack_ids(pk, count + 1, (uint32_t)*count);
    case KIND_VALUES:
        return bad | pack_floats(pk, (const float *)(const void *)(count + 1), (uint32_t)*count);
    }
    return -1;
}

/* Optional fields that are zero or empty stay out. */
static bool is_set(const struct gr_msg *m, const struct field *f)
{
    const void *p = value_of(m, f);
    switch (f->kind) {
    case KIND_BOOL:
        return *(const bool *)p;
    case KIND_U32:
        return *(const uint32_t *)p != 0;
    case KIND_U64:
        return *(const uint64_t *)p != 0;
    case KIND_F32:
        return *(const float *)p != 0.0f;
    case KIND_F64:
        return *(const double *)p != 0.0;
    case KIND_CASE:
        return *(const uint32_t *)p == f->limit;
    case KIND_STR:
        return *(const char *)p != '\0';
    case KIND_TEXT:
        return ((const struct gr_msg_long *)p)->n > 0;
    case KIND_IDS:
        return ((const struct gr_msg_ids *)p)->n > 0;
    case KIND_FLOATS:
        return ((const struct gr_msg_floats *)p)->n > 0;
    case KIND_LIST:
    case KIND_VALUES:
        return *(const int32_t *)p > 0;
    }
    return false;
}

enum gr_status gr_msg_encode(const struct gr_msg *m, uint8_t *out, size_t cap, size_t *len_out)
{
    const struct field *sent[FIELD_MAX];
    const int n_field = fields_of(m->type, sent);
    int n = 0;
    for (int i = 0; i < n_field; i++) {
        if (sent[i]->need == REQUIRED || is_set(m, sent[i])) {
            sent[n++] = sent[i];
        }
    }
    struct sink sink = {.p = out, .cap = cap};
    msgpack_packer pk;
    msgpack_packer_init(&pk, &sink, sink_write);
    int bad = msgpack_pack_map(&pk, (size_t)n + 1);
    bad |= pack_text(&pk, "t") | pack_text(&pk, types[m->type].name);
    for (int i = 0; i < n; i++) {
        bad |= pack_field(&pk, m, sent[i]);
    }
    if (bad != 0) {
        log_error("control message %s does not fit into %zu bytes", types[m->type].name, cap);
        return GR_ELIMIT;
    }
    *len_out = sink.at;
    return GR_OK;
}

/* ---- decoding ---- */

static enum gr_status refuse(const char *type, const char *field, const char *what)
{
    log_error("control message %s, field `%s': %s", type, field, what);
    return GR_EFORMAT;
}

static bool str_equals(const msgpack_object *o, const char *text)
{
    const size_t n = strlen(text);
    return o->type == MSGPACK_OBJECT_STR && o->via.str.size == n && memcmp(o->via.str.ptr, text, n) == 0;
}

/* Into out, which holds as many as the array has. */
static enum gr_status read_ids(const char *type, const struct field *f, const msgpack_object_array *array, int32_t *out)
{
    for (uint32_t i = 0; i < array->size; i++) {
        const msgpack_object *e = &array->ptr[i];
        const bool positive = e->type == MSGPACK_OBJECT_POSITIVE_INTEGER && e->via.u64 <= INT32_MAX;
        const bool negative = e->type == MSGPACK_OBJECT_NEGATIVE_INTEGER && e->via.i64 >= INT32_MIN;
        if (!positive && !negative) {
            return refuse(type, f->name, "holds something that is no 32-bit integer");
        }
        out[i] = positive ? (int32_t)e->via.u64 : (int32_t)e->via.i64;
    }
    return GR_OK;
}

static bool is_number(const msgpack_object *o)
{
    return (o->type == MSGPACK_OBJECT_FLOAT64 || o->type == MSGPACK_OBJECT_FLOAT32) && o->via.f64 >= -1e30 &&
           o->via.f64 <= 1e30;
}

/* The same of floats. */
static enum gr_status read_floats(const char *type, const struct field *f, const msgpack_object_array *array,
                                  float *out)
{
    for (uint32_t i = 0; i < array->size; i++) {
        if (!is_number(&array->ptr[i])) {
            return refuse(type, f->name, "holds something that is not a finite number");
        }
        out[i] = (float)array->ptr[i].via.f64;
    }
    return GR_OK;
}

/* Memory for n elements of 4 bytes, ids or floats. */
static void *take_memory(uint32_t n)
{
    void *p = malloc((n > 0 ? n : 1) * sizeof(int32_t));
    if (p == NULL) {
        log_error("out of memory for %u elements of a message", n);
    }
    return p;
}

static enum gr_status take_array(const char *type, const struct field *f, const msgpack_object *o, void *slot)
{
    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size > f->limit) {
        char what[64];
        snprintf(what, sizeof(what), "not an array of at most %" PRIu64, f->limit);
        return refuse(type, f->name, what);
    }
    const uint32_t n = o->via.array.size;
    if (f->kind == KIND_LIST) {
        *count_of(slot) = (int32_t)n;
        return read_ids(type, f, &o->via.array, list_of(slot));
    }
    if (f->kind == KIND_VALUES) {
        *count_of(slot) = (int32_t)n;
        return read_floats(type, f, &o->via.array, values_of(slot));
    }
    if (f->kind == KIND_FLOATS) {
        struct gr_msg_floats *floats = slot; /* the message owns it from here on, also where it is refused */
        floats->p = take_memory(n);
        if (floats->p == NULL) {
            return GR_ENOMEM;
        }
        floats->n = n;
        return read_floats(type, f, &o->via.array, floats->p);
    }
    struct gr_msg_ids *ids = slot; /* the same */
    ids->p = take_memory(n);
    if (ids->p == NULL) {
        return GR_ENOMEM;
    }
    ids->n = n;
    return read_ids(type, f, &o->via.array, ids->p);
}

static enum gr_status check_str(const char *type, const struct field *f, const msgpack_object *o)
{
    if (o->type != MSGPACK_OBJECT_STR || o->via.str.size >= f->limit ||
        memchr(o->via.str.ptr, '\0', o->via.str.size) != NULL) {
        return refuse(type, f->name, "not a string, or too long");
    }
    if (!gr_utf8_valid(o->via.str.ptr, o->via.str.size)) {
        return refuse(type, f->name, "not UTF-8");
    }
    return GR_OK;
}

static enum gr_status take_str(const char *type, const struct field *f, const msgpack_object *o, char *out)
{
    GR_TRY(check_str(type, f, o));
    memcpy(out, o->via.str.ptr, o->via.str.size);
    out[o->via.str.size] = '\0';
    return GR_OK;
}

static enum gr_status take_long(const char *type, const struct field *f, const msgpack_object *o,
                                struct gr_msg_long *out)
{
    GR_TRY(check_str(type, f, o));
    out->p = malloc((size_t)o->via.str.size + 1);
    if (out->p == NULL) {
        log_error("out of memory for a text of %u bytes of a message", o->via.str.size);
        return GR_ENOMEM;
    }
    memcpy(out->p, o->via.str.ptr, o->via.str.size);
    out->p[o->via.str.size] = '\0';
    out->n = o->via.str.size;
    return GR_OK;
}

static enum gr_status take_unsigned(const char *type, const struct field *f, const msgpack_object *o, void *slot)
{
    const uint64_t most = f->kind == KIND_U64 ? UINT64_MAX : f->kind == KIND_U32 ? f->limit : 1;
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER || o->via.u64 > most) {
        return refuse(type, f->name, "not an unsigned integer, or above its limit");
    }
    if (f->kind == KIND_U64) {
        *(uint64_t *)slot = o->via.u64;
    } else if (f->kind == KIND_U32) {
        *(uint32_t *)slot = (uint32_t)o->via.u64;
    } else if (f->kind == KIND_BOOL) {
        *(bool *)slot = o->via.u64 != 0;
    } else if (o->via.u64 != 0) { /* a CASE; where two of an enum come, the larger value stands */
        *(uint32_t *)slot = GR_MAX(*(uint32_t *)slot, (uint32_t)f->limit);
    }
    return GR_OK;
}

static enum gr_status take_number(const char *type, const struct field *f, const msgpack_object *o, void *slot)
{
    if (!is_number(o)) {
        return refuse(type, f->name, "not a finite number");
    }
    if (f->kind == KIND_F32) {
        *(float *)slot = (float)o->via.f64;
    } else {
        *(double *)slot = o->via.f64;
    }
    return GR_OK;
}

static enum gr_status take_field(struct gr_msg *m, const struct field *f, const msgpack_object *o)
{
    const char *type = types[m->type].name;
    void *slot = slot_of(m, f);
    switch (f->kind) {
    case KIND_BOOL:
    case KIND_U32:
    case KIND_U64:
    case KIND_CASE:
        return take_unsigned(type, f, o, slot);
    case KIND_F32:
    case KIND_F64:
        return take_number(type, f, o, slot);
    case KIND_STR:
        return take_str(type, f, o, slot);
    case KIND_TEXT:
        return take_long(type, f, o, slot);
    case KIND_IDS:
    case KIND_FLOATS:
    case KIND_LIST:
    case KIND_VALUES:
        return take_array(type, f, o, slot);
    }
    return GR_EFORMAT;
}

static enum gr_status find_type(const msgpack_object_map *map, enum gr_msg_type *out)
{
    const msgpack_object *name = NULL;
    for (uint32_t i = 0; i < map->size; i++) {
        if (!str_equals(&map->ptr[i].key, "t")) {
            continue;
        }
        if (name != NULL) {
            return refuse("?", "t", "given twice");
        }
        name = &map->ptr[i].val;
    }
    if (name == NULL) {
        return refuse("?", "t", "missing");
    }
    for (int t = 0; t < GR_N_MSG; t++) {
        if (str_equals(name, types[t].name)) {
            *out = (enum gr_msg_type)t;
            return GR_OK;
        }
    }
    return refuse("?", "t", "unknown message type");
}

/* The index of the field that a key names; n: none does. */
static int find_field(const struct field *const *field, int n, const msgpack_object *key)
{
    int i = 0;
    while (i < n && !str_equals(key, field[i]->name)) {
        i++;
    }
    return i;
}

static enum gr_status take_map(const msgpack_object_map *map, struct gr_msg *m)
{
    GR_TRY(find_type(map, &m->type));
    const char *type = types[m->type].name;
    const struct field *field[FIELD_MAX];
    bool seen[FIELD_MAX] = {false};
    const int n = fields_of(m->type, field);
    for (uint32_t k = 0; k < map->size; k++) {
        const msgpack_object *key = &map->ptr[k].key;
        if (str_equals(key, "t")) {
            continue;
        }
        const int i = find_field(field, n, key);
        if (i == n) {
            return refuse(type, "?", "a key that this message does not have");
        }
        if (seen[i]) {
            return refuse(type, field[i]->name, "given twice");
        }
        seen[i] = true;
        GR_TRY(take_field(m, field[i], &map->ptr[k].val));
    }
    for (int i = 0; i < n; i++) {
        if (field[i]->need == REQUIRED && !seen[i]) {
            return refuse(type, field[i]->name, "missing");
        }
    }
    return GR_OK;
}

enum gr_status gr_msg_decode(const uint8_t *bytes, size_t len, struct gr_msg *out)
{
    if (len > GR_MSG_BYTES_MAX || !gr_msgpack_sound(bytes, len, 3)) {
        return refuse("?", "?", "not one complete, shallow msgpack object");
    }
    msgpack_unpacked box;
    msgpack_unpacked_init(&box);
    size_t at = 0;
    enum gr_status st = GR_EFORMAT;
    struct gr_msg m;
    memset(&m, 0, sizeof(m));
    if (msgpack_unpack_next(&box, (const char *)bytes, len, &at) != MSGPACK_UNPACK_SUCCESS ||
        box.data.type != MSGPACK_OBJECT_MAP) {
        st = refuse("?", "?", "not a msgpack map");
    } else {
        st = take_map(&box.data.via.map, &m);
    }
    msgpack_unpacked_destroy(&box);
    if (st != GR_OK) {
        gr_msg_finish(&m);
        return st;
    }
    *out = m;
    return GR_OK;
}

void gr_msg_finish(struct gr_msg *m)
{
    const struct fields own = types[m->type].fields();
    for (int i = 0; i < own.n; i++) {
        if (own.p[i].kind == KIND_IDS) {
            struct gr_msg_ids *ids = slot_of(m, &own.p[i]);
            free(ids->p);
            *ids = (struct gr_msg_ids){0};
        } else if (own.p[i].kind == KIND_FLOATS) {
            struct gr_msg_floats *floats = slot_of(m, &own.p[i]);
            free(floats->p);
            *floats = (struct gr_msg_floats){0};
        } else if (own.p[i].kind == KIND_TEXT) {
            struct gr_msg_long *text = slot_of(m, &own.p[i]);
            free(text->p);
            *text = (struct gr_msg_long){0};
        }
    }
}
