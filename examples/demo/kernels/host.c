/* The kernels compiled for the host: the functions that the reference driver calls. */
#include "decoder.cu"
#include "demo.cu"

typedef const float *demo_input;
typedef const int *demo_integers;
typedef float *demo_output;
typedef bcg_u32 *demo_counter;
typedef const decoder_bf16 *decoder_input;
typedef decoder_bf16 *decoder_output;

#define INPUT(index) BCG_ARGUMENT(demo_input, index)
#define INTEGERS(index) BCG_ARGUMENT(demo_integers, index)
#define OUTPUT(index) BCG_ARGUMENT(demo_output, index)
#define HALVES(index) BCG_ARGUMENT(decoder_input, index)
#define HALVES_OUT(index) BCG_ARGUMENT(decoder_output, index)
#define U32(index) BCG_ARGUMENT(bcg_u32, index)
#define U64(index) BCG_ARGUMENT(bcg_u64, index)
#define F32(index) BCG_ARGUMENT(float, index)

BCG_HOST(demo_fill, OUTPUT(0), F32(1), U64(2))
BCG_HOST(demo_relu, INPUT(0), OUTPUT(1), U64(2))
BCG_HOST(demo_scale, INPUT(0), OUTPUT(1), F32(2), U64(3))
BCG_HOST(demo_add, INPUT(0), INPUT(1), OUTPUT(2), U64(3))
BCG_HOST(demo_add_bias, INPUT(0), OUTPUT(1), U32(2), U32(3))
BCG_HOST(demo_gelu, INPUT(0), OUTPUT(1), U64(2))
BCG_HOST(demo_linear, INPUT(0), INPUT(1), INPUT(2), OUTPUT(3), U32(4), U32(5), U32(6), U64(7), U64(8), U32(9))
BCG_HOST(demo_layer_norm, INPUT(0), INPUT(1), INPUT(2), INPUT(3), OUTPUT(4), U32(5), U32(6), F32(7))
BCG_HOST(demo_attention, INPUT(0), INPUT(1), INPUT(2), OUTPUT(3), INTEGERS(4), U32(5), U32(6), U32(7), U32(8), U64(9), U64(10), U64(11),
         U64(12))
BCG_HOST(demo_embed, INTEGERS(0), INTEGERS(1), INPUT(2), INPUT(3), INPUT(4), OUTPUT(5), U32(6), U32(7), U32(8), U32(9))
BCG_HOST(demo_mean, INPUT(0), INTEGERS(1), OUTPUT(2), U32(3), U32(4), U32(5))
BCG_HOST(demo_normalize, INPUT(0), OUTPUT(1), U32(2), U32(3))
BCG_HOST(demo_spin, U64(0), BCG_ARGUMENT(demo_counter, 1))

BCG_HOST(decoder_random, HALVES_OUT(0), U64(1), U64(2), F32(3), F32(4))
BCG_HOST(decoder_rms_norm, HALVES(0), HALVES(1), HALVES_OUT(2), U32(3), U32(4), F32(5))
BCG_HOST(decoder_silu_mul, HALVES(0), HALVES_OUT(1), U32(2), U32(3))
BCG_HOST(decoder_rotate, HALVES(0), INTEGERS(1), HALVES_OUT(2), HALVES_OUT(3), U32(4), U32(5), U32(6), U32(7), U32(8), U64(9), F32(10))
BCG_HOST(decoder_attention, HALVES(0), HALVES(1), HALVES(2), HALVES_OUT(3), INTEGERS(4), U32(5), U32(6), U32(7), U32(8), U32(9), U64(10),
         U64(11), U64(12), U64(13))
BCG_HOST(decoder_linear, HALVES(0), HALVES(1), HALVES_OUT(2), U32(3), U32(4), U32(5), U32(6))
