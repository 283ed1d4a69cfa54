/* What a kernel needs to be a plain function of the host. It is called once for each thread of the grid, one after another, with threadIdx and
 * its kin as variables of the calling thread. */
#ifndef BCG_HOST_H
#define BCG_HOST_H

#include "symbol.h"

#include <math.h>
#include <stddef.h>

#if defined(_WIN32)
#define BCG_EXPORT __declspec(dllexport)
#else
#define BCG_EXPORT
#endif
#if defined(_MSC_VER)
#define BCG_THREAD_LOCAL __declspec(thread)
#define BCG_ALIGN(bytes) __declspec(align(bytes))
#define BCG_FUNCTION static __forceinline
#else
#define BCG_THREAD_LOCAL _Thread_local
#define BCG_ALIGN(bytes) __attribute__((aligned(bytes)))
#define BCG_FUNCTION static inline __attribute__((always_inline))
#endif
#define BCG_KERNEL static void
/* A structure passed by value to a kernel is not copied again for every thread. */
#define BCG_PARAMETERS(type) const type *
#define BCG_ADDRESS(parameters) (parameters)
#define BCG_UNROLL
#define BCG_ROLLED
#define BCG_UNROLL_TWICE
#define BCG_LANES 1

typedef struct {
    bcg_u32 x, y, z;
} bcg_dim3;

static BCG_THREAD_LOCAL bcg_dim3 threadIdx, blockIdx, blockDim, gridDim;

/* The geometry of a launch: breakable_cuda_graph::driver::LaunchConfig. */
struct bcg_geometry {
    bcg_u32 grid[3], block[3], shared_bytes;
};

/* Defines the host function of a kernel, whose arguments follow as BCG_ARGUMENT or BCG_STRUCTURE (type, index). Its name is the kernel's after the
 * prefix of symbol.h, and its type breakable_cuda_graph::reference::HostKernel. */
#define BCG_HOST(kernel, ...)                                                                           \
    BCG_EXPORT void BCG_SYMBOL(kernel)(const struct bcg_geometry *geometry, void *const *arguments);    \
    void BCG_SYMBOL(kernel)(const struct bcg_geometry *geometry, void *const *arguments) {              \
        bcg_dim3 grid = {geometry->grid[0], geometry->grid[1], geometry->grid[2]};                      \
        bcg_dim3 block = {geometry->block[0], geometry->block[1], geometry->block[2]};                  \
        gridDim = grid;                                                                                 \
        blockDim = block;                                                                               \
        for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)                                         \
            for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)                                     \
                for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++)                                 \
                    for (threadIdx.z = 0; threadIdx.z < block.z; threadIdx.z++)                         \
                        for (threadIdx.y = 0; threadIdx.y < block.y; threadIdx.y++)                     \
                            for (threadIdx.x = 0; threadIdx.x < block.x; threadIdx.x++)                 \
                                kernel(__VA_ARGS__);                                                    \
    }
#define BCG_ARGUMENT(type, index) (*(type const *)arguments[index])
#define BCG_STRUCTURE(type, index) ((const type *)arguments[index])

#endif
