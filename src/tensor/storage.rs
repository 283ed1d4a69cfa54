//! Where a tensor's bytes lie, and who gives them back.

use crate::driver::{Context, DeviceBuffer, Event, RecordingId};
use crate::error::Result;
use std::any::Any;
use std::fmt;

/// The bytes behind a tensor and all its views. Given back when the last of them is gone.
pub(crate) struct Storage {
    /// Device address, or host address for [`Hold::Host`].
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// `None` for host memory.
    pub(crate) context: Option<Context>,
    /// The recording in which it was taken from a capture pool, if it was. That recording's own segments write it anew on every replay.
    pub(crate) recording: Option<RecordingId>,
    pub(crate) hold: Hold,
}

/// What is given back in the end.
pub(crate) enum Hold {
    /// A buffer of its own.
    Buffer(DeviceBuffer),
    /// A block of a capture pool, which returns to it when this drops.
    Block(#[allow(dead_code)] Box<dyn Any + Send + Sync>),
    /// A buffer of its own that stands for a block of a capture pool in a trace, which this tells of its return.
    Traced(DeviceBuffer, Box<dyn TraceObserver>),
    /// Nothing: the memory is somebody else's, which this keeps from being unmapped at least.
    Nothing(#[allow(dead_code)] std::sync::Arc<dyn Any + Send + Sync>),
    /// Host bytes, aligned for every element type.
    Host(#[allow(dead_code)] Box<[u64]>),
}

/// Tells a trace of a tensor's end by being dropped.
pub(crate) trait TraceObserver: Send + Sync {
    /// Names the tensor in the trace.
    fn set_name(&self, name: &str);

    /// LaunchRecorder that a break's result lands in the tensor.
    fn set_handoff(&self);
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hold = match self.hold {
            Hold::Buffer(_) => "buffer",
            Hold::Block(_) => "pool block",
            Hold::Traced(..) => "traced buffer",
            Hold::Nothing(_) => "not owned",
            Hold::Host(_) => "host",
        };
        f.debug_struct("Storage")
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes)
            .field("hold", &hold)
            .finish_non_exhaustive()
    }
}

impl Storage {
    pub(crate) fn of_buffer(buffer: DeviceBuffer) -> Storage {
        Storage {
            address: buffer.address(),
            bytes: buffer.bytes(),
            context: Some(buffer.context().clone()),
            recording: None,
            hold: Hold::Buffer(buffer),
        }
    }

    /// The same bytes without their block, which may be given back: only the memory is kept from being unmapped.
    pub(crate) fn unheld(&self, keep: std::sync::Arc<dyn Any + Send + Sync>) -> Storage {
        Storage {
            address: self.address,
            bytes: self.bytes,
            context: self.context.clone(),
            recording: self.recording,
            hold: Hold::Nothing(keep),
        }
    }

    /// Makes the memory's return wait for the event, where it would happen in the order of some stream.
    pub(crate) fn return_after(&self, event: &Event) -> Result<()> {
        match &self.hold {
            Hold::Buffer(buffer) | Hold::Traced(buffer, _) => buffer.return_after(event),
            _ => Ok(()),
        }
    }
}
