//! A stretch: the segments and recorded breaks between two live breaks, as one exec.
//!
//! Segments and the bodies of recorded breaks are nodes of one graph. On a replay each body is recorded anew, and put in its place in the exec where
//! it differs from what is there; then the exec is launched once. Where a body has other nodes than the exec, another exec of the same stretch, made
//! for bodies of that shape, is used, or made. Above a bound on such execs, and where a body asks for more scratch than it did at capture, the stretch
//! is launched piece by piece, with its breaks live.
//!
//! - `body` records bodies; `scratch` is where their temporaries lie. `variant` is an exec of a stretch. `stats` counts.
//!
//! Invariants:
//! 1. A variant is launched only after each of its bodies is known to be the one that was recorded for this replay: patched in, or equal in all that a
//!    launch takes.
//! 2. What the current bodies refer to is kept until the next ones have taken their place, and given back after the last launch.

mod body;
pub(super) mod scratch;
mod stats;
mod variant;

pub(super) use body::{RecordedPiece, Recording};
pub use stats::RecordedStats;

use super::program::BreakStep;
use crate::driver::window::{Kept, Window};
use crate::driver::{Graph, GraphExec, InstantiateFlags, Stream};
use crate::error::{Error, Result};
use crate::pool::PoolHandle;
use body::is_of_captures;
use variant::{Making, Variant};

/// A part of a stretch.
pub(super) enum Piece<'env> {
    /// A segment that has nodes.
    Segment(SegmentPiece),
    /// A recorded break.
    Recorded(Box<RecordedPiece<'env>>),
}

pub(super) struct SegmentPiece {
    pub(super) graph: Graph,
    pub(super) index: usize,
    pub(super) nodes: usize,
    /// Made when it is launched alone.
    pub(super) exec: Option<GraphExec>,
}

pub(super) struct Stretch<'env> {
    pieces: Vec<Piece<'env>>,
    /// The one that was launched last comes first, then the one before.
    variants: Vec<Variant>,
    /// Where bodies are recorded.
    side: Stream,
    options: StretchOptions,
    stats: RecordedStats,
    /// What earlier bodies referred to, to be let go of after the replay.
    retired: Vec<Kept>,
}

/// How stretches are made.
#[derive(Clone, Copy)]
pub(super) struct StretchOptions {
    pub(super) flags: InstantiateFlags,
    /// The nodes' priority, where the flags ask for it.
    pub(super) priority: Option<i32>,
    /// The most execs of one for bodies of other nodes, at least 1.
    pub(super) max_shapes: usize,
    /// The most execs for bodies of the same nodes, at least 1.
    pub(super) max_configs: usize,
    /// Whether its execs are the pool's, for all captures that ask for it.
    pub(super) share: bool,
    /// Its place in the capture: execs are shared by those of the same place.
    pub(super) place: usize,
}

impl StretchOptions {
    fn max_variants(&self) -> usize {
        self.max_shapes.saturating_mul(self.max_configs)
    }

    fn making<'p>(&self, pool: &'p PoolHandle) -> Making<'p> {
        let StretchOptions { flags, priority, place, .. } = *self;
        Making { flags, priority, place, shared: self.share.then(|| pool.shared_execs()) }
    }
}

