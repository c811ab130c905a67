/* From socket to connection: HELLO, proof, choice, addresses, keys. One side runs in a thread;
 * where the peer is hostile it is written here byte by byte. */
#include "tests/transport/pair.h"

#include "common/base/address.h"
#include "common/base/log.h"
#include "transport/connect/hello.h"
#include "transport/impl.h"
#include "transport/net.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- both sides are ours ---- */

struct side {
    int fd;
    bool initiator, whole; /* whole: gr_bootstrap, else gr_hello_exchange */
    struct gr_hello self, peer;
    const uint8_t *key;
    int forced, timeout_ms;
    struct gr_conn *conn;
    enum gr_status st;
};

static void *run_side(void *data)
{
    struct side *s = data;
    if (s->whole) {
        const struct gr_bootstrap_options o = {.initiator = s->initiator,
                                               .forced = s->forced,
                                               .generation = 3,
                                               .timeout_ms = s->timeout_ms,
                                               .key = s->key};
        s->st = gr_bootstrap(s->fd, &s->self, &o, &s->peer, &s->conn);
    } else {
        s->st = gr_hello_exchange(s->fd, &s->self, s->key, s->timeout_ms, &s->peer);
    }
    return NULL;
}

struct both {
    struct side side[2];
};

static void both_init(struct both *b, bool tcp)
{
    int fd[2];
    if (tcp) {
        make_tcp_sockets(fd);
    } else {
        make_unix_sockets(fd);
    }
    memset(b, 0, sizeof(*b));
    for (int i = 0; i < 2; i++) {
        b->side[i] = (struct side){.fd = fd[i],
                                   .initiator = i == 0,
                                   .key = key_a,
                                   .forced = -1,
                                   .timeout_ms = WAIT_MS,
                                   .self = hello_of(i == 0 ? GR_ROLE_DRAFT : GR_ROLE_TARGET)};
    }
}

static void both_run(struct both *b)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_side, &b->side[1]), 0);
    run_side(&b->side[0]);
    pthread_join(thread, NULL);
}

static void both_finish(struct both *b)
{
    for (int i = 0; i < 2; i++) {
        if (b->side[i].conn != NULL) {
            gr_conn_close(b->side[i].conn);
        } else {
            close(b->side[i].fd);
        }
    }
}

static void both_expect(struct both *b, enum gr_status st)
{
    both_run(b);
    assert_int_equal(b->side[0].st, st);
    assert_int_equal(b->side[1].st, st);
    both_finish(b);
}

/* Bytes between fields may be any. */
static void assert_same_hello(const struct gr_hello *a, const struct gr_hello *b)
{
    uint8_t record[2][GR_HELLO_BYTES_MAX];
    size_t n[2];
    assert_int_equal(gr_hello_encode(a, record[0], sizeof(record[0]), &n[0]), GR_OK);
    assert_int_equal(gr_hello_encode(b, record[1], sizeof(record[1]), &n[1]), GR_OK);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(record[0], record[1], n[0]);
}

static void test_hello_ok(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        struct both b;
        both_init(&b, tcp != 0);
        memset(b.side[0].self.numerics_id, 'x', 95);
        both_run(&b);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(b.side[i].st, GR_OK);
            struct gr_hello got = b.side[i].peer, sent = b.side[1 - i].self;
            static const uint8_t no_nonce[32];
            assert_memory_not_equal(got.nonce, no_nonce, 32);
            memcpy(sent.nonce, got.nonce, 32);
            assert_same_hello(&got, &sent);
        }
        assert_memory_not_equal(b.side[0].peer.nonce, b.side[1].peer.nonce, 32);
        both_finish(&b);
    }
}

static void test_wrong_key(void **state)
{
    (void)state;
    struct both b;
    both_init(&b, false);
    b.side[0].key = key_b;
    b.side[1].self.version = 77; /* must not come up before the key */
    both_expect(&b, GR_EAUTH);
}

