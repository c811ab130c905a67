#include "transport/connect/hello.h"

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "common/protocol/wire.h"
#include "transport/connect/secrecy.h"
#include "transport/impl.h"

#include <assert.h>
#include <msgpack/pack.h>
#include <string.h>

enum kind { KIND_U16, KIND_U32, KIND_U64, KIND_TEXT, KIND_BIN };

struct field {
    const char *key;
    enum kind kind;
    size_t offset;
    uint64_t min, max; /* numbers: value; text: length without the NUL; bin: the length */
    bool optional;
};

#define FIELD(key, kind, member, min, max)                            \
    {                                                                 \
        key, kind, offsetof(struct gr_hello, member), min, max, false \
    }
/* One that is empty or zero stays out, and one that does not come is that. */
#define OPTIONAL(key, kind, member, max)                           \
    {                                                              \
        key, kind, offsetof(struct gr_hello, member), 0, max, true \
    }
#define SEAT_LEN_MAX (sizeof(((struct gr_hello *)0)->seat) - 1)
#define NUMERICS_LEN_MAX (sizeof(((struct gr_hello *)0)->numerics_id) - 1)
#define CAPTURES_LEN_MAX (sizeof(((struct gr_hello *)0)->captures) - 1)
#define HOST_LEN_MAX (sizeof(((struct gr_hello *)0)->host_id) - 1)
#define CLUSTER_LEN_MAX (sizeof(((struct gr_hello *)0)->cluster) - 1)

/* Order of the encoder. `version` must come first, so that another version is told apart from
 * nonsense; the decoder takes the others in any order. */
static const struct field fields[] = {
    FIELD("version", KIND_U32, version, 0, UINT32_MAX),
    FIELD("role", KIND_U32, role, GR_ROLE_ORCHESTRATOR, GR_ROLE_MEMBER),
    FIELD("incarnation", KIND_U64, incarnation, 0, UINT64_MAX),
    FIELD("wanted", KIND_U64, wanted, 0, UINT64_MAX),
    FIELD("cluster", KIND_TEXT, cluster, 0, CLUSTER_LEN_MAX),
    FIELD("tokenizer", KIND_U64, tokenizer_fingerprint, 0, UINT64_MAX),
    FIELD("model", KIND_U64, model_fingerprint, 0, UINT64_MAX),
    FIELD("fc", KIND_U64, fc_fingerprint, 0, UINT64_MAX),
    FIELD("numerics_id", KIND_TEXT, numerics_id, 0, NUMERICS_LEN_MAX),
    FIELD("n_vocab", KIND_U32, n_vocab, 0, 1u << 24),
    FIELD("transports", KIND_U32, transport_mask, 0, UINT32_MAX),
    FIELD("feature_dtype", KIND_U32, feature_dtype, GR_DTYPE_F32, GR_DTYPE_BF16),
    FIELD("feature_width", KIND_U32, feature_width, 0, 1u << 20),
    FIELD("feature_raw", KIND_U32, feature_raw, 0, 1),
    FIELD("captures", KIND_TEXT, captures, 0, CAPTURES_LEN_MAX),
    FIELD("host_id", KIND_TEXT, host_id, 0, HOST_LEN_MAX),
    OPTIONAL("seat", KIND_TEXT, seat, SEAT_LEN_MAX),
    OPTIONAL("number", KIND_U64, number, UINT64_MAX),
    FIELD("small_bytes_max", KIND_U32, limits.small_bytes_max, GR_SMALL_BYTES_MIN, GR_SMALL_BYTES_MAX),
    FIELD("bulk_bytes_max", KIND_U32, limits.bulk_bytes_max, 0, GR_BULK_BYTES_MAX),
    FIELD("n_small_slot", KIND_U16, limits.n_small_slot, GR_N_SMALL_SLOT_MIN, GR_N_SMALL_SLOT_MAX),
    FIELD("n_bulk_slot", KIND_U16, limits.n_bulk_slot, 0, GR_N_BULK_SLOT_MAX),
    FIELD("secrecy", KIND_U32, secrecy, GR_SECRECY_OFF, GR_SECRECY_REQUIRED),
    FIELD("exchange", KIND_BIN, exchange, GR_SEAL_PUBLIC_BYTES, GR_SEAL_PUBLIC_BYTES),
    FIELD("nonce", KIND_BIN, nonce, 32, 32),
};

