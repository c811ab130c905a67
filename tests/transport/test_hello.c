/* HELLO and PROOF, with a peer that is written here byte by byte from docs/protocol.md, by
 * msgpack-c. */
#include "tests/transport/pair.h"

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "transport/connect/hello.h"

#include <msgpack.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the peer is written here ---- */

struct lone {
    /* ours, in a thread */
    int self_fd, timeout_ms;
    struct gr_hello peer;
    enum gr_status st;
    pthread_t thread;
    int fd;                          /* the peer's end */
    uint8_t own[GR_HELLO_BYTES_MAX]; /* HELLO and proof that ours sent */
    uint32_t own_bytes;
    uint8_t proof[256];
};

static void *run_self(void *data)
{
    struct lone *l = data;
    struct gr_hello self = hello_of(GR_ROLE_TARGET);
    l->st = gr_hello_exchange(l->self_fd, &self, key_a, l->timeout_ms, &l->peer);
    return NULL;
}

static void put_record(int fd, const void *p, uint32_t n)
{
    uint8_t len[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
    assert_int_equal(send(fd, len, 4, MSG_NOSIGNAL), 4);
    assert_int_equal(send(fd, p, n, MSG_NOSIGNAL), (ssize_t)n);
}

static void get_exact(int fd, uint8_t *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = recv(fd, p + at, n - at, 0);
        assert_true(got > 0);
        at += (size_t)got;
    }
}

static uint32_t get_record(int fd, uint8_t *p, size_t cap)
{
    uint8_t len[4];
    get_exact(fd, len, 4);
    uint32_t n = len[0] | (uint32_t)len[1] << 8 | (uint32_t)len[2] << 16 | (uint32_t)len[3] << 24;
    assert_in_range(n, 1, cap);
    get_exact(fd, p, n);
    return n;
}

static void lone_start(struct lone *l, int timeout_ms)
{
    int fd[2];
    make_unix_sockets(fd);
    memset(l, 0, sizeof(*l));
    l->fd = fd[1];
    l->self_fd = fd[0];
    l->timeout_ms = timeout_ms;
    assert_int_equal(pthread_create(&l->thread, NULL, run_self, l), 0);
    l->own_bytes = get_record(l->fd, l->own, sizeof(l->own));
}

static void lone_expect(struct lone *l, enum gr_status st)
{
    pthread_join(l->thread, NULL);
    assert_int_equal(l->st, st);
    close(l->self_fd);
    close(l->fd);
}

/* The proof as docs/protocol.md has it, written apart from bootstrap.c. */
static void make_proof(const uint8_t *key, uint8_t role, const uint8_t *own, uint32_t n_own, const uint8_t *other,
                       uint32_t n_other, uint8_t out[45])
{
    static uint8_t text[2 * GR_HELLO_BYTES_MAX + 64];
    struct gr_writer w = {.p = text, .cap = sizeof(text)};
    memcpy(gr_write_bytes(&w, 13), "graft-hello-1", 13);
    gr_write_u8(&w, role);
    gr_write_u32(&w, n_own);
    memcpy(gr_write_bytes(&w, n_own), own, n_own);
    gr_write_u32(&w, n_other);
    memcpy(gr_write_bytes(&w, n_other), other, n_other);
    uint8_t mac[crypto_auth_BYTES];
    assert_int_equal(crypto_auth(mac, text, w.at, key), 0);
    msgpack_sbuffer buf;
    msgpack_sbuffer_init(&buf);
    msgpack_packer pk;
    msgpack_packer_init(&pk, &buf, msgpack_sbuffer_write);
    msgpack_pack_map(&pk, 2);
    msgpack_pack_str_with_body(&pk, "role", 4);
    msgpack_pack_uint8(&pk, role);
    msgpack_pack_str_with_body(&pk, "mac", 3);
    msgpack_pack_bin_with_body(&pk, mac, sizeof(mac));
    assert_int_equal(buf.size, 45);
    memcpy(out, buf.data, 45);
    msgpack_sbuffer_destroy(&buf);
}

/* Sends `hello` with a right proof for it. */
static void lone_answer(struct lone *l, const uint8_t *hello, uint32_t n, uint8_t role)
{
    uint8_t proof[45];
    put_record(l->fd, hello, n);
    assert_int_equal(get_record(l->fd, l->proof, sizeof(l->proof)), 45);
    make_proof(key_a, role, hello, n, l->own, l->own_bytes, proof);
    put_record(l->fd, proof, sizeof(proof));
}

/* A HELLO by msgpack-c, key by key: `skip` is left out, `extra` added, and `edit` replaces one
 * value. */
