//! Side streams: what a segment and a live break draw in, and memory that they use (rules 50 and 51). For 64 orders, with the work in flight.

use crate::support::{Rig, assert_same, for_each_seed};
use breakable_cuda_graph::driver::{Event, MemoryPool, Stream};
use breakable_cuda_graph::tensor::Layout;
use breakable_cuda_graph::{
    BreakableCapture, CapturePool, DType, Error, Misuse, Result, Scope, Tensor, eager, outside_capture,
};

/// A stream beside another, and the events that fork and join it.
struct Side {
    stream: Stream,
    fork: Event,
    join: Event,
}

impl Side {
    fn new(rig: &Rig) -> Side {
        let event = || Event::new(&rig.context).expect("an event");
        Side { stream: Stream::new(&rig.context).expect("a stream"), fork: event(), join: event() }
    }

    fn fork(&self, from: &Stream) -> Result<()> {
        self.fork.record(from)?;
        self.stream.wait(&self.fork)
    }

    fn join(&self, to: &Stream) -> Result<()> {
        self.join.record(&self.stream)?;
        to.wait(&self.join)
    }
}

const ELEMENTS: usize = 64;

/// A temporary of the side branch is dropped before the join, and the main branch asks for one of its size.
fn side_temporary(rig: &Rig, side: &Side, x: &Tensor, scope: &Scope<'_, '_>) -> Result<Tensor> {
    let main = scope.stream()?;
    let kept = scope.empty(DType::F32, &[ELEMENTS])?;
    side.fork(&main)?;
    let a = scope.empty(DType::F32, &[ELEMENTS])?;
    rig.ops.scale_into(&side.stream, x, 2.0, &a)?;
    rig.ops.scale_into(&side.stream, &a, 2.0, &kept)?;
    drop(a);
    let b = rig.ops.scale(x, 8.0)?;
    side.join(&main)?;
    rig.ops.add(&b, &kept)
}

/// The other way round: the main branch's temporary goes, and the side branch asks for one.
fn main_temporary(rig: &Rig, side: &Side, x: &Tensor, scope: &Scope<'_, '_>) -> Result<Tensor> {
    let main = scope.stream()?;
    let (kept, other) = (scope.empty(DType::F32, &[ELEMENTS])?, scope.empty(DType::F32, &[ELEMENTS])?);
    side.fork(&main)?;
    let a = rig.ops.scale(x, 2.0)?;
    rig.ops.scale_into(&main, &a, 2.0, &kept)?;
    drop(a);
    let b = scope.empty(DType::F32, &[ELEMENTS])?;
    rig.ops.scale_into(&side.stream, x, 8.0, &b)?;
    rig.ops.scale_into(&side.stream, &b, 1.0, &other)?;
    side.join(&main)?;
    rig.ops.add(&other, &kept)
}

/// The event of the fork is older than the use of a temporary that has gone since.
fn late_fork(rig: &Rig, side: &Side, x: &Tensor, scope: &Scope<'_, '_>) -> Result<Tensor> {
    let main = scope.stream()?;
    let (kept, other) = (scope.empty(DType::F32, &[ELEMENTS])?, scope.empty(DType::F32, &[ELEMENTS])?);
    side.fork.record(&main)?;
    let a = rig.ops.scale(x, 2.0)?;
    rig.ops.scale_into(&main, &a, 2.0, &kept)?;
    drop(a);
    side.stream.wait(&side.fork)?;
    let b = scope.empty(DType::F32, &[ELEMENTS])?;
    rig.ops.scale_into(&side.stream, x, 8.0, &b)?;
    rig.ops.scale_into(&side.stream, &b, 1.0, &other)?;
    side.join(&main)?;
    rig.ops.add(&other, &kept)
}

type Forward = fn(&Rig, &Side, &Tensor, &Scope<'_, '_>) -> Result<Tensor>;

const FORWARDS: [(&str, Forward); 3] = [("side", side_temporary), ("main", main_temporary), ("late fork", late_fork)];

#[test]
fn a_block_returns_when_the_branches_of_its_segment_are_joined() {
    for (name, forward) in FORWARDS {
        for_each_seed(|rig| {
            let (x, side) = (rig.ones(&[ELEMENTS]), Side::new(&rig));
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            let out = capture.record(&rig.stream, |scope| forward(&rig, &side, &x, scope)).expect("a recording");
            for _ in 0..2 {
                let _ = capture.replay(&rig.stream).expect("a replay");
            }
            assert_eq!(rig.read(&out), [12.0; ELEMENTS], "{name}");
        });
    }
}

