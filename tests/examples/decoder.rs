//! The decoder's kernels against plain Rust, and its layers captured: the same bits as eager for every batch.

use crate::support::demo::{DecoderBatch, DecoderOps, DecoderSizes, DecoderSizesError, Layers};
use crate::support::{Rig, random_values};
use breakable_cuda_graph::{
    BreakKind, BreakableCapture, DType, Error, Misuse, ReplayOptions, Result, Tensor, TensorError, active_forward,
    eager,
};
use half::bf16;

/// A device with the decoder's operations.
struct Decoder {
    rig: Rig,
    ops: DecoderOps,
}

impl Decoder {
    fn new() -> Decoder {
        Decoder::on(Rig::new(&crate::support::driver()))
    }

    fn on(rig: Rig) -> Decoder {
        let ops = DecoderOps::load(&rig.context).expect("the kernels");
        Decoder { rig, ops }
    }

    fn empty(&self, shape: &[usize]) -> Tensor {
        Tensor::allocate(&self.rig.context, DType::BF16, shape).expect("a tensor")
    }

    /// A tensor of these values, which bfloat16 has.
    fn tensor(&self, values: &[f32], shape: &[usize]) -> Tensor {
        let tensor = self.empty(shape);
        assert_eq!(tensor.elements(), values.len());
        let bytes: Vec<u8> = values.iter().flat_map(|&value| bf16::from_f32(value).to_bits().to_ne_bytes()).collect();
        // SAFETY: a contiguous tensor of as many bytes.
        unsafe { self.rig.stream.copy_host_to_device(tensor.address(), &bytes) }.expect("a copy");
        tensor
    }

    fn integers(&self, values: &[i32]) -> Tensor {
        Tensor::from_slice(&self.rig.stream, values, &[values.len()]).expect("a tensor")
    }

    /// The bits of a contiguous tensor.
    fn bits(&self, tensor: &Tensor) -> Vec<u16> {
        assert!(tensor.layout().is_contiguous());
        let mut bytes = vec![0; tensor.extent_bytes()];
        // SAFETY: a tensor of as many bytes.
        unsafe { self.rig.stream.copy_device_to_host(&mut bytes, tensor.address()) }.expect("a copy");
        bytes.chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect()
    }

    fn read(&self, tensor: &Tensor) -> Vec<f32> {
        self.bits(tensor).into_iter().map(|bits| bf16::from_bits(bits).to_f32()).collect()
    }

    /// These values within a wider tensor, whose rows are apart, from `column` on.
    fn apart(&self, values: &[f32], [rows, columns]: [usize; 2], column: usize, all: usize) -> Tensor {
        let mut wide = vec![f32::NAN; rows * all];
        for (wide, values) in wide.chunks_mut(all).zip(values.chunks(columns)) {
            wide[column..column + columns].copy_from_slice(values);
        }
        self.tensor(&wide, &[rows, all]).narrow(1, column, columns).expect("a view")
    }
}

/// Random values that bfloat16 has.
fn values(seed: u64, count: usize) -> Vec<f32> {
    random_values(seed, count).into_iter().map(rounded).collect()
}

fn rounded(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// Within a rounding or two of bfloat16; NaN is never close.
#[track_caller]
fn assert_near(got: &[f32], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "number of values");
    for (at, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let tolerance = e.abs() / 128.0 + 1e-4;
        assert!((f64::from(g) - e).abs() <= tolerance, "value {at} of {}: got {g}, expected {e}", got.len());
    }
}

#[test]
fn random_values_are_the_same_everywhere() {
    let decoder = Decoder::new();
    let y = decoder.empty(&[3, 1111]);
    for (seed, middle, scale) in [(7, 0.0, 0.5), (8, 1.0, 0.25)] {
        decoder.ops.random_into(&decoder.rig.stream, seed, middle, scale, &y).expect("random values");
        let value = |at: u64| {
            let mixed =
                (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at.wrapping_mul(0xd134_2543_de82_ef95));
            let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            rounded(middle + (((mixed ^ mixed >> 31) >> 40) as f32 / 8_388_608.0 - 1.0) * scale)
        };
        let got = decoder.read(&y);
        assert_eq!(got, (0..3333).map(value).collect::<Vec<_>>());
        let mean = got.iter().sum::<f32>() / 3333.0;
        assert!((mean - middle).abs() < scale / 20.0, "{mean}");
    }
}