static void test_mismatches(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct both b;
        both_init(&b, false);
        struct gr_hello *h = &b.side[0].self;
        switch (i) {
        case 0:
            h->role = GR_ROLE_TARGET; /* both */
            break;
        case 1:
            h->tokenizer_fingerprint++;
            break;
        case 2:
            h->fc_fingerprint++;
            break;
        case 3:
            h->n_vocab++;
            break;
        case 4:
            h->feature_dtype = GR_DTYPE_F32;
            break;
        case 5:
            h->feature_width++;
            break;
        case 6:
            h->feature_raw = 1;
            break;
        case 7:
            h->version = GR_PROTOCOL_VERSION + 1;
            break;
        case 8:
            h->captures[0]++;
            break;
        case 9:
            h->wanted = b.side[1].self.incarnation + 1;
            break;
        case 10:
            strcpy(h->cluster, "job-1");
            strcpy(b.side[1].self.cluster, "job-2");
            break;
        default:
            h->version = 0;
            break;
        }
        both_expect(&b, GR_EMISMATCH);
    }
}

/* A client fits an orchestrator, and nobody else. */
static void test_clients(void **state)
{
    (void)state;
    for (uint32_t role = GR_ROLE_ORCHESTRATOR; role <= GR_ROLE_MEMBER; role++) {
        struct both b;
        both_init(&b, false);
        b.side[0].self.role = GR_ROLE_CLIENT;
        b.side[1].self.role = role;
        both_expect(&b, role == GR_ROLE_ORCHESTRATOR ? GR_OK : GR_EMISMATCH);
    }
}

static void fit_each_other_alone(uint32_t listens, uint32_t comes)
{
    for (uint32_t role = GR_ROLE_ORCHESTRATOR; role <= GR_ROLE_MEMBER; role++) {
        struct both b;
        both_init(&b, false);
        b.side[0].self.role = comes;
        b.side[1].self.role = role;
        both_expect(&b, role == listens ? GR_OK : GR_EMISMATCH);
        both_init(&b, false);
        b.side[0].self.role = listens;
        b.side[1].self.role = role;
        both_expect(&b, role == comes ? GR_OK : GR_EMISMATCH);
    }
}

/* The two ends of a rendezvous fit each other, and nobody else. */
static void test_ranks_of_a_job(void **state)
{
    (void)state;
    fit_each_other_alone(GR_ROLE_LEAD, GR_ROLE_RANK);
}

/* So do those of a tensor-parallel group. */
static void test_members_of_a_group(void **state)
{
    (void)state;
    fit_each_other_alone(GR_ROLE_HOST, GR_ROLE_MEMBER);
}

/* What is not announced is not compared; an orchestrator has neither vocabulary nor features. */
static void test_unset_fits(void **state)
{
    (void)state;
    struct both b;
    both_init(&b, false);
    struct gr_hello *h = &b.side[0].self;
    h->tokenizer_fingerprint = 0;
    h->fc_fingerprint = 0;
    h->n_vocab = 0;
    h->feature_width = 0;
    h->feature_raw = 1;
    both_expect(&b, GR_OK);
    both_init(&b, false); /* one that says no cluster is of any; the one that is looked for is there */
    strcpy(b.side[0].self.cluster, "job-1");
    b.side[0].self.wanted = b.side[1].self.incarnation;
    both_expect(&b, GR_OK);
    both_init(&b, false); /* a head whose target serves none would never draft */
    b.side[1].self.feature_width = 0;
    both_expect(&b, GR_EMISMATCH);
    both_init(&b, false); /* nor would one whose features find no slot that holds a frame of them */
    b.side[1].self.limits.bulk_bytes_max = 2 * b.side[1].self.feature_width * 32;
    both_expect(&b, GR_EMISMATCH);
    both_init(&b, false);
    b.side[0].self.role = GR_ROLE_ORCHESTRATOR;
    b.side[0].self.n_vocab = 1;
    b.side[0].self.feature_width = 1;
    both_expect(&b, GR_OK);
}

/* ---- choice and the whole bootstrap ---- */

