//! Host time of a replay beside a bare loop of the same driver calls on the same execs.
//!
//! The program: 33 segments of 8 small kernels with 32 breaks of 2 kernels between them; each break writes its handoff itself. The bare loop
//! launches the very same execs and kernels through the driver's table, with the context current and nothing checked but the codes.
//!
//! `cargo bench --bench replay [-- --json]`

#[path = "support/shape.rs"]
mod shape;
#[path = "../examples/support/mod.rs"]
mod support;

use breakable_cuda_graph::demo::Ops;
use breakable_cuda_graph::driver::{Context, Event, EventFlags, Kernel, LaunchConfig, Stream};
use breakable_cuda_graph::sys::CUresult;
use breakable_cuda_graph::{
    Break, BreakKind, BreakOptions, BreakableCapture, CapturePool, DType, Error, Result, Tensor, break_here, eager,
};
use clap::Parser;
use core::ffi::c_void;
use shape::Shape;
use std::time::Instant;

/// Compares replay with a bare loop of the same driver calls.
#[derive(Parser)]
struct Arguments {
    /// Print one JSON object a row instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    shape: Shape,
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

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let (driver, line) = support::driver(arguments.driver)?;
    if !arguments.json {
        println!("{line}");
    }
    let context = support::context(&driver, 0)?;
    let stream = Stream::new(&context)?;
    let pool = CapturePool::new(&context)?;
    let ops = Ops::load(&context)?;
    let input = Tensor::from_slice(&stream, &vec![1.0_f32; arguments.shape.elements], &[arguments.shape.elements])?;

