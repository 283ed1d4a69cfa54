/* A kernel, written once. CUDA's compiler makes kernels of a .cu file that includes this; the host's C compiler, through host.h, makes functions of
 * them that the reference driver calls, one thread after another:
 *
 *     // scale.cu, compiled to PTX
 *     #include "breakable_cuda_graph/kernel.h"
 *     BCG_KERNEL scale(const float *x, float *y, float factor, bcg_u64 count) {
 *         for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
 *             y[at] = x[at] * factor;
 *     }
 *
 *     // scale_host.c, compiled with the program
 *     #include "scale.cu"
 *     typedef const float *input;
 *     typedef float *output;
 *     BCG_HOST(scale, BCG_ARGUMENT(input, 0), BCG_ARGUMENT(output, 1), BCG_ARGUMENT(float, 2), BCG_ARGUMENT(bcg_u64, 3))
 *
 * The second defines `host_scale`, which in Rust is `unsafe extern "C" { fn host_scale(geometry: *const LaunchConfig, arguments: *const *mut c_void); }`
 * and goes to `reference::Options::kernel("scale", host_scale)`. The folder of this header is the build metadata `kernel_include` of the crate.
 *
 * A kernel is written in the language that both compilers have: no templates, no references, no shared memory and no barriers; threads stand alone or
 * work in teams, see below. Compile for the host without contraction to fused operations (-ffp-contract=off) to have a device's bits. */
#ifndef BCG_KERNEL_H
#define BCG_KERNEL_H

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
#define BCG_UNROLL_TWICE _Pragma("unroll 2")
#define BCG_LANES 32
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

/* A team works on one row together: a warp on a device, and on the host one thread, so that a loop over columns in steps of BCG_LANES from
 * bcg_lane() is right on both. All of a team's threads take the same way through a kernel. Blocks are of whole teams, in x alone. */
BCG_FUNCTION bcg_u32 bcg_lane(void) {
    return threadIdx.x % BCG_LANES;
}

BCG_FUNCTION bcg_u64 bcg_team(void) {
    return bcg_thread() / BCG_LANES;
}

BCG_FUNCTION bcg_u64 bcg_teams(void) {
    return bcg_threads() / BCG_LANES;
}

/* The value of one of the team's lanes. */
BCG_FUNCTION float bcg_from(float value, bcg_u32 lane) {
#ifdef __CUDACC__
    return __shfl_sync(0xffffffffu, value, (int)lane);
#else
    (void)lane;
    return value;
#endif
}

/* The sum over the team, the same bits in each lane, by the same order always. */
BCG_FUNCTION float bcg_sum(float value) {
#ifdef __CUDACC__
    BCG_UNROLL
    for (int apart = BCG_LANES / 2; apart > 0; apart /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, apart);
#endif
    return value;
}

/* The largest over the team. */
BCG_FUNCTION float bcg_largest(float value) {
#ifdef __CUDACC__
    BCG_UNROLL
    for (int apart = BCG_LANES / 2; apart > 0; apart /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, apart));
#endif
    return value;
}

#endif
