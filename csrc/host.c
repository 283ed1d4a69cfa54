/* The kernels compiled for the host: the entries that the reference driver calls, and the sizes on which src/kernels must agree. */
#include "kernels.cu"

BCG_HOST(bcg_scrub, BCG_STRUCTURE(bcg_scrub_parameters, 0))
BCG_HOST(bcg_land, BCG_STRUCTURE(bcg_land_parameters, 0))
BCG_HOST(bcg_compare, BCG_STRUCTURE(bcg_compare_parameters, 0))

extern const size_t BCG_SYMBOL(scrub_parameters_size), BCG_SYMBOL(land_parameters_size), BCG_SYMBOL(compare_parameters_size);
const size_t BCG_SYMBOL(scrub_parameters_size) = sizeof(bcg_scrub_parameters);
const size_t BCG_SYMBOL(land_parameters_size) = sizeof(bcg_land_parameters);
const size_t BCG_SYMBOL(compare_parameters_size) = sizeof(bcg_compare_parameters);
