#include "common/protocol/msg.h"

#include "common/rules/accept.h"
#include "common/base/log.h"
#include "common/protocol/msgpack_guard.h"
#include "common/base/utf8.h"

#include <inttypes.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

/* ---- the schema ---- */

enum kind { KIND_U32, KIND_U64, KIND_F64, KIND_STR, KIND_IDS };

/*   member, kind, limit: largest value (u32), capacity (str) or element count (ids) */
#define FIELD_LIST(X)                                 \
    X(session, KIND_U64, 0)                           \
    X(incarnation, KIND_U64, 0)                       \
    X(epoch, KIND_U32, UINT32_MAX)                    \
    X(round, KIND_U32, UINT32_MAX)                    \
    X(role, KIND_U32, 3)                              \
    X(pid, KIND_U32, UINT32_MAX)                      \
    X(n_vocab, KIND_U32, 1 << 22)                     \
    X(n_ctx_max, KIND_U32, 1 << 24)                   \
    X(n_block, KIND_U32, 1 << 28)                     \
    X(n_free_block, KIND_U32, 1 << 28)                \
    X(n_session, KIND_U32, 1 << 16)                   \
    X(model_fingerprint, KIND_U64, 0)                 \
    X(tokenizer_fingerprint, KIND_U64, 0)             \
    X(address, KIND_STR, GR_MSG_TEXT_MAX)             \
    X(numerics_id, KIND_STR, 96)                      \
    X(ids, KIND_IDS, GR_MSG_ID_MAX)                   \
    X(segments, KIND_IDS, 4096)                       \
    X(stop_ids, KIND_IDS, GR_STOP_ID_MAX)             \
    X(max_tokens, KIND_U32, 1 << 24)                  \
    X(want_draft, KIND_U32, 1)                        \
    X(want_trace, KIND_U32, 1)                        \
    X(single_token, KIND_U32, 1)                      \
    X(temperature, KIND_F64, 0)                       \
    X(min_p, KIND_F64, 0)                             \
    X(top_p, KIND_F64, 0)                             \
    X(top_k, KIND_U32, 1 << 22)                       \
    X(seed, KIND_U64, 0)                              \
    X(transport, KIND_STR, 16)                        \
    X(tree_shape, KIND_U32, 1)                        \
    X(draft_depth, KIND_U32, 63)                      \
    X(draft_top_k, KIND_U32, 64)                      \
    X(n_node, KIND_U32, 63)                           \
    X(auto_tree, KIND_U32, 1)                         \
    X(draft_ahead, KIND_U32, 1)                       \
    X(keep_len, KIND_U32, UINT32_MAX)                 \
    X(final_len, KIND_U32, UINT32_MAX)                \
    X(finish, KIND_U32, GR_FINISH_CLOSED)             \
    X(verdict_kind, KIND_U32, 2)                      \
    X(n_draft, KIND_U32, 63)                          \
    X(n_accepted, KIND_U32, 63)                       \
    X(cache_hit, KIND_U32, 1)                         \
    X(usable_len, KIND_U32, UINT32_MAX)               \
    X(hash, KIND_U64, 0)                              \
    X(gap, KIND_F64, 0)                               \
    X(wait_ns, KIND_U64, 0)                           \
    X(verify_ns, KIND_U64, 0)                         \
    X(host_ns, KIND_U64, 0)                           \
    X(draft_ns, KIND_U64, 0)                          \
    X(n_row, KIND_U32, UINT32_MAX)                    \
    X(n_late, KIND_U32, UINT32_MAX)                   \
    X(n_desync, KIND_U32, UINT32_MAX)                 \
    X(n_fallback, KIND_U32, UINT32_MAX)               \
    X(n_reroot, KIND_U32, UINT32_MAX)                 \
    X(n_feature_gap, KIND_U32, UINT32_MAX)            \
    X(tree_ids, KIND_IDS, 63)                         \
    X(tree_parents, KIND_IDS, 63)                     \
    X(path, KIND_IDS, 63)                             \
    X(n_round, KIND_U64, 0)                           \
    X(n_ahead, KIND_U64, 0)                           \
    X(n_hit, KIND_U64, 0)                             \
    X(n_first, KIND_U64, 0)                           \
    X(n_first_hit, KIND_U64, 0)                       \
    X(n_alarm, KIND_U64, 0)                           \
    X(wire_bytes, KIND_U64, 0)                        \
    X(wire_tokens, KIND_U64, 0)                       \
    X(first_expected, KIND_F64, 0)                    \
    X(auto_ahead, KIND_U32, 1)                        \
    X(keep_open, KIND_U32, 1)                         \
    X(state, KIND_U32, 7)                             \
    X(n_token, KIND_U32, UINT32_MAX)                  \
    X(worker, KIND_U32, 1 << 16)                      \
    X(target, KIND_U32, 1 << 16)                      \
    X(drafter, KIND_U32, 1 << 16)                     \
    X(n_worker, KIND_U32, 1 << 16)                    \
    X(n_reopen, KIND_U32, UINT32_MAX)                 \
    X(idle_ns, KIND_U64, 0)                           \
    X(n_tree, KIND_U64, 0)                            \
    X(n_drafted, KIND_U64, 0)                         \
    X(n_hit_token, KIND_U64, 0)                       \
    X(rtt_ns, KIND_U64, 0)                            \
    X(turn, KIND_U32, UINT32_MAX)                     \
    X(cut, KIND_U32, 1)                               \
    X(ended, KIND_U32, 1)                             \
    X(specpv, KIND_U32, GR_SPECPV_AUTO)               \
    X(pv_sink, KIND_U32, GR_SPECPV_BLOCKS_MAX)        \
    X(pv_retrieval, KIND_U32, GR_SPECPV_BLOCKS_MAX)   \
    X(pv_window, KIND_U32, GR_SPECPV_BLOCKS_MAX)      \
    X(pv_buffer, KIND_U32, GR_SPECPV_BUFFER_MAX)      \
    X(pv_threshold, KIND_U32, 1 << 24)                \
    X(pv_interval, KIND_U32, 1 << 24)                 \
    X(pv_provisional, KIND_U32, GR_SPECPV_BUFFER_MAX) \
    X(pv_fraction, KIND_F64, 0)                       \
    X(n_judged, KIND_U32, GR_SPECPV_BUFFER_MAX)       \
    X(n_mismatch, KIND_U32, GR_SPECPV_BUFFER_MAX)     \
    X(n_partial, KIND_U64, 0)                         \
    X(n_refresh, KIND_U64, 0)                         \
    X(n_checked, KIND_U64, 0)                         \
    X(n_drifted, KIND_U64, 0)                         \
    X(code, KIND_U32, UINT32_MAX)                     \
    X(text, KIND_STR, GR_MSG_TEXT_MAX)

