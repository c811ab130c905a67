#include "transport/connect/bootstrap.h"

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/fallback.h"
#include "common/base/in_file.h"
#include "common/base/log.h"
#include "common/base/out_file.h"
#include "transport/connect/hello.h"
#include "transport/connect/secrecy.h"
#include "transport/impl.h"
#include "transport/net.h"
#include "transport/verbs/verbs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROOF_LABEL "graft-hello-1"
#define MAC_BYTES 32 /* of HMAC-SHA-512-256 */
/* {"role": n, "mac": bin 32}, always in this very encoding, so that nothing of a peer that has not
 * proved itself is parsed: the record is compared byte by byte around role and mac. */
#define PROOF_BYTES 45
#define PROOF_ROLE_AT 6
#define PROOF_MAC_AT 13

static_assert(crypto_auth_hmacsha512256_BYTES == MAC_BYTES, "proof layout");
static_assert(crypto_auth_hmacsha512256_KEYBYTES == GR_KEY_BYTES, "key size");

static void sodium_ready(void)
{
    GR_ASSERT(sodium_init() >= 0); /* any number of times, any thread */
}

/* ---- records ---- */

struct record {
    uint32_t bytes;
    uint8_t data[GR_HELLO_BYTES_MAX];
};

/* The first that is said and heard; nothing at all is a check of health where this side was called. */
struct opening {
    int fd;
    uint64_t deadline;
    bool called;
};

static enum gr_status write_opening(const struct opening *o, const struct record *rec)
{
    uint8_t len[4];
    struct gr_writer w = {.p = len, .cap = sizeof(len)};
    gr_write_u32(&w, rec->bytes);
    enum gr_status (*write)(int, const void *, size_t, uint64_t, const char *) =
        o->called ? gr_sock_write_peer : gr_sock_write;
    GR_TRY(write(o->fd, len, sizeof(len), o->deadline, "HELLO"));
    return write(o->fd, rec->data, rec->bytes, o->deadline, "HELLO");
}

static enum gr_status write_record(int fd, const uint8_t *p, size_t n, uint64_t deadline, const char *what)
{
    uint8_t len[4];
    struct gr_writer w = {.p = len, .cap = sizeof(len)};
    gr_write_u32(&w, n);
    GR_TRY(gr_sock_write(fd, len, sizeof(len), deadline, what));
    return gr_sock_write(fd, p, n, deadline, what);
}

static enum gr_status read_body(int fd, const uint8_t len[4], struct record *rec, uint64_t deadline, const char *what)
{
    struct gr_reader r = {.p = len, .len = 4};
    rec->bytes = gr_read_u32(&r);
    if (rec->bytes == 0 || rec->bytes > sizeof(rec->data)) {
        log_error("%s: a record of %u bytes, allowed are 1 .. %u; is the peer a graft worker?", what, rec->bytes,
                  GR_HELLO_BYTES_MAX);
        return GR_EPROTO;
    }
    return gr_sock_read(fd, rec->data, rec->bytes, deadline, what);
}

/* Silence of who was called is mostly another server's, which waits for a request of its own kind. */
static enum gr_status read_first(const struct opening *o, uint8_t *byte)
{
    char line[160] = "";
    if (o->called) {
        return gr_sock_read_peer(o->fd, byte, 1, o->deadline, "HELLO");
    }
    gr_log_hold(line, sizeof(line));
    const enum gr_status st = gr_sock_read(o->fd, byte, 1, o->deadline, "HELLO");
    gr_log_hold(NULL, 0);
    if (st == GR_ETIMEDOUT) {
        log_error("HELLO: no answer: nothing of graft's control link is there, or it hangs; an orchestrator's is at "
                  "its --control, not at its --http");
    } else if (st != GR_OK) {
        log_error("%s", line);
    }
    return st;
}

