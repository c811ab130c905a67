/* The far keys of tree attention: a split of up to 256 (row, query head) pairs of one KV head against a split of the
 * pool.
 *
 * Two blocks of a cluster share an item (tile of rows, KV head, split), and each key or value that both need is loaded
 * once and sent to both. With more than 128 pairs each block takes half of them; with fewer, both take all pairs and
 * half of the values' columns each, so that memory is read by all multiprocessors, however few rows there are. A pair's
 * bits are the same both ways: scores are whole chains over head_dim, columns are independent.
 *
 * A block is a warp that streams tiles of 128 keys or values through a ring of slots, and two warpgroups of 64 pairs.
 * As in FlashAttention-3 (arXiv 2407.08608) a warpgroup has the scores of the next tile and the weighted sum of the one
 * before in the matrix units while it computes weights. Making the two take turns at issuing gained nothing.
 * Decisions D-010, D-012. */
#include "kernels/cuda/attention/attention_plan.cuh"
#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/wgmma.cuh"

#include <cmath>

namespace gr
{

constexpr int N_SLOT = 6; /* tiles of keys and values on their way or in use */
constexpr int BLOCKS_A_TILE = GR_CUDA_KEY_TILE / GR_KV_BLOCK_TOKENS;
constexpr int N_THREAD = 384; /* a warpgroup that loads, and two that compute */
/* Weights are relative to a score that may fall after the largest by so much: sums need not be rescaled as often, and
 * a weight of 256 is as exact as one of 1. */
constexpr float STALE_LOG2 = 8.0f;

struct FarArgs {
    const uint8_t *kv;
    const __nv_bfloat16 *q;
    const int32_t *n_item;
    const Item *item;
    const Tile *tile;
    Partial part;
    int n_item_max, n_head, n_kv_head, group, q_stride, n_row_max, layer;
    uint32_t per_group; /* 65536 / group, rounded up */
    float scale_log2;
    int window, window_split; /* 0: none; else of attention_plan.cuh */

