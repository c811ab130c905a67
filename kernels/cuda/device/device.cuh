/* Hopper's instructions that the kernels share, by the names of what they do: barriers in shared memory (mbarrier), the
 * copy engine, clusters, the order between ordinary and asynchronous accesses. Device code of sm_90a only. */
#ifndef GR_KERNELS_CUDA_DEVICE_DEVICE_CUH
#define GR_KERNELS_CUDA_DEVICE_DEVICE_CUH

#include <cstdint>

/* A variable of the block. */
#define GR_SHARED(T, name) __shared__ T name
/* Shared memory whose size the launch says; the kernel's only piece of it. */
#define GR_DYNAMIC_SHARED(T, name, alignment) \
    extern __shared__ __align__(alignment)    \
    T name[]

namespace gr
{

__device__ __forceinline__ uint32_t smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void bar_init(uint64_t *b, int n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(b)), "r"(n));
}

/* One arrival, and so many bytes are to come. */
__device__ __forceinline__ void bar_expect(uint64_t *b, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(b)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void bar_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_addr(b)) : "memory");
}

/* For so many. */
__device__ __forceinline__ void bar_arrive_as(uint64_t *b, int n)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(b)), "r"(n) : "memory");
}

/* At the same barrier of another block of the cluster. */
__device__ __forceinline__ void bar_arrive_at(uint64_t *b, int rank)
{
    asm volatile("{\n.reg .b32 a;\nmapa.shared::cluster.u32 a, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [a];\n}" ::"r"(smem_addr(b)),
                 "r"(rank)
                 : "memory");
}

__device__ __forceinline__ void bar_wait(uint64_t *b, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(smem_addr(b)),
                 "r"(parity)
                 : "memory");
}

/* A line of memory into shared memory; `bytes` are then counted off the barrier. Multiples of 16. */
__device__ __forceinline__ void copy_line(const void *from, uint32_t to, uint64_t *bar, uint32_t bytes)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(smem_addr(bar))
                 : "memory");
}

/* The same of what nobody will read again soon: the first to leave the L2 cache. */
__device__ __forceinline__ void copy_line_once(const void *from, uint32_t to, uint64_t *bar, uint32_t bytes)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(smem_addr(bar)), "l"(0x12F0000000000000ull)
                 : "memory");
}

/* The same into several blocks of the cluster, at equal addresses, counted off the barrier of each. */
__device__ __forceinline__ void copy_line_all(const void *from, uint32_t to, uint64_t *bar, uint32_t bytes,
                                              uint16_t mask)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(smem_addr(bar)), "h"(mask)
                 : "memory");
}

__device__ __forceinline__ int cluster_rank()
{
    int r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

/* An address in this block's shared memory as the same place in another block of the cluster. */
__device__ __forceinline__ uint32_t smem_at(uint32_t addr, int rank)
{
    uint32_t a;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(addr), "r"(rank));
    return a;
}

/* Four values to a place from smem_at(); their 16 bytes are then counted off the barrier, of the same block. */
__device__ __forceinline__ void send_four(uint32_t to, uint32_t bar, float x0, float x1, float x2, float x3)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(x0), "f"(x1), "f"(x2), "f"(x3), "r"(bar)
                 : "memory");
}

/* Four values that lie in registers as the matrix units left them, by one store: the compiler would make four. */
__device__ __forceinline__ void store_four(float *to, float x0, float x1, float x2, float x3)
{
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x0), "f"(x1), "f"(x2), "f"(x3) : "memory");
}

/* All threads of the cluster meet, in two halves or at once. Orders nothing but barriers that were made visible by
 * bar_init_done(). */
__device__ __forceinline__ void cluster_arrive_early()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_meet()
{
    cluster_arrive_early();
    cluster_wait();
}

/* By the thread that made barriers, before others use them. */
__device__ __forceinline__ void bar_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* What ordinary stores wrote in shared memory is seen by the matrix units and the copy engine. */
__device__ __forceinline__ void fence_async_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void named_sync(int id, int n_thread)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_thread) : "memory");
}

