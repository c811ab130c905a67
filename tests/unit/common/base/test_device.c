/* Devices of a target's ranks: which lists can be, and the line about those that cannot. */
#include "common/base/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "tests/unit/log_capture.h"

static struct gr_devices list(const char *text)
{
    struct gr_devices d = {.n = 0};
    char copy[128];
    snprintf(copy, sizeof(copy), "%s", text);
    for (char *at = strtok(copy, ","); at != NULL; at = strtok(NULL, ",")) {
        assert_int_equal(gr_device_parse("--device", at, &d.device[d.n++]), GR_OK);
    }
    return d;
}

static void test_texts(void **state)
{
    (void)state;
    static const char *const texts[] = {"cpu", "cuda:0", "cuda:local", "cuda:3,cuda:1",
                                        "cuda:255,cuda:254,cuda:253,cuda:252,cuda:251,cuda:250,cuda:249,cuda:248"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        const struct gr_devices d = list(texts[i]);
        char text[GR_DEVICES_TEXT];
        gr_devices_text(&d, text, sizeof(text));
        assert_string_equal(text, texts[i]);
        assert_true(gr_devices_on_gpu(&d) == (i > 0));
    }
    const struct gr_devices d = list("cuda:3,cuda:1");
    assert_true(gr_devices_of(&d, 1) == 1 && gr_devices_has(&d, 3) && !gr_devices_has(&d, 0));
    const struct gr_devices cpu = list("cpu");
    assert_true(gr_devices_of(&cpu, 3) == GR_DEVICE_CPU);
}

static void test_checks(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int n_rank;
        const char *words; /* NULL: it can be */
    } cases[] = {
        {"cpu", 1, NULL},
        {"cpu", 8, NULL},
        {"cuda:2", 1, NULL},
        {"cuda:1,cuda:0", 2, NULL},
        {"cuda:0,cuda:1", 1, "2 GPUs for a model in one process"},
        {"cuda:0,cuda:1,cuda:2", 1, "3 GPUs; a target has one for each rank, and 1, 2, 4 or 8 ranks"},
        {"cuda:0", 4,
         "1 GPU for 4 ranks (--tensor-parallel-size 4); each rank has one, as in cuda:0,cuda:1,cuda:2,cuda:3"},
        {"cuda:0,cuda:1,cuda:2", 2, "3 GPUs for 2 ranks"},
        {"cuda:1,cuda:1", 2, "cuda:1 is there twice"},
        {"cuda:0,cpu", 2, "cpu stands alone"},
        {"cpu,cpu", 2, "cpu stands alone"},
        {"cuda:local", 1, "only `graft launch'"},
        {"cuda:local,cuda:1", 2, "only `graft launch'"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct log_capture log;
        const struct gr_devices d = list(cases[i].text);
        log_capture_begin(&log);
        const enum gr_status st = gr_devices_check("--device", &d, cases[i].n_rank);
        const char *said = log_capture_end(&log);
        assert_true((st == GR_OK) == (cases[i].words == NULL));
        assert_true(cases[i].words == NULL || strstr(said, cases[i].words) != NULL);
    }
}

/* In rank 0's process, or on a GPU that no rank has. */
static void test_drafter(void **state)
{
    (void)state;
    struct log_capture log;
    const struct gr_devices d = list("cuda:2,cuda:0");
    assert_int_equal(gr_devices_beside(&d, "--draft-device", 2), GR_OK);
    assert_int_equal(gr_devices_beside(&d, "--draft-device", 1), GR_OK);
    assert_int_equal(gr_devices_beside(&d, "--draft-device", GR_DEVICE_CPU), GR_OK);
    log_capture_begin(&log);
    assert_int_equal(gr_devices_beside(&d, "--draft-device", 0), GR_EINVAL);
    assert_non_null(strstr(log_capture_end(&log), "the GPU of the target's rank 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_checks),
        cmocka_unit_test(test_drafter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