const char *gr_role_name(uint32_t role)
{
    static const char *const names[] = {"unknown role",
                                        "orchestrator",
                                        "target",
                                        "draft",
                                        "client",
                                        "rank 0 of graft launch",
                                        "rank of graft launch",
                                        "process of a tensor-parallel group",
                                        "process that comes to a tensor-parallel group"};
    return names[role <= GR_ROLE_MEMBER ? role : 0];
}

static uint64_t field_load(const struct gr_hello *h, const struct field *f)
{
    const char *p = (const char *)h + f->offset;
    uint64_t u64 = 0;
    uint32_t u32;
    uint16_t u16;
    switch (f->kind) {
    case KIND_U16:
        memcpy(&u16, p, sizeof(u16));
        return u16;
    case KIND_U32:
        memcpy(&u32, p, sizeof(u32));
        return u32;
    case KIND_U64:
        memcpy(&u64, p, sizeof(u64));
        return u64;
    case KIND_TEXT:
        return strnlen(p, f->max + 1);
    case KIND_BIN:
        return f->max;
    }
    return 0;
}

static void field_store(struct gr_hello *h, const struct field *f, uint64_t value)
{
    char *p = (char *)h + f->offset;
    uint32_t u32 = (uint32_t)value;
    uint16_t u16 = (uint16_t)value;
    if (f->kind == KIND_U16) {
        memcpy(p, &u16, sizeof(u16));
    } else if (f->kind == KIND_U32) {
        memcpy(p, &u32, sizeof(u32));
    } else {
        memcpy(p, &value, sizeof(value));
    }
}

/* Text ends up in logs: printable ASCII only. */
static bool is_printable(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] < 0x20 || p[i] > 0x7e) {
            return false;
        }
    }
    return true;
}

/* ---- encoding ---- */

static int write_packed(void *data, const char *p, size_t n)
{
    uint8_t *to = gr_write_bytes(data, n);
    if (to == NULL) {
        return -1;
    }
    memcpy(to, p, n);
    return 0;
}

/* A full buffer is remembered by the writer and asked for once, at the end. */
static void field_pack(msgpack_packer *pk, const struct gr_hello *self, const struct field *f, uint64_t value)
{
    const char *p = (const char *)self + f->offset;
    (void)msgpack_pack_str_with_body(pk, f->key, strlen(f->key));
    if (f->kind == KIND_TEXT) {
        (void)msgpack_pack_str_with_body(pk, p, value);
    } else if (f->kind == KIND_BIN) {
        (void)msgpack_pack_bin_with_body(pk, p, value);
    } else {
        (void)msgpack_pack_uint64(pk, value);
    }
}

static bool is_told(const struct field *f, uint64_t value)
{
    return !f->optional || value != 0;
}

static size_t count_fields(const struct gr_hello *self)
{
    size_t n = 0;
    for (size_t i = 0; i < GR_ARRAY_LEN(fields); i++) {
        n += is_told(&fields[i], field_load(self, &fields[i]));
    }
    return n;
}

