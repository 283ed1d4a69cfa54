//! The encoder in plain Rust and f64, one sentence at a time: no packing, no padding, no kernel.

use super::program::error::Result;
use super::program::model_files::{Config, Weights};

/// Rows of one width.
type Matrix = Vec<Vec<f64>>;

struct Oracle<'a> {
    weights: &'a Weights<'a>,
    config: Config,
}

/// The embedding of one sentence's tokens, of length 1.
pub fn embed(weights: &Weights<'_>, config: Config, ids: &[i32]) -> Result<Vec<f64>> {
    let oracle = Oracle { weights, config };
    let mut h = oracle.embeddings(ids)?;
    for layer in 0..config.layers {
        h = oracle.layer(&format!("encoder.layer.{layer}"), &h)?;
    }
    let mean: Vec<f64> =
        (0..config.hidden).map(|column| h.iter().map(|row| row[column]).sum::<f64>() / h.len() as f64).collect();
    let length = dot(&mean, &mean).sqrt();
    Ok(mean.iter().map(|value| value / length).collect())
}

impl Oracle<'_> {
    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f64>> {
        Ok(self.weights.get(name, shape)?.into_iter().map(f64::from).collect())
    }

    fn embeddings(&self, ids: &[i32]) -> Result<Matrix> {
        let Config { hidden, vocabulary, positions, types, .. } = self.config;
        let table = |name: &str, rows| self.values(&format!("embeddings.{name}_embeddings.weight"), &[rows, hidden]);
        let (words, places, types) =
            (table("word", vocabulary)?, table("position", positions)?, table("token_type", types)?);
        let row = |place: usize, id: usize| {
            (0..hidden).map(|at| words[id * hidden + at] + places[place * hidden + at] + types[at]).collect()
        };
        let sums = ids.iter().enumerate().map(|(place, &id)| row(place, id as usize)).collect();
        self.norm("embeddings.LayerNorm", &sums)
    }

    fn layer(&self, at: &str, h: &Matrix) -> Result<Matrix> {
        let Config { hidden, inner, .. } = self.config;
        let attended = self.attention(&format!("{at}.attention.self"), h)?;
        let projected = self.linear(&format!("{at}.attention.output.dense"), &attended, hidden)?;
        let h = self.norm(&format!("{at}.attention.output.LayerNorm"), &added(&projected, h))?;
        let mut wide = self.linear(&format!("{at}.intermediate.dense"), &h, inner)?;
        wide.iter_mut().flatten().for_each(|value| *value *= 0.5 * (1.0 + erf(*value / std::f64::consts::SQRT_2)));
        let narrow = self.linear(&format!("{at}.output.dense"), &wide, hidden)?;
        self.norm(&format!("{at}.output.LayerNorm"), &added(&narrow, &h))
    }

    fn attention(&self, at: &str, h: &Matrix) -> Result<Matrix> {
        let hidden = self.config.hidden;
        let width = hidden / self.config.heads;
        let part = |name: &str| self.linear(&format!("{at}.{name}"), h, hidden);
        let (query, key, value) = (part("query")?, part("key")?, part("value")?);
        let mut attended = vec![vec![0.0; hidden]; h.len()];
        for head in (0..hidden).step_by(width).map(|start| start..start + width) {
            for (q, y) in query.iter().zip(&mut attended) {
                let scores: Vec<f64> =
                    key.iter().map(|k| dot(&q[head.clone()], &k[head.clone()]) / (width as f64).sqrt()).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let shares: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let total: f64 = shares.iter().sum();
                for (share, v) in shares.iter().zip(&value) {
                    for column in head.clone() {
                        y[column] += share / total * v[column];
                    }
                }
            }
        }
        Ok(attended)
    }

    fn linear(&self, name: &str, x: &Matrix, columns: usize) -> Result<Matrix> {
        let inner = x.first().map_or(0, Vec::len);
        let weight = self.values(&format!("{name}.weight"), &[columns, inner])?;
        let bias = self.values(&format!("{name}.bias"), &[columns])?;
        let row = |x: &Vec<f64>| weight.chunks(inner).zip(&bias).map(|(w, bias)| dot(x, w) + bias).collect();
        Ok(x.iter().map(row).collect())
    }

    fn norm(&self, name: &str, x: &Matrix) -> Result<Matrix> {
        let width = self.config.hidden;
        let gamma = self.values(&format!("{name}.weight"), &[width])?;
        let beta = self.values(&format!("{name}.bias"), &[width])?;
        let row = |x: &Vec<f64>| {
            let mean = x.iter().sum::<f64>() / width as f64;
            let variance = x.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / width as f64;
            let scale = (variance + f64::from(self.config.epsilon)).sqrt().recip();
            x.iter().zip(gamma.iter().zip(&beta)).map(|(x, (gamma, beta))| (x - mean) * scale * gamma + beta).collect()
        };
        Ok(x.iter().map(row).collect())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn added(a: &Matrix, b: &Matrix) -> Matrix {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect()).collect()
}

/// The error function, by its series: `2/√π Σ xⁿ…`, all of whose terms have the sign of `x`.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[test]
fn erf_has_its_known_values() {
    for (x, y) in
        [(0.0, 0.0), (0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9), (-2.0, -0.995_322_265_018_952_7)]
    {
        assert!((erf(x) - y).abs() < 1e-14, "erf({x}) = {}", erf(x));
    }
    assert_eq!(erf(7.0), 1.0);
}
