//! Rule 26: a replay allocates nothing on the heap. Counted on libcuda, whose own memory does not come from Rust's allocator; the reference driver's
//! does.
#![cfg(feature = "driver-tests")]

#[path = "support/mod.rs"]
mod support;

use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::prefill::{
    Batch, InputData, InputSpec, Ladder, LadderOptions, Mode, OutputSpec, PrefillModel, TailRule,
};
use breakable_cuda_graph::{
    BreakKind, BreakOptions, BreakableCapture, DType, PrefillRunner, ReplayOptions, Result, RunnerOptions, Scope,
    Tensor, active_forward, break_here,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::Rig;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Allocations of this thread so far.
fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

// SAFETY: the system's allocator, with a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends allocates no more that counts.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_replay_allocates_nothing() {
    for kind in [BreakKind::Live, BreakKind::Patched] {
        replays_allocate_nothing(kind);
    }
}

/// With an operation that launches other arguments each time.
fn replays_allocate_nothing(kind: BreakKind) {
    let rig = Rig::new(&support::driver());
    let input = rig.random(1, &[8, 16]);
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    // No part of the pool: recordings hold it, and a segment may not allocate it.
    let other = Tensor::allocate(&rig.context, input.dtype(), input.shape()).expect("a buffer");
    let recorded = active_forward(&2.0_f32, || {
        capture.record(&rig.stream, |_| {
            let mut h = rig.ops.scale(&input, 1.0)?;
            for in_place in [true, false, true, false] {
                let (ops, other) = (rig.ops.clone(), other.clone());
                h = break_here(BreakOptions::new("break").kind(kind), rig.ops.empty_like(&h)?, [&h], move |b| {
                    let factor = *b.forward_ctx::<f32>()?;
                    // Into the handoff, or into a buffer of its own that is then landed.
                    let into = if in_place { b.output(0).unwrap_or_else(|| other.clone()) } else { other.clone() };
                    ops.scale_into(b.stream(), b.input(0)?, factor, &into)?;
                    Ok(into)
                })?;
                h = rig.ops.relu(&h)?;
            }
            Ok(h)
        })
    });
    let out = recorded.expect("a recording");
    let mut factor = 3.0_f32;
    let mut replay = |rows| {
        factor += 0.5;
        let options = ReplayOptions::default().valid_rows(rows);
        let _ = active_forward(&factor, || capture.replay_with(&rig.stream, options)).expect("a replay");
    };
    for rows in [8, 3, 8, 0] {
        replay(rows);
    }
    let before = allocations();
    for round in 0..1000 {
        replay(round % 9);
    }
    assert_eq!(allocations() - before, 0, "allocations in 1000 replays, {kind:?}");
    assert!(rig.read(&out).iter().all(|value| value.is_finite()));
}

/// Two layers with a break that writes its handoff.
struct Model<'r>(&'r Rig);

const WIDTH: usize = 16;

impl PrefillModel for Model<'_> {
    type Context = f32;
    type Key = ();

    fn inputs(&self) -> Vec<InputSpec> {
        let slots = InputSpec::rows("slots", DType::I64, &[]).tail(TailRule::DummySlot(-1));
        vec![InputSpec::rows("x", DType::F32, &[WIDTH]).tail(TailRule::Zero), slots]
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        vec![OutputSpec::rows("y", DType::F32, &[WIDTH])]
    }

    fn key(&self) {}

    fn dummy(&self, _: &Stream, _: usize) -> Result<f32> {
        Ok(1.0)
    }

    fn mode(&self, _: &f32) -> Mode<()> {
        Mode::Eligible(())
    }

    fn forward<'m>(&'m self, scope: &Scope<'_, 'm>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let ops = &self.0.ops;
        let mut h = ops.relu(&inputs[0])?;
        for _ in 0..2 {
            h = scope.break_here("break", ops.empty_like(&h)?, [&h], move |b| {
                let into = b.output(0).map_or_else(|| ops.empty_like(b.input(0)?), Ok)?;
                ops.scale_into(b.stream(), b.input(0)?, *b.forward_ctx::<f32>()?, &into)?;
                Ok(into)
            })?;
            h = ops.relu(&h)?;
        }
        Ok(vec![h])
    }
}

#[test]
fn a_batch_that_is_replayed_allocates_nothing() {
    let rig = Rig::new(&support::driver());
    let model = Model(&rig);
    let ladder = Ladder::new(&LadderOptions::new(8).explicit([2, 4, 8]));
    let mut runner = PrefillRunner::new(&model, &rig.context, RunnerOptions::new(ladder)).expect("a runner");
    runner.capture_all(&rig.stream, |_| {}).expect("captured");
    let (x, slots) = ([1.0_f32; 8 * WIDTH], [5_i64; 8]);
    let mut run = |rows: usize| {
        let inputs = [InputData::host(&x[..rows * WIDTH]), InputData::host(&slots[..rows])];
        let results = runner.run(&rig.stream, &Batch { rows, context: &2.0, inputs: &inputs }).expect("a batch");
        assert!(results.bucket().is_some());
    };
    (1..=8).for_each(&mut run);
    let before = allocations();
    for round in 0..1000 {
        run(round % 8 + 1);
    }
    assert_eq!(allocations() - before, 0, "allocations in 1000 batches");
    assert_eq!(runner.stats().total_replays(), 1008);
}
