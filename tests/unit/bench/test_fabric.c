/* Counters of lost packets, over folders that are laid out as /sys/class/infiniband. */
#include "bench/fabric.h"

#include "tests/unit/write_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char root[] = "/tmp/fabric-XXXXXX";

static void put(const char *device, int port, const char *name, const char *text)
{
    char path[200];
    const int n = snprintf(path, sizeof(path), "%s/%s/ports/%d/hw_counters/%s", root, device, port, name);
    for (int i = (int)sizeof(root); i < n; i++) { /* each folder on the way, below root */
        if (path[i] == '/') {
            path[i] = '\0';
            (void)mkdir(path, 0700);
            path[i] = '/';
        }
    }
    write_file(path, text);
}

static void test_losses(void **state)
{
    (void)state;
    struct gr_fabric_counts none, before, now;
    char text[GR_FABRIC_TEXT];
    gr_fabric_read("/tmp/no-such-folder", &none);
    assert_false(none.known);
    gr_fabric_read(root, &none);
    assert_false(none.known);
    put("mlx5_0", 1, "out_of_sequence", "100\n");
    put("mlx5_1", 1, "out_of_sequence", "7\n");
    put("mlx5_1", 2, "local_ack_timeout_err", "0\n");
    put("mlx5_1", 2, "np_cnp_sent", "5\n");
    gr_fabric_read(root, &before);
    assert_true(before.known);
    assert_int_equal(gr_fabric_lost(&before, &before, text), 0);
    assert_string_equal(text, "");
    put("mlx5_0", 1, "out_of_sequence", "102\n");
    put("mlx5_1", 1, "out_of_sequence", "8\n");
    put("mlx5_1", 2, "local_ack_timeout_err", "1\n");
    put("mlx5_1", 2, "np_cnp_sent", "9\n"); /* congestion that was told of is no loss */
    put("mlx5_1", 2, "packet_seq_err", "not a number\n");
    gr_fabric_read(root, &now);
    assert_int_equal(gr_fabric_lost(&before, &now, text), 4);
    assert_string_equal(text, "out_of_sequence 3, local_ack_timeout_err 1");
    assert_int_equal(gr_fabric_lost(&now, &before, text), 0); /* a driver that was loaded again */
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[80];
    snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_losses)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