static void test_choose(void **state)
{
    (void)state;
    struct gr_hello a = hello_of(GR_ROLE_DRAFT), b = hello_of(GR_ROLE_TARGET);
    enum gr_transport_kind kind = GR_N_TRANSPORT;
    a.transport_mask = b.transport_mask = 0xf;
    assert_int_equal(gr_transport_choose(&a, &b, -1, &kind), GR_OK);
    assert_int_equal(kind, GR_TRANSPORT_SHM);
    assert_int_equal(gr_transport_choose(&a, &b, GR_TRANSPORT_TCP, &kind), GR_OK);
    assert_int_equal(kind, GR_TRANSPORT_TCP);
    assert_int_equal(gr_transport_choose(&a, &b, GR_TRANSPORT_LOOP, &kind), GR_EMISMATCH);
    assert_int_equal(gr_transport_choose(&a, &b, GR_TRANSPORT_VERBS, &kind),
                     (gr_transport_built_mask() & 1u << GR_TRANSPORT_VERBS) != 0 ? GR_OK : GR_EMISMATCH);
    b.transport_mask = 1u << GR_TRANSPORT_TCP;
    assert_int_equal(gr_transport_choose(&a, &b, -1, &kind), GR_OK);
    assert_int_equal(kind, GR_TRANSPORT_TCP);
    assert_int_equal(gr_transport_choose(&a, &b, GR_TRANSPORT_SHM, &kind), GR_EMISMATCH);
    a.transport_mask = 1u << GR_TRANSPORT_SHM;
    assert_int_equal(gr_transport_choose(&a, &b, -1, &kind), GR_EMISMATCH);
    /* shm only on one host; an empty host id is nobody's */
    b.transport_mask = 1u << GR_TRANSPORT_SHM;
    assert_int_equal(gr_transport_choose(&a, &b, -1, &kind), GR_OK);
    b.host_id[0] ^= 1;
    assert_int_equal(gr_transport_choose(&a, &b, -1, &kind), GR_EMISMATCH);
    a.host_id[0] = b.host_id[0] = '\0';
    assert_int_equal(gr_transport_choose(&a, &b, -1, &kind), GR_EMISMATCH);
}

static void test_names(void **state)
{
    (void)state;
    for (int i = 0; i < GR_N_TRANSPORT; i++) {
        enum gr_transport_kind kind;
        assert_int_equal(gr_transport_by_name(gr_transport_name(i), &kind), GR_OK);
        assert_int_equal(kind, i);
    }
    enum gr_transport_kind kind;
    assert_int_equal(gr_transport_by_name("carrier-pigeon", &kind), GR_ENOTFOUND);
    assert_int_equal(gr_transport_built_mask() & 7, 7);
}

static void test_limits_agree(void **state)
{
    (void)state;
    struct gr_conn_limits a = {.small_bytes_max = 100, .bulk_bytes_max = 9, .n_small_slot = 2, .n_bulk_slot = 5};
    struct gr_conn_limits b = {.small_bytes_max = 200, .bulk_bytes_max = 8, .n_small_slot = 3, .n_bulk_slot = 4};
    struct gr_conn_limits out;
    gr_limits_agree(&a, &b, &out);
    assert_int_equal(out.small_bytes_max, 100);
    assert_int_equal(out.bulk_bytes_max, 8);
    assert_int_equal(out.n_small_slot, 2);
    assert_int_equal(out.n_bulk_slot, 4);
    b.n_bulk_slot = 0; /* no bulk on one side: none at all */
    gr_limits_agree(&a, &b, &out);
    assert_int_equal(out.bulk_bytes_max, 0);
    assert_int_equal(out.n_bulk_slot, 0);
    assert_int_equal(gr_limits_check(&out), GR_OK);
}

