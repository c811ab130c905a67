/* Connecting by lists, names and files, listening on ranges and on all addresses, and what others are told of it. */
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/unit/log_capture.h"
#include "transport/connect/cluster.h"
#include "transport/connect/listener.h"
#include "transport/connect/reach.h"
#include "transport/net.h"
#include "transport/own.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* A port that nobody listens on. */
static void dead_address(char out[64])
{
    int fd = -1;
    assert_int_equal(gr_tcp_listen("127.0.0.1:0", &fd, out), GR_OK);
    close(fd);
}

static const char *failed_connect(struct log_capture *cap, const char *address, enum gr_status want)
{
    int fd = -1;
    log_capture_begin(cap);
    const enum gr_status st = gr_tcp_connect(address, 1000, &fd);
    const char *text = log_capture_end(cap);
    assert_int_equal(st, want);
    assert_int_equal(log_capture_n_line(text), 1);
    return text;
}

static void test_list(void **state)
{
    (void)state;
    struct log_capture cap;
    char dead[64], live[64], list[160];
    int listener = -1, fd = -1;
    dead_address(dead);
    assert_int_equal(gr_tcp_listen("127.0.0.1:0", &listener, live), GR_OK);
    snprintf(list, sizeof(list), "%s,%s", dead, live);
    assert_int_equal(gr_tcp_connect(list, 1000, &fd), GR_OK);
    close(fd);
    close(listener);
    const char *text = failed_connect(&cap, list, GR_EIO); /* each address, with its own reason */
    char *first = strstr(text, dead), *second = first != NULL ? strstr(strstr(first + 1, dead), live) : NULL;
    assert_non_null(second);
}

/* An address that never answers costs the next one a moment, not all of the time. */
static void test_silent_first(void **state)
{
    (void)state;
    char live[64], list[160];
    int listener = -1, fd = -1, full = -1, n = 0, extra[8];
    char silent[64];
    /* A listener whose queue is full answers nobody. */
    assert_int_equal(gr_tcp_listen("127.0.0.1:0", &full, silent), GR_OK);
    assert_int_equal(listen(full, 0), 0);
    for (n = 0; n < 8; n++) {
        struct log_capture cap;
        log_capture_begin(&cap);
        const enum gr_status st = gr_tcp_connect(silent, 100, &extra[n]);
        (void)log_capture_end(&cap);
        if (st != GR_OK) {
            break;
        }
    }
    assert_in_range(n, 1, 7);
    assert_int_equal(gr_tcp_listen("127.0.0.1:0", &listener, live), GR_OK);
    snprintf(list, sizeof(list), "%s,%s", silent, live);
    const uint64_t begin_ns = gr_clock_ns();
    assert_int_equal(gr_tcp_connect(list, 60000, &fd), GR_OK);
    assert_true(gr_clock_ns() - begin_ns < 10 * GR_S);
    close(fd);
    close(listener);
    for (int i = 0; i < n; i++) {
        close(extra[i]);
    }
    close(full);
}

static void test_unknown_name(void **state)
{
    (void)state;
    struct log_capture cap;
    int fd = -1;
    const char *text = failed_connect(&cap, "no-such-host.invalid:5055", GR_ENOTFOUND);
    assert_non_null(strstr(text, "no-such-host.invalid:5055"));
    /* "Not yet", for as long as one is patient. */
    const uint64_t begin_ns = gr_clock_ns();
    log_capture_begin(&cap);
    const enum gr_status st = gr_tcp_connect_patiently("no-such-host.invalid:5055", 300, 0, &fd);
    text = log_capture_end(&cap);
    assert_int_equal(st, GR_ETIMEDOUT);
    assert_true(gr_clock_ns() - begin_ns >= 300 * GR_MS);
    assert_non_null(strstr(text, "cannot resolve"));
}

struct late {
    char file[64], address[64];
    int listener;
};

