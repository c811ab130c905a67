/* Interfaces by name or subnet, on a host that has a bit of everything. */
#include "common/base/log.h"
#include "tests/unit/log_capture.h"
#include "transport/interface.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define UP GR_INTERFACE_UP
#define LO (GR_INTERFACE_UP | GR_INTERFACE_LOOPBACK)
#define BRIDGE (GR_INTERFACE_UP | GR_INTERFACE_BRIDGE)

static const struct {
    const char *name, *address; /* NULL: it has none */
    unsigned n_bit, flags;
} rows[] = {{"lo", "127.0.0.1", 8, LO},      {"docker0", "172.17.0.1", 16, BRIDGE},
            {"eth0", "10.1.0.5", 16, UP},    {"eth0:1", "10.3.0.5", 16, UP},
            {"eth0.7", "10.7.0.5", 16, UP},  {"ib0", "10.2.0.5", 20, UP},
            {"ib1", "10.2.0.6", 20, UP},     {"tb0", "169.254.3.4", 16, UP},
            {"lan", "10.8.0.1", 16, BRIDGE}, {"br-8f2a", "172.18.0.1", 16, UP}, /* by its name alone */
            {"veth12", "10.9.0.1", 24, UP},  {"eth9", "10.4.0.9", 16, 0},
            {"lo", "::1", 128, LO},          {"eth0", "fd00:1::5", 64, UP},
            {"eth0", "fe80::5", 64, UP},     {"ib0", "fd00:2::5", 64, UP},
            {"tb1", "fe80::9", 64, UP},      {"eth8", NULL, 0, UP}};

#define N ((int)GR_ARRAY_LEN(rows))

static void ip_of(const char *text, struct gr_ip *out)
{
    *out = (struct gr_ip){.family = strchr(text, ':') != NULL ? AF_INET6 : AF_INET};
    assert_int_equal(inet_pton(out->family, text, out->byte), 1);
}

static void host(struct gr_interface all[N])
{
    for (int i = 0; i < N; i++) {
        all[i] = (struct gr_interface){.n_bit = rows[i].n_bit, .flags = rows[i].flags};
        snprintf(all[i].name, sizeof(all[i].name), "%s", rows[i].name);
        if (rows[i].address != NULL) {
            ip_of(rows[i].address, &all[i].ip);
        }
    }
}

static void choose(const char *list, struct gr_interface_chosen *out)
{
    struct gr_interface all[N];
    struct gr_interface_wish w = {.n_item = 0};
    host(all);
    if (list != NULL) {
        assert_int_equal(gr_interface_parse(list, &w), GR_OK);
    }
    assert_int_equal(gr_interface_choose(&w, all, N, out), GR_OK);
}

