/* The operations in AVX2. */
#include "kernels/cpu/lane16_avx2.h"

#define GR_CPU_NAME "avx2"
#define GR_CPU_FILL gr_kernels_fill_avx2
#include "kernels/cpu/ops.inc"