static void expect_bootstrap(struct both *b, const char *name)
{
    b->side[0].whole = b->side[1].whole = true;
    both_run(b);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(b->side[i].st, GR_OK);
        assert_string_equal(b->side[i].conn->ops->name, name);
        assert_int_equal(b->side[i].conn->conn_generation, 3);
        assert_int_equal(b->side[i].peer.role, b->side[1 - i].self.role);
        assert_int_equal(b->side[i].conn->limits.n_small_slot, 5);
    }
    send_filled(b->side[0].conn, GR_FRAME_SMALL, 77, 1);
    expect_filled(b->side[0].conn, b->side[1].conn, GR_FRAME_SMALL, 77, 1);
    send_filled(b->side[1].conn, GR_FRAME_BULK, 7777, 2);
    expect_filled(b->side[1].conn, b->side[0].conn, GR_FRAME_BULK, 7777, 2);
    both_finish(b);
}

static void test_bootstrap(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct both b;
        both_init(&b, true);
        b.side[1].self.limits.n_small_slot = 5;
        if (i == 1) {
            b.side[0].self.host_id[3] ^= 1; /* two hosts */
        } else if (i == 2) {
            b.side[1].forced = GR_TRANSPORT_TCP; /* by one side only */
        } else if (i == 3) {
            b.side[0].self.transport_mask = 1u << GR_TRANSPORT_TCP;
        }
        expect_bootstrap(&b, i == 0 ? "shm" : "tcp");
    }
}

static void test_bootstrap_refused(void **state)
{
    (void)state;
    struct both b;
    both_init(&b, true);
    b.side[0].forced = GR_TRANSPORT_SHM;
    b.side[1].forced = GR_TRANSPORT_TCP;
    b.side[0].whole = b.side[1].whole = true;
    both_expect(&b, GR_EMISMATCH);
    both_init(&b, true);
    b.side[1].key = key_b;
    b.side[0].whole = b.side[1].whole = true;
    both_expect(&b, GR_EAUTH);
}

/* No room in /dev/shm (here: files may not be that long): both sides go on over tcp. */
static void test_bootstrap_falls_back(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        /* posix_fallocate then says EFBIG */
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096}) != 0) {
            _exit(3);
        }
        struct both b;
        both_init(&b, true);
        b.side[0].whole = b.side[1].whole = true;
        both_run(&b);
        bool ok = b.side[0].st == GR_OK && b.side[1].st == GR_OK && strcmp(b.side[0].conn->ops->name, "tcp") == 0 &&
                  strcmp(b.side[1].conn->ops->name, "tcp") == 0;
        both_finish(&b);
        both_init(&b, true); /* forced: an error, on both sides */
        b.side[0].whole = b.side[1].whole = true;
        b.side[0].forced = b.side[1].forced = GR_TRANSPORT_SHM;
        both_run(&b);
        ok = ok && b.side[0].st == GR_EUNSUPPORTED && b.side[1].st == GR_EUNSUPPORTED;
        _exit(ok ? 0 : 2);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- host id, addresses, keys ---- */

static void test_host_id(void **state)
{
    (void)state;
    char a[48], b[48];
    memset(a, 'x', sizeof(a));
    gr_machine_id(a);
    gr_machine_id(b);
    assert_in_range(strnlen(a, 48), 16, 47);
    assert_string_equal(a, b);
    assert_true(gr_host_id(a));
    assert_string_not_equal(a, b);
    assert_true(gr_host_id(b));
    assert_in_range(strnlen(a, 48), 16, 47);
    assert_string_equal(a, b);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)gr_host_id(a); /* another process of this host */
        _exit(write(ends[1], a, sizeof(a)) != (ssize_t)sizeof(a));
    }
    assert_int_equal(read(ends[0], a, sizeof(a)), (ssize_t)sizeof(a));
    waitpid(pid, NULL, 0);
    assert_string_equal(a, b);
    close(ends[0]);
    close(ends[1]);
}