/* The beginning of a request, or of an answer to one. */
static bool is_http(const uint8_t begin[4])
{
    static const char *const words[] = {"GET ", "HEAD", "POST", "PUT ", "DELE", "OPTI", "PATC", "CONN", "PRI ", "HTTP"};
    for (size_t i = 0; i < GR_ARRAY_LEN(words); i++) {
        if (memcmp(begin, words[i], 4) == 0) {
            return true;
        }
    }
    return false;
}

static enum gr_status read_opening(const struct opening *o, struct record *rec)
{
    uint8_t len[4];
    GR_TRY(read_first(o, len));
    GR_TRY(gr_sock_read(o->fd, len + 1, 3, o->deadline, "HELLO"));
    if (is_http(len)) {
        log_error(o->called
                      ? "an HTTP request came to a port of graft's own links; the endpoint is at --http"
                      : "HELLO: an HTTP server answers there; an orchestrator's control link is at its --control");
        return GR_EUNSUPPORTED;
    }
    return read_body(o->fd, len, rec, o->deadline, "HELLO");
}

static enum gr_status read_record(int fd, struct record *rec, uint64_t deadline, const char *what)
{
    uint8_t len[4];
    GR_TRY(gr_sock_read(fd, len, sizeof(len), deadline, what));
    return read_body(fd, len, rec, deadline, what);
}

/* ---- proof ---- */

static void mac_record(crypto_auth_hmacsha512256_state *state, const struct record *rec)
{
    uint8_t len[4];
    struct gr_writer w = {.p = len, .cap = sizeof(len)};
    gr_write_u32(&w, rec->bytes);
    crypto_auth_hmacsha512256_update(state, len, sizeof(len));
    crypto_auth_hmacsha512256_update(state, rec->data, rec->bytes);
}

/* crypto_auth over label | role | prover's HELLO record | the other's HELLO record, lengths
 * included. */
static void proof_mac(const uint8_t *key, uint8_t role, const struct record *prover, const struct record *other,
                      uint8_t mac_out[MAC_BYTES])
{
    crypto_auth_hmacsha512256_state state;
    crypto_auth_hmacsha512256_init(&state, key, GR_KEY_BYTES);
    crypto_auth_hmacsha512256_update(&state, (const uint8_t *)PROOF_LABEL, strlen(PROOF_LABEL));
    crypto_auth_hmacsha512256_update(&state, &role, 1);
    mac_record(&state, prover);
    mac_record(&state, other);
    crypto_auth_hmacsha512256_final(&state, mac_out);
    sodium_memzero(&state, sizeof(state));
}

static void proof_encode(uint8_t role, const uint8_t mac[MAC_BYTES], uint8_t out[PROOF_BYTES])
{
    static const uint8_t frame[PROOF_BYTES] = "\x82\xa4role\0\xa3mac\xc4\x20";
    memcpy(out, frame, PROOF_BYTES);
    out[PROOF_ROLE_AT] = role;
    memcpy(out + PROOF_MAC_AT, mac, MAC_BYTES);
}

static enum gr_status proof_check(const uint8_t *key, const struct record *proof, const struct record *own,
                                  const struct record *peer, uint8_t *role_out)
{
    if (proof->bytes != PROOF_BYTES || proof->data[PROOF_ROLE_AT] > 0x7f) {
        log_error("PROOF: malformed record of %u bytes", proof->bytes);
        return GR_EPROTO;
    }
    /* Our own HELLO and proof coming back would verify; a fresh peer has another nonce. */
    if (own->bytes == peer->bytes && memcmp(own->data, peer->data, own->bytes) == 0) {
        log_error("HELLO: our own record came back; the address leads to an echo, not to a worker");
        return GR_EAUTH;
    }
    uint8_t role = proof->data[PROOF_ROLE_AT], mac[MAC_BYTES], expected[PROOF_BYTES];
    proof_mac(key, role, peer, own, mac);
    proof_encode(role, mac, expected);
    if (sodium_memcmp(proof->data, expected, PROOF_BYTES) != 0) {
        log_error("HELLO: the peer does not hold our shared key; give both sides the same "
                  "GRAFT_KEY_FILE or GRAFT_KEY");
        return GR_EAUTH;
    }
    *role_out = role;
    return GR_OK;
}

