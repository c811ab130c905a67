/* A library of objects that nvcc made wants one source of its own. */
extern int gr_kernels_cuda_built;
int gr_kernels_cuda_built = 1;
