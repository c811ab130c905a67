/* The operations of a language model's forward pass: one function type per op, one table per
 * implementation (`ref`: plain loops in double, the definition, for tests; `cpu`: AVX-512, AVX2 or plain C,
 * chosen at run time). A GPU's kernels have launchers of their own (kernels/cuda). A pass is run by all threads of a
 * team together: every op is called by every thread with its own gr_exec and computes that thread's share;
 * gr_exec_barrier() separates an op from the one that reads its output. On a GPU there is one caller and the stream
 * keeps the order.
 *
 * Row independence (the contract of every implementation but `ref`): the value of an output row depends on the
 * bits of that row's inputs and weights only: never on n_row, on the row's index, on the number of threads, on
 * where a key lies (pool or scratch) or on the instruction set. In short:
 *   - linear: each output is one chain of fused multiply-adds over k = 0..n_in-1, started at 0; of matrices that a
 *     tensor-parallel group cuts along their inputs (o, down) it is a chain a segment, joined by a tree of f32 sums
 *     (common/rules/segments.h), so that it does not depend on the size of the group either;
 *   - sums over a row (rmsnorm, softmax): 16 lanes, element i goes to lane i % 16 in increasing order of i,
 *     lanes are then added as ((l0+l8)+(l4+l12)) + ... : halves 8, 4, 2, 1 apart. The
 *     sum of squares of rmsnorm is a fused multiply-add per lane;
 *   - attention: splits of GR_ATTN_SPLIT keys aligned to absolute positions, merged in increasing order.
 *
 * All pointers are borrowed. Nothing allocates. Callers check the shapes once, when the model is loaded.
 * Decisions D-001, D-002, D-003, D-099. */
#ifndef GR_KERNELS_KERNELS_H
#define GR_KERNELS_KERNELS_H

#include "common/rules/bf16.h"
#include "common/rules/kv_block.h"
#include "common/rules/sampler.h"
#include "common/rules/segments.h"
#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_ATTN_SPLIT 512  /* keys in an attention split, aligned to absolute positions */
#define GR_ATTN_ANC_MAX 64 /* extra cells (tree ancestors and itself) of a row */
#define GR_HEAD_DIM_MAX 256

struct gr_team;

/* One thread's place in the team that runs a pass. */
struct gr_exec {
    struct gr_team *team; /* NULL: a single thread, barriers do nothing */
    int ith, nth;
};

/* A weight matrix of a linear layer, of bf16 or of f32 values: the same values give the same bits either way.
 * plain: (n_out, n_in), row-major. packed: what linear_pack() or linear_pack_f32() wrote (align it to 64 bytes: nothing
 * breaks without, but it is slower); implementations that need none leave it NULL. segments: the order of sums, of
 * n_in inputs, set when the weight is loaded; all ends but the last are multiples of 16. They change nothing in how a
 * matrix is packed. */
struct gr_weight {
    const void *plain; /* uint16_t or float */
    const void *packed;
    int n_out, n_in;
    bool is_f32;
    struct gr_segments segments; /* zeros: one chain */
};

/* y[r][o] = sum_k x[r][k] * w[o][k] (+ bias[o]) (+ residual[r][o]); in that order, bias and residual are added
 * to the finished sum, whose order the weight's segments decide. x (n_row, x_stride), y (n_row, y_stride) f32. residual
 * may be y itself. */
struct gr_linear_args {
    const struct gr_weight *w;
    const float *x;
    const float *bias;     /* (n_out) or NULL */
    const float *residual; /* (n_row, y_stride) or NULL */
    float *y;
    int n_row, x_stride, y_stride;
};
/* Of bf16 weights; f32 ones take twice as many. 0: they stay plain. */
typedef size_t gr_linear_packed_bytes_fn(int n_out, int n_in);
/* Panels of 16 rows lie one after another: rows [16 i, n) packed by themselves are what the whole matrix has from
 * linear_packed_bytes(16 i, n_in) on, so a matrix may be made piece by piece. */
typedef void gr_linear_pack_fn(const uint16_t *plain, int n_out, int n_in, void *packed);
typedef void gr_linear_pack_f32_fn(const float *plain, int n_out, int n_in, void *packed);
/* Threads split the output columns: thread i of n takes gr_column_range(n_out). */
typedef void gr_linear_fn(const struct gr_exec *x, const struct gr_linear_args *a);

