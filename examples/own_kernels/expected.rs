//! The forward in plain Rust.

/// The results of a batch of `tokens` in sequences of these `lengths`.
pub(crate) fn forward(tokens: &[i32], lengths: &[usize], table: &[f32], width: usize) -> Vec<f32> {
    let mut results = Vec::new();
    let mut rest = tokens;
    for length in lengths {
        let (sequence, after) = rest.split_at(*length);
        rest = after;
        let mut sums = vec![0.0_f32; width];
        for (at, token) in sequence.iter().enumerate() {
            let row = &table[*token as usize * width..][..width];
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            results.extend(sums.iter().map(|sum| {
                let mean = sum / (at + 1) as f32;
                mean / (1.0 + mean.abs())
            }));
        }
    }
    results
}
