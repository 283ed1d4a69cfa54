//! Host time of a replay beside a bare loop of the same driver calls on the same execs.
//!
//! The program: 33 segments of 8 small kernels with 32 breaks of 2 kernels between them; each break writes its handoff itself. The bare loop
//! launches the very same execs and kernels through the driver's table, with the context current and nothing checked but the codes.
//!
//! `cargo bench --bench replay [-- --json]`

#[path = "../examples/support/mod.rs"]
mod support;

use breakable_cuda_graph::demo::Ops;
use breakable_cuda_graph::driver::{LaunchConfig, Stream};
use breakable_cuda_graph::sys::CUresult;
use breakable_cuda_graph::{BreakableCapture, CapturePool, DType, Result, Tensor, eager};
use clap::Parser;
use core::ffi::c_void;
use std::time::Instant;

/// Compares replay with a bare loop of the same driver calls.
#[derive(Parser)]
struct Arguments {
    /// Print one JSON object a row instead of a table.
    #[arg(long)]
    json: bool,
    /// Segments.
    #[arg(long, default_value_t = 33)]
    segments: usize,
    /// Kernels of a segment.
    #[arg(long, default_value_t = 8)]
    kernels: usize,
    /// Kernels of a break.
    #[arg(long, default_value_t = 2)]
    break_kernels: usize,
    /// Interleaved blocks of each arm.
    #[arg(long, default_value_t = 200)]
    blocks: usize,
    /// Replays in a block.
    #[arg(long, default_value_t = 10)]
    replays: usize,
    /// Which driver to use.
    #[arg(long, value_enum, default_value_t)]
    driver: support::Choice,
    /// What `cargo bench` passes on.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The elements of every tensor: kernels of well under a microsecond.
const ELEMENTS: usize = 1024;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let (driver, line) = support::driver(arguments.driver)?;
    if !arguments.json {
        println!("{line}");
    }
    let context = support::context(&driver)?;
    let stream = Stream::new(&context)?;
    let pool = CapturePool::new(&context)?;
    let ops = Ops::load(&context)?;
    let input = Tensor::from_slice(&stream, &[1.0_f32; ELEMENTS], &[ELEMENTS])?;

    let forward = |x: &Tensor| -> Result<Tensor> {
        let mut h = x.clone();
        for segment in 0..arguments.segments {
            for _ in 0..arguments.kernels {
                h = ops.scale(&h, 1.0)?;
            }
            if segment + 1 < arguments.segments {
                let (ops, kernels) = (ops.clone(), arguments.break_kernels);
                let handoff = ops.empty_like(&h)?;
                h = breakable_cuda_graph::break_here("attention", handoff, [&h], move |b| {
                    let (from, to) = (b.input(0)?, b.output(0).ok_or(breakable_cuda_graph::Error::NoForward)?);
                    for _ in 0..kernels {
                        ops.scale_into(b.stream(), from, 1.0, &to)?;
                    }
                    Ok(to)
                })?;
            }
        }
        Ok(h)
    };
    eager(&pool, &stream, |_| forward(&input))?;
    let mut capture = BreakableCapture::on_pool(&pool)?;
    let output = capture.record(&stream, |_| forward(&input))?;
    let _ = capture.replay(&stream)?;
    let result: Vec<f32> = output.read(&stream)?;
    assert!(result.iter().all(|&value| value == 1.0), "the replay's result");

    let execs: Vec<_> = capture.execs().map(|exec| exec.as_raw()).collect();
    let bare = Bare::new(&ops, &stream, &arguments)?;
    let raw_stream = stream.as_raw();
    let table = driver.table();
    let (launch, graph_launch) =
        (table.cuLaunchKernel.ok_or("cuLaunchKernel")?, table.cuGraphLaunch.ok_or("cuGraphLaunch")?);
    let mut times = [Vec::new(), Vec::new()];
    context.with_current(|| -> std::result::Result<(), Box<dyn std::error::Error>> {
        for block in 0..arguments.blocks + 10 {
            let mut block_times = [0.0; 2];
            // The arm that goes first alternates, so that neither always finds the queue as the other left it.
            for arm in if block % 2 == 0 { [0, 1] } else { [1, 0] } {
                for _ in 0..arguments.replays {
                    stream.synchronize()?;
                    let start = Instant::now();
                    if arm == 0 {
                        let _ = capture.replay(&stream)?;
                    } else {
                        for (at, &exec) in execs.iter().enumerate() {
                            // SAFETY: a live exec of a live capture.
                            check(unsafe { graph_launch(exec, raw_stream) })?;
                            if at + 1 < execs.len() {
                                for _ in 0..arguments.break_kernels {
                                    // SAFETY: the kernel's own parameters, on live buffers.
                                    check(unsafe { bare.launch(launch) })?;
                                }
                            }
                        }
                    }
                    block_times[arm] += start.elapsed().as_secs_f64() * 1e6;
                }
            }
            if block >= 10 {
                for (times, time) in times.iter_mut().zip(block_times) {
                    times.push(time / arguments.replays as f64);
                }
            }
        }
        Ok(())
    })??;
    stream.synchronize()?;