#[test]
fn rms_norm_of_widths_by_chunks_and_others() {
    let decoder = Decoder::new();
    for (rows, width) in [(1, 1), (3, 8), (4, 37), (2, 500), (5, 896), (3, 4104)] {
        let (x, gamma) = (values(1, rows * width), values(2, width));
        let y = decoder.empty(&[rows, width]);
        let tensors = [decoder.tensor(&x, &[rows, width]), decoder.tensor(&gamma, &[width])];
        decoder.ops.rms_norm_into(&decoder.rig.stream, &tensors[0], &tensors[1], 1e-5, &y).expect("a launch");
        let normed = |row: &[f32]| -> Vec<f64> {
            let square = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / width as f64;
            let scale = 1.0 / (square + 1e-5).sqrt();
            row.iter().zip(&gamma).map(|(&v, &g)| f64::from(v) * scale * f64::from(g)).collect()
        };
        assert_near(&decoder.read(&y), &x.chunks(width).flat_map(normed).collect::<Vec<_>>());
    }
}

#[test]
fn gates_multiply() {
    let decoder = Decoder::new();
    for (rows, inner) in [(1, 1), (3, 5), (4, 16), (7, 100), (2, 4864)] {
        // Large ones too, whose exponential overflows.
        let x: Vec<f32> = values(1, rows * 2 * inner).iter().map(|value| rounded(value * 120.0)).collect();
        let (gate_up, y) = (decoder.tensor(&x, &[rows, 2 * inner]), decoder.empty(&[rows, inner]));
        decoder.ops.silu_mul_into(&decoder.rig.stream, &gate_up, &y).expect("a launch");
        let gated = |row: &[f32]| -> Vec<f64> {
            let (gate, up) = row.split_at(inner);
            let silu = |gate: f32| f64::from(gate) / (1.0 + f64::from(-gate).exp());
            gate.iter().zip(up).map(|(&gate, &up)| silu(gate) * f64::from(up)).collect()
        };
        assert_near(&decoder.read(&y), &x.chunks(2 * inner).flat_map(gated).collect::<Vec<_>>());
    }
}

#[test]
fn products_at_all_edges_of_tiles_and_chunks() {
    let decoder = Decoder::new();
    for (rows, inner, columns) in [(1, 1, 1), (4, 8, 4), (5, 3, 7), (3, 17, 9), (13, 64, 30), (2, 0, 3), (6, 200, 5)] {
        let (x, w, before) = (values(1, rows * inner), values(2, columns * inner), values(3, rows * columns));
        let [xt, wt] = [(&x, rows), (&w, columns)].map(|(values, rows)| decoder.tensor(values, &[rows, inner]));
        for accumulate in [false, true] {
            let y = decoder.tensor(&before, &[rows, columns]);
            decoder.ops.linear_into(&decoder.rig.stream, &xt, &wt, accumulate, &y).expect("a launch");
            let sum = |at: usize| -> f64 {
                let (row, column) = (at / columns, at % columns);
                let products = (0..inner).map(|k| f64::from(x[row * inner + k]) * f64::from(w[column * inner + k]));
                products.sum::<f64>() + if accumulate { f64::from(before[at]) } else { 0.0 }
            };
            assert_near(&decoder.read(&y), &(0..rows * columns).map(sum).collect::<Vec<_>>());
        }
    }
}

/// The place of each token in its sequence; none past the last.
fn places(offsets: &[usize], tokens: usize) -> Vec<Option<usize>> {
    let place = |token: usize| offsets.windows(2).find(|at| (at[0]..at[1]).contains(&token)).map(|at| token - at[0]);
    (0..tokens).map(place).collect()
}

