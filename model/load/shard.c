#include "model/load/shard.h"

#include "common/base/log.h"

#define PANEL 16 /* rows of a matrix that kernels keep together (kernels.h) */

static int min_of(int a, int b)
{
    return a < b ? a : b;
}

static int vocab_units(int n_vocab_row)
{
    return (n_vocab_row + PANEL - 1) / PANEL;
}

static int ffn_units(int ffn)
{
    return (ffn + GR_SEGMENT_UNIT - 1) / GR_SEGMENT_UNIT;
}

int gr_shard_vocab(int n_vocab_row, int n_rank, int rank)
{
    return min_of(gr_segment_begin(vocab_units(n_vocab_row), n_rank, rank) * PANEL, n_vocab_row);
}

static int first_ffn(int ffn, int n_rank, int rank)
{
    return min_of(gr_segment_begin(ffn_units(ffn), n_rank, rank) * GR_SEGMENT_UNIT, ffn);
}

static struct gr_shard shard_of(const struct gr_hf_config *hf, int n_rank, int rank)
{
    const int group = hf->n_head / hf->n_kv_head;
    struct gr_shard s = {.rank = rank, .n_rank = n_rank};
    s.kv_head = gr_segment_begin(hf->n_kv_head, n_rank, rank);
    s.n_kv_head = gr_segment_begin(hf->n_kv_head, n_rank, rank + 1) - s.kv_head;
    s.head = s.kv_head * group;
    s.n_head = s.n_kv_head * group;
    s.ffn = first_ffn(hf->ffn, n_rank, rank);
    s.n_ffn = first_ffn(hf->ffn, n_rank, rank + 1) - s.ffn;
    s.vocab = gr_shard_vocab(gr_hf_vocab_rows(hf), n_rank, rank);
    s.n_vocab = gr_shard_vocab(gr_hf_vocab_rows(hf), n_rank, rank + 1) - s.vocab;
    return s;
}

struct gr_shard gr_shard_whole(const struct gr_hf_config *hf)
{
    return shard_of(hf, 1, 0);
}

enum gr_status gr_shard_check(const char *dir, const struct gr_hf_config *hf, int n_rank)
{
    if (n_rank != 1 && n_rank != 2 && n_rank != 4 && n_rank != 8) {
        log_error("--tensor-parallel-size %d: must be 1, 2, 4 or 8", n_rank);
        return GR_EINVAL;
    }
    if (n_rank > hf->n_kv_head) {
        log_error("--tensor-parallel-size %d: %s has %d KV heads (num_key_value_heads), and a rank takes whole ones: "
                  "give at most %d",
                  n_rank, dir, hf->n_kv_head, hf->n_kv_head);
        return GR_EINVAL;
    }
    if (hf->n_kv_head % n_rank != 0) {
        log_error("--tensor-parallel-size %d: the %d KV heads of %s (num_key_value_heads) cannot be shared out evenly",
                  n_rank, hf->n_kv_head, dir);
        return GR_EINVAL;
    }
    const int n_least = min_of(ffn_units(hf->ffn), vocab_units(gr_hf_vocab_rows(hf)));
    if (n_rank > n_least) {
        log_error("--tensor-parallel-size %d: %s is too small: an FFN of %d (intermediate_size) has %d parts of %d "
                  "inputs, a vocabulary of %d has %d parts of %d rows",
                  n_rank, dir, hf->ffn, ffn_units(hf->ffn), GR_SEGMENT_UNIT, gr_hf_vocab_rows(hf),
                  vocab_units(gr_hf_vocab_rows(hf)), PANEL);
        return GR_EINVAL;
    }
    return GR_OK;
}

enum gr_status gr_shard_plan(const char *dir, const struct gr_hf_config *hf, int n_rank, int rank, struct gr_shard *out)
{
    GR_TRY(gr_shard_check(dir, hf, n_rank));
    if (rank < 0 || rank >= n_rank) {
        log_error("rank %d of a tensor-parallel group of %d: ranks are counted from 0", rank, n_rank);
        return GR_EINVAL;
    }
    *out = shard_of(hf, n_rank, rank);
    return GR_OK;
}

struct gr_segments gr_shard_segments_of_o(const struct gr_shard *s, int head_dim)
{
    const int n_in = s->n_head * head_dim;
    return gr_segments_of(n_in, n_in / s->n_kv_head, GR_SEGMENT_MAX / s->n_rank);
}

struct gr_segments gr_shard_segments_of_down(const struct gr_shard *s)
{
    return gr_segments_of(s->n_ffn, GR_SEGMENT_UNIT, GR_SEGMENT_MAX / s->n_rank);
}
