/* Far memory of a real GPU, and a verbs pair that has its rows there. The devices are in memory: what a network card
 * would do over PCIe the test does by the driver's copies. Skipped without a GPU. */
#include "tests/transport/test_far.h"
#include "tests/transport/verbs_pair.h"

#include "common/base/device.h"
#include "common/base/log.h"
#include "model/cuda/far_memory.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 4 * GR_FAR_PAGE_BYTES };

static const struct gr_far_memory *gpu;

static void move(void *to, const void *from, size_t bytes)
{
    GR_ASSERT(cudaMemcpy(to, from, bytes, cudaMemcpyDefault) == cudaSuccess);
}

static int set_up(void **state)
{
    (void)verbs_set_up(state);
    test_far_move = move;
    return gr_cuda_far_memory_open(0, &gpu) == GR_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    const int left = verbs_nothing_left(state);
    gr_cuda_far_memory_close(gpu);
    gpu = NULL;
    return left;
}

static void test_copies(void **state)
{
    (void)state;
    uint8_t *a = NULL, *b = NULL, out[BYTES], in[BYTES];
    assert_int_equal(gpu->take(gpu->ctx, BYTES, &a), GR_OK);
    assert_int_equal(gpu->take(gpu->ctx, BYTES, &b), GR_OK);
    assert_int_equal((uintptr_t)a % GR_FAR_PAGE_BYTES, 0);
    for (uint32_t i = 0; i < 50; i++) {
        fill(out, BYTES, i);
        assert_int_equal(gpu->copy(gpu->ctx, a, out, BYTES), GR_OK);
        memset(out, 0, BYTES); /* the host's side is done with */
        assert_int_equal(gpu->copy(gpu->ctx, b + 52, a + 52, BYTES - 52), GR_OK);
        assert_int_equal(gpu->copy(gpu->ctx, b, a, 52), GR_OK);
        assert_int_equal(gpu->copy(gpu->ctx, in, b, BYTES), GR_OK);
        assert_true(is_filled(in, BYTES, i));
    }
    assert_int_equal(gpu->wait(gpu->ctx), GR_OK);
    assert_int_equal(gpu->arrived(gpu->ctx), GR_OK);
    gpu->give(gpu->ctx, a);
    gpu->give(gpu->ctx, b);
}

static void test_export(void **state)
{
    (void)state;
    uint8_t *p = NULL;
    assert_int_equal(gpu->take(gpu->ctx, BYTES, &p), GR_OK);
    const int fd = gpu->export_fd(gpu->ctx, p, BYTES);
    print_message("# unfit: %s; dma-buf: %s\n", gpu->unfit != NULL ? gpu->unfit : "no",
                  fd >= 0 ? "yes" : strerror(-fd));
    if (fd >= 0) {
        assert_true(lseek(fd, 0, SEEK_END) >= BYTES);
        close(fd);
    }
    gpu->give(gpu->ctx, p);
}

static void test_pair(void **state)
{
    (void)state;
    for (int two_sided = 0; two_sided < 2; two_sided++) {
        struct pair p;
        pair_verbs[0].far = gpu; /* the other end has its frames whole */
        pair_verbs[0].two_sided = two_sided != 0;
        open_pair(&p);
        assert_int_equal(p.conn[0]->far != NULL, gpu->unfit == NULL);
        exchange(&p);
        pair_close(&p);
    }
}

int main(void)
{
    gr_log_init("test_far_cuda");
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {CASE(test_copies), CASE(test_export), CASE(test_pair)};
    if (gr_device_check(0) != GR_OK) {
        puts("1..0 # SKIP no GPU"); /* meson takes a case that cmocka skips for one that has failed */
        return 0;
    }
    return cmocka_run_group_tests_name("far memory of a GPU", tests, NULL, NULL);
}