#[test]
fn heads_are_turned_by_their_place_in_the_sequence() {
    let decoder = Decoder::new();
    let offsets = [0, 1, 1, 4, 17];
    let on_device = decoder.integers(&offsets.map(|offset| offset as i32));
    for (heads, kv_heads, width) in [(1, 1, 2), (3, 1, 6), (4, 2, 16), (5, 5, 64), (7, 1, 128)] {
        let (tokens, all, keys) = (20, heads * width, kv_heads * width);
        let x = values(1, tokens * (all + 2 * keys));
        // Of wider rows, from a column on that no chunk begins at.
        let qkv = decoder.apart(&x, [tokens, all + 2 * keys], 3, all + 2 * keys + 8);
        let ones = |columns: usize| decoder.tensor(&vec![1.0; tokens * columns], &[tokens, columns]);
        let (q, k) = (ones(all), ones(keys));
        let ops = &decoder.ops;
        ops.rotate_into(&decoder.rig.stream, &qkv, &on_device, [heads, kv_heads], 500_000.0, [&q, &k]).expect("turned");
        let mut expected = [vec![], vec![]];
        for (token, place) in places(&offsets, tokens).into_iter().enumerate() {
            let row = &x[token * (all + 2 * keys)..][..all + keys];
            for (at, _) in row.iter().enumerate() {
                let (first, d) = (at / width * width, at % width % (width / 2));
                let turned = place.map(|place| {
                    let angle = place as f64 * 500_000_f64.powf(-2.0 * d as f64 / width as f64);
                    let [a, b] = [0, width / 2].map(|half| f64::from(row[first + half + d]));
                    if at % width < width / 2 {
                        a * angle.cos() - b * angle.sin()
                    } else {
                        b * angle.cos() + a * angle.sin()
                    }
                });
                expected[usize::from(at >= all)].push(turned.unwrap_or(1.0));
            }
        }
        for (tensor, expected) in [&q, &k].into_iter().zip(&expected) {
            // Where the two terms nearly cancel, what f32 rounds away is seen.
            for (got, expected) in decoder.read(tensor).iter().zip(expected) {
                assert!((f64::from(*got) - expected).abs() <= 1.0 / 128.0, "got {got}, expected {expected}");
            }
        }
    }
}

/// Causal attention in double precision; tokens past the last sequence keep what `y` holds.
fn attend(qkv: [&[f32]; 3], offsets: &[usize], [heads, kv_heads]: [usize; 2], width: usize, y: &mut [f64]) {
    let [q, k, v] = qkv;
    for (token, head) in (0..y.len() / heads / width).flat_map(|token| (0..heads).map(move |head| (token, head))) {
        let Some(place) = places(offsets, token + 1)[token] else { continue };
        let at = (token * heads + head) * width;
        let key = |other: usize| (other * kv_heads + head / (heads / kv_heads)) * width;
        let others = token - place..token + 1;
        let scores: Vec<f64> = others
            .clone()
            .map(|other| (0..width).map(|d| f64::from(q[at + d]) * f64::from(k[key(other) + d])).sum::<f64>())
            .map(|score| score / (width as f64).sqrt())
            .collect();
        let largest = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        for d in 0..width {
            let sum: f64 =
                weights.iter().zip(others.clone()).map(|(weight, other)| weight * f64::from(v[key(other) + d])).sum();
            y[at + d] = sum / total;
        }
    }
}

#[test]
fn attention_looks_back_within_each_sequence() {
    let decoder = Decoder::new();
    let cases = [(1, 1, 1), (4, 2, 5), (7, 1, 16), (14, 2, 64), (2, 1, 136), (6, 3, 128), (3, 3, 8), (5, 1, 260)];
    for (heads, kv_heads, width) in cases {
        for (tokens, offsets) in [(20, vec![0, 1, 1, 8, 17]), (80, vec![0, 3, 70]), (66, vec![0, 33, 65, 66])] {
            // Scores of up to about 100: a softmax that is not stable overflows.
            let loud = |seed, heads: usize| -> Vec<f32> {
                values(seed, tokens * heads * width).iter().map(|value| rounded(value * 6.0)).collect()
            };
            let [q, k] = [loud(1, heads), loud(2, kv_heads)];
            let v = values(3, tokens * kv_heads * width);
            let on_device = decoder.integers(&offsets.iter().map(|&offset| offset as i32).collect::<Vec<_>>());
            let mut expected = vec![1.0; tokens * heads * width];
            attend([&q, &k, &v], &offsets, [heads, kv_heads], width, &mut expected);
            let run = |column: usize| {
                let rows = |values: &[f32], heads: usize| {
                    decoder.apart(values, [tokens, heads * width], column, heads * width + 8)
                };
                let y = decoder.tensor(&vec![1.0; tokens * heads * width], &[tokens, heads * width]);
                let qkv = [&rows(&q, heads), &rows(&k, kv_heads), &rows(&v, kv_heads)];
                let ops = &decoder.ops;
                ops.attention_into(&decoder.rig.stream, qkv, &on_device, [heads, kv_heads], &y).expect("attention");
                y
            };
            let y = run(8);
            // The values are up to 1, and their sums cancel.
            for (at, (got, expected)) in decoder.read(&y).iter().zip(&expected).enumerate() {
                assert!((f64::from(*got) - expected).abs() <= 0.01, "value {at}: got {got}, expected {expected}");
            }
            // Where chunks can't be read whole, the bits are the same.
            assert_eq!(decoder.bits(&run(3)), decoder.bits(&y), "{heads} heads of {width}");
        }
    }
}

