/* Writes one .safetensors file: dumps of the bench, and the small models of tests. Any thread; blocks on the disk. */
#ifndef GR_MODEL_FILES_SAFETENSORS_WRITE_H
#define GR_MODEL_FILES_SAFETENSORS_WRITE_H

#include "model/files/safetensors.h"

/* tensors: name, dtype, shape, data and bytes of each, borrowed for the call. Written with the widest elements first,
 * so that every tensor is aligned. An error names the file. */
GR_NODISCARD enum gr_status gr_safetensors_write(const char *path, const struct gr_tensor *tensors, size_t n);

#endif