    /* pair / group, for the few pairs that there are, by a product: the start of a block waits for these instructions.
     */
    __device__ __forceinline__ int row_of(int pair) const
    {
        return (int)((uint32_t)pair * per_group >> 16);
    }
};

struct Bars {
    uint64_t full[N_SLOT], empty[N_SLOT];
};

struct Ring {
    int slot = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next()
    {
        if (++slot == N_SLOT) {
            slot = 0;
            phase ^= 1;
        }
    }
};

/* Waits for the kernel before this one, once. */
struct Gate {
    bool open = false;
    __device__ __forceinline__ void pass()
    {
        if (!open) {
            wait_for_previous();
            open = true;
        }
    }
};

static __device__ __forceinline__ int n_key_tile(const Item &it)
{
    return (it.n_key + GR_CUDA_KEY_TILE - 1) / GR_CUDA_KEY_TILE;
}

/* Each block takes half of the pairs; else half of the columns. */
template <int HD> static __device__ __forceinline__ bool in_halves(const Item &it, int group)
{
    return HD == 64 || it.n_row * group > 128;
}

/* ---- the warp that loads ---- */

/* Pool block of far block v, in the numbering that puts a list first. */
static __device__ __forceinline__ int pool_block(const Item &it, const int32_t *list, int v)
{
    return it.block[!list ? v : v < it.n_sparse ? list[v] : it.dense_block + v - it.n_sparse];
}

/* Lane l of `now` has the pool block of far block 32 w + l of the item, w = tile / 4; `before` the ones of w - 1. Past
 * the item's end the last block stands in: its weights are 0, and what it holds is finite. */
struct Window {
    int before, now, next;
};

template <int HD> struct Loader {
    static constexpr int BLOCK = HD * 32, SLOT = BLOCKS_A_TILE * BLOCK;
    const FarArgs &a;
    uint8_t *slots;
    Bars *bars;
    int rank, lane;
    Ring ring;
    Gate gate;

    __device__ __forceinline__ int look_up(const Item &it, const int32_t *list, int at) const
    {
        const int v = min(at + lane, it.n_key / GR_KV_BLOCK_TOKENS - 1);
        return pool_block(it, list, it.first / GR_KV_BLOCK_TOKENS + v);
    }

    __device__ __forceinline__ void begin(uint32_t bytes)
    {
        bar_wait(&bars->empty[ring.slot], ring.phase ^ 1);
        if (lane == 0) {
            bar_expect(&bars->full[ring.slot], bytes);
        }
        __syncwarp();
    }

    /* Half of the blocks of a tile, to both blocks of the cluster. */
    __device__ __forceinline__ void load_shared(const uint8_t *head, int window, int tile)
    {
        begin(SLOT);
        const int i = rank * (BLOCKS_A_TILE / 2) + lane % (BLOCKS_A_TILE / 2);
        const int block = __shfl_sync(~0u, window, tile % 4 * BLOCKS_A_TILE + i);
        if (lane < BLOCKS_A_TILE / 2) {
            copy_line_all(head + (size_t)block * a.n_kv_head * (2 * BLOCK),
                          smem_addr(slots + ring.slot * SLOT + i * BLOCK), &bars->full[ring.slot], BLOCK, 3);
        }
        ring.next();
    }

    /* Half of the columns of all values, to this block. */
    __device__ __forceinline__ void load_columns(const uint8_t *head, int window, int tile)
    {
        begin(SLOT / 2);
        const int i = lane % BLOCKS_A_TILE;
        const int block = __shfl_sync(~0u, window, tile % 4 * BLOCKS_A_TILE + i);
        if (lane < BLOCKS_A_TILE) {
            copy_line(head + (size_t)block * a.n_kv_head * (2 * BLOCK) + rank * (BLOCK / 2),
                      smem_addr(slots + ring.slot * SLOT + i * (BLOCK / 2)), &bars->full[ring.slot], BLOCK / 2);
        }
        ring.next();
    }

    __device__ __forceinline__ void load_values(bool halves, const uint8_t *head, int window, int tile)
    {
        if (halves) {
            load_shared(head, window, tile);
        } else {
            load_columns(head, window, tile);
        }
    }

    __device__ __forceinline__ const int32_t *list_of(const Item &it) const
    {
        return it.sparse ? it.sparse + (size_t)(a.layer * a.n_kv_head + it.kv_head) * it.sparse_stride : nullptr;
    }

    /* Asks for what load_item() begins with, ahead of it. */
    __device__ __forceinline__ int first_window(const Item &it) const
    {
        return look_up(it, list_of(it), 0);
    }

    /* Brings an item to the nearest cache: nobody of this block shall wait for it. */
    __device__ __forceinline__ void look_ahead(const Item *it) const
    {
        if (lane < 2) {
            prefetch((const uint8_t *)it + lane * (sizeof(Item) - 1));
        }
    }

    /* Keys and values that were there before this pass need not wait for the kernel before. */
    __device__ __forceinline__ void load_item(const Item &it, int window)
    {
        const int32_t *list = list_of(it);
        const uint8_t *keys = a.kv + (size_t)it.kv_head * (2 * BLOCK), *values = keys + BLOCK;
        const bool halves = in_halves<HD>(it, a.group);
        const int n = n_key_tile(it);
        Window w{0, 0, window};
        if (!it.old) {
            gate.pass();
        }
        for (int t = 0; t < n; t++) {
            if (t % 4 == 0) {
                w = {w.now, w.next, look_up(it, list, (t + 4) * BLOCKS_A_TILE)};
            }
            load_shared(keys, w.now, t);
            if (t > 0) {
                load_values(halves, values, t % 4 == 0 ? w.before : w.now, t - 1);
            }
        }
        load_values(halves, values, w.now, n - 1);
    }

    /* Both blocks release what both have loaded, so a block must not end before the other's last releases have come:
     * they would reach for memory that is nobody's. No meeting of the cluster orders them. */
    __device__ __forceinline__ void drain()
    {
        for (int i = 0; i < N_SLOT; i++) {
            bar_wait(&bars->empty[ring.slot], ring.phase ^ 1);
            ring.next();
        }
    }
};

/* ---- the warpgroups that multiply ---- */

constexpr int NOBODY = -(1 << 30); /* in place of the end of its keys: there is no such pair */

template <int HD, bool WINDOW> struct Worker {
    static constexpr int BLOCK = HD * 32, SLOT = BLOCKS_A_TILE * BLOCK, Q_BYTES = 64 * HD * 2;
    const FarArgs &a;
    uint8_t *slots, *q; /* q: (HD / 64, 64 pairs, 64), this warpgroup's */
    Bars *bars;
    int rank, wg, t; /* t: thread of the warpgroup */
    Ring ring;
    Gate gate;

    __device__ __forceinline__ void wait_slot()
    {
        bar_wait(&bars->full[ring.slot], ring.phase);
    }

    /* The same, once sums of weights have been made. Their additions are to overlap with the products that are waited
     * for here, and the assembler would move them after the wait: so they take part in a condition that is always true,
     * since the sums are never negative, which it does not know. */
    __device__ __forceinline__ void wait_slot_after(const float (&l)[2])
    {
        bar_wait(&bars->full[ring.slot], ring.phase ^ (uint32_t)(l[0] + l[1] < 0.0f));
    }

    __device__ __forceinline__ void release(int slot)
    {
        if (t < 2) {
            bar_arrive_at(&bars->empty[slot], t);
        }
    }

    /* Nothing to compute, but the others wait for this warpgroup's releases. One warp sees to all of them: it stands
     * for the others, who might see a slot only when it has been filled once more, which looks like a slot that is not.
     * They meet it before their next item. */
    __device__ __forceinline__ void skip(const Item &it)
    {
#pragma unroll 1
        for (int i = 0; i < 2 * n_key_tile(it); i++) {
            if (t < 32) {
                wait_slot();
                release(ring.slot);
            }
            ring.next();
        }
    }

    __device__ __forceinline__ void load_q(const Item &it, int m0)
    {
        constexpr int PIECES = HD / 8, STEP = 128 / PIECES; /* of a pair; pairs from one of a thread's to its next */
        const int m = (int)((uint32_t)t / PIECES), piece = (int)((uint32_t)t % PIECES);
        const int first = m0 + m, n_pair = it.n_row * a.group;
        const uint32_t at = (uint32_t)(it.row0 * a.q_stride + (it.kv_head * a.group + first) * HD + piece * 8);
        const uint32_t next_row = (uint32_t)(a.q_stride - a.group * HD);
        gate.pass();
        uint4 v[HD / 16]; /* all on their way before one is stored */
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            const int pair = first + STEP * i;
            const __nv_bfloat16 *from = a.q + (at + (uint32_t)(STEP * i * HD) + (uint32_t)a.row_of(pair) * next_row);
            v[i] = pair < n_pair ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
        }
        named_sync(1 + wg, 128); /* all threads are through with the item before */
        uint8_t *to = q + piece / 8 * 8192 + m * 128 + ((piece % 8) ^ (m % 8)) * 16;
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            *(uint4 *)(to + STEP * i * 128) = v[i];
        }
        fence_async_shared();
        named_sync(1 + wg, 128);
    }

    __device__ __forceinline__ void scores(float (&s)[64], int slot)
    {
        const uint64_t from = wgmma_uniform(wgmma_desc(smem_addr(q), 16, 1024));
        const uint64_t k = wgmma_uniform(wgmma_desc(smem_addr(slots + slot * SLOT), 16, HD * 16));
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            wgmma_ss<128>(s, wgmma_step(from, i / 4 * 8192 + i % 4 * 32), wgmma_step(k, i / 4 * 1024 + i % 4 * 32),
                          i > 0);
        }
    }

    /* VN: columns of this block. */
    template <int VN>
    __device__ __forceinline__ void weighted_sum(float (&o)[VN / 2], const uint32_t (&p)[32], int slot)
    {
        const uint64_t v = wgmma_uniform(wgmma_desc(smem_addr(slots + slot * SLOT), 2048, 1024));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            wgmma_rs<VN>(o, p + 4 * i, wgmma_step(v, i * (VN * 32)));
        }
    }

    /* Keys from `end` on are not the row's. */
    static __device__ __forceinline__ void mask(float (&s)[64], int first, int end0, int end1)
    {
        const int col = first + (int)(threadIdx.x % 4) * 2;
#pragma unroll
        for (int j = 0; j < 16; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                s[4 * j + i] = col + 8 * j + i < end0 ? s[4 * j + i] : -INFINITY;
                s[4 * j + 2 + i] = col + 8 * j + i < end1 ? s[4 * j + 2 + i] : -INFINITY;
            }
        }
    }

    /* The same with a window, of rows at positions pos: keys before it are not theirs either. */
    __device__ __forceinline__ void mask_window(float (&s)[64], const Item &it, int tile, const int (&pos)[2]) const
    {
        const int col = it.first + tile * GR_CUDA_KEY_TILE + t % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int from = window_first(a.window, pos[h]), to = window_near(a.window, pos[h]);
#pragma unroll
            for (int j = 0; j < 16; j++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int key = col + 8 * j + i;
                    float &x = s[4 * j + 2 * h + i];
                    x = key >= from && key < to ? x : -INFINITY;
                }
            }
        }
    }

    /* Where a row has the results of an item's split: the first of its own is at 0. */
    __device__ __forceinline__ int window_place(const Item &it, int pos) const
    {
        return it.split - window_first(a.window, pos) / a.window_split;
    }

    /* Largest of a row's scores; four chains, since one would be long and the order is nothing to a maximum. */
    static __device__ __forceinline__ float top_of(const float (&s)[64], int h)
    {
        float top[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            top[j] = fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]);
        }
