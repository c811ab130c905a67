/* Rings of the exchange prototype: how a block stores into the peer's and takes from its own.
 *
 * Three forms on the wire. FLAG: bytes, then a counter with release at system scope; the receiver polls the counter
 * with acquire. WORDS: every 8 bytes carry 4 of the frame and the counter, so a word that has arrived says so itself
 * and nothing is ordered after anything; twice the bytes, so only DRAFT and VERDICT go that way, FEATURES stay as bytes
 * a flag of their own. ALL_WORDS: FEATURES as well. Each form has its own part of a slot: what another form left there
 * is never taken for a counter.
 *
 * The sides take turns: DRAFT i + 1 is sent after VERDICT i was read, so with N_SLOT >= 2 nothing unread is written
 * over, and no credits are needed. Counters grow over all cases of a run: rings are never cleared.
 *
 * Every wait is bounded by limit_ns; the first that runs out sets stop, and each later kernel returns at once. */
#ifndef GR_BENCH_EXCHANGE_RING_CUH
#define GR_BENCH_EXCHANGE_RING_CUH

#include "bench/cuda/exchange.h"
#include "common/rules/token_tree.h"
#include "common/protocol/wire_layout.h"

/* Threads of a block, slots of a ring, bytes of a row of features. */
static constexpr int N_THREAD = 512, N_SLOT = 4, FEATURE_BYTES_MAX = 40960;
enum Wire { FLAG, WORDS_SMALL, ALL_WORDS }; /* the kernels' WORDS */
/* A slot: flags, a line each; then each frame as bytes and as words. */
static constexpr int UP_BYTES_AT = 128, UP_WORDS_AT = UP_BYTES_AT + GX_FRAME_BYTES;
static constexpr int UP_SLOT = UP_WORDS_AT + 2 * GX_FRAME_BYTES;
/* Where flags and verdicts stand in a slot, in bytes. */
static constexpr int FEATURE_FLAG_AT = 128, VERDICT_AT = 256, VERDICT_WORDS_AT = VERDICT_AT + GX_VERDICT_BYTES;
static constexpr int FEATURES_AT = VERDICT_WORDS_AT + 2 * GX_VERDICT_BYTES;
static constexpr int FEATURE_WORDS_AT = FEATURES_AT + FEATURE_BYTES_MAX;
static constexpr int DOWN_SLOT = FEATURE_WORDS_AT + 2 * FEATURE_BYTES_MAX;
static constexpr int N_STAMP = 1 << 15; /* rounds of a case whose times are kept */

struct Case {
    uint32_t n_round, seq0; /* counter of round i: seq0 + i + 1 */
    int frame_bytes, verdict_bytes, feature_bytes;
    int judge;    /* frames are built, checked and walked; else bytes only */
    int has_hole; /* the check does not look for duplicate siblings: the replay has to notice */
};
struct Stamp {
    uint64_t ns_send, ns_done; /* globaltimer */
    int64_t clk_send, clk_done;
};
/* Pinned host memory, written by the device. */
struct Report {
    uint32_t n_done;  /* rounds, or graphs, that are over */
    uint32_t is_lost; /* a wait ran out: 1 + its round */
    uint32_t n_bad_feature, n_desync;
    struct gx_place place; /* at the end */
};
/* A side's state: in shared memory while a kernel runs, in device memory between the kernels of a graph. */
struct Room {
    alignas(16) uint8_t frame[GX_FRAME_BYTES]; /* the DRAFT: as built, or the private copy */
    alignas(16) uint8_t verdict[GX_VERDICT_BYTES];
    struct gx_place place;
    uint64_t accepted, new_hash, ns_send;
    int64_t clk_send;
    int32_t bonus, n_path;
    uint32_t fault, stop, i, is_pending;
};
struct Side {
    uint8_t *mine, *theirs; /* the ring that this side reads; the one that its peer reads */
    Room *room;
    const uint8_t *trees;     /* [GX_N_TREE, 512] DRAFTs without header */
    const uint32_t *features; /* sent: value + counter */
    uint32_t *features_out;
    Stamp *stamp; /* [N_STAMP], device memory, drafter */
    Report *report;
    struct gx_record *record; /* pinned host memory [n_round], target */
    uint64_t limit_ns;
};

/* ---- instructions ---- */

