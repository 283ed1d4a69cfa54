//! The prefill runner (rules 40 to 43, 55, 56, 64 to 67): dispatch, captures, ranks, several devices.

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod bounds;
mod devices;
mod dispatch;
mod failures;
mod first_use;
mod in_flight;
mod inputs;
mod keys;
mod memory;
mod model;
mod owned;
mod parity;
mod ranks;
mod ranks_faults;
mod specs;
mod verify;

use breakable_cuda_graph::PrefillRunner;
use breakable_cuda_graph::prefill::{Ladder, LadderOptions, RunnerOptions};
use model::{Owned, Small};
use support::Rig;

/// Options for these buckets.
fn buckets(list: &[usize]) -> RunnerOptions {
    let max = list.iter().copied().max().unwrap_or(0);
    RunnerOptions::new(Ladder::new(&LadderOptions::new(max).explicit(list))).warm_ups(1)
}

/// A runner over a small model.
fn runner<'m>(rig: &Rig, model: &'m Small, options: RunnerOptions) -> PrefillRunner<'m, Small> {
    PrefillRunner::new(model, &rig.context, options).expect("a runner")
}

/// A batch's outputs, and the bucket that it was replayed in.
fn run(rig: &Rig, runner: &mut PrefillRunner<'_, Small>, batch: &Owned) -> (Vec<Vec<f32>>, Option<usize>) {
    let outputs = batch.with(|batch| runner.run(&rig.stream, batch)).expect("a batch");
    let values = (0..outputs.len()).map(|index| outputs.read(index, &rig.stream).expect("an output")).collect();
    (values, outputs.bucket())
}

/// The same without capture.
fn run_eager(rig: &Rig, runner: &mut PrefillRunner<'_, Small>, batch: &Owned) -> Vec<Vec<f32>> {
    let outputs = batch.with(|batch| runner.run_eager(&rig.stream, batch)).expect("a batch");
    (0..outputs.len()).map(|index| outputs.read(index, &rig.stream).expect("an output")).collect()
}

/// Bits, so that nothing but equality will do.
fn bits(outputs: &[Vec<f32>]) -> Vec<Vec<u32>> {
    outputs.iter().map(|output| output.iter().map(|value| value.to_bits()).collect()).collect()
}
