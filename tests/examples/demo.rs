//! The demo operations against plain Rust.

use crate::support::demo::Weight;
use crate::support::{Rig, assert_close, assert_same, random_values};
use breakable_cuda_graph::{DType, Error, Result, Tensor, TensorError, eager};

fn rig() -> Rig {
    Rig::new(&crate::support::driver())
}

/// Runs an operation outside any recording and reads its result.
fn run(rig: &Rig, operation: impl FnOnce() -> Result<Tensor>) -> Vec<f32> {
    rig.read(&eager(&rig.pool, &rig.stream, |_| operation()).expect("the operation"))
}

fn integers(rig: &Rig, values: &[i32]) -> Tensor {
    Tensor::from_slice(&rig.stream, values, &[values.len()]).expect("a tensor")
}

/// `x[rows, inner] w[inner, columns] + bias`.
fn product(x: &[f32], w: &[f32], bias: Option<&[f32]>, inner: usize, columns: usize) -> Vec<f32> {
    let row = |x: &[f32], column: usize| -> f32 {
        let sum = (0..inner).fold(0.0, |sum, k| sum + x[k] * w[k * columns + column]);
        bias.map_or(sum, |bias| sum + bias[column])
    };
    x.chunks(inner).flat_map(|x| (0..columns).map(move |column| row(x, column))).collect()
}

fn transposed(w: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| w[row * columns + column])).collect()
}

#[test]
fn elementwise_operations() {
    let rig = rig();
    let (a, b) = (rig.random(1, &[3, 171]), rig.random(2, &[3, 171]));
    let (av, bv) = (rig.read(&a), rig.read(&b));
    let each = |f: &dyn Fn(f32) -> f32| av.iter().map(|&value| f(value)).collect::<Vec<_>>();
    assert_same(&run(&rig, || rig.ops.relu(&a)), &each(&|x| x.max(0.0)));
    assert_same(&run(&rig, || rig.ops.scale(&a, -1.5)), &each(&|x| x * -1.5));
    let sums: Vec<f32> = av.iter().zip(&bv).map(|(a, b)| a + b).collect();
    assert_same(&run(&rig, || rig.ops.add(&a, &b)), &sums);
    rig.ops.fill(&rig.stream, &b, 0.25).expect("a fill");
    assert_same(&rig.read(&b), &[0.25; 513]);
    let bias = rig.random(3, &[171]);
    rig.ops.add_bias(&rig.stream, &bias, &b).expect("a bias");
    let biased: Vec<f32> = rig.read(&bias).iter().map(|bias| 0.25 + bias).collect();
    assert_same(&rig.read(&b), &biased.repeat(3));
}

#[test]
fn relu_keeps_nan() {
    let rig = rig();
    let x = Tensor::from_slice(&rig.stream, &[f32::NAN, -1.0, 2.0], &[3]).expect("a tensor");
    let y = run(&rig, || rig.ops.relu(&x));
    assert!(y[0].is_nan());
    assert_same(&y[1..], &[0.0, 2.0]);
}

#[test]
fn gelu_is_the_exact_form() {
    let rig = rig();
    let x = Tensor::from_slice(&rig.stream, &[-3.0_f32, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0], &[7]).expect("a tensor");
    // x Φ(x), from a table of the normal distribution.
    let expected = [-0.004_049_69, -0.158_655_25, -0.154_268_77, 0.0, 0.345_731_23, 0.841_344_7, 2.995_950_3];
    assert_close(&run(&rig, || rig.ops.gelu(&x)), &expected, 1e-6);
}

#[test]
fn linear_in_both_forms_at_all_edges_of_its_tiles() {
    let rig = rig();
    for (rows, inner, columns) in [(1, 1, 1), (4, 8, 4), (5, 3, 7), (3, 17, 9), (13, 64, 30), (2, 0, 3)] {
        let (x, w) = (random_values(1, rows * inner), random_values(2, inner * columns));
        let bias = random_values(3, columns);
        let tensor =
            |values: &[f32], shape: &[usize]| Tensor::from_slice(&rig.stream, values, shape).expect("a tensor");
        let (xt, bt) = (tensor(&x, &[rows, inner]), tensor(&bias, &[columns]));
        let row_major = tensor(&w, &[inner, columns]);
        let column_major = tensor(&transposed(&w, inner, columns), &[columns, inner]);
        let expected = if inner == 0 { bias.repeat(rows) } else { product(&x, &w, Some(&bias), inner, columns) };
        // The same sums in the same order, none contracted: the same bits.
        assert_same(&run(&rig, || rig.ops.linear(&xt, Weight::RowMajor(&row_major), Some(&bt))), &expected);
        assert_same(&run(&rig, || rig.ops.linear(&xt, Weight::Transposed(&column_major), Some(&bt))), &expected);
        if inner > 0 {
            assert_same(&run(&rig, || rig.ops.matmul(&xt, &row_major)), &product(&x, &w, None, inner, columns));
        }
    }
}

