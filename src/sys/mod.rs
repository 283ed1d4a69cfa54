//! Raw driver: types and signatures from `cuda.h`, the list of calls, and [`Driver`], the table of resolved entry points.
//!
//! - `calls` is the one list of driver calls.
//! - `table` makes from it the [`Call`] names, the [`Table`] of function pointers and a checked method of [`Driver`] per call.
//! - `search` is where libcuda is looked for, `load` starts it and resolves the calls, `load_error` is what is wrong with one that will not do.
//! - `struct_fields` reads and writes fields that not every header has under the same name.
//! - `intercept` (feature `reference-driver`) counts calls and makes the n-th of them fail, for tests on any driver.

mod calls;
mod codes;
mod driver;
#[cfg(feature = "reference-driver")]
pub mod intercept;
mod load;
mod load_error;
mod search;
mod struct_fields;
mod table;

#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
// A header before or after the forms that the list names: its optional functions are not looked at.
#[cfg_attr(not(header_declares_optional_calls), allow(dead_code))]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
pub(crate) use driver::DriverId;
pub use driver::{Driver, Origin};
pub use load::MINIMUM_VERSION;
pub use load_error::LoadError;
pub use search::{Candidate, Outcome, Search};
pub(crate) use struct_fields::{device_location, set_max_size};
pub(crate) use table::first_failure;
pub use table::{Call, CallError, Table};
#[cfg(feature = "reference-driver")]
pub(crate) use {
    calls::for_each_call,
    codes::name as code_name,
    load::base_name,
    struct_fields::{location_parts, max_size},
};
