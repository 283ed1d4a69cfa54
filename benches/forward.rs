//! A decoder's layers at real sizes, with attention as a break: run eagerly, replayed with live and with patched breaks, with patched
//! breaks of which every launch changes from one replay to the next, and frozen in one graph.
//!
//! Products are cuBLAS's where it is found (the variable BCG_CUBLAS names its file or folder), the decoder's own kernel otherwise. Before anything is
//! measured the arms' outputs are compared with eager's bit for bit, for two batches; a difference is an error.
//!
//! `cargo bench --bench forward [-- --json] [--size 8b] [--rows 16,256]`

#[path = "../examples/support/blas.rs"]
mod blas;
#[path = "support/common.rs"]
mod common;
#[path = "support/forward_report.rs"]
mod report;
#[path = "../examples/support/mod.rs"]
mod support;

use blas::Blas;
use breakable_cuda_graph::driver::{Event, EventFlags, GraphExec, Stream};
use breakable_cuda_graph::sys::{CUgraphExec, CUresult, CUstream, Call, CallError};
use breakable_cuda_graph::{
    BreakKind, BreakableCapture, CaptureOptions, CapturePool, DType, Error, Result, Tensor, active_forward, eager,
};
use clap::Parser;
use common::Common;
use report::{ARMS, Measured, Report, Way};
use std::time::{Duration, Instant};
use support::demo::{DecoderBatch, DecoderOps, DecoderSizes, Layers, Product};

type Failure = Box<dyn std::error::Error>;

/// Compares the ways to run a decoder's layers.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Sizes of the decoder; all but `tiny` where there is a GPU, and `tiny` otherwise.
    #[arg(long, value_enum)]
    size: Vec<Size>,
    /// Rows of a batch; 16, 64, 256, 1024 and 2048 where there is a GPU, and 16 and 64 otherwise.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    rows: Vec<u32>,
    /// Interleaved blocks of each arm; without it as many as take a few seconds for a size and number of rows.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: Option<u32>,
    /// Compare the outputs and measure nothing.
    #[arg(long)]
    check: bool,
    /// Use the decoder's own kernel for products even where cuBLAS is found.
    #[arg(long)]
    no_cublas: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Size {
    /// 2 layers, 64 wide.
    Tiny,
    /// Half a billion parameters: 24 layers, 896 wide.
    HalfB,
    /// 8 billion, as one of eight devices has it.
    #[value(name = "8b-eighth")]
    Of8bEighth,
    /// 8 billion: 32 layers, 4096 wide.
    #[value(name = "8b")]
    Of8b,
    /// 70 billion, as one of eight devices has it: 80 layers, 8192 wide.
    #[value(name = "70b-eighth")]
    Of70bEighth,
}

impl Size {
    fn sizes(self) -> DecoderSizes {
        match self {
            Size::Tiny => DecoderSizes { layers: 2, width: 64, inner: 96, heads: 4, kv_heads: 2, shards: 1 },
            Size::HalfB => DecoderSizes::of_half_b(),
            Size::Of8bEighth => DecoderSizes::of_8b_eighth(),
            Size::Of8b => DecoderSizes::of_8b(),
            Size::Of70bEighth => DecoderSizes::of_70b_eighth(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Size::Tiny => "tiny",
            Size::HalfB => "half-b",
            Size::Of8bEighth => "8b-eighth",
            Size::Of8b => "8b",
            Size::Of70bEighth => "70b-eighth",
        }
    }
}

impl Product for Blas {
    fn product(&self, stream: &Stream, x: &Tensor, w: &Tensor, accumulate: bool, y: &Tensor) -> Result<()> {
        Ok(self.product_bf16(stream, x, w, accumulate, y)?)
    }
}

/// The longest sequence of a batch.
const LONGEST: usize = 256;
/// Replays between two events.
const BACK_TO_BACK: usize = 10;

fn main() -> std::result::Result<(), Failure> {
    let mut arguments = Arguments::parse();
    let (driver, line) = support::driver(arguments.common.driver)?;
    let (sizes, rows): (&[Size], &[u32]) = if driver.is_reference() {
        (&[Size::Tiny], &[16, 64])
    } else {
        (&[Size::HalfB, Size::Of8bEighth, Size::Of8b, Size::Of70bEighth], &[16, 64, 256, 1024, 2048])
    };
    if arguments.size.is_empty() {
        arguments.size = sizes.to_vec();
    }
    if arguments.rows.is_empty() {
        arguments.rows = rows.to_vec();
    }
    let context = support::context(&driver, 0)?;
    let stream = Stream::new(&context)?;
    let ops = DecoderOps::load(&context)?;
    let use_blas = !driver.is_reference() && !arguments.no_cublas;
    let blas = if use_blas { Blas::load(&context, false)? } else { None };
    let (product, products): (&dyn Product, &str) = match &blas {
        Some(blas) => (blas, blas.name()),
        None => (&ops, "the decoder's kernel"),
    };
    if !arguments.common.json {
        println!("{line}");
        println!("products: {products}");
    }
    let report = Report { json: arguments.common.json, driver: driver.origin().to_string(), products };
    // Current all the time, as in an engine's launch thread.
    context.with_current(|| -> std::result::Result<(), Failure> {
        for &size in &arguments.size {
            let layers = Layers::new(&ops, &stream, size.sizes(), 1)?;
            report.begin(size.name(), size.sizes());
            for &rows in &arguments.rows {
                let setup = Setup::new(&layers, product, &ops, &stream, rows as usize)?;
                let mut arms = setup.arms()?;
                setup.compare(&mut arms)?;
                let measured = if arguments.check { None } else { Some(setup.measure(&mut arms, arguments.blocks)?) };
                report.rows(size.name(), size.sizes(), rows, measured.as_ref());
            }
        }
        Ok(())
    })?
}

/// The layers, and the batch that they run on.
struct Setup<'m> {
    layers: &'m Layers,
    product: &'m dyn Product,
    pool: CapturePool,
    stream: Stream,
    x: Tensor,
    /// Of the same sequences, but that the second has an empty one more.
    batches: [DecoderBatch; 2],
}

