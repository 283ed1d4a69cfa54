//! The program of the benches `replay`, `capture` and `soak`: segments of small kernels with breaks of a few kernels between them.

use super::support::demo::Ops;
use breakable_cuda_graph::driver::{Context, Kernel, LaunchConfig, Stream};
use breakable_cuda_graph::{
    Break, BreakKind, BreakOptions, BreakableCapture, CaptureOptions, CapturePool, Error, Misuse, Result, Tensor,
    break_here, eager,
};
use core::ffi::c_void;

/// How large it is.
#[derive(Clone, Copy, clap::Args)]
pub struct Shape {
    /// Segments.
    #[arg(long, default_value_t = 33)]
    pub segments: usize,
    /// Kernels of a segment.
    #[arg(long, default_value_t = 8)]
    pub kernels: usize,
    /// Kernels of a break.
    #[arg(long, default_value_t = 2)]
    pub break_kernels: usize,
    /// Elements of every tensor: with the default, kernels of well under a microsecond.
    #[arg(long, default_value_t = 1024)]
    pub elements: usize,
}

impl Shape {
    pub fn breaks(&self) -> usize {
        self.segments.saturating_sub(1)
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shape { segments, kernels, break_kernels, .. } = self;
        write!(f, "{segments} segments of {kernels} kernels, {} breaks of {break_kernels} kernels", self.breaks())
    }
}

/// How the breaks launch their kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "each bench has its own choice")]
pub enum Launches {
    /// With arguments that were laid out once, as an engine does that has its own launches.
    Prepared,
    /// The same, with another argument on every replay, so that each node changes.
    Changing,
    /// The same, with another grid on every replay.
    Regridded,
    /// As prepared, but behind the crate's back, as a library does: bodies of such launches are captured.
    Foreign,
    /// The same, with another argument on every replay.
    ForeignChanging,
    /// By operations that check shapes and places on every launch.
    Checked,
}

/// What captures of the program are made with.
pub struct Program {
    pub context: Context,
    pub stream: Stream,
    pub pool: CapturePool,
    pub ops: Ops,
    input: Tensor,
    pub shape: Shape,
}

impl Program {
    pub fn new(context: &Context, shape: Shape) -> Result<Program> {
        let (stream, pool, ops) = (Stream::new(context)?, CapturePool::new(context)?, Ops::load(context)?);
        let input = Tensor::from_slice(&stream, &vec![1.0_f32; shape.elements], &[shape.elements])?;
        let program = Program { context: context.clone(), stream, pool, ops, input, shape };
        eager(&program.pool, &program.stream, |_| program.forward(BreakKind::Live, Launches::Prepared))?;
        Ok(program)
    }

    /// A capture that has been replayed once, with the right result. Inline breaks are captured: one graph, in which nothing is live.
    pub fn capture(
        &self,
        kind: BreakKind,
        launches: Launches,
        options: CaptureOptions,
    ) -> Result<BreakableCapture<'static>> {
        let mut capture = BreakableCapture::with_options(&self.pool, options)?;
        let output = capture.record(&self.stream, |_| self.forward(kind, launches))?;
        let _ = capture.replay(&self.stream)?;
        let result: Vec<f32> = output.read(&self.stream)?;
        assert!(result.iter().all(|&value| value == 1.0), "the replay's result");
        Ok(capture)
    }

    fn forward(&self, kind: BreakKind, launches: Launches) -> Result<Tensor> {
        let mut h = self.input.clone();
        for segment in 0..self.shape.segments {
            for _ in 0..self.shape.kernels {
                h = self.ops.scale(&h, 1.0)?;
            }
            if segment < self.shape.breaks() {
                // Breaks without kernels leave what they get.
                let handoff = if self.shape.break_kernels == 0 { h.clone() } else { self.ops.empty_like(&h)? };
                let prepared = self.ops.scale_raw(&h, 1.0, &handoff)?;
                let operation = operation(self.ops.clone(), prepared, self.shape.break_kernels, launches);
                h = break_here(BreakOptions::new("attention").kind(kind), handoff, [&h], operation)?;
            }
        }
        Ok(h)
    }
}

fn operation(
    ops: Ops,
    (kernel, mut config, mut values): (Kernel, LaunchConfig, [u64; 4]),
    kernels: usize,
    launches: Launches,
) -> impl FnMut(&Break<'_>) -> Result<Tensor> + Send + 'static {
    let (elements, blocks) = (values[3], config.grid[0]);
    let mut odd = false;
    move |b| {
        odd = !odd;
        let handoff = b.output(0).ok_or_else(|| Error::Misuse(Misuse::NoForward))?;
        match launches {
            // What the last element is scaled to is what it is already.
            Launches::Changing | Launches::ForeignChanging => values[3] = elements - u64::from(odd),
            // A block more or less: each thread does as much as there is to do.
            Launches::Regridded => config.grid[0] = blocks + u32::from(odd),
            Launches::Prepared | Launches::Foreign | Launches::Checked => {}
        }
        for _ in 0..kernels {
            let mut pointers = pointers_to(&values);
            match launches {
                Launches::Checked => ops.scale_into(b.stream(), b.input(0)?, 1.0, &handoff)?,
                Launches::Foreign | Launches::ForeignChanging => {
                    // SAFETY: as below; the context is current in a break.
                    unsafe { launch_foreign(&kernel, b.stream(), config, &mut pointers)? };
                }
                Launches::Prepared | Launches::Changing | Launches::Regridded => {
                    // SAFETY: the kernel's own parameters: the break's input and handoff, at the addresses that they have on every replay.
                    unsafe { kernel.launch_raw(b.stream(), config, &mut pointers)? };
                }
            }
        }
        Ok(handoff)
    }
}

/// A launch that the crate doesn't see.
///
/// # Safety
/// The kernel's own parameters, the context current, and what they refer to outlives the launch.
unsafe fn launch_foreign(
    kernel: &Kernel,
    stream: &Stream,
    LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, .. }: LaunchConfig,
    pointers: &mut [*mut c_void; 4],
) -> Result<()> {
    let (function, driver, none) = (kernel.as_raw(), stream.context().driver(), core::ptr::null_mut());
    let pointers = pointers.as_mut_ptr();
    // SAFETY: the caller vouches for it.
    unsafe {
        driver.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared_bytes, stream.as_raw(), pointers, none)?;
    }
    Ok(())
}

pub fn pointers_to(values: &[u64; 4]) -> [*mut c_void; 4] {
    values.each_ref().map(|value| core::ptr::from_ref(value).cast_mut().cast())
}
