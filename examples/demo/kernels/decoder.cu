/* Kernels of a decoder's layers in bfloat16, for tests and benchmarks; a module of its own, which the library itself never loads. Arithmetic is f32.
 *
 * The result of a row depends on that row and its sequence alone, by the same sums in the same order whatever the number of rows and however the
 * tensors are aligned. No value of a tensor leads to an access outside the tensors. */
#include "breakable_cuda_graph/kernel.h"

typedef unsigned short decoder_bf16;

/* Elements that are read or written together, 16 bytes. */
#define DECODER_CHUNK 8

typedef struct BCG_ALIGN(16) {
    bcg_u32 pairs[DECODER_CHUNK / 2];
} decoder_chunk;

typedef struct BCG_ALIGN(8) {
    bcg_u32 pairs[2];
} decoder_half;

BCG_FUNCTION bcg_u32 decoder_bits(float value) {
#ifdef __CUDACC__
    return __float_as_uint(value);
#else
    union {
        float value;
        bcg_u32 bits;
    } both;
    both.value = value;
    return both.bits;
#endif
}

BCG_FUNCTION float decoder_of_bits(bcg_u32 bits) {
#ifdef __CUDACC__
    return __uint_as_float(bits);
#else
    union {
        float value;
        bcg_u32 bits;
    } both;
    both.bits = bits;
    return both.value;
#endif
}

BCG_FUNCTION float decoder_f32(decoder_bf16 value) {
    return decoder_of_bits((bcg_u32)value << 16);
}

/* The lower and the upper of two that lie side by side. */
BCG_FUNCTION float decoder_lower(bcg_u32 pair) {
    return decoder_of_bits(pair << 16);
}

BCG_FUNCTION float decoder_upper(bcg_u32 pair) {
    return decoder_of_bits(pair & 0xffff0000u);
}

