/* The loader's half for models in a larger geometry (expand.h): their values are made, not read. For loader.c, which
 * has the other half and what callers see. */
#ifndef GR_MODEL_LOAD_LOAD_EXPANDED_H
#define GR_MODEL_LOAD_LOAD_EXPANDED_H

#include "model/load/loader.h"

#define GR_LOAD_PANEL 16        /* rows of a matrix that linear_pack() keeps together (kernels.h) */
#define GR_ROWS_ARE_STREAM true /* of an embedding: its padding is the stream's, zero */

/* l->expand is set in all of them; arguments and errors are those of loader.h. */
GR_NODISCARD enum gr_status gr_load_expanded(const struct gr_loader *l, const char *name, int n_out, int n_in,
                                             const struct gr_part *part, struct gr_weight *out);
GR_NODISCARD enum gr_status gr_load_expanded_vector(const struct gr_loader *l, const char *name, int n, float *out);
GR_NODISCARD enum gr_status gr_load_expanded_table(const struct gr_loader *l, const char *name, int n_vocab, int n,
                                                   uint16_t *out);
/* The small tensor's bf16 values, borrowed from the files; NULL: an extra layer has none. */
GR_NODISCARD enum gr_status gr_expanded_source(const struct gr_loader *l, const struct gr_expand_tensor *t,
                                               const void **from_out);

#endif
