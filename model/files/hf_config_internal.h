/* Parts of the reader of config.json (hf_config.c), each in its file. */
#ifndef GR_MODEL_FILES_HF_CONFIG_INTERNAL_H
#define GR_MODEL_FILES_HF_CONFIG_INTERNAL_H

#include "model/files/family.h"
#include "model/files/hf_config.h"
#include "model/files/json_util.h"

/* Limits of what a config may say: a wrong one must not become a huge allocation. */
#define HF_HIDDEN_MAX 65536
#define HF_MAX_POS_MAX (1 << 24)

/* A GGUF file's metadata under config.json's keys; shown: what the file calls them (gr_json_where). */
GR_NODISCARD enum gr_status gr_hf_config_of_gguf(const char *name, const json_t *root, const json_t *shown,
                                                 struct gr_hf_config *out);
/* Rotary embedding: rope_theta, rope_scaling or rope_parameters (hf_rope.c). The geometry is there. */
GR_NODISCARD enum gr_status gr_hf_parse_rope(const struct gr_json_where *w, const struct gr_family *f,
                                             struct gr_hf_config *c);
/* Which layers have a window, and which have no rotary embedding (hf_layers.c). The geometry is there. */
GR_NODISCARD enum gr_status gr_hf_parse_layers(const struct gr_json_where *w, const struct gr_family *f,
                                               struct gr_hf_config *c);

#endif
