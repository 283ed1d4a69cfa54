/* Kernels of the tests, examples and benchmarks; a module of its own, which the library itself never loads. f32, and plain rather than fast.
 *
 * The result of a row depends on that row and its sequence alone, by the same sums in the same order whatever the number of rows: a padded batch
 * gives the bits of the batch without padding. No value of a tensor leads to an access outside the tensors. */
#include "breakable_cuda_graph/kernel.h"

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

/* Columns of a row that a lane keeps in registers between passes; those of wider rows are read again. */
#define DEMO_KEPT (512 / BCG_LANES)

BCG_FUNCTION float demo_sum_at(const float *x, const float *residual, bcg_u64 at) {
    return residual ? x[at] + residual[at] : x[at];
}

/* y = (x + residual - mean) / sqrt(variance + epsilon) * gamma + beta in each row of [rows, width]. residual may be null; y is neither of them. One
 * team a row. */
BCG_KERNEL demo_layer_norm(const float *x, const float *residual, const float *gamma, const float *beta, float *y, bcg_u32 rows,
                           bcg_u32 width, float epsilon) {
    for (bcg_u64 row = bcg_team(); row < rows; row += bcg_teams()) {
        bcg_u64 from = row * width;
        float kept[DEMO_KEPT], mean = 0.0f, variance = 0.0f, scale;
        BCG_UNROLL
        for (bcg_u32 own = 0; own < DEMO_KEPT; own++) {
            bcg_u32 column = own * BCG_LANES + bcg_lane();
            kept[own] = column < width ? demo_sum_at(x, residual, from + column) : 0.0f;
        }
        BCG_UNROLL
        for (bcg_u32 own = 0; own < DEMO_KEPT; own++)
            mean += kept[own];
        for (bcg_u32 column = DEMO_KEPT * BCG_LANES + bcg_lane(); column < width; column += BCG_LANES)
            mean += demo_sum_at(x, residual, from + column);
        mean = bcg_sum(mean) / (float)width;
        BCG_UNROLL
        for (bcg_u32 own = 0; own < DEMO_KEPT; own++) {
            kept[own] -= mean;
            if (own * BCG_LANES + bcg_lane() < width)
                variance += kept[own] * kept[own];
        }
        for (bcg_u32 column = DEMO_KEPT * BCG_LANES + bcg_lane(); column < width; column += BCG_LANES) {
            float value = demo_sum_at(x, residual, from + column) - mean;
            variance += value * value;
        }
        scale = 1.0f / sqrtf(bcg_sum(variance) / (float)width + epsilon);
        BCG_UNROLL
        for (bcg_u32 own = 0; own < DEMO_KEPT; own++) {
            bcg_u32 column = own * BCG_LANES + bcg_lane();
            if (column < width)
                y[from + column] = kept[own] * scale * gamma[column] + beta[column];
        }
        for (bcg_u32 column = DEMO_KEPT * BCG_LANES + bcg_lane(); column < width; column += BCG_LANES)
            y[from + column] = (demo_sum_at(x, residual, from + column) - mean) * scale * gamma[column] + beta[column];
    }
}

/* Where a sequence begins, or the one before it ends. */
BCG_FUNCTION bcg_u32 demo_offset(const int *offsets, bcg_u32 sequence, bcg_u32 tokens) {
    int offset = offsets[sequence];
    return offset < 0 ? 0 : (bcg_u32)offset < tokens ? (bcg_u32)offset : tokens;
}

/* Columns of a head that a team computes, and how many of them a lane has. */
#define DEMO_CHUNK 128
#define DEMO_OWN (DEMO_CHUNK / BCG_LANES)

/* Attention within each of the packed sequences: tokens offsets[s] to before offsets[s + 1] are sequence s, and each attends to all of its own.
 * q, k, v and y are [tokens, heads * width] with rows their strides apart. Tokens past the last sequence are not written. One team for
 * DEMO_CHUNK columns of a token's head: each lane scores a token of its own, then all sum their columns over those tokens. */