struct exchange {
    struct record own, peer, proof;
    struct gr_seal_pair pair;
};

static enum gr_status exchange_proofs(const struct opening *o, const struct gr_hello *self, const uint8_t *key,
                                      struct exchange *x, uint8_t *role_out)
{
    uint8_t mac[MAC_BYTES], proof[PROOF_BYTES];
    const int fd = o->fd;
    const uint64_t deadline = o->deadline;
    GR_TRY(write_opening(o, &x->own));
    GR_TRY(read_opening(o, &x->peer));
    proof_mac(key, (uint8_t)self->role, &x->own, &x->peer, mac);
    proof_encode((uint8_t)self->role, mac, proof);
    GR_TRY(write_record(fd, proof, sizeof(proof), deadline, "PROOF"));
    GR_TRY(read_record(fd, &x->proof, deadline, "PROOF"));
    return proof_check(key, &x->proof, &x->own, &x->peer, role_out);
}

/* ---- the keys of a control link ---- */

static bool is_control(const struct gr_hello *own, const struct gr_hello *peer)
{
    return own->role == GR_ROLE_ORCHESTRATOR || peer->role == GR_ROLE_ORCHESTRATOR;
}

/* The two have been compared, so their roles differ. */
static enum gr_status agree_keys(const uint8_t *key, const struct exchange *x, const struct gr_hello *own,
                                 struct gr_hello *peer)
{
    if (!is_control(own, peer) || own->secrecy == GR_SECRECY_OFF || peer->secrecy == GR_SECRECY_OFF) {
        return GR_OK;
    }
    const bool is_first = own->role < peer->role;
    const struct record *first = is_first ? &x->own : &x->peer, *second = is_first ? &x->peer : &x->own;
    const struct gr_seal_opening opening = {
        .is_first = is_first, .hello = {first->data, second->data}, .bytes = {first->bytes, second->bytes}};
    const enum gr_status st = gr_seal_keys_make(&x->pair, peer->exchange, key, &opening, &peer->keys);
    if (st != GR_OK) {
        log_error("HELLO: `exchange' is no public key, so the control link cannot be encrypted");
    }
    return st;
}

static void prepare(const struct gr_hello *self, struct gr_seal_pair *pair, struct gr_hello *own_out)
{
    *own_out = *self;
    randombytes_buf(own_out->nonce, sizeof(own_out->nonce));
    if (self->secrecy != GR_SECRECY_OFF) {
        gr_seal_pair_make(pair);
        memcpy(own_out->exchange, pair->public, sizeof(own_out->exchange));
    }
}

static enum gr_status exchange(const struct opening *o, const struct gr_hello *self, const uint8_t *key,
                               struct exchange *x, struct gr_hello *peer_out)
{
    struct gr_hello own, peer;
    prepare(self, &x->pair, &own);
    size_t bytes;
    GR_TRY(gr_hello_encode(&own, x->own.data, sizeof(x->own.data), &bytes));
    x->own.bytes = (uint32_t)bytes;
    uint8_t role;
    GR_TRY(exchange_proofs(o, self, key, x, &role));
    GR_TRY(gr_hello_decode(x->peer.data, x->peer.bytes, &peer));
    if (peer.role != role) {
        log_error("HELLO: the peer proved itself as %s and says it is %s", gr_role_name(role), gr_role_name(peer.role));
        return GR_EPROTO;
    }
    GR_TRY(gr_hello_compare(&own, &peer));
    GR_TRY(agree_keys(key, x, &own, &peer));
    *peer_out = peer;
    sodium_memzero(&peer.keys, sizeof(peer.keys));
    return GR_OK;
}