#[test]
fn offsets_outside_the_tokens_are_clamped() {
    let decoder = Decoder::new();
    let x = values(1, 4 * 8);
    let tensor = decoder.tensor(&x, &[4, 8]);
    for (offsets, clamped) in
        [([0, 1_000_000_000], [0, 4]), ([-5, 4], [0, 4]), ([i32::MIN, i32::MAX], [0, 4]), ([4, 0], [4, 0])]
    {
        let offsets = decoder.integers(&offsets);
        let y = decoder.tensor(&[1.0; 32], &[4, 8]);
        let (stream, ops) = (&decoder.rig.stream, &decoder.ops);
        ops.attention_into(stream, [&tensor; 3], &offsets, [2, 2], &y).expect("attention");
        let mut expected = [1.0; 32];
        attend([&x; 3], &clamped, [2, 2], 4, &mut expected);
        assert_near(&decoder.read(&y), &expected);
        let (q, k) = (decoder.tensor(&[1.0; 16], &[4, 4]), decoder.tensor(&[1.0; 16], &[4, 4]));
        ops.rotate_into(stream, &tensor, &offsets, [2, 2], 10_000.0, [&q, &k]).expect("turned");
        assert!(decoder.read(&q).iter().all(|value| value.is_finite()));
    }
}

#[test]
fn a_row_has_the_same_bits_whatever_rows_are_beside_it() {
    let decoder = Decoder::new();
    let (rows, padded, width) = (5, 16, 40);
    let mut x = values(1, rows * width);
    let alone = decoder.tensor(&x, &[rows, width]);
    x.resize(padded * width, f32::NAN);
    let beside = decoder.tensor(&x, &[padded, width]);
    let (w, gamma) =
        (decoder.tensor(&values(2, width * width), &[width; 2]), decoder.tensor(&values(3, width), &[width]));
    let offsets = decoder.integers(&[0, 2, 5]);
    let (ops, stream) = (&decoder.ops, &decoder.rig.stream);
    let forward = |x: &Tensor| -> Result<Tensor> {
        let tensor = |columns: usize| decoder.empty(&[x.rows(), columns]);
        let (normed, h, q, k, y, gated) = (tensor(width), tensor(width), tensor(16), tensor(8), tensor(16), tensor(8));
        ops.rms_norm_into(stream, x, &gamma, 1e-5, &normed)?;
        ops.linear_into(stream, &normed, &w, false, &h)?;
        ops.rotate_into(stream, &h, &offsets, [4, 2], 10_000.0, [&q, &k])?;
        ops.attention_into(stream, [&q, &k, &h.narrow(1, 24, 8)?], &offsets, [4, 2], &y)?;
        ops.silu_mul_into(stream, &y, &gated)?;
        Ok(gated)
    };
    let expected = decoder.bits(&forward(&alone).expect("a forward"));
    assert_eq!(decoder.bits(&forward(&beside).expect("a forward"))[..rows * 8], expected);
}

