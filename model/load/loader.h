/* Weights from a model folder's files into memory, as the kernels want them; with `expand`, in a larger geometry.
 * Start only; one thread calls (expanding uses the team). */
#ifndef GR_MODEL_LOAD_LOADER_H
#define GR_MODEL_LOAD_LOADER_H

#include "kernels/kernels.h"
#include "model/load/expand.h"
#include "common/base/memory.h"
#include "model/load/needs.h"
#include "model/load/progress.h"
#include "model/files/tensors.h"

/* Which numbers weights are held as. Norms and biases, which are few, are always f32 in memory. */
enum gr_weights_as {
    GR_WEIGHTS_AUTO, /* F32, F16 and BF16 tensors as bf16 if that changes no value, else as f32; quantised ones as bf16
                      */
    GR_WEIGHTS_BF16, /* rounded to the nearest */
    GR_WEIGHTS_F32,
};

/* What was loaded, for the log. */
struct gr_load_sum {
    int n_bf16, n_f32, n_rounded; /* matrices and tables; of those of bf16, the ones whose values may have changed */
    uint64_t bf16_bytes, f32_bytes;
};
/* One line at info level: what was done, and what it costs. */
void gr_load_sum_log(const struct gr_load_sum *s, const char *path);

/* Where weights come from and go to. All borrowed. */
struct gr_loader {
    const struct gr_kernels *kernels;
    struct gr_memory *memory;
    const struct gr_tensors *files;
    const struct gr_expand *expand; /* NULL: as in the files. Names and sizes below are then those of the large model */
    struct gr_team *team;           /* expands, and converts piece by piece; NULL: one thread */
    enum gr_weights_as as;
    struct gr_load_sum *sum;           /* NULL: nobody asks */
    struct gr_load_progress *progress; /* NULL: nobody waits */
    /* Not NULL: tensors are looked up and checked, and what they would take is added here. Nothing is read or taken,
     * and what is given out is empty. */
    struct gr_needs *needs;
};

/* (n_out, n_in), packed for the kernels; must be there with that shape. */
GR_NODISCARD enum gr_status gr_load_matrix(const struct gr_loader *l, const char *name, int n_out, int n_in,
                                           struct gr_weight *out);
/* A part of a matrix: what a rank of a tensor-parallel group has of it. Of the file nothing else is read, but whole
 * blocks of quantised formats. */
struct gr_part {
    int row, n_row, col, n_col;
};
/* That part of the matrix (n_out, n_in): a matrix (n_row, n_col). */
GR_NODISCARD enum gr_status gr_load_part(const struct gr_loader *l, const char *name, int n_out, int n_in,
                                         const struct gr_part *part, struct gr_weight *out);
/* (n) as f32: norms and biases. */
GR_NODISCARD enum gr_status gr_load_vector(const struct gr_loader *l, const char *name, int n, float **out);

/* Rows that are looked up: one of the two. */
struct gr_row_table {
    const uint16_t *bf16;
    const float *f32;
};
/* (n_vocab, n). Borrowed from the files where they have it as bf16. Expanded it has rows for the ids that occur only: a
 * pass reads no other. */
GR_NODISCARD enum gr_status gr_load_table(const struct gr_loader *l, const char *name, int n_vocab, int n,
                                          struct gr_row_table *out);

/* A matrix's rows as bf16, piece by piece, for those who keep weights elsewhere than in l->memory (a GPU: it takes
 * nothing but bf16, and what would have to be rounded is refused unless that was asked for). */
struct gr_matrix_source {
    const struct gr_loader *l;
    const struct gr_tensor *tensor; /* NULL: there is none (expanded) */
    const void *from;               /* with l->expand: its bf16 */
    struct gr_expand_tensor t;      /* with l->expand: its rows are made from `from` by t.rule */
    int n_out, n_in;
};
GR_NODISCARD enum gr_status gr_matrix_open(const struct gr_loader *l, const char *name, int n_out, int n_in,
                                           struct gr_matrix_source *out);
/* A table whose rows are looked up, as gr_load_table: expanded, their padding is zero. */
GR_NODISCARD enum gr_status gr_table_open(const struct gr_loader *l, const char *name, int n_row, int n,
                                          struct gr_matrix_source *out);
/* Rows [row0, row0 + n_row) as they are in the files (no expand): out bf16 (n_row, n_in). By all threads of l->team. */
void gr_matrix_read(const struct gr_matrix_source *m, int row0, int n_row, uint16_t *out);
/* The same of a part, whose columns are read alone but for whole blocks of quantised formats: out bf16 (part->n_row,
 * part->n_col). */
void gr_matrix_read_part(const struct gr_matrix_source *m, const struct gr_part *part, uint16_t *out);
void gr_matrix_close(struct gr_matrix_source *m);

#endif