static enum gr_status say_hello(const struct opening *o, const struct gr_hello *self, const uint8_t *key,
                                struct gr_hello *peer_out)
{
    sodium_ready();
    struct exchange *x = malloc(sizeof(*x)); /* 48 KiB: much for a thread's stack */
    if (x == NULL) {
        log_error("HELLO: out of memory");
        return GR_ENOMEM;
    }
    enum gr_status st = exchange(o, self, key, x, peer_out);
    sodium_memzero(&x->pair, sizeof(x->pair));
    free(x);
    return st;
}

enum gr_status gr_hello_exchange(int fd, const struct gr_hello *self, const uint8_t *key, int timeout_ms,
                                 struct gr_hello *peer_out)
{
    const struct opening o = {.fd = fd, .deadline = gr_deadline_ns(timeout_ms)};
    return say_hello(&o, self, key, peer_out);
}

enum gr_status gr_hello_call(int fd, const struct gr_hello *self, const uint8_t *key, int timeout_ms,
                             struct gr_hello *peer_out)
{
    char line[256] = "", where[64];
    gr_sock_peer_text(fd, where);
    gr_log_hold(line, sizeof(line));
    const enum gr_status st = gr_hello_exchange(fd, self, key, timeout_ms, peer_out);
    gr_log_hold(NULL, 0);
    if (st != GR_OK) {
        log_error("%s (the other end is %s)", line, where);
    }
    return st;
}

/* ---- the whole way from socket to connection ---- */

static enum gr_status open_kind(enum gr_transport_kind kind, int fd, const struct gr_bootstrap_options *o,
                                const struct gr_conn_limits *limits, uint64_t peer_id, struct gr_conn **conn_out,
                                struct gr_why *why)
{
    switch (kind) {
    case GR_TRANSPORT_SHM:
        return gr_transport_open_shm(fd, o->initiator, limits, o->generation, o->timeout_ms, conn_out, why);
    case GR_TRANSPORT_TCP:
        return gr_transport_open_tcp(fd, limits, o->generation, conn_out);
    case GR_TRANSPORT_VERBS:
        return gr_transport_open_verbs(fd, o->initiator, gr_verbs_configured(), limits, peer_id, o->generation,
                                       conn_out);
    case GR_TRANSPORT_LOOP:
    case GR_N_TRANSPORT:
        break;
    }
    log_error("transport %s cannot be opened over a socket", gr_transport_name(kind));
    return GR_EUNSUPPORTED;
}

/* One line for what follows from it. Both sides know: the one whose fault it is tells an error, the one that connected
 * warns of a fall-back and counts it. */
static void tell_fallback(struct gr_fallbacks *f, enum gr_transport_kind kind, bool forced, bool initiator,
                          const struct gr_why *why)
{
    const char *name = gr_transport_name(kind);
    if (forced && !why->theirs) {
        log_error("transport %s is the only one that is allowed, and did not open: %s", name, why->text);
    } else if (initiator && !forced) {
        char detail[sizeof(why->text) + 16];
        snprintf(detail, sizeof(detail), "%s: %s", name, why->text);
        gr_fall_back(f, GR_FALLBACK_TRANSPORT, 0, 0, detail);
    } else {
        log_info("transport %s did not open: %s", name, why->text);
    }
}

enum gr_status gr_bootstrap_greet(int fd, const struct gr_hello *self, const struct gr_bootstrap_options *o,
                                  struct gr_hello *own_out, struct gr_hello *peer_out)
{
    /* Only what can be taken is offered, so both sides choose the same. */
    struct gr_hello own = *self;
    own.transport_mask &= gr_transport_built_mask();
    if (o->forced >= 0) {
        own.transport_mask &= 1u << o->forced;
    } else if (!gr_verbs_worth_offering(gr_verbs_configured())) {
        own.transport_mask &= ~(1u << GR_TRANSPORT_VERBS);
    }
    const struct opening opening = {.fd = fd, .deadline = gr_deadline_ns(o->timeout_ms), .called = !o->initiator};
    GR_TRY(say_hello(&opening, &own, o->key, peer_out));
    *own_out = own;
    return GR_OK;
}