    let mut ratios: Vec<f64> = times[0].iter().zip(&times[1]).map(|(replay, bare)| replay / bare).collect();
    let [replay, bare_loop] = times.map(|mut times| quartiles(&mut times));
    let ratio = quartiles(&mut ratios);
    if arguments.json {
        for (arm, [low, median, high]) in [("replay", replay), ("bare loop", bare_loop)] {
            let row = serde_json::json!({
                "bench": "replay", "arm": arm, "driver": driver.origin().to_string(), "segments": arguments.segments,
                "kernels": arguments.kernels, "break_kernels": arguments.break_kernels, "blocks": arguments.blocks,
                "host_us_median": median, "host_us_quartiles": [low, high],
                "ratio_median": if arm == "replay" { ratio[1] } else { 1.0 },
            });
            println!("{row}");
        }
    } else {
        println!(
            "{} segments of {} kernels, {} breaks of {} kernels; {} interleaved blocks of {} replays",
            arguments.segments,
            arguments.kernels,
            arguments.segments - 1,
            arguments.break_kernels,
            arguments.blocks,
            arguments.replays
        );
        println!("{:<10} {:>16} {:>22}", "arm", "host µs, median", "quartiles");
        for (arm, [low, median, high]) in [("replay", replay), ("bare loop", bare_loop)] {
            println!("{arm:<10} {median:>16.2} {:>22}", format!("{low:.2} to {high:.2}"));
        }
        println!(
            "replay / bare loop, median of blocks: {:.4} (quartiles {:.4} to {:.4})",
            ratio[1], ratio[0], ratio[2]
        );
    }
    Ok(())
}

/// The break's kernel with its parameters, ready to be launched without any of the crate.
struct Bare {
    function: breakable_cuda_graph::sys::CUfunction,
    stream: breakable_cuda_graph::sys::CUstream,
    config: LaunchConfig,
    /// What the parameters point to.
    values: Box<[u64; 4]>,
    _buffers: [Tensor; 2],
}

impl Bare {
    fn new(ops: &Ops, stream: &Stream, _arguments: &Arguments) -> Result<Bare> {
        let buffers =
            [Tensor::zeros(stream, DType::F32, &[ELEMENTS])?, Tensor::zeros(stream, DType::F32, &[ELEMENTS])?];
        let (kernel, config, values) = ops.scale_raw(&buffers[0], 1.0, &buffers[1])?;
        Ok(Bare {
            function: kernel.as_raw(),
            stream: stream.as_raw(),
            config,
            values: Box::new(values),
            _buffers: buffers,
        })
    }

    #[allow(clippy::type_complexity)]
    unsafe fn launch(
        &self,
        launch: unsafe extern "C" fn(
            breakable_cuda_graph::sys::CUfunction,
            u32,
            u32,
            u32,
            u32,
            u32,
            u32,
            u32,
            breakable_cuda_graph::sys::CUstream,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> CUresult,
    ) -> CUresult {
        let LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes } = self.config;
        let mut pointers: [*mut c_void; 4] = self.values.each_ref().map(|value| (&raw const *value).cast_mut().cast());
        // SAFETY: the caller vouches for the function; the pointers are to the kernel's parameters.
        unsafe {
            launch(
                self.function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared_bytes,
                self.stream,
                pointers.as_mut_ptr(),
                core::ptr::null_mut(),
            )
        }
    }
}

fn check(code: CUresult) -> std::result::Result<(), String> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("the driver returned {}", code.0)) }
}

/// Lower quartile, median and upper quartile.
fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}
