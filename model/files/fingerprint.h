/* Identity of a model for HELLO: equal when two workers hold the same weights and geometry. */
#ifndef GR_MODEL_FILES_FINGERPRINT_H
#define GR_MODEL_FILES_FINGERPRINT_H

#include <stdbool.h>
#include <stdint.h>

#include "model/files/hf_config.h"
#include "model/files/tensors.h"

/* xxh3 of the config's numbers, and of every weight's shape and the values of up to 16 of its rows as they are held in
 * memory (so not of names, formats, bytes or files: the same model as a folder and as a GGUF file agrees). Buffers that
 * mean nothing do not count, bos and eos ids neither: they say when to stop, not what the model computes, and are
 * edited by hand. round_all, round_quantised: which values are rounded to bf16 when they are loaded. */
uint64_t gr_model_fingerprint(const struct gr_hf_config *config, const struct gr_tensors *ts, bool round_all,
                              bool round_quantised);

/* The same of the named tensors that are there, in this order. Marks them as used. */
uint64_t gr_tensors_fingerprint(const struct gr_tensors *ts, const char *const *names, size_t n, bool round_all,
                                bool round_quantised);

#endif
