/* The plan of a pass's attention, as its kernels see it, and what a row's position says about its keys. */
#ifndef GR_KERNELS_CUDA_ATTENTION_ATTENTION_PLAN_CUH
#define GR_KERNELS_CUDA_ATTENTION_ATTENTION_PLAN_CUH

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/kv_layout.h"
#include "kernels/cuda/device/launch.cuh"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace gr
{

constexpr int TILE_ROW_MAX = 64;     /* rows of a tile; rows times query heads of a KV head are at most 256 */
constexpr int NEAR_ROWS = 4;         /* rows that a block of the near kernel takes */
constexpr int NEAR_POOL_BLOCKS = 10; /* pool blocks that hold the near keys of NEAR_ROWS neighbours, at most */
constexpr int NEAR_BLOCKS_MAX = NEAR_POOL_BLOCKS + GR_CUDA_SLOT_MAX / GR_KV_BLOCK_TOKENS;
constexpr int NEAR_KEYS = 80; /* near keys of a row, at most: 64 positions, from the start of a block on */

/* Rows of one sequence that are beside each other in the pass, and of them those of one split_len. */
struct Tile {
    int seq, row0, n_row;
    int far_len, far_min; /* largest and smallest of its rows; with a window: where their far keys end and begin */
    int split_len, n_split;
    bool old;              /* all its far keys were there before this pass */
    int far[TILE_ROW_MAX]; /* NOT_HERE: a row of another split_len, or of none; with a window: the row's position */
};
constexpr int NOT_HERE = -1; /* in Tile.far */

/* What a cluster of the far kernel works through: a tile, a KV head, a split. All that it needs before the first load.
 */
struct alignas(16) Item {
    int tile, kv_head, split, n_row;
    int first, n_key; /* far keys of the split */
    int n_whole;      /* tiles of keys that every row sees all of */
    int old;
    const int32_t *block;  /* the sequence's block table */
    const int32_t *sparse; /* the lists of its view; NULL: it has none */
    union {
        int sparse_stride;
        int n_front; /* with a window: tiles of keys, the first ones, that not every row sees the beginning of */
    };
    int n_sparse, dense_block;
    int row0; /* the tile's first row of the pass */
};

/* What a block of the near kernel works on: rows beside each other and the blocks that they can see. */
struct alignas(16) Group {
    int row0, n_row; /* of the pass */
    int n_pool, n_block;
    int32_t block[NEAR_BLOCKS_MAX];
    int16_t n_key[NEAR_ROWS], n_split[NEAR_ROWS];
    /* Near key 8 g + i of a row is lane % 16 of block / 16 of these: cell[row][i][g]. Past the row's own key that one
     * again. */
    alignas(16) uint16_t cell[NEAR_ROWS][8][16];
};

struct alignas(16) Plan {
    int32_t error;
    int32_t n_tile, n_item, n_group;
};

__host__ __device__ __forceinline__ int tile_rows(int group)
{
    return min(TILE_ROW_MAX, 256 / group);
}

__host__ __device__ __forceinline__ int near_blocks(const gr_cuda_attn_shape &s)
{
    return NEAR_POOL_BLOCKS + (s.n_slot_max + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
}

__host__ __device__ __forceinline__ int n_group_max(const gr_cuda_attn_shape &s)
{
    return (s.n_row_max + (NEAR_ROWS - 1) * s.n_seq_max) / NEAR_ROWS;
}

__host__ __device__ __forceinline__ int n_tile_max(const gr_cuda_attn_shape &s)
{
    return 2 * (s.n_row_max / tile_rows(s.n_head / s.n_kv_head) + s.n_seq_max);
}

/* Where the parts of a plan lie, one after the other. */
struct PlanParts {
    Plan *head;
    Item *item; /* those of long splits first */
    Group *group;
    Tile *tile, *raw; /* raw: in the order in which they were found */
    uint8_t *end;
};

__host__ __device__ __forceinline__ PlanParts parts_of(const gr_cuda_attn_shape &s, const void *plan)
{
    PlanParts p;
    const size_t tiles = (size_t)n_tile_max(s);
    p.head = (Plan *)const_cast<void *>(plan);
    p.item = (Item *)(p.head + 1);
    p.group = (Group *)(p.item + tiles * s.n_kv_head * GR_CUDA_SPLIT_MAX);
    p.tile = (Tile *)(p.group + n_group_max(s));
    p.raw = p.tile + tiles;
    p.end = (uint8_t *)(p.raw + tiles);
    return p;
}

/* Where the near keys of a row begin. */
__host__ __device__ __forceinline__ int near_from(const gr_attn_seq &s, int row)
{
    const int pos = s.limit[row] + s.n_anc[row] - 1;
    const int from = max(0, pos - 63) & ~15;
    return s.sparse ? max(from, s.dense_from) : from;
}

__host__ __device__ __forceinline__ int far_len(const gr_attn_seq &s, int row)
{
    const int from = near_from(s, row);
    return s.sparse ? s.n_sparse * GR_KV_BLOCK_TOKENS + from - s.dense_from : from;
}

/* 0 where there are no far keys. */
__host__ __device__ __forceinline__ int split_len(const gr_cuda_attn_shape &s, int far_len)
{
    const int unit = s.n_split_max * GR_CUDA_KEY_TILE;
    return (far_len + unit - 1) / unit * GR_CUDA_KEY_TILE;
}

/* ---- with a window ---- */

/* A row at position pos sees far keys [window_first(), window_near()), near keys from there on. Its far keys are none
 * where the two meet. */
__host__ __device__ __forceinline__ int window_first(int window, int pos)
{
    return max(0, pos - window + 1);
}

__host__ __device__ __forceinline__ int window_near(int window, int pos)
{
    return max(max(0, pos - 63) & ~15, window_first(window, pos));
}

/* Splits are cut at the multiples of this. A row's window - 64 far keys touch one more of them than they would fill, so
 * there are at most n_split_max of them, or two. */
__host__ __device__ __forceinline__ int window_split(const gr_cuda_attn_shape &s, int window)
{
    const int unit = max(1, s.n_split_max - 1) * GR_CUDA_KEY_TILE;
    return (max(1, window - 64) + unit - 1) / unit * GR_CUDA_KEY_TILE;
}

/* Partial results of the far kernel, by split, row of the pass and query head: sums that are not yet divided, columns
 * in the order of wgmma's registers (`partial_column`), and (the score that weights are relative to, their sum). */
struct Partial {
    float *o;   /* (GR_CUDA_SPLIT_MAX, n_row_max, n_head, head_dim) */
    float2 *ml; /* (GR_CUDA_SPLIT_MAX, n_row_max, n_head) */
};

__host__ __device__ __forceinline__ Partial partial_of(const gr_cuda_attn_shape &s, void *work)
{
    const size_t n = (size_t)GR_CUDA_SPLIT_MAX * s.n_row_max * s.n_head;
    return {(float *)work, (float2 *)((float *)work + n * s.head_dim)};
}

/* A thread holds columns 8 j + 2 q and the next, q = its number modulo 4; it stores those of j and j + 1 (j even) as
 * four floats side by side. */
__host__ __device__ __forceinline__ int partial_column(int j, int q)
{
    return j / 2 * 16 + q * 4;
}

enum gr_status check_shape(const gr_cuda_attn_shape *s);
/* The kernels of gr_cuda_attention(), each in its file. */
cudaError_t launch_far(const gr_cuda_attention_args &a, cudaStream_t stream);
cudaError_t launch_near(const gr_cuda_attention_args &a, cudaStream_t stream);
const char *error_text(int error);

} // namespace gr

#endif