static void *write_late(void *arg)
{
    struct late *l = arg;
    FILE *f;
    char beside[80];
    usleep(150000); /* only then is there anything to find: the test is that the other side waits */
    assert_int_equal(gr_tcp_listen("127.0.0.1:0", &l->listener, l->address), GR_OK);
    snprintf(beside, sizeof(beside), "%s.new", l->file);
    f = fopen(beside, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", l->address);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(rename(beside, l->file), 0);
    return NULL;
}

static void test_file(void **state)
{
    (void)state;
    struct log_capture cap;
    struct late l = {.listener = -1};
    char folder[] = "/tmp/graft-net-XXXXXX", at[80];
    pthread_t thread;
    int fd = -1;
    assert_non_null(mkdtemp(folder));
    snprintf(l.file, sizeof(l.file), "%s/ready", folder);
    snprintf(at, sizeof(at), "@%s", l.file);
    const char *text = failed_connect(&cap, at, GR_ENOTFOUND);
    assert_non_null(strstr(text, l.file));
    assert_int_equal(pthread_create(&thread, NULL, write_late, &l), 0);
    assert_int_equal(gr_tcp_connect_patiently(at, 20000, 0, &fd), GR_OK);
    pthread_join(thread, NULL);
    close(fd);
    close(l.listener);
    unlink(l.file);
    rmdir(folder);
}

static void test_ranges(void **state)
{
    (void)state;
    struct log_capture cap;
    struct gr_address a;
    char bound[64], first[64], range[96];
    int taken = -1, next = -1, none = -1;
    assert_int_equal(gr_address_parse("test", "host:5080-5090", 0, &a), GR_OK);
    assert_int_equal(a.port, 5080);
    assert_int_equal(a.port_last, 5090);
    static const char *const bad[] = {"h:5090-5080", "h:0-5", "h:5-", "h:-5", "h:5-6-7", "h:5:6", "h:5-70000"};
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        log_capture_begin(&cap);
        const enum gr_status st = gr_address_parse("test", bad[i], 0, &a);
        const char *text = log_capture_end(&cap);
        assert_int_equal(st, GR_EINVAL);
        assert_int_equal(log_capture_n_line(text), 1);
    }
    log_capture_begin(&cap);
    const enum gr_status of_peer = gr_address_check_peer("test", "host:5080-5090"); /* one listens on one port */
    (void)log_capture_end(&cap);
    assert_int_equal(of_peer, GR_EINVAL);
    /* The next free one; where the kernel hands out the port after it, the range goes further. */
    assert_int_equal(gr_tcp_listen("127.0.0.1:0", &taken, first), GR_OK);
    const int port = atoi(first + strlen("127.0.0.1:"));
    snprintf(range, sizeof(range), "127.0.0.1:%d-%d", port, GR_MIN(port + 20, GR_PORT_MAX));
    assert_int_equal(gr_tcp_listen(range, &next, bound), GR_OK);
    assert_string_not_equal(bound, first);
    snprintf(range, sizeof(range), "127.0.0.1:%d-%d", port, port);
    log_capture_begin(&cap);
    const enum gr_status st = gr_tcp_listen(range, &none, bound);
    const char *text = log_capture_end(&cap);
    assert_int_equal(st, GR_EIO);
    assert_non_null(strstr(text, "port in use"));
    close(taken);
    close(next);
}

static void test_brackets(void **state)
{
    (void)state;
    struct log_capture cap;
    struct gr_address a;
    log_capture_begin(&cap);
    const enum gr_status st = gr_address_parse("--join", "fd00::1:5055", 1, &a);
    const char *text = log_capture_end(&cap);
    assert_int_equal(st, GR_EINVAL);
    assert_non_null(strstr(text, "[fd00::1]:5055"));
}

/* Any address is both families'. */
static void test_any(void **state)
{
    (void)state;
    char bound[64], to[64];
    int listener = -1, fd = -1;
    assert_int_equal(gr_tcp_listen(":0", &listener, bound), GR_OK);
    snprintf(to, sizeof(to), "127.0.0.1%s", strrchr(bound, ':'));
    assert_int_equal(gr_tcp_connect(to, 1000, &fd), GR_OK);
    gr_sock_peer_text(fd, bound);
    assert_string_equal(bound, to);
    close(fd);
    close(listener);
}

static void test_reach(void **state)
{
    (void)state;
    char out[GR_REACH_BYTES], to[64], at_any[300];
    gr_reach_listen("", "[::1]:77", at_any);
    assert_string_equal(at_any, "[::1]:0");
    gr_reach_listen("", "10.1.2.3:77", at_any);
    assert_string_equal(at_any, ":0");
    gr_reach_listen("h:5-6", "10.1.2.3:77", at_any);
    assert_string_equal(at_any, "h:5-6");
    assert_true(gr_reach_is_local("127.0.0.1:5,[::1]:5,0.0.0.0:6"));
    assert_false(gr_reach_is_local("127.0.0.1:5,10.1.2.3:5"));
    assert_false(gr_reach_is_local(""));
    assert_true(gr_reach_is_any("[::]:5"));
    struct gr_listening here, any;
    int fd = -1;
    assert_int_equal(gr_tcp_listen_own("127.0.0.1:0", &here), GR_OK);
    gr_reach_list(&here, -1, out); /* said is said */
    assert_string_equal(out, here.bound);
    gr_listening_close(&here);
    assert_int_equal(gr_tcp_listen_own(":0", &any), GR_OK);
    snprintf(to, sizeof(to), "127.0.0.1%s", strrchr(any.bound, ':'));
    assert_int_equal(gr_tcp_connect(to, 1000, &fd), GR_OK);
    gr_reach_list(&any, fd, out); /* first the link's own end, then the interfaces */
    assert_memory_equal(out, to, strlen(to));
    char item[300];
    size_t at = 0;
    while (gr_address_next(out, &at, item)) {
        struct gr_address a;
        assert_int_equal(gr_address_parse("test", item, 1, &a), GR_OK);
        assert_false(gr_reach_is_any(item));
        assert_int_equal(strncmp(a.host, "fe80", 4) == 0, 0);
    }
    close(fd);
    gr_listening_close(&any);
}