struct draft_hello {
    const char *skip, *extra, *twice;
    const char *edit;
    msgpack_object value;
    bool version_last;
};

static void pack_str(msgpack_packer *pk, const char *s)
{
    msgpack_pack_str_with_body(pk, s, strlen(s));
}

static void pack_pair(msgpack_packer *pk, const struct draft_hello *d, const char *key)
{
    static const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"version", GR_PROTOCOL_VERSION},
                   {"role", GR_ROLE_DRAFT},
                   {"incarnation", UINT64_MAX},
                   {"wanted", 0},
                   {"tokenizer", 11},
                   {"model", 5},
                   {"fc", 13},
                   {"n_vocab", 4096},
                   {"transports", 6},
                   {"feature_dtype", 2},
                   {"feature_width", 384},
                   {"feature_raw", 0},
                   {"small_bytes_max", 64},
                   {"bulk_bytes_max", 65536},
                   {"n_small_slot", 256},
                   {"n_bulk_slot", 8},
                   {"secrecy", 1}};
    pack_str(pk, key);
    if (d->edit != NULL && strcmp(d->edit, key) == 0) {
        msgpack_pack_object(pk, d->value);
        return;
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(numbers); i++) {
        if (strcmp(numbers[i].key, key) == 0) {
            msgpack_pack_uint64(pk, numbers[i].value);
            return;
        }
    }
    if (strcmp(key, "captures") == 0) {
        pack_str(pk, "2,4,7");
    } else if (strcmp(key, "cluster") == 0) {
        pack_str(pk, "");
    } else if (strcmp(key, "nonce") == 0 || strcmp(key, "exchange") == 0) {
        msgpack_pack_bin_with_body(pk, key_b, 32);
    } else {
        pack_str(pk, "text");
    }
}

static uint32_t pack_hello(const struct draft_hello *d, uint8_t *out, size_t cap)
{
    static const char *const keys[] = {
        "version",  "role",        "incarnation",     "wanted",         "cluster",       "tokenizer",     "model",
        "fc",       "numerics_id", "n_vocab",         "transports",     "feature_dtype", "feature_width", "feature_raw",
        "captures", "host_id",     "small_bytes_max", "bulk_bytes_max", "n_small_slot",  "n_bulk_slot",   "secrecy",
        "exchange", "nonce"};
    msgpack_sbuffer buf;
    msgpack_sbuffer_init(&buf);
    msgpack_packer pk;
    msgpack_packer_init(&pk, &buf, msgpack_sbuffer_write);
    size_t n_key = GR_ARRAY_LEN(keys);
    msgpack_pack_map(&pk, n_key - (d->skip != NULL) + (d->extra != NULL) + (d->twice != NULL));
    for (size_t i = 0; i < n_key; i++) {
        const char *key = keys[(i + (d->version_last ? 1 : 0)) % n_key];
        if (d->skip == NULL || strcmp(d->skip, key) != 0) {
            pack_pair(&pk, d, key);
        }
    }
    if (d->extra != NULL || d->twice != NULL) {
        pack_pair(&pk, d, d->extra != NULL ? d->extra : d->twice);
    }
    assert_true(buf.size <= cap);
    memcpy(out, buf.data, buf.size);
    uint32_t n = (uint32_t)buf.size;
    msgpack_sbuffer_destroy(&buf);
    return n;
}

static enum gr_status decode(const struct draft_hello *d)
{
    uint8_t bytes[2048];
    struct gr_hello h;
    uint32_t n = pack_hello(d, bytes, sizeof(bytes));
    enum gr_status st = gr_hello_decode(bytes, n, &h);
    if (st == GR_OK) {
        assert_true(h.incarnation == UINT64_MAX);
        assert_int_equal(h.limits.n_small_slot, 256);
        assert_string_equal(h.host_id, "text");
        assert_memory_equal(h.nonce, key_b, 32);
    }
    return st;
}

static msgpack_object number(uint64_t v)
{
    return (msgpack_object){.type = MSGPACK_OBJECT_POSITIVE_INTEGER, .via.u64 = v};
}

static msgpack_object text_of(const char *s, size_t n)
{
    return (msgpack_object){.type = MSGPACK_OBJECT_STR, .via.str = {.size = (uint32_t)n, .ptr = s}};
}

static msgpack_object bin_of(size_t n)
{
    return (msgpack_object){.type = MSGPACK_OBJECT_BIN, .via.bin = {.size = (uint32_t)n, .ptr = (const char *)key_a}};
}