#[test]
fn tensors_that_do_not_fit_are_typed_errors() {
    let decoder = Decoder::new();
    let (ops, stream) = (&decoder.ops, &decoder.rig.stream);
    let (matrix, vector) = (decoder.empty(&[4, 6]), decoder.empty(&[6]));
    let (square, odd) = (decoder.empty(&[6, 6]), decoder.empty(&[4, 3]));
    let columns = matrix.narrow(1, 0, 3).expect("a view");
    let flipped = matrix.transpose(0, 1).expect("a view");
    let floats = decoder.rig.ones(&[4, 6]);
    let offsets = decoder.integers(&[0, 4]);
    let attend = |q: &Tensor, k: &Tensor, heads: [usize; 2], y: &Tensor| {
        ops.attention_into(stream, [q, k, k], &offsets, heads, y)
    };
    let rotate = |qkv: &Tensor, heads: [usize; 2], q: &Tensor, k: &Tensor| {
        ops.rotate_into(stream, qkv, &offsets, heads, 10_000.0, [q, k])
    };
    let shape_errors = [
        ops.random_into(stream, 1, 0.0, 1.0, &columns),
        ops.rms_norm_into(stream, &vector, &vector, 1e-5, &vector),
        ops.rms_norm_into(stream, &matrix, &matrix, 1e-5, &matrix),
        ops.rms_norm_into(stream, &matrix, &vector, 1e-5, &square),
        ops.silu_mul_into(stream, &matrix, &matrix),
        ops.silu_mul_into(stream, &flipped, &odd),
        ops.linear_into(stream, &matrix, &matrix, false, &matrix),
        ops.linear_into(stream, &matrix, &square, false, &odd),
        ops.linear_into(stream, &columns, &square, false, &matrix),
        attend(&matrix, &matrix, [0, 1], &matrix),
        attend(&matrix, &matrix, [4, 1], &matrix),
        attend(&matrix, &matrix, [2, 0], &matrix),
        attend(&matrix, &matrix, [3, 2], &matrix),
        attend(&matrix, &matrix, [2, 1], &matrix),
        attend(&matrix, &odd, [2, 1], &odd),
        attend(&matrix, &square, [2, 2], &matrix),
        attend(&flipped, &matrix, [2, 2], &matrix),
        ops.attention_into(stream, [&matrix; 3], &offsets.leading_rows(0), [2, 2], &matrix),
        rotate(&matrix, [1, 1], &matrix, &matrix),
        rotate(&matrix, [2, 1], &matrix, &odd),
        rotate(&matrix, [1, usize::MAX], &matrix, &matrix),
        rotate(&square, [1, 0], &matrix, &decoder.empty(&[4, 0])),
        rotate(&matrix, [1, 1], &odd, &odd),
    ];
    for (at, result) in shape_errors.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::Tensor(TensorError::Shape { .. }))), "case {at}: {result:?}");
    }
    let dtype_errors = [
        ops.random_into(stream, 1, 0.0, 1.0, &floats),
        ops.rms_norm_into(stream, &floats, &vector, 1e-5, &matrix),
        ops.silu_mul_into(stream, &floats, &odd),
        ops.linear_into(stream, &matrix, &floats, false, &odd),
        attend(&floats, &matrix, [2, 2], &matrix),
        attend(&matrix, &matrix, [2, 2], &floats),
        ops.attention_into(stream, [&matrix; 3], &vector, [2, 2], &matrix),
        rotate(&floats, [1, 1], &odd, &odd),
    ];
    for (at, result) in dtype_errors.into_iter().enumerate() {
        assert!(
            matches!(result, Err(Error::Tensor(TensorError::DType { .. }) | Error::Tensor(TensorError::Shape { .. }))),
            "case {at}: {result:?}"
        );
    }
    // Nothing to compute is no error.
    let nothing = decoder.empty(&[0, 6]);
    ops.rms_norm_into(stream, &nothing, &vector, 1e-5, &nothing).expect("no rows");
    attend(&nothing, &nothing, [2, 2], &nothing).expect("no rows");
}

const SIZES: DecoderSizes = DecoderSizes { layers: 2, width: 64, inner: 96, heads: 4, kv_heads: 2, shards: 1 };
const ROWS: usize = 12;

#[test]
fn sizes_that_make_no_decoder_are_refused() {
    let decoder = Decoder::new();
    let refused = |sizes: DecoderSizes| match Layers::new(&decoder.ops, &decoder.rig.stream, sizes, 1) {
        Err(Error::User(error)) => error.downcast_ref() == Some(&DecoderSizesError(sizes)),
        _ => false,
    };
    assert!(refused(DecoderSizes { heads: 5, ..SIZES }));
    assert!(refused(DecoderSizes { heads: 64, ..SIZES }), "heads of one column");
    assert!(refused(DecoderSizes { kv_heads: 3, ..SIZES }));
    assert!(refused(DecoderSizes { shards: 4, ..SIZES }));
    for zero in [
        DecoderSizes { width: 0, ..SIZES },
        DecoderSizes { inner: 0, ..SIZES },
        DecoderSizes { heads: 0, ..SIZES },
        DecoderSizes { kv_heads: 0, ..SIZES },
        DecoderSizes { shards: 0, ..SIZES },
    ] {
        assert!(refused(zero), "{zero:?}");
    }
    assert!(!refused(DecoderSizes { shards: 2, ..SIZES }));
}

/// The bits of an eager forward's valid rows.
fn run_eagerly(decoder: &Decoder, layers: &Layers, x: &Tensor, batch: &DecoderBatch, valid: usize) -> Vec<u16> {
    let Decoder { rig, ops } = decoder;
    let h =
        active_forward(batch, || eager(&rig.pool, &rig.stream, |scope| layers.forward(scope, x, ops, BreakKind::Live)));
    decoder.bits(&h.expect("a forward"))[..valid * SIZES.width].to_vec()
}

