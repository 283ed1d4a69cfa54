//! Composite graphs: the segments and patched breaks between two live breaks, as one exec. There are two doors: [`build`], and
//! [`run`](Composite::run) on each replay.
//!
//! Segments and the bodies of patched breaks are nodes of one graph. On a replay each body is recorded anew, and put in its place in the exec where
//! it differs from what is there; then the exec is launched once. Where a body has other nodes than the exec, another exec of the same composite graph,
//! made for bodies of those nodes, is used, or made. Above a bound on such execs, and where a body asks for more scratch than it did at capture, the
//! composite graph is launched part by part, with its breaks live.
//!
//! - `part`: a segment or a patched break. `patched_part`: a patched break, and its body. `exec`: an exec, with a slot for each body. `cache`: the
//!   execs of one composite graph. `shared`: execs in which captures of a pool take turns. `pool_execs`: what captures of
//!   one pool have together. `stats`: what it cost and saved.
//!
//! Invariants P1 to P3 of `docs/DESIGN.md`.

mod cache;
mod exec;
pub(super) mod part;
pub(super) mod patched_part;
mod pool_execs;
mod shared;
mod stats;

pub(super) use pool_execs::PoolExecs;
pub use stats::{ExecMemory, PatchStats};

use super::breaks::step::{BreakStep, Ran};
use super::options::{GraphOptions, Reconfigure};
use crate::driver::capture_state::CaptureState;
use crate::driver::open_capture::OpenCapture;
use crate::driver::{GraphExec, KeepAlive, RecordingId, Stream};
use crate::error::{Error, Result};
use crate::pool::PoolHandle;
use cache::ExecCache;
use exec::{CompositeExec, ExecParams};
use part::{Part, patched};
use patched_part::{BodyParams, is_of_captures};
use shared::SharedExecs;
use std::sync::Arc;

/// A composite graph.
pub(crate) struct Composite<'env> {
    parts: Vec<Part<'env>>,
    execs: ExecCache,
    /// Where bodies are recorded.
    body_stream: Stream,
    /// Of the captures in which they are.
    body_state: Arc<CaptureState>,
    /// Where its execs are from, if they are shared.
    shared: Option<Arc<SharedExecs>>,
    options: CompositeOptions,
    /// Its place in the capture: execs are shared by those of the same place.
    place: usize,
    stats: PatchStats,
    /// What earlier bodies referred to, to be dropped after the replay.
    replaced: Vec<KeepAlive>,
}

/// How composite graphs are made.
#[derive(Clone, Copy)]
pub(crate) struct CompositeOptions {
    pub(crate) graph: GraphOptions,
    /// The nodes' priority, where the flags ask for it.
    pub(crate) priority: Option<i32>,
}

impl CompositeOptions {
    /// What is done with other configurations. A shared exec is another capture's in between: it does not stay as it is.
    fn reconfigure(&self) -> Reconfigure {
        if self.graph.share_execs { Reconfigure::InPlace } else { self.graph.reconfigure }
    }

    fn exec_params<'p>(&self, place: usize, shared: Option<&'p SharedExecs>) -> ExecParams<'p> {
        ExecParams { flags: self.graph.instantiate, priority: self.priority, place, shared }
    }
}

/// Makes composite graphs of parts whose bodies have been recorded: one, or two where some breaks are launched ahead of the rest. `place`: the first's in
/// the capture, which is of `recording`. `stream`: where execs are uploaded.
pub(crate) fn build<'env>(
    mut parts: Vec<Part<'env>>,
    options: CompositeOptions,
    (recording, place): (RecordingId, usize),
    pool: &PoolHandle,
    stream: &Stream,
) -> Result<Vec<Composite<'env>>> {
    let rest = split_off_rest(&mut parts, options.graph.early_launch_divisor);
    let both = [parts, rest].into_iter().filter(|parts| !parts.is_empty()).enumerate();
    both.map(|(nth, parts)| Composite::new(parts, options, (recording, place + nth), pool, stream)).collect()
}

/// Leaves the parts that are launched first, with one in `divisor` of the patched breaks and what comes before the next one; and gives the rest.
fn split_off_rest<'env>(parts: &mut Vec<Part<'env>>, divisor: usize) -> Vec<Part<'env>> {
    let breaks = parts.iter().enumerate().filter(|(_, part)| matches!(part, Part::Patched(_)));
    let places: Vec<usize> = breaks.map(|(place, _)| place).collect();
    let early = places.len().checked_div(divisor).unwrap_or(0);
    match places.get(early) {
        Some(&next) if early > 0 => parts.split_off(next),
        _ => Vec::new(),
    }
}

