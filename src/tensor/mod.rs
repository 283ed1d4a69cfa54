//! Tensors: an element type, a layout, and memory that someone owns.
//!
//! - `dtype`: element types.
//! - `layout`: shape and strides.
//! - `storage`: where the bytes lie and who gives them back.
//! - `owned`: [`Tensor`], which shares its storage with its views and clones.
//! - `weak`: [`WeakTensor`], which owns nothing.
//! - `transfer`: host data in and out.
//! - `argument`: tensors and values as kernel arguments.
//! - `dlpack`: tensors as DLPack views.
//! - `static_input`: buffers that captures read; `tail`: what their padded tails hold.
//! - `comparison`: whether two tensors differ, and where.
//! - `padding`: the scrub of padded tails, the landing of a break's result, slices to the valid rows.

mod argument;
pub(crate) mod comparison;
#[cfg(feature = "dlpack")]
pub mod dlpack;
mod dtype;
mod layout;
mod owned;
pub(crate) mod padding;
mod static_input;
pub(crate) mod storage;
mod tail;
mod transfer;
mod weak;

pub use argument::{Arg, MAX_ARGUMENTS};
pub(crate) use dtype::bytes_of;
pub use dtype::{DType, Element};
pub use layout::{Layout, MAX_RANK};
pub use owned::{Location, Tensor};
pub use padding::{scrub_padding_tail, slice_to_real_tokens};
pub use static_input::StaticInput;
pub(crate) use tail::TailPattern;
pub use tail::{Scalar, TailRule};
pub use weak::{WeakRef, WeakTensor, weak_ref};
