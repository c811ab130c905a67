/* Which fleets a sweep runs, what stands beside them, where their workers go, and why some cannot run. */
#include "bench/sweep/crew.h"
#include "bench/sweep/plan.h"
#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static struct gr_sweep_plan plan;

static struct gr_option_list list(int n, const int *value)
{
    struct gr_option_list l = {.n = n};
    for (int i = 0; i < n; i++) {
        l.value[i] = value[i];
    }
    return l;
}

#define LIST(...) list((int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})

static struct gr_sweep_axes axes(struct gr_option_list hosts, struct gr_option_list targets,
                                 struct gr_option_list drafters, struct gr_option_list tp)
{
    return (struct gr_sweep_axes){
        .hosts = hosts, .n_target = targets, .n_draft = drafters, .tp = tp, .sessions = LIST(1, 8)};
}

/* Names of the fleets, in their order, with a line each; why behind a colon. */
static const char *planned(const struct gr_sweep_axes *a, const struct gr_sweep_site *site)
{
    static char text[8192];
    size_t at = 0;
    assert_int_equal(gr_sweep_plan(a, site, &plan), GR_OK);
    text[0] = '\0';
    for (int i = 0; i < plan.n; i++) {
        const struct gr_fleet *f = &plan.fleet[i];
        char name[GR_FLEET_NAME_MAX];
        gr_fleet_name(f, name);
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s%s\n", name, f->why[0] != '\0' ? ": " : "", f->why);
        assert_true(at < sizeof(text));
    }
    return text;
}

/* A pair has two devices: two co-located pairs and, where two ranks are asked for, one target of two. */
static void test_equal_devices(void **state)
{
    const struct gr_sweep_axes a = axes(LIST(1), LIST(1, 3), LIST(1), LIST(1, 2));
    const struct gr_sweep_site site = {.n_host = 1, .n_kv_head = 8};
    (void)state;
    assert_string_equal(planned(&a, &site), "split h1 t1 d1 tp1\n"
                                            "whole h1 t2 tp1\n"
                                            "whole h1 t1 tp2\n"
                                            "split h1 t3 d1 tp1\n"
                                            "whole h1 t4 tp1\n"
                                            "whole h1 t2 tp2\n"
                                            "split h1 t1 d1 tp2\n"
                                            "whole h1 t3 tp1\n"
                                            "whole h1 t0 tp2: 3 devices are no multiple of tp 2\n"
                                            "split h1 t3 d1 tp2\n"
                                            "whole h1 t7 tp1\n"
                                            "whole h1 t0 tp2: 7 devices are no multiple of tp 2\n");
    int n_split = 0;
    for (int i = 0; i < plan.n; i++) {
        const struct gr_fleet *f = &plan.fleet[i];
        int n_beside = 0;
        for (int k = 0; k < plan.n; k++) {
            const struct gr_fleet *g = &plan.fleet[k];
            if (gr_fleet_is_beside(f, g)) {
                assert_int_equal(gr_fleet_devices(f), gr_fleet_devices(g));
                n_beside += g->why[0] == '\0';
            }
        }
        n_split += !f->whole;
        assert_true(f->whole || n_beside >= 1);
    }
    assert_int_equal(n_split, 4);
}

/* Where no group size that is asked for comes out even there is the next larger fleet, and it is not called equal. */
static void test_next_larger(void **state)
{
    const struct gr_sweep_axes a = axes(LIST(1), LIST(1), LIST(1), LIST(2));
    const struct gr_sweep_site site = {.n_host = 1};
    (void)state;
    assert_string_equal(planned(&a, &site), "split h1 t1 d1 tp2\n"
                                            "whole h1 t0 tp2: 3 devices are no multiple of tp 2\n"
                                            "whole h1 t2 tp2\n");
    assert_false(gr_fleet_is_beside(&plan.fleet[0], &plan.fleet[2]));
}

static void test_what_cannot_run(void **state)
{
    const struct gr_sweep_axes a = axes(LIST(1, 2), LIST(1, 4), LIST(1), LIST(1, 3, 4));
    const struct gr_sweep_site two_gpus = {.n_host = 1, .n_device = 2, .n_kv_head = 2};
    (void)state;
    assert_string_equal(planned(&a, &two_gpus),
                        "split h1 t1 d1 tp1\n"
                        "whole h1 t2 tp1\n"
                        "whole h1 t0 tp4: 2 devices are no multiple of tp 4\n"
                        "split h1 t4 d1 tp1: 5 devices are needed, 1 host has 2\n"
                        "split h1 t1 d1 tp3: tp 3: a target has 1, 2, 4 or 8 ranks\n"
                        "split h1 t4 d1 tp3: tp 3: a target has 1, 2, 4 or 8 ranks\n"
                        "split h1 t1 d1 tp4: tp 4: the target's 2 KV heads cannot be shared out so\n"
                        "split h1 t4 d1 tp4: tp 4: the target's 2 KV heads cannot be shared out so\n"
                        "split h2 t1 d1 tp1: 2 hosts are needed, there is 1\n"
                        "split h2 t4 d1 tp1: 2 hosts are needed, there is 1\n"
                        "split h2 t1 d1 tp3: tp 3: a target has 1, 2, 4 or 8 ranks\n"
                        "split h2 t4 d1 tp3: tp 3: a target has 1, 2, 4 or 8 ranks\n"
                        "split h2 t1 d1 tp4: tp 4: the target's 2 KV heads cannot be shared out so\n"
                        "split h2 t4 d1 tp4: tp 4: the target's 2 KV heads cannot be shared out so\n");
}

