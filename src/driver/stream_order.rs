//! The order of work on several streams.

use super::event::Event;
use super::stream::Stream;
use crate::error::Result;

/// Makes later work on one stream wait for what is on another, by an event. Nothing to do where they are the same.
///
/// # Errors
/// [`Misuse::CaptureInProgress`](crate::Misuse::CaptureInProgress) and [`Misuse::ReplayInOthersCapture`](crate::Misuse::ReplayInOthersCapture) where one of
/// them is being captured, before any effect, and what the driver returns.
pub(crate) fn order_after(later: &Stream, earlier: &Stream, event: &Event) -> Result<()> {
    if later == earlier {
        return Ok(());
    }
    // It would become part of that capture, or end it.
    earlier.expect_not_captured()?;
    later.expect_not_captured()?;
    let driver = later.context().driver();
    // SAFETY: live handles of one context. Not by methods of these: it is no fork that the break which runs here has to join.
    unsafe {
        driver.cuEventRecord(event.as_raw(), earlier.as_raw())?;
        driver.cuStreamWaitEvent(later.as_raw(), event.as_raw(), 0)?;
    }
    Ok(())
}

/// Work that is ordered whatever streams it goes to: each stream comes after the one before.
#[derive(Debug)]
pub(crate) struct StreamOrder {
    last: Option<Stream>,
    event: Event,
}

impl StreamOrder {
    /// Ordered by this event, which nobody else records.
    pub(crate) fn new(event: Event) -> StreamOrder {
        StreamOrder { last: None, event }
    }

    /// Makes later work on the stream wait for what is on the last one, and notes the stream as the last. On the same stream as before it costs nothing:
    /// the stream itself keeps the order.
    ///
    /// The one that was the last is given, for whoever calls to drop it when nothing is borrowed: the drop of a stream may run a caller's hook.
    #[inline]
    pub(crate) fn follow(&mut self, stream: &Stream) -> Result<Option<Stream>> {
        if self.last.as_ref() == Some(stream) {
            return Ok(None);
        }
        if let Some(last) = &self.last {
            order_after(stream, last, &self.event)?;
        }
        Ok(self.last.replace(stream.clone()))
    }

    /// The stream that came last.
    pub(crate) fn last(&self) -> Option<&Stream> {
        self.last.as_ref()
    }

    /// Takes the stream that came last: nothing follows any more.
    pub(crate) fn take_last(&mut self) -> Option<Stream> {
        self.last.take()
    }
}
