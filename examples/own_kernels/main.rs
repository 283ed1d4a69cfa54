//! Kernels of one's own, from one CUDA C source: as PTX on libcuda, as functions of the host on the reference driver. A forward of theirs, with attention
//! over sequences as a live break, is recorded for a bucket of rows and replayed for batches that fill it in different ways.
//!
//! `cargo run --release --example own_kernels`
//!
//! - `kernels.cu` has the kernels, `kernels.ptx` is made of it, `host.c` makes functions of the host of it.
//! - `kernels` loads and launches them. `expected` is the same forward in plain Rust.

pub(crate) mod expected;
#[path = "../support/host_kernels.rs"]
mod host_kernels;
pub(crate) mod kernels;

use breakable_cuda_graph::driver::{Context, Device, Stream};
use breakable_cuda_graph::{
    BreakableCapture, CapturePool, DType, Driver, ReplayOptions, Result, Scope, Tensor, active_forward, eager,
};
use kernels::Kernels;
use std::error::Error;
use std::process::ExitCode;

const WIDTH: usize = 8;
const VOCABULARY: usize = 32;
/// Rows of the bucket.
const BUCKET: usize = 16;

/// What the break reads live: where each sequence of the batch starts, and where the last one ends.
struct Batch {
    starts: Tensor,
}

impl Batch {
    fn new(stream: &Stream, lengths: &[usize]) -> Result<Batch> {
        let mut starts = vec![0_i32];
        starts.extend(lengths.iter().scan(0, |end, length| {
            *end += *length as i32;
            Some(*end)
        }));
        Ok(Batch { starts: Tensor::from_slice(stream, &starts, &[starts.len()])? })
    }
}

struct Model {
    kernels: Kernels,
    /// The static input: replays read this address.
    ids: Tensor,
    table: Tensor,
}

impl Model {
    fn forward<'env>(&'env self, scope: &Scope<'_, 'env>) -> Result<Tensor> {
        let Model { kernels, ids, table } = self;
        let stream = scope.stream()?;
        let h = kernels.embed(&stream, ids, table, &scope.empty(DType::F32, &[BUCKET, WIDTH])?)?;
        let h = scope.break_point("attention", [&h], |b| {
            let Batch { starts } = b.forward_ctx()?;
            kernels.mix(b.stream(), b.input(0)?, starts, &b.empty(DType::F32, &[BUCKET, WIDTH])?)
        })?;
        kernels.squash(&stream, &h, &scope.empty(DType::F32, &[BUCKET, WIDTH])?)
    }
}

fn main() -> ExitCode {
    let found = match Driver::load() {
        Ok(driver) => Ok(driver),
        Err(_) => kernels::reference(),
    };
    match found.and_then(|driver| run(&driver)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("own_kernels: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn run(driver: &Driver) -> std::result::Result<(), Box<dyn Error>> {
    println!("driver: {}", driver.origin());
    let context = Device::get(driver, 0)?.primary_context()?;
    for (lengths, outputs) in replays(&context)? {
        println!("sequences of {lengths:?} rows: the last is {:.4?}", &outputs[outputs.len() - WIDTH..]);
    }
    println!("replays agree with plain Rust");
    Ok(())
}

/// Lengths of a batch's sequences, and its results.
type Outcome = (Vec<usize>, Vec<f32>);

/// Records the forward once and replays it for each batch.
fn replays(context: &Context) -> std::result::Result<Vec<Outcome>, Box<dyn Error>> {
    let (stream, pool) = (Stream::new(context)?, CapturePool::new(context)?);
    let table: Vec<f32> = (0..VOCABULARY * WIDTH).map(|at| (at * 7919 % 101) as f32 / 50.0 - 1.0).collect();
    let model = Model {
        kernels: Kernels::load(context)?,
        ids: Tensor::zeros(&stream, DType::I32, &[BUCKET])?,
        table: Tensor::from_slice(&stream, &table, &[VOCABULARY, WIDTH])?,
    };
    let dummy = Batch::new(&stream, &[BUCKET])?;
    // Once without capturing: what is made at the first use can't be made in a segment.
    drop(active_forward(&dummy, || eager(&pool, &stream, |scope| model.forward(scope)))?);
    let mut capture = BreakableCapture::new(&pool)?;
    let outputs = active_forward(&dummy, || capture.record(&stream, |scope| model.forward(scope)))?;

    let mut outcomes = Vec::new();
    for lengths in [vec![16], vec![3, 9], vec![1, 1, 5]] {
        let rows: usize = lengths.iter().sum();
        let tokens: Vec<i32> = (0..rows).map(|row| (row * 13 % VOCABULARY) as i32).collect();
        model.ids.leading_rows(rows).write(&stream, &tokens)?;
        let batch = Batch::new(&stream, &lengths)?;
        let options = ReplayOptions::default().valid_rows(rows);
        let _ = active_forward(&batch, || capture.replay_with(&stream, options))?;
        let found: Vec<f32> = outputs.leading_rows(rows).read(&stream)?;
        let expected = expected::forward(&tokens, &lengths, &table, WIDTH);
        if let Some(at) = (0..found.len()).find(|&at| (found[at] - expected[at]).abs() > 1e-5) {
            return Err(
                format!("{lengths:?}: element {at} is {}, and {} in plain Rust", found[at], expected[at]).into()
            );
        }
        outcomes.push((lengths, found));
    }
    Ok(outcomes)
}
