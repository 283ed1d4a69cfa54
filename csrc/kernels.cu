/* The library's own kernels: the padding scrub, the landing and the comparison. All that they need comes by value in one structure, so a launch allocates and
 * uploads nothing, and a graph holds it all. src/kernels fills these structures; the two must agree. */
#include "breakable_cuda_graph/kernel.h"

#define BCG_RANK 8
#define BCG_SCRUB_TENSORS 16

/* How many leading rows are valid: `count`, or what the 32-bit integer at device address `at` holds when the kernel runs, if that is not 0. */
typedef struct {
    bcg_u64 count;
    bcg_u64 at;
} bcg_valid_rows;

/* The index space of a tensor or of two of one shape: unit after unit of a row, row after row. A unit is what one thread moves at once. */
typedef struct {
    bcg_u64 rows;
    /* Units of one row. */
    bcg_u64 row_units;
    /* Length in units of each of the `inner` dimensions, the innermost last. What is left of the index goes to one more dimension outside
     * them, which may be the rows alone or rows that were merged with dimensions of theirs. */
    bcg_u64 lengths[BCG_RANK - 1];
    bcg_u32 inner;
    /* 1, 2, 4, 8 or 16 bytes. */
    bcg_u32 unit_bytes;
} bcg_space;

/* A tensor in an index space. */
typedef struct {
    bcg_u64 address;
    /* Distance between neighbours in bytes: of the outermost dimension, then of the inner ones. */
    bcg_u64 strides[BCG_RANK];
} bcg_place;

typedef struct {
    bcg_space space;
    bcg_place place;
} bcg_scrub_tensor;

typedef struct {
    bcg_valid_rows valid;
    bcg_scrub_tensor tensors[BCG_SCRUB_TENSORS];
} bcg_scrub_parameters;

typedef struct {
    bcg_valid_rows valid;
    /* Of the handoff. */
    bcg_space space;
    bcg_place to, from;
    /* Rows that `from` has: no more than the space. */
    bcg_u64 from_rows;
} bcg_land_parameters;

typedef struct {
    /* Of a 32-bit integer that becomes 1 where a unit differs, and is left alone otherwise. */
    bcg_u64 flag;
    bcg_space space;
    bcg_place left, right;
} bcg_compare_parameters;

typedef struct BCG_ALIGN(16) {
    bcg_u64 low, high;
} bcg_u128;

BCG_FUNCTION bcg_u64 bcg_count_valid(const bcg_valid_rows *valid, bcg_u64 rows) {
    bcg_u64 count = valid->count;
    if (valid->at) {
        int live = *(const int *)(size_t)valid->at;
        count = live < 0 ? 0 : (bcg_u64)live;
    }
    return count < rows ? count : rows;
}

BCG_FUNCTION void bcg_zero(bcg_u64 address, bcg_u32 bytes) {
    bcg_u128 zero = {0, 0};
    switch (bytes) {
    case 16: *(bcg_u128 *)(size_t)address = zero; break;
    case 8: *(bcg_u64 *)(size_t)address = 0; break;
    case 4: *(bcg_u32 *)(size_t)address = 0; break;
    case 2: *(unsigned short *)(size_t)address = 0; break;
    default: *(unsigned char *)(size_t)address = 0; break;
    }
}

BCG_FUNCTION void bcg_copy(bcg_u64 to, bcg_u64 from, bcg_u32 bytes) {
    switch (bytes) {
    case 16: *(bcg_u128 *)(size_t)to = *(const bcg_u128 *)(size_t)from; break;
    case 8: *(bcg_u64 *)(size_t)to = *(const bcg_u64 *)(size_t)from; break;
    case 4: *(bcg_u32 *)(size_t)to = *(const bcg_u32 *)(size_t)from; break;
    case 2: *(unsigned short *)(size_t)to = *(const unsigned short *)(size_t)from; break;
    default: *(unsigned char *)(size_t)to = *(const unsigned char *)(size_t)from; break;
    }
}

