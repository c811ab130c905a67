/* Rotary embedding tables: cos and sin of every position, with the frequency rules of plain RoPE, of
 * linear scaling (arXiv 2306.15595: positions, or what is the same frequencies, divided by a factor), of Llama 3.1
 * (wavelength-dependent scaling, "rope_type": "llama3") and YaRN (arXiv 2309.00071, sec. 3.2 and 3.4). */
#ifndef GR_MODEL_ROPE_H
#define GR_MODEL_ROPE_H

#include "model/files/hf_config.h"

/* cos, sin: (n_pos, head_dim / 2), caller's. Computed in double, stored in f32. */
void gr_rope_tables(const struct gr_hf_config *hf, int n_pos, float *cos_out, float *sin_out);
/* The same of layers with a window, where hf.rope_local_theta is not 0. */
void gr_rope_local_tables(const struct gr_hf_config *hf, int n_pos, float *cos_out, float *sin_out);

#endif
