//! An exec of a composite graph, for bodies of certain nodes.

use super::part::{Part, first_segment, patched};
use super::patched_part::Work;
use super::shared::{Member, SharedExec, SharedExecs};
use super::stats::{ExecMemory, PatchStats};
use crate::driver::graph::Node;
use crate::driver::launch_list::LaunchList;
use crate::driver::{Bound, Graph, GraphExec, InstantiateFlags, Stream};
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// An exec of a composite graph.
pub(super) struct CompositeExec {
    exec: Exec,
    /// The graph, which its nodes are of.
    member: Member,
    slots: Vec<BodySlot>,
}

enum Exec {
    Own(GraphExec),
    Shared(Arc<SharedExec>),
}

/// A body's place in an exec.
enum BodySlot {
    /// A kernel node for each launch. `held`: the launches that the nodes have, where that is known.
    Launches { nodes: Range<usize>, held: LaunchList, known: bool },
    /// A child graph.
    Child { node: usize },
}

/// How execs are made.
#[derive(Clone, Copy)]
pub(super) struct ExecParams<'a> {
    pub(super) flags: InstantiateFlags,
    /// What the nodes that are made of launches have; captured ones have their stream's.
    pub(super) priority: Option<i32>,
    /// The composite graph's place in its capture.
    pub(super) place: usize,
    /// The pool's execs, where captures share them.
    pub(super) shared: Option<&'a SharedExecs>,
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
            (BodySlot::Launches { nodes, .. }, Work::Launches(launches)) => nodes.len() == launches.len(),
            (BodySlot::Child { .. }, Work::Graph(_)) => true,
            _ => false,
        }
    }

    /// Whether nothing but arguments of launches is to be set, as far as is known.
    fn is_configured_for(&self, work: &Work) -> bool {
        match (self, work) {
            (BodySlot::Launches { held, known, .. }, Work::Launches(launches)) => {
                *known && held.is_configured_like(launches)
            }
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
        if let (BodySlot::Launches { held, known, .. }, Work::Launches(launches)) = (self, work) {
            held.become_like(launches);
            *known = true;
        }
    }

    /// Puts a body in, which it has room for. `all`: the nodes that address the exec.
    fn patch(&mut self, (exec, bound): (&GraphExec, &Bound<'_>), all: &[Node], work: &Work) -> Result<Patched> {
        match (self, work) {
            (BodySlot::Launches { nodes, held, known }, Work::Launches(launches)) => {
                if *known && *held == *launches {
                    return Ok(Patched::Unchanged);
                }
                let (mut changed, mut reconfigured) = (false, false);
                // Should a call fail, nobody knows.
                let was_known = std::mem::take(known);
                let mut before = held.iter();
                for (node, launch) in all[nodes.clone()].iter().zip(launches.iter()) {
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
                    held.become_like(launches);
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
    pub(super) fn new(parts: &mut [Part<'_>], params: ExecParams<'_>, stream: &Stream) -> Result<CompositeExec> {
        let (member, mut slots) = build(parts, params, stream)?;
        let exec = match params.shared {
            Some(shared) => Exec::Shared(shared.join(&member, stream)?),
            None => Exec::Own(GraphExec::measured(&member.graph, member.nodes.len(), member.flags, stream)?),
        };
        if let Exec::Own(_) = exec {
            // What a shared one has is looked at when it is locked.
            for (slot, part) in slots.iter_mut().zip(patched(parts)) {
                if let Some(work) = part.work() {
                    slot.made_with(work);
                }
            }
        }
        Ok(CompositeExec { exec, member, slots })
    }

    /// The exec, unless it is shared.
    pub(super) fn exec(&self) -> Option<&GraphExec> {
        match &self.exec {
            Exec::Own(exec) => Some(exec),
            Exec::Shared(_) => None,
        }
    }

    /// What it takes.
    pub(super) fn memory(&self) -> ExecMemory {
        match &self.exec {
            Exec::Own(exec) => ExecMemory::of(exec),
            Exec::Shared(shared) => shared.memory_of(&self.member),
        }
    }

    /// Whether another exec has the same nodes, as far as is known: child graphs are not looked into.
    pub(super) fn has_nodes_like(&self, other: &CompositeExec) -> bool {
        let nodes = |slot: &BodySlot| match slot {
            BodySlot::Launches { nodes, .. } => Some(nodes.len()),
            BodySlot::Child { .. } => None,
        };
        self.slots.iter().map(nodes).eq(other.slots.iter().map(nodes))
    }

    /// Whether it has a node for each launch, and a child for each graph.
    pub(super) fn has_room_for(&self, parts: &mut [Part<'_>]) -> bool {
        self.all_slots(parts, BodySlot::has_room_for)
    }

    /// Whether nothing but arguments of launches is to be set, as far as is known. Not for a shared exec.
    pub(super) fn is_configured_for(&self, parts: &mut [Part<'_>]) -> bool {
        self.all_slots(parts, BodySlot::is_configured_for)
    }

    fn all_slots(&self, parts: &mut [Part<'_>], holds: impl Fn(&BodySlot, &Work) -> bool) -> bool {
        let mut slots = self.slots.iter();
        patched(parts).all(|part| slots.next().zip(part.work()).is_some_and(|(slot, work)| holds(slot, work)))
    }

    /// Puts the recorded bodies in where they differ from what is there, and launches. `false`: a body has other nodes.
    pub(super) fn run(
        &mut self,
        parts: &mut [Part<'_>],
        params: ExecParams<'_>,
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
        let lock = match current.lock(member, stream)? {
            Some(lock) => lock,
            None => {
                // It was made anew for others, after a capture was dropped.
                other = params.shared.ok_or(NOT_SHARED)?.join(member, stream)?;
                *shared = other.clone();
                let mut lock = other.lock(member, stream)?.ok_or(NOT_SHARED)?;
                lock.switched = true;
                lock
            }
        };
        if lock.switched {
            slots.iter_mut().for_each(BodySlot::forget);
            stats.switched += 1;
        }
        patch_and_launch(slots, parts, lock.parts().ok_or(NOT_SHARED)?, stream, stats)
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
fn build(parts: &[Part<'_>], params: ExecParams<'_>, stream: &Stream) -> Result<(Member, Vec<BodySlot>)> {
    let mut graph = Graph::new(stream.context())?;
    let (mut nodes, mut slots) = (Vec::<Node>::new(), Vec::new());
    for part in parts {
        let part = match part {
            Part::Segment(segment) => {
                let added = graph.add_child(&segment.graph, nodes.last().copied());
                nodes.push(added.map_err(|error| Error::segment(segment.index, error))?);
                continue;
            }
            Part::Patched(part) => part,
        };
        let first = nodes.len();
        match part.work() {
            Some(Work::Launches(launches)) => {
                for launch in launches.iter() {
                    // SAFETY: a launch of the crate's with its kernel's own parameters.
                    let added = unsafe { graph.add_kernel(launch, nodes.last().copied(), params.priority) };
                    nodes.push(added.map_err(|error| part.step.failed(error))?);
                }
                slots.push(BodySlot::Launches { nodes: first..nodes.len(), held: LaunchList::default(), known: false });
            }
            Some(Work::Graph(body)) => {
                let added = graph.add_child(body, nodes.last().copied());
                nodes.push(added.map_err(|error| part.step.failed(error))?);
                slots.push(BodySlot::Child { node: first });
            }
            None => return Err(NO_BODY),
        }
    }
    Ok((Member::new(graph, nodes, params.flags, params.place), slots))
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
        let work = part.work().ok_or(NO_BODY)?;
        match slot.patch((exec, &bound), nodes, work) {
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
        Err(error) => Err(Error::segment(first_segment(parts), error)),
    }
}

/// Bodies are recorded before they are put anywhere.
const NO_BODY: Error = Error::Internal("a patched break has no body");
/// An exec that a member has joined takes its graph.
const NOT_SHARED: Error = Error::Internal("a shared exec does not take its member's graph");
