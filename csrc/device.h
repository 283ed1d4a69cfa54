/* One source for two compilers. CUDA's compiler makes kernels of the .cu files; the host's C compiler, through host.h, makes functions of them
 * that the reference driver calls. So a kernel is written in the language that both have: no templates, no references, no shared memory and no
 * barriers; each thread stands alone. Expressions are not contracted to fused operations on either side. */
#ifndef BCG_DEVICE_H
#define BCG_DEVICE_H

typedef unsigned int bcg_u32;
typedef unsigned long long bcg_u64;

#ifdef __CUDACC__
#define BCG_KERNEL extern "C" __global__ void
#define BCG_FUNCTION static __device__ __forceinline__
#define BCG_ALIGN(bytes) __align__(bytes)
/* A structure passed by value, and its address: it is read where it lies in the parameter space, never copied. */
#define BCG_PARAMETERS(type) const __grid_constant__ type
#define BCG_ADDRESS(parameters) (&(parameters))
#define BCG_UNROLL _Pragma("unroll")
#define BCG_ROLLED _Pragma("unroll 1")
#else
#include "host.h"
#endif

/* This thread's number among those in x. */
BCG_FUNCTION bcg_u64 bcg_thread(void) {
    return (bcg_u64)blockIdx.x * blockDim.x + threadIdx.x;
}

/* How many threads there are in x. A kernel loops in steps of this, so that any geometry covers all its work. */
BCG_FUNCTION bcg_u64 bcg_threads(void) {
    return (bcg_u64)gridDim.x * blockDim.x;
}

#endif
