/* Read-only view of the weights of a Hugging Face model folder: model.safetensors, or the shards
 * that model.safetensors.index.json names. Files are mapped, never copied; every header field is
 * checked before use. Owned by the model that opened it; tensors and names are borrowed and live
 * until close. Marking tensors as used is not locked: one thread loads. Reading afterwards: any
 * thread. */
#ifndef GR_MODEL_FILES_SAFETENSORS_H
#define GR_MODEL_FILES_SAFETENSORS_H

#include <stddef.h>

#include "model/files/tensors.h"

#define GR_ST_HEADER_BYTES (100u * 1000u * 1000u) /* the format's own limit */
#define GR_ST_INDEX_BYTES (64u << 20)

/* dir: model folder. A single model.safetensors wins over an index. */
GR_NODISCARD enum gr_status gr_safetensors_open(const char *dir, struct gr_tensors **out);

/* One file from memory; data is borrowed until close, name stands for the file in messages. */
GR_NODISCARD enum gr_status gr_safetensors_parse(const char *name, const void *data, size_t len,
                                                 struct gr_tensors **out);

#endif