static void test_chosen(void **state)
{
    (void)state;
    static const struct {
        const char *list, *want;
    } cases[] = {
        /* By itself: no loopback, no bridge, nothing of containers, nothing link-local, nothing that is down. */
        {NULL,
         "eth0 10.1.0.5, eth0:1 10.3.0.5, eth0.7 10.7.0.5, ib0 10.2.0.5, ib1 10.2.0.6, eth0 fd00:1::5, ib0 fd00:2::5"},
        /* A name is exact, with its aliases; of an item IPv4 comes first. */
        {"ib0", "ib0 10.2.0.5, ib0 fd00:2::5"},
        {"eth0", "eth0 10.1.0.5, eth0:1 10.3.0.5, eth0 fd00:1::5"},
        {"eth0.7", "eth0.7 10.7.0.5"},
        {"eth0:1", "eth0:1 10.3.0.5"},
        /* What is named is taken, whatever it is. */
        {"lo", "lo 127.0.0.1, lo ::1"},
        {"docker0", "docker0 172.17.0.1"},
        {"veth12", "veth12 10.9.0.1"},
        {"tb0", "tb0 169.254.3.4"},
        /* Subnets: bits within a byte, bits behind the length, both families, one address. */
        {"10.1.0.0/16", "eth0 10.1.0.5"},
        {"10.1.99.99/16", "eth0 10.1.0.5"},
        {"10.2.0.4/30", "ib0 10.2.0.5, ib1 10.2.0.6"},
        {"10.2.0.6/31", "ib1 10.2.0.6"},
        {"10.2.0.6", "ib1 10.2.0.6"},
        {"10.2.0.6/32", "ib1 10.2.0.6"},
        {"fd00::/8", "eth0 fd00:1::5, ib0 fd00:2::5"},
        {"fd00:2::/32", "ib0 fd00:2::5"},
        {"fd00:2::5", "ib0 fd00:2::5"},
        {"127.0.0.0/8", "lo 127.0.0.1"},
        {"::1/128", "lo ::1"},
        {"169.254.0.0/16", "tb0 169.254.3.4"},
        /* A wide one takes neither bridges nor loopback, nor what is link-local of IPv6. */
        {"0.0.0.0/0", "eth0 10.1.0.5, eth0:1 10.3.0.5, eth0.7 10.7.0.5, ib0 10.2.0.5, ib1 10.2.0.6, tb0 169.254.3.4"},
        {"::/0", "eth0 fd00:1::5, ib0 fd00:2::5"},
        {"10.0.0.0/13", "eth0 10.1.0.5, eth0:1 10.3.0.5, eth0.7 10.7.0.5, ib0 10.2.0.5, ib1 10.2.0.6"},
        /* The order is the list's, and nothing comes twice. */
        {"fd00:2::/64,eth0.7,10.2.0.0/20,ib0", "ib0 fd00:2::5, eth0.7 10.7.0.5, ib0 10.2.0.5, ib1 10.2.0.6"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        struct gr_interface_chosen c;
        char text[GR_INTERFACE_LINE];
        choose(cases[i].list, &c);
        gr_interface_text(&c, text);
        assert_string_equal(text, cases[i].want);
    }
}

static void test_more_than_fit(void **state)
{
    (void)state;
    static struct gr_interface all[GR_INTERFACE_CHOSEN_MAX + 3];
    const struct gr_interface_wish w = {.n_item = 0};
    struct gr_interface_chosen c;
    char text[GR_INTERFACE_LINE];
    for (size_t i = 0; i < GR_ARRAY_LEN(all); i++) {
        all[i] = (struct gr_interface){.name = "e", .ip = {AF_INET, {10, 0, 0, (uint8_t)i}}, .n_bit = 24, .flags = UP};
    }
    assert_int_equal(gr_interface_choose(&w, all, (int)GR_ARRAY_LEN(all), &c), GR_OK);
    assert_int_equal(c.n, GR_INTERFACE_CHOSEN_MAX);
    gr_interface_text(&c, text);
    assert_non_null(strstr(text, "(3 more are left out)"));
}

/* One line each, which names the item. */
static void expect_line(const char *list, enum gr_status want, const char *item, const char *why)
{
    struct gr_interface all[N];
    struct gr_interface_wish w;
    struct gr_interface_chosen c;
    struct log_capture cap;
    host(all);
    log_capture_begin(&cap);
    enum gr_status st = gr_interface_parse(list, &w);
    st = st == GR_OK ? gr_interface_choose(&w, all, N, &c) : st;
    const char *text = log_capture_end(&cap);
    assert_int_equal(st, want);
    assert_int_equal(log_capture_n_line(text), 1);
    assert_non_null(strstr(text, item));
    assert_non_null(strstr(text, why));
}

static void test_bad_lists(void **state)
{
    (void)state;
    static const struct {
        const char *list, *why;
    } bad[] = {{"10.0.0.1/33", "0 .. 32"},
               {"fd00::/129", "0 .. 128"},
               {"10.0.0.0/-1", "0 .. 32"},
               {"10.0.0.0/", "0 .. 32"},
               {"10.0.0.0/8x", "0 .. 32"},
               {"10.0.0.0/ 8", "0 .. 32"},
               {"10.0.0.0/8/8", "0 .. 32"},
               {"/0", "is not an IP address"},
               {"/8", "is not an IP address"},
               {"10.0.0.0/0", "0.0.0.0/0"},
               {"fd00::/0", "::/0"},
               {"10.0.0/8", "is not an IP address"},
               {"10.0.0.256/8", "is not an IP address"},
               {"eth0/8", "is not an IP address"},
               {"", "neither the name"},
               {"eth0,", "neither the name"},
               {",eth0", "neither the name"},
               {"eth0,,ib0", "neither the name"},
               {"eth 0", "neither the name"},
               {"[fd00::1]", "neither the name"},
               {"a-name-of-16-chrs", "neither the name"},
               {"a,b,c,d,e,f,g,h,i", "more than 8"}};
    for (size_t i = 0; i < GR_ARRAY_LEN(bad); i++) {
        expect_line(bad[i].list, GR_EINVAL, "--interface", bad[i].why);
    }
}

static void test_not_there(void **state)
{
    (void)state;
    static const struct {
        const char *list, *item, *why;
    } none[] = {{"ib7", "--interface ib7:", "no such interface"},
                {"eth", "--interface eth:", "no such interface"}, /* no prefix of a name */
                {"eth0,ib7", "--interface ib7:", "eth0 10.1.0.5, eth0:1 10.3.0.5"},
                {"eth9", "--interface eth9:", "is down"},
                {"eth8", "--interface eth8:", "has no address"},
                {"tb1", "--interface tb1:", "has no address"}, /* but a link-local one */
                {"192.168.0.0/16", "--interface 192.168.0.0/16:", "no address of this host is in it"},
                {"2001:db8::/32", "--interface 2001:db8::/32:", "no address of this host is in it"},
                {"10.4.0.0/16", "--interface 10.4.0.0/16:", "is down"},
                {"172.16.0.0/12", "--interface 172.16.0.0/12:", "by its name alone"},
                {"10.8.0.0/16", "--interface 10.8.0.0/16:", "by its name alone"},
                {"ib7", "--interface ib7:", "docker0 172.17.0.1 (a bridge)"},
                {"ib7", "--interface ib7:", "eth9 10.4.0.9 (down)"},
                {"ib7", "--interface ib7:", "eth8 without an address"}};
    for (size_t i = 0; i < GR_ARRAY_LEN(none); i++) {
        expect_line(none[i].list, GR_ENOTFOUND, none[i].item, none[i].why);
    }
}

static void test_source(void **state)
{
    (void)state;
    static const struct {
        const char *list, *to, *want; /* NULL: the system's choice */
    } cases[] = {{"ib0", "10.2.0.77", "10.2.0.5"},
                 {"ib1", "10.2.0.77", "10.2.0.6"}, /* two interfaces of one subnet */
                 {"eth0,ib1", "10.2.0.77", "10.2.0.6"},
                 {"ib0", "fd00:2::77", "fd00:2::5"},
                 {"ib0", "10.1.0.77", NULL}, /* it lies at eth0 */
                 {"ib0", "10.2.0.5", NULL},  /* this host */
                 {"ib0", "10.1.0.5", NULL},
                 {"ib0", "127.0.0.1", NULL},
                 {"ib0", "::1", NULL},
                 {"ib0", "0.0.0.0", NULL},
                 {"ib0", "fe80::77", NULL},
                 {"ib1", "192.0.2.1", "10.2.0.6"}, /* by a router */
                 {"eth0,ib1", "192.0.2.1", "10.1.0.5"},
                 {"ib1", "2001:db8::1", NULL}, /* it has none of that family */
                 {"eth0", "2001:db8::1", "fd00:1::5"},
                 {"lo", "192.0.2.1", NULL}};
    struct gr_interface all[N];
    host(all);
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        struct gr_interface_chosen c;
        struct gr_ip to, want;
        choose(cases[i].list, &c);
        ip_of(cases[i].to, &to);
        const struct gr_interface *got = gr_interface_source(&c, all, N, &to);
        assert_int_equal(got != NULL, cases[i].want != NULL);
        if (got != NULL) {
            ip_of(cases[i].want, &want);
            assert_memory_equal(got->ip.byte, want.byte, sizeof(want.byte));
        }
    }
}

/* To a socket's address and back; an IPv4 address that an IPv6 socket has is IPv4. */
static void test_sockets(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"10.1.2.3", "10.1.2.3"}, {"fd00::7", "fd00::7"}, {"::ffff:10.1.2.3", "10.1.2.3"}};
    for (size_t i = 0; i < GR_ARRAY_LEN(texts); i++) {
        struct sockaddr_storage sa;
        struct gr_ip ip, back, want;
        ip_of(texts[i][0], &ip);
        ip_of(texts[i][1], &want);
        assert_true(gr_ip_sockaddr(&ip, 5055, &sa) >= sizeof(struct sockaddr_in));
        gr_ip_of((const struct sockaddr *)&sa, &back);
        assert_int_equal(back.family, want.family);
        assert_memory_equal(back.byte, want.byte, sizeof(want.byte));
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_chosen),    cmocka_unit_test(test_more_than_fit),
                                              cmocka_unit_test(test_bad_lists), cmocka_unit_test(test_not_there),
                                              cmocka_unit_test(test_source),    cmocka_unit_test(test_sockets)};
    gr_log_init("test_interface");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