/* act[r][c] = silu(gate[r][c]) * up[r][c]; silu(g) = g / (1 + exp(-g)). Same split of columns as linear, so no
 * barrier is needed between the two linears that wrote gate and up and this op. act may be gate.
 * gelu: in place of silu the tanh form of GELU (arXiv 1606.08415, sec. 2), 0.5 g (1 + tanh(u)) = g / (1 + exp(-2 u)),
 *   u = sqrt(2 / pi) (g + 0.044715 g^3): t = fma(0.044715, (g * g) * g, g), then g / (1 + exp(-2 sqrt(2 / pi) * t)). */
#define GR_GELU_CUBE 0.044715f
#define GR_GELU_SLOPE 1.5957691216057308f /* 2 sqrt(2 / pi) */
struct gr_silu_mul_args {
    const float *gate, *up;
    float *act;
    int n_row, n_col, stride;
    bool gelu;
};
typedef void gr_silu_mul_fn(const struct gr_exec *x, const struct gr_silu_mul_args *a);

/* y[r][i] = x[r][i] * w[i] / sqrt(mean(x[r]^2) + eps) (+ residual[r][i]), evaluated as (x * inv) * w, the residual
 * added to the product. w: f32 (n). Threads split the rows. y may be x or residual. */
struct gr_rmsnorm_args {
    const float *x;
    const float *w;
    const float *residual; /* (n_row, y_stride) or NULL */
    float *y;
    int n_row, n, x_stride, y_stride;
    float eps;
};
typedef void gr_rmsnorm_fn(const struct gr_exec *x, const struct gr_rmsnorm_args *a);

/* Rotary embedding in place, half-split form (rotate_half): for i < head_dim/2 and position p:
 *   a' = fma(a, cos, -(b * sin)), b' = fma(b, cos, a * sin), a = x[i], b = x[i + head_dim/2].
 * x (n_row, stride): n_head heads of head_dim starting at column 0. cos, sin: (n_pos, head_dim/2) tables.
 * Threads split the rows. */
struct gr_rope_args {
    float *x;
    const int32_t *pos; /* (n_row) */
    const float *cos, *sin;
    int n_row, n_head, head_dim, stride;
};
typedef void gr_rope_fn(const struct gr_exec *x, const struct gr_rope_args *a);

/* y[r] = f32(table[id[r]]) * scale, table (n_vocab, n) of bf16 or of f32. Threads split the rows. */
struct gr_embed_args {
    const uint16_t *table;
    const float *table_f32; /* in place of table; else NULL */
    const int32_t *id;
    float *y;
    int n_row, n, y_stride;
    float scale; /* 0: as the table has it */
};
typedef void gr_embed_fn(const struct gr_exec *x, const struct gr_embed_args *a);

/* One layer's KV storage. Block b of KV head h:
 *   k + (b * n_kv_head + h) * head_dim * 16: (head_dim, 16), that is dimension-major, one lane a token
 *   v + (b * n_kv_head + h) * head_dim * 16: (16, head_dim)
 * Pool blocks and scratch blocks have the same form. A cell is block * 16 + lane. Attention needs head_dim to be
 * a multiple of 16, at most GR_HEAD_DIM_MAX; the model loader refuses others. */
struct gr_kv_layer {
    float *k, *v;
    int n_kv_head, head_dim;
};

/* Writes row r's keys and values (n_kv_head, head_dim; from rows of k and v with the given strides) into cell[r].
 * Threads split the rows. */
struct gr_kv_store_args {
    struct gr_kv_layer kv;
    const float *k, *v;
    const int32_t *cell; /* (n_row) */
    int n_row, k_stride, v_stride;
};
typedef void gr_kv_store_fn(const struct gr_exec *x, const struct gr_kv_store_args *a);

/* Copies cells src[i] -> dst[i], i in order; a dst is never a later src. Threads split the KV heads. */
struct gr_kv_copy_args {
    struct gr_kv_layer kv;
    const int32_t *src, *dst; /* (n) */
    int n;
};
typedef void gr_kv_copy_fn(const struct gr_exec *x, const struct gr_kv_copy_args *a);

/* The rows of one session in a ragged pass. Row r (0 <= r < n_row, pass row row0 + r) sees the pool positions
 * [0, limit[r]) through the block table (position p: block[p / 16], lane p % 16), then n_anc[r] scratch cells that
 * stand, in order, for positions limit[r], limit[r] + 1, ...; the last of them is the row itself. A chain row has
 * n_anc 0 and limit = its position + 1. Scratch cells are given as slots of the session: slot s is lane s % 16 of
 * block scratch_block[s / 16]. At least one key is visible.
 *
 * A view leaves out pool positions, by layer and KV head: of those below dense_from a row sees the blocks of
 * the list only. Every row stands at or past dense_from, and limit[r] >= dense_from. */
