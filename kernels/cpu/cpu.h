/* Inside kernels/cpu only: one function per compiled instruction set that puts its versions of the operations
 * into the table. The sources are the same (ops_*.inc); lane16_<isa>.h makes the difference. */
#ifndef GR_KERNELS_CPU_CPU_H
#define GR_KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

void gr_kernels_fill_c(struct gr_kernels *k);
#ifdef GR_CPU_X86
void gr_kernels_fill_avx2(struct gr_kernels *k);
void gr_kernels_fill_avx512(struct gr_kernels *k);
#endif

#endif