enum gr_status gr_hello_encode(const struct gr_hello *self, uint8_t *buf, size_t cap, size_t *bytes_out)
{
    struct gr_writer w = {.p = buf, .cap = cap};
    msgpack_packer pk;
    msgpack_packer_init(&pk, &w, write_packed);
    (void)msgpack_pack_map(&pk, count_fields(self));
    for (size_t i = 0; i < GR_ARRAY_LEN(fields); i++) {
        const struct field *f = &fields[i];
        uint64_t value = field_load(self, f);
        if (value < f->min || value > f->max ||
            (f->kind == KIND_TEXT && !is_printable((const uint8_t *)self + f->offset, (size_t)value))) {
            log_error("own HELLO: %s: %llu is outside %llu .. %llu, or not printable text", f->key,
                      (unsigned long long)value, (unsigned long long)f->min, (unsigned long long)f->max);
            return GR_EINVAL;
        }
        if (is_told(f, value)) {
            field_pack(&pk, self, f, value);
        }
    }
    if (w.failed) {
        log_error("own HELLO does not fit %zu bytes", cap);
        return GR_ELIMIT;
    }
    *bytes_out = w.at;
    return GR_OK;
}

/* ---- decoding ----
 * By hand: what msgpack-c's unpacker allocates follows a length field of the peer. A HELLO is a
 * flat map of unsigned integers, strings and bins; anything else is refused at its first byte. */

static uint64_t read_be(struct gr_reader *r, size_t n)
{
    const uint8_t *p = gr_read_bytes(r, n);
    uint64_t v = 0;
    for (size_t i = 0; p != NULL && i < n; i++) {
        v = v << 8 | p[i];
    }
    return v;
}

static uint64_t read_uint(struct gr_reader *r)
{
    uint8_t tag = gr_read_u8(r);
    if (tag <= 0x7f) {
        return tag;
    }
    if (tag < 0xcc || tag > 0xcf) {
        r->failed = true;
        return 0;
    }
    return read_be(r, (size_t)1 << (tag - 0xcc));
}

static const uint8_t *read_body(struct gr_reader *r, uint64_t n, size_t *n_out)
{
    const uint8_t *p = gr_read_bytes(r, (size_t)n);
    *n_out = p == NULL ? 0 : (size_t)n;
    return p;
}

static const uint8_t *read_text(struct gr_reader *r, size_t *n_out)
{
    uint8_t tag = gr_read_u8(r);
    if (tag >= 0xa0 && tag <= 0xbf) {
        return read_body(r, tag & 0x1f, n_out);
    }
    if (tag < 0xd9 || tag > 0xdb) {
        r->failed = true;
    }
    return read_body(r, read_be(r, (size_t)1 << ((tag - 0xd9) & 3)), n_out);
}

static const uint8_t *read_bin(struct gr_reader *r, size_t *n_out)
{
    uint8_t tag = gr_read_u8(r);
    if (tag < 0xc4 || tag > 0xc6) {
        r->failed = true;
    }
    return read_body(r, read_be(r, (size_t)1 << ((tag - 0xc4) & 3)), n_out);
}

static uint64_t read_map_len(struct gr_reader *r)
{
    uint8_t tag = gr_read_u8(r);
    if ((tag & 0xf0) == 0x80) {
        return tag & 0x0f;
    }
    if (tag != 0xde && tag != 0xdf) {
        r->failed = true;
        return 0;
    }
    return read_be(r, tag == 0xde ? 2 : 4);
}

static enum gr_status read_value(struct gr_reader *r, const struct field *f, struct gr_hello *h)
{
    static const char *const wanted[] = {"an unsigned integer", "an unsigned integer", "an unsigned integer",
                                         "a string", "a bin"};
    const uint8_t *body = NULL;
    size_t n = 0;
    uint64_t value;
    if (f->kind == KIND_TEXT || f->kind == KIND_BIN) {
        body = f->kind == KIND_TEXT ? read_text(r, &n) : read_bin(r, &n);
        value = n;
    } else {
        value = read_uint(r);
    }
    if (r->failed) {
        log_error("HELLO: `%s' is not %s, or cut short", f->key, wanted[f->kind]);
        return GR_EPROTO;
    }
    if (value < f->min || value > f->max || (f->kind == KIND_TEXT && !is_printable(body, n))) {
        log_error("HELLO: `%s': %s%llu is outside %llu .. %llu%s", f->key, body != NULL ? "length " : "",
                  (unsigned long long)value, (unsigned long long)f->min, (unsigned long long)f->max,
                  f->kind == KIND_TEXT ? ", or not printable" : "");
        return GR_EPROTO;
    }
    if (body == NULL) {
        field_store(h, f, value);
    } else {
        memcpy((char *)h + f->offset, body, n); /* text: the struct was zeroed, so NUL follows */
    }
    return GR_OK;
}