static __device__ __forceinline__ uint64_t now_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
static __device__ __forceinline__ uint32_t load_acquire(const void *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
static __device__ __forceinline__ void store_release(void *p, uint32_t v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
static __device__ __forceinline__ void store_relaxed(void *p, uint32_t v)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
static __device__ __forceinline__ uint64_t load_word(const void *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
static __device__ __forceinline__ void store_word(void *p, uint64_t v)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
static __device__ __forceinline__ uint4 load_16(const void *p)
{
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

/* A bounded poll: look() until it holds; false when limit_ns have passed. */
template <class F> static __device__ bool spin(uint64_t limit_ns, F look)
{
    uint64_t begin = 0;
    for (uint32_t n = 1;; n++) {
        if (look()) {
            return true;
        }
        if (n % 256 == 0) {
            const uint64_t t = now_ns();
            begin = begin == 0 ? t : begin;
            if (t - begin > limit_ns) {
                return false;
            }
        }
    }
}

/* ---- publish and await; the whole block ---- */

static __device__ uint8_t *slot_of(uint8_t *ring, int slot_bytes, uint32_t i)
{
    return ring + (size_t)(i % N_SLOT) * slot_bytes;
}

/* Bytes of shared memory into the peer's ring; the caller orders a flag after them where WORDS is false. */
template <int WORDS> static __device__ void put(uint8_t *to, const uint8_t *from, int n_bytes, uint32_t seq)
{
    const int t = (int)threadIdx.x;
    if (WORDS && t < n_bytes / 4) {
        store_word(to + 8 * t, (uint64_t)seq << 32 | ((const uint32_t *)from)[t]);
    } else if (!WORDS && t < n_bytes / 16) {
        ((uint4 *)to)[t] = ((const uint4 *)from)[t];
    }
}

/* All of the block's stores before it, then the counter. */
static __device__ void raise_flag(uint8_t *flag, uint32_t seq)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        store_release(flag, seq);
    }
}

static __device__ bool await_flag(const uint8_t *flag, uint32_t seq, uint64_t limit_ns)
{
    bool ok = true;
    if (threadIdx.x == 0) {
        ok = spin(limit_ns, [=] { return load_acquire(flag) == seq; });
    }
    return __syncthreads_and(ok);
}

/* WORDS: polls until all of them carry seq. FLAG: the flag was seen. Bytes go to shared memory; false: lost. */
template <int WORDS>
static __device__ bool get(const uint8_t *from, uint8_t *to, int n_bytes, uint32_t seq, uint64_t limit)
{
    const int t = (int)threadIdx.x;
    bool ok = true;
    if (WORDS && t < n_bytes / 4) {
        uint64_t w = 0;
        ok = spin(limit, [&] { return (w = load_word(from + 8 * t)) >> 32 == seq; });
        ((uint32_t *)to)[t] = (uint32_t)w;
    } else if (!WORDS && t < n_bytes / 16) {
        ((uint4 *)to)[t] = load_16(from + 16 * t);
    }
    return __syncthreads_and(ok);
}

static __device__ void put_features(uint8_t *to, const uint32_t *from, int n_bytes, uint32_t seq)
{
    for (int k = (int)threadIdx.x; k < n_bytes / 16; k += N_THREAD) {
        uint4 v = ((const uint4 *)from)[k];
        v.x += seq, v.y += seq, v.z += seq, v.w += seq;
        ((uint4 *)to)[k] = v;
    }
}

/* Into local memory, all loads of a thread under way together; every value is compared. */
static __device__ void get_features(const uint8_t *from, const Side &s, int n_bytes, uint32_t seq)
{
    constexpr int N = FEATURE_BYTES_MAX / 16 / N_THREAD;
    uint4 v[N], want[N];
    int n_bad = 0;
#pragma unroll
    for (int u = 0; u < N; u++) {
        const int k = (int)threadIdx.x + u * N_THREAD;
        if (k < n_bytes / 16) {
            v[u] = load_16(from + 16 * k);
            want[u] = ((const uint4 *)s.features)[k];
        }
    }
#pragma unroll
    for (int u = 0; u < N; u++) {
        const int k = (int)threadIdx.x + u * N_THREAD;
        if (k < n_bytes / 16) {
            ((uint4 *)s.features_out)[k] = v[u];
            n_bad += v[u].x != want[u].x + seq || v[u].y != want[u].y + seq || v[u].z != want[u].z + seq ||
                     v[u].w != want[u].w + seq;
        }
    }
    if (n_bad > 0) {
        atomicAdd_system(&s.report->n_bad_feature, (uint32_t)n_bad);
    }
}

/* 16 bytes: two words, each with its counter. */
static __device__ void put_feature_words(uint8_t *to, const uint32_t *from, int n_bytes, uint32_t seq)
{
    const uint64_t tag = (uint64_t)seq << 32;
    for (int k = (int)threadIdx.x; k < n_bytes / 8; k += N_THREAD) {
        const uint2 v = ((const uint2 *)from)[k];
        asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to + 16 * k), "l"(tag | (v.x + seq)),
                     "l"(tag | (v.y + seq))
                     : "memory");
    }
}

static __device__ bool get_feature_words(const uint8_t *from, const Side &s, int n_bytes, uint32_t seq)
{
    constexpr int N = FEATURE_BYTES_MAX / 8 / N_THREAD;
    uint64_t a[N], b[N];
    int n_bad = 0;
    /* All loads of a thread are under way together, and again until each word is there. */
    const bool ok = spin(s.limit_ns, [&] {
        bool all = true;
#pragma unroll
        for (int u = 0; u < N; u++) {
            const int k = (int)threadIdx.x + u * N_THREAD;
            if (k < n_bytes / 8) {
                asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                             : "=l"(a[u]), "=l"(b[u])
                             : "l"(from + 16 * k)
                             : "memory");
            }
        }
#pragma unroll
        for (int u = 0; u < N; u++) {
            all &= (int)threadIdx.x + u * N_THREAD >= n_bytes / 8 || (a[u] >> 32 == seq && b[u] >> 32 == seq);
        }
        return all;
    });
#pragma unroll
    for (int u = 0; u < N; u++) {
        const int k = (int)threadIdx.x + u * N_THREAD;
        if (ok && k < n_bytes / 8) {
            const uint2 v = {(uint32_t)a[u], (uint32_t)b[u]}, want = ((const uint2 *)s.features)[k];
            ((uint2 *)s.features_out)[k] = v;
            n_bad += v.x != want.x + seq || v.y != want.y + seq;
        }
    }
    if (n_bad > 0) {
        atomicAdd_system(&s.report->n_bad_feature, (uint32_t)n_bad);
    }
    return __syncthreads_and(ok);
}

#endif