fn batch(decoder: &Decoder, offsets: &[i32]) -> DecoderBatch {
    DecoderBatch { offsets: decoder.integers(offsets) }
}

#[test]
fn layers_replayed_have_the_bits_of_eager_for_every_batch() {
    crate::support::for_each_seed(|rig| {
        let decoder = Decoder::on(rig);
        let Decoder { rig, ops } = &decoder;
        let layers = Layers::new(ops, &rig.stream, SIZES, 3).expect("layers");
        for kind in [BreakKind::Live, BreakKind::Patched] {
            let x = decoder.tensor(&values(1, ROWS * SIZES.width), &[ROWS, SIZES.width]);
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            let first = batch(&decoder, &[0, ROWS as i32]);
            let output =
                active_forward(&first, || capture.record(&rig.stream, |scope| layers.forward(scope, &x, ops, kind)));
            let output = output.expect("a recording");
            let launches = if kind == BreakKind::Live { 3 } else { 1 };
            assert_eq!((capture.num_breaks(), capture.num_launches()), (2, launches));
            let mut seen = Vec::new();
            for (number, offsets) in
                [&[0, 12][..], &[0, 5, 12], &[0, 1, 2, 7, 7, 12], &[0, 4, 9], &[0, 12]].iter().enumerate()
            {
                // Another input and other offsets on each replay.
                ops.random_into(&rig.stream, number as u64, 0.0, 1.0, &x).expect("an input");
                let (batch, valid) = (batch(&decoder, offsets), offsets[offsets.len() - 1] as usize);
                let options = ReplayOptions::default().valid_rows(valid);
                active_forward(&batch, || capture.replay_with(&rig.stream, options).map(|_| ())).expect("a replay");
                let got = decoder.bits(&output)[..valid * SIZES.width].to_vec();
                assert_eq!(got, run_eagerly(&decoder, &layers, &x, &batch, valid), "{kind:?}, {offsets:?}");
                assert!(got.iter().all(|&bits| bf16::from_bits(bits).is_finite()));
                assert!(!seen.contains(&got), "batches differ");
                seen.push(got);
            }
        }
    });
}

#[test]
fn attention_captured_once_reads_offsets_anew() {
    crate::support::for_each_seed(|rig| {
        let decoder = Decoder::on(rig);
        let Decoder { rig, ops } = &decoder;
        let layers = Layers::new(ops, &rig.stream, SIZES, 3).expect("layers");
        let x = decoder.tensor(&values(1, ROWS * SIZES.width), &[ROWS, SIZES.width]);
        let batch = batch(&decoder, &[0, 5, 12]);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let output = active_forward(&batch, || {
            capture.record(&rig.stream, |scope| layers.forward(scope, &x, ops, BreakKind::Inline))
        });
        let output = output.expect("a recording");
        assert_eq!(capture.num_launches(), 1);
        let mut seen = Vec::new();
        for offsets in [[0, 5, 12], [0, 9, 12], [0, 0, 12]] {
            batch.offsets.write(&rig.stream, &offsets).expect("offsets");
            let _ = capture.replay(&rig.stream).expect("a replay");
            let got = decoder.bits(&output);
            assert_eq!(got, run_eagerly(&decoder, &layers, &x, &batch, ROWS), "{offsets:?}");
            assert!(!seen.contains(&got), "batches differ");
            seen.push(got);
        }
    });
}

#[test]
fn a_forward_without_a_batch_says_what_is_missing() {
    let decoder = Decoder::new();
    let layers = Layers::new(&decoder.ops, &decoder.rig.stream, SIZES, 3).expect("layers");
    let run = |x: &Tensor| {
        let rig = &decoder.rig;
        eager(&rig.pool, &rig.stream, |scope| layers.forward(scope, x, &decoder.ops, BreakKind::Live)).map(drop)
    };
    let error = run(&decoder.empty(&[ROWS, SIZES.width])).expect_err("no batch");
    assert!(matches!(error, Error::Misuse(Misuse::NoForwardContext { .. })), "{error}");
    assert!(matches!(run(&decoder.empty(&[ROWS, 32])), Err(Error::Tensor(TensorError::Shape { .. }))));
    assert!(matches!(run(&decoder.rig.ones(&[ROWS, SIZES.width])), Err(Error::Tensor(TensorError::DType { .. }))));
}
