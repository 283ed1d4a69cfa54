//! Recording and replaying: segments, breaks of each kind, the thread's state, what a caller can get wrong, and driver calls that fail.

#[path = "../../examples/support/blas.rs"]
mod blas;
#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod breaks;
mod faults;
mod frozen;
mod in_flight;
mod memset_nodes;
mod numbers;
mod patched;
mod reported;
mod seed;
mod sides;
mod streams;
mod threads;
mod verify;
