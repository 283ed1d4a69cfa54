//! Input that makes no sense, to the planner and to pools.

use crate::support::{Rig, driver};
use breakable_cuda_graph::memory::PoolPlan;
use breakable_cuda_graph::memory::Trace;
use breakable_cuda_graph::memory::planner::{BufferSpec, PlanError, PlanOptions, plan};
use breakable_cuda_graph::pool::Backing;
use breakable_cuda_graph::{CapturePool, Error, PoolOptions};

#[test]
fn the_planner_refuses_what_it_can_not_place() {
    let one = [BufferSpec::new(1, 0, 1)];
    for alignment in [0, 3, 513] {
        let refused = plan(&one, &PlanOptions::new().alignment(alignment));
        assert!(matches!(refused, Err(PlanError::Alignment(_))), "{refused:?}");
    }
    for (begin, end) in [(1, 1), (2, 1), (u64::MAX, 0)] {
        let refused = plan(&[one[0], BufferSpec::new(1, begin, end)], &PlanOptions::new());
        let Err(PlanError::Lifetime { index: 1, .. }) = refused else { panic!("{refused:?}") };
    }
    for bytes in [usize::MAX, isize::MAX as usize] {
        let refused = plan(&[BufferSpec::new(bytes, 0, 1)], &PlanOptions::new());
        assert!(matches!(refused, Err(PlanError::TooLarge { .. })), "{refused:?}");
    }
    let half = isize::MAX as usize / 2;
    let refused = plan(
        &[BufferSpec::new(half, 0, 2), BufferSpec::new(half, 0, 2), BufferSpec::new(half, 1, 3)],
        &PlanOptions::new(),
    );
    assert!(matches!(refused, Err(PlanError::TooLarge { .. })), "{refused:?}");
    let refused = plan(&[BufferSpec::new(1024, 0, 1)], &PlanOptions::new().max_bytes(1023));
    assert!(matches!(refused, Err(PlanError::AboveLimit { limit: 1023, .. })), "{refused:?}");
    let empty = plan(&[], &PlanOptions::new()).expect("nothing to place");
    assert_eq!((empty.bytes(), empty.lower_bound()), (0, 0));
    let zero = plan(&[BufferSpec::new(0, 0, 1), BufferSpec::new(0, 0, 1)], &PlanOptions::new()).expect("a place each");
    assert_eq!((zero.bytes(), zero.lower_bound()), (1024, 1024));
}

#[test]
fn a_plan_above_the_device_is_out_of_memory_and_leaves_the_pool_as_it_was() {
    let rig = Rig::new(&driver());
    let total = rig.context.device().total_memory().expect("memory");
    for backing in [Backing::MemoryPool, Backing::ReservedAddresses] {
        let pool = CapturePool::with_options(&rig.context, PoolOptions::default().backing(backing)).expect("a pool");
        let mut trace = Trace::new();
        trace.allocate(total + 1);
        let plan = PoolPlan::new([trace], &PlanOptions::default()).expect("a plan");
        let refused = pool.take_plan(&plan);
        assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
        let mut trace = Trace::new();
        trace.allocate(1000);
        pool.take_plan(&PoolPlan::new([trace], &PlanOptions::default()).expect("a plan")).expect("a range");
        pool.take_plan(&PoolPlan::default()).expect("nothing to take");
    }
}

#[test]
fn a_trace_of_nothing_and_of_empty_tensors_is_planned() {
    let rig = Rig::new(&driver());
    let (trace, ()) = breakable_cuda_graph::trace(&rig.pool, &rig.stream, |_| Ok(())).expect("a trace");
    assert!(PoolPlan::new([trace], &PlanOptions::default()).expect("a plan").traces()[0].is_empty());
    let (trace, _) = breakable_cuda_graph::trace(&rig.pool, &rig.stream, |scope| {
        scope.empty(breakable_cuda_graph::DType::F32, &[0, 8])
    })
    .expect("a trace");
    let plan = PoolPlan::new([trace], &PlanOptions::default()).expect("a plan");
    assert_eq!((plan.bytes(), plan.traces()[0].len()), (512, 1));
}
