/* Which card is nearest to a GPU, over machines that are described to hwloc as XML and read through its edge, and over
 * maps that are written down here. */
#include "common/base/log.h"
#include "transport/verbs/nearest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- machines ---- */

/* A device below a switch of a PCI root of a processor; switch -1: below a root port of its own. */
struct place {
    int processor, root, bridge;
    unsigned bus;
    const char *card; /* NULL: a GPU */
};
#define GPU NULL
#define END                         \
    {                               \
        -1, -1, -1, 0, "no further" \
    }

static int next_id;
static unsigned allowed = 1; /* the processors that this process may use, a bit each */

static void put_device(FILE *f, const struct place *p)
{
    fprintf(f,
            "<object type=\"PCIDev\" gp_index=\"%d\" pci_busid=\"0000:%02x:00.0\" pci_type=\"%s [0000:0000] 00\" "
            "pci_link_speed=\"0.0\">",
            next_id++, p->bus, p->card == NULL ? "0302 [10de:2330]" : "0207 [15b3:1021]");
    if (p->card != NULL) {
        fprintf(f, "<object type=\"OSDev\" gp_index=\"%d\" name=\"%s\" osdev_type=\"3\"/>", next_id++, p->card);
    }
    fprintf(f, "</object>\n");
}

static void begin_bridge(FILE *f, unsigned bus, unsigned n_bus)
{
    fprintf(f,
            "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[%02x-%02x]\" "
            "pci_busid=\"0000:%02x:1f.0\" pci_type=\"0604 [1000:c010] [0000:0000] 00\" pci_link_speed=\"0.0\">\n",
            next_id++, bus, bus + n_bus, bus - 1);
}

static void put_root(FILE *f, const struct place *all, int processor, int root)
{
    bool any = false;
    for (const struct place *p = all; p->processor >= 0; p++) {
        any = any || (p->processor == processor && p->root == root);
    }
    if (!any) {
        return;
    }
    fprintf(f, "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[00-ff]\">\n",
            next_id++);
    for (int bridge = -1; bridge < 4; bridge++) {
        bool open = false;
        for (const struct place *p = all; p->processor >= 0; p++) {
            if (p->processor != processor || p->root != root || p->bridge != bridge) {
                continue;
            }
            if (!open || bridge < 0) {
                begin_bridge(f, p->bus, 15);
            }
            open = true;
            put_device(f, p);
            if (bridge < 0) {
                fprintf(f, "</object>\n");
            }
        }
        if (open && bridge >= 0) {
            fprintf(f, "</object>\n");
        }
    }
    fprintf(f, "</object>\n");
}

static void put_sets(FILE *f, unsigned set)
{
    fprintf(f, " cpuset=\"0x%08x\" complete_cpuset=\"0x%08x\" nodeset=\"0x%08x\" complete_nodeset=\"0x%08x\"", set, set,
            set, set);
}

static void put_processor(FILE *f, const struct place *all, int i)
{
    fprintf(f, "<object type=\"Package\" os_index=\"%d\" gp_index=\"%d\"", i, next_id++);
    put_sets(f, 1u << i);
    fprintf(f, ">\n<object type=\"NUMANode\" os_index=\"%d\" gp_index=\"%d\" local_memory=\"1073741824\"", i,
            next_id++);
    put_sets(f, 1u << i);
    fprintf(f, "/>\n<object type=\"PU\" os_index=\"%d\" gp_index=\"%d\"", i, next_id++);
    put_sets(f, 1u << i);
    fprintf(f, "/>\n");
    for (int root = 0; root < 4; root++) {
        put_root(f, all, i, root);
    }
    fprintf(f, "</object>\n");
}

/* The map that hwloc's edge draws of it, on a machine of two processors. */
static void draw(const struct place *all, struct gr_near_map *map)
{
    char name[] = "/tmp/graft-topology-XXXXXX";
    const char *why = NULL;
    const int fd = mkstemp(name);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    next_id = 2;
    fprintf(f, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
               "version=\"2.0\">\n<object type=\"Machine\" os_index=\"0\" gp_index=\"1\"");
    put_sets(f, 3);
    fprintf(f, " allowed_cpuset=\"0x%08x\" allowed_nodeset=\"0x%08x\">\n", allowed, allowed);
    put_processor(f, all, 0);
    put_processor(f, all, 1);
    fprintf(f, "</object>\n</topology>\n");
    fclose(f);
    setenv("HWLOC_XMLFILE", name, 1);
    const enum gr_status st = gr_near_map_draw(map, &why);
    unsetenv("HWLOC_XMLFILE");
    unlink(name);
    if (st != GR_OK && strstr(why, "no hwloc") != NULL) {
        skip();
    }
    assert_int_equal(st, GR_OK);
}

