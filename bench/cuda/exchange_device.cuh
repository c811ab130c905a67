/* A round on the devices: the drafter's block sends a tree and follows the verdict, the target's checks the tree before
 * it uses it, walks and answers. Persistent kernels do all rounds; else a round is a graph of two kernels, the first of
 * which waits and the last publishes, and Room lies in device memory between them. */
#ifndef GR_BENCH_EXCHANGE_DEVICE_CUH
#define GR_BENCH_EXCHANGE_DEVICE_CUH

#include "bench/cuda/exchange_ring.cuh"

/* ---- frames; in shared memory ---- */

static __device__ __forceinline__ uint32_t &u32_at(uint8_t *f, int at)
{
    return *(uint32_t *)(f + at);
}

static __device__ void write_header(uint8_t *f, int type, const struct gx_place &p, uint32_t payload_len, uint64_t hash)
{
    u32_at(f, GR_WIRE_OFF_MAGIC) = GR_WIRE_MAGIC;
    u32_at(f, GR_WIRE_OFF_VERSION) = GR_WIRE_VERSION | (uint32_t)type << 8;
    *(uint64_t *)(f + GR_WIRE_OFF_SESSION) = p.session;
    u32_at(f, GR_WIRE_OFF_EPOCH) = p.epoch;
    u32_at(f, GR_WIRE_OFF_ROUND) = p.round;
    u32_at(f, GR_WIRE_OFF_BASE_LEN) = p.base_len;
    u32_at(f, GR_WIRE_OFF_PAYLOAD_LEN) = payload_len;
    *(uint64_t *)(f + GR_WIRE_OFF_HASH) = hash;
}

static constexpr int AT_N = GR_WIRE_HEADER_BYTES, AT_TOKEN = AT_N + GR_WIRE_DRAFT_OFF_TOKEN;

/* Faults that a broken or hostile drafter could send, one a frame. One thread. */
static __device__ void corrupt(uint8_t *f, uint32_t kind)
{
    const int n = (int)u32_at(f, AT_N);
    int16_t *parent = (int16_t *)(f + AT_TOKEN + 4 * n);
    switch (kind) {
    case 0:
        u32_at(f, GR_WIRE_OFF_MAGIC) ^= 1;
        break;
    case 1:
        f[GR_WIRE_OFF_VERSION]++;
        break;
    case 2:
        u32_at(f, GR_WIRE_OFF_PAYLOAD_LEN) = 0xfffffff0u;
        break;
    case 3:
        u32_at(f, AT_N) = GR_TREE_MAX;
        break;
    case 4:
        u32_at(f, AT_N) = (uint32_t)n - 1;
        break;
    case 5:
        parent[n / 2] = (int16_t)(n / 2);
        break;
    case 6:
        u32_at(f, AT_TOKEN + 4 * (n - 1)) = GX_N_VOCAB;
        break;
    case 7:
        u32_at(f, AT_TOKEN + 4 * (n - 1)) = u32_at(f, AT_TOKEN), parent[n - 1] = parent[0];
        break;
    case 8:
        u32_at(f, GR_WIRE_OFF_BASE_LEN)++;
        break;
    case 9:
        f[GR_WIRE_OFF_HASH] ^= 1;
        break;
    default:
        u32_at(f, GR_WIRE_OFF_EPOCH)++;
        break;
    }
}

/* room.frame: the round's DRAFT. */
static __device__ void build_draft(const Side &s, const Case &c, Room &r)
{
    const int t = (int)threadIdx.x;
    if (c.judge && t < GX_FRAME_BYTES / 16) {
        ((uint4 *)r.frame)[t] = ((const uint4 *)(s.trees + (r.i % GX_N_TREE) * GX_FRAME_BYTES))[t];
    }
    __syncthreads();
    if (c.judge && t == 0) {
        write_header(r.frame, GR_FRAME_DRAFT, r.place, GR_WIRE_DRAFT_BYTES(u32_at(r.frame, AT_N)), r.place.hash);
        if (gx_is_corrupted(r.i)) {
            corrupt(r.frame, r.i / GX_CORRUPT_EVERY % GX_N_CORRUPTION);
        }
    }
    __syncthreads();
}