/// One way to run them.
enum Arm<'m> {
    Eager,
    /// `changing`: the batch is the other one on every other run.
    Captured {
        capture: Box<BreakableCapture<'m>>,
        output: Tensor,
        changing: bool,
        odd: bool,
    },
    /// Launches the execs of a capture, which lives as long, by `cuGraphLaunch` alone.
    Bare {
        launch: GraphLaunch,
        execs: Vec<CUgraphExec>,
        output: Tensor,
    },
}

type GraphLaunch = unsafe extern "C" fn(CUgraphExec, CUstream) -> CUresult;

impl<'m> Arm<'m> {
    /// The driver calls of a capture's replay.
    fn bare(of: Option<&Arm<'m>>, stream: &Stream) -> Result<Arm<'m>> {
        let (Some(Arm::Captured { capture, output, .. }), Some(launch)) =
            (of, stream.context().driver().table().cuGraphLaunch)
        else {
            return Err(Error::user("bare calls need a capture before them, and a driver with cuGraphLaunch"));
        };
        Ok(Arm::Bare { launch, execs: capture.execs().map(GraphExec::as_raw).collect(), output: output.clone() })
    }
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
        let x = Tensor::allocate(context, DType::BF16, &[rows, layers.sizes().width])?;
        // Of variance 1.
        ops.random_into(stream, 2, 0.0, 3.0_f32.sqrt(), &x)?;
        let batch = |offsets: &[i32]| -> Result<DecoderBatch> {
            Ok(DecoderBatch { offsets: Tensor::from_slice(stream, offsets, &[offsets.len()])? })
        };
        let offsets = equal_lengths(rows);
        let batches = [batch(&offsets)?, batch(&one_more(&offsets))?];
        Ok(Setup { layers, product, pool: CapturePool::new(context)?, stream: stream.clone(), x, batches })
    }