static const struct field *find_field(const uint8_t *key, size_t n)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(fields); i++) {
        if (strlen(fields[i].key) == n && memcmp(fields[i].key, key, n) == 0) {
            return &fields[i];
        }
    }
    return NULL;
}

static enum gr_status read_pair(struct gr_reader *r, uint32_t *seen, struct gr_hello *h)
{
    size_t n = 0;
    const uint8_t *key = read_text(r, &n);
    if (key == NULL) {
        log_error("HELLO: a key is not a string, or the record is cut short");
        return GR_EPROTO;
    }
    const struct field *f = find_field(key, n);
    if (f == NULL) {
        bool show = is_printable(key, n);
        log_error("HELLO: unknown key `%.*s'", show ? (int)GR_MIN(n, 40u) : 1, show ? (const char *)key : "?");
        return GR_EPROTO;
    }
    uint32_t bit = 1u << (f - fields);
    if ((*seen & bit) != 0 || (*seen == 0 && f != &fields[0])) {
        log_error("HELLO: `%s' %s", f->key, *seen == 0 ? "comes first, it must be `version'" : "comes twice");
        return GR_EPROTO;
    }
    *seen |= bit;
    return read_value(r, f, h);
}

static enum gr_status check_complete(const struct gr_reader *r, uint32_t seen)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(fields); i++) {
        if ((seen & 1u << i) == 0 && !fields[i].optional) {
            log_error("HELLO: `%s' is missing", fields[i].key);
            return GR_EPROTO;
        }
    }
    if (r->at != r->len) {
        log_error("HELLO: %zu bytes follow the map", r->len - r->at);
        return GR_EPROTO;
    }
    return GR_OK;
}

enum gr_status gr_hello_decode(const uint8_t *p, size_t bytes, struct gr_hello *hello_out)
{
    static_assert(GR_ARRAY_LEN(fields) <= 32, "seen is a 32-bit mask");
    struct gr_reader r = {.p = p, .len = bytes};
    struct gr_hello h = {0};
    uint32_t seen = 0;
    uint64_t n_pair = read_map_len(&r);
    if (r.failed) {
        log_error("HELLO: not a msgpack map");
        return GR_EPROTO;
    }
    /* A key can come once only, so this ends after at most one pair more than there are fields. */
    for (uint64_t i = 0; i < n_pair; i++) {
        GR_TRY(read_pair(&r, &seen, &h));
        if (i == 0 && h.version != GR_PROTOCOL_VERSION) {
            log_error("HELLO: protocol version: ours is %u, the peer's is %u; use builds of one "
                      "version on both sides",
                      GR_PROTOCOL_VERSION, h.version);
            return GR_EMISMATCH;
        }
    }
    GR_TRY(check_complete(&r, seen));
    *hello_out = h;
    return GR_OK;
}

/* ---- comparing ---- */

