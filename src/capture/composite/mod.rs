//! A composite: the segments and patched breaks between two live breaks, as one exec.
//!
//! Segments and the bodies of patched breaks are nodes of one graph. On a replay each body is recorded anew, and put in its place in the exec where
//! it differs from what is there; then the exec is launched once. Where a body has other nodes than the exec, another exec of the same composite, made
//! for bodies of that shape, is used, or made. Above a bound on such execs, and where a body asks for more scratch than it did at capture, the composite
//! is launched part by part, with its breaks live.
//!
//! - `body` records bodies; `scratch` is where their temporaries lie. `exec` is an exec of a composite. `stats` counts.
//!
//! Invariants:
//! 1. A exec is launched only after each of its bodies is known to be the one that was recorded for this replay: patched in, or equal in all that a
//!    launch takes.
//! 2. What the current bodies refer to is kept until the next ones have taken their place, and given back after the last launch.

mod body;
mod exec;
pub(crate) mod scratch;
pub(crate) mod shared;
mod stats;

pub(crate) use body::{PatchedPart, Recording};
pub use stats::PatchStats;

use super::program::BreakStep;
use crate::driver::open_capture::{KeepAlive, OpenCapture};
use crate::driver::{Graph, GraphExec, InstantiateFlags, Stream};
use crate::error::{Error, Result};
use crate::pool::PoolHandle;
use body::is_of_captures;
use exec::{CompositeExec, ExecParams};

/// A part of a composite.
pub(crate) enum Part<'env> {
    /// A segment that has nodes.
    Segment(SegmentPart),
    /// A patched break.
    Patched(Box<PatchedPart<'env>>),
}

pub(crate) struct SegmentPart {
    pub(crate) graph: Graph,
    pub(crate) index: usize,
    pub(crate) nodes: usize,
    /// Made when it is launched alone.
    pub(crate) exec: Option<GraphExec>,
}

pub(crate) struct Composite<'env> {
    parts: Vec<Part<'env>>,
    /// The one that was launched last comes first, then the one before.
    execs: Vec<CompositeExec>,
    /// Where bodies are recorded.
    side: Stream,
    options: CompositeOptions,
    stats: PatchStats,
    /// What earlier bodies referred to, to be let go of after the replay.
    replaced: Vec<KeepAlive>,
}

/// How composites are made.
#[derive(Clone, Copy)]
pub(crate) struct CompositeOptions {
    pub(crate) flags: InstantiateFlags,
    /// The nodes' priority, where the flags ask for it.
    pub(crate) priority: Option<i32>,
    /// The most execs of one for bodies of other nodes, at least 1.
    pub(crate) max_shapes: usize,
    /// The most execs for bodies of the same nodes, at least 1.
    pub(crate) max_configs: usize,
    /// Whether its execs are the pool's, for all captures that ask for it.
    pub(crate) share: bool,
    /// Its place in the capture: execs are shared by those of the same place.
    pub(crate) place: usize,
}

impl CompositeOptions {
    fn max_variants(&self) -> usize {
        self.max_shapes.saturating_mul(self.max_configs)
    }

    fn making<'p>(&self, pool: &'p PoolHandle) -> ExecParams<'p> {
        let CompositeOptions { flags, priority, place, .. } = *self;
        ExecParams { flags, priority, place, shared: self.share.then(|| pool.shared_execs()) }
    }
}

