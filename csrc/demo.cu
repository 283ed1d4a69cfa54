/* Kernels of the examples, tests and benchmarks: not part of the library's own module. f32; plain rather than fast. */
#include "device.h"

BCG_KERNEL demo_fill(float *y, float value, bcg_u64 count) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] = value;
}

BCG_KERNEL demo_relu(const float *x, float *y, bcg_u64 count) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] = x[at] > 0.0f ? x[at] : 0.0f;
}

BCG_KERNEL demo_scale(const float *x, float *y, float factor, bcg_u64 count) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] = x[at] * factor;
}

BCG_KERNEL demo_add(const float *a, const float *b, float *y, bcg_u64 count) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] = a[at] + b[at];
}

/* The exact form, with erf. */
BCG_KERNEL demo_gelu(const float *x, float *y, bcg_u64 count) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] = 0.5f * x[at] * (1.0f + erff(x[at] * 0.70710678118654752f));
}

/* y[rows, columns] += bias[columns]. */
BCG_KERNEL demo_add_bias(const float *bias, float *y, bcg_u32 rows, bcg_u32 columns) {
    bcg_u64 count = (bcg_u64)rows * columns;
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads())
        y[at] += bias[at % columns];
}

/* y[rows, columns] = x[rows, inner] w (+ bias), with w[inner, columns], or w[columns, inner] when transposed. bias may be null. Rows of x are
 * x_stride apart. */
BCG_KERNEL demo_linear(const float *x, const float *w, const float *bias, float *y, bcg_u32 rows, bcg_u32 inner,
                       bcg_u32 columns, bcg_u32 x_stride, bcg_u32 transposed) {
    bcg_u64 count = (bcg_u64)rows * columns;
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads()) {
        bcg_u64 row = at / columns, column = at % columns;
        const float *from = x + row * x_stride;
        float sum = 0.0f;
        if (transposed) {
            const float *weights = w + column * inner;
            for (bcg_u32 k = 0; k < inner; k++)
                sum += from[k] * weights[k];
        } else {
            for (bcg_u32 k = 0; k < inner; k++)
                sum += from[k] * w[(bcg_u64)k * columns + column];
        }
        y[at] = bias ? sum + bias[column] : sum;
    }
}

/* y = (x + residual - mean) / sqrt(variance + epsilon) * gamma + beta in each row. residual may be null. One thread a row. */
BCG_KERNEL demo_layer_norm(const float *x, const float *residual, const float *gamma, const float *beta, float *y,
                           bcg_u32 rows, bcg_u32 width, float epsilon) {
    for (bcg_u64 row = bcg_thread(); row < rows; row += bcg_threads()) {
        const float *from = x + row * width, *more = residual ? residual + row * width : 0;
        float *to = y + row * width, mean = 0.0f, variance = 0.0f, scale;
        for (bcg_u32 at = 0; at < width; at++) {
            float value = more ? from[at] + more[at] : from[at];
            to[at] = value;
            mean += value;
        }
        mean /= (float)width;
        for (bcg_u32 at = 0; at < width; at++)
            variance += (to[at] - mean) * (to[at] - mean);
        scale = 1.0f / sqrtf(variance / (float)width + epsilon);
        for (bcg_u32 at = 0; at < width; at++)
            to[at] = (to[at] - mean) * scale * gamma[at] + beta[at];
    }
}

#define DEMO_HEAD 64

/* Attention within each of the packed sequences: tokens offsets[s] to before offsets[s + 1] are sequence s, and each attends to all of its own.
 * q, k, v and y are [tokens, heads * width], width at most DEMO_HEAD. Tokens past the last sequence are not written. One thread a token and head. */
BCG_KERNEL demo_attention(const float *q, const float *k, const float *v, float *y, const int *offsets,
                          bcg_u32 sequences, bcg_u32 heads, bcg_u32 width) {
    bcg_u64 stride = (bcg_u64)heads * width, count = (bcg_u64)offsets[sequences] * heads;
    float scale = 1.0f / sqrtf((float)width);
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads()) {
        bcg_u64 token = at / heads, head = at % heads, low = 0, high = sequences;
        const float *query = q + token * stride + head * width;
        float sums[DEMO_HEAD], largest = -3.0e38f, total = 0.0f;
        /* The sequence of the token: the last that begins at or before it. */
        while (high - low > 1) {
            bcg_u64 middle = (low + high) / 2;
            if ((bcg_u64)offsets[middle] <= token)
                low = middle;
            else
                high = middle;
        }
        for (bcg_u32 d = 0; d < width; d++)
            sums[d] = 0.0f;
        for (int other = offsets[low]; other < offsets[low + 1]; other++) {
            const float *key = k + other * stride + head * width, *value = v + other * stride + head * width;
            float score = 0.0f, weight, shrink;
            for (bcg_u32 d = 0; d < width; d++)
                score += query[d] * key[d];
            score *= scale;
            /* The sums so far are kept relative to the largest score. */
            shrink = 1.0f;
            if (score > largest) {
                shrink = expf(largest - score);
                largest = score;
            }
            weight = expf(score - largest);
            total = total * shrink + weight;
            for (bcg_u32 d = 0; d < width; d++)
                sums[d] = sums[d] * shrink + weight * value[d];
        }
        for (bcg_u32 d = 0; d < width; d++)
            y[token * stride + head * width + d] = sums[d] / total;
    }
}

/* y[token] = words[ids[token]] + positions[places[token]] + types[0]. Tokens with an id below zero are padding and become zero. */
BCG_KERNEL demo_embed(const int *ids, const int *places, const float *words, const float *positions, const float *types,
                      float *y, bcg_u32 tokens, bcg_u32 width) {
    bcg_u64 count = (bcg_u64)tokens * width;
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads()) {
        bcg_u64 token = at / width, column = at % width;
        if (ids[token] < 0)
            y[at] = 0.0f;
        else
            y[at] = words[(bcg_u64)ids[token] * width + column] + types[column] +
                    positions[(bcg_u64)places[token] * width + column];
    }
}

/* y[s] = the mean of the sequence's rows, scaled to length 1. One thread a sequence. */
BCG_KERNEL demo_mean_pool(const float *x, const int *offsets, float *y, bcg_u32 sequences, bcg_u32 width) {
    for (bcg_u64 at = bcg_thread(); at < sequences; at += bcg_threads()) {
        float square = 0.0f, count = (float)(offsets[at + 1] - offsets[at]);
        for (bcg_u32 column = 0; column < width; column++) {
            float sum = 0.0f;
            for (int row = offsets[at]; row < offsets[at + 1]; row++)
                sum += x[(bcg_u64)row * width + column];
            sum /= count;
            y[at * width + column] = sum;
            square += sum * sum;
        }
        for (bcg_u32 column = 0; column < width; column++)
            y[at * width + column] /= sqrtf(square);
    }
}

/* Keeps one thread busy for this many nanoseconds; on the host, for none. Counts itself. */
BCG_KERNEL demo_spin(bcg_u64 nanoseconds, bcg_u32 *runs) {
    if (bcg_thread() != 0)
        return;
#ifdef __CUDACC__
    bcg_u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
#else
    (void)nanoseconds;
#endif
    *runs += 1;
}
