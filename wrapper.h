// What bindgen reads. The macro makes cuda.h declare every exported entry point under its real name and with its own ABI, instead of
// renaming the plain names to their newest version: a header of CUDA 13 then still declares what a driver of CUDA 12 exports.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
