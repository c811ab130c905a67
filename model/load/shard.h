/* Which part of a model a rank of a tensor-parallel group has. What is cut along its inputs (o, down) is cut where its
 * sum's tree is cut (common/rules/segments.h), what is cut by its outputs follows from that: a rank has whole KV heads
 * with their query heads, FFN units of GR_SEGMENT_UNIT, and panels of 16 rows of the vocabulary. Embedding, norms and
 * the residual stream are whole on every rank. Pure. Decision D-099. */
#ifndef GR_MODEL_LOAD_SHARD_H
#define GR_MODEL_LOAD_SHARD_H

#include "common/base/status.h"
#include "common/rules/segments.h"
#include "model/files/hf_config.h"

#define GR_RANK_MAX GR_SEGMENT_MAX

struct gr_shard {
    int rank, n_rank;
    int kv_head, n_kv_head; /* the first one, and how many; of the others as well */
    int head, n_head;
    int ffn, n_ffn;
    int vocab, n_vocab; /* rows of lm_head, padding included */
};

/* The first row of lm_head that rank has; rank n_rank: how many there are. */
int gr_shard_vocab(int n_vocab_row, int n_rank, int rank);
/* All of it: a group of one. */
struct gr_shard gr_shard_whole(const struct gr_hf_config *hf);
/* dir: for messages. GR_EINVAL, one line: n_rank cannot be, or not for this model. */
GR_NODISCARD enum gr_status gr_shard_check(const char *dir, const struct gr_hf_config *hf, int n_rank);
GR_NODISCARD enum gr_status gr_shard_plan(const char *dir, const struct gr_hf_config *hf, int n_rank, int rank,
                                          struct gr_shard *out);
/* How the sums over a rank's own inputs are ordered: its part of the tree. */
struct gr_segments gr_shard_segments_of_o(const struct gr_shard *s, int head_dim);
struct gr_segments gr_shard_segments_of_down(const struct gr_shard *s);

#endif