/* Checks the private copy before anything of it is used. r.fault: bits of what is wrong, then the first of them. */
static __device__ void judge_draft(Room &r, bool has_hole)
{
    const int t = (int)threadIdx.x, i = t % 64;
    uint8_t *f = r.frame;
    if (t == 0) {
        r.fault = 0;
    }
    __syncthreads();
    const uint32_t payload_len = u32_at(f, GR_WIRE_OFF_PAYLOAD_LEN), n_told = u32_at(f, AT_N);
    const int n = n_told > GR_NODE_MAX ? 0 : (int)n_told; /* the arrays are read by the bound, not by what is told */
    const int32_t *token = (const int32_t *)(f + AT_TOKEN);
    const int16_t *parent = (const int16_t *)(f + AT_TOKEN + 4 * n);
    uint32_t fault = 0;
    if (t == N_THREAD - 1) { /* of the last warp: the first ones have the nodes */
        const struct gx_place &p = r.place;
        fault |= u32_at(f, GR_WIRE_OFF_MAGIC) != GR_WIRE_MAGIC || f[GR_WIRE_OFF_VERSION] != GR_WIRE_VERSION ||
                         f[GR_WIRE_OFF_TYPE] != GR_FRAME_DRAFT || payload_len > GX_FRAME_BYTES - GR_WIRE_HEADER_BYTES
                     ? GX_BAD_HEADER
                     : 0;
        fault |= n_told > GR_NODE_MAX || payload_len != GR_WIRE_DRAFT_BYTES(n_told) ? GX_BAD_TREE : 0;
        fault |= *(uint64_t *)(f + GR_WIRE_OFF_SESSION) != p.session || u32_at(f, GR_WIRE_OFF_EPOCH) != p.epoch ||
                         u32_at(f, GR_WIRE_OFF_ROUND) != p.round || u32_at(f, GR_WIRE_OFF_BASE_LEN) != p.base_len ||
                         *(uint64_t *)(f + GR_WIRE_OFF_HASH) != p.hash
                     ? GX_BAD_PLACE
                     : 0;
    }
    if (i < n) {
        bool bad = parent[i] < -1 || parent[i] >= i || (uint32_t)token[i] >= GX_N_VOCAB;
        for (int j = has_hole ? i : t / 64; j < i; j += N_THREAD / 64) {
            bad |= parent[j] == parent[i] && token[j] == token[i];
        }
        fault |= bad ? GX_BAD_TREE : 0;
    }
    if (fault != 0) {
        atomicOr(&r.fault, fault);
    }
    __syncthreads();
    if (t == 0) {
        r.fault &= 0u - r.fault;
    }
    __syncthreads();
}

/* The walk, by one warp that holds two nodes a lane. */
static __device__ void walk(Room &r)
{
    const int lane = (int)threadIdx.x, n = r.fault != GX_GOOD ? 0 : (int)u32_at(r.frame, AT_N);
    const int32_t *token = (const int32_t *)(r.frame + AT_TOKEN);
    const int16_t *parent = (const int16_t *)(r.frame + AT_TOKEN + 4 * n);
    const int32_t t0 = lane < n ? token[lane] : -1, t1 = lane + 32 < n ? token[lane + 32] : -1;
    const int p0 = lane < n ? parent[lane] : -2, p1 = lane + 32 < n ? parent[lane + 32] : -2;
    uint64_t accepted = 0, hash = r.place.hash;
    int32_t pick;
    for (int node = -1;;) {
        const uint64_t kids = __ballot_sync(~0u, p0 == node) | (uint64_t)__ballot_sync(~0u, p1 == node) << 32;
        const int first = __ffsll((long long)kids) - 1;
        const int32_t a = __shfl_sync(~0u, t0, first & 31), b = __shfl_sync(~0u, t1, first & 31);
        pick = gx_pick(&r.place, node + 1, first < 0 ? -1 : first < 32 ? a : b);
        hash = gr_hash_extend(hash, pick);
        const uint64_t next =
            __ballot_sync(~0u, p0 == node && t0 == pick) | (uint64_t)__ballot_sync(~0u, p1 == node && t1 == pick) << 32;
        if (next == 0) {
            break;
        }
        node = __ffsll((long long)next) - 1;
        accepted |= 1ull << node;
    }
    if (lane == 0) {
        r.accepted = accepted, r.new_hash = hash, r.bonus = pick, r.n_path = __popcll(accepted);
    }
}

