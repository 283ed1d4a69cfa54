//! What the driver answers while a stream is captured, and what its graphs do, row by row as measured on a device: the same on the reference
//! driver, and on libcuda with the feature `driver-tests`.

// Raw calls throughout: handles are those of the bench and live, places are valid, the context is current, and tensors outlive the work.
#![allow(clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block)]

mod bench;
mod capturing_thread;
mod contexts;
#[cfg(feature = "driver-tests")]
mod cublas;
mod edges;
mod graphs;
mod launches;
mod other_thread;
mod updates;
