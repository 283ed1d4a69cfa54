//! Raw driver: types and signatures from `cuda.h`, the list of calls, and [`Driver`], the table of resolved entry points.
//!
//! - `calls` is the one list of driver calls.
//! - `call` makes from it the [`Call`] names, `table` the [`Table`] of function pointers and a checked method of [`Driver`] per call.
//! - `call_error` is a call that failed, `first_failure` the thread's first of them.
//! - `search` is where libcuda is looked for, `load` starts it and resolves the calls, `load_error` is what is wrong with one that will not do.
//! - `struct_fields` reads and writes fields that not every header has under the same name, `zeroed` makes structures to fill.
//! - `backend` (feature `reference-driver`) is how a driver inside the process registers; `intercept` counts calls and makes the n-th of them fail, for
//!   tests on any driver.

#[cfg(feature = "reference-driver")]
mod backend;
mod call;
mod call_error;
mod calls;
mod codes;
mod driver;
pub(crate) mod first_failure;
#[cfg(feature = "reference-driver")]
pub mod intercept;
mod load;
mod load_error;
mod search;
mod struct_fields;
mod table;
mod zeroed;

#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
// A header before or after the forms that the list names: its optional functions are not looked at.
#[cfg_attr(not(header_declares_optional_calls), allow(dead_code))]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
pub use call::Call;
pub use call_error::CallError;
pub(crate) use driver::DriverId;
pub use driver::{Driver, Origin};
pub use load_error::{LoadError, MINIMUM_VERSION};
pub use search::{Candidate, Outcome, Search};
pub(crate) use struct_fields::{device_location, set_max_size};
pub use table::Table;
pub(crate) use zeroed::zeroed;
#[cfg(feature = "reference-driver")]
pub(crate) use {
    backend::Backend,
    calls::for_each_call,
    codes::name as code_name,
    load::{base_name, of_backend},
    struct_fields::{location_parts, max_size},
};
