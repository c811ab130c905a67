/* What the files of check_cuda share. */
#ifndef GR_TESTS_KERNELS_CHECK_CUDA_H
#define GR_TESTS_KERNELS_CHECK_CUDA_H

#include <stdbool.h>

/* --quick: fewer shapes, all of them small, but every kernel, every form of it and every kind of case: what a GPU in
 * software gets through in two minutes. */
extern bool quick;

/* One line of the program's output; detail: figures. */
void report(const char *name, bool ok, const char *detail);

void check_linear_layers(void);
void check_linear_segments(void); /* sums that a group of ranks can share out */
void check_linear_outputs(void);  /* norms after, heads */
void check_ranks(void);           /* sums that several GPUs join */
void check_joins(void);           /* the same for many numbers of rows */
void time_ranks(void);            /* what a join takes */
void check_layers_after(void);    /* layers one after another, in one kernel */
void check_rows(void);
void check_heads(void); /* of families with norms or biases */
void check_begin(void);
void check_noise(void); /* all words: bounds of the noise */
void check_picks(void);
void check_adjusts(void); /* lists of bans, biases, penalties */
void check_specpv(void);
void check_expand(void);
void check_large_picks(void); /* vocabularies of models, many calls */

#endif
