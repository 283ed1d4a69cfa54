/* The kernels as functions of the host, for the reference driver: host_own_embed and so on. */
#include "kernels.cu"

typedef const float *input;
typedef const int *integers;
typedef float *output;

BCG_HOST(own_embed, BCG_ARGUMENT(integers, 0), BCG_ARGUMENT(input, 1), BCG_ARGUMENT(output, 2), BCG_ARGUMENT(bcg_u32, 3), BCG_ARGUMENT(bcg_u32, 4))
BCG_HOST(own_mix, BCG_ARGUMENT(input, 0), BCG_ARGUMENT(integers, 1), BCG_ARGUMENT(output, 2), BCG_ARGUMENT(bcg_u32, 3), BCG_ARGUMENT(bcg_u32, 4))
BCG_HOST(own_squash, BCG_ARGUMENT(input, 0), BCG_ARGUMENT(output, 1), BCG_ARGUMENT(bcg_u64, 2))