enum gr_status gr_bootstrap_open(int fd, const struct gr_hello *own, const struct gr_hello *peer,
                                 const struct gr_bootstrap_options *o, struct gr_conn **conn_out)
{
    struct gr_hello left = *own;
    struct gr_conn_limits limits;
    gr_limits_agree(&own->limits, &peer->limits, &limits);
    struct gr_fallbacks fallbacks = {0};
    for (;;) {
        struct gr_why why = {.text = "the lines above tell why"};
        enum gr_transport_kind kind;
        GR_TRY(gr_transport_choose(&left, peer, o->forced, &kind));
        enum gr_status st = open_kind(kind, fd, o, &limits, peer->incarnation, conn_out, &why);
        if (st == GR_OK) {
            (*conn_out)->n_fallback = fallbacks.n_untold;
            log_info("connected to the %s over %s", gr_role_name(peer->role), gr_transport_name(kind));
            return GR_OK;
        }
        /* Unsupported means: both sides know that it did not work, and the socket is clean. */
        if (st == GR_EUNSUPPORTED) {
            tell_fallback(&fallbacks, kind, o->forced >= 0, o->initiator, &why);
        }
        if (st != GR_EUNSUPPORTED || o->forced >= 0) {
            return st;
        }
        left.transport_mask &= ~(1u << kind);
    }
}

enum gr_status gr_bootstrap(int fd, const struct gr_hello *self, const struct gr_bootstrap_options *o,
                            struct gr_hello *peer_out, struct gr_conn **conn_out)
{
    struct gr_hello own, peer;
    GR_TRY(gr_bootstrap_greet(fd, self, o, &own, &peer));
    GR_TRY(gr_bootstrap_open(fd, &own, &peer, o, conn_out));
    *peer_out = peer;
    return GR_OK;
}

/* ---- host id ---- */

static bool read_boot_id(char out[40])
{
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    const bool whole = read(fd, out, 36) == 36;
    close(fd);
    return whole;
}

/* The hash of id; drawn where id is not known, so that it equals nobody's. */
static void spell_id(const void *id, size_t bytes, bool known, char out[48])
{
    uint8_t hash[23];
    sodium_ready();
    if (known) {
        crypto_generichash(hash, sizeof(hash), id, bytes, NULL, 0);
    } else {
        randombytes_buf(hash, sizeof(hash));
    }
    sodium_bin2hex(out, 48, hash, sizeof(hash));
}

/* Two processes can share memory when they run under one kernel, see one /dev/shm and are one user. */
bool gr_host_id(char out[48])
{
    struct {
        char boot_id[40];
        uint64_t dev, ino, uid;
    } id;
    struct stat sb;
    memset(&id, 0, sizeof(id));
    const bool known = read_boot_id(id.boot_id) && stat("/dev/shm", &sb) == 0;
    if (known) {
        id.dev = sb.st_dev;
        id.ino = sb.st_ino;
        id.uid = geteuid();
    }
    spell_id(&id, sizeof(id), known, out);
    return known;
}

void gr_machine_id(char out[48])
{
    char boot_id[40] = "";
    const bool known = read_boot_id(boot_id);
    spell_id(boot_id, sizeof(boot_id), known, out);
}

void gr_hello_for_messages(uint32_t role, struct gr_hello *out)
{
    *out = (struct gr_hello){
        .version = GR_PROTOCOL_VERSION, .role = role, .limits = {.small_bytes_max = 65536, .n_small_slot = 2}};
    sodium_ready();
    do {
        randombytes_buf(&out->incarnation, sizeof(out->incarnation));
    } while (out->incarnation == 0); /* which means anybody's, in `wanted' */
    (void)gr_host_id(out->host_id);
}

