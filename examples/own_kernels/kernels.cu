/* The kernels of the example: written once, compiled to PTX by scripts/ptx.py and for the host through host.c. */
#include "breakable_cuda_graph/kernel.h"

/* Each row of y is the row of the table that its id names. */
BCG_KERNEL own_embed(const int *ids, const float *table, float *y, bcg_u32 rows, bcg_u32 width) {
    for (bcg_u64 at = bcg_thread(); at < (bcg_u64)rows * width; at += bcg_threads())
        y[at] = table[(bcg_u64)ids[at / width] * width + at % width];
}

/* Each row of y is the mean of its sequence's rows of x up to itself. Sequence i has the rows from starts[i] to starts[i + 1]. */
BCG_KERNEL own_mix(const float *x, const int *starts, float *y, bcg_u32 sequences, bcg_u32 width) {
    for (bcg_u64 at = bcg_thread(); at < (bcg_u64)sequences * width; at += bcg_threads()) {
        const int *range = starts + at / width;
        float sum = 0.0f;
        for (int row = range[0]; row < range[1]; row++) {
            sum += x[(bcg_u64)row * width + at % width];
            y[(bcg_u64)row * width + at % width] = sum / (float)(row - range[0] + 1);
        }
    }
}

/* y = x / (1 + |x|), element by element. */
BCG_KERNEL own_squash(const float *x, float *y, bcg_u64 count) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] = x[at] / (1.0f + (x[at] < 0.0f ? -x[at] : x[at]));
}