    fn arms(&self) -> Result<Vec<Arm<'m>>> {
        // What products load with a first call of their shapes is loaded now and not in a capture.
        let mut arms = vec![Arm::Eager];
        drop(self.run(&mut arms[0])?);
        self.stream.synchronize()?;
        for (_, way) in &ARMS[1..] {
            let (kind, changing) = match way {
                Way::Eager => continue,
                Way::Capture(kind) => (*kind, false),
                Way::Changed(kind) => (*kind, true),
                Way::Bare => {
                    arms.push(Arm::bare(arms.last(), &self.stream)?);
                    continue;
                }
            };
            let mut options = CaptureOptions::default();
            // The frozen graph is the driver's own, as a plain capture gives it.
            options.graph.memset_as_kernel = kind != BreakKind::Inline;
            let mut capture = BreakableCapture::with_options(&self.pool, options)?;
            let (layers, product) = (self.layers, self.product);
            let output = active_forward(&self.batches[0], || {
                capture.record(&self.stream, |scope| layers.forward(scope, &self.x, product, kind))
            })?;
            arms.push(Arm::Captured { capture: Box::new(capture), output, changing, odd: false });
        }
        Ok(arms)
    }

    /// Runs the forward once, and returns its output, which is another arm's memory from that one's run on.
    fn run(&self, arm: &mut Arm<'m>) -> Result<Tensor> {
        let batch = match arm {
            Arm::Captured { changing: true, odd, .. } => {
                *odd = !*odd;
                &self.batches[usize::from(*odd)]
            }
            _ => &self.batches[0],
        };
        active_forward(batch, || match arm {
            Arm::Eager => eager(&self.pool, &self.stream, |scope| {
                self.layers.forward(scope, &self.x, self.product, BreakKind::Live)
            }),
            Arm::Captured { capture, output, .. } => {
                let _ = capture.replay(&self.stream)?;
                Ok(output.clone())
            }
            Arm::Bare { launch, execs, output } => {
                for &exec in &*execs {
                    // SAFETY: a live exec of a live capture, whose pool's memory is there.
                    let code = unsafe { launch(exec, self.stream.as_raw()) };
                    if code != CUresult::CUDA_SUCCESS {
                        return Err(CallError::Failed { call: Call::cuGraphLaunch, code }.into());
                    }
                }
                Ok(output.clone())
            }
        })
    }

    /// Compares each arm's output with eager's, for two batches of as many sequences, and for each of them twice, as one arm changes in between.
    fn compare(&self, arms: &mut [Arm<'m>]) -> std::result::Result<(), Failure> {
        let rows = self.x.rows();
        for offsets in [shorter(rows), equal_lengths(rows)] {
            self.batches[0].offsets.write(&self.stream, &offsets)?;
            self.batches[1].offsets.write(&self.stream, &one_more(&offsets))?;
            // The rows after the last sequence are undefined.
            let valid = offsets.last().map_or(0, |&end| end as usize);
            let expected = self.bits(&mut arms[0], valid)?;
            if expected.iter().any(|bits| bits & 0x7f80 == 0x7f80) {
                return Err(format!("{rows} rows, offsets {offsets:?}: values that are not finite").into());
            }
            for (arm, (name, _)) in (0..2).flat_map(|_| 0..ARMS.len()).map(|at| (at, ARMS[at])) {
                let got = self.bits(&mut arms[arm], valid)?;
                if let Some(at) = got.iter().zip(&expected).position(|(got, expected)| got != expected) {
                    let row = at / self.layers.sizes().width;
                    return Err(
                        format!("{rows} rows, offsets {offsets:?}: {name} differs from eager in row {row}").into()
                    );
                }
            }
        }
        Ok(())
    }

    /// What a run gives in the valid rows.
    fn bits(&self, arm: &mut Arm<'m>, valid: usize) -> Result<Vec<u16>> {
        let output = self.run(arm)?.leading_rows(valid);
        let mut bytes = vec![0; output.elements() * 2];
        // SAFETY: leading rows of a contiguous tensor, of as many bytes.
        unsafe { self.stream.copy_device_to_host(&mut bytes, output.address())? };
        Ok(bytes.chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect())
    }

    fn measure(&self, arms: &mut [Arm<'m>], blocks: Option<u32>) -> Result<Measured> {
        const EACH: Duration = Duration::from_secs(3);
        let start = Instant::now();
        drop(self.run(&mut arms[0])?);
        self.stream.synchronize()?;
        let one = start.elapsed().as_secs_f64().max(1e-6);
        let fitting = |runs: usize| (EACH.as_secs_f64() / one / (ARMS.len() * runs) as f64) as usize;
        let (single, many) = match blocks {
            Some(blocks) => (blocks as usize, (blocks as usize).div_ceil(4)),
            None => (fitting(1).clamp(8, 200), fitting(BACK_TO_BACK).clamp(3, 30)),
        };
        let mut measured = Measured { blocks: single, ..Measured::default() };
        for block in 0..single {
            for arm in turns(block) {
                self.stream.synchronize()?;
                let start = Instant::now();
                let output = self.run(&mut arms[arm])?;
                let host = start.elapsed();
                self.stream.synchronize()?;
                measured.latency[arm].push(micros(start.elapsed()));
                measured.host[arm].push(micros(host));
                drop(output);
            }
        }
        let event = || Event::with_flags(self.stream.context(), EventFlags::TIMING);
        let (from, to) = (event()?, event()?);
        for block in 0..many {
            for arm in turns(block) {
                self.stream.synchronize()?;
                from.record(&self.stream)?;
                for _ in 0..BACK_TO_BACK {
                    drop(self.run(&mut arms[arm])?);
                }
                to.record(&self.stream)?;
                to.synchronize()?;
                measured.back_to_back[arm].push(micros(to.elapsed_since(&from)?) / BACK_TO_BACK as f64);
            }
        }
        Ok(measured)
    }
}

/// The arms in the order of a block: another goes first each time, so that none always finds the machine as another left it.
fn turns(block: usize) -> impl Iterator<Item = usize> {
    (0..ARMS.len()).map(move |turn| (turn + block) % ARMS.len())
}

/// Offsets of as few sequences as there can be, of equal lengths.
fn equal_lengths(rows: usize) -> Vec<i32> {
    let sequences = rows.div_ceil(LONGEST).max(1);
    (0..=sequences).map(|sequence| (sequence * rows / sequences) as i32).collect()
}

/// As many, of which the first is shorter, so that the others begin earlier and the last rows are no one's.
fn shorter(rows: usize) -> Vec<i32> {
    let mut offsets = equal_lengths(rows);
    let by = (offsets[1] / 4).max(1);
    offsets[1..].iter_mut().for_each(|offset| *offset -= by);
    offsets
}

/// The same sequences, and an empty one.
fn one_more(offsets: &[i32]) -> Vec<i32> {
    offsets.iter().chain(offsets.last()).copied().collect()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
