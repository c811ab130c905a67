/* Connections: who is cut off, when, and who makes room for whom. Times are the test's own. */
#include "orchestrator/http/guests.h"

#include "common/base/clock.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static int cut_fd[64], n_cut;

static bool on_cut(void *ctx, int fd, enum gr_guest_phase phase)
{
    (void)ctx;
    cut_fd[n_cut++] = fd;
    return phase == GR_GUEST_HEAD || phase == GR_GUEST_BODY;
}

static struct gr_guests *create(int n_max, int n_max_of_address)
{
    const struct gr_guests_config c = {.n_max = n_max,
                                       .n_max_of_address = n_max_of_address,
                                       .request_ns = 20 * GR_S,
                                       .idle_ns = 150 * GR_S,
                                       .cut = on_cut};
    struct gr_guests *g = NULL;
    n_cut = 0;
    assert_int_equal(gr_guests_create(&c, &g), GR_OK);
    return g;
}

static struct gr_guest *add(struct gr_guests *g, int fd, const char *from, uint64_t at_s)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    const bool is_v4 = inet_pton(AF_INET, from, &v4.sin_addr) == 1;
    assert_true(is_v4 || inet_pton(AF_INET6, from, &v6.sin6_addr) == 1);
    const struct sockaddr *a = is_v4 ? (const struct sockaddr *)&v4 : (const struct sockaddr *)&v6;
    struct gr_guest *one = gr_guests_add(g, fd, a, at_s * GR_S);
    assert_non_null(one);
    return one;
}

static void test_each_phase_has_its_time(void **state)
{
    (void)state;
    struct gr_guests *g = create(10, 10);
    struct gr_guest *one = add(g, 7, "10.0.0.1", 100);
    gr_guests_run(g, 120 * GR_S - 1);
    assert_int_equal(n_cut, 0);
    assert_true(gr_guests_enter(g, one, GR_GUEST_HEAD, 119 * GR_S));
    assert_true(gr_guests_enter(g, one, GR_GUEST_BODY, 130 * GR_S));
    gr_guests_took(g, one, 10 * GR_GUEST_BODY_RATE); /* 10 s more */
    gr_guests_run(g, 160 * GR_S - 1);
    assert_true(gr_guests_enter(g, one, GR_GUEST_ANSWERED, 160 * GR_S - 1));
    gr_guests_run(g, 100000 * GR_S);
    assert_int_equal(n_cut, 0);
    assert_true(gr_guests_enter(g, one, GR_GUEST_IDLE, 100000 * GR_S));
    gr_guests_run(g, 100170 * GR_S - 1);
    assert_int_equal(n_cut, 0);
    gr_guests_run(g, 100170 * GR_S);
    assert_int_equal(n_cut, 1);
    assert_int_equal(cut_fd[0], 7);
    assert_false(gr_guests_enter(g, one, GR_GUEST_HEAD, 100170 * GR_S));
    gr_guests_run(g, 200000 * GR_S); /* once */
    assert_int_equal(n_cut, 1);
    gr_guests_remove(g, one);
    gr_guests_destroy(g);
}

/* A byte now and then does not help. */
static void test_who_trickles_is_cut(void **state)
{
    (void)state;
    static const enum gr_guest_phase phases[] = {GR_GUEST_NEW, GR_GUEST_HEAD, GR_GUEST_BODY};
    struct gr_guests *g = create(10, 10);
    struct gr_guest *one[3];
    for (int i = 0; i < 3; i++) {
        one[i] = add(g, i, "10.0.0.1", 0);
        assert_true(gr_guests_enter(g, one[i], phases[i], 0) && !gr_guests_take_told(g, one[i]));
        gr_guests_took(g, one[i], 100);
    }
    gr_guests_run(g, 20 * GR_S + 100 * GR_S / GR_GUEST_BODY_RATE);
    assert_int_equal(n_cut, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gr_guests_take_told(g, one[i]), phases[i] != GR_GUEST_NEW);
        assert_false(gr_guests_take_told(g, one[i])); /* it was counted */
        gr_guests_remove(g, one[i]);
    }
    gr_guests_destroy(g);
}

static void test_idle_ones_make_room(void **state)
{
    (void)state;
    struct gr_guests *g = create(3, 2);
    struct gr_guest *a = add(g, 1, "10.0.0.1", 1), *b = add(g, 2, "10.0.0.1", 2), *c = add(g, 3, "10.0.0.2", 0);
    assert_true(gr_guests_enter(g, a, GR_GUEST_ANSWERED, 3 * GR_S));
    struct gr_guest *d = add(g, 4, "10.0.0.1", 4); /* b goes: a is answered, c is another's */
    assert_int_equal(n_cut, 1);
    assert_int_equal(cut_fd[0], 2);
    assert_int_equal(gr_guests_excess(g, d), GR_GUEST_FITS);
    struct gr_guest *e = add(g, 5, "10.0.0.3", 5); /* of all, c is the oldest */
    assert_int_equal(cut_fd[1], 3);
    assert_int_equal(gr_guests_excess(g, e), GR_GUEST_FITS);
    assert_true(gr_guests_enter(g, d, GR_GUEST_BODY, 6 * GR_S) && gr_guests_enter(g, e, GR_GUEST_ANSWERED, 6 * GR_S));
    struct gr_guest *f = add(g, 6, "10.0.0.1", 7), *h = add(g, 7, "10.0.0.9", 7);
    assert_int_equal(gr_guests_excess(g, f), GR_GUEST_OF_ADDRESS);
    assert_int_equal(gr_guests_excess(g, h), GR_GUEST_FITS); /* f, in excess, asks nothing and makes room */
    assert_int_equal(n_cut, 3);
    assert_int_equal(cut_fd[2], 6);
    assert_true(gr_guests_enter(g, h, GR_GUEST_ANSWERED, 8 * GR_S));
    struct gr_guest *i = add(g, 8, "10.0.0.10", 9);
    assert_int_equal(gr_guests_excess(g, i), GR_GUEST_OF_ALL);
    struct gr_guest *all[] = {a, b, c, d, e, f, h, i};
    for (size_t n = 0; n < GR_ARRAY_LEN(all); n++) {
        gr_guests_remove(g, all[n]);
    }
    gr_guests_destroy(g);
}

static void test_addresses_that_are_one(void **state)
{
    (void)state;
    struct gr_guests *g = create(10, 1);
    struct gr_guest *a = add(g, 1, "2001:db8::1", 1), *b = add(g, 2, "2001:db8:0:0:9::2", 2); /* one /64 */
    assert_int_equal(n_cut, 1);
    struct gr_guest *c = add(g, 3, "2001:db8:0:1::1", 3), *d = add(g, 4, "10.0.0.1", 4);
    assert_int_equal(n_cut, 1);
    struct gr_guest *e = add(g, 5, "::ffff:10.0.0.1", 5); /* d's */
    assert_int_equal(n_cut, 2);
    assert_int_equal(cut_fd[1], 4);
    struct gr_guest *all[] = {a, b, c, d, e};
    for (size_t n = 0; n < GR_ARRAY_LEN(all); n++) {
        gr_guests_remove(g, all[n]);
    }
    gr_guests_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_phase_has_its_time),
        cmocka_unit_test(test_who_trickles_is_cut),
        cmocka_unit_test(test_idle_ones_make_room),
        cmocka_unit_test(test_addresses_that_are_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
