/* Which residual streams of the target feed an EAGLE-3 head. This is the one place that says it.
 *
 * graft counts INPUTS: capturing layer l keeps the residual stream that enters layer l of the target (0: the
 * embedding; L: what the final norm gets). A head's config lists ids (eagle_aux_hidden_state_layer_ids, at the top or
 * in eagle_config), and published heads count in two ways:
 *   outputs  TensorRT-LLM, SpecForge: id i is the output of layer i, which enters layer i + 1
 *   inputs   EAGLE, vLLM, SGLang, speculators: id i is what enters layer i
 * The lists cannot be told apart by themselves, but EAGLE's layers {2, L/2, L-3} written as outputs begin with 1. So:
 *   1. the worker's override names inputs and wins;
 *   2. aux_hidden_state_layer_ids_are = "inputs" | "outputs" beside the list says what it is;
 *   3. else a list whose first id is 1 holds outputs, any other inputs;
 *   4. no list: the inputs of {2, L/2, L-3}. Where these are not three rising layers (L <= 6) the list must be given.
 * A wrong choice is silent (the head runs and nothing is accepted), so the target logs the choice. Decision D-016. */
#ifndef GR_MODEL_FILES_CAPTURE_H
#define GR_MODEL_FILES_CAPTURE_H

#include "model/files/hf_config.h"
#define GR_CAPTURE_MAX 4 /* layers that a head takes inputs of, at most; EAGLE-3 has three */

struct gr_capture {
    int n;
    int layer[GR_CAPTURE_MAX]; /* layers whose inputs are taken; rising, at most n_layer */
    const char *why;           /* which rule chose: static text */
};

/* Rule 2 and 3. */
bool gr_capture_ids_are_outputs(enum gr_capture_ids ids_are, int first_id);

/* n_override > 0: rule 1. dir: the head's folder, for messages; n_layer: of the target. */
GR_NODISCARD enum gr_status gr_capture_choose(const char *dir, const struct gr_hf_config *head, int n_layer,
                                              int n_override, const int *override, struct gr_capture *out);
void gr_capture_log(const char *dir, const struct gr_capture *c);
/* As 2,4,7: what both workers tell each other. */
void gr_capture_text(const struct gr_capture *c, char *out, size_t cap);

/* The value of --capture-layers: 1 to GR_CAPTURE_MAX inputs of layers, rising, separated by commas. */
GR_NODISCARD enum gr_status gr_capture_parse(const char *text, int *n_out, int layer_out[GR_CAPTURE_MAX]);

#endif
