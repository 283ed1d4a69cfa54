//! Owned handles over the driver's objects, one family per file. All `unsafe` calls of the driver are made here.
//!
//! - A handle holds its parents, so nothing outlives its context.
//! - Nothing depends on what the calling thread has current. Calls on a stream (launches, copies, events, capture) use the stream's context,
//!   whatever is current; every other call makes the handle's own context current and puts back what was, on error too.
//! - A handle that is dropped while a capture is open on its context is destroyed when that capture closes ([`Context`]).
//! - `from_raw` takes over a foreign handle, `borrow_raw` uses one and can keep its owner alive, `as_raw` hands one out.

mod address_range;
mod buffer;
mod builtin_kernels;
mod capture_mode;
pub(crate) mod capture_state;
mod context;
mod copy;
mod current;
mod deferred_drop;
mod device;
mod event;
mod event_mark;
mod exec;
mod forks;
pub(crate) mod graph;
mod keep_alive;
mod launch;
pub(crate) mod launch_list;
pub(crate) mod live_break;
mod memory_pool;
mod memset_nodes;
mod module;
pub(crate) mod open_capture;
pub(crate) mod operation;
mod recording_id;
mod registry;
mod stream;
pub(crate) mod stream_order;

pub use crate::kernels::{LaunchAttributes, LaunchConfig};
pub(crate) use address_range::{AddressRange, Mapping};
pub use buffer::{DeviceBuffer, PinnedBuffer};
pub use capture_mode::CaptureMode;
pub use context::{Context, MemoryInfo};
pub(crate) use current::Bound;
pub use deferred_drop::DropError;
pub use device::Device;
pub use event::{Event, EventFlags};
pub use exec::{FailedNode, GraphExec, InstantiateError, InstantiateFlags};
pub use graph::{Graph, NodeCounts};
pub use keep_alive::KeepAlive;
pub(crate) use keep_alive::keep;
pub(crate) use memory_pool::trim_all;
pub use memory_pool::{MemoryPool, MemoryPoolOptions, MemoryPoolUsage};
pub(crate) use module::is_module;
pub use module::{Kernel, Module, ParameterInfo};
pub use operation::outside_capture;
pub(crate) use recording_id::RecordingId;
pub use registry::DropHook;
pub use stream::{Stream, StreamKind, StreamOptions};