BCG_FUNCTION int bcg_differ(bcg_u64 left, bcg_u64 right, bcg_u32 bytes) {
    switch (bytes) {
    case 16: {
        bcg_u128 a = *(const bcg_u128 *)(size_t)left, b = *(const bcg_u128 *)(size_t)right;
        return a.low != b.low || a.high != b.high;
    }
    case 8: return *(const bcg_u64 *)(size_t)left != *(const bcg_u64 *)(size_t)right;
    case 4: return *(const bcg_u32 *)(size_t)left != *(const bcg_u32 *)(size_t)right;
    case 2: return *(const unsigned short *)(size_t)left != *(const unsigned short *)(size_t)right;
    default: return *(const unsigned char *)(size_t)left != *(const unsigned char *)(size_t)right;
    }
}

/* Zeroes the rows from the valid ones on, of every tensor. blockIdx.y is the tensor. */
BCG_KERNEL bcg_scrub(BCG_PARAMETERS(bcg_scrub_parameters) by_value) {
    const bcg_scrub_parameters *parameters = BCG_ADDRESS(by_value);
    const bcg_space *space = &parameters->tensors[blockIdx.y].space;
    const bcg_place *place = &parameters->tensors[blockIdx.y].place;
    bcg_u64 begin = bcg_count_valid(&parameters->valid, space->rows) * space->row_units;
    bcg_u64 end = space->rows * space->row_units;
    for (bcg_u64 index = begin + bcg_thread(); index < end; index += bcg_threads()) {
        bcg_u64 rest = index, address = place->address;
        BCG_ROLLED
        for (bcg_u32 at = space->inner; at > 0; at--) {
            bcg_u64 length = space->lengths[at - 1];
            address += rest % length * place->strides[at];
            rest /= length;
        }
        bcg_zero(address + rest * place->strides[0], space->unit_bytes);
    }
}

/* Copies the valid rows that `from` has, and zeroes the rows from the valid ones on. Valid rows that `from` does not have stay as they are. */
BCG_KERNEL bcg_land(BCG_PARAMETERS(bcg_land_parameters) by_value) {
    const bcg_land_parameters *parameters = BCG_ADDRESS(by_value);
    const bcg_space *space = &parameters->space;
    bcg_u64 valid = bcg_count_valid(&parameters->valid, space->rows);
    bcg_u64 copied = (valid < parameters->from_rows ? valid : parameters->from_rows) * space->row_units;
    bcg_u64 skipped = valid * space->row_units - copied;
    bcg_u64 end = space->rows * space->row_units - skipped;
    for (bcg_u64 thread = bcg_thread(); thread < end; thread += bcg_threads()) {
        bcg_u64 rest = thread < copied ? thread : thread + skipped;
        bcg_u64 to = parameters->to.address, from = parameters->from.address;
        BCG_ROLLED
        for (bcg_u32 at = space->inner; at > 0; at--) {
            bcg_u64 length = space->lengths[at - 1], index = rest % length;
            to += index * parameters->to.strides[at];
            from += index * parameters->from.strides[at];
            rest /= length;
        }
        to += rest * parameters->to.strides[0];
        from += rest * parameters->from.strides[0];
        if (thread < copied)
            bcg_copy(to, from, space->unit_bytes);
        else
            bcg_zero(to, space->unit_bytes);
    }
}

/* Tells whether two tensors differ in any bit. All threads that write the flag write the same. */
BCG_KERNEL bcg_compare(BCG_PARAMETERS(bcg_compare_parameters) by_value) {
    const bcg_compare_parameters *parameters = BCG_ADDRESS(by_value);
    const bcg_space *space = &parameters->space;
    bcg_u64 end = space->rows * space->row_units;
    for (bcg_u64 thread = bcg_thread(); thread < end; thread += bcg_threads()) {
        bcg_u64 rest = thread, left = parameters->left.address, right = parameters->right.address;
        BCG_ROLLED
        for (bcg_u32 at = space->inner; at > 0; at--) {
            bcg_u64 length = space->lengths[at - 1], index = rest % length;
            left += index * parameters->left.strides[at];
            right += index * parameters->right.strides[at];
            rest /= length;
        }
        left += rest * parameters->left.strides[0];
        right += rest * parameters->right.strides[0];
        if (bcg_differ(left, right, space->unit_bytes))
            *(bcg_u32 *)(size_t)parameters->flag = 1;
    }
}