#pragma unroll
        for (int j = 4; j < 16; j++) {
            top[j % 4] = fmaxf(top[j % 4], fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        }
        return fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
    }

    /* Scores of rows h = 0 or 1 to weights, and their sum. */
    static __device__ __forceinline__ float weigh_half(float (&s)[64], int h, float base, float scale_log2)
    {
        float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float &x = s[4 * j + 2 * h], &y = s[4 * j + 2 * h + 1];
            x = exp2_fast(__fmaf_rn(x, scale_log2, -base));
            y = exp2_fast(__fmaf_rn(y, scale_log2, -base));
            sum0 = __fadd_rn(sum0, x);
            sum1 = __fadd_rn(sum1, y);
        }
        return __fadd_rn(sum0, sum1);
    }

    /* m: a score that none so far lies far above, l: this thread's part of the sum of weights; `down`: what older
     * weights are to be multiplied by. VN < HD: few rows; then the lower eight rows of the warp are often nobody's, and
     * `lower` says so. */
    template <int VN>
    static __device__ __forceinline__ void weigh(float (&s)[64], float (&m)[2], float (&l)[2], float (&down)[2],
                                                 float scale_log2, bool lower)
    {
        float top[2] = {top_of(s, 0), top_of(s, 1)}, base[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 1));
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 2));
            top[h] = (top[h] - m[h]) * scale_log2 > STALE_LOG2 ? top[h] : m[h];
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float safe = top[h] == -INFINITY ? 0.0f : top[h];
            base[h] = safe * scale_log2;
            down[h] = exp2_fast((m[h] - safe) * scale_log2);
            m[h] = top[h];
        }
        l[0] = __fmaf_rn(l[0], down[0], weigh_half(s, 0, base[0], scale_log2));
        if (VN == HD || lower) {
            l[1] = __fmaf_rn(l[1], down[1], weigh_half(s, 1, base[1], scale_log2));
        }
    }

    static __device__ __forceinline__ void pack(const float (&s)[64], uint32_t (&p)[32])
    {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
        }
    }

    template <int VN>
    __device__ __forceinline__ void store(const Item &it, const int (&end)[2], int m0, const float (&o)[VN / 2],
                                          const float (&m)[2], const float (&l)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = __fadd_rn(l[h], __shfl_xor_sync(~0u, l[h], 1));
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
            const int pair = m0 + t / 32 * 16 + t % 32 / 4 + 8 * h;
            if (end[h] == NOBODY) {
                continue;
            }
            const int r = a.row_of(pair), split = WINDOW ? window_place(it, end[h]) : it.split;
            const size_t at =
                ((size_t)split * a.n_row_max + it.row0 + r) * a.n_head + it.kv_head * a.group + pair - r * a.group;
            float *to = a.part.o + at * HD + (VN < HD ? rank * VN : 0);
#pragma unroll
            for (int j = 0; j < VN / 8; j += 2) {
                store_four(to + partial_column(j, t % 4), o[4 * j + 2 * h], o[4 * j + 2 * h + 1], o[4 * j + 4 + 2 * h],
                           o[4 * j + 5 + 2 * h]);
            }
            if (t % 4 == 0) {
                a.part.ml[at] = make_float2(m[h], sum);
            }
        }
    }

    /* What the next item begins with. */
    __device__ __forceinline__ void look_ahead(int next_tile) const
    {
        const uint8_t *at = (const uint8_t *)(a.tile + next_tile) + 128 * t;
        if (at < (const uint8_t *)(a.tile + next_tile + 1)) {
            prefetch(at);
        }
    }

    /* What a pair's row, `far` in its tile, sees of an item: up to which of its keys; with a window, its position. */
    __device__ __forceinline__ int sight(const Item &it, int far) const
    {
        if (!WINDOW) {
            return far == NOT_HERE ? NOBODY : far - it.first;
        }
        const bool sees = far != NOT_HERE && window_first(a.window, far) < it.first + it.n_key &&
                          window_near(a.window, far) > it.first;
        return sees ? far : NOBODY;
    }

    template <int VN> __device__ __forceinline__ void attend(const Item &it, const Item &next, int m0)
    {
        const Tile &tile = a.tile[it.tile];
        float o[VN / 2], s[64], m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f}, down[2] = {1.0f, 1.0f};
        uint32_t p[32];
        const int n = n_key_tile(it), n_whole = it.n_whole;
        const bool lower = m0 + t / 32 * 16 + 8 < it.n_row * a.group;
        int end[2];
        load_q(it, m0);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int pair = m0 + t / 32 * 16 + t % 32 / 4 + 8 * h;
            const int far = pair < it.n_row * a.group ? tile.far[a.row_of(pair)] : NOT_HERE;
            end[h] = sight(it, far);
        }