static void test_messages_name_the_values(void **state)
{
    (void)state;
    char text[1024];
    struct gr_hello a = hello_of(GR_ROLE_DRAFT), b = hello_of(GR_ROLE_TARGET);
    b.n_vocab = 5000;
    enum gr_status st;
    CAPTURE_STDERR(text, sizeof(text), st = gr_hello_compare(&a, &b));
    assert_int_equal(st, GR_EMISMATCH);
    assert_non_null(strstr(text, "vocabulary size"));
    assert_non_null(strstr(text, "4096"));
    assert_non_null(strstr(text, "5000"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
}

static void test_port_in_use(void **state)
{
    (void)state;
    int fd, second = -1;
    char bound[64], again[64], text[1024];
    assert_int_equal(gr_tcp_listen("127.0.0.1:0", &fd, bound), GR_OK);
    assert_int_equal(strncmp(bound, "127.0.0.1:", 10), 0);
    assert_true(atoi(bound + 10) > 0);
    enum gr_status st;
    CAPTURE_STDERR(text, sizeof(text), st = gr_tcp_listen(bound, &second, again));
    assert_int_equal(st, GR_EIO);
    assert_int_equal(second, -1);
    assert_non_null(strstr(text, bound));
    assert_non_null(strstr(text, "port in use"));
    close(fd);
    /* Nobody listens there now. */
    CAPTURE_STDERR(text, sizeof(text), st = gr_tcp_connect(bound, WAIT_MS, &second));
    assert_int_equal(st, GR_EIO);
    assert_non_null(strstr(text, bound));
}

static void test_address_parts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        uint16_t port;
    } good[] = {{"127.0.0.1:65535", "127.0.0.1", 65535},
                {"localhost:1", "localhost", 1},
                {"[::1]:5055", "::1", 5055},
                {":0", "", 0},
                {"*:00080", "*", 80}};
    for (size_t i = 0; i < GR_ARRAY_LEN(good); i++) {
        struct gr_address a;
        assert_int_equal(gr_address_parse("test", good[i].text, 0, &a), GR_OK);
        assert_string_equal(a.host, good[i].host);
        assert_int_equal(a.port, good[i].port);
    }
    char longest[300];
    struct gr_address a = {.port = 7};
    memset(longest, 'a', sizeof(longest));
    memcpy(longest + 256, ":80", 4); /* one more than a name may have */
    assert_int_equal(gr_address_parse("test", longest, 0, &a), GR_EINVAL);
    assert_int_equal(a.port, 7);
    assert_int_equal(gr_address_parse("test", longest + 1, 0, &a), GR_OK);
}

static void test_addresses(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "localhost",
                                      "127.0.0.1:",
                                      ":http",
                                      "127.0.0.1:123456",
                                      "127.0.0.1:-1",
                                      "127.0.0.1:65536",
                                      "127.0.0.1:70591",
                                      ":70591",
                                      "*:99999",
                                      "[::1]:70000",
                                      "127.0.0.1:12x",
                                      "127.0.0.1:+5",
                                      "127.0.0.1: 5",
                                      "127.0.0.1:000080",
                                      "127.0.0.1:18446744073709551617",
                                      "::1:5055",
                                      "[::1:5055",
                                      "::1]:5055",
                                      "[]:5055",
                                      "[::1]",
                                      "[::1]x:5055"};
    int fd;
    char bound[64], text[512];
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        enum gr_status st;
        CAPTURE_STDERR(text, sizeof(text), st = gr_tcp_connect(bad[i], 100, &fd));
        assert_int_equal(st, GR_EINVAL);
        assert_non_null(strstr(text, "a port from 1 to 65535"));
        CAPTURE_STDERR(text, sizeof(text), st = gr_tcp_listen(bad[i], &fd, bound));
        assert_int_equal(st, GR_EINVAL);
        assert_non_null(strstr(text, "a port from 0 to 65535"));
        assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
    }
    assert_int_equal(gr_tcp_connect("127.0.0.1:0", 100, &fd), GR_EINVAL); /* only who listens may leave it open */
    assert_int_equal(gr_tcp_listen("*:0", &fd, bound), GR_OK);
    assert_true(strncmp(bound, "[::]:", 5) == 0 || strncmp(bound, "0.0.0.0:", 8) == 0); /* where there is no IPv6 */
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    close(fd);
    int ends[2];
    make_tcp_sockets(ends);
    for (int i = 0; i < 2; i++) {
        assert_true((fcntl(ends[i], F_GETFD) & FD_CLOEXEC) != 0);
        assert_int_equal(fcntl(ends[i], F_GETFL) & O_NONBLOCK, 0);
        close(ends[i]);
    }
}

