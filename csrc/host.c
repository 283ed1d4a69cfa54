/* The kernels compiled for the host, for the reference driver: one entry for each, and the sizes that src/kernels.rs must agree with. */
#include "kernels.cu"

#include "demo.cu"

BCG_HOST(bcg_scrub, BCG_ARG(bcg_scrub_parameters, 0))
BCG_HOST(bcg_land, BCG_ARG(bcg_land_parameters, 0))

typedef const float *bcg_input;
typedef const int *bcg_integers;
typedef float *bcg_output;
typedef bcg_u32 *bcg_counter;

BCG_HOST(demo_fill, BCG_ARG(bcg_output, 0), BCG_ARG(float, 1), BCG_ARG(bcg_u64, 2))
BCG_HOST(demo_relu, BCG_ARG(bcg_input, 0), BCG_ARG(bcg_output, 1), BCG_ARG(bcg_u64, 2))
BCG_HOST(demo_scale, BCG_ARG(bcg_input, 0), BCG_ARG(bcg_output, 1), BCG_ARG(float, 2), BCG_ARG(bcg_u64, 3))
BCG_HOST(demo_add, BCG_ARG(bcg_input, 0), BCG_ARG(bcg_input, 1), BCG_ARG(bcg_output, 2), BCG_ARG(bcg_u64, 3))
BCG_HOST(demo_gelu, BCG_ARG(bcg_input, 0), BCG_ARG(bcg_output, 1), BCG_ARG(bcg_u64, 2))
BCG_HOST(demo_add_bias, BCG_ARG(bcg_input, 0), BCG_ARG(bcg_output, 1), BCG_ARG(bcg_u32, 2), BCG_ARG(bcg_u32, 3))
BCG_HOST(demo_linear, BCG_ARG(bcg_input, 0), BCG_ARG(bcg_input, 1), BCG_ARG(bcg_input, 2), BCG_ARG(bcg_output, 3),
         BCG_ARG(bcg_u32, 4), BCG_ARG(bcg_u32, 5), BCG_ARG(bcg_u32, 6), BCG_ARG(bcg_u32, 7), BCG_ARG(bcg_u32, 8))
BCG_HOST(demo_layer_norm, BCG_ARG(bcg_input, 0), BCG_ARG(bcg_input, 1), BCG_ARG(bcg_input, 2), BCG_ARG(bcg_input, 3),
         BCG_ARG(bcg_output, 4), BCG_ARG(bcg_u32, 5), BCG_ARG(bcg_u32, 6), BCG_ARG(float, 7))
BCG_HOST(demo_attention, BCG_ARG(bcg_input, 0), BCG_ARG(bcg_input, 1), BCG_ARG(bcg_input, 2), BCG_ARG(bcg_output, 3),
         BCG_ARG(bcg_integers, 4), BCG_ARG(bcg_u32, 5), BCG_ARG(bcg_u32, 6), BCG_ARG(bcg_u32, 7))
BCG_HOST(demo_embed, BCG_ARG(bcg_integers, 0), BCG_ARG(bcg_integers, 1), BCG_ARG(bcg_input, 2), BCG_ARG(bcg_input, 3),
         BCG_ARG(bcg_input, 4), BCG_ARG(bcg_output, 5), BCG_ARG(bcg_u32, 6), BCG_ARG(bcg_u32, 7))
BCG_HOST(demo_mean_pool, BCG_ARG(bcg_input, 0), BCG_ARG(bcg_integers, 1), BCG_ARG(bcg_output, 2), BCG_ARG(bcg_u32, 3),
         BCG_ARG(bcg_u32, 4))
BCG_HOST(demo_spin, BCG_ARG(bcg_u64, 0), BCG_ARG(bcg_counter, 1))

const size_t bcg_host_scrub_parameters_size = sizeof(bcg_scrub_parameters);
const size_t bcg_host_land_parameters_size = sizeof(bcg_land_parameters);
