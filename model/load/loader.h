/* Weights from a model folder's files into memory, as the kernels want them; with `expand`, in a larger geometry.
 * Start only; one thread calls (expanding uses the team). */
#ifndef GR_MODEL_LOAD_LOADER_H
#define GR_MODEL_LOAD_LOADER_H

#include "kernels/kernels.h"
#include "model/load/expand.h"
#include "common/base/memory.h"
#include "model/files/safetensors.h"

/* Where weights come from and go to. All borrowed. */
struct gr_loader {
    const struct gr_kernels *kernels;
    struct gr_memory *memory;
    const struct gr_safetensors *files;
    const struct gr_expand *expand; /* NULL: as in the files. Names and sizes below are then those of the large model */
    struct gr_team *team;           /* expands, and reads piece by piece; NULL: one thread */
};

/* bf16 (n_out, n_in), packed for the kernels; must be there with that shape. */
GR_NODISCARD enum gr_status gr_load_matrix(const struct gr_loader *l, const char *name, int n_out, int n_in,
                                           struct gr_weight *out);
/* bf16 (n) to f32: norms and biases. */
GR_NODISCARD enum gr_status gr_load_vector(const struct gr_loader *l, const char *name, int n, float **out);
/* bf16 (n_vocab, n): rows are looked up. Borrowed from the files where they have it in this form. Expanded it has rows
 * for the ids that occur only: a pass reads no other. */
GR_NODISCARD enum gr_status gr_load_embedding(const struct gr_loader *l, const char *name, int n_vocab, int n,
                                              const uint16_t **out);

/* A matrix's rows, piece by piece, for those who keep weights elsewhere than in l->memory. */
struct gr_matrix_source {
    const struct gr_loader *l;
    const void *from;          /* bf16, of the files; NULL: there is none (expanded) */
    struct gr_expand_tensor t; /* with l->expand: its rows are made from `from` by t.rule */
    int n_out, n_in;
};
GR_NODISCARD enum gr_status gr_matrix_open(const struct gr_loader *l, const char *name, int n_out, int n_in,
                                           struct gr_matrix_source *out);
/* A table whose rows are looked up, as gr_load_embedding: expanded, their padding is zero. */
GR_NODISCARD enum gr_status gr_table_open(const struct gr_loader *l, const char *name, int n_row, int n,
                                          struct gr_matrix_source *out);
/* Rows [row0, row0 + n_row) as they are in the files (no expand): out bf16 (n_row, n_in). By all threads of l->team. */
void gr_matrix_read(const struct gr_matrix_source *m, int row0, int n_row, uint16_t *out);
void gr_matrix_close(struct gr_matrix_source *m);

#endif