static enum gr_status draw_own(struct gr_near_map *map, const char **why)
{
    if (GR_SANITIZED) { /* libpciaccess, which hwloc loads for what lies on PCI, never gives its memory back */
        setenv("HWLOC_COMPONENTS", "-pci", 1);
    }
    const enum gr_status st = gr_near_map_draw(map, why);
    unsetenv("HWLOC_COMPONENTS");
    return st;
}

static struct gr_near_choice choose_of(const struct gr_near_map *map, unsigned bus, const char *const *name, int n)
{
    return gr_near_choose(map, &(struct gr_pci_address){.bus = bus}, name, n);
}

static const char *const eight[] = {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"};

static void expect(const struct gr_near_map *map, unsigned bus, int n_name, const char *card, enum gr_near_kind kind)
{
    const struct gr_near_choice c = choose_of(map, bus, eight, n_name);
    if (c.i_name < 0 || strcmp(eight[c.i_name], card) != 0 || c.kind != kind) {
        fail_msg("GPU at bus %02x: %s, %s, and not %s, %s", bus, c.i_name < 0 ? "none" : eight[c.i_name],
                 gr_near_words(c.kind), card, gr_near_words(kind));
    }
}

/* Pairs of GPUs and of cards on each of four switches, the cards numbered against the order of GPUs. */
static void test_eight_and_eight(void **state)
{
    (void)state;
    static const struct place dgx[] = {
        {0, 0, 0, 0x11, GPU},
        {0, 0, 0, 0x12, GPU},
        {0, 0, 0, 0x13, "mlx5_7"},
        {0, 0, 0, 0x14, "mlx5_6"},
        {0, 1, 0, 0x31, GPU},
        {0, 1, 0, 0x32, GPU},
        {0, 1, 0, 0x33, "mlx5_5"},
        {0, 1, 0, 0x34, "mlx5_4"},
        {1, 0, 0, 0x91, GPU},
        {1, 0, 0, 0x92, GPU},
        {1, 0, 0, 0x93, "mlx5_3"},
        {1, 0, 0, 0x94, "mlx5_2"},
        {1, 1, 0, 0xb1, GPU},
        {1, 1, 0, 0xb2, GPU},
        {1, 1, 0, 0xb3, "mlx5_1"},
        {1, 1, 0, 0xb4, "mlx5_0"},
        END,
    };
    static const unsigned bus[] = {0x11, 0x12, 0x31, 0x32, 0x91, 0x92, 0xb1, 0xb2};
    static struct gr_near_map map;
    draw(dgx, &map);
    assert_int_equal(map.n_gpu, 8);
    assert_int_equal(map.n_card, 8);
    for (int i = 0; i < 8; i++) {
        expect(&map, bus[i], 8, eight[7 - i], GR_NEAR_SWITCH); /* each its own */
    }
    assert_int_equal(choose_of(&map, 0x11, eight, 8).n_as_near, 2);
    /* Of three at the other processor GPUs of the first have a turn each. */
    expect(&map, 0x11, 3, "mlx5_2", GR_NEAR_MACHINE);
    expect(&map, 0x12, 3, "mlx5_1", GR_NEAR_MACHINE);
    expect(&map, 0x31, 3, "mlx5_0", GR_NEAR_MACHINE);
    expect(&map, 0x32, 3, "mlx5_2", GR_NEAR_MACHINE);
}

static void test_roots_and_processors(void **state)
{
    (void)state;
    static const struct place machine[] = {
        {0, 0, -1, 0x10, GPU}, {0, 0, -1, 0x20, "mlx5_3"}, {0, 1, -1, 0x30, "mlx5_2"}, {1, 0, -1, 0x80, "mlx5_1"},
        {1, 0, 0, 0x90, GPU},  {1, 0, 0, 0x91, "mlx5_0"},  {1, 1, -1, 0xa0, GPU},      END,
    };
    static struct gr_near_map map;
    draw(machine, &map);
    expect(&map, 0x10, 8, "mlx5_3", GR_NEAR_ROOT);
    expect(&map, 0x10, 3, "mlx5_2", GR_NEAR_NODE);
    expect(&map, 0x10, 2, "mlx5_1", GR_NEAR_MACHINE); /* the first of two by address, as its first GPU */
    expect(&map, 0x90, 8, "mlx5_0", GR_NEAR_SWITCH);
    expect(&map, 0xa0, 2, "mlx5_0",
           GR_NEAR_NODE); /* at the processor that this process may not use; the other's turn */
}

/* Whichever CPUs a process may use, all of it is found and chosen alike: a cgroup without a processor takes none of its
 * cards away. [D8] */
static void test_few_cpus(void **state)
{
    for (allowed = 1; allowed <= 3; allowed++) {
        test_eight_and_eight(state);
        test_roots_and_processors(state);
    }
    allowed = 1;
}

/* As taskset has it: the map of this machine, if it has one, is that of all CPUs. */
static void test_taskset(void **state)
{
    (void)state;
    static struct gr_near_map all, few;
    const char *why = NULL;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    CPU_ZERO(&one);
    for (int i = CPU_SETSIZE - 1; i >= 0 && CPU_COUNT(&one) == 0; i--) {
        if (CPU_ISSET(i, &before)) {
            CPU_SET(i, &one);
        }
    }
    const enum gr_status st = draw_own(&all, &why);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    const enum gr_status again = draw_own(&few, &why);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    assert_int_equal(st, again);
    assert_int_equal(all.n_gpu, few.n_gpu);
    assert_int_equal(all.n_card, few.n_card);
    for (int i = 0; i < all.n_card; i++) {
        assert_string_equal(all.card[i].name, few.card[i].name);
        assert_int_equal(all.card[i].n_step, few.card[i].n_step);
    }
}

/* One card for all, none, and a GPU that the map has not: nothing is known then. */
static void test_little_is_known(void **state)
{
    (void)state;
    static const struct place one[] = {{0, 0, -1, 0x10, GPU}, {1, 0, -1, 0x90, GPU}, {1, 0, -1, 0xa0, "mlx5_0"}, END};
    static const struct place none[] = {END};
    static struct gr_near_map map;
    draw(one, &map);
    expect(&map, 0x10, 8, "mlx5_0", GR_NEAR_MACHINE);
    expect(&map, 0x90, 8, "mlx5_0", GR_NEAR_ROOT);
    assert_int_equal(choose_of(&map, 0x11, eight, 8).i_name, -1);
    assert_int_equal(choose_of(&map, 0x10, eight + 1, 7).i_name, -1);
    assert_int_equal(choose_of(&map, 0x10, eight, 0).i_name, -1);
    draw(none, &map);
    assert_int_equal(map.n_gpu + map.n_card, 0);
    assert_int_equal(choose_of(&map, 0x10, eight, 8).i_name, -1);
}

/* This machine's own map can be drawn, whatever it has. */
static void test_this_machine(void **state)
{
    (void)state;
    static struct gr_near_map map;
    const char *why = NULL;
    const enum gr_status st = draw_own(&map, &why);
    if (st != GR_OK) {
        assert_non_null(strstr(why, "hwloc"));
        skip();
    }
    for (int i = 0; i < map.n_card; i++) {
        assert_true(map.card[i].n_step > 0 && map.card[i].name[0] != '\0');
    }
}

static void test_addresses(void **state)
{
    (void)state;
    struct gr_pci_address a;
    assert_true(gr_pci_parse("0000:17:00.0", &a) && a.domain == 0 && a.bus == 0x17 && a.function == 0);
    assert_true(gr_pci_parse("00010002:AB:1f.7", &a) && a.domain == 0x10002 && a.bus == 0xab && a.device == 31);
    assert_true(gr_pci_parse("17:02.1", &a) && a.domain == 0 && a.bus == 0x17 && a.device == 2 && a.function == 1);
    static const char *const wrong[] = {"", "17", "0000:17:00", "0000:17:00.0x", "0000:17:20.0", "0000:17:00.8", "gpu"};
    for (size_t i = 0; i < GR_ARRAY_LEN(wrong); i++) {
        assert_false(gr_pci_parse(wrong[i], &a));
    }
}

int main(void)
{
    gr_log_init("test_nearest");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eight_and_eight), cmocka_unit_test(test_roots_and_processors),
        cmocka_unit_test(test_little_is_known), cmocka_unit_test(test_few_cpus),
        cmocka_unit_test(test_taskset),         cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests_name("nearest", tests, NULL, NULL);
}
