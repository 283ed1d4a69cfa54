//! A small model with two breaks, one of which reads live metadata.

use crate::support::demo::Ops;
use crate::support::{Rig, random_values};
use breakable_cuda_graph::driver::Stream;
use breakable_cuda_graph::prefill::{Batch, InputData, InputSpec, Mode, OutputSpec, PrefillModel, TailRule};
use breakable_cuda_graph::{BreakKind, BreakOptions, DType, Error, Result, Scope, Tensor, current_stream};
use std::borrow::Cow;

pub const WIDTH: usize = 8;
const WORDS: usize = 32;

/// What breaks read, and what decides about the batch.
pub struct Meta {
    pub offsets: Tensor,
    pub mode: Mode<u32>,
    pub reject: Option<&'static str>,
}

/// `embed(ids) + x`, then two layers: a product, a break, a residual sum.
pub struct Small {
    pub ops: Ops,
    words: Tensor,
    positions: Tensor,
    types: Tensor,
    weights: [Tensor; 2],
    /// Returns something else than declared.
    pub wrong: Wrong,
    /// An index input without a tail rule.
    pub without_tail: bool,
    /// What its breaks are.
    pub kind: BreakKind,
}

/// How the forward misbehaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    /// Another width while a segment is open.
    WidthInSegment,
    /// One output too few for more rows than this.
    CountAbove(usize),
    /// Its own error in the second layer for buckets of these rows.
    FailsAt(usize),
    /// A panic there.
    PanicsAt(usize),
    /// One more operation for buckets of these rows.
    MoreAt(usize),
}

impl Small {
    pub fn new(rig: &Rig) -> Small {
        Small::try_new(&rig.ops, &rig.stream).expect("a model")
    }

    pub fn try_new(ops: &Ops, stream: &Stream) -> Result<Small> {
        let table = |seed, rows| Tensor::from_slice(stream, &random_values(seed, rows * WIDTH), &[rows, WIDTH]);
        Ok(Small {
            ops: ops.clone(),
            words: table(1, WORDS)?,
            positions: table(2, WORDS)?,
            types: table(3, 1)?,
            weights: [table(4, WIDTH)?, table(5, WIDTH)?],
            wrong: Wrong::Nothing,
            without_tail: false,
            kind: BreakKind::Live,
        })
    }
}

impl PrefillModel for Small {
    type Context = Meta;
    type Key = u32;

    fn inputs(&self) -> Vec<InputSpec> {
        let ids = InputSpec::rows("ids", DType::I32, &[]);
        let ids = if self.without_tail { ids } else { ids.tail(TailRule::DummySlot(-1)) };
        let x = InputSpec::rows("x", DType::F32, &[WIDTH]).tail(TailRule::Zero);
        vec![ids, x, InputSpec::fixed("bias", DType::F32, &[WIDTH])]
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        vec![OutputSpec::rows("hidden", DType::F32, &[WIDTH]), OutputSpec::rows("activated", DType::F32, &[WIDTH])]
    }

    fn key(&self) -> u32 {
        7
    }

    fn dummy(&self, stream: &Stream, rows: usize) -> Result<Meta> {
        // Many short sequences: attention over one long one would take its square.
        Meta::of(stream, &vec![4; rows.div_ceil(4)])
    }

    fn mode(&self, context: &Meta) -> Mode<u32> {
        context.mode
    }

    fn reject(&self, context: &Meta, _: usize) -> Option<Cow<'static, str>> {
        context.reject.map(Cow::Borrowed)
    }

    fn forward<'m>(&'m self, scope: &Scope<'_, 'm>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [ids, x, bias] = inputs else { return Err(Error::user("three inputs")) };
        let h = self.ops.embed(ids, ids, [&self.words, &self.positions, &self.types])?;
        let mut h = self.ops.add(&h, x)?;
        self.ops.add_bias(&current_stream()?, bias, &h)?;
        for (layer, weight) in self.weights.iter().enumerate() {
            let product = self.ops.matmul(&h, weight)?;
            if layer == 1 {
                match self.wrong {
                    Wrong::FailsAt(rows) if rows == h.rows() => return Err(Error::user("the model's own error")),
                    Wrong::PanicsAt(rows) if rows == h.rows() => panic!("the model's own panic"),
                    Wrong::MoreAt(rows) if rows == h.rows() => drop(self.ops.relu(&h)?),
                    _ => {}
                }
            }
            let options = BreakOptions::new(["first", "second"][layer]).kind(self.kind);
            let attended = scope.break_point(options, [&product], move |b| {
                let x = b.input(0)?;
                let y = b.empty(DType::F32, x.shape())?;
                // Rows that attention does not write are as bad as can be.
                self.ops.fill(b.stream(), &y, f32::NAN)?;
                let offsets = &b.forward_ctx::<Meta>()?.offsets;
                self.ops.attention_into(b.stream(), [x, x, x], offsets, 2, &y)?;
                Ok(y)
            })?;
            h = self.ops.add(&attended, &h)?;
        }
        let activated = self.ops.gelu(&h)?;
        match self.wrong {
            Wrong::WidthInSegment if scope.is_capturing() => Ok(vec![h.narrow(1, 0, WIDTH - 1)?, activated]),
            Wrong::CountAbove(rows) if h.rows() > rows => Ok(vec![h]),
            _ => Ok(vec![h, activated]),
        }
    }
}

impl Meta {
    /// Sequences of these lengths, to be replayed.
    pub fn of(stream: &Stream, lengths: &[usize]) -> Result<Meta> {
        let mut offsets = vec![0_i32];
        for length in lengths {
            offsets.push(offsets[offsets.len() - 1] + *length as i32);
        }
        let offsets = Tensor::from_slice(stream, &offsets, &[offsets.len()])?;
        Ok(Meta { offsets, mode: Mode::Eligible(7), reject: None })
    }
}

/// A batch that owns what it is made of.
pub struct Owned {
    pub rows: usize,
    pub meta: Meta,
    ids: Vec<i32>,
    x: Vec<f32>,
    bias: Vec<f32>,
}

impl Owned {
    /// A batch of this many rows in one to three sequences, that depends on the seed alone.
    pub fn new(stream: &Stream, seed: u64, rows: usize) -> Owned {
        let first = rows / 3;
        let lengths = [first, rows - first].map(|length| length.max(usize::from(rows == 0)));
        let meta = if rows == 0 { Meta::of(stream, &[0]) } else { Meta::of(stream, &lengths) };
        let ids = (0..rows).map(|row| ((seed as usize * 7 + row * 5) % WORDS) as i32).collect();
        let (x, bias) = (random_values(seed, rows * WIDTH), random_values(seed + 1, WIDTH));
        Owned { rows, meta: meta.expect("offsets"), ids, x, bias }
    }

    /// Hands the batch to `run`.
    pub fn with<T>(&self, run: impl FnOnce(&Batch<'_, Meta>) -> T) -> T {
        let inputs = [InputData::host(&self.ids), InputData::host(&self.x), InputData::host(&self.bias)];
        run(&Batch { rows: self.rows, context: &self.meta, inputs: &inputs })
    }
}
