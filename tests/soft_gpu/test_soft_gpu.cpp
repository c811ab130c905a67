/* Does the GPU in software find what it is there to find? Small kernels, each right, and with one thing wrong: that one
 * must give a wrong result, or be told of, with some of 40 seeds; the right one never. */
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/wgmma.cuh"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include <cuda_runtime.h>

#include <atomic>
#include <thread>
#include <vector>

namespace
{

constexpr int N_SEED = 40, N = 256;

/* Memory that the device knows. */
struct Memory {
    float *p = nullptr;
    explicit Memory(int n)
    {
        assert_int_equal(cudaMalloc(&p, (size_t)n * sizeof(float)), cudaSuccess);
    }
    Memory(const Memory &) = delete;
    ~Memory()
    {
        (void)cudaFree(p);
    }
};

soft_gpu::Launch kernel(int n_block, int n_thread, int cluster, std::function<void()> body)
{
    return {{(unsigned)n_block, 1, 1}, (unsigned)n_thread, cluster, true, 16384, nullptr, std::move(body)};
}

/* Seeds with which a rule was broken, or the result was not what it should be. */
template <class Prepare, class Right>
int n_wrong(const std::vector<soft_gpu::Launch> &launches, Prepare prepare, Right right)
{
    int n = 0;
    for (int seed = 0; seed < N_SEED; seed++) {
        soft_gpu::set_seed((uint64_t)seed);
        prepare();
        n += !soft_gpu::run(launches) || !right();
    }
    return n;
}

/* wrong(false) is right, wrong(true) is not. */
template <class Wrong> void compare(Wrong wrong)
{
    assert_int_equal(wrong(false), 0);
    assert_int_not_equal(wrong(true), 0);
}

void *smem_of(size_t offset)
{
    return (uint8_t *)soft_gpu::dynamic_shared() + offset;
}

/* ---- copies ---- */

void copies_are_waited_for(void **)
{
    const Memory from(N), to(N);
    compare([&](bool wrong) {
        const auto body = [&, wrong] {
            float *slot = (float *)smem_of(0);
            uint64_t *bar = (uint64_t *)smem_of(8192);
            if (threadIdx.x == 0) {
                gr::bar_init(bar, 1);
                gr::bar_expect(bar, N * 4);
                gr::copy_line(from.p, gr::smem_addr(slot), bar, N * 4);
            }
            __syncthreads();
            if (!wrong) {
                gr::bar_wait(bar, 0);
            }
            to.p[threadIdx.x] = slot[threadIdx.x];
        };
        return n_wrong({kernel(1, N, 1, body)}, [&] { std::fill_n(from.p, N, 3.0f); },
                       [&] { return std::count(to.p, to.p + N, 3.0f) == N; });
    });
}

/* A ring of one slot: who loads must wait until it has been read. */
void slots_are_released(void **)
{
    const Memory from(8 * N), to(8 * N);
    compare([&](bool wrong) {
        const auto body = [&, wrong] {
            float *slot = (float *)smem_of(0);
            uint64_t *full = (uint64_t *)smem_of(8192), *empty = full + 1;
            if (threadIdx.x == 0) {
                gr::bar_init(full, 1);
                gr::bar_init(empty, 1);
            }
            __syncthreads();
            for (int i = 0; i < 8; i++) {
                if (threadIdx.x == 32) {
                    if (!wrong) {
                        gr::bar_wait(empty, (i & 1) ^ 1);
                    }
                    gr::bar_expect(full, N * 4);
                    gr::copy_line(from.p + i * N, gr::smem_addr(slot), full, N * 4);
                }
                if (threadIdx.x < 32) {
                    gr::bar_wait(full, i & 1);
                    for (int k = (int)threadIdx.x; k < N; k += 32) {
                        to.p[i * N + k] = slot[k];
                    }
                    __syncwarp();
                    if (threadIdx.x == 0) {
                        gr::bar_arrive(empty);
                    }
                }
            }
        };
        const auto prepare = [&] {
            for (int i = 0; i < 8 * N; i++) {
                from.p[i] = (float)i;
            }
            std::fill_n(to.p, 8 * N, -1.0f);
        };
        return n_wrong({kernel(1, 64, 1, body)}, prepare, [&] { return std::equal(to.p, to.p + 8 * N, from.p); });
    });
}

void copies_stay_in_bounds(void **)
{
    const Memory from(N);
    compare([&](bool wrong) {
        const auto body = [&, wrong] {
            uint64_t *bar = (uint64_t *)smem_of(8192);
            gr::bar_init(bar, 1);
            gr::bar_expect(bar, N * 4);
            gr::copy_line(from.p + (wrong ? 4 : 0), gr::smem_addr(smem_of(0)), bar, N * 4);
            gr::bar_wait(bar, 0);
        };
        return n_wrong({kernel(1, 1, 1, body)}, [] {}, [] { return true; });
    });
    compare([&](bool wrong) {
        const auto body = [&, wrong] {
            uint64_t *bar = (uint64_t *)smem_of(8192);
            gr::bar_init(bar, 1);
            gr::bar_expect(bar, N * 4);
            gr::copy_line(from.p, gr::smem_addr(smem_of(wrong ? 16384 - 512 : 0)), bar, N * 4);
            gr::bar_wait(bar, 0);
        };
        return n_wrong({kernel(1, 1, 1, body)}, [] {}, [] { return true; });
    });
}

/* ---- clusters ---- */

void a_block_outlives_what_comes_to_it(void **)
{
    compare([&](bool wrong) {
        const auto body = [wrong] {
            uint64_t *bar = (uint64_t *)smem_of(0);
            if (threadIdx.x == 0) {
                gr::bar_init(bar, 1);
            }
            gr::cluster_meet();
            if (threadIdx.x == 0) {
                gr::bar_arrive_at(bar, gr::cluster_rank() ^ 1);
                if (!wrong) {
                    gr::bar_wait(bar, 0);
                }
            }
            __syncwarp();
            gr::cluster_meet(); /* which orders no arrival */
        };
        return n_wrong({kernel(4, 32, 2, body)}, [] {}, [] { return true; });
    });
}

void a_block_has_begun_when_something_comes(void **)
{
    compare([&](bool wrong) {
        const auto body = [wrong] {
            uint64_t *bar = (uint64_t *)smem_of(0);
            if (threadIdx.x == 0) {
                gr::bar_init(bar, 1);
            }
            if (!wrong) {
                gr::cluster_meet();
            }
            if (threadIdx.x == 0) {
                gr::bar_arrive_at(bar, gr::cluster_rank() ^ 1);
                gr::bar_wait(bar, 0);
            }
        };
        return n_wrong({kernel(4, 32, 2, body)}, [] {}, [] { return true; });
    });
}

/* ---- products ---- */

constexpr uint16_t ONE = 0x3f80; /* bf16 */

/* 64 x 16 ones times 16 x 16 ones. */
void fill_operands()
{
    uint16_t *ones = (uint16_t *)smem_of(0);
    for (int i = (int)threadIdx.x; i < 6144; i += 128) {
        ones[i] = ONE;
    }
    gr::fence_async_shared();
    __syncthreads();
}

void products_are_waited_for(void **)
{
    const Memory to(64 * 16);
    compare([&](bool wrong) {
        const auto body = [&, wrong] {
            float d[8] = {};
            fill_operands();
            gr::wgmma_fence();
            gr::wgmma_ss<16>(d, gr::wgmma_desc(gr::smem_addr(smem_of(0)), 16, 1024),
                             gr::wgmma_desc(gr::smem_addr(smem_of(8192)), 16, 1024), 0);
            gr::wgmma_commit();
            if (!wrong) {
                gr::wgmma_wait<0>();
            }
            std::copy_n(d, 8, to.p + threadIdx.x * 8);
            __syncthreads();
            gr::wgmma_wait<0>();
        };
        return n_wrong({kernel(1, 128, 1, body)}, [] {},
                       [&] { return std::count(to.p, to.p + 64 * 16, 16.0f) == 64 * 16; });
    });
}

/* Operands are read until the products are waited for. */
void operands_stay(void **)
{
    const Memory to(64 * 16);
    compare([&](bool wrong) {
        const auto body = [&, wrong] {
            float d[8] = {};
            fill_operands();
            gr::wgmma_ss<16>(d, gr::wgmma_desc(gr::smem_addr(smem_of(0)), 16, 1024),
                             gr::wgmma_desc(gr::smem_addr(smem_of(8192)), 16, 1024), 0);
            gr::wgmma_commit();
            if (!wrong) {
                gr::wgmma_wait<0>();
            }
            __syncthreads();
            ((uint16_t *)smem_of(0))[threadIdx.x] = 0;
            __syncthreads();
            gr::wgmma_wait<0>();
            std::copy_n(d, 8, to.p + threadIdx.x * 8);
        };
        return n_wrong({kernel(1, 128, 1, body)}, [] {},
                       [&] { return std::count(to.p, to.p + 64 * 16, 16.0f) == 64 * 16; });
    });
}

/* ---- warps and blocks ---- */

void threads_meet(void **)
{
    const Memory to(N);
    compare([&](bool wrong) {
        const auto body = [&, wrong] {
            float *slot = (float *)smem_of(0);
            slot[threadIdx.x] = (float)threadIdx.x;
            if (!wrong) {
                __syncthreads();
            }
            to.p[threadIdx.x] = slot[N - 1 - threadIdx.x];
        };
        const auto right = [&] {
            int n = 0;
            for (int i = 0; i < N; i++) {
                n += to.p[i] == (float)(N - 1 - i);
            }
            return n == N;
        };
        return n_wrong({kernel(1, N, 1, body)}, [] {}, right);
    });
}

void lanes_do_the_same(void **)
{
    compare([&](bool wrong) {
        const auto body = [wrong] {
            if (wrong && threadIdx.x % 2 == 0) {
                (void)__ballot_sync(~0u, 1);
            } else {
                (void)__shfl_sync(~0u, 1, 0);
            }
        };
        return n_wrong({kernel(1, 32, 1, body)}, [] {}, [] { return true; });
    });
    compare([&](bool wrong) {
        const auto body = [wrong] {
            if (!wrong || threadIdx.x % 2 == 0) {
                __syncwarp();
            }
        };
        return n_wrong({kernel(1, 32, 1, body)}, [] {}, [] { return true; });
    });
}

void nobody_waits_for_ever(void **)
{
    compare([&](bool wrong) {
        const auto body = [wrong] {
            uint64_t *bar = (uint64_t *)smem_of(0);
            if (threadIdx.x == 0) {
                gr::bar_init(bar, wrong ? 33 : 32);
            }
            __syncwarp();
            gr::bar_arrive(bar);
            gr::bar_wait(bar, 0);
        };
        return n_wrong({kernel(1, 32, 1, body)}, [] {}, [] { return true; });
    });
}

void arrivals_are_counted(void **)
{
    compare([&](bool wrong) {
        const auto body = [wrong] {
            uint64_t *bar = (uint64_t *)smem_of(0);
            if (threadIdx.x == 0) {
                gr::bar_init(bar, 2);
                gr::bar_expect(bar, 16); /* which never come */
            }
            __syncwarp();
            if (threadIdx.x < (wrong ? 2 : 1)) {
                gr::bar_arrive(bar);
            }
        };
        return n_wrong({kernel(1, 32, 1, body)}, [] {}, [] { return true; });
    });
}

/* ---- kernels one after another ---- */

/* Each adds one to what the one before made; all of them let the next one start at once. */
void the_kernel_before_is_waited_for(void **)
{
    const Memory x(9 * N);
    compare([&](bool wrong) {
        std::vector<soft_gpu::Launch> launches;
        for (int i = 0; i < 8; i++) {
            launches.push_back(kernel(8, N / 8, 1, [&, wrong, i] {
                const int at = (int)(blockIdx.x * blockDim.x + threadIdx.x);
                gr::let_next_start();
                if (!wrong || i != 5) {
                    gr::wait_for_previous();
                }
                x.p[(i + 1) * N + at] = x.p[i * N + N - 1 - at] + 1.0f;
                gr::wait_for_previous();
            }));
        }
        return n_wrong(launches, [&] { std::fill_n(x.p, 9 * N, 0.0f); },
                       [&] { return std::count(x.p + 8 * N, x.p + 9 * N, 8.0f) == N; });
    });
}

/* A kernel that does not wait ends early, and so the next but one begins while the first still runs. */
void a_kernel_that_waits_for_nobody_orders_nothing(void **)
{
    const Memory x(2);
    compare([&](bool wrong) {
        const auto first = [&] {
            gr::let_next_start();
            gr::wait_for_previous();
            x.p[0] = 1.0f;
        };
        const auto second = [wrong] {
            if (!wrong) {
                gr::wait_for_previous();
            }
        };
        const auto third = [&] {
            gr::wait_for_previous();
            x.p[1] = x.p[0];
        };
        return n_wrong({kernel(1, 1, 1, first), kernel(1, 1, 1, second), kernel(1, 1, 1, third)},
                       [&] { x.p[0] = x.p[1] = 0.0f; }, [&] { return x.p[1] == 1.0f; });
    });
}

/* ---- threads of the host ---- */

/* cudaFree() waits for what streams of other threads have: it must not take from them what they just make. */
void another_thread_frees_memory(void **)
{
    constexpr int N_LAUNCH = 2000;
    const Memory x(1);
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
    cudaLaunchConfig_t config{};
    config.gridDim = {1, 1, 1}, config.blockDim = {32, 1, 1}, config.stream = stream;
    std::atomic<bool> ends{false};
    std::atomic<int> n_failed{0};
    std::thread other([&] {
        while (!ends) {
            void *p = nullptr;
            n_failed += cudaMalloc(&p, 256) != cudaSuccess || cudaFree(p) != cudaSuccess;
        }
    });
    *x.p = 0.0f;
    int n_launched = 0;
    for (int i = 0; i < N_LAUNCH; i++) {
        n_launched += soft_gpu_launch(&config, nullptr, [&] { *x.p += threadIdx.x == 0 ? 1.0f : 0.0f; }) == cudaSuccess;
        n_launched -= i % 8 == 7 && cudaStreamSynchronize(stream) != cudaSuccess;
    }
    const cudaError_t at_end = cudaStreamSynchronize(stream);
    ends = true;
    other.join();
    assert_int_equal(at_end, cudaSuccess);
    assert_int_equal(n_launched, N_LAUNCH);
    assert_int_equal(n_failed, 0);
    assert_int_equal((int)*x.p, N_LAUNCH);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

} // namespace

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_waited_for),
        cmocka_unit_test(slots_are_released),
        cmocka_unit_test(copies_stay_in_bounds),
        cmocka_unit_test(a_block_outlives_what_comes_to_it),
        cmocka_unit_test(a_block_has_begun_when_something_comes),
        cmocka_unit_test(products_are_waited_for),
        cmocka_unit_test(operands_stay),
        cmocka_unit_test(threads_meet),
        cmocka_unit_test(lanes_do_the_same),
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(arrivals_are_counted),
        cmocka_unit_test(the_kernel_before_is_waited_for),
        cmocka_unit_test(a_kernel_that_waits_for_nobody_orders_nothing),
        cmocka_unit_test(another_thread_frees_memory),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