#[test]
fn linear_reads_and_writes_rows_that_are_apart() {
    let rig = rig();
    let (whole, w) = (rig.random(1, &[5, 12]), rig.random(2, &[8, 3]));
    let x = whole.narrow(1, 4, 8).expect("a view");
    let target = rig.ones(&[5, 9]);
    let y = target.narrow(1, 1, 3).expect("a view");
    rig.ops.linear_into(&rig.stream, &x, Weight::RowMajor(&w), None, &y).expect("a product");
    let expected = product(&rig.read(&x), &rig.read(&w), None, 8, 3);
    assert_same(&rig.read(&y), &expected);
    for (row, values) in rig.read(&target).chunks(9).enumerate() {
        assert_same(&values[1..4], &expected[row * 3..][..3]);
        assert!(values[..1].iter().chain(&values[4..]).all(|&value| value == 1.0), "row {row} beside the view");
    }
}

#[test]
fn layer_norm_normalises_the_sum_with_the_residual() {
    let rig = rig();
    const WIDTH: usize = 37;
    let (x, residual) = (rig.random(1, &[40, WIDTH]), rig.random(2, &[40, WIDTH]));
    let (gamma, beta) = (rig.random(3, &[WIDTH]), rig.random(4, &[WIDTH]));
    let [xv, rv, gv, bv] = [&x, &residual, &gamma, &beta].map(|tensor| rig.read(tensor));
    let normalised = |values: &[f32]| -> Vec<f32> {
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / WIDTH as f64;
        let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / WIDTH as f64;
        let scaled = values.iter().map(|&v| (f64::from(v) - mean) / (variance + 1e-5).sqrt());
        scaled.zip(gv.iter().zip(&bv)).map(|(v, (&g, &b))| (v * f64::from(g) + f64::from(b)) as f32).collect()
    };
    let expected: Vec<f32> = xv.chunks(WIDTH).flat_map(normalised).collect();
    assert_close(&run(&rig, || rig.ops.layer_norm(&x, None, &gamma, &beta, 1e-5)), &expected, 1e-5);
    let sums: Vec<f32> = xv.iter().zip(&rv).map(|(a, b)| a + b).collect();
    let expected: Vec<f32> = sums.chunks(WIDTH).flat_map(normalised).collect();
    assert_close(&run(&rig, || rig.ops.layer_norm(&x, Some(&residual), &gamma, &beta, 1e-5)), &expected, 1e-5);
}

/// Attention in double precision; tokens past the last sequence keep what `y` holds.
fn attend(qkv: [&[f32]; 3], offsets: &[usize], heads: usize, width: usize, y: &mut [f32]) {
    let [q, k, v] = qkv;
    let all = heads * width;
    for sequence in offsets.windows(2) {
        for (token, head) in (sequence[0]..sequence[1]).flat_map(|token| (0..heads).map(move |head| (token, head))) {
            let at = |token: usize| token * all + head * width;
            let scores: Vec<f64> = (sequence[0]..sequence[1])
                .map(|other| (0..width).map(|d| f64::from(q[at(token) + d]) * f64::from(k[at(other) + d])).sum::<f64>())
                .map(|score| score / (width as f64).sqrt())
                .collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            for d in 0..width {
                let sum: f64 =
                    weights.iter().zip(sequence[0]..).map(|(weight, other)| weight * f64::from(v[at(other) + d])).sum();
                y[at(token) + d] = (sum / total) as f32;
            }
        }
    }
}

#[test]
fn attention_stays_within_each_sequence() {
    let rig = rig();
    for (heads, width) in [(1, 1), (2, 5), (3, 16), (2, 33), (1, 100)] {
        let (tokens, all) = (20, heads * width);
        let offsets = [0, 1, 1, 8, 17];
        // Scores of up to about 100: a softmax that is not stable overflows.
        let loud = |seed| random_values(seed, tokens * all).iter().map(|value| value * 6.0).collect::<Vec<_>>();
        let [q, k, v] = [loud(1), loud(2), loud(3)];
        let [qt, kt, vt] =
            [&q, &k, &v].map(|values| Tensor::from_slice(&rig.stream, values, &[tokens, all]).expect("a tensor"));
        let y = rig.ones(&[tokens, all]);
        let on_device = integers(&rig, &offsets.map(|offset| offset as i32));
        rig.ops.attention_into(&rig.stream, [&qt, &kt, &vt], &on_device, heads, &y).expect("attention");
        let mut expected = vec![1.0; tokens * all];
        attend([&q, &k, &v], &offsets, heads, width, &mut expected);
        assert_close(&rig.read(&y), &expected, 2e-4);
    }
}

