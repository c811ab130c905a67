/* Rotary embedding tables: cos and sin of every position, with the frequency rules of plain RoPE, of
 * linear scaling (arXiv 2306.15595: positions, or what is the same frequencies, divided by a factor), of Llama 3.1
 * (wavelength-dependent scaling, "rope_type": "llama3") and YaRN (arXiv 2309.00071, sec. 3.2 and 3.4). */
#ifndef GR_MODEL_ROPE_H
#define GR_MODEL_ROPE_H

#include <stdint.h>

#include "common/base/free_memory.h"
#include "common/base/status.h"
#include "model/files/hf_config.h"

/* cos, sin: (n_pos, head_dim / 2), caller's. Computed in double, stored in f32. */
void gr_rope_tables(const struct gr_hf_config *hf, int n_pos, float *cos_out, float *sin_out);
/* The same of layers with a window, where hf.rope_local_theta is not 0. */
void gr_rope_local_tables(const struct gr_hf_config *hf, int n_pos, float *cos_out, float *sin_out);

/* Bytes of all the tables that a model of contexts of n_pos tokens has. */
uint64_t gr_rope_bytes(const struct gr_hf_config *hf, int n_pos);
/* Before they are taken: many are told by a warning, and GR_ENOMEM (logged) is more than is free. what: the model. */
GR_NODISCARD enum gr_status gr_rope_fit(const char *what, const struct gr_hf_config *hf, int n_pos,
                                        const struct gr_free_memory *left);

#endif