/* ---- shared key ---- */

static enum gr_status key_from_hex(const char *hex, size_t n, const char *where, uint8_t key_out[GR_KEY_BYTES])
{
    uint8_t key[GR_KEY_BYTES];
    size_t bytes = 0;
    const char *end = NULL;
    if (n != 2 * GR_KEY_BYTES || sodium_hex2bin(key, sizeof(key), hex, n, NULL, &bytes, &end) != 0 ||
        bytes != GR_KEY_BYTES || end != hex + n) {
        log_error("%s: the shared key is %d hexadecimal digits", where, 2 * GR_KEY_BYTES);
        return GR_EINVAL;
    }
    memcpy(key_out, key, GR_KEY_BYTES);
    sodium_memzero(key, sizeof(key));
    return GR_OK;
}

enum gr_status gr_key_from_file(const char *path, uint8_t key_out[GR_KEY_BYTES])
{
    char text[128];
    struct stat sb;
    sodium_ready();
    int fd = gr_in_file_open(path);
    ssize_t n = fd < 0 || fstat(fd, &sb) != 0 ? -1 : gr_in_file_read(fd, text, sizeof(text));
    const int err = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (n < 0) {
        log_error("key file %s: %s", path, gr_in_file_error(err));
        return GR_EIO;
    }
    /* By ssh's rule: one of somebody else (root's, say) may be readable by a group. */
    if ((sb.st_mode & (sb.st_uid == geteuid() ? 077 : 007)) != 0) {
        log_error("key file %s has mode %04o, so others may read the shared key; chmod 600 %s", path,
                  (unsigned)sb.st_mode & 07777u, path);
        return GR_EINVAL;
    }
    while (n > 0 && strchr(" \t\r\n", text[n - 1]) != NULL) {
        n--;
    }
    enum gr_status st = key_from_hex(text, (size_t)n, path, key_out);
    sodium_memzero(text, sizeof(text));
    return st;
}

enum gr_status gr_key_make_file(const char *path)
{
    uint8_t key[GR_KEY_BYTES];
    char hex[2 * GR_KEY_BYTES + 1];
    struct gr_out_file o;
    GR_TRY(gr_key_random(key, hex));
    enum gr_status st = gr_out_file_open("--make-key", path, 0600, true, &o);
    if (st == GR_OK) {
        const bool whole = fprintf(o.f, "%s\n", hex) == (int)sizeof(hex);
        st = gr_out_file_close(&o, whole, NULL);
    }
    sodium_memzero(hex, sizeof(hex));
    sodium_memzero(key, sizeof(key));
    return st;
}

enum gr_status gr_key_from_env(uint8_t key_out[GR_KEY_BYTES])
{
    sodium_ready();
    const char *path = getenv("GRAFT_KEY_FILE");
    if (path != NULL && path[0] == '\0') {
        log_error("GRAFT_KEY_FILE is set and empty: it is to name the file of the shared key, or to be unset");
        return GR_EINVAL;
    }
    if (path != NULL) {
        return gr_key_from_file(path, key_out);
    }
    const char *hex = getenv("GRAFT_KEY");
    if (hex != NULL && hex[0] != '\0') {
        return key_from_hex(hex, strlen(hex), "GRAFT_KEY", key_out);
    }
    return GR_ENOTFOUND;
}

enum gr_status gr_key_random(uint8_t key_out[GR_KEY_BYTES], char hex_out[2 * GR_KEY_BYTES + 1])
{
    sodium_ready();
    randombytes_buf(key_out, GR_KEY_BYTES);
    sodium_bin2hex(hex_out, 2 * GR_KEY_BYTES + 1, key_out, GR_KEY_BYTES);
    return GR_OK;
}