#[test]
fn attention_reads_parts_of_one_packed_tensor() {
    let rig = rig();
    let (tokens, heads, width) = (9, 2, 4);
    let all = heads * width;
    let packed = rig.random(1, &[tokens, 3 * all]);
    let parts = [0, 1, 2].map(|part| packed.narrow(1, part * all, all).expect("a view"));
    let values = parts.each_ref().map(|part| rig.read(part));
    let offsets = integers(&rig, &[0, 4, 9]);
    let y = rig.zeros(&[tokens, all]);
    rig.ops.attention_into(&rig.stream, parts.each_ref(), &offsets, heads, &y).expect("attention");
    let mut expected = vec![0.0; tokens * all];
    attend(values.each_ref().map(|values| &values[..]), &[0, 4, 9], heads, width, &mut expected);
    assert_close(&rig.read(&y), &expected, 1e-5);
}

#[test]
fn a_row_has_the_same_bits_whatever_rows_are_beside_it() {
    let rig = rig();
    let (rows, padded, width) = (5, 16, 32);
    let real = random_values(1, rows * width);
    let x = Tensor::from_slice(&rig.stream, &real, &[rows, width]).expect("a tensor");
    let mut values = vec![f32::NAN; padded * width];
    values[..real.len()].copy_from_slice(&real);
    let wide = Tensor::from_slice(&rig.stream, &values, &[padded, width]).expect("a tensor");
    let (w, gamma, beta) = (rig.random(2, &[width, width]), rig.random(3, &[width]), rig.random(4, &[width]));
    let offsets = integers(&rig, &[0, 2, 5]);
    let forward = |x: &Tensor| {
        let h = rig.ops.gelu(&rig.ops.linear(x, Weight::RowMajor(&w), Some(&beta))?)?;
        let y = rig.ops.empty_like(&h)?;
        rig.ops.fill(&rig.stream, &y, 0.0)?;
        rig.ops.attention_into(&rig.stream, [&h, &h, &h], &offsets, 2, &y)?;
        rig.ops.layer_norm(&y, Some(x), &gamma, &beta, 1e-12)
    };
    let expected = run(&rig, || forward(&x));
    assert_same(&run(&rig, || forward(&wide))[..rows * width], &expected);
}

#[test]
fn embeddings_are_summed_and_padding_is_zero() {
    let rig = rig();
    let (words, positions, types) = (rig.random(1, &[6, 3]), rig.random(2, &[4, 3]), rig.random(3, &[2, 3]));
    let (ids, places) = ([5, 0, -1, 6, 2, 1], [0, 3, 0, 1, 4, -7]);
    let y = run(&rig, || rig.ops.embed(&integers(&rig, &ids), &integers(&rig, &places), [&words, &positions, &types]));
    let [w, p, t] = [&words, &positions, &types].map(|tensor| rig.read(tensor));
    let known = |id: usize, place: usize| (0..3).map(|d| w[id * 3 + d] + t[d] + p[place * 3 + d]).collect::<Vec<_>>();
    assert_same(&y[..3], &known(5, 0));
    assert_same(&y[3..6], &known(0, 3));
    assert_same(&y[6..], &[0.0; 12]);
}

#[test]
fn means_are_scaled_to_length_one() {
    let rig = rig();
    let x = rig.random(1, &[10, 4]);
    let offsets = [0, 3, 3, 4, 10];
    let pooled = run(&rig, || rig.ops.mean_pool(&x, &integers(&rig, &offsets.map(|offset| offset as i32))));
    let values = rig.read(&x);
    let mut expected = Vec::new();
    for sequence in offsets.windows(2) {
        let rows = || values[sequence[0] * 4..sequence[1] * 4].chunks(4);
        let sums: Vec<f32> = (0..4).map(|d| rows().map(|row| row[d]).sum()).collect();
        let length = sums.iter().map(|sum| sum * sum).sum::<f32>().sqrt();
        expected.extend(sums.iter().map(|sum| if length == 0.0 { 0.0 } else { sum / length }));
    }
    assert_close(&pooled, &expected, 1e-6);
}

