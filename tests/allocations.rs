//! Rule 26: a replay allocates nothing on the heap. Counted on libcuda, whose own memory does not come from Rust's allocator; the reference driver's
//! does.
#![cfg(feature = "driver-tests")]

#[path = "support/mod.rs"]
mod support;

use breakable_cuda_graph::{BreakableCapture, ReplayOptions, active_forward, break_here};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use support::Rig;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator, with a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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
    let rig = Rig::new(&support::driver());
    let input = rig.random(1, &[8, 16]);
    let mut capture = BreakableCapture::on_pool(&rig.pool).expect("a capture");
    let recorded = active_forward(&2.0_f32, || {
        capture.record(&rig.stream, |_| {
            let mut h = rig.ops.scale(&input, 1.0)?;
            for in_place in [true, false, true, false] {
                let (ops, other) = (rig.ops.clone(), rig.zeros_in_forward(&h)?);
                h = break_here("break", rig.ops.empty_like(&h)?, [&h], move |b| {
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
    let mut replay = |rows| {
        let options = ReplayOptions::default().valid_rows(rows);
        let _ = active_forward(&3.0_f32, || capture.replay_with(&rig.stream, options)).expect("a replay");
    };
    for rows in [8, 3] {
        replay(rows);
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for round in 0..1000 {
        replay(round % 9);
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "allocations in 1000 replays");
    assert!(rig.read(&out).iter().all(|value| value.is_finite()));
}

impl Rig {
    /// A buffer of the same shape that is no part of the pool.
    fn zeros_in_forward(
        &self,
        like: &breakable_cuda_graph::Tensor,
    ) -> breakable_cuda_graph::Result<breakable_cuda_graph::Tensor> {
        breakable_cuda_graph::Tensor::empty(&self.context, like.dtype(), like.shape())
    }
}
