/* Does an EAGLE-3 head fit a target? Both workers ask, with the same answer: the target before it serves the head's
 * fc, the draft worker before it runs the head. Refusals are one line with both values. Also: the head's map from its
 * reduced vocabulary to the target's. Start only; one thread. Decision D-020. */
#ifndef GR_MODEL_FILES_HEAD_FIT_H
#define GR_MODEL_FILES_HEAD_FIT_H

#include "model/files/hf_config.h"
#include "model/files/safetensors.h"

/* What the two configs say: architecture, layers, vocabularies, hidden sizes. */
GR_NODISCARD enum gr_status gr_head_fit_check_config(const char *head_dir, const struct gr_hf_config *head,
                                                     const char *target_dir, const struct gr_hf_config *target);

/* head, files: of head_dir. The configs, and the map d2t (t2d where it is there). graft asks too, before it starts
 * workers that would both refuse. */
GR_NODISCARD enum gr_status gr_head_fit_check(const char *head_dir, const struct gr_hf_config *head,
                                              const struct gr_tensors *files, const char *target_dir,
                                              const struct gr_hf_config *target);

/* Shape of fc.weight against captures and hidden sizes; names both values. Marks the tensor as used. */
GR_NODISCARD enum gr_status gr_head_fit_check_fc(const char *head_dir, const struct gr_hf_config *head,
                                                 const struct gr_tensors *files, int n_capture, int target_hidden);

/* d2t holds offsets: draft id i is the target's id i + d2t[i]; the ids must rise and lie in the vocabulary. t2d
 * (bool per target id) must mark the same ids where it is there. Marks both as used.
 * to_target_out: (draft_n_vocab) or NULL to check only. *has_map_out: false without d2t, which a head of the whole
 * vocabulary may lack. */
GR_NODISCARD enum gr_status gr_draft_map_read(const char *head_dir, const struct gr_hf_config *head,
                                              const struct gr_tensors *files, int32_t *to_target_out,
                                              bool *has_map_out);

#endif