static void test_schema(void **state)
{
    (void)state;
    static const char *const keys[] = {"role",     "incarnation", "numerics_id", "transports", "feature_raw",
                                       "captures", "host_id",     "n_bulk_slot", "nonce"};
    assert_int_equal(decode(&(struct draft_hello){0}), GR_OK);
    for (size_t i = 0; i < GR_ARRAY_LEN(keys); i++) {
        assert_int_equal(decode(&(struct draft_hello){.skip = keys[i]}), GR_EPROTO);
        assert_int_equal(decode(&(struct draft_hello){.twice = keys[i]}), GR_EPROTO);
        /* A value of no key's type. */
        assert_int_equal(decode(&(struct draft_hello){.edit = keys[i], .value = {.type = MSGPACK_OBJECT_NIL}}),
                         GR_EPROTO);
        assert_int_equal(decode(&(struct draft_hello){.edit = keys[i], .value = {.type = MSGPACK_OBJECT_ARRAY}}),
                         GR_EPROTO);
    }
    assert_int_equal(decode(&(struct draft_hello){.skip = "version"}), GR_EPROTO);
    assert_int_equal(decode(&(struct draft_hello){.version_last = true}), GR_EPROTO);
    assert_int_equal(decode(&(struct draft_hello){.extra = "colour"}), GR_EPROTO);
    assert_int_equal(decode(&(struct draft_hello){.extra = "bad\nkey"}), GR_EPROTO);
    assert_int_equal(decode(&(struct draft_hello){.extra = ""}), GR_EPROTO);
    assert_int_equal(
        decode(&(struct draft_hello){.edit = "version", .value = number(GR_PROTOCOL_VERSION + 1), .extra = "new"}),
        GR_EMISMATCH);
}

static void test_schema_bounds(void **state)
{
    (void)state;
    static const char longest[97] = "................................................"
                                    "................................................";
    const struct {
        const char *key;
        msgpack_object value;
        enum gr_status st;
    } cases[] = {
        {"role", number(0), GR_EPROTO},
        {"role", number(9), GR_EPROTO},
        {"n_vocab", number(1u << 24), GR_OK},
        {"n_vocab", number((1u << 24) + 1), GR_EPROTO},
        {"n_vocab", number((1ull << 32) + 4096), GR_EPROTO}, /* must not be cut to 32 bits */
        {"feature_dtype", number(3), GR_EPROTO},
        {"feature_raw", number(2), GR_EPROTO},
        {"feature_width", number((1u << 20) + 1), GR_EPROTO},
        {"small_bytes_max", number(63), GR_EPROTO},
        {"small_bytes_max", number((1u << 20) + 1), GR_EPROTO},
        {"bulk_bytes_max", number((16u << 20) + 1), GR_EPROTO},
        {"n_bulk_slot", number(65), GR_EPROTO},
        {"n_bulk_slot", number(65536), GR_EPROTO},
        {"cluster", text_of(longest, 63), GR_OK},
        {"cluster", text_of(longest, 64), GR_EPROTO},
        {"captures", text_of(longest, 31), GR_OK},
        {"captures", text_of(longest, 32), GR_EPROTO},
        {"numerics_id", text_of(longest, 95), GR_OK},
        {"numerics_id", text_of(longest, 96), GR_EPROTO},
        {"numerics_id", text_of("a\0b", 3), GR_EPROTO},
        {"numerics_id", text_of("\x1b[2J", 4), GR_EPROTO},
        {"numerics_id", bin_of(3), GR_EPROTO},
        {"nonce", bin_of(31), GR_EPROTO},
        {"nonce", text_of(longest, 32), GR_EPROTO},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        enum gr_status st = decode(&(struct draft_hello){.edit = cases[i].key, .value = cases[i].value});
        if (st != cases[i].st) {
            fail_msg("case %zu, %s: %s", i, cases[i].key, gr_status_text(st));
        }
    }
}

/* Cut anywhere, a byte longer, any single byte changed: an answer, never a read past the end
 * (ASan). */
static void test_decode_truncated(void **state)
{
    (void)state;
    uint8_t bytes[1024];
    struct gr_hello h;
    uint32_t n = pack_hello(&(struct draft_hello){0}, bytes, sizeof(bytes));
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *cut = malloc(i + 1);
        memcpy(cut, bytes, i);
        assert_int_equal(gr_hello_decode(cut, i, &h), GR_EPROTO);
        free(cut);
    }
    bytes[n] = 0;
    assert_int_equal(gr_hello_decode(bytes, n + 1, &h), GR_EPROTO);
    /* A map that claims more pairs than there are bytes. */
    static const uint8_t big_map[] = {0xdf, 0xff, 0xff, 0xff, 0xff};
    assert_int_equal(gr_hello_decode(big_map, sizeof(big_map), &h), GR_EPROTO);
    static const uint8_t big_key[] = {0x81, 0xdb, 0xff, 0xff, 0xff, 0xff, 'x'};
    assert_int_equal(gr_hello_decode(big_key, sizeof(big_key), &h), GR_EPROTO);
}

