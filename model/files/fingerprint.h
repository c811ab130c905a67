/* Identity of a model for HELLO: equal when two workers hold the same weights and geometry. */
#ifndef GR_MODEL_FILES_FINGERPRINT_H
#define GR_MODEL_FILES_FINGERPRINT_H

#include <stdint.h>

#include "model/files/hf_config.h"
#include "model/files/safetensors.h"

/* xxh3 of the config's numbers, and of every tensor's name, dtype, shape and up to four sampled
 * pages (the whole tensor when it is no larger). Independent of the sharding and of the order in
 * the files. bos and eos ids are left out: they say when to stop, not what the model computes, and
 * are edited by hand. */
uint64_t gr_model_fingerprint(const struct gr_hf_config *config, const struct gr_safetensors *st);

/* xxh3 of the named tensors that are there: name, dtype, shape, sampled pages. Marks them as used. */
uint64_t gr_tensors_fingerprint(const struct gr_safetensors *st, const char *const *names, size_t n);

#endif
