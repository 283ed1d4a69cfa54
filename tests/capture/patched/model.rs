//! A chain of layers whose breaks read live values: a factor, how many kernels to launch, and how much scratch to take.

use crate::support::{Rig, random_values};
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::{
    Break, BreakKind, BreakOptions, BreakableCapture, CaptureOptions, DType, Error, ReplayOptions, Result, Scope,
    Tensor, active_forward, eager,
};

pub const ROWS: usize = 12;
pub const WIDTH: usize = 20;

/// What breaks read.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    pub factor: f32,
    /// Kernels of each body.
    pub kernels: usize,
    /// Temporaries of each body.
    pub temporaries: usize,
    /// Blocks of each launch beyond those that there is work for.
    pub blocks: u32,
    /// A bit for each break whose body has a copy, which is not one of the launches that are compared as data: such a body is captured.
    pub copies: u32,
}

impl Live {
    pub fn new(factor: f32) -> Live {
        Live { factor, kernels: 2, temporaries: 1, blocks: 0, copies: 0 }
    }
}

/// `x` scaled by the live factor, through as many kernels and temporaries as asked for.
pub fn body(rig: &Rig, b: &Break<'_>) -> Result<Tensor> {
    let live = b.forward_ctx::<Live>()?;
    let mut h = b.input(0)?.clone();
    for kernel in 1..live.kernels {
        // Each temporary is read by the next kernel.
        let y = if kernel <= live.temporaries { b.empty(DType::F32, h.shape())? } else { h.clone() };
        scale(rig, b.stream(), &h, (1.0, live.blocks), &y)?;
        h = y;
    }
    let y = match b.output(0) {
        Some(handoff) => handoff,
        None => b.empty(DType::F32, h.shape())?,
    };
    let number: u32 = b.name().trim_start_matches("break ").parse().unwrap_or(0);
    if live.copies & (1 << number) != 0 {
        // SAFETY: two tensors of the same size, which are live whenever the break runs.
        unsafe { b.stream().copy_device_to_device(y.address(), h.address(), y.extent_bytes())? };
        h = y.clone();
    }
    scale(rig, b.stream(), &h, (live.factor, live.blocks), &y)?;
    Ok(y)
}

/// A launch in which each thread does as much as there is to do, so that further blocks change nothing but its grid.
fn scale(rig: &Rig, stream: &Stream, x: &Tensor, (factor, blocks): (f32, u32), y: &Tensor) -> Result<()> {
    let (kernel, mut config, values) = rig.ops.scale_raw(x, factor, y)?;
    config.grid[0] += blocks;
    let mut pointers = values.each_ref().map(|value| core::ptr::from_ref(value).cast_mut().cast());
    // SAFETY: the kernel's own parameters, on tensors that live whenever the break runs.
    unsafe { kernel.launch_raw(stream, config, &mut pointers) }
}

/// Three layers; `kinds` says what each layer's break is.
pub fn forward<'m>(rig: &'m Rig, scope: &Scope<'_, 'm>, x: &Tensor, kinds: &[BreakKind]) -> Result<Tensor> {
    let mut h = x.clone();
    for (layer, &kind) in kinds.iter().enumerate() {
        let before = rig.ops.scale(&h, 0.5 + layer as f32)?;
        let options = BreakOptions::new(format!("break {layer}")).kind(kind);
        let after = scope.break_point(options, [&before], move |b| body(rig, b))?;
        h = rig.ops.add(&after, &before)?;
    }
    rig.ops.relu(&h)
}

/// A capture of the forward, and where its output is.
pub struct Captured<'m> {
    pub rig: &'m Rig,
    pub capture: BreakableCapture<'m>,
    pub input: Tensor,
    pub output: Tensor,
    kinds: Vec<BreakKind>,
}

impl<'m> Captured<'m> {
    pub fn new(rig: &'m Rig, kinds: &[BreakKind], options: CaptureOptions) -> Captured<'m> {
        Captured::with(rig, kinds, options, Live::new(1.0)).expect("a capture")
    }

    pub fn with(rig: &'m Rig, kinds: &[BreakKind], options: CaptureOptions, live: Live) -> Result<Captured<'m>> {
        let input = Tensor::from_slice(&rig.stream, &random_values(3, ROWS * WIDTH), &[ROWS, WIDTH])?;
        let mut capture = BreakableCapture::with_options(&rig.pool, options)?;
        let output = active_forward(&live, || capture.record(&rig.stream, |scope| forward(rig, scope, &input, kinds)))?;
        Ok(Captured { rig, capture, input, output, kinds: kinds.to_vec() })
    }

    pub fn replay(&mut self, live: Live, valid: Option<usize>) -> Result<Vec<f32>, Error> {
        let mut options = ReplayOptions::default();
        options.valid_rows = valid;
        active_forward(&live, || self.capture.replay_with(&self.rig.stream, options).map(|_| ()))?;
        self.output.read(&self.rig.stream)
    }

    /// What an eager run gives for the valid rows. The padded tail of the breaks' handoffs is zero, so each later row is the segments' alone.
    pub fn expected(&self, live: Live, valid: Option<usize>) -> Vec<f32> {
        let rows = valid.unwrap_or(ROWS);
        let whole = active_forward(&live, || {
            eager(&self.rig.pool, &self.rig.stream, |scope| forward(self.rig, scope, &self.input, &self.kinds))
        });
        let still = Live { factor: 0.0, ..live };
        let padded = active_forward(&still, || {
            eager(&self.rig.pool, &self.rig.stream, |scope| forward(self.rig, scope, &self.input, &self.kinds))
        });
        let (whole, padded) = (self.rig.read(&whole.expect("eager")), self.rig.read(&padded.expect("eager")));
        [&whole[..rows * WIDTH], &padded[rows * WIDTH..]].concat()
    }

    #[track_caller]
    pub fn check(&mut self, live: Live, valid: Option<usize>) {
        let got = self.replay(live, valid).expect("a replay");
        crate::support::assert_same(&got, &self.expected(live, valid));
    }
}
