/* The library's own kernels: the padding scrub and the landing. Everything they need comes by value in one structure, so a launch uploads nothing
 * and a graph holds it all. src/kernels.rs fills these structures; the two must agree. */
#include "device.h"

#define BCG_RANK 8
#define BCG_SCRUB_TENSORS 24

/* Bytes to be zeroed, as a row-major index space of units: the bytes of one store, 1, 2, 4, 8 or 16. */
typedef struct {
    bcg_u64 address;
    bcg_u64 units;
    /* Length of each dimension in units, outermost first. The outermost is not looked at: `units` bounds it. */
    bcg_u64 lengths[BCG_RANK];
    /* Distance between neighbours in bytes. */
    bcg_u64 strides[BCG_RANK];
    bcg_u32 unit;
    bcg_u32 rank;
} bcg_scrub_tensor;

typedef struct {
    bcg_scrub_tensor tensors[BCG_SCRUB_TENSORS];
} bcg_scrub_parameters;

typedef struct {
    bcg_u64 to, from;
    /* Units below `copied` are copied, those from `zero_from` to before `zero_to` are zeroed, all others left alone. */
    bcg_u64 copied, zero_from, zero_to;
    bcg_u64 lengths[BCG_RANK];
    bcg_u64 to_strides[BCG_RANK];
    bcg_u64 from_strides[BCG_RANK];
    bcg_u32 unit;
    bcg_u32 rank;
} bcg_land_parameters;

typedef struct BCG_ALIGN(16) {
    bcg_u64 low, high;
} bcg_u128;

BCG_FUNCTION void bcg_zero(bcg_u64 address, bcg_u32 unit) {
    bcg_u128 zero = {0, 0};
    switch (unit) {
    case 16: *(bcg_u128 *)(size_t)address = zero; break;
    case 8: *(bcg_u64 *)(size_t)address = 0; break;
    case 4: *(bcg_u32 *)(size_t)address = 0; break;
    case 2: *(unsigned short *)(size_t)address = 0; break;
    default: *(unsigned char *)(size_t)address = 0; break;
    }
}

BCG_FUNCTION void bcg_copy(bcg_u64 to, bcg_u64 from, bcg_u32 unit) {
    switch (unit) {
    case 16: *(bcg_u128 *)(size_t)to = *(const bcg_u128 *)(size_t)from; break;
    case 8: *(bcg_u64 *)(size_t)to = *(const bcg_u64 *)(size_t)from; break;
    case 4: *(bcg_u32 *)(size_t)to = *(const bcg_u32 *)(size_t)from; break;
    case 2: *(unsigned short *)(size_t)to = *(const unsigned short *)(size_t)from; break;
    default: *(unsigned char *)(size_t)to = *(const unsigned char *)(size_t)from; break;
    }
}

/* blockIdx.y is the tensor. */
BCG_KERNEL bcg_scrub(BCG_CONSTANT bcg_scrub_parameters parameters) {
    const bcg_scrub_tensor *tensor = &parameters.tensors[blockIdx.y];
    for (bcg_u64 at = bcg_thread(); at < tensor->units; at += bcg_threads()) {
        bcg_u64 rest = at, offset = 0;
        for (bcg_u32 dimension = tensor->rank; dimension > 1; dimension--) {
            bcg_u64 length = tensor->lengths[dimension - 1];
            offset += rest % length * tensor->strides[dimension - 1];
            rest /= length;
        }
        bcg_zero(tensor->address + offset + rest * tensor->strides[0], tensor->unit);
    }
}

BCG_KERNEL bcg_land(BCG_CONSTANT bcg_land_parameters parameters) {
    bcg_u64 end = parameters.copied > parameters.zero_to ? parameters.copied : parameters.zero_to;
    for (bcg_u64 at = bcg_thread(); at < end; at += bcg_threads()) {
        bcg_u64 rest = at, to = parameters.to, from = parameters.from;
        if (at >= parameters.copied && (at < parameters.zero_from || at >= parameters.zero_to))
            continue;
        for (bcg_u32 dimension = parameters.rank; dimension > 1; dimension--) {
            bcg_u64 length = parameters.lengths[dimension - 1], index = rest % length;
            to += index * parameters.to_strides[dimension - 1];
            from += index * parameters.from_strides[dimension - 1];
            rest /= length;
        }
        to += rest * parameters.to_strides[0];
        from += rest * parameters.from_strides[0];
        if (at < parameters.copied)
            bcg_copy(to, from, parameters.unit);
        else
            bcg_zero(to, parameters.unit);
    }
}