struct gr_attn_seq {
    int row0, n_row;
    const int32_t *block;         /* pool block table */
    const int32_t *limit;         /* (n_row) */
    const int32_t *scratch_block; /* (ceil(n_slot / 16)) */
    const int32_t *n_anc;         /* (n_row) */
    const int16_t *anc;           /* (n_row, GR_ATTN_ANC_MAX) slots */
    int n_slot;                   /* 0: no scratch */
    /* Partial view. NULL: all positions are visible, and the rest is not read. Else, for KV head h of layer l:
     * n_sparse logical block numbers (position / 16), increasing, all below dense_from / 16, at
     * sparse + (l * n_kv_head + h) * sparse_stride. */
    const int32_t *sparse;
    int n_sparse, sparse_stride;
    int32_t dense_from; /* multiple of 16 */
};

/* out[row][h] = softmax(q[row][h] . K * scale) V, query head h reads KV head h / (n_head / n_kv_head).
 * For each split of GR_ATTN_SPLIT absolute positions in increasing order, over the row's visible keys of it:
 *   s[p] = scale * (chain of fma over head_dim from 0);  m = max s;  e[p] = gr_expf(s[p] - m);
 *   l = 16-lane sum of e (lane p % 16);  o = chain of fma e[p] * v[p] in increasing p from 0.
 * (A split without visible keys is left out; so a list of all blocks gives the very bits of no list.)
 * window W > 0: a row at position p = limit + n_anc - 1 sees keys at positions above p - W only, itself and W - 1
 * before it, so its first split is that of p - W + 1. Not together with a view. First split: (M, L, O) = (m, l, o).
 * Then: M' = max(M, m), a = gr_expf(M - M'), b = gr_expf(m - M'), L = fma(L, a, l * b), O = fma(O, a, o * b), M = M'.
 * Result O / L, as O * (1 / L). q (total rows, q_stride) and out (total rows, out_stride) f32. work: n_thread *
 * attention_work_bytes. */
struct gr_attention_args {
    struct gr_kv_layer kv;
    const float *q;
    float *out;
    const struct gr_attn_seq *seq;
    int n_seq, n_head, q_stride, out_stride;
    int layer;  /* which lists of a view */
    int window; /* 0: all keys */
    float scale;
    void *work;
};
/* The first position that a row sees under a window. */
static inline int gr_attn_first(int window, int limit, int n_anc)
{
    const int first = limit + n_anc - window;
    return window > 0 && first > 0 ? first : 0;
}
typedef size_t gr_attention_work_bytes_fn(int n_head, int n_kv_head, int head_dim); /* per thread */
typedef void gr_attention_fn(const struct gr_exec *x, const struct gr_attention_args *a);

/* Summaries of key blocks: k_max and k_min of dimension d over the 16 keys of a block. Laid out as K blocks are, a
 * lane a block: of KV head h and logical block b at
 *   ((h * n_block_max / 16 + b / 16) * head_dim + d) * 16 + b % 16, n_block_max a multiple of 16.
 * Writes blocks [begin, end); only whole ones may be asked for. Threads split the blocks. */
struct gr_kv_summary_args {
    struct gr_kv_layer kv;
    const int32_t *block; /* pool block table */
    float *k_max, *k_min; /* (n_kv_head, n_block_max / 16, head_dim, 16) */
    int begin, end, n_block_max;
};
typedef void gr_kv_summary_fn(const struct gr_exec *x, const struct gr_kv_summary_args *a);

/* score[h][b], b < n_block: the mean (or the largest) over query rows r and heads g of KV head h's group of
 *   max(q . k_max[b], q . k_min[b]), each a chain of fma over head_dim from 0;
 * added in order of r, then g, and multiplied by 1 / (n_row * group). Scores of [begin, end) are written, and those
 * of the 16 blocks around them may be. Threads split (KV head, blocks). work: as attention's. */
struct gr_block_scores_args {
    const float *q; /* (n_row, q_stride): n_head heads of head_dim, after RoPE */
    const float *k_max, *k_min;
    float *score; /* (n_kv_head, n_block_max) */
    int n_row, q_stride, n_head, n_kv_head, head_dim;
    int begin, end, n_block_max;
    bool use_max;
    void *work;
};
typedef void gr_block_scores_fn(const struct gr_exec *x, const struct gr_block_scores_args *a);

