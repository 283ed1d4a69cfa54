/* Kernels of the tests, examples and benchmarks; a module of its own, which the library itself never loads. f32, and plain rather than fast.
 *
 * The result of a row depends on that row and its sequence alone, by the same sums in the same order whatever the number of rows: a padded batch
 * gives the bits of the batch without padding. No value of a tensor leads to an access outside the tensors. */
#include "device.h"

BCG_KERNEL demo_fill(float *y, float value, bcg_u64 count) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] = value;
}

/* NaN stays NaN, so that padding which was never written can't hide behind it. */
BCG_KERNEL demo_relu(const float *x, float *y, bcg_u64 count) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] = x[at] < 0.0f ? 0.0f : x[at];
}

BCG_KERNEL demo_scale(const float *x, float *y, float factor, bcg_u64 count) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] = x[at] * factor;
}

BCG_KERNEL demo_add(const float *a, const float *b, float *y, bcg_u64 count) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] = a[at] + b[at];
}

/* y[rows, columns] += bias[columns] */
BCG_KERNEL demo_add_bias(const float *bias, float *y, bcg_u32 rows, bcg_u32 columns) {
    bcg_u64 count = (bcg_u64)rows * columns;
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] += bias[at % columns];
}

/* The exact form, with erf. */
BCG_KERNEL demo_gelu(const float *x, float *y, bcg_u64 count) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] = 0.5f * x[at] * (1.0f + erff(x[at] * 0.70710678118654752f));
}

#define DEMO_TILE 4

/* y[rows, columns] = x[rows, inner] w + bias[columns], with w[inner, columns], or w[columns, inner] when transposed. bias may be null. Rows of x
 * and y are x_stride and y_stride apart. One thread a tile of DEMO_TILE rows and columns. */
BCG_KERNEL demo_linear(const float *x, const float *w, const float *bias, float *y, bcg_u32 rows, bcg_u32 inner, bcg_u32 columns,
                       bcg_u64 x_stride, bcg_u64 y_stride, bcg_u32 transposed) {
    bcg_u32 tiles = (columns + DEMO_TILE - 1) / DEMO_TILE;
    bcg_u64 count = (bcg_u64)((rows + DEMO_TILE - 1) / DEMO_TILE) * tiles;
    bcg_u64 w_column = transposed ? inner : 1, w_step = transposed ? 1 : columns;
    for (bcg_u64 tile = bcg_thread(); tile < count; tile += bcg_threads()) {
        bcg_u32 row = (bcg_u32)(tile / tiles) * DEMO_TILE, column = (bcg_u32)(tile % tiles) * DEMO_TILE;
        const float *from[DEMO_TILE], *weight[DEMO_TILE];
        float sums[DEMO_TILE][DEMO_TILE];
        /* Past the edge the last row or column is computed again, and not stored. */
        BCG_UNROLL
        for (bcg_u32 at = 0; at < DEMO_TILE; at++) {
            from[at] = x + (row + at < rows ? row + at : rows - 1) * x_stride;
            weight[at] = w + (column + at < columns ? column + at : columns - 1) * w_column;
            BCG_UNROLL
            for (bcg_u32 other = 0; other < DEMO_TILE; other++)
                sums[at][other] = 0.0f;
        }
        for (bcg_u32 k = 0; k < inner; k++) {
            BCG_UNROLL
            for (bcg_u32 i = 0; i < DEMO_TILE; i++) {
                BCG_UNROLL
                for (bcg_u32 j = 0; j < DEMO_TILE; j++)
                    sums[i][j] += from[i][k] * weight[j][k * w_step];
            }
        }
        BCG_UNROLL
        for (bcg_u32 i = 0; i < DEMO_TILE; i++) {
            BCG_UNROLL
            for (bcg_u32 j = 0; j < DEMO_TILE; j++)
                if (row + i < rows && column + j < columns)
                    y[(row + i) * y_stride + column + j] = bias ? sums[i][j] + bias[column + j] : sums[i][j];
        }
    }
}

#define DEMO_CHUNK 16

/* y = (x + residual - mean) / sqrt(variance + epsilon) * gamma + beta in each row of [rows, width]. residual may be null; y is neither of them. One
 * thread for DEMO_CHUNK columns of a row, all of which go over the whole row: that is the price of threads that stand alone. */
BCG_KERNEL demo_layer_norm(const float *x, const float *residual, const float *gamma, const float *beta, float *y, bcg_u32 rows,
                           bcg_u32 width, float epsilon) {
    bcg_u32 chunks = (width + DEMO_CHUNK - 1) / DEMO_CHUNK;
    bcg_u64 count = (bcg_u64)rows * chunks;
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads()) {
        bcg_u64 row = at / chunks * width;
        bcg_u32 first = (bcg_u32)(at % chunks) * DEMO_CHUNK, end = width - first < DEMO_CHUNK ? width : first + DEMO_CHUNK;
        const float *from = x + row, *more = residual ? residual + row : 0;
        float mean = 0.0f, variance = 0.0f, scale;
        for (bcg_u32 column = 0; column < width; column++)
            mean += more ? from[column] + more[column] : from[column];
        mean /= (float)width;
        for (bcg_u32 column = 0; column < width; column++) {
            float value = more ? from[column] + more[column] : from[column];
            variance += (value - mean) * (value - mean);
        }
        scale = 1.0f / sqrtf(variance / (float)width + epsilon);
        for (bcg_u32 column = first; column < end; column++) {
            float value = more ? from[column] + more[column] : from[column];
            y[row + column] = (value - mean) * scale * gamma[column] + beta[column];
        }
    }
}