impl<'env> Composite<'env> {
    /// One exec of parts whose bodies have been recorded. `stream`: where it is uploaded.
    pub(crate) fn new(
        mut parts: Vec<Part<'env>>,
        side: Stream,
        options: CompositeOptions,
        pool: &PoolHandle,
        stream: &Stream,
    ) -> Result<Composite<'env>> {
        let exec = CompositeExec::new(&mut parts, options.making(pool), stream)?;
        let mut replaced = Vec::new();
        patched(&mut parts).for_each(|part| part.adopt(&mut replaced));
        let (execs, stats) = (vec![exec], PatchStats::default());
        Ok(Composite { parts, execs, side, options, stats, replaced })
    }

    pub(crate) fn parts(&self) -> &[Part<'env>] {
        &self.parts
    }

    pub(crate) fn breaks(&self) -> impl Iterator<Item = &BreakStep<'env>> {
        self.parts.iter().filter_map(|part| match part {
            Part::Segment(_) => None,
            Part::Patched(patched) => Some(&patched.step),
        })
    }

    /// The exec that was launched last, unless it is shared.
    pub(crate) fn exec(&self) -> Option<&GraphExec> {
        self.execs.first()?.exec()
    }

    pub(crate) fn stats(&self) -> PatchStats {
        PatchStats { execs: self.execs.len(), ..self.stats }
    }

    /// What may be let go of once the turn is over.
    pub(crate) fn take_retired(&mut self, into: &mut Vec<KeepAlive>) {
        into.append(&mut self.replaced);
    }

    /// What the bodies that are in the exec refer to.
    pub(crate) fn take_kept(&mut self, into: &mut Vec<KeepAlive>) {
        self.take_retired(into);
        patched(&mut self.parts).for_each(|part| part.take_kept(into));
    }

    /// Records the bodies, sees to it that an exec has them, and launches it.
    pub(crate) fn run(&mut self, stream: &Stream, valid_rows: Option<usize>, pool: &PoolHandle) -> Result<()> {
        match record_bodies(&mut self.parts, Recording { side: &self.side, valid_rows, pool }) {
            Ok(()) => {}
            Err(Error::ScratchExceeded { .. }) => return self.run_pieces(stream, valid_rows),
            Err(error) => return Err(error),
        }
        let ran = self.run_variant(stream, pool);
        // Launched or not, they may be in an exec.
        patched(&mut self.parts).for_each(|part| part.adopt(&mut self.replaced));
        if ran? { Ok(()) } else { self.run_pieces(stream, valid_rows) }
    }

    /// Launches a exec that has the recorded bodies. `false`: there is none, and there are too many already.
    fn run_variant(&mut self, stream: &Stream, pool: &PoolHandle) -> Result<bool> {
        let making = self.options.making(pool);
        let Composite { parts, execs, options, stats, .. } = self;
        let (count, max_configs) = (execs.len(), options.max_configs);
        let mut alike = 0;
        for index in 0..count {
            // Where others may be configured as the bodies are, one that isn't waits.
            let now = max_configs == 1 || execs[index].is_configured_for(parts);
            if now && execs[index].run(parts, making, stream, stats)? {
                execs[..=index].rotate_right(1);
                return Ok(true);
            }
            alike += usize::from(!now && execs[index].has_room_for(parts));
        }
        if alike >= max_configs || alike > 0 && count >= options.max_variants() {
            // The one whose turn was the longest ago is the likeliest not to be wanted as it is.
            for index in (0..count).rev() {
                if execs[index].run(parts, making, stream, stats)? {
                    execs[..=index].rotate_right(1);
                    return Ok(true);
                }
            }
        }
        if count >= options.max_variants() {
            return Ok(false);
        }
        let mut made = CompositeExec::new(parts, making, stream)?;
        stats.rebuilt += 1;
        // It was made with these bodies.
        let ran = made.run(parts, making, stream, &mut PatchStats::default());
        execs.insert(0, made);
        ran
    }

    /// Launches segment by segment, with breaks live.
    #[cold]
    fn run_pieces(&mut self, stream: &Stream, valid_rows: Option<usize>) -> Result<()> {
        self.stats.fell_back += 1;
        for part in &mut self.parts {
            match part {
                Part::Segment(segment) => {
                    let exec = match &mut segment.exec {
                        Some(exec) => exec,
                        none => none.insert(GraphExec::new(&segment.graph, self.options.flags)?),
                    };
                    // SAFETY: the program keeps what the graph refers to, and its return waits for what is running.
                    if let Err(error) = unsafe { exec.launch(stream) } {
                        return Err(Error::Segment { index: segment.index, source: Box::new(error) });
                    }
                }
                Part::Patched(patched) => {
                    patched.step.run(stream, valid_rows).map_err(|error| patched.step.failed(error))?;
                }
            }
        }
        Ok(())
    }
}

/// Records the bodies for one replay.
fn record_bodies(parts: &mut [Part<'_>], with: Recording<'_>) -> Result<()> {
    if record_together(parts, with)? {
        return Ok(());
    }
    // Which body it was is found when each has a capture of its own.
    patched(parts).try_for_each(|part| part.record(with))
}

/// Records the bodies; those whose launches are noted share a capture. `false`: one of them has enqueued something else.
fn record_together(parts: &mut [Part<'_>], with: Recording<'_>) -> Result<bool> {
    let mut window: Option<OpenCapture> = None;
    for part in patched(parts) {
        if part.notes {
            let open = match window.take() {
                Some(open) => open,
                None => part.open(with)?,
            };
            if let Err(error) = part.note(&open, with) {
                return Err(part.failed(Some(error), body::close(open, with.side).err()));
            }
            window = Some(open);
            continue;
        }
        if !stayed_empty(window.take(), with)? {
            return Ok(false);
        }
        part.capture(with)?;
    }
    stayed_empty(window, with)
}

/// Ends a capture that bodies have shared.
fn stayed_empty(window: Option<OpenCapture>, with: Recording<'_>) -> Result<bool> {
    let Some(window) = window else { return Ok(true) };
    match body::close(window, with.side) {
        Ok((graph, _)) => Ok(graph.len()? == 0),
        // Broken by what a body did.
        Err(failed) if is_of_captures(failed.end.code()) => Ok(false),
        Err(failed) => Err(failed.end.into()),
    }
}

/// The patched breaks, in order.
fn patched<'p, 'env>(parts: &'p mut [Part<'env>]) -> impl Iterator<Item = &'p mut PatchedPart<'env>> {
    parts.iter_mut().filter_map(|part| match part {
        Part::Patched(patched) => Some(&mut **patched),
        Part::Segment(_) => None,
    })
}

fn first_segment(parts: &[Part<'_>]) -> usize {
    let mut segments = parts.iter().filter_map(|part| match part {
        Part::Segment(segment) => Some(segment.index),
        Part::Patched(_) => None,
    });
    segments.next().unwrap_or(0)
}
