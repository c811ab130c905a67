/* What follows from the end of a child: rules of the target, of the drafter and of a supervisor. */
#include "common/base/clock.h"
#include "common/process/restart.h"
#include "common/process/signal_hint.h"
#include "common/base/status.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <cmocka.h>

static const struct gr_restart_rule for_ever = {.pause_max_ns = 30 * GR_S};
static const struct gr_restart_rule five = {.pause_max_ns = 5 * GR_S, .fruitless_max = 5};

/* Lives that end at once: the first restart does not wait, the others longer and longer; a long life is a new start. */
static void test_pauses(void **state)
{
    (void)state;
    static const int want_ms[] = {0, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000, 30000};
    struct gr_restart r = {0};
    for (size_t i = 0; i < GR_ARRAY_LEN(want_ms); i++) {
        const struct gr_restart_answer a = gr_restart_end(&r, &for_ever, GR_END_SIGNAL, GR_S);
        assert_int_equal(a.verdict, GR_RESTART_AGAIN);
        assert_int_equal(a.pause_ns, (uint64_t)want_ms[i] * GR_MS);
    }
    for (int i = 0; i < 1000; i++) { /* no shift by more than the width */
        assert_int_equal(gr_restart_end(&r, &for_ever, GR_END_SIGNAL, GR_S).pause_ns, 30 * GR_S);
    }
    assert_int_equal(gr_restart_end(&r, &for_ever, GR_END_SIGNAL, 11 * GR_S).pause_ns, 0);
    assert_int_equal(gr_restart_end(&r, &for_ever, GR_END_SIGNAL, GR_S).pause_ns, 100 * GR_MS);
    struct gr_restart t = {0};
    const struct gr_restart_rule short_pauses = {.pause_max_ns = 150 * GR_MS};
    for (int i = 0; i < 3; i++) {
        (void)gr_restart_end(&t, &short_pauses, GR_END_SIGNAL, GR_S);
    }
    assert_int_equal(gr_restart_end(&t, &short_pauses, GR_END_SIGNAL, GR_S).pause_ns, 150 * GR_MS);
}

/* Only one that fails by itself in its first life, before it has joined, has never worked. */
static void test_never_worked(void **state)
{
    (void)state;
    struct gr_restart r = {0};
    assert_int_equal(gr_restart_end(&r, &for_ever, GR_END_FAILED, GR_S).verdict, GR_RESTART_NEVER_WORKED);
    static const enum gr_end_kind others[] = {GR_END_SIGNAL, GR_END_DEVICE, GR_END_LINK};
    for (size_t i = 0; i < GR_ARRAY_LEN(others); i++) { /* before it joined, too */
        r = (struct gr_restart){0};
        assert_int_equal(gr_restart_end(&r, &for_ever, others[i], GR_S).verdict, GR_RESTART_AGAIN);
        assert_int_equal(gr_restart_end(&r, &for_ever, GR_END_FAILED, GR_S).verdict, GR_RESTART_AGAIN);
    }
    r = (struct gr_restart){0};
    assert_false(gr_restart_joined(&r));
    for (int i = 0; i < 100; i++) {
        assert_int_equal(gr_restart_end(&r, &for_ever, GR_END_FAILED, GR_S).verdict, GR_RESTART_AGAIN);
    }
}

/* Killed, then unable to start: a line for each of the two, then silence until it is back. */
static void test_lines_of_an_outage(void **state)
{
    (void)state;
    struct gr_restart r = {0};
    for (int outage = 0; outage < 2; outage++) {
        assert_int_equal(gr_restart_joined(&r), outage > 0);
        struct gr_restart_answer a = gr_restart_end(&r, &for_ever, GR_END_SIGNAL, GR_S);
        assert_true(a.tell && !a.silent);
        a = gr_restart_end(&r, &for_ever, GR_END_FAILED, GR_S);
        assert_true(a.tell && a.silent);
        for (int i = 0; i < 20; i++) {
            a = gr_restart_end(&r, &for_ever, i % 3 == 0 ? GR_END_SIGNAL : GR_END_FAILED, GR_S);
            assert_true(!a.tell && a.silent);
        }
    }
    /* Killed while it starts, again and again: why it then fails by itself is told all the same. */
    r = (struct gr_restart){0};
    assert_true(gr_restart_end(&r, &for_ever, GR_END_SIGNAL, GR_S).tell);
    assert_false(gr_restart_end(&r, &for_ever, GR_END_SIGNAL, GR_S).tell);
    const struct gr_restart_answer a = gr_restart_end(&r, &for_ever, GR_END_FAILED, GR_S);
    assert_true(a.tell && a.silent);
    /* Killed each time after it has joined: each is an outage of its own. */
    r = (struct gr_restart){0};
    for (int i = 0; i < 5; i++) {
        assert_false(gr_restart_joined(&r));
        assert_true(gr_restart_end(&r, &for_ever, GR_END_SIGNAL, GR_S).tell);
    }
}

/* Long lives do not help, joining does not help: a token does. */
static void test_five_without_a_token(void **state)
{
    (void)state;
    static const uint64_t life_ns[] = {GR_S / 10, 25 * GR_S}; /* a stack that is too small; an out-of-memory kill */
    for (size_t k = 0; k < GR_ARRAY_LEN(life_ns); k++) {
        struct gr_restart r = {0};
        for (int i = 0; i < 5; i++) {
            (void)gr_restart_joined(&r);
            const struct gr_restart_answer a = gr_restart_end(&r, &five,
                                                              i == 2   ? GR_END_FAILED
                                                              : i == 3 ? GR_END_DEVICE
                                                                       : GR_END_SIGNAL,
                                                              life_ns[k]);
            assert_int_equal(a.verdict, i < 4 ? GR_RESTART_AGAIN : GR_RESTART_FRUITLESS);
            assert_true(a.tell && !a.silent);
        }
        r = (struct gr_restart){0};
        for (int i = 0; i < 50; i++) {
            if (i % 4 == 3) {
                gr_restart_progress(&r);
            }
            assert_int_equal(gr_restart_end(&r, &five, GR_END_SIGNAL, life_ns[k]).verdict, GR_RESTART_AGAIN);
        }
    }
}

static void test_hints(void **state)
{
    (void)state;
    assert_non_null(strstr(gr_signal_hint(SIGKILL), "out of memory"));
    assert_non_null(strstr(gr_signal_hint(SIGXFSZ), "ulimit -f"));
    assert_non_null(strstr(gr_signal_hint(SIGTERM), "outside graft"));
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_STACK, &old), 0);
    small = (struct rlimit){.rlim_cur = 256 << 10, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_STACK, &small), 0);
    assert_non_null(strstr(gr_signal_hint(SIGSEGV), "ulimit -s"));
    assert_non_null(strstr(gr_signal_hint(SIGBUS), "ulimit -s"));
    assert_int_equal(setrlimit(RLIMIT_STACK, &old), 0);
    assert_null(strstr(gr_signal_hint(SIGSEGV), "ulimit -s"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_never_worked),
        cmocka_unit_test(test_lines_of_an_outage),
        cmocka_unit_test(test_five_without_a_token),
        cmocka_unit_test(test_hints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