/* Where a sequence begins, or the one before it ends. */
BCG_FUNCTION bcg_u32 demo_offset(const int *offsets, bcg_u32 sequence, bcg_u32 tokens) {
    int offset = offsets[sequence];
    return offset < 0 ? 0 : (bcg_u32)offset < tokens ? (bcg_u32)offset : tokens;
}

/* Attention within each of the packed sequences: tokens offsets[s] to before offsets[s + 1] are sequence s, and each attends to all of its own.
 * q, k, v and y are [tokens, heads * width] with rows their strides apart. Tokens past the last sequence are not written. One thread for
 * DEMO_CHUNK columns of a token's head. */
BCG_KERNEL demo_attention(const float *q, const float *k, const float *v, float *y, const int *offsets, bcg_u32 tokens,
                          bcg_u32 sequences, bcg_u32 heads, bcg_u32 width, bcg_u64 q_stride, bcg_u64 k_stride, bcg_u64 v_stride,
                          bcg_u64 y_stride) {
    bcg_u32 chunks = (width + DEMO_CHUNK - 1) / DEMO_CHUNK, last = demo_offset(offsets, sequences, tokens);
    bcg_u64 count = (bcg_u64)tokens * heads * chunks;
    float scale = 1.0f / sqrtf((float)width);
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads()) {
        bcg_u32 first = (bcg_u32)(at % chunks) * DEMO_CHUNK, head = (bcg_u32)(at / chunks % heads);
        bcg_u32 token = (bcg_u32)(at / chunks / heads), low = 0, high = sequences;
        bcg_u32 columns = width - first < DEMO_CHUNK ? width - first : DEMO_CHUNK, end;
        const float *query = q + token * q_stride + head * width;
        float *to = y + token * y_stride + head * width + first;
        float sums[DEMO_CHUNK], largest = -3.0e38f, total = 0.0f;
        /* The token's sequence is the last that begins at or before it. */
        while (high - low > 1) {
            bcg_u32 middle = (low + high) / 2;
            if (demo_offset(offsets, middle, tokens) <= token)
                low = middle;
            else
                high = middle;
        }
        if (token >= last || token < demo_offset(offsets, low, tokens))
            continue;
        BCG_UNROLL
        for (bcg_u32 d = 0; d < DEMO_CHUNK; d++)
            sums[d] = 0.0f;
        end = demo_offset(offsets, low + 1, tokens);
        for (bcg_u32 other = demo_offset(offsets, low, tokens); other < end; other++) {
            const float *key = k + other * k_stride + head * width, *value = v + other * v_stride + head * width + first;
            float score = 0.0f, weight, shrink = 1.0f;
            for (bcg_u32 d = 0; d < width; d++)
                score += query[d] * key[d];
            score *= scale;
            /* The sums are kept relative to the largest score so far. */
            if (score > largest) {
                shrink = expf(largest - score);
                largest = score;
            }
            weight = expf(score - largest);
            total = total * shrink + weight;
            BCG_UNROLL
            for (bcg_u32 d = 0; d < DEMO_CHUNK; d++)
                if (d < columns)
                    sums[d] = sums[d] * shrink + weight * value[d];
        }
        BCG_UNROLL
        for (bcg_u32 d = 0; d < DEMO_CHUNK; d++)
            if (d < columns)
                to[d] = sums[d] / total;
    }
}

/* y[token] = words[ids[token]] + positions[places[token]] + types[0]. A token whose id or place is not in its table is padding and gives zeros. */
BCG_KERNEL demo_embed(const int *ids, const int *places, const float *words, const float *positions, const float *types, float *y,
                      bcg_u32 tokens, bcg_u32 width, bcg_u32 word_count, bcg_u32 position_count) {
    bcg_u64 count = (bcg_u64)tokens * width;
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads()) {
        bcg_u64 token = at / width, column = at % width;
        bcg_u64 id = (bcg_u32)ids[token], place = (bcg_u32)places[token];
        if (id < word_count && place < position_count)
            y[at] = words[id * width + column] + types[column] + positions[place * width + column];
        else
            y[at] = 0.0f;
    }
}

/* y[s] = the mean of the rows of sequence s; zeros where it has none. One thread a sequence and column. */
BCG_KERNEL demo_mean(const float *x, const int *offsets, float *y, bcg_u32 tokens, bcg_u32 sequences, bcg_u32 width) {
    bcg_u64 count = (bcg_u64)sequences * width;
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads()) {
        bcg_u32 sequence = (bcg_u32)(at / width), column = (bcg_u32)(at % width);
        bcg_u32 begin = demo_offset(offsets, sequence, tokens), end = demo_offset(offsets, sequence + 1, tokens);
        float sum = 0.0f;
        for (bcg_u32 row = begin; row < end; row++)
            sum += x[(bcg_u64)row * width + column];
        y[at] = end > begin ? sum / (float)(end - begin) : 0.0f;
    }
}

/* y = x scaled to length 1 in each row of [rows, width]; a row of zeros stays one. y is not x. One thread an element. */
BCG_KERNEL demo_normalize(const float *x, float *y, bcg_u32 rows, bcg_u32 width) {
    bcg_u64 count = (bcg_u64)rows * width;
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads()) {
        const float *from = x + at / width * width;
        float square = 0.0f;
        for (bcg_u32 column = 0; column < width; column++)
            square += from[column] * from[column];
        y[at] = square == 0.0f ? 0.0f : x[at] / sqrtf(square);
    }
}

/* Keeps the stream busy for this many nanoseconds (on the host, for none), and counts its runs. One thread works. */
BCG_KERNEL demo_spin(bcg_u64 nanoseconds, bcg_u32 *runs) {
    if (bcg_thread() != 0)
        return;
#ifdef __CUDACC__
    bcg_u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < nanoseconds);
#else
    (void)nanoseconds;
#endif
    *runs += 1;
}