#pragma unroll
        for (int i = 0; i < VN / 2; i++) {
            o[i] = 0.0f;
        }
        const int next_tile = next.tile;
        wait_slot();
        wgmma_hold(s);
        wgmma_fence();
        scores(s, ring.slot);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(s);
        release(ring.slot);
        ring.next();
        if (WINDOW && (it.n_front > 0 || n_whole == 0)) {
            mask_window(s, it, 0, end);
        } else if (!WINDOW && n_whole == 0) {
            mask(s, 0, end[0], end[1]);
        }
        weigh<VN>(s, m, l, down, a.scale_log2, lower);
        pack(s, p);
        wait_slot();
        for (int i = 1; i < n; i++) {
            const int k_slot = ring.slot;
            ring.next();
            wgmma_hold(s);
            wgmma_fence();
            scores(s, k_slot);
            wgmma_commit();
            wait_slot();
            const int v_slot = ring.slot;
            ring.next();
            wgmma_hold(o);
            wgmma_fence();
            weighted_sum<VN>(o, p, v_slot);
            wgmma_commit();
            wgmma_wait<1>();
            wgmma_hold(s);
            release(k_slot);
            if (WINDOW && (i < it.n_front || i >= n_whole)) {
                mask_window(s, it, i, end);
            } else if (!WINDOW && i >= n_whole) {
                mask(s, i * GR_CUDA_KEY_TILE, end[0], end[1]);
            }
            weigh<VN>(s, m, l, down, a.scale_log2, lower);
            wait_slot_after(l); /* the next keys, or the last values */
            wgmma_wait<0>();
            wgmma_hold(o);
            release(v_slot);
            pack(s, p);
            if (__any_sync(~0u, down[0] != 1.0f || down[1] != 1.0f)) { /* else it would change nothing */
#pragma unroll
                for (int j = 0; j < VN / 2; j++) {
                    o[j] = __fmul_rn(o[j], down[j / 2 % 2]);
                }
            }
        }
        wgmma_hold(o);
        wgmma_fence();
        weighted_sum<VN>(o, p, ring.slot);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(o);
        release(ring.slot);
        ring.next();
        look_ahead(next_tile);
        store<VN>(it, end, m0, o, m, l);
    }

    /* What one warpgroup has room for is the work of each in turn, so that one waits for queries and weights while the
     * other has the matrix units. turn: the item's number among this cluster's. */
    __device__ __forceinline__ void work(const Item &it, const Item &next, int turn)
    {
        const bool halves = in_halves<HD>(it, a.group);
        const int n_pair = it.n_row * a.group, block0 = halves ? rank * 128 : 0, first = n_pair <= 64 ? turn % 2 : 0;
        const int m0 = block0 + (wg ^ first) * 64;
        if (m0 >= n_pair) {
            skip(it);
            return;
        }
        if (halves) {
            attend<HD>(it, next, m0);
        } else {
            attend<HD == 128 ? 64 : HD>(it, next, m0);
        }
    }
};

