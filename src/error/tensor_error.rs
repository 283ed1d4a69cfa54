//! Tensors that don't fit.

use crate::tensor::{DType, Layout};

/// A tensor, a shape or a range that does not fit what it is used for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// A shape that does not fit.
    #[error(
        "{what}: expected {expected}, got {got}: give a tensor of that shape, or a view of one (`reshape`, `narrow`)"
    )]
    Shape {
        /// What was checked.
        what: &'static str,
        /// What would have fit.
        expected: String,
        /// What was given.
        got: Box<Layout>,
    },
    /// Another element type than expected.
    #[error("{what}: expected elements of {expected}, got {got}: give a tensor of that type, or convert it before")]
    DType {
        /// What was checked.
        what: &'static str,
        /// What would have fit.
        expected: DType,
        /// What was given.
        got: DType,
    },
    /// More dimensions than [`Layout`] holds, or a size that overflows.
    #[error("{reason}")]
    Layout {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Result and handoff overlap without being the same place.
    #[error(
        "the result overlaps the handoff without being the same place: write the handoff itself (`output`), or another tensor"
    )]
    Overlap,
    /// A tensor to be written whose elements share memory, as in a broadcast: which of them would be left there is anybody's guess.
    #[error(
        "{what}: elements of {layout} share memory, or lie so that they may, and which value would be left there is undefined: write a tensor of its own, and broadcast that for reading"
    )]
    SharedElements {
        /// What was to be written.
        what: &'static str,
        /// Its shape and strides.
        layout: Box<Layout>,
    },
    /// An address that is no multiple of the element size.
    #[error(
        "{what} begins at {address:#x}, which is no multiple of the {} bytes of an element ({dtype}), so that kernels can't read it: begin at a multiple, or take bytes (u8)",
        dtype.size()
    )]
    Misaligned {
        /// What was given.
        what: &'static str,
        /// The address.
        address: u64,
        /// The element type.
        dtype: DType,
    },
    /// More elements than the host has memory for, to be read as values of their own.
    #[error("the host has no memory for {elements} elements of {dtype}: read part of the tensor (`narrow`)")]
    HostMemory {
        /// How many elements.
        elements: usize,
        /// Their type.
        dtype: DType,
    },
    /// A range that ends past what it is taken from.
    #[error("the range ends at {end}, past the {what}'s length of {length}: end it there or before")]
    OutOfRange {
        /// What it is a range of.
        what: &'static str,
        /// Its end.
        end: usize,
        /// The length.
        length: usize,
    },
    /// A tensor in host memory where one on the device is needed, or the other way round.
    #[error("{what} must be in {expected} memory: copy it there before")]
    Location {
        /// What was given.
        what: &'static str,
        /// `device` or `host`.
        expected: &'static str,
    },
    /// A rule for the padded tail of a static input that does not fit its element type.
    #[error("static input {input} ({dtype}): {reason}. Give a rule that its element type can hold")]
    UnfitTail {
        /// The input's name.
        input: &'static str,
        /// Its element type.
        dtype: DType,
        /// Why it does not fit.
        reason: &'static str,
    },
    /// More rows than there is room for. Nothing was copied.
    #[error(
        "static input {input}: {rows} rows, where there is room for {most}: run this batch eagerly, or capture a larger bucket"
    )]
    TooManyRows {
        /// The input's name.
        input: &'static str,
        /// Rows given.
        rows: usize,
        /// Rows there is room for.
        most: usize,
    },
}