impl<'env> Stretch<'env> {
    /// One exec of pieces whose bodies have been recorded. `stream`: where it is uploaded.
    pub(super) fn new(
        mut pieces: Vec<Piece<'env>>,
        side: Stream,
        options: StretchOptions,
        pool: &PoolHandle,
        stream: &Stream,
    ) -> Result<Stretch<'env>> {
        let variant = Variant::new(&mut pieces, options.making(pool), stream)?;
        let mut retired = Vec::new();
        recorded(&mut pieces).for_each(|piece| piece.adopt(&mut retired));
        let (variants, stats) = (vec![variant], RecordedStats::default());
        Ok(Stretch { pieces, variants, side, options, stats, retired })
    }

    pub(super) fn pieces(&self) -> &[Piece<'env>] {
        &self.pieces
    }

    pub(super) fn breaks(&self) -> impl Iterator<Item = &BreakStep<'env>> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Segment(_) => None,
            Piece::Recorded(recorded) => Some(&recorded.step),
        })
    }

    /// The exec that was launched last, unless it is shared.
    pub(super) fn exec(&self) -> Option<&GraphExec> {
        self.variants.first()?.exec()
    }

    pub(super) fn stats(&self) -> RecordedStats {
        RecordedStats { execs: self.variants.len(), ..self.stats }
    }

    /// What may be let go of once the turn is over.
    pub(super) fn take_retired(&mut self, into: &mut Vec<Kept>) {
        into.append(&mut self.retired);
    }

    /// What the bodies that are in the exec refer to.
    pub(super) fn take_kept(&mut self, into: &mut Vec<Kept>) {
        self.take_retired(into);
        recorded(&mut self.pieces).for_each(|piece| piece.take_kept(into));
    }

    /// Records the bodies, sees to it that an exec has them, and launches it.
    pub(super) fn run(&mut self, stream: &Stream, valid_rows: Option<usize>, pool: &PoolHandle) -> Result<()> {
        match record_bodies(&mut self.pieces, Recording { side: &self.side, valid_rows, pool }) {
            Ok(()) => {}
            Err(Error::ScratchExceeded { .. }) => return self.run_pieces(stream, valid_rows),
            Err(error) => return Err(error),
        }
        let ran = self.run_variant(stream, pool);
        // Launched or not, they may be in an exec.
        recorded(&mut self.pieces).for_each(|piece| piece.adopt(&mut self.retired));
        if ran? { Ok(()) } else { self.run_pieces(stream, valid_rows) }
    }

    /// Launches a variant that has the recorded bodies. `false`: there is none, and there are too many already.
    fn run_variant(&mut self, stream: &Stream, pool: &PoolHandle) -> Result<bool> {
        let making = self.options.making(pool);
        let Stretch { pieces, variants, options, stats, .. } = self;
        let (count, max_configs) = (variants.len(), options.max_configs);
        let mut alike = 0;
        for index in 0..count {
            // Where others may be configured as the bodies are, one that isn't waits.
            let now = max_configs == 1 || variants[index].is_configured_for(pieces);
            if now && variants[index].run(pieces, making, stream, stats)? {
                variants[..=index].rotate_right(1);
                return Ok(true);
            }
            alike += usize::from(!now && variants[index].has_room_for(pieces));
        }
        if alike >= max_configs || alike > 0 && count >= options.max_variants() {
            // The one whose turn was the longest ago is the likeliest not to be wanted as it is.
            for index in (0..count).rev() {
                if variants[index].run(pieces, making, stream, stats)? {
                    variants[..=index].rotate_right(1);
                    return Ok(true);
                }
            }
        }
        if count >= options.max_variants() {
            return Ok(false);
        }
        let mut made = Variant::new(pieces, making, stream)?;
        stats.rebuilt += 1;
        // It was made with these bodies.
        let ran = made.run(pieces, making, stream, &mut RecordedStats::default());
        variants.insert(0, made);
        ran
    }

    /// Launches segment by segment, with breaks live.
    #[cold]
    fn run_pieces(&mut self, stream: &Stream, valid_rows: Option<usize>) -> Result<()> {
        self.stats.fell_back += 1;
        for piece in &mut self.pieces {
            match piece {
                Piece::Segment(segment) => {
                    let exec = match &mut segment.exec {
                        Some(exec) => exec,
                        none => none.insert(GraphExec::new(&segment.graph, self.options.flags)?),
                    };
                    // SAFETY: the program keeps what the graph refers to, and its return waits for what is running.
                    if let Err(error) = unsafe { exec.launch(stream) } {
                        return Err(Error::Segment { index: segment.index, source: Box::new(error) });
                    }
                }
                Piece::Recorded(recorded) => {
                    recorded.step.run(stream, valid_rows).map_err(|error| recorded.step.failed(error))?;
                }
            }
        }
        Ok(())
    }
}

/// Records the bodies for one replay.
fn record_bodies(pieces: &mut [Piece<'_>], with: Recording<'_>) -> Result<()> {
    if record_together(pieces, with)? {
        return Ok(());
    }
    // Which body it was is found when each has a capture of its own.
    recorded(pieces).try_for_each(|piece| piece.record(with))
}

/// Records the bodies; those whose launches are noted share a capture. `false`: one of them has enqueued something else.
fn record_together(pieces: &mut [Piece<'_>], with: Recording<'_>) -> Result<bool> {
    let mut window: Option<Window> = None;
    for piece in recorded(pieces) {
        if piece.notes {
            let open = match window.take() {
                Some(open) => open,
                None => piece.open(with)?,
            };
            if let Err(error) = piece.note(&open, with) {
                return Err(piece.failed(Some(error), body::close(open, with.side).err()));
            }
            window = Some(open);
            continue;
        }
        if !stayed_empty(window.take(), with)? {
            return Ok(false);
        }
        piece.capture(with)?;
    }
    stayed_empty(window, with)
}

/// Ends a capture that bodies have shared.
fn stayed_empty(window: Option<Window>, with: Recording<'_>) -> Result<bool> {
    let Some(window) = window else { return Ok(true) };
    match body::close(window, with.side) {
        Ok((graph, _)) => Ok(graph.len()? == 0),
        // Broken by what a body did.
        Err(failed) if is_of_captures(failed.end.code()) => Ok(false),
        Err(failed) => Err(failed.end.into()),
    }
}

/// The recorded breaks, in order.
fn recorded<'p, 'env>(pieces: &'p mut [Piece<'env>]) -> impl Iterator<Item = &'p mut RecordedPiece<'env>> {
    pieces.iter_mut().filter_map(|piece| match piece {
        Piece::Recorded(recorded) => Some(&mut **recorded),
        Piece::Segment(_) => None,
    })
}

fn first_segment(pieces: &[Piece<'_>]) -> usize {
    let mut segments = pieces.iter().filter_map(|piece| match piece {
        Piece::Segment(segment) => Some(segment.index),
        Piece::Recorded(_) => None,
    });
    segments.next().unwrap_or(0)
}