static const char *why_of(struct gr_fleet f, struct gr_sweep_site site)
{
    static char why[GR_FLEET_WHY_MAX];
    const struct gr_sweep_axes a = axes(list(1, &f.n_host), list(1, &f.n_target), list(1, &f.n_draft), list(1, &f.tp));
    assert_int_equal(gr_sweep_plan(&a, &site, &plan), GR_OK);
    snprintf(why, sizeof(why), "%s", plan.fleet[0].why);
    return why;
}

static void test_room(void **state)
{
    const struct gr_fleet pair_on_4 = {.n_host = 4, .n_target = 1, .n_draft = 1, .tp = 1};
    const struct gr_fleet many = {.n_host = 1, .n_target = 60, .n_draft = 4, .tp = 1};
    const struct gr_fleet two_groups = {.n_host = 3, .n_target = 2, .n_draft = 2, .tp = 2};
    const struct gr_fleet pinned = {.n_host = 1, .n_target = 2, .n_draft = 1, .tp = 1};
    (void)state;
    assert_string_equal(why_of(pair_on_4, (struct gr_sweep_site){.n_host = 4}), "2 workers cannot stand on 4 hosts");
    assert_string_equal(why_of(many, (struct gr_sweep_site){.n_host = 1}),
                        "64 workers: an orchestrator of this version is given 63 at most");
    assert_string_equal(why_of(two_groups, (struct gr_sweep_site){.n_host = 3, .n_device = 2}), "");
    assert_string_equal(why_of((struct gr_fleet){.n_host = 2, .n_target = 1, .n_draft = 1, .tp = 4},
                               (struct gr_sweep_site){.n_host = 2, .n_device = 3}),
                        "a target of 4 devices finds no host of 3 with room for it");
    assert_string_equal(why_of(pinned, (struct gr_sweep_site){.n_host = 1, .n_cpu = 7, .device_cpu = 2}), "");
    assert_string_equal(why_of(pinned, (struct gr_sweep_site){.n_host = 1, .n_cpu = 6, .device_cpu = 2}),
                        "7 CPUs are needed, the orchestrator's among them, there are 6");
    char why[GR_FLEET_WHY_MAX];
    gr_fleet_refuses(&pinned, 256, why);
    assert_string_equal(why, "");
    gr_fleet_refuses(&pinned, 512, why);
    assert_string_equal(why, "512 sessions: 1 drafter has room for 256");
    gr_fleet_refuses(&pinned, 513, why);
    assert_string_equal(why, "513 sessions: 2 targets have room for 512");
}

/* No device is given twice, a group is on one host, and hosts fill evenly. */
static void test_places(void **state)
{
    const struct gr_fleet f = {.n_host = 3, .n_target = 3, .n_draft = 3, .tp = 2};
    const struct gr_sweep_site site = {.n_host = 3, .n_device = 3};
    struct gr_place place[GR_FLEET_WORKER_MAX];
    bool taken[3][3] = {{false}};
    (void)state;
    assert_true(gr_fleet_place(&f, &site, place, NULL));
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < (i < 3 ? 2 : 1); k++) {
            assert_true(place[i].host < 3 && place[i].device + k < 3);
            assert_false(taken[place[i].host][place[i].device + k]);
            taken[place[i].host][place[i].device + k] = true;
        }
    }
    assert_false(gr_fleet_place(&(struct gr_fleet){.n_host = 3, .n_target = 4, .tp = 2}, &site, place, NULL));
}

/* Of CPUs with gaps between them, every device gets its own. */
static void test_cpus(void **state)
{
    cpu_set_t own, all;
    (void)state;
    CPU_ZERO(&own);
    CPU_ZERO(&all);
    for (int cpu = 3; cpu < 33; cpu += 3) {
        CPU_SET(cpu, &own);
    }
    for (int device = 0; device < 3; device++) {
        const cpu_set_t part = gr_crew_cpus(&own, 1 + 3 * device, 3);
        cpu_set_t both;
        CPU_AND(&both, &all, &part);
        assert_true(CPU_COUNT(&part) == 3 && CPU_COUNT(&both) == 0 && CPU_ISSET(6 + 9 * device, &part));
        CPU_OR(&all, &all, &part);
    }
    const cpu_set_t first = gr_crew_cpus(&own, 0, 1), past = gr_crew_cpus(&own, 9, 2);
    CPU_OR(&all, &all, &first);
    assert_true(CPU_EQUAL(&all, &own) && CPU_COUNT(&past) == 1 && CPU_ISSET(30, &past));
}

static void test_too_many(void **state)
{
    const struct gr_sweep_axes a = axes(LIST(1, 2, 3, 4, 5, 6, 7, 8), LIST(1, 2, 3, 4, 5, 6, 7, 8),
                                        LIST(1, 2, 3, 4, 5, 6, 7, 8), LIST(1, 2, 4, 8));
    const struct gr_sweep_site site = {.n_host = 1};
    struct log_capture cap;
    (void)state;
    log_capture_begin(&cap);
    assert_int_equal(gr_sweep_plan(&a, &site, &plan), GR_ELIMIT);
    const char *log = log_capture_end(&cap);
    assert_true(log_capture_n_line(log) == 1 && strstr(log, "1024 fleets") != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_devices),   cmocka_unit_test(test_next_larger),
        cmocka_unit_test(test_what_cannot_run), cmocka_unit_test(test_room),
        cmocka_unit_test(test_places),          cmocka_unit_test(test_cpus),
        cmocka_unit_test(test_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
