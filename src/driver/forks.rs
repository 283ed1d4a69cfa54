//! Which streams were drawn away from one, and whether they have been joined again: what a segment and a live break know of their side streams.

use crate::sys::CUstream;

/// Streams that were drawn in from one, the origin, by waits for its events.
#[derive(Default)]
pub(super) struct Forks {
    sides: Vec<Side>,
}

struct Side {
    stream: CUstream,
    /// Operations on it so far; to be drawn in is one.
    operations: u64,
    /// How many of them come before what a stream that waited for it has next.
    joined: u64,
}

// SAFETY: streams are names that are compared here, and of objects that any thread may use (T2 of `docs/DESIGN.md`).
unsafe impl Send for Forks {}

impl Forks {
    /// Forgets all, and keeps the room.
    pub(super) fn clear(&mut self) {
        self.sides.clear();
    }

    /// Whether a stream was drawn in, joined or not.
    pub(super) fn has(&self, stream: CUstream) -> bool {
        self.sides.iter().any(|side| side.stream == stream)
    }

    /// Whether no stream was drawn in.
    pub(super) fn is_empty(&self) -> bool {
        self.sides.is_empty()
    }

    /// A stream with work that the origin does not wait for, if there is one.
    pub(super) fn unjoined(&self) -> Option<CUstream> {
        self.sides.iter().find(|side| side.joined < side.operations).map(|side| side.stream)
    }

    /// Work was enqueued on a stream.
    pub(super) fn operation_on(&mut self, stream: CUstream) {
        if let Some(side) = self.side(stream) {
            side.operations += 1;
        }
    }

    /// How far a stream is now: what an event that is recorded there stands for.
    pub(super) fn position(&self, stream: CUstream) -> u64 {
        self.sides.iter().find(|side| side.stream == stream).map_or(0, |side| side.operations)
    }

    /// A stream waits for another one's work up to a position. One that is neither the origin nor drawn in is drawn in by it.
    pub(super) fn waited(&mut self, waiter: CUstream, origin: CUstream, (other, position): (CUstream, u64)) {
        if waiter == other {
            return;
        }
        if let Some(side) = self.side(other) {
            side.joined = side.joined.max(position);
        }
        if waiter != origin {
            match self.side(waiter) {
                Some(side) => side.operations += 1,
                None => self.sides.push(Side { stream: waiter, operations: 1, joined: 0 }),
            }
        }
    }

    /// Work was enqueued on a stream that the host had ordered with the origin: it is drawn in by that.
    pub(super) fn draw_in(&mut self, stream: CUstream) {
        self.sides.push(Side { stream, operations: 1, joined: 0 });
    }

    /// The host has waited for a stream's work up to a position.
    pub(super) fn settled(&mut self, stream: CUstream, position: u64) {
        if let Some(side) = self.side(stream) {
            side.joined = side.joined.max(position.min(side.operations));
        }
    }

    /// The host has waited for everything.
    pub(super) fn settled_all(&mut self) {
        self.sides.iter_mut().for_each(|side| side.joined = side.operations);
    }

    fn side(&mut self, stream: CUstream) -> Option<&mut Side> {
        self.sides.iter_mut().find(|side| side.stream == stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(number: usize) -> CUstream {
        number as CUstream
    }

    #[test]
    fn a_stream_that_was_drawn_in_is_joined_by_a_wait_for_all_its_work() {
        let [origin, side] = [1, 2].map(stream);
        let mut forks = Forks::default();
        assert!(forks.is_empty() && forks.unjoined().is_none());
        forks.waited(side, origin, (origin, 0));
        assert_eq!((forks.unjoined(), forks.has(side)), (Some(side), true));
        forks.operation_on(side);
        let event = forks.position(side);
        forks.operation_on(side);
        forks.waited(origin, origin, (side, event));
        assert_eq!(forks.unjoined(), Some(side), "work after the event");
        let event = forks.position(side);
        forks.waited(origin, origin, (side, event));
        assert_eq!(forks.unjoined(), None);
        forks.operation_on(side);
        assert_eq!(forks.unjoined(), Some(side), "work after the join");
    }

    #[test]
    fn a_stream_is_joined_through_another_one() {
        let [origin, near, far] = [1, 2, 3].map(stream);
        let mut forks = Forks::default();
        forks.waited(near, origin, (origin, 0));
        let event = forks.position(near);
        forks.waited(far, origin, (near, event));
        assert_eq!(
            forks.unjoined(),
            Some(far),
            "the wait of one for the other says nothing of the origin, but for what it covers"
        );
        let event = forks.position(far);
        forks.waited(near, origin, (far, event));
        assert_eq!(forks.unjoined(), Some(near), "what it has waited for has to be joined with it");
        let event = forks.position(near);
        forks.waited(origin, origin, (near, event));
        assert_eq!(forks.unjoined(), None);
    }

    #[test]
    fn other_streams_are_nothing_to_it() {
        let [origin, stranger] = [1, 9].map(stream);
        let mut forks = Forks::default();
        forks.operation_on(stranger);
        forks.waited(origin, origin, (stranger, 5));
        assert!(forks.is_empty() && !forks.has(stranger) && forks.position(stranger) == 0);
    }
}