impl<'env> Composite<'env> {
    fn new(
        mut parts: Vec<Part<'env>>,
        options: CompositeOptions,
        (recording, place): (RecordingId, usize),
        pool: &PoolHandle,
        stream: &Stream,
    ) -> Result<Composite<'env>> {
        let pool_execs = PoolExecs::of(pool)?;
        let shared = options.graph.share_execs.then(|| pool_execs.shared());
        let first = CompositeExec::new(&mut parts, options.exec_params(place, shared.as_deref()), stream)?;
        let execs = ExecCache::new(first, options.graph.max_execs, options.reconfigure());
        let mut replaced = Vec::new();
        patched(&mut parts).for_each(|part| part.adopt(&mut replaced));
        let body_stream = pool_execs.body_stream(pool.context(), stream)?;
        let (body_state, stats) =
            (CaptureState::new(body_stream.as_raw(), recording, part::first_segment(&parts)), PatchStats::default());
        Ok(Composite { parts, execs, body_stream, body_state, shared, options, place, stats, replaced })
    }

    pub(crate) fn parts(&self) -> &[Part<'env>] {
        &self.parts
    }

    /// Its patched breaks, in order.
    pub(crate) fn breaks(&self) -> impl Iterator<Item = &BreakStep<'env>> {
        self.parts.iter().filter_map(|part| match part {
            Part::Segment(_) => None,
            Part::Patched(patched) => Some(&patched.step),
        })
    }

    /// The exec that was launched last, unless it is shared.
    pub(crate) fn exec(&self) -> Option<&GraphExec> {
        self.execs.last()
    }

    /// How many execs it has, and their device memory. A shared one counts where its first graph is.
    pub(crate) fn execs(&self) -> ExecMemory {
        let alone = self.parts.iter().filter_map(|part| match part {
            Part::Segment(segment) => segment.exec.as_ref().map(ExecMemory::of),
            Part::Patched(_) => None,
        });
        alone.fold(self.execs.memory(), ExecMemory::and)
    }

    pub(crate) fn stats(&self) -> PatchStats {
        PatchStats { execs: self.execs.len(), ..self.stats }
    }

    /// What may be dropped once the replay lock is given back.
    pub(crate) fn take_replaced(&mut self, into: &mut Vec<KeepAlive>) {
        into.append(&mut self.replaced);
    }

    /// What the bodies that are in the exec refer to.
    pub(crate) fn take_kept(&mut self, into: &mut Vec<KeepAlive>) {
        self.take_replaced(into);
        patched(&mut self.parts).for_each(|part| part.take_kept(into));
    }

    /// Records the bodies, sees to it that an exec has them, and launches it.
    pub(crate) fn run(&mut self, stream: &Stream, valid_rows: Option<usize>, pool: &PoolHandle) -> Result<()> {
        let (body_stream, state, scrub_from) = (&self.body_stream, &self.body_state, valid_rows);
        let with = BodyParams { stream: body_stream, state, valid_rows, scrub_from, pool };
        match record_bodies(&mut self.parts, with) {
            Ok(()) => {}
            Err(Error::ScratchExceeded { .. }) => return self.fall_back(stream, valid_rows),
            Err(error) => return Err(error),
        }
        let params = self.options.exec_params(self.place, self.shared.as_deref());
        let ran = self.execs.run(&mut self.parts, params, stream, &mut self.stats);
        // Launched or not, they may be in an exec.
        patched(&mut self.parts).for_each(|part| part.adopt(&mut self.replaced));
        if ran? { Ok(()) } else { self.fall_back(stream, valid_rows) }
    }

    /// Launches segment by segment, with breaks live, as it must where bodies have no place in an exec.
    #[cold]
    fn fall_back(&mut self, stream: &Stream, valid_rows: Option<usize>) -> Result<()> {
        self.stats.fell_back += 1;
        self.run_part_by_part(stream, valid_rows, &mut |_| Ok(()))
    }

    /// Launches segment by segment, with breaks live, and shows each part that has run.
    pub(crate) fn run_part_by_part(
        &mut self,
        stream: &Stream,
        valid_rows: Option<usize>,
        ran: &mut dyn FnMut(Ran<'_, 'env>) -> Result<()>,
    ) -> Result<()> {
        for part in &mut self.parts {
            match part {
                Part::Segment(segment) => {
                    let index = segment.index;
                    let exec = segment.exec_alone(self.options.graph.instantiate, stream)?;
                    // SAFETY: the program keeps what the graph refers to, and its return waits for what is running.
                    if let Err(error) = unsafe { exec.launch(stream) } {
                        return Err(Error::segment(index, error));
                    }
                    ran(Ran::Segment(index))?;
                }
                Part::Patched(patched) => {
                    patched.run_live(stream, valid_rows)?;
                    ran(Ran::Break(&patched.step))?;
                }
            }
        }
        Ok(())
    }

    /// Drops the execs of segments alone. None of them runs.
    pub(crate) fn drop_execs_alone(&mut self) {
        for part in &mut self.parts {
            if let Part::Segment(segment) = part {
                segment.exec = None;
            }
        }
    }
}

/// Records the bodies for one replay.
fn record_bodies(parts: &mut [Part<'_>], with: BodyParams<'_>) -> Result<()> {
    if record_together(parts, with)? {
        return Ok(());
    }
    // Which body it was is found when each has a capture of its own.
    patched(parts).try_for_each(|part| part.record(with))
}

/// Records the bodies; those whose launches are listed share a capture. `false`: one of them has enqueued something else.
fn record_together(parts: &mut [Part<'_>], with: BodyParams<'_>) -> Result<bool> {
    let mut capture: Option<OpenCapture> = None;
    for part in patched(parts) {
        if part.lists_launches() {
            let open = match capture.take() {
                Some(open) => open,
                None => with.open()?,
            };
            if let Err(error) = part.list(&open, with) {
                return Err(part.failed(Some(error), open.close().err()));
            }
            capture = Some(open);
            continue;
        }
        if !stayed_empty(capture.take())? {
            return Ok(false);
        }
        part.capture(with)?;
    }
    stayed_empty(capture)
}

/// Ends a capture that bodies have shared.
fn stayed_empty(capture: Option<OpenCapture>) -> Result<bool> {
    let Some(capture) = capture else { return Ok(true) };
    match capture.close() {
        Ok(captured) => Ok(captured.graph.len()? == 0),
        // Broken by what a body did.
        Err(failed) if is_of_captures(failed.end.code()) => Ok(false),
        Err(failed) => Err(failed.end.into()),
    }
}