__device__ __forceinline__ void named_arrive(int id, int n_thread)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_thread) : "memory");
}

template <int N> __device__ __forceinline__ void regs_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void regs_fewer()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* Kernels of a stream that overlap: what is before wait_for_previous() may run while the kernel before still does, and
 * must read nothing of it; after let_next_start() the next kernel's blocks may be placed. */
__device__ __forceinline__ void wait_for_previous()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void let_next_start()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* A line of memory that only reads will follow on, into the nearest cache. */
__device__ __forceinline__ void prefetch(const void *p)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_fast(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* p[0] += x, p[1] += y, each rounded once, without a wait for the old values: the L2 cache adds. For places to which
 * nobody else adds meanwhile. Subnormal values may count as zero. p aligned to 8. */
__device__ __forceinline__ void add_two(float *p, float x, float y)
{
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(x), "f"(y) : "memory");
}

/* Two bf16 in a word, the first in the lower half. */
__device__ __forceinline__ uint32_t pack_bf16(float first, float second)
{
    uint32_t w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(second), "f"(first));
    return w;
}

/* One warp: 16 rows of A times 8 columns of B, 16 of k, bf16, added to c. Of rows lane / 4 and lane / 4 + 8
 * a lane has in a0, a1 the k lane % 4 * 2 and the next, in a2, a3 those 8 further on; b0, b1 so of column lane / 4;
 * c0, c1: columns lane % 4 * 2 and the next of the one row, c2, c3 of the other. */
__device__ __forceinline__ void multiply_16x8(float &c0, float &c1, float &c2, float &c3, uint32_t a0, uint32_t a1,
                                              uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
                 " {%0, %1, %2, %3};"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Four matrices of 8 rows of 16 bytes from shared memory: lane l has the address of row l % 8 of matrix l / 8; of each
 * matrix it gets the two values l % 4 * 2 and the next of row l / 4. */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

/* The same, rows and columns exchanged. */
__device__ __forceinline__ void load_matrices_turned(uint32_t (&r)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

/* The same number, about which the compiler knows nothing. */
__device__ __forceinline__ int opaque(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* Counts one more and says how many there were. Orders what this thread saw before, and what it will see after. */
__device__ __forceinline__ uint32_t count_up(uint32_t *n)
{
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(n) : "memory");
    return before;
}

/* Counts one more, after all that this thread wrote or saw: that of threads it has met at a barrier, too. */
__device__ __forceinline__ void arrive_count(uint32_t *n)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(n) : "memory");
}

/* Until so many have arrived: other blocks of the grid, which must all be running. What they wrote is seen by this
 * thread after it, by its copies too, and by those that it meets. Who waits for 10 s ends the launch with an error. */
__device__ __forceinline__ void wait_count(const uint32_t *n, uint32_t target)
{
    uint64_t begin = 0, now;
    for (uint32_t turn = 0;; turn++) {
        uint32_t seen;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(n) : "memory");
        if (seen >= target) {
            break;
        }
        if (turn % 1024 == 1023) {
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
            begin = begin == 0 ? now : begin;
            if (now - begin > 10000000000ull) {
                asm volatile("trap;");
            }
        }
    }
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* After all that this thread wrote or saw, to the host too. */
__device__ __forceinline__ void publish(uint32_t *to, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

/* A word that another device or the host has published: what was written before that is seen after this. */
__device__ __forceinline__ uint32_t look(const uint32_t *from)
{
    uint32_t seen;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(from) : "memory");
    return seen;
}

/* Who looks again and again does this in between. */
__device__ __forceinline__ void between_looks()
{
}

/* Four values of what another device has written, never out of a nearer cache. p aligned to 16. */
__device__ __forceinline__ float4 load_of_peer(const float *p)
{
    float4 v;
    asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint64_t now_ns()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

} // namespace gr

#endif
