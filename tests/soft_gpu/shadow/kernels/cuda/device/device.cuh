/* The instructions of kernels/cuda/device/device.cuh, in software. */
#ifndef GR_KERNELS_CUDA_DEVICE_CUH
#define GR_KERNELS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define GR_SHARED(T, name)           \
    static const char name##_is = 0; \
    T &name = *(T *)soft_gpu::shared_variable(&name##_is, sizeof(T))
#define GR_DYNAMIC_SHARED(T, name, alignment) T *const name = (T *)soft_gpu::dynamic_shared()

namespace gr
{

static inline uint32_t smem_addr(const void *p)
{
    return soft_gpu::shared_address(p);
}

static inline void bar_init(uint64_t *b, int n)
{
    soft_gpu::bar_init(smem_addr(b), n);
}

static inline void bar_expect(uint64_t *b, uint32_t bytes)
{
    soft_gpu::bar_arrive(smem_addr(b), bytes);
}

static inline void bar_arrive(uint64_t *b)
{
    soft_gpu::bar_arrive(smem_addr(b), 0);
}

static inline void bar_arrive_as(uint64_t *b, int n)
{
    for (int i = 0; i < n; i++) {
        bar_arrive(b);
    }
}

static inline uint32_t smem_at(uint32_t addr, int rank)
{
    return soft_gpu::shared_address_at(addr, rank);
}

static inline void bar_arrive_at(uint64_t *b, int rank)
{
    soft_gpu::bar_arrive(smem_at(smem_addr(b), rank), 0);
}

static inline void bar_wait(uint64_t *b, uint32_t parity)
{
    soft_gpu::bar_wait(smem_addr(b), parity);
}

static inline int cluster_rank()
{
    return soft_gpu::cluster_rank();
}

static inline void copy_line(const void *from, uint32_t to, uint64_t *bar, uint32_t bytes)
{
    soft_gpu::copy_bulk(from, to, smem_addr(bar), bytes, 1u << cluster_rank());
}

static inline void copy_line_once(const void *from, uint32_t to, uint64_t *bar, uint32_t bytes)
{
    copy_line(from, to, bar, bytes);
}

static inline void copy_line_all(const void *from, uint32_t to, uint64_t *bar, uint32_t bytes, uint16_t mask)
{
    soft_gpu::copy_bulk(from, to, smem_addr(bar), bytes, mask);
}

static inline void send_four(uint32_t to, uint32_t bar, float x0, float x1, float x2, float x3)
{
    soft_gpu::send(to, bar, {x0, x1, x2, x3});
}

static inline void store_four(float *to, float x0, float x1, float x2, float x3)
{
    to[0] = x0, to[1] = x1, to[2] = x2, to[3] = x3;
}

static inline void cluster_arrive_early()
{
    soft_gpu::cluster_arrive();
}

static inline void cluster_wait()
{
    soft_gpu::cluster_wait();
}

static inline void cluster_meet()
{
    cluster_arrive_early();
    cluster_wait();
}

static inline void bar_init_done()
{
}

static inline void fence_async_shared()
{
}

static inline void named_sync(int id, int n_thread)
{
    soft_gpu::sync_threads(id, n_thread);
}

static inline void named_arrive(int id, int n_thread)
{
    soft_gpu::arrive_threads(id, n_thread);
}

template <int N> static inline void regs_more()
{
    (void)soft_gpu::meet_warp("setmaxnreg", N);
}

template <int N> static inline void regs_fewer()
{
    (void)soft_gpu::meet_warp("setmaxnreg", N);
}

static inline void wait_for_previous()
{
    soft_gpu::wait_for_previous();
}

static inline void let_next_start()
{
    soft_gpu::let_next_start();
}

static inline void prefetch(const void *)
{
}

static inline float flushed(float x)
{
    return std::fpclassify(x) == FP_SUBNORMAL ? copysignf(0.0f, x) : x;
}

static inline float exp2_fast(float x)
{
    return flushed(exp2f(flushed(x)));
}

static inline float log2_fast(float x)
{
    return flushed(log2f(flushed(x)));
}

static inline void add_two(float *p, float x, float y)
{
    p[0] += x, p[1] += y;
}

static inline uint32_t bf16_bits(float x)
{
    const uint32_t u = __float_as_uint(x);
    return std::isnan(x) ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}

static inline uint32_t pack_bf16(float first, float second)
{
    return bf16_bits(second) << 16 | bf16_bits(first);
}

/* The matrix instructions of a warp: matrix.cpp. */
void multiply_16x8(float &c0, float &c1, float &c2, float &c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                   uint32_t b0, uint32_t b1);
void load_matrices(uint32_t (&r)[4], uint32_t addr);
void load_matrices_turned(uint32_t (&r)[4], uint32_t addr);

static inline int opaque(int x)
{
    return x;
}

static inline uint32_t count_up(uint32_t *n)
{
    return __atomic_fetch_add(n, 1u, __ATOMIC_ACQ_REL);
}

static inline void arrive_count(uint32_t *n)
{
    soft_gpu::arrive_count(n);
}

static inline void wait_count(const uint32_t *n, uint32_t target)
{
    soft_gpu::wait_count(n, target);
}

static inline void publish(uint32_t *to, uint32_t value)
{
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

static inline uint32_t look(const uint32_t *from)
{
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

static inline void between_looks()
{
    soft_gpu::give_way();
}

static inline float4 load_of_peer(const float *p)
{
    return *(const float4 *)p;
}

static inline uint64_t now_ns()
{
    return soft_gpu::now_ns();
}

} // namespace gr

#endif
