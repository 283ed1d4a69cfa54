/* One source for two compilers: CUDA's, and the host's C compiler for the reference driver.
 *
 * Kernels are written so that each thread stands alone: no shared memory, no barriers. On the host a kernel is a plain function that is called
 * once for each thread of the grid, with threadIdx and the others as variables of the calling thread. */
#ifndef BCG_DEVICE_H
#define BCG_DEVICE_H

typedef unsigned int bcg_u32;
typedef unsigned long long bcg_u64;

#ifdef __CUDACC__

#define BCG_KERNEL extern "C" __global__ void
#define BCG_FUNCTION static __device__ __forceinline__
#define BCG_ALIGN(bytes) __align__(bytes)
/* A parameter that is read in place, wherever its address is taken. */
#define BCG_CONSTANT const __grid_constant__

#else

#include <math.h>
#include <stddef.h>

#if defined(_MSC_VER)
#define BCG_THREAD_LOCAL __declspec(thread)
#define BCG_ALIGN(bytes) __declspec(align(bytes))
#else
#define BCG_THREAD_LOCAL _Thread_local
#define BCG_ALIGN(bytes) __attribute__((aligned(bytes)))
#endif
#define BCG_KERNEL static void
#define BCG_CONSTANT const
#define BCG_FUNCTION static

typedef struct {
    bcg_u32 x, y, z;
} bcg_dim3;

static BCG_THREAD_LOCAL bcg_dim3 threadIdx, blockIdx, blockDim, gridDim;

/* The geometry of a launch, as the reference driver passes it on. */
typedef struct {
    bcg_u32 grid[3], block[3], shared_bytes;
} bcg_geometry;

/* Defines the host entry of a kernel: calls it for every thread of the grid, with arguments taken from the array of pointers to them. */
#define BCG_HOST(kernel, ...)                                                                      \
    void bcg_host_##kernel(const bcg_geometry *geometry, void *const *arguments) {                 \
        gridDim.x = geometry->grid[0], gridDim.y = geometry->grid[1], gridDim.z = geometry->grid[2];     \
        blockDim.x = geometry->block[0], blockDim.y = geometry->block[1], blockDim.z = geometry->block[2]; \
        for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)                                 \
            for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)                             \
                for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)                         \
                    for (threadIdx.z = 0; threadIdx.z < blockDim.z; threadIdx.z++)                 \
                        for (threadIdx.y = 0; threadIdx.y < blockDim.y; threadIdx.y++)             \
                            for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)         \
                                kernel(__VA_ARGS__);                                               \
    }
#define BCG_ARG(type, index) (*(type const *)arguments[index])

#endif

/* This thread's number among those in x, and how many there are. */
BCG_FUNCTION bcg_u64 bcg_thread(void) {
    return (bcg_u64)blockIdx.x * blockDim.x + threadIdx.x;
}

BCG_FUNCTION bcg_u64 bcg_threads(void) {
    return (bcg_u64)gridDim.x * blockDim.x;
}

#endif
