//! What the crate knows of an event's latest record.

/// Where an event was recorded last, as far as a segment or a live break has to know.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct EventMark {
    /// The serial number of the capture that it is an edge of, or 0.
    pub(super) capture: u64,
    /// The number of the live break that recorded it, or 0.
    pub(super) live_break: u64,
    /// The stream, where one of the two is there.
    pub(super) stream: usize,
    /// How far that stream was.
    pub(super) position: u64,
    /// How many blocks of the recording had been returned by then.
    pub(super) returned: u64,
}
