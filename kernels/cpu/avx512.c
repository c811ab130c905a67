/* The operations in AVX-512. */
#include "kernels/cpu/lane16_avx512.h"

#define GR_CPU_NAME "avx512"
#define GR_CPU_FILL gr_kernels_fill_avx512
#include "kernels/cpu/ops.inc"
