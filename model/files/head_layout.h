/* Published EAGLE-3 heads write their config.json in several layouts. This is the one place that knows them; all others
 * read the flat one.
 * Flat (SafeAILab/EAGLE, SpecForge, NVIDIA): the head's geometry at the top, architecture LlamaForCausalLMEagle3.
 * Speculators: speculators_model_type is "eagle3", the geometry lies in transformer_layer_config, what makes it a head
 * at the top. Its capture ids are inputs, as vLLM takes them (capture.h).
 * Nebius: architecture LlamaForCausalLM with one layer, and truncated_vocab_size in place of draft_vocab_size.
 * Tensor names and shapes are the same in all of them (model/eagle3.h). */
#ifndef GR_MODEL_FILES_HEAD_LAYOUT_H
#define GR_MODEL_FILES_HEAD_LAYOUT_H

#include <jansson.h>

#include "common/base/status.h"

/* Rewrites a parsed config.json in the flat layout; any other model's is left alone. name: the file, for messages.
 * GR_EFORMAT, GR_EUNSUPPORTED: one line is logged that names the key. */
GR_NODISCARD enum gr_status gr_head_layout_flatten(const char *name, json_t *root);

#endif