/* room.verdict in the form of the case. */
static __device__ void build_verdict(const Case &c, Room &r)
{
    const int t = (int)threadIdx.x;
    if (t < GX_VERDICT_BYTES / 4) {
        u32_at(r.verdict, 4 * t) = 0;
    }
    if (t < 32) {
        walk(r);
    }
    __syncthreads();
    if (c.verdict_bytes == GX_COMPACT_BYTES && t == 0) {
        u32_at(r.verdict, 0) = r.place.round;
        u32_at(r.verdict, 4) = (uint32_t)r.bonus;
        *(uint64_t *)(r.verdict + 8) = r.accepted | (r.fault != GX_GOOD ? GX_COMPACT_ROOT_ONLY : 0);
    } else if (c.verdict_bytes == GX_VERDICT_BYTES) {
        uint8_t *v = r.verdict + GR_WIRE_HEADER_BYTES;
        if (t == 0) {
            write_header(r.verdict, GR_FRAME_VERDICT, r.place, GR_WIRE_VERDICT_BYTES(r.n_path), r.new_hash);
            u32_at(v, GR_WIRE_VERDICT_OFF_DRAFT_ROUND) = r.fault != GX_GOOD ? GR_WIRE_ROOT_ONLY : r.place.round;
            u32_at(v, GR_WIRE_VERDICT_OFF_KEEP_LEN) = r.place.base_len;
            u32_at(v, GR_WIRE_VERDICT_OFF_FINAL_LEN) = r.place.base_len + (uint32_t)r.n_path + 1;
            u32_at(v, GR_WIRE_VERDICT_OFF_BONUS) = (uint32_t)r.bonus;
            v[GR_WIRE_VERDICT_OFF_N_PATH] = (uint8_t)r.n_path;
            v[GR_WIRE_VERDICT_OFF_N_WANT] = GR_NODE_MAX;
        } else if (t >= 64 && t < 64 + GR_NODE_MAX && (r.accepted >> (t - 64) & 1) != 0) {
            v[GR_WIRE_VERDICT_OFF_NODE + __popcll(r.accepted & ((1ull << (t - 64)) - 1))] = (uint8_t)(t - 64);
        }
    }
    __syncthreads();
}

/* The drafter follows: its own tree and what the verdict says of it. A verdict that does not fit is counted. */
static __device__ void follow_verdict(const Side &s, const Case &c, Room &r)
{
    if (!c.judge || threadIdx.x != 0) {
        return;
    }
    const bool compact = c.verdict_bytes == GX_COMPACT_BYTES;
    uint8_t *v = r.verdict + GR_WIRE_HEADER_BYTES;
    uint64_t set = 0, hash = r.place.hash;
    const int32_t bonus = (int32_t)u32_at(compact ? r.verdict : v, compact ? 4 : GR_WIRE_VERDICT_OFF_BONUS);
    bool fits = u32_at(r.verdict, compact ? 0 : GR_WIRE_OFF_ROUND) == r.place.round && (uint32_t)bonus < GX_N_VOCAB;
    if (compact) {
        set = *(uint64_t *)(r.verdict + 8) & ~GX_COMPACT_ROOT_ONLY;
    } else {
        const int n_path = v[GR_WIRE_VERDICT_OFF_N_PATH];
        fits &= n_path <= GR_NODE_MAX && u32_at(r.verdict, GR_WIRE_OFF_BASE_LEN) == r.place.base_len;
        for (int k = 0; fits && k < n_path; k++) {
            set |= 1ull << (v[GR_WIRE_VERDICT_OFF_NODE + k] & 63);
        }
    }
    const uint32_t n = set != 0 ? u32_at(r.frame, AT_N) : 0; /* a corrupted frame is never followed */
    fits &= n <= GR_NODE_MAX && set >> n == 0;
    uint32_t n_new = 1;
    for (uint64_t left = fits ? set : 0; left != 0; left &= left - 1, n_new++) {
        hash = gr_hash_extend(hash, (int32_t)u32_at(r.frame, AT_TOKEN + 4 * (__ffsll((long long)left) - 1)));
    }
    hash = gr_hash_extend(hash, bonus);
    fits &= compact || hash == *(uint64_t *)(r.verdict + GR_WIRE_OFF_HASH);
    if (!fits) {
        s.report->n_desync++;
    }
    r.place.hash = hash, r.place.base_len += n_new, r.place.round++;
}