enum field {
#define X(member, kind, limit) F_##member,
    FIELD_LIST(X)
#undef X
        N_FIELD
};

static const struct field_info {
    const char *name;
    size_t offset;
    enum kind kind;
    uint64_t limit;
} fields[N_FIELD] = {
#define X(member, kind, limit) {#member, offsetof(struct gr_msg, member), kind, limit},
    FIELD_LIST(X)
#undef X
};

/* A set of fields. */
__extension__ typedef unsigned __int128 field_set;
#define B(member) ((field_set)1 << F_##member)
#define SAMPLING (B(temperature) | B(min_p) | B(top_p) | B(top_k) | B(seed))

#define SPECPV                                                                                                   \
    (B(specpv) | B(pv_sink) | B(pv_retrieval) | B(pv_window) | B(pv_buffer) | B(pv_threshold) | B(pv_interval) | \
     B(pv_provisional) | B(pv_fraction))

/* required and optional fields of each type */
static const struct type_info {
    const char *name;
    field_set required, optional;
} types[GR_N_MSG] = {
    [GR_MSG_JOIN] = {"JOIN",
                     B(role) | B(pid) | B(incarnation) | B(n_vocab) | B(n_ctx_max) | B(address) | B(numerics_id),
                     B(n_block) | B(n_session) | B(model_fingerprint) | B(tokenizer_fingerprint)},
    [GR_MSG_OPEN] = {"OPEN", B(session) | B(epoch) | B(ids) | B(segments) | B(max_tokens) | SAMPLING,
                     B(stop_ids) | B(want_draft) | B(want_trace) | B(single_token) | B(auto_tree) | B(n_node) |
                         B(keep_open) | B(transport) | B(tree_shape) | B(draft_depth) | B(draft_top_k) |
                         B(draft_ahead) | B(auto_ahead) | B(tokenizer_fingerprint) | SPECPV},
    [GR_MSG_OPENED] = {"OPENED", B(session) | B(epoch) | B(cache_hit) | B(usable_len), B(specpv) | B(turn)},
    [GR_MSG_CLOSE] = {"CLOSE", B(session), 0},
    [GR_MSG_CLOSED] = {"CLOSED", B(session), 0},
    [GR_MSG_COMMIT] = {"COMMIT",
                       B(session) | B(epoch) | B(round) | B(keep_len) | B(final_len) | B(ids) | B(hash) | B(finish) |
                           B(verdict_kind) | B(n_draft) | B(n_accepted),
                       B(gap) | B(wait_ns) | B(draft_ns) | B(verify_ns) | B(host_ns) | B(n_row) | B(n_late) |
                           B(n_desync) | B(n_fallback) | B(n_reroot) | B(tree_ids) | B(tree_parents) | B(path) |
                           B(n_judged) | B(n_mismatch)},
    [GR_MSG_PROGRESS] = {"PROGRESS", B(session) | B(usable_len), 0},
    [GR_MSG_APPEND] = {"APPEND", B(session) | B(epoch) | B(keep_len) | B(hash) | B(ids) | B(max_tokens),
                       B(stop_ids) | B(want_trace)},
    [GR_MSG_TRUNCATE] = {"TRUNCATE", B(session) | B(epoch) | B(keep_len), B(turn)},
    [GR_MSG_EVICTED] = {"EVICTED", B(session), 0},
    [GR_MSG_ATTACH] = {"ATTACH",
                       B(session) | B(epoch) | B(address) | SAMPLING | B(tree_shape) | B(draft_depth) | B(draft_top_k) |
                           B(n_node),
                       B(transport) | B(auto_tree) | B(draft_ahead)},
    [GR_MSG_ATTACHED] = {"ATTACHED", B(session) | B(epoch) | B(transport), B(n_fallback)},
    [GR_MSG_DETACH] = {"DETACH", B(session), 0},
    [GR_MSG_DRAFT_STATS] = {"DRAFT_STATS", B(session) | B(n_round) | B(draft_ns) | B(host_ns),
                            B(n_ahead) | B(n_hit) | B(n_first) | B(n_first_hit) | B(n_alarm) | B(wire_bytes) |
                                B(wire_tokens) | B(first_expected)},
    [GR_MSG_DRAFT_TROUBLE] = {"DRAFT_TROUBLE", B(session), B(n_desync) | B(n_fallback) | B(n_feature_gap)},
    [GR_MSG_PING] = {"PING", 0, B(worker)},
    [GR_MSG_PONG] = {"PONG", B(n_session) | B(n_vocab), B(n_block) | B(n_free_block) | B(pid) | B(worker) | B(rtt_ns)},
    [GR_MSG_ERROR] = {"ERROR", B(session) | B(code) | B(text), B(ended)},
    [GR_MSG_DRAIN] = {"DRAIN", 0, 0},
    [GR_MSG_FINISHED] = {"FINISHED", B(session) | B(epoch) | B(finish) | B(text) | B(n_token),
                         B(n_fallback) | B(n_reopen) | B(cut)},
    [GR_MSG_REFRESH] = {"REFRESH", B(session), 0},
    [GR_MSG_REFRESHED] = {"REFRESHED", B(n_session), 0},
    [GR_MSG_PURGE] = {"PURGE", 0, 0},
    [GR_MSG_PURGED] = {"PURGED", B(n_session), 0},
    [GR_MSG_LIST] = {"LIST", 0, 0},
    [GR_MSG_SESSION] = {"SESSION",
                        B(session) | B(epoch) | B(state) | B(keep_open) | B(n_token) | B(n_round) | B(n_tree) |
                            B(n_drafted) | B(n_hit_token) | B(idle_ns) | B(target) | B(drafter),
                        B(specpv) | B(n_partial) | B(n_refresh) | B(n_checked) | B(n_drifted)},
    [GR_MSG_WORKER] = {"WORKER",
                       B(worker) | B(role) | B(pid) | B(address) | B(n_session) | B(n_vocab) | B(n_ctx_max) |
                           B(rtt_ns) | B(numerics_id),
                       B(model_fingerprint) | B(tokenizer_fingerprint)},
    [GR_MSG_LISTED] = {"LISTED", B(n_session) | B(n_worker), 0},
};