template <int HD> static size_t far_smem()
{
    return (size_t)N_SLOT * GR_CUDA_KEY_TILE * HD * 2 + 2 * 64 * HD * 2 + sizeof(Bars) + 1024;
}

template <int HD, bool WINDOW>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(N_THREAD, 1) far_kernel(const FarArgs a)
{
    GR_DYNAMIC_SHARED(uint8_t, raw, 16);
    uint8_t *slots = (uint8_t *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    uint8_t *q = slots + N_SLOT * GR_CUDA_KEY_TILE * HD * 2;
    Bars *bars = (Bars *)(q + 2 * 64 * HD * 2);
    const int rank = cluster_rank(), cluster = (int)blockIdx.x / 2, n_cluster = (int)gridDim.x / 2;
    const int wg = (int)threadIdx.x / 128, n_item = *a.n_item;
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_SLOT; i++) {
            bar_init(&bars->full[i], 1);
            bar_init(&bars->empty[i], 4); /* two warpgroups of two blocks */
        }
        bar_init_done();
    }
    __syncwarp();
    cluster_arrive_early();
    const Item *const first = a.item + min(cluster, a.n_item_max - 1); /* each reads it while it waits for others */
    if (wg == 2) {
        Item it = *first;
        regs_fewer<56>();
        Loader<HD> loader{a, slots, bars, rank, (int)threadIdx.x % 32, {}, {}};
        const bool works = threadIdx.x < 256 + 32;
        if (threadIdx.x == N_THREAD - 1) { /* the next kernel may start when this one's blocks have, and may read KV */
            wait_for_previous();
            let_next_start();
        }
        __syncwarp();
        int window = works && cluster < n_item ? loader.first_window(it) : 0;
        cluster_wait();
        if (works) {
            for (int i = cluster; i < n_item; i += n_cluster) {
                const Item *next = a.item + min(i + n_cluster, n_item - 1);
                const int next_window = i + n_cluster < n_item ? loader.first_window(*next) : 0;
                loader.look_ahead(a.item + min(i + 2 * n_cluster, n_item - 1));
                loader.load_item(it, window);
                it = *next;
                window = next_window;
            }
            loader.drain();
        }
        loader.gate.pass();
    } else {
        Item it = *first;
        regs_more<224>();
        Worker<HD, WINDOW> worker{a, slots, q + wg * 64 * HD * 2, bars, rank, wg, (int)threadIdx.x % 128, {}, {}};
        cluster_wait(); /* which empties the nearest cache */
        if (cluster < n_item) {
            worker.look_ahead(it.tile);
        }
        for (int i = cluster, turn = 0; i < n_item; i += n_cluster, turn++) {
            if (turn > 0) {
                it = a.item[i];
            }
            worker.work(it, a.item[min(i + n_cluster, n_item - 1)], turn);
        }
        worker.gate.pass();
    }
}

