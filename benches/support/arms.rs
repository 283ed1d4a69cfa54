//! What the benches `replay` and `soak` compare: captures of the program, and bare driver calls.

use crate::bare::{BareLoop, BarePatched};
use crate::program::{Launches, Program};
use breakable_cuda_graph::driver::InstantiateFlags;
use breakable_cuda_graph::{BreakKind, BreakableCapture, CaptureOptions, Reconfigure};
use std::error::Error;
use std::hint::black_box;

/// Its name and what it is.
#[derive(Clone, Copy)]
pub struct Arm {
    pub name: &'static str,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    /// A capture with breaks of a kind. `configs`: execs for so many grids; `priorities`: whether nodes have one.
    Capture { kind: BreakKind, launches: Launches, configs: usize, priorities: bool },
    /// A loop over the execs of the first arm and its breaks' launches.
    Loop,
    /// An exec of everything, in which the breaks' nodes are set.
    Patched(Launches),
    /// Steps of arithmetic, and no call of the driver.
    Arithmetic(u32),
}

const fn capture(name: &'static str, kind: BreakKind, launches: Launches) -> Arm {
    Arm { name, what: What::Capture { kind, launches, configs: 1, priorities: false } }
}

pub const LIVE: Arm = capture("live", BreakKind::Live, Launches::Prepared);
pub const LIVE_CHECKED: Arm = capture("live, checked launches", BreakKind::Live, Launches::Checked);
pub const PATCHED: Arm = capture("patched", BreakKind::Patched, Launches::Prepared);
pub const CHANGED: Arm = capture("patched, changed", BreakKind::Patched, Launches::Changing);
pub const OTHER_GRIDS: Arm = capture("patched, other grids", BreakKind::Patched, Launches::Regridded);
pub const RECURRING_GRIDS: Arm = Arm {
    name: "patched, grids that recur",
    what: What::Capture { kind: BreakKind::Patched, launches: Launches::Regridded, configs: 2, priorities: false },
};
pub const PRIORITIES: Arm = Arm {
    name: "patched, changed, priorities",
    what: What::Capture { kind: BreakKind::Patched, launches: Launches::Changing, configs: 1, priorities: true },
};
pub const PATCHED_CHECKED: Arm = capture("patched, checked", BreakKind::Patched, Launches::Checked);
pub const CAPTURED: Arm = capture("captured", BreakKind::Patched, Launches::Foreign);
pub const CAPTURED_CHANGED: Arm = capture("captured, changed", BreakKind::Patched, Launches::ForeignChanging);
pub const FROZEN: Arm = capture("one frozen graph", BreakKind::Inline, Launches::Prepared);
pub const BARE_LOOP: Arm = Arm { name: "bare loop", what: What::Loop };
pub const BARE_CHANGED: Arm = Arm { name: "bare, changed", what: What::Patched(Launches::Changing) };
pub const BARE_OTHER_GRIDS: Arm = Arm { name: "bare, other grids", what: What::Patched(Launches::Regridded) };
/// Of some 20 µs, with next to no memory: what is slow there is the machine.
pub const ARITHMETIC: Arm = Arm { name: "arithmetic", what: What::Arithmetic(16_000) };

/// An arm, ready to run.
pub enum Contender {
    Capture(Box<BreakableCapture<'static>>),
    Loop(BareLoop),
    Patched(BarePatched),
    Arithmetic(u32),
}

impl Contender {
    /// `first`: the first arm's, which a loop goes over.
    pub fn new(program: &Program, arm: Arm, first: Option<&Contender>) -> Result<Contender, Box<dyn Error>> {
        Ok(match arm.what {
            What::Capture { kind, launches, configs, priorities } => {
                let mut options = CaptureOptions::default();
                if configs > 1 {
                    options.graph = options.graph.reconfigure(Reconfigure::AnotherExec);
                }
                if priorities {
                    options.graph.instantiate = InstantiateFlags::USE_NODE_PRIORITY;
                }
                Contender::Capture(Box::new(program.capture(kind, launches, options)?))
            }
            What::Loop => match first {
                Some(Contender::Capture(live)) => Contender::Loop(BareLoop::new(program, live)?),
                _ => return Err("a loop goes over the execs of a capture".into()),
            },
            What::Patched(launches) => Contender::Patched(BarePatched::new(program, launches)?),
            What::Arithmetic(steps) => Contender::Arithmetic(steps),
        })
    }

    /// All of a list.
    pub fn all(program: &Program, arms: &[Arm]) -> Result<Vec<Contender>, Box<dyn Error>> {
        let mut all = Vec::new();
        for &arm in arms {
            all.push(Contender::new(program, arm, all.first())?);
        }
        Ok(all)
    }

    /// With the context current.
    #[inline]
    pub fn replay(&mut self, program: &Program) -> Result<(), Box<dyn Error>> {
        match self {
            Contender::Capture(capture) => drop(capture.replay(&program.stream)?),
            Contender::Loop(bare) => bare.replay()?,
            Contender::Patched(bare) => bare.replay()?,
            // Each step needs the one before.
            Contender::Arithmetic(steps) => {
                let step = |x: u64, _| black_box(x).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                black_box((0..*steps).fold(1, step));
            }
        }
        Ok(())
    }
}