/* ---- the four steps of a round ---- */

static __device__ void lose_peer(const Side &s, Room &r)
{
    if (threadIdx.x == 0) {
        r.stop = 1;
        store_relaxed(&s.report->is_lost, r.i + 1);
    }
    __syncthreads();
}

static __device__ void count_done(const Side &s, const Room &r)
{
    if (threadIdx.x == 0) {
        s.report->place = r.place;
        store_relaxed(&s.report->n_done, r.i);
    }
}

template <int WORDS> static __device__ void publish_draft(const Side &s, const Case &c, Room &r)
{
    build_draft(s, c, r);
    const uint32_t seq = c.seq0 + r.i + 1;
    uint8_t *slot = slot_of(s.theirs, UP_SLOT, r.i);
    if (threadIdx.x == 0) {
        r.ns_send = now_ns(), r.clk_send = clock64();
    }
    put<WORDS>(slot + (WORDS ? UP_WORDS_AT : UP_BYTES_AT), r.frame, c.frame_bytes, seq);
    if (!WORDS) {
        raise_flag(slot, seq);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        r.i++, r.is_pending = 1;
    }
    __syncthreads();
}

/* The answer to the last DRAFT, r.i being one ahead of it. */
template <int WORDS> static __device__ void await_verdict(const Side &s, const Case &c, Room &r)
{
    const uint32_t seq = c.seq0 + r.i;
    uint8_t *slot = slot_of(s.mine, DOWN_SLOT, r.i - 1);
    bool ok = WORDS || await_flag(slot, seq, s.limit_ns);
    ok = ok && get<WORDS>(slot + (WORDS ? VERDICT_WORDS_AT : VERDICT_AT), r.verdict, c.verdict_bytes, seq, s.limit_ns);
    if (ok && c.feature_bytes > 0 && WORDS == ALL_WORDS) {
        ok = get_feature_words(slot + FEATURE_WORDS_AT, s, c.feature_bytes, seq);
    } else if (ok && c.feature_bytes > 0) {
        ok = !WORDS || await_flag(slot + FEATURE_FLAG_AT, seq, s.limit_ns);
        if (ok) {
            get_features(slot + FEATURES_AT, s, c.feature_bytes, seq);
        }
        __syncthreads();
    }
    if (!ok) {
        lose_peer(s, r);
        return;
    }
    if (threadIdx.x == 0) {
        const int64_t clk = clock64();
        s.stamp[(r.i - 1) % N_STAMP] = {r.ns_send, now_ns(), r.clk_send, clk};
        r.is_pending = 0;
    }
    follow_verdict(s, c, r);
    __syncthreads();
}

template <int WORDS> static __device__ void await_draft(const Side &s, const Case &c, Room &r)
{
    const uint32_t seq = c.seq0 + r.i + 1;
    uint8_t *slot = slot_of(s.mine, UP_SLOT, r.i);
    bool ok = WORDS || await_flag(slot, seq, s.limit_ns);
    ok = ok && get<WORDS>(slot + (WORDS ? UP_WORDS_AT : UP_BYTES_AT), r.frame, c.frame_bytes, seq, s.limit_ns);
    if (!ok) {
        lose_peer(s, r);
        return;
    }
    if (c.judge) {
        judge_draft(r, c.has_hole != 0);
    }
}

/* After it, and off the drafter's path: the round for the host's replay. */
static __device__ void keep_record(const Side &s, Room &r)
{
    struct gx_record *rec = s.record + r.i;
    const int t = (int)threadIdx.x;
    if (t < GX_FRAME_BYTES / 16) {
        ((uint4 *)rec->frame)[t] = ((const uint4 *)r.frame)[t];
    } else if (t >= 64 && t < 64 + GX_VERDICT_BYTES / 16) {
        ((uint4 *)rec->verdict)[t - 64] = ((const uint4 *)r.verdict)[t - 64];
    } else if (t == 96) {
        rec->fault = r.fault;
    }
}

