//! A exec: an exec of a composite for bodies of certain shapes.

use super::body::Work;
use super::stats::PatchStats;
use super::{Part, first_segment, patched};
use crate::capture::composite::shared::{Member, SharedExec, SharedExecs};
use crate::driver::graph::Node;
use crate::driver::launch_list::LaunchList;
use crate::driver::{Bound, Graph, GraphExec, InstantiateFlags, Stream};
use crate::error::{Error, Misuse, Result};
use std::ops::Range;
use std::sync::Arc;

pub(crate) struct CompositeExec {
    exec: Exec,
    /// The graph, which its nodes are of.
    member: Member,
    slots: Vec<BodySlot>,
}

enum Exec {
    Own(GraphExec),
    Shared(Arc<SharedExec>),
}

/// A body's place in a exec.
enum BodySlot {
    /// A kernel node for each launch. `held`: the launches that the nodes have, where that is known.
    Launches { nodes: Range<usize>, held: LaunchList, known: bool },
    /// A child graph.
    Child { node: usize },
}

/// How execs are made.
#[derive(Clone, Copy)]
pub(crate) struct ExecParams<'a> {
    pub(crate) flags: InstantiateFlags,
    /// What the nodes that are made of launches have; captured ones have their stream's.
    pub(crate) priority: Option<i32>,
    /// The composite's place in its capture.
    pub(crate) place: usize,
    /// The pool's execs, where captures share them.
    pub(crate) shared: Option<&'a SharedExecs>,
}

/// What came of putting a body in its slot.
enum Patched {
    Unchanged,
    Changed {
        /// Whether a launch has another kernel or configuration than was there.
        reconfigured: bool,
    },
    /// The driver refuses: it has other nodes.
    Refused,
}

impl BodySlot {
    /// Whether launches meet as many kernel nodes, and a graph a child.
    fn has_room_for(&self, work: &Work) -> bool {
        match (self, work) {
            (BodySlot::Launches { nodes, .. }, Work::Launches(noted)) => nodes.len() == noted.len(),
            (BodySlot::Child { .. }, Work::Graph(_)) => true,
            _ => false,
        }
    }

    /// Whether nothing but arguments of launches is to be set, as far as is known.
    fn is_configured_for(&self, work: &Work) -> bool {
        match (self, work) {
            (BodySlot::Launches { held, known, .. }, Work::Launches(noted)) => *known && held.is_configured_like(noted),
            (BodySlot::Child { .. }, Work::Graph(_)) => true,
            _ => false,
        }
    }

    /// What is in the nodes is no longer known.
    fn forget(&mut self) {
        if let BodySlot::Launches { known, .. } = self {
            *known = false;
        }
    }

    /// The nodes were made with this body.
    fn made_with(&mut self, work: &Work) {
        if let (BodySlot::Launches { held, known, .. }, Work::Launches(noted)) = (self, work) {
            held.become_like(noted);
            *known = true;
        }
    }