BCG_KERNEL demo_attention(const float *q, const float *k, const float *v, float *y, const int *offsets, bcg_u32 tokens,
                          bcg_u32 sequences, bcg_u32 heads, bcg_u32 width, bcg_u64 q_stride, bcg_u64 k_stride, bcg_u64 v_stride,
                          bcg_u64 y_stride) {
    bcg_u32 chunks = (width + DEMO_CHUNK - 1) / DEMO_CHUNK, last = demo_offset(offsets, sequences, tokens);
    bcg_u64 count = (bcg_u64)tokens * heads * chunks;
    float scale = 1.0f / sqrtf((float)width);
    for (bcg_u64 at = bcg_team(); at < count; at += bcg_teams()) {
        bcg_u32 first = (bcg_u32)(at % chunks) * DEMO_CHUNK, head = (bcg_u32)(at / chunks % heads);
        bcg_u32 token = (bcg_u32)(at / chunks / heads), low = 0, high = sequences;
        bcg_u32 columns = width - first < DEMO_CHUNK ? width - first : DEMO_CHUNK, begin, end;
        const float *query = q + token * q_stride + head * width;
        float *to = y + token * y_stride + head * width + first;
        float sums[DEMO_OWN], largest = -3.0e38f, total = 0.0f;
        /* The token's sequence is the last that begins at or before it. */
        while (high - low > 1) {
            bcg_u32 middle = (low + high) / 2;
            if (demo_offset(offsets, middle, tokens) <= token)
                low = middle;
            else
                high = middle;
        }
        begin = demo_offset(offsets, low, tokens);
        if (token >= last || token < begin)
            continue;
        end = demo_offset(offsets, low + 1, tokens);
        BCG_UNROLL
        for (bcg_u32 own = 0; own < DEMO_OWN; own++)
            sums[own] = 0.0f;
        for (bcg_u32 group = begin; group < end; group += BCG_LANES) {
            bcg_u32 other = group + bcg_lane(), scored = end - group < BCG_LANES ? end - group : BCG_LANES;
            const float *key = k + other * k_stride + head * width, *value = v + group * v_stride + head * width + first;
            float score = 0.0f, most, shrink, weight;
            if (other < end)
                for (bcg_u32 d = 0; d < width; d++)
                    score += query[d] * key[d];
            score = other < end ? score * scale : largest;
            /* The sums are kept relative to the largest score so far. A score of NaN is passed over here and comes through in the weights. */
            most = bcg_largest(score);
            most = most > largest ? most : largest;
            shrink = expf(largest - most);
            weight = other < end ? expf(score - most) : 0.0f;
            largest = most;
            total = total * shrink + bcg_sum(weight);
            BCG_UNROLL
            for (bcg_u32 own = 0; own < DEMO_OWN; own++)
                sums[own] *= shrink;
            for (bcg_u32 lane = 0; lane < scored; lane++, value += v_stride) {
                float share = bcg_from(weight, lane);
                BCG_UNROLL
                for (bcg_u32 own = 0; own < DEMO_OWN; own++) {
                    bcg_u32 column = own * BCG_LANES + bcg_lane();
                    if (column < columns)
                        sums[own] += share * value[column];
                }
            }
        }
        BCG_UNROLL
        for (bcg_u32 own = 0; own < DEMO_OWN; own++) {
            bcg_u32 column = own * BCG_LANES + bcg_lane();
            if (column < columns)
                to[column] = sums[own] / total;
        }
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

/* y = x scaled to length 1 in each row of [rows, width]; a row of zeros stays one. One team a row. */
BCG_KERNEL demo_normalize(const float *x, float *y, bcg_u32 rows, bcg_u32 width) {
    for (bcg_u64 row = bcg_team(); row < rows; row += bcg_teams()) {
        const float *from = x + row * width;
        float *to = y + row * width;
        float square = 0.0f;
        for (bcg_u32 column = bcg_lane(); column < width; column += BCG_LANES)
            square += from[column] * from[column];
        square = bcg_sum(square);
        for (bcg_u32 column = bcg_lane(); column < width; column += BCG_LANES)
            to[column] = square == 0.0f ? 0.0f : from[column] / sqrtf(square);
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