static void test_answered_by_hand(void **state)
{
    (void)state;
    struct lone l;
    uint8_t bytes[1024], proof[45];
    lone_start(&l, WAIT_MS);
    uint32_t n = pack_hello(&(struct draft_hello){0}, bytes, sizeof(bytes));
    lone_answer(&l, bytes, n, GR_ROLE_DRAFT);
    /* Its proof is the documented one, too. */
    make_proof(key_a, GR_ROLE_TARGET, l.own, l.own_bytes, bytes, n, proof);
    assert_memory_equal(l.proof, proof, sizeof(proof));
    lone_expect(&l, GR_OK);
    assert_string_equal(l.peer.numerics_id, "text");

    lone_start(&l, WAIT_MS);
    n = pack_hello(&(struct draft_hello){.extra = "colour"}, bytes, sizeof(bytes));
    lone_answer(&l, bytes, n, GR_ROLE_DRAFT);
    lone_expect(&l, GR_EPROTO);

    /* Proved as an orchestrator, says it is a drafter. */
    lone_start(&l, WAIT_MS);
    n = pack_hello(&(struct draft_hello){0}, bytes, sizeof(bytes));
    lone_answer(&l, bytes, n, GR_ROLE_ORCHESTRATOR);
    lone_expect(&l, GR_EPROTO);
}

/* Everything it sends comes back to it; and its proof comes back after another HELLO. */
static void test_reflected_proof(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct lone l;
        uint8_t bytes[1024];
        lone_start(&l, WAIT_MS);
        uint32_t n = pack_hello(&(struct draft_hello){0}, bytes, sizeof(bytes));
        if (i == 0) {
            put_record(l.fd, l.own, l.own_bytes);
        } else {
            put_record(l.fd, bytes, n);
        }
        assert_int_equal(get_record(l.fd, l.proof, sizeof(l.proof)), 45);
        put_record(l.fd, l.proof, 45);
        lone_expect(&l, GR_EAUTH);
    }
}

/* A right proof with one bit changed, anywhere; the HELLO after it is nonsense and must not be
 * looked at. */
static void test_wrong_proof(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 45; i++) {
        struct lone l;
        uint8_t proof[45];
        static const uint8_t nonsense[] = {0xc1, 0xc1, 0xc1};
        lone_start(&l, WAIT_MS);
        put_record(l.fd, nonsense, sizeof(nonsense));
        assert_int_equal(get_record(l.fd, l.proof, sizeof(l.proof)), 45);
        make_proof(key_a, GR_ROLE_DRAFT, nonsense, sizeof(nonsense), l.own, l.own_bytes, proof);
        proof[i] ^= 1;
        put_record(l.fd, proof, sizeof(proof));
        lone_expect(&l, GR_EAUTH);
    }
    /* A proof for an older HELLO of ours (a replay): the nonce differs. */
    struct lone l;
    uint8_t bytes[1024], proof[45], old[1024];
    lone_start(&l, WAIT_MS);
    uint32_t n = pack_hello(&(struct draft_hello){0}, bytes, sizeof(bytes));
    memcpy(old, l.own, l.own_bytes);
    old[l.own_bytes - 1] ^= 1;
    put_record(l.fd, bytes, n);
    make_proof(key_a, GR_ROLE_DRAFT, bytes, n, old, l.own_bytes, proof);
    put_record(l.fd, proof, sizeof(proof));
    lone_expect(&l, GR_EAUTH);
}

static void test_record_sizes(void **state)
{
    (void)state;
    static const struct {
        uint32_t claimed, sent;
        enum gr_status st;
    } cases[] = {
        {0, 0, GR_EPROTO}, {GR_HELLO_BYTES_MAX + 1, 0, GR_EPROTO}, {UINT32_MAX, 0, GR_EPROTO}, {100, 99, GR_ECLOSED}};
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        struct lone l;
        uint8_t bytes[200] = {0};
        lone_start(&l, WAIT_MS);
        struct gr_writer w = {.p = bytes, .cap = sizeof(bytes)};
        gr_write_u32(&w, cases[i].claimed);
        ssize_t n = 4 + cases[i].sent;
        assert_int_equal(send(l.fd, bytes, (size_t)n, MSG_NOSIGNAL), n);
        shutdown(l.fd, SHUT_WR);
        lone_expect(&l, cases[i].st);
    }
    /* The largest record is read (and refused for its proof). */
    struct lone l;
    static uint8_t largest[GR_HELLO_BYTES_MAX];
    lone_start(&l, WAIT_MS);
    put_record(l.fd, largest, sizeof(largest));
    assert_int_equal(get_record(l.fd, l.proof, sizeof(l.proof)), 45);
    put_record(l.fd, largest, 45);
    lone_expect(&l, GR_EAUTH);
}

