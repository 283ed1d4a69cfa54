//! What a forward takes of a pool without a plan.

use super::arena::{Answer, Arena, BlockRef};
use super::ids::StreamKey;
use super::trace::{Role, Trace, TraceStep};

/// The bytes of slabs that online best fit takes for traces, one after the other in one pool, as their recordings without a plan would: of each, after it
/// has been placed. Scratch of breaks is not placed.
///
/// `None` where a request is larger than memory.
pub fn online_footprint<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> Option<Vec<usize>> {
    const STREAM: StreamKey = StreamKey(0);
    let mut arena = Arena::default();
    // Slabs don't touch, as a driver's allocations need not.
    let mut next = 1_u64 << 40;
    let mut place = |arena: &mut Arena, bytes: usize| -> Option<BlockRef> {
        loop {
            match arena.request_online(STREAM, bytes).ok()? {
                Answer::Here(block, _) => return Some(block),
                Answer::Grow(slab) => {
                    arena.add_slab(STREAM, next, slab).ok()?;
                    next = next.checked_add(slab as u64)?.checked_add(1 << 30)?;
                }
            }
        }
    };
    let mut footprints = Vec::new();
    for trace in traces {
        let mut live: Vec<Option<BlockRef>> = vec![None; trace.requests().len()];
        for step in trace.steps() {
            match *step {
                TraceStep::Allocate(request) if trace.requests()[request].role == Role::Scratch => {}
                TraceStep::Allocate(request) => {
                    live[request] = Some(place(&mut arena, trace.requests()[request].bytes)?);
                }
                TraceStep::Release(request) => {
                    if let Some(block) = live[request].take() {
                        arena.release(block);
                    }
                }
            }
        }
        for block in live.into_iter().flatten() {
            arena.release(block);
        }
        footprints.push(arena.usage().reserved);
    }
    Some(footprints)
}