static enum gr_status compare_u64(const char *what, const char *advice, uint64_t self, uint64_t peer)
{
    if (self != 0 && peer != 0 && self != peer) {
        log_error("HELLO: %s: ours is %016llx, the peer's is %016llx; %s", what, (unsigned long long)self,
                  (unsigned long long)peer, advice);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

static enum gr_status compare_u32(const char *what, uint32_t self, uint32_t peer)
{
    if (self != peer) {
        log_error("HELLO: %s: ours is %u, the peer's is %u; give both workers the same model "
                  "folders and options",
                  what, self, peer);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

/* Two jobs with one key and one port must not share workers unless they are told to. */
static enum gr_status compare_clusters(const struct gr_hello *self, const struct gr_hello *peer)
{
    if (self->cluster[0] != '\0' && peer->cluster[0] != '\0' && strcmp(self->cluster, peer->cluster) != 0) {
        log_error("HELLO: cluster: ours is `%s', that of the %s there is `%s': it belongs to another job; give both "
                  "the same --cluster (GRAFT_CLUSTER) if they are to work together",
                  self->cluster, gr_role_name(peer->role), peer->cluster);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

/* An address may lead to another process than the one that announced it: a bridge or loopback that many hosts have, a
 * port that has a new owner. */
static enum gr_status compare_incarnations(const struct gr_hello *self, const struct gr_hello *peer)
{
    const bool ours = self->wanted != 0 && self->wanted != peer->incarnation;
    const bool theirs = peer->wanted != 0 && peer->wanted != self->incarnation;
    if (ours || theirs) {
        log_error("HELLO: incarnation: %s looks for %016llx, this address leads to %016llx: another %s than the one "
                  "that announced it",
                  ours ? "this process" : "the peer", (unsigned long long)(ours ? self->wanted : peer->wanted),
                  (unsigned long long)(ours ? peer->incarnation : self->incarnation),
                  gr_role_name(ours ? peer->role : self->role));
        return GR_EMISMATCH;
    }
    return GR_OK;
}

static bool is_stray_client(const struct gr_hello *a, const struct gr_hello *b)
{
    return a->role == GR_ROLE_CLIENT && b->role != GR_ROLE_ORCHESTRATOR;
}

static bool is_of_launch(const struct gr_hello *h)
{
    return h->role == GR_ROLE_LEAD || h->role == GR_ROLE_RANK;
}

static bool is_of_group(const struct gr_hello *h)
{
    return h->role == GR_ROLE_HOST || h->role == GR_ROLE_MEMBER;
}

static enum gr_status compare_roles(const struct gr_hello *self, const struct gr_hello *peer)
{
    const char *ours = gr_role_name(self->role), *theirs = gr_role_name(peer->role);
    if (self->role == peer->role) {
        log_error("HELLO: role: both sides are %s; check the addresses", ours);
        return GR_EMISMATCH;
    }
    if (is_of_launch(self) != is_of_launch(peer)) {
        log_error(
            "HELLO: role: ours is %s, the peer's is %s; the ranks of a job meet at one port, and its orchestrator "
            "serves at another: check the address",
            ours, theirs);
        return GR_EMISMATCH;
    }
    if (is_of_group(self) != is_of_group(peer)) {
        log_error("HELLO: role: ours is %s, the peer's is %s; a tensor-parallel group has a port of its own: check the "
                  "address",
                  ours, theirs);
        return GR_EMISMATCH;
    }
    if (is_stray_client(self, peer) || is_stray_client(peer, self)) {
        log_error("HELLO: role: ours is %s, the peer's is %s; a client talks to an orchestrator only, check the "
                  "address",
                  ours, theirs);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

/* Only where there is a control link. */
static enum gr_status compare_secrecy(const struct gr_hello *self, const struct gr_hello *peer)
{
    const bool ours = self->secrecy == GR_SECRECY_REQUIRED && peer->secrecy == GR_SECRECY_OFF;
    const bool theirs = peer->secrecy == GR_SECRECY_REQUIRED && self->secrecy == GR_SECRECY_OFF;
    if (ours || theirs) {
        log_error("HELLO: control encryption: ours is %s, the peer's is %s; take --control-encryption off "
                  "(GRAFT_CONTROL_ENCRYPTION) away from the %s",
                  gr_secrecy_name(self->secrecy), gr_secrecy_name(peer->secrecy),
                  gr_role_name(ours ? peer->role : self->role));
        return GR_EMISMATCH;
    }
    return GR_OK;
}

/* A frame of features as the target makes it has to fit a slot of the connection. */
static enum gr_status check_feature_slot(const struct gr_hello *self, const struct gr_hello *peer)
{
    const size_t row_bytes = (self->feature_dtype == GR_DTYPE_F32 ? 4u : 2u) * (size_t)self->feature_width;
    const bool fits_any = gr_features_frame_rows(row_bytes) > 0;
    const size_t frame_bytes = gr_features_frame_bytes(row_bytes);
    const uint32_t slot_bytes = GR_MIN(self->limits.bulk_bytes_max, peer->limits.bulk_bytes_max);
    if (fits_any && frame_bytes <= slot_bytes) {
        return GR_OK;
    }
    log_error(
        "HELLO: feature slot: rows of %u values make frames of %zu bytes, the connection's slots hold %u (ours %u, "
        "the peer's %u)%s",
        self->feature_width, frame_bytes, slot_bytes, self->limits.bulk_bytes_max, peer->limits.bulk_bytes_max,
        fits_any ? "; give both workers the same head" : "; the model is too wide");
    return GR_EMISMATCH;
}

static enum gr_status compare_features(const struct gr_hello *self, const struct gr_hello *peer)
{
    if (self->feature_raw != peer->feature_raw) {
        log_error("HELLO: features: ours are %s, the peer's %s; give both workers the same --ship-features",
                  self->feature_raw != 0 ? "raw" : "fused", peer->feature_raw != 0 ? "raw" : "fused");
        return GR_EMISMATCH;
    }
    if (strcmp(self->captures, peer->captures) != 0) {
        log_error("HELLO: captured layers: ours are %s, the peer's %s; give both workers the same --capture-layers",
                  self->captures, peer->captures);
        return GR_EMISMATCH;
    }
    GR_TRY(compare_u32("feature width", self->feature_width, peer->feature_width));
    GR_TRY(compare_u32("feature dtype", self->feature_dtype, peer->feature_dtype));
    return check_feature_slot(self, peer);
}

enum gr_status gr_hello_compare(const struct gr_hello *self, const struct gr_hello *peer)
{
    GR_TRY(compare_u32("protocol version", self->version, peer->version));
    GR_TRY(compare_roles(self, peer));
    GR_TRY(compare_clusters(self, peer));
    GR_TRY(compare_incarnations(self, peer));
    GR_TRY(compare_u64("tokenizer fingerprint", "both workers need the same tokenizer.json",
                       self->tokenizer_fingerprint, peer->tokenizer_fingerprint));
    GR_TRY(compare_u64("fc fingerprint", "both workers need the same EAGLE-3 head folder", self->fc_fingerprint,
                       peer->fc_fingerprint));
    if (self->role == GR_ROLE_ORCHESTRATOR || peer->role == GR_ROLE_ORCHESTRATOR) {
        return compare_secrecy(self, peer);
    }
    if (is_of_launch(self) || is_of_group(self)) {
        return GR_OK;
    }
    if (self->n_vocab != 0 && peer->n_vocab != 0) {
        GR_TRY(compare_u32("vocabulary size", self->n_vocab, peer->n_vocab));
    }
    const struct gr_hello *draft = self->role == GR_ROLE_DRAFT ? self : peer;
    const struct gr_hello *target = self->role == GR_ROLE_DRAFT ? peer : self;
    if (draft->feature_width != 0 && target->feature_width == 0) {
        log_error("HELLO: feature width: the draft head takes %u, the target serves none; start it with --head and the "
                  "same folder",
                  draft->feature_width);
        return GR_EMISMATCH;
    }
    return self->feature_width != 0 && peer->feature_width != 0 ? compare_features(self, peer) : GR_OK;
}