static void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void test_keys(void **state)
{
    (void)state;
    uint8_t key[GR_KEY_BYTES], from_env[GR_KEY_BYTES], other[GR_KEY_BYTES];
    char hex[2 * GR_KEY_BYTES + 1], hex_other[2 * GR_KEY_BYTES + 1];
    unsetenv("GRAFT_KEY");
    unsetenv("GRAFT_KEY_FILE");
    assert_int_equal(gr_key_from_env(key), GR_ENOTFOUND);
    assert_int_equal(gr_key_random(key, hex), GR_OK);
    assert_int_equal(gr_key_random(other, hex_other), GR_OK);
    assert_memory_not_equal(key, other, GR_KEY_BYTES);
    setenv("GRAFT_KEY", hex, 1);
    assert_int_equal(gr_key_from_env(from_env), GR_OK);
    assert_memory_equal(key, from_env, GR_KEY_BYTES);
    static const char *const bad[] = {"00", "zz", "0x00"};
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        setenv("GRAFT_KEY", bad[i], 1);
        assert_int_equal(gr_key_from_env(from_env), GR_EINVAL);
    }
    hex[63] = 'g';
    setenv("GRAFT_KEY", hex, 1);
    assert_int_equal(gr_key_from_env(from_env), GR_EINVAL);
    /* The file goes before the variable; a file that cannot be read is an error, not a reason to go
     * on. */
    char path[] = "/tmp/graft-key-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    char line[80];
    strcpy(stpcpy(line, hex_other), "\n");
    write_file(path, line, 0600);
    setenv("GRAFT_KEY_FILE", path, 1);
    assert_int_equal(gr_key_from_env(from_env), GR_OK);
    assert_memory_equal(other, from_env, GR_KEY_BYTES);
    write_file(path, "nonsense", 0600);
    assert_int_equal(gr_key_from_env(from_env), GR_EINVAL);
    write_file(path, line, 0600);
    assert_int_equal(chmod(path, 0640), 0); /* others may read it: refused, not warned about */
    assert_int_equal(gr_key_from_env(from_env), GR_EINVAL);
    /* One that was handed out, as a service manager does: its owner is another. */
    if (geteuid() == 0 && chown(path, 1, (gid_t)-1) == 0) {
        assert_int_equal(gr_key_from_env(from_env), GR_OK);
        assert_int_equal(chmod(path, 0604), 0);
        assert_int_equal(gr_key_from_env(from_env), GR_EINVAL);
    }
    assert_int_equal(gr_key_make_file(path), GR_EIO); /* never over a file that is there */
    unlink(path);
    assert_int_equal(gr_key_from_env(from_env), GR_EIO);
    assert_int_equal(gr_key_make_file(path), GR_OK);
    assert_int_equal(gr_key_from_env(from_env), GR_OK);
    assert_memory_not_equal(other, from_env, GR_KEY_BYTES);
    unlink(path);
    unsetenv("GRAFT_KEY");
    unsetenv("GRAFT_KEY_FILE");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bootstrap_falls_back), /* first: it forks, before there are threads */
        cmocka_unit_test(test_host_id),
        cmocka_unit_test(test_hello_ok),
        cmocka_unit_test(test_wrong_key),
        cmocka_unit_test(test_mismatches),
        cmocka_unit_test(test_clients),
        cmocka_unit_test(test_ranks_of_a_job),
        cmocka_unit_test(test_members_of_a_group),
        cmocka_unit_test(test_unset_fits),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_limits_agree),
        cmocka_unit_test(test_bootstrap),
        cmocka_unit_test(test_bootstrap_refused),
        cmocka_unit_test(test_messages_name_the_values),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_address_parts),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_keys),
    };
    gr_log_init("test_bootstrap");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