/* Says nothing (0), two bytes of a length (1) or a whole HELLO (2), and then no more. */
static void silent_after(int said)
{
    struct lone l;
    uint8_t bytes[1024];
    lone_start(&l, 100);
    if (said == 1) {
        assert_int_equal(send(l.fd, "\1\0", 2, MSG_NOSIGNAL), 2);
    } else if (said == 2) {
        put_record(l.fd, bytes, pack_hello(&(struct draft_hello){0}, bytes, sizeof(bytes)));
    }
    lone_expect(&l, GR_ETIMEDOUT);
}

/* Silent from the start, after two bytes of a length, after HELLO: given up at the deadline, not
 * before, not late. */
static void test_silence(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        uint64_t start = gr_clock_ns();
        char text[1024];
        CAPTURE_STDERR(text, sizeof(text), silent_after(i));
        assert_int_equal(strstr(text, "an orchestrator's is at its --control") != NULL, i == 0);
        uint64_t took = gr_clock_ns() - start;
        assert_true(took >= 100 * GR_MS);
        assert_true(took < WAIT_MS * GR_MS);
    }
}

static void http_is_refused(const char *words)
{
    struct lone l;
    lone_start(&l, WAIT_MS);
    assert_true(send(l.fd, words, strlen(words), MSG_NOSIGNAL) > 0);
    lone_expect(&l, GR_EUNSUPPORTED);
}

/* What an HTTP server says to a HELLO, and a browser to a control port (which the gate tells more softly). */
static void test_http(void **state)
{
    (void)state;
    static const char *const words[] = {"HTTP/1.1 400 Bad Request", "GET / HTTP/1.1", "POST /v1/completions"};
    for (size_t i = 0; i < GR_ARRAY_LEN(words); i++) {
        char text[1024];
        CAPTURE_STDERR(text, sizeof(text), http_is_refused(words[i]));
        assert_non_null(strstr(text, "an HTTP server answers there"));
    }
}

static void test_own_field_out_of_range(void **state)
{
    (void)state;
    int fd[2];
    make_unix_sockets(fd);
    struct gr_hello self = hello_of(GR_ROLE_DRAFT), peer;
    self.limits.n_small_slot = 1;
    assert_int_equal(gr_hello_exchange(fd[0], &self, key_a, WAIT_MS, &peer), GR_EINVAL);
    self = hello_of(GR_ROLE_DRAFT);
    memset(self.host_id, 'h', sizeof(self.host_id)); /* no NUL */
    assert_int_equal(gr_hello_exchange(fd[0], &self, key_a, WAIT_MS, &peer), GR_EINVAL);
    self = hello_of(GR_ROLE_DRAFT);
    strcpy(self.numerics_id, "two\nlines");
    assert_int_equal(gr_hello_exchange(fd[0], &self, key_a, WAIT_MS, &peer), GR_EINVAL);
    close(fd[0]);
    close(fd[1]);
}

static void test_messages_name_the_key(void **state)
{
    (void)state;
    char text[1024];
    enum gr_status st;
    CAPTURE_STDERR(text, sizeof(text), st = decode(&(struct draft_hello){.skip = "n_vocab"}));
    assert_int_equal(st, GR_EPROTO);
    assert_non_null(strstr(text, "`n_vocab' is missing"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
    CAPTURE_STDERR(text, sizeof(text), st = decode(&(struct draft_hello){.extra = "colour"}));
    assert_non_null(strstr(text, "unknown key `colour'"));
    assert_int_equal(st, GR_EPROTO);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http),
        cmocka_unit_test(test_own_field_out_of_range),
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_schema_bounds),
        cmocka_unit_test(test_decode_truncated),
        cmocka_unit_test(test_answered_by_hand),
        cmocka_unit_test(test_reflected_proof),
        cmocka_unit_test(test_wrong_proof),
        cmocka_unit_test(test_record_sizes),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_messages_name_the_key),
    };
    gr_log_init("test_hello");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
