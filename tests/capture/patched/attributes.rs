//! Launches with attributes: a segment's nodes have them, and a patched body with one is captured by the driver.

use crate::support::{Rig, clusters};
use breakable_cuda_graph::driver::{Kernel, LaunchConfig};
use breakable_cuda_graph::tensor::Arg;
use breakable_cuda_graph::{Break, BreakOptions, BreakableCapture, CaptureOptions, Result, Tensor, active_forward};

const PLAIN: LaunchConfig = LaunchConfig::new([4, 1, 1], [32, 1, 1]);

struct Counting {
    rig: Rig,
    kernel: Kernel,
    /// What the segment's launch wrote, and what the body's did.
    written: [Tensor; 2],
    /// Whether the body gives pointers to its arguments.
    raw: bool,
}

impl Counting {
    fn new(raw: bool) -> Counting {
        let rig = Rig::new(&clusters::driver());
        let kernel = clusters::kernel(&rig.context);
        let written = [rig.zeros(&[1]), rig.zeros(&[1])];
        Counting { rig, kernel, written, raw }
    }

    fn launch(&self, stream: &breakable_cuda_graph::driver::Stream, config: LaunchConfig, to: usize) -> Result<()> {
        // SAFETY: the kernel's one parameter, a number's address.
        unsafe { self.kernel.launch(stream, config, &[Arg::from(&self.written[to])]) }
    }

    fn body(&self, b: &Break<'_>) -> Result<Tensor> {
        let config = *b.forward_ctx::<LaunchConfig>()?;
        if self.raw {
            let mut address = self.written[1].address();
            // SAFETY: likewise.
            unsafe { self.kernel.launch_raw(b.stream(), config, &mut [(&raw mut address).cast()])? };
        } else {
            self.launch(b.stream(), config, 1)?;
        }
        self.rig.ops.relu(b.input(0)?)
    }

    /// How many blocks clusters had, and the memory as before.
    fn take(&self) -> [u32; 2] {
        [0, 1].map(|at| {
            let found = self.rig.read(&self.written[at])[0].to_bits();
            self.written[at].fill_bytes(&self.rig.stream, 0).expect("a fill");
            found
        })
    }
}

fn record<'m>(counting: &'m Counting, segment: LaunchConfig, body: LaunchConfig) -> (BreakableCapture<'m>, Tensor) {
    let rig = &counting.rig;
    let x = rig.ones(&[4]);
    let mut capture = BreakableCapture::with_options(&rig.pool, CaptureOptions::default()).expect("a capture");
    let out = active_forward(&body, || {
        capture.record(&rig.stream, |scope| {
            let h = rig.ops.scale(&x, 2.0)?;
            counting.launch(&scope.stream()?, segment, 0)?;
            let h = scope.break_point(BreakOptions::new("counted").patched(), [&h], move |b| counting.body(b))?;
            rig.ops.scale(&h, 3.0)
        })
    });
    (capture, out.expect("a recording"))
}

#[test]
fn a_segment_and_a_body_have_the_attributes_that_they_were_launched_with() {
    let (pairs, quads) = (PLAIN.cluster([2, 1, 1]), PLAIN.cluster([4, 1, 1]));
    for raw in [false, true] {
        let counting = Counting::new(raw);
        let rig = &counting.rig;
        let (mut capture, out) = record(&counting, quads, PLAIN);
        for config in [PLAIN, pairs, quads, pairs.programmatic(), PLAIN, PLAIN.cooperative()] {
            counting.take();
            let _ = active_forward(&config, || capture.replay(&rig.stream)).expect("a replay");
            let blocks = config.attributes.cluster().map_or(1, |[x, ..]| x);
            assert_eq!((counting.take(), rig.read(&out)), ([4, blocks], vec![6.0; 4]), "{config:?}");
        }
    }
}

/// A list of launches has no attributes: one that has some is never compared with it, or set on a node.
#[test]
fn a_body_with_attributes_is_captured_and_one_without_is_listed() {
    let others = [(PLAIN.cluster([2, 1, 1]), false), (PLAIN.programmatic(), false), (PLAIN.cooperative(), false)];
    for (config, listed) in others.into_iter().chain([(PLAIN, true)]) {
        for raw in [false, true] {
            let counting = Counting::new(raw);
            let (mut capture, _out) = record(&counting, PLAIN, config);
            for _ in 0..3 {
                let _ = active_forward(&config, || capture.replay(&counting.rig.stream)).expect("a replay");
            }
            // A captured body is set on every replay.
            let stats = capture.patch_stats();
            let expected = if listed { (3, 0, 0) } else { (0, 3, 0) };
            assert_eq!((stats.unchanged, stats.patched, stats.fell_back), expected, "{config:?}");
        }
    }
}
