//! What verifying a capture costs, beside the runs that it can't do without: an eager run and two replays.
//!
//! A decoder's layers at real sizes, with attention as a live or a patched break, and two batches of other data and other sequences. Each of a round's times
//! has its own wait for the stream.
//!
//! `cargo bench --bench verify [-- --json] [--rounds 9]`

#[path = "../examples/support/blas.rs"]
mod blas;
#[path = "support/common.rs"]
mod common;
#[path = "support/measure.rs"]
mod measure;
#[path = "../examples/support/mod.rs"]
mod support;

use blas::Blas;
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::{
    BreakKind, BreakableCapture, CapturePool, DType, Result, Scope, Tensor, VerifyOptions, active_forward, eager,
};
use clap::Parser;
use common::Common;
use measure::quartiles;
use std::time::Instant;
use support::demo::{DecoderBatch, DecoderOps, DecoderSizes, Layers, Product};

type Failure = Box<dyn std::error::Error>;

/// Measures what verifying a capture costs.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Rounds of an eager run, two replays and a verification.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

impl Product for Blas {
    fn product(&self, stream: &Stream, x: &Tensor, w: &Tensor, accumulate: bool, y: &Tensor) -> Result<()> {
        Ok(self.product_bf16(stream, x, w, accumulate, y)?)
    }
}

fn main() -> std::result::Result<(), Failure> {
    let arguments = Arguments::parse();
    let (driver, line) = support::driver(arguments.common.driver)?;
    let context = support::context(&driver, 0)?;
    let stream = Stream::new(&context)?;
    let ops = DecoderOps::load(&context)?;
    let blas = if driver.is_reference() { None } else { Blas::load(&context, false)? };
    let product: &dyn Product = blas.as_ref().map_or(&ops as &dyn Product, |blas| blas);
    let tiny = DecoderSizes { layers: 2, width: 64, inner: 96, heads: 4, kv_heads: 2, shards: 1 };
    let (sizes, rows): (&[(&str, DecoderSizes)], &[usize]) = if driver.is_reference() {
        (&[("tiny", tiny)], &[16])
    } else {
        (&[("half-b", DecoderSizes::of_half_b()), ("8b-eighth", DecoderSizes::of_8b_eighth())], &[64, 512])
    };
    if !arguments.common.json {
        println!("{line}");
        println!(
            "{:<12} {:>5} {:<8} {:>10} {:>10} {:>10} {:>7}",
            "size", "rows", "breaks", "eager ms", "replay ms", "verify ms", "ratio"
        );
    }
    context.with_current(|| -> std::result::Result<(), Failure> {
        for (name, sizes) in sizes {
            let layers = Layers::new(&ops, &stream, *sizes, 1)?;
            for &rows in rows {
                let setup = Setup::new(&layers, product, &ops, &stream, rows)?;
                for (breaks, kind) in [("live", BreakKind::Live), ("patched", BreakKind::Patched)] {
                    let [eager, replay, verify, ratio] = setup.measure(kind, arguments.rounds)?;
                    if arguments.common.json {
                        println!(
                            "{{\"size\":\"{name}\",\"rows\":{rows},\"breaks\":\"{breaks}\",\"eager_ms\":{eager:.3},\"replay_ms\":{replay:.3},\
                             \"verify_ms\":{verify:.3},\"ratio\":{ratio:.3}}}"
                        );
                    } else {
                        println!("{name:<12} {rows:>5} {breaks:<8} {eager:>10.3} {replay:>10.3} {verify:>10.3} {ratio:>7.3}");
                    }
                }
            }
        }
        Ok(())
    })?
}

/// The layers, and two batches.
struct Setup<'m> {
    layers: &'m Layers,
    product: &'m dyn Product,
    pool: CapturePool,
    stream: Stream,
    input: Tensor,
    data: [Tensor; 2],
    batches: [DecoderBatch; 2],
}

impl<'m> Setup<'m> {
    fn new(
        layers: &'m Layers,
        product: &'m dyn Product,
        ops: &DecoderOps,
        stream: &Stream,
        rows: usize,
    ) -> Result<Setup<'m>> {
        let context = stream.context();
        let tensor = || Tensor::allocate(context, DType::BF16, &[rows, layers.sizes().width]);
        let (input, data) = (tensor()?, [tensor()?, tensor()?]);
        for (seed, data) in data.iter().enumerate() {
            ops.random_into(stream, 2 + seed as u64, 0.0, 3.0_f32.sqrt(), data)?;
        }
        input.copy_from(stream, &data[0])?;
        let batch = |middle: usize| -> Result<DecoderBatch> {
            let offsets = [0, middle as i32, rows as i32];
            Ok(DecoderBatch { offsets: Tensor::from_slice(stream, &offsets, &[3])? })
        };
        let batches = [batch(rows / 2)?, batch(rows / 4)?];
        Ok(Setup { layers, product, pool: CapturePool::new(context)?, stream: stream.clone(), input, data, batches })
    }

    fn forward(&self, scope: &Scope<'_, 'm>, kind: BreakKind) -> Result<Tensor> {
        self.layers.forward(scope, &self.input, self.product, kind)
    }

    /// Fills a batch in and runs with it.
    fn with<T>(&self, batch: usize, run: impl FnOnce() -> Result<T>) -> Result<T> {
        self.input.copy_from(&self.stream, &self.data[batch])?;
        active_forward(&self.batches[batch], run)
    }

    /// Medians in milliseconds of an eager run, a replay, a verification, and the last over one eager run and two replays.
    fn measure(&self, kind: BreakKind, rounds: u32) -> Result<[f64; 4]> {
        let stream = &self.stream;
        // What products load with a first call of their shapes is loaded now and not in a capture.
        let run_eagerly = || self.with(0, || eager(&self.pool, stream, |scope| self.forward(scope, kind)));
        drop(run_eagerly()?);
        stream.synchronize()?;
        let mut capture = BreakableCapture::new(&self.pool)?;
        let output = self.with(0, || capture.record(stream, |scope| self.forward(scope, kind)))?;
        let options = VerifyOptions::new().input("x", &self.input).output("hidden", &output);
        let timed = |work: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
            stream.synchronize()?;
            let start = Instant::now();
            work()?;
            stream.synchronize()?;
            Ok(start.elapsed().as_secs_f64() * 1e3)
        };
        let mut times = [const { Vec::new() }; 4];
        for round in 0..=rounds {
            let eager = timed(&mut || run_eagerly().map(drop))?;
            let mut replay = || timed(&mut || self.with(1, || capture.replay(stream).map(drop)));
            let replays = [replay()?, replay()?];
            let verify = timed(&mut || {
                let batch = |batch: usize, run: &mut dyn FnMut() -> Result<()>| self.with(batch, run);
                capture.verify(stream, &options, batch, |scope| Ok(vec![self.forward(scope, kind)?])).map(drop)
            })?;
            if round > 0 {
                let ratio = verify / (eager + replays[0] + replays[1]);
                for (times, time) in times.iter_mut().zip([eager, replays[0], verify, ratio]) {
                    times.push(time);
                }
            }
        }
        Ok(times.map(|mut times| quartiles(&mut times)[1]))
    }
}
