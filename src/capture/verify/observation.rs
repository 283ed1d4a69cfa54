//! What was seen of one run: copies of handoffs and outputs, and where two runs differ.

use crate::capture::breaks::options::BreakOptions;
use crate::capture::forward::frame::BreakObserver;
use crate::driver::Stream;
use crate::error::{Difference, Result};
use crate::pool::PoolHandle;
use crate::tensor::comparison::{compare, first_difference};
use crate::tensor::padding::land;
use crate::tensor::{DType, Location, Tensor};
use std::cell::RefCell;

/// Copies of what a run has made, in the stream's order.
#[derive(Default)]
pub(super) struct Observation {
    pub(super) breaks: Vec<BreakSeen>,
    pub(super) outputs: Vec<Tensor>,
    /// The static inputs as they were before it.
    pub(super) filled: Vec<Tensor>,
}

/// A break that has run.
pub(super) struct BreakSeen {
    pub(super) name: String,
    /// Whether its results' leading dimension is rows.
    pub(super) rows: bool,
    /// Those in device memory, where inputs are kept.
    pub(super) inputs: Vec<Option<Tensor>>,
    pub(super) results: Vec<Tensor>,
}

/// A tensor of a run that is compared with that of another run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spot {
    /// What a break was given, by its place among the breaks. Looked at only where its results differ.
    BreakInput {
        at: usize,
        input: usize,
    },
    /// What it has given.
    Handoff {
        at: usize,
        result: usize,
    },
    Output(usize),
}

/// Takes copies.
#[derive(Clone, Copy)]
pub(super) struct Copies<'a> {
    pub(super) pool: &'a PoolHandle,
    pub(super) stream: &'a Stream,
    /// Whether the inputs of breaks are kept too.
    pub(super) inputs: bool,
}

impl Copies<'_> {
    /// A row-major copy.
    pub(super) fn of(&self, tensor: &Tensor) -> Result<Tensor> {
        let copy = self.pool.temporary(self.stream, tensor.dtype(), tensor.shape())?;
        land(self.stream, tensor, &copy, None)?;
        Ok(copy)
    }

    pub(super) fn of_all<'t>(&self, tensors: impl Iterator<Item = &'t Tensor>) -> Result<Vec<Tensor>> {
        tensors.map(|tensor| self.of(tensor)).collect()
    }

    pub(super) fn of_break(
        &self,
        options: &BreakOptions,
        inputs: &[Option<Tensor>],
        results: &[Tensor],
    ) -> Result<BreakSeen> {
        let on_device = |input: &&Tensor| input.place() == Location::Device && self.inputs;
        let inputs =
            inputs.iter().map(|input| input.as_ref().filter(on_device).map(|input| self.of(input)).transpose());
        Ok(BreakSeen {
            name: options.name.to_string(),
            rows: options.leading_dimension_is_rows,
            inputs: inputs.collect::<Result<_>>()?,
            results: self.of_all(results.iter())?,
        })
    }
}

/// Keeps what an eager forward's breaks give.
pub(super) struct Keeper {
    pool: PoolHandle,
    inputs: bool,
    seen: RefCell<Vec<BreakSeen>>,
}

impl Keeper {
    pub(super) fn new(pool: &PoolHandle, inputs: bool) -> Keeper {
        Keeper { pool: pool.clone(), inputs, seen: RefCell::default() }
    }

    pub(super) fn take(&self) -> Vec<BreakSeen> {
        self.seen.take()
    }
}

impl BreakObserver for Keeper {
    fn break_ran(
        &self,
        options: &BreakOptions,
        stream: &Stream,
        inputs: &[Option<Tensor>],
        results: &[Tensor],
    ) -> Result<()> {
        let copies = Copies { pool: &self.pool, stream, inputs: self.inputs };
        let seen = copies.of_break(options, inputs, results)?;
        self.seen.borrow_mut().push(seen);
        Ok(())
    }
}

/// Comparisons on the device, each with a flag, which are all read together.
pub(super) struct Comparisons<'a> {
    pool: &'a PoolHandle,
    stream: &'a Stream,
    chunks: Vec<Tensor>,
    used: usize,
}

/// Flags of a piece of memory.
const CHUNK: usize = 256;

impl<'a> Comparisons<'a> {
    pub(super) fn new(pool: &'a PoolHandle, stream: &'a Stream) -> Self {
        Comparisons { pool, stream, chunks: Vec::new(), used: 0 }
    }

    /// Enqueues one. They are numbered from 0 on.
    pub(super) fn add(&mut self, left: &Tensor, right: &Tensor) -> Result<()> {
        let at = self.used % CHUNK;
        if at == 0 {
            let chunk = self.pool.temporary(self.stream, DType::I32, &[CHUNK])?;
            chunk.fill_bytes(self.stream, 0)?;
            self.chunks.push(chunk);
        }
        if let Some(chunk) = self.chunks.last() {
            compare(self.stream, left, right, &chunk.narrow(0, at, 1)?)?;
        }
        self.used += 1;
        Ok(())
    }

    /// The numbers of those that have found a difference, ascending. Waits for them.
    pub(super) fn found(&self) -> Result<Vec<usize>> {
        let mut flags = Vec::new();
        for chunk in &self.chunks {
            flags.extend(chunk.read::<i32>(self.stream)?);
        }
        Ok(flags.iter().take(self.used).enumerate().filter(|(_, flag)| **flag != 0).map(|(number, _)| number).collect())
    }
}

/// The parts of two tensors that are to be equal: the first rows that both have, where these are rows, or all. `None` where they are not of one kind.
pub(super) fn comparable(
    left: &Tensor,
    right: &Tensor,
    rows: bool,
    valid_rows: Option<usize>,
) -> Option<(Tensor, Tensor)> {
    if left.dtype() != right.dtype() {
        return None;
    }
    if rows && left.layout().rank() > 0 && left.layout().same_row_shape(right.layout()) {
        let rows = left.rows().min(right.rows()).min(valid_rows.unwrap_or(usize::MAX));
        return Some((left.leading_rows(rows), right.leading_rows(rows)));
    }
    (left.shape() == right.shape()).then(|| (left.clone(), right.clone()))
}

/// The first element by which two copies differ more than allowed.
pub(super) fn difference(
    stream: &Stream,
    pool: &PoolHandle,
    (left, right): (&Tensor, &Tensor),
    tolerance: f64,
) -> Result<Option<Difference>> {
    let mut one = Comparisons::new(pool, stream);
    one.add(left, right)?;
    if one.found()?.is_empty() {
        return Ok(None);
    }
    first_difference(stream, left, right, tolerance)
}