/// It does return then: the next operations use it.
#[test]
fn a_block_serves_again_after_the_join() {
    let rig = Rig::new(&crate::support::driver());
    let (x, side) = (rig.ones(&[ELEMENTS]), Side::new(&rig));
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    capture
        .record(&rig.stream, |scope| {
            side.fork(&scope.stream()?)?;
            let a = rig.ops.scale(&x, 2.0)?;
            let address = a.address();
            drop(a);
            let b = rig.ops.scale(&x, 2.0)?;
            assert_ne!(b.address(), address, "the side branch might use it");
            side.join(&scope.stream()?)?;
            let c = rig.ops.scale(&x, 2.0)?;
            assert_eq!(c.address(), address);
            Ok(())
        })
        .expect("a recording");
}

/// In eager forwards and live breaks temporaries return in the order of a stream.
#[test]
fn a_temporary_returns_after_the_streams_that_use_it() {
    for (name, forward) in FORWARDS {
        for_each_seed(|rig| {
            let (x, side) = (rig.ones(&[ELEMENTS]), Side::new(&rig));
            let out = eager(&rig.pool, &rig.stream, |scope| forward(&rig, &side, &x, scope)).expect("an eager run");
            assert_eq!(rig.read(&out), [12.0; ELEMENTS], "{name}, eager");
        });
    }
    for_each_seed(|rig| {
        let (x, kept) = (rig.ones(&[ELEMENTS]), rig.zeros(&[ELEMENTS]));
        let (side, ops) = (Side::new(&rig), rig.ops.clone());
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture
            .record(&rig.stream, |scope| {
                scope.break_point("side", [&x], |b| {
                    let a = b.empty(DType::F32, &[ELEMENTS])?;
                    side.fork(b.stream())?;
                    ops.scale_into(&side.stream, b.input(0)?, 2.0, &a)?;
                    ops.scale_into(&side.stream, &a, 2.0, &kept)?;
                    drop(a);
                    side.join(b.stream())?;
                    ops.add(b.input(0)?, &kept)
                })
            })
            .expect("a recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &[5.0; ELEMENTS]);
    });
}

/// Memory of a caller's own stream-ordered pool, for work that the crate does not see.
#[test]
fn record_stream_says_it_for_unseen_work() {
    for_each_seed(|rig| {
        let own = Stream::new(&rig.context).expect("a stream");
        let memory = MemoryPool::new(&rig.context).expect("a pool");
        let make = || {
            let buffer = memory.allocate(ELEMENTS * 4, &own).expect("memory");
            let tensor = Tensor::from_buffer(buffer, DType::F32, Layout::contiguous(&[ELEMENTS]).expect("a layout"));
            let tensor = tensor.expect("a tensor");
            tensor.write(&own, &[3.0_f32; ELEMENTS]).expect("written");
            tensor
        };
        let (x, result) = (make(), rig.zeros(&[ELEMENTS]));
        rig.stream.synchronize().expect("done");
        // SAFETY: live memory of this length: the copy is ordered before its return by `record_stream`.
        unsafe {
            let raw = rig.context.driver();
            raw.cuMemcpyDtoDAsync_v2(result.address(), x.address(), ELEMENTS * 4, rig.stream.as_raw()).expect("a copy");
        }
        x.record_stream(&rig.stream).expect("recorded");
        drop(x);
        // It takes the same memory, were it free.
        let _other = make();
        assert_same(&rig.read(&result), &[3.0; ELEMENTS]);
    });
}

/// A library's call on a side stream in a segment: the block is not given to the main branch before the join.
#[test]
fn record_stream_holds_a_block_of_a_segment_until_the_join() {
    let rig = Rig::new(&crate::support::driver());
    let (x, side, unseen) = (rig.ones(&[ELEMENTS]), Side::new(&rig), Stream::new(&rig.context).expect("a stream"));
    let join = Event::new(&rig.context).expect("an event");
    let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
    capture
        .record(&rig.stream, |scope| {
            let (main, raw) = (scope.stream()?, rig.context.driver());
            side.fork.record(&main)?;
            // SAFETY: live handles of one context. The crate does not see that this draws the stream in.
            unsafe { raw.cuStreamWaitEvent(unseen.as_raw(), side.fork.as_raw(), 0)? };
            let a = rig.ops.scale(&x, 2.0)?;
            let address = a.address();
            a.record_stream(&unseen)?;
            drop(a);
            assert_ne!(rig.ops.scale(&x, 2.0)?.address(), address);
            let blocks = rig.pool.usage()?.blocks;
            // SAFETY: as above.
            unsafe {
                raw.cuEventRecord(join.as_raw(), unseen.as_raw())?;
                raw.cuStreamWaitEvent(main.as_raw(), join.as_raw(), 0)?;
            }
            scope.break_point("next", [&x], |_| Ok(()))?;
            assert_eq!(rig.pool.usage()?.blocks, blocks - 1, "the segment has ended");
            Ok(())
        })
        .expect("a recording");
}

fn unjoined(error: Error) -> (String, usize) {
    match error {
        Error::Capture(error) => unjoined(*error.source),
        Error::Break { name, source, .. } => match *source {
            Error::Misuse(Misuse::UnjoinedInBreak { stream }) => (name, stream),
            other => panic!("another cause: {other}"),
        },
        other => panic!("another error: {other}"),
    }
}

/// Rule 51, at the recording and at a replay: the next segment would run ahead of the side stream's work.
#[test]
fn a_live_break_joins_what_it_draws_in() {
    // How far it gets: 0 not drawn in; 1 not joined; 2 joined before its last work; 3 joined.
    fn run(side: &Side, ops: &crate::support::demo::Ops, main: &Stream, x: &Tensor, y: &Tensor, far: u8) -> Result<()> {
        if far == 0 {
            return ops.scale_into(main, x, 3.0, y);
        }
        side.fork(main)?;
        if far == 2 {
            side.join(main)?;
        }
        ops.scale_into(&side.stream, x, 3.0, y)?;
        if far == 3 { side.join(main) } else { Ok(()) }
    }
    for (at_capture, at_replay) in [(1, 3), (2, 3), (3, 1), (3, 2), (0, 1), (0, 3), (3, 3)] {
        let rig = Rig::new(&crate::support::driver());
        let (x, y, side) = (rig.ones(&[ELEMENTS]), rig.zeros(&[ELEMENTS]), Side::new(&rig));
        let (ops, inside, raw) = (rig.ops.clone(), y.clone(), side.stream.as_raw() as usize);
        let mut first = true;
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let recorded = capture.record(&rig.stream, |scope| {
            let h = scope.break_point("forks", [&x], move |b| {
                let far = if std::mem::take(&mut first) { at_capture } else { at_replay };
                run(&side, &ops, b.stream(), b.input(0)?, &inside, far).map(|()| inside.clone())
            })?;
            rig.ops.scale(&h, 1.0)
        });
        let told = ("forks".to_owned(), raw);
        if matches!(at_capture, 1 | 2) {
            assert_eq!(unjoined(recorded.expect_err("it is not joined")), told, "{at_capture}");
            continue;
        }
        let out = recorded.expect("it is joined");
        let replayed = capture.replay(&rig.stream).map(drop);
        if matches!(at_replay, 1 | 2) {
            assert_eq!(unjoined(replayed.expect_err("it is not joined")), told, "{at_replay}");
            rig.context.synchronize().expect("done");
        } else {
            replayed.expect("a replay");
            assert_same(&rig.read(&out), &[3.0; ELEMENTS]);
        }
    }
}

/// What a live break does with a stream that it was not given, by a name for the test's message; whether that is refused.
type Beside = fn(&Rig, &Side, &Stream, &Tensor, &Tensor) -> Result<()>;

const BESIDE: [(&str, Option<&str>, Beside); 10] = [
    ("a launch", Some("demo_scale"), |rig, side, _, x, y| rig.ops.scale_into(&side.stream, x, 3.0, y)),
    ("a copy", Some("a copy of a tensor"), |_, side, _, x, y| y.copy_from(&side.stream, x)),
    ("a fill", Some("a memset"), |_, side, _, _, y| y.fill_bytes(&side.stream, 0)),
    ("work that a library does there", Some("work on a tensor"), |_, side, _, _, y| y.record_stream(&side.stream)),
    ("an event that says nothing of the break's stream", Some("demo_scale"), |rig, side, _, x, y| {
        side.fork.record(&side.stream)?;
        side.stream.wait(&side.fork)?;
        rig.ops.scale_into(&side.stream, x, 3.0, y)
    }),
    ("work on the break's stream after the host has waited for it", Some("demo_scale"), |rig, side, main, x, y| {
        main.synchronize()?;
        rig.ops.scale_into(main, x, 3.0, y)?;
        rig.ops.scale_into(&side.stream, x, 3.0, y)
    }),
    ("the host waits before and after", None, |rig, side, main, x, y| {
        main.synchronize()?;
        rig.ops.scale_into(&side.stream, x, 3.0, y)?;
        side.stream.synchronize()
    }),
    ("the host waits for events", None, |rig, side, main, x, y| {
        side.fork.record(main)?;
        side.fork.synchronize()?;
        rig.ops.scale_into(&side.stream, x, 3.0, y)?;
        side.join.record(&side.stream)?;
        side.join.synchronize()
    }),
    ("an event before and the context after", None, |rig, side, main, x, y| {
        side.fork(main)?;
        rig.ops.scale_into(&side.stream, x, 3.0, y)?;
        rig.context.synchronize()
    }),
    ("it is meant", None, |rig, side, main, x, y| {
        outside_capture(|| {
            side.fork(main)?;
            rig.ops.scale_into(&side.stream, x, 3.0, y)?;
            side.join.record(&side.stream)
        })?;
        main.wait(&side.join)
    }),
];

/// Rule 51 where no event draws the stream in: an engine's own stream that the break's closure took by move.
#[test]
fn a_live_break_has_no_work_on_streams_that_nothing_orders_with_its_own() {
    for (what, refused, beside) in BESIDE {
        for at_capture in [true, false] {
            let rig = Rig::new(&crate::support::driver());
            let (x, y, side) = (rig.ones(&[ELEMENTS]), rig.zeros(&[ELEMENTS]), Side::new(&rig));
            let (inside, raw, mut first) = (y.clone(), side.stream.as_raw() as usize, true);
            let (this, work) = (&rig, &side);
            let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
            let recorded = capture.record(&rig.stream, |scope| {
                let h = scope.break_point("own stream", [&x], move |b| {
                    if at_capture || !std::mem::take(&mut first) {
                        beside(this, work, b.stream(), b.input(0)?, &inside)?;
                    }
                    Ok(inside.clone())
                })?;
                rig.ops.scale(&h, 1.0)
            });
            let result = recorded.and_then(|out| capture.replay(&rig.stream)?.read::<f32>(&out, &rig.stream));
            let Some(refused) = refused else {
                assert_same(&result.unwrap_or_else(|error| panic!("{what}: {error}")), &[3.0; ELEMENTS]);
                continue;
            };
            let mut error = result.expect_err(what);
            while let Error::Capture(capture) = error {
                error = *capture.source;
            }
            let Error::Break { name, source, .. } = error else { panic!("{what}: {error}") };
            let Error::Misuse(Misuse::OutsideTheBreak { operation, stream }) = *source else {
                panic!("{what}: {source}")
            };
            assert_eq!((name.as_str(), operation.as_str(), stream), ("own stream", refused, raw), "{what}");
            rig.context.synchronize().expect("done");
        }
    }
}

/// What has a stream of its own inside a break is a matter of its own: a replay on another pool, and the reading of its results.
#[test]
fn a_live_break_may_replay_another_pools_capture_on_another_stream() {
    for_each_seed(|rig| {
        let (x, own) = (rig.ones(&[ELEMENTS]), Stream::new(&rig.context).expect("a stream"));
        let other = CapturePool::new(&rig.context).expect("a pool");
        let mut inner = BreakableCapture::new(&other).expect("a capture");
        let doubled = inner.record(&rig.stream, |_| rig.ops.scale(&x, 2.0)).expect("a recording");
        let (mut first, pool, this) = (true, &other, &rig);
        let mut capture = BreakableCapture::new(&rig.pool).expect("a capture");
        let out = capture
            .record(&rig.stream, |scope| {
                let h = scope.break_point("draft", [&x], move |b| {
                    if !std::mem::take(&mut first) {
                        let drafted = inner.replay(&own)?.read::<f32>(&doubled, &own)?;
                        let eagerly = eager(pool, &own, |_| this.ops.scale(&doubled, 1.0))?;
                        own.synchronize()?;
                        let ours = b.empty(DType::F32, &[ELEMENTS])?;
                        ours.write(b.stream(), &drafted)?;
                        return this.ops.add(&ours, &eagerly);
                    }
                    b.input(0).cloned()
                })?;
                rig.ops.scale(&h, 1.0)
            })
            .expect("a recording");
        let _ = capture.replay(&rig.stream).expect("a replay");
        assert_same(&rig.read(&out), &[4.0; ELEMENTS]);
    });
}
