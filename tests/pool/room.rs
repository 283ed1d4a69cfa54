//! Memory that other pools keep unused makes room for a recording (rule 39).

use crate::support::{Rig, demo};
use breakable_cuda_graph::driver::MemoryPool;
use breakable_cuda_graph::pool::Backing;
use breakable_cuda_graph::sys::Call;
use breakable_cuda_graph::{BreakableCapture, DType, Driver, Error, PoolOptions, Result, Scope, eager};

/// A device of which five eighths are taken by one tensor; small on the reference driver.
fn driver() -> Driver {
    if cfg!(feature = "driver-tests") {
        return crate::support::driver();
    }
    Driver::reference_with(demo::options().device_memory(64 << 20)).expect("the reference driver loads")
}

const BACKINGS: [Backing; 2] = [Backing::MemoryPool, Backing::ReservedAddresses];

fn rig(backing: Backing) -> (Rig, usize) {
    let rig = Rig::with_pool(&driver(), PoolOptions::default().backing(backing));
    let bytes = rig.context.device().total_memory().expect("memory") / 8 * 5;
    (rig, bytes)
}

fn trims(rig: &Rig) -> u64 {
    rig.driver.intercept().map_or(0, |intercept| intercept.count(Call::cuMemPoolTrimTo))
}

/// What an eager run has used is kept by the pool of temporaries.
#[test]
fn what_temporaries_had_makes_room_for_a_recording() {
    for backing in BACKINGS {
        let (rig, bytes) = rig(backing);
        let forward = |scope: &Scope<'_, '_>| scope.empty(DType::U8, &[bytes]).map(drop);
        eager(&rig.pool, &rig.stream, forward).expect("there is room");
        rig.stream.synchronize().expect("it ran");
        let before = trims(&rig);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        capture.record(&rig.stream, forward).expect("nobody uses the memory");
        assert!(!rig.is_reference() || trims(&rig) > before);
    }
}

/// So is what a pool of the caller's has kept; and memory in use is refused after one try, with the figures.
#[test]
fn what_is_in_use_is_no_room() {
    for backing in BACKINGS {
        let (rig, bytes) = rig(backing);
        let pool = MemoryPool::new(&rig.context).expect("a pool");
        let buffer = pool.allocate(bytes, &rig.stream).expect("there is room");
        rig.stream.synchronize().expect("it is there");
        let record = |rig: &Rig| -> Result<()> {
            BreakableCapture::new(&rig.pool)?.record(&rig.stream, |scope| scope.empty(DType::U8, &[bytes]).map(drop))
        };
        let before = trims(&rig);
        let Err(Error::Capture(error)) = record(&rig) else { panic!("there is no room") };
        let Error::OutOfMemory(memory) = &*error.source else { panic!("{error}") };
        assert_eq!((memory.requested, memory.call.is_some()), (bytes, true));
        if rig.is_reference() {
            // Each pool of the context once: the temporaries, the caller's, and the slabs' own if they come from one.
            assert_eq!(trims(&rig) - before, if backing == Backing::MemoryPool { 3 } else { 2 });
        }
        drop(buffer);
        rig.stream.synchronize().expect("it is unused");
        record(&rig).expect("the caller's pool has it, and nobody uses it");
    }
}
