//! Launch configurations that change from replay to replay: execs that keep them, and how they are counted.

use super::model::{Captured, Live};
use crate::support::{Rig, driver, for_each_driver};
use breakable_cuda_graph::BreakKind::Patched;
use breakable_cuda_graph::sys::Call;
use breakable_cuda_graph::{CaptureOptions, GraphOptions, PatchStats, Reconfigure};

/// An exec for each configuration, up to so many.
fn graph(max_execs: usize) -> GraphOptions {
    GraphOptions::default().reconfigure(Reconfigure::AnotherExec).max_execs(max_execs)
}

fn options(max_execs: usize) -> CaptureOptions {
    CaptureOptions::default().graph(graph(max_execs))
}

fn live(blocks: u32, factor: f32) -> Live {
    Live { blocks, ..Live::new(factor) }
}

/// With one exec, nodes are set; configurations that are set are counted apart from arguments.
#[test]
fn changed_grids_are_counted() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut captured = Captured::new(&rig, &[Patched; 3], options(1));
        for (blocks, factor) in [(0, 2.0), (1, 2.0), (1, 3.0), (1, 3.0), (0, 3.0)] {
            captured.check(live(blocks, factor), None);
        }
        let PatchStats { patched, reconfigured, unchanged, rebuilt, .. } = captured.capture.patch_stats();
        assert_eq!((patched, reconfigured, unchanged, rebuilt), (12, 6, 3, 0), "of three bodies a replay");
    });
}

/// Where a few grids recur, each has an exec, in which no node is set again.
#[test]
fn grids_that_recur_have_execs_that_keep_them() {
    let rig = Rig::new(&driver().intercepted());
    let mut captured = Captured::new(&rig, &[Patched; 3], options(3));
    for blocks in [0, 1, 2] {
        captured.check(live(blocks, 1.0), None);
    }
    let stats = captured.capture.patch_stats();
    assert_eq!((stats.execs, stats.rebuilt, stats.reconfigured), (3, 2, 0), "{stats:?}");
    let watch = rig.driver.intercept().expect("a watched driver");
    let set = watch.count(Call::cuGraphExecKernelNodeSetParams_v2);
    for blocks in [2, 0, 1, 1, 0, 2] {
        captured.check(live(blocks, 1.0), None);
    }
    assert_eq!(watch.count(Call::cuGraphExecKernelNodeSetParams_v2), set, "the arguments are the same, too");
    for (turn, blocks) in [2, 0, 1, 1, 0, 2].into_iter().enumerate() {
        captured.check(live(blocks, 2.0 + turn as f32), None);
    }
    let stats = captured.capture.patch_stats();
    assert_eq!((stats.execs, stats.reconfigured, stats.patched), (3, 0, 18), "{stats:?}");
}

/// A grid beyond the bound goes where the longest unused one was, so that those in use stay.
#[test]
fn the_configuration_least_recently_used_makes_room() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut captured = Captured::new(&rig, &[Patched; 3], options(2));
        let mut reconfigured = |blocks: u32| {
            let before = captured.capture.patch_stats().reconfigured;
            captured.check(live(blocks, 1.0), None);
            captured.capture.patch_stats().reconfigured - before
        };
        let seen = [0, 1, 0, 2, 0, 2, 1, 2, 0].map(&mut reconfigured);
        assert_eq!(seen, [0, 0, 0, 3, 0, 0, 3, 0, 3]);
        let stats = captured.capture.patch_stats();
        assert_eq!((stats.execs, stats.rebuilt, stats.fell_back), (2, 1, 0), "{stats:?}");
    });
}

/// Bodies of other nodes find their exec whatever their grids are, and the bound is on all execs.
#[test]
fn configurations_and_shapes_have_a_bound_together() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut captured = Captured::new(&rig, &[Patched; 3], options(4));
        for round in 0..3 {
            for (kernels, blocks) in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (2, 2)] {
                captured.check(Live { kernels, ..live(blocks, round as f32) }, None);
            }
        }
        let stats = captured.capture.patch_stats();
        assert_eq!((stats.execs, stats.rebuilt, stats.fell_back), (4, 3, 0), "{stats:?}");
        // Two of each: those of a third and a fourth kind take the place of a second; for a fifth there is no room.
        for (kernels, fell_back) in [(4, 0), (5, 0), (1, 1)] {
            captured.check(Live { kernels, ..live(0, 1.0) }, None);
            let stats = captured.capture.patch_stats();
            assert_eq!((stats.execs, stats.fell_back), (4, fell_back), "{stats:?}");
        }
    });
}

/// Configurations of one kind of body don't take all execs: bodies of other nodes get one in the place of a second.
#[test]
fn bodies_of_other_nodes_come_before_other_configurations() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut captured = Captured::new(&rig, &[Patched; 3], options(2));
        for blocks in [0, 1, 0] {
            captured.check(Live { kernels: 2, ..live(blocks, 1.0) }, None);
        }
        for kernels in [3, 2, 3, 2] {
            captured.check(Live { kernels, ..live(0, 1.0) }, None);
        }
        let stats = captured.capture.patch_stats();
        assert_eq!((stats.execs, stats.rebuilt, stats.fell_back, stats.reconfigured), (2, 2, 0, 0), "{stats:?}");
        captured.check(Live { kernels: 4, ..live(0, 1.0) }, None);
        let stats = captured.capture.patch_stats();
        assert_eq!((stats.execs, stats.fell_back), (2, 1), "both are of other nodes");
    });
}

/// An exec that is shared does not stay as it is between two turns: there is one.
#[test]
fn shared_execs_keep_no_configurations() {
    for_each_driver(|driver| {
        let rig = Rig::new(driver);
        let mut first = Captured::new(&rig, &[Patched; 3], CaptureOptions::default().graph(graph(4).share_execs(true)));
        let mut second =
            Captured::new(&rig, &[Patched; 3], CaptureOptions::default().graph(graph(4).share_execs(true)));
        for blocks in [0, 1, 2, 0, 1] {
            first.check(live(blocks, 2.0), None);
            second.check(live(blocks, 3.0), None);
        }
        assert_eq!([&first, &second].map(|captured| captured.capture.patch_stats().execs), [1, 1]);
    });
}