/* The n_top largest of score[begin .. end), ties to the lower index, NaN counts as -INFINITY; out: their indices,
 * increasing.
 * n_top <= end - begin. work (end - begin) is overwritten. One caller, the same code everywhere (top_blocks.c). */
void gr_top_blocks(const float *score, int begin, int end, int n_top, float *work, int32_t *out);

/* y[i] = l[i] + gumbel(seed, pos, i, choice) for every i < n with l[i] != -inf (those stay -inf). One row, one
 * caller (not shared by a team): rows are dealt out by the caller. y may be l. gr_gumbel() is the definition. */
typedef void gr_add_gumbel_fn(const float *l, float *y, int n, uint64_t seed, uint32_t pos, uint32_t choice);
/* Index of the largest value, lowest index on ties, or GR_PICK_NOT_FINITE (common/rules/sampler.h). n >= 1. One caller.
 * Raw logits: not finite when any of them is NaN or infinite. filtered: the sampler has seen to these values, -inf
 * stands for an id that it took out; not finite when the largest value is infinite, NaN counts as -inf. */
typedef int gr_argmax_fn(const float *l, int n, bool filtered);
/* log(sum exp(l - max)) + max: 16-lane sum of gr_expf(l[i] - max), then gr_logf. One caller. */
typedef float gr_logsumexp_fn(const float *l, int n);

struct gr_kernels {
    const char *name; /* "ref", "avx512", "avx2", "c" */
    gr_linear_packed_bytes_fn *linear_packed_bytes;
    gr_linear_pack_fn *linear_pack;
    gr_linear_pack_f32_fn *linear_pack_f32;
    gr_linear_fn *linear;
    gr_silu_mul_fn *silu_mul;
    gr_rmsnorm_fn *rmsnorm;
    gr_rope_fn *rope;
    gr_embed_fn *embed;
    gr_kv_store_fn *kv_store;
    gr_kv_copy_fn *kv_copy;
    gr_attention_work_bytes_fn *attention_work_bytes;
    gr_attention_fn *attention;
    gr_kv_summary_fn *kv_summary;
    gr_block_scores_fn *block_scores;
    gr_add_gumbel_fn *add_gumbel;
    gr_argmax_fn *argmax;
    gr_logsumexp_fn *logsumexp;
};

/* Fills every slot. */
void gr_kernels_init_ref(struct gr_kernels *k);
/* Overrides with the best CPU version this machine can run, or with the one GRAFT_CPU names (avx512 | avx2 | c);
 * GR_EUNSUPPORTED (one line logged) when the machine cannot run that. isa: NULL = GRAFT_CPU, else best. */
GR_NODISCARD enum gr_status gr_kernels_init_cpu(struct gr_kernels *k, const char *isa);

/* Share of thread ith in n units: [*begin, *end). */
static inline void gr_unit_range(int n, int ith, int nth, int *begin, int *end)
{
    *begin = (int)((int64_t)n * ith / nth);
    *end = (int)((int64_t)n * (ith + 1) / nth);
}

/* Share of thread ith in n_col columns, whole panels of 16. */
static inline void gr_column_range(int n_col, int ith, int nth, int *begin, int *end)
{
    gr_unit_range((n_col + 15) / 16, ith, nth, begin, end);
    *begin *= 16;
    *end *= 16;
    *end = *end < n_col ? *end : n_col;
}

/* ---- teams (kernels/cpu/team.c) ----
 * n_thread - 1 helper threads plus the caller. The helpers spin briefly between passes, then sleep on a futex.
 * create takes all memory; run() allocates nothing. One caller at a time. */
GR_NODISCARD enum gr_status gr_team_create(int n_thread, struct gr_team **team_out);
void gr_team_destroy(struct gr_team *team);
int gr_team_size(const struct gr_team *team); /* 1 for NULL */
/* Runs fn on every thread of the team (the caller is ith 0) and returns when all are done. team NULL: inline. */
void gr_team_run(struct gr_team *team, void (*fn)(const struct gr_exec *x, void *arg), void *arg);
/* All threads of a running pass meet; spins, then yields to the kernel when the wait is long. */
void gr_exec_barrier(const struct gr_exec *x);
/* CPUs this process may use (affinity and cgroup quota considered), at least 1. */
int gr_cpu_count(void);
/* Threads of a team: as many as were asked for, which is warned of where there are fewer CPUs; 0: one for each CPU. */
int gr_cpu_threads(int asked);

#endif