template <int WORDS> static __device__ void publish_verdict(const Side &s, const Case &c, Room &r)
{
    if (c.judge) {
        build_verdict(c, r);
    }
    const uint32_t seq = c.seq0 + r.i + 1;
    uint8_t *slot = slot_of(s.theirs, DOWN_SLOT, r.i);
    put<WORDS>(slot + (WORDS ? VERDICT_WORDS_AT : VERDICT_AT), r.verdict, c.verdict_bytes, seq);
    if (WORDS == ALL_WORDS) {
        put_feature_words(slot + FEATURE_WORDS_AT, s.features, c.feature_bytes, seq);
    } else {
        put_features(slot + FEATURES_AT, s.features, c.feature_bytes, seq);
    }
    if (!WORDS) {
        raise_flag(slot, seq);
    } else if (c.feature_bytes > 0 && WORDS != ALL_WORDS) {
        raise_flag(slot + FEATURE_FLAG_AT, seq);
    }
    if (c.judge) {
        keep_record(s, r);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        if (c.judge) {
            r.place.hash = r.new_hash, r.place.base_len += (uint32_t)r.n_path + 1, r.place.round++;
        }
        r.i++;
    }
    __syncthreads();
}

/* ---- kernels: one block ---- */

static __device__ void copy_room(Room &to, const Room &from)
{
    static_assert(sizeof(Room) % 16 == 0 && sizeof(Room) / 16 <= N_THREAD, "a thread copies 16 bytes");
    if (threadIdx.x < sizeof(Room) / 16) {
        ((uint4 *)&to)[threadIdx.x] = ((const uint4 *)&from)[threadIdx.x];
    }
    __syncthreads();
}

/* All rounds in one kernel. */
template <int WORDS> static __global__ void __launch_bounds__(N_THREAD, 1) draft_all(Side s, Case c)
{
    __shared__ Room r;
    copy_room(r, *s.room);
    while (r.i < c.n_round && r.stop == 0) {
        publish_draft<WORDS>(s, c, r);
        await_verdict<WORDS>(s, c, r);
        count_done(s, r);
    }
}
template <int WORDS> static __global__ void __launch_bounds__(N_THREAD, 1) target_all(Side s, Case c)
{
    __shared__ Room r;
    copy_room(r, *s.room);
    while (r.i < c.n_round && r.stop == 0) {
        await_draft<WORDS>(s, c, r);
        if (r.stop == 0) {
            publish_verdict<WORDS>(s, c, r);
            count_done(s, r);
        }
    }
}

/* A round is a graph. The drafter's: the verdict of the last round, then the next tree; one graph more than rounds. */
template <int WORDS> static __global__ void __launch_bounds__(N_THREAD, 1) draft_first(Side s, Case c)
{
    __shared__ Room r;
    copy_room(r, *s.room);
    if (r.stop == 0 && r.is_pending != 0) {
        await_verdict<WORDS>(s, c, r);
        copy_room(*s.room, r);
    }
}
template <int WORDS> static __global__ void __launch_bounds__(N_THREAD, 1) draft_last(Side s, Case c)
{
    __shared__ Room r;
    copy_room(r, *s.room);
    if (r.stop == 0 && r.i < c.n_round) {
        publish_draft<WORDS>(s, c, r);
        copy_room(*s.room, r);
    }
    count_done(s, r);
}
template <int WORDS> static __global__ void __launch_bounds__(N_THREAD, 1) target_first(Side s, Case c)
{
    __shared__ Room r;
    copy_room(r, *s.room);
    if (r.stop == 0) {
        await_draft<WORDS>(s, c, r);
        copy_room(*s.room, r);
    }
}
template <int WORDS> static __global__ void __launch_bounds__(N_THREAD, 1) target_last(Side s, Case c)
{
    __shared__ Room r;
    copy_room(r, *s.room);
    if (r.stop == 0) {
        publish_verdict<WORDS>(s, c, r);
        copy_room(*s.room, r);
        count_done(s, r);
    }
}

#endif