    let mut captures = Vec::new();
    for (_, kind, checked) in CAPTURES {
        captures.push(capture_program(&pool, &stream, &ops, &input, &arguments, kind, checked)?);
    }
    let execs: Vec<_> = captures[0].execs().map(|exec| exec.as_raw()).collect();
    let bare = Bare::new(&ops, &stream, &arguments)?;
    let raw_stream = stream.as_raw();
    let table = driver.table();
    let (launch, graph_launch) =
        (table.cuLaunchKernel.ok_or("cuLaunchKernel")?, table.cuGraphLaunch.ok_or("cuGraphLaunch")?);
    let mut times: [Vec<f64>; ARMS] = Default::default();
    context.with_current(|| -> std::result::Result<(), Box<dyn std::error::Error>> {
        for block in 0..arguments.blocks + 10 {
            let mut block_times = [0.0; ARMS];
            // The arm that goes first alternates, so that none always finds the machine as another left it.
            for turn in 0..ARMS {
                let arm = (turn + block) % ARMS;
                for _ in 0..arguments.replays {
                    stream.synchronize()?;
                    let start = Instant::now();
                    if let Some(capture) = captures.get_mut(arm) {
                        let _ = capture.replay(&stream)?;
                    } else {
                        for (at, &exec) in execs.iter().enumerate() {
                            // SAFETY: a live exec of a live capture.
                            check(unsafe { graph_launch(exec, raw_stream) })?;
                            if at + 1 < execs.len() {
                                for _ in 0..arguments.shape.break_kernels {
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

    // Back to back, between two events: the longer of the device's time and the host's.
    let device = captures
        .iter_mut()
        .map(|capture| device_time(&context, &stream, capture, arguments.blocks / 10 + 1))
        .collect::<Result<Vec<_>>>()?;
    let ratios: Vec<[f64; 3]> = times
        .iter()
        .map(|arm| quartiles(&mut arm.iter().zip(&times[BARE]).map(|(arm, bare)| arm / bare).collect::<Vec<_>>()))
        .collect();
    let times = times.map(|mut arm| quartiles(&mut arm));
    if !arguments.json {
        let Arguments { shape, blocks, replays, .. } = &arguments;
        println!("{shape}; {blocks} interleaved blocks of {replays} replays");
        println!(
            "{:<24} {:>8} {:>18} {:>10} {:>18} {:>13}",
            "arm", "host µs", "quartiles", "over bare", "quartiles", "back to back"
        );
    }
    let names = CAPTURES.iter().map(|(name, ..)| *name).chain(["bare loop"]);
    let device = device.into_iter().map(Some).chain([None]);
    for (((arm, [low, median, high]), [ratio_low, ratio, ratio_high]), device) in
        names.zip(times).zip(ratios).zip(device)
    {
        if arguments.json {
            let row = serde_json::json!({
                "bench": "replay", "arm": arm, "driver": driver.origin().to_string(), "segments": arguments.shape.segments,
                "kernels": arguments.shape.kernels, "break_kernels": arguments.shape.break_kernels, "blocks": arguments.blocks,
                "host_us_median": median, "host_us_quartiles": [low, high],
                "over_bare_median": ratio, "over_bare_quartiles": [ratio_low, ratio_high],
                "elements": arguments.shape.elements, "back_to_back_us": device,
            });
            println!("{row}");
        } else {
            let (spread, ratio_spread) =
                (format!("{low:.1} to {high:.1}"), format!("{ratio_low:.4} to {ratio_high:.4}"));
            let device = device.map_or_else(String::new, |device| format!("{device:.1}"));
            println!("{arm:<24} {median:>8.2} {spread:>18} {ratio:>10.4} {ratio_spread:>18} {device:>13}");
        }
    }
    Ok(())
}

/// What is captured and compared with the bare loop: its name, what its breaks are, and whether their operations check what they are given.
const CAPTURES: [(&str, BreakKind, bool); 5] = [
    ("live", BreakKind::Live, false),
    ("live, checked launches", BreakKind::Live, true),
    ("recorded", BreakKind::Recorded, false),
    ("recorded, checked", BreakKind::Recorded, true),
    ("one frozen graph", BreakKind::Inline, false),
];
const BARE: usize = CAPTURES.len();
const ARMS: usize = BARE + 1;

/// Microseconds of one replay among many.
fn device_time(context: &Context, stream: &Stream, capture: &mut BreakableCapture<'_>, rounds: usize) -> Result<f64> {
    const REPLAYS: usize = 20;
    let event = || Event::with_flags(context, EventFlags::TIMING);
    let (from, to) = (event()?, event()?);
    let mut times = Vec::new();
    for _ in 0..rounds {
        stream.synchronize()?;
        from.record(stream)?;
        for _ in 0..REPLAYS {
            let _ = capture.replay(stream)?;
        }
        to.record(stream)?;
        to.synchronize()?;
        times.push(to.elapsed_since(&from)?.as_secs_f64() * 1e6 / REPLAYS as f64);
    }
    Ok(quartiles(&mut times)[1])
}

/// Captures the program. In the breaks, kernels are launched with arguments that were laid out once, as an engine does that has its own
/// launches; or, `checked`, by operations that check shapes and places on every launch. Inline breaks are captured: one graph, in which nothing is live.
fn capture_program(
    pool: &CapturePool,
    stream: &Stream,
    ops: &Ops,
    input: &Tensor,
    arguments: &Arguments,
    kind: BreakKind,
    checked: bool,
) -> Result<BreakableCapture<'static>> {
    let forward = || -> Result<Tensor> {
        let mut h = input.clone();
        for segment in 0..arguments.shape.segments {
            for _ in 0..arguments.shape.kernels {
                h = ops.scale(&h, 1.0)?;
            }
            if segment + 1 < arguments.shape.segments {
                let handoff = ops.empty_like(&h)?;
                let prepared = ops.scale_raw(&h, 1.0, &handoff)?;
                h = break_here(
                    BreakOptions::new("attention").kind(kind),
                    handoff,
                    [&h],
                    break_operation(ops.clone(), prepared, arguments.shape.break_kernels, checked),
                )?;
            }
        }
        Ok(h)
    };
    eager(pool, stream, |_| forward())?;
    let mut capture = BreakableCapture::on_pool(pool)?;
    let output = capture.record(stream, |_| forward())?;
    let _ = capture.replay(stream)?;
    let result: Vec<f32> = output.read(stream)?;
    assert!(result.iter().all(|&value| value == 1.0), "the replay's result");
    Ok(capture)
}

fn break_operation(
    ops: Ops,
    (kernel, config, values): (Kernel, LaunchConfig, [u64; 4]),
    kernels: usize,
    checked: bool,
) -> impl FnMut(&Break<'_>) -> Result<Tensor> + Send + 'static {
    move |b| {
        let handoff = b.output(0).ok_or(Error::NoForward)?;
        for _ in 0..kernels {
            if checked {
                ops.scale_into(b.stream(), b.input(0)?, 1.0, &handoff)?;
            } else {
                let mut pointers = pointers_to(&values);
                // SAFETY: the kernel's own parameters: the break's input and handoff, at the addresses that they have on every replay.
                unsafe { kernel.launch_raw(b.stream(), config, &mut pointers)? };
            }
        }
        Ok(handoff)
    }
}

fn pointers_to(values: &[u64; 4]) -> [*mut c_void; 4] {
    values.each_ref().map(|value| core::ptr::from_ref(value).cast_mut().cast())
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
    fn new(ops: &Ops, stream: &Stream, arguments: &Arguments) -> Result<Bare> {
        let buffers = [
            Tensor::zeros(stream, DType::F32, &[arguments.shape.elements])?,
            Tensor::zeros(stream, DType::F32, &[arguments.shape.elements])?,
        ];
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
        let mut pointers = pointers_to(&self.values);
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