template <int HD, bool WINDOW> static cudaError_t launch(const FarArgs &f, cudaStream_t stream)
{
    cudaError_t e =
        cudaFuncSetAttribute(far_kernel<HD, WINDOW>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)far_smem<HD>());
    int device = 0, n_sm = 0;
    e = e == cudaSuccess ? cudaGetDevice(&device) : e;
    e = e == cudaSuccess ? cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, device) : e;
    if (e != cudaSuccess) {
        return e;
    }
    const int n_block = n_sm / 2 * 2; /* as many clusters as fit at once */
    return launch_as({2, true, true}, far_kernel<HD, WINDOW>, dim3((unsigned)n_block), N_THREAD, far_smem<HD>(), stream,
                     f);
}

template <int HD> static cudaError_t launch_head(const FarArgs &f, cudaStream_t stream)
{
    return f.window > 0 ? launch<HD, true>(f, stream) : launch<HD, false>(f, stream);
}

cudaError_t launch_far(const gr_cuda_attention_args &a, cudaStream_t stream)
{
    const gr_cuda_attn_shape &s = a.shape;
    const PlanParts p = parts_of(s, a.plan);
    const FarArgs f{(const uint8_t *)a.kv,
                    (const __nv_bfloat16 *)a.q,
                    &p.head->n_item,
                    p.item,
                    p.tile,
                    partial_of(s, a.work),
                    n_tile_max(s) * s.n_kv_head * GR_CUDA_SPLIT_MAX,
                    s.n_head,
                    s.n_kv_head,
                    s.n_head / s.n_kv_head,
                    a.q_stride,
                    s.n_row_max,
                    a.layer,
                    (uint32_t)((65536 + s.n_head / s.n_kv_head - 1) / (s.n_head / s.n_kv_head)),
                    a.scale * 1.44269504088896341f,
                    a.window,
                    window_split(s, a.window)};
    return s.head_dim == 128 ? launch_head<128>(f, stream) : launch_head<64>(f, stream);
}

} // namespace gr