/* Rounded to the nearest, ties to even. NaN stays NaN. */
BCG_FUNCTION decoder_bf16 decoder_round(float value) {
    bcg_u32 bits = decoder_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (decoder_bf16)(bits >> 16 | 0x40u);
    return (decoder_bf16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

BCG_FUNCTION bcg_u32 decoder_round_pair(float lower, float upper) {
    return (bcg_u32)decoder_round(lower) | (bcg_u32)decoder_round(upper) << 16;
}

/* a * b + c. On a device in one instruction that rounds once; a host may have to call a function for that, so it rounds twice. */
BCG_FUNCTION float decoder_add_product(float a, float b, float c) {
#ifdef __CUDACC__
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* Whether rows of this many elements, from this address on and this many elements apart, can be read by whole chunks. The kernels have a way through
 * for tensors of which all can, and one for others; they differ in how they read and write alone. */
BCG_FUNCTION int decoder_whole(const decoder_bf16 *from, bcg_u64 width, bcg_u64 stride) {
    return (size_t)from % sizeof(decoder_chunk) == 0 && width % DECODER_CHUNK == 0 && stride % DECODER_CHUNK == 0;
}

/* Four elements at `column` of a row that begins at `from`, the first of them lowest; past the row's width they are zeros. */
BCG_FUNCTION bcg_u64 decoder_gather(const decoder_bf16 *from, bcg_u32 column, bcg_u32 width) {
    bcg_u64 gathered = 0;
    BCG_ROLLED
    for (bcg_u32 at = 4; at > 0; at--)
        gathered = gathered << 16 | (column + at - 1 < width ? from[column + at - 1] : 0);
    return gathered;
}

BCG_FUNCTION void decoder_scatter(decoder_bf16 *to, bcg_u32 column, bcg_u32 width, bcg_u64 elements) {
    BCG_ROLLED
    for (bcg_u32 at = 0; at < 4; at++, elements >>= 16)
        if (column + at < width)
            to[column + at] = (decoder_bf16)elements;
}

/* Half a chunk at `column` of a row that begins at `from`; past the row's width it is zeros. By whole chunks the row's first is read in its place, so
 * that reads need no branch and several are on the way together. */
BCG_FUNCTION decoder_half decoder_read_half(const decoder_bf16 *from, bcg_u32 column, bcg_u32 width, int whole) {
    decoder_half half = {{0, 0}};
    if (whole) {
        half = *(const decoder_half *)(from + (column < width ? column : 0));
        BCG_UNROLL
        for (bcg_u32 pair = 0; pair < 2; pair++)
            half.pairs[pair] = column < width ? half.pairs[pair] : 0;
    } else {
        bcg_u64 elements = decoder_gather(from, column, width);
        half.pairs[0] = (bcg_u32)elements;
        half.pairs[1] = (bcg_u32)(elements >> 32);
    }
    return half;
}

BCG_FUNCTION void decoder_write_half(decoder_bf16 *to, bcg_u32 column, bcg_u32 width, int whole, decoder_half half) {
    if (whole && column < width)
        *(decoder_half *)(to + column) = half;
    if (!whole)
        decoder_scatter(to, column, width, half.pairs[0] | (bcg_u64)half.pairs[1] << 32);
}

/* A whole one. */
BCG_FUNCTION decoder_chunk decoder_read(const decoder_bf16 *from, bcg_u32 column, bcg_u32 width, int whole) {
    decoder_chunk chunk = {{0, 0, 0, 0}};
    if (whole) {
        chunk = *(const decoder_chunk *)(from + (column < width ? column : 0));
        BCG_UNROLL
        for (bcg_u32 pair = 0; pair < DECODER_CHUNK / 2; pair++)
            chunk.pairs[pair] = column < width ? chunk.pairs[pair] : 0;
    } else {
        bcg_u64 low = decoder_gather(from, column, width), high = decoder_gather(from, column + 4, width);
        chunk.pairs[0] = (bcg_u32)low;
        chunk.pairs[1] = (bcg_u32)(low >> 32);
        chunk.pairs[2] = (bcg_u32)high;
        chunk.pairs[3] = (bcg_u32)(high >> 32);
    }
    return chunk;
}

BCG_FUNCTION void decoder_write(decoder_bf16 *to, bcg_u32 column, bcg_u32 width, int whole, decoder_chunk chunk) {
    if (whole && column < width)
        *(decoder_chunk *)(to + column) = chunk;
    if (!whole) {
        decoder_scatter(to, column, width, chunk.pairs[0] | (bcg_u64)chunk.pairs[1] << 32);
        decoder_scatter(to, column + 4, width, chunk.pairs[2] | (bcg_u64)chunk.pairs[3] << 32);
    }
}

/* Values in middle ± scale that depend on seed and place alone, the same on every device and on the host. */
BCG_KERNEL decoder_random(decoder_bf16 *y, bcg_u64 count, bcg_u64 seed, float middle, float scale) {
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads()) {
        /* The mixing function of splitmix64. */
        bcg_u64 mixed = (seed + 1) * 0x9e3779b97f4a7c15ull + at * 0xd1342543de82ef95ull;
        mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
        mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
        mixed ^= mixed >> 31;
        y[at] = decoder_round(middle + ((float)(mixed >> 40) / 8388608.0f - 1.0f) * scale);
    }
}

/* Chunks that a lane has on the way at a time. */
#define DECODER_AHEAD 8

BCG_FUNCTION void decoder_normalize(const decoder_bf16 *x, const decoder_bf16 *gamma, decoder_bf16 *y, bcg_u32 rows, bcg_u32 width,
                                    float epsilon, int whole) {
    const bcg_u32 step = BCG_LANES * DECODER_CHUNK, own = bcg_lane() * DECODER_CHUNK, many = whole ? DECODER_AHEAD : 1;
    for (bcg_u64 row = bcg_team(); row < rows; row += bcg_teams()) {
        const decoder_bf16 *from = x + row * width;
        decoder_bf16 *to = y + row * width;
        float square = 0.0f, scale;
        for (bcg_u32 first = 0; first < width; first += step * many) {
            decoder_chunk chunks[DECODER_AHEAD];
            BCG_UNROLL
            for (bcg_u32 ahead = 0; ahead < many; ahead++)
                chunks[ahead] = decoder_read(from, first + ahead * step + own, width, whole);
            BCG_UNROLL
            for (bcg_u32 ahead = 0; ahead < many; ahead++) {
                BCG_UNROLL
                for (bcg_u32 pair = 0; pair < DECODER_CHUNK / 2; pair++) {
                    float lower = decoder_lower(chunks[ahead].pairs[pair]), upper = decoder_upper(chunks[ahead].pairs[pair]);
                    square = decoder_add_product(lower, lower, square);
                    square = decoder_add_product(upper, upper, square);
                }
            }
        }
        scale = 1.0f / sqrtf(bcg_sum(square) / (float)width + epsilon);
        for (bcg_u32 first = 0; first < width; first += step * many) {
            decoder_chunk chunks[DECODER_AHEAD], factors[DECODER_AHEAD];
            BCG_UNROLL
            for (bcg_u32 ahead = 0; ahead < many; ahead++) {
                chunks[ahead] = decoder_read(from, first + ahead * step + own, width, whole);
                factors[ahead] = decoder_read(gamma, first + ahead * step + own, width, whole);
            }
            BCG_UNROLL
            for (bcg_u32 ahead = 0; ahead < many; ahead++) {
                BCG_UNROLL
                for (bcg_u32 pair = 0; pair < DECODER_CHUNK / 2; pair++) {
                    bcg_u32 value = chunks[ahead].pairs[pair], factor = factors[ahead].pairs[pair];
                    chunks[ahead].pairs[pair] = decoder_round_pair(decoder_lower(value) * scale * decoder_lower(factor),
                                                                   decoder_upper(value) * scale * decoder_upper(factor));
                }
                decoder_write(to, first + ahead * step + own, width, whole, chunks[ahead]);
            }
        }
    }
}

/* y = x / sqrt(mean of x² + epsilon) * gamma in each row of [rows, width]. One team a row. */
BCG_KERNEL decoder_rms_norm(const decoder_bf16 *x, const decoder_bf16 *gamma, decoder_bf16 *y, bcg_u32 rows, bcg_u32 width,
                            float epsilon) {
    if (decoder_whole(x, width, width) && decoder_whole(gamma, width, width) && decoder_whole(y, width, width))
        decoder_normalize(x, gamma, y, rows, width, epsilon, 1);
    else
        decoder_normalize(x, gamma, y, rows, width, epsilon, 0);
}

/* gate / (1 + exp(-gate)) * up. */
BCG_FUNCTION float decoder_gated(float gate, float up) {
    return gate / (1.0f + expf(-gate)) * up;
}

/* y[rows, inner] = silu(gate) * up, with gate and up side by side in gate_up[rows, 2 * inner]. One thread a chunk. */
BCG_KERNEL decoder_silu_mul(const decoder_bf16 *gate_up, decoder_bf16 *y, bcg_u32 rows, bcg_u32 inner) {
    int whole = decoder_whole(gate_up, inner, inner) && decoder_whole(y, inner, inner);
    bcg_u32 chunks = (inner + DECODER_CHUNK - 1) / DECODER_CHUNK;
    bcg_u64 count = (bcg_u64)rows * chunks;
    for (bcg_u64 at = bcg_thread(); at < count; at += bcg_threads()) {
        bcg_u64 row = at / chunks;
        bcg_u32 column = (bcg_u32)(at % chunks) * DECODER_CHUNK;
        decoder_chunk gate = decoder_read(gate_up + row * 2 * inner, column, inner, whole);
        decoder_chunk up = decoder_read(gate_up + row * 2 * inner + inner, column, inner, whole);
        BCG_UNROLL
        for (bcg_u32 pair = 0; pair < DECODER_CHUNK / 2; pair++)
            gate.pairs[pair] = decoder_round_pair(decoder_gated(decoder_lower(gate.pairs[pair]), decoder_lower(up.pairs[pair])),
                                                  decoder_gated(decoder_upper(gate.pairs[pair]), decoder_upper(up.pairs[pair])));
        decoder_write(y + row * inner, column, inner, whole, gate);
    }
}

/* Where a sequence begins, or the one before it ends. */
BCG_FUNCTION bcg_u32 decoder_offset(const int *offsets, bcg_u32 sequence, bcg_u32 tokens) {
    int offset = offsets[sequence];
    return offset < 0 ? 0 : (bcg_u32)offset < tokens ? (bcg_u32)offset : tokens;
}

/* Where the token's sequence begins: the last that begins at or before it. Past the last sequence, and where there is none, it is the number of
 * tokens. */
BCG_FUNCTION bcg_u32 decoder_begin(const int *offsets, bcg_u32 sequences, bcg_u32 tokens, bcg_u32 token) {
    bcg_u32 low = 0, high = sequences, begin;
    if (token >= decoder_offset(offsets, sequences, tokens))
        return tokens;
    while (high - low > 1) {
        bcg_u32 middle = (low + high) / 2;
        if (decoder_offset(offsets, middle, tokens) <= token)
            low = middle;
        else
            high = middle;
    }
    begin = decoder_offset(offsets, low, tokens);
    return begin <= token ? begin : tokens;
}

/* Heads that a team rotates, with the same sines and cosines. */
#define DECODER_ROTATED 4

/* Rotary embedding of the query and key heads that lie side by side in qkv, whose rows are stride apart: columns d and d + width / 2 of a head are
 * turned by place * 2^(d * step), where place is the token's place in its sequence. BatchOutputs go to q[tokens, heads * width] and
 * k[tokens, kv_heads * width]. Tokens past the last sequence are not written. width is even. One team for DECODER_ROTATED heads of a token. */
BCG_KERNEL decoder_rotate(const decoder_bf16 *qkv, const int *offsets, decoder_bf16 *q, decoder_bf16 *k, bcg_u32 tokens,
                          bcg_u32 sequences, bcg_u32 heads, bcg_u32 kv_heads, bcg_u32 width, bcg_u64 stride, float step) {
    bcg_u32 all = heads + kv_heads, groups = (all + DECODER_ROTATED - 1) / DECODER_ROTATED, half = width / 2;
    bcg_u64 count = (bcg_u64)tokens * groups;
    for (bcg_u64 at = bcg_team(); at < count; at += bcg_teams()) {
        bcg_u32 token = (bcg_u32)(at / groups), first = (bcg_u32)(at % groups) * DECODER_ROTATED;
        bcg_u32 begin = decoder_begin(offsets, sequences, tokens, token);
        const decoder_bf16 *from = qkv + token * stride;
        if (begin > token)
            continue;
        for (bcg_u32 d = bcg_lane(); d < half; d += BCG_LANES) {
            float angle = (float)(token - begin) * exp2f((float)d * step);
            float cosine = cosf(angle), sine = sinf(angle);
            BCG_UNROLL
            for (bcg_u32 own = 0; own < DECODER_ROTATED; own++) {
                bcg_u32 head = first + own;
                if (head < all) {
                    decoder_bf16 *to = head < heads ? q + ((bcg_u64)token * heads + head) * width
                                                    : k + ((bcg_u64)token * kv_heads + (head - heads)) * width;
                    float a = decoder_f32(from[(bcg_u64)head * width + d]), b = decoder_f32(from[(bcg_u64)head * width + half + d]);
                    to[d] = decoder_round(a * cosine - b * sine);
                    to[half + d] = decoder_round(b * cosine + a * sine);
                }
            }
        }
    }
}

/* Query heads with the same keys that a team has, columns of a head that it sums, and how many of them are a lane's, side by side. */
#define DECODER_SHARED 4
#define DECODER_COLUMNS 128
#define DECODER_OWN (DECODER_COLUMNS / BCG_LANES)

BCG_FUNCTION void decoder_attend(const decoder_bf16 *q, const decoder_bf16 *k, const decoder_bf16 *v, decoder_bf16 *y, const int *offsets,
                                 bcg_u32 tokens, bcg_u32 sequences, bcg_u32 heads, bcg_u32 kv_heads, bcg_u32 width,
                                 bcg_u64 q_stride, bcg_u64 k_stride, bcg_u64 v_stride, bcg_u64 y_stride, int whole) {
    bcg_u32 shared = heads / kv_heads, parts = (shared + DECODER_SHARED - 1) / DECODER_SHARED;
    bcg_u32 passes = (width + DECODER_COLUMNS - 1) / DECODER_COLUMNS;
    bcg_u64 count = (bcg_u64)tokens * kv_heads * parts * passes;
    float scale = 1.0f / sqrtf((float)width);
    for (bcg_u64 at = bcg_team(); at < count; at += bcg_teams()) {
        bcg_u32 first = (bcg_u32)(at % passes) * DECODER_COLUMNS + bcg_lane() * DECODER_OWN;
        bcg_u32 part = (bcg_u32)(at / passes % parts) * DECODER_SHARED, kv_head = (bcg_u32)(at / passes / parts % kv_heads);
        bcg_u32 token = (bcg_u32)(at / passes / parts / kv_heads), begin = decoder_begin(offsets, sequences, tokens, token);
        const decoder_bf16 *keys = k + (bcg_u64)kv_head * width, *values = v + (bcg_u64)kv_head * width;
        const decoder_bf16 *queries[DECODER_SHARED];
        float sums[DECODER_SHARED][DECODER_OWN], largest[DECODER_SHARED], total[DECODER_SHARED];
        if (begin > token)
            continue;
        BCG_UNROLL
        for (bcg_u32 own = 0; own < DECODER_SHARED; own++) {
            /* Past the edge the last head is computed again, and not stored. */
            bcg_u32 head = kv_head * shared + (part + own < shared ? part + own : shared - 1);
            queries[own] = q + token * q_stride + (bcg_u64)head * width;
            largest[own] = -3.0e38f;
            total[own] = 0.0f;
            BCG_UNROLL
            for (bcg_u32 column = 0; column < DECODER_OWN; column++)
                sums[own][column] = 0.0f;
        }
        for (bcg_u32 group = begin; group <= token; group += BCG_LANES) {
            bcg_u32 other = group + bcg_lane(), scored = token - group < BCG_LANES ? token - group + 1 : BCG_LANES;
            const decoder_bf16 *key = keys + other * k_stride, *value = values + group * v_stride;
            float scores[DECODER_SHARED], weights[DECODER_SHARED];
            BCG_UNROLL
            for (bcg_u32 own = 0; own < DECODER_SHARED; own++)
                scores[own] = 0.0f;
            if (other <= token) {
                BCG_UNROLL_TWICE
                for (bcg_u32 d = 0; d < width; d += DECODER_CHUNK) {
                    decoder_chunk theirs = decoder_read(key, d, width, whole);
                    BCG_UNROLL
                    for (bcg_u32 own = 0; own < DECODER_SHARED; own++) {
                        decoder_chunk ours = decoder_read(queries[own], d, width, whole);
                        BCG_UNROLL
                        for (bcg_u32 pair = 0; pair < DECODER_CHUNK / 2; pair++) {
                            scores[own] =
                                decoder_add_product(decoder_lower(ours.pairs[pair]), decoder_lower(theirs.pairs[pair]), scores[own]);
                            scores[own] =
                                decoder_add_product(decoder_upper(ours.pairs[pair]), decoder_upper(theirs.pairs[pair]), scores[own]);
                        }
                    }
                }
            }
            BCG_UNROLL
            for (bcg_u32 own = 0; own < DECODER_SHARED; own++) {
                float score = other <= token ? scores[own] * scale : largest[own], most = bcg_largest(score), shrink;
                /* The sums are kept relative to the largest score so far. A score of NaN is passed over here and comes through in the weights. */
                most = most > largest[own] ? most : largest[own];
                shrink = expf(largest[own] - most);
                weights[own] = other <= token ? expf(score - most) : 0.0f;
                largest[own] = most;
                total[own] = total[own] * shrink + bcg_sum(weights[own]);
                BCG_UNROLL
                for (bcg_u32 column = 0; column < DECODER_OWN; column++)
                    sums[own][column] *= shrink;
            }
            for (bcg_u32 lane = 0; lane < scored; lane++, value += v_stride) {
                float theirs[DECODER_OWN];
                BCG_UNROLL
                for (bcg_u32 column = 0; column < DECODER_OWN; column += 4) {
                    decoder_half half = decoder_read_half(value, first + column, width, whole);
                    theirs[column] = decoder_lower(half.pairs[0]);
                    theirs[column + 1] = decoder_upper(half.pairs[0]);
                    theirs[column + 2] = decoder_lower(half.pairs[1]);
                    theirs[column + 3] = decoder_upper(half.pairs[1]);
                }
                BCG_UNROLL
                for (bcg_u32 own = 0; own < DECODER_SHARED; own++) {
                    float share = bcg_from(weights[own], lane);
                    BCG_UNROLL
                    for (bcg_u32 column = 0; column < DECODER_OWN; column++)
                        sums[own][column] = decoder_add_product(share, theirs[column], sums[own][column]);
                }
            }
        }
        BCG_UNROLL
        for (bcg_u32 own = 0; own < DECODER_SHARED; own++) {
            decoder_bf16 *to = y + token * y_stride + (bcg_u64)(kv_head * shared + part + own) * width;
            if (part + own < shared) {
                BCG_UNROLL
                for (bcg_u32 column = 0; column < DECODER_OWN; column += 4) {
                    const float *sum = &sums[own][column];
                    decoder_half half;
                    half.pairs[0] = decoder_round_pair(sum[0] / total[own], sum[1] / total[own]);
                    half.pairs[1] = decoder_round_pair(sum[2] / total[own], sum[3] / total[own]);
                    decoder_write_half(to, first + column, width, whole, half);
                }
            }
        }
    }
}

/* Causal attention within each of the packed sequences: tokens offsets[s] to before offsets[s + 1] are sequence s, and each attends to those of its
 * own up to itself. q and y are [tokens, heads * width], k and v are [tokens, kv_heads * width], with rows their strides apart; kv_heads divides
 * heads. Tokens past the last sequence are not written. One team for DECODER_COLUMNS columns of DECODER_SHARED heads of a token: each lane scores a
 * token of its own, then all sum their columns over those tokens. */
BCG_KERNEL decoder_attention(const decoder_bf16 *q, const decoder_bf16 *k, const decoder_bf16 *v, decoder_bf16 *y, const int *offsets,
                             bcg_u32 tokens, bcg_u32 sequences, bcg_u32 heads, bcg_u32 kv_heads, bcg_u32 width, bcg_u64 q_stride,
                             bcg_u64 k_stride, bcg_u64 v_stride, bcg_u64 y_stride) {
    if (decoder_whole(q, width, q_stride) && decoder_whole(k, width, k_stride) && decoder_whole(v, width, v_stride) &&
        decoder_whole(y, width, y_stride))
        decoder_attend(q, k, v, y, offsets, tokens, sequences, heads, kv_heads, width, q_stride, k_stride, v_stride, y_stride, 1);
    else
        decoder_attend(q, k, v, y, offsets, tokens, sequences, heads, kv_heads, width, q_stride, k_stride, v_stride, y_stride, 0);
}

#define DECODER_TILE 4

BCG_FUNCTION void decoder_multiply(const decoder_bf16 *x, const decoder_bf16 *w, decoder_bf16 *y, bcg_u32 rows, bcg_u32 inner,
                                   bcg_u32 columns, bcg_u32 accumulate, int whole) {
    bcg_u32 tiles = (columns + DECODER_TILE - 1) / DECODER_TILE;
    bcg_u64 count = (bcg_u64)((rows + DECODER_TILE - 1) / DECODER_TILE) * tiles;
    for (bcg_u64 tile = bcg_thread(); tile < count; tile += bcg_threads()) {
        bcg_u32 row = (bcg_u32)(tile / tiles) * DECODER_TILE, column = (bcg_u32)(tile % tiles) * DECODER_TILE;
        const decoder_bf16 *from[DECODER_TILE], *weight[DECODER_TILE];
        float sums[DECODER_TILE][DECODER_TILE];
        /* Past the edge the last row or column is computed again, and not stored. */
        BCG_UNROLL
        for (bcg_u32 at = 0; at < DECODER_TILE; at++) {
            from[at] = x + (bcg_u64)(row + at < rows ? row + at : rows - 1) * inner;
            weight[at] = w + (bcg_u64)(column + at < columns ? column + at : columns - 1) * inner;
            BCG_UNROLL
            for (bcg_u32 other = 0; other < DECODER_TILE; other++)
                sums[at][other] = 0.0f;
        }
        for (bcg_u32 k = 0; k < inner; k += DECODER_CHUNK) {
            decoder_chunk ours[DECODER_TILE], theirs[DECODER_TILE];
            BCG_UNROLL
            for (bcg_u32 at = 0; at < DECODER_TILE; at++) {
                ours[at] = decoder_read(from[at], k, inner, whole);
                theirs[at] = decoder_read(weight[at], k, inner, whole);
            }
            BCG_UNROLL
            for (bcg_u32 pair = 0; pair < DECODER_CHUNK / 2; pair++) {
                BCG_UNROLL
                for (bcg_u32 i = 0; i < DECODER_TILE; i++) {
                    BCG_UNROLL
                    for (bcg_u32 j = 0; j < DECODER_TILE; j++) {
                        bcg_u32 a = ours[i].pairs[pair], b = theirs[j].pairs[pair];
                        sums[i][j] = decoder_add_product(decoder_lower(a), decoder_lower(b), sums[i][j]);
                        sums[i][j] = decoder_add_product(decoder_upper(a), decoder_upper(b), sums[i][j]);
                    }
                }
            }
        }
        BCG_UNROLL
        for (bcg_u32 i = 0; i < DECODER_TILE; i++) {
            BCG_UNROLL
            for (bcg_u32 j = 0; j < DECODER_TILE; j++)
                if (row + i < rows && column + j < columns) {
                    decoder_bf16 *to = y + (bcg_u64)(row + i) * columns + column + j;
                    *to = decoder_round(accumulate ? sums[i][j] + decoder_f32(*to) : sums[i][j]);
                }
        }
    }
}

/* y[rows, columns] = x[rows, inner] wᵀ with w[columns, inner], added to what y holds if `accumulate`. One thread a tile of DECODER_TILE rows and
 * columns. */
BCG_KERNEL decoder_linear(const decoder_bf16 *x, const decoder_bf16 *w, decoder_bf16 *y, bcg_u32 rows, bcg_u32 inner, bcg_u32 columns,
                          bcg_u32 accumulate) {
    if (decoder_whole(x, inner, inner) && decoder_whole(w, inner, inner))
        decoder_multiply(x, w, y, rows, inner, columns, accumulate, 1);
    else
        decoder_multiply(x, w, y, rows, inner, columns, accumulate, 0);
}