    /// Puts a body in, which it has room for. `all`: the nodes that address the exec.
    fn patch(&mut self, (exec, bound): (&GraphExec, &Bound<'_>), all: &[Node], work: &Work) -> Result<Patched> {
        match (self, work) {
            (BodySlot::Launches { nodes, held, known }, Work::Launches(noted)) => {
                if *known && *held == *noted {
                    return Ok(Patched::Unchanged);
                }
                let (mut changed, mut reconfigured) = (false, false);
                // Should a call fail, nobody knows.
                let was_known = std::mem::take(known);
                let mut before = held.iter();
                for (node, launch) in all[nodes.clone()].iter().zip(noted.iter()) {
                    let before = before.next();
                    if !was_known || before != Some(launch) {
                        // SAFETY: the exec's own node or its counterpart in the exec's source, and a launch with its kernel's own parameters.
                        if !unsafe { exec.set_kernel(bound, *node, launch)? } {
                            return Ok(Patched::Refused);
                        }
                        changed = true;
                        reconfigured |= before.is_none_or(|before| !before.is_configured_like(launch));
                    }
                }
                drop(before);
                *known = true;
                if changed {
                    held.become_like(noted);
                }
                Ok(if changed { Patched::Changed { reconfigured } } else { Patched::Unchanged })
            }
            (BodySlot::Child { node }, Work::Graph(graph)) => {
                // SAFETY: a child of the exec's own graph or its counterpart in the exec's source.
                let taken = unsafe { exec.patch(all[*node], graph)? };
                Ok(if taken { Patched::Changed { reconfigured: false } } else { Patched::Refused })
            }
            _ => Ok(Patched::Refused),
        }
    }
}

impl CompositeExec {
    /// An exec of the segments and the recorded bodies.
    pub(crate) fn new(parts: &mut [Part<'_>], making: ExecParams<'_>, stream: &Stream) -> Result<CompositeExec> {
        let (member, mut slots) = build(parts, making, stream)?;
        let exec = match making.shared {
            Some(shared) => Exec::Shared(shared.join(&member, stream)?),
            None => {
                let exec = GraphExec::new(&member.graph, member.flags)?;
                exec.upload(stream)?;
                Exec::Own(exec)
            }
        };
        if let Exec::Own(_) = exec {
            // What a shared one has is looked at when it is its turn.
            for (slot, part) in slots.iter_mut().zip(patched(parts)) {
                if let Some(body) = &part.body {
                    slot.made_with(&body.work);
                }
            }
        }
        Ok(CompositeExec { exec, member, slots })
    }

    /// The exec, unless it is shared.
    pub(crate) fn exec(&self) -> Option<&GraphExec> {
        match &self.exec {
            Exec::Own(exec) => Some(exec),
            Exec::Shared(_) => None,
        }
    }

    /// Whether it has a node for each launch, and a child for each graph.
    pub(crate) fn has_room_for(&self, parts: &mut [Part<'_>]) -> bool {
        self.all_slots(parts, BodySlot::has_room_for)
    }

    /// Whether nothing but arguments of launches is to be set, as far as is known. Not for a shared exec.
    pub(crate) fn is_configured_for(&self, parts: &mut [Part<'_>]) -> bool {
        self.all_slots(parts, BodySlot::is_configured_for)
    }

    fn all_slots(&self, parts: &mut [Part<'_>], holds: impl Fn(&BodySlot, &Work) -> bool) -> bool {
        let mut slots = self.slots.iter();
        patched(parts).all(|part| {
            let work = part.body.as_ref().map(|body| &body.work);
            slots.next().zip(work).is_some_and(|(slot, work)| holds(slot, work))
        })
    }

    /// Puts the recorded bodies in where they differ from what is there, and launches. `false`: a body has other nodes.
    pub(crate) fn run(
        &mut self,
        parts: &mut [Part<'_>],
        making: ExecParams<'_>,
        stream: &Stream,
        stats: &mut PatchStats,
    ) -> Result<bool> {
        if !self.has_room_for(parts) {
            return Ok(false);
        }
        let CompositeExec { exec, member, slots } = self;
        let shared = match exec {
            Exec::Own(exec) => return patch_and_launch(slots, parts, (exec, &member.nodes), stream, stats),
            Exec::Shared(shared) => shared,
        };
        let current = shared.clone();
        let other;
        let turn = match current.turn(member, stream)? {
            Some(turn) => turn,
            None => {
                // It was made anew for others, after a capture was dropped.
                other = making.shared.ok_or(Error::Misuse(Misuse::Poisoned))?.join(member, stream)?;
                *shared = other.clone();
                let mut turn = other.turn(member, stream)?.ok_or(Error::Misuse(Misuse::Poisoned))?;
                turn.switched = true;
                turn
            }
        };
        if turn.switched {
            slots.iter_mut().for_each(BodySlot::forget);
            stats.switched += 1;
        }
        patch_and_launch(slots, parts, turn.parts().ok_or(Error::Misuse(Misuse::Poisoned))?, stream, stats)
    }
}

impl Drop for CompositeExec {
    fn drop(&mut self) {
        if let Exec::Shared(shared) = &self.exec {
            shared.leave(&self.member);
        }
    }
}

/// The graph of the segments and the recorded bodies, one after another, and the bodies' places in it.
fn build(parts: &[Part<'_>], making: ExecParams<'_>, stream: &Stream) -> Result<(Member, Vec<BodySlot>)> {
    let mut graph = Graph::new(stream.context())?;
    let (mut nodes, mut slots) = (Vec::<Node>::new(), Vec::new());
    for part in parts {
        let part = match part {
            Part::Segment(segment) => {
                nodes.push(graph.add_child(&segment.graph, nodes.last().copied())?);
                continue;
            }
            Part::Patched(part) => part,
        };
        let first = nodes.len();
        match part.body.as_ref().map(|body| &body.work) {
            Some(Work::Launches(noted)) => {
                for launch in noted.iter() {
                    // SAFETY: a launch of the crate's with its kernel's own parameters.
                    let added = unsafe { graph.add_kernel(launch, nodes.last().copied(), making.priority) };
                    nodes.push(added.map_err(|error| part.step.failed(error))?);
                }
                slots.push(BodySlot::Launches { nodes: first..nodes.len(), held: LaunchList::default(), known: false });
            }
            Some(Work::Graph(body)) => {
                let added = graph.add_child(body, nodes.last().copied());
                nodes.push(added.map_err(|error| part.step.failed(error))?);
                slots.push(BodySlot::Child { node: first });
            }
            None => return Err(Misuse::Poisoned.into()),
        }
    }
    Ok((Member::new(graph, nodes, making.flags, making.place), slots))
}

/// Puts the bodies into an exec, and launches it.
fn patch_and_launch(
    slots: &mut [BodySlot],
    parts: &mut [Part<'_>],
    (exec, nodes): (&GraphExec, &[Node]),
    stream: &Stream,
    stats: &mut PatchStats,
) -> Result<bool> {
    let bound = exec.context().bind()?;
    let mut counted = PatchStats::default();
    for (slot, part) in slots.iter_mut().zip(patched(parts)) {
        let Some(body) = &part.body else { return Err(Misuse::Poisoned.into()) };
        match slot.patch((exec, &bound), nodes, &body.work) {
            Ok(Patched::Unchanged) => counted.unchanged += 1,
            Ok(Patched::Changed { reconfigured }) => {
                counted.patched += 1;
                counted.reconfigured += u64::from(reconfigured);
            }
            Ok(Patched::Refused) => return Ok(false),
            Err(error) => return Err(part.step.failed(error)),
        }
    }
    // Each body counts once in a replay, whichever execs it was tried with.
    *stats += counted;
    // SAFETY: the program keeps what the segments refer to, the parts keep what the bodies do, and their return waits for what is running.
    match unsafe { exec.launch(stream) } {
        Ok(()) => Ok(true),
        Err(error) => Err(Error::Segment { index: first_segment(parts), source: Box::new(error) }),
    }
}
