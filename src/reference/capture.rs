//! The rules of stream capture: which stream takes part in which capture, which calls invalidate it, and how it ends. The codes are those measured
//! on a device.

use super::graph::{Graph, Node, Payload};
use super::handles::Recorded;
use super::ids::TaskId;
use super::ids::{CaptureId, Handle, new_handle};
use super::state::{Outcome, State};
use super::threads::ThreadNumber;
use super::work::Work;
use crate::sys::{CUresult, CUstream, CUstream_flags_enum, CUstreamCaptureMode};
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};

/// An open capture.
pub(super) struct Capture {
    pub(super) origin: Handle,
    thread: ThreadNumber,
    mode: CUstreamCaptureMode,
    pub(super) graph: Handle,
    pub(super) invalidated: bool,
    /// The streams that take part, each with the nodes that its next one comes after.
    pub(super) tails: HashMap<Handle, Vec<usize>>,
}

thread_local! {
    /// The thread's own capture mode.
    static MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

/// Exchanges the thread's capture mode.
pub(super) fn exchange_mode(mode: CUstreamCaptureMode) -> Outcome<CUstreamCaptureMode> {
    if mode.0 > CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(MODE.replace(mode))
}

/// A stream as a call names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// The legacy stream of a context.
    Legacy(Handle),
    Stream(Handle),
}

impl State {
    /// The stream of a raw handle: null and the two special values are the current context's legacy stream.
    pub(super) fn target(&self, raw: CUstream) -> Outcome<Target> {
        match raw as usize {
            0..=2 => Ok(Target::Legacy(self.current()?)),
            handle if self.streams.contains_key(&handle) => Ok(Target::Stream(handle)),
            _ => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
        }
    }

    pub(super) fn context_of(&self, target: Target) -> Handle {
        match target {
            Target::Legacy(context) => context,
            Target::Stream(stream) => self.streams[&stream].context,
        }
    }

    /// The capture that a stream takes part in.
    pub(super) fn capture_of(&self, target: Target) -> Option<CaptureId> {
        match target {
            Target::Legacy(_) => None,
            Target::Stream(stream) => self.streams.get(&stream)?.capture,
        }
    }