/* Both families of loopback, which every host has: one port, a listener of two sockets, each of which is heard; what is
 * told is both, that of the link first; and another address of the host is not listened at. */
static void test_told(void **state)
{
    (void)state;
    char out[GR_REACH_BYTES], where[300], other[64], first[80];
    struct gr_listening at;
    struct gr_listener l;
    struct log_capture cap;
    int fd[2] = {-1, -1}, got = -1, six = -1;
    if (gr_tcp_listen("[::1]:0", &six, other) != GR_OK) {
        skip(); /* a host without IPv6 */
    }
    close(six);
    assert_int_equal(gr_own_use("127.0.0.1,::1", true), GR_OK);
    gr_reach_listen("", "127.0.0.1:77", where);
    assert_string_equal(where, ":0"); /* left to --interface */
    assert_int_equal(gr_tcp_listen_own(where, &at), GR_OK);
    assert_int_equal(at.n, 2);
    const char *port = strrchr(at.bound, ':');
    snprintf(first, sizeof(first), "127.0.0.1%s,[::1]%s", port, port);
    gr_reach_list(&at, -1, out);
    assert_string_equal(out, first);
    snprintf(first, sizeof(first), "[::1]%s", port);
    assert_int_equal(gr_listener_open(&l, &at), GR_OK);
    assert_int_equal(gr_listener_accept(&l, 0, &got), GR_AGAIN);
    for (int i = 0; i < 2; i++) {
        struct pollfd p = {.fd = gr_listener_poll_fd(&l, 0), .events = POLLIN};
        assert_int_equal(gr_tcp_connect(i == 0 ? at.bound : first, 1000, &fd[i]), GR_OK);
        assert_int_equal(poll(&p, 1, 10000), 1);
        assert_int_equal(gr_listener_accept(&l, 0, &got), GR_OK);
        close(got);
    }
    gr_reach_list(&at, fd[1], out);
    assert_memory_equal(out, first, strlen(first));
    assert_non_null(strstr(out, ",127.0.0.1:"));
    snprintf(other, sizeof(other), "127.0.0.2%s", port);
    (void)failed_connect(&cap, other, GR_EIO);
    gr_listener_close(&l);
    close(fd[0]);
    close(fd[1]);
    assert_int_equal(gr_own_use(NULL, false), GR_OK);
}

static void test_cluster(void **state)
{
    (void)state;
    char name[GR_CLUSTER_BYTES];
    unsetenv("GRAFT_CLUSTER");
    unsetenv("SLURM_HET_JOB_ID");
    setenv("SLURM_JOB_ID", "1234", 1);
    assert_int_equal(gr_cluster_name(true, name), GR_OK);
    assert_string_equal(name, "slurm-job-1234");
    assert_int_equal(gr_cluster_name(false, name), GR_OK); /* of a client */
    assert_string_equal(name, "");
    setenv("SLURM_HET_JOB_ID", "1230", 1); /* components of one job are one cluster */
    assert_int_equal(gr_cluster_name(true, name), GR_OK);
    assert_string_equal(name, "slurm-job-1230");
    gr_cluster_use("");
    assert_int_equal(gr_cluster_name(true, name), GR_OK); /* said to be none */
    assert_string_equal(name, "");
    gr_cluster_use("mine");
    assert_int_equal(gr_cluster_name(false, name), GR_OK);
    assert_string_equal(name, "mine");
    struct log_capture cap;
    gr_cluster_use("a name of sixty-four characters is one more than there is room for");
    log_capture_begin(&cap);
    const enum gr_status st = gr_cluster_name(true, name);
    (void)log_capture_end(&cap);
    assert_int_equal(st, GR_EINVAL);
    unsetenv("GRAFT_CLUSTER");
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_HET_JOB_ID");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),    cmocka_unit_test(test_silent_first), cmocka_unit_test(test_unknown_name),
        cmocka_unit_test(test_file),    cmocka_unit_test(test_ranges),       cmocka_unit_test(test_brackets),
        cmocka_unit_test(test_any),     cmocka_unit_test(test_reach),        cmocka_unit_test(test_told),
        cmocka_unit_test(test_cluster),
    };
    gr_log_init("test_net");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
