//! Many replays with changing metadata: right each time, and nothing grows.

use super::model::{Captured, Live, ROWS};
use crate::support::{Rig, driver, random_values};
use breakable_cuda_graph::BreakKind::{Live as Alive, Patched};
use breakable_cuda_graph::{CaptureOptions, Reconfigure};

/// A thousand batches of random rows, factors, node counts and temporaries, over two composite graphs.
#[test]
fn a_thousand_random_batches_equal_eager_and_counters_add_up() {
    let rig = Rig::new(&driver());
    let mut options = CaptureOptions::default();
    options.graph = options.graph.reconfigure(Reconfigure::AnotherExec).max_execs(6);
    let mut captured = Captured::new(&rig, &[Patched, Patched, Alive], options);
    let batches = if rig.is_reference() { 250 } else { 1000 };
    for values in random_values(23, batches * 4).chunks(4) {
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| (values[at].abs() * 89.0) as usize);
        let live = Live {
            factor: values[0] * 3.0,
            kernels: 1 + a % 3,
            temporaries: b % 2,
            blocks: (d % 2) as u32,
            copies: if b % 5 == 0 { c as u32 / 2 % 4 } else { 0 },
        };
        captured.check(live, (c % 2 > 0).then_some(d % (ROWS + 1)));
    }
    let stats = captured.capture.patch_stats();
    // Both bodies of a replay were each patched in or unchanged, or they were built into an exec, or the pieces were launched.
    assert_eq!(
        stats.patched + stats.unchanged + 2 * (stats.rebuilt + stats.fell_back),
        2 * batches as u64,
        "{stats:?}"
    );
    // An exec that is made in the place of another leaves their number as it is.
    assert!(stats.execs <= 6 && stats.execs as u64 <= 1 + stats.rebuilt, "{stats:?}");
}

/// Device memory and the driver's objects are the same after many replays.
#[test]
fn nothing_grows() {
    let driver = driver();
    let rig = Rig::new(&driver);
    let mut captured = Captured::new(&rig, &[Patched; 3], CaptureOptions::default());
    let mut turn = 0;
    let mut replays = |captured: &mut Captured<'_>, count: usize| {
        for _ in 0..count {
            turn += 1;
            let live = Live::new(turn as f32);
            let options = breakable_cuda_graph::ReplayOptions::default().valid_rows(ROWS - turn % 2);
            breakable_cuda_graph::active_forward(&live, || {
                captured.capture.replay_with(&rig.stream, options).map(|_| ())
            })
            .expect("a replay");
        }
        rig.stream.synchronize().expect("the replays");
    };
    replays(&mut captured, 100);
    unchanged_by(&rig, || replays(&mut captured, turns(&rig, 2_000)));
    let stats = captured.capture.patch_stats();
    assert_eq!((stats.execs, stats.fell_back), (2, 0), "{stats:?}");
}

/// How many replays show that nothing grows: `BCG_TEST_TURNS` where it is set, as under a memory checker, which makes them slow; 100,000 on a device,
/// and as many as given on the reference driver.
pub fn turns(rig: &Rig, on_reference: usize) -> usize {
    let usual = if rig.is_reference() { on_reference } else { 100_000 };
    asked_turns().unwrap_or(usual)
}

fn asked_turns() -> Option<usize> {
    std::env::var("BCG_TEST_TURNS").ok().map(|turns| turns.parse().expect("BCG_TEST_TURNS is a number"))
}

/// Checks that some work leaves device memory, the pool, the driver's objects and, on a device, the process's memory as they were. Under a memory
/// checker (`BCG_TEST_TURNS`) the process's memory is the checker's too, and left out.
pub fn unchanged_by(rig: &Rig, work: impl FnOnce()) {
    let look = || {
        rig.stream.synchronize().expect("the work");
        let usage = rig.pool.usage().expect("usage");
        (
            rig.context.memory_info().expect("memory").free,
            usage,
            rig.driver.ref_driver().map(|reference| reference.object_counts()),
        )
    };
    let (before, resident) = (look(), crate::support::resident());
    work();
    assert_eq!(look(), before);
    let process_is_ours = !rig.is_reference() && asked_turns().is_none();
    if let (Some(before), Some(after), true) = (resident, crate::support::resident(), process_is_ours) {
        // What an allocator keeps comes and goes.
        assert!(after < before + (4 << 20), "host memory grew by {} bytes", after - before);
    }
}
