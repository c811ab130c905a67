/* The operations in plain C. */
#include "kernels/cpu/lane16_c.h"

#define GR_CPU_NAME "c"
#define GR_CPU_FILL gr_kernels_fill_c
#include "kernels/cpu/ops.inc"