#[test]
fn offsets_outside_the_tokens_are_clamped() {
    let rig = rig();
    let x = rig.random(1, &[4, 8]);
    for offsets in [[0, 1_000_000_000], [-5, 4], [i32::MIN, i32::MAX]] {
        let offsets = integers(&rig, &offsets);
        let y = rig.zeros(&[4, 8]);
        rig.ops.attention_into(&rig.stream, [&x, &x, &x], &offsets, 2, &y).expect("attention");
        let mut expected = vec![0.0; 32];
        let values = rig.read(&x);
        attend([&values, &values, &values], &[0, 4], 2, 4, &mut expected);
        assert_close(&rig.read(&y), &expected, 1e-5);
        assert!(run(&rig, || rig.ops.mean_pool(&x, &offsets)).iter().all(|value| value.is_finite()));
    }
    // A sequence that ends before it begins has no tokens.
    let backwards = integers(&rig, &[4, 0]);
    let y = rig.ones(&[4, 8]);
    rig.ops.attention_into(&rig.stream, [&x, &x, &x], &backwards, 2, &y).expect("attention");
    assert_same(&rig.read(&y), &[1.0; 32]);
    assert_same(&run(&rig, || rig.ops.mean_pool(&x, &backwards)), &[0.0; 8]);
}

#[test]
fn spin_counts_its_runs() {
    let rig = rig();
    let runs = Tensor::from_slice(&rig.stream, &[0_u32], &[1]).expect("a counter");
    for _ in 0..3 {
        rig.ops.spin(&rig.stream, 1000, &runs).expect("a launch");
    }
    assert_eq!(runs.read::<u32>(&rig.stream).expect("the counter"), [3]);
}

#[test]
fn tensors_that_do_not_fit_are_typed_errors() {
    let rig = rig();
    let (matrix, vector) = (rig.ones(&[4, 6]), rig.ones(&[6]));
    let columns = matrix.narrow(1, 0, 3).expect("a view");
    let flipped = matrix.transpose(0, 1).expect("a view");
    let halves = Tensor::zeros(&rig.stream, DType::F16, &[4, 6]).expect("a tensor");
    let offsets = integers(&rig, &[0, 4]);
    let run = |operation: &dyn Fn() -> Result<Tensor>| eager(&rig.pool, &rig.stream, |_| operation()).map(drop);
    let ops = &rig.ops;
    let attend = |tensor: &Tensor, offsets: &Tensor, heads: usize| {
        ops.attention_into(&rig.stream, [tensor; 3], offsets, heads, tensor)
    };
    let shape_errors = [
        run(&|| ops.relu(&columns)),
        run(&|| ops.add(&matrix, &vector)),
        run(&|| ops.matmul(&matrix, &matrix)),
        run(&|| ops.matmul(&matrix, &vector)),
        run(&|| ops.matmul(&vector, &matrix)),
        run(&|| ops.matmul(&flipped, &matrix)),
        run(&|| ops.linear(&matrix, Weight::Transposed(&matrix), Some(&matrix))),
        run(&|| ops.layer_norm(&matrix, Some(&vector), &vector, &vector, 1e-5)),
        run(&|| ops.layer_norm(&matrix, None, &matrix, &vector, 1e-5)),
        run(&|| ops.embed(&offsets, &offsets, [&matrix, &matrix, &vector])),
        run(&|| ops.embed(&offsets, &integers(&rig, &[0]), [&matrix, &matrix, &matrix])),
        run(&|| ops.embed(&offsets, &offsets, [&matrix, &matrix, &matrix.leading_rows(0)])),
        run(&|| ops.mean_pool(&vector, &offsets)),
        attend(&matrix, &offsets, 4),
        attend(&matrix, &offsets, 0),
        attend(&vector, &offsets, 1),
        attend(&matrix, &offsets.leading_rows(0), 1),
    ];
    for (at, result) in shape_errors.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::Tensor(TensorError::Shape { .. }))), "case {at}: {result:?}");
    }
    let dtype_errors = [
        run(&|| ops.relu(&halves)),
        run(&|| ops.matmul(&halves, &matrix)),
        run(&|| ops.mean_pool(&matrix, &vector)),
        attend(&matrix, &vector, 1),
        ops.spin(&rig.stream, 0, &vector),
    ];
    for (at, result) in dtype_errors.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::Tensor(TensorError::DType { .. }))), "case {at}: {result:?}");
    }
}