_Static_assert(N_FIELD <= 128, "field sets are 128-bit masks");

const char *gr_msg_name(enum gr_msg_type type)
{
    return (unsigned)type < GR_N_MSG ? types[type].name : "?";
}

static const void *field_at(const struct gr_msg *m, enum field f)
{
    return (const char *)m + fields[f].offset;
}

static void *field_slot(struct gr_msg *m, enum field f)
{
    return (char *)m + fields[f].offset;
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

static int pack_ids(msgpack_packer *pk, const struct gr_msg_ids *ids)
{
    int bad = msgpack_pack_array(pk, ids->n);
    for (uint32_t i = 0; i < ids->n; i++) {
        bad |= msgpack_pack_int32(pk, ids->p[i]);
    }
    return bad;
}

static int pack_field(msgpack_packer *pk, const struct gr_msg *m, enum field f)
{
    int bad = pack_text(pk, fields[f].name);
    const void *p = field_at(m, f);
    switch (fields[f].kind) {
    case KIND_U32:
        return bad | msgpack_pack_uint32(pk, *(const uint32_t *)p);
    case KIND_U64:
        return bad | msgpack_pack_uint64(pk, *(const uint64_t *)p);
    case KIND_F64:
        return bad | msgpack_pack_double(pk, *(const double *)p);
    case KIND_STR:
        return bad | pack_str(pk, p);
    case KIND_IDS:
        return bad | pack_ids(pk, p);
    }
    return -1;
}

/* Optional fields that are zero or empty stay out. */
static bool is_set(const struct gr_msg *m, enum field f)
{
    const void *p = field_at(m, f);
    switch (fields[f].kind) {
    case KIND_U32:
        return *(const uint32_t *)p != 0;
    case KIND_U64:
        return *(const uint64_t *)p != 0;
    case KIND_F64:
        return *(const double *)p != 0.0;
    case KIND_STR:
        return *(const char *)p != '\0';
    case KIND_IDS:
        return ((const struct gr_msg_ids *)p)->n > 0;
    }
    return false;
}

static int count_fields(field_set set)
{
    return __builtin_popcountll((uint64_t)set) + __builtin_popcountll((uint64_t)(set >> 64));
}

enum gr_status gr_msg_encode(const struct gr_msg *m, uint8_t *out, size_t cap, size_t *len_out)
{
    const struct type_info *t = &types[m->type];
    field_set set = t->required;
    for (int f = 0; f < N_FIELD; f++) {
        if ((t->optional >> f & 1) != 0 && is_set(m, (enum field)f)) {
            set |= (field_set)1 << f;
        }
    }
    struct sink sink = {.p = out, .cap = cap};
    msgpack_packer pk;
    msgpack_packer_init(&pk, &sink, sink_write);
    int bad = msgpack_pack_map(&pk, (size_t)count_fields(set) + 1);
    bad |= pack_text(&pk, "t") | pack_text(&pk, t->name);
    for (int f = 0; f < N_FIELD; f++) {
        if ((set >> f & 1) != 0) {
            bad |= pack_field(&pk, m, (enum field)f);
        }
    }
    if (bad != 0) {
        log_error("control message %s does not fit into %zu bytes", t->name, cap);
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

static enum gr_status take_ids(const char *type, const struct field_info *f, const msgpack_object *o,
                               struct gr_msg_ids *out)
{
    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size > f->limit) {
        char what[64];
        snprintf(what, sizeof(what), "not an array of at most %" PRIu64, f->limit);
        return refuse(type, f->name, what);
    }
    const uint32_t n = o->via.array.size;
    int32_t *p = malloc((n > 0 ? n : 1) * sizeof(*p));
    if (p == NULL) {
        log_error("out of memory for %u ids", n);
        return GR_ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        const msgpack_object *e = &o->via.array.ptr[i];
        const bool positive = e->type == MSGPACK_OBJECT_POSITIVE_INTEGER && e->via.u64 <= INT32_MAX;
        const bool negative = e->type == MSGPACK_OBJECT_NEGATIVE_INTEGER && e->via.i64 >= INT32_MIN;
        if (!positive && !negative) {
            free(p);
            return refuse(type, f->name, "holds something that is no 32-bit integer");
        }
        p[i] = positive ? (int32_t)e->via.u64 : (int32_t)e->via.i64;
    }
    *out = (struct gr_msg_ids){.p = p, .n = n};
    return GR_OK;
}

static enum gr_status take_str(const char *type, const struct field_info *f, const msgpack_object *o, char *out)
{
    if (o->type != MSGPACK_OBJECT_STR || o->via.str.size >= f->limit ||
        memchr(o->via.str.ptr, '\0', o->via.str.size) != NULL) {
        return refuse(type, f->name, "not a string, or too long");
    }
    if (!gr_utf8_valid(o->via.str.ptr, o->via.str.size)) {
        return refuse(type, f->name, "not UTF-8");
    }
    memcpy(out, o->via.str.ptr, o->via.str.size);
    out[o->via.str.size] = '\0';
    return GR_OK;
}

static enum gr_status take_field(struct gr_msg *m, enum field f, const msgpack_object *o)
{
    const char *type = types[m->type].name;
    void *slot = field_slot(m, f);
    switch (fields[f].kind) {
    case KIND_U32:
    case KIND_U64:
        if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER ||
            (fields[f].kind == KIND_U32 && o->via.u64 > fields[f].limit)) {
            return refuse(type, fields[f].name, "not an unsigned integer, or above its limit");
        }
        if (fields[f].kind == KIND_U32) {
            *(uint32_t *)slot = (uint32_t)o->via.u64;
        } else {
            *(uint64_t *)slot = o->via.u64;
        }
        return GR_OK;
    case KIND_F64:
        if ((o->type != MSGPACK_OBJECT_FLOAT64 && o->type != MSGPACK_OBJECT_FLOAT32) ||
            !(o->via.f64 >= -1e30 && o->via.f64 <= 1e30)) {
            return refuse(type, fields[f].name, "not a finite number");
        }
        *(double *)slot = o->via.f64;
        return GR_OK;
    case KIND_STR:
        return take_str(type, &fields[f], o, slot);
    case KIND_IDS:
        return take_ids(type, &fields[f], o, slot);
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

static enum gr_status take_map(const msgpack_object_map *map, struct gr_msg *m)
{
    GR_TRY(find_type(map, &m->type));
    const struct type_info *t = &types[m->type];
    field_set seen = 0;
    for (uint32_t i = 0; i < map->size; i++) {
        const msgpack_object *key = &map->ptr[i].key;
        if (str_equals(key, "t")) {
            continue;
        }
        int f = 0;
        while (f < N_FIELD && !(str_equals(key, fields[f].name) && ((t->required | t->optional) >> f & 1) != 0)) {
            f++;
        }
        if (f == N_FIELD) {
            return refuse(t->name, "?", "a key that this message does not have");
        }
        if ((seen >> f & 1) != 0) {
            return refuse(t->name, fields[f].name, "given twice");
        }
        seen |= (field_set)1 << f;
        GR_TRY(take_field(m, (enum field)f, &map->ptr[i].val));
    }
    for (int f = 0; f < N_FIELD; f++) {
        if ((t->required & ~seen) >> f & 1) {
            return refuse(t->name, fields[f].name, "missing");
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

const char *gr_msg_wrong_sampling(const struct gr_msg *m)
{
    const bool fits = m->temperature >= 0.0 && m->temperature <= 100.0 && m->top_p > 0.0 && m->top_p <= 1.0 &&
                      m->min_p >= 0.0 && m->min_p <= 1.0; /* false of NaN */
    return fits ? NULL : "sampling out of range: temperature 0 to 100, top_p above 0 to 1, min_p 0 to 1";
}

void gr_msg_finish(struct gr_msg *m)
{
    for (int f = 0; f < N_FIELD; f++) {
        if (fields[f].kind == KIND_IDS) {
            struct gr_msg_ids *ids = field_slot(m, (enum field)f);
            free(ids->p);
            *ids = (struct gr_msg_ids){0};
        }
    }
}