    pub(super) fn invalidate(&mut self, capture: CaptureId) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.invalidated = true;
        }
    }

    /// Refuses a call that may disturb a capture (900), and invalidates the captures that forbid it to this thread.
    pub(super) fn unsafe_call(&mut self) -> Outcome {
        use CUstreamCaptureMode as Mode;
        let (mine, me) = (MODE.get(), ThreadNumber::current());
        if mine == Mode::CU_STREAM_CAPTURE_MODE_RELAXED {
            return Ok(());
        }
        let mut forbidden = false;
        for capture in self.captures.values_mut() {
            let forbids = if capture.thread == me {
                capture.mode != Mode::CU_STREAM_CAPTURE_MODE_RELAXED
            } else {
                capture.mode == Mode::CU_STREAM_CAPTURE_MODE_GLOBAL && mine == Mode::CU_STREAM_CAPTURE_MODE_GLOBAL
            };
            capture.invalidated |= forbids;
            forbidden |= forbids;
        }
        if forbidden { Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Refuses a call on a stream that takes part in a capture (900), and invalidates it.
    pub(super) fn refuse_capturing(&mut self, target: Target) -> Outcome {
        match self.capture_of(target) {
            Some(capture) => {
                self.invalidate(capture);
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Work on a stream: a node of its capture, or a task.
    pub(super) fn submit(&mut self, target: Target, work: Work) -> Outcome {
        if let (Target::Stream(stream), Some(_)) = (target, self.capture_of(target)) {
            return self.add_captured(stream, Payload::Work(work)).map(drop);
        }
        self.submit_live(target, work).map(drop)
    }

    /// Work on a stream that is not captured.
    pub(super) fn submit_live(&mut self, target: Target, work: Work) -> Outcome<TaskId> {
        let context = self.context_of(target);
        self.healthy(context)?;
        self.refuse_legacy_while_blocking_captures(target)?;
        let after = self.tails(target);
        let task = self.enqueue(context, after, work);
        self.set_tail(target, task);
        Ok(task)
    }

    /// 906: the legacy stream would have to wait for a capturing stream.
    fn refuse_legacy_while_blocking_captures(&mut self, target: Target) -> Outcome {
        let Target::Legacy(context) = target else { return Ok(()) };
        let capturing: Vec<CaptureId> = self
            .streams
            .values()
            .filter(|stream| stream.context == context && is_blocking(stream.flags))
            .filter_map(|stream| stream.capture)
            .collect();
        if capturing.is_empty() {
            return Ok(());
        }
        for capture in capturing {
            self.invalidate(capture);
        }
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    }

    /// What the next work on a stream comes after.
    pub(super) fn tails(&self, target: Target) -> Vec<TaskId> {
        match target {
            Target::Legacy(context) => {
                let blocking =
                    self.streams.values().filter(|stream| stream.context == context && is_blocking(stream.flags));
                let tails = blocking.filter_map(|stream| stream.tail);
                tails.chain(self.contexts.get(&context).and_then(|context| context.legacy_tail)).collect()
            }
            Target::Stream(handle) => {
                let Some(stream) = self.streams.get(&handle) else { return Vec::new() };
                let legacy = self.contexts.get(&stream.context).and_then(|context| context.legacy_tail);
                stream.tail.into_iter().chain(legacy.filter(|_| is_blocking(stream.flags))).collect()
            }
        }
    }

    pub(super) fn set_tail(&mut self, target: Target, task: TaskId) {
        match target {
            Target::Legacy(context) => {
                if let Some(context) = self.contexts.get_mut(&context) {
                    context.legacy_tail = Some(task);
                }
            }
            Target::Stream(stream) => {
                if let Some(stream) = self.streams.get_mut(&stream) {
                    stream.tail = Some(task);
                }
            }
        }
    }

    /// Adds a node to the capture that the stream takes part in; gives its handle.
    pub(super) fn add_captured(&mut self, stream: Handle, payload: Payload) -> Outcome<Handle> {
        let id = self.capture_of(Target::Stream(stream)).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = self.captures.get_mut(&id).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.invalidated {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let after = capture.tails.get(&stream).cloned().unwrap_or_default();
        let graph_handle = capture.graph;
        let graph = self.graphs.get_mut(&graph_handle).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        let handle = new_handle();
        capture.tails.insert(stream, vec![graph.nodes.len()]);
        graph.nodes.push(Node { handle, payload, after });
        self.nodes.insert(handle, graph_handle);
        Ok(handle)
    }

    pub(super) fn begin_capture(&mut self, raw: CUstream, mode: CUstreamCaptureMode) -> Outcome {
        if mode.0 > CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let Target::Stream(stream) = self.target(raw)? else {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        };
        self.healthy(self.streams[&stream].context)?;
        if self.streams[&stream].capture.is_some() {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let (id, graph) = (self.next_id(), new_handle());
        self.graphs.insert(graph, Graph { nodes: Vec::new(), borrowed: true });
        let capture = Capture {
            origin: stream,
            thread: ThreadNumber::current(),
            mode,
            graph,
            invalidated: false,
            tails: HashMap::from([(stream, Vec::new())]),
        };
        self.captures.insert(id, capture);
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = Some(id);
        }
        Ok(())
    }

    /// Ends a capture and gives its graph.
    pub(super) fn end_capture(&mut self, raw: CUstream) -> Outcome<Handle> {
        let target = self.target(raw)?;
        let id = self.capture_of(target).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = self.captures.get(&id).ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if target != Target::Stream(capture.origin) {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let relaxed = capture.mode == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let refused = if !relaxed && capture.thread != ThreadNumber::current() {
            Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        } else if capture.invalidated {
            Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        } else if !self.is_joined(capture) {
            Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        } else {
            None
        };
        let graph = capture.graph;
        self.forget_capture(id);
        match refused {
            Some(code) => {
                self.remove_graph(graph);
                Err(code)
            }
            None => {
                if let Some(graph) = self.graphs.get_mut(&graph) {
                    graph.borrowed = false;
                }
                Ok(graph)
            }
        }
    }

    /// Whether the work of every stream of the capture comes before what the origin has last.
    fn is_joined(&self, capture: &Capture) -> bool {
        let Some(graph) = self.graphs.get(&capture.graph) else { return true };
        let mut reached = BTreeSet::new();
        let mut look = capture.tails.get(&capture.origin).cloned().unwrap_or_default();
        while let Some(node) = look.pop() {
            if reached.insert(node) {
                look.extend(&graph.nodes[node].after);
            }
        }
        capture.tails.values().flatten().all(|node| reached.contains(node))
    }

    /// Takes all streams out of a capture.
    pub(super) fn forget_capture(&mut self, id: CaptureId) {
        self.captures.remove(&id);
        for stream in self.streams.values_mut().filter(|stream| stream.capture == Some(id)) {
            stream.capture = None;
        }
    }

    /// Removes a graph with its nodes and its children.
    pub(super) fn remove_graph(&mut self, graph: Handle) {
        let Some(graph) = self.graphs.remove(&graph) else { return };
        for node in graph.nodes {
            self.nodes.remove(&node.handle);
            if let Payload::Child(child) = node.payload {
                self.remove_graph(child);
            }
        }
    }

    pub(super) fn record_event(&mut self, event: Handle, raw: CUstream, external: bool) -> Outcome {
        let target = self.target(raw)?;
        let context = self.context_of(target);
        match self.events.get(&event) {
            Some(event) if event.context == context => {}
            _ => return Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
        }
        let recorded = match (target, self.capture_of(target)) {
            (Target::Stream(stream), Some(capture)) => {
                if self.captures.get(&capture).is_none_or(|capture| capture.invalidated) {
                    return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
                }
                if external {
                    return self.add_captured(stream, Payload::EventRecord(event)).map(drop);
                }
                let nodes = self.captures[&capture].tails.get(&stream).cloned().unwrap_or_default();
                Recorded::Captured { capture, nodes }
            }
            _ => Recorded::Work(vec![self.submit_live(target, Work::Record { event })?]),
        };
        if let Some(event) = self.events.get_mut(&event) {
            event.recorded = recorded;
        }
        Ok(())
    }

    pub(super) fn wait_event(&mut self, raw: CUstream, event: Handle, external: bool) -> Outcome {
        let target = self.target(raw)?;
        let recorded = self.events.get(&event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.recorded.clone();
        let mine = self.capture_of(target);
        if let (Target::Stream(stream), Some(_), true) = (target, mine, external) {
            return self.add_captured(stream, Payload::EventWait(event)).map(drop);
        }
        match (recorded, mine) {
            (Recorded::Never, _) => Ok(()),
            (Recorded::Work(_), Some(capture)) => {
                self.invalidate(capture);
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
            }
            (Recorded::Work(tasks), None) => {
                let context = self.context_of(target);
                self.healthy(context)?;
                let after = self.tails(target).into_iter().chain(tasks);
                let task = self.enqueue(context, after, Work::Nothing);
                self.set_tail(target, task);
                Ok(())
            }
            (Recorded::Captured { capture, nodes }, mine) => self.wait_captured(target, mine, capture, nodes),
        }
    }

    fn wait_captured(
        &mut self,
        target: Target,
        mine: Option<CaptureId>,
        other: CaptureId,
        nodes: Vec<usize>,
    ) -> Outcome {
        let Some(capture) = self.captures.get_mut(&other) else { return Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
        if capture.invalidated {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let Target::Stream(stream) = target else {
            capture.invalidated = true;
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        };
        if let Some(mine) = mine.filter(|mine| *mine != other) {
            self.invalidate(mine);
            self.invalidate(other);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE);
        }
        let tails = capture.tails.entry(stream).or_default();
        tails.extend(nodes);
        tails.sort_unstable();
        tails.dedup();
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = Some(other);
        }
        Ok(())
    }

    /// The tasks of an event that a host may look at: 907 and an invalid capture for one of an open capture, 1 for one of a closed capture.
    pub(super) fn event_tasks(&mut self, event: Handle) -> Outcome<Vec<TaskId>> {
        let recorded = self.events.get(&event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.recorded.clone();
        match recorded {
            Recorded::Never => Ok(Vec::new()),
            Recorded::Work(tasks) => Ok(tasks),
            Recorded::Captured { capture, .. } if self.captures.contains_key(&capture) => {
                self.invalidate(capture);
                Err(CUresult::CUDA_ERROR_CAPTURED_EVENT)
            }
            Recorded::Captured { .. } => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
}

pub(super) fn is_blocking(flags: u32) -> bool {
    flags & CUstream_flags_enum::CU_STREAM_NON_BLOCKING.0 == 0
}
